//! A whole cluster in one thread: real targets over stores in memory, client machines, lossless links, and a clock that
//! moves only when nothing else can.
#![allow(dead_code)]

pub(crate) mod kernel;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use client::api::{Answer, Call, CallId, Effect, Event, FileHandle, Invalidation, Options, Stat};
use client::{Client, ConnId};
use mdt::Mdt;
use mgt::Mgt;
use ost::Ost;
use ost::mem_data::MemData;
use proto::msg::{Cred, Layout};
use proto::{ClientUuid, Errno, Frame, Nid, Opcode};
use schema::Record;
use stdx::{Instant, Rng};
use store::{Engine, MemEngine};
use target::{DataOp, Format, Peer, Service, Target};

/// Any target.
trait Machine {
    fn handle(&mut self, now: Instant, event: target::Event);
    fn poll(&mut self) -> Option<target::Effect>;
    fn deadline(&self) -> Option<Instant>;
    fn set_param(&mut self, now: Instant, path: &str, value: &str) -> Result<(), Errno>;
    fn get_params(&self, pattern: &str) -> Vec<(String, String)>;
}

impl<S: Service> Machine for Target<S> {
    fn handle(&mut self, now: Instant, event: target::Event) {
        Target::handle(self, now, event);
    }
    fn poll(&mut self) -> Option<target::Effect> {
        Target::poll(self)
    }
    fn deadline(&self) -> Option<Instant> {
        Target::deadline(self)
    }
    fn set_param(&mut self, now: Instant, path: &str, value: &str) -> Result<(), Errno> {
        Target::set_param(self, now, path, value)
    }
    fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        Target::get_params(self, pattern)
    }
}

struct Server {
    name: String,
    nid: Nid,
    machine: Option<Box<dyn Machine>>,
    engine: MemEngine,
    data: MemData,
    in_flight: VecDeque<u64>,
    starts: u64,
    pub serving: bool,
}

/// A client and what its kernel and programs see.
pub(crate) struct Node {
    pub machine: Client,
    pub answers: BTreeMap<CallId, Result<Answer, Errno>>,
    /// Calls in the order of their answers, each with how many invalidations were told before.
    pub order: Vec<(usize, CallId)>,
    pub mounted: bool,
    /// What a mount that is not complete waits for.
    pub waits: Vec<String>,
    pub failed: Option<String>,
    pub unmounted: bool,
    /// Not everything was written back by then.
    pub lost: Option<Errno>,
    pub invalidations: Vec<Invalidation>,
    /// What the kernel was asked to let go.
    pub let_go: Vec<Vec<client::KernelNode>>,
    /// Invalidations are not answered until this is false again.
    pub slow_kernel: bool,
    /// So often an answer has not come to the kernel yet when it is told to forget what that shows.
    pub too_early: u32,
    /// Names are dropped a while after they should be: nobody can wait for it.
    pub slow_names: bool,
    tokens: VecDeque<(u64, bool)>,
    pub alive: bool,
}

impl Node {
    /// Whether the kernel knows a node that it is told to forget.
    fn knows(&mut self) -> bool {
        let before = self.too_early;
        self.too_early = before.saturating_sub(1);
        before == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Server(usize),
    Node(usize),
    Raw(usize),
}

type End = (Who, u64);

/// A connection that somebody made who is no client: what is sent over it is up to the test.
#[derive(Default)]
pub(crate) struct Raw {
    pub inbox: Vec<Frame>,
    pub closed: bool,
}

/// What becomes of a frame between a client and a server: `true` on its way to the client of this number.
pub(crate) type Tamper = Box<dyn FnMut(bool, usize, Frame) -> Vec<Frame>>;

pub(crate) struct Cluster {
    servers: Vec<Server>,
    pub nodes: Vec<Node>,
    pub raws: Vec<Raw>,
    pub tamper: Option<Tamper>,
    pub now: Instant,
    links: BTreeMap<End, End>,
    wire: VecDeque<(End, Frame)>,
    next_conn: u64,
    next_call: u64,
    pub log: Vec<String>,
    /// Requests of clients by opcode.
    pub requests: BTreeMap<&'static str, u64>,
    /// Those of all calls.
    pub all_requests: BTreeMap<&'static str, u64>,
    /// What the last listing gave.
    pub listed: Vec<client::api::DirectoryEntry>,
    /// Groups wait to become durable while this is set.
    pub slow_media: bool,
    /// Those of this server alone wait.
    pub slow_server: Option<usize>,
    /// Around whatever data files in memory do but read.
    pub at_media: fn(&mut dyn FnMut()),
    rng: Rng,
}

pub(crate) fn cred(uid: u32) -> Cred {
    Cred { uid, gid: uid, umask: 0o022, capabilities: if uid == 0 { u64::MAX } else { 0 }, ..Cred::default() }
}

/// Seeds of a random test. Built with `SEED=n` it runs that one, with `SEEDS=n` so many from `first`.
pub(crate) fn seeds(first: u64, usually: u64) -> core::ops::Range<u64> {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    match (number(option_env!("SEED")), number(option_env!("SEEDS"))) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => first..first + count.unwrap_or(usually),
    }
}

/// What `lfs setstripe` asks for.
pub(crate) fn wish(stripe_size: u32, want_count: i32, want_first: i32) -> Layout {
    Layout { stripe_size, want_count, want_first, ..Layout::default() }
}

pub(crate) fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Cluster {
    /// An MGT, an MDT and some OSTs, serving.
    pub(crate) fn new(osts: usize) -> Cluster {
        let mut cluster = Cluster {
            servers: Vec::new(),
            nodes: Vec::new(),
            raws: Vec::new(),
            tamper: None,
            now: Instant::ZERO + Duration::from_secs(1),
            links: BTreeMap::new(),
            wire: VecDeque::new(),
            next_conn: 1,
            next_call: 1,
            log: Vec::new(),
            requests: BTreeMap::new(),
            all_requests: BTreeMap::new(),
            listed: Vec::new(),
            slow_media: false,
            slow_server: None,
            at_media: |work| work(),
            rng: Rng::new(7),
        };
        cluster.add_server("MGS");
        cluster.start(0);
        for index in 0..osts {
            let server = cluster.add_server(&format!("fs-OST{index:04x}"));
            cluster.start(server);
        }
        let mdt = cluster.add_server("fs-MDT0000");
        cluster.start(mdt);
        cluster.until(|c| c.servers.iter().all(|server| server.serving));
        cluster
    }

    /// A target that was formatted and never started.
    pub(crate) fn add_server(&mut self, name: &str) -> usize {
        let engine = self.new_store(name, false);
        self.servers.push(Server {
            name: name.to_owned(),
            nid: format!("unix:{name}").parse().unwrap(),
            machine: None,
            engine,
            data: MemData::new(),
            in_flight: VecDeque::new(),
            starts: 0,
            serving: false,
        });
        self.servers.len() - 1
    }

    /// The store of a target is lost, and a new one takes its place. It is not started.
    pub(crate) fn replace(&mut self, name: &str) -> usize {
        let at = self.server(name);
        self.kill(at);
        self.servers[at].engine = self.new_store(name, true);
        self.servers[at].data = MemData::new();
        at
    }

    /// Everything is formatted anew while clients are mounted.
    pub(crate) fn begin_anew(&mut self) {
        for at in 0..self.servers.len() {
            self.kill(at);
            let name = self.servers[at].name.clone();
            self.servers[at].engine = self.new_store(&name, false);
            self.servers[at].data = MemData::new();
        }
        for at in 0..self.servers.len() {
            self.start(at);
        }
    }

    fn new_store(&mut self, name: &str, replaces: bool) -> MemEngine {
        let engine = MemEngine::new();
        let mgs: Vec<Nid> = vec!["unix:MGS".parse().unwrap()];
        let format = Format {
            name: name.parse().unwrap(),
            uuid: u128::from(self.rng.u64()),
            mgs,
            version: "test".into(),
            wall_ns: 1,
            params: Vec::new(),
            name_key: name.contains("MDT").then_some([7; 16]),
            replaces,
        };
        let batch = if name.contains("MDT") { mdt::format(&format, (0, 0)) } else { target::format(&format) };
        engine.commit(1, &batch.seal(&schema::formats())).unwrap();
        engine
    }

    pub(crate) fn server(&self, name: &str) -> usize {
        self.servers.iter().position(|server| server.name == name).unwrap()
    }

    /// Starts a target's program.
    pub(crate) fn start(&mut self, at: usize) {
        self.start_quietly(at);
        self.run();
    }

    fn start_quietly(&mut self, at: usize) {
        let now = self.now;
        let server = &mut self.servers[at];
        server.starts += 1;
        let options = target::Options {
            name: server.name.parse().ok(),
            nids: vec![server.nid.clone()],
            mgs: vec!["unix:MGS".parse().unwrap()],
            seed: server.starts * 100 + at as u64,
            ..target::Options::default()
        };
        let last = server.engine.last_group().unwrap();
        let mut machine: Box<dyn Machine> = if server.name == "MGS" {
            Box::new(Target::new(Mgt::new(), options, last, now))
        } else if server.name.contains("MDT") {
            Box::new(Target::new(Mdt::new(mdt::Settings::default()), options, last, now))
        } else {
            Box::new(Target::new(Ost::new(), options, last, now))
        };
        machine.handle(now, target::Event::Space(server.engine.space().unwrap()));
        machine.handle(now, target::Event::WallClock(wall(now)));
        server.machine = Some(machine);
    }

    /// The objects that an object target has on its medium.
    pub(crate) fn objects(&self, name: &str) -> Vec<schema::Object> {
        let engine = &self.servers[self.server(name)].engine;
        let found = engine.scan(&schema::Object::all(), usize::MAX).unwrap().records;
        let open = |(key, sealed): &(store::Key, store::Value)| {
            schema::Object::decode_record(&schema::formats().open(key, sealed).unwrap()).unwrap()
        };
        found.iter().map(open).collect()
    }

    /// kill -9, and what was not durable is lost.
    pub(crate) fn kill(&mut self, at: usize) {
        let mut rng = self.rng.fork();
        let server = &mut self.servers[at];
        server.machine = None;
        server.serving = false;
        server.in_flight.clear();
        server.engine.crash(&mut rng);
        (self.at_media)(&mut || server.data.crash(&mut rng));
        let ends: Vec<End> = self.links.keys().filter(|(who, _)| *who == Who::Server(at)).copied().collect();
        for end in ends {
            self.break_link(end);
        }
        self.run();
    }

    /// The metadata target dies, and when it starts again, the record of a name is lost.
    pub(crate) fn lose_entry(&mut self, dir: u64, text: &str) {
        let fid = proto::Fid::from_ino(dir).unwrap();
        self.lose("fs-MDT0000", |engine| {
            let get = |key: &store::Key| schema::formats().open(key, &engine.get(key).unwrap().unwrap()).unwrap();
            let dir = schema::Oi::decode_record(&get(&schema::Oi::key(&fid))).unwrap().ino;
            let header = schema::Header::decode_record(&get(&schema::Header::key(&()))).unwrap();
            let cookie = schema::first_cookie(&header, text.as_bytes());
            schema::Entry::key(&schema::EntryKey { dir, cookie })
        });
    }

    /// An object target dies, and when it starts again, the record of an object is lost.
    pub(crate) fn lose_object(&mut self, server: &str, file: u64, stripe: u32) {
        let (fid, stripe) = (proto::Fid::from_ino(file).unwrap(), proto::StripeIndex(stripe));
        self.lose(server, |_| schema::Object::key(&schema::ObjectKey { fid, stripe }));
    }

    fn lose(&mut self, server: &str, key: impl FnOnce(&MemEngine) -> store::Key) {
        let at = self.server(server);
        self.kill(at);
        let engine = &self.servers[at].engine;
        let mut batch = store::Batch::new();
        batch.delete(key(engine));
        engine.commit(engine.last_group().unwrap() + 1, &batch.seal(&schema::formats())).unwrap();
        self.start(at);
    }

    pub(crate) fn restart(&mut self, name: &str) {
        let at = self.server(name);
        self.kill(at);
        self.start(at);
    }

    /// The same, and nothing happens yet.
    pub(crate) fn restart_quietly(&mut self, name: &str) {
        let at = self.server(name);
        self.kill(at);
        self.start_quietly(at);
    }

    pub(crate) fn set_server_param(&mut self, server: &str, path: &str, value: &str) {
        let at = self.server(server);
        let now = self.now;
        self.servers[at].machine.as_mut().unwrap().set_param(now, path, value).unwrap();
    }

    pub(crate) fn try_server_param(&mut self, server: &str, path: &str, value: &str) -> Result<(), Errno> {
        let (at, now) = (self.server(server), self.now);
        self.servers[at].machine.as_mut().unwrap().set_param(now, path, value)
    }

    pub(crate) fn server_params(&self, server: &str, pattern: &str) -> Vec<(String, String)> {
        self.servers[self.server(server)].machine.as_ref().unwrap().get_params(pattern)
    }

    /// Breaks a link; both ends that live are told.
    fn break_link(&mut self, end: End) {
        let Some(other) = self.links.remove(&end) else { return };
        self.links.remove(&other);
        self.wire.retain(|(to, _)| *to != end && *to != other);
        for (who, conn) in [end, other] {
            self.tell_closed(who, conn);
        }
    }

    fn tell_closed(&mut self, who: Who, conn: u64) {
        let now = self.now;
        match who {
            Who::Server(at) => {
                if let Some(machine) = &mut self.servers[at].machine {
                    machine.handle(now, target::Event::Closed { conn: target::ConnId(conn) });
                }
            }
            Who::Raw(at) => self.raws[at].closed = true,
            Who::Node(at) => {
                if self.nodes[at].alive {
                    self.nodes[at].machine.handle(now, Event::Closed { conn: ConnId(conn) });
                }
            }
        }
    }

    /// Bytes that the data files of an object target may take.
    pub(crate) fn set_capacity(&mut self, server: &str, bytes: u64) {
        let at = self.server(server);
        self.servers[at].data.set_capacity(Some(bytes));
    }

    /// The next operation on a data file of an object target fails.
    pub(crate) fn fail_next(&mut self, server: &str, errno: Errno) {
        let at = self.server(server);
        self.servers[at].data.fail_next(errno);
    }

    /// Bytes that the store of a target may take from now on, besides what it holds.
    pub(crate) fn set_store_room(&mut self, server: &str, bytes: u64) {
        let at = self.server(server);
        let now = self.now;
        let server = &mut self.servers[at];
        server.engine.set_capacity(None);
        let space = server.engine.space().unwrap();
        server.engine.set_capacity(Some((1 << 40) - space.free - space.reserve + bytes));
        let space = server.engine.space().unwrap();
        if let Some(machine) = &mut server.machine {
            machine.handle(now, target::Event::Space(space));
        }
        self.run();
    }

    /// Others fill the disk of a target's store, but for 8 MiB that it keeps.
    pub(crate) fn fill_store(&mut self, server: &str) {
        let at = self.server(server);
        let server = &mut self.servers[at];
        server.engine.set_reserve(8 << 20);
        server.engine.others_leave(Some(0));
        let space = server.engine.space().unwrap();
        if let Some(machine) = &mut server.machine {
            machine.handle(self.now, target::Event::Space(space));
        }
        self.run();
    }

    /// What the disk of an object target's data files has free, in bytes.
    pub(crate) fn set_free(&mut self, server: &str, free: u64) {
        self.set_disk(server, free, 0);
    }

    /// The same, for a disk of 1 TiB with this number.
    pub(crate) fn set_disk(&mut self, server: &str, free: u64, disk: u64) {
        let at = self.server(server);
        let (now, total) = (self.now, 1 << 40);
        let machine = self.servers[at].machine.as_mut().unwrap();
        machine.handle(now, target::Event::DataSpace(target::DataSpace { total, free, disk }));
        self.run();
    }

    /// A connection to a server.
    pub(crate) fn raw(&mut self, server: usize) -> usize {
        let raw = self.raws.len();
        self.raws.push(Raw::default());
        let nid = self.servers[server].nid.clone();
        self.dial((Who::Raw(raw), 0), &[nid]).unwrap();
        raw
    }

    /// Sends over it, without waiting for anything.
    pub(crate) fn raw_send(&mut self, raw: usize, frame: Frame) {
        if let Some(&other) = self.links.get(&(Who::Raw(raw), 0)) {
            self.wire.push_back((other, frame));
        }
    }

    /// Hangs up.
    pub(crate) fn raw_close(&mut self, raw: usize) {
        self.break_link((Who::Raw(raw), 0));
    }

    fn transmit(&mut self, from: Who, to: End, frame: Frame) {
        let between = match (from, to.0) {
            (Who::Node(at), _) => Some((false, at)),
            (_, Who::Node(at)) => Some((true, at)),
            _ => None,
        };
        match (&mut self.tamper, between) {
            (Some(tamper), Some((to_client, at))) => {
                self.wire.extend(tamper(to_client, at, frame).into_iter().map(|frame| (to, frame)));
            }
            _ => self.wire.push_back((to, frame)),
        }
    }

    /// Cuts every connection of a client.
    pub(crate) fn cut(&mut self, node: usize) {
        let ends: Vec<End> = self.links.keys().filter(|(who, _)| *who == Who::Node(node)).copied().collect();
        for end in ends {
            self.break_link(end);
        }
    }

    /// Loses what has one of these opcodes and goes to clients, or from them, until `tamper` is set again.
    pub(crate) fn lose_frames<const N: usize>(&mut self, to_clients: bool, opcodes: [Opcode; N]) {
        let opcodes = opcodes.map(|opcode| opcode as u16);
        self.tamper = Some(Box::new(move |to_client, _, frame| {
            let lost = to_client == to_clients && opcodes.contains(&frame.header.opcode);
            if lost { Vec::new() } else { vec![frame] }
        }));
    }

    /// Answers to changes that are on their way to a client do not arrive.
    pub(crate) fn lose_answers_to(&mut self, node: usize) {
        let answers = |frame: &Frame| frame.header.has(proto::frame::flags::REPLY) && frame.header.tag.0 != 0;
        self.wire.retain(|((who, _), frame)| *who != Who::Node(node) || !answers(frame));
    }

    /// The client's machine is gone without a word.
    pub(crate) fn die(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.cut(node);
    }

    pub(crate) fn options(number: u64) -> Options {
        Options {
            uuid: ClientUuid(1000 + u128::from(number)),
            seed: 1000 + number,
            instance: client::api::Instance(0xffff_0000_0000_1000 + number),
            fsname: "fs".into(),
            mgs: vec!["unix:MGS".parse().unwrap()],
            description: format!("client:test:{number}"),
            read_only: false,
            max_dirty: 64 << 20,
            max_cached: 64 << 20,
            max_read_ahead: 4 << 20,
            max_nodes: 10_000,
            soft: None,
            timeouts: client::api::Timeouts::fixed(Duration::from_secs(10)),
            always_ping: false,
            access_times: client::api::AccessTimes::default(),
            directory_access_times: client::api::AccessTimes::default(),
            write_back_after: Duration::from_secs(5),
            max_rpcs_in_flight: 8,
            max_mod_rpcs_in_flight: 7,
            sync_metadata: true,
            faults: stdx::Faults::none(),
        }
    }

    /// A client that begins to mount.
    pub(crate) fn begin_mount(&mut self, options: Options) -> usize {
        let mut machine = Client::new(options, self.now);
        machine.handle(self.now, Event::WallClock(wall(self.now)));
        self.nodes.push(Node {
            machine,
            answers: BTreeMap::new(),
            order: Vec::new(),
            mounted: false,
            waits: Vec::new(),
            failed: None,
            unmounted: false,
            lost: None,
            invalidations: Vec::new(),
            let_go: Vec::new(),
            slow_kernel: false,
            too_early: 0,
            slow_names: false,
            tokens: VecDeque::new(),
            alive: true,
        });
        self.run();
        self.nodes.len() - 1
    }

    pub(crate) fn mount(&mut self) -> usize {
        let number = self.nodes.len() as u64;
        let node = self.begin_mount(Cluster::options(number));
        self.until(|c| c.nodes[node].mounted);
        node
    }

    /// One thing that can happen without time: a random one. Connections keep their order.
    pub(crate) fn one_step(&mut self, rng: &mut Rng) {
        let mut choices: Vec<u32> = (0..6).collect();
        while !choices.is_empty() {
            let choice = choices.swap_remove(rng.below(choices.len() as u64) as usize);
            let moved = match choice {
                0 | 1 => self.deliver(rng.below(1 << 20) as usize),
                2 => {
                    let at = rng.below(self.servers.len() as u64) as usize;
                    match self.servers[at].machine.as_mut().and_then(|machine| machine.poll()) {
                        Some(effect) => {
                            self.server_effect(at, effect);
                            true
                        }
                        None => false,
                    }
                }
                3 => {
                    let at = rng.below(self.nodes.len() as u64) as usize;
                    match self.nodes[at].machine.poll() {
                        Some(effect) => {
                            self.node_effect(at, effect);
                            true
                        }
                        None => false,
                    }
                }
                4 => self.kernel_answers(rng.below(self.nodes.len() as u64) as usize),
                _ => self.media_turn(rng.below(self.servers.len() as u64) as usize),
            };
            if moved {
                return;
            }
        }
    }

    /// Delivers the first frame of one of the links.
    fn deliver(&mut self, pick: usize) -> bool {
        let mut heads: Vec<End> = Vec::new();
        for (end, _) in &self.wire {
            if !heads.contains(end) {
                heads.push(*end);
            }
        }
        if heads.is_empty() {
            return false;
        }
        let end = heads[pick % heads.len()];
        let at = self.wire.iter().position(|(to, _)| *to == end).unwrap();
        let ((who, conn), frame) = self.wire.remove(at).unwrap();
        match who {
            Who::Server(at) => self.tell(at, target::Event::Frame { conn: target::ConnId(conn), frame }),
            Who::Node(at) => self.nodes[at].machine.handle(self.now, Event::Frame { conn: ConnId(conn), frame }),
            Who::Raw(at) => self.raws[at].inbox.push(frame),
        }
        true
    }

    fn kernel_answers(&mut self, at: usize) -> bool {
        if self.nodes[at].slow_kernel {
            return false;
        }
        let Some((token, is_node)) = self.nodes[at].tokens.pop_front() else { return false };
        let known = !is_node || self.nodes[at].knows();
        self.nodes[at].machine.handle(self.now, Event::Invalidated { token, known });
        true
    }

    fn media_turn(&mut self, at: usize) -> bool {
        if self.slow_media || self.slow_server == Some(at) {
            return false;
        }
        let Some(group) = self.servers[at].in_flight.pop_front() else { return false };
        self.servers[at].engine.make_durable(group);
        self.tell(at, target::Event::Committed { group });
        true
    }

    /// Everything that can happen without time.
    pub(crate) fn run(&mut self) {
        let mut turns = 0_u32;
        loop {
            // Messages take time, too: who waits for a moment may send many until it comes.
            turns += 1;
            if turns.is_multiple_of(10_000) {
                self.time_is(self.now + Duration::from_millis(1));
            }
            let mut moved = false;
            for at in 0..self.servers.len() {
                while let Some(effect) = self.servers[at].machine.as_mut().and_then(|machine| machine.poll()) {
                    moved = true;
                    self.server_effect(at, effect);
                }
                moved |= self.media_turn(at);
            }
            for at in 0..self.nodes.len() {
                while self.nodes[at].alive
                    && let Some(effect) = self.nodes[at].machine.poll()
                {
                    moved = true;
                    self.node_effect(at, effect);
                }
                if !self.nodes[at].slow_kernel
                    && let Some((token, is_node)) = self.nodes[at].tokens.pop_front()
                {
                    let known = !is_node || self.nodes[at].knows();
                    self.nodes[at].machine.handle(self.now, Event::Invalidated { token, known });
                    moved = true;
                }
            }
            if let Some(((who, conn), frame)) = self.wire.pop_front() {
                moved = true;
                match who {
                    Who::Server(at) => self.tell(at, target::Event::Frame { conn: target::ConnId(conn), frame }),
                    Who::Node(at) => {
                        self.nodes[at].machine.handle(self.now, Event::Frame { conn: ConnId(conn), frame })
                    }
                    Who::Raw(at) => self.raws[at].inbox.push(frame),
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn tell(&mut self, at: usize, event: target::Event) {
        if let Some(machine) = &mut self.servers[at].machine {
            machine.handle(self.now, event);
            if machine.deadline().is_some_and(|at| at <= self.now) {
                machine.handle(self.now, target::Event::Tick);
            }
        }
    }

    /// Time passes, to the next deadline at most.
    pub(crate) fn step(&mut self) {
        let mut next = self.now + Duration::from_secs(1);
        for server in &self.servers {
            next = server.machine.as_ref().and_then(|machine| machine.deadline()).map_or(next, |at| at.min(next));
        }
        for node in self.nodes.iter().filter(|node| node.alive) {
            next = node.machine.deadline().map_or(next, |at| at.min(next));
        }
        self.time_is(next.max(self.now + Duration::from_millis(1)));
        self.run();
    }

    fn time_is(&mut self, now: Instant) {
        self.now = now;
        for at in 0..self.servers.len() {
            self.tell(at, target::Event::WallClock(wall(now)));
            self.tell(at, target::Event::Tick);
        }
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            node.machine.handle(now, Event::WallClock(wall(now)));
            node.machine.handle(now, Event::Tick);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    pub(crate) fn until(&mut self, done: impl Fn(&Cluster) -> bool) {
        self.run();
        for round in 0..5_000 {
            if done(self) {
                return;
            }
            // What depends on somebody else's change is answered when that is durable.
            if round == 20 {
                self.slow_media = false;
            }
            self.step();
        }
        panic!("it never happens; log: {:#?}", self.log);
    }

    fn dial(&mut self, from: End, nids: &[Nid]) -> Result<(), String> {
        let to = self.servers.iter().position(|server| server.machine.is_some() && nids.contains(&server.nid));
        let Some(to) = to else { return Err("nobody is there".to_owned()) };
        let conn = self.next_conn;
        self.next_conn += 1;
        let other = (Who::Server(to), conn);
        self.links.insert(from, other);
        self.links.insert(other, from);
        let peer = Peer { address: "test".into(), uid: Some(0), local: true, ours: true };
        self.tell(to, target::Event::Accepted { conn: target::ConnId(conn), peer });
        Ok(())
    }

    fn server_effect(&mut self, at: usize, effect: target::Effect) {
        let me = Who::Server(at);
        match effect {
            target::Effect::Send { conn, frame } => {
                if let Some(&other) = self.links.get(&(me, conn.0)) {
                    self.transmit(me, other, frame);
                }
            }
            target::Effect::Hangup { conn } => self.break_link((me, conn.0)),
            target::Effect::Dial { conn, nids } => {
                let event = match self.dial((me, conn.0), &nids) {
                    Ok(()) => target::Event::Dialled { conn },
                    Err(reason) => target::Event::DialFailed { conn, reason },
                };
                self.tell(at, event);
            }
            target::Effect::Load(load) => {
                let done = load.run(&self.servers[at].engine);
                self.tell(at, target::Event::Loaded(done));
            }
            target::Effect::Commit(group) => {
                let server = &mut self.servers[at];
                server.engine.begin_commit(group.number(), group.seal()).unwrap();
                server.in_flight.push_back(group.number());
            }
            target::Effect::Data { id, op } => {
                let data = &mut self.servers[at].data;
                let result = match op {
                    // What is read is the target's.
                    DataOp::Read { .. } | DataOp::List { .. } => data.run(&op),
                    _ => {
                        let mut result = None;
                        (self.at_media)(&mut || result = Some(data.run(&op)));
                        result.unwrap()
                    }
                };
                self.tell(at, target::Event::DataDone { id, result });
            }
            target::Effect::Serving { .. } => self.servers[at].serving = true,
            target::Effect::Log(level, line) => self.log.push(format!("{} {level:?}: {line}", self.servers[at].name)),
            target::Effect::Stop { reason } => {
                panic!("{} stops: {reason:?}; log: {:#?}", self.servers[at].name, self.log)
            }
        }
    }

    fn node_effect(&mut self, at: usize, effect: Effect) {
        let me = Who::Node(at);
        match effect {
            Effect::Dial { conn, nids } => {
                let event = match self.dial((me, conn.0), &nids) {
                    Ok(()) => Event::Dialled { conn },
                    Err(reason) => Event::DialFailed { conn, reason },
                };
                self.nodes[at].machine.handle(self.now, event);
            }
            Effect::Send { conn, frame } => {
                if let Some(opcode) = Opcode::from_raw(frame.header.opcode) {
                    for count in [&mut self.requests, &mut self.all_requests] {
                        *count.entry(opcode.name()).or_default() += 1;
                    }
                }
                if let Some(&other) = self.links.get(&(me, conn.0)) {
                    self.transmit(me, other, frame);
                }
            }
            Effect::Hangup { conn } => {
                // No `Closed` follows for the client.
                if let Some(other) = self.links.remove(&(me, conn.0)) {
                    self.links.remove(&other);
                    self.wire.retain(|(to, _)| *to != other);
                    self.tell_closed(other.0, other.1);
                }
            }
            Effect::Answer { id, result } => {
                let told = self.nodes[at].invalidations.len();
                self.nodes[at].order.push((told, id));
                assert!(self.nodes[at].answers.insert(id, result).is_none(), "a call is answered once");
            }
            Effect::Invalidate(what) => {
                match &what {
                    Invalidation::Entry { .. } if self.nodes[at].slow_names => {}
                    Invalidation::Inode { token, .. } | Invalidation::Entry { token, .. } if *token != 0 => {
                        let is_node = matches!(what, Invalidation::Inode { .. });
                        self.nodes[at].tokens.push_back((*token, is_node));
                    }
                    _ => {}
                }
                self.nodes[at].invalidations.push(what);
            }
            Effect::LetGo(nodes) => self.nodes[at].let_go.push(nodes),
            Effect::Mounted => self.nodes[at].mounted = true,
            Effect::MountWaits { on } => self.nodes[at].waits = on,
            Effect::MountFailed { reason } => self.nodes[at].failed = Some(reason),
            Effect::Unmounted { result } => (self.nodes[at].unmounted, self.nodes[at].lost) = (true, result.err()),
            Effect::Jobs(_) => {}
            Effect::Log(level, line) => self.log.push(format!("client {at} {level:?}: {line}")),
        }
    }

    // --- what programs do ---

    /// A call, without letting anything else happen.
    pub(crate) fn send_quietly(&mut self, node: usize, cred: Cred, call: Call) -> CallId {
        let id = CallId(self.next_call);
        self.next_call += 1;
        let now = self.now;
        let machine = &mut self.nodes[node].machine;
        machine.handle(now, Event::WallClock(wall(now) + id.0 as i64));
        machine.handle(now, Event::Call { id, cred, call });
        id
    }

    pub(crate) fn send_as(&mut self, node: usize, cred: Cred, call: Call) -> CallId {
        let id = self.send_quietly(node, cred, call);
        self.run();
        id
    }

    pub(crate) fn send(&mut self, node: usize, call: Call) -> CallId {
        self.send_as(node, cred(0), call)
    }

    pub(crate) fn answered(&self, node: usize, id: CallId) -> bool {
        self.nodes[node].answers.contains_key(&id)
    }

    pub(crate) fn answer(&mut self, node: usize, id: CallId) -> Result<Answer, Errno> {
        self.until(|c| c.answered(node, id));
        self.nodes[node].answers.remove(&id).unwrap()
    }

    pub(crate) fn call_as(&mut self, node: usize, uid: u32, call: Call) -> Result<Answer, Errno> {
        let id = self.send_as(node, cred(uid), call);
        self.answer(node, id)
    }

    /// A call, to its end. Requests are counted from zero.
    pub(crate) fn call(&mut self, node: usize, call: Call) -> Result<Answer, Errno> {
        self.requests.clear();
        self.call_as(node, 0, call)
    }

    /// Requests that the last [`Cluster::call`] sent, lock callbacks' and background ones included.
    pub(crate) fn sent(&self) -> u64 {
        self.requests.values().sum()
    }

    pub(crate) fn lookup(&mut self, node: usize, parent: u64, text: &str) -> Result<Stat, Errno> {
        // As the kernel: a stale handle on the way means to look again.
        for _ in 0..2 {
            match self.call(node, Call::Lookup { parent, name: name(text) }) {
                Err(Errno::ESTALE) => {}
                Ok(Answer::Entry(stat)) => return Ok(stat),
                Ok(other) => panic!("{other:?}"),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    /// The number of a path's node.
    pub(crate) fn walk(&mut self, node: usize, path: &str) -> Result<u64, Errno> {
        let mut ino = 1;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            ino = self.lookup(node, ino, part)?.ino;
        }
        Ok(ino)
    }

    pub(crate) fn getattr(&mut self, node: usize, ino: u64) -> Result<Stat, Errno> {
        for _ in 0..2 {
            match self.call(node, Call::Getattr { ino, fh: None }) {
                Err(Errno::ESTALE) => {}
                Ok(Answer::Attr(stat)) => return Ok(stat),
                Ok(other) => panic!("{other:?}"),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    pub(crate) fn mkdir(&mut self, node: usize, parent: u64, text: &str) -> Result<Stat, Errno> {
        match self.call(node, Call::Mkdir { parent, name: name(text), mode: 0o755 })? {
            Answer::Entry(stat) => Ok(stat),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn create(&mut self, node: usize, parent: u64, text: &str) -> Result<(Stat, FileHandle), Errno> {
        let call = Call::Create { parent, name: name(text), mode: 0o644, flags: 0o2 };
        match self.call(node, call)? {
            Answer::Created { stat, fh, .. } => Ok((stat, fh)),
            other => panic!("{other:?}"),
        }
    }

    /// A file `f` of two stripes of 64 KiB, with so many bytes of 1 on its object targets.
    pub(crate) fn two_stripes(&mut self, node: usize, length: usize) -> (Stat, FileHandle) {
        let (f, fh) = self.create(node, 1, "f").unwrap();
        self.call(node, Call::SetLayout { ino: f.ino, wish: wish(64 << 10, 2, 0) }).unwrap();
        self.write(node, fh, 0, &vec![1; length]).unwrap();
        self.call(node, Call::Fsync { fh, data_only: false }).unwrap();
        (f, fh)
    }

    pub(crate) fn open(&mut self, node: usize, ino: u64, flags: u32) -> Result<FileHandle, Errno> {
        for _ in 0..2 {
            match self.call(node, Call::Open { ino, flags }) {
                Err(Errno::ESTALE) => {}
                Ok(Answer::Opened { fh, .. }) => return Ok(fh),
                Ok(other) => panic!("{other:?}"),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    pub(crate) fn write(&mut self, node: usize, fh: FileHandle, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let data = Bytes::copy_from_slice(data);
        match self.call(node, Call::Write { fh, ino: 0, offset, data, write_back: false, kill_priv: false })? {
            Answer::Written(count) => Ok(count),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read(&mut self, node: usize, fh: FileHandle, offset: u64, length: u32) -> Result<Bytes, Errno> {
        match self.call(node, Call::Read { fh, offset, length })? {
            Answer::Data(data) => Ok(data),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn close(&mut self, node: usize, fh: FileHandle) -> Result<(), Errno> {
        self.call(node, Call::Flush { fh, lock_owner: 1 })?;
        self.call(node, Call::Release { fh, flock_owner: None }).map(drop)
    }

    pub(crate) fn unlink(&mut self, node: usize, parent: u64, text: &str) -> Result<(), Errno> {
        self.call(node, Call::Unlink { parent, name: name(text) }).map(drop)
    }

    /// All names of a directory in their order, read in small pieces.
    pub(crate) fn list(&mut self, node: usize, ino: u64, plus: bool) -> Result<Vec<String>, Errno> {
        let fh = match self.call(node, Call::Opendir { ino })? {
            Answer::Opened { fh, .. } => fh,
            other => panic!("{other:?}"),
        };
        self.listed.clear();
        let mut names = Vec::new();
        let mut offset = 0;
        self.requests.clear();
        loop {
            let id = self.send(node, Call::Readdir { fh, offset, max_bytes: 4096, plus });
            let entries = match self.answer(node, id)? {
                Answer::Entries(entries) => entries,
                other => panic!("{other:?}"),
            };
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            self.listed.extend(entries.iter().cloned());
            names.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
        }
        let sent = self.requests.clone();
        self.call(node, Call::Releasedir { fh })?;
        self.requests = sent;
        Ok(names)
    }
}

fn wall(now: Instant) -> i64 {
    1_700_000_000_000_000_000 + now.0 as i64
}
