//! Cross changes: changes that touch several metadata targets, by two-phase commit in one round.
//!
//! The MDT that the client asks is the *coordinator* of its change, the others are *participants*; the change is split
//! into *parts*, one per target. Each try is an [`Attempt`]. The tables here say what happens to an attempt when a
//! message arrives, a record becomes durable, a session between two targets ends or begins, or a target restarts:
//!
//! - [`keys`]: what changes may conflict about, who holds it and who waits for it;
//! - [`coordinator`]: the attempts of this target's own changes;
//! - [`participant`]: the attempts of other targets' changes that have a part here.
//!
//! They do no I/O, know no store and no clock. The machine (`run`, `peers`, `steps`, `losses`) feeds them events, in the
//! order in which they happen, and carries out what they ask for (`poll`). Records are the machine's: it writes and
//! removes them, says when that is durable, and loads the tables from them at start.
//!
//! # Example
//! ```text
//! coordinator 0                                   participant 1
//! takes keys, writes staged record: stage()
//!   Todo::Prepare              -- Prepare -->     takes keys, writes prepared record: prepared()
//! group durable: staged_durable()                 group durable: prepared_durable()
//! voted()                      <-- vote --          Todo::Vote
//!   Todo::Commit: own part, done record, answer
//! committed()
//!   Todo::Tell(Commit)         -- Tell -->        commit()
//!                                                   Todo::Apply: part, done record, keys released: applied()
//! group durable: done_durable()                   group durable: done_durable()
//! applied()                    <-- applied --       Todo::Applied
//!   Todo::Tell(Forget)         -- Tell -->        forget()
//!                                                   Todo::DropDone; group durable: done_gone()
//! forgotten()                  <-- gone --          Todo::Gone
//!   Todo::DropDone
//! ```
//!
//! # Invariants
//! - An attempt commits only when its staged record and all prepared records are durable, or were.
//! - An attempt that did not commit ends at each member when its record there is durably gone. Its participants are
//!   told to abort only after it has ended at the coordinator, so an attempt in doubt was aborted nowhere.
//! - A participant's done record goes after those of all members are durable; the coordinator's goes last.

pub(crate) mod coordinator;
pub(crate) mod keys;
mod losses;
pub(crate) mod participant;
mod peers;
pub(crate) mod run;
#[cfg(test)]
mod search;
pub(crate) mod steps;

/// Number of one try at a cross change. It is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Attempt {
    /// Index of the coordinator.
    pub(crate) mdt: u32,
    /// Random number of the coordinator's start.
    pub(crate) instance: u64,
    /// Number within that start.
    pub(crate) serial: u64,
}

/// Age of a change: that of its first attempt. The smaller one is the older one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Age {
    /// Logical clock of the coordinator: one more than the greatest that it had seen.
    pub(crate) clock: u64,
    /// Index of the coordinator, so that no two changes have the same age.
    pub(crate) mdt: u32,
}

/// Index of an MDT.
pub(crate) type Member = u32;

/// What a participant has, durably, of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Has {
    /// It has prepared its part.
    Prepared,
    /// It has applied its part.
    Done,
    /// Neither.
    Nothing,
}
