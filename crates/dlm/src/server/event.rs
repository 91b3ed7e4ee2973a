//! Events, results and settings of [`Locks`](super::Locks).

use core::time::Duration;

use proto::Errno;
use proto::msg::{BlCallback, Flock, GlCallback, LockGrant, LockMode, Lvb, Policy, Resource};
use stdx::Instant;

use crate::{ExportId, WaiterId};

/// What the target must do next; drained with [`Locks::poll`](super::Locks::poll).
#[derive(Clone, PartialEq, Debug)]
pub enum LockEvent {
    /// Send a blocking callback.
    Blocking {
        /// Receiver.
        export: ExportId,
        /// The callback.
        callback: BlCallback,
    },
    /// Send a glimpse callback.
    Glimpse {
        /// Receiver.
        export: ExportId,
        /// The callback.
        callback: GlCallback,
    },
    /// A waiting enqueue was granted: answer it.
    Granted {
        /// Its export.
        export: ExportId,
        /// The enqueue.
        waiter: WaiterId,
        /// Its lock.
        grant: LockGrant,
    },
    /// A waiting enqueue was refused: answer it with the error. `EINTR`: the client cancelled it. `EDEADLK`: it would
    /// deadlock.
    Refused {
        /// The enqueue.
        waiter: WaiterId,
        /// The error.
        errno: Errno,
    },
    /// The operation of an internal waiter may run again.
    Ready {
        /// The waiter.
        waiter: WaiterId,
    },
    /// All holders that were asked on behalf of `waiter` have answered or lost their locks.
    GlimpseDone {
        /// The waiter.
        waiter: WaiterId,
    },
    /// Send the export its limit of unused locks; 0: no limit.
    Limit {
        /// The export.
        export: ExportId,
        /// Number of unused locks.
        locks: u32,
    },
    /// The export did not answer a callback in time: evict it. Emitted once.
    Overdue {
        /// The export.
        export: ExportId,
        /// Resource of its lock.
        resource: Resource,
        /// The callback was a glimpse, not a blocking callback.
        glimpse: bool,
        /// When the callback was first sent.
        asked: Instant,
    },
}

/// Result of an enqueue.
#[derive(Clone, PartialEq, Debug)]
pub enum Enqueued {
    /// Granted: answer with the lock.
    Granted(LockGrant),
    /// Waiting: [`LockEvent::Granted`] or [`LockEvent::Refused`] with its waiter follows, unless the export is removed.
    Waiting,
    /// Refused: answer with the error.
    Refused(Errno),
    /// A record lock was released: answer without a lock.
    Unlocked,
    /// `F_GETLK`: this lock conflicts.
    Conflict(Flock, LockMode),
    /// `F_GETLK`: no lock conflicts.
    NotFound,
}

/// Result of [`Locks::revoke`](super::Locks::revoke).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revoked {
    /// No other export holds a conflicting lock at this instant.
    Free,
    /// Holders were called back. [`LockEvent::Ready`] follows when everything that the waiter queued for is free.
    Waiting,
}

/// Result of [`Locks::glimpse`](super::Locks::glimpse).
#[derive(Clone, PartialEq, Debug)]
pub enum Glimpsed {
    /// No other export can have newer values than the target.
    Nothing,
    /// Holders were asked. [`LockEvent::GlimpseDone`] follows.
    Waiting,
    /// Answers of the holders that were asked for this waiter. Kept until
    /// [`Locks::take_glimpse`](super::Locks::take_glimpse) or [`Locks::release`](super::Locks::release).
    Done(Vec<Lvb>),
}

/// A granted lock, for administrators and for recovery.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LockInfo {
    /// Holder.
    pub export: ExportId,
    /// Locked resource.
    pub resource: Resource,
    /// Locked part.
    pub policy: Policy,
    /// Mode.
    pub mode: LockMode,
    /// The server's handle; 0 for record locks, which are identified by their range.
    pub handle: u64,
    /// Client's cookie; 0 for record locks.
    pub cookie: u64,
    /// Whether a blocking callback was sent for it.
    pub called_back: bool,
}

/// Counters for status files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Granted inode and extent locks.
    pub granted: u64,
    /// Granted record lock ranges.
    pub records: u64,
    /// Waiting enqueues.
    pub waiting: u64,
    /// Queue positions of internal waiters.
    pub internal: u64,
    /// Unanswered blocking callbacks.
    pub called_back: u64,
    /// Resources with a lock or a waiter, by kind: inodes, objects, files with record locks.
    pub resources: [u64; 3],
}

/// Settings of the lock table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Time within which a client must answer a callback.
    pub lock_timeout: Duration,
    /// Most locks and waiting enqueues of one export; further ones are refused with `ENOLCK`.
    pub locks_per_export_max: u32,
    /// Granted locks of all exports above which exports are asked to keep fewer.
    pub locks_max: usize,
    /// Locks, ranges of record locks and waiting enqueues of all exports above which an export with its share of them
    /// is refused more, with `ENOLCK`. At least twice `locks_max` applies.
    pub locks_in_all_max: usize,
}

/// Memory of a granted lock and its resource, in bytes; a generous estimate.
pub const LOCK_BYTES: usize = 300;

/// Fixed cost of record locks on a file, in locks.
pub const RECORDS_AS_LOCKS: usize = 3;

/// Default memory for locks, in bytes.
const LOCK_MEMORY: usize = 64 << 20;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            lock_timeout: Duration::from_secs(20),
            locks_per_export_max: 1_000_000,
            locks_max: LOCK_MEMORY / LOCK_BYTES,
            locks_in_all_max: 4 * LOCK_MEMORY / LOCK_BYTES,
        }
    }
}
