//! Named scenarios: short stories, told once for every step at which one fault can strike.
//!
//! A story is a list of acts, one after another, each through a client that the story names; every result is compared
//! with the model. From its `Arm` on, steps are counted, and the story is told again and again, with the fault one step
//! later each time, until it ends before the fault comes. Each time a fresh client compares the tree with the model, and
//! what the stores hold at rest must fit together. So "a crash at every point" is meant literally.
//!
//! [`mod@stories`] has the stories; a defect that was fixed leaves one there. [`places`] has those that come to places which seeds miss,
//! [`caches`] those about what a client keeps. [`configured`] is about the management target, [`objects`] about object targets, [`mod@metadata`] and [`small`] about metadata targets,
//! [`locks`] about locks, [`sessions`] about sessions, recoveries and disks, [`peers`] about peers that keep no rule of sessions. In a
//! story [`raw`] lets peers act that are no clients.
//! [`numbered`] has cases of Lustre's suites, in which
//! requests and answers are lost at the sites of [`stdx::faults`], and changes in flight are counted.

mod caches;
mod configured;
mod locks;
mod metadata;
mod numbered;
mod objects;
mod peers;
mod places;
pub(crate) mod raw;
mod sessions;
mod small;
mod stories;

use core::cell::RefCell;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use proto::msg::Cred;
use proto::{Bytes, Errno};
use stdx::faults::FAILED;
use stdx::{Faults, Instant};

use crate::kernel::{Fd, Kernel};
use crate::model::{Got, Instead, Model, Op, Path, When, differs};
use crate::plan::Plan;
use crate::program::perform::Hands;
use crate::program::{Mounts, Setting, Watcher, name, root, user, verify};
use crate::rest;
use crate::sched::{Command, Fail};
use crate::trace::Keep;
use crate::world::net::Node;
use crate::world::trap::{Strike, Trap};
use crate::world::{Ended, World};

/// All of them.
pub fn stories() -> impl Iterator<Item = &'static Story> {
    let all = [
        stories::STORIES,
        places::STORIES,
        caches::STORIES,
        metadata::STORIES,
        small::STORIES,
        locks::STORIES,
        sessions::STORIES,
        numbered::STORIES,
        configured::STORIES,
        objects::STORIES,
        peers::STORIES,
    ];
    all.into_iter().flatten()
}

/// The management target, the metadata target, the first object target.
pub(crate) const MGT: usize = 0;
/// See [`MGT`].
pub(crate) const MDT: usize = 1;
/// See [`MGT`].
pub(crate) const OST: usize = 2;

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Act {
    /// The world is so from its beginning.
    Planned(fn(&mut Plan)),
    /// A call through a client.
    Do(usize, Op),
    /// A call that nobody waits for until [`Act::Join`].
    Begin(usize, Op),
    /// The first call that was begun and not joined ends.
    Join,
    /// The same, and it may end as it likes. If it succeeds, it comes after what was done before.
    Left,
    /// A call of a user who is not the superuser.
    As(usize, Op),
    /// A call that would be in order fails with this all the same, and changes nothing.
    Refused(usize, Op, Errno),
    /// A call that may fail, or write less than was asked for. Otherwise it gives what it should.
    Try(usize, Op),
    /// This has happened, and no call says so.
    Meanwhile(Op),
    /// Programs that wait for a client are killed.
    KillPrograms(usize),
    /// The kernel of a client keeps nothing that no program uses.
    Shrink(usize),
    /// A server gives up a client.
    Evict(usize, usize),
    /// Time is measured from here on.
    Mark,
    /// Since then no more time has passed, in microseconds.
    Within(u64),
    /// Through a client, something was read since then for the last time.
    ReadSince(usize, Path),
    /// So many of the calls that were begun have no answer.
    Waiting(usize),
    /// Steps count from here on.
    Arm,
    /// A further client comes, the third or a later one: it writes metadata back.
    Mount,
    /// A client dies.
    Die(usize),
    /// A client unmounts, and has gone when the next act begins.
    Unmount(usize),
    /// Time passes, in microseconds.
    Wait(u64),
    /// A server's `fail_loc`.
    Fail(usize, u32),
    /// The site of a server's `fail_loc` is hit.
    Hit(usize),
    /// What a server does from now on does not reach its disk.
    Barrier(usize),
    /// A server is killed, and comes back.
    Crash(usize),
    /// The same, and what was written and not synced is lost, too.
    Power(usize),
    /// Others take all of a server's disk but so many bytes, and so many that its store keeps in reserve.
    Fill(usize, u64, u64),
    /// And no longer.
    Free(usize),
    /// The records of a table of a server cannot be read.
    Damage(usize, u8),
    /// And can be again.
    Repair(usize),
    /// A node stands still for so many microseconds.
    Pause(Node, u64),
    /// A parameter is set.
    Set(Node, &'static str, &'static str),
    /// A parameter is not set, for this reason.
    Refuse(Node, &'static str, &'static str, Errno),
    /// A parameter has this in it, blanks apart.
    Expect(Node, &'static str, String),
    /// A parameter does not have this in it.
    Lack(Node, &'static str, String),
    /// Whatever else can be asked of the world.
    Ask(Command),
    /// Peers act that are no clients.
    Raw(fn(raw::Hand) -> raw::Doing),
    /// A call fails with this.
    Fails(usize, Op, Errno),
    /// A site of a node is armed: `fail_loc` and `fail_val`.
    Site(Node, u32, u32),
    /// A server's disk takes so many microseconds longer.
    Slow(usize, u64),
    /// The next sync of a server's data files fails.
    FailSync(usize),
    /// A server's disk is lost, and a new target takes its place.
    Replace(usize),
    /// A node's log has so many lines with this in it.
    Said(Node, &'static str, usize),
}

/// A story and the faults that strike in it.
pub struct Story {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub what: &'static str,
    /// Its acts.
    pub acts: fn() -> Vec<Act>,
    /// What strikes, one at a time.
    pub strikes: &'static [Strike],
}

/// How often a story was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Times.
    pub times: u64,
    /// Events in all of them.
    pub events: u64,
}

/// A telling that went wrong.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Which fault at which step; `None`: without one.
    pub trap: Option<(Strike, u64)>,
    /// What is wrong.
    pub what: String,
    /// The last lines of the run.
    pub lines: Vec<String>,
}

/// What is on its way has arrived after this.
const SETTLES: Duration = Duration::from_secs(5);
/// More steps than any story has.
const STEPS_MAX: u64 = 3_000;
/// An act, or the check, takes no longer, whatever strikes.
const LIMIT: Duration = Duration::from_secs(600);

impl Story {
    /// Tells it without a fault, then with each fault at each step, or at one of so many steps.
    ///
    /// # Errors
    /// The first telling that went wrong.
    pub fn tell(&self, stride: u64) -> Result<Told, Box<Wrong>> {
        let mut told = Told::default();
        self.once(None, &mut told)?;
        for &strike in self.strikes {
            for step in (0..STEPS_MAX).step_by(stride.max(1) as usize) {
                if !self.once(Some((strike, step)), &mut told)? {
                    break;
                }
            }
        }
        Ok(told)
    }

    /// Prints every line of it, told without a fault.
    pub fn print(&self) {
        let (.., failure, _) = self.run(None, Keep::Print);
        println!("{failure:?}");
    }

    /// Whether the fault struck.
    fn once(&self, trap: Option<(Strike, u64)>, told: &mut Told) -> Result<bool, Box<Wrong>> {
        let (sprung, events, failure, _) = self.run(trap, Keep::Nothing);
        told.times += 1;
        told.events += events;
        match failure {
            None => Ok(sprung),
            Some(what) => {
                let (.., lines) = self.run(trap, Keep::Last(400));
                Err(Box::new(Wrong { trap, what, lines }))
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
        let failure = Telling { world: &mut world }.all(acts).err();
        let sprung = world.trap.is_some_and(|trap| trap.sprung);
        let lines = world.trace.lines().map(str::to_owned).collect();
        world.sched.clear();
        (sprung, world.trace.events(), failure, lines)
    }
}

struct Telling<'w> {
    world: &'w mut World,
}

impl Telling<'_> {
    fn all(&mut self, acts: Vec<Act>) -> Result<(), String> {
        for server in 0..self.world.servers.len() {
            self.world.start_server(server, Duration::ZERO);
        }
        self.bounded("the targets do not come up", World::all_serve)?;
        let setting =
            Setting { sched: self.world.sched.clone(), mounts: Mounts::default(), watcher: Watcher::default() };
        for _ in 0..self.world.plan.clients {
            let client = self.world.add_client();
            setting.mounts.add(self.world.mounts[client].kernel.clone());
        }
        self.bounded("the clients do not mount", |world| world.mounts.iter().all(|mount| mount.mounted))?;
        let faults: Vec<Faults> = self.world.servers.iter().map(|server| server.faults.clone()).collect();
        let base = vec![name("s")];
        self.world.administrator.programs = setting.mounts.clone();
        let hand = raw::Hand::of(self.world);
        self.world.raw.expect_lies();
        let model = Rc::new(RefCell::new(None));
        let (out, place) = (model.clone(), base.clone());
        self.world.sched.spawn("the story", async move {
            let hand = raw::Hand { kernels: setting.mounts.living(), base: place.clone(), ..hand };
            let mut actor = Actor {
                hand,
                kernels: setting.mounts.living(),
                setting: setting.clone(),
                model: Model::new(0, 0, 0o755, When::at(0)),
                base: place,
                files: BTreeMap::new(),
                begun: VecDeque::new(),
                marked: Instant::ZERO,
                marked_wall: 0,
                faults,
            };
            match actor.play(acts).await {
                Ok(()) => *out.borrow_mut() = Some(actor.model),
                Err(what) => setting.sched.fail(what),
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
            match verify::tree(&kernel, &base, &model, verify::FULL, &|_| Instead::default()).await {
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

/// Who plays the acts.
struct Actor {
    hand: raw::Hand,
    setting: Setting,
    kernels: Vec<Kernel>,
    model: Model,
    base: Vec<Bytes>,
    files: BTreeMap<u32, Fd>,
    begun: VecDeque<Begun>,
    marked: Instant,
    marked_wall: i64,
    /// Of the servers.
    faults: Vec<Faults>,
}

/// A call in the background: what it is, and when and how it has ended.
struct Begun {
    op: Op,
    from: i64,
    result: Rc<RefCell<Option<Outcome>>>,
}

/// When a call ended, and how.
type Outcome = (i64, Result<Got, Fail>);

impl Actor {
    async fn play(&mut self, acts: Vec<Act>) -> Result<(), String> {
        let kernel = self.kernels[0].clone();
        let from = self.setting.sched.wall_ns();
        let made = async {
            kernel.mkdir(&root(), &self.base, 0o755, false).await?;
            kernel.sync_all(&root()).await
        };
        made.await.map_err(|fail| format!("the story's directory: {fail:?}"))?;
        self.model = Model::new(0, 0, 0o755, When { from, to: self.setting.sched.wall_ns() });
        for act in acts {
            self.act(act).await?;
        }
        self.hand.leave().await;
        self.setting.sched.command(Command::Disarm);
        Ok(())
    }

    async fn act(&mut self, act: Act) -> Result<(), String> {
        let sched = self.setting.sched.clone();
        match act {
            Act::Planned(_) => {}
            Act::Arm => sched.command(Command::Arm),
            Act::Fail(server, loc) => {
                sched.note(|| format!("fail_loc={loc:#x} on server {server}"));
                self.faults[server].set_loc(loc);
            }
            Act::Hit(server) => {
                while self.faults[server].loc() & FAILED == 0 {
                    sched.sleep(Duration::from_micros(100)).await;
                }
            }
            Act::Waiting(count) => {
                let waiting = self.begun.iter().filter(|begun| begun.result.borrow().is_none()).count();
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
            Act::Lack(node, pattern, text) => sched.command(Command::Expect(node, pattern, text, false)),
            Act::Ask(command) => sched.command(command),
            Act::Raw(part) => part(self.hand.clone()).await?,
            Act::Fails(client, op, errno) => {
                let kernel = self.kernels[client].clone();
                let mut hands = Hands { kernel: &kernel, base: &self.base, files: &mut self.files, blind: false };
                let result = hands.perform(&op, &root()).await;
                if !matches!(result, Err(Fail::Errno(got)) if got == errno) {
                    return Err(format!("{}: {result:?}, expected {}", op.show(), errno.name()));
                }
            }
            Act::Site(node, loc, val) => sched.command(Command::Site(node, loc, val)),
            Act::Slow(server, us) => sched.command(Command::Slow(server, Duration::from_micros(us))),
            Act::FailSync(server) => sched.command(Command::FailSync(server)),
            Act::Replace(server) => sched.command(Command::Replace(server)),
            Act::Said(node, text, times) => sched.command(Command::Said(node, text, times)),
            Act::Wait(us) => sched.sleep(Duration::from_micros(us)).await,
            Act::Unmount(client) => {
                sched.command(Command::Unmount(client));
                while !sched.has_left(client) {
                    sched.sleep(Duration::from_millis(1)).await;
                }
            }
            Act::Mount => {
                sched.command(Command::Mount);
                while self.kernels.len() == self.setting.mounts.count() {
                    sched.sleep(Duration::from_millis(1)).await;
                }
                self.kernels.extend(self.setting.mounts.living().pop());
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
            Act::ReadSince(client, path) => {
                let full: Vec<Bytes> = self.base.iter().chain(&path).cloned().collect();
                let stat = self.kernels[client].stat(&root(), &full).await.map_err(|fail| format!("{fail:?}"))?;
                if stat.atime_ns < self.marked_wall {
                    return Err(format!("{path:?} was read at {}, and later", stat.atime_ns));
                }
            }
            Act::Within(us) => {
                let took = sched.now().since(self.marked);
                if took > Duration::from_micros(us) {
                    return Err(format!("{took:?} have passed, and should take at most {us} microseconds"));
                }
            }
            Act::Try(client, mut op) => {
                let from = sched.wall_ns();
                let result = self.made(client, &op, &root()).await;
                if let (Op::Write { data, .. }, Ok(Got::Written(count))) = (&mut op, &result) {
                    data.truncate(*count as usize);
                }
                if !matches!(result, Err(Fail::Errno(_))) {
                    self.compare(&op, &root(), When { from, to: sched.wall_ns() }, result)?;
                }
            }
            Act::Meanwhile(op) => {
                let now = sched.wall_ns();
                if let Err(errno) = self.model.apply(&op, &root(), When { from: self.marked_wall, to: now }) {
                    return Err(format!("{} cannot have happened: {}", op.show(), errno.name()));
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
                self.begun.push_back(Begun { op: op.clone(), from: sched.wall_ns(), result: result.clone() });
                let (base, mut files) = (self.base.clone(), self.files.clone());
                let clock = sched.clone();
                sched.spawn("a call in the background", async move {
                    let mut hands = Hands { kernel: &kernel, base: &base, files: &mut files, blind: false };
                    let got = hands.perform(&op, &root()).await;
                    *result.borrow_mut() = Some((clock.wall_ns(), got));
                });
            }
            Act::Join => {
                let (begun, (to, result)) = self.ended().await?;
                self.compare(&begun.op, &root(), When { from: begun.from, to }, result)?;
            }
            Act::Left => {
                let (begun, (to, result)) = self.ended().await?;
                if result.is_ok() {
                    let _ = self.model.apply(&begun.op, &root(), When { from: begun.from, to });
                }
            }
        }
        Ok(())
    }

    async fn call(&mut self, client: usize, op: &Op, cred: &Cred) -> Result<(), String> {
        let sched = self.setting.sched.clone();
        let from = sched.wall_ns();
        let result = self.made(client, op, cred).await;
        self.compare(op, cred, When { from, to: sched.wall_ns() }, result)
    }

    async fn made(&mut self, client: usize, op: &Op, cred: &Cred) -> Result<Got, Fail> {
        self.setting.sched.note(|| format!("client {client}: {}", op.show()));
        let kernel = self.kernels[client].clone();
        Hands { kernel: &kernel, base: &self.base, files: &mut self.files, blind: false }.perform(op, cred).await
    }

    /// The first call that was begun, when it has ended.
    async fn ended(&mut self) -> Result<(Begun, Outcome), String> {
        let sched = self.setting.sched.clone();
        let Some(begun) = self.begun.pop_front() else { return Err("nothing was begun".to_owned()) };
        while begun.result.borrow().is_none() {
            sched.sleep(Duration::from_micros(100)).await;
        }
        let ended = begun.result.borrow_mut().take();
        Ok((begun, ended.unwrap_or((sched.wall_ns(), Err(Fail::Dead)))))
    }

    fn compare(&mut self, op: &Op, cred: &Cred, when: When, result: Result<Got, Fail>) -> Result<(), String> {
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
