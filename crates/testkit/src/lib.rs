//! What the tests of several crates share. It is never shipped: crates name it under `[dev-dependencies]` only.
//!
//! - [`mutate`]: bytes that were right once, for fuzzers. [`memory`]: an allocator that counts.
//! - [`samples`]: a filled-in value of every message and every record.

pub mod memory;
pub mod mutate;
pub mod samples;
