//! From a key to a place in a [`Slab`](crate::slab::Slab) whose item knows its key: four bytes and a little for each.

use core::hash::{BuildHasher, Hash};

use crate::{KeyedHash, Table};

/// A hash table of places. Keys are read from the items; each is in once.
#[derive(Debug, Default)]
pub struct Index {
    places: Table<u32>,
    hash: KeyedHash,
}

impl Index {
    /// The place whose item has this key; `key_of` gives the key of the item of a place.
    #[inline]
    pub fn get<K: Hash + Eq>(&self, key: &K, key_of: impl Fn(u32) -> K) -> Option<u32> {
        self.places.find(self.hash.hash_one(key), |&i| key_of(i) == *key).copied()
    }

    /// A place whose key is not in yet.
    pub fn insert<K: Hash + Eq>(&mut self, place: u32, key_of: impl Fn(u32) -> K) {
        let hash = self.hash.hash_one(key_of(place));
        self.places.insert_unique(hash, place, |&i| self.hash.hash_one(key_of(i)));
    }

    /// Takes a key out, while the item is still there.
    pub fn remove<K: Hash + Eq>(&mut self, key: &K, key_of: impl Fn(u32) -> K) {
        if let Ok(found) = self.places.find_entry(self.hash.hash_one(key), |&i| key_of(i) == *key) {
            found.remove();
        }
    }
}
