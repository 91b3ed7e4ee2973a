//! Benchmarks that print ratios to yardsticks measured in the same run.
//!
//! - [`nothing`]: a FUSE file system that does nothing with metadata and keeps data in a local file: what the kernel allows.
//! - [`echo`]: a request and its reply over the protocol's framing: what the network allows.
//! - [`load`]: what programs do, timed.
//! - [`cluster`]: servers and a mount in processes of their own.
//! - [`single`]: one process at work, against both yardsticks.
//! - [`figures`]: median, spread and the like.
//!
//! A figure without its yardstick says nothing on a busy machine, so each round measures all of them in turn, and what is
//! printed is the median over the rounds.

pub mod cluster;
pub mod echo;
pub mod figures;
pub mod load;
pub mod nothing;
pub mod single;
