//! What the standard library lacks for a core without I/O.
//!
//! - [`Instant`]: a point in time that the driver gives; the core has no clock of its own.
//! - [`Rng`]: a small generator from one seed.
//! - [`Map`], [`Set`]: hash maps with a fixed-seed hasher. Never iterate one into output that anyone sees:
//!   the order is stable for one history of inserts, but means nothing.
//! - [`Slab`], [`Index`]: many items at stable small indices, and the way to them from a key that they know.
//! - [`BoundedQueue`]: a queue that says no.
//! - [`Faults`]: faults on purpose, at named sites.
//! - [`wildcard`]: patterns of parameter names.
//! - [`mark!`], [`marks`]: coverage marks that tie a rare branch to the test that means to reach it.

pub mod faults;
mod index;
pub mod marks;
mod queue;
mod rng;
mod slab;
mod time;
pub mod wildcard;

pub use faults::{Faults, Site};
pub use index::Index;
pub use queue::BoundedQueue;
pub use rng::Rng;
pub use slab::Slab;
pub use time::Instant;

/// The hasher state of [`Map`] and [`Set`]: keyed, with a seed that never changes.
#[derive(Clone, Debug)]
pub struct FixedHash(foldhash::fast::FixedState);

impl Default for FixedHash {
    fn default() -> Self {
        FixedHash(foldhash::fast::FixedState::with_seed(0x05ee_dada_aa17))
    }
}

impl core::hash::BuildHasher for FixedHash {
    type Hasher = <foldhash::fast::FixedState as core::hash::BuildHasher>::Hasher;
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

/// A hash table whose user hashes, with [`FixedHash`], and compares: for keys that its items know.
pub type Table<T> = hashbrown::HashTable<T>;
/// A hash map with the fixed-seed hasher.
pub type Map<K, V> = hashbrown::HashMap<K, V, FixedHash>;
/// A hash set with the fixed-seed hasher.
pub type Set<K> = hashbrown::HashSet<K, FixedHash>;
