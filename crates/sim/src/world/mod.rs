//! The simulated world: one queue of events, ordered by virtual time, and the machines that they happen to.
//!
//! A machine is handled an event and asked for its effects; each effect becomes an event in the future, after a delay from
//! the seed. Nothing here knows what a request means. Programs ([`crate::sched`]) run when their answers come; faults
//! ([`faults`]) are events like all others.
//!
//! # Invariants
//! - Two runs of a plan do the same: every choice comes from the seed, every order from (time, sequence).
//! - What a machine that was killed had asked for does not happen any more: events carry the life that asked.

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

/// The wall clock at the begin.
pub(crate) const WALL_START_NS: i64 = 1_800_000_000_000_000_000;

/// What can happen.
enum WorldEvent {
    /// A frame arrives at an end.
    Frame { conn: usize, side: usize, frame: Frame },
    /// A listener gets a connection.
    Accepted { conn: usize },
    /// The dialler has it.
    Dialled { conn: usize },
    /// The dialler does not get one.
    DialFailed { node: Node, life: u32, number: u64 },
    /// An end learns that the connection is gone.
    Closed { conn: usize, side: usize },
    /// The engine reads.
    Load { server: usize, life: u32, load: Load },
    /// What it read arrives.
    Loaded { server: usize, life: u32, done: LoadDone },
    /// The engine begins to write a group.
    Commit { server: usize, life: u32, group: Group },
    /// The group is durable.
    Durable { server: usize, life: u32, group: u64 },
    /// And the target hears of it.
    Committed { server: usize, life: u32, group: u64, failed: Option<store::EngineError> },
    /// A data file is read or written.
    Data { server: usize, life: u32, id: DataId, op: DataOp },
    /// What came of it.
    DataDone { server: usize, life: u32, id: DataId, result: DataResult },
    /// A tick that a machine wanted.
    Tick { node: Node, serial: u64 },
    /// Once a second each machine is told the wall clock.
    Second { node: Node, life: u32 },
    /// A program's call reaches its client.
    Call { client: usize, id: u64, cred: Cred, call: Call },
    /// The answer reaches the program.
    Answer { id: u64, result: Result<Answer, Errno> },
    /// A signal reaches a call.
    Interrupt { client: usize, id: u64, fatal: bool },
    /// The kernel hears what to forget.
    Invalidate { client: usize, what: Invalidation },
    /// The kernel of a client is asked to let nodes go.
    LetGo { client: usize, nodes: Vec<KernelNode> },
    /// A trap has sprung.
    Kill { server: usize },
    /// A client that has been lied to dies.
    Die { client: usize },
    /// A node that has hung up hears nothing more of a connection.
    Deaf { conn: usize, side: usize },
    /// A task's time has come.
    Wake { task: usize },
    /// A server starts.
    Start { server: usize },
    /// A fault.
    Fault(faults::Fault),
    /// The liar's time has come.
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

/// How a stretch of a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// What was waited for is so.
    Done,
    /// The time is over.
    Late,
}

/// Deliberate defects that an oracle must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Canary {
    /// None.
    #[default]
    None,
    /// Some changes are answered with success and never reach their server.
    Swallow,
    /// Kernels are not told what to forget.
    KeepNames,
    /// Some writes are answered and never reach their client.
    LoseAppends,
    /// Some locks are granted by the world itself.
    GrantLocks,
    /// Object targets are not told to destroy objects.
    KeepObjects,
    /// What a full disk refuses is answered as written.
    DropWhenFull,
    /// Object targets sync no data files, and answer as if they had.
    ForgetSyncs,
    /// Some changes of modes are not on the disk, though their group is.
    ForgetChanges,
    /// Some answers come once more, with another transaction number.
    TwoOutcomes,
    /// Some calls are answered `ESTALE` without a reason.
    Stale,
    /// Kernels are not told which pages to forget.
    KeepPages,
    /// Some listings lack a name.
    HideNames,
    /// Once a client has died, some changes of the others are answered with success and never reach their server.
    SwallowAfterDeath,
    /// The removal of a name is answered and never reaches its server; then its client dies.
    UnlinkAndDie,
    /// Targets wait for clients that are gone much longer than they should.
    Patient,
    /// Whatever evicted clients tell their programs is not heard.
    TellNobody,
    /// Some attributes are set and removed, says the world itself.
    ForgetAttributes,
    /// Some changes of owners leave them as they are.
    ForgetOwners,
    /// Some times that are set stay as they are.
    ForgetTimes,
    /// Some calls of users are made as if they were the superuser's.
    AllMay,
    /// Some pipes, sockets and devices are made as regular files.
    PlainFiles,
    /// Some ranges are allocated, punched and zeroed, says the world itself.
    ForgetRanges,
}

/// The world.
pub struct World {
    /// Virtual time.
    pub now: Instant,
    /// What was drawn.
    pub plan: Plan,
    /// Programs.
    pub sched: Sched,
    /// Targets: MGT, MDT, OSTs.
    pub servers: Vec<Server>,
    /// Clients.
    pub mounts: Vec<Mount>,
    /// The record of the run.
    pub trace: Trace,
    /// Looks at every frame.
    pub spy: Spy,
    /// What goes wrong.
    pub faults: Faults,
    /// When servers were killed, and of what kind they were.
    pub crashes: Vec<(Instant, TargetKind)>,
    /// When recoveries were over, and of what kind of target.
    pub recovered: Vec<(Instant, TargetKind)>,
    /// A fault at one chosen step.
    pub trap: Option<trap::Trap>,
    /// A defect on purpose.
    pub canary: Canary,
    /// Disks that fail.
    disks: io::Disks,
    /// Clocks of clients.
    wall_clocks: clocks::WallClocks,
    /// Faults at named sites.
    arming: sites::Arming,
    /// What nodes have logged, in a story.
    pub said: Vec<(Node, String)>,
    /// What administrators do.
    pub administrator: acts::Administrator,
    /// Clients that are cut off.
    newcomers: newcomers::Newcomers,
    pub partitioning: partition::Partitioning,
    /// A client that lies, if there is one.
    pub liar: Option<liar::Liar>,
    /// Sessions that a story speaks by hand.
    pub raw: raw::Wires,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    clocks: pause::Clocks,
    /// Calls of programs that have not reached their clients yet.
    coming: BTreeSet<u64>,
    net: Net,
    rng: Rng,
    failure: Option<String>,
}

impl World {
    /// A world in which nothing runs yet: targets are formatted.
    pub fn new(plan: Plan, keep: Keep) -> World {
        let mut rng = Rng::new(plan.seed ^ 0x5eed_0001);
        let name = |kind, index: usize| TargetName {
            fsname: if kind == TargetKind::Mgt { String::new() } else { mount::FSNAME.to_owned() },
            kind,
            index: TargetIndex(index as u32),
        };
        let mut names = vec![name(TargetKind::Mgt, 0), name(TargetKind::Mdt, 0)];
        names.extend((0..plan.osts).map(|index| name(TargetKind::Ost, index)));
        let servers: Vec<Server> =
            names.into_iter().enumerate().map(|(position, name)| Server::new(name, &plan, position as u64)).collect();
        let liar = liar::Liar::of(&plan, &servers);
        World {
            now: Instant::ZERO,
            sched: Sched::new(),
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
            said: Vec::new(),
            administrator: acts::Administrator::new(&plan),
            newcomers: newcomers::Newcomers::default(),
            partitioning: partition::Partitioning::new(&plan),
            liar,
            raw: raw::Wires::default(),
            queue: BinaryHeap::new(),
            order: 0,
            clocks: pause::Clocks::default(),
            coming: BTreeSet::new(),
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

    /// Something is wrong. The first one counts.
    pub fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// What is wrong, if anything.
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

    /// A further client, which begins to mount. Gives its number.
    pub fn add_client(&mut self) -> usize {
        self.add_mount(false)
    }

    /// The same, mounted read-only or not.
    pub fn add_mount(&mut self, read_only: bool) -> usize {
        let client = self.mounts.len();
        let seed = self.rng.u64();
        let kernel = Kernel::new(self.sched.clone(), client, &self.plan, self.rng.fork());
        self.mounts.push(Mount::new(&self.plan, client, read_only, kernel, seed, self.now));
        self.after(Duration::from_secs(1), WorldEvent::Second { node: Node::Client(client), life: 0 });
        self.set_clock(client);
        self.tell_wall_clock(client);
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

    fn tell_wall_clock(&mut self, client: usize) {
        let (now, wall) = (self.time_of(Node::Client(client)), self.wall_of(client));
        if let Some(machine) = &mut self.mounts[client].machine {
            machine.handle(now, client::api::Event::WallClock(wall));
        }
    }

    /// Lets things happen until `done` or until the time is over.
    ///
    /// # Errors
    /// What is wrong.
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
                return Err(format!("more than {EVENTS_MAX} events: something runs in a circle; {}", self.explain()));
            }
            let Some(Reverse(entry)) = self.queue.pop() else { return Ok(Ended::Late) };
            if entry.at > until {
                self.queue.push(Reverse(entry));
                self.now = until;
                return Ok(Ended::Late);
            }
            self.now = self.now.max(entry.at);
            if let Some(what) = self.unless_paused(entry.what) {
                self.happen(what);
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
            self.obey();
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
                self.coming.insert(id);
                self.after(delay, WorldEvent::Call { client, id, cred, call });
            }
        }
    }

    /// What programs ask of the world itself.
    fn obey(&mut self) {
        for command in self.sched.take_commands() {
            match command {
                Command::Arm | Command::Disarm => {
                    if let Some(trap) = &mut self.trap {
                        trap.armed = command == Command::Arm;
                    }
                }
                Command::Kill(client) => self.kill_client(client),
                Command::Unmount(client) => self.unmount(client),
                other => self.obey_story(other),
            }
        }
    }

    /// What stories ask beside that.
    fn obey_story(&mut self, command: Command) {
        match command {
            Command::Crash(server) => self.kill(server, false),
            Command::Power(server) => self.kill(server, true),
            Command::Evict(server, client) => self.evict(server, client),
            Command::Barrier(server) => self.servers[server].withheld = true,
            Command::Mount => self.mount_another(),
            Command::Fill(server, leaves) => self.fill_for_story(server, leaves),
            Command::Damage(server, table) => self.damage_for_story(server, table),
            Command::Room(server, bytes) => self.servers[server].set_data_room(bytes),
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
            Command::Said(node, text, times) => {
                let said = self.said.iter().filter(|(of, line)| *of == node && line.contains(text)).count();
                if said != times {
                    self.fail(format!("{node:?} has said '{text}' {said} times, and should {times} times"));
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
                // Words with one blank between, and one behind the last: so a number is not taken for its beginning.
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

    /// A node says something: stories ask for it.
    fn note_said(&mut self, node: Node, line: &str) {
        if self.plan.processes == 0 {
            self.said.push((node, line.to_owned()));
        }
    }

    /// Why things stand still: open calls and the connections of those who wait, for a person.
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

    /// The last recovery of a target has not taken longer than it may.
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

    /// Whether no target knows a client that died.
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

    /// Whether every client that was to unmount has.
    pub fn all_have_left(&self) -> bool {
        self.mounts.iter().all(|mount| mount.machine.is_none() || !mount.leaving || mount.unmounted)
    }

    /// Whether every server that shall run says that it serves.
    pub fn all_serve(&self) -> bool {
        self.servers.iter().all(|server| server.retired || (server.machine.is_some() && server.serving))
    }
}

/// More events than any sound run has.
const EVENTS_MAX: u64 = 4_000_000;

/// What a server is told of its disk.
fn space(server: &Server) -> impl Iterator<Item = target::Event> + use<> {
    let data = server.data_space().map(target::Event::DataSpace);
    server.engine.space().ok().map(target::Event::Space).into_iter().chain(data)
}
