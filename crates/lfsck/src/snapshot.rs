//! A snapshot: all records of one target at one moment.

use std::collections::BTreeMap;
use store::{Engine, EngineError, Key, KeyRange, Value};

/// The bodies of a target's records, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    records: BTreeMap<Key, Value>,
}

/// Records in one scan.
const STEP: usize = 4096;

impl Snapshot {
    /// A snapshot of these records, whose bodies are not sealed.
    pub fn new(records: impl IntoIterator<Item = (Key, Value)>) -> Snapshot {
        Snapshot { records: records.into_iter().collect() }
    }

    /// A snapshot of an engine that is not written to. A damaged record is an error.
    pub fn of_engine(engine: &dyn Engine) -> Result<Snapshot, EngineError> {
        let formats = schema::formats();
        let mut records = BTreeMap::new();
        let mut range = KeyRange::all();
        loop {
            let found = engine.scan(&range, STEP)?;
            for (key, sealed) in found.records {
                let body = formats.open(&key, &sealed)?;
                range.start = key.successor();
                records.insert(key, body);
            }
            if found.complete {
                return Ok(Snapshot { records });
            }
        }
    }

    /// The body of a record.
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.records.get(key)
    }

    /// The records of a range, in key order.
    pub fn range(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &Value)> {
        self.records.range::<Key, _>(&range.start..&range.end)
    }

    /// Changes or removes a record, to test whether a check notices.
    pub fn set(&mut self, key: Key, body: Option<Value>) {
        match body {
            Some(body) => self.records.insert(key, body),
            None => self.records.remove(&key),
        };
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}
