//! One management target and those who talk to it, in one thread.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use prost::Message;
use proto::msg::{
    Config, ConfigGetReq, Param, RegisterRep, RegisterReq, SeqRangeRep, SeqRangeReq, SetParamReq, SetPoolKind,
    SetPoolRep, SetPoolReq,
};
use proto::{ClientUuid, Errno, Frame, Nid, Opcode};
use rpc::Link;
use rpc::client::{Import, ImportEffect, ImportEvent, Outgoing, RequestId};
use stdx::{Instant, Rng};
use store::{Engine, MemEngine};
use target::{ConnId, Effect, Event, Format, Options, Peer, Target};

use crate::Mgt;

struct Node {
    import: Import,
    link: Option<(Link, ConnId)>,
    replies: BTreeMap<RequestId, Result<Frame, Errno>>,
    notices: Vec<Config>,
    full: bool,
}

pub(super) struct World {
    pub target: Option<Target<Mgt>>,
    pub options: Options,
    engine: MemEngine,
    nodes: Vec<Node>,
    pub now: Instant,
    rng: Rng,
    pub log: Vec<String>,
    pub slow_medium: bool,
    in_flight: VecDeque<u64>,
    conns: BTreeMap<u64, usize>,
    next_conn: u64,
}

impl World {
    pub(super) fn new() -> World {
        let engine = MemEngine::new();
        let format = Format {
            name: "MGS".parse().unwrap(),
            uuid: 7,
            mgs: vec![],
            version: "test".into(),
            wall_ns: 1,
            params: vec![],
            name_key: None,
            replaces: false,
        };
        engine.commit(1, &target::format(&format).seal(&schema::formats())).unwrap();
        let mut world = World {
            target: None,
            options: Options::default(),
            engine,
            nodes: Vec::new(),
            now: Instant::ZERO + Duration::from_secs(1),
            rng: Rng::new(1),
            log: Vec::new(),
            slow_medium: false,
            in_flight: VecDeque::new(),
            conns: BTreeMap::new(),
            next_conn: 1,
        };
        world.start();
        world
    }

    pub(super) fn start(&mut self) {
        let last = self.engine.last_group().unwrap();
        self.target = Some(Target::new(Mgt::new(), self.options.clone(), last, self.now));
        self.tell(Event::Space(self.engine.space().unwrap()));
        self.tell(Event::WallClock(1_000_000_000));
        self.run();
    }

    /// The power fails and the target starts again.
    pub(super) fn crash(&mut self) {
        self.target = None;
        self.in_flight.clear();
        self.engine.crash(&mut self.rng);
        self.conns.clear();
        for node in &mut self.nodes {
            node.full = false;
            if let Some((link, _)) = node.link.take() {
                node.import.handle(self.now, ImportEvent::Closed(link));
            }
        }
        self.start();
    }

    /// Nothing is left but what is kept for removals.
    pub(super) fn disk_is_full(&mut self) {
        self.tell(Event::Space(store::Space {
            total: 2 << 20,
            free: 0,
            reserve: 1 << 20,
            at_once: 1 << 20,
            records: 0,
        }));
    }

    fn tell(&mut self, event: Event) {
        if let Some(target) = &mut self.target {
            target.handle(self.now, event);
        }
    }

    /// A target or a client: all are lightweight here.
    pub(super) fn node(&mut self) -> usize {
        self.node_named("")
    }

    pub(super) fn node_named(&mut self, description: &str) -> usize {
        let number = self.nodes.len();
        let nid: Nid = "unix:mgs".parse().unwrap();
        let uuid = ClientUuid(100 + number as u128);
        let mut config = rpc::client::Config::new(uuid, "MGS".into(), vec![nid], number as u64);
        config.lightweight = true;
        config.description = description.to_owned();
        let import = Import::new(config, self.now);
        self.nodes.push(Node { import, link: None, replies: BTreeMap::new(), notices: vec![], full: false });
        self.until(|world| world.nodes[number].full);
        number
    }

    pub(super) fn run(&mut self) {
        loop {
            let mut moved = false;
            while let Some(effect) = self.target.as_mut().and_then(Target::poll) {
                moved = true;
                self.effect(effect);
            }
            for number in 0..self.nodes.len() {
                while let Some(effect) = self.nodes[number].import.poll() {
                    moved = true;
                    self.node_effect(number, effect);
                }
            }
            if !self.slow_medium
                && let Some(group) = self.in_flight.pop_front()
            {
                self.engine.make_durable(group);
                self.tell(Event::Committed { group });
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    pub(super) fn step(&mut self) {
        let mut next = self.now + Duration::from_secs(1);
        next = self.target.as_ref().and_then(Target::deadline).map_or(next, |at| at.min(next));
        for node in &self.nodes {
            next = node.import.deadline().map_or(next, |at| at.min(next));
        }
        self.now = next.max(self.now + Duration::from_millis(1));
        self.tell(Event::Tick);
        for node in &mut self.nodes {
            node.import.handle(self.now, ImportEvent::Tick);
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
                let Some(&node) = self.conns.get(&conn.0) else { return };
                if let Some((link, _)) = self.nodes[node].link {
                    self.nodes[node].import.handle(self.now, ImportEvent::Frame(link, frame));
                }
            }
            Effect::Hangup { conn } => {
                if let Some(node) = self.conns.remove(&conn.0)
                    && let Some((link, _)) = self.nodes[node].link.take()
                {
                    self.nodes[node].import.handle(self.now, ImportEvent::Closed(link));
                }
                self.tell(Event::Closed { conn });
            }
            Effect::Dial { .. } => panic!("an MGS calls nobody"),
            Effect::Load(load) => {
                let done = load.run(&self.engine);
                self.tell(Event::Loaded(done));
            }
            Effect::Commit(group) => {
                self.engine.begin_commit(group.number(), group.seal()).unwrap();
                self.in_flight.push_back(group.number());
            }
            Effect::Data { .. } => panic!("an MGS has no data files"),
            Effect::Serving { .. } => {}
            Effect::Log(level, line) => self.log.push(format!("{level:?}: {line}")),
            Effect::Stop { reason } => panic!("the target stops: {reason:?}"),
        }
    }

    fn node_effect(&mut self, number: usize, effect: ImportEffect) {
        let node = &mut self.nodes[number];
        match effect {
            ImportEffect::Dial { link, .. } => {
                let conn = ConnId(self.next_conn);
                self.next_conn += 1;
                self.conns.insert(conn.0, number);
                node.link = Some((link, conn));
                node.import.handle(self.now, ImportEvent::Dialled(link));
                self.tell(Event::Accepted { conn, peer: Peer::default() });
            }
            ImportEffect::Send { frame, .. } => {
                if let Some((_, conn)) = node.link {
                    self.tell(Event::Frame { conn, frame });
                }
            }
            ImportEffect::Hangup(link) => {
                if let Some((_, conn)) = node.link.take_if(|(l, _)| *l == link) {
                    self.conns.remove(&conn.0);
                    self.tell(Event::Closed { conn });
                }
            }
            ImportEffect::Reply { id, result, .. } => {
                node.replies.insert(id, result);
            }
            ImportEffect::Notice(frame) => {
                assert_eq!(frame.header.opcode, Opcode::MgsConfigChanged as u16);
                node.notices.push(frame.decode().unwrap());
            }
            ImportEffect::Full { .. } => node.full = true,
            ImportEffect::ReplayLocks { .. } => node.import.locks_to_replay(self.now, vec![]),
            ImportEffect::Refused { errno, reason } => self.log.push(format!("refused: {errno:?} {reason}")),
            ImportEffect::Log(line) | ImportEffect::Loss(line) => self.log.push(line),
            _ => {}
        }
    }

    // --- requests ---

    pub(super) fn send(&mut self, node: usize, opcode: Opcode, body: &impl Message) -> RequestId {
        let id = self.nodes[node].import.submit(self.now, Outgoing::new(opcode, body));
        self.run();
        id
    }

    pub(super) fn is_answered(&self, node: usize, id: RequestId) -> bool {
        self.nodes[node].replies.contains_key(&id)
    }

    pub(super) fn answer(&mut self, node: usize, id: RequestId) -> Frame {
        self.until(|world| world.is_answered(node, id));
        self.nodes[node].replies.remove(&id).unwrap().unwrap()
    }

    pub(super) fn call(&mut self, node: usize, opcode: Opcode, body: &impl Message) -> Result<Frame, Errno> {
        let id = self.send(node, opcode, body);
        let frame = self.answer(node, id);
        Errno::from_status(frame.header.status).map(|()| frame)
    }

    /// Registers; a refusal comes with its sentence.
    pub(super) fn register(&mut self, node: usize, req: &RegisterReq) -> Result<u64, (Errno, String)> {
        let id = self.send(node, Opcode::MgsRegister, req);
        let frame = self.answer(node, id);
        let rep: RegisterRep = frame.decode().unwrap();
        Errno::from_status(frame.header.status).map(|()| rep.config_version).map_err(|errno| (errno, rep.reason))
    }

    /// The connection of a node ends, and it does not come back.
    pub(super) fn cut(&mut self, node: usize) {
        let (_, conn) = self.nodes[node].link.take().unwrap();
        self.conns.remove(&conn.0);
        self.tell(Event::Closed { conn });
    }

    /// What the target is told of replacements.
    pub(super) fn registered(&mut self, node: usize, req: &RegisterReq) -> u32 {
        let id = self.send(node, Opcode::MgsRegister, req);
        let frame = self.answer(node, id);
        let rep: RegisterRep = frame.decode().unwrap();
        assert_eq!((frame.header.status, rep.reason.as_str()), (0, ""));
        rep.replaced
    }

    pub(super) fn config(&mut self, node: usize, fsname: &str) -> Result<Config, Errno> {
        let frame = self.call(node, Opcode::MgsConfigGet, &ConfigGetReq { fsname: fsname.into() })?;
        Ok(frame.decode().unwrap())
    }

    pub(super) fn set_param(
        &mut self,
        node: usize,
        fsname: &str,
        path: &str,
        value: Option<&str>,
    ) -> Result<(), Errno> {
        let param = Param { path: path.into(), value: value.unwrap_or_default().into() };
        let req = SetParamReq { fsname: fsname.into(), param: Some(param), delete: value.is_none() };
        self.call(node, Opcode::MgsSetParam, &req).map(drop)
    }

    pub(super) fn set_pool(
        &mut self,
        node: usize,
        kind: SetPoolKind,
        pool: &str,
        osts: &[u32],
    ) -> Result<(), (Errno, String)> {
        let req = SetPoolReq { fsname: "fs".into(), kind: kind as i32, pool: pool.into(), osts: osts.to_vec() };
        let request = self.send(node, Opcode::MgsSetPool, &req);
        let frame = self.answer(node, request);
        let reason = frame.decode::<SetPoolRep>().unwrap_or_default().reason;
        Errno::from_status(frame.header.status).map_err(|errno| (errno, reason))
    }

    pub(super) fn sequences(&mut self, node: usize, target: &str) -> Result<SeqRangeRep, Errno> {
        let frame = self.call(node, Opcode::MgsSeqRange, &SeqRangeReq { target: target.into() })?;
        Ok(frame.decode().unwrap())
    }

    /// What a node was told since it was last asked: file system and version.
    pub(super) fn told(&mut self, node: usize) -> Vec<(String, u64)> {
        self.run();
        let notices = core::mem::take(&mut self.nodes[node].notices);
        notices.into_iter().map(|notice| (notice.fsname, notice.version)).collect()
    }
}
