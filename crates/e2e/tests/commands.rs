//! `lfs`, `lctl`, mount(8), umount(8), a user without rights, and what they print.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use e2e::command::shell;
use e2e::faults::wait_for;
use e2e::{Cluster, Outcome, SbinLink, Shape, Story, Which, adamant, binary, command, needs_root, skip, trees};

fn lfs(words: &[&str]) -> Outcome {
    adamant(["lfs"]).args(words).run()
}

fn lctl(words: &[&str]) -> Outcome {
    adamant(["lctl"]).args(words).run()
}

#[test]
fn lfs_tells_of_space_and_targets() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs df, mdts, osts, check", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape { mount_options: vec!["soft=2"], ..Shape::mounts(1) });
    let mount = cluster.mount(0).display().to_string();
    let (mdt, ost1) = (cluster.target_name(Which::Mdt(0)), cluster.target_name(Which::Ost(1)));

    for arguments in [&["df", &mount][..], &["df", "-h", &mount], &["df", "-i", &mount], &["df"]] {
        // Without a path every mount of the machine is told of, and one that others left dead is an error.
        let outcome = lfs(arguments);
        assert!(outcome.code == Some(0) || arguments.len() == 1, "{outcome}");
        let text = outcome.stdout;
        for name in [&mdt, &ost1] {
            assert!(text.contains(&format!("{name}_UUID")), "{name} is missing:\n{text}");
        }
        assert!(text.contains("filesystem_summary:") && text.contains("[OST:1]"), "{text}");
    }
    let head = lfs(&["df", "-i", &mount]).ok();
    assert!(head.contains("IUsed"), "{head}");
    let below = cluster.mount(0).join("below");
    fs::create_dir(&below).unwrap();
    let text = lfs(&["df", "-h", below.to_str().unwrap()]).ok();
    assert!(text.contains(" bytes ") && text.contains(&format!("{mount}[OST:1]")), "{text}");

    let text = lfs(&["mdts", &mount]).ok();
    assert!(text.contains(&format!("0: {mdt}_UUID ACTIVE")), "{text}");
    let text = lfs(&["osts", &mount]).ok();
    assert!(text.contains(&format!("1: {ost1}_UUID ACTIVE")), "{text}");
    let text = lfs(&["check", "servers", &mount]).ok();
    assert!(text.contains(&format!("{ost1} active.")), "{text}");
    lfs(&["check", "nonsense", &mount]).refused_with(&["nonsense", "servers"]);
    for verb in [
        &["quota", &mount][..],
        &["find", &mount, "--projid", "1"],
        &["setstripe", "-E", "1G", &mount],
        &["mkdir", "--foreign", &mount],
        &["getdirstripe", "-r", &mount],
        &["path2fid", "--parents", &mount],
    ] {
        let outcome = lfs(verb);
        assert!(outcome.code == Some(2) && outcome.stderr.contains("not in this version"), "{outcome}");
    }
    lfs(&["df", "/proc"]).refused_with(&["/proc", "not on an Adamant mount"]);

    // A target that is away is said to be, and the others are still told of.
    cluster.kill9(Which::Ost(1));
    let outcome = lfs(&["check", "osts", &mount]);
    assert_eq!(outcome.code, Some(1), "{outcome}");
    assert!(outcome.stdout.contains(&format!("{} active.", cluster.target_name(Which::Ost(0)))), "{outcome}");
    let text = lfs(&["df", &mount]).ok();
    assert!(text.contains("inactive") && text.contains(&mdt), "{text}");
    cluster.restart(Which::Ost(1));
}

/// The kernel does not see these directories come. They are made with the caller's rights and umask, as by mkdir(2).
#[test]
fn lfs_makes_directories_on_a_metadata_target() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs mkdir, getdirstripe", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let (mount, other) = (cluster.mount(0), cluster.mount(1));
    let shown = |path: &Path| path.to_str().unwrap().to_owned();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (number, place) in ["0", "-1", "0x"].into_iter().enumerate() {
        let path = mount.join(format!("dir{number}"));
        assert!(!path.exists());
        let before = fs::metadata(mount).unwrap().nlink();
        match place {
            "0x" => _ = lfs(&["mkdir", &shown(&path)]).ok(),
            place => _ = lfs(&["mkdir", "-i", place, &shown(&path)]).ok(),
        }
        assert!(path.is_dir() && other.join(format!("dir{number}")).is_dir(), "{place}");
        assert_eq!((mode(&path), fs::metadata(mount).unwrap().nlink()), (0o755, before + 1), "{place}");
        lfs(&["mkdir", "-i", "0", &shown(&path)]).refused_with(&["exists"]);
        fs::write(path.join("file"), "text").unwrap();
    }
    lfs(&["setdirstripe", "-i", "0", "-o", "1777", &shown(&mount.join("open"))]).ok();
    assert_eq!(mode(&mount.join("open")), 0o1777);
    let masked = format!("umask 027; cd '{}'; '{}' lfs mkdir -i 0 masked", mount.display(), binary().display());
    command("sh").arg("-c").arg(&masked).run().ok();
    assert_eq!(mode(&mount.join("masked")), 0o750);
    lfs(&["mkdir", "-i", "5", &shown(&mount.join("far"))]).refused_with(&["far", "no MDT0005", "lfs mdts"]);
    lfs(&["mkdir", "-i", "x", &shown(&mount.join("far"))]).refused_in_usage("x");
    lfs(&["mkdir", "-i", "0,0", &shown(&mount.join("far"))]).refused_in_usage("twice");
    lfs(&["mkdir", "-c", "2001", &shown(&mount.join("far"))]).refused_in_usage("2000");
    lfs(&["mkdir", "-C", "-6", &shown(&mount.join("far"))]).refused_in_usage("5");
    lfs(&["mkdir", "-H", "md5", &shown(&mount.join("far"))]).refused_in_usage("fnv_1a_64");
    lfs(&["mkdir", "-X", "2", &shown(&mount.join("far"))]).refused_in_usage("-D");
    lfs(&["setdirstripe", "--max-inherit-rr", "3", &shown(mount)]).refused_in_usage("-D");
    lfs(&["setdirstripe", "-D", "-X", "251", &shown(mount)]).refused_in_usage("250");
    lfs(&["mkdir", "-i", "0,1", "-c", "3", &shown(&mount.join("far"))]).refused_in_usage("a list of 2");
    lfs(&["mkdir", "-i", "0", &shown(&mount.join("none/far"))]).refused_with(&["none", "No such file"]);

    let text = lfs(&["getdirstripe", &shown(&mount.join("open"))]).ok();
    assert_eq!(text, "lmv_stripe_count: 0 lmv_stripe_offset: 0 lmv_hash_type: none\n");
    assert_eq!(lfs(&["getdirstripe", "-m", &shown(&mount.join("open"))]).ok(), "0\n");
    let text = lfs(&["getdirstripe", "-D", &shown(&mount.join("open"))]).ok();
    let inherited =
        "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 2 lmv_max_inherit_rr: 2\n";
    assert_eq!(text, inherited);
    assert_eq!(lfs(&["getstripe", "-m", &shown(&mount.join("dir0/file"))]).ok(), "0\n");
    assert_eq!(lfs(&["find", &shown(&mount.join("dir0")), "--mdt", "1"]).ok(), "");
    assert_eq!(lfs(&["find", &shown(&mount.join("dir0")), "--mdt", "0"]).ok().lines().count(), 2);
    lfs(&["getdirstripe", &shown(&mount.join("dir0/file"))]).refused_with(&["no directory"]);

    // Whatever the mount's own settings are: the kernel knows it to be read-only.
    command("mount").args(["-i", "-o", "remount,ro"]).arg(mount).run().ok();
    lfs(&["mkdir", "-i", "0", &shown(&mount.join("late"))]).refused_with(&["Read-only"]);
    command("mount").args(["-i", "-o", "remount,rw"]).arg(mount).run().ok();
    lfs(&["mkdir", "-i", "0", &shown(&mount.join("late"))]).ok();
}

/// `lfs find` beside find(1), and by object target.
#[test]
fn lfs_finds_names_by_attributes_and_by_target() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs find", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_path_buf();
    let top = mount.display().to_string();
    for directory in ["a", "a/b", "c"] {
        fs::create_dir(mount.join(directory)).unwrap();
        for number in 0..40 {
            fs::write(mount.join(directory).join(format!("file{number}")), vec![7; number * 100]).unwrap();
        }
    }
    std::os::unix::fs::symlink("a", mount.join("link")).unwrap();
    for ost in ["0", "1"] {
        let path = mount.join(format!("c/on{ost}"));
        lfs(&["setstripe", "-o", ost, path.to_str().unwrap()]).ok();
        fs::write(&path, vec![1; 200_000]).unwrap();
    }
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    for words in [&[][..], &["-type", "f"], &["-name", "*9", "-mtime", "-1"], &["!", "-type", "f"], &["-maxdepth", "1"]]
    {
        let expected = sorted(command("find").arg(&top).args(words).run().ok());
        assert_eq!(sorted(lfs(&[&["find", &top][..], words].concat()).ok()), expected, "{words:?}");
    }
    let own = |words: &[&str]| sorted(lfs(&[&["find", &top], words].concat()).ok());
    let (on0, on1) = (format!("{top}/c/on0"), format!("{top}/c/on1"));
    assert_eq!(own(&["--ost", &cluster.target_name(Which::Ost(1))]), [on1.as_str()]);
    assert_eq!(own(&["-O", "0,1"]), [on0.as_str(), &on1]);
    assert_eq!(own(&["-name", "on*", "!", "--ost", "1"]), [on0.as_str()]);
    assert_eq!(
        own(&["-size", "+100k", "-L", "raid0", "-printf", "%s %Lo %p\\n"]),
        [format!("200000 0 {on0}"), format!("200000 1 {on1}")]
    );
    let fid = lfs(&["path2fid", &on0]).ok();
    assert_eq!(own(&["-name", "on0", "-printf", "%LF\\n"]), [fid.trim()]);
    let zeros = lfs(&["find", &top, "-name", "on?", "-print0"]).ok();
    assert_eq!(zeros.matches('\0').count(), 2, "{zeros:?}");

    lfs(&["find", &top, "--ost", "nofs-OST0000"]).refused_with(&["nofs", &cluster.fsname]);
    lfs(&["find", "/etc/passwd", "-L", "raid0"]).refused_with(&["/etc/passwd", "not on an Adamant mount"]);
    lfs(&["find", &top, "-size", "much"]).refused_with(&["--size", "'much'"]);
}

/// A mount whose process died stays in the list of mounts: the others are told of all the same.
#[test]
fn lfs_goes_on_past_a_dead_mount() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs beside a dead mount", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let places: Vec<String> = cluster.mounts().iter().map(|place| place.display().to_string()).collect();
    let pid = rustix::process::Pid::from_raw(cluster.mount_pid(0) as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("the mount is dead", || fs::metadata(&places[0]).is_err());
    for words in [&["df"][..], &["osts"], &["mdts"], &["check", "servers"]] {
        let outcome = lfs(words);
        assert_eq!(outcome.code, Some(1), "{outcome}");
        assert!(outcome.stderr.contains(&places[0]) && !outcome.stderr.contains(&places[1]), "{outcome}");
        assert!(outcome.stdout.contains(&cluster.target_name(Which::Mdt(0))) || words == ["osts"], "{outcome}");
    }
    lfs(&["df", &places[0]]).refused_with(&[&places[0]]);
    cluster.kill9_mount(0);
}

/// A command whose output nobody reads ends as ever; one whose output cannot be written says so.
#[test]
fn output_that_nobody_reads_is_no_failure() {
    let run = |stdout: Stdio| {
        let words = ["sim", "--scenario", "list"];
        Process::new(binary()).args(words).stdin(Stdio::null()).stdout(stdout).output().unwrap()
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = run(writer.into());
    assert_eq!((unread.status.code(), String::from_utf8_lossy(&unread.stderr).as_ref()), (Some(0), ""));
    // Standard error, likewise: `adamant ... 2>&1 | head -1`.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for words in [&["lfs", "df", "/nowhere"][..], &["lctl", "get_param", "no.such"], &["lctl", "frobnicate"], &[]] {
        let ended =
            Process::new(binary()).args(words).stderr(writer.try_clone().unwrap()).stdout(Stdio::null()).status();
        let code = ended.unwrap().code();
        assert!(matches!(code, Some(1 | 2)), "{words:?}: {code:?}");
    }
    let full = run(fs::File::options().write(true).open("/dev/full").unwrap().into());
    let told = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!((full.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    assert!(told.contains("cannot write to standard output"), "{told}");
}

#[test]
fn lfs_tells_paths_and_fids() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs path2fid, fid2path", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0);
    let shown = mount.display().to_string();
    fs::create_dir_all(mount.join("a folder/below")).unwrap();
    let file = mount.join("a folder/below/file");
    fs::write(&file, "x").unwrap();
    fs::hard_link(&file, mount.join("other name")).unwrap();

    let fid = lfs(&["path2fid", file.to_str().unwrap()]).ok();
    let fid = fid.trim();
    assert!(fid.starts_with("[0x") && fid.ends_with(":0x0]") && fid.matches(':').count() == 2, "{fid}");
    assert_eq!(lfs(&["path2fid", mount.join("other name").to_str().unwrap()]).ok().trim(), fid);
    for place in [&shown, &cluster.fsname] {
        let text = lfs(&["fid2path", place, fid]).ok();
        let mut paths: Vec<&str> = text.lines().collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/a folder/below/file", "/other name"]);
    }
    fs::rename(mount.join("a folder"), mount.join("renamed")).unwrap();
    fs::remove_file(mount.join("other name")).unwrap();
    assert_eq!(lfs(&["fid2path", &shown, fid]).ok(), "/renamed/below/file\n");
    let root = lfs(&["path2fid", &shown]).ok();
    assert_eq!(lfs(&["fid2path", &shown, root.trim()]).ok(), "/\n");

    fs::remove_file(mount.join("renamed/below/file")).unwrap();
    lfs(&["fid2path", &shown, fid]).refused_with(&[fid, "No such file"]);
    lfs(&["fid2path", &shown, "0x1:0x2:0x3"]).refused_with(&["no object of", "0x1:0x2:0x3"]);
    let outcome = lfs(&["fid2path", &shown, "[nonsense]"]);
    assert_eq!(outcome.code, Some(2), "{outcome}");
    lfs(&["path2fid", mount.join("absent").to_str().unwrap()]).refused_with(&["absent", "No such file"]);
    lfs(&["path2fid", "/etc/passwd"]).refused_with(&["not on an Adamant mount"]);
}

#[test]
fn lfs_sets_and_shows_layouts() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lfs setstripe, getstripe", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape { osts: 3, ..Shape::mounts(2) });
    let (mount, other) = (cluster.mount(0), cluster.mount(1));
    let number = |flag: &str, path: &Path| lfs(&["getstripe", flag, path.to_str().unwrap()]).ok().trim().to_owned();

    let folder = mount.join("wide");
    fs::create_dir(&folder).unwrap();
    lfs(&["setstripe", "-c", "3", "-S", "128k", "-i", "1", folder.to_str().unwrap()]).ok();
    assert_eq!(number("-c", &other.join("wide")), "3");
    assert_eq!(number("-S", &folder), "131072");
    // New files and folders follow it; the data is really spread, and right.
    let file = folder.join("file");
    let content = trees::bytes(5, 3_000_001);
    fs::write(&file, &content).unwrap();
    assert_eq!(
        (number("-c", &file), number("-S", &file), number("-i", &file)),
        ("3".into(), "131072".into(), "1".into())
    );
    assert!(fs::read(other.join("wide/file")).unwrap() == content);
    fs::File::open(&file).unwrap().sync_all().unwrap();
    for ost in 0..3 {
        let used = data_bytes(&cluster.place(Which::Ost(ost)).join("objects"));
        assert!((800_000..1_300_000).contains(&used), "OST {ost} holds {used} bytes of the file");
    }
    fs::create_dir(folder.join("below")).unwrap();
    assert_eq!(number("-c", &folder.join("below")), "3");

    // A small file lives on the metadata target until it grows.
    let small = mount.join("small");
    fs::write(&small, "x").unwrap();
    let text = lfs(&["getstripe", small.to_str().unwrap()]).ok();
    assert!(text.contains("lmm_pattern:       mdt"), "{text}");
    fs::write(&small, &content).unwrap();
    let text = lfs(&["getstripe", small.to_str().unwrap()]).ok();
    assert!(text.contains("lmm_pattern:       raid0") && text.contains("obdidx"), "{text}");
    let json = lfs(&["getstripe", "--json", small.to_str().unwrap()]).ok();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["resident"], false, "{json}");

    // A file made with a layout; -1 is one stripe on each target.
    let made = mount.join("made");
    lfs(&["setstripe", "-c", "-1", "-S", "64k", made.to_str().unwrap()]).ok();
    assert_eq!(number("-c", &made), "3");
    fs::write(&made, &content).unwrap();
    assert!(fs::read(other.join("made")).unwrap() == content);

    lfs(&["setstripe", "-S", "1000", folder.to_str().unwrap()]).refused_with(&["1000", "65536"]);
    lfs(&["setstripe", "-S", "banana", folder.to_str().unwrap()]).refused_in_usage("banana");
    let far = mount.join("far");
    lfs(&["setstripe", "-i", "77", far.to_str().unwrap()]).refused_with(&["far", "no OST004d"]);
    lfs(&["setstripe", "-o", "0,77", far.to_str().unwrap()]).refused_with(&["no OST004d"]);
    assert!(!far.exists(), "a file that was made for a layout that cannot be goes again");
    lfs(&["setstripe", "-c", "2", made.to_str().unwrap()]).refused_with(&["made"]);
    assert!(fs::read(&made).unwrap() == content, "a refused setstripe changes nothing");

    // Targets by name, a directory with what is in it, and the end of its layout.
    let listed = folder.join("listed");
    lfs(&["setstripe", "-o", "2,0", listed.to_str().unwrap()]).ok();
    fs::write(&listed, &content).unwrap();
    let text = lfs(&["getstripe", "-y", listed.to_str().unwrap()]).ok();
    assert!(text.contains("lmm_stripe_count:  2") && text.contains("- l_ost_idx: 2"), "{text}");
    let text = lfs(&["getstripe", folder.to_str().unwrap()]).ok();
    assert!(text.contains("stripe_count:  3 stripe_size:   131072"), "{text}");
    for name in ["wide/below", "wide/file", "wide/listed"] {
        assert!(text.contains(mount.join(name).to_str().unwrap()), "{name} is missing:\n{text}");
    }
    lfs(&["setstripe", "-d", folder.to_str().unwrap()]).ok();
    let text = lfs(&["getstripe", "-d", folder.to_str().unwrap()]).ok();
    assert!(text.contains("stripe_count:  1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1"), "{text}");

    // One that is taken out gets no new files.
    lctl(&["deactivate", &cluster.target_name(Which::Ost(1))]).ok();
    lfs(&["setstripe", "-i", "1", mount.join("there").to_str().unwrap()])
        .refused_with(&["OST0001 takes no new objects"]);
    for i in 0..4 {
        let new = mount.join(format!("new{i}"));
        lfs(&["setstripe", "-c", "3", new.to_str().unwrap()]).ok();
        assert_eq!(number("-c", &new), "2");
    }
    lctl(&["activate", &cluster.target_name(Which::Ost(1))]).ok();
}

/// What programs with a variable in their environment do is counted for its value, on metadata and object targets.
#[test]
fn jobs_are_told_apart() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("job_stats", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let stats = |which| {
        let kind = if which == Which::Mdt(0) { "mdt" } else { "obdfilter" };
        cluster.parameter(&format!("{kind}.{}.job_stats", cluster.target_name(which)))
    };
    let of_job = |text: &str, job: &str, what: &str| -> Option<u64> {
        let (_, rest) = text.split_once(&format!("- job_id:          {job}\n"))?;
        let (_, rest) = rest.split_once(&format!("  {what}:"))?;
        rest.split("sum:").next()?.split("samples:").nth(1)?.split(',').next()?.trim().parse().ok()
    };
    let write = |at: usize, job: &str, name: &str| {
        let place = cluster.mount(at).join(name);
        let line = format!(
            "mkdir '{0}' && lfs() {{ '{1}' lfs \"$@\"; }}; lfs setstripe -i 0 '{0}/f' && dd if=/dev/zero of='{0}/f' bs=64k count=10 conv=fsync",
            place.display(),
            binary().display()
        );
        shell(&line).env("MY_JOB", job).run().ok();
    };
    write(0, "one", "before");
    assert_eq!(stats(Which::Mdt(0)), "job_stats:", "they are off");
    // Of these mounts alone.
    let on_mount = |at: usize, words: &[&str]| adamant(["lctl", "--device"]).arg(cluster.mount(at)).args(words).run();
    on_mount(0, &["set_param", "jobid_var=no blanks"]).refused_with(&["jobid_var", "Invalid argument"]);
    lctl(&["conf_param", &format!("{}.sys.jobid_var=MY_JOB", cluster.fsname)]).ok();
    wait_for("clients follow", || {
        (0..2).all(|at| on_mount(at, &["get_param", "-n", "jobid_var"]).stdout.trim_end() == "MY_JOB")
    });
    // A program that is begun closes files that were inherited, while nobody can look at its environment.
    let held = fs::File::create(cluster.mount(0).join("held")).unwrap();
    for _ in 0..20 {
        command("true").env("MY_JOB", "closes").within(Duration::from_secs(10)).ok();
    }
    drop(held);
    write(0, "one", "a");
    write(1, "one", "b");
    write(1, "two", "c");
    command("stat").arg(cluster.mount(0).join("c/f")).env("MY_JOB", "bad name: x").ok();
    command("touch").arg(cluster.mount(0).join("c/g")).run().ok();
    adamant(["sync"]).arg(cluster.mount(0)).ok();
    let (mdt, ost) = (stats(Which::Mdt(0)), stats(Which::Ost(0)));
    for (job, times) in [("one", 2), ("two", 1)] {
        assert_eq!(of_job(&mdt, job, "mkdir"), Some(times), "{mdt}");
        assert!(of_job(&ost, job, "write_bytes").is_some_and(|samples| samples >= times), "{ost}");
    }
    assert!(mdt.contains("bad?name??x") && mdt.contains("touch.0"), "{mdt}");
    let name = format!("mdt.{}.job_stats", cluster.target_name(Which::Mdt(0)));
    lctl(&["set_param", &format!("{name}=two")]).ok();
    assert_eq!(of_job(&stats(Which::Mdt(0)), "two", "mkdir"), None);
    assert_eq!(of_job(&stats(Which::Mdt(0)), "one", "mkdir"), Some(2));
    lctl(&["set_param", &format!("{name}=two")]).refused();
    lctl(&["set_param", &format!("{name}=clear")]).ok();
    assert!(!stats(Which::Mdt(0)).contains("job_id: "));
}

/// Files of a pool lie on its targets only; pools can be changed while clients work, and outlast their MGS.
#[test]
fn pools_hold_files_on_their_targets() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lctl pool_*", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape { osts: 3, ..Shape::mounts(1) });
    let (mount, fsname) = (cluster.mount(0).to_path_buf(), cluster.fsname.clone());
    let pool = format!("{fsname}.fast");
    let folder = mount.join("fast");
    fs::create_dir(&folder).unwrap();
    let shown = folder.to_str().unwrap();
    let osts = |name: &str| {
        let file = mount.join(name);
        fs::write(&file, vec![1; 200_000]).unwrap();
        let json = lfs(&["getstripe", "--json", file.to_str().unwrap()]).ok();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let mut osts: Vec<u64> = value["osts"].as_array().unwrap().iter().filter_map(|ost| ost.as_u64()).collect();
        osts.sort_unstable();
        (osts, value["pool"].as_str().unwrap_or_default().to_owned())
    };

    lctl(&["pool_add", &pool, "OST0000"]).refused_with(&["no pool"]);
    lctl(&["pool_new", &pool]).ok();
    lctl(&["pool_new", &pool]).refused_with(&["exists already"]);
    lfs(&["setstripe", "-p", "fast", shown]).refused_with(&["has no OSTs"]);
    lctl(&["pool_add", &pool, &format!("{fsname}-OST[1-2]")]).ok();
    lctl(&["pool_add", &pool, "7"]).refused_with(&["no", "OST0007"]);
    lctl(&["pool_destroy", &pool]).refused_with(&["remove them first"]);
    lfs(&["setstripe", "-p", "slow", shown]).refused_with(&["no pool", "slow"]);
    lfs(&["setstripe", "-p", "fast", "-i", "0", shown]).refused_with(&["OST0000 is not in pool"]);
    lfs(&["setstripe", "-p", "fast", "-c", "-1", shown]).ok();
    assert_eq!(lfs(&["getstripe", "-d", "-p", shown]).ok().trim(), "fast");
    fs::create_dir(folder.join("below")).unwrap();
    assert_eq!(osts("fast/below/one"), (vec![1, 2], "fast".to_owned()));
    let listed = lfs(&["pool_list", &pool]).ok();
    assert_eq!(listed, format!("Pool: {pool}\n{fsname}-OST0001_UUID\n{fsname}-OST0002_UUID\n"));
    assert_eq!(lctl(&["pool_list", &pool]).ok(), listed);
    let space = lfs(&["df", "--pool", &pool, shown]).ok();
    assert!(space.contains("OST0002") && !space.contains("OST0000"), "{space}");

    lctl(&["pool_remove", &pool, "OST0001"]).ok();
    cluster.kill9(Which::Mgt);
    cluster.restart(Which::Mgt);
    // The MGS is there a moment after its process.
    let start = std::time::Instant::now();
    while lctl(&["pool_add", &pool, "0"]).code != Some(0) {
        assert!(start.elapsed() < Duration::from_secs(20), "the MGS does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(osts("fast/two").0, [0, 2]);
    lctl(&["pool_remove", &pool, "OST[0,2]"]).ok();
    lctl(&["pool_destroy", &pool]).ok();
    assert_eq!(osts("fast/three"), (vec![0, 1, 2], String::new()));
    assert_eq!(lfs(&["pool_list", &fsname]).ok(), format!("Pools from {fsname}:\n"));
}

trait RefusedInUsage {
    fn refused_in_usage(self, word: &str);
}

impl RefusedInUsage for Outcome {
    /// The command line's own errors have several lines, with a hint; status 2.
    #[track_caller]
    fn refused_in_usage(self, word: &str) {
        assert_eq!(self.code, Some(2), "{self}");
        assert!(self.stderr.contains(word), "{self}");
    }
}

fn data_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => data_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A server that is asked over the network tells and does the same as over the socket of its machine.
fn from_afar(cluster: &Cluster, mdt: &str) {
    let at = |which| ["--host".to_owned(), cluster.nid(which).to_owned()];
    let ask = |which, words: &[&str]| adamant(["lctl"]).args(at(which)).args(words).run();
    let exports = format!("mdt.{mdt}.num_exports");
    let here = lctl(&["get_param", &exports]).ok();
    assert_eq!(ask(Which::Mdt(0), &["get_param", &exports]).ok(), here);
    assert_eq!(ask(Which::Ost(0), &["get_param", &exports]).code, Some(2), "it is another process");
    let shares = format!("mdt.{mdt}.commit_on_sharing");
    let before = lctl(&["get_param", "-n", &shares]).ok();
    ask(Which::Mdt(0), &["set_param", &format!("{shares}=1")]).ok();
    assert_eq!(lctl(&["get_param", "-n", &shares]).ok().trim(), "1");
    lctl(&["set_param", &format!("{shares}={}", before.trim())]).ok();
    assert_eq!(ask(Which::Mdt(0), &["set_param", &format!("{shares}=x")]).code, Some(1));
    let devices = ask(Which::Mdt(0), &["dl"]).ok();
    assert!(devices.lines().count() == 1 && devices.contains(mdt), "{devices}");
    assert_eq!(ask(Which::Mdt(0), &["list_nids"]).ok().trim(), cluster.nid(Which::Mdt(0)));
    assert!(ask(Which::Mdt(0), &["list_param", "-R", "mdt.*"]).ok().contains(&exports));
    ask(Which::Mdt(0), &["mark", "from", "afar"]).ok();
    assert!(cluster.server_log(Which::Mdt(0)).contains("mark: from afar"));
    ask(Which::Mdt(0), &["set_param", "-P", "x=1"]).refused_with(&["--host"]);
    let nobody = adamant(["lctl", "--host", &e2e::cluster::free_nid(), "get_param", &exports]).run();
    assert!(nobody.code != Some(0) && nobody.stderr.contains("is a server running there"), "{nobody}");
}

/// Two mounts of one file system on one node, whose parameters have equal values.
#[test]
fn mounts_of_a_node_are_told_apart_by_their_devices() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("devices of mounts", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape { osts: 1, ..Shape::mounts(2) });
    let fsname = &cluster.fsname;
    fs::write(cluster.mount(0).join("f"), "x").unwrap();
    let instances: Vec<String> = (0..2)
        .map(|index| {
            let mount = cluster.mount(index).display().to_string();
            let names =
                lctl(&["--device", &mount, "get_param", "-N", &format!("mdc.{fsname}-MDT0000-mdc-*.state")]).ok();
            let part = names.trim().strip_suffix(".state").and_then(|name| name.rsplit_once('-'));
            part.map(|(_, instance)| instance.to_owned()).expect("the instance")
        })
        .collect();
    assert!(instances[0] != instances[1] && instances.iter().all(|it| it.len() == 16), "{instances:?}");
    // The pattern of Lustre's scripts, and one without the instance.
    for pattern in [format!("mdc.{fsname}-MDT0000-mdc-*"), format!("mdc.{fsname}-MDT0000-mdc")] {
        let told = lctl(&["get_param", &format!("{pattern}.max_mod_rpcs_in_flight")]).ok();
        let line = |it: &String| format!("mdc.{fsname}-MDT0000-mdc-{it}.max_mod_rpcs_in_flight=7");
        let mut want: Vec<String> = instances.iter().map(line).collect();
        want.sort();
        assert_eq!(told.lines().collect::<Vec<_>>(), want, "{pattern}");
    }
    let set = |name: &str| lctl(&["set_param", name]).ok();
    set(&format!("mdc.{fsname}-MDT0000-mdc-{}.max_mod_rpcs_in_flight=5", instances[1]));
    let values = lctl(&["get_param", "-n", &format!("mdc.{fsname}-MDT0000-mdc-*.max_mod_rpcs_in_flight")]).ok();
    assert_eq!(values.lines().collect::<std::collections::BTreeSet<_>>(), ["5", "7"].into());
    let devices = lctl(&["dl"]).ok();
    for it in &instances {
        for (kind, name) in [
            ("llite", format!("{fsname}-{it}")),
            ("mdc", format!("{fsname}-MDT0000-mdc-{it}")),
            ("osc", format!("{fsname}-OST0000-osc-{it}")),
            ("mgc", format!("MGS-mgc-{it}")),
            ("lov", format!("{fsname}-clilov-{it}")),
            ("lmv", format!("{fsname}-clilmv-{it}")),
        ] {
            let words = devices.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row = words.into_iter().find(|words| words.get(3) == Some(&name.as_str())).expect(&name);
            assert_eq!((row.len(), row[1], row[2]), (6, "UP", kind), "{row:?}");
            assert!(row[5].parse::<u64>().is_ok_and(|count| count > 0), "{row:?}");
            let uuid = lctl(&["--device", &name, "get_param", "-n", "llite.*.uuid"]).ok();
            assert_eq!(uuid.trim(), row[4], "a device names its mount");
        }
    }
    let target = devices.lines().find(|line| line.contains(&format!(" mdt {fsname}-MDT0000 "))).unwrap();
    assert!(
        target.split_whitespace().nth(5).unwrap().parse::<u64>().unwrap() > 2,
        "two mounts and the server: {target}"
    );
    for path in ["llite", "lov", "lmv"] {
        let names = lctl(&["list_param", &format!("{path}.{fsname}*")]).ok();
        assert_eq!(names.lines().count(), 2, "{names}");
    }
}

#[test]
fn lctl_shows_and_sets_parameters() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lctl", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let fsname = &cluster.fsname;
    fs::write(cluster.mount(0).join("f"), "x").unwrap();
    let mdt = cluster.target_name(Which::Mdt(0));

    let status = lctl(&["get_param", &format!("mdt.{mdt}.recovery_status")]).ok();
    assert!(status.contains("status: ") && status.starts_with(&format!("mdt.{mdt}.recovery_status=")), "{status}");
    let count = lctl(&["get_param", "-n", &format!("mdt.{fsname}-*.num_exports")]).ok();
    let named = lctl(&["get_param", &format!("mdt.{fsname}-*.num_exports")]).ok();
    assert!(count.trim().parse::<u32>().is_ok_and(|count| count >= 1), "{count} {named}");
    let import = lctl(&["get_param", "-n", &format!("mdc.{fsname}-MDT0000*.import")]).ok();
    assert!(import.contains("FULL"), "{import}");
    let names = lctl(&["get_param", "-N", &format!("obdfilter.{fsname}-*.recovery_status")]).ok();
    assert_eq!(names.lines().count(), 2, "{names}");
    let list = lctl(&["list_param", "-R", "-F", &format!("mdt.{mdt}")]).ok();
    assert!(list.lines().any(|line| line == format!("mdt.{mdt}.num_exports")), "{list}");
    assert!(list.lines().any(|line| line == format!("mdt.{mdt}.dom_stripesize=")), "{list}");
    for line in list.lines().filter(|line| line.matches('.').count() == 2 && !line.ends_with('/')) {
        let line = line.trim_end_matches('=');
        let outcome = lctl(&["get_param", line]);
        assert_eq!(outcome.code, Some(0), "{line} is listed and must be readable: {outcome}");
    }
    for listing in [&["list_param", "mdt.*"][..], &["get_param", "-N", "mdt.*"]] {
        assert!(lctl(listing).ok().lines().any(|line| line == format!("mdt.{mdt}")), "{listing:?}");
    }
    assert!(lctl(&["list_param", "-D", &format!("mdt.{mdt}.*")]).ok().contains("exports\n"));
    assert!(lctl(&["get_param", "-R", &format!("mdt.{mdt}")]).ok().contains("num_exports="));
    let classified = lctl(&["get_param", "-F", &format!("mdt.{mdt}.dom_stripesize")]).ok();
    assert!(classified.starts_with(&format!("mdt.{mdt}.dom_stripesize==")), "{classified}");
    lctl(&["get_param", &format!("mdt.{mdt}")]).refused_with(&["Is a directory", "-R"]);
    // Of this cluster alone: others of this node may have stopped targets.
    assert_eq!(lctl(&["--host", cluster.nid(Which::Mdt(0)), "health_check"]).ok(), "healthy\n");
    assert_eq!(lctl(&["--device", &mdt, "get_param", "-n", "health_check"]).ok(), "healthy\n");
    let version = lctl(&["--host", cluster.nid(Which::Mdt(0)), "get_param", "-n", "version"]).ok();
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    assert!(lctl(&["version"]).ok().starts_with("adamant: "));
    assert!(lctl(&["dl", "-t"]).ok().contains(cluster.nid(Which::Mdt(0))));
    for words in [&["lfsck_start"][..], &["net", "up"], &["nodemap_add", "x"], &["get_param", "mdd.*.changelog_users"]]
    {
        let lacking = lctl(words);
        assert_eq!((lacking.code, lacking.stderr.lines().count()), (Some(2), 1), "{lacking}");
        assert!(lacking.stderr.contains("not in this version; see limits"), "{lacking}");
    }
    lctl(&["helth_check"]).refused_with(&["no verb 'helth_check'"]);
    let nobody = lctl(&["set_param", &format!("*.{fsname}-*.evict_client=nid:10.1.2.3")]);
    nobody.refused_with(&["no such client"]);
    let devices = lctl(&["dl"]).ok();
    for word in [mdt.as_str(), "obdfilter", "mgs", " UP "] {
        assert!(devices.contains(word), "{word} is missing:\n{devices}");
    }
    let devices: serde_json::Value = serde_json::from_str(&lctl(&["dl", "--json"]).ok()).unwrap();
    let named = |device: &serde_json::Value| device["name"] == mdt.as_str() && device["kind"] == "mdt";
    assert!(devices.as_array().is_some_and(|all| all.iter().any(named)), "{devices}");
    let nids = lctl(&["list_nids"]).ok();
    assert!(nids.contains(cluster.nid(Which::Mdt(0))), "{nids}");
    lctl(&["ping", cluster.nid(Which::Mdt(0))]).ok();
    lctl(&["ping", &e2e::cluster::free_nid()]).refused_with(&["failed to ping"]);
    lctl(&["mark", "a", "line"]).ok();
    from_afar(&cluster, &mdt);

    let absent = lctl(&["get_param", "mdt.nothing.like_this"]);
    assert_eq!(absent.code, Some(2), "{absent}");
    assert_eq!(absent.stderr, "error: get_param: param_path 'mdt.nothing.like_this': No such file or directory\n");
    let absent = lctl(&["set_param", "mdt.nothing.like_this=1"]);
    assert_eq!((absent.code, absent.stderr.lines().count()), (Some(2), 1), "{absent}");
    lctl(&["set_param", "without-a-value"]).refused_with(&["without-a-value", "PATTERN=VALUE"]);
    let bad = lctl(&["set_param", &format!("mdt.{mdt}.commit_on_sharing=banana")]);
    assert!(bad.code.is_some_and(|code| code != 0) && bad.stderr.contains("commit_on_sharing"), "{bad}");
    let fixed = lctl(&["set_param", &format!("mdt.{mdt}.num_exports=7")]);
    assert!(fixed.code.is_some_and(|code| code != 0) && !fixed.stderr.is_empty(), "{fixed}");

    let set = format!("mdt.{mdt}.commit_on_sharing");
    lctl(&["set_param", &format!("{set}=0")]).ok();
    assert_eq!(lctl(&["get_param", "-n", &set]).ok().trim(), "0");
    lctl(&["set_param", &format!("{set}=1")]).ok();
    assert_eq!(lctl(&["get_param", "-n", &set]).ok().trim(), "1");
}

/// Persistent parameters reach everybody at once, and whoever starts later.
#[test]
fn persistent_parameters_are_followed_by_all() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("set_param -P", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let fsname = cluster.fsname.clone();
    let is = |name: &str, value: &str| {
        let start = std::time::Instant::now();
        loop {
            let found = lctl(&["get_param", "-n", name]).stdout;
            if found.trim() == value {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{name} is {found}, not {value}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let dom = format!("mdt.{fsname}-MDT0000.dom_stripesize");
    let cached = format!("llite.{fsname}.max_cached_mb");
    lctl(&["set_param", "-P", &format!("{dom}=128k"), &format!("{cached}=77")]).ok();
    is(&dom, "131072");
    is(&cached, "77");
    cluster.kill9(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    cluster.unmount(0);
    cluster.mount_again(0);
    is(&dom, "131072");
    is(&cached, "77");
    // What was set since, for the time being, stays when something else changes.
    lctl(&["set_param", &format!("{cached}=33")]).ok();
    let interval = format!("obdfilter.{fsname}-OST0001.commit_interval_ms");
    lctl(&["set_param", "-P", &format!("{interval}=500")]).ok();
    is(&interval, "500");
    is(&cached, "33");

    for (nobodys, why) in [
        (format!("mdt.{fsname}-MDT0000.bogus"), "no server and no client"),
        (format!("nonsense.{fsname}.x"), "no server and no client"),
        (format!("osc.{fsname}-*.max_pages_per_rpc"), "see limits"),
    ] {
        lctl(&["set_param", "-P", &format!("{nobodys}=1")]).refused_with(&[&nobodys, why]);
    }
    let prio = "lod.*.qos_prio_free";
    assert_eq!(lctl(&["set_param", "-P", &format!("{prio}=80")]).ok(), format!("{prio}=80\n"));
    let threshold = format!("lod.{fsname}-MDT0000-mdtlov.qos_threshold_rr");
    lctl(&["conf_param", &format!("{fsname}-MDT0000.lod.qos_threshold_rr=20")]).ok();
    is(&threshold, "20%");
    let kept = lctl(&["get_param", "-P", "**"]).ok();
    for line in [format!("{dom}=128k"), format!("{prio}=80"), format!("{threshold}=20")] {
        assert!(kept.lines().any(|kept| kept == line), "{line} is missing:\n{kept}");
    }

    lctl(&["set_param", "-P", "-d", &dom]).ok();
    assert_eq!(lctl(&["set_param", "-P", "-d", &dom]).code, Some(2), "it is gone");
    cluster.stop(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    is(&dom, "65536");
    let nowhere = lctl(&["set_param", "-P", "mdt.nothing-MDT0000.dom_stripesize=0"]);
    assert_eq!(nowhere.code, Some(2), "{nowhere}");
}

/// The chapter on parameters and the program agree.
#[test]
fn every_parameter_is_in_the_guide() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("parameters in the guide", Duration::from_secs(60));
    let cluster = Cluster::with_mdts_in(&story, Shape::mounts(1), 2);
    fs::write(cluster.mount(0).join("f"), vec![1; 300_000]).unwrap();
    // The connection of the metadata target to an object target is made when it is needed.
    fs::remove_file(cluster.mount(0).join("f")).unwrap();
    lctl(&["pool_new", &format!("{}.some", cluster.fsname)]).ok();
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/parameters.md")).unwrap();
    let described: std::collections::BTreeSet<String> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |").map(|(names, _)| names.to_owned()))
        .flat_map(|names| names.split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<_>>())
        .filter(|name| name.contains(".*"))
        .collect();
    assert!(described.len() > 30, "{described:?}");
    let pattern = |name: &str| -> String {
        let mut parts: Vec<&str> = name.split('.').collect();
        let device = if parts[0] == "ldlm" { 2 } else { 1 };
        parts[device] = "*";
        if let Some(at) = parts.iter().position(|part| matches!(*part, "exports" | "live" | "pools")) {
            parts[at + 1] = "*";
        }
        parts.join(".")
    };
    let listed = || -> std::collections::BTreeSet<String> {
        let all = lctl(&["get_param", "-N", "**"]).stdout;
        all.lines().filter(|name| name.contains(&cluster.fsname) || name.contains(".MGS")).map(pattern).collect()
    };
    // Those of a process have no device.
    let every = guide.split_once("## Every process").unwrap().1.split_once("\n## ").unwrap().0;
    let rows = every.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once(" |")?.0));
    let mut global: Vec<String> = rows
        .flat_map(|row| row.split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<_>>())
        .collect();
    global.sort();
    let everywhere = lctl(&["list_param", "-F", "*"]).ok();
    let leaves = everywhere.lines().filter(|name| !name.ends_with('/')).map(|name| name.trim_end_matches('='));
    assert_eq!(leaves.collect::<Vec<_>>(), global);
    let start = std::time::Instant::now();
    while !listed().contains("osp.*.import") || !described.is_subset(&listed()) {
        assert!(
            start.elapsed() < Duration::from_secs(15),
            "in the guide and not there: {:?}",
            described.difference(&listed()).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let found = listed();
    let missing: Vec<&String> = found.difference(&described).collect();
    assert!(missing.is_empty(), "not in the guide: {missing:?}");
}

#[test]
fn a_directory_of_a_file_system_is_mounted_by_itself() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a subtree", Duration::from_secs(90));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let whole = cluster.mount(0);
    fs::create_dir_all(whole.join("home/one")).unwrap();
    fs::write(whole.join("home/one/file"), "hello").unwrap();
    fs::write(whole.join("secret"), "x").unwrap();
    let part = story.folder().join("part");
    fs::create_dir(&part).unwrap();
    adamant(["mount", &format!("{}/home/one", cluster.source())]).arg(&part).within(Duration::from_secs(20)).ok();
    assert_eq!(fs::read_to_string(part.join("file")).unwrap(), "hello");
    assert_eq!(fs::read_dir(&part).unwrap().count(), 1);
    fs::create_dir(part.join("new")).unwrap();
    fs::write(part.join("new/f"), "made there").unwrap();
    assert_eq!(fs::read_to_string(whole.join("home/one/new/f")).unwrap(), "made there");
    let (inner, outer) = (fs::metadata(&part).unwrap(), fs::metadata(whole.join("home/one")).unwrap());
    assert_eq!((inner.ino(), inner.mode()), (outer.ino(), outer.mode()));
    // Others may rename and change it, and it stays what it is.
    fs::set_permissions(whole.join("home/one"), PermissionsExt::from_mode(0o711)).unwrap();
    assert_eq!(fs::metadata(&part).unwrap().mode() & 0o777, 0o711);
    fs::rename(whole.join("home/one"), whole.join("home/two")).unwrap();
    fs::write(part.join("later"), "after the rename").unwrap();
    fs::rename(part.join("later"), part.join("new/later")).unwrap();
    fs::remove_file(part.join("file")).unwrap();
    assert_eq!(fs::read_to_string(whole.join("home/two/new/later")).unwrap(), "after the rename");
    assert!(!whole.join("home/two/file").exists());
    fs::write(whole.join("home/two/seen"), "x").unwrap();
    assert!(part.join("seen").exists(), "what others make there is seen");
    e2e::story::take_away(&part);
}

#[test]
fn tune_changes_parameters_and_registration() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("tune --param, --writeconf", Duration::from_secs(90));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    fs::write(cluster.mount(0).join("f"), "kept").unwrap();
    let dom = format!("mdt.{}-MDT0000.dom_stripesize", cluster.fsname);
    let mdt = cluster.place(Which::Mdt(0)).display().to_string();
    adamant(["tune", "--param", "mdt.dom_stripesize=128k", &mdt]).run().refused_with(&["in use"]);
    let cached = format!("llite.{}.max_cached_mb=99", cluster.fsname);
    lctl(&["set_param", "-P", &cached]).ok();
    cluster.unmount(0);
    for which in cluster.targets() {
        cluster.stop(which);
    }
    adamant(["tune", "--param", "nonsense", &mdt]).run().refused_with(&["'nonsense'", "PATH=VALUE"]);
    let text = adamant(["tune", "--print", "--param", "mdt.dom_stripesize=0", &mdt]).ok();
    assert!(text.lines().any(|line| line.trim() == "params:"), "nothing is changed by --print:\n{text}");
    let text = adamant(["tune", "--param", "mdt.dom_stripesize=128k", "--param", "mdt.max_open_files=99", &mdt]).ok();
    assert!(text.contains("params: mdt.dom_stripesize=128k mdt.max_open_files=99"), "{text}");
    let text = adamant(["tune", "--param", "mdt.max_open_files=", &mdt]).ok();
    assert!(text.contains("params: mdt.dom_stripesize=128k\n"), "{text}");

    // A configuration that is written anew: every target registers again.
    let mgt = cluster.place(Which::Mgt).display().to_string();
    let kept = adamant(["tune", "--print", &mgt]).ok();
    let line = format!("persistent: {}: {cached}", cluster.fsname);
    assert!(kept.lines().any(|kept| kept == line), "{line} is missing:\n{kept}");
    adamant(["tune", "--writeconf", &mgt]).ok();
    cluster.restart(Which::Mgt);
    cluster.restart_fails(Which::Mdt(0), &[]).refused_with(&["has registered before", "--writeconf"]);
    for which in cluster.targets().into_iter().filter(|which| *which != Which::Mgt) {
        adamant(["tune", "--writeconf"]).arg(cluster.place(which)).ok();
        cluster.restart(which);
    }
    cluster.mount_again(0);
    assert_eq!(fs::read_to_string(cluster.mount(0).join("f")).unwrap(), "kept");
    assert_eq!(lctl(&["get_param", "-n", &dom]).ok().trim(), "131072");
    cluster.unmount(0);
    cluster.stop(Which::Mdt(0));
    adamant(["tune", "--erase-params", &mdt]).ok();
    cluster.restart(Which::Mdt(0));
    assert_eq!(lctl(&["get_param", "-n", &dom]).ok().trim(), "65536");
}

#[test]
fn tune_shows_what_a_target_is() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("tune", Duration::from_secs(60));
    let cluster = Cluster::stopped(&story, Shape::default());
    let place = cluster.place(Which::Ost(1)).display().to_string();
    let text = adamant(["tune", "--print", &place]).ok();
    assert!(text.contains(&format!("name: {}", cluster.target_name(Which::Ost(1)))), "{text}");
    assert!(text.contains(&format!("mgsnode: {}", cluster.nid(Which::Mgt))), "{text}");
    let json = adamant(["tune", "--json", &place]).ok();
    serde_json::from_str::<serde_json::Value>(&json).unwrap();
    adamant(["tune", "--print", "/proc"]).run().refused_with(&["/proc"]);
}

#[test]
fn every_command_has_help_with_an_example() {
    let story = Story::begin("help", Duration::from_secs(60));
    for words in [
        &["up"][..],
        &["down"],
        &["status"],
        &["mkfs"],
        &["tune"],
        &["serve"],
        &["mount"],
        &["sim"],
        &["install-links"],
        &["lfs", "df"],
        &["lfs", "path2fid"],
        &["lfs", "fid2path"],
        &["lfs", "setstripe"],
        &["lfs", "getstripe"],
        &["lfs", "mkdir"],
        &["lfs", "getdirstripe"],
        &["lfs", "check"],
        &["lctl", "get_param"],
        &["lctl", "set_param"],
        &["lctl", "list_param"],
    ] {
        let text = adamant(words).arg("--help").ok();
        assert!(text.to_lowercase().contains("example: "), "{words:?} has no example:\n{text}");
    }
    assert_eq!(adamant(["nonsense"]).run().code, Some(2));
    assert_eq!(adamant(["up", "--nonsense"]).run().code, Some(2));
    assert!(adamant(["--version"]).ok().starts_with("adamant "));
    story.note("all there");
}

/// The other names, and `mount -t adamant` through the link that mount(8) looks for.
#[test]
fn mount_and_umount_as_everybody_calls_them() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mount -t adamant", Duration::from_secs(90));
    let cluster = Cluster::start(&story, Shape::mounts(0));
    let links = story.folder().join("bin");
    fs::create_dir(&links).unwrap();
    adamant(["install-links", links.to_str().unwrap()]).ok();
    command(links.join("lfs")).arg("--version").ok();
    command(links.join("lctl")).arg("--version").ok();
    let place = story.folder().join("t");
    command(links.join("mkfs.adamant"))
        .args(["--fsname", "other", "--ost", "--mgsnode", "127.0.0.1:1"])
        .arg(&place)
        .ok();

    let _helpers = [SbinLink::make("mount.adamant"), SbinLink::make("mount.fuse.adamant")];
    let mount = story.folder().join("a place");
    fs::create_dir(&mount).unwrap();
    for options in ["rw,nosuid,nodev,_netdev,flock,user_xattr,lazystatfs", "ro", "noatime,user_xattr_is_unknown"] {
        let outcome = command("mount")
            .args(["-t", "adamant", "-o", options, &cluster.source()])
            .arg(&mount)
            .within(Duration::from_secs(20))
            .run();
        if options.contains("unknown") {
            assert_ne!(outcome.code, Some(0), "{outcome}");
            assert!(outcome.stderr.contains("user_xattr_is_unknown"), "{outcome}");
            continue;
        }
        outcome.ok();
        let (_, _, kind) = e2e::story::mounts().into_iter().find(|(_, at, _)| *at == mount).expect("it is mounted");
        assert_eq!(kind, "fuse.adamant");
        if options == "ro" {
            let error = fs::write(mount.join("f"), "y").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
            assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "x");
            let stays = command("mount").args(["-o", "remount,rw"]).arg(&mount).run();
            assert_ne!(stays.code, Some(0), "{stays}");
            assert!(stays.stderr.contains("mounted with ro"), "{stays}");
        } else {
            let fixed =
                command("mount").args(["-o", "remount,soft=77"]).arg(&mount).within(Duration::from_secs(20)).run();
            assert!(fixed.code != Some(0) && fixed.stderr.contains("'soft=77' cannot be given"), "{fixed}");
            let open = fs::File::create(mount.join("f")).unwrap();
            let busy = command("mount").args(["-o", "remount,ro"]).arg(&mount).within(Duration::from_secs(20)).run();
            assert!(busy.code != Some(0) && busy.stderr.contains("open for writing"), "{busy}");
            drop(open);
            fs::write(mount.join("f"), "x").unwrap();
            command("mount").args(["-o", "remount,ro"]).arg(&mount).within(Duration::from_secs(20)).ok();
            let error = fs::write(mount.join("f"), "y").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
            command("mount").args(["-o", "remount,rw"]).arg(&mount).within(Duration::from_secs(20)).ok();
            fs::write(mount.join("f"), "x").unwrap();
        }
        // A program in it keeps it busy; umount says so and takes nothing away.
        let file = fs::File::open(mount.join("f")).unwrap();
        let busy = command("umount").arg(&mount).run();
        assert_ne!(busy.code, Some(0), "{busy}");
        drop(file);
        command("umount").arg(&mount).within(Duration::from_secs(20)).ok();
        assert!(!e2e::story::is_mounted(&mount));
        // The process writes back and ends by itself.
        let start = std::time::Instant::now();
        while lctl(&["dl"]).ok().contains(&format!("{}-client", cluster.fsname)) {
            assert!(start.elapsed() < Duration::from_secs(10), "the process stays after umount");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
}

/// What was written is there after umount, without any fsync: umount(8) returns, then the process writes back. A mount
/// that follows sees it all.
#[test]
fn nothing_is_lost_by_umount() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("umount", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    trees::make(&story.folder().join("tree"), 21, 200).unwrap();
    for round in 0..3 {
        let copy = cluster.mount(0).join(format!("copy{round}"));
        command("cp").arg("-a").arg(story.folder().join("tree")).arg(&copy).ok();
        cluster.unmount(0);
        cluster.mount_again(0);
        trees::assert_equal(&story.folder().join("tree"), &copy);
    }
}

/// `nobody`, who can do no more than fusermount3 lets anybody do.
#[test]
fn a_user_without_rights() {
    if !needs_root() {
        return;
    }
    let mode = fs::metadata("/dev/fuse").map_or(0, |metadata| metadata.mode());
    if mode & 0o006 != 0o006 {
        // Some containers give the device to root only; elsewhere it is open to all.
        if fs::set_permissions("/dev/fuse", PermissionsExt::from_mode(0o666)).is_err() {
            skip("/dev/fuse is root's alone on this machine");
            return;
        }
    }
    let setuid = ["/usr/bin/fusermount3", "/bin/fusermount3"]
        .iter()
        .any(|path| fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o4000 != 0));
    if !setuid {
        skip("fusermount3 is not set-user-ID here, so users cannot mount");
        return;
    }
    let story = Story::begin("a user's own file system", Duration::from_secs(90));
    let (uid, gid) = (65534, 65534);
    let home = story.folder().join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(uid), Some(gid)).unwrap();
    // The build may lie where only root may look.
    let program: PathBuf = story.folder().join("adamant");
    fs::copy(binary(), &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let run = |words: &[&str]| {
        command(&program)
            .args(words)
            .in_dir(&home)
            .env("XDG_RUNTIME_DIR", &home)
            .env("HOME", &home)
            .by_user(uid, gid)
            .within(Duration::from_secs(40))
            .run()
    };
    let as_user = |program: &str, words: &[&str]| command(program).args(words).in_dir(&home).by_user(uid, gid).run();

    run(&["up"]).ok();
    as_user(
        "sh",
        &["-c", "echo hello > mnt/file && mkdir mnt/folder && cp mnt/file mnt/folder/ && cat mnt/folder/file"],
    )
    .ok();
    let listed = as_user("ls", &["-l", "mnt/file"]).ok();
    assert!(listed.contains("nobody"), "{listed}");
    let status = run(&["status"]).ok();
    assert!(status.contains("adamant-MDT0000"), "{status}");
    run(&["lfs", "df", "mnt"]).ok();
    // They are not root there: what they do not own stays as it is.
    let refused = as_user("chown", &["root", "mnt/file"]);
    assert_ne!(refused.code, Some(0), "{refused}");
    // No other user sees it: that takes allow_other, which the machine's configuration does not give to users.
    run(&["down"]).ok();
    assert_eq!(run(&["status", "--dir", "adamant-data"]).code, Some(1));
    run(&["up"]).ok();
    assert_eq!(as_user("cat", &["mnt/folder/file"]).ok(), "hello\n");
    run(&["down"]).ok();

    // Another user's servers do not serve them.
    let cluster = Cluster::start(&story, Shape::mounts(0));
    fs::create_dir_all(home.join("other")).unwrap();
    std::os::unix::fs::chown(home.join("other"), Some(uid), Some(gid)).unwrap();
    run(&["mount", &cluster.source(), "other"])
        .refused_with(&["refuses this client", "only root and the server's own user"]);
    assert!(!e2e::story::is_mounted(&home.join("other")));
    // But they may look.
    let mdt = format!("{}-MDT0000", cluster.fsname);
    let of_mdt = |leaf: &str| format!("mdt.{}.{leaf}", mdt);
    assert!(run(&["status"]).ok().contains(&mdt));
    assert!(run(&["lctl", "dl"]).ok().contains(&mdt));
    assert!(run(&["lctl", "list_param", "mdt.*"]).ok().contains(&mdt));
    assert!(run(&["lctl", "get_param", "health_check"]).ok().contains("health_check=healthy"));
    let done = run(&["lctl", "get_param", "-n", &of_mdt("md_stats")]).ok();
    assert!(done.starts_with("snapshot_time "), "{done}");
    run(&["lctl", "get_param", "-n", &of_mdt("num_exports")]).ok();
    for hidden in ["uuid", "exports.*.uuid"] {
        assert_ne!(run(&["lctl", "get_param", &of_mdt(hidden)]).code, Some(0), "{hidden}");
    }
    assert_ne!(run(&["lctl", "set_param", &format!("{}=clear", of_mdt("stats"))]).code, Some(0));
}

/// Permissions on a mount are those of POSIX, for users other than root too; groups and access lists count.
#[test]
fn permissions_of_several_users() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("several users", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let nobody =
        |words: &str, folder: &Path| command("sh").args(["-c", words]).in_dir(folder).by_user(65534, 65534).run();
    fs::set_permissions(a, PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(a.join("theirs")).unwrap();
    std::os::unix::fs::chown(a.join("theirs"), Some(65534), Some(65534)).unwrap();
    fs::write(a.join("secret"), "s").unwrap();
    fs::set_permissions(a.join("secret"), PermissionsExt::from_mode(0o600)).unwrap();

    assert_ne!(nobody("cat secret", b).code, Some(0));
    assert_ne!(nobody("touch new", b).code, Some(0));
    assert_ne!(nobody("rm -f secret", b).code, Some(0));
    nobody("echo x > theirs/x; chmod 640 theirs/x", b).ok();
    let made = fs::metadata(a.join("theirs/x")).unwrap();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (65534, 65534, 0o640));

    // What root takes away here counts there at once, although the kernel there had the attributes.
    nobody("cat theirs/x", b).ok();
    fs::set_permissions(a.join("theirs/x"), PermissionsExt::from_mode(0o000)).unwrap();
    assert_ne!(nobody("cat theirs/x", b).code, Some(0));
    fs::set_permissions(a.join("theirs"), PermissionsExt::from_mode(0o555)).unwrap();
    assert_ne!(nobody("touch theirs/y", b).code, Some(0));

    // An access list opens the file to one more user.
    if command("setfacl").arg("--version").run().code == Some(0) {
        command("setfacl").args(["-m", "u:65534:r"]).arg(a.join("secret")).ok();
        assert_eq!(nobody("cat secret", b).ok(), "s");
        assert_ne!(nobody("echo y > secret", b).code, Some(0));
        let shown = command("getfacl").args(["-n", "-c", "-p"]).arg(b.join("secret")).ok();
        assert!(shown.contains("user:65534:r--"), "{shown}");
        command("setfacl").args(["-b"]).arg(b.join("secret")).ok();
        assert_ne!(nobody("cat secret", a).code, Some(0));
        // A folder's default list is inherited.
        fs::create_dir(a.join("shared")).unwrap();
        command("setfacl").args(["-d", "-m", "u:65534:rwx"]).arg(a.join("shared")).ok();
        fs::write(b.join("shared/f"), "inherited").unwrap();
        let shown = command("getfacl").args(["-n", "-c", "-p"]).arg(a.join("shared/f")).ok();
        assert!(shown.contains("user:65534:rw"), "{shown}");
    } else {
        skip("setfacl is not installed: access lists are not tried");
    }
}
