//! One object target and its clients: what [`Sessions`] does, and the requests of an object target.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use proto::msg::{
    DestroyReq, EnqueueRep, EnqueueReq, Extent, LockMode, Lvb, ObjGetattrReq, ObjSyncReq, ObjectId, ObjectStateRep,
    Policy, PunchKind, PunchReq, ReadReq, Resource, SeekRep, SeekReq, StatfsRep, StatfsReq, WriteReq,
};
use proto::{Errno, Fid, Opcode};
use rpc::client::{Outgoing, RequestId};
use schema::{Header, Record};
use stdx::Instant;
use store::{Batch, MemEngine, Space};
use target::Event;
use testkit::sessions::Sessions;

use crate::Ost;

pub(super) const NAME: &str = "fs-OST0000";

pub(super) struct World {
    kit: Sessions<Ost>,
}

impl Deref for World {
    type Target = Sessions<Ost>;
    fn deref(&self) -> &Sessions<Ost> {
        &self.kit
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Sessions<Ost> {
        &mut self.kit
    }
}

pub(super) fn fid(oid: u32) -> Fid {
    Fid::new(Fid::SEQ_FIRST, oid)
}

pub(super) fn object(oid: u32) -> ObjectId {
    ObjectId { fid: fid(oid), stripe: 0 }
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let engine = MemEngine::new();
        // It has registered before, so it serves without an MGS.
        let header = Header {
            name: NAME.into(),
            uuid: vec![7; 16].into(),
            mgs_nids: vec!["unix:mgs".into()],
            registered: true,
            ..Header::default()
        };
        testkit::host::edit(&engine, |batch| batch.put(Header::key(&()), header.encode_record()));
        World { kit: Sessions::new(NAME, engine, seed, Ost::new) }
    }

    /// Changes records of the store; the target starts anew to see that.
    pub(super) fn damage(&mut self, change: impl FnOnce(&mut Batch)) {
        self.sync(0);
        self.kit.damage(change);
    }

    pub(super) fn set_space(&mut self, free: u64) {
        self.kit.set_space(Space { total: free * 2, free, reserve: 0, at_once: free, records: 0, disk: 0 });
    }

    /// The data files lie on a medium of their own.
    pub(super) fn set_data_space(&mut self, total: u64, free: u64) {
        self.tell(Event::DataSpace(target::DataSpace { total, free, disk: 0 }));
    }

    pub(super) fn client(&mut self) -> usize {
        self.connect(false, "")
    }

    /// A metadata target's connection.
    pub(super) fn mdt(&mut self) -> usize {
        self.connect(true, "")
    }

    // --- requests ---

    pub(super) fn write_req(&self, client: usize, oid: u32, offset: u64) -> WriteReq {
        WriteReq {
            object: object(oid),
            offset,
            lock: self.lock_on(client, oid),
            lvb: Some(self.times()),
            uid: 10,
            gid: 20,
            grant_used: 0,
            sync: false,
            want_grant: 0,
            job: String::new(),
        }
    }

    pub(super) fn times(&self) -> Lvb {
        let ns = self.now.since(Instant::ZERO).as_nanos() as i64;
        Lvb { mtime_ns: ns, ctime_ns: ns, ..Lvb::default() }
    }

    fn lock_on(&self, client: usize, oid: u32) -> u64 {
        self.clients[client].lock_on(&Resource::object(fid(oid), 0))
    }

    pub(super) fn write(&mut self, client: usize, oid: u32, offset: u64, data: &[u8]) -> Result<ObjectStateRep, Errno> {
        let id = self.send_write(client, &self.write_req(client, oid, offset), data);
        self.answer(client, id).map(|frame| frame.decode().unwrap())
    }

    pub(super) fn send_write(&mut self, client: usize, req: &WriteReq, data: &[u8]) -> RequestId {
        self.send(client, Outgoing::new(Opcode::ObjWrite, req).with_bulk(Bytes::copy_from_slice(data)))
    }

    pub(super) fn read(&mut self, client: usize, oid: u32, offset: u64, length: u32) -> Result<Bytes, Errno> {
        let req = ReadReq { object: object(oid), offset, length, lock: self.lock_on(client, oid), job: String::new() };
        self.call(client, Opcode::ObjRead, &req).map(|frame| frame.bulk)
    }

    pub(super) fn punch(
        &mut self,
        client: usize,
        oid: u32,
        kind: PunchKind,
        start: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<Lvb, Errno> {
        let req = PunchReq {
            object: object(oid),
            kind: kind as i32,
            start,
            length,
            keep_size,
            lvb: Some(self.times()),
            lock: self.lock_on(client, oid),
            uid: 10,
            gid: 20,
            job: String::new(),
        };
        let frame = self.call(client, Opcode::ObjPunch, &req)?;
        Ok(frame.decode::<ObjectStateRep>().unwrap().lvb.unwrap())
    }

    pub(super) fn truncate(&mut self, client: usize, oid: u32, size: u64) -> Result<Lvb, Errno> {
        self.punch(client, oid, PunchKind::Truncate, size, 0, false)
    }

    pub(super) fn seek(&mut self, client: usize, oid: u32, offset: u64, hole: bool) -> Result<u64, Errno> {
        let frame =
            self.call(client, Opcode::ObjSeek, &SeekReq { object: object(oid), offset, hole, job: String::new() })?;
        Ok(frame.decode::<SeekRep>().unwrap().offset)
    }

    pub(super) fn getattr(&mut self, client: usize, oid: u32) -> Lvb {
        let frame = self.call(client, Opcode::ObjGetattr, &ObjGetattrReq { object: object(oid) }).unwrap();
        frame.decode::<ObjectStateRep>().unwrap().lvb.unwrap()
    }

    pub(super) fn sync(&mut self, client: usize) {
        self.call(client, Opcode::ObjSync, &ObjSyncReq { objects: vec![], job: String::new() }).unwrap();
    }

    pub(super) fn destroy(&mut self, mdt: usize, oids: &[u32]) -> Result<(), Errno> {
        let req = DestroyReq { objects: oids.iter().map(|&oid| object(oid)).collect(), strays: None };
        self.call(mdt, Opcode::ObjDestroy, &req).map(drop)
    }

    pub(super) fn statfs(&mut self, client: usize, want_grant: u64) -> StatfsRep {
        self.call(client, Opcode::ObjStatfs, &StatfsReq { want_grant }).unwrap().decode().unwrap()
    }

    pub(super) fn send_enqueue(
        &mut self,
        client: usize,
        oid: u32,
        mode: LockMode,
        extent: Extent,
    ) -> (RequestId, EnqueueReq) {
        let cookie = self.clients[client].new_cookie();
        let req = EnqueueReq {
            resource: Resource::object(fid(oid), 0),
            mode: mode as i32,
            cookie,
            policy: Some(Policy::Extent(extent)),
            ..EnqueueReq::default()
        };
        (self.send(client, Outgoing::new(Opcode::LdlmEnqueue, &req)), req)
    }

    pub(super) fn granted(&mut self, client: usize, (id, req): (RequestId, EnqueueReq)) -> Result<Lvb, Errno> {
        let reply: EnqueueRep = self.answer(client, id)?.decode().unwrap();
        let grant = reply.grant.expect("a lock");
        self.clients[client].locks.insert(req.cookie, (EnqueueReq { policy: grant.policy, ..req }, grant.handle));
        Ok(reply.lvb.expect("attributes"))
    }

    pub(super) fn lock(&mut self, client: usize, oid: u32, mode: LockMode) -> Lvb {
        let sent = self.send_enqueue(client, oid, mode, Extent::ALL);
        self.granted(client, sent).unwrap()
    }

    /// The doomed files are gone.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            self.step();
        }
    }
}
