//! Lookup by key in a [`Slab`](crate::slab::Slab) whose items contain their keys, in little more than four bytes per
//! item.

use core::hash::{BuildHasher, Hash};

use crate::{KeyedHash, Table};

/// A hash table of indices. Keys are read from the items and are unique.
#[derive(Debug, Default)]
pub struct Index {
    places: Table<u32>,
    hash: KeyedHash,
}

impl Index {
    /// The index of the item with this key; `key_of` returns the key of the item at an index.
    #[inline]
    pub fn get<K: Hash + Eq>(&self, key: &K, key_of: impl Fn(u32) -> K) -> Option<u32> {
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
            found.remove();
        }
    }
}
