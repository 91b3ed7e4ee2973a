//! The distributed lock manager: server table and client cache, as data structures without I/O.
//!
//! - [`server::Locks`]: one per target. Grants locks, sends blocking and glimpse callbacks, detects deadlocks between
//!   record locks, and reports clients that do not answer.
//! - [`client::LockCache`]: one per import. Knows which locks this client holds and which of them are in use, and
//!   decides which to cancel and which to replay after a restart of the target.
//!
//! Left to others: sending, resending and exactly-once execution (`rpc`), and what a lock protects (its users).

pub mod client;
pub mod mode;
mod part;
mod record;
pub mod server;
mod spans;
#[cfg(test)]
mod tests;

/// A client's session, as the target numbers it: stable over reconnects, ended by an eviction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ExportId(pub u64);

impl ExportId {
    /// The target itself, for operations that no client requested.
    pub const TARGET: ExportId = ExportId(0);
}

/// An operation of the target that waits for locks or glimpses; the number is the target's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WaiterId(pub u64);
