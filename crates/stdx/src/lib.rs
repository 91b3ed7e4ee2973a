//! Utilities for a core without I/O that the standard library lacks.
//!
//! - [`Instant`]: a point in time, provided by the driver; the core has no clock.
//! - [`RunningTime`]: a driver's clock without the pauses of its process, so that no deadline passes because of a
//!   pause.
//! - [`Rng`]: a small generator from one seed.
//! - [`Map`], [`Set`]: hash maps with a hasher whose key the driver provides. Never iterate one into visible output:
//!   the order is stable for one history of inserts, but arbitrary.
//! - [`Slab`], [`Index`]: many items at stable small indices, and lookup by a key that is part of the item.
//! - [`BoundedQueue`]: a queue with a limit.
//! - [`Deadlines`]: the earliest of many deadlines.
//! - [`Faults`]: fault injection at named sites.
//! - [`wildcard`]: patterns of parameter names.
//! - [`steps`]: counters of work, for tests of complexity.
//! - [`tally`]: statistics of samples.
//! - [`mark!`], [`marks`]: coverage marks, which tie a rare branch to the test that is meant to reach it.

mod deadlines;
pub mod faults;
mod hash;
mod index;
pub mod marks;
mod queue;
mod rng;
mod slab;
pub mod steps;
pub mod tally;
mod time;
pub mod wildcard;

pub use deadlines::Deadlines;
pub use faults::{Faults, Site};
pub use hash::{KeyedHash, set_hash_key};
pub use index::Index;
pub use queue::BoundedQueue;
pub use rng::Rng;
pub use slab::Slab;
pub use time::{Instant, RunningTime};

/// A hash table whose user hashes (with [`KeyedHash`]) and compares, for keys that are part of the items.
pub type Table<T> = hashbrown::HashTable<T>;
/// A hash map with the keyed hasher.
pub type Map<K, V> = hashbrown::HashMap<K, V, KeyedHash>;
/// A hash set with the keyed hasher.
pub type Set<K> = hashbrown::HashSet<K, KeyedHash>;
