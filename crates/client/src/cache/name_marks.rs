//! Marks of names: a few bytes each, by which most names that are not among them are known not to be.

use core::hash::BuildHasher;
use stdx::{KeyedHash, Table};

/// Marks, 32 bits each. Of a million names not marked some hundreds look as if they were.
#[derive(Debug, Default)]
pub(crate) struct NameMarks {
    marks: Table<u32>,
    hash: KeyedHash,
}

/// Where a mark is kept: bits that differ in all places a table looks at.
fn place(mark: u32) -> u64 {
    u64::from(mark).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl NameMarks {
    fn mark(&self, name: &[u8]) -> u32 {
        (self.hash.hash_one(name) >> 32) as u32
    }

    /// Marks a name, for ever: another one may have the same mark.
    pub(crate) fn insert(&mut self, name: &[u8]) {
        let mark = self.mark(name);
        if self.marks.find(place(mark), |known| *known == mark).is_none() {
            self.marks.insert_unique(place(mark), mark, |known| place(*known));
        }
    }

    /// False: this name was not marked.
    pub(crate) fn may_have(&self, name: &[u8]) -> bool {
        let mark = self.mark(name);
        self.marks.find(place(mark), |known| *known == mark).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.marks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_found_and_hardly_anything_else() {
        let mut marks = NameMarks::default();
        let name = |i: u32| format!("file-{i}").into_bytes();
        (0..100_000).for_each(|i| marks.insert(&name(i)));
        marks.insert(&name(5));
        assert!((0..100_000).all(|i| marks.may_have(&name(i))));
        assert!(marks.len() > 99_900 && marks.len() <= 100_000, "{}", marks.len());
        assert!((100_000..200_000).filter(|i| marks.may_have(&name(*i))).count() < 100);
    }
}
