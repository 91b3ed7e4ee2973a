//! `createmany`, `unlinkmany`, `statmany`: one kind of call in a loop, and its rate.

use std::ffi::{CString, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bench::many::compare::compare;
use bench::many::create::{self, Kind, Open};
use bench::many::pattern::Pattern;
use bench::many::stat::{Length, Look};
use bench::many::{Done, Ended, remove, stat};
use clap::{ArgGroup, Args};

use crate::daemon;

/// Create many files, directories or links and print the rate
///
/// Example: createmany -o -k /mnt/dir/f%d 10000
#[derive(Args)]
#[command(group(ArgGroup::new("what").args(["open", "mknod", "mkdir", "link"])))]
#[command(group(ArgGroup::new("something").required(true).multiple(true).args(["open", "mknod", "mkdir", "link", "unlink"])))]
pub(crate) struct Create {
    /// Create files with open(O_CREAT), and close them
    #[arg(short = 'o')]
    open: bool,
    /// Create regular files with mknod
    #[arg(short = 'm')]
    mknod: bool,
    /// Create directories
    #[arg(short = 'd')]
    mkdir: bool,
    /// Create links to this file
    #[arg(short = 'l', value_name = "TARGET", value_parser = path)]
    link: Option<CString>,
    /// With -o: keep all files open, and measure opens and closes separately
    #[arg(short = 'k', conflicts_with_all = ["mknod", "mkdir", "link"])]
    keep: bool,
    /// With -o: set an extended attribute user.createmany of this many bytes
    #[arg(short = 'x', value_name = "SIZE", conflicts_with_all = ["mknod", "mkdir", "link"], value_parser = clap::value_parser!(u32).range(0..=65536))]
    xattr: Option<u32>,
    /// Remove each at once, under its own name or that of another format (-uFORMAT); alone: only remove existing names
    #[arg(short = 'u', short_alias = 'r', value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    unlink: Option<String>,
    /// Stop after this many seconds
    #[arg(short = 't', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// With -o: the size of each file
    #[arg(short = 'S', value_name = "SIZE", conflicts_with_all = ["mknod", "mkdir", "link"], value_parser = crate::output::parse_size)]
    size: Option<u64>,
    /// With -S: write the bytes instead of only setting the size
    #[arg(short = 'W', requires = "size")]
    write: bool,
    /// With -o: the owner of each file
    #[arg(short = 'U', value_name = "UID", conflicts_with_all = ["mknod", "mkdir", "link"])]
    uid: Option<u32>,
    /// With -o: the group of each file
    #[arg(short = 'G', value_name = "GID", conflicts_with_all = ["mknod", "mkdir", "link"])]
    gid: Option<u32>,
    /// With -d, on a mount of Adamant: the index of the metadata target of each directory
    #[arg(short = 'i', value_name = "MDT", requires = "mkdir", conflicts_with_all = ["open", "mknod", "link", "beside"], value_parser = clap::value_parser!(u32).range(..=65535))]
    mdt: Option<u32>,
    /// The project of each file; this version has no projects
    #[arg(short = 'P', value_name = "PROJID", value_parser = no_project)]
    project: Option<u32>,
    /// Run this many times, remove the files after each run (not measured), and print median and spread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Repeat each run in a new folder of this directory, usually a bare local one, and print the ratio
    #[arg(long, value_name = "DIRECTORY")]
    beside: Option<PathBuf>,
    /// Remove everything at the end, even if the run ends early
    #[arg(long)]
    cleanup: bool,
    /// Names: a format with at most one number (f%d, f%06x), or a base to which the number is appended
    #[arg(value_name = "FORMAT")]
    pattern: Pattern,
    /// First number (default 0), and how many
    #[arg(value_name = "[START] COUNT", num_args = 0..=2, allow_negative_numbers = true)]
    numbers: Vec<i64>,
}

/// Remove many files or directories and print the rate
///
/// Example: unlinkmany /mnt/dir/f%d 10000
#[derive(Args)]
pub(crate) struct Remove {
    /// Remove directories
    #[arg(short = 'd')]
    directories: bool,
    /// Names, as for createmany
    #[arg(value_name = "FORMAT")]
    pattern: Pattern,
    /// First number (default 0), and how many
    #[arg(value_name = "[START] COUNT", num_args = 1..=2, required = true, allow_negative_numbers = true)]
    numbers: Vec<i64>,
}

/// Stat many files in a random order and print the rate
///
/// Example: statmany -s /mnt/dir/f 10000
#[derive(Args)]
#[command(group(ArgGroup::new("how").required(true).args(["stat", "lookup"])))]
pub(crate) struct Stat {
    /// Use stat(2)
    #[arg(short = 's', long = "stat")]
    stat: bool,
    /// Only look up the name (open with O_PATH)
    #[arg(short = 'l', long = "lookup")]
    lookup: bool,
    /// Seed of the order; by default a new one, which is printed
    #[arg(short = 'r', long = "random", value_name = "SEED")]
    seed: Option<u32>,
    /// Prefix of the names; the numbers from 0 follow
    #[arg(value_name = "BASE")]
    pattern: Pattern,
    /// Number of files
    #[arg(value_name = "TOTAL", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
    total: u64,
    /// How many to stat, by default TOTAL; a negative number is a time in seconds
    #[arg(value_name = "ITERATIONS", allow_negative_numbers = true)]
    iterations: Option<i64>,
}

fn no_project(_: &str) -> anyhow::Result<u32> {
    Err(anyhow!("projects are not part of this version: leave -P away"))
}

fn path(text: &str) -> anyhow::Result<CString> {
    CString::new(text).context("a path has no zero byte")
}

/// Rewrites the words of a command line for clap; the command is at `at` (0: the binary was called by the name of the
/// command). `-uFORMAT` of createmany becomes `-u=FORMAT`, so that the optional value is not confused with the next word.
pub(crate) fn attached(words: Vec<OsString>, at: usize) -> Vec<OsString> {
    if at > 0 && words.get(at).is_none_or(|word| word != "createmany") {
        return words;
    }
    // -r is an older name for -u.
    let attach = |word: OsString| match word.as_bytes() {
        [b'-', b'u' | b'r', format @ ..] if !format.is_empty() && format[0] != b'=' => {
            OsString::from_vec([b"-u=", format].concat())
        }
        _ => word,
    };
    words.into_iter().map(attach).collect()
}

/// The time in seconds in the form of older scripts: `createmany -o f -10`. It is removed from the numbers.
fn deprecated_time(numbers: &mut Vec<i64>) -> Option<u64> {
    let last = numbers.last().copied().filter(|last| *last < 0)?;
    numbers.pop();
    Some(last.unsigned_abs())
}

/// The start and the count, from the numbers after the format.
fn numbers(numbers: &[i64]) -> anyhow::Result<(i64, Option<u64>)> {
    let (start, count) = match *numbers {
        [] => return Ok((0, None)),
        [count] => (0, count),
        [start, count, ..] => (start, count),
    };
    match u64::try_from(count) {
        Ok(count) if count > 0 => Ok((start, Some(count))),
        _ => Err(anyhow!("the count is {count}; it must be at least 1")),
    }
}

/// The exit status and message of a run.
fn end(result: Result<(), Ended>, done: Done) -> anyhow::Result<ExitCode> {
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Ended::Failed(text)) => bail!("{text}"),
        Err(Ended::Stopped) => bail!("stopped after {} operations, {:.2} a second", done.count, done.rate()),
        Err(Ended::Output(error)) => bail!("cannot print: {error}"),
    }
}

/// Runs `createmany`.
pub(crate) fn create(mut arguments: Create) -> anyhow::Result<ExitCode> {
    if let Some(seconds) = deprecated_time(&mut arguments.numbers) {
        eprintln!("warning: '-runtime' deprecated, use '-t runtime' instead");
        arguments.seconds.get_or_insert(seconds);
    }
    let misused = |error: anyhow::Error| -> ! { crate::misused::<Create>("createmany", &format!("{error:#}")) };
    let (start, count) = numbers(&arguments.numbers).unwrap_or_else(|error| misused(error));
    if count.is_none() && arguments.seconds.is_none() {
        misused(anyhow!("give a count, or a time with -t"));
    }
    let unlink = match arguments.unlink.as_deref() {
        None => None,
        Some("") => Some(arguments.pattern.clone()),
        Some(format) => Some(format.parse().unwrap_or_else(|error| misused(error))),
    };
    let kind = if let Some(target) = arguments.link {
        Kind::Link(target)
    } else if arguments.mkdir {
        arguments.mdt.map_or(Kind::Mkdir, Kind::MkdirOn)
    } else if arguments.mknod {
        Kind::Mknod
    } else if !arguments.open {
        Kind::Nothing
    } else {
        create::raise_open_files();
        Kind::Open(Open {
            keep: arguments.keep,
            xattr: arguments.xattr.map(|size| size as usize),
            size: arguments.size.unwrap_or(0),
            write: arguments.write,
            uid: arguments.uid,
            gid: arguments.gid,
        })
    };
    let time = arguments.seconds.map(Duration::from_secs);
    let create = create::Create { kind, unlink, pattern: arguments.pattern, start, count, time };
    daemon::end_tools_on_signal(true)?;
    let mut out = std::io::stdout().lock();
    if arguments.runs.is_some() || arguments.beside.is_some() {
        let result = compare(&create, arguments.runs.unwrap_or(1), arguments.beside.as_deref(), &mut out);
        return end(result, Done::default());
    }
    let (created, result) = create.run(&mut out);
    let removed = if arguments.cleanup { create.remove(created.made.count) } else { Ok(()) };
    out.flush()?;
    end(result.and(removed), created.made)
}

/// Runs `unlinkmany`.
pub(crate) fn remove(arguments: Remove) -> anyhow::Result<ExitCode> {
    let misused = |error: anyhow::Error| -> ! { crate::misused::<Remove>("unlinkmany", &format!("{error:#}")) };
    let (start, count) = numbers(&arguments.numbers).unwrap_or_else(|error| misused(error));
    let remove = remove::Remove {
        directories: arguments.directories,
        pattern: arguments.pattern,
        start,
        count: count.unwrap_or(0),
    };
    daemon::end_tools_on_signal(true)?;
    let (done, result) = remove.run(&mut std::io::stdout().lock());
    end(result, done)
}

/// Runs `statmany`.
pub(crate) fn stat(arguments: Stat) -> anyhow::Result<ExitCode> {
    let length = match arguments.iterations {
        None => Length::Count(arguments.total),
        Some(count) if count >= 0 => Length::Count(count.unsigned_abs()),
        Some(seconds) => Length::Time(Duration::from_secs(seconds.unsigned_abs())),
    };
    let stat = stat::Stat {
        look: if arguments.stat { Look::Stat } else { Look::Lookup },
        seed: arguments.seed.map_or_else(|| host::clock::seed() >> 32, u64::from),
        pattern: arguments.pattern,
        total: arguments.total,
        length,
    };
    daemon::end_tools_on_signal(true)?;
    let (done, result) = stat.run(&mut std::io::stdout().lock());
    end(result, done)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line<A: Args> {
        #[command(flatten)]
        arguments: A,
    }

    fn parse<A: Args>(line: &str) -> Result<A, clap::Error> {
        let words: Vec<OsString> = std::iter::once("tool").chain(line.split(' ')).map(OsString::from).collect();
        Line::<A>::try_parse_from(attached(words, 0)).map(|line| line.arguments)
    }

    #[test]
    fn createmany_takes_exactly_one_kind_and_keeps_only_with_open() {
        for good in [
            "-o f 10",
            "-m f 10",
            "-d f 10",
            "-l target f 10",
            "-ltarget f 10",
            "-o -k f 0 10",
            "-ok f -t 5",
            "-d -i 0 f 10",
            "-d -i 3 f 10",
            "-u f 10",
            "-r f 10",
            "-o f -5",
            "-o -rg%d f 3 -5",
        ] {
            assert!(parse::<Create>(good).is_ok(), "{good}");
        }
        for bad in ["f 10", "-o -m f 10", "-m -k f 10", "-d -x 10 f 10", "-o", "-o %s 10", "-o f 1 2 3", "-W -o f 1"] {
            assert!(parse::<Create>(bad).is_err(), "{bad}");
        }
        for (bad, reason) in [
            ("-d -i x f 10", "-i"),
            ("-d -i 70000 f 10", "70000"),
            ("-d -i 1 --beside /tmp f 10", "--beside"),
            ("-o -P 5 f 10", "projects"),
            ("-o -i 0 f 1", "-i"),
            ("-u -i 0 f 1", "-d"),
        ] {
            assert!(parse::<Create>(bad).err().unwrap().to_string().contains(reason), "{bad}");
        }
    }

    #[test]
    fn an_attached_unlink_format_is_not_the_next_word() {
        assert_eq!(parse::<Create>("-o -u f 10").unwrap().unlink.as_deref(), Some(""));
        assert_eq!(parse::<Create>("-o -ug%d f 10").unwrap().unlink.as_deref(), Some("g%d"));
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        assert_eq!(attached(words("adamant createmany -ux"), 1), words("adamant createmany -u=x"));
        assert_eq!(attached(words("adamant mdtest -ux"), 1), words("adamant mdtest -ux"));
    }

    #[test]
    fn older_forms_are_understood() {
        let time = |numbers: &[i64]| {
            let mut numbers = numbers.to_vec();
            (deprecated_time(&mut numbers), numbers)
        };
        assert_eq!(time(&[-5]), (Some(5), vec![]));
        assert_eq!(time(&[3, -5]), (Some(5), vec![3]));
        assert_eq!(time(&[-3, 5]), (None, vec![-3, 5]));
        assert_eq!(time(&[]), (None, vec![]));
        assert_eq!(parse::<Create>("-m -rg%d f 10").unwrap().unlink.as_deref(), Some("g%d"));
        assert_eq!(parse::<Create>("-r f 10").unwrap().unlink.as_deref(), Some(""));
    }

    #[test]
    fn numbers_are_a_count_or_a_start_and_a_count() {
        assert_eq!(numbers(&[]).unwrap(), (0, None));
        assert_eq!(numbers(&[5]).unwrap(), (0, Some(5)));
        assert_eq!(numbers(&[-3, 5]).unwrap(), (-3, Some(5)));
        assert!(numbers(&[0]).is_err() && numbers(&[1, -1]).is_err());
    }

    #[test]
    fn unlinkmany_and_statmany_want_their_words() {
        for good in ["f 10", "-d f 10", "f 5 10"] {
            assert!(parse::<Remove>(good).is_ok(), "{good}");
        }
        for good in ["-s f 10", "-l f 10 100", "-r 5 -s f 10 -3"] {
            assert!(parse::<Stat>(good).is_ok(), "{good}");
        }
        assert!(parse::<Remove>("f").is_err());
        for bad in ["f 10", "-s f", "-s -l f 10", "-s f 0", "-q f 10"] {
            assert!(parse::<Stat>(bad).is_err(), "{bad}");
        }
    }
}
