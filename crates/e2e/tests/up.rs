//! `adamant up`, `down`, `status`: from nothing to a mounted file system, and back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::command::shell;
use e2e::{Story, adamant, needs_root, trees};

/// A file system that `up` made; `down` at the end, whatever happens.
struct Up {
    dir: PathBuf,
    mount: PathBuf,
}

impl Up {
    fn new(folder: &Path) -> Up {
        Up { dir: folder.join("data"), mount: folder.join("mnt") }
    }

    fn arguments(&self, verb: &str) -> Vec<String> {
        let mut words = vec![verb.to_owned(), "--dir".to_owned(), self.dir.display().to_string()];
        if verb == "up" {
            words.extend(["--mount".to_owned(), self.mount.display().to_string()]);
        }
        words
    }

    #[track_caller]
    fn up(&self) -> e2e::Outcome {
        adamant(self.arguments("up")).run()
    }

    #[track_caller]
    fn down(&self) -> String {
        adamant(self.arguments("down")).ok()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = "server.log";
            eprintln!("--- {log}\n{}", e2e::process::log_tail(&self.dir.join(log), 40));
            let name = format!("mount{}.log", self.mount.display().to_string().replace('/', "-"));
            let log = Path::new("/run/adamant").join(&name);
            eprintln!("--- {name}\n{}", e2e::process::log_tail(&log, 40));
            e2e::story::take_away(&self.mount);
        }
        let _ = adamant(self.arguments("down")).within(Duration::from_secs(30)).run();
    }
}

/// The first thing that anybody does: it must work, and at once.
#[test]
fn from_nothing_to_a_mounted_file_system() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("from nothing to a mounted file system", Duration::from_secs(90));
    let fs = Up::new(story.folder());

    let first = fs.up();
    assert!(first.took < Duration::from_secs(2), "up took {:?}", first.took);
    story.note(&format!("up from nothing: {:.2?}", first.took));
    let said = first.ok();
    assert!(said.contains("made") && said.contains("adamant down"), "it says what it did and how to go on: {said}");

    // Scripts look for the type: findmnt, df -t, the tools' own search for mounts.
    let kind = e2e::story::mounts().into_iter().find(|(_, place, _)| *place == fs.mount).map(|(_, _, kind)| kind);
    assert_eq!(kind.as_deref(), Some("fuse.adamant"));

    // Two object targets on one disk have the room of one.
    let (of_mount, of_disk) = (rustix::fs::statvfs(&fs.mount).unwrap(), rustix::fs::statvfs(&fs.dir).unwrap());
    let total = |of: &rustix::fs::StatVfs| of.f_blocks * of.f_frsize / (1 << 20);
    assert_eq!(total(&of_mount), total(&of_disk));

    let file = fs.mount.join("file");
    fs::write(&file, "hello").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "hello");
    let listed: Vec<_> = fs::read_dir(&fs.mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, ["file"]);
    fs::remove_file(&file).unwrap();
    assert!(!file.exists());

    trees::make(&story.folder().join("tree"), 1, 150).unwrap();
    shell(&format!("cp -a {}/tree {}/copy", story.folder().display(), fs.mount.display())).ok();
    trees::assert_equal(&story.folder().join("tree"), &fs.mount.join("copy"));

    // Again: nothing to do, and it says so without an error.
    let second = fs.up().ok();
    assert!(!second.contains("made "), "{second}");
    trees::assert_equal(&story.folder().join("tree"), &fs.mount.join("copy"));

    let status = adamant(["status", "--dir", fs.dir.to_str().unwrap()]).ok();
    for name in ["MGS", "adamant-MDT0000", "adamant-OST0000", "adamant-OST0001", "adamant-client"] {
        assert!(status.contains(name), "{name} is missing:\n{status}");
    }
    let json = adamant(["status", "--json", "--dir", fs.dir.to_str().unwrap()]).ok();
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(list.as_array().is_some_and(|rows| rows.len() == 5), "{json}");

    // The data stays while nothing runs.
    let said = fs.down();
    assert!(said.contains("unmounted") && said.contains("stopped"), "{said}");
    assert!(!fs.mount.join("copy").exists());
    assert!(fs.down().contains("nothing runs"));
    assert_eq!(adamant(["status", "--dir", fs.dir.to_str().unwrap()]).run().code, Some(1));
    let again = fs.up();
    assert!(again.took < Duration::from_secs(2), "the second start took {:?}", again.took);
    again.ok();
    trees::assert_equal(&story.folder().join("tree"), &fs.mount.join("copy"));

    shell(&format!("rm -r {}/copy", fs.mount.display())).ok();
    assert_eq!(fs::read_dir(&fs.mount).unwrap().count(), 0);
    fs.down();
}

/// Metadata targets are added like object targets.
#[test]
fn up_with_more_metadata_targets() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("up with more metadata targets", Duration::from_secs(90));
    let fs = Up::new(story.folder());
    fs.up().ok();
    fs::write(fs.mount.join("file"), "before").unwrap();
    let more = |count: &str| adamant(fs.arguments("up")).args(["--mdts", count]).run();
    more("3").refused_with(&["stop it first"]);
    fs.down();
    more("3").ok();
    let mdts = || adamant(["lfs", "mdts"]).arg(&fs.mount).ok();
    let all = (0..3).fold(format!("MDTS: {}\n", fs.mount.display()), |text, index| {
        format!("{text}{index}: adamant-MDT{index:04x}_UUID ACTIVE\n")
    });
    e2e::faults::wait_for("the mount uses all metadata targets", || mdts() == all);
    assert_eq!(fs::read_to_string(fs.mount.join("file")).unwrap(), "before");
    fs::write(fs.mount.join("file"), "after").unwrap();
    directories_are_on_all(&fs.mount, 3);
    // It keeps what it has.
    fs.down();
    fs.up().ok();
    e2e::faults::wait_for("all are there again", || mdts() == all);
    assert_eq!(fs::read_to_string(fs.mount.join("file")).unwrap(), "after");
    fs.down();
    more("0").refused_with(&["1 to 1000"]);
}

/// Plain mkdir places directories of three levels on the metadata targets in turn, unless somebody wants something else.
fn directories_are_on_all(mount: &Path, mdts: usize) {
    let default = || adamant(["lfs", "getdirstripe", "-D"]).arg(mount).ok();
    let none = "lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none\n";
    let figures = " lmv_max_inherit: 3 lmv_max_inherit_rr: 3\n";
    assert_eq!(default(), none.replace("count: 0", "count: 1").replace('\n', figures));
    let on = |dir: &Path| adamant(["lfs", "getdirstripe", "-m"]).arg(dir).ok().trim().parse::<usize>().unwrap();
    let made_in = |above: &Path, prefix: &str| {
        let mut found = vec![0; mdts];
        for number in 0..2 * mdts {
            let dir = above.join(format!("{prefix}{number}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("file"), "text").unwrap();
            found[on(&dir)] += 1;
        }
        found
    };
    let mut above = mount.to_path_buf();
    for level in 1..=3 {
        assert_eq!(made_in(&above, "d"), vec![2; mdts], "level {level}");
        above = above.join("d0");
    }
    let mut all_there = vec![0; mdts];
    all_there[on(&above)] = 2 * mdts;
    assert_eq!(made_in(&above, "d"), all_there);
    // Without a default, everything is where the root is.
    adamant(["lfs", "setdirstripe", "-D", "-d"]).arg(mount).ok();
    assert_eq!(default(), none);
    let mut all_there = vec![0; mdts];
    all_there[0] = 2 * mdts;
    assert_eq!(made_in(mount, "plain"), all_there);
}

/// A second file system on the same machine does not disturb the first, although both bear the same name.
#[test]
fn two_file_systems_of_one_name() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("two file systems of one name", Duration::from_secs(60));
    let (one, two) = (Up::new(&story.folder().join("one")), Up::new(&story.folder().join("two")));
    one.up().ok();
    two.up().ok();
    fs::write(one.mount.join("which"), "one").unwrap();
    fs::write(two.mount.join("which"), "two").unwrap();
    two.down();
    assert_eq!(fs::read_to_string(one.mount.join("which")).unwrap(), "one");
    two.up().ok();
    assert_eq!(fs::read_to_string(two.mount.join("which")).unwrap(), "two");
}

/// In a container the process stays in front and ends cleanly when it is told to.
#[test]
fn in_the_foreground_until_it_is_told_to_stop() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("up in the foreground", Duration::from_secs(60));
    let fs = Up::new(story.folder());
    let mut arguments = fs.arguments("up");
    arguments.push("--foreground".to_owned());
    for round in 0..20 {
        let log = story.folder().join(format!("up.{round}"));
        let mut process = e2e::process::Background::start("up", &arguments, log);
        let start = std::time::Instant::now();
        while !e2e::story::is_mounted(&fs.mount) {
            assert!(process.ended().is_none() && start.elapsed() < Duration::from_secs(20), "{}", process.log_text());
            std::thread::sleep(Duration::from_micros(50));
        }
        // Also the moment it can be seen is late enough to be told.
        match round {
            0 => fs::write(fs.mount.join("kept"), "yes").unwrap(),
            19 => assert_eq!(fs::read_to_string(fs.mount.join("kept")).unwrap(), "yes"),
            _ => {}
        }
        process.terminate();
        let status = process.wait(Duration::from_secs(20)).expect("it ends");
        assert!(status.success(), "{}", process.log_text());
        assert!(!e2e::story::is_mounted(&fs.mount));
    }
}

/// An unmount, and right after it `down`: the mount's process still writes back, and the servers go on until it has.
#[test]
fn down_waits_for_a_mount_that_was_just_taken_away() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("down right after an unmount", Duration::from_secs(90));
    let up = Up::new(story.folder());
    up.up().ok();
    let data: Vec<u8> = (0..64 << 20).map(|at: u32| (at % 253) as u8).collect();
    fs::write(up.mount.join("large"), &data).unwrap();
    rustix::mount::unmount(&up.mount, rustix::mount::UnmountFlags::empty()).unwrap();
    up.down();
    let left = adamant(["status", "--json"]).run().stdout;
    assert!(!left.contains(&up.mount.display().to_string()), "the mount still writes, to nobody:\n{left}");
    up.up().ok();
    assert!(fs::read(up.mount.join("large")).unwrap() == data, "what was written before the unmount is lost");
}

#[test]
fn a_place_with_blanks_in_its_name() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a place with blanks", Duration::from_secs(90));
    let up = Up::new(&story.folder().join("a  place\twith \\ blanks"));
    up.up().ok();
    fs::write(up.mount.join("some file"), "text").unwrap();
    let (mount, device) = (up.mount.display().to_string(), "llite.*.uuid");
    let uuid = adamant(["lctl", "--device", &mount, "get_param", "-n", device]).ok();
    assert!(adamant(["lfs", "df", &mount]).ok().contains(&mount));
    let again = up.up();
    assert!(again.took < Duration::from_secs(2), "what is up is up at once: {again}");
    again.ok();
    assert_eq!(adamant(["lctl", "--device", &mount, "get_param", "-n", device]).ok(), uuid, "it was mounted already");
    let listed = e2e::story::mounts();
    let source = listed.iter().find(|(_, place, _)| *place == up.mount).map(|(source, ..)| source.as_str());
    adamant(["mount", source.expect("it is listed"), &mount]).run().refused_with(&["is busy", "a  place"]);
    up.down();
    assert!(!e2e::story::is_mounted(&up.mount));
    up.up().ok();
    assert_eq!(fs::read_to_string(up.mount.join("some file")).unwrap(), "text");
}

/// What `status --dir --json` says of each name.
fn states(up: &Up) -> Vec<(String, String)> {
    let text = adamant(["status", "--json", "--dir", up.dir.to_str().unwrap()]).run().stdout;
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.as_array().unwrap().iter().map(|row| (text(row, "name"), text(row, "state"))).collect()
}

fn pid_of(up: &Up, name: &str) -> rustix::process::Pid {
    let text = adamant(["status", "--json", "--dir", up.dir.to_str().unwrap()]).ok();
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).expect("it runs");
    rustix::process::Pid::from_raw(row["pid"].as_i64().unwrap() as i32).unwrap()
}

fn kill(pid: rustix::process::Pid) {
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Servers and mounts that die, targets that are not where they were: `up`, `down` and `status` say what is.
#[test]
fn up_says_what_is_wrong() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("up that cannot be", Duration::from_secs(120));
    let up = Up::new(story.folder());
    let mut arguments = up.arguments("up");
    arguments.extend(["--fsname".to_owned(), "demo".to_owned()]);
    adamant(arguments).ok();
    fs::write(up.mount.join("f"), "data").unwrap();

    // The servers die; the mount is there still.
    kill(pid_of(&up, "demo-MDT0000"));
    let start = std::time::Instant::now();
    while !states(&up).contains(&("demo-client".to_owned(), "DISCONN".to_owned())) {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", states(&up));
    }
    assert!(states(&up).contains(&("demo-OST0001".to_owned(), "DOWN".to_owned())), "{:?}", states(&up));
    // The name of the file system is known, and the mount works again.
    let said = up.up().ok();
    assert!(said.contains("demo") && !said.contains("made "), "{said}");
    assert_eq!(fs::read_to_string(up.mount.join("f")).unwrap(), "data");
    up.down();

    // A target is not where it was: nothing is made in its place.
    let (mdt, away) = (up.dir.join("mdt0"), up.dir.join("away"));
    fs::rename(&mdt, &away).unwrap();
    up.up().refused_with(&["mdt0", "where there was one"]);
    assert!(!mdt.exists());
    fs::create_dir(&mdt).unwrap();
    up.up().refused_with(&["mdt0", "mount its disk"]);
    assert_eq!(fs::read_dir(&mdt).unwrap().count(), 0, "nothing was made");
    assert_eq!(adamant(["status", "--dir", up.dir.to_str().unwrap()]).run().code, Some(1), "nothing was started");
    fs::remove_dir(&mdt).unwrap();
    fs::rename(&away, &mdt).unwrap();
    let mut other = up.arguments("up");
    other.extend(["--fsname".to_owned(), "other".to_owned()]);
    adamant(other).run().refused_with(&["holds the file system 'demo'"]);

    // All is there again; and the commands that it prints work as printed, without PATH.
    let said = up.up().ok();
    assert_eq!(fs::read_to_string(up.mount.join("f")).unwrap(), "data");
    let first = |name: &str| {
        said.lines().find_map(|line| line.strip_prefix(name)).expect("it is printed").replace(" ; ", " && ")
    };
    for name in ["look", "try"] {
        shell(&format!("set -e; PATH=/usr/bin:/bin; {}", first(name))).ok();
    }
    // The mount dies.
    kill(pid_of(&up, "demo-client"));
    let start = Instant::now();
    while !states(&up).contains(&("demo-client".to_owned(), "DEAD".to_owned())) {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", states(&up));
    }
    let said = shell(&format!("PATH=/usr/bin:/bin; {}", first("stop"))).ok();
    assert!(said.contains("had died") && said.contains("stopped"), "{said}");
    assert!(!e2e::story::is_mounted(&up.mount));
}
