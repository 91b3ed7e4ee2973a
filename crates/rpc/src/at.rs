//! Adaptive timeouts: how long a request may take follows from how long requests took.
//!
//! A server estimates the worst time that it needs for a request, from what it saw in the last minutes, and says so with
//! each reply. A client waits a quarter longer than that, and a little more, before it suspects the connection. If a
//! request takes longer all the same, the server asks for patience with an *early reply* before the client's time is up.
//!
//! ```text
//! client waits     service estimate × 1.25 + 5 s + network latency
//! early reply      at_early_margin before that; asks for at_extra plus what it took already
//! at_max = 0       all of it off: requests may take `timeout`, and an early reply comes at half of that
//! ```

use core::time::Duration;

use proto::Errno;
use stdx::Instant;

/// What is added to an estimate, whatever it is.
const GRACE: Duration = Duration::from_secs(5);
/// Parts of the history; the oldest is forgotten at a time.
const BINS: usize = 4;
/// A client that says nothing for so many intervals is gone.
const SILENT_INTERVALS: u32 = 6;
/// Longest of all settings.
const SECONDS_MAX: u64 = 86_400;

/// Settings of a process, under Lustre's names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// How long a request may take where nothing is estimated; signs of life come four times as often.
    pub timeout: Duration,
    /// Least estimate.
    pub at_min: Duration,
    /// Greatest estimate; zero turns estimates off.
    pub at_max: Duration,
    /// For how long the worst is remembered.
    pub at_history: Duration,
    /// How long before its time is up a client hears that it is to wait longer.
    pub at_early_margin: Duration,
    /// How much longer.
    pub at_extra: Duration,
    /// Instead of a quarter of `timeout`.
    pub ping_interval: Option<Duration>,
    /// A server's: clients need not give signs of life, and nobody is evicted for silence.
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

/// Names of the settings, for `list_param`.
const NAMES: [&str; 8] =
    ["at_early_margin", "at_extra", "at_history", "at_max", "at_min", "ping_interval", "suppress_pings", "timeout"];

impl Timeouts {
    /// Nothing is estimated: a request may take `timeout`.
    pub fn fixed(timeout: Duration) -> Timeouts {
        let ping_interval = Some(Duration::from_secs(25));
        Timeouts { timeout, at_max: Duration::ZERO, ping_interval, ..Timeouts::default() }
    }

    /// A sign of life comes after so long.
    pub fn ping_interval(&self) -> Duration {
        self.ping_interval.unwrap_or_else(|| (self.timeout / 4).max(Duration::from_secs(1)))
    }

    /// Who says nothing for so long is gone.
    pub fn silence_max(&self) -> Duration {
        self.ping_interval() * SILENT_INTERVALS
    }

    /// An estimate within its bounds.
    pub fn bounded(&self, estimate: Duration) -> Duration {
        estimate.max(self.at_min).min(self.at_max)
    }

    /// How long a client waits for a server of this estimate behind a network of this latency.
    pub fn request_timeout(&self, service: Duration, network: Duration) -> Duration {
        if self.at_max.is_zero() {
            return self.timeout;
        }
        let service = self.bounded(service);
        service + service / 4 + GRACE + network
    }

    /// When a client that waits for `waits` hears that it is to be patient, from now on.
    pub fn early(&self, waits: Duration) -> Duration {
        if self.at_max.is_zero() {
            return waits / 2;
        }
        (waits / 2).max(waits.saturating_sub(self.at_early_margin))
    }

    /// For how much longer a client is asked to wait whose request has taken so long; `waits` is its own timeout.
    pub fn extra(&self, took: Duration, waits: Duration) -> Duration {
        if self.at_max.is_zero() { waits } else { (self.at_extra + took).min(self.at_max).max(waits) }
    }

    /// All settings by name.
    pub fn params(&self) -> impl Iterator<Item = (String, String)> + '_ {
        NAMES.iter().map(|name| ((*name).to_owned(), self.value(name)))
    }

    fn value(&self, name: &str) -> String {
        match name {
            "suppress_pings" => u8::from(self.suppress_pings).to_string(),
            "ping_interval" => self.ping_interval().as_secs().to_string(),
            "at_early_margin" => self.at_early_margin.as_secs().to_string(),
            "at_extra" => self.at_extra.as_secs().to_string(),
            "at_history" => self.at_history.as_secs().to_string(),
            "at_max" => self.at_max.as_secs().to_string(),
            "at_min" => self.at_min.as_secs().to_string(),
            _ => self.timeout.as_secs().to_string(),
        }
    }

    /// Sets one; `None`: there is none of that name. Zero is for `at_max`, and for `ping_interval`, where it restores the
    /// quarter of `timeout`.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), Errno>> {
        if !NAMES.contains(&name) {
            return None;
        }
        let Ok(number) = value.trim().parse::<u64>() else { return Some(Err(Errno::EINVAL)) };
        let seconds = Duration::from_secs(number);
        let most = if name == "suppress_pings" { 1 } else { SECONDS_MAX };
        let least = u64::from(!matches!(name, "at_max" | "at_min" | "ping_interval" | "suppress_pings"));
        if !(least..=most).contains(&number) {
            return Some(Err(Errno::ERANGE));
        }
        match name {
            "suppress_pings" => self.suppress_pings = number == 1,
            "ping_interval" => self.ping_interval = Some(seconds).filter(|at| !at.is_zero()),
            "at_early_margin" => self.at_early_margin = seconds,
            "at_extra" => self.at_extra = seconds,
            "at_history" => self.at_history = seconds,
            "at_max" => self.at_max = seconds,
            "at_min" => self.at_min = seconds,
            _ => self.timeout = seconds,
        }
        Some(Ok(()))
    }
}

/// The worst of what was measured lately.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Estimate {
    bins: [Duration; BINS],
    /// Since when the newest bin collects.
    since: Option<Instant>,
    worst_ever: Duration,
}

impl Estimate {
    /// It took so long. What is older than `history` is forgotten, a quarter of it at a time.
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

    /// The worst that is remembered.
    pub fn worst(&self) -> Duration {
        self.bins.iter().copied().max().unwrap_or_default()
    }

    /// As `timeouts` shows it: now, worst ever, and the parts of the history, in seconds.
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
    fn settings_have_lustres_names_and_bounds() {
        let mut t = Timeouts::default();
        let shown: Vec<String> = t.params().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            shown.join(" "),
            "at_early_margin=5 at_extra=30 at_history=600 at_max=600 at_min=5 ping_interval=25 suppress_pings=0 timeout=100"
        );
        for name in NAMES {
            assert_eq!(t.set(name, "1"), Some(Ok(())), "{name}");
            assert_eq!(t.value(name), "1", "{name}");
            assert_eq!(t.set(name, "x"), Some(Err(Errno::EINVAL)), "{name}");
            assert_eq!(t.set(name, "86401"), Some(Err(Errno::ERANGE)), "{name}");
        }
        assert_eq!(t.set("at_max", "0"), Some(Ok(())));
        assert_eq!(t.set("timeout", "0"), Some(Err(Errno::ERANGE)));
        assert_eq!(t.set("ping_interval", "0"), Some(Ok(())));
        assert_eq!(t.ping_interval(), S);
        assert_eq!(t.set("at_nothing", "1"), None);
    }
}
