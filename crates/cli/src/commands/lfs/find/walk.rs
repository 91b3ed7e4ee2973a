//! The walk of `lfs find`: all names below some paths, each with its facts, by many threads in no order.
//!
//! A directory is read piece by piece, and each piece is finished before the next one is read, unless another thread is idle and
//! reads on meanwhile. So memory does not grow with the size of directories; it grows with their depth, which the longest path
//! bounds. Attributes come with the listing (the mount answers with them); what is not of the kernel's cache is asked by name.

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::candidate::{Candidate, of_name, stat};
use super::condition::{Facts, Trouble};
use super::crowd::{Crowd, Stack};

/// Bytes of a listing that are read at once.
const PIECE: usize = 32 << 10;
/// Longest path that the kernel takes, in bytes.
const PATH_MAX: usize = 4095;

/// What is done with each name, and how far the walk goes.
pub(super) trait Visit: Sync {
    /// Levels below the paths.
    fn depth_max(&self) -> usize;
    /// See [`Candidate::lazy`].
    fn lazy(&self) -> bool;
    /// Bytes of output that a thread gathers before it prints them.
    fn gather(&self) -> usize;
    /// Appends to `out` what is printed of a name.
    ///
    /// # Errors
    /// What could not be learned.
    fn visit(&self, name: &mut Candidate<'_>, out: &mut Vec<u8>) -> Result<(), Trouble>;
    /// Prints what was appended. False if nobody reads it: the walk ends.
    fn print(&self, bytes: &[u8]) -> bool;
    /// Tells of what failed.
    fn complain(&self, path: &[u8], error: &io::Error);
}

/// A directory that is open.
struct Directory {
    handle: OwnedFd,
    path: Vec<u8>,
    depth: usize,
}

/// Work of the walk.
enum Work {
    /// A path that was given, whose depth is 0.
    Start(PathBuf),
    /// A directory that was found.
    Enter { path: Vec<u8>, depth: usize },
    /// The rest of a listing.
    Read(Arc<Directory>),
    /// A piece of one.
    Names(Arc<Directory>, Vec<Listed>),
}

/// A name in a listing.
struct Listed {
    name: CString,
    number: u64,
    kind: Option<FileType>,
}

struct Walk<'a, V> {
    visit: &'a V,
    failed: AtomicBool,
    foreign: AtomicBool,
}

/// Visits all names. False if something failed that was told of.
pub(super) fn walk<V: Visit>(visit: &V, paths: &[PathBuf], threads: usize) -> bool {
    let walk = Walk { visit, failed: AtomicBool::new(false), foreign: AtomicBool::new(false) };
    Crowd::run(
        threads,
        paths.iter().cloned().map(Work::Start),
        Vec::new,
        |out: &mut Vec<u8>, stack, work| {
            walk.act(out, stack, work);
            if out.len() > visit.gather() {
                walk.flush(out, stack);
            }
        },
        |out, stack| walk.flush(out, stack),
    );
    !walk.failed.into_inner()
}

impl<V: Visit> Walk<'_, V> {
    fn act(&self, out: &mut Vec<u8>, stack: &mut Stack<'_, Work>, work: Work) {
        match work {
            Work::Start(path) => self.start(out, stack, &path),
            Work::Enter { path, depth } => match open(&path, true) {
                Ok(handle) => stack.push(Work::Read(Arc::new(Directory { handle, path, depth }))),
                // It was removed, or something else took its name.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => self.trouble(&path, of_name(error)),
            },
            Work::Read(directory) => match read(&directory) {
                Ok(names) if names.is_empty() => {}
                Ok(names) => {
                    stack.push(Work::Read(directory.clone()));
                    stack.push(Work::Names(directory, names));
                }
                Err(error) => self.trouble(&directory.path, of_name(error)),
            },
            Work::Names(directory, names) => {
                for listed in &names {
                    self.name(out, stack, &directory, listed);
                }
            }
        }
    }

    /// A path that was given: a symbolic link is followed there, as `opendir` does.
    fn start(&self, out: &mut Vec<u8>, stack: &mut Stack<'_, Work>, path: &std::path::Path) {
        let bytes = path.as_os_str().as_bytes();
        let (lazy, place) = (self.visit.lazy(), path.as_os_str());
        let found =
            stat(CWD, place, lazy, AtFlags::empty()).or_else(|_| stat(CWD, place, lazy, AtFlags::SYMLINK_NOFOLLOW));
        let attributes = match found {
            Ok(attributes) => attributes,
            Err(error) => return self.trouble(bytes, Trouble::Failed(error.into())),
        };
        let whole = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == b'/').count();
        let name = bytes[..whole].rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty());
        let kind = attributes.kind;
        // A link that was followed is asked by where it leads to.
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let mut candidate = Candidate {
            at: CWD,
            place: real.as_os_str(),
            name: name.unwrap_or(b"/"),
            path: bytes,
            depth: 0,
            number: 0,
            kind: Some(kind),
            lazy,
            attributes: Some(attributes),
            shown: None,
        };
        if let Err(trouble) = self.visit.visit(&mut candidate, out) {
            self.trouble(bytes, trouble);
        }
        if kind == FileType::Directory && self.visit.depth_max() > 0 {
            match open(bytes, false) {
                Ok(handle) => stack.push(Work::Read(Arc::new(Directory { handle, path: bytes.to_vec(), depth: 0 }))),
                Err(error) => self.trouble(bytes, Trouble::Failed(error.into())),
            }
        }
    }

    fn name(&self, out: &mut Vec<u8>, stack: &mut Stack<'_, Work>, directory: &Directory, listed: &Listed) {
        let Listed { name, number, kind } = listed;
        let mut path = Vec::with_capacity(directory.path.len() + 1 + name.as_bytes().len());
        path.extend_from_slice(&directory.path);
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let depth = directory.depth + 1;
        let mut candidate = Candidate {
            at: directory.handle.as_fd(),
            place: OsStr::from_bytes(name.as_bytes()),
            name: name.as_bytes(),
            path: &path,
            depth,
            number: *number,
            kind: *kind,
            lazy: self.visit.lazy(),
            attributes: None,
            shown: None,
        };
        let seen = self.visit.visit(&mut candidate, out);
        let enter = depth < self.visit.depth_max() && matches!(candidate.kind(), Ok(FileType::Directory));
        if let Err(trouble) = seen {
            self.trouble(&path, trouble);
        }
        if enter {
            stack.push(Work::Enter { path, depth });
        }
    }

    fn trouble(&self, path: &[u8], trouble: Trouble) {
        let error = match trouble {
            Trouble::Gone => return,
            // One line, however many files lie there.
            Trouble::Foreign if self.foreign.swap(true, Ordering::Relaxed) => return,
            Trouble::Foreign => io::Error::other("not on an Adamant mount: its files have no layouts and FIDs"),
            Trouble::Failed(error) => error,
        };
        self.failed.store(true, Ordering::Relaxed);
        self.visit.complain(path, &error);
    }

    fn flush(&self, out: &mut Vec<u8>, stack: &Stack<'_, Work>) {
        if !out.is_empty() && !self.visit.print(out) {
            stack.end();
        }
        out.clear();
    }
}

fn open(path: &[u8], found: bool) -> Result<OwnedFd, Errno> {
    if path.len() > PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, if found { flags | OFlags::NOFOLLOW } else { flags }, Mode::empty())
}

/// The next piece of a listing; empty at its end.
fn read(directory: &Directory) -> Result<Vec<Listed>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); PIECE];
    loop {
        let mut names = Vec::new();
        let mut listing = RawDir::new(directory.handle.as_fd(), &mut buffer);
        let mut met = false;
        while let Some(entry) = listing.next() {
            let entry = entry?;
            met = true;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                let kind = Some(entry.file_type()).filter(|kind| *kind != FileType::Unknown);
                names.push(Listed { name: entry.file_name().to_owned(), number: entry.ino(), kind });
            }
            if listing.is_buffer_empty() {
                break;
            }
        }
        // A piece with nothing but the directory itself and its parent is not the end.
        if !met || !names.is_empty() {
            return Ok(names);
        }
    }
}
