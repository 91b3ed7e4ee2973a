//! One run: a cluster is started, programs work while faults fall, everything heals, the oracles look.
//!
//! Six stretches: start · work with faults · healing (faults off: everything must end in bounded virtual time) · the
//! programs' clients unmount or stay · a fresh client compares every tree with its model · all leave, and what the stores
//! hold is checked.

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;

use stdx::{Instant, Rng};

use crate::linear::Verdict;
use crate::plan::{Plan, Profile};
use crate::program::history::Step;
use crate::program::private::{self, Record};
use crate::program::{Mounts, Setting, aftermath, locks, shared, verify};
use crate::rest;
use crate::sched::Fail;
use crate::trace::Keep;
use crate::world::faults::Counts;
use crate::world::{Canary, Ended, World};

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it was.
    pub plan: Plan,
    /// What is wrong; `None`: nothing.
    pub failure: Option<String>,
    /// Histories of groups that were too long to judge.
    pub undecided: u64,
    /// Digest of all events.
    pub digest: u64,
    /// How many events.
    pub events: u64,
    /// Virtual time at the end.
    pub time: Instant,
    /// Faults that fell.
    pub faults: Counts,
    /// Requests that arrived as resends, as replays.
    pub repeated: (u64, u64),
    /// The last lines, if they were kept.
    pub lines: Vec<String>,
}

/// How long faults may fall, in virtual time.
const FAULTS_MAX: Duration = Duration::from_secs(90);
/// After this long without faults everything that was begun has ended: the windows of recovery and of evictions, and then
/// some.
const HEAL_MAX: Duration = Duration::from_secs(1_200);

/// After this long with space on all disks nothing is left that could not be written.
const DISKS_SETTLE: Duration = Duration::from_secs(90);

/// Runs a plan.
pub fn run(plan: Plan, keep: Keep, canary: Canary) -> Report {
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
        lines: world.trace.lines().map(str::to_owned).collect(),
        plan,
    };
    // Tasks and kernels know each other: cut the circle.
    world.sched.clear();
    report
}

struct Run<'w> {
    world: &'w mut World,
    rng: Rng,
    setting: Setting,
    records: Vec<Record>,
    groups: Vec<shared::Record>,
    /// Histories of groups without a verdict.
    undecided: u64,
}

impl<'w> Run<'w> {
    fn new(world: &'w mut World) -> Run<'w> {
        let rng = Rng::new(world.plan.seed ^ 0x0b5e_55ed);
        let setting = Setting { sched: world.sched.clone(), mounts: Mounts::default() };
        world.administrator.programs = setting.mounts.clone();
        Run { world, rng, setting, records: Vec::new(), groups: Vec::new(), undecided: 0 }
    }

    fn all(&mut self) -> Result<(), String> {
        self.start()?;
        self.work()?;
        self.heal()?;
        self.leave()?;
        self.check()?;
        rest::check(self.world)
    }

    fn start(&mut self) -> Result<(), String> {
        for server in 0..self.world.servers.len() {
            let pause = Duration::from_micros(self.rng.below(5_000));
            self.world.start_server(server, pause);
        }
        let limit = self.world.now + Duration::from_secs(120);
        self.bounded(limit, "the targets do not come up", World::all_serve)?;
        for _ in 0..self.world.plan.clients {
            let client = self.world.add_client();
            self.setting.mounts.add(self.world.mounts[client].kernel.clone());
        }
        let early = self.rng.chance(1, 4);
        if !early {
            let limit = self.world.now + Duration::from_secs(120);
            let clients = self.world.plan.clients;
            let mounted = |world: &World| world.mounts.iter().filter(|mount| mount.mounted).count() == clients;
            self.bounded(limit, "the file system does not come up", mounted)?;
        }
        for number in 0..self.world.plan.processes {
            let rng = self.rng.fork();
            let record = private::start(&self.setting, &self.world.plan, number, rng);
            self.records.push(record);
        }
        let mut rng = Rng::new(self.world.plan.seed ^ 0x5a_4ed0_0000);
        for number in 0..self.world.plan.groups {
            let record = shared::start(&self.setting, &self.world.plan, number, rng.fork());
            self.groups.push(record);
        }
        if self.world.plan.groups > 1 {
            locks::start(&self.setting, 0, rng.fork());
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
        Ok(())
    }

    fn heal(&mut self) -> Result<(), String> {
        if self.world.plan.disk_faults.fill_every.is_some() {
            // Targets learn of their space in their own time, and clients try again after a pause: then all is written.
            let limit = self.world.now + DISKS_SETTLE;
            self.world.run(limit, |_| false)?;
        }
        let limit = self.world.now + HEAL_MAX;
        self.bounded(limit, "not everything ends after the last fault", |world| {
            world.sched.is_idle() && world.all_serve() && world.all_are_joined() && world.all_have_left()
        })
    }

    /// The programs' clients go, or stay with all that they have cached.
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
        let limit = self.world.now + HEAL_MAX;
        self.bounded(limit, "a client does not unmount", |world| {
            world.mounts.iter().all(|mount| mount.machine.is_none() || mount.unmounted)
        })
    }

    fn check(&mut self) -> Result<(), String> {
        let client = self.world.add_client();
        let limit = self.world.now + HEAL_MAX;
        self.bounded(limit, "the client of the check does not mount", |world| world.mounts[client].mounted)?;
        // What a client asked for before it died may still wait for a lock of another's, and happen while the tree is looked
        // at. Targets that have restarted give clients up once one is here: so the check's comes first.
        let limit = self.world.now + HEAL_MAX;
        self.bounded(limit, "clients that died are not given up", World::all_dead_are_gone)?;
        let kernel = self.world.mounts[client].kernel.clone();
        let (setting, sched, records) = (self.setting.clone(), self.setting.sched.clone(), self.records.clone());
        let groups = self.groups.clone();
        if self.world.canary == Canary::TellNobody {
            for record in &records {
                if let Some(aftermath) = &mut *record.aftermath.borrow_mut() {
                    aftermath.told.clear();
                }
            }
        }
        for aftermath in records.iter().filter_map(|record| record.aftermath.borrow().clone()) {
            if aftermath.complete && !aftermath.clients.is_empty() {
                self.world.faults.counts.aftermaths += 1;
                self.world.faults.counts.told += u64::from(!aftermath.told.is_empty());
            }
        }
        let first_death = sched.first_death();
        let power = self.world.faults.counts.power > 0;
        let crashed = self.world.faults.counts.crashes > 0;
        let lanes = sched.lanes();
        let told = move |step: &Step| step.lane.made <= lanes.get(step.client).map_or(0, |lane| lane.told);
        let loses = move |step: &Step| crashed || !told(step);
        let finished = Rc::new(RefCell::new(false));
        let flag = finished.clone();
        self.world.sched.spawn("the check", async move {
            for record in records {
                match check_record(&kernel, &sched, &record, power, &loses).await {
                    Ok(None) => {}
                    Ok(Some(what)) => {
                        sched.fail(format!("the tree '{}' is wrong at the end: {what}", record.base[0].escape_ascii()));
                    }
                    Err(Fail::Errno(errno)) => {
                        sched.fail(format!("the check of '{}' met {}", record.base[0].escape_ascii(), errno.name()));
                    }
                    Err(Fail::Dead) => sched.fail("the client of the check died".to_owned()),
                }
            }
            if first_death.is_none() {
                for group in groups {
                    if group.observe(&setting, &kernel).await.is_none() {
                        sched.fail("the client of the check died".to_owned());
                    }
                }
            }
            *flag.borrow_mut() = true;
        });
        let limit = self.world.now + HEAL_MAX;
        self.bounded(limit, "the check does not end", |_| *finished.borrow())?;
        for group in &self.groups {
            let verdict = group.check(first_death, &self.world.sched.losses(), &self.world.crashes)?;
            self.undecided += u64::from(verdict == Verdict::Unknown);
        }
        Ok(())
    }

    fn bounded(&mut self, limit: Instant, what: &str, done: impl Fn(&World) -> bool) -> Result<(), String> {
        match self.world.run(limit, done)? {
            Ended::Done => Ok(()),
            Ended::Late => Err(format!("{what} ({:?}):{}", self.world.now, self.world.explain())),
        }
    }
}

/// What is wrong with a process's tree.
async fn check_record(
    kernel: &crate::kernel::Kernel,
    sched: &crate::sched::Sched,
    record: &Record,
    power: bool,
    loses: &impl Fn(&Step) -> bool,
) -> Result<Option<String>, Fail> {
    let history = record.history.borrow().clone();
    if !history.base_durable {
        return Ok(None);
    }
    let lost = record.lost(sched);
    let mut dead: Vec<usize> = record.unsynced.borrow().iter().copied().filter(|of| sched.is_dead(*of)).collect();
    dead.extend(*record.doubtful.borrow());
    let aftermath = record.aftermath.borrow().clone();
    if let Some(aftermath) = &aftermath {
        // Who has lost nothing of names at an object target loses no changes of the tree.
        let loses_names = |client: usize| sched.evictions_of(client).iter().any(|eviction| eviction.names);
        if aftermath.complete && dead.is_empty() && !power && lost.is_empty() {
            let loses = |step: &Step| loses_names(step.client) && loses(step);
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
        return verify::tree(kernel, &record.base, &end, verify::FULL, &|id| record.instead(&history, id)).await;
    }
    let ((candidates, all), what) = if power {
        (history.prefixes(), "no state of the history at or beyond the last sync")
    } else {
        (history.without(&dead, loses), "no state that the death of its clients can leave")
    };
    let observed = verify::observe(kernel, &record.base).await?;
    let (mut nearest, mut bytes) = (String::new(), None);
    // A name may have led to another file in an earlier state that looks the same but for its bytes: all of a state must be there.
    'candidates: for (position, candidate) in candidates.iter().enumerate() {
        match verify::observed_differs(&observed, candidate) {
            Some(differs) => {
                if position == 0 || position + 1 == candidates.len() {
                    nearest.push_str(&format!("; from state {position} of {}: {differs}", candidates.len()));
                }
            }
            None => {
                for (id, data) in history.durable_files() {
                    let Some((path, _)) = candidate.paths().into_iter().find(|(_, at)| *at == id) else { continue };
                    let parts: Vec<_> =
                        lost.iter().filter(|(of, _)| *of == id).flat_map(|(_, parts)| parts.clone()).collect();
                    let instead = record.instead(&history, id);
                    if let Some(what) = verify::bytes(kernel, &record.base, &path, &data, &parts, &instead).await? {
                        bytes = Some(format!("synced bytes of {path:?} are not there: {what}"));
                        continue 'candidates;
                    }
                }
                return Ok(None);
            }
        }
    }
    if bytes.is_some() {
        return Ok(bytes);
    }
    // Where there were too many ways to look at, what was seen may be one of the others.
    Ok(all.then(|| format!("it is {what}{nearest}")))
}
