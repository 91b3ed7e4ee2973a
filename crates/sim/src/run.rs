//! One run: start a cluster, let programs work while faults strike, heal, and let the oracles judge.
//!
//! A run has six phases: start · work under faults · heal (no faults: everything must end in bounded virtual time) · the
//! programs' clients unmount or stay · a fresh client compares every tree with its model · all clients leave, and the stores are
//! checked.

use core::cell::RefCell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use proto::TargetKind;
use stdx::{Instant, Rng};

use crate::linear::Verdict;
use crate::model::{Id, Mdts, Model, Op, WriteWay};
use crate::plan::{Plan, Profile};
use crate::program::history::EndedCall;
use crate::program::private::{self, ProcessRecord};
use crate::program::{
    Mounts, ProgramEnv, ReadOnlyMount, aftermath, configure, crowd, locks, restripe, shared, verify, writers,
};
use crate::rest;
use crate::scenario::raw::RawContext;
use crate::sched::Fail;
use crate::trace::Keep;
use crate::world::faults::Counts;
use crate::world::server::Limits;
use crate::world::{Canary, Ended, World};

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plan that ran.
    pub plan: Plan,
    /// What is wrong; `None` if nothing is.
    pub failure: Option<String>,
    /// Histories of groups that were too long to judge, and trees with too many possible losses.
    pub undecided: u64,
    /// Digest of all events.
    pub digest: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time at the end.
    pub time: Instant,
    /// Faults that struck.
    pub faults: Counts,
    /// Requests that arrived as resends, and as replays.
    pub repeated: (u64, u64),
    /// The longest call since the last fault.
    pub longest: Option<(Duration, String)>,
    /// The last lines, if they were kept.
    pub lines: Vec<String>,
    /// Coverage marks that were reached, and how often.
    pub marks: BTreeMap<&'static str, u64>,
    /// Calls of programs by operation and result.
    pub calls: BTreeMap<(&'static str, &'static str), u64>,
}

/// The longest time during which faults may strike, in virtual time.
const FAULTS_MAX: Duration = Duration::from_secs(90);
/// A silent client is given up after this: six missed pings after the last one.
const SILENT_MAX: Duration = Duration::from_secs(175);
/// A lost request is resent within this time; one step of a call asks few targets in turn.
const RESENT_MAX: Duration = Duration::from_secs(60);

/// The longest time that anything may take in a run without faults: several times what the slowest drawn world needs, and less
/// than any timer that makes up for a missed wakeup.
const QUIET_MAX: Duration = Duration::from_secs(2);

/// The longest time that a call may take after the last fault: dead clients may delay the living for that long.
fn call_max(plan: &Plan) -> Duration {
    if plan.is_quiet() {
        return QUIET_MAX;
    }
    // A disk that stands still when faults end.
    let stalled = plan.disturbances.stalls.map_or(Duration::ZERO, |planned| planned.most);
    // A forced unmount may leave a session behind.
    let all_live = plan.profile < Profile::Clients && !plan.liar && plan.disturbances.acts.is_none();
    if all_live && !plan.evicts() {
        // All missing nodes come back at once.
        return RESENT_MAX + stalled;
    }
    let limits = Limits::of(plan);
    // A recovery that waits for the dead, a lock that they hold (longer if one of their requests waited for it), and a tenth of
    // that at each further target.
    let targets = (plan.osts + plan.mdts) as u32;
    limits.recovery() + limits.lock_timeout * 2 + limits.lock_timeout * targets / 10 + RESENT_MAX + stalled
}

/// The same when clients have left.
fn leave_max(plan: &Plan) -> Duration {
    if plan.is_quiet() {
        return QUIET_MAX;
    }
    call_max(plan) + left_max(plan)
}

/// How long targets wait for clients that have left: a client that leaves while a target recovers cannot tell it, and each of the
/// three steps of a recovery may wait for another such client.
fn left_max(plan: &Plan) -> Duration {
    Limits::of(plan).recovery_soft * (plan.clients.clamp(2, 4) as u32 - 1)
}

/// How long all programs together may continue after the last fault: each waits once for dead nodes, and then has its own calls
/// and pauses.
fn heal_max(plan: &Plan) -> Duration {
    let calls = plan.calls.max(60);
    let pauses = if plan.think_percent > 0 { Duration::from_micros(plan.think.high_us) } else { Duration::ZERO };
    // An evicted client learns of it by its next ping, and programs wait until it has.
    let learns = if plan.evicts() || plan.disturbances.acts.is_some() { SILENT_MAX * 2 } else { Duration::ZERO };
    call_max(plan) + learns + calls * (pauses + Duration::from_secs(1))
}

/// Interval between two evaluations of an expensive condition.
const A_WHILE: Duration = Duration::from_secs(1);
/// After this long with free space on all disks, no data is left that could not be written.
const DISKS_SETTLE: Duration = Duration::from_secs(90);

/// Runs a plan.
pub fn run(plan: Plan, keep: Keep, canary: Canary) -> Report {
    drop(stdx::marks::take());
    let mut world = World::new(plan.clone(), keep);
    world.canary = canary;
    let mut run = Run::new(&mut world);
    let failure = run.all().err();
    let undecided = run.undecided;
    let report = Report {
        failure,
        undecided,
        digest: world.trace.digest(),
        events: world.trace.events(),
        time: world.now,
        faults: world.faults.counts,
        repeated: world.spy.repeated(),
        longest: world.sched.longest(),
        lines: world.trace.lines().map(str::to_owned).collect(),
        marks: stdx::marks::take(),
        calls: world.sched.ended(),
        plan,
    };
    // Tasks and kernels refer to each other: break the cycle.
    world.sched.clear();
    report
}

struct Run<'w> {
    world: &'w mut World,
    rng: Rng,
    env: ProgramEnv,
    records: Vec<ProcessRecord>,
    groups: Vec<shared::GroupRecord>,
    writers: Vec<writers::WritersRecord>,
    crowd: Option<crowd::CrowdRecord>,
    configured: Option<configure::ConfigurationRecord>,
    /// Histories of groups and trees without a verdict.
    undecided: u64,
}

impl<'w> Run<'w> {
    fn new(world: &'w mut World) -> Run<'w> {
        let rng = Rng::new(world.plan.seed ^ 0x0b5e_55ed);
        let env = ProgramEnv {
            sched: world.sched.clone(),
            mounts: Mounts::default(),
            read_only_mount: ReadOnlyMount::default(),
        };
        world.administrator.programs = env.mounts.clone();
        Run {
            world,
            rng,
            env,
            records: Vec::new(),
            groups: Vec::new(),
            writers: Vec::new(),
            crowd: None,
            configured: None,
            undecided: 0,
        }
    }

    fn all(&mut self) -> Result<(), String> {
        self.start()?;
        self.work()?;
        self.heal()?;
        self.leave()?;
        self.check()?;
        rest::forget(self.world)?;
        rest::check(self.world)?;
        if self.world.plan.restripes {
            // What is made in a directory lies where its stripes are at that moment.
            return Ok(());
        }
        let histories = self.records.iter().map(|record| record.history.borrow());
        let wanted = histories.flat_map(|history| history.state(history.steps.len()).places().collect::<Vec<_>>());
        rest::places(self.world, &wanted.collect())
    }

    fn start(&mut self) -> Result<(), String> {
        for server in 0..self.world.servers.len() {
            let name = &self.world.servers[server].name;
            match self.world.plan.added_within.filter(|_| name.kind == TargetKind::Mdt && name.index.0 > 0) {
                Some(within) => {
                    let pause = Duration::from_nanos(self.rng.below(within.as_nanos() as u64));
                    self.world.add_server(server, pause);
                }
                None => {
                    let pause = Duration::from_micros(self.rng.below(5_000));
                    self.world.start_server(server, pause);
                }
            }
        }
        let begins = if self.world.plan.is_quiet() { QUIET_MAX } else { Duration::from_secs(120) };
        let limit = self.world.now + begins;
        self.bounded(limit, "the targets do not come up", World::all_serve)?;
        if self.world.plan.is_quiet() {
            self.world.sched.faults_end();
        }
        for _ in 0..self.world.plan.clients {
            let client = self.world.add_client();
            self.env.mounts.add(self.world.mounts[client].kernel.clone());
        }
        if self.world.plan.shared.read_only {
            let client = self.world.add_mount(true);
            self.env.read_only_mount.set(self.world.mounts[client].kernel.clone());
        }
        let early = self.rng.chance(1, 4);
        if !early {
            let limit = self.world.now + begins;
            let clients = self.world.mounts.len();
            let mounted = |world: &World| world.mounts.iter().filter(|mount| mount.mounted).count() == clients;
            self.bounded(limit, "the file system does not come up", mounted)?;
        }
        for number in 0..self.world.plan.processes {
            let rng = self.rng.fork();
            let record = private::start(&self.env, &self.world.plan, number, rng);
            self.records.push(record);
        }
        let mut rng = Rng::new(self.world.plan.seed ^ 0x5a_4ed0_0000);
        for number in 0..self.world.plan.groups {
            let record = shared::start(&self.env, &self.world.plan, number, rng.fork());
            self.groups.push(record);
        }
        if self.world.plan.groups > 1 {
            locks::start(&self.env, 0, rng.fork());
        }
        for number in 0..self.world.plan.writers {
            let record = writers::start(&self.env, &self.world.plan, number, rng.fork());
            self.writers.push(record);
        }
        if self.world.plan.crowd {
            self.crowd = Some(crowd::start(&self.env, &self.world.plan, rng.fork()));
        }
        if self.world.plan.restripes {
            restripe::start(&self.env, &self.world.plan, Rng::new(self.world.plan.seed ^ 0x0057_217f));
        }
        if self.world.plan.configures {
            let rng = Rng::new(self.world.plan.seed ^ 0xc0_4f17);
            self.configured = Some(configure::start(RawContext::of(self.world), &self.world.plan, rng));
        }
        Ok(())
    }

    fn work(&mut self) -> Result<(), String> {
        self.world.faults_on();
        let mut limit = self.world.now + FAULTS_MAX;
        if self.world.plan.profile == Profile::Power {
            let share = [1_000, 30_000, 500_000, 5_000_000][self.rng.below(4) as usize];
            limit = self.world.now + Duration::from_micros(self.rng.below(share));
        }
        self.world.run(limit, |world| world.sched.is_idle())?;
        self.world.judge_liar();
        if self.world.plan.profile == Profile::Power {
            self.world.power_fails();
        }
        self.world.faults_off();
        self.world.sched.faults_end();
        Ok(())
    }

    fn heal(&mut self) -> Result<(), String> {
        if self.world.plan.disk_faults.fill_every.is_some() {
            // Targets notice free space at their own pace, and clients retry after a pause: then everything gets written.
            let limit = self.world.now + DISKS_SETTLE;
            self.world.run(limit, |_| false)?;
        }
        let limit = self.world.now + heal_max(&self.world.plan);
        self.bounded(limit, "not everything ends after the last fault", |world| {
            world.sched.is_idle()
                && world.all_are_added()
                && world.all_serve()
                && world.all_are_joined()
                && world.all_have_left()
        })?;

        self.judge_calls(call_max(&self.world.plan))?;
        self.followed()
    }

    /// Checks that clients and targets have the persistent parameters, unless an administrator may have set one on a single node.
    fn followed(&mut self) -> Result<(), String> {
        let Some(record) = self.configured.clone().filter(|_| self.world.plan.disturbances.acts.is_none()) else {
            return Ok(());
        };
        let limit = self.world.now + SILENT_MAX;
        loop {
            let wrong = record.params().into_iter().find_map(|(path, value)| {
                let clients =
                    self.world.mounts.iter().filter(|mount| !mount.leaving).filter_map(|mount| mount.machine.as_ref());
                let servers = self.world.servers.iter().filter_map(|server| server.machine.as_ref());
                let found = clients.flat_map(|machine| machine.get_params(&path));
                let found = found.chain(servers.flat_map(|machine| machine.get_params(&path)));
                let other = found.into_iter().find(|(_, found)| found.trim() != value);
                other.map(|(name, found)| format!("{path} is set to {value}, and {name} is {found}"))
            });
            match wrong {
                None => return Ok(()),
                Some(wrong) if self.world.now >= limit => return Err(wrong),
                Some(_) => drop(self.world.run(self.world.now + A_WHILE, |_| false)?),
            }
        }
    }

    /// Unmounts the programs' clients, or leaves them with all that they have cached.
    fn leave(&mut self) -> Result<(), String> {
        if self.rng.chance(1, 2) {
            return Ok(());
        }
        let lives =
            |client: &usize| self.world.mounts[*client].machine.is_some() && !self.world.mounts[*client].leaving;
        let living: Vec<usize> = (0..self.world.mounts.len()).filter(lives).collect();
        for client in living {
            self.world.unmount(client);
        }
        let limit = self.world.now + leave_max(&self.world.plan);
        self.bounded(limit, "a client does not unmount", |world| {
            world.mounts.iter().all(|mount| mount.machine.is_none() || mount.unmounted)
        })
    }

    fn check(&mut self) -> Result<(), String> {
        let client = self.world.add_client();
        let limit = self.world.now + leave_max(&self.world.plan);
        self.bounded(limit, "the client of the check does not mount", |world| world.mounts[client].mounted)?;
        // A request that a client sent before it died may still wait for another client's lock, and be executed while the tree is
        // checked. Restarted targets give such clients up once a client has connected, so the check's client mounts first. The
        // condition is expensive, so it is not evaluated after each event.
        let limit = self.world.now + leave_max(&self.world.plan) + SILENT_MAX;
        while !self.world.all_dead_are_gone() {
            if self.world.now >= limit {
                return Err(format!("clients that died are not given up ({limit:?}):{}", self.world.explain()));
            }
            self.world.run(self.world.now + A_WHILE, |_| false)?;
        }
        let kernel = self.world.mounts[client].kernel.clone();
        let (env, sched, records) = (self.env.clone(), self.env.sched.clone(), self.records.clone());
        let (groups, writers, crowd) = (self.groups.clone(), self.writers.clone(), self.crowd.clone());
        if self.world.canary == Canary::TellNobody {
            for record in &records {
                if let Some(aftermath) = &mut *record.aftermath.borrow_mut() {
                    aftermath.reported.clear();
                }
            }
        }
        for aftermath in records.iter().filter_map(|record| record.aftermath.borrow().clone()) {
            if aftermath.complete && !aftermath.clients.is_empty() {
                self.world.faults.counts.aftermaths += 1;
                self.world.faults.counts.losses_reported += u64::from(!aftermath.reported.is_empty());
            }
        }
        let power = self.world.faults.counts.power > 0;
        let crashes = self.world.crashes.iter().filter(|(_, name)| name.kind == TargetKind::Mdt);
        let crashed = crashes.fold(Mdts::NONE, |crashed, (_, name)| crashed.and(Mdts::one(name.index.0)));
        let all_progress = sched.all_progress();
        let acknowledged = move |step: &EndedCall| {
            step.progress.made <= all_progress.get(step.client).map_or(0, |progress| progress.acknowledged)
        };
        let loses = move |step: &EndedCall, on: Mdts| crashed.meets(on) || !acknowledged(step);
        let finished = Rc::new(RefCell::new(false));
        let flag = finished.clone();
        let unjudged = Rc::new(RefCell::new(0));
        let count = unjudged.clone();
        self.world.sched.spawn("the check", async move {
            for record in records {
                match check_record(&kernel, &sched, &record, power, &loses).await {
                    Ok(TreeVerdict::Right) => {}
                    Ok(TreeVerdict::Undecided) => *count.borrow_mut() += 1,
                    Ok(TreeVerdict::Wrong(what)) => {
                        sched.fail(format!("the tree '{}' is wrong at the end: {what}", record.base[0].escape_ascii()));
                    }
                    Err(Fail::Errno(errno)) => {
                        sched.fail(format!("the check of '{}' met {}", record.base[0].escape_ascii(), errno.name()));
                    }
                    Err(Fail::Dead | Fail::Killed(_)) => sched.fail("the client of the check died".to_owned()),
                }
            }
            for group in writers {
                if group.observe(&env, &kernel).await.is_none() {
                    sched.fail("the file of the writers cannot be read at the end".to_owned());
                }
            }
            if let Some(crowd) = crowd
                && crowd.observe(&env, &kernel).await.is_err()
            {
                sched.fail("the crowd cannot be listed at the end".to_owned());
            }
            for group in groups {
                if group.observe(&env, &kernel).await.is_none() {
                    sched.fail("the client of the check died".to_owned());
                }
            }
            *flag.borrow_mut() = true;
        });
        let limit = self.world.now + heal_max(&self.world.plan) + left_max(&self.world.plan);
        self.bounded(limit, "the check does not end", |_| *finished.borrow())?;
        self.undecided += *unjudged.borrow();
        (0..self.world.servers.len()).for_each(|server| self.world.judge_recovery(server));
        self.judge_calls(leave_max(&self.world.plan))?;
        let first_death = self.world.sched.first_death();
        for group in &self.writers {
            group.check(first_death, &self.world.sched.losses(), !self.world.sched.has_clocks())?;
        }
        for group in &self.groups {
            let verdict = group.check(&self.world.sched, &self.world.crashes, &self.world.recovered)?;
            self.undecided += u64::from(verdict == Verdict::Unknown);
        }
        Ok(())
    }

    /// Checks that no call has waited longer than promised.
    fn judge_calls(&self, most: Duration) -> Result<(), String> {
        match self.world.sched.longest() {
            Some((took, call)) if took > most => {
                Err(format!("a call took {took:?} after the last fault, and may take {most:?}: {call}"))
            }
            _ => Ok(()),
        }
    }

    fn bounded(&mut self, limit: Instant, what: &str, done: impl Fn(&World) -> bool) -> Result<(), String> {
        match self.world.run(limit, done)? {
            Ended::Done => Ok(()),
            Ended::Late => Err(format!("{what} ({:?}):{}", self.world.now, self.world.explain())),
        }
    }
}

/// The outcome of checking a process's tree.
pub(crate) enum TreeVerdict {
    /// A state that the tree can have.
    Right,
    /// What is wrong with it.
    Wrong(String),
    /// There were too many possible losses to try all: the tree may match one that was not tried.
    Undecided,
}

/// The possible effects of a call whose program was killed: of a write, also each prefix up to the end of a stripe.
fn possible_effects(op: &Op, state: &Model) -> Vec<Op> {
    let mut all = vec![op.clone()];
    if let Op::Write { fd, way: WriteWay::Plain, offset, data } = op {
        let size = state.appends_to(op).map(|id| state.inode(id).data().len() as u64);
        let start = size.unwrap_or(*offset);
        let ends = (start / STRIPE + 1..).map(|row| row * STRIPE).take_while(|end| *end < start + data.len() as u64);
        let part = |end: u64| data.slice(..(end - start) as usize);
        all.extend(ends.map(|end| Op::Write { fd: *fd, way: WriteWay::Plain, offset: *offset, data: part(end) }));
    }
    all
}

/// The smallest stripe size.
const STRIPE: u64 = 64 << 10;

/// Checks a process's tree.
async fn check_record(
    kernel: &crate::kernel::Kernel,
    sched: &crate::sched::Sched,
    record: &ProcessRecord,
    power: bool,
    loses: &impl Fn(&EndedCall, Mdts) -> bool,
) -> Result<TreeVerdict, Fail> {
    let history = record.history.borrow().clone();
    let wrong = |what: Option<String>| what.map_or(TreeVerdict::Right, TreeVerdict::Wrong);
    if !history.base_durable {
        return verify::begun(kernel, &record.base).await.map(wrong);
    }
    let lost = record.lost(sched);
    let mut dead: Vec<usize> = record.unsynced.borrow().iter().copied().filter(|of| sched.is_dead(*of)).collect();
    dead.extend(*record.dead_client.borrow());
    let aftermath = record.aftermath.borrow().clone();
    if let Some(aftermath) = &aftermath {
        // A client that has not lost its session with a metadata target loses no changes there.
        let evicted_at = |client: usize| {
            let evictions = sched.evictions_of(client).into_iter().filter_map(|eviction| eviction.mdt);
            evictions.fold(Mdts::NONE, |all, mdt| all.and(Mdts::one(mdt)))
        };
        if aftermath.complete && dead.is_empty() && !power && lost.is_empty() {
            let loses = |step: &EndedCall, on: Mdts| evicted_at(step.client).meets(on) && loses(step, on);
            return aftermath::judge(kernel, &record.base, &history, aftermath, loses).await;
        }
        dead.extend(aftermath.clients.iter().copied());
    }
    if !dead.is_empty() {
        dead.extend(record.unsynced.borrow().iter().copied().filter(|of| sched.was_evicted(*of)));
    }
    dead.sort_unstable();
    dead.dedup();
    if dead.is_empty() {
        let mut end = history.state(history.steps.len()).clone();
        for (id, parts) in &lost {
            end.lose(*id, parts);
        }
        let substitutes = |id| record.substitutes(&history, id);
        let Some(unanswered) = &history.unanswered else {
            return verify::tree(kernel, &record.base, &end, verify::FULL, &substitutes).await.map(wrong);
        };
        // The program was killed: its last call took effect or not. Reading moves access times.
        let depth = verify::Depth { times: false, data: true };
        let before = verify::tree(kernel, &record.base, &end, depth, &substitutes).await?;
        let Some(mut differs) = before else { return Ok(TreeVerdict::Right) };
        for op in possible_effects(&unanswered.op, &end) {
            let mut after = end.clone();
            if after.apply(&op, &unanswered.cred, unanswered.when).is_err() {
                continue;
            }
            match verify::tree(kernel, &record.base, &after, depth, &substitutes).await? {
                None => return Ok(TreeVerdict::Right),
                Some(what) => differs.push_str(&format!("; if {} was done: {what}", op.show())),
            }
        }
        return Ok(TreeVerdict::Wrong(differs));
    }
    let ((candidates, all), what) = if power {
        (history.prefixes(), "no state of the history at or beyond the last sync")
    } else {
        (history.without(&dead, loses), "no state that the death of its clients can leave")
    };
    let files = history.synced_files(&|client| !power && !dead.contains(&client));
    let parts =
        |id: Id| -> Vec<_> { lost.iter().filter(|(of, _)| *of == id).flat_map(|(_, parts)| parts.clone()).collect() };
    let certain = |id: Id| files.get(&id).filter(|_| parts(id).is_empty());
    let observed = verify::observe(kernel, &record.base).await?;
    let mut contents = BTreeMap::new();
    let (mut nearest, mut bytes) = (String::new(), None);
    // In an earlier state a name may have led to a file that differs only in its bytes: one candidate must match as a whole.
    'candidates: for (position, candidate) in candidates.iter().enumerate() {
        if let Some(differs) = verify::observed_differs(&observed, candidate, &certain, !sched.has_clocks()) {
            if position == 0 || position + 1 == candidates.len() {
                nearest.push_str(&format!("; from state {position} of {}: {differs}", candidates.len()));
            }
            continue;
        }
        for (path, id) in candidate.paths() {
            let Some(file) = files.get(&id) else { continue };
            if !contents.contains_key(&path) {
                let found = verify::read(kernel, &record.base, &path).await?;
                contents.insert(path.clone(), found);
            }
            let size = observed[&path].stat.size;
            let (least, most) = file.sizes(&parts(id));
            let differs = match &contents[&path] {
                _ if !(least..=most).contains(&size) => Some(format!("size {size}, expected {least} to {most}")),
                Ok(data) => file.differs(data, &parts(id), &record.substitutes(&history, id)),
                Err(what) => Some(what.clone()),
            };
            if let Some(what) = differs {
                bytes = Some(format!("the bytes of {path:?} are none that deaths can leave: {what}"));
                continue 'candidates;
            }
        }
        return Ok(TreeVerdict::Right);
    }
    if !all {
        return Ok(TreeVerdict::Undecided);
    }
    Ok(TreeVerdict::Wrong(bytes.unwrap_or_else(|| format!("it is {what}{nearest}"))))
}
