//! Faults on purpose in a target: requests and answers that are lost at the sites of [`stdx::faults`].
//!
//! A request is lost after what it tells by the way (`last_xid`) was noted and recovery has let it pass, right before it
//! would be executed or answered from its record; replays are not lost here. An answer is lost after the change and its
//! reply record are made. What Lustre sends as an enqueue with an intent (open, lookup) counts as one here: such a change is
//! hit by the sites of opens and enqueues, not by those of changes.

use proto::frame::flags;
use proto::msg::{Reint, ReintReq};
use proto::{Frame, Handle, Header, Opcode, TargetKind};
use stdx::faults::sites;
use stdx::{Faults, Set, Site};

use crate::machine::Machine;

/// What a site is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// Every request.
    All,
    /// Attributes by FID.
    Getattr,
    /// Opens.
    Open,
    /// Changes that are not opens.
    Reint,
    /// Closes.
    Close,
    /// Locks, opens, lookups.
    Enqueue,
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
            Whom::Reint => opcode == Some(MdsReint) && !opens,
            Whom::Close => opcode == Some(MdsClose),
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
}

impl Sites {
    pub(crate) fn new(faults: Faults) -> Sites {
        Sites { faults, opens: Set::default() }
    }

    /// Whether one of the rows strikes.
    fn strikes(&self, rows: &[Row], opcode: u16, opens: bool) -> bool {
        let Some(armed) = self.faults.armed() else { return false };
        rows.iter().filter(|(site, whom, _)| *site == armed && whom.is(opcode, opens)).any(|(site, _, how)| match how {
            How::Once => self.faults.hit_once(*site),
            How::Each => self.faults.hit(*site),
        })
    }

    pub(crate) fn forget(&mut self, handle: Handle) {
        self.opens.retain(|(whose, _)| *whose != handle.0);
    }
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

    /// A request is about to be executed: whether it is lost instead.
    pub(crate) fn loses_request(&mut self, handle: Handle, frame: &Frame) -> bool {
        if !self.sites.faults.is_allowed() {
            return false;
        }
        let (header, opens) = (&frame.header, opens(frame));
        if self.is_mdt() && self.sites.strikes(MDS_REQUESTS, header.opcode, opens) {
            self.done_with(handle, header);
            return true;
        }
        if opens {
            self.sites.opens.insert((handle.0, header.xid.0));
        }
        false
    }

    /// An answer is about to leave: whether it is lost instead. Early ones are not asked about.
    pub(crate) fn loses_reply(&mut self, handle: Handle, header: &Header) -> bool {
        if !self.sites.faults.is_allowed() {
            return false;
        }
        let opens = self.sites.opens.remove(&(handle.0, header.xid.0));
        !header.has(flags::REPLAY) && self.is_mdt() && self.sites.strikes(MDS_REPLIES, header.opcode, opens)
    }
}
