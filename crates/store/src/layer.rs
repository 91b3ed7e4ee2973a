//! One group's records in memory: a hash map that remembers the order of insertion.
//!
//! Slots lie in a vector, the hash table holds their numbers. So undoing an attempt pops slots, a layer drains from its
//! end a few slots at a time, and a frozen layer can be read by an engine thread while the target reads it too.

use crate::{Key, KeyRange, Value};
use core::hash::BuildHasher;
use hashbrown::HashTable;
use std::collections::BTreeMap;

/// What a record costs in memory besides its bytes: slot, table entry, the value's allocation and the one that counts its
/// users, with what the allocator adds to both.
pub(crate) const SLOT_COST: usize = size_of::<Slot>() + 96;

/// How many empty slots are kept for the next group.
const KEEP_SLOTS: usize = 1 << 17;

/// The hash that layers and cache share, so that it is computed once for a look-up.
pub(crate) fn hash_of(key: &Key) -> u64 {
    stdx::FixedHash::default().hash_one(key)
}

/// What a record costs in memory.
pub(crate) fn cost_of(key: &Key, value: &Option<Value>) -> usize {
    SLOT_COST + key.heap_len() + value.as_ref().map_or(0, Value::len)
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) hash: u64,
    pub(crate) key: Key,
    pub(crate) value: Option<Value>,
}

/// The records of one group; `None` is a deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    slots: Vec<Slot>,
    table: HashTable<u32>,
    bytes: usize,
}

/// The keys of a layer in order, with their slots.
pub(crate) type Index = BTreeMap<Key, u32>;

impl Layer {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Memory used, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slot of `key`. Slots that were popped by [`drain_one`](Layer::drain_one) are not found any more.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &Key) -> Option<u32> {
        let same = |&slot: &u32| self.slots.get(slot as usize).is_some_and(|s| s.hash == hash && s.key == *key);
        self.table.find(hash, same).copied()
    }

    #[inline]
    pub(crate) fn value(&self, slot: u32) -> Option<&Value> {
        self.slots[slot as usize].value.as_ref()
    }

    /// Sets the value of a slot; gives the previous one.
    pub(crate) fn replace(&mut self, slot: u32, value: Option<Value>) -> Option<Value> {
        let slot = &mut self.slots[slot as usize];
        let len = |value: &Option<Value>| value.as_ref().map_or(0, Value::len);
        self.bytes = self.bytes + len(&value) - len(&slot.value);
        core::mem::replace(&mut slot.value, value)
    }

    /// Adds a key that is not there yet; gives its slot.
    pub(crate) fn push(&mut self, hash: u64, key: Key, value: Option<Value>) -> u32 {
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 records in a group");
        self.bytes += cost_of(&key, &value);
        self.slots.push(Slot { hash, key, value });
        let slots = &self.slots;
        self.table.insert_unique(hash, slot, |&slot| slots[slot as usize].hash);
        slot
    }

    /// Takes back the last [`push`](Layer::push).
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        let last = self.slots.pop()?;
        let number = self.slots.len() as u32;
        if let Ok(entry) = self.table.find_entry(last.hash, |&slot| slot == number) {
            entry.remove();
        }
        self.bytes -= cost_of(&last.key, &last.value);
        Some(last)
    }

    /// Takes one slot out for good, without the care for the table that [`pop`](Layer::pop) takes: the layer is on its
    /// way out. Nothing may be pushed any more until it was [cleared](Layer::clear).
    pub(crate) fn drain_one(&mut self) -> Option<Slot> {
        let last = self.slots.pop()?;
        self.bytes -= cost_of(&last.key, &last.value);
        Some(last)
    }

    /// Empties the layer but keeps its allocations, unless they are large.
    pub(crate) fn clear(&mut self) {
        if self.slots.capacity() > KEEP_SLOTS {
            *self = Layer::default();
            return;
        }
        self.slots.clear();
        self.table.clear();
        self.bytes = 0;
    }

    /// All keys in order.
    pub(crate) fn build_index(&self) -> Index {
        let mut keys: Vec<(Key, u32)> = self.slots.iter().zip(0..).map(|(slot, at)| (slot.key.clone(), at)).collect();
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        keys.into_iter().collect()
    }

    /// Slots whose keys lie in `range`, in no order, without an index.
    pub(crate) fn filter<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a Slot> {
        self.slots.iter().filter(|slot| range.contains(&slot.key))
    }
}
