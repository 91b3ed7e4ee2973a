//! The file systems under test and their clients, and the measurement of a phase.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::{AFTER, CLIENTS, COMMIT_MS, IN_FLIGHT, Size};
use crate::cluster::{self, Cluster, Usage};
use crate::filler::Order;
use crate::load::{Pool, Task, Took};
use crate::ops::Op;
use crate::places::{self, Local, Sample};
use crate::results::Results;
use crate::run::Run;
use crate::survey::folders::Wanted;

/// Memory and space on the RAM disk for each metadata target, in MiB.
const MIB_EACH: u64 = 48;
/// Memory and space for a thousand files, in MiB: those of one phase, with what clients and targets keep of them.
const MIB_PER_THOUSAND: u64 = 12;
/// The same for a thousand files of a survey, which no client knows.
const MIB_PER_THOUSAND_SURVEYED: u64 = 4;
/// The number of changes that a target lets a client have in flight.
const OFFERED: &str = "128";

/// A file system under test.
struct Site {
    mdts: u32,
    cluster: Cluster,
}

/// The file systems and the clients.
pub(super) struct Bed<'a> {
    run: &'a Run,
    pool: Pool,
    sites: Vec<Site>,
    /// The steps done, and the number of all; known after the first round.
    steps: (usize, usize),
    rounds: usize,
    /// The number in the names of directories.
    names: u32,
    scratch: PathBuf,
    // Dropped after the file systems, whose targets are on it.
    _ram: Option<Local>,
}

/// A sample that is only a rate.
pub(super) fn of_rate(rate: f64) -> Sample {
    Sample { rate, us: 1e6 / rate.max(1e-9), each: None }
}

/// A sample that is only a time.
pub(super) fn of_us(us: f64) -> Sample {
    Sample { rate: 1e6 / us.max(1e-9), us, each: None }
}

impl<'a> Bed<'a> {
    /// Starts a file system for each number of metadata targets, and the workers.
    ///
    /// # Errors
    /// Memory or disk are too small, or something does not start.
    pub(super) fn start(run: &'a Run, size: &Size, results: &mut Results) -> anyhow::Result<Bed<'a>> {
        if !rustix::process::geteuid().is_root() {
            bail!("only root may make directories on chosen metadata targets: run this as root");
        }
        run.step(0, 1, "starting servers")?;
        let (scratch, ram) = ground(run, results)?;
        let needed = mib_needed(size);
        let what = format!("for {} metadata targets and {} files in each phase", total(size), size.files);
        enough("memory", memory_mib(), needed, &what)?;
        enough(&format!("space in '{}'", scratch.display()), space_mib(&scratch)?, needed, &what)?;
        let mut sites = Vec::new();
        for &mdts in &size.mdts {
            run.step(0, 1, &format!("starting {mdts} metadata targets"))?;
            let folder = scratch.join(format!("mdts{mdts}"));
            std::fs::create_dir_all(&folder)?;
            let cluster = Cluster::serve_many(&std::env::current_exe()?, &folder, mdts, 1)?;
            cluster.set_mdt_param("mdt.*.max_mod_rpcs_in_flight", OFFERED)?;
            cluster.set_mdt_param("mdt.*.commit_interval_ms", &COMMIT_MS.to_string())?;
            cluster.remove_root_default()?;
            sites.push(Site { mdts, cluster });
        }
        // One more than clients, for load beside them.
        let pool = Pool::start(CLIENTS + 1)?;
        Ok(Bed { run, pool, sites, steps: (0, 0), rounds: size.rounds, names: 0, scratch, _ram: ram })
    }

    /// The file system with this number of metadata targets.
    pub(super) fn site(&self, mdts: u32) -> Option<usize> {
        self.sites.iter().position(|site| site.mdts == mdts)
    }

    /// The file system with the most metadata targets that four clients can all use, if it has several.
    pub(super) fn wide(&self) -> Option<usize> {
        let fits = |site: &Site| site.mdts > 1 && site.mdts as usize <= super::FEW;
        self.sites.iter().rposition(fits)
    }

    /// The number of metadata targets of a file system.
    pub(super) fn mdts(&self, site: usize) -> u32 {
        self.sites[site].mdts
    }

    /// The servers of a file system.
    pub(super) fn cluster(&mut self, site: usize) -> &mut Cluster {
        &mut self.sites[site].cluster
    }

    /// Reports what begins now.
    ///
    /// # Errors
    /// The run is to stop.
    pub(super) fn step(&mut self, what: &str) -> anyhow::Result<()> {
        let all = self.steps.1.max(self.steps.0 + 1);
        self.run.step(self.steps.0, all, what)?;
        self.steps.0 += 1;
        Ok(())
    }

    /// Ends a round: all have as many steps.
    pub(super) fn end_round(&mut self, round: usize) {
        self.steps.1 = self.steps.0 / (round + 1) * self.rounds;
    }

    /// Makes directories on these metadata targets. Returns their paths from the root.
    ///
    /// # Errors
    /// An error of the file system.
    pub(super) fn directories(&mut self, site: usize, mdts: &[Vec<u32>]) -> anyhow::Result<Vec<String>> {
        let path = |number: usize| format!("bench{}.{number}", self.names);
        let paths: Vec<String> = (0..mdts.len()).map(path).collect();
        self.names += 1;
        let wanted = |(path, mdts): (&String, &Vec<u32>)| Wanted {
            path: format!("/{path}"),
            mdts: mdts.clone(),
            replaces: false,
        };
        let wanted: Vec<Wanted> = paths.iter().zip(mdts).map(wanted).collect();
        self.sites[site].cluster.make_directories(&wanted)?;
        Ok(paths)
    }

    /// What one of `clients` clients does, each with its part of the operations in flight.
    pub(super) fn order(&self, site: usize, clients: usize, op: Op) -> Order {
        let share = self.sites[site].cluster.share((IN_FLIGHT / clients).max(1) as u16, true);
        Order { share, op, per_second: None }
    }

    /// The operation for each client: client n works on what client `n + stride` made, or will make.
    pub(super) fn tasks(&self, site: usize, homes: &[String], op: &Op, files: u64, stride: usize) -> Vec<Task> {
        let task = |client: usize| {
            let owner = (client + stride) % homes.len();
            let order = self.order(site, homes.len(), op.clone());
            Task::of_order(order, &homes[owner], format!("f.{owner}."), (files / homes.len() as u64).max(1))
        };
        (0..homes.len()).map(task).collect()
    }

    /// Runs a phase, and measures it until its changes are committed.
    ///
    /// # Errors
    /// As for [`Pool::phase`].
    pub(super) fn phase(&mut self, site: usize, tasks: &[Task]) -> anyhow::Result<(Sample, Took)> {
        phase(self.run, &mut self.pool, &mut self.sites[site].cluster, tasks)
    }

    /// Runs a phase while the last worker runs a task until the phase is over. Returns the result of both.
    ///
    /// # Errors
    /// As for [`Pool::beside`].
    pub(super) fn phase_beside(&mut self, site: usize, tasks: &[Task], beside: Task) -> anyhow::Result<(Sample, Took)> {
        let stop_file = self.scratch.join("stop");
        if stop_file.exists() {
            std::fs::remove_file(&stop_file)?;
        }
        let beside = Task { stop_file: Some(stop_file), ..beside };
        let (run, cluster) = (self.run, &mut self.sites[site].cluster);
        let (took, (sample, _)) = self.pool.beside(run, beside, |pool| phase(run, pool, cluster, tasks))?;
        Ok((sample, took))
    }
}

fn phase(run: &Run, pool: &mut Pool, cluster: &mut Cluster, tasks: &[Task]) -> anyhow::Result<(Sample, Took)> {
    let clients: Vec<u32> = pool.pids().into_iter().take(tasks.len()).collect();
    let cpu = |pids: &[u32]| pids.iter().map(|pid| cluster::exact_cpu_us(*pid)).sum::<f64>();
    let usage = |cluster: &Cluster| Usage {
        requests: cluster.mdt_requests(),
        client_cpu_us: cpu(&clients),
        server_cpu_us: cpu(&cluster.mdt_pids()),
    };
    places::measured(run, pool, tasks, cluster, AFTER, usage)
}

/// The directory for the targets: a RAM disk if there is one.
fn ground(run: &Run, results: &mut Results) -> anyhow::Result<(PathBuf, Option<Local>)> {
    let own = run.folder("mdts")?;
    if places::is_tmpfs(&own)? {
        return Ok((own, None));
    }
    match places::tmpfs() {
        Ok(local) => Ok((local.root.clone(), Some(local))),
        Err(why) => {
            results.not_available.push(("RAM disk for the targets".to_owned(), format!("{why:#}")));
            Ok((own, None))
        }
    }
}

fn total(size: &Size) -> u64 {
    size.mdts.iter().map(|mdts| u64::from(*mdts)).sum()
}

/// The memory that a run takes, in MiB; as much again is on the RAM disk at most.
fn mib_needed(size: &Size) -> u64 {
    let files = size.files * MIB_PER_THOUSAND + size.survey * MIB_PER_THOUSAND_SURVEYED;
    total(size) * MIB_EACH + files / 1000 + 4 * size.mib
}

fn enough(what: &str, found: u64, needed: u64, why: &str) -> anyhow::Result<()> {
    if found < needed {
        bail!(
            "there is too little {what}: {found} MiB, and {why} it takes about {needed}; give --mdts or --files less"
        );
    }
    Ok(())
}

/// The memory that programs can still get, in MiB.
fn memory_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).map_or(u64::MAX, |kib| kib >> 10)
}

fn space_mib(folder: &Path) -> anyhow::Result<u64> {
    let space = rustix::fs::statvfs(folder)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_is_said_with_what_to_do() {
        assert!(enough("memory", 100, 100, "x").is_ok());
        let error = enough("memory", 99, 100, "for 3 metadata targets").unwrap_err().to_string();
        assert!(error.contains("99 MiB") && error.contains("about 100") && error.contains("--mdts"), "{error}");
        assert!(memory_mib() > 0);
        assert!(space_mib(Path::new("/")).is_ok());
    }
}
