//! The kernel's FUSE protocol: requests and replies over `/dev/fuse` or over io_uring.
//!
//! A file system implements [`Handler`], which gets each [`Request`] with a [`Reply`] that it may use at once or keep
//! and use later, from any thread. [`Mountpoint::mount`] mounts on a directory, [`Session::start`] serves the mount.
//!
//! # Two transports
//!
//! Over `/dev/fuse` some threads read requests and write answers, each with a system call. Over io_uring (Linux 6.14 and newer, if
//! the module parameter `fuse.enable_uring` allows it) each processor has a queue, and a thread pinned to that processor
//! sends answers and waits for requests with one system call; a program and the thread that serves it share a
//! core and its caches. [`Session::start`] uses io_uring if [`Options::uring`] is set and the kernel supports it, otherwise `/dev/fuse`;
//! [`Session::transport`] returns which. A handler does not see the difference. `FORGET`, interrupts and notifications always use
//! `/dev/fuse`.
//!
//! # Waiting for other descriptors
//!
//! A handler whose answers depend on another descriptor, such as a socket, can let the session's threads poll that too: see
//! [`Handler::attend`]. The thread that took a request can then also receive its answer, and no other thread has to be woken.
//!
//! # Bounds
//!
//! An io_uring queue holds at most [`Options::queue_depth`] unanswered requests; more wait in the kernel. Each entry has a buffer
//! for one complete write or read, in memory that is not allocated until it is used, and is freed after large transfers.

pub mod abi;
mod device;
mod mount;
mod queue;
mod reply;
mod request;
mod ring;
mod session;
#[cfg(test)]
mod tests;

pub use mount::{Mounted, Mountpoint, mounts, unmount};
pub use reply::{Attr, Entry, FileLock, Listing, Reply, Space};
pub use request::{Incoming, Operation, Request, SetAttr, TimeChange};
pub use session::{Attend, Handler, Notifier, Options, Session, Transport};
