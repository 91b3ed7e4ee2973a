//! Counters of work for tests of complexity: a loop counts the items that it visits, and a test with ten times as many
//! items asserts that the count grew no faster.
//!
//! Counts are per thread, because a test's cluster runs in one. A release build does not count.

use core::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Counts visited items.
#[inline]
pub fn add(count: usize) {
    if cfg!(debug_assertions) {
        TAKEN.set(TAKEN.get() + count as u64);
    }
}

/// The number of items that `work` visited on this thread, and its result.
pub fn of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = TAKEN.get();
    let done = work();
    (TAKEN.get() - before, done)
}
