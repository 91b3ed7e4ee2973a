//! Many changes in flight per client, with real processes: cases of Lustre's sanity and conf-sanity by their numbers, each in
//! both modes of a mount.

use std::time::Duration;

use e2e::faults::{Mode, wait_for};
use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};

/// The client's parameters of the metadata target, as Lustre's scripts name them.
fn mdc(cluster: &Cluster, name: &str) -> String {
    format!("mdc.{}-MDT0000-mdc-*.{name}", cluster.fsname)
}

fn shape(mode: Mode) -> Shape {
    match mode {
        Mode::WriteBack => Shape::mounts(1),
        Mode::Synchronous => Shape::synchronous(1),
    }
}

fn set(cluster: &Cluster, name: &str, value: &str) -> e2e::Outcome {
    adamant(["lctl", "set_param", &format!("{}={value}", mdc(cluster, name))]).run()
}

/// How often so many changes were in flight, by the rows of `rpc_stats`.
fn histogram(cluster: &Cluster, rpc_stats: &str) -> Vec<(usize, u64)> {
    let text = cluster.parameter(rpc_stats);
    let rows = text.lines().skip_while(|line| !line.starts_with("rpcs in flight")).skip(1);
    rows.map(|row| {
        let (count, rest) = row.split_once(':').expect("a row");
        let times = rest.split_whitespace().next().expect("how often");
        (count.parse().expect("a number"), times.parse().expect("a number"))
    })
    .collect()
}

/// 10 processes make 1000 files each in directories of their own, and 10 remove them.
fn processes_of_one_client_change_side_by_side(mode: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("sanity 182 {mode:?}"), Duration::from_secs(120));
    let cluster = Cluster::start(&story, shape(mode));
    set(&cluster, "rpc_stats", "0").ok();
    let names: Vec<String> = (0..10)
        .map(|at| {
            let folder = cluster.mount(0).join(format!("d{at}"));
            std::fs::create_dir(&folder).unwrap();
            format!("{}/f%d", folder.display())
        })
        .collect();
    for arguments in [&["createmany", "-o"][..], &["unlinkmany"]] {
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(move || {
                    adamant(arguments).args([name.as_str(), "1000"]).within(Duration::from_secs(100)).ok();
                });
            }
        });
    }
    let rows = histogram(&cluster, &mdc(&cluster, "rpc_stats"));
    story.note(&format!("changes in flight: {rows:?}"));
    // Batches leave one at a time, each with the changes of all ten.
    if mode == Mode::Synchronous {
        assert!(rows.iter().any(|(in_flight, times)| *in_flight > 1 && *times > 0), "one at a time: {rows:?}");
    } else {
        assert!(cluster.batches() > 0, "nothing was made by metadata write-back");
    }
    let limit: usize = cluster.parameter(&mdc(&cluster, "max_mod_rpcs_in_flight")).parse().unwrap();
    assert!(rows.iter().all(|(in_flight, _)| *in_flight <= limit + 1), "{limit} and one close: {rows:?}");
    for at in 0..10 {
        std::fs::remove_dir(cluster.mount(0).join(format!("d{at}"))).expect("nothing is left in it");
    }
}

#[test]
fn sanity_182_processes_of_one_client_change_side_by_side() {
    processes_of_one_client_change_side_by_side(Mode::WriteBack);
}

#[test]
fn sanity_182_processes_of_one_client_change_side_by_side_sync_metadata() {
    processes_of_one_client_change_side_by_side(Mode::Synchronous);
}

/// The parameters of the connection of the first metadata target to the second one.
fn osp(cluster: &Cluster, name: &str) -> String {
    format!("osp.{0}-MDT0001-osp-MDT0000.{name}", cluster.fsname)
}

/// 10 directories on one metadata target get 100 each on the other (the original 1000, which takes ten times as long), all at
/// once, and so once more with one change at a time between the two.
#[test]
fn sanity_182b_10_times_100_directories_are_made_on_another_target_side_by_side() {
    const EACH: usize = 100;
    if !needs_root() {
        return;
    }
    let story = Story::begin("sanity 182b", Duration::from_secs(120));
    let cluster = Cluster::with_mdts(&story, 2);
    let limit = osp(&cluster, "max_mod_rpcs_in_flight");
    assert_eq!(cluster.parameter(&limit), "7");
    for value in ["7", "1"] {
        adamant(["lctl", "set_param", &format!("{limit}={value}")]).ok();
        adamant(["lctl", "set_param", &format!("{}=clear", osp(&cluster, "rpc_stats"))]).ok();
        let folders: Vec<_> = (0..10).map(|at| cluster.mount(0).join(format!("{value}-{at}"))).collect();
        folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let begun = std::time::Instant::now();
        std::thread::scope(|scope| {
            for folder in &folders {
                let name = format!("{}/d%d", folder.display());
                scope.spawn(move || {
                    adamant(["createmany", "-d", "-i", "1", &name]).args([EACH.to_string()]).ok();
                });
            }
        });
        let took = begun.elapsed();
        let rows = histogram(&cluster, &osp(&cluster, "rpc_stats"));
        story.note(&format!("at most {value}: {took:?}, in flight: {rows:?}"));
        let highest = rows.iter().rfind(|(_, times)| *times > 0).expect("some").0;
        assert!(highest <= value.parse().unwrap() && (value == "1" || highest > 1), "{rows:?}");
        // A part that was refused as busy is sent again.
        assert!(rows.iter().map(|(_, times)| times).sum::<u64>() >= 10 * EACH as u64, "{rows:?}");
        for folder in folders {
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), EACH);
            assert_eq!(adamant(["lfs", "getdirstripe", "-m"]).arg(folder.join("d0")).ok(), "1\n");
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

/// The import tells that the feature is granted, and how many changes the target takes.
fn the_import_tells_of_the_feature(mode: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("sanity 245 {mode:?}"), Duration::from_secs(60));
    let cluster = Cluster::start(&story, shape(mode));
    let import = cluster.parameter(&mdc(&cluster, "import"));
    let flags = import.lines().find(|line| line.contains("connect_flags")).expect("flags");
    assert!(flags.contains("multi_mod_rpcs"), "{import}");
    assert!(import.contains("max_mod_rpcs: 8"), "{import}");
    let name = import.lines().find_map(|line| line.trim().strip_prefix("name: ")).expect("a name");
    let instance = name.strip_prefix(&format!("{}-MDT0000-mdc-", cluster.fsname)).expect("Lustre's form");
    assert!(instance.len() == 16 && instance.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}");
    story.note("told");
}

#[test]
fn sanity_245_the_import_tells_of_the_feature() {
    the_import_tells_of_the_feature(Mode::WriteBack);
}

#[test]
fn sanity_245_the_import_tells_of_the_feature_sync_metadata() {
    the_import_tells_of_the_feature(Mode::Synchronous);
}

/// The same of the connection between metadata targets.
#[test]
fn sanity_245b_the_import_of_a_metadata_target_tells_of_the_feature() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("sanity 245b", Duration::from_secs(60));
    let cluster = Cluster::with_mdts(&story, 2);
    let import = cluster.parameter(&osp(&cluster, "import"));
    let flags = import.lines().find(|line| line.contains("connect_flags")).expect("flags");
    assert!(flags.contains("multi_mod_rpcs"), "{import}");
    assert!(import.contains("max_mod_rpcs: 8"), "{import}");
    story.note("told");
}

/// What `lr_reader` shows of targets, running and stopped.
fn the_reader_of_sessions(mode: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("sanity 252 {mode:?}"), Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, shape(mode));
    let folder = cluster.mount(0).join("d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::File::open(&folder).unwrap().sync_all().unwrap();
    let read = |options: &str, place: &std::path::Path| {
        let mut run = adamant(["lr_reader"]);
        if !options.is_empty() {
            run = run.arg(options);
        }
        run.arg(place).ok()
    };
    let ost = cluster.place(Which::Ost(0)).to_owned();
    assert!(read("", &ost).contains(&cluster.target_name(Which::Ost(0))));
    assert!(adamant(["lr_reader", "-h"]).ok().contains("OPTIONS"));
    let mdt = cluster.place(Which::Mdt(0)).to_owned();
    let check = |text: &str, mdts: usize| {
        let peers = text.lines().filter(|line| line.contains("mdtlov") && !line.contains("client:")).count();
        assert_eq!(peers, mdts - 1, "{text}");
        assert!(text.lines().any(|line| line == "reply_data:"), "{text}");
        assert!(text.contains("client_generation: "), "{text}");
        assert!(text.contains("feature_incompat: 0x"), "{text}");
    };
    check(&read("-cr", &mdt), 1);
    cluster.kill9(Which::Mdt(0));
    check(&read("-cr", &mdt), 1);
    cluster.restart(Which::Mdt(0));
    assert!(folder.is_dir());
    // With further metadata targets, each of them is a client of the others.
    for index in 1..3 {
        cluster.add(Which::Mdt(index));
    }
    wait_for("the mount uses all metadata targets", || cluster.mdts(0).len() == 3);
    for index in 0..3 {
        let place = cluster.place(Which::Mdt(index)).to_owned();
        wait_for("the others are shown", || read("-c", &place).matches("-mdtlov_UUID:").count() == 2);
    }
    check(&read("-cr", &mdt), 3);
    // What is kept for another target goes with a later commit.
    cluster.set_on(Which::Mdt(1), "mdt.*.commit_interval_ms", "60000").ok();
    adamant(["lfs", "mkdir", "-i", "1"]).arg(folder.join("far")).ok();
    let part = read("-cr", cluster.place(Which::Mdt(1)));
    assert!(part.contains("MDT0000-mdtlov_UUID\n    attempt: ") && part.contains("part: "), "{part}");
    let wrong = adamant(["lr_reader", "-c"]).arg(story.folder()).run();
    assert_eq!(wrong.code, Some(1), "{wrong}");
}

#[test]
fn sanity_252_the_reader_of_sessions() {
    the_reader_of_sessions(Mode::WriteBack);
}

#[test]
fn sanity_252_the_reader_of_sessions_sync_metadata() {
    the_reader_of_sessions(Mode::Synchronous);
}

/// A value that is refused because it is out of range.
#[track_caller]
fn out_of_range(cluster: &Cluster, name: &str, value: u64, why: &str) {
    let before = cluster.mdc_parameter(name);
    let outcome = set(cluster, name, &value.to_string());
    assert!(outcome.code == Some(1) && outcome.stderr.contains("Numerical result out of range"), "{why}: {outcome}");
    assert_eq!(cluster.mdc_parameter(name), before, "{why}");
}

/// How many requests and how many changes the client may have in flight.
fn limits(cluster: &Cluster) -> (u64, u64) {
    let value = |name: &str| cluster.mdc_parameter(name).parse().expect("a number");
    (value("max_rpcs_in_flight"), value("max_mod_rpcs_in_flight"))
}

/// Mounts again, with what the target offers now.
fn remount(cluster: &mut Cluster, offer: u64) {
    cluster.unmount(0);
    cluster.set_on(Which::Mdt(0), "mdt.*.max_mod_rpcs_in_flight", &offer.to_string()).ok();
    cluster.mount_again(0);
    cluster.await_mount();
}

/// What a client may ask for: not more than the target offers, and less than its requests in flight. As in Lustre of 2015; with
/// `max_mod_rpcs_raise` as in later ones, where setting the one raises the other.
fn limits_of_changes_in_flight(mode: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("conf-sanity 86c {mode:?}"), Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, shape(mode));
    cluster.await_mount();
    let offer = cluster.get_on(Which::Mdt(0), "mdt.*.max_mod_rpcs_in_flight").parse().expect("a number");
    let (requests, changes) = limits(&cluster);
    assert_eq!((offer, requests, changes), (8, 8, 7));

    // The target offers as many as the client has requests in flight, and no less.
    remount(&mut cluster, requests);
    for (wrong, why) in [(requests, "not below max_rpcs_in_flight"), (0, "none"), (513, "more than there are slots")] {
        out_of_range(&cluster, "max_mod_rpcs_in_flight", wrong, why);
    }
    let nonsense = set(&cluster, "max_mod_rpcs_in_flight", "x");
    assert!(nonsense.code == Some(1) && nonsense.stderr.contains("Invalid argument"), "{nonsense}");
    for (wrong, why) in [(1, "no room for a change"), (513, "more than there are slots")] {
        out_of_range(&cluster, "max_rpcs_in_flight", wrong, why);
    }

    // More than it offers.
    remount(&mut cluster, offer);
    set(&cluster, "max_rpcs_in_flight", &(offer + 2).to_string()).ok();
    out_of_range(&cluster, "max_mod_rpcs_in_flight", offer + 1, "the target offers less");
    set(&cluster, "max_mod_rpcs_in_flight", &offer.to_string()).ok();
    assert_eq!(limits(&cluster), (offer + 2, offer));
    // Less than the client would have: it takes what it gets. Lowering the one lowers the other.
    remount(&mut cluster, 3);
    assert_eq!(limits(&cluster), (8, 3));
    set(&cluster, "max_rpcs_in_flight", "3").ok();
    assert_eq!(limits(&cluster), (3, 2));
    remount(&mut cluster, offer);

    // Where the one raises the other, and kept by the MGS: both outlast the mount.
    let keep = |name: &str, value: u64| {
        adamant(["lctl", "set_param", "-P", &format!("{}={value}", mdc(&cluster, name))]).ok();
    };
    keep("max_mod_rpcs_raise", 1);
    keep("max_rpcs_in_flight", requests);
    keep("max_mod_rpcs_in_flight", requests);
    wait_for("the mount follows", || limits(&cluster) == (requests + 1, requests));
    remount(&mut cluster, offer);
    wait_for("the next one does, too", || limits(&cluster) == (requests + 1, requests));
    for at in 0..50 {
        std::fs::write(cluster.mount(0).join(format!("f{at}")), b"x").unwrap();
    }
    story.note("refused and taken");
}

#[test]
fn conf_sanity_86c_limits_of_changes_in_flight() {
    limits_of_changes_in_flight(Mode::WriteBack);
}

#[test]
fn conf_sanity_86c_limits_of_changes_in_flight_sync_metadata() {
    limits_of_changes_in_flight(Mode::Synchronous);
}
