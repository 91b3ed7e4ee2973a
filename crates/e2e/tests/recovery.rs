//! A recovery as an administrator sees it, shortens it and ends it; clients that die.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use e2e::load::{self, Load};
use e2e::{Cluster, Outcome, Shape, Story, Which, adamant, needs_root, trees};

/// How long something that happens at once may take on a machine that is busy.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long clients may need until they are at work again.
const BACK: Duration = Duration::from_secs(30);

fn parameter(cluster: &Cluster, which: Which, name: &str) -> String {
    let kind = if matches!(which, Which::Ost(_)) { "obdfilter" } else { "mdt" };
    cluster.parameter(&format!("{kind}.{}.{name}", cluster.target_name(which)))
}

fn set(cluster: &Cluster, name: &str, value: &str) -> Outcome {
    adamant(["lctl", "set_param", &format!("mdt.{}.{name}={value}", cluster.target_name(Which::Mdt(0)))]).run()
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
    cluster.kill9(Which::Mdt(0));
    cluster.kill9_mount(1);
    cluster.restart(Which::Mdt(0));
    let status = || parameter(&cluster, Which::Mdt(0), "recovery_status");
    await_that("one client is here", AT_ONCE, || status().contains("connected_clients: 1/2"));
    let text = status();
    assert_eq!(row(&text, "status"), "RECOVERING");
    assert!(row(&text, "recovery_start").parse::<u64>().unwrap() > 1_700_000_000, "{text}");
    assert!((1..=100).contains(&row(&text, "time_remaining").parse::<u64>().unwrap()), "{text}");
    assert!(text.contains("missing_clients:\n - "), "{text}");
    // A client that is not known has to wait as well.
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
    let device = cluster.target_name(Which::Mdt(0));
    lctl(&["abort_recovery"]).refused_with(&["--device"]);
    lctl(&["--device", "nothing-MDT0000", "abort_recovery"]).refused_with(&["nothing-MDT0000", "lctl dl"]);
    lctl(&["--device", &device, "dl"]).refused_with(&["--device"]);
    let start = Instant::now();
    lctl(&["--device", &device, "abort_recovery"]).ok();
    // The new epoch reaches the disk first.
    await_that("recovery is over", AT_ONCE, || status().contains("status: COMPLETE"));
    let text = status();
    assert_eq!(
        (row(&text, "status"), row(&text, "evicted_clients")),
        ("COMPLETE".to_owned(), "2".to_owned()),
        "{text}"
    );
    assert_eq!(row(&text, "VBR"), "ENABLED");
    // It was not through either. What was in flight fails; what comes then does not.
    drop(waiting.join().unwrap());
    // What it had made before the crash may be lost with its eviction; if so, the next change in that directory is told, once.
    let lost = !cluster.mount(0).join("f0").exists();
    let told = fs::write(cluster.mount(0).join("h"), "z").map_err(|error| error.raw_os_error());
    assert_eq!(told, if lost { Err(Some(rustix::io::Errno::IO.raw_os_error())) } else { Ok(()) });
    fs::write(cluster.mount(0).join("h"), "z").unwrap();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(fs::read_to_string(cluster.mount(0).join("h")).unwrap(), "z");
    let again = lctl(&["--device", &device, "abort_recovery"]).ok();
    assert!(again.contains("no recovery is under way"), "{again}");
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
        cluster.kill9(Which::Mdt(0));
        cluster.restart_with(Which::Mdt(0), &["-o", option]);
        assert_eq!(parameter(&cluster, Which::Mdt(0), "recovery_status"), "status: INACTIVE");
        await_that("it is evicted and comes back", AT_ONCE, || {
            states(&cluster).lines().rev().take(2).collect::<String>().contains("EVICTED")
        });
        assert!(mount.join("f").exists());
        // What was answered before the crash and was not durable is lost: the next call is told so, once.
        if let Err(error) = fs::write(mount.join("g"), option) {
            assert_eq!(error.raw_os_error(), Some(5), "{error}");
            fs::write(mount.join("g"), option).unwrap();
        }
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
    assert_eq!(parameter(&cluster, Which::Mdt(0), "eviction_count"), "0");
    let nobody = set(&cluster, "evict_client", "uuid:nobody");
    assert!(nobody.code != Some(0), "{nobody}");
    let uuid = cluster.parameter(&format!("llite.{}.uuid", cluster.fsname));
    let base = format!("exports.{uuid}");
    let nid = parameter(&cluster, Which::Mdt(0), &format!("{base}.nid"));
    for (count, name) in
        [uuid.clone(), format!("uuid:{uuid}"), format!("nid:{nid}"), "nid:127.0.0.1".into()].iter().enumerate()
    {
        let evicted = count + 1;
        fs::write(mount.join("f"), name).unwrap();
        let open = fs::File::open(mount.join("f")).unwrap();
        // The address is another one after each reconnect.
        let name = if name.contains(&nid) {
            format!("nid:{}", parameter(&cluster, Which::Mdt(0), &format!("{base}.nid")))
        } else {
            name.clone()
        };
        set(&cluster, "evict_client", &name).ok();
        assert_eq!(parameter(&cluster, Which::Mdt(0), "eviction_count"), evicted.to_string(), "{name}");
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
    cluster.kill9(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    fs::write(cluster.mount(0).join("g"), "x").unwrap();
    let text = states(&cluster);
    let words: Vec<&str> = text.lines().skip(2).map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert!(words.len() <= 16 && words.starts_with(&["CONNECTING", "FULL", "DISCONN", "CONNECTING"]), "{text}");
    assert!(words.ends_with(&["REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER", "FULL"]), "{text}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let times: Vec<u64> =
        text.lines().skip(2).map(|line| line.split(['[', ',']).nth(1).unwrap().trim().parse().unwrap()).collect();
    assert!(times.is_sorted() && times.iter().all(|at| now.abs_diff(*at) < 120), "{now}: {text}");

    let import = || cluster.parameter(&format!("mdc.{}-MDT0000-mdc*.import", cluster.fsname));
    // The close of the file goes on behind the program's back.
    await_that("the import is at rest", AT_ONCE, || import().contains("inflight: 0"));
    let import = import();
    let nid = cluster.nid(Which::Mdt(0));
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
        cluster.kill9(Which::Mdt(0));
        // Long enough that they try once a second only.
        std::thread::sleep(Duration::from_secs(4));
        cluster.restart_with(Which::Mdt(0), options);
        let status = || parameter(&cluster, Which::Mdt(0), "recovery_status");
        let took = await_that("recovery is over", AT_ONCE, || status().contains("status: COMPLETE"));
        let text = status();
        assert_eq!((row(&text, "completed_clients"), row(&text, "IR")), ("2/2".to_owned(), word.to_owned()), "{text}");
        story.note(&format!("IR {word}: over after {took:.2?}"));
    }
    assert_eq!(parameter(&cluster, Which::Mdt(0), "ir_factor"), "5");
}

/// A client is killed while it holds locks, dirty data and an open file without a name, and while servers die, too. The
/// others wait for it no longer than the window, and afterwards nothing of it is in their way.
#[test]
fn a_dead_client_costs_the_others_no_more_than_the_window() {
    if !needs_root() {
        return;
    }
    const SOFT: Duration = Duration::from_secs(4);
    let story = Story::begin("a client dies", Duration::from_secs(240));
    let serve_arguments = vec!["-o", "recovery_time_soft=4,recovery_time_hard=12"];
    let mut cluster = Cluster::start(&story, Shape { serve_arguments, ..Shape::mounts(3) });
    let mounts = cluster.mounts();
    let shared = mounts[0].join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("large"), vec![7; 900_000]).unwrap();
    fs::write(shared.join("small"), "x").unwrap();
    fs::File::open(&shared).unwrap().sync_all().unwrap();
    let load = Load::start(&mounts[..2], 2, 1);
    let dying = Load::start(&mounts[2..], 2, 2);
    dying.await_progress(100, AT_ONCE);
    // What the dying client holds: a lock on the whole of a file with bytes that only it has, a flock, an open file.
    let at = |mount: usize, name: &str| mounts[mount].join("shared").join(name);
    let open = |mount: usize, name: &str| fs::OpenOptions::new().read(true).write(true).open(at(mount, name)).unwrap();
    let (large, small) = (open(2, "large"), open(2, "small"));
    large.write_all_at(&[8; 500_000], 100_000).unwrap();
    rustix::fs::flock(&small, rustix::fs::FlockOperation::LockExclusive).unwrap();
    fs::remove_file(at(2, "small")).unwrap();
    fs::write(at(2, "small"), "another").unwrap();
    let everything = [Which::Mdt(0), Which::Ost(0), Which::Ost(1)];
    for which in everything {
        cluster.kill9(which);
    }
    cluster.kill9_mount(2);
    drop((large, small));
    dying.abandon();
    let start = Instant::now();
    for which in everything {
        cluster.restart(which);
    }
    load.await_progress(300, Duration::from_secs(60));
    let back = start.elapsed();
    let status = parameter(&cluster, Which::Mdt(0), "recovery_status");
    assert_eq!(
        (row(&status, "completed_clients"), row(&status, "evicted_clients")),
        ("2/3".into(), "1".into()),
        "{status}"
    );
    // Nothing of it is in the way: names, bytes, locks.
    let start = Instant::now();
    let file = open(0, "large");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    file.write_all_at(&[9; 900_000], 0).unwrap();
    assert_eq!(fs::read(at(1, "large")).unwrap(), vec![9; 900_000]);
    fs::write(at(0, "small"), "mine").unwrap();
    assert_eq!(fs::read_to_string(at(1, "small")).unwrap(), "mine");
    let after = start.elapsed();
    let worked = load.stop();
    let longest = load::longest(&worked);
    story.note(&format!("at work again after {back:.2?}, longest pause {longest:.2?}, then {after:.2?}"));
    load::verify(&worked, &mounts[0]);
    // The window, the restart of three servers, and what a busy machine adds.
    assert!(longest < SOFT + AT_ONCE, "{longest:?}");
    assert!(after < Duration::from_secs(5), "{after:?}");
}

/// A client that is gone holds locks at all targets, which others want. It is killed in the first round, so its connections break; in the
/// second it is stopped, as if its machine were: they stay. Each target evicts it once, and others wait for no target longer than a
/// client has to give a lock back; those who want nothing of it do not wait.
#[test]
fn each_target_evicts_a_client_that_is_gone_once_and_nobody_waits_longer() {
    use rustix::process::{Pid, Signal, kill_process};
    if !needs_root() {
        return;
    }
    /// `ldlm_timeout`, and what a target waits where the connection broke so long ago already.
    const CALLBACK: Duration = Duration::from_secs(6);
    const CALLBACK_LATE: Duration = Duration::from_millis(600);
    const VICTIM: usize = 2;
    let story = Story::begin("a client with locks at all targets is gone", Duration::from_secs(180));
    let mut cluster = Cluster::start(&story, Shape { osts: 3, ..Shape::mounts(3) });
    let everything = [Which::Mdt(0), Which::Ost(0), Which::Ost(1), Which::Ost(2)];
    for which in everything {
        cluster.set_on(which, "ldlm_timeout", &CALLBACK.as_secs().to_string()).ok();
    }
    let number = |cluster: &Cluster, which: Which, name: &str| -> usize {
        let kind = if matches!(which, Which::Ost(_)) { "obdfilter" } else { "mdt" };
        cluster.get_on(which, &format!("{kind}.*.{name}")).parse().unwrap()
    };
    let mounts = cluster.mounts();
    let load = Load::start(&mounts[..2], 1, 3);
    load.await_progress(100, AT_ONCE);
    for (round, stopped) in [(1, false), (2, true)] {
        // A directory of the client's own, and a file on each object target with bytes that only it has.
        let name = format!("d{round}");
        let folder = mounts[VICTIM].join(&name);
        fs::create_dir(&folder).unwrap();
        for ost in 0..3 {
            let file = folder.join(format!("f{ost}"));
            adamant(["lfs", "setstripe", "-c", "1", "-i", &ost.to_string()]).arg(&file).ok();
            fs::write(&file, vec![7; 200_000]).unwrap();
        }
        adamant(["sync"]).arg(&folder).ok();
        for ost in 0..3 {
            let file = fs::OpenOptions::new().write(true).open(folder.join(format!("f{ost}"))).unwrap();
            file.write_all_at(&[8; 100_000], 0).unwrap();
        }
        // Three mounts, and the metadata target, which may connect later than they do.
        await_that("all are connected", AT_ONCE, || {
            (0..3).all(|ost| number(&cluster, Which::Ost(ost), "num_exports") == 4)
        });
        let clients = everything.map(|which| number(&cluster, which, "num_exports"));
        let process = Pid::from_raw(cluster.mount_pid(VICTIM) as i32).unwrap();
        if stopped {
            kill_process(process, Signal::STOP).unwrap();
        } else {
            cluster.kill9_mount(VICTIM);
        }

        // One after another where connections broke: the first pays for all. Side by side where they did not.
        let there = mounts[1].join(&name);
        let start = Instant::now();
        let timed = |act: &dyn Fn()| {
            let start = Instant::now();
            act();
            start.elapsed()
        };
        let make = || fs::write(there.join("made"), "by another").unwrap();
        let overwrite = |ost: usize| {
            let file = there.join(format!("f{ost}"));
            assert_eq!(fs::read(&file).unwrap().len(), 200_000);
            fs::write(&file, vec![9; 300_000]).unwrap();
        };
        let mut waits = vec![timed(&make)];
        if stopped {
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..3).map(|ost| scope.spawn(move || timed(&|| overwrite(ost)))).collect();
                waits.extend(all.into_iter().map(|one| one.join().unwrap()));
            });
        } else {
            waits.extend((0..3).map(|ost| timed(&|| overwrite(ost))));
        }
        let took = start.elapsed();
        story.note(&format!("stopped: {stopped}; waited {waits:.1?}, in all {took:.1?}"));
        let slack = AT_ONCE / 2;
        assert!(waits.iter().all(|wait| *wait < CALLBACK + slack), "{waits:?}");
        let bound = if stopped { CALLBACK * 2 } else { CALLBACK + CALLBACK_LATE * 3 };
        assert!(took < bound + slack, "{took:?}");

        // Nothing of it is left: no connection, no lock.
        for (which, before) in everything.into_iter().zip(clients) {
            assert_eq!(number(&cluster, which, "eviction_count"), round, "{which}");
            assert_eq!(number(&cluster, which, "num_exports"), before - 1, "{which}");
        }
        let again = timed(&|| {
            make();
            (0..3).for_each(|ost| fs::write(mounts[0].join(&name).join(format!("f{ost}")), vec![6; 200_000]).unwrap());
        });
        assert!(again < slack, "its locks are in the way: {again:?}");
        if stopped {
            kill_process(process, Signal::CONT).unwrap();
        } else {
            cluster.mount_again(VICTIM);
        }
        // It goes on as a new client; what only it had does not come over what others have written since.
        await_that("it works again", BACK, || fs::write(folder.join("again"), "x").is_ok());
        for mount in &mounts {
            for ost in 0..3 {
                let file = mount.join(&name).join(format!("f{ost}"));
                // Bytes that only it had are lost: it is told so, once.
                let found = fs::read(&file).or_else(|error| {
                    assert!(stopped && *mount == mounts[VICTIM] && error.raw_os_error() == Some(libc::EIO), "{error}");
                    fs::read(&file)
                });
                assert!(found.unwrap() == [6; 200_000], "{}", file.display());
            }
        }
    }
    let worked = load.stop();
    let longest = load::longest(&worked);
    story.note(&format!("{} operations beside it, longest pause {longest:.2?}", load::operations(&worked)));
    load::verify(&worked, &mounts[VICTIM]);
    assert!(longest < CALLBACK, "{longest:?}");
    for which in everything {
        assert_eq!(number(&cluster, which, "eviction_count"), 2, "{which}: nobody else");
    }
}

/// An object target is killed in the midst of large writes that it has answered and not committed: the client writes them
/// again, and every byte is there.
#[test]
fn an_object_server_killed_in_the_midst_of_writes_loses_nothing() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("kill -9 of an OST that writes", Duration::from_secs(240));
    let mut cluster = Cluster::start(&story, Shape { mount_options: vec!["max_dirty_mb=16"], ..Shape::mounts(2) });
    let mounts = cluster.mounts();
    // Nothing becomes durable by itself before the kill.
    let interval = format!("obdfilter.{}-OST*.commit_interval_ms=60000", cluster.fsname);
    let hold_back = || adamant(["lctl", "set_param", &interval]).ok();
    hold_back();
    let mut replays = 0;
    let replayed = |cluster: &Cluster| -> u64 {
        let stats = cluster.parameter(&format!("osc.{}-OST*.stats", cluster.fsname));
        let writes = stats.lines().filter(|line| line.starts_with("ost_write "));
        writes.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    const CHUNK: usize = 1 << 18;
    const CHUNKS: usize = 96;
    let content = trees::bytes(11, CHUNK * CHUNKS);
    for (round, victims) in [&[Which::Ost(0)][..], &[Which::Ost(1)], &[Which::Ost(0), Which::Ost(1)]].iter().enumerate()
    {
        let name = format!("f{round}");
        let path = mounts[0].join(&name);
        adamant(["lfs", "setstripe", "-c", "2", "-S", "1M"]).arg(&path).ok();
        let (bytes, from) = (content.clone(), replayed(&cluster));
        let written = Arc::new(AtomicUsize::new(0));
        let progress = written.clone();
        let writer = std::thread::spawn(move || {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            for (at, chunk) in bytes.chunks(CHUNK).enumerate() {
                file.write_all_at(chunk, (at * CHUNK) as u64).unwrap();
                progress.store(at + 1, Ordering::Relaxed);
            }
        });
        for kill in [CHUNKS / 4, CHUNKS / 2] {
            await_that("it writes", BACK, || written.load(Ordering::Relaxed) >= kill);
            for victim in *victims {
                cluster.kill9(*victim);
            }
            for victim in *victims {
                cluster.restart(*victim);
            }
            hold_back();
        }
        writer.join().unwrap();
        // The last word was answered, too, and is not durable.
        for victim in *victims {
            cluster.kill9(*victim);
            cluster.restart(*victim);
        }
        for mount in &mounts {
            let found = fs::read(mount.join(&name)).unwrap();
            assert!(found == content, "{}", e2e::model::first_difference(&name, &found, &content));
        }
        let again = replayed(&cluster) - from;
        story.note(&format!("{} MiB, {} kills, {again} writes replayed", content.len() >> 20, 3 * victims.len()));
        replays += again;
    }
    assert!(replays > 0, "no kill met a write that was answered and not durable");
}

/// With `commit_on_sharing` a change of one client that hangs on another's is durable when it is answered; without, both
/// may be lost together with the other client.
#[test]
fn commit_on_sharing_is_a_choice() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("commit_on_sharing", Duration::from_secs(180));
    let serve_arguments = vec!["-o", "recovery_time_soft=2,recovery_time_hard=6"];
    let mut cluster = Cluster::start(&story, Shape { serve_arguments, ..Shape::mounts(2) });
    let mounts = cluster.mounts();
    assert_eq!(parameter(&cluster, Which::Mdt(0), "commit_on_sharing"), "1");
    for on in [true, false] {
        cluster.mount_if_missing(0);
        set(&cluster, "commit_interval_ms", "60000").ok();
        set(&cluster, "commit_on_sharing", if on { "1" } else { "0" }).ok();
        fs::read_dir(&mounts[1]).unwrap().count();
        // Both see the root; whatever came before is on disk.
        fs::File::open(&mounts[0]).unwrap().sync_all().unwrap();
        let durable = || parameter(&cluster, Which::Mdt(0), "last_committed").parse::<u64>().unwrap();
        let before = durable();
        fs::create_dir(mounts[0].join("d")).unwrap();
        assert_eq!(durable(), before, "a change of its own waits for the interval");
        fs::create_dir(mounts[1].join("d/inside")).unwrap();
        assert_eq!(durable() > before, on, "the other client's change hangs on it");
        cluster.kill9(Which::Mdt(0));
        cluster.kill9_mount(0);
        cluster.restart(Which::Mdt(0));
        await_that("it serves", BACK, || fs::metadata(&mounts[1]).is_ok());
        await_that("recovery is over", BACK, || {
            parameter(&cluster, Which::Mdt(0), "recovery_status").contains("COMPLETE")
        });
        // An evicted client learns of it when it connects again, and uses what it has cached until then.
        await_that("what is there is what was durable", BACK, || mounts[1].join("d/inside").is_dir() == on);
        let count = states(&cluster).matches("EVICTED").count();
        assert_eq!(count, usize::from(!on), "{}", states(&cluster));
        fs::create_dir_all(mounts[1].join("d/after")).unwrap();
        fs::remove_dir_all(mounts[1].join("d")).unwrap();
    }
}

/// A client that neither speaks nor goes (its own signs of life come every 25 s only) is evicted after six intervals of its signs of life, unless nobody wants them.
#[test]
fn the_silent_are_evicted_unless_pings_are_suppressed() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a silent client", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_path_buf();
    fs::write(mount.join("f"), "x").unwrap();
    let mdt = cluster.target_name(Which::Mdt(0));
    let at_mdt = |setting: &str| adamant(["lctl", "--device", &mdt, "set_param", setting]).ok();
    let evictions = || parameter(&cluster, Which::Mdt(0), "eviction_count");
    let import = || cluster.parameter(&format!("mdc.{mdt}-mdc*.import"));
    assert!(import().contains("adaptive_timeouts") && !import().contains("pingless"), "{}", import());
    at_mdt("timeout=4");
    assert_eq!(adamant(["lctl", "--device", &mdt, "get_param", "-n", "ping_interval"]).ok().trim(), "1");
    let took = await_that("it is evicted", Duration::from_secs(20), || evictions() == "1");
    await_that("it works again", BACK, || fs::write(mount.join("g"), "x").is_ok());
    assert!(states(&cluster).contains("EVICTED"), "{}", states(&cluster));
    story.note(&format!("evicted after {took:.1?}"));

    at_mdt("suppress_pings=1");
    let uuid = cluster.parameter(&format!("llite.{}.uuid", cluster.fsname));
    set(&cluster, "evict_client", &uuid).ok();
    await_that("it is told so", AT_ONCE, || import().contains("pingless"));
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(evictions(), "2", "nobody is missed");
    fs::write(mount.join("h"), "x").unwrap();
}

/// A request that takes longer than its client would wait: the server asks for patience, so the connection stays. The
/// client learns that requests may take long.
#[test]
fn a_slow_request_is_waited_for() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("early replies", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape { mount_options: vec!["allow_faults"], ..Shape::mounts(2) });
    let mounts = cluster.mounts();
    let mdt = cluster.target_name(Which::Mdt(0));
    adamant(["lctl", "--device", &mdt, "set_param", "ldlm_timeout=13"]).ok();
    let device = |index: usize| mounts[index].display().to_string();
    fs::create_dir(mounts[1].join("d")).unwrap();
    fs::write(mounts[1].join("d/f"), "x").unwrap();
    assert_eq!(fs::read_dir(mounts[1].join("d")).unwrap().count(), 1);
    // The other client holds locks on the directory, and what it sends is lost. It does not suspect its connection.
    adamant(["lctl", "--device", &device(1), "set_param", "at_max=0", "timeout=100", "fail_loc=0x505"]).ok();
    let start = Instant::now();
    let made = fs::write(mounts[0].join("d/g"), "y");
    let took = start.elapsed();
    adamant(["lctl", "--device", &device(1), "set_param", "fail_loc=0"]).ok();
    made.unwrap();
    story.note(&format!("the request took {took:.1?}"));
    assert!(took > Duration::from_millis(11_500), "longer than the 11.25 s that it would have: {took:?}");
    let of_first = |name: &str| {
        let name = format!("mdc.{mdt}-mdc.{name}");
        adamant(["lctl", "--device", &device(0), "get_param", "-n", &name]).ok()
    };
    let import = of_first("import");
    assert!(import.contains("timeouts: 0") && import.contains("connection_attempts: 1"), "{import}");
    assert!(!import.contains("services: 5 sec"), "{import}");
    assert!(of_first("timeouts").contains("service : cur   1"), "{}", of_first("timeouts"));
}

/// A target is stopped after it has asked for a lock, for longer than anybody may keep one. When it goes on it finds the answer
/// in its socket, and that the time was not the client's.
#[test]
fn nobody_is_evicted_because_a_target_was_stopped() {
    use rustix::process::{Pid, Signal, kill_process};
    if !needs_root() {
        return;
    }
    let story = Story::begin("a target that is stopped for a while", Duration::from_secs(100));
    let cluster = Cluster::start(&story, Shape { osts: 1, ..Shape::mounts(2) });
    cluster.set_on(Which::Mdt(0), "ldlm_timeout", "3").ok();
    let signal = |pid: u32, signal| kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    let (target, holder) = (cluster.server_pid(Which::Mdt(0)), cluster.mount_pid(1));
    for round in 0..2 {
        let folder = format!("d{round}");
        fs::create_dir(cluster.mount(1).join(&folder)).unwrap();
        fs::write(cluster.mount(1).join(&folder).join("held"), "by the second mount").unwrap();
        // The holder cannot answer before the target is stopped, and answers while it is.
        signal(holder, Signal::STOP);
        let wanted = cluster.mount(0).join(&folder).join("wanted");
        let program = std::thread::spawn(move || fs::write(wanted, "by the first mount"));
        std::thread::sleep(Duration::from_millis(800));
        signal(target, Signal::STOP);
        signal(holder, Signal::CONT);
        std::thread::sleep(Duration::from_secs(6));
        signal(target, Signal::CONT);
        program.join().unwrap().expect("the program goes on");
        for name in ["held", "wanted"] {
            assert!(cluster.mount(1).join(&folder).join(name).is_file(), "{name}");
        }
        let log = cluster.server_log(Which::Mdt(0));
        assert_eq!(parameter(&cluster, Which::Mdt(0), "eviction_count"), "0", "{log}");
        assert!(log.contains("did not run for"), "{log}");
    }
}
