//! Runs on a local directory, with ranks as threads.

use std::collections::BTreeSet;
use std::path::Path;

use super::options::{Options, Place, Print};
use super::run::{Crew, Ended, run};
use super::summary::Row;

fn base(folder: &Path) -> Options {
    Options {
        places: vec![Place::Folder(folder.join("d").display().to_string())],
        items: 12,
        tasks: vec![3],
        ..Options::default()
    }
}

#[track_caller]
fn run_captured(options: &Options) -> (Vec<Row>, String) {
    options.check().unwrap();
    let mut out = Vec::new();
    let (rows, result) = run(options, "mdtest", &Crew::Threads, &mut out);
    let text = String::from_utf8(out).unwrap();
    if let Err(error) = result {
        panic!("{error:?}\n{text}");
    }
    (rows, text)
}

/// The paths of everything below a folder.
fn below(folder: &Path) -> BTreeSet<String> {
    fn walk(folder: &Path, start: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            found.insert(entry.path().strip_prefix(start).unwrap().display().to_string());
            if entry.path().is_dir() {
                walk(&entry.path(), start, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(folder, folder, &mut found);
    found
}

#[test]
fn a_whole_run_measures_every_phase_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let shapes: [fn(&mut Options); 12] = [
        |_| {},
        |o| o.unique = true,
        |o| (o.unique, o.stride) = (true, 1),
        |o| o.stride = 2,
        |o| (o.depth, o.branches) = (2, 2),
        |o| (o.unique, o.depth, o.branches, o.leaf_only) = (true, 2, 2, true),
        |o| (o.items, o.items_per_directory) = (12, 4),
        |o| (o.write_bytes, o.read_bytes, o.sync_files, o.sync_phases) = (5000, 5000, true, true),
        |o| o.mknod = true,
        |o| (o.random_seed, o.time_paths) = (Some(3), true),
        |o| o.barriers = false,
        |o| (o.iterations, o.delay_seconds, o.print) = (2, 1, Print::Both),
    ];
    for shape in shapes {
        let mut options = base(folder.path());
        shape(&mut options);
        let (rows, text) = run_captured(&options);
        assert_eq!(rows.len(), 9);
        for row in &rows {
            assert!(row.min > 0.0 && row.max >= row.min && row.seconds > 0.0, "{row:?}\n{text}");
        }
        assert!(text.contains(&format!("3 tasks, {} files/directories", 3 * options.items_of_a_rank())), "{text}");
        assert!(text.contains(&format!("(of {} iterations)", options.iterations)), "{text}");
        assert!(below(folder.path()).is_empty(), "{options:?}: {:?}", below(folder.path()));
    }
}

#[test]
fn phases_by_themselves_find_what_the_ones_before_left() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = base(folder.path());
    (options.directories, options.items) = (false, 2);
    (options.stat, options.read, options.remove) = (false, false, false);
    let (rows, _) = run_captured(&options);
    assert!(rows.iter().find(|row| row.operation == "File stat").unwrap().max == 0.0);
    let left = below(&folder.path().join("d/test-dir.0-0/mdtest_tree.0"));
    let expected = (0..3).flat_map(|rank| (0..2).map(move |item| format!("file.mdtest.{rank}.{item}")));
    assert_eq!(left, expected.collect());
    (options.create, options.stat, options.read) = (false, true, true);
    run_captured(&options);
    (options.stat, options.read, options.remove) = (false, false, true);
    run_captured(&options);
    // The first run made the directory of -d; only that run could remove it.
    assert_eq!(below(folder.path()), BTreeSet::from(["d".to_owned()]));
}

#[test]
fn data_is_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = base(folder.path());
    (options.write_bytes, options.items, options.tasks) = (300, 3, vec![1]);
    (options.stat, options.read, options.remove, options.directories) = (false, false, false, false);
    run_captured(&options);
    let data = std::fs::read(folder.path().join("d/test-dir.0-0/mdtest_tree.0/file.mdtest.0.2")).unwrap();
    assert_eq!((data.len(), &data[..9]), (300, &[2, 0, 0, 0, 0, 0, 0, 0, 9][..]));
    options.clean_up = true;
    run_captured(&options);
    assert!(!folder.path().join("d/test-dir.0-0").exists());
}

#[test]
fn shared_files_are_the_same_for_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = base(folder.path());
    (options.shared_files, options.directories) = (true, false);
    let (rows, _) = run_captured(&options);
    assert_eq!(rows.len(), 6);
    assert!(below(folder.path()).is_empty());
}

#[test]
fn a_stone_wall_stops_all_ranks_at_the_same_number() {
    let folder = tempfile::tempdir().unwrap();
    let status = folder.path().join("status").display().to_string();
    let mut options = base(folder.path());
    (options.directories, options.items, options.stone_wall) = (false, 50_000_000, 1);
    options.stone_wall_file = Some(status.clone());
    (options.stat, options.read, options.remove) = (false, false, false);
    let (rows, text) = run_captured(&options);
    let count: u64 = std::fs::read_to_string(&status).unwrap().parse().unwrap();
    assert!(text.contains("Continue stonewall hit min: ") && text.contains(&format!(" max: {count} ")), "{text}");
    let made = below(&folder.path().join("d/test-dir.0-0/mdtest_tree.0")).len() as u64;
    assert!(count > 0 && made == 3 * count, "{made} of 3 times {count}");
    let rate = rows.iter().find(|row| row.operation == "File creation").unwrap();
    assert!((rate.mean * rate.seconds - made as f64).abs() < 1.0, "{rate:?}");
    // A later run visits the same number, and removes them.
    (options.create, options.stat, options.read, options.remove) = (false, true, true, true);
    run_captured(&options);
    assert!(!folder.path().join("d/test-dir.0-0").exists());
    // Without the file it would visit all.
    std::fs::remove_file(&status).unwrap();
    (options.items, options.remove, options.read, options.stat) = (1, false, false, true);
    options.warnings_are_errors = true;
    let (_, result) = run(&options, "mdtest", &Crew::Threads, &mut Vec::new());
    let Err(Ended::Failed(message)) = result else { panic!("{result:?}") };
    assert!(message.contains("-x"), "{message}");
}

#[test]
fn data_that_is_not_what_was_written_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, bad, noticed) in
        [(300, 200, [true, false]), (300, 3, [true, true]), (5, 0, [true, true]), (5, 2, [true, false])]
    {
        let mut options = base(folder.path());
        (options.write_bytes, options.read_bytes, options.items, options.directories) = (bytes, bytes, 3, false);
        options.verify_write = true;
        (options.stat, options.read, options.remove) = (false, false, false);
        run_captured(&options);
        let file = folder.path().join("d/test-dir.0-0/mdtest_tree.0/file.mdtest.1.2");
        let mut data = std::fs::read(&file).unwrap();
        data[bad] ^= 0x40;
        std::fs::write(&file, data).unwrap();
        (options.create, options.read) = (false, true);
        for (all, noticed) in [true, false].into_iter().zip(noticed) {
            options.verify_read = all;
            let mut out = Vec::new();
            let (_, result) = run(&options, "mdtest", &Crew::Threads, &mut out);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.contains("ERROR: verifying the data read!"), noticed, "{bytes} {bad} {all}: {text}");
            assert_eq!(result.is_err(), noticed);
        }
        (options.read, options.remove) = (false, true);
        run_captured(&options);
    }
}

#[test]
fn the_first_rank_makes_everything_if_it_is_to() {
    let folder = tempfile::tempdir().unwrap();
    for unique in [false, true] {
        let mut options = base(folder.path());
        (options.collective, options.unique, options.write_bytes) = (true, unique, 10);
        (options.stat, options.read, options.remove) = (false, false, false);
        let (rows, text) = run_captured(&options);
        assert!(rows.iter().filter(|row| row.operation.ends_with("creation")).all(|row| row.mean > 0.0), "{text}");
        let made = below(&folder.path().join("d/test-dir.0-0"));
        let count = |kind: &str| made.iter().filter(|path| path.contains(kind)).count();
        assert_eq!((count("file.mdtest."), count("dir.mdtest.")), (36, 36), "{made:?}");
        let tree = if unique { "mdtest_tree.2.0" } else { "mdtest_tree.0" };
        let data = std::fs::read(folder.path().join(format!("d/test-dir.0-0/{tree}/file.mdtest.2.7"))).unwrap();
        assert_eq!(data, [7, 0, 0, 0, 0, 0, 0, 0, 9, 10], "each rank has written its own");
        (options.create, options.stat, options.read, options.remove) = (false, true, true, true);
        run_captured(&options);
        assert!(!folder.path().join("d/test-dir.0-0").exists());
    }
}

#[test]
fn several_directories_are_used_in_turn_but_not_with_a_stride() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = base(folder.path());
    options.places = ["a", "b"].map(|name| Place::Folder(folder.path().join(name).display().to_string())).to_vec();
    (options.unique, options.directories, options.items) = (true, false, 1);
    (options.stat, options.read, options.remove) = (false, false, false);
    run_captured(&options);
    let files: Vec<String> = below(folder.path()).into_iter().filter(|path| path.contains("file.")).collect();
    assert_eq!(
        files,
        [
            "a/test-dir.0-0/mdtest_tree.0.0/file.mdtest.0.0",
            "a/test-dir.0-0/mdtest_tree.2.0/file.mdtest.2.0",
            "b/test-dir.0-0/mdtest_tree.1.0/file.mdtest.1.0"
        ]
    );
    options.stride = 1;
    let (_, result) = run(&options, "mdtest", &Crew::Threads, &mut Vec::new());
    let Err(Ended::Failed(message)) = result else { panic!("{result:?}") };
    assert!(message.contains("not the same directory"), "{message}");
}

#[test]
fn two_names_of_one_directory_are_two_mounts_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, folder.path().join("other")).unwrap();
    let mut options = base(folder.path());
    options.places =
        ["real", "other"].map(|name| Place::Folder(folder.path().join(name).display().to_string())).to_vec();
    options.stride = 1;
    run_captured(&options);
    assert!(below(&real).is_empty());
}

#[test]
fn numbers_of_ranks_are_tested_one_after_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = base(folder.path());
    options.tasks = vec![1, 3];
    (options.verbosity, options.print_all_ranks) = (1, true);
    let (_, text) = run_captured(&options);
    assert_eq!(text.matches("SUMMARY rate").count(), 2, "{text}");
    assert!(text.contains("1 tasks, 12 ") && text.contains("3 tasks, 36 "), "{text}");
    assert!(text.contains("V-1: iteration 0: File creation ") && text.contains("Per process result"), "{text}");
}
