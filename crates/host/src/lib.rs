//! The drivers of the core machines and the I/O that they need: sockets, timers, threads, data files, the admin socket.
//!
//! - [`stream`]: TCP and Unix sockets behind one type.
//! - [`door`]: listeners, and the identification and admission of peers.
//! - [`target`]: the driver of a target's machine: one thread for each target, with its connections.
//! - [`workers`]: the threads that do a target's disk I/O: loads, commits, data files.
//! - [`client`]: the driver of a client machine: one lock, and no hand-over between threads.
//! - [`admin`]: the local socket through which `lctl` and `lfs` send requests to processes.
//! - [`ask`](mod@ask): a single request to a server, without a mount.
//! - [`faults`]: the fault sites of the process, as parameters.
//! - [`log`]: the log of the process: its level and its file.
//! - [`place`]: offline targets: formatting, reading the header, changing settings.
//! - [`private`]: files and folders that only this user may access.
//! - [`process`]: process setup, and the budget of file descriptors.
//! - [`server`]: opens and serves targets: identity, engine, service.
//!
//! The machines decide everything about files, locks and recovery; this crate decides nothing about them.

pub mod admin;
pub mod ask;
mod asserted;
pub mod client;
pub mod clock;
mod crew;
mod data_files;
pub mod door;
pub mod faults;
pub mod log;
mod names;
pub mod place;
pub mod private;
pub mod process;
mod read_buffers;
pub mod server;
mod sock_diag;
pub mod stream;
pub mod survey;
pub mod target;
mod unread;
pub mod workers;
