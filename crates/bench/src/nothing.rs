//! A file system that does nothing: names, attributes and data in memory, or data in one local file per file.
//!
//! It answers FLUSH as the real mount does, lets the kernel keep attributes and names, and has no server behind it. So it
//! shows what the kernel's FUSE costs, and no more.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fusewire::abi::{flags, open};
use fusewire::{Attr, Entry, Handler, Listing, Mountpoint, Operation, Options, Reply, Request, Session, SetAttr};
use rustix::mount::MountFlags;

const LONG: Duration = Duration::from_secs(1 << 20);
const FOLDER: u32 = libc::S_IFDIR;
const REGULAR: u32 = libc::S_IFREG;

/// Where the data of files goes.
#[derive(Clone, Debug)]
pub enum Data {
    /// In memory.
    Memory,
    /// Into files of this directory.
    Local(PathBuf),
}

struct Node {
    attr: Attr,
    file: Option<File>,
    bytes: Vec<u8>,
}

struct State {
    names: HashMap<(u64, Vec<u8>), u64>,
    nodes: HashMap<u64, Node>,
    next: u64,
}

struct Nothing {
    state: Mutex<State>,
    data: Data,
}

/// A mount of it; it goes when this is dropped.
#[derive(Debug)]
pub struct NothingMount {
    session: Option<Session>,
    directory: PathBuf,
}

impl NothingMount {
    /// Whether requests come over io_uring.
    pub fn is_over_uring(&self) -> bool {
        matches!(self.session.as_ref().map(Session::transport), Some(fusewire::Transport::Uring(_)))
    }
}

impl Drop for NothingMount {
    fn drop(&mut self) {
        if fusewire::unmount(&self.directory).is_ok()
            && let Some(session) = self.session.take()
        {
            let _ = session.join();
        }
    }
}

/// Mounts one under `directory`, over io_uring if that is wanted and the kernel has it.
///
/// # Errors
/// The kernel refuses.
pub fn mount(directory: &Path, data: Data, threads: usize, uring: bool) -> io::Result<NothingMount> {
    let mut state = State { names: HashMap::new(), nodes: HashMap::new(), next: 2 };
    state.nodes.insert(1, Node { attr: attr(1, FOLDER | 0o755), file: None, bytes: Vec::new() });
    let place = Mountpoint {
        directory,
        source: "nothing",
        kind: "nothing",
        flags: MountFlags::NODEV | MountFlags::NOSUID,
        allow_other: false,
    };
    let options = Options {
        flags: flags::ATOMIC_O_TRUNC
            | flags::DONT_MASK
            | flags::PARALLEL_DIROPS
            | flags::ASYNC_DIO
            | flags::EXPLICIT_INVAL_DATA
            | flags::HANDLE_KILLPRIV_V2,
        threads,
        uring,
        ..Options::default()
    };
    let session = Session::mount(&place, &options, Arc::new(Nothing { state: Mutex::new(state), data }))?;
    Ok(NothingMount { session: Some(session), directory: directory.to_owned() })
}

fn attr(ino: u64, mode: u32) -> Attr {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
    Attr {
        ino,
        atime_ns: now,
        mtime_ns: now,
        ctime_ns: now,
        mode,
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        blksize: 4096,
        ..Attr::default()
    }
}

fn entry(attr: Attr) -> Entry {
    Entry { attr, entry_valid: LONG, attr_valid: LONG }
}

/// The errno of a local file's error.
fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Nothing {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, parent: u64, name: &[u8], mode: u32) -> io::Result<Attr> {
        let mut state = self.state();
        let ino = state.next;
        state.next += 1;
        let file = match &self.data {
            Data::Local(folder) if mode & libc::S_IFMT == REGULAR => Some(
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(folder.join(ino.to_string()))?,
            ),
            _ => None,
        };
        let attr = attr(ino, mode);
        state.nodes.insert(ino, Node { attr, file, bytes: Vec::new() });
        state.names.insert((parent, name.to_vec()), ino);
        Ok(attr)
    }

    fn remove(&self, parent: u64, name: &[u8]) {
        let mut state = self.state();
        if let Some(ino) = state.names.remove(&(parent, name.to_vec())) {
            state.nodes.remove(&ino);
            if let Data::Local(folder) = &self.data {
                let _ = std::fs::remove_file(folder.join(ino.to_string()));
            }
        }
    }

    fn set(&self, ino: u64, set: &SetAttr) -> Option<Attr> {
        let mut state = self.state();
        let node = state.nodes.get_mut(&ino)?;
        let attr = &mut node.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| (attr.mode & libc::S_IFMT) | (mode & 0o7777));
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.mtime_ns = set.mtime.and_then(fusewire::TimeChange::ns).unwrap_or(attr.mtime_ns);
        if let Some(size) = set.size {
            attr.size = size;
            match &node.file {
                Some(file) => drop(file.set_len(size)),
                None => node.bytes.resize(size as usize, 0),
            }
        }
        Some(node.attr)
    }

    fn file(&self, ino: u64) -> Option<File> {
        self.state().nodes.get(&ino).and_then(|node| node.file.as_ref()?.try_clone().ok())
    }

    fn read(&self, ino: u64, offset: u64, size: u32, reply: Reply) {
        if let Some(file) = self.file(ino) {
            let mut buffer = vec![0; size as usize];
            return match file.read_at(&mut buffer, offset) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(errno(&error)),
            };
        }
        match self.state().nodes.get(&ino) {
            Some(node) => {
                let start = node.bytes.len().min(offset as usize);
                reply.data(&node.bytes[start..node.bytes.len().min(start + size as usize)]);
            }
            None => reply.error(libc::ENOENT),
        }
    }

    fn write(&self, ino: u64, offset: u64, data: &[u8], reply: Reply) {
        let end = offset + data.len() as u64;
        let file = {
            let mut state = self.state();
            let Some(node) = state.nodes.get_mut(&ino) else { return reply.error(libc::ENOENT) };
            node.attr.size = node.attr.size.max(end);
            let file = node.file.as_ref().and_then(|file| file.try_clone().ok());
            if file.is_none() {
                if node.bytes.len() < end as usize {
                    node.bytes.resize(end as usize, 0);
                }
                node.bytes[offset as usize..end as usize].copy_from_slice(data);
            }
            file
        };
        match file.map_or(Ok(()), |file| file.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// The place after an entry is its inode number, which rises, so that removing while reading misses none.
    fn list(&self, ino: u64, offset: u64, size: u32, reply: Reply) {
        let state = self.state();
        let mut entries: Vec<(u64, &[u8])> = state
            .names
            .iter()
            .filter(|((parent, _), child)| *parent == ino && **child > offset)
            .map(|((_, name), child)| (*child, &**name))
            .collect();
        entries.sort_unstable();
        let mut listing = Listing::new(size);
        for (child, name) in entries {
            let kind = state.nodes.get(&child).map_or(REGULAR, |node| node.attr.mode) >> 12;
            if !listing.add(child, child, kind, name) {
                break;
            }
        }
        reply.listing(&listing);
    }
}

impl Handler for Nothing {
    fn handle(&self, request: &Request<'_>, reply: Reply) {
        let ino = request.node;
        match &request.operation {
            Operation::Lookup { name } => {
                let state = self.state();
                let found = state.names.get(&(ino, name.to_vec())).and_then(|child| state.nodes.get(child));
                match found {
                    Some(node) => reply.entry(&entry(node.attr)),
                    None => reply.error(libc::ENOENT),
                }
            }
            Operation::Getattr { .. } => match self.state().nodes.get(&ino) {
                Some(node) => reply.attr(&node.attr, LONG),
                None => reply.error(libc::ENOENT),
            },
            Operation::Setattr { set } => match self.set(ino, set) {
                Some(attr) => reply.attr(&attr, LONG),
                None => reply.error(libc::ENOENT),
            },
            Operation::Mkdir { name, mode, .. } => match self.make(ino, name, FOLDER | (mode & 0o7777)) {
                Ok(attr) => reply.entry(&entry(attr)),
                Err(error) => reply.error(errno(&error)),
            },
            Operation::Create { name, mode, .. } => match self.make(ino, name, REGULAR | (mode & 0o7777)) {
                Ok(attr) => reply.created(&entry(attr), 1, 0),
                Err(error) => reply.error(errno(&error)),
            },
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                self.remove(ino, name);
                reply.ok();
            }
            Operation::Open { .. } => reply.opened(1, open::KEEP_CACHE),
            Operation::Opendir { .. } => reply.opened(1, 0),
            Operation::Read { offset, size, .. } => self.read(ino, *offset, *size, reply),
            Operation::Write { offset, data, .. } => self.write(ino, *offset, data, reply),
            Operation::Fsync { .. } => match self.file(ino).map_or(Ok(()), |file| file.sync_data()) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            },
            Operation::Readdir { offset, size, plus: false, .. } => self.list(ino, *offset, *size, reply),
            Operation::Flush { .. } | Operation::Release { .. } | Operation::Releasedir { .. } => reply.ok(),
            Operation::Getxattr { .. } => reply.error(libc::ENODATA),
            _ => reply.error(libc::ENOSYS),
        }
    }
}
