//! An allocator that counts: how much memory a test program holds now, and the most that it ever held.
//!
//! A test program counts if it says
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: testkit::memory::Counting = testkit::memory::Counting;
//! ```
//!
//! What other threads allocate is counted too, so tests that compare figures take turns ([`alone`]).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// The system's allocator, with two numbers beside it.
pub struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// What is not counted: see [`apart`].
static APART: AtomicIsize = AtomicIsize::new(0);

fn counted(now: usize) -> usize {
    now.saturating_add_signed(-APART.load(Relaxed))
}

// SAFETY: everything is passed on to the system's allocator; only numbers are kept beside it.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(counted(now), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that are allocated now.
pub fn held() -> usize {
    counted(NOW.load(Relaxed))
}

/// Something that stands for a medium works: what it has more of afterwards, or less, does not count.
pub fn apart(work: &mut dyn FnMut()) {
    let (before, peak) = (NOW.load(Relaxed), PEAK.load(Relaxed));
    work();
    APART.fetch_add(NOW.load(Relaxed) as isize - before as isize, Relaxed);
    PEAK.store(peak.max(held()), Relaxed);
}

/// There are no media any more.
pub fn none_apart() {
    APART.store(0, Relaxed);
}

/// The most that `work` has allocated at once, beyond what was there before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = held();
    PEAK.store(before, Relaxed);
    let result = work();
    (result, PEAK.load(Relaxed).saturating_sub(before))
}

/// Held by the test that runs now.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|failed| failed.into_inner())
}
