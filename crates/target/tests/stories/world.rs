//! The world: time, connections, one server that may be down, clients with work to do.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use proto::connect::features;
use proto::frame::flags;
use proto::msg::{BlCallback, CancelReq, EnqueueRep, EnqueueReq, LockMode, Policy, bits};
use proto::{ClientUuid, Errno, Frame, Nid, Opcode, TargetIndex, TargetKind, TargetName, Transno, Xid};
use rpc::at::Timeouts;
use rpc::client::{Config, Import, ImportEffect, ImportEvent, Outgoing, RequestId, State};
use rpc::{Link, Slot};
use stdx::{Instant, Rng};
use store::{CommitPolicy, Engine, MemEngine};
use testkit::host::Host;

use super::ledger::{APPEND, Ask, CLOSE, CREATE, Ledger, OPEN, READ, USE, entries};
use target::{ConnId, Effect, Event, Format, Options, Peer, Target};

/// What goes wrong, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// A message vanishes.
    pub lose: u64,
    /// A message arrives twice.
    pub double: u64,
    /// A connection breaks at a message.
    pub cut: u64,
    /// The server crashes at a message to it.
    pub crash: u64,
    /// The server is shut down in good order.
    pub shutdown: u64,
}

impl Faults {
    pub(super) const NONE: Faults = Faults { lose: 0, double: 0, cut: 0, crash: 0, shutdown: 0 };
    pub(super) const NETWORK: Faults = Faults { lose: 10, double: 20, cut: 15, ..Faults::NONE };
    pub(super) const CRASHES: Faults = Faults { crash: 8, shutdown: 2, ..Faults::NONE };
    pub(super) const ALL: Faults = Faults { lose: 5, double: 10, cut: 8, crash: 6, shutdown: 2 };
}

const KEYS: u64 = 6;
const OPS: u64 = 30;

enum Ev {
    ToServer(ConnId, Frame),
    ToClient(usize, Link, Frame),
    Dial(usize, Link),
    ServerSees(u64, ConnId),
    ClientSees(usize, Link),
    Server(u64, Event),
    ServerTick(u64, Instant),
    ClientTick(usize, Instant),
    Restart,
    Work(usize),
}

/// One way of a connection keeps its order.
struct Conn {
    client: usize,
    link: Link,
    up: bool,
    to_server: Instant,
    to_client: Instant,
}

/// What became of an operation that the client knows of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Done { position: u64 },
    Failed(Errno),
}

struct OpenFile {
    xid: Xid,
    ask: Ask,
    handle: u64,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Ask(Ask),
    Lock(u64),
    Sync,
    Cancel,
}

pub(super) struct Client {
    import: Import,
    next: u64,
    doing: BTreeMap<RequestId, Doing>,
    pub fates: BTreeMap<u64, (Ask, Fate)>,
    open: Vec<OpenFile>,
    /// Locks by cookie: key, and the server's handle.
    locks: BTreeMap<u64, (u64, u64)>,
    called: BTreeSet<u64>,
    next_cookie: u64,
    pub evictions: u32,
    pub stale: u64,
    tick: Instant,
    /// Changes that it may have in flight.
    slots: u16,
    /// When a change was asked for, and when it was answered, as numbers that rise.
    spans: BTreeMap<u64, (u64, u64)>,
}

pub(super) struct World {
    /// Changes that the server allows in flight.
    offer: u16,
    order: u64,
    now: Instant,
    rng: Rng,
    faults: Faults,
    events: BTreeMap<(Instant, u64), Ev>,
    seq: u64,
    pub host: Host<Target<Ledger>>,
    /// Counts lives of the server, so that its past is not told to it.
    life: u64,
    server_tick: Instant,
    next_conn: u64,
    conns: BTreeMap<ConnId, Conn>,
    pub clients: Vec<Client>,
    pub crashes: u64,
    trace: bool,
    quiet: bool,
    pub soft: Duration,
}

fn name() -> TargetName {
    TargetName { fsname: "t".into(), kind: TargetKind::Mdt, index: TargetIndex(0) }
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> World {
        let mut rng = Rng::new(seed);
        let engine = MemEngine::new();
        let format = Format {
            name: name(),
            uuid: 7,
            mgs: Vec::new(),
            version: "0".into(),
            wall_ns: 0,
            params: vec![],
            name_key: None,
            replaces: false,
        };
        let mut batch = target::format(&format);
        let header = schema::Header {
            name: "t-MDT0000".into(),
            uuid: vec![7; 16].into(),
            registered: true,
            ..schema::Header::default()
        };
        batch.put(<schema::Header as schema::Record>::key(&()), schema::Record::encode_record(&header));
        engine.commit(1, &batch.seal(&schema::formats())).unwrap();
        let (count, offer) = (rng.range(1, 4), [1, 4, 8, 32, 512][rng.below(5) as usize]);
        let mut world = World {
            now: Instant(1_000_000_000),
            rng,
            faults,
            events: BTreeMap::new(),
            seq: 0,
            host: Host::new(engine),
            life: 0,
            server_tick: Instant::FAR,
            next_conn: 1,
            conns: BTreeMap::new(),
            clients: Vec::new(),
            crashes: 0,
            trace: option_env!("ADAMANT_TRACE").is_some(),
            quiet: false,
            soft: Duration::from_secs(30),
            offer,
            order: 0,
        };
        world.host.late = true;
        world.start_server();
        for i in 0..count {
            // Some clients are of an older version.
            let slots: u16 = [0, 1, 2, 7, 31][world.rng.below(5) as usize];
            let config = Config {
                rpcs_in_flight_max: 512,
                mod_rpcs_in_flight_max: slots.max(1),
                features: if slots == 0 { features::VBR } else { features::SUPPORTED },
                description: format!("client {i}"),
                timeouts: Timeouts {
                    ping_interval: Some(Duration::from_millis(700)),
                    ..Timeouts::fixed(Duration::from_millis(400))
                },
                connect_timeout: Duration::from_millis(300),
                ..Config::new(ClientUuid(u128::from(i) + 1), "t-MDT0000".into(), vec![Nid::Unix("s".into())], seed + i)
            };
            world.clients.push(Client {
                import: Import::new(config, world.now),
                next: 1,
                doing: BTreeMap::new(),
                fates: BTreeMap::new(),
                open: Vec::new(),
                locks: BTreeMap::new(),
                called: BTreeSet::new(),
                next_cookie: 1,
                evictions: 0,
                stale: 0,
                tick: Instant::FAR,
                slots: slots.max(1),
                spans: BTreeMap::new(),
            });
            world.after(1, Ev::Work(i as usize));
            world.drain_client(i as usize);
        }
        world
    }

    fn after(&mut self, micros: u64, ev: Ev) {
        let at = self.now + Duration::from_micros(micros);
        self.at(at, ev);
    }

    fn at(&mut self, at: Instant, ev: Ev) {
        self.seq += 1;
        self.events.insert((at, self.seq), ev);
    }

    pub(super) fn start_server(&mut self) {
        self.life += 1;
        let options = Options {
            name: Some(name()),
            cache_limit: 1 << 9,
            commit: CommitPolicy { interval: Duration::from_millis(self.rng.range(5, 400)), dirty_limit: 1 << 20 },
            recovery_soft: self.soft,
            max_mod_rpcs: self.offer,
            seed: self.life,
            ..Options::default()
        };
        let last_group = self.host.engine.last_group().unwrap();
        self.host.machine = Some(Target::new(Ledger::default(), options, last_group, self.now));
        self.server_tick = Instant::FAR;
        self.drain_server();
    }

    pub(super) fn stop_server(&mut self) {
        self.host.machine = None;
        self.life += 1;
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in all {
            self.cut(conn);
        }
    }

    /// The server dies, and comes back a little later.
    pub(super) fn crash(&mut self) {
        if self.host.machine.is_none() {
            return;
        }
        self.crashes += 1;
        if self.trace {
            eprintln!("{:?} CRASH", self.now);
        }
        self.stop_server();
        let mut rng = self.rng.fork();
        self.host.kill(&mut rng);
        let down = self.rng.range(10, 300_000);
        self.after(down, Ev::Restart);
    }

    fn cut(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        if !core::mem::replace(&mut c.up, false) {
            return;
        }
        let (client, link, life) = (c.client, c.link, self.life);
        let (a, b) = (self.rng.range(1, 2000), self.rng.range(1, 50_000));
        self.after(a, Ev::ClientSees(client, link));
        self.after(b, Ev::ServerSees(life, conn));
    }

    fn hit(&mut self, chance: u64) -> bool {
        !self.quiet && self.rng.chance(chance, 1000)
    }

    fn drain_server(&mut self) {
        loop {
            if self.host.machine.is_none() {
                return;
            }
            let effect = self.host.poll(self.now);
            self.media_take_their_time();
            let Some(effect) = effect else { break };
            match effect {
                Effect::Send { conn, frame } => {
                    if self.hit(self.faults.lose) {
                        // A notice that is lost without its connection would have its client evicted, and rightly so.
                        if !frame.header.has(flags::REPLY) {
                            self.cut(conn);
                        }
                        continue;
                    }
                    let times = if self.hit(self.faults.double) { 2 } else { 1 };
                    let late = Duration::from_micros(self.rng.range(20, 3000));
                    let now = self.now;
                    let Some(c) = self.conns.get_mut(&conn) else { continue };
                    let at = (now + late).max(c.to_client);
                    c.to_client = at;
                    let (client, link) = (c.client, c.link);
                    for _ in 0..times {
                        self.at(at, Ev::ToClient(client, link, frame.clone()));
                    }
                    if self.hit(self.faults.cut) {
                        self.cut(conn);
                    }
                }
                Effect::Hangup { conn } => self.cut(conn),
                Effect::Stop { reason } => {
                    assert_eq!(reason, None, "the target stopped by itself");
                    self.stop_server();
                    let down = self.rng.range(10, 100_000);
                    self.after(down, Ev::Restart);
                    return;
                }
                Effect::Log(level, line) => {
                    if self.trace {
                        eprintln!("{:?} server {level:?} {line}", self.now);
                    }
                    assert!(!line.contains("bug"), "{line}");
                }
                Effect::Serving { .. } | Effect::Dial { .. } => {}
                other => unreachable!("the host does it: {other:?}"),
            }
        }
        if let Some(at) = self.host.deadline()
            && at < self.server_tick
        {
            self.server_tick = at.max(self.now);
            let life = self.life;
            self.at(self.server_tick, Ev::ServerTick(life, self.server_tick));
        }
    }

    /// What was read, written and synced is told a while later.
    fn media_take_their_time(&mut self) {
        while let Some(event) = self.host.done.pop_front() {
            let micros = match event {
                Event::Committed { .. } => self.rng.range(100, 60_000),
                Event::Loaded(_) => self.rng.range(1, 500),
                _ => 10,
            };
            self.after(micros, Ev::Server(self.life, event));
        }
    }

    fn tell_server(&mut self, event: Event) {
        if self.host.machine.is_some() {
            self.host.tell(self.now, event);
            self.drain_server();
        }
    }

    fn drain_client(&mut self, i: usize) {
        while let Some(effect) = self.clients[i].import.poll() {
            match effect {
                ImportEffect::Dial { link, .. } => {
                    let late = self.rng.range(10, 1000);
                    self.after(late, Ev::Dial(i, link));
                }
                ImportEffect::Send { link, frame } => self.client_sends(i, link, frame),
                ImportEffect::Hangup(link) => {
                    let conn = self.conns.iter().find(|(_, c)| c.client == i && c.link == link).map(|(id, _)| *id);
                    if let Some(conn) = conn {
                        self.cut(conn);
                    }
                }
                ImportEffect::Reply { id, xid, result } => self.answered(i, id, xid, result),
                ImportEffect::Notice(frame) => self.notice(i, &frame),
                ImportEffect::ReplayLocks { first: false } => {
                    self.clients[i].import.locks_to_replay(self.now, Vec::new());
                }
                ImportEffect::ReplayLocks { first: true } => {
                    let c = &mut self.clients[i];
                    let locks = c.locks.iter().map(|(cookie, (key, handle))| EnqueueReq {
                        resource: Ask::resource(*key),
                        mode: LockMode::Pr as i32,
                        cookie: *cookie,
                        policy: Some(Policy::Bits(bits::UPDATE)),
                        granted_handle: *handle,
                        ..EnqueueReq::default()
                    });
                    let locks = locks.collect();
                    c.import.locks_to_replay(self.now, locks);
                }
                ImportEffect::LocksReplayed(locks) => {
                    let c = &mut self.clients[i];
                    for (cookie, result) in locks {
                        match (result, c.locks.get_mut(&cookie)) {
                            (Ok(handle), Some(lock)) => lock.1 = handle,
                            _ => drop(c.locks.remove(&cookie)),
                        }
                    }
                }
                // The handle that the first answer gave stays good: the replay carries it, so the server knows it.
                ImportEffect::Replayed { reply, .. } => {
                    assert_eq!(reply.header.status, 0, "a replay failed: {reply:?}")
                }
                ImportEffect::Evicted { .. } => {
                    let c = &mut self.clients[i];
                    c.evictions += 1;
                    c.open.clear();
                    c.locks.clear();
                    c.called.clear();
                }
                ImportEffect::Refused { errno: Errno::EBUSY, .. } => {}
                ImportEffect::Refused { reason, .. } => panic!("refused: {reason}"),
                ImportEffect::Log(line) | ImportEffect::Loss(line) => {
                    if self.trace {
                        eprintln!("{:?} client {i} {line}", self.now);
                    }
                    assert!(!line.contains("could not do a change again"), "{line}");
                }
                ImportEffect::Connected(_)
                | ImportEffect::Full { .. }
                | ImportEffect::Away
                | ImportEffect::Disconnected => {}
            }
        }
        let c = &mut self.clients[i];
        if let Some(at) = c.import.deadline()
            && at < c.tick
        {
            c.tick = at.max(self.now);
            let at = c.tick;
            self.at(at, Ev::ClientTick(i, at));
        }
    }

    fn client_sends(&mut self, i: usize, link: Link, frame: Frame) {
        let Some((&conn, _)) = self.conns.iter().find(|(_, c)| c.client == i && c.link == link) else { return };
        if self.hit(self.faults.lose) {
            return;
        }
        let times = if self.hit(self.faults.double) { 2 } else { 1 };
        let late = Duration::from_micros(self.rng.range(20, 3000));
        let now = self.now;
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let at = (now + late).max(c.to_server);
        c.to_server = at;
        self.at(at, Ev::ToServer(conn, frame.clone()));
        if times > 1 {
            // The copy may come when the client has used the slot again.
            let after = Duration::from_micros(self.rng.below(6000));
            self.at(at + after, Ev::ToServer(conn, frame));
        }
        if self.hit(self.faults.cut) {
            self.cut(conn);
        }
    }

    // --- what clients do ---

    fn submit(&mut self, i: usize, doing: Doing, out: Outgoing) {
        let now = self.now;
        let c = &mut self.clients[i];
        let id = c.import.submit(now, out);
        c.doing.insert(id, doing);
    }

    fn ask(&mut self, i: usize, opcode: Opcode, slot: Slot, ask: Ask) {
        let out = Outgoing {
            body: ask.bytes(),
            slot,
            keep_open: ask.kind == OPEN,
            ..Outgoing::new(opcode, &proto::msg::Empty {})
        };
        self.order += 1;
        self.clients[i].spans.insert(ask.n, (self.order, u64::MAX));
        self.submit(i, Doing::Ask(ask), out);
    }

    fn work(&mut self, i: usize) {
        let c = &mut self.clients[i];
        if c.next > OPS || c.doing.len() >= 4 + usize::from(c.slots) {
            return;
        }
        let n = c.next;
        c.next += 1;
        let client = i as u64 + 1;
        let key = self.rng.below(KEYS);
        let ask = Ask { kind: APPEND, key, client, n, handle: 0 };
        match self.rng.below(12) {
            0..5 => self.ask(i, Opcode::MdsReint, Slot::Modify, ask),
            5 => {
                let key = 100 + n;
                self.ask(i, Opcode::MdsReint, Slot::Modify, Ask { kind: CREATE, key, ..ask });
            }
            6 => self.ask(i, Opcode::MdsReint, Slot::Modify, Ask { kind: OPEN, ..ask }),
            7 => {
                let at = self.rng.below(self.clients[i].open.len().max(1) as u64) as usize;
                // A file is not closed while somebody uses it.
                let used = self.clients[i].doing.values().any(|d| matches!(d, Doing::Ask(ask) if ask.kind == USE));
                if at < self.clients[i].open.len() && !used {
                    let file = self.clients[i].open.swap_remove(at);
                    let ask = Ask { kind: CLOSE, handle: file.handle, ..ask };
                    self.clients[i]
                        .fates
                        .insert(1_000_000 + n, (Ask { n: file.xid.0, ..ask }, Fate::Failed(Errno::EAGAIN)));
                    self.ask(i, Opcode::MdsClose, Slot::Close, ask);
                }
            }
            8 => {
                if let Some(file) = self.clients[i].open.first() {
                    let handle = file.handle;
                    self.ask(i, Opcode::MdsGetattr, Slot::None, Ask { kind: USE, handle, ..ask });
                }
            }
            9 => self.ask(i, Opcode::MdsGetattr, Slot::None, Ask { kind: READ, ..ask }),
            10 => {
                let c = &mut self.clients[i];
                let cookie = c.next_cookie;
                c.next_cookie += 1;
                let body = EnqueueReq {
                    resource: Ask::resource(key),
                    mode: LockMode::Pr as i32,
                    cookie,
                    policy: Some(Policy::Bits(bits::UPDATE)),
                    ..EnqueueReq::default()
                };
                self.clients[i].locks.insert(cookie, (key, 0));
                self.submit(i, Doing::Lock(cookie), Outgoing::new(Opcode::LdlmEnqueue, &body));
            }
            _ => self.submit(i, Doing::Sync, Outgoing::new(Opcode::MdsSync, &proto::msg::Empty {})),
        }
    }

    fn answered(&mut self, i: usize, id: RequestId, xid: Xid, result: Result<Frame, Errno>) {
        if self.trace {
            let text = match &result {
                Ok(frame) => format!("status {} transno {}", frame.header.status, frame.header.transno),
                Err(errno) => format!("{errno:?}"),
            };
            eprintln!("{:?} client {i} xid {xid} answered: {text}", self.now);
        }
        let c = &mut self.clients[i];
        let doing = c.doing.remove(&id).expect("answered once");
        let wait = self.rng.range(1, 8000);
        self.after(wait, Ev::Work(i));
        let c = &mut self.clients[i];
        let status = result.as_ref().map(|frame| Errno::from_status(frame.header.status));
        match doing {
            Doing::Ask(ask) => {
                let fate = match (&result, status) {
                    (Ok(frame), Ok(Ok(()))) => Fate::Done {
                        position: frame.body[..].get(..8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap())),
                    },
                    (_, Ok(Err(errno))) | (_, Err(&errno)) => Fate::Failed(errno),
                    _ => unreachable!(),
                };
                self.order += 1;
                if let Some(span) = c.spans.get_mut(&ask.n) {
                    span.1 = self.order;
                }
                if ask.kind == USE {
                    c.stale += u64::from(fate == Fate::Failed(Errno::ESTALE));
                    return;
                }
                if ask.kind == READ {
                    return;
                }
                c.fates.insert(ask.n, (ask, fate));
                if let (OPEN, Fate::Done { position: handle }) = (ask.kind, fate) {
                    let amended = Ask { handle, ..ask };
                    assert!(c.import.amend(xid, amended.bytes()), "an open is kept for replay");
                    c.open.push(OpenFile { xid, ask: amended, handle });
                }
                if ask.kind == CLOSE {
                    let open = c.fates.remove(&(1_000_000 + ask.n)).map(|(open, _)| Xid(open.n));
                    let transno = result.as_ref().map_or(Transno(0), |frame| frame.header.transno);
                    if let Some(open) = open {
                        c.import.open_closed(open, transno);
                    }
                }
            }
            Doing::Lock(cookie) => {
                let grant = result.ok().and_then(|frame| frame.decode::<EnqueueRep>().ok()).and_then(|rep| rep.grant);
                match grant {
                    Some(grant) => {
                        if let Some(lock) = c.locks.get_mut(&cookie) {
                            lock.1 = grant.handle;
                        }
                        if c.called.remove(&cookie) {
                            self.cancel(i, cookie, grant.handle);
                        }
                    }
                    None => drop(c.locks.remove(&cookie)),
                }
            }
            Doing::Sync | Doing::Cancel => {}
        }
    }

    fn cancel(&mut self, i: usize, cookie: u64, handle: u64) {
        self.clients[i].locks.remove(&cookie);
        let body = CancelReq { handles: vec![handle], waiting_cookies: Vec::new() };
        let out = Outgoing { during_recovery: true, ..Outgoing::new(Opcode::LdlmCancel, &body) };
        self.submit(i, Doing::Cancel, out);
    }

    fn notice(&mut self, i: usize, frame: &Frame) {
        assert_eq!(frame.header.opcode, Opcode::LdlmBlCallback as u16);
        let callback: BlCallback = frame.decode().unwrap();
        let granted = self.clients[i].locks.get(&callback.cookie).is_some_and(|(_, handle)| *handle != 0);
        if granted || !self.clients[i].locks.contains_key(&callback.cookie) {
            self.cancel(i, callback.cookie, callback.handle);
        } else {
            self.clients[i].called.insert(callback.cookie);
        }
    }

    // --- time ---

    /// Runs until nothing is left to do.
    pub(super) fn run(&mut self) {
        let end = self.now + Duration::from_secs(120);
        while !self.finished() {
            self.step();
            if self.now > end {
                for (i, c) in self.clients.iter().enumerate() {
                    eprintln!("client {i}: {:?} waits for {:?}", c.import.status(), c.doing);
                }
                if let Some(server) = &self.host.machine {
                    eprintln!("{:?}", server.get_params("mdt.*.recovery_status"));
                }
                panic!("no end in sight");
            }
            // The last stretch is without faults, so that there is an end.
            self.quiet |= self.now > end - Duration::from_secs(60);
        }
    }

    fn finished(&self) -> bool {
        self.clients.iter().all(|c| c.next > OPS && c.doing.is_empty() && c.import.state() == State::Full)
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && !self.events.is_empty() {
            self.step();
        }
    }

    pub(super) fn step(&mut self) {
        let Some(((at, _), ev)) = self.events.pop_first() else { panic!("nothing happens any more") };
        self.now = self.now.max(at);
        let now = self.now;
        match ev {
            Ev::ToServer(conn, frame) => {
                if self.host.machine.is_none() || !self.conns.contains_key(&conn) {
                    return;
                }
                if self.trace {
                    let h = &frame.header;
                    eprintln!(
                        "{now:?} {conn:?} -> op {} xid {} fl {:x} transno {}",
                        h.opcode, h.xid, h.flags, h.transno
                    );
                }
                if self.hit(self.faults.crash) {
                    self.crash();
                    return;
                }
                if self.hit(self.faults.shutdown) {
                    if let Some(server) = &mut self.host.machine {
                        server.shutdown(now);
                    }
                    self.drain_server();
                }
                self.tell_server(Event::Frame { conn, frame });
            }
            Ev::ToClient(i, link, frame) => {
                if self.trace {
                    let h = &frame.header;
                    eprintln!(
                        "{now:?} client {i} <- op {} xid {} fl {:x} transno {} status {}",
                        h.opcode, h.xid, h.flags, h.transno, h.status
                    );
                }
                assert!(frame.header.has(flags::REPLY) || frame.header.opcode == Opcode::LdlmBlCallback as u16);
                self.clients[i].import.handle(now, ImportEvent::Frame(link, frame));
                self.drain_client(i);
            }
            Ev::Dial(i, link) => {
                if self.host.machine.is_some() {
                    let conn = ConnId(self.next_conn);
                    self.next_conn += 1;
                    self.conns.insert(conn, Conn { client: i, link, up: true, to_server: now, to_client: now });
                    self.tell_server(Event::Accepted { conn, peer: Peer { ours: true, ..Peer::default() } });
                    self.clients[i].import.handle(now, ImportEvent::Dialled(link));
                } else {
                    self.clients[i].import.handle(now, ImportEvent::DialFailed(link, "down".into()));
                }
                self.drain_client(i);
            }
            Ev::ServerSees(life, conn) => {
                self.conns.remove(&conn);
                if life == self.life {
                    self.tell_server(Event::Closed { conn });
                }
            }
            Ev::ClientSees(i, link) => {
                self.clients[i].import.handle(now, ImportEvent::Closed(link));
                self.drain_client(i);
            }
            Ev::Server(life, event) => {
                if life == self.life {
                    self.tell_server(event);
                }
            }
            Ev::ServerTick(life, at) => {
                if life == self.life && at == self.server_tick {
                    self.server_tick = Instant::FAR;
                    self.tell_server(Event::Tick);
                }
            }
            Ev::ClientTick(i, at) => {
                if self.clients[i].tick == at {
                    self.clients[i].tick = Instant::FAR;
                    self.clients[i].import.handle(now, ImportEvent::Tick);
                    self.drain_client(i);
                }
            }
            Ev::Restart => self.start_server(),
            Ev::Work(i) => {
                self.work(i);
                self.drain_client(i);
                let few = 2 + usize::from(self.clients[i].slots);
                if self.clients[i].doing.len() < few && self.clients[i].next <= OPS {
                    let wait = self.rng.range(1, 8000);
                    self.after(wait, Ev::Work(i));
                }
            }
        }
    }

    // --- the oracle ---

    /// Makes everything durable, and checks the history.
    pub(super) fn check(&mut self) {
        self.quiet = true;
        self.run_for(Duration::from_secs(5));
        let list = |key| {
            let sealed = self.host.engine.get(&Ask::list(key)).unwrap();
            sealed.map_or(Vec::new(), |sealed| entries(&schema::formats().open(&Ask::list(key), &sealed).unwrap()))
        };
        let mut lists: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for key in (0..KEYS).chain(100..100 + OPS + 1) {
            lists.insert(key, list(key));
        }
        let evicted = self.clients.iter().any(|c| c.evictions > 0);
        for (i, client) in self.clients.iter().enumerate() {
            let me = i as u64 + 1;
            assert_eq!(client.stale, 0, "an open file of client {me} was lost");
            for (n, (ask, fate)) in &client.fates {
                let places: Vec<u64> = lists[&ask.key]
                    .iter()
                    .zip(1..)
                    .filter(|(entry, _)| **entry == (me, *n))
                    .map(|(_, place)| place)
                    .collect();
                match (ask.kind, fate) {
                    (OPEN, _) => assert!(matches!(fate, Fate::Done { .. }) || evicted, "{ask:?} {fate:?}"),
                    (_, Fate::Done { position }) => {
                        assert_eq!(places, vec![*position], "client {me}, {ask:?}: told {position}, is at {places:?}");
                    }
                    (CREATE, Fate::Failed(Errno::EEXIST)) => assert!(places.is_empty(), "{ask:?} failed and happened"),
                    (_, Fate::Failed(Errno::EIO)) if evicted => assert!(places.len() <= 1, "{ask:?} happened twice"),
                    (_, Fate::Failed(errno)) => panic!("client {me}, {ask:?}: {errno:?}"),
                }
            }
            for entries in lists.values() {
                let mine: Vec<u64> = entries
                    .iter()
                    .filter(|(c, n)| *c == me && client.fates.get(n).is_some_and(|(ask, _)| ask.kind != CLOSE))
                    .map(|(_, n)| *n)
                    .collect();
                // What was asked for when the other was answered comes after it.
                for (at, n) in mine.iter().enumerate() {
                    for later in &mine[at + 1..] {
                        let (begun, answered) = (client.spans[n].0, client.spans[later].1);
                        assert!(
                            begun < answered,
                            "client {me} out of order: {later} was answered before {n} was asked"
                        );
                    }
                }
            }
        }
        let sealed = self.host.engine.get(&Ask::total()).unwrap();
        let total = sealed.map_or(0, |sealed| {
            u64::from_le_bytes(schema::formats().open(&Ask::total(), &sealed).unwrap()[..].try_into().unwrap())
        });
        assert_eq!(total, lists.values().map(|list| list.len() as u64).sum::<u64>(), "changes are whole");
        if let Some(server) = &self.host.machine
            && !evicted
        {
            let open: usize = self.clients.iter().map(|c| c.open.len()).sum();
            assert_eq!(server.service().open.len(), open, "no open file is lost, none is left over");
            for file in self.clients.iter().flat_map(|c| &c.open) {
                assert_eq!(file.ask.kind, OPEN);
            }
        }
    }
}
