//! What the kernel knows of a node: its existence, names, attributes and size.
//!
//! ```text
//!   names        becomes    when
//!   none         some       an answer allows the kernel to keep one
//!   some         none       the kernel has to drop them, or has forgotten the node
//!   any          stale      the kernel may not have dropped them in time: a path to the node may lead elsewhere by now
//!   stale        as before  the kernel has looked the node up again, has it open, or has forgotten it
//!
//!   attributes   becomes    when
//!   none         kept       an answer allows the kernel to keep them
//!   kept         none       the kernel has dropped them after the last such answer
//! ```

use bytes::Bytes;
use stdx::Instant;

use crate::api::KernelNames;

/// Names of one object that the kernel may keep at a time.
const NAMES_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct KernelView {
    /// References that the kernel holds.
    lookups: u64,
    /// Names that the kernel may keep, each with its directory.
    names: KernelNames,
    /// See the module.
    stale: bool,
    /// Until then the kernel comes back for what it has looked up.
    returns_until: Instant,
    /// The kernel assumes that the file has at most this size, in bytes: the greatest size that it was sent, or wrote
    /// to, since it truncated the file.
    size: u64,
    /// Answers that allowed the kernel to cache attributes.
    sent: u32,
    /// The first of these answers, up to this count, are void: the kernel has dropped its attributes since.
    dropped: u32,
}

impl KernelView {
    /// Whether the kernel knows the node.
    pub(crate) fn knows(&self) -> bool {
        self.lookups > 0
    }

    /// Counts a reference. Returns whether it is the first.
    pub(crate) fn referenced(&mut self) -> bool {
        self.lookups += 1;
        self.lookups == 1
    }

    /// Takes `count` references back. Returns whether they were the last.
    pub(crate) fn forgotten(&mut self, count: u64) -> bool {
        let knew = self.knows();
        self.lookups = self.lookups.saturating_sub(count);
        if !self.knows() {
            self.names.clear();
            self.stale = false;
        }
        knew && !self.knows()
    }

    /// Names that the kernel may keep.
    pub(crate) fn names(&self) -> &KernelNames {
        &self.names
    }

    /// The kernel may keep this name. Returns one that it has to drop instead, because a name that is not remembered
    /// here would never be invalidated.
    pub(crate) fn name(&mut self, parent: u64, name: &Bytes) -> Option<(u64, Bytes)> {
        if self.is_named(parent, name) {
            return None;
        }
        self.names.push((parent, name.clone()));
        (self.names.len() > NAMES_MAX).then(|| self.names.remove(0))
    }

    /// Whether the kernel may keep this name.
    pub(crate) fn is_named(&self, parent: u64, name: &Bytes) -> bool {
        self.names.iter().any(|(p, n)| *p == parent && n == name)
    }

    /// This name no longer leads to the node.
    pub(crate) fn remove_name(&mut self, parent: u64, name: &Bytes) {
        self.names.retain(|(p, n)| *p != parent || n != name);
    }

    /// The kernel moves its entry from one name to another. False: it has none.
    pub(crate) fn rename(&mut self, old: (u64, &Bytes), new: (u64, &Bytes)) -> bool {
        let known = self.names.iter_mut().find(|(parent, name)| *parent == old.0 && name == old.1);
        known.map(|known| *known = (new.0, new.1.clone())).is_some()
    }

    /// Takes the names that the kernel has to drop.
    pub(crate) fn take_names(&mut self) -> KernelNames {
        core::mem::take(&mut self.names)
    }

    /// The kernel may not have dropped its names in time.
    pub(crate) fn names_in_doubt(&mut self) {
        self.stale = self.knows();
    }

    /// The kernel has just reached the node by a name, or has it open.
    pub(crate) fn looked_up(&mut self) {
        self.stale = false;
    }

    /// Until then the kernel comes back for what it has looked up, and must not be sent back to look again.
    pub(crate) fn expect_return(&mut self, until: Instant) {
        self.returns_until = until;
    }

    /// Whether a path by which the kernel reaches the node may lead elsewhere by now.
    pub(crate) fn may_be_stale(&self, now: Instant) -> bool {
        self.stale && now > self.returns_until
    }

    /// An answer allows the kernel to keep attributes.
    pub(crate) fn attributes_sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// The number of such answers, as [`KernelView::dropped`] takes it.
    pub(crate) fn times_sent(&self) -> u32 {
        self.sent
    }

    /// The kernel has dropped its attributes after this many answers.
    pub(crate) fn dropped(&mut self, times: u32) {
        self.dropped = self.dropped.max(times);
    }

    /// Whether the kernel may have attributes.
    pub(crate) fn has_attributes(&self) -> bool {
        self.sent != self.dropped
    }

    /// The size that the kernel assumes at most, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The kernel was sent this size, or wrote up to there.
    pub(crate) fn reached(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    /// The kernel has truncated the file.
    pub(crate) fn cut(&mut self, size: u64) {
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_name_is_kept_moved_and_forgotten() {
        let mut view = KernelView::default();
        assert!(view.referenced() && !view.referenced());
        assert_eq!(view.name(1, &name("a")), None);
        assert_eq!(view.name(1, &name("a")), None, "twice is once");
        assert!(view.rename((1, &name("a")), (2, &name("b"))) && !view.rename((1, &name("a")), (2, &name("c"))));
        assert!(view.is_named(2, &name("b")) && !view.is_named(1, &name("a")));
        view.remove_name(2, &name("x"));
        assert_eq!(view.names().len(), 1);
        for number in 0..NAMES_MAX as u64 - 1 {
            assert_eq!(view.name(number, &name("n")), None);
        }
        assert_eq!(view.name(99, &name("n")), Some((2, name("b"))), "the first is not remembered any more");
        assert_eq!(view.take_names().len(), NAMES_MAX);
        assert!(view.names().is_empty());
        view.name(1, &name("a"));
        assert!(!view.forgotten(1) && view.forgotten(7) && !view.forgotten(1));
        assert!(view.names().is_empty());
    }

    /// Stale and not, known and not, with everything that can happen.
    #[test]
    fn a_walk_is_sent_back_only_where_its_path_may_be_wrong() {
        let now = Instant(10);
        let doubted = || {
            let mut view = KernelView::default();
            view.referenced();
            view.names_in_doubt();
            view
        };
        assert!(doubted().may_be_stale(now));
        let mut unknown = KernelView::default();
        unknown.names_in_doubt();
        assert!(!unknown.may_be_stale(now), "it does not know the node");
        let mut view = doubted();
        view.looked_up();
        assert!(!view.may_be_stale(now));
        let mut view = doubted();
        view.expect_return(now);
        assert!(!view.may_be_stale(now) && view.may_be_stale(Instant(11)), "for a while it is not asked to look again");
        let mut view = doubted();
        view.forgotten(1);
        view.referenced();
        assert!(!view.may_be_stale(now));
    }

    #[test]
    fn attributes_stay_until_dropped_after_the_last_answer() {
        let mut view = KernelView::default();
        assert!(!view.has_attributes());
        view.attributes_sent();
        let asked = view.times_sent();
        view.attributes_sent();
        view.dropped(asked);
        assert!(view.has_attributes(), "an answer was sent after the invalidation");
        view.dropped(view.times_sent());
        view.dropped(asked);
        assert!(!view.has_attributes());
        view.reached(10);
        view.reached(7);
        assert_eq!(view.size(), 10);
        view.cut(3);
        assert_eq!(view.size(), 3);
    }
}
