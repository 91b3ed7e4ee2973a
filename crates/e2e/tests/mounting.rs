//! What a mount says that waits for its servers, and how it is given up.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};
use rustix::process::{Pid, Signal};

/// What a command that was told to end may still take on a busy machine.
const BOUND: Duration = Duration::from_secs(10);

/// `adamant mount`, whose words on standard error can be read.
fn begin(source: &str, place: &Path) -> Child {
    let mut command = Command::new(e2e::command::binary());
    command.args(["mount", source]).arg(place).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

/// The state in `adamant status` of what is or shall be mounted at a place.
fn state(place: &Path) -> Option<String> {
    let text = adamant(["status", "--json"]).run().stdout;
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = |row: &serde_json::Value| row["place"].as_str() == place.to_str();
    let row = rows.as_array().unwrap().iter().find(|row| of(row))?;
    Some(row["state"].as_str().unwrap().to_owned())
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn a_mount_that_waits_says_so_and_ends_with_its_command() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a mount without servers", Duration::from_secs(90));
    let place = story.folder().join("place");
    std::fs::create_dir(&place).unwrap();
    let nowhere = format!("unix:{}/nobody:/demo", story.folder().display());
    // Under nohup(1) and in the background of a script some of them end nothing.
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL];
    for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)) {
        let mut command = begin(&nowhere, &place);
        if signal == Signal::TERM {
            let start = Instant::now();
            let line = first_line(&mut command);
            story.note(&format!("after {:?}: {}", start.elapsed(), line.trim()));
            assert!(line.contains("cannot reach the MGS at unix:") && line.contains("Ctrl-C"), "{line}");
        }
        until("it is listed", || state(&place).as_deref() == Some("WAITING"));
        // One client for a place.
        adamant(["mount", &nowhere]).arg(&place).run().refused_with(&["is busy", "about to mount"]);
        rustix::process::kill_process(Pid::from_child(&command), signal).unwrap();
        command.wait().unwrap();
        until("its process has ended", || state(&place).is_none());
    }
    // `down` and umount of what is not there yet: the process is asked, and its command says so.
    let mut command = begin(&nowhere, &place);
    until("it is listed", || state(&place).is_some());
    let text = adamant(["status", "--json"]).run().stdout;
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["place"].as_str() == place.to_str()).unwrap();
    let pid = Pid::from_raw(row["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(command.wait().unwrap().code(), Some(1));
    assert!(!e2e::story::is_mounted(&place));
}

#[test]
fn a_mount_names_the_server_that_is_missing() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a mount without its metadata target", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let place = story.folder().join("place");
    std::fs::create_dir(&place).unwrap();
    cluster.kill9(Which::Mdt(0));
    let mut command = begin(&cluster.source(), &place);
    let line = first_line(&mut command);
    assert!(line.contains(&cluster.target_name(Which::Mdt(0))) && !line.contains("MGS"), "{line}");
    // A mount that was there says which connection is lost.
    let mounted = cluster.mount(0).to_path_buf();
    until("the lost connection is seen", || state(&mounted).as_deref() == Some("DISCONN"));
    cluster.restart(Which::Mdt(0));
    assert!(command.wait().unwrap().success());
    assert!(e2e::story::is_mounted(&place));
    until("the connection is back", || state(&mounted).as_deref() == Some("UP"));
    e2e::story::take_away(&place);
}
