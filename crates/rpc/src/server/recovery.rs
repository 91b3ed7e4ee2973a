//! The recovery window: after a restart, executes the clients' replays in the order of transnos over all clients.
//!
//! ```text
//! gate 1  every known client is connected (or evicted: the window starts with the first and lasts `soft`)
//! gate 2  requests are replayed; ends when every client has reported that it has no more
//! gate 3  locks are replayed; ends likewise
//! then    a new epoch is made durable
//! gate 4  unanswered changes from before the restart are executed
//! then    the target serves
//! ```
//!
//! # Unanswered changes
//! Other clients may have seen such a change before the restart. So that nobody sees the state without it, it is
//! executed before any client is served. It takes locks like any change, and clients cancel locks during a recovery,
//! but it gets no other support. A change that waits for more than that was either not executed before the restart or
//! not visible to anybody, so the target waits for it no longer than [`UNANSWERED_MAX`].
//!
//! # Order of replays
//! The next replay is the queued one with the lowest transno, once no client can still send a lower one: every client
//! that still replays has something queued, and clients send their replays in order. A gap is thus a change that nobody
//! replays, because its client is gone or never got the answer.
//!
//! # Clients that block a gate
//! A gate waits for the clients that block it: those that are not connected, those that still replay and have nothing
//! queued, those that have not replayed all their locks. Each client is timed separately, so that a slow one does not
//! use up the time of the others. A client is given up
//! - when it made no progress for `soft` (at gate 1: when no client has connected for `soft`), or
//! - once the window is older than `hard`, as soon as this gate has waited for the client for `soft` in total.
//!
//! A client whose replays are queued is waiting itself and is never given up for that. So one client that sends a
//! replay now and then delays the others until `hard` and is evicted then, and the rest have `soft` for each following
//! gate.
//!
//! # Transnos that were never assigned
//! Only the client knows its changes that were not durable, so it can claim changes that it never made. A replay runs
//! with the rights of its sender and is checked against the versions of the objects, so it can do no more than a new
//! request of the same client. The window ensures that such a claim takes nothing from others. If two clients claim the
//! same transno, both replays run in direct succession, whichever claim is true: if a group ended between the two, the
//! second one would count as durable, and a crash could lose it. A transno above all that this target can have assigned
//! since its last durable group is refused, because the transnos of all later changes follow it.
//!
//! Left to the target: executing, answering held pings, evicting, the epoch.

use core::time::Duration;
use std::collections::BTreeMap;

use proto::{Frame, Handle, Transno};
use stdx::Instant;

/// Longest time that the target waits for changes that were unanswered before the restart.
const UNANSWERED_MAX: Duration = Duration::from_secs(2);

/// State of a target's recovery, with the names of `recovery_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowState {
    /// No recovery was needed.
    Inactive,
    /// No client has connected yet; no time limit runs.
    WaitingForClients,
    /// Gate 1.
    Connecting,
    /// Gate 2.
    Requests,
    /// Gate 3.
    Locks,
    /// The target is making its new epoch durable.
    Finishing,
    /// Gate 4.
    Unanswered,
    /// Recovery is over.
    Complete,
}

/// Stage of one client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Absent,
    Requests,
    RequestsDone,
    LocksDone,
}

/// Outcome of an arriving replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// It waits for its turn.
    Queued,
    /// Its change is durable: run it at once if it must run at all.
    Committed,
    /// It was executed in this recovery, and its reply was dropped because the client must have it.
    Answered,
    /// A later one was executed already, or its client queued another one with this transno: refuse it.
    Late,
    /// The target cannot have assigned this transno: refuse it.
    NeverGiven,
}

/// What the target must do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// All requests are replayed: answer the held pings.
    OpenLocks,
    /// Everything is replayed: make the new epoch durable, then call [`Window::epoch_begun`].
    Finish,
    /// The wait for unanswered changes is over: call [`Window::finished`].
    Serve,
}

/// Status, as the parameter `recovery_status` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// State.
    pub state: WindowState,
    /// When the first client connected.
    pub started: Option<Instant>,
    /// When recovery ended.
    pub ended: Option<Instant>,
    /// Time after which the recovery continues without the missing clients.
    pub deadline: Option<Instant>,
    /// Clients known at the start.
    pub known: usize,
    /// Clients that have connected.
    pub connected: usize,
    /// Clients that still replay requests.
    pub req_replay_clients: usize,
    /// Clients that still replay locks.
    pub lock_replay_clients: usize,
    /// Clients that have replayed everything.
    pub completed: usize,
    /// Clients that were given up.
    pub evicted: usize,
    /// Replayed requests.
    pub replayed_requests: u64,
    /// Locks granted again.
    pub replayed_locks: u64,
    /// Queued replays.
    pub queued: usize,
    /// The next transno if there is no gap.
    pub next_transno: Transno,
}

/// A client that the window knows.
#[derive(Clone, Debug)]
struct Client {
    stage: Stage,
    /// Replays that wait for their turn.
    queued: usize,
    /// Time of its last progress.
    last_progress: Instant,
    /// Since when it has been blocking the gate.
    blocks: Option<Instant>,
    /// How long it blocked this gate before that.
    waited: Duration,
}

/// The recovery of one target after one start.
#[derive(Debug)]
pub struct Window {
    state: WindowState,
    soft: Duration,
    hard: Duration,
    started: Option<Instant>,
    ended: Option<Instant>,
    /// When a client last connected, or when the gate started.
    since: Instant,
    /// Lower bound of the time at which a client is late.
    check: Instant,
    clients: BTreeMap<Handle, Client>,
    /// How many of them block the gate.
    blocking: usize,
    known: usize,
    evicted: usize,
    completed: usize,
    /// Highest transno that was durable at the start.
    committed: Transno,
    /// Highest transno that can have been assigned before the restart.
    given_max: Transno,
    last: Transno,
    queue: BTreeMap<(Transno, Handle), Frame>,
    /// Client whose replay is executing.
    running: Option<Handle>,
    finish_emitted: bool,
    replayed_requests: u64,
    replayed_locks: u64,
}

impl Window {
    /// Creates a window for the clients that the target knows. All transnos up to `committed` are durable, and none
    /// above `given_max` was ever assigned.
    pub fn new(
        clients: impl IntoIterator<Item = Handle>,
        committed: Transno,
        given_max: Transno,
        soft: Duration,
        hard: Duration,
    ) -> Window {
        let absent =
            Client { stage: Stage::Absent, queued: 0, last_progress: Instant(0), blocks: None, waited: Duration::ZERO };
        let clients: BTreeMap<Handle, Client> = clients.into_iter().map(|handle| (handle, absent.clone())).collect();
        Window {
            state: if clients.is_empty() { WindowState::Inactive } else { WindowState::WaitingForClients },
            soft,
            hard: hard.max(soft),
            started: None,
            ended: None,
            since: Instant(0),
            check: Instant::FAR,
            known: clients.len(),
            clients,
            blocking: 0,
            evicted: 0,
            completed: 0,
            committed,
            given_max,
            last: committed,
            queue: BTreeMap::new(),
            running: None,
            finish_emitted: false,
            replayed_requests: 0,
            replayed_locks: 0,
        }
    }

    /// Whether recovery is in progress.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, WindowState::Inactive | WindowState::Complete)
    }

    /// Whether replays may still arrive, so that no change has a transno of the new epoch yet.
    pub fn replays(&self) -> bool {
        self.is_open() && self.state != WindowState::Unanswered
    }

    /// The state.
    pub fn state(&self) -> WindowState {
        self.state
    }

    /// Changes the time limits of the window.
    pub fn set_times(&mut self, soft: Duration, hard: Duration) {
        self.soft = soft;
        self.hard = hard.max(soft);
        if self.replays() {
            self.check = self.end_of_wait();
        }
    }

    /// When a client that blocks the gate is given up.
    fn limit(&self, client: &Client) -> Instant {
        let (Some(started), Some(awaited)) = (self.started, client.blocks) else { return Instant::FAR };
        let last_progress = if self.state == WindowState::Connecting { self.since } else { client.last_progress };
        let silent = last_progress.max(awaited) + self.soft;
        let in_all = awaited + self.soft.saturating_sub(client.waited);
        silent.min(in_all.max(started + self.hard))
    }

    /// When the first client that blocks the gate is given up.
    fn end_of_wait(&self) -> Instant {
        self.clients.values().map(|client| self.limit(client)).min().unwrap_or(Instant::FAR)
    }

    /// Updates whether a client blocks the gate.
    fn settle(&mut self, now: Instant, handle: Handle) {
        let (state, running) = (self.state, self.running == Some(handle));
        let Some(client) = self.clients.get_mut(&handle) else { return };
        let awaits = match state {
            WindowState::Connecting => client.stage == Stage::Absent,
            WindowState::Requests => client.stage <= Stage::Requests && client.queued == 0 && !running,
            WindowState::Locks => client.stage != Stage::LocksDone,
            _ => false,
        };
        match client.blocks {
            None if awaits => {
                client.blocks = Some(now);
                self.blocking += 1;
                let limit = self.clients.get(&handle).map_or(Instant::FAR, |client| self.limit(client));
                self.check = self.check.min(limit);
            }
            Some(since) if !awaits => {
                client.blocks = None;
                client.waited += now.since(since);
                self.blocking -= 1;
            }
            _ => {}
        }
    }

    /// Starts a gate, with full time for each client.
    fn enter(&mut self, now: Instant, state: WindowState) {
        self.state = state;
        self.since = now;
        self.check = Instant::FAR;
        self.blocking = 0;
        let handles: Vec<Handle> = self.clients.keys().copied().collect();
        for handle in handles {
            if let Some(client) = self.clients.get_mut(&handle) {
                (client.blocks, client.waited) = (None, Duration::ZERO);
            }
            self.settle(now, handle);
        }
    }

    /// A client made progress in its recovery.
    fn made_progress(&mut self, now: Instant, handle: Handle) {
        if let Some(client) = self.clients.get_mut(&handle) {
            client.last_progress = now;
        }
        self.settle(now, handle);
    }

    /// A known client connected or reconnected.
    pub fn connected(&mut self, now: Instant, client: Handle) {
        self.begin(now);
        if let Some(Client { stage: stage @ Stage::Absent, .. }) = self.clients.get_mut(&client) {
            *stage = Stage::Requests;
            self.since = now;
            self.made_progress(now, client);
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.is_open() && self.started.is_none() {
            self.started = Some(now);
            self.enter(now, WindowState::Connecting);
        }
    }

    /// A client that the target does not know tries to connect, or somebody waits for the end of recovery: starts the
    /// time limits, so that nobody waits for ever for clients that may all be gone.
    pub fn knocked(&mut self, now: Instant) {
        self.begin(now);
    }

    /// A client was evicted or has disconnected.
    pub fn gone(&mut self, handle: Handle) {
        let Some(client) = self.clients.remove(&handle) else { return };
        if self.is_open() {
            self.evicted += 1;
        }
        if client.blocks.is_some() {
            self.blocking -= 1;
        }
        if client.queued > 0 {
            self.queue.retain(|(_, whose), _| *whose != handle);
        }
    }

    /// A replay arrived that was not answered before in this recovery. `replayed` is the highest transno that this
    /// client has replayed.
    pub fn replay(&mut self, now: Instant, client: Handle, frame: Frame, replayed: Transno) -> Replayed {
        let transno = frame.header.transno;
        let what = match () {
            () if transno <= self.committed => Replayed::Committed,
            () if transno > self.given_max => Replayed::NeverGiven,
            () if transno <= replayed => Replayed::Answered,
            () if transno < self.last || self.queue.contains_key(&(transno, client)) => Replayed::Late,
            () => Replayed::Queued,
        };
        if what == Replayed::Queued
            && let Some(known) = self.clients.get_mut(&client)
        {
            known.queued += 1;
            self.queue.insert((transno, client), frame);
        }
        self.made_progress(now, client);
        what
    }

    /// The next replay to execute, if it is known. Call [`Window::executed`] when it is answered. If clients still
    /// block the gate, `accepts_gap` can decide to take the lowest queued replay nevertheless.
    pub fn next_replay(&mut self, accepts_gap: impl FnOnce() -> bool) -> Option<(Handle, Frame)> {
        if self.running.is_some() || self.state != WindowState::Requests || self.queue.is_empty() {
            return None;
        }
        // A second claim to the transno that was executed last need not wait, since no replay can precede it.
        let again = self.queue.first_key_value().is_some_and(|((transno, _), _)| *transno <= self.last);
        if !again && self.blocking > 0 && !accepts_gap() {
            return None;
        }
        let ((transno, client), frame) = self.queue.pop_first()?;
        if let Some(known) = self.clients.get_mut(&client) {
            known.queued -= 1;
        }
        self.running = Some(client);
        self.last = transno;
        Some((client, frame))
    }

    /// The replay taken from [`Window::next_replay`] was answered.
    pub fn executed(&mut self, now: Instant) {
        self.replayed_requests += 1;
        if let Some(client) = self.running.take() {
            self.made_progress(now, client);
        }
    }

    /// A client replayed `count` locks.
    pub fn locks_executed(&mut self, now: Instant, client: Handle, count: u64) {
        self.replayed_locks += count;
        self.made_progress(now, client);
    }

    /// A client has replayed all its requests. Returns whether to answer at once, because locks are being replayed
    /// already.
    pub fn requests_done(&mut self, now: Instant, client: Handle) -> bool {
        if let Some(Client { stage: stage @ (Stage::Absent | Stage::Requests), .. }) = self.clients.get_mut(&client) {
            *stage = Stage::RequestsDone;
            self.made_progress(now, client);
        }
        !matches!(self.state, WindowState::WaitingForClients | WindowState::Connecting | WindowState::Requests)
    }

    /// A client has replayed all its locks. Returns whether to answer at once, because the target serves already.
    pub fn locks_done(&mut self, now: Instant, client: Handle) -> bool {
        if let Some(known) = self.clients.get_mut(&client)
            && known.stage != Stage::LocksDone
        {
            known.stage = Stage::LocksDone;
            self.made_progress(now, client);
        }
        !self.is_open()
    }

    /// The next step. Call until it returns `None`.
    pub fn step(&mut self, now: Instant) -> Option<Step> {
        if !self.is_open() || self.state == WindowState::Finishing {
            return None;
        }
        match self.state {
            WindowState::WaitingForClients if !self.clients.is_empty() => None,
            WindowState::WaitingForClients | WindowState::Connecting if self.blocking == 0 => {
                self.enter(now, WindowState::Requests);
                self.step(now)
            }
            WindowState::Requests if self.blocking == 0 && self.running.is_none() && self.queue.is_empty() => {
                self.enter(now, WindowState::Locks);
                Some(Step::OpenLocks)
            }
            WindowState::Locks if self.blocking == 0 && !self.finish_emitted => {
                self.finish_emitted = true;
                self.enter(now, WindowState::Finishing);
                self.completed = self.clients.len();
                Some(Step::Finish)
            }
            WindowState::Unanswered if now >= self.check => {
                stdx::mark!("window.unanswered_late");
                Some(Step::Serve)
            }
            _ => None,
        }
    }

    /// A client that ran out of time. Evict it and call this again.
    pub fn late(&mut self, now: Instant) -> Option<Handle> {
        if now < self.check || !self.replays() {
            return None;
        }
        let late = self.clients.iter().find(|(_, client)| now >= self.limit(client));
        if let Some((&handle, _)) = late {
            stdx::mark!("window.evict");
            return Some(handle);
        }
        self.check = self.end_of_wait();
        None
    }

    /// For a client that is given up: time without progress, and the time for which it has blocked the gate.
    pub fn waited_for(&self, now: Instant, handle: Handle) -> Option<(Duration, Duration)> {
        let client = self.clients.get(&handle)?;
        let awaited = client.blocks?;
        let last_progress = client.last_progress.max(self.started.unwrap_or(awaited));
        Some((now.since(last_progress), client.waited + now.since(awaited)))
    }

    /// All clients that have not replayed everything, each of which the caller must evict.
    pub fn abort(&mut self) -> Vec<Handle> {
        self.clients.iter().filter(|(_, client)| client.stage != Stage::LocksDone).map(|(handle, _)| *handle).collect()
    }

    /// The new epoch is durable: executes unanswered changes next.
    pub fn epoch_begun(&mut self, now: Instant) {
        self.enter(now, WindowState::Unanswered);
        self.check = now + UNANSWERED_MAX;
    }

    /// The target is in service.
    pub fn finished(&mut self, now: Instant) {
        self.state = WindowState::Complete;
        self.ended = Some(now);
        self.clients.clear();
    }

    /// When to call [`Window::late`] next.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.check).filter(|at| *at != Instant::FAR && self.is_open())
    }

    /// Number of clients still awaited, and seconds left; `None` without a recovery.
    pub fn time_left(&self, now: Instant) -> Option<(usize, u32)> {
        if !self.is_open() {
            return None;
        }
        let missing = self.clients.values().filter(|client| client.stage != Stage::LocksDone).count();
        let left = match self.started {
            Some(started) => (started + self.hard).since(now),
            None => self.hard,
        };
        Some((missing, u32::try_from(left.as_secs()).unwrap_or(u32::MAX)))
    }

    /// Status.
    pub fn status(&self) -> Status {
        let count = |wanted: fn(Stage) -> bool| self.clients.values().filter(|client| wanted(client.stage)).count();
        Status {
            state: self.state,
            started: self.started,
            ended: self.ended,
            deadline: Some(self.end_of_wait()).filter(|at| *at != Instant::FAR),
            known: self.known,
            connected: match self.state {
                WindowState::Complete => self.completed,
                _ => count(|stage| stage != Stage::Absent),
            },
            req_replay_clients: count(|stage| stage <= Stage::Requests),
            lock_replay_clients: count(|stage| stage <= Stage::RequestsDone),
            completed: match self.state {
                WindowState::Complete | WindowState::Finishing | WindowState::Unanswered => self.completed,
                _ => count(|stage| stage == Stage::LocksDone),
            },
            evicted: self.evicted,
            replayed_requests: self.replayed_requests,
            replayed_locks: self.replayed_locks,
            queued: self.queue.len(),
            next_transno: Transno(self.last.0.saturating_add(1)),
        }
    }
}
