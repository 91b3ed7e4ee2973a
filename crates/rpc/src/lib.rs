//! Sessions with exactly-once execution, as state machines without I/O.
//!
//! A session has two ends. The client's end, [`client::Import`], gives each modifying request a slot and an xid, and
//! keeps it until its reply has arrived and then until its change is durable. It resends the request if no reply comes,
//! and replays it if the server lost the change in a restart. The server's end, [`server::Exports`], decides about each
//! arriving request (execute, repeat the first reply, wait for the first copy, refuse) and orders replays after a
//! restart.
//!
//! The scheme is Lustre's: requests are numbered by the client and replies are kept for resent copies (at-most-once
//! calls as in Birrell and Nelson, *Implementing Remote Procedure Calls*, 1984), and lost changes are replayed in the
//! order of transnos.
//!
//! This crate leaves to others: sockets, the store of reply records, execution of requests, locks.
//!
//! # Invariants
//! - A modifying request that was answered with success was executed exactly once, however often it was sent.
//! - A client's xids rise with each request. When it announces a `last_xid`, it has the replies to all requests up to
//!   that.
//! - Frames of an older connection are ignored.
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

/// A connection, identified by its owner. Numbers are not reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link(pub u64);

/// Most replays that a client has in flight. A server keeps at least the replies to that many.
pub const REPLAY_WINDOW: usize = 64;

/// Upper bound on the time until a client reconnects to a restarted target that nobody announced to it.
pub const RECONNECT_DELAY_MAX: core::time::Duration = core::time::Duration::from_secs(6);

/// The class of slot that a request takes. The import chooses the slot itself, and so the tag.
///
/// Changes have [`client::Import::mod_rpcs_in_flight`] slots. One more each is reserved for a close and for a recalled
/// request, so that neither ever waits for changes that are blocked on the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Slot {
    /// No slot: not a modifying request, or one that may be executed twice. It has no reply record.
    None,
    /// A change.
    Modify,
    /// A change that no program waits for. While [`client::Import::press`] is set because somebody does wait, it may
    /// also take the slot of recalled requests.
    Buffered,
    /// The close of a file, which may release what a change on the server waits for.
    Close,
    /// A request under a lock that another client may wait for, which in turn may hold what this client's changes wait
    /// for.
    Recalled,
}
