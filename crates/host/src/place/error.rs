//! Why targets at rest cannot be named, made, read or changed.

use std::io;
use std::path::PathBuf;

use proto::{ParseTargetNameError, TargetName};
use schema::BadRecord;
use store::{Damaged, EngineError};
use thiserror::Error;

/// Why a text names no place of a target.
#[derive(Debug, Error)]
pub enum ParsePlaceError {
    /// What stands after `mem:` is no target's name.
    #[error(transparent)]
    Name(#[from] ParseTargetNameError),
    /// A kind of place that this version does not have.
    #[error("'{text}': targets in object stores ({scheme}) are not part of this version; use a directory")]
    ObjectStore {
        /// The text.
        text: String,
        /// What stands before `://`.
        scheme: String,
    },
    /// No path follows from it.
    #[error("'{text}': {error}; name a directory")]
    Path {
        /// The text.
        text: String,
        /// What the system says.
        error: io::Error,
    },
}

/// A text that is no parameter with its value.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is not a parameter; expected PATH=VALUE, for example mdt.dom_stripesize=0")]
pub struct ParseParamError(pub String);

/// Why a target cannot be made.
#[derive(Debug, Error)]
pub enum FormatError {
    /// One in memory is made otherwise.
    #[error("a target in memory is made when it is served: adamant serve mem:{0}")]
    InMemory(TargetName),
    /// A directory is wanted, not a device.
    #[error(
        "'{}' is a block device, and a target is a directory: make a file system on it (mkfs.ext4, mkfs.xfs), mount it, and name a \
         directory there",
        .0.display()
    )]
    BlockDevice(PathBuf),
    /// Something else is there.
    #[error("'{}' is not a directory; name one that is empty or not there yet", .0.display())]
    NotADirectory(PathBuf),
    /// Files of others are there.
    #[error(
        "'{}' is not empty: it holds '{entry}'; choose an empty directory, or make the target beside what is there with --reformat",
        .directory.display()
    )]
    NotEmpty {
        /// Where the target was to be.
        directory: PathBuf,
        /// One of the files.
        entry: String,
    },
    /// A target is there.
    #[error(
        "'{}' is a target already ({}); choose another directory, or destroy it with --reformat",
        .directory.display(),
        .holds.as_ref().map_or_else(ToString::to_string, |name| format!("it holds {name}"))
    )]
    IsATarget {
        /// Where the target was to be.
        directory: PathBuf,
        /// The name of the one that is there, or why that cannot be read.
        holds: Result<String, Box<ReadError>>,
    },
    /// The file system underneath refuses.
    #[error("cannot {doing} '{}': {error}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The store cannot be made, or the one that goes is in use.
    #[error(transparent)]
    Store(#[from] EngineError),
}

/// Why the records of a target at rest cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// One in memory is nowhere to be looked at.
    #[error("a target in memory has no header to look at; name a directory")]
    InMemory,
    /// The store cannot be opened or read.
    #[error(transparent)]
    Store(#[from] EngineError),
    /// The store has records, and not the one that says whose it is.
    #[error(
        "the store in '{0}' is damaged: it has records, and the target's own is not found; put back a copy of that directory, or make the \
         target anew"
    )]
    HeaderLost(String),
    /// Nothing is in the store: making the target was interrupted.
    #[error(
        "'{0}' holds a store without a target; it was never finished: make it again with 'adamant mkfs --reformat'"
    )]
    Unfinished(String),
    /// A record is whole, and makes no sense.
    #[error("'{place}': {error}, or put back a copy of that directory")]
    Senseless {
        /// Where the store is.
        place: String,
        /// The record.
        error: BadRecord,
    },
    /// The header names no target.
    #[error("'{place}': {error}; put back a copy of that directory")]
    Name {
        /// Where the store is.
        place: String,
        /// The name.
        error: ParseTargetNameError,
    },
}

impl From<Damaged> for ReadError {
    fn from(damaged: Damaged) -> ReadError {
        ReadError::Store(damaged.into())
    }
}

impl ReadError {
    /// Whether what is stored is damaged: to try again does not help, a copy does.
    pub fn is_damage(&self) -> bool {
        match self {
            ReadError::Store(error) => error.is_damage(),
            ReadError::HeaderLost(_) | ReadError::Senseless { .. } | ReadError::Name { .. } => true,
            ReadError::InMemory | ReadError::Unfinished(_) => false,
        }
    }
}

/// Why a target at rest cannot be changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ChangeError {
    /// A parameter that is none.
    #[error(transparent)]
    Param(#[from] ParseParamError),
    /// It cannot be read, or its store cannot be written.
    #[error(transparent)]
    Store(#[from] ReadError),
}

impl From<EngineError> for ChangeError {
    fn from(error: EngineError) -> ChangeError {
        ChangeError::Store(error.into())
    }
}
