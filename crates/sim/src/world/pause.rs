//! Nodes that stop and continue: a process under SIGSTOP, a paused virtual machine. And servers that are busy for a moment, so
//! that several frames arrive between two turns of their driver.
//!
//! Nothing reaches a paused node; whatever arrives waits and is delivered when the node continues, before any tick. Each node has
//! a driver's clock ([`RunningTime`]), which hides the pause from its machine.

use core::time::Duration;
use std::collections::BTreeMap;

use stdx::{Instant, RunningTime};

use super::net::Node;
use super::{World, WorldEvent};

/// The clocks of all nodes, and the paused nodes.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    running: BTreeMap<Node, RunningTime>,
    paused: BTreeMap<Node, Instant>,
}

impl World {
    /// The time that a node's machine sees.
    pub(super) fn time_of(&mut self, node: Node) -> Instant {
        let now = self.now;
        self.clocks.running.entry(node).or_insert_with(|| RunningTime::new(now)).now(now)
    }

    /// When a node's machine will see this time.
    pub(super) fn when(&self, node: Node, at: Instant) -> Instant {
        self.clocks.running.get(&node).map_or(at, |time| time.at(at))
    }

    /// Resets the clock of a node whose process is new.
    pub(super) fn new_clock(&mut self, node: Node) {
        self.clocks.running.remove(&node);
        self.clocks.paused.remove(&node);
    }

    /// Pauses a node.
    pub fn pause(&mut self, node: Node, time: Duration) {
        self.trace.note(self.now, &[41, time.as_micros() as u64], || format!("{node:?} stops for {time:?}"));
        self.clocks.paused.insert(node, self.now + time);
    }

    /// Returns the event if its node runs; otherwise postpones it until the node continues.
    pub(super) fn unless_paused(&mut self, what: WorldEvent) -> Option<WorldEvent> {
        if self.clocks.paused.is_empty() {
            return Some(what);
        }
        let Some((node, until)) = self.node_of(&what).and_then(|node| Some((node, *self.clocks.paused.get(&node)?)))
        else {
            return Some(what);
        };
        if until <= self.now {
            self.clocks.paused.remove(&node);
            return Some(what);
        }
        let is_tick = matches!(what, WorldEvent::Tick { .. });
        self.push(until + Duration::from_nanos(u64::from(is_tick)), what);
        None
    }

    /// Carries out the effects of a server that a frame has reached: at once, or in a moment, with those of what else
    /// arrives until then.
    pub(super) fn rest_soon(&mut self, server: usize) {
        if self.rng.chance(1, 4) {
            let (delay, life) = (Duration::from_nanos(self.rng.below(100_000)), self.life_of(Node::Server(server)));
            self.after(delay, WorldEvent::Rest { server, life });
        } else {
            self.pump(Node::Server(server));
        }
    }

    /// The moment is over.
    pub(super) fn rest(&mut self, server: usize, life: u32) {
        if self.lives(Node::Server(server), life) {
            self.pump(Node::Server(server));
        }
    }

    /// The node that has to run for an event.
    fn node_of(&self, what: &WorldEvent) -> Option<Node> {
        match what {
            WorldEvent::Frame { conn, side, .. } | WorldEvent::Closed { conn, side } => {
                Some(self.net.get(*conn).ends[*side].node)
            }
            WorldEvent::Accepted { conn } => Some(self.net.get(*conn).ends[1].node),
            WorldEvent::Dialled { conn } => Some(self.net.get(*conn).ends[0].node),
            WorldEvent::DialFailed { node, .. } | WorldEvent::Tick { node, .. } | WorldEvent::Second { node, .. } => {
                Some(*node)
            }
            WorldEvent::Load { server, .. }
            | WorldEvent::Loaded { server, .. }
            | WorldEvent::Commit { server, .. }
            | WorldEvent::Durable { server, .. }
            | WorldEvent::Committed { server, .. }
            | WorldEvent::Data { server, .. }
            | WorldEvent::DataDone { server, .. }
            | WorldEvent::Rest { server, .. } => Some(Node::Server(*server)),
            WorldEvent::Call { client, .. }
            | WorldEvent::Interrupt { client, .. }
            | WorldEvent::Invalidate { client, .. }
            | WorldEvent::LetGo { client, .. } => Some(Node::Client(*client)),
            WorldEvent::Answer { .. }
            | WorldEvent::StopReceiving { .. }
            | WorldEvent::Wake { .. }
            | WorldEvent::Start { .. }
            | WorldEvent::Add { .. }
            | WorldEvent::Kill { .. }
            | WorldEvent::Die { .. }
            | WorldEvent::Lie
            | WorldEvent::Fault(_) => None,
        }
    }
}
