//! Commit on sharing: who changed what in groups that are not durable yet.
//!
//! If a client's change depends on another client's change that could still be lost, its reply waits until that one is
//! durable. So after a crash no client was told of something that hangs on what another client may fail to replay.

use dlm::ExportId;
use stdx::Map;

use crate::service::ShareKey;

#[derive(Clone, Copy, Debug)]
struct Touched {
    /// `None`: several.
    export: Option<ExportId>,
    group: u64,
}

/// The keys that uncommitted groups touched.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) off: bool,
    keys: Map<ShareKey, Touched>,
}

impl Sharing {
    /// The group that must be durable before a reply that depends on `key` may leave; 0 if none.
    pub(crate) fn depends(&self, key: ShareKey, export: ExportId) -> u64 {
        if self.off {
            return 0;
        }
        match self.keys.get(&key) {
            Some(touched) if touched.export != Some(export) => touched.group,
            _ => 0,
        }
    }

    /// `export` changed `key` in `group`.
    pub(crate) fn changed(&mut self, key: ShareKey, export: ExportId, group: u64) {
        if self.off {
            return;
        }
        let touched = self.keys.entry(key).or_insert(Touched { export: Some(export), group });
        if touched.export != Some(export) {
            touched.export = None;
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
        assert_eq!(sharing.depends(key, a), 0);
        sharing.changed(key, a, 5);
        assert_eq!(sharing.depends(key, a), 0);
        assert_eq!(sharing.depends(key, b), 5);
        sharing.changed(key, b, 6);
        assert_eq!(sharing.depends(key, b), 6, "b's change hangs on a's, and either may be lost");
        sharing.durable(6);
        assert_eq!(sharing.depends(key, b), 0);
    }
}
