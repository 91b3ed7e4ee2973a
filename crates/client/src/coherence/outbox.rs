//! Outbox: a queue per target for what no program waits for: closes, access times, changes of metadata write-back.
//!
//! Items gather for a moment before they are sent, and each target has at most one request in flight, so that what a
//! target has done is always a prefix of what was added. An operation that depends on items waits until the counts of
//! its lane reach them ([`Lane::left`], [`Lane::answered`]).
//!
//! ```text
//!   state        waiting  in flight     leaves it when
//!   idle         none     none          something is added
//!   gathering    some     none          the oldest has waited its time, they fill a request, or they are flushed
//!   sent         none     some          it is answered, or something is added
//!   sent, more   some     some          it is answered: the others gather, from the time at which it was sent
//! ```

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use stdx::Instant;

use crate::base::Dest;

/// The queue of one target.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    waiting: VecDeque<T>,
    /// When the first of them was added, or when the last request was sent.
    since: Instant,
    /// Items of the request in flight; 0 if there is none.
    in_flight: usize,
    /// The waiting items do not gather any longer.
    flushing: bool,
    /// Items added since the start.
    added: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane { waiting: VecDeque::new(), since: Instant::ZERO, in_flight: 0, flushing: false, added: 0 }
    }
}

impl<T> Lane<T> {
    /// Adds an item.
    pub(crate) fn add(&mut self, item: T, now: Instant) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.added += 1;
        self.waiting.push_back(item);
    }

    /// The waiting items, oldest first.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// Takes the first `count` items for a request, which counts as in flight from now on. No other request may be in
    /// flight.
    pub(crate) fn take(&mut self, count: usize, now: Instant) -> Vec<T> {
        assert!(self.in_flight == 0, "two requests of one lane are in flight");
        let taken: Vec<T> = self.waiting.drain(..count.min(self.waiting.len())).collect();
        self.since = now;
        self.flushing &= !self.waiting.is_empty();
        self.in_flight = taken.len();
        taken
    }

    /// `count` of the taken items are done without a request.
    pub(crate) fn done_at_once(&mut self, count: usize) {
        self.in_flight -= count;
    }

    /// The request in flight was answered, or never will be.
    pub(crate) fn arrived(&mut self) {
        self.in_flight = 0;
    }

    /// Drops the waiting items: they will not be sent.
    pub(crate) fn give_up(&mut self) -> VecDeque<T> {
        core::mem::take(&mut self.waiting)
    }

    /// Items added since the start.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// Items that were sent or given up.
    pub(crate) fn left(&self) -> u64 {
        self.added - self.waiting.len() as u64
    }

    /// Items that were answered or given up.
    pub(crate) fn answered(&self) -> u64 {
        self.left() - self.in_flight as u64
    }

    /// Items without an answer.
    pub(crate) fn outstanding(&self) -> u64 {
        self.added - self.answered()
    }
}

/// The queues of all targets.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    lanes: BTreeMap<Dest, Lane<T>>,
    /// How long an item waits for others.
    gather: Duration,
    /// Items that fill a request.
    full: usize,
}

impl<T> Outbox<T> {
    /// An empty outbox. Items gather for `gather`, or until `full` of them make a request.
    pub(crate) fn new(gather: Duration, full: usize) -> Outbox<T> {
        Outbox { lanes: BTreeMap::new(), gather, full }
    }

    /// The lane of a target, created if needed.
    pub(crate) fn lane(&mut self, dest: Dest) -> &mut Lane<T> {
        self.lanes.entry(dest).or_default()
    }

    /// The lane of a target, if there is one.
    pub(crate) fn get(&self, dest: Dest) -> Option<&Lane<T>> {
        self.lanes.get(&dest)
    }

    /// All lanes.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (Dest, &Lane<T>)> {
        self.lanes.iter().map(|(dest, lane)| (*dest, lane))
    }

    /// The items that wait for a target are sent as soon as the lane is free.
    pub(crate) fn flush(&mut self, dest: Dest) {
        if let Some(lane) = self.lanes.get_mut(&dest) {
            lane.flushing = !lane.waiting.is_empty();
        }
    }

    /// Whether the next request to a target is due. `all`: items do not gather any more.
    pub(crate) fn is_due(&self, dest: Dest, now: Instant, all: bool) -> bool {
        let Some(lane) = self.lanes.get(&dest) else { return false };
        let at = self.due_at(lane);
        at.is_some_and(|at| all || lane.flushing || lane.waiting.len() >= self.full || at <= now)
    }

    fn due_at(&self, lane: &Lane<T>) -> Option<Instant> {
        (lane.in_flight == 0 && !lane.waiting.is_empty()).then(|| lane.since + self.gather)
    }

    /// Targets whose gathering time is over.
    pub(crate) fn due(&self, now: Instant) -> Vec<Dest> {
        let is_due = |lane: &Lane<T>| self.due_at(lane).is_some_and(|at| at <= now);
        self.lanes().filter(|(_, lane)| is_due(lane)).map(|(dest, _)| dest).collect()
    }

    /// When the next gathering time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lanes.values().filter_map(|lane| self.due_at(lane)).min()
    }

    /// Whether no item waits or is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.values().all(|lane| lane.outstanding() == 0)
    }

    /// Whether no item of one target waits or is in flight.
    pub(crate) fn is_idle_at(&self, dest: Dest) -> bool {
        self.outstanding(dest) == 0
    }

    /// Items of a target without an answer.
    pub(crate) fn outstanding(&self, dest: Dest) -> u64 {
        self.lanes.get(&dest).map_or(0, Lane::outstanding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Dest = Dest::Mdt(0);
    const GATHER: Duration = Duration::from_millis(2);

    /// What can happen to a lane.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Input {
        Add,
        Pass,
        Flush,
        Arrive,
    }

    /// Waiting, in flight, whether the next request is due, and whether a deadline is set for it.
    type State = (usize, usize, bool, bool);

    fn state(outbox: &Outbox<u32>, now: Instant) -> State {
        let lane = outbox.get(AT).expect("a lane");
        assert_eq!(lane.added(), lane.answered() + lane.outstanding());
        assert_eq!(outbox.is_idle(), lane.waiting.is_empty() && lane.in_flight == 0);
        assert_eq!(outbox.due(now).is_empty(), outbox.deadline().is_none_or(|at| at > now));
        (lane.waiting.len(), lane.in_flight, outbox.is_due(AT, now, false), outbox.deadline().is_some())
    }

    /// Brings a lane into each of its states and applies every input there. A request of at most two items is taken
    /// whenever one is due.
    #[test]
    fn every_state_of_a_lane_takes_every_input() {
        use Input::{Add, Arrive, Flush, Pass};
        // The inputs that lead to the state, the state, and the state after each input.
        type Row = (&'static [Input], State, [(Input, State); 4]);
        let table: [Row; 4] = [
            (
                &[],
                (0, 0, false, false),
                [
                    (Add, (1, 0, false, true)),
                    (Pass, (0, 0, false, false)),
                    (Flush, (0, 0, false, false)),
                    (Arrive, (0, 0, false, false)),
                ],
            ),
            (
                &[Add],
                (1, 0, false, true),
                [
                    (Add, (0, 2, false, false)),
                    (Pass, (0, 1, false, false)),
                    (Flush, (0, 1, false, false)),
                    (Arrive, (1, 0, false, true)),
                ],
            ),
            (
                &[Add, Pass],
                (0, 1, false, false),
                [
                    (Add, (1, 1, false, false)),
                    (Pass, (0, 1, false, false)),
                    (Flush, (0, 1, false, false)),
                    (Arrive, (0, 0, false, false)),
                ],
            ),
            (
                &[Add, Pass, Add],
                (1, 1, false, false),
                [
                    (Add, (2, 1, false, false)),
                    (Pass, (1, 1, false, false)),
                    (Flush, (1, 1, false, false)),
                    (Arrive, (1, 0, false, true)),
                ],
            ),
        ];
        for (before, there, inputs) in table {
            for (input, then) in inputs {
                let mut outbox = Outbox::new(GATHER, 2);
                let mut now = Instant::ZERO;
                outbox.lane(AT);
                let mut give = |input, outbox: &mut Outbox<u32>| {
                    match input {
                        Add => outbox.lane(AT).add(7, now),
                        Pass => now = now + GATHER,
                        Flush => outbox.flush(AT),
                        Arrive => outbox.lane(AT).arrived(),
                    }
                    if outbox.is_due(AT, now, false) {
                        outbox.lane(AT).take(2, now);
                    }
                    state(outbox, now)
                };
                let reached = before.iter().fold((0, 0, false, false), |_, input| give(*input, &mut outbox));
                assert_eq!(reached, there, "{before:?}");
                assert_eq!(give(input, &mut outbox), then, "{before:?}, then {input:?}");
            }
        }
    }

    #[test]
    fn items_behind_a_flushed_request_are_due_with_its_answer() {
        let mut outbox = Outbox::new(GATHER, 10);
        let now = Instant::ZERO;
        outbox.lane(AT).add(1, now);
        outbox.flush(AT);
        assert_eq!(outbox.lane(AT).take(10, now), [1]);
        outbox.lane(AT).add(2, now);
        outbox.flush(AT);
        assert!(!outbox.is_due(AT, now, false), "one at a time");
        outbox.lane(AT).arrived();
        assert!(outbox.is_due(AT, now, false));
        assert_eq!((outbox.lane(AT).left(), outbox.lane(AT).answered(), outbox.outstanding(AT)), (1, 1, 1));
        assert_eq!(outbox.lane(AT).give_up(), [2]);
        assert!(outbox.is_idle() && outbox.is_idle_at(AT));
    }
}
