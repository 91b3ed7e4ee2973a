//! The engine under a target's store: an ordered store of sealed bytes with durable atomic commits.

use crate::{Change, Damaged, Formats, Key, KeyRange, Value};
use core::fmt;
use std::collections::BTreeMap;

/// An ordered store of sealed records. Its methods block; they are called on engine threads, never on a target's.
///
/// Any number of threads may read at once, also while one commits. A read sees the state after some whole group, which is at
/// least as new as the last group whose commit had returned when the read started.
pub trait Engine: Send + Sync {
    /// The sealed record of `key`, if there is one.
    fn get(&self, key: &Key) -> Result<Option<Value>, EngineError>;

    /// The sealed records of several keys, in their order, from one state.
    fn get_many(&self, keys: &[Key]) -> Vec<Result<Option<Value>, EngineError>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// The first records of `range` in key order: at most `limit` of them, and fewer if they are large, but at least
    /// one if there is one and `limit` is not 0.
    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Scanned, EngineError>;

    /// Applies one group (`None` deletes): all of it or nothing, durable when this returns.
    /// Groups are committed one at a time with rising numbers. Records are in key order, each key once.
    fn commit(&self, group: u64, records: &[Change]) -> Result<(), EngineError>;

    /// The number of the last durable group; 0 in a new store.
    fn last_group(&self) -> Result<u64, EngineError>;

    /// The space on the medium.
    fn space(&self) -> Result<Space, EngineError>;

    /// Verifies about `bytes` of the stored data, from the key `from` on, to find damage that no read has met. It runs beside
    /// reads and commits. The default, for an engine without a medium, finds nothing.
    ///
    /// # Errors
    /// The data could not be read.
    fn verify(&self, _from: &Key, _bytes: usize) -> Result<Verified, EngineError> {
        Ok(Verified::default())
    }
}

/// The result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Keys and values in key order.
    pub records: Vec<(Key, Value)>,
    /// Whether these are all records of the range; otherwise they are all up to the last one.
    pub complete: bool,
}

/// The result of a verification step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Where the next step continues; `None`: everything is verified.
    pub next: Option<Key>,
    /// A sentence for each damage.
    pub damage: Vec<String>,
}

/// Space on the medium, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The size of the medium.
    pub total: u64,
    /// The space that new records may use, without the reserve.
    pub free: u64,
    /// The space that is reserved so that removals still work when `free` is 0.
    pub reserve: u64,
    /// The most that all records that are not durable may use together. Part of `free` may be too fragmented for them.
    pub at_once: u64,
    /// The number of stored records.
    pub records: u64,
    /// The number of the medium: the same for all stores and data files of this machine that share its space, and different
    /// everywhere else. 0 if it is not known.
    pub disk: u64,
}

/// Errors of an engine, by what to do next. Each message says what happened, to what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// No space: make room and commit the same group again. Nothing of it was written.
    Full {
        /// The directory.
        place: String,
        /// What ran out.
        what: String,
    },
    /// One record cannot be used; the others can.
    Damaged(Damaged),
    /// The store as a whole cannot be read.
    Corrupt {
        /// The directory.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The medium failed: check it, then start again.
    Io {
        /// The directory.
        place: String,
        /// What failed.
        what: String,
    },
    /// The directory belongs to another target, or to something else.
    WrongTarget {
        /// The directory.
        place: String,
        /// What was found and what was expected.
        what: String,
    },
    /// Another process has the store open.
    Busy {
        /// The directory.
        place: String,
        /// The other process, if its number is known.
        pid: Option<u32>,
    },
    /// The medium or the store is read-only.
    ReadOnly {
        /// The directory.
        place: String,
        /// What cannot be written.
        what: String,
    },
    /// There is no store in the directory.
    Missing {
        /// The directory.
        place: String,
    },
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Full { place, what } => {
                write!(f, "no space for the store in '{place}' ({what}): make room there")
            }
            EngineError::Damaged(damaged) => damaged.fmt(f),
            EngineError::Corrupt { place, what } => write!(
                f,
                "the store in '{place}' is damaged ({what}): check the disk, then restore the directory from a copy"
            ),
            EngineError::Io { place, what } => {
                write!(f, "the store in '{place}' failed ({what}): check the disk, then start the target again")
            }
            EngineError::WrongTarget { place, what } => {
                write!(f, "'{place}' belongs to something else ({what}): name the right directory")
            }
            EngineError::Busy { place, pid: Some(pid) } => {
                write!(f, "the store in '{place}' is in use by process {pid}: stop that process first")
            }
            EngineError::Busy { place, pid: None } => {
                write!(f, "the store in '{place}' is in use by another process: stop that process first")
            }
            EngineError::ReadOnly { place, what } => {
                write!(f, "the store in '{place}' cannot be written ({what}): make it writable for this user")
            }
            EngineError::Missing { place } => {
                write!(f, "there is no store in '{place}': make one with 'adamant mkfs', or name the right directory")
            }
        }
    }
}

impl core::error::Error for EngineError {}

impl EngineError {
    /// Whether what is stored is damaged: starting again does not help, a copy does.
    pub fn is_damage(&self) -> bool {
        match self {
            EngineError::Corrupt { .. } => true,
            EngineError::Damaged(damaged) => damaged.is_damage(),
            EngineError::Full { .. }
            | EngineError::Io { .. }
            | EngineError::WrongTarget { .. }
            | EngineError::Busy { .. }
            | EngineError::ReadOnly { .. }
            | EngineError::Missing { .. } => false,
        }
    }
}

impl From<Damaged> for EngineError {
    fn from(damaged: Damaged) -> EngineError {
        EngineError::Damaged(damaged)
    }
}

/// Records to be committed to an engine without a view, as when a target is made. A map from key to last value; `None`
/// deletes.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    records: BTreeMap<Key, Option<Value>>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Writes a record.
    pub fn put(&mut self, key: Key, body: Value) {
        self.records.insert(key, Some(body));
    }

    /// Deletes a record.
    pub fn delete(&mut self, key: Key) {
        self.records.insert(key, None);
    }

    /// The number of keys that it changes.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records, sealed and in key order, as [`Engine::commit`] takes them.
    pub fn seal(self, formats: &Formats) -> Vec<Change> {
        let seal = |(key, body): Change| {
            let sealed = body.map(|body| formats.seal(&key, &body));
            (key, sealed)
        };
        self.records.into_iter().map(seal).collect()
    }
}
