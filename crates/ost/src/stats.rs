//! Counts of what the target did, for `obdfilter.*.brw_stats`.

use stdx::tally::{Tally, count_line};

/// What was done since the start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    read: Tally,
    write: Tally,
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
        for (name, bytes) in [("read_bytes", self.read), ("write_bytes", self.write)] {
            if bytes.samples != 0 {
                text.push_str(&bytes.line(name, "bytes"));
            }
        }
        for (name, samples) in [("punch", self.punches), ("destroy", self.destroys)] {
            if samples != 0 {
                text.push_str(&count_line(name, samples));
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
            "write_bytes               2 samples [bytes] 4 10 14 116\npunch                     3 samples [reqs]\n"
        );
    }
}
