//! Commit policy: when a group is sent to the engine, and whether the medium has space for another change.

use crate::Space;
use core::time::Duration;

/// When the collecting group is sent to the engine.
///
/// At once if a request waits for it to be durable or the dirty limit is reached, otherwise `interval` after its first change;
/// never while the group before it is being written. Clients replay changes that are not durable, so a long interval loses
/// nothing, and it lets more changes of the same record merge.
#[derive(Clone, Copy, Debug)]
pub struct CommitPolicy {
    /// The longest time between a change and the commit of its group.
    pub interval: Duration,
    /// How much memory, in bytes, the collecting group may use. The group in flight may use as much again.
    pub dirty_limit: usize,
}

impl Default for CommitPolicy {
    fn default() -> CommitPolicy {
        CommitPolicy { interval: Duration::from_secs(1), dirty_limit: 64 << 20 }
    }
}

/// Whether the medium has space for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    Yes,
    /// Not now, but perhaps when the dirty groups are durable: seal the group and wait.
    AfterCommit,
    /// No: answer `ENOSPC`.
    No,
}

/// The purpose of the space for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomFor {
    /// New records. They may not use the space that is promised to others.
    Change {
        /// The promised space, in bytes.
        promised: u64,
    },
    /// Removals, and changes that were promised space. They may use the reserve.
    Removal,
}

/// The most that one record can cost on the medium beside its bytes: an engine that copies on write may have to copy its page
/// and split it.
const WORST_CASE_RECORD: u64 = 2 * 4096;

/// The most that inner pages and the engine's own records can cost for one group.
const WORST_CASE_GROUP: u64 = 64 * 4096;

/// The most space that a group of this many records and bytes can need.
pub(crate) fn worst_case(records: usize, bytes: usize) -> u64 {
    WORST_CASE_GROUP + records as u64 * WORST_CASE_RECORD + bytes as u64
}

/// Whether the medium has space for `more` bytes beside `dirty` bytes that are not durable yet.
pub(crate) fn room(space: Option<Space>, purpose: RoomFor, dirty: u64, more: u64) -> Room {
    let Some(space) = space else { return Room::Yes };
    let free = match purpose {
        RoomFor::Removal => space.free.saturating_add(space.reserve),
        RoomFor::Change { promised } => space.free.saturating_sub(promised).min(space.at_once),
    };
    if dirty + more <= free {
        Room::Yes
    } else if dirty > 0 && more <= free {
        Room::AfterCommit
    } else {
        Room::No
    }
}
