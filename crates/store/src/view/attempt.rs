//! What a view keeps for an attempt that met a miss.

use crate::{EngineError, Key, KeyRange, LoadId, Value};
use std::collections::BTreeMap;

/// The state of an attempt that waits or has waited.
#[derive(Default)]
pub(super) struct Attempt {
    /// Loads that are not back.
    pub(super) waiting_for: Vec<LoadId>,
    /// Records that stay in the cache for it; one entry per pin.
    pub(super) pins: Vec<Key>,
    /// What scans have loaded for it.
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
    /// What a scan of `range` found. If it is not complete, the chunk ends after the last record.
    pub(super) fn new(range: KeyRange, records: Vec<(Key, Value)>, complete: bool) -> Chunk {
        let end = match records.last() {
            Some((last, _)) if !complete => last.successor(),
            // An incomplete scan without records would be a broken engine; taking it for empty would be a wrong
            // answer, covering nothing asks again.
            None if !complete => range.start.clone(),
            _ => range.end,
        };
        Chunk { start: range.start, end, records: records.into_iter().collect() }
    }

    pub(super) fn range(&self) -> KeyRange {
        KeyRange { start: self.start.clone(), end: self.end.clone() }
    }

    /// Whether it says something about `key`.
    pub(super) fn covers(&self, key: &Key) -> bool {
        self.start <= *key && *key < self.end
    }

    pub(super) fn end(&self) -> &Key {
        &self.end
    }

    /// The records from `start` on up to, but without, `end`.
    pub(super) fn records<'a>(&'a self, start: &'a Key, end: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        self.records.range::<Key, _>(start..end)
    }

    /// Applies what has become durable since it was loaded.
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
