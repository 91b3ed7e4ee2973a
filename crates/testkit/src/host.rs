//! The driver of one target: a store and data files in memory, media that are fast, slow or moved by hand, starts and
//! crashes.
//!
//! [`Host::poll`] carries out what concerns the media and gives every other effect (frames, connections, lines of the log) to
//! the world around it, which owns the clock and the connections. A group of changes goes to the medium at once and is
//! durable after a [`Host::media_turn`]; a world that keeps its groups ([`Host::by_hand`]) commits them itself.
//!
//! Invariant: what a machine hears of a medium happened there before.

use std::collections::VecDeque;

use ost::mem_data::MemData;
use proto::Errno;
use stdx::{Instant, Rng};
use store::{Batch, Engine, Group, MemEngine, Space};
use target::{DataId, DataOp, DataResult, Effect, Event, Service, Target};

/// A target of any kind, as its driver sees it: the three verbs, and its parameters.
pub trait Machine {
    /// See [`Target::handle`].
    fn handle(&mut self, now: Instant, event: Event);
    /// See [`Target::poll`].
    fn poll(&mut self) -> Option<Effect>;
    /// See [`Target::deadline`].
    fn deadline(&self) -> Option<Instant>;
    /// See [`Target::set_param`].
    fn set_param(&mut self, now: Instant, path: &str, value: &str) -> Result<(), Errno>;
    /// See [`Target::get_params`].
    fn get_params(&self, pattern: &str) -> Vec<(String, String)>;
}

impl<S: Service> Machine for Target<S> {
    fn handle(&mut self, now: Instant, event: Event) {
        Target::handle(self, now, event);
    }
    fn poll(&mut self) -> Option<Effect> {
        Target::poll(self)
    }
    fn deadline(&self) -> Option<Instant> {
        Target::deadline(self)
    }
    fn set_param(&mut self, now: Instant, path: &str, value: &str) -> Result<(), Errno> {
        Target::set_param(self, now, path, value)
    }
    fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        Target::get_params(self, pattern)
    }
}

impl Machine for Box<dyn Machine> {
    fn handle(&mut self, now: Instant, event: Event) {
        (**self).handle(now, event);
    }
    fn poll(&mut self) -> Option<Effect> {
        (**self).poll()
    }
    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }
    fn set_param(&mut self, now: Instant, path: &str, value: &str) -> Result<(), Errno> {
        (**self).set_param(now, path, value)
    }
    fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        (**self).get_params(pattern)
    }
}

/// A target and its media. See the module.
pub struct Host<M> {
    /// `None` while it is down.
    pub machine: Option<M>,
    pub engine: MemEngine,
    pub data: MemData,
    /// Groups are kept in `groups` until the test commits them.
    pub by_hand: bool,
    pub groups: VecDeque<Group>,
    /// Data operations are kept in `operations`, for [`Host::data_turn`] or for the test.
    pub slow_data: bool,
    pub operations: Vec<(DataId, DataOp)>,
    /// What media have done is kept in `done` until the test tells the machine of it. A group is durable from then on.
    pub late: bool,
    pub done: VecDeque<Event>,
    /// The machine never hears of operations on this file.
    pub stalled: Option<u64>,
    /// What the target is told to have free; `None`: what the store has.
    pub space: Option<Space>,
    /// How often something was read from the store.
    pub loads: usize,
    /// A deadline that has passed is acted on with the next event, without a tick of the world.
    pub prompt: bool,
    /// Starts so far.
    pub starts: u64,
    /// Runs around whatever data files in memory do but read.
    pub at_media: fn(&mut dyn FnMut()),
    in_flight: VecDeque<u64>,
}

impl<M: Machine> Host<M> {
    /// A target that is down.
    pub fn new(engine: MemEngine) -> Host<M> {
        Host {
            machine: None,
            engine,
            data: MemData::new(),
            by_hand: false,
            groups: VecDeque::new(),
            slow_data: false,
            operations: Vec::new(),
            late: false,
            done: VecDeque::new(),
            stalled: None,
            space: None,
            loads: 0,
            prompt: false,
            starts: 0,
            at_media: |work| work(),
            in_flight: VecDeque::new(),
        }
    }

    /// Starts it. `make` gets the number of the last durable group and how many starts there were with this one.
    pub fn start(&mut self, now: Instant, wall_ns: i64, make: impl FnOnce(u64, u64) -> M) {
        self.starts += 1;
        let last = self.engine.last_group().expect("in memory");
        self.machine = Some(make(last, self.starts));
        let space = self.space.unwrap_or_else(|| self.engine.space().expect("in memory"));
        self.tell(now, Event::Space(space));
        self.tell(now, Event::WallClock(wall_ns));
    }

    /// kill -9 and a power failure: of what was not durable, chance decides what is kept.
    pub fn kill(&mut self, rng: &mut Rng) {
        self.stop();
        for (_, op) in core::mem::take(&mut self.operations) {
            self.data.run(&op);
        }
        self.engine.crash(rng);
        let data = &mut self.data;
        (self.at_media)(&mut || data.crash(rng));
    }

    /// The same, and nothing that was not durable is kept.
    pub fn kill_and_lose(&mut self) {
        self.stop();
        self.engine = self.engine.snapshot();
    }

    fn stop(&mut self) {
        self.machine = None;
        self.in_flight.clear();
        self.groups.clear();
        self.done.clear();
        self.stalled = None;
    }

    /// The machine hears of an event.
    pub fn tell(&mut self, now: Instant, event: Event) {
        if let (true, Event::Committed { group }) = (self.late, &event) {
            self.engine.make_durable(*group);
        }
        if let Some(machine) = &mut self.machine {
            machine.handle(now, event);
            if self.prompt && machine.deadline().is_some_and(|at| at <= now) {
                machine.handle(now, Event::Tick);
            }
        }
    }

    /// See [`Machine::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.as_ref().and_then(Machine::deadline)
    }

    /// Carries effects out, up to one that concerns others than the media.
    pub fn poll(&mut self, now: Instant) -> Option<Effect> {
        loop {
            match self.machine.as_mut()?.poll()? {
                Effect::Load(load) => {
                    self.loads += 1;
                    let done = load.run(&self.engine);
                    self.medium_did(now, Event::Loaded(done));
                }
                Effect::Commit(group) if self.by_hand => self.groups.push_back(group),
                Effect::Commit(group) => {
                    self.engine.begin_commit(group.number(), group.seal()).expect("room in the store");
                    match self.late {
                        true => self.done.push_back(Event::Committed { group: group.number() }),
                        false => self.in_flight.push_back(group.number()),
                    }
                }
                Effect::Data { id, op } if self.slow_data => self.operations.push((id, op)),
                Effect::Data { id, op } => self.operate(now, id, &op),
                other => return Some(other),
            }
        }
    }

    fn operate(&mut self, now: Instant, id: DataId, op: &DataOp) {
        let result = self.run_data(op);
        if !self.stalled.is_some_and(|file| op.files().contains(&file)) {
            self.medium_did(now, Event::DataDone { id, result });
        }
    }

    fn medium_did(&mut self, now: Instant, event: Event) {
        if self.late { self.done.push_back(event) } else { self.tell(now, event) }
    }

    fn run_data(&mut self, op: &DataOp) -> DataResult {
        let data = &mut self.data;
        // What is read belongs to the target.
        if matches!(op, DataOp::Read { .. } | DataOp::List { .. }) {
            return data.run(op);
        }
        let mut result = None;
        (self.at_media)(&mut || result = Some(data.run(op)));
        result.expect("it ran")
    }

    /// The oldest group in flight becomes durable. Gives whether there was one.
    pub fn media_turn(&mut self, now: Instant) -> bool {
        let Some(group) = self.in_flight.pop_front() else { return false };
        self.engine.make_durable(group);
        self.tell(now, Event::Committed { group });
        true
    }

    /// One slow data operation ends. Those of one file keep their order, others overtake each other.
    pub fn data_turn(&mut self, now: Instant, rng: &mut Rng) {
        let picked = rng.below(self.operations.len() as u64) as usize;
        let files = self.operations[picked].1.files();
        let clash = |(_, op): &(DataId, DataOp)| op.files().iter().any(|file| files.contains(file));
        let first = self.operations.iter().position(clash).unwrap_or(picked);
        // A sync of many files may clash with an older one that clashes with yet another.
        let first = if matches!(self.operations[first].1, DataOp::Sync { .. }) { 0 } else { first };
        let (id, op) = self.operations.remove(first);
        self.operate(now, id, &op);
    }

    /// The oldest group that is kept goes to the medium and is durable.
    pub fn commit(&mut self, now: Instant) {
        let group = self.groups.pop_front().expect("a group to commit");
        let number = group.number();
        group.run(&self.engine).expect("room in the store");
        self.tell(now, Event::Committed { group: number });
    }

    /// Changes records while the target is down.
    pub fn edit(&mut self, change: impl FnOnce(&mut Batch)) {
        edit(&self.engine, change);
    }
}

/// Changes records of a store that no target runs on.
pub fn edit(engine: &MemEngine, change: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    change(&mut batch);
    let group = engine.last_group().expect("in memory") + 1;
    engine.commit(group, &batch.seal(&schema::formats())).expect("room in the store");
}
