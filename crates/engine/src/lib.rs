//! Stores on real media, behind the trait [`store::Engine`].
//!
//! [`LmdbEngine`] is the embedded one: LMDB on a local directory. Its methods block; the host calls them on engine threads.
//!
//! What it leaves to others: what the records mean, whose directory it is (the caller reads the target's identity and says
//! [`store::EngineError::WrongTarget`]), which thread commits and which ones load.
//!
//! # Invariants
//! - A commit is one LMDB transaction, synced before it returns. After a crash the store holds the state after some whole
//!   group, at least the last one whose commit returned.
//! - One process per directory: a lock that the kernel drops when the process ends, however it ends.
//! - A store whose pages are damaged ends the process with a line that names it, and with the status [`EXIT_DAMAGED`].
//! - Read transactions are short: no page is kept from reuse by a reader that dawdles.

mod error;
mod fault;
mod lmdb;
mod lock;
mod reserve;
mod verify;

pub use fault::EXIT_DAMAGED;
pub use lmdb::{LmdbEngine, OpenOptions};
