//! Why a target stops by itself, by what an administrator does next.

use proto::{Errno, ParseTargetNameError, TargetName, Transno};
use store::EngineError;
use thiserror::Error;

/// Why a target stops by itself ([`crate::Effect::Stop`]).
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StopReason {
    /// A group of changes could not be written: look at the disk, or make room.
    #[error(transparent)]
    Commit(EngineError),
    /// Data files could not be made durable: look at the disk.
    #[error("data files could not be made durable ({0}): check the disk, then start the target again")]
    DataNotDurable(Errno),
    /// Its first records could not be read; the log says which.
    #[error("target '{target}' cannot read its first records ({errno}): see the lines above")]
    FirstRecords {
        /// Its name, as far as it is known.
        target: TargetName,
        /// What a reader is told.
        errno: Errno,
    },
    /// What the target does at a start failed; the log says where.
    #[error("target '{target}' could not be started ({errno}): see the lines above")]
    Start {
        /// Its name.
        target: TargetName,
        /// What the attempt ended with.
        errno: Errno,
    },
    /// A part of a change over several metadata targets was checked and cannot be applied; the log says where.
    #[error(
        "target '{target}' cannot apply what it has prepared ({errno}): see the lines above, and report this as a bug"
    )]
    PartNotApplied {
        /// Its name.
        target: TargetName,
        /// What the attempt ended with.
        errno: Errno,
    },
    /// The store cannot be served as it is.
    #[error(transparent)]
    Unfit(#[from] UnfitStore),
    /// It is not known where the MGS is: give its address.
    #[error("target '{target}' does not know where its MGS is: give --mgsnode")]
    NoMgs {
        /// Its name.
        target: TargetName,
    },
    /// The MGS does not let it join, and said why.
    #[error("{reason}")]
    Refused {
        /// What the MGS answered.
        errno: Errno,
        /// The sentence of the MGS.
        reason: String,
    },
    /// The MGS does not let it join, and did not say why.
    #[error("the MGS refused to register target '{target}': {errno}; see the log of the MGS")]
    RefusedWithoutReason {
        /// Its name.
        target: TargetName,
        /// What the MGS answered.
        errno: Errno,
    },
    /// The MGS did not give it the keys of the file system: it is of an older version.
    #[error(
        "the MGS has no keys for the hashes of names for the new target '{target}': serve the MGS and MDT0000 with version 0.3.0 or later, \
         then start this target again"
    )]
    NoKeys {
        /// Its name.
        target: TargetName,
    },
    /// An administrator has declared it lost while it ran.
    #[error(
        "target '{target}' was declared lost, and the others have settled without it what was under way; to admit it again start it \
         once with '-o abort_recov_mdt', and check the file system with lfsck"
    )]
    Lost {
        /// Its name.
        target: TargetName,
    },
    /// It counted as far as numbers go: a bug.
    #[error("the transnos of this target are used up: report this as a bug")]
    TransnosUsedUp,
}

impl StopReason {
    /// Whether what is stored is damaged: starting again does not help, a copy does.
    pub fn is_damage(&self) -> bool {
        match self {
            StopReason::Commit(error) => error.is_damage(),
            StopReason::Unfit(unfit) => unfit.is_damage(),
            _ => false,
        }
    }

    /// What the operation that failed ended with, if one did.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            StopReason::DataNotDurable(errno)
            | StopReason::FirstRecords { errno, .. }
            | StopReason::Start { errno, .. }
            | StopReason::PartNotApplied { errno, .. }
            | StopReason::Refused { errno, .. }
            | StopReason::RefusedWithoutReason { errno, .. } => Some(*errno),
            StopReason::Commit(_)
            | StopReason::Unfit(_)
            | StopReason::NoMgs { .. }
            | StopReason::NoKeys { .. }
            | StopReason::Lost { .. }
            | StopReason::TransnosUsedUp => None,
        }
    }
}

/// Why a store cannot be served by the target that opened it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UnfitStore {
    /// The store is empty.
    #[error("there is no target in this store: make one with 'adamant mkfs'")]
    NoTarget,
    /// The store is that of a target of another kind.
    #[error("the store holds target '{found}', which is of another kind: name the right directory")]
    OtherKind {
        /// Whose it is.
        found: TargetName,
    },
    /// The store is another target's.
    #[error("the store holds target '{found}', not '{wanted}': name the right directory")]
    OtherTarget {
        /// Whose it is.
        found: TargetName,
        /// Whose it should be.
        wanted: TargetName,
    },
    /// A newer version wrote what this one would misread.
    #[error(
        "target '{target}' needs feature '{feature}' that this version lacks; run 'adamant tune --print' with the newer version to see how \
         to go back"
    )]
    Feature {
        /// Its name, as its header has it.
        target: String,
        /// The feature's name, or its bit.
        feature: String,
    },
    /// The header names no target.
    #[error("the target's header is wrong: {0}; put a copy of its store back")]
    Name(ParseTargetNameError),
    /// A key in the header has a wrong length.
    #[error(
        "the header of target '{target}' is damaged: its {key} has {found} bytes instead of {wanted}; put a copy of its store back"
    )]
    Key {
        /// Its name, as its header has it.
        target: String,
        /// Which key.
        key: &'static str,
        /// Its bytes.
        found: usize,
        /// How many it should have.
        wanted: usize,
    },
    /// The header counts more starts than there can be.
    #[error(
        "the store of target '{target}' counts as many starts as can be counted: it is damaged; put a copy of it back"
    )]
    Starts {
        /// Its name.
        target: TargetName,
    },
    /// Two clients have one number.
    #[error(
        "two clients of target '{target}' have generation {generation}: its client records are damaged; start it once with '-o abort_recov'"
    )]
    Generation {
        /// Its name, as its header has it.
        target: String,
        /// The number.
        generation: u32,
    },
    /// No recovery epoch is left.
    #[error("the transnos of target '{target}' are used up (the last is {last}): go back to a copy of its store")]
    Epochs {
        /// Its name, as its header has it.
        target: String,
        /// The last transno.
        last: Transno,
    },
    /// No recovery epoch is left that lies beyond those of the lost store.
    #[error("target '{target}' has no transnos left to accept an older copy with: make it anew")]
    EpochsToAccept {
        /// Its name, as its header has it.
        target: String,
    },
}

impl UnfitStore {
    /// Whether what is stored is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            UnfitStore::Name(_)
            | UnfitStore::Key { .. }
            | UnfitStore::Starts { .. }
            | UnfitStore::Generation { .. }
            | UnfitStore::Epochs { .. } => true,
            UnfitStore::NoTarget
            | UnfitStore::OtherKind { .. }
            | UnfitStore::OtherTarget { .. }
            | UnfitStore::Feature { .. }
            | UnfitStore::EpochsToAccept { .. } => false,
        }
    }
}
