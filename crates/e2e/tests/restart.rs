//! kill -9 of servers under load: programs notice a pause and nothing else.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use e2e::load::{self, Load};
use e2e::system::{self, RecordLock};
use e2e::{Cluster, Shape, Story, Which, needs_root, trees};

/// The longest pause that a program may see when a server is started again at once: its restart, the clients' replay.
const PAUSE: Duration = Duration::from_secs(5);
/// How long clients may need until they are at work again.
const BACK: Duration = Duration::from_secs(30);

/// Kills these servers again and again under load and looks for every acknowledged operation.
fn under_load(name: &str, rounds: u32, victims: &[Which]) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(name, Duration::from_secs(60 + 20 * u64::from(rounds)));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let load = Load::start(&cluster.mounts(), 2, 1);
    load.await_progress(200, BACK);
    for round in 0..rounds {
        for victim in victims {
            cluster.kill9(*victim);
        }
        // Now and then the server is away for longer, so that clients meet a closed door.
        if round % 3 == 2 {
            std::thread::sleep(Duration::from_millis(700));
        }
        for victim in victims {
            cluster.restart(*victim);
        }
        load.await_progress(150, BACK);
        std::thread::sleep(Duration::from_millis(150 * u64::from(round % 4)));
    }
    let worked = load.stop();
    let longest = load::longest(&worked);
    story.note(&format!("{} operations, {rounds} kills, longest pause {longest:.2?}", load::operations(&worked)));
    // Through both mounts, and through a new one that remembers nothing.
    for mount in cluster.mounts() {
        load::verify(&worked, &mount);
    }
    cluster.unmount(0);
    cluster.mount_again(0);
    load::verify(&worked, cluster.mount(0));
    assert!(longest < PAUSE, "the longest pause was {longest:?}");
}

#[test]
fn the_metadata_server_under_load() {
    under_load("kill -9 of the MDT", 8, &[Which::Mdt(0)]);
}

#[test]
fn an_object_server_under_load() {
    under_load("kill -9 of an OST", 6, &[Which::Ost(0)]);
}

#[test]
fn the_configuration_server_under_load() {
    under_load("kill -9 of the MGT", 3, &[Which::Mgt]);
}

#[test]
fn all_servers_at_once_under_load() {
    under_load("kill -9 of all servers", 4, &[Which::Mgt, Which::Mdt(0), Which::Ost(0), Which::Ost(1)]);
}

#[test]
#[ignore = "soak: many more kills"]
fn the_metadata_server_many_times() {
    under_load("kill -9 of the MDT, many times", 60, &[Which::Mdt(0)]);
    under_load("kill -9 of all servers, many times", 30, &[Which::Mgt, Which::Mdt(0), Which::Ost(0), Which::Ost(1)]);
}

/// Stopping and starting as an administrator does is no different for programs.
#[test]
fn a_clean_stop_under_load() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("clean restarts", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let load = Load::start(&cluster.mounts(), 2, 2);
    load.await_progress(100, BACK);
    for target in cluster.targets() {
        cluster.stop(target);
        cluster.restart(target);
        load.await_progress(100, BACK);
    }
    let worked = load.stop();
    story.note(&format!("longest pause {:.2?}", load::longest(&worked)));
    load::verify(&worked, cluster.mount(1));
}

/// Files that were open go on: read, written, without a name too, with the locks that they held.
#[test]
fn open_files_go_on() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("open files over a kill", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let (a, b) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let everything = [Which::Mgt, Which::Mdt(0), Which::Ost(0), Which::Ost(1)];
    for victims in [&[Which::Mdt(0)][..], &everything[..]] {
        for size in [500usize, 500_000] {
            let content = trees::bytes(3, size);
            for name in ["named", "nameless", "locked"] {
                fs::write(a.join(name), &content).unwrap();
            }
            let open = |name: &str| OpenOptions::new().read(true).write(true).open(a.join(name)).unwrap();
            let (named, nameless, locked) = (open("named"), open("nameless"), open("locked"));
            fs::remove_file(a.join("nameless")).unwrap();
            named.write_all_at(b"before", 0).unwrap();
            system::try_lock(&locked, RecordLock::Exclusive, 10, 10).unwrap();
            rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();

            for victim in victims {
                cluster.kill9(*victim);
            }
            for victim in victims {
                cluster.restart(*victim);
            }

            let start = Instant::now();
            named.write_all_at(b"after", 100).unwrap();
            nameless.write_all_at(b"after", 100).unwrap();
            assert!(start.elapsed() < PAUSE, "{:?}", start.elapsed());
            let mut expected = content.clone();
            expected[100..105].copy_from_slice(b"after");
            let mut found = vec![0; size];
            nameless.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, expected, "the file without a name, {size} bytes");
            assert_eq!(nameless.metadata().unwrap().nlink(), 0);
            expected[..6].copy_from_slice(b"before");
            named.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, expected, "the file with a name, {size} bytes");
            assert_eq!(fs::read(b.join("named")).unwrap(), expected, "through the other mount, {size} bytes");

            let there = OpenOptions::new().read(true).write(true).open(b.join("locked")).unwrap();
            assert!(system::try_lock(&there, RecordLock::Exclusive, 12, 1).is_err(), "the record lock is lost");
            system::try_lock(&there, RecordLock::Exclusive, 30, 1).unwrap();
            let flock = rustix::fs::flock(&there, rustix::fs::FlockOperation::NonBlockingLockExclusive);
            assert_eq!(flock, Err(rustix::io::Errno::WOULDBLOCK), "the flock is lost");
            drop(locked);
            system::try_lock(&there, RecordLock::Exclusive, 12, 1).unwrap();
            drop((named, nameless, there));
            fs::remove_file(b.join("named")).unwrap();
            fs::remove_file(b.join("locked")).unwrap();
        }
    }
}

/// A file without a name that nobody has open any more is gone for good, and its space comes back.
#[test]
fn the_space_of_removed_files_comes_back() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("space after a kill", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_path_buf();
    let data_files = |cluster: &Cluster| -> usize {
        [Which::Ost(0), Which::Ost(1)].iter().map(|ost| count_files(&cluster.place(*ost).join("objects"))).sum()
    };
    for number in 0..20 {
        let file = fs::File::create(mount.join(format!("f{number}"))).unwrap();
        file.write_all_at(&trees::bytes(number, 200_000), 0).unwrap();
        file.sync_all().unwrap();
    }
    assert!(data_files(&cluster) >= 20, "{} data files", data_files(&cluster));
    let kept: Vec<_> = (0..5).map(|number| fs::File::open(mount.join(format!("f{number}"))).unwrap()).collect();
    for number in 0..20 {
        fs::remove_file(mount.join(format!("f{number}"))).unwrap();
    }
    cluster.kill9(Which::Mdt(0));
    cluster.kill9(Which::Ost(1));
    cluster.restart(Which::Ost(1));
    cluster.restart(Which::Mdt(0));
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    for file in &kept {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 199_999).unwrap();
    }
    drop(kept);
    // The destroys follow the commit, which follows within seconds.
    let start = Instant::now();
    while data_files(&cluster) > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{} data files are left", data_files(&cluster));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn count_files(folder: &std::path::Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

/// What was fsynced is there after everything died at once, clients too.
#[test]
fn synced_data_survives_the_death_of_everything() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("fsync, then everything dies", Duration::from_secs(120));
    // No client comes back that could replay: the window passes unused, so it is short.
    let serve_arguments = vec!["-o", "recovery_time_soft=1,recovery_time_hard=2"];
    let mut cluster = Cluster::start(&story, Shape { serve_arguments, ..Shape::mounts(2) });
    for round in 0..3u64 {
        let mount = cluster.mount(0).to_path_buf();
        let folder = mount.join(format!("round{round}"));
        fs::create_dir(&folder).unwrap();
        let mut synced = Vec::new();
        for number in 0..12u64 {
            let size = [0, 10, 5000, 65_536, 70_000, 900_000][(number % 6) as usize];
            let content = trees::bytes(round * 100 + number, size);
            let name = format!("f{number}");
            let file = fs::File::create(folder.join(&name)).unwrap();
            file.write_all_at(&content, 0).unwrap();
            file.sync_all().unwrap();
            synced.push((name, content));
        }
        // A rename made durable by its folder's fsync.
        fs::rename(folder.join("f0"), folder.join("renamed")).unwrap();
        fs::File::open(&folder).unwrap().sync_all().unwrap();
        synced[0].0 = "renamed".to_owned();
        // And work that nobody asked to be safe, while the lights go out.
        let load = Load::start(&[cluster.mount(1).to_path_buf()], 2, round + 10);
        load.await_progress(30, BACK);
        let file = fs::File::create(folder.join("last")).unwrap();
        file.write_all_at(b"the last word", 0).unwrap();
        file.sync_data().unwrap();
        synced.push(("last".to_owned(), b"the last word".to_vec()));
        cluster.kill9_all();
        drop(file);
        load.abandon();

        cluster.start_all();
        let folder = cluster.mount(1).join(format!("round{round}"));
        for (name, content) in &synced {
            let found = fs::read(folder.join(name)).unwrap_or_else(|error| panic!("round {round}: {name}: {error}"));
            assert!(found == *content, "round {round}: {}", e2e::model::first_difference(name, &found, content));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), synced.len(), "round {round}");
        // It can be worked with, too.
        fs::write(folder.join("f1"), "again").unwrap();
        fs::remove_dir_all(cluster.mount(0).join(format!("round{round}"))).unwrap();
    }
}

/// A server that nobody starts again: programs wait, and go on when it is there after all.
#[test]
fn programs_wait_while_a_server_is_away() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a server is away for a while", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let path = cluster.mount(0).join("f");
    fs::write(&path, "x").unwrap();
    cluster.kill9(Which::Mdt(0));
    let waiting = std::thread::spawn(move || {
        let start = Instant::now();
        fs::write(path.with_file_name("g"), "y").unwrap();
        start.elapsed()
    });
    std::thread::sleep(Duration::from_secs(3));
    assert!(!waiting.is_finished(), "it must wait");
    let back = Instant::now();
    cluster.restart(Which::Mdt(0));
    let waited = waiting.join().unwrap();
    let after = back.elapsed();
    story.note(&format!("waited {waited:.2?}, of it {after:.2?} after the start of the server"));
    assert!(after < PAUSE, "{after:?} after the server came back");
}

/// With `-o soft` they get an error instead.
#[test]
fn soft_mounts_give_up() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a soft mount", Duration::from_secs(90));
    let shape = Shape { mount_options: vec!["soft=2"], ..Shape::default() };
    let mut cluster = Cluster::start(&story, shape);
    let mount = cluster.mount(0).to_path_buf();
    fs::write(mount.join("f"), "x").unwrap();
    cluster.kill9(Which::Mdt(0));
    let start = Instant::now();
    let error = fs::write(mount.join("g"), "y").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    cluster.restart(Which::Mdt(0));
    let start = Instant::now();
    while fs::write(mount.join("h"), "z").is_err() {
        assert!(start.elapsed() < BACK, "it does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fs::read_to_string(mount.join("h")).unwrap(), "z");
}
