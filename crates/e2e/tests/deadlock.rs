//! Two mounts that create, rename and unlink each other's files at full speed: nothing may hang.
//!
//! A local unlink or create holds the kernel's lock on the directory while it waits for the server, which may wait for a
//! callback to the other mount, which may wait for the same lock there. The design forbids every such chain; this test
//! looks for one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, needs_root};
use stdx::Rng;

/// The longest that one call may take; a hang is longer than that, slowness is not.
const STALL: Duration = Duration::from_secs(10);

fn at_full_speed(name: &str, time: Duration) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(name, time + Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    for folder in ["one", "two"] {
        fs::create_dir(cluster.mount(0).join(folder)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let progress: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let mounts = cluster.mounts();
    let failures = std::thread::scope(|scope| {
        let workers: Vec<_> = progress
            .iter()
            .enumerate()
            .map(|(number, count)| {
                let (mount, stop) = (&mounts[number % 2], &stop);
                scope.spawn(move || work(mount, Rng::new(number as u64), stop, count))
            })
            .collect();
        let start = Instant::now();
        let mut seen: Vec<(u64, Instant)> = progress.iter().map(|_| (0, start)).collect();
        let mut stalled = Vec::new();
        while start.elapsed() < time && stalled.is_empty() {
            std::thread::sleep(Duration::from_millis(100));
            for (number, count) in progress.iter().enumerate() {
                let now = count.load(Ordering::Relaxed);
                if now != seen[number].0 {
                    seen[number] = (now, Instant::now());
                } else if seen[number].1.elapsed() > STALL && !workers[number].is_finished() {
                    stalled.push(format!("thread {number} hangs after {now} calls"));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        if !stalled.is_empty() {
            // Nothing but breaking the mounts off ends the threads.
            e2e::story::say(&stalled.join("; "));
            for mount in &mounts {
                e2e::story::take_away(mount);
            }
        }
        let mut failures = stalled;
        for worker in workers {
            if let Err(error) = worker.join().unwrap() {
                failures.push(error);
            }
        }
        failures
    });
    assert!(failures.is_empty(), "{failures:#?}");
    let total: u64 = progress.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    story.note(&format!("{total} calls in {time:?}"));
    // Both mounts agree on what is left.
    for folder in ["one", "two"] {
        e2e::trees::assert_equal(&mounts[0].join(folder), &mounts[1].join(folder));
    }
}

fn work(mount: &Path, mut rng: Rng, stop: &AtomicBool, count: &AtomicU64) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        let mut path = || -> PathBuf {
            let folder = if rng.chance(1, 2) { "one" } else { "two" };
            mount.join(folder).join(format!("f{}", rng.below(8)))
        };
        let (from, to) = (path(), path());
        let folder = from.parent().unwrap_or(mount).to_path_buf();
        let (what, result) = match rng.below(12) {
            0 | 1 => ("create", File::create(&from).map(drop)),
            2 => ("create new", File::create_new(&from).map(drop)),
            3 | 4 => ("unlink", fs::remove_file(&from)),
            5 | 6 => ("rename", fs::rename(&from, &to)),
            7 => ("link", fs::hard_link(&from, &to)),
            8 => ("write", write(&from, &mut rng)),
            9 => ("read", read(&from)),
            10 => ("list", list(&folder)),
            _ => ("stat", fs::metadata(&from).map(drop)),
        };
        count.fetch_add(1, Ordering::Relaxed);
        match result.err().and_then(|error| error.raw_os_error()) {
            None | Some(libc::ENOENT | libc::EEXIST) => {}
            Some(number) => {
                let error = io::Error::from_raw_os_error(number);
                return Err(format!("{what} {} {}: {error}", from.display(), to.display()));
            }
        }
    }
    Ok(())
}

fn write(path: &Path, rng: &mut Rng) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&vec![7; rng.below(5000) as usize])?;
    if rng.chance(1, 4) { file.set_len(rng.below(9000)) } else { Ok(()) }
}

fn read(path: &Path) -> io::Result<()> {
    let mut content = Vec::new();
    File::open(path)?.read_to_end(&mut content).map(drop)
}

fn list(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        entry?;
    }
    Ok(())
}

#[test]
fn each_others_files_at_full_speed() {
    at_full_speed("each other's files for 20 s", Duration::from_secs(20));
}

#[test]
#[ignore = "soak: a minute of the same"]
fn each_others_files_for_a_minute() {
    at_full_speed("each other's files for a minute", Duration::from_secs(60));
}
