//! A fault at one chosen step: stories run once for each step at which the fault can strike.

use core::time::Duration;

use super::faults::Fate;
use super::{World, WorldEvent};

/// The kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    /// A server is killed after some event.
    Crash(usize),
    /// The same, and what was written but not synced is lost.
    Power(usize),
    /// Two servers are killed after some event.
    CrashBoth(usize, usize),
    /// A client dies after some event.
    Die(usize),
    /// A frame is lost, and its connection breaks.
    Lose,
    /// A frame is duplicated.
    Double,
    /// A frame is lost, and a server is killed.
    LoseAndCrash(usize),
    /// A frame is lost without its connection, and a server is killed after all its changes have become durable and before any
    /// node has missed the frame.
    LoseAndCrashLate(usize),
}

/// A fault that waits for its step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// The kind of fault.
    pub strike: Strike,
    /// Remaining steps: events for a crash, frames for the other kinds.
    pub left: u64,
    /// Whether steps count.
    pub armed: bool,
    /// Whether the fault has struck.
    pub sprung: bool,
}

/// Time after which a server's changes must be durable.
const LATE: Duration = Duration::from_secs(2);
/// Time until a killed server restarts.
const PAUSE: Duration = Duration::from_millis(1);

impl Strike {
    /// Whether its steps are events rather than frames.
    fn is_after_event(self) -> bool {
        matches!(self, Strike::Crash(_) | Strike::Power(_) | Strike::CrashBoth(..) | Strike::Die(_))
    }
}

impl Trap {
    /// A fault at this step.
    pub fn new(strike: Strike, step: u64) -> Trap {
        Trap { strike, left: step, armed: false, sprung: false }
    }

    /// Counts a step. Returns whether the fault strikes now.
    fn step(&mut self) -> bool {
        if !self.armed || self.sprung {
            return false;
        }
        self.sprung = self.left == 0;
        self.left = self.left.saturating_sub(1);
        self.sprung
    }
}

impl World {
    /// Counts an event.
    pub(super) fn trap_event(&mut self) {
        let Some(trap) = self.trap.as_mut().filter(|trap| trap.strike.is_after_event()) else { return };
        let strike = trap.strike;
        if !trap.step() {
            return;
        }
        match strike {
            Strike::Crash(server) | Strike::Power(server) => self.push(self.now, WorldEvent::Kill { server }),
            Strike::CrashBoth(one, other) => {
                self.push(self.now, WorldEvent::Kill { server: one });
                self.push(self.now, WorldEvent::Kill { server: other });
            }
            Strike::Die(client) => self.push(self.now, WorldEvent::Die { client }),
            _ => {}
        }
    }

    /// Counts a frame. Returns its fate if the fault strikes it.
    pub(super) fn trap_frame(&mut self) -> Option<Fate> {
        let trap = self.trap.as_mut().filter(|trap| !trap.strike.is_after_event())?;
        if !trap.step() {
            return None;
        }
        let mut fate = Fate { copies: 0, late: Duration::ZERO, cut_after: Some(Duration::from_micros(50)) };
        match trap.strike {
            Strike::Double => fate = Fate { copies: 2, cut_after: None, ..fate },
            Strike::LoseAndCrash(server) => self.push(self.now, WorldEvent::Kill { server }),
            Strike::LoseAndCrashLate(server) => {
                fate.cut_after = None;
                self.push(self.now + LATE, WorldEvent::Kill { server });
            }
            _ => {}
        }
        Some(fate)
    }

    /// Kills a server, or cuts its power, and restarts it.
    pub(super) fn kill(&mut self, server: usize, power: bool) {
        if self.servers[server].machine.is_some() {
            self.faults.counts.crashes += 1;
            self.crash(server, power);
            self.start_server(server, PAUSE);
        }
    }
}
