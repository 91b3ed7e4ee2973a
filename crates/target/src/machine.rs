//! The state of the target machine, and its three verbs.
//!
//! One call of [`Target::handle`] takes one event and runs everything that can run: requests, operations whose needs
//! are met, steps of recovery. Nothing in the machine blocks.
//!
//! Modules: `boot` start-up and stop · `session` connections, arrival, replies, eviction · `execute` attempts ·
//! `commit` groups · `recover` the recovery window · `status` the text of `recovery_status` · `upstream` the MGS and
//! other targets · `params` parameters.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dlm::ExportId;
use dlm::server::Locks;
use proto::msg::Config;
use proto::{ClientUuid, Fid, Frame, Handle, TargetName, Transno};
use rpc::at::Estimate;
use rpc::server::{Exports, Limits, Window};
use schema::Header;
use stdx::{Instant, Map};
use store::{View, ViewConfig};

use crate::api::{ConnId, DataId, DataOp, DataSpace, Effect, Event, LogLevel, Peer};
use crate::boot::{Loaded, Stage};
use crate::commit::Commits;
use crate::cross::Attempt;
use crate::cross::keys::Woken;
use crate::cross::run::Cross;
use crate::cx::{Cx, ExportInfo};
use crate::faults::{Held, Sites};
use crate::op::{Op, Out, Own, Replay, Work};
use crate::options::Options;
use crate::service::{Service, Task};
use crate::sharing::Sharing;
use crate::stats::Stats;
use crate::stopped::StopReason;
use crate::upstream::Upstreams;

/// Most operations that run in one call, so that events are not delayed for long; the others run in the next call.
const TURN: usize = 1024;

/// Purpose of a timer.
#[derive(Debug)]
pub(crate) enum Timer {
    /// Run this operation again.
    Wake(u64),
    /// Start this task.
    Spawn(Task),
    /// Retry this group.
    Commit(u64),
    /// Retry this data operation of a replay.
    Data { op: u64, index: usize },
    /// Register with the MGS again.
    Register,
    /// A request waits for a key or a target: see whether it may go on waiting.
    Patience(u64),
    /// Try a request again whose attempt was busy.
    Busy(Attempt),
    /// A `CrossPrepare` waits for locks.
    LocksAwaited(u64),
    /// Tell a coordinator that an attempt may be tried again.
    Free(Attempt),
    /// Ask other participants again about the attempts of lost coordinators.
    AskOthers,
    /// Try to begin a session with another metadata target again.
    Session(u32),
    /// Send another metadata target what it has to forget, without other messages.
    Forget(u32),
    /// Check a request that a fault injection site delays.
    Held(Box<Held>),
}

/// The state of a target without its service.
pub(crate) struct Machine {
    pub(crate) now: Instant,
    pub(crate) wall_ns: i64,
    pub(crate) options: Options,
    pub(crate) stage: Stage,
    pub(crate) header: Header,
    pub(crate) name: TargetName,
    pub(crate) config: Config,
    pub(crate) view: View,
    pub(crate) locks: Locks,
    pub(crate) exports: Exports,
    pub(crate) window: Window,
    /// When the first client connected, by the wall clock.
    pub(crate) recovery_start_ns: i64,
    pub(crate) commits: Commits,
    pub(crate) upstreams: Upstreams,
    pub(crate) sharing: Sharing,
    pub(crate) cross: Cross,
    /// Directories whose names nobody gets locks on, see [`Cx::withhold_names`](crate::Cx::withhold_names).
    pub(crate) withheld: BTreeSet<Fid>,
    pub(crate) stats: Stats,
    pub(crate) sites: Sites,
    /// The last transno that was assigned.
    pub(crate) last_transno: Transno,
    /// The highest transno that was durable when the target was started.
    pub(crate) started_from: Transno,
    pub(crate) last_committed: Transno,
    /// What the current attempt has collected so far.
    pub(crate) out: Out,
    pub(crate) effects: VecDeque<Effect>,
    /// Waiting operations.
    pub(crate) ops: Map<u64, Op>,
    /// Number of waiting operations that replay a durable open.
    pub(crate) reopening: usize,
    pub(crate) next_op: u64,
    /// Waiting operations whose needs may be met.
    pub(crate) ready: VecDeque<u64>,
    /// Changes that wait for capacity in the collecting group.
    pub(crate) throttled: VecDeque<Op>,
    /// Requests that wait for the end of recovery.
    pub(crate) deferred: VecDeque<(Handle, Frame)>,
    /// Changes that were unanswered before the restart and are executed before any client is served.
    pub(crate) unanswered: Vec<(Handle, proto::Xid)>,
    /// Unanswered changes that failed, to be retried when the others are done.
    pub(crate) postponed: VecDeque<(Handle, Frame)>,
    /// Failed unanswered changes are postponed, because others are not done yet.
    pub(crate) postpones: bool,
    /// Tasks to start.
    pub(crate) tasks: VecDeque<Task>,
    pub(crate) timers: BTreeMap<(Instant, u64), Timer>,
    pub(crate) next_timer: u64,
    /// Requests without a reply so far, by the time of their next early reply.
    pub(crate) early: BTreeSet<(Instant, u64, u64)>,
    pub(crate) early_of: Map<(u64, u64), Early>,
    /// Estimate of the service time.
    pub(crate) service_time: Estimate,
    /// Pings that are answered when a gate of recovery opens.
    pub(crate) held_pings: Vec<(Handle, proto::Header)>,
    /// Data operations in flight: the operation that started each, and the index in its memo.
    pub(crate) data: Map<DataId, (u64, usize)>,
    pub(crate) next_data: u64,
    pub(crate) data_space: Option<DataSpace>,
    pub(crate) peers: Map<ConnId, Peer>,
    pub(crate) next_silence_check: Instant,
    /// Deadline of the disconnects from other targets, after which the target stops.
    pub(crate) leave_until: Instant,
    /// Number of refused connects of clients that are not connected yet, by uuid (`None`: invalid uuid).
    pub(crate) refused: Map<Option<[u8; 16]>, u64>,
    /// Number of lock requests refused because of limits, and when that was last logged.
    pub(crate) locks_refused: u64,
    pub(crate) locks_refused_logged: Option<Instant>,
    /// Reasons of evictions, for clients that have not reconnected yet.
    pub(crate) evicted: Map<ClientUuid, String>,
    pub(crate) eviction_count: u64,
    /// Damage found on the medium since the start, up to a limit.
    pub(crate) damage: Vec<String>,
    /// Claim of a client that contradicts this store.
    pub(crate) doubt: Option<String>,
    pub(crate) evict_later: Vec<(Handle, String)>,
    pub(crate) loaded: Option<Loaded>,
}

/// A request whose client will get an early reply.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) at: Instant,
    pub(crate) asked: proto::Header,
    /// Time of arrival.
    pub(crate) since: Instant,
}

/// Interval of checks for silent clients.
pub(crate) const SILENCE_CHECK: Duration = Duration::from_secs(1);

impl Machine {
    fn new(options: Options, name: TargetName, last_group: u64, now: Instant) -> Machine {
        let config = ViewConfig { cache_limit: options.cache_limit, policy: options.commit };
        let locks = dlm::server::Settings { lock_timeout: options.lock_timeout, ..dlm::server::Settings::default() };
        Machine {
            now,
            wall_ns: 0,
            stage: Stage::Booting,
            header: Header::default(),
            name,
            config: Config::default(),
            view: View::new(config, schema::formats(), last_group),
            locks: Locks::new(0, locks),
            exports: Exports::new([0; 2], Limits::default()),
            window: Window::new([], Transno(0), Transno(0), options.recovery_soft, options.recovery_hard),
            recovery_start_ns: 0,
            commits: Commits::new(),
            upstreams: Upstreams::default(),
            sharing: Sharing::default(),
            cross: Cross::default(),
            withheld: BTreeSet::new(),
            stats: Stats::default(),
            sites: Sites::new(options.faults.clone()),
            last_transno: Transno(0),
            started_from: Transno(0),
            last_committed: Transno(0),
            out: Out::default(),
            effects: VecDeque::new(),
            ops: Map::default(),
            reopening: 0,
            next_op: 1,
            ready: VecDeque::new(),
            throttled: VecDeque::new(),
            deferred: VecDeque::new(),
            unanswered: Vec::new(),
            postponed: VecDeque::new(),
            postpones: false,
            tasks: VecDeque::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            early: BTreeSet::new(),
            early_of: Map::default(),
            service_time: Estimate::default(),
            held_pings: Vec::new(),
            data: Map::default(),
            next_data: 1,
            data_space: None,
            peers: Map::default(),
            next_silence_check: now,
            leave_until: now,
            evicted: Map::default(),
            eviction_count: 0,
            damage: Vec::new(),
            doubt: None,
            evict_later: Vec::new(),
            refused: Map::default(),
            locks_refused: 0,
            locks_refused_logged: None,
            loaded: None,
            options,
        }
    }

    pub(crate) fn export_info(&self, export: ExportId) -> Option<ExportInfo> {
        let export = self.exports.get(Handle(export.0))?;
        Some(ExportInfo {
            id: ExportId(export.handle.0),
            uuid: export.uuid,
            description: export.description.clone(),
            lightweight: export.lightweight,
            read_only: export.read_only,
        })
    }

    pub(crate) fn export_ids(&self) -> Vec<ExportId> {
        let mut ids: Vec<ExportId> = self.exports.iter().map(|export| ExportId(export.handle.0)).collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.window.is_open()
    }

    pub(crate) fn log(&mut self, level: LogLevel, line: String) {
        self.effects.push_back(Effect::Log(level, line));
    }

    pub(crate) fn client_name(&self, handle: Handle) -> String {
        match self.exports.get(handle) {
            Some(export) if export.description.is_empty() => export.uuid.to_string(),
            Some(export) => format!("{} ({})", export.description, export.uuid),
            None => format!("export {handle}"),
        }
    }

    /// A lock was refused because of a limit: logs a line now and then.
    pub(crate) fn log_lock_refusal(&mut self, export: ExportId) {
        const INTERVAL: Duration = Duration::from_secs(10);
        self.locks_refused += 1;
        if self.locks_refused_logged.is_some_and(|at| self.now.since(at) < INTERVAL) {
            return;
        }
        self.locks_refused_logged = Some(self.now);
        let client = self.client_name(Handle(export.0));
        let (own, all) = (self.locks.count(export), self.locks.counters());
        let line = format!(
            "refuses {client} a lock: it holds {own} of {} (limit: ldlm.namespaces.{}.lock_limit_mb; {} refused so far)",
            all.granted + all.records,
            self.name,
            self.locks_refused
        );
        self.log(LogLevel::Warn, line);
    }

    pub(crate) fn new_op(&mut self, export: ExportId, replay: Replay, work: Work) -> Op {
        let id = self.next_op;
        self.next_op += 1;
        Op::new(id, export, replay, work, self.now)
    }

    /// Stores an operation that waits.
    pub(crate) fn park(&mut self, op: Op) {
        self.reopening += usize::from(op.reopens());
        self.ops.insert(op.id, op);
    }

    /// Takes out an operation that waited, to continue or end it.
    pub(crate) fn unpark(&mut self, id: u64) -> Option<Op> {
        let op = self.ops.remove(&id)?;
        self.reopening -= usize::from(op.reopens());
        Some(op)
    }

    pub(crate) fn add_timer(&mut self, at: Instant, timer: Timer) {
        self.next_timer += 1;
        self.timers.insert((at, self.next_timer), timer);
    }

    /// Stops the target. Clients that wait for an answer will resend to its next start.
    pub(crate) fn stop(&mut self, reason: StopReason) {
        self.end(Some(reason));
    }

    /// The target ends, for this reason or because it was asked to.
    pub(crate) fn end(&mut self, reason: Option<StopReason>) {
        if self.stage != Stage::Stopped {
            self.stage = Stage::Stopped;
            self.effects.push_back(Effect::Stop { reason });
        }
    }

    /// Deletes a client's record with the next group.
    pub(crate) fn forget_client(&mut self, uuid: ClientUuid) {
        self.commits.forget(uuid, self.now);
    }
}

/// A target: a machine with its service.
pub struct Target<S: Service> {
    pub(crate) service: S,
    pub(crate) m: Machine,
}

impl<S: Service> Target<S> {
    /// Creates a target over an engine whose last durable group is `last_group` (its store was made with
    /// [`crate::format`]). It starts loading at once.
    pub fn new(service: S, options: Options, last_group: u64, now: Instant) -> Target<S> {
        let name = options.name.clone().unwrap_or(TargetName {
            fsname: String::new(),
            kind: service.kind(),
            index: proto::TargetIndex(0),
        });
        let mut target = Target { service, m: Machine::new(options, name, last_group, now) };
        target.boot();
        target
    }

    /// Handles an event. Deadlines take effect at [`Event::Tick`] only: the driver reports everything that has arrived
    /// before that, so that no client is evicted whose answer has arrived.
    pub fn handle(&mut self, now: Instant, event: Event) {
        self.m.now = now.max(self.m.now);
        if self.m.stage == Stage::Stopped {
            return;
        }
        match event {
            Event::Frame { conn, frame } => self.frame(conn, frame),
            Event::Accepted { conn, peer } => drop(self.m.peers.insert(conn, peer)),
            Event::Closed { conn } => self.closed(conn),
            Event::Dialled { conn } => self.m.upstream_dialled(conn),
            Event::DialFailed { conn, reason } => self.m.upstream_dial_failed(conn, reason),
            Event::Loaded(done) => {
                let ready = self.m.view.loaded(done);
                self.m.ready.extend(ready.into_iter().map(|attempt| attempt.0));
            }
            Event::Committed { group } => self.committed(group),
            Event::CommitDelayed { group, reason } => self.commit_delayed(group, reason),
            Event::CommitFailed { group, reason } => {
                self.m.view.commit_failed(group);
                self.m.stop(StopReason::Commit(reason));
            }
            Event::DataDone { id, result } => self.m.data_done(id, result),
            Event::DamageFound(what) => self.m.damage_found(what),
            Event::Space(space) => self.m.view.set_space(space),
            Event::DataSpace(space) => self.m.data_space = Some(space),
            Event::WallClock(ns) => {
                self.m.wall_ns = ns;
                self.m.stats.began(ns);
            }
            Event::Tick => self.time(),
        }
        self.run();
    }

    /// The next effect for the driver to carry out. A driver that asks only after it has handed over all that has arrived
    /// gets one group, and one message to another target, for all of it.
    pub fn poll(&mut self) -> Option<Effect> {
        if self.m.effects.is_empty() {
            self.rest();
        }
        self.m.effects.pop_front()
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let m = &self.m;
        match m.stage {
            Stage::Stopped => return None,
            Stage::Leaving => return Some(m.upstreams.deadline().map_or(m.leave_until, |at| at.min(m.leave_until))),
            _ => {}
        }
        if !m.ready.is_empty() || !m.tasks.is_empty() && m.tasks_may_run() {
            return Some(m.now);
        }
        let silence = (!m.exports.is_empty()).then_some(m.next_silence_check);
        [
            m.locks.deadline(),
            m.window.deadline().filter(|_| m.stage == Stage::Serving),
            m.commit_deadline(),
            m.timers.keys().next().map(|(at, _)| *at),
            m.early.first().map(|(at, ..)| *at),
            m.upstreams.deadline(),
            silence,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Commits everything, disconnects from other targets and stops: [`Effect::Stop`] without a reason follows.
    /// Clients and their records are kept, so that they reconnect when the target is started again.
    pub fn shutdown(&mut self, now: Instant) {
        self.m.now = now.max(self.m.now);
        self.begin_stop();
        self.run();
    }

    /// The service, read-only.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Fault injection of the process.
    pub fn faults(&self) -> &stdx::Faults {
        &self.m.sites.faults
    }

    /// The target's name.
    pub fn name(&self) -> &TargetName {
        &self.m.name
    }

    /// Whether the target serves new clients: started, and not recovering.
    pub fn is_serving(&self) -> bool {
        self.m.stage == Stage::Serving && !self.m.is_recovering()
    }

    /// Runs everything that can run.
    pub(crate) fn run(&mut self) {
        if self.m.stage == Stage::Leaving {
            self.m.leave();
            return;
        }
        let mut turns = 0;
        loop {
            self.lock_events();
            self.m.upstream_effects();
            let before = turns;
            while let Some(id) = self.m.ready.pop_front() {
                turns += 1;
                self.run_again(id);
                if turns >= TURN {
                    break;
                }
            }
            while turns < TURN && self.m.tasks_may_run() {
                let Some(task) = self.m.tasks.pop_front() else { break };
                turns += 1;
                let op = self.m.new_op(ExportId::TARGET, Replay::No, Work::Task(task));
                self.attempt(op);
            }
            let evictions = core::mem::take(&mut self.m.evict_later);
            let evicted = !evictions.is_empty();
            for (handle, reason) in evictions {
                self.evict(handle, &reason);
            }
            let upstream = self.upstream_events();
            let recovery = self.recovery_steps();
            let cross = self.cross_steps();
            if (turns == before && !evicted && !upstream && !recovery && !cross) || turns >= TURN {
                break;
            }
        }
        self.lock_events();
        self.m.assert_sound();
    }

    /// Everything that has arrived was handled: what was gathered for other targets leaves, and the group is closed if it is
    /// due, with all of that.
    fn rest(&mut self) {
        if self.m.stage != Stage::Leaving {
            self.m.flush_tells();
            self.commit_if_due();
        }
        self.m.upstream_effects();
        self.m.store_effects();
    }

    /// Handles everything that is due.
    fn time(&mut self) {
        let now = self.m.now;
        if self.m.stage == Stage::Leaving {
            self.m.upstreams_tick();
            return;
        }
        self.evict_late();
        if self.m.locks.deadline().is_some_and(|at| at <= now) {
            self.m.count_waiting_as_progress();
            self.m.locks.tick(now);
        }
        while let Some(entry) = self.m.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Timer::Wake(op) => self.m.ready.push_back(op),
                Timer::Spawn(task) => self.m.tasks.push_back(task),
                Timer::Commit(group) => self.m.view.commit_again(group),
                Timer::Data { op, index } => self.m.data_again(op, index),
                Timer::Register => self.m.register_again(),
                Timer::Held(held) => self.held(*held),
                Timer::Patience(op) => self.out_of_patience(op),
                Timer::Busy(attempt) => self.busy_again(attempt),
                Timer::LocksAwaited(op) => self.locks_awaited(op),
                Timer::Free(attempt) => self.woken(Woken::Free(attempt)),
                Timer::AskOthers => self.m.ask_others_again(),
                Timer::Session(mdt) => self.m.session_timer(mdt),
                Timer::Forget(mdt) => self.m.forget_timer(mdt),
            }
        }
        self.m.early_replies();
        self.m.upstreams_tick();
        if self.m.next_silence_check <= now {
            self.m.next_silence_check = now + SILENCE_CHECK;
            let timeout = self.m.options.timeouts.silence_max();
            if now.0 >= timeout.as_nanos() as u64 {
                for handle in self.m.exports.silent(now - timeout) {
                    self.evict(handle, &format!("nothing was heard of it for {} s", timeout.as_secs()));
                }
            }
        }
    }

    /// Calls the service outside of an attempt.
    pub(crate) fn outside_attempt(&mut self, call: impl FnOnce(&mut S, &mut Cx<'_>)) {
        let mut op = Op::new(0, ExportId::TARGET, Replay::No, Work::Own(Own::OutsideAttempt), self.m.now);
        self.m.out.clear();
        call(&mut self.service, &mut Cx { m: &mut self.m, op: &mut op });
        self.m.apply_collected();
    }
}

/// Most reports of damage that are kept.
const DAMAGE_MAX: usize = 100;

impl Machine {
    /// Each walk over the store reports the same damage again; it is logged once.
    fn damage_found(&mut self, what: String) {
        if self.damage.contains(&what) || self.damage.len() >= DAMAGE_MAX {
            return;
        }
        self.log(LogLevel::Error, format!("damage on the medium: {what}"));
        self.damage.push(what);
    }

    /// Extends lock callbacks of clients whose requests are waiting. A request that a client needs before it can cancel
    /// a lock may wait for another client's lock, so a connected client with requests in execution is making progress.
    /// Record locks do not count, since they may wait for ever.
    fn count_waiting_as_progress(&mut self) {
        let (now, timeouts) = (self.now, &self.options.timeouts);
        let silence = timeouts.ping_interval() + self.options.lock_timeout / 4;
        for export in self.exports.iter() {
            let id = ExportId(export.handle.0);
            let is_there = export.link.is_some() && now.since(export.heard) < silence;
            if is_there && export.executing() > self.locks.record_waits(id) {
                self.locks.progress(now, id);
            }
        }
    }

    /// Starts a data operation.
    pub(crate) fn start_data(&mut self, op: u64, index: usize, data: DataOp) {
        let id = DataId(self.next_data);
        self.next_data += 1;
        self.data.insert(id, (op, index));
        self.effects.push_back(Effect::Data { id, op: data });
    }
}
