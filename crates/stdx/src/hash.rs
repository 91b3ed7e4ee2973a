//! The hasher of all tables: fast, and keyed, so that no outsider can choose colliding keys.
//!
//! There is one key per process. The driver of the real world draws it and sets it first ([`set_hash_key`]); the
//! simulator and tests set none and always have the same one, so that runs repeat.

use core::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};

/// Two seeds: of each hasher, and of its multiplications.
#[derive(Debug)]
struct HashKey {
    first: u64,
    rest: SharedSeed,
}

impl HashKey {
    fn new(key: [u64; 2]) -> HashKey {
        HashKey { first: key[0], rest: SharedSeed::from_u64(key[1]) }
    }
}

static KEY: OnceLock<HashKey> = OnceLock::new();

/// The default key.
const SAME_ALWAYS: [u64; 2] = [0x05ee_dada_aa17, 0x2c6f_e96e_e78b_6955];

/// Sets the key of all tables of this process. Returns false if a table exists already, and then the key is unchanged.
pub fn set_hash_key(key: [u64; 2]) -> bool {
    KEY.set(HashKey::new(key)).is_ok()
}

/// The hasher state of [`Map`](crate::Map), [`Set`](crate::Set) and [`Index`](crate::Index).
#[derive(Clone, Debug)]
pub struct KeyedHash(SeedableRandomState);

impl Default for KeyedHash {
    #[inline]
    fn default() -> Self {
        let key = KEY.get_or_init(|| HashKey::new(SAME_ALWAYS));
        KeyedHash(SeedableRandomState::with_seed(key.first, &key.rest))
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_decides_and_is_the_same_for_all_tables() {
        let of = |key: &'static HashKey| SeedableRandomState::with_seed(key.first, &key.rest);
        let fixed = of(Box::leak(Box::new(HashKey::new(SAME_ALWAYS))));
        let other = of(Box::leak(Box::new(HashKey::new([1, 2]))));
        assert_eq!(KeyedHash::default().hash_one(7_u64), fixed.hash_one(7_u64), "tests and the simulator repeat");
        assert_ne!(fixed.hash_one(7_u64), other.hash_one(7_u64));
        assert!(!set_hash_key([1, 2]), "tables are there");
        assert_eq!(KeyedHash::default().hash_one(7_u64), fixed.hash_one(7_u64));
    }

    /// With a known key, a first word can be chosen that cancels the effect of the following ones.
    #[test]
    fn keys_that_collide_under_one_key_do_not_under_another() {
        let word = 0x082e_ff76_3694_c69e_u64;
        let places = |hash: &dyn Fn((u64, u64)) -> u64| -> usize {
            (0..1000).map(|n| hash((word, n))).collect::<std::collections::BTreeSet<u64>>().len()
        };
        let known = foldhash::fast::FixedState::with_seed(SAME_ALWAYS[0]);
        assert_eq!(places(&|key| known.hash_one(key)), 1);
        let drawn: &'static HashKey = Box::leak(Box::new(HashKey::new([3, 4])));
        let state = SeedableRandomState::with_seed(drawn.first, &drawn.rest);
        assert_eq!(places(&|key| state.hash_one(key)), 1000);
    }
}
