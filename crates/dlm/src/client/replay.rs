//! Replay of locks after a restart of the server.

use proto::msg::EnqueueReq;

use super::{Cookie, HeldLock, LockCache, LockCacheEvent, State};

impl LockCache {
    /// Starts the replay of all locks; [`next_replays`](LockCache::next_replays) lists them. No lock is cancelled
    /// before the answer to its replay.
    pub fn begin_replay(&mut self) {
        let mut cookies: Vec<Cookie> = Vec::with_capacity(self.held.len());
        for lock in self.held.iter_mut().filter(|lock| !lock.assumed) {
            lock.replaying = true;
            cookies.push(lock.cookie);
        }
        cookies.sort_unstable();
        self.replays = cookies.into();
        // Handles of the old server mean nothing to the new one.
        self.cancels.clear();
        let mut records = Vec::new();
        self.records.replay(&mut self.cookie, &mut records);
        self.record_replays = records.into();
    }

    /// The next locks to replay, at most `max`, by cookie; record locks last, under new cookies. Empty when all were
    /// returned.
    pub fn next_replays(&mut self, max: usize) -> Vec<EnqueueReq> {
        let mut requests = Vec::with_capacity(max.min(self.replays.len() + self.record_replays.len()));
        while requests.len() < max
            && let Some(cookie) = self.replays.pop_front()
        {
            let Some(i) = self.place(cookie) else { continue };
            let lock = &self.held[i];
            requests.push(EnqueueReq {
                resource: lock.resource,
                mode: lock.mode as i32,
                cookie: lock.cookie,
                policy: Some(lock.part.policy()),
                no_wait: false,
                glimpse: false,
                granted_handle: lock.handle,
                test: false,
                keep: false,
                version: 0,
            });
        }
        let records = self.record_replays.len().min(max - requests.len());
        requests.extend(self.record_replays.drain(..records));
        requests
    }

    /// A replayed lock was granted again, with a new handle (0 for a record lock).
    pub fn replayed(&mut self, cookie: Cookie, handle: u64) {
        if self.records.replayed(cookie) {
            return;
        }
        let Some(i) = self.place(cookie) else {
            if handle != 0 {
                self.cancel(handle, true);
            }
            return;
        };
        self.new_handle(i, handle);
        let lock = &mut self.held[i];
        lock.replaying = false;
        if lock.state == State::Cleaned && lock.refs == 0 {
            let handle = self.remove(i).handle;
            self.cancel(handle, true);
        }
    }

    /// The server refused a replayed lock: it is lost, and the caller drops what it protected. `None` for a lock that
    /// the client no longer had, and for a record lock, whose program cannot be notified.
    pub fn lost(&mut self, cookie: Cookie) -> Option<HeldLock> {
        if self.records.lost(cookie) {
            return None;
        }
        let i = self.place(cookie)?;
        let lock = self.remove(i).lock();
        self.events.retain(|e| !matches!(e, LockCacheEvent::Cleanup { lock, .. } if lock.cookie == cookie));
        Some(lock)
    }
}
