//! Why offline targets cannot be named, formatted, read or changed.

use std::io;
use std::path::PathBuf;

use proto::{ParseTargetNameError, TargetName};
use schema::BadRecord;
use store::{Damaged, EngineError};
use thiserror::Error;

/// Why a text does not name the place of a target.
#[derive(Debug, Error)]
pub enum ParsePlaceError {
    /// The text after `mem:` is not the name of a target.
    #[error(transparent)]
    Name(#[from] ParseTargetNameError),
    /// A kind of place that this version does not support.
    #[error("'{text}': targets in object stores ({scheme}) are not part of this version; use a directory")]
    ObjectStore {
        /// The text.
        text: String,
        /// The text before `://`.
        scheme: String,
    },
    /// The text gives no absolute path.
    #[error("'{text}': {error}; name a directory")]
    Path {
        /// The text.
        text: String,
        /// The error of the system.
        error: io::Error,
    },
}

/// A text that is not a parameter with its value.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is not a parameter; expected PATH=VALUE, for example mdt.dom_stripesize=0")]
pub struct ParseParamError(pub String);

/// Why a target cannot be formatted.
#[derive(Debug, Error)]
pub enum FormatError {
    /// A target in memory is formatted when it is served.
    #[error("a target in memory is made when it is served: adamant serve mem:{0}")]
    InMemory(TargetName),
    /// The path is a block device and not a directory.
    #[error(
        "'{}' is a block device, and a target is a directory: make a file system on it (mkfs.ext4, mkfs.xfs), mount it, and name a \
         directory there",
        .0.display()
    )]
    BlockDevice(PathBuf),
    /// The path exists and is not a directory.
    #[error("'{}' is not a directory; name one that is empty or not there yet", .0.display())]
    NotADirectory(PathBuf),
    /// The directory holds other files.
    #[error(
        "'{}' is not empty: it holds '{entry}'; choose an empty directory, or make the target beside what is there with --reformat",
        .directory.display()
    )]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
        /// One of the files in it.
        entry: String,
    },
    /// The directory holds a target already.
    #[error(
        "'{}' is a target already ({}); choose another directory, or destroy it with --reformat",
        .directory.display(),
        .holds.as_ref().map_or_else(ToString::to_string, |name| format!("it holds {name}"))
    )]
    IsATarget {
        /// The directory.
        directory: PathBuf,
        /// The name of that target, or why it cannot be read.
        holds: Result<String, Box<ReadError>>,
    },
    /// The file system underneath reports an error.
    #[error("cannot {doing} '{}': {error}", .path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The path that it was attempted with.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The store cannot be made, or the store to be destroyed is in use.
    #[error(transparent)]
    Store(#[from] EngineError),
}

/// Why the records of an offline target cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// A target in memory cannot be read from outside its process.
    #[error("a target in memory has no header to look at; name a directory")]
    InMemory,
    /// The store cannot be opened or read.
    #[error(transparent)]
    Store(#[from] EngineError),
    /// The store has records, but not the header of its target.
    #[error(
        "the store in '{0}' is damaged: it has records, and the target's own is not found; put back a copy of that directory, or make the \
         target anew"
    )]
    HeaderLost(String),
    /// The store is empty: formatting was interrupted.
    #[error(
        "'{0}' holds a store without a target; it was never finished: make it again with 'adamant mkfs --reformat'"
    )]
    Unfinished(String),
    /// A record is intact but makes no sense.
    #[error("'{place}': {error}, or put back a copy of that directory")]
    Senseless {
        /// Where the store is.
        place: String,
        /// What is wrong with the record.
        error: BadRecord,
    },
    /// The name in the header is not the name of a target.
    #[error("'{place}': {error}; put back a copy of that directory")]
    Name {
        /// Where the store is.
        place: String,
        /// What is wrong with the name.
        error: ParseTargetNameError,
    },
}

impl From<Damaged> for ReadError {
    fn from(damaged: Damaged) -> ReadError {
        ReadError::Store(damaged.into())
    }
}

impl ReadError {
    /// Whether stored data is damaged, so that a retry does not help, but restoring a copy does.
    pub fn is_damage(&self) -> bool {
        match self {
            ReadError::Store(error) => error.is_damage(),
            ReadError::HeaderLost(_) | ReadError::Senseless { .. } | ReadError::Name { .. } => true,
            ReadError::InMemory | ReadError::Unfinished(_) => false,
        }
    }
}

/// Why an offline target cannot be changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ChangeError {
    /// A text is not a parameter.
    #[error(transparent)]
    Param(#[from] ParseParamError),
    /// The target cannot be read, or its store cannot be written.
    #[error(transparent)]
    Store(#[from] ReadError),
}

impl From<EngineError> for ChangeError {
    fn from(error: EngineError) -> ChangeError {
        ChangeError::Store(error.into())
    }
}
