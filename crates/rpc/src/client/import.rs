//! The import: queueing, sending and resending requests, and handling replies.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use proto::connect::features;
use proto::frame::flags;
use proto::msg::ConnectRep;
use proto::{Errno, Frame, Handle, Header, Nid, Opcode, Transno, Xid};
use stdx::faults::sites;
use stdx::{Instant, Rng};

use super::busy::Submitted;
use super::history::History;
use super::link::{Phase, Retry};
use super::recover::Recovery;
use super::replay::ReplayList;
use super::slots::{Slots, Waiting};
use super::{Config, ImportEffect, ImportEvent, Outgoing, RequestId, State, Trouble};
use crate::at::{Estimate, Timeouts};
use crate::{Link, Slot};

/// How long a closing import waits for its target to recover lost changes: the longest time that a recovery may take.
const DISCONNECT_WAIT_MAX: Duration = Duration::from_secs(180);

/// Purpose of a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Request of the owner.
    Owner(RequestId),
    /// Ping.
    Ping,
    /// Ping that reports the end of the request replay.
    RequestsDone,
    /// Ping that reports the end of the lock replay.
    LocksDone,
    /// Replay of the lock with this cookie.
    Lock(u64),
    /// Replay of the locks in its body.
    Locks,
    /// Disconnect.
    Disconnect,
}

/// A request that was sent and is unanswered.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) frame: Frame,
    pub(crate) purpose: Purpose,
    pub(crate) slot: Slot,
    /// The server has said that it has the request, which has given its slot back.
    pub(crate) taken_in: bool,
    pub(crate) no_resend: bool,
    pub(crate) keep_open: bool,
    pub(crate) keep_answer: bool,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// Time of the last transmission.
    pub(crate) at: Instant,
    /// Number of times that the server refused it as busy (`EINPROGRESS`).
    pub(crate) refused: u32,
    pub(crate) submitted: Submitted,
}

/// A request that waits for a slot, or for the import to be in service.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) id: RequestId,
    pub(crate) out: Outgoing,
    /// Number of times that the server refused it as busy (`EINPROGRESS`).
    pub(crate) refused: u32,
}

/// Numbers of transmissions of one opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpcodeCount {
    /// First transmissions.
    pub sent: u64,
    /// Resends, because no reply came.
    pub resent: u64,
    /// Replays, because the server lost them.
    pub replayed: u64,
}

/// The client's end of a session.
pub struct Import {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    /// The highest number of starts of the target that is known.
    pub(crate) known_instance: u64,
    /// The target's store, and the highest transno known to be durable there.
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
    /// Deadline for disconnecting, once the owner has requested it.
    pub(crate) closing: Option<Instant>,
    pub(crate) grant: u64,
    /// Write-back credits to claim when connecting ([`proto::msg::ConnectReq::write_back_credits`]).
    pub write_back_credits: u32,
    pub(crate) timeouts: u64,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) history: History,
    /// The server's estimates of its service time.
    pub(super) service: Estimate,
    /// Round-trip times of pings.
    pub(super) network: Estimate,
    next_xid: u64,
    next_id: u64,
    announced: Xid,
    /// Lower bound of the deadlines in `sent`.
    pub(crate) earliest: Instant,
    pub(crate) sent: BTreeMap<Xid, Sent>,
    /// Requests that the server refused as busy, with the time of the next attempt.
    pub(crate) busy: Vec<(Instant, Sent)>,
    /// Requests of the owner that the server refused as busy: nothing was done, and they have given their slots back. With
    /// the time of the next attempt.
    pub(crate) refused: Vec<(Instant, Queued)>,
    /// Queued requests that need no slot.
    pub(crate) queue: VecDeque<Queued>,
    /// Queued requests that need a slot.
    pub(crate) waiting: Waiting<Queued>,
    pub(crate) slots: Slots,
    /// Number of requests in flight without a slot.
    slotless: usize,
    counts: BTreeMap<u16, OpcodeCount>,
    pub(crate) effects: VecDeque<ImportEffect>,
}

impl Import {
    /// Creates an import, which dials at once.
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
            write_back_credits: 0,
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
            refused: Vec::new(),
            queue: VecDeque::new(),
            waiting: Waiting::new(),
            slots: Slots::new(!config.lightweight),
            slotless: 0,
            counts: BTreeMap::new(),
            effects: VecDeque::new(),
            config,
        };
        import.dial();
        import
    }

    /// Handles an event.
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

    /// The next effect for the owner to carry out.
    pub fn poll(&mut self) -> Option<ImportEffect> {
        self.effects.pop_front()
    }

    /// When [`ImportEvent::Tick`] is due at the latest.
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
            let refused = self.refused.iter().map(|(due, _)| *due);
            at = self.busy.iter().map(|(due, _)| *due).chain(refused).fold(at.min(self.ping_at()), Instant::min);
        }
        (at != Instant::FAR).then_some(at)
    }

    /// Submits a request. Its outcome is an [`ImportEffect::Reply`].
    pub fn submit(&mut self, now: Instant, out: Outgoing) -> RequestId {
        self.now = now;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        if self.state == State::Closed {
            self.fail(id, Xid(0), Errno::ESHUTDOWN);
        } else if self.soft_limit_passed() {
            self.fail(id, Xid(0), Errno::EIO);
        } else if out.no_resend && !self.state_allows(&out) {
            self.fail(id, Xid(0), Errno::ETIMEDOUT);
        } else if out.slot != Slot::None {
            self.waiting.push(out.slot, out.turn, Queued { id, out, refused: 0 });
            self.pump_waiting();
        } else if self.may_send(&out) && (out.during_recovery || self.queue.is_empty()) {
            self.send_new(Queued { id, out, refused: 0 });
        } else {
            self.queue.push_back(Queued { id, out, refused: 0 });
        }
        id
    }

    /// Withdraws a request that was not sent. Returns whether it was withdrawn; then it gets no
    /// [`ImportEffect::Reply`].
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.queue.iter().position(|queued| queued.id == id) {
            self.queue.remove(at);
            return true;
        }
        if let Some(at) = self.refused.iter().position(|(_, queued)| queued.id == id) {
            self.refused.swap_remove(at);
            return true;
        }
        self.waiting.remove(|queued| queued.id == id).is_some()
    }

    /// Withdraws a request that was not sent, or that changes nothing (no slot). Returns whether it was withdrawn; then
    /// it gets no [`ImportEffect::Reply`].
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

    /// Replaces the body with which the request `xid` would be replayed. Returns whether it is kept for replay.
    pub fn amend(&mut self, xid: Xid, body: Bytes) -> bool {
        self.replay.amend(xid, body)
    }

    /// Drops the request `xid` from replay, because it changed nothing although its reply has a transno.
    pub fn forget(&mut self, xid: Xid) {
        self.replay.forget(xid);
    }

    /// The open `xid` was closed; `close` is the transno of the close's reply (0 if it failed or changed nothing). The
    /// open is kept until the close is durable.
    pub fn open_closed(&mut self, xid: Xid, close: Transno) {
        self.replay.closed(xid, close);
    }

    /// Disconnects; [`ImportEffect::Disconnected`] follows. Unanswered requests are not resent and new ones are not
    /// sent. While answered changes are not durable, a lost connection is re-established first and they are replayed,
    /// for at most [`DISCONNECT_WAIT_MAX`] (or [`Config::soft`], if that is shorter).
    pub fn disconnect(&mut self, now: Instant) {
        self.now = now;
        if self.closing.is_some() || self.state == State::Closed {
            return;
        }
        self.closing = Some(now + self.config.soft.map_or(DISCONNECT_WAIT_MAX, |soft| soft.min(DISCONNECT_WAIT_MAX)));
        if self.state == State::Full {
            self.send_disconnect();
        } else if !self.reconnects() {
            self.close();
        }
    }

    pub(crate) fn send_disconnect(&mut self) {
        let out = Outgoing::new(Opcode::Disconnect, &proto::msg::Empty {});
        self.transmit_new(out.opcode, out.body, 0, Purpose::Disconnect, self.config.connect_timeout);
    }

    /// Whether an import without a connection reconnects. A closing one does so only while the server may need its
    /// replays.
    pub(crate) fn reconnects(&self) -> bool {
        self.closing.is_none_or(|until| self.now < until && self.replay.len().0 > 0)
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Since when the server has not been reachable; `None`: it is.
    pub fn away_since(&self) -> Option<Instant> {
        self.away_since
    }

    /// The last connect reply, with the granted features and limits.
    pub fn connect_data(&self) -> &ConnectRep {
        &self.granted
    }

    /// Number of evictions of this client.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The highest transno that the server has reported durable.
    pub fn last_committed(&self) -> Transno {
        self.replay.last_committed()
    }

    /// Size of the requests kept for replay, in bytes.
    pub fn replay_bytes(&self) -> usize {
        self.replay.bytes()
    }

    /// The connection in use, if there is one.
    pub fn link(&self) -> Option<Link> {
        self.phase.link()
    }

    /// Whether requests of the owner are queued or in flight.
    pub fn has_requests(&self) -> bool {
        !self.queue.is_empty()
            || self.waiting.len() > 0
            || !self.busy.is_empty()
            || !self.refused.is_empty()
            || self.sent.values().any(|sent| matches!(sent.purpose, Purpose::Owner(_)))
    }

    /// The bodies of all requests of an opcode that are queued or unanswered. They are resent until they are answered.
    pub fn unanswered(&self, opcode: Opcode) -> impl Iterator<Item = &Bytes> {
        let busy = self.busy.iter().map(|(_, sent)| sent);
        let sent = self.sent.values().chain(busy).filter(move |sent| sent.frame.header.opcode == opcode as u16);
        let refused = self.refused.iter().map(|(_, queued)| queued);
        let queued = self.queue.iter().chain(refused).filter(move |queued| queued.out.opcode == opcode);
        sent.map(|sent| &sent.frame.body).chain(queued.map(|queued| &queued.out.body))
    }

    /// Whether answered changes are kept because they are not durable yet.
    pub fn keeps_changes(&self) -> bool {
        self.replay.len().0 > 0
    }

    /// Addresses of the target.
    pub fn nids(&self) -> &[Nid] {
        &self.config.nids
    }

    /// Why the last attempt to connect failed; `None` before the first attempt and in service.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Numbers of transmissions by opcode.
    pub fn counts(&self) -> &BTreeMap<u16, OpcodeCount> {
        &self.counts
    }

    pub(crate) fn count(&mut self, opcode: u16) -> &mut OpcodeCount {
        self.counts.entry(opcode).or_default()
    }

    // --- sending ---

    /// Whether the import's state allows sending this request.
    fn state_allows(&self, out: &Outgoing) -> bool {
        match self.state {
            State::Full => self.closing.is_none(),
            State::Replay | State::ReplayLocks | State::ReplayWait => out.during_recovery,
            _ => false,
        }
    }

    fn may_send(&self, out: &Outgoing) -> bool {
        self.state_allows(out) && (out.during_recovery || self.slotless < self.config.in_flight_max)
    }

    /// Sends queued requests as far as possible.
    pub(crate) fn pump(&mut self) {
        let mut at = 0;
        while let Some(queued) = self.queue.get(at) {
            if self.may_send(&queued.out) {
                if let Some(queued) = self.queue.remove(at) {
                    self.send_new(queued);
                }
            } else {
                // One further back may be allowed during recovery.
                at += 1;
            }
        }
        self.pump_waiting();
    }

    pub(crate) fn pump_waiting(&mut self) {
        while self.state == State::Full && self.closing.is_none() {
            let Some(queued) = self.waiting.pop(&self.slots) else { break };
            self.send_new(queued);
        }
    }

    fn send_new(&mut self, queued: Queued) {
        let Queued { id, out, refused } = queued;
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
            taken_in: false,
            no_resend: out.no_resend,
            keep_open: out.keep_open,
            keep_answer: out.keep_answer,
            timeout,
            deadline: self.now + timeout,
            at: self.now,
            refused,
            submitted: Submitted { slot: out.slot, turn: out.turn, during_recovery: out.during_recovery },
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
            taken_in: false,
            no_resend: purpose == Purpose::Ping,
            keep_open: false,
            keep_answer: false,
            timeout,
            deadline: self.now + timeout,
            at: self.now,
            refused: 0,
            submitted: Submitted { slot: Slot::None, turn: 0, during_recovery: false },
        });
    }

    /// Sends a request for the first time with its xid.
    pub(crate) fn transmit(&mut self, sent: Sent) {
        self.count(sent.frame.header.opcode).sent += 1;
        self.earliest = self.earliest.min(sent.deadline);
        let (xid, frame, timeout) = (sent.frame.header.xid, sent.frame.clone(), sent.timeout);
        self.sent.insert(xid, sent);
        self.put_on_wire(frame, timeout);
    }

    /// Fills in the header fields of the connection and sends.
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

    /// The last xid that was used.
    pub fn newest_xid(&self) -> Xid {
        Xid(self.next_xid - 1)
    }

    pub(crate) fn take_xid(&mut self) -> Xid {
        let xid = Xid(self.next_xid);
        self.next_xid += 1;
        xid
    }

    // --- replies ---

    /// Handles a reply on the current connection.
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
            self.taken_in(xid);
            return;
        }
        match Errno::from_status(reply.header.status) {
            Err(Errno::ENOTCONN | Errno::ESHUTDOWN) if sent.purpose != Purpose::Disconnect => {
                // The server does not know this session (any more): reconnect to find out what happened to it.
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

    /// Deadline of a request that sets none itself.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.config.timeouts.request_timeout(self.service.worst(), self.network.worst())
    }

    /// Changes the timeouts, for requests from now on.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) {
        self.config.timeouts = timeouts.clone();
    }

    /// Updates the estimates: the server's from each reply, the network's from pings, which the server answers at once.
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
            // Copied, because the reply shares its buffer with other frames.
            frame.bulk = Bytes::copy_from_slice(&reply.body);
        }
        self.replay.keep(frame, sent.keep_open);
    }

    pub(crate) fn learn_committed(&mut self, transno: Transno) {
        self.seen.1 = self.seen.1.max(transno);
        self.replay.committed(transno);
    }

    /// A peer has a request of this server, which so gives its slot back: what it waits for there may need other requests.
    fn taken_in(&mut self, xid: Xid) {
        let of_server = |sent: &&mut Sent| self.config.lightweight && sent.slot != Slot::None && !sent.taken_in;
        let Some(sent) = self.sent.get_mut(&xid).filter(of_server) else { return };
        sent.taken_in = true;
        self.slots.release(sent.slot, sent.frame.header.tag);
        self.pump_waiting();
    }

    /// Frees the slot of a request that was answered or given up.
    pub(crate) fn release(&mut self, sent: &Sent) {
        match sent.slot {
            _ if sent.taken_in => {}
            Slot::None => self.slotless -= 1,
            slot => self.slots.release(slot, sent.frame.header.tag),
        }
    }

    pub(crate) fn fail(&mut self, id: RequestId, xid: Xid, errno: Errno) {
        self.effects.push_back(ImportEffect::Reply { id, xid, result: Err(errno) });
    }

    /// Fails all requests of the owner, but not those of the import itself.
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
        let refused = core::mem::take(&mut self.refused).into_iter().map(|(_, queued)| queued);
        for queued in core::mem::take(&mut self.queue).into_iter().chain(self.waiting.drain()).chain(refused) {
            self.fail(queued.id, Xid(0), errno);
        }
    }

    /// Fails the requests that were valid on the lost connection only.
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
        unsent.extend(self.refused.extract_if(.., |(_, queued)| queued.out.no_resend).map(|(_, queued)| queued.id));
        while let Some(queued) = self.waiting.remove(|queued| queued.out.no_resend) {
            unsent.push(queued.id);
        }
        for id in unsent {
            self.fail(id, Xid(0), Errno::ETIMEDOUT);
        }
    }

    /// Whether a soft import has been out of service for longer than [`Config::soft`].
    pub(crate) fn soft_limit_passed(&self) -> bool {
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
