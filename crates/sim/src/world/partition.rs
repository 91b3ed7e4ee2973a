//! Partitions: for a while nothing arrives, in one direction or both, between a living client and some servers, or between two
//! metadata targets, and neither side learns of it.
//!
//! TCP either retransmits an unacknowledged segment until it arrives, or gives up the connection. So frames sent during a
//! partition either arrive after its end, or are lost with their connection then, as drawn. No connection can be established
//! through a partition, whatever its direction.
//!
//! A client that is cut off for long is evicted while it lives. The world records when its server says so and when the client
//! learns of it ([`Eviction`]): between the two, the client answers programs from caches that no lock covers.
//!
//! Client 0 is never cut off if there are others: its waiting times show whether one client can block another.
//!
//! Metadata targets that are cut off from each other serve their clients. Partitions of them end with the faults of a run.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use client::api::Call;
use proto::frame::flags;
use proto::{Frame, Opcode, TargetKind};
use stdx::{Instant, Rng};

use super::faults::{Fault, around};
use super::net::Node;
use super::{World, WorldEvent};
use crate::disturb::Partitions;
use crate::sched::Eviction;

/// The longest time that a connected client waits for the locks of clients that are cut off, one after another, while no server
/// restarts.
const HELD_UP_MAX: Duration = Duration::from_secs(100);
/// The additional time while servers recover.
const RECOVERY_MAX: Duration = Duration::from_secs(210);
/// A dial fails after this time.
pub(crate) const DIAL_TIME: Duration = Duration::from_secs(5);

/// The direction in which frames are blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    ToServers,
    ToNode,
    Both,
}

/// A partition of a client, or of a metadata target from another one.
#[derive(Clone, Debug)]
struct Partition {
    node: Node,
    /// Only from this server; `None`: from all servers.
    server: Option<usize>,
    direction: Direction,
    until: Instant,
    /// Frames sent during the partition arrive after it; otherwise they are lost.
    held: bool,
    /// Connections on which it has stopped frames.
    torn: Vec<usize>,
}

/// What happens to a frame at a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passage {
    /// The frame passes.
    Free,
    /// The frame arrives after this moment.
    Held(Instant),
    /// The frame is lost.
    Lost,
}

/// All partitions of a run.
#[derive(Debug)]
pub struct Partitioning {
    plan: Option<Partitions>,
    left: u64,
    mdts_left: u64,
    stalls_left: u64,
    now: Vec<Partition>,
    /// Clients that were ever cut off.
    cut_off: Vec<usize>,
    /// Pairs of client and server with an established session: before that an eviction can lose nothing.
    connected: BTreeSet<(usize, usize)>,
    /// Start times of the calls of client 0.
    calls: BTreeMap<u64, Instant>,
    rng: Rng,
    /// A separate stream for faults of metadata targets.
    mdt_rng: Rng,
}

impl Partitioning {
    /// Partitions according to the plan.
    pub fn new(plan: &crate::plan::Plan) -> Partitioning {
        let planned = plan.disturbances.partitions;
        let rng = Rng::new(plan.seed ^ 0x9a28_9a28);
        let left = planned.map_or(0, |planned| planned.count);
        Partitioning {
            plan: planned,
            left,
            mdts_left: plan.disturbances.mdt_partitions.map_or(0, |planned| planned.count),
            stalls_left: plan.disturbances.stalls.map_or(0, |stalls| stalls.count),
            now: Vec::new(),
            cut_off: Vec::new(),
            connected: BTreeSet::new(),
            calls: BTreeMap::new(),
            rng,
            mdt_rng: Rng::new(plan.seed ^ 0x9a28_9a29),
        }
    }

    fn find(&mut self, from: Node, to: Node) -> Option<&mut Partition> {
        self.now.iter_mut().find(|partition| {
            let is_server =
                |node| matches!(node, Node::Server(server) if partition.server.is_none_or(|only| only == server));
            let (forth, back) = (partition.node == from && is_server(to), partition.node == to && is_server(from));
            match partition.direction {
                Direction::Both => forth || back,
                Direction::ToServers => forth,
                Direction::ToNode => back,
            }
        })
    }

    /// Draws the direction of a partition, its duration, and whether frames arrive after it.
    fn draw(rng: &mut Rng, planned: Partitions) -> (Direction, Duration, bool) {
        let direction = [Direction::Both, Direction::ToServers, Direction::ToNode][rng.below(3) as usize];
        let time = rng.range(planned.least.as_millis() as u64, planned.most.as_millis() as u64);
        (direction, Duration::from_millis(time), rng.chance(1, 2))
    }
}

impl World {
    /// Schedules the next partition.
    pub(super) fn plan_partition(&mut self) {
        let Some(planned) = self.partitioning.plan.filter(|_| self.partitioning.left > 0) else { return };
        let delay = around(&mut self.partitioning.rng, planned.every);
        self.after(delay, WorldEvent::Fault(Fault::Partition));
    }

    /// Cuts some client off.
    pub(super) fn start_partition(&mut self) {
        let first = usize::from(self.plan.clients > 1);
        let lives = |client: &usize| self.mounts[*client].machine.is_some() && !self.mounts[*client].leaving;
        let free = |client: &usize| self.partitioning.now.iter().all(|other| other.node != Node::Client(*client));
        let candidates: Vec<usize> =
            (first..self.plan.clients.min(self.mounts.len())).filter(lives).filter(free).collect();
        let Some(planned) = self.partitioning.plan else { return };
        let own = &mut self.partitioning;
        let Some(&client) = own.rng.pick(&candidates) else { return };
        own.left -= 1;
        let server = match own.rng.below(3) {
            0 => None,
            1 => Some(1),
            _ => Some(own.rng.below(self.servers.len() as u64) as usize),
        };
        let (direction, time, held) = Partitioning::draw(&mut own.rng, planned);
        let until = self.now + time;
        if !own.cut_off.contains(&client) {
            own.cut_off.push(client);
        }
        let node = Node::Client(client);
        own.now.push(Partition { node, server, direction, until, held, torn: Vec::new() });
        self.faults.counts.partitions += 1;
        self.trace.note(self.now, &[50, client as u64, time.as_millis() as u64], || {
            let whom = server.map_or("all servers".to_owned(), |server| self.servers[server].name.to_string());
            format!("client {client} is cut off from {whom} for {time:?}: {direction:?}, held {held}")
        });
        self.push(until, WorldEvent::Fault(Fault::EndPartition { node }));
    }

    /// Schedules the next partition of two metadata targets.
    pub(super) fn plan_mdt_partition(&mut self) {
        let planned = self.plan.disturbances.mdt_partitions.filter(|_| self.partitioning.mdts_left > 0);
        let Some(planned) = planned else { return };
        let delay = around(&mut self.partitioning.mdt_rng, planned.every);
        self.after(delay, WorldEvent::Fault(Fault::PartitionMdts));
    }

    /// Cuts two metadata targets off from each other.
    pub(super) fn start_mdt_partition(&mut self) {
        let mdts = self.mdts();
        let own = &mut self.partitioning;
        let Some(planned) = self.plan.disturbances.mdt_partitions else { return };
        own.mdts_left -= 1;
        let (Some(&one), Some(&other)) = (own.mdt_rng.pick(&mdts), own.mdt_rng.pick(&mdts)) else { return };
        let node = Node::Server(one);
        let (direction, time, held) = Partitioning::draw(&mut own.mdt_rng, planned);
        if one == other || own.now.iter().any(|partition| partition.node == node) {
            return;
        }
        let until = self.now + time;
        own.now.push(Partition { node, server: Some(other), direction, until, held, torn: Vec::new() });
        self.faults.counts.mdt_partitions += 1;
        self.trace.note(self.now, &[52, one as u64, other as u64, time.as_millis() as u64], || {
            let (one, other) = (&self.servers[one].name, &self.servers[other].name);
            format!("{one} is cut off from {other} for {time:?}: {direction:?}, held {held}")
        });
        self.push(until, WorldEvent::Fault(Fault::EndPartition { node }));
    }

    /// Ends all partitions of metadata targets.
    pub(super) fn end_mdt_partitions(&mut self) {
        for server in self.mdts() {
            self.end_partition(Node::Server(server));
        }
    }

    /// Schedules the next stall of a disk.
    pub(super) fn plan_stall(&mut self) {
        let Some(planned) = self.plan.disturbances.stalls.filter(|_| self.partitioning.stalls_left > 0) else { return };
        let delay = around(&mut self.partitioning.mdt_rng, planned.every);
        self.after(delay, WorldEvent::Fault(Fault::Stall));
    }

    /// The disk of some metadata target stands still: what it commits becomes durable later.
    pub(super) fn stall(&mut self) {
        let mdts = self.mdts();
        let own = &mut self.partitioning;
        let Some(planned) = self.plan.disturbances.stalls else { return };
        own.stalls_left -= 1;
        let Some(&server) = own.mdt_rng.pick(&mdts) else { return };
        let time = Duration::from_micros(own.mdt_rng.range(1, planned.most.as_micros() as u64));
        self.faults.counts.stalls += 1;
        let server = &mut self.servers[server];
        server.committing = server.committing.max(self.now + time);
        self.trace.note(self.now, &[53, time.as_micros() as u64], || {
            format!("the disk of {} stalls for {time:?}", server.name)
        });
    }

    /// Ends the partition of a node.
    pub(super) fn end_partition(&mut self, node: Node) {
        let Some(at) = self.partitioning.now.iter().position(|partition| partition.node == node) else { return };
        let partition = self.partitioning.now.swap_remove(at);
        let word = match node {
            Node::Client(client) => client as u64,
            _ => u64::MAX,
        };
        self.trace.note(self.now, &[51, word], || format!("{node:?} is cut off no longer"));
        // Frames that would arrive after the planned end are lost if it ends earlier.
        if !partition.held || self.now < partition.until {
            for conn in partition.torn {
                self.cut(conn);
            }
        }
    }

    /// What happens to a frame that is sent over a connection.
    pub(super) fn passage(&mut self, conn: usize, from: Node, to: Node) -> Passage {
        match self.partitioning.find(from, to) {
            None => Passage::Free,
            Some(partition) => {
                if !partition.torn.contains(&conn) {
                    partition.torn.push(conn);
                }
                if partition.held { Passage::Held(partition.until) } else { Passage::Lost }
            }
        }
    }

    /// Whether no connection can be established between the two nodes.
    pub(super) fn is_cut_off(&mut self, from: Node, to: Node) -> bool {
        self.partitioning.find(from, to).is_some() || self.partitioning.find(to, from).is_some()
    }

    /// Tells programs whether clients may still be evicted.
    pub(super) fn note_disturbed(&mut self) {
        let parts = self.partitioning.plan.is_some() && self.partitioning.left > 0;
        let more = self.faults.on && (parts || self.plan.disturbances.acts.is_some_and(|acts| acts.evicts));
        self.sched.set_disturbed(more || !self.all_are_joined());
    }

    /// Whether no client is cut off, and every client that was has reconnected. A client that has not is evicted soon after
    /// another wants its lock: the time since its connection broke counts.
    pub fn all_are_joined(&self) -> bool {
        let own = &self.partitioning;
        let is_client = |partition: &Partition| matches!(partition.node, Node::Client(_));
        !own.now.iter().any(is_client) && own.cut_off.iter().all(|client| self.is_back(*client))
    }

    /// Whether a client has a working session with each target whose eviction could lose something; true for clients that are
    /// dead or leave.
    fn is_back(&self, client: usize) -> bool {
        let mount = &self.mounts[client];
        let Some(machine) = mount.machine.as_ref().filter(|_| !mount.leaving) else { return true };
        let sound = |server: usize| {
            self.net.of(Node::Client(client)).iter().any(|(conn, _)| {
                let ends = &self.net.get(*conn).ends;
                ends.iter().any(|end| end.node == Node::Server(server))
                    && ends.iter().all(|end| end.open && end.dead_from.is_none() && !end.hung_up)
            })
        };
        let full = |server: usize| {
            let name = format!(".{}-", self.servers[server].name);
            let imports = machine.get_params("*.*.import");
            let own = imports.iter().filter(|(path, _)| path.contains(&name));
            own.into_iter().all(|(_, text)| text.lines().any(|line| line.trim() == "state: FULL"))
        };
        let known = self.partitioning.connected.iter().filter(|(of, _)| *of == client).map(|(_, server)| *server);
        let takes = |server: &usize| {
            let server = &self.servers[*server];
            !server.retired && !server.awaited && server.name.kind != TargetKind::Mgt
        };
        known.filter(takes).all(|server| sound(server) && full(server))
    }

    /// Looks for an eviction in a line of a server's log.
    pub(super) fn find_eviction(&mut self, server: usize, line: &str) {
        if let Some(rest) = line.strip_prefix("client client ")
            && line.ends_with(" is connected again")
            && let Some(Ok(client)) = rest.split(' ').next().map(str::parse)
        {
            // A crash has undone the eviction, if there was one: the client will never learn of it.
            self.sched.learned_of_eviction(client, &self.servers[server].name.to_string(), self.now);
        }
        let whom = line.strip_prefix("evicts client ").and_then(|rest| rest.split([' ', ':']).next()?.parse().ok());
        let Some(client) = whom.filter(|client: &usize| self.mounts.get(*client).is_some_and(|m| m.machine.is_some()))
        else {
            return;
        };
        let name = self.servers[server].name.clone();
        if name.kind == TargetKind::Mgt || !self.partitioning.connected.contains(&(client, server)) {
            return;
        }
        self.faults.counts.evictions += 1;
        let only_partitions = self.faults.counts.is_only_partitions();
        if self.plan.evicts() || self.plan.liar {
            if only_partitions
                && !self.partitioning.cut_off.contains(&client)
                && self.plan.profile == crate::Profile::Calm
                && self.plan.disturbances.acts.is_none()
            {
                self.fail(format!("client {client}, which was never cut off, is evicted: target {name} {line}"));
            }
            let mdt = (name.kind == TargetKind::Mdt).then_some(name.index.0);
            let eviction = Eviction { client, target: name.to_string(), mdt, at: self.now, learned: None };
            self.sched.note_eviction(eviction);
        }
    }

    /// Looks for an eviction in a line of a client's log.
    pub(super) fn find_own_eviction(&mut self, client: usize, line: &str) {
        if let Some((target, _)) = line.split_once(" evicted this client: ")
            && (self.plan.evicts() || self.plan.liar)
            && !self.sched.learned_of_eviction(client, target, self.now)
        {
            let named = self.servers.iter().map(|server| &server.name).find(|name| name.to_string() == target);
            let mdt = named.filter(|name| name.kind == TargetKind::Mdt).map(|name| name.index.0);
            let eviction = Eviction { client, target: target.to_owned(), mdt, at: self.now, learned: Some(self.now) };
            self.sched.note_eviction(eviction);
        }
    }

    /// Records that a client has established a session.
    pub(super) fn note_connected(&mut self, from: Node, to: Node, frame: &Frame) {
        let header = &frame.header;
        if let (Node::Server(server), Node::Client(client)) = (from, to)
            && header.opcode == Opcode::Connect as u16
            && header.has(flags::REPLY)
            && header.status == 0
        {
            self.partitioning.connected.insert((client, server));
        }
    }

    /// Records that a call reaches its client.
    pub(super) fn note_call(&mut self, client: usize, id: u64, call: &Call) {
        // A program that waits for a record lock waits for another program.
        if client == 0
            && self.plan.clients > 1
            && self.plan.disturbances.partitions.is_some()
            && !matches!(call, Call::Setlk { .. })
        {
            self.partitioning.calls.insert(id, self.now);
        }
    }

    /// Records that a call was answered, and checks how long it took.
    pub(super) fn note_answer(&mut self, id: u64) {
        if let Some(begun) = self.partitioning.calls.remove(&id) {
            let waited = self.now.since(begun).as_millis() as u64;
            self.faults.counts.longest_wait_ms = self.faults.counts.longest_wait_ms.max(waited);
            let crashes = self.faults.counts.crashes + self.faults.counts.deaths;
            let mdts = self.plan.disturbances.mdt_partitions.map_or(Duration::ZERO, |planned| planned.most);
            let stalls = self.plan.disturbances.stalls.map_or(Duration::ZERO, |planned| planned.most);
            let limit = HELD_UP_MAX + mdts + stalls + if crashes == 0 { Duration::ZERO } else { RECOVERY_MAX };
            if waited > limit.as_millis() as u64 {
                self.fail(format!("during a partition of others a call of client 0 waited for {waited} ms"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::trace::Keep;

    #[test]
    fn a_partition_ends_when_the_client_has_reconnected() {
        let planned = Partitions {
            every: Duration::from_secs(1),
            least: Duration::from_secs(60),
            most: Duration::from_secs(60),
            count: 1,
        };
        let mut plan = Plan::still(0);
        plan.disturbances.partitions = Some(planned);
        let mut world = World::new(plan, Keep::Nothing);
        (0..world.servers.len()).for_each(|server| world.start_server(server, Duration::ZERO));
        for _ in 0..2 {
            world.add_client();
        }
        let limit = world.now + Duration::from_secs(60);
        world.run(limit, |world| world.mounts.iter().all(|mount| mount.mounted)).unwrap();
        world.run(limit, |_| false).unwrap();
        assert!(world.all_are_joined(), "no client was cut off");
        let until = world.now + planned.most;
        let (client, direction) = (1, Direction::Both);
        world.partitioning.cut_off.push(client);
        let node = Node::Client(client);
        let partition = Partition { node, server: None, direction, until, held: false, torn: Vec::new() };
        world.partitioning.now.push(partition);
        world.note_disturbed();
        world.run(until, |_| false).unwrap();
        assert!(!world.all_are_joined());
        world.end_partition(node);
        world.note_disturbed();
        assert!(!world.all_are_joined(), "its connections are gone");
        let sched = world.sched.clone();
        let calm = sched.clone();
        sched.spawn("a program", async move { calm.undisturbed().await });
        world.run(until + Duration::from_secs(60), |world| world.sched.is_idle()).unwrap();
        assert!(sched.is_idle() && world.now > until, "a program waits until it is back, and no longer");
        assert!(world.all_are_joined(), "it has come again to all targets");
        world.sched.clear();
    }
}
