//! Completeness check of directory listings: detects entries whose records are lost.
//!
//! A directory's inode counts its entries in the same group as they are written. A listing that ends with fewer names has met
//! a lost record. Listings come in pages, and the request for a page names only the cookie after which it starts. So this
//! module remembers for the end of each page how many names the directory has up to that cookie, in that version. The number
//! does not depend on the client, so the listings of all clients share it. It is a bounded cache: after an eviction, or if the
//! directory changes during a listing, the listing is not checked.
//!
//! Example: a directory counts 5 names and one record is lost. Page 1 (after 0) has three names and ends with cookie 48:
//! `(dir, 48)` has 3. Page 2 (after 48) has one name and reaches the end: 4 of 5. Its reply says that there is more; `(dir, 64)`
//! has 4. Page 3 (after 64) has no name and is refused with `EIO`: the client got all remaining names before the error.

use std::collections::VecDeque;
use stdx::Map;

/// The most page ends that are kept.
const PAGES_MAX: usize = 4096;

/// The number of names of a directory up to the end of a page.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The directory's version at that time.
    version: u64,
    names: u64,
}

/// The ends of pages, with the number of names up to each.
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

    /// Records that a page of a directory of this version ended with a cookie, after `names` names.
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
