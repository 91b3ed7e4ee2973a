//! What every target is: requests run exactly once over a store view and locks, group commit, exports, recovery.
//!
//! [`Target`] is the machine; a [`Service`] (crates `mgt`, `mdt`, `ost`) is what it is a target *of*. The machine has three
//! verbs (see [`api`]); the service has attempts (see [`service`] for their rules) and does everything through [`Cx`].
//!
//! # Who does what
//! - `rpc` decides what a request is (new, resent, replayed, from the past) and runs the recovery window; this crate executes.
//! - `store` collects changes in groups; this crate ends the groups and holds replies until their groups are durable.
//! - `dlm` decides who waits for whom; this crate sends the callbacks and evicts those who do not answer.
//!
//! # Invariants
//! - A reply record and the change it stands for are in one group. It is replaced only by that of a later request of its
//!   slot, and none is written for the replay of a change that is durable.
//! - Transnos rise in the order in which changes are accepted, and groups take whole ranges of them.
//! - `last_committed`, as any client sees it, never falls.
//! - Nothing is answered from a group that may still be refused: a commit that fails stops the target.

pub mod api;
mod boot;
mod commit;
mod cx;
mod execute;
mod faults;
pub mod grants;
mod jobs;
mod machine;
mod old_store;
mod op;
mod options;
mod params;
mod recover;
pub mod service;
mod session;
mod sharing;
mod stats;
mod status;
#[cfg(test)]
mod tests;
mod upstream;

pub use api::{ConnId, DataId, DataOp, DataResult, DataSpace, Effect, Event, LogLevel, Peer};
pub use cx::{Cx, ExportInfo, IDENTITY};
pub use dlm::ExportId;
pub use machine::Target;
pub use options::{Format, Options, format, format_features};
pub use params::device_of;
pub use service::{CHANGE_RECORDS, Executed, Reply, Request, Service, ShareKey, Stop, Task};
