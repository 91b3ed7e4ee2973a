//! The lock cache: the locks that a client holds on one target.
//!
//! A lock goes through these states:
//!
//! ```text
//!   expected ──grant──► usable ──callback, LRU, asked──► cleaning ──cleanup_done──► gone (Cancel)
//!       │                                                   ▲  │
//!       └─callback, then grant──────────────────────────────┘  └─ while held: cleaned; cleaning again at the last release
//! ```
//!
//! - An operation [`hold`](LockCache::hold)s the lock that it uses, and so does dirty data. A lock is cancelled only
//!   when it has no holder *and* the owner has reported, after the last holder released it, that what it protects was
//!   flushed and dropped.
//! - A lock that is being cancelled is not found by [`find`](LockCache::find): a new operation requests a new one.
//!   [`find_for_inflight`](LockCache::find_for_inflight) does find it, for a request that the kernel sent before it
//!   could know: if that one waited, the callback might have to wait for it in turn.
//! - A callback can overtake the grant, because replies and callbacks are different messages.
//!   [`expect`](LockCache::expect) registers a request in flight. The grant then arrives as
//!   [`GrantAction::CalledBack`]: the operation that requested the lock may use it once, if it holds it before the
//!   cleanup that [`poll`](LockCache::poll) returns next is done.
//! - The reply to a request may be lost with its connection, and the lock with it; then the request is resent. A
//!   callback for an intent's lock ([`expect_intent`](LockCache::expect_intent)) is then answered at once by a cancel,
//!   and a grant that still names it is void, because the server may be unable to answer the request before the lock is
//!   cancelled.
//! - An unexpected grant (the enqueue was given up, or the message arrived twice) is cancelled at once, and so is an
//!   unknown handle in a callback, so that the server does not wait for it in vain.
//!
//! A worked example:
//!
//! ```text
//!   c = new_cookie(); expect(c); send the enqueue         find(...) is None
//!   granted(grant of c)                        Usable     bits_held(resource) has its bits
//!   hold(c); use it
//!   blocking(callback for c)           StartCleanup(c)    bits_held is 0; poll() gives Cleanup{c}
//!   cleanup_done(c)                                       still held: nothing
//!   release(c)                                            poll() gives Cleanup{c} again: the operation may have cached
//!   cleanup_done(c)                                       poll() gives Cancel([handle])
//! ```
//!
//! A lock on an object that the server does not know yet is [`assume`](LockCache::assume)d: it is used like any other,
//! but has no handle, and is neither cancelled nor replayed until the grant that [confirms](LockCache::confirm) it.
//!
//! A lock that is only used for reading can be [`downgrade`](LockCache::downgrade)d instead of being cancelled when
//! others want to read. A lock is never upgraded, so the server may learn of it late: until then it treats the lock as
//! the stronger one.
//!
//! After a restart of the server [`next_replays`](LockCache::next_replays) lists the locks to replay. Until its replay
//! is answered ([`replayed`](LockCache::replayed), [`lost`](LockCache::lost)) no such lock is cancelled: the old handle
//! means nothing to the new server, which would keep the new lock for ever.

mod assumed;
mod lru;
mod records;
mod replay;
#[cfg(test)]
mod tests;

use core::cell::Cell;
use core::time::Duration;
use std::collections::VecDeque;

use proto::msg::{BlCallback, EnqueueReq, LockGrant, LockMode, Policy, Resource};
use smallvec::SmallVec;
use stdx::{Index, Instant, Map, Slab};

use self::lru::Lru;
use self::records::RecordLocks;
use crate::mode::covers;
use crate::part::Part;

/// The client's identifier of a lock. Never reused.
pub type Cookie = u64;

/// Most handles in one cancel message.
const CANCEL_BATCH: usize = 512;
/// Cancels that nobody waits for are batched: up to this many,
const GATHER_MAX: usize = 64;
/// or for this long.
const GATHER_TIME: Duration = Duration::from_millis(5);

/// Settings of the lock cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Most locks without holder; beyond that the least recently used ones are cancelled.
    pub lru_size: usize,
    /// Time without use after which a lock without holder is cancelled.
    pub lru_max_age: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { lru_size: 100_000, lru_max_age: Duration::from_secs(3900) }
    }
}

/// A lock that this client holds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeldLock {
    /// The client's cookie.
    pub cookie: Cookie,
    /// The server's handle.
    pub handle: u64,
    /// Locked resource.
    pub resource: Resource,
    /// Locked part.
    pub policy: Policy,
    /// Mode.
    pub mode: LockMode,
}

/// Why a lock is cancelled.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reason {
    /// Another request needs this part, in this mode.
    Wanted(Option<Policy>, LockMode),
    /// Unused for long, or there are too many.
    Unused,
    /// At the owner's request.
    Asked,
}

/// What the client must do next; drained with [`LockCache::poll`].
#[derive(Clone, PartialEq, Debug)]
pub enum LockCacheEvent {
    /// Flush and invalidate what this lock protects, then call [`LockCache::cleanup_done`]. Repeated for the same lock
    /// if it had a holder at that call.
    Cleanup {
        /// The lock.
        lock: HeldLock,
        /// The reason.
        reason: Reason,
    },
    /// Send a cancel of these handles.
    Cancel(Vec<u64>),
}

/// Result of a callback. The work to do is returned by [`LockCache::poll`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockingAction {
    /// A [`LockCacheEvent::Cleanup`] follows.
    StartCleanup(Cookie),
    /// A [`LockCacheEvent::Cancel`] of the handle follows, because the client does not have that lock.
    CancelUnknown(u64),
    /// The lock is being cancelled already.
    AlreadyCancelling,
    /// It overtook the grant: cleanup starts when the grant arrives.
    Deferred(Cookie),
}

/// Result of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantAction {
    /// Held and usable.
    Usable,
    /// Called back already: usable once by the operation that requested it, if it holds it now. Cleanup follows.
    CalledBack,
    /// Not requested, or no longer: a cancel follows.
    Unexpected,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Usable,
    /// Cleanup was requested from the owner.
    Cleaning,
    /// Cleanup was done, but the lock had a holder then, which may have cached more since.
    Cleaned,
}

/// A [`Reason`] in little memory, since most locks have none.
enum PackedReason {
    Wanted(Box<(Option<Policy>, LockMode)>),
    Unused,
    Asked,
}

impl PackedReason {
    fn of(reason: Reason) -> PackedReason {
        match reason {
            Reason::Wanted(policy, mode) => PackedReason::Wanted(Box::new((policy, mode))),
            Reason::Unused => PackedReason::Unused,
            Reason::Asked => PackedReason::Asked,
        }
    }

    fn reason(&self) -> Reason {
        match self {
            PackedReason::Wanted(wanted) => Reason::Wanted(wanted.0, wanted.1),
            PackedReason::Unused => Reason::Unused,
            PackedReason::Asked => Reason::Asked,
        }
    }
}

/// State of a lock that a request in flight may bring.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// The request does not wait for this lock: it is answered with or without it.
    intent: bool,
    /// The request was resent, and the lost reply may have granted the lock.
    again: bool,
    /// Reason and handle of a callback that overtook the grant.
    overtaken: Option<(Reason, u64)>,
    /// A handle that was cancelled before its grant arrived.
    given_back: u64,
}

struct Held {
    cookie: Cookie,
    handle: u64,
    resource: Resource,
    part: Part,
    mode: LockMode,
    state: State,
    refs: u32,
    /// A replay of it is unanswered: the handle is that of the old server.
    replaying: bool,
    /// The server does not know it yet: there is no handle.
    assumed: bool,
    reason: PackedReason,
    last_used: Instant,
    prev: u32,
    next: u32,
}

impl Held {
    /// Whether it cannot be cancelled now, because its handle is not known.
    fn lacks_handle(&self) -> bool {
        self.replaying || self.assumed
    }

    fn lock(&self) -> HeldLock {
        HeldLock {
            cookie: self.cookie,
            handle: self.handle,
            resource: self.resource,
            policy: self.part.policy(),
            mode: self.mode,
        }
    }
}

/// The locks on a resource.
struct ResLocks {
    key: Resource,
    list: SmallVec<[u32; 2]>,
    /// Bits that usable locks cover in PR or stronger.
    bits: u64,
    /// Used since the LRU list was last scanned (second-chance bit).
    used: Cell<bool>,
}

impl ResLocks {
    fn new(key: Resource) -> ResLocks {
        ResLocks { key, list: SmallVec::new(), bits: 0, used: Cell::new(false) }
    }
}

/// The locks of one import.
pub struct LockCache {
    settings: Settings,
    now: Instant,
    cookie: Cookie,
    held: Slab<Held>,
    by_cookie: Index,
    by_handle: Index,
    by_resource: Index,
    resources: Slab<ResLocks>,
    /// Requests in flight.
    expected: Map<Cookie, Expected>,
    lru: Lru,
    /// Limit of unused locks set by the server.
    limit: usize,
    /// When to continue cancelling excess locks.
    shrink_at: Instant,
    events: VecDeque<LockCacheEvent>,
    /// Handles to cancel.
    cancels: Vec<u64>,
    /// When the first of them was added.
    gathering: Instant,
    /// The server may wait for one of them.
    urgent: bool,
    records: RecordLocks,
    /// Locks still to be replayed, by cookie.
    replays: VecDeque<Cookie>,
    /// Record locks still to be replayed; they come last.
    record_replays: VecDeque<EnqueueReq>,
}

impl LockCache {
    /// An empty cache.
    pub fn new(settings: Settings) -> LockCache {
        LockCache {
            settings,
            now: Instant::ZERO,
            cookie: 0,
            held: Slab::default(),
            by_cookie: Index::default(),
            by_handle: Index::default(),
            by_resource: Index::default(),
            resources: Slab::default(),
            expected: Map::default(),
            lru: Lru::default(),
            limit: usize::MAX,
            shrink_at: Instant::ZERO,
            events: VecDeque::new(),
            cancels: Vec::new(),
            gathering: Instant::ZERO,
            urgent: false,
            records: RecordLocks::default(),
            replays: VecDeque::new(),
            record_replays: VecDeque::new(),
        }
    }

    /// Changes the settings; takes effect at the next [`poll`](LockCache::poll) or [`tick`](LockCache::tick).
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// A cookie for a new lock.
    pub fn new_cookie(&mut self) -> Cookie {
        self.cookie += 1;
        self.cookie
    }

    /// An enqueue with this cookie is being sent.
    pub fn expect(&mut self, cookie: Cookie) {
        self.expected.entry(cookie).or_default();
    }

    /// An intent with this cookie is being sent: it does not wait for the lock, but is answered with or without it.
    pub fn expect_intent(&mut self, cookie: Cookie) {
        self.expected.entry(cookie).or_default().intent = true;
    }

    /// The request was answered without a lock, or was given up.
    pub fn unexpect(&mut self, cookie: Cookie) {
        if let Some((_, handle)) = self.expected.remove(&cookie).and_then(|expected| expected.overtaken) {
            // There is a lock after all, as a callback shows: its grant is lost or late.
            self.cancel(handle, true);
        }
    }

    /// The connection is lost, and replies in flight with it: requests will be resent. Cancels the locks of intents
    /// that were called back already.
    pub fn interrupted(&mut self) {
        let mut back = Vec::new();
        for expected in self.expected.values_mut().filter(|expected| expected.intent) {
            expected.again = true;
            if let Some((_, handle)) = expected.overtaken.take() {
                expected.given_back = handle;
                back.push(handle);
            }
        }
        back.sort_unstable();
        for handle in back {
            self.cancel(handle, true);
        }
    }

    /// Cancels a handle; at once if the server may wait for it.
    fn cancel(&mut self, handle: u64, urgent: bool) {
        if self.cancels.is_empty() {
            self.gathering = self.now;
        }
        self.cancels.push(handle);
        self.urgent |= urgent;
    }

    /// A grant arrived. To be sure of it, the operation that requested it must hold it before the next poll.
    pub fn granted(&mut self, grant: &LockGrant, now: Instant) -> GrantAction {
        self.now = self.now.max(now);
        let expected = self.expected.remove(&grant.cookie);
        if let Some(i) = self.place(grant.cookie) {
            // The reply arrived twice.
            self.new_handle(i, grant.handle);
            return match self.held[i].state {
                State::Usable => GrantAction::Usable,
                State::Cleaning | State::Cleaned => GrantAction::CalledBack,
            };
        }
        let (part, mode) = (grant.policy.and_then(Part::from_policy), LockMode::try_from(grant.mode));
        let given_back = expected.is_some_and(|expected| expected.given_back == grant.handle);
        let (Some(expected), Some(part), Ok(mode), false) = (expected, part, mode, given_back) else {
            stdx::mark!("dlm.grant.unexpected");
            self.cancel(grant.handle, true);
            return GrantAction::Unexpected;
        };
        let i = self.insert(grant.cookie, grant.handle, grant.resource, part, mode);
        match expected.overtaken {
            None => GrantAction::Usable,
            Some((reason, _)) => {
                stdx::mark!("dlm.callback.overtook-grant");
                self.start_cleanup(i, reason);
                GrantAction::CalledBack
            }
        }
    }

    fn insert(&mut self, cookie: Cookie, handle: u64, resource: Resource, part: Part, mode: LockMode) -> u32 {
        let i = self.held.insert(Held {
            cookie,
            handle,
            resource,
            part,
            mode,
            state: State::Usable,
            refs: 0,
            replaying: false,
            assumed: handle == 0,
            reason: PackedReason::Asked,
            last_used: self.now,
            prev: lru::NIL,
            next: lru::NIL,
        });
        self.by_cookie.insert(i, |i| self.held[i].cookie);
        if handle != 0 {
            self.by_handle.insert(i, |i| self.held[i].handle);
        }
        let r = self.locks_on(&resource).unwrap_or_else(|| {
            let r = self.resources.insert(ResLocks::new(resource));
            self.by_resource.insert(r, |r| self.resources[r].key);
            r
        });
        self.resources[r].list.push(i);
        self.lru.push(&mut self.held, i);
        self.refresh_bits(&resource);
        i
    }

    /// Handles rise, across restarts of the server too: a smaller one is from a late message.
    fn new_handle(&mut self, i: u32, handle: u64) {
        let old = self.held[i].handle;
        if handle > old {
            if old != 0 {
                self.by_handle.remove(&old, |i| self.held[i].handle);
            }
            self.held[i].handle = handle;
            self.by_handle.insert(i, |i| self.held[i].handle);
        }
    }

    /// Index of a lock.
    #[inline]
    fn place(&self, cookie: Cookie) -> Option<u32> {
        self.by_cookie.get(&cookie, |i| self.held[i].cookie)
    }

    /// Index of a resource with locks.
    #[inline]
    fn locks_on(&self, resource: &Resource) -> Option<u32> {
        self.by_resource.get(resource, |r| self.resources[r].key)
    }

    fn refresh_bits(&mut self, resource: &Resource) {
        let Some(r) = self.locks_on(resource) else { return };
        let res = &mut self.resources[r];
        res.bits = 0;
        for &i in &res.list {
            let lock = &self.held[i];
            if let Part::Bits(bits) = lock.part
                && lock.state == State::Usable
                && covers(lock.mode, LockMode::Pr)
            {
                res.bits |= bits;
            }
        }
    }

    fn search(&self, resource: &Resource, mode: LockMode, policy: &Policy, inflight: bool) -> Option<u32> {
        let part = Part::from_policy(*policy)?;
        let fits = |i: &u32| {
            let lock = &self.held[*i];
            (inflight || lock.state == State::Usable) && covers(lock.mode, mode) && lock.part.covers(&part)
        };
        self.resources[self.locks_on(resource)?].list.iter().copied().find(fits)
    }

    /// Finds a usable lock that covers this mode and part, and marks it used.
    pub fn find(&mut self, resource: &Resource, mode: LockMode, policy: &Policy) -> Option<Cookie> {
        let i = self.search(resource, mode, policy, false)?;
        self.touch(i);
        Some(self.held[i].cookie)
    }

    /// As [`find`](LockCache::find), for a request that the kernel sent before it could know of a callback: a lock that
    /// is being cancelled counts until it is gone.
    pub fn find_for_inflight(&mut self, resource: &Resource, mode: LockMode, policy: &Policy) -> Option<Cookie> {
        if let Some(cookie) = self.find(resource, mode, policy) {
            return Some(cookie);
        }
        self.search(resource, mode, policy, true).map(|i| self.held[i].cookie)
    }

    /// All bits of `resource` that usable locks cover in PR or stronger.
    #[inline]
    pub fn bits_held(&self, resource: &Resource) -> u64 {
        match self.locks_on(resource) {
            None => 0,
            Some(r) => {
                let res = &self.resources[r];
                res.used.set(true);
                res.bits
            }
        }
    }

    /// The lock with this cookie, usable or not.
    pub fn get(&self, cookie: Cookie) -> Option<HeldLock> {
        self.place(cookie).map(|i| self.held[i].lock())
    }

    /// The lock with this handle, for glimpses.
    pub fn by_handle(&self, handle: u64) -> Option<HeldLock> {
        self.by_handle.get(&handle, |i| self.held[i].handle).map(|i| self.held[i].lock())
    }

    /// Whether new operations may use the lock.
    pub fn is_usable(&self, cookie: Cookie) -> bool {
        self.place(cookie).is_some_and(|i| self.held[i].state == State::Usable)
    }

    /// Whether the lock is being cancelled because of a callback.
    pub fn is_wanted(&self, cookie: Cookie) -> bool {
        self.place(cookie)
            .map(|i| &self.held[i])
            .is_some_and(|held| held.state != State::Usable && matches!(held.reason, PackedReason::Wanted(_)))
    }

    /// Whether the lock has a holder.
    pub fn is_held(&self, cookie: Cookie) -> bool {
        self.place(cookie).is_some_and(|i| self.held[i].refs > 0)
    }

    /// Whether any lock has a holder.
    pub fn any_held(&self) -> bool {
        self.held.iter().any(|(_, lock)| lock.refs > 0)
    }

    /// All locks on a resource, by cookie, including those that are being cancelled.
    pub fn on_resource(&self, resource: &Resource) -> Vec<HeldLock> {
        let mut list: Vec<HeldLock> = self
            .locks_on(resource)
            .into_iter()
            .flat_map(|r| &self.resources[r].list)
            .map(|&i| self.held[i].lock())
            .collect();
        list.sort_by_key(|lock| lock.cookie);
        list
    }

    /// Adds a holder, which keeps the lock from being cancelled until [`release`](LockCache::release). Returns false if
    /// there is no such lock.
    pub fn hold(&mut self, cookie: Cookie) -> bool {
        let Some(i) = self.place(cookie) else { return false };
        self.lru.remove(&mut self.held, i);
        self.held[i].refs += 1;
        true
    }

    /// Removes a holder. Does nothing for a lock that was lost meanwhile.
    pub fn release(&mut self, cookie: Cookie) {
        let Some(i) = self.place(cookie) else { return };
        let lock = &mut self.held[i];
        assert!(lock.refs > 0, "a lock is released more often than it is held");
        lock.refs -= 1;
        if lock.refs > 0 {
            return;
        }
        match lock.state {
            State::Usable => {
                lock.last_used = self.now;
                self.lru.push(&mut self.held, i);
            }
            State::Cleaning => {}
            State::Cleaned => {
                stdx::mark!("dlm.cleanup.again");
                self.emit_cleanup(i);
            }
        }
    }

    /// Handles a blocking callback.
    pub fn blocking(&mut self, callback: &BlCallback) -> BlockingAction {
        let mode = LockMode::try_from(callback.wanted_mode).unwrap_or(LockMode::Ex);
        let reason = Reason::Wanted(callback.wanted, mode);
        if let Some(expected) = self.expected.get_mut(&callback.cookie) {
            if !expected.again {
                expected.overtaken = Some((reason, callback.handle));
                return BlockingAction::Deferred(callback.cookie);
            }
            stdx::mark!("dlm.callback.grant-lost");
            expected.given_back = callback.handle;
            self.cancel(callback.handle, true);
            return BlockingAction::CancelUnknown(callback.handle);
        }
        let found = self.place(callback.cookie);
        match found {
            // The callback may also overtake the reply to a replay or the confirmation of an assumed lock. Then its
            // handle is the new one, and the lock is cancelled once the reply has brought that.
            Some(i) if self.held[i].handle == callback.handle || self.held[i].lacks_handle() => {
                if self.held[i].state != State::Usable {
                    self.held[i].reason = PackedReason::of(reason);
                    return BlockingAction::AlreadyCancelling;
                }
                self.start_cleanup(i, reason);
                BlockingAction::StartCleanup(callback.cookie)
            }
            _ => {
                self.cancel(callback.handle, true);
                BlockingAction::CancelUnknown(callback.handle)
            }
        }
    }

    fn start_cleanup(&mut self, i: u32, reason: Reason) {
        self.lru.remove(&mut self.held, i);
        self.held[i].reason = PackedReason::of(reason);
        let resource = self.held[i].resource;
        self.emit_cleanup(i);
        self.refresh_bits(&resource);
    }

    fn emit_cleanup(&mut self, i: u32) {
        let held = &mut self.held[i];
        held.state = State::Cleaning;
        self.events.push_back(LockCacheEvent::Cleanup { lock: held.lock(), reason: held.reason.reason() });
    }

    /// What the lock protects was flushed and dropped. Cancels the lock if it has no holder; otherwise cleanup is
    /// repeated after the last release.
    pub fn cleanup_done(&mut self, cookie: Cookie) {
        let Some(i) = self.place(cookie) else { return };
        let lock = &mut self.held[i];
        if lock.state != State::Cleaning {
            return;
        }
        lock.state = State::Cleaned;
        if lock.refs == 0 && !lock.lacks_handle() {
            let lock = self.remove(i);
            self.cancel(lock.handle, matches!(lock.reason, PackedReason::Wanted(_)));
        }
    }

    fn remove(&mut self, i: u32) -> Held {
        self.lru.remove(&mut self.held, i);
        let Held { cookie, handle, resource, .. } = self.held[i];
        self.by_cookie.remove(&cookie, |i| self.held[i].cookie);
        if handle != 0 {
            self.by_handle.remove(&handle, |i| self.held[i].handle);
        }
        let lock = self.held.remove(i);
        if let Some(r) = self.locks_on(&resource) {
            self.resources[r].list.retain(|x| *x != i);
            if self.resources[r].list.is_empty() {
                self.by_resource.remove(&resource, |r| self.resources[r].key);
                self.resources.remove(r);
            } else {
                self.refresh_bits(&resource);
            }
        }
        lock
    }

    /// The next event. Cancels come last, as many in one as there are by then. Those without a callback are batched
    /// until there are enough, or until [`deadline`](LockCache::deadline).
    pub fn poll(&mut self) -> Option<LockCacheEvent> {
        if self.events.is_empty() {
            self.shrink();
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if self.cancels.is_empty() || self.gather_until().is_some_and(|until| self.now < until) {
            return None;
        }
        let rest = self.cancels.split_off(self.cancels.len().min(CANCEL_BATCH));
        self.urgent &= !rest.is_empty();
        Some(LockCacheEvent::Cancel(core::mem::replace(&mut self.cancels, rest)))
    }

    /// Until when the present cancels may wait for more; `None` if there are none or they may not wait.
    fn gather_until(&self) -> Option<Instant> {
        let waits = !self.cancels.is_empty() && !self.urgent && self.cancels.len() < GATHER_MAX;
        waits.then(|| self.gathering + GATHER_TIME)
    }

    /// Cancels a lock at once, as if it had been called back, because another client is known to need it.
    pub fn give_back(&mut self, cookie: Cookie) {
        self.start_cancel(cookie, Reason::Wanted(None, LockMode::Nl));
    }

    /// Downgrades a lock, so that others can share it and what it protects stays cached. Not possible for a lock with a
    /// holder or one that is being cancelled. Returns whether the lock is usable in this mode now.
    pub fn downgrade(&mut self, cookie: Cookie, mode: LockMode) -> bool {
        let Some(i) = self.place(cookie) else { return false };
        let held = &mut self.held[i];
        let can = held.state == State::Usable && held.refs == 0 && covers(held.mode, mode);
        if can && held.mode != mode {
            held.mode = mode;
            let resource = held.resource;
            self.refresh_bits(&resource);
        }
        can
    }

    fn start_cancel(&mut self, cookie: Cookie, reason: Reason) {
        if let Some(i) = self.place(cookie)
            && self.held[i].state == State::Usable
        {
            self.start_cleanup(i, reason);
        }
    }

    /// Cancels all locks on `resource`.
    pub fn cancel_resource(&mut self, resource: &Resource) {
        for lock in self.on_resource(resource) {
            self.start_cancel(lock.cookie, Reason::Asked);
        }
    }

    /// The object was destroyed, and the server has dropped the client's locks on it with the same change: drops them
    /// here too, even with holders, without sending anything.
    pub fn forget_resource(&mut self, resource: &Resource) {
        for lock in self.on_resource(resource) {
            stdx::mark!("dlm.forget.gone");
            if let Some(i) = self.place(lock.cookie) {
                self.remove(i);
            }
            self.events.retain(|e| !matches!(e, LockCacheEvent::Cleanup { lock: l, .. } if l.cookie == lock.cookie));
        }
    }

    /// Eviction: drops everything, including requests in flight and record locks. Returns the locks that were held, by
    /// cookie.
    pub fn drop_all(&mut self) -> Vec<HeldLock> {
        let mut list: Vec<HeldLock> = self.held.iter().map(|(_, lock)| lock.lock()).collect();
        list.sort_unstable_by_key(|lock| lock.cookie);
        let cookie = self.cookie;
        let now = self.now;
        *self = LockCache { cookie, now, ..LockCache::new(self.settings) };
        list
    }

    /// Number of locks, and of those without holder.
    pub fn counts(&self) -> (usize, usize) {
        (self.held.len(), self.lru.len())
    }
}
