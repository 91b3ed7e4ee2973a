//! Faults on purpose in a target: requests and answers that are lost at the sites of [`stdx::faults`].
//!
//! A request is lost after what it tells by the way (`last_xid`) was noted and recovery has let it pass, right before it
//! would be executed or answered from its record; replays are not lost here. An answer is lost after the change and its
//! reply record are made. What Lustre sends as an enqueue with an intent (open, lookup) counts as one here: such a change is
//! hit by the sites of opens and enqueues, not by those of changes.
//!
//! A batch of changes is one request, with one xid, tag, transno and reply record. So it is hit as a whole by the sites of
//! changes, whatever it carries: all of its changes are lost, or the answer to all of them.
//!
//! A request (or a connect) that a site delays is held by a timer, which looks every tenth of a second whether the site is
//! still named: when it is not, the wait is over.

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

/// What a site is about.
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
    /// Signs of life.
    Ping,
}

/// How often a site strikes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Once, whether that was asked for or not.
    Once,
    /// While it is set.
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

/// Sites of metadata targets at which a request waits, and for how long unless `fail_val` says otherwise.
const DELAYS: &[(Site, Whom, Duration)] = &[
    (sites::MDS_PAUSE_OPEN, Whom::Open, Duration::from_secs(25)),
    (sites::MDS_REINT_DELAY, Whom::Reint, Duration::from_secs(10)),
];

/// How long a request waits for its second copy.
const RACE: Duration = Duration::from_secs(5);
/// How long a client that comes back waits at the site for that.
const RECONNECT_DELAY: Duration = Duration::from_secs(200);
/// How often what is held looks whether its site is still named.
const LOOK: Duration = Duration::from_millis(100);

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

/// What a target needs for its sites.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    pub(crate) faults: Faults,
    /// Opens in execution, by export and xid: their answers do not tell what they are.
    opens: Set<(u64, u64)>,
    /// Requests that came for the second time, by export and xid: their answers may leave.
    again: Set<(u64, u64)>,
    /// Requests that wait for their second copy.
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

    /// The error of a site that has one: `fail_err`, or its own.
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

/// What a site holds.
#[derive(Debug)]
pub(crate) struct Held {
    site: Site,
    until: Instant,
    what: Halted,
}

#[derive(Debug)]
enum Halted {
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

    /// A request is about to be executed, or answered from its record: whether something else becomes of it.
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
        self.hold(armed, self.now + time, Halted::Request(what, handle, frame.clone()));
        true
    }

    /// A request that waits until it comes a second time.
    fn races(&mut self, what: Arrival, handle: Handle, frame: &Frame) -> bool {
        let Some(time) = self.sites.faults.delay(sites::PTLRPC_RESEND_RACE, RACE) else { return false };
        self.sites.races.insert((handle.0, frame.header.xid.0));
        self.hold(sites::PTLRPC_RESEND_RACE, self.now + time, Halted::Request(what, handle, frame.clone()));
        true
    }

    /// A request that is at work came a second time.
    pub(crate) fn came_again(&mut self, handle: Handle, header: &Header) {
        let key = (handle.0, header.xid.0);
        self.sites.races.remove(&key);
        if self.sites.faults.armed() == Some(sites::MDS_RESEND) {
            self.sites.again.insert(key);
        }
    }

    fn hold(&mut self, site: Site, until: Instant, what: Halted) {
        let at = until.min(self.now + LOOK);
        self.add_timer(at, Timer::Held(Box::new(Held { site, until, what })));
    }

    /// A connect request of a client that was here before: whether it waits.
    pub(crate) fn holds_connect(&mut self, conn: ConnId, frame: &Frame) -> bool {
        if !frame.header.has(flags::CONNECT_RECONNECT) {
            return false;
        }
        let Some(time) = self.sites.faults.delay(sites::TGT_DELAY_RECONNECT, RECONNECT_DELAY) else { return false };
        self.hold(sites::TGT_DELAY_RECONNECT, self.now + time, Halted::Connect(conn, frame.clone()));
        true
    }

    /// A client wants in: why there is no room for it.
    pub(crate) fn refuses_client(&self, request: &ConnectReq) -> Option<Errno> {
        let site = match self.sites.faults.armed()? {
            sites::MDS_CLIENT_ADD if self.is_mdt() => sites::MDS_CLIENT_ADD,
            _ => sites::TGT_CLIENT_ADD,
        };
        if request.lightweight {
            return None;
        }
        let uuid = <[u8; 16]>::try_from(&request.client_uuid[..]).ok()?;
        let known = self.exports.of_client(ClientUuid(u128::from_be_bytes(uuid))).is_some();
        (!known && self.sites.faults.hit_error(site)).then(|| self.sites.errno(Errno::ENOSPC))
    }

    /// A replay came in: whether it is lost.
    pub(crate) fn loses_replay(&self) -> bool {
        self.sites.faults.hit(sites::TGT_REPLAY_DROP)
    }

    /// The next replay, as the window has it, or as a site would have it.
    pub(crate) fn next_replay(&mut self) -> Option<(Handle, Frame)> {
        let faults = &self.sites.faults;
        self.window.next_replay(|| faults.hit(sites::MDS_RECOVERY_ACCEPTS_GAPS))
    }

    /// A client says good-bye: whether its record stays all the same.
    pub(crate) fn keeps_client(&self) -> bool {
        self.sites.faults.hit(sites::TGT_CLIENT_DEL)
    }

    /// An answer is about to leave: whether it is lost instead. Early ones are not asked about.
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
    /// What was held goes on, if its time has come or its site is not named any more.
    pub(crate) fn held(&mut self, held: Held) {
        let raced = match &held.what {
            Halted::Request(_, handle, frame) if held.site == sites::PTLRPC_RESEND_RACE => {
                !self.m.sites.races.contains(&(handle.0, frame.header.xid.0))
            }
            _ => false,
        };
        if held.until > self.m.now && !raced && self.m.sites.faults.names(held.site) {
            self.m.hold(held.site, held.until, held.what);
            return;
        }
        match held.what {
            Halted::Connect(conn, frame) => self.connect(conn, &frame),
            Halted::Request(what, handle, frame) if self.m.exports.get(handle).is_some() => {
                self.m.sites.races.remove(&(handle.0, frame.header.xid.0));
                self.begin_now(what, handle, frame);
            }
            Halted::Request(..) => {}
        }
    }
}
