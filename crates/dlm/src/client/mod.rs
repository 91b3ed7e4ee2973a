//! The client's end: what this client holds on one target.
//!
//! A lock goes through these states:
//!
//! ```text
//!   expected ──grant──► usable ──callback, LRU, asked──► cleaning ──cleanup_done──► gone (Cancel)
//!       │                                                   ▲  │
//!       └─callback, then grant──────────────────────────────┘  └─ while held: cleaned; cleaning again at the last release
//! ```
//!
//! - An operation [`hold`](LockCache::hold)s the lock that it uses, and so does data that was not written back. A lock
//!   is given back only when nobody holds it *and* the owner said, after the last of them let go, that what it
//!   protects was flushed and dropped.
//! - A lock that is being given back is not found by [`find`](LockCache::find): a new operation asks for a new one.
//!   [`find_for_inflight`](LockCache::find_for_inflight) does find it, for a request that the kernel sent before it
//!   could know: making that one wait could make the callback wait for it in turn.
//! - A callback can overtake the grant, because replies and callbacks are different messages. [`expect`](
//!   LockCache::expect) says that a request is under way; the grant then arrives as
//!   [`GrantAction::CalledBack`]: the operation that asked may use it once, if it holds it before the next
//!   [`poll`](LockCache::poll)ed cleanup is done.
//! - The reply to a request may be lost with its connection, and the lock with it: the request is sent again. A callback for an
//!   intent's lock ([`expect_intent`](LockCache::expect_intent)) is then answered at once, by a cancel, and a grant that
//!   still names it is worth nothing: the server may not be able to answer the request before it has the lock back.
//! - A grant that nobody expects (the enqueue was given up, or its message came twice) is cancelled at once, and so is
//!   a handle that the server asks back and that we do not know: the server must not wait for it in vain.
//!
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
//! A lock on an object that the server has not heard of is [`assume`](LockCache::assume)d: it is used like any other, has no
//! handle, and is neither given back nor replayed until the grant that [confirms](LockCache::confirm) it.
//!
//! A lock that is only read under by now need not go back when others want to read: [`downgrade`](LockCache::downgrade).
//! A lock is never made stronger, so the server may hear of that late: until then it takes it for more than it is.
//!
//! After a restart of the server [`next_replays`](LockCache::next_replays) lists what to ask for again. Until the answer ([`replayed`](LockCache::replayed), [`lost`](LockCache::lost)) no such lock is given back: the old handle
//! would mean nothing to the new server, which would keep the new lock for ever.

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

/// The client's number of a lock. Never used twice.
pub type Cookie = u64;

/// Handles in one cancel message.
const CANCEL_BATCH: usize = 512;
/// Cancels that nobody waits for are gathered: up to so many,
const GATHER_MAX: usize = 64;
/// or for so long.
const GATHER_TIME: Duration = Duration::from_millis(5);

/// What may be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Locks that nothing holds are given back, oldest first, beyond this many.
    pub lru_size: usize,
    /// And when nothing used them for so long.
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
    /// Our number.
    pub cookie: Cookie,
    /// The server's number.
    pub handle: u64,
    /// On what.
    pub resource: Resource,
    /// Which part.
    pub policy: Policy,
    /// How.
    pub mode: LockMode,
}

/// Why a lock is to be given back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reason {
    /// Somebody wants this part of it, in this mode.
    Wanted(Option<Policy>, LockMode),
    /// Not used for long, or too many.
    Unused,
    /// The owner asked for it.
    Asked,
}

/// What the client has to do next; drained with [`LockCache::poll`].
#[derive(Clone, PartialEq, Debug)]
pub enum LockCacheEvent {
    /// Flush and invalidate what this lock protects, then say [`LockCache::cleanup_done`]. May come again for the same
    /// lock, if somebody held it when that was said.
    Cleanup {
        /// Which lock.
        lock: HeldLock,
        /// Why.
        reason: Reason,
    },
    /// Send a cancel of these handles.
    Cancel(Vec<u64>),
}

/// What a callback found. What has to be done comes out of [`LockCache::poll`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockingAction {
    /// A [`LockCacheEvent::Cleanup`] follows.
    StartCleanup(Cookie),
    /// A [`LockCacheEvent::Cancel`] of the handle follows: we do not have that lock.
    CancelUnknown(u64),
    /// It is on its way back already.
    AlreadyCancelling,
    /// It overtook the grant: cleanup starts when the grant arrives.
    Deferred(Cookie),
}

/// What a grant found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantAction {
    /// Held and usable.
    Usable,
    /// Called back already: good for the operation that asked for it, if it holds it now; cleanup follows.
    CalledBack,
    /// Nobody here asked for it, or no longer: a cancel follows.
    Unexpected,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Usable,
    /// The owner was told to clean up.
    Cleaning,
    /// It did; but somebody held the lock then, and may have cached more since.
    Cleaned,
}

/// A [`Reason`], small: most locks have none yet.
enum Why {
    Wanted(Box<(Option<Policy>, LockMode)>),
    Unused,
    Asked,
}

impl Why {
    fn of(reason: Reason) -> Why {
        match reason {
            Reason::Wanted(policy, mode) => Why::Wanted(Box::new((policy, mode))),
            Reason::Unused => Why::Unused,
            Reason::Asked => Why::Asked,
        }
    }

    fn reason(&self) -> Reason {
        match self {
            Why::Wanted(wanted) => Reason::Wanted(wanted.0, wanted.1),
            Why::Unused => Reason::Unused,
            Why::Asked => Reason::Asked,
        }
    }
}

/// What is known of a lock that a request under way may bring.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// The request does not wait for this lock: without it the answer is as good.
    intent: bool,
    /// The request was sent again, and the answer that was lost may have granted the lock.
    again: bool,
    /// What a callback that overtook the grant wants, and of which handle.
    overtaken: Option<(Reason, u64)>,
    /// This handle went back before its grant came.
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
    /// Sent for replay, and not answered: the handle is the old server's.
    replaying: bool,
    /// The server does not know of it yet: there is no handle.
    assumed: bool,
    reason: Why,
    last_used: Instant,
    prev: u32,
    next: u32,
}

impl Held {
    /// Whether it cannot be given back now, because the server would not know which it is.
    fn is_nameless(&self) -> bool {
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

/// What is held on a resource.
struct ResLocks {
    key: Resource,
    list: SmallVec<[u32; 2]>,
    /// Bits that usable locks cover in PR or stronger.
    bits: u64,
    /// Looked at since the list of unused locks was last gone through.
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
    /// Requests under way.
    expected: Map<Cookie, Expected>,
    lru: Lru,
    /// How many unused locks the server lets us keep.
    limit: usize,
    /// Those that are too many go on being given back then.
    shrink_at: Instant,
    events: VecDeque<LockCacheEvent>,
    /// Handles to be cancelled.
    cancels: Vec<u64>,
    /// When the first of them came.
    gathering: Instant,
    /// The server may be waiting for one of them.
    urgent: bool,
    records: RecordLocks,
    /// Locks that were not taken out for replay, by cookie.
    replays: VecDeque<Cookie>,
    /// Those of record locks, which come last.
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

    /// A number for a new lock.
    pub fn new_cookie(&mut self) -> Cookie {
        self.cookie += 1;
        self.cookie
    }

    /// An enqueue or an intent with this cookie leaves.
    pub fn expect(&mut self, cookie: Cookie) {
        self.expected.entry(cookie).or_default();
    }

    /// The same for a request that does not wait for the lock, but is answered with or without it.
    pub fn expect_intent(&mut self, cookie: Cookie) {
        self.expected.entry(cookie).or_default().intent = true;
    }

    /// It came back without a lock, or was given up.
    pub fn unexpect(&mut self, cookie: Cookie) {
        if let Some((_, handle)) = self.expected.remove(&cookie).and_then(|expected| expected.overtaken) {
            // There is a lock after all, as a callback told: its grant is lost or late.
            self.cancel(handle, true);
        }
    }

    /// The connection is gone, and with it the answers that were on their way: requests will be sent again. Locks of intents that
    /// were asked back already go.
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

    /// A handle goes back to the server: at once if it may be waited for.
    fn cancel(&mut self, handle: u64, urgent: bool) {
        if self.cancels.is_empty() {
            self.gathering = self.now;
        }
        self.cancels.push(handle);
        self.urgent |= urgent;
    }

    /// A grant arrived. Whoever asked for it holds it before anybody polls, if it wants to be sure of it.
    pub fn granted(&mut self, grant: &LockGrant, now: Instant) -> GrantAction {
        self.now = self.now.max(now);
        let expected = self.expected.remove(&grant.cookie);
        if let Some(i) = self.place(grant.cookie) {
            // The reply came twice.
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
            reason: Why::Asked,
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

    /// Handles rise, also over restarts of the server: a smaller one is a late message about the past.
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

    /// The place of a lock that we have.
    #[inline]
    fn place(&self, cookie: Cookie) -> Option<u32> {
        self.by_cookie.get(&cookie, |i| self.held[i].cookie)
    }

    /// The place of what is held on a resource.
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

    /// A usable lock that does for this mode and part, and was now used.
    pub fn find(&mut self, resource: &Resource, mode: LockMode, policy: &Policy) -> Option<Cookie> {
        let i = self.search(resource, mode, policy, false)?;
        self.touch(i);
        Some(self.held[i].cookie)
    }

    /// The same for a request that the kernel sent before it knew of a callback: a lock that is being given back does,
    /// until it is gone.
    pub fn find_for_inflight(&mut self, resource: &Resource, mode: LockMode, policy: &Policy) -> Option<Cookie> {
        if let Some(cookie) = self.find(resource, mode, policy) {
            return Some(cookie);
        }
        self.search(resource, mode, policy, true).map(|i| self.held[i].cookie)
    }

    /// Bits of `resource` that usable locks cover in PR or stronger, all together.
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

    /// A lock that we have, usable or not.
    pub fn get(&self, cookie: Cookie) -> Option<HeldLock> {
        self.place(cookie).map(|i| self.held[i].lock())
    }

    /// A lock that we have, by the server's number: for glimpses.
    pub fn by_handle(&self, handle: u64) -> Option<HeldLock> {
        self.by_handle.get(&handle, |i| self.held[i].handle).map(|i| self.held[i].lock())
    }

    /// Whether new operations may use it.
    pub fn is_usable(&self, cookie: Cookie) -> bool {
        self.place(cookie).is_some_and(|i| self.held[i].state == State::Usable)
    }

    /// Whether it is being given back because the server asked for it.
    pub fn is_wanted(&self, cookie: Cookie) -> bool {
        self.place(cookie)
            .map(|i| &self.held[i])
            .is_some_and(|held| held.state != State::Usable && matches!(held.reason, Why::Wanted(_)))
    }

    /// Whether somebody holds it.
    pub fn is_held(&self, cookie: Cookie) -> bool {
        self.place(cookie).is_some_and(|i| self.held[i].refs > 0)
    }

    /// Whether somebody holds any.
    pub fn any_held(&self) -> bool {
        self.held.iter().any(|(_, lock)| lock.refs > 0)
    }

    /// Every lock on a resource, by cookie; those that are being given back too.
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

    /// Keeps a lock from being given back until [`release`](LockCache::release). False if we do not have it.
    pub fn hold(&mut self, cookie: Cookie) -> bool {
        let Some(i) = self.place(cookie) else { return false };
        self.lru.remove(&mut self.held, i);
        self.held[i].refs += 1;
        true
    }

    /// Ends one [`hold`](LockCache::hold). Nothing, for a lock that was lost meanwhile.
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

    /// The server wants a lock back.
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
            // The callback may also overtake the answer to a replay, or the one that confirms the lock: its handle is the new
            // one then, and the lock goes back when the answer has told it.
            Some(i) if self.held[i].handle == callback.handle || self.held[i].is_nameless() => {
                if self.held[i].state != State::Usable {
                    self.held[i].reason = Why::of(reason);
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
        self.held[i].reason = Why::of(reason);
        let resource = self.held[i].resource;
        self.emit_cleanup(i);
        self.refresh_bits(&resource);
    }

    fn emit_cleanup(&mut self, i: u32) {
        let held = &mut self.held[i];
        held.state = State::Cleaning;
        self.events.push_back(LockCacheEvent::Cleanup { lock: held.lock(), reason: held.reason.reason() });
    }

    /// What the lock protects was flushed and dropped. If nobody holds it, it goes back to the server; otherwise there
    /// will be another cleanup when the last holder lets go.
    pub fn cleanup_done(&mut self, cookie: Cookie) {
        let Some(i) = self.place(cookie) else { return };
        let lock = &mut self.held[i];
        if lock.state != State::Cleaning {
            return;
        }
        lock.state = State::Cleaned;
        if lock.refs == 0 && !lock.is_nameless() {
            let lock = self.remove(i);
            self.cancel(lock.handle, matches!(lock.reason, Why::Wanted(_)));
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

    /// The next thing to do. Cancels come last, as many in one as there are by then; those that no callback asked for
    /// wait until there are some of them, or for [`deadline`](LockCache::deadline).
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

    /// How long the cancels that there are may wait for others; `None` if there are none, or they may not.
    fn gather_until(&self) -> Option<Instant> {
        let waits = !self.cancels.is_empty() && !self.urgent && self.cancels.len() < GATHER_MAX;
        waits.then(|| self.gathering + GATHER_TIME)
    }

    /// Gives a lock back at once, as if it had been called back: somebody is interested in what it covers.
    pub fn give_back(&mut self, cookie: Cookie) {
        self.begin_giving_back(cookie, Reason::Wanted(None, LockMode::Nl));
    }

    /// Holds a lock in a weaker mode from now on, so that others can have it too: what it covers stays. Not one that an operation
    /// holds, or that is being given back. Whether it is held so.
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

    fn begin_giving_back(&mut self, cookie: Cookie, reason: Reason) {
        if let Some(i) = self.place(cookie)
            && self.held[i].state == State::Usable
        {
            self.start_cleanup(i, reason);
        }
    }

    /// Gives every lock on `resource` back.
    pub fn cancel_resource(&mut self, resource: &Resource) {
        for lock in self.on_resource(resource) {
            self.begin_giving_back(lock.cookie, Reason::Asked);
        }
    }

    /// The object is gone, and the server has dropped our locks on it with the same change: they are gone here too, held
    /// or not, and nothing is sent. What they cover can change no more.
    pub fn forget_resource(&mut self, resource: &Resource) {
        for lock in self.on_resource(resource) {
            stdx::mark!("dlm.forget.gone");
            if let Some(i) = self.place(lock.cookie) {
                self.remove(i);
            }
            self.events.retain(|e| !matches!(e, LockCacheEvent::Cleanup { lock: l, .. } if l.cookie == lock.cookie));
        }
    }

    /// Eviction: everything is gone, requests under way and record locks too. What was held, by cookie.
    pub fn drop_all(&mut self) -> Vec<HeldLock> {
        let mut list: Vec<HeldLock> = self.held.iter().map(|(_, lock)| lock.lock()).collect();
        list.sort_unstable_by_key(|lock| lock.cookie);
        let cookie = self.cookie;
        let now = self.now;
        *self = LockCache { cookie, now, ..LockCache::new(self.settings) };
        list
    }

    /// How many locks there are, and how many of them nothing holds.
    pub fn counts(&self) -> (usize, usize) {
        (self.held.len(), self.lru.len())
    }
}
