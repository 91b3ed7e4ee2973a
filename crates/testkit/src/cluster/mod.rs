//! A whole cluster in one thread: real targets over stores in memory, client machines, lossless links, and a clock that
//! moves only when nothing else can.

mod calls;
pub mod kernel;
mod raw;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use client::api::{Answer, CallId, Event, Invalidation, Options};
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
use target::{Format, Target};

use crate::host::{Host, Machine};

pub use raw::{Raw, RawExport};

impl Server {
    /// What it had is lost, and this store takes its place.
    fn lose_media(&mut self, store: MemEngine) {
        self.host.engine = store;
        self.host.data = MemData::new();
    }
}

struct Server {
    name: String,
    nid: Nid,
    host: Host<Box<dyn Machine>>,
    serving: bool,
}

/// A client and what its kernel and programs see.
pub struct Node {
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

/// What becomes of a frame between a client and a server: `true` on its way to the client of this number.
pub type Tamper = Box<dyn FnMut(bool, usize, Frame) -> Vec<Frame>>;

pub struct Cluster {
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
    /// All frames that are under way arrive before anybody acts on one of them.
    pub together: bool,
    /// How many names of a stripe move at a time, and how long each waits before, on metadata targets that start while this is set.
    pub names_moving: (usize, Duration),
    /// A target may stop by itself: that is logged, and the test kills it.
    pub may_stop: bool,
    /// Targets start with `abort_recov_mdt` while this is set.
    pub admits_lost: bool,
    /// Around whatever data files in memory do but read.
    pub at_media: fn(&mut dyn FnMut()),
    rng: Rng,
}

pub fn cred(uid: u32) -> Cred {
    Cred { uid, gid: uid, umask: 0o022, capabilities: if uid == 0 { u64::MAX } else { 0 }, ..Cred::default() }
}

/// Seeds of a random test. Built with `SEED=n` it runs that one, with `SEEDS=n` so many from `first`.
pub fn seeds(first: u64, usually: u64) -> core::ops::Range<u64> {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    match (number(option_env!("SEED")), number(option_env!("SEEDS"))) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => first..first + count.unwrap_or(usually),
    }
}

/// What `lfs setstripe` asks for.
pub fn wish(stripe_size: u32, want_count: i32, want_first: i32) -> Layout {
    Layout { stripe_size, want_count, want_first, ..Layout::default() }
}

pub fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Cluster {
    /// An MGT, an MDT and some OSTs, serving.
    pub fn new(osts: usize) -> Cluster {
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
            together: false,
            names_moving: mdt::Settings::default().names_moving,
            may_stop: false,
            admits_lost: false,
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
    pub fn add_server(&mut self, name: &str) -> usize {
        let mut host = Host::new(self.new_store(name, false));
        host.prompt = true;
        self.servers.push(Server {
            name: name.to_owned(),
            nid: format!("unix:{name}").parse().unwrap(),
            host,
            serving: false,
        });
        self.servers.len() - 1
    }

    /// The store of a target is lost, and a new one takes its place. It is not started.
    pub fn replace(&mut self, name: &str) -> usize {
        let at = self.server(name);
        self.kill(at);
        let store = self.new_store(name, true);
        self.servers[at].lose_media(store);
        at
    }

    /// Everything is formatted anew while clients are mounted.
    pub fn begin_anew(&mut self) {
        self.format_anew();
        for at in 0..self.servers.len() {
            self.start(at);
        }
    }

    /// The same, and no target is started.
    pub fn format_anew(&mut self) {
        for at in 0..self.servers.len() {
            self.kill(at);
            let name = self.servers[at].name.clone();
            let store = self.new_store(&name, false);
            self.servers[at].lose_media(store);
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
            // Metadata targets other than MDT0000 take over its key.
            name_key: name.contains("MDT").then_some([if name.ends_with("0000") { 7 } else { 8 }; 16]),
            replaces,
        };
        let batch =
            if name.contains("MDT") { mdt::format(&format, &mdt::Root::default()) } else { target::format(&format) };
        engine.commit(1, &batch.seal(&schema::formats())).unwrap();
        engine
    }

    /// Whether a target serves.
    pub fn is_serving(&self, at: usize) -> bool {
        self.servers[at].serving
    }

    pub fn server(&self, name: &str) -> usize {
        self.servers.iter().position(|server| server.name == name).unwrap()
    }

    /// Starts a target's program.
    pub fn start(&mut self, at: usize) {
        self.start_quietly(at);
        self.run();
    }

    fn start_quietly(&mut self, at: usize) {
        let now = self.now;
        let abort_recovery_mdt = self.admits_lost;
        let server = &mut self.servers[at];
        let (name, nid) = (server.name.clone(), server.nid.clone());
        server.host.start(now, wall(now), |last, starts| {
            let options = target::Options {
                name: name.parse().ok(),
                nids: vec![nid],
                mgs: vec!["unix:MGS".parse().unwrap()],
                seed: starts * 100 + at as u64,
                abort_recovery_mdt,
                ..target::Options::default()
            };
            if name == "MGS" {
                Box::new(Target::new(Mgt::new(), options, last, now))
            } else if name.contains("MDT") {
                let settings = mdt::Settings { names_moving: self.names_moving, ..mdt::Settings::default() };
                Box::new(Target::new(Mdt::new(settings), options, last, now))
            } else {
                Box::new(Target::new(Ost::new(), options, last, now))
            }
        });
    }

    /// The objects that an object target has on its medium.
    pub fn objects(&self, name: &str) -> Vec<schema::Object> {
        let engine = &self.servers[self.server(name)].host.engine;
        let found = engine.scan(&schema::Object::all(), usize::MAX).unwrap().records;
        let open = |(key, sealed): &(store::Key, store::Value)| {
            schema::Object::decode_record(&schema::formats().open(key, sealed).unwrap()).unwrap()
        };
        found.iter().map(open).collect()
    }

    /// All records that a target has on its medium.
    pub fn records(&self, name: &str) -> Vec<(store::Key, store::Value)> {
        let engine = &self.servers[self.server(name)].host.engine;
        let found = engine.scan(&store::KeyRange::all(), usize::MAX).unwrap().records;
        let formats = schema::formats();
        found.into_iter().map(|(key, sealed)| (key.clone(), formats.open(&key, &sealed).unwrap())).collect()
    }

    /// kill -9 and a power failure: of what was not durable, chance decides what is kept.
    pub fn kill(&mut self, at: usize) {
        let mut rng = self.rng.fork();
        self.stop(at, |host| host.kill(&mut rng));
    }

    /// The same, and no change that was not durable is kept.
    pub fn kill_and_lose(&mut self, at: usize) {
        self.stop(at, Host::kill_and_lose);
    }

    /// The same, and every change that was on its way to the disk is kept.
    pub fn kill_and_keep(&mut self, at: usize) {
        while self.servers[at].host.media_turn(self.now) {}
        self.kill(at);
    }

    fn stop(&mut self, at: usize, how: impl FnOnce(&mut Host<Box<dyn Machine>>)) {
        let server = &mut self.servers[at];
        server.serving = false;
        server.host.at_media = self.at_media;
        how(&mut server.host);
        let ends: Vec<End> = self.links.keys().filter(|(who, _)| *who == Who::Server(at)).copied().collect();
        for end in ends {
            self.break_link(end);
        }
        self.run();
    }

    /// The metadata target dies, and when it starts again, the record of a name is lost.
    pub fn lose_entry(&mut self, dir: u64, text: &str) {
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
    pub fn lose_object(&mut self, server: &str, file: u64, stripe: u32) {
        let (fid, stripe) = (proto::Fid::from_ino(file).unwrap(), proto::StripeIndex(stripe));
        self.lose(server, |_| schema::Object::key(&schema::ObjectKey { fid, stripe }));
    }

    /// A target dies, and when it starts again, one of its records is another.
    pub fn change_record<R: Record>(&mut self, server: &str, id: &R::Id, change: impl FnOnce(&mut R)) {
        let at = self.server(server);
        self.kill(at);
        let (host, key) = (&mut self.servers[at].host, R::key(id));
        let sealed = host.engine.get(&key).unwrap().expect("the record");
        let mut record = R::decode_record(&schema::formats().open(&key, &sealed).unwrap()).unwrap();
        change(&mut record);
        host.edit(|batch| batch.put(key, record.encode_record()));
        self.start(at);
    }

    fn lose(&mut self, server: &str, key: impl FnOnce(&MemEngine) -> store::Key) {
        let at = self.server(server);
        self.kill(at);
        let host = &mut self.servers[at].host;
        let key = key(&host.engine);
        host.edit(|batch| batch.delete(key));
        self.start(at);
    }

    pub fn restart(&mut self, name: &str) {
        let at = self.server(name);
        self.kill(at);
        self.start(at);
    }

    /// The same, and nothing happens yet.
    pub fn restart_quietly(&mut self, name: &str) {
        let at = self.server(name);
        self.kill(at);
        self.start_quietly(at);
    }

    pub fn set_server_param(&mut self, server: &str, path: &str, value: &str) {
        let at = self.server(server);
        let now = self.now;
        self.servers[at].host.machine.as_mut().unwrap().set_param(now, path, value).unwrap();
    }

    pub fn try_server_param(&mut self, server: &str, path: &str, value: &str) -> Result<(), Errno> {
        let (at, now) = (self.server(server), self.now);
        self.servers[at].host.machine.as_mut().unwrap().set_param(now, path, value)
    }

    pub fn server_params(&self, server: &str, pattern: &str) -> Vec<(String, String)> {
        self.servers[self.server(server)].host.machine.as_ref().unwrap().get_params(pattern)
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
                self.servers[at].host.tell(now, target::Event::Closed { conn: target::ConnId(conn) });
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
    pub fn set_capacity(&mut self, server: &str, bytes: u64) {
        let at = self.server(server);
        self.servers[at].host.data.set_capacity(Some(bytes));
    }

    /// The next operation on a data file of an object target fails.
    pub fn fail_next(&mut self, server: &str, errno: Errno) {
        let at = self.server(server);
        self.servers[at].host.data.fail_next(errno);
    }

    /// Bytes that the store of a target may take from now on, besides what it holds.
    pub fn set_store_room(&mut self, server: &str, bytes: u64) {
        let at = self.server(server);
        let now = self.now;
        let host = &mut self.servers[at].host;
        host.engine.set_capacity(None);
        let space = host.engine.space().unwrap();
        host.engine.set_capacity(Some((1 << 40) - space.free - space.reserve + bytes));
        let space = host.engine.space().unwrap();
        host.tell(now, target::Event::Space(space));
        self.run();
    }

    /// Others fill the disk of a target's store, but for the bytes that it keeps.
    pub fn fill_store(&mut self, server: &str, kept: u64) {
        let at = self.server(server);
        self.servers[at].host.engine.set_reserve(kept);
        self.set_available(at, Some(0));
    }

    /// They remove what they have written.
    pub fn free_store(&mut self, server: &str) {
        let at = self.server(server);
        self.set_available(at, None);
    }

    fn set_available(&mut self, at: usize, available: Option<u64>) {
        let host = &mut self.servers[at].host;
        host.engine.set_available(available);
        let space = host.engine.space().unwrap();
        host.tell(self.now, target::Event::Space(space));
        self.run();
    }

    /// What the disk of an object target's data files has free, in bytes.
    pub fn set_free(&mut self, server: &str, free: u64) {
        self.set_disk(server, free, 0);
    }

    /// The same, for a disk of 1 TiB with this number.
    pub fn set_disk(&mut self, server: &str, free: u64, disk: u64) {
        let at = self.server(server);
        let (now, total) = (self.now, 1 << 40);
        let machine = self.servers[at].host.machine.as_mut().unwrap();
        machine.handle(now, target::Event::DataSpace(target::DataSpace { total, free, disk }));
        self.run();
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
    pub fn cut(&mut self, node: usize) {
        let ends: Vec<End> = self.links.keys().filter(|(who, _)| *who == Who::Node(node)).copied().collect();
        for end in ends {
            self.break_link(end);
        }
    }

    /// Loses what has one of these opcodes and goes to clients, or from them, until `tamper` is set again.
    pub fn lose_frames<const N: usize>(&mut self, to_clients: bool, opcodes: [Opcode; N]) {
        let opcodes = opcodes.map(|opcode| opcode as u16);
        self.tamper = Some(Box::new(move |to_client, _, frame| {
            let lost = to_client == to_clients && opcodes.contains(&frame.header.opcode);
            if lost { Vec::new() } else { vec![frame] }
        }));
    }

    /// Cuts every connection between two servers.
    pub fn cut_servers(&mut self, one: usize, other: usize) {
        let is_between = |(end, to): &(&End, &End)| end.0 == Who::Server(one) && to.0 == Who::Server(other);
        let ends: Vec<End> = self.links.iter().filter(is_between).map(|(end, _)| *end).collect();
        for end in ends {
            self.break_link(end);
        }
    }

    /// Answers to changes that are on their way to a client do not arrive.
    pub fn lose_answers_to(&mut self, node: usize) {
        let answers = |frame: &Frame| frame.header.has(proto::frame::flags::REPLY) && frame.header.tag.0 != 0;
        self.wire.retain(|((who, _), frame)| *who != Who::Node(node) || !answers(frame));
    }

    /// The client's machine is gone without a word.
    pub fn die(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.cut(node);
    }

    pub fn options(number: u64) -> Options {
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
            rename_wait: Duration::from_secs(30),
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
    pub fn begin_mount(&mut self, options: Options) -> usize {
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

    pub fn mount(&mut self) -> usize {
        let number = self.nodes.len() as u64;
        let node = self.begin_mount(Cluster::options(number));
        self.until(|c| c.nodes[node].mounted);
        node
    }
}

fn wall(now: Instant) -> i64 {
    1_700_000_000_000_000_000 + now.0 as i64
}
