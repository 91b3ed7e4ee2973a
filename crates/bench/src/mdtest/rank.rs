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

/// What a rank did in a phase.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// When it began, by the clock of all processes.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Operations.
    pub count: u64,
    /// Why it ended early, as a sentence; empty if it did not.
    pub failure: String,
}

/// A rank.
pub struct Rank {
    options: Options,
    rank: u64,
    base: String,
    files: Box<dyn Files>,
    /// This rank made the directory of `-d`, and takes it away.
    made_base: bool,
    /// The run is over for all ranks.
    halt: Arc<AtomicBool>,
}

/// How often a rank says how far it is.
const TELL: Duration = Duration::from_millis(500);
/// Operations between two looks at the clock.
const LOOK: u64 = 32;

/// Nanoseconds of the clock that all processes share.
pub fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Rank {
    /// Rank number `rank`, which works on `files` until `halt` is set or this process is told to end.
    pub fn new(options: Options, rank: u64, files: Box<dyn Files>, halt: Arc<AtomicBool>) -> Rank {
        let base = options.places[(rank % options.places.len() as u64) as usize].path().to_owned();
        Rank { options, rank, base, files, made_base: false, halt }
    }

    /// Does a phase of an iteration with `tasks` ranks. `tell` hears now and then how many operations are done.
    pub fn run(&mut self, phase: Phase, iteration: u32, tasks: u64, tell: &mut dyn FnMut(u64)) -> Report {
        let options = self.options.clone();
        let base = self.base.clone();
        let layout = Layout { options: &options, base: &base, rank: self.rank, tasks, iteration };
        let halt = self.halt.clone();
        let mut work = Work { halt: &halt, count: 0, told: Instant::now(), tell, path: Vec::new() };
        let mut start_ns = 0;
        let result = self.phase(phase, &layout, &mut start_ns, &mut work);
        let synced = if options.sync_phases && phase.is_measured() { self.files.sync() } else { Ok(()) };
        let end_ns = clock_ns();
        let result = result.and(synced.map_err(|error| Failure::of("sync", &base, error)));
        let failure = result.err().map(|failure| failure.0).unwrap_or_default();
        Report { start_ns, end_ns, count: work.count, failure }
    }

    fn phase(
        &mut self,
        phase: Phase,
        layout: &Layout<'_>,
        start_ns: &mut u64,
        work: &mut Work<'_>,
    ) -> Result<(), Failure> {
        *start_ns = clock_ns();
        // Making the paths up counts only if that was asked for.
        let mut ready = |options: &Options| {
            if !options.time_paths {
                *start_ns = clock_ns();
            }
        };
        match phase {
            Phase::Prepare => self.prepare(layout),
            Phase::Finish => self.finish(layout),
            Phase::Clean => self.clean(layout),
            Phase::TreeCreation => {
                let tree = c_strings(layout.own_tree());
                ready(layout.options);
                let made = |result: io::Result<()>| match result {
                    // Left by an earlier run.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    other => other,
                };
                tree.iter().try_for_each(|path| work.each(path, "mkdir", |path| made(self.files.mkdir(path))))
            }
            Phase::TreeRemoval => {
                let tree = c_strings(layout.own_tree());
                ready(layout.options);
                tree.iter().rev().try_for_each(|path| work.each(path, "rmdir", |path| self.files.rmdir(path)))
            }
            _ if layout.options.shared_files && phase == Phase::FileRemoval && self.rank > 0 => Ok(()),
            _ => {
                let folders = layout.folders(phase);
                let prefix = layout.prefix(phase);
                let order = self.order(phase, &folders);
                ready(layout.options);
                self.items(phase, &folders, &prefix, order.as_deref(), work)
            }
        }
    }

    /// With -R, a random order for what only looks: which folder, which item in it.
    fn order(&self, phase: Phase, folders: &[Folder]) -> Option<Vec<(u32, u64)>> {
        let seed = self.options.random_seed?;
        if !matches!(phase, Phase::DirectoryStat | Phase::FileStat | Phase::FileRead) {
            return None;
        }
        let count = self.options.layout_items();
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
        for (at, byte) in data.iter_mut().enumerate().skip(1) {
            *byte = (at as u8).wrapping_add(1);
        }
        let mut buffer = vec![0; self.options.read_bytes as usize];
        let starts: Vec<String> = folders.iter().map(|folder| format!("{}/{prefix}", folder.path)).collect();
        let (options, files) = (&self.options, &mut self.files);
        let mut one = |folder: usize, item: u64, work: &mut Work<'_>| {
            let number = folders[folder].first + item;
            work.item(&starts[folder], number, |path| match phase {
                Phase::DirectoryCreation => ("mkdir", files.mkdir(path)),
                Phase::DirectoryStat | Phase::FileStat => ("stat", files.stat(path)),
                Phase::DirectoryRemoval => ("rmdir", files.rmdir(path)),
                Phase::FileCreation if options.mknod => ("mknod", files.mknod(path)),
                Phase::FileCreation => {
                    let head = number.to_le_bytes();
                    let length = data.len().min(head.len());
                    data[..length].copy_from_slice(&head[..length]);
                    ("create", files.create(path, &data, options.sync_files))
                }
                Phase::FileRead => {
                    let read = files.read(path, &mut buffer).and_then(|count| {
                        if count < buffer.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
                    });
                    ("read", read)
                }
                _ => ("unlink", files.unlink(path)),
            })
        };
        match order {
            Some(order) => order.iter().try_for_each(|(folder, item)| one(*folder as usize, *item, work)),
            None => {
                let count = options.layout_items();
                (0..folders.len()).try_for_each(|folder| (0..count).try_for_each(|item| one(folder, item, work)))
            }
        }
    }

    /// The first rank of each place makes what the ranks of that place need. Places of one file system share it.
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
        }
        Ok(())
    }

    /// The test directories are empty and go. Places of one file system share them.
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

    /// The directory of `-d` goes with the last iteration, if this run made it and nothing else is in it.
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
                // Another rank, whose place is the same file system, may be at it too.
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
}

/// A sentence that says what failed and what to do.
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
    told: Instant,
    tell: &'a mut dyn FnMut(u64),
    path: Vec<u8>,
}

impl Work<'_> {
    fn each(
        &mut self,
        path: &CStr,
        call: &str,
        operation: impl FnOnce(&CStr) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.go_on()?;
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
        self.go_on()?;
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

    fn go_on(&self) -> Result<(), Failure> {
        if self.halt.load(Ordering::Relaxed) || stop::requested() {
            return Err(Failure("stopped".to_owned()));
        }
        Ok(())
    }

    fn done(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(LOOK) && self.told.elapsed() >= TELL {
            self.told = Instant::now();
            (self.tell)(self.count);
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
