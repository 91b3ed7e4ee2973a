//! How a program goes through a directory that looks at one file after another.

use bytes::Bytes;

use crate::cache::names::Listed;

/// So many requests in order are a sweep.
pub(crate) const IN_ORDER: u32 = 16;
/// A request made in vain is worth the attributes of so many files,
const WORTH_ASKED: u64 = 40;
/// and each use of such attributes that of so many: the next piece is asked for when half of the last is used.
const WORTH_USED: u64 = 2;
/// How far ahead in the listing the next name may be.
const STRIDE: usize = 8;
/// After so many names that were not there, the whole listing is searched for one.
const LOST: u32 = 256;

/// How somebody goes through a directory, and what has been fetched ahead.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The name that was asked for last, its inode number, and where after it the listing goes on.
    pub(crate) name: Bytes,
    pub(crate) ino: u64,
    pub(crate) place: usize,
    /// Names that were not where the listing goes on.
    pub(crate) lost: u32,
    /// How many in a row followed by name, by number, by place.
    pub(crate) in_order: [u32; 3],
    /// Asked for since the sweep was seen.
    pub(crate) asked: u64,
    /// Looked up, and here, since something was fetched.
    pub(crate) used: u64,
    /// Files whose attributes were fetched, and the cookie after which the next piece begins.
    pub(crate) fetched: u64,
    pub(crate) after: u64,
    pub(crate) fetching: bool,
}

impl Sweep {
    /// Where a name stands in the listing, if it is the next one or so.
    pub(crate) fn find(&mut self, entries: &[Listed], name: &Bytes) -> Option<usize> {
        let rest = entries.get(self.place..).unwrap_or_default();
        let near = rest.iter().take(STRIDE).position(|listed| listed.name == name).map(|at| self.place + at);
        if near.is_some() {
            return near;
        }
        self.lost = self.lost.wrapping_add(1);
        if self.lost % LOST == 1 { entries.iter().position(|listed| listed.name == name) } else { None }
    }

    /// Counts a request; whether it is one of a sweep.
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

    /// Whether the program was seen to want so many attributes that another piece is worth it.
    pub(crate) fn is_worth_more(&self) -> bool {
        self.asked > 0 && self.fetched < WORTH_ASKED * self.asked + WORTH_USED * self.used
    }
}
