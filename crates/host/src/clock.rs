//! The clocks that the machines are told of.

use std::time::{SystemTime, UNIX_EPOCH};

/// The monotonic clock of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { start: std::time::Instant::now() }
    }
}

impl Clock {
    /// Now, for a machine. Never zero, so that "never" can be.
    pub fn now(&self) -> stdx::Instant {
        stdx::Instant(self.start.elapsed().as_nanos() as u64 + 1)
    }

    /// The instant of a machine as one that timers understand.
    pub fn at(&self, instant: stdx::Instant) -> std::time::Instant {
        self.start + std::time::Duration::from_nanos(instant.0.saturating_sub(1).min(u64::MAX / 4))
    }
}

/// Nanoseconds since 1970.
pub fn wall_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

/// A seed from the operating system.
pub fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    if filled == bytes.len() { u64::from_le_bytes(bytes) } else { wall_ns() as u64 }
}

/// A random identity.
pub fn uuid() -> proto::ClientUuid {
    proto::ClientUuid((u128::from(seed()) << 64) | u128::from(seed()))
}
