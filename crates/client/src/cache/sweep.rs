//! Sweep detection: whether a program looks at the files of a directory one after another, so that their attributes are
//! worth prefetching.

use bytes::Bytes;

use crate::cache::names::Listed;

/// This many requests in order are a sweep.
pub(crate) const IN_ORDER: u32 = 16;
/// A request that prefetching would have avoided justifies prefetching the attributes of this many files,
const WORTH_ASKED: u64 = 40;
/// and each use of prefetched attributes that of this many: the next piece is requested when half of the last one is
/// used.
const WORTH_USED: u64 = 2;
/// How far ahead in the listing the next name may be.
const STRIDE: usize = 8;
/// After this many names that were not found ahead, the whole listing is searched for one.
const LOST: u32 = 256;

/// The progress of a sweep, and what was prefetched for it.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The name requested last, its inode number, and where the listing continues after it.
    pub(crate) name: Bytes,
    pub(crate) ino: u64,
    pub(crate) place: usize,
    /// Names that were not found ahead in the listing.
    pub(crate) lost: u32,
    /// How many requests in a row were in order by name, by number, by place in the listing.
    pub(crate) in_order: [u32; 3],
    /// Requests since the sweep was detected.
    pub(crate) asked: u64,
    /// Lookups that found cached attributes since something was prefetched.
    pub(crate) used: u64,
    /// Files whose attributes were prefetched, and the cookie after which the next piece starts.
    pub(crate) fetched: u64,
    pub(crate) after: u64,
    pub(crate) fetching: bool,
}

impl Sweep {
    /// The place of a name in the listing, if it is one of the next.
    pub(crate) fn find(&mut self, entries: &[Listed], name: &Bytes) -> Option<usize> {
        let rest = entries.get(self.place..).unwrap_or_default();
        let near = rest.iter().take(STRIDE).position(|listed| listed.name == name).map(|at| self.place + at);
        if near.is_some() {
            return near;
        }
        self.lost = self.lost.wrapping_add(1);
        if self.lost % LOST == 1 { entries.iter().position(|listed| listed.name == name) } else { None }
    }

    /// Counts a request. Returns whether it is part of a sweep.
    pub(crate) fn count(&mut self, name: &Bytes, ino: u64, place: Option<usize>) -> bool {
        let follows = [*name > self.name, ino > self.ino, place.is_some()];
        for (count, follows) in self.in_order.iter_mut().zip(follows) {
            *count = if follows { *count + 1 } else { 0 };
        }
        self.name = name.clone();
        self.ino = ino;
        self.place = place.map_or(0, |place| place + 1);
        self.in_order.iter().any(|count| *count >= IN_ORDER)
    }

    /// Whether the program has used enough attributes to justify another piece.
    pub(crate) fn is_worth_more(&self) -> bool {
        self.asked > 0 && self.fetched < WORTH_ASKED * self.asked + WORTH_USED * self.used
    }
}
