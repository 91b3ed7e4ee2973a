//! The lock table of one target.
//!
//! **Queues.** Each resource has its granted locks and a first-in-first-out queue of waiters. A request is granted when
//! no lock of *another* export conflicts with it, and no earlier waiter of another export does, so that a stream of
//! readers cannot starve a writer. Locks of one export never conflict with each other: the client coordinates its own
//! users. To avoid that a client waits for itself, its request may overtake a waiter that waits for a lock which the
//! client held before the waiter arrived. Locks granted by overtaking do not justify further overtaking.
//!
//! **Operations of the target.** An operation [`revoke`](Locks::revoke)s what it is about to change. It does not take a
//! lock, but needs other exports' locks to be gone at the moment when it runs. So operations do not exclude each other,
//! only new grants to clients, and two operations that queue on two resources in opposite order both proceed.
//!
//! ```text
//!   client A holds UPDATE|LOOKUP in PR on a directory; B sends a create in it
//!   revoke(waiter 9, B, dir, EX, UPDATE)    Waiting; Blocking{A} is sent; 9 stands in the queue
//!   A asks for UPDATE again                 waits behind 9 (or, in an intent, gets no lock)
//!   cancel(A, handle)                       Ready{9}
//!   the create runs from the start: revoke  Free; it changes the directory
//!   release(9)                              A's request is granted
//! ```
//!
//! **Callbacks** have a deadline. A holder that misses it is reported as [`LockEvent::Overdue`], and the target evicts
//! it. Callbacks that were lost with a connection are resent by [`resend_callbacks`](Locks::resend_callbacks).
//!
//! **Record locks** are separate (`records.rs`): they are never called back, owners within one client do conflict, and
//! a request waits for granted locks only, as POSIX requires.
//!
//! Invariants: two locks of different exports on one resource with incompatible modes do not overlap, except that a
//! replayed lock is checked against granted locks only; an export's cookie names at most one lock or waiting request;
//! handles and queue positions come from one counter, so a smaller handle is an older lock.

mod callback;
mod crowd;
mod event;
mod limit;
mod queue;
#[cfg(test)]
mod record_tests;
mod records;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use event::{Counters, Enqueued, Glimpsed, LockEvent, LockInfo, Revoked, Settings};
pub use event::{LOCK_BYTES, RECORDS_AS_LOCKS};
use proto::Errno;
use proto::msg::{CancelReq, EnqueueReq, Flock, LockGrant, LockMode, Policy, Resource, ResourceKind};
use smallvec::SmallVec;
use stdx::{Index, Instant, Map, Slab};

use self::callback::{Call, GlimpseState, GlimpseWindow, PendingGlimpse};
use self::crowd::Crowd;
use self::records::{Owner, Records};
use crate::mode::{ModeCounts, compatible, covers};
use crate::part::{Part, Wanted, check};
use crate::{ExportId, WaiterId};

/// No index.
const NIL: u32 = u32::MAX;

/// A granted inode or extent lock.
struct Lock {
    export: ExportId,
    cookie: u64,
    handle: u64,
    part: Part,
    mode: LockMode,
    /// Index of its resource, and its position in the resource's list.
    res: u32,
    pos: u32,
    /// Links of the export's list.
    prev: u32,
    next: u32,
    call: Option<Box<Call>>,
    asked: Option<Box<PendingGlimpse>>,
}

/// A waiter in a queue.
#[derive(Clone, Copy)]
struct Entry {
    /// Comparable with handles: locks with smaller handles are older.
    seq: u64,
    export: ExportId,
    mode: LockMode,
    part: Part,
    who: Who,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Enqueue { cookie: u64, waiter: WaiterId },
    Internal(WaiterId),
}

/// A resource with locks or waiters.
struct Res {
    key: Resource,
    granted: SmallVec<[u32; 4]>,
    modes: ModeCounts,
    queue: Vec<Entry>,
    records: Option<Box<Records>>,
    crowd: Option<Box<Crowd>>,
}

/// State of an export.
#[derive(Default)]
struct Export {
    /// Index of its first granted lock, plus one; 0 is none.
    head: u32,
    granted: u32,
    /// The highest cookie of a lock granted so far; a higher one cannot be a resend.
    cookie_max: u64,
    /// Number of record lock ranges, by resource.
    records: BTreeMap<u32, u32>,
    record_count: u32,
    /// Resource of each waiting enqueue, by cookie.
    waiting: BTreeMap<u64, u32>,
    /// Handles of its locks with an unanswered callback or glimpse.
    calls: BTreeSet<u64>,
    /// Its unanswered glimpses.
    glimpse_window: GlimpseWindow,
    /// [`LockEvent::Overdue`] was emitted.
    overdue: bool,
    /// When its deadlines were last extended.
    progress: Instant,
    /// When it lost its connection.
    away: Option<Instant>,
    /// Limit of unused locks that was sent to it; 0: none.
    limit: u32,
    /// The last answered record lock requests: cookie and, if refused, the error. A resend of one is answered, not
    /// executed again.
    executed: VecDeque<(u64, Option<Errno>)>,
}

impl Export {
    fn total(&self) -> u32 {
        self.granted.saturating_add(self.record_count).saturating_add(self.waiting.len() as u32)
    }
}

/// An internal waiter.
#[derive(Default)]
struct Internal {
    places: SmallVec<[u32; 4]>,
    /// [`LockEvent::Ready`] was emitted since it last found a conflict.
    ready: bool,
}

/// All locks of one target.
pub struct Locks {
    settings: Settings,
    now: Instant,
    next: u64,
    locks: Slab<Lock>,
    resources: Slab<Res>,
    by_resource: Index,
    by_handle: Index,
    exports: Map<ExportId, Export>,
    internal: Map<WaiterId, Internal>,
    glimpses: Map<WaiterId, Vec<GlimpseState>>,
    /// Owners of waiting POSIX lock requests, with the resource of each request.
    record_waits: BTreeMap<Owner, Vec<u32>>,
    /// Deadlines with handle, and whether it is a glimpse's.
    timers: BTreeSet<(Instant, u64, bool)>,
    events: VecDeque<LockEvent>,
    counters: Counters,
    limit: limit::Limit,
}

impl Locks {
    /// An empty table. Handles are greater than `base`; `instance << 40` makes them unique across restarts.
    pub fn new(base: u64, settings: Settings) -> Locks {
        Locks {
            settings,
            now: Instant::ZERO,
            next: base,
            locks: Slab::default(),
            resources: Slab::default(),
            by_resource: Index::default(),
            by_handle: Index::default(),
            exports: Map::default(),
            internal: Map::default(),
            glimpses: Map::default(),
            record_waits: BTreeMap::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            limit: limit::Limit::default(),
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Changes the settings. Running deadlines are not affected.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.lift_limits();
    }

    /// The next event for the target to handle.
    pub fn poll(&mut self) -> Option<LockEvent> {
        self.events.pop_front()
    }

    /// Index of a resource that has a lock or a waiter.
    #[inline]
    fn resource(&self, key: &Resource) -> Option<u32> {
        self.by_resource.get(key, |r| self.resources[r].key)
    }

    /// Index of the lock with this handle.
    #[inline]
    fn by_handle(&self, handle: u64) -> Option<u32> {
        self.by_handle.get(&handle, |i| self.locks[i].handle)
    }

    /// The next handle, queue position or serial number; they rise over time.
    fn draw(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Executes an enqueue, its resend, or its replay. For glimpses (`req.glimpse`) see [`glimpse`](Locks::glimpse).
    ///
    /// Errors: `EINVAL` for an invalid request, `EAGAIN` if it would wait but must not, `ENOLCK` beyond a limit (see
    /// `limit.rs`), `EDEADLK` for a record lock that would close a cycle of waiters, `ESTALE` for a replay of a lock
    /// that conflicts with one granted meanwhile.
    ///
    /// Cookies need not rise, but resends are found faster if a client's cookies do.
    pub fn enqueue(&mut self, now: Instant, export: ExportId, req: &EnqueueReq, waiter: WaiterId) -> Enqueued {
        self.now = now;
        if req.glimpse || (req.cookie == 0 && !req.test) {
            return Enqueued::Refused(Errno::EINVAL);
        }
        match check(&req.resource, req.mode, req.policy) {
            Err(errno) => Enqueued::Refused(errno),
            Ok(Wanted::Record(mode, flock)) => self.enqueue_record(export, req, waiter, mode, flock),
            Ok(Wanted::Part(..)) if req.test => Enqueued::Refused(Errno::EINVAL),
            Ok(Wanted::Part(mode, part)) => self.enqueue_part(export, req, waiter, mode, part),
        }
    }

    /// Executes the replay of a granted lock. Returns its new handle (0 for a record lock). A replay never waits, and a
    /// repeated one has the same result.
    ///
    /// Errors: as [`enqueue`](Locks::enqueue), and `EINVAL` for a request that is no replay of a granted lock.
    pub fn replay(&mut self, now: Instant, export: ExportId, req: &EnqueueReq) -> Result<u64, Errno> {
        let waits = self.exports.get(&export).is_some_and(|state| state.waiting.contains_key(&req.cookie));
        if req.granted_handle == 0 || req.test || waits {
            return Err(Errno::EINVAL);
        }
        match self.enqueue(now, export, req, WaiterId(0)) {
            Enqueued::Granted(grant) if req.resource.kind != ResourceKind::Flock as i32 => Ok(grant.handle),
            Enqueued::Granted(_) | Enqueued::Unlocked => Ok(0),
            Enqueued::Refused(errno) => Err(errno),
            Enqueued::Waiting | Enqueued::Conflict(..) | Enqueued::NotFound => {
                debug_assert!(false, "a replay neither waits nor asks");
                Err(Errno::EINVAL)
            }
        }
    }

    fn enqueue_part(
        &mut self,
        export: ExportId,
        req: &EnqueueReq,
        waiter: WaiterId,
        mode: LockMode,
        part: Part,
    ) -> Enqueued {
        let replay = req.granted_handle != 0;
        let found = self.resource(&req.resource);
        if let Some(i) = self.granted_before(found, export, req.cookie) {
            return self.enqueue_again(i, req, mode, part);
        }
        let state = self.exports.entry(export).or_default();
        if let Some(&r) = state.waiting.get(&req.cookie) {
            stdx::mark!("dlm.resend.waiting");
            return self.reattach(r, export, req, waiter);
        }
        if self.is_at_limit(export) {
            return Enqueued::Refused(Errno::ENOLCK);
        }
        if let Some(r) = found {
            let res = &self.resources[r];
            let blocked = self.has_blocker(res, export, mode, part);
            if replay && blocked {
                return Enqueued::Refused(Errno::ESTALE);
            }
            if !replay && (blocked || self.blocked_by_queue(res, res.queue.len(), export, mode, part)) {
                if req.no_wait {
                    return Enqueued::Refused(Errno::EAGAIN);
                }
                let seq = self.draw();
                let who = Who::Enqueue { cookie: req.cookie, waiter };
                self.resources[r].queue.push(Entry { seq, export, mode, part, who });
                self.exports.entry(export).or_default().waiting.insert(req.cookie, r);
                self.counters.waiting += 1;
                self.call_back_blockers(r, export, mode, part);
                return Enqueued::Waiting;
            }
        }
        let r = found.unwrap_or_else(|| self.new_resource(req.resource));
        let part = if replay { part } else { self.grow(r, export, mode, part) };
        let i = self.grant(r, export, req.cookie, mode, part);
        self.call_back_for_queue(i);
        Enqueued::Granted(self.grant_message(i))
    }

    /// The lock that an export has on a resource under a cookie.
    fn granted_before(&self, r: Option<u32>, export: ExportId, cookie: u64) -> Option<u32> {
        if cookie > self.exports.get(&export)?.cookie_max {
            return None;
        }
        self.own(&self.resources[r?], export).find(|&i| self.locks[i].cookie == cookie)
    }

    /// A resend or replay of an enqueue whose lock is granted.
    fn enqueue_again(&mut self, i: u32, req: &EnqueueReq, mode: LockMode, part: Part) -> Enqueued {
        let lock = &self.locks[i];
        let r = lock.res;
        let res = &self.resources[r];
        if req.granted_handle != 0 && (lock.mode, lock.part) != (mode, part) {
            // The replay of the operation with this lock granted it in another form; the client's form is right.
            if self.has_blocker(res, lock.export, mode, part) {
                return Enqueued::Refused(Errno::ESTALE);
            }
            self.reshape(i, mode, part);
            self.run_queue(r);
            self.call_back_for_queue(i);
        }
        Enqueued::Granted(self.grant_message(i))
    }

    /// Changes the part or mode of a lock.
    fn reshape(&mut self, i: u32, mode: LockMode, part: Part) {
        self.delist(i);
        let lock = &mut self.locks[i];
        let res = &mut self.resources[lock.res];
        res.modes.remove(lock.mode);
        res.modes.add(mode);
        (lock.mode, lock.part) = (mode, part);
        self.enlist(i);
    }

    /// A resend of a waiting enqueue: the answer goes to the new waiter.
    fn reattach(&mut self, r: u32, export: ExportId, req: &EnqueueReq, new: WaiterId) -> Enqueued {
        let res = &mut self.resources[r];
        if res.key != req.resource {
            return Enqueued::Refused(Errno::EINVAL);
        }
        for entry in &mut res.queue {
            if let Who::Enqueue { cookie, waiter } = &mut entry.who
                && entry.export == export
                && *cookie == req.cookie
            {
                *waiter = new;
            }
        }
        if let Some(records) = &mut res.records {
            records.reattach(export, req.cookie, new);
        }
        Enqueued::Waiting
    }

    /// For intents: grants those of `want_bits` that are free, without any callback. `None` if one of `must_bits` is
    /// not free, or no bit is. A lock that the export has under this cookie is returned unchanged.
    pub fn try_grant(
        &mut self,
        now: Instant,
        export: ExportId,
        resource: Resource,
        mode: LockMode,
        want_bits: u64,
        must_bits: u64,
        cookie: u64,
    ) -> Option<LockGrant> {
        self.now = now;
        if cookie == 0
            || matches!(mode, LockMode::Unset | LockMode::Nl)
            || resource.kind != ResourceKind::Inode as i32
            || self.is_at_limit(export)
            || self.exports.get(&export).is_some_and(|e| e.waiting.contains_key(&cookie))
        {
            return None;
        }
        let found = self.resource(&resource);
        if let Some(i) = self.granted_before(found, export, cookie) {
            return Some(self.grant_message(i));
        }
        let mut bits = want_bits | must_bits;
        if let Some(r) = found {
            let res = &self.resources[r];
            bits &= !self.taken_bits(res, export, mode, bits);
            for entry in &res.queue {
                if let (Part::Bits(wanted), false) = (entry.part, compatible(entry.mode, mode))
                    && entry.export != export
                {
                    bits &= !wanted;
                }
            }
        }
        if bits == 0 || must_bits & !bits != 0 || self.is_full(export) {
            return None;
        }
        let r = found.unwrap_or_else(|| self.new_resource(resource));
        let i = self.grant(r, export, cookie, mode, Part::Bits(bits));
        Some(self.grant_message(i))
    }

    /// Grants a lock on an object that its export has just created and relies on, regardless of the total number of
    /// locks. `None` if another export has a conflicting lock, or beyond the hard limits.
    pub fn grant_new(
        &mut self,
        now: Instant,
        export: ExportId,
        resource: Resource,
        mode: LockMode,
        bits: u64,
        cookie: u64,
    ) -> Option<LockGrant> {
        self.now = now;
        let found = self.resource(&resource);
        if let Some(i) = self.granted_before(found, export, cookie) {
            return Some(self.grant_message(i));
        }
        let part = Part::Bits(bits);
        let taken = found.is_some_and(|r| self.has_blocker(&self.resources[r], export, mode, part));
        if taken || self.is_at_limit(export) {
            return None;
        }
        let r = found.unwrap_or_else(|| self.new_resource(resource));
        let i = self.grant(r, export, cookie, mode, part);
        self.call_back_for_queue(i);
        Some(self.grant_message(i))
    }

    /// Cancels locks. Handles that are unknown or another export's are ignored; waiting enqueues are refused with
    /// `EINTR`.
    pub fn cancel(&mut self, now: Instant, export: ExportId, req: &CancelReq) {
        self.now = now;
        let mut touched: SmallVec<[u32; 8]> = SmallVec::new();
        for handle in &req.handles {
            if let Some(i) = self.by_handle(*handle)
                && self.locks[i].export == export
            {
                touched.push(self.remove_lock(i));
            }
        }
        for &cookie in &req.waiting_cookies {
            if let Some((r, waiter)) = self.remove_waiting(export, cookie) {
                touched.push(r);
                self.events.push_back(LockEvent::Refused { waiter, errno: Errno::EINTR });
            }
        }
        self.run_queues(touched);
    }

    /// The object was destroyed by a change of this export: drops its locks without a cancel. Record locks remain.
    pub fn drop_locks(&mut self, now: Instant, export: ExportId, resource: &Resource) {
        self.now = now;
        let Some(r) = self.resource(resource) else { return };
        let list: SmallVec<[u32; 4]> = self.own(&self.resources[r], export).collect();
        let mut touched: SmallVec<[u32; 8]> = SmallVec::new();
        for i in list {
            touched.push(self.remove_lock(i));
        }
        self.run_queues(touched);
    }

    /// Removes an export: its locks, waiting requests and events. Waiters for its locks proceed.
    ///
    /// Queue positions of its operations at the target remain until [`release`](Locks::release).
    pub fn export_gone(&mut self, now: Instant, export: ExportId) {
        self.now = now;
        let mut touched: SmallVec<[u32; 8]> = SmallVec::new();
        for i in self.locks_of(export) {
            touched.push(self.remove_lock(i));
        }
        self.events.retain(|event| {
            !matches!(event, LockEvent::Blocking { export: e, .. } | LockEvent::Glimpse { export: e, .. }
                | LockEvent::Granted { export: e, .. } | LockEvent::Overdue { export: e, .. }
                | LockEvent::Limit { export: e, .. } if *e == export)
        });
        let Some(state) = self.exports.get(&export) else { return };
        let files: Vec<u32> = state.records.keys().copied().collect();
        let cookies: Vec<u64> = state.waiting.keys().copied().collect();
        for cookie in cookies {
            touched.extend(self.remove_waiting(export, cookie).map(|(r, _)| r));
        }
        for r in files {
            self.drop_records(r, export);
            touched.push(r);
        }
        if let Some(state) = self.exports.remove(&export) {
            self.limit_gone(state.limit);
        }
        self.run_queues(touched);
    }

    /// Removes a waiting request from its queue. The caller runs the queue.
    fn remove_waiting(&mut self, export: ExportId, cookie: u64) -> Option<(u32, WaiterId)> {
        let r = self.exports.get_mut(&export)?.waiting.remove(&cookie)?;
        self.counters.waiting -= 1;
        let queue = &mut self.resources[r].queue;
        let place = queue.iter().enumerate().find_map(|(at, e)| match e.who {
            Who::Enqueue { cookie: c, waiter } if c == cookie && e.export == export => Some((at, waiter)),
            _ => None,
        });
        match place {
            Some((at, waiter)) => {
                queue.remove(at);
                Some((r, waiter))
            }
            None => self.remove_record_wait(r, export, cookie).map(|waiter| (r, waiter)),
        }
    }

    /// Indices of the locks of an export, newest first.
    fn locks_of(&self, export: ExportId) -> Vec<u32> {
        let Some(state) = self.exports.get(&export) else { return Vec::new() };
        let mut list = Vec::with_capacity(state.granted as usize);
        let mut at = state.head.wrapping_sub(1);
        while at != NIL {
            list.push(at);
            at = self.locks[at].next;
        }
        list
    }

    fn info(&self, i: u32) -> LockInfo {
        let lock = &self.locks[i];
        LockInfo {
            export: lock.export,
            resource: self.resources[lock.res].key,
            policy: lock.part.policy(),
            mode: lock.mode,
            handle: lock.handle,
            cookie: lock.cookie,
            called_back: lock.call.is_some(),
        }
    }

    /// Number of locks that an export holds, ranges of record locks included.
    pub fn count(&self, export: ExportId) -> u32 {
        self.exports.get(&export).map_or(0, |state| state.granted + state.record_count)
    }

    /// All locks of an export, by resource and handle; record locks by range.
    pub fn held(&self, export: ExportId) -> Vec<LockInfo> {
        let mut list: Vec<LockInfo> = self.locks_of(export).into_iter().map(|i| self.info(i)).collect();
        list.sort_by_key(|l| (l.resource, l.handle));
        if let Some(state) = self.exports.get(&export) {
            let mut records: Vec<LockInfo> =
                state.records.keys().flat_map(|&r| self.record_infos(r)).filter(|l| l.export == export).collect();
            records.sort_by_key(|l| l.resource);
            list.extend(records);
        }
        list
    }

    /// The inode or extent locks of an export on a resource.
    pub fn held_on(&self, export: ExportId, resource: &Resource) -> impl Iterator<Item = LockInfo> {
        let res = self.resource(resource).map(|r| &self.resources[r]);
        res.into_iter().flat_map(move |res| self.own(res, export)).map(|i| self.info(i))
    }

    /// All locks on a resource, by handle; record locks by owner and range.
    pub fn granted_on(&self, resource: &Resource) -> Vec<LockInfo> {
        let Some(r) = self.resource(resource) else { return Vec::new() };
        let mut list: Vec<LockInfo> = self.resources[r].granted.iter().map(|&i| self.info(i)).collect();
        list.sort_by_key(|l| l.handle);
        list.extend(self.record_infos(r));
        list
    }

    /// Whether an export has a lock on a resource that covers `mode`: the one with this handle, or one that overlaps
    /// `extent`.
    pub fn holds(
        &self,
        export: ExportId,
        resource: &Resource,
        mode: LockMode,
        handle: u64,
        extent: &proto::msg::Extent,
    ) -> bool {
        let Some(r) = self.resource(resource) else { return false };
        let does =
            |i: u32| self.locks[i].export == export && self.locks[i].res == r && covers(self.locks[i].mode, mode);
        let touches = |i: &u32| matches!(self.locks[*i].part, Part::Extent(e) if e.overlaps(extent));
        self.by_handle(handle).is_some_and(does) || self.own(&self.resources[r], export).filter(touches).any(does)
    }

    /// Whether there are neither locks nor waiters.
    pub fn is_idle(&self) -> bool {
        self.resources.is_empty()
    }

    /// Counters for status files.
    pub fn counters(&self) -> Counters {
        Counters { granted: self.locks.len() as u64, ..self.counters }
    }

    fn grant_message(&self, i: u32) -> LockGrant {
        let lock = &self.locks[i];
        LockGrant {
            handle: lock.handle,
            cookie: lock.cookie,
            resource: self.resources[lock.res].key,
            policy: Some(lock.part.policy()),
            mode: lock.mode as i32,
        }
    }
}

/// The grant of a record lock. Its handle cannot be used in a cancel.
fn record_grant(handle: u64, cookie: u64, resource: Resource, mode: LockMode, flock: Flock) -> LockGrant {
    LockGrant { handle, cookie, resource, policy: Some(Policy::Flock(flock)), mode: mode as i32 }
}
