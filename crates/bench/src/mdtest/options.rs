//! The options of a run of mdtest.

use anyhow::anyhow;
use proto::Nid;

/// Where a rank works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A directory.
    Folder(String),
    /// A directory of a file system that is not mounted; the client library accesses it.
    Native {
        /// The addresses of the MGS.
        mgs: Vec<Nid>,
        /// The file system.
        fsname: String,
        /// The path of the directory from the root, without a leading slash.
        folder: String,
    },
}

impl Place {
    /// The path of the directory, as the calls take it.
    pub fn path(&self) -> &str {
        match self {
            Place::Folder(path) => path,
            Place::Native { folder, .. } => folder,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Folder(path) => f.write_str(path),
            Place::Native { fsname, folder, .. } => write!(f, "{fsname}:/{folder}"),
        }
    }
}

/// The options, named by their letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// `-d`.
    pub places: Vec<Place>,
    /// `-n`: items of each rank; 0 if only `-I` is given.
    pub items: u64,
    /// `-I`: items in each directory of the tree; 0 if only `-n` is given.
    pub items_per_directory: u64,
    /// `-z`.
    pub depth: u32,
    /// `-b`.
    pub branches: u64,
    /// `-L`.
    pub leaf_only: bool,
    /// `-u`.
    pub unique: bool,
    /// `-S`.
    pub shared_files: bool,
    /// `-F`, or not `-D`.
    pub files: bool,
    /// `-D`, or not `-F`.
    pub directories: bool,
    /// `-C`, or none of the four.
    pub create: bool,
    /// `-T`, or none of the four.
    pub stat: bool,
    /// `-E`, or none of the four.
    pub read: bool,
    /// `-r`, or none of the four.
    pub remove: bool,
    /// `-k`.
    pub mknod: bool,
    /// `-w`.
    pub write_bytes: u64,
    /// `-e`.
    pub read_bytes: u64,
    /// `-y`.
    pub sync_files: bool,
    /// `-Y`.
    pub sync_phases: bool,
    /// `-N`.
    pub stride: u64,
    /// `-R`.
    pub random_seed: Option<u64>,
    /// `-i`.
    pub iterations: u32,
    /// `-p`.
    pub delay_seconds: u64,
    /// `-B`.
    pub barriers: bool,
    /// `-c`: the first rank creates everything, and removes it, for all ranks.
    pub collective: bool,
    /// `-W`: seconds after which ranks stop creating files; they then create as many as the rank that has created most. 0:
    /// never.
    pub stone_wall: u64,
    /// `-x`: the file that holds that number of files.
    pub stone_wall_file: Option<String>,
    /// `-X`: compare everything that is read with what was written.
    pub verify_read: bool,
    /// `--verify-write`: read each file back at once.
    pub verify_write: bool,
    /// `-g`: the test directories have no layout of their own.
    pub global_layout: bool,
    /// `--warningAsErrors`.
    pub warnings_are_errors: bool,
    /// `-t`: the time to make up the paths counts.
    pub time_paths: bool,
    /// The numbers of ranks to test, one after another: `-f`, `-l`, `-s`, or a single one.
    pub tasks: Vec<u64>,
    /// `-P`: rates and times; `-Z`: times.
    pub print: Print,
    /// `-v`.
    pub verbosity: u8,
    /// `--print-all-procs`.
    pub print_all_ranks: bool,
    /// `--cleanup`.
    pub clean_up: bool,
}

/// The tables to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Print {
    /// Operations per second.
    #[default]
    Rate,
    /// Milliseconds per operation.
    Time,
    /// Both.
    Both,
}

impl Default for Options {
    /// One rank that does everything with one item in the current directory.
    fn default() -> Options {
        Options {
            places: vec![Place::Folder(".".to_owned())],
            items: 1,
            items_per_directory: 0,
            depth: 0,
            branches: 1,
            leaf_only: false,
            unique: false,
            shared_files: false,
            files: true,
            directories: true,
            create: true,
            stat: true,
            read: true,
            remove: true,
            mknod: false,
            write_bytes: 0,
            read_bytes: 0,
            sync_files: false,
            sync_phases: false,
            stride: 0,
            random_seed: None,
            iterations: 1,
            delay_seconds: 0,
            barriers: true,
            collective: false,
            stone_wall: 0,
            stone_wall_file: None,
            verify_read: false,
            verify_write: false,
            global_layout: false,
            warnings_are_errors: false,
            time_paths: false,
            tasks: vec![1],
            print: Print::Rate,
            verbosity: 0,
            print_all_ranks: false,
            clean_up: false,
        }
    }
}

/// The largest write or read of one item, which is held in memory.
const BYTES_MAX: u64 = 1 << 30;
/// The most directories in a tree.
const TREE_MAX: u64 = 1 << 24;

impl Options {
    /// The greatest number of ranks.
    pub fn ranks(&self) -> u64 {
        self.tasks.iter().copied().max().unwrap_or(1)
    }

    /// Checks that the options fit together.
    ///
    /// # Errors
    /// A sentence that names the conflicting options.
    pub fn check(&self) -> anyhow::Result<()> {
        let refuse = |condition: bool, message: &str| if condition { Err(anyhow!("{message}")) } else { Ok(()) };
        refuse(self.items == 0 && self.items_per_directory == 0, "how many? give -n, or -I")?;
        refuse(self.stride > 0 && !self.barriers, "-N does not go with -B: ranks would visit what is not there yet")?;
        refuse(
            self.stone_wall > 0 && (self.depth > 0 || self.loops() > 1 || !self.barriers || self.collective),
            "-W does not go with -z, -B, -c, or -n with -I: ranks stop in one directory, and wait for each other",
        )?;
        refuse(
            self.stone_wall_file.is_some() && (self.depth > 0 || self.loops() > 1),
            "-x does not go with -z, or -n with -I: the file has one number",
        )?;
        refuse(self.collective && !self.barriers, "-c does not go with -B: ranks would work on what is not there yet")?;
        refuse(
            self.global_layout && self.places.iter().any(|place| matches!(place, Place::Native { .. })),
            "-g does not go with --native: it asks the mount",
        )?;
        refuse(self.shared_files && self.unique, "-S does not go with -u")?;
        refuse(self.shared_files && !self.files, "-S is about files and does not go with -D")?;
        refuse(self.mknod && self.write_bytes > 0, "-k does not go with -w: a node is not opened")?;
        refuse(
            self.read && self.create && self.read_bytes > self.write_bytes,
            "-e asks for more bytes than -w writes; raise -w",
        )?;
        refuse(
            self.write_bytes > BYTES_MAX || self.read_bytes > BYTES_MAX,
            "-w and -e take at most 1073741824 bytes: an item is held in memory",
        )?;
        refuse(self.branches == 0 && self.depth > 0, "-b must be at least 1 with -z")?;
        refuse(self.places.len() as u64 > self.ranks(), "-d names more directories than there are ranks; raise --np")?;
        refuse(self.tasks.is_empty(), "-f, -l and -s leave no number of ranks to test")?;
        refuse(self.tree().is_none(), "-z and -b make a tree of too many directories")?;
        if self.items > 0 && self.items_per_directory > 0 {
            refuse(self.unique, "give -n or -I, not both, with -u")?;
            refuse(!self.items.is_multiple_of(self.items_per_directory), "-n must be a multiple of -I")?;
            refuse(self.depth > 0, "give -n or -I, not both, with -z")?;
        }
        refuse(self.layout_items() == 0, "-n gives each directory of the tree less than one item; raise it")
    }

    /// The number of directories in the tree; `None` if there are too many.
    pub fn tree(&self) -> Option<u64> {
        let (mut level, mut all) = (1u64, 1u64);
        for _ in 0..self.depth {
            level = level.checked_mul(self.branches)?;
            all = all.checked_add(level).filter(|all| *all <= TREE_MAX)?;
        }
        Some(all)
    }

    /// The number of directories in its last level.
    pub fn leaves(&self) -> u64 {
        self.branches.checked_pow(self.depth).unwrap_or(1).max(1)
    }

    /// The number of test directories of an iteration, side by side: n / I with both `-n` and `-I`, else one.
    pub fn loops(&self) -> u64 {
        if self.items > 0 && self.items_per_directory > 0 { self.items / self.items_per_directory } else { 1 }
    }

    /// The number of items in each directory of the tree that holds any.
    pub fn layout_items(&self) -> u64 {
        if self.items_per_directory > 0 {
            return self.items_per_directory;
        }
        self.items / if self.leaf_only { self.leaves() } else { self.tree().unwrap_or(1) }
    }

    /// The number of items of a rank, over all its directories.
    pub fn items_of_a_rank(&self) -> u64 {
        let directories = if self.leaf_only { self.leaves() } else { self.tree().unwrap_or(1) };
        self.layout_items() * directories * self.loops()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(change: impl Fn(&mut Options)) -> (u64, u64, u64) {
        let mut options = Options { items: 100, ..Options::default() };
        change(&mut options);
        options.check().unwrap();
        (options.layout_items(), options.items_of_a_rank(), options.loops())
    }

    #[test]
    fn items_are_spread_over_the_tree() {
        assert_eq!(items(|_| {}), (100, 100, 1));
        assert_eq!(items(|o| (o.depth, o.branches) = (2, 3)), (7, 91, 1));
        assert_eq!(items(|o| (o.depth, o.branches, o.leaf_only) = (2, 3, true)), (11, 99, 1));
        assert_eq!(items(|o| (o.items, o.items_per_directory, o.depth, o.branches) = (0, 5, 1, 4)), (5, 25, 1));
        assert_eq!(items(|o| o.items_per_directory = 20), (20, 100, 5));
        assert_eq!(items(|o| o.depth = 3), (25, 100, 1));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        type Change = fn(&mut Options);
        let bad: [(&str, Change); 11] = [
            ("-n, or -I", |o| o.items = 0),
            ("-B", |o| (o.stride, o.barriers) = (1, false)),
            ("-u", |o| (o.shared_files, o.unique) = (true, true)),
            ("-D", |o| (o.shared_files, o.files) = (true, false)),
            ("-k", |o| (o.mknod, o.write_bytes) = (true, 1)),
            ("-w", |o| o.read_bytes = 1),
            ("-b", |o| (o.depth, o.branches) = (1, 0)),
            ("--np", |o| o.places = vec![Place::Folder("a".to_owned()); 2]),
            ("too many", |o| (o.depth, o.branches) = (60, 9)),
            ("multiple", |o| (o.items, o.items_per_directory) = (10, 3)),
            ("less than one", |o| (o.depth, o.branches) = (2, 10)),
        ];
        for (word, change) in bad {
            let mut options = Options { items: 10, ..Options::default() };
            change(&mut options);
            let message = options.check().unwrap_err().to_string();
            assert!(message.contains(word), "{word}: {message}");
        }
    }
}
