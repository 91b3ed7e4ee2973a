//! Counts of what the target did, for `obdfilter.*.brw_stats`.

use core::fmt::Write;

/// Samples of a size in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    samples: u64,
    min: u64,
    max: u64,
    sum: u64,
}

impl Bytes {
    fn add(&mut self, bytes: u64) {
        self.min = if self.samples == 0 { bytes } else { self.min.min(bytes) };
        self.max = self.max.max(bytes);
        self.samples += 1;
        self.sum += bytes;
    }
}

/// What was done since the start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    read: Bytes,
    write: Bytes,
    /// Truncations, holes, allocations.
    pub punches: u64,
    /// Objects removed.
    pub destroys: u64,
}

impl Stats {
    /// A read.
    pub fn read(&mut self, bytes: u64) {
        self.read.add(bytes);
    }

    /// A write.
    pub fn write(&mut self, bytes: u64) {
        self.write.add(bytes);
    }

    /// In Lustre's form, without what was never done.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, b) in [("read_bytes", self.read), ("write_bytes", self.write)] {
            if b.samples != 0 {
                let _ = writeln!(text, "{name:<25} {} samples [bytes] {} {} {}", b.samples, b.min, b.max, b.sum);
            }
        }
        for (name, samples) in [("punch", self.punches), ("destroy", self.destroys)] {
            if samples != 0 {
                let _ = writeln!(text, "{name:<25} {samples} samples [reqs]");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_look_like_lustres() {
        let mut stats = Stats::default();
        assert_eq!(stats.text(), "");
        stats.write(10);
        stats.write(4);
        stats.punches = 3;
        assert_eq!(
            stats.text(),
            "write_bytes               2 samples [bytes] 4 10 14\npunch                     3 samples [reqs]\n"
        );
    }
}
