//! The machine, the versions and the time of a measurement.

use serde::{Deserialize, Serialize};

/// The machine and the versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel and its version.
    pub kernel: String,
    /// Version of this program.
    pub adamant: String,
    /// Whether this program was built with optimisation.
    pub optimised: bool,
    /// The load average of the last minute: much above 0 means that other programs were running too.
    pub load: f64,
    /// Seconds since 1970.
    pub when: u64,
}

impl Machine {
    /// This machine, now.
    pub fn current() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<String> {
            let value = text.lines().find(|line| line.starts_with(name))?.split_once(':')?.1;
            Some(value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kernel = rustix::system::uname();
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_mib: memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10,
            kernel: format!("{} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy()),
            adamant: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            when: std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        }
    }

    /// The description in one line.
    pub fn line(&self) -> String {
        format!(
            "Adamant {}{} on {} × {}, {} MiB, {}, {} UTC, load before {:.2}",
            self.adamant,
            if self.optimised { "" } else { " (built without optimisation)" },
            self.processors,
            self.processor,
            self.memory_mib,
            self.kernel,
            date(self.when),
            self.load,
        )
    }
}

/// Seconds since 1970 as a date in UTC, such as `2026-11-30 23:59`.
pub fn date(seconds: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02}", days + 1, rest / 3600, rest % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_795_996_800, "2026-11-30 00:00"),
            (4_102_444_799, "2099-12-31 23:59"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::current();
        assert!(machine.processors >= 1 && machine.memory_mib > 0 && !machine.kernel.trim().is_empty(), "{machine:?}");
        assert!(machine.line().contains(&machine.processor));
    }
}
