//! The wish to end early: a signal sets it, loops look at it between two operations.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Ends what runs in this process after the operation that is under way.
pub fn request() {
    STOP.store(true, Ordering::Relaxed);
}

/// Whether the end was asked for.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
