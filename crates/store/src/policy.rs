//! When a group leaves, and when there is no room for another change.

use crate::Space;
use core::time::Duration;

/// When the collecting group is sent to the engine.
///
/// At once when somebody waits for it to be durable or the dirty limit is reached, otherwise `interval` after its first
/// change; never while the group before it is still being written. Clients replay what is not durable, so a long
/// interval loses nothing; it lets more changes to the same record merge.
#[derive(Clone, Copy, Debug)]
pub struct CommitPolicy {
    /// The longest time between a change and the moment its group leaves.
    pub interval: Duration,
    /// How much memory, in bytes, the collecting group may use. The group in flight may use as much again.
    pub dirty_limit: usize,
}

impl Default for CommitPolicy {
    fn default() -> CommitPolicy {
        CommitPolicy { interval: Duration::from_secs(1), dirty_limit: 64 << 20 }
    }
}

/// Whether the medium has room for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    Yes,
    /// Not now, but perhaps when the groups that are under way have been written: seal the group and wait.
    AfterCommit,
    /// No: answer `ENOSPC`.
    No,
}

/// What room is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomFor {
    /// New records, but for so many bytes that are promised to others.
    Change {
        /// Bytes.
        promised: u64,
    },
    /// What has room anyway: removals, and changes that room was promised for. It may use the reserve.
    Removal,
}

/// What one record can cost on the medium besides its bytes: an engine that copies on write may have to copy the page it
/// lies on and split it.
const WORST_CASE_RECORD: u64 = 2 * 4096;

/// What pages above the leaves, and the engine's own records, can cost a group.
const WORST_CASE_GROUP: u64 = 64 * 4096;

/// The room that a group of so many records and bytes can need in the worst case.
pub(crate) fn worst_case(records: usize, bytes: usize) -> u64 {
    WORST_CASE_GROUP + records as u64 * WORST_CASE_RECORD + bytes as u64
}

/// Whether `free` bytes hold `more`, given what is `dirty` already.
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
