//! Striped directories at the metadata targets, request by request.

use std::time::Duration;

use bytes::Bytes;
use proto::connect::features;
use proto::msg::{
    Attr, BatchReq, CancelReq, Close, CloseReq, CreateOp, DirHash, Fid2pathRep, Fid2pathReq, GetattrReq, GetxattrRep,
    GetxattrReq, Layout, LinkOp, LookupReq, ObjectRep, OpenOp, ReaddirRep, ReaddirReq, Reint, ReintReq, RenameOp,
    SeqAllocRep, SeqAllocReq, SetattrOp, SetlayoutKind, SetlayoutOp, SetxattrOp, Stripe, UnlinkOp, WantLocks, valid,
};
use proto::{ClientUuid, Errno, Fid, Frame, Opcode};
use rules::acl::{self, Ace, Acl, Who};
use stdx::marks;
use testkit::cluster::{Cluster, RawExport, cred};

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const TARGETS: [&str; 3] = ["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"];

/// A client whose requests are written here, at three metadata targets.
struct Raw {
    mdts: Vec<RawExport>,
    seqs: Vec<u64>,
    next: u32,
    uid: u32,
    now: i64,
}

/// A striped directory.
#[derive(Clone)]
struct Striped {
    /// The stripes with their targets; the first is the master.
    stripes: Vec<(Fid, usize)>,
}

impl Striped {
    fn fid(&self) -> Fid {
        self.stripes[0].0
    }

    fn count(&self) -> u32 {
        self.stripes.len() as u32
    }

    /// A name that belongs to this stripe; `number` of them are different.
    fn name(&self, stripe: usize, number: usize) -> String {
        let of = |name: &String| rules::stripes::of_hash(DirHash::Fnv1a64, name.as_bytes(), self.count());
        (0..).map(|n| format!("n{n}")).filter(|name| of(name) == stripe as u32).nth(number).unwrap()
    }

    /// The target and the FID of a stripe.
    fn at(&self, stripe: usize) -> (usize, Fid) {
        let (fid, mdt) = self.stripes[stripe];
        (mdt, fid)
    }
}

fn cluster() -> Cluster {
    let mut c = Cluster::new(1);
    for name in &TARGETS[1..] {
        let server = c.add_server(name);
        c.start(server);
    }
    c.pass(Duration::from_secs(2));
    c
}

/// Everything is at rest: no change is under way, and the targets fit together.
fn is_clean(c: &mut Cluster) {
    c.pass(Duration::from_secs(60));
    for name in TARGETS {
        assert_eq!(c.server_params(name, "mdt.*.changes_in_doubt")[0].1, "", "{name}");
        let uneasy: Vec<&String> = c.log.iter().filter(|line| line.contains("run lfsck")).collect();
        assert!(uneasy.is_empty(), "{uneasy:#?}");
    }
    // What one target says to another last travels with the next message.
    for name in TARGETS {
        c.restart_quietly(name);
    }
    c.pass(Duration::from_secs(200));
    let snapshots = TARGETS.map(|name| lfsck::Snapshot::new(c.records(name)));
    assert_eq!(lfsck::check(&snapshots.each_ref(), &[]), [], "{:#?}", c.log);
}

impl Raw {
    fn new(c: &mut Cluster, client: u128) -> Raw {
        Raw::with(c, client, features::SUPPORTED)
    }

    fn with(c: &mut Cluster, client: u128, features: u64) -> Raw {
        let mut mdts: Vec<_> =
            TARGETS.iter().map(|name| c.raw_export_with(name, ClientUuid(client), features)).collect();
        let mut grant = |mdt: &mut RawExport| {
            let answer = c.raw_call(mdt, Opcode::SeqAlloc, &SeqAllocReq {});
            answer.decode::<SeqAllocRep>().unwrap().seq
        };
        let seqs = mdts.iter_mut().map(&mut grant).collect();
        Raw { mdts, seqs, next: 1, uid: 0, now: 7 }
    }

    fn fid(&mut self, mdt: usize) -> Fid {
        self.next += 1;
        Fid::new(self.seqs[mdt], self.next)
    }

    fn body(&mut self, op: Reint) -> ReintReq {
        self.now += 1;
        ReintReq { cred: Some(cred(self.uid)), now_ns: self.now, op: Some(op), ..ReintReq::default() }
    }

    fn reint(&mut self, c: &mut Cluster, mdt: usize, op: Reint) -> Result<ObjectRep, Errno> {
        let body = self.body(op);
        let answer: Frame = c.raw_try(&mut self.mdts[mdt], Opcode::MdsReint, &body);
        Errno::from_status(answer.header.status).map(|()| answer.decode().unwrap())
    }

    /// A create of a striped directory in a directory on the target `at`, with stripes on these targets.
    fn striped(&mut self, parent: Fid, name: &str, on: &[usize]) -> (CreateOp, Striped) {
        let stripes: Vec<(Fid, usize)> = on.iter().map(|mdt| (self.fid(*mdt), *mdt)).collect();
        let new = |(fid, mdt): &(Fid, usize)| Stripe { fid: *fid, mdt: *mdt as u32 };
        let op = CreateOp {
            parent,
            name: Bytes::copy_from_slice(name.as_bytes()),
            fid: stripes[0].0,
            mode: DIR,
            mdt: Some(on[0] as u32),
            stripes: stripes[1..].iter().map(new).collect(),
            hash: DirHash::Fnv1a64 as i32,
            ..CreateOp::default()
        };
        (op, Striped { stripes })
    }

    fn mkdir(&mut self, c: &mut Cluster, at: usize, parent: Fid, name: &str, on: &[usize]) -> Striped {
        let (op, dir) = self.striped(parent, name, on);
        let rep = self.reint(c, at, Reint::Create(op)).unwrap_or_else(|errno| panic!("{errno:?}: {:#?}", c.log));
        let attr = rep.attr.expect("its attributes");
        assert_eq!((attr.fid, attr.nlink), (dir.fid(), 2));
        let stripes = dir.stripes.iter().map(|(fid, mdt)| Stripe { fid: *fid, mdt: *mdt as u32 }).collect();
        assert_eq!(attr.lmv.map(|lmv| (lmv.count, lmv.stripes)), Some((dir.count(), stripes)));
        dir
    }

    fn create(&mut self, c: &mut Cluster, (at, parent): (usize, Fid), name: &str, mode: u32) -> Result<Attr, Errno> {
        let fid = self.fid(at);
        let name = Bytes::copy_from_slice(name.as_bytes());
        let rep = self.reint(c, at, Reint::Create(CreateOp { parent, name, fid, mode, ..CreateOp::default() }))?;
        Ok(rep.attr.unwrap())
    }

    fn unlink(
        &mut self,
        c: &mut Cluster,
        (at, parent): (usize, Fid),
        name: &str,
        rmdir: bool,
    ) -> Result<ObjectRep, Errno> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.reint(c, at, Reint::Unlink(UnlinkOp { parent, name, rmdir, reported: None, entry_only: false }))
    }

    fn rename(
        &mut self,
        c: &mut Cluster,
        at: usize,
        from: (Fid, &str),
        to: (Fid, &str),
        flags: u32,
    ) -> Result<ObjectRep, Errno> {
        let name = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let op = RenameOp {
            source_parent: from.0,
            source_name: name(from.1),
            target_parent: to.0,
            target_name: name(to.1),
            flags,
            ..RenameOp::default()
        };
        self.reint(c, at, Reint::Rename(op))
    }

    fn ask(&mut self, c: &mut Cluster, at: usize, opcode: Opcode, body: &impl prost::Message) -> Result<Frame, Errno> {
        let answer = c.raw_try(&mut self.mdts[at], opcode, body);
        Errno::from_status(answer.header.status).map(|()| answer)
    }

    fn lookup(&mut self, c: &mut Cluster, (at, parent): (usize, Fid), name: &str) -> Result<ObjectRep, Errno> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let body = LookupReq { parent, name, want: None, cred: Some(cred(self.uid)) };
        Ok(self.ask(c, at, Opcode::MdsLookup, &body)?.decode().unwrap())
    }

    fn getattr(&mut self, c: &mut Cluster, (at, fid): (usize, Fid)) -> Result<Attr, Errno> {
        let answer = self.ask(c, at, Opcode::MdsGetattr, &GetattrReq { fid, ..GetattrReq::default() })?;
        Ok(answer.decode::<ObjectRep>().unwrap().attr.unwrap())
    }

    fn names(&mut self, c: &mut Cluster, (at, fid): (usize, Fid)) -> Result<Vec<String>, Errno> {
        let layout = self.getattr(c, (at, fid))?.lmv.map_or(0, |lmv| lmv.version);
        let cred = Some(cred(0));
        let body = ReaddirReq { fid, max_bytes: 1 << 16, cred, plus: true, layout, ..ReaddirReq::default() };
        let rep: ReaddirRep = self.ask(c, at, Opcode::MdsReaddir, &body)?.decode().unwrap();
        Ok(rep.entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect())
    }

    fn list(&mut self, c: &mut Cluster, (at, fid): (usize, Fid), name: &'static [u8]) -> Option<Bytes> {
        let body = GetxattrReq { fid, name: Bytes::from_static(name), cred: Some(cred(0)), ..GetxattrReq::default() };
        let rep: GetxattrRep = self.ask(c, at, Opcode::MdsGetxattr, &body).ok()?.decode().unwrap();
        Some(rep.xattrs[0].value.clone())
    }

    /// No stripe is there any more.
    fn is_gone(&mut self, c: &mut Cluster, dir: &Striped) {
        for stripe in 0..dir.stripes.len() {
            assert_eq!(self.getattr(c, dir.at(stripe)).map(drop), Err(Errno::ESTALE), "stripe {stripe}");
        }
    }
}

#[test]
fn names_are_in_their_stripe_only() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[0, 1, 2]);
    let found = a.lookup(&mut c, (0, Fid::ROOT), "d").unwrap();
    assert_eq!(found.parent_attr.unwrap().nlink, 3, "it is one directory");
    assert_eq!(found.attr.unwrap().lmv.unwrap().stripes.len(), 3);
    for stripe in 0..3 {
        let lmv = a.getattr(&mut c, dir.at(stripe)).unwrap().lmv.unwrap();
        let master = (stripe > 0).then_some(dir.fid());
        assert_eq!((lmv.index, lmv.master, lmv.count, lmv.version), (stripe as u32, master, 3, 1));
        let name = dir.name(stripe, 0);
        let file = a.create(&mut c, dir.at(stripe), &name, FILE).unwrap().fid;
        assert_eq!(a.lookup(&mut c, dir.at(stripe), &name).unwrap().attr.unwrap().fid, file);
        let other = dir.at((stripe + 1) % 3);
        assert_eq!(a.lookup(&mut c, other, &name).map(drop), Err(Errno::EREMCHG));
        assert_eq!(a.create(&mut c, other, &dir.name(stripe, 1), FILE).map(drop), Err(Errno::EREMCHG));
        assert_eq!(a.unlink(&mut c, other, &name, false).map(drop), Err(Errno::EREMCHG));
        let link = |parent: Fid, name: String| LinkOp { fid: file, parent, name: name.into(), kind: FILE & 0o170_000 };
        let wrong = Reint::Link(link(other.1, dir.name(stripe, 1)));
        assert_eq!(a.reint(&mut c, other.0, wrong).map(drop), Err(Errno::EREMCHG));
        let right = Reint::Link(link(dir.at(stripe).1, dir.name(stripe, 1)));
        assert_eq!(a.reint(&mut c, dir.at(stripe).0, right).map(drop), Ok(()));
        let (from, to) = ((dir.at(stripe).1, &*name), (dir.at(stripe).1, &*dir.name((stripe + 1) % 3, 5)));
        assert_eq!(a.rename(&mut c, stripe, from, to, 0).map(drop), Err(Errno::EREMCHG));
        let to = (other.1, &*dir.name(stripe, 5));
        assert_eq!(a.rename(&mut c, stripe, from, to, 0).map(drop), Err(Errno::EREMCHG), "also where it would go");
        let fid = a.fid(other.0);
        let open = OpenOp {
            parent: Some(other.1),
            name: dir.name(stripe, 3).into(),
            fid,
            flags: 0o102,
            mode: 0o644,
            ..OpenOp::default()
        };
        assert_eq!(a.reint(&mut c, other.0, Reint::Open(open)).map(drop), Err(Errno::EREMCHG));
        let up = a.lookup(&mut c, dir.at(stripe), "..").unwrap();
        let up = up.attr.map(|attr| attr.fid).or(up.elsewhere.map(|of| of.fid));
        assert_eq!(up, Some(if stripe == 0 { Fid::ROOT } else { dir.fid() }));
        let mut names = vec![name.clone(), dir.name(stripe, 1)];
        names.sort();
        let mut listed = a.names(&mut c, dir.at(stripe)).unwrap();
        listed.sort();
        assert_eq!(listed, names);
        let body = Fid2pathReq { fid: file, cred: Some(cred(0)) };
        let paths: Fid2pathRep = a.ask(&mut c, dir.at(stripe).0, Opcode::MdsFid2path, &body).unwrap().decode().unwrap();
        let path = if stripe == 0 { format!("d/{name}") } else { name.clone() };
        assert_eq!(paths.paths[0], path.as_bytes());
        assert!(stripe == 0 || paths.from[0] == dir.fid(), "its path goes on at the master");
        let (at, fid) = dir.at(stripe);
        let body = Fid2pathReq { fid, cred: Some(cred(0)) };
        let paths: Fid2pathRep = a.ask(&mut c, at, Opcode::MdsFid2path, &body).unwrap().decode().unwrap();
        assert_eq!(paths.paths[0], if stripe == 0 { "d" } else { "" }, "that of the master");
        let rep = a.unlink(&mut c, dir.at(stripe), &name, false).unwrap();
        assert_eq!(rep.attr.map(|attr| attr.nlink), Some(1));
    }
    // A file of one target gets a name on another.
    let file = a.create(&mut c, dir.at(0), &dir.name(0, 9), FILE).unwrap().fid;
    let link = LinkOp { fid: file, parent: dir.at(1).1, name: dir.name(1, 9).into(), kind: FILE & 0o170_000 };
    assert_eq!(a.reint(&mut c, 1, Reint::Link(link)).map(drop), Ok(()));
    is_clean(&mut c);
}

#[test]
fn a_directory_goes_with_all_stripes_or_not_at_all() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    // The master is here, and it is elsewhere.
    for on in [[0, 1, 2], [1, 2, 0], [2, 1, 0]] {
        let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &on);
        for stripe in 0..3 {
            let name = dir.name(stripe, 0);
            a.create(&mut c, dir.at(stripe), &name, DIR).unwrap();
            let refused = a.unlink(&mut c, (0, Fid::ROOT), "d", true).map(drop);
            assert_eq!(refused, Err(Errno::ENOTEMPTY), "{on:?} {stripe}");
            for stripe in 0..3 {
                a.getattr(&mut c, dir.at(stripe)).unwrap();
            }
            a.unlink(&mut c, dir.at(stripe), &name, true).unwrap();
        }
        assert_eq!(a.unlink(&mut c, (0, Fid::ROOT), "d", false).map(drop), Err(Errno::EISDIR));
        let rep = a.unlink(&mut c, (0, Fid::ROOT), "d", true).unwrap_or_else(|e| panic!("{e:?} {:#?}", c.log));
        assert!(rep.destroyed && rep.parent_attr.unwrap().nlink == 2, "{on:?}");
        assert_eq!(rep.attr.unwrap().nlink, 0);
        a.is_gone(&mut c, &dir);
    }
    assert!(marks::count("mdt.stripes_unknown") > 0, "an elsewhere that has stripes says so");
    is_clean(&mut c);
}

#[test]
fn all_stripes_may_be_on_one_target() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[0, 0]);
    for stripe in 0..2 {
        a.create(&mut c, dir.at(stripe), &dir.name(stripe, 0), FILE).unwrap();
    }
    assert_eq!(a.unlink(&mut c, (0, Fid::ROOT), "d", true).map(drop), Err(Errno::ENOTEMPTY));
    for stripe in 0..2 {
        a.unlink(&mut c, dir.at(stripe), &dir.name(stripe, 0), false).unwrap();
    }
    c.pass(Duration::from_secs(10));
    c.restart("fs-MDT0000");
    let mut a = Raw::new(&mut c, 78);
    a.getattr(&mut c, dir.at(1)).unwrap();
    let chmod = SetattrOp { fid: dir.fid(), valid: valid::MODE, mode: 0o700, ..SetattrOp::default() };
    a.reint(&mut c, 0, Reint::Setattr(chmod)).unwrap();
    assert_eq!(a.getattr(&mut c, dir.at(1)).unwrap().mode, 0o040_700);
    a.unlink(&mut c, (0, Fid::ROOT), "d", true).unwrap();
    a.is_gone(&mut c, &dir);
    // Five is the most, master and all.
    let (op, _) = a.striped(Fid::ROOT, "e", &[0; 6]);
    assert_eq!(a.reint(&mut c, 0, Reint::Create(op)).map(drop), Err(Errno::EINVAL));
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "e", &[1; 5]);
    a.unlink(&mut c, (0, Fid::ROOT), "e", true).unwrap();
    a.is_gone(&mut c, &dir);
    is_clean(&mut c);
}

/// The target dies when a change of it alone is staged, or done, and durably so.
#[test]
fn a_change_without_participants_survives_its_target() {
    let mut c = cluster();
    let mdt0 = c.server("fs-MDT0000");
    for (wait, name) in [(0, "a"), (1, "b"), (5, "c"), (20, "d"), (200, "e")] {
        let mut a = Raw::new(&mut c, 77 + wait);
        let (op, dir) = a.striped(Fid::ROOT, name, &[0, 0, 0]);
        let body = a.body(Reint::Create(op));
        c.raw_ask(&mut a.mdts[0], Opcode::MdsReint, &body);
        c.pass(Duration::from_millis(wait as u64));
        c.kill(mdt0);
        c.start(mdt0);
        c.pass(Duration::from_secs(200));
        let mut b = Raw::new(&mut c, 177 + wait);
        let there = b.lookup(&mut c, (0, Fid::ROOT), name).unwrap().attr.is_some();
        for stripe in 0..3 {
            assert_eq!(b.getattr(&mut c, dir.at(stripe)).is_ok(), there, "{name} {stripe}");
        }
        is_clean(&mut c);
    }
}

#[test]
fn what_stripes_have_in_common_changes_in_all() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[1, 0, 2]);
    let set = |valid: u32| SetattrOp {
        fid: dir.fid(),
        valid,
        mode: 0o2770,
        gid: 9,
        atime_ns: 3,
        mtime_ns: 2,
        ..SetattrOp::default()
    };
    a.now = 1000;
    let rep = a.reint(&mut c, 1, Reint::Setattr(set(valid::MODE | valid::GID))).unwrap();
    assert_eq!(rep.attr.map(|attr| (attr.fid, attr.mode, attr.gid)), Some((dir.fid(), 0o042_770, 9)));
    let list = Acl::new(
        [(Who::UserObj, 7), (Who::User(9), 6), (Who::GroupObj, 5), (Who::Mask, 7), (Who::Other, 1)]
            .map(|(who, perm)| Ace { who, perm }),
    )
    .unwrap()
    .to_value();
    for name in [acl::ACCESS, acl::DEFAULT] {
        let op =
            SetxattrOp { fid: dir.fid(), name: Bytes::from_static(name), value: list.clone(), ..SetxattrOp::default() };
        a.reint(&mut c, 1, Reint::Setxattr(op)).unwrap();
    }
    let layout = Layout { want_count: 2, want_first: -1, ..Layout::default() };
    let op = SetlayoutOp {
        fid: dir.fid(),
        kind: SetlayoutKind::Set as i32,
        layout: Some(layout),
        lvb: None,
        dir_default: None,
    };
    a.reint(&mut c, 1, Reint::Setlayout(op)).unwrap();
    let user = SetxattrOp { fid: dir.fid(), name: "user.x".into(), value: "1".into(), ..SetxattrOp::default() };
    a.reint(&mut c, 1, Reint::Setxattr(user)).unwrap();
    for stripe in 0..3 {
        let attr = a.getattr(&mut c, dir.at(stripe)).unwrap();
        assert_eq!((attr.mode, attr.gid), (0o042_771, 9), "stripe {stripe}");
        assert!(attr.ctime_ns >= 1000);
        assert_eq!(attr.layout.map(|layout| layout.want_count), Some(2));
        for name in [acl::ACCESS, acl::DEFAULT] {
            assert_eq!(a.list(&mut c, dir.at(stripe), name), Some(list.clone()));
        }
        assert_eq!(a.list(&mut c, dir.at(stripe), b"user.x").is_some(), stripe == 0, "only the master has it");
        let made = a.create(&mut c, dir.at(stripe), &dir.name(stripe, 0), DIR).unwrap();
        assert_eq!((made.gid, made.mode & 0o2000), (9, 0o2000), "new directories inherit it");
        assert!(a.list(&mut c, (dir.at(stripe).0, made.fid), acl::DEFAULT).is_some());
        if stripe > 0 {
            let fid = dir.at(stripe).1;
            let others = [
                Reint::Setattr(SetattrOp { fid, ..set(valid::MODE) }),
                Reint::Setxattr(SetxattrOp { fid, name: "user.x".into(), ..SetxattrOp::default() }),
                Reint::Setlayout(SetlayoutOp { fid, kind: SetlayoutKind::Set as i32, ..SetlayoutOp::default() }),
                Reint::Open(OpenOp { fid, flags: 0o200_000, ..OpenOp::default() }),
            ];
            for op in others {
                assert_eq!(a.reint(&mut c, dir.at(stripe).0, op).map(drop), Err(Errno::ESTALE));
            }
        }
    }
    // Times: only those that a program sets.
    let before: Vec<i64> = (0..3).map(|stripe| a.getattr(&mut c, dir.at(stripe)).unwrap().mtime_ns).collect();
    a.reint(&mut c, 1, Reint::Setattr(set(valid::ATIME))).unwrap();
    for (stripe, before) in before.into_iter().enumerate() {
        let attr = a.getattr(&mut c, dir.at(stripe)).unwrap();
        assert_eq!((attr.atime_ns, attr.mtime_ns), (3, before));
    }
    a.reint(&mut c, 1, Reint::Setattr(set(valid::MTIME))).unwrap();
    for stripe in 0..3 {
        assert_eq!(a.getattr(&mut c, dir.at(stripe)).unwrap().mtime_ns, 2);
    }
    a.reint(&mut c, 1, Reint::Setattr(SetattrOp { atime_ns: 99, ..set(valid::ATIME | valid::HOUSEKEEPING) })).unwrap();
    let atimes: Vec<i64> = (0..3).map(|stripe| a.getattr(&mut c, dir.at(stripe)).unwrap().atime_ns).collect();
    assert_eq!(atimes, [99, 3, 3], "what the client keeps house of is the master's");
    is_clean(&mut c);
}

#[test]
fn a_rename_replaces_an_empty_directory_with_all_stripes() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    for on in [[0, 1, 2], [0, 0, 0], [1, 2, 0]] {
        let root = Fid::ROOT;
        let dir = a.mkdir(&mut c, 0, root, "d", &on);
        let plain = a.create(&mut c, (0, root), "e", DIR).unwrap().fid;
        for stripe in 0..3 {
            a.create(&mut c, dir.at(stripe), &dir.name(stripe, 0), FILE).unwrap();
            let refused = a.rename(&mut c, 0, (root, "e"), (root, "d"), 0).map(drop);
            assert_eq!(refused, Err(Errno::ENOTEMPTY), "{on:?} {stripe}");
            a.unlink(&mut c, dir.at(stripe), &dir.name(stripe, 0), false).unwrap();
        }
        a.rename(&mut c, 0, (root, "e"), (root, "d"), 2).unwrap();
        a.rename(&mut c, 0, (root, "e"), (root, "d"), 2).unwrap();
        let rep = a.rename(&mut c, 0, (root, "e"), (root, "d"), 0).unwrap();
        assert!(rep.destroyed, "{on:?}");
        assert_eq!(a.lookup(&mut c, (0, root), "d").unwrap().attr.unwrap().fid, plain);
        a.is_gone(&mut c, &dir);
        a.unlink(&mut c, (0, root), "d", true).unwrap();
    }
    is_clean(&mut c);
}

#[test]
fn a_directory_keeps_its_parent_from_stripe_to_stripe() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[0, 1, 1]);
    let (from, to, near) = (dir.name(0, 0), dir.name(1, 0), dir.name(2, 0));
    let child = a.create(&mut c, dir.at(0), &from, DIR).unwrap().fid;
    let links = |a: &mut Raw, c: &mut Cluster| [0, 1, 2].map(|stripe| a.getattr(c, dir.at(stripe)).unwrap().nlink);
    assert_eq!(links(&mut a, &mut c), [3, 2, 2]);
    a.rename(&mut c, 0, (dir.at(0).1, &from), (dir.at(1).1, &to), 0).unwrap();
    assert_eq!(links(&mut a, &mut c), [2, 3, 2]);
    // The directory is elsewhere, both names are here.
    a.rename(&mut c, 1, (dir.at(1).1, &to), (dir.at(2).1, &near), 0).unwrap();
    assert_eq!(links(&mut a, &mut c), [2, 2, 3]);
    let found = a.lookup(&mut c, dir.at(2), &near).unwrap().elsewhere.map(|of| of.fid);
    assert_eq!(found, Some(child));
    let up = a.lookup(&mut c, (0, child), "..").unwrap().attr.unwrap().fid;
    assert_eq!(up, dir.fid(), "its parent is the master");
    let body = Fid2pathReq { fid: child, cred: Some(cred(0)) };
    let paths: Fid2pathRep = a.ask(&mut c, 0, Opcode::MdsFid2path, &body).unwrap().decode().unwrap();
    assert_eq!(paths.paths[0], format!("d/{near}").as_bytes());
    // To another parent over several targets, and back to a stripe.
    a.rename(&mut c, 1, (dir.at(2).1, &near), (Fid::ROOT, "x"), 0).unwrap();
    assert_eq!(links(&mut a, &mut c), [2, 2, 2]);
    a.rename(&mut c, 0, (Fid::ROOT, "x"), (dir.at(2).1, &near), 0).unwrap();
    assert_eq!(links(&mut a, &mut c), [2, 2, 3]);
    let up = a.lookup(&mut c, (0, child), "..").unwrap().attr.unwrap().fid;
    assert_eq!(up, dir.fid());
    let refused = a.rename(&mut c, 0, (Fid::ROOT, "d"), (child, "y"), 0).map(drop);
    assert_eq!(refused, Err(Errno::EINVAL));
    // Files go anywhere, also where all is on one target.
    a.create(&mut c, dir.at(1), &dir.name(1, 7), FILE).unwrap();
    a.rename(&mut c, 1, (dir.at(1).1, &dir.name(1, 7)), (dir.at(2).1, &dir.name(2, 7)), 0).unwrap();
    a.rename(&mut c, 1, (dir.at(2).1, &dir.name(2, 7)), (dir.at(2).1, &dir.name(2, 8)), 0).unwrap();
    let sub = a.create(&mut c, dir.at(1), &dir.name(1, 7), DIR).unwrap().fid;
    a.rename(&mut c, 1, (dir.at(1).1, &dir.name(1, 7)), (dir.at(2).1, &dir.name(2, 7)), 0).unwrap();
    let up = |a: &mut Raw, c: &mut Cluster| a.lookup(c, (1, sub), "..").unwrap().elsewhere.map(|of| of.fid);
    assert_eq!(up(&mut a, &mut c), Some(dir.fid()));
    a.rename(&mut c, 1, (dir.at(2).1, &dir.name(2, 7)), (dir.at(2).1, &dir.name(2, 8)), 2).unwrap();
    assert_eq!(up(&mut a, &mut c), Some(dir.fid()));
    a.unlink(&mut c, dir.at(2), &dir.name(2, 7), false).unwrap();
    a.unlink(&mut c, dir.at(2), &dir.name(2, 8), true).unwrap();
    let file = a.create(&mut c, dir.at(0), &dir.name(0, 1), FILE).unwrap().fid;
    a.rename(&mut c, 0, (dir.at(0).1, &dir.name(0, 1)), (dir.at(1).1, &dir.name(1, 1)), 0).unwrap();
    a.rename(&mut c, 1, (dir.at(1).1, &dir.name(1, 1)), (Fid::ROOT, "f"), 0).unwrap();
    assert_eq!(a.lookup(&mut c, (0, Fid::ROOT), "f").unwrap().attr.unwrap().fid, file);
    a.unlink(&mut c, dir.at(2), &near, true).unwrap();
    a.unlink(&mut c, (0, Fid::ROOT), "d", true).unwrap();
    is_clean(&mut c);
}

/// A participant dies before it has voted; another time the coordinator does, with the change in doubt.
#[test]
fn a_crash_leaves_all_stripes_or_none() {
    for (dies, wait) in [("fs-MDT0001", 1), ("fs-MDT0002", 50), ("fs-MDT0000", 50), ("fs-MDT0000", 2)] {
        let mut c = cluster();
        let (slow, dies) = (c.server("fs-MDT0001"), c.server(dies));
        let mut a = Raw::new(&mut c, 77);
        let kept = a.mkdir(&mut c, 0, Fid::ROOT, "kept", &[0, 1, 2]);
        let (op, dir) = a.striped(Fid::ROOT, "d", &[2, 1, 0]);
        let body = a.body(Reint::Create(op));
        c.slow_server = Some(slow);
        c.raw_ask(&mut a.mdts[0], Opcode::MdsReint, &body);
        let name = Bytes::from_static(b"kept");
        let rmdir = UnlinkOp { parent: Fid::ROOT, name, rmdir: true, reported: None, entry_only: false };
        let body = a.body(Reint::Unlink(rmdir));
        c.raw_ask(&mut a.mdts[0], Opcode::MdsReint, &body);
        c.pass(Duration::from_millis(wait));
        c.kill(dies);
        c.slow_server = None;
        c.start(dies);
        c.pass(Duration::from_secs(200));
        let mut b = Raw::new(&mut c, 78);
        for (name, dir) in [("d", &dir), ("kept", &kept)] {
            let found = b.lookup(&mut c, (0, Fid::ROOT), name).unwrap();
            let there = found.attr.is_some() || found.elsewhere.is_some();
            for stripe in 0..3 {
                assert_eq!(b.getattr(&mut c, dir.at(stripe)).is_ok(), there, "{name}, stripe {stripe}");
            }
        }
        is_clean(&mut c);
    }
}

#[test]
fn clients_without_the_feature_see_no_stripes() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[0, 1, 2]);
    let file = a.create(&mut c, dir.at(0), &dir.name(0, 0), FILE).unwrap().fid;
    let mut old = Raw::with(&mut c, 78, features::SUPPORTED & !features::DIR_STRIPE);
    let no = Err(Errno::EOPNOTSUPP);
    assert_eq!(old.lookup(&mut c, (0, Fid::ROOT), "d").map(drop), no);
    assert_eq!(old.getattr(&mut c, dir.at(0)).map(drop), no);
    assert_eq!(old.lookup(&mut c, dir.at(0), &dir.name(0, 0)).map(drop), no);
    assert_eq!(old.lookup(&mut c, dir.at(0), "..").map(drop), no);
    assert_eq!(old.create(&mut c, dir.at(0), &dir.name(0, 1), FILE).map(drop), no);
    assert_eq!(old.names(&mut c, dir.at(0)).map(drop), no);
    assert_eq!(old.unlink(&mut c, (0, Fid::ROOT), "d", true).map(drop), no);
    assert_eq!(old.rename(&mut c, 0, (Fid::ROOT, "d"), (Fid::ROOT, "e"), 0).map(drop), no);
    let chmod = SetattrOp { fid: dir.fid(), valid: valid::MODE, ..SetattrOp::default() };
    assert_eq!(old.reint(&mut c, 0, Reint::Setattr(chmod)).map(drop), no);
    let open = OpenOp { fid: dir.fid(), flags: 0o200_000, ..OpenOp::default() };
    assert_eq!(old.reint(&mut c, 0, Reint::Open(open)).map(drop), no);
    let (op, _) = old.striped(Fid::ROOT, "x", &[0, 1]);
    assert_eq!(old.reint(&mut c, 0, Reint::Create(op)).map(drop), no);
    let shown = |a: &mut Raw, c: &mut Cluster| {
        let body =
            ReaddirReq { fid: Fid::ROOT, max_bytes: 1 << 16, cred: Some(cred(0)), plus: true, ..ReaddirReq::default() };
        let rep: ReaddirRep = a.ask(c, 0, Opcode::MdsReaddir, &body).unwrap().decode().unwrap();
        rep.entries.iter().map(|entry| entry.attr.is_some()).collect::<Vec<_>>()
    };
    assert_eq!((shown(&mut a, &mut c), shown(&mut old, &mut c)), (vec![true], vec![false]));
    old.getattr(&mut c, (0, file)).unwrap();
    is_clean(&mut c);
}

#[test]
fn what_a_striped_directory_may_be() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let mut other = Raw::new(&mut c, 78);
    let mut refused = |c: &mut Cluster, what: &dyn Fn(&mut CreateOp)| {
        let (mut op, _) = a.striped(Fid::ROOT, "d", &[0, 1, 2]);
        what(&mut op);
        a.reint(c, 0, Reint::Create(op)).map(drop)
    };
    assert_eq!(refused(&mut c, &|op| op.mode = FILE), Err(Errno::EPROTO));
    assert_eq!(refused(&mut c, &|op| op.hash = 9), Err(Errno::EINVAL));
    let twice = |op: &mut CreateOp| op.stripes[0] = Stripe { fid: op.fid, mdt: 0 };
    assert_eq!(refused(&mut c, &twice), Err(Errno::EPROTO));
    assert_eq!(refused(&mut c, &|op| op.stripes[1].mdt = 1), Err(Errno::EPROTO), "not its target");
    let many = |op: &mut CreateOp| {
        op.stripes = (0..2000).map(|n| Stripe { fid: Fid::new(op.fid.seq, 1000 + n), mdt: n }).collect();
    };
    assert_eq!(refused(&mut c, &many), Err(Errno::EOVERFLOW));
    for mdt in 0..3 {
        let foreign = other.fid(mdt);
        let with = |op: &mut CreateOp| match mdt {
            0 => op.fid = foreign,
            mdt => op.stripes[mdt - 1].fid = foreign,
        };
        assert_eq!(refused(&mut c, &with), Err(Errno::EPROTO), "a sequence of another client");
    }
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.enable_striped_dir", "0");
    assert_eq!(refused(&mut c, &|_| {}), Err(Errno::EPERM));
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.enable_striped_dir", "1");
    assert_eq!(refused(&mut c, &|op| op.hash = 0), Ok(()));
    assert_eq!(refused(&mut c, &|_| {}), Err(Errno::EEXIST));
    let found = a.lookup(&mut c, (0, Fid::ROOT), "d").unwrap();
    assert_eq!(found.attr.unwrap().lmv.unwrap().hash, DirHash::Fnv1a64 as i32);
    let chmod = SetattrOp { fid: Fid::ROOT, valid: valid::MODE, mode: 0o777, ..SetattrOp::default() };
    a.reint(&mut c, 0, Reint::Setattr(chmod)).unwrap();
    a.uid = 5;
    let (op, _) = a.striped(Fid::ROOT, "e", &[0, 0]);
    assert_eq!(a.reint(&mut c, 0, Reint::Create(op)).map(drop), Err(Errno::EPERM), "an administrator may");
    // Write-back makes none.
    a.uid = 0;
    let (op, _) = a.striped(Fid::ROOT, "e", &[0, 0]);
    let change = a.body(Reint::Create(op));
    let mut changes = Vec::new();
    BatchReq::push(&mut changes, &change);
    let batch = BatchReq { changes: changes.into(), returns_credits: false };
    let answer = c.raw_try(&mut a.mdts[0], Opcode::MdsBatch, &batch);
    let rep: proto::msg::BatchRep = answer.decode().unwrap();
    assert_eq!(rep.results[0].status, -Errno::EXDEV.raw());
    is_clean(&mut c);
}

/// The parts of a change of many stripes are one record at its coordinator.
#[test]
fn a_directory_with_more_stripes_than_there_is_room_for_is_not_made() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    // Every stripe inherits it.
    let users = (1..30).map(|uid| (Who::User(uid), 6));
    let others = [(Who::UserObj, 7), (Who::GroupObj, 5), (Who::Mask, 7), (Who::Other, 1)];
    let value = Acl::new(users.chain(others).map(|(who, perm)| Ace { who, perm })).unwrap().to_value();
    let name = Bytes::from_static(acl::DEFAULT);
    a.reint(&mut c, 0, Reint::Setxattr(SetxattrOp { fid: Fid::ROOT, name, value, ..SetxattrOp::default() })).unwrap();
    let (op, _) = a.striped(Fid::ROOT, "d", &[0]);
    let stripe = |n: u32| Stripe { fid: Fid::new(op.fid.seq + 0x1000 * u64::from(n + 1), 1), mdt: 1 + n / 5 };
    let wide = CreateOp { stripes: (0..1000).map(stripe).collect(), ..op };
    let refused = (1..200).find_map(|room| {
        c.set_store_room("fs-MDT0000", room << 16);
        let answer = a.reint(&mut c, 0, Reint::Create(wide.clone())).map(drop);
        (marks::count("cross.no_room") > 0).then_some(answer)
    });
    assert_eq!(refused, Some(Err(Errno::ENOSPC)));
    // For a few there is. (The other targets have not heard of the first client for minutes.)
    let mut a = Raw::new(&mut c, 78);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[0, 1, 2]);
    a.unlink(&mut c, (0, Fid::ROOT), "d", true).unwrap();
    a.is_gone(&mut c, &dir);
    is_clean(&mut c);
}

/// What clients have cached of a stripe is called back before it changes, here and elsewhere.
#[test]
fn locks_on_stripes_come_back_first() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &[0, 0, 1]);
    let chmod = SetattrOp { fid: dir.fid(), valid: valid::MODE, mode: 0o700, ..SetattrOp::default() };
    let name = Bytes::from_static(b"d");
    let rmdir = UnlinkOp { parent: Fid::ROOT, name, rmdir: true, reported: None, entry_only: false };
    let mut client = 100;
    for op in [Reint::Setattr(chmod), Reint::Unlink(rmdir)] {
        for stripe in [1, 2] {
            let (at, fid) = dir.at(stripe);
            client += 1;
            let (mut b, mut other) = (Raw::new(&mut c, client), Raw::new(&mut c, client + 50));
            let want = Some(WantLocks { object_cookie: 9, ..WantLocks::default() });
            let body = GetattrReq { fid, want, ..GetattrReq::default() };
            let held: ObjectRep = b.ask(&mut c, at, Opcode::MdsGetattr, &body).unwrap().decode().unwrap();
            let before = other.getattr(&mut c, (at, fid)).unwrap();
            let op = match op.clone() {
                Reint::Setattr(op) => Reint::Setattr(SetattrOp { mode: 0o700 + stripe as u32, ..op }),
                op => op,
            };
            let body = a.body(op);
            c.raw_ask(&mut a.mdts[0], Opcode::MdsReint, &body);
            c.pass(Duration::from_millis(300));
            assert_eq!(other.getattr(&mut c, (at, fid)).map(|attr| attr.mode), Ok(before.mode), "stripe {stripe}");
            let cancel = CancelReq { handles: vec![held.locks[0].handle], waiting_cookies: Vec::new() };
            c.raw_ask(&mut b.mdts[at], Opcode::LdlmCancel, &cancel);
            c.pass(Duration::from_secs(3));
            let after = other.getattr(&mut c, (at, fid)).map(|attr| attr.mode);
            assert_ne!(after, Ok(before.mode), "stripe {stripe}");
            if after.is_err() {
                is_clean(&mut c);
                return;
            }
        }
    }
}

/// A removed directory that is open has no stripes any more.
#[test]
fn a_removed_directory_stays_open_without_its_stripes() {
    let mut c = cluster();
    let mut a = Raw::new(&mut c, 77);
    for on in [[0, 1, 2], [1, 1, 0]] {
        let dir = a.mkdir(&mut c, 0, Fid::ROOT, "d", &on);
        let (at, fid) = dir.at(0);
        let open = OpenOp { fid, flags: 0o200_000, ..OpenOp::default() };
        let handle = a.reint(&mut c, at, Reint::Open(open)).unwrap().handle;
        let rep = a.unlink(&mut c, (0, Fid::ROOT), "d", true).unwrap();
        assert!(!rep.destroyed, "it is open");
        for stripe in 1..3 {
            assert_eq!(a.getattr(&mut c, dir.at(stripe)).map(drop), Err(Errno::ESTALE));
        }
        let chmod = SetattrOp { fid, valid: valid::MODE, mode: 0o711, ..SetattrOp::default() };
        a.reint(&mut c, at, Reint::Setattr(chmod)).unwrap();
        let name = Bytes::from_static(acl::DEFAULT);
        let op = SetxattrOp { fid, name, value: Bytes::from_static(&[2, 0, 0, 0]), ..SetxattrOp::default() };
        a.reint(&mut c, at, Reint::Setxattr(op)).unwrap();
        assert_eq!(a.getattr(&mut c, (at, fid)).map(|attr| (attr.mode, attr.nlink)), Ok((0o040_711, 0)));
        let body = CloseReq { closes: vec![Close { fid, handle, ..Close::default() }] };
        a.ask(&mut c, at, Opcode::MdsClose, &body).unwrap();
        c.pass(Duration::from_secs(5));
        a.is_gone(&mut c, &dir);
    }
    is_clean(&mut c);
}
