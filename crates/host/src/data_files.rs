//! The data files of an object target: reads, writes and syncs.
//!
//! A sync is a job of its own that holds the open files: another thread can run it while writes continue. It covers
//! everything written before it was made. A file with much unsynced data is synced in the background, so that the disk is
//! busy while more data arrives, and a sync that a request waits for finds little left to write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use proto::Errno;
use proto::msg::PunchKind;
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, SeekFrom};
use target::{DataOp, DataResult};

use crate::process::{HeldOpen, with_descriptor};
use crate::read_buffers::ReadBuffers;

/// A folder holds the files whose numbers differ only in this many low bits.
const FOLDER_SHIFT: u32 = 12;
/// The most open data files for each thread.
const OPEN_FILES: usize = 128;
/// The unsynced bytes of a file that start a sync in the background.
const WRITE_OUT: u64 = 16 << 20;

/// Files and folders to be made durable.
#[derive(Debug, Default)]
pub(crate) struct SyncJob {
    files: Vec<Arc<File>>,
    /// Files that were not open when the job was made. The job opens them one at a time, so that it never holds many
    /// descriptors.
    others: Vec<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl SyncJob {
    /// A job that always fails.
    #[cfg(test)]
    pub(crate) fn failing() -> SyncJob {
        let files = File::open("/dev/null").map(Arc::new).into_iter().collect();
        SyncJob { files, ..SyncJob::default() }
    }

    /// Runs the job.
    ///
    /// # Errors
    /// The error of the disk. Then nothing is known to be durable.
    pub(crate) fn run(self) -> io::Result<()> {
        // Each of these is closed before the other files need descriptors.
        for file in self.files {
            file.sync_data()?;
        }
        for path in self.others {
            match with_descriptor(|| false, || File::open(&path)) {
                Ok(file) => file.sync_data()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        for folder in self.folders {
            with_descriptor(|| false, || File::open(&folder))?.sync_all()?;
        }
        Ok(())
    }
}

/// The data files of an object target: `objects/<file number / 4096>/<file number>`, both hexadecimal, so that the newest
/// files are found without reading all folders.
#[derive(Debug)]
pub(crate) struct DataFiles {
    root: PathBuf,
    open: OpenFiles,
    /// Folders with new names that are not durable yet.
    new_names: BTreeSet<PathBuf>,
    /// The file that was written last, if it has enough unsynced data for a background sync.
    full: Option<u64>,
    buffers: ReadBuffers,
}

/// Open files by number, and by time of last use.
#[derive(Debug, Default)]
struct OpenFiles {
    files: BTreeMap<u64, Open>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
}

impl OpenFiles {
    fn get(&self, file: u64) -> Option<&Open> {
        self.files.get(&file)
    }

    fn get_mut(&mut self, file: u64) -> Option<&mut Open> {
        self.files.get_mut(&file)
    }

    /// Marks a file as just used. Returns whether it is open.
    fn touch(&mut self, file: u64) -> bool {
        let Some(open) = self.files.get_mut(&file) else { return false };
        self.clock += 1;
        self.by_use.remove(&core::mem::replace(&mut open.used, self.clock));
        self.by_use.insert(self.clock, file);
        true
    }

    fn insert(&mut self, file: u64, handle: File) {
        self.clock += 1;
        let open = Open { used: self.clock, file: Arc::new(handle), unsynced: 0, _held: HeldOpen::count() };
        self.by_use.insert(self.clock, file);
        self.files.insert(file, open);
    }

    fn remove(&mut self, file: u64) {
        if let Some(open) = self.files.remove(&file) {
            self.by_use.remove(&open.used);
        }
    }

    /// Closes the least recently used file. Returns whether there was one.
    fn close_one(&mut self) -> bool {
        let Some((_, file)) = self.by_use.pop_first() else { return false };
        self.files.remove(&file).is_some()
    }
}

#[derive(Debug)]
struct Open {
    used: u64,
    file: Arc<File>,
    /// Bytes written since the last sync.
    unsynced: u64,
    _held: HeldOpen,
}

impl DataFiles {
    /// The data files in a folder.
    pub(crate) fn new(root: PathBuf) -> DataFiles {
        let buffers = ReadBuffers::default();
        DataFiles { root, open: OpenFiles::default(), new_names: BTreeSet::new(), full: None, buffers }
    }

    /// Adds a path to the next sync, such as a pipe that blocks it until somebody writes to it.
    #[cfg(test)]
    pub(crate) fn sync_too(&mut self, path: PathBuf) {
        self.new_names.insert(path);
    }

    /// Runs an operation other than a sync.
    pub(crate) fn run(&mut self, op: DataOp) -> DataResult {
        self.try_run(op).unwrap_or_else(|error| {
            tracing::warn!("data file: {error}");
            DataResult::Failed(match error.raw_os_error() {
                Some(28) => Errno::ENOSPC,
                Some(122) => Errno::EDQUOT,
                Some(30) => Errno::EROFS,
                Some(27) => Errno::EFBIG,
                Some(95) => Errno::EOPNOTSUPP,
                _ => Errno::EIO,
            })
        })
    }

    fn try_run(&mut self, op: DataOp) -> io::Result<DataResult> {
        use std::os::unix::fs::FileExt;
        Ok(match op {
            DataOp::Read { file, offset, length } => match self.existing(file)?.cloned() {
                None => DataResult::Data(Bytes::new()),
                Some(handle) => {
                    let mut buffer = self.buffers.take(length as usize);
                    loop {
                        let at = offset + buffer.len() as u64;
                        if buffer.len() >= length as usize
                            || rustix::io::pread(&handle, spare_capacity(&mut buffer), at)? == 0
                        {
                            break;
                        }
                    }
                    buffer.truncate(length as usize);
                    DataResult::Data(self.buffers.filled(buffer))
                }
            },
            DataOp::Write { file, offset, data } => {
                let handle = self.created(file)?;
                handle.write_all_at(&data, offset)?;
                let result = size_of(handle)?;
                self.written(file, data.len() as u64);
                result
            }
            DataOp::Truncate { file, size } => {
                let handle = if size == 0 { self.existing(file)? } else { Some(self.created(file)?) };
                match handle {
                    None => DataResult::Size(None),
                    Some(handle) => {
                        handle.set_len(size)?;
                        size_of(handle)?
                    }
                }
            }
            DataOp::Fallocate { file, offset, length, kind, keep_size } => {
                let mut flags = match kind {
                    PunchKind::Hole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    PunchKind::Zero => FallocateFlags::ZERO_RANGE,
                    _ => FallocateFlags::empty(),
                };
                if keep_size {
                    flags |= FallocateFlags::KEEP_SIZE;
                }
                let handle = self.created(file)?;
                rustix::fs::fallocate(handle, flags, offset, length)?;
                size_of(handle)?
            }
            DataOp::Seek { file, offset, hole } => match self.existing(file)? {
                None => DataResult::Offset(None),
                Some(handle) => {
                    let from = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
                    match rustix::fs::seek(handle, from) {
                        Ok(found) => DataResult::Offset(Some(found)),
                        Err(rustix::io::Errno::NXIO) => DataResult::Offset(None),
                        Err(error) => return Err(error.into()),
                    }
                }
            },
            // [`crate::workers`] handles syncs before they get here.
            DataOp::Sync { .. } => DataResult::Failed(Errno::EINVAL),
            DataOp::Remove { file } => {
                self.open.remove(file);
                let path = self.path(file);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    // A removal changes the folder as a new name does, so the folder must be synced.
                    Ok(()) => self.new_names.extend(path.parent().map(Path::to_path_buf)),
                    Err(_) => {}
                }
                DataResult::Done
            }
            DataOp::List { from, limit } => DataResult::Files(self.list(from, limit as usize)?),
            DataOp::Stat { file } => match self.existing(file)? {
                None => DataResult::Size(None),
                Some(handle) => size_of(handle)?,
            },
        })
    }

    fn written(&mut self, file: u64, bytes: u64) {
        if let Some(open) = self.open.get_mut(file) {
            open.unsynced += bytes;
            if open.unsynced >= WRITE_OUT {
                self.full = Some(file);
            }
        }
    }

    /// The background sync that is due, if any.
    pub(crate) fn write_out(&mut self) -> Option<SyncJob> {
        let open = self.open.get_mut(self.full.take()?)?;
        open.unsynced = 0;
        Some(SyncJob { files: vec![open.file.clone()], ..SyncJob::default() })
    }

    /// A sync of everything that was done to these files so far.
    pub(crate) fn sync(&mut self, numbers: &[u64]) -> SyncJob {
        let mut job = SyncJob { folders: std::mem::take(&mut self.new_names), ..SyncJob::default() };
        for number in numbers {
            match self.open.get_mut(*number) {
                Some(open) => {
                    open.unsynced = 0;
                    job.files.push(open.file.clone());
                }
                None => job.others.push(self.path(*number)),
            }
        }
        job
    }

    fn list(&self, from: u64, limit: usize) -> io::Result<Vec<u64>> {
        let names = |folder: &Path, from| with_descriptor(|| false, || numbers(folder, from));
        let mut folders = names(&self.root, from >> FOLDER_SHIFT)?;
        folders.sort_unstable();
        let mut found = Vec::new();
        for folder in folders {
            let mut files = names(&self.root.join(format!("{folder:x}")), from)?;
            files.sort_unstable();
            found.extend(files);
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    fn path(&self, file: u64) -> PathBuf {
        self.root.join(format!("{:x}", file >> FOLDER_SHIFT)).join(format!("{file:x}"))
    }

    fn existing(&mut self, file: u64) -> io::Result<Option<&Arc<File>>> {
        match self.open(file, false) {
            Ok(()) => Ok(self.open.get(file).map(|open| &open.file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn created(&mut self, file: u64) -> io::Result<&Arc<File>> {
        self.open(file, true)?;
        self.open.get(file).map(|open| &open.file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open(&mut self, file: u64, create: bool) -> io::Result<()> {
        if self.open.touch(file) {
            return Ok(());
        }
        let path = self.path(file);
        let (root, open, new_names) = (&self.root, &mut self.open, &mut self.new_names);
        // Files that are closed here are opened again when needed.
        let handle = with_descriptor(|| open.close_one(), || open_file(root, &path, create, new_names))?;
        if self.open.files.len() >= OPEN_FILES || HeldOpen::are_enough() {
            self.open.close_one();
        }
        self.open.insert(file, handle);
        Ok(())
    }
}

/// Opens a data file, or makes it. Adds folders with new names to `new_names`.
fn open_file(root: &Path, path: &Path, create: bool, new_names: &mut BTreeSet<PathBuf>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.open(path) {
        Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = path.parent()
                && !folder.exists()
            {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                new_names.insert(root.to_owned());
            }
            let handle = options.create(true).open(path)?;
            new_names.extend(path.parent().map(Path::to_path_buf));
            Ok(handle)
        }
        other => other,
    }
}

/// The names in a folder that are hexadecimal numbers of at least `from`.
fn numbers(folder: &Path, from: u64) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok()).filter(|&n| n >= from));
    }
    Ok(found)
}

fn size_of(handle: &File) -> io::Result<DataResult> {
    let stat = rustix::fs::fstat(handle.as_fd())?;
    Ok(DataResult::Size(Some((stat.st_size as u64, stat.st_blocks as u64))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(files: &mut DataFiles, file: u64, length: usize) {
        let op = DataOp::Write { file, offset: 0, data: vec![7; length].into() };
        assert!(matches!(files.run(op), DataResult::Size(Some((size, _))) if size >= length as u64));
    }

    #[test]
    fn a_sync_holds_what_was_named_and_the_new_names() {
        let root = tempfile::tempdir().unwrap();
        let mut files = DataFiles::new(root.path().to_owned());
        write(&mut files, 1, 10);
        write(&mut files, 5000, 10);
        assert!(files.write_out().is_none(), "a little waits until somebody asks");
        let sync = files.sync(&[1, 77]);
        assert_eq!((sync.files.len(), sync.folders.len()), (1, 3), "the root got two folders, each a file");
        sync.run().unwrap();
        assert_eq!(files.sync(&[5000]).folders.len(), 0);
    }

    #[test]
    fn the_file_that_was_not_used_for_longest_is_closed_first() {
        let root = tempfile::tempdir().unwrap();
        let mut files = DataFiles::new(root.path().to_owned());
        (1..=3).for_each(|file| write(&mut files, file, 10));
        write(&mut files, 1, 10);
        let open = |files: &DataFiles| files.open.files.keys().copied().collect::<Vec<_>>();
        assert!(files.open.close_one());
        assert_eq!(open(&files), [1, 3], "the smallest number was used since");
        assert!(matches!(files.run(DataOp::Remove { file: 3 }), DataResult::Done));
        assert!(files.open.close_one() && !files.open.close_one());
        (1..=OPEN_FILES as u64 + 1).for_each(|file| write(&mut files, file, 10));
        assert_eq!((open(&files).len(), open(&files)[0]), (OPEN_FILES, 2));
    }

    #[test]
    fn data_files_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let objects = root.path().join("objects");
        let mut files = DataFiles::new(objects.clone());
        write(&mut files, 1, 10);
        for (path, mode) in [(objects.clone(), 0o700), (objects.join("0"), 0o700), (objects.join("0/1"), 0o600)] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{path:?}");
        }
    }

    #[test]
    fn much_is_sent_to_the_disk_before_anybody_asks() {
        let root = tempfile::tempdir().unwrap();
        let mut files = DataFiles::new(root.path().to_owned());
        for _ in 0..WRITE_OUT / (4 << 20) {
            assert!(files.write_out().is_none());
            write(&mut files, 1, 4 << 20);
        }
        let sync = files.write_out().unwrap();
        assert_eq!((sync.files.len(), sync.folders.len()), (1, 0));
        assert!(files.write_out().is_none(), "once");
        write(&mut files, 1, 4 << 20);
        assert!(files.write_out().is_none(), "the count begins anew");
    }
}
