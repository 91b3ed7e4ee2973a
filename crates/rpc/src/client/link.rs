//! The connection of an import: dialling, the connect exchange, loss of the connection, deadlines.

use core::time::Duration;

use bytes::Bytes;
use prost::Message;
use proto::connect::PROTOCOL_VERSION;
use proto::frame::flags;
use proto::msg::{ConnectRep, ConnectReq, PingReq};
use proto::{Errno, Frame, Handle, Header, Nid, Opcode, Transno, Xid};
use stdx::Instant;

use super::import::{Import, Purpose, Sent};
use super::state::{AfterConnect, ConnectFacts, State, after_connect};
use super::{ImportEffect, Progress, Trouble};
use crate::Link;

/// Shortest and longest delay between two attempts. The very first retry is immediate.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// A connection that lasted this long counts as working: when it breaks, the retry is immediate.
const GOOD_CONNECTION_MIN: Duration = Duration::from_secs(1);
/// Delay after a refusal that an immediate retry would hardly change.
const REFUSED_RETRY: Duration = Duration::from_secs(5);

/// State of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No connection.
    Down,
    /// Dial requested.
    Dialling { link: Link, since: Instant, deadline: Instant },
    /// Established; the connect request was sent.
    Connecting { link: Link, xid: Xid, deadline: Instant },
    /// In use.
    Up { link: Link, since: Instant },
}

impl Phase {
    pub(crate) fn link(self) -> Option<Link> {
        match self {
            Phase::Down | Phase::Dialling { .. } => None,
            Phase::Connecting { link, .. } | Phase::Up { link, .. } => Some(link),
        }
    }

    fn any_link(self) -> Option<Link> {
        match self {
            Phase::Dialling { link, .. } => Some(link),
            _ => self.link(),
        }
    }
}

/// State of connection attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    at: Option<Instant>,
    attempts: u32,
    /// The refusal that was reported to the owner.
    reported: Option<Errno>,
    /// Index of the address that is tried or in use.
    nid: usize,
}

impl Import {
    pub(crate) fn dial(&mut self) {
        self.conn_cnt += 1;
        let link = Link(u64::from(self.conn_cnt));
        self.retry.at = None;
        // A host name may resolve to several addresses, which the driver tries in turn.
        let deadline = self.now + self.config.connect_timeout * 4;
        self.phase = Phase::Dialling { link, since: self.now, deadline };
        self.set_state(State::Connecting);
        let nids = self.current_nid().cloned().into_iter().collect();
        self.effects.push_back(ImportEffect::Dial { link, nids });
    }

    /// The address that is tried or in use.
    pub(crate) fn current_nid(&self) -> Option<&Nid> {
        self.config.nids.get(self.retry.nid)
    }

    /// Moves on to the next address.
    fn next_nid(&mut self) {
        self.retry.nid = (self.retry.nid + 1).checked_rem(self.config.nids.len()).unwrap_or(0);
    }

    pub(crate) fn dialled(&mut self, link: Link) {
        if !matches!(self.phase, Phase::Dialling { link: current, .. } if current == link) {
            // The attempt was given up meanwhile.
            self.effects.push_back(ImportEffect::Hangup(link));
            return;
        }
        let xid = self.take_xid();
        let deadline = self.now + self.config.connect_timeout;
        self.phase = Phase::Connecting { link, xid, deadline };
        let body = ConnectReq {
            client_uuid: self.config.uuid.to_bytes(),
            target: self.config.target.clone(),
            features: self.config.features,
            version: PROTOCOL_VERSION,
            brw_size: proto::connect::BRW_SIZE_MAX,
            lightweight: self.config.lightweight,
            description: self.config.description.clone(),
            first_replay_transno: self.replay.first().0,
            read_only: self.config.read_only,
            grant: self.grant,
            seen_committed: self.seen.1.0,
            seen_store: self.seen.0.clone(),
            write_back_credits: self.write_back_credits,
        };
        let header = Header {
            opcode: Opcode::Connect as u16,
            flags: if self.export.0 == 0 { flags::CONNECT_INITIAL } else { flags::CONNECT_RECONNECT },
            conn_cnt: self.conn_cnt,
            export: self.export,
            xid,
            timeout_ms: u32::try_from(self.config.connect_timeout.as_millis()).unwrap_or(u32::MAX),
            ..Header::default()
        };
        let frame = Frame { header, body: body.encode_to_vec().into(), bulk: Bytes::new() };
        self.effects.push_back(ImportEffect::Send { link, frame });
    }

    pub(crate) fn dial_failed(&mut self, link: Link, reason: &str) {
        if self.phase.any_link() != Some(link) {
            return;
        }
        if self.retry.attempts == 1 {
            self.log(format!("{}: no connection ({reason}); trying again until there is one", self.config.target));
        }
        self.trouble = Some(Trouble::Unreachable(reason.to_owned()));
        self.lost(None);
    }

    pub(crate) fn link_closed(&mut self, link: Link) {
        if self.phase.any_link() == Some(link) {
            self.trouble = Some(Trouble::HungUp);
            self.lost(None);
        }
    }

    /// Drops the connection, because a deadline passed or the server does not know the session.
    pub(crate) fn suspect(&mut self) {
        if let Some(link) = self.phase.any_link() {
            self.effects.push_back(ImportEffect::Hangup(link));
        }
        self.trouble = Some(Trouble::Silent);
        self.lost(None);
    }

    /// The connection is lost. Retries after `delay`, by default an exponential backoff with jitter.
    fn lost(&mut self, delay: Option<Duration>) {
        if let Phase::Up { since, .. } = self.phase
            && self.now.since(since) >= GOOD_CONNECTION_MIN
        {
            self.retry.attempts = 0;
        } else {
            self.next_nid();
        }
        self.phase = Phase::Down;
        if self.state == State::Closed {
            return;
        }
        self.set_state(State::Disconn);
        self.fail_unrepeatable();
        if !self.reconnects() {
            self.close();
            return;
        }
        self.sent.retain(|_, sent| sent.purpose != Purpose::Disconnect);
        let delay = delay.unwrap_or_else(|| match self.retry.attempts {
            0 => Duration::ZERO,
            n => {
                let longest = (RETRY_MIN * (1 << (n - 1).min(10))).min(RETRY_MAX);
                let micros = longest.as_micros() as u64;
                Duration::from_micros(self.rng.range(micros / 2, micros))
            }
        });
        self.retry.attempts += 1;
        if delay.is_zero() {
            self.dial();
        } else {
            self.retry.at = Some(self.now + delay);
        }
    }

    /// Closes the import.
    pub(crate) fn close(&mut self) {
        if let Some(link) = self.phase.any_link() {
            self.effects.push_back(ImportEffect::Hangup(link));
        }
        self.phase = Phase::Down;
        self.set_state(State::Closed);
        self.sent.retain(|_, sent| matches!(sent.purpose, Purpose::Owner(_)));
        self.fail_all(Errno::ESHUTDOWN);
        self.effects.push_back(ImportEffect::Disconnected);
    }

    pub(crate) fn target_moved(&mut self, nids: Vec<Nid>, instance: u64) {
        let moved = !nids.is_empty() && nids != self.config.nids;
        if moved {
            self.config.nids = nids;
            self.retry.nid = 0;
        }
        let restarted = instance > self.known_instance;
        self.known_instance = self.known_instance.max(instance);
        if self.state == State::Closed || !(moved || restarted) {
            return;
        }
        match self.phase {
            // Already connected to the restarted target.
            Phase::Up { .. } if self.granted.instance >= self.known_instance => {}
            Phase::Up { .. } | Phase::Connecting { .. } => {
                self.retry.attempts = 0;
                self.suspect();
            }
            // A dial that takes long may be stuck at the previous instance.
            Phase::Dialling { since, .. } if !moved && self.now.since(since) < GOOD_CONNECTION_MIN => {}
            Phase::Dialling { .. } | Phase::Down => {
                if let Some(link) = self.phase.any_link() {
                    self.effects.push_back(ImportEffect::Hangup(link));
                }
                self.retry.attempts = 0;
                self.dial();
            }
        }
    }

    pub(crate) fn frame(&mut self, link: Link, frame: Frame) {
        if self.phase.link() != Some(link) {
            stdx::mark!("import.old_link");
            return;
        }
        match self.phase {
            Phase::Connecting { xid, deadline, .. } => {
                // A peer that the server does not admit is answered before its request was read.
                let turned_away = frame.header.xid == Xid(0) && frame.header.status < 0;
                if frame.header.xid != xid && !turned_away || !frame.header.has(flags::REPLY) {
                    return;
                }
                if frame.header.has(flags::EARLY) {
                    let more = Duration::from_millis(u64::from(frame.header.timeout_ms));
                    self.phase = Phase::Connecting { link, xid, deadline: deadline.max(self.now + more) };
                    return;
                }
                self.connect_answered(link, &frame);
            }
            _ if frame.header.has(flags::REPLY) => self.reply(frame),
            _ => self.effects.push_back(ImportEffect::Notice(frame)),
        }
    }

    fn connect_answered(&mut self, link: Link, frame: &Frame) {
        let body = frame.decode::<ConnectRep>();
        if let Err(errno) = Errno::from_status(frame.header.status) {
            let body = body.unwrap_or_default();
            self.effects.push_back(ImportEffect::Hangup(link));
            self.not_connected(errno, body);
            return;
        }
        let refusal = match &body {
            Err(_) => Some("its answer to the connect request cannot be read".to_owned()),
            Ok(reply) if reply.version >> 16 != PROTOCOL_VERSION >> 16 => Some(format!(
                "it speaks protocol version {}, this side {}; upgrade the older side",
                reply.version >> 16,
                PROTOCOL_VERSION >> 16
            )),
            Ok(reply) if reply.features & !self.config.features != 0 => {
                Some("it granted features that were not asked for; report this as a bug".to_owned())
            }
            Ok(_) => None,
        };
        if let Some(why) = refusal {
            self.effects.push_back(ImportEffect::Hangup(link));
            let reason = format!("cannot use target '{}': {why}", self.config.target);
            self.not_connected(Errno::EPROTO, ConnectRep { reason, ..ConnectRep::default() });
            return;
        }
        let reply = body.unwrap_or_default();
        let restarts = reply.instance.saturating_sub(self.granted.instance);
        self.phase = Phase::Up { link, since: self.now };
        self.retry.reported = None;
        self.known_instance = self.known_instance.max(reply.instance);
        let facts = ConnectFacts {
            lightweight: self.config.lightweight,
            has_state: self.export.0 != 0,
            reconnect: frame.header.has(flags::CONNECT_RECONNECT),
            recovering: frame.header.has(flags::CONNECT_RECOVERING),
            same_handle: frame.header.export == self.export,
            same_session: self.granted.session == 0 || [0, self.granted.session].contains(&reply.session),
            progress: self.recovery.progress,
        };
        if self.seen.0 != reply.store {
            // A new store, or an older version of the server: the earlier watermark says nothing about it.
            self.seen = (reply.store.clone(), Transno(0));
        }
        self.export = frame.header.export;
        self.effects.push_back(ImportEffect::Connected(reply.clone()));
        self.granted = reply;
        self.limit_slots();
        let after = after_connect(&facts);
        if after == AfterConnect::Evicted {
            // `last_committed` of this reply does not tell what was lost before it, nor does `started_from` after more
            // than one restart.
            let durable = match restarts {
                0 => self
                    .recovery
                    .replayed()
                    .map_or(Transno(u64::MAX), |done| done.max(Transno(self.granted.started_from))),
                1 => Transno(self.granted.started_from),
                _ => Transno(0),
            };
            return self.evicted(durable, frame.header.last_committed, &facts);
        }
        if let (AfterConnect::ReplayAll, Some(first)) = (after, self.replay.first_refused()) {
            // The target would have evicted this client, but restarted before that. Changes after the first failed
            // replay must not be executed without it.
            let why = "it could not redo a change that depends on a lost one, and has restarted since";
            self.discard_session(Transno(first.0 - 1).min(Transno(self.granted.started_from)), why);
            self.learn_committed(frame.header.last_committed);
            return self.declare_done();
        }
        self.learn_committed(frame.header.last_committed);
        match after {
            AfterConnect::Serve => self.serve(true),
            AfterConnect::DeclareDone => self.declare_done(),
            AfterConnect::ReplayAll => self.replay_all(),
            AfterConnect::ResumeReplay => self.resume_replay(),
            AfterConnect::Resend => {
                self.set_state(State::Recover);
                self.resend_unanswered();
                self.serve(!facts.has_state);
            }
            AfterConnect::Evicted => {}
        }
    }

    /// Enters service. `fresh`: with a new session.
    pub(crate) fn serve(&mut self, fresh: bool) {
        self.recovery.progress = Progress::None;
        self.retry.attempts = self.retry.attempts.min(1);
        self.trouble = None;
        self.set_state(State::Full);
        self.effects.push_back(ImportEffect::Full { fresh });
        if self.closing.is_some() {
            self.send_disconnect();
            return;
        }
        self.retry_busy();
        self.pump();
    }

    /// The client was evicted; answered changes up to `durable` are not lost. A recovering target still waits for the
    /// report that there is nothing to replay.
    fn evicted(&mut self, durable: Transno, last_committed: Transno, facts: &ConnectFacts) {
        stdx::mark!("import.evicted");
        if !facts.recovering {
            self.set_state(State::Evicted);
        }
        let why = match self.granted.reason.as_str() {
            "" if !facts.same_session => "it gave this client up, and its answer that said so was lost".to_owned(),
            "" => "it does not know this client any more (it gives no reason)".to_owned(),
            reason => reason.to_owned(),
        };
        self.discard_session(durable, &why);
        self.learn_committed(last_committed);
        if facts.recovering { self.declare_done() } else { self.serve(true) }
    }

    /// Discards the session's state and reports what is lost: everything but answered changes up to `durable`.
    fn discard_session(&mut self, durable: Transno, why: &str) {
        self.generation += 1;
        self.recovery = Default::default();
        let unanswered = self.sent.values().filter(|sent| matches!(sent.purpose, Purpose::Owner(_))).count();
        self.sent.retain(|_, sent| matches!(sent.purpose, Purpose::Owner(_)));
        self.fail_all(Errno::EIO);
        let lost = self.replay.clear(durable);
        self.effects.push_back(ImportEffect::Loss(format!(
            "{} evicted this client: {why}; {unanswered} requests end with EIO, {} answered changes are lost",
            self.config.target,
            lost.len()
        )));
        self.effects.push_back(ImportEffect::Evicted { lost });
    }

    /// The server refused the connection.
    fn not_connected(&mut self, errno: Errno, body: ConnectRep) {
        let first = self.retry.reported.replace(errno) != Some(errno);
        self.trouble = Some(Trouble::Refused { errno, reason: body.reason.clone() });
        match errno {
            // Temporary: it recovers without this client, starts, stops, or still serves its previous connection.
            Errno::EBUSY | Errno::EAGAIN | Errno::EALREADY | Errno::ENODEV | Errno::ESHUTDOWN | Errno::EINPROGRESS => {
                if first && errno == Errno::EBUSY {
                    self.effects.push_back(ImportEffect::Refused { errno, reason: body.reason });
                }
                self.lost(None);
            }
            _ => {
                if first {
                    let reason = match body.reason.is_empty() {
                        false => body.reason,
                        true => format!("target '{}' refused the connection: {errno}", self.config.target),
                    };
                    self.effects.push_back(ImportEffect::Refused { errno, reason });
                }
                self.lost(Some(REFUSED_RETRY));
            }
        }
    }

    // --- time ---

    pub(crate) fn link_deadline(&self) -> Instant {
        match self.phase {
            Phase::Down => self.retry.at.unwrap_or(Instant::FAR),
            Phase::Dialling { deadline, .. } | Phase::Connecting { deadline, .. } => deadline,
            Phase::Up { .. } => Instant::FAR,
        }
    }

    pub(crate) fn tick(&mut self) {
        if self.state == State::Closed {
            return;
        }
        if self.closing.is_some_and(|until| until <= self.now) {
            self.close();
            return;
        }
        if self.link_deadline() <= self.now {
            match self.phase {
                Phase::Down => self.dial(),
                _ => self.suspect(),
            }
        }
        if self.earliest <= self.now {
            let up = matches!(self.phase, Phase::Up { .. });
            // Deadlines count only while connected; they are set again when requests are resent. During a replay only
            // the import's own requests have deadlines.
            let serving = matches!(self.state, State::Full | State::Recover);
            let waited_for = |sent: &&Sent| up && (serving || !matches!(sent.purpose, Purpose::Owner(_)));
            self.earliest =
                self.sent.values().filter(waited_for).map(|sent| sent.deadline).min().unwrap_or(Instant::FAR);
            let late = self.earliest <= self.now;
            if late {
                stdx::mark!("import.timeout");
                self.timeouts += 1;
                self.earliest = Instant::FAR;
                self.suspect();
            }
        }
        self.resume_paused_replay();
        if self.recovery.deadline() <= self.now {
            self.timeouts += 1;
            self.recovery.stop_clock();
            self.suspect();
        }
        if self.soft_limit_passed() && self.has_requests() {
            stdx::mark!("import.soft");
            self.fail_all(Errno::EIO);
        }
        if self.state == State::Full {
            self.retry_busy();
            if self.ping_at() <= self.now {
                let timeout = self.request_timeout();
                self.transmit_new(Opcode::Ping, PingReq::default().encode_to_vec().into(), 0, Purpose::Ping, timeout);
            }
        }
    }

    /// The export handle, for tests and status.
    pub fn handle_on_server(&self) -> Handle {
        self.export
    }
}
