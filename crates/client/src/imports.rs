//! The set of targets that the client talks to: for each an import (session) and the locks held there; and what happens
//! when a session is interrupted, replayed or lost.

use bytes::Bytes;
use dlm::client::{BlockingAction, LockCache, Settings};
use prost::Message;
use proto::msg::{
    BlCallback, CancelReq, GlCallback, GlReply, Layout, LockMode, LruLimit, ObjectRep, OpenOp, Reint, ReintReq,
    StatfsRep,
};
use proto::opcode::SlotClass;
use proto::{Errno, Frame, Nid, Opcode, Transno, Xid};
use rpc::client::{Config, Import, ImportEffect, ImportEvent, Outgoing, RequestId, State};
use rpc::{Link, Slot};
use smallvec::SmallVec;
use std::collections::VecDeque;
use stdx::{Instant, Map};

use crate::api::{ConnId, Effect, FileHandle, Options};
use crate::cx::Step;
use crate::doubt::Touched;
use crate::op::{OpId, Task, WaitKey};
use crate::world::World;
use crate::{data, locks, lost};

/// A target by its role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dest {
    /// The configuration.
    Mgs,
    /// A metadata target by index.
    Mdt(u32),
    /// An object target by index.
    Ost(u32),
}

/// A request without a reply so far.
#[derive(Debug)]
pub struct Pending {
    /// Who sent it.
    pub sender: Sender,
    /// What it is.
    pub opcode: Opcode,
    /// Locks that it wants.
    pub wants: SmallVec<[u64; 3]>,
    /// A run of further ones: the first cookie, and how many.
    pub want_run: (u64, u32),
    /// It opens something: its body is kept for replay.
    pub open_body: Option<Bytes>,
    /// What it changes.
    pub touched: Touched,
}

/// Which operation sent a request, at which of its steps, and the request's number.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// The operation.
    pub op: OpId,
    /// Its step.
    pub step: Step,
    /// Of all requests of this client.
    pub number: u64,
}

/// A target.
pub struct Target {
    /// Its role.
    pub dest: Dest,
    /// Its name, `adamant-OST0001`.
    pub name: String,
    /// How often it was started, as the MGS knows it.
    pub instance: u64,
    /// Locks.
    pub locks: LockCache,
    /// Files up to this size live there (metadata targets), in bytes.
    pub dom_size: u32,
    /// Largest read or write, in bytes.
    pub brw_size: u32,
    /// The session.
    pub import: Import,
    /// Unused locks that are kept.
    pub lru_size: usize,
    /// Since when changes in flight are counted, by the wall clock; 0: from the begin.
    pub rpc_stats_since_ns: i64,
    /// What was durable when the session was interrupted: of what came later, something that this client saw may be lost.
    pub sure: Transno,
    /// What it said last of its space.
    pub space: Option<StatfsRep>,
    /// Locks were replayed since then.
    doubted: bool,
    /// Requests without a reply.
    pending: Map<RequestId, Pending>,
    touched: bool,
}

impl Target {
    /// Whether the server has granted a feature (`proto::connect::features`).
    pub fn has(&self, feature: u64) -> bool {
        self.import.connect_data().features & feature != 0
    }

    /// Whether requests pass now.
    pub fn is_full(&self) -> bool {
        self.import.state() == State::Full
    }

    /// Whether a request of this operation has no answer yet.
    pub fn owes(&self, op: OpId) -> bool {
        self.pending.values().any(|pending| pending.sender.op == op)
    }

    /// Whether a lock that was held here is on its way back. The server asks for it anew at each connection until it has heard of that.
    fn goes_back(&self, handle: u64) -> bool {
        let mut cancels = self.import.unanswered(Opcode::LdlmCancel);
        self.locks.by_handle(handle).is_none()
            && cancels.any(|body| CancelReq::decode(&body[..]).is_ok_and(|request| request.handles.contains(&handle)))
    }

    /// Requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

/// What is kept of an open so that it can be replayed.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The server's present handle.
    pub handle: u64,
    /// What was opened.
    pub fid: proto::Fid,
    /// Its layout then: what changed it since is replayed, too.
    pub layout: Option<Layout>,
    /// The request's body as it was sent.
    pub body: Bytes,
    /// The open file, as far as a program has it: the number may be another's since.
    pub fh: Option<FileHandle>,
}

/// All targets.
#[derive(Default)]
pub struct Imports {
    list: Vec<Target>,
    index: Map<Dest, usize>,
    touched: VecDeque<usize>,
    /// Operations that others may be waiting for, and that wait ([`press`]).
    pressing: u32,
    /// Opens by the request that made them, until their close is durable: until then both may be replayed.
    pub opens: Map<(Dest, Xid), Opened>,
    /// Closes that were answered, in that order, with the opens that they end.
    closed: VecDeque<(Dest, Transno, Xid)>,
}

/// Locks that an import is given at once to replay: more than a request carries, and little memory.
const REPLAYS_AT_ONCE: usize = 8192;

/// Unused locks that are kept of each target, if nothing else is said: of a node there may be two.
pub(crate) fn lru_size(max_nodes: usize) -> usize {
    max_nodes.saturating_mul(2)
}

/// Bits of a [`ConnId`] that are the import's own number.
const LINK_BITS: u32 = 40;

impl Imports {
    /// A further target; it is dialled at once.
    pub fn add(&mut self, options: &Options, now: Instant, dest: Dest, name: String, nids: Vec<Nid>, instance: u64) {
        let index = self.list.len();
        let mut config = Config::new(options.uuid, name.clone(), nids.clone(), options.seed ^ (index as u64) << 32);
        config.description = options.description.clone();
        config.read_only = options.read_only;
        config.first_xid = (options.seed & 0xffff_ffff) << 20;
        config.timeouts = options.timeouts.clone();
        if options.always_ping {
            config.features &= !proto::connect::features::PINGLESS;
        }
        config.soft = options.soft;
        config.faults = options.faults.clone();
        config.rpcs_in_flight_max = options.max_rpcs_in_flight;
        config.mod_rpcs_in_flight_max = options.max_mod_rpcs_in_flight.max(1);
        if options.max_mod_rpcs_in_flight == 0 {
            config.features &= !proto::connect::features::MULTI_MOD_RPCS;
        }
        if options.sync_metadata || options.max_mod_rpcs_in_flight == 0 {
            config.features &= !(proto::connect::features::WRITE_BACK | proto::connect::features::GRANT_SHRINK);
        }
        // The MGS keeps nothing of a client.
        config.lightweight = dest == Dest::Mgs;
        let mut import = Import::new(config, now);
        if instance != 0 {
            import.handle(now, ImportEvent::Target { nids, instance });
        }
        import.press(now, self.pressing > 0);
        self.list.push(Target {
            dest,
            name,
            instance,
            locks: LockCache::new(Settings { lru_size: lru_size(options.max_nodes), ..Settings::default() }),
            dom_size: 0,
            brw_size: proto::connect::BRW_SIZE_MAX,
            import,
            lru_size: lru_size(options.max_nodes),
            rpc_stats_since_ns: 0,
            sure: Transno(0),
            space: None,
            doubted: false,
            pending: Map::default(),
            touched: false,
        });
        self.index.insert(dest, index);
        self.touch(index);
    }

    fn touch(&mut self, index: usize) {
        if let Some(target) = self.list.get_mut(index)
            && !target.touched
        {
            target.touched = true;
            self.touched.push_back(index);
        }
    }

    /// A target.
    pub fn get(&self, dest: Dest) -> Option<&Target> {
        self.list.get(*self.index.get(&dest)?)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, dest: Dest) -> Option<&mut Target> {
        self.list.get_mut(*self.index.get(&dest)?)
    }

    /// Something was told to the import of this target: it has effects.
    pub fn touch_dest(&mut self, dest: Dest) {
        if let Some(&index) = self.index.get(&dest) {
            self.touch(index);
        }
    }

    /// A request was answered that opened something.
    pub(crate) fn opened(&mut self, dest: Dest, xid: Xid, opened: Opened) {
        self.opens.insert((dest, xid), opened);
        if self.get(dest).is_some_and(|target| !target.is_full()) {
            self.amend_open(dest, xid);
        }
    }

    /// A body that is appended to another is merged into it when it is decoded: so the amendment is put behind the request.
    fn amend_open(&mut self, dest: Dest, xid: Xid) {
        let (Some(opened), Some(&index)) = (self.opens.get(&(dest, xid)), self.index.get(&dest)) else { return };
        let amendment = ReintReq {
            op: Some(Reint::Open(OpenOp {
                old_handle: opened.handle,
                opened_fid: Some(opened.fid),
                layout: opened.layout.clone(),
                ..OpenOp::default()
            })),
            ..ReintReq::default()
        };
        let mut body = opened.body.to_vec();
        let _ = amendment.encode(&mut body);
        self.list[index].import.amend(xid, body.into());
    }

    /// What a request opened is this open file. Whether that is known: an eviction may have taken it.
    pub(crate) fn opened_as(&mut self, dest: Dest, xid: Xid, fh: FileHandle) -> bool {
        let opened = self.opens.get_mut(&(dest, xid));
        opened.map(|opened| opened.fh = Some(fh)).is_some()
    }

    /// The close of an open was answered with `transno`; 0 if there is nothing to close.
    pub(crate) fn open_closed(&mut self, dest: Dest, xid: Xid, transno: Transno) {
        if let Some(target) = self.get_mut(dest) {
            target.import.open_closed(xid, transno);
        }
        if transno == Transno(0) {
            self.opens.remove(&(dest, xid));
        } else {
            self.closed.push_back((dest, transno, xid));
        }
        while let Some((dest, transno, xid)) = self.closed.front().copied() {
            if self.get(dest).is_some_and(|target| target.import.last_committed() < transno) {
                break;
            }
            self.closed.pop_front();
            self.opens.remove(&(dest, xid));
        }
    }

    /// All, in the order in which they became known.
    pub fn iter(&self) -> impl Iterator<Item = &Target> {
        self.list.iter()
    }

    /// The object targets that are known, by index.
    pub fn osts(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.list.iter().filter_map(|t| if let Dest::Ost(i) = t.dest { Some(i) } else { None }).collect();
        all.sort_unstable();
        all
    }

    /// Roles of all targets, in the order in which they became known.
    pub fn dests(&self) -> Vec<Dest> {
        self.list.iter().map(|target| target.dest).collect()
    }
}

/// The kind of slot that a request takes.
///
/// A change may wait on the server for a lock that another client has pinned while *its* change waits for one of ours. So what is done under a
/// pinned lock, or for a lock that goes back, never waits behind ordinary changes: it has a slot of its own. (Under its lock it has
/// nobody to wait for but holders of attributes, who give them back without needing a slot.) What is sent behind the programs'
/// backs counts as a change, until such work waits for it ([`press`]).
pub(crate) fn slot(dest: Dest, opcode: Opcode, urgent: bool) -> Slot {
    let Dest::Mdt(_) = dest else { return Slot::None };
    match opcode.traits().slot {
        SlotClass::None => Slot::None,
        SlotClass::Close => Slot::Close,
        SlotClass::Change | SlotClass::Data if urgent => Slot::Recalled,
        SlotClass::Change => Slot::Modify,
        SlotClass::Data | SlotClass::WriteBack => Slot::Buffered,
    }
}

/// An operation that has locks pinned, or gives one back, begins to wait for something else than an answer of its own, which may be
/// anything that goes on here. Gives that it does ([`released`]).
pub(crate) fn press(w: &mut World) {
    w.imports.pressing += 1;
    if w.imports.pressing == 1 {
        tell_pressed(w, true);
    }
}

/// It is over.
pub(crate) fn released(w: &mut World) {
    w.imports.pressing -= 1;
    if w.imports.pressing == 0 {
        tell_pressed(w, false);
    }
}

fn tell_pressed(w: &mut World, pressed: bool) {
    for index in 0..w.imports.list.len() {
        let target = &mut w.imports.list[index];
        if let Dest::Mdt(_) = target.dest {
            target.import.press(w.now, pressed);
            w.imports.touch(index);
        }
    }
}

/// Sends a request.
pub(crate) fn submit(
    w: &mut World,
    sender: Sender,
    dest: Dest,
    opcode: Opcode,
    body: Bytes,
    bulk: Bytes,
    wants: SmallVec<[u64; 3]>,
) {
    let now = w.now;
    let Some(&index) = w.imports.index.get(&dest) else {
        w.fail_step(sender.op, sender.step, Errno::EIO);
        return;
    };
    let target = &mut w.imports.list[index];
    let touched = core::mem::take(&mut w.touched);
    touched.sent(&mut w.nodes);
    let opening = core::mem::take(&mut w.opening);
    let choosing = core::mem::take(&mut w.choosing) || opcode == Opcode::MdsBatch;
    let (slot, turn) = core::mem::replace(&mut w.slot, (Slot::None, 0));
    let want_run = core::mem::take(&mut w.want_run);
    let open_body = opening.then(|| body.clone());
    let outgoing = Outgoing {
        opcode,
        keep_open: opening,
        keep_answer: choosing,
        body,
        bulk,
        slot,
        turn,
        no_resend: false,
        during_recovery: false,
        timeout: None,
    };
    let id = target.import.submit(now, outgoing);
    target.pending.insert(id, Pending { sender, opcode, wants, want_run, open_body, touched });
    w.imports.touch(index);
}

/// Takes back the one request of an operation that would change something, if it was not sent. Whether it was: then the operation
/// has had no effect.
pub(crate) fn withdraw_change(w: &mut World, op: OpId) -> bool {
    let main = crate::ops::step::MAIN;
    withdraw(w, |pending| pending.sender.op == op && pending.sender.step == main && pending.opcode.traits().modifies)
}

/// Takes back all requests of an operation that were not sent.
pub(crate) fn withdraw_all(w: &mut World, op: OpId) {
    withdraw(w, |pending| pending.sender.op == op);
}

/// Takes back those requests that were not sent. Whether there were any.
fn withdraw(w: &mut World, which: impl Fn(&Pending) -> bool) -> bool {
    let mut gone = Vec::new();
    for target in &mut w.imports.list {
        let ids: Vec<RequestId> = target.pending.iter().filter(|(_, p)| which(p)).map(|(id, _)| *id).collect();
        for id in ids {
            if target.import.withdraw(id)
                && let Some(pending) = target.pending.remove(&id)
            {
                gone.push((target.dest, pending));
            }
        }
    }
    for (dest, pending) in &gone {
        pending.touched.answered(&mut w.nodes);
        crate::replies::give_up(w, *dest, pending);
    }
    !gone.is_empty()
}

/// Something that needs no reply, as a cancel.
pub(crate) fn tell(w: &mut World, dest: Dest, opcode: Opcode, body: &impl Message) {
    submit_at_once(w, dest, Outgoing::new(opcode, body));
}

fn submit_at_once(w: &mut World, dest: Dest, out: Outgoing) {
    let now = w.now;
    if let Some(target) = w.imports.get_mut(dest) {
        target.import.submit(now, Outgoing { during_recovery: true, ..out });
        w.imports.touch_dest(dest);
    }
}

/// A reply or a failure for an operation.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Answered.
    Reply(Pending, Frame),
    /// Never to be answered.
    Failed(Pending, Errno),
}

fn with_link(w: &mut World, conn: ConnId, event: impl FnOnce(Link) -> ImportEvent) {
    let index = (conn.0 >> LINK_BITS) as usize;
    let now = w.now;
    if let Some(target) = w.imports.list.get_mut(index) {
        target.import.handle(now, event(Link(conn.0 & ((1 << LINK_BITS) - 1))));
        w.imports.touch(index);
    }
}

/// A connection is there.
pub(crate) fn dialled(w: &mut World, conn: ConnId) {
    let World { imports, metadata_write_back, .. } = w;
    if let Some(target) = imports.list.get_mut((conn.0 >> LINK_BITS) as usize) {
        target.import.batch_room = metadata_write_back.claim(target.dest);
    }
    with_link(w, conn, ImportEvent::Dialled);
}

/// A connection could not be made.
pub(crate) fn dial_failed(w: &mut World, conn: ConnId, reason: String) {
    with_link(w, conn, |link| ImportEvent::DialFailed(link, reason));
}

/// A frame came in.
pub(crate) fn frame(w: &mut World, conn: ConnId, frame: Frame) {
    with_link(w, conn, |link| ImportEvent::Frame(link, frame));
}

/// A connection is gone.
pub(crate) fn closed(w: &mut World, conn: ConnId) {
    with_link(w, conn, ImportEvent::Closed);
}

/// The configuration says where a target is.
pub(crate) fn moved(w: &mut World, dest: Dest, nids: Vec<Nid>, instance: u64) {
    let now = w.now;
    if let Some(target) = w.imports.get_mut(dest) {
        target.instance = instance;
        target.import.handle(now, ImportEvent::Target { nids, instance });
        w.imports.touch_dest(dest);
    }
}

/// Time passed.
pub(crate) fn tick(w: &mut World) {
    let now = w.now;
    for index in 0..w.imports.list.len() {
        let target = &mut w.imports.list[index];
        if target.import.deadline().is_some_and(|at| at <= now) {
            target.import.handle(now, ImportEvent::Tick);
            w.imports.touch(index);
        }
        if w.imports.list[index].locks.deadline().is_some_and(|at| at <= now) {
            w.imports.list[index].locks.tick(now);
            let dest = w.imports.list[index].dest;
            locks::pump(w, dest);
        }
    }
}

/// When [`tick`] wants to be called.
pub(crate) fn deadline(w: &World) -> Option<Instant> {
    w.imports.list.iter().flat_map(|target| [target.import.deadline(), target.locks.deadline()]).flatten().min()
}

/// Carries out what imports want, up to the next thing that concerns an operation.
pub(crate) fn next(w: &mut World) -> Option<(Dest, Arrived)> {
    while let Some(&index) = w.imports.touched.front() {
        let target = &mut w.imports.list[index];
        let dest = target.dest;
        let Some(effect) = target.import.poll() else {
            target.touched = false;
            w.imports.touched.pop_front();
            continue;
        };
        let conn = |link: Link| ConnId((index as u64) << LINK_BITS | link.0);
        match effect {
            ImportEffect::Dial { link, nids } => w.effect(Effect::Dial { conn: conn(link), nids }),
            ImportEffect::Send { link, frame } => w.effect(Effect::Send { conn: conn(link), frame }),
            ImportEffect::Hangup(link) => w.effect(Effect::Hangup { conn: conn(link) }),
            ImportEffect::Reply { id, result, .. } => {
                if let Some(pending) = target.pending.remove(&id) {
                    pending.touched.answered(&mut w.nodes);
                    return Some(match result {
                        Ok(frame) => (dest, Arrived::Reply(pending, frame)),
                        Err(errno) => (dest, Arrived::Failed(pending, errno)),
                    });
                }
            }
            ImportEffect::Notice(frame) => notice(w, dest, &frame),
            ImportEffect::Connected(reply) => {
                target.dom_size = reply.dom_size;
                w.metadata_write_back.set_room(dest, reply.batch_room, target.import.newest_xid(), w.now);
                target.import.set_grant(reply.grant);
                if reply.brw_size > 0 {
                    target.brw_size = reply.brw_size.min(proto::connect::BRW_SIZE_MAX);
                }
            }
            ImportEffect::Full { fresh: _ } => {
                if core::mem::take(&mut target.doubted) {
                    locks::forget_versions(w, dest);
                }
                if dest == Dest::Mgs {
                    w.spawn(Task::Config);
                }
                locks::abandon_again(w, dest);
                w.wake(WaitKey::Target(dest));
            }
            ImportEffect::Away => {
                // The next connection says it again, if it still holds.
                target.locks.set_limit(0);
                target.locks.interrupted();
                target.sure = target.import.last_committed();
                prepare_replay(w, dest);
                locks::pump(w, dest);
            }
            ImportEffect::ReplayLocks { first } => {
                if first {
                    target.locks.begin_replay();
                }
                let mut requests = target.locks.next_replays(REPLAYS_AT_ONCE);
                if first {
                    target.doubted = true;
                    locks::doubt_directories(w, dest);
                }
                for request in &mut requests {
                    request.version = locks::doubtful_version(w, dest, &request.resource, request.mode());
                }
                if let Some(target) = w.imports.get_mut(dest) {
                    target.import.locks_to_replay(w.now, requests);
                }
            }
            ImportEffect::LocksReplayed(locks) => locks_replayed(w, dest, &locks),
            ImportEffect::Replayed { xid, reply } => replayed(w, dest, xid, &reply),
            ImportEffect::Evicted { lost } => evicted(w, dest, &lost),
            ImportEffect::Refused { errno, reason } => crate::config::refused(w, dest, errno, &reason),
            ImportEffect::Disconnected => w.wake(WaitKey::Drained),
            ImportEffect::Log(line) => w.log(line),
            ImportEffect::Loss(line) => w.log_error(line),
        }
    }
    None
}

/// Before a replay can happen, each open says what it opened: it may have been created or renamed since. One that is answered while
/// the server recovers says it at once ([`Imports::opened`]): the next replay may follow without service in between.
fn prepare_replay(w: &mut World, dest: Dest) {
    let mut xids: Vec<Xid> = w.imports.opens.keys().filter(|(d, _)| *d == dest).map(|(_, xid)| *xid).collect();
    xids.sort_unstable();
    for xid in xids {
        w.imports.amend_open(dest, xid);
    }
}

/// A server tells something by itself.
fn notice(w: &mut World, dest: Dest, frame: &Frame) {
    let result = match Opcode::from_raw(frame.header.opcode) {
        Some(Opcode::LdlmBlCallback) => frame.decode::<BlCallback>().map(|callback| {
            if let Some(target) = w.imports.get_mut(dest).filter(|target| !target.goes_back(callback.handle)) {
                let action = target.locks.blocking(&callback);
                if action == BlockingAction::AlreadyCancelling {
                    // What had time has it no longer.
                    w.wake(WaitKey::Gates);
                }
            }
            locks::pump(w, dest);
        }),
        Some(Opcode::LdlmGlCallback) => frame.decode::<GlCallback>().map(|callback| glimpse(w, dest, &callback)),
        Some(Opcode::LdlmLruLimit) => frame.decode::<LruLimit>().map(|limit| {
            if let Some(target) = w.imports.get_mut(dest) {
                target.locks.set_limit(limit.locks);
            }
            locks::pump(w, dest);
        }),
        Some(Opcode::MgsConfigChanged) => {
            w.spawn(Task::Config);
            Ok(())
        }
        _ => Ok(()),
    };
    if result.is_err() {
        let line = format!("{}: a notice that does not decode (opcode {})", w.target_name(dest), frame.header.opcode);
        w.log(line);
    }
}

/// Somebody asks what the data of an object looks like that this client holds under a lock. If no program here has the file
/// open, and there is nothing left to tell or to write, this client goes on holding the lock to read only: then whoever asked
/// can have one too, is not asked again, and what is cached here stays. From a server that does not know of that the lock goes
/// back instead, which is the answer then; and so it goes back, after an answer, if there is still something to write. Not while
/// an operation holds it: that may wait for who asks.
fn glimpse(w: &mut World, dest: Dest, callback: &GlCallback) {
    let ino = callback.resource.fid.ino();
    let node = w.nodes.get(ino);
    // The access time is the metadata target's business, but for a newer one that it was not told.
    let untold = node.and_then(|node| node.atime_ns);
    let closed = node.is_none_or(|node| node.handles == 0);
    let locks = w.imports.get(dest).map(|target| &target.locks);
    let lock = locks.and_then(|locks| locks.by_handle(callback.handle)).map(|lock| lock.cookie);
    let idle = lock.is_some_and(|cookie| locks.is_some_and(|locks| !locks.is_held(cookie)));
    let nothing_to_tell = closed && idle && untold.is_none() && data::is_clean(w, ino);
    let reply = GlReply { handle: callback.handle, serial: callback.serial, ..GlReply::default() };
    if let (true, Some(cookie)) = (nothing_to_tell, lock)
        && locks::share(w, dest, cookie)
    {
        return answer_glimpse(w, dest, &GlReply { mode: LockMode::Pr as i32, ..reply });
    }
    if !nothing_to_tell {
        let atime_ns = untold.unwrap_or(i64::MIN);
        let lvb = data::glimpse(w, &callback.resource).map(|lvb| proto::msg::Lvb { atime_ns, ..lvb });
        answer_glimpse(w, dest, &GlReply { lvb, ..reply });
    }
    if let (true, Some(cookie), Some(target)) = (closed, lock, w.imports.get_mut(dest)) {
        stdx::mark!("glimpsed_lock_given_back");
        target.locks.give_back(cookie);
        locks::pump(w, dest);
    }
}

/// Answers what the server asks over this connection. Over the next one it asks anew what it still wants to know, and what is true then is
/// the answer.
fn answer_glimpse(w: &mut World, dest: Dest, reply: &GlReply) {
    submit_at_once(w, dest, Outgoing { no_resend: true, ..Outgoing::new(Opcode::LdlmGlReply, reply) });
}

/// Gives locks back.
pub(crate) fn cancel(w: &mut World, dest: Dest, handles: Vec<u64>) {
    tell(w, dest, Opcode::LdlmCancel, &CancelReq { handles, waiting_cookies: Vec::new() });
}

fn locks_replayed(w: &mut World, dest: Dest, locks: &[(u64, Result<u64, Errno>)]) {
    for &(cookie, result) in locks {
        let Some(target) = w.imports.get_mut(dest) else { return };
        match result {
            Ok(handle) => target.locks.replayed(cookie, handle),
            Err(errno) => {
                if let Some(lock) = target.locks.lost(cookie) {
                    locks::lost(w, dest, &lock, errno);
                }
            }
        }
    }
    locks::pump(w, dest);
}

/// An open was replayed: it has a new handle, or is no more.
fn replayed(w: &mut World, dest: Dest, xid: Xid, reply: &Frame) {
    if !w.imports.opens.contains_key(&(dest, xid)) {
        return;
    }
    let rep = if reply.header.status < 0 { None } else { reply.decode::<ObjectRep>().ok() };
    match rep {
        Some(rep) if rep.handle != 0 => {
            if let Some(opened) = w.imports.opens.get_mut(&(dest, xid)) {
                opened.handle = rep.handle;
            }
        }
        Some(_) => {}
        None => {
            let fh = w.imports.opens.remove(&(dest, xid)).and_then(|opened| opened.fh);
            let is_it = |fh: &FileHandle| w.files.get(*fh).is_some_and(|f| f.dest == dest && f.open_xid == xid);
            if let Some(fh) = fh.filter(is_it) {
                w.files.lost(fh);
            }
        }
    }
}

/// All state at a target is lost: locks, what they covered, open files.
fn evicted(w: &mut World, dest: Dest, changes: &[Frame]) {
    stdx::mark!("evicted");
    let Some(target) = w.imports.get_mut(dest) else { return };
    let held = target.locks.drop_all();
    lost::opens_and_data(w, dest, &held);
    lost::changes(w, dest, changes);
    for lock in held {
        locks::lost(w, dest, &lock, Errno::EIO);
    }
    crate::metadata_write_back::evicted(w, dest);
    w.imports.opens.retain(|(d, _), _| *d != dest);
    w.imports.closed.retain(|(d, ..)| *d != dest);
    let open: Vec<FileHandle> = w.files.iter().filter(|(_, file)| file.is_open_at(dest)).map(|(fh, _)| fh).collect();
    open.into_iter().for_each(|fh| w.files.lost(fh));
    if let Dest::Mdt(_) = dest {
        // Versions begin anew if the target's history does.
        for node in w.nodes.iter_mut() {
            (node.attr_covered, node.layout_covered) = (false, false);
            if let Some(attr) = &mut node.attr {
                attr.version = 0;
            }
            if let Some(dir) = &mut node.dir {
                dir.forget_all();
            }
        }
        w.sequences = crate::world::Sequences::default();
    }
}
