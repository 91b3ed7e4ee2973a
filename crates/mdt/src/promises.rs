//! Promised room: how many changes each client may have outstanding with metadata write-back.
//!
//! A client answers such a change before it sends it, so there must be space for it however full the store is by then. So
//! the target promises each client room for a number of changes, and all promises together fit into half of the store's
//! reserve. When the free space outside the reserve runs short, the target makes no new promises, and every change becomes
//! a request that the program waits for.
//!
//! Each client gets a quarter of what the others leave, so with n active clients each gets 1/(n + 3) of all. A client that
//! has not used its room for a while gives it back, and gets a new promise with the reply to its next change.

use crate::Mdt;
use proto::msg::ObjectRep;
use std::collections::{BTreeMap, BTreeSet};
use store::Space;
use target::{Cx, ExportId, Reply};

/// The most that the records of one change can cost on the medium, in bytes: entry, inode and index on different pages, each
/// of which splits.
const CHANGE_COST: u64 = 24 << 10;
/// The most changes that one client is promised room for.
pub(crate) const PROMISE_MAX: u32 = 1024;

/// The promises to all clients.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// By client: the last promise, or the rest of an earlier, larger one.
    by_client: BTreeMap<ExportId, u32>,
    /// The sum of all promises.
    all: u64,
    /// Clients that give room back, and accept promises in replies to changes.
    shrinking: BTreeSet<ExportId>,
}

impl Promises {
    /// A client has sent `sent` changes and gets a new promise: a part of what the others leave, so that some is left for the
    /// next client.
    fn renew(&mut self, export: ExportId, room: u64, sent: u32) -> u32 {
        let before = self.by_client.get(&export).copied().unwrap_or(0);
        let others = self.all - u64::from(before);
        let count = u32::try_from(room.saturating_sub(others) / 4).unwrap_or(u32::MAX).min(PROMISE_MAX);
        let now = count.max(before.saturating_sub(sent));
        self.by_client.insert(export, now);
        self.all = others + u64::from(now);
        count
    }

    /// A client claims an earlier promise, perhaps from before a restart. It is renewed as far as `room` for all clients allows.
    fn again(&mut self, export: ExportId, room: u64, claim: u32) {
        let before = self.by_client.get(&export).copied().unwrap_or(0);
        let others = self.all - u64::from(before);
        let most = u32::try_from(room.saturating_sub(others)).unwrap_or(u32::MAX);
        let now = before.max(claim.min(PROMISE_MAX).min(most));
        self.by_client.insert(export, now);
        self.all = others + u64::from(now);
    }

    /// Frees the promise to a client for others.
    fn take_back(&mut self, export: ExportId) {
        if let Some(before) = self.by_client.get_mut(&export) {
            self.all -= u64::from(core::mem::take(before));
        }
    }

    fn end(&mut self, export: ExportId) {
        self.shrinking.remove(&export);
        self.all -= u64::from(self.by_client.remove(&export).unwrap_or(0));
    }

    /// Whether the promise to a client covers this number of changes.
    pub(crate) fn cover(&self, export: ExportId, changes: usize) -> bool {
        self.by_client.get(&export).is_some_and(|count| changes <= *count as usize)
    }
}

/// The number of changes that the reserve has room for.
fn in_reserve(space: &Space) -> u64 {
    space.reserve / 2 / CHANGE_COST
}

impl Mdt {
    /// A client has sent `sent` changes. Returns how many it may have outstanding from now on.
    pub(crate) fn promise(&mut self, cx: &Cx<'_>, export: ExportId, sent: usize) -> u32 {
        let Some(space) = cx.space() else { return 0 };
        let room = if space.free < space.reserve { 0 } else { in_reserve(&space) };
        self.promises.renew(export, room, u32::try_from(sent).unwrap_or(u32::MAX))
    }

    /// A client that connects claims an earlier promise.
    pub(crate) fn promise_again(&mut self, cx: &Cx<'_>, export: ExportId, claim: u32) {
        self.promises.again(export, cx.space().map_or(u64::MAX, |space| in_reserve(&space)), claim);
    }

    /// Notes whether a client that connects gives back room that it does not need.
    pub(crate) fn room_shrinks(&mut self, export: ExportId, shrinks: bool) {
        if shrinks {
            self.promises.shrinking.insert(export);
        } else {
            self.promises.shrinking.remove(&export);
        }
    }

    /// A client has given back its room.
    pub(crate) fn take_room_back(&mut self, export: ExportId) {
        self.promises.take_back(export);
    }

    /// Adds a promise to the reply to a change that was a request of its own, for a client that uses metadata write-back and may
    /// have given back its room.
    pub(crate) fn with_room(&mut self, cx: &Cx<'_>, reply: Reply) -> Reply {
        if cx.is_replay() || !self.promises.shrinking.contains(&cx.export()) {
            return reply;
        }
        let batch_room = self.promise(cx, cx.export(), 0);
        if batch_room == 0 { reply } else { reply.and(&ObjectRep { batch_room, ..ObjectRep::default() }) }
    }

    /// Drops the promise to a client that is gone.
    pub(crate) fn promise_ends(&mut self, export: ExportId) {
        self.promises.end(export);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_promised_before_a_restart_is_promised_again() {
        let mut promises = Promises::default();
        promises.again(ExportId(1), 1500, 1000);
        promises.again(ExportId(2), 1500, 500);
        assert!(promises.cover(ExportId(1), 1000) && promises.cover(ExportId(2), 500));
        // A false claim gets no more than there is room for, and a client never gets less than it has.
        promises.again(ExportId(3), 1500, 2000);
        promises.again(ExportId(1), 1500, 2000);
        assert!(!promises.cover(ExportId(3), 1) && !promises.cover(ExportId(1), 1001));
        promises.again(ExportId(1), 0, 0);
        assert!(promises.cover(ExportId(1), 1000));
        assert_eq!(promises.renew(ExportId(4), 2000, 0), 125);
        promises.again(ExportId(5), 1 << 40, u32::MAX);
        assert!(
            promises.cover(ExportId(5), PROMISE_MAX as usize) && !promises.cover(ExportId(5), PROMISE_MAX as usize + 1)
        );
        (1..=5).for_each(|client| promises.end(ExportId(client)));
        assert_eq!(promises.all, 0);
    }

    #[test]
    fn promises_to_all_clients_together_are_kept_with_the_room_that_there_is() {
        let mut promises = Promises::default();
        let told: Vec<u32> = (1..=40).map(|client| promises.renew(ExportId(client), 5461, 0)).collect();
        assert_eq!(told[..4], [1024, 1024, 853, 640]);
        assert!(told.iter().map(|count| u64::from(*count)).sum::<u64>() <= 5461);
        // Room runs short: earlier promises are kept until they are used.
        assert_eq!(promises.renew(ExportId(1), 0, 24), 0);
        assert!(promises.cover(ExportId(1), 1000) && !promises.cover(ExportId(1), 1001));
        assert_eq!(promises.renew(ExportId(1), 0, 1000), 0);
        assert!(!promises.cover(ExportId(1), 1) && !promises.cover(ExportId(99), 1));
        assert!(promises.renew(ExportId(40), 5461, 0) > told[39], "what one gives back another can have");
        let sum = |promises: &Promises| promises.by_client.values().map(|count| u64::from(*count)).sum::<u64>();
        assert_eq!(promises.all, sum(&promises));
        (1..=50).for_each(|client| promises.end(ExportId(client)));
        assert_eq!((promises.all, promises.by_client.len()), (0, 0));
    }
}
