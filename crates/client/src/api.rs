//! The seam of the client machine: calls with POSIX meaning come in, answers go out.
//!
//! A driver (the FUSE host, the native library, the simulator) calls [`crate::Client::handle`] with what happened, then
//! [`crate::Client::poll`] until it gives `None`, and again when [`crate::Client::deadline`] has passed (with
//! [`Event::Tick`]). Nodes are named by inode number ([`proto::Fid::ino`]).

pub use rpc::at::Timeouts;

use bytes::Bytes;
use proto::msg::{Cred, Layout};
use proto::{Errno, Fid, Frame, Nid};
use smallvec::SmallVec;

/// A connection that the machine asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// A call in progress; chosen by the driver, unique while it runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// An open file or directory of this client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileHandle(pub u64);

/// Settings of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Identity of this mount; random, 16 bytes.
    pub uuid: proto::ClientUuid,
    /// Seed for what needs one: first xid, retry jitter.
    pub seed: u64,
    /// What the mount's devices are named by; random.
    pub instance: Instance,
    /// File system.
    pub fsname: String,
    /// Where the MGS is.
    pub mgs: Vec<Nid>,
    /// Name for status output.
    pub description: String,
    /// Refuse changes.
    pub read_only: bool,
    /// Most dirty data in memory, bytes over all files.
    pub max_dirty: u64,
    /// Most clean data in memory, bytes.
    pub max_cached: u64,
    /// Largest read-ahead of one file, bytes.
    pub max_read_ahead: u64,
    /// Most cached nodes without open files; see [`NODE_BYTES`].
    pub max_nodes: usize,
    /// Give up after a server was away for this long: calls fail with `EIO` (`-o soft`); `None` waits for ever.
    pub soft: Option<core::time::Duration>,
    /// How long requests may take before the connection is suspected, and when signs of life are due.
    pub timeouts: Timeouts,
    /// Give signs of life also where a server does not want them.
    pub always_ping: bool,
    /// Dirty data is written at the latest after this long.
    pub write_back_after: core::time::Duration,
    /// Most requests in flight per metadata target that an administrator wants, as far as it limits the next.
    pub max_rpcs_in_flight: u16,
    /// Changes in flight per metadata target, as far as it allows so many. 0: single slots, as version 0.1.0 has them.
    pub max_mod_rpcs_in_flight: u16,
    /// When reading moves access times.
    pub access_times: AccessTimes,
    /// And those of directories.
    pub directory_access_times: AccessTimes,
    /// Every change is a request of its own, and answered by the server before the program goes on.
    pub sync_metadata: bool,
    /// The process's faults.
    pub faults: stdx::Faults,
}

#[cfg(test)]
impl Options {
    /// A small client's.
    pub(crate) fn of_tests() -> Options {
        Options {
            uuid: proto::ClientUuid(1),
            seed: 1,
            instance: Instance(1),
            fsname: "fs".into(),
            mgs: Vec::new(),
            description: String::new(),
            read_only: false,
            max_dirty: 1 << 20,
            max_cached: 1 << 20,
            max_read_ahead: 1 << 20,
            max_nodes: 100,
            soft: None,
            timeouts: Timeouts::fixed(core::time::Duration::from_secs(10)),
            always_ping: false,
            write_back_after: core::time::Duration::from_secs(5),
            max_rpcs_in_flight: 8,
            max_mod_rpcs_in_flight: 7,
            access_times: AccessTimes::default(),
            directory_access_times: AccessTimes::default(),
            sync_metadata: true,
            faults: stdx::Faults::none(),
        }
    }
}

/// What tells the devices of a mount from those of other mounts of its node: the end of their names.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Instance(pub u64);

impl core::fmt::Display for Instance {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A device of a mount, as `lctl dl` lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// `llite`, `lmv`, `lov`, `mgc`, `mdc`, `osc`.
    pub kind: &'static str,
    /// `demo-MDT0000-mdc-ffff9a3c0e4b8800`.
    pub name: String,
    /// The mount's identity.
    pub uuid: String,
    /// How much refers to it.
    pub references: u64,
}

/// When reading something moves its access time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AccessTimes {
    /// If it is not newer than the last change, or older than a day.
    #[default]
    Relative,
    /// Always.
    Strict,
    /// Never.
    Never,
}

/// Memory that a node takes, its locks and its name in a directory included, in bytes: about, and rather more.
pub const NODE_BYTES: usize = 2048;
/// Nodes that a client remembers if nothing else is said: a quarter of a GiB.
pub const MAX_NODES_DEFAULT: usize = (256 << 20) / NODE_BYTES;

/// What happened in the world.
#[derive(Debug)]
pub enum Event {
    /// A program wants something.
    Call { id: CallId, cred: Cred, call: Call },
    /// The program was interrupted: end the call with `EINTR` if it can still be ended without effect.
    Interrupt { id: CallId },
    /// The program that waits for the call is being killed: the call is answered `EINTR` at once. What it asked for may happen
    /// all the same.
    Abandon { id: CallId },
    /// A connection is there.
    Dialled { conn: ConnId },
    /// A connection could not be made.
    DialFailed { conn: ConnId, reason: String },
    /// A frame came in.
    Frame { conn: ConnId, frame: Frame },
    /// A connection is gone.
    Closed { conn: ConnId },
    /// The kernel has dropped what [`Effect::Invalidate`] with this token named. `known`: it had the node. If not, an answer that
    /// shows the node may still be on its way there, and the word to forget has overtaken it.
    Invalidated { token: u64, known: bool },
    /// The kernel was told what [`Effect::LetGo`] named.
    Asked,
    /// The wall clock: nanoseconds since 1970. Told before every batch of calls; times of changes come from it.
    WallClock(i64),
    /// Time passed.
    Tick,
    /// Unmount: interrupt calls and take no more, write everything back, close, give locks back, disconnect; then
    /// [`Effect::Unmounted`].
    Unmount,
}

/// What the machine wants done.
#[derive(Debug)]
pub enum Effect {
    /// Connect to the first of these that answers.
    Dial { conn: ConnId, nids: Vec<Nid> },
    /// Send a frame.
    Send { conn: ConnId, frame: Frame },
    /// Close a connection. No `Closed` follows.
    Hangup { conn: ConnId },
    /// A call is done.
    Answer { id: CallId, result: Result<Answer, Errno> },
    /// The kernel must forget something.
    Invalidate(Invalidation),
    /// The kernel should drop what it knows of these nodes, where no program uses it: [`Call::Forget`]s follow. Answered by
    /// [`Event::Asked`] when it was told. Like [`Invalidation::Entry`] this must not hold up anything else.
    LetGo(Vec<KernelNode>),
    /// The configuration is here and the root is known: calls can be made. Calls made before wait.
    Mounted,
    /// The mount is not complete after a while, or waits for something else than before: whose answers are missing, and why, in
    /// sentences for a person; first the one without which it cannot go on.
    MountWaits { on: Vec<String> },
    /// The mount cannot be: a sentence for a person.
    MountFailed { reason: String },
    /// See [`Event::Unmount`]. An error if not everything could be written back.
    Unmounted { result: Result<(), Errno> },
    /// How the job of a process is found out is set otherwise from here on.
    Jobs(JobIds),
    /// A line for the log.
    Log(LogLevel, String),
}

/// How the job of a process is found out (`jobid_var`, `jobid_name`), as in Lustre.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobIds {
    /// `disable`: there are none. `procname_uid`: program and user. `nodelocal`: as `name` says. Otherwise the environment variable
    /// of the process that has it; as `name` says if there is none.
    pub var: String,
    /// With `%e` program, `%u` user, `%g` group, `%p` process, `%h` host, `%H` host without domain, `%j` the job by `var`.
    pub name: String,
}

impl JobIds {
    /// No jobs.
    pub const DISABLED: &str = "disable";
    /// Most bytes of a variable's name.
    const VAR_MAX: usize = 63;

    /// Whether processes have jobs.
    pub fn is_on(&self) -> bool {
        self.var != JobIds::DISABLED
    }

    /// Whether a variable can have this name.
    pub fn var_is_valid(var: &str) -> bool {
        (1..=JobIds::VAR_MAX).contains(&var.len())
            && var.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    /// Whether jobs can be named so.
    pub fn name_is_valid(name: &str) -> bool {
        (1..=proto::msg::JOB_MAX).contains(&name.len()) && !name.contains(char::is_control)
    }
}

impl Default for JobIds {
    fn default() -> JobIds {
        JobIds { var: JobIds::DISABLED.to_owned(), name: "%e.%u".to_owned() }
    }
}

/// How much a log line matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// Data or work of programs is lost or in danger: somebody should look.
    Error,
    /// Unusual.
    Warn,
    /// Worth knowing.
    Info,
}

/// Names by which the kernel knows a node: directory, name.
pub type KernelNames = SmallVec<[(u64, Bytes); 1]>;

/// A node as the kernel knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelNode {
    /// Its number.
    pub ino: u64,
    /// Its names.
    pub names: KernelNames,
}

/// What the kernel must forget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Cached attributes, and the pages in the range (`length` 0: none; `u64::MAX`: to the end). The driver answers
    /// [`Event::Invalidated`] when the kernel has done it, if `token` is not 0. Dropping pages may bring WRITE requests
    /// for pages that a program changed through `mmap`: they arrive as calls and must be served meanwhile.
    Inode { token: u64, ino: u64, offset: u64, length: u64 },
    /// A cached name; answered like `Inode`. The kernel takes the directory's lock for it, which the thread of a call that
    /// waits here may hold: so it must not hold up any other invalidation.
    Entry { token: u64, parent: u64, name: Bytes },
}

/// Attributes as a program sees them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Nanoseconds since 1970.
    pub atime_ns: i64,
    /// Nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Nanoseconds since 1970.
    pub btime_ns: i64,
    /// The kernel may keep these attributes (a lock covers them and will be called back).
    pub cacheable: bool,
    /// The kernel may keep the name that led here.
    pub entry_cacheable: bool,
}

/// Fields of a setattr; `None` leaves them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetStat {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// A time, or now.
    pub atime: Option<SetTime>,
    /// A time, or now.
    pub mtime: Option<SetTime>,
    /// Through this open file (`ftruncate`).
    pub fh: Option<FileHandle>,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The moment of the call.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// A record lock as `fcntl` and `flock` have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLock {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` is the end.
    pub end: u64,
    /// What: shared, exclusive or none.
    pub kind: RecordLockKind,
    /// Process.
    pub pid: u32,
}

/// Kinds of a record lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordLockKind {
    /// `F_RDLCK`.
    Shared,
    /// `F_WRLCK`.
    Exclusive,
    /// `F_UNLCK`.
    Unlock,
}

/// Linux `lseek` beyond the simple ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// What a program wants. Names are bytes, checked here (length, NUL, slash).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Name to node. Counts one reference of the kernel to the node.
    Lookup { parent: u64, name: Bytes },
    /// The kernel drops references.
    Forget { ino: u64, count: u64 },
    /// Attributes.
    Getattr { ino: u64, fh: Option<FileHandle> },
    /// Attributes of the mount's root. umount(8) asks for them: after a while they are answered as they were last.
    RootAttr { ino: u64 },
    /// Change attributes.
    Setattr { ino: u64, set: SetStat },
    /// Target of a symbolic link.
    Readlink { ino: u64 },
    /// Device, pipe, socket, or an empty regular file.
    Mknod { parent: u64, name: Bytes, mode: u32, rdev: u64 },
    /// Directory.
    Mkdir { parent: u64, name: Bytes, mode: u32 },
    /// Symbolic link.
    Symlink { parent: u64, name: Bytes, target: Bytes },
    /// Remove a name that is not a directory's.
    Unlink { parent: u64, name: Bytes },
    /// Remove an empty directory.
    Rmdir { parent: u64, name: Bytes },
    /// `renameat2`; flags NOREPLACE 1, EXCHANGE 2.
    Rename { parent: u64, name: Bytes, new_parent: u64, new_name: Bytes, flags: u32 },
    /// A further name.
    Link { ino: u64, new_parent: u64, new_name: Bytes },
    /// Open by node; `O_*` of x86-64.
    Open { ino: u64, flags: u32 },
    /// Create if need be, and open.
    Create { parent: u64, name: Bytes, mode: u32, flags: u32 },
    /// Read.
    Read { fh: FileHandle, offset: u64, length: u32 },
    /// Write. With `O_APPEND` in the open's flags the offset is ignored, unless `write_back`: a page that the kernel
    /// writes back from `mmap` goes where it says. `kill_priv`: the writer may not keep set-id bits on the file.
    Write { fh: FileHandle, ino: u64, offset: u64, data: Bytes, write_back: bool, kill_priv: bool },
    /// A descriptor was closed: POSIX locks of the owner go, errors known by now are told.
    Flush { fh: FileHandle, lock_owner: u64 },
    /// The last descriptor of an open is gone. Answered at once; the server hears of it later.
    Release { fh: FileHandle, flock_owner: Option<u64> },
    /// Make data (and attributes, unless `data_only`) durable.
    Fsync { fh: FileHandle, data_only: bool },
    /// Make everything of this client durable.
    Syncfs,
    /// Open a directory.
    Opendir { ino: u64 },
    /// Entries after `offset` (a cookie; 0 is the start) for at most `max_bytes` of the kernel's buffer. With `plus`,
    /// attributes too, each counting one reference like a lookup.
    Readdir { fh: FileHandle, offset: u64, max_bytes: u32, plus: bool },
    /// Close a directory.
    Releasedir { fh: FileHandle },
    /// Make a directory durable.
    Fsyncdir { fh: FileHandle },
    /// Space.
    Statfs { ino: u64 },
    /// Extended attribute; `XATTR_CREATE` 1, `XATTR_REPLACE` 2.
    Setxattr { ino: u64, name: Bytes, value: Bytes, flags: u32 },
    /// Value.
    Getxattr { ino: u64, name: Bytes },
    /// Names.
    Listxattr { ino: u64 },
    /// Remove.
    Removexattr { ino: u64, name: Bytes },
    /// `access(2)`; mask of R 4, W 2, X 1.
    Access { ino: u64, mask: u32 },
    /// `F_GETLK`.
    Getlk { fh: FileHandle, owner: u64, lock: RecordLock },
    /// `F_SETLK`, `F_SETLKW` (`wait`), or `flock`.
    Setlk { fh: FileHandle, owner: u64, lock: RecordLock, wait: bool, flock: bool },
    /// `fallocate(2)` with its mode.
    Fallocate { fh: FileHandle, mode: u32, offset: u64, length: u64 },
    /// `SEEK_DATA`, `SEEK_HOLE`.
    Lseek { fh: FileHandle, offset: u64, whence: Whence },
    /// `lfs path2fid`.
    PathToFid { ino: u64 },
    /// `lfs fid2path`.
    FidToPath { fid: Fid },
    /// `lfs getstripe`.
    GetLayout { ino: u64 },
    /// `lfs setstripe`: the wishes of `wish`; a list of targets in `osts`, a pool in `pool`. See [`proto::msg::SetlayoutOp`].
    SetLayout { ino: u64, wish: Layout },
    /// `lfs migrate`: the data moves to other objects, as the same wishes say; what they leave open stays as it is.
    Migrate { ino: u64, wish: Layout },
    /// `lfs df`: each target's name and space.
    TargetSpace,
    /// `lfs pool_list`: the pools that the configuration has.
    Pools,
    /// `lfs pool_list`: the object targets of one. `ENOENT`: there is no such pool.
    PoolMembers { pool: String },
}

/// What a call gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done, nothing to say.
    Done,
    /// A node: lookup, mkdir, mknod, symlink, link.
    Entry(Stat),
    /// Getattr, setattr.
    Attr(Stat),
    /// Open and opendir. `keep_cache`: pages that the kernel has are still good. `direct_io`: the kernel must not
    /// cache (O_DIRECT, O_APPEND). `no_flush`: FLUSH is not needed.
    Opened { fh: FileHandle, keep_cache: bool, direct_io: bool, no_flush: bool },
    /// Create.
    Created { stat: Stat, fh: FileHandle, direct_io: bool, no_flush: bool },
    /// Read, readlink, getxattr; listxattr with NUL after each name.
    Data(Bytes),
    /// Bytes written.
    Written(u32),
    /// Directory entries that fit, in order.
    Entries(Vec<DirectoryEntry>),
    /// Space.
    Space { block_size: u32, blocks: u64, free: u64, available: u64, files: u64, files_free: u64 },
    /// Getlk: who is in the way (`kind` Unlock: nobody).
    Lock(RecordLock),
    /// Lseek.
    Offset(u64),
    /// PathToFid.
    Fid(Fid),
    /// FidToPath.
    Paths(Vec<Bytes>),
    /// GetLayout: of a file its layout, of a directory its default; `None` if there is none.
    Layout(Option<Layout>),
    /// TargetSpace: name, total, free, available bytes, files, free files; `Err` if it does not answer.
    Targets(Vec<(String, Result<proto::msg::StatfsRep, Errno>)>),
    /// Pools: their names, sorted.
    Pools(Vec<String>),
    /// PoolMembers: indexes, ascending.
    Members(Vec<u32>),
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// Name.
    pub name: Bytes,
    /// Inode number.
    pub ino: u64,
    /// `DT_*`.
    pub kind: u32,
    /// Cookie to go on after this entry.
    pub offset: u64,
    /// With `plus`: always there except for `.` and `..` (not `cacheable` if no lock covers them).
    pub stat: Option<Stat>,
}
