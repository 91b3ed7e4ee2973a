//! Locks on objects that the server has not heard of.

use proto::msg::{LockMode, Policy, Resource};
use stdx::Instant;

use super::{Cookie, LockCache, State};
use crate::part::Part;

impl LockCache {
    /// A lock on an object that nobody else can know: it is held from now on, and asked for later with this cookie. Its
    /// grant comes to [`confirm`](LockCache::confirm), or it is [`lost`](LockCache::lost).
    pub fn assume(&mut self, resource: Resource, mode: LockMode, policy: Policy, now: Instant) -> Option<Cookie> {
        self.now = self.now.max(now);
        let part = Part::from_policy(policy)?;
        let cookie = self.new_cookie();
        self.insert(cookie, 0, resource, part, mode);
        Some(cookie)
    }

    /// The server has granted an assumed lock. One that was given up meanwhile is cancelled. Whether it is still here.
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
