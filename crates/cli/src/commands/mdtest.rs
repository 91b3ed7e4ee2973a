//! `mdtest`: metadata operations from many ranks, with the options of the MPI tool of that name.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, bail};
use bench::mdtest::options::{Options, Place, Print};
use bench::mdtest::places;
use bench::mdtest::run::{self, Crew, Ended};
use clap::Args;

use crate::commands::mount;
use crate::daemon;
use crate::output::say;

/// Create, stat, read and remove files and directories from many ranks and print the rates
///
/// Example: mdtest --np 8 -n 10000 -u -d /lustre_{0-3}/test
#[derive(Args)]
#[command(disable_version_flag = true, args_override_self = true)]
pub(crate) struct Arguments {
    /// Interface: only POSIX (with --native it is the client library)
    #[arg(short = 'a', value_name = "API", value_parser = interface)]
    interface: Option<String>,
    /// Branches of each directory of the tree
    #[arg(short = 'b', value_name = "N", default_value_t = 1)]
    branches: u64,
    /// No barriers between phases
    #[arg(short = 'B')]
    no_barriers: bool,
    /// The first rank creates and removes everything for all ranks; then each opens and writes its own files
    #[arg(short = 'c')]
    collective: bool,
    /// Give the test directories no layout of their own, whatever they inherit
    #[arg(short = 'g')]
    global_layout: bool,
    /// Stop creating files after this many seconds; each rank then creates as many as the rank that had created most
    #[arg(short = 'W', value_name = "SECONDS", default_value_t = 0)]
    stone_wall: u64,
    /// With -W, write the number of files of each rank to this file; without -C, read it from this file
    #[arg(short = 'x', value_name = "FILE")]
    stone_wall_file: Option<String>,
    /// Compare everything that is read with what was written, not only the number of the item
    #[arg(short = 'X', long = "verify-read")]
    verify_read: bool,
    /// Read each file back as soon as it is written, and compare
    #[arg(long = "verify-write")]
    verify_write: bool,
    /// Treat warnings as errors
    #[arg(long = "warningAsErrors")]
    warnings_are_errors: bool,
    /// Only create
    #[arg(short = 'C')]
    create: bool,
    /// Only stat
    #[arg(short = 'T')]
    stat: bool,
    /// Only read
    #[arg(short = 'E')]
    read: bool,
    /// Only remove
    #[arg(short = 'r')]
    remove: bool,
    /// Directory, or several (a@b, /lustre_{0-15}, or more words); rank r uses the one with number r modulo their count
    #[arg(short = 'd', value_name = "DIRECTORY", num_args = 1.., default_value = ".")]
    places: Vec<String>,
    /// Only directories
    #[arg(short = 'D')]
    directories: bool,
    /// Only files
    #[arg(short = 'F')]
    files: bool,
    /// Bytes to read from each file
    #[arg(short = 'e', value_name = "BYTES", default_value = "0", value_parser = crate::output::parse_size)]
    read_bytes: u64,
    /// Bytes to write to each file
    #[arg(short = 'w', value_name = "BYTES", default_value = "0", value_parser = crate::output::parse_size)]
    write_bytes: u64,
    /// First number of ranks to test
    #[arg(short = 'f', value_name = "N", value_parser = clap::value_parser!(u64).range(1..=RANKS_MAX))]
    first: Option<u64>,
    /// Last number of ranks to test
    #[arg(short = 'l', value_name = "N", value_parser = clap::value_parser!(u64).range(1..=RANKS_MAX))]
    last: Option<u64>,
    /// Step between numbers of ranks
    #[arg(short = 's', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=RANKS_MAX))]
    step: u64,
    /// Iterations
    #[arg(short = 'i', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Items in each directory of the tree
    #[arg(short = 'I', value_name = "N", default_value_t = 0)]
    items_per_directory: u64,
    /// Create files with mknod
    #[arg(short = 'k')]
    mknod: bool,
    /// Items only in the leaves of the tree
    #[arg(short = 'L')]
    leaf_only: bool,
    /// Items of each rank
    #[arg(short = 'n', value_name = "N", default_value_t = 0)]
    items: u64,
    /// Stride: each phase works on what the rank that many places further made
    #[arg(short = 'N', value_name = "N", default_value_t = 0)]
    stride: u64,
    /// Seconds to wait before the tests of an iteration
    #[arg(short = 'p', value_name = "SECONDS", default_value_t = 0)]
    delay: u64,
    /// Print rates and times
    #[arg(short = 'P')]
    rate_and_time: bool,
    /// Print times instead of rates
    #[arg(short = 'Z')]
    time: bool,
    /// Stat and read in a random order; the seed may follow at once (-R5)
    #[arg(short = 'R', value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    random: Option<u64>,
    /// Seed of -R
    #[arg(long, value_name = "SEED")]
    random_seed: Option<u64>,
    /// All ranks work on the same files
    #[arg(short = 'S')]
    shared_files: bool,
    /// Count the time to make up the paths, too
    #[arg(short = 't')]
    time_paths: bool,
    /// Each rank works in a tree of its own
    #[arg(short = 'u')]
    unique: bool,
    /// Print more; can be given several times
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
    /// Verbosity as a number
    #[arg(short = 'V', value_name = "N", default_value_t = 0)]
    verbosity: u8,
    /// Sync each file after it is written
    #[arg(short = 'y')]
    sync_files: bool,
    /// Sync the file system after each phase, as part of the phase
    #[arg(short = 'Y')]
    sync_phases: bool,
    /// Depth of the tree
    #[arg(short = 'z', value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Print the rates of each rank, too
    #[arg(long = "print-all-procs")]
    print_all_ranks: bool,
    /// Number of ranks
    #[arg(long = "np", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=RANKS_MAX))]
    ranks: u64,
    /// Run ranks as threads of one process instead of processes
    #[arg(long)]
    threads: bool,
    /// Use the client library without a mount; -d is then NID[:NID...]:/FSNAME[/DIRECTORY]
    #[arg(long)]
    native: bool,
    /// Remove everything at the end, even if the run ends early
    #[arg(long)]
    cleanup: bool,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
    /// This process is a rank
    #[arg(long, hide = true)]
    rank: Option<u64>,
}

const RANKS_MAX: u64 = 4096;

/// Checks the interface: of those of the MPI tool, only one is supported.
fn interface(text: &str) -> anyhow::Result<String> {
    match text.to_ascii_uppercase().as_str() {
        "POSIX" => Ok(text.to_owned()),
        _ => Err(anyhow!("there is POSIX, and --native for the client library")),
    }
}

/// Rewrites `mdtest -R5` to `-R=5` for the parser. `at` is the index of the command in the words.
pub(crate) fn attached(words: Vec<OsString>, at: usize) -> Vec<OsString> {
    if at > 0 && words.get(at).is_none_or(|word| word != "mdtest") {
        return words;
    }
    let attach = |word: OsString| match word.to_str().and_then(|word| word.strip_prefix("-R")) {
        Some(seed) if !seed.is_empty() && seed.bytes().all(|digit| digit.is_ascii_digit()) => {
            OsString::from(format!("-R={seed}"))
        }
        _ => word,
    };
    words.into_iter().map(attach).collect()
}

impl Arguments {
    /// The seed of a random order, if one is wanted: that of either option, or a new one.
    fn seed(&self) -> Option<u64> {
        let given = self.random?;
        Some(self.random_seed.or((given > 0).then_some(given)).unwrap_or_else(|| host::clock::seed() >> 32))
    }

    /// The combined meaning of the options.
    fn options(&self) -> anyhow::Result<Options> {
        let places = places::expand(&self.places)?;
        let place = |text: String| if self.native { native(&text) } else { Ok(Place::Folder(text)) };
        let all = !(self.create || self.stat || self.read || self.remove);
        let both = !(self.files || self.directories);
        let last = self.last.or(self.first).unwrap_or(self.ranks);
        if last > self.ranks {
            bail!("-l and -f ask for {last} ranks; give --np as many");
        }
        let options = Options {
            places: places.into_iter().map(place).collect::<Result<_, _>>()?,
            items: self.items,
            items_per_directory: self.items_per_directory,
            depth: self.depth,
            branches: self.branches,
            leaf_only: self.leaf_only,
            unique: self.unique,
            shared_files: self.shared_files,
            files: both || self.files,
            directories: (both || self.directories) && !self.shared_files,
            create: all || self.create,
            stat: all || self.stat,
            read: all || self.read,
            remove: all || self.remove,
            mknod: self.mknod,
            write_bytes: self.write_bytes,
            read_bytes: self.read_bytes,
            sync_files: self.sync_files,
            sync_phases: self.sync_phases,
            stride: self.stride,
            random_seed: self.seed(),
            iterations: self.iterations,
            delay_seconds: self.delay,
            barriers: !self.no_barriers,
            collective: self.collective,
            stone_wall: self.stone_wall,
            stone_wall_file: self.stone_wall_file.clone(),
            verify_read: self.verify_read,
            verify_write: self.verify_write,
            global_layout: self.global_layout,
            warnings_are_errors: self.warnings_are_errors,
            time_paths: self.time_paths,
            tasks: (self.first.unwrap_or(last)..=last).step_by(self.step as usize).collect(),
            print: match (self.rate_and_time, self.time) {
                (true, _) => Print::Both,
                (_, true) => Print::Time,
                _ => Print::Rate,
            },
            verbosity: self.verbose.max(self.verbosity),
            print_all_ranks: self.print_all_ranks,
            clean_up: self.cleanup,
        };
        options.check()?;
        Ok(options)
    }
}

/// `NID[:NID...]:/FSNAME[/DIRECTORY]`.
fn native(text: &str) -> anyhow::Result<Place> {
    let mount::Source { mgs, fsname, subtree } = mount::parse_source(text)?;
    Ok(Place::Native { mgs, fsname, folder: subtree.join("/") })
}

/// Runs the command. `words` are those after its name.
pub(crate) fn run(arguments: Arguments, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let options =
        arguments.options().unwrap_or_else(|message| crate::misused::<Arguments>("mdtest", &format!("{message:#}")));
    if let Some(rank) = arguments.rank {
        // The run sends its ranks a signal to stop, and they report before they end.
        daemon::end_tools_on_signal(false)?;
        run::serve_rank(&options, rank).context("the run is gone")?;
        return Ok(ExitCode::SUCCESS);
    }
    daemon::end_tools_on_signal(true)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let command = |rank: u64| {
        let mut command = Command::new(&program);
        command.arg0("adamant").arg("mdtest").args(words).arg(format!("--rank={rank}"));
        if let Some(seed) = options.random_seed {
            command.arg(format!("--random-seed={seed}"));
        }
        command
    };
    let crew = if arguments.threads { Crew::Threads } else { Crew::Processes(&command) };
    let line = words.iter().map(|word| format!(" '{}'", word.to_string_lossy())).collect::<String>();
    let line = format!("mdtest{line}");
    let mut quiet = std::io::sink();
    let mut out = std::io::stdout().lock();
    let (rows, result) = run::run(&options, &line, &crew, if arguments.json { &mut quiet } else { &mut out });
    drop(out);
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&rows)?);
    }
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Ended::Failed(message)) => bail!("{message}"),
        Err(Ended::Output(error)) => bail!("cannot print: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(line: &str) -> anyhow::Result<Options> {
        let words: Vec<OsString> = std::iter::once("mdtest").chain(line.split(' ')).map(OsString::from).collect();
        Line::try_parse_from(attached(words, 0))?.arguments.options()
    }

    #[test]
    fn every_option_says_what_it_does() {
        let base = Options { items: 10, ..Options::default() };
        let folder = |path: &str| Place::Folder(path.to_owned());
        let cases: [(&str, Options); 29] = [
            ("-n 10", base.clone()),
            ("-n 10 -u", Options { unique: true, ..base.clone() }),
            ("-n 10 --np 2 -d a@b", Options { places: vec![folder("a"), folder("b")], tasks: vec![2], ..base.clone() }),
            ("--np 2 -d a b -n 10", Options { places: vec![folder("a"), folder("b")], tasks: vec![2], ..base.clone() }),
            ("-n 10 -N 1", Options { stride: 1, ..base.clone() }),
            ("-n 10 -F", Options { directories: false, ..base.clone() }),
            ("-n 10 -D", Options { files: false, ..base.clone() }),
            ("-n 10 -C", Options { stat: false, read: false, remove: false, ..base.clone() }),
            ("-n 10 -T -E", Options { create: false, remove: false, ..base.clone() }),
            ("-n 10 -r", Options { create: false, stat: false, read: false, ..base.clone() }),
            ("-n 10 -i 3", Options { iterations: 3, ..base.clone() }),
            ("-n 10 -w 4k -e 10", Options { write_bytes: 4096, read_bytes: 10, ..base.clone() }),
            ("-n 10 -z 1 -b 3 -L", Options { depth: 1, branches: 3, leaf_only: true, ..base.clone() }),
            ("-I 10 -z 1", Options { items: 0, items_per_directory: 10, depth: 1, ..base.clone() }),
            ("-n 10 -y -Y", Options { sync_files: true, sync_phases: true, ..base.clone() }),
            ("-n 10 -p 2", Options { delay_seconds: 2, ..base.clone() }),
            ("-n 10 -R --random-seed 5", Options { random_seed: Some(5), ..base.clone() }),
            ("-n 10 -R5", Options { random_seed: Some(5), ..base.clone() }),
            ("-a POSIX -n 10 -c", Options { collective: true, ..base.clone() }),
            ("-n 10 -g -X", Options { global_layout: true, verify_read: true, ..base.clone() }),
            ("-n 10 --verify-write --verify-read", Options { verify_write: true, verify_read: true, ..base.clone() }),
            (
                "-n 10 -W 5 -x f --warningAsErrors",
                Options {
                    stone_wall: 5,
                    stone_wall_file: Some("f".to_owned()),
                    warnings_are_errors: true,
                    ..base.clone()
                },
            ),
            ("-n 10 -S", Options { shared_files: true, directories: false, ..base.clone() }),
            ("-n 10 --np 8 -f 2 -l 8 -s 3", Options { tasks: vec![2, 5, 8], ..base.clone() }),
            ("-n 10 -vv -t -B", Options { verbosity: 2, time_paths: true, barriers: false, ..base.clone() }),
            ("-n 10 -V 3 -k", Options { verbosity: 3, mknod: true, ..base.clone() }),
            ("-n 10 -P --cleanup", Options { print: Print::Both, clean_up: true, ..base.clone() }),
            ("-n 10 -Z --print-all-procs", Options { print: Print::Time, print_all_ranks: true, ..base.clone() }),
            ("-n 5 -n 10 --threads", base),
        ];
        for (line, expected) in cases {
            assert_eq!(options(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn native_places_are_file_systems_with_a_directory() {
        let place = |line| options(line).unwrap().places.remove(0);
        let native = |folder: &str| Place::Native {
            mgs: vec!["127.0.0.1:7988".parse().unwrap()],
            fsname: "fs".to_owned(),
            folder: folder.to_owned(),
        };
        assert_eq!(place("-n 1 --native -d 127.0.0.1:7988:/fs"), native(""));
        assert_eq!(place("-n 1 --native -d 127.0.0.1:7988:/fs/a/b/"), native("a/b"));
        assert!(options("-n 1 --native -d /mnt").is_err());
    }

    #[test]
    fn wrong_options_are_refused() {
        for bad in [
            "-n x",
            "-Q",
            "-n 10 -d a@b",
            "-n 10 -l 5",
            "-n 1 -N 1 -B",
            "-n 0",
            "-n 1 -i 0",
            "-n 1 -w 1q",
            "-n 1 -a MPIIO",
            "-n 1 -W 1 -z 2",
            "-n 1 -W 1 -B",
            "-n 1 -c -B",
            "-n 1 -Rx",
        ] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
