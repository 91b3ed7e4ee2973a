//! What a kind of target implements: its operations, nothing else.
//!
//! # The rules of an attempt
//! 1. Check first, write last. An attempt that returns [`Stop::Wait`] or [`Stop::Errno`] has changed nothing: its writes
//!    to the store are taken back, what it spawned or noted is forgotten.
//! 2. [`Stop::Wait`] comes only out of a [`Cx`] method, with `?`: that method has noted what is missing, and the attempt
//!    runs again from the start when it is there. What was loaded, read or answered for it is remembered until then.
//! 3. `Ok` is final: the machine never refuses a change after it. So memory beside the store (open handles) may be changed
//!    in `attempt` itself, as the very last step, after every call that has a `?`.
//! 4. To gather needs, call several `Cx` methods before the first `?`; the attempt then waits once for all of them.
//!
//! # Slots, transnos and what a replay is
//! A request with a tag that returns `Ok` gets a transno and a reply record; without a tag it gets a transno if it wrote to
//! the store or asked for [`Cx::transno`]. A replay ([`Cx::is_replay`]) keeps its own transno. Replays run in the order of
//! their transnos over all clients, before anything else; locks are never granted in a replay (the client replays its locks
//! on its own), and [`Cx::revoke`] finds none.

use core::any::Any;
use core::fmt;

use bytes::Bytes;
use dlm::ExportId;
use prost::Message;
use proto::msg::{ConnectRep, ConnectReq};
use proto::{Errno, Fid, Frame, Opcode, TargetKind, TargetName, Transno, Xid};
use store::Miss;

use crate::Cx;

/// Why an attempt ended without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Answer this error. Nothing was changed.
    Errno(Errno),
    /// Something is missing; it was asked for. The attempt runs again.
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
    /// Who sent it.
    pub export: ExportId,
    /// What it asks for.
    pub opcode: Opcode,
    /// Header, body and bulk as they came.
    pub frame: Frame,
}

impl Request {
    /// The body; bytes that are no such message are `EPROTO`.
    pub fn decode<M: Message + Default>(&self) -> Result<M, Stop> {
        self.frame.decode().map_err(|_| Stop::Errno(Errno::EPROTO))
    }

    /// Its identity.
    pub fn xid(&self) -> Xid {
        self.frame.header.xid
    }

    /// The bytes behind the body.
    pub fn bulk(&self) -> &Bytes {
        &self.frame.bulk
    }
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// 0, or positive where an operation says so. Errors are [`Stop::Errno`].
    pub status: i32,
    /// The body, encoded.
    pub body: Bytes,
    /// Bytes behind it.
    pub bulk: Bytes,
    /// What [`Service::reconstruct`] is given if this reply is lost together with the target's memory; goes into the
    /// reply record of a request with a tag. An open's disposition, the mode of an object that was changed.
    pub record: u64,
}

impl Reply {
    /// Success, and no more to say.
    pub fn empty() -> Reply {
        Reply::default()
    }

    /// Success with a body.
    pub fn new(body: &impl Message) -> Reply {
        Reply { body: body.encode_to_vec().into(), ..Reply::default() }
    }

    /// With further fields of its body. `more` is of the same type, and has those that the body has not.
    pub fn and(self, more: &impl Message) -> Reply {
        let body = [&self.body[..], &more.encode_to_vec()].concat().into();
        Reply { body, ..self }
    }

    /// With bytes behind the body.
    pub fn with_bulk(self, bulk: Bytes) -> Reply {
        Reply { bulk, ..self }
    }

    /// With a word for the reply record.
    pub fn with_record(self, record: u64) -> Reply {
        Reply { record, ..self }
    }
}

/// What is known of a request that was executed, whose reply was lost, and with it the target's memory of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// Its transno.
    pub transno: Transno,
    /// Its status.
    pub status: i32,
    /// [`Reply::record`] of the first answer.
    pub record: u64,
}

/// Background work of a service: any value, kept until it is done.
pub struct Task {
    name: &'static str,
    what: Box<dyn Any>,
}

impl Task {
    /// A task. `name` is for messages.
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

/// Something that a change touched and another client's change may depend on: an object, or a name in a directory.
/// The parent's times and link count are none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShareKey(pub u64);

impl ShareKey {
    /// An object.
    pub fn object(fid: Fid) -> ShareKey {
        ShareKey(hash(&[&fid.to_key()]))
    }

    /// That a directory has lost a name: who removes the directory hangs on that, creates and other removals do not.
    pub fn emptied(dir: Fid) -> ShareKey {
        // No name is a slash.
        ShareKey::name(dir, b"/")
    }

    /// Where the data of a file lies: whoever is told so writes there.
    pub fn layout(file: Fid) -> ShareKey {
        // Nor a zero.
        ShareKey::name(file, b"\0")
    }

    /// A name in a directory, whether there is an entry or not.
    pub fn name(parent: Fid, name: &[u8]) -> ShareKey {
        ShareKey(hash(&[&parent.to_key(), name]))
    }
}

/// Two keys with the same hash make a reply wait for a commit that it need not wait for; nothing worse.
fn hash(parts: &[&[u8]]) -> u64 {
    use core::hash::{BuildHasher, Hasher};
    let mut hasher = stdx::KeyedHash::default().build_hasher();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

/// Records that most changes can write at most.
pub const CHANGE_RECORDS: usize = 24;

/// Operations of a target. Everything else (connections, exactly-once, recovery, locks, commits) is the machine's.
pub trait Service {
    /// What it holds.
    fn kind(&self) -> TargetKind;

    /// Work before the target serves: check and load what must be in memory. An attempt; an error stops the target.
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        let _ = cx;
        Ok(())
    }

    /// One attempt of a request of `cx.export()`.
    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop>;

    /// The attempt was accepted: its transno and group stand. Called after each `attempt` that returned `Ok`, replays
    /// included; the reply has not left yet and may be added to, but nothing may fail here and `cx` may not write.
    fn accepted(&mut self, cx: &mut Cx<'_>, request: &Request, reply: &mut Reply) {
        let _ = (cx, request, reply);
    }

    /// The machine refused the request because there is no room for changes; it may have been attempted before. What an
    /// attempt noted in memory about work under way is to be forgotten.
    fn refused(&mut self, request: &Request) {
        let _ = request;
    }

    /// The request was executed and its change is durable, but the target restarted and the reply is lost: answer it
    /// again without doing anything again. An attempt that writes nothing. (A lost reply of a target that did not restart
    /// is sent again as it was; nobody asks the service.)
    fn reconstruct(&mut self, cx: &mut Cx<'_>, request: &Request, executed: &Executed) -> Result<Reply, Stop> {
        let _ = (cx, request);
        Ok(Reply { status: executed.status, ..Reply::default() })
    }

    /// Whether a request changes what others see, for sessions that may only read: they are refused it with `EROFS`.
    fn changes(&self, request: &Request) -> bool {
        request.opcode.traits().for_writers
    }

    /// Whether a replay whose change is durable must still run, because it made something in memory: an open. It runs with
    /// [`Cx::is_committed_replay`] and what it writes is dropped. Others are answered without running.
    fn replays_committed(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// A replay waits for its turn: asks for the records that executing it will need, so that they are in memory by then. An
    /// attempt that writes nothing; what it finds may be out of date when the turn comes and decides nothing. Replays are
    /// executed one after another: what is not asked for here is waited for by all that come after.
    fn prefetch(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
        let _ = (cx, request);
        Ok(())
    }

    /// How many records one execution of the request writes at most: space for so many is reserved before it runs.
    fn records_max(&self, request: &Request) -> usize {
        let _ = request;
        CHANGE_RECORDS
    }

    /// Bytes of the store that clients were promised and have not used: other changes leave them alone.
    fn promised(&self) -> u64 {
        0
    }

    /// Whether the request may use the space that is kept so that removals still work when the store is full.
    fn may_use_reserve(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// One attempt of background work. An error ends it with a line in the log.
    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        let _ = (cx, task);
        Ok(())
    }

    /// A client is about to be told that it is connected: limits and grants go into the reply.
    fn connected(&mut self, cx: &mut Cx<'_>, export: ExportId, request: &ConnectReq, reply: &mut ConnectRep) {
        let _ = (cx, export, request, reply);
    }

    /// An export is gone: it disconnected, was evicted, or (lightweight) lost its connection for good. Not an attempt: spawn
    /// tasks, for example to close its open files.
    fn export_gone(&mut self, cx: &mut Cx<'_>, export: ExportId) {
        let _ = (cx, export);
    }

    /// Recovery is over, or none was needed: all opens are replayed. Not an attempt: spawn tasks.
    fn recovered(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The configuration has changed ([`Cx::config`]). Not an attempt: spawn tasks.
    fn configured(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The connection to another target that the service asks is lost. Its requests go on when it is back. Not an attempt.
    fn upstream_away(&mut self, cx: &mut Cx<'_>, target: &TargetName) {
        let _ = (cx, target);
    }

    /// Everything up to `group` is durable. Not an attempt: spawn tasks.
    fn durable(&mut self, cx: &mut Cx<'_>, group: u64) {
        let _ = (cx, group);
    }

    /// Parameters of the service with their values, by full path (`mdt.adamant-MDT0000.dom_size`). `name` is the target's.
    fn params(&self, name: &str) -> Vec<(String, String)> {
        let _ = name;
        Vec::new()
    }

    /// Sets a parameter by its full path. `None`: not one of the service's.
    fn set_param(&mut self, cx: &mut Cx<'_>, path: &str, value: &str) -> Option<Result<(), Errno>> {
        let _ = (cx, path, value);
        None
    }
}
