//! Exactly-once sessions without I/O.
//!
//! A session has two ends. The client's, [`client::Import`], gives each modifying request a slot and an xid, keeps it until
//! its reply is there and then until its change is durable, sends it again if the reply does not come and replays it if the
//! server lost it. The server's, [`server::Exports`], says what to do with each request that arrives (execute, answer as
//! before, wait for the first copy, refuse) and orders replays after a restart.
//!
//! What this crate leaves to others: sockets, the store in which reply records lie, executing requests, locks.
//!
//! # Invariants
//! - A modifying request that was answered with success was executed once, however often it was sent.
//! - The xid of a client rises with each request; no reply with an xid up to the `last_xid` that it announces is missing.
//! - Only frames of the current connection are looked at: an older connection's are from the past.
//!
//! # A create whose reply is lost
//! ```text
//! client                                     server
//! REINT xid 7 tag 1 ───────────────────────► executes, transno 9, record (tag 1: xid 7, transno 9)
//!       ◄──────────────────────────── ✗      the connection breaks
//! CONNECT conn_cnt 2 ──────────────────────► same handle: RECONNECT
//! REINT xid 7 tag 1 RESENT ────────────────► the record has xid 7: the first answer again
//!       ◄─────────────────────────────────── transno 9, last_committed 8: the client keeps the request for replay
//! ```

pub mod at;
pub mod client;
pub mod server;

/// A connection as its owner numbers it. Numbers are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link(pub u64);

/// Most replays that a client has in flight; a server remembers the answers of so many.
pub const REPLAY_WINDOW: usize = 64;

/// A client whose target is there again comes back at the latest after so long, also if nobody tells it.
pub const RECONNECT_DELAY_MAX: core::time::Duration = core::time::Duration::from_secs(6);

/// What kind of slot a request takes. Which one it gets, its tag, is the import's business.
///
/// Changes take as many slots as [`client::Import::mod_rpcs_in_flight`] says. A close and a recalled request may have one more each, so that
/// neither ever waits behind changes that wait on the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Slot {
    /// Not a modifying request, or one that may be executed twice: no reply record.
    None,
    /// A change.
    Modify,
    /// A change that no program waits for. While [`client::Import::press`] says that somebody does, it goes like a recalled request.
    Buffered,
    /// The close of a file: a change may wait on the server for what it gives back.
    Close,
    /// What is done under a lock that others may be waiting for: they may hold what changes of this client wait for.
    Recalled,
}
