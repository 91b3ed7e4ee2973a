//! Many changes in flight per client, with real processes: cases of Lustre's sanity and conf-sanity by their numbers.

use std::time::Duration;

use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};

/// The client's parameters of the metadata target.
fn mdc(cluster: &Cluster, name: &str) -> String {
    format!("mdc.{}-MDT0000-mdc*.{name}", cluster.fsname)
}

fn set(cluster: &Cluster, name: &str, value: &str) -> e2e::Outcome {
    adamant(["lctl", "set_param", &format!("{}={value}", mdc(cluster, name))]).run()
}

/// How often so many changes were in flight, by the rows of `rpc_stats`.
fn histogram(cluster: &Cluster) -> Vec<(usize, u64)> {
    let text = cluster.parameter(&mdc(cluster, "rpc_stats"));
    let rows = text.lines().skip_while(|line| !line.starts_with("rpcs in flight")).skip(1);
    rows.map(|row| {
        let (count, rest) = row.split_once(':').expect("a row");
        let times = rest.split_whitespace().next().expect("how often");
        (count.parse().expect("a number"), times.parse().expect("a number"))
    })
    .collect()
}

/// 10 processes make 1000 files each in directories of their own, and 10 remove them.
#[test]
fn sanity_182_processes_of_one_client_change_side_by_side() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("sanity 182", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::synchronous(1));
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
    let rows = histogram(&cluster);
    story.note(&format!("changes in flight: {rows:?}"));
    assert!(rows.iter().any(|(in_flight, times)| *in_flight > 1 && *times > 0), "one at a time: {rows:?}");
    let limit: usize = cluster.parameter(&mdc(&cluster, "max_mod_rpcs_in_flight")).parse().unwrap();
    assert!(rows.iter().all(|(in_flight, _)| *in_flight <= limit + 1), "{limit} and one close: {rows:?}");
    for at in 0..10 {
        std::fs::remove_dir(cluster.mount(0).join(format!("d{at}"))).expect("nothing is left in it");
    }
}

/// The import tells that the feature is granted, and how many changes the target takes.
#[test]
fn sanity_245_the_import_tells_of_the_feature() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("sanity 245", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::synchronous(1));
    let import = cluster.parameter(&mdc(&cluster, "import"));
    let flags = import.lines().find(|line| line.contains("connect_flags")).expect("flags");
    assert!(flags.contains("multi_mod_rpcs"), "{import}");
    assert!(import.contains("max_mod_rpcs: 8"), "{import}");
    story.note("told");
}

/// What `lr_reader` shows of targets, running and stopped.
#[test]
fn sanity_252_the_reader_of_sessions() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("sanity 252", Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::synchronous(1));
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
    let mdt = cluster.place(Which::Mdt).to_owned();
    let check = |text: &str| {
        assert!(!text.contains("mdtlov"), "there is one metadata target: {text}");
        assert!(text.lines().any(|line| line == "reply_data:"), "{text}");
        assert!(text.contains("client_generation: "), "{text}");
        assert!(text.contains("feature_incompat: 0x"), "{text}");
    };
    check(&read("-cr", &mdt));
    cluster.kill9(Which::Mdt);
    check(&read("-cr", &mdt));
    cluster.restart(Which::Mdt);
    assert!(folder.is_dir());
    let wrong = adamant(["lr_reader", "-c"]).arg(story.folder()).run();
    assert_eq!(wrong.code, Some(1), "{wrong}");
}

/// What a client may ask for: not more than the target offers, and less than its requests in flight.
#[test]
fn conf_sanity_86c_limits_of_changes_in_flight() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("conf-sanity 86c", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::synchronous(1));
    let value = |name: &str| cluster.parameter(&mdc(&cluster, name));
    assert_eq!((value("max_rpcs_in_flight"), value("max_mod_rpcs_in_flight")), ("8".into(), "7".into()));
    for (wrong, why) in [("8", "not below max_rpcs_in_flight"), ("0", "none"), ("513", "too many"), ("x", "no number")]
    {
        let outcome = set(&cluster, "max_mod_rpcs_in_flight", wrong);
        assert_ne!(outcome.code, Some(0), "{why}: {outcome}");
        assert_eq!(value("max_mod_rpcs_in_flight"), "7", "{why}");
    }
    set(&cluster, "max_rpcs_in_flight", "10").ok();
    let beyond = set(&cluster, "max_mod_rpcs_in_flight", "9");
    assert_ne!(beyond.code, Some(0), "the target offers 8: {beyond}");
    set(&cluster, "max_mod_rpcs_in_flight", "8").ok();
    for at in 0..50 {
        std::fs::write(cluster.mount(0).join(format!("f{at}")), b"x").unwrap();
    }
    story.note("refused and taken");
}
