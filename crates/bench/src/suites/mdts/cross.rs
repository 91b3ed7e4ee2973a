//! Changes over two metadata targets beside the same within one: under load, and one at a time.

use super::bed::{self, Bed};
use super::{FEW, Size};
use crate::figures::Figure;
use crate::gather::{Gathered, Measure};
use crate::load::Task;
use crate::ops::Op;
use crate::results::{Bound, Chart, Results, Row, Series, Shape};

pub(super) const LOCAL: &str = "within one MDT";
pub(super) const CROSS: &str = "over two MDTs";
pub(super) const LOADED: &str = "64 in flight";
pub(super) const MEDIAN: &str = "one at a time, median";
const HIGH: &str = "one at a time, p99";
/// The commits of the targets meanwhile.
const COMMIT: &str = "commit";
const MEAN: &str = "mean";
const LONGEST: &str = "longest";
const OPERATIONS: [&str; 5] = ["mkdir", "rmdir", "link", "unlink", "rename"];

/// Processor time over two metadata targets relative to one.
const CPU_BOUND: f64 = 4.0;
/// The rate over two metadata targets relative to one.
const RATE_BOUND: f64 = 0.25;
/// What a change over two metadata targets may take beside the local one and an echo: its commit, on a RAM disk.
const COMMIT_US: f64 = 100.0;

/// The directories of the clients: client n has one on target n modulo 2, and a second one there or on the other target.
struct Homes {
    first: Vec<String>,
    second: Vec<String>,
    place: &'static str,
}

/// Measures the file system with two metadata targets.
pub(super) fn measure(bed: &mut Bed<'_>, size: &Size, gathered: &mut Gathered) -> anyhow::Result<()> {
    let Some(site) = bed.site(2) else { return Ok(()) };
    for (clients, count) in [(FEW, size.cross), (1, size.alone)] {
        for place in [LOCAL, CROSS] {
            bed.step(&format!("changes {place}, {clients} clients"))?;
            let away = u32::from(place == CROSS);
            let on = |away: u32| (0..clients as u32).map(|client| vec![(client + away) % 2]).collect::<Vec<_>>();
            let (first, second) = (bed.directories(site, &on(0))?, bed.directories(site, &on(away))?);
            bed.cluster(site).set_mdt_param("mdt.*.commit_stats", "0")?;
            changes(bed, site, &Homes { first, second, place }, count, gathered)?;
            if let Some((mean, longest)) = bed.cluster(site).commit_us().filter(|_| clients == 1) {
                gathered.add(COMMIT, MEAN, place, bed::of_us(mean));
                gathered.add(COMMIT, LONGEST, place, bed::of_us(longest));
            }
        }
    }
    Ok(())
}

/// Makes the changes in an order in which each finds what it needs, and which leaves nothing.
fn changes(bed: &mut Bed<'_>, site: usize, homes: &Homes, count: u64, gathered: &mut Gathered) -> anyhow::Result<()> {
    let create = Op::Create { size: 0 };
    let mut one = |what: Option<&str>, folders: &[String], op: &dyn Fn(usize) -> Op| -> anyhow::Result<()> {
        let (sample, took) = bed.phase(site, &tasks(bed, site, folders, op, count))?;
        let Some(what) = what else { return Ok(()) };
        if folders.len() > 1 {
            gathered.add(what, LOADED, homes.place, sample);
        } else {
            gathered.add(what, MEDIAN, homes.place, bed::of_us(took.each_us.0));
            gathered.add(what, HIGH, homes.place, bed::of_us(took.each_us.1));
        }
        Ok(())
    };
    let second = |client: usize| homes.second[client].clone();
    let other = |client: usize| (homes.place == CROSS).then_some((client as u32 + 1) % 2);
    one(Some("mkdir"), &homes.first, &|client| Op::MakeDirectory { mdt: other(client) })?;
    one(Some("rmdir"), &homes.first, &|_| Op::RemoveDirectory)?;
    one(None, &homes.first, &|_| create.clone())?;
    one(Some("link"), &homes.first, &|client| Op::Link { to: second(client) })?;
    one(None, &homes.first, &|_| Op::Remove)?;
    // The last name of each file: over two targets, the name is on one and the file on the other.
    one(Some("unlink"), &homes.second, &|_| Op::Remove)?;
    one(None, &homes.first, &|_| create.clone())?;
    one(Some("rename"), &homes.first, &|client| Op::Rename { to: second(client) })?;
    one(None, &homes.second, &|_| Op::Remove)
}

fn tasks(bed: &Bed<'_>, site: usize, folders: &[String], op: &dyn Fn(usize) -> Op, count: u64) -> Vec<Task> {
    let task = |(client, folder): (usize, &String)| {
        let mut order = bed.order(site, FEW, op(client));
        if folders.len() == 1 {
            order.share.in_flight = 1;
        }
        Task::of_order(order, folder, format!("c.{client}."), (count / folders.len() as u64).max(1))
    };
    folders.iter().enumerate().map(task).collect()
}

pub(super) fn show(gathered: &Gathered, echo: Option<Figure>, results: &mut Results) {
    for what in OPERATIONS {
        let figures = |at, measure| {
            let of = |place| gathered.figure(what, at, place, measure);
            Some((of(CROSS)?, of(LOCAL)?))
        };
        if let Some((cross, local)) = figures(LOADED, Measure::ServerCpu) {
            let value = CPU_BOUND * local.median;
            let bound = Bound { is: format!("at most {CPU_BOUND} local ones"), value, kept: cross.median <= value };
            results.rows.push(row(
                what,
                &format!("{LOADED}: processor time of the MDTs"),
                "us",
                cross,
                local,
                Some(bound),
            ));
        }
        if let Some((cross, local)) = figures(LOADED, Measure::Rate) {
            let value = RATE_BOUND * local.median;
            let bound = Bound { is: format!("at least {RATE_BOUND} of local"), value, kept: cross.median >= value };
            results.rows.push(row(what, LOADED, "changes/s", cross, local, Some(bound)));
        }
        if let Some((cross, local)) = figures(MEDIAN, Measure::Microseconds) {
            let bound = echo.map(|echo| {
                let value = local.median + echo.median + COMMIT_US;
                Bound { is: format!("local + echo + {COMMIT_US} us"), value, kept: cross.median <= value }
            });
            results.rows.push(row(what, MEDIAN, "us", cross, local, bound));
        }
        if let Some((cross, local)) = figures(HIGH, Measure::Microseconds) {
            results.rows.push(row(what, HIGH, "us", cross, local, None));
        }
    }
    for at in [MEAN, LONGEST] {
        let label = format!("commit of an MDT meanwhile, {at}");
        results.rows.extend(gathered.row(COMMIT, at, CROSS, &[], Measure::Microseconds, label, "us"));
    }
    results.charts.extend(chart(gathered, MEDIAN, Measure::Microseconds, "latency", "us"));
    results.charts.extend(chart(gathered, LOADED, Measure::Rate, "rate", "changes/s"));
}

fn row(what: &str, how: &str, unit: &str, cross: Figure, local: Figure, bound: Option<Bound>) -> Row {
    Row { bound, ..Row::new(format!("{what} {CROSS}, {how}"), unit, cross).beside(LOCAL, Some(local)) }
}

fn chart(gathered: &Gathered, at: &str, measure: Measure, word: &str, up: &str) -> Option<Chart> {
    let series = [LOCAL, CROSS].map(|place| Series {
        name: place.to_owned(),
        points: OPERATIONS.iter().map(|what| gathered.figure(what, at, place, measure)).collect(),
    });
    series.iter().any(|series| series.points.iter().any(Option::is_some)).then(|| Chart {
        name: format!("mdts-cross-{word}"),
        title: format!("Changes within one metadata target and over two: {at}"),
        across: "change".to_owned(),
        up: up.to_owned(),
        shape: Shape::Bars,
        places: OPERATIONS.map(str::to_owned).to_vec(),
        series: series.to_vec(),
    })
}
