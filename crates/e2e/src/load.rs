//! A load of programs that runs while servers are killed: every call must succeed, and the final state must match the calls.
//!
//! Each thread works in a folder of its own and keeps a [`Model`] of it, so that every acknowledged operation can be
//! checked afterwards. It also keeps files open, some without a name, and continues to use them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdx::Rng;

use crate::adamant;
use crate::model::{Entry, File, Model, first_difference};

/// Threads at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<Worked, String>>>,
}

/// The work of a thread.
#[derive(Debug)]
pub struct Worked {
    /// Its folder, from the root of the file system.
    pub folder: PathBuf,
    /// The expected content.
    pub model: Model,
    /// Operations.
    pub operations: u64,
    /// The longest operation.
    pub longest: Duration,
    /// Start and end of the long operations.
    pub slow: Vec<(Instant, Instant)>,
}

/// An operation that takes longer is recorded separately.
const SLOW: Duration = Duration::from_millis(20);

impl Load {
    /// Starts `per_mount` threads on each mount; their folders follow from `seed`.
    pub fn start(mounts: &[PathBuf], per_mount: usize, seed: u64) -> Load {
        Load::of(mounts, per_mount, seed, Kind { names_alone: false, striped: false })
    }

    /// The same in folders that are striped over all metadata targets.
    pub fn in_striped(mounts: &[PathBuf], per_mount: usize, seed: u64) -> Load {
        Load::of(mounts, per_mount, seed, Kind { names_alone: false, striped: true })
    }

    /// The same with only creates, renames, links and unlinks: operations that fail if they are done twice.
    pub fn of_names(mounts: &[PathBuf], per_mount: usize, seed: u64) -> Load {
        Load::of(mounts, per_mount, seed, Kind { names_alone: true, striped: false })
    }

    fn of(mounts: &[PathBuf], per_mount: usize, seed: u64, kind: Kind) -> Load {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for (index, mount) in mounts.iter().enumerate() {
            for number in 0..per_mount {
                let folder = PathBuf::from(format!("load-{seed}-{index}-{number}"));
                let worker = Worker {
                    path: mount.join(&folder),
                    rng: Rng::new(seed ^ (index as u64) << 32 ^ (number as u64) << 40),
                    model: Model::default(),
                    open: Vec::new(),
                    next: 0,
                    kind,
                    last: String::new(),
                };
                let (stop, done) = (stop.clone(), done.clone());
                threads.push(std::thread::spawn(move || worker.work(&folder, &stop, &done)));
            }
        }
        Load { stop, done, threads }
    }

    /// Operations done so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until this many more operations are done, which shows that the file system serves.
    #[track_caller]
    pub fn await_progress(&self, operations: u64, bound: Duration) {
        let (start, from) = (Instant::now(), self.done());
        while self.done() < from + operations {
            let ended = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!ended, "a thread of the load gave up");
            assert!(start.elapsed() < bound, "only {} operations in {bound:?}", self.done() - from);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the load. Fails if a thread has failed.
    #[track_caller]
    pub fn stop(self) -> Vec<Worked> {
        self.stop.store(true, Ordering::Relaxed);
        let results: Vec<_> =
            self.threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("panicked".into()))).collect();
        let failures: Vec<&String> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(failures.is_empty(), "programs saw errors: {failures:#?}");
        results.into_iter().flatten().collect()
    }

    /// Waits for the threads and ignores their failures, because their mounts are gone.
    pub fn abandon(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Checks through a mount that every acknowledged operation took effect.
#[track_caller]
pub fn verify(worked: &[Worked], mount: &Path) {
    for work in worked {
        let wrong = work.model.differences(&mount.join(&work.folder));
        assert!(
            wrong.is_empty(),
            "{} differs in {} places after {} operations:\n{}",
            mount.join(&work.folder).display(),
            wrong.len(),
            work.operations,
            wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n")
        );
    }
}

/// The longest that any operation took.
pub fn longest(worked: &[Worked]) -> Duration {
    worked.iter().map(|work| work.longest).max().unwrap_or_default()
}

/// Operations of all threads.
pub fn operations(worked: &[Worked]) -> u64 {
    worked.iter().map(|work| work.operations).sum()
}

/// What the threads do.
#[derive(Clone, Copy)]
struct Kind {
    /// Only operations on names.
    names_alone: bool,
    /// Their folders are striped.
    striped: bool,
}

struct Worker {
    path: PathBuf,
    rng: Rng,
    model: Model,
    /// Open files, by their number in the model.
    open: Vec<(usize, fs::File)>,
    next: u64,
    kind: Kind,
    /// The current operation, for messages.
    last: String,
}

/// Most names in a folder.
const NAMES: usize = 60;
/// Most open files.
const OPEN: usize = 6;
/// Longest file, bytes.
const LENGTH: u64 = 300_000;

impl Worker {
    fn work(mut self, folder: &Path, stop: &AtomicBool, done: &AtomicU64) -> Result<Worked, String> {
        match self.kind.striped {
            true => _ = adamant(["lfs", "mkdir", "-c", "-1"]).arg(&self.path).ok(),
            false => {
                fs::create_dir(&self.path).map_err(|error| format!("mkdir {}: {error}", self.path.display()))?;
            }
        }
        let (mut operations, mut longest, mut slow) = (0, Duration::ZERO, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            if let Err(error) = self.step() {
                return Err(format!("{} in {}: {error}", self.last, self.path.display()));
            }
            let end = Instant::now();
            longest = longest.max(end - start);
            if end - start > SLOW {
                slow.push((start, end));
            }
            operations += 1;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Worked { folder: folder.to_path_buf(), model: self.model, operations, longest, slow })
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    fn some(&mut self, wanted: fn(&Entry) -> bool) -> Option<String> {
        let names: Vec<&String> =
            self.model.names.iter().filter(|(_, entry)| wanted(entry)).map(|(name, _)| name).collect();
        let at = self.rng.below(names.len() as u64) as usize;
        names.get(at).map(ToString::to_string)
    }

    fn some_file(&mut self) -> Option<(String, usize)> {
        let name = self.some(|entry| matches!(entry, Entry::File(_)))?;
        match self.model.names[&name] {
            Entry::File(number) => Some((name, number)),
            _ => None,
        }
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = if self.rng.chance(1, 10) { self.rng.below(most) } else { self.rng.below(4096) };
        crate::trees::bytes(self.rng.u64(), length as usize)
    }

    fn step(&mut self) -> io::Result<()> {
        let crowded = self.model.names.len() >= NAMES;
        if self.kind.names_alone {
            return match self.rng.below(8) {
                0..3 if !crowded => self.create_empty(),
                3 if !crowded => self.link(),
                4..6 => self.rename(),
                _ => self.remove(),
            };
        }
        match self.rng.below(16) {
            0..4 if !crowded => self.create(),
            4 if !crowded => self.folder(),
            5 if !crowded => self.link(),
            6 if !crowded => self.symbolic_link(),
            7 => self.append(),
            8 => self.rename(),
            9 => self.mode(),
            10 => self.open_or_close(),
            11 | 12 => self.use_open(),
            13 => self.look(),
            _ => self.remove(),
        }
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.fresh();
        let content = self.bytes(LENGTH / 2);
        self.last = format!("create {name} with {} bytes", content.len());
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o640).open(self.path.join(&name))?;
        file.write_all_at(&content, 0)?;
        self.model.files.push(File { content, mode: 0o640, links: 1 });
        let number = self.model.files.len() - 1;
        self.model.names.insert(name, Entry::File(number));
        if self.open.len() < OPEN && self.rng.chance(1, 8) {
            self.open.push((number, file));
        }
        Ok(())
    }

    fn create_empty(&mut self) -> io::Result<()> {
        let name = self.fresh();
        self.last = format!("create {name}");
        OpenOptions::new().write(true).create_new(true).mode(0o640).open(self.path.join(&name))?;
        self.model.files.push(File { content: Vec::new(), mode: 0o640, links: 1 });
        self.model.names.insert(name, Entry::File(self.model.files.len() - 1));
        Ok(())
    }

    fn folder(&mut self) -> io::Result<()> {
        let name = self.fresh();
        self.last = format!("mkdir {name}");
        fs::create_dir(self.path.join(&name))?;
        self.model.names.insert(name, Entry::Folder);
        Ok(())
    }

    fn link(&mut self) -> io::Result<()> {
        let Some((from, number)) = self.some_file() else { return Ok(()) };
        let name = self.fresh();
        self.last = format!("link {from} {name}");
        fs::hard_link(self.path.join(from), self.path.join(&name))?;
        self.model.files[number].links += 1;
        self.model.names.insert(name, Entry::File(number));
        Ok(())
    }

    fn symbolic_link(&mut self) -> io::Result<()> {
        let name = self.fresh();
        self.last = format!("symlink {name}");
        let target = format!("to/{name}");
        symlink(&target, self.path.join(&name))?;
        self.model.names.insert(name, Entry::Link(target));
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let Some((name, number)) = self.some_file() else { return Ok(()) };
        let length = self.model.files[number].content.len() as u64;
        if length > LENGTH {
            self.last = format!("truncate {name} from {length} to 1000");
            OpenOptions::new().write(true).open(self.path.join(name))?.set_len(1000)?;
            self.model.files[number].content.truncate(1000);
            return Ok(());
        }
        let more = self.bytes(LENGTH / 4);
        self.last = format!("append {} bytes to {name} of {length}", more.len());
        let mut file = OpenOptions::new().append(true).open(self.path.join(name))?;
        io::Write::write_all(&mut file, &more)?;
        self.model.files[number].content.extend_from_slice(&more);
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some(from) = self.some(|_| true) else { return Ok(()) };
        let is_folder = self.model.names[&from] == Entry::Folder;
        let over = if self.rng.chance(1, 3) {
            if is_folder {
                self.some(|entry| *entry == Entry::Folder)
            } else {
                self.some(|entry| *entry != Entry::Folder)
            }
        } else {
            None
        };
        let to = over.unwrap_or_else(|| self.fresh());
        self.last = format!("rename {from} {to}");
        fs::rename(self.path.join(&from), self.path.join(&to))?;
        let same = match (&self.model.names[&from], self.model.names.get(&to)) {
            (Entry::File(a), Some(Entry::File(b))) => a == b,
            _ => from == to,
        };
        // POSIX: a rename between two names of one file does nothing.
        if !same {
            self.model.remove(&to);
            if let Some(entry) = self.model.names.remove(&from) {
                self.model.names.insert(to, entry);
            }
        }
        Ok(())
    }

    fn mode(&mut self) -> io::Result<()> {
        let Some((name, number)) = self.some_file() else { return Ok(()) };
        let mode = 0o600 | (self.rng.below(64) as u32);
        self.last = format!("chmod {mode:o} {name}");
        fs::set_permissions(self.path.join(name), PermissionsExt::from_mode(mode))?;
        self.model.files[number].mode = mode;
        Ok(())
    }

    fn open_or_close(&mut self) -> io::Result<()> {
        if self.open.len() >= OPEN || (self.rng.chance(1, 3) && !self.open.is_empty()) {
            let at = self.rng.below(self.open.len() as u64) as usize;
            self.last = "close".to_owned();
            self.open.swap_remove(at);
            return Ok(());
        }
        let Some((name, number)) = self.some_file() else { return Ok(()) };
        self.last = format!("open {name}");
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        self.open.push((number, file));
        Ok(())
    }

    fn use_open(&mut self) -> io::Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (number, file) = &self.open[at];
        let expected = &mut self.model.files[*number];
        let names = expected.links;
        if self.rng.chance(1, 2) {
            self.last = format!("read {} bytes of an open file with {names} names", expected.content.len());
            let mut found = vec![0; expected.content.len() + 1];
            let count = read_all(file, &mut found)?;
            found.truncate(count);
            if found != expected.content {
                return Err(io::Error::other(first_difference("it", &found, &expected.content)));
            }
            return Ok(());
        }
        let offset = self.rng.below(expected.content.len() as u64 + 1000) as usize;
        let length = self.rng.below(20_000) as usize;
        let content = crate::trees::bytes(self.rng.u64(), length);
        self.last = format!("write {length} bytes at {offset} of an open file with {names} names");
        file.write_all_at(&content, offset as u64)?;
        if length > 0 {
            let end = expected.content.len().max(offset + length);
            expected.content.resize(end, 0);
            expected.content[offset..offset + length].copy_from_slice(&content);
        }
        if self.rng.chance(1, 10) {
            self.last = "fsync".to_owned();
            file.sync_all()?;
        }
        Ok(())
    }

    fn look(&mut self) -> io::Result<()> {
        let Some((name, number)) = self.some_file() else { return Ok(()) };
        self.last = format!("read {name}");
        let found = fs::read(self.path.join(&name))?;
        let expected = &self.model.files[number].content;
        if found != *expected {
            return Err(io::Error::other(first_difference(&name, &found, expected)));
        }
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some(name) = self.some(|_| true) else { return Ok(()) };
        self.last = format!("remove {name}");
        match self.model.names[&name] {
            Entry::Folder => fs::remove_dir(self.path.join(&name))?,
            _ => fs::remove_file(self.path.join(&name))?,
        }
        self.model.remove(&name);
        Ok(())
    }
}

fn read_all(file: &fs::File, out: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
