//! The FUSE adapter: translates the kernel's requests into the client's calls, and nothing else.
//!
//! [`Claim::connect`] starts a client, [`Connected::mount`] mounts it on its directory. Each request of the kernel becomes one
//! [`Call`]. Any thread may send its answer, so that no thread of the session waits for a server while another one reads. The client
//! implements files, locks and caches.
//!
//! The kernel checks permissions on objects that it has cached (`default_permissions`, POSIX ACLs), the server on everything.
//! The kernel caches attributes and names that are covered by a lock until the client invalidates them; all others
//! expire at once. The kernel gets no negative entries, and its own write-back cache stays off.

mod convert;
mod error;
mod interrupts;
pub mod ioctl;
mod job;
mod mount;
mod process;
mod session;

pub use error::MountError;
pub use mount::{Claim, Connected, Connecting, FuseMount, MountSettings, mounts, remount};

pub(crate) use client::api::Call;
