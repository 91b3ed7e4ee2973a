//! Fault injection as an administrator meets it: permission, the table of each process, the sites of the guide.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::faults::{Mode, wait_for};
use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};

const DROP_RPC: u32 = 0x505;

#[test]
fn without_permission_nothing_can_be_set() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("no faults allowed", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape { osts: 1, ..Shape::default() });
    cluster.await_mount();
    let mount = cluster.mount(0).display().to_string();
    for device in [cluster.target_name(Which::Mdt(0)), mount] {
        let set = adamant(["lctl", "--device", &device, "set_param", "fail_loc=0x80000119"]).run();
        set.refused_with(&["fault injection is not allowed", "--allow-faults"]);
        assert_eq!(adamant(["lctl", "--device", &device, "get_param", "fail_loc"]).ok(), "fail_loc=0x0\n");
    }
    let refused = cluster.set_on(Which::Mdt(0), "osd-*.*.readonly", "1");
    assert_eq!(refused.code, Some(1), "{refused}");
    adamant(["lctl", "--device", "nothing-MDT0000", "get_param", "fail_loc"]).run().refused_with(&["lctl dl"]);
}

#[test]
fn each_process_has_its_own_table() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("tables of faults", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::with_faults());
    cluster.set_on(Which::Mdt(0), "fail_loc", "0x10000119").ok();
    cluster.set_on(Which::Mdt(0), "fail_val", "7").ok();
    assert_eq!(cluster.get_on(Which::Mdt(0), "fail_loc"), "0x10000119");
    assert_eq!(cluster.get_on(Which::Mdt(0), "fail_val"), "7");
    assert_eq!(cluster.get_on(Which::Ost(0), "fail_loc"), "0x0");
    let nonsense = cluster.set_on(Which::Mdt(0), "fail_loc", "nonsense");
    assert!(nonsense.code == Some(1) && nonsense.stderr.contains("'nonsense' is not a 32-bit number"), "{nonsense}");
    cluster.set_on(Which::Mdt(0), "fail_loc", "0").ok();
    // Without a device it is set in every process here that allows it, and those that do not are no failure.
    cluster.await_mount();
    let mount = cluster.mount(0).display().to_string();
    let on_mount = |name: &str| adamant(["lctl", "--device", &mount, "get_param", "-n", name]).ok().trim().to_owned();
    adamant(["lctl", "set_param", "fail_err=28"]).ok();
    assert_eq!((cluster.get_on(Which::Ost(0), "fail_err"), on_mount("fail_err")), ("28".to_owned(), "28".to_owned()));
}

/// A client that loses what it sends: nothing is done until it has noticed, and then all of it once.
fn sends_again_what_it_lost(mode: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("a client loses requests, {mode:?}"), Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::with_faults_in(mode));
    cluster.await_mount();
    let mount = cluster.mount(0).to_path_buf();
    cluster.resend_after(Duration::from_secs(2));
    let set = |loc: u32| cluster.set_on_mount("fail_loc", &format!("{loc:#x}"));
    std::fs::create_dir(mount.join("d")).unwrap();
    set(DROP_RPC);
    let folder = mount.join("d/e");
    let start = Instant::now();
    let waiting = std::thread::spawn(move || std::fs::create_dir(folder).map(|()| start.elapsed()));
    wait_for("a change is waited for", || cluster.in_flight() == 1);
    set(0);
    assert_eq!(waiting.is_finished(), mode == Mode::WriteBack, "{mode:?}");
    let took = waiting.join().unwrap().unwrap();
    assert!(cluster.mount(1).join("d/e").is_dir());
    story.note(&format!("the program went on after {took:.1?}, others saw it after {:.1?}", start.elapsed()));
}

#[test]
fn a_client_that_loses_what_it_sends_sends_it_again() {
    sends_again_what_it_lost(Mode::Synchronous);
}

#[test]
fn a_client_that_loses_a_batch_sends_it_again() {
    sends_again_what_it_lost(Mode::WriteBack);
}

/// The guide's table of sites is that of the program.
#[test]
fn the_guide_has_every_site() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/faults.md")).unwrap();
    let told: BTreeMap<u16, String> = guide
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `0x")?.split('`');
            let (site, name) = (cells.next()?, cells.nth(1)?);
            Some((u16::from_str_radix(site, 16).ok()?, name.to_owned()))
        })
        .collect();
    let known: BTreeMap<u16, String> =
        stdx::faults::sites::NAMES.iter().map(|(site, name)| (site.0, (*name).to_owned())).collect();
    assert_eq!(told, known);
}

/// A process that hangs holds nobody up who asks for others.
#[test]
fn a_process_that_hangs_does_not_hold_lctl_up() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lctl beside a process that hangs", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::with_faults());
    cluster.await_mount();
    let pid = rustix::process::Pid::from_raw(cluster.mount_pid(0) as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let start = Instant::now();
    let told = cluster.get_on(Which::Mdt(0), "fail_loc");
    let took = start.elapsed();
    let all = adamant(["lctl", "get_param", "-n", &format!("mdt.{}-MDT0000.num_exports", cluster.fsname)]).run();
    let pattern = format!("mdt.{}-MDT0000.commit_on_sharing", cluster.fsname);
    let set = adamant(["lctl", "set_param", &format!("{pattern}=1")]).run();
    let stays = cluster.get_on(Which::Mdt(0), &pattern);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let warning = format!("process {} (mount) has not answered", cluster.mount_pid(0));
    assert!(all.stderr.contains(&warning) && set.stderr.contains(&warning), "{all}\n{set}");
    assert_eq!((set.code, stays.as_str()), (Some(1), "1"), "{set}");
    assert!(set.took < Duration::from_secs(30), "{set}");
    assert_eq!((told.as_str(), all.stdout.trim()), ("0x0", "1"));
    assert!(took < Duration::from_secs(4), "{took:?}");
    story.note(&format!("one device after {took:.1?}, a parameter of any process after {:.1?}", all.took));
}

/// A site that is passed before anybody could set it is set with the process.
#[test]
fn a_target_that_cannot_read_its_clients_says_so_and_does_not_start() {
    let story = Story::begin("a target without its clients", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape { osts: 0, mounts: 0, ..Shape::default() });
    cluster.stop(Which::Mdt(0));
    let faulty = cluster.restart_fails(Which::Mdt(0), &["--allow-faults", "-o", "fail_loc=0x80000720"]);
    faulty.refused_with(&["MDT0000", "cannot read its first records"]);
    cluster.restart_fails(Which::Mdt(0), &["-o", "fail_loc=0x720"]).refused_with(&["--allow-faults"]);
    cluster.restart(Which::Mdt(0));
}
