//! Programs run here: futures on one thread, woken by answers, times and each other.
//!
//! A program is written as a program is: call after call, each awaited. There is no runtime below: the world polls a task
//! when something that it waits for has come, in an order that follows from the seed alone.

use core::cell::RefCell;
use core::future::Future;
use core::ops::Range;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use client::api::{Answer, Call};
use proto::msg::Cred;
use proto::{Bytes, Errno};
use stdx::Instant;

use crate::model::When;
use crate::moves::Moves;
use crate::world::net::Node;

/// Why a call gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fail {
    /// The error that the program sees.
    Errno(Errno),
    /// The client died with the call in progress: nobody knows what came of it.
    Dead,
    /// The program that made the call was killed: what it asked for last may happen all the same.
    Killed(Part),
}

/// Where in a write its program was killed: a write can be several requests. Other calls change something with one at most.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Part {
    /// How many bytes had been answered before.
    pub written: u32,
    /// How many bytes after them the last request was for, which has no answer.
    pub asked: u32,
}

impl Fail {
    /// The same for a write of which `written` bytes had been answered before this request.
    pub fn after(self, written: u32) -> Fail {
        match self {
            Fail::Killed(part) => Fail::Killed(Part { written: part.written + written, ..part }),
            other => other,
        }
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Fail {
        Fail::Errno(errno)
    }
}

/// A call that a program made and the world has to carry to a client.
#[derive(Debug)]
pub struct Request {
    /// Its number.
    pub id: u64,
    /// Which client.
    pub client: usize,
    /// For whom.
    pub cred: Cred,
    /// What.
    pub call: Call,
}

/// What a program asks of the world itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// The trap counts from now on.
    Arm,
    /// And no longer.
    Disarm,
    /// A client comes.
    Mount,
    /// A client dies.
    Kill(usize),
    /// A client unmounts.
    Unmount(usize),
    /// A server is killed, and comes back.
    Crash(usize),
    /// The same, and what was written and not synced is lost, too.
    Power(usize),
    /// What a server does does not reach its disk any more.
    Barrier(usize),
    /// Others take all of a server's disk but so many bytes, and so many in reserve; or nothing any more.
    Fill(usize, Option<(u64, u64)>),
    /// The records of a table of a server cannot be read, or all can again.
    Damage(usize, Option<u8>),
    /// A node stands still for so long.
    Pause(Node, Duration),
    /// A server gives up a client.
    Evict(usize, usize),
    /// A site of a node is armed.
    Site(Node, u32, u32),
    /// A server's disk takes so much longer.
    Slow(usize, Duration),
    /// The next sync of a server's data files fails.
    FailSync(usize),
    /// A server's disk is lost, and a new target takes its place.
    Replace(usize),
    /// Whether a node has said this since it was asked last.
    Said(Node, &'static str, usize),
    /// A parameter is set, with this outcome.
    Set(Node, &'static str, &'static str, Result<(), Errno>),
    /// The disk of an object target's data files takes so many bytes in all, or as many as one likes.
    Room(usize, Option<u64>),
    /// The next change of the bytes of a data file of a target fails.
    FailWrite(usize),
    /// No data file of a target can be removed until it is killed.
    KeepFiles(usize),
    /// A copy is made of a server's disk as it is.
    Copy(usize),
    /// A server is killed and comes back with the copy of its disk, accepted as an older one or not.
    PutBack(usize, bool),
    /// Whether a parameter has this in it.
    Expect(Node, &'static str, String, bool),
}

/// How far a client is with metadata write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lane {
    /// So many were made.
    pub made: u64,
    /// So many of them, the first ones, the servers have answered.
    pub told: u64,
}

/// Bytes that a client could not write back, as its log says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// When.
    pub at: Instant,
    /// Of which inode.
    pub ino: u64,
    /// Which.
    pub parts: Vec<Range<u64>>,
}

/// So often a file that is written all the time is copied (docs/src/limits.md).
const MIGRATE_ROUNDS: u32 = 5;

/// A client that lives was given up by a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// Who.
    pub client: usize,
    /// By whom.
    pub target: String,
    /// That is a metadata target.
    pub names: bool,
    /// When.
    pub at: Instant,
    /// When the client learned of it.
    pub learned: Option<Instant>,
}

/// After a client has learned that it was evicted its kernel may answer from what it has for so long.
pub(crate) const KERNEL_SETTLES: Duration = Duration::from_millis(50);

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct State {
    now: Instant,
    wall_ns: i64,
    next_call: u64,
    next_task: usize,
    current: usize,
    tasks: BTreeMap<usize, Task>,
    names: BTreeMap<usize, String>,
    ready: VecDeque<usize>,
    requests: VecDeque<Request>,
    waiting: BTreeMap<u64, (usize, usize, String)>,
    answers: BTreeMap<u64, Result<Answer, Fail>>,
    /// When calls that may not take long began.
    begun: BTreeMap<u64, Instant>,
    /// No fault has fallen since.
    calm: Option<Instant>,
    longest: Option<(Duration, String)>,
    moves: Moves,
    sleeping: Vec<(Instant, usize)>,
    interrupts: VecDeque<(usize, u64, bool)>,
    commands: VecDeque<Command>,
    left: Vec<usize>,
    dead: Vec<(usize, Instant)>,
    /// Clients that unmount, or have.
    retired: Vec<usize>,
    /// Clients that live and that some target has given up, whatever for.
    given_up: Vec<usize>,
    lanes: Vec<Lane>,
    losses: Vec<Loss>,
    evictions: Vec<Eviction>,
    disturbed: bool,
    /// Of each client: how far its clock was off since when, in nanoseconds.
    clocks: BTreeMap<usize, Vec<(Instant, i64)>>,
    ended: BTreeMap<(&'static str, &'static str), u64>,
    notes: VecDeque<String>,
    failure: Option<String>,
}

impl State {
    fn is_dead(&self, client: usize) -> bool {
        self.dead.iter().any(|(dead, _)| *dead == client)
    }
}

/// The programs of a run; a handle, cheap to clone.
#[derive(Clone, Default)]
pub struct Sched {
    state: Rc<RefCell<State>>,
}

impl Sched {
    /// Nobody runs yet.
    pub fn new() -> Sched {
        Sched::default()
    }

    // --- for programs ---

    /// Starts a task.
    pub fn spawn(&self, name: impl Into<String>, task: impl Future<Output = ()> + 'static) {
        let mut state = self.state.borrow_mut();
        let id = state.next_task;
        state.next_task += 1;
        state.tasks.insert(id, Box::pin(task));
        state.names.insert(id, name.into());
        state.ready.push_back(id);
    }

    /// Makes a call to a client and waits for its answer.
    pub async fn call(&self, client: usize, cred: &Cred, call: Call) -> Result<Answer, Fail> {
        let id = self.start_call(client, cred, call)?;
        self.finish_call(id).await
    }

    /// Makes a call; the number is for [`finish_call`](Sched::finish_call).
    pub fn start_call(&self, client: usize, cred: &Cred, call: Call) -> Result<u64, Fail> {
        let mut state = self.state.borrow_mut();
        if state.is_dead(client) || state.retired.contains(&client) {
            return Err(Fail::Dead);
        }
        state.next_call += 1;
        let id = state.next_call;
        let task = state.current;
        state.waiting.insert(id, (task, client, brief(&call)));
        state.moves.begin(id, client, &call);
        // Who waits for a record lock waits for another program.
        if !matches!(call, Call::Setlk { wait: true, .. }) {
            let now = state.now;
            state.begun.insert(id, now);
        }
        state.requests.push_back(Request { id, client, cred: cred.clone(), call });
        Ok(id)
    }

    /// Makes a call whose answer nobody waits for.
    pub fn post(&self, client: usize, call: Call) {
        let mut state = self.state.borrow_mut();
        if !state.is_dead(client) && !state.retired.contains(&client) {
            state.next_call += 1;
            let id = state.next_call;
            state.requests.push_back(Request { id, client, cred: Cred::default(), call });
        }
    }

    /// Waits for the answer of a call.
    pub async fn finish_call(&self, id: u64) -> Result<Answer, Fail> {
        core::future::poll_fn(|_| {
            let mut state = self.state.borrow_mut();
            match state.answers.remove(&id) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    let task = state.current;
                    if let Some(entry) = state.waiting.get_mut(&id) {
                        entry.0 = task;
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// See [`Moves::by_others`].
    pub fn others_moved(&self, client: usize, since: Instant, counts: impl Fn(&Bytes) -> bool) -> bool {
        self.state.borrow().moves.by_others(client, since, counts)
    }

    /// A signal for the program that waits for a call, if it still does. `fatal`: it is to die.
    pub fn interrupt(&self, client: usize, id: u64, fatal: bool) -> bool {
        let mut state = self.state.borrow_mut();
        let waits = state.waiting.contains_key(&id);
        if waits {
            state.interrupts.push_back((client, id, fatal));
        }
        waits
    }

    /// Programs that wait for a client get a signal that ends them.
    pub fn kill_programs(&self, client: usize) {
        let mut state = self.state.borrow_mut();
        let wait: Vec<u64> = state.waiting.iter().filter(|(_, (_, at, _))| *at == client).map(|(id, _)| *id).collect();
        state.interrupts.extend(wait.into_iter().map(|id| (client, id, true)));
    }

    /// Whether a call has no answer yet.
    pub fn waits(&self, id: u64) -> bool {
        self.state.borrow().waiting.contains_key(&id)
    }

    /// Lets time pass.
    pub async fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        let mut told = false;
        core::future::poll_fn(|_| {
            let mut state = self.state.borrow_mut();
            if state.now >= until {
                return Poll::Ready(());
            }
            if !told {
                told = true;
                let task = state.current;
                state.sleeping.push((until, task));
            }
            Poll::Pending
        })
        .await;
    }

    /// Gives way once: the task runs again when somebody wakes it.
    pub async fn park(&self) {
        let mut first = true;
        core::future::poll_fn(|_| if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// The task that runs.
    pub fn current(&self) -> usize {
        self.state.borrow().current
    }

    /// Runs a task again.
    pub fn wake(&self, task: usize) {
        self.state.borrow_mut().ready.push_back(task);
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.state.borrow().now
    }

    /// The wall clock, as clients are told.
    pub fn wall_ns(&self) -> i64 {
        self.state.borrow().wall_ns
    }

    /// Between which times by a client's clock a call went that began then and ends now.
    pub fn when(&self, client: usize, begun: Instant) -> When {
        let state = self.state.borrow();
        let ago = state.now.since(begun).as_nanos() as i64;
        let none = Vec::new();
        let steps = state.clocks.get(&client).unwrap_or(&none);
        let first = steps.partition_point(|(at, _)| *at <= begun).saturating_sub(1);
        let offsets = || steps[first..].iter().map(|(_, offset)| *offset);
        let (low, high) = (offsets().min().unwrap_or(0), offsets().max().unwrap_or(0));
        When { from: state.wall_ns - ago + low, to: state.wall_ns + high }
    }

    /// Whether clocks differ.
    pub fn has_clocks(&self) -> bool {
        !self.state.borrow().clocks.is_empty()
    }

    /// How far a client's clock is off.
    pub fn clock_offset(&self, client: usize) -> i64 {
        self.state.borrow().clocks.get(&client).and_then(|steps| steps.last()).map_or(0, |(_, offset)| *offset)
    }

    /// A client's clock is set.
    pub fn set_clock(&self, client: usize, now: Instant, offset: i64) {
        self.state.borrow_mut().clocks.entry(client).or_default().push((now, offset));
    }

    /// A line for the trace.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let line = line();
        self.state.borrow_mut().notes.push_back(line);
    }

    /// Something is wrong: the run ends. The first one counts.
    pub fn fail(&self, what: String) {
        self.state.borrow_mut().failure.get_or_insert(what);
    }

    /// Whether something is wrong.
    pub fn has_failed(&self) -> bool {
        self.state.borrow().failure.is_some()
    }

    /// Whether a client is dead.
    pub fn is_dead(&self, client: usize) -> bool {
        self.state.borrow().is_dead(client)
    }

    /// How far each client is, those that died as they were then.
    pub fn lanes(&self) -> Vec<Lane> {
        self.state.borrow().lanes.clone()
    }

    /// Asks the world for something.
    pub fn command(&self, command: Command) {
        self.state.borrow_mut().commands.push_back(command);
    }

    /// Whether a client has unmounted.
    pub fn has_left(&self, client: usize) -> bool {
        self.state.borrow().left.contains(&client)
    }

    /// When the first client died or was evicted.
    pub fn first_death(&self) -> Option<Instant> {
        let death = self.state.borrow().dead.first().map(|(_, at)| *at);
        death.into_iter().chain(self.first_eviction()).min()
    }

    /// When the first client was evicted.
    pub fn first_eviction(&self) -> Option<Instant> {
        self.state.borrow().evictions.first().map(|eviction| eviction.at)
    }

    /// When a client died.
    pub fn died_at(&self, client: usize) -> Option<Instant> {
        self.state.borrow().dead.iter().find(|(dead, _)| *dead == client).map(|(_, at)| *at)
    }

    /// The clients that died, and when.
    pub fn deaths(&self) -> Vec<(usize, Instant)> {
        self.state.borrow().dead.clone()
    }

    /// Whether a target has given up a client that lives.
    pub fn was_given_up(&self, client: usize) -> bool {
        self.state.borrow().given_up.contains(&client)
    }

    /// Whether some target has evicted a client or given it up, whatever for.
    pub fn was_evicted_or_given_up(&self, client: usize) -> bool {
        self.was_evicted(client) || self.was_given_up(client)
    }

    /// What clients said that they gave up, in order.
    pub fn losses(&self) -> Vec<Loss> {
        self.state.borrow().losses.clone()
    }

    /// Whether a client was evicted whose programs depended on it since then: what they saw and made through it is uncertain.
    pub fn was_evicted_since(&self, client: usize, from: Instant) -> bool {
        let state = self.state.borrow();
        let touches = |eviction: &Eviction| eviction.learned.is_none_or(|learned| learned + KERNEL_SETTLES >= from);
        state.evictions.iter().any(|eviction| eviction.client == client && touches(eviction))
    }

    /// Whether a client unmounts, or has: it keeps what it was told, but its programs are gone.
    pub fn is_retired(&self, client: usize) -> bool {
        self.state.borrow().retired.contains(&client)
    }

    /// Whether a client was ever evicted.
    pub fn was_evicted(&self, client: usize) -> bool {
        self.was_evicted_since(client, Instant::ZERO)
    }

    /// Waits until no client is evicted any more.
    pub async fn undisturbed(&self) {
        while self.state.borrow().disturbed {
            self.sleep(Duration::from_secs(1)).await;
        }
    }

    /// The evictions of a client.
    pub fn evictions_of(&self, client: usize) -> Vec<Eviction> {
        self.state.borrow().evictions.iter().filter(|eviction| eviction.client == client).cloned().collect()
    }

    /// The call that took longest since the last fault, from that on if it began before.
    pub fn longest(&self) -> Option<(Duration, String)> {
        self.state.borrow().longest.clone()
    }

    /// A program's call has ended so.
    pub fn count(&self, operation: &'static str, result: &'static str) {
        *self.state.borrow_mut().ended.entry((operation, result)).or_default() += 1;
    }

    // --- for the world ---

    /// A client unmounts and its programs are killed: their calls have no answers.
    pub fn retire(&self, client: usize) {
        let calls: Vec<u64> = {
            let mut state = self.state.borrow_mut();
            state.retired.push(client);
            state.requests.retain(|request| request.client != client);
            state.waiting.iter().filter(|(_, (_, of, _))| *of == client).map(|(id, _)| *id).collect()
        };
        for id in calls {
            self.answer(id, Err(Fail::Dead));
        }
    }

    /// A client was evicted: to others that is as if it had died.
    pub fn note_eviction(&self, eviction: Eviction) {
        self.state.borrow_mut().evictions.push(eviction);
    }

    /// Whether clients may still be evicted.
    pub fn set_disturbed(&self, disturbed: bool) {
        self.state.borrow_mut().disturbed = disturbed;
    }

    /// A client knows now that a target has evicted it. Whether that was noted.
    pub fn learned_of_eviction(&self, client: usize, target: &str, now: Instant) -> bool {
        let state = &mut *self.state.borrow_mut();
        let own = |eviction: &&mut Eviction| eviction.client == client && eviction.target == target;
        let mut noted = false;
        for eviction in state.evictions.iter_mut().filter(own).filter(|eviction| eviction.learned.is_none()) {
            eviction.learned = Some(now);
            noted = true;
        }
        noted
    }

    /// From now on no fault falls.
    pub fn calms(&self) {
        let mut state = self.state.borrow_mut();
        state.calm = Some(state.now);
    }

    /// How often each kind of call ended in each way.
    pub fn ended(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.state.borrow().ended.clone()
    }

    /// A client gave something up.
    pub fn note_loss(&self, loss: Loss) {
        self.state.borrow_mut().losses.push(loss);
    }

    /// A target has given up a client that lives.
    pub fn note_given_up(&self, client: usize) {
        self.state.borrow_mut().given_up.push(client);
    }

    /// Time goes on.
    pub fn set_time(&self, now: Instant, wall_ns: i64) {
        let mut state = self.state.borrow_mut();
        state.now = now;
        state.wall_ns = wall_ns;
    }

    /// Runs who can run, until nobody can.
    pub fn run(&self) {
        loop {
            let (id, task) = {
                let mut state = self.state.borrow_mut();
                let Some(id) = state.ready.pop_front() else { return };
                state.current = id;
                (id, state.tasks.remove(&id))
            };
            let Some(mut task) = task else { continue };
            let done = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            let mut state = self.state.borrow_mut();
            if done {
                state.names.remove(&id);
            } else {
                state.tasks.insert(id, task);
                continue;
            }
            // What a task holds may wake others when it goes.
            drop(state);
            drop(task);
        }
    }

    /// An answer came.
    pub fn answer(&self, id: u64, result: Result<Answer, Fail>) {
        let mut state = self.state.borrow_mut();
        if let Some((task, client, call)) = state.waiting.remove(&id) {
            let (begun, now) = (state.begun.remove(&id), state.now);
            state.moves.end(id, now);
            if let (Some(begun), Some(calm), Ok(_) | Err(Fail::Errno(_))) = (begun, state.calm, &result) {
                // A file that is written all the time is copied several times: each of them is to be quick.
                let rounds = if call.starts_with("Migrate") { MIGRATE_ROUNDS } else { 1 };
                let took = state.now.since(begun.max(calm)) / rounds;
                if state.longest.as_ref().is_none_or(|(longest, _)| *longest < took) {
                    state.longest = Some((took, format!("client {client}: {call}")));
                }
            }
            state.answers.insert(id, result);
            state.ready.push_back(task);
        }
    }

    /// Calls to carry out.
    pub fn take_requests(&self) -> VecDeque<Request> {
        core::mem::take(&mut self.state.borrow_mut().requests)
    }

    /// What is asked of the world.
    pub fn take_commands(&self) -> VecDeque<Command> {
        core::mem::take(&mut self.state.borrow_mut().commands)
    }

    /// A client has unmounted.
    pub fn left(&self, client: usize) {
        self.state.borrow_mut().left.push(client);
    }

    /// Signals to deliver.
    pub fn take_interrupts(&self) -> VecDeque<(usize, u64, bool)> {
        core::mem::take(&mut self.state.borrow_mut().interrupts)
    }

    /// Tasks to wake, and when.
    pub fn take_sleeping(&self) -> Vec<(Instant, usize)> {
        core::mem::take(&mut self.state.borrow_mut().sleeping)
    }

    /// Lines for the trace.
    pub fn take_notes(&self) -> VecDeque<String> {
        core::mem::take(&mut self.state.borrow_mut().notes)
    }

    /// What is wrong, if anything.
    pub fn failure(&self) -> Option<String> {
        self.state.borrow().failure.clone()
    }

    /// How far a client is.
    pub fn note_lane(&self, client: usize, mut lane: Lane) {
        let state = &mut *self.state.borrow_mut();
        let evicted = state.evictions.iter().any(|eviction| eviction.client == client && eviction.names);
        let lanes = &mut state.lanes;
        if lanes.len() <= client {
            lanes.resize(client + 1, Lane::default());
        }
        if evicted {
            // What it counts as settled from then on is not what servers have.
            lane.told = lanes[client].told;
        }
        lanes[client] = lane;
    }

    /// A client died: its calls have no answers.
    pub fn bury(&self, client: usize) {
        let calls: Vec<u64> = {
            let mut state = self.state.borrow_mut();
            let now = state.now;
            state.dead.push((client, now));
            state.requests.retain(|request| request.client != client);
            state.waiting.iter().filter(|(_, (_, of, _))| *of == client).map(|(id, _)| *id).collect()
        };
        for id in calls {
            self.answer(id, Err(Fail::Dead));
        }
    }

    /// The calls without an answer: number, client, what.
    pub fn open_calls(&self) -> Vec<(u64, usize, String)> {
        let state = self.state.borrow();
        let name = |task: &usize| state.names.get(task).cloned().unwrap_or_default();
        state
            .waiting
            .iter()
            .map(|(id, (task, client, call))| (*id, *client, format!("{}: {call}", name(task))))
            .collect()
    }

    /// The tasks that have not ended, by name.
    pub fn tasks(&self) -> Vec<String> {
        self.state.borrow().names.values().cloned().collect()
    }

    /// Whether every task has ended.
    pub fn is_idle(&self) -> bool {
        self.state.borrow().tasks.is_empty()
    }

    /// Ends all tasks.
    pub fn clear(&self) {
        let tasks = core::mem::take(&mut self.state.borrow_mut().tasks);
        drop(tasks);
        let mut state = self.state.borrow_mut();
        state.ready.clear();
        state.waiting.clear();
        state.begun.clear();
        state.answers.clear();
        state.requests.clear();
        state.names.clear();
    }
}

/// A call in one line.
pub(crate) fn brief(call: &Call) -> String {
    match call {
        Call::Write { fh, ino, offset, data, write_back, .. } => {
            format!("Write {{ {fh:?}, ino {ino:x}, offset {offset}, length {}, write_back {write_back} }}", data.len())
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_wait_for_answers_and_times() {
        let sched = Sched::new();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (inner, lines) = (sched.clone(), log.clone());
        sched.spawn("one", async move {
            inner.sleep(Duration::from_millis(5)).await;
            let answer = inner.call(0, &Cred::default(), Call::Syncfs).await;
            lines.borrow_mut().push(format!("{answer:?}"));
        });
        sched.run();
        let sleeping = sched.take_sleeping();
        assert_eq!(sleeping, [(Instant::ZERO + Duration::from_millis(5), 0)]);
        sched.set_time(sleeping[0].0, 0);
        sched.wake(sleeping[0].1);
        sched.run();
        let request = sched.take_requests().pop_front().unwrap();
        assert_eq!(request.call, Call::Syncfs);
        assert!(!sched.is_idle());
        sched.answer(request.id, Ok(Answer::Done));
        sched.run();
        assert_eq!(*log.borrow(), ["Ok(Done)"]);
        assert!(sched.is_idle());
    }
}
