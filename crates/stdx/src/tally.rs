//! Statistics of samples, printed as Lustre's tools print them.
//!
//! ```text
//! snapshot_time             1790000002.500000000 secs.nsecs
//! write_bytes               2 samples [bytes] 4 10 14 116
//! ```
//! The numbers after the unit are the minimum, the maximum, the sum, and the sum of squares.

use core::fmt::Write;
use core::time::Duration;

/// Statistics of a series of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of samples.
    pub samples: u64,
    min: u64,
    max: u64,
    sum: u64,
    square_sum: u64,
}

impl Tally {
    /// Adds a sample. Sums saturate.
    pub fn add(&mut self, value: u64) {
        self.min = if self.samples == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.samples = self.samples.saturating_add(1);
        self.sum = self.sum.saturating_add(value);
        self.square_sum = self.square_sum.saturating_add(value.saturating_mul(value));
    }

    /// Adds a duration, in microseconds.
    pub fn add_time(&mut self, took: Duration) {
        self.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// A line of statistics.
    pub fn line(&self, name: &str, unit: &str) -> String {
        let Tally { samples, min, max, sum, square_sum } = self;
        format!("{name:<25} {samples} samples [{unit}] {min} {max} {sum} {square_sum}\n")
    }
}

/// A line of statistics about something without a value.
pub fn count_line(name: &str, count: u64) -> String {
    format!("{name:<25} {count} samples [reqs]\n")
}

/// The first lines of statistics: wall-clock times, from now and from the start of counting in nanoseconds.
pub fn head(now_ns: i64, since_ns: i64) -> String {
    let mut text = String::new();
    for (name, ns) in
        [("snapshot_time", now_ns), ("start_time", since_ns), ("elapsed_time", now_ns.saturating_sub(since_ns))]
    {
        let (seconds, ns) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<25} {seconds}.{ns:09} secs.nsecs");
    }
    text
}

/// A kind of sample, with a name and a unit. There are few kinds.
pub trait Sampled: Copy + Ord {
    /// Its name in statistics.
    fn name(self) -> &'static str;
    /// Its unit: `bytes`, `usecs`.
    fn unit(self) -> &'static str;
}

/// Tallies by kind of sample; kinds that never occurred take no memory.
#[derive(Clone, Debug)]
pub struct Tallies<K>(Vec<(K, Tally)>);

impl<K> Default for Tallies<K> {
    fn default() -> Tallies<K> {
        Tallies(Vec::new())
    }
}

impl<K: Sampled> Tallies<K> {
    /// The tally of one kind, created if necessary.
    pub fn of(&mut self, what: K) -> &mut Tally {
        let at = match self.0.binary_search_by_key(&what, |(known, _)| *known) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (what, Tally::default()));
                at
            }
        };
        &mut self.0[at].1
    }

    /// A line of YAML about one kind, even if it never occurred.
    pub fn yaml(&self, what: K) -> String {
        let at = self.0.binary_search_by_key(&what, |(known, _)| *known);
        let Tally { samples, min, max, sum, square_sum } = at.map_or_else(|_| Tally::default(), |at| self.0[at].1);
        let (name, unit) = (format!("{}:", what.name()), what.unit());
        format!(
            "  {name:<16} {{ samples: {samples:>11}, unit: {unit:>5}, min: {min:>7}, max: {max:>7}, sum: {sum:>15}, sumsq: {square_sum:>18} }}\n"
        )
    }

    /// A line for each kind, in order.
    pub fn lines(&self) -> String {
        self.0.iter().map(|(what, tally)| tally.line(what.name(), what.unit())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Thing {
        Written,
        Opened,
    }

    impl Sampled for Thing {
        fn name(self) -> &'static str {
            match self {
                Thing::Written => "write_bytes",
                Thing::Opened => "open",
            }
        }

        fn unit(self) -> &'static str {
            if self == Thing::Written { "bytes" } else { "usecs" }
        }
    }

    #[test]
    fn statistics_look_like_lustres() {
        let mut all = Tallies::default();
        assert_eq!(all.lines(), "");
        all.of(Thing::Opened).add_time(Duration::from_nanos(2500));
        all.of(Thing::Written).add(10);
        all.of(Thing::Written).add(4);
        assert_eq!(
            all.lines(),
            "write_bytes               2 samples [bytes] 4 10 14 116\n\
             open                      1 samples [usecs] 2 2 2 4\n"
        );
        assert_eq!(
            head(1_790_000_002_500_000_000, 1_790_000_000_000_000_001),
            "snapshot_time             1790000002.500000000 secs.nsecs\n\
             start_time                1790000000.000000001 secs.nsecs\n\
             elapsed_time              2.499999999 secs.nsecs\n"
        );
        assert_eq!(count_line("punch", 3), "punch                     3 samples [reqs]\n");
    }

    #[test]
    fn sums_end_at_the_greatest_number() {
        let mut tally = Tally::default();
        tally.add(u64::MAX);
        tally.add(7);
        assert!(tally.line("x", "bytes").ends_with(&format!(" 7 {0} {0} {0}\n", u64::MAX)));
    }
}
