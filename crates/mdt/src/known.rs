//! Known directories: an index in memory of all entries of a directory, so that an absent name needs no read.
//!
//! A create must know that its name is free. For an absent record the store would have to read the medium. So for
//! directories that were made, or were empty, while the target ran, this module keeps the cookies in use. It is a bounded
//! cache, which drops the least recently used directory as a whole.
//!
//! Only attempts that are certain to be accepted change it.

use std::collections::BTreeMap;
use stdx::{Map, Set};

/// All cookies in use in one directory, tombstones included.
#[derive(Debug, Default)]
struct Known {
    cookies: Set<u64>,
    used: u64,
}

/// The known directories.
#[derive(Debug)]
pub struct KnownDirs {
    dirs: Map<u64, Known>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    total: usize,
    limit: usize,
}

/// The cost of a directory itself, in cookies.
const DIR_COST: usize = 8;

impl KnownDirs {
    /// A cache of about `limit` cookies, of about 16 bytes each.
    pub fn new(limit: usize) -> KnownDirs {
        KnownDirs { dirs: Map::default(), by_use: BTreeMap::new(), clock: 0, total: 0, limit }
    }

    /// Whether a cookie is certainly free.
    pub fn is_free(&self, dir: u64, cookie: u64) -> bool {
        self.dirs.get(&dir).is_some_and(|known| !known.cookies.contains(&cookie))
    }

    /// Whether a directory is known.
    pub fn knows(&self, dir: u64) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// Makes a directory known, with these cookies in use.
    pub fn learn(&mut self, dir: u64, cookies: impl IntoIterator<Item = u64>) {
        self.forget(dir);
        let known = Known { cookies: cookies.into_iter().collect(), used: 0 };
        self.total += known.cookies.len() + DIR_COST;
        self.dirs.insert(dir, known);
        self.touch(dir);
        self.shrink();
    }

    /// Marks a cookie as used.
    pub fn take(&mut self, dir: u64, cookie: u64) {
        let Some(known) = self.dirs.get_mut(&dir) else { return };
        self.total += usize::from(known.cookies.insert(cookie));
        self.touch(dir);
        self.shrink();
    }

    /// Marks a cookie as free.
    pub fn free(&mut self, dir: u64, cookie: u64) {
        if let Some(known) = self.dirs.get_mut(&dir) {
            self.total -= usize::from(known.cookies.remove(&cookie));
        }
    }

    /// Drops a directory.
    pub fn forget(&mut self, dir: u64) {
        if let Some(known) = self.dirs.remove(&dir) {
            self.total -= known.cookies.len() + DIR_COST;
            self.by_use.remove(&known.used);
        }
    }

    fn touch(&mut self, dir: u64) {
        let Some(known) = self.dirs.get_mut(&dir) else { return };
        if known.used == self.clock && known.used != 0 {
            return;
        }
        self.by_use.remove(&known.used);
        self.clock += 1;
        known.used = self.clock;
        self.by_use.insert(self.clock, dir);
    }

    fn shrink(&mut self) {
        while self.total > self.limit {
            let Some((_, &oldest)) = self.by_use.first_key_value() else { return };
            self.forget(oldest);
        }
    }
}

/// Entries that an attempt with several changes has made so far. [`KnownDirs`] gets them when the attempt is accepted; until
/// then this takes precedence over it.
#[derive(Debug, Default)]
pub struct Pending {
    /// Directories that the attempt made: they have no entries but those in `used`.
    made: Set<u64>,
    /// Entries that the attempt made: directory and cookie.
    used: Set<(u64, u64)>,
}

impl Pending {
    /// Records a new directory.
    pub fn made(&mut self, dir: u64) {
        self.made.insert(dir);
    }

    /// Records a new entry.
    pub fn took(&mut self, dir: u64, cookie: u64) {
        self.used.insert((dir, cookie));
    }

    /// Whether a cookie is certainly free, for this attempt.
    pub fn is_free(&self, known: &KnownDirs, dir: u64, cookie: u64) -> bool {
        (self.made.contains(&dir) || known.is_free(dir, cookie)) && !self.used.contains(&(dir, cookie))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_stays_right_and_bounded() {
        let mut known = KnownDirs::new(40);
        assert!(!known.is_free(1, 16), "nothing is known of it");
        known.learn(1, []);
        known.learn(2, [32]);
        assert!(known.is_free(1, 16) && !known.is_free(2, 32) && known.is_free(2, 16));
        known.take(1, 16);
        known.free(2, 32);
        assert!(!known.is_free(1, 16) && known.is_free(2, 32));
        for cookie in 0..25 {
            known.take(1, cookie * 16);
        }
        assert!(known.knows(1) && !known.knows(2), "the one that was used least recently goes");
        for cookie in 25..50 {
            known.take(1, cookie * 16);
        }
        assert!(!known.knows(1) && known.total == 0 && known.by_use.is_empty());
    }
}
