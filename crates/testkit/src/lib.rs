//! What the tests of several crates share. It is never shipped: crates name it under `[dev-dependencies]` only.
//!
//! - [`host`]: the driver of one target. On it stand three worlds, each in one thread: [`peers`], a target and peers played by
//!   hand, frame by frame; [`sessions`], a target and real ends of sessions (`rpc::client::Import`); and [`cluster`], all targets
//!   with real clients.
//! - [`mutate`]: bytes that were right once, for fuzzers. [`memory`]: an allocator that counts.
//! - [`samples`]: a filled-in value of every message and every record.

pub mod cluster;
pub mod host;
pub mod memory;
pub mod mutate;
pub mod peers;
pub mod samples;
pub mod sessions;
