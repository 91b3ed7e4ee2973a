//! The client state machine with POSIX meaning: lookup, caches under locks, open files, striping, write-back.
//!
//! [`Client`] has the three verbs of every machine here: `handle(now, event)`, `poll()`, `deadline()`; [`api`] has the
//! events and effects. It leaves sockets, clocks and the kernel to the driver, exactly-once sessions to `rpc`, the
//! bookkeeping of locks to `dlm`.
//!
//! # Attempt, wait, run again
//! A call is an [`op`]: a plain function ([`ops`], one file per group of calls) from a [`Cx`] and the call to an answer. If
//! it needs something that is not here, it registers the need and returns [`Stop::Wait`]; when the need is met it is
//! run *again from the start*. What it got before is in its memo, keyed by a [`Step`] that the op chooses (ops: below
//! 1000; `data`: [`DATA_STEP`] and above), so it gets further this time:
//!
//! - `cx.rpc(step, dest, opcode, || (body, bulk))?` sends once, waits, and gives the reply's frame, every time the same.
//!   A negative status is `Err(Stop::Errno)`. `cx.rpc_object` gives the decoded [`proto::msg::ObjectRep`]. With
//!   `cx.start_rpc` several are in flight at once.
//! - `cx.lock(step, dest, resource, mode, policy)?` uses a cached lock or takes one, and pins it until the op ends: a lock
//!   is never cancelled under an op that uses it. `cx.unlock(step)` gives the pin back earlier.
//! - `cx.wait(key)` makes an `Err(Stop::Wait)` that ends when somebody calls `World::wake(key)`. A wake-up may be
//!   spurious: run again means check again.
//! - `cx.invalidate_kernel(step, ..)?` waits until the kernel has dropped what it holds.
//! - `cx.memo(step)` / `cx.set_memo(step, n)`: a number of the op's own (a choice that must not change on a re-run).
//! - `cx.spawn(task)`: background work is an op too, without a caller ([`op::Task`]; those of the data cache are
//!   [`data::Task`]).
//!
//! An attempt changes nothing before its last fallible step. What a *reply* brings (locks, attributes) is put into
//! the caches when it arrives ([`replies`]), before the op runs, so no lock callback can come between.
//!
//! # Validity
//! A cached thing is valid exactly while the lock that covers it is held (`Node::bits` mirrors the inode locks): names
//! under LOOKUP of the child or UPDATE of the directory, attributes under UPDATE, extended attributes under XATTR,
//! layout under LAYOUT, data under DOM or extent locks. No lock, no caching.
//!
//! # Whose is what
//! [`world::World`] holds all state that ops share: nodes, open files, locks, imports, data cache, effects. `data` owns
//! `Node::data` and `World::data`, and offers ops the functions listed at its top. Nothing else touches pages.

pub mod api;
mod closes;
mod config;
mod cx;
pub mod data;
mod devices;
mod doubt;
mod file;
mod imports;
mod local_opens;
mod locks;
mod lost;
mod machine;
mod metadata_write_back;
mod name_marks;
mod names;
mod node;
mod op;
mod ops;
mod params;
mod reclaim;
mod replies;
mod stats;
mod world;

pub use api::{Answer, Call, CallId, ConnId, Effect, Event, FileHandle, Invalidation, KernelNode, Options, Stat};
pub use cx::{Cx, DATA_STEP, Run, Step, Stop};
pub use imports::Dest;
pub use machine::Client;
pub use op::{OpId, Task, WaitKey};
