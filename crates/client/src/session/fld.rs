//! FID location database: the metadata target of each FID sequence, as the configuration publishes it.

use proto::Fid;
use proto::msg::SequenceRange;
use std::collections::{BTreeMap, BTreeSet};

/// Most sequences of which it is remembered that the configuration was asked for them in vain. Programs can ask for any.
const ASKED_MAX: usize = 1024;

/// See the module. Sequences that are not known are taken for those of MDT0000: an MGS before version 0.3.0 publishes none.
#[derive(Debug, Default)]
pub(crate) struct Fld {
    /// All ranges, as published.
    pub(crate) ranges: Vec<SequenceRange>,
    /// The same by their first sequence: the end, exclusive, and the target's index.
    published: BTreeMap<u64, (u64, u32)>,
    /// Sequences whose targets this client learned before it knew their ranges: a target has granted them to it, or had
    /// objects of them.
    learned: BTreeMap<u64, u32>,
    /// The configuration was fetched again because of these, and they were in no range.
    asked: BTreeSet<u64>,
}

impl Fld {
    /// Takes the ranges of a new configuration.
    pub(crate) fn publish(&mut self, ranges: &[SequenceRange]) {
        self.ranges = ranges.to_vec();
        let valid = ranges.iter().filter(|range| range.start < range.end);
        self.published = valid.map(|range| (range.start, (range.end, range.mdt))).collect();
        let published = &self.published;
        self.learned.retain(|seq, mdt| find(published, *seq) != Some(*mdt));
    }

    /// A target has granted a sequence to this client.
    pub(crate) fn grant(&mut self, seq: u64, mdt: u32) {
        if self.find(seq) != Some(mdt) {
            self.learned.insert(seq, mdt);
        }
    }

    /// A target has an object of this sequence.
    pub(crate) fn learn(&mut self, seq: u64, mdt: u32) {
        if self.known(seq).is_none() && self.find(seq) != Some(mdt) {
            self.learned.insert(seq, mdt);
        }
    }

    /// Whether the configuration should be fetched once more because of this sequence.
    pub(crate) fn is_worth_asking(&self, seq: u64) -> bool {
        !self.asked.contains(&seq)
    }

    /// The configuration was fetched once more because of this sequence.
    pub(crate) fn asked(&mut self, seq: u64) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.clear();
        }
        self.asked.insert(seq);
    }

    /// Whether the target of a sequence is known.
    pub(crate) fn knows(&self, seq: u64) -> bool {
        self.find(seq).is_some()
    }

    /// The index of the metadata target of an object.
    pub(crate) fn mdt(&self, fid: Fid) -> u32 {
        self.find(fid.seq).unwrap_or(0)
    }

    fn find(&self, seq: u64) -> Option<u32> {
        // The root and other special objects are on MDT0000.
        self.known(seq).or((self.published.is_empty() || seq < Fid::SEQ_FIRST).then_some(0))
    }

    /// What the configuration or a target has said.
    fn known(&self, seq: u64) -> Option<u32> {
        self.learned.get(&seq).copied().or_else(|| find(&self.published, seq))
    }
}

fn find(ranges: &BTreeMap<u64, (u64, u32)>, seq: u64) -> Option<u32> {
    ranges.range(..=seq).next_back().filter(|(_, (end, _))| seq < *end).map(|(_, (_, mdt))| *mdt)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = Fid::SEQ_FIRST;

    fn range(start: u64, end: u64, mdt: u32) -> SequenceRange {
        SequenceRange { start: FIRST + start, end: FIRST + end, mdt }
    }

    #[test]
    fn a_fid_leads_to_the_target_of_its_sequence() {
        let mut fld = Fld::default();
        let of = |fld: &Fld, seq| fld.mdt(Fid::new(FIRST + seq, 7));
        assert_eq!(of(&fld, 15), 0);
        fld.publish(&[range(10, 20, 0), range(20, 30, 2), range(40, 50, 1)]);
        let found: Vec<u32> = [9, 10, 19, 20, 29, 30, 40, 49, 50].map(|seq| of(&fld, seq)).into();
        assert_eq!(found, [0, 0, 0, 2, 2, 0, 1, 1, 0]);
        assert_eq!(fld.mdt(Fid::ROOT), 0);
        // A grant is known before the range of its target is.
        fld.grant(FIRST + 55, 1);
        fld.grant(FIRST + 45, 1);
        assert_eq!((of(&fld, 55), of(&fld, 54)), (1, 0));
        fld.publish(&[range(40, 60, 1)]);
        assert!(fld.learned.is_empty());
        assert_eq!((of(&fld, 55), of(&fld, 25)), (1, 0));
    }

    #[test]
    fn a_sequence_is_unknown_only_beside_published_ones() {
        let mut fld = Fld::default();
        assert!(fld.knows(FIRST + 5), "an older MGS publishes none");
        fld.learn(FIRST + 40, 1);
        assert_eq!(fld.mdt(Fid::new(FIRST + 40, 7)), 1, "a target has said it");
        fld.publish(&[range(0, 10, 0), range(10, 20, 1)]);
        assert!(fld.knows(Fid::ROOT.seq) && fld.knows(FIRST) && fld.knows(FIRST + 19) && !fld.knows(FIRST + 20));
        // What the configuration says counts more than what a target had.
        fld.learn(FIRST + 20, 2);
        fld.learn(FIRST + 20, 3);
        fld.learn(FIRST + 15, 3);
        let of = |fld: &Fld, seq| fld.mdt(Fid::new(FIRST + seq, 7));
        assert_eq!((of(&fld, 20), of(&fld, 15)), (2, 1));
        fld.publish(&[range(0, 10, 0), range(10, 30, 1)]);
        fld.learn(FIRST + 21, 3);
        assert_eq!(of(&fld, 21), 1);
    }

    #[test]
    fn the_configuration_is_asked_for_once_for_each_sequence() {
        let mut fld = Fld::default();
        fld.asked(FIRST);
        assert!(!fld.is_worth_asking(FIRST) && fld.is_worth_asking(FIRST + 1));
        (0..10 * ASKED_MAX as u64).for_each(|seq| fld.asked(FIRST + seq));
        assert!(fld.asked.len() <= ASKED_MAX);
    }
}
