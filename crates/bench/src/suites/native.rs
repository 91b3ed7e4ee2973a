//! The client library without a mount: creates with many requests in flight, with metadata write-back, and in one directory
//! by many clients.

use anyhow::Context;

use crate::cluster::{self, Cluster};
use crate::echo::{Echo, EchoServer};
use crate::figures::Figure;
use crate::filler::Share;
use crate::load::{Pool, Task, Took};
use crate::results::{Bound, Results, Row};
use crate::run::Run;

/// Requests in flight.
const IN_FLIGHT: u16 = 32;
/// Creates that fit into the write-back budget of a client.
const BURST: u64 = 1000;
/// Files in each of the directories that exist beforehand.
const FOLDER: u64 = 100_000;
/// Clients in one directory.
const CLIENTS: usize = 4;
const ECHOES: u32 = 10_000;
/// The echo time of the machine for which the goals were set.
const ECHO_US: f64 = 5.0;

/// The size of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rounds; the median over them counts.
    pub rounds: usize,
    /// Files that exist beforehand.
    pub before: u64,
    /// Files of each measurement.
    pub files: u64,
}

/// The measurements.
#[derive(Debug, Default)]
struct Samples {
    echo: Vec<f64>,
    rate: Vec<f64>,
    server_cpu_us: Vec<f64>,
    client_cpu_us: Vec<f64>,
    burst: Vec<f64>,
    sustained: Vec<f64>,
    sustained_server_cpu_us: Vec<f64>,
    sustained_client_cpu_us: Vec<f64>,
    own: Vec<f64>,
    shared: Vec<f64>,
}

/// Runs the measurement.
pub fn run(run: &Run, size: Size, command: &str) -> Results {
    let about = "Empty files made through the client library, without a mount: one thread with 32 creates under way. What is \
                 wanted is for a machine on which an echo over loopback takes 5 us; on a slower one it is in proportion.";
    super::finish("native", about, command, |results| {
        let mut samples = Samples::default();
        let ended = measure(run, size, &mut samples);
        results.rows = rows(&samples);
        ended
    })
}

fn measure(run: &Run, size: Size, samples: &mut Samples) -> anyhow::Result<()> {
    run.step(0, size.rounds, "starting servers and a mount")?;
    let cluster = &mut Cluster::start(&run.folder("cluster")?, 1, 1)?;
    let server = EchoServer::start()?;
    let mut echo = Echo::connect(server.port)?;
    let mount = cluster.mounts().remove(0);
    let make = |folder: &str| std::fs::create_dir_all(mount.join(folder));
    let mut pool = Pool::start(CLIENTS)?;
    let sync = cluster.share(IN_FLIGHT, true);
    let write_back = cluster.share(IN_FLIGHT, false);
    let mut done = 0;
    while done < size.before {
        run.step(0, size.rounds, &format!("{done} files are there"))?;
        let folder = format!("before{done}");
        make(&folder)?;
        fill(run, &mut pool, cluster, vec![task(&folder, 0, FOLDER.min(size.before - done), &sync)])?;
        done += FOLDER;
    }
    for round in 0..size.rounds {
        run.step(round, size.rounds, "echo")?;
        samples.echo.push(echo.measure(ECHOES, 1)?);
        run.step(round, size.rounds, "creates of a native client")?;
        let folder = format!("native{round}");
        for what in ["sync", "burst", "sustained"] {
            make(&format!("{folder}/{what}"))?;
        }
        let place = |what: &str| format!("{folder}/{what}");
        let (took, server_us, client_us) =
            fill_alone(run, &mut pool, cluster, task(&place("sync"), 0, size.files, &sync))?;
        samples.rate.push(took.operations as f64 / took.busy);
        samples.server_cpu_us.push(server_us);
        samples.client_cpu_us.push(client_us);

        run.step(round, size.rounds, "creates of a native client by metadata write-back")?;
        let bursts = Share { burst: BURST, ..write_back.clone() };
        let took = fill(run, &mut pool, cluster, vec![task(&place("burst"), 0, BURST * 10, &bursts)])?;
        samples.burst.push(took.operations as f64 / took.busy);
        let whole = Share { burst: size.files, ..write_back.clone() };
        let (took, server_us, client_us) =
            fill_alone(run, &mut pool, cluster, task(&place("sustained"), 0, size.files, &whole))?;
        samples.sustained.push(took.operations as f64 / took.seconds);
        samples.sustained_server_cpu_us.push(server_us);
        samples.sustained_client_cpu_us.push(client_us);

        run.step(round, size.rounds, "creates of four native clients")?;
        let count = (size.files / CLIENTS as u64).max(1);
        for shared in [false, true] {
            let mut tasks = Vec::new();
            for client in 0..CLIENTS {
                let place = if shared { place("shared") } else { place(&format!("own{client}")) };
                make(&place)?;
                tasks.push(task(&place, client, count, &sync));
            }
            let took = fill(run, &mut pool, cluster, tasks)?;
            let rates = if shared { &mut samples.shared } else { &mut samples.own };
            rates.push(took.operations as f64 / took.seconds);
        }
        run.step(round, size.rounds, "removing them")?;
        std::fs::remove_dir_all(mount.join(&folder))?;
    }
    Ok(())
}

/// Runs one client's creates. Returns their times, and the CPU time of servers and client for each, in microseconds.
fn fill_alone(run: &Run, pool: &mut Pool, cluster: &mut Cluster, task: Task) -> anyhow::Result<(Took, f64, f64)> {
    let pid = *pool.pids().first().context("no worker")?;
    let used = |cluster: &Cluster| (cluster.usage().server_cpu_us, cluster::cpu_us(pid).unwrap_or(0.0));
    let each = task.count as f64;
    let before = used(cluster);
    let took = fill(run, pool, cluster, vec![task])?;
    let after = used(cluster);
    Ok((took, (after.0 - before.0) / each, (after.1 - before.1) / each))
}

fn task(folder: &str, client: usize, count: u64, share: &Share) -> Task {
    Task::of_client(share, folder, format!("f.{client}."), count)
}

fn fill(run: &Run, pool: &mut Pool, cluster: &mut Cluster, tasks: Vec<Task>) -> anyhow::Result<Took> {
    pool.phase(run, &tasks, &mut || cluster.check())
}

/// The rows for the measurements.
fn rows(samples: &Samples) -> Vec<Row> {
    let mut rows = Vec::new();
    let echo = Figure::of(&samples.echo);
    let slower = echo.map_or(1.0, |echo| echo.median / ECHO_US).max(1.0);
    let mut row = |what: &str, unit: &str, of: &[f64], wanted: f64, most: bool| {
        let Some(figure) = Figure::of(of) else { return };
        let value = if most { wanted * slower } else { wanted / slower };
        let kept = if most { figure.median <= value } else { figure.median >= value };
        let bound = Bound { is: format!("{wanted} where an echo takes {ECHO_US} us"), value, kept };
        rows.push(Row { bound: Some(bound), ..Row::new(what, unit, figure) });
    };
    row("native create, sync_metadata, 32 under way", "creates/s", &samples.rate, 80_000.0, false);
    row("native create, sync_metadata: CPU of the servers", "us", &samples.server_cpu_us, 10.0, true);
    row("native create, sync_metadata: CPU of the client", "us", &samples.client_cpu_us, 5.0, true);
    row("native create, until the buffer is full", "creates/s", &samples.burst, 250_000.0, false);
    row("native create, sustained to disk", "creates/s", &samples.sustained, 80_000.0, false);
    row("native create, sustained: CPU of the servers", "us", &samples.sustained_server_cpu_us, 10.0, true);
    row("native create, sustained: CPU of the client", "us", &samples.sustained_client_cpu_us, 5.0, true);
    if let (Some(shared), Some(own)) = (Figure::of(&samples.shared), Figure::of(&samples.own)) {
        let value = 0.7 * own.median;
        let bound = Bound { is: "0.7 of directories of their own".to_owned(), value, kept: shared.median >= value };
        let row = Row::new("native create, sync_metadata, 4 clients in one directory", "creates/s", shared);
        rows.push(Row { bound: Some(bound), ..row.beside("directories of their own", Some(own)) });
    }
    rows.extend(echo.map(|figure| Row::new("echo", "us", figure)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bounded_from_below_and_cpu_from_above() {
        let samples = Samples {
            rate: vec![79_999.0],
            server_cpu_us: vec![10.1],
            client_cpu_us: vec![4.9],
            shared: vec![70.0],
            own: vec![100.0],
            ..Samples::default()
        };
        let kept = |samples: &Samples| -> Vec<bool> {
            rows(samples).into_iter().filter_map(|row| Some(row.bound?.kept)).collect()
        };
        assert_eq!(kept(&samples), [false, false, true, true], "what was not measured has no row");
        let slower = Samples { echo: vec![5.1], ..samples };
        assert_eq!(kept(&slower), [true, true, true, true]);
    }
}
