//! Requests of an import: slots, sending, replies.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use proto::connect::features;
use proto::frame::flags;
use proto::msg::ConnectRep;
use proto::{Errno, Frame, Handle, Header, Nid, Opcode, Transno, Xid};
use stdx::faults::sites;
use stdx::{Instant, Rng};

use super::history::History;
use super::link::{Phase, Retry};
use super::recover::Recovery;
use super::replay::ReplayList;
use super::slots::{Slots, Waiting};
use super::{Config, ImportEffect, ImportEvent, Outgoing, RequestId, State, Trouble};
use crate::at::{Estimate, Timeouts};
use crate::{Link, Slot};

/// How long an import that is to end waits for its target to take back what it lost: as long as a recovery may last.
const FAREWELL: Duration = Duration::from_secs(180);

/// What a request in flight is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The owner's.
    Owner(RequestId),
    /// A sign of life.
    Ping,
    /// Says that all requests are replayed.
    RequestsDone,
    /// Says that all locks are replayed.
    LocksDone,
    /// Replay of the lock with this cookie.
    Lock(u64),
    /// Replay of many locks: those in its body.
    Locks,
    /// Good-bye.
    Disconnect,
}

/// A request that was sent and not answered.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) frame: Frame,
    pub(crate) purpose: Purpose,
    pub(crate) slot: Slot,
    pub(crate) no_resend: bool,
    pub(crate) keep_open: bool,
    pub(crate) keep_answer: bool,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// When it was sent last.
    pub(crate) at: Instant,
    /// How often the server was too busy for it.
    pub(crate) refused: u32,
}

/// A request that waits for a slot or for the import.
#[derive(Clone, Debug)]
struct Queued {
    id: RequestId,
    out: Outgoing,
}

/// How often requests of an opcode were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpcodeCount {
    /// For the first time.
    pub sent: u64,
    /// Again, because no reply came.
    pub resent: u64,
    /// Again, because the server lost them.
    pub replayed: u64,
}

/// What the `import` parameter shows.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportStatus {
    /// The target.
    pub target: String,
    /// Where the import is.
    pub state: State,
    /// Features granted.
    pub connect_flags: u64,
    /// Limits granted.
    pub connect_data: ConnectRep,
    /// Addresses.
    pub nids: Vec<Nid>,
    /// The one that is tried or in use.
    pub current_nid: Option<Nid>,
    /// Connection attempts.
    pub conn_cnt: u32,
    /// Evictions.
    pub generation: u32,
    /// Requests without a reply.
    pub in_flight: usize,
    /// Requests that wait.
    pub queued: usize,
    /// Modifying requests in flight.
    pub modify_in_flight: u16,
    /// Deadlines that passed.
    pub timeouts: u64,
    /// The last states, oldest first, and since when.
    pub history: Vec<(Instant, State)>,
    /// How long answers take, in the mean.
    pub mean_wait: Duration,
    /// When something was sent last.
    pub last_sent: Instant,
    /// How long the server needs for a request, at worst.
    pub service: Estimate,
    /// How long the network needs.
    pub network: Estimate,
    /// It takes part in recovery.
    pub replayable: bool,
    /// The highest transno kept for replay.
    pub last_replay: Transno,
    /// Everything is durable up to here.
    pub last_committed: Transno,
    /// Changes kept for replay.
    pub replay_list: usize,
    /// Opens kept for replay although they are durable.
    pub open_list: usize,
    /// Bytes of what is kept.
    pub replay_bytes: usize,
}

/// The client's end of a session.
pub struct Import {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    /// How often the configuration says that the target was started.
    pub(crate) known_instance: u64,
    /// Which store the target has, and what was durable there last.
    pub(crate) seen: (Bytes, Transno),
    pub(crate) phase: Phase,
    pub(crate) retry: Retry,
    pub(crate) conn_cnt: u32,
    pub(crate) generation: u32,
    pub(crate) export: Handle,
    pub(crate) granted: ConnectRep,
    pub(crate) recovery: Recovery,
    pub(crate) replay: ReplayList,
    pub(crate) away_since: Option<Instant>,
    pub(crate) last_sent: Instant,
    /// The owner wants it to end; by then at the latest.
    pub(crate) closing: Option<Instant>,
    pub(crate) grant: u64,
    /// For how many changes the client counts on room ([`proto::msg::ConnectReq::batch_room`]).
    pub batch_room: u32,
    pub(crate) timeouts: u64,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) history: History,
    /// What the server says of how long requests take.
    service: Estimate,
    /// How long a sign of life takes.
    network: Estimate,
    next_xid: u64,
    next_id: u64,
    announced: Xid,
    /// Nothing in `sent` has an earlier deadline.
    pub(crate) earliest: Instant,
    pub(crate) sent: BTreeMap<Xid, Sent>,
    /// Requests that the server was too busy for, by when they are sent again.
    busy: Vec<(Instant, Sent)>,
    /// Those that wait without needing a slot.
    queue: VecDeque<Queued>,
    /// Those that wait for a slot.
    waiting: Waiting<Queued>,
    pub(crate) slots: Slots,
    /// Requests without a slot in flight.
    slotless: usize,
    counts: BTreeMap<u16, OpcodeCount>,
    pub(crate) effects: VecDeque<ImportEffect>,
}

impl Import {
    /// An import; it dials at once.
    pub fn new(config: Config, now: Instant) -> Import {
        let mut import = Import {
            state: State::New,
            now,
            rng: Rng::new(config.seed ^ 0x696d_706f_7274),
            known_instance: 0,
            seen: (Bytes::new(), Transno(0)),
            phase: Phase::Down,
            retry: Retry::default(),
            conn_cnt: 0,
            generation: 0,
            export: Handle(0),
            granted: ConnectRep::default(),
            recovery: Recovery::default(),
            replay: ReplayList::default(),
            away_since: Some(now),
            last_sent: now,
            closing: None,
            grant: 0,
            batch_room: 0,
            timeouts: 0,
            trouble: None,
            history: History::default(),
            service: Estimate::default(),
            network: Estimate::default(),
            next_xid: config.first_xid + 1,
            next_id: 1,
            announced: Xid(0),
            earliest: Instant::FAR,
            sent: BTreeMap::new(),
            busy: Vec::new(),
            queue: VecDeque::new(),
            waiting: Waiting::new(),
            slots: Slots::new(),
            slotless: 0,
            counts: BTreeMap::new(),
            effects: VecDeque::new(),
            config,
        };
        import.dial();
        import
    }

    /// Tells what happened.
    pub fn handle(&mut self, now: Instant, event: ImportEvent) {
        self.now = now;
        match event {
            ImportEvent::Dialled(link) => self.dialled(link),
            ImportEvent::DialFailed(link, reason) => self.dial_failed(link, &reason),
            ImportEvent::Closed(link) => self.link_closed(link),
            ImportEvent::Frame(link, frame) => self.frame(link, frame),
            ImportEvent::Target { nids, instance } => self.target_moved(nids, instance),
            ImportEvent::Tick => self.tick(),
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<ImportEffect> {
        self.effects.pop_front()
    }

    /// When [`ImportEvent::Tick`] wants to be told at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let mut at = self.earliest.min(self.link_deadline()).min(self.recovery.deadline());
        at = at.min(self.closing.unwrap_or(Instant::FAR));
        if let (Some(soft), Some(since)) = (self.config.soft, self.away_since)
            && self.has_requests()
        {
            at = at.min(since + soft);
        }
        if self.state == State::Full {
            at = self.busy.iter().map(|(due, _)| *due).fold(at.min(self.ping_at()), Instant::min);
        }
        (at != Instant::FAR).then_some(at)
    }

    /// Gives a request to the import.
    pub fn submit(&mut self, now: Instant, out: Outgoing) -> RequestId {
        self.now = now;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        if self.state == State::Closed {
            self.fail(id, Xid(0), Errno::ESHUTDOWN);
        } else if self.softly_away() {
            self.fail(id, Xid(0), Errno::EIO);
        } else if out.no_resend && !self.passes(&out) {
            self.fail(id, Xid(0), Errno::ETIMEDOUT);
        } else if out.slot != Slot::None {
            self.waiting.push(out.slot, out.turn, Queued { id, out });
            self.pump_waiting();
        } else if self.may_send(&out) && (out.during_recovery || self.queue.is_empty()) {
            self.send_new(Queued { id, out });
        } else {
            self.queue.push_back(Queued { id, out });
        }
        id
    }

    /// Withdraws a request that was not sent. Gives whether it was withdrawn: then nothing more is heard of it.
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.queue.iter().position(|queued| queued.id == id) {
            self.queue.remove(at);
            return true;
        }
        self.waiting.remove(|queued| queued.id == id).is_some()
    }

    /// Withdraws a request that was not sent, or that has no effect (no slot). Gives whether it was withdrawn: then nothing
    /// more is heard of it.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if self.withdraw(id) {
            return true;
        }
        let of = |sent: &Sent| sent.purpose == Purpose::Owner(id) && sent.slot == Slot::None;
        if let Some(at) = self.busy.iter().position(|(_, sent)| of(sent)) {
            let (_, sent) = self.busy.swap_remove(at);
            self.release(&sent);
            return true;
        }
        let Some((&xid, _)) = self.sent.iter().find(|(_, sent)| of(sent)) else { return false };
        if let Some(sent) = self.sent.remove(&xid) {
            self.release(&sent);
        }
        true
    }

    /// Changes the body with which the request `xid` would be replayed. Gives whether it is kept at all.
    pub fn amend(&mut self, xid: Xid, body: Bytes) -> bool {
        self.replay.amend(xid, body)
    }

    /// The request `xid` would not be replayed: nothing of it was done, although its answer has a transno.
    pub fn forget(&mut self, xid: Xid) {
        self.replay.forget(xid);
    }

    /// What the open `xid` opened was closed; `close` is the transno of the close's reply (0 if it failed or changed nothing).
    /// The open is forgotten when that is durable.
    pub fn open_closed(&mut self, xid: Xid, close: Transno) {
        self.replay.closed(xid, close);
    }

    /// Says good-bye: [`ImportEffect::Disconnected`] follows. Requests that are not answered are not sent again, and new ones
    /// not sent. While answered changes may be lost with the server, a connection that is away is won back first and they are
    /// replayed, for at most [`FAREWELL`] (or [`Config::soft`], if that is shorter).
    pub fn disconnect(&mut self, now: Instant) {
        self.now = now;
        if self.closing.is_some() || self.state == State::Closed {
            return;
        }
        self.closing = Some(now + self.config.soft.map_or(FAREWELL, |soft| soft.min(FAREWELL)));
        if self.state == State::Full {
            self.say_goodbye();
        } else if !self.stays() {
            self.close();
        }
    }

    pub(crate) fn say_goodbye(&mut self) {
        let out = Outgoing::new(Opcode::Disconnect, &proto::msg::Empty {});
        self.transmit_new(out.opcode, out.body, 0, Purpose::Disconnect, self.config.connect_timeout);
    }

    /// Whether an import that is to end goes on without a connection: the server may need what is kept here.
    pub(crate) fn stays(&self) -> bool {
        self.closing.is_none_or(|until| self.now < until && self.replay.len().0 > 0)
    }

    /// Where the import is.
    pub fn state(&self) -> State {
        self.state
    }

    /// What the server granted when it was last connected.
    pub fn connect_data(&self) -> &ConnectRep {
        &self.granted
    }

    /// How often this client was evicted.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Everything is durable up to here, as far as the server has told.
    pub fn last_committed(&self) -> Transno {
        self.replay.last_committed()
    }

    /// Bytes of requests that are kept for replay.
    pub fn replay_bytes(&self) -> usize {
        self.replay.bytes()
    }

    /// The connection in use, if there is one.
    pub fn link(&self) -> Option<Link> {
        self.phase.link()
    }

    /// Whether requests of the owner wait or are without an answer.
    pub fn has_requests(&self) -> bool {
        !self.queue.is_empty()
            || self.waiting.len() > 0
            || !self.busy.is_empty()
            || self.sent.values().any(|sent| matches!(sent.purpose, Purpose::Owner(_)))
    }

    /// What the `import` parameter shows.
    pub fn status(&self) -> ImportStatus {
        let (replay_list, open_list) = self.replay.len();
        ImportStatus {
            target: self.config.target.clone(),
            state: self.state,
            connect_flags: self.granted.features,
            connect_data: self.granted.clone(),
            nids: self.config.nids.clone(),
            current_nid: self.current_nid().cloned(),
            conn_cnt: self.conn_cnt,
            generation: self.generation,
            in_flight: self.sent.len(),
            queued: self.queue.len() + self.waiting.len(),
            modify_in_flight: self.slots.taken(),
            timeouts: self.timeouts,
            history: self.history.states(),
            mean_wait: self.history.mean_wait(),
            last_sent: self.last_sent,
            service: self.service.clone(),
            network: self.network.clone(),
            replayable: !self.config.lightweight,
            last_replay: self.replay.last(),
            last_committed: self.replay.last_committed(),
            replay_list,
            open_list,
            replay_bytes: self.replay.bytes(),
        }
    }

    /// The bodies of all requests of a kind that have no answer yet. They are sent until they have one.
    pub fn unanswered(&self, opcode: Opcode) -> impl Iterator<Item = &Bytes> {
        let busy = self.busy.iter().map(|(_, sent)| sent);
        let sent = self.sent.values().chain(busy).filter(move |sent| sent.frame.header.opcode == opcode as u16);
        let queued = self.queue.iter().filter(move |queued| queued.out.opcode == opcode);
        sent.map(|sent| &sent.frame.body).chain(queued.map(|queued| &queued.out.body))
    }

    /// Whether changes that were answered are not durable yet.
    pub fn keeps_changes(&self) -> bool {
        self.replay.len().0 > 0
    }

    /// Addresses of the target.
    pub fn nids(&self) -> &[Nid] {
        &self.config.nids
    }

    /// Why the last attempt to connect came to nothing; `None` while there was none, and in service.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// How often each opcode was sent, by number.
    pub fn counts(&self) -> &BTreeMap<u16, OpcodeCount> {
        &self.counts
    }

    pub(crate) fn count(&mut self, opcode: u16) -> &mut OpcodeCount {
        self.counts.entry(opcode).or_default()
    }

    // --- sending ---

    /// Whether the import is in a state in which this is sent.
    fn passes(&self, out: &Outgoing) -> bool {
        match self.state {
            State::Full => self.closing.is_none(),
            State::Replay | State::ReplayLocks | State::ReplayWait => out.during_recovery,
            _ => false,
        }
    }

    fn may_send(&self, out: &Outgoing) -> bool {
        self.passes(out) && (out.during_recovery || self.slotless < self.config.in_flight_max)
    }

    /// Sends what waits and may be sent.
    pub(crate) fn pump(&mut self) {
        let mut at = 0;
        while let Some(queued) = self.queue.get(at) {
            if self.may_send(&queued.out) {
                if let Some(queued) = self.queue.remove(at) {
                    self.send_new(queued);
                }
            } else {
                // Behind one that waits there may be one that does not.
                at += 1;
            }
        }
        self.pump_waiting();
    }

    fn pump_waiting(&mut self) {
        while self.state == State::Full && self.closing.is_none() {
            let Some(queued) = self.waiting.pop(&self.slots) else { break };
            self.send_new(queued);
        }
    }

    fn send_new(&mut self, queued: Queued) {
        let Queued { id, out } = queued;
        if out.slot == Slot::None {
            self.slotless += 1;
        }
        let busy = self.slots.busy();
        let slot = self.slots.kind(out.slot);
        let tag = self.slots.take(slot);
        let xid = self.take_xid();
        let timeout = out.timeout.unwrap_or(self.request_timeout());
        let frame = Frame {
            header: Header { opcode: out.opcode as u16, tag, xid, pre_versions: busy, ..Header::default() },
            body: out.body,
            bulk: out.bulk,
        };
        self.transmit(Sent {
            frame,
            purpose: Purpose::Owner(id),
            slot,
            no_resend: out.no_resend,
            keep_open: out.keep_open,
            keep_answer: out.keep_answer,
            timeout,
            deadline: self.now + timeout,
            at: self.now,
            refused: 0,
        });
    }

    /// Sends a request of the import itself.
    pub(crate) fn transmit_new(
        &mut self,
        opcode: Opcode,
        body: Bytes,
        flags: u32,
        purpose: Purpose,
        timeout: Duration,
    ) {
        let xid = self.take_xid();
        let frame = Frame {
            header: Header { opcode: opcode as u16, flags, xid, ..Header::default() },
            body,
            bulk: Bytes::new(),
        };
        self.transmit(Sent {
            frame,
            purpose,
            slot: Slot::None,
            no_resend: purpose == Purpose::Ping,
            keep_open: false,
            keep_answer: false,
            timeout,
            deadline: self.now + timeout,
            at: self.now,
            refused: 0,
        });
    }

    /// Sends a request for the first time with its xid.
    fn transmit(&mut self, sent: Sent) {
        self.count(sent.frame.header.opcode).sent += 1;
        self.earliest = self.earliest.min(sent.deadline);
        let (xid, frame, timeout) = (sent.frame.header.xid, sent.frame.clone(), sent.timeout);
        self.sent.insert(xid, sent);
        self.put_on_wire(frame, timeout);
    }

    /// Fills in what belongs to the connection and sends.
    pub(crate) fn put_on_wire(&mut self, mut frame: Frame, timeout: Duration) {
        let Some(link) = self.phase.link() else { return };
        let last_xid = match self.sent.keys().next() {
            Some(first) => Xid(first.0 - 1),
            None => self.newest_xid(),
        };
        self.announced = self.announced.max(last_xid);
        frame.header.last_xid = self.announced;
        frame.header.conn_cnt = self.conn_cnt;
        frame.header.export = self.export;
        frame.header.timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.last_sent = self.now;
        if self.config.faults.hit(sites::PTLRPC_DROP_RPC) {
            return;
        }
        self.effects.push_back(ImportEffect::Send { link, frame });
    }

    /// The last xid that a request has got.
    pub fn newest_xid(&self) -> Xid {
        Xid(self.next_xid - 1)
    }

    pub(crate) fn take_xid(&mut self) -> Xid {
        let xid = Xid(self.next_xid);
        self.next_xid += 1;
        xid
    }

    // --- replies ---

    /// A reply over the current connection.
    pub(crate) fn reply(&mut self, reply: Frame) {
        self.learn_committed(reply.header.last_committed);
        let xid = reply.header.xid;
        if self.state == State::Replay && self.replay_answered(&reply) {
            return;
        }
        let Some(sent) = self.sent.get_mut(&xid) else { return };
        if reply.header.has(flags::EARLY) {
            let more = Duration::from_millis(u64::from(reply.header.timeout_ms));
            sent.deadline = sent.deadline.max(self.now + more);
            return;
        }
        match Errno::from_status(reply.header.status) {
            Err(Errno::ENOTCONN | Errno::ESHUTDOWN) if sent.purpose != Purpose::Disconnect => {
                // The server does not know this session (any more): find out what became of it.
                stdx::mark!("import.notconn");
                self.suspect();
                return;
            }
            Err(Errno::EINPROGRESS) => {
                self.too_busy(xid);
                return;
            }
            _ => {}
        }
        let Some(sent) = self.sent.remove(&xid) else { return };
        self.learn_times(&sent, &reply);
        match sent.purpose {
            Purpose::Owner(id) => {
                self.history.answered(self.now.since(sent.at));
                self.keep(&sent, &reply);
                self.release(&sent);
                self.effects.push_back(ImportEffect::Reply { id, xid, result: Ok(reply) });
                self.pump();
            }
            Purpose::Ping => {}
            Purpose::Lock(cookie) => self.lock_replayed(cookie, &reply),
            Purpose::Locks => self.locks_replayed(&sent.frame, &reply),
            Purpose::RequestsDone => self.requests_done(),
            Purpose::LocksDone => self.locks_done(),
            Purpose::Disconnect => self.close(),
        }
    }

    /// How long a request may take that says nothing of it.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.config.timeouts.request_timeout(self.service.worst(), self.network.worst())
    }

    /// Changes how long requests may take, from the next on.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) {
        self.config.timeouts = timeouts.clone();
    }

    /// The server says how long requests take; a sign of life, for which it does nothing, tells of the network.
    fn learn_times(&mut self, sent: &Sent, reply: &Frame) {
        let history = self.config.timeouts.at_history;
        let estimate = Duration::from_millis(u64::from(reply.header.timeout_ms));
        self.service.measured(self.now, estimate, history);
        if sent.purpose == Purpose::Ping {
            self.network.measured(self.now, self.now.since(sent.at), history);
        }
    }

    /// Keeps an answered change for replay.
    fn keep(&mut self, sent: &Sent, reply: &Frame) {
        if reply.header.transno.0 == 0 || reply.header.status < 0 || self.config.lightweight {
            return;
        }
        let mut frame = sent.frame.clone();
        frame.header.flags = flags::REPLAY;
        frame.header.transno = reply.header.transno;
        frame.header.pre_versions = reply.header.pre_versions;
        if sent.keep_answer {
            // A copy: the answer is part of a buffer that others came in, too.
            frame.bulk = Bytes::copy_from_slice(&reply.body);
        }
        self.replay.keep(frame, sent.keep_open);
    }

    pub(crate) fn learn_committed(&mut self, transno: Transno) {
        self.seen.1 = self.seen.1.max(transno);
        self.replay.committed(transno);
    }

    /// The server did nothing: the request is sent again a little later, as a new one.
    fn too_busy(&mut self, xid: Xid) {
        let Some(mut sent) = self.sent.remove(&xid) else { return };
        if sent.purpose == Purpose::Ping {
            return;
        }
        let wait = Duration::from_millis(10 << sent.refused.min(7)).min(sent.timeout);
        sent.refused += 1;
        self.busy.push((self.now + wait, sent));
    }

    /// Sends again what the server was too busy for.
    pub(crate) fn retry_busy(&mut self) {
        if self.state != State::Full {
            return;
        }
        let now = self.now;
        let (due, rest): (Vec<_>, Vec<_>) = core::mem::take(&mut self.busy).into_iter().partition(|(at, _)| *at <= now);
        self.busy = rest;
        for (_, mut sent) in due {
            sent.frame.header.xid = self.take_xid();
            sent.frame.header.flags = 0;
            sent.frame.header.pre_versions = self.slots.busy();
            sent.deadline = now + sent.timeout;
            sent.at = now;
            self.transmit(sent);
        }
    }

    /// A request of the owner is answered, or was given up: its slot is free.
    pub(crate) fn release(&mut self, sent: &Sent) {
        match sent.slot {
            Slot::None => self.slotless -= 1,
            slot => self.slots.release(slot, sent.frame.header.tag),
        }
    }

    pub(crate) fn fail(&mut self, id: RequestId, xid: Xid, errno: Errno) {
        self.effects.push_back(ImportEffect::Reply { id, xid, result: Err(errno) });
    }

    /// Fails every request of the owner; those of the import itself stay.
    pub(crate) fn fail_all(&mut self, errno: Errno) {
        let busy = core::mem::take(&mut self.busy).into_iter().map(|(_, sent)| sent);
        let sent: Vec<Sent> = core::mem::take(&mut self.sent).into_values().chain(busy).collect();
        for sent in sent {
            match sent.purpose {
                Purpose::Owner(id) => self.fail(id, sent.frame.header.xid, errno),
                _ => drop(self.sent.insert(sent.frame.header.xid, sent)),
            }
        }
        self.slots.release_all();
        self.slotless = 0;
        for queued in core::mem::take(&mut self.queue).into_iter().chain(self.waiting.drain()) {
            self.fail(queued.id, Xid(0), errno);
        }
    }

    /// Fails what was for the connection that is lost.
    pub(crate) fn fail_unrepeatable(&mut self) {
        let xids: Vec<Xid> = self.sent.iter().filter(|(_, sent)| sent.no_resend).map(|(xid, _)| *xid).collect();
        let sent: Vec<Sent> = xids.iter().filter_map(|xid| self.sent.remove(xid)).collect();
        let busy = self.busy.extract_if(.., |(_, sent)| sent.no_resend).map(|(_, sent)| sent);
        for sent in sent.into_iter().chain(busy).collect::<Vec<_>>() {
            if let Purpose::Owner(id) = sent.purpose {
                self.release(&sent);
                self.fail(id, sent.frame.header.xid, Errno::ETIMEDOUT);
            }
        }
        let mut unsent: Vec<_> = self.queue.iter().filter(|q| q.out.no_resend).map(|q| q.id).collect();
        self.queue.retain(|queued| !queued.out.no_resend);
        while let Some(queued) = self.waiting.remove(|queued| queued.out.no_resend) {
            unsent.push(queued.id);
        }
        for id in unsent {
            self.fail(id, Xid(0), Errno::ETIMEDOUT);
        }
    }

    /// Whether a soft import has been away for too long.
    pub(crate) fn softly_away(&self) -> bool {
        match (self.config.soft, self.away_since) {
            (Some(soft), Some(since)) => self.now >= since + soft,
            _ => false,
        }
    }

    pub(crate) fn ping_at(&self) -> Instant {
        let interval = self.config.timeouts.ping_interval();
        match self.replay.len() {
            (0, _) if self.granted.features & features::PINGLESS != 0 => Instant::FAR,
            (0, _) => self.last_sent + interval,
            _ => self.last_sent + self.config.commit_ping_interval.min(interval),
        }
    }

    pub(crate) fn set_state(&mut self, state: State) {
        assert!(self.state.may_become(state) || self.state == state, "an import went from {} to {state}", self.state);
        let was_full = self.state == State::Full;
        if self.state != state {
            self.history.entered(self.now, state);
        }
        self.state = state;
        if state == State::Full {
            self.away_since = None;
        } else if self.away_since.is_none() {
            self.away_since = Some(self.now);
        }
        if was_full && state != State::Full {
            self.effects.push_back(ImportEffect::Away);
        }
    }

    pub(crate) fn log(&mut self, line: impl Into<String>) {
        self.effects.push_back(ImportEffect::Log(line.into()));
    }
}
