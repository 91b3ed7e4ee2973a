//! Fault injection in a target: requests and replies that are lost or delayed at the sites of [`stdx::faults`].
//!
//! A request is lost after its `last_xid` was noted and recovery has let it pass, right before it would be executed or
//! answered from its record; replays are not lost here. A reply is lost after the change and its reply record are made.
//! Operations that Lustre sends as an enqueue with an intent (open, lookup) count as enqueues: such a change is hit by
//! the sites of opens and enqueues, not by those of changes.
//!
//! A batch of changes is one request, with one xid, tag, transno and reply record. So the sites of changes hit it as a
//! whole: all of its changes are lost, or the reply to all of them.
//!
//! A request (or connect) that a site delays is held by a timer, which checks every tenth of a second whether the site
//! is still enabled, and ends the delay if not.

use core::time::Duration;

use proto::frame::flags;
use proto::msg::{ConnectReq, Reint, ReintReq};
use proto::{ClientUuid, Errno, Frame, Handle, Header, Opcode, TargetKind};
use rpc::server::Arrival;
use stdx::faults::sites;
use stdx::{Faults, Instant, Set, Site};

use crate::api::ConnId;
use crate::machine::{Machine, Target, Timer};
use crate::service::Service;

/// The kind of request that a site affects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// Every request.
    All,
    /// Attributes by FID.
    Getattr,
    /// Opens.
    Open,
    /// Changes that are not opens, alone or in batches.
    Reint,
    /// Closes.
    Close,
    /// Locks, opens, lookups.
    Enqueue,
    /// Pings.
    Ping,
}

/// How often a site strikes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Once, even if it is enabled for more.
    Once,
    /// While it is enabled.
    Each,
}

type Row = (Site, Whom, How);

/// Sites of metadata targets at which a request is lost.
const MDS_REQUESTS: &[Row] = &[
    (sites::MDS_GETATTR_NET, Whom::Getattr, How::Once),
    (sites::MDS_REINT_NET, Whom::Reint, How::Once),
    (sites::MDS_OPEN_NET, Whom::Open, How::Once),
    (sites::MDS_CLOSE_NET, Whom::Close, How::Once),
    (sites::MDS_ALL_REQUEST_NET, Whom::All, How::Once),
    (sites::MDS_REINT_MULTI_NET, Whom::Reint, How::Each),
];

/// Sites of all targets at which a request is lost.
const REQUESTS: &[Row] =
    &[(sites::LDLM_ENQUEUE_NET, Whom::Enqueue, How::Once), (sites::OBD_PING_NET, Whom::Ping, How::Once)];

/// Sites of all targets at which an answer is lost.
const REPLIES: &[Row] = &[(sites::LDLM_REPLY, Whom::Enqueue, How::Once), (sites::TGT_REPLY_NET, Whom::All, How::Once)];

/// Sites of metadata targets at which a request is delayed, and the default delay unless `fail_val` sets one.
const DELAYS: &[(Site, Whom, Duration)] = &[
    (sites::MDS_PAUSE_OPEN, Whom::Open, Duration::from_secs(25)),
    (sites::MDS_REINT_DELAY, Whom::Reint, Duration::from_secs(10)),
];

/// Default time that a request waits for its second copy.
const RACE: Duration = Duration::from_secs(5);
/// Default delay of a reconnecting client.
const RECONNECT_DELAY: Duration = Duration::from_secs(200);
/// Interval of checks whether the site of a held request is still enabled.
const HOLD_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sites of metadata targets at which an answer is lost.
const MDS_REPLIES: &[Row] = &[
    (sites::MDS_REINT_NET_REP, Whom::Reint, How::Once),
    (sites::MDS_CLOSE_NET_REP, Whom::Close, How::Once),
    (sites::MDS_ALL_REPLY_NET, Whom::All, How::Once),
    (sites::MDS_LDLM_REPLY_NET, Whom::Enqueue, How::Once),
    (sites::MDS_REINT_MULTI_NET_REP, Whom::Reint, How::Each),
];

impl Whom {
    fn is(self, opcode: u16, opens: bool) -> bool {
        use Opcode::*;
        let opcode = Opcode::from_raw(opcode);
        match self {
            Whom::All => true,
            Whom::Getattr => opcode == Some(MdsGetattr),
            Whom::Open => opens,
            Whom::Reint => opcode == Some(MdsBatch) || opcode == Some(MdsReint) && !opens,
            Whom::Close => opcode == Some(MdsClose),
            Whom::Ping => opcode == Some(Ping),
            Whom::Enqueue => opens || matches!(opcode, Some(LdlmEnqueue | MdsLookup)),
        }
    }
}

/// State of the fault injection sites of a target.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    pub(crate) faults: Faults,
    /// Opens in execution, by export and xid, because replies do not show that they are for opens.
    opens: Set<(u64, u64)>,
    /// Requests that were resent, by export and xid; their replies are not lost.
    again: Set<(u64, u64)>,
    /// Requests that wait for their second copy, by export and xid.
    races: Set<(u64, u64)>,
}

impl Sites {
    pub(crate) fn new(faults: Faults) -> Sites {
        Sites { faults, ..Sites::default() }
    }

    /// Whether one of the rows strikes.
    fn strikes(&self, rows: &[Row], opcode: u16, opens: bool) -> bool {
        let Some(armed) = self.faults.armed() else { return false };
        rows.iter().filter(|(site, whom, _)| *site == armed && whom.is(opcode, opens)).any(|(site, _, how)| match how {
            How::Once => self.faults.hit_once(*site),
            How::Each => self.faults.hit(*site),
        })
    }

    /// The error of a site: `fail_err`, or its default.
    pub(crate) fn errno(&self, own: Errno) -> Errno {
        match self.faults.err() {
            0 => own,
            other => Errno::from_raw(i32::try_from(other).unwrap_or(own.raw())),
        }
    }

    pub(crate) fn forget(&mut self, handle: Handle) {
        for list in [&mut self.opens, &mut self.again, &mut self.races] {
            list.retain(|(whose, _)| *whose != handle.0);
        }
    }
}

/// A request that a site delays.
#[derive(Debug)]
pub(crate) struct Held {
    site: Site,
    until: Instant,
    what: HeldRequest,
}

#[derive(Debug)]
enum HeldRequest {
    Request(Arrival, Handle, Frame),
    Connect(ConnId, Frame),
}

/// Whether a change is an open.
fn opens(frame: &Frame) -> bool {
    frame.header.opcode == Opcode::MdsReint as u16
        && frame.decode::<ReintReq>().is_ok_and(|request| matches!(request.op, Some(Reint::Open(_))))
}

impl Machine {
    fn is_mdt(&self) -> bool {
        self.name.kind == TargetKind::Mdt
    }

    /// A request is about to be executed or answered from its record. Returns whether a site handles it instead.
    pub(crate) fn strikes_request(&mut self, what: Arrival, handle: Handle, frame: &Frame) -> bool {
        if !self.sites.faults.is_allowed()
            || !matches!(what, Arrival::Execute | Arrival::Reconstruct | Arrival::AnswerAgain)
        {
            return false;
        }
        let (header, opens) = (&frame.header, opens(frame));
        if self.loses_request(header, opens) {
            let _ = self.done_with(handle, header);
            return true;
        }
        if self.is_mdt() && Whom::Close.is(header.opcode, false) && self.sites.faults.hit_error(sites::MDS_CLOSE_PACK) {
            self.refuse(handle, header, self.sites.errno(Errno::ENOMEM));
            return true;
        }
        let key = (handle.0, header.xid.0);
        if opens {
            self.sites.opens.insert(key);
        }
        if header.has(flags::RESENT) && self.sites.faults.armed() == Some(sites::MDS_RESEND) {
            self.sites.again.insert(key);
        }
        what == Arrival::Execute && self.holds_request(what, handle, frame, opens)
    }

    fn loses_request(&self, header: &Header, opens: bool) -> bool {
        self.sites.strikes(REQUESTS, header.opcode, opens)
            || self.is_mdt() && self.sites.strikes(MDS_REQUESTS, header.opcode, opens)
            || self.sites.faults.hit_value(sites::PTLRPC_DROP_REQ_OPC, header.opcode.into())
    }

    fn holds_request(&mut self, what: Arrival, handle: Handle, frame: &Frame, opens: bool) -> bool {
        let Some(armed) = self.sites.faults.armed() else { return false };
        if armed == sites::PTLRPC_RESEND_RACE && !Whom::Ping.is(frame.header.opcode, false) {
            return self.races(what, handle, frame);
        }
        if !self.is_mdt() {
            return false;
        }
        let row = DELAYS.iter().find(|(site, whom, _)| *site == armed && whom.is(frame.header.opcode, opens));
        let Some(time) = row.and_then(|(site, _, usual)| self.sites.faults.delay(*site, *usual)) else { return false };
        self.patience_for(handle, &frame.header);
        self.hold(armed, self.now + time, HeldRequest::Request(what, handle, frame.clone()));
        true
    }

    /// Holds a request until its second copy arrives.
    fn races(&mut self, what: Arrival, handle: Handle, frame: &Frame) -> bool {
        let Some(time) = self.sites.faults.delay(sites::PTLRPC_RESEND_RACE, RACE) else { return false };
        self.sites.races.insert((handle.0, frame.header.xid.0));
        self.hold(sites::PTLRPC_RESEND_RACE, self.now + time, HeldRequest::Request(what, handle, frame.clone()));
        true
    }

    /// A second copy of a request in execution arrived.
    pub(crate) fn note_second_copy(&mut self, handle: Handle, header: &Header) {
        let key = (handle.0, header.xid.0);
        self.sites.races.remove(&key);
        if self.sites.faults.armed() == Some(sites::MDS_RESEND) {
            self.sites.again.insert(key);
        }
    }

    fn hold(&mut self, site: Site, until: Instant, what: HeldRequest) {
        let at = until.min(self.now + HOLD_CHECK_INTERVAL);
        self.add_timer(at, Timer::Held(Box::new(Held { site, until, what })));
    }

    /// Whether a site delays the connect request of a reconnecting client.
    pub(crate) fn holds_connect(&mut self, conn: ConnId, frame: &Frame) -> bool {
        if !frame.header.has(flags::CONNECT_RECONNECT) {
            return false;
        }
        let Some(time) = self.sites.faults.delay(sites::TGT_DELAY_RECONNECT, RECONNECT_DELAY) else { return false };
        self.hold(sites::TGT_DELAY_RECONNECT, self.now + time, HeldRequest::Connect(conn, frame.clone()));
        true
    }

    /// The error with which a site refuses a new client.
    pub(crate) fn refuses_client(&self, request: &ConnectReq) -> Option<Errno> {
        let site = match self.sites.faults.armed()? {
            sites::MDS_CLIENT_ADD if self.is_mdt() => sites::MDS_CLIENT_ADD,
            _ => sites::TGT_CLIENT_ADD,
        };
        if request.lightweight {
            return None;
        }
        let known = self.exports.of_client(ClientUuid::from_bytes(&request.client_uuid)?).is_some();
        (!known && self.sites.faults.hit_error(site)).then(|| self.sites.errno(Errno::ENOSPC))
    }

    /// Whether a site loses the next replay.
    pub(crate) fn loses_replay(&self) -> bool {
        self.sites.faults.hit(sites::TGT_REPLAY_DROP)
    }

    /// The next replay to execute, as decided by the window or by a site.
    pub(crate) fn next_replay(&mut self) -> Option<(Handle, Frame)> {
        let faults = &self.sites.faults;
        self.window.next_replay(|| faults.hit(sites::MDS_RECOVERY_ACCEPTS_GAPS))
    }

    /// Whether a site keeps the record of a client that disconnects.
    pub(crate) fn keeps_client(&self) -> bool {
        self.sites.faults.hit(sites::TGT_CLIENT_DEL)
    }

    /// Whether a site loses this reply. Not used for early replies.
    pub(crate) fn loses_reply(&mut self, handle: Handle, header: &Header) -> bool {
        if !self.sites.faults.is_allowed() {
            return false;
        }
        let key = (handle.0, header.xid.0);
        let (opens, again) = (self.sites.opens.remove(&key), self.sites.again.remove(&key));
        !header.has(flags::REPLAY)
            && (self.is_mdt() && !again && self.sites.faults.hit(sites::MDS_RESEND)
                || self.sites.strikes(REPLIES, header.opcode, opens)
                || self.is_mdt() && self.sites.strikes(MDS_REPLIES, header.opcode, opens))
    }
}

impl<S: Service> Target<S> {
    /// Continues a held request if its time has come or its site is no longer enabled.
    pub(crate) fn held(&mut self, held: Held) {
        let raced = match &held.what {
            HeldRequest::Request(_, handle, frame) if held.site == sites::PTLRPC_RESEND_RACE => {
                !self.m.sites.races.contains(&(handle.0, frame.header.xid.0))
            }
            _ => false,
        };
        if held.until > self.m.now && !raced && self.m.sites.faults.names(held.site) {
            self.m.hold(held.site, held.until, held.what);
            return;
        }
        match held.what {
            HeldRequest::Connect(conn, frame) => self.connect(conn, &frame),
            HeldRequest::Request(what, handle, frame) if self.m.exports.get(handle).is_some() => {
                self.m.sites.races.remove(&(handle.0, frame.header.xid.0));
                self.begin_now(what, handle, frame);
            }
            HeldRequest::Request(..) => {}
        }
    }
}
