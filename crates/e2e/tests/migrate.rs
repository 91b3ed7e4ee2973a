//! Object targets are emptied (`lfs migrate`) while programs work, and replaced when they are lost (`mkfs --replace`).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::command::shell;
use e2e::faults::wait_for;
use rustix::process::Signal;

use e2e::{Cluster, Outcome, Shape, Story, Which, adamant, binary, command, needs_root, trees};

fn lfs(words: &[&str]) -> Outcome {
    adamant(["lfs"]).args(words).run()
}

fn osts(file: &Path) -> (Vec<u64>, String) {
    let json = lfs(&["getstripe", "--json", file.to_str().unwrap()]).ok();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let osts = value["osts"].as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).collect();
    (osts, value["pool"].as_str().unwrap_or_default().to_owned())
}

/// Data files of an object target, and the bytes that are in them.
fn objects(cluster: &Cluster, ost: u32) -> (usize, u64) {
    fn below(folder: &Path) -> (usize, u64) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let sums = entries.map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => below(&entry.path()),
            Ok(metadata) => (1, metadata.len()),
            Err(_) => (0, 0),
        });
        sums.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
    below(&cluster.place(Which::Ost(ost)).join("objects"))
}

/// A file of one stripe on the first target.
fn on_the_first(file: &Path, content: &[u8]) {
    lfs(&["setstripe", "-i", "0", file.to_str().unwrap()]).ok();
    fs::write(file, content).unwrap();
}

/// Lines that carry their number are appended to `file`, until `end`; how many.
fn append(file: &Path, end: &AtomicBool) -> u32 {
    let mut out = fs::File::options().append(true).open(file).unwrap();
    let mut lines = 0;
    while !end.load(Ordering::Relaxed) {
        writeln!(out, "{lines:7}").unwrap();
        lines += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    lines
}

#[test]
fn an_object_target_is_emptied_while_programs_write() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs migrate: drain an OST", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape { osts: 3, ..Shape::mounts(2) });
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let top = mount.to_str().unwrap();
    let content = |number: u64| trees::bytes(number, 100_000 + 3000 * number as usize);
    let files: Vec<PathBuf> = (0..40).map(|number| PathBuf::from(format!("f {number}"))).collect();
    for (name, number) in files.iter().zip(0..) {
        on_the_first(&mount.join(name), &content(number));
    }
    let wide = mount.join("wide");
    lfs(&["setstripe", "-c", "2", "-o", "0,1", "-S", "64k", wide.to_str().unwrap()]).ok();
    fs::write(&wide, trees::bytes(77, 20 << 20)).unwrap();
    let before = fs::metadata(&wide).unwrap().modified().unwrap();
    on_the_first(&mount.join("log"), &[]);
    fs::write(mount.join("small"), "small").unwrap();

    let ost = cluster.target_name(Which::Ost(0));
    let end = AtomicBool::new(false);
    let lines = std::thread::scope(|scope| {
        let writer = scope.spawn(|| append(&other.join("log"), &end));
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !end.load(Ordering::Relaxed) {
                for (name, number) in files.iter().zip(0..) {
                    assert!(fs::read(other.join(name)).unwrap() == content(number), "{}", name.display());
                }
                rounds += 1;
            }
            rounds
        });
        let no_more = format!("osp.{ost}-osc-MDT*.max_create_count=0");
        adamant(["lctl", "set_param", "-P", &no_more]).ok();
        let usable = format!("lod.{}-MDT0000-mdtlov.usable_obd", cluster.fsname);
        wait_for("no new files lie there", || !cluster.parameter(&usable).contains(&ost));
        let program = binary().display().to_string();
        let drain = format!("'{program}' lfs find '{top}' --type f --ost 0 -print0 | '{program}' lfs migrate -0 -v");
        // A file that was written all the time is tried again.
        wait_for("the target has no files", || {
            shell(&drain).run();
            lfs(&["find", top, "--type", "f", "--ost", "0"]).ok().is_empty()
        });
        end.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
        writer.join().unwrap()
    });
    wait_for("the target has no objects", || objects(&cluster, 0) == (0, 0));

    // What is on disk is the same as what is in memory.
    cluster.kill9(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    let expected: String = (0..lines).map(|line| format!("{line:7}\n")).collect();
    for root in [&mount, &other] {
        assert_eq!(fs::read_to_string(root.join("log")).unwrap(), expected);
        for (name, number) in files.iter().zip(0..) {
            assert!(fs::read(root.join(name)).unwrap() == content(number), "{}", name.display());
        }
        assert!(fs::read(root.join("wide")).unwrap() == trees::bytes(77, 20 << 20));
        assert_eq!(fs::metadata(root.join("wide")).unwrap().modified().unwrap(), before);
    }
    let json = lfs(&["getstripe", "--json", wide.to_str().unwrap()]).ok();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&value["stripe_count"], &value["stripe_size"]), (&2.into(), &65536.into()), "{json}");

    // What cannot be is said.
    let name = |file: &str| mount.join(file).display().to_string();
    lfs(&["migrate", "-i", "0", &name("wide")]).refused_with(&["wide", "OST0000 takes no new objects"]);
    lfs(&["migrate", "-o", "9", &name("wide")]).refused_with(&["no OST0009"]);
    lfs(&["migrate", "-p", "slow", &name("wide")]).refused_with(&["no pool", "slow"]);
    lfs(&["migrate", top]).refused_with(&["is not a file"]);
    lfs(&["migrate", &name("nothing"), &name("f 1")]).refused_with(&["nothing"]);
    fs::set_permissions(&mount, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    adamant(["lfs", "migrate", &name("wide")]).by_user(1234, 1234).run().refused_with(&["wide", "not permitted"]);

    // By pool.
    let pool = format!("{}.fast", cluster.fsname);
    adamant(["lctl", "pool_new", &pool]).ok();
    adamant(["lctl", "pool_add", &pool, "1"]).ok();
    lfs(&["migrate", "-p", "fast", "-c", "1", &name("wide")]).ok();
    assert_eq!(osts(&wide), (vec![1], "fast".to_owned()));
    lfs(&["migrate", "-p", "none", "-i", "2", &name("wide")]).ok();
    assert_eq!(osts(&wide), (vec![2], String::new()));
    assert!(fs::read(other.join("wide")).unwrap() == trees::bytes(77, 20 << 20));
}

#[test]
fn an_object_target_whose_disk_is_lost_is_replaced() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mkfs --replace", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let content = trees::bytes(5, 300_000);
    fs::create_dir(mount.join("d")).unwrap();
    on_the_first(&mount.join("d/lost"), &content);
    on_the_first(&mount.join("d/small"), b"small");
    let kept = mount.join("d/kept");
    lfs(&["setstripe", "-i", "1", kept.to_str().unwrap()]).ok();
    fs::write(&kept, &content).unwrap();
    adamant(["sync"]).arg(&mount).ok();

    let name = cluster.target_name(Which::Ost(0));
    let place = cluster.place(Which::Ost(0)).to_path_buf();
    let fsname = cluster.fsname.clone();
    let make = |mgs: &str, more: &[&str]| {
        let words = ["mkfs", "--fsname", &fsname, "--ost", "--index", "0", "--mgsnode", mgs];
        adamant(words).args(more).arg(&place).run()
    };
    let mgs = cluster.nid(Which::Mgt).to_owned();
    cluster.kill9(Which::Ost(0));
    fs::remove_dir_all(&place).unwrap();
    make(&mgs, &[]).ok();
    cluster.restart_fails(Which::Ost(0), &[]).refused_with(&["in use by another target", "--replace"]);
    make(&mgs, &["--reformat", "--replace"]).ok();
    cluster.restart(Which::Ost(0));
    wait_for("its place is taken", || {
        cluster.server_log(Which::Mgt).contains(&format!("'{name}' takes the place of the target that was at"))
    });

    for root in [&mount, &other] {
        let folder = root.join("d");
        wait_for("what was lost is an error", || {
            fs::read(folder.join("lost")).is_err_and(|error| error.raw_os_error() == Some(5))
        });
        assert!(fs::read(folder.join("kept")).unwrap() == content);
        assert_eq!(fs::read(folder.join("small")).unwrap(), b"small");
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kept", "lost", "small"]);
    }
    // Small files grow to it, and new ones lie there.
    fs::write(other.join("d/small"), &content).unwrap();
    let probe = mount.join("probe").display().to_string();
    wait_for("it takes new objects", || lfs(&["setstripe", "-i", "0", &probe]).code == Some(0));
    on_the_first(&other.join("d/new"), &content);
    // The files that lay there are found, and removed.
    let gone = lfs(&["find", mount.join("d").to_str().unwrap(), "--type", "f", "--ost", "0"]).ok();
    assert!(gone.contains("d/lost"), "{gone}");
    command("rm").arg(mount.join("d/lost")).ok();
    on_the_first(&mount.join("d/lost"), &content);
    cluster.kill9_servers();
    cluster.start_all();
    for file in ["kept", "small", "new", "lost"] {
        assert!(fs::read(mount.join("d").join(file)).unwrap() == content, "{file}");
    }
    adamant(["mkfs", "--mdt", "--replace", "--mgsnode", &mgs]).arg(place.join("x")).run().refused_with(&["--ost"]);
}

#[test]
fn a_move_that_is_not_completed_leaves_the_file_and_no_objects() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs migrate: cut short", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let content = trees::bytes(5, 200 << 20);
    let file = cluster.mount(0).join("file");
    on_the_first(&file, &content);
    shell(&format!("sync '{}'", file.display())).ok();
    let copying = |cluster: &Cluster| {
        // Whoever started the tests may ignore Ctrl-C, and so would this program.
        let mut program = Process::new("env");
        program.arg("--default-signal=INT").arg(binary()).args(["lfs", "migrate", "-i", "1"]);
        program.arg(&file).stderr(Stdio::null());
        let program = program.spawn().unwrap();
        wait_for("some of it is copied", || objects(cluster, 1).1 > 1 << 20);
        program
    };

    // Ctrl-C, while a target does not answer either.
    let mut program = copying(&cluster);
    let server = rustix::process::Pid::from_raw(cluster.server_pid(Which::Ost(1)) as i32).unwrap();
    let signal = |pid, signal| rustix::process::kill_process(pid, signal).unwrap();
    signal(server, Signal::STOP);
    signal(rustix::process::Pid::from_child(&program), Signal::INT);
    assert!(!program.wait().unwrap().success());
    signal(server, Signal::CONT);
    wait_for("the copy is removed", || objects(&cluster, 1) == (0, 0));
    assert_eq!(osts(&file).0, [0]);

    // The mount dies.
    let mut program = copying(&cluster);
    cluster.kill9_mount(0);
    program.wait().unwrap();
    let log = cluster.server_log(Which::Mdt(0));
    let uuid = log.split_once("/mnt0 (").and_then(|(_, rest)| rest.split(')').next()).unwrap();
    let everywhere = format!("*.{}-*.evict_client={uuid}", cluster.fsname);
    adamant(["lctl", "set_param", &everywhere]).ok();
    let there = cluster.mount(1).join("file");
    assert!(fs::read(&there).unwrap() == content);
    assert_eq!(osts(&there).0, [0]);
    wait_for("the copy is removed", || objects(&cluster, 1) == (0, 0));
}
