//! Coverage marks: a rare branch contains `mark!("name")`, and the test that is meant to reach it asserts that it did.
//!
//! Counts are per thread, because a simulated cluster runs in one. A release build counts nothing before
//! [`count_here`].

use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;

thread_local! {
    static HITS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

static COUNTED: AtomicBool = AtomicBool::new(cfg!(debug_assertions));

/// Enables counting from now on, in a release build too.
pub fn count_here() {
    COUNTED.store(true, Ordering::Relaxed);
}

/// Counts one hit of `name` (used through [`mark!`](crate::mark)).
pub fn hit(name: &'static str) {
    if COUNTED.load(Ordering::Relaxed) {
        HITS.with_borrow_mut(|hits| *hits.entry(name).or_default() += 1);
    }
}

/// How often `name` was hit on this thread.
pub fn count(name: &str) -> u64 {
    HITS.with_borrow(|hits| hits.get(name).copied().unwrap_or(0))
}

/// The hits on this thread since the last call, with counts.
pub fn take() -> BTreeMap<&'static str, u64> {
    HITS.with_borrow_mut(core::mem::take)
}

/// Marks that this branch was reached.
#[macro_export]
macro_rules! mark {
    ($name:literal) => {
        $crate::marks::hit($name)
    };
}
