//! The kernel's FUSE protocol: requests in, answers out, over `/dev/fuse` or over io_uring.
//!
//! A file system implements [`Handler`]: it is given each [`Request`] with a [`Reply`], which it may use at once or keep
//! and use later, from any thread. [`Mountpoint::mount`] puts a directory under the kernel, [`Session::start`] serves it.
//!
//! # Two transports
//!
//! Over `/dev/fuse` some threads read requests and write answers, each a system call. Over io_uring (Linux 6.14 and newer, if
//! the module parameter `fuse.enable_uring` allows it) each processor has a queue, and a thread on that processor which
//! waits for requests and hands answers over with one system call; a program and the thread that serves it share a
//! core and its caches. [`Session::start`] takes io_uring when it is wanted and the kernel has it, otherwise `/dev/fuse`;
//! [`Session::transport`] tells which. A handler does not see the difference. `FORGET`, interrupts and notifications always take
//! `/dev/fuse`.
//!
//! # Waiting for something else
//!
//! A handler whose answers come from elsewhere, a socket perhaps, can let the session's threads wait for that too: see
//! [`Handler::attend`]. So the thread that brought a request may fetch its answer, and no other has to be woken.
//!
//! # Bounds
//!
//! A queue of io_uring holds at most [`Options::queue_depth`] requests that are not answered yet (each has room for one whole
//! write or read in memory that costs nothing until it is used, and is given back after large transfers); more wait in
//! the kernel.

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
