//! One program at work on a mount over loopback TCP, beside what the kernel, the network and the engine allow, and beside
//! local file systems.

use crate::bare::{self, Bare};
use crate::cluster::Cluster;
use crate::echo::{Echo, EchoServer};
use crate::figures::Figure;
use crate::gather::{Gathered, Measure};
use crate::load::{self, Job, Pool};
use crate::nothing::Data;
use crate::places::{self, ADAMANT, Local, NOTHING, NOTHING_DEVICE, Spread, TMPFS, XFS, phase};
use crate::results::{Bound, Chart, Results, Row, Series, Shape};
use crate::run::Run;
use crate::suites::chores;

/// How much to do.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// Files of each phase and round.
    pub files: u64,
    /// MiB that are written and read one after another, of all files together.
    pub mib: u64,
    /// Files that are listed, unpacked, and made in one directory.
    pub tree: u64,
    /// Groups that the bare engine commits in each round, of 10 000 creates each.
    pub groups: u64,
}

/// Echoes that are outstanding at a time.
const OUTSTANDING: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const GROUP: u64 = 10_000;
/// Programs that write and read large files together.
const PROGRAMS: [u64; 2] = [1, 4];
/// The part of the best yardstick that large files are to reach.
const LARGE_PART: f64 = 0.8;
/// A mount that makes changes behind its programs' backs, and the part of the do-nothing file system's rate that it is to reach.
const WRITE_BACK: &str = "Adamant, metadata_write_back";
const WRITE_BACK_PART: f64 = 0.8;
/// A socket to a local file.
const SOCKET: &str = "socket to a local file";
const PHASES: [(&str, &str, Job); 5] = [
    ("create", "f", Job::Create { size: 0 }),
    ("stat, warm", "f", Job::Stat),
    ("unlink", "f", Job::Remove),
    ("4 KiB file: create, write, close", "s", Job::Create { size: 4096 }),
    ("unlink of 4 KiB files", "s", Job::Remove),
];
const YARDSTICKS: [&str; 4] = [NOTHING, NOTHING_DEVICE, TMPFS, XFS];

#[derive(Default)]
struct Samples {
    gathered: Gathered,
    echo: Vec<Vec<f64>>,
    bare: Vec<Bare>,
    /// Writes and reads, by [`PROGRAMS`].
    nothing_sequential: [Vec<(f64, f64)>; 2],
    adamant_sequential: [Vec<(f64, f64)>; 2],
    chores: Gathered,
    socket: Vec<f64>,
}

/// Runs the measurement.
pub fn run(run: &Run, size: Size, command: &str) -> Results {
    let about = "One program at work on a mount over loopback TCP, beside a FUSE file system that does nothing, echoes \
                 over the protocol's framing, the bare engine, and local file systems.";
    super::finish("ceiling", about, command, |results| {
        let mut samples = Samples::default();
        let ended = measure(run, size, &mut samples, results);
        results.rows = rows(&samples);
        results.charts = charts(&samples);
        ended
    })
}

fn measure(run: &Run, size: Size, samples: &mut Samples, results: &mut Results) -> anyhow::Result<()> {
    run.step(0, size.rounds, "starting servers and a mount")?;
    let mut cluster = Cluster::start(&run.folder("cluster")?, 1, 1)?;
    let mount = cluster.mounts().remove(0);
    let behind = cluster.mount_with(None, &["metadata_write_back"])?;
    let (nothing_data, local) = (run.folder("nothing-data")?, run.folder("local")?);
    let mut locals: Vec<Local> = Vec::new();
    for (name, local) in [(TMPFS, places::tmpfs()), (XFS, places::xfs(run))] {
        match local {
            Ok(local) => locals.push(local),
            Err(why) => results.not_available.push((name.to_owned(), why)),
        }
    }
    let server = EchoServer::start()?;
    let mut echo = Echo::connect(server.port)?;
    let mut pool = Pool::start(1)?;
    let mut over_uring = true;
    for round in 0..size.rounds {
        run.step(round, size.rounds, "echo")?;
        let echoes = u32::try_from(size.files)?;
        let times = OUTSTANDING.iter().map(|&outstanding| echo.measure(echoes.max(outstanding * 8), outstanding));
        samples.echo.push(times.collect::<Result<_, _>>()?);
        run.step(round, size.rounds, "bare engine")?;
        samples.bare.push(bare::measure(&run.folder("engine")?, size.groups, GROUP)?);
        {
            run.step(round, size.rounds, NOTHING)?;
            let nothing = places::do_nothing(run, "nothing", Data::Memory)?;
            small(run, &mut pool, size, &nothing.root, NOTHING, None, samples)?;
        }
        if over_uring {
            run.step(round, size.rounds, NOTHING_DEVICE)?;
            match places::do_nothing_over_device(run, "nothing")? {
                Some(nothing) => small(run, &mut pool, size, &nothing.root, nothing.name, None, samples)?,
                None => {
                    over_uring = false;
                    let why = "the kernel does not have it or does not allow it (fuse.enable_uring)";
                    results.not_available.push(("do-nothing FUSE over io_uring".to_owned(), why.to_owned()));
                }
            }
        }
        for local in &locals {
            run.step(round, size.rounds, local.name)?;
            small(run, &mut pool, size, &local.root, local.name, None, samples)?;
        }
        run.step(round, size.rounds, ADAMANT)?;
        small(run, &mut pool, size, &mount, ADAMANT, Some(&mut cluster), samples)?;
        run.step(round, size.rounds, WRITE_BACK)?;
        small(run, &mut pool, size, &behind, WRITE_BACK, Some(&mut cluster), samples)?;
        run.step(round, size.rounds, "large files")?;
        {
            let nothing = places::do_nothing(run, "nothing", Data::Local(nothing_data.clone()))?;
            for (programs, samples) in PROGRAMS.iter().zip(&mut samples.nothing_sequential) {
                samples.push(load::sequential(&nothing.root, size.mib, *programs)?);
            }
        }
        samples.socket.push(load::socket_to_file(&local, size.mib)?);
        for (programs, samples) in PROGRAMS.iter().zip(&mut samples.adamant_sequential) {
            samples.push(load::sequential(&mount, size.mib, *programs)?);
        }
    }
    chores::measure(run, size.rounds, size.tree, &mut cluster, &mut samples.chores, results)
}

fn small(
    run: &Run,
    pool: &mut Pool,
    size: Size,
    root: &std::path::Path,
    name: &str,
    mut cluster: Option<&mut Cluster>,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let spread = Spread {
        roots: vec![root.to_owned()],
        folder: "load".to_owned(),
        workers: 1,
        count: size.files,
        shared: false,
        stride: 0,
    };
    spread.prepare()?;
    for (what, prefix, job) in PHASES {
        let sample = phase(run, pool, &spread.tasks(job, prefix), cluster.as_deref_mut())?;
        samples.gathered.add(what, "", name, sample);
    }
    spread.clean()
}

fn rows(samples: &Samples) -> Vec<Row> {
    let gathered = &samples.gathered;
    let echoes = |index: usize| Figure::of(&samples.echo.iter().map(|times| times[index]).collect::<Vec<_>>());
    let echo = echoes(0);
    let mut rows = Vec::new();
    for (what, _, _) in PHASES {
        let row = gathered.row(what, "", ADAMANT, &YARDSTICKS, Measure::Microseconds, what.to_owned(), "us");
        let Some(mut row) = row else { continue };
        let nothing = gathered.figure(what, "", NOTHING, Measure::Microseconds);
        if let (Some(nothing), Some(echo)) = (nothing, echo) {
            let (is, value) = match what {
                "stat, warm" => ("1.3 do-nothing", 1.3 * nothing.median),
                "create" | "unlink" => ("do-nothing + 1.3 echoes + 15 us", nothing.median + 1.3 * echo.median + 15.0),
                _ => ("do-nothing + 2 echoes + 40 us", nothing.median + 2.0 * echo.median + 40.0),
            };
            row.bound = Some(Bound { is: is.to_owned(), value, kept: row.figure.median <= value });
        }
        rows.push(row);
    }
    for what in ["create", "unlink"] {
        let figure = |place: &str| gathered.figure(what, "", place, Measure::Microseconds);
        let (Some(time), Some(nothing)) = (figure(WRITE_BACK), figure(NOTHING)) else { continue };
        let value = nothing.median / WRITE_BACK_PART;
        let mut row = Row::new(format!("{what}, metadata_write_back"), "us", time).beside(NOTHING, Some(nothing));
        let is = format!("{WRITE_BACK_PART} of the do-nothing file system's rate");
        row.bound = Some(Bound { is, value, kept: time.median <= value });
        rows.push(row);
    }
    rows.extend(large(samples));
    rows.extend(chores::rows(&samples.chores, &samples.bare));
    for (index, outstanding) in OUTSTANDING.iter().enumerate() {
        if let Some(figure) = echoes(index) {
            rows.push(Row::new(format!("echo, {outstanding} outstanding"), "us", figure));
        }
    }
    let of = |which: fn(&Bare) -> f64| Figure::of(&samples.bare.iter().map(which).collect::<Vec<_>>());
    for (what, unit, which) in [
        ("bare engine: creates", "creates/s", (|bare| bare.creates_per_second) as fn(&Bare) -> f64),
        ("bare engine: CPU of a create", "us", |bare| bare.cpu_us),
    ] {
        rows.extend(of(which).map(|figure| Row::new(what, unit, figure)));
    }
    rows
}

/// The rows of large files.
fn large(samples: &Samples) -> Vec<Row> {
    let pick =
        |list: &[(f64, f64)], which: fn(&(f64, f64)) -> f64| Figure::of(&list.iter().map(which).collect::<Vec<_>>());
    let kinds = [
        ("write with fsync (FUSE: to a local file)", (|pair| pair.0) as fn(&(f64, f64)) -> f64),
        ("read (FUSE: of a local file)", |pair| pair.1),
    ];
    let mut rows = Vec::new();
    for (index, programs) in PROGRAMS.iter().enumerate() {
        for (what, which) in kinds {
            let Some(figure) = pick(&samples.adamant_sequential[index], which) else { continue };
            let nothing = pick(&samples.nothing_sequential[index], which);
            let socket = Figure::of(&samples.socket).filter(|_| what.starts_with("write"));
            let best = [nothing, socket].into_iter().flatten().map(|figure| figure.median).fold(0.0, f64::max);
            let what = if *programs == 1 { what.to_owned() } else { format!("{what}, {programs} programs") };
            let mut row = Row::new(what, "MiB/s", figure).beside(NOTHING, nothing).beside(SOCKET, socket);
            let value = LARGE_PART * best;
            let is = format!("{LARGE_PART} of the best yardstick");
            row.bound = Some(Bound { is, value, kept: figure.median >= value });
            rows.push(row);
        }
    }
    rows
}

fn charts(samples: &Samples) -> Vec<Chart> {
    let gathered = &samples.gathered;
    let mut charts = Vec::new();
    let series: Vec<Series> = [ADAMANT, WRITE_BACK, NOTHING, NOTHING_DEVICE, TMPFS, XFS]
        .iter()
        .map(|place| Series {
            name: (*place).to_owned(),
            points: PHASES.iter().map(|(what, ..)| gathered.figure(what, "", place, Measure::Microseconds)).collect(),
        })
        .filter(|series| series.points.iter().any(Option::is_some))
        .collect();
    if !series.is_empty() {
        charts.push(Chart {
            name: "ceiling-operations".to_owned(),
            title: "Time of an operation, one program".to_owned(),
            across: String::new(),
            up: "µs per file (less is better)".to_owned(),
            shape: Shape::Bars,
            places: ["create", "stat", "unlink", "4 KiB: create", "4 KiB: unlink"].map(str::to_owned).to_vec(),
            series,
        });
    }
    if !samples.echo.is_empty() {
        let points = (0..OUTSTANDING.len())
            .map(|index| Figure::of(&samples.echo.iter().map(|times| 1e6 / times[index]).collect::<Vec<_>>()));
        charts.push(Chart {
            name: "ceiling-echo".to_owned(),
            title: "Echoes over the protocol's framing, one connection".to_owned(),
            across: "requests outstanding".to_owned(),
            up: "requests/s".to_owned(),
            shape: Shape::Lines,
            places: OUTSTANDING.iter().map(ToString::to_string).collect(),
            series: vec![Series { name: "echo".to_owned(), points: points.collect() }],
        });
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Sample;

    #[test]
    fn bounds_come_from_the_yardsticks_of_the_run() {
        let mut samples = Samples { echo: vec![vec![20.0; OUTSTANDING.len()]], ..Samples::default() };
        let sample = |us: f64| Sample { rate: 1e6 / us, us, each: None };
        for (what, ..) in PHASES {
            samples.gathered.add(what, "", ADAMANT, sample(60.0));
            samples.gathered.add(what, "", NOTHING, sample(30.0));
            samples.gathered.add(what, "", WRITE_BACK, sample(37.0));
        }
        let rows = rows(&samples);
        let bound = |what: &str| rows.iter().find(|row| row.what == what).unwrap().bound.clone().unwrap();
        assert_eq!((bound("create").value, bound("create").kept), (71.0, true));
        assert_eq!((bound("stat, warm").value, bound("stat, warm").kept), (39.0, false));
        assert_eq!(bound("4 KiB file: create, write, close").value, 110.0);
        let behind = bound("create, metadata_write_back");
        assert_eq!((behind.value, behind.kept), (37.5, true));
        assert_eq!(charts(&samples).len(), 2);
    }

    #[test]
    fn large_files_are_held_to_a_part_of_the_best_path() {
        let samples = Samples {
            nothing_sequential: [vec![(100.0, 500.0)], vec![(300.0, 500.0)]],
            adamant_sequential: [vec![(161.0, 400.0)], vec![(239.0, 399.0)]],
            socket: vec![200.0],
            ..Samples::default()
        };
        let found: Vec<_> = large(&samples).into_iter().map(|row| row.bound.unwrap()).collect();
        let found: Vec<_> = found.iter().map(|bound| (bound.value.round() as u64, bound.kept)).collect();
        assert_eq!(
            found,
            [(160, true), (400, true), (240, false), (400, false)],
            "writes and reads of 1 and 4 programs"
        );
    }
}
