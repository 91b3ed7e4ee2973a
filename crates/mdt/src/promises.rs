//! Room that clients are promised for changes that they make behind their programs' backs.
//!
//! Such a change has been answered before it comes: there must be room for it, however full the store is by then. So clients
//! are told how many they may have outstanding, and all these together fit into half of what the store keeps in reserve. When
//! what is not in reserve gets short nobody is promised any more, and every change asks before it is answered.
//!
//! Each client may have a quarter of what the others leave: with n clients at work each comes to have 1/(n + 3) of all. Who has not used
//! his room for a while gives it back, and is promised anew with the answer to his next change.

use crate::Mdt;
use proto::msg::ObjectRep;
use std::collections::{BTreeMap, BTreeSet};
use store::Space;
use target::{Cx, ExportId, Reply};

/// What the records of one such change can cost on the medium, in bytes: entry, inode and index on pages of their own, each
/// split.
const CHANGE_COST: u64 = 24 << 10;
/// Most changes that one client is promised room for.
pub(crate) const PROMISE_MAX: u32 = 1024;

/// Changes that there is room for.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// By client: what it was told last, or what is left of what it was told before.
    by_client: BTreeMap<ExportId, u32>,
    /// The sum of these.
    all: u64,
    /// Clients that give room back, and take what answers to their changes offer.
    shrinking: BTreeSet<ExportId>,
}

impl Promises {
    /// A client has sent so many of its changes, and is promised anew: a part of what is left by the others, so that there is
    /// something left for the next one.
    fn renew(&mut self, export: ExportId, room: u64, sent: u32) -> u32 {
        let before = self.by_client.get(&export).copied().unwrap_or(0);
        let others = self.all - u64::from(before);
        let count = u32::try_from(room.saturating_sub(others) / 4).unwrap_or(u32::MAX).min(PROMISE_MAX);
        let now = count.max(before.saturating_sub(sent));
        self.by_client.insert(export, now);
        self.all = others + u64::from(now);
        count
    }

    /// A client says what it was promised, perhaps before a restart: that is promised again, as far as there is `room` for all.
    fn again(&mut self, export: ExportId, room: u64, claim: u32) {
        let before = self.by_client.get(&export).copied().unwrap_or(0);
        let others = self.all - u64::from(before);
        let most = u32::try_from(room.saturating_sub(others)).unwrap_or(u32::MAX);
        let now = before.max(claim.min(PROMISE_MAX).min(most));
        self.by_client.insert(export, now);
        self.all = others + u64::from(now);
    }

    /// What a client was promised is free for others.
    fn take_back(&mut self, export: ExportId) {
        if let Some(before) = self.by_client.get_mut(&export) {
            self.all -= u64::from(core::mem::take(before));
        }
    }

    fn end(&mut self, export: ExportId) {
        self.shrinking.remove(&export);
        self.all -= u64::from(self.by_client.remove(&export).unwrap_or(0));
    }

    /// Whether there is room for so many changes of a client, whatever others do.
    pub(crate) fn cover(&self, export: ExportId, changes: usize) -> bool {
        self.by_client.get(&export).is_some_and(|count| changes <= *count as usize)
    }
}

/// How many changes there is room for, however full the store is.
fn in_reserve(space: &Space) -> u64 {
    space.reserve / 2 / CHANGE_COST
}

impl Mdt {
    /// A client has sent so many changes: how many it may have outstanding from now on.
    pub(crate) fn promise(&mut self, cx: &Cx<'_>, export: ExportId, sent: usize) -> u32 {
        let Some(space) = cx.space() else { return 0 };
        let room = if space.free < space.reserve { 0 } else { in_reserve(&space) };
        self.promises.renew(export, room, u32::try_from(sent).unwrap_or(u32::MAX))
    }

    /// A client that connects says how many changes it was promised room for.
    pub(crate) fn promise_again(&mut self, cx: &Cx<'_>, export: ExportId, claim: u32) {
        self.promises.again(export, cx.space().map_or(u64::MAX, |space| in_reserve(&space)), claim);
    }

    /// Whether a client that connects gives back what it does not need.
    pub(crate) fn room_shrinks(&mut self, export: ExportId, shrinks: bool) {
        if shrinks {
            self.promises.shrinking.insert(export);
        } else {
            self.promises.shrinking.remove(&export);
        }
    }

    /// A client needs its room no more.
    pub(crate) fn take_room_back(&mut self, export: ExportId) {
        self.promises.take_back(export);
    }

    /// The answer to a change that was a request of its own: a client that makes others by metadata write-back learns for how many
    /// there is room now.
    pub(crate) fn with_room(&mut self, cx: &Cx<'_>, reply: Reply) -> Reply {
        if cx.is_replay() || !self.promises.shrinking.contains(&cx.export()) {
            return reply;
        }
        let batch_room = self.promise(cx, cx.export(), 0);
        if batch_room == 0 { reply } else { reply.and(&ObjectRep { batch_room, ..ObjectRep::default() }) }
    }

    /// A client is gone, and what it was promised with it.
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
        // Who claims what nobody promised gets no more than there is room for, and never less than it has.
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
        // Room gets short: what was promised before is kept until it was used.
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
