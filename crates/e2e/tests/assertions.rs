//! An assertion fails in a running process: what it had answered is not lost, what it had not written is named, and nobody hangs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use e2e::faults::wait_for;
use e2e::{Cluster, Shape, Story, Which, needs_root};

/// An assertion fails, once.
const ASSERTION: &str = "0xf000";
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_target_stops_and_its_clients_replay() {
    if !needs_root() {
        return;
    }
    for which in [Which::Mdt(0), Which::Ost(0)] {
        let story = Story::begin(&format!("an assertion fails in {which:?}"), Duration::from_secs(60));
        let mut cluster = Cluster::start(&story, Shape::with_faults());
        cluster.await_mount();
        let folder = cluster.mount(0).join("d");
        fs::create_dir(&folder).unwrap();
        for n in 0..50 {
            fs::write(folder.join(format!("f{n}")), vec![n; 100_000]).unwrap();
        }
        cluster.set_on(which, "fail_loc", ASSERTION).ok();
        wait_for("the server ends", || !cluster.is_alive(which));
        let log = cluster.server_log(which);
        for text in ["an assertion failed at crates/target/src", "fail_loc asks for it", "report this as a bug"] {
            assert!(log.contains(text), "{text}:\n{log}");
        }
        let late = folder.join("late");
        let program = std::thread::spawn(move || fs::write(late, "waits for the server"));
        cluster.restart(which);
        program.join().unwrap().unwrap();
        for n in 0..50 {
            assert!(fs::read(folder.join(format!("f{n}"))).unwrap() == vec![n; 100_000], "f{n}");
        }
        assert!(!cluster.mount_log(0).contains("evict"), "{}", cluster.mount_log(0));
    }
}

#[test]
fn a_mount_answers_eio_names_what_is_lost_and_ends() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("an assertion fails in a mount", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape { mounts: 2, ..Shape::with_faults() });
    cluster.await_mount();
    let mount = cluster.mount(0).to_path_buf();
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/kept"), "durable").unwrap();
    fs::File::open(mount.join("d/kept")).unwrap().sync_all().unwrap();
    let lost = fs::File::create(mount.join("d/lost")).unwrap();
    lost.write_all_at(&[7; 300_000], 0).unwrap();
    lost.sync_all().unwrap();
    // It cannot be written back: its server is gone.
    cluster.kill9(Which::Ost(0));
    lost.write_all_at(&[8; 300_000], 0).unwrap();
    let waiting = std::thread::spawn(move || lost.sync_all());
    cluster.set_on_mount("fail_loc", ASSERTION);
    let refused = waiting.join().unwrap().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(5), "{refused}");
    let (status, log) = cluster.mount_ended(0, SOON).expect("its process ends");
    assert_eq!(status.code(), Some(1), "{log}");
    for text in [
        "an assertion failed at crates/client/src",
        "not written back: 300000 bytes of /d/lost",
        "get EIO",
        "report this as a bug",
    ] {
        assert!(log.contains(text), "{text}:\n{log}");
    }
    // Nothing lies there in its place: what programs write is not lost under the mount point.
    let not_connected = || fs::write(mount.join("d/more"), "x").is_err_and(|error| error.raw_os_error() == Some(107));
    wait_for("the mount point answers ENOTCONN", not_connected);
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
    cluster.restart(Which::Ost(0));
    cluster.mount_again(0);
    for place in cluster.mounts() {
        assert_eq!(fs::read_to_string(place.join("d/kept")).unwrap(), "durable");
    }
}
