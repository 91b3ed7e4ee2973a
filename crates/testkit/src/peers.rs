//! One target and peers played by hand: what they send is up to the test, frame by frame, and what they were answered is kept
//! for a replay.
//!
//! Worked example: client 0 makes a change (`ask`), the server loses it (`commits` is false, `crash`), the client connects
//! again (`reconnect`) and sends the kept frame once more, flagged as a replay (`send_again`).

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;
use prost::Message;
use proto::frame::flags;
use proto::msg::{
    Attr, BlCallback, CancelReq, ConnectRep, ConnectReq, GlCallback, GlReply, Lvb, ObjectRep, SeqAllocRep, SeqAllocReq,
};
use proto::{Errno, Fid, Frame, Handle, Header, Opcode, Tag, Transno, Xid};
use stdx::Instant;
use store::{MemEngine, Space};
use target::{ConnId, Effect, Event, LogLevel, Options, Peer, Service, Target};

use crate::host::Host;

/// A client: what it must remember to speak.
pub struct Client {
    pub uuid: u128,
    pub conn: ConnId,
    pub export: Handle,
    pub conn_cnt: u32,
    pub xid: u64,
    /// The sequence that it was granted, and how much of it is used.
    pub seq: u64,
    pub oid: u32,
    /// What was sent to it and nobody has looked at.
    pub inbox: VecDeque<Frame>,
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
    /// What it knows of the protocol.
    pub features: u64,
    /// The last lock that it asked for.
    pub cookie: u64,
    /// The target has ended its connection.
    pub hung_up: bool,
}

/// A target and its clients.
pub struct Peers<S: Service> {
    pub host: Host<Target<S>>,
    pub now: Instant,
    pub clients: Vec<Client>,
    /// Warnings and errors of the target.
    pub log: Vec<String>,
    /// Groups are durable at once; false keeps them back, as a slow disk does.
    pub commits: bool,
    make: fn() -> S,
    options: Options,
    name: &'static str,
    next_conn: u64,
}

impl<S: Service> Peers<S> {
    /// A target that was formatted as `name` in this store, started; nobody is connected.
    pub fn new(name: &'static str, engine: MemEngine, options: Options, make: fn() -> S) -> Peers<S> {
        let mut host = Host::new(engine);
        host.space =
            Some(Space { total: 1 << 40, free: 1 << 39, reserve: 1 << 20, at_once: 1 << 39, records: 0, disk: 0 });
        let mut peers = Peers {
            host,
            now: Instant(1),
            clients: Vec::new(),
            log: Vec::new(),
            commits: true,
            make,
            options,
            name,
            next_conn: 1,
        };
        peers.start();
        peers
    }

    /// Starts the target.
    pub fn start(&mut self) {
        let (now, make, options) = (self.now, self.make, self.options.clone());
        self.host.start(now, 1, |last, _| Target::new(make(), options, last, now));
        self.pump();
    }

    /// The server dies; what was not durable is gone. It starts again; clients are not connected.
    pub fn crash(&mut self) {
        self.host.kill_and_lose();
        for client in &mut self.clients {
            client.inbox.clear();
        }
        self.start();
    }

    /// The target, which must be up.
    pub fn target(&mut self) -> &mut Target<S> {
        self.host.machine.as_mut().expect("it runs")
    }

    /// The target hears of an event, and nothing else happens.
    pub fn event(&mut self, event: Event) {
        let now = self.now;
        self.target().handle(now, event);
    }

    /// Does what the target wants until it wants nothing.
    pub fn pump(&mut self) {
        loop {
            while let Some(effect) = self.host.poll(self.now) {
                match effect {
                    Effect::Send { conn, frame } => self.deliver(conn, frame),
                    // No peer answers.
                    Effect::Dial { .. } => {}
                    Effect::Hangup { conn } => {
                        self.clients.iter_mut().filter(|client| client.conn == conn).for_each(|c| c.hung_up = true);
                    }
                    Effect::Log(LogLevel::Info, _) | Effect::Serving { .. } => {}
                    Effect::Log(_, line) if line.contains("MGS") => {}
                    Effect::Log(_, line) => self.log.push(line),
                    Effect::Stop { reason } => panic!("the target stopped: {reason:?}"),
                    other => unreachable!("the host does it: {other:?}"),
                }
            }
            if !self.commits || !self.host.media_turn(self.now) {
                return;
            }
        }
    }

    /// The disk writes what waits.
    pub fn write_groups(&mut self) {
        while self.host.media_turn(self.now) {}
    }

    /// Time passes until the target has nothing more to do soon.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            self.pump();
            self.tick(Duration::from_millis(200));
        }
        self.pump();
    }

    /// So much time passes at once.
    pub fn tick(&mut self, time: Duration) {
        self.now = self.now + time;
        self.event(Event::Tick);
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

    /// A further client, which is not connected; gives its number.
    pub fn add(&mut self) -> usize {
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
            hung_up: false,
        });
        at
    }

    /// A further client; gives its number.
    pub fn connect(&mut self) -> usize {
        let at = self.add();
        self.reconnect(at);
        at
    }

    /// A further client of a metadata target, with a sequence of FIDs.
    pub fn connect_with_sequence(&mut self) -> usize {
        let at = self.connect();
        self.take_sequence(at);
        at
    }

    /// A metadata target grants a client a sequence of FIDs.
    pub fn take_sequence(&mut self, at: usize) {
        let reply: SeqAllocRep = self.call(at, Opcode::SeqAlloc, &SeqAllocReq {}).expect("there are some");
        self.clients[at].seq = reply.seq;
    }

    /// Connects, or connects again.
    pub fn reconnect(&mut self, at: usize) {
        let reply = self.try_reconnect(at);
        if self.clients[at].seen_committed != 0 {
            assert_eq!(reply.header.status, -Errno::ESTALE.raw());
            return;
        }
        assert_eq!(reply.header.status, 0, "connect: {:?}", reply.decode::<ConnectRep>());
    }

    /// The same, whatever the answer is.
    pub fn try_reconnect(&mut self, at: usize) -> Frame {
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
            target: self.name.into(),
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
        if reply.header.status == 0 {
            self.clients[at].export = reply.header.export;
        }
        reply
    }

    /// Sends a request; gives its xid.
    pub fn send(
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
    pub fn send_again(&mut self, at: usize, frame: Frame, more_flags: u32) -> Frame {
        let xid = self.throw_again(at, frame, more_flags);
        self.wait(at, xid).expect("an answer")
    }

    /// Sends a kept frame again and does not look what comes of it.
    pub fn throw_again(&mut self, at: usize, mut frame: Frame, more_flags: u32) -> u64 {
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
    pub fn wait(&mut self, at: usize, xid: u64) -> Option<Frame> {
        for _ in 0..100 {
            self.pump();
            let inbox = &mut self.clients[at].inbox;
            if let Some(found) = inbox.iter().position(|frame| frame.header.xid.0 == xid) {
                return inbox.remove(found);
            }
            self.tick(Duration::from_millis(50));
        }
        None
    }

    /// Asks and gets an answer. A change that was made is kept for replay, with what its first answer chose.
    pub fn ask(
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
            let mut kept = self.clients[at].kept.pop().expect("just kept");
            if reply.header.status == 0 {
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

    /// Asks for something that changes nothing.
    pub fn call<M: Message + Default>(&mut self, at: usize, opcode: Opcode, body: &impl Message) -> Result<M, Errno> {
        let frame = self.ask(at, opcode, Tag(0), body, Bytes::new())?;
        Ok(frame.decode().expect("a body"))
    }

    /// A FID of the client's sequence that was not used yet.
    pub fn new_fid(&mut self, at: usize) -> Fid {
        let client = &mut self.clients[at];
        client.oid += 1;
        Fid::new(client.seq, client.oid)
    }

    /// A cookie for a lock.
    pub fn new_cookie(&mut self, at: usize) -> u64 {
        self.clients[at].cookie += 1;
        self.clients[at].cookie
    }
}
