//! The LRU list of usable locks without holder, and when they are cancelled.
//!
//! [`bits_held`](LockCache::bits_held) is called on every stat and only marks the resource as used. A lock with a
//! marked resource gets a second chance when its turn comes.

use core::time::Duration;

use stdx::{Instant, Slab};

use super::{Held, LockCache, Reason, State};

/// Least number of excess locks that are cancelled in one step,
const SHRINK_STEP: usize = 512;
/// and the pause before the next step.
const SHRINK_PAUSE: Duration = Duration::from_millis(2);

/// No index.
pub(super) const NIL: u32 = u32::MAX;

/// A doubly linked list through the locks.
pub(super) struct Lru {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { head: NIL, tail: NIL, len: 0 }
    }
}

impl Lru {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn contains(&self, held: &Slab<Held>, i: u32) -> bool {
        held[i].prev != NIL || self.head == i
    }

    /// Appends a lock.
    pub(super) fn push(&mut self, held: &mut Slab<Held>, i: u32) {
        self.remove(held, i);
        held[i].prev = self.tail;
        match self.tail {
            NIL => self.head = i,
            tail => held[tail].next = i,
        }
        self.tail = i;
        self.len += 1;
    }

    /// Removes a lock if it is in the list.
    pub(super) fn remove(&mut self, held: &mut Slab<Held>, i: u32) {
        if !self.contains(held, i) {
            return;
        }
        let (prev, next) = (held[i].prev, held[i].next);
        match prev {
            NIL => self.head = next,
            prev => held[prev].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => held[next].prev = prev,
        }
        held[i].prev = NIL;
        held[i].next = NIL;
        self.len -= 1;
    }
}

impl LockCache {
    /// A lock was used.
    pub(super) fn touch(&mut self, i: u32) {
        self.held[i].last_used = self.now;
        if self.held[i].refs == 0 && self.held[i].state == State::Usable {
            self.lru.push(&mut self.held, i);
        }
    }

    /// Whether the resource of the least recently used lock was used after all; then its locks move to the end of the
    /// list.
    fn second_chance(&mut self, i: u32) -> bool {
        let Some(r) = self.locks_on(&self.held[i].resource) else { return false };
        let res = &self.resources[r];
        if !res.used.take() {
            return false;
        }
        for i in res.list.clone() {
            self.touch(i);
        }
        true
    }

    /// Whether there are more unused locks than allowed.
    fn too_many(&self) -> bool {
        self.lru.len() > self.settings.lru_size.min(self.limit)
    }

    /// Cancels excess locks, in steps so that the owner can do other work in between. Every lock gets at most one
    /// second chance per step.
    pub(super) fn shrink(&mut self) {
        if self.now < self.shrink_at {
            return;
        }
        let mut chances = self.lru.len().min(SHRINK_STEP);
        for _ in 0..2 * SHRINK_STEP {
            if !self.too_many() {
                return;
            }
            let i = self.lru.head;
            if chances > 0 && self.second_chance(i) {
                chances -= 1;
                continue;
            }
            self.start_cleanup(i, Reason::Unused);
        }
        if self.too_many() {
            stdx::mark!("dlm.shrink.goes-on");
            self.shrink_at = self.now + SHRINK_PAUSE;
        }
    }

    /// Number of locks without holder, and its limit.
    pub fn unused(&self) -> (usize, usize) {
        (self.lru.len(), self.settings.lru_size.min(self.limit))
    }

    /// Sets the server's limit of unused locks; 0: none. Takes effect at the next [`poll`](LockCache::poll).
    pub fn set_limit(&mut self, locks: u32) {
        self.limit = if locks == 0 { usize::MAX } else { locks as usize };
    }

    /// When to call [`tick`](LockCache::tick).
    pub fn deadline(&self) -> Option<Instant> {
        let shrink = self.too_many().then_some(self.shrink_at);
        self.oldest_until().into_iter().chain(self.gather_until()).chain(shrink).min()
    }

    fn oldest_until(&self) -> Option<Instant> {
        (self.lru.head != NIL).then(|| self.held[self.lru.head].last_used + self.settings.lru_max_age)
    }

    /// Cancels locks that were unused for too long.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(at) = self.oldest_until()
            && at <= self.now
        {
            let i = self.lru.head;
            if !self.settings.lru_max_age.is_zero() && self.second_chance(i) {
                continue;
            }
            self.start_cleanup(i, Reason::Unused);
        }
    }

    /// Cancels all locks without holder.
    pub fn cancel_unused(&mut self) {
        while self.lru.head != NIL {
            self.start_cleanup(self.lru.head, Reason::Asked);
        }
    }
}
