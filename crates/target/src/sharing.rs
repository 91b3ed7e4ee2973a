//! Commit on sharing: tracks who changed what in groups that are not durable yet.
//!
//! If a client's change depends on another client's change that could still be lost, its reply waits until that one is
//! durable. So after a crash no client has an answer that depends on a change which another client may fail to replay.
//! The same applies to a change of the same client in another slot that may still be unanswered, since that one is not
//! replayed but resent, after the replays. (Lustre has the same scheme for its clients.)

use std::collections::VecDeque;

use dlm::ExportId;
use proto::{Tag, Xid};
use stdx::Table;

use crate::service::ShareKey;

/// Tables with capacity for more keys than this are not reused for the next group.
const KEEP_KEYS: usize = 1 << 18;

/// A request that changed something.
#[derive(Clone, Copy, Debug)]
struct Change {
    export: ExportId,
    by: (Tag, Xid),
}

/// Changes of a key. Most keys are changed once; the table is small for these.
#[derive(Clone, Debug)]
struct Touched {
    /// Index of the last change among the changes of the group.
    last: u32,
    others: Option<Box<Others>>,
}

/// Earlier changes of a key.
#[derive(Clone, Debug)]
enum Others {
    /// By another export.
    Exports,
    /// By other slots of the same export. They need not depend on each other. The last change of each slot counts,
    /// because the ones before it were answered.
    Slots(Vec<(Tag, Xid)>),
}

/// Changes in one group.
#[derive(Debug, Default)]
struct Group {
    number: u64,
    changes: Vec<Change>,
    keys: Table<(ShareKey, Touched)>,
}

/// Changes of all uncommitted groups.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) off: bool,
    /// By number. The newest group with a key has all earlier changes of the key.
    groups: VecDeque<Group>,
    /// An empty group whose allocations are reused.
    spare: Option<Group>,
}

impl Group {
    fn find(&self, key: ShareKey) -> Option<(&Touched, &Change)> {
        // A key is a hash.
        let (_, touched) = self.keys.find(key.0, |(known, _)| *known == key)?;
        Some((touched, &self.changes[touched.last as usize]))
    }

    fn put(&mut self, key: ShareKey, touched: Touched) {
        match self.keys.find_mut(key.0, |(known, _)| *known == key) {
            Some((_, known)) => *known = touched,
            None => drop(self.keys.insert_unique(key.0, (key, touched), |(key, _)| key.0)),
        }
    }
}

/// The earlier changes of a key, as seen by a new change.
fn others_of(touched: &Touched, last: &Change, change: &Change) -> Option<Box<Others>> {
    let before = match touched.others.as_deref() {
        _ if last.export != change.export => return Some(Box::new(Others::Exports)),
        Some(Others::Exports) => return touched.others.clone(),
        Some(Others::Slots(before)) => &before[..],
        None => &[],
    };
    let (slot, same) = (change.by.0, last.by.0);
    let mut slots: Vec<(Tag, Xid)> = before.iter().copied().filter(|(tag, _)| *tag != slot && *tag != same).collect();
    if same != slot {
        slots.push(last.by);
    }
    (!slots.is_empty()).then(|| Box::new(Others::Slots(slots)))
}

impl Sharing {
    fn find(&self, key: ShareKey) -> Option<(u64, &Touched, &Change)> {
        self.groups.iter().rev().find_map(|group| {
            let (touched, last) = group.find(key)?;
            Some((group.number, touched, last))
        })
    }

    /// The group that must be durable before a reply that depends on `key` is sent; 0 if none. `unanswered` says
    /// whether a change of the same export may be unanswered.
    pub(crate) fn depends(&self, key: ShareKey, export: ExportId, unanswered: impl Fn(Tag, Xid) -> bool) -> u64 {
        if self.off {
            return 0;
        }
        let Some((group, touched, last)) = self.find(key) else { return 0 };
        let unanswered = |by: &(Tag, Xid)| unanswered(by.0, by.1);
        let depends = match touched.others.as_deref() {
            _ if last.export != export => true,
            Some(Others::Exports) => true,
            Some(Others::Slots(before)) => before.iter().any(unanswered) || unanswered(&last.by),
            None => unanswered(&last.by),
        };
        if depends { group } else { 0 }
    }

    /// The request `by` of `export` changed `keys` in `group`.
    pub(crate) fn changed(&mut self, keys: &[ShareKey], export: ExportId, by: (Tag, Xid), group: u64) {
        // Recorded even while sharing is off, because it may be turned on before the group is durable.
        if keys.is_empty() {
            return;
        }
        let change = Change { export, by };
        if self.groups.back().is_none_or(|newest| newest.number < group) {
            let new = self.spare.take().unwrap_or_default();
            self.groups.push_back(Group { number: group, ..new });
        }
        let Some(newest) = self.groups.back_mut() else { return };
        let last = newest.changes.len() as u32;
        newest.changes.push(change);
        for key in keys {
            let others = self.find(*key).and_then(|(_, touched, last)| others_of(touched, last, &change));
            if let Some(newest) = self.groups.back_mut() {
                newest.put(*key, Touched { last, others });
            }
        }
    }

    /// All groups up to `group` are durable.
    pub(crate) fn durable(&mut self, group: u64) {
        while self.groups.front().is_some_and(|oldest| oldest.number <= group) {
            let Some(mut done) = self.groups.pop_front() else { return };
            if done.keys.capacity() <= KEEP_KEYS {
                done.keys.clear();
                done.changes.clear();
                self.spare = Some(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_others_uncommitted_changes_hold_a_reply() {
        let (a, b, key) = (ExportId(1), ExportId(2), ShareKey(7));
        let mut sharing = Sharing::default();
        let by = (Tag(1), Xid(9));
        let answered = |_, _| false;
        assert_eq!(sharing.depends(key, a, answered), 0);
        sharing.changed(&[key], a, by, 5);
        assert_eq!(sharing.depends(key, a, answered), 0);
        assert_eq!(sharing.depends(key, a, |tag, xid| (tag, xid) == by), 5, "its own, but not answered yet");
        assert_eq!(sharing.depends(key, b, answered), 5);
        // A change in another slot says nothing about an earlier one.
        sharing.changed(&[key], a, (Tag(2), Xid(12)), 5);
        assert_eq!(sharing.depends(key, a, |tag, xid| (tag, xid) == by), 5);
        sharing.changed(&[key], a, (Tag(1), Xid(13)), 5);
        assert_eq!(sharing.depends(key, a, |tag, xid| (tag, xid) == by), 0, "its slot was used again");
        sharing.changed(&[key], b, by, 6);
        assert_eq!(sharing.depends(key, b, answered), 6, "b's change hangs on a's, and either may be lost");
        sharing.off = true;
        assert_eq!(sharing.depends(key, b, answered), 0);
        sharing.changed(&[key], b, by, 7);
        sharing.off = false;
        assert_eq!(sharing.depends(key, a, answered), 7, "what was changed meanwhile can still be lost");
        sharing.durable(7);
        assert_eq!(sharing.depends(key, b, answered), 0);
    }

    #[test]
    fn what_an_older_group_touched_counts_until_the_newest_that_touched_it_is_durable() {
        let (a, b, key, other) = (ExportId(1), ExportId(2), ShareKey(7), ShareKey(8));
        let mut sharing = Sharing::default();
        let (first, second) = ((Tag(1), Xid(9)), (Tag(2), Xid(12)));
        let lacks = |by: (Tag, Xid)| move |tag, xid| (tag, xid) == by;
        // A batch names a key several times.
        sharing.changed(&[key, other, key], a, first, 5);
        sharing.changed(&[key], a, second, 6);
        assert_eq!((sharing.depends(key, b, lacks(first)), sharing.depends(other, b, lacks(first))), (6, 5));
        sharing.durable(5);
        assert_eq!(sharing.depends(other, b, lacks(first)), 0);
        assert_eq!(sharing.depends(key, a, lacks(first)), 6, "the change before, in another slot, has no answer");
        assert_eq!(sharing.depends(key, a, lacks((Tag(3), Xid(1)))), 0);
        // Allocations of a durable group are reused, without their contents.
        sharing.changed(&[ShareKey(9)], b, first, 7);
        assert_eq!((sharing.depends(other, a, lacks(first)), sharing.depends(ShareKey(9), a, lacks(first))), (0, 7));
        sharing.changed(&[ShareKey(9)], a, second, 8);
        sharing.durable(7);
        assert_eq!(sharing.depends(ShareKey(9), a, lacks((Tag(3), Xid(1)))), 8, "b's change came before a's");
        sharing.durable(8);
        assert_eq!(sharing.depends(ShareKey(9), b, lacks(first)), 0);
    }
}
