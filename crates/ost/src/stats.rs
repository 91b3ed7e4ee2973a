//! Statistics of reads and writes, for `obdfilter.*.brw_stats`.

use core::fmt::Write;

/// Buckets of the histogram, by powers of two pages: 1, 2, 4 …; the last has all larger ones.
const SIZES: usize = 12;
/// The unit of the histogram, in bytes.
const PAGE: u64 = 4096;

/// Counts since the start, or since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    reads: [u64; SIZES],
    writes: [u64; SIZES],
    /// Truncations, holes, allocations.
    pub punches: u64,
    /// Objects removed.
    pub destroys: u64,
}

/// The bucket of a request of this many bytes.
fn place(bytes: u64) -> usize {
    let pages = bytes.div_ceil(PAGE).max(1);
    (pages.next_power_of_two().trailing_zeros() as usize).min(SIZES - 1)
}

impl Stats {
    /// Counts a read.
    pub fn read(&mut self, bytes: u64) {
        self.reads[place(bytes)] += 1;
    }

    /// Counts a write.
    pub fn write(&mut self, bytes: u64) {
        self.writes[place(bytes)] += 1;
    }

    /// The text of `brw_stats`, in Lustre's format.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "                           read      |     write\n\
             pages per bulk r/w     rpcs  % cum % |  rpcs        % cum %\n",
        );
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        let percent = |part: u64, all: u64| (100 * part).checked_div(all).unwrap_or(0);
        let all = [sum(&self.reads), sum(&self.writes)];
        for size in 0..SIZES {
            let so_far = [sum(&self.reads[..=size]), sum(&self.writes[..=size])];
            if so_far == [0, 0] {
                continue;
            }
            let [read, write] = [(self.reads[size], 0), (self.writes[size], 1)]
                .map(|(count, way)| (count, percent(count, all[way]), percent(so_far[way], all[way])));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<18}{:>10} {:>3} {:>3}   | {:>4} {:>3} {:>3}",
                format!("{}:", 1u64 << size),
                read.0,
                read.1,
                read.2,
                write.0,
                write.1,
                write.2
            );
            if so_far == all {
                break;
            }
        }
        let _ = write!(text, "\npunches: {}\ndestroys: {}\n", self.punches, self.destroys);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_look_like_lustres() {
        let mut stats = Stats::default();
        assert_eq!(stats.text().lines().count(), 5, "{}", stats.text());
        stats.write(10);
        stats.write(4096);
        stats.write(4097);
        stats.write(1 << 20);
        stats.read(16384);
        stats.punches = 3;
        let text = stats.text();
        let rows: Vec<&str> = text.lines().skip(2).take_while(|line| !line.is_empty()).collect();
        assert_eq!(rows[0], "1:                         0   0   0   |    2  50  50");
        assert_eq!(rows[1], "2:                         0   0   0   |    1  25  75");
        assert_eq!(rows[2], "4:                         1 100 100   |    0   0  75");
        assert_eq!(rows.last(), Some(&"256:                       0   0 100   |    1  25 100"));
        assert!(text.ends_with("punches: 3\ndestroys: 0\n"), "{text}");
    }

    #[test]
    fn sizes_are_counted_up_to_the_next_power_of_two() {
        for (bytes, want) in [(0, 0), (1, 0), (4096, 0), (4097, 1), (12288, 2), (1 << 20, 8), (u64::MAX, SIZES - 1)] {
            assert_eq!(place(bytes), want, "{bytes}");
        }
    }
}
