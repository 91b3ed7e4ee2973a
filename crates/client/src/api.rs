//! The interface of the client machine: calls with POSIX semantics in, answers out.
//!
//! A driver (the FUSE host, the native library, the simulator) calls [`crate::Client::handle`] with each event, then
//! [`crate::Client::poll`] until it returns `None`, and [`crate::Client::handle`] with [`Event::Tick`] when
//! [`crate::Client::deadline`] has passed. Nodes are identified by inode number ([`proto::Fid::ino`]).

pub use rpc::at::Timeouts;
pub use rules::placement;
pub use rules::stripes::{STRIPES_MAX, STRIPES_PER_TARGET_MAX};

use bytes::Bytes;
use proto::msg::{Cred, DirDefault, Layout};
use proto::{Errno, Fid, Frame, Nid};
use smallvec::SmallVec;

/// In the number of a node: an alias, by which the kernel knows a directory that was reached by its FID. An alias is a node
/// of its own to the kernel, and is the same directory to programs.
pub const ALIAS: u64 = 1 << 62;

/// The number that programs see of a node.
pub fn object_number(node: u64) -> u64 {
    node & !ALIAS
}

/// A connection that the machine requested.
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
    /// Seed of random values: first xid, retry jitter.
    pub seed: u64,
    /// Suffix of the names of the mount's devices; random.
    pub instance: Instance,
    /// Name of the file system.
    pub fsname: String,
    /// Addresses of the MGS.
    pub mgs: Vec<Nid>,
    /// Name for status output.
    pub description: String,
    /// Refuse changes with `EROFS`.
    pub read_only: bool,
    /// Limit of dirty data in memory, over all files, in bytes.
    pub max_dirty: u64,
    /// Limit of clean data in memory, in bytes.
    pub max_cached: u64,
    /// Largest read-ahead of one file, in bytes.
    pub max_read_ahead: u64,
    /// Limit of cached nodes without open files; see [`NODE_BYTES`].
    pub max_nodes: usize,
    /// How long a server may be unreachable before calls fail with `EIO` (`-o soft`); `None`: calls wait forever.
    pub soft: Option<core::time::Duration>,
    /// How long a rename to another directory waits for a metadata target that is away; zero: without a limit.
    pub rename_wait: core::time::Duration,
    /// How long requests may take before the connection is suspected, and how often to ping.
    pub timeouts: Timeouts,
    /// Ping also servers that do not ask for it.
    pub always_ping: bool,
    /// How long data stays dirty at most before it is written.
    pub write_back_after: core::time::Duration,
    /// The administrator's limit of requests in flight per metadata target; it only bounds `max_mod_rpcs_in_flight`.
    pub max_rpcs_in_flight: u16,
    /// Changes in flight per metadata target, if the target allows that many. 0: one at a time, as in version 0.1.0.
    pub max_mod_rpcs_in_flight: u16,
    /// When reading a file updates its access time.
    pub access_times: AccessTimes,
    /// When reading a directory updates its access time.
    pub directory_access_times: AccessTimes,
    /// Every change is a request of its own, and the program waits for the server's answer.
    pub sync_metadata: bool,
    /// The fault injection of the process.
    pub faults: stdx::Faults,
}

#[cfg(test)]
impl Options {
    /// Those of a small client.
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
            rename_wait: core::time::Duration::from_secs(30),
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

/// Distinguishes the devices of a mount from those of other mounts of the same machine: the end of their names.
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
    /// Number of references.
    pub references: u64,
}

/// When reading updates the access time.
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

/// Memory that a node takes, including its locks and its name in a directory, in bytes: an upper estimate.
pub const NODE_BYTES: usize = 2048;
/// Default of [`Options::max_nodes`]: a quarter of a GiB.
pub const MAX_NODES_DEFAULT: usize = (256 << 20) / NODE_BYTES;

/// Something that the driver reports to the machine.
#[derive(Debug)]
pub enum Event {
    /// A program makes a call.
    Call { id: CallId, cred: Cred, call: Call },
    /// The program was interrupted: the call fails with `EINTR` if it can still end without effect.
    Interrupt { id: CallId },
    /// The program that waits for the call is being killed: the call is answered `EINTR` at once. It may take effect
    /// all the same.
    Abandon { id: CallId },
    /// A connection was established.
    Dialled { conn: ConnId },
    /// A connection could not be established.
    DialFailed { conn: ConnId, reason: String },
    /// A frame arrived.
    Frame { conn: ConnId, frame: Frame },
    /// A connection was closed.
    Closed { conn: ConnId },
    /// The kernel has processed the [`Effect::Invalidate`] with this token. `known`: it knew the node. If not, an
    /// answer with the node may still be on its way to the kernel, overtaken by the invalidation.
    Invalidated { token: u64, known: bool },
    /// The request of [`Effect::LetGo`] was passed on to the kernel.
    Asked,
    /// The wall clock, in nanoseconds since 1970. Sent before every batch of calls; times of changes come from it.
    WallClock(i64),
    /// A deadline has passed.
    Tick,
    /// Unmount: interrupt calls and accept no more, write everything back, close files, give locks back, disconnect;
    /// then [`Effect::Unmounted`].
    Unmount,
}

/// Something that the machine wants the driver to do.
#[derive(Debug)]
pub enum Effect {
    /// Connect to the first of these that answers.
    Dial { conn: ConnId, nids: Vec<Nid> },
    /// Send a frame.
    Send { conn: ConnId, frame: Frame },
    /// Close a connection. No `Closed` follows.
    Hangup { conn: ConnId },
    /// A call has ended.
    Answer { id: CallId, result: Result<Answer, Errno> },
    /// The kernel must drop something.
    Invalidate(Invalidation),
    /// The kernel should forget these nodes, except those that programs use: [`Call::Forget`]s follow. Answered by
    /// [`Event::Asked`] once it was passed on. Like [`Invalidation::Entry`] this must not delay anything else.
    LetGo(Vec<KernelNode>),
    /// The mount is complete: the configuration was fetched and the root is known. Earlier calls have waited for it.
    Mounted,
    /// The mount has not completed for a while, or now waits for something else: which targets do not answer, and why,
    /// in sentences for a person; the one that blocks everything comes first.
    MountWaits { on: Vec<String> },
    /// The mount failed: a sentence for a person.
    MountFailed { reason: String },
    /// The unmount has ended, see [`Event::Unmount`]. An error if not everything could be written back.
    Unmounted { result: Result<(), Errno> },
    /// The way to determine a process's job has changed.
    Jobs(JobIds),
    /// A line for the log.
    Log(LogLevel, String),
}

/// How the job of a process is determined (`jobid_var`, `jobid_name`), as in Lustre.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobIds {
    /// `disable`: no jobs. `procname_uid`: program and user. `nodelocal`: the pattern `name`. Otherwise an environment
    /// variable of the process; the pattern `name` if the process lacks it.
    pub var: String,
    /// A pattern with `%e` program, `%u` user, `%g` group, `%p` process, `%h` host, `%H` host without domain, `%j` the
    /// job by `var`.
    pub name: String,
}

impl JobIds {
    /// No jobs.
    pub const DISABLED: &str = "disable";
    /// Longest name of a variable, in bytes.
    const VAR_MAX: usize = 63;

    /// Whether processes have jobs.
    pub fn is_on(&self) -> bool {
        self.var != JobIds::DISABLED
    }

    /// Whether this is a valid name of a variable.
    pub fn var_is_valid(var: &str) -> bool {
        (1..=JobIds::VAR_MAX).contains(&var.len())
            && var.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    /// Whether this is a valid pattern.
    pub fn name_is_valid(name: &str) -> bool {
        (1..=proto::msg::JOB_MAX).contains(&name.len()) && !name.contains(char::is_control)
    }
}

impl Default for JobIds {
    fn default() -> JobIds {
        JobIds { var: JobIds::DISABLED.to_owned(), name: "%e.%u".to_owned() }
    }
}

/// The severity of a log line.
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
    /// Its inode number.
    pub ino: u64,
    /// Its names.
    pub names: KernelNames,
}

/// What the kernel must drop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Cached attributes, and the pages in the range (`length` 0: none; `u64::MAX`: to the end). The driver answers
    /// with [`Event::Invalidated`] when the kernel is done, if `token` is not 0. Dropping pages may cause WRITE
    /// requests for pages that a program changed through `mmap`: they arrive as calls and must be served meanwhile.
    Inode { token: u64, ino: u64, offset: u64, length: u64 },
    /// A cached name; answered like `Inode`. The kernel takes the directory's lock for it, which the thread of a
    /// waiting call may hold: so it must not delay any other invalidation.
    Entry { token: u64, parent: u64, name: Bytes },
}

/// Attributes as a program sees them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// The node: its inode number, or an alias ([`ALIAS`]).
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
    /// The kernel may keep the name that led to the node.
    pub entry_cacheable: bool,
    /// Of a striped directory with a stripe whose metadata target is away: its part of link count and times is what was last
    /// known.
    pub is_partial: bool,
}

/// Fields of a setattr; `None` leaves a field unchanged.
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
    /// The open file of an `ftruncate`.
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

/// A record lock of `fcntl` or `flock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLock {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` is the end.
    pub end: u64,
    /// Shared, exclusive or none.
    pub kind: RecordLockKind,
    /// Process ID.
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

/// The Linux-specific modes of `lseek`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// A call of a program. Names are bytes, checked by the machine (length, NUL, slash).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Looks a name up. Counts one reference of the kernel to the node.
    Lookup { parent: u64, name: Bytes },
    /// The kernel drops references.
    Forget { ino: u64, count: u64 },
    /// Attributes.
    Getattr { ino: u64, fh: Option<FileHandle> },
    /// Attributes of the mount's root. umount(8) requests them: after a while they are answered from the cache.
    RootAttr { ino: u64 },
    /// Change attributes.
    Setattr { ino: u64, set: SetStat },
    /// Target of a symbolic link.
    Readlink { ino: u64 },
    /// Device, pipe, socket, or an empty regular file.
    Mknod { parent: u64, name: Bytes, mode: u32, rdev: u64 },
    /// Directory.
    Mkdir { parent: u64, name: Bytes, mode: u32 },
    /// Directory on chosen metadata targets, for `lfs mkdir`. Unlike after `Mkdir`, the kernel does not know the new node.
    /// `ENODEV`: there is no such target. `EOPNOTSUPP`: a server's version does not support it.
    MkdirOn { parent: u64, name: Bytes, mode: u32, wish: NewDir },
    /// Removes a name that leads to another metadata target, and leaves its object alone, for `lfs rm_entry`. The kernel is
    /// told to forget the name. `EINVAL`: the object is on the same target. `EOPNOTSUPP`: the server's version does not
    /// support it.
    RemoveEntry { parent: u64, name: Bytes },
    /// Symbolic link.
    Symlink { parent: u64, name: Bytes, target: Bytes },
    /// Removes a name of a non-directory.
    Unlink { parent: u64, name: Bytes },
    /// Removes an empty directory.
    Rmdir { parent: u64, name: Bytes },
    /// `renameat2`; flags NOREPLACE 1, EXCHANGE 2.
    Rename { parent: u64, name: Bytes, new_parent: u64, new_name: Bytes, flags: u32 },
    /// Adds a name.
    Link { ino: u64, new_parent: u64, new_name: Bytes },
    /// Open by node; `O_*` of x86-64.
    Open { ino: u64, flags: u32 },
    /// Creates the file if it does not exist, and opens it.
    Create { parent: u64, name: Bytes, mode: u32, flags: u32 },
    /// Read.
    Read { fh: FileHandle, offset: u64, length: u32 },
    /// Write. With `O_APPEND` in the open's flags the offset is ignored, unless `write_back`: a page that the kernel
    /// writes back from `mmap` goes where it says. `kill_priv`: the writer may not keep set-id bits on the file.
    Write { fh: FileHandle, ino: u64, offset: u64, data: Bytes, write_back: bool, kill_priv: bool },
    /// A descriptor was closed: POSIX locks of the owner are released, known errors are reported.
    Flush { fh: FileHandle, lock_owner: u64 },
    /// The last descriptor of an open file description was closed. Answered at once; the close is sent to the server
    /// later.
    Release { fh: FileHandle, flock_owner: Option<u64> },
    /// Make data and attributes durable. `fdatasync` does the same, as in Lustre: the size, the layout and the name that the data
    /// needs are the metadata target's.
    Fsync { fh: FileHandle },
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
    /// `lfs getdirstripe`: the index of the metadata target on which an object lies.
    MdtIndex { ino: u64 },
    /// The layout of a directory, for `lfs getdirstripe`. `ENOTDIR` for anything else.
    GetDirLayout { ino: u64 },
    /// `lfs setdirstripe` of a directory that exists: gives it other stripes. Its names move to them after the answer. `EPERM`: it is
    /// not allowed. `EBUSY`: the names still move after an earlier change.
    SetDirLayout { ino: u64, wish: DirStripes },
    /// The default layout of a directory for new directories, for `lfs getdirstripe -D`. `ENOTDIR` for anything else.
    GetDirDefault { ino: u64 },
    /// `lfs setdirstripe -D`: sets the default layout of a directory for new directories, or removes it. `ENODEV`: a target that
    /// it names is not there. `EOPNOTSUPP`: a server's version does not support it.
    SetDirDefault { ino: u64, default: Option<Box<DirDefault>> },
    /// `lfs getstripe`.
    GetLayout { ino: u64 },
    /// `lfs setstripe`: the wanted layout; a list of targets in `osts`, a pool in `pool`. See
    /// [`proto::msg::SetlayoutOp`].
    SetLayout { ino: u64, wish: Layout },
    /// `lfs migrate`: moves the data to objects of the wanted layout; unspecified fields stay as they are.
    Migrate { ino: u64, wish: Layout },
    /// `lfs df`: each target's name and space.
    TargetSpace,
    /// `lfs pool_list`: the pools of the configuration.
    Pools,
    /// `lfs pool_list`: the object targets of a pool. `ENOENT`: there is no such pool.
    PoolMembers { pool: String },
}

/// The result of a successful call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Success without a result.
    Done,
    /// A node: lookup, mkdir, mknod, symlink, link.
    Entry(Stat),
    /// Getattr, setattr.
    Attr(Stat),
    /// Open and opendir. `keep_cache`: the kernel may keep its pages. `direct_io`: the kernel must not cache (O_DIRECT,
    /// O_APPEND). `no_flush`: FLUSH is not needed.
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
    /// Getlk: the conflicting lock (`kind` Unlock: there is none).
    Lock(RecordLock),
    /// Lseek.
    Offset(u64),
    /// PathToFid; the new directory of MkdirOn.
    Fid(Fid),
    /// MdtIndex.
    Index(u32),
    /// FidToPath.
    Paths(Vec<Bytes>),
    /// GetDirLayout: the layout of a directory; `None` if it is not striped.
    DirLayout(Option<Box<proto::msg::Lmv>>),
    /// GetDirDefault: `None` if there is no default.
    DirDefault(Option<Box<DirDefault>>),
    /// GetLayout: the layout of a file or the default of a directory; `None` if there is none.
    Layout(Option<Layout>),
    /// TargetSpace: name, total, free, available bytes, files, free files; `Err` if the target does not answer.
    Targets(Vec<(String, Result<proto::msg::StatfsRep, Errno>)>),
    /// Pools: their names, sorted.
    Pools(Vec<String>),
    /// PoolMembers: indexes, ascending.
    Members(Vec<u32>),
}

/// Where a new directory shall lie.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NewDir {
    /// Indexes of the metadata targets of its stripes; the first has the directory itself. One: it is not striped. 1 to 2000.
    pub mdts: Vec<u32>,
    /// The function that assigns names to stripes, a [`proto::msg::DirHash`].
    pub hash: i32,
}

/// The stripes that a directory gets.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DirStripes {
    /// How many, the directory itself included. 1: it is not striped then.
    pub count: u32,
    /// Indexes of the metadata targets of those that it has more than before.
    pub added: Vec<u32>,
    /// The function that assigns names to stripes, a [`proto::msg::DirHash`]; 0: as before.
    pub hash: i32,
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
    /// Cookie to continue after this entry.
    pub offset: u64,
    /// With `plus`: present except for `.` and `..` (not `cacheable` if no lock covers them).
    pub stat: Option<Stat>,
}
