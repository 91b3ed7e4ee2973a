//! What processes have. It has no device.

use super::declare::{Values, declare, range, setting, text};

/// Longest of all times.
const SECONDS_MAX: u64 = 86_400;

declare! {
    /// How long requests may take, in servers and mounts.
    OfTimeouts on [Process] {
        "timeouts" {
            /// How long a request may take where nothing is estimated
            Timeout = setting("timeout", "seconds", range(1, SECONDS_MAX), "100");
            /// Least estimate of how long requests take
            AtMin = setting("at_min", "seconds", range(0, SECONDS_MAX), "5");
            /// Greatest estimate; 0: nothing is estimated
            AtMax = setting("at_max", "seconds", range(0, SECONDS_MAX), "600");
            /// How long the worst time of a request is remembered
            AtHistory = setting("at_history", "seconds", range(1, SECONDS_MAX), "600");
            /// How long before a client's time is up the server asks it to wait longer
            AtEarlyMargin = setting("at_early_margin", "seconds", range(1, SECONDS_MAX), "5");
            /// How much longer it asks for
            AtExtra = setting("at_extra", "seconds", range(1, SECONDS_MAX), "30");
            /// Sends a ping after so long without a request; six times this without a sign of life evicts a client. 0
            /// restores the default, a quarter of `timeout`
            PingInterval = setting("ping_interval", "seconds", range(0, SECONDS_MAX), "25");
            /// Servers: 1: clients need not ping and nobody is evicted for silence; clients learn it when they connect
            SuppressPings = setting("suppress_pings", "", range(0, 1), "0");
        }
    }

    /// All targets of a server.
    OfServer on [Process] {
        "timeouts" {
            /// Servers: `lock_timeout` of all targets of the process
            LdlmTimeout = setting("ldlm_timeout", "seconds", range(1, 3600), "20");
        }
    }

    /// The log.
    OfLog on [Process] {
        "process" {
            /// Which lines are logged: `error`, `warn`, `info`, `debug`, or for example `info,host=debug` (see
            /// [Logs](admin.md#logs))
            LogLevel = setting("log_level", "", Values::Text, "`info`");
        }
    }

    /// How a process does.
    OfProcess on [Process] {
        "process" {
            /// `healthy`, or the stopped targets of the process and `NOT HEALTHY`; `lctl health_check` asks all processes and
            /// exits with 1 if one is not healthy or does not answer
            HealthCheck = text("health_check").usually("`healthy`");
            /// Version of the program that runs
            Version = text("version");
        }
    }

    /// Faults on purpose.
    OfFaults on [Process] {
        "process" {
            /// Site and flags of a [fault on purpose](faults.md), if the process allows them
            Loc = setting("fail_loc", "", Values::Text, "0");
            /// How many times, with which odds or for how many seconds it strikes, as the site and the flags have it
            Val = setting("fail_val", "", Values::Text, "0");
            /// The error that a site gives instead of its own, if it gives one
            Err = setting("fail_err", "", Values::Text, "0");
        }
    }
}
