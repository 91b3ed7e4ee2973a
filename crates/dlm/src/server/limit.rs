//! Limits of a target's lock memory, and how clients are asked to keep fewer locks.
//!
//! Memory is bounded by a setting, not by what clients cache. Above [`super::Settings::locks_max`] each export with
//! more than its share is sent a limit of unused locks ([`LockEvent::Limit`]): it cancels its least recently used ones
//! in batches, and nobody waits for that. The share of an export is the greater of an equal part and its present part,
//! reduced in proportion. So an export with few locks is not affected, and a single client may have all of them.
//!
//! ```text
//!   100 locks are too many; A holds 88, B 14, C 0, two exports hold any
//!   N = 102    A: max(50, 88 * 100 / 102) = 86: limited   B: max(50, 13): not limited
//! ```
//!
//! Clients that ignore the limit are bounded by [`Locks::is_full`]: well above the limit, an intent of an export with
//! its share gets no lock, so it works but caches nothing. A lock that is requested explicitly is granted up to
//! [`super::Settings::locks_per_export_max`], because an operation needs it. But above
//! [`super::Settings::locks_in_all_max`] an export with an equal part of that gets none either
//! ([`Locks::is_at_limit`]), and above twice as many only exports with very few locks do. So memory is bounded however
//! many clients there are and whatever they do, and clients with few locks can proceed.

use proto::msg::ResourceKind;

use super::{LockEvent, Locks, RECORDS_AS_LOCKS};
use crate::ExportId;

/// Limits are recomputed when the number of locks has grown by one part in this many.
const STEP: usize = 64;

/// Locks that each export can have in any case, so that its programs proceed, if slowly.
const FEW: usize = 8;

/// State of the limits that were sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    /// Number of locks at which limits are recomputed.
    recompute_at: usize,
    /// Number of exports with a limit.
    limited: usize,
}

impl Locks {
    /// A lock was granted.
    #[inline]
    pub(super) fn check_limit(&mut self) {
        if self.locks.len() > self.settings.locks_max.max(self.limit.recompute_at) {
            self.send_limits();
        }
    }

    /// Sends limits to exports with more than their share.
    fn send_limits(&mut self) {
        let (all, max) = (self.locks.len(), self.settings.locks_max);
        self.limit.recompute_at = all + max.div_ceil(STEP);
        let mut holders: Vec<(ExportId, u32)> = self
            .exports
            .iter()
            .filter(|(_, state)| state.granted > 0)
            .map(|(id, state)| (*id, state.granted))
            .collect();
        holders.sort_unstable();
        // One step below the limit, so that this does not run again at once.
        let goal = (max - max / STEP) as u64;
        for &(export, granted) in &holders {
            let equal = goal / holders.len() as u64;
            let share = (u64::from(granted) * goal / all as u64).max(equal).max(1) as u32;
            if granted > share {
                self.send_limit(export, share);
            }
        }
    }

    fn send_limit(&mut self, export: ExportId, locks: u32) {
        let Some(state) = self.exports.get_mut(&export) else { return };
        if state.limit == 0 {
            self.limit.limited += 1;
        }
        state.limit = locks;
        stdx::mark!("dlm.limit.sent");
        self.events.push_back(LockEvent::Limit { export, locks });
    }

    /// Lifts all limits. They are recomputed when the maximum is reached again.
    pub(super) fn lift_limits(&mut self) {
        self.limit.recompute_at = 0;
        if self.limit.limited == 0 {
            return;
        }
        let mut limited: Vec<ExportId> =
            self.exports.iter().filter(|(_, state)| state.limit != 0).map(|(id, _)| *id).collect();
        limited.sort_unstable();
        for export in limited {
            if let Some(state) = self.exports.get_mut(&export) {
                state.limit = 0;
                self.events.push_back(LockEvent::Limit { export, locks: 0 });
            }
        }
        self.limit.limited = 0;
    }

    /// An export was removed; `limit` is its limit.
    pub(super) fn limit_gone(&mut self, limit: u32) {
        self.limit.limited -= usize::from(limit != 0);
        self.lift_limits();
    }

    /// An export reconnected: resends its limit, which may be lost.
    pub(super) fn resend_limit(&mut self, export: ExportId) {
        if let Some(state) = self.exports.get(&export)
            && state.limit != 0
        {
            self.events.push_back(LockEvent::Limit { export, locks: state.limit });
        }
    }

    /// Whether an export gets no locks with intents: the total is far above the limit, and the export has its share.
    pub(super) fn is_full(&self, export: ExportId) -> bool {
        let max = self.settings.locks_max;
        if self.locks.len() < max.saturating_add(max / 4) {
            return false;
        }
        let share = max / self.exports.len().max(1);
        self.exports.get(&export).is_some_and(|state| state.granted as usize >= share)
    }

    /// Whether an export is refused every further lock: it has as many as one export may have, or the total is at its
    /// hard limit and the export has its share.
    pub(super) fn is_at_limit(&self, export: ExportId) -> bool {
        let Some(state) = self.exports.get(&export) else { return false };
        if state.total() >= self.settings.locks_per_export_max {
            return true;
        }
        let most = self.settings.locks_in_all_max.max(self.settings.locks_max.saturating_mul(2));
        let files = self.counters.resources[ResourceKind::Flock as usize].saturating_mul(RECORDS_AS_LOCKS as u64);
        let beside = (self.counters.records + self.counters.waiting).saturating_add(files);
        let share = match self.locks.len().saturating_add(usize::try_from(beside).unwrap_or(usize::MAX)) {
            all if all < most => return false,
            all if all < most.saturating_mul(2) => most / self.exports.len(),
            _ => 0,
        };
        let own = (state.total() as usize).saturating_add(state.records.len().saturating_mul(RECORDS_AS_LOCKS));
        own >= share.max(FEW)
    }
}

#[cfg(test)]
mod tests {
    use proto::msg::{CancelReq, EnqueueReq, Flock, LockGrant, LockMode, Policy, Resource, ResourceKind, bits};
    use proto::{Errno, Fid};
    use stdx::Instant;

    use super::*;
    use crate::WaiterId;
    use crate::server::{Enqueued, Settings};

    const A: ExportId = ExportId(1);
    const B: ExportId = ExportId(2);

    struct Story {
        locks: Locks,
        cookie: u64,
    }

    impl Story {
        fn new(locks_max: usize) -> Story {
            Story { locks: Locks::new(0, Settings { locks_max, ..Settings::default() }), cookie: 0 }
        }

        /// Grants a lock on a new object, as for an intent.
        fn get(&mut self, export: ExportId) -> Option<LockGrant> {
            self.cookie += 1;
            let resource = Resource::inode(Fid::new(Fid::SEQ_FIRST, self.cookie as u32));
            self.locks.try_grant(Instant::ZERO, export, resource, LockMode::Pr, bits::UPDATE, 0, self.cookie)
        }

        fn get_many(&mut self, export: ExportId, count: usize) -> Vec<LockGrant> {
            (0..count).filter_map(|_| self.get(export)).collect()
        }

        fn cancel(&mut self, export: ExportId, grants: &[LockGrant]) {
            let handles = grants.iter().map(|grant| grant.handle).collect();
            self.locks.cancel(Instant::ZERO, export, &CancelReq { handles, waiting_cookies: vec![] });
        }

        /// The limits that were sent.
        fn told(&mut self) -> Vec<(ExportId, u32)> {
            let limit = |event| match event {
                LockEvent::Limit { export, locks } => (export, locks),
                other => panic!("{other:?}"),
            };
            core::iter::from_fn(|| self.locks.poll()).map(limit).collect()
        }
    }

    #[test]
    fn who_holds_more_than_its_share_is_told_and_nobody_else() {
        let mut s = Story::new(128);
        let few = s.get_many(B, 14);
        let many = s.get_many(A, 114);
        assert_eq!((few.len() + many.len(), s.told()), (128, vec![]));
        let last = s.get(A).expect("it is not refused");
        assert_eq!(s.told(), [(A, 115 * 126 / 129)]);
        s.get(A);
        assert_eq!(s.told(), [], "not with every lock");
        s.get_many(A, 2);
        assert_eq!(s.told(), [(A, 118 * 126 / 132)]);
        // It obeys, and stays below its limit.
        s.cancel(A, &[&many[..], &[last]].concat());
        s.get_many(A, 50);
        assert_eq!(s.told(), []);
        // A single client may have everything. Its limit is sent again after a reconnect.
        s.locks.resend_callbacks(Instant::ZERO, A);
        assert_eq!(s.told(), [(A, 112)]);
        s.locks.export_gone(Instant::ZERO, B);
        assert_eq!(s.told(), [(A, 0)]);
        s.locks.resend_callbacks(Instant::ZERO, A);
        assert_eq!(s.told(), []);
        s.get_many(A, 76);
        assert_eq!(s.told(), [(A, 126)]);
        s.locks.export_gone(Instant::ZERO, A);
        assert_eq!(s.told(), []);
        assert!(stdx::marks::count("dlm.limit.sent") > 0);
    }

    /// An entry of an [`Index`](stdx::Index): its four bytes and the control byte, in a table that is half full.
    const PLACE: usize = 10;

    #[test]
    fn a_lock_takes_no_more_memory_than_is_counted_for_it() {
        let alone = size_of::<Option<crate::server::Lock>>() + size_of::<Option<crate::server::Res>>() + 2 * PLACE;
        assert!(alone <= crate::server::LOCK_BYTES * 3 / 4, "{alone} bytes: a lock, its resource, the way to both");
        // Many locks on one resource share the resource, and each is in two trees.
        let in_crowd = size_of::<Option<crate::server::Lock>>() + PLACE + crate::server::crowd::LOCK_BYTES;
        assert!(in_crowd <= crate::server::LOCK_BYTES * 3 / 4, "{in_crowd} bytes");
    }

    /// An explicit request for a lock.
    fn ask(s: &mut Story, export: ExportId, no_wait: bool) -> Result<(), Errno> {
        s.cookie += 1;
        let request = EnqueueReq {
            resource: Resource::inode(Fid::new(Fid::SEQ_FIRST, s.cookie as u32)),
            mode: LockMode::Pr as i32,
            cookie: s.cookie,
            policy: Some(Policy::Bits(bits::UPDATE)),
            no_wait,
            ..EnqueueReq::default()
        };
        match s.locks.enqueue(Instant::ZERO, export, &request, WaiterId(s.cookie)) {
            Enqueued::Granted(_) => Ok(()),
            Enqueued::Refused(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn many_clients_hold_no_more_locks_than_one() {
        let mut s = Story::new(50);
        let settings = Settings { locks_in_all_max: 100, ..s.locks.settings() };
        s.locks.set_settings(settings);
        let asked = |s: &mut Story, export| (0..500).filter(|_| ask(s, ExportId(export), false).is_ok()).count();
        assert_eq!(asked(&mut s, 1), 100, "who is alone may have all");
        assert_eq!(ask(&mut s, A, false), Err(Errno::ENOLCK));
        assert_eq!(asked(&mut s, 2), 50, "another has its share all the same");
        let all: usize = 150 + (3..100).map(|export| asked(&mut s, export)).sum::<usize>();
        assert!(all <= 200 + 99 * FEW, "{all} locks of 99 clients");
        assert_eq!(asked(&mut s, 100), FEW, "nobody is kept out");
        assert!(s.locks.grant_new(Instant::ZERO, A, Resource::inode(Fid::ROOT), LockMode::Pr, 1, 9_999_999).is_none());
        for export in 1..=100 {
            s.locks.export_gone(Instant::ZERO, ExportId(export));
        }
        assert_eq!(asked(&mut s, 1), 100, "what was given back can be had");
    }

    #[test]
    fn record_locks_count_like_others() {
        let mut s = Story::new(50);
        let settings = Settings { locks_in_all_max: 100, ..s.locks.settings() };
        s.locks.set_settings(settings);
        let mut record = |export: ExportId, at: u64, mode: LockMode| {
            s.cookie += 1;
            let flock = Flock { owner: 1, start: 2 * at, end: 2 * at, ..Flock::default() };
            let resource = Resource { kind: ResourceKind::Flock as i32, ..Resource::inode(Fid::ROOT) };
            let request = EnqueueReq {
                resource,
                mode: mode as i32,
                cookie: s.cookie,
                policy: Some(Policy::Flock(flock)),
                ..EnqueueReq::default()
            };
            s.locks.enqueue(Instant::ZERO, export, &request, WaiterId(s.cookie))
        };
        let mut count = |export, mode| {
            (0..500).filter(|at| matches!(record(export, *at, mode), Enqueued::Granted(_) | Enqueued::Unlocked)).count()
        };
        assert_eq!((count(A, LockMode::Pr), count(B, LockMode::Pr)), (97, 47), "the file counts, too");
        assert_eq!(count(A, LockMode::Nl), 500, "giving back always works");
        assert_eq!(count(A, LockMode::Pr), 50);
    }

    #[test]
    fn who_does_not_listen_gets_no_more_but_others_do() {
        let mut s = Story::new(100);
        assert_eq!(s.get_many(A, 1000).len(), 125);
        assert_eq!(s.get_many(B, 1000).len(), 50, "its share");
        let settings = Settings { locks_max: 1000, ..s.locks.settings() };
        s.told();
        s.locks.set_settings(settings);
        assert_eq!(s.told(), [(A, 0)]);
        assert!(s.get(A).is_some());
    }
}
