//! Cases of Lustre's replay-single about directories striped over two metadata targets, by their numbers: one of the targets fails,
//! or both, or both and the client, while such a directory is made (110) or removed (111).
//!
//! In Lustre a program is answered before anything is on disk, and the client replays the change. Here the answer waits until it
//! is on the disks of both targets. So with a barrier on one of them the program waits until that target has failed and is back. If
//! the client fails, too, nobody was told anything: the change is done as a whole or not at all.
//!
//! MDT1 and MDT2 of the cases are MDT0000 and MDT0001 here. The directory is on MDT0001, with a stripe on each.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use e2e::faults::wait_for;
use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};

const MDT1: Which = Which::Mdt(0);
const MDT2: Which = Which::Mdt(1);

/// What happens to the servers and the client.
struct Case {
    name: &'static str,
    /// Targets whose changes do not reach the disk.
    uncommitted: &'static [Which],
    /// Targets that fail.
    fail: &'static [Which],
    client_fails: bool,
}

/// What is done to the directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Make,
    Remove,
}

/// A directory that is whole.
#[track_caller]
fn is_striped(dir: &Path) {
    assert_eq!(adamant(["lfs", "getdirstripe", "-c"]).arg(dir).ok(), "2\n");
    assert_eq!(adamant(["lfs", "getdirstripe", "-m"]).arg(dir).ok(), "1\n");
}

/// A directory in which something can be done in each stripe.
#[track_caller]
fn is_usable(dir: &Path, other: &Path) {
    is_striped(dir);
    is_striped(other);
    let names: Vec<String> = (0..16).map(|number| format!("f{number}")).collect();
    for name in &names {
        fs::write(dir.join(name), name).unwrap();
    }
    for name in &names {
        assert_eq!(fs::read_to_string(other.join(name)).unwrap(), *name);
        fs::remove_file(other.join(name)).unwrap();
    }
}

fn begin(what: What, dir: &Path) -> Child {
    let mut command = match what {
        What::Make => Command::new(e2e::binary()),
        What::Remove => Command::new("rmdir"),
    };
    if what == What::Make {
        command.args(["lfs", "mkdir", "-i", "1", "-c", "2"]);
    }
    command.arg(dir).spawn().unwrap()
}

fn play(what: What, case: &Case) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(case.name, Duration::from_secs(90));
    let shape =
        Shape { osts: 1, serve_arguments: vec!["--allow-faults", "-o", "recovery_time_soft=2"], ..Shape::mounts(2) };
    let mut cluster = Cluster::with_mdts_in(&story, shape, 2);
    for which in [MDT1, MDT2] {
        cluster.set_on(which, "ldlm.namespaces.*.lock_timeout", "3").ok();
    }
    let (dir, other) = (cluster.mount(0).join("striped"), cluster.mount(1).join("striped"));
    if what == What::Remove {
        assert!(begin(What::Make, &dir).wait().unwrap().success());
    }
    for which in case.uncommitted {
        cluster.replay_barrier_on(*which);
    }
    let mut program = begin(what, &dir);
    // Long enough for everything but what the barrier keeps off the disk.
    std::thread::sleep(Duration::from_millis(300));
    assert!(program.try_wait().unwrap().is_none(), "it is answered before it is on disk");
    if case.client_fails {
        cluster.kill9_mount(0);
    }
    case.fail.iter().for_each(|which| cluster.kill9(*which));
    case.fail.iter().for_each(|which| cluster.restart(*which));
    let start = Instant::now();
    let done = program.wait().unwrap();
    story.note(&format!("the program ended {:.1?} after the restart", start.elapsed()));
    if case.client_fails {
        cluster.mount_again(0);
    } else {
        assert!(done.success(), "{done}");
    }
    let is_there = match (what, case.client_fails) {
        (What::Make, false) => true,
        (What::Remove, false) => false,
        // Either, as a whole, and the same for all.
        (_, true) => other.exists(),
    };
    assert_eq!((dir.exists(), other.exists()), (is_there, is_there));
    if is_there {
        is_usable(&dir, &other);
        fs::remove_dir(&other).unwrap();
    }
    assert!(!dir.exists());
    assert!(begin(What::Make, &dir).wait().unwrap().success(), "the name is free");
    is_usable(&other, &dir);
    for which in [MDT1, MDT2] {
        wait_for("nothing is in doubt", || cluster.get_on(which, "mdt.*.changes_in_doubt").is_empty());
    }
}

#[test]
fn replay_single_110a_create_of_a_striped_directory_and_mdt1_fails() {
    let case = Case { name: "110a", uncommitted: &[MDT1], fail: &[MDT1], client_fails: false };
    play(What::Make, &case);
}

#[test]
fn replay_single_110b_create_of_a_striped_directory_and_mdt1_and_the_client_fail() {
    let case = Case { name: "110b", uncommitted: &[MDT1], fail: &[MDT1], client_fails: true };
    play(What::Make, &case);
}

#[test]
fn replay_single_110c_create_of_a_striped_directory_and_mdt2_fails() {
    let case = Case { name: "110c", uncommitted: &[MDT2], fail: &[MDT2], client_fails: false };
    play(What::Make, &case);
}

#[test]
fn replay_single_110d_create_of_a_striped_directory_and_mdt2_and_the_client_fail() {
    let case = Case { name: "110d", uncommitted: &[MDT2], fail: &[MDT2], client_fails: true };
    play(What::Make, &case);
}

#[test]
fn replay_single_110e_create_of_a_striped_directory_uncommitted_on_mdt2_and_all_fail() {
    let case = Case { name: "110e", uncommitted: &[MDT2], fail: &[MDT1, MDT2], client_fails: true };
    play(What::Make, &case);
}

#[test]
fn replay_single_110f_create_of_a_striped_directory_and_both_mdts_fail() {
    let case = Case { name: "110f", uncommitted: &[MDT1, MDT2], fail: &[MDT1, MDT2], client_fails: false };
    play(What::Make, &case);
}

#[test]
fn replay_single_110g_create_of_a_striped_directory_uncommitted_on_mdt1_and_all_fail() {
    let case = Case { name: "110g", uncommitted: &[MDT1], fail: &[MDT1, MDT2], client_fails: true };
    play(What::Make, &case);
}

#[test]
fn replay_single_111a_removal_of_a_striped_directory_and_mdt1_fails() {
    let case = Case { name: "111a", uncommitted: &[MDT1], fail: &[MDT1], client_fails: false };
    play(What::Remove, &case);
}

#[test]
fn replay_single_111b_removal_of_a_striped_directory_and_mdt2_fails() {
    let case = Case { name: "111b", uncommitted: &[MDT2], fail: &[MDT2], client_fails: false };
    play(What::Remove, &case);
}

#[test]
fn replay_single_111c_removal_of_a_striped_directory_uncommitted_on_mdt1_and_all_fail() {
    let case = Case { name: "111c", uncommitted: &[MDT1], fail: &[MDT1, MDT2], client_fails: true };
    play(What::Remove, &case);
}

#[test]
fn replay_single_111d_removal_of_a_striped_directory_uncommitted_on_mdt2_and_all_fail() {
    let case = Case { name: "111d", uncommitted: &[MDT2], fail: &[MDT1, MDT2], client_fails: true };
    play(What::Remove, &case);
}

#[test]
fn replay_single_111e_removal_of_a_striped_directory_uncommitted_on_mdt2_and_both_mdts_fail() {
    let case = Case { name: "111e", uncommitted: &[MDT2], fail: &[MDT1, MDT2], client_fails: false };
    play(What::Remove, &case);
}

#[test]
fn replay_single_111f_removal_of_a_striped_directory_uncommitted_on_mdt1_and_both_mdts_fail() {
    let case = Case { name: "111f", uncommitted: &[MDT1], fail: &[MDT1, MDT2], client_fails: false };
    play(What::Remove, &case);
}

#[test]
fn replay_single_111g_removal_of_a_striped_directory_and_both_mdts_fail() {
    let case = Case { name: "111g", uncommitted: &[MDT1, MDT2], fail: &[MDT2, MDT1], client_fails: false };
    play(What::Remove, &case);
}
