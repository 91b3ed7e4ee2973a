//! The server's end of sessions: the table of exports, the decision about each arriving request, and the recovery
//! window.
//!
//! It decides without a store: the target reports what it knows ([`Exports::restore`] at start, executed requests),
//! asks what to do, and does it. A session is an *export*; clients put its handle into their requests.
//!
//! # Where a request is recorded
//! ```text
//! arrives ── executing (by xid) ── answered: reply kept in its slot until the slot is used again, or the client's
//!                                     │      last_xid passes it
//!                                     │
//!                                     ├── changed nothing: no record; after a restart it is executed like a new one
//!                                     │
//!                                     └── record (xid, transno, status) of the slot: replaced only by a greater xid,
//!                                         durable with the change, restored after a restart
//! ```

mod arrival;
mod connect;
mod exports;
mod recovery;
mod slots;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;

pub use arrival::{Arrival, ArrivalFacts, Class, XidState, arrive};
pub use connect::{Accepted, ConnectOffer, Connected, Gone, Refusal};
pub use exports::{Dirty, Export, Exports, Limits};
pub use recovery::{Replayed, Status, Step, Window, WindowState};
pub use slots::{ReplyCounters, ReplySlots, SlotRecord, SlotState};

/// Phase of an export in its target's recovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Known from before the restart, not connected yet.
    Absent,
    /// Replaying requests.
    Requests,
    /// Requests replayed; waiting for the other clients.
    RequestsDone,
    /// Replaying locks.
    Locks,
    /// All replayed; waiting for the other clients.
    LocksDone,
    /// Not in recovery.
    Normal,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 6] =
        [Phase::Absent, Phase::Requests, Phase::RequestsDone, Phase::Locks, Phase::LocksDone, Phase::Normal];
}
