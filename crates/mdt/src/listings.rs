//! How many names a listing has shown so far, to tell a lost record from a name that never was.
//!
//! A directory's inode counts its entries in the same group as they are written. A listing that reaches the end with fewer names than
//! that has met a loss. Listings come in pages, and a page says only after which cookie it begins; so what a page ends with is kept
//! here: up to this cookie, in this version of the directory, there are so many names. That is true whoever asked, so listings of
//! several clients share it. A cache: bounded, and what was dropped, or a directory that changes while it is being listed, only means
//! that nothing is compared.
//!
//! Example: a directory counts 5 names and one record is lost. Page 1 (after 0) shows three and ends with cookie 48: `(dir, 48)` has 3.
//! Page 2 (after 48) shows one and reaches the end: 4 of 5. It says that there is more; `(dir, 64)` has 4. Page 3 (after 64) has no
//! name, and is refused with `EIO`: all that is left was shown before the error.

use std::collections::VecDeque;
use stdx::Map;

/// Ends of pages that are kept.
const PAGES_MAX: usize = 4096;

/// Names of a directory up to the end of a page.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The directory's version then.
    version: u64,
    names: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Listings {
    /// By directory and last cookie.
    pages: Map<(u64, u64), Counted>,
    /// Oldest first.
    order: VecDeque<(u64, u64)>,
}

impl Listings {
    /// How many names a directory of this version has up to a cookie, if that is known.
    pub fn names_until(&self, dir: u64, cookie: u64, version: u64) -> Option<u64> {
        if cookie == 0 {
            return Some(0);
        }
        self.pages.get(&(dir, cookie)).filter(|page| page.version == version).map(|page| page.names)
    }

    /// A page of a directory of this version ended with a cookie.
    pub fn page_ended(&mut self, dir: u64, cookie: u64, version: u64, names: u64) {
        if self.pages.insert((dir, cookie), Counted { version, names }).is_some() {
            return;
        }
        self.order.push_back((dir, cookie));
        if self.order.len() > PAGES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.pages.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_for_its_version_and_the_oldest_pages_go() {
        let mut listings = Listings::default();
        assert_eq!(listings.names_until(7, 0, 1), Some(0));
        assert_eq!(listings.names_until(7, 16, 1), None);
        listings.page_ended(7, 16, 1, 3);
        assert_eq!((listings.names_until(7, 16, 1), listings.names_until(7, 16, 2)), (Some(3), None));
        listings.page_ended(7, 16, 2, 4);
        assert_eq!((listings.names_until(7, 16, 1), listings.names_until(7, 16, 2)), (None, Some(4)));
        for dir in 100..100 + PAGES_MAX as u64 {
            listings.page_ended(dir, 16, 1, 1);
        }
        assert_eq!((listings.pages.len(), listings.order.len()), (PAGES_MAX, PAGES_MAX));
        assert_eq!(listings.names_until(7, 16, 2), None);
    }
}
