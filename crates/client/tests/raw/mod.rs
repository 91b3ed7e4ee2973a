//! Clients of several metadata targets whose requests a test writes itself, and clusters for them.
#![allow(dead_code)] // each test takes what it needs

use std::time::Duration;

use bytes::Bytes;
use proto::msg::{
    CancelReq, CreateOp, GetattrReq, LinkOp, LookupReq, ObjectRep, Reint, ReintReq, RenameOp, SeqAllocRep, SeqAllocReq,
    TargetLostReq, UnlinkOp, WantLocks,
};
use proto::{ClientUuid, Fid, Frame, Opcode};
use testkit::cluster::{Cluster, RawExport, cred};

pub(crate) const DIR: u32 = 0o040_755;
pub(crate) const FILE: u32 = 0o100_644;

/// A client whose requests are written here, at metadata targets.
pub(crate) struct Raw {
    pub mdts: Vec<RawExport>,
    pub seqs: Vec<u64>,
    pub next: u32,
}

/// Two metadata targets, and the place of the second one among the servers.
pub(crate) fn cluster() -> (Cluster, usize) {
    let mut c = Cluster::new(1);
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    (c, mdt1)
}

/// Three of them.
pub(crate) fn three() -> (Cluster, [usize; 2]) {
    let mut c = Cluster::new(1);
    let mdts = ["fs-MDT0001", "fs-MDT0002"].map(|name| {
        let server = c.add_server(name);
        c.start(server);
        server
    });
    c.pass(Duration::from_secs(3));
    (c, mdts)
}

impl Raw {
    pub(crate) fn new(c: &mut Cluster, client: u128) -> Raw {
        Raw::at(c, client, &["fs-MDT0000", "fs-MDT0001"])
    }

    pub(crate) fn at(c: &mut Cluster, client: u128, targets: &[&str]) -> Raw {
        let mut mdts: Vec<_> = targets.iter().map(|name| c.raw_export_of(name, ClientUuid(client))).collect();
        let mut grant = |mdt: &mut RawExport| {
            let answer = c.raw_call(mdt, Opcode::SeqAlloc, &SeqAllocReq {});
            answer.decode::<SeqAllocRep>().unwrap().seq
        };
        let seqs = mdts.iter_mut().map(&mut grant).collect();
        Raw { mdts, seqs, next: 1 }
    }

    pub(crate) fn fid(&mut self, mdt: usize) -> Fid {
        self.next += 1;
        Fid::new(self.seqs[mdt], self.next)
    }

    pub(crate) fn reint(&mut self, c: &mut Cluster, mdt: usize, op: Reint) -> Frame {
        c.raw_try(&mut self.mdts[mdt], Opcode::MdsReint, &change(0, op))
    }

    /// Asks for a change, and does not wait.
    pub(crate) fn ask_for(&mut self, c: &mut Cluster, mdt: usize, uid: u32, op: Reint) {
        c.raw_ask(&mut self.mdts[mdt], Opcode::MdsReint, &change(uid, op));
        c.pass(Duration::from_millis(20));
    }

    /// The status that the last request was answered with, if it was.
    pub(crate) fn answer(&self, c: &mut Cluster, mdt: usize) -> Option<i32> {
        c.raw_answer(&self.mdts[mdt]).map(|frame| frame.header.status)
    }

    /// Makes an object on `on` with a name on `at`.
    pub(crate) fn create(
        &mut self,
        c: &mut Cluster,
        (at, on): (usize, usize),
        parent: Fid,
        name: &str,
        mode: u32,
    ) -> (Fid, i32) {
        let fid = self.fid(on);
        let mdt = (at != on).then_some(on as u32);
        (fid, self.reint(c, at, making(parent, name, fid, mode, mdt)).header.status)
    }

    /// Asks for a directory of this name in the root, which is to be on the second target, and does not wait.
    pub(crate) fn ask(&mut self, c: &mut Cluster, name: &str) -> Fid {
        let fid = self.fid(1);
        let op = making(Fid::ROOT, name, fid, DIR, Some(1));
        c.raw_ask(&mut self.mdts[0], Opcode::MdsReint, &change(0, op));
        fid
    }

    pub(crate) fn rmdir(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str) -> i32 {
        self.reint(c, at, removing(parent, name, true)).header.status
    }

    pub(crate) fn link(&mut self, c: &mut Cluster, at: usize, fid: Fid, (parent, name): (Fid, &str), kind: u32) -> i32 {
        self.reint(c, at, linking(fid, (parent, name), kind)).header.status
    }

    pub(crate) fn rename(&mut self, c: &mut Cluster, at: usize, op: RenameOp) -> i32 {
        self.reint(c, at, Reint::Rename(op)).header.status
    }

    pub(crate) fn unlink(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str) -> ObjectRep {
        self.reint(c, at, removing(parent, name, false)).decode().unwrap()
    }

    pub(crate) fn lookup(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str) -> ObjectRep {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let body = LookupReq { parent, name, want: None, cred: Some(cred(0)) };
        c.raw_call(&mut self.mdts[at], Opcode::MdsLookup, &body).decode().unwrap()
    }

    pub(crate) fn getattr(&mut self, c: &mut Cluster, at: usize, fid: Fid) -> Result<ObjectRep, i32> {
        let answer = c.raw_try(&mut self.mdts[at], Opcode::MdsGetattr, &GetattrReq { fid, ..GetattrReq::default() });
        if answer.header.status == 0 { Ok(answer.decode().unwrap()) } else { Err(answer.header.status) }
    }

    /// The object that a name leads to, with its target.
    pub(crate) fn leads_to(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str) -> Option<(Fid, u32)> {
        let rep = self.lookup(c, at, parent, name);
        let there = rep.elsewhere.map(|of| (of.fid, of.mdt));
        there.or(rep.attr.map(|attr| (attr.fid, at as u32)))
    }

    /// Takes a lock on an object, and returns its handle. Nobody gives it back unless the test does.
    pub(crate) fn lock(&mut self, c: &mut Cluster, at: usize, fid: Fid) -> u64 {
        let want = Some(WantLocks { object_cookie: 9, ..WantLocks::default() });
        let asked = GetattrReq { fid, want, ..GetattrReq::default() };
        let held: ObjectRep = c.raw_call(&mut self.mdts[at], Opcode::MdsGetattr, &asked).decode().unwrap();
        held.locks[0].handle
    }

    /// Gives it back, and does not wait.
    pub(crate) fn give_back(&mut self, c: &mut Cluster, at: usize, handle: u64) {
        let cancel = CancelReq { handles: vec![handle], waiting_cookies: Vec::new() };
        c.raw_ask(&mut self.mdts[at], Opcode::LdlmCancel, &cancel);
        c.pass(Duration::from_millis(20));
    }
}

/// The request of a change.
pub(crate) fn change(uid: u32, op: Reint) -> ReintReq {
    ReintReq { cred: Some(cred(uid)), now_ns: 7, op: Some(op), ..ReintReq::default() }
}

pub(crate) fn making(parent: Fid, name: &str, fid: Fid, mode: u32, mdt: Option<u32>) -> Reint {
    let name = Bytes::copy_from_slice(name.as_bytes());
    Reint::Create(CreateOp { parent, name, fid, mode, mdt, ..CreateOp::default() })
}

pub(crate) fn removing(parent: Fid, name: &str, rmdir: bool) -> Reint {
    let name = Bytes::copy_from_slice(name.as_bytes());
    Reint::Unlink(UnlinkOp { parent, name, rmdir, reported: None, entry_only: false })
}

pub(crate) fn linking(fid: Fid, (parent, name): (Fid, &str), kind: u32) -> Reint {
    let name = Bytes::copy_from_slice(name.as_bytes());
    Reint::Link(LinkOp { fid, parent, name, kind })
}

pub(crate) fn renaming((source_parent, from): (Fid, &str), (target_parent, to): (Fid, &str), flags: u32) -> RenameOp {
    let (source_name, target_name) = (Bytes::copy_from_slice(from.as_bytes()), Bytes::copy_from_slice(to.as_bytes()));
    RenameOp { source_parent, source_name, target_parent, target_name, flags, ..RenameOp::default() }
}

/// A client has asked for a directory `d` on the second target, whose record does not become durable.
pub(crate) fn unanswered(c: &mut Cluster, mdt1: usize) -> (Raw, Fid) {
    let mut a = Raw::new(c, 77);
    c.slow_server = Some(mdt1);
    let dir = a.ask(c, "d");
    c.pass(Duration::from_millis(50));
    (a, dir)
}

pub(crate) fn doubts(c: &Cluster, server: &str) -> usize {
    c.server_params(server, "mdt.*.changes_in_doubt")[0].1.lines().count()
}

/// An administrator declares a target lost.
pub(crate) fn declare_lost(c: &mut Cluster, target: &str) {
    let mut mgs = c.raw_export("MGS");
    c.raw_call(&mut mgs, Opcode::MgsTargetLost, &TargetLostReq { target: target.to_owned() });
    c.pass(Duration::from_secs(3));
}

/// A file on the third target is renamed from the second, which coordinates, to the first. Returns the file.
pub(crate) fn rename_over_three(c: &mut Cluster, [mdt1, mdt2]: [usize; 2], slow: usize) -> Fid {
    let mut a = Raw::at(c, 77, &["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"]);
    let (dir, _) = a.create(c, (0, 1), Fid::ROOT, "d", DIR);
    let (far, _) = a.create(c, (0, 2), Fid::ROOT, "far", DIR);
    let (file, _) = a.create(c, (2, 2), far, "f", FILE);
    assert_eq!(a.link(c, 1, file, (dir, "f"), FILE & 0o170_000), 0);
    c.pass(Duration::from_secs(3));
    c.slow_server = Some(slow);
    a.ask_for(c, 1, 0, Reint::Rename(renaming((dir, "f"), (Fid::ROOT, "g"), 0)));
    c.pass(Duration::from_millis(30));
    assert!(slow == mdt1 || slow == mdt2);
    file
}
