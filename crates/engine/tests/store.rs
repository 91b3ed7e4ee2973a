//! The embedded engine keeps what it is given, as the one in memory does.

mod common;

use common::{commit, formats, get, key};
use engine::{LmdbEngine, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use stdx::{Instant, Rng};
use store::{
    AttemptId, Batch, Engine, EngineError, KEY_LEN_MAX, Key, KeyRange, MemEngine, StoreEffect, Value, View, ViewConfig,
};

#[test]
fn what_was_committed_is_there_when_it_is_opened_again() {
    let dir = tempfile::tempdir().expect("a directory");
    {
        let engine = common::open(dir.path()).expect("a store");
        assert_eq!(engine.last_group(), Ok(0));
        commit(&engine, 1, [(key(1), Some(10)), (key(2), Some(20))]).expect("a commit");
        commit(&engine, 5, [(key(1), None), (key(3), Some(30))]).expect("a commit");
    }
    let engine = LmdbEngine::open(dir.path(), OpenOptions::default()).expect("a store");
    assert_eq!(engine.last_group(), Ok(5));
    assert_eq!([1, 2, 3].map(|n| get(&engine, &key(n))), [None, Some(20), Some(30)]);
    assert_eq!(engine.space().expect("an answer").records, 2);
    let error = commit(&engine, 5, [(key(1), Some(1))]).expect_err("a group that was there");
    assert!(error.to_string().contains("group 5 came after group 5"), "{error}");
    assert_eq!(get(&engine, &key(1)), None);
}

/// LMDB does not write pages that a transaction took and gave back; at the end of the file they would be missing. The seed
/// is one whose eleventh group could not be opened again.
#[test]
fn the_data_file_is_as_long_as_its_last_transaction_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rng = Rng::new(8);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut next = 0;
    // The records of a file: entries lie spread by hash, the others side by side.
    let keys = |n: u64| {
        let entry = Key::table(3).u64(1).u64(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 4);
        [(Key::table(1).u64(n), 8), (Key::table(2).u64(n), 150), (entry, 32)]
    };
    for group in 1..=20 {
        let engine = common::open(dir.path()).unwrap_or_else(|error| panic!("before group {group}: {error}"));
        let mut batch = Batch::new();
        for _ in 0..rng.below(2) {
            let most = if rng.below(2) == 0 { 3000 } else { 50 };
            let count = 1 + rng.below(most);
            for (key, len) in (next..next + count).flat_map(keys) {
                batch.put(key, Value::from(vec![1; len]));
            }
            runs.push((next, count));
            next += count;
        }
        while rng.below(3) > 0 && runs.len() > 1 {
            let which = rng.below(runs.len() as u64) as usize;
            let (from, count) = runs.remove(which);
            for (key, _) in (from..from + count).flat_map(keys) {
                batch.delete(key);
            }
        }
        engine.commit(group, &batch.seal(&formats())).expect("a commit");
        let length = std::fs::metadata(dir.path().join("data.mdb")).expect("the file").len();
        assert!(length < 16 << 20, "{length} bytes after group {group}: the room for its commit was not given back");
    }
}

/// To change the length of the file twice would cost a small commit as much as all its pages.
#[test]
fn small_commits_leave_the_length_of_the_file_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = common::open(dir.path()).expect("a store");
    let length = || std::fs::metadata(dir.path().join("data.mdb")).expect("the file").len();
    let commit =
        |group| common::commit(&engine, group, (0..9).map(|n| (common::key(n), Some(group)))).expect("a commit");
    commit(1);
    let first = length();
    for group in 2..50 {
        commit(group);
        assert_eq!(length(), first, "after group {group}");
    }
    drop(engine);
    assert!(length() < 1 << 20, "{} bytes: closing cuts the hole at its end", length());
}

#[test]
fn it_answers_as_the_engine_in_memory_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, memory) = (common::open(dir.path()).expect("a store"), MemEngine::new());
    let mut rng = Rng::new(3);
    let random_key = |rng: &mut Rng| {
        let n = rng.below(200);
        let len = if n.is_multiple_of(5) { n as usize * 2 } else { n as usize % 30 };
        Key::table(1 + (n % 3) as u8).u64(n % 11).bytes(&vec![n as u8; len])
    };
    for group in 1..60 {
        let mut batch = Batch::new();
        for _ in 0..rng.below(40) {
            match rng.below(3) {
                0 => batch.delete(random_key(&mut rng)),
                _ => {
                    let len = if rng.chance(1, 20) { 70_000 } else { rng.below(300) as usize };
                    batch.put(random_key(&mut rng), Value::from(vec![group as u8; len]));
                }
            }
        }
        let records = batch.seal(&formats());
        disk.commit(group, &records).expect("a commit");
        memory.commit(group, &records).expect("a commit");
        for _ in 0..20 {
            let (a, b) = (random_key(&mut rng), random_key(&mut rng));
            assert_eq!(disk.get(&a), memory.get(&a));
            let keys = [a.clone(), b.clone(), Key::empty()];
            assert_eq!(disk.get_many(&keys), memory.get_many(&keys));
            let limit = *rng.pick(&[0, 1, 7, 1_000]).expect("a choice");
            for range in [KeyRange::new(a.clone(), b.clone()), KeyRange::prefix(a), KeyRange::all()] {
                assert_eq!(disk.scan(&range, limit), memory.scan(&range, limit), "{range:?} {limit}");
            }
        }
    }
    assert_eq!(disk.space().expect("an answer").records, memory.space().expect("an answer").records);
}

#[test]
fn a_scan_of_large_records_comes_in_parts() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = common::open(dir.path()).expect("a store");
    let mut batch = Batch::new();
    (0..100).for_each(|n| batch.put(key(n), Value::from(vec![n as u8; 100_000])));
    engine.commit(1, &batch.seal(&formats())).expect("a commit");
    let (mut range, mut found, mut parts) = (KeyRange::all(), 0, 0);
    loop {
        let scanned = engine.scan(&range, usize::MAX).expect("a scan");
        found += scanned.records.len();
        parts += 1;
        assert!(scanned.records.len() <= 43);
        match scanned.records.last() {
            Some((last, _)) if !scanned.complete => range.start = last.successor(),
            _ => break,
        }
    }
    assert_eq!((found, parts), (100, 3));
}

#[test]
fn the_map_grows_while_others_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = OpenOptions { map_size: 1 << 20, create: true, ..OpenOptions::default() };
    let engine = LmdbEngine::open(dir.path(), options).expect("a store");
    let first = engine.map_size();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for group in 1..=20 {
                commit(&engine, group, (0..5_000).map(|n| (key(group * 5_000 + n), Some(n)))).expect("a commit");
            }
            done.store(true, Relaxed);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let last = engine.last_group().expect("a number");
                    if last > 0 {
                        assert_eq!(get(&engine, &key(last * 5_000 + 4_999)), Some(4_999));
                    }
                }
            });
        }
    });
    assert!(engine.map_size() >= 8 * first, "the map has {} bytes", engine.map_size());
    drop(engine);
    let engine = LmdbEngine::open(dir.path(), options).expect("a store larger than the map that was asked for");
    assert_eq!(engine.space().expect("an answer").records, 100_000);
}

#[test]
fn the_engines_own_keys_and_impossible_ones_are_out_of_reach() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = common::open(dir.path()).expect("a store");
    commit(&engine, 1, [(Key::new(&[0xff, 0xfe]), Some(1)), (Key::new(&[7; KEY_LEN_MAX]), Some(2))]).expect("a commit");
    for bad in [Key::empty(), Key::new(b"\xff\xffgroup"), Key::new(b"\xff\xff")] {
        let error = engine.commit(2, &[(bad.clone(), None)]).expect_err("a key that is not ours");
        assert!(matches!(error, EngineError::Io { .. }), "{error}");
        assert_eq!(engine.get(&bad), Ok(None));
    }
    let found = engine.scan(&KeyRange::new(Key::empty(), Key::new(&[0xff; 8])), 9).expect("a scan");
    assert_eq!((found.records.len(), found.complete), (2, true));
}

#[test]
fn a_view_stands_on_it() {
    let dir = tempfile::tempdir().expect("a directory");
    for round in 0..3 {
        let engine = common::open(dir.path()).expect("a store");
        let config = ViewConfig { cache_limit: 10_000, ..ViewConfig::default() };
        let mut view = View::new(config, formats(), engine.last_group().expect("a number"));
        for n in 0..300 {
            loop {
                view.begin(AttemptId(n));
                if let Ok(found) = view.get(&key(n % 100)) {
                    let next = found.map_or(1, |body| common::number(&body) + 1);
                    view.put(key(n % 100), Value::from(next.to_le_bytes().to_vec()));
                    view.accept(Instant::ZERO);
                    view.finish(AttemptId(n));
                    break;
                }
                view.abandon();
                while let Some(StoreEffect::Load(load)) = view.poll() {
                    view.loaded(load.run(&engine));
                }
            }
            if n % 37 == 0 || n == 299 {
                let group = view.seal_group().expect("a group");
                let Some(StoreEffect::Commit(commit)) = view.poll() else { panic!("no commit") };
                commit.run(&engine).expect("a commit");
                view.committed(group);
            }
        }
        for n in 0..100 {
            let sealed = engine.get(&key(n)).expect("an answer").expect("a record");
            let body = formats().open(&key(n), &sealed).expect("whole");
            assert_eq!(common::number(&body), (round + 1) * 3);
        }
    }
}
