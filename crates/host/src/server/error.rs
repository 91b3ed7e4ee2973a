//! Why a server does not start.

use std::io;
use std::path::PathBuf;

use proto::{Nid, TargetName};
use store::EngineError;
use thiserror::Error;

use crate::door::ListenError;
use crate::place::ReadError;

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The store of a target cannot be opened or read.
    #[error(transparent)]
    Store(#[from] ReadError),
    /// Listening at an address failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A target has no address at which others can reach it.
    #[error(
        "target '{target}' listens at {nid}, which is no address at which others find it; name one with --tell HOST:{port}",
        port = proto::nid::PORT
    )]
    NoAddress {
        /// Its name.
        target: TargetName,
        /// The address at which it listens.
        nid: Nid,
    },
    /// The folder for the data files of a target in memory cannot be made.
    #[error("cannot make a folder for '{target}' in '{}': {error}", .folder.display())]
    Scratch {
        /// Its name.
        target: TargetName,
        /// The parent of the folder.
        folder: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The system refused a thread.
    #[error(
        "cannot start the target in '{place}': {error}; raise the limit of threads (ulimit -u), or end other processes"
    )]
    Thread {
        /// Where its store is.
        place: String,
        /// The error of the system.
        error: io::Error,
    },
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> StartError {
        StartError::Store(error.into())
    }
}

impl StartError {
    /// Whether a store is damaged, so that a restart does not help, but restoring a copy does.
    pub fn is_damage(&self) -> bool {
        matches!(self, StartError::Store(error) if error.is_damage())
    }
}
