//! The state that a view keeps for an attempt that met a miss.

use crate::{EngineError, Key, KeyRange, LoadId, Value};
use std::collections::BTreeMap;

/// The state of an attempt that waits or has waited.
#[derive(Default)]
pub(super) struct Attempt {
    /// Outstanding loads.
    pub(super) waiting_for: Vec<LoadId>,
    /// Records that are pinned in the cache for it, one entry per pin.
    pub(super) pins: Vec<Key>,
    /// The chunks that its scans have loaded.
    pub(super) chunks: Vec<Chunk>,
    /// A load that failed.
    pub(super) failure: Option<EngineError>,
}

/// All durable records between two keys.
#[derive(Clone)]
pub(super) struct Chunk {
    start: Key,
    end: Key,
    records: BTreeMap<Key, Value>,
}

impl Chunk {
    /// The result of a scan of `range`. If it is not complete, the chunk ends after the last record.
    pub(super) fn new(range: KeyRange, records: Vec<(Key, Value)>, complete: bool) -> Chunk {
        let end = match records.last() {
            Some((last, _)) if !complete => last.successor(),
            // An incomplete scan without records is a bug of the engine. A chunk that covers nothing makes the view load
            // again, instead of taking the range for empty.
            None if !complete => range.start.clone(),
            _ => range.end,
        };
        Chunk { start: range.start, end, records: records.into_iter().collect() }
    }

    pub(super) fn range(&self) -> KeyRange {
        KeyRange { start: self.start.clone(), end: self.end.clone() }
    }

    /// Whether `key` is in the range of the chunk.
    pub(super) fn covers(&self, key: &Key) -> bool {
        self.start <= *key && *key < self.end
    }

    pub(super) fn end(&self) -> &Key {
        &self.end
    }

    /// The records from `start` up to, but not including, `end`.
    pub(super) fn records<'a>(&'a self, start: &'a Key, end: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        self.records.range::<Key, _>(start..end)
    }

    /// Applies a change that became durable after the chunk was loaded.
    pub(super) fn patch(&mut self, key: &Key, value: &Option<Value>) {
        if !self.covers(key) {
            return;
        }
        match value {
            Some(value) => self.records.insert(key.clone(), value.clone()),
            None => self.records.remove(key),
        };
    }
}
