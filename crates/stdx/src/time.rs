//! Time as provided by the driver.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since an origin that the driver chose (process start, simulation start).
/// Only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);
    /// Later than every instant that occurs.
    pub const FAR: Instant = Instant(u64::MAX);

    /// The time since `earlier`; zero if that is in the future.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

/// The time for which a driver has been running: its clock without the gaps in which it did not run, because the
/// process was stopped, its virtual machine paused, or the host out of memory. With this time, no deadline of a peer
/// passes while its messages could not arrive.
///
/// A driver reads it at each turn of its loop, and takes a turn at least every [`TURN_MAX`](RunningTime::TURN_MAX) even
/// if nothing happens. So two readings that are further apart than [`GAP_MIN`](RunningTime::GAP_MIN) have a gap between
/// them. A gap counts as one turn, so that time advances even for a driver that is slow at every turn.
///
/// ```
/// use core::time::Duration;
/// use stdx::{Instant, RunningTime};
///
/// let second = |n: u64| Instant(n * 1_000_000_000);
/// let mut time = RunningTime::new(second(10));
/// assert_eq!(time.now(second(11)), second(11));
/// // A pause of 30 seconds.
/// assert_eq!(time.now(second(41)), second(12));
/// assert_eq!(time.take_gap(), Some(Duration::from_secs(30)));
/// assert_eq!(time.now(second(42)), second(13));
/// assert_eq!(time.at(second(14)), second(43), "what was due at 14 is due then");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningTime {
    last: Instant,
    hidden: Duration,
    gap: Option<Duration>,
}

impl RunningTime {
    /// Longest time between two readings of a running driver.
    pub const TURN_MAX: Duration = Duration::from_secs(1);
    /// Shortest time without a reading that counts as a gap.
    pub const GAP_MIN: Duration = Duration::from_secs(2);

    /// Creates it at the driver's time `clock`.
    pub fn new(clock: Instant) -> RunningTime {
        RunningTime { last: clock, ..RunningTime::default() }
    }

    /// The running time at the driver's time `clock`.
    pub fn now(&mut self, clock: Instant) -> Instant {
        let gap = clock.since(self.last);
        self.last = self.last.max(clock);
        if gap > RunningTime::GAP_MIN {
            self.hidden += gap - RunningTime::TURN_MAX;
            self.gap = Some(gap.max(self.gap.unwrap_or_default()));
        }
        self.last - self.hidden
    }

    /// The driver's time at the running time `instant`, if there is no gap before it.
    pub fn at(&self, instant: Instant) -> Instant {
        instant + self.hidden
    }

    /// The longest gap since the last call.
    pub fn take_gap(&mut self) -> Option<Duration> {
        self.gap.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings at random intervals: time never goes back, never runs ahead of the clock, misses no more than the gaps,
    /// and advances at each of them.
    #[test]
    fn running_time_is_the_clock_without_its_gaps() {
        for seed in 0..200 {
            let mut rng = crate::Rng::new(seed);
            let mut clock = Instant(rng.below(1 << 40));
            let mut time = RunningTime::new(clock);
            let (start, mut last, mut gaps) = (clock, clock, Duration::ZERO);
            for _ in 0..100 {
                let pause = Duration::from_millis(if rng.chance(1, 10) { rng.below(60_000) } else { rng.below(1_100) });
                clock = clock + pause;
                let now = time.now(clock);
                if pause > RunningTime::GAP_MIN {
                    gaps += pause - RunningTime::TURN_MAX;
                    assert_eq!(now.since(last), RunningTime::TURN_MAX, "seed {seed}");
                    assert_eq!(time.take_gap(), Some(pause));
                } else {
                    assert_eq!(now.since(last), pause, "seed {seed}");
                }
                assert_eq!((time.take_gap(), time.at(now)), (None, clock));
                last = now;
            }
            assert_eq!(clock.since(start), last.since(start) + gaps, "seed {seed}");
        }
        // Threads may deliver their clock readings out of order.
        let mut time = RunningTime::new(Instant(5_000));
        assert_eq!((time.now(Instant(7_000)), time.now(Instant(6_000))), (Instant(7_000), Instant(7_000)));
    }
}
