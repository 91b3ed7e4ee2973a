//! Directories whose every entry is known to be, or not to be, in the store: where a name is absent, nobody needs to look.
//!
//! A create must know that its name is free. The store could say so only after a read on the medium, because the record is
//! not there. So for directories that were made, or were empty, while the target ran, the cookies that are taken are kept
//! here. That is a cache: bounded, and dropped as a whole for the directory that was used least recently.
//!
//! Changed only by attempts that are certain to be accepted.

use std::collections::BTreeMap;
use stdx::{Map, Set};

/// A directory of which all cookies are known, tombstones included.
#[derive(Debug, Default)]
struct Known {
    cookies: Set<u64>,
    used: u64,
}

/// See the module.
#[derive(Debug)]
pub struct KnownDirs {
    dirs: Map<u64, Known>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    total: usize,
    limit: usize,
}

/// What one more directory costs, in cookies.
const DIR_COST: usize = 8;

impl KnownDirs {
    /// Keeps at most about `limit` cookies, of about 16 bytes each.
    pub fn new(limit: usize) -> KnownDirs {
        KnownDirs { dirs: Map::default(), by_use: BTreeMap::new(), clock: 0, total: 0, limit }
    }

    /// Whether a cookie is certainly free.
    pub fn is_free(&self, dir: u64, cookie: u64) -> bool {
        self.dirs.get(&dir).is_some_and(|known| !known.cookies.contains(&cookie))
    }

    /// Whether everything is known of a directory.
    pub fn knows(&self, dir: u64) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// From now on everything is known of this directory: these cookies are taken.
    pub fn learn(&mut self, dir: u64, cookies: impl IntoIterator<Item = u64>) {
        self.forget(dir);
        let known = Known { cookies: cookies.into_iter().collect(), used: 0 };
        self.total += known.cookies.len() + DIR_COST;
        self.dirs.insert(dir, known);
        self.touch(dir);
        self.shrink();
    }

    /// A cookie is taken.
    pub fn take(&mut self, dir: u64, cookie: u64) {
        let Some(known) = self.dirs.get_mut(&dir) else { return };
        self.total += usize::from(known.cookies.insert(cookie));
        self.touch(dir);
        self.shrink();
    }

    /// A cookie is free.
    pub fn free(&mut self, dir: u64, cookie: u64) {
        if let Some(known) = self.dirs.get_mut(&dir) {
            self.total -= usize::from(known.cookies.remove(&cookie));
        }
    }

    /// The directory is gone.
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

/// What an attempt of many changes has done to directories so far. It becomes known when the attempt is accepted; until then this goes
/// before what is known.
#[derive(Debug, Default)]
pub struct Pending {
    /// Directories that it has made: nothing is in them but what it has put there.
    made: Set<u64>,
    /// Cookies that it has used, by directory.
    used: Set<(u64, u64)>,
}

impl Pending {
    /// It has made a directory.
    pub fn made(&mut self, dir: u64) {
        self.made.insert(dir);
    }

    /// It has put an entry.
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
