//! Adaptive timeouts: deadlines for requests, derived from how long recent requests took.
//!
//! A server keeps the worst service time of the last minutes and sends it with each reply as its estimate. A client
//! waits a quarter longer than that, plus a constant, before it suspects the connection. If a request takes even
//! longer, the server sends an *early reply*, which extends the client's deadline. The scheme and the names of the
//! settings are Lustre's.
//!
//! ```text
//! client waits     service estimate × 1.25 + 5 s + network latency
//! early reply      at_early_margin before that; extends the deadline by at_extra plus the time taken so far
//! at_max = 0       adaptive timeouts off: requests may take `timeout`, and an early reply is sent at half of that
//! ```

use core::time::Duration;

use proto::params::{Bound, OfTimeouts};
use proto::{Errno, bound_as_declared};
use stdx::Instant;

/// Constant that is added to every estimate.
const GRACE: Duration = Duration::from_secs(5);
/// Number of bins of the history; the oldest bin is dropped at a time.
const BINS: usize = 4;
/// Ping intervals of silence after which a client is evicted.
const SILENT_INTERVALS: u32 = 6;

/// Settings of a process, under Lustre's names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Deadline of a request without an estimate; a quarter of it is the default interval of pings.
    pub timeout: Duration,
    /// Lower bound of estimates.
    pub at_min: Duration,
    /// Upper bound of estimates; zero disables adaptive timeouts.
    pub at_max: Duration,
    /// Time for which a measured service time counts.
    pub at_history: Duration,
    /// How long before a client's deadline an early reply is sent.
    pub at_early_margin: Duration,
    /// How much an early reply extends the deadline.
    pub at_extra: Duration,
    /// Interval of pings; by default a quarter of `timeout`.
    pub ping_interval: Option<Duration>,
    /// Server only: clients need not ping, and none is evicted for silence.
    pub suppress_pings: bool,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            timeout: Duration::from_secs(100),
            at_min: Duration::from_secs(5),
            at_max: Duration::from_secs(600),
            at_history: Duration::from_secs(600),
            at_early_margin: Duration::from_secs(5),
            at_extra: Duration::from_secs(30),
            ping_interval: None,
            suppress_pings: false,
        }
    }
}

/// How the settings are read and set. Zero is for `at_max` and `at_min`, and for `ping_interval`, where it restores the quarter
/// of `timeout`.
const fn bound(which: OfTimeouts) -> Bound<Timeouts> {
    match which {
        OfTimeouts::Timeout => Bound::Number(|t| seconds(t.timeout), |t, n| set_seconds(&mut t.timeout, n)),
        OfTimeouts::AtMin => Bound::Number(|t| seconds(t.at_min), |t, n| set_seconds(&mut t.at_min, n)),
        OfTimeouts::AtMax => Bound::Number(|t| seconds(t.at_max), |t, n| set_seconds(&mut t.at_max, n)),
        OfTimeouts::AtHistory => Bound::Number(|t| seconds(t.at_history), |t, n| set_seconds(&mut t.at_history, n)),
        OfTimeouts::AtEarlyMargin => {
            Bound::Number(|t| seconds(t.at_early_margin), |t, n| set_seconds(&mut t.at_early_margin, n))
        }
        OfTimeouts::AtExtra => Bound::Number(|t| seconds(t.at_extra), |t, n| set_seconds(&mut t.at_extra, n)),
        OfTimeouts::PingInterval => Bound::Number(
            |t| seconds(t.ping_interval()),
            |t, n| {
                t.ping_interval = Some(Duration::from_secs(n)).filter(|at| !at.is_zero());
                Ok(())
            },
        ),
        OfTimeouts::SuppressPings => Bound::Number(
            |t| u8::from(t.suppress_pings).to_string(),
            |t, n| {
                t.suppress_pings = n == 1;
                Ok(())
            },
        ),
    }
}

const _: () = bound_as_declared!(OfTimeouts, bound);

fn seconds(time: Duration) -> String {
    time.as_secs().to_string()
}

fn set_seconds(time: &mut Duration, seconds: u64) -> Result<(), Errno> {
    *time = Duration::from_secs(seconds);
    Ok(())
}

impl Timeouts {
    /// Timeouts without estimates: a request may take `timeout`.
    pub fn fixed(timeout: Duration) -> Timeouts {
        let ping_interval = Some(Duration::from_secs(25));
        Timeouts { timeout, at_max: Duration::ZERO, ping_interval, ..Timeouts::default() }
    }

    /// Time without a request after which a client pings.
    pub fn ping_interval(&self) -> Duration {
        self.ping_interval.unwrap_or_else(|| (self.timeout / 4).max(Duration::from_secs(1)))
    }

    /// Time of silence after which a client is evicted.
    pub fn silence_max(&self) -> Duration {
        self.ping_interval() * SILENT_INTERVALS
    }

    /// The estimate clamped to its bounds.
    pub fn bounded(&self, estimate: Duration) -> Duration {
        estimate.max(self.at_min).min(self.at_max)
    }

    /// How long a client waits for a reply, given the server's estimate and the network's latency.
    pub fn request_timeout(&self, service: Duration, network: Duration) -> Duration {
        if self.at_max.is_zero() {
            return self.timeout;
        }
        let service = self.bounded(service);
        service + service / 4 + GRACE + network
    }

    /// When to send an early reply to a client that waits for `waits`, counted from now.
    pub fn early(&self, waits: Duration) -> Duration {
        if self.at_max.is_zero() {
            return waits / 2;
        }
        (waits / 2).max(waits.saturating_sub(self.at_early_margin))
    }

    /// How much an early reply extends the deadline of a request that has taken `took` so far; `waits` is the client's
    /// own timeout.
    pub fn extra(&self, took: Duration, waits: Duration) -> Duration {
        if self.at_max.is_zero() { waits } else { (self.at_extra + took).min(self.at_max).max(waits) }
    }

    /// A setting as it is shown.
    pub fn value(&self, which: OfTimeouts) -> String {
        bound(which).value(self)
    }

    /// Sets one.
    pub fn set(&mut self, which: OfTimeouts, text: &str) -> Result<(), Errno> {
        bound(which).set(self, which.declared(), text).unwrap_or(Err(Errno::EACCES))
    }
}

/// Estimate of a duration: the maximum of recent measurements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Estimate {
    bins: [Duration; BINS],
    /// Start of the newest bin.
    since: Option<Instant>,
    worst_ever: Duration,
}

impl Estimate {
    /// Adds a measurement. Those older than `history` are forgotten, a quarter of `history` at a time.
    pub fn measured(&mut self, now: Instant, took: Duration, history: Duration) {
        let bin = (history / BINS as u32).max(Duration::from_secs(1));
        let since = *self.since.get_or_insert(now);
        let passed = (now.since(since).as_nanos() / bin.as_nanos()).min(BINS as u128) as usize;
        if passed > 0 {
            self.bins.rotate_right(passed % BINS);
            self.bins[..passed].fill(Duration::ZERO);
            self.since = Some(now);
        }
        self.bins[0] = self.bins[0].max(took);
        self.worst_ever = self.worst_ever.max(took);
    }

    /// The current estimate: the maximum of the history.
    pub fn worst(&self) -> Duration {
        self.bins.iter().copied().max().unwrap_or_default()
    }

    /// Text for the parameter `timeouts`: current, worst ever, and the bins of the history, in seconds.
    pub fn text(&self) -> String {
        let seconds = |time: &Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let bins: Vec<String> = self.bins.iter().map(|bin| format!("{:>4}", seconds(bin))).collect();
        format!("cur {:>4}  worst {:>4} {}", seconds(&self.worst()), seconds(&self.worst_ever), bins.join(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_client_waits_as_long_as_the_server_may_need() {
        let mut t = Timeouts::default();
        assert_eq!(t.request_timeout(Duration::ZERO, Duration::ZERO), Duration::from_millis(11_250), "at rest");
        assert_eq!(t.request_timeout(40 * S, 2 * S), 57 * S);
        assert_eq!(t.request_timeout(4000 * S, Duration::ZERO), 755 * S, "at_max");
        assert_eq!((t.ping_interval(), t.silence_max()), (25 * S, 150 * S));
        t.at_max = Duration::ZERO;
        assert_eq!(t.request_timeout(40 * S, 2 * S), 100 * S, "off");
        t.timeout = 2 * S;
        assert_eq!((t.ping_interval(), t.silence_max()), (S, 6 * S));
    }

    #[test]
    fn a_client_is_asked_for_patience_before_its_time_is_up() {
        let t = Timeouts::default();
        assert_eq!((t.early(11 * S), t.early(4 * S), t.early(60 * S)), (6 * S, 2 * S, 55 * S));
        assert_eq!((t.extra(6 * S, 11 * S), t.extra(900 * S, 11 * S)), (36 * S, 600 * S));
        let t = Timeouts::fixed(10 * S);
        assert_eq!((t.early(10 * S), t.extra(900 * S, 10 * S)), (5 * S, 10 * S));
    }

    #[test]
    fn the_worst_is_remembered_for_a_while() {
        let (mut e, history) = (Estimate::default(), 40 * S);
        let at = |s: u64| Instant(s * 1_000_000_000);
        assert_eq!(e.worst(), Duration::ZERO);
        e.measured(at(100), 9 * S, history);
        e.measured(at(105), 3 * S, history);
        assert_eq!(e.worst(), 9 * S);
        for s in [112, 123, 134] {
            e.measured(at(s), S, history);
            assert_eq!(e.worst(), 9 * S, "{s}");
        }
        e.measured(at(145), 2 * S, history);
        assert_eq!(e.worst(), 2 * S, "forgotten");
        assert_eq!(e.text(), "cur    2  worst    9    2   1   1   1");
        e.measured(at(1000), S, history);
        assert_eq!(e.worst(), S);
    }

    #[test]
    fn settings_are_set_within_their_bounds() {
        let mut t = Timeouts::default();
        for &which in OfTimeouts::ALL {
            assert_eq!(Some(&*t.value(which)), which.declared().default, "{which:?}");
        }
        for &which in OfTimeouts::ALL {
            assert_eq!(t.set(which, "1"), Ok(()), "{which:?}");
            assert_eq!(t.value(which), "1", "{which:?}");
            assert_eq!(t.set(which, "x"), Err(Errno::EINVAL), "{which:?}");
            assert_eq!(t.set(which, "86401"), Err(Errno::ERANGE), "{which:?}");
        }
        assert_eq!(t.set(OfTimeouts::AtMax, "0"), Ok(()));
        assert_eq!(t.set(OfTimeouts::Timeout, "0"), Err(Errno::ERANGE));
        assert_eq!(t.set(OfTimeouts::PingInterval, "0"), Ok(()));
        assert_eq!(t.ping_interval(), S);
    }
}
