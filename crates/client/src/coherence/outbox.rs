//! What waits to be sent to a target and that no program waits for: closes, access times, changes of metadata write-back.
//!
//! Each waits a moment for others, and one request of a target is on its way at a time, so that what a target has done is at any moment
//! a prefix of what was put here. Who needs it to have happened waits for a count of it ([`Lane::left`], [`Lane::answered`]).
//!
//! ```text
//!   state        waiting  in flight     leaves it when
//!   idle         none     none          something is added
//!   gathering    some     none          the oldest has waited its time, they fill a request, or somebody hurries them: they are taken
//!   sent         none     some          it is answered, or something is added
//!   sent, more   some     some          it is answered: the others gather, from the time at which it was sent
//! ```

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use stdx::Instant;

use crate::base::Dest;

/// What waits for one target.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    waiting: VecDeque<T>,
    /// Since when the first of them waits.
    since: Instant,
    /// How many are in the request on its way; 0 if there is none.
    in_flight: usize,
    /// Those that wait are not to wait for others.
    hurried: bool,
    /// How many were ever added.
    added: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane { waiting: VecDeque::new(), since: Instant::ZERO, in_flight: 0, hurried: false, added: 0 }
    }
}

impl<T> Lane<T> {
    /// One more.
    pub(crate) fn add(&mut self, item: T, now: Instant) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.added += 1;
        self.waiting.push_back(item);
    }

    /// Those that wait, in the order in which they came.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// Takes the first `count` of them for a request, which is on its way from now on. None may be.
    pub(crate) fn take(&mut self, count: usize, now: Instant) -> Vec<T> {
        assert!(self.in_flight == 0, "two requests of one lane are on their way");
        let taken: Vec<T> = self.waiting.drain(..count.min(self.waiting.len())).collect();
        self.since = now;
        self.hurried &= !self.waiting.is_empty();
        self.in_flight = taken.len();
        taken
    }

    /// Of what was taken so many are done without a request.
    pub(crate) fn done_at_once(&mut self, count: usize) {
        self.in_flight -= count;
    }

    /// The request on its way was answered, or never will be.
    pub(crate) fn arrived(&mut self) {
        self.in_flight = 0;
    }

    /// Those that wait will not be sent.
    pub(crate) fn give_up(&mut self) -> VecDeque<T> {
        core::mem::take(&mut self.waiting)
    }

    /// How many were ever added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// How many of them have left.
    pub(crate) fn left(&self) -> u64 {
        self.added - self.waiting.len() as u64
    }

    /// How many of them have their answer, or were given up.
    pub(crate) fn answered(&self) -> u64 {
        self.left() - self.in_flight as u64
    }

    /// How many have none.
    pub(crate) fn outstanding(&self) -> u64 {
        self.added - self.answered()
    }
}

/// What waits for all targets.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    lanes: BTreeMap<Dest, Lane<T>>,
    /// How long one waits for others.
    gather: Duration,
    /// So many fill a request.
    full: usize,
}

impl<T> Outbox<T> {
    /// Nothing yet. Each waits for others for so long, or until so many are a request.
    pub(crate) fn new(gather: Duration, full: usize) -> Outbox<T> {
        Outbox { lanes: BTreeMap::new(), gather, full }
    }

    /// The lane of a target, made if need be.
    pub(crate) fn lane(&mut self, dest: Dest) -> &mut Lane<T> {
        self.lanes.entry(dest).or_default()
    }

    /// The lane of a target, if it was used.
    pub(crate) fn get(&self, dest: Dest) -> Option<&Lane<T>> {
        self.lanes.get(&dest)
    }

    /// All of them.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (Dest, &Lane<T>)> {
        self.lanes.iter().map(|(dest, lane)| (*dest, lane))
    }

    /// What waits for a target leaves as soon as it can.
    pub(crate) fn hurry(&mut self, dest: Dest) {
        if let Some(lane) = self.lanes.get_mut(&dest) {
            lane.hurried = !lane.waiting.is_empty();
        }
    }

    /// Whether the next request to a target is to leave. `all`: nothing waits for others any more.
    pub(crate) fn is_due(&self, dest: Dest, now: Instant, all: bool) -> bool {
        let Some(lane) = self.lanes.get(&dest) else { return false };
        let at = self.due_at(lane);
        at.is_some_and(|at| all || lane.hurried || lane.waiting.len() >= self.full || at <= now)
    }

    fn due_at(&self, lane: &Lane<T>) -> Option<Instant> {
        (lane.in_flight == 0 && !lane.waiting.is_empty()).then(|| lane.since + self.gather)
    }

    /// Targets to which something is to leave because its time has come.
    pub(crate) fn due(&self, now: Instant) -> Vec<Dest> {
        let is_due = |lane: &Lane<T>| self.due_at(lane).is_some_and(|at| at <= now);
        self.lanes().filter(|(_, lane)| is_due(lane)).map(|(dest, _)| dest).collect()
    }

    /// When the time of something comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lanes.values().filter_map(|lane| self.due_at(lane)).min()
    }

    /// Whether nothing waits and nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.values().all(|lane| lane.outstanding() == 0)
    }

    /// The same of one target.
    pub(crate) fn is_idle_at(&self, dest: Dest) -> bool {
        self.outstanding(dest) == 0
    }

    /// How many things of a target have no answer.
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
        Hurry,
        Arrive,
    }

    /// Waiting, in flight, whether the next request is to leave now, and whether a time is set for it.
    type State = (usize, usize, bool, bool);

    fn state(outbox: &Outbox<u32>, now: Instant) -> State {
        let lane = outbox.get(AT).expect("a lane");
        assert_eq!(lane.added(), lane.answered() + lane.outstanding());
        assert_eq!(outbox.is_idle(), lane.waiting.is_empty() && lane.in_flight == 0);
        assert_eq!(outbox.due(now).is_empty(), outbox.deadline().is_none_or(|at| at > now));
        (lane.waiting.len(), lane.in_flight, outbox.is_due(AT, now, false), outbox.deadline().is_some())
    }

    /// Brings a lane into each of its states and gives it every input there. A request of at most two is taken whenever one is due.
    #[test]
    fn every_state_of_a_lane_takes_every_input() {
        use Input::{Add, Arrive, Hurry, Pass};
        // How the state is reached; what it is; and what it becomes by each input.
        type Row = (&'static [Input], State, [(Input, State); 4]);
        let table: [Row; 4] = [
            (
                &[],
                (0, 0, false, false),
                [
                    (Add, (1, 0, false, true)),
                    (Pass, (0, 0, false, false)),
                    (Hurry, (0, 0, false, false)),
                    (Arrive, (0, 0, false, false)),
                ],
            ),
            (
                &[Add],
                (1, 0, false, true),
                [
                    (Add, (0, 2, false, false)),
                    (Pass, (0, 1, false, false)),
                    (Hurry, (0, 1, false, false)),
                    (Arrive, (1, 0, false, true)),
                ],
            ),
            (
                &[Add, Pass],
                (0, 1, false, false),
                [
                    (Add, (1, 1, false, false)),
                    (Pass, (0, 1, false, false)),
                    (Hurry, (0, 1, false, false)),
                    (Arrive, (0, 0, false, false)),
                ],
            ),
            (
                &[Add, Pass, Add],
                (1, 1, false, false),
                [
                    (Add, (2, 1, false, false)),
                    (Pass, (1, 1, false, false)),
                    (Hurry, (1, 1, false, false)),
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
                        Hurry => outbox.hurry(AT),
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
    fn what_comes_behind_a_request_in_a_hurry_leaves_with_its_answer() {
        let mut outbox = Outbox::new(GATHER, 10);
        let now = Instant::ZERO;
        outbox.lane(AT).add(1, now);
        outbox.hurry(AT);
        assert_eq!(outbox.lane(AT).take(10, now), [1]);
        outbox.lane(AT).add(2, now);
        outbox.hurry(AT);
        assert!(!outbox.is_due(AT, now, false), "one at a time");
        outbox.lane(AT).arrived();
        assert!(outbox.is_due(AT, now, false));
        assert_eq!((outbox.lane(AT).left(), outbox.lane(AT).answered(), outbox.outstanding(AT)), (1, 1, 1));
        assert_eq!(outbox.lane(AT).give_up(), [2]);
        assert!(outbox.is_idle() && outbox.is_idle_at(AT));
    }
}
