//! What a target's store stands on: an ordered store of sealed bytes with durable atomic commits.

use crate::{Change, Damaged, Formats, Key, KeyRange, Value};
use core::fmt;
use std::collections::BTreeMap;

/// An ordered store of sealed records. Its methods block; they are called on engine threads, never on a target's.
///
/// Any number of threads may read at once, also while one commits; a read sees the state after some whole group that is
/// at least as new as the last group whose commit had returned when the read began.
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
    /// Groups come one at a time with rising numbers; records come in key order, each key once.
    fn commit(&self, group: u64, records: &[Change]) -> Result<(), EngineError>;

    /// The number of the last durable group; 0 in a new store.
    fn last_group(&self) -> Result<u64, EngineError>;

    /// How much room there is.
    fn space(&self) -> Result<Space, EngineError>;

    /// Looks for damage that no reading has met, at about `bytes` of what lies on the medium, from the key `from` on. It
    /// reads beside everything else. Nothing is found by an engine that keeps nothing on a medium.
    ///
    /// # Errors
    /// It could not look.
    fn verify(&self, _from: &Key, _bytes: usize) -> Result<Verified, EngineError> {
        Ok(Verified::default())
    }

    /// Its name in parameters.
    fn kind(&self) -> &'static str;
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Keys and values in key order.
    pub records: Vec<(Key, Value)>,
    /// Whether these are all of the range; otherwise all up to the last one.
    pub complete: bool,
}

/// What a look for damage found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Where the next look goes on; `None`: everything was looked at.
    pub next: Option<Key>,
    /// A sentence for each damage.
    pub damage: Vec<String>,
}

/// Room on the medium, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The whole.
    pub total: u64,
    /// What new records may use. The reserve is already taken off.
    pub free: u64,
    /// What is kept so that removals still work when `free` is 0.
    pub reserve: u64,
    /// What new records that are not durable may use together, at most: part of `free` may lie too scattered for them.
    pub at_once: u64,
    /// How many records are stored.
    pub records: u64,
}

/// Why an engine could not do it, by what to do next. Each message says what happened, to what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// Make room: the same group can be tried again, nothing of it was written.
    Full {
        /// Where.
        place: String,
        /// What ran out.
        what: String,
    },
    /// One record cannot be used; the rest can.
    Damaged(Damaged),
    /// The store as a whole cannot be read.
    Corrupt {
        /// Where.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The medium failed: look at it, then start again.
    Io {
        /// Where.
        place: String,
        /// What failed.
        what: String,
    },
    /// This place holds something else than was expected.
    WrongTarget {
        /// Where.
        place: String,
        /// What was found and what was expected.
        what: String,
    },
    /// Another process uses the store.
    Busy {
        /// Where.
        place: String,
        /// The other process, if it left its number.
        pid: Option<u32>,
    },
    /// The medium or the store does not let itself be written.
    ReadOnly {
        /// Where.
        place: String,
        /// What refused.
        what: String,
    },
    /// There is no store here.
    Missing {
        /// Where.
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

impl From<Damaged> for EngineError {
    fn from(damaged: Damaged) -> EngineError {
        EngineError::Damaged(damaged)
    }
}

/// Records for an engine without a view: how a target is made. A map from key to last value; `None` deletes.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    records: BTreeMap<Key, Option<Value>>,
}

impl Batch {
    /// Nothing yet.
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

    /// How many keys it touches.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it touches nothing.
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
