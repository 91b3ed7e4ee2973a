//! Coverage marks: a rare branch says `mark!("name")`, and the test that means to reach it asserts that it did.
//!
//! Counts are per thread, because a simulated cluster runs in one. In a release build a mark costs nothing.

use core::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static HITS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts one hit of `name` (used through [`mark!`](crate::mark)).
pub fn hit(name: &'static str) {
    if cfg!(debug_assertions) {
        HITS.with_borrow_mut(|hits| *hits.entry(name).or_default() += 1);
    }
}

/// How often `name` was hit on this thread.
pub fn count(name: &str) -> u64 {
    HITS.with_borrow(|hits| hits.get(name).copied().unwrap_or(0))
}

/// Says that this branch was reached.
#[macro_export]
macro_rules! mark {
    ($name:literal) => {
        $crate::marks::hit($name)
    };
}
