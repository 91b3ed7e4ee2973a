//! Queues of a resource: granting, waiting, and revocation for the target's own operations.

use proto::msg::{Extent, LockGrant, LockMode, Policy, Resource};
use smallvec::SmallVec;
use stdx::Instant;

use super::crowd::is_exact_for;
use super::{Entry, LockEvent, Locks, NIL, Res, Revoked, Who};
use crate::mode::{ModeCounts, compatible};
use crate::part::Part;
use crate::{ExportId, WaiterId};

/// With more conflicting locks than this, an extent does not grow to the end of the file...
const CONTENDED_LOCKS: usize = 32;
/// ...but only by this many bytes, as in Lustre.
const CONTENDED_GROWTH: u64 = 32 << 20;
/// Grown extents are aligned to pages, in bytes.
const PAGE: u64 = 4096;

impl Locks {
    /// Creates a resource without locks and waiters.
    pub(super) fn new_resource(&mut self, key: Resource) -> u32 {
        let res = Res {
            key,
            granted: SmallVec::new(),
            modes: ModeCounts::default(),
            queue: Vec::new(),
            records: None,
            crowd: None,
        };
        let r = self.resources.insert(res);
        self.by_resource.insert(r, |r| self.resources[r].key);
        self.counters.resources[key.kind as usize % 3] += 1;
        r
    }

    pub(super) fn drop_if_empty(&mut self, r: u32) {
        let res = &self.resources[r];
        if res.granted.is_empty() && res.queue.is_empty() && res.records.as_ref().is_none_or(|x| x.is_empty()) {
            self.by_resource.remove(&self.resources[r].key, |r| self.resources[r].key);
            let res = self.resources.remove(r);
            self.counters.resources[res.key.kind as usize % 3] -= 1;
        }
    }

    /// Whether one of the first `upto` waiters blocks a request.
    pub(super) fn blocked_by_queue(
        &self,
        res: &Res,
        upto: usize,
        export: ExportId,
        mode: LockMode,
        part: Part,
    ) -> bool {
        res.queue[..upto].iter().any(|e| {
            e.export != export
                && !compatible(e.mode, mode)
                && e.part.overlaps(&part)
                && !self.may_overtake(res, export, e)
        })
    }

    /// Whether `entry` waits for a lock that `export` held before `entry` arrived.
    fn may_overtake(&self, res: &Res, export: ExportId, entry: &Entry) -> bool {
        self.own(res, export).any(|i| {
            let lock = &self.locks[i];
            lock.handle < entry.seq && !compatible(lock.mode, entry.mode) && lock.part.overlaps(&entry.part)
        })
    }

    pub(super) fn call_back_blockers(&mut self, r: u32, export: ExportId, mode: LockMode, part: Part) {
        let mut list: SmallVec<[u32; 16]> =
            self.blockers(&self.resources[r], export, mode, part).filter(|&i| self.locks[i].call.is_none()).collect();
        // In the order of the resource's list, so that the way of searching does not matter.
        list.sort_unstable_by_key(|i| self.locks[*i].pos);
        for i in list {
            self.call_back(i, mode, part);
        }
    }

    /// Calls a new lock back if it conflicts with a waiter, which came later or was overtaken.
    pub(super) fn call_back_for_queue(&mut self, i: u32) {
        let lock = &self.locks[i];
        let waits =
            |e: &&Entry| e.export != lock.export && !compatible(e.mode, lock.mode) && e.part.overlaps(&lock.part);
        if let Some(&e) = self.resources[lock.res].queue.iter().find(waits) {
            self.call_back(i, e.mode, e.part);
        }
    }

    pub(super) fn grant(&mut self, r: u32, export: ExportId, cookie: u64, mode: LockMode, part: Part) -> u32 {
        let handle = self.draw();
        let state = self.exports.entry(export).or_default();
        let next = state.head.wrapping_sub(1);
        let res = &mut self.resources[r];
        let lock = super::Lock {
            export,
            cookie,
            handle,
            part,
            mode,
            res: r,
            pos: res.granted.len() as u32,
            prev: NIL,
            next,
            call: None,
            asked: None,
        };
        let i = self.locks.insert(lock);
        res.granted.push(i);
        res.modes.add(mode);
        if next != NIL {
            self.locks[next].prev = i;
        }
        state.head = i + 1;
        state.granted += 1;
        state.cookie_max = state.cookie_max.max(cookie);
        self.by_handle.insert(i, |i| self.locks[i].handle);
        self.enlist(i);
        self.check_limit();
        i
    }

    /// Removes a lock and returns its resource. The caller runs the queue and drops the resource if it is empty.
    pub(super) fn remove_lock(&mut self, i: u32) -> u32 {
        self.end_callbacks(i);
        self.by_handle.remove(&self.locks[i].handle, |i| self.locks[i].handle);
        self.delist(i);
        let lock = self.locks.remove(i);
        let res = &mut self.resources[lock.res];
        res.granted.swap_remove(lock.pos as usize);
        res.modes.remove(lock.mode);
        if let Some(&moved) = res.granted.get(lock.pos as usize) {
            self.locks[moved].pos = lock.pos;
        }
        if lock.next != NIL {
            self.locks[lock.next].prev = lock.prev;
        }
        if lock.prev != NIL {
            self.locks[lock.prev].next = lock.next;
        }
        if let Some(state) = self.exports.get_mut(&lock.export) {
            if lock.prev == NIL {
                state.head = lock.next.wrapping_add(1);
            }
            state.granted -= 1;
        }
        lock.res
    }

    /// Grows a requested extent as far as it conflicts with no lock; other parts are unchanged.
    pub(super) fn grow(&self, r: u32, export: ExportId, mode: LockMode, part: Part) -> Part {
        let Part::Extent(asked) = part else { return part };
        let res = &self.resources[r];
        let mut extent = Extent::ALL;
        let mut conflicting = 0;
        let mut limit = |other: &Part| {
            let Part::Extent(other) = other else { return };
            conflicting += 1;
            if other.overlaps(&asked) {
                // This request overtakes it: take no more of it than needed.
                extent = Extent { start: extent.start.max(asked.start), end: extent.end.min(asked.end) };
            } else if other.end < asked.start {
                extent.start = extent.start.max(other.end + 1);
            } else {
                extent.end = extent.end.min(other.start - 1);
            }
        };
        let mut crowded = 0;
        if let Some(crowd) = res.crowd.as_deref().filter(|_| is_exact_for(res, mode)) {
            let (before, after, count) = crowd.gap(export, mode, asked, CONTENDED_LOCKS + 1);
            let before = before.map(|end| Extent { start: 0, end });
            let after = after.map(|start| Extent { start, end: u64::MAX });
            before.into_iter().chain(after).for_each(|other| limit(&Part::Extent(other)));
            crowded = count;
        } else if res.modes.any_incompatible(mode) {
            for &i in &res.granted {
                let lock = &self.locks[i];
                if lock.export != export && !compatible(lock.mode, mode) {
                    limit(&lock.part);
                }
            }
        }
        for entry in &res.queue {
            if entry.export != export && !compatible(entry.mode, mode) {
                limit(&entry.part);
            }
        }
        if conflicting.max(crowded) > CONTENDED_LOCKS {
            extent.end = extent.end.min(asked.end.max(asked.start.saturating_add(CONTENDED_GROWTH - 1)));
        }
        let start = extent.start.checked_next_multiple_of(PAGE).map_or(asked.start, |page| page.min(asked.start));
        let end = match extent.end {
            u64::MAX => u64::MAX,
            end => ((end + 1) / PAGE * PAGE).saturating_sub(1).max(asked.end),
        };
        Part::Extent(Extent { start, end })
    }

    pub(super) fn run_queues(&mut self, mut touched: SmallVec<[u32; 8]>) {
        touched.sort_unstable();
        touched.dedup();
        for r in touched {
            self.run_queue(r);
            self.run_records(r);
            self.drop_if_empty(r);
        }
    }

    /// Grants what is possible, in order, and calls back new locks that block the remaining waiters.
    pub(super) fn run_queue(&mut self, r: u32) {
        if self.resources[r].queue.is_empty() {
            return;
        }
        let mut at = 0;
        let mut free: SmallVec<[WaiterId; 4]> = SmallVec::new();
        let mut granted: SmallVec<[u32; 4]> = SmallVec::new();
        while let Some(&e) = self.resources[r].queue.get(at) {
            let res = &self.resources[r];
            let blocked = self.has_blocker(res, e.export, e.mode, e.part);
            match e.who {
                Who::Internal(waiter) => {
                    if !blocked {
                        free.push(waiter);
                    }
                    at += 1;
                }
                Who::Enqueue { .. } if blocked || self.blocked_by_queue(res, at, e.export, e.mode, e.part) => at += 1,
                Who::Enqueue { cookie, waiter } => {
                    self.resources[r].queue.remove(at);
                    self.counters.waiting -= 1;
                    if let Some(state) = self.exports.get_mut(&e.export) {
                        state.waiting.remove(&cookie);
                    }
                    let part = self.grow(r, e.export, e.mode, e.part);
                    let i = self.grant(r, e.export, cookie, e.mode, part);
                    let grant: LockGrant = self.grant_message(i);
                    self.events.push_back(LockEvent::Granted { export: e.export, waiter, grant });
                    granted.push(i);
                }
            }
        }
        // The remaining waiters called back conflicting locks when they arrived; only the new locks are left.
        for i in granted {
            self.call_back_for_queue(i);
        }
        for waiter in free {
            self.check_ready(waiter);
        }
    }

    /// Emits `Ready` if no lock blocks an internal waiter in any queue.
    fn check_ready(&mut self, waiter: WaiterId) {
        let Some(state) = self.internal.get(&waiter) else { return };
        if state.ready {
            return;
        }
        let free = state.places.iter().all(|&r| {
            let res = &self.resources[r];
            res.queue
                .iter()
                .filter(|e| e.who == Who::Internal(waiter))
                .all(|e| !self.has_blocker(res, e.export, e.mode, e.part))
        });
        if free {
            if let Some(state) = self.internal.get_mut(&waiter) {
                state.ready = true;
            }
            self.events.push_back(LockEvent::Ready { waiter });
        }
    }

    /// Whether another export holds a lock that conflicts.
    pub fn conflicts(&self, export: ExportId, resource: &Resource, mode: LockMode, policy: &Policy) -> bool {
        let Some(part) = Part::from_policy(*policy) else { return false };
        let Some(r) = self.resource(resource) else { return false };
        self.has_blocker(&self.resources[r], export, mode, part)
    }

    /// For an operation of the target on behalf of `export`: checks that no other export holds a conflicting lock at
    /// this moment. Otherwise calls the holders back and queues the waiter, so that no conflicting lock is granted
    /// before it. [`LockEvent::Ready`] tells when to run the operation again from the start.
    ///
    /// One waiter may wait for several resources. It remains in their queues until [`release`](Locks::release), which
    /// must be called when the operation has run or was dropped. The waiter's number must not be used for another
    /// operation before that.
    pub fn revoke(
        &mut self,
        now: Instant,
        waiter: WaiterId,
        export: ExportId,
        resource: Resource,
        mode: LockMode,
        policy: Policy,
    ) -> Revoked {
        let Some(r) = self.resource(&resource) else { return Revoked::Free };
        let Some(part) = Part::from_policy(policy) else { return Revoked::Free };
        let res = &self.resources[r];
        if !self.has_blocker(res, export, mode, part) {
            return Revoked::Free;
        }
        self.now = now;
        let who = Who::Internal(waiter);
        if !res.queue.iter().any(|e| (e.who, e.export, e.mode, e.part) == (who, export, mode, part)) {
            let seq = self.draw();
            self.resources[r].queue.push(Entry { seq, export, mode, part, who });
            self.counters.internal += 1;
        }
        let state = self.internal.entry(waiter).or_default();
        state.ready = false;
        if !state.places.contains(&r) {
            state.places.push(r);
        }
        self.call_back_blockers(r, export, mode, part);
        Revoked::Waiting
    }

    /// Removes a waiter: its queue positions and glimpses. Does nothing for one that never waited.
    pub fn release(&mut self, now: Instant, waiter: WaiterId) {
        if !self.glimpses.is_empty() {
            self.glimpses.remove(&waiter);
        }
        if self.internal.is_empty() {
            return;
        }
        let Some(state) = self.internal.remove(&waiter) else { return };
        self.now = now;
        let mut touched: SmallVec<[u32; 8]> = SmallVec::new();
        for r in state.places {
            let queue = &mut self.resources[r].queue;
            let before = queue.len();
            queue.retain(|e| e.who != Who::Internal(waiter));
            self.counters.internal -= (before - queue.len()) as u64;
            touched.push(r);
        }
        self.run_queues(touched);
    }
}
