//! Rates and processor time by number of metadata targets: files in unique, shared and striped directories, and directories.

use super::bed::Bed;
use super::{CLIENTS, FEW, Size, at_least, at_most};
use crate::gather::{Gathered, Measure};
use crate::ops::Op;
use crate::places::Sample;
use crate::results::{Chart, Results, Row, Series, Shape};

const UNIQUE: &str = "Adamant, unique";
const SHARED: &str = "Adamant, shared";
const STRIPED: &str = "Adamant, striped";
const KINDS: [&str; 3] = [UNIQUE, SHARED, STRIPED];
/// The phases in order: name, operation, and the stride to the client whose names it uses.
const FILES: [(&str, Op, usize); 3] =
    [("create", Op::Create { size: 0 }, 0), ("stat", Op::Stat, 1), ("remove", Op::Remove, 1)];
const DIRECTORIES: [(&str, Op, usize); 2] =
    [("mkdir", Op::MakeDirectory { mdt: None }, 0), ("rmdir", Op::RemoveDirectory, 1)];
/// The creates of fewer clients, in a striped directory and in directories of their own.
const OF_FEW: &str = "create, 4 clients";

/// Processor time of a create with the most metadata targets relative to one.
const CPU_BOUND: f64 = 1.1;
/// The rate of creates with the most metadata targets relative to two.
const RATE_BOUND: f64 = 0.9;
/// The rate of creates in a striped directory relative to directories of their own.
const STRIPED_BOUND: f64 = 0.8;

/// Measures one file system.
pub(super) fn measure(bed: &mut Bed<'_>, size: &Size, site: usize, gathered: &mut Gathered) -> anyhow::Result<()> {
    for kind in KINDS {
        bed.step(&format!("{} MDTs, {}", bed.mdts(site), kind.trim_start_matches("Adamant, ")))?;
        let at = bed.mdts(site).to_string();
        let homes = homes(bed, site, kind, CLIENTS)?;
        let directories = DIRECTORIES.iter().filter(|_| kind == UNIQUE);
        for (what, op, stride) in FILES.iter().chain(directories) {
            let tasks = bed.tasks(site, &homes, op, size.files, *stride);
            gathered.add(what, &at, kind, bed.phase(site, &tasks)?.0);
        }
    }
    Ok(())
}

/// Measures four clients in one striped directory, and in directories of their own.
pub(super) fn striped(bed: &mut Bed<'_>, size: &Size, gathered: &mut Gathered) -> anyhow::Result<()> {
    let Some(site) = bed.wide() else { return Ok(()) };
    let at = bed.mdts(site).to_string();
    for kind in [UNIQUE, STRIPED] {
        bed.step(&format!("{at} MDTs, {FEW} clients, {}", kind.trim_start_matches("Adamant, ")))?;
        let homes = homes(bed, site, kind, FEW)?;
        let tasks = bed.tasks(site, &homes, &Op::Create { size: 0 }, size.files, 0);
        gathered.add(OF_FEW, &at, kind, bed.phase(site, &tasks)?.0);
        let tasks = bed.tasks(site, &homes, &Op::Remove, size.files, 0);
        bed.phase(site, &tasks)?;
    }
    Ok(())
}

/// The directory of each client.
fn homes(bed: &mut Bed<'_>, site: usize, kind: &str, clients: usize) -> anyhow::Result<Vec<String>> {
    let mdts = bed.mdts(site);
    let places: Vec<Vec<u32>> = match kind {
        UNIQUE => (0..clients as u32).map(|client| vec![client % mdts]).collect(),
        SHARED => vec![vec![0]],
        _ => vec![(0..mdts).collect()],
    };
    let made = bed.directories(site, &places)?;
    Ok(made.into_iter().cycle().take(clients).collect())
}

fn server_cpu(sample: &Sample) -> Option<f64> {
    sample.each.map(|each| each.server_cpu_us)
}

pub(super) fn show(size: &Size, gathered: &Gathered, results: &mut Results) {
    let axis: Vec<String> = size.mdts.iter().map(ToString::to_string).collect();
    for (what, ..) in FILES.iter().chain(&DIRECTORIES) {
        let unit = if matches!(*what, "mkdir" | "rmdir") { "directories/s" } else { "files/s" };
        for kind in KINDS {
            results.rows.extend(axis.iter().filter_map(|at| row(gathered, what, at, kind, unit)));
        }
        let title = format!("{}{} by number of metadata targets", what[..1].to_uppercase(), &what[1..]);
        results.charts.extend(gathered.lines(what, &axis, &format!("mdts-{what}"), &title, "metadata targets", unit));
    }
    results.charts.extend(cpu_chart(gathered, &axis));
    derived(size, gathered, results);
}

/// A row, beside the same with one metadata target.
fn row(gathered: &Gathered, what: &str, at: &str, kind: &str, unit: &str) -> Option<Row> {
    let targets = if at == "1" { "MDT" } else { "MDTs" };
    let label = format!("{what}, {}, {at} {targets}", kind.trim_start_matches("Adamant, "));
    let row = gathered.row(what, at, kind, &[], Measure::Rate, label, unit)?;
    let one = if at == "1" { None } else { gathered.figure(what, "1", kind, Measure::Rate) };
    Some(row.beside("1 MDT", one))
}

fn cpu_chart(gathered: &Gathered, axis: &[String]) -> Option<Chart> {
    let points = |kind| axis.iter().map(|at| gathered.figure("create", at, kind, Measure::ServerCpu)).collect();
    let series = KINDS.map(|kind| Series { name: kind.to_owned(), points: points(kind) });
    let found = series.iter().any(|series| series.points.iter().any(Option::is_some));
    found.then(|| Chart {
        name: "mdts-create-cpu".to_owned(),
        title: "Processor time of all metadata targets for a create".to_owned(),
        across: "metadata targets".to_owned(),
        up: "us for each create".to_owned(),
        shape: Shape::Lines,
        places: axis.to_vec(),
        series: series.to_vec(),
    })
}

/// The ratios with a goal.
fn derived(size: &Size, gathered: &Gathered, results: &mut Results) {
    let rate = |sample: &Sample| Some(sample.rate);
    let Some(most) = size.mdts.iter().copied().max().filter(|most| *most > 1) else { return };
    let wide = &*most.to_string();
    results.rows.extend(gathered.ratio(("create", wide, UNIQUE), ("create", "1", UNIQUE), server_cpu).map(|figure| {
        at_most(format!("create, unique: processor time of the MDTs, {most} over 1"), figure, CPU_BOUND)
    }));
    if most > 2 {
        let figure = gathered.ratio(("create", wide, UNIQUE), ("create", "2", UNIQUE), rate);
        let label = format!("create, unique: rate, {most} MDTs over 2");
        results.rows.extend(figure.map(|figure| at_least(label, figure, RATE_BOUND)));
    }
    for at in size.mdts.iter().map(ToString::to_string) {
        let figure = gathered.ratio((OF_FEW, &at, STRIPED), (OF_FEW, &at, UNIQUE), rate);
        let label = format!("{OF_FEW}, {at} MDTs: rate, striped over unique");
        results.rows.extend(figure.map(|figure| at_least(label, figure, STRIPED_BOUND)));
    }
}
