//! A recovery as an administrator sees it, shortens it and ends it; clients that die.

use std::fs;
use std::time::{Duration, Instant};

use e2e::{Cluster, Outcome, Shape, Story, Which, adamant, needs_root};

/// How long something that happens at once may take on a machine that is busy.
const AT_ONCE: Duration = Duration::from_secs(10);

fn parameter(cluster: &Cluster, which: Which, name: &str) -> String {
    let kind = if matches!(which, Which::Ost(_)) { "obdfilter" } else { "mdt" };
    cluster.parameter(&format!("{kind}.{}.{name}", cluster.target_name(which)))
}

fn set(cluster: &Cluster, name: &str, value: &str) -> Outcome {
    adamant(["lctl", "set_param", &format!("mdt.{}.{name}={value}", cluster.target_name(Which::Mdt))]).run()
}

/// A row of `recovery_status`.
fn row(status: &str, key: &str) -> String {
    let found = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {key} in:\n{status}")).to_owned()
}

#[track_caller]
fn await_that(what: &str, bound: Duration, mut is: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < bound, "{what}: not within {bound:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// The states that the imports of the mounts here went through to get to the metadata target.
fn states(cluster: &Cluster) -> String {
    cluster.parameter(&format!("mdc.{}-MDT0000-mdc*.state", cluster.fsname))
}

/// One client is dead when the metadata target comes back: the other waits until somebody says that it need not.
#[test]
fn abort_recovery_ends_the_wait_for_a_dead_client() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("abort_recovery", Duration::from_secs(180));
    let serve_arguments = vec!["-o", "recovery_time_soft=100,recovery_time_hard=150"];
    let mut cluster = Cluster::start(&story, Shape { serve_arguments, ..Shape::mounts(2) });
    for index in 0..2 {
        fs::write(cluster.mount(index).join(format!("f{index}")), "x").unwrap();
    }
    cluster.kill9(Which::Mdt);
    cluster.kill9_mount(1);
    cluster.restart(Which::Mdt);
    let status = || parameter(&cluster, Which::Mdt, "recovery_status");
    await_that("one client is here", AT_ONCE, || status().contains("connected_clients: 1/2"));
    let text = status();
    assert_eq!(row(&text, "status"), "RECOVERING");
    assert!(row(&text, "recovery_start").parse::<u64>().unwrap() > 1_700_000_000, "{text}");
    assert!((1..=100).contains(&row(&text, "time_remaining").parse::<u64>().unwrap()), "{text}");
    assert!(text.contains("missing_clients:\n - "), "{text}");
    // Who is not known has to wait as well.
    let source = cluster.source();
    let place = story.folder().join("late");
    fs::create_dir(&place).unwrap();
    let late = adamant(["mount", "-o", "soft=2", &source]).arg(&place).within(Duration::from_secs(30)).run();
    assert!(late.code != Some(0) && late.stderr.contains("recovers: it waits for"), "{late}");

    let path = cluster.mount(0).join("g");
    let waiting = std::thread::spawn(move || fs::write(path, "y"));
    std::thread::sleep(Duration::from_secs(1));
    assert!(!waiting.is_finished(), "it must wait for the other client");
    let lctl = |words: &[&str]| adamant(["lctl"]).args(words).run();
    let device = cluster.target_name(Which::Mdt);
    lctl(&["abort_recovery"]).refused_with(&["--device"]);
    lctl(&["--device", "nothing-MDT0000", "abort_recovery"]).refused_with(&["nothing-MDT0000", "lctl dl"]);
    lctl(&["--device", &device, "dl"]).refused_with(&["--device"]);
    let start = Instant::now();
    lctl(&["--device", &device, "abort_recovery"]).ok();
    let text = status();
    assert_eq!(
        (row(&text, "status"), row(&text, "evicted_clients")),
        ("COMPLETE".to_owned(), "2".to_owned()),
        "{text}"
    );
    assert_eq!(row(&text, "VBR"), "ENABLED");
    // It was not through either. What was in flight fails; what comes then does not.
    drop(waiting.join().unwrap());
    fs::write(cluster.mount(0).join("h"), "z").unwrap();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(fs::read_to_string(cluster.mount(0).join("h")).unwrap(), "z");
    lctl(&["--device", &device, "abort_recovery"]).ok();
    assert!(states(&cluster).contains("EVICTED"), "{}", states(&cluster));
    story.note("the wait was ended");
}

/// `-o abort_recov` serves at once; what was durable is there, and clients start anew.
#[test]
fn a_start_with_abort_recov_waits_for_nobody() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("-o abort_recov", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_path_buf();
    let file = fs::File::create(mount.join("f")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    for option in ["abort_recov", "abort_recovery"] {
        cluster.kill9(Which::Mdt);
        cluster.restart_with(Which::Mdt, &["-o", option]);
        assert_eq!(parameter(&cluster, Which::Mdt, "recovery_status"), "status: INACTIVE");
        await_that("it is evicted and comes back", AT_ONCE, || {
            states(&cluster).lines().rev().take(2).collect::<String>().contains("EVICTED")
        });
        assert!(mount.join("f").exists());
        fs::write(mount.join("g"), option).unwrap();
    }
}

/// An evicted client notices, loses what it had, and goes on.
#[test]
fn evict_client_by_uuid_and_nid() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("evict_client", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_path_buf();
    assert_eq!(parameter(&cluster, Which::Mdt, "eviction_count"), "0");
    let nobody = set(&cluster, "evict_client", "uuid:nobody");
    assert!(nobody.code != Some(0), "{nobody}");
    let uuid = cluster.parameter(&format!("llite.{}.uuid", cluster.fsname));
    let base = format!("exports.{uuid}");
    let nid = parameter(&cluster, Which::Mdt, &format!("{base}.nid"));
    for (count, name) in
        [uuid.clone(), format!("uuid:{uuid}"), format!("nid:{nid}"), "nid:127.0.0.1".into()].iter().enumerate()
    {
        let evicted = count + 1;
        fs::write(mount.join("f"), name).unwrap();
        let open = fs::File::open(mount.join("f")).unwrap();
        // The address is another one after each reconnect.
        let name = if name.contains(&nid) {
            format!("nid:{}", parameter(&cluster, Which::Mdt, &format!("{base}.nid")))
        } else {
            name.clone()
        };
        set(&cluster, "evict_client", &name).ok();
        assert_eq!(parameter(&cluster, Which::Mdt, "eviction_count"), evicted.to_string(), "{name}");
        await_that("it comes back", AT_ONCE, || states(&cluster).matches("EVICTED").count() == evicted);
        await_that("it works again", AT_ONCE, || fs::write(mount.join("g"), "again").is_ok());
        drop(open);
    }
    let import = cluster.parameter(&format!("mdc.{}-MDT0000-mdc*.import", cluster.fsname));
    assert!(import.contains("generation: 4"), "{import}");
    story.note("evicted four times");
}

/// What the import tells of itself.
#[test]
fn the_import_and_its_states() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("import and state", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    fs::write(cluster.mount(0).join("f"), "x").unwrap();
    let text = states(&cluster);
    assert!(text.starts_with("current_state: FULL\nstate_history:\n - [ "), "{text}");
    cluster.kill9(Which::Mdt);
    cluster.restart(Which::Mdt);
    fs::write(cluster.mount(0).join("g"), "x").unwrap();
    let text = states(&cluster);
    let words: Vec<&str> = text.lines().skip(2).map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert!(words.len() <= 16 && words.starts_with(&["CONNECTING", "FULL", "DISCONN", "CONNECTING"]), "{text}");
    assert!(words.ends_with(&["REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER", "FULL"]), "{text}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let times: Vec<u64> =
        text.lines().skip(2).map(|line| line.split(['[', ',']).nth(1).unwrap().trim().parse().unwrap()).collect();
    assert!(times.is_sorted() && times.iter().all(|at| now.abs_diff(*at) < 120), "{now}: {text}");

    let import = cluster.parameter(&format!("mdc.{}-MDT0000-mdc*.import", cluster.fsname));
    let nid = cluster.nid(Which::Mdt);
    for wanted in [
        format!("name: {}-MDT0000-mdc", cluster.fsname),
        format!("target: {}-MDT0000", cluster.fsname),
        "state: FULL".into(),
        "flags: 0x".into(),
        "instance: 2".into(),
        "import_flags: [ replayable, pingable ]".into(),
        format!("failover_nids: [ {nid} ]"),
        format!("current_connection: {nid}"),
        "connection_attempts: ".into(),
        "generation: 0".into(),
        "in-progress_invalidations: 0".into(),
        "idle: ".into(),
        "inflight: 0".into(),
        "timeouts: 0".into(),
        "avg_waittime: ".into(),
        "last_replay: ".into(),
        "peer_committed: ".into(),
    ] {
        assert!(import.contains(&wanted), "{wanted} is missing:\n{import}");
    }
}

/// A client that waits between two attempts hears of the start from the MGS.
#[test]
fn the_mgs_brings_clients_back() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("imperative recovery", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let mounts = cluster.mounts();
    fs::write(mounts[0].join("f"), "x").unwrap();
    fs::write(mounts[1].join("g"), "x").unwrap();
    for (options, word) in [(&[][..], "ENABLED"), (&["-o", "noir"][..], "DISABLED")] {
        cluster.kill9(Which::Mdt);
        // Long enough that they try once a second only.
        std::thread::sleep(Duration::from_secs(4));
        cluster.restart_with(Which::Mdt, options);
        let status = || parameter(&cluster, Which::Mdt, "recovery_status");
        let took = await_that("recovery is over", AT_ONCE, || status().contains("status: COMPLETE"));
        let text = status();
        assert_eq!((row(&text, "completed_clients"), row(&text, "IR")), ("2/2".to_owned(), word.to_owned()), "{text}");
        story.note(&format!("IR {word}: over after {took:.2?}"));
    }
    assert_eq!(parameter(&cluster, Which::Mdt, "ir_factor"), "5");
}
