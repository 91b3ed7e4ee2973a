//! Blocks on the medium that the store owns and does not use: a file beside the data file, given up piece by piece when a
//! group finds the disk full, and filled again when there is space.
//!
//! The figures of [`store::Space`] keep a reserve too, but only as arithmetic: another program can fill the disk, and pages
//! inside the data file that hold nothing cannot take a value larger than a page unless enough of them lie together. These
//! blocks are real. They let the groups that were already accepted reach the disk, and removals after them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{FallocateFlags, fallocate};

const NAME: &str = "reserve";
const MIB: u64 = 1 << 20;
/// More than that is not held, however large the disk is.
const WANTED_MAX: u64 = 8 * MIB;

/// The file. Errors with it are no errors of the store: it is then smaller than wanted.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    wanted: u64,
    held: AtomicU64,
}

impl Reserve {
    /// What the file holds; `kept` is what the store's figures keep from new records.
    pub(crate) fn open(dir: &Path, kept: u64) -> Reserve {
        let path = dir.join(NAME);
        let held = std::fs::metadata(&path).map_or(0, |file| file.len().min(file.blocks() * 512));
        Reserve { path, wanted: (kept / 2).min(WANTED_MAX), held: AtomicU64::new(held) }
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Whether it holds less than it should.
    pub(crate) fn is_short(&self) -> bool {
        self.held() < self.wanted
    }

    /// Fills it, if `available` bytes of the medium leave `kept` bytes besides.
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
            // Partly filled, perhaps: what counts is what the file has.
            Err(_) => self.held.store(std::fs::metadata(&self.path).map_or(0, |file| file.blocks() * 512), Relaxed),
        }
    }

    /// Gives up to `bytes` back to the medium. Says whether there was something to give.
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
