//! The work of one rank.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stdx::Rng;

use super::Phase;
use super::files::Files;
use super::layout::{Folder, Layout};
use super::options::Options;
use crate::stop;

/// The result of a rank in a phase.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// When it started, by the clock that all processes share.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// The number of operations.
    pub count: u64,
    /// Items whose data was not as written.
    pub wrong: u64,
    /// Why it ended early, as a sentence; empty if it did not.
    pub failure: String,
}

/// A rank.
pub struct Rank {
    options: Options,
    rank: u64,
    base: String,
    files: Box<dyn Files>,
    /// Whether this rank made the directory of `-d`, so that it also removes it.
    made_base: bool,
    /// Set when all ranks are to stop.
    halt: Arc<AtomicBool>,
    /// The files that this rank created in this iteration before the time was over.
    made: u64,
}

/// An order to run a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The phase.
    pub phase: Phase,
    /// The iteration.
    pub iteration: u32,
    /// The number of ranks.
    pub tasks: u64,
    /// The most files in each directory, if the time allowed no more.
    pub limit: u64,
}

impl Order {
    /// An order without a limit.
    pub fn new(phase: Phase, iteration: u32, tasks: u64) -> Order {
        Order { phase, iteration, tasks, limit: u64::MAX }
    }
}

/// How often a rank reports its progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// The number of operations between two looks at the clock.
const LOOK: u64 = 32;

/// Nanoseconds of the clock that all processes share.
pub fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Rank {
    /// Rank number `rank`, which works on `files` until `halt` is set or this process gets a signal to stop.
    pub fn new(options: Options, rank: u64, files: Box<dyn Files>, halt: Arc<AtomicBool>) -> Rank {
        let base = options.places[(rank % options.places.len() as u64) as usize].path().to_owned();
        Rank { options, rank, base, files, made_base: false, halt, made: 0 }
    }

    /// Runs a phase. `report` is called now and then with the number of operations done.
    pub fn run(&mut self, order: Order, report: &mut dyn FnMut(u64)) -> Report {
        let Order { phase, iteration, tasks, limit } = order;
        let options = self.options.clone();
        let base = self.base.clone();
        let layout = Layout { options: &options, base: &base, rank: self.rank, tasks, iteration };
        let halt = self.halt.clone();
        let mut work = Work {
            halt: &halt,
            count: 0,
            wrong: 0,
            reported: Instant::now(),
            report,
            path: Vec::new(),
            limit,
            wall: None,
        };
        let mut start_ns = 0;
        let result = self.phase(phase, &layout, &mut start_ns, &mut work);
        let synced = if options.sync_phases && phase.is_measured() { self.files.sync() } else { Ok(()) };
        let end_ns = clock_ns();
        let result = result.and(synced.map_err(|error| Failure::of("sync", &base, error)));
        let failure = result.err().map(|failure| failure.0).unwrap_or_default();
        Report { start_ns, end_ns, count: work.count, wrong: work.wrong, failure }
    }

    fn phase(
        &mut self,
        phase: Phase,
        layout: &Layout<'_>,
        start_ns: &mut u64,
        work: &mut Work<'_>,
    ) -> Result<(), Failure> {
        *start_ns = clock_ns();
        // The time to make the paths counts only if the options say so.
        let mut ready = |options: &Options| {
            if !options.time_paths {
                *start_ns = clock_ns();
            }
        };
        match phase {
            Phase::Prepare => self.prepare(layout),
            Phase::Finish => self.finish(layout),
            Phase::Clean => self.clean(layout),
            // With `-c`, the first rank does these for all.
            _ if layout.options.collective && self.rank > 0 && phase.is_collective() => Ok(()),
            Phase::TreeCreation => {
                let tree = c_strings(self.ranks_of(layout, phase).flat_map(|layout| layout.own_tree()).collect());
                ready(layout.options);
                let made = |result: io::Result<()>| match result {
                    // Left by an earlier run.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    other => other,
                };
                tree.iter().try_for_each(|path| work.each(path, "mkdir", |path| made(self.files.mkdir(path))))
            }
            Phase::TreeRemoval => {
                let tree = c_strings(self.ranks_of(layout, phase).flat_map(|layout| layout.own_tree()).collect());
                ready(layout.options);
                tree.iter().rev().try_for_each(|path| work.each(path, "rmdir", |path| self.files.rmdir(path)))
            }
            _ if layout.options.shared_files && phase == Phase::FileRemoval && self.rank > 0 => Ok(()),
            _ => {
                let all: Vec<(Vec<Folder>, String)> =
                    self.ranks_of(layout, phase).map(|layout| (layout.folders(phase), layout.prefix(phase))).collect();
                let order = match &all[..] {
                    [(folders, _)] => self.order(phase, folders, work.limit),
                    _ => None,
                };
                ready(layout.options);
                if layout.options.stone_wall > 0 && phase == Phase::FileCreation {
                    work.wall = Some(Instant::now() + Duration::from_secs(layout.options.stone_wall));
                }
                let result = all
                    .iter()
                    .try_for_each(|(folders, prefix)| self.items(phase, folders, prefix, order.as_deref(), work));
                if phase == Phase::FileCreation {
                    self.made = work.count;
                }
                result
            }
        }
    }

    /// The ranks whose items this rank works on: itself, or all with `-c`.
    fn ranks_of<'a>(&self, layout: &Layout<'a>, phase: Phase) -> impl Iterator<Item = Layout<'a>> + use<'a> {
        let all = layout.options.collective && phase.is_collective();
        let (own, layout) = (layout.rank, *layout);
        let ranks = if all { 0..layout.tasks } else { own..own + 1 };
        ranks.map(move |rank| Layout { rank, ..layout })
    }

    /// With `-R`, a random order for phases that only look: folder, and item in it.
    fn order(&self, phase: Phase, folders: &[Folder], limit: u64) -> Option<Vec<(u32, u64)>> {
        let seed = self.options.random_seed?;
        if !matches!(phase, Phase::DirectoryStat | Phase::FileStat | Phase::FileRead) {
            return None;
        }
        let count = self.options.layout_items().min(limit);
        let mut order: Vec<(u32, u64)> =
            (0..folders.len() as u32).flat_map(|folder| (0..count).map(move |item| (folder, item))).collect();
        let mut rng = Rng::new(seed.wrapping_add(self.rank));
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        Some(order)
    }

    fn items(
        &mut self,
        phase: Phase,
        folders: &[Folder],
        prefix: &str,
        order: Option<&[(u32, u64)]>,
        work: &mut Work<'_>,
    ) -> Result<(), Failure> {
        let mut data = vec![0; self.options.write_bytes as usize];
        fill(&mut data);
        let read_back = if self.options.verify_write { data.len() } else { 0 };
        let mut buffer = vec![0; (self.options.read_bytes as usize).max(read_back)];
        let read_bytes = self.options.read_bytes as usize;
        let starts: Vec<String> = folders.iter().map(|folder| format!("{}/{prefix}", folder.path)).collect();
        let first = if phase == Phase::FileCreationRest { self.made } else { 0 };
        let (options, files) = (&self.options, &mut self.files.as_mut());
        let mut one = |folder: usize, item: u64, work: &mut Work<'_>| {
            let number = folders[folder].first + item;
            let mut wrong = 0;
            let result = work.item(&starts[folder], number, |path| match phase {
                Phase::DirectoryCreation => ("mkdir", files.mkdir(path)),
                Phase::DirectoryStat | Phase::FileStat => ("stat", files.stat(path)),
                Phase::DirectoryRemoval => ("rmdir", files.rmdir(path)),
                Phase::FileCreation if options.mknod => ("mknod", files.mknod(path)),
                Phase::FilesOfAll => ("create", files.create(path, &[], false)),
                Phase::FileCreation | Phase::FileCreationRest => {
                    let length = mark(&mut data, number);
                    let created = files.create(path, &data, options.sync_files);
                    if !options.verify_write || created.is_err() || length == 0 {
                        return ("create", created);
                    }
                    buffer[..read_back].fill(42);
                    let read = read_all(*files, path, &mut buffer[..read_back]);
                    wrong += u64::from(read.is_ok() && buffer[..read_back] != data[..]);
                    ("read", read)
                }
                Phase::FileRead => {
                    let buffer = &mut buffer[..read_bytes];
                    if let Some(first) = buffer.first_mut() {
                        *first = 42;
                    }
                    let read = read_all(*files, path, buffer);
                    wrong += u64::from(read.is_ok() && !is_as_written(buffer, number, options.verify_read));
                    ("read", read)
                }
                _ => ("unlink", files.unlink(path)),
            });
            work.wrong += wrong;
            result
        };
        match order {
            Some(order) => order.iter().try_for_each(|(folder, item)| one(*folder as usize, *item, work)),
            None => {
                let count = options.layout_items();
                let limit = if phase.is_of_files() { count.min(work.limit) } else { count };
                for folder in 0..folders.len() {
                    for item in first..limit {
                        if work.is_over() {
                            return Ok(());
                        }
                        one(folder, item, work)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// The first rank of each place makes what all ranks of that place need. Places of one file system share it.
    fn prepare(&mut self, layout: &Layout<'_>) -> Result<(), Failure> {
        if self.rank >= self.options.places.len() as u64 {
            return Ok(());
        }
        if !self.base.is_empty() {
            match self.files.mkdir(&c_string(&self.base)) {
                Ok(()) => self.made_base = true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::of("mkdir", &self.base, error)),
            }
        }
        for folder in layout.test_folders() {
            match self.files.mkdir(&c_string(&folder)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Failure::of("mkdir", &folder, error));
                }
                _ => {}
            }
            if self.options.global_layout {
                self.files
                    .forget_layout(&c_string(&folder))
                    .map_err(|error| Failure::of("forget the layout of", &folder, error))?;
            }
        }
        Ok(())
    }

    /// Removes the test directories, which are empty. Places of one file system share them.
    fn finish(&mut self, layout: &Layout<'_>) -> Result<(), Failure> {
        if self.rank >= self.options.places.len() as u64 {
            return Ok(());
        }
        for folder in layout.test_folders() {
            match self.files.rmdir(&c_string(&folder)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::of("rmdir", &folder, error));
                }
                _ => {}
            }
        }
        self.take_base(layout);
        Ok(())
    }

    /// Removes the directory of `-d` with the last iteration, if this run made it and it is empty.
    fn take_base(&mut self, layout: &Layout<'_>) {
        if self.made_base && layout.iteration + 1 >= self.options.iterations {
            let _ = self.files.rmdir(&c_string(&self.base));
        }
    }

    fn clean(&mut self, layout: &Layout<'_>) -> Result<(), Failure> {
        if self.rank >= self.options.places.len() as u64 {
            return Ok(());
        }
        for iteration in 0..=layout.iteration {
            for folder in (Layout { iteration, ..*layout }).test_folders() {
                // Another rank, whose place is the same file system, may be removing it too.
                match self.files.remove_all(&c_string(&folder)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound && self.rank == 0 => {
                        return Err(Failure::of("rm -r", &folder, error));
                    }
                    _ => {}
                }
            }
        }
        self.take_base(&Layout { iteration: self.options.iterations.saturating_sub(1), ..*layout });
        Ok(())
    }
}

impl Phase {
    /// Whether the summary has a row for it.
    pub fn is_measured(self) -> bool {
        !matches!(self, Phase::Prepare | Phase::Finish | Phase::Clean)
    }

    /// Whether the phase concerns files.
    pub fn is_of_files(self) -> bool {
        use Phase::{FileCreation, FileCreationRest, FileRead, FileRemoval, FileStat, FilesOfAll};
        matches!(self, FileCreation | FileCreationRest | FilesOfAll | FileStat | FileRead | FileRemoval)
    }

    /// Whether, with `-c`, the first rank does the phase for all.
    fn is_collective(self) -> bool {
        use Phase::{DirectoryCreation, DirectoryRemoval, FileRemoval, FilesOfAll, TreeCreation, TreeRemoval};
        matches!(self, DirectoryCreation | DirectoryRemoval | FileRemoval | FilesOfAll | TreeCreation | TreeRemoval)
    }
}

/// Fills the data of a file, except for the number of the item.
fn fill(data: &mut [u8]) {
    for (at, byte) in data.iter_mut().enumerate().skip(1) {
        *byte = (at as u8).wrapping_add(1);
    }
}

/// Puts the number of the item into its data: 8 bytes, or 1 if the data is shorter. Returns how many bytes.
fn mark(data: &mut [u8], number: u64) -> usize {
    let head = number.to_le_bytes();
    let length = match data.len() {
        0 => 0,
        1..8 => 1,
        _ => 8,
    };
    data[..length].copy_from_slice(&head[..length]);
    length
}

/// Whether the data is as mdtest writes it; unless `all`, only the number of the item is compared.
fn is_as_written(read: &[u8], number: u64, all: bool) -> bool {
    let mut head = [0; 8];
    let length = mark(&mut head[..read.len().min(8)], number);
    let rest = read.iter().enumerate().skip(length);
    read[..length] == head[..length] && (!all || rest.into_iter().all(|(at, byte)| *byte == (at as u8).wrapping_add(1)))
}

fn read_all(files: &mut dyn Files, path: &CStr, buffer: &mut [u8]) -> io::Result<()> {
    let count = files.read(path, buffer)?;
    if count < buffer.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// What failed and what to do, as a sentence.
struct Failure(String);

impl Failure {
    fn of(call: &str, path: &str, error: io::Error) -> Failure {
        let hint = match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                ": the file system is full; make room, or use fewer items"
            }
            Some(rustix::io::Errno::NOTCONN) => ": the mount is gone; mount it again",
            Some(rustix::io::Errno::IO | rustix::io::Errno::STALE) => {
                ": the file system is in trouble; see 'adamant status' and its logs"
            }
            Some(rustix::io::Errno::EXIST) => ": an earlier run left it; remove it, or run with -r",
            Some(rustix::io::Errno::NOENT) if call == "mkdir" => {
                ": the folder that is to hold it is not there; make that first, or name another with -d"
            }
            Some(rustix::io::Errno::NOENT) => ": it is not there; run the phase that makes it (-C) first",
            _ => "",
        };
        Failure(format!("{call} '{path}': {error}{hint}"))
    }
}

/// The loop around operations.
struct Work<'a> {
    halt: &'a AtomicBool,
    count: u64,
    wrong: u64,
    reported: Instant,
    report: &'a mut dyn FnMut(u64),
    path: Vec<u8>,
    /// The most files.
    limit: u64,
    /// When this rank stops.
    wall: Option<Instant>,
}

impl Work<'_> {
    fn each(
        &mut self,
        path: &CStr,
        call: &str,
        operation: impl FnOnce(&CStr) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.check_halt()?;
        operation(path).map_err(|error| Failure::of(call, &path.to_string_lossy(), error))?;
        self.done();
        Ok(())
    }

    fn item(
        &mut self,
        start: &str,
        number: u64,
        operation: impl FnOnce(&CStr) -> (&'static str, io::Result<()>),
    ) -> Result<(), Failure> {
        self.check_halt()?;
        self.path.clear();
        self.path.extend_from_slice(start.as_bytes());
        push_number(&mut self.path, number);
        self.path.push(0);
        let path = CStr::from_bytes_with_nul(&self.path).unwrap_or_default();
        let (call, result) = operation(path);
        result.map_err(|error| Failure::of(call, &path.to_string_lossy(), error))?;
        self.done();
        Ok(())
    }

    /// Whether the time is over, if there is a limit. At least one item is done.
    fn is_over(&self) -> bool {
        self.count > 0 && self.wall.is_some_and(|wall| Instant::now() >= wall)
    }

    fn check_halt(&self) -> Result<(), Failure> {
        if self.halt.load(Ordering::Relaxed) || stop::requested() {
            return Err(Failure("stopped".to_owned()));
        }
        Ok(())
    }

    fn done(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(LOOK) && self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            (self.report)(self.count);
        }
    }
}

fn push_number(path: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    path.extend_from_slice(&digits[at..]);
}

fn c_string(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

fn c_strings(paths: Vec<String>) -> Vec<CString> {
    paths.iter().map(|path| c_string(path)).collect()
}
