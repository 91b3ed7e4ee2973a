//! `mdtest`: many ranks create, stat, read and remove files and directories, phase by phase, with a barrier between phases.
//!
//! It takes the options of the MPI tool of that name and prints the same summary. Ranks are processes (or threads) on one
//! machine, and there may be several mounts of one file system: rank r uses mount r mod k, and each mount is a client of
//! its own.
//!
//! - [`options`]: what a run does, and which options fit together.
//! - [`places`]: lists and ranges of directories.
//! - [`layout`]: which rank makes and visits which names.
//! - [`rank`]: the work of one rank; [`files`] and [`native`] carry out its operations: on a mount, or with the client
//!   library and no mount.
//! - [`run`]: starts the ranks, keeps them in step and collects their times.
//! - [`summary`]: the table of results.
//!
//! The time of a phase is from the start of the first rank to the end of the last, by one clock that all processes share.

pub mod files;
pub mod layout;
pub mod native;
pub mod options;
pub mod places;
pub mod rank;
pub mod run;
pub mod summary;
#[cfg(test)]
mod tests;

use std::str::FromStr;

/// The work of all ranks between two barriers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Makes folders; not measured.
    Prepare,
    /// Makes the tree of directories that hold the items.
    TreeCreation,
    /// mkdir.
    DirectoryCreation,
    /// stat of directories.
    DirectoryStat,
    /// rmdir.
    DirectoryRemoval,
    /// open, write, close.
    FileCreation,
    /// stat of files.
    FileStat,
    /// open, read, close.
    FileRead,
    /// unlink.
    FileRemoval,
    /// Removes the tree.
    TreeRemoval,
    /// Removes what [`Phase::Prepare`] made.
    Finish,
    /// Removes everything that the run made, whatever state it is in.
    Clean,
    /// Creates further files, after some ranks created fewer than others before the time was over.
    FileCreationRest,
    /// Creates the files of all ranks, empty, by the first rank.
    FilesOfAll,
}

impl Phase {
    const ALL: [Phase; 14] = [
        Phase::Prepare,
        Phase::TreeCreation,
        Phase::DirectoryCreation,
        Phase::DirectoryStat,
        Phase::DirectoryRemoval,
        Phase::FileCreation,
        Phase::FileStat,
        Phase::FileRead,
        Phase::FileRemoval,
        Phase::TreeRemoval,
        Phase::Finish,
        Phase::Clean,
        Phase::FileCreationRest,
        Phase::FilesOfAll,
    ];

    /// The name in the summary.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Prepare => "Preparation",
            Phase::TreeCreation => "Tree creation",
            Phase::DirectoryCreation => "Directory creation",
            Phase::DirectoryStat => "Directory stat",
            Phase::DirectoryRemoval => "Directory removal",
            Phase::FileCreation | Phase::FileCreationRest | Phase::FilesOfAll => "File creation",
            Phase::FileStat => "File stat",
            Phase::FileRead => "File read",
            Phase::FileRemoval => "File removal",
            Phase::TreeRemoval => "Tree removal",
            Phase::Finish => "End",
            Phase::Clean => "Clean-up",
        }
    }

    /// Whether the phase concerns the tree, which exists once for the whole run and not for each rank.
    pub fn is_of_the_tree(self) -> bool {
        matches!(self, Phase::TreeCreation | Phase::TreeRemoval)
    }

    /// The number of strides between the rank that created an item and the rank that visits it.
    pub fn strides(self) -> u64 {
        match self {
            Phase::DirectoryStat | Phase::FileStat => 1,
            Phase::FileRead => 2,
            Phase::DirectoryRemoval | Phase::FileRemoval => 3,
            _ => 0,
        }
    }
}

impl FromStr for Phase {
    type Err = ();

    /// Parses the number by which a run and its ranks name a phase.
    fn from_str(text: &str) -> Result<Phase, ()> {
        text.parse().ok().and_then(|at: usize| Phase::ALL.get(at).copied()).ok_or(())
    }
}
