//! Stories: a metadata target over a store in memory, and clients that speak to it in frames.

mod batch;
mod chains;
mod data;
mod dot_lustre;
mod hostile;
mod names;
mod random;
mod recovery;
mod rights;

use crate::{Mdt, Settings, format};
use bytes::Bytes;
use core::ops::{Deref, DerefMut};
use lfsck::Snapshot;
use prost::Message;
use proto::frame::flags;
use proto::msg::*;
use proto::{Errno, Fid, Frame, Handle, Opcode, Tag, Transno, Xid};
use schema::mdt::SeqRange;
use schema::{Header as TargetHeader, MdtState, Record};
use store::{Engine, MemEngine};
use target::{Event, Format, Options};
use testkit::peers::Peers;

pub(crate) const S_IFDIR: u32 = rules::mode::S_IFDIR;
pub(crate) const S_IFREG: u32 = rules::mode::S_IFREG;
pub(crate) const S_IFLNK: u32 = rules::mode::S_IFLNK;

/// A metadata target and its clients: what [`Peers`] does, and the operations on metadata.
pub(crate) struct World {
    kit: Peers<Mdt>,
    /// Clock of the programs, which rises with every request.
    pub time_ns: i64,
}

impl Deref for World {
    type Target = Peers<Mdt>;
    fn deref(&self) -> &Peers<Mdt> {
        &self.kit
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Peers<Mdt> {
        &mut self.kit
    }
}

pub(crate) fn cred(uid: u32) -> Cred {
    Cred { uid, gid: uid, umask: 0o022, ..Cred::default() }
}

impl World {
    /// A new file system with one client.
    pub(crate) fn new() -> World {
        let engine = MemEngine::new();
        let name: proto::TargetName = "fs-MDT0000".parse().expect("a name");
        let made = Format {
            name,
            uuid: 7,
            mgs: Vec::new(),
            version: "test".into(),
            wall_ns: 1,
            params: Vec::new(),
            name_key: None,
            replaces: false,
        };
        let mut batch = format(&made, &crate::Root::default());
        let header = TargetHeader {
            name: "fs-MDT0000".into(),
            uuid: Bytes::from_static(&[7; 16]),
            registered: true,
            ..TargetHeader::default()
        };
        let sequences = vec![SeqRange { start: Fid::SEQ_FIRST, end: Fid::SEQ_FIRST + 1000 }];
        batch.put(TargetHeader::key(&()), header.encode_record());
        batch.put(MdtState::key(&()), MdtState { next_region: 1, sequences, ..MdtState::default() }.encode_record());
        engine.commit(1, &batch.seal(&schema::formats())).expect("in memory");
        let kit = Peers::new("fs-MDT0000", engine, Options::default(), || Mdt::new(Settings::default()));
        let mut world = World { kit, time_ns: 1_000_000 };
        world.connect();
        world
    }

    /// A further client; gives its number. It has a sequence.
    pub(crate) fn connect(&mut self) -> usize {
        self.kit.connect_with_sequence()
    }

    pub(crate) fn reint_as(&mut self, at: usize, cred: Cred, want: WantLocks, op: Reint) -> Result<ObjectRep, Errno> {
        self.time_ns += 1000;
        let request = ReintReq { cred: Some(cred), now_ns: self.time_ns, want: Some(want), op: Some(op) };
        let frame = self.ask(at, Opcode::MdsReint, Tag(1), &request, Bytes::new())?;
        Ok(frame.decode().expect("a body"))
    }

    pub(crate) fn reint(&mut self, op: Reint) -> Result<ObjectRep, Errno> {
        self.reint_as(0, cred(0), WantLocks::default(), op)
    }

    // --- calls, as root of client 0 ---

    pub(crate) fn create(&mut self, parent: Fid, name: &str, mode: u32) -> Result<Fid, Errno> {
        self.create_as(0, cred(0), parent, name, mode)
    }

    pub(crate) fn create_as(
        &mut self,
        at: usize,
        cred: Cred,
        parent: Fid,
        name: &str,
        mode: u32,
    ) -> Result<Fid, Errno> {
        let fid = self.new_fid(at);
        let symlink = if mode & S_IFLNK == S_IFLNK { Bytes::from_static(b"target") } else { Bytes::new() };
        let op = CreateOp { parent, name: bytes(name), fid, mode, symlink, ..CreateOp::default() };
        let result = self.reint_as(at, cred, WantLocks::default(), Reint::Create(op));
        let rep = result.inspect_err(|_| self.clients[at].oid -= 1)?;
        let attr = rep.attr.expect("attributes");
        assert_eq!((attr.fid, attr.mode & rules::mode::S_IFMT), (fid, mode & rules::mode::S_IFMT));
        Ok(fid)
    }

    pub(crate) fn mkdir(&mut self, parent: Fid, name: &str) -> Fid {
        self.create(parent, name, S_IFDIR | 0o755).expect(name)
    }

    pub(crate) fn mknod(&mut self, parent: Fid, name: &str) -> Fid {
        self.create(parent, name, S_IFREG | 0o644).expect(name)
    }

    pub(crate) fn lookup(&mut self, parent: Fid, name: &str) -> Option<Attr> {
        self.lookup_as(0, cred(0), parent, name).expect("root may")
    }

    pub(crate) fn lookup_as(&mut self, at: usize, cred: Cred, parent: Fid, name: &str) -> Result<Option<Attr>, Errno> {
        let request = LookupReq { parent, name: bytes(name), want: None, cred: Some(cred) };
        self.call::<ObjectRep>(at, Opcode::MdsLookup, &request).map(|rep| rep.attr)
    }

    pub(crate) fn getattr(&mut self, fid: Fid) -> Result<Attr, Errno> {
        let request = GetattrReq { fid, ..GetattrReq::default() };
        self.call::<ObjectRep>(0, Opcode::MdsGetattr, &request).map(|rep| rep.attr.expect("attributes"))
    }

    pub(crate) fn unlink(&mut self, parent: Fid, name: &str) -> Result<Attr, Errno> {
        self.remove_as(0, cred(0), parent, name, false)
    }

    pub(crate) fn rmdir(&mut self, parent: Fid, name: &str) -> Result<Attr, Errno> {
        self.remove_as(0, cred(0), parent, name, true)
    }

    pub(crate) fn remove_as(
        &mut self,
        at: usize,
        cred: Cred,
        parent: Fid,
        name: &str,
        rmdir: bool,
    ) -> Result<Attr, Errno> {
        let op = Reint::Unlink(UnlinkOp { parent, name: bytes(name), rmdir, reported: None, entry_only: false });
        self.reint_as(at, cred, WantLocks::default(), op).map(|rep| rep.attr.expect("attributes"))
    }

    pub(crate) fn link(&mut self, fid: Fid, parent: Fid, name: &str) -> Result<Attr, Errno> {
        self.reint(Reint::Link(LinkOp { fid, parent, name: bytes(name), kind: 0 }))
            .map(|rep| rep.attr.expect("attributes"))
    }

    pub(crate) fn rename(&mut self, from: (Fid, &str), to: (Fid, &str), flags: u32) -> Result<ObjectRep, Errno> {
        self.rename_as(0, cred(0), from, to, flags)
    }

    pub(crate) fn rename_as(
        &mut self,
        at: usize,
        cred: Cred,
        from: (Fid, &str),
        to: (Fid, &str),
        flags: u32,
    ) -> Result<ObjectRep, Errno> {
        let op = RenameOp {
            source_parent: from.0,
            source_name: bytes(from.1),
            target_parent: to.0,
            target_name: bytes(to.1),
            flags,
            reported: None,
            whiteout: (flags & 4 != 0).then(|| self.new_fid(at)),
        };
        self.reint_as(at, cred, WantLocks::default(), Reint::Rename(op))
    }

    pub(crate) fn setattr_as(&mut self, cred: Cred, op: SetattrOp) -> Result<Attr, Errno> {
        let op = Reint::Setattr(op);
        self.reint_as(0, cred, WantLocks::default(), op).map(|rep| rep.attr.expect("attributes"))
    }

    pub(crate) fn open(&mut self, at: usize, parent: Fid, name: &str, flags: u32) -> Result<ObjectRep, Errno> {
        let fid = self.new_fid(at);
        let op = OpenOp { parent: Some(parent), name: bytes(name), fid, flags, mode: 0o644, ..OpenOp::default() };
        self.reint_as(at, cred(0), WantLocks::default(), Reint::Open(op))
    }

    /// One close in a request.
    pub(crate) fn close(&mut self, at: usize, fid: Fid, handle: u64) -> Result<CloseResult, Errno> {
        let result = self.close_all(at, &[(fid, handle)])?.pop().expect("a result");
        Errno::from_status(result.status).map(|()| result)
    }

    /// What became of each of these closes, in one request.
    pub(crate) fn close_all(&mut self, at: usize, closes: &[(Fid, u64)]) -> Result<Vec<CloseResult>, Errno> {
        let request = closes.iter().map(|&(fid, handle)| Close { fid, handle, atime_ns: 0 }).collect();
        let frame = self.ask(at, Opcode::MdsClose, Tag(2), &CloseReq { closes: request }, Bytes::new())?;
        let rep: CloseRep = frame.decode().expect("a body");
        let mut results: Vec<CloseResult> =
            (0..closes.len() as u32).map(|index| CloseResult { index, ..CloseResult::default() }).collect();
        for result in rep.results {
            let index = result.index as usize;
            results[index] = result;
        }
        Ok(results)
    }

    pub(crate) fn readdir(&mut self, fid: Fid, plus: bool, max_bytes: u32) -> Vec<DirEntry> {
        let (all, end) = self.listing(fid, plus, max_bytes);
        end.expect("root may");
        all
    }

    /// The entries that a listing gives before it ends, and how it ends.
    pub(crate) fn listing(&mut self, fid: Fid, plus: bool, max_bytes: u32) -> (Vec<DirEntry>, Result<(), Errno>) {
        let mut all: Vec<DirEntry> = Vec::new();
        loop {
            let after = all.last().map_or(0, |entry| entry.cookie);
            match self.page(0, fid, after, plus, max_bytes) {
                Err(errno) => return (all, Err(errno)),
                Ok(rep) => {
                    assert!(rep.end || !rep.entries.is_empty(), "a listing that does not go on");
                    all.extend(rep.entries);
                    if rep.end {
                        return (all, Ok(()));
                    }
                }
            }
        }
    }

    /// One page of a listing.
    pub(crate) fn page(
        &mut self,
        at: usize,
        fid: Fid,
        after: u64,
        plus: bool,
        max_bytes: u32,
    ) -> Result<ReaddirRep, Errno> {
        let request =
            ReaddirReq { fid, after, max_bytes, plus, cred: Some(cred(0)), entry_cookies: 0, want: None, layout: 0 };
        self.call(at, Opcode::MdsReaddir, &request)
    }

    pub(crate) fn names(&mut self, fid: Fid) -> Vec<String> {
        let mut names: Vec<String> =
            self.readdir(fid, false, 1 << 16).iter().map(|entry| String::from_utf8_lossy(&entry.name).into()).collect();
        names.sort();
        names
    }

    /// Everything durable, and in order.
    pub(crate) fn check(&mut self) {
        self.sync();
        let snapshot = Snapshot::of_engine(&self.host.engine).expect("whole");
        let found: Vec<String> = lfsck::check(&[&snapshot], &[]).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{found:#?}");
        assert!(self.log.is_empty(), "{:#?}", self.log);
    }

    pub(crate) fn sync(&mut self) {
        self.ask(0, Opcode::MdsSync, Tag(0), &SyncReq { fid: None }, Bytes::new()).expect("sync");
    }

    /// Changes an inode under the target's feet. It must be started anew to see it.
    pub(crate) fn edit_inode(&mut self, fid: Fid, change: impl FnOnce(&mut schema::Inode)) {
        let ino = self.stored::<schema::Oi>(&fid).ino;
        self.edit(&ino, change);
    }

    /// Changes a record under the target's feet. It must be started anew to see it.
    pub(crate) fn edit<R: Record>(&mut self, id: &R::Id, change: impl FnOnce(&mut R)) {
        let mut record: R = self.stored(id);
        change(&mut record);
        self.host.edit(|batch| batch.put(R::key(id), record.encode_record()));
    }

    /// Loses the record of a name under the target's feet. It must be started anew to see it.
    pub(crate) fn lose_entry(&mut self, dir: Fid, name: &str) {
        self.sync();
        let dir = self.stored::<schema::Oi>(&dir).ino;
        let cookie = schema::first_cookie(&self.stored::<schema::Header>(&()), name.as_bytes());
        self.host.edit(|batch| batch.delete(schema::Entry::key(&schema::EntryKey { dir, cookie })));
    }

    fn stored<R: Record>(&self, id: &R::Id) -> R {
        let key = R::key(id);
        let sealed = self.host.engine.get(&key).expect("in memory").expect("a record");
        R::decode_record(&schema::formats().open(&key, &sealed).expect("whole")).expect("of its kind")
    }

    pub(crate) fn records<R: Record>(&mut self) -> usize {
        self.sync();
        let snapshot = Snapshot::of_engine(&self.host.engine).expect("whole");
        snapshot.range(&R::all()).count()
    }
}

pub(crate) fn bytes(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}
