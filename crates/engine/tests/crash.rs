//! The process is killed in the middle of commits: what is left is a prefix of groups.

mod common;

use common::{Child, commit, formats, key, number};
use engine::LmdbEngine;
use std::io::{BufRead, BufReader};
use std::time::Duration;
use stdx::Rng;
use store::{Engine, Key, KeyRange};

const KEYS: u64 = 2_000;

/// The writer: every group rewrites all keys with its own number, adds a record and deletes the one before it.
#[test]
#[ignore = "the other test starts this one as a process of its own"]
fn writer() {
    let engine = common::open(&Child::dir()).expect("a store");
    for group in engine.last_group().expect("a number") + 1.. {
        let mut changes: Vec<_> = (0..KEYS).map(|n| (key(n), Some(group))).collect();
        changes.push((Key::table(2).u64(group), Some(group)));
        changes.push((Key::table(2).u64(group - 1), None));
        commit(&engine, group, changes).expect("a commit");
        println!("durable {group}");
    }
}

#[test]
fn after_kill_9_in_mid_commit_the_store_holds_a_prefix_of_groups() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rng = Rng::new(7);
    let mut before = 0;
    for round in 0..8 {
        let mut child = Child::start("writer", dir.path());
        let mut lines = BufReader::new(child.process.stdout.take().expect("output")).lines();
        let durable = |line: Result<String, _>| line.ok()?.rsplit_once("durable ")?.1.parse::<u64>().ok();
        let first = lines.by_ref().find_map(durable).expect("a first group");
        assert_eq!(first, before + 1, "round {round}: the writer did not go on where the last one was killed");
        std::thread::sleep(Duration::from_micros(rng.range(100, 60_000)));
        child.kill();
        let told = lines.filter_map(durable).last().unwrap_or(first);

        let engine = common::open(dir.path()).expect("the store opens again");
        let last = engine.last_group().expect("a number");
        assert!(last >= told, "round {round}: group {told} was durable, the store has {last}");
        assert!(last <= told + 1, "round {round}: group {last} was never sent");
        let found = engine.scan(&KeyRange::all(), usize::MAX).expect("a scan").records;
        assert_eq!(found.len() as u64, KEYS + 1, "round {round}");
        for (key, sealed) in found {
            assert_eq!(number(&formats().open(&key, &sealed).expect("whole")), last, "round {round}: {key}");
        }
        before = last;
        drop(engine);
        assert!(LmdbEngine::exists(dir.path()));
    }
}
