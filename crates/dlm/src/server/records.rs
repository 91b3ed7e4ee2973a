//! Record locks on the server: `fcntl` and `flock`.
//!
//! An owner is a client's identifier of a process (or of an open file, for `flock`). Owners of one client conflict like
//! any others. A request waits for granted locks only, never for other waiters, because POSIX programs rely on sharing
//! read locks. Waiters are tried in the order of their arrival.
//!
//! A POSIX request that would wait is refused with `EDEADLK` if an owner that it waits for waits, directly or
//! indirectly, for the requesting owner, on any file. A grant can close such a cycle too (an owner with several
//! threads, or a lock that goes to another waiter first), so the remaining waiters are checked again then. `flock` has
//! no such check, as on Linux.
//!
//! Record locks have no handles: they are released by range, and a client replays its own list. They are never called
//! back, so a late copy of a request must not lock anything that its client does not know of: it gets the first copy's
//! result, including a refusal.

use proto::Errno;
use proto::msg::{EnqueueReq, Flock, LockMode, Policy};
use stdx::Set;

use super::{Enqueued, LockEvent, LockInfo, Locks, record_grant};
use crate::record::{Record, RecordSet};
use crate::{ExportId, WaiterId};

/// Answered requests that are remembered per export, for resends.
const EXECUTED: usize = 128;

pub(super) type Owner = (ExportId, u64);

/// A record lock request that waits.
#[derive(Clone, Copy)]
struct Wait {
    export: ExportId,
    cookie: u64,
    waiter: WaiterId,
    mode: LockMode,
    flock: Flock,
    keep: bool,
}

impl Wait {
    fn owner(&self) -> Owner {
        (self.export, self.flock.owner)
    }

    fn write(&self) -> bool {
        self.mode == LockMode::Pw
    }
}

/// The record locks of a file.
#[derive(Default)]
pub(super) struct Records {
    posix: RecordSet<Owner>,
    flock: RecordSet<Owner>,
    queue: Vec<Wait>,
}

impl Records {
    pub(super) fn is_empty(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty() && self.queue.is_empty()
    }

    fn set_of(&self, is_flock: bool) -> &RecordSet<Owner> {
        if is_flock { &self.flock } else { &self.posix }
    }

    fn set_mut(&mut self, is_flock: bool) -> &mut RecordSet<Owner> {
        if is_flock { &mut self.flock } else { &mut self.posix }
    }

    fn conflicts(&self, owner: Owner, mode: LockMode, f: &Flock) -> impl Iterator<Item = Record<Owner>> {
        self.set_of(f.is_flock).conflicts(owner, f.start, f.end, mode == LockMode::Pw)
    }

    pub(super) fn reattach(&mut self, export: ExportId, cookie: u64, waiter: WaiterId) {
        for wait in &mut self.queue {
            if wait.export == export && wait.cookie == cookie {
                wait.waiter = waiter;
            }
        }
    }
}

impl Locks {
    /// Number of requests of an export that wait for record locks. These may wait for ever, since record locks are not
    /// called back.
    pub fn record_waits(&self, export: ExportId) -> usize {
        let Some(state) = self.exports.get(&export) else { return 0 };
        let resources: Set<u32> = state.waiting.values().copied().collect();
        let queues = resources.iter().filter_map(|&r| self.resources[r].records.as_ref());
        queues.flat_map(|records| &records.queue).filter(|wait| wait.export == export).count()
    }

    pub(super) fn enqueue_record(
        &mut self,
        export: ExportId,
        req: &EnqueueReq,
        waiter: WaiterId,
        mode: LockMode,
        flock: Flock,
    ) -> Enqueued {
        let owner = (export, flock.owner);
        let found = self.resource(&req.resource);
        if req.test {
            return self.test_record(found, owner, mode, &flock);
        }
        let replay = req.granted_handle != 0;
        let state = self.exports.entry(export).or_default();
        let before = state.executed.iter().find(|(cookie, _)| *cookie == req.cookie);
        if let Some(&(_, refused)) = before {
            stdx::mark!("dlm.resend.executed");
            return match refused {
                Some(errno) => Enqueued::Refused(errno),
                None => self.executed(req, mode, flock),
            };
        }
        if let Some(&r) = state.waiting.get(&req.cookie) {
            return self.reattach(r, export, req, waiter);
        }
        if mode == LockMode::Nl {
            if let Some(r) = found {
                self.set_records(r, owner, &flock, None);
                self.run_records(r);
                self.drop_if_empty(r);
            }
            self.remember(export, req.cookie, None);
            return Enqueued::Unlocked;
        }
        let r = found.unwrap_or_else(|| self.new_resource(req.resource));
        // A flock(2) lock that changes its mode is released first, and not restored if the change fails.
        if flock.is_flock && !replay {
            let held =
                self.resources[r].records.as_ref().and_then(|x| x.flock.of(owner).next()).map(|held| held.mode());
            if held.is_some_and(|held| held != mode) {
                self.set_records(r, owner, &flock, None);
                self.run_records(r);
            }
        }
        if self.is_at_limit(export) {
            self.drop_if_empty(r);
            return self.refuse_record(export, req.cookie, Errno::ENOLCK);
        }
        let blocked =
            self.resources[r].records.as_ref().is_some_and(|x| x.conflicts(owner, mode, &flock).next().is_some());
        let result = if !blocked {
            self.grant_records(r, owner, &flock, mode == LockMode::Pw, req.keep);
            self.after_record_grant(r, owner);
            if mode == LockMode::Pr {
                self.run_records(r);
            }
            self.remember(export, req.cookie, None);
            self.executed(req, mode, flock)
        } else if replay {
            self.refuse_record(export, req.cookie, Errno::ESTALE)
        } else if req.no_wait {
            self.refuse_record(export, req.cookie, Errno::EAGAIN)
        } else if !flock.is_flock && self.would_deadlock(r, owner, mode, &flock) {
            self.refuse_record(export, req.cookie, Errno::EDEADLK)
        } else {
            let wait = Wait { export, cookie: req.cookie, waiter, mode, flock, keep: req.keep };
            self.resources[r].records.get_or_insert_default().queue.push(wait);
            self.exports.entry(export).or_default().waiting.insert(req.cookie, r);
            self.counters.waiting += 1;
            if !flock.is_flock {
                self.record_waits.entry(owner).or_default().push(r);
            }
            Enqueued::Waiting
        };
        self.drop_if_empty(r);
        result
    }

    fn test_record(&self, found: Option<u32>, owner: Owner, mode: LockMode, flock: &Flock) -> Enqueued {
        if mode == LockMode::Nl {
            return Enqueued::Refused(Errno::EINVAL);
        }
        let records = found.and_then(|r| self.resources[r].records.as_ref());
        let first = records.and_then(|x| x.conflicts(owner, mode, flock).next());
        match first {
            None => Enqueued::NotFound,
            Some(r) => Enqueued::Conflict(
                Flock { start: r.start, end: r.end, owner: r.owner.1, pid: r.pid, is_flock: flock.is_flock },
                r.mode(),
            ),
        }
    }

    fn executed(&mut self, req: &EnqueueReq, mode: LockMode, flock: Flock) -> Enqueued {
        if mode == LockMode::Nl {
            return Enqueued::Unlocked;
        }
        Enqueued::Granted(record_grant(self.draw(), req.cookie, req.resource, mode, flock))
    }

    fn remember(&mut self, export: ExportId, cookie: u64, refused: Option<Errno>) {
        let executed = &mut self.exports.entry(export).or_default().executed;
        if executed.len() == EXECUTED {
            executed.pop_front();
        }
        executed.push_back((cookie, refused));
    }

    fn refuse_record(&mut self, export: ExportId, cookie: u64, errno: Errno) -> Enqueued {
        self.remember(export, cookie, Some(errno));
        Enqueued::Refused(errno)
    }

    /// Changes the error of a refused request, for resends of it.
    pub fn refused_with(&mut self, export: ExportId, cookie: u64, errno: Errno) {
        let Some(state) = self.exports.get_mut(&export) else { return };
        if let Some((_, refused @ Some(_))) = state.executed.iter_mut().find(|(other, _)| *other == cookie) {
            *refused = Some(errno);
        }
    }

    /// Changes an owner's ranges, and updates all counts.
    fn set_records(&mut self, r: u32, owner: Owner, f: &Flock, write: Option<bool>) {
        let records = self.resources[r].records.get_or_insert_default();
        let grown = records.set_mut(f.is_flock).set(owner, f.start, f.end, write, f.pid);
        self.count_records(r, owner.0, grown as i64);
    }

    /// Sets the ranges of a granted lock. `keep`: write locks of the owner are kept.
    fn grant_records(&mut self, r: u32, owner: Owner, f: &Flock, write: bool, keep: bool) {
        if write || !keep {
            self.set_records(r, owner, f, Some(write));
            return;
        }
        let records = self.resources[r].records.get_or_insert_default();
        let grown = records.set_mut(f.is_flock).set_at_least_read(owner, f.start, f.end, f.pid);
        self.count_records(r, owner.0, grown as i64);
    }

    fn count_records(&mut self, r: u32, export: ExportId, grown: i64) {
        self.counters.records = self.counters.records.saturating_add_signed(grown);
        let state = self.exports.entry(export).or_default();
        state.record_count = state.record_count.saturating_add_signed(grown as i32);
        let count = state.records.entry(r).or_default();
        *count = count.saturating_add_signed(grown as i32);
        if *count == 0 {
            state.records.remove(&r);
        }
    }

    /// Drops all ranges of an export on a file. The caller runs the file's queue.
    pub(super) fn drop_records(&mut self, r: u32, export: ExportId) {
        let Some(records) = &mut self.resources[r].records else { return };
        let owners = (export, 0)..=(export, u64::MAX);
        let gone = records.posix.drop_owners(owners.clone()) + records.flock.drop_owners(owners);
        self.count_records(r, export, -(gone as i64));
    }

    /// Removes a withdrawn request from a file's queue.
    pub(super) fn remove_record_wait(&mut self, r: u32, export: ExportId, cookie: u64) -> Option<WaiterId> {
        let queue = &mut self.resources[r].records.as_mut()?.queue;
        let at = queue.iter().position(|w| w.export == export && w.cookie == cookie)?;
        let wait = queue.remove(at);
        self.forget_record_wait(r, &wait);
        self.remember(export, cookie, Some(Errno::EINTR));
        Some(wait.waiter)
    }

    fn forget_record_wait(&mut self, r: u32, wait: &Wait) {
        if let Some(list) = self.record_waits.get_mut(&wait.owner())
            && !wait.flock.is_flock
        {
            if let Some(at) = list.iter().position(|&x| x == r) {
                list.swap_remove(at);
            }
            if list.is_empty() {
                self.record_waits.remove(&wait.owner());
            }
        }
    }

    /// Removes a waiter from a file's queue and from all tables of waiters.
    fn take_record_wait(&mut self, r: u32, at: usize) -> Option<Wait> {
        let wait = self.resources[r].records.as_mut()?.queue.remove(at);
        self.forget_record_wait(r, &wait);
        if let Some(state) = self.exports.get_mut(&wait.export) {
            state.waiting.remove(&wait.cookie);
        }
        self.counters.waiting -= 1;
        Some(wait)
    }

    /// Grants what has become possible, in order.
    pub(super) fn run_records(&mut self, r: u32) {
        let mut at = 0;
        while let Some(records) = &self.resources[r].records {
            let Some(&wait) = records.queue.get(at) else { break };
            if records.conflicts(wait.owner(), wait.mode, &wait.flock).next().is_some() {
                at += 1;
                continue;
            }
            // A downgrade from write to read may allow earlier waiters.
            let downgrade = !wait.keep
                && !wait.write()
                && records
                    .set_of(wait.flock.is_flock)
                    .of_in(wait.owner(), wait.flock.start, wait.flock.end)
                    .any(|x| x.write);
            self.take_record_wait(r, at);
            self.grant_records(r, wait.owner(), &wait.flock, wait.write(), wait.keep);
            self.remember(wait.export, wait.cookie, None);
            let handle = self.draw();
            let grant = record_grant(handle, wait.cookie, self.resources[r].key, wait.mode, wait.flock);
            self.events.push_back(LockEvent::Granted { export: wait.export, waiter: wait.waiter, grant });
            if self.after_record_grant(r, wait.owner()) || downgrade {
                at = 0;
            }
        }
    }

    /// If the new holder waits for another lock, the grant may have closed a cycle through waiters of this file: these
    /// are refused. Returns whether any was.
    fn after_record_grant(&mut self, r: u32, owner: Owner) -> bool {
        if !self.record_waits.contains_key(&owner) {
            return false;
        }
        let mut refused = false;
        let mut at = 0;
        while let Some(&wait) = self.resources[r].records.as_ref().and_then(|x| x.queue.get(at)) {
            if wait.flock.is_flock || !self.would_deadlock(r, wait.owner(), wait.mode, &wait.flock) {
                at += 1;
                continue;
            }
            stdx::mark!("dlm.deadlock.by-grant");
            self.take_record_wait(r, at);
            self.remember(wait.export, wait.cookie, Some(Errno::EDEADLK));
            self.events.push_back(LockEvent::Refused { waiter: wait.waiter, errno: Errno::EDEADLK });
            refused = true;
        }
        refused
    }

    /// Whether an owner that waited for this lock would wait for itself.
    fn would_deadlock(&self, r: u32, owner: Owner, mode: LockMode, flock: &Flock) -> bool {
        let mut seen: Set<Owner> = Set::default();
        let mut todo: Vec<Owner> = Vec::new();
        if let Some(records) = &self.resources[r].records {
            todo.extend(records.conflicts(owner, mode, flock).map(|x| x.owner));
        }
        while let Some(next) = todo.pop() {
            if next == owner {
                return true;
            }
            if !seen.insert(next) {
                continue;
            }
            for &r in self.record_waits.get(&next).into_iter().flatten() {
                let Some(records) = &self.resources[r].records else { continue };
                for wait in records.queue.iter().filter(|w| w.owner() == next && !w.flock.is_flock) {
                    todo.extend(records.conflicts(next, wait.mode, &wait.flock).map(|x| x.owner));
                }
            }
        }
        false
    }

    pub(super) fn record_infos(&self, r: u32) -> Vec<LockInfo> {
        let res = &self.resources[r];
        let Some(records) = &res.records else { return Vec::new() };
        let infos = |is_flock: bool| {
            records.set_of(is_flock).iter().map(move |x| {
                let flock = Flock { start: x.start, end: x.end, owner: x.owner.1, pid: x.pid, is_flock };
                LockInfo {
                    export: x.owner.0,
                    resource: res.key,
                    policy: Policy::Flock(flock),
                    mode: x.mode(),
                    handle: 0,
                    cookie: 0,
                    called_back: false,
                }
            })
        };
        infos(false).chain(infos(true)).collect()
    }
}
