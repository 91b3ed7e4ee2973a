//! The harness of tests with real processes and real mounts.
//!
//! A test is a story. It starts with [`Story::begin`], which limits its time and cleans up after it. It then starts a [`Cluster`]
//! (or runs the program as a person would, with [`adamant`]), and continues with plain file operations, because these tests check
//! only what a program on a mount sees.
//!
//! The variable `ADAMANT` names the binary under test; the default is the binary in the target directory of this build. Older
//! versions are in the folder that `ADAMANT_COMPAT` names, or where `cargo xtask compat` puts them. Most tests need
//! root, because they mount and act as several users; without root they print that they are skipped.
//!
//! Invariants: every process that a test starts is ended by its number, and every mount is removed, also after a failure and
//! also when the file system hangs (the kernel's session is then aborted, so that no thread is left).

pub mod aio;
pub mod cluster;
pub mod command;
pub mod exerciser;
pub mod faults;
pub mod load;
pub mod model;
pub mod process;
pub mod story;
pub mod system;
pub mod trees;
pub mod versions;

pub use cluster::{Cluster, Shape, Which};
pub use command::{Outcome, adamant, binary, command};
pub use story::{Story, needs_root, skip};
pub use system::SbinLink;
pub use versions::older;
