//! One program on a mount over loopback TCP, compared with the limits of the kernel, the network and the engine, and with
//! local file systems.

use std::path::Path;

use crate::bare::{self, Bare};
use crate::cluster::Cluster;
use crate::echo::{Echo, EchoServer};
use crate::figures::Figure;
use crate::gather::{Gathered, Measure};
use crate::load::{self, Job, Pool};
use crate::nothing::Data;
use crate::places::{self, ADAMANT, Local, NOTHING, NOTHING_DEVICE, SYNC, Spread, TMPFS, UP, XFS, phase};
use crate::results::{Bound, Chart, Results, Row, Series, Shape};
use crate::run::Run;
use crate::suites::chores;

/// The size of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rounds; the median over them counts.
    pub rounds: usize,
    /// Files of each phase and round.
    pub files: u64,
    /// MiB that are written and read sequentially, over all files together.
    pub mib: u64,
    /// Files to list, to unpack, and to make in one directory.
    pub tree: u64,
    /// Groups of 10 000 creates that the bare engine commits in each round.
    pub groups: u64,
}

/// The numbers of outstanding echoes.
const OUTSTANDING: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const GROUP: u64 = 10_000;
/// The numbers of programs that write and read large files together.
const PROGRAMS: [u64; 2] = [1, 4];
/// The fraction of the best yardstick that large files should reach.
const LARGE_PART: f64 = 0.8;
/// A socket to a local file.
const SOCKET: &str = "socket to a local file";
/// A phase: its name, the prefix of the file names, and the operation.
type Phase = (&'static str, &'static str, Job);
const CREATE: Phase = ("create", "f", Job::Create { size: 0 });
const STAT: Phase = ("stat, warm", "f", Job::Stat);
const UNLINK: Phase = ("unlink", "f", Job::Remove);
const PHASES: [Phase; 6] = [
    CREATE,
    STAT,
    UNLINK,
    ("4 KiB file: create, write, close", "s", Job::Create { size: 4096 }),
    ("4 KiB file: open, read, close", "s", Job::Read),
    ("unlink of 4 KiB files", "s", Job::Remove),
];
/// The phases that are measured with several programs too.
const NAMES: [Phase; 2] = [CREATE, UNLINK];
/// The number of programs at once, where there is more than one.
const TOGETHER: usize = 4;
const TOGETHER_MARK: &str = "4 programs";
const YARDSTICKS: [&str; 4] = [NOTHING, NOTHING_DEVICE, TMPFS, XFS];

#[derive(Default)]
struct Samples {
    gathered: Gathered,
    echo: Vec<Vec<f64>>,
    bare: Vec<Bare>,
    /// Write and read rates, by [`PROGRAMS`].
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
    let sync = cluster.mount_with(None, &["sync_metadata"])?;
    let (nothing_data, local) = (run.folder("nothing-data")?, run.folder("local")?);
    let mut locals: Vec<Local> = Vec::new();
    for (name, local) in [(TMPFS, places::tmpfs()), (XFS, places::xfs(run))] {
        match local {
            Ok(local) => locals.push(local),
            Err(why) => results.not_available.push((name.to_owned(), format!("{why:#}"))),
        }
    }
    let server = EchoServer::start()?;
    let mut echo = Echo::connect(server.port)?;
    let mut pool = Pool::start(TOGETHER)?;
    let mut over_uring = true;
    for round in 0..size.rounds {
        run.step(round, size.rounds, "echo")?;
        let echoes = u32::try_from(size.files)?;
        let times = OUTSTANDING.iter().map(|&outstanding| echo.measure(echoes.max(outstanding * 8), outstanding));
        samples.echo.push(times.collect::<Result<_, _>>()?);
        run.step(round, size.rounds, "bare engine")?;
        samples.bare.push(bare::measure(&run.folder("engine")?, size.groups, GROUP)?);
        let mut small = |root: &Path, name: &str, phases: &[Phase], cluster: Option<&mut Cluster>| {
            run.step(round, size.rounds, name)?;
            names(run, &mut pool, size.files, root, name, phases, cluster, samples)
        };
        {
            let nothing = places::do_nothing(run, "nothing", Data::Memory)?;
            small(&nothing.root, NOTHING, &PHASES, None)?;
        }
        if over_uring {
            match places::do_nothing_over_device(run, "nothing")? {
                Some(nothing) => small(&nothing.root, nothing.name, &PHASES, None)?,
                None => {
                    over_uring = false;
                    let why = "the kernel does not have it or does not allow it (fuse.enable_uring)";
                    results.not_available.push(("do-nothing FUSE over io_uring".to_owned(), why.to_owned()));
                }
            }
        }
        for local in &locals {
            small(&local.root, local.name, &PHASES, None)?;
        }
        small(&mount, ADAMANT, &PHASES, Some(&mut cluster))?;
        small(&sync, SYNC, &PHASES, Some(&mut cluster))?;
        {
            let up = places::up(run)?;
            small(&up.root, UP, &NAMES, None)?;
        }
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

/// Measures small files with one program, and with several at once.
fn names(
    run: &Run,
    pool: &mut Pool,
    files: u64,
    root: &Path,
    name: &str,
    phases: &[Phase],
    mut cluster: Option<&mut Cluster>,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    for (workers, at, phases) in [(1, "", phases), (TOGETHER, TOGETHER_MARK, &NAMES)] {
        let spread = Spread {
            roots: vec![root.to_owned()],
            folder: "load".to_owned(),
            workers,
            count: files / workers as u64,
            shared: false,
            stride: 0,
        };
        spread.prepare()?;
        for (what, prefix, job) in phases {
            let sample = phase(run, pool, &spread.tasks(*job, prefix), cluster.as_deref_mut())?;
            samples.gathered.add(what, at, name, sample);
        }
        spread.clean()?;
    }
    Ok(())
}

fn rows(samples: &Samples) -> Vec<Row> {
    let gathered = &samples.gathered;
    let echoes = |index: usize| Figure::of(&samples.echo.iter().map(|times| times[index]).collect::<Vec<_>>());
    let echo = echoes(0);
    let mut rows = Vec::new();
    for (what, _, _) in PHASES {
        let row = gathered.row(what, "", ADAMANT, &YARDSTICKS, Measure::Microseconds, what.to_owned(), "us");
        let Some(mut row) = row else { continue };
        if let Some(nothing) = gathered.figure(what, "", NOTHING, Measure::Microseconds) {
            let part = match what {
                "stat, warm" => 1.0 / 1.3,
                "create" | "unlink" => 0.8,
                _ => 0.5,
            };
            row = part_of_nothing(row, nothing, part);
        }
        rows.push(row);
    }
    for (what, _, _) in NAMES {
        let figure = |at: &str, place: &str| gathered.figure(what, at, place, Measure::Microseconds);
        let beside = |label: String, at: &str, place: &str| {
            gathered.row(what, at, place, &[NOTHING], Measure::Microseconds, label, "us")
        };
        if let (Some(mut row), Some(nothing), Some(echo)) =
            (beside(format!("{what}, sync_metadata"), "", SYNC), figure("", NOTHING), echo)
        {
            let value = nothing.median + 1.3 * echo.median + 10.0;
            let kept = row.figure.median <= value;
            row.bound = Some(Bound { is: "do-nothing + 1.3 echoes + 10 us".to_owned(), value, kept });
            rows.push(row);
        }
        let part = if what == "create" { 0.75 } else { 0.6 };
        for (label, at, place, part) in [
            (format!("{what}, {UP}"), "", UP, part),
            (format!("{what}, {TOGETHER_MARK}"), TOGETHER_MARK, ADAMANT, 0.6),
            (format!("{what}, {TOGETHER_MARK}, sync_metadata"), TOGETHER_MARK, SYNC, 0.6),
        ] {
            if let (Some(row), Some(nothing)) = (beside(label, at, place), figure(at, NOTHING)) {
                rows.push(part_of_nothing(row, nothing, part));
            }
        }
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

/// A row that should reach a fraction of the do-nothing file system's rate.
fn part_of_nothing(row: Row, nothing: Figure, part: f64) -> Row {
    let value = nothing.median / part;
    let is = format!("{part:.2} of the do-nothing file system's rate");
    Row { bound: Some(Bound { is, value, kept: row.figure.median <= value }), ..row }
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
    let series: Vec<Series> = [ADAMANT, SYNC, NOTHING, NOTHING_DEVICE, TMPFS, XFS]
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
            places: ["create", "stat", "unlink", "4 KiB: create", "4 KiB: read", "4 KiB: unlink"]
                .map(str::to_owned)
                .to_vec(),
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
            samples.gathered.add(what, "", SYNC, sample(67.0));
            samples.gathered.add(what, "", UP, sample(41.0));
            samples.gathered.add(what, TOGETHER_MARK, NOTHING, sample(12.0));
            samples.gathered.add(what, TOGETHER_MARK, SYNC, sample(19.0));
        }
        let rows = rows(&samples);
        let bound = |what: &str| rows.iter().find(|row| row.what == what).unwrap().bound.clone().unwrap();
        let rounded = |what: &str| (bound(what).value.round() as u64, bound(what).kept);
        assert_eq!(rounded("create"), (38, false));
        assert_eq!(rounded("stat, warm"), (39, false));
        assert_eq!(rounded("4 KiB file: open, read, close"), (60, true));
        assert_eq!(rounded("create, sync_metadata"), (66, false), "30 + 1.3 * 20 + 10");
        assert_eq!(rounded("create, adamant up"), (40, false));
        assert_eq!(rounded("unlink, adamant up"), (50, true));
        assert_eq!(rounded("unlink, 4 programs, sync_metadata"), (20, true));
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
