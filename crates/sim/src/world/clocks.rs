//! Wall clocks of clients: they differ, and are set forward and back during a run.
//!
//! The times of a change come from the client that made it, so the model takes the clock of that client into account
//! ([`Sched::when`]).
//!
//! [`Sched::when`]: crate::sched::Sched::when

use core::time::Duration;

use stdx::Rng;

use super::faults::{Fault, around};
use super::{World, WorldEvent};
use crate::disturb::ClockSteps;

/// The source of clock settings.
#[derive(Debug)]
pub(super) struct WallClocks {
    plan: Option<ClockSteps>,
    left: u64,
    rng: Rng,
}

impl WallClocks {
    /// Clock settings according to the plan.
    pub(super) fn new(plan: &crate::plan::Plan) -> WallClocks {
        let planned = plan.disturbances.clocks;
        WallClocks { plan: planned, left: planned.map_or(0, |of| of.count), rng: Rng::new(plan.seed ^ 0xc10c_c10d) }
    }
}

impl World {
    /// The wall clock of a client.
    pub(super) fn wall_of(&self, client: usize) -> i64 {
        self.wall_ns() + self.sched.clock_offset(client)
    }

    /// Sets a client's clock to a random offset.
    pub(super) fn set_clock(&mut self, client: usize) {
        let Some(planned) = self.wall_clocks.plan else { return };
        let most = planned.most.as_nanos() as u64;
        let offset = self.wall_clocks.rng.below(2 * most) as i64 - most as i64;
        self.sched.set_clock(client, self.now, offset);
        self.trace.note(self.now, &[60, client as u64, offset as u64], || {
            format!(
                "the clock of client {client} is off by {:?}{}",
                Duration::from_nanos(offset.unsigned_abs()),
                if offset < 0 { ", slow" } else { "" }
            )
        });
    }

    /// Schedules the next setting.
    pub(super) fn plan_clock(&mut self) {
        let Some(planned) = self.wall_clocks.plan.filter(|_| self.wall_clocks.left > 0) else { return };
        let delay = around(&mut self.wall_clocks.rng, planned.every);
        self.after(delay, WorldEvent::Fault(Fault::Clock));
    }

    /// Sets the clock of some client.
    pub(super) fn step_clock(&mut self) {
        self.wall_clocks.left -= 1;
        if !self.mounts.is_empty() {
            let client = self.wall_clocks.rng.below(self.mounts.len() as u64) as usize;
            self.faults.counts.clock_steps += 1;
            self.set_clock(client);
        }
    }
}
