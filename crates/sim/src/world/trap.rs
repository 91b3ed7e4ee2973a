//! One fault at one chosen step: how named scenarios strike at every point of a story, one run for each.

use core::time::Duration;

use super::faults::Fate;
use super::{World, WorldEvent};

/// What strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    /// A server is killed after some event.
    Crash(usize),
    /// The same, and what was written and not synced is lost, too.
    Power(usize),
    /// Some frame, and its connection, is lost.
    Lose,
    /// Some frame comes twice.
    Double,
    /// Some frame is lost, and a server is killed.
    LoseAndCrash(usize),
    /// Some frame is lost without its connection, and a server is killed when all that it has done is durable, before anybody has
    /// missed the frame.
    LoseAndCrashLate(usize),
}

/// A fault that waits for its step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// What strikes.
    pub strike: Strike,
    /// Steps until then: events for a crash, frames for the others.
    pub left: u64,
    /// Steps count.
    pub armed: bool,
    /// It has struck.
    pub sprung: bool,
}

/// So late a server is killed whose changes must be durable by then.
const LATE: Duration = Duration::from_secs(2);
/// A server that was killed comes back after this.
const PAUSE: Duration = Duration::from_millis(1);

impl Trap {
    /// At this step.
    pub fn new(strike: Strike, step: u64) -> Trap {
        Trap { strike, left: step, armed: false, sprung: false }
    }

    /// A step; whether it is the one.
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
    /// An event has happened.
    pub(super) fn trap_event(&mut self) {
        if let Some(trap) = &mut self.trap
            && let Strike::Crash(server) | Strike::Power(server) = trap.strike
            && trap.step()
        {
            self.push(self.now, WorldEvent::Kill { server });
        }
    }

    /// What happens to a frame that is sent, if it is the one.
    pub(super) fn trap_frame(&mut self) -> Option<Fate> {
        let trap = self.trap.as_mut().filter(|trap| !matches!(trap.strike, Strike::Crash(_) | Strike::Power(_)))?;
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
            Strike::Lose | Strike::Crash(_) | Strike::Power(_) => {}
        }
        Some(fate)
    }

    /// A server is killed, or loses its power, and comes back.
    pub(super) fn kill(&mut self, server: usize, power: bool) {
        if self.servers[server].machine.is_some() {
            self.faults.counts.crashes += 1;
            self.crash(server, power);
            self.start_server(server, PAUSE);
        }
    }
}
