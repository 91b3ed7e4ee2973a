//! The recovery window: after a restart, what clients replay is executed in the order of transnos over all of them.
//!
//! ```text
//! gate 1  every known client is connected (or evicted: the window starts with the first and lasts `soft`)
//! gate 2  requests are replayed; ends when every client has said that it has no more
//! gate 3  locks are replayed; ends likewise
//! then    a new epoch is made durable, and the target serves
//! ```
//!
//! The next replay is the queued one with the lowest transno, as soon as nobody can still send a lower one: every client that
//! still replays has something queued (clients send theirs in order), or its transno follows the last executed one directly
//! and every such client has at least come past its durable opens: what is open must be open again before a change can ask
//! whether it is. A gap is thus a change that nobody replays: it was another's who is gone, or was never answered.
//!
//! What this leaves to the target: executing, answering held pings, evicting, the epoch.

use core::time::Duration;
use std::collections::BTreeMap;

use proto::{Frame, Handle, Transno};
use stdx::Instant;

/// Where a target's recovery is, with the words of `recovery_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowState {
    /// None was needed.
    Inactive,
    /// No client has come yet: no clock runs.
    WaitingForClients,
    /// Gate 1.
    Connecting,
    /// Gate 2.
    Requests,
    /// Gate 3.
    Locks,
    /// The target makes its new epoch durable.
    Finishing,
    /// Over.
    Complete,
}

/// How far one client is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Absent,
    Requests,
    RequestsDone,
    LocksDone,
}

/// What became of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// It waits for its turn.
    Queued,
    /// What it changed is durable: run it at once if it must run at all.
    Committed,
    /// It was executed in this recovery, and its answer is forgotten because the client must have it.
    Answered,
    /// Another client replays the same transno: refuse it.
    Conflict,
}

/// What the target has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Evict this client: the others do not wait any longer.
    Evict(Handle),
    /// Requests are replayed: answer the pings that asked.
    OpenLocks,
    /// Everything is replayed: make the new epoch durable, then call [`Window::finished`].
    Finish,
}

/// Figures for `recovery_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Where it is.
    pub state: WindowState,
    /// When the first client came.
    pub started: Option<Instant>,
    /// When it was over.
    pub ended: Option<Instant>,
    /// By when it goes on without those who are missing.
    pub deadline: Option<Instant>,
    /// Clients known at the start.
    pub known: usize,
    /// Clients that have connected.
    pub connected: usize,
    /// Clients that still replay requests.
    pub req_replay_clients: usize,
    /// Clients that still replay locks.
    pub lock_replay_clients: usize,
    /// Clients that are through.
    pub completed: usize,
    /// Clients that were given up.
    pub evicted: usize,
    /// Requests executed.
    pub replayed_requests: u64,
    /// Locks granted again.
    pub replayed_locks: u64,
    /// Requests that wait for their turn.
    pub queued: usize,
    /// The transno that would be next without a gap.
    pub next_transno: Transno,
}

/// The recovery of one target after one start.
#[derive(Debug)]
pub struct Window {
    state: WindowState,
    soft: Duration,
    hard: Duration,
    started: Option<Instant>,
    ended: Option<Instant>,
    /// Since when nothing went on; time runs from the first client on.
    since: Instant,
    clients: BTreeMap<Handle, Stage>,
    known: usize,
    evicted: usize,
    completed: usize,
    /// Durable at the start.
    committed: Transno,
    last: Transno,
    queue: BTreeMap<Transno, (Handle, Frame)>,
    queued: BTreeMap<Handle, usize>,
    running: bool,
    finish_told: bool,
    replayed_requests: u64,
    replayed_locks: u64,
}

impl Window {
    /// A window for the clients that the target knows; everything up to `committed` is durable.
    pub fn new(
        clients: impl IntoIterator<Item = Handle>,
        committed: Transno,
        soft: Duration,
        hard: Duration,
    ) -> Window {
        let clients: BTreeMap<Handle, Stage> = clients.into_iter().map(|handle| (handle, Stage::Absent)).collect();
        Window {
            state: if clients.is_empty() { WindowState::Inactive } else { WindowState::WaitingForClients },
            soft,
            hard: hard.max(soft),
            started: None,
            ended: None,
            since: Instant(0),
            known: clients.len(),
            clients,
            evicted: 0,
            completed: 0,
            committed,
            last: committed,
            queue: BTreeMap::new(),
            queued: BTreeMap::new(),
            running: false,
            finish_told: false,
            replayed_requests: 0,
            replayed_locks: 0,
        }
    }

    /// Whether recovery goes on.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, WindowState::Inactive | WindowState::Complete)
    }

    /// Where it is.
    pub fn state(&self) -> WindowState {
        self.state
    }

    /// Changes how long the window lasts.
    pub fn set_times(&mut self, soft: Duration, hard: Duration) {
        self.soft = soft;
        self.hard = hard.max(soft);
    }

    /// By when it goes on without those who are missing.
    fn end_of_wait(&self) -> Instant {
        match self.started {
            Some(started) if self.is_open() && self.state != WindowState::Finishing => {
                (self.since + self.soft).min(started + self.hard)
            }
            _ => Instant::FAR,
        }
    }

    /// A known client connected (perhaps again).
    pub fn connected(&mut self, now: Instant, client: Handle) {
        self.begin(now);
        if let Some(stage @ Stage::Absent) = self.clients.get_mut(&client) {
            *stage = Stage::Requests;
            self.since = now;
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.is_open() && self.started.is_none() {
            self.started = Some(now);
            self.since = now;
            self.state = WindowState::Connecting;
        }
    }

    /// A client that the target does not know wants in, or somebody waits for the end: time runs from now on if it did not
    /// yet, so that nobody waits for ever for clients that may all be gone.
    pub fn knocked(&mut self, now: Instant) {
        self.begin(now);
    }

    /// A client is gone for good.
    pub fn gone(&mut self, client: Handle) {
        if self.clients.remove(&client).is_some() && self.is_open() {
            self.evicted += 1;
        }
        if self.queued.remove(&client).is_some() {
            self.queue.retain(|_, (handle, _)| *handle != client);
        }
    }

    /// A replay arrived that was not answered before in this recovery. `replayed` is the highest transno that this client
    /// has replayed.
    pub fn replay(&mut self, client: Handle, frame: Frame, replayed: Transno) -> Replayed {
        let transno = frame.header.transno;
        if transno <= self.committed {
            return Replayed::Committed;
        }
        if transno <= replayed {
            return Replayed::Answered;
        }
        if transno <= self.last || self.queue.contains_key(&transno) {
            return Replayed::Conflict;
        }
        self.queue.insert(transno, (client, frame));
        *self.queued.entry(client).or_default() += 1;
        Replayed::Queued
    }

    /// The next replay to execute, if it is clear which one that is. Call [`Window::executed`] when it is answered.
    /// Where it is not, `accepts_gap` may say that it is taken all the same.
    pub fn next_replay(&mut self, accepts_gap: impl FnOnce() -> bool) -> Option<(Handle, Frame)> {
        if self.running || self.state != WindowState::Requests {
            return None;
        }
        let (&transno, _) = self.queue.first_key_value()?;
        let direct = transno.0 == self.last.0 + 1;
        let mut waiting = self.clients.iter().filter(|(_, stage)| **stage == Stage::Requests);
        let certain = waiting.all(|(client, _)| self.queued.get(client).is_some_and(|count| *count > 0 || direct));
        if !certain && !accepts_gap() {
            return None;
        }
        let (_, (client, frame)) = self.queue.pop_first()?;
        if let Some(count) = self.queued.get_mut(&client) {
            *count -= 1;
        }
        self.running = true;
        self.last = transno;
        Some((client, frame))
    }

    /// The replay that was taken is answered.
    pub fn executed(&mut self, now: Instant) {
        self.running = false;
        self.replayed_requests += 1;
        self.since = now;
    }

    /// Locks were replayed.
    pub fn locks_executed(&mut self, now: Instant, count: u64) {
        self.replayed_locks += count;
        self.since = now;
    }

    /// A client has replayed all its requests. Gives whether locks are replayed already: answer at once.
    pub fn requests_done(&mut self, now: Instant, client: Handle) -> bool {
        if let Some(stage @ (Stage::Absent | Stage::Requests)) = self.clients.get_mut(&client) {
            *stage = Stage::RequestsDone;
            self.since = now;
        }
        !matches!(self.state, WindowState::WaitingForClients | WindowState::Connecting | WindowState::Requests)
    }

    /// A client has replayed all its locks. Gives whether the target serves already: answer at once.
    pub fn locks_done(&mut self, now: Instant, client: Handle) -> bool {
        if let Some(stage) = self.clients.get_mut(&client)
            && *stage != Stage::LocksDone
        {
            *stage = Stage::LocksDone;
            self.since = now;
        }
        !self.is_open()
    }

    /// What follows from all that happened. Call until it gives nothing.
    pub fn step(&mut self, now: Instant) -> Option<Step> {
        if !self.is_open() || self.state == WindowState::Finishing {
            return None;
        }
        if now >= self.end_of_wait()
            && let Some(client) = self.late(now)
        {
            stdx::mark!("window.evict");
            return Some(Step::Evict(client));
        }
        match self.state {
            WindowState::WaitingForClients | WindowState::Connecting => {
                if self.clients.values().any(|stage| *stage == Stage::Absent) {
                    return None;
                }
                self.state = WindowState::Requests;
                self.since = now;
                self.step(now)
            }
            WindowState::Requests => {
                let open = self.clients.values().any(|stage| *stage <= Stage::Requests);
                if open || self.running || !self.queue.is_empty() {
                    return None;
                }
                self.state = WindowState::Locks;
                self.since = now;
                Some(Step::OpenLocks)
            }
            WindowState::Locks => {
                if self.clients.values().any(|stage| *stage != Stage::LocksDone) || self.finish_told {
                    return None;
                }
                self.finish_told = true;
                self.state = WindowState::Finishing;
                self.completed = self.clients.len();
                Some(Step::Finish)
            }
            WindowState::Inactive | WindowState::Finishing | WindowState::Complete => None,
        }
    }

    /// A client that must not be waited for any longer; when there is none, the clock starts again.
    fn late(&mut self, now: Instant) -> Option<Handle> {
        let over = self.started.is_some_and(|started| now >= started + self.hard);
        let idle = |client: &Handle| self.queued.get(client).is_none_or(|count| *count == 0);
        let late = self.clients.iter().find(|(client, stage)| match self.state {
            WindowState::Connecting => **stage == Stage::Absent,
            WindowState::Requests => **stage <= Stage::Requests && (over || idle(client)),
            WindowState::Locks => **stage != Stage::LocksDone,
            _ => false,
        });
        if let Some((&client, _)) = late {
            return Some(client);
        }
        self.since = now;
        None
    }

    /// Gives up on every client that is not through: each must be evicted.
    pub fn abort(&mut self) -> Vec<Handle> {
        self.clients.iter().filter(|(_, stage)| **stage != Stage::LocksDone).map(|(client, _)| *client).collect()
    }

    /// The new epoch is durable: the target serves.
    pub fn finished(&mut self, now: Instant) {
        self.state = WindowState::Complete;
        self.ended = Some(now);
        self.clients.clear();
    }

    /// When [`Window::step`] wants to be called at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.end_of_wait()).filter(|at| *at != Instant::FAR)
    }

    /// Clients still awaited, and the seconds that are left; `None` when there is no recovery.
    pub fn time_left(&self, now: Instant) -> Option<(usize, u32)> {
        if !self.is_open() {
            return None;
        }
        let missing = self.clients.values().filter(|stage| **stage != Stage::LocksDone).count();
        let left = match self.started {
            Some(started) => (started + self.hard).since(now),
            None => self.hard,
        };
        Some((missing, u32::try_from(left.as_secs()).unwrap_or(u32::MAX)))
    }

    /// Figures.
    pub fn status(&self) -> Status {
        let count = |wanted: fn(Stage) -> bool| self.clients.values().filter(|stage| wanted(**stage)).count();
        Status {
            state: self.state,
            started: self.started,
            ended: self.ended,
            deadline: self.deadline(),
            known: self.known,
            connected: match self.state {
                WindowState::Complete => self.completed,
                _ => count(|stage| stage != Stage::Absent),
            },
            req_replay_clients: count(|stage| stage <= Stage::Requests),
            lock_replay_clients: count(|stage| stage <= Stage::RequestsDone),
            completed: match self.state {
                WindowState::Complete | WindowState::Finishing => self.completed,
                _ => count(|stage| stage == Stage::LocksDone),
            },
            evicted: self.evicted,
            replayed_requests: self.replayed_requests,
            replayed_locks: self.replayed_locks,
            queued: self.queue.len(),
            next_transno: Transno(self.last.0 + 1),
        }
    }
}
