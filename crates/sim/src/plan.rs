//! What a run is: sizes, settings and faults, all drawn from its seed.
//!
//! Swarm: not only do faults fall by chance, how likely each is is drawn too, and often it is "never". So a thousand
//! seeds are a thousand different tests, and a failure that needs quiet in one place and noise in another is met.

use core::time::Duration;

use rpc::at::Timeouts;
use stdx::Rng;

use crate::disturb::Disturbances;

/// What kinds of faults a run has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Profile {
    /// None.
    Calm,
    /// The network only.
    Network,
    /// Servers are killed and come back; the network too.
    Servers,
    /// Clients die for good; servers and network too.
    Clients,
    /// As `Servers`, and at the end the power fails everywhere.
    Power,
}

impl Profile {
    /// Every one.
    pub const ALL: [Profile; 5] = [Profile::Calm, Profile::Network, Profile::Servers, Profile::Clients, Profile::Power];

    /// Its name.
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

/// A time between two bounds, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// At least.
    pub low_us: u64,
    /// At most.
    pub high_us: u64,
}

impl Span {
    /// Between these.
    pub const fn us(low_us: u64, high_us: u64) -> Span {
        Span { low_us, high_us }
    }

    /// One of them.
    pub fn draw(self, rng: &mut Rng) -> Duration {
        Duration::from_nanos(rng.range(self.low_us * 1000, self.high_us * 1000))
    }
}

/// Faults of the network; chances are per million frames (or dials).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkFaults {
    /// A frame is lost.
    pub lost: u64,
    /// A frame comes twice.
    pub doubled: u64,
    /// A frame, and what follows it on its connection, comes late, by seconds.
    pub late: u64,
    /// The connection is cut.
    pub cut: u64,
    /// A dial fails.
    pub dial: u64,
}

/// Faults of machines; `None` is never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeFaults {
    /// Mean time between kills of a server.
    pub crash_every: Option<Duration>,
    /// A server that was killed comes back after at most this long.
    pub pause_max: Duration,
    /// Of 100 crashes so many take data that was written but not synced with them (power, not a kill).
    pub power_percent: u64,
    /// Mean time between deaths of clients.
    pub death_every: Option<Duration>,
    /// Of 1000 steps of a server's recovery (a client comes back, replays, or says that it has done so) so many are its last.
    pub recovery_permille: u64,
    /// Of 100 crashes so many take another server with them.
    pub together_percent: u64,
}

/// Faults of disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskFaults {
    /// Mean time until others fill the disk of some server; `None` is never.
    pub fill_every: Option<Duration>,
    /// They free it after at most this long.
    pub stays_max: Duration,
    /// They leave at most so many bytes.
    pub leaves_max: u64,
}

/// What processes in shared groups do beside making, renaming and removing names, and appending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharedCalls {
    /// Of 100 calls so many are made by users who are not root.
    pub user_percent: u64,
    /// Extended attributes.
    pub xattrs: bool,
    /// Access lists.
    pub lists: bool,
    /// Owners, permission bits of all kinds, times, `access`.
    pub owners: bool,
    /// Pipes, sockets and devices.
    pub specials: bool,
    /// Space is allocated, and holes are punched.
    pub ranges: bool,
    /// Files are opened with `O_DIRECT`, too.
    pub direct: bool,
    /// A further client is mounted read-only.
    pub read_only: bool,
}

impl SharedCalls {
    /// Every kind, and users.
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

    /// From a stream of its own.
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

/// Clients of a run.
pub(crate) const CLIENTS_MAX: usize = 8;

/// Everything that is drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Kinds of faults.
    pub profile: Profile,
    /// Object targets.
    pub osts: usize,
    /// Clients.
    pub clients: usize,
    /// Processes with a subtree of their own.
    pub processes: usize,
    /// Calls of each.
    pub calls: u32,
    /// Groups of processes that share a directory.
    pub groups: usize,
    /// What these do beside the usual.
    pub shared: SharedCalls,
    /// Groups of processes that write at different places of a file.
    pub writers: usize,
    /// There is a directory with many names.
    pub crowd: bool,
    /// All targets live and die together.
    pub one_server: bool,
    /// One way of a frame.
    pub network: Span,
    /// A load.
    pub load: Span,
    /// A commit.
    pub commit: Span,
    /// An operation on a data file.
    pub data: Span,
    /// The kernel drops what it is told to drop.
    pub kernel: Span,
    /// Of 100 calls so many come after a pause.
    pub think_percent: u64,
    /// Such a pause.
    pub think: Span,
    /// Faults of the network.
    pub network_faults: NetworkFaults,
    /// Faults of machines.
    pub node_faults: NodeFaults,
    /// Faults of disks.
    pub disk_faults: DiskFaults,
    /// Targets: memory for clean records.
    pub cache_limit: usize,
    /// Targets: longest time between a change and the moment its group leaves.
    pub commit_interval: Duration,
    /// Targets: memory for a collecting group.
    pub dirty_limit: usize,
    /// Clients: dirty data.
    pub max_dirty: u64,
    /// Clients: clean data.
    pub max_cached: u64,
    /// Clients: read-ahead.
    pub max_read_ahead: u64,
    /// Metadata targets: changes that a client may have in flight.
    pub max_mod_rpcs: u16,
    /// Clients, in turn: changes in flight; 0: a client of version 0.1.0.
    pub slots: [u16; CLIENTS_MAX],
    /// Clients, in turn: every change is answered by the server before the program goes on.
    pub sync_metadata: [bool; CLIENTS_MAX],
    /// How long requests may take follows from how long they took; otherwise it is fixed.
    pub adaptive: bool,
    /// Clients: nodes.
    pub max_nodes: usize,
    /// Clients: dirty data is written at the latest after this.
    pub write_back_after: Duration,
    /// Of 1000 chances the kernel forgets an inode that nothing needs.
    pub forgetful: u64,
    /// Largest file that programs make, in bytes.
    pub file_max: u64,
    /// Of 100 calls so many are made by a user who is not root.
    pub user_percent: u64,
    /// There is a client that lies.
    pub liar: bool,
    /// An administrator sets persistent parameters and pools.
    pub configures: bool,
    /// What else goes wrong with the world.
    pub disturbances: Disturbances,
    /// Of 1000 calls that reach a client so many meet a signal; some of these kill the program.
    pub signals: u64,
}

/// One of several, with weights.
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
        Plan::before_shared_calls(seed).with_shared_calls().with_writers().with_crowd().with_configuration()
    }

    /// The same as earlier versions drew it: processes that share directories make names, append and look.
    pub fn before_shared_calls(seed: u64) -> Plan {
        Plan::before_disturbances(seed).with_disturbances().with_signals().perhaps_quiet()
    }

    /// The same as earlier versions drew it: nobody is cut off.
    pub fn before_disturbances(seed: u64) -> Plan {
        Plan::before_full_disks(seed).with_disks()
    }

    /// The same as the version drew it that brought writers of one file, and signals.
    pub fn with_many_writers(seed: u64) -> Plan {
        Plan::before_full_disks(seed).with_disks().with_writers().with_signals()
    }

    /// The same as earlier versions drew it: disks are never full.
    pub fn before_full_disks(seed: u64) -> Plan {
        Plan::narrow(seed).widened().with_liar()
    }

    /// The same as earlier versions drew it: few clients, and servers crash one at a time, wherever they are.
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
            disturbances: Disturbances::default(),
            signals: 0,
        };
        plan.with_faults(rng).with_slots().with_times().with_write_back()
    }

    /// Slots are drawn from another stream, so that a seed's other choices are those of earlier versions.
    fn with_slots(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x5107_5107);
        self.max_mod_rpcs = pick(&mut rng, &[(1, 1), (3, 8), (3, 32), (1, 512)]);
        for slots in &mut self.slots {
            *slots = pick(&mut rng, &[(2, 0), (1, 1), (2, 2), (3, 7), (4, 32)]);
        }
        self
    }

    /// From a stream of its own, too.
    fn with_times(mut self) -> Plan {
        self.adaptive = Rng::new(self.seed ^ 0xada7_ada7).chance(1, 3);
        self
    }

    /// Likewise.
    fn with_write_back(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0xbe41_bd00);
        let some = pick(&mut rng, &[(1, 0), (2, 50), (1, 100)]);
        for sync in &mut self.sync_metadata {
            *sync = !rng.chance(some, 100);
        }
        self
    }

    /// How long requests may take, for servers and clients.
    pub fn timeouts(&self) -> Timeouts {
        if self.adaptive { Timeouts::default() } else { Timeouts::fixed(Duration::from_secs(10)) }
    }

    /// Many clients, many calls at once, crashes of recoveries and of several servers: in some runs, from a stream of their own.
    fn widened(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x31de_31de);
        let rng = &mut rng;
        if rng.chance(1, 3) {
            self.clients = rng.range(1, CLIENTS_MAX as u64) as usize;
        }
        if rng.chance(1, 8) {
            // So many processes that every slot of a client is in use.
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
        self
    }

    /// From a stream of its own.
    fn with_liar(mut self) -> Plan {
        self.liar = Rng::new(self.seed ^ 0x11a4_11a4).chance(1, 6);
        self
    }

    /// Disks that fill, with and without all else that goes wrong: in some runs, from a stream of their own.
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

    /// Whether clients that live may be evicted.
    pub fn evicts(&self) -> bool {
        self.disturbances.partitions.is_some() || self.disturbances.acts.is_some_and(|acts| acts.evicts)
    }

    /// From streams of their own.
    fn with_disturbances(mut self) -> Plan {
        self.disturbances = Disturbances::draw(&self);
        if self.disturbances.io.is_some_and(|io| io.damage) {
            // What was answered before its server knew of it would be lost with a record that cannot be read, and told.
            self.sync_metadata = [true; CLIENTS_MAX];
        }
        self
    }

    /// From a stream of its own.
    fn with_shared_calls(self) -> Plan {
        Plan { shared: SharedCalls::draw(self.seed), ..self }
    }

    /// A directory with many names: in some runs, from a stream of its own. Only where no client dies, is evicted or unmounts: what is lost with
    /// one is judged elsewhere.
    fn with_crowd(mut self) -> Plan {
        let drawn = Rng::new(self.seed ^ 0x0c20_0ded).chance(1, 20);
        self.crowd = drawn && self.profile < Profile::Clients && !self.evicts() && self.disturbances.acts.is_none();
        self
    }

    /// An administrator at the management target: in some runs, from a stream of its own. Not where sites of servers are armed: a request that
    /// is dropped there is not sent again.
    fn with_configuration(mut self) -> Plan {
        let drawn = Rng::new(self.seed ^ 0xc0_4f16).chance(1, 5);
        self.configures = drawn && self.disturbances.sites.is_none();
        self
    }

    /// Signals, from a stream of their own. Not where disks are full or fail: a program that is killed in the middle of trying again has done
    /// a part. Nor where clients are evicted or unmount: a killed program asks nobody what was lost with them.
    fn with_signals(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x5161_5161);
        let signals = pick(&mut rng, &[(2, 0), (1, 5), (1, 20)]);
        let disks = self.disk_faults.fill_every.is_some() || self.disturbances.io.is_some();
        let lost = self.evicts() || self.disturbances.acts.is_some();
        self.signals = if disks || lost { 0 } else { signals };
        self
    }

    /// Without any fault, in some runs, from a stream of their own: how long calls take is judged strictly there.
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

    /// Whether nothing goes wrong.
    pub fn is_quiet(&self) -> bool {
        let Disturbances { partitions, acts, io, clocks: _, sites, one_hash: _, slow_sync: _ } = self.disturbances;
        self.profile == Profile::Calm
            && !self.liar
            && self.disk_faults.fill_every.is_none()
            && (partitions.is_none() && acts.is_none() && io.is_none() && sites.is_none())
    }

    /// Processes that write at different places of one file: in some runs, from a stream of their own. Not where disks are full or fail:
    /// others see that bytes are lost before the log says so, and a call that failed and is made again may have shown its effect before.
    fn with_writers(mut self) -> Plan {
        let mut rng = Rng::new(self.seed ^ 0x3717_3717);
        self.writers = pick(&mut rng, &[(2, 0), (2, 1), (1, 2)]);
        if self.disk_faults.fill_every.is_some() || self.disturbances.io.is_some() {
            self.writers = 0;
        }
        self
    }

    /// A small cluster without faults, for stories in which one is planned.
    pub fn still(seed: u64) -> Plan {
        Plan {
            seed,
            profile: Profile::Clients,
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
            // Those that come later do otherwise.
            sync_metadata: core::array::from_fn(|client| client < 2),
            adaptive: false,
            max_nodes: 10_000,
            write_back_after: Duration::from_millis(50),
            forgetful: 0,
            file_max: 1 << 20,
            user_percent: 0,
            liar: false,
            configures: false,
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
