//! A FUSE file system that does nothing: names and attributes in memory, data in memory or in one local file for each file.
//!
//! It answers FLUSH as the real mount does, lets the kernel cache attributes and names, and has no server behind it. So it
//! shows what the kernel's FUSE costs, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fusewire::abi::{flags, open};
use fusewire::{Attr, Entry, Handler, Incoming, Listing, Mountpoint, Operation, Options, Reply, Session, SetAttr};
use rustix::mount::MountFlags;

const LONG: Duration = Duration::from_secs(1 << 20);
const FOLDER: u32 = libc::S_IFDIR;
const REGULAR: u32 = libc::S_IFREG;

/// Where the data of files is stored.
#[derive(Clone, Debug)]
pub enum Data {
    /// In memory.
    Memory,
    /// In files of this directory.
    Local(PathBuf),
}

struct Node {
    attr: Attr,
    file: Option<File>,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    names: HashMap<(u64, Vec<u8>), u64>,
    /// The entries of each directory by inode number, which is the order of listings.
    children: HashMap<u64, BTreeMap<u64, Vec<u8>>>,
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl State {
    fn enter(&mut self, parent: u64, name: &[u8], ino: u64) {
        self.names.insert((parent, name.to_vec()), ino);
        self.children.entry(parent).or_default().insert(ino, name.to_vec());
    }

    /// Removes a name, and returns the node that it referred to.
    fn take(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        let ino = self.names.remove(&(parent, name.to_vec()))?;
        if let Some(children) = self.children.get_mut(&parent) {
            children.remove(&ino);
        }
        Some(ino)
    }
}

struct Nothing {
    state: Mutex<State>,
    data: Data,
}

/// A mount of the file system; dropping it unmounts.
pub struct NothingMount {
    handler: Arc<Nothing>,
    session: Option<Session>,
    directory: PathBuf,
}

impl std::fmt::Debug for NothingMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NothingMount({})", self.directory.display())
    }
}

impl NothingMount {
    /// Whether requests arrive over io_uring.
    pub fn is_over_uring(&self) -> bool {
        matches!(self.session.as_ref().map(Session::transport), Some(fusewire::Transport::Uring(_)))
    }

    /// Mounts the same files again at another place, for which the kernel has nothing cached.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn again(&self, directory: &Path, threads: usize) -> io::Result<NothingMount> {
        serve(directory, self.handler.clone(), threads, self.is_over_uring())
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

/// Mounts a new one under `directory`, over io_uring if `uring` is set and the kernel has it.
///
/// # Errors
/// The kernel refuses.
pub fn mount(directory: &Path, data: Data, threads: usize, uring: bool) -> io::Result<NothingMount> {
    let mut state = State { next: 2, ..State::default() };
    state.nodes.insert(1, Node { attr: attr(1, FOLDER | 0o755), file: None, bytes: Vec::new() });
    serve(directory, Arc::new(Nothing { state: Mutex::new(state), data }), threads, uring)
}

fn serve(directory: &Path, handler: Arc<Nothing>, threads: usize, uring: bool) -> io::Result<NothingMount> {
    let place = Mountpoint {
        directory,
        source: "nothing",
        kind: "nothing",
        flags: MountFlags::NODEV | MountFlags::NOSUID,
        allow_other: false,
    };
    let options = Options {
        flags: flags::DONT_MASK
            | flags::DO_READDIRPLUS
            | flags::READDIRPLUS_AUTO
            | flags::PARALLEL_DIROPS
            | flags::ASYNC_DIO
            | flags::EXPLICIT_INVAL_DATA
            | flags::HANDLE_KILLPRIV_V2,
        threads,
        uring,
        ..Options::default()
    };
    let session = Session::mount(&place, &options, handler.clone())?;
    Ok(NothingMount { handler, session: Some(session), directory: directory.to_owned() })
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
    Entry { node: attr.ino, attr, entry_valid: LONG, attr_valid: LONG }
}

/// The errno of an error of a local file.
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
        state.enter(parent, name, ino);
        Ok(attr)
    }

    fn remove(&self, parent: u64, name: &[u8]) {
        let mut state = self.state();
        if let Some(ino) = state.take(parent, name) {
            state.nodes.remove(&ino);
            state.children.remove(&ino);
            if let Data::Local(folder) = &self.data {
                let _ = std::fs::remove_file(folder.join(ino.to_string()));
            }
        }
    }

    fn rename(&self, parent: u64, name: &[u8], new_parent: u64, new_name: &[u8]) -> bool {
        if self.state().names.contains_key(&(parent, name.to_vec())) && (parent, name) != (new_parent, new_name) {
            self.remove(new_parent, new_name);
        }
        let mut state = self.state();
        let Some(ino) = state.take(parent, name) else { return false };
        state.enter(new_parent, new_name, ino);
        true
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

    fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<u32, i32> {
        let end = offset + data.len() as u64;
        let file = {
            let mut state = self.state();
            let node = state.nodes.get_mut(&ino).ok_or(libc::ENOENT)?;
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
        file.map_or(Ok(()), |file| file.write_all_at(data, offset)).map_err(|error| errno(&error))?;
        Ok(data.len() as u32)
    }

    /// The offset of an entry is its inode number, and inode numbers only rise, so that removing names during a listing
    /// skips none.
    fn list(&self, ino: u64, offset: u64, size: u32, plus: bool, reply: Reply) {
        let state = self.state();
        let mut listing = Listing::new(size);
        let after = state.children.get(&ino).into_iter().flat_map(|children| children.range(offset + 1..));
        for (child, name) in after {
            let Some(node) = state.nodes.get(child) else { continue };
            let fits = match plus {
                true => listing.add_plus(&entry(node.attr), *child, name),
                false => listing.add(*child, *child, node.attr.mode >> 12, name),
            };
            if !fits {
                break;
            }
        }
        reply.listing(&listing);
    }
}

impl Handler for Nothing {
    fn handle(&self, incoming: Incoming<'_>) {
        let ino = incoming.request().node;
        match &incoming.request().operation {
            Operation::Lookup { name } => {
                let state = self.state();
                let found = state.names.get(&(ino, name.to_vec())).and_then(|child| state.nodes.get(child));
                match found {
                    Some(node) => incoming.into_reply().entry(&entry(node.attr)),
                    None => incoming.into_reply().error(libc::ENOENT),
                }
            }
            Operation::Getattr { .. } => match self.state().nodes.get(&ino) {
                Some(node) => incoming.into_reply().attr(&node.attr, LONG),
                None => incoming.into_reply().error(libc::ENOENT),
            },
            Operation::Setattr { set } => match self.set(ino, set) {
                Some(attr) => incoming.into_reply().attr(&attr, LONG),
                None => incoming.into_reply().error(libc::ENOENT),
            },
            Operation::Mkdir { name, mode, .. } => match self.make(ino, name, FOLDER | (mode & 0o7777)) {
                Ok(attr) => incoming.into_reply().entry(&entry(attr)),
                Err(error) => incoming.into_reply().error(errno(&error)),
            },
            Operation::Create { name, mode, .. } => match self.make(ino, name, REGULAR | (mode & 0o7777)) {
                Ok(attr) => incoming.into_reply().created(&entry(attr), 1, 0),
                Err(error) => incoming.into_reply().error(errno(&error)),
            },
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                self.remove(ino, name);
                incoming.into_reply().ok();
            }
            Operation::Rename { name, new_parent, new_name, flags: 0 } => {
                match self.rename(ino, name, *new_parent, new_name) {
                    true => incoming.into_reply().ok(),
                    false => incoming.into_reply().error(libc::ENOENT),
                }
            }
            Operation::Open { .. } => incoming.into_reply().opened(1, open::KEEP_CACHE),
            Operation::Opendir { .. } => incoming.into_reply().opened(1, 0),
            Operation::Read { offset, size, .. } => self.read(ino, *offset, *size, incoming.into_reply()),
            Operation::Write { offset, data, .. } => match self.write(ino, *offset, data) {
                Ok(count) => incoming.into_reply().written(count),
                Err(errno) => incoming.into_reply().error(errno),
            },
            Operation::Fsync { .. } => match self.file(ino).map_or(Ok(()), |file| file.sync_data()) {
                Ok(()) => incoming.into_reply().ok(),
                Err(error) => incoming.into_reply().error(errno(&error)),
            },
            Operation::Readdir { offset, size, plus, .. } => {
                self.list(ino, *offset, *size, *plus, incoming.into_reply())
            }
            Operation::Flush { .. } | Operation::Release { .. } | Operation::Releasedir { .. } => {
                incoming.into_reply().ok()
            }
            Operation::Getxattr { .. } => incoming.into_reply().error(libc::ENODATA),
            _ => incoming.into_reply().error(libc::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_listed_moved_and_seen_through_another_mount() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let nothing = match mount(place.path(), Data::Memory, 2, true) {
            Ok(nothing) => nothing,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        for n in 0..2000 {
            std::fs::write(at(&format!("d/f{n}")), "x").unwrap();
        }
        std::fs::rename(at("d/f7"), at("d/g")).unwrap();
        std::fs::rename(at("d/f8"), at("d/g")).unwrap();
        std::fs::remove_file(at("d/f9")).unwrap();
        let again = nothing.again(other.path(), 2).unwrap();
        let mut found: Vec<_> = std::fs::read_dir(other.path().join("d"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect();
        found.sort();
        let gone = [7, 8, 9];
        let mut wanted: Vec<_> = (0..2000).filter(|n| !gone.contains(n)).map(|n| (format!("f{n}"), 1)).collect();
        wanted.push(("g".to_owned(), 1));
        wanted.sort();
        assert!(found == wanted, "{} names", found.len());
        drop((again, nothing));
    }
}
