//! The protocol's numbers and records, as `linux/fuse.h` has them (version 7.42), in the machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version that this crate speaks.
pub const MAJOR: u32 = 7;
/// Newest minor version that this crate knows.
pub const MINOR: u32 = 42;
/// Oldest minor version that this crate speaks: with 64 flags, `readdirplus` and `lseek`.
pub const OLDEST_MINOR: u32 = 36;
/// The root's node.
pub const ROOT: u64 = 1;

/// Declares the operations: number, name and the size of the leading record of the request.
macro_rules! opcodes {
    ($($name:ident = $number:literal, $record:ty;)*) => {
        $(#[doc = concat!("Operation ", stringify!($number), ".")] pub const $name: u32 = $number;)*

/// Bytes of the leading record of a request; `None` for an operation that this crate does not know.
        pub fn record_size(opcode: u32) -> Option<usize> {
            match opcode {
                $($number => Some(size_of::<$record>()),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, ();
    FORGET = 2, ForgetIn;
    GETATTR = 3, GetattrIn;
    SETATTR = 4, SetattrIn;
    READLINK = 5, ();
    SYMLINK = 6, ();
    MKNOD = 8, MknodIn;
    MKDIR = 9, MkdirIn;
    UNLINK = 10, ();
    RMDIR = 11, ();
    RENAME = 12, RenameIn;
    LINK = 13, LinkIn;
    OPEN = 14, OpenIn;
    READ = 15, ReadIn;
    WRITE = 16, WriteIn;
    STATFS = 17, ();
    RELEASE = 18, ReleaseIn;
    FSYNC = 20, FsyncIn;
    SETXATTR = 21, SetxattrIn;
    GETXATTR = 22, GetxattrIn;
    LISTXATTR = 23, GetxattrIn;
    REMOVEXATTR = 24, ();
    FLUSH = 25, FlushIn;
    INIT = 26, ();
    OPENDIR = 27, OpenIn;
    READDIR = 28, ReadIn;
    RELEASEDIR = 29, ReleaseIn;
    FSYNCDIR = 30, FsyncIn;
    GETLK = 31, LkIn;
    SETLK = 32, LkIn;
    SETLKW = 33, LkIn;
    CREATE = 35, CreateIn;
    INTERRUPT = 36, InterruptIn;
    DESTROY = 38, ();
    IOCTL = 39, IoctlIn;
    BATCH_FORGET = 42, BatchForgetIn;
    FALLOCATE = 43, FallocateIn;
    READDIRPLUS = 44, ReadIn;
    RENAME2 = 45, Rename2In;
    LSEEK = 46, LseekIn;
    SYNCFS = 50, SyncfsIn;
}

/// Features of kernel and file system: bits of INIT.
pub mod flags {
    /// Concurrent reads.
    pub const ASYNC_READ: u64 = 1;
    /// The file system handles record locks.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// Writes larger than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The file system applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// The file system handles `flock(2)` locks.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// ioctl on directories.
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// Listings with attributes.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses the kind of listing.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Asynchronous direct reads and writes.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Concurrent lookups and listings of one directory.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel reads and checks POSIX ACLs.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` of the answer is valid.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links may be cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached data is dropped only when the file system invalidates it.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The file system clears set-user-id bits when the kernel asks for it.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// There are more than 32 flags.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files opened for direct access.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests over io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of an answer to an open.
pub mod open {
    /// Reads and writes bypass the page cache.
    pub const DIRECT_IO: u32 = 1;
    /// Cached data stays.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// No FLUSH when it is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Concurrent direct writes.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of SETATTR's `valid`.
pub mod setattr {
    /// The mode is given.
    pub const MODE: u32 = 1;
    /// The owner is given.
    pub const UID: u32 = 1 << 1;
    /// The group is given.
    pub const GID: u32 = 1 << 2;
    /// The size is given.
    pub const SIZE: u32 = 1 << 3;
    /// The time of the last access is given.
    pub const ATIME: u32 = 1 << 4;
    /// The time of the last change of data is given.
    pub const MTIME: u32 = 1 << 5;
    /// An open file is given.
    pub const FH: u32 = 1 << 6;
    /// The time of the last access is now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The time of the last change of data is now.
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// GETATTR names an open file.
pub const GETATTR_FH: u32 = 1;
/// The write comes from the page cache and its handle is guessed.
pub const WRITE_CACHE: u32 = 1;
/// The write clears set-user-id and set-group-id.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// A lock request of `flock(2)`.
pub const LK_FLOCK: u32 = 1;
/// RELEASE releases a `flock(2)` lock.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// FSYNC of data alone.
pub const FSYNC_FDATASYNC: u32 = 1;
/// Notification: cached data and attributes of a node are out of date.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: a name is out of date.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// Notification: unused nodes can be dropped.
pub const NOTIFY_PRUNE: i32 = 9;

/// Declares the records.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs)]
            #[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub struct $name { $(pub $field: $kind,)* }
        )*
    };
}

records! {
    /// Leads every request.
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16, padding: u16, }
    /// Leads every answer.
    OutHeader { len: u32, error: i32, unique: u64, }
    /// Attributes of a node.
    AttrOut {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
/// Answer to LOOKUP and operations that make a name.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_ns: u32, attr_valid_ns: u32,
        attr: AttrOut,
    }
    /// Answer to GETATTR and SETATTR.
    AttrReplyOut { attr_valid: u64, attr_valid_ns: u32, dummy: u32, attr: AttrOut, }
    /// FORGET.
    ForgetIn { nlookup: u64, }
    /// One of BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64, }
    /// BATCH_FORGET.
    BatchForgetIn { count: u32, dummy: u32, }
    /// GETATTR.
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    /// SETATTR.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atime_ns: u32,
        mtime_ns: u32, ctime_ns: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// MKNOD.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR.
    MkdirIn { mode: u32, umask: u32, }
    /// RENAME.
    RenameIn { newdir: u64, }
    /// RENAME2.
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    /// LINK.
    LinkIn { oldnodeid: u64, }
    /// OPEN, OPENDIR.
    OpenIn { flags: u32, open_flags: u32, }
    /// CREATE.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
/// Answer to OPEN, OPENDIR; second part of the answer to CREATE.
    OpenOut { fh: u64, open_flags: u32, padding: u32, }
    /// RELEASE, RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR, READDIRPLUS.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// WRITE.
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// Answer to WRITE.
    WriteOut { size: u32, padding: u32, }
    /// Answer to STATFS.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32,
        spare: [u32; 6],
    }
    /// FSYNC, FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR, in its short form.
    SetxattrIn { size: u32, flags: u32, }
    /// GETXATTR, LISTXATTR.
    GetxattrIn { size: u32, padding: u32, }
/// Answer to a GETXATTR or LISTXATTR that asked for the size.
    GetxattrOut { size: u32, padding: u32, }
    /// A record lock.
    FileLockRecord { start: u64, end: u64, kind: u32, pid: u32, }
    /// GETLK, SETLK, SETLKW.
    LkIn { fh: u64, owner: u64, lk: FileLockRecord, lk_flags: u32, padding: u32, }
    /// INIT.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    /// Answer to INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    /// INTERRUPT.
    InterruptIn { unique: u64, }
    /// IOCTL.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// Answer to IOCTL.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// An entry of READDIR; its name follows, padded to 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// Notification about a node.
    NotifyInvalInode { ino: u64, off: i64, len: i64, }
    /// Notification about a name, which follows with a NUL.
    NotifyInvalEntry { parent: u64, namelen: u32, flags: u32, }
    /// Notification about nodes, whose numbers follow.
    NotifyPrune { count: u32, padding: u32, spare: u64, }
    /// LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// SYNCFS.
    SyncfsIn { padding: u64, }
    /// Answer to LSEEK.
    LseekOut { offset: u64, }
/// Metadata of a request or answer in a ring's entry.
    RingInOut { flags: u64, commit_id: u64, payload_size: u32, padding: u32, reserved: u64, }
    /// The command of a ring.
    RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// Ring command: registers an entry for requests.
pub const RING_REGISTER: u32 = 1;
/// Ring command: sends an answer and frees the entry for the next request.
pub const RING_COMMIT_AND_FETCH: u32 = 2;
/// Bytes for [`InHeader`] or [`OutHeader`] in a ring's entry.
pub const RING_HEADER: usize = 128;
/// Bytes for the leading record of a request in a ring's entry.
pub const RING_RECORD: usize = 128;
