//! Steps of work, counted for tests of what things cost: a walk says over how many things it went, and a test that makes ten times as
//! many things asserts that the walks grew no faster.
//!
//! Counts are per thread, because a cluster of a test runs in one. In a release build they cost nothing.

use core::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// So many things were looked at.
#[inline]
pub fn add(count: usize) {
    if cfg!(debug_assertions) {
        TAKEN.set(TAKEN.get() + count as u64);
    }
}

/// Steps taken by `work` on this thread.
pub fn of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = TAKEN.get();
    let done = work();
    (TAKEN.get() - before, done)
}
