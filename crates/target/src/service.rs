//! The interface that each kind of target implements: its operations.
//!
//! # The rules of an attempt
//! 1. Check first, write last. An attempt that returns [`Stop::Wait`] or [`Stop::Errno`] has changed nothing: its writes
//!    to the store are rolled back, and what it spawned or noted is dropped.
//! 2. [`Stop::Wait`] comes only from a [`Cx`] method, with `?`: that method has requested what is missing, and the attempt
//!    runs again from the start when it has arrived. What was loaded, read or answered is kept until then.
//! 3. `Ok` is final: the machine never refuses a change after it. So memory beside the store (open handles) may be changed
//!    in `attempt` itself, as the very last step, after every call that has a `?`.
//! 4. To gather needs, call several `Cx` methods before the first `?`; the attempt then waits once for all of them.
//!
//! # Slots, transnos and replays
//! A request with a tag that returns `Ok` gets a transno and a reply record. One without a tag gets a transno if it
//! wrote to the store or called [`Cx::transno`]. A replay ([`Cx::is_replay`]) keeps its transno. Replays run in the
//! order of their transnos over all clients, before anything else. No locks are granted in a replay, because the client
//! replays its locks separately, and [`Cx::revoke`] finds none to revoke.

use core::any::Any;
use core::fmt;

use bytes::Bytes;
use dlm::ExportId;
use prost::Message;
use proto::msg::{ConnectRep, ConnectReq, CrossObject, CrossPart};
use proto::{Errno, Fid, Frame, Opcode, TargetKind, TargetName, Transno, Xid};
use store::Miss;

use crate::Cx;
pub use crate::cross::keys::{Key as HeldKey, Mode as Hold};

/// Why an attempt ended without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Answer with this error. Nothing was changed.
    Errno(Errno),
    /// Something is missing and was requested. The attempt runs again when it has arrived.
    Wait,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

impl From<Miss> for Stop {
    fn from(_: Miss) -> Stop {
        Stop::Wait
    }
}

/// A request of an export.
#[derive(Clone, Debug)]
pub struct Request {
    /// Export that sent it.
    pub export: ExportId,
    /// Opcode.
    pub opcode: Opcode,
    /// Header, body and bulk as received.
    pub frame: Frame,
}

impl Request {
    /// Decodes the body. Errors: `EPROTO` if the bytes are not a valid message of this type.
    pub fn decode<M: Message + Default>(&self) -> Result<M, Stop> {
        self.frame.decode().map_err(|_| Stop::Errno(Errno::EPROTO))
    }

    /// Its xid.
    pub fn xid(&self) -> Xid {
        self.frame.header.xid
    }

    /// Its bulk data.
    pub fn bulk(&self) -> &Bytes {
        &self.frame.bulk
    }
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// 0, or a positive result where the operation defines one. Errors are [`Stop::Errno`].
    pub status: i32,
    /// The body, encoded.
    pub body: Bytes,
    /// Bulk data.
    pub bulk: Bytes,
    /// Data for [`Service::reconstruct`], stored in the reply record of a request with a tag: an open's disposition,
    /// the mode of a changed object.
    pub record: u64,
}

impl Reply {
    /// Success without a body.
    pub fn empty() -> Reply {
        Reply::default()
    }

    /// Success with a body.
    pub fn new(body: &impl Message) -> Reply {
        Reply { body: body.encode_to_vec().into(), ..Reply::default() }
    }

    /// Adds fields to the body. `more` is a message of the same type with fields that the body lacks.
    pub fn and(self, more: &impl Message) -> Reply {
        let body = [&self.body[..], &more.encode_to_vec()].concat().into();
        Reply { body, ..self }
    }

    /// Adds bulk data.
    pub fn with_bulk(self, bulk: Bytes) -> Reply {
        Reply { bulk, ..self }
    }

    /// Sets the data for the reply record.
    pub fn with_record(self, record: u64) -> Reply {
        Reply { record, ..self }
    }
}

/// What the reply record says of a request that was executed before the target restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// Its transno.
    pub transno: Transno,
    /// Its status.
    pub status: i32,
    /// [`Reply::record`] of the original reply.
    pub record: u64,
}

/// Background work of a service: any value, kept until the work is done.
pub struct Task {
    name: &'static str,
    what: Box<dyn Any>,
}

impl Task {
    /// Creates a task. `name` is for messages.
    pub fn new<T: Any>(name: &'static str, what: T) -> Task {
        Task { name, what: Box::new(what) }
    }

    /// The value, if it is a `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.what.downcast_ref()
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.name)
    }
}

/// Something that a change modified and that another client's change may depend on: an object, or a name in a
/// directory. The times and link count of the parent are not tracked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShareKey(pub u64);

impl ShareKey {
    /// An object.
    pub fn object(fid: Fid) -> ShareKey {
        ShareKey(hash(&[&fid.to_key()]))
    }

    /// The removal of a name from a directory. The removal of the directory depends on it; creates and other removals
    /// do not.
    pub fn emptied(dir: Fid) -> ShareKey {
        // No name contains a slash.
        ShareKey::name(dir, b"/")
    }

    /// The layout of a file: a client that learns it writes to its objects.
    pub fn layout(file: Fid) -> ShareKey {
        // Nor a NUL.
        ShareKey::name(file, b"\0")
    }

    /// A name in a directory, whether or not it has an entry.
    pub fn name(parent: Fid, name: &[u8]) -> ShareKey {
        ShareKey(hash(&[&parent.to_key(), name]))
    }
}

/// A collision makes a reply wait for a commit unnecessarily, and has no other effect.
fn hash(parts: &[&[u8]]) -> u64 {
    use core::hash::{BuildHasher, Hasher};
    let mut hasher = stdx::KeyedHash::default().build_hasher();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

/// Upper bound of the records that an ordinary change writes, or a part of one for five stripes of a directory.
pub const CHANGE_RECORDS: usize = 24;

/// What a request has a claim to when the store is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// It adds records, and is refused.
    Nothing,
    /// The space that is reserved for removals.
    Reserve,
    /// It is never refused: its client has answered it within what it was granted. When others have filled the disk so far that
    /// even the reserve is gone, its group waits for space.
    Answered,
}

/// What a target says of its part of another target's change.
#[derive(Clone, PartialEq, Debug)]
pub enum Vote {
    /// It can be carried out. The part's objects as they will be, for the reply to the client.
    Yes(Vec<CrossObject>),
    /// Something is not as the change takes it to be: the coordinator has to look again.
    Changed,
}

/// The operations of a target. Everything else (connections, exactly-once execution, recovery, locks, commits) is the
/// machine's task.
pub trait Service {
    /// The kind of target.
    fn kind(&self) -> TargetKind;

    /// Start-up work before the target serves: checks and loads what must be in memory. An attempt; an error stops the
    /// target.
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        let _ = cx;
        Ok(())
    }

    /// One attempt of a request of `cx.export()`.
    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop>;

    /// The attempt was accepted: its transno and group are final. Called after each `attempt` that returned `Ok`,
    /// replays included. The reply was not sent yet and may be extended, but nothing may fail here and `cx` may not
    /// write.
    fn accepted(&mut self, cx: &mut Cx<'_>, request: &Request, reply: &mut Reply) {
        let _ = (cx, request, reply);
    }

    /// The machine refused the request because there is no space for changes. It may have been attempted before; the
    /// service drops what the attempt noted in memory about work in progress.
    fn refused(&mut self, request: &Request) {
        let _ = request;
    }

    /// Reconstructs the reply to a request whose change is durable and whose reply was lost in a restart, without
    /// executing it again. An attempt that writes nothing. (Without a restart the machine resends the kept reply by
    /// itself.)
    fn reconstruct(&mut self, cx: &mut Cx<'_>, request: &Request, executed: &Executed) -> Result<Reply, Stop> {
        let _ = (cx, request);
        Ok(Reply { status: executed.status, ..Reply::default() })
    }

    /// What a part of a change over several targets reads or changes here: the keys that it holds from its check until it
    /// is applied, over restarts.
    fn keys(&self, part: &CrossPart) -> Vec<(HeldKey, Hold)> {
        let _ = part;
        Vec::new()
    }

    /// Checks a part of another target's change, and calls back all locks that conflict with it. An attempt that writes
    /// nothing.
    ///
    /// # Errors
    /// Those that the client is answered.
    fn prepare(&mut self, cx: &mut Cx<'_>, part: &CrossPart) -> Result<Vote, Stop> {
        let _ = (cx, part);
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Executes the first of these parts, which was checked before: nothing that it only reads is checked again, for it
    /// may have changed since. An attempt; an error stops the target. On the coordinator all parts follow, with the
    /// objects as participants have described them (unless there was a restart), and the reply is that to the client.
    fn apply(&mut self, cx: &mut Cx<'_>, parts: &[CrossPart], objects: Vec<CrossObject>) -> Result<Reply, Stop> {
        let _ = (cx, parts, objects);
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Whether a request changes what others see. If so, a read-only session is refused it with `EROFS`.
    fn changes(&self, request: &Request) -> bool {
        request.opcode.traits().for_writers
    }

    /// Whether a replay whose change is durable must still run, because it restores state in memory: an open. It runs
    /// with [`Cx::is_committed_replay`] and its writes are dropped. Others are answered without running.
    fn replays_committed(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// Loads the records that a queued replay will need, so that they are in memory when its turn comes. An attempt
    /// that writes nothing; what it finds may be outdated later and decides nothing. Replays are executed one after
    /// another, so each record that is missing here delays all later replays.
    fn prefetch(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
        let _ = (cx, request);
        Ok(())
    }

    /// Upper bound of the records that one execution of the request writes; space for them is reserved before it runs.
    fn records_max(&self, request: &Request) -> usize {
        let _ = request;
        CHANGE_RECORDS
    }

    /// Bytes of the store that are granted to clients and unused; other changes do not use them.
    fn promised(&self) -> u64 {
        0
    }

    /// What the request has a claim to when the store is full.
    fn claim(&self, request: &Request) -> Claim {
        let _ = request;
        Claim::Nothing
    }

    /// One attempt of background work. An error ends it, see [`Service::task_failed`].
    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        let _ = (cx, task);
        Ok(())
    }

    /// Background work has ended with an error. Not an attempt: spawn tasks. Returns whether that is dealt with; otherwise it is logged.
    fn task_failed(&mut self, cx: &mut Cx<'_>, task: &Task, errno: Errno) -> bool {
        let _ = (cx, task, errno);
        false
    }

    /// A client is about to get its connect reply: adds limits and grants to it.
    fn connected(&mut self, cx: &mut Cx<'_>, export: ExportId, request: &ConnectReq, reply: &mut ConnectRep) {
        let _ = (cx, export, request, reply);
    }

    /// An export has ended: it disconnected, was evicted, or (lightweight) lost its connection for good. Not an
    /// attempt: spawn tasks, for example to close its open files.
    fn export_gone(&mut self, cx: &mut Cx<'_>, export: ExportId) {
        let _ = (cx, export);
    }

    /// Recovery is over, or none was needed; all opens are replayed. Not an attempt: spawn tasks.
    fn recovered(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The configuration changed ([`Cx::config`]). Not an attempt: spawn tasks.
    fn configured(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The connection to another target that the service uses is lost. Its requests continue after a reconnect. Not an
    /// attempt.
    fn upstream_away(&mut self, cx: &mut Cx<'_>, target: &TargetName) {
        let _ = (cx, target);
    }

    /// All groups up to `group` are durable. Not an attempt: spawn tasks.
    fn durable(&mut self, cx: &mut Cx<'_>, group: u64) {
        let _ = (cx, group);
    }

    /// Parameters of the service with their values, by full path (`mdt.adamant-MDT0000.dom_size`). `name` is the
    /// target's name.
    fn params(&self, name: &str) -> Vec<(String, String)> {
        let _ = name;
        Vec::new()
    }

    /// Sets a parameter by its full path. `None` if the service has no such parameter, or it cannot be set.
    fn set_param(&mut self, cx: &mut Cx<'_>, path: &str, value: &str) -> Option<Result<(), Errno>> {
        let _ = (cx, path, value);
        None
    }
}
