//! Cases of Lustre's conf-sanity by their numbers: how many changes a client has in flight (86c is in `slots.rs`).

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use e2e::faults::{begin_chmod, chmod, mode, wait_for};
use e2e::{Cluster, Shape, Story, Which, needs_root};

const REINT_MULTI_NET: u32 = 0x159;

/// What was lost is sent again after this: shorter than it would be otherwise, so that the cases need not wait for long, and
/// longer than everything that has to happen before, even on a loaded machine.
const RESEND: Duration = Duration::from_secs(5);
/// Long enough for a change to be made if it could leave, and much shorter than [`RESEND`].
const A_WHILE: Duration = Duration::from_secs(1);

/// So many files in a new directory.
fn files(cluster: &Cluster, name: &str, count: usize) -> Vec<PathBuf> {
    let folder = cluster.mount(0).join(name);
    std::fs::create_dir(&folder).unwrap();
    let files: Vec<PathBuf> = (1..=count).map(|at| folder.join(format!("file-{at}"))).collect();
    for file in &files {
        std::fs::write(file, b"").unwrap();
        chmod(0o644, file);
    }
    wait_for("nothing is in flight", || cluster.in_flight() == 0);
    files
}

/// Processes that change modes and whose requests are lost: each holds a slot until it sends again.
fn stuck(cluster: &Cluster, to: u32, files: &[PathBuf]) -> Vec<JoinHandle<()>> {
    cluster.fail_loc(REINT_MULTI_NET);
    let stuck = files.iter().map(|file| begin_chmod(to, file.clone())).collect();
    wait_for("they hold their slots", || cluster.in_flight() == files.len());
    cluster.fail_loc(0);
    stuck
}

fn wait_for_all(processes: Vec<JoinHandle<()>>, to: u32, files: &[PathBuf]) {
    for process in processes {
        process.join().expect("chmod succeeds");
    }
    for file in files {
        assert_eq!(mode(file), to, "{}", file.display());
    }
}

/// Exactly `count` changes are in flight at most.
fn in_flight_is_enforced(cluster: &Cluster, name: &str, count: usize) {
    let files = files(cluster, name, count + 1);
    let (last, beyond) = (&files[count - 1], &files[count]);

    let waiting = stuck(cluster, 0o600, &files[..count - 1]);
    chmod(0o600, last);
    assert_eq!(mode(last), 0o600);
    assert_eq!(cluster.in_flight(), count - 1, "the others are still in flight: the last slot was free");
    wait_for_all(waiting, 0o600, &files[..count]);

    let mut waiting = stuck(cluster, 0o666, &files[..count]);
    waiting.push(begin_chmod(0o666, beyond.clone()));
    std::thread::sleep(A_WHILE);
    assert_eq!(mode(beyond), 0o644, "there is no slot for it");
    assert_eq!(cluster.in_flight(), count);
    wait_for_all(waiting, 0o666, &files);
}

fn set(cluster: &Cluster, name: &str, value: usize) {
    cluster.set_on_mount(&cluster.mdc(name), &value.to_string());
}

#[test]
fn conf_sanity_86a_changes_in_flight_are_limited() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("conf-sanity 86a", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::with_faults());
    cluster.resend_after(RESEND);
    in_flight_is_enforced(&cluster, "d", cluster.slots());
}

#[test]
fn conf_sanity_86b_changes_in_flight_are_limited_after_an_update() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("conf-sanity 86b", Duration::from_secs(240));
    let mut cluster = Cluster::start(&story, Shape::with_faults());
    cluster.resend_after(RESEND);
    for count in [1, 5] {
        set(&cluster, "max_mod_rpcs_in_flight", count);
        in_flight_is_enforced(&cluster, &format!("d{count}"), count);
    }
    // More than the target offers takes a new offer, which clients hear of when they connect.
    let offer = cluster.get_on(Which::Mdt, "mdt.*.max_mod_rpcs_in_flight");
    cluster.unmount(0);
    cluster.set_on(Which::Mdt, "mdt.*.max_mod_rpcs_in_flight", "16").ok();
    cluster.mount_again(0);
    cluster.resend_after(RESEND);
    set(&cluster, "max_rpcs_in_flight", 17);
    set(&cluster, "max_mod_rpcs_in_flight", 16);
    in_flight_is_enforced(&cluster, "d16", 16);
    cluster.set_on(Which::Mdt, "mdt.*.max_mod_rpcs_in_flight", &offer).ok();
}

/// Gives unused locks back, which in Lustre sends a close that was delayed under a lock.
fn cancel_locks(cluster: &Cluster) {
    cluster.set_on_mount(&format!("ldlm.namespaces.{}-MDT0000-mdc*.lru_size", cluster.fsname), "clear");
}

#[test]
fn conf_sanity_86d_one_close_is_allowed_above_the_limit() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("conf-sanity 86d", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::with_faults());
    cluster.resend_after(RESEND);
    let files = files(&cluster, "d", cluster.slots());
    let open = |path: &Path| std::fs::File::create(path).unwrap();
    let file = open(&cluster.mount(0).join("file-close"));
    wait_for("one file is open", || cluster.open_files() == 1 && cluster.in_flight() == 0);
    let waiting = stuck(&cluster, 0o600, &files);
    drop(file);
    cancel_locks(&cluster);
    wait_for("the close has passed", || cluster.open_files() == 0);
    wait_for("and has its answer", || cluster.in_flight() == files.len());
    assert!(waiting.iter().all(|process| !process.is_finished()), "all slots were taken meanwhile");
    wait_for_all(waiting, 0o600, &files);
}
