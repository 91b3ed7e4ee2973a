//! Faults, drawn frame by frame and at random times while faults are on.
//!
//! The system can always continue in principle: a lost frame eventually takes its connection with it (a network that loses a
//! frame of a stream breaks the stream), a killed server restarts, and clients die for good only in runs about that.

use core::time::Duration;

use proto::frame::flags;
use proto::{Header, Opcode, TargetKind};
use stdx::{Instant, Rng};

use super::Canary;
use super::net::Node;
use super::{World, WorldEvent};
use crate::plan::{DiskFaults, NetworkFaults, NodeFaults, Plan};

/// A fault at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A connection is cut.
    Cut {
        /// The connection.
        conn: usize,
    },
    /// Some server is killed.
    Crash,
    /// Some client dies.
    Death,
    /// Something else fills the disk of some server.
    Fill,
    /// Some client is cut off.
    Partition,
    /// Two metadata targets are cut off from each other.
    PartitionMdts,
    /// The disk of some metadata target stands still.
    Stall,
    /// An administrator acts.
    Act,
    /// A client's clock is set.
    Clock,
    /// A fault site is armed.
    Arm,
    /// A fault site is disarmed.
    Disarm {
        /// A server, or (counted after the servers) a client.
        at: usize,
    },
    /// Some disk fails.
    Fail,
    /// The disk is repaired.
    Repair {
        /// Its server.
        server: usize,
    },
    /// A partition ends.
    EndPartition {
        /// The client, or the first of two targets, that was cut off.
        node: Node,
    },
    /// A full disk has space again.
    Free {
        /// Its server.
        server: usize,
    },
}

/// Counts of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Lost frames.
    pub lost: u64,
    /// Duplicated frames.
    pub doubled: u64,
    /// Delayed frames.
    pub late: u64,
    /// Cut connections.
    pub cuts: u64,
    /// Failed dials.
    pub dials: u64,
    /// Killed servers.
    pub crashes: u64,
    /// Of these, at a commit.
    pub crashes_at_commit: u64,
    /// Of these, during the start.
    pub crashes_in_start: u64,
    /// Of these, at a step of the recovery.
    pub crashes_in_recovery: u64,
    /// Of these, together with another server.
    pub crashes_together: u64,
    /// Dead clients.
    pub deaths: u64,
    /// Power failures of the whole cluster.
    pub power: u64,
    /// Disks that something else filled.
    pub fills: u64,
    /// Losses of data that clients could not write.
    pub given_up: u64,
    /// Clients that were cut off for a while.
    pub partitions: u64,
    /// Pairs of metadata targets that were cut off from each other.
    pub mdt_partitions: u64,
    /// Disks of metadata targets that stood still.
    pub stalls: u64,
    /// Servers killed by a message between metadata targets.
    pub crashes_at_cross: u64,
    /// Evictions of living clients.
    pub evictions: u64,
    /// Acts of administrators.
    pub acts: u64,
    /// Of these, unmounts.
    pub unmounts: u64,
    /// Failed operations of disks.
    pub io_errors: u64,
    /// Records that were unreadable for a while.
    pub damaged: u64,
    /// Targets that stopped because of a disk error.
    pub stops: u64,
    /// Settings of clients' clocks.
    pub clock_steps: u64,
    /// Armed fault sites.
    pub sites: u64,
    /// Processes that asked an evicted client for its losses.
    pub aftermaths: u64,
    /// Of these, processes to which a loss was reported.
    pub losses_reported: u64,
    /// The longest call through a client that was never cut off, in milliseconds.
    pub longest_wait_ms: u64,
    /// Errors in logs.
    pub errors_logged: u64,
}

impl core::fmt::Display for Counts {
    /// Lists the counts that are not zero.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let all = [
            ("frames lost", self.lost),
            ("doubled", self.doubled),
            ("late", self.late),
            ("cuts", self.cuts),
            ("dials", self.dials),
            ("crashes", self.crashes),
            ("deaths", self.deaths),
            ("power", self.power),
            ("fills", self.fills),
            ("given up", self.given_up),
            ("partitions", self.partitions),
            ("of metadata targets", self.mdt_partitions),
            ("stalls", self.stalls),
            ("crashes at messages between metadata targets", self.crashes_at_cross),
            ("evictions", self.evictions),
            ("processes that asked evicted clients", self.aftermaths),
            ("of these with a reported loss", self.losses_reported),
            ("acts", self.acts),
            ("unmounts", self.unmounts),
            ("I/O errors", self.io_errors),
            ("records damaged", self.damaged),
            ("targets stopped by disks", self.stops),
            ("clock steps", self.clock_steps),
            ("sites armed", self.sites),
            ("longest wait during a partition in ms", self.longest_wait_ms),
        ];
        let fell: Vec<String> =
            all.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what} {count}")).collect();
        f.write_str(&fell.join(", "))
    }
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Counts) {
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.late += other.late;
        self.cuts += other.cuts;
        self.dials += other.dials;
        self.crashes += other.crashes;
        self.crashes_at_commit += other.crashes_at_commit;
        self.crashes_in_start += other.crashes_in_start;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.crashes_together += other.crashes_together;
        self.deaths += other.deaths;
        self.power += other.power;
        self.fills += other.fills;
        self.given_up += other.given_up;
        self.partitions += other.partitions;
        self.mdt_partitions += other.mdt_partitions;
        self.stalls += other.stalls;
        self.crashes_at_cross += other.crashes_at_cross;
        self.evictions += other.evictions;
        self.aftermaths += other.aftermaths;
        self.losses_reported += other.losses_reported;
        self.acts += other.acts;
        self.unmounts += other.unmounts;
        self.io_errors += other.io_errors;
        self.damaged += other.damaged;
        self.stops += other.stops;
        self.clock_steps += other.clock_steps;
        self.sites += other.sites;
        self.longest_wait_ms = self.longest_wait_ms.max(other.longest_wait_ms);
        self.errors_logged += other.errors_logged;
    }
}

impl Counts {
    /// Whether partitions are the only faults so far that can have kept a client from its servers.
    pub fn is_only_partitions(&self) -> bool {
        self.lost + self.late + self.cuts + self.crashes + self.deaths + self.power == 0
    }
}

/// What happens to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fate {
    /// The number of copies that arrive.
    pub copies: u32,
    /// Additional delay.
    pub late: Duration,
    /// The connection is cut after this time.
    pub cut_after: Option<Duration>,
}

/// The source of faults.
#[derive(Debug)]
pub struct Faults {
    /// Whether faults strike.
    pub on: bool,
    /// The faults so far.
    pub counts: Counts,
    network: NetworkFaults,
    nodes: NodeFaults,
    disks: DiskFaults,
    /// A separate stream for faults of disks, so that they do not change the other faults.
    disk_rng: Rng,
    /// The same for faults that concern several metadata targets.
    mdt_rng: Rng,
    crashes_left: u64,
    deaths_left: u64,
    at_commit: u64,
    late_max_us: u64,
    rng: Rng,
}

impl Faults {
    /// Faults according to the plan, switched off.
    pub fn new(plan: &Plan, mut rng: Rng) -> Faults {
        let crashes_left = rng.range(1, 24);
        let at_commit = if plan.node_faults.crash_every.is_some() { [0, 0, 10, 100][rng.below(4) as usize] } else { 0 };
        Faults {
            on: false,
            counts: Counts::default(),
            network: plan.network_faults,
            nodes: plan.node_faults,
            disks: plan.disk_faults,
            disk_rng: Rng::new(plan.seed ^ 0xf111_f111),
            mdt_rng: Rng::new(plan.seed ^ 0xf111_f112),
            crashes_left,
            deaths_left: if plan.node_faults.death_every.is_some() {
                rng.range(1, plan.clients.max(2) as u64 - 1)
            } else {
                0
            },
            at_commit,
            // Where clients die or lie, locks are soon revoked from silent clients, so no frame may be delayed beyond that.
            late_max_us: if plan.node_faults.death_every.is_some() || plan.liar || plan.evicts() {
                2_000_000
            } else {
                15_000_000
            },
            rng,
        }
    }

    fn falls(&mut self, per_million: u64) -> bool {
        self.on && per_million > 0 && self.rng.chance(per_million, 1_000_000)
    }

    /// Draws the fate of the next frame.
    pub fn frame(&mut self, _now: Instant) -> Fate {
        let mut fate = Fate { copies: 1, late: Duration::ZERO, cut_after: None };
        if !self.on {
            return fate;
        }
        if self.falls(self.network.lost) {
            self.counts.lost += 1;
            fate.copies = 0;
            fate.cut_after = Some(Duration::from_micros(self.rng.below(3_000_000)));
        } else if self.falls(self.network.doubled) {
            self.counts.doubled += 1;
            fate.copies = 2;
        }
        if self.falls(self.network.late) {
            self.counts.late += 1;
            fate.late = Duration::from_micros(self.rng.range(100_000, self.late_max_us));
        }
        if self.falls(self.network.cut) {
            fate.cut_after = Some(Duration::from_micros(self.rng.below(1_000)));
        }
        fate
    }

    /// Whether the next dial fails.
    pub fn dial_fails(&mut self) -> bool {
        let fails = self.falls(self.network.dial);
        self.counts.dials += u64::from(fails);
        fails
    }
}

/// A random time around a mean; longer times are rarer.
pub(super) fn around(rng: &mut Rng, mean: Duration) -> Duration {
    let share = rng.range(1, 1_000) as f64 / 1_000.0;
    mean.mul_f64(-share.ln() + 0.01)
}

impl World {
    /// Switches faults on.
    pub fn faults_on(&mut self) {
        self.faults.on = true;
        self.liar_begins();
        self.plan_crash();
        self.plan_death();
        self.plan_fill();
        self.plan_partition();
        self.plan_mdt_partition();
        self.plan_stall();
        self.plan_act();
        self.plan_io();
        self.plan_clock();
        self.plan_site();
        self.note_disturbed();
    }

    /// Switches faults off, frees all disks and repairs them.
    pub fn faults_off(&mut self) {
        self.faults.on = false;
        self.end_mdt_partitions();
        self.note_disturbed();
        self.disarm_all();
        self.liar_ends();
        for server in 0..self.servers.len() {
            self.free(server);
            self.repair(server);
        }
    }

    fn plan_crash(&mut self) {
        if let Some(mean) = self.faults.nodes.crash_every
            && self.faults.crashes_left > 0
        {
            let delay = around(&mut self.faults.rng, mean);
            self.after(delay, WorldEvent::Fault(Fault::Crash));
        }
    }

    fn plan_death(&mut self) {
        if let Some(mean) = self.faults.nodes.death_every
            && self.faults.deaths_left > 0
        {
            let delay = around(&mut self.faults.rng, mean);
            self.after(delay, WorldEvent::Fault(Fault::Death));
        }
    }

    fn plan_fill(&mut self) {
        if let Some(mean) = self.faults.disks.fill_every {
            let delay = around(&mut self.faults.disk_rng, mean);
            self.after(delay, WorldEvent::Fault(Fault::Fill));
        }
    }

    /// Something else fills the disk of some server and frees it later. The target notices both at its own pace.
    fn fill(&mut self) {
        let DiskFaults { stays_max, leaves_max, .. } = self.faults.disks;
        let rng = &mut self.faults.disk_rng;
        let server = rng.below(self.servers.len() as u64) as usize;
        let (store_left, data_left) = (rng.range(0, leaves_max), rng.range(0, leaves_max));
        let stays = Duration::from_micros(rng.range(1, stays_max.as_micros() as u64));
        let own = &mut self.servers[server];
        own.engine.set_available(Some(store_left));
        let room = Some(own.data.bytes() + data_left);
        match self.canary {
            // The target does not learn of its free space, so that the medium has to refuse.
            Canary::DropWhenFull => own.data.set_capacity(room),
            _ => own.set_data_capacity(room),
        }
        self.faults.counts.fills += 1;
        self.trace.note(self.now, &[41, server as u64], || {
            format!(
                "the disk of {} fills: {store_left} bytes are left for the store, {data_left} for data",
                self.servers[server].name
            )
        });
        self.after(stays, WorldEvent::Fault(Fault::Free { server }));
    }

    /// Fills a server's disk, with its store and its data files, but for this many bytes and the reserve; `None` frees it.
    pub(super) fn fill_for_story(&mut self, server: usize, leaves: Option<(u64, u64)>) {
        let Some((left, reserve)) = leaves else { return self.free(server) };
        let own = &mut self.servers[server];
        own.engine.set_reserve(reserve);
        own.engine.set_available(Some(left));
        own.set_data_capacity(Some(own.data.bytes() + left));
    }

    pub(super) fn free(&mut self, server: usize) {
        self.servers[server].engine.set_available(None);
        self.servers[server].set_data_capacity(None);
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Cut { conn } => self.cut(conn),
            Fault::Disarm { at } => self.disarm(at),
            Fault::Repair { server } => self.repair(server),
            Fault::EndPartition { node } => {
                self.end_partition(node);
                self.note_disturbed();
            }
            Fault::Free { server } => {
                self.trace.note(self.now, &[42, server as u64], || {
                    format!("the disk of {} has space again", self.servers[server].name)
                });
                self.free(server);
            }
            _ if !self.faults.on => {}
            Fault::Crash => {
                let running: Vec<usize> =
                    (0..self.servers.len()).filter(|&server| self.servers[server].machine.is_some()).collect();
                if let Some(&server) = self.faults.rng.pick(&running) {
                    self.faults.crashes_left = self.faults.crashes_left.saturating_sub(1);
                    self.crash_some(server);
                }
                self.plan_crash();
            }
            Fault::Death => {
                let living: Vec<usize> =
                    (0..self.mounts.len()).filter(|&client| self.mounts[client].machine.is_some()).collect();
                if living.len() > 1
                    && let Some(&client) = self.faults.rng.pick(&living)
                {
                    self.faults.deaths_left -= 1;
                    self.kill_client(client);
                }
                self.plan_death();
            }
            Fault::Clock => {
                self.step_clock();
                self.plan_clock();
            }
            Fault::Arm => {
                self.arm_some_site();
                self.plan_site();
            }
            Fault::Act => {
                self.act();
                self.plan_act();
            }
            Fault::Fail => {
                self.fail_some_disk();
                self.plan_io();
            }
            Fault::Partition => {
                self.start_partition();
                self.plan_partition();
            }
            Fault::PartitionMdts => {
                self.start_mdt_partition();
                self.plan_mdt_partition();
            }
            Fault::Stall => {
                self.stall();
                self.plan_stall();
            }
            Fault::Fill => {
                self.fill();
                self.plan_fill();
            }
        }
    }

    pub(super) fn maybe_crash_at_commit(&mut self, server: usize) {
        if self.faults.on && self.faults.crashes_left > 0 && self.faults.rng.chance(self.faults.at_commit, 1_000) {
            self.faults.crashes_left -= 1;
            self.faults.counts.crashes_at_commit += 1;
            self.crash_some(server);
        }
    }

    /// A server has received a frame: if it is a step of a recovery, it may crash now.
    pub(super) fn maybe_crash_in_recovery(&mut self, server: usize, header: &Header) {
        let chance = self.faults.nodes.recovery_permille;
        if !self.faults.on || chance == 0 || self.faults.crashes_left == 0 {
            return;
        }
        let step = flags::REPLAY | flags::REQ_REPLAY_DONE | flags::LOCK_REPLAY_DONE;
        let comes_back = header.opcode == Opcode::Connect as u16 && self.servers[server].life > 1;
        if (comes_back || header.flags & step != 0) && self.faults.rng.chance(chance, 1_000) {
            self.faults.crashes_left -= 1;
            self.faults.counts.crashes_in_recovery += 1;
            self.crash_some(server);
        }
    }

    /// A metadata target has received a message from another one: it may crash now.
    pub(super) fn maybe_crash_at_cross(&mut self, server: usize, header: &Header) {
        let chance = self.faults.nodes.cross_permille;
        let crosses = [Opcode::CrossSession, Opcode::CrossPrepare, Opcode::CrossTell, Opcode::CrossFree];
        if !self.faults.on || chance == 0 || self.faults.crashes_left == 0 {
            return;
        }
        if crosses.iter().any(|opcode| header.opcode == *opcode as u16) && self.faults.mdt_rng.chance(chance, 1_000) {
            self.faults.crashes_left -= 1;
            self.faults.counts.crashes_at_cross += 1;
            self.crash_some(server);
        }
    }

    /// The metadata targets that crash together with this one, instead of any other server: another one, or all.
    fn mdts_beside(&mut self, server: usize) -> Vec<usize> {
        let mut others: Vec<usize> = self.mdts().into_iter().filter(|other| *other != server).collect();
        let rng = &mut self.faults.mdt_rng;
        if self.servers[server].name.kind != TargetKind::Mdt || others.is_empty() || rng.chance(1, 3) {
            return Vec::new();
        }
        if rng.chance(2, 3) {
            others = vec![others[rng.below(others.len() as u64) as usize]];
        }
        others
    }

    /// The metadata targets.
    pub(super) fn mdts(&self) -> Vec<usize> {
        (0..self.servers.len()).filter(|server| self.servers[*server].name.kind == TargetKind::Mdt).collect()
    }

    /// Kills a server, those in the same process, and sometimes others.
    fn crash_some(&mut self, server: usize) {
        let power = self.faults.rng.chance(self.faults.nodes.power_percent, 100);
        let pause_max = self.faults.nodes.pause_max.as_micros() as u64;
        let mut all: Vec<usize> = if self.plan.one_server { (0..self.servers.len()).collect() } else { vec![server] };
        let together = self.faults.nodes.together_percent;
        let together = all.len() == 1 && together > 0 && self.faults.rng.chance(together, 100);
        let mdts = if together { self.mdts_beside(server) } else { Vec::new() };
        if !mdts.is_empty() {
            self.faults.counts.crashes_together += 1;
            all.extend(mdts);
        } else if together {
            let other = self.faults.rng.below(self.servers.len() as u64) as usize;
            if other != server && self.servers[other].machine.is_some() {
                all.push(other);
                self.faults.counts.crashes_together += 1;
            }
        }
        for server in all {
            if self.servers[server].machine.is_none() {
                continue;
            }
            self.faults.counts.crashes += 1;
            if !self.servers[server].serving {
                self.faults.counts.crashes_in_start += 1;
            }
            self.crash(server, power);
            let pause = Duration::from_micros(self.faults.rng.range(10, pause_max.max(10)));
            self.start_server(server, pause);
        }
    }

    /// Kills a server: its memory is lost, and of what was not durable a random part survives.
    pub fn crash(&mut self, server: usize, power: bool) {
        let how = if power { "loses its power" } else { "is killed" };
        self.trace.note(self.now, &[30, server as u64], || format!("{} {how}", self.servers[server].name));
        self.judge_recovery(server);
        self.spy.crashes(Node::Server(server));
        self.crashes.push((self.now, self.servers[server].name.clone()));
        let own = &mut self.servers[server];
        own.machine = None;
        own.serving = false;
        own.timer = None;
        own.timer_serial += 1;
        own.engine.crash(&mut self.faults.rng);
        if power && own.name.kind == TargetKind::Ost {
            own.data.crash(&mut self.faults.rng);
        }
        self.disconnect(Node::Server(server));
    }

    /// Kills a client for good.
    pub fn kill_client(&mut self, client: usize) {
        self.faults.counts.deaths += 1;
        self.trace.note(self.now, &[31, client as u64], || format!("client {client} dies"));
        self.mounts[client].machine = None;
        self.mounts[client].timer_serial += 1;
        self.mounts[client].kernel.die();
        self.sched.client_died(client);
        self.disconnect(Node::Client(client));
    }

    /// The power of the whole cluster fails at once.
    pub fn power_fails(&mut self) {
        self.faults.counts.power += 1;
        for client in 0..self.mounts.len() {
            if self.mounts[client].machine.is_some() {
                self.kill_client(client);
            }
        }
        for server in 0..self.servers.len() {
            if self.servers[server].machine.is_some() {
                self.crash(server, true);
            }
            let pause = Duration::from_micros(self.faults.rng.range(10, 100_000));
            self.start_server(server, pause);
        }
    }

    /// Breaks all connections of a node that is gone.
    pub(super) fn disconnect(&mut self, node: Node) {
        for (conn, side) in self.net.of(node) {
            self.net.closed(conn, side);
            self.break_end(conn, 1 - side);
        }
    }

    pub(super) fn cut(&mut self, conn: usize) {
        if self.net.get(conn).ends.iter().all(|end| !end.open) {
            return;
        }
        self.faults.counts.cuts += 1;
        self.trace.note(self.now, &[32, conn as u64], || format!("connection {conn} is cut"));
        for side in 0..2 {
            self.break_end(conn, side);
        }
    }

    /// Everything that has not arrived at this side by a random moment soon is lost, and the side learns of it then.
    fn break_end(&mut self, conn: usize, side: usize) {
        let delay = match self.faults.rng.below(4) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(self.faults.rng.below(50)),
            2 => Duration::from_micros(self.faults.rng.below(2_000)),
            _ => Duration::from_micros(self.faults.rng.below(200_000)),
        };
        let at = self.now + delay;
        let end = self.net.end(conn, side);
        if end.dead_from.is_none_or(|dead| dead > at) {
            end.dead_from = Some(at);
            self.push(at, WorldEvent::Closed { conn, side });
        }
    }
}
