//! The reserve: a file beside the data file that holds blocks of the medium. It is shrunk piece by piece when a commit finds
//! the disk full, and filled again when there is space.
//!
//! [`store::Space`] has a reserve, too, but that is only a number: another program can fill the disk, and unused pages in the
//! data file cannot take a value larger than a page unless enough of them are adjacent. These blocks are real. With them,
//! groups that were already accepted reach the disk, and removals after them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{FallocateFlags, fallocate};

const NAME: &str = "reserve";
const MIB: u64 = 1 << 20;
/// The largest reserve, however large the disk is.
const WANTED_MAX: u64 = 8 * MIB;

/// The reserve file. An error with it is no error of the store; the reserve is then smaller than wanted.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    wanted: u64,
    held: AtomicU64,
}

impl Reserve {
    /// Reads the size of the reserve. `kept`: the bytes that [`store::Space`] reserves.
    pub(crate) fn open(dir: &Path, kept: u64) -> Reserve {
        let path = dir.join(NAME);
        let held = std::fs::metadata(&path).map_or(0, |file| file.len().min(file.blocks() * 512));
        Reserve { path, wanted: (kept / 2).min(WANTED_MAX), held: AtomicU64::new(held) }
    }

    /// The bytes that the file holds.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Whether the file holds less than it should.
    pub(crate) fn is_short(&self) -> bool {
        self.held() < self.wanted
    }

    /// Fills the file, if that leaves `kept` of the `available` bytes of the medium.
    pub(crate) fn restore(&self, available: u64, kept: u64) {
        let missing = self.wanted.saturating_sub(self.held());
        if missing == 0 || available < missing + kept {
            return;
        }
        let filled =
            OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&self.path).and_then(|file| {
                fallocate(&file, FallocateFlags::empty(), 0, self.wanted)?;
                file.sync_all()
            });
        match filled {
            Ok(()) => self.held.store(self.wanted, Relaxed),
            // The file may be partly filled: its blocks count.
            Err(_) => self.held.store(std::fs::metadata(&self.path).map_or(0, |file| file.blocks() * 512), Relaxed),
        }
    }

    /// Gives about `bytes`, at least 1 MiB if it holds as much, back to the medium. Returns whether it did.
    pub(crate) fn give_up(&self, bytes: u64) -> bool {
        let held = self.held();
        if held == 0 {
            return false;
        }
        let left = held.saturating_sub(bytes.max(MIB));
        let shrink = |file: File| file.set_len(left).and_then(|()| file.sync_all());
        let shrunk = OpenOptions::new().write(true).open(&self.path).and_then(shrink).is_ok();
        self.held.store(if shrunk { left } else { 0 }, Relaxed);
        shrunk
    }
}
