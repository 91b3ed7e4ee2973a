//! The bounded cache of clean records, with second-chance (CLOCK) eviction and pins.
//!
//! It also caches the absence of records. A pinned record is never evicted, even above the limit.

use crate::layer::cost_of;
use crate::{Key, Value};
use hashbrown::HashTable;

#[derive(Debug)]
struct Slot {
    hash: u64,
    key: Key,
    value: Option<Value>,
    pins: u32,
    referenced: bool,
}

#[derive(Debug)]
pub(crate) struct Cache {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hand: usize,
    bytes: usize,
    limit: usize,
    unpinned: usize,
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Cache {
        Cache { slots: Vec::new(), free: Vec::new(), table: HashTable::new(), hand: 0, bytes: 0, limit, unpinned: 0 }
    }

    /// Memory used, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &Key) -> Option<u32> {
        let same = |&slot: &u32| self.slots[slot as usize].as_ref().is_some_and(|s| s.hash == hash && s.key == *key);
        self.table.find(hash, same).copied()
    }

    /// The value of a slot from [`find`](Cache::find). Marks the slot as used.
    #[inline]
    pub(crate) fn value(&mut self, slot: u32) -> Option<&Value> {
        let slot = self.slots[slot as usize].as_mut()?;
        slot.referenced = true;
        slot.value.as_ref()
    }

    /// Sets the clean value of a key, adds `pins` to its pins, and evicts others if needed.
    pub(crate) fn insert(&mut self, hash: u64, key: Key, value: Option<Value>, pins: u32) {
        match self.find(hash, &key) {
            Some(at) => {
                if let Some(slot) = self.slots[at as usize].as_mut() {
                    self.bytes = self.bytes + cost_of(&key, &value) - cost_of(&slot.key, &slot.value);
                    self.unpinned -= usize::from(slot.pins == 0 && pins > 0);
                    slot.pins += pins;
                    slot.value = value;
                }
            }
            None => {
                self.bytes += cost_of(&key, &value);
                self.unpinned += usize::from(pins == 0);
                let slot = Some(Slot { hash, key, value, pins, referenced: false });
                let at = match self.free.pop() {
                    Some(at) => {
                        self.slots[at as usize] = slot;
                        at
                    }
                    None => {
                        self.slots.push(slot);
                        (self.slots.len() - 1) as u32
                    }
                };
                let slots = &self.slots;
                self.table.insert_unique(hash, at, |&at| slots[at as usize].as_ref().map_or(0, |slot| slot.hash));
            }
        }
        self.evict();
    }

    /// Removes one pin.
    pub(crate) fn unpin(&mut self, hash: u64, key: &Key) {
        let Some(at) = self.find(hash, key) else { return };
        if let Some(slot) = self.slots[at as usize].as_mut() {
            assert!(slot.pins > 0, "{key} is unpinned more often than pinned");
            slot.pins -= 1;
            self.unpinned += usize::from(slot.pins == 0);
        }
        self.evict();
    }

    /// Changes the limit, in bytes.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict();
        if self.free.len() > self.slots.len() / 2 {
            self.compact();
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.limit && self.unpinned > 0 {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let at = self.hand;
            self.hand += 1;
            match &mut self.slots[at] {
                Some(slot) if slot.pins > 0 => {}
                Some(slot) if slot.referenced => slot.referenced = false,
                Some(_) => self.remove(at as u32),
                None => {}
            }
        }
    }

    fn remove(&mut self, at: u32) {
        let Some(slot) = self.slots[at as usize].take() else { return };
        if let Ok(entry) = self.table.find_entry(slot.hash, |&other| other == at) {
            entry.remove();
        }
        self.bytes -= cost_of(&slot.key, &slot.value);
        self.unpinned -= usize::from(slot.pins == 0);
        self.free.push(at);
    }

    /// Frees the memory of empty slots.
    fn compact(&mut self) {
        let slots: Vec<Option<Slot>> = core::mem::take(&mut self.slots).into_iter().filter(Option::is_some).collect();
        self.table = HashTable::with_capacity(slots.len());
        for (slot, at) in slots.iter().flatten().zip(0u32..) {
            self.table.insert_unique(slot.hash, at, |&at| slots[at as usize].as_ref().map_or(0, |slot| slot.hash));
        }
        self.slots = slots;
        self.free = Vec::new();
        self.hand = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::hash_of;

    fn put(cache: &mut Cache, n: u64, pins: u32) {
        let key = Key::table(1).u64(n);
        cache.insert(hash_of(&key), key, Some(Value::from(vec![0; 100])), pins);
    }

    fn holds(cache: &Cache, n: u64) -> bool {
        let key = Key::table(1).u64(n);
        cache.find(hash_of(&key), &key).is_some()
    }

    #[test]
    fn the_limit_holds_and_what_is_used_stays() {
        let mut cache = Cache::new(100_000);
        for n in 0..10_000 {
            put(&mut cache, n, 0);
            let key = Key::table(1).u64(7);
            if let Some(at) = cache.find(hash_of(&key), &key) {
                cache.value(at);
            }
            assert!(cache.bytes() <= 100_000);
        }
        assert!(holds(&cache, 7), "a record that is read all the time was evicted");
        assert!(holds(&cache, 9_999));
        assert!(!holds(&cache, 8));
        cache.set_limit(1_000);
        assert!(cache.bytes() <= 1_000 && cache.slots.len() < 10);
    }

    #[test]
    fn pinned_records_stay_whatever_the_limit_and_leave_when_unpinned() {
        let mut cache = Cache::new(0);
        for n in 0..100 {
            put(&mut cache, n, 1 + (n % 2) as u32);
        }
        put(&mut cache, 1_000, 0);
        assert_eq!(cache.len(), 100);
        for n in 0..100 {
            let key = Key::table(1).u64(n);
            cache.unpin(hash_of(&key), &key);
            assert_eq!(holds(&cache, n), n % 2 == 1);
        }
        assert_eq!(cache.len(), 50);
    }
}
