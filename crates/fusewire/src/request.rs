//! Requests of the kernel, parsed and checked.

use std::time::Duration;

use zerocopy::FromBytes;

use crate::abi;
use crate::reply::Reply;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The kernel's number of it.
    pub unique: u64,
    /// The node that it concerns.
    pub node: u64,
    /// The calling process's user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The calling thread; 0 if it is in another process namespace.
    pub pid: u32,
    /// The operation.
    pub operation: Operation<'a>,
}

/// A request and the right to answer it. Once it is answered, its memory belongs to the kernel again, so the
/// request can be accessed only until it is turned into a [`Reply`].
///
/// ```
/// # use fusewire::{Incoming, Operation};
/// fn answer(incoming: Incoming<'_>) {
///     let Operation::Lookup { name } = &incoming.request().operation else { return };
///     let known = name == b"known";
///     incoming.into_reply().error(if known { 0 } else { 2 });
/// }
/// ```
/// Data borrowed from the request cannot be used afterwards:
/// ```compile_fail,E0505
/// # use fusewire::{Incoming, Operation};
/// fn answer(incoming: Incoming<'_>) {
///     let Operation::Lookup { name } = &incoming.request().operation else { return };
///     let reply = incoming.into_reply();
///     reply.error(if name == b"known" { 0 } else { 2 });
/// }
/// ```
#[derive(Debug)]
pub struct Incoming<'a> {
    request: Request<'a>,
    reply: Reply,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(request: Request<'a>, reply: Reply) -> Incoming<'a> {
        Incoming { request, reply }
    }

    /// The request.
    pub fn request(&self) -> &Request<'_> {
        &self.request
    }

    /// Turns it into the right to answer it.
    pub fn into_reply(self) -> Reply {
        self.reply
    }
}

/// A time that SETATTR sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeChange {
    /// The current time.
    Now,
    /// Seconds since 1970 and nanoseconds of the second.
    At(i64, u32),
}

/// What SETATTR changes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeChange>,
    pub mtime: Option<TimeChange>,
    pub fh: Option<u64>,
}

/// The operations. Names are the kernel's, without a NUL; flags are those of the system call.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// No answer.
    Forget {
        lookups: u64,
    },
    /// No answer. Each node with its count.
    BatchForget {
        nodes: Vec<(u64, u64)>,
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr {
        set: SetAttr,
    },
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The request's node is the new parent.
    Link {
        node: u64,
        new_name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
    },
    /// `cached`: from the page cache, with any handle of the file.
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        cached: bool,
        kill_priv: bool,
    },
    Statfs,
    /// `flock_owner`: the owner whose `flock(2)` lock is released with it.
    Release {
        fh: u64,
        flock_owner: Option<u64>,
    },
    Fsync {
        fh: u64,
        data_only: bool,
    },
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    /// `size` 0 asks for the size.
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    /// `size` 0 asks for the size.
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Opendir {
        flags: u32,
    },
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir {
        fh: u64,
        data_only: bool,
    },
    Getlk {
        fh: u64,
        owner: u64,
        lock: crate::FileLock,
    },
    /// `flock`: by `flock(2)`. `wait`: until it is granted or interrupted.
    Setlk {
        fh: u64,
        owner: u64,
        lock: crate::FileLock,
        flock: bool,
        wait: bool,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: u32,
    },
    /// The request with that number was interrupted. No answer.
    Interrupt {
        unique: u64,
    },
    Ioctl {
        fh: u64,
        command: u32,
        input: &'a [u8],
        out_size: u32,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    /// Make everything durable. Linux sends it only to file systems on a block device and to virtiofs.
    Syncfs,
    /// The end of the session.
    Destroy,
}

impl Operation<'_> {
    /// Whether the kernel waits for an answer.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Operation::Forget { .. } | Operation::BatchForget { .. } | Operation::Interrupt { .. })
    }
}

/// Why a request cannot be handled, as an errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused(pub(crate) i32);

/// The request violates the protocol.
const BROKEN: Refused = Refused(libc::EIO);

/// The leading record of a request.
fn record<T: FromBytes>(bytes: &[u8]) -> Result<T, Refused> {
    T::read_from_prefix(bytes).map(|(record, _)| record).map_err(|_| BROKEN)
}

/// A name that ends with a NUL, and what follows it.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Refused> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(BROKEN)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

fn exactly(bytes: &[u8], size: u32) -> Result<&[u8], Refused> {
    bytes.get(..size as usize).ok_or(BROKEN)
}

impl<'a> Request<'a> {
    /// Parses a request in one buffer.
    pub(crate) fn parse_whole(bytes: &'a [u8]) -> Result<(abi::InHeader, Result<Request<'a>, Refused>), Refused> {
        let (header, body) = abi::InHeader::read_from_prefix(bytes).map_err(|_| BROKEN)?;
        if header.len as usize != bytes.len() {
            return Err(BROKEN);
        }
        let request = abi::record_size(header.opcode)
            .ok_or(Refused(libc::ENOSYS))
            .and_then(|size| body.split_at_checked(size).ok_or(BROKEN))
            .and_then(|(record, rest)| Self::parse(&header, record, rest));
        Ok((header, request))
    }

    /// Parses a request from its header, its leading record and the bytes after that.
    pub(crate) fn parse(header: &abi::InHeader, record: &[u8], rest: &'a [u8]) -> Result<Request<'a>, Refused> {
        Ok(Request {
            unique: header.unique,
            node: header.nodeid,
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            operation: operation(header.opcode, record, rest)?,
        })
    }
}

fn operation<'a>(opcode: u32, leading: &[u8], rest: &'a [u8]) -> Result<Operation<'a>, Refused> {
    Ok(match opcode {
        abi::LOOKUP => Operation::Lookup { name: name(rest)?.0 },
        abi::FORGET => Operation::Forget { lookups: record::<abi::ForgetIn>(leading)?.nlookup },
        abi::BATCH_FORGET => batch_forget(leading, rest)?,
        abi::GETATTR => {
            let r = record::<abi::GetattrIn>(leading)?;
            Operation::Getattr { fh: (r.getattr_flags & abi::GETATTR_FH != 0).then_some(r.fh) }
        }
        abi::SETATTR => Operation::Setattr { set: set_attr(&record(leading)?) },
        abi::READLINK => Operation::Readlink,
        abi::SYMLINK => {
            let (link, rest) = name(rest)?;
            Operation::Symlink { name: link, target: name(rest)?.0 }
        }
        abi::MKNOD => {
            let r = record::<abi::MknodIn>(leading)?;
            Operation::Mknod { name: name(rest)?.0, mode: r.mode, rdev: r.rdev, umask: r.umask }
        }
        abi::MKDIR => {
            let r = record::<abi::MkdirIn>(leading)?;
            Operation::Mkdir { name: name(rest)?.0, mode: r.mode, umask: r.umask }
        }
        abi::UNLINK => Operation::Unlink { name: name(rest)?.0 },
        abi::RMDIR => Operation::Rmdir { name: name(rest)?.0 },
        abi::RENAME => rename(record::<abi::RenameIn>(leading)?.newdir, 0, rest)?,
        abi::RENAME2 => {
            let r = record::<abi::Rename2In>(leading)?;
            rename(r.newdir, r.flags, rest)?
        }
        abi::LINK => Operation::Link { node: record::<abi::LinkIn>(leading)?.oldnodeid, new_name: name(rest)?.0 },
        abi::CREATE => {
            let r = record::<abi::CreateIn>(leading)?;
            Operation::Create { name: name(rest)?.0, mode: r.mode, umask: r.umask, flags: r.flags }
        }
        abi::STATFS => Operation::Statfs,
        abi::SETXATTR => {
            let r = record::<abi::SetxattrIn>(leading)?;
            let (name, rest) = name(rest)?;
            Operation::Setxattr { name, value: exactly(rest, r.size)?, flags: r.flags }
        }
        abi::GETXATTR => Operation::Getxattr { name: name(rest)?.0, size: record::<abi::GetxattrIn>(leading)?.size },
        abi::LISTXATTR => Operation::Listxattr { size: record::<abi::GetxattrIn>(leading)?.size },
        abi::REMOVEXATTR => Operation::Removexattr { name: name(rest)?.0 },
        abi::SYNCFS => Operation::Syncfs,
        abi::INTERRUPT => Operation::Interrupt { unique: record::<abi::InterruptIn>(leading)?.unique },
        abi::DESTROY => Operation::Destroy,
        _ => return on_open_file(opcode, leading, rest),
    })
}

/// Operations on open files and directories, and opens.
fn on_open_file<'a>(opcode: u32, leading: &[u8], rest: &'a [u8]) -> Result<Operation<'a>, Refused> {
    Ok(match opcode {
        abi::OPEN => Operation::Open { flags: record::<abi::OpenIn>(leading)?.flags },
        abi::OPENDIR => Operation::Opendir { flags: record::<abi::OpenIn>(leading)?.flags },
        abi::READ => {
            let r = record::<abi::ReadIn>(leading)?;
            Operation::Read { fh: r.fh, offset: r.offset, size: r.size }
        }
        abi::WRITE => {
            let r = record::<abi::WriteIn>(leading)?;
            Operation::Write {
                fh: r.fh,
                offset: r.offset,
                data: exactly(rest, r.size)?,
                cached: r.write_flags & abi::WRITE_CACHE != 0,
                kill_priv: r.write_flags & abi::WRITE_KILL_SUIDGID != 0,
            }
        }
        abi::FLUSH => {
            let r = record::<abi::FlushIn>(leading)?;
            Operation::Flush { fh: r.fh, lock_owner: r.lock_owner }
        }
        abi::RELEASE => {
            let r = record::<abi::ReleaseIn>(leading)?;
            let flock = r.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release { fh: r.fh, flock_owner: flock.then_some(r.lock_owner) }
        }
        abi::FSYNC | abi::FSYNCDIR => {
            let r = record::<abi::FsyncIn>(leading)?;
            let data_only = r.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            match opcode {
                abi::FSYNC => Operation::Fsync { fh: r.fh, data_only },
                _ => Operation::Fsyncdir { fh: r.fh, data_only },
            }
        }
        abi::READDIR | abi::READDIRPLUS => {
            let r = record::<abi::ReadIn>(leading)?;
            Operation::Readdir { fh: r.fh, offset: r.offset, size: r.size, plus: opcode == abi::READDIRPLUS }
        }
        abi::RELEASEDIR => Operation::Releasedir { fh: record::<abi::ReleaseIn>(leading)?.fh },
        abi::GETLK | abi::SETLK | abi::SETLKW => {
            let r = record::<abi::LkIn>(leading)?;
            let lock = crate::FileLock { start: r.lk.start, end: r.lk.end, kind: r.lk.kind as i32, pid: r.lk.pid };
            match opcode {
                abi::GETLK => Operation::Getlk { fh: r.fh, owner: r.owner, lock },
                _ => Operation::Setlk {
                    fh: r.fh,
                    owner: r.owner,
                    lock,
                    flock: r.lk_flags & abi::LK_FLOCK != 0,
                    wait: opcode == abi::SETLKW,
                },
            }
        }
        abi::IOCTL => {
            let r = record::<abi::IoctlIn>(leading)?;
            Operation::Ioctl { fh: r.fh, command: r.cmd, input: exactly(rest, r.in_size)?, out_size: r.out_size }
        }
        abi::FALLOCATE => {
            let r = record::<abi::FallocateIn>(leading)?;
            Operation::Fallocate { fh: r.fh, offset: r.offset, length: r.length, mode: r.mode }
        }
        abi::LSEEK => {
            let r = record::<abi::LseekIn>(leading)?;
            Operation::Lseek { fh: r.fh, offset: r.offset, whence: r.whence }
        }
        _ => return Err(Refused(libc::ENOSYS)),
    })
}

fn rename(new_parent: u64, flags: u32, rest: &[u8]) -> Result<Operation<'_>, Refused> {
    let (old, rest) = name(rest)?;
    Ok(Operation::Rename { name: old, new_parent, new_name: name(rest)?.0, flags })
}

fn batch_forget<'a>(leading: &[u8], rest: &[u8]) -> Result<Operation<'a>, Refused> {
    let count = record::<abi::BatchForgetIn>(leading)?.count as usize;
    let one = size_of::<abi::ForgetOne>();
    let all = rest.get(..count.checked_mul(one).ok_or(BROKEN)?).ok_or(BROKEN)?;
    let nodes = all.chunks_exact(one).map(|bytes| record::<abi::ForgetOne>(bytes).map(|r| (r.nodeid, r.nlookup)));
    Ok(Operation::BatchForget { nodes: nodes.collect::<Result<_, _>>()? })
}

fn set_attr(r: &abi::SetattrIn) -> SetAttr {
    use abi::setattr as bit;
    let has = |bit: u32| r.valid & bit != 0;
    let time = |given: u32, now: u32, seconds: u64, nanoseconds: u32| match (has(given), has(now)) {
        (false, _) => None,
        (true, true) => Some(TimeChange::Now),
        (true, false) => Some(TimeChange::At(seconds as i64, nanoseconds)),
    };
    SetAttr {
        mode: has(bit::MODE).then_some(r.mode),
        uid: has(bit::UID).then_some(r.uid),
        gid: has(bit::GID).then_some(r.gid),
        size: has(bit::SIZE).then_some(r.size),
        atime: time(bit::ATIME, bit::ATIME_NOW, r.atime, r.atime_ns),
        mtime: time(bit::MTIME, bit::MTIME_NOW, r.mtime, r.mtime_ns),
        fh: has(bit::FH).then_some(r.fh),
    }
}

impl TimeChange {
    /// As a signed number of nanoseconds since 1970; `None` for the current time.
    pub fn ns(self) -> Option<i64> {
        match self {
            TimeChange::Now => None,
            TimeChange::At(seconds, nanoseconds) => {
                let ns = i128::from(seconds) * Duration::from_secs(1).as_nanos() as i128 + i128::from(nanoseconds);
                Some(ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
            }
        }
    }
}
