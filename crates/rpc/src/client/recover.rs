//! Replay: giving back to a restarted server what it lost.
//!
//! ```text
//! REPLAY         requests by transno, up to a window at once; the server orders those of all clients
//!    │           PING with REQ_REPLAY_DONE; answered when all clients are done
//! REPLAY_LOCKS   locks, from the owner in parts, many in one request, up to a window of those at once
//!    │           changes that were never answered are sent again, in the order of xids
//!    │           PING with LOCK_REPLAY_DONE, which names these; answered when the target serves again
//! REPLAY_WAIT
//! RECOVER        whatever else was never answered is sent again, in the order of xids
//! FULL
//! ```
//! Others may have seen a change that was not answered. So the server does those again before it serves anybody.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use prost::Message;
use proto::connect::features;
use proto::frame::flags;
use proto::msg::{EnqueueRep, EnqueueReq, PingReq, Policy, ReplayLocksRep, ReplayLocksReq};
use proto::{Errno, Frame, Opcode, Transno, Xid};
use stdx::Instant;
use stdx::faults::sites;

use super::ImportEffect;
use super::import::{Import, Purpose, Sent};
use super::state::{Progress, State};
use crate::{REPLAY_WINDOW, Slot};

/// Bytes of replays that are sent before the server has answered them all; it keeps those that wait for their turn.
const REPLAY_BYTES: usize = 8 << 20;

/// Bytes of locks after which a request that replays them is full: a thousand and some. The server runs it in one go, so
/// that other clients wait for it: less than a millisecond.
const LOCKS_BYTES: usize = 64 << 10;

/// So many of those at once: while the server runs one the next is on its way.
const LOCKS_WINDOW: usize = 4;

/// How far the replay has come.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) progress: Progress,
    /// The last request that was sent for replay.
    cursor: Transno,
    /// Sent for replay, not answered; with the one that was sent before it.
    replaying: BTreeMap<Transno, (Xid, Transno)>,
    /// Bytes of those.
    bytes: usize,
    locks: VecDeque<EnqueueReq>,
    /// The owner was asked for locks, and has not answered.
    locks_asked: bool,
    /// It has given the first of them.
    locks_begun: bool,
    /// It has given the last of them.
    locks_given: bool,
    locks_in_flight: usize,
    /// By when the next replay must be answered.
    deadline: Instant,
    /// A site of fault injection lets the next replay wait.
    pause: Option<Pause>,
}

/// A wait that ends when its time has come, or when its site is not named any more.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    look: Instant,
}

/// How long the site lets the next replay wait, unless `fail_val` says otherwise, and how often it is looked at.
const PAUSE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

impl Default for Recovery {
    fn default() -> Recovery {
        Recovery {
            progress: Progress::None,
            cursor: Transno(0),
            replaying: BTreeMap::new(),
            bytes: 0,
            locks: VecDeque::new(),
            locks_asked: false,
            locks_begun: false,
            locks_given: false,
            locks_in_flight: 0,
            deadline: Instant::FAR,
            pause: None,
        }
    }
}

impl Recovery {
    pub(crate) fn deadline(&self) -> Instant {
        self.pause.map_or(self.deadline, |pause| self.deadline.min(pause.look))
    }

    /// Up to where the target has done again what it lost; `None` if it has all of it.
    pub(crate) fn replayed(&self) -> Option<Transno> {
        let first = self.replaying.keys().next();
        (self.progress == Progress::Requests).then(|| first.map_or(self.cursor, |first| Transno(first.0 - 1)))
    }

    pub(crate) fn stop_clock(&mut self) {
        self.deadline = Instant::FAR;
    }
}

impl Import {
    /// Locks to be replayed, after [`ImportEffect::ReplayLocks`]: those that were granted, with the server's old handles.
    /// As many as the owner likes at once; an empty list says that there are no more.
    pub fn locks_to_replay(&mut self, now: Instant, locks: Vec<EnqueueReq>) {
        self.now = now;
        if self.recovery.progress != Progress::Locks || !self.recovery.locks_asked {
            return;
        }
        self.recovery.locks_asked = false;
        self.recovery.locks_begun = true;
        self.recovery.locks_given = locks.is_empty();
        self.recovery.locks.extend(locks);
        if self.state == State::ReplayLocks {
            self.send_locks();
        }
    }

    /// The target recovers, and nothing of this client was there.
    pub(crate) fn declare_done(&mut self) {
        self.start_over(Progress::Locks);
        self.set_state(State::ReplayLocks);
        self.send_requests_done();
    }

    pub(crate) fn replay_all(&mut self) {
        stdx::mark!("import.replay");
        self.start_over(Progress::Requests);
        self.set_state(State::Replay);
        self.replay_some();
    }

    /// What was done of an earlier recovery counts for nothing, nor what the owner was asked for in it.
    fn start_over(&mut self, progress: Progress) {
        self.forget_own_requests();
        self.effects.retain(|effect| !matches!(effect, ImportEffect::ReplayLocks { .. }));
        self.recovery = Recovery { progress, ..Recovery::default() };
    }

    pub(crate) fn resume_replay(&mut self) {
        stdx::mark!("import.resume_replay");
        match self.recovery.progress {
            Progress::Requests => {
                self.set_state(State::Replay);
                let again: Vec<_> = self.recovery.replaying.iter().map(|(at, (_, before))| (*at, *before)).collect();
                for (transno, before) in again {
                    // What became durable meanwhile needs no replay; its answer is not missed.
                    let frame =
                        self.replay.after(Transno(transno.0 - 1)).filter(|f| f.header.transno == transno).cloned();
                    match frame {
                        Some(mut frame) => {
                            frame.header.flags |= flags::RESENT;
                            self.send_replay(frame, before);
                        }
                        None => drop(self.recovery.replaying.remove(&transno)),
                    }
                }
                self.replay_some();
            }
            Progress::Locks => {
                self.set_state(State::ReplayLocks);
                self.resend_own();
                if self.recovery.locks_begun {
                    self.send_locks();
                }
            }
            Progress::Waiting => {
                self.forget_own_requests();
                self.wait_for_others();
            }
            Progress::None => self.replay_all(),
        }
    }

    /// Time has passed: a replay that waited at a site may go on.
    pub(crate) fn replay_goes_on(&mut self) {
        match self.recovery.pause {
            Some(_) if self.state != State::Replay => self.recovery.pause = None,
            Some(pause) if pause.look <= self.now => self.replay_some(),
            _ => {}
        }
    }

    /// Whether the next replay waits.
    fn replay_waits(&mut self) -> bool {
        let (now, site) = (self.now, sites::PTLRPC_REPLAY_PAUSE);
        let until = match self.recovery.pause {
            Some(pause) => Some(pause.until).filter(|until| *until > now && self.config.faults.names(site)),
            None => self.config.faults.delay(site, PAUSE).map(|time| now + time),
        };
        self.recovery.pause = until.map(|until| Pause { until, look: until.min(now + LOOK) });
        until.is_some()
    }

    fn replay_some(&mut self) {
        if self.replay_waits() {
            return;
        }
        if self.recovery.replaying.is_empty() {
            self.recovery.bytes = 0;
        }
        while self.recovery.replaying.len() < REPLAY_WINDOW && self.recovery.bytes < REPLAY_BYTES {
            let Some(frame) = self.replay.after(self.recovery.cursor).cloned() else { break };
            let before = core::mem::replace(&mut self.recovery.cursor, frame.header.transno);
            self.recovery.replaying.insert(frame.header.transno, (frame.header.xid, before));
            self.recovery.bytes += frame.wire_len();
            self.send_replay(frame, before);
        }
        if self.recovery.replaying.is_empty() {
            self.recovery.stop_clock();
            self.recovery.progress = Progress::Locks;
            self.set_state(State::ReplayLocks);
            self.send_requests_done();
        }
    }

    /// Each replay names the one before it, so that the server notices if one is missing.
    fn send_replay(&mut self, mut frame: Frame, before: Transno) {
        frame.header.last_committed = before;
        self.count(frame.header.opcode).replayed += 1;
        let timeout = self.request_timeout();
        self.recovery.deadline = self.now + timeout;
        self.put_on_wire(frame, timeout);
    }

    /// Gives whether the reply is one to a replay.
    pub(crate) fn replay_answered(&mut self, reply: &Frame) -> bool {
        let xid = reply.header.xid;
        let Some((&transno, _)) = self.recovery.replaying.iter().find(|(_, (replaying, _))| *replaying == xid) else {
            return false;
        };
        let more = match reply.header.has(flags::EARLY) {
            true => core::time::Duration::from_millis(u64::from(reply.header.timeout_ms)),
            false => self.request_timeout(),
        };
        self.recovery.deadline = self.recovery.deadline.max(self.now + more);
        if reply.header.has(flags::EARLY) {
            return true;
        }
        match Errno::from_status(reply.header.status) {
            Err(Errno::ENOTCONN | Errno::ESHUTDOWN) => {
                self.suspect();
                return true;
            }
            Err(errno) => {
                let target = &self.config.target;
                let line = format!(
                    "{target} could not do a change again that it had lost (xid {xid}, {}): it is lost",
                    errno.name()
                );
                self.log(line);
                self.replay.refuse(xid);
            }
            Ok(()) => {}
        }
        self.recovery.replaying.remove(&transno);
        self.effects.push_back(ImportEffect::Replayed { xid, reply: reply.clone() });
        self.replay_some();
        true
    }

    fn send_requests_done(&mut self) {
        self.send_ping(flags::REQ_REPLAY_DONE, Purpose::RequestsDone, Vec::new());
    }

    fn send_ping(&mut self, flag: u32, purpose: Purpose, unanswered: Vec<u64>) {
        let timeout = self.request_timeout();
        let body = PingReq { unanswered }.encode_to_vec();
        self.transmit_new(Opcode::Ping, body.into(), flag, purpose, timeout);
    }

    /// Everything is replayed. Changes that were not answered are sent again before that is said.
    fn wait_for_others(&mut self) {
        self.set_state(State::ReplayWait);
        let changes = |sent: &Sent| matches!(sent.purpose, Purpose::Owner(_)) && sent.slot != Slot::None;
        let unanswered = self.resend(changes);
        if !unanswered.is_empty() {
            stdx::mark!("import.resent_in_recovery");
        }
        self.send_ping(flags::LOCK_REPLAY_DONE, Purpose::LocksDone, unanswered);
    }

    /// All clients have replayed their requests.
    pub(crate) fn requests_done(&mut self) {
        if self.recovery.progress == Progress::Locks && !self.recovery.locks_begun {
            self.ask_for_locks();
        }
    }

    fn ask_for_locks(&mut self) {
        if !core::mem::replace(&mut self.recovery.locks_asked, true) {
            self.effects.push_back(ImportEffect::ReplayLocks { first: !self.recovery.locks_begun });
        }
    }

    fn send_locks(&mut self) {
        let batches = self.granted.features & features::BATCH_RPC != 0;
        let window = if batches { LOCKS_WINDOW } else { REPLAY_WINDOW };
        while self.recovery.locks_in_flight < window {
            let Some(lock) = self.recovery.locks.pop_front() else {
                if !self.recovery.locks_given {
                    self.ask_for_locks();
                    return;
                }
                break;
            };
            self.recovery.locks_in_flight += 1;
            if batches {
                self.send_batch(&lock);
            } else {
                self.send_lock(&lock);
            }
        }
        if self.recovery.locks_in_flight == 0 {
            self.recovery.progress = Progress::Waiting;
            self.wait_for_others();
        }
    }

    /// As many locks as go into one request, from `first` on.
    fn send_batch(&mut self, first: &EnqueueReq) {
        let mut locks = Vec::with_capacity(LOCKS_BYTES + 256);
        ReplayLocksReq::push(&mut locks, first);
        while locks.len() < LOCKS_BYTES
            && let Some(lock) = self.recovery.locks.pop_front()
        {
            ReplayLocksReq::push(&mut locks, &lock);
        }
        let (body, timeout) = (ReplayLocksReq { locks: locks.into() }.encode_to_vec(), self.request_timeout());
        self.transmit_new(Opcode::LdlmReplay, body.into(), flags::REPLAY, Purpose::Locks, timeout);
    }

    /// For a server that knows no batches.
    fn send_lock(&mut self, lock: &EnqueueReq) {
        let (body, timeout) = (lock.encode_to_vec().into(), self.request_timeout());
        self.transmit_new(Opcode::LdlmEnqueue, body, flags::REPLAY, Purpose::Lock(lock.cookie), timeout);
    }

    pub(crate) fn lock_replayed(&mut self, cookie: u64, reply: &Frame) {
        let handle = Errno::from_status(reply.header.status).and_then(|()| {
            let grant = reply.decode::<EnqueueRep>().map_err(|_| Errno::EPROTO)?.grant;
            let record = |policy| matches!(policy, Some(Policy::Flock(_)));
            Ok(grant.filter(|grant| !record(grant.policy)).map_or(0, |grant| grant.handle))
        });
        self.locks_answered(vec![(cookie, handle)]);
    }

    /// A batch is answered; an error of the whole is one of each.
    pub(crate) fn locks_replayed(&mut self, sent: &Frame, reply: &Frame) {
        let asked = sent.decode::<ReplayLocksReq>().unwrap_or_default();
        let answer = Errno::from_status(reply.header.status)
            .and_then(|()| reply.decode::<ReplayLocksRep>().map_err(|_| Errno::EPROTO));
        let mut locks: Vec<(u64, Result<u64, Errno>)> = asked
            .iter()
            .flatten()
            .enumerate()
            .map(|(at, lock)| {
                let handle = answer.as_ref().map_err(|errno| *errno);
                (lock.cookie, handle.and_then(|answer| answer.handles.get(at).copied().ok_or(Errno::EPROTO)))
            })
            .collect();
        for failure in answer.iter().flat_map(|answer| &answer.failed) {
            if let Some((_, result)) = locks.get_mut(failure.index as usize) {
                *result = Err(Errno::from_raw(failure.errno));
            }
        }
        self.locks_answered(locks);
    }

    fn locks_answered(&mut self, locks: Vec<(u64, Result<u64, Errno>)>) {
        self.effects.push_back(ImportEffect::LocksReplayed(locks));
        self.recovery.locks_in_flight -= 1;
        if self.state == State::ReplayLocks {
            self.send_locks();
        }
    }

    /// The target serves again.
    pub(crate) fn locks_done(&mut self) {
        self.set_state(State::Recover);
        self.resend_unanswered();
        self.serve(false);
    }

    /// Sends again what the owner asked for and was not answered.
    pub(crate) fn resend_unanswered(&mut self) {
        self.forget_own_requests();
        self.resend(|_| true);
    }

    /// The import's own requests were for a state that is past.
    fn forget_own_requests(&mut self) {
        self.sent.retain(|_, sent| matches!(sent.purpose, Purpose::Owner(_) | Purpose::Disconnect));
    }

    /// Sends again what was not answered, as far as it is chosen, in the order of xids. Gives these.
    pub(crate) fn resend(&mut self, chosen: impl Fn(&Sent) -> bool) -> Vec<u64> {
        let xids: Vec<Xid> = self.sent.iter().filter(|(_, sent)| chosen(sent)).map(|(xid, _)| *xid).collect();
        for xid in &xids {
            let Some(sent) = self.sent.get_mut(xid) else { continue };
            sent.frame.header.flags |= flags::RESENT;
            sent.deadline = self.now + sent.timeout;
            sent.at = self.now;
            let (frame, timeout) = (sent.frame.clone(), sent.timeout);
            self.earliest = self.earliest.min(sent.deadline);
            self.count(frame.header.opcode).resent += 1;
            self.put_on_wire(frame, timeout);
        }
        xids.into_iter().map(|xid| xid.0).collect()
    }

    /// Sends the import's own requests again, while the owner's still wait.
    fn resend_own(&mut self) {
        self.resend(|sent| !matches!(sent.purpose, Purpose::Owner(_)));
    }
}
