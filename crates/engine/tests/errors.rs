//! What can be wrong with a directory, and what is said about it.

mod common;

use common::{Child, SmallDisk, commit, get, key};
use engine::{LmdbEngine, OpenOptions};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use store::{Damage, Engine, EngineError, KeyRange, Load, LoadWhat, StoreEffect, View, ViewConfig};

const READ_ONLY: OpenOptions = OpenOptions { map_size: 64 << 30, read_only: true, beside_writer: false, create: false };

fn failure(dir: &Path, options: OpenOptions) -> EngineError {
    match LmdbEngine::open(dir, options) {
        Ok(_) => panic!("'{}' opens", dir.display()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&dir.display().to_string()) && !text.contains('\n'), "{text}");
            error
        }
    }
}

#[test]
fn a_full_disk_is_said_plainly_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount(12 << 20) else { return };
    let engine = common::open(disk.path()).expect("a store");
    let filler = disk.path().join("filler");
    std::fs::write(&filler, vec![1; 4 << 20]).expect("room for the filler");
    let before = engine.space().expect("an answer");
    assert!(
        before.total == 12 << 20 && before.free + before.reserve <= 8 << 20 && before.reserve == 4 << 20,
        "{before:?}"
    );
    let mut group = 0;
    let error = loop {
        let next = commit(&engine, group + 1, (0..4_000).map(|n| (key(group * 4_000 + n), Some(group))));
        match next {
            Ok(()) => group += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, EngineError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("make room there"), "{error}");
    assert!(group > 0);
    let full = engine.space().expect("an answer");
    assert!(full.free + full.reserve < 4 << 20, "{full:?}");
    assert_eq!(engine.last_group(), Ok(group));
    assert_eq!(get(&engine, &key(group * 4_000 - 1)), Some(group - 1));
    assert_eq!(get(&engine, &key(group * 4_000)), None);

    // With room again it goes on, also when it is opened anew.
    std::fs::remove_file(&filler).expect("the filler goes");
    commit(&engine, group + 1, [(key(0), Some(99))]).expect("a commit");
    drop(engine);
    let engine = common::open(disk.path()).expect("a store");
    assert_eq!((engine.last_group(), get(&engine, &key(0))), (Ok(group + 1), Some(99)));
}

/// Values larger than a page need pages that lie together, so that unused ones are of little help.
#[test]
fn a_full_disk_takes_what_was_accepted_and_removals_also_after_a_restart() {
    let Some(disk) = SmallDisk::mount(24 << 20) else { return };
    let dir = disk.path().join("store");
    let mut engine = common::open(&dir).expect("a store");
    let wide = |n: u64| (key(n), Some(store::seal(&key(n), 1, &[7; 40_000])));
    let (mut group, mut stored) = (0, 0);
    let mut room = View::new(ViewConfig::default(), store::Formats::new(|_| 1), 0);
    loop {
        room.set_space(engine.space().expect("an answer"));
        if room.room(4, 160_000, store::RoomFor::Change { promised: 0 }) != store::Room::Yes {
            break;
        }
        group += 1;
        let records: Vec<_> = (0..4).map(|n| wide(stored + n)).collect();
        engine.commit(group, &records).expect("a group that was accepted");
        stored += 4;
    }
    assert!(stored > 100, "{stored}");
    // Another program takes what is left of the disk.
    let mut filler = std::fs::File::create(disk.path().join("filler")).expect("a file");
    while filler.write_all(&[1; 4096]).is_ok() {}
    group += 1;
    engine.commit(group, &[wide(stored), wide(stored + 1)]).expect("what was accepted before the disk was full");
    drop(engine);
    engine = common::open(&dir).expect("a store on a full disk");
    for n in 0..stored + 2 {
        group += 1;
        engine.commit(group, &[(key(n), None)]).expect("a removal on a full disk");
    }
    room.set_space(engine.space().expect("an answer"));
    assert_eq!(
        room.room(4, 160_000, store::RoomFor::Change { promised: 0 }),
        store::Room::Yes,
        "what was removed can be used: {:?}",
        engine.space()
    );
    for n in 0..100 {
        group += 1;
        engine.commit(group, &[wide(n)]).expect("there is space again");
    }
}

#[test]
fn a_disk_too_full_to_begin_with_is_said_plainly() {
    let Some(disk) = SmallDisk::mount(1 << 20) else { return };
    let mut filler = std::fs::File::create(disk.path().join("filler")).expect("a file");
    while filler.write_all(&[1; 4096]).is_ok() {}
    let error = failure(&disk.path().join("store"), OpenOptions { create: true, ..OpenOptions::default() });
    assert!(matches!(error, EngineError::Full { .. }), "{error:?}");
}

#[test]
fn a_read_only_disk_is_said_plainly_and_can_be_read() {
    let Some(disk) = SmallDisk::mount(12 << 20) else { return };
    let dir = disk.path().join("store");
    commit(&common::open(&dir).expect("a store"), 1, [(key(1), Some(1))]).expect("a commit");
    disk.make_read_only();
    let error = failure(&dir, OpenOptions::default());
    assert!(matches!(error, EngineError::ReadOnly { .. }), "{error:?}");
    let error = failure(&disk.path().join("another"), OpenOptions { create: true, ..OpenOptions::default() });
    assert!(matches!(error, EngineError::ReadOnly { .. }), "{error:?}");
    let engine = LmdbEngine::open(&dir, READ_ONLY).expect("a store to read");
    assert_eq!(get(&engine, &key(1)), Some(1));
}

#[test]
fn a_store_opened_for_reading_refuses_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    commit(&common::open(dir.path()).expect("a store"), 1, [(key(1), Some(1))]).expect("a commit");
    let engine = LmdbEngine::open(dir.path(), READ_ONLY).expect("a store");
    let other = LmdbEngine::open(dir.path(), READ_ONLY).err();
    assert!(matches!(other, Some(EngineError::Busy { .. })), "LMDB opens a directory once in a process");
    let error = commit(&engine, 2, [(key(1), Some(2))]).expect_err("a change");
    assert!(matches!(error, EngineError::ReadOnly { .. }), "{error:?}");
    assert_eq!(get(&engine, &key(1)), Some(1));
}

#[test]
#[ignore = "another test starts this one as a process of its own"]
fn holder() {
    let _engine = common::open(&Child::dir()).expect("a store");
    println!("holding");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn a_second_process_is_turned_away_until_the_first_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = Child::start("holder", dir.path());
    let mut lines = BufReader::new(child.process.stdout.take().expect("output")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("holding"))));
    let pid = child.process.id();
    for options in [OpenOptions::default(), READ_ONLY] {
        let error = failure(dir.path(), options);
        assert!(matches!(&error, EngineError::Busy { pid: Some(number), .. } if *number == pid), "{error:?}");
        assert!(error.to_string().contains(&format!("in use by process {pid}: stop that process first")), "{error}");
    }
    child.kill();
    let engine = common::open(dir.path()).expect("a store that its holder left");
    let error = failure(dir.path(), OpenOptions::default());
    assert!(matches!(&error, EngineError::Busy { pid: Some(number), .. } if *number == std::process::id()));
    drop(engine);
    common::open(dir.path()).expect("a store");
}

/// A process that may open the lock file may lock it, and keep a stopped target from starting.
#[test]
fn the_files_of_a_store_are_its_users_alone_in_a_folder_that_others_may_enter() {
    let dir = tempfile::tempdir().expect("a directory");
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    mode(dir.path(), 0o755);
    for old in [false, true] {
        if old {
            mode(&dir.path().join("store.lock"), 0o644);
        }
        drop(common::open(dir.path()).expect("a store"));
        for file in std::fs::read_dir(dir.path()).expect("a directory") {
            let file = file.expect("a file");
            assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o077, 0, "{:?}", file.path());
        }
    }
}

/// A program that a server starts would keep the disk busy for as long as it runs.
#[test]
fn programs_that_are_started_do_not_get_the_files_of_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let _engine = common::open(dir.path()).expect("a store");
    let listed = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().expect("its descriptors");
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(text.contains("/proc/") && !text.contains(&dir.path().display().to_string()), "{text}");
}

#[test]
fn where_there_is_no_store_none_is_made_unasked() {
    let dir = tempfile::tempdir().expect("a directory");
    for options in [OpenOptions::default(), READ_ONLY] {
        let error = failure(dir.path(), options);
        assert!(matches!(error, EngineError::Missing { .. }), "{error:?}");
        let error = failure(&dir.path().join("nothing"), options);
        assert!(matches!(error, EngineError::Missing { .. }), "{error:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
    assert!(!LmdbEngine::exists(dir.path()));
}

#[test]
fn a_damaged_data_file_is_refused() {
    let whole = tempfile::tempdir().expect("a directory");
    commit(&common::open(whole.path()).expect("a store"), 1, (0..1_000).map(|n| (key(n), Some(n)))).expect("a commit");
    let data = std::fs::read(whole.path().join("data.mdb")).expect("the data file");
    let mut bad_magic = data.clone();
    bad_magic[..2 * 4096].fill(0x55);
    let cases: [(&str, &[u8]); 5] = [
        ("empty", &[]),
        ("a few bytes", b"hello"),
        ("other content", &bad_magic),
        ("cut off after the header", &data[..2 * 4096]),
        ("cut off at the end", &data[..data.len() - 4096]),
    ];
    for (case, bytes) in cases {
        for options in [OpenOptions { create: true, ..OpenOptions::default() }, READ_ONLY] {
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("data.mdb"), bytes).expect("a file");
            let error = failure(dir.path(), options);
            assert!(matches!(error, EngineError::Corrupt { .. }), "{case}: {error:?}");
            assert!(error.to_string().contains("restore the directory from a copy"), "{case}: {error}");
            assert_eq!(std::fs::read(dir.path().join("data.mdb")).expect("the file"), bytes, "{case}: it was changed");
        }
    }
}

#[test]
fn a_damaged_record_is_named_and_its_neighbours_are_well() {
    let dir = tempfile::tempdir().expect("a directory");
    commit(&common::open(dir.path()).expect("a store"), 1, (0..9).map(|n| (key(n), Some(0xdead_0000 + n))))
        .expect("a commit");
    // A bit flips on the disk, in the body of record 4.
    let file = dir.path().join("data.mdb");
    let mut data = std::fs::read(&file).expect("the data file");
    let wanted = (0xdead_0000u64 + 4).to_le_bytes();
    let places: Vec<usize> = (0..data.len() - 8).filter(|&at| data[at..at + 8] == wanted).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| data[at + 20] ^= 0x10);
    std::fs::write(&file, data).expect("the data file");

    let engine = common::open(dir.path()).expect("a store");
    assert_eq!(get(&engine, &key(5)), Some(0xdead_0005));
    let load = |what: LoadWhat| {
        let mut view = View::new(ViewConfig::default(), common::formats(), 1);
        view.begin(store::AttemptId(1));
        let missed = match &what {
            LoadWhat::Record(key) => view.get(key).is_err(),
            LoadWhat::Scan(range, limit) => view.scan(range, *limit).is_err(),
        };
        assert!(missed);
        let Some(StoreEffect::Load(load)) = view.poll() else { panic!("no load") };
        Load::run(&load, &engine).result.expect_err("a damaged record")
    };
    for what in [LoadWhat::Record(key(4)), LoadWhat::Scan(KeyRange::all(), 100)] {
        let error = load(what);
        let text = error.to_string();
        let EngineError::Damaged(damaged) = error else { panic!("{text}") };
        assert_eq!(damaged.key, key(4));
        assert!(matches!(damaged.what, Damage::Checksum { .. }), "{text}");
        assert!(text.starts_with(r"record '\x01\x00\x00\x00\x00\x00\x00\x00\x04' is damaged"), "{text}");
    }
    assert_eq!(engine.last_group(), Ok(1));
}
