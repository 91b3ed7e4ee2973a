//! Usable locks that nothing holds, the longest unused first, and when to give them back.
//!
//! [`bits_held`](LockCache::bits_held) is called on every stat and only leaves a mark on the resource. A lock whose
//! resource is marked gets a second chance when its turn comes.

use core::time::Duration;

use stdx::{Instant, Slab};

use super::{Held, LockCache, Reason, State};

/// Locks that are given back in one go because they are too many, at least,
const SHRINK_STEP: usize = 512;
/// and how long the next ones wait then.
const SHRINK_PAUSE: Duration = Duration::from_millis(2);

/// No index.
pub(super) const NIL: u32 = u32::MAX;

/// A list through the locks themselves.
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

    /// Puts a lock last.
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

    /// Takes a lock out, if it is in.
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

    /// Whether the resource of the longest unused lock was used after all; then its locks go to the end of the list.
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

    /// Whether more locks are unused than may be kept.
    fn too_many(&self) -> bool {
        self.lru.len() > self.settings.lru_size.min(self.limit)
    }

    /// Gives back what is too many, so much at a time that the owner can do other things in between. Every lock gets at
    /// most one second chance in one go.
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

    /// How many locks nothing holds, and how many of them may be kept.
    pub fn unused(&self) -> (usize, usize) {
        (self.lru.len(), self.settings.lru_size.min(self.limit))
    }

    /// How many unused locks the server lets this client keep; 0: as many as it likes. Takes effect at the next
    /// [`poll`](LockCache::poll).
    pub fn set_limit(&mut self, locks: u32) {
        self.limit = if locks == 0 { usize::MAX } else { locks as usize };
    }

    /// When [`tick`](LockCache::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let shrink = self.too_many().then_some(self.shrink_at);
        self.oldest_until().into_iter().chain(self.gather_until()).chain(shrink).min()
    }

    fn oldest_until(&self) -> Option<Instant> {
        (self.lru.head != NIL).then(|| self.held[self.lru.head].last_used + self.settings.lru_max_age)
    }

    /// Gives back what is too old.
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

    /// Gives every lock back that nothing holds.
    pub fn cancel_unused(&mut self) {
        while self.lru.head != NIL {
            self.start_cleanup(self.lru.head, Reason::Asked);
        }
    }
}
