//! The client state machine with POSIX semantics: lookup, caches under locks, open files, striping, write-back.
//!
//! [`Client`] has the three methods of every machine of this workspace: `handle(now, event)`, `poll()`, `deadline()`;
//! [`api`] defines the events and effects. It leaves sockets, clocks and the kernel to the driver, exactly-once
//! sessions to `rpc`, the bookkeeping of locks to `dlm`.
//!
//! # Layers
//! Each folder uses only itself and those before it; the machine is above them all.
//!
//! - `base`: identifiers of targets, operations, steps and wait keys.
//! - `session`: sessions with targets, requests without a reply, opens on servers.
//! - `cache`: nodes, names, open files and data, as values.
//! - `coherence`: what of the caches is valid, and what is owed to others: locks and their callbacks, replies, metadata
//!   write-back, closes, invalidations of the kernel's caches; and the world that operations share
//!   (`coherence::world`).
//! - `ops`: operations, one file per group of calls; the mount; parameters and devices.
//!
//! # Attempt, wait, run again
//! A call is an operation: a plain function from a `Cx` (`coherence::cx`) and the call to an answer. If it needs
//! something that is missing, it requests that and returns `Stop::Wait`; once that has arrived the function runs *again
//! from the start*. What it got before is in its memo, by the `Step` that names it, so it gets further this time:
//!
//! - `cx.rpc(step, dest, opcode, request)?` sends once, waits, and returns the reply's frame, the same in every
//!   attempt. A negative status is `Err(Stop::Errno)`. `cx.rpc_object` returns the decoded [`proto::msg::ObjectRep`].
//!   With `cx.start_rpc` several requests are in flight at once. A request is a value (`coherence::request`) that says
//!   which locks it wants, what it opens and changes, and how its answer is applied.
//! - `cx.lock(step, dest, resource, mode, policy)?` uses a cached lock or takes one, and pins it until the operation
//!   ends: a lock is never cancelled under an operation that uses it. `cx.unlock(step)` releases the pin earlier.
//! - `cx.wait(key)` makes an `Err(Stop::Wait)` that ends when `World::wake(key)` is called. A wake-up may be spurious:
//!   the operation checks again.
//! - `cx.invalidate_kernel(step, ..)?` waits until the kernel has dropped what it caches.
//! - `cx.memo(step)` / `cx.set_memo(step, n)`: a number of the operation's own (a choice that must not change in a
//!   later attempt).
//! - `cx.spawn(task)`: background work is an operation too, without a caller.
//!
//! An attempt changes nothing before its last fallible step. What a *reply* brings (locks, attributes, names) is put
//! into the caches when it arrives (`coherence::replies`), before the operation runs, so no lock callback can come
//! between.
//!
//! # Validity
//! A cache entry is valid exactly while the lock that covers it is held (`cache::validity` mirrors the inode locks):
//! names under LOOKUP of the child or UPDATE of the directory, attributes under UPDATE, extended attributes under
//! XATTR, layout under LAYOUT, data under DOM or extent locks. No lock, no caching.

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
