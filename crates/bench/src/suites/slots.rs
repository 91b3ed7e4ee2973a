//! One client with an increasing number of changes in flight, with the servers near and farther away, beside version 0.1.0,
//! which has one change in flight.

use std::path::{Path, PathBuf};

use crate::cluster::Cluster;
use crate::echo::{Echo, EchoServer};
use crate::far::Far;
use crate::figures::{Figure, ratio};
use crate::gather::{Gathered, Measure};
use crate::load::{Job, Pool};
use crate::places::{Spread, phase};
use crate::results::{Bound, Results, Row};
use crate::run::Run;

/// The size of the experiment.
#[derive(Clone, Debug)]
pub struct Size {
    /// Rounds; the median over them counts.
    pub rounds: usize,
    /// Files of each phase and round, over all processes.
    pub files: u64,
    /// Processes, each in a directory of its own.
    pub processes: usize,
    /// The numbers of changes in flight, rising.
    pub slots: Vec<u16>,
    /// The program of version 0.1.0.
    pub older: Option<PathBuf>,
}

const NEAR: &str = "Adamant, loopback";
const FAR: &str = "Adamant, +200 us";
const OLDER_NEAR: &str = "0.1.0, loopback";
const OLDER_FAR: &str = "0.1.0, +200 us";
/// The delay that is added to a round trip, in microseconds.
const ADDED_US: f64 = 200.0;
/// The number of processes whose rate without the delay is the yardstick for the most slots with it.
const FEW: usize = 4;
/// The operations: name, the goal for 8 slots relative to one with the delay, and for the most slots relative to 0.1.0.
const PHASES: [(&str, Job, f64, f64); 2] =
    [("create", Job::Create { size: 0 }, 5.0, 3.0), ("unlink", Job::Remove, 4.0, 2.0)];
/// The fraction of the rate of [`FEW`] processes that the most slots should keep with the delay.
const KEPT: f64 = 0.7;
/// Rates that differ by less than this count as equal: two runs of the same thing differ by as much.
const NOISE: f64 = 0.05;

/// Runs the measurement.
pub fn run(run: &Run, size: &Size, command: &str) -> Results {
    let about = format!(
        "Empty files made and removed by {} processes of one client, each in a directory of its own, by the number of \
         changes that the client may have in flight; over loopback, and with {ADDED_US} us added to each round trip. \
         Version 0.1.0, client and servers, has one in flight.",
        size.processes
    );
    super::finish("slots", &about, command, |results| {
        let mut found = Found::default();
        let ended = measure(run, size, &mut found, results);
        show(size, &found, results);
        ended
    })
}

#[derive(Debug, Default)]
struct Found {
    gathered: Gathered,
    /// The time of an echo in microseconds, without and with the delay.
    echoes: (Vec<f64>, Vec<f64>),
}

/// A mount under test.
struct Place {
    name: &'static str,
    root: PathBuf,
    /// The index of its cluster.
    cluster: usize,
}

fn measure(run: &Run, size: &Size, found: &mut Found, results: &mut Results) -> anyhow::Result<()> {
    run.step(0, 1, "starting servers and mounts")?;
    let far =
        Far::new().map_err(|why| results.not_available.push((format!("+{ADDED_US} us"), format!("{why:#}")))).ok();
    let most = size.slots.iter().copied().max().unwrap_or(1);
    let (mut clusters, mut places) = (Vec::new(), Vec::new());
    let this = std::env::current_exe()?;
    clusters.push(begin(run, "cluster", &this, far.as_ref(), [NEAR, FAR], Some(most), &mut places, 0)?);
    match &size.older {
        Some(program) => {
            clusters.push(begin(run, "older", program, far.as_ref(), [OLDER_NEAR, OLDER_FAR], None, &mut places, 1)?)
        }
        None => {
            let why = "no program: build it with `cargo xtask compat` and name it with --older".to_owned();
            results.not_available.push(("version 0.1.0".to_owned(), why));
        }
    }
    let (server, far_server) = (EchoServer::start()?, EchoServer::start()?);
    let mut echo = Echo::connect(server.port)?;
    let mut far_echo = far.as_ref().map(|far| far.echo(&far_server)).transpose()?;
    let mut pool = Pool::start(size.processes.max(FEW))?;
    let cases = cases(size, &places);
    for round in 0..size.rounds {
        if let (Some(far), Some(far_echo)) = (&far, &mut far_echo) {
            let (near, longer) = far.set_round_trip(ADDED_US, &mut echo, far_echo)?;
            found.echoes.0.push(near);
            found.echoes.1.push(longer);
        }
        for (step, case) in cases.iter().enumerate() {
            let place = &places[case.place];
            let what = format!("{}, {} slots, {} processes", place.name, case.slots, case.processes);
            run.step(round * cases.len() + step, size.rounds * cases.len(), &what)?;
            let cluster = &mut clusters[place.cluster];
            if place.cluster == 0 {
                cluster.set_mount_param(&place.root, "mdc.*.max_mod_rpcs_in_flight", &case.slots.to_string())?;
            }
            one(run, size, case, place, &mut pool, cluster, found)?;
        }
    }
    Ok(())
}

/// Starts servers, and a mount with and without the delay.
fn begin(
    run: &Run,
    folder: &str,
    program: &Path,
    far: Option<&Far>,
    names: [&'static str; 2],
    offer: Option<u16>,
    places: &mut Vec<Place>,
    number: usize,
) -> anyhow::Result<Cluster> {
    let mut cluster = Cluster::serve(program, &run.folder(folder)?, 1)?;
    if let Some(offer) = offer {
        // Clients learn of it when they connect.
        cluster.set_mdt_param("mdt.*.max_mod_rpcs_in_flight", &offer.to_string())?;
    }
    let mut sides = vec![(names[0], None)];
    if let Some(far) = far {
        cluster.addresses().iter().try_for_each(|address| far.relay(*address))?;
        sides.push((names[1], Some(far)));
    }
    for (name, far) in sides {
        // Version 0.1.0 has no write-back to turn off.
        let options: &[&str] = if offer.is_some() { &["sync_metadata"] } else { &[] };
        let root = cluster.mount_with(far, options)?;
        if offer.is_some() {
            cluster.set_mount_param(&root, "mdc.*.max_mod_rpcs_raise", "1")?;
        }
        places.push(Place { name, root, cluster: number });
    }
    Ok(cluster)
}

#[derive(Clone, Copy, Debug)]
struct Case {
    place: usize,
    slots: u16,
    processes: usize,
}

/// The measurements of each round in turn: places beside each other, slots rising.
fn cases(size: &Size, places: &[Place]) -> Vec<Case> {
    let most = size.slots.iter().copied().max().unwrap_or(1);
    let mut cases = Vec::new();
    for slots in &size.slots {
        for (place, at) in places.iter().enumerate().filter(|(_, at)| at.cluster == 0) {
            cases.push(Case { place, slots: *slots, processes: size.processes });
            if *slots == most && at.name == NEAR {
                cases.push(Case { place, slots: *slots, processes: FEW });
            }
        }
    }
    let older = places.iter().enumerate().filter(|(_, at)| at.cluster != 0);
    cases.extend(older.map(|(place, _)| Case { place, slots: 1, processes: size.processes }));
    cases
}

/// The position of a measurement along the axis.
fn at(slots: u16, processes: usize, size: &Size) -> String {
    if processes == size.processes { slots.to_string() } else { format!("{slots} slots, {processes} processes") }
}

fn one(
    run: &Run,
    size: &Size,
    case: &Case,
    place: &Place,
    pool: &mut Pool,
    cluster: &mut Cluster,
    found: &mut Found,
) -> anyhow::Result<()> {
    let spread = Spread {
        roots: vec![place.root.clone()],
        folder: "slots".to_owned(),
        workers: case.processes,
        count: (size.files / case.processes as u64).max(1),
        shared: false,
        stride: 0,
    };
    spread.prepare()?;
    for (what, job, _, _) in PHASES {
        let sample = phase(run, pool, &spread.tasks(job, "f"), Some(&mut *cluster))?;
        if place.cluster == 0 {
            found.gathered.add(what, &at(case.slots, case.processes, size), place.name, sample);
        } else {
            // The older version has the same line beside all numbers of slots.
            size.slots.iter().for_each(|slots| found.gathered.add(what, &slots.to_string(), place.name, sample));
        }
    }
    spread.clean()
}

fn show(size: &Size, found: &Found, results: &mut Results) {
    let rate = |what: &str, at: &str, place: &str| found.gathered.figure(what, at, place, Measure::Rate);
    let most = size.slots.iter().copied().max().unwrap_or(1);
    for (what, _, over_one, over_older) in PHASES {
        for (place, older) in [(NEAR, OLDER_NEAR), (FAR, OLDER_FAR)] {
            let one = rate(what, "1", place).map(|figure| figure.median);
            for slots in &size.slots {
                let side = place.trim_start_matches("Adamant, ");
                let label = format!("{what}, {slots} slot{}, {side}", if *slots == 1 { "" } else { "s" });
                let name = slots.to_string();
                let row = found.gathered.row(what, &name, place, &[older], Measure::Rate, label, "files/s");
                let few = rate(what, &at(most, FEW, size), NEAR).map(|figure| figure.median);
                results.rows.extend(row.map(|row| bounded(row, place, *slots, most, one, few, over_one)));
            }
            results.rows.extend(times(what, size, found, place, "1", "one slot"));
            results.rows.extend(times(what, size, found, older, "1", "0.1.0").map(|mut row| {
                if place == FAR {
                    let kept = row.figure.median >= over_older;
                    row.bound = Some(Bound { is: "the plan's figure".to_owned(), value: over_older, kept });
                }
                row
            }));
        }
        let label = format!("{what}, {most} slots, {FEW} processes, loopback");
        let name = at(most, FEW, size);
        results.rows.extend(found.gathered.row(what, &name, NEAR, &[], Measure::Rate, label, "files/s"));
        let axis: Vec<String> = size.slots.iter().map(ToString::to_string).collect();
        let title = format!("One client, {} processes: {what} by changes in flight", size.processes);
        let name = format!("slots-{what}");
        results.charts.extend(found.gathered.lines(what, &axis, &name, &title, "changes in flight", "files/s"));
    }
    for (what, echoes) in [("echo, loopback", &found.echoes.0), ("echo, +200 us", &found.echoes.1)] {
        results.rows.extend(Figure::of(echoes).map(|figure| Row::new(what, "us", figure)));
    }
}

/// The rate with the most slots relative to another rate on the same side.
fn times(what: &str, size: &Size, found: &Found, place: &str, at: &str, name: &str) -> Option<Row> {
    let most = size.slots.iter().copied().max()?;
    let (ours, side) = match place {
        NEAR | OLDER_NEAR => (NEAR, "loopback"),
        _ => (FAR, "+200 us"),
    };
    let rate = |at: &str, place: &str| found.gathered.figure(what, at, place, Measure::Rate);
    let figure = ratio(rate(&most.to_string(), ours)?.median, rate(at, place)?.median)?;
    Some(Row::new(format!("{what}, {most} slots over {name}, {side}"), "times", Figure::of(&[figure])?))
}

/// Adds the goal for a number of slots.
fn bounded(mut row: Row, place: &str, slots: u16, most: u16, one: Option<f64>, few: Option<f64>, over: f64) -> Row {
    let wanted = match (place, slots) {
        (NEAR, slots) if slots > 1 => one.map(|one| ("as fast as one slot".to_owned(), one * (1.0 - NOISE))),
        (FAR, 8) => one.map(|one| (format!("{over} times one slot"), one * over)),
        (FAR, slots) if slots == most && slots > 8 => {
            few.map(|few| (format!("{KEPT} of {FEW} processes over loopback"), few * KEPT))
        }
        _ => None,
    };
    row.bound = wanted.map(|(is, value)| Bound { is, value, kept: row.figure.median >= value });
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Sample;

    #[test]
    fn what_is_wanted_is_said_of_each_number_of_slots() {
        let size = Size { rounds: 1, files: 32, processes: 32, slots: vec![1, 8, 32], older: None };
        let mut found = Found::default();
        let rates = [
            ("create", NEAR, [9000.0, 8800.0, 8000.0]),
            ("create", FAR, [1000.0, 5100.0, 6200.0]),
            ("unlink", NEAR, [9000.0, 9000.0, 9000.0]),
            ("unlink", FAR, [1000.0, 3900.0, 6400.0]),
        ];
        for (what, place, figures) in rates {
            for (slots, rate) in size.slots.iter().zip(figures) {
                found.gathered.add(what, &slots.to_string(), place, Sample { rate, us: 1e6 / rate, each: None });
            }
        }
        for (what, rate) in [("create", 9000.0), ("unlink", 9000.0)] {
            found.gathered.add(what, &at(32, FEW, &size), NEAR, Sample { rate, us: 1.0, each: None });
        }
        for slots in &size.slots {
            found.gathered.add("create", &slots.to_string(), OLDER_FAR, Sample { rate: 2100.0, us: 1.0, each: None });
        }
        let mut results = Results::default();
        show(&size, &found, &mut results);
        let kept = |what: &str| {
            let row = results.rows.iter().find(|row| row.what == what).unwrap_or_else(|| panic!("no row {what}"));
            row.bound.as_ref().map(|bound| bound.kept)
        };
        assert_eq!(kept("create, 1 slot, loopback"), None);
        assert_eq!(kept("create, 8 slots, loopback"), Some(true), "within the noise");
        assert_eq!(kept("create, 32 slots, loopback"), Some(false));
        assert_eq!(kept("create, 8 slots, +200 us"), Some(true));
        assert_eq!(kept("unlink, 8 slots, +200 us"), Some(false));
        assert_eq!(kept("create, 32 slots, +200 us"), Some(false), "6200 of 9000");
        assert_eq!(kept("unlink, 32 slots, +200 us"), Some(true));
        assert_eq!(kept("create, 32 slots over 0.1.0, +200 us"), Some(false), "2.95 times");
        assert_eq!((results.charts.len(), results.charts[0].series.len(), results.charts[1].series.len()), (2, 3, 2));
    }
}
