//! The request to stop early: a signal sets it, and loops check it between operations.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Stops the work of this process after the current operation.
pub fn request() {
    STOP.store(true, Ordering::Relaxed);
}

/// Whether a stop was requested.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
