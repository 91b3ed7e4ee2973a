//! The walk of `lfs find`: visits all names below some paths, with their facts, with many threads and in no particular
//! order.
//!
//! A directory is read in pieces, and each piece is finished before the next one is read, unless another thread is idle and
//! continues the listing. So memory grows with the depth of directories, which the longest path bounds, and not with their
//! size. Attributes come with the listing (the mount answers with them); facts that are not in the kernel's cache are
//! requested by name.

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

/// The bytes of a listing that are read at once.
const PIECE: usize = 32 << 10;
/// The longest path that the kernel accepts, in bytes.
const PATH_MAX: usize = 4095;

/// The action for each name, and the limits of the walk.
pub(super) trait Visit: Sync {
    /// The most levels below the paths.
    fn depth_max(&self) -> usize;
    /// See [`Candidate::lazy`].
    fn lazy(&self) -> bool;
    /// The bytes of output that a thread collects before it prints them.
    fn gather(&self) -> usize;
    /// Appends the output for a name to `out`.
    ///
    /// # Errors
    /// A fact that could not be obtained.
    fn visit(&self, name: &mut Candidate<'_>, out: &mut Vec<u8>) -> Result<(), Trouble>;
    /// Prints the output. False if the reader is gone, which ends the walk.
    fn print(&self, bytes: &[u8]) -> bool;
    /// Reports an error.
    fn complain(&self, path: &[u8], error: &io::Error);
}

/// An open directory.
struct Directory {
    handle: OwnedFd,
    path: Vec<u8>,
    depth: usize,
}

/// An item of work.
enum Work {
    /// A path from the command line, at depth 0.
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

/// Visits all names. False if an error was reported.
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
                // It was removed, or another kind of object took its name.
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

    /// Visits a path from the command line. If it is a symbolic link it is followed, as `opendir` does.
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
        // For a link that was followed, requests use the path that it leads to.
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
            view: None,
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
            view: None,
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
            // One line, however many files are there.
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
        // A piece with only the directory itself and its parent is not the end.
        if !met || !names.is_empty() {
            return Ok(names);
        }
    }
}
