//! The simulated world: one queue of events, ordered by virtual time, and the machines that receive them.
//!
//! A machine is given an event and polled for its effects; each effect becomes a future event after a delay drawn from the seed.
//! The world does not know what a request means. Programs ([`crate::sched`]) run when their answers arrive; faults ([`faults`])
//! are events like all others.
//!
//! # Invariants
//! - Two runs of a plan are identical: every choice comes from the seed, every order from (time, sequence number).
//! - A killed machine's outstanding effects do not happen: events carry the number of the life that requested them.

pub(crate) mod acts;
mod canaries;
mod clocks;
mod effects;
pub(crate) mod faults;
mod io;
pub(crate) mod liar;
mod loss;
pub(crate) mod mount;
pub(crate) mod net;
mod newcomers;
pub(crate) mod partition;
pub(crate) mod pause;
pub(crate) mod raw;
pub(crate) mod server;
pub(crate) mod session;
mod sites;
pub(crate) mod trap;
mod wire;

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeSet, BinaryHeap};

use client::api::{Answer, Call, Invalidation, KernelNode};
use proto::msg::Cred;
use proto::{Errno, Frame, TargetIndex, TargetKind, TargetName};
use stdx::{Instant, Rng};
use store::{Engine, Group, Load, LoadDone};
use target::{DataId, DataOp, DataResult};

use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::sched::{Command, Sched};
use crate::spy::Spy;
use crate::trace::{Keep, Trace};
use faults::Faults;
use mount::Mount;
use net::{Net, Node};
use server::{Limits, Server};

/// The wall clock at the start of a run.
pub(crate) const WALL_START_NS: i64 = 1_800_000_000_000_000_000;

/// An event of the world.
enum WorldEvent {
    /// A frame arrives at one side of a connection.
    Frame { conn: usize, side: usize, frame: Frame },
    /// A listener accepts a connection.
    Accepted { conn: usize },
    /// The dialler learns that its connection is established.
    Dialled { conn: usize },
    /// The dialler learns that its dial failed.
    DialFailed { node: Node, life: u32, number: u64 },
    /// One side learns that the connection is closed.
    Closed { conn: usize, side: usize },
    /// The engine executes a load.
    Load { server: usize, life: u32, load: Load },
    /// The target receives the loaded records.
    Loaded { server: usize, life: u32, done: LoadDone },
    /// The engine starts to write a group.
    Commit { server: usize, life: u32, group: Group },
    /// The group is durable.
    Durable { server: usize, life: u32, group: u64 },
    /// The target learns that the group is durable, or that the commit failed.
    Committed { server: usize, life: u32, group: u64, failed: Option<store::EngineError> },
    /// An operation on data files is executed.
    Data { server: usize, life: u32, id: DataId, op: DataOp },
    /// The target receives its result.
    DataDone { server: usize, life: u32, id: DataId, result: DataResult },
    /// A server carries out the effects of what has arrived.
    Rest { server: usize, life: u32 },
    /// A timer of a machine expires.
    Tick { node: Node, serial: u64 },
    /// Once a second each machine gets the wall clock.
    Second { node: Node, life: u32 },
    /// A program's call reaches its client.
    Call { client: usize, id: u64, cred: Cred, call: Call },
    /// The answer reaches the program.
    Answer { id: u64, result: Result<Answer, Errno> },
    /// A signal reaches the client that executes a call.
    Interrupt { client: usize, id: u64, fatal: bool },
    /// The kernel receives an invalidation.
    Invalidate { client: usize, what: Invalidation },
    /// A client asks its kernel to forget nodes.
    LetGo { client: usize, nodes: Vec<KernelNode> },
    /// The trap kills a server.
    Kill { server: usize },
    /// A canary kills a client.
    Die { client: usize },
    /// A node that has closed a connection stops receiving from it.
    StopReceiving { conn: usize, side: usize },
    /// The sleep of a task ends.
    Wake { task: usize },
    /// A server starts.
    Start { server: usize },
    /// A server is added to the file system.
    Add { server: usize },
    /// A fault.
    Fault(faults::Fault),
    /// The liar sends its next requests.
    Lie,
}

struct Entry {
    at: Instant,
    order: u64,
    what: WorldEvent,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// How a phase of a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The condition became true.
    Done,
    /// The time limit was reached.
    Late,
}

/// A deliberate defect that an oracle must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Canary {
    /// None.
    #[default]
    None,
    /// Some changes are acknowledged and never reach their server.
    Swallow,
    /// Invalidations of names are not delivered to kernels.
    KeepNames,
    /// Some writes are acknowledged and never reach their client.
    LoseAppends,
    /// Some locks are granted by the world itself.
    GrantLocks,
    /// Requests to destroy objects do not reach the object targets.
    KeepObjects,
    /// Writes that a full disk refuses are acknowledged.
    DropWhenFull,
    /// Object targets sync no data files but report success.
    ForgetSyncs,
    /// Some changes of modes are missing on disk although their group is durable.
    ForgetChanges,
    /// Some replies arrive again with another transno.
    TwoOutcomes,
    /// Some calls fail with `ESTALE` without a reason.
    Stale,
    /// Invalidations of pages are not delivered to kernels.
    KeepPages,
    /// Some listings lack a name.
    HideNames,
    /// After the death of a client some changes of others are acknowledged and never reach their server.
    SwallowAfterDeath,
    /// The removal of a name is acknowledged and never reaches its server; then its client dies.
    UnlinkAndDie,
    /// Targets wait for dead clients much longer than they should.
    Patient,
    /// Programs do not learn of the losses that evicted clients report.
    TellNobody,
    /// Some changes of extended attributes are acknowledged without being made.
    ForgetAttributes,
    /// Some changes of owners are not made.
    ForgetOwners,
    /// Some changes of times are not made.
    ForgetTimes,
    /// Some calls of users are made as root.
    AllMay,
    /// Some pipes, sockets and devices are made as regular files.
    PlainFiles,
    /// Some calls of `fallocate` are acknowledged without being made.
    ForgetRanges,
}

/// The world.
pub struct World {
    /// Virtual time.
    pub now: Instant,
    /// The plan that runs.
    pub plan: Plan,
    /// The programs.
    pub sched: Sched,
    /// Targets: MGT, MDT, OSTs.
    pub servers: Vec<Server>,
    /// Clients.
    pub mounts: Vec<Mount>,
    /// The trace of the run.
    pub trace: Trace,
    /// The exactly-once oracle.
    pub spy: Spy,
    /// The source of faults.
    pub faults: Faults,
    /// When servers were killed, and their names.
    pub crashes: Vec<(Instant, TargetName)>,
    /// When recoveries ended, and the names of their targets.
    pub recovered: Vec<(Instant, TargetName)>,
    /// A fault at one chosen step, in a story.
    pub trap: Option<trap::Trap>,
    /// A deliberate defect.
    pub canary: Canary,
    /// Failures of disks.
    disks: io::Disks,
    /// The wall clocks of clients.
    wall_clocks: clocks::WallClocks,
    /// Faults at named sites.
    arming: sites::Arming,
    /// Lines that nodes have logged, in a story.
    pub logged: Vec<(Node, String)>,
    /// Acts of administrators.
    pub administrator: acts::Administrator,
    /// Object targets that the metadata target does not know yet.
    newcomers: newcomers::Newcomers,
    /// Partitions of clients.
    pub partitioning: partition::Partitioning,
    /// The client that breaks the protocol, if there is one.
    pub liar: Option<liar::Liar>,
    /// Sessions that a story operates by hand.
    pub raw: raw::RawSessions,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    clocks: pause::Clocks,
    /// Calls of programs that have not reached their clients yet.
    calls_in_flight: BTreeSet<u64>,
    net: Net,
    rng: Rng,
    failure: Option<String>,
}

impl World {
    /// A world with formatted targets, in which nothing runs yet.
    pub fn new(plan: Plan, keep: Keep) -> World {
        let mut rng = Rng::new(plan.seed ^ 0x5eed_0001);
        let name = |kind, index: usize| TargetName {
            fsname: if kind == TargetKind::Mgt { String::new() } else { mount::FSNAME.to_owned() },
            kind,
            index: TargetIndex(index as u32),
        };
        let mut names = vec![name(TargetKind::Mgt, 0), name(TargetKind::Mdt, 0)];
        names.extend((0..plan.osts).map(|index| name(TargetKind::Ost, index)));
        names.extend((1..plan.mdts).map(|index| name(TargetKind::Mdt, index)));
        let servers: Vec<Server> =
            names.into_iter().enumerate().map(|(position, name)| Server::new(name, &plan, position as u64)).collect();
        let liar = liar::Liar::of(&plan, &servers);
        let sched = Sched::new();
        sched.set_mdts(if plan.added_within.is_none() { plan.mdts as u32 } else { 1 });
        World {
            now: Instant::ZERO,
            sched,
            servers,
            mounts: Vec::new(),
            trace: Trace::new(keep),
            spy: Spy::default(),
            faults: Faults::new(&plan, rng.fork()),
            crashes: Vec::new(),
            recovered: Vec::new(),
            trap: None,
            canary: Canary::None,
            disks: io::Disks::new(&plan),
            wall_clocks: clocks::WallClocks::new(&plan),
            arming: sites::Arming::new(&plan),
            logged: Vec::new(),
            administrator: acts::Administrator::new(&plan),
            newcomers: newcomers::Newcomers::default(),
            partitioning: partition::Partitioning::new(&plan),
            liar,
            raw: raw::RawSessions::default(),
            queue: BinaryHeap::new(),
            order: 0,
            clocks: pause::Clocks::default(),
            calls_in_flight: BTreeSet::new(),
            net: Net::default(),
            rng,
            failure: None,
            plan,
        }
    }

    /// The wall clock.
    pub fn wall_ns(&self) -> i64 {
        WALL_START_NS + self.now.0 as i64
    }

    /// Records a failure. Only the first one counts.
    pub fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// The first failure, if any.
    pub fn failure(&self) -> Option<String> {
        self.failure.clone().or_else(|| self.sched.failure())
    }

    fn push(&mut self, at: Instant, what: WorldEvent) {
        self.order += 1;
        self.queue.push(Reverse(Entry { at, order: self.order, what }));
    }

    fn after(&mut self, delay: Duration, what: WorldEvent) {
        self.push(self.now + delay, what);
    }

    /// Starts a server after a pause.
    pub fn start_server(&mut self, server: usize, pause: Duration) {
        self.after(pause, WorldEvent::Start { server });
    }

    /// Adds a server to the file system after a pause.
    pub fn add_server(&mut self, server: usize, pause: Duration) {
        self.servers[server].awaited = true;
        self.after(pause, WorldEvent::Add { server });
    }

    /// Adds a client, which starts to mount. Returns its number.
    pub fn add_client(&mut self) -> usize {
        self.add_mount(false)
    }

    /// The same, with or without `read_only`.
    pub fn add_mount(&mut self, read_only: bool) -> usize {
        let client = self.mounts.len();
        let seed = self.rng.u64();
        let kernel = Kernel::new(self.sched.clone(), client, &self.plan, self.rng.fork());
        self.mounts.push(Mount::new(&self.plan, client, read_only, kernel, seed, self.now));
        self.after(Duration::from_secs(1), WorldEvent::Second { node: Node::Client(client), life: 0 });
        self.set_clock(client);
        self.send_wall_clock(client);
        self.pump(Node::Client(client));
        client
    }

    /// Asks a client to unmount.
    pub fn unmount(&mut self, client: usize) {
        let now = self.time_of(Node::Client(client));
        self.mounts[client].leaving = true;
        if let Some(machine) = &mut self.mounts[client].machine {
            machine.handle(now, client::api::Event::Unmount);
        }
        self.pump(Node::Client(client));
    }

    fn send_wall_clock(&mut self, client: usize) {
        let (now, wall) = (self.time_of(Node::Client(client)), self.wall_of(client));
        if let Some(machine) = &mut self.mounts[client].machine {
            machine.handle(now, client::api::Event::WallClock(wall));
        }
    }

    /// Processes events until `done` holds or the time reaches `until`.
    ///
    /// # Errors
    /// The failure that was recorded.
    pub fn run(&mut self, until: Instant, done: impl Fn(&World) -> bool) -> Result<Ended, String> {
        loop {
            self.run_programs();
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            if done(self) {
                return Ok(Ended::Done);
            }
            if self.trace.events() > EVENTS_MAX {
                return Err(format!("more than {EVENTS_MAX} events: something loops;  {}", self.explain()));
            }
            let Some(Reverse(entry)) = self.queue.pop() else { return Ok(Ended::Late) };
            if entry.at > until {
                self.queue.push(Reverse(entry));
                self.now = until;
                return Ok(Ended::Late);
            }
            self.now = self.now.max(entry.at);
            if let Some(what) = self.unless_paused(entry.what) {
                self.dispatch(what);
                self.trap_event();
            }
        }
    }

    fn run_programs(&mut self) {
        loop {
            self.sched.set_time(self.now, self.wall_ns());
            self.sched.run();
            for note in self.sched.take_notes() {
                self.trace.note(self.now, &[], || note);
            }
            self.execute_commands();
            self.carry_raw();
            self.deliver_invalidated();
            for (until, task) in self.sched.take_sleeping() {
                self.push(until, WorldEvent::Wake { task });
            }
            for (client, id, fatal) in self.sched.take_interrupts() {
                let delay = self.plan.kernel.draw(&mut self.rng);
                self.after(delay, WorldEvent::Interrupt { client, id, fatal });
            }
            let requests = self.sched.take_requests();
            if requests.is_empty() {
                return;
            }
            for request in requests {
                let delay = Duration::from_nanos(self.rng.below(3_000));
                let crate::sched::Request { id, client, cred, call } = request;
                self.calls_in_flight.insert(id);
                self.after(delay, WorldEvent::Call { client, id, cred, call });
            }
        }
    }

    /// Executes the commands of programs.
    fn execute_commands(&mut self) {
        for command in self.sched.take_commands() {
            match command {
                Command::Arm | Command::Disarm => {
                    if let Some(trap) = &mut self.trap {
                        trap.armed = command == Command::Arm;
                    }
                }
                Command::Kill(client) => self.kill_client(client),
                Command::Unmount(client) => self.unmount(client),
                other => self.execute_story_command(other),
            }
        }
    }

    /// Executes the further commands of stories.
    fn execute_story_command(&mut self, command: Command) {
        match command {
            Command::Crash(server) => self.kill(server, false),
            Command::Power(server) => self.kill(server, true),
            Command::Evict(server, client) => self.evict(server, client),
            Command::Barrier(server) => self.servers[server].withheld = true,
            Command::Mount => self.mount_another(),
            Command::Fill(server, leaves) => self.fill_for_story(server, leaves),
            Command::Damage(server, table) => self.damage_for_story(server, table),
            Command::DataCapacity(server, bytes) => self.servers[server].set_data_capacity(bytes),
            Command::FailWrite(server) => self.servers[server].fails_write = true,
            Command::KeepFiles(server) => self.servers[server].keeps_files = true,
            Command::Copy(server) => self.servers[server].copy(),
            Command::PutBack(server, accepts) => {
                self.kill(server, false);
                self.servers[server].put_back();
                self.servers[server].accepts_old = accepts;
            }
            Command::Pause(node, time) => self.pause(node, time),
            Command::Site(node, loc, val) => {
                let faults = match node {
                    Node::Server(server) => self.servers[server].faults.clone(),
                    Node::Client(client) => self.mounts[client].faults.clone(),
                    Node::Liar | Node::Raw => return,
                };
                faults.set_val(val);
                faults.set_loc(loc);
                self.trace.note(self.now, &[62], || format!("fail_loc={loc:#x} fail_val={val} on {node:?}"));
            }
            Command::Slow(server, time) => self.servers[server].slow = time,
            Command::FailSync(server) => self.servers[server].sync_fails = true,
            Command::Replace(server) => {
                self.kill(server, false);
                self.servers[server].replace(&self.plan, server as u64);
            }
            Command::Logged(node, text, times) => {
                let logged = self.logged.iter().filter(|(of, line)| *of == node && line.contains(text)).count();
                if logged != times {
                    self.fail(format!("{node:?} has logged '{text}' {logged} times, and should have {times} times"));
                }
            }
            Command::Set(node, name, value, expected) => {
                let now = self.time_of(node);
                let outcome = match node {
                    Node::Server(server) => {
                        self.servers[server].machine.as_mut().map(|machine| machine.set_param(now, name, value))
                    }
                    Node::Client(client) => {
                        self.mounts[client].machine.as_mut().map(|machine| machine.set_param(now, name, value))
                    }
                    Node::Liar | Node::Raw => None,
                };
                if outcome != Some(expected) {
                    self.fail(format!("{name}={value} of {node:?}: {outcome:?}, expected {expected:?}"));
                }
                self.pump(node);
            }
            Command::Expect(node, pattern, text, is_so) => {
                let found = match node {
                    Node::Server(server) => self.servers[server].machine.as_ref().map(|m| m.get_params(pattern)),
                    Node::Client(client) => self.mounts[client].machine.as_ref().map(|m| m.get_params(pattern)),
                    Node::Liar | Node::Raw => None,
                };
                // Words are separated and followed by one space, so that a number does not match as the prefix of a longer one.
                let words = |text: &str| text.split_whitespace().map(|word| format!("{word} ")).collect::<String>();
                let wanted = words(&text);
                let found: Vec<String> = found.into_iter().flatten().map(|(_, value)| words(&value)).collect();
                if found.iter().any(|value| value.contains(&wanted)) != is_so {
                    let should = if is_so { "should" } else { "should not" };
                    self.fail(format!("'{pattern}' of {node:?} {should} have '{text}', and is {found:?}"));
                }
            }
            _ => {}
        }
    }

    /// Keeps a line that a node logged, for the checks of stories.
    fn note_log_line(&mut self, node: Node, line: &str) {
        if self.plan.processes == 0 {
            self.logged.push((node, line.to_owned()));
        }
    }

    /// Explains a standstill: open calls, and the state of all connections and targets.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        for (id, client, call) in self.sched.open_calls() {
            text.push_str(&format!("\n  call {id} on client {client} waits: {call}"));
        }
        for task in self.sched.tasks() {
            text.push_str(&format!("\n  task '{task}' has not ended"));
        }
        for (position, mount) in self.mounts.iter().enumerate() {
            let state = match () {
                () if mount.machine.is_none() => "dead",
                () if mount.unmounted => "unmounted",
                () if mount.mounted => "mounted",
                () => "mounting",
            };
            text.push_str(&format!("\n  client {position} is {state}"));
            for work in mount.machine.iter().flat_map(|machine| machine.in_progress()) {
                text.push_str(&format!("\n    {work}"));
            }
            for (name, value) in mount.machine.iter().flat_map(|machine| machine.get_params("*.*.import")) {
                text.push_str(&format!("\n    {name}: {}", value.replace('\n', " ")));
            }
        }
        for server in &self.servers {
            let state = match (&server.machine, server.serving) {
                (None, _) => "down",
                (Some(_), false) => "starting",
                (Some(_), true) => "serving",
            };
            text.push_str(&format!("\n  target {} is {state}, life {}", server.name, server.life));
            for (name, value) in server.machine.iter().flat_map(|machine| machine.get_params("*.*.recovery_status")) {
                text.push_str(&format!("\n    {name}: {}", value.replace('\n', " ")));
            }
        }
        text
    }

    /// Checks that the last recovery of a target has not taken longer than allowed.
    pub fn judge_recovery(&mut self, server: usize) {
        let most = Limits::of(&self.plan).recovery().as_secs();
        let own = &self.servers[server];
        let mut wrong = None;
        for (name, status) in own.machine.iter().flat_map(|machine| machine.get_params("*.*.recovery_status")) {
            let took =
                status.lines().find_map(|line| line.strip_prefix("recovery_duration:")?.trim().parse::<u64>().ok());
            if let Some(took) = took.filter(|took| *took > most) {
                wrong = Some(format!("{name}: the recovery took {took} s, and may take {most}"));
            }
        }
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }

    /// Whether no target has a session of a dead client.
    pub fn all_dead_are_gone(&self) -> bool {
        let dead: Vec<String> = self
            .mounts
            .iter()
            .enumerate()
            .filter(|(_, mount)| mount.machine.is_none() && !mount.unmounted)
            .map(|(client, _)| format!("client {client}"))
            .chain(self.liar.iter().map(|_| liar::NAME.to_owned()))
            .collect();
        let knows = |server: &Server| {
            let machine = server.machine.iter();
            let mut known = machine.flat_map(|machine| machine.get_params("*.*.exports.*.description"));
            known.any(|(_, name)| dead.contains(&name))
        };
        dead.is_empty() || !self.servers.iter().any(knows)
    }

    /// Whether every client that was asked to unmount has done so.
    pub fn all_have_left(&self) -> bool {
        self.mounts.iter().all(|mount| mount.machine.is_none() || !mount.leaving || mount.unmounted)
    }

    /// Whether every target that is not retired, and not still to be added, serves.
    pub fn all_serve(&self) -> bool {
        let serves = |server: &Server| server.machine.is_some() && server.serving;
        self.servers.iter().all(|server| server.retired || server.awaited || serves(server))
    }

    /// Tells programs how many metadata targets serve and are known to all clients.
    fn note_mdts(&self) {
        let next = self.sched.mdts();
        if next as usize >= self.plan.mdts {
            return;
        }
        let is_next = |server: &&Server| server.name.kind == TargetKind::Mdt && server.name.index.0 == next;
        let Some(server) = self.servers.iter().find(is_next).filter(|server| server.serving) else { return };
        let pattern = format!("mdc.{}-*.import", server.name);
        let mut machines = self.mounts.iter().filter(|mount| mount.mounted).filter_map(|mount| mount.machine.as_ref());
        if machines.all(|machine| !machine.get_params(&pattern).is_empty()) {
            self.sched.set_mdts(next + 1);
        }
    }

    /// Whether all targets have been added.
    pub fn all_are_added(&self) -> bool {
        self.servers.iter().all(|server| !server.awaited)
    }
}

/// More events than any correct run has.
const EVENTS_MAX: u64 = 4_000_000;

/// The events that report a server's disk space to its target.
fn space(server: &Server) -> impl Iterator<Item = target::Event> + use<> {
    let data = server.data_space().map(target::Event::DataSpace);
    server.engine.space().ok().map(target::Event::Space).into_iter().chain(data)
}
