//! Tests of the model itself.

use super::*;
use client::api::NewDir;

fn root() -> Cred {
    Cred::default()
}

fn user() -> Cred {
    Cred { uid: 1000, gid: 1000, ..Cred::default() }
}

fn path(text: &str) -> Path {
    text.split('/').filter(|part| !part.is_empty()).map(|part| Bytes::copy_from_slice(part.as_bytes())).collect()
}

fn on(mdt: u32) -> NewDir {
    NewDir { mdts: vec![mdt], hash: 0 }
}

struct Story {
    model: Model,
    now: i64,
}

impl Story {
    fn new() -> Story {
        Story { model: Model::new(0, 0, 0o755, TimeRange::at(0)), now: 0 }
    }

    fn run(&mut self, cred: &Cred, op: Op) -> Result<Expected, Errno> {
        self.now += 10;
        self.model.apply(&op, cred, TimeRange { from: self.now, to: self.now + 5 })
    }

    fn mkdir(&mut self, at: &str) -> Result<Expected, Errno> {
        self.run(&root(), Op::Mkdir { path: path(at), mode: 0o755 })
    }

    fn touch(&mut self, at: &str) -> Result<Expected, Errno> {
        self.run(&root(), Op::Mknod { path: path(at), mode: S_IFREG | 0o644, rdev: 0 })
    }

    fn rename(&mut self, from: &str, to: &str, flags: u32) -> Result<Expected, Errno> {
        self.run(&root(), Op::Rename { from: path(from), to: path(to), flags })
    }

    fn nlink(&self, at: &str) -> u32 {
        self.model.inode(self.model.walk(&root(), &path(at)).unwrap()).nlink
    }
}

#[test]
fn links_are_counted_through_renames() {
    let mut story = Story::new();
    for dir in ["a", "b", "a/x"] {
        story.mkdir(dir).unwrap();
    }
    assert_eq!((story.nlink(""), story.nlink("a"), story.nlink("b")), (4, 3, 2));
    assert_eq!(story.rename("a/x", "b/y", 0), Ok(Expected::Done));
    assert_eq!((story.nlink("a"), story.nlink("b")), (2, 3));
    assert_eq!(story.rename("a", "b/y", 0), Ok(Expected::Done));
    assert_eq!((story.nlink(""), story.nlink("b")), (3, 3));
    assert_eq!(story.rename("b", "b/y/z", 0), Err(Errno::EINVAL));
    assert_eq!(story.rename("b/y", "b", 0), Err(Errno::ENOTEMPTY));
    story.touch("f").unwrap();
    assert_eq!(story.rename("f", "b", 2), Ok(Expected::Done));
    assert_eq!(story.nlink("f"), 3);
    assert_eq!(story.rename("f", "b", 0), Err(Errno::ENOTDIR));
    assert_eq!(story.rename("b", "f", 0), Err(Errno::EISDIR));
}

#[test]
fn a_rename_onto_another_name_of_itself_does_nothing() {
    let mut story = Story::new();
    story.touch("f").unwrap();
    story.run(&root(), Op::Link { from: path("f"), to: path("g") }).unwrap();
    assert_eq!(story.rename("f", "g", 0), Ok(Expected::Done));
    assert_eq!(story.nlink("f"), 2);
    assert_eq!(story.nlink("g"), 2);
}

#[test]
fn an_open_file_outlives_its_name() {
    let mut story = Story::new();
    story.run(&root(), Op::Open { path: path("f"), flags: 0o102, mode: 0o600, fd: 3 }).unwrap();
    let data = Bytes::from_static(b"hello");
    story.run(&root(), Op::Write { fd: 3, way: WriteWay::Plain, offset: 2, data }).unwrap();
    story.run(&root(), Op::Unlink { path: path("f") }).unwrap();
    assert_eq!(
        story.run(&root(), Op::Read { fd: 3, offset: 0, length: 99 }),
        Ok(Expected::Data(Bytes::from_static(b"\0\0hello")))
    );
    let before = story.model.inodes.len();
    story.run(&root(), Op::Close { fd: 3 }).unwrap();
    assert_eq!(story.model.inodes.len(), before - 1);
}

#[test]
fn a_user_meets_permissions_in_linuxs_order() {
    let mut story = Story::new();
    story.mkdir("closed").unwrap();
    story.touch("closed/f").unwrap();
    let make = |at: &str| Op::Mkdir { path: path(at), mode: 0o777 };
    assert_eq!(story.run(&user(), make("closed/f")), Err(Errno::EEXIST));
    assert_eq!(story.run(&user(), make("closed/g")), Err(Errno::EACCES));
    assert_eq!(story.run(&user(), Op::Unlink { path: path("closed/f") }), Err(Errno::EACCES));
    assert_eq!(story.run(&user(), Op::Unlink { path: path("closed/g") }), Err(Errno::ENOENT));
    story.run(&root(), Op::Chmod { path: path("closed"), mode: 0o1777 }).unwrap();
    assert_eq!(story.run(&user(), Op::Unlink { path: path("closed/f") }), Err(Errno::EPERM));
    assert_eq!(story.run(&user(), Op::Rmdir { path: path("closed/f") }), Err(Errno::EPERM));
    story.run(&root(), Op::Chmod { path: path("closed"), mode: 0o700 }).unwrap();
    assert_eq!(story.run(&user(), Op::Stat { path: path("closed/f") }), Err(Errno::EACCES));
    assert_eq!(story.run(&user(), Op::Stat { path: path("closed/f/g") }), Err(Errno::EACCES));
}

/// The examples of `acl(5)`: named users get permissions within the mask, and new objects inherit the default list.
#[test]
fn access_lists_permit_named_users() {
    let mut story = Story::new();
    story.mkdir("d").unwrap();
    let set = |at: &str, name: &'static [u8], list: List| {
        let (path, name) = (path(at), Bytes::from_static(name));
        Op::Setxattr { path, name, value: list.value(), flags: 0 }
    };
    let may = |story: &mut Story, at: &str, mask| story.run(&user(), Op::Access { path: path(at), mask }).is_ok();
    let stat = |story: &Story, at: &str| story.model.inode(story.model.walk(&root(), &path(at)).unwrap()).mode;
    // Owner, named user, owning group, named group, mask, others.
    let list = List::naming([7, 7, 4, 4, 5, 0], 1000, 2000);
    assert_eq!(story.run(&user(), set("d", ACCESS, list.clone())), Err(Errno::EPERM));
    story.run(&root(), set("d", ACCESS, list.clone())).unwrap();
    assert_eq!(stat(&story, "d") & 0o777, 0o750, "the group's bits are the mask");
    assert!(may(&mut story, "d", 5) && !may(&mut story, "d", 2), "the mask covers the user");
    story.run(&root(), Op::Chmod { path: path("d"), mode: 0o777 }).unwrap();
    assert!(may(&mut story, "d", 7), "a chmod changes the mask");
    story.run(&root(), set("d", DEFAULT, list)).unwrap();
    story.run(&user(), Op::Mkdir { path: path("d/n"), mode: 0o770 }).unwrap();
    assert_eq!(stat(&story, "d/n") & 0o777, 0o750);
    story.run(&root(), Op::Chown { path: path("d/n"), uid: Some(0), gid: Some(0) }).unwrap();
    assert!(may(&mut story, "d/n", 5), "it has inherited the list");
    let remove = Op::Removexattr { path: path("d/n"), name: Bytes::from_static(ACCESS) };
    story.run(&root(), remove.clone()).unwrap();
    assert!(!may(&mut story, "d/n", 4));
    assert_eq!(story.run(&root(), remove), Err(Errno::ENODATA));
    assert_eq!(story.run(&root(), set("d/n", ACCESS, List::of_mode(0o705))), Ok(Expected::Done));
    assert!(may(&mut story, "d/n", 5));
    let get = Op::Getxattr { path: path("d/n"), name: Bytes::from_static(ACCESS) };
    assert_eq!(story.run(&root(), get), Err(Errno::ENODATA), "it says no more than the mode");
}

#[test]
fn differences_are_found() {
    let mut story = Story::new();
    let expect = story.touch("f");
    let stat = client::api::Stat {
        ino: 77,
        mode: S_IFREG | 0o644,
        nlink: 1,
        mtime_ns: 12,
        ctime_ns: 12,
        ..Default::default()
    };
    assert_eq!(differs(&mut story.model, &expect, &Ok(Returned::Stat(stat.clone()))), None);
    let wrong = |change: fn(&mut client::api::Stat)| {
        let mut stat = stat.clone();
        change(&mut stat);
        Ok(Returned::Stat(stat))
    };
    for (got, word) in [
        (wrong(|stat| stat.ino = 78), "inode number"),
        (wrong(|stat| stat.nlink = 2), "nlink"),
        (wrong(|stat| stat.size = 1), "size"),
        (wrong(|stat| stat.mtime_ns = 99), "mtime"),
        (Err(Errno::EEXIST), "EEXIST"),
    ] {
        assert!(differs(&mut story.model, &expect, &got).unwrap().contains(word), "{word}");
    }
    assert_eq!(bytes("abc", "abc"), None);
    assert!(bytes("abc", "abd").unwrap().contains("bytes 2 to 2"));
}

#[test]
fn only_given_up_ranges_may_differ() {
    let (want, older, appended) = (b"abcdefgh".as_slice(), b"ABCDEFGH".as_slice(), Bytes::from_static(b"new"));
    let substitutes = Substitutes { older: vec![older], appended };
    let differs = |got: &[u8], lost: core::ops::Range<u64>| content_differs(want, got, &[lost], &substitutes).is_some();
    for good in [b"abcdefgh".as_slice(), b"abCDefgh", b"ab\0Defgh"] {
        assert!(!differs(good, 2..4), "{good:?}");
    }
    for bad in [b"abCDEfgh".as_slice(), b"abxxefgh", b"abcdefg", b"abcdefghi", b"abnewfgh"] {
        assert!(differs(bad, 2..4), "{bad:?}");
    }
    // The end was given up: it may be missing, and bytes appended concurrently are where the file ended.
    for good in [b"abcd".as_slice(), b"abcd\0\0gh", b"abcdnew", b"abcdenew"] {
        assert!(!differs(good, 4..8), "{good:?}");
    }
    for bad in [b"abc".as_slice(), b"abnew", b"abcdnewx", b"abcdxnew"] {
        assert!(differs(bad, 4..8), "{bad:?}");
    }
    assert!(content_differs(want, b"abcdefgH", &[], &substitutes).is_some(), "nothing was given up");
    // There is only a hole before the given-up range.
    let hole = |got: &[u8]| content_differs(b"\0\0cdefgh", got, core::slice::from_ref(&(2..8)), &substitutes).is_some();
    assert!(!hole(b"new") && !hole(b"\0new") && hole(b"xnew"));
}

/// A lost write also loses its times: the previous time shows again, even a later one that a program had set.
#[test]
fn lost_bytes_lose_their_times() {
    let mut story = Story::new();
    story.touch("f").unwrap();
    let set = |ns| Op::Utimens { path: path("f"), atime: None, mtime: Some(client::api::SetTime::At(ns)) };
    story.run(&root(), set(9_000)).unwrap();
    story.run(&root(), Op::Truncate { path: path("f"), size: 3 }).unwrap();
    let id = story.model.walk(&root(), &path("f")).unwrap();
    let differs = |model: &Model, mtime_ns| {
        let stat = client::api::Stat {
            mode: S_IFREG | 0o644,
            nlink: 1,
            size: 3,
            mtime_ns,
            ctime_ns: 30,
            ..Default::default()
        };
        model.attributes_differ(id, &stat, true)
    };
    assert_eq!(differs(&story.model, 32), None);
    assert!(differs(&story.model, 9_000).is_some() && differs(&story.model, 12).is_some());
    story.model.lose(id, core::slice::from_ref(&(0..3)));
    assert_eq!((differs(&story.model, 9_000), differs(&story.model, 12)), (None, None));
    assert!(differs(&story.model, 8_000).is_some());
}

fn bytes(want: &str, got: &str) -> Option<String> {
    let data = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    differs(&mut Story::new().model, &Ok(Expected::Data(data(want))), &Ok(Returned::Data(data(got))))
}

/// The base is on target 0; far and its subdirectory back are on targets 1 and 0.
#[test]
fn a_rename_of_a_directory_concerns_the_way_up() {
    let mut story = Story::new();
    let far = |at: &str, mdt| Op::MkdirOn { path: path(at), mode: 0o755, wish: on(mdt) };
    for op in [far("far", 1), far("far/back", 0), far("empty", 1)] {
        story.run(&root(), op).unwrap();
    }
    for at in ["a", "a/d", "a/e", "far/d", "far/e", "far/back/d"] {
        story.mkdir(at).unwrap();
    }
    for at in ["a/f", "far/f"] {
        story.touch(at).unwrap();
    }
    let rename = |from: &str, to: &str| Op::Rename { from: path(from), to: path(to), flags: 0 };
    let exchange = |from: &str, to: &str| Op::Rename { from: path(from), to: path(to), flags: 2 };
    for (op, crosses) in [
        (rename("a/f", "g"), false),
        (rename("far/f", "far/d/f"), false),
        (rename("a/f", "far/g"), true),
        (rename("far", "a/far"), true),
        (rename("a/d", "far/x"), true),
        (rename("a/d", "empty"), true),
        (exchange("a/f", "far/d"), true),
        // The way up from the new parent is on one target, or meets the old parent there.
        (rename("a/d", "b"), false),
        (rename("far/d", "far/e/d"), false),
        (rename("far/back/d", "d"), false),
        // It leaves the target before.
        (rename("a/d", "far/back/e"), true),
        (rename("a/f", "far/back/f"), false),
    ] {
        assert_eq!(story.model.mdts_of(&op).is_several(), crosses, "{}", op.show());
        assert!(story.model.clone().apply(&op, &root(), TimeRange::ANY).is_ok(), "{}", op.show());
    }
    for op in [rename("far", "far/back/x"), exchange("a", "a/d")] {
        assert_eq!(story.model.clone().apply(&op, &root(), TimeRange::ANY), Err(Errno::EINVAL), "{}", op.show());
    }
    // Both ways up leave target 1, and they meet only beyond.
    story.run(&root(), far("far/back/far", 1)).unwrap();
    story.mkdir("far/back/far/d").unwrap();
    assert!(!story.model.mdts_of(&rename("far/back/far/d", "far/d/x")).is_several(), "perhaps");
    assert!(story.model.mdts_of(&rename("far/d", "far/back/far/x")).is_several());
}

#[test]
fn a_call_concerns_the_targets_of_its_objects() {
    let mut story = Story::new();
    let far = Op::MkdirOn { path: path("far"), mode: 0o755, wish: on(1) };
    assert!(story.model.mdts_of(&far).is_several());
    story.run(&root(), far).unwrap();
    story.mkdir("far/d").unwrap();
    let one = |op: Op, mdt| assert_eq!(story.model.mdts_of(&op), Mdts::one(mdt), "{}", op.show());
    one(Op::Stat { path: path("far") }, 1);
    one(Op::Mkdir { path: path("far/e"), mode: 0o755 }, 1);
    one(Op::Rmdir { path: path("far/d") }, 1);
    one(Op::Mkdir { path: path("e"), mode: 0o755 }, 0);
    assert!(story.model.mdts_of(&Op::Rmdir { path: path("far") }).is_several());
    assert_eq!(story.model.mdts_of(&Op::Syncfs), Mdts::ALL);
}
