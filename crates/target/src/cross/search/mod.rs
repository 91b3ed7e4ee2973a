//! An exhaustive search over the real tables: every order of messages, group commits, crashes and broken connections in
//! small worlds of two or three targets.
//!
//! A [`World`] is all that targets, clients and messages under way consist of. A [`Step`] is what a target or a client
//! does at once, the arrival of a message, or a fault. The search goes breadth first through all states. It checks the
//! invariants in each (`World::wrong`), what is left when nothing can happen any more (`World::wrong_at_rest`), and that
//! this can be reached from every state without faults. The machine that carries out what the tables ask for is the one
//! of this file: a target has a memory and a disk, and a group commit makes all of its memory durable at once.
//!
//! Numbers of attempts that nobody mentions any more are taken again, so that the number of states is finite. States
//! are told apart by 64-bit hashes, so one may be missed, with a chance of one in ten million for two million states.
//!
//! At most one target is lost for good. The others hear of that one after the other, each when all that it has is durable.
//! What a client was told that asked the lost target does not count, except for success.
//!
//! A [`Flaw`] is a rule that the world breaks, by feeding the tables an event early: the search has to find each.

mod loss;
mod making;
mod scenarios;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

use super::coordinator::{self, Coordinator, Outcome, Why};
use super::keys::{Key, Keys, Mode, Taken, Woken};
use super::participant::{self, Participant};
use super::{Age, Attempt, Member};
use making::after;

/// Most states of a search. Those that are not ignored have less than half a million together.
const STATES_MAX: usize = 20_000_000;
/// Serials of the attempts of one change are this far apart, so that the serial names the change.
const CHANGES_MAX: u64 = 4;

/// What the world does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// The coordinator commits before its staged record is durable.
    CommitsEarly,
    /// A participant votes before its prepared record is durable.
    VotesEarly,
    /// An attempt ends at its coordinator before its staged record is durably gone.
    EndsEarly,
    /// A participant releases keys before the prepared record is durably gone.
    ReleasesEarly,
    /// Participants are told to forget when the coordinator's done record is not durable yet.
    ForgetsEarly,
    /// Participants are told to forget when only the coordinator's done record is durable.
    ForgetsAlone,
    /// A participant says that its done record is gone before that is durable.
    GoneEarly,
    /// A participant goes on with what it was sent in an earlier session.
    KeepsPrepares,
    /// A participant reports what is not durable yet.
    ReportsEarly,
    /// A younger attempt waits for an older one instead of being told busy.
    NeverDies,
    /// A lost target counts as one that had nothing.
    LostHadNothing,
    /// A participant answers questions about a lost coordinator's attempts before it has heard of the loss.
    AnswersEarly,
}

struct Scenario {
    targets: usize,
    changes: Vec<Change>,
    /// Faults at most.
    crashes: u8,
    breaks: u8,
    /// Attempts that coordinators give up without need, at most.
    give_ups: u8,
    /// Whether a target may be lost for good.
    loses: bool,
    flaw: Flaw,
}

struct Change {
    /// The coordinator's part comes first.
    parts: Vec<Part>,
    age: Age,
}

struct Part {
    member: Member,
    keys: Vec<(Key, Mode)>,
    refuses: bool,
}

impl Change {
    fn coordinator(&self) -> Member {
        self.parts[0].member
    }

    fn participants(&self) -> Vec<Member> {
        self.parts[1..].iter().map(|part| part.member).collect()
    }

    fn part(&self, member: Member) -> &Part {
        self.parts.iter().find(|part| part.member == member).expect("a member of the change")
    }
}

#[derive(Clone, Hash)]
struct World {
    targets: Vec<Shared<Target>>,
    /// From each coordinator to each of its participants.
    links: Vec<Shared<Link>>,
    /// By change.
    clients: Vec<Client>,
    crashes: u8,
    breaks: u8,
    give_ups: u8,
    /// The target that is lost for good.
    lost: Option<Member>,
}

/// Something that worlds share until it changes, with its hash.
#[derive(Clone)]
struct Shared<T> {
    value: Rc<T>,
    hash: Cell<Option<u64>>,
}

impl<T> Shared<T> {
    fn new(value: T) -> Shared<T> {
        Shared { value: Rc::new(value), hash: Cell::new(None) }
    }
}

impl<T: Clone> Shared<T> {
    fn change(&mut self) -> &mut T {
        self.hash.set(None);
        Rc::make_mut(&mut self.value)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Hash> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let hash = self.hash.get().unwrap_or_else(|| hash_of(&*self.value));
        self.hash.set(Some(hash));
        hasher.write_u64(hash);
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Hash, Default)]
struct Target {
    keys: Keys,
    coordinator: Coordinator,
    participant: Participant,
    memory: Store,
    disk: Store,
    /// What the tables are told when the open group is durable.
    pending: BTreeSet<(Awaited, Attempt)>,
    starts: u64,
    recovers: bool,
    /// `Prepare`s that wait: for keys, or until it serves.
    parked: BTreeSet<Attempt>,
    /// Attempts that were told busy.
    interests: BTreeSet<Attempt>,
    /// Coordinators that wait for a report.
    owes: BTreeSet<Member>,
    /// It has heard of the loss, durably.
    heard: bool,
}

#[derive(Clone, Hash, Default, PartialEq, Eq)]
struct Store {
    records: BTreeMap<Attempt, Record>,
    /// The attempts by which changes were done; at a coordinator, their replies too.
    done: BTreeMap<usize, Attempt>,
}

#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
enum Record {
    Staged,
    /// The coordinator's done record.
    Committed,
    Prepared,
    /// A participant's done record.
    Applied,
}

#[derive(Clone, Copy, Hash, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Awaited {
    Staged,
    StagedGone,
    Committed,
    Prepared,
    PreparedGone,
    Applied,
    AppliedGone,
}

/// A coordinator's connection to a participant.
#[derive(Clone, Hash)]
struct Link {
    from: Member,
    to: Member,
    /// At the coordinator.
    session: Session,
    /// The participant's session is the coordinator's. If not, it knows an earlier one or none.
    shared: bool,
    /// The participant knows a session.
    known: bool,
    forth: VecDeque<Message>,
    /// Only of the coordinator's session.
    back: VecDeque<Message>,
}

#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
enum Session {
    Ended,
    /// The report is missing.
    Begins,
    Stands,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug)]
enum Message {
    Begin,
    Prepare(Attempt),
    Tell(Attempt, Outcome),
    Report(Vec<Attempt>, Vec<Attempt>),
    Vote(Attempt),
    Refused(Attempt),
    Busy(Attempt),
    Free(Attempt),
    Applied(Attempt),
    Gone(Attempt),
}

/// What the client of a change knows of it, and what its coordinator knows of the request.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
enum Client {
    /// It waits; no attempt that belongs to a request is under way.
    Asks,
    /// An attempt is under way. It need not wait if it turns out to have been busy: that has passed.
    Runs(Attempt, bool),
    /// The attempt was busy at this participant.
    Waits(Attempt, Member),
    /// It was told that nothing was done; it may ask again.
    MayAsk,
    /// It never asks again.
    Left,
    Refused,
    Succeeded(Attempt),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// A request stages an attempt.
    Start(usize),
    Answer(usize),
    Replay(usize),
    /// The client does not ask again.
    Leave(usize),
    /// The coordinator gives an attempt up without need.
    GiveUp(usize),
    /// A group commit.
    Flush(Member),
    /// Recovery ends, whether or not clients have replayed anything.
    Serve(Member),
    /// The coordinator begins a session.
    Open(usize),
    /// The coordinator notices that the participant does not know its session.
    Notice(usize),
    /// A message arrives at the participant, or at the coordinator.
    Forth(usize),
    Back(usize),
    /// A target crashes and restarts. What it has sent as a coordinator may be lost.
    Crash(Member, Lost),
    /// A coordinator's connection breaks. What it has sent may be lost.
    Break(usize, Lost),
    /// A target is lost for good. What it has sent may still arrive where nobody has heard of it.
    Lose(Member),
    /// A target hears of the loss.
    Hear(Member),
    /// A participant asks another one about the attempts of the lost coordinator.
    Ask(Member, Member),
    /// The request needs the lost target.
    Refuse(usize),
}

type Lost = bool;

impl Step {
    /// Whether it happens without a fault, sooner or later, and not by choice.
    fn is_certain(self) -> bool {
        !matches!(self, Step::Crash(..) | Step::Break(..) | Step::GiveUp(_) | Step::Leave(_) | Step::Lose(_))
    }
}

fn change_of(attempt: Attempt) -> usize {
    (attempt.serial % CHANGES_MAX) as usize
}

impl World {
    fn new(scenario: &Scenario) -> World {
        let mut links = BTreeSet::new();
        for change in &scenario.changes {
            links.extend(change.participants().into_iter().map(|to| (change.coordinator(), to)));
        }
        let mut targets = vec![Target::default(); scenario.targets];
        for (from, to) in &links {
            targets[*from as usize].coordinator.report(*to, &[], &[]);
        }
        let link = |(from, to)| Link {
            from,
            to,
            session: Session::Stands,
            shared: true,
            known: true,
            forth: VecDeque::new(),
            back: VecDeque::new(),
        };
        World {
            targets: targets.into_iter().map(Shared::new).collect(),
            links: links.into_iter().map(|ends| Shared::new(link(ends))).collect(),
            clients: vec![Client::Asks; scenario.changes.len()],
            crashes: 0,
            breaks: 0,
            give_ups: 0,
            lost: None,
        }
    }

    fn at(&self, member: Member) -> &Target {
        &self.targets[member as usize]
    }

    fn link(&self, from: Member, to: Member) -> usize {
        self.links.iter().position(|link| (link.from, link.to) == (from, to)).expect("a link of the scenario")
    }

    /// Whether anything mentions the attempt.
    fn mentions(&self, attempt: Attempt) -> bool {
        let in_store = |store: &Store| {
            store.records.contains_key(&attempt) || store.done.get(&change_of(attempt)) == Some(&attempt)
        };
        let in_message = |message: &Message| match message {
            Message::Begin => false,
            Message::Report(prepared, done) => prepared.contains(&attempt) || done.contains(&attempt),
            Message::Prepare(of) | Message::Tell(of, _) | Message::Vote(of) | Message::Refused(of) => *of == attempt,
            Message::Busy(of) | Message::Free(of) | Message::Applied(of) | Message::Gone(of) => *of == attempt,
        };
        let by_client = match self.clients[change_of(attempt)] {
            Client::Runs(of, _) | Client::Waits(of, _) | Client::Succeeded(of) => of == attempt,
            Client::Asks | Client::MayAsk | Client::Left | Client::Refused => false,
        };
        let at_target = |target: &Shared<Target>| {
            in_store(&target.memory)
                || in_store(&target.disk)
                || target.coordinator.attempts().chain(target.participant.attempts()).any(|of| of == attempt)
                || target.pending.iter().any(|(_, of)| *of == attempt)
                || target.parked.contains(&attempt)
                || target.interests.contains(&attempt)
        };
        by_client
            || self.targets.iter().any(at_target)
            || self.links.iter().any(|link| link.forth.iter().chain(&link.back).any(in_message))
    }

    /// All that can happen next.
    fn steps(&self, scenario: &Scenario) -> Vec<Step> {
        let mut steps = self.loss_steps(scenario);
        for (change, client) in self.clients.iter().enumerate() {
            if self.is_lost(scenario.changes[change].coordinator()) {
                continue;
            }
            let at = self.at(scenario.changes[change].coordinator());
            let is_done = at.memory.done.contains_key(&change);
            match client {
                Client::Asks | Client::Runs(..) if is_done => steps.push(Step::Answer(change)),
                Client::Asks | Client::MayAsk if self.may_start(scenario, change) => steps.push(Step::Start(change)),
                Client::Runs(..) if self.give_ups < scenario.give_ups => steps.push(Step::GiveUp(change)),
                Client::Succeeded(_) if at.recovers && !is_done => steps.push(Step::Replay(change)),
                _ => {}
            }
            if *client == Client::MayAsk {
                steps.push(Step::Leave(change));
            }
        }
        for (member, target) in (0..).zip(&self.targets).filter(|(member, _)| !self.is_lost(*member)) {
            if target.memory != target.disk || !target.pending.is_empty() {
                steps.push(Step::Flush(member));
            }
            if target.recovers {
                steps.push(Step::Serve(member));
            }
            if self.crashes < scenario.crashes {
                steps.extend([Step::Crash(member, false), Step::Crash(member, true)]);
            }
        }
        for (at, link) in self.links.iter().enumerate() {
            if !link.forth.is_empty() && !self.is_lost(link.to) {
                steps.push(Step::Forth(at));
            }
            if !link.back.is_empty() && !self.is_lost(link.from) {
                steps.push(Step::Back(at));
            }
            if self.is_lost(link.from) || self.is_lost(link.to) {
                continue;
            }
            if link.session == Session::Ended {
                steps.push(Step::Open(at));
                continue;
            }
            if !link.shared && !link.forth.contains(&Message::Begin) {
                steps.push(Step::Notice(at));
            }
            if self.breaks < scenario.breaks {
                steps.extend([Step::Break(at, false), Step::Break(at, true)]);
            }
        }
        steps
    }

    fn may_start(&self, scenario: &Scenario, change: usize) -> bool {
        let wanted = &scenario.changes[change];
        let at = self.at(wanted.coordinator());
        !at.recovers
            && !at.coordinator.attempts().any(|attempt| change_of(attempt) == change)
            && wanted.participants().iter().all(|member| at.coordinator.stands(*member))
            && at.keys.would_take(wanted.age, &wanted.parts[0].keys)
    }

    /// What must never be.
    fn wrong(&self, scenario: &Scenario) -> Option<&'static str> {
        for (member, target) in (0..).zip(&self.targets) {
            let mut held: BTreeMap<Key, Vec<Mode>> = BTreeMap::new();
            let attempts = target.coordinator.attempts().chain(target.participant.attempts());
            for (key, mode) in attempts.flat_map(|attempt| target.keys.keys_of(attempt)) {
                held.entry(*key).or_default().push(*mode);
            }
            if held.values().any(|modes| modes.len() > 1 && modes.contains(&Mode::Exclusive)) {
                return Some("two attempts hold conflicting keys");
            }
            for (attempt, record) in &target.memory.records {
                let part = scenario.changes[change_of(*attempt)].part(member);
                let holds = target.keys.keys_of(*attempt).len() == part.keys.len();
                if holds != matches!(record, Record::Staged | Record::Prepared) {
                    return Some("keys are not held as long as a record is staged or prepared");
                }
            }
            for (attempt, record) in &target.disk.records {
                let may_come_back = matches!(record, Record::Staged | Record::Prepared);
                let is_done = target.memory.done.get(&change_of(*attempt)) == Some(attempt);
                if may_come_back && !is_done && target.keys.keys_of(*attempt).is_empty() {
                    return Some("keys are released, but a crash brings the record back");
                }
                if *record == Record::Applied
                    && !self.is_lost(attempt.mdt)
                    && !self.at(attempt.mdt).memory.records.contains_key(attempt)
                {
                    return Some("a participant has a done record, and the coordinator has none");
                }
            }
        }
        self.clients.iter().enumerate().find_map(|(change, client)| self.wrong_change(scenario, change, *client))
    }

    fn wrong_change(&self, scenario: &Scenario, change: usize, client: Client) -> Option<&'static str> {
        let survives = |part: &&Part| !self.is_lost(part.member);
        let members = || scenario.changes[change].parts.iter().filter(survives).map(|part| self.at(part.member));
        let mut by = members().filter_map(|target| target.memory.done.get(&change));
        if let Some(first) = by.next()
            && by.any(|other| other != first)
        {
            return Some("the parts were applied by different attempts");
        }
        let has_record = |store: &Store| store.records.keys().any(|attempt| change_of(*attempt) == change);
        let is_done = |target: &Target| target.disk.done.contains_key(&change);
        if members().any(|target| target.memory.done.contains_key(&change) && !has_record(&target.memory))
            && !members().all(is_done)
        {
            return Some("a done record is removed, but not all parts are durable");
        }
        if let Client::Succeeded(attempt) = client
            && !members().all(|target| is_done(target) || target.disk.records.contains_key(&attempt))
        {
            return Some("a change that was answered is not durable");
        }
        None
    }

    /// What must not be left when nothing happens any more.
    fn wrong_at_rest(&self, scenario: &Scenario) -> Option<&'static str> {
        for target in &self.targets {
            if !target.memory.records.is_empty() {
                return Some("records are left");
            }
            if !target.keys.is_empty() || !target.parked.is_empty() || !target.interests.is_empty() {
                return Some("keys are left");
            }
            if !target.coordinator.is_idle() || target.participant.attempts().next().is_some() {
                return Some("attempts are left");
            }
        }
        for (change, client) in self.clients.iter().enumerate() {
            let parts: Vec<&Part> =
                scenario.changes[change].parts.iter().filter(|part| !self.is_lost(part.member)).collect();
            let applied = parts.iter().filter(|part| self.at(part.member).memory.done.contains_key(&change)).count();
            if self.is_lost(scenario.changes[change].coordinator()) && !matches!(client, Client::Succeeded(_)) {
                if applied != 0 && applied != parts.len() {
                    return Some("a change of the lost target is torn");
                }
                continue;
            }
            match client {
                Client::Succeeded(_) if applied == parts.len() => {}
                Client::Refused | Client::Left if applied == 0 => {}
                Client::Succeeded(_) | Client::Refused | Client::Left => {
                    return Some("a change is torn, lost or undead");
                }
                _ => return Some("a change is not answered"),
            }
        }
        None
    }
}

struct Found {
    states: usize,
    depth: usize,
    rests: usize,
    /// What is wrong, and the steps that lead there.
    wrong: Option<(&'static str, Vec<Step>)>,
}

/// States in the order in which they are found, each with the step that led to it.
#[derive(Default)]
struct States {
    numbers: stdx::Map<u64, u32>,
    origins: Vec<(u32, Step)>,
    /// Steps that are certain, backwards.
    edges: Vec<(u32, u32)>,
    rests: Vec<u32>,
}

impl States {
    /// The number of a state, and whether it is new.
    fn number(&mut self, world: &World, origin: (u32, Step)) -> (u32, bool) {
        let next = self.origins.len() as u32;
        let number = *self.numbers.entry(hash_of(world)).or_insert(next);
        if number == next {
            self.origins.push(origin);
        }
        (number, number == next)
    }

    fn steps_to(&self, mut number: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        while number != 0 {
            let (from, step) = self.origins[number as usize];
            steps.push(step);
            number = from;
        }
        steps.reverse();
        steps
    }

    /// A state from which no rest can be reached by what is certain.
    fn stuck(&mut self) -> Option<u32> {
        self.edges.sort_unstable();
        let mut reaches = vec![false; self.origins.len()];
        let mut work = self.rests.clone();
        work.iter().for_each(|rest| reaches[*rest as usize] = true);
        while let Some(to) = work.pop() {
            let begin = self.edges.partition_point(|(other, _)| *other < to);
            for (_, from) in self.edges[begin..].iter().take_while(|(other, _)| *other == to) {
                if !std::mem::replace(&mut reaches[*from as usize], true) {
                    work.push(*from);
                }
            }
        }
        reaches.iter().position(|reaches| !reaches).map(|at| at as u32)
    }
}

fn search(scenario: &Scenario) -> Found {
    let mut states = States::default();
    let first = World::new(scenario);
    states.number(&first, (0, Step::Serve(0)));
    let mut level = vec![(0, first)];
    let mut depth = 0;
    let mut wrong = None;
    while !level.is_empty() && wrong.is_none() {
        let mut next = Vec::new();
        for (from, world) in level {
            let mut rests = true;
            for step in world.steps(scenario) {
                let (new, found) = after(scenario, &world, step);
                let (to, is_new) = states.number(&new, (from, step));
                if step.is_certain() {
                    rests = false;
                    states.edges.push((to, from));
                }
                let found = found.or_else(|| if is_new { new.wrong(scenario) } else { None });
                wrong = wrong.or(found.map(|what| (what, to)));
                if is_new {
                    next.push((to, new));
                }
            }
            let choice = world.may_ask(scenario);
            if rests && !choice {
                states.rests.push(from);
                wrong = wrong.or(world.wrong_at_rest(scenario).map(|what| (what, from)));
            }
            assert!(states.origins.len() <= STATES_MAX, "too many states");
        }
        level = next;
        depth += 1;
    }
    let wrong = wrong.or_else(|| states.stuck().map(|number| ("no rest can be reached any more", number)));
    Found {
        states: states.origins.len(),
        depth,
        rests: states.rests.len(),
        wrong: wrong.map(|(what, number)| (what, states.steps_to(number))),
    }
}

/// Nothing is wrong in any state.
fn holds(name: &str, scenario: &Scenario) {
    let found = search(scenario);
    let faults = (scenario.crashes, scenario.breaks, scenario.give_ups);
    println!("{name} {faults:?}: {} states, depth {}, {} of rest", found.states, found.depth, found.rests);
    if let Some((what, steps)) = found.wrong {
        panic!("{name}: {what}, after\n{steps:#?}");
    }
    assert!(found.rests > 0, "{name}: no state of rest");
}

/// The search finds what a flaw does.
fn breaks(name: &str, scenario: &Scenario, wanted: &str) {
    let found = search(scenario);
    let (what, steps) = found.wrong.unzip();
    let steps = steps.unwrap_or_default().len();
    println!("{name}, {:?}: {what:?}, after {steps} steps, {} states", scenario.flaw, found.states);
    assert_eq!(what, Some(wanted), "{:?}", scenario.flaw);
}
