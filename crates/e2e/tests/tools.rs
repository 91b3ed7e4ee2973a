//! The benchmark tools as programs: mounts, the client library, a running metadata target, and early ends.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, Shape, Story, Which, adamant, binary, command, needs_root};

/// The rows of mdtest's table as a script reads them: the operation, then max, min, mean and deviation.
#[track_caller]
fn summary(text: &str) -> Vec<(String, [f64; 4])> {
    let table = text.split("SUMMARY rate (in ops/sec): (of ").nth(1).expect("a summary");
    let rows = table.lines().skip(3).take_while(|line| line.starts_with("   "));
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, numbers) = words.split_at(words.len() - 4);
        (name.join(" "), [0, 1, 2, 3].map(|at| numbers[at].parse().expect("a number")))
    })
    .collect()
}

const ROWS: [&str; 9] = [
    "Directory creation",
    "Directory stat",
    "Directory removal",
    "File creation",
    "File stat",
    "File read",
    "File removal",
    "Tree creation",
    "Tree removal",
];

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("a folder").next().is_none()
}

#[test]
fn mdtest_works_over_several_mounts() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mdtest over two mounts", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let places = format!("{}@{}", cluster.mount(0).display(), cluster.mount(1).display());
    measure_whole_runs(&cluster, &places);
}

/// Shared and own directories, strides, data, trees: each phase has a rate, and nothing is left.
fn measure_whole_runs(cluster: &Cluster, places: &str) {
    for more in [
        &["-N", "1"][..],
        &["-u", "-N", "1", "-w", "4096", "-e", "4096", "-y"],
        &["-u", "-z", "1", "-b", "2", "-i", "2"],
    ] {
        let text = adamant(["mdtest", "--np", "4", "-n", "20", "-d", places]).args(more).run().ok();
        let rows = summary(&text);
        assert_eq!(rows.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ROWS, "{text}");
        assert!(rows.iter().all(|(_, [max, min, mean, _])| *max > 0.0 && *min > 0.0 && *mean > 0.0), "{text}");
        assert!(cluster.mounts().iter().all(|mount| is_empty(mount)), "{text}");
    }
}

#[test]
fn mdtest_works_on_a_mount_and_without_one() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mdtest on a mount, and native", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    measure_whole_runs(&cluster, &cluster.mount(0).display().to_string());
    let native = cluster.source();
    for more in [&["-u"][..], &["-N", "1", "-w", "100", "-e", "100"], &["--threads", "-z", "1"]] {
        let text = adamant(["mdtest", "--native", "--np", "2", "-n", "20", "-d", &native]).args(more).run().ok();
        assert_eq!(summary(&text).len(), ROWS.len(), "{text}");
        assert!(is_empty(cluster.mount(0)), "{text}");
    }
    // What the library makes, a mount sees.
    adamant(["mdtest", "--native", "-F", "-C", "-n", "3", "-d", &format!("{native}/made")]).run().ok();
    let made = cluster.mount(0).join("made/test-dir.0-0/mdtest_tree.0");
    assert_eq!(std::fs::read_dir(&made).expect("the tree").count(), 3);
    adamant(["mdtest", "--native", "-F", "-T", "--cleanup", "-n", "3", "-d", &format!("{native}/made")]).run().ok();
    assert!(!cluster.mount(0).join("made/test-dir.0-0").exists());
}

#[test]
fn an_interrupted_run_tells_its_figures_and_leaves_nothing() {
    let story = Story::begin("mdtest interrupted", Duration::from_secs(60));
    let folder = story.folder().join("interrupted");
    std::fs::create_dir(&folder).expect("a folder");
    let child = Command::new(binary())
        .args(["mdtest", "--np", "2", "-F", "-n", "100000000", "--cleanup", "-d"])
        .arg(&folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mdtest starts");
    let tree = folder.join("test-dir.0-0/mdtest_tree.0");
    while !tree.is_dir() || std::fs::read_dir(&tree).is_ok_and(|entries| entries.count() < 100) {
        std::thread::sleep(Duration::from_millis(20));
    }
    command("kill").args(["-INT", &child.id().to_string()]).run().ok();
    let output = child.wait_with_output().expect("mdtest ends");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stderr.contains("File creation ended after ") && stderr.contains("stopped"), "{stderr}");
    assert!(stdout.contains("SUMMARY rate"), "{stdout}");
    assert!(is_empty(&folder), "{stderr}");
}

#[test]
fn a_full_file_system_ends_a_run_with_a_message_and_the_figures_so_far() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("tools on a full file system", Duration::from_secs(60));
    let folder = story.folder().join("small");
    std::fs::create_dir(&folder).expect("a folder");
    command("mount").args(["-t", "tmpfs", "-o", "nr_inodes=200", "none"]).arg(&folder).run().ok();
    let full = adamant(["mdtest", "--np", "2", "-F", "-n", "1000", "-d"]).arg(&folder).run();
    let many = adamant(["createmany", "-m", &format!("{}/f", folder.display()), "1000"]).run();
    command("umount").arg(&folder).run().ok();
    assert_eq!(full.code, Some(1), "{full}");
    for words in ["No space left on device", "make room", "File creation ended after ", "ops/sec"] {
        assert!(full.stderr.contains(words), "{words}: {full}");
    }
    assert_eq!(many.code, Some(1), "{many}");
    assert!(many.stderr.contains("No space left on device") && many.stdout.contains("total: "), "{many}");
}

#[test]
fn wrong_options_give_a_usage_line_and_status_2() {
    let _story = Story::begin("tools misused", Duration::from_secs(60));
    for line in [
        &["mdtest", "-n", "10", "-Q"][..],
        &["mdtest", "-n", "10", "-S", "-u"],
        &["mdtest"],
        &["createmany", "-o", "-m", "f", "10"],
        &["createmany", "-o", "f"],
        &["createmany", "-m", "-k", "f", "10"],
        &["unlinkmany", "f", "0"],
        &["statmany", "f", "10"],
        &["mds-survey", "--tests", "lookup"],
        &["createmany", "-o", "-i", "1", "f", "10"],
    ] {
        let outcome = adamant(line).run();
        assert_eq!(outcome.code, Some(2), "{line:?}: {outcome}");
        assert!(outcome.stderr.contains("Usage: ") && outcome.stdout.is_empty(), "{line:?}: {outcome}");
    }
    // By their own names too.
    for (name, words) in
        [("mdtest", &["-n", "x"][..]), ("createmany", &["-o", "%s", "1"]), ("mds-survey", &["--thrlo", "x"])]
    {
        let outcome = command(binary()).called(name).args(words).run();
        assert_eq!(outcome.code, Some(2), "{name}: {outcome}");
        assert!(outcome.stderr.contains(&format!("Usage: {name} ")), "{name}: {outcome}");
    }
}

#[test]
fn createmany_measures_opens_and_closes_apart_on_a_mount() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("createmany and friends on a mount", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let name = format!("{}/f%d", cluster.mount(0).display());
    let base = format!("{}/f", cluster.mount(0).display());
    let text = adamant(["createmany", "-o", "-k", &name, "500"]).run().ok();
    assert!(text.contains("total: 500 open/keep in ") && text.contains("total: 500 close in "), "{text}");
    let text = adamant(["statmany", "-s", "-r", "3", &base, "500", "100"]).run().ok();
    assert!(text.starts_with("using seed 3\n") && text.contains("total: 100 stats in "), "{text}");
    adamant(["statmany", "-l", &base, "500", "100"]).run().ok();
    let text = adamant(["unlinkmany", &name, "500"]).run().ok();
    assert!(text.contains("total: 500 unlinks in "), "{text}");
    let bare = story.folder().join("bare");
    std::fs::create_dir(&bare).expect("a folder");
    let text =
        adamant(["createmany", "-m", "--runs", "3", "--beside", &bare.display().to_string(), &name, "200"]).run().ok();
    assert!(text.contains("here: 3 runs: median ") && text.contains("\nratio: "), "{text}");
    assert!(is_empty(cluster.mount(0)) && is_empty(&bare));
}

#[test]
fn mds_survey_loads_a_target_from_inside() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mds-survey", Duration::from_secs(90));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let mdt = cluster.target_name(Which::Mdt(0));
    let survey = |more: &[&str]| {
        let words = ["mds-survey", "--targets", &mdt, "--thrlo", "2", "--thrhi", "4", "--dir-count", "2"];
        adamant(words).args(more).run()
    };
    let prefix = story.folder().join("figures").display().to_string();
    let text = survey(&["--file-count", "2000", "--rslt", &prefix]).ok();
    assert_eq!(text.lines().count(), 2, "{text}");
    for (line, threads) in text.lines().zip([2, 4]) {
        assert!(line.starts_with(&format!("mdt 1 file    2000 dir    2 thr {threads:>4} create ")), "{line}");
        let words: Vec<&str> =
            line.split(|c: char| c.is_whitespace() || "[],".contains(c)).filter(|w| !w.is_empty()).collect();
        for test in ["create", "lookup", "md_getattr", "setxattr", "destroy"] {
            let at = words.iter().position(|word| *word == test).expect(test);
            let figures: Vec<f64> = words[at + 1..at + 4].iter().map(|word| word.parse().expect("a figure")).collect();
            assert!(figures[0] > 0.0 && figures[1] <= figures[2], "{line}");
        }
    }
    assert_eq!(std::fs::read_to_string(format!("{prefix}.summary")).expect("the summary"), text);
    assert!(std::fs::read_to_string(format!("{prefix}.detail")).expect("the detail").contains("md_getattr"));
    assert!(is_empty(cluster.mount(0)), "a survey leaves nothing");
    // Without destroy, the survey itself takes away what it made; several requests outstanding; JSON.
    let text = survey(&["--tests", "create setxattr", "--file-count", "400", "--outstanding", "8", "--json"]).ok();
    assert_eq!(text.matches("\"setxattr\"").count(), 2, "{text}");
    assert!(is_empty(cluster.mount(0)), "a survey leaves nothing");
    adamant(["mds-survey", "--targets", "fs-MDT0009"]).run().refused_with(&["fs-MDT0009"]);
}

#[test]
fn mds_survey_loads_several_targets_at_once() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mds-survey over several metadata targets", Duration::from_secs(240));
    let cluster = Cluster::with_mdts(&story, 3);
    let [first, second, third] = [0, 1, 2].map(|index| cluster.target_name(Which::Mdt(index)));
    let survey = |targets: &str, more: &[&str]| {
        let words = ["mds-survey", "--targets", targets, "--thrlo", "2", "--thrhi", "4", "--dir-count", "2"];
        adamant(words).args(["--file-count", "800"]).args(more).run()
    };
    // A target that does not have the root, alone.
    let text = survey(&second, &[]).ok();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.starts_with("mdt 1 file     800 dir    2 thr    2 create "), "{text}");

    for stripes in ["0", "2", "3"] {
        let prefix = story.folder().join(format!("striped{stripes}")).display().to_string();
        let text =
            survey(&[&first[..], &second, &third].join(" "), &["--stripe-count", stripes, "--rslt", &prefix]).ok();
        assert!(text.starts_with("mdt 3 file     800 dir    2 thr    2 create "), "{text}");
        assert_eq!(text.lines().next().expect("a line").matches('[').count(), 5, "a pair for each test: {text}");
        assert_eq!(std::fs::read_to_string(format!("{prefix}.summary")).expect("the summary"), text);
        let detail = std::fs::read_to_string(format!("{prefix}.detail")).expect("the detail");
        for target in [&first, &second, &third] {
            assert_eq!(detail.matches(&format!("\"{target}\"")).count(), 10, "two lines of five tests: {detail}");
        }
        assert_eq!(detail.matches("\"operations\": 800").count(), 30, "{detail}");
        for mount in 0..2 {
            assert!(is_empty(cluster.mount(mount)), "a survey leaves nothing");
        }
    }
    // An empty directory that a killed survey left is in nobody's way.
    std::fs::create_dir(cluster.mount(0).join(format!(".mds-survey.{}.0", &second[second.len() - 7..])))
        .expect("a directory");
    survey(&second, &["--tests", "create"]).ok();
    assert!(is_empty(cluster.mount(0)), "a survey leaves nothing");
    survey(&format!("{first} {first}"), &[]).refused_with(&["named twice"]);
}

#[test]
fn lctl_tests_a_target_from_inside() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("lctl test_create and the others", Duration::from_secs(240));
    let cluster = Cluster::with_mdts(&story, 2);
    let [first, second] = [0, 1].map(|index| cluster.target_name(Which::Mdt(index)));
    let mount = cluster.mount(0);
    let alone = |device: &str, words: &[&str]| adamant(["lctl", "--device", device]).args(words).run();
    let threads = |device: &str, words: &[&str]| adamant(["lctl", "--threads", "4", "-1", device]).args(words).run();

    // Directories are where they shall be, and clients see them.
    let text = alone(&second, &["test_mkdir", "/dir0", "/dir1"]).ok();
    assert!(text.starts_with("test_mkdir: 2 in "), "{text}");
    alone(&first, &["test_mkdir", "/other", "--stripe_index", "1"]).ok();
    alone(&first, &["test_mkdir", "/wide", "-c", "2", "--stripe_index", "1"]).ok();
    let index = |name: &str| adamant(["lfs", "getdirstripe", "-m"]).arg(mount.join(name)).ok().trim().to_owned();
    assert_eq!(["dir0", "dir1", "other", "wide"].map(index), ["1"; 4]);
    assert_eq!(adamant(["lfs", "getdirstripe", "-c"]).arg(mount.join("wide")).ok().trim(), "2");

    let files = ["-d", "/dir", "-D", "2", "-b", "2", "-n", "100"];
    let count = |name: &str| std::fs::read_dir(mount.join(name)).expect("a directory").count();
    for verb in ["test_create", "test_lookup", "test_md_getattr", "test_setxattr"] {
        let text = threads(&second, &[&[verb][..], &files].concat()).ok();
        let total = text.lines().last().expect("a line");
        assert!(total.starts_with("Total: total 400 threads 4 sec ") && total.ends_with("/second"), "{verb}: {text}");
        assert!(text.lines().rev().skip(1).all(|line| line.starts_with("4/4 Total: ")), "{verb}: {text}");
        assert_eq!((count("dir0"), count("dir1")), (200, 200), "{verb}");
    }
    let names: Vec<_> = (2..402).filter(|n| (n - 2) / 100 % 2 == 1).map(|n| format!("f{n}")).collect();
    assert!(names.iter().all(|name| mount.join("dir1").join(name).is_file()), "threads 1 and 3 work in dir1");
    let value = xattrs(mount, "dir0/f2");
    assert!(value.contains("user."), "an attribute was set: {value}");

    // Nothing is done twice, and what is not there is not found.
    threads(&second, &[&["test_create"][..], &files].concat()).refused_with(&["failed: File exists"]);
    threads(&second, &["test_lookup", "-d", "/dir0", "-b", "5000"]).refused_with(&["f5000", "there must be one"]);
    threads(&second, &["test_create", "-d", "/none"]).refused_with(&["/none", "test_mkdir"]);
    threads(&first, &["test_create", "-d", "/dir0"]).refused_with(&["/dir0", "is not on"]);
    threads(&second, &["test_mkdir", "/dir0"]).refused_with(&["/dir0", "File exists"]);
    alone(&second, &["test_rmdir", "/dir0"]).refused_with(&["/dir0", "not empty"]);

    let text = threads(&second, &[&["test_destroy"][..], &files].concat()).ok();
    assert!(text.contains("Total: total 400 threads 4 "), "{text}");
    assert_eq!((count("dir0"), count("dir1")), (0, 0));

    // Each target in its own stripe of one directory, with files and with directories.
    for (make, remove) in [("test_create", "test_destroy"), ("test_mkdir", "test_rmdir")] {
        for device in [&first, &second] {
            threads(device, &[make, "-d", "/wide", "-n", "50"]).ok();
        }
        assert_eq!(count("wide"), 400, "{make}");
        for device in [&first, &second] {
            threads(device, &[remove, "-d", "/wide", "-n", "50"]).ok();
        }
        assert_eq!(count("wide"), 0, "{remove}");
    }
    let text = alone(&second, &["test_rmdir", "/dir0", "/dir1", "/other", "/wide"]).ok();
    assert!(text.starts_with("test_rmdir: 4 in "), "{text}");
    assert!(is_empty(mount));

    // Misuse, and devices that cannot be tested.
    for words in [
        &["test_create", "-d", "/dir"][..],
        &["--threads", "4", "-1", &first, "test_create"],
        &["--threads", "4", "1", &first, "test_create", "-d", "/"],
        &["--threads", "0", "-1", &first, "test_create", "-d", "/"],
        &["--threads", "4", "-1", &first, "test_create", "-d", "/", "-n", "0"],
        &["--threads", "4", "-1", &first, "test_lookup", "-d", "/", "-c", "2"],
        &["--threads", "4", "-1", &first, "dl"],
    ] {
        let outcome = adamant(["lctl"]).args(words).run();
        assert_eq!(outcome.code, Some(2), "{words:?}: {outcome}");
    }
    threads("no-MDT0009", &["test_create", "-d", "/"]).refused_with(&["no-MDT0009", "lctl dl"]);
    threads(&cluster.target_name(Which::Ost(0)), &["test_create", "-d", "/"]).refused_with(&["no metadata target"]);
}

/// The names of the extended attributes of a file.
fn xattrs(mount: &Path, name: &str) -> String {
    let mut names = [0; 4096];
    let length = rustix::fs::listxattr(mount.join(name), &mut names).expect("a list");
    String::from_utf8_lossy(&names[..length]).into_owned()
}

#[test]
fn createmany_makes_directories_on_a_metadata_target() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("createmany -i", Duration::from_secs(120));
    let cluster = Cluster::with_mdts(&story, 2);
    let mount = cluster.mount(0);
    let names = format!("{}/d%d", mount.display());
    for index in ["1", "0"] {
        let text = adamant(["createmany", "-d", "-i", index, &names, "20"]).run().ok();
        assert!(text.contains("total: 20 mkdir in "), "{text}");
        for number in [0, 19] {
            let found = adamant(["lfs", "getdirstripe", "-m"]).arg(mount.join(format!("d{number}"))).ok();
            assert_eq!(found.trim(), index);
        }
        adamant(["unlinkmany", "-d", &names, "20"]).run().ok();
    }
    let outcome = adamant(["createmany", "-d", "-u", "-i", "1", &names, "5"]).run();
    assert!(outcome.ok().contains("total: 5 mkdir/rmdir in "));
    assert!(is_empty(mount));
    adamant(["createmany", "-d", "-i", "7", &names, "5"]).run().refused_with(&["no such metadata target"]);
    let bare = format!("{}/d%d", story.folder().display());
    adamant(["createmany", "-d", "-i", "1", &bare, "5"]).run().refused_with(&["only a mount of Adamant"]);
}
