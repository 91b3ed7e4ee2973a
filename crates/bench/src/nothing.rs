//! A file system that does nothing: names, attributes and data in memory, or data in one local file per file.
//!
//! It answers FLUSH as the real mount does, lets the kernel keep attributes and names, and has no server behind it. So it
//! shows what the kernel's FUSE costs, and no more.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, SessionACL, WriteFlags,
};

const LONG: Duration = Duration::from_secs(1 << 20);

/// Where the data of files goes.
#[derive(Clone, Debug)]
pub enum Data {
    /// In memory.
    Memory,
    /// Into files of this directory.
    Local(PathBuf),
}

struct Node {
    attr: FileAttr,
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

/// Mounts one under `directory`; it goes when the session is dropped.
///
/// # Errors
/// The kernel refuses.
pub fn mount(directory: &Path, data: Data, threads: usize) -> io::Result<fuser::BackgroundSession> {
    let mut state = State { names: HashMap::new(), nodes: HashMap::new(), next: 2 };
    state.nodes.insert(1, Node { attr: attr(1, FileType::Directory, 0o755), file: None, bytes: Vec::new() });
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("nothing".to_owned()),
        MountOption::Subtype("nothing".to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::Owner;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    fuser::Session::new(Nothing { state: Mutex::new(state), data }, directory, &config)?.spawn()
}

fn attr(ino: u64, kind: FileType, perm: u16) -> FileAttr {
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm,
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Nothing {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, parent: INodeNo, name: &OsStr, kind: FileType, mode: u32) -> io::Result<FileAttr> {
        let mut state = self.state();
        let ino = state.next;
        state.next += 1;
        let file = match (&self.data, kind) {
            (Data::Local(folder), FileType::RegularFile) => Some(
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(folder.join(ino.to_string()))?,
            ),
            _ => None,
        };
        let attr = attr(ino, kind, (mode & 0o7777) as u16);
        state.nodes.insert(ino, Node { attr, file, bytes: Vec::new() });
        state.names.insert((parent.0, name.as_bytes().to_vec()), ino);
        Ok(attr)
    }
}

impl Filesystem for Nothing {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_readahead(1 << 20);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.state();
        let found = state.names.get(&(parent.0, name.as_bytes().to_vec())).and_then(|ino| state.nodes.get(ino));
        match found {
            Some(node) => reply.entry(&LONG, &node.attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.state().nodes.get(&ino.0) {
            Some(node) => reply.attr(&LONG, &node.attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        match self.make(parent, name, FileType::Directory, mode) {
            Ok(attr) => reply.entry(&LONG, &attr, Generation(0)),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.state();
        if let Some(ino) = state.names.remove(&(parent.0, name.as_bytes().to_vec())) {
            state.nodes.remove(&ino);
            if let Data::Local(folder) = &self.data {
                let _ = std::fs::remove_file(folder.join(ino.to_string()));
            }
        }
        reply.ok();
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.unlink(request, parent, name, reply);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make(parent, name, FileType::RegularFile, mode) {
            Ok(attr) => reply.created(&LONG, &attr, Generation(0), FileHandle(1), FopenFlags::empty()),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = {
            let state = self.state();
            let Some(node) = state.nodes.get(&ino.0) else {
                reply.error(Errno::ENOENT);
                return;
            };
            let Some(file) = node.file.as_ref().and_then(|file| file.try_clone().ok()) else {
                let start = node.bytes.len().min(offset as usize);
                reply.data(&node.bytes[start..node.bytes.len().min(start + size as usize)]);
                return;
            };
            file
        };
        let mut buffer = vec![0; size as usize];
        match file.read_at(&mut buffer, offset) {
            Ok(count) => reply.data(&buffer[..count]),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = {
            let mut state = self.state();
            let Some(node) = state.nodes.get_mut(&ino.0) else {
                reply.error(Errno::ENOENT);
                return;
            };
            let end = offset + data.len() as u64;
            node.attr.size = node.attr.size.max(end);
            let Some(file) = node.file.as_ref().and_then(|file| file.try_clone().ok()) else {
                if node.bytes.len() < end as usize {
                    node.bytes.resize(end as usize, 0);
                }
                node.bytes[offset as usize..end as usize].copy_from_slice(data);
                reply.written(data.len() as u32);
                return;
            };
            file
        };
        match file.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let file = self.state().nodes.get(&ino.0).and_then(|node| node.file.as_ref()?.try_clone().ok());
        match file.map_or(Ok(()), |file| file.sync_data()) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    /// The place after an entry is its inode number, which rises, so that removing while reading misses none.
    fn readdir(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let state = self.state();
        let mut entries: Vec<(u64, &[u8])> = state
            .names
            .iter()
            .filter(|((parent, _), child)| *parent == ino.0 && **child > offset)
            .map(|((_, name), child)| (*child, &**name))
            .collect();
        entries.sort_unstable();
        for (child, name) in entries {
            let kind = state.nodes.get(&child).map_or(FileType::RegularFile, |node| node.attr.kind);
            if reply.add(INodeNo(child), child, kind, OsStr::from_bytes(name)) {
                break;
            }
        }
        reply.ok();
    }

    fn getxattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}
