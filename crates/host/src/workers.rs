//! The threads that touch the disk for a target, so that the target's own thread never does.
//!
//! One thread commits groups, in their order. Two load records. A few do data files: all operations on one file go to
//! the same thread, so they keep their order; a sync of many files is split and answered when the last part is done.
//! Results come back as events of the target.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use parking_lot::Mutex;
use proto::Errno;
use proto::msg::PunchKind;
use rustix::fs::{FallocateFlags, SeekFrom};
use store::Engine;
use target::{DataId, DataOp, DataResult, Event};

/// Where results go.
pub type Events = tokio::sync::mpsc::UnboundedSender<Event>;

type Job = Box<dyn FnOnce() + Send>;

/// The worker threads of one target. They end when this is dropped and their queues are empty.
pub struct Workers {
    engine: Arc<dyn Engine>,
    events: Events,
    commits: mpsc::Sender<Job>,
    loads: mpsc::Sender<Job>,
    data: Vec<mpsc::Sender<DataJob>>,
}

/// Threads that load records.
const LOADERS: usize = 2;
/// Threads for data files.
const DATA_THREADS: usize = 2;
/// A folder holds the files whose numbers agree without so many low bits.
const FOLDER_SHIFT: u32 = 12;
/// Open data files per thread.
const OPEN_FILES: usize = 128;

struct DataJob {
    op: DataOp,
    done: Box<dyn FnOnce(DataResult) + Send>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workers")
    }
}

impl Workers {
    /// Starts the threads. `data` is the folder of data files of an object target.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn start(name: &str, engine: Arc<dyn Engine>, data: Option<PathBuf>, events: Events) -> io::Result<Workers> {
        let spawn = |role: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(format!("{name}-{role}")).spawn(body).map(drop)
        };
        let (commits, queue) = mpsc::channel::<Job>();
        spawn("commit", Box::new(move || queue.into_iter().for_each(|job| job())))?;
        let (loads, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..LOADERS {
            let queue = queue.clone();
            spawn(
                "load",
                Box::new(move || {
                    loop {
                        let Ok(job) = queue.lock().recv() else { return };
                        job();
                    }
                }),
            )?;
        }
        let mut threads = Vec::new();
        if let Some(root) = data {
            for _ in 0..DATA_THREADS {
                let (sender, queue) = mpsc::channel::<DataJob>();
                let mut files = DataFiles::new(root.clone());
                spawn(
                    "data",
                    Box::new(move || {
                        for job in queue {
                            (job.done)(files.run(job.op));
                        }
                    }),
                )?;
                threads.push(sender);
            }
        }
        Ok(Workers { engine, events, commits, loads, data: threads })
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Runs `load` on a loader thread; its event follows.
    pub fn load(&self, load: store::Load) {
        let (engine, events) = (self.engine.clone(), self.events.clone());
        let _ = self.loads.send(Box::new(move || {
            let _ = events.send(Event::Loaded(load.run(&*engine)));
        }));
    }

    /// Writes a group after those before it; its event follows.
    pub fn commit(&self, group: store::Group) {
        let (engine, events) = (self.engine.clone(), self.events.clone());
        let _ = self.commits.send(Box::new(move || {
            let number = group.number();
            let event = match group.run(&*engine) {
                Ok(()) => {
                    // What the group took is known before the next one is filled on the strength of an old figure.
                    if let Ok(space) = engine.space() {
                        let _ = events.send(Event::Space(space));
                    }
                    Event::Committed { group: number }
                }
                Err(error) => Event::CommitFailed { group: number, reason: error.to_string() },
            };
            let _ = events.send(event);
        }));
    }

    /// Does a data operation; its event follows.
    pub fn data(&self, id: DataId, op: DataOp) {
        let events = self.events.clone();
        let done = move |result| {
            let _ = events.send(Event::DataDone { id, result });
        };
        if self.data.is_empty() {
            done(DataResult::Failed(Errno::EIO));
            return;
        }
        match op {
            DataOp::Sync { files } => self.sync(files, Box::new(done)),
            op => {
                let thread = self.thread_of(file_of(&op));
                let _ = self.data[thread].send(DataJob { op, done: Box::new(done) });
            }
        }
    }

    fn thread_of(&self, file: u64) -> usize {
        (file % self.data.len().max(1) as u64) as usize
    }

    fn sync(&self, files: Vec<u64>, done: Box<dyn FnOnce(DataResult) + Send>) {
        let mut parts: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for file in files {
            parts.entry(self.thread_of(file)).or_default().push(file);
        }
        if parts.is_empty() {
            done(DataResult::Done);
            return;
        }
        let left = Arc::new(AtomicUsize::new(parts.len()));
        let failed = Arc::new(AtomicBool::new(false));
        let done = Arc::new(Mutex::new(Some(done)));
        for (thread, files) in parts {
            let (left, failed, done) = (left.clone(), failed.clone(), done.clone());
            let part_done = move |result| {
                if matches!(result, DataResult::Failed(_)) {
                    failed.store(true, Ordering::SeqCst);
                }
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    let result =
                        if failed.load(Ordering::SeqCst) { DataResult::Failed(Errno::EIO) } else { DataResult::Done };
                    if let Some(done) = done.lock().take() {
                        done(result);
                    }
                }
            };
            let _ = self.data[thread].send(DataJob { op: DataOp::Sync { files }, done: Box::new(part_done) });
        }
    }
}

fn file_of(op: &DataOp) -> u64 {
    match op {
        DataOp::Read { file, .. }
        | DataOp::Write { file, .. }
        | DataOp::Truncate { file, .. }
        | DataOp::Fallocate { file, .. }
        | DataOp::Seek { file, .. }
        | DataOp::Remove { file }
        | DataOp::Stat { file } => *file,
        _ => 0,
    }
}

/// The data files of an object target: `objects/<file number / 4096>/<file number>`, both hexadecimal, so that the newest
/// files are found without a look at the others.
#[derive(Debug)]
struct DataFiles {
    root: PathBuf,
    open: BTreeMap<u64, (u64, File)>,
    clock: u64,
    /// Folders with new names that are not durable yet.
    new_names: BTreeSet<PathBuf>,
}

impl DataFiles {
    fn new(root: PathBuf) -> DataFiles {
        DataFiles { root, open: BTreeMap::new(), clock: 0, new_names: BTreeSet::new() }
    }

    fn run(&mut self, op: DataOp) -> DataResult {
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
            DataOp::Read { file, offset, length } => match self.existing(file)? {
                None => DataResult::Data(Bytes::new()),
                Some(handle) => {
                    let mut buffer = vec![0; length as usize];
                    let mut filled = 0;
                    while filled < buffer.len() {
                        match handle.read_at(&mut buffer[filled..], offset + filled as u64)? {
                            0 => break,
                            count => filled += count,
                        }
                    }
                    buffer.truncate(filled);
                    DataResult::Data(buffer.into())
                }
            },
            DataOp::Write { file, offset, data } => {
                let handle = self.created(file)?;
                handle.write_all_at(&data, offset)?;
                size_of(handle)?
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
            DataOp::Sync { files } => {
                for file in files {
                    if let Some(handle) = self.existing(file)? {
                        handle.sync_data()?;
                    }
                }
                while let Some(folder) = self.new_names.pop_first() {
                    File::open(folder)?.sync_all()?;
                }
                DataResult::Done
            }
            DataOp::Remove { file } => {
                self.open.remove(&file);
                let path = self.path(file);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    // A removal is as much a change of the folder as a new name.
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

    fn list(&self, from: u64, limit: usize) -> io::Result<Vec<u64>> {
        let mut folders = numbers(&self.root, from >> FOLDER_SHIFT)?;
        folders.sort_unstable();
        let mut found = Vec::new();
        for folder in folders {
            let mut files = numbers(&self.root.join(format!("{folder:x}")), from)?;
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

    fn existing(&mut self, file: u64) -> io::Result<Option<&File>> {
        match self.open(file, false) {
            Ok(()) => Ok(self.open.get(&file).map(|(_, handle)| handle)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn created(&mut self, file: u64) -> io::Result<&File> {
        self.open(file, true)?;
        self.open.get(&file).map(|(_, handle)| handle).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open(&mut self, file: u64, create: bool) -> io::Result<()> {
        self.clock += 1;
        if let Some(entry) = self.open.get_mut(&file) {
            entry.0 = self.clock;
            return Ok(());
        }
        let path = self.path(file);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let handle = match options.open(&path) {
            Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
                if let Some(folder) = path.parent()
                    && !folder.exists()
                {
                    fs::create_dir_all(folder)?;
                    self.new_names.insert(self.root.clone());
                }
                let handle = options.create(true).open(&path)?;
                self.new_names.extend(path.parent().map(Path::to_path_buf));
                handle
            }
            other => other?,
        };
        if self.open.len() >= OPEN_FILES
            && let Some(oldest) = self.open.iter().min_by_key(|(_, (used, _))| *used).map(|(file, _)| *file)
        {
            self.open.remove(&oldest);
        }
        self.open.insert(file, (self.clock, handle));
        Ok(())
    }
}

/// The names in a folder that are hexadecimal numbers from `from` on.
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
