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
