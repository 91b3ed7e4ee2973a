//! The server's end of sessions: who is connected, what to do with what arrives, and the recovery window.
//!
//! These are decisions without a store: the target tells what it knows ([`Exports::restore`] at start, what was executed),
//! asks what to do, and does it. A session is an *export*; its handle is the number that clients put in their requests.
//!
//! # Where a request is remembered
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

/// Where an export stands in its target's recovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Known from before the restart, not connected yet.
    Absent,
    /// Replays its requests.
    Requests,
    /// Its requests are replayed; waits for the others'.
    RequestsDone,
    /// Replays its locks.
    Locks,
    /// All done; waits for the others.
    LocksDone,
    /// Takes no part in a recovery.
    Normal,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 6] =
        [Phase::Absent, Phase::Requests, Phase::RequestsDone, Phase::Locks, Phase::LocksDone, Phase::Normal];
}
