//! Changes with parts on several metadata targets, request by request.

use std::time::Duration;

use bytes::Bytes;
use proto::msg::{
    CreateOp, CrossSessionReq, GetattrReq, LookupReq, ObjectRep, Reint, ReintReq, RenameOp, SeqAllocRep, SeqAllocReq,
    UnlinkOp, WantLocks,
};
use proto::{ClientUuid, Errno, Fid, Frame, Opcode};
use stdx::marks;
use testkit::cluster::{Cluster, RawExport, cred};

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

/// A client whose requests are written here, at two metadata targets.
struct Raw {
    mdts: [RawExport; 2],
    seqs: [u64; 2],
    next: u32,
}

fn cluster() -> (Cluster, usize) {
    let mut c = Cluster::new(1);
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    (c, mdt1)
}

impl Raw {
    fn new(c: &mut Cluster, client: u128) -> Raw {
        let mut mdts = ["fs-MDT0000", "fs-MDT0001"].map(|name| c.raw_export_of(name, ClientUuid(client)));
        let seqs = [0, 1].map(|at| {
            let answer = c.raw_call(&mut mdts[at], Opcode::SeqAlloc, &SeqAllocReq {});
            answer.decode::<SeqAllocRep>().unwrap().seq
        });
        Raw { mdts, seqs, next: 1 }
    }

    fn fid(&mut self, mdt: usize) -> Fid {
        self.next += 1;
        Fid::new(self.seqs[mdt], self.next)
    }

    fn reint(&mut self, c: &mut Cluster, mdt: usize, op: Reint) -> Frame {
        let body = ReintReq { cred: Some(cred(0)), now_ns: 7, op: Some(op), ..ReintReq::default() };
        c.raw_try(&mut self.mdts[mdt], Opcode::MdsReint, &body)
    }

    /// Makes an object on `on` with a name on `at`.
    fn create(&mut self, c: &mut Cluster, (at, on): (usize, usize), parent: Fid, name: &str, mode: u32) -> (Fid, i32) {
        let fid = self.fid(on);
        let name = Bytes::copy_from_slice(name.as_bytes());
        let mdt = (at != on).then_some(on as u32);
        let op = CreateOp { parent, name, fid, mode, mdt, ..CreateOp::default() };
        (fid, self.reint(c, at, Reint::Create(op)).header.status)
    }

    fn rmdir(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str) -> i32 {
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.reint(c, at, Reint::Unlink(UnlinkOp { parent, name, rmdir: true, reported: None })).header.status
    }

    fn lookup(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str) -> ObjectRep {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let body = LookupReq { parent, name, want: None, cred: Some(cred(0)) };
        c.raw_call(&mut self.mdts[at], Opcode::MdsLookup, &body).decode().unwrap()
    }

    fn getattr(&mut self, c: &mut Cluster, at: usize, fid: Fid) -> Result<ObjectRep, i32> {
        let answer = c.raw_try(&mut self.mdts[at], Opcode::MdsGetattr, &GetattrReq { fid, ..GetattrReq::default() });
        if answer.header.status == 0 { Ok(answer.decode().unwrap()) } else { Err(answer.header.status) }
    }
}

#[test]
fn a_directory_is_made_and_removed_on_another_target() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, status) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, 0, "{:#?}", c.log);
    let found = a.lookup(&mut c, 0, Fid::ROOT, "d");
    assert_eq!((found.attr.is_none(), found.elsewhere.map(|e| (e.fid, e.mdt))), (true, Some((dir, 1))));
    assert_eq!(found.parent_attr.unwrap().nlink, 3);
    let attr = a.getattr(&mut c, 1, dir).unwrap().attr.unwrap();
    assert_eq!((attr.mode, attr.nlink), (DIR, 2));
    let (_, status) = a.create(&mut c, (1, 1), dir, "f", FILE);
    assert_eq!(status, 0);
    let (_, status) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, -Errno::EEXIST.raw());
    assert_eq!(a.rmdir(&mut c, 0, Fid::ROOT, "d"), -Errno::ENOTEMPTY.raw());
    assert!(marks::count("cross.staged") > 0 && marks::count("cross.refused") > 0);
    // Back to the first one.
    let (back, status) = a.create(&mut c, (1, 0), dir, "back", DIR);
    assert_eq!(status, 0);
    let up = a.lookup(&mut c, 0, back, "..");
    assert_eq!(up.elsewhere.map(|e| (e.fid, e.mdt)), Some((dir, 1)));
    assert_eq!(a.rmdir(&mut c, 1, dir, "back"), 0);
    let name = Bytes::from_static(b"f");
    let unlink = Reint::Unlink(UnlinkOp { parent: dir, name, rmdir: false, reported: None });
    assert_eq!(a.reint(&mut c, 1, unlink).header.status, 0);
    assert_eq!(a.rmdir(&mut c, 0, Fid::ROOT, "d"), 0, "{:#?}", c.log);
    assert_eq!(a.getattr(&mut c, 1, dir).map(drop), Err(-Errno::ESTALE.raw()));
    assert_eq!(a.lookup(&mut c, 0, Fid::ROOT, "d").parent_attr.unwrap().nlink, 2);
}

impl Raw {
    /// Asks for a directory on the second target, and does not wait.
    fn ask(&mut self, c: &mut Cluster, name: &str) -> Fid {
        let fid = self.fid(1);
        let name = Bytes::copy_from_slice(name.as_bytes());
        let op = CreateOp { parent: Fid::ROOT, name, fid, mode: DIR, mdt: Some(1), ..CreateOp::default() };
        let body = ReintReq { cred: Some(cred(0)), now_ns: 7, op: Some(Reint::Create(op)), ..ReintReq::default() };
        c.raw_ask(&mut self.mdts[0], Opcode::MdsReint, &body);
        fid
    }
}

/// A client has asked for a directory `d` on the second target, whose record does not become durable.
fn unanswered(c: &mut Cluster, mdt1: usize) -> (Raw, Fid) {
    let mut a = Raw::new(c, 77);
    c.slow_server = Some(mdt1);
    let dir = a.ask(c, "d");
    c.pass(Duration::from_millis(50));
    (a, dir)
}

fn doubts(c: &Cluster, server: &str) -> usize {
    c.server_params(server, "mdt.*.changes_in_doubt")[0].1.lines().count()
}

#[test]
fn what_needs_a_target_that_is_away_is_asked_again_and_nothing_else_waits() {
    let (mut c, mdt1) = cluster();
    let mut a = Raw::new(&mut c, 77);
    c.kill(mdt1);
    let (_, status) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, -Errno::EINPROGRESS.raw());
    assert!(marks::count("cross.no_session") > 0 && marks::count("cross.in_progress") > 0);
    let (_, status) = a.create(&mut c, (0, 0), Fid::ROOT, "e", DIR);
    assert_eq!(status, 0);
    assert!(a.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.is_none());
    c.start(mdt1);
    c.pass(Duration::from_secs(120));
    let mut b = Raw::new(&mut c, 78);
    let (_, status) = b.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, 0);
}

/// The coordinator dies with its staged record durable, and the prepared record becomes durable afterwards.
#[test]
fn a_change_in_doubt_is_done_if_all_have_it() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (a, dir) = unanswered(&mut c, mdt1);
    c.kill(mdt0);
    c.slow_server = None;
    c.pass(Duration::from_secs(2));
    assert_eq!(doubts(&c, "fs-MDT0001"), 1);
    let mut b = Raw { mdts: a.mdts, seqs: a.seqs, next: a.next };
    assert_eq!(b.getattr(&mut c, 1, dir).map(drop), Err(-Errno::EINPROGRESS.raw()), "its key is in doubt");
    c.start(mdt0);
    c.pass(Duration::from_secs(120));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
    let mut b = Raw::new(&mut c, 78);
    assert_eq!(b.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.map(|e| e.fid), Some(dir), "{:#?}", c.log);
    b.getattr(&mut c, 1, dir).unwrap();
    assert!(marks::count("cross.in_doubt") > 0 && marks::count("cross.key_wait") > 0);
    assert!(marks::count("cross.committed_without_request") > 0);
}

/// Both die, and the prepared record was not durable.
#[test]
fn a_change_in_doubt_is_dropped_if_one_does_not_have_it() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (_, dir) = unanswered(&mut c, mdt1);
    c.kill(mdt0);
    c.kill(mdt1);
    c.slow_server = None;
    c.start(mdt0);
    let mdts = ["fs-MDT0000", "fs-MDT0000"].map(|name| c.raw_export_of(name, ClientUuid(78)));
    let mut b = Raw { mdts, seqs: [0; 2], next: 0 };
    assert_eq!(doubts(&c, "fs-MDT0000"), 1);
    let name = Bytes::from_static(b"d");
    let body = LookupReq { parent: Fid::ROOT, name, want: None, cred: Some(cred(0)) };
    let answer = c.raw_try(&mut b.mdts[1], Opcode::MdsLookup, &body);
    assert_eq!(answer.header.status, -Errno::EINPROGRESS.raw(), "the name is in doubt");
    c.start(mdt1);
    c.pass(Duration::from_secs(100));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
    let mut b = Raw::new(&mut c, 79);
    assert!(b.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.is_none());
    assert_eq!(b.getattr(&mut c, 1, dir).map(drop), Err(-Errno::ESTALE.raw()));
    let (_, status) = b.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, 0);
}

/// The participant dies before it has voted: the attempt is given up, and made anew when it is back.
#[test]
fn an_attempt_without_a_vote_is_given_up() {
    let (mut c, mdt1) = cluster();
    let (mut a, _) = unanswered(&mut c, mdt1);
    c.kill(mdt1);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    assert!(marks::count("cross.given_up") > 0);
    assert!(a.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.is_none(), "its key is free");
    assert_eq!(doubts(&c, "fs-MDT0000"), 0);
}

/// A client that does not give back its lock on a directory holds up nobody but those who want to remove it.
#[test]
fn a_participant_whose_locks_do_not_come_back_is_busy() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let mut b = Raw::new(&mut c, 78);
    let want = Some(WantLocks { object_cookie: 9, ..WantLocks::default() });
    let found = c.raw_call(&mut b.mdts[1], Opcode::MdsGetattr, &GetattrReq { fid: dir, want, ..GetattrReq::default() });
    assert_eq!(found.decode::<ObjectRep>().unwrap().locks.len(), 1);
    let op = UnlinkOp { parent: Fid::ROOT, name: Bytes::from_static(b"d"), rmdir: true, reported: None };
    let body = ReintReq { cred: Some(cred(0)), now_ns: 7, op: Some(Reint::Unlink(op)), ..ReintReq::default() };
    c.raw_ask(&mut a.mdts[0], Opcode::MdsReint, &body);
    c.pass(Duration::from_secs(5));
    assert!(marks::count("cross.busy") > 0 && marks::count("cross.busy_with_locks") > 0);
    let mut other = Raw::new(&mut c, 79);
    assert_eq!(other.create(&mut c, (0, 1), Fid::ROOT, "e", DIR).1, 0);
    assert_eq!(other.create(&mut c, (1, 1), dir, "f", FILE).1, 0, "nothing is held meanwhile");
}

/// What metadata targets say to each other is heard from nobody else.
#[test]
fn a_client_passes_for_no_metadata_target() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let session = CrossSessionReq { mdt: 0, session: u64::MAX, instance: 7 };
    for opcode in [Opcode::CrossSession, Opcode::CrossPrepare, Opcode::CrossTell] {
        let answer = c.raw_try(&mut a.mdts[1], opcode, &session);
        assert_eq!(answer.header.status, -Errno::EOPNOTSUPP.raw());
    }
    assert!(marks::count("cross.no_peer") > 0);
    assert_eq!(a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR).1, 0);
}

#[test]
fn a_directory_moves_only_where_its_target_sees_that_there_is_no_loop() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let mut tree = |c: &mut Cluster, name: &str| {
        let (near, _) = a.create(c, (0, 0), Fid::ROOT, name, DIR);
        let (far, _) = a.create(c, (0, 1), near, "far", DIR);
        let (_, status) = a.create(c, (1, 1), far, "moved", DIR);
        assert_eq!(status, 0);
        far
    };
    let (from, to) = (tree(&mut c, "a"), tree(&mut c, "b"));
    let name = Bytes::from_static(b"moved");
    let (source_name, target_name) = (name.clone(), Bytes::from_static(b"here"));
    let op = RenameOp { source_parent: from, source_name, target_parent: to, target_name, ..RenameOp::default() };
    assert_eq!(a.reint(&mut c, 1, Reint::Rename(op.clone())).header.status, -Errno::EXDEV.raw());
    assert!(marks::count("mdt.way_up_leaves") > 0);
    let op = RenameOp { target_parent: from, ..op };
    assert_eq!(a.reint(&mut c, 1, Reint::Rename(op)).header.status, 0);
}

#[test]
fn a_directory_on_a_target_that_nobody_knows_is_refused() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (parent, name, fid) = (Fid::ROOT, Bytes::from_static(b"d"), a.fid(1));
    let op = CreateOp { parent, name, fid, mode: DIR, mdt: Some(9), ..CreateOp::default() };
    assert_eq!(a.reint(&mut c, 0, Reint::Create(op)).header.status, -Errno::ENODEV.raw());
    assert!(marks::count("cross.unknown_target") > 0);
}
