//! One filled-in value of every record and of every part of one: each field set, each to a value of its own.
//!
//! Whoever adds a field sets it here, and its golden line grows at its end.

use super::{big, negative};
use core::fmt::Debug;
use proto::Bytes;
use proto::msg::{
    Config, CrossPart, DirDefault, DirHash, Layout, Lmv, NameKeys, Param, Pool, SequenceRange, Stripe, TargetEntry,
};
use proto::{ClientUuid, Fid, StripeIndex};
use schema::inode::{DirState, InodeXattr};
use schema::links::Link;
use schema::mdt::SeqRange;
use schema::object::ObjectKey;
use schema::session::{ClientRec, KnownConfig, Progress, ReplyRec, SlotRec};
use schema::*;

/// What is done with every sample.
pub trait Visitor {
    /// A record and what names it.
    fn record<R: Record + PartialEq + Debug>(&mut self, name: &'static str, id: R::Id, record: R)
    where
        R::Id: PartialEq + Debug;
    /// A message that is a part of records.
    fn part<M: prost::Message + Default + PartialEq + Debug>(&mut self, name: &'static str, part: M);
}

const fn fid(n: u32) -> Fid {
    Fid::new(big(n as u64), n + 1)
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn layout() -> Layout {
    Layout {
        stripe_size: 1,
        osts: vec![2, 3],
        resident: true,
        generation: 4,
        want_count: -5,
        want_first: -6,
        first_object: 7,
        pool: "pool".into(),
    }
}

fn dir_default() -> DirDefault {
    DirDefault {
        count: -2,
        overstripe: true,
        mdts: vec![3, big(4) as u32],
        hash: DirHash::Crush as i32,
        max_inherit: 5,
        max_inherit_rr: 6,
    }
}

fn lmv() -> Lmv {
    Lmv {
        hash: DirHash::Crush2 as i32,
        count: 1,
        version: 2,
        stripes: vec![Stripe { fid: fid(3), mdt: 7 }, Stripe { fid: fid(4), mdt: 0 }],
        master: Some(fid(5)),
        index: 6,
        former_count: 8,
        former_hash: DirHash::AllChar as i32,
        moved: -9,
    }
}

fn link(n: u32) -> Link {
    Link { parent: fid(n), name: bytes("name") }
}

fn links() -> LinkEa {
    LinkEa { links: vec![link(1), link(3)], overflow: true }
}

fn dir_state() -> DirState {
    DirState { entries: big(1), next_ino: big(2), tombstones: big(3) }
}

fn xattr() -> InodeXattr {
    InodeXattr { name: bytes("user.name"), value: bytes("value"), large: true }
}

fn inode() -> Inode {
    Inode {
        fid: fid(1),
        mode: 3,
        uid: 4,
        gid: 5,
        nlink: 6,
        rdev: big(7),
        size: big(8),
        blocks: big(9),
        atime_ns: negative(10),
        mtime_ns: negative(11),
        mtime_set_ns: negative(21),
        ctime_ns: negative(12),
        btime_ns: negative(13),
        version: big(14),
        layout: Some(layout()),
        links: links(),
        xattrs: vec![xattr(), InodeXattr { name: bytes("user.other"), ..xattr() }],
        symlink: bytes("symlink"),
        dir: dir_state(),
        leaving: true,
        next_object: 22,
        lmv: Some(Box::new(lmv())),
        dir_default: Some(Box::new(dir_default())),
    }
}

fn seq_range(n: u64) -> SeqRange {
    SeqRange { start: big(n), end: big(n + 1) }
}

fn slot(n: u64) -> SlotRec {
    SlotRec {
        tag: n as u32,
        xid: big(n + 1),
        transno: big(n + 2),
        result: -(n as i32),
        data: big(n + 3),
        pre_versions: vec![big(n + 4), big(n + 5)],
    }
}

fn config() -> Config {
    Config {
        version: big(1),
        targets: vec![TargetEntry {
            target: "target".into(),
            nids: vec!["nid".into()],
            instance: big(2),
            losses: 3,
            is_lost: true,
        }],
        params: vec![Param { path: "path".into(), value: "value".into() }],
        fsname: "fsname".into(),
        pools: vec![Pool { name: "pool".into(), osts: vec![1, 300] }],
        replaced: 3,
        sequences: vec![SequenceRange { start: big(3), end: big(4), mdt: 5 }],
    }
}

/// Gives every sample to the visitor, in a fixed order.
pub fn for_each(v: &mut impl Visitor) {
    v.record(
        "Header",
        (),
        Header {
            name: "name".into(),
            uuid: bytes("uuid"),
            compat: big(1),
            rocompat: big(2),
            incompat: big(3),
            epoch: 4,
            mount_count: big(5),
            mgs_nids: vec!["nid a".into(), "nid b".into()],
            registered: true,
            made_by: "version".into(),
            made_ns: negative(6),
            params: vec!["a.b=1".into(), "c.*.d=2".into()],
            versions_epoch: 7,
            name_key: bytes("name key"),
            open_key: bytes("open key"),
            open_key_epoch: 9,
            second_key: bytes("second key"),
            newer_count: big(8),
            replaces: true,
            replaced: 10,
            losses: 11,
            takes_keys: true,
        },
    );
    v.record("Progress", (), Progress { last_transno: big(1), last_generation: 2 });
    v.part("SlotRec", slot(1));
    v.record(
        "ClientRec",
        ClientUuid(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        ClientRec {
            generation: 1,
            description: "description".into(),
            slots: vec![slot(2), slot(9)],
            last_epoch: 16,
            session: big(17),
        },
    );
    v.record(
        "ReplyRec",
        (0x0102_0304, proto::Tag(0x0506)),
        ReplyRec { xid: big(1), transno: big(2), result: -3, data: big(4), pre_versions: vec![big(5), big(6)] },
    );
    v.record("KnownConfig", (), KnownConfig { config: Some(config()) });

    v.part("Link", link(1));
    v.part("LinkEa", links());
    v.part("DirState", dir_state());
    v.part("InodeXattr", xattr());
    v.record("Inode", big(1), inode());
    v.record("LargeXattr", (big(1), bytes("user.name")), LargeXattr(bytes("value")));
    v.record("SmallData", big(1), SmallData(bytes("data")));
    v.record(
        "Entry",
        EntryKey { dir: big(1), cookie: big(2) },
        Entry { name: bytes("name"), fid: Some(fid(3)), kind: 5, ino: big(6), mdt: Some(big(7) as u32) },
    );
    v.record("Oi", fid(1), Oi { ino: big(2) });
    v.record("Orphan", fid(1), Orphan { ino: big(2) });
    v.record(
        "DestroyLog",
        ObjectsKey { fid: fid(1), first: 0 },
        DestroyLog { osts: vec![2, 3], client: bytes("sixteen bytes...") },
    );
    v.record(
        "CrossRec",
        CrossKey { participant: true, mdt: 1, instance: big(2), serial: big(3) },
        CrossRec {
            done: true,
            age: big(1),
            age_mdt: 2,
            members: vec![3, 4],
            parts: vec![CrossPart { mdt: 5, ..CrossPart::default() }],
            client: bytes("sixteen bytes..."),
            tag: 6,
            xid: big(7),
            losses: vec![8, 9],
            coordinator_losses: 10,
        },
    );
    v.record("LossRec", 1, LossRec { losses: 2 });
    v.record(
        "LeftRec",
        CrossKey { participant: true, mdt: 1, instance: big(2), serial: big(3) },
        LeftRec { lost: 1, losses: 2, done: true, part: Some(CrossPart { mdt: 3, ..CrossPart::default() }) },
    );
    v.record("SeqGrant", big(1), SeqGrant { client: bytes("sixteen bytes..."), high: 2, recent: big(3) });
    v.part("SeqRange", seq_range(1));
    v.record("Moving", fid(1), Moving {});
    let stripes = vec![Stripe { fid: fid(1), mdt: 0 }, Stripe { fid: fid(2), mdt: 1 }];
    v.record("Relayout", fid(1), Relayout { stripes, settled: true });
    v.record(
        "MdtState",
        (),
        MdtState { next_region: big(1), sequences: vec![seq_range(2), seq_range(4)], allocated: vec![seq_range(6)] },
    );

    v.record(
        "Object",
        ObjectKey { fid: Fid { seq: big(1), oid: 2, ver: 3 }, stripe: StripeIndex(4) },
        Object {
            file: big(1),
            size: big(2),
            blocks: big(3),
            atime_ns: negative(4),
            mtime_ns: negative(5),
            ctime_ns: negative(6),
            uid: 7,
            gid: 8,
            version: big(9),
            instance: big(10),
        },
    );
    let unborn = vec![big(2), big(3)];
    v.record("OstState", (), OstState { next_file: big(1), unborn, objects: big(4), marked_from: big(5) });
    v.record(
        "Written",
        ObjectKey { fid: Fid { seq: big(1), oid: 2, ver: 3 }, stripe: StripeIndex(4) },
        Written { file: big(1), instance: big(2) },
    );
    v.record("DoomedFile", big(1), DoomedFile {});

    v.record(
        "TargetRec",
        "fs-OST0001".to_owned(),
        TargetRec {
            uuid: bytes("uuid"),
            nids: vec!["nid a".into(), "nid b".into()],
            instance: big(1),
            start: big(2),
            replaced: 3,
            losses: 4,
            admitted: 5,
        },
    );
    v.record("ParamRec", ("fs".to_owned(), "path".to_owned()), ParamRec { value: "value".into() });
    v.record(
        "FsRec",
        "fs".to_owned(),
        FsRec {
            config_version: big(1),
            next_sequence: big(2),
            replaced: 3,
            sequences: vec![SequenceRange { start: big(4), end: big(5), mdt: 6 }],
            name_keys: Some(NameKeys { first: bytes("first key"), second: bytes("second key") }),
        },
    );
    v.record("MgtState", (), MgtState { next_sequence: big(1) });
    v.record("PoolRec", ("fs".to_owned(), "pool".to_owned()), PoolRec { osts: vec![1, 300] });
}
