//! Batches: many changes in one request, one transno and one reply record.

use super::*;
use crate::ops::open::flags as o;

fn create(fid: Fid, parent: Fid, name: &str, mode: u32) -> Reint {
    Reint::Create(CreateOp { parent, name: bytes(name), fid, mode, ..CreateOp::default() })
}

fn remove(parent: Fid, name: &str, rmdir: bool) -> Reint {
    Reint::Unlink(UnlinkOp { parent, name: bytes(name), rmdir, reported: None, entry_only: false })
}

/// All locks that there are, under cookies from `first` on.
fn want(first: u64) -> WantLocks {
    WantLocks {
        object_cookie: first,
        entries_cookie: first + 1,
        data_cookie: first + 2,
        data_write: true,
        exclusive: true,
        ..WantLocks::default()
    }
}

impl World {
    fn batch_of(&mut self, changes: &[(Reint, WantLocks)]) -> BatchReq {
        let mut encoded = Vec::new();
        let mut cred = Some(cred(0));
        for (op, want) in changes {
            self.time_ns += 1000;
            let change = ReintReq { cred: cred.take(), now_ns: self.time_ns, want: Some(*want), op: Some(op.clone()) };
            BatchReq::push(&mut encoded, &change);
        }
        BatchReq { changes: encoded.into(), returns_credits: false }
    }

    fn batch(&mut self, at: usize, changes: &[(Reint, WantLocks)]) -> Result<(Transno, BatchRep), Errno> {
        let request = self.batch_of(changes);
        let frame = self.ask(at, Opcode::MdsBatch, Tag(1), &request, Bytes::new())?;
        Ok((frame.header.transno, frame.decode().expect("a body")))
    }
}

fn plain(ops: Vec<Reint>) -> Vec<(Reint, WantLocks)> {
    ops.into_iter().map(|op| (op, WantLocks::default())).collect()
}

#[test]
fn a_batch_is_one_change_and_what_it_made_can_be_used_in_it() {
    let mut w = World::new();
    let (dir, file) = (w.new_fid(0), w.new_fid(0));
    let mode = SetattrOp { fid: file, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() };
    let (transno, rep) = w
        .batch(
            0,
            &[
                (create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755), want(10)),
                (create(file, dir, "file", S_IFREG | 0o644), want(20)),
                (Reint::Setattr(mode), WantLocks::default()),
            ],
        )
        .unwrap();
    assert_eq!(rep.results.iter().map(|result| result.status).collect::<Vec<_>>(), [0; 3]);
    let handles =
        |result: &BatchResult| [result.object_handle, result.entries_handle, result.data_handle].map(|h| h != 0);
    assert_eq!([handles(&rep.results[0]), handles(&rep.results[1])], [[true, true, false], [true, false, true]]);
    assert!(rep.results[1].layout.as_ref().is_some_and(|layout| layout.resident));
    assert!(rep.credits > 0);
    let attr = w.getattr(file).unwrap();
    assert_eq!((attr.version, attr.mode), (transno.0, S_IFREG | 0o600));
    assert_eq!(w.names(dir), ["file"]);
    w.check();
}

#[test]
fn what_a_batch_removes_again_has_no_locks() {
    let mut w = World::new();
    let (file, dir) = (w.new_fid(0), w.new_fid(0));
    let changes = [
        (create(file, Fid::ROOT, "file", S_IFREG | 0o644), want(10)),
        (create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755), want(20)),
        (remove(Fid::ROOT, "file", false), WantLocks::default()),
        (remove(Fid::ROOT, "dir", true), WantLocks::default()),
    ];
    let (_, rep) = w.batch(0, &changes).unwrap();
    assert_eq!(rep.results, vec![BatchResult::default(); 4]);
    w.check();
}

#[test]
fn a_name_that_goes_and_comes_in_one_batch_is_there() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    w.mknod(dir, "a");
    let (second, third) = (w.new_fid(0), w.new_fid(0));
    let ops = vec![
        remove(dir, "a", false),
        create(second, dir, "a", S_IFREG | 0o644),
        remove(dir, "a", false),
        create(third, dir, "a", S_IFREG | 0o644),
    ];
    let (_, rep) = w.batch(0, &plain(ops)).unwrap();
    assert!(rep.results.iter().all(|result| result.status == 0), "{rep:?}");
    assert_eq!(w.lookup(dir, "a").map(|attr| attr.fid), Some(third));
    assert_eq!(w.create(dir, "a", S_IFREG | 0o644), Err(Errno::EEXIST));
    w.unlink(dir, "a").unwrap();
    assert_eq!(w.lookup(dir, "a"), None);
    w.check();
}

/// The first attempt finds the directory empty once it has removed its only name, and then something else is not in memory.
#[test]
fn an_attempt_that_was_given_up_has_taught_nothing() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    w.mknod(dir, "old");
    let cold = w.mknod(Fid::ROOT, "cold");
    w.sync();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    assert!(w.lookup(dir, "old").is_some() && w.lookup(dir, "new").is_none());
    let mode = SetattrOp { fid: cold, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() };
    let loads = w.host.loads;
    let fid = w.new_fid(0);
    let ops = vec![remove(dir, "old", false), create(fid, dir, "new", S_IFREG | 0o644), Reint::Setattr(mode)];
    let (_, rep) = w.batch(0, &plain(ops)).unwrap();
    assert!(w.host.loads > loads, "an attempt was given up");
    assert_eq!(rep.results.iter().map(|result| result.status).collect::<Vec<_>>(), [0; 3]);
    assert_eq!(w.names(dir), ["new"]);
    assert!(w.create(dir, "old", S_IFREG | 0o644).is_ok());
    w.check();
}

#[test]
fn what_the_replay_of_a_batch_needs_is_loaded_while_it_waits_for_its_turn() {
    let mut w = World::new();
    w.connect();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let cold = w.mknod(Fid::ROOT, "cold");
    w.mknod(dir, "old");
    w.sync();
    w.commits = false;
    w.clients[0].kept.clear();
    let mode = SetattrOp { fid: cold, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() };
    let mut ops = vec![remove(dir, "old", false), Reint::Setattr(mode)];
    for at in 0..20 {
        let fid = w.new_fid(0);
        ops.push(create(fid, dir, &format!("new{at}"), S_IFREG | 0o644));
    }
    let (_, rep) = w.batch(0, &plain(ops)).unwrap();
    assert!(rep.results.iter().all(|result| result.status == 0), "{rep:?}");
    w.loads_for_replays_ahead(1);
    assert_eq!(w.names(dir).len(), 20);
    w.check();
}

#[test]
fn a_change_that_fails_leaves_the_others_be() {
    let mut w = World::new();
    let [a, b] = [w.new_fid(0), w.new_fid(0)];
    let ops = vec![
        create(a, Fid::ROOT, "a", S_IFREG | 0o644),
        remove(Fid::ROOT, "nothing", false),
        create(b, Fid::ROOT, "a", S_IFREG | 0o644),
        remove(Fid::ROOT, "a", true),
        Reint::Setattr(SetattrOp { fid: a, valid: valid::SIZE, size: 7, ..SetattrOp::default() }),
        create(b, Fid::ROOT, "b", S_IFREG | 0o644),
    ];
    let (_, rep) = w.batch(0, &plain(ops)).unwrap();
    let statuses: Vec<i32> = rep.results.iter().map(|result| -result.status).collect();
    let expected =
        [None, Some(Errno::ENOENT), Some(Errno::EEXIST), Some(Errno::ENOTDIR), Some(Errno::EOPNOTSUPP), None];
    assert_eq!(statuses, expected.map(|errno| errno.map_or(0, Errno::raw)));
    assert_eq!(w.names(Fid::ROOT), ["a", "b"]);
    assert_eq!(w.batch(0, &[]).map(drop), Err(Errno::EINVAL));
    let many = (0..65).map(|_| remove(Fid::ROOT, "nothing", false)).collect();
    assert_eq!(w.batch(0, &plain(many)).map(drop), Err(Errno::EINVAL));
    w.check();
}

/// Changes of one directory, with changes in between that read or write its record otherwise.
#[test]
fn a_directory_is_what_all_changes_of_a_batch_have_made_of_it() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    w.mknod(dir, "old");
    let fids: Vec<Fid> = (0..6).map(|_| w.new_fid(0)).collect();
    let mode = |fid, mode| Reint::Setattr(SetattrOp { fid, valid: valid::MODE, mode, ..SetattrOp::default() });
    let ops = vec![
        create(fids[0], dir, "a", S_IFREG | 0o644),
        create(fids[1], dir, "sub", S_IFDIR | 0o755),
        mode(dir, 0o700),
        create(fids[2], fids[1], "inner", S_IFREG | 0o644),
        create(fids[3], dir, "a", S_IFREG | 0o644),
        remove(fids[1], "inner", false),
        create(fids[4], dir, "b", S_IFDIR | 0o755),
        remove(dir, "sub", true),
        remove(dir, "old", false),
        remove(dir, "b", false),
        create(fids[5], dir, "c", S_IFREG | 0o644),
    ];
    let (transno, rep) = w.batch(0, &plain(ops)).unwrap();
    let statuses: Vec<i32> = rep.results.iter().map(|result| -result.status).collect();
    assert_eq!(statuses, [0, 0, 0, 0, Errno::EEXIST.raw(), 0, 0, 0, 0, Errno::EISDIR.raw(), 0]);
    assert_eq!(w.names(dir), ["a", "b", "c"]);
    let attr = w.getattr(dir).unwrap();
    assert_eq!((attr.mode & 0o777, attr.nlink, attr.version), (0o700, 3, transno.0));
    assert_eq!((attr.mtime_ns, attr.ctime_ns), (w.time_ns, w.time_ns), "the last change's");
    assert_eq!(w.rmdir(Fid::ROOT, "dir"), Err(Errno::ENOTEMPTY));
    w.check();
    let ops =
        vec![remove(dir, "a", false), remove(dir, "b", true), remove(dir, "c", false), remove(Fid::ROOT, "dir", true)];
    let (_, rep) = w.batch(0, &plain(ops)).unwrap();
    assert!(rep.results.iter().all(|result| result.status == 0), "{rep:?}");
    assert_eq!(w.lookup(Fid::ROOT, "dir"), None);
    w.check();
}

#[test]
fn a_batch_is_replayed_whole() {
    let mut w = World::new();
    w.sync();
    w.commits = false;
    let (dir, file) = (w.new_fid(0), w.new_fid(0));
    let ops = vec![
        create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755),
        create(file, dir, "file", S_IFREG | 0o644),
        create(w.new_fid(0), dir, "gone", S_IFREG | 0o644),
        remove(dir, "gone", false),
    ];
    w.batch(0, &plain(ops)).unwrap();
    let before = w.getattr(dir).unwrap();
    w.commits = true;
    w.crash();
    w.reconnect(0);
    let kept = w.clients[0].kept.clone();
    for frame in kept {
        assert_eq!(w.send_again(0, frame, flags::REPLAY).header.status, 0);
    }
    w.recovered(0);
    assert_eq!(w.getattr(dir), Ok(before));
    assert_eq!(w.names(dir), ["file"]);
    w.check();
}

/// What failed at first its client leaves out of what is to be done again. What is not left out was done, so it must be possible.
#[test]
fn of_a_batch_is_replayed_what_was_done() {
    for whole in [false, true] {
        let mut w = World::new();
        w.sync();
        w.commits = false;
        let (dir, file) = (w.new_fid(0), w.new_fid(0));
        let changes = plain(vec![
            create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755),
            remove(dir, "nothing", false),
            create(file, dir, "file", S_IFREG | 0o644),
        ]);
        let time_ns = w.time_ns;
        let (_, rep) = w.batch(0, &changes).unwrap();
        assert_eq!(rep.results.iter().filter(|result| result.status < 0).count(), 1);
        let before = [dir, file].map(|fid| w.getattr(fid).unwrap());
        w.commits = true;
        w.crash();
        w.reconnect(0);
        let mut kept = w.clients[0].kept.last().cloned().expect("the batch");
        if !whole {
            let mut encoded = Vec::new();
            w.time_ns = time_ns;
            for (change, (op, _)) in w.batch_of(&changes).iter().map(Result::unwrap).zip(&changes) {
                if !matches!(op, Reint::Unlink(_)) {
                    BatchReq::push(&mut encoded, &change);
                }
            }
            kept.body = BatchReq { changes: encoded.into(), returns_credits: false }.encode_to_vec().into();
        }
        let again = w.send_again(0, kept, flags::REPLAY);
        if whole {
            assert_eq!(again.header.status, -Errno::ENOENT.raw());
            continue;
        }
        assert_eq!(again.header.status, 0);
        w.recovered(0);
        assert_eq!([dir, file].map(|fid| w.getattr(fid).unwrap()), before);
        w.check();
    }
}

/// It was done, its answer is lost, and the target has forgotten: what became of each change is known, and the locks that the
/// client counts on are granted.
#[test]
fn the_answer_to_a_batch_is_rebuilt() {
    let mut w = World::new();
    let (dir, file) = (w.new_fid(0), w.new_fid(0));
    let changes = [
        (create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755), want(10)),
        (remove(Fid::ROOT, "nothing", false), WantLocks::default()),
        (create(file, dir, "file", S_IFREG | 0o644), want(20)),
    ];
    let (_, first) = w.batch(0, &changes).unwrap();
    let kept = w.clients[0].kept.pop().expect("the batch");
    w.clients[0].missing = Some(kept.header.xid.0);
    w.sync();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    let again = w.send_again(0, kept, flags::RESENT);
    let rep: BatchRep = again.decode().unwrap();
    assert_eq!(rep.results.iter().map(|r| r.status).collect::<Vec<_>>(), [0, -Errno::EIO.raw(), 0]);
    assert!(rep.results[2].data_handle > first.results[2].data_handle, "a lock of this start");
    assert_eq!(rep.results[2].layout, first.results[2].layout);
    assert_eq!(w.names(dir), ["file"]);
    w.check();
}

/// A client that has a directory as EX may know more than the target: it is asked before others are answered.
#[test]
fn a_lease_is_called_back_before_the_directory_is_looked_at() {
    let mut w = World::new();
    let other = w.connect();
    let dir = w.new_fid(0);
    w.batch(0, &[(create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755), want(10))]).unwrap();
    assert!(w.clients[0].called_back.is_empty());
    assert_eq!(w.lookup_as(other, cred(0), dir, "x"), Ok(None));
    let called = |w: &World| w.clients[0].called_back.iter().filter(|c| c.resource.fid == dir).count();
    assert_eq!(called(&w), 1);
    // Not so for its holder, nor a second time.
    assert_eq!(w.lookup(dir, "x"), None);
    assert_eq!(w.lookup_as(other, cred(0), dir, "y"), Ok(None));
    assert_eq!(called(&w), 1);
}

/// The client that has it leased may have removed its last name and not told the server yet.
#[test]
fn a_lease_is_called_back_before_a_directory_is_said_not_to_be_empty() {
    let mut w = World::new();
    let other = w.connect();
    let moved = w.mkdir(Fid::ROOT, "moved");
    for (at, renames) in [false, true].into_iter().enumerate() {
        let (dir, name) = (w.new_fid(0), w.new_fid(0));
        let first = 10 + 10 * at as u64;
        let changes = [
            (create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755), want(first)),
            (create(name, dir, "name", S_IFREG | 0o644), WantLocks::default()),
        ];
        w.batch(0, &changes).unwrap();
        let refused = match renames {
            false => w.remove_as(other, cred(0), Fid::ROOT, "dir", true).err(),
            true => w.rename_as(other, cred(0), (Fid::ROOT, "moved"), (Fid::ROOT, "dir"), 0).err(),
        };
        assert_eq!(refused, Some(Errno::ENOTEMPTY));
        assert_eq!(w.clients[0].called_back.iter().filter(|call| call.resource.fid == dir).count(), 1);
        w.unlink(dir, "name").unwrap();
        w.rmdir(Fid::ROOT, "dir").unwrap();
    }
    assert_eq!(w.lookup(Fid::ROOT, "moved").map(|attr| attr.fid), Some(moved));
    w.check();
}

/// A client tells of an open that it allowed when nobody else knew the file that it had made.
#[test]
fn who_made_a_file_may_have_had_it_open() {
    let mut w = World::new();
    let other = w.connect();
    let file = w.new_fid(0);
    w.batch(0, &plain(vec![create(file, Fid::ROOT, "file", S_IFREG | 0o400)])).unwrap();
    let told = |w: &mut World, at: usize| {
        let op = OpenOp { fid: file, flags: o::PATH | 2, ..OpenOp::default() };
        w.reint_as(at, cred(7), WantLocks::default(), Reint::Open(op)).map(|rep| rep.handle != 0)
    };
    assert_eq!(told(&mut w, 0), Ok(true));
    assert_eq!(told(&mut w, other), Err(Errno::EACCES));
    w.check();
}

/// The object targets that new files may use have changed since: but clients may have written to those that they were told.
#[test]
fn replayed_files_lie_where_they_were_said_to_lie() {
    let mut w = World::new();
    super::data::knows_osts(&mut w, 3);
    w.sync();
    w.commits = false;
    w.clients[0].kept.clear();
    let made = w.mknod(Fid::ROOT, "made");
    let (first, second) = (w.new_fid(0), w.new_fid(0));
    let batch: Vec<_> = [(first, "first"), (second, "second")]
        .map(|(fid, name)| (create(fid, Fid::ROOT, name, S_IFREG | 0o644), want(fid.oid.into())))
        .into();
    w.batch(0, &batch).unwrap();
    let wish = Layout { want_count: 2, want_first: -1, ..Layout::default() };
    let op =
        SetlayoutOp { fid: made, kind: SetlayoutKind::Set as i32, layout: Some(wish), lvb: None, dir_default: None };
    w.reint(Reint::Setlayout(op)).unwrap();
    let layouts = |w: &mut World| [made, first, second].map(|fid| w.getattr(fid).unwrap().layout.unwrap());
    let before = layouts(&mut w);
    assert_eq!(before.each_ref().map(|layout| layout.osts.len()), [2, 1, 1]);

    w.commits = true;
    w.crash();
    let now = w.now;
    for index in 0..2 {
        let path = format!("osp.fs-OST000{index}-osc-MDT0000.active");
        w.target().set_param(now, &path, "0").unwrap();
    }
    w.reconnect(0);
    let mut kept = w.clients[0].kept.clone();
    kept.sort_by_key(|frame| frame.header.transno);
    for frame in kept {
        assert_eq!(w.send_again(0, frame, flags::REPLAY).header.status, 0);
    }
    w.recovered(0);
    assert_eq!(layouts(&mut w), before);
    let new = w.mknod(Fid::ROOT, "new");
    assert_eq!(w.getattr(new).unwrap().layout.unwrap().osts, [2], "new files go where there is room");
    w.check();
}

/// The answer that a replay brings is from outside like all else.
#[test]
fn a_replay_that_brings_nonsense_is_refused() {
    let mut w = World::new();
    super::data::knows_osts(&mut w, 3);
    w.sync();
    w.commits = false;
    w.clients[0].kept.clear();
    w.mknod(Fid::ROOT, "made");
    let mut frame = w.clients[0].kept.pop().unwrap();
    w.commits = true;
    w.crash();
    w.reconnect(0);
    let layout = Layout { stripe_size: 7, osts: vec![0], ..Layout::default() };
    let rep = ObjectRep { attr: Some(Attr { layout: Some(layout), ..Attr::default() }), ..ObjectRep::default() };
    frame.bulk = rep.encode_to_vec().into();
    let answer = w.send_again(0, frame, flags::REPLAY);
    assert_eq!(Errno::from_status(answer.header.status), Err(Errno::EPROTO));
}

#[test]
fn a_batch_that_comes_back_to_a_directory_knows_what_it_has_made_there() {
    let mut w = World::new();
    let (a, b) = (w.mkdir(Fid::ROOT, "a"), w.mkdir(Fid::ROOT, "b"));
    let files: Vec<Fid> = (0..4).map(|_| w.new_fid(0)).collect();
    let sub = w.new_fid(0);
    let ops = vec![
        create(files[0], a, "x", S_IFREG | 0o644),
        create(sub, a, "sub", S_IFDIR | 0o755),
        create(files[1], b, "x", S_IFREG | 0o644),
        create(files[2], a, "x", S_IFREG | 0o644),
        create(files[3], sub, "x", S_IFREG | 0o644),
        create(w.new_fid(0), b, "x", S_IFREG | 0o644),
        create(w.new_fid(0), sub, "x", S_IFREG | 0o644),
    ];
    let (_, rep) = w.batch(0, &plain(ops)).unwrap();
    let eexist = -Errno::EEXIST.raw();
    let statuses: Vec<i32> = rep.results.iter().map(|result| result.status).collect();
    assert_eq!(statuses, [0, 0, 0, eexist, 0, eexist, eexist]);
    assert_eq!(
        (w.names(a), w.names(b), w.names(sub)),
        (vec!["sub".into(), "x".into()], vec!["x".into()], vec!["x".into()])
    );
    w.check();
}

#[test]
fn credits_that_some_return_are_offered_to_those_without() {
    let mut w = World::new();
    let make = |w: &mut World, at: usize, name: &str| -> u32 {
        let fid = w.new_fid(at);
        w.time_ns += 1000;
        let op = Some(create(fid, Fid::ROOT, name, S_IFREG | 0o644));
        let request = ReintReq { cred: Some(cred(0)), now_ns: w.time_ns, want: None, op };
        w.ask(at, Opcode::MdsReint, Tag(1), &request, Bytes::new())
            .unwrap()
            .decode::<ObjectRep>()
            .unwrap()
            .write_back_credits
    };
    let clients: Vec<usize> = (0..40).map(|_| w.connect()).collect();
    let [.., old, late] = clients[..] else { panic!("there are 40") };
    assert_eq!(make(&mut w, late, "a"), 0, "others have all there are");
    let nothing = BatchReq { returns_credits: true, ..BatchReq::default() };
    for client in 0..late {
        let answer = w.ask(client, Opcode::MdsBatch, Tag(1), &nothing, Bytes::new()).unwrap();
        assert_eq!(answer.decode::<BatchRep>().unwrap(), BatchRep::default());
    }
    assert_eq!(make(&mut w, late, "b"), 5, "a quarter of 21");
    w.clients[old].features &= !proto::connect::features::GRANT_SHRINK;
    w.reconnect(old);
    assert_eq!(make(&mut w, old, "c"), 0, "it would not take it");
    // Changes and none are not meant together, nor neither.
    let change = w.batch_of(&plain(vec![remove(Fid::ROOT, "a", false)]));
    for request in [BatchReq::default(), BatchReq { returns_credits: true, ..change }] {
        assert_eq!(w.ask(late, Opcode::MdsBatch, Tag(1), &request, Bytes::new()).err(), Some(Errno::EINVAL));
    }
    w.check();
}
