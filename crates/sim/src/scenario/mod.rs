//! Named scenarios: short stories, run once for each step at which one fault can strike.
//!
//! A story is a list of acts, executed one after another, each through a client that the story names; every result is compared
//! with the model. From its `Arm` on, steps are counted, and the story runs again and again, with the fault one step later each
//! time, until it ends before the fault strikes. After each run a fresh client compares the tree with the model, and the contents
//! of the stores at rest must be consistent. So "a crash at every point" is meant literally.
//!
//! [`mod@stories`] has the general stories; every fixed defect leaves one there. [`places`] has stories that reach code which
//! seeds miss, [`caches`] those about a client's caches. [`configured`] is about the management target, [`objects`] about object
//! targets, [`mod@metadata`] and [`small`] about metadata targets, [`remote`] about several of them, [`striped`] about directories on several, [`locks`] about locks, [`sessions`] about sessions, recoveries
//! and disks, [`peers`] about peers that break the rules of sessions. [`raw`] provides peers that are not clients. [`numbered`]
//! has cases of Lustre's test suites, in which requests and replies are lost at the sites of [`stdx::faults`], and changes in
//! flight are counted.

mod caches;
mod configured;
mod locks;
mod metadata;
mod numbered;
mod objects;
mod peers;
mod places;
pub(crate) mod raw;
mod remote;
mod sessions;
mod small;
mod stories;
mod striped;

use core::cell::RefCell;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use client::api::{Call, DirStripes};
use proto::msg::Cred;
use proto::{Bytes, Errno};
use stdx::faults::FAILED;
use stdx::{Faults, Instant};

use crate::kernel::{Fd, Kernel};
use crate::model::{Model, Op, Path, Returned, Substitutes, TimeRange, differs};
use crate::plan::Plan;
use crate::program::perform::OpExecutor;
use crate::program::{Mounts, ProgramEnv, ReadOnlyMount, name, root, user, verify};
use crate::rest;
use crate::sched::{Command, Fail};
use crate::trace::Keep;
use crate::world::net::Node;
use crate::world::trap::{Strike, Trap};
use crate::world::{Ended, World};

/// All stories.
pub fn stories() -> impl Iterator<Item = &'static Story> {
    let all = [
        stories::STORIES,
        places::STORIES,
        caches::STORIES,
        metadata::STORIES,
        small::STORIES,
        remote::STORIES,
        striped::STORIES,
        locks::STORIES,
        sessions::STORIES,
        numbered::STORIES,
        configured::STORIES,
        objects::STORIES,
        peers::STORIES,
    ];
    all.into_iter().flatten()
}

/// The servers: the management target, the metadata target, the first object target.
pub(crate) const MGT: usize = 0;
/// See [`MGT`].
pub(crate) const MDT: usize = 1;
/// See [`MGT`].
pub(crate) const OST: usize = 2;

/// A step of a story.
#[derive(Clone, Debug)]
pub enum Act {
    /// Changes the plan of the world before it starts.
    Planned(fn(&mut Plan)),
    /// Makes a call through a client.
    Do(usize, Op),
    /// Starts a call that runs in the background until [`Act::Join`].
    Begin(usize, Op),
    /// Waits for the oldest call in the background and checks its result.
    Join,
    /// The same with any result. If the call succeeds, it takes effect in the model now.
    JoinAny,
    /// Makes a call as a user other than root.
    As(usize, Op),
    /// Gives a directory other stripes, once its names have moved after an earlier change.
    Restripe(usize, Path, DirStripes),
    /// Makes a call that the model would allow; it must fail with this error and change nothing.
    Refused(usize, Op, Errno),
    /// Makes a call that may fail, or write less than requested. Otherwise its result is checked.
    Try(usize, Op),
    /// Waits for the oldest call in the background, whose client may have died. If it has, the call took effect or not: this client
    /// looks whether its name is there, once the dead client is given up.
    JoinDead(usize),
    /// Applies a call to the model that no other act reports.
    AssumeDone(Op),
    /// Kills the programs that wait for a client.
    KillPrograms(usize),
    /// Makes a client's kernel drop everything that no program uses.
    Shrink(usize),
    /// A server evicts a client: server, client.
    Evict(usize, usize),
    /// Starts the stopwatch.
    Mark,
    /// Checks that no more than this many microseconds have passed since `Mark`.
    Within(u64),
    /// Checks that the access time of a file, seen through a client, is not before `Mark`.
    ReadSince(usize, Path),
    /// Checks how many calls in the background have no result yet.
    Waiting(usize),
    /// Starts to count steps for the fault.
    Arm,
    /// A further client (the third or a later one) mounts; it writes metadata back.
    Mount,
    /// A client dies.
    Die(usize),
    /// A client unmounts; the next act starts after that.
    Unmount(usize),
    /// Waits this many microseconds.
    Wait(u64),
    /// Sets a server's `fail_loc`.
    FailLoc(usize, u32),
    /// Waits until the site of a server's `fail_loc` is hit.
    Hit(usize),
    /// From now on nothing that a server writes reaches its disk.
    Barrier(usize),
    /// A server is killed and restarts.
    Crash(usize),
    /// The same, and what was written but not synced is lost.
    Power(usize),
    /// Something else fills a server's disk but for these numbers of free bytes and of reserved bytes.
    Fill(usize, u64, u64),
    /// The disk has space again.
    Free(usize),
    /// The records of a server's table become unreadable.
    Damage(usize, u8),
    /// All records are readable again.
    Repair(usize),
    /// A node stands still for this many microseconds.
    Pause(Node, u64),
    /// Sets a parameter.
    Set(Node, &'static str, &'static str),
    /// Sets a parameter, which must fail with this error.
    Refuse(Node, &'static str, &'static str, Errno),
    /// Checks that a parameter contains this text, with words compared as a whole.
    Expect(Node, &'static str, String),
    /// Checks that a parameter does not contain this text.
    ExpectNot(Node, &'static str, String),
    /// Sends any other command to the world.
    Ask(Command),
    /// Runs a program of peers that are not clients.
    Raw(fn(raw::RawContext) -> raw::RunningPart),
    /// Makes a call that must fail with this error.
    Fails(usize, Op, Errno),
    /// Arms a site of a node: `fail_loc` and `fail_val`.
    Site(Node, u32, u32),
    /// Each operation of a server's disk takes this many microseconds longer.
    Slow(usize, u64),
    /// The next sync of a server's data files fails.
    FailSync(usize),
    /// A server's disk is lost, and an empty new target takes its place.
    Replace(usize),
    /// Checks the number of lines with this text in a node's log.
    Logged(Node, &'static str, usize),
}

/// A story, and the faults that strike in it.
pub struct Story {
    /// Its name.
    pub name: &'static str,
    /// Its subject.
    pub what: &'static str,
    /// Its acts.
    pub acts: fn() -> Vec<Act>,
    /// The faults, one at a time.
    pub strikes: &'static [Strike],
}

/// The counts of a story's runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoryCounts {
    /// Number of runs.
    pub times: u64,
    /// Number of events in all runs.
    pub events: u64,
}

/// A failed run of a story.
#[derive(Clone, Debug)]
pub struct StoryFailure {
    /// The fault and its step; `None` if the run had no fault.
    pub trap: Option<(Strike, u64)>,
    /// What went wrong.
    pub what: String,
    /// The last lines of the trace.
    pub lines: Vec<String>,
}

/// After this time all frames in flight have arrived.
const SETTLES: Duration = Duration::from_secs(5);
/// After this time all requests of a dead client have been executed or dropped, unless a target restarts.
const DEAD_ARE_GONE: Duration = Duration::from_secs(100);
/// More steps than any story has.
const STEPS_MAX: u64 = 3_000;
/// The longest time that an act, or the check, may take under any fault.
const LIMIT: Duration = Duration::from_secs(600);

impl Story {
    /// Runs the story without a fault, then with each fault at every `stride`-th step.
    ///
    /// # Errors
    /// The first run that failed.
    pub fn tell(&self, stride: u64) -> Result<StoryCounts, Box<StoryFailure>> {
        let mut counts = StoryCounts::default();
        self.once(None, &mut counts)?;
        for &strike in self.strikes {
            for step in (0..STEPS_MAX).step_by(stride.max(1) as usize) {
                if !self.once(Some((strike, step)), &mut counts)? {
                    break;
                }
            }
        }
        Ok(counts)
    }

    /// Prints the trace of a run without a fault.
    pub fn print(&self) {
        let (.., failure, _) = self.run(None, Keep::Print);
        println!("{failure:?}");
    }

    /// Runs the story once. Returns whether the fault struck.
    fn once(&self, trap: Option<(Strike, u64)>, counts: &mut StoryCounts) -> Result<bool, Box<StoryFailure>> {
        let (sprung, events, failure, _) = self.run(trap, Keep::Nothing);
        counts.times += 1;
        counts.events += events;
        match failure {
            None => Ok(sprung),
            Some(what) => {
                let (.., lines) = self.run(trap, Keep::Last(400));
                Err(Box::new(StoryFailure { trap, what, lines }))
            }
        }
    }

    fn run(&self, trap: Option<(Strike, u64)>, keep: Keep) -> (bool, u64, Option<String>, Vec<String>) {
        let acts = (self.acts)();
        let mut plan = Plan::still(trap.map_or(0, |(_, step)| step));
        for act in &acts {
            if let Act::Planned(change) = act {
                change(&mut plan);
            }
        }
        let mut world = World::new(plan, keep);
        world.servers.iter_mut().for_each(|server| server.faults = Faults::allowed(1));
        world.trap = trap.map(|(strike, step)| Trap::new(strike, step));
        let failure = StoryRun { world: &mut world }.all(acts).err();
        let sprung = world.trap.is_some_and(|trap| trap.sprung);
        let lines = world.trace.lines().map(str::to_owned).collect();
        world.sched.clear();
        (sprung, world.trace.events(), failure, lines)
    }
}

struct StoryRun<'w> {
    world: &'w mut World,
}

impl StoryRun<'_> {
    fn all(&mut self, acts: Vec<Act>) -> Result<(), String> {
        for server in 0..self.world.servers.len() {
            self.world.start_server(server, Duration::ZERO);
        }
        self.bounded("the targets do not come up", World::all_serve)?;
        let env = ProgramEnv {
            sched: self.world.sched.clone(),
            mounts: Mounts::default(),
            read_only_mount: ReadOnlyMount::default(),
        };
        for _ in 0..self.world.plan.clients {
            let client = self.world.add_client();
            env.mounts.add(self.world.mounts[client].kernel.clone());
        }
        self.bounded("the clients do not mount", |world| world.mounts.iter().all(|mount| mount.mounted))?;
        let faults: Vec<Faults> = self.world.servers.iter().map(|server| server.faults.clone()).collect();
        let base = vec![name("s")];
        self.world.administrator.programs = env.mounts.clone();
        let cx = raw::RawContext::of(self.world);
        self.world.raw.expect_lies();
        let model = Rc::new(RefCell::new(None));
        let (out, place) = (model.clone(), base.clone());
        self.world.sched.spawn("the story", async move {
            let cx = raw::RawContext { kernels: env.mounts.living(), base: place.clone(), ..cx };
            let mut actor = Actor {
                cx,
                kernels: env.mounts.living(),
                env: env.clone(),
                model: Model::new(0, 0, 0o755, TimeRange::at(0)),
                base: place,
                files: BTreeMap::new(),
                background: VecDeque::new(),
                marked: Instant::ZERO,
                marked_wall: 0,
                faults,
            };
            match actor.play(acts).await {
                Ok(()) => *out.borrow_mut() = Some(actor.model),
                Err(what) => env.sched.fail(what),
            }
        });
        self.bounded("the story does not end", |world| world.sched.is_idle())?;
        let Some(model) = model.borrow_mut().take() else { return Err("the story has no end".to_owned()) };
        self.check(base, model)?;
        self.world.run(self.world.now + SETTLES, |_| false)?;
        rest::agree_on_locks(self.world)?;
        rest::check(self.world)?;
        if self.world.servers.iter().all(|server| server.life == 1) { rest::owners(self.world) } else { Ok(()) }
    }

    fn check(&mut self, base: Vec<Bytes>, model: Model) -> Result<(), String> {
        let client = self.world.add_client();
        let kernel = self.world.mounts[client].kernel.clone();
        let sched = self.world.sched.clone();
        self.world.sched.spawn("the check", async move {
            match verify::tree(&kernel, &base, &model, verify::FULL, &|_| Substitutes::default()).await {
                Ok(None) => {}
                Ok(Some(what)) => sched.fail(format!("the tree is wrong at the end: {what}")),
                Err(fail) => sched.fail(format!("the check met {fail:?}")),
            }
        });
        self.bounded("the check does not end", |world| world.sched.is_idle())
    }

    fn bounded(&mut self, what: &str, done: impl Fn(&World) -> bool) -> Result<(), String> {
        let limit = self.world.now + LIMIT;
        match self.world.run(limit, done)? {
            Ended::Done => Ok(()),
            Ended::Late => Err(format!("{what}:{}", self.world.explain())),
        }
    }
}

/// Executes the acts.
struct Actor {
    cx: raw::RawContext,
    env: ProgramEnv,
    kernels: Vec<Kernel>,
    model: Model,
    base: Vec<Bytes>,
    files: BTreeMap<u32, Fd>,
    background: VecDeque<BackgroundCall>,
    marked: Instant,
    marked_wall: i64,
    /// Fault injection of the servers.
    faults: Vec<Faults>,
}

/// A call in the background, and its result once it has ended.
struct BackgroundCall {
    op: Op,
    from: i64,
    result: Rc<RefCell<Option<Outcome>>>,
}

/// When a call ended, and its result.
type Outcome = (i64, Result<Returned, Fail>);

impl Actor {
    async fn play(&mut self, acts: Vec<Act>) -> Result<(), String> {
        let kernel = self.kernels[0].clone();
        let from = self.env.sched.wall_ns();
        let made = async {
            kernel.mkdir(&root(), &self.base, 0o755, false).await?;
            kernel.sync_all(&root()).await
        };
        made.await.map_err(|fail| format!("the story's directory: {fail:?}"))?;
        self.model = Model::new(0, 0, 0o755, TimeRange { from, to: self.env.sched.wall_ns() });
        for act in acts {
            self.act(act).await?;
        }
        self.cx.leave().await;
        self.env.sched.command(Command::Disarm);
        Ok(())
    }

    async fn act(&mut self, act: Act) -> Result<(), String> {
        let sched = self.env.sched.clone();
        match act {
            Act::Planned(_) => {}
            Act::Arm => sched.command(Command::Arm),
            Act::FailLoc(server, loc) => {
                sched.note(|| format!("fail_loc={loc:#x} on server {server}"));
                self.faults[server].set_loc(loc);
            }
            Act::Hit(server) => {
                while self.faults[server].loc() & FAILED == 0 {
                    sched.sleep(Duration::from_micros(100)).await;
                }
            }
            Act::Waiting(count) => {
                let waiting = self.background.iter().filter(|background| background.result.borrow().is_none()).count();
                if waiting != count {
                    return Err(format!("{waiting} calls wait, not {count}"));
                }
            }
            Act::Barrier(server) => sched.command(Command::Barrier(server)),
            Act::Crash(server) => sched.command(Command::Crash(server)),
            Act::Power(server) => sched.command(Command::Power(server)),
            Act::Fill(server, leaves, reserve) => sched.command(Command::Fill(server, Some((leaves, reserve)))),
            Act::Free(server) => sched.command(Command::Fill(server, None)),
            Act::Damage(server, table) => sched.command(Command::Damage(server, Some(table))),
            Act::Repair(server) => sched.command(Command::Damage(server, None)),
            Act::Pause(node, us) => sched.command(Command::Pause(node, Duration::from_micros(us))),
            Act::Set(node, name, value) => sched.command(Command::Set(node, name, value, Ok(()))),
            Act::Refuse(node, name, value, errno) => sched.command(Command::Set(node, name, value, Err(errno))),
            Act::Expect(node, pattern, text) => sched.command(Command::Expect(node, pattern, text, true)),
            Act::ExpectNot(node, pattern, text) => sched.command(Command::Expect(node, pattern, text, false)),
            Act::Ask(command) => sched.command(command),
            Act::Raw(part) => part(self.cx.clone()).await?,
            Act::Fails(client, op, errno) => {
                let kernel = self.kernels[client].clone();
                let mut executor =
                    OpExecutor { kernel: &kernel, base: &self.base, files: &mut self.files, blind: false };
                let result = executor.perform(&op, &root()).await;
                if !matches!(result, Err(Fail::Errno(got)) if got == errno) {
                    return Err(format!("{}: {result:?}, expected {}", op.show(), errno.name()));
                }
            }
            Act::Site(node, loc, val) => sched.command(Command::Site(node, loc, val)),
            Act::Slow(server, us) => sched.command(Command::Slow(server, Duration::from_micros(us))),
            Act::FailSync(server) => sched.command(Command::FailSync(server)),
            Act::Replace(server) => sched.command(Command::Replace(server)),
            Act::Logged(node, text, times) => sched.command(Command::Logged(node, text, times)),
            Act::Wait(us) => sched.sleep(Duration::from_micros(us)).await,
            Act::Unmount(client) => {
                sched.command(Command::Unmount(client));
                while !sched.has_left(client) {
                    sched.sleep(Duration::from_millis(1)).await;
                }
            }
            Act::Mount => {
                sched.command(Command::Mount);
                while self.kernels.len() == self.env.mounts.count() {
                    sched.sleep(Duration::from_millis(1)).await;
                }
                self.kernels.extend(self.env.mounts.living().pop());
            }
            Act::Die(client) => {
                sched.command(Command::Kill(client));
                let lost: Vec<u32> =
                    self.files.iter().filter(|(_, fd)| fd.client == client).map(|(number, _)| *number).collect();
                for fd in lost {
                    self.files.remove(&fd);
                    self.model.forget_open(fd);
                }
                sched.sleep(Duration::from_millis(1)).await;
            }
            Act::Evict(server, client) => sched.command(Command::Evict(server, client)),
            Act::Mark => (self.marked, self.marked_wall) = (sched.now(), sched.wall_ns()),
            Act::Restripe(client, path, wish) => {
                let full: Vec<Bytes> = self.base.iter().chain(&path).cloned().collect();
                loop {
                    let call = |ino| Call::SetDirLayout { ino, wish: wish.clone() };
                    match self.kernels[client].about(&root(), &full, call).await {
                        Ok(_) => break,
                        Err(Fail::Errno(Errno::EBUSY)) => sched.sleep(Duration::from_millis(100)).await,
                        Err(fail) => return Err(format!("other stripes of {path:?}: {fail:?}")),
                    }
                }
            }
            Act::ReadSince(client, path) => {
                let full: Vec<Bytes> = self.base.iter().chain(&path).cloned().collect();
                let stat = self.kernels[client].stat(&root(), &full).await.map_err(|fail| format!("{fail:?}"))?;
                if stat.atime_ns < self.marked_wall {
                    return Err(format!("{path:?} has the access time {}, expected a later one", stat.atime_ns));
                }
            }
            Act::Within(us) => {
                let took = sched.now().since(self.marked);
                if took > Duration::from_micros(us) {
                    return Err(format!("{took:?} have passed, expected at most {us} microseconds"));
                }
            }
            Act::Try(client, mut op) => {
                let from = sched.wall_ns();
                let result = self.made(client, &op, &root()).await;
                if let (Op::Write { data, .. }, Ok(Returned::Written(count))) = (&mut op, &result) {
                    data.truncate(*count as usize);
                }
                if !matches!(result, Err(Fail::Errno(_))) {
                    self.compare(&op, &root(), TimeRange { from, to: sched.wall_ns() }, result)?;
                }
            }
            Act::AssumeDone(op) => {
                let now = sched.wall_ns();
                if let Err(errno) = self.model.apply(&op, &root(), TimeRange { from: self.marked_wall, to: now }) {
                    return Err(format!("{} is impossible in the model: {}", op.show(), errno.name()));
                }
            }
            Act::KillPrograms(client) => sched.kill_programs(client),
            Act::Shrink(client) => self.kernels[client].forget_all(),
            Act::Do(client, op) => self.call(client, &op, &root()).await?,
            Act::As(client, op) => self.call(client, &op, &user()).await?,
            Act::Refused(client, op, errno) => {
                let result = self.made(client, &op, &root()).await;
                if !matches!(result, Err(Fail::Errno(got)) if got == errno) {
                    return Err(format!("{}: {result:?}, expected {}", op.show(), errno.name()));
                }
            }
            Act::Begin(client, op) => {
                sched.note(|| format!("client {client} begins: {}", op.show()));
                let kernel = self.kernels[client].clone();
                let result = Rc::new(RefCell::new(None));
                self.background.push_back(BackgroundCall {
                    op: op.clone(),
                    from: sched.wall_ns(),
                    result: result.clone(),
                });
                let (base, mut files) = (self.base.clone(), self.files.clone());
                let clock = sched.clone();
                sched.spawn("a call in the background", async move {
                    let mut executor = OpExecutor { kernel: &kernel, base: &base, files: &mut files, blind: false };
                    let got = executor.perform(&op, &root()).await;
                    *result.borrow_mut() = Some((clock.wall_ns(), got));
                });
            }
            Act::Join => {
                let (background, (to, result)) = self.ended().await?;
                self.compare(&background.op, &root(), TimeRange { from: background.from, to }, result)?;
            }
            Act::JoinDead(client) => {
                let (background, (to, result)) = self.ended().await?;
                let (op, when) = (&background.op, TimeRange { from: background.from, to });
                if result != Err(Fail::Dead) {
                    return self.compare(op, &root(), when, result);
                }
                sched.sleep(DEAD_ARE_GONE).await;
                let path = op.clone().paths_mut().into_iter().next().map(|(_, path)| path.clone()).unwrap_or_default();
                let there = match self.made(client, &Op::Stat { path }, &root()).await {
                    Ok(_) => true,
                    Err(Fail::Errno(Errno::ENOENT)) => false,
                    other => return Err(format!("after the death in {}: {other:?}", op.show())),
                };
                if there == op.makes() {
                    let when = TimeRange { to: sched.wall_ns(), ..when };
                    self.model.apply(op, &root(), when).map_err(|errno| format!("{}: {errno:?}", op.show()))?;
                }
            }
            Act::JoinAny => {
                let (background, (to, result)) = self.ended().await?;
                if result.is_ok() {
                    let _ = self.model.apply(&background.op, &root(), TimeRange { from: background.from, to });
                }
            }
        }
        Ok(())
    }

    async fn call(&mut self, client: usize, op: &Op, cred: &Cred) -> Result<(), String> {
        let sched = self.env.sched.clone();
        let from = sched.wall_ns();
        let result = self.made(client, op, cred).await;
        self.compare(op, cred, TimeRange { from, to: sched.wall_ns() }, result)
    }

    async fn made(&mut self, client: usize, op: &Op, cred: &Cred) -> Result<Returned, Fail> {
        self.env.sched.note(|| format!("client {client}: {}", op.show()));
        let kernel = self.kernels[client].clone();
        OpExecutor { kernel: &kernel, base: &self.base, files: &mut self.files, blind: false }.perform(op, cred).await
    }

    /// Waits for the oldest call in the background.
    async fn ended(&mut self) -> Result<(BackgroundCall, Outcome), String> {
        let sched = self.env.sched.clone();
        let Some(background) = self.background.pop_front() else {
            return Err("no call is in the background".to_owned());
        };
        while background.result.borrow().is_none() {
            sched.sleep(Duration::from_micros(100)).await;
        }
        let ended = background.result.borrow_mut().take();
        Ok((background, ended.unwrap_or((sched.wall_ns(), Err(Fail::Dead)))))
    }

    fn compare(&mut self, op: &Op, cred: &Cred, when: TimeRange, result: Result<Returned, Fail>) -> Result<(), String> {
        let result = match result {
            Ok(got) => Ok(got),
            Err(Fail::Errno(errno)) => Err(errno),
            Err(Fail::Dead | Fail::Killed(_)) => return Err(format!("{}: the client died", op.show())),
        };
        let expect = self.model.apply(op, cred, when);
        match differs(&mut self.model, &expect, &result) {
            None => Ok(()),
            Some(what) => Err(format!("{}: {what}", op.show())),
        }
    }
}
