//! The client's record locks.
//!
//! The server decides about them. The client keeps a copy of the granted ones, to replay them, and to know whether a
//! close must release any. It applies a request to the copy when the reply arrives, in the server's order.

use std::collections::{BTreeMap, BTreeSet};

use proto::msg::{EnqueueReq, Flock, LockMode, Policy, Resource};

use super::{Cookie, LockCache};
use crate::record::{Record, RecordSet};

/// A request in flight.
struct Sent {
    resource: Resource,
    mode: LockMode,
    flock: Flock,
    /// See [`EnqueueReq::keep`].
    keep: bool,
    /// Its owner closed the file meanwhile.
    abandoned: bool,
}

#[derive(Default)]
pub(super) struct RecordLocks {
    /// By file and kind (`is_flock`).
    files: BTreeMap<(Resource, bool), RecordSet<u64>>,
    sent: BTreeMap<Cookie, Sent>,
    /// Keys of `sent` by file, kind and owner.
    sent_by: BTreeSet<(Resource, bool, u64, Cookie)>,
    /// Ranges sent for replay.
    replays: BTreeMap<Cookie, (Resource, Flock)>,
}

impl RecordLocks {
    fn set(&mut self, resource: Resource, f: &Flock, mode: LockMode) {
        let write = match mode {
            LockMode::Nl => None,
            mode => Some(mode == LockMode::Pw),
        };
        let (start, end) = if f.is_flock { (0, u64::MAX) } else { (f.start, f.end) };
        let set = self.files.entry((resource, f.is_flock)).or_default();
        set.set(f.owner, start, end, write, f.pid);
        if set.is_empty() {
            self.files.remove(&(resource, f.is_flock));
        }
    }

    fn put_sent(&mut self, cookie: Cookie, sent: Sent) {
        self.sent_by.insert((sent.resource, sent.flock.is_flock, sent.flock.owner, cookie));
        self.sent.insert(cookie, sent);
    }

    fn take_sent(&mut self, cookie: Cookie) -> Option<Sent> {
        let sent = self.sent.remove(&cookie)?;
        self.sent_by.remove(&(sent.resource, sent.flock.is_flock, sent.flock.owner, cookie));
        Some(sent)
    }

    /// Requests in flight of one owner.
    fn sent_of(&self, resource: Resource, is_flock: bool, owner: u64) -> impl Iterator<Item = (Cookie, &Sent)> {
        let of = self.sent_by.range((resource, is_flock, owner, 0)..=(resource, is_flock, owner, Cookie::MAX));
        of.filter_map(|(.., cookie)| {
            stdx::steps::add(1);
            Some((*cookie, self.sent.get(cookie)?))
        })
    }

    pub(super) fn replay(&mut self, cookie: &mut Cookie, out: &mut Vec<EnqueueReq>) {
        self.replays.clear();
        for (&(resource, is_flock), set) in &self.files {
            for r in self.certain(resource, is_flock, set) {
                *cookie += 1;
                let flock = Flock { start: r.start, end: r.end, owner: r.owner, pid: r.pid, is_flock };
                self.replays.insert(*cookie, (resource, flock));
                let mut request = request(resource, r.mode(), flock, *cookie);
                // Record locks have no handle; any non-zero value marks it as granted.
                request.granted_handle = *cookie;
                out.push(request);
            }
        }
    }

    /// Ranges that are held whether or not the requests in flight were executed. A range that may have been released
    /// may belong to another owner now, and its replay would take it away.
    fn certain(&self, resource: Resource, is_flock: bool, set: &RecordSet<u64>) -> Vec<Record<u64>> {
        let of_file = (resource, is_flock, 0, 0)..=(resource, is_flock, u64::MAX, Cookie::MAX);
        let mut sent = self.sent_by.range(of_file).filter_map(|(.., cookie)| self.sent.get(cookie)).peekable();
        if sent.peek().is_none() {
            return set.iter().collect();
        }
        let mut certain = RecordSet::default();
        for r in set.iter() {
            certain.set(r.owner, r.start, r.end, Some(r.write), r.pid);
        }
        for sent in sent.filter(|sent| !sent.keep) {
            let (start, end) = if is_flock { (0, u64::MAX) } else { (sent.flock.start, sent.flock.end) };
            for r in set.of_in(sent.flock.owner, start, end) {
                let rest = match sent.mode {
                    mode if mode == r.mode() => continue,
                    // A change of a `flock(2)` lock releases the old one first.
                    _ if is_flock => None,
                    LockMode::Nl => None,
                    LockMode::Pr => Some(false),
                    _ => continue,
                };
                certain.set(r.owner, r.start.max(start), r.end.min(end), rest, r.pid);
            }
        }
        certain.iter().collect()
    }

    pub(super) fn replayed(&mut self, cookie: Cookie) -> bool {
        self.replays.remove(&cookie).is_some()
    }

    pub(super) fn lost(&mut self, cookie: Cookie) -> bool {
        let Some((resource, flock)) = self.replays.remove(&cookie) else { return false };
        self.set(resource, &flock, LockMode::Nl);
        true
    }
}

fn request(resource: Resource, mode: LockMode, flock: Flock, cookie: Cookie) -> EnqueueReq {
    EnqueueReq {
        resource,
        mode: mode as i32,
        cookie,
        policy: Some(Policy::Flock(flock)),
        no_wait: false,
        glimpse: false,
        granted_handle: 0,
        test: false,
        keep: false,
        version: 0,
    }
}

impl LockCache {
    /// A record lock or unlock request (not a test) is being sent. Other requests are ignored.
    pub fn record_sent(&mut self, req: &EnqueueReq) {
        if let (Some(Policy::Flock(flock)), Ok(mode), false) = (req.policy, LockMode::try_from(req.mode), req.test) {
            let sent = Sent { resource: req.resource, mode, flock, keep: req.keep, abandoned: false };
            self.records.put_sent(req.cookie, sent);
        }
    }

    /// The request succeeded. Returns the unlock to send if its owner has closed the file meanwhile; it counts as sent.
    pub fn record_granted(&mut self, cookie: Cookie) -> Option<EnqueueReq> {
        let sent = self.records.take_sent(cookie)?;
        if sent.keep {
            let (f, set) = (sent.flock, self.records.files.entry((sent.resource, sent.flock.is_flock)).or_default());
            set.set_at_least_read(f.owner, f.start, f.end, f.pid);
        } else {
            self.records.set(sent.resource, &sent.flock, sent.mode);
        }
        if !sent.abandoned || sent.mode == LockMode::Nl {
            return None;
        }
        self.drop_owner(&sent.resource, sent.flock.owner, sent.flock.is_flock).pop()
    }

    /// The request was refused. A refused change of a `flock(2)` lock has lost the old one.
    pub fn record_refused(&mut self, cookie: Cookie) {
        let Some(sent) = self.records.take_sent(cookie) else { return };
        if sent.flock.is_flock {
            let held = self.records.files.get(&(sent.resource, true)).and_then(|set| set.of(sent.flock.owner).next());
            if held.is_some_and(|r| r.mode() != sent.mode) {
                self.records.set(sent.resource, &sent.flock, LockMode::Nl);
            }
        }
    }

    /// Whether `owner` has a record lock on `resource`, or has requested one.
    pub fn has_records(&self, resource: &Resource, owner: u64, is_flock: bool) -> bool {
        let held = self.records.files.get(&(*resource, is_flock));
        held.is_some_and(|set| set.of(owner).next().is_some())
            || self.records.sent_of(*resource, is_flock, owner).any(|(_, sent)| sent.mode != LockMode::Nl)
    }

    /// Whether a read lock would, or might, downgrade a write lock of its owner.
    ///
    /// Such a request can be refused because of the rest of its range, and then the owner keeps writing. But if the
    /// server fails before it has answered, it is unknown whether another owner has read there since. So the rest of
    /// the range is requested first, with [`EnqueueReq::keep`]; the request that then downgrades the write lock cannot
    /// be refused.
    pub fn record_weakens(&self, resource: &Resource, flock: &Flock) -> bool {
        let touches = |f: &Flock| f.start <= flock.end && flock.start <= f.end;
        let held = self.records.files.get(&(*resource, false));
        let mut sent = self.records.sent_of(*resource, false, flock.owner);
        held.is_some_and(|set| set.of_in(flock.owner, flock.start, flock.end).any(|r| r.write))
            || sent.any(|(_, sent)| sent.mode == LockMode::Pw && touches(&sent.flock))
    }

    /// Whether the client has, or has requested, any record lock.
    pub fn any_records(&self) -> bool {
        !self.records.files.is_empty() || !self.records.sent.is_empty()
    }

    /// Unanswered record lock requests of `owner` on `resource`, to be cancelled when a signal interrupts the caller
    /// (`CancelReq::waiting_cookies`).
    pub fn records_waiting(&self, resource: &Resource, owner: u64, is_flock: bool) -> Vec<Cookie> {
        let sent = self.records.sent_of(*resource, is_flock, owner);
        sent.filter(|(_, sent)| sent.mode != LockMode::Nl).map(|(cookie, _)| cookie).collect()
    }

    /// The unlock request to send when `owner` closes `resource`; none if it never locked anything there. It counts as
    /// sent.
    pub fn drop_owner(&mut self, resource: &Resource, owner: u64, is_flock: bool) -> Vec<EnqueueReq> {
        if !self.has_records(resource, owner, is_flock) {
            return Vec::new();
        }
        let under_way: Vec<Cookie> =
            self.records.sent_of(*resource, is_flock, owner).map(|(cookie, _)| cookie).collect();
        for cookie in under_way {
            if let Some(sent) = self.records.sent.get_mut(&cookie) {
                sent.abandoned = true;
            }
        }
        let cookie = self.new_cookie();
        let flock = Flock { start: 0, end: u64::MAX, owner, pid: 0, is_flock };
        let unlock = request(*resource, LockMode::Nl, flock, cookie);
        self.record_sent(&unlock);
        vec![unlock]
    }
}
