//! Commit on sharing: who changed what in groups that are not durable yet.
//!
//! If a client's change depends on another client's change that could still be lost, its reply waits until that one is
//! durable. So after a crash no client was told of something that hangs on what another client may fail to replay. The same
//! holds for a change of the same client in another slot that may still be without its answer: such a one is not replayed but
//! sent again, after the replays.

use dlm::ExportId;
use proto::{Tag, Xid};
use stdx::Map;

use crate::service::ShareKey;

#[derive(Clone, Debug)]
struct Touched {
    /// `None`: several.
    export: Option<ExportId>,
    by: (Tag, Xid),
    /// By which other slots of it before: changes of this key need not hang on each other.
    before: Vec<(Tag, Xid)>,
    group: u64,
}

impl Touched {
    /// In each slot the last change counts: the one before has its answer.
    fn again(&mut self, by: (Tag, Xid)) {
        let last = core::mem::replace(&mut self.by, by);
        self.before.retain(|(tag, _)| *tag != last.0);
        self.before.push(last);
        self.before.retain(|(tag, _)| *tag != by.0);
    }
}

/// The keys that uncommitted groups touched.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) off: bool,
    keys: Map<ShareKey, Touched>,
}

impl Sharing {
    /// The group that must be durable before a reply that depends on `key` may leave; 0 if none. `unanswered` says whether a
    /// change of the same export may be without its answer.
    pub(crate) fn depends(&self, key: ShareKey, export: ExportId, unanswered: impl Fn(Tag, Xid) -> bool) -> u64 {
        if self.off {
            return 0;
        }
        match self.keys.get(&key) {
            Some(touched) if touched.export != Some(export) => touched.group,
            Some(touched) if touched.before.iter().chain([&touched.by]).any(|(tag, xid)| unanswered(*tag, *xid)) => {
                touched.group
            }
            _ => 0,
        }
    }

    /// The request `by` of `export` changed `key` in `group`.
    pub(crate) fn changed(&mut self, key: ShareKey, export: ExportId, by: (Tag, Xid), group: u64) {
        // Also while it is off: it may be on again before the group is durable.
        let new = || Touched { export: Some(export), by, before: Vec::new(), group };
        let touched = self.keys.entry(key).or_insert_with(new);
        if touched.export != Some(export) {
            touched.export = None;
            touched.before = Vec::new();
        }
        match touched.export {
            Some(_) => touched.again(by),
            None => touched.by = by,
        }
        touched.group = group;
    }

    /// Everything up to `group` is durable.
    pub(crate) fn durable(&mut self, group: u64) {
        self.keys.retain(|_, touched| touched.group > group);
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
        sharing.changed(key, a, by, 5);
        assert_eq!(sharing.depends(key, a, answered), 0);
        assert_eq!(sharing.depends(key, a, |tag, xid| (tag, xid) == by), 5, "its own, but not answered yet");
        assert_eq!(sharing.depends(key, b, answered), 5);
        // One in another slot that came before is no better answered for that.
        sharing.changed(key, a, (Tag(2), Xid(12)), 5);
        assert_eq!(sharing.depends(key, a, |tag, xid| (tag, xid) == by), 5);
        sharing.changed(key, a, (Tag(1), Xid(13)), 5);
        assert_eq!(sharing.depends(key, a, |tag, xid| (tag, xid) == by), 0, "its slot was used again");
        sharing.changed(key, b, by, 6);
        assert_eq!(sharing.depends(key, b, answered), 6, "b's change hangs on a's, and either may be lost");
        sharing.off = true;
        assert_eq!(sharing.depends(key, b, answered), 0);
        sharing.changed(key, b, by, 7);
        sharing.off = false;
        assert_eq!(sharing.depends(key, a, answered), 7, "what was changed meanwhile can still be lost");
        sharing.durable(7);
        assert_eq!(sharing.depends(key, b, answered), 0);
    }
}
