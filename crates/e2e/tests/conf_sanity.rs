//! Cases of Lustre's conf-sanity by their numbers: how many changes a client has in flight (86c is in `slots.rs`).
//!
//! Each case is played in both modes. Changes of metadata write-back take one slot together, however many they are;
//! those of files that another mount has made take one each, as in Lustre.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use e2e::faults::{Mode, Multiop, begin_chmod, chmod, finish_chmods, mode, wait_for};
use e2e::{Cluster, Shape, Story, Which, needs_root};

const REINT_MULTI_NET: u32 = 0x159;

/// What was lost is sent again after this: shorter than it would be otherwise, so that the cases need not wait for long, and
/// longer than everything that has to happen before, even on a loaded machine.
const RESEND: Duration = Duration::from_secs(5);
/// Long enough for a change to be made if it could leave, and much shorter than [`RESEND`].
const A_WHILE: Duration = Duration::from_secs(1);

/// Processes that change modes and whose requests are lost: each holds a slot until it sends again.
fn stuck(cluster: &Cluster, to: u32, files: &[PathBuf]) -> Vec<JoinHandle<()>> {
    let stuck = cluster.begin_chmods(REINT_MULTI_NET, to, files);
    cluster.fail_loc(0);
    stuck
}

/// Exactly `count` changes are in flight at most.
fn in_flight_is_enforced(cluster: &Cluster, name: &str, count: usize) {
    let files = cluster.make_files(name, count + 1);
    let (last, beyond) = (&files[count - 1], &files[count]);

    let waiting = stuck(cluster, 0o600, &files[..count - 1]);
    chmod(0o600, last);
    assert_eq!(mode(last), 0o600);
    assert_eq!(cluster.in_flight(), count - 1, "the others are still in flight: the last slot was free");
    finish_chmods(waiting, 0o600, &files[..count]);

    let mut waiting = stuck(cluster, 0o666, &files[..count]);
    waiting.push(begin_chmod(0o666, beyond.clone()));
    std::thread::sleep(A_WHILE);
    assert_eq!(mode(beyond), 0o644, "there is no slot for it");
    assert_eq!(cluster.in_flight(), count);
    finish_chmods(waiting, 0o666, &files);
}

/// Changes of the mount's own files do not wait for each other, nor for the slots that they would need one by one.
fn many_take_one_slot(cluster: &Cluster, name: &str) {
    let files = cluster.make_own_files(name, 2 * cluster.slots() + 3);
    cluster.chmod_behind(REINT_MULTI_NET, 0o600, &files);
    assert!(files.iter().all(|file| mode(file) == 0o600), "the programs see what they did");
    cluster.fail_loc(0);
    cluster.await_modes(0o600, &files);
}

fn set(cluster: &Cluster, name: &str, value: usize) {
    cluster.set_on_mount(&cluster.mdc(name), &value.to_string());
}

fn changes_in_flight_are_limited(how: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("conf-sanity 86a {how:?}"), Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::with_faults_in(how));
    cluster.resend_after(RESEND);
    in_flight_is_enforced(&cluster, "d", cluster.slots());
    if how == Mode::WriteBack {
        many_take_one_slot(&cluster, "own");
    }
}

#[test]
fn conf_sanity_86a_changes_in_flight_are_limited() {
    changes_in_flight_are_limited(Mode::WriteBack);
}

#[test]
fn conf_sanity_86a_changes_in_flight_are_limited_sync_metadata() {
    changes_in_flight_are_limited(Mode::Synchronous);
}

fn changes_in_flight_are_limited_after_an_update(how: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("conf-sanity 86b {how:?}"), Duration::from_secs(240));
    let mut cluster = Cluster::start(&story, Shape::with_faults_in(how));
    cluster.resend_after(RESEND);
    for count in [1, 5] {
        set(&cluster, "max_mod_rpcs_in_flight", count);
        in_flight_is_enforced(&cluster, &format!("d{count}"), count);
    }
    if how == Mode::WriteBack {
        set(&cluster, "max_mod_rpcs_in_flight", 1);
        many_take_one_slot(&cluster, "own");
    }
    // More than the target offers takes a new offer, which clients hear of when they connect.
    let offer = cluster.get_on(Which::Mdt(0), "mdt.*.max_mod_rpcs_in_flight");
    cluster.unmount(0);
    cluster.set_on(Which::Mdt(0), "mdt.*.max_mod_rpcs_in_flight", "16").ok();
    cluster.mount_again(0);
    cluster.resend_after(RESEND);
    set(&cluster, "max_rpcs_in_flight", 17);
    set(&cluster, "max_mod_rpcs_in_flight", 16);
    in_flight_is_enforced(&cluster, "d16", 16);
    cluster.set_on(Which::Mdt(0), "mdt.*.max_mod_rpcs_in_flight", &offer).ok();
}

#[test]
fn conf_sanity_86b_changes_in_flight_are_limited_after_an_update() {
    changes_in_flight_are_limited_after_an_update(Mode::WriteBack);
}

#[test]
fn conf_sanity_86b_changes_in_flight_are_limited_after_an_update_sync_metadata() {
    changes_in_flight_are_limited_after_an_update(Mode::Synchronous);
}

/// Gives unused locks back, which in Lustre sends a close that was delayed under a lock.
fn cancel_locks(cluster: &Cluster) {
    cluster.set_on_mount(&format!("ldlm.namespaces.{}-MDT0000-mdc*.lru_size", cluster.fsname), "clear");
}

fn one_close_is_allowed_above_the_limit(how: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("conf-sanity 86d {how:?}"), Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::with_faults_in(how));
    cluster.resend_after(RESEND);
    let files = cluster.make_files("d", cluster.slots() + 1);
    let (to_close, files) = files.split_first().expect("more than one");
    let program = Multiop::open(to_close);
    wait_for("one file is open", || cluster.open_files() == 1 && cluster.in_flight() == 0);
    let waiting = stuck(&cluster, 0o600, files);
    assert_eq!(program.close(), 0, "the program is gone, as its close was");
    cancel_locks(&cluster);
    wait_for("the close has passed", || cluster.open_files() == 0);
    wait_for("and has its answer", || cluster.in_flight() == files.len());
    assert!(waiting.iter().all(|process| !process.is_finished()), "all slots were taken meanwhile");
    finish_chmods(waiting, 0o600, files);
}

#[test]
fn conf_sanity_86d_one_close_is_allowed_above_the_limit() {
    one_close_is_allowed_above_the_limit(Mode::WriteBack);
}

#[test]
fn conf_sanity_86d_one_close_is_allowed_above_the_limit_sync_metadata() {
    one_close_is_allowed_above_the_limit(Mode::Synchronous);
}
