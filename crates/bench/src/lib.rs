//! Benchmarks that print ratios to yardsticks measured in the same run.
//!
//! - [`suites`]: the experiments; each gives [`results::Results`].
//! - [`places`]: where the same work is done: Adamant, a do-nothing FUSE file system, tmpfs, xfs.
//! - [`load`]: what programs do, timed, in processes of their own; [`filler`]: a client of its own at work.
//! - [`cluster`]: servers and mounts in processes of their own, and what they used.
//! - [`nothing`]: a FUSE file system that does nothing: what the kernel allows.
//! - [`echo`]: requests and replies over the protocol's framing: what the network allows.
//! - [`far`]: a network that is farther away.
//! - [`bare`]: the engine with the records of a create: what the store allows.
//! - [`gather`], [`figures`], [`results`]: samples, medians, rows; [`chart`], [`page`]: what people look at.
//! - [`many`], [`mdtest`], [`survey`]: the tools of the field; [`stop`]: the wish to end early; [`guardian`]: what cleans up after a
//!   run that was killed.
//!
//! A figure without its yardstick says nothing on a busy machine, so each round measures all of them in turn, and what is
//! printed is the median over the rounds.

pub mod bare;
pub mod chart;
pub mod cluster;
pub mod echo;
pub mod far;
pub mod figures;
pub mod filler;
pub mod gather;
pub mod guardian;
pub mod load;
pub mod machine;
pub mod many;
pub mod mdtest;
pub mod nothing;
pub mod page;
pub mod places;
pub mod results;
pub mod run;
pub mod stop;
pub mod suites;
pub mod survey;
