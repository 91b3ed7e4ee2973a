//! What the standard library lacks for a core without I/O.
//!
//! - [`Instant`]: a point in time that the driver gives; the core has no clock of its own.
//! - [`RunningTime`]: what a driver makes of its clock, so that a pause of the process is nobody's fault.
//! - [`Rng`]: a small generator from one seed.
//! - [`Map`], [`Set`]: hash maps with a hasher whose key the driver gives. Never iterate one into output that anyone sees:
//!   the order is stable for one history of inserts, but means nothing.
//! - [`Slab`], [`Index`]: many items at stable small indices, and the way to them from a key that they know.
//! - [`BoundedQueue`]: a queue that says no.
//! - [`Faults`]: faults on purpose, at named sites.
//! - [`wildcard`]: patterns of parameter names.
//! - [`steps`]: the work of walks, counted for tests of what things cost.
//! - [`tally`]: statistics of samples.
//! - [`mark!`], [`marks`]: coverage marks that tie a rare branch to the test that means to reach it.

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

pub use faults::{Faults, Site};
pub use hash::{KeyedHash, set_hash_key};
pub use index::Index;
pub use queue::BoundedQueue;
pub use rng::Rng;
pub use slab::Slab;
pub use time::{Instant, RunningTime};

/// A hash table whose user hashes, with [`KeyedHash`], and compares: for keys that its items know.
pub type Table<T> = hashbrown::HashTable<T>;
/// A hash map with the keyed hasher.
pub type Map<K, V> = hashbrown::HashMap<K, V, KeyedHash>;
/// A hash set with the keyed hasher.
pub type Set<K> = hashbrown::HashSet<K, KeyedHash>;
