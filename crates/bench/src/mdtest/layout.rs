//! The names that a rank creates and visits.
//!
//! The test directories of an iteration are `test-dir.ITERATION-LOOP`. Each holds the tree `mdtest_tree.0` (with `-u` one
//! for each rank, `mdtest_tree.RANK.0`); directory k of a tree holds the directories b·k+1 … b·k+b. Item i lies in
//! directory i / (items in a directory), as `file.mdtest.RANK.i` or `dir.mdtest.RANK.i`, where RANK created it.
//!
//! With a stride N, rank r stats what rank r+N created, reads what r+2N created and removes what r+3N created, so no rank
//! profits from the cache of its own client. The same holds for the trees with `-u`, one stride further.

use super::Phase;
use super::options::Options;

/// A directory that holds items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Its path.
    pub path: String,
    /// The number of its first item.
    pub first: u64,
}

/// The names of one rank in one iteration.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The run.
    pub options: &'a Options,
    /// The rank's directory, of `-d`.
    pub base: &'a str,
    /// The number of the rank.
    pub rank: u64,
    /// The number of ranks.
    pub tasks: u64,
    /// The number of the iteration.
    pub iteration: u32,
}

impl Layout<'_> {
    /// The iteration's test directories.
    pub fn test_folders(&self) -> Vec<String> {
        let base = self.base.trim_end_matches('/');
        let slash = if self.base.is_empty() { "" } else { "/" };
        (0..self.options.loops()).map(|number| format!("{base}{slash}test-dir.{}-{number}", self.iteration)).collect()
    }

    fn tree_name(&self, rank: u64) -> String {
        if self.options.unique { format!("mdtest_tree.{rank}") } else { "mdtest_tree".to_owned() }
    }

    /// The directories of this rank's tree, parents first; empty if another rank makes the tree for all.
    pub fn own_tree(&self) -> Vec<String> {
        if !self.options.unique && self.rank > 0 {
            return Vec::new();
        }
        self.test_folders().iter().flat_map(|folder| self.tree(folder, self.rank)).collect()
    }

    fn tree(&self, folder: &str, rank: u64) -> Vec<String> {
        let name = self.tree_name(rank);
        let count = self.options.tree().unwrap_or(1);
        let mut paths: Vec<String> = vec![format!("{folder}/{name}.0")];
        for number in 1..count {
            let parent = (number - 1) / self.options.branches;
            paths.push(format!("{}/{name}.{number}", paths[parent as usize]));
        }
        paths
    }

    /// The directories whose items the rank visits in a phase.
    pub fn folders(&self, phase: Phase) -> Vec<Folder> {
        let options = self.options;
        let tree_of = (self.rank + (phase.strides() + 1) * options.stride) % self.tasks;
        let count = options.tree().unwrap_or(1);
        let first = if options.leaf_only { count - options.leaves() } else { 0 };
        let mut folders = Vec::new();
        for folder in self.test_folders() {
            let tree = self.tree(&folder, tree_of);
            let with_items = tree.into_iter().enumerate().skip(first as usize);
            folders.extend(
                with_items.map(|(number, path)| Folder { path, first: number as u64 * options.layout_items() }),
            );
        }
        folders
    }

    /// The part of the names before the number, for the items that the rank visits in a phase.
    pub fn prefix(&self, phase: Phase) -> String {
        let kind = match phase {
            Phase::DirectoryCreation | Phase::DirectoryStat | Phase::DirectoryRemoval => "dir",
            _ => "file",
        };
        if self.options.shared_files {
            return format!("{kind}.mdtest.shared.");
        }
        let maker = (self.rank + phase.strides() * self.options.stride) % self.tasks;
        format!("{kind}.mdtest.{maker}.")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(options: &Options, phase: Phase, rank: u64, tasks: u64) -> BTreeSet<String> {
        let layout = Layout { options, base: "/m", rank, tasks, iteration: 0 };
        let prefix = layout.prefix(phase);
        let folders = layout.folders(phase);
        let numbers = |folder: &Folder| folder.first..folder.first + options.layout_items();
        folders
            .iter()
            .flat_map(|f| numbers(f).map(move |n| (f, n)))
            .map(|(f, n)| format!("{}/{prefix}{n}", f.path))
            .collect()
    }

    #[test]
    fn names_are_those_of_the_mpi_tool() {
        let mut options = Options { items: 2, ..Options::default() };
        let expected =
            ["/m/test-dir.0-0/mdtest_tree.0/file.mdtest.1.0", "/m/test-dir.0-0/mdtest_tree.0/file.mdtest.1.1"];
        assert_eq!(names(&options, Phase::FileCreation, 1, 2), expected.map(str::to_owned).into());
        options.unique = true;
        let expected =
            ["/m/test-dir.0-0/mdtest_tree.1.0/dir.mdtest.1.0", "/m/test-dir.0-0/mdtest_tree.1.0/dir.mdtest.1.1"];
        assert_eq!(names(&options, Phase::DirectoryCreation, 1, 2), expected.map(str::to_owned).into());
        let layout = Layout {
            options: &Options { depth: 2, branches: 2, ..Options::default() },
            base: "",
            rank: 0,
            tasks: 1,
            iteration: 3,
        };
        let tree = layout.own_tree();
        assert_eq!(tree.len(), 7);
        assert_eq!(tree[6], "test-dir.3-0/mdtest_tree.0/mdtest_tree.2/mdtest_tree.6");
    }

    #[test]
    fn every_phase_visits_what_was_made_and_with_a_stride_what_another_made() {
        let shapes: [fn(&mut Options); 5] = [
            |_| {},
            |o| o.unique = true,
            |o| (o.unique, o.depth, o.branches, o.leaf_only) = (true, 2, 2, true),
            |o| (o.items, o.items_per_directory) = (40, 10),
            |o| (o.depth, o.branches) = (1, 3),
        ];
        for shape in shapes {
            for stride in [0, 1, 3] {
                let mut options = Options { items: 40, stride, ..Options::default() };
                shape(&mut options);
                let all =
                    |phase| -> BTreeSet<String> { (0..5).flat_map(|rank| names(&options, phase, rank, 5)).collect() };
                let made = all(Phase::FileCreation);
                assert_eq!(made.len() as u64, 5 * options.items_of_a_rank());
                for phase in [Phase::FileStat, Phase::FileRead, Phase::FileRemoval] {
                    assert_eq!(all(phase), made);
                    let own = names(&options, phase, 0, 5) == names(&options, Phase::FileCreation, 0, 5);
                    assert_eq!(own, (phase.strides() * stride).is_multiple_of(5), "{phase:?} {stride}");
                }
            }
        }
    }
}
