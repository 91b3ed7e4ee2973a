//! Benchmarks that print ratios to yardsticks measured in the same run.
//!
//! - [`suites`]: the experiments; each returns [`results::Results`].
//! - [`places`]: the file systems under test: Adamant, a do-nothing FUSE file system, tmpfs, xfs.
//! - [`load`]: timed workloads in worker processes; [`filler`]: a worker that is a client of its own; [`ops`]: its operations.
//! - [`cluster`]: servers and mounts in processes of their own, and the resources that they used.
//! - [`nothing`]: a FUSE file system that does nothing, which shows the limit that the kernel sets.
//! - [`echo`]: requests and replies in the protocol's framing, which show the limit that the network sets.
//! - [`far`]: a remote network, with a delay.
//! - [`bare`]: the engine with the records of a create, which shows the limit that the store sets.
//! - [`gather`], [`figures`], [`results`]: samples, medians, rows; [`chart`], [`page`]: their presentation.
//! - [`many`], [`mdtest`], [`survey`]: benchmark tools known from Lustre and MPI; [`stop`]: the request to stop early;
//!   [`guardian`]: cleans up after a run that was killed.
//!
//! On a busy machine, a figure without its yardstick means nothing. So each round measures all of them in turn, and the
//! printed figures are medians over the rounds.

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
pub mod ops;
pub mod page;
pub mod places;
pub mod results;
pub mod run;
pub mod stop;
pub mod suites;
pub mod survey;
