//! A target in the simulated world: its machine while it lives, and its disk, which lives on.

use core::time::Duration;

use ost::mem_data::MemData;
use proto::{Errno, Nid, TargetKind, TargetName};
use stdx::{Faults, Instant};
use store::{Engine, MemEngine};
use target::{DataOp, DataResult, DataSpace, Effect, Event, Format, Options, Service, Target};

use crate::plan::Plan;

/// The verbs of a target's machine, whatever it is a target of.
pub trait Machine {
    /// Something happened.
    fn handle(&mut self, now: Instant, event: Event);
    /// What to do next.
    fn poll(&mut self) -> Option<Effect>;
    /// When it wants a tick.
    fn deadline(&self) -> Option<Instant>;
    /// Parameters, for explanations.
    fn get_params(&self, pattern: &str) -> Vec<(String, String)>;
    /// Sets those that match.
    fn set_param(&mut self, now: Instant, pattern: &str, value: &str) -> Result<(), Errno>;
}

impl<S: Service> Machine for Target<S> {
    fn handle(&mut self, now: Instant, event: Event) {
        Target::handle(self, now, event);
    }
    fn poll(&mut self) -> Option<Effect> {
        Target::poll(self)
    }
    fn deadline(&self) -> Option<Instant> {
        Target::deadline(self)
    }
    fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        Target::get_params(self, pattern)
    }
    fn set_param(&mut self, now: Instant, pattern: &str, value: &str) -> Result<(), Errno> {
        let found = Target::get_params(self, pattern);
        found.iter().try_for_each(|(name, _)| Target::set_param(self, now, name, value))
    }
}

/// A target.
pub struct Server {
    /// Its name.
    pub name: TargetName,
    /// Where it listens.
    pub nid: Nid,
    /// The machine, if it runs.
    pub machine: Option<Box<dyn Machine>>,
    /// How often it was started.
    pub life: u32,
    /// Its store.
    pub engine: MemEngine,
    /// Its data files.
    pub data: MemData,
    /// What they may take in all, in bytes.
    pub data_room: Option<u64>,
    /// The next change of the bytes of a data file fails.
    pub fails_write: bool,
    /// No data file can be removed.
    pub keeps_files: bool,
    /// An older copy of its disk.
    pub copy: Option<(MemEngine, MemData)>,
    /// Its next start accepts that its disk is an older copy.
    pub accepts_old: bool,
    /// When the last operation on a data file is done, by file: they keep their order.
    pub busy: std::collections::BTreeMap<u64, Instant>,
    /// When the last commit is done: they keep their order.
    pub committing: Instant,
    /// The tick that is on its way.
    pub timer: Option<Instant>,
    /// Ticks with an older number do not count.
    pub timer_serial: u64,
    /// It said that it serves.
    pub serving: bool,
    /// It is not started again.
    pub retired: bool,
    /// Faults of its process.
    pub faults: Faults,
    /// Its groups do not reach the disk.
    pub withheld: bool,
    /// Its disk takes so much longer.
    pub slow: Duration,
    /// A slow disk is at work until then.
    pub slow_until: Instant,
    /// The next sync of its data files fails.
    pub sync_fails: bool,
    /// One has failed, which stops it.
    pub disk_failed: bool,
    /// A record that is damaged: as it was, and as it is.
    pub damaged: Vec<(store::Key, store::Value, store::Value)>,
}

impl Server {
    /// Limits what its data files may take, in bytes.
    pub fn set_data_room(&mut self, bytes: Option<u64>) {
        self.data_room = bytes;
        self.data.set_capacity(bytes);
    }

    /// The room for data files, as the medium says it.
    pub fn data_space(&self) -> Option<DataSpace> {
        let total = self.data_room.unwrap_or(DISK);
        let free = total.saturating_sub(self.data.bytes());
        (self.name.kind == TargetKind::Ost).then_some(DataSpace { total, free, disk: 0 })
    }

    /// Does an operation on its data files, or fails to.
    pub fn change_data(&mut self, op: &DataOp) -> DataResult {
        let fails = match op {
            DataOp::Write { .. } | DataOp::Truncate { .. } | DataOp::Fallocate { .. } => {
                core::mem::take(&mut self.fails_write)
            }
            DataOp::Remove { .. } => self.keeps_files,
            _ => false,
        };
        if fails { DataResult::Failed(Errno::EIO) } else { self.data.run(op) }
    }

    /// Makes a copy of its disk.
    pub fn copy(&mut self) {
        self.copy = Some((self.engine.snapshot(), self.data.clone()));
    }

    /// Takes the copy of its disk for its disk.
    pub fn put_back(&mut self) {
        if let Some((engine, data)) = &self.copy {
            (self.engine, self.data) = (engine.snapshot(), data.clone());
        }
    }
}

/// Bytes of a disk that has no limit.
const DISK: u64 = 1 << 40;

/// How long targets wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// For a lock that is called back.
    pub lock_timeout: Duration,
    /// For clients in a recovery: each for so long without a word,
    pub recovery_soft: Duration,
    /// and once the recovery is so old, at most so long in all.
    pub recovery_hard: Duration,
}

impl Limits {
    /// Those of a plan. While no client dies nobody may be evicted, however bad the network: the limits are beyond all its faults.
    /// Otherwise they are those that targets have by default.
    pub(crate) fn of(plan: &Plan) -> Limits {
        let usual = Options::default();
        let Options { lock_timeout, recovery_soft, recovery_hard, .. } = usual;
        let everybody_lives = plan.profile < crate::plan::Profile::Clients && !plan.liar && !plan.evicts();
        let deaths = plan.profile == crate::plan::Profile::Clients || plan.liar || plan.evicts();
        Limits {
            lock_timeout: if deaths { lock_timeout } else { Duration::from_secs(120) },
            recovery_soft: if everybody_lives { Duration::from_secs(300) } else { recovery_soft },
            recovery_hard: if everybody_lives { Duration::from_secs(900) } else { recovery_hard },
        }
    }

    /// Longest recovery: who keeps the first gate shut is given up when it is as old as the hard limit, and at each of the two that
    /// follow after the soft one.
    pub(crate) fn recovery(&self) -> Duration {
        self.recovery_hard + self.recovery_soft * 2
    }
}

/// What a store keeps of a disk that others fill, in bytes.
pub(crate) const RESERVE: u64 = 8 << 20;

impl Server {
    /// A new target, formatted but not started.
    pub fn new(name: TargetName, plan: &Plan, position: u64) -> Server {
        let engine = Server::formatted(&name, plan, position, false);
        Server {
            nid: nid_of(name.kind, name.index.0),
            name,
            machine: None,
            life: 0,
            engine,
            data: MemData::new(),
            data_room: None,
            fails_write: false,
            keeps_files: false,
            copy: None,
            accepts_old: false,
            busy: std::collections::BTreeMap::new(),
            committing: Instant::ZERO,
            timer: None,
            timer_serial: 0,
            serving: false,
            retired: false,
            faults: if plan.disturbances.sites.is_some() { Faults::allowed(plan.seed) } else { Faults::none() },
            withheld: false,
            slow: Duration::ZERO,
            slow_until: Instant::ZERO,
            sync_fails: false,
            disk_failed: false,
            damaged: Vec::new(),
        }
    }

    /// A new store, for a new target or one that takes the place of another.
    fn formatted(name: &TargetName, plan: &Plan, position: u64, replaces: bool) -> MemEngine {
        let engine = MemEngine::new();
        if plan.disk_faults.fill_every.is_some() {
            engine.set_reserve(RESERVE);
        }
        let format = Format {
            name: name.clone(),
            uuid: u128::from(plan.seed) << 64 | u128::from(replaces) << 32 | u128::from(position + 1),
            mgs: vec![nid_of(TargetKind::Mgt, 0)],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            wall_ns: crate::world::WALL_START_NS,
            params: Vec::new(),
            // Every other file system is one that older versions can serve.
            name_key: (name.kind == TargetKind::Mdt && plan.seed % 2 == 1)
                .then_some(u128::from(plan.seed).to_be_bytes()),
            replaces,
        };
        let batch = match name.kind {
            TargetKind::Mgt | TargetKind::Ost => target::format(&format),
            TargetKind::Mdt => mdt::format(&format, (0, 0)),
        };
        // An empty memory engine takes every batch.
        let _ = engine.commit(1, &batch.seal(&schema::formats()));
        engine
    }

    /// Its disk is lost with all that was on it, and a new target takes its place, with its name.
    pub fn replace(&mut self, plan: &Plan, position: u64) {
        self.engine = Server::formatted(&self.name, plan, position, true);
        self.data = MemData::new();
    }

    /// Starts its machine.
    pub fn start(&mut self, plan: &Plan, patient: bool, seed: u64, now: Instant) {
        let usual = Options::default();
        let Limits { lock_timeout, recovery_soft, recovery_hard } = match patient {
            true => Limits {
                recovery_soft: usual.recovery_soft * 20,
                recovery_hard: usual.recovery_hard * 10,
                ..Limits::of(plan)
            },
            false => Limits::of(plan),
        };
        let options = Options {
            name: Some(self.name.clone()),
            nids: vec![self.nid.clone()],
            mgs: vec![nid_of(TargetKind::Mgt, 0)],
            seed,
            cache_limit: plan.cache_limit,
            max_mod_rpcs: plan.max_mod_rpcs,
            commit: store::CommitPolicy { interval: plan.commit_interval, dirty_limit: plan.dirty_limit },
            lock_timeout,
            recovery_soft,
            recovery_hard,
            faults: self.faults.clone(),
            accept_old_store: core::mem::take(&mut self.accepts_old),
            timeouts: plan.timeouts(),
            ..usual
        };
        let last = self.engine.last_group().unwrap_or(0);
        self.life += 1;
        self.faults.set_loc(0);
        self.withheld = false;
        self.keeps_files = false;
        self.timer = None;
        self.timer_serial += 1;
        self.serving = false;
        self.busy.clear();
        self.committing = now;
        self.machine = Some(match self.name.kind {
            TargetKind::Mgt => Box::new(Target::new(mgt::Mgt::new(), options, last, now)),
            TargetKind::Mdt => Box::new(Target::new(mdt::Mdt::new(mdt::Settings::default()), options, last, now)),
            TargetKind::Ost => Box::new(Target::new(ost::Ost::new(), options, last, now)),
        });
    }
}

/// Where a target listens.
pub(crate) fn nid_of(kind: TargetKind, index: u32) -> Nid {
    let host = match kind {
        TargetKind::Mgt => "mgs".to_owned(),
        TargetKind::Mdt => format!("mdt{index}"),
        TargetKind::Ost => format!("ost{index}"),
    };
    Nid::Tcp { host, port: proto::nid::PORT }
}
