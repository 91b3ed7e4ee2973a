//! The recovery window: after a restart, what clients replay is executed in the order of transnos over all of them.
//!
//! ```text
//! gate 1  every known client is connected (or evicted: the window starts with the first and lasts `soft`)
//! gate 2  requests are replayed; ends when every client has said that it has no more
//! gate 3  locks are replayed; ends likewise
//! then    a new epoch is made durable
//! gate 4  changes that clients had sent before the restart, and were never answered, are done
//! then    the target serves
//! ```
//!
//! # What was never answered
//! Others may have seen such a change before the restart. So that nobody sees the state without it now, it is done before anybody is
//! served. It takes locks like any change, and clients give back locks during a recovery, but nothing else is done for them: what waits for
//! more than that was not done before the restart either, or nobody could have seen it, and is not waited for longer than
//! [`UNANSWERED_MAX`].
//!
//! The next replay is the queued one with the lowest transno, as soon as nobody can still send a lower one: every client that
//! still replays has something queued, and clients send theirs in order. A gap is thus a change that nobody replays: it was
//! another's who is gone, or was never answered.
//!
//! # Whom a gate waits for
//! A gate waits for the clients that keep it shut: those that are not connected, those that still replay and have nothing
//! queued, those that have not replayed all their locks. Each of them is timed by itself, so that a slow one never uses up the
//! time of the others. It is given up
//! - when nothing was heard of it for `soft` (at gate 1: when nobody has connected for `soft`), or
//! - once the window is older than `hard`, as soon as this gate has waited for it for `soft` in all.
//!
//! A client whose replays are queued waits itself: it is never given up for that. So one client that sends a replay now and
//! then holds the others up to `hard`, is evicted there, and the rest have `soft` for each gate that follows.
//!
//! # Transnos that were never given
//! Of what was not durable nobody but the client knows, so a client can claim changes that it never made. A replay runs with
//! the rights of its sender, and after it the versions of the objects say what it changed: it can do no more than a new
//! request of the same client. What the window sees to is that such a claim takes nothing from others. A transno that two
//! clients claim runs for both, one right after the other, and which of them tells the truth need not be known: if a group ended
//! between them, the other would count as durable, and be lost in a crash. One beyond what this target can have given since its last
//! durable group is refused, for the transnos of all later changes follow it.
//!
//! What this leaves to the target: executing, answering held pings, evicting, the epoch.

use core::time::Duration;
use std::collections::BTreeMap;

use proto::{Frame, Handle, Transno};
use stdx::Instant;

/// How long the target waits for changes that were never answered before the restart.
const UNANSWERED_MAX: Duration = Duration::from_secs(2);

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
    /// Gate 4.
    Unanswered,
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
    /// It comes after a later one that was executed, or is a second one of its client with this transno: refuse it.
    Late,
    /// The target cannot have given this transno: refuse it.
    NeverGiven,
}

/// What the target has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Requests are replayed: answer the pings that asked.
    OpenLocks,
    /// Everything is replayed: make the new epoch durable, then call [`Window::epoch_begun`].
    Finish,
    /// Nobody waits for unanswered changes any longer: call [`Window::finished`].
    Serve,
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

/// A client that the window knows.
#[derive(Clone, Debug)]
struct Client {
    stage: Stage,
    /// Replays that wait for their turn.
    queued: usize,
    /// When it last did something for its recovery.
    heard: Instant,
    /// It keeps the gate shut since then.
    blocks: Option<Instant>,
    /// How long this gate has waited for it before that.
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
    /// When a client last connected; time runs from the first client on.
    since: Instant,
    /// No client is late before that.
    check: Instant,
    clients: BTreeMap<Handle, Client>,
    /// How many of them keep the gate shut.
    blocking: usize,
    known: usize,
    evicted: usize,
    completed: usize,
    /// Durable at the start.
    committed: Transno,
    /// The highest that can have been given since.
    given_max: Transno,
    last: Transno,
    queue: BTreeMap<(Transno, Handle), Frame>,
    /// Whose replay is executed.
    running: Option<Handle>,
    finish_told: bool,
    replayed_requests: u64,
    replayed_locks: u64,
}

impl Window {
    /// A window for the clients that the target knows; everything up to `committed` is durable, and nothing above `given_max`
    /// was ever given.
    pub fn new(
        clients: impl IntoIterator<Item = Handle>,
        committed: Transno,
        given_max: Transno,
        soft: Duration,
        hard: Duration,
    ) -> Window {
        let absent =
            Client { stage: Stage::Absent, queued: 0, heard: Instant(0), blocks: None, waited: Duration::ZERO };
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
            finish_told: false,
            replayed_requests: 0,
            replayed_locks: 0,
        }
    }

    /// Whether recovery goes on.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, WindowState::Inactive | WindowState::Complete)
    }

    /// Whether replays may still come: nothing has a transno of the new epoch.
    pub fn replays(&self) -> bool {
        self.is_open() && self.state != WindowState::Unanswered
    }

    /// Where it is.
    pub fn state(&self) -> WindowState {
        self.state
    }

    /// Changes how long the window lasts.
    pub fn set_times(&mut self, soft: Duration, hard: Duration) {
        self.soft = soft;
        self.hard = hard.max(soft);
        if self.replays() {
            self.check = self.end_of_wait();
        }
    }

    /// When a client that keeps the gate shut is given up.
    fn limit(&self, client: &Client) -> Instant {
        let (Some(started), Some(awaited)) = (self.started, client.blocks) else { return Instant::FAR };
        let heard = if self.state == WindowState::Connecting { self.since } else { client.heard };
        let silent = heard.max(awaited) + self.soft;
        let in_all = awaited + self.soft.saturating_sub(client.waited);
        silent.min(in_all.max(started + self.hard))
    }

    /// By when it goes on without those who are missing.
    fn end_of_wait(&self) -> Instant {
        self.clients.values().map(|client| self.limit(client)).min().unwrap_or(Instant::FAR)
    }

    /// Notes whether the gate waits for a client by now.
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

    /// A gate begins: nobody has used any of its time.
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

    /// A client did something for its recovery.
    fn heard(&mut self, now: Instant, handle: Handle) {
        if let Some(client) = self.clients.get_mut(&handle) {
            client.heard = now;
        }
        self.settle(now, handle);
    }

    /// A known client connected (perhaps again).
    pub fn connected(&mut self, now: Instant, client: Handle) {
        self.begin(now);
        if let Some(Client { stage: stage @ Stage::Absent, .. }) = self.clients.get_mut(&client) {
            *stage = Stage::Requests;
            self.since = now;
            self.heard(now, client);
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.is_open() && self.started.is_none() {
            self.started = Some(now);
            self.enter(now, WindowState::Connecting);
        }
    }

    /// A client that the target does not know wants in, or somebody waits for the end: time runs from now on if it did not
    /// yet, so that nobody waits for ever for clients that may all be gone.
    pub fn knocked(&mut self, now: Instant) {
        self.begin(now);
    }

    /// A client is gone for good.
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

    /// A replay arrived that was not answered before in this recovery. `replayed` is the highest transno that this client
    /// has replayed.
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
        self.heard(now, client);
        what
    }

    /// The next replay to execute, if it is clear which one that is. Call [`Window::executed`] when it is answered.
    /// Where it is not, `accepts_gap` may say that it is taken all the same.
    pub fn next_replay(&mut self, accepts_gap: impl FnOnce() -> bool) -> Option<(Handle, Frame)> {
        if self.running.is_some() || self.state != WindowState::Requests || self.queue.is_empty() {
            return None;
        }
        // A second claim of the transno that was executed last waits for nothing: no replay can come before it.
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

    /// The replay that was taken is answered.
    pub fn executed(&mut self, now: Instant) {
        self.replayed_requests += 1;
        if let Some(client) = self.running.take() {
            self.heard(now, client);
        }
    }

    /// Locks of a client were replayed.
    pub fn locks_executed(&mut self, now: Instant, client: Handle, count: u64) {
        self.replayed_locks += count;
        self.heard(now, client);
    }

    /// A client has replayed all its requests. Gives whether locks are replayed already: answer at once.
    pub fn requests_done(&mut self, now: Instant, client: Handle) -> bool {
        if let Some(Client { stage: stage @ (Stage::Absent | Stage::Requests), .. }) = self.clients.get_mut(&client) {
            *stage = Stage::RequestsDone;
            self.heard(now, client);
        }
        !matches!(self.state, WindowState::WaitingForClients | WindowState::Connecting | WindowState::Requests)
    }

    /// A client has replayed all its locks. Gives whether the target serves already: answer at once.
    pub fn locks_done(&mut self, now: Instant, client: Handle) -> bool {
        if let Some(known) = self.clients.get_mut(&client)
            && known.stage != Stage::LocksDone
        {
            known.stage = Stage::LocksDone;
            self.heard(now, client);
        }
        !self.is_open()
    }

    /// What follows from all that happened. Call until it gives nothing.
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
            WindowState::Locks if self.blocking == 0 && !self.finish_told => {
                self.finish_told = true;
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

    /// A client that must not be waited for any longer: evict it, do what follows, and ask again.
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

    /// Since when nothing was heard of a client that is given up, and for how long its gate has waited for it.
    pub fn waited_for(&self, now: Instant, handle: Handle) -> Option<(Duration, Duration)> {
        let client = self.clients.get(&handle)?;
        let awaited = client.blocks?;
        let heard = client.heard.max(self.started.unwrap_or(awaited));
        Some((now.since(heard), client.waited + now.since(awaited)))
    }

    /// Gives up on every client that is not through: each must be evicted.
    pub fn abort(&mut self) -> Vec<Handle> {
        self.clients.iter().filter(|(_, client)| client.stage != Stage::LocksDone).map(|(handle, _)| *handle).collect()
    }

    /// The new epoch is durable: unanswered changes are done.
    pub fn epoch_begun(&mut self, now: Instant) {
        self.enter(now, WindowState::Unanswered);
        self.check = now + UNANSWERED_MAX;
    }

    /// The target serves.
    pub fn finished(&mut self, now: Instant) {
        self.state = WindowState::Complete;
        self.ended = Some(now);
        self.clients.clear();
    }

    /// When [`Window::late`] may have a client.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.check).filter(|at| *at != Instant::FAR && self.is_open())
    }

    /// Clients still awaited, and the seconds that are left; `None` when there is no recovery.
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

    /// Figures.
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
