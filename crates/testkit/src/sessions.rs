//! One target and the client ends of sessions with it ([`rpc::client::Import`]): requests are sent again, connections come back
//! and locks are replayed as they ship; what is asked is up to the test.
//!
//! A session keeps the locks that the test tells it of ([`Session::locks`]), gives them back when they are called
//! ([`Session::obliging`]) and replays them.

use core::time::Duration;
use std::collections::BTreeMap;

use prost::Message;
use proto::msg::{BlCallback, CancelReq, ConnectRep, EnqueueReq, GlCallback, GlReply, Lvb};
use proto::{ClientUuid, Errno, Frame, Nid, Opcode};
use rpc::Link;
use rpc::client::{Config, Import, ImportEffect, ImportEvent, Outgoing, RequestId};
use stdx::{Instant, Rng};
use store::{Batch, MemEngine, Space};
use target::{ConnId, Effect, Event, Options, Peer, Service, Target};

use crate::host::Host;

/// A client's end of a session, and what came over it.
pub struct Session {
    pub import: Import,
    link: Option<(Link, ConnId)>,
    pub replies: BTreeMap<RequestId, Result<Frame, Errno>>,
    /// The answer to its last connect request.
    pub connected: Option<ConnectRep>,
    /// It is in service.
    pub full: bool,
    /// Locks that it holds, by cookie: as asked for, and the server's handle.
    pub locks: BTreeMap<u64, (EnqueueReq, u64)>,
    pub called_back: Vec<BlCallback>,
    /// Gives locks back as soon as they are called.
    pub obliging: bool,
    /// What it says when it is asked what an object looks like.
    pub lvb: Option<Lvb>,
    pub evictions: u32,
    /// Notices that are not about locks.
    pub notices: Vec<Frame>,
    alive: bool,
    next_cookie: u64,
}

impl Session {
    /// A cookie for a lock.
    pub fn new_cookie(&mut self) -> u64 {
        self.next_cookie += 1;
        self.next_cookie - 1
    }

    /// The server's handle of a lock on this resource, or 0.
    pub fn lock_on(&self, resource: &proto::msg::Resource) -> u64 {
        let mut locks = self.locks.values();
        locks.find(|(req, _)| req.resource == *resource).map_or(0, |(_, handle)| *handle)
    }
}

/// A target and those who talk to it.
pub struct Sessions<S: Service> {
    pub host: Host<Target<S>>,
    pub clients: Vec<Session>,
    pub now: Instant,
    pub rng: Rng,
    pub log: Vec<String>,
    /// Groups are handed to the medium, and are durable only when this is false again.
    pub slow_medium: bool,
    pub options: Options,
    make: fn() -> S,
    name: &'static str,
    conns: BTreeMap<u64, usize>,
    next_conn: u64,
}

impl<S: Service> Sessions<S> {
    /// A target that was formatted as `name` in this store, started; nobody is connected.
    pub fn new(name: &'static str, engine: MemEngine, seed: u64, make: fn() -> S) -> Sessions<S> {
        let mut sessions = Sessions {
            host: Host::new(engine),
            clients: Vec::new(),
            now: Instant::ZERO + Duration::from_secs(1),
            rng: Rng::new(seed),
            log: Vec::new(),
            slow_medium: false,
            options: Options::default(),
            make,
            name,
            conns: BTreeMap::new(),
            next_conn: 1,
        };
        sessions.start();
        sessions
    }

    /// Starts the target.
    pub fn start(&mut self) {
        let (now, make, name) = (self.now, self.make, self.name.parse().ok());
        let options = self.options.clone();
        self.host.start(now, 1_000_000_000, |last, starts| {
            Target::new(make(), Options { name, seed: starts, ..options }, last, now)
        });
        self.run();
    }

    /// The target, which must be up.
    pub fn target(&mut self) -> &mut Target<S> {
        self.host.machine.as_mut().expect("it runs")
    }

    /// Changes records of the store; the target starts anew to see that.
    pub fn damage(&mut self, change: impl FnOnce(&mut Batch)) {
        self.kill();
        self.host.edit(change);
        self.start();
    }

    /// What the store of the target has free, in bytes.
    pub fn set_space(&mut self, space: Space) {
        self.host.space = Some(space);
        self.tell(Event::Space(space));
    }

    /// The power fails and the target starts again.
    pub fn crash(&mut self) {
        self.kill();
        self.start();
    }

    /// The power fails.
    pub fn kill(&mut self) {
        let mut rng = self.rng.fork();
        self.host.kill(&mut rng);
        self.conns.clear();
        for client in &mut self.clients {
            client.full = false;
            if let Some((link, _)) = client.link.take() {
                client.import.handle(self.now, ImportEvent::Closed(link));
            }
        }
    }

    /// The target hears of an event, if it is up.
    pub fn tell(&mut self, event: Event) {
        self.host.tell(self.now, event);
    }

    /// A further session, in service. A lightweight one is that of another target.
    pub fn connect(&mut self, lightweight: bool, description: &str) -> usize {
        let number = self.clients.len();
        let nid: Nid = "unix:target".parse().expect("an address");
        let mut config = Config::new(ClientUuid(100 + number as u128), self.name.into(), vec![nid], number as u64);
        config.lightweight = lightweight;
        config.description = description.to_owned();
        config.first_xid = 1000 * number as u64;
        self.clients.push(Session {
            import: Import::new(config, self.now),
            link: None,
            replies: BTreeMap::new(),
            connected: None,
            full: false,
            locks: BTreeMap::new(),
            called_back: Vec::new(),
            obliging: true,
            lvb: None,
            evictions: 0,
            notices: Vec::new(),
            alive: true,
            next_cookie: 1,
        });
        self.until(|world| world.clients[number].full);
        number
    }

    /// The client dies: nothing more comes from it, and its connection breaks.
    pub fn die(&mut self, client: usize) {
        self.clients[client].alive = false;
        if let Some((_, conn)) = self.clients[client].link.take() {
            self.conns.remove(&conn.0);
            self.tell(Event::Closed { conn });
        }
    }

    /// Cuts a client's connection.
    pub fn cut(&mut self, client: usize) {
        if let Some((link, conn)) = self.clients[client].link.take() {
            self.conns.remove(&conn.0);
            self.tell(Event::Closed { conn });
            self.clients[client].import.handle(self.now, ImportEvent::Closed(link));
        }
    }

    /// Everything that can happen without time.
    pub fn run(&mut self) {
        loop {
            let mut moved = false;
            while let Some(effect) = self.host.poll(self.now) {
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
            moved |= !self.slow_medium && self.host.media_turn(self.now);
            if !self.host.operations.is_empty() && (!moved || self.rng.chance(1, 3)) {
                self.host.data_turn(self.now, &mut self.rng);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Time passes, to the next deadline at most.
    pub fn step(&mut self) {
        let mut next = self.now + Duration::from_secs(1);
        next = self.host.deadline().map_or(next, |at| at.min(next));
        for client in self.clients.iter().filter(|client| client.alive) {
            next = client.import.deadline().map_or(next, |at| at.min(next));
        }
        self.now = next.max(self.now + Duration::from_millis(1));
        self.tell(Event::Tick);
        for client in self.clients.iter_mut().filter(|client| client.alive) {
            client.import.handle(self.now, ImportEvent::Tick);
        }
        self.run();
    }

    /// Time passes until something is so.
    pub fn until(&mut self, done: impl Fn(&Sessions<S>) -> bool) {
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
                let reason = "there is nobody else in this world".to_owned();
                self.tell(Event::DialFailed { conn, reason });
            }
            Effect::Serving { .. } => {}
            Effect::Log(level, line) => self.log.push(format!("{level:?}: {line}")),
            Effect::Stop { reason } => panic!("the target stops: {reason:?}"),
            other => unreachable!("the host does it: {other:?}"),
        }
    }

    fn client_effect(&mut self, number: usize, effect: ImportEffect) {
        let now = self.now;
        let client = &mut self.clients[number];
        match effect {
            ImportEffect::Dial { link, .. } => {
                if self.host.machine.is_none() {
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
            ImportEffect::Notice(frame) => self.notice(number, frame),
            ImportEffect::Connected(reply) => client.connected = Some(reply),
            ImportEffect::Full { .. } => client.full = true,
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

    fn notice(&mut self, number: usize, frame: Frame) {
        let client = &mut self.clients[number];
        match Opcode::from_raw(frame.header.opcode) {
            Some(Opcode::LdlmBlCallback) => {
                let callback: BlCallback = frame.decode().expect("a callback");
                client.called_back.push(callback.clone());
                if client.obliging {
                    self.cancel(number, callback.cookie, callback.handle);
                }
            }
            Some(Opcode::LdlmGlCallback) => {
                let callback: GlCallback = frame.decode().expect("a callback");
                let reply =
                    GlReply { handle: callback.handle, lvb: client.lvb, serial: callback.serial, ..GlReply::default() };
                client.import.submit(self.now, Outgoing::new(Opcode::LdlmGlReply, &reply));
            }
            _ => client.notices.push(frame),
        }
    }

    /// Gives a lock back.
    pub fn cancel(&mut self, client: usize, cookie: u64, handle: u64) {
        let client = &mut self.clients[client];
        client.locks.remove(&cookie);
        let cancel = CancelReq { handles: vec![handle], waiting_cookies: vec![] };
        client
            .import
            .submit(self.now, Outgoing { during_recovery: true, ..Outgoing::new(Opcode::LdlmCancel, &cancel) });
    }

    /// Sends a request, without waiting for its answer.
    pub fn send(&mut self, client: usize, out: Outgoing) -> RequestId {
        let id = self.clients[client].import.submit(self.now, out);
        self.run();
        id
    }

    /// Whether a request is answered.
    pub fn is_answered(&self, client: usize, id: RequestId) -> bool {
        self.clients[client].replies.contains_key(&id)
    }

    /// The answer to a request, whatever its status is.
    pub fn reply(&mut self, client: usize, id: RequestId) -> Result<Frame, Errno> {
        self.until(|world| world.is_answered(client, id));
        self.clients[client].replies.remove(&id).expect("it is answered")
    }

    /// The answer to a request, or its error.
    pub fn answer(&mut self, client: usize, id: RequestId) -> Result<Frame, Errno> {
        let frame = self.reply(client, id)?;
        assert!(frame.header.has(proto::frame::flags::REPLY));
        Errno::from_status(frame.header.status).map(|()| frame)
    }

    /// Sends a request and waits for its answer.
    pub fn call(&mut self, client: usize, opcode: Opcode, body: &impl Message) -> Result<Frame, Errno> {
        let id = self.send(client, Outgoing::new(opcode, body));
        self.answer(client, id)
    }
}
