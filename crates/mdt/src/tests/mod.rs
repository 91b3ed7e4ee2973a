//! Stories: a metadata target over a store in memory, and clients that speak to it in frames.

mod batch;
mod chains;
mod data;
mod hostile;
mod names;
mod random;
mod recovery;
mod rights;

use crate::{Mdt, Settings, format};
use bytes::Bytes;
use lfsck::Snapshot;
use prost::Message;
use proto::frame::flags;
use proto::msg::*;
use proto::{Errno, Fid, Frame, Handle, Header, Opcode, Tag, Transno, Xid};
use schema::mdt::SeqRange;
use schema::{Header as TargetHeader, MdtState, Record};
use std::collections::VecDeque;
use stdx::Instant;
use store::{Engine, MemEngine, Space};
use target::{ConnId, Effect, Event, Format, LogLevel, Options, Peer, Target};

pub(crate) const S_IFDIR: u32 = rules::mode::S_IFDIR;
pub(crate) const S_IFREG: u32 = rules::mode::S_IFREG;
pub(crate) const S_IFLNK: u32 = rules::mode::S_IFLNK;

/// A client: what it must remember to speak.
pub(crate) struct Client {
    uuid: u128,
    conn: ConnId,
    export: Handle,
    conn_cnt: u32,
    xid: u64,
    seq: u64,
    oid: u32,
    inbox: VecDeque<Frame>,
    /// Answers callbacks by giving locks back.
    pub obliging: bool,
    /// Callbacks that came.
    pub called_back: Vec<BlCallback>,
    /// What a glimpse is answered.
    pub glimpse: Option<Lvb>,
    /// What it was answered over an earlier connection: a client of an older version sends that again.
    pub glimpse_before: Option<Lvb>,
    /// The lowest request whose answer is said to be missing.
    pub missing: Option<u64>,
    /// Answered changes, for replay.
    pub kept: Vec<Frame>,
    /// What it says that it was told to be durable.
    pub seen_committed: u64,
    /// Says that it only reads.
    pub read_only: bool,
    /// Of the protocol, those that it knows.
    pub features: u64,
    cookie: u64,
}

/// A target and its clients.
pub(crate) struct World {
    engine: MemEngine,
    target: Option<Target<Mdt>>,
    now: Instant,
    pub clients: Vec<Client>,
    next_conn: u64,
    pub log: Vec<String>,
    /// Clock of the programs, which rises with every request.
    pub time_ns: i64,
    /// What groups do when they are ready to be written: false keeps them back, as a slow disk does.
    pub commits: bool,
    waiting_commits: VecDeque<store::Group>,
    /// How much was loaded from the disk.
    pub loads: usize,
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
        let mut batch = format(&made, (0, 0));
        let header = TargetHeader {
            name: "fs-MDT0000".into(),
            uuid: Bytes::from_static(&[7; 16]),
            registered: true,
            ..TargetHeader::default()
        };
        let sequences = vec![SeqRange { start: Fid::SEQ_FIRST, end: Fid::SEQ_FIRST + 1000 }];
        batch.put(TargetHeader::key(&()), header.encode_record());
        batch.put(MdtState::key(&()), MdtState { next_region: 1, sequences }.encode_record());
        engine.commit(1, &batch.seal(&schema::formats())).expect("in memory");
        let mut world = World {
            engine,
            target: None,
            now: Instant(1),
            clients: Vec::new(),
            next_conn: 1,
            log: Vec::new(),
            time_ns: 1_000_000,
            commits: true,
            waiting_commits: VecDeque::new(),
            loads: 0,
        };
        world.start();
        world.connect();
        world
    }

    pub(crate) fn start(&mut self) {
        let last = self.engine.last_group().expect("in memory");
        self.target = Some(Target::new(Mdt::new(Settings::default()), Options::default(), last, self.now));
        let space = Space { total: 1 << 40, free: 1 << 39, reserve: 1 << 20, at_once: 1 << 39, records: 0 };
        self.event(Event::Space(space));
        self.event(Event::WallClock(1));
        self.pump();
    }

    /// The server dies; what was not durable is gone. It starts again; clients are not connected.
    pub(crate) fn crash(&mut self) {
        self.target = None;
        self.waiting_commits.clear();
        for client in &mut self.clients {
            client.inbox.clear();
        }
        self.start();
    }

    pub(crate) fn target(&mut self) -> &mut Target<Mdt> {
        self.target.as_mut().expect("it runs")
    }

    fn event(&mut self, event: Event) {
        let now = self.now;
        self.target().handle(now, event);
    }

    /// Does what the target wants until it wants nothing.
    pub(crate) fn pump(&mut self) {
        loop {
            let Some(effect) = self.target().poll() else { return };
            match effect {
                Effect::Send { conn, frame } => self.deliver(conn, frame),
                Effect::Load(load) => {
                    self.loads += 1;
                    let done = load.run(&self.engine);
                    self.event(Event::Loaded(done));
                }
                Effect::Commit(group) => {
                    self.waiting_commits.push_back(group);
                    if self.commits {
                        self.write_groups();
                    }
                }
                // Nobody answers.
                Effect::Dial { .. } => {}
                Effect::Log(LogLevel::Info, _) | Effect::Serving { .. } | Effect::Hangup { .. } => {}
                Effect::Log(_, line) if line.contains("MGS") => {}
                Effect::Log(_, line) => self.log.push(line),
                Effect::Stop { reason } => panic!("the target stopped: {reason:?}"),
                other => panic!("unexpected effect {other:?}"),
            }
        }
    }

    /// The disk writes what waits.
    pub(crate) fn write_groups(&mut self) {
        while let Some(group) = self.waiting_commits.pop_front() {
            let number = group.number();
            group.run(&self.engine).expect("in memory");
            self.event(Event::Committed { group: number });
        }
    }

    /// Time passes until the target has nothing more to do soon.
    pub(crate) fn settle(&mut self) {
        for _ in 0..50 {
            self.pump();
            self.now = self.now + core::time::Duration::from_millis(200);
            self.event(Event::Tick);
        }
        self.pump();
    }

    fn deliver(&mut self, conn: ConnId, frame: Frame) {
        let Some(at) = self.clients.iter().position(|client| client.conn == conn) else { return };
        let client = &mut self.clients[at];
        if frame.header.has(flags::EARLY) {
            return;
        }
        match Opcode::from_raw(frame.header.opcode) {
            Some(Opcode::LdlmBlCallback) => {
                let callback: BlCallback = frame.decode().expect("a callback");
                client.called_back.push(callback.clone());
                if client.obliging {
                    let cancel = CancelReq { handles: vec![callback.handle], waiting_cookies: Vec::new() };
                    self.send(at, Opcode::LdlmCancel, Tag(0), &cancel, Bytes::new(), 0);
                }
            }
            Some(Opcode::LdlmGlCallback) => {
                let callback: GlCallback = frame.decode().expect("a callback");
                let (before, now) = (client.glimpse_before, client.glimpse);
                let reply = GlReply { handle: callback.handle, serial: callback.serial, ..GlReply::default() };
                if before.is_some() {
                    let again = GlReply { lvb: before, ..reply.clone() };
                    self.send(at, Opcode::LdlmGlReply, Tag(0), &again, Bytes::new(), flags::RESENT);
                }
                self.send(at, Opcode::LdlmGlReply, Tag(0), &GlReply { lvb: now, ..reply }, Bytes::new(), 0);
            }
            _ => client.inbox.push_back(frame),
        }
    }

    /// A further client; gives its number. It has a sequence.
    pub(crate) fn connect(&mut self) -> usize {
        let at = self.clients.len();
        self.clients.push(Client {
            uuid: 100 + at as u128,
            conn: ConnId(0),
            export: Handle(0),
            conn_cnt: 0,
            xid: 1000,
            seq: 0,
            oid: 0,
            inbox: VecDeque::new(),
            obliging: true,
            called_back: Vec::new(),
            glimpse: None,
            glimpse_before: None,
            missing: None,
            seen_committed: 0,
            kept: Vec::new(),
            read_only: false,
            features: proto::connect::features::SUPPORTED,
            cookie: 1,
        });
        self.reconnect(at);
        let reply: SeqAllocRep = self.call(at, Opcode::SeqAlloc, &SeqAllocReq {}).expect("there are some");
        self.clients[at].seq = reply.seq;
        at
    }

    /// Connects, or connects again.
    pub(crate) fn reconnect(&mut self, at: usize) {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        self.event(Event::Accepted { conn, peer: Peer::default() });
        let client = &mut self.clients[at];
        let known = client.export;
        client.conn = conn;
        client.conn_cnt += 1;
        client.xid += 1;
        let request = ConnectReq {
            client_uuid: Bytes::copy_from_slice(&client.uuid.to_be_bytes()),
            target: "fs-MDT0000".into(),
            features: client.features,
            version: proto::connect::PROTOCOL_VERSION,
            brw_size: proto::connect::BRW_SIZE_MAX,
            description: format!("client {at}"),
            read_only: client.read_only,
            seen_committed: client.seen_committed,
            seen_store: Bytes::from_static(&[7; 16]),
            ..ConnectReq::default()
        };
        let header = Header {
            opcode: Opcode::Connect as u16,
            xid: Xid(client.xid),
            conn_cnt: client.conn_cnt,
            export: known,
            flags: if known.0 == 0 { flags::CONNECT_INITIAL } else { flags::CONNECT_RECONNECT },
            ..Header::default()
        };
        let frame = Frame { header, body: request.encode_to_vec().into(), ..Frame::default() };
        self.event(Event::Frame { conn, frame });
        let reply = self.wait(at, self.clients[at].xid).expect("an answer");
        if self.clients[at].seen_committed != 0 {
            assert_eq!(reply.header.status, -Errno::ESTALE.raw());
            return;
        }
        assert_eq!(reply.header.status, 0, "connect: {:?}", reply.decode::<ConnectRep>());
        self.clients[at].export = reply.header.export;
    }

    /// Sends a request; gives its xid.
    pub(crate) fn send(
        &mut self,
        at: usize,
        opcode: Opcode,
        tag: Tag,
        body: &impl Message,
        bulk: Bytes,
        more_flags: u32,
    ) -> u64 {
        let client = &mut self.clients[at];
        client.xid += 1;
        let header = Header {
            opcode: opcode as u16,
            tag,
            flags: more_flags,
            conn_cnt: client.conn_cnt,
            export: client.export,
            xid: Xid(client.xid),
            last_xid: Xid(client.missing.unwrap_or(client.xid) - 1),
            timeout_ms: 100_000,
            ..Header::default()
        };
        let (conn, xid) = (client.conn, client.xid);
        let frame = Frame { header, body: body.encode_to_vec().into(), bulk };
        if tag.0 != 0 {
            client.kept.push(frame.clone());
        }
        self.event(Event::Frame { conn, frame });
        xid
    }

    /// Sends a kept frame again.
    pub(crate) fn send_again(&mut self, at: usize, frame: Frame, more_flags: u32) -> Frame {
        let xid = self.throw_again(at, frame, more_flags);
        self.wait(at, xid).expect("an answer")
    }

    /// Sends a kept frame again and does not look what comes of it.
    pub(crate) fn throw_again(&mut self, at: usize, mut frame: Frame, more_flags: u32) -> u64 {
        let client = &self.clients[at];
        frame.header.flags = more_flags;
        frame.header.conn_cnt = client.conn_cnt;
        frame.header.export = client.export;
        frame.header.last_xid = Xid(0);
        let (conn, xid) = (client.conn, frame.header.xid.0);
        self.event(Event::Frame { conn, frame });
        xid
    }

    /// The reply to a request, if it comes within some seconds.
    pub(crate) fn wait(&mut self, at: usize, xid: u64) -> Option<Frame> {
        for _ in 0..100 {
            self.pump();
            let inbox = &mut self.clients[at].inbox;
            if let Some(found) = inbox.iter().position(|frame| frame.header.xid.0 == xid) {
                return inbox.remove(found);
            }
            self.now = self.now + core::time::Duration::from_millis(50);
            self.event(Event::Tick);
        }
        None
    }

    /// Asks and gets an answer.
    pub(crate) fn ask(
        &mut self,
        at: usize,
        opcode: Opcode,
        tag: Tag,
        body: &impl Message,
        bulk: Bytes,
    ) -> Result<Frame, Errno> {
        let xid = self.send(at, opcode, tag, body, bulk, 0);
        let reply = self.wait(at, xid).unwrap_or_else(|| panic!("no answer to {opcode:?}"));
        if tag.0 != 0 {
            let kept = self.clients[at].kept.pop().expect("just kept");
            if reply.header.status == 0 {
                let mut kept = kept;
                kept.header.transno = reply.header.transno;
                kept.header.pre_versions = reply.header.pre_versions;
                // What the server chose comes back with a replay.
                if matches!(opcode, Opcode::MdsReint | Opcode::MdsBatch) {
                    kept.bulk = reply.body.clone();
                }
                if kept.header.transno > Transno(0) {
                    self.clients[at].kept.push(kept);
                } else {
                    let rep: ObjectRep = reply.decode().expect("a body");
                    let fid = |attr: &Option<Attr>| attr.as_ref().map(|attr| attr.fid);
                    assert_eq!(fid(&rep.attr), fid(&rep.replaced_attr), "a change without a transno");
                }
            }
        }
        Errno::from_status(reply.header.status).map(|()| reply)
    }

    pub(crate) fn call<M: Message + Default>(
        &mut self,
        at: usize,
        opcode: Opcode,
        body: &impl Message,
    ) -> Result<M, Errno> {
        let frame = self.ask(at, opcode, Tag(0), body, Bytes::new())?;
        Ok(frame.decode().expect("a body"))
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

    pub(crate) fn new_fid(&mut self, at: usize) -> Fid {
        let client = &mut self.clients[at];
        client.oid += 1;
        Fid::new(client.seq, client.oid)
    }

    pub(crate) fn cookie(&mut self, at: usize) -> u64 {
        self.clients[at].cookie += 1;
        self.clients[at].cookie
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
        let op = CreateOp { parent, name: bytes(name), fid, mode, rdev: 0, symlink };
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
        let op = Reint::Unlink(UnlinkOp { parent, name: bytes(name), rmdir, told: None });
        self.reint_as(at, cred, WantLocks::default(), op).map(|rep| rep.attr.expect("attributes"))
    }

    pub(crate) fn link(&mut self, fid: Fid, parent: Fid, name: &str) -> Result<Attr, Errno> {
        self.reint(Reint::Link(LinkOp { fid, parent, name: bytes(name) })).map(|rep| rep.attr.expect("attributes"))
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
            told: None,
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
        let request = ReaddirReq { fid, after, max_bytes, plus, cred: Some(cred(0)), entry_cookies: 0, want: None };
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
        let snapshot = Snapshot::of_engine(&self.engine).expect("whole");
        let found: Vec<String> = lfsck::check(&snapshot, &[]).iter().map(ToString::to_string).collect();
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
        let mut batch = store::Batch::new();
        batch.put(R::key(id), record.encode_record());
        let group = self.engine.last_group().expect("in memory") + 1;
        self.engine.commit(group, &batch.seal(&schema::formats())).expect("in memory");
    }

    /// Loses the record of a name under the target's feet. It must be started anew to see it.
    pub(crate) fn lose_entry(&mut self, dir: Fid, name: &str) {
        self.sync();
        let dir = self.stored::<schema::Oi>(&dir).ino;
        let cookie = schema::first_cookie(&self.stored::<schema::Header>(&()), name.as_bytes());
        let mut batch = store::Batch::new();
        batch.delete(schema::Entry::key(&schema::EntryKey { dir, cookie }));
        let group = self.engine.last_group().expect("in memory") + 1;
        self.engine.commit(group, &batch.seal(&schema::formats())).expect("in memory");
    }

    fn stored<R: Record>(&self, id: &R::Id) -> R {
        let key = R::key(id);
        let sealed = self.engine.get(&key).expect("in memory").expect("a record");
        R::decode_record(&schema::formats().open(&key, &sealed).expect("whole")).expect("of its kind")
    }

    pub(crate) fn records<R: Record>(&mut self) -> usize {
        self.sync();
        let snapshot = Snapshot::of_engine(&self.engine).expect("whole");
        snapshot.range(&R::all()).count()
    }
}

pub(crate) fn bytes(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}
