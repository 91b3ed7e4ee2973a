//! Several metadata targets: how rates and processor time follow their number, and what an operation over two of them costs.
//!
//! The load comes from native clients, with many operations in flight. Each part of the suite is a module; all parts run in
//! each round, on the same file systems.

mod bed;
mod cross;
mod local;
mod scale;
mod small;

use std::time::Duration;

use anyhow::Context;
use bed::Bed;

use crate::cluster;
use crate::echo::{Echo, EchoServer};
use crate::figures::Figure;
use crate::gather::Gathered;
use crate::results::{Bound, Results, Row};
use crate::run::Run;

/// The size of the experiment.
#[derive(Clone, Debug)]
pub struct Size {
    /// Rounds; the median over them counts.
    pub rounds: usize,
    /// The numbers of metadata targets, rising.
    pub mdts: Vec<u32>,
    /// Files of each phase, over all clients.
    pub files: u64,
    /// Changes over two metadata targets of each phase, over all clients.
    pub cross: u64,
    /// Operations of each phase that are made one at a time.
    pub alone: u64,
    /// Files that each survey makes on each target.
    pub survey: u64,
    /// Turns of the comparison of local operations in each round.
    pub turns: usize,
    /// Data of each phase with small files, in MiB.
    pub mib: u64,
}

/// Clients of the phases by number of metadata targets: no fewer than targets, so that each has one.
const CLIENTS: usize = 8;
/// Clients of the other phases.
const FEW: usize = 4;
/// Operations in flight, over all clients.
const IN_FLIGHT: usize = 64;
/// The time between two commits, in milliseconds: a phase is measured until its changes are committed.
const COMMIT_MS: u64 = 250;
/// How long a phase's background work may continue before it is counted.
const AFTER: Duration = Duration::from_millis(COMMIT_MS + 50);
const ECHOES: u32 = 10_000;
/// The threads of the survey on each target.
const THREADS: u32 = 4;
const SURVEY: &str = "mds-survey create";
const TWO: &str = "2 MDTs";
const CONFINED: &str = "1 MDT on one core";
/// The rate of the survey on two metadata targets relative to one that is confined to one core.
const SURVEY_BOUND: f64 = 1.8;

/// The samples so far.
#[derive(Debug, Default)]
struct Found {
    gathered: Gathered,
    /// The time of an echo, in microseconds.
    echo: Vec<f64>,
}

/// Runs the measurement.
pub fn run(run: &Run, size: &Size, command: &str) -> Results {
    let about = format!(
        "Metadata by number of metadata targets (MDTs), each a process of its own: {CLIENTS} native clients (otherwise \
         {FEW}) without a mount, {IN_FLIGHT} operations in flight over all of them, sync_metadata, each client in a \
         directory of its own (unique; the directories are on the MDTs in turn), all in one directory (shared), or all in \
         one that is striped over all MDTs (striped). What a client made, its neighbour looks at and removes."
    );
    super::finish("mdts", &about, command, |results| {
        let mut found = Found::default();
        let ended = measure(run, size, &mut found, results);
        show(size, &found, results);
        ended
    })
}

fn measure(run: &Run, size: &Size, found: &mut Found, results: &mut Results) -> anyhow::Result<()> {
    let mut bed = Bed::start(run, size, results)?;
    let server = EchoServer::start()?;
    let mut echo = Echo::connect(server.port)?;
    for round in 0..size.rounds {
        found.echo.push(echo.measure(ECHOES, 1)?);
        for site in 0..size.mdts.len() {
            scale::measure(&mut bed, size, site, &mut found.gathered)?;
        }
        scale::striped(&mut bed, size, &mut found.gathered)?;
        cross::measure(&mut bed, size, &mut found.gathered)?;
        local::measure(&mut bed, size, &mut found.gathered)?;
        survey(&mut bed, size, &mut found.gathered)?;
        small::measure(&mut bed, size, &mut found.gathered)?;
        bed.end_round(round);
    }
    Ok(())
}

/// The load inside the servers: two metadata targets, and one that is confined to one core.
fn survey(bed: &mut Bed<'_>, size: &Size, gathered: &mut Gathered) -> anyhow::Result<()> {
    let (Some(one), Some(two)) = (bed.site(1), bed.site(2)) else { return Ok(()) };
    bed.step("mds-survey")?;
    let all = rustix::thread::sched_getaffinity(None)?;
    let mut first = rustix::thread::CpuSet::new();
    let least = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    first.set(least.context("this process may run nowhere")?);
    let pid = *bed.cluster(one).mdt_pids().first().context("no metadata target")?;
    cluster::confine(pid, &first)?;
    let confined = bed.cluster(one).survey_all(1, THREADS, size.survey);
    cluster::confine(pid, &all)?;
    gathered.add(SURVEY, "", CONFINED, bed::of_rate(confined?));
    gathered.add(SURVEY, "", TWO, bed::of_rate(bed.cluster(two).survey_all(2, THREADS, size.survey)?));
    Ok(())
}

fn show(size: &Size, found: &Found, results: &mut Results) {
    let gathered = &found.gathered;
    let echo = Figure::of(&found.echo);
    scale::show(size, gathered, results);
    cross::show(gathered, echo, results);
    local::show(gathered, results);
    let rate = |sample: &crate::places::Sample| Some(sample.rate);
    for place in [TWO, CONFINED] {
        let row =
            gathered.row(SURVEY, "", place, &[], crate::gather::Measure::Rate, format!("{SURVEY}, {place}"), "files/s");
        results.rows.extend(row);
    }
    let times = gathered.ratio((SURVEY, "", TWO), (SURVEY, "", CONFINED), rate);
    results.rows.extend(times.map(|figure| at_least(format!("{SURVEY}: {TWO} over {CONFINED}"), figure, SURVEY_BOUND)));
    small::show(size, gathered, results);
    results.rows.extend(echo.map(|figure| Row::new("echo", "us", figure)));
}

/// A ratio that should not be less than a value.
fn at_least(what: String, figure: Figure, value: f64) -> Row {
    let bound = Bound { is: format!("at least {value}"), value, kept: figure.median >= value };
    Row { bound: Some(bound), ..Row::new(what, "times", figure) }
}

/// A ratio that should not be more than a value.
fn at_most(what: String, figure: Figure, value: f64) -> Row {
    let bound = Bound { is: format!("at most {value}"), value, kept: figure.median <= value };
    Row { bound: Some(bound), ..Row::new(what, "times", figure) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::{Each, Sample};

    fn sample(rate: f64, server_cpu_us: f64) -> Sample {
        let each = Each { requests: 1.0, client_cpu_us: 5.0, server_cpu_us };
        Sample { rate, us: 1e6 / rate, each: Some(each) }
    }

    fn size() -> Size {
        Size { rounds: 1, mdts: vec![1, 2, 8], files: 8, cross: 8, alone: 8, survey: 8, turns: 1, mib: 1 }
    }

    fn kept(found: &Found) -> Vec<(String, bool)> {
        let mut results = Results::default();
        show(&size(), found, &mut results);
        results.rows.into_iter().filter_map(|row| Some((row.what, row.bound?.kept))).collect()
    }

    #[test]
    fn goals_are_for_ratios_of_the_same_round() {
        let mut found = Found::default();
        for (at, rate, cpu) in [("1", 100.0, 10.0), ("2", 100.0, 10.5), ("8", 89.0, 11.0)] {
            found.gathered.add("create", at, "Adamant, unique", sample(rate, cpu));
        }
        for (place, rate) in [(TWO, 190.0), (CONFINED, 100.0)] {
            found.gathered.add(SURVEY, "", place, bed::of_rate(rate));
        }
        assert_eq!(
            kept(&found),
            [
                ("create, unique: processor time of the MDTs, 8 over 1".to_owned(), true),
                ("create, unique: rate, 8 MDTs over 2".to_owned(), false),
                ("mds-survey create: 2 MDTs over 1 MDT on one core".to_owned(), true),
            ]
        );
    }

    #[test]
    fn a_change_over_two_targets_is_beside_the_same_within_one() {
        let mut found = Found { echo: vec![20.0], ..Found::default() };
        found.gathered.add("rename", cross::LOADED, cross::LOCAL, sample(100.0, 10.0));
        found.gathered.add("rename", cross::LOADED, cross::CROSS, sample(24.0, 39.0));
        for (place, us) in [(cross::LOCAL, 50.0), (cross::CROSS, 171.0)] {
            found.gathered.add("rename", cross::MEDIAN, place, bed::of_us(us));
        }
        let kept: Vec<bool> = kept(&found).into_iter().map(|(_, kept)| kept).collect();
        assert_eq!(kept, [true, false, false], "processor time, rate, latency: 171 us is more than 50 + 20 + 100");
    }
}
