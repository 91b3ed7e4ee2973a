//! The simulated world: the whole cluster in one thread from one seed, with faults and oracles.
//!
//! A run draws everything from its seed: how many targets and clients, how slow the disks and the network are, how much
//! memory everybody has, what programs do, what goes wrong and when ([`Plan`]). The machines are those that ship; the
//! world around them ([`world`]) is not: virtual time, one queue of events.
//!
//! # Oracles
//! - Every result of a process that works alone in its subtree equals a reference model's, whichever client each call
//!   goes through: errors, attributes, bytes, listings. So caches are coherent and changes happen once ([`model`]).
//! - Of processes that share directories and files there is an order of all their calls, within what real time allows,
//!   in which the model gives the same results ([`linear`]): names, bytes, extended attributes, owners, rights of several users, and times that
//!   somebody has set.
//! - Of processes that write at different places of one file there is such an order for every place of it ([`register`]). Nobody sees times of it
//!   that are older than what somebody has seen or written before.
//! - A listing of a directory with many names shows each name once that was there all the time, and none that was not there.
//! - No two processes hold record locks that exclude each other; who is refused a lock, or told of a deadlock, was so for
//!   a reason; a deadlock does not last.
//! - The history of frames is one of exactly-once execution, whether answers arrive or not ([`spy`]).
//! - What an eviction of a living client takes is among what its programs were told of; nothing else is lost ([`program::aftermath`]).
//!   Clients that are not cut off are held up by those that are for a bounded time.
//! - Once faults stop, every call ends within the sum of the times that are promised: a recovery of those who are gone for good, a lock
//!   of theirs, a request that is sent again. No recovery takes longer than its hard limit and two soft ones.
//! - At the end a fresh client finds every tree as its model says. After a loss of power everywhere it finds a state of
//!   the history at or beyond the last sync; of bytes, those that were synced or that came later.
//! - What the management target has answered to an administrator is there, whatever crashes, and all follow it
//!   (`program::configure`).
//! - At rest, when all clients have left, what the stores hold fits together and nothing is left over ([`rest`]).
//!   Before that no client holds a lock or a node that nothing needs, and clients and targets agree on how many locks are held.
//! - Where nothing at all goes wrong, nothing takes longer than two seconds.
//! - A frame comes out of the codec as it went in, and one of which a bit has changed does not (`world::wire`).
//! - The same seed gives the same digest of all events.
//!
//! # What they excuse
//! Each in the words of a promise, and no more than that:
//! - *"What a client changed can be seen by others before it is durable"*: two changes of different programs that a crash found without an
//!   answer, and under way at the same time, may have been seen in the other order before it (`linear`, `Event::glimpses`).
//! - *"is undone if that client and its server are both lost before it is"*: of a client that died the last changes may be missing that
//!   no sync covers, if a server had not been told of them or crashed before it had them again. What others were answered on top of
//!   them stands (`linear::lost`, `program::history`).
//! - *"Buffered unsynced work of a client that died"*: bytes that it had written last and not synced, and in files that are shared all
//!   bytes of these files (`program::synced`, `linear::lost`).
//! - *"A client that was evicted (EIO, outcome unknown)"*: of locks, if a target has given up a client that lives.
//! - *"Ranges that cannot be written when their lock is called back"*: those that a client's log names (`world`, `Loss`).
//!
//! A history that is too long to judge, and a tree for which there are too many ways to lose changes, is counted as undecided.
//!
//! What it leaves to others: media and the crash of real engines (`engine`), sockets and threads (`host`, `e2e`).

mod coverage;
mod disturb;
mod entry;
mod kernel;
mod linear;
mod model;
mod moves;
mod plan;
mod program;
mod register;
mod rest;
mod run;
mod scenario;
mod sched;
mod spy;
mod trace;
mod world;

pub use coverage::{Coverage, all_marks};
pub use entry::{Outcome, Settings, run};
pub use plan::{Plan, Profile};
pub use run::{Report, run as run_plan};
pub use scenario::{Story, Told, Wrong, stories};
pub use trace::Keep;
pub use world::Canary;
pub use world::faults::Counts;
