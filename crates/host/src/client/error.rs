//! Why a client does not start, does not mount, or has lost something when it ended.

use std::io;

use proto::Errno;
use thiserror::Error;

/// Why a client is not mounted.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MountError {
    /// The servers refuse it, for this reason.
    #[error("{0}")]
    Refused(String),
    /// It was unmounted before it was mounted.
    #[error("it was ended before it was mounted")]
    Ended,
}

/// Why a client does not start, or is not mounted.
#[derive(Debug, Error)]
pub enum StartError {
    /// The system refused a thread or descriptor.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The client runs and could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// The system refused the client a thread or descriptor.
#[derive(Debug, Error)]
#[error("cannot start the client: {0}; raise the limits of the process (ulimit -n, ulimit -u)")]
pub struct LaunchError(pub io::Error);

impl From<rustix::io::Errno> for LaunchError {
    fn from(errno: rustix::io::Errno) -> LaunchError {
        LaunchError(errno.into())
    }
}

/// Why a client did not end cleanly.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UnmountError {
    /// Servers did not take all the data that was to be written back.
    #[error("not everything that programs wrote could be written back: {0}")]
    NotWrittenBack(Errno),
    /// Servers did not answer before the patience of the unmount ran out.
    #[error("the servers did not answer in time; what they had not confirmed may be lost")]
    NoAnswer,
    /// The client had never been mounted.
    #[error(transparent)]
    NotMounted(MountError),
    /// An assertion in the client had failed.
    #[error(transparent)]
    Assertion(#[from] AssertionFailed),
}

/// What was left of a client when an assertion in it failed, which is a bug.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "an assertion in the client failed (the log says where), so it sends nothing more and its programs get EIO; {}; changes of names and \
     attributes that no server had confirmed: {changes}; unmount and mount again, and report this as a bug, with the log",
    describe(*.files)
)]
pub struct AssertionFailed {
    /// Files with data that was not written back; `None` if not known.
    pub files: Option<usize>,
    /// Changes of names and attributes that no server had confirmed.
    pub changes: u64,
}

fn describe(count: Option<usize>) -> String {
    match count {
        Some(0) => "all data was written back".to_owned(),
        Some(count) => format!("files with data that was not written back: {count}"),
        None => "what was not written back is not known".to_owned(),
    }
}
