//! `createmany`, `unlinkmany` and `statmany`: one process, one kind of call in a loop, and its rate.
//!
//! - [`pattern`]: names from a printf-like format and a number.
//! - [`create`], [`remove`], [`stat`]: the three tools, with the lines that Lustre's tools of those names print.
//! - [`compare`]: a create run several times, beside the same run on a bare local directory.
//!
//! Names are made in one buffer that is reused, and the calls are plain system calls, so that on a file system in memory
//! the tool adds little to the cost of the kernel. An error names the object and the reason; the figures up to the error
//! are printed all the same.

use std::io::{self, Write};
use std::time::{Duration, Instant};

pub mod compare;
pub mod create;
pub mod pattern;
pub mod remove;
pub mod stat;

/// The operations that were done before a run ended.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Done {
    /// The number of operations.
    pub count: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Done {
    fn since(count: u64, start: Instant) -> Done {
        Done { count, seconds: start.elapsed().as_secs_f64() }
    }

    /// Operations per second; 0 if nothing was done.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.count as f64 / self.seconds } else { 0.0 }
    }
}

/// Why a run did not do all of its work.
#[derive(Debug)]
pub enum Ended {
    /// A call failed: which one, on what, and why.
    Failed(String),
    /// The user asked it to stop.
    Stopped,
    /// The output cannot be written.
    Output(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended::Output(error)
    }
}

fn failed(call: &str, name: &[u8], errno: rustix::io::Errno) -> Ended {
    let hint = match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => "; raise the limit with 'ulimit -n', or leave -k away",
        rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT => "; make room or use fewer files",
        rustix::io::Errno::NOTTY => "; only a mount of Adamant has metadata targets",
        rustix::io::Errno::NODEV => "; there is no such metadata target, see: lfs mdts",
        rustix::io::Errno::NOTCONN => "; the mount is gone, mount it again",
        _ => "",
    };
    let reason = io::Error::from(errno);
    Ended::Failed(format!("{call}({}) error: {reason}{hint}", String::from_utf8_lossy(name)))
}

/// Prints progress: every 10 seconds, and every 10 000 operations if the last line is at least 2 seconds old.
struct Progress {
    start: Instant,
    last: Instant,
    last_count: u64,
}

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_secs(2);
const MANY: u64 = 10_000;

impl Progress {
    fn start() -> Progress {
        let now = Instant::now();
        Progress { start: now, last: now, last_count: 0 }
    }

    /// Whether a line is due after `count` operations. Returns seconds since 1970, seconds so far, and operations per
    /// second since the last line.
    fn due(&mut self, count: u64, now: Instant) -> Option<(f64, f64, f64)> {
        let quiet = now - self.last;
        if quiet < LONG && (quiet < SHORT || !count.is_multiple_of(MANY)) {
            return None;
        }
        let rate = (count - self.last_count) as f64 / quiet.as_secs_f64();
        self.last = now;
        self.last_count = count;
        let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        Some((since_1970, (now - self.start).as_secs_f64(), rate))
    }

    fn line(&mut self, out: &mut dyn Write, what: &str, count: u64, now: Instant) -> io::Result<()> {
        if let Some((time, total, last)) = self.due(count, now) {
            writeln!(out, " - {what} {count} (time {time:.2} total {total:.2} last {last:.2})")?;
            out.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_comes_each_ten_seconds_and_with_round_counts() {
        let mut progress = Progress::start();
        let at = |seconds: f64| progress.start + Duration::from_secs_f64(seconds);
        let times = [at(1.0), at(3.0), at(4.0), at(12.9), at(13.5)];
        assert!(progress.due(10_000, times[0]).is_none());
        let (_, total, last) = progress.due(20_000, times[1]).unwrap();
        assert_eq!((total, last.round()), (3.0, 6667.0));
        assert!(progress.due(30_000, times[2]).is_none());
        assert!(progress.due(30_001, times[3]).is_none());
        assert!(progress.due(30_002, times[4]).is_some());
    }

    #[test]
    fn a_run_that_did_nothing_has_no_rate() {
        assert_eq!(Done::default().rate(), 0.0);
        assert_eq!(Done { count: 10, seconds: 2.0 }.rate(), 5.0);
    }
}
