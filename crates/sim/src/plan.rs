//! The plan of a run: sizes, settings and faults, all drawn from its seed.
//!
//! Swarm testing: not only the faults are random; the rate of each kind is drawn too, and is often zero. So a thousand seeds are
//! a thousand different tests, and they also find failures that need one component undisturbed while another is disturbed.

use core::time::Duration;

use rpc::at::Timeouts;
use stdx::Rng;

use crate::disturb::{Disturbances, Stalls};

/// The kinds of faults in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Profile {
    /// No faults.
    Calm,
    /// Network faults only.
    Network,
    /// Servers are killed and restarted; network faults too.
    Servers,
    /// Clients die for good; server and network faults too.
    Clients,
    /// As `Servers`, and at the end the power fails on all servers.
    Power,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 5] = [Profile::Calm, Profile::Network, Profile::Servers, Profile::Clients, Profile::Power];

    /// The name in output.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Calm => "calm",
            Profile::Network => "network",
            Profile::Servers => "servers",
            Profile::Clients => "clients",
            Profile::Power => "power",
        }
    }
}

/// A range of durations, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Shortest.
    pub low_us: u64,
    /// Longest.
    pub high_us: u64,
}

impl Span {
    /// A range from its bounds.
    pub const fn us(low_us: u64, high_us: u64) -> Span {
        Span { low_us, high_us }
    }

    /// Draws a duration of the range.
    pub fn draw(self, rng: &mut Rng) -> Duration {
        Duration::from_nanos(rng.range(self.low_us * 1000, self.high_us * 1000))
    }
}

/// Network faults, in chances per million frames (or dials).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkFaults {
    /// A frame is lost.
    pub lost: u64,
    /// A frame is duplicated.
    pub doubled: u64,
    /// A frame, and what follows it on its connection, is delayed by seconds.
    pub late: u64,
    /// The connection is cut.
    pub cut: u64,
    /// A dial fails.
    pub dial: u64,
}

/// Crashes of servers and clients; `None` means never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeFaults {
    /// Mean time between kills of a server.
    pub crash_every: Option<Duration>,
    /// The longest time until a killed server restarts.
    pub pause_max: Duration,
    /// Percentage of crashes that lose data which was written but not synced (a power failure, not a kill).
    pub power_percent: u64,
    /// Mean time between deaths of clients.
    pub death_every: Option<Duration>,
    /// Of 1000 steps of a server's recovery (a client reconnects, replays, or finishes its replay), how many crash it.
    pub recovery_permille: u64,
    /// Percentage of crashes that take another server down at the same time.
    pub together_percent: u64,
    /// Of 1000 messages between metadata targets, how many crash their receiver.
    pub cross_permille: u64,
}

/// Disks that fill up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskFaults {
    /// Mean time until something else fills the disk of some server; `None` means never.
    pub fill_every: Option<Duration>,
    /// The longest time until that space is free again.
    pub stays_max: Duration,
    /// The most bytes that stay free.
    pub leaves_max: u64,
}

/// What processes in shared groups do besides making, renaming and removing names, and appending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharedCalls {
    /// Percentage of calls made by users other than root.
    pub user_percent: u64,
    /// Extended attributes.
    pub xattrs: bool,
    /// Access lists.
    pub lists: bool,
    /// Owners, permission bits of all kinds, times, `access`.
    pub owners: bool,
    /// Pipes, sockets and devices.
    pub specials: bool,
    /// Allocation of space and punching of holes.
    pub ranges: bool,
    /// Some files are opened with `O_DIRECT`.
    pub direct: bool,
    /// There is a further, read-only mount.
    pub read_only: bool,
}

impl SharedCalls {
    /// Every kind of call, by several users.
    pub const ALL: SharedCalls = SharedCalls {
        user_percent: 40,
        xattrs: true,
        owners: true,
        specials: true,
        ranges: true,
        direct: true,
        lists: true,
        read_only: true,
    };

    /// Drawn from its own random stream.
    fn draw(seed: u64) -> SharedCalls {
        let mut rng = Rng::new(seed ^ 0x54a2_ed00);
        let rng = &mut rng;
        SharedCalls {
            user_percent: pick(rng, &[(2, 0), (1, 20), (1, 60)]),
            xattrs: rng.chance(1, 3),
            owners: rng.chance(1, 3),
            specials: rng.chance(1, 3),
            ranges: rng.chance(1, 3),
            direct: rng.chance(1, 3),
            lists: rng.chance(1, 3),
            read_only: rng.chance(1, 3),
        }
    }
}

/// The most clients of a run.
pub(crate) const CLIENTS_MAX: usize = 8;

/// Everything that is drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The kinds of faults.
    pub profile: Profile,
    /// Number of metadata targets.
    pub mdts: usize,
    /// The metadata targets other than MDT0000 are added while programs run, within this time.
    pub added_within: Option<Duration>,
    /// Number of object targets.
    pub osts: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of processes with a subtree of their own.
    pub processes: usize,
    /// Calls of each process.
    pub calls: u32,
    /// Number of groups of processes that share a directory.
    pub groups: usize,
    /// What these groups do besides the usual calls.
    pub shared: SharedCalls,
    /// Number of groups of processes that write at different places of a file.
    pub writers: usize,
    /// There is a directory with many names.
    pub crowd: bool,
    /// All targets run in one server and crash together.
    pub one_server: bool,
    /// Latency of a frame, one way.
    pub network: Span,
    /// Duration of a load from the store.
    pub load: Span,
    /// Duration of a commit.
    pub commit: Span,
    /// Duration of an operation on a data file.
    pub data: Span,
    /// Time that the kernel takes to drop what it was asked to invalidate.
    pub kernel: Span,
    /// Percentage of calls after a pause.
    pub think_percent: u64,
    /// Length of such a pause.
    pub think: Span,
    /// Faults of the network.
    pub network_faults: NetworkFaults,
    /// Faults of machines.
    pub node_faults: NodeFaults,
    /// Faults of disks.
    pub disk_faults: DiskFaults,
    /// Targets: memory for clean records.
    pub cache_limit: usize,
    /// Targets: the longest time from a change to the commit of its group.
    pub commit_interval: Duration,
    /// Targets: memory for a collecting group.
    pub dirty_limit: usize,
    /// Clients: limit for dirty data.
    pub max_dirty: u64,
    /// Clients: limit for clean data.
    pub max_cached: u64,
    /// Clients: limit for read-ahead.
    pub max_read_ahead: u64,
    /// Metadata targets: changes that a client may have in flight.
    pub max_mod_rpcs: u16,
    /// By client: changes in flight; 0 is a client of version 0.1.0.
    pub slots: [u16; CLIENTS_MAX],
    /// By client: whether the server answers every change before the program continues (`sync_metadata`).
    pub sync_metadata: [bool; CLIENTS_MAX],
    /// Whether request timeouts adapt to measured service times; otherwise they are fixed.
    pub adaptive: bool,
    /// Clients: limit for nodes.
    pub max_nodes: usize,
    /// Clients: the longest time that data stays dirty.
    pub write_back_after: Duration,
    /// Of 1000 chances, how often the kernel forgets an unused inode.
    pub forgetful: u64,
    /// Largest file that programs make, in bytes.
    pub file_max: u64,
    /// Percentage of calls made by a user other than root.
    pub user_percent: u64,
    /// There is a client that breaks the protocol.
    pub liar: bool,
    /// An administrator sets persistent parameters and pools.
    pub configures: bool,
    /// Directories get other stripes.
    pub restripes: bool,
    /// The number of names of a stripe that move at a time then, and how long each waits before.
    pub names_moving: (usize, Duration),
    /// Further faults of the world.
    pub disturbances: Disturbances,
    /// Of 1000 calls that reach a client, how many are interrupted by a signal; some signals kill the program.
    pub signals: u64,
}

/// Draws one of several choices by weight.
pub(crate) fn pick<T: Copy>(rng: &mut Rng, choices: &[(u64, T)]) -> T {
    let total: u64 = choices.iter().map(|(weight, _)| weight).sum();
    let mut left = rng.below(total);
    for &(weight, choice) in choices {
        if left < weight {
            return choice;
        }
        left -= weight;
    }
    choices[0].1
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Plan {
        Plan::before_shared_calls(seed)
            .with_shared_calls()
            .with_writers()
            .with_crowd()
            .with_configuration()
            .with_restripes()
    }

    /// The plan as earlier versions drew it: processes that share directories make names, append and look.
    pub fn before_shared_calls(seed: u64) -> Plan {
        Plan::before_disturbances(seed).with_disturbances().with_signals().perhaps_quiet()
    }

    /// The plan as earlier versions drew it: no client is cut off.
    pub fn before_disturbances(seed: u64) -> Plan {
        Plan::before_full_disks(seed).with_disks()
    }

    /// The plan as drawn by the version that introduced writers of one file, and signals.
    pub fn with_many_writers(seed: u64) -> Plan {
        Plan::before_full_disks(seed).with_disks().with_writers().with_signals()
    }

    /// The plan as earlier versions drew it: disks are never full.
    pub fn before_full_disks(seed: u64) -> Plan {
        Plan::narrow(seed).widened().with_liar()
    }

    /// The plan as earlier versions drew it: few clients, and servers crash one at a time, anywhere in their work.
    pub fn narrow(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let profile = pick(
            rng,
            &[
                (2, Profile::Calm),
                (5, Profile::Network),
                (8, Profile::Servers),
                (4, Profile::Clients),
                (4, Profile::Power),
            ],
        );
        let plan = Plan {
            seed,
            profile,
            mdts: pick(rng, &[(4, 1), (2, 2), (1, 4)]),
            added_within: pick(
                rng,
                &[(1, None), (1, Some(Duration::from_millis(20))), (1, Some(Duration::from_secs(3)))],
            ),
            osts: pick(rng, &[(2, 1), (3, 2), (2, 3), (1, 5)]),
            clients: pick(rng, &[(1, 1), (4, 2), (3, 3), (1, 5)]),
            processes: rng.range(1, 4) as usize,
            calls: rng.range(20, 160) as u32,
            groups: rng.below(3) as usize,
            shared: SharedCalls::default(),
            writers: 0,
            crowd: false,
            one_server: rng.chance(1, 3),
            network: pick(rng, &[(3, Span::us(20, 60)), (2, Span::us(20, 500)), (1, Span::us(100, 20_000))]),
            load: pick(rng, &[(3, Span::us(5, 50)), (2, Span::us(20, 2_000))]),
            commit: pick(rng, &[(3, Span::us(100, 2_000)), (2, Span::us(1_000, 50_000)), (1, Span::us(10, 100))]),
            data: pick(rng, &[(3, Span::us(5, 200)), (2, Span::us(50, 20_000))]),
            kernel: pick(rng, &[(3, Span::us(1, 50)), (1, Span::us(50, 5_000))]),
            think_percent: pick(rng, &[(2, 0), (2, 5), (1, 30)]),
            think: pick(
                rng,
                &[(2, Span::us(10, 2_000)), (1, Span::us(1_000, 300_000)), (1, Span::us(1_000, 3_000_000))],
            ),
            network_faults: NetworkFaults::default(),
            node_faults: NodeFaults::default(),
            disk_faults: DiskFaults::default(),
            cache_limit: pick(rng, &[(1, 4 << 10), (1, 64 << 10), (2, 16 << 20)]),
            commit_interval: Duration::from_micros(pick(rng, &[(1, 500), (2, 5_000), (2, 100_000), (3, 1_000_000)])),
            dirty_limit: pick(rng, &[(1, 32 << 10), (3, 16 << 20)]),
            max_dirty: pick(rng, &[(1, 64 << 10), (2, 32 << 20)]),
            max_cached: pick(rng, &[(1, 64 << 10), (2, 32 << 20)]),
            max_read_ahead: pick(rng, &[(1, 0), (1, 64 << 10), (1, 4 << 20)]),
            max_mod_rpcs: 8,
            slots: [7; CLIENTS_MAX],
            sync_metadata: [true; CLIENTS_MAX],
            adaptive: false,
            max_nodes: pick(rng, &[(1, 16), (1, 50), (2, 10_000)]),
            write_back_after: Duration::from_millis(pick(rng, &[(1, 1), (2, 50), (2, 5_000)])),
            forgetful: pick(rng, &[(2, 0), (2, 10), (1, 300)]),
            file_max: pick(rng, &[(3, 100 << 10), (2, 400 << 10), (1, 3 << 20)]),
            user_percent: pick(rng, &[(1, 0), (2, 20), (1, 60)]),
            liar: false,
            configures: false,
            restripes: false,
            names_moving: (32, Duration::ZERO),
            disturbances: Disturbances::default(),
            signals: 0,
        };
        plan.with_faults(rng).with_slots().with_times().with_write_back()
    }

    /// Draws slots from a separate stream, so that a seed's other choices stay those of earlier versions.
    fn with_slots(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x5107_5107);
        self.max_mod_rpcs = pick(&mut rng, &[(1, 1), (3, 8), (3, 32), (1, 512)]);
        for slots in &mut self.slots {
            *slots = pick(&mut rng, &[(2, 0), (1, 1), (2, 2), (3, 7), (4, 32)]);
        }
        self
    }

    /// Draws `adaptive` from its own stream.
    fn with_times(mut self) -> Plan {
        self.adaptive = Rng::new(self.seed ^ 0xada7_ada7).chance(1, 3);
        self
    }

    /// Draws `sync_metadata` from its own stream.
    fn with_write_back(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0xbe41_bd00);
        let some = pick(&mut rng, &[(1, 0), (2, 50), (1, 100)]);
        for sync in &mut self.sync_metadata {
            *sync = !rng.chance(some, 100);
        }
        self
    }

    /// Request timeouts for servers and clients.
    pub fn timeouts(&self) -> Timeouts {
        if self.adaptive { Timeouts::default() } else { Timeouts::fixed(Duration::from_secs(10)) }
    }

    /// In some runs: many clients, many concurrent calls, crashes during recoveries and of several servers. From its own stream.
    fn widened(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x31de_31de);
        let rng = &mut rng;
        if rng.chance(1, 3) {
            self.clients = rng.range(1, CLIENTS_MAX as u64) as usize;
        }
        if rng.chance(1, 8) {
            // Enough processes to use every slot of a client.
            self.processes = rng.range(8, 40) as usize;
            self.calls = rng.range(4, 24) as u32;
        }
        if self.profile == Profile::Clients {
            self.clients = self.clients.max(2);
        }
        if self.node_faults.crash_every.is_some() {
            self.node_faults.recovery_permille = pick(rng, &[(2, 0), (1, 10), (1, 60), (1, 250)]);
            self.node_faults.together_percent = pick(rng, &[(2, 0), (1, 20), (1, 100)]);
        }
        if self.node_faults.crash_every.is_some() && self.mdts > 1 {
            let mut rng = Rng::new(self.seed ^ 0xc205_5c20);
            self.node_faults.cross_permille = pick(&mut rng, &[(2, 0), (1, 10), (1, 60)]);
        }
        self
    }

    /// Draws `liar` from its own stream.
    fn with_liar(mut self) -> Plan {
        self.liar = Rng::new(self.seed ^ 0x11a4_11a4).chance(1, 6);
        self
    }

    /// In some runs: disks that fill up, with or without other faults. From its own stream.
    fn with_disks(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0xd15c_d15c);
        let rng = &mut rng;
        if rng.chance(1, 4) {
            self.disk_faults = DiskFaults {
                fill_every: Some(Duration::from_millis(pick(rng, &[(1, 20), (2, 200), (1, 2_000)]))),
                stays_max: Duration::from_millis(pick(rng, &[(1, 50), (2, 2_000), (1, 20_000)])),
                leaves_max: pick(rng, &[(1, 0), (2, 16 << 10), (2, 1 << 20)]),
            };
        }
        self
    }

    /// Whether living clients may be evicted.
    pub fn evicts(&self) -> bool {
        self.disturbances.partitions.is_some() || self.disturbances.acts.is_some_and(|acts| acts.evicts)
    }

    /// Draws the disturbances from their own streams.
    fn with_disturbances(mut self) -> Plan {
        self.disturbances = Disturbances::draw(&self);
        // Whether clients may be evicted is known only now.
        self.disturbances.stalls = Stalls::draw(&self);
        if self.disturbances.io.is_some_and(|io| io.damage) {
            // With write-back, an unreadable record would lose changes that were acknowledged before their server had them, and
            // report the loss.
            self.sync_metadata = [true; CLIENTS_MAX];
        }
        self
    }

    /// Draws the shared calls from their own stream.
    fn with_shared_calls(self) -> Plan {
        Plan { shared: SharedCalls::draw(self.seed), ..self }
    }

    /// In some runs: a directory with many names. From its own stream. Only where no client dies, is evicted or unmounts: losses
    /// of such clients are judged by other programs.
    fn with_crowd(mut self) -> Plan {
        let drawn = Rng::new(self.seed ^ 0x0c20_0ded).chance(1, 20);
        self.crowd = drawn && self.profile < Profile::Clients && !self.evicts() && self.disturbances.acts.is_none();
        self
    }

    /// In some runs: an administrator at the management target. From its own stream. Not where fault sites of servers are armed:
    /// the administrator does not resend a request that a site drops.
    fn with_configuration(mut self) -> Plan {
        let drawn = Rng::new(self.seed ^ 0xc0_4f16).chance(1, 5);
        self.configures = drawn && self.disturbances.sites.is_none();
        self
    }

    /// In some runs: directories that get other stripes. From its own stream.
    fn with_restripes(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x0057_217e);
        self.restripes = rng.chance(1, 4);
        self.names_moving = pick(
            &mut rng,
            &[(1, (32, Duration::ZERO)), (1, (1, Duration::ZERO)), (2, (4, Duration::from_millis(300)))],
        );
        self
    }

    /// Signals, from their own stream. Not where disks are full or fail: a program killed in the middle of a retry has done a
    /// part of its work. Nor where clients are evicted or unmount: a killed program does not ask what was lost.
    fn with_signals(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x5161_5161);
        let signals = pick(&mut rng, &[(2, 0), (1, 5), (1, 20)]);
        let disks = self.disk_faults.fill_every.is_some() || self.disturbances.io.is_some();
        let lost = self.evicts() || self.disturbances.acts.is_some();
        self.signals = if disks || lost { 0 } else { signals };
        self
    }

    /// In some runs: no faults at all. From its own stream. There, the duration of calls is judged strictly.
    fn perhaps_quiet(mut self) -> Plan {
        if Rng::new(self.seed ^ 0x9e1e_7000).chance(1, 10) {
            self.profile = Profile::Calm;
            self.liar = false;
            (self.network_faults, self.node_faults) = (NetworkFaults::default(), NodeFaults::default());
            self.disk_faults = DiskFaults::default();
            let Disturbances { one_hash, slow_sync, .. } = self.disturbances;
            self.disturbances = Disturbances { one_hash, slow_sync, ..Disturbances::default() };
        }
        self
    }

    /// Whether the run has no faults.
    pub fn is_quiet(&self) -> bool {
        let Disturbances { partitions, mdt_partitions, stalls, acts, io, clocks: _, sites, one_hash: _, slow_sync: _ } =
            self.disturbances;
        self.profile == Profile::Calm
            && !self.liar
            && self.disk_faults.fill_every.is_none()
            && (partitions.is_none() && acts.is_none() && io.is_none() && sites.is_none())
            && (mdt_partitions.is_none() && stalls.is_none())
    }

    /// In some runs: processes that write at different places of one file. From its own stream. Not where disks are full or fail:
    /// other processes see that bytes are lost before the log says so, and a retried call may have taken effect before its
    /// failure.
    fn with_writers(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x3717_3717);
        self.writers = pick(&mut rng, &[(2, 0), (2, 1), (1, 2)]);
        if self.disk_faults.fill_every.is_some() || self.disturbances.io.is_some() {
            self.writers = 0;
        }
        self
    }

    /// A small cluster without faults, for stories that plan their own.
    pub fn still(seed: u64) -> Plan {
        Plan {
            seed,
            profile: Profile::Clients,
            mdts: 1,
            added_within: None,
            osts: 2,
            clients: 2,
            processes: 0,
            calls: 0,
            groups: 0,
            shared: SharedCalls::default(),
            writers: 0,
            crowd: false,
            one_server: false,
            network: Span::us(40, 60),
            load: Span::us(5, 20),
            commit: Span::us(100, 300),
            data: Span::us(5, 50),
            kernel: Span::us(1, 20),
            think_percent: 0,
            think: Span::us(0, 0),
            network_faults: NetworkFaults::default(),
            node_faults: NodeFaults::default(),
            disk_faults: DiskFaults::default(),
            cache_limit: 16 << 20,
            commit_interval: Duration::from_millis(2),
            dirty_limit: 16 << 20,
            max_dirty: 32 << 20,
            max_cached: 32 << 20,
            max_read_ahead: 64 << 10,
            max_mod_rpcs: 8,
            slots: [7; CLIENTS_MAX],
            // Only the two clients that exist from the start: those mounted later write metadata back.
            sync_metadata: core::array::from_fn(|client| client < 2),
            adaptive: false,
            max_nodes: 10_000,
            write_back_after: Duration::from_millis(50),
            forgetful: 0,
            file_max: 1 << 20,
            user_percent: 0,
            liar: false,
            configures: false,
            restripes: false,
            names_moving: (32, Duration::ZERO),
            disturbances: Disturbances { slow_sync: true, ..Disturbances::default() },
            signals: 0,
        }
    }

    /// The same with processes that share directories and files and make these calls, and nothing else.
    pub fn calls(seed: u64, shared: SharedCalls) -> Plan {
        Plan { shared, groups: 16, ..Plan::still(seed) }
    }

    /// The same with processes that share directories and files, and nothing else.
    pub fn shared(seed: u64) -> Plan {
        Plan { groups: 4, ..Plan::still(seed) }
    }

    fn with_faults(mut self, rng: &mut Rng) -> Plan {
        let network = self.profile != Profile::Calm && (self.profile == Profile::Network || rng.chance(1, 2));
        if network {
            let mut chance = || pick(rng, &[(3, 0), (2, 300), (2, 2_000), (1, 15_000)]);
            self.network_faults =
                NetworkFaults { lost: chance(), doubled: chance(), late: chance() / 4, cut: chance(), dial: 0 };
            self.network_faults.dial = pick(rng, &[(1, 0), (1, 50_000), (1, 300_000)]);
        }
        if self.profile >= Profile::Servers {
            self.node_faults.crash_every = match self.profile {
                Profile::Servers => Some(pick(rng, &[(1, 5), (2, 40), (2, 300), (1, 3_000)])),
                _ => pick(rng, &[(2, None), (1, Some(60)), (1, Some(1_000))]),
            }
            .map(Duration::from_millis);
            self.node_faults.pause_max = Duration::from_millis(pick(rng, &[(1, 1), (2, 100), (1, 3_000)]));
            self.node_faults.power_percent = pick(rng, &[(1, 0), (1, 50), (1, 100)]);
        }
        if self.profile == Profile::Clients {
            self.node_faults.death_every = Some(Duration::from_millis(pick(rng, &[(1, 20), (1, 150), (1, 1_500)])));
            self.clients = self.clients.max(2);
        }
        self
    }
}
