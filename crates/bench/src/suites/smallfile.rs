//! Small files: create, read and remove by size, each process in a directory of its own or all in one.

use crate::cluster::Cluster;
use crate::gather::{Gathered, Measure};
use crate::load::{Job, Pool};
use crate::nothing::Data;
use crate::places::{self, ADAMANT, Local, NOTHING, Spread, TMPFS, XFS, phase};
use crate::results::Results;
use crate::run::Run;

/// The size of the experiment.
#[derive(Clone, Debug)]
pub struct Size {
    /// Rounds; the median over them counts.
    pub rounds: usize,
    /// Files of each phase and round, over all processes.
    pub files: u64,
    /// The number of processes.
    pub processes: usize,
    /// The sizes of the files, in KiB.
    pub sizes_kib: Vec<u64>,
}

const YARDSTICKS: [&str; 3] = [NOTHING, TMPFS, XFS];
const PHASES: [&str; 3] = ["create", "read", "remove"];
const LAYS: [(&str, bool); 2] = [("unique", false), ("shared", true)];

/// Runs the measurement.
pub fn run(run: &Run, size: &Size, command: &str) -> Results {
    let about = format!(
        "Small files by size: open, write and close; open, read and close; unlink. {} at work, each in a directory of \
         its own (unique) or all in one (shared).",
        if size.processes == 1 { "One process".to_owned() } else { format!("{} processes", size.processes) }
    );
    super::finish("smallfile", &about, command, |results| {
        let mut gathered = Gathered::default();
        let ended = measure(run, size, &mut gathered, results);
        show(size, &gathered, results);
        ended
    })
}

fn measure(run: &Run, size: &Size, gathered: &mut Gathered, results: &mut Results) -> anyhow::Result<()> {
    let all = size.rounds * size.sizes_kib.len() * LAYS.len();
    run.step(0, all, "starting servers and a mount")?;
    let mut cluster = Cluster::start(&run.folder("cluster")?, 1, 1)?;
    let mount = cluster.mounts().remove(0);
    let mut locals: Vec<Local> = vec![places::do_nothing(run, "nothing", Data::Memory)?];
    for (name, local) in [(TMPFS, places::tmpfs()), (XFS, places::xfs(run))] {
        match local {
            Ok(local) => locals.push(local),
            Err(why) => results.not_available.push((name.to_owned(), format!("{why:#}"))),
        }
    }
    let mut pool = Pool::start(size.processes)?;
    let mut done = 0;
    for _ in 0..size.rounds {
        for &kib in &size.sizes_kib {
            for (lay, shared) in LAYS {
                let mut at_work = |root: std::path::PathBuf, name: &str, mut cluster: Option<&mut Cluster>| {
                    run.step(done, all, &format!("{kib} KiB, {lay}, {name}"))?;
                    let spread = Spread {
                        roots: vec![root],
                        folder: "small".to_owned(),
                        workers: size.processes,
                        count: size.files / size.processes as u64,
                        shared,
                        stride: 0,
                    };
                    spread.prepare()?;
                    for (what, job) in PHASES.into_iter().zip([Job::Create { size: kib << 10 }, Job::Read, Job::Remove])
                    {
                        let sample = phase(run, &mut pool, &spread.tasks(job, "s"), cluster.as_deref_mut())?;
                        gathered.add(&format!("{what}, {lay}"), &kib.to_string(), name, sample);
                    }
                    spread.clean()
                };
                at_work(mount.clone(), ADAMANT, Some(&mut cluster))?;
                for local in &locals {
                    at_work(local.root.clone(), local.name, None)?;
                }
                done += 1;
            }
        }
    }
    Ok(())
}

fn show(size: &Size, gathered: &Gathered, results: &mut Results) {
    let axis: Vec<String> = size.sizes_kib.iter().map(ToString::to_string).collect();
    for what in PHASES {
        for (lay, _) in LAYS {
            let key = format!("{what}, {lay}");
            for at in &axis {
                let label = format!("{what}, {at} KiB, {lay}");
                results.rows.extend(gathered.row(&key, at, ADAMANT, &YARDSTICKS, Measure::Rate, label, "files/s"));
            }
            results.charts.extend(gathered.lines(
                &key,
                &axis,
                &format!("smallfile-{what}-{lay}"),
                &format!(
                    "Small files, {what}: {} processes, {}",
                    size.processes,
                    if lay == "unique" { "a directory each" } else { "one directory" }
                ),
                "size of the files (KiB)",
                "files/s",
            ));
        }
    }
}
