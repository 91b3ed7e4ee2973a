//! Directories that are striped over metadata targets: programs see one directory, whichever stripe has a name.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use e2e::command::shell;
use e2e::faults::wait_for;
use e2e::load::{self, Load};
use e2e::story::skip;
use e2e::{Cluster, Story, Which, adamant, command, needs_root};

const STRIPES: u64 = 4;
const AT_ONCE: Duration = Duration::from_secs(30);

/// The stripe of a name, of four, by Lustre's default hash: FNV-1a.
fn stripe_of(name: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, hash) % STRIPES
}

/// A name for each stripe, in their order.
fn names(start: &str) -> Vec<String> {
    let in_stripe = |stripe| (0..).map(|number| format!("{start}{number}")).find(|name| stripe_of(name) == stripe);
    (0..STRIPES).map(|stripe| in_stripe(stripe).unwrap()).collect()
}

fn listed(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let all: Vec<String> = entries.collect();
    let once: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(once.len(), all.len(), "no name is listed twice");
    once
}

fn fid(path: &Path) -> String {
    adamant(["lfs", "path2fid"]).arg(path).ok().trim().to_owned()
}

/// `lfs getdirstripe` with these options.
fn getdirstripe(options: &[&str], dir: &Path) -> String {
    adamant(["lfs", "getdirstripe"]).args(options).arg(dir).ok()
}

/// Makes a directory striped over MDT0000 to MDT0003, in this order.
fn striped(dir: &Path) {
    adamant(["lfs", "mkdir", "-i", "0", "-c", "4"]).arg(dir).ok();
}

/// Several programs on both mounts make 2000 files.
fn fill(dirs: [&Path; 2]) {
    let program = |number: usize| {
        let line = format!("for i in $(seq 500); do echo {number} > p{number}.$i; done");
        Command::new("sh").arg("-ec").arg(line).current_dir(dirs[number % 2]).spawn().unwrap()
    };
    let programs: Vec<Child> = (0..4).map(program).collect();
    for mut program in programs {
        assert!(program.wait().unwrap().success());
    }
}

#[test]
fn a_striped_directory_is_one_directory_to_programs() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a striped directory is one directory to programs", Duration::from_secs(240));
    let cluster = Cluster::with_mdts(&story, 4);
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let (dir, there) = (mount.join("wide"), other.join("wide"));
    assert!(!dir.exists() && !there.exists());
    striped(&dir);

    let shown = getdirstripe(&[], &there);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "lmv_stripe_count: 4 lmv_stripe_offset: 0 lmv_hash_type: fnv_1a_64", "{shown}");
    assert_eq!(lines[1], "mdtidx\t\t FID[seq:oid:ver]", "{shown}");
    let stripes: Vec<(&str, &str)> = lines[2..].iter().map(|line| line.split_once("\t\t ").unwrap()).collect();
    assert_eq!(stripes.iter().map(|(mdt, _)| *mdt).collect::<Vec<_>>(), ["     0", "     1", "     2", "     3"]);
    assert_eq!(stripes.iter().map(|(_, fid)| fid).collect::<BTreeSet<_>>().len(), 4, "{shown}");
    assert_eq!(stripes[0].1, fid(&dir));
    assert_eq!((getdirstripe(&["-c"], &dir), getdirstripe(&["-m"], &dir)), ("4\n".into(), "0\n".into()));
    assert_eq!(getdirstripe(&["-H"], &dir), "fnv_1a_64\n");

    fill([&dir, &there]);
    let all: BTreeSet<String> = (0..4).flat_map(|p| (1..=500).map(move |i| format!("p{p}.{i}"))).collect();
    for dir in [&dir, &there] {
        assert_eq!(listed(dir), all);
        let ls = command("ls").arg(dir).ok();
        assert!(
            ls.lines().count() == 2000 && command("find").arg(dir).args(["-type", "f"]).ok().lines().count() == 2000
        );
        assert_eq!(adamant(["lfs", "find"]).arg(dir).args(["-type", "f"]).ok().lines().count(), 2000);
        command("du").arg("-s").arg(dir).ok();
    }
    for mdt in 0..STRIPES {
        let found = adamant(["lfs", "find"]).arg(&dir).args(["-type", "f", "--mdt"]).arg(mdt.to_string()).ok();
        let expected = all.iter().filter(|name| stripe_of(name) == mdt).count();
        assert!(found.lines().count() == expected && expected > 300, "{expected} on MDT{mdt:04x}");
    }
    for (tests, expected) in [
        (&["--mdt-count", "4"][..], true),
        (&["--mdt-count", "+4"], false),
        (&["--mdt-hash", "all_char,fnv_1a_64"], true),
        (&["--mdt-hash", "crush"], false),
        (&["--mdt-index", "0"], true),
        (&["--mdt-index", "1"], false),
    ] {
        let found = adamant(["lfs", "find"]).arg(&dir).args(["-maxdepth", "0"]).args(tests).ok();
        assert_eq!(!found.is_empty(), expected, "{tests:?}");
    }

    attributes(&dir, &there);
    renames(&mount, &dir, &there);
    access(&dir, &there);

    // What is left in any stripe keeps the directory.
    adamant(["lfs", "mkdir", "-c", "-1"]).arg(mount.join("all")).ok();
    assert_eq!(getdirstripe(&["-c"], &mount.join("all")), "4\n");
    for name in names("last") {
        fs::write(mount.join("all").join(&name), "").unwrap();
        let refused = fs::remove_dir(other.join("all")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{name}");
        fs::remove_file(other.join("all").join(&name)).unwrap();
    }
    fs::remove_dir(other.join("all")).unwrap();
    assert!(!mount.join("all").exists());

    // The working directory of a program is removed.
    striped(&mount.join("gone"));
    let gone = mount.join("gone").display().to_string();
    shell(&format!("cd '{gone}'; rmdir '{gone}'; test -z \"$(ls)\"; ! touch file; ! mkdir dir; test ! -e '{gone}'"))
        .ok();

    command("rm").arg("-rf").arg(&there).within(Duration::from_secs(60)).run().ok();
    assert!(!dir.exists() && !there.exists());
    assert_eq!((listed(&mount), listed(&other)), (BTreeSet::new(), BTreeSet::new()));
}

/// Link count and times are those of one directory.
fn attributes(dir: &Path, there: &Path) {
    for name in names("sub") {
        let before = fs::metadata(there).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        fs::create_dir(dir.join(&name)).unwrap();
        for dir in [dir, there] {
            let now = fs::metadata(dir).unwrap();
            assert_eq!(now.nlink(), before.nlink() + 1, "{name}");
            assert!(now.modified().unwrap() > before.modified().unwrap(), "{name}");
        }
    }
    assert_eq!(fs::metadata(there).unwrap().nlink(), 2 + STRIPES);
    for name in names("sub") {
        fs::write(there.join(&name).join("file"), "text").unwrap();
        assert!(fs::remove_dir(there.join(&name)).is_err());
        fs::remove_dir_all(there.join(&name)).unwrap();
    }
    assert_eq!(fs::metadata(dir).unwrap().nlink(), 2);
}

/// Names move between stripes, and into the directory and out of it; hard links lead to one file.
fn renames(mount: &Path, dir: &Path, there: &Path) {
    let (from, to) = (names("from"), names("to"));
    for (number, name) in from.iter().enumerate() {
        for new in [&to[number], &to[(number + 1) % 4]] {
            fs::write(dir.join(name), name).unwrap();
            let object = fid(&dir.join(name));
            fs::rename(dir.join(name), dir.join(new)).unwrap();
            assert!(!there.join(name).exists());
            assert_eq!((fs::read_to_string(there.join(new)).unwrap(), fid(&there.join(new))), (name.clone(), object));
        }
        // Over what has the name; then out, and in again.
        let [one, two] = [dir.join(&to[number]), there.join(&to[(number + 1) % 4])];
        fs::write(&one, "one").unwrap();
        fs::rename(&one, dir.join(two.file_name().unwrap())).unwrap();
        assert!(fs::read_to_string(&two).unwrap() == "one" && !one.exists());
        fs::rename(&two, there.parent().unwrap().join("out")).unwrap();
        assert_eq!(fs::read_to_string(mount.join("out")).unwrap(), "one");
        fs::rename(mount.join("out"), dir.join(name)).unwrap();

        let links: Vec<PathBuf> = names("link").iter().map(|link| there.join(link)).collect();
        for link in &links {
            fs::hard_link(there.join(name), link).unwrap();
        }
        assert_eq!(fs::metadata(dir.join(name)).unwrap().nlink(), 1 + STRIPES);
        fs::write(&links[number], "more").unwrap();
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), "more");
        links.iter().for_each(|link| fs::remove_file(link).unwrap());
        assert_eq!(fs::metadata(there.join(name)).unwrap().nlink(), 1);
        fs::remove_file(dir.join(name)).unwrap();
    }
    // The directory itself gets another name, and paths lead through it.
    let layout = getdirstripe(&[], dir);
    fs::rename(dir, mount.join("renamed")).unwrap();
    assert_eq!(getdirstripe(&[], &there.with_file_name("renamed")), layout);
    let object = fid(&mount.join("renamed/p0.1"));
    assert_eq!(adamant(["lfs", "fid2path"]).arg(mount).arg(object).ok(), "/renamed/p0.1\n");
    fs::rename(there.with_file_name("renamed"), there).unwrap();
}

/// Permissions, owners and access lists hold in all stripes.
fn access(dir: &Path, there: &Path) {
    let touch = |dir: &Path, name: &String| command("touch").arg(dir.join(name)).by_user(1234, 1234).run();
    for name in names("denied") {
        touch(dir, &name).refused_with(&["Permission denied"]);
    }
    fs::set_permissions(there, fs::Permissions::from_mode(0o777)).unwrap();
    for name in names("allowed") {
        touch(dir, &name).ok();
    }
    std::os::unix::fs::chown(dir, Some(1234), Some(4321)).unwrap();
    fs::set_permissions(there, fs::Permissions::from_mode(0o2770)).unwrap();
    for name in names("own") {
        touch(there, &name).ok();
        assert_eq!(fs::metadata(dir.join(name)).unwrap().gid(), 4321, "the group is that of the directory");
    }
    if command("setfacl").arg("--version").run().code != Some(0) {
        return skip("setfacl is not installed: access lists are not tried");
    }
    command("setfacl").args(["-d", "-m", "u:65534:rw"]).arg(dir).ok();
    for name in names("listed") {
        fs::write(there.join(&name), "").unwrap();
        let list = command("getfacl").args(["-p", "-n"]).arg(dir.join(&name)).ok();
        assert!(list.contains("user:65534:rw-"), "{list}");
    }
}

/// What is in the other stripes goes on, and what needs the one that is away waits for it.
#[test]
fn one_metadata_target_of_a_striped_directory_is_killed() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("one metadata target of a striped directory is killed", Duration::from_secs(180));
    let mut cluster = Cluster::with_mdts(&story, 4);
    let (dir, there) = (cluster.mount(0).join("wide"), cluster.mount(1).join("wide"));
    striped(&dir);
    let old = names("old");
    for name in &old {
        fs::write(dir.join(name), name).unwrap();
        assert_eq!(fs::read_to_string(there.join(name)).unwrap(), *name);
    }
    command("sync").arg("-f").arg(&dir).run().ok();

    cluster.kill9(Which::Mdt(2));
    // The kernel lets nobody else into a directory where a program of the same mount waits for a new name.
    let new = names("new");
    let mut waits = Command::new("touch").arg(there.join(&new[2])).spawn().unwrap();
    let start = Instant::now();
    for stripe in [0, 1, 3] {
        fs::write(dir.join(&new[stripe]), "new").unwrap();
        assert_eq!(fs::read_to_string(dir.join(&old[stripe])).unwrap(), old[stripe]);
        fs::remove_file(dir.join(&old[stripe])).unwrap();
    }
    let took = start.elapsed();
    story.note(&format!("in the other stripes: {took:.1?}"));
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(waits.try_wait().unwrap().is_none(), "it waits");
    cluster.restart(Which::Mdt(2));
    assert!(waits.wait().unwrap().success());
    let expected: BTreeSet<String> = new.into_iter().chain([old[2].clone()]).collect();
    for dir in [&dir, &there] {
        assert_eq!(listed(dir), expected);
        assert_eq!(fs::read_to_string(dir.join(&old[2])).unwrap(), old[2]);
    }

    // Nothing is placed on a target that is away, and the user is told.
    cluster.kill9(Which::Mdt(3));
    let without = cluster.mount(0).join("without");
    wait_for("the mount knows that the target is away", || {
        adamant(["lfs", "mdts"]).arg(cluster.mount(0)).ok().contains("-MDT0003_UUID INACTIVE")
    });
    let outcome = adamant(["lfs", "mkdir", "-i", "1", "-c", "-1"]).arg(&without).run();
    assert!(
        outcome.code == Some(0) && outcome.stderr.contains("no stripe on MDT0003, away or full; 3 in all"),
        "{outcome}"
    );
    let stripes = getdirstripe(&["--json"], &without);
    let stripes: serde_json::Value = serde_json::from_str(&stripes).unwrap();
    let mdts: Vec<u64> =
        stripes["stripes"].as_array().unwrap().iter().map(|s| s["mdt_index"].as_u64().unwrap()).collect();
    assert_eq!(mdts, [1, 2, 0]);
    cluster.restart(Which::Mdt(3));
    fs::remove_dir_all(cluster.mount(1).join("wide")).unwrap();
    fs::remove_dir(&without).unwrap();
}

/// Every change is made once and as a whole, whichever of the targets that it concerns die meanwhile: one, two or all, also while
/// the MGS is away.
#[test]
fn programs_work_in_striped_directories_while_metadata_targets_die() {
    if !needs_root() {
        return;
    }
    let story =
        Story::begin("programs work in striped directories while metadata targets die", Duration::from_secs(240));
    let mut cluster = Cluster::with_mdts(&story, 4);
    let load = Load::in_striped(&cluster.mounts(), 2, 11);
    load.await_progress(500, AT_ONCE);
    for round in 0..9 {
        std::thread::sleep(Duration::from_millis(1200));
        let victims = match round % 3 {
            0 => vec![round % 4],
            1 => vec![round % 4, (round + 1 + round / 3) % 4],
            _ => vec![2, 0, 3, 1],
        };
        let without_mgs = round % 2 == 1;
        if without_mgs {
            cluster.kill9(Which::Mgt);
        }
        victims.iter().for_each(|victim| cluster.kill9(Which::Mdt(*victim)));
        victims.iter().rev().for_each(|victim| cluster.restart(Which::Mdt(*victim)));
        load.await_progress(200, AT_ONCE);
        if without_mgs {
            cluster.restart(Which::Mgt);
        }
    }
    let worked = load.stop();
    story.note(&format!("{} operations, the longest {:.1?}", load::operations(&worked), load::longest(&worked)));
    for mount in cluster.mounts() {
        load::verify(&worked, &mount);
    }
    for (mount, work) in cluster.mounts().iter().rev().zip(&worked) {
        assert_eq!(getdirstripe(&["-c"], &mount.join(&work.folder)), "4\n");
        fs::remove_dir_all(mount.join(&work.folder)).unwrap();
    }
    for which in (0..4).map(Which::Mdt) {
        wait_for("nothing is in doubt", || cluster.get_on(which, "mdt.*.changes_in_doubt").is_empty());
    }
}

/// Stripes need no second target: up to five on one, for tests and for what is to be spread later.
#[test]
fn a_single_metadata_target_has_several_stripes() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a single metadata target has several stripes", Duration::from_secs(90));
    let cluster = Cluster::with_mdts(&story, 1);
    let (mount, other) = (cluster.mount(0), cluster.mount(1));
    for (options, count, hash) in [
        (&["-C", "4"][..], "4\n", "fnv_1a_64\n"),
        (&["-C", "-5", "-H", "crush"], "5\n", "crush\n"),
        (&["-i", "0", "-C", "2000", "-H", "crush2"], "5\n", "crush2\n"),
        (&["-C", "2", "-H", "all_char"], "2\n", "all_char\n"),
        (&["-c", "7"], "0\n", "none\n"),
        (&["-C", "-1"], "0\n", "none\n"),
    ] {
        let dir = mount.join("dir");
        adamant(["lfs", "mkdir"]).args(options).arg(&dir).ok();
        let there = other.join("dir");
        assert_eq!(
            (getdirstripe(&["-c"], &there), getdirstripe(&["-H"], &there)),
            (count.into(), hash.into()),
            "{options:?}"
        );
        let files: BTreeSet<String> = (0..50).map(|number| format!("file{number}")).collect();
        for name in &files {
            fs::write(dir.join(name), name).unwrap();
        }
        assert_eq!(listed(&there), files, "{options:?}");
        fs::remove_dir_all(&there).unwrap();
    }
    adamant(["lfs", "mkdir", "-i", "0,1"]).arg(mount.join("dir")).run().refused_with(&["no MDT0001", "lfs mdts"]);

    // Only administrators may, and only if the metadata target says so.
    let refused = |uid: u32| {
        let mkdir = adamant(["lfs", "mkdir", "-C", "2"]).arg(mount.join("dir")).by_user(uid, uid);
        mkdir.run().refused_with(&["not permitted", "enable_remote_dir_gid", "enable_striped_dir"]);
    };
    fs::set_permissions(mount, fs::Permissions::from_mode(0o777)).unwrap();
    refused(1234);
    cluster.set_on(Which::Mdt(0), "mdt.*.enable_striped_dir", "0").ok();
    refused(0);
    cluster.set_on(Which::Mdt(0), "mdt.*.enable_striped_dir", "1").ok();
    adamant(["lfs", "setdirstripe", "-C", "2", "-o", "2750"]).arg(mount.join("dir")).ok();
    assert_eq!(fs::metadata(other.join("dir")).unwrap().mode() & 0o7777, 0o2750);
}

/// Plain `mkdir` goes where the default of the directory says, on both mounts, and over a restart of everything.
#[test]
fn new_directories_go_where_the_default_says() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("new directories go where the default says", Duration::from_secs(240));
    let mut cluster = Cluster::with_mdts(&story, 4);
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let set = |options: &[&str], dir: &Path| adamant(["lfs", "setdirstripe", "-D"]).args(options).arg(dir).run();
    let mdt = |dir: &Path| getdirstripe(&["-m"], dir).trim().to_owned();
    let (home, there) = (mount.join("home"), other.join("home"));
    fs::create_dir(&home).unwrap();
    assert_eq!(getdirstripe(&["-D"], &home), "lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none\n");

    set(&["-i", "-1", "-X", "2", "--max-inherit-rr", "1"], &home).ok();
    let shown = getdirstripe(&["-D"], &there);
    assert_eq!(
        shown,
        "lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 2 lmv_max_inherit_rr: 1\n"
    );
    let single = ["-c", "-i", "-H", "-X", "--max-inherit-rr"].map(|only| getdirstripe(&["-D", only], &there));
    assert_eq!(single, ["0\n", "-1\n", "none\n", "2\n", "1\n"]);
    assert!(getdirstripe(&["-D", "--json"], &there).contains("\"max_inherit_rr\":1"));
    let mut found = BTreeSet::new();
    for number in 0..8 {
        let dir = if number % 2 == 0 { &home } else { &there }.join(format!("user{number}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(home.join(format!("user{number}/file"))).unwrap(), "text");
        found.insert(mdt(&dir));
    }
    assert_eq!(found.len(), 4, "each mount gives each target its turn: {found:?}");
    let below = getdirstripe(&["-D"], &home.join("user0"));
    assert!(below.ends_with("lmv_max_inherit: 1 lmv_max_inherit_rr: 0\n"), "{below}");
    fs::create_dir(home.join("user0/sub")).unwrap();
    assert!(!getdirstripe(&["-D"], &home.join("user0/sub")).contains("inherit"), "it ends there");

    // Striped ones, from now on.
    set(&["-i", "3,1", "-H", "crush", "-X", "1"], &there).ok();
    fs::create_dir(home.join("wide")).unwrap();
    let shown = getdirstripe(&[], &there.join("wide"));
    assert!(shown.starts_with("lmv_stripe_count: 2 lmv_stripe_offset: 3 lmv_hash_type: crush\n"), "{shown}");
    for name in names("f") {
        fs::write(home.join("wide").join(name), "text").unwrap();
    }
    assert_eq!(listed(&there.join("wide")), names("f").into_iter().collect());

    // A target that is away gets nothing, unless it is named.
    set(&["-i", "-1", "--max-inherit-rr", "-1"], &home).ok();
    cluster.kill9(Which::Mdt(2));
    for number in 0..6 {
        let started = Instant::now();
        let dir = home.join(format!("late{number}"));
        fs::create_dir(&dir).unwrap();
        assert_ne!(mdt(&dir), "2");
        assert!(started.elapsed() < AT_ONCE, "{number}: {:?}", started.elapsed());
    }
    cluster.restart(Which::Mdt(2));

    // Who may: the owner, if he or she may place directories.
    let owned = mount.join("owned");
    fs::create_dir(&owned).unwrap();
    std::os::unix::fs::chown(&owned, Some(1000), Some(1000)).unwrap();
    set(&["-i", "2"], &owned).ok();
    let as_user = |line: &str| {
        command("setpriv").args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", line]).run()
    };
    as_user(&format!("mkdir '{}'", owned.join("mine").display())).ok();
    assert_eq!(mdt(&owned.join("mine")), "2");
    let line =
        |options: &str| format!("'{}' lfs setdirstripe -D {options} '{}'", e2e::binary().display(), owned.display());
    as_user(&line("-i 1")).refused_with(&["owned", "enable_remote_dir_gid"]);
    as_user(&line("-d")).ok();
    fs::create_dir(owned.join("plain")).unwrap();
    assert_eq!(mdt(&owned.join("plain")), "0");
    set(&["-i", "7"], &owned).refused_with(&["no MDT0007", "lfs mdts"]);
    set(&["-i", "1"], &mount.join("home/user0/file")).refused_with(&["Not a directory"]);
}

/// Thousands of names move from stripe to stripe while programs on two mounts make, read, list and remove them, and while metadata
/// servers are killed.
#[test]
fn a_directory_gets_other_stripes_while_programs_work_in_it() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("other stripes", Duration::from_secs(150));
    let mut cluster = Cluster::with_mdts(&story, 3);
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    let (dir, there) = (mount.join("dir"), other.join("dir"));
    fs::create_dir(&dir).unwrap();
    let names: BTreeSet<String> = (0..3000).map(|number| format!("file{number}")).collect();
    for name in &names {
        fs::write(dir.join(name), name).unwrap();
    }
    let setdirstripe = |options: &[&str]| adamant(["lfs", "setdirstripe"]).args(options).arg(&dir).run();
    let allows = "mdt.*.enable_dir_restripe";
    setdirstripe(&["-c", "3"]).refused_with(&["File exists", "enable_dir_restripe"]);
    for mdt in 0..3 {
        cluster.set_on(Which::Mdt(mdt), allows, "1").ok();
    }
    let rests = |dir: &Path| {
        let limit = Instant::now() + AT_ONCE;
        while getdirstripe(&["-H"], dir).contains(',') {
            assert!(Instant::now() < limit, "names still move");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let changes =
        [&["-c", "3"][..], &["-c", "3", "-H", "crush"], &["-C", "5"], &["-c", "1"], &["-i", "0-2", "-c", "2"]];
    for (round, options) in (0..).zip(changes) {
        setdirstripe(options).ok();
        if round < 3 {
            let victim = Which::Mdt(round);
            cluster.kill9(victim);
            cluster.restart(victim);
            // What was set on a server alone is gone with it.
            cluster.set_on(victim, allows, "1").ok();
        }
        // All of this while names move.
        let line =
            format!("for i in $(seq 100); do echo {round} > new$i; mv new$i moved$i; cat file$i > /dev/null; done");
        let mut program = Command::new("sh").arg("-ec").arg(line).current_dir(&there).spawn().unwrap();
        for name in names.iter().step_by(50) {
            assert_eq!(&fs::read_to_string(dir.join(name)).unwrap(), name, "{options:?}");
        }
        assert!(listed(&there).is_superset(&names), "{options:?}");
        assert!(program.wait().unwrap().success(), "{options:?}");
        rests(&dir);
        let moved: BTreeSet<String> = (1..=100).map(|number| format!("moved{number}")).collect();
        let all: BTreeSet<String> = names.union(&moved).cloned().collect();
        assert_eq!(listed(&dir), all, "{options:?}");
        for name in &moved {
            fs::remove_file(there.join(name)).unwrap();
        }
        assert_eq!(listed(&there), names, "{options:?}");
    }
    assert_eq!(getdirstripe(&["-c"], &there), "2\n");
    let mdts: BTreeSet<String> =
        names.iter().map(|name| adamant(["lfs", "getstripe", "-m"]).arg(dir.join(name)).ok()).take(20).collect();
    assert_eq!(mdts.len(), 1, "the files stay where they were made: {mdts:?}");
    fs::remove_dir_all(&there).unwrap();
    assert!(!dir.exists());
}
