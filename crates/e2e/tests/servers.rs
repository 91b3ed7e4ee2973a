//! Servers as processes: signals, logs, good-byes, readiness, misuse, and what is installed beside the binary.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::faults::wait_for;
use e2e::process::Background;
use e2e::{Cluster, Shape, Story, Which, adamant, binary, command, needs_root, skip};
use rustix::process::{Pid, Signal};

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// As logrotate does it, and as a terminal that closes does it.
#[test]
fn a_hangup_opens_the_log_anew_and_ends_nothing() {
    let story = Story::begin("logs of a server", Duration::from_secs(60));
    let at = |name: &str| story.folder().join(name);
    let place = at("mgt").display().to_string();
    adamant(["mkfs", "--mgs", &place]).ok();
    let words = ["serve", "--listen", "127.0.0.1:0", &place].map(str::to_owned);
    let mut server = Background::start("a server", &words, at("server.log"));
    let has = |name: &str, words: &str| fs::read_to_string(at(name)).is_ok_and(|text| text.contains(words));
    wait_for("the server", || has("server.log", " serves at "));
    // Its signals are caught before it says so.
    fs::rename(at("server.log"), at("moved.log")).unwrap();
    signal(server.pid(), Signal::USR1);
    signal(server.pid(), Signal::HUP);
    wait_for("a new log", || has("server.log", "SIGHUP"));
    let set = adamant(["lctl", "--device", &place, "set_param", "log_level=error"]).ok();
    assert_eq!(set, "log_level=error\n");
    signal(server.pid(), Signal::HUP);
    adamant(["lctl", "--device", &place, "set_param", "log_level=info"]).ok();
    server.terminate();
    assert!(server.wait(Duration::from_secs(10)).is_some_and(|status| status.success()), "{}", server.log_text());
    assert!(has("server.log", "MGS: stopped, 0 clients connected") && !has("moved.log", "stopped"));
    assert_eq!(fs::read_to_string(at("server.log")).unwrap().matches("SIGHUP").count(), 1, "the other was no error");
}

#[test]
fn a_server_that_stops_says_goodbye_and_logs_who_came_and_went() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("good-byes", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    // This cluster's MGS alone: the machine may serve others.
    let exports = |cluster: &Cluster| {
        let mgt = cluster.place(Which::Mgt).display().to_string();
        adamant(["lctl", "--device", &mgt, "get_param", "-n", "mgs.MGS.num_exports"]).ok().trim_end().to_owned()
    };
    let before: u32 = exports(&cluster).parse().unwrap();
    assert!(cluster.server_log(Which::Mdt(0)).contains("has come"), "{}", cluster.server_log(Which::Mdt(0)));
    // A target that is served is looked at, and not changed.
    let place = cluster.place(Which::Ost(1)).display().to_string();
    let shown = adamant(["tune", "--print", &place]).ok();
    assert!(shown.contains(&format!("name: {}", cluster.target_name(Which::Ost(1)))), "{shown}");
    adamant(["tune", "--mgsnode", "127.0.0.1:1", &place]).run().refused_with(&[&place, "use"]);
    let ost_log = newest_log(&story, &cluster, Which::Ost(1));
    cluster.stop(Which::Ost(1));
    assert_eq!(exports(&cluster), (before - 1).to_string(), "at once");
    let log = fs::read_to_string(ost_log).unwrap();
    assert!(log.contains("stopped, 1 clients connected"), "{log}");
    adamant(["tune", "--mgsnode", "127.0.0.1:1", "--mgsnode", cluster.nid(Which::Mgt), &place]).ok();
    cluster.restart(Which::Ost(1));
    cluster.unmount(0);
    wait_for("the client's good-bye", || cluster.server_log(Which::Mdt(0)).contains("has gone"));
}

/// The log of a server that runs, to be read when it has ended.
fn newest_log(story: &Story, cluster: &Cluster, which: Which) -> PathBuf {
    let folder = story.folder().join(&cluster.fsname).join("log");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{which}.")));
    ours.map(|entry| entry.path()).max().expect("its log")
}

/// Exit status 2, and one line that says what to do.
#[test]
fn misuse_is_one_line() {
    let story = Story::begin("misuse", Duration::from_secs(60));
    let at = |name: &str| story.folder().join(name).display().to_string();
    fs::create_dir(story.folder().join("used")).unwrap();
    fs::write(story.folder().join("used/letter"), "mine").unwrap();
    adamant(["mkfs", "--mgs", &at("mgt")]).ok();
    let misused: [(&[&str], &str); 12] = [
        (&["mount", "127.0.0.1:1:/demo", &at("used"), "-o", "bogus"], "'bogus'"),
        (&["mount", "demo", &at("used")], "'demo'"),
        (&["serve", "-o", "bla", &at("mgt")], "'bla'"),
        (&["serve", "--bla", &at("mgt")], "see: adamant serve --help"),
        (&["serve", "s3://bucket/x"], "s3"),
        (&["mkfs", "--ost", &at("x")], "--mgsnode"),
        (&["mkfs", "--ost", "--index", "70000", "--mgsnode", "127.0.0.1:1", &at("x")], "70000"),
        (&["mkfs", "--mgs", "s3://bucket/x"], "s3"),
        (&["mkfs", "--mgs", "mem:fs-MDT0000"], "adamant serve mem:"),
        (&["lfs", "check", "bla"], "'bla'"),
        (&["lctl", "set_param", "bla"], "PATTERN=VALUE"),
        (&["tune", "--param", "bla", &at("mgt")], "'bla'"),
    ];
    for (words, named) in misused {
        let outcome = adamant(words).in_dir(story.folder()).run();
        assert_eq!(outcome.code, Some(2), "{outcome}");
        outcome.refused_with(&[named]);
    }
    let failed: [(&[&str], &[&str]); 5] = [
        (&["mkfs", "--mgs", &at("used")], &["'letter'", "--reformat"]),
        (&["mkfs", "--mgs", "/dev/null"], &["/dev/null", "not a directory"]),
        (&["lr_reader", &at("used")], &["used"]),
        (&["man", &at("none")], &["none", "mkdir"]),
        (&["serve", "--listen", &format!("unix:{}/s", at("none")), &at("mgt")], &["none", "mkdir"]),
    ];
    for (words, named) in failed {
        let outcome = adamant(words).run();
        assert_eq!(outcome.code, Some(1), "{outcome}");
        outcome.refused_with(named);
    }
    let made: Vec<_> = fs::read_dir(story.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(made.len(), 2, "nothing else was made: {made:?}");
    assert!(adamant([""; 0]).run().stderr.ends_with('\n'));
    adamant(["bench", "help", "--help"]).ok();
    // Behind an address that stands for all of them, and without a word where to be found.
    adamant(["mkfs", "--ost", "--mgsnode", "unix:/x", &at("ost")]).ok();
    let words = ["serve", "--insecure", "--listen", "0.0.0.0:0", &at("ost")];
    adamant(words).run().refused_with(&["--tell HOST:"]);
}

/// What systemd hears, and whether it takes the unit.
#[test]
fn systemd_is_told_when_the_targets_serve() {
    let story = Story::begin("readiness", Duration::from_secs(60));
    let at = |name: &str| story.folder().join(name);
    let place = at("mgt").display().to_string();
    adamant(["mkfs", "--mgs", &place]).ok();
    let socket = UnixDatagram::bind(at("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let notify = format!("NOTIFY_SOCKET={}", at("notify").display());
    let program = binary().display().to_string();
    let words = [&notify, &program, "serve", "--listen", "127.0.0.1:0", &place].map(ToString::to_string);
    let mut server = Background::start_program("/usr/bin/env".as_ref(), "a server", &words, at("log"));
    let hear = || {
        let mut buffer = [0; 256];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).trim().to_owned()
    };
    assert_eq!(hear(), "READY=1");
    server.terminate();
    assert_eq!(hear(), "STOPPING=1");
    assert!(server.wait(Duration::from_secs(10)).is_some_and(|status| status.success()));

    if !Path::new("/usr/bin/systemd-analyze").exists() {
        skip("systemd-analyze is not here");
        return;
    }
    let unit = at("adamant@.service");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/adamant@.service");
    let text = fs::read_to_string(source).unwrap().replace("/usr/local/bin/adamant", &program);
    fs::write(&unit, text).unwrap();
    let said = command("systemd-analyze").arg("verify").arg("--man=no").arg(at("adamant@x.service")).run();
    let about_ours: Vec<&str> = said.stderr.lines().filter(|line| line.contains("adamant@")).collect();
    assert!(about_ours.is_empty(), "{said}");
}

#[test]
fn pages_and_completions_are_there_for_all_names() {
    let story = Story::begin("man pages and completions", Duration::from_secs(60));
    let folder = story.folder().display().to_string();
    adamant(["man", &folder]).ok();
    adamant(["completions", "bash", "--dir", &folder]).ok();
    adamant(["completions", "zsh", "--dir", &folder]).ok();
    let read =
        |name: &str| fs::read_to_string(story.folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for name in ["adamant", "lfs", "lctl", "lr_reader", "mkfs.adamant", "mount.adamant", "mdtest", "createmany"] {
        let page = read(&format!("{name}.1"));
        assert!(page.contains("EXIT STATUS") && page.contains("FILES"), "{name}");
        for completions in [read(&format!("{name}.bash")), read(&format!("_{name}"))] {
            assert!(completions.contains(name) && !completions.contains("--background"), "{name}");
        }
    }
    assert!(!read("lfs.1").contains("lfs\\-help"), "it has no page");
    assert!(read("mount.adamant.1").contains("max_dirty_mb"));
    assert!(read("lfs-setstripe.1").contains("lfs"));
    read("adamant-mkfs.1");
}
