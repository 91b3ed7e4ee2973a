//! The client state machine with POSIX meaning: lookup, caches under locks, open files, striping, write-back.
//!
//! [`Client`] has the three verbs of every machine here: `handle(now, event)`, `poll()`, `deadline()`; [`api`] has the
//! events and effects. It leaves sockets, clocks and the kernel to the driver, exactly-once sessions to `rpc`, the
//! bookkeeping of locks to `dlm`.
//!
//! # Layers
//! Each folder names only itself and those before it; the machine is above them all.
//!
//! - `base`: targets, operations, their needs, and what they wait for.
//! - `session`: sessions with targets, requests without a reply, what is open on servers.
//! - `cache`: nodes, names, open files and data, as values.
//! - `coherence`: what may be believed and what is owed. Locks and their callbacks, replies, metadata write-back, closes, what the
//!   kernel was told; and the world that operations share (`coherence::world`).
//! - `ops`: operations, one file per group of calls; the mount; parameters and devices.
//!
//! # Attempt, wait, run again
//! A call is an operation: a plain function from a `Cx` (`coherence::cx`) and the call to an answer. If it needs something that is not
//! here, it registers the need and returns `Stop::Wait`; when the need is met it is run *again from the start*. What it got before is in
//! its memo, by the `Step` that names the need, so it gets further this time:
//!
//! - `cx.rpc(step, dest, opcode, request)?` sends once, waits, and gives the reply's frame, every time the same.
//!   A negative status is `Err(Stop::Errno)`. `cx.rpc_object` gives the decoded [`proto::msg::ObjectRep`]. With
//!   `cx.start_rpc` several are in flight at once. A request is a value (`coherence::request`) that says what it wants, opens and
//!   changes, and what is done once with its answer.
//! - `cx.lock(step, dest, resource, mode, policy)?` uses a cached lock or takes one, and pins it until the op ends: a lock
//!   is never cancelled under an op that uses it. `cx.unlock(step)` gives the pin back earlier.
//! - `cx.wait(key)` makes an `Err(Stop::Wait)` that ends when somebody calls `World::wake(key)`. A wake-up may be
//!   spurious: run again means check again.
//! - `cx.invalidate_kernel(step, ..)?` waits until the kernel has dropped what it holds.
//! - `cx.memo(step)` / `cx.set_memo(step, n)`: a number of the op's own (a choice that must not change on a re-run).
//! - `cx.spawn(task)`: background work is an op too, without a caller.
//!
//! An attempt changes nothing before its last fallible step. What a *reply* brings (locks, attributes, names) is put into
//! the caches when it arrives (`coherence::replies`), before the op runs, so no lock callback can come between.
//!
//! # Validity
//! A cached thing is valid exactly while the lock that covers it is held (`cache::validity` mirrors the inode locks): names
//! under LOOKUP of the child or UPDATE of the directory, attributes under UPDATE, extended attributes under XATTR,
//! layout under LAYOUT, data under DOM or extent locks. No lock, no caching.

pub mod api;
mod base;
mod cache;
mod coherence;
mod machine;
mod ops;
mod session;
mod stats;

pub use api::{Answer, Call, CallId, ConnId, Effect, Event, FileHandle, Invalidation, KernelNode, Options, Stat};
pub use machine::Client;
