//! The driver of a client machine: one lock, and no hand-over between threads.
//!
//! The thread that makes a call runs the machine, writes the sockets, and then reads them until its call is done. If
//! another thread already reads, the calling thread does not: the reader that gets the answer completes the call (the
//! completion is a closure that any thread may run). A reader continues while any call waits, so an answer is always
//! handled by the thread that the kernel woke for it.
//!
//! A caretaker thread runs the timers (retries, pings, write-back) and reads while no call is made, so that lock callbacks
//! are answered. While calls follow each other quickly, it leaves the sockets alone and only looks at the clock; the first
//! call after a quiet time takes the sockets over from it.
//!
//! Further threads invalidate the kernel's caches: one pool for pages and one for attributes, because such jobs may wait
//! for each other, and one for names, because dropping a name can wait for a directory that a program holds while it waits
//! for this client. A last pool asks the kernel to let go of nodes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use client::api::{Answer, Call, CallId, ConnId, Effect, Event, Invalidation, JobIds, KernelNode, LogLevel, Options};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use proto::Errno;
use proto::msg::Cred;
use rustix::event::epoll;
use stdx::Map;

use crate::asserted::{Asserted, start_thread};
use crate::clock::{self, Clock};
use crate::crew::{self, Crew};
use crate::stream::Stream;
use sockets::Conn;

mod error;
mod failure;
mod kernel;
mod sockets;
mod status;
#[cfg(test)]
mod tests;

pub use error::{AssertionFailed, LaunchError, MountError, StartError, UnmountError};
pub use kernel::{Kernel, NoKernel};

/// Runs when a call is done. It must not block and must not call the mount.
pub type Completion = Box<dyn FnOnce(Result<Answer, Errno>) + Send>;

/// A running client.
#[derive(Clone)]
pub struct Mount {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mount")
    }
}

struct Shared {
    clock: Clock,
    state: Mutex<State>,
    /// The caretaker sleeps on this while callers read.
    caretaker: Condvar,
    /// Signalled on mount, mount failure, unmount and completion of blocking calls.
    settled: Condvar,
    poller: OwnedFd,
    /// Wakes a caretaker that waits in the poller.
    nudge: OwnedFd,
    /// Token, node, offset, length. Two pools, because calls that wait for attributes may hold pages locked.
    forget_attributes: OnceLock<Crew<(u64, u64, u64, u64)>>,
    forget_pages: OnceLock<Crew<(u64, u64, u64, u64)>>,
    /// Token, directory, name.
    forget_entry: OnceLock<Crew<(u64, u64, Bytes)>>,
    let_go: OnceLock<Crew<Vec<KernelNode>>>,
    /// How to find out the job of a process; `None` while jobs are off.
    jobs: RwLock<Option<Arc<JobIds>>>,
    has_jobs: AtomicBool,
    /// The pause between attempts to poll: see [`Shared::look_sockets`].
    pause: AtomicU32,
    /// The number of answered calls, for statistics.
    answered: AtomicU64,
}

/// What a thread that submits calls does about the sockets: see [`Mount::attend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// Nothing: no call waits, or another thread attends.
    Unneeded,
    /// It attends again when [`Mount::sockets`] is readable or after a while.
    Wait,
    /// It attends again soon: answers are arriving.
    Again,
}

/// Which thread reads the sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Nobody,
    Caretaker,
    Caller,
}

/// The state of the mount.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    Mounting,
    Mounted,
    Failed(MountError),
    Unmounting,
    Gone,
}

/// A program that waits for a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The number of the call: below [`OWN_CALLS`], and unique among the waiting calls.
    pub id: CallId,
    /// The waiting thread, as this process sees it; 0 if it is not known.
    pub thread: u32,
    /// Any signal that the program handles interrupts the call, not only one that kills the program.
    pub interruptible: bool,
}

/// The first number for calls that come without one.
pub const OWN_CALLS: u64 = 1 << 63;

/// A call that is not done.
struct Waiting {
    caller: Caller,
    completion: Completion,
}

struct State {
    machine: Asserted<client::Client>,
    conns: Map<ConnId, Conn>,
    completions: Map<CallId, Waiting>,
    next_call: u64,
    reader: Reader,
    /// When the caretaker wakes by itself, if it sleeps.
    wakes: Option<stdx::Instant>,
    phase: Phase,
    /// What a mount that is not complete waits for.
    waits: Vec<String>,
    /// What was lost when the client ended.
    lost: Option<UnmountError>,
    /// When the last call was made; soon after it, the caretaker leaves the sockets alone.
    last_call: std::time::Instant,
    /// Completions that are ready to run once the lock is free.
    ready: Vec<(Completion, Result<Answer, Errno>)>,
    /// Connections with bytes that the kernel has not taken yet, or that wait for the flush at the end of a turn.
    dirty: Vec<ConnId>,
}

impl State {
    /// Gives the machine an event. [`Shared::carry_out`] carries out the effects.
    fn handle(&mut self, now: stdx::Instant, event: Event) {
        self.machine.run(|machine| machine.handle(now, event));
    }

    /// When the machine wants its next tick.
    fn deadline(&mut self) -> Option<stdx::Instant> {
        self.machine.run(|machine| machine.deadline()).flatten()
    }

    /// The caller for a call that this process itself makes.
    fn own_caller(&mut self) -> Caller {
        let id = CallId(self.next_call);
        self.next_call += 1;
        Caller { id, thread: 0, interruptible: false }
    }
}

/// After this long without a call, the caretaker reads the sockets.
const QUIET: Duration = Duration::from_millis(4);
/// How often the caretaker looks at the clock while calls are made.
const GLANCE: Duration = Duration::from_millis(2);
impl Mount {
    /// Starts a client and waits until it is mounted or fails to mount.
    ///
    /// # Errors
    /// The client cannot run, or the servers refuse it.
    pub fn start(options: Options, kernel: Arc<dyn Kernel>) -> Result<Mount, StartError> {
        let mount = Self::launch(options, kernel)?;
        mount.wait_mounted()?;
        Ok(mount)
    }

    /// Starts a client without waiting; calls made before it is mounted wait.
    ///
    /// # Errors
    /// The operating system refused a thread or a descriptor.
    pub fn launch(options: Options, kernel: Arc<dyn Kernel>) -> Result<Mount, LaunchError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nudge =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        let clock = Clock::default();
        let machine = Asserted::new(client::Client::new(options, clock.now()));
        let shared = Arc::new(Shared {
            clock,
            state: Mutex::new(State {
                machine,
                conns: Map::default(),
                completions: Map::default(),
                next_call: OWN_CALLS,
                reader: Reader::Nobody,
                wakes: None,
                phase: Phase::Mounting,
                waits: Vec::new(),
                lost: None,
                last_call: std::time::Instant::now(),
                ready: Vec::new(),
                dirty: Vec::new(),
            }),
            caretaker: Condvar::new(),
            settled: Condvar::new(),
            poller,
            nudge,
            forget_attributes: OnceLock::new(),
            forget_pages: OnceLock::new(),
            forget_entry: OnceLock::new(),
            let_go: OnceLock::new(),
            jobs: RwLock::default(),
            has_jobs: AtomicBool::new(false),
            pause: AtomicU32::new(0),
            answered: AtomicU64::new(0),
        });
        let panicked = |shared: &Arc<Shared>| {
            let shared = Arc::downgrade(shared);
            move |_: &str| shared.upgrade().into_iter().for_each(|shared| shared.thread_panicked())
        };
        let inodes = |name| {
            let (watch, shared, kernel) = (panicked(&shared), Arc::downgrade(&shared), kernel.clone());
            let forget = move |(token, ino, offset, length)| {
                let known = kernel.forget_inode(ino, offset, length);
                forgotten(&shared, token, known);
            };
            Crew::start(name, forget, watch).map_err(LaunchError)
        };
        let _ = shared.forget_attributes.set(inodes("forget-attrs")?);
        let _ = shared.forget_pages.set(inodes("forget-pages")?);
        let for_let_go = (Arc::downgrade(&shared), kernel.clone());
        let let_go = move |nodes: Vec<KernelNode>| {
            for_let_go.1.let_go(&nodes);
            if let Some(shared) = for_let_go.0.upgrade() {
                shared.turn(|state, now| state.handle(now, Event::Asked));
            }
        };
        let _ = shared.let_go.set(Crew::start("let-go", let_go, panicked(&shared)).map_err(LaunchError)?);
        let for_names = Arc::downgrade(&shared);
        let forget_entry = move |(token, parent, name): (u64, u64, Bytes)| {
            kernel.forget_entry(parent, &name);
            forgotten(&for_names, token, true);
        };
        let _ =
            shared.forget_entry.set(Crew::start("forget-entry", forget_entry, panicked(&shared)).map_err(LaunchError)?);
        let for_care = shared.clone();
        start_thread("caretaker".to_owned(), panicked(&shared), move || for_care.run_caretaker())
            .map_err(LaunchError)?;
        shared.turn(|state, now| {
            state.handle(now, Event::WallClock(clock::wall_ns()));
        });
        Ok(Mount { shared })
    }

    /// Waits until calls can be made.
    ///
    /// # Errors
    /// Why the mount failed.
    pub fn wait_mounted(&self) -> Result<(), MountError> {
        let mut state = self.shared.state.lock();
        loop {
            match &state.phase {
                Phase::Mounting => self.shared.settled.wait(&mut state),
                Phase::Mounted => return Ok(()),
                Phase::Failed(reason) => return Err(reason.clone()),
                Phase::Unmounting | Phase::Gone => return Err(MountError::Ended),
            }
        }
    }

    /// How to find out the jobs of processes; `None` while jobs are off.
    pub fn jobs(&self) -> Option<Arc<JobIds>> {
        let shared = &self.shared;
        let settings = || shared.jobs.read().clone();
        shared.has_jobs.load(Ordering::Acquire).then(settings).flatten()
    }

    /// Makes a call; `completion` runs when it is done, perhaps before this returns, perhaps on another thread. The caller
    /// then calls [`Mount::attend`].
    pub fn submit(&self, cred: Cred, call: Call, completion: Completion) -> CallId {
        let mut state = self.shared.state.lock();
        let caller = state.own_caller();
        self.shared.take(&mut state, caller, cred, call, completion);
        self.shared.carry_out(&mut state);
        caller.id
    }

    /// Like [`Mount::submit`], for a program that may get signals while it waits. Returns whether the call waits now.
    pub fn submit_for(&self, caller: Caller, cred: Cred, call: Call, completion: Completion) -> bool {
        let mut state = self.shared.state.lock();
        self.shared.take(&mut state, caller, cred, call, completion);
        self.shared.carry_out(&mut state);
        state.completions.contains_key(&caller.id)
    }

    /// The caller that waits for a call; `None` if the call is done or was not made yet.
    pub fn waiting(&self, id: CallId) -> Option<Caller> {
        self.shared.state.lock().completions.get(&id).map(|waiting| waiting.caller)
    }

    /// The calls of programs that wait now.
    pub fn all_waiting(&self) -> Vec<CallId> {
        self.shared.state.lock().completions.keys().copied().filter(|id| id.0 < OWN_CALLS).collect()
    }

    /// Makes several calls at once: like [`Mount::submit`] for each, with fewer system calls.
    pub fn submit_all(&self, calls: impl IntoIterator<Item = (Cred, Call, Completion)>) {
        let mut state = self.shared.state.lock();
        for (cred, call, completion) in calls {
            let caller = state.own_caller();
            self.shared.take(&mut state, caller, cred, call, completion);
        }
        self.shared.carry_out(&mut state);
    }

    /// Reads the sockets while calls wait and no other thread reads: see [`Attention`]. Polls for a moment without sleeping,
    /// less if `called` says that the thread has other work. A thread that is to attend again must do so until the result
    /// is [`Attention::Unneeded`]: until then no other thread reads, and requests from servers wait.
    pub fn attend(&self, attending: bool, called: &mut dyn FnMut() -> bool) -> Attention {
        if !attending && !self.shared.take_over() {
            return Attention::Unneeded;
        }
        self.shared.attend(called)
    }

    /// Readable when [`Mount::attend`] has something to do.
    pub fn sockets(&self) -> BorrowedFd<'_> {
        self.shared.poller.as_fd()
    }

    /// Interrupts a call.
    pub fn interrupt(&self, id: CallId) {
        self.shared.turn(|state, now| state.handle(now, Event::Interrupt { id }));
    }

    /// Ends a call whose program is being killed.
    pub fn abandon(&self, id: CallId) {
        self.shared.turn(|state, now| state.handle(now, Event::Abandon { id }));
    }

    /// Makes a call and waits for it.
    ///
    /// # Errors
    /// As in POSIX for the call.
    pub fn call(&self, cred: Cred, call: Call) -> Result<Answer, Errno> {
        let slot = Arc::new((Mutex::new(None), Condvar::new()));
        let for_completion = slot.clone();
        let completion = Box::new(move |result| {
            *for_completion.0.lock() = Some(result);
            for_completion.1.notify_one();
        });
        let id = self.submit(cred, call, completion);
        if self.shared.take_over() {
            self.shared.read_for(id);
        }
        let mut answer = slot.0.lock();
        loop {
            if let Some(result) = answer.take() {
                return result;
            }
            slot.1.wait(&mut answer);
        }
    }

    /// Writes everything back, disconnects and ends the client; gives up after `patience`. Later calls return the same.
    ///
    /// # Errors
    /// What was not written back.
    pub fn unmount(&self, patience: Duration) -> Result<(), UnmountError> {
        let deadline = std::time::Instant::now() + patience;
        self.shared.turn(|state, now| {
            if !matches!(state.phase, Phase::Gone | Phase::Failed(_)) {
                state.phase = Phase::Unmounting;
                state.handle(now, Event::Unmount);
            }
        });
        let mut state = self.shared.state.lock();
        loop {
            match &state.phase {
                Phase::Gone => return state.lost.clone().map_or(Ok(()), Err),
                Phase::Failed(reason) => return Err(UnmountError::NotMounted(reason.clone())),
                _ => {}
            }
            if self.shared.settled.wait_until(&mut state, deadline).timed_out() && state.phase == Phase::Unmounting {
                state.lost = Some(UnmountError::NoAnswer);
                self.shared.settle(&mut state, Phase::Gone);
                self.shared.carry_out(&mut state);
            }
        }
    }
}

/// Reports a completed invalidation to the machine. Token 0 means that the machine does not wait for it.
fn forgotten(shared: &Weak<Shared>, token: u64, known: bool) {
    if token != 0
        && let Some(shared) = shared.upgrade()
    {
        shared.turn(|state, now| state.handle(now, Event::Invalidated { token, known }));
    }
}

impl Shared {
    /// Hands a call to the machine. [`Shared::carry_out`] carries out the effects.
    fn take(&self, state: &mut State, caller: Caller, cred: Cred, call: Call, completion: Completion) {
        let id = caller.id;
        state.completions.insert(id, Waiting { caller, completion });
        state.last_call = std::time::Instant::now();
        let now = self.clock.now();
        state.handle(now, Event::WallClock(clock::wall_ns()));
        state.handle(now, Event::Call { id, cred, call });
    }

    /// Carries out the machine's effects, and wakes the caretaker if the deadline moved.
    fn carry_out(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        self.pump(state);
        self.wake_in_time(state);
    }

    /// Wakes the caretaker if the machine's deadline is now before the caretaker's wake-up time.
    fn wake_in_time(&self, state: &mut State) {
        let deadline = state.deadline();
        if state.wakes.zip(deadline).is_none_or(|(wakes, deadline)| deadline >= wakes) {
            return;
        }
        state.wakes = None;
        // It sleeps in the poller or on the condition; `reader` may be newer and does not tell which, so wake it in both.
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
        self.caretaker.notify_one();
    }

    /// Makes this thread the reader if calls wait and no other caller reads.
    fn take_over(&self) -> bool {
        let mut state = self.state.lock();
        if state.completions.is_empty() || state.reader == Reader::Caller {
            return false;
        }
        if state.reader == Reader::Caretaker {
            // The first call after a quiet time takes the sockets over. The caretaker sees that and steps back.
            let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
        }
        state.reader = Reader::Caller;
        true
    }

    /// Reads the sockets once, as the reading caller.
    fn attend(self: &Arc<Self>, called: &mut dyn FnMut() -> bool) -> Attention {
        let ready = self.look_sockets(called);
        let mut state = self.state.lock();
        self.read_ready(&mut state, &ready);
        if self.stop_reading(&mut state, |state| state.completions.is_empty()) {
            Attention::Unneeded
        } else if ready.is_empty() {
            Attention::Wait
        } else {
            Attention::Again
        }
    }

    /// Reads until the call is done. The caretaker then reads for the other calls.
    fn read_for(self: &Arc<Self>, own: CallId) {
        loop {
            let ready = match self.look_sockets(&mut || false) {
                ready if ready.is_empty() => self.wait_sockets(Some(GLANCE)),
                ready => ready,
            };
            let mut state = self.state.lock();
            self.read_ready(&mut state, &ready);
            if self.stop_reading(&mut state, |state| !state.completions.contains_key(&own)) {
                return;
            }
        }
    }

    /// Stops reading if this caller no longer needs to.
    fn stop_reading(&self, state: &mut State, done: impl Fn(&State) -> bool) -> bool {
        let stops = done(state) || state.phase == Phase::Gone;
        if stops {
            state.reader = Reader::Nobody;
            // The caretaker may be in a long sleep because a caller was reading.
            let glance = self.clock.now() + GLANCE;
            if !state.completions.is_empty() || state.wakes.is_some_and(|wakes| wakes > glance) {
                self.caretaker.notify_one();
            }
        }
        stops
    }

    /// The loop of the caretaker thread.
    fn run_caretaker(self: &Arc<Self>) {
        let mut wall = std::time::Instant::now();
        let mut state = self.state.lock();
        loop {
            if state.phase == Phase::Gone {
                return;
            }
            let now = self.clock.now();
            if wall.elapsed() > Duration::from_secs(1) {
                wall = std::time::Instant::now();
                state.handle(now, Event::WallClock(clock::wall_ns()));
            }
            if let Some(line) = self.clock.gap_message() {
                tracing::warn!("the client {line}");
            }
            if state.deadline().is_some_and(|deadline| deadline <= now) {
                self.read_arrived(&mut state);
                state.handle(now, Event::Tick);
            }
            self.pump(&mut state);
            let quiet = state.last_call.elapsed() >= QUIET;
            let sleep = state
                .deadline()
                .map_or(Duration::from_secs(1), |deadline| deadline.since(self.clock.now()))
                .min(Duration::from_secs(1));
            if state.reader == Reader::Nobody && (quiet || !state.completions.is_empty()) {
                state.reader = Reader::Caretaker;
                state.wakes = Some(now + sleep);
                drop(state);
                let ready = self.wait_nudged(sleep);
                state = self.state.lock();
                state.wakes = None;
                self.read_ready(&mut state, &ready);
                if state.reader == Reader::Caretaker {
                    state.reader = Reader::Nobody;
                }
            } else {
                let sleep = if quiet { sleep.min(Duration::from_millis(100)) } else { sleep.min(GLANCE) };
                state.wakes = Some(now + sleep);
                self.caretaker.wait_for(&mut state, sleep.max(Duration::from_micros(100)));
                state.wakes = None;
            }
        }
    }

    /// Runs `body` on the machine and carries out the effects.
    fn turn(self: &Arc<Self>, body: impl FnOnce(&mut State, stdx::Instant)) {
        let mut state = self.state.lock();
        body(&mut state, self.clock.now());
        self.carry_out(&mut state);
    }

    /// Carries out effects until there are none. Completions of calls run first and without the lock, so that their
    /// programs continue; then each socket is written once.
    fn pump(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        loop {
            while let Some(effect) = state.machine.run(client::Client::poll).flatten() {
                self.apply(state, effect);
            }
            if state.machine.has_failed() {
                self.assertion_failed(state);
            }
            if !state.ready.is_empty() {
                let ready = std::mem::take(&mut state.ready);
                self.answered.fetch_add(ready.len() as u64, Ordering::Relaxed);
                MutexGuard::unlocked(state, || ready.into_iter().for_each(|(completion, result)| completion(result)));
            } else if !self.flush(state) {
                return;
            }
        }
    }

    fn apply(self: &Arc<Self>, state: &mut State, effect: Effect) {
        match effect {
            Effect::Send { conn: id, frame } => {
                if let Some(conn) = state.conns.get_mut(&id) {
                    if !conn.out.has_remaining() {
                        state.dirty.push(id);
                    }
                    conn.out.push(&frame);
                }
            }
            Effect::Answer { id, result } => {
                if let Some(waiting) = state.completions.remove(&id) {
                    state.ready.push((waiting.completion, result));
                }
            }
            Effect::Dial { conn, nids } => {
                let (shared, watcher) = (self.clone(), self.clone());
                let dial = move || {
                    let result = Stream::dial(&nids);
                    shared.turn(|state, now| match result {
                        Ok(stream) => shared.adopt(state, now, conn, stream),
                        Err(error) => state.handle(now, Event::DialFailed { conn, reason: error.to_string() }),
                    });
                };
                let panicked = move |_: &str| watcher.thread_panicked();
                if let Err(error) = start_thread("dial".to_owned(), panicked, dial) {
                    let reason = format!("no thread for a connection: {error}");
                    state.handle(self.clock.now(), Event::DialFailed { conn, reason });
                }
            }
            Effect::Hangup { conn } => self.drop_conn(state, conn),
            Effect::Invalidate(Invalidation::Inode { token, ino, offset, length }) => {
                let crew = if length == 0 { &self.forget_attributes } else { &self.forget_pages };
                crew::send(crew, (token, ino, offset, length));
            }
            Effect::Invalidate(Invalidation::Entry { token, parent, name }) => {
                crew::send(&self.forget_entry, (token, parent, name));
            }
            Effect::LetGo(nodes) => crew::send(&self.let_go, nodes),
            Effect::Mounted => self.settle(state, Phase::Mounted),
            Effect::MountWaits { on } => state.waits = on,
            Effect::MountFailed { reason } => self.settle(state, Phase::Failed(MountError::Refused(reason))),
            Effect::Unmounted { result } => {
                state.lost = result.err().map(UnmountError::NotWrittenBack);
                self.settle(state, Phase::Gone);
            }
            Effect::Jobs(jobs) => {
                let jobs = jobs.is_on().then(|| Arc::new(jobs));
                self.has_jobs.store(jobs.is_some(), Ordering::Release);
                *self.jobs.write() = jobs;
            }
            Effect::Log(LogLevel::Error, line) => tracing::error!("{line}"),
            Effect::Log(LogLevel::Warn, line) => tracing::warn!("{line}"),
            Effect::Log(LogLevel::Info, line) => tracing::info!("{line}"),
        }
    }

    fn settle(&self, state: &mut State, phase: Phase) {
        if state.phase != Phase::Gone {
            state.phase = phase;
        }
        if state.phase == Phase::Gone {
            // Calls that still wait get no answer any more.
            let left = std::mem::take(&mut state.completions);
            state.ready.extend(left.into_values().map(|waiting| (waiting.completion, Err(Errno::ESHUTDOWN))));
            self.caretaker.notify_all();
        }
        self.settled.notify_all();
    }
}
