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
    /// An address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A target would be found nowhere.
    #[error(
        "target '{target}' listens at {nid}, which is no address at which others find it; name one with --tell HOST:{port}",
        port = proto::nid::PORT
    )]
    NoAddress {
        /// Its name.
        target: TargetName,
        /// Where it listens.
        nid: Nid,
    },
    /// A target in memory has no folder for its data files.
    #[error("cannot make a folder for '{target}' in '{}': {error}", .folder.display())]
    Scratch {
        /// Its name.
        target: TargetName,
        /// Where the folder was to be.
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The system gives no thread.
    #[error(
        "cannot start the target in '{place}': {error}; raise the limit of threads (ulimit -u), or end other processes"
    )]
    Thread {
        /// Where its store is.
        place: String,
        /// What the system says.
        error: io::Error,
    },
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> StartError {
        StartError::Store(error.into())
    }
}

impl StartError {
    /// Whether a store is damaged: to start again does not help, a copy does.
    pub fn is_damage(&self) -> bool {
        matches!(self, StartError::Store(error) if error.is_damage())
    }
}
