//! What the kernel believes of a node: that it is there, its names, its attributes, how long it is.
//!
//! ```text
//!   names        becomes    when
//!   none         some       an answer allows the kernel to keep one
//!   some         none       it has to forget them, or has forgotten the node
//!   any          stale      it may not have forgotten them in time: what it comes to by a path may be something else
//!   stale        as before  it has looked the node up again, has it open, or has forgotten it
//!
//!   attributes   becomes    when
//!   none         kept       an answer allows the kernel to keep them
//!   kept         none       it has dropped them after the last such answer
//! ```

use bytes::Bytes;
use stdx::Instant;

use crate::api::KernelNames;

/// Names of one object that the kernel may keep at a time.
const NAMES_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct KernelView {
    /// References that it has.
    lookups: u64,
    /// Names that it may keep, each with its directory.
    names: KernelNames,
    /// See the module.
    stale: bool,
    /// Until then it comes back for what it has looked up.
    comes_back_until: Instant,
    /// It takes the file to be no longer than this, in bytes: the greatest size that it was told, or wrote to, since it cut the file.
    size: u64,
    /// How many answers allowed the kernel to cache attributes.
    shown: u32,
    /// The first so many of these allow nothing any more: the kernel was told to drop its attributes.
    dropped: u32,
}

impl KernelView {
    /// Whether it knows the node.
    pub(crate) fn knows(&self) -> bool {
        self.lookups > 0
    }

    /// It refers to the node once more. Whether it is the first reference.
    pub(crate) fn referenced(&mut self) -> bool {
        self.lookups += 1;
        self.lookups == 1
    }

    /// It gives references back, as many as it says. Whether those were the last.
    pub(crate) fn forgotten(&mut self, count: u64) -> bool {
        let knew = self.knows();
        self.lookups = self.lookups.saturating_sub(count);
        if !self.knows() {
            self.names.clear();
            self.stale = false;
        }
        knew && !self.knows()
    }

    /// Names that it may keep.
    pub(crate) fn names(&self) -> &KernelNames {
        &self.names
    }

    /// It may keep this name. Gives one that it has to forget for that, since what is not remembered here would never be called back.
    pub(crate) fn name(&mut self, parent: u64, name: &Bytes) -> Option<(u64, Bytes)> {
        if self.is_named(parent, name) {
            return None;
        }
        self.names.push((parent, name.clone()));
        (self.names.len() > NAMES_MAX).then(|| self.names.remove(0))
    }

    /// Whether it may keep this name.
    pub(crate) fn is_named(&self, parent: u64, name: &Bytes) -> bool {
        self.names.iter().any(|(p, n)| *p == parent && n == name)
    }

    /// This name leads to the node no more.
    pub(crate) fn unname(&mut self, parent: u64, name: &Bytes) {
        self.names.retain(|(p, n)| *p != parent || n != name);
    }

    /// It moves its entry of a name to another. False: it has none.
    pub(crate) fn rename(&mut self, old: (u64, &Bytes), new: (u64, &Bytes)) -> bool {
        let known = self.names.iter_mut().find(|(parent, name)| *parent == old.0 && name == old.1);
        known.map(|known| *known = (new.0, new.1.clone())).is_some()
    }

    /// The names that it has to forget.
    pub(crate) fn take_names(&mut self) -> KernelNames {
        core::mem::take(&mut self.names)
    }

    /// It may not have forgotten them in time.
    pub(crate) fn names_in_doubt(&mut self) {
        self.stale = self.knows();
    }

    /// It has come to the node by a name just now, or has it open.
    pub(crate) fn came(&mut self) {
        self.stale = false;
    }

    /// It will come back until then for what it has looked up, and must not be told to look again.
    pub(crate) fn comes_back(&mut self, until: Instant) {
        self.comes_back_until = until;
    }

    /// Whether a path by which it comes to the node may lead to something else.
    pub(crate) fn may_be_wrong(&self, now: Instant) -> bool {
        self.stale && now > self.comes_back_until
    }

    /// An answer allows it to keep attributes.
    pub(crate) fn shown(&mut self) {
        self.shown = self.shown.wrapping_add(1);
    }

    /// How many answers did so: what [`KernelView::dropped`] wants to know.
    pub(crate) fn times_shown(&self) -> u32 {
        self.shown
    }

    /// It has dropped attributes after so many answers.
    pub(crate) fn dropped(&mut self, times: u32) {
        self.dropped = self.dropped.max(times);
    }

    /// Whether it may have attributes.
    pub(crate) fn has_attributes(&self) -> bool {
        self.shown != self.dropped
    }

    /// How long it takes the file to be at most, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// It was told of so many bytes, or wrote up to there.
    pub(crate) fn reached(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    /// It has cut the file.
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
        view.unname(2, &name("x"));
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
        assert!(doubted().may_be_wrong(now));
        let mut unknown = KernelView::default();
        unknown.names_in_doubt();
        assert!(!unknown.may_be_wrong(now), "it does not know the node");
        let mut view = doubted();
        view.came();
        assert!(!view.may_be_wrong(now));
        let mut view = doubted();
        view.comes_back(now);
        assert!(!view.may_be_wrong(now) && view.may_be_wrong(Instant(11)), "for a while it is not asked to look again");
        let mut view = doubted();
        view.forgotten(1);
        view.referenced();
        assert!(!view.may_be_wrong(now));
    }

    #[test]
    fn attributes_are_there_until_they_are_dropped_after_the_last_answer() {
        let mut view = KernelView::default();
        assert!(!view.has_attributes());
        view.shown();
        let asked = view.times_shown();
        view.shown();
        view.dropped(asked);
        assert!(view.has_attributes(), "an answer has come since that was asked");
        view.dropped(view.times_shown());
        view.dropped(asked);
        assert!(!view.has_attributes());
        view.reached(10);
        view.reached(7);
        assert_eq!(view.size(), 10);
        view.cut(3);
        assert_eq!(view.size(), 3);
    }
}
