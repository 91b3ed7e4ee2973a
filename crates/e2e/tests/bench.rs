//! `adamant bench` with real processes: tiny runs of each suite, its files, its page, and how it ends early.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use e2e::{Outcome, Story, adamant, binary, command, needs_root, older, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(120);

fn bench(story: &Story, words: &[&str]) -> Outcome {
    let (out, scratch) = (out(story), story.folder().display().to_string());
    adamant(["bench"]).args(words).args(["--out", &out, "--scratch", &scratch]).within(BOUND).run()
}

fn out(story: &Story) -> String {
    story.folder().join("out").display().to_string()
}

fn figures(story: &Story, suite: &str) -> Value {
    let path = story.folder().join("out").join(format!("{suite}.json"));
    serde_json::from_slice(&std::fs::read(path).expect("the figures")).expect("JSON")
}

fn rows(figures: &Value) -> Vec<&Value> {
    figures["rows"].as_array().expect("rows").iter().collect()
}

/// What a run leaves: its figures, and no mount, directory or process.
fn leaves_nothing(story: &Story) {
    if let Err(left) = has_left_nothing(story) {
        panic!("{left}");
    }
}

/// What a run has left that it should not have.
fn has_left_nothing(story: &Story) -> Result<(), String> {
    let left: Vec<PathBuf> = std::fs::read_dir(story.folder())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("adamant-bench-")))
        .collect();
    if !left.is_empty() {
        return Err(format!("left behind: {left:?}"));
    }
    let place = story.folder().display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    if mounts.contains(&place) {
        return Err(format!("still mounted:\n{mounts}"));
    }
    processes(story).first().map_or(Ok(()), |(_, words)| Err(format!("still runs: {words}")))
}

/// The processes of a run, with their command lines.
fn processes(story: &Story) -> Vec<(Pid, String)> {
    let place = format!("{}/adamant-bench-", story.folder().display());
    let of = |process: std::fs::DirEntry| {
        let words = std::fs::read(process.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        Some((Pid::from_raw(process.file_name().to_str()?.parse().ok()?)?, words))
    };
    let all = std::fs::read_dir("/proc").expect("processes").flatten().filter_map(of);
    all.filter(|(_, words)| words.contains(&place)).collect()
}

#[test]
fn each_suite_gives_a_table_and_figures_and_charts() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("bench, each suite", Duration::from_secs(300));
    let text = bench(&story, &["ceiling", "--quick", "--rounds", "1", "--files", "50", "--mib", "2"]).ok();
    for word in ["WHAT", "RATIO", "REQ/OP", "create", "echo, 128 outstanding", "bare engine"] {
        assert!(text.contains(word), "'{word}' is missing:\n{text}");
    }
    let both = text.contains("DO-NOTHING OVER /DEV/FUSE") || text.contains("over io_uring: not available");
    assert!(both, "neither the other transport's column nor why there is none:\n{text}");
    let figures_of_ceiling = figures(&story, "ceiling");
    let rows_of_ceiling = rows(&figures_of_ceiling);
    let create = rows_of_ceiling.iter().find(|row| row["what"] == "create").expect("create");
    assert!(create["figure"]["median"].as_f64() > Some(0.0), "{create}");
    let synchronous = rows_of_ceiling.iter().find(|row| row["what"] == "create, sync_metadata").expect("its row");
    assert!(synchronous["requests"].as_f64() >= Some(0.5), "a create is at least a request: {synchronous}");
    assert!(create["yardsticks"][0]["ratio"].as_f64() > Some(0.0), "{create}");

    let bounded = |row: &&&Value| row["bound"]["kept"].is_boolean() && row["yardsticks"][0]["ratio"].is_number();
    let bounded: Vec<&str> = rows_of_ceiling.iter().filter(bounded).filter_map(|row| row["what"].as_str()).collect();
    for what in [
        "create",
        "4 KiB file: open, read, close",
        "unlink, sync_metadata",
        "create, adamant up",
        "unlink, 4 programs, sync_metadata",
        "write with fsync (FUSE: to a local file), 4 programs",
        "read (FUSE: of a local file)",
        "ls -l of files that another client made",
        "open, read, close of files that another client made, warm",
        "find -size of files that another client made",
        "untar of small files",
        "git clone",
        "create, 4 clients in one directory",
        "mds-survey create, 1 thread",
    ] {
        let missing =
            text.contains("untar, git clone: not available") && matches!(what, "untar of small files" | "git clone");
        assert!(bounded.contains(&what) || missing, "no bound for '{what}':\n{text}");
    }

    let text = bench(&story, &["native", "--quick", "--rounds", "1", "--files", "200", "--before", "100"]).ok();
    let figures_of_native = figures(&story, "native");
    for row in rows(&figures_of_native).iter().filter(|row| row["unit"] == "creates/s") {
        assert!(row["figure"]["median"].as_f64() > Some(0.0), "{row}");
    }
    assert!(text.contains("native create, until the buffer is full"), "{text}");

    bench(&story, &["smallfile", "--rounds", "1", "--files", "20", "--sizes", "0,4"]).ok();
    let figures_of_small = figures(&story, "smallfile");
    assert_eq!(rows(&figures_of_small).len(), 3 * 2 * 2, "create, read, remove; two sizes; unique and shared");

    let text = bench(&story, &["meta", "--rounds", "1", "--files", "16", "--processes", "1,2", "--mounts", "2"]).ok();
    assert!(text.contains("stride 1") && text.contains("file close, 1 process"), "{text}");

    bench(&story, &["recovery", "--rounds", "1", "--files", "0", "--uncommitted", "50"]).ok();
    let figures_of_recovery = figures(&story, "recovery");
    let rows_of_recovery = rows(&figures_of_recovery);
    assert!(rows_of_recovery[0]["figure"]["median"].as_f64() > Some(0.0), "{}", rows_of_recovery[0]);
    assert!(rows_of_recovery[1]["figure"]["median"].as_f64() >= Some(50.0), "replayed: {}", rows_of_recovery[1]);
    let text = bench(&story, &["millions", "--rounds", "1", "--files", "300", "--clients", "2"]).ok();
    let figures_of_millions = figures(&story, "millions");
    let kept = |row: &serde_json::Value| row["bound"]["kept"].as_bool();
    assert!(rows(&figures_of_millions).iter().filter(|row| kept(row).is_some()).count() >= 8, "{text}");
    assert!(text.contains("ls -U, 300 entries") && text.contains("memory of client1"), "{text}");
    leaves_nothing(&story);

    let words = ["slots", "--rounds", "1", "--files", "64", "--processes", "8", "--slots", "1,8", "--older"];
    let program = older("0.1.0").unwrap_or_else(binary);
    let text = bench(&story, &[&words[..], &[&program.display().to_string()]].concat()).ok();
    for word in ["create, 8 slots, +200 us", "unlink, 8 slots over 0.1.0, loopback", "echo, +200 us"] {
        assert!(text.contains(word), "'{word}' is missing:\n{text}");
    }
    let figures_of_slots = figures(&story, "slots");
    let far = rows(&figures_of_slots).into_iter().find(|row| row["what"] == "echo, +200 us").expect("the longer way");
    // What was added, at least; the machine may add more.
    assert!(far["figure"]["median"].as_f64() > Some(190.0), "{far}");
    leaves_nothing(&story);

    let page = adamant(["bench", "report", "--out", &out(&story)]).ok();
    let page = std::fs::read_to_string(page.trim()).expect("the page");
    let charts = |suite| figures(&story, suite)["charts"].as_array().expect("charts").len();
    let all: usize = ["ceiling", "smallfile", "meta", "slots", "recovery"].into_iter().map(charts).sum();
    assert!(all >= 10, "{all} charts");
    assert_eq!(page.matches("<svg ").count(), all);
}

#[test]
fn several_metadata_targets_are_measured() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("bench, several metadata targets", Duration::from_secs(300));
    let text = bench(&story, &["mdts", "--quick", "--rounds", "1", "--files", "64", "--mdts", "1,2,3"]).ok();
    let figures = figures(&story, "mdts");
    let rows = rows(&figures);
    for what in [
        "create, unique, 1 MDT",
        "stat, shared, 2 MDTs",
        "remove, striped, 3 MDTs",
        "rmdir, unique, 3 MDTs",
        "create, unique: processor time of the MDTs, 3 over 1",
        "create, unique: rate, 3 MDTs over 2",
        "create, 4 clients, 3 MDTs: rate, striped over unique",
        "rename over two MDTs, 64 in flight: processor time of the MDTs",
        "unlink over two MDTs, one at a time, median",
        "create on one of two MDTs: rate, beside cross changes over without cross changes",
        "create, stat, remove within one MDT: processor time of the MDTs, 2 over 1",
        "mds-survey create: 2 MDTs over 1 MDT on one core",
        "small files, read, 128 KiB, 3 MDTs",
        "echo",
    ] {
        let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no '{what}':\n{text}"));
        assert!(row["figure"]["median"].as_f64() > Some(0.0), "{row}");
    }
    let create = rows.iter().find(|row| row["what"] == "create, unique, 3 MDTs").expect("creates");
    assert!(create["requests"].as_f64() >= Some(1.0), "each create is a request: {create}");
    for of in ["client_cpu_us", "server_cpu_us"] {
        assert!(create[of].as_f64() > Some(0.0), "{create}");
    }
    assert_eq!(figures["charts"].as_array().expect("charts").len(), 10);
    leaves_nothing(&story);

    let small = story.folder().join("small");
    std::fs::create_dir(&small).expect("a folder");
    let place = small.display().to_string();
    command("mount").args(["-t", "tmpfs", "-o", "size=64m", "none", &place]).ok();
    let outcome = adamant(["bench", "mdts", "--quick", "--scratch", &place]).within(BOUND).run();
    assert_eq!(outcome.code, Some(1), "{outcome}");
    for word in ["there is too little space", "--mdts"] {
        assert!(outcome.stderr.contains(word), "'{word}' is missing: {outcome}");
    }
    command("umount").arg(&place).ok();
}

/// Clients that have made their files still hear what servers ask: the restarted metadata server waits for all of them. One that hears
/// nothing comes back with its next sign of life.
#[test]
fn clients_that_have_made_their_files_come_back_at_once() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("bench, clients that are done", Duration::from_secs(180));
    let text = bench(&story, &["millions", "--rounds", "2", "--files", "16000", "--clients", "16"]).ok();
    let figures = figures(&story, "millions");
    let mut rows = rows(&figures).into_iter();
    let pause = rows.find(|row| row["what"] == "kill -9 until a program has its answer").expect("its row");
    assert!(pause["figure"]["max"].as_f64() < Some(8_000.0), "{text}");
    leaves_nothing(&story);
}

#[test]
fn wrong_words_give_a_line_and_status_2() {
    for (words, named) in [
        (&["ceiling", "--rounds", "0"][..], "--rounds"),
        (&["ceiling", "--files", "many"], "--files"),
        (&["smallfile", "--sizes", "4,x"], "--sizes"),
        (&["meta", "--processes", "0"], "--processes"),
        (&["recovery", "--mounts", "1"], "--mounts"),
        (&["millions", "--clients", "0"], "--clients"),
        (&["slots", "--slots", "0"], "--slots"),
        (&["mdts", "--mdts", "1,0"], "--mdts"),
        (&["report"], "--out"),
        (&["nonsense"], "nonsense"),
    ] {
        let outcome = adamant(["bench"]).args(words).run();
        assert_eq!(outcome.code, Some(2), "{outcome}");
        assert!(outcome.stderr.contains(named) && outcome.stderr.contains("Usage:"), "{outcome}");
    }
    let outcome = adamant(["bench", "report", "--out", "/nonexistent"]).run();
    assert_eq!(outcome.code, Some(1), "{outcome}");
    outcome.refused_with(&["/nonexistent", "measure first"]);
}

/// A run in the background.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(story: &Story, words: &[&str]) -> Running {
        let log = story.folder().join("log");
        let child = Command::new(binary())
            .arg("bench")
            .args(words)
            .args(["--out", &out(story), "--scratch", &story.folder().display().to_string()])
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("a run");
        Running { child, log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said this.
    fn until(&self, words: &str) {
        let start = Instant::now();
        while !self.said().contains(words) {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not get on:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }

    fn ends(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Waits until nothing is left of a run that could not clean up itself.
fn goes_away(story: &Story) {
    let start = Instant::now();
    while let Err(left) = has_left_nothing(story) {
        assert!(start.elapsed() < Duration::from_secs(30), "{left}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_that_is_killed_leaves_nothing() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("bench, killed", Duration::from_secs(120));
    // The first kill meets the servers at their start, the second a run with everything that it can have.
    for words in ["starting servers", "1 of 3: listings"] {
        let mut run = Running::start(&story, &["ceiling", "--rounds", "3", "--files", "50", "--mib", "1"]);
        run.until(words);
        run.send(Signal::KILL);
        run.ends();
        goes_away(&story);
    }
    // A second signal ends a run at once, though one of its servers does not end.
    let mut run = Running::start(&story, &["smallfile", "--files", "200", "--rounds", "1000"]);
    run.until("\n3 of ");
    let (server, _) = processes(&story).into_iter().find(|(_, words)| words.ends_with("/mdt0 ")).expect("its server");
    kill_process(server, Signal::STOP).expect("a signal");
    run.send(Signal::TERM);
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    run.send(Signal::TERM);
    assert_eq!(run.ends().code(), Some(1), "{}", run.said());
    assert!(start.elapsed() < Duration::from_secs(5), "it waited for the server");
    goes_away(&story);
}

#[test]
fn an_interrupted_run_keeps_its_figures_and_leaves_nothing() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("bench, interrupted", Duration::from_secs(120));
    let mut run = Running::start(&story, &["smallfile", "--files", "200", "--rounds", "1000"]);
    run.until("\n3 of ");
    run.send(Signal::INT);
    let status = run.ends();
    let said = || run.said();
    assert_eq!(status.code(), Some(1), "{}", said());
    assert!(said().contains("ended early") && said().contains("stopped by a signal"), "{}", said());
    let figures = figures(&story, "smallfile");
    assert!(figures["ended_early"].is_string() && !rows(&figures).is_empty(), "{figures}");
    leaves_nothing(&story);
}

#[test]
fn a_full_disk_ends_a_run_with_what_to_do() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("bench, full disk", Duration::from_secs(120));
    let small = story.folder().join("small");
    std::fs::create_dir(&small).expect("a folder");
    let place = small.display().to_string();
    command("mount").args(["-t", "tmpfs", "-o", "size=96m", "none", &place]).ok();
    let words = ["smallfile", "--rounds", "1", "--files", "4000", "--sizes", "128", "--out", &out(&story)];
    let outcome = adamant(["bench"]).args(words).args(["--scratch", &place]).within(BOUND).run();
    assert_eq!(outcome.code, Some(1), "{outcome}");
    assert!(outcome.stderr.contains("the file system is full") || outcome.stderr.contains("ended ("), "{outcome}");
    assert!(figures(&story, "smallfile")["ended_early"].is_string());
    command("umount").arg(&place).ok();
    leaves_nothing(&story);
}

/// The page as a browser shows it: its text is there, and the charts are drawn and not empty.
#[test]
#[ignore = "soak: needs Chromium"]
fn a_browser_shows_the_page() {
    if !needs_root() {
        return;
    }
    let Some(browser) = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"]
        .into_iter()
        .find(|path| Path::new(path).exists())
    else {
        skip("needs Chromium (apt-get install chromium)");
        return;
    };
    let story = Story::begin("bench, in a browser", Duration::from_secs(240));
    bench(&story, &["ceiling", "--quick", "--rounds", "1", "--files", "50", "--mib", "2"]).ok();
    let page = adamant(["bench", "report", "--out", &out(&story)]).ok();
    let address = format!("file://{}", page.trim());
    let headless = |more: &str| {
        let profile = format!("--user-data-dir={}", story.folder().join("profile").display());
        let words =
            ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400", &profile, more, &address];
        command(browser).args(words).within(BOUND).ok()
    };
    let shown = headless("--dump-dom");
    assert!(shown.contains("<h2 id=\"ceiling\">") && shown.matches("</svg>").count() >= 2, "{shown}");
    let picture = story.folder().join("page.png");
    headless(&format!("--screenshot={}", picture.display()));
    let bytes = std::fs::metadata(&picture).expect("a picture").len();
    assert!(bytes > 40_000, "a picture of {bytes} bytes shows nothing");
}
