//! A process with a subtree of its own: one call after another, each through some client, each compared with the model.

use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::api::{NewDir, SetStat};
use proto::msg::{Cred, inherit};
use proto::{Bytes, Errno};
use stdx::{Instant, Rng};

use super::aftermath::{self, Aftermath};
use super::draw::{CallGenerator, CallMix};
use super::history::{EndedCall, History, UnansweredCall};
use super::perform::OpExecutor;
use super::{ProgramEnv, root, user};
use crate::kernel::{Fd, Kernel};
use crate::model::{
    Body, Expected, Home, Id, Model, NAME_MAX, Op, Path, Returned, Substitutes, TimeRange, WriteWay, differs,
};
use crate::plan::{Plan, pick};
use crate::sched::{Fail, PartialWrite, Sched, WriteBackProgress};

/// A process.
pub(crate) struct Process {
    env: ProgramEnv,
    number: usize,
    base: Vec<Bytes>,
    rng: Rng,
    mix: CallMix,
    model: Model,
    started: Instant,
    files: BTreeMap<u32, (Fd, Cred)>,
    /// By client: since when the process depends on it.
    depends: BTreeMap<usize, Instant>,
    /// The objects of the call that failed beside an eviction.
    failed_beside_eviction: Vec<Id>,
    serial: u64,
    written: Option<u32>,
    user_percent: u64,
    think: (u64, crate::plan::Span),
    /// Clients that it uses; empty means all.
    clients: Vec<usize>,
    /// Directories on other metadata targets.
    far: FarDirectories,
    /// Reads beside changes.
    read_back: ReadBack,
    /// Preference for the client of the previous call.
    affinity: Affinity,
    /// The client for the next call, if it lives.
    through: Option<usize>,
    /// Clients with changes of this process that no sync covers.
    unsynced: Rc<RefCell<Vec<usize>>>,
    history: Rc<RefCell<History>>,
    concurrent: Rc<RefCell<Option<ConcurrentCall>>>,
}

/// Reads before and after changes: a client that has cached the objects of a change must see the change.
struct ReadBack {
    /// A separate stream, so that other choices do not depend on it.
    rng: Rng,
    /// Percentage of changes with such reads.
    percent: u64,
}

/// How many directories are made on metadata targets of the program's choice.
struct FarDirectories {
    /// A separate stream.
    rng: Rng,
    /// Their percentage.
    percent: u64,
    /// The number of metadata targets.
    mdts: u32,
}

impl FarDirectories {
    fn new(plan: &Plan, number: usize) -> FarDirectories {
        let mut rng = Rng::new(plan.seed ^ 0xfa2d_1200 ^ (number as u64) << 32);
        let choices = if plan.mdts > 1 { [(1, 0), (2, 60), (3, 95)] } else { [(1, 0); 3] };
        FarDirectories { percent: pick(&mut rng, &choices), rng, mdts: plan.mdts as u32 }
    }

    /// Some place, or `None` for the usual one.
    fn draw(&mut self, sched: &Sched) -> Option<NewDir> {
        let chosen = self.rng.chance(self.percent, 100);
        chosen.then(|| super::draw_home(&mut self.rng, sched.mdts()))
    }
}

impl FarDirectories {
    /// A default for new directories (or none any more) and its depth; `None`: nothing changes.
    fn draw_default(&mut self, sched: &Sched) -> Option<(Option<NewDir>, u32)> {
        if !self.rng.chance(self.percent, 100) {
            return None;
        }
        let mut wish = super::draw_home(&mut self.rng, sched.mdts());
        // A default names each target once.
        let mut named = BTreeSet::new();
        wish.mdts.retain(|mdt| named.insert(*mdt));
        if wish.mdts.len() == 1 {
            wish.hash = 0;
        }
        let depth = [inherit::UNLIMITED, inherit::ENDS, 2, 3, inherit::NONE][self.rng.below(5) as usize];
        Some((self.rng.chance(3, 4).then_some(wish), depth))
    }
}

/// Programs that stay on one client for a while: only such a client gets leases and writes metadata back.
struct Affinity {
    /// A separate stream.
    rng: Rng,
    /// Percentage of calls that go to the previous client.
    percent: u64,
    /// The previous client.
    client: Option<usize>,
}

/// The most names and objects that are read beside a change.
const READS_MAX: usize = 3;

/// A call that ran while bytes of the same file were lost.
struct ConcurrentCall {
    /// The file.
    id: Id,
    /// The range that it makes uncertain.
    part: Range<u64>,
    /// The bytes that the call appended.
    appended: Bytes,
}

/// What remains of a process for the checks at the end.
#[derive(Clone)]
pub(crate) struct ProcessRecord {
    /// Its directory.
    pub base: Vec<Bytes>,
    /// Its calls.
    pub history: Rc<RefCell<History>>,
    /// A client that died with unsynced work of the process.
    pub dead_client: Rc<RefCell<Option<usize>>>,
    /// Clients with changes of this process that no sync covers.
    pub unsynced: Rc<RefCell<Vec<usize>>>,
    /// The losses reported after an eviction with unsynced work of the process.
    pub aftermath: Rc<RefCell<Option<Aftermath>>>,
    concurrent: Rc<RefCell<Option<ConcurrentCall>>>,
}

impl ProcessRecord {
    /// The ranges of this process's files that clients gave up.
    pub(crate) fn lost(&self, sched: &Sched) -> Vec<(Id, Vec<Range<u64>>)> {
        let history = self.history.borrow();
        let model = history.state(history.steps.len());
        let losses = sched.losses();
        let own = losses.into_iter().filter_map(|loss| Some((model.id_of(loss.ino)?, loss.parts)));
        own.chain(self.concurrent.borrow().iter().map(|concurrent| (concurrent.id, vec![concurrent.part.clone()])))
            .collect()
    }

    /// What may stand in place of the bytes of a file that clients gave up.
    pub(crate) fn substitutes<'a>(&self, history: &'a History, id: Id) -> Substitutes<'a> {
        let concurrent = self.concurrent.borrow();
        let appended = concurrent
            .iter()
            .filter(|concurrent| concurrent.id == id)
            .map(|concurrent| concurrent.appended.clone())
            .next();
        Substitutes { older: history.contents(id), appended: appended.unwrap_or_default() }
    }
}

enum Stop {
    /// A client died that the process depended on.
    ClientDied(usize),
    /// An oracle has failed.
    OracleFailed,
    /// A client was evicted that the process depended on.
    Evicted(usize),
    /// The client that it depended on has unmounted; its changes persist.
    Unmounted,
    /// Bytes of a file were given up: the process stops, and the check at the end compares what is left.
    BytesLost,
    /// It was killed: its last call may still be executed.
    Killed,
}

/// Starts a process and returns its record.
pub(crate) fn start(env: &ProgramEnv, plan: &Plan, number: usize, mut rng: Rng) -> ProcessRecord {
    let base = vec![super::name(&format!("p{number}"))];
    let (uid, mode) = [(0, 0o777), (0, 0o755), (1000, 0o755), (0, 0o1777)][rng.below(4) as usize];
    let started = env.sched.now();
    let model = Model::new(uid, uid, mode, TimeRange::at(env.sched.wall_ns()));
    let history = Rc::new(RefCell::new(History::new(model.clone())));
    let dead_client = Rc::new(RefCell::new(None));
    let unsynced = Rc::new(RefCell::new(Vec::new()));
    let concurrent = Rc::new(RefCell::new(None));
    let after = Rc::new(RefCell::new(None));
    let mut clients = Vec::new();
    let leave = plan.node_faults.death_every.is_some() || plan.disturbances.partitions.is_some();
    if leave && rng.chance(2, 3) {
        clients.push(rng.below(plan.clients as u64) as usize);
    }
    let mut looker = Rng::new(plan.seed ^ 0x100c_100c ^ (number as u64) << 32);
    let read_back = ReadBack { percent: pick(&mut looker, &[(2, 0), (1, 20), (1, 60)]), rng: looker };
    let mut settler = Rng::new(plan.seed ^ 0x5e77_1e00 ^ (number as u64) << 32);
    let process = Process {
        env: env.clone(),
        number,
        base: base.clone(),
        mix: CallMix::draw(&mut rng, plan.file_max).with_names(plan.disturbances.one_hash).with_mdts(plan.mdts),
        rng,
        model,
        started,
        files: BTreeMap::new(),
        depends: BTreeMap::new(),
        failed_beside_eviction: Vec::new(),
        serial: number as u64 * 1_000_000,
        written: None,
        user_percent: plan.user_percent,
        think: (plan.think_percent, plan.think),
        clients,
        far: FarDirectories::new(plan, number),
        read_back,
        affinity: Affinity { percent: pick(&mut settler, &[(2, 0), (1, 70), (2, 95)]), rng: settler, client: None },
        through: None,
        unsynced: unsynced.clone(),
        history: history.clone(),
        concurrent: concurrent.clone(),
    };
    let (calls, died, aftermath) = (plan.calls, dead_client.clone(), after.clone());
    env.sched.spawn(format!("process {number}"), async move {
        let mut process = process;
        match process.live(uid, mode, calls).await {
            Err(Stop::ClientDied(client)) => *died.borrow_mut() = Some(client),
            Err(Stop::Unmounted) => *aftermath.borrow_mut() = Some(process.after_unmount().await),
            Err(Stop::Evicted(client)) => *aftermath.borrow_mut() = Some(process.query_losses(client).await),
            _ => {}
        }
    });
    ProcessRecord { base, history, dead_client, unsynced, aftermath: after, concurrent }
}

impl Process {
    async fn live(&mut self, uid: u32, mode: u32, calls: u32) -> Result<(), Stop> {
        if self.far.percent > 0 && self.far.rng.chance(3, 4) {
            super::all_mdts(&self.env.sched, self.far.mdts).await;
        }
        self.make_base(uid, mode).await?;
        if self.mix.striped {
            self.call(Op::SetStripe { path: Vec::new(), size: 64 << 10, count: -1, first: -1 }).await?;
        }
        for _ in 0..calls {
            if self.given_up().is_some() {
                return Err(Stop::BytesLost);
            }
            if self.env.sched.has_failed() {
                return Err(Stop::OracleFailed);
            }
            if self.rng.chance(self.think.0, 100) {
                let pause = self.think.1.draw(&mut self.rng);
                self.env.sched.sleep(pause).await;
            }
            self.check_clients()?;
            self.step().await?;
        }
        for fd in self.files.keys().copied().collect::<Vec<u32>>() {
            self.call(Op::Close { fd }).await?;
        }
        // Its changes may still be lost with a client that will report the loss.
        if !self.depends.is_empty() {
            self.env.sched.undisturbed().await;
        }
        self.evicted(None).map_or(Ok(()), |client| Err(Stop::Evicted(client)))
    }

    /// Makes the process's directory as root and syncs it.
    async fn make_base(&mut self, uid: u32, mode: u32) -> Result<(), Stop> {
        let kernel = self.kernel(None)?;
        let begun = self.started;
        let place = self.far.rng.chance(1, 2).then(|| self.far.draw(&self.env.sched)).flatten();
        let made = async {
            match &place {
                Some(wish) => kernel.mkdir_on(&root(), &self.base, 0o700, wish).await?,
                None => kernel.mkdir(&root(), &self.base, 0o700, false).await?.ino,
            };
            let owner = SetStat { uid: Some(uid), gid: Some(uid), ..SetStat::default() };
            kernel.setattr(&root(), &self.base, &owner).await?;
            let bits = SetStat { mode: Some(mode), ..SetStat::default() };
            kernel.setattr(&root(), &self.base, &bits).await?;
            kernel.sync_all(&root()).await
        };
        match made.await {
            Ok(()) => {}
            Err(Fail::Dead | Fail::Killed(_)) => return Err(Stop::ClientDied(kernel.client())),
            Err(_) if self.env.sched.was_evicted(kernel.client()) => return Err(Stop::ClientDied(kernel.client())),
            Err(Fail::Errno(errno)) => return self.wrong(&format!("cannot make its directory: {}", errno.name())),
        }
        let started = self.env.sched.when(kernel.client(), begun);
        self.model = Model::new(uid, uid, mode, started).placed_on(place.as_ref().map_or(Home::one(0), Home::from));
        *self.history.borrow_mut() = History { base_durable: true, ..History::new(self.model.clone()) };
        Ok(())
    }

    fn wrong<T>(&self, what: &str) -> Result<T, Stop> {
        self.env.sched.fail(format!("process {}: {what}", self.number));
        Err(Stop::OracleFailed)
    }

    /// Drops the open files of clients that died; stops if a client with unsynced work of the process died.
    fn check_clients(&mut self) -> Result<(), Stop> {
        if let Some(&client) = self.unsynced.borrow().iter().find(|client| self.env.sched.is_dead(**client)) {
            return Err(Stop::ClientDied(client));
        }
        if let Some(client) = self.evicted(None) {
            return Err(Stop::Evicted(client));
        }
        let lost: Vec<u32> = self
            .files
            .iter()
            .filter(|(_, (fd, _))| self.env.sched.is_dead(fd.client) || self.env.sched.is_retired(fd.client))
            .map(|(number, _)| *number)
            .collect();
        for fd in lost {
            self.files.remove(&fd);
            self.model.forget_open(fd);
        }
        Ok(())
    }

    fn kernel(&mut self, client: Option<usize>) -> Result<Kernel, Stop> {
        let mut living = self.env.mounts.living();
        if let Some(client) = client {
            living.retain(|kernel| kernel.client() == client);
        } else if let Some(at) = living.iter().position(|kernel| Some(kernel.client()) == self.through) {
            living = vec![living.swap_remove(at)];
        } else if !self.clients.is_empty() {
            living.retain(|kernel| self.clients.contains(&kernel.client()));
        }
        match self.rng.pick(&living) {
            Some(kernel) => Ok(kernel.clone()),
            None => Err(self.stop_without(client.or(self.clients.first().copied()).unwrap_or(0))),
        }
    }

    async fn step(&mut self) -> Result<(), Stop> {
        self.serial += 1;
        let mut draw = CallGenerator {
            model: &self.model,
            rng: &mut self.rng,
            mix: &self.mix,
            serial: self.serial,
            next_fd: self.serial as u32,
            written: self.written.take(),
        };
        let mut op = draw.op();
        if let Op::Mkdir { path, mode } = &op
            && let Some(wish) = self.far.draw(&self.env.sched)
        {
            op = Op::MkdirOn { path: path.clone(), mode: *mode, wish };
        }
        if let Op::SetStripe { path, .. } = &op
            && let Some((wish, depth)) = self.far.draw_default(&self.env.sched)
        {
            op = Op::SetDefault { path: path.clone(), wish, depth };
        }
        let stays = self.affinity.rng.chance(self.affinity.percent, 100);
        self.through = self.affinity.client.filter(|_| stays);
        let result = self.call_and_read_back(op).await;
        self.through = None;
        result
    }

    async fn call_and_read_back(&mut self, op: Op) -> Result<(), Stop> {
        if !op.changes() || !self.read_back.rng.chance(self.read_back.percent, 100) {
            return self.call(op).await;
        }
        let through = self.through.take();
        let observer = self.kernel(None)?.client();
        self.through = through;
        self.read_objects(&op, observer).await?;
        self.call(op.clone()).await?;
        self.read_objects(&op, observer).await
    }

    /// Reads the objects of a call through a client.
    async fn read_objects(&mut self, op: &Op, observer: usize) -> Result<(), Stop> {
        let concerned = self.model.concerned(op);
        let all = self.model.paths();
        let named = op.clone().paths_mut().into_iter().map(|(_, path)| path.clone()).collect::<Vec<_>>();
        let mut paths: Vec<Path> =
            all.iter().filter(|(_, id)| concerned.contains(id)).map(|(path, _)| path.clone()).collect();
        paths.extend(named);
        paths.sort();
        paths.dedup();
        for _ in 0..READS_MAX.min(paths.len()) {
            let path = paths.swap_remove(self.read_back.rng.below(paths.len() as u64) as usize);
            let body = all.iter().find(|(at, _)| *at == path).map(|(_, id)| self.model.inode(*id).body.clone());
            for look in self.reads_of(path, body) {
                let through = self.through.replace(observer);
                let looked = self.call(look).await;
                self.through = through;
                looked?;
            }
        }
        Ok(())
    }

    fn reads_of(&mut self, path: Path, body: Option<Body>) -> Vec<Op> {
        let mut ops = vec![Op::Stat { path: path.clone() }];
        match body {
            Some(Body::Directory { .. }) => ops.push(Op::List { path, plus: false, bytes: 32 << 10 }),
            Some(Body::File(data)) if self.read_back.rng.chance(1, 2) => {
                self.serial += 1;
                let (fd, length) = (self.serial as u32, data.len() as u32 + 1);
                ops.extend([
                    Op::Open { path, flags: 0, mode: 0, fd },
                    Op::Read { fd, offset: 0, length },
                    Op::Close { fd },
                ]);
            }
            Some(Body::File(_)) => ops.push(Op::Listxattr { path }),
            Some(Body::Symlink(_)) => ops.push(Op::Readlink { path }),
            _ => {}
        }
        ops
    }

    async fn call(&mut self, mut op: Op) -> Result<(), Stop> {
        let opened = op.fd().and_then(|fd| self.files.get(&fd)).map(|(fd, cred)| (fd.client, cred.clone()));
        let kernel = self.kernel(opened.as_ref().map(|(client, _)| *client))?;
        if opened.is_none() && self.through.is_none() {
            self.affinity.client = Some(kernel.client());
        }
        // A page fault of a mapping is not interrupted by signals.
        let mapped = matches!(op, Op::Write { way: WriteWay::Mapped, .. });
        let kernel = if mapped { kernel } else { kernel.with_signals() };
        let cred = match opened {
            Some((_, cred)) => cred,
            None if self.rng.chance(self.user_percent, 100) => user(),
            None => root(),
        };
        let cred = Cred { umask: [0, 0o022, 0o077][self.rng.below(3) as usize], ..cred };
        let sched = self.env.sched.clone();
        let (before, begun) = (sched.all_progress(), sched.now());
        let blind = self.rng.chance(1, 4) && !self.needs_look(&op);
        sched.note(|| format!("process {} on client {}: {}", self.number, kernel.client(), op.show()));
        let mut files: BTreeMap<u32, Fd> = self.files.iter().map(|(n, (fd, _))| (*n, fd.clone())).collect();
        let mut executor = OpExecutor { kernel: &kernel, base: &self.base, files: &mut files, blind };
        let result = executor.perform(&op, &cred).await;
        let when = sched.when(kernel.client(), begun);
        let result = match result {
            Ok(got) => Ok(got),
            Err(Fail::Errno(errno)) => Err(errno),
            Err(Fail::Dead) => {
                let client = kernel.client();
                self.history.borrow_mut().unanswered = Some(UnansweredCall { op, cred, when, client, before });
                return Err(self.stop_without(kernel.client()));
            }
            Err(Fail::Killed(part)) => {
                let client = kernel.client();
                if let Op::Close { fd } = &op {
                    // A close takes effect even if the program is killed, so `exit` must not close the handle again: it may
                    // belong to another file by then.
                    self.files.remove(fd);
                }
                let op = self.keep_answered(op, part, &cred, when, client, &before)?;
                self.history.borrow_mut().unanswered = Some(UnansweredCall { op, cred, when, client, before });
                self.exit().await;
                return Err(Stop::Killed);
            }
        };
        let lost = self.unsynced.borrow().iter().find(|client| sched.is_dead(**client)).copied();
        if let Some(client) = lost {
            // It died while this call waited: its unsynced changes may be lost, and the call may have seen that, but nothing
            // else.
            if !kernel.was_interrupted(&result)
                && let Some(what) = self.why_impossible(kernel.client(), &op, &cred, when, &result)
            {
                return self.wrong(&format!("{} during the death of client {client}: {what}", op.show()));
            }
            let unanswered = UnansweredCall { op, cred, when, client: kernel.client(), before };
            self.history.borrow_mut().unanswered = Some(unanswered);
            return Err(Stop::ClientDied(client));
        }
        let result = match kernel.was_interrupted(&result) {
            // An interrupted close still closes the file.
            true if matches!(op, Op::Close { .. }) => Ok(Returned::Done),
            true => return Ok(()),
            false => result,
        };
        if let Some(client) = self.evicted(Some((kernel.client(), begun))) {
            // The call ran beside an eviction and may have seen its effects.
            let unanswered = UnansweredCall { op, cred, when, client: kernel.client(), before };
            sched.note(|| format!("process {} gets {result:?} during the eviction of client {client}", self.number));
            if result.is_err() {
                self.failed_beside_eviction = self.model.concerned(&unanswered.op);
            }
            self.history.borrow_mut().unanswered = Some(unanswered);
            return Err(Stop::Evicted(client));
        }
        kernel.adjust_to_result(&mut op, &result);
        let given_up = self.given_up();
        if let Some((id, parts)) = &given_up {
            self.note_concurrent(&op, *id, parts);
        }
        self.compare(&op, &cred, when, kernel.client(), &result)?;
        match (&op, &result) {
            (Op::Open { fd, .. }, Ok(_)) => {
                if let Some(file) = files.remove(fd) {
                    self.files.insert(*fd, (file, cred.clone()));
                }
            }
            (Op::Close { fd }, _) => {
                self.files.remove(fd);
            }
            (Op::Write { fd, .. }, Ok(_)) => self.written = Some(*fd),
            _ => {}
        }
        self.depend(&op, kernel.client(), result.is_ok(), begun);
        self.remember(op, cred, when, kernel.client(), result.is_ok(), before);
        if given_up.is_some() {
            return Err(Stop::BytesLost);
        }
        self.maybe_pause().await;
        Ok(())
    }

    /// Applies a call to the model and compares the results.
    fn compare(
        &mut self,
        op: &Op,
        cred: &Cred,
        when: TimeRange,
        client: usize,
        result: &Result<Returned, Errno>,
    ) -> Result<(), Stop> {
        let given_up = self.given_up();
        let earlier = self.model.clone();
        let expect = self.model.apply(op, cred, when);
        if self.env.sched.has_clocks() {
            self.model.may_keep_times(&earlier, op);
        }
        let differs = match given_up {
            None => differs(&mut self.model, &expect, result),
            // The result may be from before or after the loss.
            Some(_) => fate_differs(&expect, result),
        };
        match differs {
            None => Ok(()),
            Some(what) => self.wrong(&format!("{} as {} through client {client}: {what}", op.show(), cred.uid)),
        }
    }

    /// The program was killed in a call. The acknowledged part counts as an ended call; returns the part whose outcome is
    /// unknown.
    fn keep_answered(
        &mut self,
        op: Op,
        part: PartialWrite,
        cred: &Cred,
        when: TimeRange,
        client: usize,
        before: &[WriteBackProgress],
    ) -> Result<Op, Stop> {
        // If a client with unsynced work of this process died, the call may have seen any of its losses.
        let client_died = self.unsynced.borrow().iter().any(|client| self.env.sched.is_dead(*client));
        if client_died {
            return Ok(op);
        }
        let (answered, dead_client) = split_at_kill(op, part);
        if let Some(op) = answered {
            self.compare(&op, cred, when, client, &Ok(Returned::Written(part.written)))?;
            self.remember(op, cred.clone(), when, client, true, before.to_vec());
        }
        Ok(dead_client)
    }

    /// Closes all files of the ended program.
    async fn exit(&mut self) {
        let living = self.env.mounts.living();
        for (fd, cred) in core::mem::take(&mut self.files).into_values() {
            if let Some(kernel) = living.iter().find(|kernel| kernel.client() == fd.client) {
                let _ = kernel.close(&cred, &fd, 1).await;
            }
        }
    }

    /// Why the result of a call that ran beside the death of clients with unsynced work of this process is wrong: no state that
    /// the deaths, and evictions beside them, can leave gives it. Calls through open files may have any outcome, because the objects
    /// may be lost.
    fn why_impossible(
        &self,
        kernel: usize,
        op: &Op,
        cred: &Cred,
        when: TimeRange,
        result: &Result<Returned, Errno>,
    ) -> Option<String> {
        let sched = &self.env.sched;
        if op.fd().is_some() || sched.was_given_up(kernel) {
            return None;
        }
        let mut gone: Vec<usize> = self.unsynced.borrow().iter().copied().filter(|of| sched.is_dead(*of)).collect();
        gone.extend(self.all_evicted(None).filter(|client| !sched.is_dead(*client)));
        let (states, all) = self.history.borrow().without(&gone, |_, _| true);
        let fits = |state: &Model| fate_differs(&state.clone().apply(op, cred, when), result).is_none();
        let right = !all || states.iter().any(fits) || fits(&self.model);
        (!right).then(|| format!("{result:?} is the result in no state that this can leave"))
    }

    /// The file of this process of which bytes were given up, and the ranges.
    fn given_up(&self) -> Option<(Id, Vec<Range<u64>>)> {
        let losses = self.env.sched.losses();
        losses.into_iter().find_map(|loss| Some((self.model.id_of(loss.ino)?, loss.parts)))
    }

    /// Records a call that ran beside the loss of bytes of file `id`. If it changes that file, it may have used the end that the
    /// file had then.
    fn note_concurrent(&self, op: &Op, id: Id, lost: &[Range<u64>]) {
        let file = op.fd().and_then(|fd| self.model.open_files().get(&fd));
        if !op.changes() || file.is_none_or(|file| file.id != id) {
            return;
        }
        let first = lost.iter().map(|part| part.start).min().unwrap_or(0);
        let least = || first.min(self.model.least_size(id, lost));
        let (start, appended) = match op {
            // A write through a mapping ends at the end of the file.
            Op::Write { way: WriteWay::Mapped, .. } => (least(), Bytes::new()),
            Op::Write { data, .. } if self.model.appends_to(op) == Some(id) => (least(), data.clone()),
            _ => (first, Bytes::new()),
        };
        *self.concurrent.borrow_mut() = Some(ConcurrentCall { id, part: start..u64::MAX, appended });
    }

    /// Records since when the process depends on a client, after a call through it.
    fn depend(&mut self, op: &Op, client: usize, succeeded: bool, begun: Instant) {
        if succeeded && (op.changes() || matches!(op, Op::Open { .. })) {
            self.depends.entry(client).or_insert(begun);
        }
        let open = self.files.values().any(|(fd, _)| fd.client == client);
        if !open && succeeded && matches!(op, Op::Syncfs) {
            self.depends.remove(&client);
        }
    }

    /// Clients that the process depends on and that were evicted since; also considers client and time in `now`.
    fn all_evicted(&self, now: Option<(usize, Instant)>) -> impl Iterator<Item = usize> {
        let depends = self.depends.iter().map(|(client, since)| (*client, *since)).chain(now);
        depends.filter(|(client, since)| self.env.sched.was_evicted_since(*client, *since)).map(|(client, _)| client)
    }

    /// The first of them.
    fn evicted(&self, now: Option<(usize, Instant)>) -> Option<usize> {
        self.all_evicted(now).next()
    }

    /// Why a process cannot continue without this client.
    fn stop_without(&self, client: usize) -> Stop {
        let sched = &self.env.sched;
        if sched.is_retired(client) && !sched.is_dead(client) { Stop::Unmounted } else { Stop::ClientDied(client) }
    }

    /// The client has unmounted: waits until the state of all other clients is certain.
    async fn after_unmount(&mut self) -> Aftermath {
        self.env.sched.undisturbed().await;
        match self.evicted(None) {
            Some(client) => self.query_losses(client).await,
            None => Aftermath { complete: true, ..Aftermath::default() },
        }
    }

    /// A client was evicted: asks it for its losses, and then every other client that is evicted before the faults end.
    async fn query_losses(&mut self, first: usize) -> Aftermath {
        self.env.sched.undisturbed().await;
        let mut aftermath = Aftermath {
            complete: true,
            reported: self.failed_beside_eviction.drain(..).collect(),
            ..Aftermath::default()
        };
        let files = core::mem::take(&mut self.files);
        while let Some(client) =
            [Some(first), self.evicted(None)].into_iter().flatten().find(|client| !aftermath.clients.contains(client))
        {
            self.depends.remove(&client);
            let more = match self.kernel(Some(client)) {
                Ok(kernel) => {
                    let (sched, base, model) = (&self.env.sched, &self.base[..], &self.model);
                    let removed = &self.history.borrow().removed_files(model);
                    aftermath::LossQuery { sched, kernel: &kernel, base, model, removed }.ask(&files).await
                }
                Err(_) => Aftermath { clients: [client].into(), ..Aftermath::default() },
            };
            aftermath.add(more);
        }
        aftermath
    }

    /// Whether the result depends on Linux's own lookup: of a symbolic link at the end of the path, or of names that are too
    /// long.
    fn needs_look(&self, op: &Op) -> bool {
        if let Op::Rename { from, to, .. } = op {
            return [from, to].into_iter().flatten().any(|name| name.len() > NAME_MAX);
        }
        let Op::Open { path, .. } = op else { return false };
        let id = self.model.walk(&root(), path);
        id.is_ok_and(|id| !self.model.inode(id).is_file())
    }

    fn remember(
        &mut self,
        op: Op,
        cred: Cred,
        when: TimeRange,
        client: usize,
        succeeded: bool,
        before: Vec<WriteBackProgress>,
    ) {
        let mut unsynced = self.unsynced.borrow_mut();
        match (&op, succeeded) {
            (Op::Syncfs, true) => unsynced.retain(|of| *of != client),
            (_, true) if op.changes() && !unsynced.contains(&client) => unsynced.push(client),
            _ => {}
        }
        drop(unsynced);
        let after = self.model.clone();
        let progress = self.env.sched.all_progress().get(client).copied().unwrap_or_default();
        self.history.borrow_mut().steps.push(EndedCall { op, cred, when, client, succeeded, after, before, progress });
    }

    /// Sometimes pauses long enough for callbacks, write-back and evictions.
    async fn maybe_pause(&mut self) {
        if self.rng.chance(1, 50) {
            let pause = Duration::from_micros(self.rng.below(3_000));
            self.env.sched.sleep(pause).await;
        }
    }
}

/// Splits a call whose program was killed: the acknowledged part, and the part whose outcome is unknown. Linux sends no further
/// request.
fn split_at_kill(op: Op, part: PartialWrite) -> (Option<Op>, Op) {
    let Op::Write { fd, way: WriteWay::Plain, offset, data } = op else { return (None, op) };
    let (written, end) = (part.written as usize, (part.written + part.asked) as usize);
    let write = |from: usize, to: usize| {
        let data = data.slice(from..to);
        Op::Write { fd, way: WriteWay::Plain, offset: offset + from as u64, data }
    };
    ((written > 0).then(|| write(0, written)), write(written, end))
}

/// Whether a call succeeded instead of failing, or failed differently.
fn fate_differs(expect: &Result<Expected, Errno>, got: &Result<Returned, Errno>) -> Option<String> {
    match (expect, got) {
        (Ok(_), Ok(_)) | (Ok(Expected::Seek { .. } | Expected::SeekOrNothing { .. }), Err(Errno::ENXIO)) => None,
        (Err(expect), Err(got)) if expect == got => None,
        _ => Some(format!("during a loss: {got:?}, expected {expect:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the program is killed in a write, the acknowledged part is done, the unanswered request has an unknown outcome, and
    /// no other was sent.
    #[test]
    fn a_killed_write_is_the_acknowledged_part_and_one_request() {
        let data = Bytes::from_static(b"abcdefgh");
        let write = |offset, data: &Bytes| Op::Write { fd: 1, way: WriteWay::Plain, offset, data: data.clone() };
        let killed = |written, asked| split_at_kill(write(10, &data), PartialWrite { written, asked });
        assert_eq!(killed(0, 3), (None, write(10, &data.slice(..3))));
        assert_eq!(killed(3, 5), (Some(write(10, &data.slice(..3))), write(13, &data.slice(3..))));
        let stat = Op::Stat { path: Vec::new() };
        assert_eq!(split_at_kill(stat.clone(), PartialWrite::default()), (None, stat));
    }
}
