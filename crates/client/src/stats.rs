//! Statistics of the programs' calls, for `llite.*.stats`.
//!
//! A call counts when it has succeeded, with the time from its arrival at the machine to its answer; one that did not
//! wait took none. What the kernel answers from its own caches is not counted.

use proto::{Errno, Operation};
use stdx::Instant;
use stdx::tally::{Tallies, head};

use crate::api::{Answer, Call, SetStat};

/// Counts since the mount, or since they were cleared.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    tallies: Tallies<Operation>,
    /// When counting started, by the wall clock; 0: not known yet.
    since_ns: i64,
}

impl Stats {
    /// The wall clock is known: counting starts, if it has not yet.
    pub(crate) fn began(&mut self, now_ns: i64) {
        if self.since_ns == 0 {
            self.since_ns = now_ns;
        }
    }

    /// Counts a call that has ended.
    pub(crate) fn ended(&mut self, now: Instant, call: &Call, result: &Result<Answer, Errno>, started: Instant) {
        let (Some(operation), Ok(answer)) = (operation(call), result) else { return };
        match (operation, answer) {
            (Operation::Read, Answer::Data(bytes)) => self.tallies.of(Operation::ReadBytes).add(bytes.len() as u64),
            (Operation::Write, Answer::Written(bytes)) => {
                self.tallies.of(Operation::WriteBytes).add(u64::from(*bytes));
            }
            _ => {}
        }
        self.tallies.of(operation).add_time(now.since(started));
    }

    /// Resets the counters.
    pub(crate) fn clear(&mut self, now_ns: i64) {
        *self = Stats { since_ns: now_ns, ..Stats::default() };
    }

    /// The text as Lustre's tools print it.
    pub(crate) fn text(&self, now_ns: i64) -> String {
        head(now_ns, self.since_ns) + &self.tallies.lines()
    }
}

/// The operation as which a call is counted.
fn operation(call: &Call) -> Option<Operation> {
    Some(match call {
        Call::Lookup { .. } | Call::Getattr { .. } | Call::RootAttr { .. } => Operation::Getattr,
        Call::Setattr { set: SetStat { size: Some(_), .. }, .. } => Operation::Truncate,
        Call::Setattr { .. } => Operation::Setattr,
        Call::Mknod { .. } => Operation::Mknod,
        Call::Mkdir { .. } | Call::MkdirOn { .. } => Operation::Mkdir,
        Call::Symlink { .. } => Operation::Symlink,
        Call::Unlink { .. } | Call::RemoveEntry { .. } => Operation::Unlink,
        Call::Rmdir { .. } => Operation::Rmdir,
        Call::Rename { .. } => Operation::Rename,
        Call::Link { .. } => Operation::Link,
        Call::Open { .. } | Call::Create { .. } | Call::Opendir { .. } => Operation::Open,
        Call::Read { .. } => Operation::Read,
        Call::Write { .. } => Operation::Write,
        Call::Release { .. } | Call::Releasedir { .. } => Operation::Close,
        Call::Fsync { .. } | Call::Fsyncdir { .. } => Operation::Fsync,
        Call::Syncfs => Operation::Sync,
        Call::Readdir { .. } => Operation::Readdir,
        Call::Statfs { .. } => Operation::Statfs,
        Call::Setxattr { .. } => Operation::Setxattr,
        Call::Getxattr { .. } => Operation::Getxattr,
        Call::Listxattr { .. } => Operation::Listxattr,
        Call::Removexattr { .. } => Operation::Removexattr,
        Call::Access { .. } => Operation::Permission,
        Call::Getlk { .. } | Call::Setlk { .. } => Operation::Flock,
        Call::Fallocate { .. } => Operation::Fallocate,
        Call::Lseek { .. } => Operation::Seek,
        Call::Forget { .. }
        | Call::Readlink { .. }
        | Call::Flush { .. }
        | Call::PathToFid { .. }
        | Call::FidToPath { .. }
        | Call::MdtIndex { .. }
        | Call::GetDirLayout { .. }
        | Call::GetDirDefault { .. }
        | Call::SetDirDefault { .. }
        | Call::SetDirLayout { .. }
        | Call::GetLayout { .. }
        | Call::SetLayout { .. }
        | Call::Migrate { .. }
        | Call::TargetSpace
        | Call::Pools
        | Call::PoolMembers { .. } => return None,
    })
}
