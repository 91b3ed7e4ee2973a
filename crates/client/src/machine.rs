//! The machine: events in, attempts, effects out.

use stdx::Instant;

use crate::api::{Effect, Event, Options};
use crate::world::World;

/// A mounted client.
pub struct Client {
    w: World,
}

impl Client {
    /// A client that begins to mount.
    pub fn new(options: Options) -> Client {
        Client { w: World::new(options) }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Instant, event: Event) {
        self.w.now = now;
        let _ = event;
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Effect> {
        self.w.effects.pop_front()
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }
}
