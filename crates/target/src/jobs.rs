//! Statistics of jobs: operations that the processes of a job have requested of this target, over all clients.
//!
//! A client names the job in each request. The table is bounded: jobs without an operation for
//! [`Jobs::cleanup_interval`] are dropped, and the job that has been idle longest is dropped when there are too many.

use core::fmt::Write;
use core::time::Duration;
use std::collections::BTreeMap;

use proto::msg::JOB_MAX;
use proto::{Operation, TargetKind};
use stdx::Instant;
use stdx::tally::Tallies;

/// Most jobs in the table, of about a kilobyte each.
const JOBS_MAX: usize = 4096;
/// Default time after which an idle job is dropped.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(600);

/// Operations listed for each job of a metadata target, in Lustre's order.
const OF_MDT: [Operation; 15] = [
    Operation::Open,
    Operation::Mknod,
    Operation::Link,
    Operation::Unlink,
    Operation::Mkdir,
    Operation::Rmdir,
    Operation::Rename,
    Operation::Getattr,
    Operation::Setattr,
    Operation::Getxattr,
    Operation::Setxattr,
    Operation::Sync,
    Operation::ReadBytes,
    Operation::WriteBytes,
    Operation::Punch,
];
/// Operations listed for each job of an object target, in Lustre's order.
const OF_OST: [Operation; 7] = [
    Operation::ReadBytes,
    Operation::WriteBytes,
    Operation::Read,
    Operation::Write,
    Operation::Punch,
    Operation::Seek,
    Operation::Sync,
];

/// The table of jobs.
#[derive(Debug)]
pub(crate) struct Jobs {
    by_name: BTreeMap<String, Job>,
    /// By the sequence number of the last use, longest idle first.
    by_use: BTreeMap<u64, String>,
    uses: u64,
    cleanup_interval: Duration,
}

#[derive(Debug)]
struct Job {
    operations: Tallies<Operation>,
    used: u64,
    since_ns: i64,
    last: Instant,
}

impl Default for Jobs {
    fn default() -> Jobs {
        let (by_name, by_use) = (BTreeMap::new(), BTreeMap::new());
        Jobs { by_name, by_use, uses: 0, cleanup_interval: CLEANUP_INTERVAL }
    }
}

impl Jobs {
    /// The tallies of a job, which now performs an operation.
    pub(crate) fn of(&mut self, name: &str, now: Instant, wall_ns: i64) -> &mut Tallies<Operation> {
        let name = shown(name);
        self.forget_idle(now);
        self.uses += 1;
        let before = self.by_name.get(&name).map(|job| job.used);
        if let Some(before) = before {
            self.by_use.remove(&before);
        } else if self.by_name.len() >= JOBS_MAX
            && let Some((_, idlest)) = self.by_use.pop_first()
        {
            self.by_name.remove(&idlest);
        }
        self.by_use.insert(self.uses, name.clone());
        let new = || Job { operations: Tallies::default(), used: 0, since_ns: wall_ns, last: now };
        let job = self.by_name.entry(name).or_insert_with(new);
        (job.used, job.last) = (self.uses, now);
        &mut job.operations
    }

    fn is_idle(&self, job: &Job, now: Instant) -> bool {
        !self.cleanup_interval.is_zero() && now.since(job.last) > self.cleanup_interval
    }

    fn forget_idle(&mut self, now: Instant) {
        while let Some((_, first)) = self.by_use.first_key_value() {
            if self.by_name.get(first).is_some_and(|job| !self.is_idle(job, now)) {
                return;
            }
            if let Some((_, first)) = self.by_use.pop_first() {
                self.by_name.remove(&first);
            }
        }
    }

    /// Time after which an idle job is dropped; 0: never.
    pub(crate) fn cleanup_interval(&self) -> Duration {
        self.cleanup_interval
    }

    /// Sets the time after which an idle job is dropped; 0: never.
    pub(crate) fn set_cleanup_interval(&mut self, interval: Duration) {
        self.cleanup_interval = interval;
    }

    /// Drops one job, or all of them (`clear`). Returns whether there was one.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        if name == "clear" {
            self.by_name.clear();
            self.by_use.clear();
            return true;
        }
        let Some(job) = self.by_name.remove(name) else { return false };
        self.by_use.remove(&job.used).is_some()
    }

    /// Text in YAML, in Lustre's format.
    pub(crate) fn text(&self, kind: TargetKind, now: Instant, wall_ns: i64) -> String {
        let operations: &[Operation] = if kind == TargetKind::Ost { &OF_OST } else { &OF_MDT };
        let mut text = "job_stats:\n".to_owned();
        let time = |ns: i64| format!("{}.{:09} secs.nsecs", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        for (name, job) in self.by_name.iter().filter(|(_, job)| !self.is_idle(job, now)) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "- {:<16} {name}", "job_id:");
            for (what, ns) in
                [("snapshot_time:", wall_ns), ("start_time:", job.since_ns), ("elapsed_time:", wall_ns - job.since_ns)]
            {
                let _ = writeln!(text, "  {what:<16} {}", time(ns));
            }
            for operation in operations {
                text.push_str(&job.operations.yaml(*operation));
            }
        }
        text
    }
}

/// A job's name as it is kept: truncated, and with `?` in place of characters that could break the YAML.
fn shown(name: &str) -> String {
    let end = (0..=name.len().min(JOB_MAX)).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    let fit = |c: char| if c.is_alphanumeric() || "._-/@%+=#~".contains(c) { c } else { '?' };
    name[..end].chars().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn at(ns: i64) -> Instant {
        Instant(ns as u64)
    }

    #[test]
    fn a_job_is_told_of_as_lustre_does() {
        let mut jobs = Jobs::default();
        jobs.of("dd.0", at(2 * SECOND), 2 * SECOND).of(Operation::WriteBytes).add(4096);
        jobs.of("dd.0", at(3 * SECOND), 3 * SECOND).of(Operation::WriteBytes).add(100);
        jobs.of("a: b\nc", at(3 * SECOND), 3 * SECOND).of(Operation::Punch).add(1);
        let text = jobs.text(TargetKind::Ost, at(5 * SECOND), 5 * SECOND + 5);
        let head = "job_stats:\n- job_id:          a??b?c\n";
        assert!(text.starts_with(head), "{text}");
        let of_dd = "- job_id:          dd.0\n  snapshot_time:   5.000000005 secs.nsecs\n  start_time:      2.000000000 secs.nsecs\n  \
                     elapsed_time:    3.000000005 secs.nsecs\n  read_bytes:      { samples:           0, unit: bytes, min:       0, \
                     max:       0, sum:               0, sumsq:                  0 }\n  write_bytes:     { samples:           2, unit: \
                     bytes, min:     100, max:    4096, sum:            4196, sumsq:           16787216 }\n";
        assert!(text.contains(of_dd), "{text}");
        assert!(
            jobs.text(TargetKind::Mdt, at(0), 0).contains("  mkdir:           { samples:           0, unit: usecs,")
        );
    }

    #[test]
    fn idle_jobs_and_too_many_are_forgotten() {
        let mut jobs = Jobs::default();
        for number in 0..JOBS_MAX as i64 {
            jobs.of(&format!("job{number}"), at(number), number);
        }
        jobs.of("job0", at(9000), 9000);
        jobs.of("one more", at(9001), 9001);
        assert_eq!((jobs.by_name.len(), jobs.by_use.len()), (JOBS_MAX, JOBS_MAX));
        assert!(jobs.by_name.contains_key("job0") && !jobs.by_name.contains_key("job1"), "the idlest went");
        assert!(jobs.forget("job2") && !jobs.forget("job2"));
        jobs.of("later", at(700 * SECOND), 700 * SECOND);
        assert_eq!(jobs.by_name.keys().collect::<Vec<_>>(), ["later"]);
        jobs.set_cleanup_interval(Duration::ZERO);
        jobs.of("much later", at(7000 * SECOND), 7000 * SECOND);
        assert_eq!((jobs.by_name.len(), jobs.by_use.len()), (2, 2));
        assert!(jobs.forget("clear"));
        assert_eq!((jobs.by_name.len(), jobs.by_use.len()), (0, 0));
        let long = "x".repeat(JOB_MAX - 1) + "ä";
        jobs.of(&long, at(0), 0);
        assert_eq!(jobs.by_name.keys().map(String::len).collect::<Vec<_>>(), [JOB_MAX - 1], "cut between characters");
    }
}
