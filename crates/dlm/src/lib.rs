//! The distributed lock manager, both ends, as data structures without I/O.
//!
//! - [`server::Locks`]: one per target. Decides who holds what, calls locks back, asks holders for sizes, finds
//!   deadlocks between record locks, and says who does not answer.
//! - [`client::LockCache`]: one per import. Knows what this client holds, how long it must keep it, what to give back
//!   and what to ask for again after the target restarted.
//!
//! Sending, resending and exactly-once execution are `rpc`'s; what a lock protects is its users' business.

pub mod client;
pub mod mode;
mod part;
mod record;
pub mod server;
mod spans;
#[cfg(test)]
mod tests;

/// A client's connection as the target numbers it; stable over reconnects, gone with an eviction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ExportId(pub u64);

impl ExportId {
    /// The target itself: an operation that no client asked for.
    pub const TARGET: ExportId = ExportId(0);
}

/// An operation of the target that waits for locks or glimpses: the target's own number for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WaiterId(pub u64);
