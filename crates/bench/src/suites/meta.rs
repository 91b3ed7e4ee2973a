//! Metadata operations by the number of processes: files and directories made, stat'ed and removed; opens and closes apart;
//! through one mount and several; on a process's own files and on those of another.

use std::path::PathBuf;

use crate::cluster::Cluster;
use crate::gather::{Gathered, Measure};
use crate::load::{Job, Pool, Refused};
use crate::nothing::Data;
use crate::places::{self, ADAMANT, NOTHING, Spread, TMPFS, phase};
use crate::results::Results;
use crate::run::Run;

/// The size of the experiment.
#[derive(Clone, Debug)]
pub struct Size {
    /// Rounds; the median over them counts.
    pub rounds: usize,
    /// Files of each phase and round, over all processes.
    pub files: u64,
    /// The numbers of processes.
    pub processes: Vec<usize>,
    /// The number of mounts when there are many.
    pub mounts: usize,
}

/// Many mounts, with the processes spread over them.
const MANY: &str = "Adamant, many mounts";
/// Many mounts, where each process stats and removes what its neighbour made.
const STRIDE: &str = "Adamant, many mounts, stride 1";
const SHARED: &str = "Adamant, one directory";
const MANY_SHARED: &str = "Adamant, many mounts, one directory";

/// The phases in order; names and prefixes of file names.
const PHASES: [(&str, &str, Job, &str); 8] = [
    ("directory creation", "d", Job::MakeDirectory, "directories/s"),
    ("directory stat", "d", Job::Stat, "directories/s"),
    ("directory removal", "d", Job::RemoveDirectory, "directories/s"),
    ("file creation", "f", Job::Create { size: 0 }, "files/s"),
    ("file stat", "f", Job::Stat, "files/s"),
    ("file removal", "f", Job::Remove, "files/s"),
    ("file open, kept open", "k", Job::Open, "files/s"),
    ("file close", "k", Job::Close, "files/s"),
];

struct Variant {
    name: &'static str,
    roots: Vec<PathBuf>,
    shared: bool,
    stride: usize,
    ours: bool,
}

/// Runs the measurement.
pub fn run(run: &Run, size: &Size, command: &str) -> Results {
    let about = format!(
        "Empty files and directories by number of processes, each process in a directory of its own unless said \
         otherwise; \"many mounts\" are {}, each a client of its own; with stride 1 each process looks at and removes \
         what its neighbour made through another mount.",
        size.mounts
    );
    super::finish("meta", &about, command, |results| {
        let mut gathered = Gathered::default();
        let ended = measure(run, size, &mut gathered, results);
        show(size, &gathered, results);
        ended
    })
}

fn measure(run: &Run, size: &Size, gathered: &mut Gathered, results: &mut Results) -> anyhow::Result<()> {
    run.step(0, 1, "starting servers and mounts")?;
    let mut cluster = Cluster::start(&run.folder("cluster")?, 1, size.mounts)?;
    let mounts = cluster.mounts();
    let nothing = places::do_nothing(run, "nothing", Data::Memory)?;
    let ours =
        |name, roots: &[PathBuf], shared, stride| Variant { name, roots: roots.to_vec(), shared, stride, ours: true };
    let mut variants = vec![
        ours(ADAMANT, &mounts[..1], false, 0),
        ours(MANY, &mounts, false, 0),
        ours(STRIDE, &mounts, false, 1),
        ours(SHARED, &mounts[..1], true, 0),
        ours(MANY_SHARED, &mounts, true, 0),
        Variant { name: NOTHING, roots: vec![nothing.root.clone()], shared: false, stride: 0, ours: false },
    ];
    let tmpfs = places::tmpfs();
    match &tmpfs {
        Ok(local) => variants.push(Variant {
            name: TMPFS,
            roots: vec![local.root.clone()],
            shared: false,
            stride: 0,
            ours: false,
        }),
        Err(why) => results.not_available.push((TMPFS.to_owned(), format!("{why:#}"))),
    }
    let mut pool = Pool::start(size.processes.iter().copied().max().unwrap_or(1))?;
    // With one process, many mounts are one mount, and the process is its own neighbour.
    let all: Vec<(usize, usize)> = size
        .processes
        .iter()
        .flat_map(|&processes| (0..variants.len()).map(move |variant| (processes, variant)))
        .filter(|&(processes, variant)| {
            let variant = &variants[variant];
            processes > 1 || !variant.shared && variant.stride == 0 && variant.name != MANY
        })
        .collect();
    for round in 0..size.rounds {
        for (step, &(processes, variant)) in all.iter().enumerate() {
            let variant = &variants[variant];
            let what = format!("{processes} processes, {}", variant.name);
            run.step(round * all.len() + step, size.rounds * all.len(), &what)?;
            let spread = Spread {
                roots: variant.roots.clone(),
                folder: "meta".to_owned(),
                workers: processes,
                count: (size.files / processes as u64).max(1),
                shared: variant.shared,
                stride: variant.stride,
            };
            let mut at_work = || {
                spread.prepare()?;
                for (what, prefix, job, _) in PHASES {
                    let cluster = variant.ours.then_some(&mut cluster);
                    let sample = phase(run, &mut pool, &spread.tasks(job, prefix), cluster)?;
                    gathered.add(what, &processes.to_string(), variant.name, sample);
                }
                spread.clean()
            };
            if let Err(error) = at_work() {
                // An operation that fails here may succeed elsewhere; the error is listed, and the rest is measured.
                match error.downcast_ref::<Refused>() {
                    Some(refused) if !refused.ends_the_run() => {
                        let what = format!("{}, {processes} processes, round {}", variant.name, round + 1);
                        results.not_available.push((what, refused.to_string()));
                        spread.clean()?;
                    }
                    _ => return Err(error),
                }
            }
        }
    }
    Ok(())
}

fn show(size: &Size, gathered: &Gathered, results: &mut Results) {
    let axis: Vec<String> = size.processes.iter().map(ToString::to_string).collect();
    for (what, _, _, unit) in PHASES {
        for place in [ADAMANT, MANY, STRIDE, SHARED, MANY_SHARED] {
            for at in &axis {
                let kind = place.strip_prefix(ADAMANT).unwrap_or_default();
                let processes = if at == "1" { "process" } else { "processes" };
                let label = format!("{what}, {at} {processes}{kind}");
                results.rows.extend(gathered.row(what, at, place, &[NOTHING, TMPFS], Measure::Rate, label, unit));
            }
        }
        let name = format!("meta-{}", what.replace(", ", "-").replace(' ', "-"));
        let title = format!("{}{} by number of processes", what[..1].to_uppercase(), &what[1..]);
        results.charts.extend(gathered.lines(what, &axis, &name, &title, "processes", unit));
    }
}
