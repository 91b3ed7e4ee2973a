//! What the tests of several crates share. It is never shipped: crates name it under `[dev-dependencies]` only.
//!
//! - [`host`]: the driver of one target. On it stand three worlds, each in one thread: [`peers`], a target and peers played by
//!   hand, frame by frame; [`sessions`], a target and real ends of sessions (`rpc::client::Import`); and [`cluster`], all targets
//!   with real clients.
//! - [`mutate`]: bytes that were right once, for fuzzers. [`names`]: names with one hash. [`memory`]: an allocator that counts.
//! - [`golden`]: texts that are compared with a file. [`samples`]: a filled-in value of every message and every record.
//!   [`declared`]: what the sources say of them, and the chapters of the guide that are written from that.
//!
//! `tests/scripts.rs` runs the golden scripts.
//!
//! # Where the cut is
//! Crates whose tests use this one are also below it, so the unit tests of such a crate (in its `src/`) meet their crate twice:
//! the copy that is tested, and the one that this crate was built with. Their types differ. The worlds of one target are
//! therefore generic over its `Service`, and the unit tests of `mdt`, `mgt` and `ost` give them the service that is tested:
//! they share only types of crates below their own. What would need types of the tested crate itself is a test in `tests/` beside
//! its `src/`, where there is one copy: those of `proto`, `schema`, `dlm`, `target` and `client`.
//!
//! The simulator has a world of its own, with faults and oracles: it is shipped, and cannot use this one.

pub mod cluster;
pub mod declared;
pub mod golden;
pub mod host;
pub mod memory;
pub mod mutate;
pub mod names;
pub mod peers;
pub mod samples;
pub mod sessions;
