//! The store of a target: an ordered key space that is changed by atomic groups, without I/O.
//!
//! It has three parts, from the target outwards:
//!
//! 1. [`View`]: the interface of the target's thread. It layers the group that collects changes over the group that is being
//!    written, over a bounded cache of clean records. It never waits: a read of a record that is not in memory is a [`Miss`],
//!    and the attempt is dropped and runs again when the record is loaded.
//! 2. [`StoreEffect`]s: the I/O that the view requests. A [`Load`] reads, a [`Group`] is committed. Both have a `run` that
//!    does so on an [`Engine`], for the host's engine threads and for the simulator alike. Sealing (checksum and format
//!    version) and sorting happen there, so that the target's thread and reads from memory do not pay for them.
//! 3. [`Engine`]: an ordered store of sealed bytes with durable atomic commits. [`MemEngine`] is the one in memory, with
//!    crash behaviour; the one on disk is in the crate `engine`.
//!
//! It leaves to others the meaning of keys and values (`schema`), the threads (`host`), and the time of replies (`target`).
//!
//! # Invariants
//! - A group is atomic, groups become durable in order, a crash leaves a prefix of groups.
//! - A group ends only between attempts, so a change and its reply record are always in the same group.
//! - A record whose checksum, which covers its key, is wrong gives an error that names the record, never a wrong answer.
//! - Memory is bounded: the cache by its limit (plus what waiting attempts have pinned), the groups by the dirty limit.
//!
//! # One change, from request to disk
//! ```
//! use store::*;
//! use stdx::Instant;
//!
//! let engine = MemEngine::new();
//! let mut view = View::new(ViewConfig::default(), Formats::new(|_key| 1), engine.last_group().unwrap());
//! let (attempt, key) = (AttemptId(1), Key::table(7).u64(42));
//!
//! view.begin(attempt);
//! assert_eq!(view.get(&key), Err(Miss));                       // not in memory: the attempt is dropped,
//! view.abandon();
//! let Some(StoreEffect::Load(load)) = view.poll() else { panic!() };
//! assert_eq!(view.loaded(load.run(&engine)), vec![attempt]);   // an engine thread reads, the attempt may run again
//!
//! view.begin(attempt);
//! assert_eq!(view.get(&key), Ok(None));                        // the cache knows now that there is no such record
//! view.put(key.clone(), Value::from_static(b"hello"));
//! let group = view.accept(Instant::ZERO).unwrap();             // the change is visible, and part of this group
//! view.finish(attempt);
//!
//! view.want_durable(group);                                    // an fsync
//! assert_eq!(view.seal_if_due(Instant::ZERO), Some(group));
//! let Some(StoreEffect::Commit(commit)) = view.poll() else { panic!() };
//! commit.run(&engine).unwrap();                                // an engine thread writes,
//! view.committed(group);                                       // and the change is durable
//! assert_eq!(view.durable_group(), group);
//! ```

mod cache;
mod effect;
mod engine;
mod key;
mod layer;
mod mem;
mod policy;
mod record;
mod view;

pub use effect::{Group, Load, LoadDone, LoadId, LoadResult, LoadWhat, StoreEffect, run_loads};
pub use engine::{Batch, Engine, EngineError, Scanned, Space, Verified};
pub use key::{KEY_LEN_MAX, Key, KeyRange};
pub use mem::MemEngine;
pub use policy::{CommitPolicy, Room, RoomFor};
pub use record::{Damage, Damaged, Formats, SEAL_LEN, open, seal};
pub use view::{AttemptId, Miss, Savepoint, View, ViewConfig};

/// The body of a record in memory, and a sealed record in an engine.
///
/// A value keeps its whole allocation alive: copy a small part of a large buffer before it is put into a view.
pub type Value = bytes::Bytes;

/// A change of one record: its new value, or `None` for a deletion.
pub type Change = (Key, Option<Value>);
