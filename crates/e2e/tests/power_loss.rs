//! Power loss of everything at once, at the device: what LMDB had written and not synced is on the medium in part, in any
//! order. The state is then a prefix of what was done, at or beyond the last fsync.
//!
//! The metadata server is stopped (SIGSTOP) while it commits, and its data file copied. The pages that differ from a copy of
//! before are what power loss may take: of a commit that has not written its meta page, any of them; once that is
//! written, all others are synced, and the meta page alone may be missing. Then everything is killed, the target gets such
//! an image, and clients that remember nothing look at it.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, Which, adamant, needs_root, trees};
use rustix::process::{Pid, Signal, kill_process};
use stdx::Rng;

/// LMDB's pages.
const PAGE: usize = 4096;
/// The first two pages say which tree is the current one.
const METAS: usize = 2;
/// Enough of these have been caught in the middle.
const ENOUGH: usize = 2;
/// How often it is tried, at most.
const ROUNDS: u64 = 10;
/// Files that are made before somebody says fsync.
const FILES: u64 = 1_500;

/// What the program knows when the lights go out.
struct Known {
    /// Files that were there when an fsync began that was answered: they are durable.
    durable: u64,
    /// Files that were acknowledged, durable or not; one more may have been made.
    made: u64,
}

#[test]
fn a_commit_that_the_power_loss_met() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("power loss in a commit", Duration::from_secs(300));
    // No client comes back that could replay; and each image but the first lacks the start with the one before it.
    let serve_arguments = vec!["-o", "abort_recov,accept_old_store"];
    let shape = Shape { osts: 1, serve_arguments, ..Shape::mounts(1) };
    let mut cluster = Cluster::start(&story, shape);
    let mut rng = Rng::new(u64::from(std::process::id()));
    let (mut caught, mut images) = (0, 0);
    for round in 0..ROUNDS {
        let content = trees::bytes(round, 3_000);
        let synced = format!("synced{round}");
        let file = File::create(cluster.mount(0).join(&synced)).unwrap();
        std::io::Write::write_all(&mut &file, &content).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let folder = format!("round{round}");
        fs::create_dir(cluster.mount(0).join(&folder)).unwrap();
        let (before, after, known) = lights_out(&mut cluster, &folder, &mut rng);
        let variants = variants(&before, &after, known.durable > 0, &mut rng);
        caught += usize::from(is_in_the_middle(&before, &after));
        for image in variants {
            images += 1;
            cluster.kill9_all();
            install(cluster.place(Which::Mdt(0)), &image);
            cluster.start_all();
            check(cluster.mount(0), &folder, &known);
            assert_eq!(fs::read(cluster.mount(0).join(&synced)).unwrap(), content, "it was synced before");
        }
        fs::write(cluster.mount(0).join(&folder).join("goes on"), "x").unwrap();
        if caught >= ENOUGH {
            break;
        }
    }
    story.note(&format!("{images} images, {caught} commits met before their meta page was written"));
    assert!(images > 0);
}

/// A program makes files while another says fsync; the server is stopped somewhere in that. Gives the medium as it was
/// before, synced, and as it is.
fn lights_out(cluster: &mut Cluster, folder: &str, rng: &mut Rng) -> (Vec<u8>, Vec<u8>, Known) {
    let mount = cluster.mount(0).to_path_buf();
    File::open(&mount).unwrap().sync_all().unwrap();
    let interval = format!("mdt.{}.commit_interval_ms=60000", cluster.target_name(Which::Mdt(0)));
    adamant(["lctl", "set_param", &interval]).ok();
    let data = cluster.place(Which::Mdt(0)).join("data.mdb");
    let before = fs::read(&data).unwrap();

    let (made, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let maker = {
        let (made, over, place) = (made.clone(), over.clone(), mount.join(folder));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let number = made.load(Ordering::Relaxed);
                if File::create_new(place.join(format!("f{number}"))).is_err() {
                    return;
                }
                made.store(number + 1, Ordering::Relaxed);
            }
        })
    };
    let start = Instant::now();
    while made.load(Ordering::Relaxed) < FILES {
        assert!(start.elapsed() < Duration::from_secs(60) && !maker.is_finished(), "too slow");
        std::thread::sleep(Duration::from_millis(1));
    }
    let durable = Arc::new(AtomicU64::new(0));
    let syncer = {
        let (made, durable) = (made.clone(), durable.clone());
        std::thread::spawn(move || {
            let before = made.load(Ordering::Relaxed);
            if File::open(&mount).and_then(|root| root.sync_all()).is_ok() {
                durable.store(before, Ordering::Relaxed);
            }
        })
    };
    std::thread::sleep(Duration::from_micros(rng.below(30_000)));
    stop(cluster.server_pid(Which::Mdt(0)));
    // What it said before it was stopped arrives.
    std::thread::sleep(Duration::from_millis(100));
    let known = Known { durable: durable.load(Ordering::Relaxed), made: made.load(Ordering::Relaxed) };
    let after = fs::read(&data).unwrap();
    over.store(true, Ordering::Relaxed);
    cluster.kill9_all();
    drop((maker.join(), syncer.join()));
    (before, after, known)
}

/// Stops a process and waits until it stands still.
fn stop(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    let start = Instant::now();
    let stands = |task: &Path| {
        let text = fs::read_to_string(task.join("stat")).unwrap_or_default();
        text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    while !fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(|task| stands(&task.path())) {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn page(image: &[u8], number: usize) -> &[u8] {
    let start = (number * PAGE).min(image.len());
    &image[start..(start + PAGE).min(image.len())]
}

/// Pages that differ; beyond its end a file is zeros.
fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
    let differs = |number: &usize| {
        let (a, b) = (page(before, *number), page(after, *number));
        let common = a.len().min(b.len());
        a[..common] != b[..common] || a[common..].iter().chain(&b[common..]).any(|byte| *byte != 0)
    };
    (0..before.len().max(after.len()).div_ceil(PAGE)).filter(differs).collect()
}

fn is_in_the_middle(before: &[u8], after: &[u8]) -> bool {
    let changed = changed(before, after);
    !changed.is_empty() && changed.iter().all(|number| *number >= METAS)
}

/// `after`, with these pages as they were.
fn without(before: &[u8], after: &[u8], lost: &[usize]) -> Vec<u8> {
    let mut image = after.to_vec();
    for number in lost {
        let start = number * PAGE;
        let end = (start + PAGE).min(image.len());
        for (at, byte) in image[start.min(end)..end].iter_mut().enumerate() {
            *byte = before.get(start + at).copied().unwrap_or(0);
        }
    }
    image
}

/// What may be on the medium; everything that was written before an fsync was answered is.
fn variants(before: &[u8], after: &[u8], answered: bool, rng: &mut Rng) -> Vec<Vec<u8>> {
    let changed = changed(before, after);
    let metas: Vec<usize> = changed.iter().copied().filter(|number| *number < METAS).collect();
    let mut images = vec![after.to_vec()];
    match metas.len() {
        // Nothing of the commit counts yet: whatever of it is there.
        0 => {
            let shares = [1, 2, 5];
            images.extend(shares.map(|share| {
                let lost: Vec<usize> = changed.iter().copied().filter(|_| rng.chance(share, 6)).collect();
                without(before, after, &lost)
            }));
        }
        // Written, and perhaps not synced.
        1 if !answered => images.push(without(before, after, &metas)),
        // All is synced; or there were two commits, and of the first all is.
        _ => {}
    }
    images
}

fn install(target: &Path, image: &[u8]) {
    fs::write(target.join("data.mdb"), image).unwrap();
    let _ = fs::remove_file(target.join("lock.mdb"));
}

/// The files are the first ones that were made, at least those that are durable.
#[track_caller]
fn check(mount: &Path, folder: &str, known: &Known) {
    let place = mount.join(folder);
    let count = match fs::read_dir(&place) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>().unwrap().len() as u64,
        Err(error) => {
            assert!(known.durable == 0, "the folder of {} durable files: {error}", known.durable);
            fs::create_dir(&place).unwrap();
            0
        }
    };
    let Known { durable, made } = *known;
    assert!((durable..=made + 1).contains(&count), "{count} files, of {made}, {durable} of them durable");
    for number in 0..count {
        let about = fs::symlink_metadata(place.join(format!("f{number}")));
        assert!(about.is_ok_and(|about| about.is_file()), "f{number} is missing, and there are {count}: no prefix");
    }
}
