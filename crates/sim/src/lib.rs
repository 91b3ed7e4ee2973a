//! The simulated world: the whole cluster in one thread from one seed, with faults and oracles.
//!
//! A run draws everything from its seed: the number of targets and clients, the speed of disks and network, memory limits, what
//! programs do, and which faults strike when ([`Plan`]). The machines are the ones that ship; the world around them ([`world`])
//! is simulated: virtual time and one queue of events.
//!
//! # Oracles
//! - Every result of a process that works alone in its subtree equals the reference model's, whichever client carries each call:
//!   errors, attributes, bytes, listings. So caches are coherent and each change happens once ([`model`]).
//! - The calls of processes that share directories and files can be ordered, consistently with real time, so that the model gives
//!   the same results ([`linear`]): names, bytes, extended attributes, owners, permissions of several users, and times that a
//!   program has set.
//! - For processes that write at different places of one file, such an order exists for each place ([`register`]). No process
//!   sees times of the file that are older than times which a process has already seen or set.
//! - A listing of a directory with many names shows each name that was present throughout exactly once, and no name that was
//!   absent throughout.
//! - No two processes hold conflicting record locks. A refused lock or a reported deadlock had a reason, and no deadlock lasts.
//! - The history of frames is one of exactly-once execution, whether replies arrive or not ([`spy`]).
//! - Whatever an eviction of a living client loses was reported to its programs; nothing else is lost ([`program::aftermath`]).
//!   Clients that are cut off delay the others for a bounded time only.
//! - After the last fault, every call ends within the sum of the promised times: a recovery that waits for dead clients, the
//!   timeout of a lock that a dead client holds, a resent request. No recovery takes longer than its hard limit plus two soft
//!   limits.
//! - At the end a fresh client finds every tree as its model says. After a power failure of all targets it finds a state of the
//!   history at or beyond the last sync, and file contents that were synced or written later.
//! - Settings that the management target has confirmed to an administrator survive every crash, and all nodes apply them
//!   (`program::configure`).
//! - At rest, after all clients have unmounted, the contents of the stores are consistent and nothing is left over ([`rest`]).
//!   Before that, no client holds a lock or a node that nothing needs, and clients and targets agree on the number of locks held.
//! - In a run without faults, nothing takes longer than two seconds.
//! - Encoding and decoding a frame gives the same frame; a frame with a flipped bit is rejected (`world::wire`).
//! - The same seed gives the same digest of all events.
//!
//! # What they excuse
//! Each excuse quotes a promise of the guide, and goes no further:
//! - *"What a client changed can be seen by others before it is durable"*: two concurrent changes of different programs that had
//!   no reply when a server crashed may have been seen in the opposite order before the crash (`linear`, `Event::seen_undone`);
//!   and a change that had no reply either, on top of one that is lost with a dead client, may have been seen although it fails.
//! - *"is undone if that client and its server are both lost before it is"*: the last unsynced changes of a dead client may be
//!   missing if they had not reached a server, or if the server crashed before it received them again. Changes of others that
//!   were acknowledged on top of them remain (`linear::lost`, `program::history`).
//! - *"Buffered unsynced work of a client that died"*: the bytes that it wrote last and did not sync; in shared files, all bytes
//!   of these files (`program::synced`, `linear::lost`).
//! - *"A client that was evicted (EIO, outcome unknown)"*: record locks, once a target has given up a living client.
//! - *"Ranges that cannot be written when their lock is called back"*: the ranges that a client's log names (`world`, `Loss`).
//!
//! A history that is too long to judge, and a tree with too many possible losses, counts as undecided.
//!
//! Not simulated: storage media and crashes of real engines (`engine`), sockets and threads (`host`, `e2e`).

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
pub use entry::{Outcome, Settings, fixed_defects, run};
pub use plan::{Plan, Profile};
pub use run::{Report, run as run_plan};
pub use scenario::{Story, StoryCounts, StoryFailure, stories};
pub use trace::Keep;
pub use world::Canary;
pub use world::faults::Counts;
