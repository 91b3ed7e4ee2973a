//! The interface of a target machine: its events and effects.
//!
//! A driver (the `host`, or the simulator) owns sockets, timers, the store's engine and the data files. It reports
//! events to [`crate::Target::handle`], then calls [`crate::Target::poll`] until it returns `None`, and reports
//! [`Event::Tick`] when [`crate::Target::deadline`] has passed. There is no other interface. Events that it reports before it
//! calls `poll` share a group and the messages to other targets.

use bytes::Bytes;
use proto::{Frame, Nid, TargetName};
use store::{EngineError, Group, Load, LoadDone, Space};

use crate::stopped::StopReason;

/// A connection. The driver numbers accepted ones, the machine those that it dials (see [`ConnId::DIALLED`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

impl ConnId {
    /// Bit that is set in the numbers of connections dialled by the machine.
    pub const DIALLED: u64 = 1 << 63;
}

/// The peer of an accepted connection, as the transport knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// Address for messages, `127.0.0.1:40312` or `unix:pid 4711`.
    pub address: String,
    /// Unix sockets: user ID of the peer.
    pub uid: Option<u32>,
    /// The peer is on this machine.
    pub local: bool,
    /// The peer is on this machine and runs as root or as this server's user, so it may be another target.
    pub ours: bool,
}

/// An operation on the data files of an object target, which are separate from the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataOp {
    /// Read at most `length` bytes; fewer at the end of the file, none if there is no file.
    Read { file: u64, offset: u64, length: u32 },
    /// Write; creates the file if necessary.
    Write { file: u64, offset: u64, data: Bytes },
    /// Set the length; a missing file is no error.
    Truncate { file: u64, size: u64 },
    /// Punch a hole, zero a range or allocate it; the file may grow.
    Fallocate { file: u64, offset: u64, length: u64, kind: proto::msg::PunchKind, keep_size: bool },
    /// `SEEK_DATA` / `SEEK_HOLE`.
    Seek { file: u64, offset: u64, hole: bool },
    /// Make these files durable: data, length and name. For a missing file this makes its removal durable.
    Sync { files: Vec<u64> },
    /// Remove a file; a missing file is no error.
    Remove { file: u64 },
    /// Length and space of a file; `None` if it is missing.
    Stat { file: u64 },
    /// The numbers of existing files, ascending from `from`, at most `limit` of them. Requested once at start, with a
    /// `from` above nearly all of them; the layout of files makes that cheap.
    List { from: u64, limit: u32 },
}

impl DataOp {
    /// The files that the operation is on.
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

/// Result of a [`DataOp`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataResult {
    /// Read.
    Data(Bytes),
    /// Seek: the offset; `None` if there is no data or hole after the given one.
    Offset(Option<u64>),
    /// Write, Truncate, Fallocate, Stat: the resulting length in bytes and space in 512-byte blocks; `None` if there is
    /// no file.
    Size(Option<(u64, u64)>),
    /// Sync, Remove.
    Done,
    /// List.
    Files(Vec<u64>),
    /// The operation failed: `ENOSPC`, `EIO`, `EROFS`.
    Failed(proto::Errno),
}

/// Space on the medium of the data files, in bytes. It may differ from the store's medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataSpace {
    /// Capacity.
    pub total: u64,
    /// Space that can be written, not counting what the store on the same medium keeps in reserve for removals.
    pub free: u64,
    /// Identifier of the medium: the same for all targets on it and different for all others. 0: not known.
    pub disk: u64,
}

/// Identifier of a data operation in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataId(pub u64);

/// Events that the driver reports to the machine.
#[derive(Debug)]
pub enum Event {
    /// A peer connected.
    Accepted { conn: ConnId, peer: Peer },
    /// A dialled connection is established.
    Dialled { conn: ConnId },
    /// A dial failed.
    DialFailed { conn: ConnId, reason: String },
    /// A frame arrived.
    Frame { conn: ConnId, frame: Frame },
    /// A connection was closed; no more events of it follow.
    Closed { conn: ConnId },
    /// A load from the store is complete.
    Loaded(LoadDone),
    /// A group is durable.
    Committed { group: u64 },
    /// The medium had no space for a group, and nothing of it was written: the target retries.
    CommitDelayed { group: u64, reason: EngineError },
    /// A group could not be written: the target stops.
    CommitFailed { group: u64, reason: EngineError },
    /// A data operation is complete.
    DataDone { id: DataId, result: DataResult },
    /// A check of the medium found damage, described by a sentence.
    DamageFound(String),
    /// The engine's space, reported at start and about once a second.
    Space(Space),
    /// The space for data files of an object target, reported at start and about once a second.
    DataSpace(DataSpace),
    /// The wall clock in nanoseconds since 1970, reported at start and about once a second.
    WallClock(i64),
    /// Time passed.
    Tick,
}

/// Effects that the driver carries out.
#[derive(Debug)]
pub enum Effect {
    /// Send a frame. Drop it if the connection is closed.
    Send { conn: ConnId, frame: Frame },
    /// Close a connection. `Closed` follows.
    Hangup { conn: ConnId },
    /// Connect to the first address that answers.
    Dial { conn: ConnId, nids: Vec<Nid> },
    /// Load from the store, on a thread of the engine ([`Load::run`]).
    Load(Load),
    /// Write a group, in order, on a thread of the engine ([`Group::run`]).
    Commit(Group),
    /// Run a data operation on a thread of the engine. Operations on one file keep their order.
    Data { id: DataId, op: DataOp },
    /// The target is in service: start-up is complete. Recovery of clients may continue.
    Serving { name: TargetName },
    /// A line for the log.
    Log(LogLevel, String),
    /// The target stops. Without a reason, it was asked to ([`crate::Target::shutdown`]) and everything is durable.
    /// Otherwise it cannot write, was refused by the MGS, or found a bug. The driver ends the target; later effects do not
    /// matter.
    Stop { reason: Option<StopReason> },
}

/// Severity of a log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// Needs attention.
    Error,
    /// Unusual.
    Warn,
    /// Worth knowing.
    Info,
}
