//! What a view wants done, and doing it on an engine.
//!
//! Effects are sent to engine threads; `run` does the work there, sealing and checking included, and gives what the
//! view is told.

use crate::layer::Layer;
use crate::{Change, Engine, EngineError, Formats, Key, KeyRange, Value};
use std::sync::Arc;

/// One thing that a view wants done.
#[derive(Debug)]
pub enum StoreEffect {
    /// Read something, then call [`View::loaded`](crate::View::loaded).
    Load(Load),
    /// Write a group, then call [`View::committed`](crate::View::committed), or
    /// [`View::commit_delayed`](crate::View::commit_delayed) if the medium is full, or
    /// [`View::commit_failed`](crate::View::commit_failed).
    Commit(Group),
}

/// The number of a load; given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(pub u64);

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadWhat {
    /// One record.
    Record(Key),
    /// The first records of a range, at most so many.
    Scan(KeyRange, usize),
}

/// A read that attempts wait for.
#[derive(Clone, Debug)]
pub struct Load {
    /// Names it in the answer.
    pub id: LoadId,
    /// What to read.
    pub what: LoadWhat,
    pub(crate) formats: Formats,
}

/// What a load read, opened and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadResult {
    /// The body of a record, if it exists.
    Record(Option<Value>),
    /// Records of a range; all of it if `complete`, otherwise all up to the last one.
    Scan {
        /// Keys and bodies in key order.
        records: Vec<(Key, Value)>,
        /// Whether these are all of the range.
        complete: bool,
    },
}

/// A load that has been done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadDone {
    /// Which one.
    pub id: LoadId,
    /// What came of it.
    pub result: Result<LoadResult, EngineError>,
}

impl Load {
    /// Reads it. Blocks as long as the engine does.
    pub fn run(&self, engine: &dyn Engine) -> LoadDone {
        let result = match &self.what {
            LoadWhat::Record(key) => self.open_record(key, engine.get(key)),
            LoadWhat::Scan(range, limit) => self.scan(engine, range, *limit),
        };
        LoadDone { id: self.id, result }
    }

    fn open_record(&self, key: &Key, sealed: Result<Option<Value>, EngineError>) -> Result<LoadResult, EngineError> {
        let body = match sealed? {
            Some(sealed) => Some(self.formats.open(key, &sealed)?),
            None => None,
        };
        Ok(LoadResult::Record(body))
    }

    fn scan(&self, engine: &dyn Engine, range: &KeyRange, limit: usize) -> Result<LoadResult, EngineError> {
        let mut scanned = engine.scan(range, limit)?;
        for (key, value) in &mut scanned.records {
            *value = self.formats.open(key, value)?;
        }
        Ok(LoadResult::Scan { records: scanned.records, complete: scanned.complete })
    }
}

/// Does several loads; records that are asked for one by one are read together. The answers come in the order of the
/// loads.
pub fn run_loads(engine: &dyn Engine, loads: &[Load]) -> Vec<LoadDone> {
    let keys: Vec<Key> = loads
        .iter()
        .filter_map(|load| match &load.what {
            LoadWhat::Record(key) => Some(key.clone()),
            LoadWhat::Scan(..) => None,
        })
        .collect();
    let mut found = engine.get_many(&keys).into_iter();
    let run = |load: &Load| match &load.what {
        LoadWhat::Record(key) => match found.next() {
            Some(sealed) => LoadDone { id: load.id, result: load.open_record(key, sealed) },
            None => load.run(engine),
        },
        LoadWhat::Scan(..) => load.run(engine),
    };
    loads.iter().map(run).collect()
}

/// A group on its way to the engine. The view goes on reading it until it is told that the group is durable.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) number: u64,
    pub(crate) layer: Arc<Layer>,
    pub(crate) formats: Formats,
}

impl Group {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many records it changes.
    pub fn len(&self) -> usize {
        self.layer.len()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.layer.is_empty()
    }

    /// The records, sealed and in key order, as [`Engine::commit`] takes them.
    pub fn seal(&self) -> Vec<Change> {
        let mut slots: Vec<_> = self.layer.slots().iter().collect();
        slots.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let seal = |value: &Value, key: &Key| self.formats.seal(key, value);
        slots.into_iter().map(|s| (s.key.clone(), s.value.as_ref().map(|value| seal(value, &s.key)))).collect()
    }

    /// Seals and writes it; it is durable when this returns. Blocks as long as the engine does.
    /// Tell the view only after this has returned, so that the records' memory need not be copied.
    pub fn run(self, engine: &dyn Engine) -> Result<(), EngineError> {
        engine.commit(self.number, &self.seal())
    }
}
