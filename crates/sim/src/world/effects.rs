//! Turns effects of machines into events, and delivers events to machines.

use core::time::Duration;

use client::api as capi;
use proto::{Errno, Frame};
use stdx::Instant;
use target::{ConnId, DataOp, DataResult, Effect, Event, LogLevel, Peer};

use super::net::Node;
use super::partition::Passage;
use super::trap::Strike;
use super::{Canary, World, WorldEvent, space, wire};
use crate::sched::WriteBackProgress;
use crate::trace::{frame_line, frame_word};

/// After this time a mount checks again whether a signal's call has arrived.
const SIGNAL_AGAIN: Duration = Duration::from_millis(1);

impl World {
    pub(super) fn dispatch(&mut self, what: WorldEvent) {
        match what {
            WorldEvent::Frame { conn, side, frame } => self.frame_arrives(conn, side, frame),
            WorldEvent::Accepted { conn } => self.accepted(conn),
            WorldEvent::Dialled { conn } => self.dialled(conn),
            WorldEvent::DialFailed { node, life, number } => {
                if self.lives(node, life) {
                    self.trace.note(self.now, &[2, number], || format!("{node:?} dial {number:x} failed"));
                    self.deliver_dial_failed(node, number);
                }
            }
            WorldEvent::Closed { conn, side } => self.closed(conn, side),
            WorldEvent::Load { server, life, load } => {
                if self.lives(Node::Server(server), life) {
                    let done = load.run(&self.servers[server].engine);
                    let delay = self.plan.load.draw(&mut self.rng) + self.servers[server].slow;
                    self.after(delay, WorldEvent::Loaded { server, life, done });
                }
            }
            WorldEvent::Loaded { server, life, done } => self.reach_server(server, life, 3, Event::Loaded(done)),
            WorldEvent::Commit { server, life, group } => self.commit(server, life, group),
            WorldEvent::Durable { server, life, group } => {
                if self.lives(Node::Server(server), life) {
                    self.servers[server].engine.make_durable(group);
                    self.trace.note(self.now, &[4, server as u64, group], || {
                        format!("{} group {group} is durable", self.servers[server].name)
                    });
                    let delay = Duration::from_nanos(self.rng.below(50_000));
                    self.after(delay, WorldEvent::Committed { server, life, group, failed: None });
                    self.maybe_crash_at_commit(server);
                }
            }
            WorldEvent::Committed { server, life, group, failed } => {
                let event = match failed {
                    None => {
                        self.report_space(server, life);
                        Event::Committed { group }
                    }
                    Some(error @ store::EngineError::Full { .. }) => Event::CommitDelayed { group, reason: error },
                    Some(error) => Event::CommitFailed { group, reason: error },
                };
                self.reach_server(server, life, 5, event);
            }
            WorldEvent::Data { server, life, id, op } => {
                if self.lives(Node::Server(server), life) {
                    let forgets = self.canary == Canary::ForgetSyncs && matches!(op, DataOp::Sync { .. });
                    let own = &mut self.servers[server];
                    let mut result = match () {
                        () if forgets => DataResult::Done,
                        () if matches!(op, DataOp::Sync { .. }) && core::mem::take(&mut own.sync_fails) => {
                            own.disk_failed = true;
                            DataResult::Failed(Errno::EIO)
                        }
                        () => own.change_data(&op),
                    };
                    if let (
                        Canary::DropWhenFull,
                        DataOp::Write { offset, data, .. },
                        DataResult::Failed(Errno::ENOSPC),
                    ) = (self.canary, &op, &result)
                    {
                        result = DataResult::Size(Some((offset + data.len() as u64, 8)));
                    }
                    self.trace.note(self.now, &[6, server as u64, id.0], || {
                        format!("{} data {} -> {}", self.servers[server].name, show_op(&op), show_result(&result))
                    });
                    let delay = Duration::from_nanos(self.rng.below(20_000));
                    self.after(delay, WorldEvent::DataDone { server, life, id, result });
                }
            }
            WorldEvent::DataDone { server, life, id, result } => {
                self.reach_server(server, life, 7, Event::DataDone { id, result });
            }
            WorldEvent::Rest { server, life } => self.rest(server, life),
            WorldEvent::Tick { node, serial } => self.tick(node, serial),
            WorldEvent::Second { node, life } => self.second(node, life),
            WorldEvent::Call { client, id, mut cred, mut call } => {
                self.calls_in_flight.remove(&id);
                if self.mounts[client].machine.is_some() {
                    self.trace.note(self.now, &[8, client as u64, id], || {
                        format!("client {client} call {id} of {}: {}", cred.uid, crate::sched::brief(&call))
                    });
                    if self.canary == Canary::GrantLocks
                        && matches!(call, capi::Call::Setlk { .. })
                        && self.rng.chance(1, 2)
                    {
                        return self.push(self.now, WorldEvent::Answer { id, result: Ok(capi::Answer::Done) });
                    }
                    if self.canary == Canary::LoseAppends
                        && let capi::Call::Write { data, .. } = &call
                        && self.rng.chance(1, 4)
                    {
                        let result = Ok(capi::Answer::Written(data.len() as u32));
                        return self.push(self.now, WorldEvent::Answer { id, result });
                    }
                    if self.alter_call(&mut cred, &mut call) {
                        return self.push(self.now, WorldEvent::Answer { id, result: Ok(capi::Answer::Done) });
                    }
                    self.note_call(client, id, &call);
                    self.note_migrate(id, &call);
                    if self.canary == Canary::Stale
                        && matches!(call, capi::Call::Getattr { .. } | capi::Call::Lookup { .. })
                        && self.rng.chance(1, 10)
                    {
                        return self.push(self.now, WorldEvent::Answer { id, result: Err(Errno::ESTALE) });
                    }
                    self.send_wall_clock(client);
                    self.reach_client(client, capi::Event::Call { id: capi::CallId(id), cred, call });
                }
            }
            WorldEvent::Answer { id, mut result } => {
                if let (Canary::HideNames, Ok(capi::Answer::Entries(entries))) = (self.canary, &mut result)
                    && self.rng.chance(1, 4)
                {
                    // Entries 0 and 1 are `.` and `..`; the next call would return the last one again.
                    if entries.len() > 3 {
                        entries.remove(2);
                    }
                }
                self.trace.note(self.now, &[9, id], || format!("answer {id}: {}", show_answer(&result)));
                self.note_answer(id);
                let result = self.judge_migrate(id, result);
                self.sched.answer(id, result.map_err(crate::sched::Fail::Errno));
            }
            // A signal may overtake its call. It is delivered once the call has arrived.
            WorldEvent::Interrupt { client, id, fatal } if self.calls_in_flight.contains(&id) => {
                self.after(SIGNAL_AGAIN, WorldEvent::Interrupt { client, id, fatal });
            }
            WorldEvent::Interrupt { client, id, fatal } => {
                self.trace
                    .note(self.now, &[10, client as u64, id], || format!("client {client} call {id} interrupted"));
                let id = capi::CallId(id);
                let event = if fatal { capi::Event::Abandon { id } } else { capi::Event::Interrupt { id } };
                self.reach_client(client, event);
            }
            WorldEvent::Invalidate { client, mut what } => {
                self.trace.note(self.now, &[11, client as u64], || format!("kernel {client}: {what:?}"));
                if self.canary == Canary::KeepNames {
                    let (capi::Invalidation::Inode { token, .. } | capi::Invalidation::Entry { token, .. }) = what;
                    return self.reach_client(client, capi::Event::Invalidated { token, known: true });
                }
                // The kernel drops the attributes but keeps the pages.
                if let (Canary::KeepPages, capi::Invalidation::Inode { length, .. }) = (self.canary, &mut what) {
                    *length = 0;
                }
                self.mounts[client].kernel.forget(what);
            }
            WorldEvent::LetGo { client, nodes } => {
                self.trace.note(self.now, &[40, client as u64], || format!("kernel {client} lets go: {nodes:?}"));
                self.mounts[client].kernel.let_go(&nodes);
                self.reach_client(client, capi::Event::Asked);
            }
            WorldEvent::StopReceiving { conn, side } => self.net.closed(conn, side),
            WorldEvent::Wake { task } => self.sched.wake(task),
            WorldEvent::Start { server } => self.start(server),
            WorldEvent::Add { server } => {
                self.servers[server].awaited = false;
                self.start(server);
            }
            WorldEvent::Kill { server } => {
                let power = self.trap.is_some_and(|trap| trap.strike == Strike::Power(server));
                self.kill(server, power);
            }
            WorldEvent::Die { client } => self.kill_client(client),
            WorldEvent::Fault(fault) => self.strike(fault),
            WorldEvent::Lie => self.lie(),
        }
    }

    pub(super) fn lives(&self, node: Node, life: u32) -> bool {
        match node {
            Node::Server(server) => self.servers[server].machine.is_some() && self.servers[server].life == life,
            Node::Client(client) => self.mounts[client].machine.is_some(),
            Node::Liar => self.liar.as_ref().is_some_and(|liar| liar.works),
            Node::Raw => true,
        }
    }

    pub(super) fn life_of(&self, node: Node) -> u32 {
        match node {
            Node::Server(server) => self.servers[server].life,
            Node::Client(_) | Node::Liar | Node::Raw => 0,
        }
    }

    fn reach_server(&mut self, server: usize, life: u32, kind: u64, event: Event) {
        if !self.lives(Node::Server(server), life) {
            return;
        }
        self.trace.note(self.now, &[kind, server as u64], || match &event {
            Event::Loaded(done) => format!("{} {:?} loaded", self.servers[server].name, done.id),
            Event::DataDone { id, .. } => format!("{} {id:?} done", self.servers[server].name),
            other => format!("{} {other:?}", self.servers[server].name),
        });
        let now = self.time_of(Node::Server(server));
        if let Some(machine) = &mut self.servers[server].machine {
            machine.handle(now, event);
        }
        self.pump(Node::Server(server));
    }

    pub(super) fn reach_client(&mut self, client: usize, event: capi::Event) {
        let now = self.time_of(Node::Client(client));
        if let Some(machine) = &mut self.mounts[client].machine {
            machine.handle(now, event);
        }
        self.pump(Node::Client(client));
    }

    fn start(&mut self, server: usize) {
        let own = &self.servers[server];
        if own.machine.is_some() || own.retired || own.awaited {
            return;
        }
        self.new_clock(Node::Server(server));
        let (seed, now, wall) = (self.rng.u64(), self.time_of(Node::Server(server)), self.wall_ns());
        let patient = self.canary == Canary::Patient;
        self.servers[server].start(&self.plan, patient, seed, now);
        let life = self.servers[server].life;
        self.trace.note(now, &[12, server as u64], || format!("{} starts, life {life}", self.servers[server].name));
        let space = space(&self.servers[server]);
        if let Some(machine) = &mut self.servers[server].machine {
            machine.handle(now, Event::WallClock(wall));
            space.for_each(|event| machine.handle(now, event));
        }
        self.after(Duration::from_secs(1), WorldEvent::Second { node: Node::Server(server), life });
        self.pump(Node::Server(server));
    }

    fn second(&mut self, node: Node, life: u32) {
        if !self.lives(node, life) {
            return;
        }
        let (now, wall) = (self.time_of(node), self.wall_ns());
        match node {
            Node::Server(server) => {
                let space = space(&self.servers[server]);
                if let Some(machine) = &mut self.servers[server].machine {
                    machine.handle(now, Event::WallClock(wall));
                    space.for_each(|event| machine.handle(now, event));
                }
                self.limit_liar(server);
            }
            Node::Client(client) => {
                self.send_wall_clock(client);
                self.note_disturbed();
            }
            Node::Liar | Node::Raw => {}
        }
        self.after(Duration::from_secs(1), WorldEvent::Second { node, life });
        self.pump(node);
    }

    fn tick(&mut self, node: Node, serial: u64) {
        let now = self.time_of(node);
        match node {
            Node::Server(server) => {
                let server = &mut self.servers[server];
                if server.timer_serial != serial {
                    return;
                }
                server.timer = None;
                if let Some(machine) = &mut server.machine {
                    machine.handle(now, Event::Tick);
                }
            }
            Node::Client(client) => {
                let mount = &mut self.mounts[client];
                if mount.timer_serial != serial {
                    return;
                }
                mount.timer = None;
                if let Some(machine) = &mut mount.machine {
                    machine.handle(now, capi::Event::Tick);
                }
            }
            Node::Liar | Node::Raw => {}
        }
        self.trace.note(self.now, &[13, serial], || format!("{node:?} tick"));
        self.pump(node);
    }

    /// Carries out the effects of a machine, and schedules its next tick.
    pub(super) fn pump(&mut self, node: Node) {
        match node {
            Node::Server(server) => {
                while let Some(effect) = self.servers[server].machine.as_mut().and_then(|m| m.poll()) {
                    self.server_effect(server, effect);
                }
                let deadline = self.servers[server].machine.as_ref().and_then(|m| m.deadline());
                let own = &self.servers[server];
                if let Some(serial) = self.rearm(node, deadline, own.timer, own.timer_serial) {
                    let own = &mut self.servers[server];
                    (own.timer, own.timer_serial) = (deadline, serial);
                }
            }
            Node::Client(client) => {
                if let Some((made, acknowledged)) =
                    self.mounts[client].machine.as_ref().map(client::Client::write_back_progress)
                {
                    self.sched.note_progress(client, WriteBackProgress { made, acknowledged });
                }
                self.note_mdts();
                while let Some(effect) = self.mounts[client].machine.as_mut().and_then(client::Client::poll) {
                    self.client_effect(client, effect);
                }
                let deadline = self.mounts[client].machine.as_ref().and_then(client::Client::deadline);
                let own = &self.mounts[client];
                if let Some(serial) = self.rearm(node, deadline, own.timer, own.timer_serial) {
                    let own = &mut self.mounts[client];
                    (own.timer, own.timer_serial) = (deadline, serial);
                }
            }
            Node::Liar | Node::Raw => {}
        }
    }

    fn rearm(&mut self, node: Node, wanted: Option<Instant>, armed: Option<Instant>, serial: u64) -> Option<u64> {
        if wanted == armed {
            return None;
        }
        if let Some(at) = wanted {
            // A tick is always slightly late.
            let at = self.when(node, at).max(self.now) + Duration::from_nanos(1 + self.rng.below(20_000));
            self.push(at, WorldEvent::Tick { node, serial: serial + 1 });
        }
        Some(serial + 1)
    }

    fn server_effect(&mut self, server: usize, effect: Effect) {
        let node = Node::Server(server);
        let life = self.servers[server].life;
        match effect {
            Effect::Send { conn, frame } => self.send(node, conn.0, frame),
            Effect::Hangup { conn } => {
                if let Some((conn, side)) = self.net.find(node, conn.0) {
                    let deaf = self.hang_up(conn, side);
                    self.push(deaf, WorldEvent::Closed { conn, side });
                }
            }
            Effect::Dial { conn, nids } => self.dial(node, conn.0, &nids),
            Effect::Load(load) => {
                let delay = self.plan.load.draw(&mut self.rng);
                self.after(delay, WorldEvent::Load { server, life, load });
            }
            Effect::Commit(_) if self.servers[server].withheld => {}
            Effect::Commit(group) => {
                let delay = self.plan.commit.draw(&mut self.rng);
                let at = (self.now + delay / 2 + self.servers[server].slow).max(self.servers[server].committing);
                self.servers[server].committing = at;
                self.push(at, WorldEvent::Commit { server, life, group });
            }
            Effect::Data { id, op } => {
                // A sync takes as long as a commit.
                let span = if matches!(op, DataOp::Sync { .. }) { self.plan.commit } else { self.plan.data };
                let delay = span.draw(&mut self.rng);
                let own = &mut self.servers[server];
                let mut at = self.now + delay;
                if !own.slow.is_zero() {
                    // A slow disk executes one operation after another.
                    own.slow_until = own.slow_until.max(self.now) + own.slow;
                    at = at.max(own.slow_until);
                }
                for file in op.files() {
                    at = at.max(own.busy.get(file).copied().unwrap_or(Instant::ZERO) + Duration::from_nanos(1));
                }
                for file in op.files() {
                    own.busy.insert(*file, at);
                }
                self.push(at, WorldEvent::Data { server, life, id, op });
            }
            Effect::Serving { name } => {
                self.trace.note(self.now, &[14, server as u64], || format!("{name} serves"));
                self.servers[server].serving = true;
            }
            Effect::Log(level, line) => {
                self.trace.say(self.now, || format!("{} says {level:?}: {line}", self.servers[server].name));
                self.note_log_line(node, &line);
                // Worlds never put an older copy of a disk back, so a target that suspects one is wrong, unless a peer lied to it
                // or a story does it.
                self.judge_eviction(server, &line);
                self.find_eviction(server, &line);
                if line.starts_with("recovery is over") {
                    self.recovered.push((self.now, self.servers[server].name.clone()));
                }
                if line.contains("older copy") && !line.contains("liar (") && !self.raw.may_lie() {
                    self.fail(format!("target {} says: {line}", self.servers[server].name));
                }
                if level == LogLevel::Error {
                    self.faults.counts.errors_logged += 1;
                }
            }
            Effect::Stop { reason } => {
                self.stopped(server, reason.as_ref());
            }
        }
    }

    fn commit(&mut self, server: usize, life: u32, group: store::Group) {
        if !self.lives(Node::Server(server), life) {
            return;
        }
        let number = group.number();
        let mut records = group.seal();
        if self.canary == Canary::ForgetChanges {
            for (key, value) in &mut records {
                self.forget_mode(server, key, value);
            }
        }
        match self.servers[server].engine.begin_commit(number, records) {
            Ok(()) => {
                drop(group);
                self.trace.note(self.now, &[15, server as u64, number], || {
                    format!("{} writes group {number}", self.servers[server].name)
                });
                let delay = self.plan.commit.draw(&mut self.rng);
                let at = (self.now + delay / 2).max(self.servers[server].committing) + Duration::from_nanos(1);
                self.servers[server].committing = at;
                self.push(at, WorldEvent::Durable { server, life, group: number });
                self.maybe_crash_at_commit(server);
            }
            Err(error) => {
                let failed = Some(error);
                self.push(self.now, WorldEvent::Committed { server, life, group: number, failed });
            }
        }
    }

    fn client_effect(&mut self, client: usize, effect: capi::Effect) {
        let node = Node::Client(client);
        match effect {
            capi::Effect::Dial { conn, nids } => self.dial(node, conn.0, &nids),
            capi::Effect::Send { conn, frame } => self.send(node, conn.0, frame),
            capi::Effect::Hangup { conn } => {
                if let Some((conn, side)) = self.net.find(node, conn.0) {
                    let deaf = self.hang_up(conn, side);
                    self.push(deaf, WorldEvent::StopReceiving { conn, side });
                }
            }
            capi::Effect::Answer { id, result } => {
                let delay = Duration::from_nanos(self.rng.below(5_000));
                self.after(delay, WorldEvent::Answer { id: id.0, result });
            }
            capi::Effect::Invalidate(what) => {
                // No call waits for the kernel to drop the page of a waiting write. By the time the write continues, the kernel
                // has long dropped the page, unless the write has locked it.
                let behind_write = matches!(what, capi::Invalidation::Inode { token: 0, length: 1..=4096, .. });
                let delay = if behind_write { Duration::ZERO } else { self.plan.kernel.draw(&mut self.rng) };
                if let capi::Invalidation::Entry { parent, name, .. } = &what
                    && self.plan.groups > 0
                    && self.canary != Canary::KeepNames
                {
                    self.mounts[client].kernel.will_forget(*parent, name);
                }
                self.after(delay, WorldEvent::Invalidate { client, what });
            }
            capi::Effect::LetGo(nodes) => {
                let delay = self.plan.kernel.draw(&mut self.rng);
                self.after(delay, WorldEvent::LetGo { client, nodes });
            }
            capi::Effect::Mounted => {
                self.trace.note(self.now, &[16, client as u64], || format!("client {client} is mounted"));
                self.mounts[client].mounted = true;
            }
            capi::Effect::MountWaits { on } => {
                self.trace.say(self.now, || format!("client {client} waits to mount: {}", on.join("; ")));
            }
            capi::Effect::MountFailed { .. } if self.mounts[client].leaving => self.mounts[client].unmounted = true,
            capi::Effect::MountFailed { .. } if self.root_was_damaged(self.mounts[client].since) => {
                self.trace.say(self.now, || format!("client {client} cannot mount, because the root is damaged"));
                self.push(self.now, WorldEvent::Die { client });
            }
            capi::Effect::MountFailed { reason } => self.fail(format!("client {client} could not mount: {reason}")),
            capi::Effect::Unmounted { result } => {
                self.judge_unmount(client, result);
                self.trace.note(self.now, &[17, client as u64], || format!("client {client} is unmounted"));
                self.mounts[client].unmounted = true;
                self.sched.left(client);
            }
            capi::Effect::Jobs(_) => {}
            capi::Effect::Log(_, line) => {
                self.trace.say(self.now, || format!("client {client} says: {line}"));
                if line.contains("without end") {
                    self.fail(format!("client {client} says: {line}"));
                }
                self.note_log_line(node, &line);
                self.find_loss(&line);
                self.find_own_eviction(client, &line);
            }
        }
    }

    /// Reports to clients which invalidations their kernels have carried out.
    pub(super) fn deliver_invalidated(&mut self) {
        for client in 0..self.mounts.len() {
            for (token, known) in self.mounts[client].kernel.take_forgotten() {
                self.trace.note(self.now, &[18, client as u64, token], || format!("kernel {client} forgot {token}"));
                self.reach_client(client, capi::Event::Invalidated { token, known });
            }
        }
    }

    // --- the network ---

    pub(super) fn dial(&mut self, node: Node, number: u64, nids: &[proto::Nid]) {
        let life = self.life_of(node);
        let delay = self.plan.network.draw(&mut self.rng);
        let target = nids
            .iter()
            .find_map(|nid| self.servers.iter().position(|server| server.nid == *nid && server.machine.is_some()));
        match target {
            Some(server) if self.is_cut_off(node, Node::Server(server)) => {
                self.after(super::partition::DIAL_TIME, WorldEvent::DialFailed { node, life, number });
            }
            Some(server) if !self.faults.dial_fails() => {
                let to = (Node::Server(server), self.servers[server].life);
                let conn = self.net.connect((node, life, number), to);
                self.net.end(conn, 1).last = self.now + delay;
                self.push(self.now + delay, WorldEvent::Accepted { conn });
                let back = self.now + delay + self.plan.network.draw(&mut self.rng);
                self.net.end(conn, 0).last = back;
                self.push(back, WorldEvent::Dialled { conn });
            }
            _ => self.after(delay, WorldEvent::DialFailed { node, life, number }),
        }
    }

    fn accepted(&mut self, conn: usize) {
        let end = self.net.get(conn).ends[1].clone();
        let Node::Server(server) = end.node else { return };
        if !self.lives(end.node, end.life) || end.dead_from.is_some() {
            // The server died in between, or the path to it is cut: the dialler learns it.
            self.net.end(conn, 0).dead_from.get_or_insert(self.now);
            return;
        }
        self.net.opened(conn, 1);
        self.trace
            .note(self.now, &[19, conn as u64], || format!("{} accepts connection {conn}", self.servers[server].name));
        let dialler = &self.net.get(conn).ends[0];
        let ours = self.is_ours(dialler.node, dialler.number);
        let peer = Peer { address: format!("{:?}:{conn}", dialler.node), uid: Some(0), local: true, ours };
        let now = self.time_of(end.node);
        if let Some(machine) = &mut self.servers[server].machine {
            machine.handle(now, Event::Accepted { conn: ConnId(end.number), peer });
        }
        self.pump(end.node);
    }

    fn dialled(&mut self, conn: usize) {
        let end = self.net.get(conn).ends[0].clone();
        if !self.lives(end.node, end.life) {
            return;
        }
        if end.dead_from.is_some() {
            self.deliver_dial_failed(end.node, end.number);
            return;
        }
        self.net.opened(conn, 0);
        self.trace.note(self.now, &[20, conn as u64], || format!("{:?} has connection {conn}", end.node));
        match end.node {
            Node::Server(server) => {
                let now = self.time_of(end.node);
                if let Some(machine) = &mut self.servers[server].machine {
                    machine.handle(now, Event::Dialled { conn: ConnId(end.number) });
                }
                self.pump(end.node);
            }
            Node::Client(client) => self.reach_client(client, capi::Event::Dialled { conn: capi::ConnId(end.number) }),
            Node::Liar => self.liar_dialled(end.number),
            Node::Raw => self.raw_dialled(end.number),
        }
    }

    fn deliver_dial_failed(&mut self, node: Node, number: u64) {
        let reason = "connection refused".to_owned();
        match node {
            Node::Server(server) => {
                let now = self.time_of(node);
                if let Some(machine) = &mut self.servers[server].machine {
                    machine.handle(now, Event::DialFailed { conn: ConnId(number), reason });
                }
                self.pump(node);
            }
            Node::Client(client) => {
                self.reach_client(client, capi::Event::DialFailed { conn: capi::ConnId(number), reason });
            }
            Node::Liar => self.liar_closed(number),
            Node::Raw => self.raw_closed(number),
        }
    }

    pub(super) fn send(&mut self, node: Node, number: u64, frame: Frame) {
        let Some((conn, from)) = self.net.find(node, number) else { return };
        let side = 1 - from;
        if self.net.get(conn).ends[from].hung_up {
            return;
        }
        let to = self.net.get(conn).ends[side].node;
        if self.plan.seed.is_multiple_of(wire::SEEDS)
            && let Err(what) = wire::through(&frame)
        {
            self.fail(what);
        }
        if let (Node::Server(_), Node::Server(_) | Node::Client(_)) = (node, to)
            && let Err(what) = self.spy.answers(node, to, &frame)
        {
            self.fail(what);
        }
        if let (Node::Server(_), Node::Client(_)) = (node, to)
            && let Err(what) = self.spy.sends(node, to, &frame)
        {
            self.fail(what);
        }
        if self.canary != Canary::None && self.swallow(conn, side, &frame) {
            return;
        }
        let (sender, receiver) = (node, self.net.get(conn).ends[side].node);
        let passage = self.passage(conn, sender, receiver);
        if passage == Passage::Lost {
            self.trace.say(self.now, || format!("cut off on connection {conn}: {}", frame_line(&frame)));
            return;
        }
        if self.canary == Canary::TwoOutcomes
            && frame.header.transno.0 != 0
            && frame.header.opcode == proto::Opcode::MdsReint as u16
            && self.rng.chance(1, 20)
        {
            let mut again = frame.clone();
            again.header.transno.0 += 1;
            let end = self.net.end(conn, side);
            end.last = self.now.max(end.last) + Duration::from_micros(50);
            let at = end.last;
            self.push(at, WorldEvent::Frame { conn, side, frame: again });
        }
        let fate = self.trap_frame().unwrap_or_else(|| self.faults.frame(self.now));
        if let Some(delay) = fate.cut_after {
            self.after(delay, WorldEvent::Fault(super::faults::Fault::Cut { conn }));
        }
        if fate.copies == 0 {
            self.trace.say(self.now, || format!("lost on connection {conn}: {}", frame_line(&frame)));
        }
        for _ in 0..fate.copies {
            let delay = self.plan.network.draw(&mut self.rng) + fate.late;
            let end = self.net.end(conn, side);
            let mut at = (self.now + delay).max(end.last + Duration::from_nanos(1));
            if let Passage::Held(until) = passage {
                at = at.max(until + delay);
            }
            end.last = at;
            self.push(at, WorldEvent::Frame { conn, side, frame: frame.clone() });
        }
    }

    fn frame_arrives(&mut self, conn: usize, side: usize, frame: Frame) {
        let end = self.net.get(conn).ends[side].clone();
        if !end.open || !self.lives(end.node, end.life) || end.dead_from.is_some_and(|at| at <= self.now) {
            return;
        }
        let from = self.net.get(conn).ends[1 - side].node;
        self.trace.note(self.now, &[21, conn as u64, side as u64, frame_word(&frame)], || {
            format!("{from:?} -> {:?} ({conn}): {}", end.node, frame_line(&frame))
        });
        let by_hand = [from, end.node].iter().any(|node| matches!(node, Node::Liar | Node::Raw));
        if !by_hand
            && !end.hung_up
            && let Err(what) = self.spy.arrives(conn, from, end.node, &frame)
        {
            self.fail(what);
        }
        if !end.hung_up {
            self.note_connected(from, end.node, &frame);
        }
        match end.node {
            Node::Server(server) => {
                let (now, header) = (self.time_of(end.node), frame.header);
                if let Some(machine) = &mut self.servers[server].machine {
                    machine.handle(now, Event::Frame { conn: ConnId(end.number), frame });
                }
                self.rest_soon(server);
                self.maybe_crash_in_recovery(server, &header);
                self.maybe_crash_at_cross(server, &header);
            }
            Node::Client(client) => {
                self.reach_client(client, capi::Event::Frame { conn: capi::ConnId(end.number), frame });
            }
            Node::Liar => self.liar_receives(end.number, &frame),
            Node::Raw => self.raw_receives(end.number, frame),
        }
    }

    fn closed(&mut self, conn: usize, side: usize) {
        let end = self.net.get(conn).ends[side].clone();
        if !end.open {
            return;
        }
        self.net.closed(conn, side);
        if !self.lives(end.node, end.life) {
            return;
        }
        self.trace.note(self.now, &[22, conn as u64, side as u64], || {
            format!("{:?} learns that connection {conn} is gone", end.node)
        });
        match end.node {
            Node::Server(server) => {
                let now = self.time_of(end.node);
                if let Some(machine) = &mut self.servers[server].machine {
                    machine.handle(now, Event::Closed { conn: ConnId(end.number) });
                }
                self.pump(end.node);
            }
            Node::Client(client) => self.reach_client(client, capi::Event::Closed { conn: capi::ConnId(end.number) }),
            Node::Liar => self.liar_closed(end.number),
            Node::Raw => self.raw_closed(end.number),
        }
    }
}

fn show_op(op: &DataOp) -> String {
    match op {
        DataOp::Write { file, offset, data } => {
            format!("Write {{ file {file}, offset {offset}, length {} }}", data.len())
        }
        other => format!("{other:?}"),
    }
}

fn show_result(result: &DataResult) -> String {
    match result {
        DataResult::Data(data) => format!("{} bytes", data.len()),
        other => format!("{other:?}"),
    }
}

fn show_answer(result: &Result<capi::Answer, proto::Errno>) -> String {
    match result {
        Ok(capi::Answer::Data(data)) => format!("{} bytes", data.len()),
        Ok(other) => format!("{other:?}"),
        Err(errno) => errno.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Keep, Plan};

    #[test]
    fn a_signal_that_overtakes_its_call_is_delivered_later() {
        let mut world = World::new(Plan::still(0), Keep::Nothing);
        let client = world.add_mount(false);
        world.mounts[client].machine = None;
        world.queue.clear();
        world.calls_in_flight.insert(7);
        world.dispatch(WorldEvent::Interrupt { client, id: 7, fatal: true });
        let entry = world.queue.pop().expect("it is postponed").0;
        assert!(entry.at == world.now + SIGNAL_AGAIN);
        world.dispatch(WorldEvent::Call {
            client: 0,
            id: 7,
            cred: Default::default(),
            call: capi::Call::Statfs { ino: 1 },
        });
        world.dispatch(entry.what);
        assert!(world.queue.is_empty() && world.calls_in_flight.is_empty());
    }
}
