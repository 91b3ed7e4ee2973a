//! `lctl test_create` and its like: load inside a metadata target of this machine, from which Lustre's `mds-survey` is built.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{anyhow, bail};
use bench::survey::folders::{ByClient, Folders, Wanted};
use bench::survey::load::{self, Load};
use bench::survey::word;
use clap::{Args, Subcommand};
use host::admin::Device;
use host::survey::{Order, Test};
use proto::TargetName;

use crate::commands::survey::Here;
use crate::daemon;
use crate::misuse::misuse;
use crate::output::say;

/// The verbs.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Make directories by way of a metadata target of this machine, on it or on the one of --stripe_index, or striped; with -d many of
    /// them inside the target, as a test. Example: lctl --device demo-MDT0001 test_mkdir /dir0 -c 2 --stripe_index 1
    #[command(name = "test_mkdir")]
    Mkdir(Objects),
    /// Create files inside a metadata target, without network and clients, and print the rate.
    /// Example: lctl --threads 4 -1 demo-MDT0001 test_create -d /dir -D 4 -b 2 -n 10000
    #[command(name = "test_create")]
    Create(Objects),
    /// Look such files up, and print the rate
    #[command(name = "test_lookup")]
    Lookup(Objects),
    /// Look such files up and read their attributes, and print the rate
    #[command(name = "test_md_getattr")]
    MdGetattr(Objects),
    /// Look such files up and set an extended attribute, and print the rate
    #[command(name = "test_setxattr")]
    Setxattr(Objects),
    /// Remove such files, and print the rate
    #[command(name = "test_destroy")]
    Destroy(Objects),
    /// Remove directories, as test_mkdir made them
    #[command(name = "test_rmdir")]
    Rmdir(Objects),
}

impl Verb {
    /// The test that it runs, and what on.
    fn parts(&self) -> (Test, &Objects) {
        match self {
            Verb::Mkdir(objects) => (Test::Mkdir, objects),
            Verb::Create(objects) => (Test::Create, objects),
            Verb::Lookup(objects) => (Test::Lookup, objects),
            Verb::MdGetattr(objects) => (Test::MdGetattr, objects),
            Verb::Setxattr(objects) => (Test::Setxattr, objects),
            Verb::Destroy(objects) => (Test::Destroy, objects),
            Verb::Rmdir(objects) => (Test::Rmdir, objects),
        }
    }
}

/// What a test works on.
#[derive(Args)]
pub(crate) struct Objects {
    /// The directory of the files; with -D the beginning of the names of several
    #[arg(short = 'd', value_name = "DIR")]
    base: Option<String>,
    /// Number of directories, DIR0 and so on; thread t, counted from 0, works in number t modulo this
    #[arg(short = 'D', value_name = "COUNT", requires = "base", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    folders: Option<u32>,
    /// The number in the name of the first file; each thread goes on where the one before ends
    #[arg(short = 'b', value_name = "START", default_value_t = 0)]
    start: u64,
    /// Number of files of each thread
    #[arg(short = 'n', value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Stripes of each directory that is named; of files, without effect: they have no objects before they are written
    #[arg(short = 'c', value_name = "COUNT", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=2000))]
    stripes: Option<i32>,
    /// The metadata target of a directory that is named, or of its first stripe; without it the device
    #[arg(short = 'i', long = "stripe_index", value_name = "INDEX")]
    index: Option<u32>,
    /// Directories, for test_mkdir and test_rmdir
    #[arg(value_name = "PATH", conflicts_with = "base")]
    paths: Vec<String>,
}

/// How a test runs and reports.
pub(super) struct Threads {
    /// The number of threads. Without it there is one, and the report is that of a single command.
    pub count: Option<u32>,
    /// When the rate is printed.
    pub report: Option<Report>,
}

/// When the rate of a running test is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Report {
    /// Only at the end.
    Total,
    /// After so many seconds each.
    Every(usize),
}

impl FromStr for Report {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Report> {
        let seconds = text.strip_prefix('-').and_then(|seconds| seconds.parse().ok());
        match (text, seconds) {
            ("q", _) => Ok(Report::Total),
            ("v", _) => Ok(Report::Every(1)),
            (_, Some(seconds @ 1..=86_400)) => Ok(Report::Every(seconds)),
            _ => Err(anyhow!("expected --threads N -SECONDS DEVICE; instead of -SECONDS also q, for the total only")),
        }
    }
}

/// The verb of a test, as it is written.
fn name_of(test: Test) -> String {
    format!("test_{}", word(test))
}

/// The directories of a test.
fn bases(objects: &Objects) -> Vec<String> {
    match (&objects.base, objects.folders) {
        (None, _) => Vec::new(),
        (Some(base), None) => vec![base.clone()],
        (Some(base), Some(count)) => (0..count).map(|number| format!("{base}{number}")).collect(),
    }
}

/// Checks that the options fit the test.
fn check(test: Test, objects: &Objects, device: Option<&str>) -> anyhow::Result<()> {
    let verb = name_of(test);
    let of_directories = matches!(test, Test::Mkdir | Test::Rmdir);
    let named = !objects.paths.is_empty();
    if device.is_none() {
        misuse!(
            "{verb} needs a metadata target: lctl --threads N -SECONDS DEVICE {verb} ..., or lctl --device DEVICE {verb} ..."
        );
    }
    if named && !of_directories {
        misuse!("{verb} takes its files by -d DIR, -b START and -n COUNT, not by their paths");
    }
    if !named && objects.base.is_none() {
        misuse!("{verb} needs -d DIR{}", if of_directories { ", or the paths of directories" } else { "" });
    }
    if objects.index.is_some() && !(test == Test::Mkdir && named) {
        misuse!("--stripe_index is for directories that test_mkdir makes by their paths");
    }
    if objects.stripes.is_some() && !(test == Test::Create || test == Test::Mkdir && named) {
        misuse!("-c is for directories that test_mkdir makes by their paths, and for test_create");
    }
    Ok(())
}

/// The metadata target that a device names: by name, or by its number in `lctl dl`.
fn target(wanted: &str, devices: &[Device]) -> anyhow::Result<TargetName> {
    let by_number = wanted.parse::<usize>().ok().and_then(|number| devices.get(number));
    let Some(device) = devices.iter().find(|device| device.name == wanted).or(by_number) else {
        bail!("there is no device '{wanted}' here; see: lctl dl");
    };
    match device.name.parse() {
        Ok(name) if device.kind == "mdt" => Ok(name),
        _ => bail!("device '{}' is no metadata target of a server here; see: lctl dl", device.name),
    }
}

/// The metadata targets of `count` stripes from `first` on; -1: of all.
fn stripes(first: u32, count: i32, all: &[u32]) -> anyhow::Result<Vec<u32>> {
    let Some(at) = all.iter().position(|mdt| *mdt == first) else {
        bail!("there is no MDT{first:04x} in this file system; see: lctl dl");
    };
    let count = usize::try_from(count).unwrap_or(all.len());
    if count > all.len() {
        bail!("{count} stripes are too many: there are {} metadata targets", all.len());
    }
    Ok(all.iter().cycle().skip(at).take(count).copied().collect())
}

/// Runs a verb. `devices`: those of this machine.
pub(super) fn run(
    verb: &Verb,
    device: Option<&str>,
    threads: &Threads,
    devices: impl FnOnce() -> Vec<Device>,
) -> anyhow::Result<ExitCode> {
    let (test, objects) = verb.parts();
    check(test, objects, device)?;
    let name = target(device.unwrap_or_default(), &devices())?;
    let (here, target) = (Here::find(), name.to_string());
    here.has(&target)?;
    daemon::end_tools_on_signal(true)?;
    let mgs = |fsname: &str| here.mgs(fsname);
    let folders = ByClient { mgs: &mgs };
    let (count, seconds) = if objects.paths.is_empty() {
        let load = Load {
            target,
            test,
            threads: threads.count.unwrap_or(1),
            folders: places(&folders, &name, objects)?,
            start: objects.start,
            count: objects.count,
            every: match threads.report {
                Some(Report::Every(seconds)) => Some(seconds),
                Some(Report::Total) | None => None,
            },
        };
        let ask = |target: &str, order: Order| here.ask(target, order);
        let status = load.run(&ask, &mut std::io::stdout())?;
        (status.done, status.seconds)
    } else {
        let began = Instant::now();
        if test == Test::Mkdir {
            make(&folders, &name, objects)?;
        } else {
            folders.remove(&name.fsname, &objects.paths, true)?;
        }
        (objects.paths.len() as u64, began.elapsed().as_secs_f64())
    };
    match threads.count {
        Some(threads) => say!("{}", load::total(count, threads, seconds)),
        None => say!("{}", load::one(&name_of(test), count, seconds)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The directories of a test, as far as they are on its target.
fn places(folders: &dyn Folders, name: &TargetName, objects: &Objects) -> anyhow::Result<Vec<host::survey::Folder>> {
    let paths = bases(objects);
    let sites = folders.find(&name.fsname, &paths)?;
    let here = |(path, site): (&String, &bench::survey::folders::Site)| {
        let index = name.index.0;
        site.on(index).ok_or_else(|| {
            anyhow!("the directory '{path}' is not on '{name}'; make one there: lctl --device {name} test_mkdir PATH")
        })
    };
    paths.iter().zip(&sites).map(here).collect()
}

fn make(folders: &dyn Folders, name: &TargetName, objects: &Objects) -> anyhow::Result<()> {
    let first = objects.index.unwrap_or(name.index.0);
    let mdts = match objects.stripes {
        None | Some(0 | 1) => vec![first],
        Some(count) => stripes(first, count, &folders.mdts(&name.fsname)?)?,
    };
    let wanted = |path: &String| Wanted { path: path.clone(), mdts: mdts.clone(), replaces: false };
    let wanted: Vec<Wanted> = objects.paths.iter().map(wanted).collect();
    folders.make(&name.fsname, &wanted).map(drop)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        objects: Objects,
    }

    fn objects(line: &str) -> Result<Objects, clap::Error> {
        let words = std::iter::once("test").chain(line.split_ascii_whitespace());
        Line::try_parse_from(words).map(|line| line.objects)
    }

    #[test]
    fn options_fit_their_tests() {
        for (test, line) in [
            (Test::Mkdir, "/dir0"),
            (Test::Mkdir, "/dir0 -c 2 --stripe_index 1"),
            (Test::Mkdir, "/dir0 /dir1 -c -1 -i 0"),
            (Test::Mkdir, "-d /dir -b 5 -n 10"),
            (Test::Create, "-c 0 -d /dir -D 4 -b 2 -n 100"),
            (Test::Lookup, "-d /dir -D 4 -b 2 -n 100"),
            (Test::Rmdir, "/dir0"),
            (Test::Rmdir, "-d /dir -n 10"),
        ] {
            check(test, &objects(line).unwrap(), Some("fs-MDT0000")).unwrap();
        }
        for (test, line, why) in [
            (Test::Create, "", "needs -d DIR"),
            (Test::Mkdir, "", "or the paths of directories"),
            (Test::Create, "/dir/file", "not by their paths"),
            (Test::Create, "-d /dir -i 1", "--stripe_index is for"),
            (Test::Mkdir, "-d /dir -i 1", "--stripe_index is for"),
            (Test::Rmdir, "/dir -i 1", "--stripe_index is for"),
            (Test::Lookup, "-d /dir -c 2", "-c is for"),
            (Test::Mkdir, "-d /dir -c 2", "-c is for"),
        ] {
            let error = check(test, &objects(line).unwrap(), Some("fs-MDT0000")).unwrap_err();
            assert!(error.is::<crate::misuse::Misuse>() && error.to_string().contains(why), "{line}: {error}");
        }
        assert!(check(Test::Create, &objects("-d /dir").unwrap(), None).unwrap_err().is::<crate::misuse::Misuse>());
        for bad in ["-D 4", "-d /dir -D 0", "-d /dir -n 0", "-d /dir /other", "-c -2 /dir", "-x"] {
            assert!(objects(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn directories_are_numbered_if_their_number_is_given() {
        assert_eq!(bases(&objects("-d /dir -D 2").unwrap()), ["/dir0", "/dir1"]);
        assert_eq!(bases(&objects("-d /dir").unwrap()), ["/dir"]);
    }

    #[test]
    fn reports_have_lustres_forms() {
        assert_eq!("-1".parse::<Report>().unwrap(), Report::Every(1));
        assert_eq!("-30".parse::<Report>().unwrap(), Report::Every(30));
        assert_eq!("q".parse::<Report>().unwrap(), Report::Total);
        for bad in ["1", "-0", "-x", "", "fs-MDT0000"] {
            assert!(bad.parse::<Report>().is_err(), "{bad}");
        }
    }

    #[test]
    fn stripes_begin_at_the_index_and_wrap() {
        assert_eq!(stripes(2, 2, &[0, 1, 2]).unwrap(), [2, 0]);
        assert_eq!(stripes(1, -1, &[0, 1, 2]).unwrap(), [1, 2, 0]);
        assert!(stripes(5, 1, &[0, 1, 2]).is_err());
        assert!(stripes(0, 4, &[0, 1, 2]).is_err());
    }

    #[test]
    fn a_device_is_a_metadata_target() {
        let device = |kind: &str, name: &str| {
            let [state, uuid, place] = ["UP", "uuid", "unix:/run/mdt"].map(str::to_owned);
            Device { state, kind: kind.to_owned(), name: name.to_owned(), uuid, place, refs: None }
        };
        let devices = [device("mgs", "MGS"), device("mdt", "demo-MDT0001"), device("obdfilter", "demo-OST0000")];
        let of = |wanted: &str| target(wanted, &devices).map(|name| name.to_string());
        assert_eq!(of("demo-MDT0001").unwrap(), "demo-MDT0001");
        assert_eq!(of("1").unwrap(), "demo-MDT0001");
        for (bad, why) in [
            ("demo-MDT0000", "no device"),
            ("9", "no device"),
            ("MGS", "is no metadata target"),
            ("2", "is no metadata target"),
        ] {
            let reason = of(bad).unwrap_err().to_string();
            assert!(reason.contains(why), "{bad}: {reason}");
        }
    }
}
