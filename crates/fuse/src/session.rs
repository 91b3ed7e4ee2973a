//! The session with the kernel: one method per request.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use client::api::{Answer, FileHandle as Fh, RecordLock, RecordLockKind, SetStat, Stat, Whence};
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use host::client::Mount;
use proto::{Errno, Fid};

use crate::Call;
use crate::convert::{attributes, errno, kind, set_time, user_device, validity};
use crate::ioctl::{self, Verb};
use crate::process;

/// Largest read or write that the kernel sends.
const IO_SIZE: u32 = 1 << 20;
/// How often a call that may wait for long is checked for a signal of its program.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

pub(crate) struct Adapter {
    pub(crate) client: Mount,
    /// What `Verb::Identity` answers.
    pub(crate) identity: String,
    /// The node that the kernel calls the root.
    pub(crate) root: u64,
}

/// An answer that this call cannot have: a bug, but the program gets an error, not a hang.
fn unexpected() -> fuser::Errno {
    fuser::Errno::EIO
}

fn name(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn entry_validity(stat: &Stat) -> (Duration, Duration) {
    (validity(stat.entry_cacheable), validity(stat.cacheable))
}

fn reply_entry(reply: ReplyEntry, result: Result<Answer, Errno>) {
    match result {
        Ok(Answer::Entry(stat)) => {
            let (entry, attr) = entry_validity(&stat);
            reply.entry_with_ttls(&attr, &entry, &attributes(&stat), Generation(0));
        }
        Ok(_) => reply.error(unexpected()),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty(reply: ReplyEmpty, result: Result<Answer, Errno>) {
    match result {
        Ok(_) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_attr(reply: ReplyAttr, result: Result<Answer, Errno>) {
    match result {
        Ok(Answer::Attr(stat)) => reply.attr(&validity(stat.cacheable), &attributes(&stat)),
        Ok(_) => reply.error(unexpected()),
        Err(error) => reply.error(errno(error)),
    }
}

fn open_flags(keep_cache: bool, direct_io: bool, no_flush: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, keep_cache);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, direct_io);
    flags.set(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES, direct_io);
    flags.set(FopenFlags::FOPEN_NOFLUSH, no_flush);
    flags
}

fn reply_open(reply: ReplyOpen, result: Result<Answer, Errno>) {
    match result {
        Ok(Answer::Opened { fh, keep_cache, direct_io, no_flush }) => {
            reply.opened(FileHandle(fh.0), open_flags(keep_cache, direct_io, no_flush));
        }
        Ok(_) => reply.error(unexpected()),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Answer, Errno>) {
    match result {
        Ok(Answer::Data(value)) if size == 0 => reply.size(value.len() as u32),
        Ok(Answer::Data(value)) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(Answer::Data(value)) => reply.data(&value),
        Ok(_) => reply.error(unexpected()),
        Err(error) => reply.error(errno(error)),
    }
}

fn record_lock(start: u64, end: u64, typ: i32, pid: u32) -> RecordLock {
    let kind = match typ {
        libc::F_RDLCK => RecordLockKind::Shared,
        libc::F_WRLCK => RecordLockKind::Exclusive,
        _ => RecordLockKind::Unlock,
    };
    RecordLock { start, end: if end >= i64::MAX as u64 { u64::MAX } else { end }, kind, pid }
}

impl Adapter {
    /// The client's number of a node.
    fn node(&self, ino: INodeNo) -> u64 {
        if ino == INodeNo::ROOT { self.root } else { ino.0 }
    }

    fn submit(&self, request: &Request, call: Call, done: impl FnOnce(Result<Answer, Errno>) + Send + 'static) {
        self.client.submit(process::cred(request, 0), call, Box::new(done));
    }

    fn create_like(&self, request: &Request, umask: u32, call: Call, reply: ReplyEntry) {
        self.client.submit(process::cred(request, umask), call, Box::new(move |result| reply_entry(reply, result)));
    }

    /// Waits for a lock on a thread of its own and watches whether the program was interrupted meanwhile.
    fn wait_for_lock(&self, request: &Request, call: Call, reply: ReplyEmpty) {
        let (client, cred, pid) = (self.client.clone(), process::cred(request, 0), request.pid());
        let watch = move || {
            let (sender, done) = std::sync::mpsc::channel();
            let id = client.submit(
                cred,
                call,
                Box::new(move |result| {
                    reply_empty(reply, result);
                    let _ = sender.send(());
                }),
            );
            while done.recv_timeout(SIGNAL_CHECK) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if process::has_signal(pid) {
                    client.interrupt(id);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("lock-wait".to_owned()).spawn(watch) {
            tracing::warn!("no thread to wait for a lock: {error}");
        }
    }

    fn answer_ioctl(&self, request: &Request, ino: u64, block: &[u8], reply: ReplyIoctl) {
        let Some((verb, input)) = ioctl::parse_request(block) else {
            reply.error(fuser::Errno::EINVAL);
            return;
        };
        let call = match verb {
            Verb::Identity => {
                reply.ioctl(0, &ioctl::answer(Ok(self.identity.as_bytes())));
                return;
            }
            Verb::PathToFid => Some(Call::PathToFid { ino }),
            Verb::FidToPath => {
                std::str::from_utf8(input).ok().and_then(|t| t.parse::<Fid>().ok()).map(|fid| Call::FidToPath { fid })
            }
            Verb::GetLayout => Some(Call::GetLayout { ino }),
            Verb::SetLayout if input.len() == 12 => {
                let mut input = input;
                let stripe_size = input.get_u32_le();
                Some(Call::SetLayout { ino, stripe_size, count: input.get_i32_le(), first: input.get_i32_le() })
            }
            Verb::SetLayout => None,
            Verb::TargetSpace => Some(Call::TargetSpace),
        };
        let Some(call) = call else {
            reply.ioctl(0, &ioctl::answer(Err(Errno::EINVAL)));
            return;
        };
        self.submit(request, call, move |result| {
            let bytes = result.map(|answer| ioctl_bytes(&answer));
            let block = ioctl::answer(bytes.as_deref().map_err(|error| *error));
            reply.ioctl(0, &block);
        });
    }
}

fn ioctl_bytes(answer: &Answer) -> Vec<u8> {
    match answer {
        Answer::Fid(fid) => fid.to_string().into_bytes(),
        Answer::Paths(paths) => paths.iter().flat_map(|path| path.iter().copied().chain([0])).collect(),
        Answer::Layout(Some(layout)) => prost::Message::encode_to_vec(layout),
        Answer::Targets(targets) => {
            let mut text = String::new();
            for (name, space) in targets {
                match space {
                    Ok(s) => text.push_str(&format!(
                        "{name} {} {} {} {} {}\n",
                        s.total, s.free, s.available, s.files, s.files_free
                    )),
                    Err(error) => text.push_str(&format!("{name} error {}\n", error.raw())),
                }
            }
            text.into_bytes()
        }
        _ => Vec::new(),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_HAS_IOCTL_DIR,
        ];
        for flag in wanted {
            // An older kernel without one of them works with less.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(IO_SIZE);
        let _ = config.set_max_readahead(IO_SIZE);
        let _ = config.set_max_background(128);
        let _ = config.set_congestion_threshold(96);
        Ok(())
    }

    fn destroy(&mut self) {
        if let Err(reason) = self.client.unmount(Duration::from_secs(60)) {
            tracing::error!("unmount: {reason}");
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEntry) {
        let call = Call::Lookup { parent: self.node(parent), name: name(child) };
        self.submit(request, call, move |result| reply_entry(reply, result));
    }

    fn forget(&self, request: &Request, ino: INodeNo, count: u64) {
        self.submit(request, Call::Forget { ino: ino.0, count }, |_| ());
    }

    fn getattr(&self, request: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let call = Call::Getattr { ino: self.node(ino), fh: fh.map(|fh| Fh(fh.0)) };
        self.submit(request, call, move |result| reply_attr(reply, result));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetStat {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            fh: fh.map(|fh| Fh(fh.0)),
        };
        self.submit(request, Call::Setattr { ino: self.node(ino), set }, move |result| reply_attr(reply, result));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.submit(request, Call::Readlink { ino: self.node(ino) }, move |result| match result {
            Ok(Answer::Data(target)) => reply.data(&target),
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let call = Call::Mknod { parent: self.node(parent), name: name(child), mode, rdev: user_device(rdev) };
        self.create_like(request, umask, call, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, child: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.create_like(request, umask, Call::Mkdir { parent: self.node(parent), name: name(child), mode }, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        let call = Call::Unlink { parent: self.node(parent), name: name(child) };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        let call = Call::Rmdir { parent: self.node(parent), name: name(child) };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, child: &OsStr, target: &Path, reply: ReplyEntry) {
        let call = Call::Symlink { parent: self.node(parent), name: name(child), target: name(target.as_os_str()) };
        self.create_like(request, 0, call, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let call = Call::Rename {
            parent: self.node(parent),
            name: name(child),
            new_parent: self.node(new_parent),
            new_name: name(new_name),
            flags: flags.bits(),
        };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn link(&self, request: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let call = Call::Link { ino: self.node(ino), new_parent: self.node(new_parent), new_name: name(new_name) };
        self.create_like(request, 0, call, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let call = Call::Open { ino: self.node(ino), flags: flags.0 as u32 };
        self.submit(request, call, move |result| reply_open(reply, result));
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.submit(request, Call::Read { fh: Fh(fh.0), offset, length: size }, move |result| match result {
            Ok(Answer::Data(data)) => reply.data(&data),
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let call = Call::Write {
            fh: Fh(fh.0),
            ino: self.node(ino),
            offset,
            data: Bytes::copy_from_slice(data),
            write_back: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_priv: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        self.submit(request, call, move |result| match result {
            Ok(Answer::Written(count)) => reply.written(count),
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn flush(&self, request: &Request, _ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let call = Call::Flush { fh: Fh(fh.0), lock_owner: lock_owner.0 };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn release(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let call = Call::Release { fh: Fh(fh.0), flock_owner: lock_owner.map(|owner| owner.0) };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn fsync(&self, request: &Request, _ino: INodeNo, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.submit(request, Call::Fsync { fh: Fh(fh.0), data_only }, move |result| reply_empty(reply, result));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.submit(request, Call::Opendir { ino: self.node(ino) }, move |result| reply_open(reply, result));
    }

    fn readdir(&self, request: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let call = Call::Readdir { fh: Fh(fh.0), offset, max_bytes: READDIR_BYTES, plus: false };
        self.submit(request, call, move |result| match result {
            Ok(Answer::Entries(entries)) => {
                for entry in entries {
                    let full =
                        reply.add(INodeNo(entry.ino), entry.offset, kind(entry.kind), OsStr::from_bytes(&entry.name));
                    if full {
                        break;
                    }
                }
                reply.ok();
            }
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let call = Call::Readdir { fh: Fh(fh.0), offset, max_bytes: READDIR_BYTES, plus: true };
        let client = self.client.clone();
        let cred = process::cred(request, 0);
        self.client.submit(
            cred.clone(),
            call,
            Box::new(move |result| match result {
                Ok(Answer::Entries(entries)) => {
                    let mut unsent = Vec::new();
                    let mut full = false;
                    for entry in entries {
                        let dot = &*entry.name == b"." || &*entry.name == b"..";
                        let stat = entry.stat.unwrap_or_else(|| Stat {
                            ino: entry.ino,
                            mode: entry.kind << 12,
                            ..Stat::default()
                        });
                        let covered = !dot && stat.cacheable && stat.entry_cacheable;
                        full = full
                            || reply.add(
                                INodeNo(entry.ino),
                                entry.offset,
                                OsStr::from_bytes(&entry.name),
                                &validity(covered),
                                &attributes(&stat),
                                Generation(0),
                            );
                        if full && !dot {
                            unsent.push(entry.ino);
                        }
                    }
                    reply.ok();
                    if !unsent.is_empty() {
                        // What did not fit was counted as looked up: give the references back, from a thread that may call.
                        std::thread::spawn(move || {
                            for ino in unsent {
                                client.submit(cred.clone(), Call::Forget { ino, count: 1 }, Box::new(|_| ()));
                            }
                        });
                    }
                }
                Ok(_) => reply.error(unexpected()),
                Err(error) => reply.error(errno(error)),
            }),
        );
    }

    fn releasedir(&self, request: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.submit(request, Call::Releasedir { fh: Fh(fh.0) }, move |result| reply_empty(reply, result));
    }

    fn fsyncdir(&self, request: &Request, _ino: INodeNo, fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.submit(request, Call::Fsyncdir { fh: Fh(fh.0) }, move |result| reply_empty(reply, result));
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.submit(request, Call::Statfs { ino: self.node(ino) }, move |result| match result {
            Ok(Answer::Space { block_size, blocks, free, available, files, files_free }) => {
                reply.statfs(blocks, free, available, files, files_free, block_size, 255, block_size);
            }
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        attribute: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let call = Call::Setxattr {
            ino: self.node(ino),
            name: name(attribute),
            value: Bytes::copy_from_slice(value),
            flags: flags as u32,
        };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, attribute: &OsStr, size: u32, reply: ReplyXattr) {
        let call = Call::Getxattr { ino: self.node(ino), name: name(attribute) };
        self.submit(request, call, move |result| reply_xattr(reply, size, result));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.submit(request, Call::Listxattr { ino: self.node(ino) }, move |result| reply_xattr(reply, size, result));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, attribute: &OsStr, reply: ReplyEmpty) {
        let call = Call::Removexattr { ino: self.node(ino), name: name(attribute) };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let call = Call::Create { parent: self.node(parent), name: name(child), mode, flags: flags as u32 };
        self.client.submit(
            process::cred(request, umask),
            call,
            Box::new(move |result| match result {
                Ok(Answer::Created { stat, fh, direct_io, no_flush }) => {
                    let covered = stat.cacheable && stat.entry_cacheable;
                    reply.created(
                        &validity(covered),
                        &attributes(&stat),
                        Generation(0),
                        FileHandle(fh.0),
                        open_flags(false, direct_io, no_flush),
                    );
                }
                Ok(_) => reply.error(unexpected()),
                Err(error) => reply.error(errno(error)),
            }),
        );
    }

    fn getlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let call = Call::Getlk { fh: Fh(fh.0), owner: owner.0, lock: record_lock(start, end, typ, pid) };
        self.submit(request, call, move |result| match result {
            Ok(Answer::Lock(lock)) => {
                let typ = match lock.kind {
                    RecordLockKind::Shared => libc::F_RDLCK,
                    RecordLockKind::Exclusive => libc::F_WRLCK,
                    RecordLockKind::Unlock => libc::F_UNLCK,
                };
                reply.locked(lock.start, lock.end.min(i64::MAX as u64), typ, lock.pid);
            }
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let lock = record_lock(start, end, typ, pid);
        let whole = start == 0 && lock.end == u64::MAX;
        let flock = whole && process::is_in_flock(request.pid());
        let call = Call::Setlk { fh: Fh(fh.0), owner: owner.0, lock, wait, flock };
        if wait && lock.kind != RecordLockKind::Unlock {
            self.wait_for_lock(request, call, reply);
        } else {
            self.submit(request, call, move |result| reply_empty(reply, result));
        }
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        input: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        if command == ioctl::COMMAND {
            self.answer_ioctl(request, self.node(ino), input, reply);
        } else {
            reply.error(fuser::Errno::ENOTTY);
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let call = Call::Fallocate { fh: Fh(fh.0), mode: mode as u32, offset, length };
        self.submit(request, call, move |result| reply_empty(reply, result));
    }

    fn lseek(&self, request: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let whence = match whence {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => {
                reply.error(fuser::Errno::EINVAL);
                return;
            }
        };
        let Ok(offset) = u64::try_from(offset) else {
            reply.error(fuser::Errno::ENXIO);
            return;
        };
        self.submit(request, Call::Lseek { fh: Fh(fh.0), offset, whence }, move |result| match result {
            Ok(Answer::Offset(found)) => reply.offset(found as i64),
            Ok(_) => reply.error(unexpected()),
            Err(error) => reply.error(errno(error)),
        });
    }
}

/// About what the kernel's buffer for directory entries holds.
const READDIR_BYTES: u32 = 32 << 10;
