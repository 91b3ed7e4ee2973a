//! Servers and mounts as processes: signals, logs, and the word to others when they end.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};
use rustix::process::{Pid, Signal, kill_process};

#[track_caller]
fn soon(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Nobody waits for a target that was stopped, and nobody evicts it later.
#[test]
fn a_target_that_is_stopped_says_goodbye() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a target says good-bye", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let clients =
        |cluster: &Cluster, of: &str| cluster.parameter(&format!("{of}.num_exports")).trim().parse::<u32>().ok();
    let metadata = format!("mdt.{}", cluster.target_name(Which::Mdt));
    let object = format!("obdfilter.{}", cluster.target_name(Which::Ost(0)));
    let (at_mgs, at_ost) = (clients(&cluster, "mgs.MGS"), clients(&cluster, &object));
    assert!(clients(&cluster, &metadata) > Some(0));
    cluster.stop(Which::Ost(1));
    soon("the MGS still counts the object target", || clients(&cluster, "mgs.MGS") == at_mgs.map(|n| n - 1));
    cluster.stop(Which::Mdt);
    soon("the MGS still counts the metadata target", || clients(&cluster, "mgs.MGS") == at_mgs.map(|n| n - 2));
    soon("the object target still counts it", || clients(&cluster, &object) == at_ost.map(|n| n - 1));
    cluster.restart(Which::Mdt);
    cluster.restart(Which::Ost(1));
    fs::write(cluster.mount(0).join("f"), "on").unwrap();
    soon("they are back", || clients(&cluster, "mgs.MGS") == at_mgs);
}

/// Logs can be moved away under a running server and mount, and their level changes without a restart.
#[test]
fn logs_are_opened_anew_and_debug_lines_come_and_go() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("logs of daemons", Duration::from_secs(60));
    let (dir, mount) = (story.folder().join("data"), story.folder().join("mnt"));
    let words = |verb: &str| vec![verb.to_owned(), "--dir".to_owned(), dir.display().to_string()];
    let mut up = words("up");
    up.extend(["--mount".to_owned(), mount.display().to_string()]);
    adamant(up).ok();
    let status = adamant(["status", "--json", "--dir", &dir.display().to_string()]).ok();
    let pid = |role: &str| -> u32 {
        let processes: Vec<serde_json::Value> = serde_json::from_str(&status).unwrap();
        let found = processes.iter().find(|process| process["name"].as_str().is_some_and(|name| name.contains(role)));
        let pid = found.unwrap_or_else(|| panic!("{status}"))["pid"].clone();
        pid.as_u64().or_else(|| pid.as_str()?.parse().ok()).unwrap() as u32
    };
    let mount_log = format!("/run/adamant/mount{}.log", mount.display().to_string().replace('/', "-"));
    for (log, pid) in [(dir.join("server.log"), pid("MGS")), (mount_log.into(), pid("client"))] {
        let moved = Path::new(&log).with_extension("1");
        fs::rename(&log, &moved).unwrap();
        signal(pid, Signal::HUP);
        let says = |what: &str| fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
        soon("the log is opened anew", || says("opened anew"));
        signal(pid, Signal::USR1);
        soon("debug lines", || says("debug lines are on"));
        signal(pid, Signal::USR1);
        soon("no debug lines", || says("debug lines are off"));
        fs::remove_file(moved).unwrap();
    }
    fs::write(mount.join("f"), "on").unwrap();
    adamant(words("down")).ok();
}
