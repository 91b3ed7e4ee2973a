//! How many locks a target holds in all, and who is asked to keep fewer.
//!
//! Memory is bounded by a setting, not by what clients cache. Beyond [`super::Settings::locks_max`] each export that holds more
//! than its share is told how many unused locks to keep ([`LockEvent::Limit`]): its longest unused ones go, gathered, and
//! nobody waits for them. The share of an export is the greater of an equal part and what it holds now, in proportion: who
//! holds little is left alone, and a client that is alone may have everything.
//!
//! ```text
//!   100 locks are too many; A holds 88, B 14, C 0, two exports hold any
//!   N = 102    A: max(50, 88 * 100 / 102) = 86: told      B: max(50, 13): not told
//! ```
//!
//! Clients that do not listen are held by [`Locks::is_full`]: well beyond the limit an intent of an export that has its
//! share gets no lock. It works all the same, and caches nothing. A lock that is asked for by itself is granted up to
//! [`super::Settings::locks_per_export_max`]: an operation needs it.

use super::{LockEvent, Locks};
use crate::ExportId;

/// A limit is looked at again when this part of it has come on top.
const STEP: usize = 64;

/// What the locks of a target are limited to, as far as it was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    /// With so many locks it is looked at again.
    look_at: usize,
    /// Exports that were told a limit.
    told: usize,
}

impl Locks {
    /// A lock was granted.
    #[inline]
    pub(super) fn check_limit(&mut self) {
        if self.locks.len() > self.settings.locks_max.max(self.limit.look_at) {
            self.share_out();
        }
    }

    /// Tells those who hold more than their share.
    fn share_out(&mut self) {
        let (all, max) = (self.locks.len(), self.settings.locks_max);
        self.limit.look_at = all + max.div_ceil(STEP);
        let mut holders: Vec<(ExportId, u32)> = self
            .exports
            .iter()
            .filter(|(_, state)| state.granted > 0)
            .map(|(id, state)| (*id, state.granted))
            .collect();
        holders.sort_unstable();
        // A step below the limit, so that this is not done again at once.
        let goal = (max - max / STEP) as u64;
        for &(export, granted) in &holders {
            let equal = goal / holders.len() as u64;
            let share = (u64::from(granted) * goal / all as u64).max(equal).max(1) as u32;
            if granted > share {
                self.tell_limit(export, share);
            }
        }
    }

    fn tell_limit(&mut self, export: ExportId, locks: u32) {
        let Some(state) = self.exports.get_mut(&export) else { return };
        if state.limit == 0 {
            self.limit.told += 1;
        }
        state.limit = locks;
        stdx::mark!("dlm.limit.told");
        self.events.push_back(LockEvent::Limit { export, locks });
    }

    /// There is room again: who was told a limit is told that there is none. It is shared out anew when it is reached.
    pub(super) fn lift_limits(&mut self) {
        self.limit.look_at = 0;
        if self.limit.told == 0 {
            return;
        }
        let mut told: Vec<ExportId> =
            self.exports.iter().filter(|(_, state)| state.limit != 0).map(|(id, _)| *id).collect();
        told.sort_unstable();
        for export in told {
            if let Some(state) = self.exports.get_mut(&export) {
                state.limit = 0;
                self.events.push_back(LockEvent::Limit { export, locks: 0 });
            }
        }
        self.limit.told = 0;
    }

    /// An export with a limit is gone.
    pub(super) fn limit_gone(&mut self, limit: u32) {
        self.limit.told -= usize::from(limit != 0);
        self.lift_limits();
    }

    /// An export is connected again: what it was told may be lost.
    pub(super) fn tell_limit_again(&mut self, export: ExportId) {
        if let Some(state) = self.exports.get(&export)
            && state.limit != 0
        {
            self.events.push_back(LockEvent::Limit { export, locks: state.limit });
        }
    }

    /// Whether an export gets no locks beside what it asks for: all together have far too many, and it has its share.
    pub(super) fn is_full(&self, export: ExportId) -> bool {
        let max = self.settings.locks_max;
        if self.locks.len() < max.saturating_add(max / 4) {
            return false;
        }
        let share = max / self.exports.len().max(1);
        self.exports.get(&export).is_some_and(|state| state.granted as usize >= share)
    }
}

#[cfg(test)]
mod tests {
    use proto::Fid;
    use proto::msg::{CancelReq, LockGrant, LockMode, Resource, bits};
    use stdx::Instant;

    use super::*;
    use crate::server::Settings;

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

        /// A lock on an object of its own, as an intent gets it.
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

        /// Limits that were told.
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
        // It does as it was told, and stays below.
        s.cancel(A, &[&many[..], &[last]].concat());
        s.get_many(A, 50);
        assert_eq!(s.told(), []);
        // A client alone may have everything; what it was told is told again when it was away.
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
        assert!(stdx::marks::count("dlm.limit.told") > 0);
    }

    /// A place in an [`Index`](stdx::Index): its four bytes and the control byte, in a table that is half full.
    const PLACE: usize = 10;

    #[test]
    fn a_lock_takes_no_more_memory_than_is_counted_for_it() {
        let alone = size_of::<Option<crate::server::Lock>>() + size_of::<Option<crate::server::Res>>() + 2 * PLACE;
        assert!(alone <= crate::server::LOCK_BYTES * 3 / 4, "{alone} bytes: a lock, its resource, the way to both");
        // Of many on one resource, there is one resource, and each lock has a place in two trees.
        let in_crowd = size_of::<Option<crate::server::Lock>>() + PLACE + crate::server::crowd::LOCK_BYTES;
        assert!(in_crowd <= crate::server::LOCK_BYTES * 3 / 4, "{in_crowd} bytes");
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
