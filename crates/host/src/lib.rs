//! The real world under the core machines: sockets, timers, threads, data files, the admin socket.
//!
//! - [`stream`]: TCP and Unix sockets behind one type.
//! - [`door`]: where peers come in: listeners, who is at the other end, and who is admitted.
//! - [`target`]: one thread per target: its machine and its connections.
//! - [`workers`]: the threads that touch the disk for a target: loads, commits, data files.
//! - [`client`]: the driver of a client machine, behind one lock, without hand-over.
//! - [`admin`]: the local socket through which `lctl` and `lfs` ask processes.
//! - [`ask`](mod@ask): one question to a server, without a mount.
//! - [`faults`]: the process's table of faults, as parameters.
//! - [`log`]: the process's log: its level and its file.
//! - [`place`]: targets at rest: made, looked at, and changed while nobody serves them.
//! - [`private`]: files and folders that are this user's alone.
//! - [`process`]: what a process sets up for itself, and how it shares its descriptors out.
//! - [`server`]: opening and serving targets: identity, engine, service.
//!
//! Meaning lives in the machines; nothing here decides about files, locks or recovery.

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
