//! The seam of a target machine: what comes in, what goes out.
//!
//! A driver (the `host`, or the simulator) owns sockets, timers, the store's engine and the data files. It calls
//! [`crate::Target::handle`] with what happened, then [`crate::Target::poll`] until it gives `None`, and again when
//! [`crate::Target::deadline`] has passed (with [`Event::Tick`]). There is no fourth door.

use bytes::Bytes;
use proto::{Frame, Nid, TargetName};
use store::{Group, Load, LoadDone, Space};

/// A connection, accepted or dialled: numbered by the driver if accepted, by the machine if dialled (see [`ConnId::DIALLED`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

impl ConnId {
    /// Bit that is set in the numbers of connections that the machine asked for.
    pub const DIALLED: u64 = 1 << 63;
}

/// Who is at the other end of an accepted connection, as the transport knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// Address for messages, `127.0.0.1:40312` or `unix:pid 4711`.
    pub address: String,
    /// Unix sockets: the peer's user.
    pub uid: Option<u32>,
    /// On this machine.
    pub local: bool,
    /// On this machine, and root's or the user's as whom this server runs: it may be another target.
    pub ours: bool,
}

/// A data operation of an object target, beside the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataOp {
    /// Read at most `length` bytes; shorter at the end of the file, empty if there is no file.
    Read { file: u64, offset: u64, length: u32 },
    /// Write; creates the file if need be.
    Write { file: u64, offset: u64, data: Bytes },
    /// Set the length; no file is no error.
    Truncate { file: u64, size: u64 },
    /// Punch a hole, zero a range or allocate it; the length of the file may grow.
    Fallocate { file: u64, offset: u64, length: u64, kind: proto::msg::PunchKind, keep_size: bool },
    /// `SEEK_DATA` / `SEEK_HOLE`.
    Seek { file: u64, offset: u64, hole: bool },
    /// Make these files durable: their bytes, their length, their names. Of a file that is not there: that it is not
    /// there, so a removal before this is durable too.
    Sync { files: Vec<u64> },
    /// Remove a file; none is no error.
    Remove { file: u64 },
    /// Length and space of a file, `None` if there is none.
    Stat { file: u64 },
    /// The numbers of the files that there are, from `from` on, ascending, at most `limit` of them. Asked once at start,
    /// with a `from` beyond nearly all of them: files are laid out so that this does not look at every file.
    List { from: u64, limit: u32 },
}

impl DataOp {
    /// The files that it names.
    pub fn files(&self) -> &[u64] {
        match self {
            DataOp::Read { file, .. }
            | DataOp::Write { file, .. }
            | DataOp::Truncate { file, .. }
            | DataOp::Fallocate { file, .. }
            | DataOp::Seek { file, .. }
            | DataOp::Remove { file }
            | DataOp::Stat { file } => core::slice::from_ref(file),
            DataOp::Sync { files } => files,
            DataOp::List { .. } => &[],
        }
    }
}

/// What a [`DataOp`] gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataResult {
    /// Read.
    Data(Bytes),
    /// Seek: where, `None` if nothing follows. Others: done.
    Offset(Option<u64>),
    /// Write, Truncate, Fallocate, Stat: length in bytes and 512-byte blocks after it; `None` if there is no file.
    Size(Option<(u64, u64)>),
    /// Sync, Remove.
    Done,
    /// List.
    Files(Vec<u64>),
    /// It failed: `ENOSPC`, `EIO`, `EROFS`.
    Failed(proto::Errno),
}

/// Room on the medium of the data files, in bytes. It may be another one than the store's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataSpace {
    /// The whole.
    pub total: u64,
    /// What may be written. What the store of the same medium keeps for removals is already taken off.
    pub free: u64,
    /// Which medium it is: the same number for all targets on it, and no other one's anywhere. 0: not known.
    pub disk: u64,
}

/// Number of a data operation in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataId(pub u64);

/// What happened in the world.
#[derive(Debug)]
pub enum Event {
    /// A peer connected.
    Accepted { conn: ConnId, peer: Peer },
    /// A connection that the machine asked for is there.
    Dialled { conn: ConnId },
    /// A connection that the machine asked for could not be made.
    DialFailed { conn: ConnId, reason: String },
    /// A frame came in.
    Frame { conn: ConnId, frame: Frame },
    /// A connection is gone; nothing more will come from it.
    Closed { conn: ConnId },
    /// A load from the store is here.
    Loaded(LoadDone),
    /// A group is durable.
    Committed { group: u64 },
    /// The medium had no space for a group, and nothing of it was written: the target tries it again.
    CommitDelayed { group: u64, reason: String },
    /// A group could not be written: the target stops.
    CommitFailed { group: u64, reason: String },
    /// A data operation is done.
    DataDone { id: DataId, result: DataResult },
    /// A look at what lies on the medium found damage: a sentence.
    DamageFound(String),
    /// The engine's space, told at start and about once a second.
    Space(Space),
    /// The room for the data files of an object target, told at start and about once a second.
    DataSpace(DataSpace),
    /// The wall clock, told at start and about once a second: nanoseconds since 1970.
    WallClock(i64),
    /// Time passed.
    Tick,
}

/// What the machine wants done.
#[derive(Debug)]
pub enum Effect {
    /// Send a frame. To a connection that is gone: drop it.
    Send { conn: ConnId, frame: Frame },
    /// Close a connection. `Closed` follows.
    Hangup { conn: ConnId },
    /// Connect to the first of these addresses that answers.
    Dial { conn: ConnId, nids: Vec<Nid> },
    /// Load from the store, on a thread of the engine ([`Load::run`]).
    Load(Load),
    /// Write a group, in order, on a thread of the engine ([`Group::run`]).
    Commit(Group),
    /// Do a data operation, on a thread of the engine. Operations on one file keep their order.
    Data { id: DataId, op: DataOp },
    /// The target serves (start-up and recovery of what it needs are done; clients' recovery may go on).
    Serving { name: TargetName },
    /// A line for the log.
    Log(LogLevel, String),
    /// The target stops. With an empty reason it was asked to ([`crate::Target::shutdown`]) and everything is durable;
    /// otherwise the reason is a sentence for a person: it cannot write, was refused by the MGS, or found a bug. The
    /// driver ends it; nothing that comes after this matters.
    Stop { reason: String },
}

/// How much a log line matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// Somebody should look.
    Error,
    /// Unusual.
    Warn,
    /// Worth knowing.
    Info,
}
