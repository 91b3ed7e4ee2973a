//! Whole tasks of users and administrators, each beside the yardstick that bounds it and the fraction of it that the task
//! should reach: listings of files that another client made, archives and repositories, one directory for many clients, a
//! survey.
//!
//! Listings are cold: the mount that lists is made for that. The do-nothing file system is likewise listed through a second
//! mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bare::Bare;
use crate::cluster::Cluster;
use crate::figures::Figure;
use crate::gather::{Gathered, Measure};
use crate::guardian;
use crate::load::{Job, Pool};
use crate::nothing::Data;
use crate::places::{self, ADAMANT, Local, NOTHING, Sample, Spread, phase};
use crate::results::{Bound, Results, Row};
use crate::run::Run;

/// Files in each directory of the tree that is packed.
const FOLDER: u64 = 1000;
/// The size of these files, in bytes.
const SMALL: usize = 1024;
/// How many times fewer files the repository has than the archive.
const CLONE_PART: u64 = 20;
/// Clients that work in one directory.
const CLIENTS: usize = 4;
const OWN: &str = "directories of their own";
const BARE: &str = "bare engine";

const LS: &str = "ls -l of files that another client made";
const FIND: &str = "find -size of files that another client made";
const WARM: &str = "open, read, close of files that another client made, warm";
const UNTAR: &str = "untar of small files";
const CLONE: &str = "git clone";
const SHARED: &str = "create, 4 clients in one directory";
const SURVEY: &str = "mds-survey create, 1 thread";

/// Requests for each file that still count as none: pings, and replies about background work.
const FEW: f64 = 0.005;

/// A goal.
struct Aim {
    what: &'static str,
    unit: &'static str,
    measure: Measure,
    yardstick: &'static str,
    /// The factor on the yardstick: a rate should be at least that many times it, a time at most.
    times: f64,
    /// Whether the operation must also send no requests.
    no_request: bool,
    is: &'static str,
}

const fn rate(what: &'static str, unit: &'static str, yardstick: &'static str, times: f64, is: &'static str) -> Aim {
    Aim { what, unit, measure: Measure::Rate, yardstick, times, no_request: false, is }
}

const fn time(what: &'static str, times: f64, is: &'static str) -> Aim {
    Aim { what, unit: "us/file", measure: Measure::Microseconds, yardstick: NOTHING, times, no_request: false, is }
}

const AIMS: [Aim; 7] = [
    time(LS, 2.0, "half as fast as do-nothing"),
    time(FIND, 2.0, "half as fast as do-nothing"),
    Aim { no_request: true, ..time(WARM, 2.0, "no request, and half as fast as do-nothing") },
    time(UNTAR, 1.5, "1.5 do-nothing"),
    time(CLONE, 1.5, "1.5 do-nothing"),
    rate(SHARED, "files/s", OWN, 0.7, "0.7 of directories of their own"),
    rate(SURVEY, "creates/s", BARE, 0.5, "half of the bare engine"),
];

/// The rows for the measurements.
pub(super) fn rows(gathered: &Gathered, bare: &[Bare]) -> Vec<Row> {
    let engine = Figure::of(&bare.iter().map(|bare| bare.creates_per_second).collect::<Vec<_>>());
    AIMS.iter().filter_map(|aim| row(aim, gathered, engine)).collect()
}

fn row(aim: &Aim, gathered: &Gathered, engine: Option<Figure>) -> Option<Row> {
    let mut row = gathered.row(aim.what, "", ADAMANT, &[], aim.measure, aim.what.to_owned(), aim.unit)?;
    let yardstick =
        if aim.yardstick == BARE { engine } else { gathered.figure(aim.what, "", aim.yardstick, aim.measure) };
    row.bound = yardstick.map(|yardstick| {
        let value = aim.times * yardstick.median;
        let kept = match aim.measure {
            Measure::Rate => row.figure.median >= value,
            Measure::Microseconds | Measure::ServerCpu => row.figure.median <= value,
        };
        let kept = kept && !(aim.no_request && row.requests.is_none_or(|each| each >= FEW));
        Bound { is: aim.is.to_owned(), value, kept }
    });
    Some(row.beside(aim.yardstick, yardstick))
}

/// The input of the tasks, made once.
struct Source {
    archive: PathBuf,
    repository: PathBuf,
    files: u64,
    cloned: u64,
}

/// Runs every task once on Adamant and on its yardsticks, in each round.
pub(super) fn measure(
    run: &Run,
    rounds: usize,
    files: u64,
    cluster: &mut Cluster,
    gathered: &mut Gathered,
    results: &mut Results,
) -> anyhow::Result<()> {
    run.step(0, rounds, "an archive and a repository")?;
    while cluster.mounts().len() < CLIENTS {
        cluster.mount(None)?;
    }
    let source = match prepare(run, files) {
        Ok(source) => Some(source),
        Err(error) => {
            run.go_on()?;
            results.not_available.push(("untar, git clone".to_owned(), format!("{error:#}")));
            None
        }
    };
    let mut pool = Pool::start(CLIENTS)?;
    let mount = cluster.mounts().remove(0);
    for round in 0..rounds {
        run.step(round, rounds, "listings")?;
        listings(run, &mut pool, files, cluster, gathered)?;
        if let Some(source) = &source {
            run.step(round, rounds, "untar, git clone")?;
            let nothing = places::do_nothing(run, "nothing", Data::Memory)?;
            unpack(run, source, &nothing.root, NOTHING, gathered)?;
            unpack(run, source, &mount, ADAMANT, gathered)?;
        }
        run.step(round, rounds, SHARED)?;
        for (shared, place) in [(true, ADAMANT), (false, OWN)] {
            together(run, &mut pool, cluster, files, shared, place, gathered)?;
        }
        run.step(round, rounds, SURVEY)?;
        let rate = cluster.survey(files.max(100))?;
        gathered.add(SURVEY, "", ADAMANT, Sample { rate, us: 1e6 / rate.max(1e-9), each: None });
    }
    Ok(())
}

/// Lists the files that the first mount made, through mounts that have nothing cached.
fn listings(
    run: &Run,
    pool: &mut Pool,
    files: u64,
    cluster: &mut Cluster,
    gathered: &mut Gathered,
) -> anyhow::Result<()> {
    let made = |root: &Path| Spread {
        roots: vec![root.to_owned()],
        folder: "listed".to_owned(),
        workers: 1,
        count: files,
        shared: true,
        stride: 0,
    };
    let fill = |pool: &mut Pool, spread: &Spread| -> anyhow::Result<()> {
        spread.prepare()?;
        phase(run, pool, &spread.tasks(Job::Create { size: 0 }, "f"), None)?;
        Ok(())
    };
    let nothing = places::do_nothing(run, "nothing", Data::Memory)?;
    fill(pool, &made(&nothing.root))?;
    let spread = made(&cluster.mounts()[0]);
    fill(pool, &spread)?;
    for what in [LS, FIND] {
        let again: Local = nothing.again(run, "nothing-again")?;
        gathered.add(what, "", NOTHING, per_file(list(run, what, &again.root)?, files));
        if what == FIND {
            gathered.add(WARM, "", NOTHING, warm(run, pool, &made(&again.root), None)?);
        }
        drop(again);
        let cold = cluster.mount(None)?;
        let took = list(run, what, &cold);
        if what == FIND && took.is_ok() {
            gathered.add(WARM, "", ADAMANT, warm(run, pool, &made(&cold), Some(&mut *cluster))?);
        }
        cluster.leave(&cold);
        gathered.add(what, "", ADAMANT, per_file(took?, files));
    }
    spread.clean()
}

/// Reads the listed files for the second time.
fn warm(run: &Run, pool: &mut Pool, made: &Spread, mut cluster: Option<&mut Cluster>) -> anyhow::Result<Sample> {
    let tasks = made.tasks(Job::Read, "f");
    phase(run, pool, &tasks, cluster.as_deref_mut())?;
    phase(run, pool, &tasks, cluster)
}

fn list(run: &Run, what: &str, root: &Path) -> anyhow::Result<f64> {
    let folder = root.join("listed/shared");
    let mut command = if what == LS { Command::new("ls") } else { Command::new("find") };
    match what {
        LS => command.arg("-l").arg(folder),
        _ => command.arg(folder).args(["-size", "+1"]),
    };
    timed(run, &mut command)
}

fn per_file(seconds: f64, files: u64) -> Sample {
    let each = seconds / files.max(1) as f64;
    Sample { rate: 1.0 / each.max(1e-9), us: each * 1e6, each: None }
}

/// Runs a program, and returns the seconds that it took.
fn timed(run: &Run, command: &mut Command) -> anyhow::Result<f64> {
    let name = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let mut child = guardian::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))
        .with_context(|| format!("cannot start '{name}'"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(stopped) = run.go_on() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(stopped);
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("'{name}' failed ({status}): {}", text.lines().last().unwrap_or("it said nothing"));
    }
    Ok(seconds)
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

/// Packs a tree of small files, and commits a smaller tree.
fn prepare(run: &Run, files: u64) -> anyhow::Result<Source> {
    let folder = run.folder("source")?;
    let source = Source {
        archive: folder.join("tree.tar"),
        repository: folder.join("repository"),
        files,
        cloned: (files / CLONE_PART).max(10),
    };
    let tree = folder.join("tree");
    grow(&tree, source.files)?;
    timed(run, Command::new("tar").arg("-cf").arg(&source.archive).arg("-C").arg(&tree).arg("."))?;
    fs::remove_dir_all(&tree)?;
    grow(&source.repository, source.cloned)?;
    for words in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "all"]] {
        timed(run, git().arg("-C").arg(&source.repository).args(words))?;
    }
    Ok(source)
}

fn grow(tree: &Path, files: u64) -> anyhow::Result<()> {
    for n in 0..files {
        let folder = tree.join(format!("d{}", n / FOLDER));
        if n % FOLDER == 0 {
            fs::create_dir_all(&folder)?;
        }
        let line = format!("file {n}\n");
        fs::write(folder.join(format!("f{n}")), line.repeat(SMALL / line.len()))?;
    }
    Ok(())
}

fn unpack(run: &Run, source: &Source, root: &Path, place: &str, gathered: &mut Gathered) -> anyhow::Result<()> {
    let (tree, clone) = (root.join("tree"), root.join("clone"));
    fs::create_dir(&tree)?;
    let took = timed(run, Command::new("tar").arg("-xf").arg(&source.archive).arg("-C").arg(&tree))?;
    gathered.add(UNTAR, "", place, per_file(took, source.files));
    let words = ["clone", "-q", "--no-hardlinks"];
    let took = timed(run, git().args(words).arg(&source.repository).arg(&clone))?;
    gathered.add(CLONE, "", place, per_file(took, source.cloned));
    fs::remove_dir_all(&tree)?;
    fs::remove_dir_all(&clone)?;
    Ok(())
}

/// Creates files through four mounts at once, in one directory or in one for each.
fn together(
    run: &Run,
    pool: &mut Pool,
    cluster: &mut Cluster,
    files: u64,
    shared: bool,
    place: &str,
    gathered: &mut Gathered,
) -> anyhow::Result<()> {
    let spread = Spread {
        roots: cluster.mounts().into_iter().take(CLIENTS).collect(),
        folder: "together".to_owned(),
        workers: CLIENTS,
        count: (files / CLIENTS as u64).max(1),
        shared,
        stride: 0,
    };
    spread.prepare()?;
    let sample = phase(run, pool, &spread.tasks(Job::Create { size: 0 }, "f"), Some(cluster))?;
    gathered.add(SHARED, "", place, sample);
    spread.clean()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Each;

    #[test]
    fn a_time_is_bounded_from_above_and_a_rate_from_below() {
        let mut gathered = Gathered::default();
        let mut add = |what, place, us: f64| gathered.add(what, "", place, Sample { rate: 1e6 / us, us, each: None });
        add(UNTAR, NOTHING, 100.0);
        add(UNTAR, ADAMANT, 149.0);
        add(CLONE, NOTHING, 100.0);
        add(CLONE, ADAMANT, 151.0);
        add(SHARED, OWN, 7.0);
        add(SHARED, ADAMANT, 9.9);
        add(SURVEY, ADAMANT, 10.0);
        add(WARM, NOTHING, 10.0);
        for requests in [0.0, 0.001, 1.0] {
            let each = Some(Each { requests, client_cpu_us: 1.0, server_cpu_us: 1.0 });
            gathered.add(WARM, "", ADAMANT, Sample { rate: 1e6 / 15.0, us: 15.0, each });
        }
        let rows = rows(&gathered, &[Bare { creates_per_second: 300_000.0, cpu_us: 1.0 }]);
        let found = |what: &str| {
            let row = rows.iter().find(|row| row.what == what).unwrap();
            let bound = row.bound.as_ref().unwrap();
            (bound.value.round() as u64, bound.kept, row.yardsticks[0].name.clone())
        };
        assert_eq!(found(UNTAR), (150, true, NOTHING.to_owned()));
        assert_eq!(found(CLONE), (150, false, NOTHING.to_owned()));
        assert_eq!(found(SHARED), (100_000, true, OWN.to_owned()));
        assert_eq!(found(SURVEY), (150_000, false, BARE.to_owned()));
        assert_eq!(found(WARM), (20, true, NOTHING.to_owned()));
        assert_eq!(rows.len(), 5, "what was not measured has no row");
        for _ in 0..3 {
            let each = Some(Each { requests: 1.0, client_cpu_us: 1.0, server_cpu_us: 1.0 });
            gathered.add(WARM, "", ADAMANT, Sample { rate: 1e6 / 15.0, us: 15.0, each });
        }
        let rows = super::rows(&gathered, &[]);
        let row = rows.iter().find(|row| row.what == WARM).unwrap();
        assert!(row.bound.as_ref().is_some_and(|bound| !bound.kept), "a request was sent");
    }

    #[test]
    fn a_program_is_timed_and_its_failure_told() {
        let parent = tempfile::tempdir().unwrap();
        let run = Run::new(parent.path(), || false, |_| ()).unwrap();
        assert!(timed(&run, Command::new("sleep").arg("0.02")).unwrap() >= 0.02);
        let said = timed(&run, Command::new("ls").arg("/none/such")).unwrap_err().to_string();
        assert!(said.contains("'ls' failed") && said.contains("/none/such"), "{said}");
        assert!(timed(&run, &mut Command::new("no-such-program")).unwrap_err().to_string().contains("cannot start"));
        let stopped = Run::new(parent.path(), || true, |_| ()).unwrap();
        let start = Instant::now();
        assert!(timed(&stopped, Command::new("sleep").arg("20")).is_err());
        assert!(start.elapsed() < Duration::from_secs(10), "it is ended");
    }

    #[test]
    fn an_archive_and_a_repository_hold_the_files() {
        let parent = tempfile::tempdir().unwrap();
        let run = Run::new(parent.path(), || false, |_| ()).unwrap();
        let Ok(source) = prepare(&run, 30) else { return eprintln!("skipped: no tar or no git here") };
        let mut gathered = Gathered::default();
        unpack(&run, &source, parent.path(), ADAMANT, &mut gathered).unwrap();
        for what in [UNTAR, CLONE] {
            assert!(gathered.figure(what, "", ADAMANT, Measure::Rate).unwrap().median > 0.0);
        }
        assert!(!parent.path().join("tree").exists() && !parent.path().join("clone").exists());
    }
}
