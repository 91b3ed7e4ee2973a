//! `.lustre`: what is there, what nobody may change, and stores that lack it.

use super::*;
use crate::ops::open::flags as o;
use crate::tests::rights::chmod;
use proto::msg::valid;
use schema::inode::{DOT_LUSTRE_FID_INO, DOT_LUSTRE_INO, LOST_FOUND_INO, ROOT_INO};
use schema::{Entry, EntryKey, Inode, LinkEa, Oi};

const BUILT_IN: [(Fid, u64); 3] =
    [(Fid::DOT_LUSTRE, DOT_LUSTRE_INO), (Fid::DOT_LUSTRE_FID, DOT_LUSTRE_FID_INO), (Fid::LOST_FOUND, LOST_FOUND_INO)];

/// The error of a change that must fail.
fn error<T: core::fmt::Debug>(result: Result<T, Errno>) -> Errno {
    result.expect_err("refused")
}

/// sanity 154e: the root does not list it, and counts nothing of it.
#[test]
fn the_root_neither_lists_nor_counts_it() {
    let mut w = World::new();
    assert_eq!(w.names(Fid::ROOT), [""; 0]);
    assert_eq!(w.lookup(Fid::ROOT, ".lustre"), None, "clients know the FID");
    assert_eq!(w.getattr(Fid::ROOT).unwrap().nlink, 2);
    assert_eq!(w.names(Fid::DOT_LUSTRE), ["fid", "lost+found"]);
    assert_eq!(w.names(Fid::DOT_LUSTRE_FID), [""; 0]);
    let mode = |w: &mut World, parent, name| w.lookup(parent, name).map(|attr| (attr.fid, attr.mode, attr.uid));
    assert_eq!(mode(&mut w, Fid::DOT_LUSTRE, "fid"), Some((Fid::DOT_LUSTRE_FID, S_IFDIR | 0o111, 0)));
    assert_eq!(mode(&mut w, Fid::DOT_LUSTRE, "lost+found"), Some((Fid::LOST_FOUND, S_IFDIR | 0o700, 0)));
    assert_eq!(mode(&mut w, Fid::DOT_LUSTRE, ".."), Some((Fid::ROOT, S_IFDIR | 0o755, 0)));
    let attr = w.getattr(Fid::DOT_LUSTRE).unwrap();
    assert_eq!((attr.mode, attr.nlink), (S_IFDIR | 0o555, 4));
    w.check();
}

#[test]
fn fid2path_names_its_directories() {
    let mut w = World::new();
    let lost = w.mknod(Fid::LOST_FOUND, "lost");
    let paths = [
        (Fid::DOT_LUSTRE, ".lustre"),
        (Fid::DOT_LUSTRE_FID, ".lustre/fid"),
        (Fid::LOST_FOUND, ".lustre/lost+found"),
        (lost, ".lustre/lost+found/lost"),
    ];
    for (fid, path) in paths {
        let request = Fid2pathReq { fid, cred: Some(cred(0)) };
        let rep: Fid2pathRep = w.call(0, Opcode::MdsFid2path, &request).unwrap();
        assert_eq!((rep.paths, rep.from), (vec![bytes(path)], vec![]));
    }
    w.check();
}

/// sanity 154a: nobody makes, removes or renames anything in `.lustre` and `.lustre/fid`, or `.lustre` itself.
#[test]
fn its_names_are_the_same_for_ever() {
    let mut w = World::new();
    let (file, dir) = (w.mknod(Fid::ROOT, "file"), w.mkdir(Fid::ROOT, "dir"));
    let places =
        [(Fid::ROOT, ".lustre"), (Fid::DOT_LUSTRE, "new"), (Fid::DOT_LUSTRE, "fid"), (Fid::DOT_LUSTRE_FID, "new")];
    for (parent, name) in places {
        assert_eq!(error(w.create(parent, name, S_IFDIR | 0o755)), Errno::EPERM, "{name}");
        assert_eq!(error(w.create(parent, name, S_IFREG | 0o644)), Errno::EPERM, "{name}");
        assert_eq!(error(w.open(0, parent, name, o::CREAT | 2)), Errno::EPERM, "{name}");
        assert_eq!(error(w.link(file, parent, name)), Errno::EPERM, "{name}");
        assert_eq!(error(w.rename((Fid::ROOT, "dir"), (parent, name), 0)), Errno::EPERM, "{name}");
        assert_eq!(error(w.rename((parent, name), (dir, "x"), 0)), Errno::EPERM, "{name}");
        assert_eq!(error(w.rename((dir, "x"), (parent, name), 2)), Errno::EPERM, "{name}");
        assert_eq!(error(w.unlink(parent, name)), Errno::EPERM, "{name}");
        assert_eq!(error(w.rmdir(parent, name)), Errno::EPERM, "{name}");
    }
    assert_eq!(error(w.rmdir(Fid::DOT_LUSTRE, "lost+found")), Errno::EPERM);
    assert_eq!(w.names(Fid::ROOT), ["dir", "file"]);
    assert_eq!(w.names(Fid::DOT_LUSTRE), ["fid", "lost+found"]);
    // Elsewhere it is a name like any other.
    w.mkdir(dir, ".lustre");
    w.rmdir(dir, ".lustre").unwrap();
    w.check();
}

/// A client that makes names in its own memory has them refused too.
#[test]
fn a_batch_makes_no_name_in_it() {
    let mut w = World::new();
    let create = |w: &mut World, parent, name| {
        let fid = w.new_fid(0);
        let mode = S_IFDIR | 0o755;
        let op = Reint::Create(CreateOp { parent, name: bytes(name), fid, mode, ..CreateOp::default() });
        ReintReq { cred: Some(cred(0)), now_ns: 7, want: None, op: Some(op) }
    };
    let changes = [
        create(&mut w, Fid::ROOT, ".lustre"),
        create(&mut w, Fid::DOT_LUSTRE_FID, "x"),
        create(&mut w, Fid::ROOT, "d"),
    ];
    let mut encoded = Vec::new();
    changes.iter().for_each(|change| BatchReq::push(&mut encoded, change));
    let request = BatchReq { changes: encoded.into(), returns_credits: false };
    let frame = w.ask(0, Opcode::MdsBatch, Tag(1), &request, Bytes::new()).unwrap();
    let rep: BatchRep = frame.decode().unwrap();
    let statuses: Vec<i32> = rep.results.iter().map(|result| result.status).collect();
    assert_eq!(statuses, [-Errno::EPERM.raw(), -Errno::EPERM.raw(), 0]);
    assert_eq!(w.names(Fid::ROOT), ["d"]);
    w.check();
}

#[test]
fn its_attributes_are_the_same_for_ever_except_those_of_lost_and_found() {
    let mut w = World::new();
    for (fid, _) in BUILT_IN {
        let op = SetattrOp { fid, valid: valid::MODE, mode: 0o750, ..SetattrOp::default() };
        let set = w.setattr_as(cred(0), op);
        let xattr = SetxattrOp { fid, name: bytes("user.x"), value: bytes("1"), ..SetxattrOp::default() };
        let attached = w.reint(Reint::Setxattr(xattr));
        match fid == Fid::LOST_FOUND {
            true => assert_eq!((set.unwrap().mode, attached.is_ok()), (S_IFDIR | 0o750, true)),
            false => assert_eq!((error(set), error(attached)), (Errno::EPERM, Errno::EPERM)),
        }
        let op = SetattrOp { fid, valid: valid::MODE, mode: 0o777, ..SetattrOp::default() };
        assert_eq!(error(w.setattr_as(cred(5), op)), Errno::EPERM, "not its owner");
        // A client notes that somebody has read it.
        let atime = valid::ATIME | valid::HOUSEKEEPING;
        let op = SetattrOp { fid, valid: atime, atime_ns: i64::MAX, ..SetattrOp::default() };
        assert!(w.setattr_as(cred(0), op).is_ok());
    }
    chmod(&mut w, Fid::LOST_FOUND, 0o700);
    w.check();
}

/// An older version has made the store: it works there as in a new one, and is made once.
#[test]
fn a_store_that_lacks_it_gets_it_at_the_next_start() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    w.sync();
    w.host.edit(|batch| {
        for (fid, ino) in BUILT_IN {
            batch.delete(Oi::key(&fid));
            batch.delete(Inode::key(&ino));
        }
    });
    for name in ["fid", "lost+found"] {
        let cookie = schema::first_cookie(&w.stored::<schema::Header>(&()), name.as_bytes());
        w.host.edit(|batch| batch.delete(Entry::key(&EntryKey { dir: DOT_LUSTRE_INO, cookie })));
    }
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    assert_eq!(w.names(Fid::DOT_LUSTRE), ["fid", "lost+found"]);
    assert_eq!(w.lookup(Fid::ROOT, "file").map(|attr| attr.fid), Some(file));
    let made = w.getattr(Fid::DOT_LUSTRE).unwrap();
    w.mknod(Fid::ROOT, "another");
    w.check();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    assert_eq!(w.getattr(Fid::DOT_LUSTRE), Ok(made));
    w.check();
}

/// An older version let a program make `.lustre` in the root. It keeps the name until somebody gives it another one.
#[test]
fn a_name_that_an_older_version_has_made_can_be_renamed_and_removed() {
    let mut w = World::new();
    let old = w.mkdir(Fid::ROOT, "x");
    let header = w.stored::<schema::Header>(&());
    let key = |name: &str| EntryKey { dir: ROOT_INO, cookie: schema::first_cookie(&header, name.as_bytes()) };
    let (before, after) = (key("x"), key(".lustre"));
    let rename = |w: &mut World| {
        w.sync();
        let entry = w.stored::<Entry>(&before);
        w.edit_inode(old, |inode| inode.links = LinkEa::one(Fid::ROOT, bytes(".lustre")));
        w.host.edit(|batch| {
            batch.delete(Entry::key(&before));
            batch.put(Entry::key(&after), Entry { name: bytes(".lustre"), ..entry }.encode_record());
        });
        w.crash();
        w.reconnect(0);
        w.recovered(0);
        assert_eq!(w.names(Fid::ROOT), [".lustre"]);
    };
    rename(&mut w);
    assert_eq!(error(w.create(Fid::ROOT, ".lustre", S_IFREG | 0o644)), Errno::EPERM);
    w.rename((Fid::ROOT, ".lustre"), (Fid::ROOT, "x"), 0).unwrap();
    w.check();
    rename(&mut w);
    w.rmdir(Fid::ROOT, ".lustre").unwrap();
    assert_eq!(error(w.rmdir(Fid::ROOT, ".lustre")), Errno::EPERM);
    w.check();
}
