//! `statmany`: stats files in a random order.

use std::io::Write;
use std::time::{Duration, Instant};

use rustix::fs::{self, Mode, OFlags};
use stdx::Rng;

use super::pattern::Pattern;
use super::{Done, Ended, Progress, failed};
use crate::stop;

/// The operation on each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// stat(2).
    Stat,
    /// A lookup of the name only: open(O_PATH), which asks for no attributes, and close.
    Lookup,
}

/// When the run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// After this many operations.
    Count(u64),
    /// After this time.
    Time(Duration),
}

/// A run of `statmany`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The operation.
    pub look: Look,
    /// The seed of the order.
    pub seed: u64,
    /// The names, numbered from 0.
    pub pattern: Pattern,
    /// The number of files.
    pub total: u64,
    /// When the run ends.
    pub length: Length,
}

impl Stat {
    /// Runs, and prints the seed, progress and the rate.
    pub fn run(&self, out: &mut dyn Write) -> (Done, Result<(), Ended>) {
        let head = match self.length {
            Length::Count(count) => writeln!(out, "using seed {}\nrunning for {count} iterations", self.seed),
            Length::Time(time) => writeln!(out, "using seed {}\nrunning for {} seconds", self.seed, time.as_secs()),
        };
        if let Err(error) = head {
            return (Done::default(), Err(error.into()));
        }
        let mut rng = Rng::new(self.seed);
        let mut progress = Progress::start();
        let mut buffer = Vec::new();
        let mut count = 0;
        let result = loop {
            let now = Instant::now();
            let over = match self.length {
                Length::Count(wanted) => count >= wanted,
                Length::Time(time) => now - progress.start >= time,
            };
            if over {
                break Ok(());
            }
            if stop::requested() {
                break Err(Ended::Stopped);
            }
            let name = self.pattern.name(rng.below(self.total) as i64, &mut buffer);
            let looked = match self.look {
                Look::Stat => fs::stat(name).map(drop),
                Look::Lookup => fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(drop),
            };
            if let Err(errno) = looked {
                break Err(failed("stat", name.to_bytes(), errno));
            }
            count += 1;
            if let Some((time, total, last)) = progress.due(count, now)
                && let Err(error) =
                    writeln!(out, " - stat {count} (time {time:.2} ; total {total:.2} ; last {last:.2})")
            {
                break Err(error.into());
            }
        };
        let done = Done::since(count, progress.start);
        let total =
            writeln!(out, "total: {count} stats in {:.2} seconds: {:.2} stats/second", done.seconds, done.rate());
        (done, result.and(total.map_err(Ended::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(folder: &std::path::Path, look: Look, length: Length) -> Stat {
        let pattern = format!("{}/f", folder.display()).parse().unwrap();
        Stat { look, seed: 7, pattern, total: 3, length }
    }

    #[test]
    fn the_seed_and_the_rate_are_told() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..3 {
            std::fs::write(folder.path().join(format!("f{number}")), "").unwrap();
        }
        for look in [Look::Stat, Look::Lookup] {
            let mut out = Vec::new();
            let (done, result) = stat(folder.path(), look, Length::Count(50)).run(&mut out);
            result.unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(done.count, 50);
            assert!(text.starts_with("using seed 7\nrunning for 50 iterations\ntotal: 50 stats in "), "{text}");
        }
        let timed = stat(folder.path(), Look::Stat, Length::Time(Duration::from_millis(20)));
        let (done, result) = timed.run(&mut Vec::new());
        result.unwrap();
        assert!(done.seconds >= 0.02);
    }

    #[test]
    fn a_file_that_is_not_there_ends_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let (done, result) = stat(folder.path(), Look::Stat, Length::Count(5)).run(&mut Vec::new());
        assert_eq!(done.count, 0);
        let Err(Ended::Failed(text)) = result else { panic!("{result:?}") };
        assert!(text.contains("No such file"), "{text}");
    }
}
