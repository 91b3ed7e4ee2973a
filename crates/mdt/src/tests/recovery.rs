//! The server dies: what was answered is there once, open files stay open, what nobody wants any more goes.

use super::data::{enqueue, knows_osts, write};
use super::*;
use crate::ops::open::flags as o;
use proto::msg::{bits, valid};
use rules::mode::{S_IFCHR, S_IFIFO};

impl World {
    /// Sends what was answered and lost again, in order; the answers.
    pub(super) fn replay(&mut self, at: usize) -> Vec<Frame> {
        let mut kept = self.clients[at].kept.clone();
        kept.sort_by_key(|frame| frame.header.transno);
        kept.into_iter().map(|frame| self.send_again(at, frame, flags::REPLAY)).collect()
    }

    /// The server loses all that client 0 keeps, which replays it, and is loaded for those that wait for client 1: nothing is left to be
    /// loaded, one after another, by those who come to their turn. So many are answered.
    pub(super) fn loads_for_replays_ahead(&mut self, replays: usize) {
        self.commits = true;
        self.crash();
        self.reconnect(0);
        let before = self.host.loads;
        let kept = self.clients[0].kept.clone();
        let xids: Vec<u64> = kept.into_iter().map(|frame| self.throw_again(0, frame, flags::REPLAY)).collect();
        self.pump();
        assert!(self.clients[0].inbox.is_empty(), "the other client may still replay something");
        let loaded = self.host.loads;
        assert!(loaded > before, "they see what they need");

        self.reconnect(1);
        self.send(1, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flags::REQ_REPLAY_DONE);
        self.pump();
        let answers: Vec<Frame> = xids.into_iter().map(|xid| self.wait(0, xid).expect("an answer")).collect();
        assert_eq!(statuses(&answers), vec![0; replays]);
        assert_eq!(self.host.loads, loaded, "something is left to be loaded when its turn comes");
        self.send(1, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flags::LOCK_REPLAY_DONE);
        self.recovered(0);
    }

    /// What a client's library does with the answer to an open: the replay carries what the server chose.
    fn fix_open(&mut self, at: usize, rep: &ObjectRep) {
        let kept = self.clients[at].kept.last_mut().expect("the open");
        let mut request: ReintReq = kept.decode().expect("a change");
        let Some(Reint::Open(op)) = &mut request.op else { panic!("not an open") };
        let attr = rep.attr.as_ref().expect("attributes");
        op.old_handle = rep.handle;
        op.opened_fid = Some(attr.fid);
        op.layout = attr.layout.clone();
        kept.body = request.encode_to_vec().into();
    }
}

impl World {
    /// The answer to the last change counts as lost.
    fn loses_last(&mut self, at: usize) -> Frame {
        let kept = self.clients[at].kept.last().expect("a change").clone();
        self.clients[at].missing = Some(kept.header.xid.0);
        kept
    }
}

fn statuses(frames: &[Frame]) -> Vec<i32> {
    frames.iter().map(|frame| frame.header.status).collect()
}

#[test]
fn changes_that_were_answered_and_lost_are_done_again_the_same() {
    let mut w = World::new();
    w.sync();
    w.commits = false;
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(dir, "file");
    w.link(file, Fid::ROOT, "second").unwrap();
    w.rename((dir, "file"), (Fid::ROOT, "third"), 0).unwrap();
    let removed = w.mknod(dir, "removed");
    w.unlink(dir, "removed").unwrap();
    let rep = w.open(0, dir, "opened", o::CREAT | 2).unwrap();
    w.fix_open(0, &rep);
    let opened = rep.attr.clone().unwrap().fid;
    let before = [w.getattr(dir).unwrap(), w.getattr(file).unwrap(), w.getattr(opened).unwrap()];

    w.commits = true;
    w.crash();
    w.reconnect(0);
    let answers = w.replay(0);
    assert_eq!(statuses(&answers), [0; 7]);
    w.recovered(0);
    let after = [w.getattr(dir).unwrap(), w.getattr(file).unwrap(), w.getattr(opened).unwrap()];
    assert_eq!(before, after);
    assert_eq!(w.names(Fid::ROOT), ["dir", "second", "third"]);
    assert_eq!(w.getattr(removed), Err(Errno::ESTALE));
    // The close comes with the handle of before.
    assert_eq!(w.target().service().open_count(), 1);
    w.close(0, opened, rep.handle).unwrap();
    assert_eq!(w.target().service().open_count(), 0);
    w.check();
}

#[test]
fn what_replays_need_is_loaded_while_they_wait_for_their_turn() {
    let mut w = World::new();
    w.connect();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let old: Vec<Fid> = (0..4).map(|n| w.mknod(dir, &format!("old{n}"))).collect();
    write(&mut w, 0, old[0], 0, b"data", 0).unwrap();
    w.sync();
    w.commits = false;
    w.clients[0].kept.clear();
    write(&mut w, 0, old[0], 2, b"more", 0).unwrap();
    w.link(old[1], dir, "further").unwrap();
    w.rename((dir, "old2"), (Fid::ROOT, "renamed"), 0).unwrap();
    w.unlink(dir, "old3").unwrap();
    w.mkdir(dir, "folder");
    let rep = w.open(0, dir, "opened", o::CREAT | 2).unwrap();
    w.fix_open(0, &rep);
    let names = w.names(dir);

    w.loads_for_replays_ahead(6);
    assert_eq!(w.names(dir), names);
    w.check();
}

/// Version 0.1.0 replays a create with the layout that the file has by then.
#[test]
fn a_file_that_left_leaves_again_although_its_client_says_that_it_was_never_here() {
    let mut w = World::new();
    knows_osts(&mut w, 2);
    // Files made one after another are noted together as moving.
    let before = w.mknod(Fid::ROOT, "before");
    enqueue(&mut w, 0, before, LockMode::Ex, bits::DOM | bits::LAYOUT);
    w.sync();
    w.clients[0].kept.clear();
    w.commits = false;
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    let file = rep.attr.clone().unwrap().fid;
    write(&mut w, 0, file, 0, b"data", 0).unwrap();
    let create = w.clients[0].kept.len() - 2;
    enqueue(&mut w, 0, file, LockMode::Ex, bits::DOM | bits::LAYOUT);
    let layout = rep.attr.as_ref().unwrap().layout.clone().unwrap();
    let (left, kind) = (Layout { resident: false, ..layout }, SetlayoutKind::Leave as i32);
    let now = Lvb { size: 4, mtime_ns: 5, ctime_ns: i64::MAX, ..Lvb::default() };
    let op = SetlayoutOp { fid: file, kind, layout: Some(left), lvb: Some(now), dir_default: None };
    let later = w.reint(Reint::Setlayout(op)).unwrap();
    let before = w.getattr(file).unwrap();
    let mut kept = w.clients[0].kept.split_off(create + 1);
    w.fix_open(0, &ObjectRep { handle: rep.handle, ..later });
    w.clients[0].kept.append(&mut kept);

    w.commits = true;
    w.crash();
    w.reconnect(0);
    let answers = w.replay(0);
    assert_eq!(statuses(&answers), [0; 3], "create, write, leave");
    w.recovered(0);
    assert_eq!(w.getattr(file).unwrap(), before);
    assert_eq!(w.records::<schema::SmallData>(), 0);
    w.check();
}

#[test]
fn an_open_whose_change_is_durable_is_open_again_and_nothing_else() {
    let mut w = World::new();
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    w.fix_open(0, &rep);
    let fid = rep.attr.unwrap().fid;
    let opens: Vec<Frame> = w.clients[0].kept.clone();
    w.unlink(Fid::ROOT, "file").unwrap();
    w.sync();
    w.crash();
    w.reconnect(0);
    w.clients[0].kept = opens;
    assert_eq!(statuses(&w.replay(0)), [0]);
    w.recovered(0);
    w.settle();
    assert!(w.getattr(fid).is_ok(), "it is open, so it stays");
    assert_eq!((w.records::<schema::Orphan>(), w.target().service().open_count()), (1, 1));
    w.close(0, fid, rep.handle).unwrap();
    assert_eq!(w.getattr(fid), Err(Errno::ESTALE));
    w.check();
}

/// Replays travel together: the close of a durable open must find it open again, though the open has records to load.
#[test]
fn a_close_that_is_replayed_behind_its_durable_open_closes_it() {
    let mut w = World::new();
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    w.fix_open(0, &rep);
    let fid = rep.attr.unwrap().fid;
    w.sync();
    w.commits = false;
    w.close(0, fid, rep.handle).unwrap();
    w.unlink(Fid::ROOT, "file").unwrap();
    let mut kept = w.clients[0].kept.clone();
    kept.sort_by_key(|frame| frame.header.transno);
    assert_eq!(kept.len(), 3);

    w.commits = true;
    w.crash();
    w.reconnect(0);
    let xids: Vec<u64> = kept.into_iter().map(|frame| w.throw_again(0, frame, flags::REPLAY)).collect();
    let answers: Vec<Frame> = xids.into_iter().map(|xid| w.wait(0, xid).expect("an answer")).collect();
    assert_eq!(statuses(&answers), [0; 3]);
    w.recovered(0);
    w.settle();
    assert_eq!(w.target().service().open_count(), 0);
    assert_eq!((w.records::<schema::Orphan>(), w.getattr(fid)), (0, Err(Errno::ESTALE)));
    w.check();
}

/// The close was done and is durable, but its answer is lost: so the client had the open replayed.
#[test]
fn a_close_whose_answer_is_lost_closes_what_was_opened_again() {
    let mut w = World::new();
    let rep = w.open(0, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    w.fix_open(0, &rep);
    let opens = w.clients[0].kept.clone();
    let fid = rep.attr.unwrap().fid;
    w.close(0, fid, rep.handle).unwrap();
    let close = w.loses_last(0);
    w.sync();
    w.crash();
    w.reconnect(0);
    w.clients[0].kept = opens;
    assert_eq!(statuses(&w.replay(0)), [0]);
    w.recovered(0);
    w.unlink(Fid::ROOT, "file").unwrap();
    assert_eq!((w.records::<schema::Orphan>(), w.target().service().open_count()), (1, 1));
    assert_eq!(w.send_again(0, close, flags::RESENT).header.status, 0);
    w.settle();
    assert_eq!((w.records::<schema::Orphan>(), w.target().service().open_count()), (0, 0));
    assert_eq!(w.getattr(fid), Err(Errno::ESTALE));
    w.check();
}

#[test]
fn sequences_of_a_client_that_is_gone_are_forgotten() {
    let mut w = World::new();
    let other = w.connect();
    let rep = w.open(other, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    assert_eq!(w.records::<schema::SeqGrant>(), 2);
    let xid = w.send(other, Opcode::Disconnect, Tag(0), &Empty {}, Bytes::new(), 0);
    assert_eq!(w.wait(other, xid).unwrap().header.status, 0);
    w.settle();
    w.sync();
    assert_eq!(w.records::<schema::SeqGrant>(), 1);
    assert!(w.getattr(rep.attr.unwrap().fid).is_ok());
    w.mknod(Fid::ROOT, "more");
    w.check();
}

/// The sequences of clients that did not come back are kept, and with them the objects that the store does not know.
#[test]
fn nothing_is_a_stray_while_a_client_has_seen_a_later_state() {
    let mut w = World::new();
    let gone = w.connect();
    assert_eq!(w.records::<schema::SeqGrant>(), 2);
    w.clients[gone].seen_committed = u64::MAX;
    w.crash();
    w.reconnect(gone);
    w.reconnect(0);
    (0..4).for_each(|_| w.settle());
    w.recovered(0);
    assert_eq!(w.records::<schema::SeqGrant>(), 2);
    assert!(stdx::marks::count("target.client_saw_more") > 0);

    w.crash();
    w.reconnect(0);
    w.recovered(0);
    w.settle();
    assert_eq!(w.records::<schema::SeqGrant>(), 1, "nobody says so any more");
}

/// A client that did not survive the recovery is back before its sequences are looked at: those that it had are nobody's all the same,
/// and the one that it is granted now is its own.
#[test]
fn sequences_of_a_client_that_was_evicted_are_nobodys_though_it_is_back() {
    let mut w = World::new();
    let evicted = w.connect();
    let had = w.clients[evicted].seq;
    w.crash();
    w.reconnect(0);
    let now = w.now;
    w.target().set_param(now, "mdt.fs-MDT0000.abort_recovery", "1").unwrap();
    w.pump();
    w.clients[0].export = Handle(0);
    w.clients[evicted].export = Handle(0);
    w.reconnect(0);
    w.reconnect(evicted);
    let has: SeqAllocRep = w.call(evicted, Opcode::SeqAlloc, &SeqAllocReq {}).unwrap();
    assert_eq!(w.records::<schema::SeqGrant>(), 3, "they are not looked at yet");
    w.settle();
    w.sync();
    assert_eq!(w.records::<schema::SeqGrant>(), 1, "what both had is gone");
    assert!(w.stored::<schema::SeqGrant>(&has.seq).owner().is_some() && has.seq != had);
    // From here on it counts who is there.
    w.crash();
    w.reconnect(0);
    w.reconnect(evicted);
    w.all_recovered(&[0, evicted]);
    w.settle();
    assert_eq!(w.records::<schema::SeqGrant>(), 1);
    w.log.clear();
    w.check();
}

#[test]
fn what_nobody_opened_again_goes_after_recovery() {
    let mut w = World::new();
    for i in 0..300 {
        let name = format!("f{i}");
        w.open(0, Fid::ROOT, &name, o::CREAT | 2).unwrap();
        w.unlink(Fid::ROOT, &name).unwrap();
    }
    assert_eq!(w.records::<schema::Orphan>(), 300);
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    w.settle();
    // The root, and `.lustre` with its two directories.
    assert_eq!((w.records::<schema::Orphan>(), w.records::<schema::Inode>()), (0, 4));
    w.check();
}

#[test]
fn a_client_that_disconnects_closes_its_files() {
    let mut w = World::new();
    let other = w.connect();
    let rep = w.open(other, Fid::ROOT, "file", o::CREAT | 2).unwrap();
    w.unlink(Fid::ROOT, "file").unwrap();
    assert_eq!(w.records::<schema::Orphan>(), 1);
    let xid = w.send(other, Opcode::Disconnect, Tag(0), &Empty {}, Bytes::new(), 0);
    assert_eq!(w.wait(other, xid).unwrap().header.status, 0);
    w.settle();
    assert_eq!(w.getattr(rep.attr.unwrap().fid), Err(Errno::ESTALE));
    assert_eq!(w.target().service().open_count(), 0);
    w.check();
}

#[test]
fn a_resent_request_is_not_done_twice() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    w.link(file, Fid::ROOT, "more").unwrap();
    let kept = w.loses_last(0);
    // The server remembers its answer.
    let again = w.send_again(0, kept.clone(), flags::RESENT);
    assert_eq!(again.header.status, 0);
    assert_eq!(again.header.transno, kept.header.transno);
    assert_eq!(w.getattr(file).unwrap().nlink, 2);
    // Or rebuilds it, if it was started again: there are no locks, but the attributes.
    w.sync();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    let again = w.send_again(0, kept.clone(), flags::RESENT);
    assert_eq!((again.header.status, again.header.transno), (0, kept.header.transno));
    assert_eq!(again.decode::<ObjectRep>().unwrap().attr.unwrap().nlink, 2);
    w.check();
}

#[test]
fn a_lost_answer_to_a_create_or_open_is_rebuilt() {
    let mut w = World::new();
    let fid = w.mknod(Fid::ROOT, "file");
    let kept = w.loses_last(0);
    w.sync();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    let rep: ObjectRep = w.send_again(0, kept, flags::RESENT).decode().unwrap();
    assert_eq!(rep.attr.map(|attr| (attr.fid, attr.nlink)), Some((fid, 1)));

    let first = w.open(0, Fid::ROOT, "opened", o::CREAT | o::EXCL | 2).unwrap();
    let kept = w.loses_last(0);
    w.sync();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    let rep: ObjectRep = w.send_again(0, kept, flags::RESENT).decode().unwrap();
    assert_eq!(
        (rep.disposition, rep.attr.as_ref().map(|attr| attr.fid)),
        (first.disposition, first.attr.map(|a| a.fid))
    );
    assert_eq!(w.target().service().open_count(), 1);
    assert!(w.close(0, rep.attr.unwrap().fid, rep.handle).is_ok());
    w.check();
}

/// The answer to a change of the first client, sent again after a crash with all of it durable.
fn rebuilt(w: &mut World, other: usize, kept: Frame) -> ObjectRep {
    w.sync();
    w.crash();
    for at in [0, other] {
        w.reconnect(at);
    }
    w.all_recovered(&[0, other]);
    w.send_again(0, kept, flags::RESENT).decode().unwrap()
}

/// A kernel that asked for a directory does not believe that it got a file.
#[test]
fn what_was_made_and_is_gone_again_was_what_its_maker_asked_for() {
    let mut w = World::new();
    let other = w.connect();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let set = SetattrOp { fid: dir, valid: valid::MODE | valid::GID, mode: 0o2777, gid: 50, ..SetattrOp::default() };
    w.setattr_as(cred(0), set).unwrap();
    for (kind, mode) in [(S_IFDIR, 0o777), (S_IFLNK, 0o777), (S_IFREG, 0o604), (S_IFIFO, 0o640), (S_IFCHR, 0o600)] {
        let op = CreateOp {
            parent: dir,
            name: bytes("made"),
            fid: w.new_fid(0),
            mode: kind | mode,
            rdev: if kind == S_IFCHR { 259 } else { 0 },
            symlink: if kind == S_IFLNK { bytes("target") } else { Bytes::new() },
            ..CreateOp::default()
        };
        let rep = w.reint_as(0, Cred { umask: 0o027, ..cred(0) }, WantLocks::default(), Reint::Create(op)).unwrap();
        let kept = w.loses_last(0);
        w.remove_as(other, cred(0), dir, "made", kind == S_IFDIR).unwrap();
        let again = rebuilt(&mut w, other, kept);
        let made = rep.attr.unwrap();
        assert_eq!(again.attr, Some(Attr { nlink: 0, version: 0, layout: None, ..made }));
        assert_eq!(again.symlink, rep.symlink);
    }
    w.check();
}

/// A kernel that knows a directory does not believe that it has become a file.
#[test]
fn what_was_changed_and_is_gone_is_what_it_was() {
    let mut w = World::new();
    let other = w.connect();
    let setattr = |fid| {
        let op = SetattrOp { fid, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() };
        Reint::Setattr(op)
    };
    let setxattr =
        |fid| Reint::Setxattr(SetxattrOp { fid, name: bytes("trusted.a"), value: bytes("b"), ..Default::default() });
    let setlayout = |fid| {
        let layout = Some(Layout { stripe_size: 1 << 20, want_count: -1, want_first: -1, ..Layout::default() });
        Reint::Setlayout(SetlayoutOp { fid, kind: SetlayoutKind::Set as i32, layout, lvb: None, dir_default: None })
    };
    let link = |fid| Reint::Link(LinkOp { fid, parent: Fid::ROOT, name: bytes("linked"), kind: 0 });
    type Make<'a> = &'a dyn Fn(Fid) -> Reint;
    let cases: [(u32, &str, Make<'_>); 5] = [
        (S_IFDIR, "directory", &setattr),
        (S_IFDIR, "directory", &setxattr),
        (S_IFDIR, "directory", &setlayout),
        (S_IFIFO, "pipe", &link),
        (S_IFREG, "file", &setattr),
    ];
    for (kind, name, change) in cases {
        let fid = w.new_fid(0);
        let (parent, mode) = (Fid::ROOT, kind | 0o700);
        w.reint(Reint::Create(CreateOp { parent, name: bytes(name), fid, mode, ..CreateOp::default() })).unwrap();
        let first = w.reint(change(fid)).unwrap().attr.unwrap();
        let kept = w.loses_last(0);
        if w.lookup(Fid::ROOT, "linked").is_some() {
            w.remove_as(other, cred(0), Fid::ROOT, "linked", false).unwrap();
        }
        w.remove_as(other, cred(0), Fid::ROOT, name, kind == S_IFDIR).unwrap();
        let again = rebuilt(&mut w, other, kept);
        assert_eq!(again.attr, Some(Attr { fid, mode: first.mode, ..Attr::default() }), "{name}");
    }
    w.check();
}

#[test]
fn sequences_are_durable_before_they_are_given() {
    let mut w = World::new();
    w.commits = false;
    let xid = w.send(0, Opcode::SeqAlloc, Tag(0), &SeqAllocReq {}, Bytes::new(), 0);
    assert!(w.wait(0, xid).is_none());
    w.write_groups();
    w.commits = true;
    let reply: SeqAllocRep = w.wait(0, xid).unwrap().decode().unwrap();
    assert_eq!((reply.seq, reply.width), (Fid::SEQ_FIRST + 1, Fid::OID_MAX));
    w.check();
}

// --- a client that is missing ---

impl World {
    /// The server dies, and only these clients come back.
    fn come_back_without_others(&mut self, back: &[usize]) {
        self.commits = true;
        self.crash();
        for &at in back {
            self.reconnect(at);
        }
        // The others are given up.
        for _ in 0..4 {
            self.settle();
        }
    }

    /// From now on changes are not held for one another, and nothing becomes durable.
    fn hurry(&mut self) {
        self.sync();
        self.clients.iter_mut().for_each(|client| client.kept.clear());
        self.commits = false;
        let now = self.now;
        assert_eq!(self.target().set_param(now, "mdt.fs-MDT0000.commit_on_sharing", "0"), Ok(()));
    }

    /// Whether the server still knows the session of a client.
    fn is_known(&mut self, at: usize) -> bool {
        let xid = self.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), 0);
        self.wait(at, xid).is_some_and(|reply| reply.header.status == 0)
    }
}

/// That a directory is empty may be what another client has just made so, who is not told yet.
#[test]
fn who_removes_a_directory_hangs_on_those_who_emptied_it() {
    let mut w = World::new();
    let other = w.connect();
    let dirs = ["emptied", "replaced", "own"].map(|name| w.mkdir(Fid::ROOT, name));
    for dir in dirs {
        w.mknod(dir, "f");
    }
    w.mkdir(Fid::ROOT, "moved");
    let rmdir = |name: &str| {
        Reint::Unlink(UnlinkOp { parent: Fid::ROOT, name: bytes(name), rmdir: true, reported: None, entry_only: false })
    };
    let replace = Reint::Rename(RenameOp {
        source_parent: Fid::ROOT,
        source_name: bytes("moved"),
        target_parent: Fid::ROOT,
        target_name: bytes("replaced"),
        ..RenameOp::default()
    });
    let cases = [(other, rmdir("emptied"), true), (other, replace, true), (0, rmdir("own"), false)];
    for ((by, op, held), dir) in cases.into_iter().zip(dirs) {
        w.sync();
        w.commits = false;
        w.remove_as(by, cred(0), dir, "f", false).unwrap();
        let request = ReintReq { cred: Some(cred(0)), now_ns: 1, want: None, op: Some(op) };
        let xid = w.send(0, Opcode::MdsReint, Tag(1), &request, Bytes::new(), 0);
        let early = w.wait(0, xid);
        assert_eq!(early.is_none(), held);
        w.commits = true;
        w.write_groups();
        let answer = early.or_else(|| w.wait(0, xid)).expect("an answer");
        assert_eq!(answer.header.status, 0);
    }
    w.check();
}

#[test]
fn what_is_replaced_linked_opened_or_changed_hangs_on_who_changed_it() {
    let mut w = World::new();
    let other = w.connect();
    let names = ["replaced", "linked", "opened", "changed"];
    let fids = names.map(|name| w.mknod(Fid::ROOT, name));
    w.mknod(Fid::ROOT, "moved");
    let (parent, chmod) =
        (Fid::ROOT, |fid, mode| Reint::Setattr(SetattrOp { fid, valid: valid::MODE, mode, ..SetattrOp::default() }));
    let cases = [
        Reint::Rename(RenameOp {
            source_parent: parent,
            source_name: bytes("moved"),
            target_parent: parent,
            target_name: bytes("replaced"),
            ..RenameOp::default()
        }),
        Reint::Link(LinkOp { fid: fids[1], parent, name: bytes("link"), kind: 0 }),
        Reint::Open(OpenOp { fid: fids[2], flags: o::PATH, ..OpenOp::default() }),
        chmod(fids[3], 0o600),
    ];
    for (op, fid) in cases.into_iter().zip(fids) {
        w.sync();
        w.commits = false;
        w.reint_as(other, cred(0), WantLocks::default(), chmod(fid, 0o640)).unwrap();
        let request = ReintReq { cred: Some(cred(0)), now_ns: 1, want: None, op: Some(op) };
        let xid = w.send(0, Opcode::MdsReint, Tag(1), &request, Bytes::new(), 0);
        assert!(w.wait(0, xid).is_none(), "the change before it may be lost with its client: {request:?}");
        w.commits = true;
        w.write_groups();
        assert_eq!(w.wait(0, xid).expect("an answer").header.status, 0, "{request:?}");
    }
    w.check();
}

#[test]
fn creates_in_a_shared_directory_do_not_hang_on_each_other() {
    let mut w = World::new();
    let other = w.connect();
    let dir = w.mkdir(Fid::ROOT, "shared");
    w.hurry();
    for i in 0..10 {
        w.create_as(other, cred(0), dir, &format!("lost{i}"), S_IFREG | 0o644).unwrap();
        w.create_as(0, cred(0), dir, &format!("kept{i}"), if i % 2 == 0 { S_IFREG } else { S_IFDIR } | 0o755).unwrap();
    }
    w.create_as(other, cred(0), dir, "last", S_IFREG | 0o644).unwrap();
    w.remove_as(0, cred(0), dir, "kept0", false).unwrap();
    w.rename((dir, "kept1"), (dir, "moved"), 0).unwrap();
    w.come_back_without_others(&[0]);
    assert_eq!(statuses(&w.replay(0)), [0; 12]);
    w.recovered(0);
    assert_eq!(w.names(dir), ["kept2", "kept3", "kept4", "kept5", "kept6", "kept7", "kept8", "kept9", "moved"]);
    w.log.clear();
    w.check();
}

#[test]
fn who_builds_on_what_is_lost_with_its_client_loses_what_he_built_and_only_he() {
    let mut w = World::new();
    let (missing, independent) = (w.connect(), w.connect());
    w.mknod(Fid::ROOT, "a");
    let old = w.mknod(Fid::ROOT, "b");
    w.hurry();
    w.mknod(Fid::ROOT, "before");
    // What is called b is another file now; and goes.
    w.rename_as(missing, cred(0), (Fid::ROOT, "a"), (Fid::ROOT, "b"), 0).unwrap();
    w.unlink(Fid::ROOT, "b").unwrap();
    w.mknod(Fid::ROOT, "after");
    w.create_as(independent, cred(0), Fid::ROOT, "independent", S_IFREG | 0o644).unwrap();
    w.come_back_without_others(&[0, independent]);
    let overflow = -Errno::EOVERFLOW.raw();
    // Both replay at the same time: the order is that of the transnos.
    let theirs = w.clients[independent].kept[0].clone();
    let mine = w.clients[0].kept.clone();
    let replays: Vec<(usize, Frame)> =
        mine.into_iter().map(|frame| (0, frame)).chain([(independent, theirs)]).collect();
    let mut waits = Vec::new();
    for (at, mut frame) in replays {
        let client = &w.clients[at];
        (frame.header.flags, frame.header.last_xid) = (flags::REPLAY, Xid(0));
        (frame.header.conn_cnt, frame.header.export) = (client.conn_cnt, client.export);
        let (conn, xid) = (client.conn, frame.header.xid.0);
        w.event(Event::Frame { conn, frame });
        waits.push((at, xid));
    }
    for at in [0, independent] {
        w.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flags::REQ_REPLAY_DONE);
    }
    let answers: Vec<i32> =
        waits.into_iter().map(|(at, xid)| w.wait(at, xid).expect("an answer").header.status).collect();
    assert_eq!(answers, [0, overflow, overflow, 0], "before; unlink and what followed it; the other's");
    assert!(stdx::marks::count("target.version_mismatch") > 0 && stdx::marks::count("target.replay_failed") > 0);
    for at in [0, independent] {
        w.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flags::LOCK_REPLAY_DONE);
    }
    w.settle();
    assert!(!w.is_known(0), "it must learn that its later changes are lost");
    assert!(w.is_known(independent));
    let vbr = w.target().get_params("mdt.*.recovery_status");
    assert!(vbr[0].1.contains("VBR: ENABLED"), "{vbr:?}");
    w.clients[0].export = Handle(0);
    w.reconnect(0);
    assert_eq!(w.names(Fid::ROOT), ["a", "b", "before", "independent"]);
    assert_eq!(w.lookup(Fid::ROOT, "b").map(|attr| attr.fid), Some(old));
    w.log.clear();
    w.check();
}

/// A batch of lock replays, as a client sends it.
fn batch(locks: &[EnqueueReq]) -> ReplayLocksReq {
    let mut bytes = Vec::new();
    locks.iter().for_each(|lock| ReplayLocksReq::push(&mut bytes, lock));
    ReplayLocksReq { locks: bytes.into() }
}

#[test]
fn locks_are_replayed_many_at_once_each_by_itself() {
    let mut w = World::new();
    let other = w.connect();
    let file = w.mknod(Fid::ROOT, "file");
    w.sync();
    w.crash();
    for at in [0, other] {
        w.reconnect(at);
    }
    let requests_done: Vec<(usize, u64)> = [0, other]
        .map(|at| (at, w.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flags::REQ_REPLAY_DONE)))
        .to_vec();
    for (at, xid) in requests_done {
        assert_eq!(w.wait(at, xid).expect("the locks are wanted").header.status, 0);
    }
    let lock = |fid, mode, cookie, wanted, handle| EnqueueReq {
        resource: Resource::inode(fid),
        mode: mode as i32,
        cookie,
        policy: Some(Policy::Bits(wanted)),
        granted_handle: handle,
        ..EnqueueReq::default()
    };
    let moves = bits::DOM | bits::LAYOUT;
    let good = [
        lock(Fid::ROOT, LockMode::Pr, 1, bits::UPDATE, 501),
        // Its holder moves the data away; the mark of that was lost with the server.
        lock(file, LockMode::Ex, 2, moves, 502),
        // What was never granted is none of a replay's business, nor what makes no sense.
        lock(Fid::ROOT, LockMode::Pr, 3, bits::LOOKUP, 0),
        lock(Fid::ROOT, LockMode::Pr, 4, 0, 504),
        lock(Fid::ROOT, LockMode::Pr, 5, bits::LOOKUP, 505),
        // What its holder saw is here, was lost, and is of an object that was lost.
        EnqueueReq { version: 1, ..lock(file, LockMode::Pr, 6, bits::XATTR, 506) },
        EnqueueReq { version: u64::MAX, ..lock(file, LockMode::Pr, 7, bits::XATTR, 507) },
        EnqueueReq { version: 1, ..lock(Fid::new(file.seq, file.oid + 100), LockMode::Pr, 8, bits::LOOKUP, 508) },
    ];
    let xid = w.send(0, Opcode::LdlmReplay, Tag(0), &batch(&good), Bytes::new(), flags::REPLAY);
    let rep: ReplayLocksRep = w.wait(0, xid).expect("an answer").decode().unwrap();
    let granted: Vec<bool> = rep.handles.iter().map(|handle| *handle != 0).collect();
    assert_eq!(granted, [true, true, false, false, true, true, false, false]);
    let failures: Vec<(u32, i32)> = rep.failed.iter().map(|f| (f.index, f.errno)).collect();
    let (invalid, stale) = (Errno::EINVAL.raw(), Errno::ESTALE.raw());
    assert_eq!(failures, [(2, invalid), (3, invalid), (6, stale), (7, stale)]);
    assert!(stdx::marks::count("replayed_lock_too_new") > 0);
    // The same again, as when the answer was lost: the same.
    let xid = w.send(0, Opcode::LdlmReplay, Tag(0), &batch(&good), Bytes::new(), flags::REPLAY | flags::RESENT);
    assert_eq!(w.wait(0, xid).expect("an answer").decode::<ReplayLocksRep>().unwrap(), rep);
    // Another client's that conflicts: the first one has it.
    let theirs = [lock(file, LockMode::Pr, 1, bits::LAYOUT, 601), lock(file, LockMode::Pr, 2, bits::LOOKUP, 602)];
    let xid = w.send(other, Opcode::LdlmReplay, Tag(0), &batch(&theirs), Bytes::new(), flags::REPLAY);
    let answer: ReplayLocksRep = w.wait(other, xid).expect("an answer").decode().unwrap();
    assert_eq!((answer.failed.len(), answer.failed[0].errno), (1, Errno::ESTALE.raw()));
    // Bytes that are no locks.
    let junk = ReplayLocksReq { locks: Bytes::from_static(b"\xffjunk") };
    let xid = w.send(0, Opcode::LdlmReplay, Tag(0), &junk, Bytes::new(), flags::REPLAY);
    assert_eq!(w.wait(0, xid).expect("an answer").header.status, -Errno::EPROTO.raw());
    let ends: Vec<(usize, u64)> = [0, other]
        .map(|at| (at, w.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), flags::LOCK_REPLAY_DONE)))
        .to_vec();
    for (at, xid) in ends {
        assert_eq!(w.wait(at, xid).expect("recovery ends").header.status, 0);
    }
    w.settle();
    w.sync();
    let mut leaving = false;
    w.edit_inode(file, |inode| leaving = inode.leaving);
    assert!(leaving, "marked again");
    // After recovery nobody replays.
    let xid = w.send(0, Opcode::LdlmReplay, Tag(0), &batch(&good), Bytes::new(), flags::REPLAY);
    assert_eq!(w.wait(0, xid).expect("an answer").header.status, -Errno::ENOTCONN.raw());
    let xid = w.send(0, Opcode::LdlmReplay, Tag(0), &batch(&good), Bytes::new(), 0);
    assert_eq!(w.wait(0, xid).expect("an answer").header.status, -Errno::EPROTO.raw());
}

/// The versions that version 0.1.0 said are not those that this one finds: a close made one, for example.
#[test]
fn what_an_older_version_answered_is_replayed_without_a_look_at_versions() {
    for (by_older, answers) in [(true, [0, 0]), (false, [0, -Errno::EOVERFLOW.raw()])] {
        let mut w = World::new();
        w.sync();
        w.commits = false;
        let file = w.mknod(Fid::ROOT, "file");
        w.link(file, Fid::ROOT, "second").unwrap();
        w.clients[0].kept[1].header.pre_versions[1] += 7;
        w.commits = true;
        if by_older {
            w.edit::<schema::Header>(&(), |header| header.versions_epoch = 0);
        }
        w.crash();
        w.reconnect(0);
        assert_eq!(statuses(&w.replay(0)), answers);
        if by_older {
            w.recovered(0);
            // What is answered from now on has versions that count.
            assert!(w.stored::<schema::Header>(&()).versions_epoch > 0);
            assert_eq!(w.names(Fid::ROOT), ["file", "second"]);
        }
    }
}

/// Its client copies the data to the objects that it was told of.
#[test]
fn a_file_that_got_other_objects_gets_the_same_in_a_replay_whatever_moved_beside_it() {
    const MOVES: u64 = bits::DOM | bits::LAYOUT;
    let mut w = World::new();
    knows_osts(&mut w, 2);
    let mover = w.connect();
    let (file, beside) = (w.mknod(Fid::ROOT, "file"), w.mknod(Fid::ROOT, "beside"));
    enqueue(&mut w, mover, beside, LockMode::Ex, MOVES);
    w.sync();
    w.clients[0].kept.clear();
    w.commits = false;
    let generation = w.getattr(file).unwrap().layout.unwrap().generation;
    let wish = Layout { want_first: -1, generation, ..Layout::default() };
    let op =
        SetlayoutOp { fid: file, kind: SetlayoutKind::Copy as i32, layout: Some(wish), lvb: None, dir_default: None };
    let answer = w.reint(Reint::Setlayout(op)).unwrap();
    // As the client's library does.
    w.clients[0].kept.last_mut().expect("the change").bulk = answer.encode_to_vec().into();
    let told = answer.attr.unwrap().layout;
    w.commits = true;
    w.crash();
    w.reconnect(0);
    (0..4).for_each(|_| w.settle());
    assert_eq!(statuses(&w.replay(0)), [0]);
    w.recovered(0);
    assert_eq!(w.getattr(file).unwrap().layout, told);
    assert_eq!(w.records::<schema::DestroyLog>(), 0);

    // A copy that lies elsewhere is never taken for the file.
    enqueue(&mut w, 0, file, LockMode::Ex, MOVES);
    let told = told.unwrap();
    let elsewhere = Layout { resident: false, first_object: told.first_object + 1, ..told };
    let lvb = Some(Lvb { size: 4, ..Lvb::default() });
    let op =
        SetlayoutOp { fid: file, kind: SetlayoutKind::Leave as i32, layout: Some(elsewhere), lvb, dir_default: None };
    assert_eq!(w.reint(Reint::Setlayout(op)), Err(Errno::ESTALE));
}

/// The file is not in memory when locks are asked for, so the requests have not come as far as the queue when one is not wanted any more.
/// Even so it takes away what a `flock` that changes its mode gives up first: its client counts on nothing else.
#[test]
fn a_record_lock_that_nobody_wants_any_more_does_not_begin_to_wait() {
    for is_flock in [false, true] {
        let mut w = World::new();
        let other = w.connect();
        let file = w.mknod(Fid::ROOT, "file");
        w.sync();
        w.crash();
        (0..2).for_each(|at| w.reconnect(at));
        w.all_recovered(&[0, 1]);
        let request = |w: &mut World, at: usize, mode: LockMode| {
            let (cookie, owner, end) = (w.new_cookie(at), 1, u64::MAX);
            let policy = Some(Policy::Flock(Flock { owner, end, is_flock, ..Flock::default() }));
            EnqueueReq { resource: Resource::flock(file), mode: mode as i32, cookie, policy, ..EnqueueReq::default() }
        };
        let ask =
            |w: &mut World, at, wanted: &EnqueueReq| w.send(at, Opcode::LdlmEnqueue, Tag(0), wanted, Bytes::new(), 0);
        let marks = stdx::marks::count("target.enqueue_refused_early");
        let both = [other, 0].map(|at| {
            let reads = request(&mut w, at, LockMode::Pr);
            (at, ask(&mut w, at, &reads))
        });
        let writes = request(&mut w, 0, LockMode::Pw);
        let asked = ask(&mut w, 0, &writes);
        let cancel = CancelReq { handles: Vec::new(), waiting_cookies: vec![writes.cookie] };
        w.send(0, Opcode::LdlmCancel, Tag(0), &cancel, Bytes::new(), 0);
        let loads = w.host.loads;
        for (at, reads) in both {
            assert_eq!(w.wait(at, reads).expect("an answer").header.status, 0);
        }
        assert!(w.host.loads > loads, "it was in memory");
        assert_eq!(w.wait(0, asked).expect("an answer").header.status, -Errno::EINTR.raw());
        assert_eq!(stdx::marks::count("target.enqueue_refused_early"), marks + 1);
        let again = ask(&mut w, 0, &writes);
        assert_eq!(w.wait(0, again).expect("an answer").header.status, -Errno::EINTR.raw(), "the first answer");
        // What it had to read stays, unless it was a `flock`.
        let alone = EnqueueReq { no_wait: true, ..request(&mut w, other, LockMode::Pw) };
        let asked = ask(&mut w, other, &alone);
        let status = if is_flock { 0 } else { -Errno::EAGAIN.raw() };
        assert_eq!(w.wait(other, asked).expect("an answer").header.status, status);
        w.check();
    }
}

/// The answer was lost, and names have come and gone before the listing is made again: entries have other places in it.
#[test]
fn a_listing_that_is_made_again_finds_the_locks_of_its_entries() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let files: Vec<Fid> = ["a", "b", "c", "d"].map(|name| w.mknod(dir, name)).into();
    let lister = w.connect();
    let first = w.new_cookie(lister);
    let request =
        ReaddirReq { fid: dir, max_bytes: 1 << 16, plus: true, entry_cookies: first, ..ReaddirReq::default() };
    let locks = |w: &mut World| {
        let rep: ReaddirRep = w.call(lister, Opcode::MdsReaddir, &request).unwrap();
        let lock = |entry: proto::msg::DirEntry| entry.lock.map(|lock| (entry.fid, (lock.cookie, lock.handle)));
        rep.entries.into_iter().filter_map(lock).collect::<std::collections::BTreeMap<Fid, (u64, u64)>>()
    };
    let before = locks(&mut w);
    assert_eq!(before.len(), files.len());
    assert_eq!(locks(&mut w), before, "nothing has changed");
    let gone = *before.iter().min_by_key(|(_, lock)| **lock).expect("a file").0;
    let name = ["a", "b", "c", "d"][files.iter().position(|file| *file == gone).expect("its name")];
    w.unlink(dir, name).unwrap();
    let after = locks(&mut w);
    for (file, lock) in before.iter().filter(|(file, _)| **file != gone) {
        assert_eq!(after.get(file), Some(lock));
    }
}
