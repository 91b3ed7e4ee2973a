//! Imports: for each target the session, the requests without a reply, and what is open there.

use bytes::Bytes;
use prost::Message;
use proto::msg::{EnqueueReq, Layout, ObjectRep, OpenOp, Reint, ReintReq, StatfsRep};
use proto::{Errno, Frame, Nid, Transno, Xid};
use rpc::Link;
use rpc::client::{Config, Import, ImportEffect, ImportEvent, Outgoing, RequestId, State};
use std::collections::VecDeque;
use stdx::{Deadlines, Instant, Map};

use crate::api::{ConnId, Effect, FileHandle, LogLevel, Options};
use crate::base::Dest;

/// A target. `P` is kept for each request until its answer arrives.
pub(crate) struct Target<P> {
    /// Its role.
    pub(crate) dest: Dest,
    /// Its name, `adamant-OST0001`.
    pub(crate) name: String,
    /// The number of its starts, as the MGS counts them.
    pub(crate) instance: u64,
    /// Largest file that stays resident (metadata targets), in bytes.
    pub(crate) dom_size: u32,
    /// Largest read or write, in bytes.
    pub(crate) brw_size: u32,
    /// The session.
    pub(crate) import: Import,
    /// The space that it reported last.
    pub(crate) space: Option<StatfsRep>,
    /// When that was.
    pub(crate) space_at: Instant,
    pending: Map<RequestId, P>,
}

impl<P> Target<P> {
    /// Whether the server has granted a feature (`proto::connect::features`).
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.import.connect_data().features & feature != 0
    }

    /// Whether the session serves requests.
    pub(crate) fn is_full(&self) -> bool {
        self.import.state() == State::Full
    }

    /// The requests without a reply.
    pub(crate) fn pending(&self) -> impl ExactSizeIterator<Item = &P> {
        self.pending.values()
    }
}

/// An open on the server, kept so that it can be replayed.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// The server's current handle.
    pub(crate) handle: u64,
    /// The opened object.
    pub(crate) fid: proto::Fid,
    /// Its layout at that time: later changes of it are replayed too.
    pub(crate) layout: Option<Layout>,
    /// The request's body as it was sent.
    pub(crate) body: Bytes,
    /// The open file, if a program has it: the handle may belong to another file by now.
    pub(crate) fh: Option<FileHandle>,
}

/// All targets.
pub(crate) struct Imports<P> {
    list: Vec<Target<P>>,
    index: Map<Dest, usize>,
    /// By index. A target is touched while its session may have effects.
    deadlines: Deadlines,
    /// How many operations press ([`Imports::press`]).
    pressing: u32,
    /// Opens by the request that made them, kept until their close is durable: until then both may be replayed.
    opens: Map<(Dest, Xid), Opened>,
    /// Answered closes, oldest first, with the opens that they end.
    closed: VecDeque<(Dest, Transno, Xid)>,
}

impl<P> Default for Imports<P> {
    fn default() -> Self {
        Imports {
            list: Vec::new(),
            index: Map::default(),
            deadlines: Deadlines::default(),
            pressing: 0,
            opens: Map::default(),
            closed: VecDeque::new(),
        }
    }
}

/// An event of a session for the layers above.
#[derive(Debug)]
pub(crate) enum Event<P> {
    /// A request was answered.
    Reply(P, Frame),
    /// A request will never be answered.
    Failed(P, Errno),
    /// The server sent a request.
    Notice(Frame),
    /// The server accepted a connection.
    Connected {
        /// How many unanswered changes it has promised to accept.
        write_back_credits: u32,
    },
    /// The session serves requests.
    Full,
    /// The connection was lost.
    Away,
    /// The server is recovering and asks for locks ([`Imports::locks_to_replay`]); `first`: from the start.
    ReplayLocks {
        /// The replay starts from the first lock.
        first: bool,
    },
    /// The server has granted these locks again, or refused them.
    LocksReplayed(Vec<(u64, Result<u64, Errno>)>),
    /// The server does not know an open any more; with the handle, if a program had the file open.
    OpenLost(Option<FileHandle>, Xid),
    /// The client was evicted: all its state at the target is lost, and with it these answered changes.
    Evicted(Vec<Frame>),
    /// The server refuses this client.
    Refused {
        /// The error.
        errno: Errno,
        /// The server's explanation.
        reason: String,
    },
    /// The disconnect was answered.
    Disconnected,
}

/// Bits of a [`ConnId`] that are the import's link number.
const LINK_BITS: u32 = 40;

impl<P> Imports<P> {
    /// Adds a target and starts to connect to it.
    pub(crate) fn add(
        &mut self,
        options: &Options,
        now: Instant,
        dest: Dest,
        name: String,
        nids: Vec<Nid>,
        instance: u64,
    ) {
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
        // The MGS keeps no state of a client.
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
            dom_size: 0,
            brw_size: proto::connect::BRW_SIZE_MAX,
            import,
            space: None,
            space_at: now,
            pending: Map::default(),
        });
        self.index.insert(dest, index);
        self.deadlines.touch(index);
    }

    /// A target.
    pub(crate) fn get(&self, dest: Dest) -> Option<&Target<P>> {
        self.list.get(*self.index.get(&dest)?)
    }

    /// The same, mutable: its session may have effects then.
    pub(crate) fn get_mut(&mut self, dest: Dest) -> Option<&mut Target<P>> {
        let index = *self.index.get(&dest)?;
        self.deadlines.touch(index);
        self.list.get_mut(index)
    }

    /// A request that opened something was answered.
    pub(crate) fn opened(&mut self, dest: Dest, xid: Xid, opened: Opened) {
        self.opens.insert((dest, xid), opened);
        if self.get(dest).is_some_and(|target| !target.is_full()) {
            self.amend_open(dest, xid);
        }
    }

    /// When an open is decoded, an appended body is merged into the first one: so the amendment is appended to the
    /// request.
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

    /// Links an open to its open file. Returns whether the open is known: an eviction may have taken it.
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

    /// All targets, in the order in which they became known.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Target<P>> {
        self.list.iter()
    }

    /// The indexes of the known object targets, sorted.
    pub(crate) fn osts(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.list.iter().filter_map(|t| if let Dest::Ost(i) = t.dest { Some(i) } else { None }).collect();
        all.sort_unstable();
        all
    }

    /// Roles of all targets, in the order in which they became known.
    pub(crate) fn dests(&self) -> Vec<Dest> {
        self.list.iter().map(|target| target.dest).collect()
    }

    /// The open that a request made.
    pub(crate) fn opened_by(&self, dest: Dest, xid: Xid) -> Option<&Opened> {
        self.opens.get(&(dest, xid))
    }

    /// Called when an operation waits that has locks pinned or gives one back. Unless it waits for an answer of its
    /// own, it may depend on any other operation, so write-back requests are urgent while any operation presses.
    pub(crate) fn press(&mut self, now: Instant) {
        self.pressing += 1;
        if self.pressing == 1 {
            self.set_pressed(now, true);
        }
    }

    /// An operation that pressed no longer does.
    pub(crate) fn released(&mut self, now: Instant) {
        self.pressing -= 1;
        if self.pressing == 0 {
            self.set_pressed(now, false);
        }
    }

    fn set_pressed(&mut self, now: Instant, pressed: bool) {
        for index in 0..self.list.len() {
            let target = &mut self.list[index];
            if let Dest::Mdt(_) = target.dest {
                target.import.press(now, pressed);
                self.deadlines.touch(index);
            }
        }
    }

    /// Sends a request, and keeps `keep` until its answer arrives. Does nothing if there is no such target.
    pub(crate) fn submit(&mut self, now: Instant, dest: Dest, request: Outgoing, keep: P) {
        let Some(&index) = self.index.get(&dest) else { return };
        let target = &mut self.list[index];
        let id = target.import.submit(now, request);
        target.pending.insert(id, keep);
        self.deadlines.touch(index);
    }

    /// Sends a request whose answer is ignored, also while the target recovers.
    pub(crate) fn send_one_way(&mut self, now: Instant, dest: Dest, request: Outgoing) {
        if let Some(target) = self.get_mut(dest) {
            target.import.submit(now, Outgoing { during_recovery: true, ..request });
        }
    }

    /// Withdraws the matching requests that were not sent.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&P) -> bool) -> Vec<(Dest, P)> {
        let mut withdrawn = Vec::new();
        for index in 0..self.list.len() {
            let target = &mut self.list[index];
            let ids: Vec<RequestId> = target.pending.iter().filter(|(_, p)| which(p)).map(|(id, _)| *id).collect();
            for id in ids {
                if target.import.withdraw(id)
                    && let Some(pending) = target.pending.remove(&id)
                {
                    withdrawn.push((target.dest, pending));
                }
            }
            self.deadlines.touch(index);
        }
        withdrawn
    }

    /// The target of a connection.
    pub(crate) fn of_connection(&mut self, conn: ConnId) -> Option<&mut Target<P>> {
        let index = (conn.0 >> LINK_BITS) as usize;
        let target = self.list.get_mut(index)?;
        self.deadlines.touch(index);
        Some(target)
    }

    fn with_link(&mut self, now: Instant, conn: ConnId, event: impl FnOnce(Link) -> ImportEvent) {
        if let Some(target) = self.of_connection(conn) {
            target.import.handle(now, event(Link(conn.0 & ((1 << LINK_BITS) - 1))));
        }
    }

    /// A connection was established.
    pub(crate) fn dialled(&mut self, now: Instant, conn: ConnId) {
        self.with_link(now, conn, ImportEvent::Dialled);
    }

    /// A connection could not be established.
    pub(crate) fn dial_failed(&mut self, now: Instant, conn: ConnId, reason: String) {
        self.with_link(now, conn, |link| ImportEvent::DialFailed(link, reason));
    }

    /// A frame arrived.
    pub(crate) fn frame(&mut self, now: Instant, conn: ConnId, frame: Frame) {
        self.with_link(now, conn, |link| ImportEvent::Frame(link, frame));
    }

    /// A connection was closed.
    pub(crate) fn hung_up(&mut self, now: Instant, conn: ConnId) {
        self.with_link(now, conn, ImportEvent::Closed);
    }

    /// The configuration has new addresses or a new instance of a target.
    pub(crate) fn relocated(&mut self, now: Instant, dest: Dest, nids: Vec<Nid>, instance: u64) {
        if let Some(target) = self.get_mut(dest) {
            target.instance = instance;
            target.import.handle(now, ImportEvent::Target { nids, instance });
        }
    }

    /// Passes locks to replay to a recovering server.
    pub(crate) fn locks_to_replay(&mut self, now: Instant, dest: Dest, requests: Vec<EnqueueReq>) {
        if let Some(target) = self.get_mut(dest) {
            target.import.locks_to_replay(now, requests);
        }
    }

    /// Runs the timers of the sessions.
    pub(crate) fn tick(&mut self, now: Instant) {
        for index in 0..self.list.len() {
            let target = &mut self.list[index];
            if target.import.deadline().is_some_and(|at| at <= now) {
                target.import.handle(now, ImportEvent::Tick);
                self.deadlines.touch(index);
            }
        }
    }

    /// When [`Imports::tick`] is due next. All events were taken ([`Imports::next`]).
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.earliest()
    }

    /// Processes the effects of sessions, up to the next event for the layers above.
    pub(crate) fn next(&mut self, effects: &mut VecDeque<Effect>) -> Option<(Dest, Event<P>)> {
        while let Some(index) = self.deadlines.touched() {
            let target = &mut self.list[index];
            let dest = target.dest;
            let Some(effect) = target.import.poll() else {
                self.deadlines.set_touched(target.import.deadline());
                continue;
            };
            let conn = |link: Link| ConnId((index as u64) << LINK_BITS | link.0);
            let event = match effect {
                ImportEffect::Dial { link, nids } => {
                    effects.push_back(Effect::Dial { conn: conn(link), nids });
                    continue;
                }
                ImportEffect::Send { link, frame } => {
                    effects.push_back(Effect::Send { conn: conn(link), frame });
                    continue;
                }
                ImportEffect::Hangup(link) => {
                    effects.push_back(Effect::Hangup { conn: conn(link) });
                    continue;
                }
                ImportEffect::Log(line) => {
                    effects.push_back(Effect::Log(LogLevel::Info, line));
                    continue;
                }
                ImportEffect::Loss(line) => {
                    effects.push_back(Effect::Log(LogLevel::Error, line));
                    continue;
                }
                ImportEffect::Reply { id, result, .. } => match (target.pending.remove(&id), result) {
                    (None, _) => continue,
                    (Some(pending), Ok(frame)) => Event::Reply(pending, frame),
                    (Some(pending), Err(errno)) => Event::Failed(pending, errno),
                },
                ImportEffect::Notice(frame) => Event::Notice(frame),
                ImportEffect::Connected(reply) => {
                    target.dom_size = reply.dom_size;
                    target.import.set_grant(reply.grant);
                    if reply.brw_size > 0 {
                        target.brw_size = reply.brw_size.min(proto::connect::BRW_SIZE_MAX);
                    }
                    Event::Connected { write_back_credits: reply.write_back_credits }
                }
                ImportEffect::Full { fresh: _ } => Event::Full,
                ImportEffect::Away => {
                    self.prepare_replay(dest);
                    Event::Away
                }
                ImportEffect::ReplayLocks { first } => Event::ReplayLocks { first },
                ImportEffect::LocksReplayed(locks) => Event::LocksReplayed(locks),
                ImportEffect::Replayed { xid, reply } => match self.replayed(dest, xid, &reply) {
                    true => continue,
                    false => Event::OpenLost(self.opens.remove(&(dest, xid)).and_then(|opened| opened.fh), xid),
                },
                ImportEffect::Evicted { lost } => Event::Evicted(lost),
                ImportEffect::Refused { errno, reason } => Event::Refused { errno, reason },
                ImportEffect::Disconnected => Event::Disconnected,
            };
            return Some((dest, event));
        }
        None
    }

    /// Before a replay, adds to each open what it opened: the file may have been created by it or renamed since. An
    /// open that is answered while the server recovers is amended at once ([`Imports::opened`]), because the next
    /// replay may follow without service in between.
    fn prepare_replay(&mut self, dest: Dest) {
        let mut xids: Vec<Xid> = self.opens.keys().filter(|(d, _)| *d == dest).map(|(_, xid)| *xid).collect();
        xids.sort_unstable();
        for xid in xids {
            self.amend_open(dest, xid);
        }
    }

    /// An open was replayed and has a new handle. False: the server does not know it any more.
    fn replayed(&mut self, dest: Dest, xid: Xid, reply: &Frame) -> bool {
        let Some(opened) = self.opens.get_mut(&(dest, xid)) else { return true };
        let rep = if reply.header.status < 0 { None } else { reply.decode::<ObjectRep>().ok() };
        match rep {
            Some(rep) => {
                if rep.handle != 0 {
                    opened.handle = rep.handle;
                }
                true
            }
            None => false,
        }
    }

    /// All state at a target is lost: nothing is open there.
    pub(crate) fn forget_opens(&mut self, dest: Dest) {
        self.opens.retain(|(d, _), _| *d != dest);
        self.closed.retain(|(d, ..)| *d != dest);
    }
}
