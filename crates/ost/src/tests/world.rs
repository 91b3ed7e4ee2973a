//! One object target and its clients in one thread: messages, medium and time under the test's hand.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use proto::frame::flags;
use proto::msg::{
    BlCallback, CancelReq, ConnectRep, DestroyReq, EnqueueRep, EnqueueReq, Extent, GlCallback, GlReply, LockMode, Lvb,
    ObjGetattrReq, ObjSyncReq, ObjectId, ObjectStateRep, Policy, PunchKind, PunchReq, ReadReq, Resource, SeekRep,
    SeekReq, StatfsRep, StatfsReq, WriteReq,
};
use proto::{ClientUuid, Errno, Fid, Frame, Nid, Opcode};
use rpc::Link;
use rpc::client::{Config, Import, ImportEffect, ImportEvent, Outgoing, RequestId};
use schema::{Header, Record};
use stdx::{Instant, Rng};
use store::{Batch, Engine, MemEngine, Space};
use target::{ConnId, DataId, DataOp, Effect, Event, Options, Peer, Target};

use crate::Ost;
use crate::mem_data::MemData;

pub(super) const NAME: &str = "fs-OST0000";

pub(super) struct Client {
    pub import: Import,
    link: Option<(Link, ConnId)>,
    pub replies: BTreeMap<RequestId, Result<Frame, Errno>>,
    pub connected: Option<ConnectRep>,
    /// Locks that it holds, by cookie: as asked for, and the server's handle.
    pub locks: BTreeMap<u64, (EnqueueReq, u64)>,
    pub called_back: Vec<BlCallback>,
    /// Gives locks back as soon as they are called.
    pub obliging: bool,
    /// What it says when it is asked what an object looks like.
    pub lvb: Option<Lvb>,
    pub evictions: u32,
    alive: bool,
    next_cookie: u64,
}

pub(super) struct World {
    pub target: Option<Target<Ost>>,
    pub engine: MemEngine,
    pub data: MemData,
    pub clients: Vec<Client>,
    pub now: Instant,
    pub rng: Rng,
    pub log: Vec<String>,
    /// Groups are handed to the medium, and are durable only when this is false again.
    pub slow_medium: bool,
    pub space: Option<Space>,
    /// Data operations take their time: those of one file keep their order, others overtake each other.
    pub slow_data: bool,
    /// Nothing is heard of operations on this file.
    pub stalled: Option<u64>,
    data_queue: Vec<(DataId, DataOp)>,
    in_flight: VecDeque<u64>,
    conns: BTreeMap<u64, usize>,
    next_conn: u64,
    starts: u64,
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
        let mut batch = store::Batch::new();
        batch.put(Header::key(&()), header.encode_record());
        engine.commit(1, &batch.seal(&schema::formats())).unwrap();
        let mut world = World {
            target: None,
            engine,
            data: MemData::new(),
            clients: Vec::new(),
            now: Instant::ZERO + Duration::from_secs(1),
            rng: Rng::new(seed),
            log: Vec::new(),
            slow_medium: false,
            space: None,
            slow_data: false,
            stalled: None,
            data_queue: Vec::new(),
            in_flight: VecDeque::new(),
            conns: BTreeMap::new(),
            next_conn: 1,
            starts: 0,
        };
        world.start();
        world
    }

    pub(super) fn start(&mut self) {
        self.starts += 1;
        let options = Options { name: NAME.parse().ok(), seed: self.starts, ..Options::default() };
        let last = self.engine.last_group().unwrap();
        self.target = Some(Target::new(Ost::new(), options, last, self.now));
        let space = self.space.unwrap_or_else(|| self.engine.space().unwrap());
        self.tell(Event::Space(space));
        self.tell(Event::WallClock(1_000_000_000));
        self.run();
    }

    /// Changes records under the target's feet: it starts anew to see that.
    pub(super) fn damage(&mut self, change: impl FnOnce(&mut Batch)) {
        self.sync(0);
        self.kill();
        let mut batch = Batch::new();
        change(&mut batch);
        let group = self.engine.last_group().unwrap() + 1;
        self.engine.commit(group, &batch.seal(&schema::formats())).unwrap();
        self.start();
    }

    pub(super) fn set_space(&mut self, free: u64) {
        let space = Space { total: free * 2, free, reserve: 0, at_once: free, records: 0 };
        self.space = Some(space);
        self.tell(Event::Space(space));
    }

    /// The data files lie on a medium of their own.
    pub(super) fn set_data_space(&mut self, total: u64, free: u64) {
        self.tell(Event::DataSpace(target::DataSpace { total, free, disk: 0 }));
    }

    /// The power fails and the target starts again.
    pub(super) fn crash(&mut self) {
        self.kill();
        self.start();
    }

    pub(super) fn kill(&mut self) {
        self.target = None;
        self.in_flight.clear();
        for (_, op) in core::mem::take(&mut self.data_queue) {
            self.data.run(&op);
        }
        self.stalled = None;
        let mut rng = self.rng.fork();
        self.engine.crash(&mut rng);
        self.data.crash(&mut rng);
        self.conns.clear();
        for client in &mut self.clients {
            if let Some((link, _)) = client.link.take() {
                client.import.handle(self.now, ImportEvent::Closed(link));
            }
        }
    }

    fn tell(&mut self, event: Event) {
        if let Some(target) = &mut self.target {
            target.handle(self.now, event);
        }
    }

    pub(super) fn client(&mut self) -> usize {
        self.connect(false)
    }

    /// A metadata target's connection.
    pub(super) fn mdt(&mut self) -> usize {
        self.connect(true)
    }

    fn connect(&mut self, lightweight: bool) -> usize {
        let number = self.clients.len();
        let nid: Nid = "unix:ost".parse().unwrap();
        let mut config = Config::new(ClientUuid(100 + number as u128), NAME.into(), vec![nid], number as u64);
        config.lightweight = lightweight;
        config.first_xid = 1000 * number as u64;
        self.clients.push(Client {
            import: Import::new(config, self.now),
            link: None,
            replies: BTreeMap::new(),
            connected: None,
            locks: BTreeMap::new(),
            called_back: Vec::new(),
            obliging: true,
            lvb: None,
            evictions: 0,
            alive: true,
            next_cookie: 1,
        });
        self.until(|world| world.clients[number].connected.is_some());
        number
    }

    /// The client dies: nothing more comes from it, and its connection breaks.
    pub(super) fn die(&mut self, client: usize) {
        self.clients[client].alive = false;
        if let Some((_, conn)) = self.clients[client].link.take() {
            self.conns.remove(&conn.0);
            self.tell(Event::Closed { conn });
        }
    }

    /// Cuts a client's connection.
    pub(super) fn cut(&mut self, client: usize) {
        if let Some((link, conn)) = self.clients[client].link.take() {
            self.conns.remove(&conn.0);
            self.tell(Event::Closed { conn });
            self.clients[client].import.handle(self.now, ImportEvent::Closed(link));
        }
    }

    /// Everything that can happen without time.
    pub(super) fn run(&mut self) {
        loop {
            let mut moved = false;
            while let Some(effect) = self.target.as_mut().and_then(Target::poll) {
                moved = true;
                self.effect(effect);
            }
            for number in 0..self.clients.len() {
                while self.clients[number].alive
                    && let Some(effect) = self.clients[number].import.poll()
                {
                    moved = true;
                    self.client_effect(number, effect);
                }
            }
            if !self.slow_medium
                && let Some(group) = self.in_flight.pop_front()
            {
                self.engine.make_durable(group);
                self.tell(Event::Committed { group });
                moved = true;
            }
            if !self.data_queue.is_empty() && (!moved || self.rng.chance(1, 3)) {
                self.one_data_operation();
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn one_data_operation(&mut self) {
        let picked = self.rng.below(self.data_queue.len() as u64) as usize;
        let files = self.data_queue[picked].1.files();
        let clash = |(_, op): &(DataId, DataOp)| op.files().iter().any(|file| files.contains(file));
        let first = self.data_queue.iter().position(clash).unwrap_or(picked);
        // A sync of many files may clash with an older one that clashes with yet another.
        let first = if matches!(self.data_queue[first].1, DataOp::Sync { .. }) { 0 } else { first };
        let (id, op) = self.data_queue.remove(first);
        let result = self.data.run(&op);
        self.tell(Event::DataDone { id, result });
    }

    /// Time passes, to the next deadline at most.
    pub(super) fn step(&mut self) {
        let mut next = self.now + Duration::from_secs(1);
        next = self.target.as_ref().and_then(Target::deadline).map_or(next, |at| at.min(next));
        for client in self.clients.iter().filter(|c| c.alive) {
            next = client.import.deadline().map_or(next, |at| at.min(next));
        }
        self.now = next.max(self.now + Duration::from_millis(1));
        self.tell(Event::Tick);
        for client in self.clients.iter_mut().filter(|c| c.alive) {
            client.import.handle(self.now, ImportEvent::Tick);
        }
        self.run();
    }

    pub(super) fn until(&mut self, done: impl Fn(&World) -> bool) {
        self.run();
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("it never happens; log: {:#?}", self.log);
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Send { conn, frame } => {
                let Some(&client) = self.conns.get(&conn.0) else { return };
                if let Some((link, _)) = self.clients[client].link {
                    self.clients[client].import.handle(self.now, ImportEvent::Frame(link, frame));
                }
            }
            Effect::Hangup { conn } => {
                if let Some(client) = self.conns.remove(&conn.0)
                    && let Some((link, _)) = self.clients[client].link.take()
                {
                    self.clients[client].import.handle(self.now, ImportEvent::Closed(link));
                }
                self.tell(Event::Closed { conn });
            }
            Effect::Dial { conn, .. } => {
                let reason = "there is no MGS in this world".to_owned();
                self.tell(Event::DialFailed { conn, reason });
            }
            Effect::Load(load) => {
                let done = load.run(&self.engine);
                self.tell(Event::Loaded(done));
            }
            Effect::Commit(group) => {
                self.engine.begin_commit(group.number(), group.seal()).unwrap();
                self.in_flight.push_back(group.number());
            }
            Effect::Data { id, op } if self.slow_data => self.data_queue.push((id, op)),
            Effect::Data { op, .. } if self.stalled.is_some_and(|file| op.files().contains(&file)) => {
                self.data.run(&op);
            }
            Effect::Data { id, op } => {
                let result = self.data.run(&op);
                self.tell(Event::DataDone { id, result });
            }
            Effect::Serving { .. } => {}
            Effect::Log(level, line) => self.log.push(format!("{level:?}: {line}")),
            Effect::Stop { reason } => panic!("the target stops: {reason:?}"),
        }
    }

    fn client_effect(&mut self, number: usize, effect: ImportEffect) {
        let now = self.now;
        let client = &mut self.clients[number];
        match effect {
            ImportEffect::Dial { link, .. } => {
                if self.target.is_none() {
                    client.import.handle(now, ImportEvent::DialFailed(link, "nobody is there".into()));
                    return;
                }
                let conn = ConnId(self.next_conn);
                self.next_conn += 1;
                self.conns.insert(conn.0, number);
                client.link = Some((link, conn));
                client.import.handle(now, ImportEvent::Dialled(link));
                self.tell(Event::Accepted { conn, peer: Peer { ours: true, ..Peer::default() } });
            }
            ImportEffect::Send { frame, .. } => {
                if let Some((_, conn)) = client.link {
                    self.tell(Event::Frame { conn, frame });
                }
            }
            ImportEffect::Hangup(link) => {
                if let Some((_, conn)) = client.link.take_if(|(l, _)| *l == link) {
                    self.conns.remove(&conn.0);
                    self.tell(Event::Closed { conn });
                }
            }
            ImportEffect::Reply { id, result, .. } => {
                client.replies.insert(id, result);
            }
            ImportEffect::Notice(frame) => self.notice(number, &frame),
            ImportEffect::Connected(reply) => client.connected = Some(reply),
            ImportEffect::Full { .. } => {}
            ImportEffect::ReplayLocks { first } => {
                let locks =
                    client.locks.values().map(|(req, handle)| EnqueueReq { granted_handle: *handle, ..req.clone() });
                let locks = if first { locks.collect() } else { Vec::new() };
                client.import.locks_to_replay(now, locks);
            }
            ImportEffect::LocksReplayed(locks) => {
                for (cookie, result) in locks {
                    match (result, client.locks.get_mut(&cookie)) {
                        (Ok(new), Some((_, handle))) => *handle = new,
                        _ => drop(client.locks.remove(&cookie)),
                    }
                }
            }
            ImportEffect::Evicted { .. } => {
                client.evictions += 1;
                client.locks.clear();
            }
            ImportEffect::Refused { errno, reason } => self.log.push(format!("refused: {errno:?} {reason}")),
            ImportEffect::Log(line) | ImportEffect::Loss(line) => self.log.push(line),
            ImportEffect::Away | ImportEffect::Replayed { .. } | ImportEffect::Disconnected => {}
        }
    }

    fn notice(&mut self, number: usize, frame: &Frame) {
        let client = &mut self.clients[number];
        match Opcode::from_raw(frame.header.opcode) {
            Some(Opcode::LdlmBlCallback) => {
                let callback: BlCallback = frame.decode().unwrap();
                client.called_back.push(callback.clone());
                if client.obliging {
                    self.cancel(number, callback.cookie, callback.handle);
                }
            }
            Some(Opcode::LdlmGlCallback) => {
                let callback: GlCallback = frame.decode().unwrap();
                let reply =
                    GlReply { handle: callback.handle, lvb: client.lvb, serial: callback.serial, ..GlReply::default() };
                client.import.submit(self.now, Outgoing::new(Opcode::LdlmGlReply, &reply));
            }
            _ => {}
        }
    }

    pub(super) fn cancel(&mut self, client: usize, cookie: u64, handle: u64) {
        let client = &mut self.clients[client];
        client.locks.remove(&cookie);
        let cancel = CancelReq { handles: vec![handle], waiting_cookies: vec![] };
        client
            .import
            .submit(self.now, Outgoing { during_recovery: true, ..Outgoing::new(Opcode::LdlmCancel, &cancel) });
    }

    // --- requests ---

    pub(super) fn send(&mut self, client: usize, out: Outgoing) -> RequestId {
        let id = self.clients[client].import.submit(self.now, out);
        self.run();
        id
    }

    pub(super) fn answer(&mut self, client: usize, id: RequestId) -> Result<Frame, Errno> {
        self.until(|world| world.clients[client].replies.contains_key(&id));
        let frame = self.clients[client].replies.remove(&id).unwrap()?;
        assert!(frame.header.has(flags::REPLY));
        Errno::from_status(frame.header.status).map(|()| frame)
    }

    pub(super) fn call(&mut self, client: usize, opcode: Opcode, body: &impl Message) -> Result<Frame, Errno> {
        let id = self.send(client, Outgoing::new(opcode, body));
        self.answer(client, id)
    }

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
        let mut locks = self.clients[client].locks.values();
        locks.find(|(req, _)| req.resource == Resource::object(fid(oid), 0)).map_or(0, |(_, handle)| *handle)
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
        let cookie = self.clients[client].next_cookie;
        self.clients[client].next_cookie += 1;
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
