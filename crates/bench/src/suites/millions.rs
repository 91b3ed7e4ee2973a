//! A file system with millions of files: what it costs in disk space and memory, and how soon it serves again after a
//! crash.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::cluster::{Cluster, anonymous_memory};
use crate::figures::Figure;
use crate::load::{Pool, Task};
use crate::results::{Bound, Results, Row};
use crate::run::Run;

/// The size of the experiment.
#[derive(Clone, Debug)]
pub struct Size {
    /// Files in all.
    pub files: u64,
    /// Clients that make them.
    pub clients: u64,
    /// Listings and kills; the median over them counts.
    pub rounds: usize,
}

/// Entries of the largest directory.
const LARGE: u64 = 1_000_000;
/// Entries of the other directories.
const USUAL: u64 = 100_000;
/// Creates in flight at each client.
const IN_FLIGHT: u16 = 4;
/// The most bytes on disk for each empty file.
const DISK_BOUND: f64 = 700.0;
/// The most MiB of its own memory for a server with default settings.
const SERVER_BOUND: f64 = 512.0;
/// The most MiB of its own memory for a client with default settings: nodes and data.
const CLIENT_BOUND: f64 = 512.0;
/// The most milliseconds for each entry of a listing.
const LIST_BOUND: f64 = 0.01;
/// The most milliseconds until a server serves again.
const RESTART_BOUND: f64 = 1000.0;

/// Runs the measurement.
pub fn run(run: &Run, size: &Size, command: &str) -> Results {
    let about = format!(
        "{} empty files, made by {} clients: one directory of up to a million, the others of up to {USUAL}. What they take \
         on the metadata target's disk and of every process's own memory (the most that was seen), how long `ls -U` of the \
         largest directory takes, and how long a program waits when the metadata server is killed and started again \
         while all these clients hold their locks.",
        size.files, size.clients
    );
    super::finish("millions", &about, command, |results| measure(run, size, results))
}

/// The highest memory use of each process.
#[derive(Default)]
struct Peaks(Vec<(String, u64)>);

impl Peaks {
    fn see(&mut self, name: &str, bytes: u64) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, most)) => *most = (*most).max(bytes),
            None => self.0.push((name.to_owned(), bytes)),
        }
    }

    fn look(&mut self, cluster: &Cluster, clients: &[u32]) {
        for (name, bytes) in cluster.memory() {
            self.see(&name, bytes);
        }
        for (at, pid) in clients.iter().enumerate() {
            self.see(&format!("client{at}"), anonymous_memory(*pid).unwrap_or(0));
        }
    }
}

/// The directories of each phase: for each client the path, and the number of files that it makes there.
fn layout(size: &Size) -> Vec<Vec<(String, u64)>> {
    let clients = size.clients;
    let large = size.files.min(LARGE);
    let share = |all: u64, at: u64| all * (at + 1) / clients - all * at / clients;
    let mut phases: Vec<Vec<(String, u64)>> =
        vec![(0..clients).map(|at| ("large".to_owned(), share(large, at))).collect()];
    let mut left = size.files - large;
    while left > 0 {
        let now = left.min(USUAL * clients);
        let number = phases.len();
        phases.push((0..clients).map(|at| (format!("tree/client{at}/part{number}"), share(now, at))).collect());
        left -= now;
    }
    phases
}

fn measure(run: &Run, size: &Size, results: &mut Results) -> anyhow::Result<()> {
    let phases = layout(size);
    let all = phases.len() + 2 * size.rounds;
    run.step(0, all, "starting servers, a mount and clients")?;
    let mut cluster = Cluster::start(&run.folder("cluster")?, 1, 1)?;
    let mount = cluster.mounts().remove(0);
    let mut pool = Pool::start(size.clients as usize + 1)?;
    let clients: Vec<u32> = pool.pids().into_iter().take(size.clients as usize).collect();
    let mut peaks = Peaks::default();
    sync(&mount)?;
    let before = cluster.mdt_disk();
    let made = fill(run, all, &phases, &mount, &mut pool, &mut cluster, &clients, &mut peaks, results);
    sync(&mount)?;
    show_disk(cluster.mdt_disk().saturating_sub(before), size.files, made.is_ok(), results);
    made?;
    list(run, phases.len(), all, size, &mount, results, &mut || peaks.look(&cluster, &clients))?;
    let killed = kill(run, phases.len() + size.rounds, all, size, &mount, &mut pool, &mut cluster, results);
    peaks.look(&cluster, &clients);
    show_memory(&peaks, results);
    killed
}

/// Makes all changes durable. (fsync of a directory, because the kernel does not pass syncfs(2) on to FUSE.)
fn sync(mount: &Path) -> anyhow::Result<()> {
    Ok(std::fs::File::open(mount)?.sync_all()?)
}

fn fill(
    run: &Run,
    all: usize,
    phases: &[Vec<(String, u64)>],
    mount: &Path,
    pool: &mut Pool,
    cluster: &mut Cluster,
    clients: &[u32],
    peaks: &mut Peaks,
    results: &mut Results,
) -> anyhow::Result<()> {
    let (mut made, mut seconds) = (0, 0.0);
    let mut large = None;
    for (done, phase) in phases.iter().enumerate() {
        run.step(done, all, &format!("{made} files are there"))?;
        let share = cluster.share(IN_FLIGHT, true);
        let mut tasks = Vec::new();
        for (at, (folder, count)) in phase.iter().enumerate() {
            let place = mount.join(folder);
            std::fs::create_dir_all(&place).with_context(|| format!("cannot make '{}'", place.display()))?;
            tasks.push(Task::of_client(&share, folder, format!("file.{at}."), *count));
        }
        let took = pool.phase(run, &tasks, &mut || {
            peaks.look(cluster, clients);
            cluster.check()
        })?;
        made += took.operations;
        seconds += took.seconds;
        large.get_or_insert((took.operations, took.seconds));
    }
    for (what, of) in [("creates, all", Some((made, seconds))), ("creates, the largest directory", large)] {
        let rate = of.map(|(made, seconds)| made as f64 / seconds.max(1e-9));
        results.rows.extend(rate.and_then(|rate| Figure::of(&[rate])).map(|rate| Row::new(what, "files/s", rate)));
    }
    Ok(())
}

/// A row whose median should not exceed a bound.
fn bounded(what: &str, unit: &str, figures: &[f64], is: &str, value: f64) -> Option<Row> {
    let figure = Figure::of(figures)?;
    let bound = Bound { is: is.to_owned(), value, kept: figure.median <= value };
    Some(Row { bound: Some(bound), ..Row::new(what, unit, figure) })
}

fn show_disk(bytes: u64, files: u64, whole: bool, results: &mut Results) {
    if whole && files > 0 {
        let each = bytes as f64 / files as f64;
        results.rows.extend(bounded("on disk, each file", "bytes", &[each], "what is wanted", DISK_BOUND));
    }
}

fn show_memory(peaks: &Peaks, results: &mut Results) {
    for (name, bytes) in &peaks.0 {
        let mib = *bytes as f64 / f64::from(1 << 20);
        let bound = if name.starts_with("client") || name.starts_with("mount") { CLIENT_BOUND } else { SERVER_BOUND };
        results.rows.extend(bounded(&format!("memory of {name}"), "MiB", &[mib], "its setting", bound));
    }
}

/// The number of entries that `ls -U` prints for a directory, and the seconds that it took.
fn ls(place: &Path, go_on: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<(u64, f64)> {
    let start = Instant::now();
    let mut child =
        Command::new("ls").arg("-U").arg(place).stdout(Stdio::piped()).spawn().context("cannot start 'ls'")?;
    let mut lines = 0;
    let mut buffer = vec![0; 1 << 16];
    let mut output = child.stdout.take().context("no output")?;
    loop {
        let read = output.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
        if let Err(stopped) = go_on() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(stopped);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("'ls -U {}' failed ({status})", place.display());
    }
    Ok((lines, start.elapsed().as_secs_f64()))
}

fn list(
    run: &Run,
    done: usize,
    all: usize,
    size: &Size,
    mount: &Path,
    results: &mut Results,
    look: &mut dyn FnMut(),
) -> anyhow::Result<()> {
    let entries = size.files.min(LARGE);
    let mut took_ms = Vec::new();
    for round in 0..size.rounds {
        run.step(done + round, all, &format!("listing {entries} entries"))?;
        let (found, seconds) = ls(&mount.join("large"), &mut || run.go_on())?;
        if found != entries {
            bail!("the listing has {found} entries, not {entries}; report this as a bug");
        }
        took_ms.push(seconds * 1e3);
        look();
    }
    let bound = (entries as f64 * LIST_BOUND).max(1000.0);
    let what = format!("ls -U, {entries} entries");
    results.rows.extend(bounded(&what, "ms", &took_ms, "10 us an entry, a second at least", bound));
    Ok(())
}

fn kill(
    run: &Run,
    done: usize,
    all: usize,
    size: &Size,
    mount: &Path,
    pool: &mut Pool,
    cluster: &mut Cluster,
    results: &mut Results,
) -> anyhow::Result<()> {
    let stop_file = run.folder("signals")?.join("stop");
    let beat = mount.join("beat");
    std::fs::create_dir(&beat)?;
    let (mut pause_ms, mut ready_ms) = (Vec::new(), Vec::new());
    for round in 0..size.rounds {
        run.step(done + round, all, &format!("kill {}", round + 1))?;
        let (took, ready) = pool.beat(run, &beat, &stop_file, |_| {
            std::thread::sleep(super::recovery::CALM);
            let ready = cluster.kill_mdt()?;
            super::recovery::wait_recovered(run, cluster)?;
            std::thread::sleep(super::recovery::CALM);
            Ok(ready)
        })?;
        pause_ms.push(took.longest * 1e3);
        ready_ms.push(ready * 1e3);
    }
    let listens = bounded("kill -9 until the server listens", "ms", &ready_ms, "what is wanted", RESTART_BOUND);
    let answers = bounded("kill -9 until a program has its answer", "ms", &pause_ms, "what is wanted", RESTART_BOUND);
    results.rows.extend(listens.into_iter().chain(answers));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_directory_has_a_million_and_no_other_more_than_its_share() {
        for files in [1, 7, 999_999, 1_000_000, 2_345_678, 10_000_000] {
            let phases = layout(&Size { files, clients: 3, rounds: 1 });
            let sum = |phase: &Vec<(String, u64)>| phase.iter().map(|(_, count)| count).sum::<u64>();
            assert_eq!(phases.iter().map(sum).sum::<u64>(), files);
            assert_eq!(sum(&phases[0]), files.min(LARGE));
            assert!(phases[1..].iter().flatten().all(|(_, count)| *count <= USUAL));
            let mut folders: Vec<&String> = phases[1..].iter().flatten().map(|(folder, _)| folder).collect();
            folders.sort();
            folders.dedup();
            assert_eq!(folders.len(), 3 * (phases.len() - 1), "each client in directories of its own");
        }
    }

    #[test]
    fn a_bound_says_whether_it_was_kept() {
        let row = |figure: f64| bounded("x", "ms", &[figure], "what is wanted", 10.0).unwrap().bound.unwrap().kept;
        assert!(row(10.0) && !row(10.5));
        let mut peaks = Peaks::default();
        peaks.see("mdt0", 5 << 20);
        peaks.see("mdt0", 3 << 20);
        peaks.see("client0", 600 << 20);
        let mut results = Results::default();
        show_memory(&peaks, &mut results);
        let kept: Vec<(f64, bool)> =
            results.rows.iter().map(|row| (row.figure.median, row.bound.as_ref().unwrap().kept)).collect();
        assert_eq!(kept, [(5.0, true), (600.0, false)]);
    }
}
