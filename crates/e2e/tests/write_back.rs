//! Metadata write-back, through real mounts: no request of its own for each, the same for everybody, nothing lost
//! that was promised.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use e2e::system::{self, Mapping};
use e2e::{Cluster, Shape, Story, Which, adamant, needs_root, trees};
use rustix::process::{Pid, Signal, kill_process};

/// Mounts that all write metadata back.
fn mounts(count: usize) -> Shape {
    Shape { osts: 1, ..Shape::mounts(count) }
}

/// How often the first mount has sent a kind of request to the metadata target.
fn sent(cluster: &Cluster, request: &str) -> u64 {
    let text = cluster.mdc_parameter("stats");
    let line = text.lines().find_map(|line| line.strip_prefix(request));
    line.map_or(0, |line| line.split_whitespace().next().expect("a number").parse().expect("a number"))
}

fn names(folder: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn a_tree_is_made_in_batches_and_seen_by_all() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a tree by metadata write-back", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape { sync_metadata: vec![1], ..mounts(2) });
    let (a, b) = (cluster.mount(0).join("tree"), cluster.mount(1).join("tree"));
    fs::create_dir(&a).unwrap();
    trees::make(&a, 7, 400).unwrap();
    let (alone, batches) = (sent(&cluster, "mds_reint"), sent(&cluster, "mds_batch"));
    story.note(&format!("400 files: {batches} batches, {alone} changes alone"));
    assert!(batches > 0 && alone < 200, "{batches} batches, {alone} changes alone");
    trees::assert_equal(&a, &b);
    fs::remove_dir_all(&b).unwrap();
    assert!(!a.exists() && names(cluster.mount(0)).is_empty());
}

#[test]
fn two_mounts_take_turns_in_one_directory() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("turns", Duration::from_secs(120));
    let cluster = Cluster::start(&story, mounts(2));
    let folder = |mount: usize| cluster.mount(mount).join("shared");
    fs::create_dir(folder(0)).unwrap();
    let mut all = Vec::new();
    for turn in 0..40 {
        let mount = turn % 2;
        for at in 0..turn {
            let name = format!("{turn:02}-{at:02}");
            fs::write(folder(mount).join(&name), &name).unwrap();
            all.push(name);
        }
        if turn % 5 == 4 {
            let gone = all.remove(all.len() / 2);
            fs::remove_file(folder(1 - mount).join(gone)).unwrap();
        }
        assert_eq!(names(&folder(1 - mount)), all, "after turn {turn}");
    }
    for name in &all {
        assert_eq!(&fs::read_to_string(folder(0).join(name)).unwrap(), name);
    }
}

/// The server is killed again and again under programs that make and remove files: everything that they were told is so, once.
#[test]
fn nothing_is_lost_or_done_twice_when_the_server_is_killed() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("kills under write-back", Duration::from_secs(240));
    let mut cluster = Cluster::start(&story, mounts(2));
    let over = &AtomicBool::new(false);
    let places: Vec<_> = (0..4).map(|at| cluster.mount(at % 2).join(format!("p{at}"))).collect();
    std::thread::scope(|scope| {
        let workers: Vec<_> = places
            .iter()
            .map(|place| {
                scope.spawn(move || {
                    fs::create_dir(place).unwrap();
                    let mut kept = Vec::new();
                    for at in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = format!("f{at}");
                        File::create_new(place.join(&name)).unwrap();
                        match at % 3 {
                            0 => fs::remove_file(place.join(&name)).unwrap(),
                            1 => kept.push(name),
                            _ => {
                                fs::rename(place.join(&name), place.join(format!("r{at}"))).unwrap();
                                kept.push(format!("r{at}"));
                            }
                        }
                    }
                    kept.sort();
                    kept
                })
            })
            .collect();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(700));
            cluster.kill9(Which::Mdt(0));
            cluster.restart(Which::Mdt(0));
        }
        over.store(true, Ordering::Relaxed);
        let kept: Vec<Vec<String>> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        for (place, kept) in places.iter().zip(&kept) {
            assert!(!kept.is_empty());
            assert_eq!(&names(place), kept);
            let other =
                cluster.mount(usize::from(place.starts_with(cluster.mount(0)))).join(place.file_name().unwrap());
            assert_eq!(&names(&other), kept, "seen through the other mount");
        }
    });
}

/// A mount that dies takes with it what was not synced: the last of what its program did, and nothing before that.
#[test]
fn a_mount_that_dies_leaves_a_prefix_at_or_beyond_the_last_sync() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a death under write-back", Duration::from_secs(240));
    let shape = Shape { serve_arguments: vec!["-o", "recovery_time_soft=3"], ..mounts(2) };
    let mut cluster = Cluster::start(&story, shape);
    let (synced, made) = (AtomicU64::new(0), AtomicU64::new(0));
    let place = cluster.mount(0).join("d");
    fs::create_dir(&place).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0_u64.. {
                if File::create_new(place.join(format!("f{at:06}"))).is_err() {
                    break;
                }
                made.store(at + 1, Ordering::SeqCst);
                if at % 500 == 499 && File::open(&place).is_ok_and(|folder| folder.sync_all().is_ok()) {
                    synced.store(at + 1, Ordering::SeqCst);
                }
            }
        });
        e2e::faults::wait_for("two syncs", || synced.load(Ordering::SeqCst) >= 1000);
        std::thread::sleep(Duration::from_millis(13));
        cluster.kill9_mount(0);
    });
    let (synced, made) = (synced.load(Ordering::SeqCst), made.load(Ordering::SeqCst));
    let found = names(&cluster.mount(1).join("d"));
    story.note(&format!("{synced} were synced, {} are there, {made} were made", found.len()));
    let prefix: Vec<String> = (0..found.len()).map(|at| format!("f{at:06}")).collect();
    assert_eq!(found, prefix, "no gap");
    assert!((synced..=made + 1).contains(&(found.len() as u64)), "{} of {made}, {synced} synced", found.len());
}

/// An unmount, and right after it the signal that ends processes: what programs had written is on its way then.
#[test]
fn a_mount_that_is_told_to_end_while_it_unmounts_loses_nothing() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("told to end while it unmounts", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, mounts(2));
    for round in 0..3 {
        let name = format!("r{round}");
        let place = cluster.mount(0).join(&name);
        fs::create_dir(&place).unwrap();
        for at in 0..300 {
            fs::write(place.join(format!("f{at}")), format!("{round} {at}")).unwrap();
        }
        fs::write(place.join("large"), vec![round; 8 << 20]).unwrap();
        cluster.unmount_and_terminate(0);
        let there = cluster.mount(1).join(&name);
        for at in 0..300 {
            assert_eq!(fs::read_to_string(there.join(format!("f{at}"))).unwrap(), format!("{round} {at}"));
        }
        assert!(fs::read(there.join("large")).unwrap() == vec![round; 8 << 20]);
        cluster.mount_again(0);
    }
}

/// States and identities of the clients of a file system on this machine.
fn clients(cluster: &Cluster) -> Vec<(String, String)> {
    let text = adamant(["lctl", "dl"]).ok();
    let name = format!("{}-client", cluster.fsname);
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|words| words.len() > 4 && words[3] == name);
    ours.map(|words| (words[1].to_owned(), words[4].to_owned())).collect()
}

/// A mount is taken away and made again while its object target hangs: the first process still writes back, and who asks for the
/// place means the second.
#[test]
fn a_mount_in_the_place_of_one_that_writes_back_is_the_one_that_is_meant() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a mount in the place of one that writes back", Duration::from_secs(120));
    let cluster = Cluster::start(&story, mounts(0));
    let place = story.folder().join("place");
    fs::create_dir(&place).unwrap();
    let (source, shown) = (cluster.source(), place.display().to_string());
    adamant(["mount", &source, &shown]).ok();
    let data: Vec<u8> = (0..6 << 20).map(|at| (at % 251) as u8).collect();
    fs::write(place.join("large"), &data).unwrap();
    let object_target = Pid::from_raw(cluster.server_pid(Which::Ost(0)) as i32).unwrap();
    kill_process(object_target, Signal::STOP).unwrap();
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
    adamant(["mount", &source, &shown]).ok();
    let mut known = clients(&cluster);
    known.sort();
    let states: Vec<&str> = known.iter().map(|(state, _)| state.as_str()).collect();
    assert_eq!(states, ["ST", "UP"]);
    for _ in 0..20 {
        let asked = adamant(["lctl", "--device", &shown, "get_param", "-n", "llite.*.uuid"]).ok();
        assert_eq!(asked.trim(), known[1].1);
    }
    kill_process(object_target, Signal::CONT).unwrap();
    let start = Instant::now();
    while clients(&cluster).len() > 1 {
        assert!(start.elapsed() < Duration::from_secs(30), "the first mount does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(fs::read(place.join("large")).unwrap() == data, "what was written before the unmount is there");
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
}

/// A program that goes on using the mount holds up neither what was written before nor the end.
#[test]
fn a_mount_in_use_that_is_told_to_end_writes_everything_back() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("told to end while it is used", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, mounts(2));
    let place = cluster.mount(0).join("used");
    fs::create_dir(&place).unwrap();
    for at in 0..300 {
        fs::write(place.join(format!("f{at}")), format!("small {at}")).unwrap();
    }
    let mut open = File::create_new(place.join("open")).unwrap();
    open.write_all(&vec![7; 8 << 20]).unwrap();
    let mapped = File::options().read(true).write(true).create_new(true).open(place.join("mapped")).unwrap();
    let pages: Vec<u8> = (0..4 << 20).map(|at: u32| (at / 4096 % 251) as u8).collect();
    mapped.set_len(pages.len() as u64).unwrap();
    let mapping = Mapping::new(&mapped, pages.len()).unwrap();
    mapping.write(0, &pages);
    let both = |folder: &Path| File::options().read(true).write(true).open(folder.join("f0")).unwrap();
    let (waits, holds) = (both(&place), both(&cluster.mount(1).join("used")));
    system::try_lock(&holds, system::RecordLock::Exclusive, 0, 1).unwrap();
    let waiter = std::thread::spawn(move || system::wait_lock(&waits, system::RecordLock::Exclusive, 0, 1));
    std::thread::sleep(Duration::from_millis(300));

    cluster.terminate_mount(0);
    let (status, log) = cluster.mount_ended(0, Duration::from_secs(30)).expect("the mount ends");
    assert!(status.success() && log.contains("while programs use it"), "{status}:\n{log}");
    assert!(open.write_all(b"more").is_err() && waiter.join().unwrap().is_err());
    let there = cluster.mount(1).join("used");
    for at in 0..300 {
        assert_eq!(fs::read_to_string(there.join(format!("f{at}"))).unwrap(), format!("small {at}"));
    }
    assert!(fs::read(there.join("open")).unwrap() == vec![7; 8 << 20]);
    assert!(fs::read(there.join("mapped")).unwrap() == pages, "what was in the kernel only is lost");
    assert!(!e2e::story::is_mounted(cluster.mount(0)), "the directory is free");
    drop((open, mapped, mapping, holds));
    cluster.mount_again(0);
    assert_eq!(fs::read(place.join("open")).unwrap().len(), 8 << 20);
}

/// Its object target hangs: it waits for that, until it is told once more.
#[test]
fn a_mount_in_use_that_is_told_twice_to_end_ends_at_once_and_says_so() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("told twice to end", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, mounts(1));
    let mut open = File::create_new(cluster.mount(0).join("open")).unwrap();
    open.write_all(&vec![7; 6 << 20]).unwrap();
    let object_target = Pid::from_raw(cluster.server_pid(Which::Ost(0)) as i32).unwrap();
    kill_process(object_target, Signal::STOP).unwrap();
    cluster.terminate_mount(0);
    assert_eq!(cluster.mount_ended(0, Duration::from_secs(3)), None, "it still writes back");
    cluster.terminate_mount(0);
    let (status, log) = cluster.mount_ended(0, Duration::from_secs(3)).expect("the mount ends");
    kill_process(object_target, Signal::CONT).unwrap();
    assert!(status.code() == Some(1) && log.contains("is lost"), "{status}:\n{log}");
    drop(open);
    e2e::story::take_away(cluster.mount(0));
}
