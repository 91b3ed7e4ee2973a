//! Assumed locks: locks on objects that the server does not know yet.

use proto::msg::{LockMode, Policy, Resource};
use stdx::Instant;

use super::{Cookie, LockCache, State};
use crate::part::Part;

impl LockCache {
    /// Assumes a lock on an object that no other client can know: it is usable at once, and requested later with the
    /// returned cookie. The grant is passed to [`confirm`](LockCache::confirm), or the lock is
    /// [`lost`](LockCache::lost).
    pub fn assume(&mut self, resource: Resource, mode: LockMode, policy: Policy, now: Instant) -> Option<Cookie> {
        self.now = self.now.max(now);
        let part = Part::from_policy(policy)?;
        let cookie = self.new_cookie();
        self.insert(cookie, 0, resource, part, mode);
        Some(cookie)
    }

    /// The server has granted an assumed lock. If it was given up meanwhile, it is cancelled. Returns whether the
    /// client still has it.
    pub fn confirm(&mut self, cookie: Cookie, handle: u64) -> bool {
        let Some(i) = self.place(cookie).filter(|i| self.held[*i].assumed) else {
            self.cancel(handle, true);
            return false;
        };
        self.held[i].assumed = false;
        self.new_handle(i, handle);
        if self.held[i].state == State::Cleaned && self.held[i].refs == 0 {
            stdx::mark!("dlm.assumed.given-back");
            self.remove(i);
            self.cancel(handle, true);
            return false;
        }
        true
    }
}
