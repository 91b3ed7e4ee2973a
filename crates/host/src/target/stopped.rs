//! Why a target stopped without having been asked to.

use std::io;

use target::StopReason;
use thiserror::Error;

/// Why a target stopped without having been asked to.
#[derive(Debug, Error)]
pub enum Stopped {
    /// The machine decided to stop, for this reason.
    #[error("target '{target}' stopped: {reason}")]
    ByItself {
        /// Its name.
        target: String,
        /// Why.
        reason: StopReason,
    },
    /// An assertion in the machine failed, which is a bug.
    #[error(
        "target '{target}' stopped: an assertion failed (the line above says where), so nothing more is answered or written; start it again: \
         its clients replay what was not durable; and report this as a bug, with the log"
    )]
    Assertion {
        /// Its name.
        target: String,
    },
    /// One of the threads that work for the target panicked, which is a bug.
    #[error(
        "target '{target}' stopped: its thread '{thread}' panicked (the line above says where), so nothing more is answered or written; \
         start it again: its clients replay what was not durable; and report this as a bug, with the log"
    )]
    ThreadPanicked {
        /// Its name.
        target: String,
        /// The thread's name.
        thread: String,
    },
    /// The target's own thread panicked outside the machine, which is a bug.
    #[error(
        "the thread of target '{target}' ended in a bug; see the message above, start it again, and report this, with the log"
    )]
    Panicked {
        /// Its name.
        target: String,
    },
    /// The system refused it an event loop or threads.
    #[error(
        "target '{target}' cannot start its {what}: {error}; raise the limits of the process (ulimit -n, ulimit -u)"
    )]
    NoThreads {
        /// Its name.
        target: String,
        /// What the system refused.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl Stopped {
    /// Whether its store is damaged, so that a restart does not help, but restoring a copy does.
    pub fn is_damage(&self) -> bool {
        matches!(self, Stopped::ByItself { reason, .. } if reason.is_damage())
    }
}
