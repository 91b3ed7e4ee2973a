//! Lookup by key in a [`Slab`](crate::slab::Slab) whose items contain their keys, in little more than four bytes per
//! item.

use core::cell::Cell;
use core::hash::{BuildHasher, Hash};

use crate::{KeyedHash, Table};

/// A hash table of indices. Keys are read from the items and are unique.
#[derive(Debug, Default)]
pub struct Index {
    places: Table<u32>,
    hash: KeyedHash,
    /// The indices that were found last, plus one: most callers ask for the same few again and again.
    recent: [Cell<u32>; 2],
}

impl Index {
    /// The index of the item with this key; `key_of` returns the key of the item at an index.
    #[inline]
    pub fn get<K: Hash + Eq>(&self, key: &K, key_of: impl Fn(u32) -> K) -> Option<u32> {
        let [newest, other] = &self.recent;
        let is_it = |recent: &Cell<u32>| recent.get() != 0 && key_of(recent.get() - 1) == *key;
        if !is_it(newest) {
            let found = if is_it(other) { other.get() } else { self.search(key, key_of)? + 1 };
            other.set(newest.replace(found));
        }
        Some(newest.get() - 1)
    }

    fn search<K: Hash + Eq>(&self, key: &K, key_of: impl Fn(u32) -> K) -> Option<u32> {
        self.places.find(self.hash.hash_one(key), |&i| key_of(i) == *key).copied()
    }

    /// Adds an index whose key is not present yet.
    pub fn insert<K: Hash + Eq>(&mut self, place: u32, key_of: impl Fn(u32) -> K) {
        let hash = self.hash.hash_one(key_of(place));
        self.places.insert_unique(hash, place, |&i| self.hash.hash_one(key_of(i)));
    }

    /// Removes a key, while the item still exists.
    pub fn remove<K: Hash + Eq>(&mut self, key: &K, key_of: impl Fn(u32) -> K) {
        if let Ok(found) = self.places.find_entry(self.hash.hash_one(key), |&i| key_of(i) == *key) {
            let (place, _) = found.remove();
            self.recent.iter().filter(|recent| recent.get() == place + 1).for_each(|recent| recent.set(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Rng, Slab};

    /// Indices are reused, and the same few keys are looked up again and again.
    #[test]
    fn a_random_history_equals_a_map() {
        let mut rng = Rng::new(1);
        let (mut items, mut index, mut model) = (Slab::<u64>::default(), Index::default(), BTreeMap::new());
        for _ in 0..50_000 {
            let key = rng.below(8);
            let found = index.get(&key, |i| items[i]);
            assert_eq!(found, model.get(&key).copied());
            match found {
                Some(i) if rng.chance(1, 5) => {
                    index.remove(&key, |i| items[i]);
                    items.remove(i);
                    model.remove(&key);
                }
                None if rng.chance(1, 2) => {
                    let i = items.insert(key);
                    index.insert(i, |i| items[i]);
                    model.insert(key, i);
                }
                _ => {}
            }
        }
    }
}
