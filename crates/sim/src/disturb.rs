//! What disturbs the world of a run beyond lost frames, crashes and full disks: partitions of clients that live on.
//!
//! Each kind is drawn from a stream of its own, and falls in a part of the seeds only: what a seed draws otherwise does not change
//! when a kind is added. Until a plan draws one, it has none ([`Disturbances::default`]).

use core::time::Duration;

use stdx::Rng;

use crate::plan::{Plan, Profile, pick};

/// Everything that is drawn here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disturbances {
    /// Clients that are cut off for a while.
    pub partitions: Option<Partitions>,
}

/// Partitions: nothing arrives for a while, in one direction or both, between a living client and some servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partitions {
    /// Mean time until the next one begins.
    pub every: Duration,
    /// It lasts at least so long,
    pub least: Duration,
    /// and at most so long.
    pub most: Duration,
    /// No more than so many in a run.
    pub count: u64,
}

impl Disturbances {
    /// Those of a plan that is drawn but for them.
    pub fn draw(plan: &Plan) -> Disturbances {
        Disturbances { partitions: Partitions::draw(plan) }
    }
}

impl Partitions {
    fn draw(plan: &Plan) -> Option<Partitions> {
        let mut rng = Rng::new(plan.seed ^ 0x9a27_9a27);
        let rng = &mut rng;
        // Beside a liar nobody else may be evicted, in a world that loses its power at the end all clients die anyway, and what a full
        // disk takes is judged where nothing else takes anything.
        let full = plan.disk_faults.fill_every.is_some();
        if !rng.chance(1, 5) || plan.profile == Profile::Power || plan.liar || full {
            return None;
        }
        // Within the time in which a lock is waited for, about that time, beyond the time in which a silent client is kept.
        let (least, most) = pick(rng, &[(1, (1, 15)), (3, (15, 90)), (2, (90, 400))]);
        Some(Partitions {
            every: Duration::from_millis(pick(rng, &[(1, 5), (2, 40), (2, 300), (1, 3_000)])),
            least: Duration::from_secs(least),
            most: Duration::from_secs(most),
            count: rng.range(1, 4),
        })
    }
}
