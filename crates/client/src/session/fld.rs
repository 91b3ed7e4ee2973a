//! FID location database: the metadata target of each FID sequence, as the configuration publishes it.

use proto::Fid;
use proto::msg::SequenceRange;
use std::collections::BTreeMap;

/// See the module. Sequences in no range belong to MDT0000.
#[derive(Debug, Default)]
pub(crate) struct Fld {
    /// All ranges, as published.
    pub(crate) ranges: Vec<SequenceRange>,
    /// Those of targets other than MDT0000, by their first sequence: the end, exclusive, and the target's index.
    published: BTreeMap<u64, (u64, u32)>,
    /// Sequences that targets have granted to this client before it knew their ranges.
    granted: BTreeMap<u64, u32>,
}

impl Fld {
    /// Takes the ranges of a new configuration.
    pub(crate) fn publish(&mut self, ranges: &[SequenceRange]) {
        self.ranges = ranges.to_vec();
        let remote = ranges.iter().filter(|range| range.mdt != 0 && range.start < range.end);
        self.published = remote.map(|range| (range.start, (range.end, range.mdt))).collect();
        let published = &self.published;
        self.granted.retain(|seq, mdt| find(published, *seq) != *mdt);
    }

    /// A target has granted a sequence to this client.
    pub(crate) fn grant(&mut self, seq: u64, mdt: u32) {
        if find(&self.published, seq) != mdt {
            self.granted.insert(seq, mdt);
        }
    }

    /// The index of the metadata target of an object.
    pub(crate) fn mdt(&self, fid: Fid) -> u32 {
        if self.published.is_empty() && self.granted.is_empty() {
            return 0;
        }
        self.granted.get(&fid.seq).copied().unwrap_or_else(|| find(&self.published, fid.seq))
    }
}

fn find(ranges: &BTreeMap<u64, (u64, u32)>, seq: u64) -> u32 {
    ranges.range(..=seq).next_back().filter(|(_, (end, _))| seq < *end).map_or(0, |(_, (_, mdt))| *mdt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fid_leads_to_the_target_of_its_sequence() {
        let mut fld = Fld::default();
        let range = |start, end, mdt| SequenceRange { start, end, mdt };
        let of = |fld: &Fld, seq| fld.mdt(Fid::new(seq, 7));
        assert_eq!(of(&fld, 15), 0);
        fld.publish(&[range(10, 20, 0), range(20, 30, 2), range(40, 50, 1)]);
        let found: Vec<u32> = [9, 10, 19, 20, 29, 30, 40, 49, 50].map(|seq| of(&fld, seq)).into();
        assert_eq!(found, [0, 0, 0, 2, 2, 0, 1, 1, 0]);
        assert_eq!(fld.mdt(Fid::ROOT), 0);
        // A grant is known before the range of its target is.
        fld.grant(55, 1);
        fld.grant(45, 1);
        assert_eq!((of(&fld, 55), of(&fld, 54)), (1, 0));
        fld.publish(&[range(40, 60, 1)]);
        assert!(fld.granted.is_empty());
        assert_eq!((of(&fld, 55), of(&fld, 25)), (1, 0));
    }
}
