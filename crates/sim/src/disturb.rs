//! Disturbances of a run beyond lost frames, crashes and full disks: partitions of clients that live on, acts of administrators,
//! failing disks, differing clocks, faults at named sites, names that collide.
//!
//! Each kind is drawn from its own random stream and occurs in some of the seeds only, so adding a kind does not change what a
//! seed draws otherwise. The default is no disturbance ([`Disturbances::default`]).

use core::time::Duration;

use stdx::Rng;

use crate::plan::{Plan, Profile, pick};

/// All disturbances.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disturbances {
    /// Clients that are cut off for a while.
    pub partitions: Option<Partitions>,
    /// Pairs of metadata targets that are cut off from each other for a while.
    pub mdt_partitions: Option<Partitions>,
    /// Metadata targets whose disks stand still for a while.
    pub stalls: Option<Stalls>,
    /// Acts of administrators.
    pub acts: Option<Acts>,
    /// Failing disks.
    pub io: Option<Io>,
    /// Wall clocks of clients that differ and are set.
    pub clocks: Option<ClockSteps>,
    /// Faults at named sites of servers and clients.
    pub sites: Option<SiteFaults>,
    /// Processes choose names that all have one hash.
    pub one_hash: bool,
    /// Syncing data files takes as long as a commit of a store.
    pub slow_sync: bool,
}

/// Partitions: for a while nothing arrives, in one direction or both, between a living client and some servers, or between two
/// metadata targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partitions {
    /// Mean time until the next one starts.
    pub every: Duration,
    /// Shortest duration.
    pub least: Duration,
    /// Longest duration.
    pub most: Duration,
    /// The most of them in a run.
    pub count: u64,
}

/// Commits of one metadata target that take long, while everything else goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stalls {
    /// Mean time until the next one.
    pub every: Duration,
    /// The longest duration.
    pub most: Duration,
    /// The most of them in a run.
    pub count: u64,
}

/// Acts of administrators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acts {
    /// Mean time until the next one.
    pub every: Duration,
    /// The most of them in a run.
    pub count: u64,
    /// Whether clients are evicted, too.
    pub evicts: bool,
}

/// Disks that fail and are repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// Mean time until the next failure.
    pub every: Duration,
    /// The most of them in a run.
    pub count: u64,
    /// Commits fail, which stops the target.
    pub commits: bool,
    /// Records become unreadable for a while.
    pub damage: bool,
    /// The longest duration of such damage.
    pub stays_max: Duration,
}

/// Wall clocks that differ between clients, and are set forward and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockSteps {
    /// Mean time until the next clock is set.
    pub every: Duration,
    /// The most of them in a run.
    pub count: u64,
    /// The largest difference.
    pub most: Duration,
}

/// Faults at the sites of `fail_loc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteFaults {
    /// Mean time until the next one is armed.
    pub every: Duration,
    /// The most of them in a run.
    pub count: u64,
    /// The longest time that a site stays armed.
    pub stays_max: Duration,
}

impl Disturbances {
    /// Draws the disturbances of a plan that is otherwise complete.
    pub fn draw(plan: &Plan) -> Disturbances {
        let partitions = Partitions::draw(plan);
        let acts = Acts::draw(plan, partitions.is_some());
        let io = Io::draw(plan, partitions.is_some() || acts.is_some_and(|acts| acts.evicts));
        let slow_sync = Rng::new(plan.seed ^ 0x510a_510a).chance(1, 3);
        let sites = SiteFaults::draw(plan, partitions.is_some() || acts.is_some_and(|acts| acts.evicts));
        // The hash has no key in such runs, so programs can choose colliding names.
        let one_hash = plan.seed.is_multiple_of(2) && Rng::new(plan.seed ^ 0x0ea5_0ea5).chance(1, 3);
        let mdt_partitions = Partitions::draw_of_mdts(plan);
        let (clocks, stalls) = (ClockSteps::draw(plan), None);
        Disturbances { partitions, mdt_partitions, stalls, acts, io, slow_sync, clocks, sites, one_hash }
    }
}

impl Acts {
    fn draw(plan: &Plan, partitions: bool) -> Option<Acts> {
        let mut rng = Rng::new(plan.seed ^ 0xac70_ac70);
        let rng = &mut rng;
        if !rng.chance(1, 5) || plan.profile == Profile::Power || plan.liar {
            return None;
        }
        let full = plan.disk_faults.fill_every.is_some();
        Some(Acts {
            every: Duration::from_millis(pick(rng, &[(1, 3), (2, 30), (2, 300), (1, 3_000)])),
            count: rng.range(1, 16),
            evicts: partitions || !full && rng.chance(1, 2),
        })
    }
}

impl Io {
    /// Losses of a failing disk are judged only in runs where no eviction loses anything.
    fn draw(plan: &Plan, evicts: bool) -> Option<Io> {
        let mut rng = Rng::new(plan.seed ^ 0x10e0_10e0);
        let rng = &mut rng;
        if !rng.chance(1, 6) || evicts || plan.profile >= Profile::Clients || plan.liar {
            return None;
        }
        let quiet = plan.profile < Profile::Servers;
        Some(Io {
            every: Duration::from_millis(pick(rng, &[(1, 3), (2, 30), (2, 300)])),
            count: rng.range(1, 12),
            commits: !quiet,
            damage: quiet,
            stays_max: Duration::from_millis(pick(rng, &[(1, 50), (2, 2_000)])),
        })
    }
}

impl ClockSteps {
    fn draw(plan: &Plan) -> Option<ClockSteps> {
        let mut rng = Rng::new(plan.seed ^ 0xc10c_c10c);
        let rng = &mut rng;
        rng.chance(1, 6).then(|| ClockSteps {
            every: Duration::from_millis(pick(rng, &[(1, 3), (2, 30), (2, 300)])),
            count: rng.below(16),
            most: pick(
                rng,
                &[(1, Duration::from_millis(2)), (2, Duration::from_secs(2)), (2, Duration::from_secs(90_000))],
            ),
        })
    }
}

impl SiteFaults {
    /// The request that a site drops or delays can be the one that gives a lock back: only in runs where such a delay evicts no
    /// client.
    fn draw(plan: &Plan, evicts: bool) -> Option<SiteFaults> {
        let mut rng = Rng::new(plan.seed ^ 0x517e_517e);
        let rng = &mut rng;
        if !rng.chance(1, 5) || evicts || plan.profile >= Profile::Clients || plan.liar {
            return None;
        }
        Some(SiteFaults {
            every: Duration::from_millis(pick(rng, &[(1, 3), (2, 30), (2, 300)])),
            count: rng.range(1, 16),
            stays_max: Duration::from_millis(pick(rng, &[(1, 50), (2, 2_000), (1, 12_000)])),
        })
    }
}

impl Stalls {
    /// Draws the stalls of a plan whose other disturbances are drawn.
    pub fn draw(plan: &Plan) -> Option<Stalls> {
        let mut rng = Rng::new(plan.seed ^ 0x57a1_157a);
        let rng = &mut rng;
        if plan.mdts < 2 || !rng.chance(1, 3) {
            return None;
        }
        // Up to a minute, where no client may be evicted because it waits for that disk.
        let evicts = plan.profile >= Profile::Clients || plan.liar || plan.evicts();
        let long = if evicts { 2_000 } else { 60_000 };
        Some(Stalls {
            every: Duration::from_millis(pick(rng, &[(1, 5), (2, 40), (2, 300), (1, 3_000)])),
            most: Duration::from_millis(pick(rng, &[(2, 20), (2, 400), (1, long)])),
            count: rng.range(1, 12),
        })
    }
}

impl Partitions {
    fn draw_of_mdts(plan: &Plan) -> Option<Partitions> {
        let mut rng = Rng::new(plan.seed ^ 0x9a27_9a29);
        let rng = &mut rng;
        if plan.mdts < 2 || !rng.chance(1, 3) {
            return None;
        }
        let (least, most) = pick(rng, &[(1, (0, 1)), (2, (1, 15)), (1, (15, 90))]);
        Some(Partitions {
            every: Duration::from_millis(pick(rng, &[(1, 5), (2, 40), (2, 300), (1, 3_000)])),
            least: Duration::from_secs(least),
            most: Duration::from_secs(most),
            count: rng.range(1, 6),
        })
    }

    fn draw(plan: &Plan) -> Option<Partitions> {
        let mut rng = Rng::new(plan.seed ^ 0x9a27_9a27);
        let rng = &mut rng;
        // No client beside a liar may be evicted; where the power fails at the end, all clients die anyway; and losses of a full
        // disk are judged only where nothing else loses anything.
        let full = plan.disk_faults.fill_every.is_some();
        if !rng.chance(1, 5) || plan.profile == Profile::Power || plan.liar || full {
            return None;
        }
        // Within the lock timeout, about that timeout, and beyond the time after which a silent client is given up.
        let (least, most) = pick(rng, &[(1, (1, 15)), (3, (15, 90)), (2, (90, 400))]);
        Some(Partitions {
            every: Duration::from_millis(pick(rng, &[(1, 5), (2, 40), (2, 300), (1, 3_000)])),
            least: Duration::from_secs(least),
            most: Duration::from_secs(most),
            count: rng.range(1, 4),
        })
    }
}
