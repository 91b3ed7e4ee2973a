//! Bytes of a store's file are garbled on the disk: whoever uses it says so, and is never just gone.

mod common;

use common::{Child, commit, key};
use engine::{EXIT_DAMAGED, LmdbEngine};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use stdx::Rng;
use store::{Batch, Engine, Key, KeyRange, Value};

const KEYS: u64 = 1_000;
const PAGE: usize = 4096;

/// A user of the store: reads all, looks some records up, changes and removes records all over it. Errors are as good as answers.
#[test]
#[ignore = "the other tests start this one as a process of its own"]
fn user() {
    let Ok(engine) = common::open(&Child::dir()) else { return };
    drop(walk(&engine, 1 << 20));
    let mut range = KeyRange::all();
    while let Ok(scanned) = engine.scan(&range, 200) {
        let Some((last, _)) = scanned.records.last().filter(|_| !scanned.complete) else { break };
        range.start = last.successor();
    }
    for n in (0..KEYS).step_by(7) {
        drop(engine.get(&key(n)));
    }
    let Ok(last) = engine.last_group() else { return };
    for group in last + 1..last + 4 {
        let changes = (0..KEYS).step_by(11).map(|n| (key(n + group), (n % 3 != 0).then_some(n)));
        drop(commit(&engine, group, changes));
    }
}

/// All that a walk in steps of this size finds.
fn walk(engine: &LmdbEngine, bytes: usize) -> Vec<String> {
    let (mut from, mut found) = (Key::empty(), Vec::new());
    loop {
        let verified = engine.verify(&from, bytes).expect("it can be read");
        found.extend(verified.damage);
        match verified.next {
            Some(next) => assert!(core::mem::replace(&mut from, next) <= from, "it goes on"),
            None => return found,
        }
    }
}

fn use_it(dir: &Path) -> Output {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["user", "--exact", "--ignored", "--nocapture"])
        .env(common::DIR, dir)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a process");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().expect("its output")
}

#[test]
fn a_store_with_garbled_pages_never_ends_a_process_without_a_word() {
    let whole = tempfile::tempdir().expect("a directory");
    let engine = common::open(whole.path()).expect("a store");
    for group in 1..4 {
        commit(&engine, group, (0..KEYS).filter(|n| n % group == 0).map(|n| (key(n), Some(n)))).expect("a commit");
    }
    drop(engine);
    let data = std::fs::read(whole.path().join("data.mdb")).expect("the data file");
    // What a page says of itself; where its records begin; its middle; its last record.
    let places = [0, 8, 16, PAGE / 2, PAGE - 200];
    let mut told = 0;
    for page in 0..data.len() / PAGE {
        for (nth, place) in places.into_iter().enumerate().filter(|(nth, _)| page < 8 || nth % 5 == page % 5) {
            let dir = tempfile::tempdir().expect("a directory");
            let mut damaged = data.clone();
            for byte in &mut damaged[page * PAGE + place..][..8] {
                *byte ^= if nth % 2 == 0 { 0xff } else { 0x5a };
            }
            std::fs::write(dir.path().join("data.mdb"), damaged).expect("a file");
            let output = use_it(dir.path());
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), None, "page {page}, byte {place}: {said}");
            if output.status.code() == Some(EXIT_DAMAGED) {
                told += 1;
                let line = said.lines().last().unwrap_or_default();
                let expected = format!("ERROR the store in {} is damaged", dir.path().display());
                assert!(line.starts_with(&expected) && line.contains("Put back a copy"), "page {page}: {said}");
            } else {
                assert!(output.status.success(), "page {page}, byte {place}: {said}");
            }
        }
    }
    assert!(told > 0, "nothing that was tried needed it");
}

#[test]
fn a_page_that_the_file_has_lost_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    commit(&common::open(dir.path()).expect("a store"), 1, (0..KEYS).map(|n| (key(n), Some(n)))).expect("a commit");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["loser", "--exact", "--ignored", "--nocapture"])
        .env(common::DIR, dir.path())
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(EXIT_DAMAGED), "{said}");
    assert!(said.contains("is damaged at page "), "{said}");
}

/// The file is cut off while it is mapped: as a disk that does not give its blocks any more.
#[test]
#[ignore = "the other tests start this one as a process of its own"]
fn loser() {
    let dir = Child::dir();
    let engine = common::open(&dir).expect("a store");
    std::fs::File::options()
        .write(true)
        .open(dir.join("data.mdb"))
        .expect("the file")
        .set_len(3 * 4096)
        .expect("cut off");
    drop(engine.scan(&KeyRange::all(), usize::MAX));
}

/// What is no store's fault stays what it was.
#[test]
#[ignore = "the other tests start this one as a process of its own"]
fn bug() {
    let engine = common::open(&Child::dir()).expect("a store");
    drop(engine.get(&key(1)));
    std::process::abort();
}

#[test]
fn a_signal_outside_of_the_store_is_not_taken_for_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = Child::start("bug", dir.path());
    let status = child.process.wait().expect("its end");
    assert_eq!(status.code(), None);
    assert!(status.signal().is_some());
}

/// A store that has seen changes of all kinds: small and large values, removals, several levels of pages.
fn lively(dir: &Path, rng: &mut Rng) -> LmdbEngine {
    let engine = common::open(dir).expect("a store");
    for group in 1..12 {
        let mut batch = Batch::new();
        for _ in 0..700 {
            let key = Key::table(1).u64(rng.below(3_000)).bytes(&vec![7; rng.below(30) as usize * 10]);
            match rng.below(10) {
                0..=2 => batch.delete(key),
                3 => batch.put(key, Value::from(vec![3; rng.below(9_000) as usize])),
                _ => batch.put(key, Value::from(vec![5; rng.below(300) as usize])),
            }
        }
        engine.commit(group, &batch.seal(&common::formats())).expect("a commit");
    }
    engine
}

#[test]
fn a_walk_finds_nothing_in_a_store_that_is_well() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(walk(&common::open(dir.path()).expect("a store"), 1 << 20), Vec::<String>::new());
    let engine = lively(dir.path(), &mut Rng::new(1));
    for bytes in [40 << 10, 1 << 20, usize::MAX] {
        assert_eq!(walk(&engine, bytes), Vec::<String>::new());
    }
    // Also beside a writer.
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rng = Rng::new(2);
            for group in 12..60 {
                let changes: Vec<_> = (0..300).map(|_| (key(rng.below(2_000)), Some(group))).collect();
                commit(&engine, group, changes).expect("a commit");
            }
        });
        while !writer.is_finished() {
            assert_eq!(walk(&engine, 100 << 10), Vec::<String>::new());
        }
    });
}

#[test]
fn a_walk_names_the_pages_and_records_that_are_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(lively(dir.path(), &mut Rng::new(1)));
    let file = dir.path().join("data.mdb");
    let whole = std::fs::read(&file).expect("the data file");
    let mut rng = Rng::new(3);
    let (mut pages, mut records) = (0, 0);
    for _ in 0..120 {
        let mut damaged = whole.clone();
        let page = rng.range(2, (whole.len() / PAGE) as u64) as usize;
        // The page's own number, its header, or a place where records are.
        let place = [0, 10, rng.range(2_000, 4_080) as usize][rng.below(3) as usize];
        damaged[page * PAGE + place] ^= 0x41;
        std::fs::write(&file, damaged).expect("the file");
        // Opening writes nothing that matters here; a damaged page that it meets is another test's.
        let Ok(engine) = common::open(dir.path()) else { continue };
        for find in walk(&engine, 256 << 10) {
            let of_page =
                find.starts_with(&format!("page {page} is damaged")) || find.contains(&format!("page {page}"));
            pages += usize::from(of_page && find.contains("are lost"));
            records += usize::from(find.starts_with("record '"));
            assert!(of_page || find.starts_with("record '"), "page {page}, byte {place}: {find}");
        }
    }
    assert!(pages > 10 && records > 10, "{pages} pages, {records} records");
}
