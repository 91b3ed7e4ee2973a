//! Whole searches, compared with a plain walk with std.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use proptest::prelude::*;
use rustix::fs::FileType;

use super::candidate::Candidate;
use super::condition::{Condition, Conditions, Stamp, Test, Trouble};
use super::glob::Glob;
use super::mode::Permissions;
use super::number::Range;
use super::walk::{Visit, walk};

/// A search whose output is kept.
struct Kept {
    conditions: Conditions,
    depth_max: usize,
    out: Mutex<Vec<u8>>,
    complaints: Mutex<Vec<String>>,
}

impl Visit for Kept {
    fn depth_max(&self) -> usize {
        self.depth_max
    }
    fn lazy(&self) -> bool {
        false
    }
    fn gather(&self) -> usize {
        64
    }
    fn visit(&self, name: &mut Candidate<'_>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        if self.conditions.hold(name)? {
            out.extend_from_slice(name.path);
            out.push(0);
        }
        Ok(())
    }
    fn print(&self, bytes: &[u8]) -> bool {
        self.out.lock().unwrap().extend_from_slice(bytes);
        true
    }
    fn complain(&self, path: &[u8], error: &std::io::Error) {
        self.complaints.lock().unwrap().push(format!("{}: {error}", String::from_utf8_lossy(path)));
    }
}

const NOW: i64 = 2_000_000_000;

struct Found {
    fine: bool,
    paths: Vec<String>,
    complaints: Vec<String>,
}

fn search(root: &Path, all: &[Condition], depth_max: usize, threads: usize) -> Found {
    let conditions = Conditions::new(all.to_vec(), NOW);
    let kept = Kept { conditions, depth_max, out: Mutex::default(), complaints: Mutex::default() };
    let fine = walk(&kept, &[root.to_path_buf()], threads);
    let out = kept.out.into_inner().unwrap();
    let mut paths: Vec<String> = String::from_utf8(out).unwrap().split_terminator('\0').map(str::to_owned).collect();
    paths.sort();
    Found { fine, paths, complaints: kept.complaints.into_inner().unwrap() }
}

/// The same search with std alone.
fn reference(path: &Path, all: &[Condition], depth: usize, depth_max: usize, found: &mut Vec<String>) {
    let meta = fs::symlink_metadata(path).unwrap();
    let holds = |test: &Test| match test {
        Test::Name(glob) => glob.matches(path.file_name().unwrap().as_bytes()),
        Test::DepthAtLeast(wanted) => depth >= *wanted,
        Test::Kind(kind) => *kind == FileType::from_raw_mode(meta.mode()),
        Test::Age(_, range) => range.holds_age(NOW - meta.mtime()),
        Test::Newer(_, than) => (meta.mtime(), meta.mtime_nsec() as u32) > *than,
        Test::Size(range) => range.holds_size(meta.len()),
        Test::Blocks(range) => range.holds_size(meta.blocks() * 512),
        Test::Links(range) => range.holds_size(meta.nlink()),
        Test::User(uid) => meta.uid() == *uid,
        Test::Group(gid) => meta.gid() == *gid,
        Test::Permissions(permissions) => permissions.hold(meta.mode()),
        other => panic!("{other:?} is not drawn"),
    };
    if all.iter().all(|condition| holds(&condition.test) != condition.not) {
        found.push(path.to_str().unwrap().to_owned());
    }
    if meta.is_dir() && depth < depth_max {
        for entry in fs::read_dir(path).unwrap() {
            reference(&entry.unwrap().path(), all, depth + 1, depth_max, found);
        }
    }
}

/// A tree with all kinds of names that can be made without privileges.
fn tree(root: &Path) {
    for (at, directory) in ["a", "a/b", "a/b/c", "d.x", "d.x/empty"].into_iter().enumerate() {
        fs::create_dir(root.join(directory)).unwrap();
        for file in 0..at * 3 {
            let path = root.join(directory).join(format!("file{file}.{}", ["x", "yy"][file % 2]));
            fs::write(&path, vec![0; file * 700]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode([0o644, 0o600, 0o4755][file % 3])).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(NOW as u64 - (file as u64) * 40_000);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
    }
    fs::hard_link(root.join("a/b/file0.x"), root.join("other")).unwrap();
    symlink("a", root.join("link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, 0o644.into(), 0).unwrap();
}

fn any_test() -> impl Strategy<Value = Test> {
    let side = prop::sample::select(vec!["", "+", "-"]);
    let number = (side, 0u32..6, prop::sample::select(vec!["", "k", "b"]));
    prop_oneof![
        prop::sample::select(vec!["*", "*.x", "file?.*", "[a-d]*", "!", ""])
            .prop_map(|text| Test::Name(Glob::parse(text.as_bytes()))),
        (0usize..4).prop_map(Test::DepthAtLeast),
        prop::sample::select(vec![FileType::RegularFile, FileType::Directory, FileType::Symlink, FileType::Fifo])
            .prop_map(Test::Kind),
        number.clone().prop_map(|(side, n, unit)| Test::Size(Range::size(&format!("{side}{n}{unit}"), 1).unwrap())),
        number
            .clone()
            .prop_map(|(side, n, unit)| Test::Blocks(Range::size(&format!("{side}{n}{unit}"), 1024).unwrap())),
        number.clone().prop_map(|(side, n, _)| Test::Links(Range::plain(&format!("{side}{n}")).unwrap())),
        number
            .prop_map(|(side, n, _)| Test::Age(Stamp::Modification, Range::age(&format!("{side}{n}"), 86400).unwrap())),
        (0i64..400_000).prop_map(|age| Test::Newer(Stamp::Modification, (NOW - age, 0))),
        prop::sample::select(vec!["644", "-600", "/7000", "u=rwx"])
            .prop_map(|text| Test::Permissions(Permissions::parse(text).unwrap())),
        prop::sample::select(vec![0, rustix::process::geteuid().as_raw()]).prop_map(Test::User),
        Just(Test::Group(0)),
    ]
}

#[test]
fn a_search_finds_what_a_plain_walk_finds() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let drawn =
        (prop::collection::vec((any_test(), any::<bool>()), 0..4), prop_oneof![0usize..4, Just(usize::MAX)], 1usize..6);
    proptest!(ProptestConfig::with_cases(300), |((tests, depth_max, threads) in drawn)| {
        let all: Vec<Condition> = tests.into_iter().map(|(test, not)| Condition { test, not }).collect();
        let mut expected = Vec::new();
        reference(folder.path(), &all, 0, depth_max, &mut expected);
        expected.sort();
        let found = search(folder.path(), &all, depth_max, threads);
        prop_assert!(found.fine && found.complaints.is_empty(), "{:?}", found.complaints);
        prop_assert_eq!(found.paths, expected);
    });
}

#[test]
fn large_directories_are_read_by_several_threads_and_each_name_once() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..5000 {
        fs::write(folder.path().join(format!("a name that takes some space in a listing {number}")), "").unwrap();
    }
    for threads in [1, 8] {
        let found = search(folder.path(), &[], usize::MAX, threads);
        let once: BTreeSet<&String> = found.paths.iter().collect();
        assert_eq!((found.paths.len(), once.len()), (5001, 5001));
    }
}

#[test]
fn what_is_not_there_or_too_deep_is_reported_and_the_rest_is_found() {
    let found = search(Path::new("/no/such/path"), &[], usize::MAX, 2);
    assert!(!found.fine && found.paths.is_empty() && found.complaints[0].starts_with("/no/such/path: "));

    // Deeper than the longest path.
    let folder = tempfile::tempdir().unwrap();
    let mut at = rustix::fs::open(folder.path(), rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
    for _ in 0..25 {
        let name = "d".repeat(200);
        rustix::fs::mkdirat(&at, &name, 0o755.into()).unwrap();
        at = rustix::fs::openat(&at, &name, rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
    }
    let found = search(folder.path(), &[], usize::MAX, 2);
    assert!(!found.fine && found.paths.len() > 20, "{}", found.paths.len());
    assert!(matches!(&found.complaints[..], [line] if line.contains("name too long")), "{:?}", found.complaints);
}

#[test]
fn layouts_of_another_file_system_are_one_complaint() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let all = [Condition { test: Test::Osts(vec![0]), not: false }];
    let found = search(folder.path(), &all, usize::MAX, 3);
    assert!(!found.fine && found.paths.is_empty());
    assert!(
        matches!(&found.complaints[..], [line] if line.contains("not on an Adamant mount")),
        "{:?}",
        found.complaints
    );
}

#[test]
fn a_link_that_is_given_is_followed_and_one_that_is_found_is_not() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let link: PathBuf = folder.path().join("link");
    let found = search(&link, &[], 1, 1);
    assert!(found.paths.contains(&link.join("b").to_str().unwrap().to_owned()), "{:?}", found.paths);
    let found = search(folder.path(), &[], usize::MAX, 1);
    assert!(!found.paths.iter().any(|path| path.contains("/link/")));
}
