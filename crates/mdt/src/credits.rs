//! Write-back credits: how many changes each client may have outstanding with metadata write-back.
//!
//! A client answers such a change before it sends it, so there must be space for it however full the store is by then. So
//! the target reserves space for each credit that it grants, and all credits together fit into half of the store's reserve.
//! When the free space outside the reserve runs short, the target grants no new credits, and every change becomes a request
//! that the program waits for.
//!
//! Each client gets a quarter of what the others leave, so with n active clients each gets 1/(n + 3) of all. A client that
//! has not used its credits for a while returns them, and gets new ones with the reply to its next change.

use crate::Mdt;
use proto::msg::ObjectRep;
use std::collections::{BTreeMap, BTreeSet};
use store::Space;
use target::{Cx, ExportId, Reply};

/// The most that the records of one change can cost on the medium, in bytes: entry, inode and index on different pages, each
/// of which splits.
const CHANGE_COST: u64 = 24 << 10;
/// The most credits of one client.
pub(crate) const CREDITS_MAX: u32 = 1024;

/// The credits of all clients.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// By client: those granted last, or the rest of an earlier, larger grant.
    by_client: BTreeMap<ExportId, u32>,
    /// The sum of all.
    all: u64,
    /// Clients that return credits, and accept new ones in replies to changes.
    shrinking: BTreeSet<ExportId>,
}

impl Credits {
    /// A client has sent `sent` changes and gets new credits: a part of what the others leave of `total`, so that some are
    /// left for the next client.
    fn renew(&mut self, export: ExportId, total: u64, sent: u32) -> u32 {
        let before = self.by_client.get(&export).copied().unwrap_or(0);
        let others = self.all - u64::from(before);
        let count = u32::try_from(total.saturating_sub(others) / 4).unwrap_or(u32::MAX).min(CREDITS_MAX);
        let now = count.max(before.saturating_sub(sent));
        self.by_client.insert(export, now);
        self.all = others + u64::from(now);
        count
    }

    /// A client claims credits that it had, perhaps before a restart. It gets them as far as `total` allows.
    fn claim(&mut self, export: ExportId, total: u64, claim: u32) {
        let before = self.by_client.get(&export).copied().unwrap_or(0);
        let others = self.all - u64::from(before);
        let most = u32::try_from(total.saturating_sub(others)).unwrap_or(u32::MAX);
        let now = before.max(claim.min(CREDITS_MAX).min(most));
        self.by_client.insert(export, now);
        self.all = others + u64::from(now);
    }

    /// Frees the credits of a client for others.
    fn take_back(&mut self, export: ExportId) {
        if let Some(before) = self.by_client.get_mut(&export) {
            self.all -= u64::from(core::mem::take(before));
        }
    }

    fn end(&mut self, export: ExportId) {
        self.shrinking.remove(&export);
        self.all -= u64::from(self.by_client.remove(&export).unwrap_or(0));
    }

    /// Whether the credits of a client cover this number of changes.
    pub(crate) fn cover(&self, export: ExportId, changes: usize) -> bool {
        self.by_client.get(&export).is_some_and(|count| changes <= *count as usize)
    }
}

/// The number of credits that the reserve covers.
fn in_reserve(space: &Space) -> u64 {
    space.reserve / 2 / CHANGE_COST
}

impl Mdt {
    /// A client has sent `sent` changes. Returns how many it may have outstanding from now on.
    pub(crate) fn grant_credits(&mut self, cx: &Cx<'_>, export: ExportId, sent: usize) -> u32 {
        let Some(space) = cx.space() else { return 0 };
        let total = if space.free < space.reserve { 0 } else { in_reserve(&space) };
        self.credits.renew(export, total, u32::try_from(sent).unwrap_or(u32::MAX))
    }

    /// A client that connects claims the credits that it had.
    pub(crate) fn claim_credits(&mut self, cx: &Cx<'_>, export: ExportId, claim: u32) {
        self.credits.claim(export, cx.space().map_or(u64::MAX, |space| in_reserve(&space)), claim);
    }

    /// Notes whether a client that connects returns credits that it does not need.
    pub(crate) fn credits_shrink(&mut self, export: ExportId, shrinks: bool) {
        if shrinks {
            self.credits.shrinking.insert(export);
        } else {
            self.credits.shrinking.remove(&export);
        }
    }

    /// A client has returned its credits.
    pub(crate) fn credits_returned(&mut self, export: ExportId) {
        self.credits.take_back(export);
    }

    /// Adds credits to the reply to a change that was a request of its own, for a client that uses metadata write-back and may
    /// have returned its own.
    pub(crate) fn with_credits(&mut self, cx: &Cx<'_>, reply: Reply) -> Reply {
        if cx.is_replay() || !self.credits.shrinking.contains(&cx.export()) {
            return reply;
        }
        let write_back_credits = self.grant_credits(cx, cx.export(), 0);
        if write_back_credits == 0 {
            reply
        } else {
            reply.and(&ObjectRep { write_back_credits, ..ObjectRep::default() })
        }
    }

    /// Drops the credits of a client that is gone.
    pub(crate) fn credits_end(&mut self, export: ExportId) {
        self.credits.end(export);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_granted_before_a_restart_is_granted_again() {
        let mut credits = Credits::default();
        credits.claim(ExportId(1), 1500, 1000);
        credits.claim(ExportId(2), 1500, 500);
        assert!(credits.cover(ExportId(1), 1000) && credits.cover(ExportId(2), 500));
        // A false claim gets no more than is left, and a client never gets less than it has.
        credits.claim(ExportId(3), 1500, 2000);
        credits.claim(ExportId(1), 1500, 2000);
        assert!(!credits.cover(ExportId(3), 1) && !credits.cover(ExportId(1), 1001));
        credits.claim(ExportId(1), 0, 0);
        assert!(credits.cover(ExportId(1), 1000));
        assert_eq!(credits.renew(ExportId(4), 2000, 0), 125);
        credits.claim(ExportId(5), 1 << 40, u32::MAX);
        assert!(
            credits.cover(ExportId(5), CREDITS_MAX as usize) && !credits.cover(ExportId(5), CREDITS_MAX as usize + 1)
        );
        (1..=5).for_each(|client| credits.end(ExportId(client)));
        assert_eq!(credits.all, 0);
    }

    #[test]
    fn the_credits_of_all_clients_fit_together_into_the_space() {
        let mut credits = Credits::default();
        let told: Vec<u32> = (1..=40).map(|client| credits.renew(ExportId(client), 5461, 0)).collect();
        assert_eq!(told[..4], [1024, 1024, 853, 640]);
        assert!(told.iter().map(|count| u64::from(*count)).sum::<u64>() <= 5461);
        // Space runs short: credits that were granted are kept until they are used.
        assert_eq!(credits.renew(ExportId(1), 0, 24), 0);
        assert!(credits.cover(ExportId(1), 1000) && !credits.cover(ExportId(1), 1001));
        assert_eq!(credits.renew(ExportId(1), 0, 1000), 0);
        assert!(!credits.cover(ExportId(1), 1) && !credits.cover(ExportId(99), 1));
        assert!(credits.renew(ExportId(40), 5461, 0) > told[39], "what one returns another can have");
        let sum = |credits: &Credits| credits.by_client.values().map(|count| u64::from(*count)).sum::<u64>();
        assert_eq!(credits.all, sum(&credits));
        (1..=50).for_each(|client| credits.end(ExportId(client)));
        assert_eq!((credits.all, credits.by_client.len()), (0, 0));
    }
}
