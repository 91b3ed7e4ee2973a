//! A layer: the records of one group in memory, in a hash map that keeps the order of insertion.
//!
//! The slots are in a vector, and the hash table has their numbers. So an attempt is undone by popping slots, a layer drains
//! from its end a few slots at a time, and an engine thread can read a frozen layer while the target reads it, too.

use crate::{Key, KeyRange, Value};
use core::hash::{BuildHasher, Hasher};
use hashbrown::HashTable;
use std::collections::BTreeMap;

/// The memory of a record beside its bytes: the slot, the table entry, and the overhead of the value's allocation and of its
/// reference count.
pub(crate) const SLOT_COST: usize = size_of::<Slot>() + 96;

/// The most empty slots that are kept for the next group: about those of a group at the default dirty limit.
const KEEP_SLOTS: usize = 1 << 19;

/// The hash that layers and cache share, so that a lookup computes it once.
pub(crate) fn hash_of(key: &Key) -> u64 {
    let mut hasher = stdx::KeyedHash::default().build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// The memory that a record takes, in bytes.
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

/// A set of tables, by the first byte of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables([u128; 2]);

impl Tables {
    /// The tables that have keys in a range.
    pub(crate) fn of(range: &KeyRange) -> Tables {
        let first = usize::from(range.start.first().copied().unwrap_or(0));
        let last = match range.end[..] {
            [] => return Tables::default(),
            // The end is exclusive.
            [table] => usize::from(table),
            [table, ..] => usize::from(table) + 1,
        };
        let mut tables = Tables::default();
        (first..last).for_each(|table| tables.0[table / 128] |= 1 << (table % 128));
        tables
    }

    #[inline]
    fn has(self, key: &Key) -> bool {
        let table = usize::from(key.first().copied().unwrap_or(0));
        self.0[table / 128] >> (table % 128) & 1 == 1
    }

    /// The union of two sets.
    pub(crate) fn union(self, other: Tables) -> Tables {
        Tables([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    fn without(self, other: Tables) -> Tables {
        Tables([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }
}

/// An ordered index over some tables of a layer: keys and slots. Tables that nobody scans are not indexed and cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Index {
    tables: Tables,
    keys: BTreeMap<Key, u32>,
}

impl Index {
    /// The index over these tables of an empty layer.
    pub(crate) fn new(tables: Tables) -> Index {
        Index { tables, keys: BTreeMap::new() }
    }

    /// Whether these tables are indexed.
    pub(crate) fn covers(&self, tables: Tables) -> bool {
        tables.without(self.tables) == Tables::default()
    }

    /// Adds tables to the index.
    pub(crate) fn extend(&mut self, tables: Tables, layer: &Layer) {
        let new = tables.without(self.tables);
        if new == Tables::default() {
            return;
        }
        self.tables = self.tables.union(new);
        let slots = layer.slots.iter().zip(0..).filter(|(slot, _)| new.has(&slot.key));
        let mut keys: Vec<(Key, u32)> = slots.map(|(slot, at)| (slot.key.clone(), at)).collect();
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if self.keys.is_empty() {
            self.keys = keys.into_iter().collect();
        } else {
            self.keys.extend(keys);
        }
    }

    /// A key was added to the layer, in this slot.
    #[inline]
    pub(crate) fn insert(&mut self, key: &Key, slot: u32) {
        if self.tables.has(key) {
            self.keys.insert(key.clone(), slot);
        }
    }

    /// A key was removed from the layer.
    pub(crate) fn remove(&mut self, key: &Key) {
        if self.tables.has(key) {
            self.keys.remove(key);
        }
    }

    /// The indexed keys from `from` up to, but not including, `to`.
    pub(crate) fn range<'a>(&'a self, from: &Key, to: &Key) -> impl Iterator<Item = (&'a Key, u32)> + use<'a> {
        self.keys.range::<Key, _>(from..to).map(|(key, slot)| (key, *slot))
    }
}

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

    /// Sets the value of a slot and returns the previous one.
    pub(crate) fn replace(&mut self, slot: u32, value: Option<Value>) -> Option<Value> {
        let slot = &mut self.slots[slot as usize];
        let len = |value: &Option<Value>| value.as_ref().map_or(0, Value::len);
        self.bytes = self.bytes + len(&value) - len(&slot.value);
        core::mem::replace(&mut slot.value, value)
    }

    /// Adds a key that the layer does not have and returns its slot.
    pub(crate) fn push(&mut self, hash: u64, key: Key, value: Option<Value>) -> u32 {
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 records in a group");
        self.bytes += cost_of(&key, &value);
        self.slots.push(Slot { hash, key, value });
        let slots = &self.slots;
        self.table.insert_unique(hash, slot, |&slot| slots[slot as usize].hash);
        slot
    }

    /// Undoes the last [`push`](Layer::push).
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        let last = self.slots.pop()?;
        let number = self.slots.len() as u32;
        if let Ok(entry) = self.table.find_entry(last.hash, |&slot| slot == number) {
            entry.remove();
        }
        self.bytes -= cost_of(&last.key, &last.value);
        Some(last)
    }

    /// Removes the last slot of a retiring layer. Unlike [`pop`](Layer::pop) it leaves the table as it is, so nothing may be
    /// pushed until the layer is [cleared](Layer::clear).
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

    /// Slots whose keys are in `range`, unordered, without use of an index.
    pub(crate) fn filter<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a Slot> {
        self.slots.iter().filter(|slot| range.contains(&slot.key))
    }
}
