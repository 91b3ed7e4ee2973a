//! Stores on real media: implementations of the trait [`store::Engine`].
//!
//! [`LmdbEngine`] is the embedded engine: LMDB in a local directory. Its methods block; the host calls them on engine threads.
//!
//! It leaves to others the meaning of the records, the identity of the directory (the caller reads the target's identity and
//! returns [`store::EngineError::WrongTarget`]), and the choice of threads for commits and loads.
//!
//! # Invariants
//! - A commit is one LMDB transaction, synced before it returns. After a crash the store has the state after some whole
//!   group, at least the last one whose commit returned.
//! - One process per directory: the kernel drops the lock when the process exits, however it exits.
//! - A store with damaged pages ends the process with a message that names the store, and with the status [`EXIT_DAMAGED`].
//! - Read transactions are short, so that no slow reader keeps pages from being reused.

mod disk;
mod error;
mod fault;
mod lmdb;
mod lock;
mod reserve;
mod verify;

pub use disk::disk_number;
pub use fault::EXIT_DAMAGED;
pub use lmdb::{LmdbEngine, OpenOptions};
