//! The client's end of a session: one [`Import`] per target.
//!
//! The owner (a client, or a target that talks to other targets) tells it what happened on the connections that it asked
//! for ([`ImportEvent`]), gives it requests ([`Import::submit`]), and carries out what it wants ([`ImportEffect`]).
//!
//! # What the owner must know
//! - A request is answered once: [`ImportEffect::Reply`]. A reply with an error in its header's status is an answer; an
//!   `Err` means that none will come: `EIO` after an eviction or a soft time-out, `ETIMEDOUT` for a request that may not
//!   be sent again.
//! - Requests submitted while the import is not [`State::Full`] wait, unless they are allowed during recovery.
//! - After [`ImportEffect::Evicted`] all locks and open handles of this target are gone; the effect comes after the failures
//!   of all requests, and requests submitted from then on belong to the new start.
//! - An open ([`Outgoing::keep_open`]) is kept for replay until [`Import::open_closed`]. Before a replay can happen its body
//!   should say what was opened ([`Import::amend`]); when it was replayed, [`ImportEffect::Replayed`] has the new handle.
//! - When [`ImportEffect::ReplayLocks`] comes, [`Import::locks_to_replay`] must be called, if only with an empty list.
//!   It comes again until all were given.

mod history;
mod import;
mod limits;
mod link;
mod recover;
mod replay;
mod slots;
mod state;
#[cfg(test)]
mod tests;

pub use import::{Import, ImportStatus, OpcodeCount};
pub use state::{AfterConnect, ConnectFacts, Progress, State, after_connect};

use core::time::Duration;

use bytes::Bytes;
use proto::msg::ConnectRep;
use proto::{ClientUuid, Errno, Frame, Nid, Opcode, Xid};

use crate::at::Timeouts;
use crate::{Link, Slot};

/// Settings of an import.
#[derive(Clone, Debug)]
pub struct Config {
    /// The client's identity.
    pub uuid: ClientUuid,
    /// Full name of the target, `adamant-MDT0000`.
    pub target: String,
    /// Name for the server's status output.
    pub description: String,
    /// Where the target is.
    pub nids: Vec<Nid>,
    /// Features asked for.
    pub features: u64,
    /// A server's import: no recovery, no client record; requests arrive at least once, and what they changed is durable when
    /// they are answered.
    pub lightweight: bool,
    /// Only reads.
    pub read_only: bool,
    /// For jitter.
    pub seed: u64,
    /// No xid at or below it is used. Must exceed every xid that this identity used before.
    pub first_xid: u64,
    /// How long requests may take before the connection is suspected, and when signs of life are due.
    pub timeouts: Timeouts,
    /// How long a connect may take, without the dial.
    pub connect_timeout: Duration,
    /// A sign of life after so long without a request while something is kept for replay, so that `last_committed` arrives.
    pub commit_ping_interval: Duration,
    /// Fail requests with `EIO` after the target was away for so long.
    pub soft: Option<Duration>,
    /// Most requests in flight that an administrator wants, as far as it limits the next.
    pub rpcs_in_flight_max: u16,
    /// Changes in flight; the server may allow fewer. One more is allowed for a close.
    pub mod_rpcs_in_flight_max: u16,
    /// Setting the latter to the former or more raises the former, instead of being refused.
    pub mod_rpcs_raise: bool,
    /// Requests without a slot in flight.
    pub in_flight_max: usize,
    /// The process's faults.
    pub faults: stdx::Faults,
}

impl Config {
    /// The usual settings.
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

/// Why an attempt to connect came to nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// No connection could be made: why.
    Unreachable(String),
    /// There was no answer in time.
    Silent,
    /// The other side closed the connection.
    HungUp,
    /// The target said no. The reason may be empty.
    Refused {
        /// What it answered.
        errno: Errno,
        /// Its sentence.
        reason: String,
    },
}

/// Names a request to its owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// What it asks for.
    pub opcode: Opcode,
    /// The body, encoded.
    pub body: Bytes,
    /// Bytes behind it.
    pub bulk: Bytes,
    /// Which slot it takes.
    pub slot: Slot,
    /// Of requests that wait for a slot those with the lowest go first, and of those that have the same the one that came first. One that is
    /// made when another was answered, for the same purpose, keeps that one's: it does not wait anew behind all others.
    pub turn: u64,
    /// It is for this connection: if that is lost before the answer is there it fails with `ETIMEDOUT`, whether it was sent or not, and
    /// while there is none it fails at once.
    pub no_resend: bool,
    /// Send it in any state in which there is a session, also during recovery, and before others that wait (lock cancels, glimpse
    /// replies): what those wait for may be this.
    pub during_recovery: bool,
    /// An open: see [`Import::open_closed`].
    pub keep_open: bool,
    /// The server chooses something that its answer says: a replay brings a copy of the answer's body as bulk.
    pub keep_answer: bool,
    /// Instead of what follows from [`Config::timeouts`].
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

    /// With bytes behind the body.
    pub fn with_bulk(self, bulk: Bytes) -> Outgoing {
        Outgoing { bulk, ..self }
    }

    /// In a slot.
    pub fn in_slot(self, slot: Slot) -> Outgoing {
        Outgoing { slot, ..self }
    }
}

/// What happened to an import.
#[derive(Debug)]
pub enum ImportEvent {
    /// The connection that [`ImportEffect::Dial`] asked for is there.
    Dialled(Link),
    /// It could not be made.
    DialFailed(Link, String),
    /// A connection is gone.
    Closed(Link),
    /// A frame came in.
    Frame(Link, Frame),
    /// The configuration says where the target is, and how often it was started (0: not known).
    Target {
        /// Where.
        nids: Vec<Nid>,
        /// How often started.
        instance: u64,
    },
    /// Time passed.
    Tick,
}

/// What an import wants, or tells.
#[derive(Debug)]
pub enum ImportEffect {
    /// Connect to the first of these that answers, and call the connection so.
    Dial {
        /// Name of the connection; numbers rise.
        link: Link,
        /// Where.
        nids: Vec<Nid>,
    },
    /// Send a frame.
    Send {
        /// Over which connection.
        link: Link,
        /// What.
        frame: Frame,
    },
    /// Close a connection. Whatever still comes from it is ignored.
    Hangup(Link),
    /// A request is answered, or never will be.
    Reply {
        /// Which.
        id: RequestId,
        /// Its xid; 0 if it was never sent.
        xid: Xid,
        /// The reply.
        result: Result<Frame, Errno>,
    },
    /// The server tells something by itself: a lock callback, a new configuration.
    Notice(Frame),
    /// The server has let this client in, and the reply says limits and grants. Answers to requests that are sent again before the client is
    /// in service come after it, and say what of them is left.
    Connected(ConnectRep),
    /// In service (again).
    Full {
        /// A first connect, or the first after an eviction: the server has no state of this client from before.
        fresh: bool,
    },
    /// Out of service; requests wait.
    Away,
    /// The server wants the locks again: call [`Import::locks_to_replay`].
    ReplayLocks {
        /// From the first one; otherwise those that come after what was given before.
        first: bool,
    },
    /// Locks were replayed: of each its cookie, and the server's new handle (0 for a record lock) or why it is gone.
    LocksReplayed(Vec<(u64, Result<u64, Errno>)>),
    /// A request was replayed. For an open the reply has the new handle; one whose status is an error is forgotten.
    Replayed {
        /// Which.
        xid: Xid,
        /// The reply.
        reply: Frame,
    },
    /// All state at this target is lost.
    Evicted {
        /// Answered changes that are lost, or may be: the target has restarted since it answered, and did not say that they were
        /// durable.
        lost: Vec<Frame>,
    },
    /// The server refuses this client, or recovers without it (`EBUSY`); another attempt is made every few seconds.
    Refused {
        /// Why.
        errno: Errno,
        /// A sentence.
        reason: String,
    },
    /// [`Import::disconnect`] is done.
    Disconnected,
    /// A line for the log.
    Log(String),
    /// A line for the log about work that is lost.
    Loss(String),
}
