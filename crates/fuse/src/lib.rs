//! The kernel's requests to the client's calls, nothing else.
//!
//! [`Claim::connect`] brings a client up, [`Connected::mount`] puts it under its directory. Each request of the kernel becomes one [`Call`]; its answer goes
//! back from whichever thread has it, so no thread of the session waits for a server while another reads. What
//! files, locks and caches mean is the client's business.
//!
//! The kernel checks permissions on what it has cached (`default_permissions`, POSIX ACLs), the server on everything.
//! Attributes and names that come with a lock are kept by the kernel until the client calls them back; all others are
//! valid for no time. The kernel gets no negative entries and its own write-back cache stays off.

mod convert;
mod interrupts;
pub mod ioctl;
mod job;
mod mount;
mod process;
mod session;

pub use mount::{Claim, Connected, Connecting, FuseMount, MountError, MountSettings, mounts, remount};

pub(crate) use client::api::Call;
