//! The data cache's state over all files: memory limits, the order of write-back, and one lane of requests per target.

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

/// Whether changes of other clients that this client has seen through locks are durable. An fsync makes them durable:
/// what this client does may depend on them (a truncation finds nothing to truncate, because another client has just
/// done it), and they may be lost together with the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Foreign {
    seen: u32,
    durable: u32,
}

impl Foreign {
    /// A lock was granted.
    pub(crate) fn note(&mut self) {
        self.seen = self.seen.wrapping_add(1);
    }

    /// How many were granted so far: what a commit that is requested now makes durable ([`Foreign::made_durable`]).
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable == self.seen
    }

    /// The target has made durable what it had when the count was `seen`.
    pub(crate) fn made_durable(&mut self, seen: u32) {
        self.durable = seen;
    }
}

/// A write in a lane's queue or in flight.
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
    /// Grant used by requests in the queue and in flight.
    pub(crate) grant_used: u64,
    /// Dirty bytes that are not queued.
    pub(crate) dirty: u64,
    /// Answered changes that the session keeps until they are durable: transno and bytes of data.
    pub(crate) unstable: VecDeque<(Transno, u64)>,
    pub(crate) committed: Transno,
    pub(crate) foreign: Foreign,
    /// [`crate::coherence::data::Task::Commit`] runs.
    pub(crate) committing: bool,
    /// The pause before a failed write is retried; 0 after a successful one.
    pub(crate) retry_after: Duration,
}

#[derive(Debug)]
pub(crate) struct ClockEntry {
    pub(crate) ino: u64,
    pub(crate) key: Key,
    pub(crate) range: Range<u64>,
    pub(crate) mark: u64,
}

/// A read or write of the kernel that waits for this client, which keeps pages locked in the kernel.
#[derive(Debug)]
pub(crate) struct KernelCall {
    /// Byte ranges of the locked pages.
    pub(crate) pages: SmallVec<[Range<u64>; 2]>,
    /// Its pages may hold old bytes too (a write of part of a page).
    pub(crate) write: bool,
    /// Its end in the file, if the kernel assumes that the file is that long already; else 0.
    pub(crate) within: u64,
}

/// Problems of write-back since the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Troubles {
    /// Failed requests whose bytes were kept.
    pub(crate) failures: u64,
    /// Bytes that were given up.
    pub(crate) given_up: u64,
}

/// The data cache's state over all files; `World::data`.
#[derive(Debug, Default)]
pub(crate) struct DataState {
    pub(crate) clean: u64,
    /// Dirty bytes and bytes being written.
    pub(crate) unwritten: u64,
    /// Bytes of answered writes that are not durable.
    pub(crate) unstable: u64,
    pub(crate) clock: VecDeque<ClockEntry>,
    pub(crate) clock_swept: usize,
    last_id: u64,
    lanes: BTreeMap<Dest, Lane>,
    pub(crate) dirty_files: BTreeSet<(Instant, u64)>,
    pub(crate) jobs: BTreeMap<u64, Job>,
    /// Keyed by file and operation.
    pub(crate) kernel_calls: BTreeMap<(u64, OpId), KernelCall>,
    /// Problems of write-back so far.
    pub(crate) troubles: Troubles,
    /// Files whose data is being migrated, with the operation that does it.
    pub(crate) migrating: BTreeMap<u64, OpId>,
    /// Files at which [`crate::coherence::data::op_ended`] must look, by operation.
    pub(crate) marked_ops: Map<OpId, SmallVec<[u64; 1]>>,
}

impl DataState {
    /// A number for a request or an entry of the clock; increasing.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The lowest number that was not used yet.
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

    /// The last answered change of a target that is not known to be durable.
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

    /// A target has committed up to this transno: changes up to there need not be remembered.
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

    /// A change was answered; the session keeps it, with `bytes` of data, until it is durable. A failed one has no
    /// transno.
    pub(crate) fn changed(&mut self, dest: Dest, header: &Header, bytes: u64) {
        self.durable(dest, header.last_committed);
        let lane = self.lanes.entry(dest).or_default();
        if header.transno > lane.committed {
            lane.unstable.push_back((header.transno, bytes));
            self.unstable += bytes;
        }
    }

    /// The session of `dest` was lost with what it kept.
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
