//! Conversion of LMDB's and the system's errors to [`EngineError`].

use rustix::io::Errno;
use std::io;
use std::path::Path;
use store::EngineError;

/// The directory, for a message.
pub(crate) fn place(dir: &Path) -> String {
    dir.display().to_string()
}

pub(crate) fn from_io(dir: &Path, doing: &str, error: &io::Error) -> EngineError {
    let place = place(dir);
    let what = format!("{doing}: {error}");
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => EngineError::Full { place, what },
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => EngineError::ReadOnly { place, what },
        Some(Errno::NOENT | Errno::NOTDIR) => EngineError::Missing { place },
        _ => EngineError::Io { place, what },
    }
}

pub(crate) fn from_errno(dir: &Path, doing: &str, errno: Errno) -> EngineError {
    from_io(dir, doing, &io::Error::from(errno))
}

pub(crate) fn from_heed(dir: &Path, doing: &str, error: heed::Error) -> EngineError {
    use heed::MdbError::{
        BadTxn, Corrupted, CursorFull, Invalid, MapFull, PageFull, PageNotFound, Panic, Problem, VersionMismatch,
    };
    let place = place(dir);
    match error {
        heed::Error::Io(error) => from_io(dir, doing, &error),
        heed::Error::Mdb(MapFull) => EngineError::Full { place, what: format!("{doing}: the map is full") },
        heed::Error::Mdb(
            error @ (Corrupted | PageNotFound | Invalid | VersionMismatch | CursorFull | PageFull | Problem),
        ) => EngineError::Corrupt { place, what: format!("{doing}: {error}") },
        heed::Error::Mdb(error @ (Panic | BadTxn)) => {
            EngineError::Io { place, what: format!("{doing}: an earlier write failed: {error}") }
        }
        heed::Error::EnvAlreadyOpened => EngineError::Busy { place, pid: Some(std::process::id()) },
        error => EngineError::Io { place, what: format!("{doing}: {error}") },
    }
}
