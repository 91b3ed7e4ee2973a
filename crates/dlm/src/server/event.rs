//! What goes in and out of [`Locks`](super::Locks).

use core::time::Duration;

use proto::Errno;
use proto::msg::{BlCallback, Flock, GlCallback, LockGrant, LockMode, Lvb, Policy, Resource};
use stdx::Instant;

use crate::{ExportId, WaiterId};

/// What the target has to do next; drained with [`Locks::poll`](super::Locks::poll).
#[derive(Clone, PartialEq, Debug)]
pub enum LockEvent {
    /// Send a blocking callback.
    Blocking {
        /// To whom.
        export: ExportId,
        /// What.
        callback: BlCallback,
    },
    /// Send a glimpse callback.
    Glimpse {
        /// To whom.
        export: ExportId,
        /// What.
        callback: GlCallback,
    },
    /// An enqueue that waited has its lock: answer it.
    Granted {
        /// Whose.
        export: ExportId,
        /// The enqueue.
        waiter: WaiterId,
        /// Its lock.
        grant: LockGrant,
    },
    /// An enqueue that waited gets no lock: answer it with the error. `EINTR`: the client cancelled it; `EDEADLK`.
    Refused {
        /// The enqueue.
        waiter: WaiterId,
        /// Why.
        errno: Errno,
    },
    /// The operation behind an internal waiter may run again.
    Ready {
        /// Which.
        waiter: WaiterId,
    },
    /// All holders that were asked for `waiter` have answered, or are gone.
    GlimpseDone {
        /// Which.
        waiter: WaiterId,
    },
    /// Tell the export how many locks that it does not use it may keep; 0: as many as it likes.
    Limit {
        /// Which.
        export: ExportId,
        /// How many.
        locks: u32,
    },
    /// The export did not answer a callback in time: evict it. Said once.
    Overdue {
        /// Which.
        export: ExportId,
        /// What its lock is on.
        resource: Resource,
        /// It was only asked what the object looks like, not for the lock.
        glimpse: bool,
        /// When it was asked first.
        asked: Instant,
    },
}

/// What became of an enqueue.
#[derive(Clone, PartialEq, Debug)]
pub enum Enqueued {
    /// Answer it: here is the lock.
    Granted(LockGrant),
    /// It waits: [`LockEvent::Granted`] or [`LockEvent::Refused`] will come with its waiter, unless its export goes.
    Waiting,
    /// Answer it with the error.
    Refused(Errno),
    /// A record lock was given back: answer it without a lock.
    Unlocked,
    /// `F_GETLK`: this lock is in the way.
    Conflict(Flock, LockMode),
    /// `F_GETLK`: nothing is in the way.
    NotFound,
}

/// What [`Locks::revoke`](super::Locks::revoke) found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revoked {
    /// No other export holds a conflicting lock at this instant.
    Free,
    /// Holders were called back; [`LockEvent::Ready`] comes when all that the waiter queued for is free.
    Waiting,
}

/// What [`Locks::glimpse`](super::Locks::glimpse) found.
#[derive(Clone, PartialEq, Debug)]
pub enum Glimpsed {
    /// Nobody else can know better than the target itself.
    Nothing,
    /// Holders were asked; [`LockEvent::GlimpseDone`] comes.
    Waiting,
    /// The holders that this waiter asked before have answered so. Kept until
    /// [`Locks::take_glimpse`](super::Locks::take_glimpse) or [`Locks::release`](super::Locks::release).
    Done(Vec<Lvb>),
}

/// A granted lock, as told to administrators and to recovery.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LockInfo {
    /// Holder.
    pub export: ExportId,
    /// On what.
    pub resource: Resource,
    /// Which part.
    pub policy: Policy,
    /// How.
    pub mode: LockMode,
    /// Server's handle; 0 for record locks, which are known by their range.
    pub handle: u64,
    /// Client's cookie; 0 for record locks.
    pub cookie: u64,
    /// Whether a blocking callback was sent for it.
    pub called_back: bool,
}

/// Figures for status files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Granted inode and extent locks.
    pub granted: u64,
    /// Granted record lock ranges.
    pub records: u64,
    /// Enqueues that wait.
    pub waiting: u64,
    /// Places that internal waiters hold in queues.
    pub internal: u64,
    /// Blocking callbacks without an answer.
    pub called_back: u64,
    /// Resources with a lock or a waiter: inodes, objects, files with record locks.
    pub resources: [u64; 3],
}

/// What may be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long a client has to answer a callback.
    pub lock_timeout: Duration,
    /// Locks and waiting enqueues that one export may have; more are refused with `ENOLCK`.
    pub locks_per_export_max: u32,
    /// Granted locks of all exports beyond which they are asked to keep fewer.
    pub locks_max: usize,
    /// Locks, ranges of record locks and waiting enqueues of all exports beyond which an export that has its share of them is
    /// refused more, with `ENOLCK`. In force is at least twice `locks_max`.
    pub locks_in_all_max: usize,
}

/// Memory that a granted lock takes, its resource included, in bytes: about, and rather more.
pub const LOCK_BYTES: usize = 300;

/// The record locks of a file take the memory of so many locks, beside that of each.
pub const RECORDS_AS_LOCKS: usize = 3;

/// Memory for locks, in bytes.
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
