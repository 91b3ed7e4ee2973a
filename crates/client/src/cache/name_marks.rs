//! A fingerprint filter of names: a few bytes for each name, which prove of most other names that they are not in the
//! set.

use core::hash::BuildHasher;
use stdx::{KeyedHash, Table};

/// Fingerprints of 32 bits. Of a million names that are not in the set, some hundreds match by chance.
#[derive(Debug, Default)]
pub(crate) struct NameMarks {
    marks: Table<u32>,
    hash: KeyedHash,
}

/// The hash of a fingerprint in the table, whose bits differ in all positions that the table uses.
fn place(mark: u32) -> u64 {
    u64::from(mark).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl NameMarks {
    fn mark(&self, name: &[u8]) -> u32 {
        (self.hash.hash_one(name) >> 32) as u32
    }

    /// Adds a name, permanently: another name may have the same fingerprint.
    pub(crate) fn insert(&mut self, name: &[u8]) {
        let mark = self.mark(name);
        if self.marks.find(place(mark), |known| *known == mark).is_none() {
            self.marks.insert_unique(place(mark), mark, |known| place(*known));
        }
    }

    /// False: the name was not added.
    pub(crate) fn may_have(&self, name: &[u8]) -> bool {
        let mark = self.mark(name);
        self.marks.find(place(mark), |known| *known == mark).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of fingerprints.
    pub(crate) fn len(&self) -> usize {
        self.marks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_names_match_and_hardly_any_other() {
        let mut marks = NameMarks::default();
        let name = |i: u32| format!("file-{i}").into_bytes();
        (0..100_000).for_each(|i| marks.insert(&name(i)));
        marks.insert(&name(5));
        assert!((0..100_000).all(|i| marks.may_have(&name(i))));
        assert!(marks.len() > 99_900 && marks.len() <= 100_000, "{}", marks.len());
        assert!((100_000..200_000).filter(|i| marks.may_have(&name(*i))).count() < 100);
    }
}
