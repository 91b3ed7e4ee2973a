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
//!   in which the model gives the same results ([`linear`]).
//! - Of processes that write at different places of one file there is such an order for every place of it ([`register`]).
//! - No two processes hold record locks that exclude each other; who is refused a lock, or told of a deadlock, was so for
//!   a reason; a deadlock does not last.
//! - The history of frames is one of exactly-once execution ([`spy`]).
//! - What an eviction of a living client takes is among what its programs were told of; nothing else is lost ([`program::aftermath`]).
//!   Clients that are not cut off are held up by those that are for a bounded time.
//! - Once faults stop, everything that was begun ends in bounded virtual time.
//! - At the end a fresh client finds every tree as its model says. After a loss of power everywhere it finds a state of
//!   the history at or beyond the last sync.
//! - At rest, when all clients have left, what the stores hold fits together and nothing is left over ([`rest`]).
//! - The same seed gives the same digest of all events.
//!
//! What it leaves to others: media and the crash of real engines (`engine`), sockets and threads (`host`, `e2e`).

mod coverage;
mod disturb;
mod entry;
mod kernel;
mod linear;
mod model;
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
