//! The clocks that drive the machines, and random numbers from the system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use stdx::RunningTime;

/// The clock of a driver: the monotonic clock of this process, less the time in which the process did not run. The driver
/// reads it at least once a second ([`RunningTime`]).
#[derive(Debug)]
pub struct Clock {
    start: std::time::Instant,
    running: Mutex<RunningTime>,
}

impl Default for Clock {
    fn default() -> Self {
        let start = std::time::Instant::now();
        Clock { start, running: Mutex::new(RunningTime::new(raw(start))) }
    }
}

/// Never zero, because zero stands for "never".
fn raw(start: std::time::Instant) -> stdx::Instant {
    stdx::Instant(start.elapsed().as_nanos() as u64 + 1)
}

impl Clock {
    /// The current time of the machine.
    pub fn now(&self) -> stdx::Instant {
        let mut running = self.running.lock();
        running.now(raw(self.start))
    }

    /// Converts an instant of the machine to one that timers take.
    pub fn at(&self, instant: stdx::Instant) -> std::time::Instant {
        let instant = self.running.lock().at(instant);
        self.start + Duration::from_nanos(instant.0.saturating_sub(1).min(u64::MAX / 4))
    }

    /// A line for the log if the process was stopped for a while.
    pub fn gap_message(&self) -> Option<String> {
        let gap = self.running.lock().take_gap()?;
        Some(format!(
            "did not run for {:.1} s (stopped, paused or short of memory): all its deadlines move",
            gap.as_secs_f64()
        ))
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

/// The instance number in the device names of a mount. It looks like a kernel address, as scripts for Lustre expect.
pub fn instance() -> client::api::Instance {
    client::api::Instance(0xffff << 48 | seed() >> 16)
}

/// A random identity.
pub fn uuid() -> proto::ClientUuid {
    proto::ClientUuid((u128::from(seed()) << 64) | u128::from(seed()))
}
