//! The scheduler of programs: futures on one thread, woken by replies, timers and each other.
//!
//! A program is written like a real one: call after call, each awaited. There is no async runtime: the world polls a task when
//! something that it waits for has arrived, in an order that follows from the seed alone.

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

use crate::model::TimeRange;
use crate::moves::Moves;
use crate::world::net::Node;

/// Why a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fail {
    /// The error that the program sees.
    Errno(Errno),
    /// The client died during the call: the outcome is unknown.
    Dead,
    /// The program that made the call was killed: its last request may still be executed.
    Killed(PartialWrite),
}

/// Where in a write its program was killed: a write can be several requests. Every other call changes something with at most one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PartialWrite {
    /// Bytes that were acknowledged before.
    pub written: u32,
    /// Bytes after them in the last request, which has no reply.
    pub asked: u32,
}

impl Fail {
    /// The same failure for a write of which `written` bytes were acknowledged before this request.
    pub fn after(self, written: u32) -> Fail {
        match self {
            Fail::Killed(part) => Fail::Killed(PartialWrite { written: part.written + written, ..part }),
            other => other,
        }
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Fail {
        Fail::Errno(errno)
    }
}

/// A call of a program that the world has to carry to a client.
#[derive(Debug)]
pub struct Request {
    /// Its number.
    pub id: u64,
    /// The client that is called.
    pub client: usize,
    /// The credentials of the caller.
    pub cred: Cred,
    /// The call.
    pub call: Call,
}

/// What a program asks of the world itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// The trap starts to count steps.
    Arm,
    /// The trap stops.
    Disarm,
    /// A new client mounts.
    Mount,
    /// A client dies.
    Kill(usize),
    /// A client unmounts.
    Unmount(usize),
    /// A server is killed and restarts.
    Crash(usize),
    /// The same, and what was written but not synced is lost.
    Power(usize),
    /// From now on nothing that a server writes reaches its disk.
    Barrier(usize),
    /// Something else fills a server's disk but for these numbers of bytes and of reserved bytes; `None` frees the space.
    Fill(usize, Option<(u64, u64)>),
    /// The records of a server's table become unreadable; `None` makes all readable again.
    Damage(usize, Option<u8>),
    /// A node stands still for this long.
    Pause(Node, Duration),
    /// A server evicts a client: server, client.
    Evict(usize, usize),
    /// Arms a fault site of a node: `fail_loc`, `fail_val`.
    Site(Node, u32, u32),
    /// Each operation of a server's disk takes this much longer.
    Slow(usize, Duration),
    /// The next sync of a server's data files fails.
    FailSync(usize),
    /// A server's disk is lost, and an empty new target takes its place.
    Replace(usize),
    /// Checks that a node has logged lines with this text, and how many.
    Logged(Node, &'static str, usize),
    /// Sets a parameter and checks the outcome.
    Set(Node, &'static str, &'static str, Result<(), Errno>),
    /// The capacity of the disk of an object target's data files, in bytes; `None` is unlimited.
    DataCapacity(usize, Option<u64>),
    /// The next write to a data file of a target fails.
    FailWrite(usize),
    /// No data file of a target can be removed until the target is killed.
    KeepFiles(usize),
    /// Copies a server's disk.
    Copy(usize),
    /// Kills a server and restarts it on the copy of its disk, accepted as an older state or not.
    PutBack(usize, bool),
    /// Checks that the value of a parameter contains this text, or that it does not.
    Expect(Node, &'static str, String, bool),
}

/// A client's progress with metadata write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteBackProgress {
    /// Changes made.
    pub made: u64,
    /// How many of these, from the first on, the servers have acknowledged.
    pub acknowledged: u64,
}

/// Bytes that a client could not write back, according to its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// When they were lost.
    pub at: Instant,
    /// The inode.
    pub ino: u64,
    /// The ranges.
    pub parts: Vec<Range<u64>>,
}

/// How often the copy of a constantly written file restarts (docs/src/limits.md).
const MIGRATE_ROUNDS: u32 = 5;

/// A target gave up a living client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// The evicted client.
    pub client: usize,
    /// The target that evicted it.
    pub target: String,
    /// Its index, if it is a metadata target.
    pub mdt: Option<u32>,
    /// When it was evicted.
    pub at: Instant,
    /// When the client learned of it.
    pub learned: Option<Instant>,
}

/// After a client has learned of its eviction, its kernel may answer from its caches for this long.
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
    /// Start times of calls whose duration is judged.
    begun: BTreeMap<u64, Instant>,
    /// Since when no fault strikes.
    calm_since: Option<Instant>,
    longest: Option<(Duration, String)>,
    moves: Moves,
    sleeping: Vec<(Instant, usize)>,
    interrupts: VecDeque<(usize, u64, bool)>,
    commands: VecDeque<Command>,
    left: Vec<usize>,
    dead: Vec<(usize, Instant)>,
    /// Clients that unmount, or have unmounted.
    retired: Vec<usize>,
    /// Living clients that some target has given up, for any reason.
    given_up: Vec<usize>,
    all_progress: Vec<WriteBackProgress>,
    /// The number of metadata targets that programs may use.
    mdts: u32,
    losses: Vec<Loss>,
    evictions: Vec<Eviction>,
    disturbed: bool,
    /// By client: the offset of its clock in nanoseconds, and since when.
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
    /// Without tasks.
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
        // A program that waits for a record lock waits for another program.
        if !matches!(call, Call::Setlk { wait: true, .. }) {
            let now = state.now;
            state.begun.insert(id, now);
        }
        state.requests.push_back(Request { id, client, cred: cred.clone(), call });
        Ok(id)
    }

    /// Makes a call whose reply is ignored.
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

    /// Sends a signal to the program that waits for a call, if it still waits. `fatal` kills the program.
    pub fn interrupt(&self, client: usize, id: u64, fatal: bool) -> bool {
        let mut state = self.state.borrow_mut();
        let waits = state.waiting.contains_key(&id);
        if waits {
            state.interrupts.push_back((client, id, fatal));
        }
        waits
    }

    /// Kills the programs that wait for a client.
    pub fn kill_programs(&self, client: usize) {
        let mut state = self.state.borrow_mut();
        let wait: Vec<u64> = state.waiting.iter().filter(|(_, (_, at, _))| *at == client).map(|(id, _)| *id).collect();
        state.interrupts.extend(wait.into_iter().map(|id| (client, id, true)));
    }

    /// Whether a call has no answer yet.
    pub fn waits(&self, id: u64) -> bool {
        self.state.borrow().waiting.contains_key(&id)
    }

    /// Waits for a duration of virtual time.
    pub async fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        let mut registered = false;
        core::future::poll_fn(|_| {
            let mut state = self.state.borrow_mut();
            if state.now >= until {
                return Poll::Ready(());
            }
            if !registered {
                registered = true;
                let task = state.current;
                state.sleeping.push((until, task));
            }
            Poll::Pending
        })
        .await;
    }

    /// Yields once: the task runs again when another wakes it.
    pub async fn park(&self) {
        let mut first = true;
        core::future::poll_fn(|_| if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// The running task.
    pub fn current(&self) -> usize {
        self.state.borrow().current
    }

    /// Makes a task ready to run.
    pub fn wake(&self, task: usize) {
        self.state.borrow_mut().ready.push_back(task);
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.state.borrow().now
    }

    /// The wall clock as clients see it.
    pub fn wall_ns(&self) -> i64 {
        self.state.borrow().wall_ns
    }

    /// The time range, by a client's clock, of a call that started at `begun` and ends now.
    pub fn when(&self, client: usize, begun: Instant) -> TimeRange {
        let state = self.state.borrow();
        let ago = state.now.since(begun).as_nanos() as i64;
        let none = Vec::new();
        let steps = state.clocks.get(&client).unwrap_or(&none);
        let first = steps.partition_point(|(at, _)| *at <= begun).saturating_sub(1);
        let offsets = || steps[first..].iter().map(|(_, offset)| *offset);
        let (low, high) = (offsets().min().unwrap_or(0), offsets().max().unwrap_or(0));
        TimeRange { from: state.wall_ns - ago + low, to: state.wall_ns + high }
    }

    /// Whether the clients' clocks differ.
    pub fn has_clocks(&self) -> bool {
        !self.state.borrow().clocks.is_empty()
    }

    /// The offset of a client's clock.
    pub fn clock_offset(&self, client: usize) -> i64 {
        self.state.borrow().clocks.get(&client).and_then(|steps| steps.last()).map_or(0, |(_, offset)| *offset)
    }

    /// Sets a client's clock.
    pub fn set_clock(&self, client: usize, now: Instant, offset: i64) {
        self.state.borrow_mut().clocks.entry(client).or_default().push((now, offset));
    }

    /// Adds a line to the trace.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let line = line();
        self.state.borrow_mut().notes.push_back(line);
    }

    /// Records a failure, which ends the run. Only the first one counts.
    pub fn fail(&self, what: String) {
        self.state.borrow_mut().failure.get_or_insert(what);
    }

    /// Whether a failure was recorded.
    pub fn has_failed(&self) -> bool {
        self.state.borrow().failure.is_some()
    }

    /// Whether a client is dead.
    pub fn is_dead(&self, client: usize) -> bool {
        self.state.borrow().is_dead(client)
    }

    /// The write-back progress of each client; for a dead one, as of its death.
    pub fn all_progress(&self) -> Vec<WriteBackProgress> {
        self.state.borrow().all_progress.clone()
    }

    /// Sends a command to the world.
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

    /// Whether a target has given up a living client.
    pub fn was_given_up(&self, client: usize) -> bool {
        self.state.borrow().given_up.contains(&client)
    }

    /// Whether some target has evicted a client or given it up, for any reason.
    pub fn was_evicted_or_given_up(&self, client: usize) -> bool {
        self.was_evicted(client) || self.was_given_up(client)
    }

    /// The losses that clients have reported, in order.
    pub fn losses(&self) -> Vec<Loss> {
        self.state.borrow().losses.clone()
    }

    /// Whether a client was evicted and may have affected its programs after `from`: what they saw and changed through it is
    /// uncertain.
    pub fn was_evicted_since(&self, client: usize, from: Instant) -> bool {
        let state = self.state.borrow();
        let touches = |eviction: &Eviction| eviction.learned.is_none_or(|learned| learned + KERNEL_SETTLES >= from);
        state.evictions.iter().any(|eviction| eviction.client == client && touches(eviction))
    }

    /// Whether a client unmounts, or has unmounted: its caches stay, but its programs are gone.
    pub fn is_retired(&self, client: usize) -> bool {
        self.state.borrow().retired.contains(&client)
    }

    /// Whether a client was ever evicted.
    pub fn was_evicted(&self, client: usize) -> bool {
        self.was_evicted_since(client, Instant::ZERO)
    }

    /// Waits until no client can be evicted any more.
    pub async fn undisturbed(&self) {
        while self.state.borrow().disturbed {
            self.sleep(Duration::from_secs(1)).await;
        }
    }

    /// The evictions of a client.
    pub fn evictions_of(&self, client: usize) -> Vec<Eviction> {
        self.state.borrow().evictions.iter().filter(|eviction| eviction.client == client).cloned().collect()
    }

    /// The longest call since the last fault; a call that started earlier counts from that fault on.
    pub fn longest(&self) -> Option<(Duration, String)> {
        self.state.borrow().longest.clone()
    }

    /// Counts a program's call by operation and result.
    pub fn count(&self, operation: &'static str, result: &'static str) {
        *self.state.borrow_mut().ended.entry((operation, result)).or_default() += 1;
    }

    // --- for the world ---

    /// A client starts to unmount and its programs are killed: their calls get no answers.
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

    /// Records an eviction: for others, the client is as good as dead.
    pub fn note_eviction(&self, eviction: Eviction) {
        self.state.borrow_mut().evictions.push(eviction);
    }

    /// Sets whether clients may still be evicted.
    pub fn set_disturbed(&self, disturbed: bool) {
        self.state.borrow_mut().disturbed = disturbed;
    }

    /// A client has learned that a target evicted it. Returns whether that eviction was recorded.
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

    /// From now on no fault strikes.
    pub fn faults_end(&self) {
        let mut state = self.state.borrow_mut();
        state.calm_since = Some(state.now);
    }

    /// The counts of calls by operation and result.
    pub fn ended(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.state.borrow().ended.clone()
    }

    /// Records a loss that a client reported.
    pub fn note_loss(&self, loss: Loss) {
        self.state.borrow_mut().losses.push(loss);
    }

    /// Records that a target has given up a living client.
    pub fn note_given_up(&self, client: usize) {
        self.state.borrow_mut().given_up.push(client);
    }

    /// Sets the time.
    pub fn set_time(&self, now: Instant, wall_ns: i64) {
        let mut state = self.state.borrow_mut();
        state.now = now;
        state.wall_ns = wall_ns;
    }

    /// Runs tasks until none is ready.
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
            // Values that a task owns may wake others when they are dropped.
            drop(state);
            drop(task);
        }
    }

    /// Delivers an answer.
    pub fn answer(&self, id: u64, result: Result<Answer, Fail>) {
        let mut state = self.state.borrow_mut();
        if let Some((task, client, call)) = state.waiting.remove(&id) {
            let (begun, now) = (state.begun.remove(&id), state.now);
            state.moves.end(id, now);
            if let (Some(begun), Some(calm_since), Ok(_) | Err(Fail::Errno(_))) = (begun, state.calm_since, &result) {
                // A constantly written file is copied several times: each copy has to be quick.
                let rounds = if call.starts_with("Migrate") { MIGRATE_ROUNDS } else { 1 };
                let took = state.now.since(begun.max(calm_since)) / rounds;
                if state.longest.as_ref().is_none_or(|(longest, _)| *longest < took) {
                    state.longest = Some((took, format!("client {client}: {call}")));
                }
            }
            state.answers.insert(id, result);
            state.ready.push_back(task);
        }
    }

    /// Takes the calls to carry out.
    pub fn take_requests(&self) -> VecDeque<Request> {
        core::mem::take(&mut self.state.borrow_mut().requests)
    }

    /// Takes the commands for the world.
    pub fn take_commands(&self) -> VecDeque<Command> {
        core::mem::take(&mut self.state.borrow_mut().commands)
    }

    /// Records that a client has unmounted.
    pub fn left(&self, client: usize) {
        self.state.borrow_mut().left.push(client);
    }

    /// Takes the signals to deliver.
    pub fn take_interrupts(&self) -> VecDeque<(usize, u64, bool)> {
        core::mem::take(&mut self.state.borrow_mut().interrupts)
    }

    /// Takes the tasks to wake, and when.
    pub fn take_sleeping(&self) -> Vec<(Instant, usize)> {
        core::mem::take(&mut self.state.borrow_mut().sleeping)
    }

    /// Takes the lines for the trace.
    pub fn take_notes(&self) -> VecDeque<String> {
        core::mem::take(&mut self.state.borrow_mut().notes)
    }

    /// The first failure, if any.
    pub fn failure(&self) -> Option<String> {
        self.state.borrow().failure.clone()
    }

    /// The number of metadata targets that all clients know.
    pub fn mdts(&self) -> u32 {
        self.state.borrow().mdts.max(1)
    }

    /// Sets the number of metadata targets that all clients know.
    pub fn set_mdts(&self, mdts: u32) {
        self.state.borrow_mut().mdts = mdts;
    }

    /// Records a client's write-back progress.
    pub fn note_progress(&self, client: usize, mut progress: WriteBackProgress) {
        // A client counts the answers of all targets together: only when none is missing is it certain which changes have one.
        let uncertain = self.mdts() > 1 && progress.acknowledged < progress.made;
        let state = &mut *self.state.borrow_mut();
        let evicted = state.evictions.iter().any(|eviction| eviction.client == client && eviction.mdt.is_some());
        let all_progress = &mut state.all_progress;
        if all_progress.len() <= client {
            all_progress.resize(client + 1, WriteBackProgress::default());
        }
        if evicted || uncertain {
            // After its eviction a client counts changes as settled that the servers do not have.
            progress.acknowledged = all_progress[client].acknowledged;
        }
        all_progress[client] = progress;
    }

    /// A client died: its calls get no answers.
    pub fn client_died(&self, client: usize) {
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

    /// The calls without an answer: number, client, text.
    pub fn open_calls(&self) -> Vec<(u64, usize, String)> {
        let state = self.state.borrow();
        let name = |task: &usize| state.names.get(task).cloned().unwrap_or_default();
        state
            .waiting
            .iter()
            .map(|(id, (task, client, call))| (*id, *client, format!("{}: {call}", name(task))))
            .collect()
    }

    /// The names of the tasks that have not ended.
    pub fn tasks(&self) -> Vec<String> {
        self.state.borrow().names.values().cloned().collect()
    }

    /// Whether every task has ended.
    pub fn is_idle(&self) -> bool {
        self.state.borrow().tasks.is_empty()
    }

    /// Drops all tasks.
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
