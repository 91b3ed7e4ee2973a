//! Replay: restoring to a restarted server what it lost.
//!
//! ```text
//! REPLAY         requests by transno, up to a window at once; the server orders those of all clients
//!    │           PING with REQ_REPLAY_DONE; answered when all clients are done
//! REPLAY_LOCKS   locks, from the owner in parts, many in one request, up to a window of those at once
//!    │           unanswered changes are resent, in the order of xids
//!    │           PING with LOCK_REPLAY_DONE, which lists these; answered when the target is in service
//! REPLAY_WAIT
//! RECOVER        other unanswered requests are resent, in the order of xids
//! FULL
//! ```
//! Other clients may have seen a change that was not answered, so the server executes those again before it serves
//! anybody.

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

/// Most bytes of replays in flight; the server keeps in memory those that are not yet due.
const REPLAY_BYTES: usize = 8 << 20;

/// Size at which a lock replay request is full, in bytes: somewhat over a thousand locks. The server executes it in one
/// step, less than a millisecond in which other clients wait.
const LOCKS_BYTES: usize = 64 << 10;

/// Most lock replay requests in flight, so that the next one is on its way while the server executes one.
const LOCKS_WINDOW: usize = 4;

/// State of the replay.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) progress: Progress,
    /// Transno of the last request sent for replay.
    cursor: Transno,
    /// Replays in flight by transno: xid, and the transno of the replay sent before it.
    replaying: BTreeMap<Transno, (Xid, Transno)>,
    /// Bytes of the replays sent since the window was last empty.
    bytes: usize,
    locks: VecDeque<EnqueueReq>,
    /// The owner was asked for locks and has not answered.
    locks_asked: bool,
    /// The owner has provided the first locks.
    locks_begun: bool,
    /// The owner has provided the last locks.
    locks_given: bool,
    locks_in_flight: usize,
    /// Deadline of the next reply to a replay.
    deadline: Instant,
    /// Set while a fault injection site delays the next replay.
    pause: Option<Pause>,
}

/// A delay that ends at `until`, or as soon as its fault site is disabled.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    next_check: Instant,
}

/// Default delay at the fault site, unless `fail_val` sets one, and the interval at which the site is checked.
const PAUSE_DEFAULT: Duration = Duration::from_secs(10);
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

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
        self.pause.map_or(self.deadline, |pause| self.deadline.min(pause.next_check))
    }

    /// Transno up to which the target has executed this client's replays; `None` if it has everything.
    pub(crate) fn replayed(&self) -> Option<Transno> {
        let first = self.replaying.keys().next();
        (self.progress == Progress::Requests).then(|| first.map_or(self.cursor, |first| Transno(first.0 - 1)))
    }

    pub(crate) fn stop_clock(&mut self) {
        self.deadline = Instant::FAR;
    }
}

impl Import {
    /// Provides locks to replay, after [`ImportEffect::ReplayLocks`]: granted locks with the server's old handles, any
    /// number at a time. An empty list ends it.
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

    /// The target recovers, and this client has nothing to replay.
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

    /// Restarts the recovery and drops the state of an earlier one, including an open request for locks to the owner.
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
                    // What became durable meanwhile needs no replay, and its reply is not needed.
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

    /// Continues a replay that a fault site delayed, if it is time.
    pub(crate) fn resume_paused_replay(&mut self) {
        match self.recovery.pause {
            Some(_) if self.state != State::Replay => self.recovery.pause = None,
            Some(pause) if pause.next_check <= self.now => self.replay_some(),
            _ => {}
        }
    }

    /// Whether a fault site delays the next replay.
    fn replay_is_paused(&mut self) -> bool {
        let (now, site) = (self.now, sites::PTLRPC_REPLAY_PAUSE);
        let until = match self.recovery.pause {
            Some(pause) => Some(pause.until).filter(|until| *until > now && self.config.faults.names(site)),
            None => self.config.faults.delay(site, PAUSE_DEFAULT).map(|time| now + time),
        };
        self.recovery.pause = until.map(|until| Pause { until, next_check: until.min(now + PAUSE_CHECK_INTERVAL) });
        until.is_some()
    }

    fn replay_some(&mut self) {
        if self.replay_is_paused() {
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

    /// Sends a replay. It carries the transno of the previous one, so that the server detects a missing replay.
    fn send_replay(&mut self, mut frame: Frame, before: Transno) {
        frame.header.last_committed = before;
        self.count(frame.header.opcode).replayed += 1;
        let timeout = self.request_timeout();
        self.recovery.deadline = self.now + timeout;
        self.put_on_wire(frame, timeout);
    }

    /// Handles the reply to a replay. Returns false if it is a reply to another request.
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

    /// Everything is replayed: resends unanswered changes, then reports that the replay is complete.
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

    /// Sends one request with as many locks as fit, beginning with `first`.
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

    /// Sends one lock, to a server that does not support many per request.
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

    /// Handles the reply to a request with many locks. An error of the request is an error of each lock.
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

    /// The target is in service again.
    pub(crate) fn locks_done(&mut self) {
        self.set_state(State::Recover);
        self.resend_unanswered();
        self.serve(false);
    }

    /// Resends the owner's unanswered requests.
    pub(crate) fn resend_unanswered(&mut self) {
        self.forget_own_requests();
        self.resend(|_| true);
    }

    /// Drops the import's own requests, which belong to an earlier state.
    fn forget_own_requests(&mut self) {
        self.sent.retain(|_, sent| matches!(sent.purpose, Purpose::Owner(_) | Purpose::Disconnect));
    }

    /// Resends the unanswered requests that `chosen` accepts, in the order of xids. Returns their xids.
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

    /// Resends the import's own requests only.
    fn resend_own(&mut self) {
        self.resend(|sent| !matches!(sent.purpose, Purpose::Owner(_)));
    }
}
