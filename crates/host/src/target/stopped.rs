//! Why a target's thread ended without having been asked to.

use std::io;

use target::StopReason;
use thiserror::Error;

/// Why a target has ended without having been asked to.
#[derive(Debug, Error)]
pub enum Stopped {
    /// It must not go on, and says why.
    #[error("target '{target}' stopped: {reason}")]
    ByItself {
        /// Its name.
        target: String,
        /// Why.
        reason: StopReason,
    },
    /// An assertion in it failed: a bug.
    #[error(
        "target '{target}' stopped: an assertion failed (the line above says where), so nothing more is answered or written; start it again: \
         its clients replay what was not durable; and report this as a bug, with the log"
    )]
    Assertion {
        /// Its name.
        target: String,
    },
    /// One of the threads that work for it panicked: a bug.
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
    /// Its own thread panicked outside the machine: a bug.
    #[error(
        "the thread of target '{target}' ended in a bug; see the message above, start it again, and report this, with the log"
    )]
    Panicked {
        /// Its name.
        target: String,
    },
    /// The system gave it no event loop or no threads.
    #[error(
        "target '{target}' cannot start its {what}: {error}; raise the limits of the process (ulimit -n, ulimit -u)"
    )]
    NoThreads {
        /// Its name.
        target: String,
        /// What it lacks.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
}

impl Stopped {
    /// Whether its store is damaged: to start again does not help, a copy does.
    pub fn is_damage(&self) -> bool {
        matches!(self, Stopped::ByItself { reason, .. } if reason.is_damage())
    }
}
