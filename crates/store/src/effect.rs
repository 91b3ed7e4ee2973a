//! The effects of a view: loads and commits, and their execution on an engine.
//!
//! The driver sends effects to engine threads. `run` does the work there, sealing and checking included, and returns the
//! result for the view.

use crate::layer::Layer;
use crate::{Change, Engine, EngineError, Formats, Key, KeyRange, Value};
use std::sync::Arc;

/// An effect of a view.
#[derive(Debug)]
pub enum StoreEffect {
    /// Read something, then call [`View::loaded`](crate::View::loaded).
    Load(Load),
    /// Write a group, then call [`View::committed`](crate::View::committed), or
    /// [`View::commit_delayed`](crate::View::commit_delayed) if the medium is full, or
    /// [`View::commit_failed`](crate::View::commit_failed).
    Commit(Group),
}

/// The number of a load, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(pub u64);

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadWhat {
    /// One record.
    Record(Key),
    /// The first records of a range, and how many at most.
    Scan(KeyRange, usize),
}

/// A read that attempts wait for.
#[derive(Clone, Debug)]
pub struct Load {
    /// Identifies the load in its result.
    pub id: LoadId,
    /// What to read.
    pub what: LoadWhat,
    pub(crate) formats: Formats,
}

/// The records that a load read, opened and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadResult {
    /// The body of a record, if it exists.
    Record(Option<Value>),
    /// Records of a range.
    Scan {
        /// Keys and bodies in key order.
        records: Vec<(Key, Value)>,
        /// Whether these are all records of the range; otherwise they are all up to the last one.
        complete: bool,
    },
}

/// A finished load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadDone {
    /// The load.
    pub id: LoadId,
    /// Its result.
    pub result: Result<LoadResult, EngineError>,
}

impl Load {
    /// Executes the load. Blocks as long as the engine does.
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

/// Executes several loads, with all single records read together. The results are in the order of the loads.
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

/// A group to be committed. The view continues to read it until [`View::committed`](crate::View::committed) reports it
/// durable.
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

    /// The number of records that it changes.
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

    /// Seals and commits the group, which is durable when this returns. Blocks as long as the engine does.
    /// Report it to the view only after this has returned; otherwise the view must copy the records.
    pub fn run(self, engine: &dyn Engine) -> Result<(), EngineError> {
        engine.commit(self.number, &self.seal())
    }
}
