//! Open files, small data, locks.

use super::*;
use crate::ops::open::flags as o;
use proto::msg::{bits, disposition, valid};

pub(super) fn write(w: &mut World, at: usize, fid: Fid, offset: u64, data: &[u8], lock: u64) -> Result<Lvb, Errno> {
    w.time_ns += 1000;
    let lvb = Lvb { mtime_ns: w.time_ns, ctime_ns: w.time_ns, ..Lvb::default() };
    let object = ObjectId { fid, stripe: 0 };
    let request = WriteReq { object, offset, lock, lvb: Some(lvb), ..WriteReq::default() };
    let reply = w.ask(at, Opcode::ObjWrite, Tag(1), &request, Bytes::copy_from_slice(data))?;
    Ok(reply.decode::<ObjectStateRep>().unwrap().lvb.unwrap())
}

fn read(w: &mut World, at: usize, fid: Fid, offset: u64, length: u32) -> Result<Bytes, Errno> {
    let request = ReadReq { object: ObjectId { fid, stripe: 0 }, offset, length, ..ReadReq::default() };
    w.ask(at, Opcode::ObjRead, Tag(0), &request, Bytes::new()).map(|frame| frame.bulk)
}

pub(super) fn enqueue(w: &mut World, at: usize, fid: Fid, mode: LockMode, wanted: u64) -> EnqueueRep {
    let cookie = w.new_cookie(at);
    let request = EnqueueReq {
        resource: Resource::inode(fid),
        mode: mode as i32,
        cookie,
        policy: Some(Policy::Bits(wanted)),
        ..EnqueueReq::default()
    };
    w.call(at, Opcode::LdlmEnqueue, &request).unwrap()
}

#[test]
fn small_files_are_written_and_read_here() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    assert_eq!(read(&mut w, 0, file, 0, 100).unwrap(), "");
    let lvb = write(&mut w, 0, file, 5, b"hello", 0).unwrap();
    assert_eq!((lvb.size, lvb.blocks), (10, 1));
    assert_eq!(read(&mut w, 0, file, 3, 100).unwrap()[..], *b"\0\0hello");
    let attr = w.getattr(file).unwrap();
    assert_eq!((attr.size, attr.mtime_ns), (10, w.time_ns));
    w.check();
    let cut = |w: &mut World, size| {
        let op = SetattrOp { fid: file, valid: valid::SIZE, size, ..SetattrOp::default() };
        w.setattr_as(cred(0), op).map(|attr| (attr.size, attr.blocks))
    };
    assert_eq!(cut(&mut w, 7), Ok((7, 1)));
    assert_eq!(cut(&mut w, 2000), Ok((2000, 1)));
    assert_eq!(read(&mut w, 0, file, 5, 4).unwrap()[..], *b"he\0\0");
    assert_eq!(cut(&mut w, 2 << 20), Err(Errno::ENOSPC), "there is no object target");
    assert_eq!(write(&mut w, 0, file, 1 << 20, b"x", 0), Err(Errno::ENOSPC));
    w.check();
    let object = ObjectId { fid: file, stripe: 0 };
    let mut punch = |kind: PunchKind, start, length, keep_size| {
        let request = PunchReq { object, kind: kind as i32, start, length, keep_size, ..PunchReq::default() };
        let frame = w.ask(0, Opcode::ObjPunch, Tag(1), &request, Bytes::new()).unwrap();
        w.check();
        frame.decode::<ObjectStateRep>().unwrap().lvb.unwrap().size
    };
    assert_eq!(punch(PunchKind::Hole, 5, 1, true), 2000);
    assert_eq!(punch(PunchKind::Zero, 1000, 5000, true), 2000);
    assert_eq!(punch(PunchKind::Allocate, 1000, 5000, false), 6000);
    assert_eq!(punch(PunchKind::Truncate, 6, 0, false), 6);
    assert_eq!(read(&mut w, 0, file, 5, 9).unwrap()[..], *b"\0");
    w.unlink(Fid::ROOT, "file").unwrap();
    assert_eq!(read(&mut w, 0, file, 0, 1), Err(Errno::ESTALE));
    assert_eq!(w.records::<schema::SmallData>(), 0);
    w.check();
}

#[test]
fn an_open_creates_truncates_or_refuses() {
    let mut w = World::new();
    assert_eq!(w.open(0, Fid::ROOT, "file", 0).map(drop), Err(Errno::ENOENT));
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | o::EXCL | 2).unwrap();
    assert_eq!(rep.disposition, disposition::OPEN_CREATE | disposition::OPEN_OPEN);
    let fid = rep.attr.unwrap().fid;
    assert_eq!(w.open(0, Fid::ROOT, "file", o::CREAT | o::EXCL).map(drop), Err(Errno::EEXIST));
    write(&mut w, 0, fid, 0, b"data", 0).unwrap();
    let again = w.open(0, Fid::ROOT, "file", o::CREAT).unwrap();
    assert_eq!(again.disposition, disposition::LOOKUP_POS | disposition::OPEN_OPEN);
    assert_eq!(again.attr.map(|attr| attr.size), Some(4));
    assert_ne!(again.handle, rep.handle);
    let cut = w.open(0, Fid::ROOT, "file", o::TRUNC | 1).unwrap();
    assert_eq!(cut.attr.map(|attr| (attr.size, attr.mtime_ns, attr.ctime_ns)), Some((0, w.time_ns, w.time_ns)));
    assert_eq!(w.target().service().open_count(), 3);
    for handle in [rep.handle, again.handle, cut.handle] {
        assert!(w.close(0, fid, handle).is_ok());
        assert_eq!(w.close(0, fid, handle).map(drop), Err(Errno::ESTALE));
    }
    assert_eq!(w.target().service().open_count(), 0);
    w.mkdir(Fid::ROOT, "dir");
    assert_eq!(w.open(0, Fid::ROOT, "dir", o::CREAT).map(drop), Err(Errno::EISDIR));
    assert_eq!(w.open(0, Fid::ROOT, "file", o::DIRECTORY).map(drop), Err(Errno::ENOTDIR));
    w.check();
}

#[test]
fn a_file_without_a_name_lives_until_its_last_close() {
    let mut w = World::new();
    let other = w.connect();
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    let theirs = w.open(other, Fid::ROOT, "file", 0).unwrap();
    let fid = rep.attr.unwrap().fid;
    write(&mut w, 0, fid, 0, b"data", 0).unwrap();
    assert_eq!(w.unlink(Fid::ROOT, "file").unwrap().nlink, 0);
    w.check();
    assert_eq!(w.records::<schema::Orphan>(), 1);
    assert_eq!(read(&mut w, other, fid, 0, 9).unwrap(), "data");
    assert_eq!(w.link(fid, Fid::ROOT, "back"), Err(Errno::ENOENT));
    w.close(0, fid, rep.handle).unwrap();
    assert!(w.getattr(fid).is_ok());
    w.close(other, fid, theirs.handle).unwrap();
    assert_eq!(w.getattr(fid), Err(Errno::ESTALE));
    assert_eq!((w.records::<schema::Orphan>(), w.records::<schema::SmallData>()), (0, 0));
    w.check();
}

#[test]
fn who_cuts_a_file_takes_the_data_that_others_have_of_it() {
    let mut w = World::new();
    let other = w.connect();
    let file = w.mknod(Fid::ROOT, "file");
    write(&mut w, 0, file, 0, b"data", 0).unwrap();
    let mut held = Vec::new();
    for by_open in [true, false] {
        held.push(enqueue(&mut w, other, file, LockMode::Pr, bits::DOM).grant.unwrap().handle);
        if by_open {
            w.open(0, Fid::ROOT, "file", o::TRUNC | 1).unwrap();
        } else {
            w.setattr_as(cred(0), SetattrOp { fid: file, valid: valid::SIZE, ..SetattrOp::default() }).unwrap();
        }
        let called: Vec<u64> = w.clients[other].called_back.iter().map(|callback| callback.handle).collect();
        assert_eq!(called, held, "by an open: {by_open}");
    }
    w.check();
}

#[test]
fn a_sync_of_a_small_file_is_answered_when_it_is_durable() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    w.commits = false;
    write(&mut w, 0, file, 0, b"data", 0).unwrap();
    let request = ObjSyncReq { objects: vec![ObjectId { fid: file, stripe: 0 }], ..ObjSyncReq::default() };
    let xid = w.send(0, Opcode::ObjSync, Tag(0), &request, Bytes::new(), 0);
    assert!(w.wait(0, xid).is_none());
    w.commits = true;
    w.write_groups();
    assert_eq!(w.wait(0, xid).expect("an answer").header.status, 0);
}

#[test]
fn a_removed_directory_that_is_open_has_no_names_and_gets_none() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(Fid::ROOT, "file");
    let open = w.open(0, Fid::ROOT, "dir", o::DIRECTORY).unwrap();
    w.rmdir(Fid::ROOT, "dir").unwrap();
    assert_eq!(w.getattr(dir).map(|attr| attr.nlink), Ok(0));
    assert_eq!(w.lookup_as(0, cred(0), dir, ".."), Err(Errno::ENOENT));
    assert_eq!(w.create(dir, "new", S_IFREG), Err(Errno::ENOENT));
    assert_eq!(w.link(file, dir, "new"), Err(Errno::ENOENT));
    assert_eq!(w.rename((Fid::ROOT, "file"), (dir, "new"), 0), Err(Errno::ENOENT));
    w.close(0, dir, open.handle).unwrap();
    assert_eq!(w.getattr(dir), Err(Errno::ESTALE));
    w.check();
}

#[test]
fn many_closes_are_one_change() {
    let mut w = World::new();
    let other = w.connect();
    let mut closes = Vec::new();
    for name in ["a", "b", "both", "theirs"] {
        let rep = w.open(0, Fid::ROOT, name, o::CREAT | 2).unwrap();
        closes.push((rep.attr.unwrap().fid, rep.handle));
    }
    let [a, b, both, theirs] = closes[..] else { panic!() };
    let again = w.open(0, Fid::ROOT, "both", 0).unwrap().handle;
    let elsewhere = w.open(other, Fid::ROOT, "theirs", 0).unwrap().handle;
    for name in ["b", "both", "theirs"] {
        w.unlink(Fid::ROOT, name).unwrap();
    }
    assert_eq!(w.records::<schema::Orphan>(), 3);
    let unknown = (a.0, 12345);
    let batch = [a, a, unknown, b, both, (both.0, again), theirs, (theirs.0, elsewhere)];
    let results = w.close_all(0, &batch).unwrap();
    let stale = -Errno::ESTALE.raw();
    let statuses: Vec<i32> = results.iter().map(|result| result.status).collect();
    assert_eq!(statuses, [0, stale, stale, 0, 0, 0, 0, stale], "another client's handle is nobody's");
    let destroyed: Vec<bool> = results.iter().map(|result| result.destroyed).collect();
    assert_eq!(destroyed, [false, false, false, true, true, false, false, false]);
    assert_eq!(w.target().service().open_count(), 1);
    assert_eq!(w.records::<schema::Orphan>(), 1, "it is open elsewhere");
    assert!(w.close(other, theirs.0, elsewhere).unwrap().destroyed);
    assert_eq!(w.close_all(0, &[]).map(drop), Err(Errno::EINVAL));
    assert_eq!(w.close_all(0, &[a; proto::msg::CLOSES_MAX + 1]).map(drop), Err(Errno::EINVAL));
    w.check();
}

#[test]
fn an_ftruncate_needs_the_open_file_and_nothing_else() {
    let mut w = World::new();
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    let fid = rep.attr.unwrap().fid;
    let op = SetattrOp { fid, valid: valid::SIZE, size: 10, ..SetattrOp::default() };
    assert_eq!(w.setattr_as(cred(5), op.clone()), Err(Errno::EACCES));
    assert!(w.setattr_as(cred(5), SetattrOp { handle: rep.handle, ..op.clone() }).is_ok());
    assert_eq!(w.setattr_as(cred(5), SetattrOp { handle: rep.handle + 1, ..op }), Err(Errno::EACCES));
}

#[test]
fn a_name_made_in_a_directory_calls_back_its_entries_only() {
    let mut w = World::new();
    let other = w.connect();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let want = WantLocks { object_cookie: 21, entries_cookie: 22, data_cookie: 23, ..WantLocks::default() };
    let request = LookupReq { parent: Fid::ROOT, name: bytes("dir"), want: Some(want), cred: Some(cred(0)) };
    let rep: ObjectRep = w.call(0, Opcode::MdsLookup, &request).unwrap();
    let granted: Vec<(u64, Option<Policy>)> = rep.locks.iter().map(|lock| (lock.cookie, lock.policy)).collect();
    assert_eq!(granted, [(21, Some(Policy::Bits(bits::CACHE_DIRECTORY))), (22, Some(Policy::Bits(bits::UPDATE)))]);
    w.create_as(other, cred(0), dir, "theirs", S_IFREG).unwrap();
    assert_eq!(w.clients[0].called_back.iter().map(|callback| callback.cookie).collect::<Vec<u64>>(), [22]);
    w.check();
}

#[test]
fn locks_come_with_replies_and_are_called_back_by_others() {
    let mut w = World::new();
    let other = w.connect();
    let file = w.mknod(Fid::ROOT, "file");
    let want = WantLocks {
        object_cookie: 11,
        parent_cookie: 12,
        data_cookie: 13,
        data_write: true,
        entries_cookie: 14,
        exclusive: false,
    };
    let request = LookupReq { parent: Fid::ROOT, name: bytes("file"), want: Some(want), cred: Some(cred(0)) };
    let rep: ObjectRep = w.call(0, Opcode::MdsLookup, &request).unwrap();
    let granted: Vec<(u64, Option<Policy>)> = rep.locks.iter().map(|lock| (lock.cookie, lock.policy)).collect();
    assert_eq!(
        granted,
        [
            (12, Some(Policy::Bits(bits::UPDATE))),
            (11, Some(Policy::Bits(bits::CACHE))),
            (13, Some(Policy::Bits(bits::DOM)))
        ]
    );
    // Its own changes call nothing back.
    w.setattr_as(cred(0), SetattrOp { fid: file, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() }).unwrap();
    w.mknod(Fid::ROOT, "more");
    assert_eq!(w.clients[0].called_back, []);
    // Another's create takes the directory, its getattr asks how large the file is.
    w.create_as(other, cred(0), Fid::ROOT, "theirs", S_IFREG).unwrap();
    let cookies = |w: &World| w.clients[0].called_back.iter().map(|callback| callback.cookie).collect::<Vec<u64>>();
    assert_eq!(cookies(&w), [12]);
    w.clients[0].glimpse = Some(Lvb { size: 77, blocks: 1, mtime_ns: 5, ctime_ns: i64::MAX, atime_ns: 0 });
    let request = GetattrReq { fid: file, ..GetattrReq::default() };
    let rep: ObjectRep = w.call(other, Opcode::MdsGetattr, &request).unwrap();
    assert_eq!(rep.attr.map(|attr| (attr.size, attr.mtime_ns)), Some((77, 5)));
    let request = ObjGetattrReq { object: ObjectId { fid: file, stripe: 0 } };
    let rep: ObjectStateRep = w.call(other, Opcode::ObjGetattr, &request).unwrap();
    assert_eq!(rep.lvb.map(|lvb| (lvb.size, lvb.mtime_ns)), Some((77, 5)));
    // What its holder answered over an earlier connection, and has written since, is no answer.
    w.clients[0].glimpse_before = Some(Lvb { size: 7, blocks: 1, mtime_ns: 4, ctime_ns: i64::MAX, atime_ns: 0 });
    let rep: ObjectStateRep = w.call(other, Opcode::ObjGetattr, &request).unwrap();
    assert_eq!(rep.lvb.map(|lvb| (lvb.size, lvb.mtime_ns)), Some((77, 5)));
    w.clients[0].glimpse_before = None;
    assert_eq!(cookies(&w), [12]);
    // The kernel believes the size in the answer to a change of mode, and of a link.
    let ops = [
        Reint::Setattr(SetattrOp { fid: file, valid: valid::MODE, mode: 0o640, ..SetattrOp::default() }),
        Reint::Link(LinkOp { fid: file, parent: Fid::ROOT, name: bytes("link"), kind: 0 }),
    ];
    for op in ops {
        let rep = w.reint_as(other, cred(0), WantLocks::default(), op).unwrap();
        assert_eq!(rep.attr.map(|attr| (attr.size, attr.mtime_ns)), Some((77, 5)));
    }
    assert_eq!(cookies(&w), [12, 11]);
    // Reading takes the data lock.
    read(&mut w, other, file, 0, 10).unwrap();
    assert_eq!(cookies(&w), [12, 11, 13]);
    w.remove_as(other, cred(0), Fid::ROOT, "file", false).unwrap();
    assert_eq!(cookies(&w), [12, 11, 13]);
    w.check();
}

#[test]
fn data_comes_only_under_a_lock_that_is_held() {
    let mut w = World::new();
    let other = w.connect();
    let file = w.mknod(Fid::ROOT, "file");
    let mine = enqueue(&mut w, 0, file, LockMode::Pw, bits::DOM);
    let handle = mine.grant.unwrap().handle;
    assert_eq!(mine.lvb.map(|lvb| lvb.size), Some(0));
    write(&mut w, 0, file, 0, b"mine", handle).unwrap();
    assert_eq!(write(&mut w, other, file, 0, b"theirs", 999), Err(Errno::ESTALE));
    let theirs = enqueue(&mut w, other, file, LockMode::Pr, bits::DOM);
    assert_eq!(theirs.lvb.map(|lvb| lvb.size), Some(4));
    assert_eq!(write(&mut w, 0, file, 0, b"late", handle), Err(Errno::ESTALE), "it was called back");
    w.check();
}

/// The target starts again and knows so many object targets.
pub(super) fn knows_osts(w: &mut World, count: u32) {
    knows_osts_and_pools(w, count, &[]);
}

/// As [`knows_osts`], and these pools.
fn knows_osts_and_pools(w: &mut World, count: u32, pools: &[(&str, &[u32])]) {
    w.sync();
    let config = Config {
        version: 1,
        fsname: "fs".into(),
        targets: (0..count)
            .map(|i| TargetEntry { target: format!("fs-OST{i:04x}"), ..TargetEntry::default() })
            .collect(),
        pools: pools.iter().map(|&(name, osts)| Pool { name: name.into(), osts: osts.to_vec() }).collect(),
        ..Config::default()
    };
    let mut batch = store::Batch::new();
    let known = schema::session::KnownConfig { config: Some(config) };
    batch.put(schema::session::KnownConfig::key(&()), known.encode_record());
    let group = w.host.engine.last_group().unwrap() + 1;
    w.host.engine.commit(group, &batch.seal(&schema::formats())).unwrap();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
}

#[test]
fn a_listing_with_wide_layouts_keeps_to_its_length() {
    let mut w = World::new();
    knows_osts(&mut w, 200);
    let dir = w.mkdir(Fid::ROOT, "dir");
    let layout = Layout { stripe_size: 1 << 16, want_count: -1, want_first: -1, ..Layout::default() };
    let op =
        SetlayoutOp { fid: dir, kind: SetlayoutKind::Set as i32, layout: Some(layout), lvb: None, dir_default: None };
    w.reint(Reint::Setlayout(op)).unwrap();
    for i in 0..100 {
        w.mknod(dir, &format!("f{i:03}"));
    }
    let entries = w.readdir(dir, true, 10_000);
    assert_eq!(entries.len(), 100);
    // In each reply some have attributes, and the client asks for the others one by one.
    let with = entries.iter().filter(|entry| entry.attr.is_some()).count();
    assert!((10..90).contains(&with), "{with}");
}

#[test]
fn a_file_leaves_under_its_own_lock_and_remembers_where_to() {
    let mut w = World::new();
    knows_osts(&mut w, 3);

    let dir = w.mkdir(Fid::ROOT, "dir");
    let setlayout = |w: &mut World, fid, kind: SetlayoutKind, layout: Layout, lvb| {
        let op = SetlayoutOp { fid, kind: kind as i32, layout: Some(layout), lvb, dir_default: None };
        w.reint(Reint::Setlayout(op)).map(|rep| rep.attr.unwrap())
    };
    let wish = Layout { stripe_size: 1 << 16, want_count: 2, want_first: 1, ..Layout::default() };
    setlayout(&mut w, dir, SetlayoutKind::Set, wish.clone(), None).unwrap();
    let bad = Layout { want_first: 9, ..wish };
    assert_eq!(setlayout(&mut w, dir, SetlayoutKind::Set, bad, None), Err(Errno::EINVAL));
    let file = w.mknod(dir, "file");
    let layout = w.getattr(file).unwrap().layout.unwrap();
    assert_eq!((layout.stripe_size, &layout.osts[..], layout.resident), (1 << 16, &[1, 2][..], true));
    let sub = w.mkdir(dir, "sub");
    assert_eq!(w.getattr(sub).unwrap().layout, w.getattr(dir).unwrap().layout);
    write(&mut w, 0, file, 0, b"data", 0).unwrap();
    assert_eq!(write(&mut w, 0, file, 1 << 20, b"x", 0), Err(Errno::EFBIG));

    let left = Layout { resident: false, ..layout.clone() };
    let now = Lvb { size: 4, mtime_ns: 5, ctime_ns: i64::MAX, ..Lvb::default() };
    let leave = |w: &mut World, layout: Layout| setlayout(w, file, SetlayoutKind::Leave, layout, Some(now));
    assert_eq!(leave(&mut w, left.clone()), Err(Errno::ENOLCK));
    enqueue(&mut w, 0, file, LockMode::Ex, bits::DOM | bits::LAYOUT);
    let wrong = Layout { generation: 7, ..left.clone() };
    assert_eq!(leave(&mut w, wrong), Err(Errno::ESTALE));
    let attr = leave(&mut w, left).unwrap();
    assert_eq!(attr.layout, Some(Layout { resident: false, generation: layout.generation + 1, ..layout }));
    assert_eq!((attr.size, attr.blocks, attr.mtime_ns), (0, 0, 5));
    assert_eq!(w.records::<schema::SmallData>(), 0);
    assert_eq!(read(&mut w, 0, file, 0, 1), Err(Errno::ESTALE));
    w.check();

    // Its objects go through the destroy log, which waits for targets that are not there.
    w.unlink(dir, "file").unwrap();
    let snapshot = Snapshot::of_engine(&w.host.engine).unwrap();
    drop(snapshot);
    assert_eq!(w.records::<schema::DestroyLog>(), 1);
    // A file whose move was begun may have objects, one that never moved has none.
    let (begun, never) = (w.mknod(dir, "begun"), w.mknod(dir, "never"));
    enqueue(&mut w, 0, begun, LockMode::Ex, bits::DOM | bits::LAYOUT);
    w.settle();
    w.unlink(dir, "begun").unwrap();
    w.unlink(dir, "never").unwrap();
    assert_eq!(w.records::<schema::DestroyLog>(), 2);
    assert_eq!(w.getattr(never), Err(Errno::ESTALE));
}

#[test]
fn the_wish_of_a_move_says_which_pool_the_file_is_in() {
    let mut w = World::new();
    knows_osts_and_pools(&mut w, 3, &[("fast", &[0, 1]), ("empty", &[])]);
    let file = w.mknod(Fid::ROOT, "file");
    let mut generation = w.getattr(file).unwrap().layout.unwrap().generation;
    let mut moved = |pool: &str, osts: &[u32]| {
        let wish =
            Layout { want_first: -1, generation, pool: pool.to_owned(), osts: osts.to_vec(), ..Layout::default() };
        let op = SetlayoutOp {
            fid: file,
            kind: SetlayoutKind::Copy as i32,
            layout: Some(wish),
            lvb: None,
            dir_default: None,
        };
        let layout = w.reint(Reint::Setlayout(op))?.attr.unwrap().layout.unwrap();
        generation = layout.generation;
        Ok((layout.osts, layout.pool))
    };
    let is_in = |pool: &str, ost: u32| Ok((vec![ost], pool.to_owned()));
    assert_eq!(moved("fast", &[0]), is_in("fast", 0));
    assert_eq!(moved("", &[1]), is_in("fast", 1), "it stays in its pool");
    for (pool, osts) in [("slow", &[][..]), ("empty", &[]), ("fast", &[2])] {
        assert_eq!(moved(pool, osts), Err(Errno::EINVAL), "{pool}");
    }
    assert_eq!(moved("", &[2]), is_in("", 2), "the target is not in the pool");
    assert_eq!(moved("fast", &[0]), is_in("fast", 0));
    assert_eq!(moved("none", &[0]), is_in("", 0));
}

#[test]
fn no_file_moves_while_a_client_is_there_that_could_not_find_it() {
    let mut w = World::new();
    knows_osts_and_pools(&mut w, 3, &[]);
    let file = w.mknod(Fid::ROOT, "file");
    let generation = w.getattr(file).unwrap().layout.unwrap().generation;
    let older = w.connect();
    w.clients[older].features &= !proto::connect::features::LAYOUT_SWAP;
    w.reconnect(older);
    let wish = Layout { want_first: -1, generation, osts: vec![2], ..Layout::default() };
    let op =
        SetlayoutOp { fid: file, kind: SetlayoutKind::Copy as i32, layout: Some(wish), lvb: None, dir_default: None };
    assert_eq!(w.reint(Reint::Setlayout(op)), Err(Errno::EOPNOTSUPP));
    assert!(stdx::marks::count("client_too_old_to_migrate") > 0);
}

/// The target crashes, `at` comes back and nobody else.
fn only_this_one_comes_back(w: &mut World, at: usize) {
    w.commits = true;
    w.crash();
    w.reconnect(at);
    (0..4).for_each(|_| w.settle());
    w.recovered(at);
}

/// The answer to the lock says that objects may be written: from then on a crash must not forget it.
#[test]
fn a_move_begins_when_a_crash_cannot_forget_it() {
    const MOVES: u64 = bits::DOM | bits::LAYOUT;
    let mut w = World::new();
    knows_osts(&mut w, 1);
    let mover = w.connect();
    let files: Vec<Fid> = (0..6).map(|i| w.mknod(Fid::ROOT, &format!("f{i}"))).collect();
    w.sync();

    // The first of a range waits for the note, as does the second while the note is not durable.
    w.commits = false;
    let send = |w: &mut World, fid| {
        let cookie = w.new_cookie(mover);
        let request = EnqueueReq {
            resource: Resource::inode(fid),
            mode: LockMode::Ex as i32,
            cookie,
            policy: Some(Policy::Bits(MOVES)),
            ..EnqueueReq::default()
        };
        w.send(mover, Opcode::LdlmEnqueue, Tag(0), &request, Bytes::new(), 0)
    };
    let waiting = [send(&mut w, files[0]), send(&mut w, files[1])];
    for xid in waiting {
        assert!(w.wait(mover, xid).is_none());
    }
    w.write_groups();
    for xid in waiting {
        let reply = w.wait(mover, xid).expect("it is durable");
        assert_eq!((reply.header.status, reply.header.transno), (0, Transno(0)), "nothing to replay");
    }
    // So does one that was just given another layout: the crash could give it back the old one.
    w.commits = false;
    let wish = Layout { stripe_size: 1 << 16, want_first: -1, ..Layout::default() };
    let op = SetlayoutOp {
        fid: files[4],
        kind: SetlayoutKind::Set as i32,
        layout: Some(wish),
        lvb: None,
        dir_default: None,
    };
    w.reint(Reint::Setlayout(op)).unwrap();
    let xid = send(&mut w, files[4]);
    assert!(w.wait(mover, xid).is_none());
    assert!(stdx::marks::count("move_waits_for_its_layout") > 0);
    w.write_groups();
    w.settle();
    w.write_groups();
    assert_eq!(w.wait(mover, xid).expect("it is durable").header.status, 0);
    // The others do not wait, and their marks are lost in the crash, with their client.
    w.commits = false;
    for &file in &files[2..4] {
        let xid = send(&mut w, file);
        assert_eq!(w.wait(mover, xid).expect("at once").header.status, 0);
    }
    w.settle();
    only_this_one_comes_back(&mut w, 0);

    w.unlink(Fid::ROOT, "f2").unwrap();
    w.sync();
    assert_eq!(w.records::<schema::DestroyLog>(), 1, "its objects go");
    let ino = w.stored::<schema::Oi>(&files[3]).ino;
    assert!(w.stored::<schema::Inode>(&ino).leaving, "marked after the recovery");
    // Then the note goes.
    for _ in 0..13 {
        w.settle();
        w.sync();
    }
    assert_eq!(w.records::<schema::Moving>(), 0);
    assert!(stdx::marks::count("move_in_doubt") > 0 && stdx::marks::count("move_waits_for_its_record") >= 2);
    // No object target is there to remove the others.
    w.log.clear();
    w.check();
}

/// Whoever removes the file again in recovery does not know of the mark that was lost.
#[test]
fn a_replayed_removal_takes_the_objects_of_a_move_in_doubt_along() {
    const MOVES: u64 = bits::DOM | bits::LAYOUT;
    let mut w = World::new();
    knows_osts(&mut w, 1);
    let mover = w.connect();
    let (first, second) = (w.mknod(Fid::ROOT, "first"), w.mknod(Fid::ROOT, "second"));
    enqueue(&mut w, mover, first, LockMode::Ex, MOVES);
    w.sync();
    w.clients[0].kept.clear();
    w.commits = false;
    enqueue(&mut w, mover, second, LockMode::Ex, MOVES);
    w.unlink(Fid::ROOT, "second").unwrap();
    w.commits = true;
    w.crash();
    w.reconnect(0);
    (0..4).for_each(|_| w.settle());
    assert_eq!(w.replay(0).len(), 1);
    w.recovered(0);
    w.sync();
    assert_eq!(w.getattr(second), Err(Errno::ESTALE));
    assert_eq!(w.records::<schema::DestroyLog>(), 1);
}
