//! Names and what they lead to.

use super::*;
use crate::ops::open::flags as o;
use proto::connect::LINK_MAX;

#[test]
fn objects_come_are_found_and_go() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(dir, "file");
    w.create(dir, "link", S_IFLNK).unwrap();
    let attr = w.lookup(dir, "file").unwrap();
    assert_eq!((attr.fid, attr.nlink, attr.mode, attr.size), (file, 1, S_IFREG | 0o644, 0));
    assert!(attr.layout.is_some_and(|layout| layout.resident));
    assert_eq!(w.lookup(dir, "..").unwrap().fid, Fid::ROOT);
    assert_eq!(w.lookup(Fid::ROOT, "..").unwrap().fid, Fid::ROOT);
    assert_eq!(w.lookup(dir, ".").unwrap().fid, dir);
    assert_eq!(w.lookup(dir, "nothing"), None);
    assert_eq!(w.names(dir), ["file", "link"]);
    let link = w.lookup(dir, "link").unwrap();
    let request = GetattrReq { fid: link.fid, ..GetattrReq::default() };
    let rep: ObjectRep = w.call(0, Opcode::MdsGetattr, &request).unwrap();
    assert_eq!((&rep.symlink[..], link.size), (&b"target"[..], 6));
    assert_eq!(w.getattr(Fid::ROOT).unwrap().nlink, 3);
    w.check();

    assert_eq!(w.rmdir(Fid::ROOT, "dir"), Err(Errno::ENOTEMPTY));
    assert_eq!(w.rmdir(dir, "file"), Err(Errno::ENOTDIR));
    assert_eq!(w.unlink(Fid::ROOT, "dir"), Err(Errno::EISDIR));
    assert_eq!(w.unlink(dir, "nothing"), Err(Errno::ENOENT));
    assert_eq!(w.unlink(dir, "file").unwrap().nlink, 0);
    assert_eq!(w.unlink(dir, "link").unwrap().nlink, 0);
    assert_eq!(w.rmdir(Fid::ROOT, "dir").unwrap().nlink, 0);
    assert_eq!(w.getattr(file), Err(Errno::ESTALE));
    assert_eq!(w.create(dir, "more", S_IFREG), Err(Errno::ESTALE));
    // The root, and `.lustre` with its two directories.
    assert_eq!((w.records::<schema::Inode>(), w.records::<schema::Oi>(), w.records::<schema::Entry>()), (4, 4, 2));
    w.check();
}

#[test]
fn names_that_cannot_be_are_refused_in_the_right_order() {
    let mut w = World::new();
    let long = "x".repeat(256);
    assert_eq!(w.create(Fid::ROOT, &long, S_IFREG), Err(Errno::ENAMETOOLONG));
    assert_eq!(w.unlink(Fid::ROOT, &long), Err(Errno::ENAMETOOLONG));
    w.mknod(Fid::ROOT, &long[..255]);
    assert_eq!(w.create(Fid::ROOT, &long[..255], S_IFDIR), Err(Errno::EEXIST));
    assert_eq!(w.create(Fid::ROOT, "a/b", S_IFREG), Err(Errno::EINVAL));
    assert_eq!(w.create(Fid::ROOT, "..", S_IFDIR), Err(Errno::EEXIST));
    assert_eq!(w.rmdir(Fid::ROOT, "."), Err(Errno::EINVAL));
    assert_eq!(w.rmdir(Fid::ROOT, ".."), Err(Errno::ENOTEMPTY));
    let file = w.mknod(Fid::ROOT, "file");
    assert_eq!(w.create(file, "below", S_IFREG), Err(Errno::ENOTDIR));
    assert_eq!(w.lookup_as(0, cred(0), file, "below"), Err(Errno::ENOTDIR));
    let op = CreateOp { parent: Fid::ROOT, name: bytes("l"), fid: w.new_fid(0), mode: S_IFLNK, ..CreateOp::default() };
    assert_eq!(w.reint(Reint::Create(op.clone())), Err(Errno::ENOENT));
    let long = CreateOp { symlink: Bytes::from(vec![b'x'; 4096]), ..op };
    assert_eq!(w.reint(Reint::Create(long)), Err(Errno::ENAMETOOLONG));
    w.check();
}

#[test]
fn an_object_has_as_many_names_as_links() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(Fid::ROOT, "a");
    assert_eq!(w.link(file, dir, "b").unwrap().nlink, 2);
    assert_eq!(w.link(file, dir, "b"), Err(Errno::EEXIST));
    assert_eq!(w.link(dir, dir, "c"), Err(Errno::EPERM));
    assert_eq!(w.link(Fid::new(Fid::SEQ_FIRST, 999), dir, "c"), Err(Errno::ESTALE));
    w.check();
    let request = Fid2pathReq { fid: file, cred: Some(cred(0)) };
    let rep: Fid2pathRep = w.call(0, Opcode::MdsFid2path, &request).unwrap();
    assert_eq!(rep.paths, [bytes("a"), bytes("dir/b")]);
    assert_eq!(w.unlink(Fid::ROOT, "a").unwrap().nlink, 1);
    assert_eq!(w.getattr(file).unwrap().nlink, 1);
    // More names than the linkEA holds.
    for i in 0..200 {
        w.link(file, dir, &format!("a rather long name for a link {i}")).unwrap();
    }
    assert_eq!(w.getattr(file).unwrap().nlink, 201);
    w.check();
    for i in 0..200 {
        w.unlink(dir, &format!("a rather long name for a link {i}")).unwrap();
    }
    assert_eq!(w.unlink(dir, "b").unwrap().nlink, 0);
    w.check();
}

#[test]
fn a_rename_moves_replaces_and_exchanges() {
    let mut w = World::new();
    let (a, b) = (w.mkdir(Fid::ROOT, "a"), w.mkdir(Fid::ROOT, "b"));
    let file = w.mknod(a, "file");
    let sub = w.mkdir(a, "sub");
    let rep = w.rename((a, "file"), (b, "moved"), 0).unwrap();
    assert_eq!(rep.attr.unwrap().fid, file);
    assert_eq!((rep.parent_attr.unwrap().fid, rep.source_parent_attr.unwrap().fid), (b, a));
    assert_eq!((w.lookup(a, "file"), w.lookup(b, "moved").unwrap().fid), (None, file));
    w.check();

    w.rename((a, "sub"), (b, "sub"), 0).unwrap();
    assert_eq!(w.lookup(sub, "..").unwrap().fid, b);
    assert_eq!((w.getattr(a).unwrap().nlink, w.getattr(b).unwrap().nlink), (2, 3));
    w.check();

    let other = w.mknod(b, "other");
    assert_eq!(w.rename((b, "moved"), (b, "other"), 1), Err(Errno::EEXIST));
    let rep = w.rename((b, "moved"), (b, "other"), 0).unwrap();
    assert_eq!(rep.replaced_attr.map(|attr| (attr.fid, attr.nlink)), Some((other, 0)));
    assert_eq!(w.getattr(other), Err(Errno::ESTALE));
    w.check();

    assert_eq!(w.rename((b, "other"), (Fid::ROOT, "none"), 2), Err(Errno::ENOENT));
    w.rename((b, "other"), (Fid::ROOT, "a"), 2).unwrap();
    assert_eq!((w.lookup(b, "other").unwrap().fid, w.lookup(Fid::ROOT, "a").unwrap().fid), (a, file));
    assert_eq!(w.lookup(a, "..").unwrap().fid, b);
    assert_eq!((w.getattr(Fid::ROOT).unwrap().nlink, w.getattr(b).unwrap().nlink), (3, 4));
    w.check();
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let mut w = World::new();
    let (a, b) = (w.mkdir(Fid::ROOT, "a"), w.mkdir(Fid::ROOT, "b"));
    let (file, sub) = (w.mknod(a, "file"), w.mkdir(a, "sub"));
    let rep = w.rename((a, "file"), (b, "file"), 4).unwrap();
    let left = rep.whiteout_attr.unwrap();
    assert_eq!((left.mode, left.rdev, left.nlink, left.uid), (rules::mode::S_IFCHR, 0, 1, 0));
    assert_eq!((w.lookup(a, "file").unwrap(), w.lookup(b, "file").unwrap().fid), (left, file));
    w.check();
    // A directory moves away, and the whiteout counts as none.
    w.rename((a, "sub"), (b, "sub"), 5).unwrap();
    assert_eq!((w.getattr(a).unwrap().nlink, w.getattr(b).unwrap().nlink), (2, 3));
    assert_eq!((w.names(a), w.lookup(sub, "..").unwrap().fid), (vec!["file".to_owned(), "sub".to_owned()], b));
    // Over a whiteout, and a whiteout itself, in one directory.
    w.mknod(a, "new");
    let rep = w.rename((a, "new"), (a, "file"), 4).unwrap();
    assert_eq!((rep.replaced_attr.unwrap().nlink, rep.whiteout_attr.is_some()), (0, true));
    assert_eq!(w.names(a), ["file", "new", "sub"]);
    w.check();
    assert_eq!(w.rename((b, "file"), (a, "file"), 5), Err(Errno::EEXIST));
    assert_eq!(w.rename((b, "file"), (a, "file"), 6), Err(Errno::EINVAL));
    assert_eq!(w.rename((b, "none"), (a, "x"), 4), Err(Errno::ENOENT));
    // Two names of one object: nothing happens.
    w.link(file, b, "link").unwrap();
    assert_eq!(w.rename((b, "file"), (b, "link"), 4).unwrap().whiteout_attr, None);
    assert_eq!(w.lookup(b, "file").unwrap().fid, file);
    w.sync();
    w.check();
}

#[test]
fn a_whiteout_needs_a_fid_that_is_its_makers() {
    let mut w = World::new();
    let other = w.connect();
    let used = w.mknod(Fid::ROOT, "f");
    let foreign = w.new_fid(other);
    for whiteout in [None, Some(used), Some(foreign), Some(Fid::ROOT)] {
        let op = RenameOp {
            source_parent: Fid::ROOT,
            source_name: bytes("f"),
            target_parent: Fid::ROOT,
            target_name: bytes("g"),
            flags: 4,
            reported: None,
            whiteout,
        };
        let plain = RenameOp { flags: 0, ..op.clone() };
        assert_eq!(w.reint(Reint::Rename(op)), Err(Errno::EPROTO), "{whiteout:?}");
        assert!(whiteout.is_none() || w.reint(Reint::Rename(plain)) == Err(Errno::EPROTO));
        assert_eq!(w.names(Fid::ROOT), ["f"]);
    }
    w.check();
}

#[test]
fn a_rename_refuses_what_makes_no_tree() {
    let mut w = World::new();
    let a = w.mkdir(Fid::ROOT, "a");
    let b = w.mkdir(a, "b");
    let c = w.mkdir(b, "c");
    w.mknod(Fid::ROOT, "file");
    assert_eq!(w.rename((Fid::ROOT, "a"), (c, "a"), 0), Err(Errno::EINVAL));
    assert_eq!(w.rename((Fid::ROOT, "a"), (a, "x"), 0), Err(Errno::EINVAL));
    assert_eq!(w.rename((b, "c"), (Fid::ROOT, "a"), 0), Err(Errno::ENOTEMPTY));
    assert_eq!(w.rename((b, "c"), (Fid::ROOT, "a"), 2), Err(Errno::EINVAL));
    assert_eq!(w.rename((Fid::ROOT, "a"), (Fid::ROOT, "file"), 0), Err(Errno::ENOTDIR));
    assert_eq!(w.rename((Fid::ROOT, "file"), (Fid::ROOT, "a"), 0), Err(Errno::EISDIR));
    assert_eq!(w.rename((Fid::ROOT, "none"), (Fid::ROOT, "a"), 0), Err(Errno::ENOENT));
    assert_eq!(w.rename((Fid::ROOT, "file"), (Fid::ROOT, "x"), 8), Err(Errno::EINVAL));
    assert_eq!(w.rename((Fid::ROOT, "file"), (Fid::ROOT, "x"), 3), Err(Errno::EINVAL));
    let full = w.mkdir(Fid::ROOT, "full");
    w.mknod(full, "x");
    w.mkdir(Fid::ROOT, "empty");
    assert_eq!(w.rename((Fid::ROOT, "empty"), (Fid::ROOT, "full"), 0), Err(Errno::ENOTEMPTY));
    assert!(w.rename((Fid::ROOT, "full"), (Fid::ROOT, "empty"), 0).is_ok());
    // Two names of one object: nothing happens, and there is nothing to do again after a crash.
    let file = w.lookup(Fid::ROOT, "file").unwrap().fid;
    w.link(file, Fid::ROOT, "file2").unwrap();
    let kept = w.clients[0].kept.len();
    assert!(w.rename((Fid::ROOT, "file"), (Fid::ROOT, "file2"), 0).is_ok());
    assert_eq!(w.clients[0].kept.len(), kept);
    assert_eq!(w.names(Fid::ROOT), ["a", "empty", "file", "file2"]);
    w.check();
}

#[test]
fn a_listing_goes_by_cookies_that_stay() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    for i in 0..300 {
        w.mknod(dir, &format!("f{i:03}"));
    }
    let all = w.readdir(dir, false, 1000);
    assert_eq!(all.len(), 300);
    assert!(all.windows(2).all(|pair| pair[0].cookie < pair[1].cookie) && all[0].cookie >= 16);
    assert!(all.iter().all(|entry| entry.kind == 8 && entry.attr.is_none()));
    let plus = w.readdir(dir, true, 5000);
    assert!(plus.iter().zip(&all).all(|(a, b)| a.name == b.name && a.attr.as_ref().is_some_and(|x| x.fid == b.fid)));
    for entry in all.iter().step_by(2) {
        w.unlink(dir, core::str::from_utf8(&entry.name).unwrap()).unwrap();
    }
    let left: Vec<u64> = w.readdir(dir, false, 1 << 16).iter().map(|entry| entry.cookie).collect();
    let expected: Vec<u64> = all.iter().skip(1).step_by(2).map(|entry| entry.cookie).collect();
    assert_eq!(left, expected);
    // By another layout than the directory has.
    let request = ReaddirReq { fid: dir, max_bytes: 1000, cred: Some(cred(0)), layout: 1, ..ReaddirReq::default() };
    assert_eq!(w.call::<ReaddirRep>(0, Opcode::MdsReaddir, &request), Err(Errno::EREMCHG));
    assert!(stdx::marks::count("mdt.listed_by_other_layout") > 0);
    // Also from a medium that has forgotten nothing, by a server that remembers nothing.
    w.sync();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    assert_eq!(w.readdir(dir, true, 3000).len(), 150);
    assert_eq!(w.create(dir, core::str::from_utf8(&all[1].name).unwrap(), S_IFREG), Err(Errno::EEXIST));
    w.mknod(dir, core::str::from_utf8(&all[0].name).unwrap());
    w.check();
}

#[test]
fn numbers_of_inodes_lie_together_by_directory() {
    let mut w = World::new();
    let (a, b) = (w.mkdir(Fid::ROOT, "a"), w.mkdir(Fid::ROOT, "b"));
    for i in 0..10 {
        w.mknod(a, &format!("{i}"));
        w.mknod(b, &format!("{i}"));
    }
    w.sync();
    let snapshot = Snapshot::of_engine(&w.host.engine).unwrap();
    let mut regions: Vec<u64> = Vec::new();
    for (key, body) in snapshot.range(&schema::Inode::all()) {
        let inode = schema::Inode::decode_record(body).unwrap();
        if inode.is_file() {
            regions.push(schema::Inode::parse_key(key).unwrap() >> 20);
        }
    }
    assert_eq!(regions, [[2; 10], [3; 10]].concat());
}

#[test]
fn a_fid_is_used_once_and_only_by_its_client() {
    let mut w = World::new();
    let other = w.connect();
    let make = |w: &mut World, at: usize, fid: Fid, name: &str| {
        let op = CreateOp { parent: Fid::ROOT, name: bytes(name), fid, mode: S_IFREG | 0o644, ..CreateOp::default() };
        w.reint_as(at, cred(0), WantLocks::default(), Reint::Create(op)).map(|_| ())
    };
    let fid = w.new_fid(0);
    assert_eq!(make(&mut w, other, fid, "theirs"), Err(Errno::EPROTO));
    assert_eq!(make(&mut w, 0, Fid::new(Fid::SEQ_FIRST + 900, 1), "nobodys"), Err(Errno::EPROTO));
    assert_eq!(make(&mut w, 0, Fid::ROOT, "root"), Err(Errno::EPROTO));
    assert_eq!(make(&mut w, 0, fid, "mine"), Ok(()));
    assert_eq!(make(&mut w, 0, fid, "again"), Err(Errno::EPROTO));
    w.unlink(Fid::ROOT, "mine").unwrap();
    assert_eq!(make(&mut w, 0, fid, "again"), Err(Errno::EPROTO), "also when the object is gone");
    assert_ne!(w.clients[0].seq, w.clients[other].seq);
    w.check();
}

#[test]
fn two_names_with_one_hash_live_side_by_side() {
    // Chains cannot be made by hand, so the records are: the hash is only looked at.
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let first = w.mknod(dir, "first");
    w.sync();
    let snapshot = Snapshot::of_engine(&w.host.engine).unwrap();
    let all = schema::Entry::all();
    let entries = snapshot.range(&all);
    let found = entries
        .filter_map(|(key, _)| schema::Entry::parse_key(key))
        .find(|key| key.cookie == schema::first_cookie(&schema::Header::default(), b"first"));
    let key = found.unwrap();
    let mut batch = store::Batch::new();
    // Another name sits where "first" would be, and "first" behind it.
    let entry = |name: &str, fid| schema::Entry { name: bytes(name), fid: Some(fid), kind: 8, ino: 0, mdt: None };
    batch.put(schema::Entry::key(&key), entry("stranger", first).encode_record());
    let next = schema::EntryKey { cookie: key.cookie + 1, ..key };
    batch.put(schema::Entry::key(&next), entry("first", first).encode_record());
    let group = w.host.engine.last_group().unwrap() + 1;
    w.host.engine.commit(group, &batch.seal(&schema::formats())).unwrap();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    assert_eq!(w.lookup(dir, "first").unwrap().fid, first);
    assert_eq!(w.create(dir, "first", S_IFREG), Err(Errno::EEXIST));
    w.link(first, Fid::ROOT, "keep").unwrap();
    w.unlink(dir, "first").unwrap();
    assert_eq!(w.lookup(dir, "first"), None);
    w.mknod(dir, "first");
    assert_eq!(w.readdir(dir, false, 1000).len(), 2);
}

impl World {
    /// Says that a client that was reconnected after a crash has nothing more to replay.
    pub(crate) fn recovered(&mut self, at: usize) {
        self.all_recovered(&[at]);
    }

    /// The same of several clients.
    pub(crate) fn all_recovered(&mut self, all: &[usize]) {
        for flag in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
            let say = |at: &usize| (*at, self.send(*at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flag));
            let said: Vec<(usize, u64)> = all.iter().map(say).collect();
            for (at, xid) in said {
                let reply = self.wait(at, xid).expect("recovery ends");
                assert_eq!(reply.header.status, 0);
            }
        }
    }
}

/// So many links are made by nobody in a test: the record says that they were.
#[test]
fn links_and_directories_in_a_directory_have_a_limit() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    let dir = w.mkdir(Fid::ROOT, "dir");
    let moved = w.mkdir(Fid::ROOT, "moved");
    w.sync();
    for fid in [file, dir] {
        w.edit_inode(fid, |inode| inode.nlink = LINK_MAX - 1);
    }
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    assert_eq!(w.link(file, Fid::ROOT, "last").unwrap().nlink, LINK_MAX);
    assert_eq!(w.link(file, Fid::ROOT, "more"), Err(Errno::EMLINK));
    let last = w.mkdir(dir, "last");
    assert_eq!(w.getattr(dir).unwrap().nlink, LINK_MAX);
    assert_eq!(w.create(dir, "more", S_IFDIR), Err(Errno::EMLINK));
    assert_eq!(w.rename((Fid::ROOT, "moved"), (dir, "moved"), 0).map(drop), Err(Errno::EMLINK));
    assert!(w.create(dir, "file", S_IFREG).is_ok(), "a file adds no link to its directory");
    assert_eq!(w.rmdir(dir, "last").map(|attr| attr.fid), Ok(last));
    assert!(w.rename((Fid::ROOT, "moved"), (dir, "moved"), 0).is_ok());
    assert_eq!(w.getattr(moved).unwrap().nlink, 2);
}

#[test]
fn a_client_can_have_so_many_files_open_and_no_more() {
    let mut w = World::new();
    let other = w.connect();
    let now = w.now;
    w.target().set_param(now, "mdt.fs-MDT0000.max_open_files", "2").unwrap();
    let first = w.open(0, Fid::ROOT, "a", o::CREAT | 2).unwrap();
    w.open(0, Fid::ROOT, "a", 0).unwrap();
    assert_eq!(w.open(0, Fid::ROOT, "a", 0).map(drop), Err(Errno::EMFILE));
    assert_eq!(w.open(0, Fid::ROOT, "b", o::CREAT | 2).map(drop), Err(Errno::EMFILE));
    assert_eq!(w.names(Fid::ROOT), ["a"], "nothing was made");
    w.open(other, Fid::ROOT, "a", 0).unwrap();
    w.close(0, first.attr.unwrap().fid, first.handle).unwrap();
    w.open(0, Fid::ROOT, "b", o::CREAT | 2).unwrap();
    w.check();
}

/// A directory with names of which some records are lost, seen after a restart. Its FID, and the line that says so.
fn directory_that_lacks(w: &mut World, names: usize, lost: &[&str]) -> (Fid, String) {
    let dir = w.mkdir(Fid::ROOT, "dir");
    for i in 0..names {
        w.mknod(dir, &format!("file{i:03}"));
    }
    for name in lost {
        w.lose_entry(dir, name);
    }
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    (dir, format!("directory {dir} lacks {} of {names} names: their records are lost; run lfsck", lost.len()))
}

#[test]
fn a_listing_that_lacks_names_shows_the_others_and_then_fails() {
    for plus in [false, true] {
        for (names, max_bytes) in [(3, 1 << 16), (40, 512), (300, 4096)] {
            let mut w = World::new();
            let (dir, line) = directory_that_lacks(&mut w, names, &["file000", "file001"]);
            let (listed, end) = w.listing(dir, plus, max_bytes);
            assert_eq!((listed.len(), end), (names - 2, Err(Errno::EIO)), "plus {plus}, {names} names");
            assert_eq!(w.log, [line]);
        }
    }
}

/// A count that would fall below nothing is wrong, and that is said.
#[test]
fn counts_that_are_too_small_are_told_of() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(dir, "file");
    let subs = ["a", "b", "c"].map(|name| w.mkdir(dir, name));
    w.mkdir(subs[0], "deep");
    w.sync();
    w.edit_inode(dir, |inode| (inode.dir.entries, inode.nlink) = (0, 2));
    w.edit_inode(file, |inode| inode.nlink = 0);
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    w.log.clear();
    w.unlink(dir, "file").unwrap();
    assert_eq!(w.lookup(dir, "file"), None);
    for what in ["counts fewer names than it has", "has a name and counts none"] {
        assert!(w.log.iter().any(|line| line.contains(what)), "{what}: {:?}", w.log);
    }
    // Directories below it: removed, replaced, exchanged for a file.
    let what = "has 2 links and loses a directory below it";
    let told = |w: &mut World| core::mem::take(&mut w.log).iter().filter(|line| line.contains(what)).count();
    told(&mut w);
    w.rmdir(dir, "c").unwrap();
    assert_eq!((told(&mut w), w.getattr(dir).unwrap().nlink), (1, 2));
    w.rename((subs[0], "deep"), (dir, "b"), 0).unwrap();
    assert_eq!((told(&mut w), w.getattr(dir).unwrap().nlink), (0, 2), "one was replaced, one has come");
    w.rename((dir, "b"), (Fid::ROOT, "away"), 0).unwrap();
    assert_eq!((told(&mut w), w.getattr(dir).unwrap().nlink), (1, 2));
    w.mknod(Fid::ROOT, "other");
    w.rename((dir, "a"), (Fid::ROOT, "other"), 2).unwrap();
    assert_eq!((told(&mut w), w.getattr(dir).unwrap().nlink), (1, 2), "exchanged for a file");
}

#[test]
fn a_directory_that_lost_all_its_names_is_neither_empty_nor_removed() {
    let mut w = World::new();
    let (dir, line) = directory_that_lacks(&mut w, 1, &["file000"]);
    let (listed, end) = w.listing(dir, false, 4096);
    assert_eq!((listed.len(), end), (0, Err(Errno::EIO)));
    assert_eq!(w.rmdir(Fid::ROOT, "dir"), Err(Errno::EIO));
    assert_eq!(w.log, [line.clone(), line]);
}

#[test]
fn a_listing_beside_changes_and_other_listings_is_no_loss() {
    let mut w = World::new();
    let other = w.connect();
    let dir = w.mkdir(Fid::ROOT, "dir");
    for i in 0..100 {
        w.mknod(dir, &format!("file{i:03}"));
    }
    // Names go that were listed, and others come; each page is counted in the directory as it was then.
    let (mut after, mut pages) = (0, 0);
    loop {
        let page = w.page(0, dir, after, false, 1024).expect("no loss");
        w.page(other, dir, after, true, 512).expect("no loss");
        pages += 1;
        if page.end {
            break;
        }
        after = page.entries.last().expect("it goes on").cookie;
        w.unlink(dir, std::str::from_utf8(&page.entries[0].name).unwrap()).unwrap();
        w.mknod(dir, &format!("more{pages}"));
    }
    assert!(pages > 3);
    // Two clients at once, page by page.
    let mut after = 0;
    while let Some(last) = w.page(0, dir, after, false, 1024).expect("no loss").entries.last() {
        w.page(other, dir, after, false, 1024).expect("no loss");
        after = last.cookie;
    }
    w.check();
}

#[test]
fn operations_are_counted_of_the_target_and_of_each_client() {
    let mut w = World::new();
    let other = w.connect();
    let dir = w.mkdir(Fid::ROOT, "dir");
    w.mknod(dir, "f");
    assert_eq!(w.create(dir, "f", S_IFREG), Err(Errno::EEXIST));
    w.create_as(other, cred(0), dir, "g", S_IFREG).unwrap();
    w.getattr(dir).unwrap();
    w.unlink(dir, "f").unwrap();
    fn counts(w: &mut World, pattern: &str) -> Vec<Vec<String>> {
        let lines = |text: &str| -> Vec<String> {
            let operations = text.lines().filter(|line| line.contains(" samples [usecs] "));
            operations.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
        };
        w.target().get_params(pattern).iter().map(|(_, text)| lines(text)).collect()
    }
    assert_eq!(counts(&mut w, "mdt.*.md_stats"), [["getattr 1", "mknod 2", "unlink 1", "mkdir 1"]]);
    let each = counts(&mut w, "mdt.*.exports.*.stats");
    assert_eq!(each.len(), 2);
    assert!(each.contains(&vec!["mknod 1".to_owned()]), "{each:?}");

    let now = w.now;
    w.target().set_param(now, "mdt.fs-MDT0000.md_stats", "clear").unwrap();
    assert_eq!(counts(&mut w, "mdt.*.md_stats"), [Vec::<String>::new()]);
    assert_eq!(counts(&mut w, "mdt.*.exports.*.stats").concat().len(), 5, "those are cleared by themselves");
}

/// The clock of whoever asks stands still: every kind of change leaves the times of what it changes where they are.
#[test]
fn no_time_goes_back_for_a_slow_clock() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(dir, "file");
    w.mknod(dir, "other");
    w.mknod(dir, "victim");
    w.time_ns = 9_000_000;
    let all = valid::MODE | valid::MTIME | valid::MTIME_NOW;
    for fid in [Fid::ROOT, dir, file] {
        let op = SetattrOp { fid, valid: all, mode: 0o755, ..SetattrOp::default() };
        assert_eq!(w.setattr_as(cred(0), op).unwrap().mode & 0o7777, 0o755);
    }
    let then = |w: &mut World, fid| w.getattr(fid).map(|attr| (attr.mtime_ns, attr.ctime_ns)).unwrap();
    let times = [Fid::ROOT, dir, file].map(|fid| then(&mut w, fid));
    type Step<'a> = (&'a str, &'a dyn Fn(&mut World) -> Result<(), Errno>);
    let setxattr = |w: &mut World| {
        let op = SetxattrOp { fid: file, name: bytes("user.x"), value: bytes("v"), ..SetxattrOp::default() };
        w.reint(Reint::Setxattr(op)).map(drop)
    };
    let chmod = |w: &mut World| {
        let op = SetattrOp { fid: file, valid: all | valid::SIZE, mode: 0o600, ..SetattrOp::default() };
        w.setattr_as(cred(0), op).map(drop)
    };
    let steps: [Step<'_>; 10] = [
        ("create", &|w| w.create(dir, "new", S_IFREG).map(drop)),
        ("link", &|w| w.link(file, dir, "second").map(drop)),
        ("unlink", &|w| w.unlink(dir, "second").map(drop)),
        ("rename", &|w| w.rename((dir, "file"), (dir, "moved"), 0).map(drop)),
        ("rename over another", &|w| w.rename((dir, "moved"), (dir, "victim"), 0).map(drop)),
        ("exchange", &|w| w.rename((dir, "victim"), (dir, "other"), 2).map(drop)),
        ("setxattr", &setxattr),
        ("setattr", &chmod),
        ("an open that cuts", &|w| w.open(0, dir, "other", o::TRUNC | 2).map(drop)),
        ("rename of the directory", &|w| w.rename((Fid::ROOT, "dir"), (Fid::ROOT, "gone"), 0).map(drop)),
    ];
    for (what, step) in steps {
        w.time_ns = 5_000_000;
        assert_eq!(step(&mut w), Ok(()), "{what}");
        for (fid, (mtime_ns, ctime_ns)) in [Fid::ROOT, dir, file].into_iter().zip(times) {
            let now = then(&mut w, fid);
            assert!(now.0 >= mtime_ns && now.1 >= ctime_ns, "{what}: {now:?}, before it {mtime_ns} and {ctime_ns}");
        }
    }
    w.check();
}
