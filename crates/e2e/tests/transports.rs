//! The two ways between the kernel and the client: over io_uring and over `/dev/fuse`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, needs_root};

const WAITERS: usize = 60;

/// The kernel's own word on whether it can.
fn kernel_has_uring() -> bool {
    fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok()
}

fn start(story: &Story) -> Cluster {
    Cluster::start(story, Shape { over_device: vec![1], ..Shape::mounts(2) })
}

/// Holds a lock on a file until it is ended.
fn hold(file: &Path) -> Child {
    let ready = file.with_extension("held");
    let script = format!("touch {} && exec sleep 60", ready.display());
    let holder =
        Command::new("flock").arg("--no-fork").arg(file).args(["sh", "-c", &script]).spawn().expect("flock(1)");
    let start = Instant::now();
    while !ready.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "the lock is not granted");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(ready).unwrap();
    holder
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn each_mount_says_which_way_it_takes() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("transports", Duration::from_secs(60));
    let cluster = start(&story);
    // The log comes a moment after the mount.
    let said = |index: usize| cluster.mount_log(index);
    while !(said(0).contains("is served") && said(1).contains("is served")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    if kernel_has_uring() {
        assert!(said(0).contains("is served over io_uring with"), "{}", said(0));
    }
    assert!(said(1).contains("is served over /dev/fuse with 8 threads"), "{}", said(1));
    fs::write(cluster.mount(0).join("file"), "seen").unwrap();
    assert_eq!(fs::read_to_string(cluster.mount(1).join("file")).unwrap(), "seen");
}

#[test]
fn a_signal_ends_a_wait_for_a_lock() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("interrupted locks", Duration::from_secs(60));
    let cluster = start(&story);
    for index in [0, 1] {
        let file = cluster.mount(index).join("file");
        fs::write(&file, "").unwrap();
        let holder = hold(&file);
        let start = Instant::now();
        let status = Command::new("timeout").args(["0.3", "flock"]).arg(&file).arg("true").status().unwrap();
        assert_eq!(status.code(), Some(124), "mount {index}");
        assert!(start.elapsed() < Duration::from_secs(10), "mount {index}: {:?}", start.elapsed());
        end(holder);
        assert!(Command::new("flock").arg(&file).arg("true").status().unwrap().success(), "nothing is left of it");
    }
}

/// Programs that wait for a lock hold up nobody else.
#[test]
fn waiting_for_locks_holds_nothing_up() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("many waiting locks", Duration::from_secs(90));
    let cluster = start(&story);
    for index in [0, 1] {
        let mount = cluster.mount(index);
        let file = mount.join(format!("file{index}"));
        fs::write(&file, "").unwrap();
        let holder = hold(&file);
        let waiter = || Command::new("flock").arg(&file).arg("true").stdout(Stdio::null()).spawn().unwrap();
        let mut waiters: Vec<Child> = (0..WAITERS).map(|_| waiter()).collect();
        std::thread::sleep(Duration::from_millis(300));
        for other in 0..100 {
            let other = mount.join(format!("other{other}"));
            fs::write(&other, "other").unwrap();
            assert_eq!(fs::read_to_string(&other).unwrap(), "other");
            fs::remove_file(&other).unwrap();
        }
        assert!(waiters.iter_mut().all(|waiter| waiter.try_wait().unwrap().is_none()), "the lock is still held");
        end(holder);
        for mut waiter in waiters {
            assert!(waiter.wait().unwrap().success(), "each gets the lock in its turn");
        }
    }
}
