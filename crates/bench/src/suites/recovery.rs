//! The metadata server is killed with `kill -9` and restarted at once: how long programs wait.

use std::time::Duration;

use crate::cluster::{Cluster, Usage};
use crate::figures::Figure;
use crate::load::{Job, Pool};
use crate::places::Spread;
use crate::results::{Chart, Results, Row, Series, Shape};
use crate::run::Run;

/// The size of the experiment.
#[derive(Clone, Debug)]
pub struct Size {
    /// Kills; the median over them counts.
    pub kills: usize,
    /// Numbers of existing files, rising.
    pub files: Vec<u64>,
    /// Numbers of creates that are answered but not on disk when the server is killed.
    pub uncommitted: Vec<u64>,
}

/// The measurements, kill by kill, for one number of files and one of uncommitted creates.
#[derive(Clone, Debug, Default)]
struct Case {
    files: u64,
    uncommitted: u64,
    pause_ms: Vec<f64>,
    ready_ms: Vec<f64>,
    replayed: Vec<f64>,
    used: Vec<Usage>,
}

/// The time of undisturbed work before each kill, so that the beat reaches its usual pace.
pub(super) const CALM: Duration = Duration::from_millis(200);
/// Longer than it takes to make the uncommitted creates; the longest that the server accepts.
const COMMIT_INTERVAL_MS: &str = "60000";
/// How long the recovery may take before the run ends with an error.
const BOUND: Duration = Duration::from_secs(240);

/// Runs the measurement.
pub fn run(run: &Run, size: &Size, command: &str) -> Results {
    let about = "The metadata server is killed with SIGKILL and started again at once, while a program creates and \
                 removes a file again and again. The pause is that program's longest operation: death, start, \
                 reconnection, replay. The yardstick is the start of the server alone, until it listens.";
    super::finish("recovery", about, command, |results| {
        let mut cases = Vec::new();
        let ended = measure(run, size, &mut cases);
        show(size, &cases, results);
        ended
    })
}

fn measure(run: &Run, size: &Size, cases: &mut Vec<Case>) -> anyhow::Result<()> {
    let all = size.files.len() * size.uncommitted.len() * size.kills;
    run.step(0, all, "starting servers and a mount")?;
    let mut cluster = Cluster::start(&run.folder("cluster")?, 1, 0)?;
    // Without write-back, each uncommitted create is one replay.
    let mount = cluster.mount_with(None, &["sync_metadata"])?;
    let stop_file = run.folder("signals")?.join("stop");
    let mut pool = Pool::start(2)?;
    let beat = mount.join("beat");
    std::fs::create_dir(&beat)?;
    let mut there = 0;
    let mut done = 0;
    for &files in &size.files {
        run.step(done, all, &format!("making {files} files"))?;
        let spread = |name: String, count: u64| Spread {
            roots: vec![mount.clone()],
            folder: name,
            workers: 1,
            count,
            shared: false,
            stride: 0,
        };
        let more = spread(format!("grown-to-{files}"), files.saturating_sub(there));
        more.prepare()?;
        pool.phase(run, &more.tasks(Job::Create { size: 0 }, "f"), &mut || cluster.check())?;
        there = there.max(files);
        for &uncommitted in &size.uncommitted {
            let mut case = Case { files, uncommitted, ..Case::default() };
            for kill in 0..size.kills {
                run.step(done, all, &format!("{files} files, {uncommitted} uncommitted, kill {}", kill + 1))?;
                let load = spread(format!("load{done}"), uncommitted);
                load.prepare()?;
                // Existing files are on disk; the next creates stay off it until the server is killed.
                // (fsync of a directory: the kernel does not pass syncfs(2) on to FUSE.)
                std::fs::File::open(&mount)?.sync_all()?;
                cluster.set_mdt_param("mdt.*.commit_interval_ms", COMMIT_INTERVAL_MS)?;
                let (took, ready) = pool.beat(run, &beat, &stop_file, |pool| {
                    std::thread::sleep(CALM);
                    pool.phase(run, &load.tasks(Job::Create { size: 0 }, "u"), &mut || cluster.check())?;
                    let before = cluster.usage_beside_mdt();
                    let ready = cluster.kill_mdt()?;
                    wait_recovered(run, &cluster)?;
                    case.used.push(cluster.usage().since(before));
                    std::thread::sleep(CALM);
                    Ok(ready)
                })?;
                case.pause_ms.push(took.longest * 1e3);
                case.ready_ms.push(ready * 1e3);
                case.replayed.push(replayed(&cluster).unwrap_or(0.0));
                load.clean()?;
                done += 1;
                // So that a run that ends early shows it.
                if kill == 0 {
                    cases.push(case.clone());
                } else if let Some(last) = cases.last_mut() {
                    last.clone_from(&case);
                }
            }
        }
    }
    Ok(())
}

fn status(cluster: &Cluster) -> String {
    cluster.server_params("mdt.*.recovery_status").into_iter().map(|(_, text)| text).collect()
}

fn replayed(cluster: &Cluster) -> Option<f64> {
    status(cluster).lines().find_map(|line| line.strip_prefix("replayed_requests: ")?.trim().parse().ok())
}

pub(super) fn wait_recovered(run: &Run, cluster: &Cluster) -> anyhow::Result<()> {
    let start = std::time::Instant::now();
    while !status(cluster).contains("status: COMPLETE") {
        run.go_on()?;
        if start.elapsed() > BOUND {
            anyhow::bail!("the metadata server does not end its recovery: {}", status(cluster).replace('\n', ", "));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn show(size: &Size, cases: &[Case], results: &mut Results) {
    for case in cases {
        let label = |what: &str| format!("{what}, {} files, {} uncommitted", case.files, case.uncommitted);
        let Some(pause) = Figure::of(&case.pause_ms) else { continue };
        let row = Row::new(label("pause"), "ms", pause).beside("start of the server", Figure::of(&case.ready_ms));
        results.rows.push(row);
        let Some(replayed) = Figure::of(&case.replayed) else { continue };
        let mut row = Row::new(label("replayed"), "requests", replayed);
        if replayed.median > 0.0 {
            let each = |of: fn(&Usage) -> f64| {
                Figure::of(&case.used.iter().map(of).collect::<Vec<_>>()).map(|all| all.median / replayed.median)
            };
            row.requests = each(|used| used.requests as f64);
            row.client_cpu_us = each(|used| used.client_cpu_us);
            row.server_cpu_us = each(|used| used.server_cpu_us);
        }
        results.rows.push(row);
    }
    let find = |files, uncommitted| cases.iter().find(|case| case.files == files && case.uncommitted == uncommitted);
    let mut series: Vec<Series> = size
        .files
        .iter()
        .map(|&files| Series {
            name: format!("pause, {files} files"),
            points: size
                .uncommitted
                .iter()
                .map(|&uncommitted| find(files, uncommitted).and_then(|case| Figure::of(&case.pause_ms)))
                .collect(),
        })
        .collect();
    let starts = |uncommitted| {
        let all: Vec<f64> = size
            .files
            .iter()
            .filter_map(|&files| find(files, uncommitted))
            .flat_map(|case| case.ready_ms.clone())
            .collect();
        Figure::of(&all)
    };
    series.push(Series {
        name: "start of the server".to_owned(),
        points: size.uncommitted.iter().map(|&uncommitted| starts(uncommitted)).collect(),
    });
    if cases.is_empty() {
        return;
    }
    results.charts.push(Chart {
        name: "recovery-pause".to_owned(),
        title: "Pause that a program sees when the metadata server is killed and restarted".to_owned(),
        across: "creates answered and not on disk".to_owned(),
        up: "ms (less is better)".to_owned(),
        shape: Shape::Lines,
        places: size.uncommitted.iter().map(ToString::to_string).collect(),
        series,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_early_shows_what_it_has() {
        let size = Size { kills: 2, files: vec![0, 10], uncommitted: vec![0, 5] };
        let used = Usage { requests: 14, client_cpu_us: 70.0, server_cpu_us: 700.0 };
        let case = Case {
            pause_ms: vec![30.0, 10.0],
            ready_ms: vec![5.0, 4.0],
            replayed: vec![6.0, 8.0],
            used: vec![used; 2],
            ..Case::default()
        };
        let mut results = Results::default();
        show(&size, &[case], &mut results);
        assert_eq!(results.rows.len(), 2);
        assert_eq!((results.rows[0].figure.median, results.rows[0].yardsticks[0].ratio), (20.0, Some(20.0 / 4.5)));
        let replayed = &results.rows[1];
        let each = (replayed.requests, replayed.client_cpu_us, replayed.server_cpu_us);
        assert_eq!(each, (Some(2.0), Some(10.0), Some(100.0)), "of one replayed request");
        assert_eq!(results.charts[0].series.len(), 3);
        let mut nothing = Results::default();
        show(&size, &[], &mut nothing);
        assert!(nothing.rows.is_empty() && nothing.charts.is_empty());
    }
}
