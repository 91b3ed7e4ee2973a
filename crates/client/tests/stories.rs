//! Stories of programs on clients, against real targets.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use client::api::{Answer, Call, Invalidation, SetStat, SetTime};
use proto::msg::{ConnectReq, Cred, EnqueueReq, Layout, LockMode, LruLimit, Reint, ReintReq};
use proto::{Bytes, Errno, Frame, Header, Opcode, Tag, Xid};
use stdx::{Rng, marks};
use testkit::cluster::{self, Cluster, cred, name, wish};

#[test]
fn a_mount_knows_the_root_and_stats_it_without_a_request() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let stat = c.getattr(a, 1).unwrap();
    assert_eq!((stat.ino, stat.mode & 0o170_000, stat.nlink), (1, 0o040_000, 2));
    assert!(stat.cacheable);
    assert_eq!(c.sent(), 0);
}

#[test]
fn a_new_directory_answers_lookups_itself_and_a_create_is_one_request() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap();
    assert_eq!(c.sent(), 1);
    assert_eq!(c.lookup(a, dir.ino, "f"), Err(Errno::ENOENT));
    assert_eq!(c.sent(), 0);
    assert_eq!(marks::count("lookup_answered_negative"), 1);
    let (stat, fh) = c.create(a, dir.ino, "f").unwrap();
    assert_eq!(c.sent(), 1, "{:?}", c.requests);
    assert_eq!(stat.mode, 0o100_644);
    c.requests.clear();
    assert_eq!(c.lookup(a, dir.ino, "f").unwrap().ino, stat.ino);
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    assert_eq!(c.getattr(a, stat.ino).unwrap().size, 0);
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    c.close(a, fh).unwrap();
    c.unlink(a, dir.ino, "f").unwrap();
    assert_eq!(c.requests.get("mds_reint"), Some(&1));
    assert_eq!(c.lookup(a, dir.ino, "f"), Err(Errno::ENOENT));
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
}

#[test]
fn names_take_no_more_memory_than_nodes_may() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(client::Options { max_nodes: 12_000, ..Cluster::options(1) });
    c.until(|c| c.nodes[a].mounted);
    let dirs: Vec<u64> = ["d", "e"].iter().map(|d| c.mkdir(a, 1, d).unwrap().ino).collect();
    for dir in &dirs {
        for i in 0..9_300 {
            let call = Call::Mknod { parent: *dir, name: name(&format!("f{i}")), mode: 0o100_644, rdev: 0 };
            c.call(a, call).unwrap();
        }
    }
    // Of both it is known what there is not. Of the first the older names have to be asked for.
    c.requests.clear();
    for dir in &dirs {
        assert_eq!(c.lookup(a, *dir, "nothing"), Err(Errno::ENOENT));
        assert!(c.lookup(a, *dir, "f9299").is_ok());
    }
    assert_eq!(c.sent(), 0);
    assert!(c.lookup(a, dirs[0], "f7").is_ok());
    assert_eq!(c.sent(), 1);
    // Of many more directories nothing stays of the first.
    for i in 0..8 {
        let dir = c.mkdir(a, 1, &format!("more{i}")).unwrap().ino;
        for i in 0..2_000 {
            let call = Call::Mknod { parent: dir, name: name(&format!("f{i}")), mode: 0o100_644, rdev: 0 };
            c.call(a, call).unwrap();
        }
    }
    c.requests.clear();
    assert_eq!(c.lookup(a, dirs[0], "nothing"), Err(Errno::ENOENT));
    assert_eq!(c.sent(), 1);
    assert!(marks::count("names_thinned") > 0 && marks::count("names_forgotten") > 0);
}

#[test]
fn names_and_attributes_are_coherent_between_two_clients() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    assert_eq!(c.lookup(b, dir, "f"), Err(Errno::ENOENT));
    let (f, fh) = c.create(a, dir, "f").unwrap();
    assert_eq!(c.lookup(b, dir, "f").unwrap().ino, f.ino);
    c.close(a, fh).unwrap();
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    c.call(b, Call::Setattr { ino: f.ino, set }).unwrap();
    assert_eq!(c.getattr(a, f.ino).unwrap().mode, 0o100_600);
    c.call(b, Call::Rename { parent: dir, name: name("f"), new_parent: 1, new_name: name("g"), flags: 0 }).unwrap();
    assert_eq!(c.lookup(a, dir, "f"), Err(Errno::ENOENT));
    assert_eq!(c.lookup(a, 1, "g").unwrap().ino, f.ino);
    c.unlink(a, 1, "g").unwrap();
    assert_eq!(c.lookup(b, 1, "g"), Err(Errno::ENOENT));
    assert_eq!(c.list(b, dir, false).unwrap(), [".", ".."]);
}

#[test]
fn errors_are_those_of_posix() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let d = c.mkdir(a, 1, "d").unwrap().ino;
    let (f, fh) = c.create(a, 1, "f").unwrap();
    assert_eq!(c.mkdir(a, 1, "d"), Err(Errno::EEXIST));
    assert_eq!(c.unlink(a, 1, "d"), Err(Errno::EISDIR));
    assert_eq!(c.call(a, Call::Rmdir { parent: 1, name: name("f") }), Err(Errno::ENOTDIR));
    assert_eq!(c.unlink(a, 1, "nothing"), Err(Errno::ENOENT));
    assert_eq!(c.mkdir(a, 1, &"x".repeat(256)), Err(Errno::ENAMETOOLONG));
    assert_eq!(c.lookup(a, 1, &"x".repeat(256)), Err(Errno::ENAMETOOLONG));
    assert_eq!(c.lookup(a, f.ino, "x"), Err(Errno::ENOTDIR));
    assert_eq!(c.call(a, Call::Opendir { ino: f.ino }), Err(Errno::ENOTDIR));
    c.create(a, d, "x").unwrap();
    assert_eq!(c.call(a, Call::Rmdir { parent: 1, name: name("d") }), Err(Errno::ENOTEMPTY));
    assert_eq!(c.call(a, Call::Readlink { ino: f.ino }), Err(Errno::EINVAL));
    assert_eq!(c.call_as(a, 5, Call::Create { parent: 1, name: name("y"), mode: 0o644, flags: 1 }), Err(Errno::EACCES));
    let excl = Call::Create { parent: 1, name: name("f"), mode: 0o644, flags: 0o201 };
    assert_eq!(c.call(a, excl), Err(Errno::EEXIST));
    c.close(a, fh).unwrap();
    assert_eq!(c.call(a, Call::Read { fh, offset: 0, length: 1 }), Err(Errno::EBADF));
}

/// Permission bits do not count for a caller that may read everything, here as at the server.
#[test]
fn capabilities_count_for_directories_that_are_cached() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let Answer::Entry(dir) = c.call(a, Call::Mkdir { parent: 1, name: name("d"), mode: 0o700 }).unwrap() else {
        panic!()
    };
    c.create(a, dir.ino, "f").unwrap();
    c.list(a, dir.ino, false).unwrap();
    let backup = Cred { capabilities: 1 << rules::Capability::DacReadSearch as u8, ..cred(1000) };
    let opens = |c: &mut Cluster, cred: Cred| {
        let id = c.send_as(a, cred, Call::Opendir { ino: dir.ino });
        c.answer(a, id).map(drop)
    };
    assert_eq!(opens(&mut c, cred(1000)), Err(Errno::EACCES));
    assert_eq!(opens(&mut c, backup), Ok(()));
}

#[test]
fn links_symlinks_devices_and_renames() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    let linked = c.call(a, Call::Link { ino: f.ino, new_parent: 1, new_name: name("g") }).unwrap();
    let Answer::Entry(stat) = linked else { panic!() };
    assert_eq!((stat.ino, stat.nlink), (f.ino, 2));
    assert!(!stat.cacheable, "the kernel would believe it even if it were told to forget it before");
    let Answer::Entry(link) = c.call(a, Call::Symlink { parent: 1, name: name("s"), target: name("f/../g") }).unwrap()
    else {
        panic!()
    };
    assert_eq!(link.size, 6);
    assert_eq!(c.call(a, Call::Readlink { ino: link.ino }), Ok(Answer::Data(name("f/../g"))));
    assert_eq!(c.requests.get("mds_getattr"), None, "the access time is told, nothing is asked");
    c.sent();
    let Answer::Entry(pipe) = c.call(a, Call::Mknod { parent: 1, name: name("p"), mode: 0o010_644, rdev: 0 }).unwrap()
    else {
        panic!()
    };
    assert_eq!(pipe.mode, 0o010_644);
    // Over a name that exists: one name less.
    c.call(a, Call::Rename { parent: 1, name: name("s"), new_parent: 1, new_name: name("g"), flags: 0 }).unwrap();
    assert_eq!(c.getattr(a, f.ino).unwrap().nlink, 1);
    assert_eq!(c.sent(), 0);
    assert_eq!(c.lookup(a, 1, "g").unwrap().ino, link.ino);
    let noreplace = Call::Rename { parent: 1, name: name("p"), new_parent: 1, new_name: name("g"), flags: 1 };
    assert_eq!(c.call(a, noreplace), Err(Errno::EEXIST));
    c.call(a, Call::Rename { parent: 1, name: name("p"), new_parent: 1, new_name: name("g"), flags: 2 }).unwrap();
    assert_eq!(c.lookup(a, 1, "p").unwrap().ino, link.ino);
    assert_eq!(c.lookup(a, 1, "g").unwrap().ino, pipe.ino);
    let mut names = c.list(a, 1, false).unwrap();
    names.sort();
    assert_eq!(names, [".", "..", "f", "g", "p"]);
    // What is left under the old name is a device that leads nowhere, for everybody.
    let b = c.mount();
    c.lookup(b, 1, "g").unwrap();
    c.call(a, Call::Rename { parent: 1, name: name("g"), new_parent: 1, new_name: name("h"), flags: 4 }).unwrap();
    let left = c.lookup(a, 1, "g").unwrap();
    assert_eq!((left.mode, left.rdev, left.nlink), (0o020_000, 0, 1));
    assert_eq!((c.lookup(b, 1, "g").unwrap().ino, c.lookup(b, 1, "h").unwrap().ino), (left.ino, pipe.ino));
    let exchange = Call::Rename { parent: 1, name: name("g"), new_parent: 1, new_name: name("h"), flags: 6 };
    assert_eq!(c.call(a, exchange), Err(Errno::EINVAL));
}

#[test]
fn a_listing_is_read_once_and_then_answers_by_itself() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for i in 0..500 {
        let mknod = Call::Mknod { parent: dir, name: name(&format!("file{i}")), mode: 0o100_644, rdev: 0 };
        c.call(a, mknod).unwrap();
    }
    for plus in [false, true] {
        let names = c.list(b, dir, plus).unwrap();
        assert_eq!(names.len(), 502, "plus {plus}");
        assert_eq!(&names[..2], [".", ".."]);
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 502);
    }
    let names = c.list(b, dir, true).unwrap();
    assert_eq!(names.len(), 502);
    assert_eq!(c.requests.get("mds_readpage"), None, "{:?}", c.requests);
    assert_eq!(c.lookup(b, dir, "nothing"), Err(Errno::ENOENT));
    assert_eq!(c.sent(), 0);
    let file = c.lookup(b, dir, "file7").unwrap();
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    assert_eq!(c.getattr(b, file.ino).unwrap().ino, file.ino);
    assert_eq!(c.sent(), 0);
    c.unlink(a, dir, "file7").unwrap();
    assert_eq!(c.lookup(b, dir, "file7"), Err(Errno::ENOENT));
    assert_eq!(c.list(b, dir, false).unwrap().len(), 501);
}

#[test]
fn a_walk_that_goes_from_with_to_without_attributes_misses_nothing() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for i in 0..2000 {
        let mknod = Call::Mknod { parent: dir, name: name(&format!("f{i}")), mode: 0o100_644, rdev: 0 };
        c.call(a, mknod).unwrap();
    }
    // As the kernel does it: the first piece with attributes, the others without, each with a buffer of its own size.
    for (reader, room) in [(a, 32 << 10), (c.mount(), 32 << 10), (c.mount(), 4096)] {
        let Answer::Opened { fh, .. } = c.call(reader, Call::Opendir { ino: dir }).unwrap() else { panic!() };
        let (mut offset, mut plus, mut seen) = (0, true, Vec::new());
        loop {
            let call = Call::Readdir { fh, offset, max_bytes: room, plus };
            let Answer::Entries(entries) = c.call(reader, call).unwrap() else { panic!() };
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            plus = false;
            seen.extend(entries.into_iter().map(|entry| entry.name));
        }
        assert_eq!(seen.len(), 2002, "room {room}");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 2002, "room {room}");
        c.call(reader, Call::Releasedir { fh }).unwrap();
    }
}

#[test]
fn times_are_set_and_seen() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    let set = SetStat { atime: Some(SetTime::At(5)), mtime: Some(SetTime::At(7)), ..SetStat::default() };
    let Answer::Attr(stat) = c.call(a, Call::Setattr { ino: f.ino, set }).unwrap() else { panic!() };
    assert_eq!((stat.atime_ns, stat.mtime_ns), (5, 7));
    let seen = c.lookup(b, 1, "f").unwrap();
    assert_eq!((seen.atime_ns, seen.mtime_ns), (5, 7));
    assert!(seen.ctime_ns > f.ctime_ns);
    c.close(a, fh).unwrap();
}

#[test]
fn extended_attributes_come_once_and_none_cost_nothing() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    let get = |ino, n: &str| Call::Getxattr { ino, name: name(n) };
    assert_eq!(c.call(a, get(f.ino, "security.capability")), Err(Errno::ENODATA));
    assert_eq!(c.sent(), 0);
    let set = |flags| Call::Setxattr { ino: f.ino, name: name("user.a"), value: name("1"), flags };
    assert_eq!(c.call(a, set(2)), Err(Errno::ENODATA));
    c.call(a, set(0)).unwrap();
    assert_eq!(c.call(a, set(1)), Err(Errno::EEXIST));
    assert_eq!(c.call(a, get(f.ino, "user.a")), Ok(Answer::Data(name("1"))));
    assert_eq!(c.call(a, get(f.ino, "user.a")), Ok(Answer::Data(name("1"))));
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    assert_eq!(c.call(a, Call::Listxattr { ino: f.ino }), Ok(Answer::Data(name("user.a\0"))));
    c.lookup(b, 1, "f").unwrap();
    c.call(b, Call::Removexattr { ino: f.ino, name: name("user.a") }).unwrap();
    assert_eq!(c.call(a, get(f.ino, "user.a")), Err(Errno::ENODATA));
    c.close(a, fh).unwrap();
}

#[test]
fn small_files_are_written_and_read_by_both() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    assert_eq!(c.write(a, fh, 0, b"hello"), Ok(5));
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    assert_eq!(c.getattr(a, f.ino).unwrap().size, 5);
    assert_eq!(c.getattr(b, f.ino).unwrap().size, 5, "asked of the writer");
    let theirs = c.open(b, f.ino, 2).unwrap();
    assert_eq!(&c.read(b, theirs, 0, 100).unwrap()[..], b"hello");
    assert_eq!(c.write(b, theirs, 5, b" world"), Ok(6));
    assert_eq!(&c.read(a, fh, 0, 100).unwrap()[..], b"hello world");
    c.close(a, fh).unwrap();
    c.close(b, theirs).unwrap();
    assert_eq!(c.getattr(a, f.ino).unwrap().size, 11);
}

#[test]
fn large_files_go_to_objects() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 1000) as u8).collect();
    for (at, piece) in data.chunks(100_000).enumerate() {
        assert_eq!(c.write(a, fh, at as u64 * 100_000, piece), Ok(100_000));
    }
    assert_eq!(c.getattr(b, f.ino).unwrap().size, 3_000_000);
    let theirs = c.open(b, f.ino, 0).unwrap();
    for at in (0..3_000_000).step_by(500_000) {
        assert_eq!(c.read(b, theirs, at as u64, 1000).unwrap(), data[at..at + 1000]);
    }
    c.call(a, Call::Fsync { fh }).unwrap();
    let set = SetStat { size: Some(1000), ..SetStat::default() };
    let Answer::Attr(stat) = c.call(b, Call::Setattr { ino: f.ino, set }).unwrap() else { panic!() };
    assert_eq!(stat.size, 1000);
    assert_eq!(c.getattr(a, f.ino).unwrap().size, 1000);
    assert_eq!(c.read(a, fh, 500, 1000).unwrap(), data[500..1000]);
}

#[test]
fn space_paths_and_layouts() {
    let mut c = Cluster::new(2);
    let a = c.mount();
    let d = c.mkdir(a, 1, "d").unwrap().ino;
    let (f, _) = c.create(a, d, "f").unwrap();
    let Answer::Space { blocks, files, .. } = c.call(a, Call::Statfs { ino: 1 }).unwrap() else { panic!() };
    assert!(blocks > 0 && files > 0);
    let Answer::Fid(fid) = c.call(a, Call::PathToFid { ino: f.ino }).unwrap() else { panic!() };
    assert_eq!(c.call(a, Call::FidToPath { fid }), Ok(Answer::Paths(vec![name("d/f")])));
    let Answer::Layout(Some(layout)) = c.call(a, Call::GetLayout { ino: f.ino }).unwrap() else { panic!() };
    assert!(layout.resident);
    c.call(a, Call::SetLayout { ino: d, wish: wish(1 << 20, 2, -1) }).unwrap();
    let (g, _) = c.create(a, d, "g").unwrap();
    let Answer::Layout(Some(layout)) = c.call(a, Call::GetLayout { ino: g.ino }).unwrap() else { panic!() };
    assert_eq!(layout.osts.len(), 2);
    let Answer::Targets(targets) = c.call(a, Call::TargetSpace).unwrap() else { panic!() };
    assert_eq!(targets.len(), 3);
}

#[test]
fn a_disk_that_several_targets_share_is_counted_once() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    let statfs = |c: &mut Cluster| {
        let Answer::Space { blocks, free, available, .. } = c.call(a, Call::Statfs { ino: 1 }).unwrap() else {
            panic!()
        };
        (blocks * 4096, free * 4096, available * 4096)
    };
    let (disk, free) = (1u64 << 40, 1u64 << 36);
    for (server, number) in [("fs-OST0000", 7), ("fs-OST0001", 7), ("fs-OST0002", 9)] {
        c.set_disk(server, free, number);
    }
    let (total, left, available) = statfs(&mut c);
    assert_eq!((total, left), (2 * disk, 2 * free));
    assert!(available < left, "what the three have promised to clients is taken off");
    // Targets that say nothing of their disks have one each.
    for server in ["fs-OST0000", "fs-OST0001", "fs-OST0002"] {
        c.set_free(server, free);
    }
    assert_eq!(statfs(&mut c).0, 3 * disk);
    assert_eq!(statfs(&mut c).2, available + free, "the promises are the same");
}

#[test]
fn a_closed_file_that_somebody_looks_at_is_asked_about_once() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"12345").unwrap();
    c.close(a, fh).unwrap();
    assert_eq!(c.lookup(b, 1, "f").unwrap().size, 5);
    assert_eq!(c.getattr(b, f.ino).unwrap().size, 5);
    assert_eq!(c.getattr(b, f.ino).unwrap().size, 5);
    assert_eq!(c.sent(), 0);
    assert_eq!(c.getattr(a, f.ino).unwrap().size, 5);
    assert_eq!(marks::count("glimpsed_lock_given_back"), 1);
}

/// Two clients, and a file that the first has written and closed, all of it durable.
fn written(c: &mut Cluster, length: usize) -> (usize, usize, client::Stat) {
    let (a, b) = (c.mount(), c.mount());
    let (file, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &vec![1; length]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    c.pass(Duration::from_secs(10));
    (a, b, file)
}

/// A client that has written a file keeps it cached while others read it.
#[test]
fn a_file_that_was_written_is_shared_with_who_looks_at_it() {
    for knows in [true, false] {
        for length in [5, 100_000] {
            let mut c = Cluster::new(1);
            if !knows {
                c.tamper = Some(Box::new(|_, _, frame| vec![without_lock_convert(frame)]));
            }
            let (a, b, f) = written(&mut c, length);
            let marks_before = (marks::count("glimpsed_lock_shared"), marks::count("dlm.lock.weakened"));
            assert_eq!(c.lookup(b, 1, "f").unwrap().size, length as u64);
            // Of an object that somebody had locked, a lock is asked for some time later.
            c.pass(Duration::from_secs(3));
            assert_eq!(c.getattr(b, f.ino).unwrap().size, length as u64);
            let shared = marks::count("glimpsed_lock_shared") - marks_before.0;
            assert_eq!(shared, u64::from(knows), "{length} bytes");
            assert_eq!(marks::count("dlm.lock.weakened") - marks_before.1, shared);
            for (node, free) in [(b, true), (a, knows)] {
                assert_eq!(c.getattr(node, f.ino).unwrap().size, length as u64);
                assert_eq!(c.sent() == 0, free, "{length} bytes, {knows}");
            }
            if knows {
                let fh = c.open(a, f.ino, 0).unwrap();
                assert_eq!(c.read(a, fh, 0, 5).unwrap(), &[1; 5][..]);
                assert_eq!(c.sent(), 0, "its data stayed here");
            }
            // Each writes again, and each sees it.
            for (node, size) in [(a, length + 7), (b, length + 20), (a, length + 30)] {
                let fh = c.open(node, f.ino, 2).unwrap();
                c.write(node, fh, size as u64 - 1, b"x").unwrap();
                for seen in [a, b] {
                    assert_eq!(c.getattr(seen, f.ino).unwrap().size, size as u64);
                }
                c.close(node, fh).unwrap();
            }
        }
    }
}

fn without_lock_convert(mut frame: Frame) -> Frame {
    if frame.header.opcode == Opcode::Connect as u16
        && let Ok(mut request) = frame.decode::<ConnectReq>()
        && !request.client_uuid.is_empty()
    {
        request.features &= !proto::connect::features::LOCK_CONVERT;
        frame.body = prost::Message::encode_to_vec(&request).into();
    }
    frame
}

/// A lock that an operation holds goes back when that is through, and it may wait for whoever asks: so it is no answer.
#[test]
fn a_closed_file_that_is_being_cut_is_told_of_all_the_same() {
    for length in [5, 3_000_000] {
        let mut c = Cluster::new(1);
        let (a, b, f) = written(&mut c, length);
        // What would cut it is lost on its way.
        c.tamper = Some(Box::new(|to_client, _, frame| {
            let cuts = matches!(Opcode::from_raw(frame.header.opcode), Some(Opcode::MdsReint | Opcode::ObjPunch));
            if cuts && !to_client { Vec::new() } else { vec![frame] }
        }));
        let cut = c.send(a, Call::Setattr { ino: f.ino, set: SetStat { size: Some(1), ..SetStat::default() } });
        let seen = c.send(b, Call::Getattr { ino: f.ino, fh: None });
        let seen = if c.answered(b, seen) { seen } else { panic!("{:?}", c.nodes[a].machine.in_progress()) };
        assert!(!c.answered(a, cut));
        assert!(matches!(c.answer(b, seen), Ok(Answer::Attr(stat)) if stat.size == length as u64));
        c.tamper = None;
        assert!(matches!(c.answer(a, cut), Ok(Answer::Attr(stat)) if stat.size == 1));
        assert_eq!(c.getattr(b, f.ino).unwrap().size, 1);
    }
}

#[test]
fn an_append_to_a_file_that_was_only_stretched_comes_after_its_hole() {
    for osts in 1..3 {
        let mut c = Cluster::new(osts);
        let a = c.mount();
        let (f, fh) = c.create(a, 1, "f").unwrap();
        c.close(a, fh).unwrap();
        let set = SetStat { size: Some(134), ..SetStat::default() };
        c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
        let fh = c.open(a, f.ino, 0o2001).unwrap();
        c.write(a, fh, 0, &[1; 70_105]).unwrap();
        assert_eq!(c.getattr(a, f.ino).unwrap().size, 70_239);
        c.write(a, fh, 0, &[1; 180]).unwrap();
        assert_eq!(c.getattr(a, f.ino).unwrap().size, 70_419);
    }
}

#[test]
fn nodes_that_nobody_needs_go_and_come_back() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(client::Options { max_nodes: 64, ..Cluster::options(1) });
    c.until(|c| c.nodes[a].mounted);
    let mut inos = Vec::new();
    for i in 0..500 {
        let (stat, fh) = c.create(a, 1, &format!("f{i}")).unwrap();
        c.write(a, fh, 0, format!("data {i}").as_bytes()).unwrap();
        c.close(a, fh).unwrap();
        c.call(a, Call::Forget { ino: stat.ino, count: 1 }).unwrap();
        inos.push(stat.ino);
    }
    c.pass(std::time::Duration::from_secs(12));
    for i in 0..5 {
        let (stat, _) = c.create(a, 1, &format!("more{i}")).unwrap();
        c.call(a, Call::Forget { ino: stat.ino, count: 1 }).unwrap();
    }
    let nodes = c.nodes[a].machine.get_params("llite.*.nodes");
    let count: usize = nodes[0].1.parse().unwrap();
    assert!(count < 120, "{count} nodes");
    for (i, ino) in inos.iter().enumerate().step_by(50) {
        let stat = c.lookup(a, 1, &format!("f{i}")).unwrap();
        assert_eq!((stat.ino, stat.size), (*ino, format!("data {i}").len() as u64));
    }
}

#[test]
fn a_huge_directory_is_streamed_in_order_from_any_cookie() {
    let mut c = Cluster::new(0);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for i in 0..9000 {
        let mknod = Call::Mknod {
            parent: dir,
            name: name(&format!("a-file-with-a-longer-name-{i}")),
            mode: 0o100_644,
            rdev: 0,
        };
        c.call(a, mknod).unwrap();
    }
    let names = c.list(b, dir, false).unwrap();
    assert_eq!(names.len(), 9002);
    // Removing while reading, as `rm -r` does.
    let Answer::Opened { fh, .. } = c.call(b, Call::Opendir { ino: dir }).unwrap() else { panic!() };
    let (mut offset, mut removed) = (0, 0);
    loop {
        let Answer::Entries(entries) = c.call(b, Call::Readdir { fh, offset, max_bytes: 4096, plus: false }).unwrap()
        else {
            panic!()
        };
        let Some(last) = entries.last() else { break };
        offset = last.offset;
        for entry in entries.iter().filter(|entry| entry.name[0] != b'.') {
            c.call(b, Call::Unlink { parent: dir, name: entry.name.clone() }).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, 9000);
    c.call(b, Call::Releasedir { fh }).unwrap();
    c.call(b, Call::Rmdir { parent: 1, name: name("d") }).unwrap();
    assert_eq!(c.lookup(a, 1, "d"), Err(Errno::ENOENT));
}

#[test]
fn appends_of_two_clients_never_interleave() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, first) = c.create(a, 1, "log").unwrap();
    c.close(a, first).unwrap();
    c.lookup(b, 1, "log").unwrap();
    let (ours, theirs) = (c.open(a, f.ino, 0o2001).unwrap(), c.open(b, f.ino, 0o2001).unwrap());
    for i in 0..300u32 {
        let (node, fh) = if i % 3 == 0 { (b, theirs) } else { (a, ours) };
        let line = format!("{i:0>500}\n");
        c.write(node, fh, 0, line.as_bytes()).unwrap();
    }
    let reader = c.open(b, f.ino, 0).unwrap();
    let mut all = Vec::new();
    while let Ok(data) = c.read(b, reader, all.len() as u64, 50_000)
        && !data.is_empty()
    {
        all.extend_from_slice(&data);
    }
    let text = String::from_utf8(all).unwrap();
    let numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_file_without_a_name_goes_on_until_its_last_close() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"still here").unwrap();
    c.lookup(b, 1, "f").unwrap();
    c.unlink(b, 1, "f").unwrap();
    assert_eq!(c.lookup(a, 1, "f"), Err(Errno::ENOENT));
    assert_eq!(&c.read(a, fh, 0, 100).unwrap()[..], b"still here");
    let Answer::Attr(stat) = c.call(a, Call::Getattr { ino: f.ino, fh: Some(fh) }).unwrap() else { panic!() };
    assert_eq!((stat.nlink, stat.size), (0, 10));
    c.close(a, fh).unwrap();
    c.call(a, Call::Forget { ino: f.ino, count: 1 }).unwrap();
    c.pass(std::time::Duration::from_secs(2));
    assert_eq!(c.getattr(a, f.ino), Err(Errno::ESTALE));
}

/// What an open of a pipe is the kernel knows, and a FUSE file system cannot say that there is one now: the kernel is to look again.
#[test]
fn a_pipe_of_the_name_that_was_made_meanwhile_is_looked_up_again() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let pipe = Call::Mknod { parent: 1, name: name("p"), mode: 0o010_644, rdev: 0 };
    c.call(a, pipe).unwrap();
    for flags in [0o102, 0o1102] {
        let create = Call::Create { parent: 1, name: name("p"), mode: 0o644, flags };
        assert_eq!(c.call(b, create), Err(Errno::ESTALE));
    }
    assert_eq!(c.lookup(b, 1, "p").unwrap().mode, 0o010_644);
}

#[test]
fn closes_and_cancels_travel_together() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let files: Vec<_> = (0..100).map(|i| c.create(a, dir, &format!("f{i}")).unwrap()).collect();
    c.requests.clear();
    // In one burst: a full request leaves at once, the rest when it is answered or when its time has come.
    let ids: Vec<_> = files
        .iter()
        .map(|(_, fh)| c.send_quietly(a, cluster::cred(0), Call::Release { fh: *fh, flock_owner: None }))
        .collect();
    for id in ids {
        c.answer(a, id).unwrap();
    }
    c.pass(std::time::Duration::from_millis(20));
    assert_eq!(c.requests.get("mds_close"), Some(&2), "{:?}", c.requests);
    c.requests.clear();
    for (i, (file, _)) in files.iter().enumerate() {
        let id = c.send_quietly(a, cluster::cred(0), Call::Unlink { parent: dir, name: name(&format!("f{i}")) });
        c.answer(a, id).unwrap();
        let id = c.send_quietly(a, cluster::cred(0), Call::Forget { ino: file.ino, count: 1 });
        c.answer(a, id).unwrap();
    }
    c.pass(std::time::Duration::from_secs(1));
    assert_eq!(c.requests.get("mds_reint"), Some(&100));
    assert_eq!(c.requests.get("ldlm_cancel"), None, "the locks went with their files");
    let locks = &c.nodes[a].machine.get_params("ldlm.namespaces.*MDT*.lock_count")[0].1;
    assert!(locks.parse::<usize>().unwrap() <= 4, "{locks}");
}

#[test]
fn an_unlink_lets_the_close_of_its_file_go_first() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.requests.clear();
    let close = c.send_quietly(a, cluster::cred(0), Call::Release { fh, flock_owner: None });
    let unlink = c.send_quietly(a, cluster::cred(0), Call::Unlink { parent: 1, name: name("f") });
    c.answer(a, close).unwrap();
    c.answer(a, unlink).unwrap();
    assert_eq!((c.requests.get("mds_close"), c.requests.get("mds_reint")), (Some(&1), Some(&1)));
    c.call(a, Call::Forget { ino: f.ino, count: 1 }).unwrap();
    c.pass(std::time::Duration::from_secs(1));
    assert_eq!(c.requests.get("ldlm_cancel"), None, "nobody had it open any more: {:?}", c.requests);
}

#[test]
fn a_sync_waits_for_closes() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.requests.clear();
    let close = c.send_quietly(a, cluster::cred(0), Call::Release { fh, flock_owner: None });
    let sync = c.send_quietly(a, cluster::cred(0), Call::Syncfs);
    c.answer(a, close).unwrap();
    c.answer(a, sync).unwrap();
    assert_eq!((c.requests.get("mds_close"), c.requests.get("mds_sync")), (Some(&1), Some(&1)));
}

#[test]
fn the_lock_of_a_directory_in_use_outlives_those_of_many_files() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let now = c.now;
    c.nodes[a].machine.set_param(now, "ldlm.namespaces.*MDT*.lru_size", "60").unwrap();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for i in 0..400 {
        let (_, fh) = c.create(a, dir, &format!("f{i}")).unwrap();
        c.close(a, fh).unwrap();
        let call = Call::Lookup { parent: dir, name: name("nothing") };
        assert_eq!(c.call(a, call), Err(Errno::ENOENT));
        assert_eq!(c.requests.get("mds_getattr_name"), None, "file {i}");
    }
    let unused = &c.nodes[a].machine.get_params("ldlm.namespaces.*MDT*.lock_unused_count")[0].1;
    assert!(unused.parse::<usize>().unwrap() <= 61, "{unused}");
}

#[test]
fn what_was_looked_up_after_a_stale_handle_lasts_until_it_is_opened() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let again = |c: &mut Cluster| {
        let _ = c.unlink(b, 1, "f");
        let (_, fh) = c.create(b, 1, "f").unwrap();
        c.write(b, fh, 0, b"content").unwrap();
        c.close(b, fh).unwrap();
    };
    again(&mut c);
    let old = c.lookup(a, 1, "f").unwrap().ino;
    again(&mut c);
    assert_eq!(c.open(a, old, 0), Err(Errno::ESTALE));
    // The kernel walks the path once more, and no further.
    let new = c.lookup(a, 1, "f").unwrap().ino;
    assert!(marks::count("lookup_that_opens") > 0);
    again(&mut c);
    let fh = c.open(a, new, 0).expect("it was there when it was looked up");
    assert_eq!(&c.read(a, fh, 0, 100).unwrap()[..], b"content");
    c.close(a, fh).unwrap();
    // Nothing stays open.
    c.pass(std::time::Duration::from_secs(3));
    let third = c.mount();
    assert_eq!(c.getattr(third, new), Err(Errno::ESTALE));
}

/// The kernel can drop a name only when nobody works in its directory, and a call may work there that waits for us.
#[test]
fn a_callback_waits_for_names_but_not_for_long() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    c.lookup(a, 1, "f").unwrap();
    c.nodes[a].slow_kernel = true;
    let unlink = c.send(b, Call::Unlink { parent: 1, name: name("f") });
    c.run();
    assert!(!c.answered(b, unlink), "the name is still there for programs of a");
    c.nodes[a].slow_kernel = false;
    assert_eq!(c.answer(b, unlink), Ok(Answer::Done));

    let (_, fh) = c.create(a, 1, "g").unwrap();
    c.close(a, fh).unwrap();
    c.lookup(a, 1, "g").unwrap();
    c.nodes[a].slow_names = true;
    let unlink = c.send(b, Call::Unlink { parent: 1, name: name("g") });
    c.run();
    assert!(!c.answered(b, unlink));
    c.pass(std::time::Duration::from_millis(25));
    assert!(c.answered(b, unlink));
    assert!(marks::count("names_left_in_doubt") > 0);
}

/// A lock goes back because there are too many: nobody waits for it, so the kernel has all the time that it needs, and no
/// program hears of it. Once another client wants the lock it is as with any callback.
#[test]
fn a_lock_that_nobody_wants_waits_for_names_however_long() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    c.nodes[a].slow_names = true;
    let now = c.now;
    c.nodes[a].machine.set_param(now, "ldlm.namespaces.*MDT*.lru_size", "clear").unwrap();
    c.pass(std::time::Duration::from_millis(100));
    assert!(marks::count("unwanted_lock_waits_for_kernel") > 0);
    let again = c.open(a, f.ino, 0).expect("the name is what it was");
    c.close(a, again).unwrap();
    let unlink = c.send(b, Call::Unlink { parent: 1, name: name("f") });
    c.run();
    assert!(!c.answered(b, unlink));
    c.pass(std::time::Duration::from_millis(25));
    assert!(c.answered(b, unlink));
    assert_eq!(c.open(a, f.ino, 0), Err(Errno::ESTALE));
}

#[test]
fn a_program_that_may_not_be_read_can_be_opened_for_execution() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "program").unwrap();
    c.write(a, fh, 0, b"#!").unwrap();
    c.close(a, fh).unwrap();
    let set = SetStat { mode: Some(0o111), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    assert_eq!(c.call_as(a, 7, Call::Open { ino: f.ino, flags: 0 }), Err(Errno::EACCES));
    let exec = c.call_as(a, 7, Call::Open { ino: f.ino, flags: 0o40 });
    assert!(matches!(exec, Ok(Answer::Opened { .. })), "{exec:?}");
}

#[test]
fn attributes_from_the_cache_are_for_who_may_read_them() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    for text in ["user.note", "trusted.note"] {
        let value = bytes::Bytes::from_static(b"x");
        c.call(a, Call::Setxattr { ino: f.ino, name: name(text), value, flags: 0 }).unwrap();
    }
    let get = |c: &mut Cluster, uid, text| c.call_as(a, uid, Call::Getxattr { ino: f.ino, name: name(text) });
    for _ in 0..2 {
        assert_eq!(get(&mut c, 0, "user.note"), Ok(Answer::Data(bytes::Bytes::from_static(b"x"))));
        assert_eq!(get(&mut c, 0, "trusted.note"), Ok(Answer::Data(bytes::Bytes::from_static(b"x"))));
        assert_eq!(get(&mut c, 7, "user.note"), Err(Errno::EACCES));
        assert_eq!(get(&mut c, 7, "trusted.note"), Err(Errno::ENODATA));
    }
}

#[test]
fn reading_a_symbolic_link_moves_its_access_time() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    c.call(a, Call::Symlink { parent: 1, name: name("l"), target: name("x") }).unwrap();
    let made = c.lookup(a, 1, "l").unwrap();
    c.pass(std::time::Duration::from_secs(2));
    assert_eq!(c.call(a, Call::Readlink { ino: made.ino }), Ok(Answer::Data(name("x"))));
    c.pass(std::time::Duration::from_millis(10));
    assert!(c.getattr(b, made.ino).unwrap().atime_ns > made.atime_ns);
}

#[test]
fn a_lock_that_goes_with_a_close_under_way_is_waited_for() {
    use client::api::{RecordLock, RecordLockKind};
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, here) = c.create(a, 1, "f").unwrap();
    c.lookup(b, 1, "f").unwrap();
    let there = c.open(b, f.ino, 0).unwrap();
    let lock = RecordLock { start: 0, end: u64::MAX, kind: RecordLockKind::Exclusive, pid: 1 };
    let take = |fh, owner| Call::Setlk { fh, owner, lock, wait: false, flock: true };
    c.call(a, take(here, 1)).unwrap();
    let id = c.send(b, take(there, 2));
    c.run();
    assert!(!c.answered(b, id));
    c.call(a, Call::Release { fh: here, flock_owner: Some(1) }).unwrap();
    assert_eq!(c.answer(b, id), Ok(Answer::Done));
    assert!(marks::count("flock_tried_again") > 0);
    // One that is really held is refused soon.
    let third = c.open(a, f.ino, 0).unwrap();
    let id = c.send(a, take(third, 3));
    c.pass(std::time::Duration::from_millis(40));
    assert_eq!(c.answer(a, id), Err(Errno::EAGAIN));
}

#[test]
fn a_new_owner_of_a_file_owns_its_objects_too() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &vec![1; 200_000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let owners = |c: &Cluster| -> Vec<(u32, u32)> {
        c.objects("fs-OST0000").iter().map(|object| (object.uid, object.gid)).collect()
    };
    assert_eq!(owners(&c), [(0, 0)]);
    let set = SetStat { uid: Some(7), gid: Some(8), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    c.pass(core::time::Duration::from_secs(5));
    assert_eq!(owners(&c), [(7, 8)]);
}

#[test]
fn a_soft_mount_that_gets_no_answer_is_given_up_in_time_and_says_why() {
    let mut c = Cluster::new(1);
    let mgs = c.server("MGS");
    c.kill(mgs);
    let soft = Some(core::time::Duration::from_secs(3));
    let a = c.begin_mount(client::api::Options { soft, ..Cluster::options(7) });
    c.pass(core::time::Duration::from_millis(2500));
    assert_eq!(c.nodes[a].failed, None, "a server that starts again within the time is waited for");
    c.pass(core::time::Duration::from_millis(1000));
    let reason = c.nodes[a].failed.clone().expect("given up");
    assert!(reason.contains("unix:MGS") && reason.contains("within 3 s"), "{reason}");
}

/// The kernel asks for pages beyond the end when another mount has cut the file, and takes the last short answer for the
/// end; the one that holds the end must be first.
#[test]
fn of_reads_that_are_asked_for_together_the_one_with_the_end_is_answered_first() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[7; 20_000]).unwrap();
    let behind = c.send(a, Call::Read { fh, offset: 32_768, length: 16_384 });
    let end = c.send(a, Call::Read { fh, offset: 16_384, length: 16_384 });
    c.run();
    assert!(c.answered(a, end) && !c.answered(a, behind));
    assert_eq!(c.answer(a, behind), Ok(Answer::Data(bytes::Bytes::new())));
    assert!(marks::count("read_beyond_the_end") > 0);
}

#[test]
fn a_client_keeps_no_more_unused_locks_than_its_target_says() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for i in 0..60 {
        let (_, fh) = c.create(a, dir, &format!("f{i}")).unwrap();
        c.close(a, fh).unwrap();
    }
    let unused = |c: &Cluster| {
        let text = &c.nodes[a].machine.get_params("ldlm.namespaces.*MDT*.lock_unused_count")[0].1;
        text.parse::<usize>().unwrap()
    };
    c.pass(std::time::Duration::from_secs(1));
    assert!(unused(&c) >= 60, "{}", unused(&c));
    // It comes before the answer to a change.
    c.tamper = Some(Box::new(|to_client, _, frame: Frame| {
        let header = Header { opcode: Opcode::LdlmLruLimit as u16, xid: Xid(0), tag: Tag(0), flags: 0, ..frame.header };
        let notice = Frame::new(header, &LruLimit { locks: 10 }, Bytes::new());
        let tells = to_client && frame.header.opcode == Opcode::MdsReint as u16;
        tells.then_some(notice).into_iter().chain([frame]).collect()
    }));
    c.mkdir(a, 1, "e").unwrap();
    c.tamper = None;
    c.pass(std::time::Duration::from_secs(5));
    assert!(unused(&c) <= 10, "{}", unused(&c));
}

#[test]
fn a_directory_that_lost_a_name_is_listed_with_an_error_and_never_known_whole() {
    for plus in [false, true] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(a, 1, "d").unwrap().ino;
        for i in 0..300 {
            c.mkdir(a, dir, &format!("name{i}")).unwrap();
        }
        let now = c.now;
        c.nodes[a].machine.handle(now, client::api::Event::Unmount);
        c.pass(Duration::from_secs(5));
        c.lose_entry(dir, "name7");
        assert_eq!(c.walk(b, "d"), Ok(dir));
        for _ in 0..2 {
            assert_eq!(c.list(b, dir, plus), Err(Errno::EIO));
            assert_eq!(c.listed.len(), 2 + 299, "what is there is shown before the error");
        }
        let line = "lacks 1 of 300 names: their records are lost";
        assert!(c.log.iter().any(|logged| logged.contains("Error") && logged.contains(line)), "{:#?}", c.log);
        // That a name is not there is never concluded from what was listed, and the listing is not fetched again for it.
        c.all_requests.clear();
        for i in 0..8 {
            assert_eq!(c.lookup(b, dir, &format!("other{i}")), Err(Errno::ENOENT));
        }
        let sent = |what: &str| c.all_requests.get(what).copied();
        assert_eq!((sent("mds_getattr_name"), sent("mds_readpage")), (Some(8), None), "{:?}", c.all_requests);
        assert_eq!(c.call(b, Call::Rmdir { parent: 1, name: name("d") }), Err(Errno::ENOTEMPTY));
    }
}

/// The targets that the stripes of new files lie on, of so many files; data is written to each.
fn places_of_new_files(c: &mut Cluster, a: usize, prefix: &str, count: usize) -> Vec<u32> {
    let mut places = Vec::new();
    for i in 0..count {
        let (file, fh) = c.create(a, 1, &format!("{prefix}{i}")).unwrap();
        c.write(a, fh, 0, &[7; 200_000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        c.close(a, fh).unwrap();
        let Answer::Layout(Some(layout)) = c.call(a, Call::GetLayout { ino: file.ino }).unwrap() else { panic!() };
        assert!(!layout.resident);
        places.extend(layout.osts);
    }
    places.sort_unstable();
    places.dedup();
    places
}

#[test]
fn new_files_are_written_while_an_object_target_is_away_degraded_or_taken_out() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    c.pass(Duration::from_secs(6));
    assert_eq!(places_of_new_files(&mut c, a, "all", 6), [0, 1, 2]);
    let at = c.server("fs-OST0001");
    c.kill(at);
    assert_eq!(places_of_new_files(&mut c, a, "away", 6), [0, 2]);
    c.start(at);
    c.pass(Duration::from_secs(60));
    assert_eq!(places_of_new_files(&mut c, a, "back", 6), [0, 1, 2]);
    c.set_server_param("fs-MDT0000", "osp.fs-OST0000-osc-MDT0000.max_create_count", "0");
    assert_eq!(places_of_new_files(&mut c, a, "drained", 6), [1, 2]);
    c.set_server_param("fs-OST0002", "obdfilter.fs-OST0002.degraded", "1");
    c.pass(Duration::from_secs(6));
    assert_eq!(places_of_new_files(&mut c, a, "degraded", 6), [1]);
}

#[test]
fn new_files_avoid_an_object_target_that_is_full() {
    let mut c = Cluster::new(2);
    let a = c.mount();
    c.set_free("fs-OST0000", 1 << 19);
    c.set_free("fs-OST0001", 1 << 39);
    c.pass(Duration::from_secs(6));
    assert_eq!(places_of_new_files(&mut c, a, "new", 6), [1]);
    // As many stripes as there are targets that can be used.
    c.call(a, Call::SetLayout { ino: 1, wish: wish(0, -1, -1) }).unwrap();
    assert_eq!(places_of_new_files(&mut c, a, "wide", 2), [1]);
}

#[test]
fn a_file_lies_on_the_targets_of_a_list() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    let list = |osts: &[u32]| Layout { osts: osts.to_vec(), ..wish(0, 0, -1) };
    let (file, _) = c.create(a, 1, "file").unwrap();
    c.call(a, Call::SetLayout { ino: file.ino, wish: list(&[2, 0]) }).unwrap();
    let Answer::Layout(Some(layout)) = c.call(a, Call::GetLayout { ino: file.ino }).unwrap() else { panic!() };
    assert_eq!(layout.osts, [2, 0]);
    let d = c.mkdir(a, 1, "d").unwrap().ino;
    c.call(a, Call::SetLayout { ino: d, wish: list(&[1, 2]) }).unwrap();
    let (below, _) = c.create(a, d, "below").unwrap();
    let Answer::Layout(Some(layout)) = c.call(a, Call::GetLayout { ino: below.ino }).unwrap() else { panic!() };
    assert_eq!(layout.osts, [1, 2]);
    for bad in [&[0, 0][..], &[0, 7]] {
        assert_eq!(c.call(a, Call::SetLayout { ino: d, wish: list(bad) }), Err(Errno::EINVAL));
    }
    let at = c.server("fs-OST0001");
    c.kill(at);
    let (other, _) = c.create(a, 1, "other").unwrap();
    assert_eq!(c.call(a, Call::SetLayout { ino: other.ino, wish: list(&[0, 1]) }), Err(Errno::ENXIO));
    assert_eq!(c.call(a, Call::SetLayout { ino: other.ino, wish: wish(0, 1, 1) }), Err(Errno::ENXIO));
}

#[test]
fn a_file_that_lost_a_stripe_is_no_file_of_zeros_and_can_be_removed() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    c.call(a, Call::SetLayout { ino: 1, wish: wish(1 << 16, -1, 0) }).unwrap();
    let (stat, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[7; 1 << 18]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    let now = c.now;
    c.nodes[a].machine.handle(now, client::api::Event::Unmount);
    c.until(|c| c.nodes[a].unmounted);
    c.lose_object("fs-OST0001", stat.ino, 1);

    let ino = c.walk(b, "f").unwrap();
    assert_eq!(c.getattr(b, ino).map(drop), Err(Errno::EIO), "its size is not known");
    let fh = c.open(b, ino, 0).unwrap();
    assert_eq!(c.read(b, fh, 1 << 16, 1 << 16), Err(Errno::EIO));
    c.close(b, fh).unwrap();
    assert!(c.log.iter().any(|line| line.contains("stripe 1: its record is lost")), "{:#?}", c.log);
    c.unlink(b, 1, "f").unwrap();
    c.pass(Duration::from_secs(5));
    assert_eq!(c.objects("fs-OST0000").len(), 0);
}

#[test]
fn what_programs_do_is_counted_in_lustres_words() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (stat, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"0123456789").unwrap();
    c.write(a, fh, 10, b"abcd").unwrap();
    c.read(a, fh, 0, 100).unwrap();
    assert_eq!(c.lookup(a, 1, "nothing"), Err(Errno::ENOENT));
    c.getattr(a, stat.ino).unwrap();
    c.close(a, fh).unwrap();
    let text = c.nodes[a].machine.get_params("llite.*.stats").remove(0).1;
    assert!(text.starts_with("snapshot_time             "), "{text}");
    for line in [
        "read_bytes                1 samples [bytes] 14 14 14 196\n",
        "write_bytes               2 samples [bytes] 4 10 14 116\n",
        "\nopen                      1 samples [usecs] ",
        "\nclose                     1 samples [usecs] ",
        "\ngetattr                   1 samples [usecs] ",
        "\nwrite_back_failures       0 samples [reqs]\n",
    ] {
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }
    let now = c.now;
    c.nodes[a].machine.set_param(now, "llite.*.stats", "clear").unwrap();
    let text = c.nodes[a].machine.get_params("llite.*.stats").remove(0).1;
    assert!(!text.contains("read_bytes") && text.contains("write_back_lost"), "{text}");
}

/// A program reads a small file while another one of the same client cuts it: it gets the bytes from before or from after, whatever the order
/// in which the server's answers come.
/// Two clients write at different places, each under a lock of its own, and one of them cuts the file behind the other's lock.
#[test]
fn who_has_locked_the_beginning_of_a_file_says_nothing_of_its_end() {
    let mut c = Cluster::new(1);
    let (maker, low, high) = (c.mount(), c.mount(), c.mount());
    let (f, fh) = c.create(maker, 1, "f").unwrap();
    assert_eq!(c.write(maker, fh, 0, &vec![1; 1 << 20]), Ok(1 << 20));
    let places = [(low, 0), (high, 512 << 10)].map(|(node, offset)| {
        c.lookup(node, 1, "f").unwrap();
        (node, c.open(node, f.ino, 2).unwrap(), offset)
    });
    // Both wait for the maker's lock, so each is given what the other does not want.
    let calls = places.map(|(node, fh, offset)| {
        let data = Bytes::from(vec![2; 100]);
        let call = Call::Write { fh, ino: 0, offset, data, write_back: false, kill_priv: false };
        (node, c.send_quietly(node, cred(0), call))
    });
    c.run();
    for (node, id) in calls {
        assert_eq!(c.answer(node, id), Ok(Answer::Written(100)));
    }
    let set = SetStat { size: Some(768 << 10), ..SetStat::default() };
    c.call(high, Call::Setattr { ino: f.ino, set }).unwrap();
    assert_eq!(c.getattr(maker, f.ino).unwrap().size, 768 << 10);
    assert_eq!(c.getattr(low, f.ino).unwrap().size, 768 << 10);
}

#[test]
fn a_read_beside_a_truncation_sees_one_state() {
    let data = [7; 300];
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (file, fh) = c.create(b, 1, "f").unwrap();
        c.write(b, fh, 0, &data).unwrap();
        c.close(b, fh).unwrap();
        c.walk(a, "f").unwrap();
        let fh = c.open(a, file.ino, 2).unwrap();
        // What hangs on the change of another client is answered when that is durable.
        let set = SetStat { mode: Some(0o600), ..SetStat::default() };
        c.pass(Duration::from_secs(6));
        c.slow_media = true;
        let chmod = c.send_quietly(b, cred(0), Call::Setattr { ino: file.ino, set });
        while !c.answered(b, chmod) {
            c.one_step(&mut rng);
        }
        let set = SetStat { size: Some(10), ..SetStat::default() };
        let cut = c.send_quietly(a, cred(0), Call::Setattr { ino: file.ino, set });
        let mut reads = Vec::new();
        for _ in 0..6 {
            for _ in 0..rng.below(16) {
                c.one_step(&mut rng);
            }
            reads.push(c.send_quietly(a, cred(0), Call::Read { fh, offset: 0, length: 1000 }));
        }
        c.run();
        c.answer(a, cut).unwrap();
        c.answer(b, chmod).unwrap();
        for read in reads {
            let Answer::Data(read) = c.answer(a, read).unwrap() else { panic!() };
            assert!(read[..] == data || read[..] == data[..10], "seed {seed}: {} bytes", read.len());
        }
    }
}

/// What a client says of the names "f", "g" and "h", each alone, and of all in the listing.
fn look_at(c: &mut Cluster, rng: &mut Rng, node: usize, dir: u64) -> Vec<String> {
    let mut ask = |c: &mut Cluster, call: Call| {
        let id = c.send_quietly(node, cred(0), call);
        for _ in 0..10_000 {
            if c.answered(node, id) {
                break;
            }
            c.one_step(rng);
        }
        assert!(c.answered(node, id), "{:?}", c.nodes[node].machine.in_progress());
        c.answer(node, id)
    };
    let mut seen = Vec::new();
    for text in ["f", "g", "h"] {
        seen.push(match ask(c, Call::Lookup { parent: dir, name: name(text) }) {
            Ok(Answer::Entry(stat)) => format!("{} links", stat.nlink),
            other => format!("{:?}", other.map(drop)),
        });
    }
    let Ok(Answer::Opened { fh, .. }) = ask(c, Call::Opendir { ino: dir }) else { panic!() };
    let Ok(Answer::Entries(list)) = ask(c, Call::Readdir { fh, offset: 0, max_bytes: 4096, plus: false }) else {
        panic!()
    };
    let mut names: Vec<Bytes> = list.into_iter().map(|entry| entry.name).collect();
    names.sort();
    seen.push(format!("{names:?}"));
    seen
}

/// The answer to a change is late, and another client has seen what it did: then every program of the client that asked for it sees it,
/// too, whatever was cached there.
#[test]
fn what_others_have_seen_of_a_change_on_its_way_is_seen_here() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(a, 1, "d").unwrap().ino;
        let (file, fh) = c.create(a, dir, "f").unwrap();
        c.close(a, fh).unwrap();
        c.call(a, Call::Link { ino: file.ino, new_parent: dir, new_name: name("g") }).unwrap();
        let there = c.walk(b, "d").unwrap();
        let before = look_at(&mut c, &mut rng, a, dir);
        // What hangs on the change of another client is answered when that is durable.
        let set = SetStat { mode: Some(0o600), ..SetStat::default() };
        c.pass(Duration::from_secs(6));
        c.slow_media = true;
        let chmod = c.send_quietly(b, cred(0), Call::Setattr { ino: file.ino, set });
        c.run();
        assert!(c.answered(b, chmod));
        look_at(&mut c, &mut rng, a, dir);
        let change = match rng.below(3) {
            0 => Call::Unlink { parent: dir, name: name("f") },
            1 => Call::Rename { parent: dir, name: name("f"), new_parent: dir, new_name: name("h"), flags: 0 },
            _ => Call::Link { ino: file.ino, new_parent: dir, new_name: name("h") },
        };
        let change = c.send_quietly(a, cred(0), change);
        let mut seen = Vec::new();
        for _ in 0..3 {
            for _ in 0..rng.below(20) {
                c.one_step(&mut rng);
            }
            seen.push(look_at(&mut c, &mut rng, b, there));
            seen.push(look_at(&mut c, &mut rng, a, dir));
        }
        assert!(!c.answered(a, change), "seed {seed}: it hangs on the other change");
        c.slow_media = false;
        c.run();
        c.answer(a, change).unwrap();
        c.answer(b, chmod).unwrap();
        let after = look_at(&mut c, &mut rng, a, dir);
        // Of what the change makes different, nobody sees the old after anybody has seen the new.
        let different = |i: usize| before[i] != after[i];
        let all = seen.iter().flat_map(|look| look.iter().enumerate()).filter(|(i, _)| different(*i));
        let is_new: Vec<bool> = all.map(|(i, text)| *text == after[i]).collect();
        assert!(is_new.is_sorted(), "seed {seed}: {seen:#?}");
    }
}

#[test]
fn a_name_that_changed_while_its_file_was_cut_is_not_kept_by_the_kernel() {
    const O_RDWR_TRUNC: u32 = 0o1002;
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 100_000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    c.lookup(b, 1, "f").unwrap();
    let ost = c.server("fs-OST0000");
    c.kill(ost);
    let opening = c.send(b, Call::Create { parent: 1, name: name("f"), mode: 0o644, flags: O_RDWR_TRUNC });
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(b, opening), "it is not cut yet");
    let rename = Call::Rename { parent: 1, name: name("f"), new_parent: 1, new_name: name("g"), flags: 0 };
    c.call(a, rename).unwrap();
    // By its new name the file is locked again.
    c.send_quietly(b, cred(0), Call::Lookup { parent: 1, name: name("g") });
    c.pass(Duration::from_secs(1));
    c.start(ost);
    c.until(|c| c.answered(b, opening));
    match c.answer(b, opening).unwrap() {
        Answer::Created { stat, .. } => assert_eq!((stat.ino, stat.entry_cacheable), (f.ino, false)),
        other => panic!("{other:?}"),
    }
    assert!(marks::count("name_lock_lost_in_flight") > 0);
}

#[test]
fn the_kernel_forgets_attributes_before_a_change_of_them_is_sent() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let d = c.mkdir(a, 1, "d").unwrap().ino;
    let (f, fh) = c.create(a, d, "f").unwrap();
    c.close(a, fh).unwrap();
    c.call(a, Call::Link { ino: f.ino, new_parent: d, new_name: name("g") }).unwrap();
    let walked = c.walk(b, "d/f").unwrap();
    assert_eq!(walked, f.ino);
    let _open = c.open(b, f.ino, 0).unwrap();
    let mode = SetStat { mode: Some(0o600), ..SetStat::default() };
    let changes = [
        (Call::Setattr { ino: f.ino, set: mode }, vec![f.ino]),
        (Call::Unlink { parent: d, name: name("g") }, vec![d, f.ino]),
        (Call::Rename { parent: d, name: name("f"), new_parent: 1, new_name: name("f"), flags: 0 }, vec![d, f.ino, 1]),
    ];
    for (call, nodes) in changes {
        c.pass(Duration::from_millis(20));
        for ino in &nodes {
            assert!(c.getattr(b, *ino).unwrap().cacheable, "the kernel has them");
        }
        let _ = c.lookup(b, d, "g");
        c.nodes[b].slow_kernel = true;
        c.nodes[b].invalidations.clear();
        let sent = c.sent();
        let id = c.send(b, call.clone());
        assert!(!c.answered(b, id) && c.sent() == sent, "{call:?} is sent too early");
        for ino in &nodes {
            let told =
                |what: &Invalidation| matches!(what, Invalidation::Inode { ino: of, length: 0, .. } if of == ino);
            assert!(c.nodes[b].invalidations.iter().any(told), "{call:?}: {ino:x}");
            assert!(!c.getattr(b, *ino).unwrap().cacheable, "{call:?}: {ino:x}");
        }
        c.nodes[b].slow_kernel = false;
        c.until(|c| c.answered(b, id));
        c.answer(b, id).unwrap();
    }
}

/// Creating a file that exists, with `O_TRUNC`, truncates it once: what is written afterwards stays, and its size shows it.
#[test]
fn a_create_that_cuts_what_is_there_cuts_it_once() {
    let mut after_the_cut = 0;
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(1);
        let (a, b, reader) = (c.mount(), c.mount(), c.mount());
        let (file, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &[1; 100]).unwrap();
        let read = c.walk(reader, "f").unwrap();
        let read = c.open(reader, read, 0).unwrap();
        c.read(reader, read, 0, 100).unwrap();
        // Its lock is called back for the cut, and the writer waits behind that.
        c.nodes[reader].slow_kernel = true;
        let create = Call::Create { parent: 1, name: name("f"), mode: 0o644, flags: 0o1102 };
        let cut = c.send_quietly(b, cred(0), create);
        c.run();
        let data = Bytes::from_static(&[2; 94]);
        let write = Call::Write { fh, ino: 0, offset: 0, data, write_back: false, kill_priv: false };
        let write = c.send_quietly(a, cred(0), write);
        c.run();
        c.nodes[reader].slow_kernel = false;
        while !c.answered(a, write) {
            c.one_step(&mut rng);
        }
        let size = c.send_quietly(a, cred(0), Call::Getattr { ino: file.ino, fh: Some(fh) });
        while !c.answered(a, size) {
            c.one_step(&mut rng);
        }
        let Ok(Answer::Attr(stat)) = c.answer(a, size) else { panic!() };
        assert!(matches!(c.answer(b, cut), Ok(Answer::Created { .. })), "seed {seed}");
        if stat.size == 94 {
            after_the_cut += 1;
            assert_eq!(c.getattr(a, file.ino).unwrap().size, 94, "seed {seed}");
            assert_eq!(c.read(a, fh, 0, 200).unwrap(), [2; 94][..], "seed {seed}");
        }
    }
    assert!(after_the_cut > 0 && marks::count("created_file_is_there") > 0);
}

/// A directory goes while a program looks into it: that is empty then, as on a local file system.
#[test]
fn a_name_in_a_directory_that_goes_meanwhile_is_not_there() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    c.mkdir(a, 1, "d").unwrap();
    let dir = c.walk(b, "d").unwrap();
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if to_client && frame.header.opcode == Opcode::MdsLookup as u16 {
            (frame.header.status, frame.body) = (-Errno::ESTALE.raw(), Bytes::new());
        }
        vec![frame]
    }));
    assert_eq!(c.call(b, Call::Lookup { parent: dir, name: name("x") }).map(drop), Err(Errno::ENOENT));
    assert!(marks::count("looked_up_in_removed") > 0);
}

/// A change of the mode changes the access list with it, for who makes it, too.
#[test]
fn an_access_list_that_is_cached_follows_the_mode() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (file, _) = c.create(a, 1, "f").unwrap();
    let entry =
        |tag: u16, bits: u16, id: u32| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
    let list = |owner: u16| {
        let none = u32::MAX;
        let entries =
            [entry(1, owner, none), entry(2, 6, 1000), entry(4, 4, none), entry(16, 6, none), entry(32, 4, none)];
        Bytes::from([&2_u32.to_le_bytes()[..], &entries.concat()].concat())
    };
    let acl = || name("system.posix_acl_access");
    c.call(a, Call::Setxattr { ino: file.ino, name: acl(), value: list(4), flags: 0 }).unwrap();
    let get = |c: &mut Cluster| c.call(a, Call::Getxattr { ino: file.ino, name: acl() });
    assert_eq!(get(&mut c), Ok(Answer::Data(list(4))));
    c.call(a, Call::Setattr { ino: file.ino, set: SetStat { mode: Some(0o664), ..SetStat::default() } }).unwrap();
    assert_eq!(get(&mut c), Ok(Answer::Data(list(6))));
}

/// Extended attributes that come when the file has others: another client's, whose lock has come and gone meanwhile, or one's own.
#[test]
fn extended_attributes_that_come_late_are_not_kept() {
    for own in [false, true] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (file, fh) = c.create(b, 1, "f").unwrap();
        c.close(b, fh).unwrap();
        let set = |value| Call::Setxattr { ino: file.ino, name: name("user.x"), value: name(value), flags: 0 };
        let get = || Call::Getxattr { ino: file.ino, name: name("user.x") };
        c.call(b, set("old")).unwrap();
        c.walk(a, "f").unwrap();
        // The answer waits for what follows the change: that to the cancel of the lock, or to one's own change.
        let behind = if own { Opcode::MdsReint } else { Opcode::LdlmCancel };
        let mut held = Vec::new();
        c.tamper = Some(Box::new(move |to_client, at, frame| {
            let is = |opcode| to_client && at == a && frame.header.opcode == opcode as u16;
            if is(Opcode::MdsGetxattr) {
                held.push(frame);
                return Vec::new();
            }
            let released = if is(behind) { core::mem::take(&mut held) } else { Vec::new() };
            core::iter::once(frame).chain(released).collect()
        }));
        let late = c.send(a, get());
        c.run();
        assert!(!c.answered(a, late));
        c.call(if own { a } else { b }, set("new")).unwrap();
        c.pass(Duration::from_secs(2));
        assert!(c.answered(a, late));
        c.tamper = None;
        assert_eq!(c.call(a, get()), Ok(Answer::Data(name("new"))), "own: {own}");
    }
}

/// An answer to a read that is overtaken by a write of the same bytes: the cache must not take it for what the file holds, although
/// what was written has left the cache meanwhile.
#[test]
fn bytes_that_were_read_before_a_write_do_not_come_back_after_it() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(client::Options { max_cached: 1 << 20, max_read_ahead: 0, ..Cluster::options(1) });
    c.until(|c| c.nodes[a].mounted);
    let (_, fh) = c.create(a, 1, "f").unwrap();
    let (_, other) = c.create(a, 1, "other").unwrap();
    let sync = |c: &mut Cluster, fh| assert_eq!(c.call(a, Call::Fsync { fh }), Ok(Answer::Done));
    // What is written elsewhere takes the room of all that is clean.
    let crowd = |c: &mut Cluster| {
        c.write(a, other, 0, &vec![9; 3 << 20]).unwrap();
        sync(c, other);
    };
    c.write(a, fh, 0, &vec![1; 100_000]).unwrap();
    sync(&mut c, fh);
    crowd(&mut c);
    let late = Rc::new(Cell::new(true));
    let (is_late, mut held) = (Rc::clone(&late), Vec::new());
    c.tamper = Some(Box::new(move |to_client, _, frame| {
        let opcode = frame.header.opcode;
        match to_client {
            true if opcode == Opcode::ObjRead as u16 && is_late.get() => held.push(frame),
            true if opcode == Opcode::ObjWrite as u16 && !is_late.get() => {
                return held.drain(..).chain([frame]).collect();
            }
            _ => return vec![frame],
        }
        Vec::new()
    }));
    let read = c.send(a, Call::Read { fh, offset: 0, length: 4096 });
    c.write(a, fh, 0, &[2; 4096]).unwrap();
    sync(&mut c, fh);
    crowd(&mut c);
    assert!(!c.answered(a, read));
    late.set(false);
    c.write(a, other, 0, b"more").unwrap();
    sync(&mut c, other);
    c.answer(a, read).unwrap();
    assert_eq!(&c.read(a, fh, 0, 4096).unwrap()[..], [2; 4096]);
}

/// While a data lock goes back and the kernel drops its pages, a read that the lock still covers fills one of them again: that is
/// dropped, too, before another client may write.
#[test]
fn pages_that_are_read_while_their_lock_goes_back_are_dropped_again() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (file, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 8192]).unwrap();
    c.read(a, fh, 0, 4096).unwrap();
    c.walk(b, "f").unwrap();
    let theirs = c.open(b, file.ino, 2).unwrap();
    c.nodes[a].slow_kernel = true;
    let data = Bytes::from_static(&[2; 100]);
    let write = c.send(b, Call::Write { fh: theirs, ino: 0, offset: 0, data, write_back: false, kill_priv: false });
    let told = c.nodes[a].invalidations.len();
    let read = c.send(a, Call::Read { fh, offset: 0, length: 4096 });
    assert!(c.answered(a, read) && !c.answered(b, write));
    assert_eq!(c.answer(a, read), Ok(Answer::Data(Bytes::from_static(&[1; 4096]))));
    c.nodes[a].slow_kernel = false;
    assert_eq!(c.answer(b, write), Ok(Answer::Written(100)));
    let drops = |what: &Invalidation| matches!(what, Invalidation::Inode { ino, offset: 0, length: 4096.., .. } if *ino == file.ino);
    assert!(c.nodes[a].invalidations[told..].iter().any(drops), "{:?}", c.nodes[a].invalidations);
}

/// The kernel stores a write in its pages and waits for the answer. If it were told meanwhile that others have cut the file, it would put zeros
/// where that ends, and show them when the write is done: who asks for the size has it after the write. Otherwise nothing waits for it.
#[test]
fn the_size_of_a_file_that_others_have_cut_is_not_shown_beside_a_write() {
    for (cut, offset, shown, waits) in
        [(true, 8192, Some(12_288), true), (false, 8192, Some(200_000), false), (true, 200_000, Some(100), false)]
    {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (f, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &vec![1; 200_000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        if cut {
            let ino = c.lookup(b, 1, "f").unwrap().ino;
            c.call(b, Call::Setattr { ino, set: SetStat { size: Some(100), ..SetStat::default() } }).unwrap();
        }
        // The lock for the write is lost on its way, and comes when it is sent again.
        c.tamper = Some(Box::new(move |to_client, at, frame: Frame| {
            let lock = !to_client && at == a && frame.header.opcode == Opcode::LdlmEnqueue as u16;
            let writes = lock && frame.decode().is_ok_and(|asked: EnqueueReq| asked.mode == LockMode::Pw as i32);
            if writes { Vec::new() } else { vec![frame] }
        }));
        let data = Bytes::from(vec![2; 4096]);
        let write = Call::Write { fh, ino: f.ino, offset, data, write_back: false, kill_priv: false };
        let write = c.send(a, write);
        let ask = c.send(a, Call::Getattr { ino: f.ino, fh: None });
        c.pass(Duration::from_millis(100));
        assert_eq!((c.answered(a, write), c.answered(a, ask)), (!cut, !waits), "cut {cut}, write at {offset}");
        // By name it is not asked for.
        let named = c.lookup(a, 1, "f").unwrap();
        assert_eq!((named.size, named.cacheable), if waits { (12_288, false) } else { (named.size, named.cacheable) });
        c.tamper = None;
        c.cut(a);
        c.until(|c| c.answered(a, write) && c.answered(a, ask));
        let Ok(Answer::Attr(stat)) = c.answer(a, ask) else { panic!("no attributes") };
        assert!(shown.is_none_or(|size| size == stat.size), "cut {cut}, write at {offset}: {stat:?}");
        assert_eq!(c.read(a, fh, offset, 4096).unwrap()[..], [2; 4096]);
    }
    assert!(marks::count("size_shown_beside_a_write") > 0 && marks::count("size_asked_beside_a_write") > 0);
}

/// A small file that grows has left its metadata target, and the answer to that is lost. Attributes bring the new layout before it comes
/// again: the file is as long as it was.
#[test]
fn a_file_that_has_left_is_as_long_as_it_was_before_its_client_is_told() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 60_000]).unwrap();
    let leave = std::cell::Cell::new(None);
    c.tamper = Some(Box::new(move |to_client, at, frame: Frame| {
        let reint = at == a && frame.header.opcode == Opcode::MdsReint as u16;
        let leaves = |asked: ReintReq| matches!(asked.op, Some(Reint::Setlayout(_)));
        if reint && !to_client && frame.decode().is_ok_and(leaves) {
            leave.set(Some(frame.header.xid));
        }
        if to_client && at == a && leave.get() == Some(frame.header.xid) { Vec::new() } else { vec![frame] }
    }));
    let data = Bytes::from(vec![2; 4096]);
    let write = Call::Write { fh, ino: f.ino, offset: 69_632, data, write_back: false, kill_priv: false };
    let write = c.send(a, write);
    c.pass(Duration::from_millis(100));
    let Ok(Answer::Opened { .. }) = c.call(a, Call::Open { ino: f.ino, flags: 2 }) else { panic!("no open file") };
    assert_eq!((c.getattr(a, f.ino).unwrap().size, c.answered(a, write)), (60_000, false));
    c.tamper = None;
    c.cut(a);
    c.until(|c| c.answered(a, write));
    assert_eq!(c.getattr(a, f.ino).unwrap().size, 73_728);
    let ino = c.lookup(b, 1, "f").unwrap().ino;
    assert_eq!(c.getattr(b, ino).unwrap().size, 73_728);
}
