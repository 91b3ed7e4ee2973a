//! What all layers name: targets, operations, their needs, and what they may wait for.

mod schedule;
mod step;

pub(crate) use schedule::Schedule;
pub(crate) use step::Step;

/// A target by its role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Dest {
    /// The configuration.
    Mgs,
    /// A metadata target by index.
    Mdt(u32),
    /// An object target by index.
    Ost(u32),
}

/// An operation in progress. Numbers of finished ones never come back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OpId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl OpId {
    /// Before all others.
    pub(crate) const FIRST: OpId = OpId { slot: 0, generation: 0 };
    /// After all others.
    pub(crate) const LAST: OpId = OpId { slot: u32::MAX, generation: u32::MAX };
}

/// What an operation may wait for besides its own requests and locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum WaitKey {
    /// The mount is complete.
    Mounted,
    /// A sequence of FIDs.
    Sequence,
    /// A target appears in the configuration.
    Target(Dest),
    /// An operation ended while the client unmounts.
    Drained,
    /// The time of [`Schedule::set_timer`] has come.
    Timer,
    /// A call began to wait while the kernel holds a directory locked for it.
    Gates,
    /// Closes were answered.
    Closes,
    /// Changes of metadata write-back were answered.
    MetadataWriteBack,
    /// A directory's listing was fetched.
    Listing(u64),
    /// The data cache's own, by a number that it chooses.
    Data(u64),
}
