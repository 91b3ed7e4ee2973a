//! Tests with real processes and real mounts: the harness that they share.
//!
//! A test is a story. It begins with [`Story::begin`], which bounds its time and tidies up after it; starts a [`Cluster`]
//! (or calls the program as a person would, with [`adamant`]); and goes on with plain file operations, because what a
//! program on a mount sees is the only thing that counts here.
//!
//! The binary under test is named by the variable `ADAMANT`, or lies in the target directory of this build; older versions
//! of it lie in the folder that `ADAMANT_COMPAT` names, or where `cargo xtask compat` puts them. Most tests need
//! root (they mount, and they act as several users): without it they are skipped, and say so.
//!
//! Invariants: every process that a test starts is ended by its number, every mount taken away, also after a failure and
//! also when the file system hangs (the kernel's session is then aborted, so that no thread stays behind).

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
