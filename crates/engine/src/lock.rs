//! The directory lock: one process per store.
//!
//! The lock is on an open file, so the kernel drops it when the process exits, however it exits. The file has the process
//! id for the error message of a second process; without the lock it means nothing.

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
/// How long to wait for the lock. A killed process keeps its files open until the kernel has removed it, which takes a while if
/// it was writing, and its successor may be started at once.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// The lock on a directory, held until dropped.
pub(crate) struct DirectoryLock {
    _file: Option<File>,
}

impl DirectoryLock {
    /// No lock, for a reader beside a writer: LMDB itself keeps the writer from reusing the pages that are being read.
    pub(crate) fn none() -> DirectoryLock {
        DirectoryLock { _file: None }
    }

    /// Locks the directory, exclusively for writing or shared for reading.
    pub(crate) fn take(dir: &Path, read_only: bool) -> Result<DirectoryLock, EngineError> {
        let path = dir.join(NAME);
        let opened = if read_only {
            File::open(&path)
        } else {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
        };
        let mut file = match opened {
            Ok(file) => file,
            // No process has ever opened this store for writing, and a reader does not make files.
            Err(error) if read_only && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(DirectoryLock { _file: None });
            }
            Err(error) => return Err(from_io(dir, "open the lock file", &error)),
        };
        if !read_only {
            restrict_access(&file);
        }
        let how =
            if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
        let started = Instant::now();
        loop {
            match flock(&file, how) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                Err(Errno::WOULDBLOCK) => return Err(EngineError::Busy { place: place(dir), pid: holder(&mut file) }),
                Err(errno) => return Err(from_errno(dir, "lock the directory", errno)),
            }
        }
        if !read_only {
            match write_pid(&mut file) {
                // The process id only serves a message, so a full disk must not prevent opening an existing store.
                Err(error) if error.kind() != std::io::ErrorKind::StorageFull || !dir.join("lock.mdb").exists() => {
                    return Err(from_io(dir, "write the lock file", &error));
                }
                _ => {}
            }
        }
        Ok(DirectoryLock { _file: Some(file) })
    }
}

/// Takes the permissions of other users away, which older versions left: a user who can open the file can lock it, and so
/// prevent a stopped store from being opened.
fn restrict_access(file: &File) {
    let is_open = file.metadata().is_ok_and(|stat| stat.permissions().mode() & 0o077 != 0);
    if is_open {
        // Without permission to change the mode, this process can still lock the file.
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
    }
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

/// The process id of the holder, if there is such a process. A reader writes none.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    Path::new(&format!("/proc/{pid}")).exists().then_some(pid)
}
