//! What the data cache keeps over all files: the memory bounds, the order of write-back, and one lane of requests per target.

use core::ops::Range;
use core::time::Duration;
use proto::frame::Header;
use proto::msg::Lvb;
use proto::{Bytes, Transno};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stdx::{Instant, Map};

use super::pages::Counts;
use super::state::Key;
use crate::base::Dest;
use crate::base::OpId;

/// Whether what others did, and what locks have brought word of, is durable. An fsync makes it so: what this client does may rest on it (a
/// cut finds nothing to cut, because another client has just cut), and the others may be lost together with the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Foreign {
    heard: u32,
    durable: u32,
}

impl Foreign {
    /// A lock was granted.
    pub(crate) fn hear(&mut self) {
        self.heard = self.heard.wrapping_add(1);
    }

    /// How much was heard so far. It is durable ([`Foreign::made_durable`]) when the target is asked from now on.
    pub(crate) fn heard(&self) -> u32 {
        self.heard
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable == self.heard
    }

    /// The target has made durable what it had when so much was heard.
    pub(crate) fn made_durable(&mut self, heard: u32) {
        self.durable = heard;
    }
}

/// A write on its way to a target or in the queue.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ino: u64,
    pub(crate) key: Key,
    pub(crate) dest: Dest,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
    pub(crate) lvb: Lvb,
    /// How much of the target's grant it uses.
    pub(crate) grant_used: u64,
}

/// Requests to one target.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) queue: VecDeque<u64>,
    pub(crate) in_flight: u32,
    /// Grant that requests use, in the queue and in flight.
    pub(crate) grant_used: u64,
    /// Dirty bytes that wait for their time.
    pub(crate) dirty: u64,
    /// Answered changes that the session keeps until they are durable: transno and bytes of data.
    pub(crate) unstable: VecDeque<(Transno, u64)>,
    pub(crate) committed: Transno,
    pub(crate) foreign: Foreign,
    /// [`crate::coherence::data::Task::Commit`] runs.
    pub(crate) committing: bool,
    /// The pause before a write that failed is tried again; 0 after one that did not.
    pub(crate) retry_after: Duration,
}

#[derive(Debug)]
pub(crate) struct ClockEntry {
    pub(crate) ino: u64,
    pub(crate) key: Key,
    pub(crate) range: Range<u64>,
    pub(crate) mark: u64,
}

/// A read or write of the kernel that waits here, and so keeps pages locked there.
#[derive(Debug)]
pub(crate) struct KernelCall {
    /// Bytes of locked pages.
    pub(crate) pages: SmallVec<[Range<u64>; 2]>,
    /// Its pages may hold old bytes too (a write into a part of a page).
    pub(crate) write: bool,
    /// Where it ends in the file, if the kernel takes that to be so long already; else 0.
    pub(crate) within: u64,
}

/// What went wrong with write-back since the mount was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Troubles {
    /// Requests that failed and whose bytes were kept.
    pub(crate) failures: u64,
    /// Bytes that were given up.
    pub(crate) given_up: u64,
}

/// What the data cache knows over all files; `World::data`.
#[derive(Debug, Default)]
pub(crate) struct DataState {
    pub(crate) clean: u64,
    /// Dirty and being written.
    pub(crate) unwritten: u64,
    /// Bytes of answered writes that are not durable.
    pub(crate) unstable: u64,
    pub(crate) clock: VecDeque<ClockEntry>,
    pub(crate) clock_swept: usize,
    last_id: u64,
    lanes: BTreeMap<Dest, Lane>,
    pub(crate) dirty_files: BTreeSet<(Instant, u64)>,
    pub(crate) jobs: BTreeMap<u64, Job>,
    /// By file and operation.
    pub(crate) kernel_calls: BTreeMap<(u64, OpId), KernelCall>,
    /// What went wrong with write-back so far.
    pub(crate) troubles: Troubles,
    /// Files whose data is copied to other objects, with who does it.
    pub(crate) migrating: BTreeMap<u64, OpId>,
    /// Operations that [`crate::coherence::data::op_ended`] must look for.
    pub(crate) marked_ops: Map<OpId, SmallVec<[u64; 1]>>,
}

impl DataState {
    /// A number for a request or an entry of the clock; rises.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Numbers from here on are not given yet.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    pub(crate) fn lane(&mut self, dest: Dest) -> &mut Lane {
        self.lanes.entry(dest).or_default()
    }

    pub(crate) fn lane_ref(&self, dest: Dest) -> Option<&Lane> {
        self.lanes.get(&dest)
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = (Dest, &Lane)> {
        self.lanes.iter().map(|(dest, lane)| (*dest, lane))
    }

    /// The last change of a target that was answered and is not known to be durable.
    pub(crate) fn newest(&self, dest: Dest) -> Transno {
        self.lane_ref(dest).and_then(|lane| lane.unstable.back()).map_or(Transno(0), |(transno, _)| *transno)
    }

    /// Remembers to look at `ino` when `op` ends.
    pub(crate) fn mark_op(&mut self, op: OpId, ino: u64) {
        let inos = self.marked_ops.entry(op).or_default();
        if !inos.contains(&ino) {
            inos.push(ino);
        }
    }

    /// A transno was heard of: what is durable up to there needs no memory.
    pub(crate) fn durable(&mut self, dest: Dest, committed: Transno) {
        let lane = self.lanes.entry(dest).or_default();
        lane.committed = lane.committed.max(committed);
        while let Some((transno, bytes)) = lane.unstable.front().copied() {
            if transno > lane.committed {
                break;
            }
            lane.unstable.pop_front();
            self.unstable -= bytes;
        }
    }

    /// A change was answered; the session keeps it, with `bytes` of data, until it is durable. One that failed has no transno.
    pub(crate) fn changed(&mut self, dest: Dest, header: &Header, bytes: u64) {
        self.durable(dest, header.last_committed);
        let lane = self.lanes.entry(dest).or_default();
        if header.transno > lane.committed {
            lane.unstable.push_back((header.transno, bytes));
            self.unstable += bytes;
        }
    }

    /// The session of `dest` is gone with what it kept.
    pub(crate) fn forget_unstable(&mut self, dest: Dest) {
        let lane = self.lanes.entry(dest).or_default();
        let bytes: u64 = lane.unstable.drain(..).map(|(_, bytes)| bytes).sum();
        self.unstable -= bytes;
    }

    pub(crate) fn account(&mut self, dest: Dest, before: Counts, after: Counts) {
        self.clean = self.clean + after.clean - before.clean;
        self.unwritten = self.unwritten + after.dirty + after.writing - before.dirty - before.writing;
        let lane = self.lanes.entry(dest).or_default();
        lane.dirty = lane.dirty + after.dirty - before.dirty;
    }
}
