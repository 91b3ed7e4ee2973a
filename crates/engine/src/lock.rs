//! One process per directory.
//!
//! The lock is on the open file, so the kernel drops it when the process ends, however it ends. The number of the process
//! stands in the file for the message that a second process gives; it means nothing without the lock.

use crate::error::{from_errno, from_io, place};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use store::EngineError;

const NAME: &str = "store.lock";
/// A process that was killed holds its files until the kernel has taken it down, which takes a while if it was writing. Who
/// starts its successor at once need not know.
const ENDING: Duration = Duration::from_secs(3);

/// Holds the directory until dropped.
pub(crate) struct DirectoryLock {
    _file: Option<File>,
}

impl DirectoryLock {
    /// For a reader that minds no writer: the engine keeps it from the pages that it reads.
    pub(crate) fn none() -> DirectoryLock {
        DirectoryLock { _file: None }
    }

    /// Takes the directory for writing, or for reading together with other readers.
    pub(crate) fn take(dir: &Path, read_only: bool) -> Result<DirectoryLock, EngineError> {
        let path = dir.join(NAME);
        let opened = if read_only {
            File::open(&path)
        } else {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
        };
        let mut file = match opened {
            Ok(file) => file,
            // Nobody ever wrote here, and a reader has nothing to leave behind.
            Err(error) if read_only && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(DirectoryLock { _file: None });
            }
            Err(error) => return Err(from_io(dir, "open the lock file", &error)),
        };
        if !read_only {
            close_to_others(&file);
        }
        let how =
            if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
        let asked = Instant::now();
        loop {
            match flock(&file, how) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if asked.elapsed() < ENDING => std::thread::sleep(Duration::from_millis(10)),
                Err(Errno::WOULDBLOCK) => return Err(EngineError::Busy { place: place(dir), pid: holder(&mut file) }),
                Err(errno) => return Err(from_errno(dir, "lock the directory", errno)),
            }
        }
        if !read_only {
            match leave_number(&mut file) {
                // The number only serves a message: a full disk must not keep a store that has its files from being opened.
                Err(error) if error.kind() != std::io::ErrorKind::StorageFull || !dir.join("lock.mdb").exists() => {
                    return Err(from_io(dir, "write the lock file", &error));
                }
                _ => {}
            }
        }
        Ok(DirectoryLock { _file: Some(file) })
    }
}

/// Older versions left the file open to all users of the machine, and who may open it can keep a stopped store from being opened.
fn close_to_others(file: &File) {
    let is_open = file.metadata().is_ok_and(|stat| stat.permissions().mode() & 0o077 != 0);
    if is_open {
        // Who may not close it may lock it all the same.
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
    }
}

fn leave_number(file: &mut File) -> std::io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

/// The number that the holder left, if it is one of a process; a reader leaves none.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    Path::new(&format!("/proc/{pid}")).exists().then_some(pid)
}
