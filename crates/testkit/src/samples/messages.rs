//! One filled-in value, or several, of every message: each field set, each to a value of its own.
//!
//! Numbers of 64 bits lie above 2³², so a field that became narrower no longer compiles. Whoever adds a field sets it
//! here, and its golden line grows at its end.

use super::{big, negative};
use proto::msg::*;
use proto::{Bytes, Fid};

/// What every message can do.
pub trait Body: prost::Message + Default + PartialEq + Clone + core::fmt::Debug {}
impl<M: prost::Message + Default + PartialEq + Clone + core::fmt::Debug> Body for M {}

/// What is done with every sample.
pub trait Visitor {
    /// `name` is the message's, with the chosen variant behind a slash where it has a `oneof`.
    fn visit<M: Body>(&mut self, name: &'static str, sample: M);
}

const fn fid(n: u32) -> Fid {
    Fid { seq: big(n as u64), oid: n + 1, ver: n + 2 }
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn resource(n: u32) -> Resource {
    Resource { fid: fid(n), kind: ResourceKind::Flock as i32, stripe: n + 3 }
}

fn extent(n: u64) -> Extent {
    Extent { start: big(n), end: big(n + 1) }
}

fn flock(n: u64) -> Flock {
    Flock { start: big(n), end: big(n + 1), owner: big(n + 2), pid: n as u32 + 3, is_flock: true }
}

fn lvb(n: u64) -> Lvb {
    let time = |k: i64| negative(n as i64 + k);
    Lvb { size: big(n), blocks: big(n + 1), atime_ns: time(2), mtime_ns: time(3), ctime_ns: time(4) }
}

fn grant(n: u32, policy: Policy) -> LockGrant {
    LockGrant {
        handle: big(u64::from(n)),
        cookie: big(u64::from(n) + 1),
        resource: resource(n + 2),
        policy: Some(policy),
        mode: LockMode::Pw as i32,
    }
}

fn cred(n: u32) -> Cred {
    Cred {
        uid: n,
        gid: n + 1,
        groups: vec![n + 2, n + 3],
        umask: n + 4,
        capabilities: big(u64::from(n) + 5),
        job: "job".into(),
    }
}

fn pool() -> Pool {
    Pool { name: "pool".into(), osts: vec![1, 300] }
}

fn layout(n: u32) -> Layout {
    Layout {
        stripe_size: n,
        osts: vec![n + 1, n + 2],
        resident: true,
        generation: n + 3,
        want_count: -1,
        want_first: -(n as i32),
        first_object: n + 7,
        pool: "pool".into(),
    }
}

fn attr(n: u32) -> Attr {
    let (number, time) = (|k: u64| big(u64::from(n) + k), |k: i64| negative(i64::from(n) + k));
    Attr {
        fid: fid(n),
        mode: n + 3,
        uid: n + 4,
        gid: n + 5,
        nlink: n + 6,
        rdev: number(7),
        size: number(8),
        blocks: number(9),
        atime_ns: time(10),
        mtime_ns: time(11),
        ctime_ns: time(12),
        btime_ns: time(13),
        version: number(14),
        layout: Some(layout(n + 15)),
        has_xattrs: true,
        mtime_set_ns: time(16),
        lmv: Some(Box::new(lmv(n + 17))),
        dir_default: Some(Box::new(dir_default(n + 24))),
    }
}

fn dir_default(n: u32) -> DirDefault {
    DirDefault {
        count: -(n as i32),
        overstripe: true,
        mdts: vec![n + 1, big(u64::from(n) + 2) as u32],
        hash: DirHash::Crush as i32,
        max_inherit: n + 3,
        max_inherit_rr: n + 4,
    }
}

fn lmv(n: u32) -> Lmv {
    Lmv {
        hash: DirHash::Crush2 as i32,
        count: n + 1,
        version: n + 2,
        stripes: vec![stripe(n + 3), stripe(n + 4)],
        master: Some(fid(n + 5)),
        index: n + 6,
        former_count: n + 7,
        former_hash: DirHash::AllChar as i32,
        moved: -8,
    }
}

fn stripe(n: u32) -> Stripe {
    Stripe { fid: fid(n), mdt: big(u64::from(n)) as u32 }
}

fn attrs_act() -> AttrsAct {
    AttrsAct { fid: fid(1), inode: bytes("inode"), atime: true, mtime: true }
}

fn relayout_act() -> RelayoutAct {
    RelayoutAct { lmv: lmv(1), before: 9, times: vec![stripe_times(10)] }
}

fn stripe_times(n: u32) -> StripeTimes {
    let time = |more: u32| negative(i64::from(n + more));
    StripeTimes { mtime_ns: time(0), mtime_set_ns: time(1), ctime_ns: time(2), atime_ns: time(3) }
}

fn relayout() -> RelayoutOp {
    RelayoutOp { fid: fid(1), version: 2, count: 3, added: vec![stripe(4)], hash: DirHash::Crush as i32 }
}

fn parent_act() -> ParentAct {
    ParentAct { fid: fid(1), parent: fid(2) }
}

fn want(n: u64) -> WantLocks {
    WantLocks {
        object_cookie: big(n),
        parent_cookie: big(n + 1),
        data_cookie: big(n + 2),
        data_write: true,
        entries_cookie: big(n + 3),
        exclusive: false,
    }
}

fn batch_result() -> BatchResult {
    BatchResult {
        status: -5,
        object_handle: big(1),
        entries_handle: big(2),
        data_handle: big(3),
        layout: Some(layout(4)),
    }
}

fn enqueue(policy: Policy) -> EnqueueReq {
    EnqueueReq {
        resource: resource(1),
        mode: LockMode::Cw as i32,
        cookie: big(5),
        policy: Some(policy),
        no_wait: true,
        glimpse: true,
        granted_handle: big(6),
        test: true,
        keep: false,
        version: big(7),
    }
}

fn bl_callback(wanted: Policy) -> BlCallback {
    BlCallback {
        handle: big(1),
        cookie: big(2),
        resource: resource(3),
        wanted: Some(wanted),
        wanted_mode: LockMode::Cr as i32,
    }
}

fn reint(op: Reint) -> ReintReq {
    ReintReq { cred: Some(cred(1)), now_ns: negative(7), want: Some(want(8)), op: Some(op) }
}

fn setattr() -> SetattrOp {
    SetattrOp {
        fid: fid(1),
        valid: 4,
        mode: 5,
        uid: 6,
        gid: 7,
        size: big(8),
        atime_ns: negative(9),
        mtime_ns: negative(10),
        ctime_ns: negative(11),
        handle: big(12),
    }
}

fn cross_attempt(n: u32) -> CrossAttempt {
    CrossAttempt { mdt: n, instance: big(u64::from(n) + 1), serial: big(u64::from(n) + 2) }
}

fn cross_part() -> CrossPart {
    CrossPart { mdt: 9, acts: vec![cross_act(name_act())], answer: Some(cross_answer()) }
}

fn cross_answer() -> CrossAnswer {
    CrossAnswer {
        operation: CrossOperation::Rename as i32,
        object: Some(fid(1)),
        parent: Some(fid(3)),
        source_parent: Some(fid(5)),
        replaced: Some(fid(7)),
        whiteout: Some(fid(9)),
        record: big(11),
    }
}

fn cross_act(act: impl Into<Act>) -> CrossAct {
    CrossAct { now_ns: negative(1), act: Some(act.into()) }
}

fn dir_name(n: u32) -> DirName {
    DirName { parent: fid(n), name: bytes("name") }
}

fn named_object(n: u32) -> NamedObject {
    NamedObject { fid: fid(n), mode: 5, mdt: 6 }
}

fn seen_object() -> SeenObject {
    SeenObject {
        mode: 1,
        uid: 2,
        gid: 3,
        access_list: Some(bytes("list")),
        is_full: true,
        stripes: vec![stripe(4), stripe(5)],
        master: Some(fid(6)),
        version: 7,
        settled: true,
        times: Some(stripe_times(8)),
    }
}

fn name_act() -> NameAct {
    NameAct {
        name: dir_name(1),
        before: Some(named_object(3)),
        after: Some(named_object(7)),
        seen: Some(seen_object()),
        moves: true,
        urgent: true,
    }
}

fn make_act() -> MakeAct {
    MakeAct { fid: fid(1), client: bytes("client"), inode: bytes("inode") }
}

fn links_act() -> LinksAct {
    LinksAct {
        fid: fid(1),
        lost: Some(dir_name(3)),
        gained: Some(dir_name(5)),
        seen: Some(seen_object()),
        removal: Some(removal()),
        kind: 8,
        stripes: vec![stripe(9), stripe(10)],
    }
}

fn removal() -> Removal {
    Removal { parent_mode: 5, parent_uid: 6, rmdir: true, cred: Some(cred(7)) }
}

fn cross_object() -> CrossObject {
    CrossObject { attr: Some(attr(1).into()), destroyed: true }
}

fn elsewhere() -> Elsewhere {
    Elsewhere { fid: fid(30), mdt: big(32) as u32, kind: 33 }
}

fn create() -> CreateOp {
    CreateOp {
        parent: fid(1),
        name: bytes("name"),
        fid: fid(4),
        mode: 7,
        rdev: big(8),
        symlink: bytes("target"),
        mdt: Some(big(9) as u32),
        stripes: vec![stripe(10), stripe(11)],
        hash: DirHash::Crush as i32,
    }
}

fn link() -> LinkOp {
    LinkOp { fid: fid(1), parent: fid(4), name: bytes("name"), kind: 5 }
}

fn unlink() -> UnlinkOp {
    UnlinkOp { parent: fid(1), name: bytes("name"), rmdir: true, reported: Some(fid(3)), entry_only: true }
}

fn rename() -> RenameOp {
    RenameOp {
        source_parent: fid(1),
        source_name: bytes("source"),
        target_parent: fid(4),
        target_name: bytes("target"),
        flags: 7,
        reported: Some(fid(3)),
        whiteout: Some(fid(10)),
    }
}

fn open() -> OpenOp {
    OpenOp {
        parent: Some(fid(1)),
        name: bytes("name"),
        fid: fid(4),
        flags: 7,
        mode: 8,
        old_handle: big(9),
        opened_fid: Some(fid(10)),
        layout: Some(layout(13)),
    }
}

fn setxattr() -> SetxattrOp {
    SetxattrOp { fid: fid(1), name: bytes("user.name"), value: bytes("value"), flags: 4, remove: true }
}

fn setlayout() -> SetlayoutOp {
    SetlayoutOp {
        fid: fid(1),
        kind: SetlayoutKind::Leave as i32,
        layout: Some(layout(4)),
        lvb: Some(lvb(8)),
        dir_default: Some(Box::new(dir_default(14))),
    }
}

fn dir_entry() -> DirEntry {
    DirEntry {
        name: bytes("entry"),
        fid: fid(1),
        kind: 4,
        cookie: big(5),
        attr: Some(attr(6)),
        lock: Some(grant(30, Policy::Bits(big(40)))),
    }
}

fn xattr() -> Xattr {
    Xattr { name: bytes("user.name"), value: bytes("value") }
}

fn object(n: u32) -> ObjectId {
    ObjectId { fid: fid(n), stripe: n + 3 }
}

fn target_entry() -> TargetEntry {
    TargetEntry {
        target: "target".into(),
        nids: vec!["nid a".into(), "nid b".into()],
        instance: big(1),
        losses: 2,
        is_lost: true,
    }
}

fn sequence_range() -> SequenceRange {
    SequenceRange { start: big(1), end: big(2), mdt: 3 }
}

fn name_keys() -> NameKeys {
    NameKeys { first: bytes("first key"), second: bytes("second key") }
}

fn param() -> Param {
    Param { path: "path".into(), value: "value".into() }
}

macro_rules! samples {
    ($($name:literal = $sample:expr;)*) => {
        /// Gives every sample to the visitor, in a fixed order.
        pub fn for_each(visitor: &mut impl Visitor) {
            $(visitor.visit($name, $sample);)*
        }
    };
}

samples! {
    "Fid" = fid(1);
    "ConnectReq" = ConnectReq {
        client_uuid: bytes("uuid"),
        target: "target".into(),
        features: big(1),
        version: 2,
        brw_size: 3,
        lightweight: true,
        description: "description".into(),
        first_replay_transno: big(4),
        read_only: true,
        grant: big(5),
        seen_committed: big(6),
        seen_store: bytes("store"),
        write_back_credits: 11,
    };
    "ConnectRep" = ConnectRep {
        features: big(1),
        version: 2,
        brw_size: 3,
        instance: big(4),
        max_mod_rpcs: 5,
        recovery_time_left_s: 6,
        server_version: "version".into(),
        grant: big(7),
        dom_size: 8,
        reason: "reason".into(),
        write_back_credits: 9,
        started_from: big(10),
        store: bytes("store"),
        session: big(11),
    };
    "PingReq" = PingReq { unanswered: vec![1, 2] };
    "Empty" = Empty {};
    "AdminReq" = AdminReq { request: "request".into() };
    "AdminRep" = AdminRep { response: "response".into() };
    "SeqAllocReq" = SeqAllocReq {};
    "SeqAllocRep" = SeqAllocRep { seq: big(1), width: 2 };

    "Resource" = resource(1);
    "Extent" = extent(1);
    "Flock" = flock(1);
    "Lvb" = lvb(1);
    "EnqueueReq/bits" = enqueue(Policy::Bits(big(7)));
    "EnqueueReq/extent" = enqueue(Policy::Extent(extent(7)));
    "EnqueueReq/flock" = enqueue(Policy::Flock(flock(7)));
    "EnqueueReq/keep" = EnqueueReq { keep: true, ..enqueue(Policy::Flock(flock(7))) };
    "LockGrant/bits" = grant(1, Policy::Bits(big(7)));
    "LockGrant/extent" = grant(1, Policy::Extent(extent(7)));
    "LockGrant/flock" = grant(1, Policy::Flock(flock(7)));
    "EnqueueRep" = EnqueueRep {
        grant: Some(grant(1, Policy::Bits(big(7)))),
        lvb: Some(lvb(8)),
        conflict: Some(flock(13)),
        conflict_mode: LockMode::Nl as i32,
    };
    "ReplayLocksReq" = ReplayLocksReq { locks: bytes("locks") };
    "ReplayLocksRep" =
        ReplayLocksRep { handles: vec![big(1), big(2)], failed: vec![ReplayFailure { index: 3, errno: 116 }] };
    "ReplayFailure" = ReplayFailure { index: 3, errno: 116 };
    "CancelReq" = CancelReq { handles: vec![big(1), big(2)], waiting_cookies: vec![big(3), big(4)] };
    "BlCallback/bits" = bl_callback(Policy::Bits(big(7)));
    "BlCallback/extent" = bl_callback(Policy::Extent(extent(7)));
    "BlCallback/flock" = bl_callback(Policy::Flock(flock(7)));
    "LruLimit" = LruLimit { locks: 1 << 20 };
    "GlCallback" = GlCallback { handle: big(1), cookie: big(2), resource: resource(3), serial: big(7) };
    "GlReply" = GlReply { handle: big(1), lvb: Some(lvb(2)), serial: big(7), mode: LockMode::Pr as i32 };

    "Elsewhere" = elsewhere();
    "CrossAttempt" = cross_attempt(1);
    "CrossPart" = cross_part();
    "CrossAct/Name" = cross_act(name_act());
    "CrossAct/Make" = cross_act(make_act());
    "CrossAct/Links" = cross_act(links_act());
    "CrossAct/Attrs" = cross_act(attrs_act());
    "CrossAct/Parent" = cross_act(parent_act());
    "CrossAct/Relayout" = cross_act(relayout_act());
    "CrossAnswer" = cross_answer();
    "NameAct" = name_act();
    "DirName" = dir_name(1);
    "NamedObject" = named_object(1);
    "SeenObject" = seen_object();
    "MakeAct" = make_act();
    "LinksAct" = links_act();
    "AttrsAct" = attrs_act();
    "ParentAct" = parent_act();
    "RelayoutAct" = relayout_act();
    "StripeTimes" = stripe_times(1);
    "Removal" = removal();
    "CrossLookReq" = CrossLookReq {
        name: Some(dir_name(1)),
        object: Some(fid(3)),
        earlier: 5,
        errno: 6,
        way: Some(fid(7)),
        former: Some(dir_name(8)),
        leaves: true,
    };
    "CrossLookRep" = CrossLookRep {
        dir: Some(seen_object()),
        named: Some(named_object(1)),
        object: Some(seen_object()),
        way: vec![fid(4), fid(5)],
        moves: big(6),
        start: big(7),
    };
    "CrossSessionReq" = CrossSessionReq { mdt: 1, session: big(2), instance: big(3), losses: 4, known_losses: 5 };
    "CrossSessionRep" = CrossSessionRep { prepared: vec![cross_attempt(1)], done: vec![cross_attempt(4)], losses: 7 };
    "CrossOrphansReq" = CrossOrphansReq { losses: vec![TargetLosses { mdt: 1, losses: 2 }], attempts: vec![cross_attempt(3)] };
    "TargetLosses" = TargetLosses { mdt: 1, losses: 2 };
    "CrossOrphansRep" = CrossOrphansRep { prepared: vec![cross_attempt(1)], done: vec![cross_attempt(4)] };
    "CrossPrepareReq" = CrossPrepareReq {
        session: big(1),
        attempt: cross_attempt(2),
        age: big(5),
        age_mdt: 6,
        part: Some(cross_part()),
        members: vec![7, 8], losses: vec![7, 8], coordinator_losses: 9,
    };
    "CrossPrepareRep" = CrossPrepareRep { busy: true, errno: 39, objects: vec![cross_object()], changed: true };
    "CrossObject" = cross_object();
    "CrossTellReq" = CrossTellReq {
        commit: vec![cross_attempt(1)],
        abort: vec![cross_attempt(4)],
        forget: vec![cross_attempt(7)],
    };
    "CrossFree" = CrossFree { attempt: cross_attempt(1) };

    "Cred" = cred(1);
    "Attr" = attr(1);
    "Layout" = layout(1);
    "Lmv" = lmv(1);
    "DirDefault" = dir_default(1);
    "Stripe" = stripe(1);
    "WantLocks" = WantLocks { exclusive: true, ..want(1) };
    "GetattrReq" = GetattrReq { fid: fid(1), want: Some(want(4)), cred: Some(cred(7)), confirms_layout: true, name: Some(dir_name(8)) };
    "LookupReq" = LookupReq { parent: fid(1), name: bytes("name"), want: Some(want(4)), cred: Some(cred(7)) };
    "ObjectRep" = ObjectRep {
        attr: Some(attr(1)),
        parent_attr: Some(attr(31)),
        locks: vec![grant(61, Policy::Bits(big(67))), grant(68, Policy::Extent(extent(75)))],
        handle: big(77),
        disposition: 78,
        source_parent_attr: Some(attr(79)),
        replaced_attr: Some(attr(109)),
        symlink: bytes("symlink"),
        destroyed: true,
        copy: Some(layout(139)),
        write_back_credits: 169,
        whiteout_attr: Some(attr(170)),
        elsewhere: Some(elsewhere()),
        name_state: NameState::Lost as i32,
    };
    "ReintReq/setattr" = reint(Reint::Setattr(setattr()));
    "ReintReq/create" = reint(Reint::Create(create()));
    "ReintReq/link" = reint(Reint::Link(link()));
    "ReintReq/unlink" = reint(Reint::Unlink(unlink()));
    "ReintReq/rename" = reint(Reint::Rename(rename()));
    "ReintReq/open" = reint(Reint::Open(open()));
    "ReintReq/setxattr" = reint(Reint::Setxattr(setxattr()));
    "ReintReq/setlayout" = reint(Reint::Setlayout(setlayout()));
    "ReintReq/relayout" = reint(Reint::Relayout(relayout()));
    "SetattrOp" = setattr();
    "CreateOp" = create();
    "LinkOp" = link();
    "UnlinkOp" = unlink();
    "RenameOp" = rename();
    "OpenOp" = open();
    "SetxattrOp" = setxattr();
    "SetlayoutOp" = setlayout();
    "RelayoutOp" = relayout();
    "BatchReq" = {
        let mut changes = Vec::new();
        BatchReq::push(&mut changes, &reint(Reint::Create(create())));
        BatchReq::push(&mut changes, &reint(Reint::Unlink(unlink())));
        BatchReq { changes: changes.into(), returns_credits: true }
    };
    "BatchRep" = BatchRep { results: vec![batch_result(), BatchResult::default()], credits: 2 };
    "BatchResult" = batch_result();
    "CloseReq" = CloseReq {
        closes: vec![
            Close { fid: fid(1), handle: big(4), atime_ns: negative(5) },
            Close { fid: fid(6), handle: big(7), atime_ns: 0 },
        ],
    };
    "Close" = Close { fid: fid(1), handle: big(4), atime_ns: negative(5) };
    "CloseResult" = CloseResult { index: 1, status: -116, destroyed: true };
    "CloseRep" = CloseRep { results: vec![CloseResult { index: 1, status: -116, destroyed: true }] };
    "ReaddirReq" = ReaddirReq {
        fid: fid(1),
        after: big(4),
        max_bytes: 5,
        plus: true,
        want: Some(want(6)),
        cred: Some(cred(9)),
        entry_cookies: big(15),
        layout: 16,
    };
    "DirEntry" = dir_entry();
    "ReaddirRep" = ReaddirRep {
        entries: vec![dir_entry(), DirEntry { name: bytes("other"), ..dir_entry() }],
        end: true,
        locks: vec![grant(1, Policy::Bits(big(7)))],
        attr: Some(attr(8)),
    };
    "GetxattrReq" = GetxattrReq {
        fid: fid(1),
        name: bytes("user.name"),
        cred: Some(cred(4)),
        all: true,
        want: Some(want(10)),
    };
    "Xattr" = xattr();
    "GetxattrRep" = GetxattrRep {
        xattrs: vec![xattr(), Xattr { name: bytes("user.other"), ..xattr() }],
        locks: vec![grant(1, Policy::Bits(big(7)))],
    };
    "SyncReq" = SyncReq { fid: Some(fid(1)) };
    "StatfsRep" = StatfsRep {
        total: big(1),
        free: big(2),
        available: big(3),
        files: big(4),
        files_free: big(5),
        grant: big(6),
        state: OST_DEGRADED,
        disk: big(7),
    };
    "Fid2pathReq" = Fid2pathReq { fid: fid(1), cred: Some(cred(4)) };
    "Fid2pathRep" = Fid2pathRep { paths: vec![bytes("a/b"), bytes("c")], from: vec![fid(5), fid(6)] };

    "RegisterReq" = RegisterReq {
        target: "target".into(),
        target_uuid: bytes("uuid"),
        nids: vec!["nid a".into(), "nid b".into()],
        instance: big(1),
        first: true,
        start: big(2),
        replace: true,
        replaced: 300,
        losses: 4,
        name_keys: Some(name_keys()),
        wants_keys: true,
    };
    "NameKeys" = name_keys();
    "RegisterRep" = RegisterRep {
        config_version: big(1),
        reason: "reason".into(),
        known_instance: big(2),
        replaced: 300,
        losses: 3,
        name_keys: Some(name_keys()),
    };
    "TargetLostReq" = TargetLostReq { target: "target".into() };
    "TargetLostRep" = TargetLostRep { reason: "reason".into() };
    "ConfigGetReq" = ConfigGetReq { fsname: "fsname".into() };
    "TargetEntry" = target_entry();
    "Param" = param();
    "Config" = Config {
        version: big(1),
        targets: vec![target_entry(), TargetEntry { target: "other".into(), ..target_entry() }],
        params: vec![param(), Param { path: "other".into(), ..param() }],
        fsname: "fsname".into(),
        pools: vec![pool(), Pool { name: "other".into(), ..pool() }],
        replaced: 300,
        sequences: vec![sequence_range(), SequenceRange { mdt: 9, ..sequence_range() }],
    };
    "Pool" = pool();
    "SetPoolReq" = SetPoolReq {
        fsname: "fsname".into(),
        kind: SetPoolKind::Remove as i32,
        pool: "pool".into(),
        osts: vec![1, 300],
    };
    "SetPoolRep" = SetPoolRep { reason: "reason".into() };
    "SetParamReq" = SetParamReq { fsname: "fsname".into(), param: Some(param()), delete: true };
    "SeqRangeReq" = SeqRangeReq { target: "target".into(), allocated: vec![sequence_range()], report_only: true };
    "SeqRangeRep" = SeqRangeRep { start: big(1), end: big(2), published: true };
    "SequenceRange" = sequence_range();

    "ObjectId" = object(1);
    "ReadReq" = ReadReq { object: object(1), offset: big(5), length: 6, lock: big(7), job: "job".into() };
    "ReadRep" = ReadRep { lvb: Some(lvb(1)) };
    "WriteReq" = WriteReq {
        object: object(1),
        offset: big(5),
        lock: big(6),
        lvb: Some(lvb(7)),
        uid: 12,
        gid: 13,
        grant_used: big(14),
        sync: true,
        want_grant: big(15), job: "job".into(),
};
    "ObjectStateRep" = ObjectStateRep { lvb: Some(lvb(1)), grant: big(6) };
    "ObjGetattrReq" = ObjGetattrReq { object: object(1) };
    "ObjSetattrReq" = ObjSetattrReq { object: object(1), lvb: Some(lvb(5)), uid: 10, gid: 11 };
    "PunchReq" = PunchReq {
        object: object(1),
        kind: PunchKind::Allocate as i32,
        start: big(5),
        length: big(6),
        keep_size: true,
        lvb: Some(lvb(7)),
        lock: big(12),
        uid: 13,
        gid: 14, job: "job".into(),
};
    "SeekReq" = SeekReq { object: object(1), offset: big(5), hole: true, job: "job".into() };
    "SeekRep" = SeekRep { offset: big(1) };
    "ObjSyncReq" = ObjSyncReq { objects: vec![object(1), object(5)], job: "job".into() };
    "DestroyReq" = DestroyReq {
        objects: vec![object(1), object(5)],
        strays: Some(StrayObjects { seq: big(9), first: 10, last: 11, keep: vec![12, 13] }),
    };
    "StrayObjects" = StrayObjects { seq: big(1), first: 2, last: 3, keep: vec![4, 5] };
    "DestroyRep" = DestroyRep { more: true };
    "StatfsReq" = StatfsReq { want_grant: big(1) };
}
