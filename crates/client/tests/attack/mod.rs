//! Peers that mean no good: sessions over raw connections that send requests of every kind with values from the edges,
//! learn from the replies what exists, and so get deep into a target.
#![allow(dead_code)]

use bytes::Bytes;
use prost::Message;
use proto::connect::PROTOCOL_VERSION;
use proto::frame::flags;
use proto::msg::*;
use proto::{Errno, Fid, Frame, Handle, Header, Opcode, Tag, Transno, Xid};
use std::collections::BTreeMap;
use stdx::Rng;
use testkit::mutate::{self, mutate, number};

/// What an attacker knows: numbers and names to use again.
pub(crate) struct Known {
    pub fids: Vec<Fid>,
    pub handles: Vec<u64>,
    pub names: Vec<Vec<u8>>,
    pub cookies: u64,
    /// A sequence that was granted, and what was used of it.
    pub sequence: (u64, u32),
}

impl Default for Known {
    fn default() -> Known {
        let fid = |seq, oid, ver| Fid { seq, oid, ver };
        Known {
            fids: vec![
                Fid::ROOT,
                Fid::NONE,
                fid(Fid::SEQ_FIRST, 1, 0),
                fid(Fid::SEQ_LAST, Fid::OID_MAX, 0),
                fid(u64::MAX, u32::MAX, u32::MAX),
                fid(Fid::SEQ_FIRST, 0, 0),
                fid(1, 1, 1),
            ],
            handles: vec![0, 1, u64::MAX],
            names: vec![Vec::new(), b".".to_vec(), b"..".to_vec(), b"a".to_vec(), b"b".to_vec(), b"\xff\xfe".to_vec()],
            cookies: 1,
            sequence: (0, 0),
        }
    }
}

impl Known {
    const MOST: usize = 200;

    fn learn_fid(&mut self, fid: Fid, rng: &mut Rng) {
        if self.fids.len() < Self::MOST {
            self.fids.push(fid);
        } else {
            let at = rng.below(self.fids.len() as u64) as usize;
            self.fids[at] = fid;
        }
    }

    fn learn_handle(&mut self, handle: u64, rng: &mut Rng) {
        if self.handles.len() < Self::MOST {
            self.handles.push(handle);
        } else {
            let at = rng.below(self.handles.len() as u64) as usize;
            self.handles[at] = handle;
        }
    }

    fn learn_attr(&mut self, attr: &Option<Attr>, rng: &mut Rng) {
        if let Some(attr) = attr {
            self.learn_fid(attr.fid, rng);
        }
    }

    /// Takes from a reply or a notice what can be used again.
    pub(crate) fn learn(&mut self, frame: &Frame, rng: &mut Rng) {
        match Opcode::from_raw(frame.header.opcode) {
            Some(Opcode::SeqAlloc) => {
                if let Ok(rep) = frame.decode::<SeqAllocRep>() {
                    self.sequence = (rep.seq, 0);
                }
            }
            Some(Opcode::MdsReint | Opcode::MdsLookup | Opcode::MdsGetattr) => {
                if let Ok(rep) = frame.decode::<ObjectRep>() {
                    for attr in [&rep.attr, &rep.parent_attr, &rep.replaced_attr] {
                        self.learn_attr(attr, rng);
                    }
                    rep.locks.iter().for_each(|lock| self.learn_handle(lock.handle, rng));
                    self.learn_handle(rep.handle, rng);
                }
            }
            Some(Opcode::LdlmEnqueue) => {
                if let Ok(EnqueueRep { grant: Some(grant), .. }) = frame.decode() {
                    self.learn_handle(grant.handle, rng);
                }
            }
            Some(Opcode::LdlmBlCallback) => {
                if let Ok(callback) = frame.decode::<BlCallback>() {
                    self.learn_handle(callback.handle, rng);
                }
            }
            Some(Opcode::MdsReaddir) => {
                if let Ok(rep) = frame.decode::<ReaddirRep>() {
                    for entry in rep.entries.iter().take(5) {
                        self.learn_fid(entry.fid, rng);
                        self.names.truncate(40);
                        self.names.push(entry.name.to_vec());
                    }
                }
            }
            _ => {}
        }
    }
}

/// Values of the fields of requests.
pub(crate) struct Values<'a> {
    pub rng: &'a mut Rng,
    pub known: &'a mut Known,
}

impl Values<'_> {
    fn n(&mut self) -> u64 {
        number(self.rng)
    }

    fn small(&mut self) -> u64 {
        self.rng.below(20)
    }

    fn bool(&mut self) -> bool {
        self.rng.chance(1, 2)
    }

    fn i(&mut self) -> i64 {
        self.n() as i64
    }

    fn u(&mut self) -> u32 {
        self.n() as u32
    }

    /// One of these, or (one time in twenty) what goes too far.
    fn usually<T: Copy>(&mut self, items: &[T], too_far: T) -> T {
        match self.rng.pick(items) {
            Some(item) if !self.rng.chance(1, 20) => *item,
            _ => too_far,
        }
    }

    fn opt<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.rng.chance(3, 4) { Some(make(self)) } else { None }
    }

    fn name_keys(&mut self) -> NameKeys {
        let len = [0, 16, 16, 17][self.rng.below(4) as usize];
        NameKeys { first: mutate::random(self.rng, len).into(), second: mutate::random(self.rng, 17).into() }
    }

    pub(crate) fn fid(&mut self) -> Fid {
        match self.rng.below(12) {
            0 => Fid { seq: self.n(), oid: self.u(), ver: self.u() },
            1 | 2 => Fid::ROOT,
            _ => self.rng.pick(&self.known.fids).copied().unwrap_or(Fid::ROOT),
        }
    }

    /// A FID for something new: mostly one that the server takes.
    fn fresh(&mut self) -> Fid {
        let (seq, used) = self.known.sequence;
        if self.rng.chance(1, 15) || seq == 0 {
            return self.fid();
        }
        self.known.sequence.1 = used + self.usually(&[1], 70);
        Fid::new(seq, self.known.sequence.1)
    }

    fn handle(&mut self) -> u64 {
        if self.rng.chance(1, 10) { self.n() } else { self.rng.pick(&self.known.handles).copied().unwrap_or(0) }
    }

    pub(crate) fn name(&mut self) -> Bytes {
        let mut name = self.rng.pick(&self.known.names).cloned().unwrap_or_default();
        match self.rng.below(30) {
            0 => name = b"with/slash".to_vec(),
            1 => name = b"with\0nul".to_vec(),
            2 => name = vec![b'x'; [254, 255, 256, 4096, 65_536][self.rng.below(5) as usize]],
            3 => name = mutate::random(self.rng, 300),
            4..=10 => name = format!("n{}", self.rng.below(30)).into_bytes(),
            _ => {}
        }
        name.into()
    }

    fn text(&mut self) -> String {
        const TEXTS: &[&str] = &[
            "",
            "fs",
            "fs-MDT0000",
            "fs-OST0000",
            "MGS",
            "evil-OST0001",
            "evil-MDT0000",
            "evil-OSTffffffff",
            "-",
            "../..",
            "a\0b",
            "mdt.*.dom_size",
            "*.*.*.*",
            "unix:/nowhere",
            "[::1]:1",
            "ä日🦀",
        ];
        match self.rng.below(12) {
            0 => "x".repeat(self.rng.below(70_000) as usize),
            1 => String::from_utf8_lossy(&mutate::random(self.rng, 300)).into_owned(),
            _ => TEXTS[self.rng.below(TEXTS.len() as u64) as usize].to_owned(),
        }
    }

    fn texts(&mut self) -> Vec<String> {
        (0..[0, 1, 1, 2, 40][self.rng.below(5) as usize]).map(|_| self.text()).collect()
    }

    fn cred(&mut self) -> Option<Cred> {
        self.opt(|v| Cred {
            uid: [0, 0, 0, 1000, u32::MAX][v.rng.below(5) as usize],
            gid: [0, 0, 1000, u32::MAX][v.rng.below(4) as usize],
            groups: (0..v.usually(&[0, 1, 20], 70_000)).map(|i| i * 7).collect(),
            umask: v.u(),
            capabilities: v.n(),
            job: v.text(),
        })
    }

    fn cookie(&mut self) -> u64 {
        match self.rng.below(6) {
            0 => self.n(),
            1 => 0,
            2 => 1 + self.rng.below(self.known.cookies),
            _ => {
                self.known.cookies += 1;
                self.known.cookies
            }
        }
    }

    fn want(&mut self) -> Option<WantLocks> {
        self.opt(|v| WantLocks {
            object_cookie: v.cookie(),
            parent_cookie: v.cookie(),
            data_cookie: v.cookie(),
            data_write: v.bool(),
            entries_cookie: v.cookie(),
            exclusive: v.bool(),
        })
    }

    fn layout(&mut self) -> Layout {
        let count = [0, 1, 2, 5, 3000][self.rng.below(5) as usize];
        Layout {
            stripe_size: [0, 1, 65_536, 1 << 20, u32::MAX][self.rng.below(5) as usize],
            osts: (0..count).map(|i| if i % 2 == 0 { i } else { number(self.rng) as u32 }).collect(),
            resident: self.bool(),
            generation: self.u(),
            want_count: [-1, 0, 1, 2, i32::MIN, i32::MAX][self.rng.below(6) as usize],
            want_first: [-1, 0, 1, i32::MIN, i32::MAX][self.rng.below(5) as usize],
            first_object: if self.rng.chance(1, 4) { number(self.rng) as u32 } else { 0 },
            pool: if self.bool() { String::new() } else { self.text() },
        }
    }

    fn lvb(&mut self) -> Option<Lvb> {
        self.opt(|v| Lvb { size: v.n(), blocks: v.n(), atime_ns: v.i(), mtime_ns: v.i(), ctime_ns: v.i() })
    }

    fn dir_default(&mut self) -> Option<Box<DirDefault>> {
        self.opt(|v| {
            Box::new(DirDefault {
                count: v.usually(&[0, 1, 2, u32::MAX], 2001) as i32,
                overstripe: v.bool(),
                mdts: (0..v.rng.below(3)).map(|_| v.usually(&[0, 1, 2], 3)).collect(),
                hash: v.usually(&[0, 1, 2, 4], 5),
                max_inherit: v.usually(&[0, 1, 2, 250, 255], 251),
                max_inherit_rr: v.usually(&[0, 1, 250, 255], 254),
            })
        })
    }

    fn resource(&mut self) -> Resource {
        Resource {
            fid: self.fid(),
            kind: self.usually(&[0, 1, 2], 3),
            stripe: if self.rng.chance(4, 5) { 0 } else { self.u() },
        }
    }

    fn policy(&mut self) -> Option<Policy> {
        self.opt(|v| match v.rng.below(3) {
            0 => Policy::Bits(if v.bool() { v.rng.below(256) } else { v.n() }),
            1 => Policy::Extent(Extent { start: v.n(), end: v.n() }),
            _ => Policy::Flock(Flock { start: v.n(), end: v.n(), owner: v.small(), pid: v.u(), is_flock: v.bool() }),
        })
    }

    fn mode(&mut self) -> i32 {
        [1, 2, 4, 8, 16, 32, 0, 3, -1, i32::MAX][self.rng.below(10) as usize]
    }

    fn object(&mut self) -> ObjectId {
        ObjectId { fid: self.fid(), stripe: if self.rng.chance(3, 4) { 0 } else { self.u() } }
    }

    fn stripes(&mut self) -> Vec<Stripe> {
        let count = if self.rng.chance(1, 3) { self.rng.below(7) } else { 0 };
        (0..count).map(|_| Stripe { fid: self.fresh(), mdt: self.usually(&[0, 0, 0, 1], u32::MAX) }).collect()
    }

    fn reint(&mut self) -> Reint {
        match self.rng.below(9) {
            8 => Reint::Relayout(RelayoutOp {
                fid: self.fid(),
                version: self.rng.below(3) as u32,
                count: if self.bool() { self.rng.below(4) as u32 } else { self.u() },
                added: self.stripes(),
                hash: self.rng.below(6) as i32,
            }),
            0 => Reint::Setattr(SetattrOp {
                fid: self.fid(),
                valid: if self.bool() { self.rng.below(0x800) as u32 } else { self.u() },
                mode: self.u(),
                uid: self.u(),
                gid: self.u(),
                size: if self.bool() { self.rng.below(100_000) } else { self.n() },
                atime_ns: self.i(),
                mtime_ns: self.i(),
                ctime_ns: self.i(),
                handle: self.handle(),
            }),
            1 => Reint::Create(CreateOp {
                parent: self.fid(),
                name: self.name(),
                fid: self.fresh(),
                mode: self.usually(&[0o040_755, 0o100_644, 0o120_777, 0o010_644, 0o020_644, 0, 0o170_000], u32::MAX),
                rdev: self.n(),
                symlink: self.name(),
                mdt: None,
                stripes: self.stripes(),
                hash: self.usually(&[0, 1, 2, 3, 4], 9),
            }),
            2 => Reint::Link(LinkOp { fid: self.fid(), parent: self.fid(), name: self.name(), kind: self.u() }),
            3 => Reint::Unlink(UnlinkOp {
                parent: self.fid(),
                name: self.name(),
                rmdir: self.bool(),
                reported: self.bool().then(|| self.fid()),
                entry_only: self.bool(),
            }),
            4 => Reint::Rename(RenameOp {
                source_parent: self.fid(),
                source_name: self.name(),
                target_parent: self.fid(),
                target_name: self.name(),
                flags: [0, 0, 1, 2, 3, 4, u32::MAX][self.rng.below(7) as usize],
                reported: self.bool().then(|| self.fid()),
                whiteout: self.bool().then(|| self.fid()),
            }),
            5 => Reint::Open(OpenOp {
                parent: self.opt(Self::fid),
                name: self.name(),
                fid: if self.rng.chance(2, 3) { self.fresh() } else { self.fid() },
                flags: [0, 1, 2, 3, 0o100, 0o302, 0o1002, 0o2002, 0o200_000, u32::MAX][self.rng.below(10) as usize],
                mode: self.u(),
                old_handle: if self.bool() { 0 } else { self.handle() },
                opened_fid: if self.bool() { None } else { Some(self.fid()) },
                layout: if self.bool() { None } else { Some(self.layout()) },
            }),
            6 => Reint::Setxattr(SetxattrOp {
                fid: self.fid(),
                name: self.xattr_name(),
                value: self.xattr_value(),
                flags: [0, 0, 1, 2, 3, u32::MAX][self.rng.below(6) as usize],
                remove: self.rng.chance(1, 4),
            }),
            _ => Reint::Setlayout(SetlayoutOp {
                fid: self.fid(),
                kind: [0, 1, 2, 3, 4, 5, 5, 6, -1][self.rng.below(9) as usize],
                layout: self.opt(Self::layout),
                lvb: self.lvb(),
                dir_default: self.dir_default(),
            }),
        }
    }

    /// Bytes, or an ACL with its owner, group, mask and others and up to two names.
    fn xattr_value(&mut self) -> Bytes {
        if self.bool() {
            return vec![7; self.usually(&[0, 1, 28, 300, 65_536, 65_537], 200_000)].into();
        }
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for tag in [1_u16, 2, 4, 8, 0x10, 0x20] {
            if !self.rng.chance(1, 6) {
                acl.extend_from_slice(&tag.to_le_bytes());
                acl.extend_from_slice(&(self.rng.below(9) as u16).to_le_bytes());
                acl.extend_from_slice(&if tag & 10 == 0 { u32::MAX } else { 1000 }.to_le_bytes());
            }
        }
        acl.into()
    }

    fn xattr_name(&mut self) -> Bytes {
        const NAMES: &[&str] = &[
            "user.a",
            "user.b",
            "user.",
            "user",
            "trusted.x",
            "security.capability",
            "system.posix_acl_access",
            "system.posix_acl_default",
            "system.x",
            "",
            "nobody.knows",
        ];
        match self.rng.below(10) {
            0 => self.name(),
            1 => format!("user.{}", self.n()).into_bytes().into(),
            2 => format!("user.{}", "x".repeat(250 + self.rng.below(4) as usize)).into_bytes().into(),
            _ => Bytes::from_static(NAMES[self.rng.below(NAMES.len() as u64) as usize].as_bytes()),
        }
    }

    fn attempt(&mut self) -> CrossAttempt {
        CrossAttempt { mdt: self.rng.below(3) as u32, instance: self.n(), serial: self.n() }
    }

    fn times(&mut self) -> StripeTimes {
        StripeTimes { mtime_ns: self.i(), mtime_set_ns: self.i(), ctime_ns: self.i(), atime_ns: self.i() }
    }

    fn lmv(&mut self) -> Lmv {
        Lmv {
            hash: self.rng.below(6) as i32,
            count: self.u(),
            version: self.u(),
            stripes: self.stripes(),
            master: self.opt(Self::fid),
            index: self.u(),
            former_count: self.rng.below(4) as u32,
            former_hash: self.rng.below(6) as i32,
            moved: self.i() as i32,
        }
    }

    fn part(&mut self) -> CrossPart {
        let name = |v: &mut Self| DirName { parent: v.fid(), name: v.name() };
        let object = |v: &mut Self| NamedObject { fid: v.fid(), mode: v.u(), mdt: v.u() };
        let seen = |v: &mut Self| SeenObject {
            mode: v.u(),
            uid: v.u(),
            gid: v.u(),
            access_list: v.opt(|v| v.name()),
            is_full: v.bool(),
            stripes: if v.rng.chance(1, 4) { v.stripes() } else { Vec::new() },
            master: v.opt(Self::fid),
            version: v.u(),
            settled: v.bool(),
            times: v.opt(Self::times),
        };
        let act = match self.rng.below(7) {
            0 => Some(
                NameAct {
                    name: name(self),
                    before: self.opt(object),
                    after: self.opt(object),
                    seen: self.opt(seen),
                    moves: self.bool(),
                    urgent: self.bool(),
                }
                .into(),
            ),
            5 => Some(RelayoutAct { lmv: self.lmv(), before: self.u(), times: vec![self.times()] }.into()),
            1 => Some(MakeAct { fid: self.fid(), client: self.name(), inode: self.name() }.into()),
            2 => Some(
                LinksAct {
                    fid: self.fid(),
                    lost: self.opt(name),
                    gained: self.opt(name),
                    seen: self.opt(seen),
                    removal: self.opt(|v| Removal {
                        parent_mode: v.u(),
                        parent_uid: v.u(),
                        rmdir: v.bool(),
                        cred: v.cred(),
                    }),
                    kind: self.u(),
                    stripes: if self.rng.chance(1, 4) { self.stripes() } else { Vec::new() },
                }
                .into(),
            ),
            4 => Some(ParentAct { fid: self.fid(), parent: self.fid() }.into()),
            3 => Some(AttrsAct { fid: self.fid(), inode: self.name(), atime: self.bool(), mtime: self.bool() }.into()),
            _ => None,
        };
        CrossPart { mdt: self.rng.below(2) as u32, acts: vec![CrossAct { now_ns: self.i(), act }], answer: None }
    }

    /// A request of this kind.
    pub(crate) fn body(&mut self, opcode: Opcode) -> Vec<u8> {
        match opcode {
            Opcode::ObjRead => ReadReq {
                object: self.object(),
                offset: self.n(),
                length: self.u(),
                lock: self.handle(),
                job: self.text(),
            }
            .encode_to_vec(),
            Opcode::ObjWrite => WriteReq {
                object: self.object(),
                offset: if self.bool() { self.rng.below(200_000) } else { self.n() },
                lock: if self.rng.chance(2, 3) { 0 } else { self.handle() },
                lvb: self.lvb(),
                uid: self.u(),
                gid: self.u(),
                grant_used: self.n(),
                sync: self.bool(),
                want_grant: self.n(),
                job: self.text(),
            }
            .encode_to_vec(),
            Opcode::ObjGetattr => ObjGetattrReq { object: self.object() }.encode_to_vec(),
            Opcode::ObjSetattr => {
                ObjSetattrReq { object: self.object(), lvb: self.lvb(), uid: self.u(), gid: self.u() }.encode_to_vec()
            }
            Opcode::ObjDestroy => {
                let count = self.usually(&[0, 1, 3], 5000);
                let objects = (0..count).map(|_| self.object()).collect();
                let strays = self.bool().then(|| StrayObjects {
                    seq: self.object().fid.seq,
                    first: self.u(),
                    last: self.u(),
                    keep: (0..self.usually(&[0, 1, 3], 5000)).map(|_| self.u()).collect(),
                });
                DestroyReq { objects, strays }.encode_to_vec()
            }
            Opcode::ObjPunch => PunchReq {
                object: self.object(),
                kind: [0, 1, 2, 3, 4, -1][self.rng.below(6) as usize],
                start: self.n(),
                length: self.n(),
                keep_size: self.bool(),
                lvb: self.lvb(),
                lock: if self.rng.chance(2, 3) { 0 } else { self.handle() },
                uid: self.u(),
                gid: self.u(),
                job: self.text(),
            }
            .encode_to_vec(),
            Opcode::ObjSeek => {
                SeekReq { object: self.object(), offset: self.n(), hole: self.bool(), job: self.text() }.encode_to_vec()
            }
            Opcode::ObjSync => {
                let count = self.usually(&[0, 1, 3], 5000);
                ObjSyncReq { objects: (0..count).map(|_| self.object()).collect(), job: self.text() }.encode_to_vec()
            }
            Opcode::MdsBatch => {
                let mut changes = Vec::new();
                for _ in 0..self.usually(&[0, 1, 2, 5], 100) {
                    let op = self.opt(|v| v.reint());
                    let change = ReintReq { cred: self.cred(), now_ns: self.i(), want: self.want(), op };
                    BatchReq::push(&mut changes, &change);
                }
                if self.rng.chance(1, 8) {
                    changes.push(self.u() as u8);
                }
                BatchReq { changes: changes.into(), returns_credits: false }.encode_to_vec()
            }
            Opcode::CrossSession => {
                let (mdt, session, instance) = (self.rng.below(3) as u32, self.n(), self.n());
                CrossSessionReq { mdt, session, instance, losses: self.u(), known_losses: self.u() }.encode_to_vec()
            }
            Opcode::CrossOrphans => {
                let attempts = (0..self.rng.below(5)).map(|_| self.attempt()).collect();
                let losses = vec![TargetLosses { mdt: self.rng.below(3) as u32, losses: self.u() }];
                CrossOrphansReq { losses, attempts }.encode_to_vec()
            }
            Opcode::CrossPrepare => CrossPrepareReq {
                session: self.n(),
                attempt: self.attempt(),
                age: self.n(),
                age_mdt: self.u(),
                part: self.opt(|v| v.part()),
                members: (0..self.rng.below(3)).map(|_| self.u()).collect(),
                losses: vec![self.u()],
                coordinator_losses: self.u(),
            }
            .encode_to_vec(),
            Opcode::CrossTell => {
                let mut some = || (0..self.rng.below(3)).map(|_| self.attempt()).collect();
                CrossTellReq { commit: some(), abort: some(), forget: some() }.encode_to_vec()
            }
            Opcode::CrossLook => CrossLookReq {
                name: self.opt(|v| DirName { parent: v.fid(), name: v.name() }),
                object: self.opt(Self::fid),
                earlier: self.u(),
                errno: 0,
                way: self.opt(Self::fid),
                former: self.opt(|v| DirName { parent: v.fid(), name: v.name() }),
                leaves: self.bool(),
            }
            .encode_to_vec(),
            Opcode::CrossFree => CrossFree { attempt: self.attempt() }.encode_to_vec(),
            Opcode::ObjStatfs | Opcode::MdsStatfs => StatfsReq { want_grant: self.n() }.encode_to_vec(),
            Opcode::MdsGetattr => {
                let name = self.opt(|v| DirName { parent: v.fid(), name: v.name() });
                GetattrReq { fid: self.fid(), want: self.want(), cred: self.cred(), confirms_layout: true, name }
                    .encode_to_vec()
            }
            Opcode::MdsLookup => {
                LookupReq { parent: self.fid(), name: self.name(), want: self.want(), cred: self.cred() }
                    .encode_to_vec()
            }
            Opcode::MdsClose => {
                let count = self.rng.below(4);
                let close = |_| Close { fid: self.fid(), handle: self.handle(), atime_ns: self.i() };
                CloseReq { closes: (0..count).map(close).collect() }.encode_to_vec()
            }
            Opcode::MdsReint => ReintReq {
                cred: self.cred(),
                now_ns: self.i(),
                want: self.want(),
                op: if self.rng.chance(1, 50) { None } else { Some(self.reint()) },
            }
            .encode_to_vec(),
            Opcode::MdsReaddir => ReaddirReq {
                fid: self.fid(),
                after: self.n(),
                max_bytes: self.u(),
                plus: self.bool(),
                want: self.want(),
                cred: self.cred(),
                entry_cookies: self.cookie(),
                layout: self.rng.below(3) as u32,
            }
            .encode_to_vec(),
            Opcode::MdsSync => SyncReq { fid: self.opt(Self::fid) }.encode_to_vec(),
            Opcode::MdsGetxattr => GetxattrReq {
                fid: self.fid(),
                name: self.xattr_name(),
                cred: self.cred(),
                all: self.bool(),
                want: self.want(),
            }
            .encode_to_vec(),
            Opcode::MdsFid2path => Fid2pathReq { fid: self.fid(), cred: self.cred() }.encode_to_vec(),
            Opcode::LdlmEnqueue if self.rng.chance(3, 4) => {
                // One that makes sense, but for its numbers.
                let resource = self.resource();
                let (start, length) = (self.rng.below(1 << 20), self.rng.below(1 << 20));
                let policy = match resource.kind {
                    0 => Policy::Bits(1 + self.rng.below(127)),
                    1 => Policy::Extent(Extent { start, end: start + length }),
                    _ => {
                        let (owner, is_flock) = (self.small(), self.bool());
                        Policy::Flock(Flock { start, end: start + length, owner, pid: 1, is_flock })
                    }
                };
                let mode = [1, 2, 4, 8, 16, 32][self.rng.below(6) as usize];
                let cookie = self.cookie();
                EnqueueReq {
                    resource,
                    mode,
                    cookie,
                    policy: Some(policy),
                    no_wait: self.bool(),
                    glimpse: self.rng.chance(1, 8),
                    granted_handle: if self.rng.chance(7, 8) { 0 } else { self.handle() },
                    test: self.rng.chance(1, 8),
                    keep: mode == 4 && cookie.is_multiple_of(3),
                    version: 0,
                }
                .encode_to_vec()
            }
            Opcode::LdlmEnqueue => EnqueueReq {
                resource: self.resource(),
                mode: self.mode(),
                cookie: self.cookie(),
                policy: self.policy(),
                no_wait: self.bool(),
                glimpse: self.rng.chance(1, 4),
                granted_handle: if self.rng.chance(3, 4) { 0 } else { self.handle() },
                test: self.rng.chance(1, 6),
                keep: false,
                version: 0,
            }
            .encode_to_vec(),
            Opcode::LdlmReplay => {
                let mut locks = Vec::new();
                for _ in 0..self.rng.below(4) {
                    let lock =
                        EnqueueReq { granted_handle: self.handle(), cookie: self.cookie(), ..EnqueueReq::default() };
                    let lock = EnqueueReq { version: [0, 1, u64::MAX][lock.cookie as usize % 3], ..lock };
                    ReplayLocksReq::push(&mut locks, &lock);
                }
                if self.rng.chance(1, 4) {
                    locks.push(0xff);
                }
                ReplayLocksReq { locks: locks.into() }.encode_to_vec()
            }
            Opcode::LdlmCancel => {
                let count = self.rng.below(6);
                CancelReq {
                    handles: (0..count).map(|_| self.handle()).collect(),
                    waiting_cookies: (0..count).map(|_| self.cookie()).collect(),
                }
                .encode_to_vec()
            }
            Opcode::LdlmGlReply => {
                GlReply { handle: self.handle(), lvb: self.lvb(), serial: self.n(), mode: self.n() as i32 }
                    .encode_to_vec()
            }
            Opcode::MgsRegister if self.bool() => RegisterReq {
                target: format!("evil{}-OST{:04x}", self.rng.below(100), self.rng.below(70_000)),
                target_uuid: vec![self.small() as u8; 16].into(),
                nids: vec![format!("unix:/{}", self.small()); self.usually(&[1, 2, 16], 17)],
                instance: self.n(),
                first: self.bool(),
                start: self.n(),
                replace: self.bool(),
                replaced: self.n() as u32,
                losses: self.u(),
                name_keys: self.opt(Self::name_keys),
                wants_keys: self.bool(),
            }
            .encode_to_vec(),
            Opcode::MgsSetParam if self.bool() => SetParamReq {
                fsname: self.usually(&["fs", "evil1", "evil2"], "").to_owned(),
                param: Some(Param {
                    path: format!("mdt.*.{}", self.usually(&["dom_size", "identity", "x", "*"], "")),
                    value: format!("{}", self.n()),
                }),
                delete: self.rng.chance(1, 3),
            }
            .encode_to_vec(),
            Opcode::MgsRegister => RegisterReq {
                target: self.text(),
                target_uuid: mutate::random(self.rng, 17).into(),
                nids: self.texts(),
                instance: self.n(),
                first: self.bool(),
                start: self.n(),
                replace: self.bool(),
                replaced: self.n() as u32,
                losses: self.u(),
                name_keys: self.opt(Self::name_keys),
                wants_keys: self.bool(),
            }
            .encode_to_vec(),
            Opcode::MgsConfigGet => ConfigGetReq { fsname: self.text() }.encode_to_vec(),
            Opcode::MgsSetParam => SetParamReq {
                fsname: self.text(),
                param: self.opt(|v| Param { path: v.text(), value: v.text() }),
                delete: self.bool(),
            }
            .encode_to_vec(),
            Opcode::MgsSetPool => SetPoolReq {
                fsname: self.text(),
                kind: self.u() as i32 % 5,
                pool: self.text(),
                osts: vec![0, self.u()],
            }
            .encode_to_vec(),
            Opcode::MgsTargetLost => {
                let target = format!("evil{}-MDT{:04x}", self.rng.below(100), self.rng.below(70_000));
                TargetLostReq { target: if self.bool() { target } else { self.text() } }.encode_to_vec()
            }
            Opcode::MgsSeqRange => SeqRangeReq {
                target: self.text(),
                allocated: vec![SequenceRange { start: self.n(), end: self.n(), mdt: self.u() }],
                report_only: self.bool(),
            }
            .encode_to_vec(),
            Opcode::Connect => ConnectReq {
                client_uuid: mutate::random(self.rng, 17).into(),
                target: self.text(),
                features: self.n(),
                version: if self.bool() { PROTOCOL_VERSION } else { self.u() },
                brw_size: self.u(),
                lightweight: self.bool(),
                description: self.text(),
                first_replay_transno: self.n(),
                read_only: self.bool(),
                grant: self.n(),
                seen_committed: self.n(),
                seen_store: mutate::random(self.rng, 17).into(),
                write_back_credits: self.rng.u64() as u32,
            }
            .encode_to_vec(),
            Opcode::LdlmBlCallback | Opcode::LdlmGlCallback | Opcode::LdlmLruLimit | Opcode::MgsConfigChanged => {
                mutate::random(self.rng, 60)
            }
            Opcode::Disconnect | Opcode::Ping | Opcode::SeqAlloc | Opcode::Admin => Vec::new(),
        }
    }
}

/// A connected peer that means no good.
pub(crate) struct Attacker {
    pub uuid: u128,
    pub target: String,
    pub known: Known,
    pub raw: usize,
    pub conn_cnt: u32,
    pub export: Handle,
    xid: u64,
    /// Requests that were sent over this connection and not answered for good.
    pub open: Vec<u64>,
    /// The server said that it does not know the session.
    pub is_lost: bool,
    pub answers: u64,
    pub successes: u64,
    /// How often each kind of request got each status.
    pub statuses: BTreeMap<(u16, i32), u64>,
}

impl Attacker {
    pub(crate) fn new(uuid: u128, target: &str) -> Attacker {
        Attacker {
            uuid,
            target: target.to_owned(),
            known: Known::default(),
            raw: 0,
            conn_cnt: 0,
            export: Handle(0),
            xid: 1,
            open: Vec::new(),
            is_lost: true,
            answers: 0,
            successes: 0,
            statuses: BTreeMap::new(),
        }
    }

    /// A connect request as a good client sends it.
    pub(crate) fn connect(&mut self, lightweight: bool) -> Frame {
        self.conn_cnt += 1;
        self.xid += 1;
        self.open.clear();
        let request = ConnectReq {
            client_uuid: Bytes::copy_from_slice(&self.uuid.to_be_bytes()),
            target: self.target.clone(),
            version: PROTOCOL_VERSION,
            brw_size: 1 << 20,
            lightweight,
            description: format!("client:attacker:{}", self.uuid),
            ..ConnectReq::default()
        };
        let header = Header {
            opcode: Opcode::Connect as u16,
            flags: flags::CONNECT_INITIAL,
            conn_cnt: self.conn_cnt,
            export: self.export,
            xid: Xid(self.xid),
            ..Header::default()
        };
        Frame::new(header, &request, Bytes::new())
    }

    /// The next request.
    pub(crate) fn request(&mut self, rng: &mut Rng, opcodes: &[Opcode]) -> Frame {
        let mut opcode = rng.pick(opcodes).copied().unwrap_or(Opcode::Ping);
        if opcode == Opcode::Disconnect && rng.chance(19, 20) {
            opcode = Opcode::SeqAlloc;
        }
        let mut body = Values { rng, known: &mut self.known }.body(opcode);
        let mut header = Header {
            opcode: opcode as u16,
            conn_cnt: self.conn_cnt,
            export: self.export,
            timeout_ms: 10_000,
            tag: Tag(match opcode {
                Opcode::MdsReint => 1,
                Opcode::MdsClose => 2,
                Opcode::ObjWrite if self.target.contains("MDT") => 1,
                _ => 0,
            }),
            ..Header::default()
        };
        self.xid += 1;
        header.xid = Xid(self.xid);
        if rng.chance(1, 8) {
            mutate(rng, &mut body, &[]);
        }
        if rng.chance(1, 12) {
            match rng.below(11) {
                0 => header.opcode = number(rng) as u16,
                1 => header.tag = Tag(number(rng) as u16),
                2 => header.flags = number(rng) as u32,
                3 => header.flags = 1 << rng.below(12),
                4 => header.conn_cnt = number(rng) as u32,
                5 => {
                    header.export = Handle(if rng.chance(1, 2) { number(rng) } else { header.export.0 + rng.below(4) })
                }
                6 => header.xid = Xid(if rng.chance(1, 2) { number(rng) } else { self.xid - rng.below(5) }),
                7 => header.transno = Transno(number(rng)),
                8 => header.last_xid = Xid(self.xid.saturating_sub(rng.below(20))),
                9 => header.timeout_ms = number(rng) as u32,
                _ => header.last_committed = Transno(number(rng)),
            }
        }
        let bulk = if rng.chance(1, 3) { mutate::random(rng, 5000).into() } else { Bytes::new() };
        self.open.push(header.xid.0);
        Frame { header, body: body.into(), bulk }
    }

    /// Looks at what came: replies make sense, and are learnt from. Gives what a good client would answer.
    pub(crate) fn receive(&mut self, frames: Vec<Frame>, rng: &mut Rng) -> Vec<Frame> {
        let mut answers = Vec::new();
        for frame in frames {
            let header = frame.header;
            if !header.has(flags::REPLY) {
                let opcode = Opcode::from_raw(header.opcode);
                assert!(
                    opcode.is_some_and(|opcode| opcode.traits().notice),
                    "neither a reply nor a notice: {header:?}"
                );
                if rng.chance(3, 4)
                    && let Ok(callback) = frame.decode::<BlCallback>()
                {
                    self.xid += 1;
                    let body = CancelReq { handles: vec![callback.handle], waiting_cookies: vec![] };
                    let opcode = Opcode::LdlmCancel as u16;
                    let (conn_cnt, export, xid) = (self.conn_cnt, self.export, Xid(self.xid));
                    let header = Header { opcode, conn_cnt, export, xid, ..Header::default() };
                    self.open.push(self.xid);
                    answers.push(Frame::new(header, &body, Bytes::new()));
                }
                self.known.learn(&frame, rng);
                continue;
            }
            if header.has(flags::EARLY) {
                continue;
            }
            if header.opcode == Opcode::Connect as u16 {
                if header.status == 0 {
                    self.export = header.export;
                    self.is_lost = false;
                }
                continue;
            }
            let errno = Errno::from_raw(-header.status);
            assert!(header.status >= 0 || errno.raw() == -header.status, "no errno: {header:?}");
            self.answers += 1;
            self.is_lost |= header.status == -Errno::ENOTCONN.raw() && header.export == self.export;
            *self.statuses.entry((header.opcode, header.status)).or_default() += 1;
            if header.status == 0 {
                self.successes += 1;
                self.known.learn(&frame, rng);
            }
            // One final answer to each request; what was sent with somebody else's xid aside.
            self.open.retain(|xid| *xid != header.xid.0);
        }
        answers
    }
}
