//! The client's end of a session: one [`Import`] per target.
//!
//! The owner (a client, or a target that talks to other targets) reports events on the connections that it was asked to
//! make ([`ImportEvent`]), submits requests ([`Import::submit`]), and carries out effects ([`ImportEffect`]).
//!
//! # Contract with the owner
//! - Each request gets exactly one [`ImportEffect::Reply`]. A reply with an error in its header's status is an answer.
//!   An `Err` means that there will be none: `EIO` after an eviction or a soft timeout, `ETIMEDOUT` for a request that
//!   must not be resent, `ESHUTDOWN` after [`Import::disconnect`].
//! - Requests submitted while the import is not [`State::Full`] are queued, unless they are allowed during recovery.
//! - After [`ImportEffect::Evicted`] all locks and open handles of this target are lost. The effect follows the
//!   failures of all requests; requests submitted afterwards belong to the new session.
//! - An open ([`Outgoing::keep_open`]) is kept for replay until [`Import::open_closed`]. The owner amends its body with
//!   what was opened before it can be replayed ([`Import::amend`]). After the replay, [`ImportEffect::Replayed`] has
//!   the new handle.
//! - [`ImportEffect::ReplayLocks`] must be answered with [`Import::locks_to_replay`], even if the list is empty. It is
//!   repeated until the list is empty.

mod busy;
mod history;
mod import;
mod limits;
mod link;
mod recover;
mod replay;
mod slots;
mod state;
mod status;
#[cfg(test)]
mod tests;

pub use import::{Import, OpcodeCount};
pub use state::{AfterConnect, ConnectFacts, Progress, State, after_connect};
pub use status::ImportStatus;

use core::time::Duration;

use bytes::Bytes;
use proto::msg::ConnectRep;
use proto::{ClientUuid, Errno, Frame, Nid, Opcode, Xid};

use crate::at::Timeouts;
use crate::{Link, Slot};

/// Settings of an import.
#[derive(Clone, Debug)]
pub struct Config {
    /// Identity of the client.
    pub uuid: ClientUuid,
    /// Full name of the target, `adamant-MDT0000`.
    pub target: String,
    /// Name for the server's status output.
    pub description: String,
    /// Addresses of the target.
    pub nids: Vec<Nid>,
    /// Features to request.
    pub features: u64,
    /// A server's import, without recovery and client record: requests are executed at least once, and their changes
    /// are durable when they are answered. A request holds its slot only until the peer has it, which the first early reply
    /// says at the latest, and has no tag.
    pub lightweight: bool,
    /// Read-only session.
    pub read_only: bool,
    /// Seed of the random generator, for jitter.
    pub seed: u64,
    /// Only xids above it are used. Must not be below any xid that this identity used before.
    pub first_xid: u64,
    /// Deadlines of requests, and the interval of pings.
    pub timeouts: Timeouts,
    /// Deadline of the connect request, not counting the dial.
    pub connect_timeout: Duration,
    /// Interval of pings while requests are kept for replay, so that the client learns `last_committed` soon.
    pub commit_ping_interval: Duration,
    /// Fails requests with `EIO` once the target has been out of service for this long. None: they wait for ever.
    pub soft: Option<Duration>,
    /// Administrator's limit for requests in flight. It only bounds `mod_rpcs_in_flight_max`.
    pub rpcs_in_flight_max: u16,
    /// Most changes in flight; the server may allow fewer. A close and a recalled request have one more slot each.
    pub mod_rpcs_in_flight_max: u16,
    /// Setting `mod_rpcs_in_flight_max` to `rpcs_in_flight_max` or more raises the latter instead of failing.
    pub mod_rpcs_raise: bool,
    /// Most requests without a slot in flight.
    pub in_flight_max: usize,
    /// Fault injection of the process.
    pub faults: stdx::Faults,
}

impl Config {
    /// The default settings.
    pub fn new(uuid: ClientUuid, target: String, nids: Vec<Nid>, seed: u64) -> Config {
        Config {
            uuid,
            target,
            description: String::new(),
            nids,
            features: proto::connect::features::SUPPORTED,
            lightweight: false,
            read_only: false,
            seed,
            first_xid: 0,
            timeouts: Timeouts::fixed(Duration::from_secs(10)),
            connect_timeout: Duration::from_secs(5),
            commit_ping_interval: Duration::from_millis(1500),
            soft: None,
            rpcs_in_flight_max: 8,
            mod_rpcs_in_flight_max: 7,
            mod_rpcs_raise: false,
            in_flight_max: 128,
            faults: stdx::Faults::none(),
        }
    }
}

/// Why an attempt to connect failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The dial failed, for this reason.
    Unreachable(String),
    /// No answer in time.
    Silent,
    /// The peer closed the connection.
    HungUp,
    /// The target refused. The reason may be empty.
    Refused {
        /// The error of its reply.
        errno: Errno,
        /// The reason of its reply, for a person.
        reason: String,
    },
}

/// Identity of a request towards the owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// A request to send.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The opcode.
    pub opcode: Opcode,
    /// The body, encoded.
    pub body: Bytes,
    /// Bulk data.
    pub bulk: Bytes,
    /// The class of slot.
    pub slot: Slot,
    /// Priority among requests that wait for a slot: lower turns first, then first come, first served. A request that
    /// follows up on another one keeps the other's turn, so that it does not queue again behind all others.
    pub turn: u64,
    /// Valid on the current connection only: fails with `ETIMEDOUT` if the connection is lost before the reply, whether
    /// it was sent or not, and at once if there is none.
    pub no_resend: bool,
    /// Sent whenever there is a session, during recovery too, and ahead of queued requests, which may wait for it (lock
    /// cancels, glimpse replies).
    pub during_recovery: bool,
    /// An open, kept for replay until [`Import::open_closed`].
    pub keep_open: bool,
    /// The reply contains a choice of the server, so a replay carries a copy of the reply's body as bulk.
    pub keep_answer: bool,
    /// Deadline; by default computed from [`Config::timeouts`].
    pub timeout: Option<Duration>,
}

impl Outgoing {
    /// A request without a slot.
    pub fn new(opcode: Opcode, body: &impl prost::Message) -> Outgoing {
        Outgoing {
            opcode,
            body: body.encode_to_vec().into(),
            bulk: Bytes::new(),
            slot: Slot::None,
            turn: 0,
            no_resend: false,
            during_recovery: false,
            keep_open: false,
            keep_answer: false,
            timeout: None,
        }
    }

    /// Adds bulk data.
    pub fn with_bulk(self, bulk: Bytes) -> Outgoing {
        Outgoing { bulk, ..self }
    }

    /// Sets the class of slot.
    pub fn in_slot(self, slot: Slot) -> Outgoing {
        Outgoing { slot, ..self }
    }
}

/// Events that the owner reports to an import.
#[derive(Debug)]
pub enum ImportEvent {
    /// The connection requested by [`ImportEffect::Dial`] is established.
    Dialled(Link),
    /// The dial failed.
    DialFailed(Link, String),
    /// A connection was closed.
    Closed(Link),
    /// A frame arrived.
    Frame(Link, Frame),
    /// The configuration has the target's addresses and its number of starts (0: unknown).
    Target {
        /// Addresses.
        nids: Vec<Nid>,
        /// Number of starts.
        instance: u64,
    },
    /// Time passed.
    Tick,
}

/// Effects that the owner carries out, and notifications to it.
#[derive(Debug)]
pub enum ImportEffect {
    /// Connect to the first address that answers.
    Dial {
        /// Identity of the new connection; numbers rise.
        link: Link,
        /// Addresses.
        nids: Vec<Nid>,
    },
    /// Send a frame.
    Send {
        /// The connection.
        link: Link,
        /// The frame.
        frame: Frame,
    },
    /// Close a connection. Later events from it are ignored.
    Hangup(Link),
    /// A request was answered, or failed for good.
    Reply {
        /// The request.
        id: RequestId,
        /// Its xid; 0 if it was never sent.
        xid: Xid,
        /// The reply.
        result: Result<Frame, Errno>,
    },
    /// A notice from the server, such as a lock callback or a new configuration.
    Notice(Frame),
    /// The server accepted the session; the reply has limits and grants. Replies to requests that are resent before the
    /// session is in service come later, and update these.
    Connected(ConnectRep),
    /// In service.
    Full {
        /// A new session (the first connect, or the first after an eviction): the server has no earlier state of this
        /// client.
        fresh: bool,
    },
    /// Out of service: requests are queued.
    Away,
    /// The server needs the locks again: call [`Import::locks_to_replay`].
    ReplayLocks {
        /// Whether to start with the first lock, or to continue after those that were given before.
        first: bool,
    },
    /// Locks were replayed: the cookie of each with its new handle (0 for a record lock), or the error with which it
    /// was lost.
    LocksReplayed(Vec<(u64, Result<u64, Errno>)>),
    /// A request was replayed. For an open the reply has the new handle. A request whose replay failed is no longer
    /// kept.
    Replayed {
        /// The request.
        xid: Xid,
        /// The reply.
        reply: Frame,
    },
    /// The client was evicted: all its state at this target is lost.
    Evicted {
        /// Answered changes that are or may be lost, because the target restarted after the reply and never reported
        /// them durable.
        lost: Vec<Frame>,
    },
    /// The server refuses this client, or recovers without it (`EBUSY`). The import retries every few seconds.
    Refused {
        /// The error of the reply.
        errno: Errno,
        /// The reason of the reply, for a person.
        reason: String,
    },
    /// [`Import::disconnect`] is complete.
    Disconnected,
    /// A line for the log.
    Log(String),
    /// A line for the log about lost work.
    Loss(String),
}
