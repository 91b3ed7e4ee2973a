//! The client's end.

use core::time::Duration;

use proto::msg::{BlCallback, EnqueueReq, LockGrant, LockMode, Policy, Resource};
use stdx::Instant;

/// The client's number of a lock.
pub type Cookie = u64;

/// What may be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Locks that nothing uses are given back, oldest first, beyond this many.
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
    /// Flush and invalidate what this lock protects, then say [`LockCache::cleanup_done`].
    Cleanup {
        /// Which lock.
        lock: HeldLock,
        /// Why.
        reason: Reason,
    },
    /// Send a cancel of these handles.
    Cancel(Vec<u64>),
}

/// What a callback found.
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

/// The locks of one import.
pub struct LockCache {
    settings: Settings,
}

#[allow(missing_docs, unused_variables)]
impl LockCache {
    pub fn new(settings: Settings) -> LockCache {
        LockCache { settings }
    }
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }
    pub fn new_cookie(&mut self) -> Cookie {
        0
    }
    /// An enqueue or intent with this cookie leaves.
    pub fn expect(&mut self, cookie: Cookie) {}
    /// It came back without a lock, or was given up.
    pub fn unexpect(&mut self, cookie: Cookie) {}
    pub fn granted(&mut self, grant: &LockGrant, now: Instant) -> GrantAction {
        GrantAction::Unexpected
    }
    pub fn find(&mut self, resource: &Resource, mode: LockMode, policy: &Policy) -> Option<Cookie> {
        None
    }
    pub fn find_for_inflight(&mut self, resource: &Resource, mode: LockMode, policy: &Policy) -> Option<Cookie> {
        None
    }
    /// Bits of `resource` held in PR or stronger by usable locks.
    pub fn bits_held(&self, resource: &Resource) -> u64 {
        0
    }
    pub fn get(&self, cookie: Cookie) -> Option<HeldLock> {
        None
    }
    pub fn by_handle(&self, handle: u64) -> Option<HeldLock> {
        None
    }
    pub fn hold(&mut self, cookie: Cookie) -> bool {
        false
    }
    pub fn release(&mut self, cookie: Cookie) {}
    pub fn blocking(&mut self, callback: &BlCallback) -> BlockingAction {
        BlockingAction::AlreadyCancelling
    }
    pub fn cleanup_done(&mut self, cookie: Cookie) {}
    pub fn poll(&mut self) -> Option<LockCacheEvent> {
        None
    }
    pub fn deadline(&self) -> Option<Instant> {
        None
    }
    pub fn tick(&mut self, now: Instant) {}
    /// Gives back every lock on `resource`.
    pub fn cancel_resource(&mut self, resource: &Resource) {}
    /// Gives back every lock that nothing uses.
    pub fn cancel_unused(&mut self) {}
    /// Everything held, as replays, by cookie; record locks too.
    pub fn all_for_replay(&mut self) -> Vec<EnqueueReq> {
        Vec::new()
    }
    pub fn replayed(&mut self, grant: &LockGrant) {}
    /// The server did not grant it again: it is gone, drop what it protected.
    pub fn lost(&mut self, cookie: Cookie) -> Option<HeldLock> {
        None
    }
    /// Eviction: everything is gone.
    pub fn drop_all(&mut self) -> Vec<HeldLock> {
        Vec::new()
    }
    /// A record lock or unlock request leaves.
    pub fn record_sent(&mut self, req: &EnqueueReq) {}
    /// It was granted.
    pub fn record_granted(&mut self, cookie: Cookie) {}
    /// It was refused.
    pub fn record_refused(&mut self, cookie: Cookie) {}
    /// The unlock requests to send when `owner` closes `resource`.
    pub fn drop_owner(&mut self, resource: &Resource, owner: u64, is_flock: bool) -> Vec<EnqueueReq> {
        Vec::new()
    }
    /// Locks held, unused ones among them.
    pub fn counts(&self) -> (usize, usize) {
        (0, 0)
    }
}
