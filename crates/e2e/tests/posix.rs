//! POSIX through the mount: the crate `pjdfstest`, the crate `fsx` and fio's verifying jobs, and an exerciser over two mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::exerciser::{self, Plan};
use e2e::{Cluster, Outcome, SbinLink, Shape, Story, Which, command, needs_root};

/// Cases of the suite that cannot apply, each with the reason. The guide's chapter on limits lists the same.
const CANNOT_APPLY: &[(&str, &str)] = &[];

/// Two users with groups of the same number, as the suite wants them: `nobody` and any other that every machine has.
fn two_users() -> [(String, String); 2] {
    let groups = fs::read_to_string("/etc/group").unwrap();
    let group_of = |gid: &str| {
        groups.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.get(2) == Some(&gid)).then(|| fields[0].to_owned())
        })
    };
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let mut found: Vec<(String, String)> = users
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.get(2) != Some(&"0")).then_some(())?;
            Some((fields[0].to_owned(), group_of(fields.get(3)?)?))
        })
        .collect();
    found.sort_by_key(|(user, _)| (user != "nobody", user != "daemon"));
    let mut users = found.into_iter();
    [users.next().expect("a user"), users.next().expect("another user")]
}

#[test]
fn the_whole_posix_suite() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("pjdfstest", Duration::from_secs(400));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let [one, two] = two_users();
    let expected: Vec<String> = CANNOT_APPLY.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    // For the cases about two file systems.
    let other = story.folder().join("other");
    fs::create_dir(&other).unwrap();
    let suite = |remounts: bool, filter: &[&str]| {
        let configuration = format!(
            "[features]\nposix_fallocate = {{}}\nutime_now = {{}}\nutimensat = {{}}\nrename_ctime = {{}}\n\
             [settings]\nnaptime = 0.01\nallow_remount = {remounts}\nexpected_failures = [{}]\n\
             [dummy_auth]\nentries = [[\"{}\", \"{}\"], [\"{}\", \"{}\"]]\n",
            expected.join(", "),
            one.0,
            one.1,
            two.0,
            two.1
        );
        let file = story.folder().join("pjdfstest.toml");
        fs::write(&file, configuration).unwrap();
        command("pjdfstest")
            .arg("--configuration-file")
            .arg(&file)
            .arg("--path")
            .arg(cluster.mount(0))
            .arg("--secondary-fs")
            .arg(&other)
            .args(filter)
            .env("NO_COLOR", "1")
            .within(Duration::from_secs(300))
            .run()
    };
    // Those that make the mount read-only by themselves: no file system can be while a program that another case has
    // started runs from a file that is removed.
    let helper = SbinLink::make("mount.fuse.adamant");
    let read_only = suite(true, &["erofs"]);
    drop(helper);
    assert!(read_only.code == Some(0) && read_only.stdout.contains("13 passed"), "{read_only}");
    let outcome = suite(false, &[]);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let failures: Vec<String> = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains("FAILED") || line.contains("UNEXPECTEDLY"))
        .map(|(at, line)| format!("{} {}", line.trim(), lines.get(at + 1).unwrap_or(&"").trim()))
        .collect();
    for failure in &failures {
        story.note(failure);
    }
    let skipped: Vec<&str> = lines.iter().filter(|line| line.ends_with("skipped")).copied().collect();
    story.note(&format!(
        "{} ({} kinds skipped)",
        lines.iter().rev().find(|l| l.contains("Summary")).unwrap_or(&"no summary"),
        skipped.len()
    ));
    // What is skipped belongs to other systems: file flags and NFSv4 lists of FreeBSD. The C library cannot ask a file
    // system in user space for its largest link count.
    for line in &skipped {
        let known =
            ["chflags", "nfsv4acl", "flag", "birthtime", "immutable", "append", "nounlink", "link_count_max", "erofs"];
        assert!(known.iter().any(|word| line.to_lowercase().contains(word)), "skipped for another reason: {line}");
    }
    assert!(failures.is_empty() && outcome.code == Some(0), "{} cases fail: {failures:#?}", failures.len());
    assert!(lines.len() > 400, "the suite must really run: {outcome}");
}

/// Operations and weights of the crate's exerciser; everything that Linux and the file system have.
fn fsx_configuration(close_open: u32, flen: u32) -> String {
    format!(
        "flen = {flen}\n[opsize]\nmax = 65536\nmin = 0\n[weights]\nclose_open = {close_open}\ninvalidate = 1\n\
         mapread = 10\nmapwrite = 10\nread = 10\nwrite = 10\ntruncate = 5\nfsync = 0.2\nfdatasync = 0.2\n\
         posix_fallocate = 2\npunch_hole = 2\nsendfile = 3\nposix_fadvise = 1\ncopy_file_range = 2\n"
    )
}

fn fsx(story: &Story, file: &Path, configuration: &str, operations: u32, seed: u64, bound: Duration) -> Outcome {
    let settings = story.folder().join(format!("fsx-{seed}.toml"));
    fs::write(&settings, configuration).unwrap();
    command("fsx")
        .arg("-f")
        .arg(&settings)
        .args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-P"])
        .arg(story.folder())
        .arg(file)
        .within(bound)
        .run()
}

#[test]
#[ignore = "soak: fsx syncs its mapped pages one by one, which takes minutes on a slow disk"]
fn fsx_on_one_mount() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("fsx on one mount", Duration::from_secs(200));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    for (seed, flen, operations) in [(1, 60_000, 10_000), (2, 262_144, 20_000), (3, 5_000_000, 5_000)] {
        let file = cluster.mount(0).join(format!("fsx{seed}"));
        fsx(&story, &file, &fsx_configuration(1, flen), operations, seed, Duration::from_secs(60)).ok();
    }
}

/// The crate's exerciser, 100000 operations: a link leads it to the one mount and to the other, in turn, each time that
/// it opens its file anew.
#[test]
#[ignore = "soak: fsx syncs its mapped pages one by one, which takes minutes on a slow disk"]
fn fsx_through_two_mounts_in_turn() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("fsx, 100000 operations over two mounts", Duration::from_secs(300));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let (link, new) = (story.folder().join("current"), story.folder().join("current.new"));
    let turn = |mount: &Path| {
        std::os::unix::fs::symlink(mount, &new).unwrap();
        fs::rename(&new, &link).unwrap();
    };
    turn(cluster.mount(0));
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                at += 1;
                turn(cluster.mount(at % 2));
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let outcome =
            fsx(&story, &link.join("file"), &fsx_configuration(10, 262_144), 100_000, 4, Duration::from_secs(240));
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    story.note(&format!("{:.1?}", outcome.took));
    outcome.ok();
}

fn exercise(story: &Story, cluster: &Cluster, name: &str, operations: u64, size_max: usize, seed: u64, direct: bool) {
    let paths: Vec<PathBuf> = cluster.mounts().iter().map(|mount| mount.join(name)).collect();
    let plan = Plan { paths, operations, size_max, seed, direct, mapped: !direct };
    if let Err(error) = exerciser::run(plan) {
        panic!("{name}: {error}");
    }
    story.note(&format!("{name}: {operations} operations"));
}

/// Each operation through one of two mounts, whichever comes up; what the other then sees must be right at once.
#[test]
fn operations_alternate_over_two_mounts() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("alternating operations", Duration::from_secs(200));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(u64::from(std::process::id()));
    exercise(&story, &cluster, "small", 6_000, 60_000, seed, false);
    exercise(&story, &cluster, "growing", 6_000, 300_000, seed + 1, false);
    exercise(&story, &cluster, "large", 2_000, 4 << 20, seed + 2, false);
    exercise(&story, &cluster, "direct", 2_000, 1 << 20, seed + 3, true);
}

#[test]
#[ignore = "soak: many seeds"]
fn operations_alternate_over_two_mounts_for_long() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("alternating operations, long", Duration::from_secs(1200));
    let cluster = Cluster::start(&story, Shape::mounts(3));
    for seed in 0..40 {
        let size_max = [40_000, 200_000, 1 << 20, 5 << 20][(seed % 4) as usize];
        exercise(&story, &cluster, &format!("f{seed}"), 5_000, size_max, seed, seed % 5 == 4);
    }
}

/// fio writes, reads back and compares.
#[test]
fn fio_verifies() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("fio", Duration::from_secs(240));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let directory = cluster.mount(0).display().to_string();
    let jobs: &[(&str, &[&str])] = &[
        ("random writes", &["--rw=randwrite", "--bs=4k", "--size=24m", "--ioengine=psync"]),
        ("mixed sizes", &["--rw=randrw", "--bsrange=512-64k", "--size=16m", "--ioengine=psync", "--fsync=64"]),
        ("sequential", &["--rw=write", "--bs=1m", "--size=96m", "--ioengine=psync"]),
        ("mapped", &["--rw=randwrite", "--bs=4k", "--size=8m", "--ioengine=mmap"]),
        ("direct", &["--rw=randwrite", "--bs=16k", "--size=32m", "--ioengine=psync", "--direct=1"]),
        ("several programs", &["--rw=randwrite", "--bs=8k", "--size=6m", "--numjobs=4", "--ioengine=psync"]),
    ];
    for (name, arguments) in jobs {
        let outcome = command("fio")
            .args(["--name", &name.replace(' ', "-"), "--directory", &directory, "--verify=crc32c"])
            .args(["--do_verify=1", "--verify_fatal=1", "--group_reporting", "--randseed=7", "--minimal"])
            .args(*arguments)
            .within(Duration::from_secs(90))
            .run();
        story.note(&format!("{name}: {:.1?}", outcome.took));
        outcome.ok();
    }
}

/// The same while an object server is killed and started again.
#[test]
fn fio_verifies_while_servers_die() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("fio while servers die", Duration::from_secs(200));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let directory = cluster.mount(0).display().to_string();
    let job = std::thread::spawn(move || {
        command("fio")
            .args(["--name=kill", "--directory", &directory, "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"])
            .args(["--rw=randwrite", "--bs=8k", "--size=24m", "--numjobs=2", "--fsync=128", "--ioengine=psync"])
            .args(["--group_reporting", "--minimal"])
            .within(Duration::from_secs(150))
            .run()
    });
    let mut kills = 0;
    while !job.is_finished() && kills < 12 {
        std::thread::sleep(Duration::from_millis(400));
        let victim = [Which::Ost(0), Which::Mdt(0), Which::Ost(1)][kills % 3];
        cluster.kill9(victim);
        cluster.restart(victim);
        kills += 1;
    }
    let outcome = job.join().unwrap();
    story.note(&format!("{kills} kills, {:.1?}", outcome.took));
    outcome.ok();
}

/// What overlayfs asks for, and only there: pjdfstest knows nothing of it.
#[test]
fn renames_leave_whiteouts() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    if !needs_root() {
        return;
    }
    let story = Story::begin("whiteouts", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let (here, there) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir(here.join("d")).unwrap();
    fs::write(here.join("d/old"), "bytes").unwrap();
    fs::write(here.join("d/new"), "gone").unwrap();
    assert!(there.join("d/old").exists());
    renameat_with(CWD, here.join("d/old"), CWD, here.join("d/new"), RenameFlags::WHITEOUT).unwrap();
    for mount in [here, there] {
        let left = fs::symlink_metadata(mount.join("d/old")).unwrap();
        assert!(left.file_type().is_char_device());
        assert_eq!((left.rdev(), left.mode() & 0o7777, left.nlink()), (0, 0, 1));
        assert_eq!(fs::read_to_string(mount.join("d/new")).unwrap(), "bytes");
        assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 2);
    }
    fs::rename(there.join("d/new"), there.join("d/old")).unwrap();
    assert_eq!(fs::read_to_string(here.join("d/old")).unwrap(), "bytes");
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    let refused = renameat_with(CWD, here.join("d/old"), CWD, here.join("d"), both);
    assert_eq!(refused, Err(rustix::io::Errno::INVAL));
}
