//! `mdtest`: many ranks create, stat, read and remove files and directories, phase by phase, with a barrier between phases.
//!
//! It takes the options of the MPI tool of that name and prints its summary. Ranks are processes (or threads) of one machine, and
//! there may be several mounts of one file system: rank r works through mount r mod k, each of which is a client of its own.
//!
//! - [`options`]: what a run does, and which options fit together.
//! - [`places`]: lists and ranges of directories.
//! - [`layout`]: which rank makes and visits which names.
//! - [`rank`]: the work of one rank; [`files`] and [`native`] are what it works on: a mount, or the client library without one.
//! - [`run`]: starts ranks, keeps them in step, collects their times.
//! - [`summary`]: the table.
//!
//! The time of a phase is from the first rank's start to the last rank's end, by one clock that all processes share.

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

/// What all ranks do between two barriers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Folders that are not measured.
    Prepare,
    /// The tree of directories that the items lie in.
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
    /// The tree again.
    TreeRemoval,
    /// What [`Phase::Prepare`] made.
    Finish,
    /// Everything that the run made, whatever state it is in.
    Clean,
    /// Further files, after some ranks had made fewer than others when the time was over.
    FileCreationRest,
    /// The files of all ranks, made empty by the first one.
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

    /// As the summary calls it.
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

    /// Whether it is one of the tree's, of which the whole run has one, not each rank.
    pub fn is_of_the_tree(self) -> bool {
        matches!(self, Phase::TreeCreation | Phase::TreeRemoval)
    }

    /// How many strides from the rank that made an item the rank is that visits it.
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

    /// Reads the number that ranks and their run tell each other.
    fn from_str(text: &str) -> Result<Phase, ()> {
        text.parse().ok().and_then(|at: usize| Phase::ALL.get(at).copied()).ok_or(())
    }
}
