//! Random operations on one file through several descriptors, each on a mount of its own, one operation at a time.
//!
//! The expected content is known after each operation, and every read through any mount must return it. The seed of a
//! failure repeats it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::FallocateFlags;
use stdx::Rng;

use crate::model::first_difference;
use crate::system::{Aligned, Mapping};

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file by its paths, one for each mount.
    pub paths: Vec<PathBuf>,
    /// Operations.
    pub operations: u64,
    /// Largest size, in bytes.
    pub size_max: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Open with `O_DIRECT`: offsets and lengths are then multiples of 512.
    pub direct: bool,
    /// Map it, too.
    pub mapped: bool,
}

struct Exerciser {
    plan: Plan,
    rng: Rng,
    files: Vec<File>,
    truth: Vec<u8>,
    /// The last operations, for a failure.
    history: Vec<String>,
}

/// Runs a plan.
///
/// # Errors
/// A sentence: what failed or differed, and the operations before.
pub fn run(plan: Plan) -> Result<(), String> {
    let shown = format!("seed {}, {} operations, up to {} bytes", plan.seed, plan.operations, plan.size_max);
    let mut exerciser =
        Exerciser { rng: Rng::new(plan.seed), files: Vec::new(), truth: Vec::new(), history: Vec::new(), plan };
    let result = exerciser.run();
    result.map_err(|error| {
        let from = exerciser.history.len().saturating_sub(25);
        format!("{shown}: {error}\nthe last operations:\n  {}", exerciser.history[from..].join("\n  "))
    })
}

impl Exerciser {
    fn open(&self, at: usize, new: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if new {
            options.create(true).truncate(true);
        }
        if self.plan.direct {
            options.custom_flags(libc::O_DIRECT);
        }
        options.open(&self.plan.paths[at])
    }

    fn run(&mut self) -> Result<(), String> {
        for at in 0..self.plan.paths.len() {
            self.files.push(self.open(at, at == 0).map_err(|error| format!("open: {error}"))?);
        }
        for number in 0..self.plan.operations {
            let at = self.rng.below(self.files.len() as u64) as usize;
            if let Err(error) = self.step(number, at) {
                return Err(format!("operation {number}: {error}"));
            }
        }
        for at in 0..self.files.len() {
            self.read(at, 0, self.truth.len() + 1).map_err(|error| format!("at the end: {error}"))?;
        }
        Ok(())
    }

    fn note(&mut self, number: u64, at: usize, what: &str) {
        self.history.push(format!("{number}: mount {at}: {what}"));
        if self.history.len() > 1000 {
            self.history.drain(..500);
        }
    }

    fn align(&self, value: usize) -> usize {
        if self.plan.direct { value / 512 * 512 } else { value }
    }

    fn range(&mut self, most: usize) -> (usize, usize) {
        let offset = self.rng.below(most.max(1) as u64) as usize;
        let longest = if self.rng.chance(1, 4) { 66_000 } else { 5_000 };
        let length = self.rng.below(longest) as usize;
        let offset = self.align(offset);
        (offset, self.align(length.min(self.plan.size_max - offset)))
    }

    fn step(&mut self, number: u64, at: usize) -> io::Result<()> {
        let size = self.truth.len();
        match self.rng.below(40) {
            0..10 => {
                let (offset, length) = self.range(size + size / 8 + 1);
                self.note(number, at, &format!("read {length} at {offset}"));
                self.read(at, offset, length)
            }
            10..20 => {
                let (offset, length) = self.range(self.plan.size_max);
                self.note(number, at, &format!("write {length} at {offset}, size {size}"));
                let content = self.content(length);
                self.write(at, offset, &content)
            }
            20..24 if self.plan.mapped => {
                let (offset, length) = self.range(size.max(1));
                let length = length.min(size - offset.min(size));
                self.note(number, at, &format!("read {length} at {offset}, mapped"));
                self.read_mapped(at, offset, length)
            }
            24..28 if self.plan.mapped => {
                let (offset, length) = self.range(size.max(1));
                let length = length.min(size - offset.min(size));
                self.note(number, at, &format!("write {length} at {offset}, mapped"));
                self.write_mapped(at, offset, length)
            }
            28..31 => {
                let below = self.rng.below(self.plan.size_max as u64 + 1) as usize;
                let new = self.align(below);
                self.note(number, at, &format!("truncate to {new} from {size}"));
                self.files[at].set_len(new as u64)?;
                self.truth.resize(new, 0);
                Ok(())
            }
            31 => {
                let (offset, length) = self.range(self.plan.size_max);
                self.note(number, at, &format!("allocate {length} at {offset}, size {size}"));
                self.allocate(at, offset, length)
            }
            32 => {
                let (offset, length) = self.range(size.max(1));
                self.note(number, at, &format!("punch {length} at {offset}, size {size}"));
                self.punch(at, offset, length)
            }
            33 => {
                self.note(number, at, "fsync");
                self.files[at].sync_all()
            }
            34 | 35 => {
                self.note(number, at, "close and open");
                let file = self.open(at, false)?;
                self.files[at] = file;
                Ok(())
            }
            36 => {
                self.note(number, at, &format!("append to {size}"));
                self.append(at)
            }
            _ => {
                self.note(number, at, &format!("stat, size {size}"));
                self.check_size(at)
            }
        }
    }

    fn content(&mut self, length: usize) -> Vec<u8> {
        crate::trees::bytes(self.rng.u64(), length)
    }

    fn read(&self, at: usize, offset: usize, length: usize) -> io::Result<()> {
        // O_DIRECT needs whole blocks in aligned memory; the page cache does not.
        let length = if self.plan.direct { length.next_multiple_of(512) } else { length };
        let mut found = Aligned::zeros(length);
        let mut done = 0;
        while done < length {
            match self.files[at].read_at(&mut found[done..], (offset + done) as u64)? {
                0 => break,
                count => done += count,
            }
        }
        let end = (offset + length).min(self.truth.len());
        let expected = self.truth.get(offset..end).unwrap_or_default();
        if found[..done] != *expected {
            let difference = first_difference(&format!("read at {offset}"), &found[..done], expected);
            // The results of the other mounts and of a second read show where the difference comes from.
            let sizes: Vec<_> = self.files.iter().map(|file| file.metadata().map(|metadata| metadata.len())).collect();
            let again = self.files[at].read_at(&mut found[..], offset as u64);
            let beyond = found[expected.len().min(done)..done].iter().any(|byte| *byte != 0);
            let more = format!("; sizes {sizes:?}, again {again:?}, beyond it not only zeros: {beyond}");
            return Err(io::Error::other(difference + &more));
        }
        Ok(())
    }

    fn keep(&mut self, offset: usize, content: &[u8]) {
        if content.is_empty() {
            return;
        }
        let end = self.truth.len().max(offset + content.len());
        self.truth.resize(end, 0);
        self.truth[offset..offset + content.len()].copy_from_slice(content);
    }

    fn write(&mut self, at: usize, offset: usize, content: &[u8]) -> io::Result<()> {
        if self.plan.direct {
            self.files[at].write_all_at(&Aligned::of(content), offset as u64)?;
        } else {
            self.files[at].write_all_at(content, offset as u64)?;
        }
        self.keep(offset, content);
        Ok(())
    }

    /// Maps the start of the file, as programs do: only after asking for the size, because a fault beyond the size that the kernel
    /// knows ends the program, and only `fstat` updates that size.
    fn map(&self, at: usize, length: usize) -> io::Result<Mapping> {
        let size = self.files[at].metadata()?.len();
        if size != self.truth.len() as u64 {
            return Err(io::Error::other(format!("size {} expected, fstat says {size}", self.truth.len())));
        }
        Mapping::new(&self.files[at], length)
    }

    fn read_mapped(&self, at: usize, offset: usize, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let mapping = self.map(at, offset + length)?;
        let mut found = vec![0; length];
        mapping.read(offset, &mut found);
        let expected = &self.truth[offset..offset + length];
        if found != expected {
            return Err(io::Error::other(first_difference(&format!("mapping at {offset}"), &found, expected)));
        }
        Ok(())
    }

    fn write_mapped(&mut self, at: usize, offset: usize, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let content = self.content(length);
        let mapping = self.map(at, offset + length)?;
        mapping.write(offset, &content);
        // Other machines see synced data.
        mapping.sync()?;
        self.keep(offset, &content);
        Ok(())
    }

    fn allocate(&mut self, at: usize, offset: usize, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        rustix::fs::fallocate(&self.files[at], FallocateFlags::empty(), offset as u64, length as u64)?;
        let end = self.truth.len().max(offset + length);
        self.truth.resize(end, 0);
        Ok(())
    }

    fn punch(&mut self, at: usize, offset: usize, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.files[at], flags, offset as u64, length as u64)?;
        let end = (offset + length).min(self.truth.len());
        if let Some(hole) = self.truth.get_mut(offset..end) {
            hole.fill(0);
        }
        Ok(())
    }

    fn append(&mut self, at: usize) -> io::Result<()> {
        let length = self.rng.below(3000) as usize;
        if self.plan.direct || self.truth.len() + length > self.plan.size_max {
            return Ok(());
        }
        let content = self.content(length);
        let mut file = OpenOptions::new().append(true).open(&self.plan.paths[at])?;
        io::Write::write_all(&mut file, &content)?;
        self.truth.extend_from_slice(&content);
        Ok(())
    }

    fn check_size(&self, at: usize) -> io::Result<()> {
        let expected = self.truth.len() as u64;
        let by_path = fs::metadata(&self.plan.paths[at])?.len();
        let by_file = self.files[at].metadata()?.len();
        if (by_path, by_file) != (expected, expected) {
            let what = format!("size {expected} expected, stat says {by_path}, fstat {by_file}");
            return Err(io::Error::other(what));
        }
        Ok(())
    }
}
