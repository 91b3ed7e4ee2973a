//! What happens in a cluster, and when: frames arrive, machines act, media write, time passes.

use std::time::Duration;

use client::ConnId;
use client::api::{Effect, Event, Invalidation};
use proto::{Nid, Opcode};
use stdx::{Instant, Rng};
use target::Peer;

use super::{Cluster, End, Who, wall};

/// Most turns without a rest: more are a loop.
const TURNS_MAX: u32 = 300_000;

impl Cluster {
    /// One thing that can happen without time: a random one. Connections keep their order.
    pub fn one_step(&mut self, rng: &mut Rng) {
        let mut choices: Vec<u32> = (0..6).collect();
        while !choices.is_empty() {
            let choice = choices.swap_remove(rng.below(choices.len() as u64) as usize);
            let moved = match choice {
                0 | 1 => self.deliver(rng.below(1 << 20) as usize),
                2 => {
                    let at = rng.below(self.servers.len() as u64) as usize;
                    match self.poll_server(at) {
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
        self.servers[at].host.media_turn(self.now)
    }

    /// Everything that can happen without time.
    pub fn run(&mut self) {
        let mut turns = 0_u32;
        loop {
            // Messages take time, too: who waits for a moment may send many until it comes.
            turns += 1;
            assert!(turns < TURNS_MAX, "it never comes to rest; log: {:#?}", self.log);
            if turns.is_multiple_of(10_000) {
                self.time_is(self.now + Duration::from_millis(1));
            }
            let mut moved = false;
            for at in 0..self.servers.len() {
                while let Some(effect) = self.poll_server(at) {
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
            for _ in 0..if self.together { self.wire.len() } else { 1 } {
                let Some(((who, conn), frame)) = self.wire.pop_front() else { break };
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

    fn poll_server(&mut self, at: usize) -> Option<target::Effect> {
        let host = &mut self.servers[at].host;
        host.at_media = self.at_media;
        host.poll(self.now)
    }

    fn tell(&mut self, at: usize, event: target::Event) {
        self.servers[at].host.tell(self.now, event);
    }

    /// Time passes, to the next deadline at most.
    pub fn step(&mut self) {
        let mut next = self.now + Duration::from_secs(1);
        for server in &self.servers {
            next = server.host.deadline().map_or(next, |at| at.min(next));
        }
        for node in self.nodes.iter().filter(|node| node.alive) {
            next = node.machine.deadline().map_or(next, |at| at.min(next));
        }
        self.time_is(next.max(self.now + Duration::from_millis(1)));
        self.run();
    }

    /// A millisecond passes. What is due then has happened, but not what follows from it.
    pub fn moment(&mut self) {
        self.time_is(self.now + Duration::from_millis(1));
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

    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    pub fn until(&mut self, done: impl Fn(&Cluster) -> bool) {
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

    pub(super) fn dial(&mut self, from: End, nids: &[Nid]) -> Result<(), String> {
        let to = self.servers.iter().position(|server| server.host.machine.is_some() && nids.contains(&server.nid));
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
            target::Effect::Serving { .. } => self.servers[at].serving = true,
            target::Effect::Log(level, line) => self.log.push(format!("{} {level:?}: {line}", self.servers[at].name)),
            target::Effect::Stop { reason: Some(reason) } if self.may_stop => {
                self.servers[at].serving = false;
                self.log.push(format!("{} stops: {reason}", self.servers[at].name));
            }
            target::Effect::Stop { reason } => {
                panic!("{} stops: {reason:?}; log: {:#?}", self.servers[at].name, self.log)
            }
            other => unreachable!("the host does it: {other:?}"),
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
}
