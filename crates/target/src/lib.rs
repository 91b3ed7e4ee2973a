//! The common part of every target: exactly-once requests over a store view and locks, group commit, exports, recovery.
//!
//! [`Target`] is the machine. A [`Service`] (crates `mgt`, `mdt`, `ost`) implements the operations of one kind of
//! target. The machine has three verbs (see [`api`]); the service has attempts (see [`service`] for their rules) and
//! does everything through [`Cx`].
//!
//! # Division of work
//! - `rpc` classifies each request (new, resent, replayed, outdated) and runs the recovery window; this crate executes.
//! - `store` collects changes in groups; this crate closes the groups and holds replies until their groups are durable.
//! - `dlm` decides which locks are granted; this crate sends the callbacks and evicts clients that do not answer.
//!
//! # Invariants
//! - A reply record and its change are in the same group. The record is replaced only by that of a later request of its
//!   slot, and none is written for the replay of a durable change.
//! - Transnos rise in the order in which changes are accepted, and each group contains a contiguous range of them.
//! - `last_committed`, as reported to any client, never falls.
//! - If a commit fails, the target stops, so no change is answered that could not be written.

pub mod api;
mod boot;
mod commit;
mod cross;
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
mod stopped;
mod upstream;

pub use api::{ConnId, DataId, DataOp, DataResult, DataSpace, Effect, Event, LogLevel, Peer};
pub use cx::{Cx, ExportInfo, IDENTITY};
pub use dlm::ExportId;
pub use machine::Target;
pub use options::{Format, Options, format, format_features};
pub use params::{device_of, space_text};
pub use service::{
    CHANGE_RECORDS, Claim, Executed, HeldKey, Hold, Reply, Request, Service, ShareKey, Stop, Task, Vote,
};
pub use stopped::{StopReason, UnfitStore};
