//! Identifiers that all layers use: targets, operations, their steps, and what operations may wait for.

mod schedule;
mod step;

pub(crate) use schedule::Schedule;
pub(crate) use step::Step;

/// A target by its role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Dest {
    /// The MGS, which has the configuration.
    Mgs,
    /// A metadata target by index.
    Mdt(u32),
    /// An object target by index.
    Ost(u32),
}

/// An operation in progress. The identifier of a finished one is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OpId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl OpId {
    /// The least identifier.
    pub(crate) const FIRST: OpId = OpId { slot: 0, generation: 0 };
    /// The greatest identifier.
    pub(crate) const LAST: OpId = OpId { slot: u32::MAX, generation: u32::MAX };
}

/// What an operation may wait for, besides its own requests and locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum WaitKey {
    /// The mount is complete.
    Mounted,
    /// A sequence of FIDs of a metadata target.
    Sequence(Dest),
    /// A target appeared in the configuration, or serves requests.
    Target(Dest),
    /// An operation ended while the client unmounts.
    Drained,
    /// The time given to [`Schedule::set_timer`] has come.
    Timer,
    /// A call started to wait while the kernel holds a directory locked for it.
    Gates,
    /// Closes were answered.
    Closes,
    /// Changes of metadata write-back were answered.
    MetadataWriteBack,
    /// A directory's listing was fetched.
    Listing(u64),
    /// A key of the data cache, which chooses the number.
    Data(u64),
}
