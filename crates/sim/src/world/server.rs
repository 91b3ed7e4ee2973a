//! A target in the simulated world: its machine while it runs, and its disk, which persists.

use core::time::Duration;

use ost::mem_data::MemData;
use proto::{Errno, Nid, TargetKind, TargetName};
use stdx::{Faults, Instant, Rng};
use store::{Engine, MemEngine};
use target::{DataOp, DataResult, DataSpace, Effect, Event, Format, Options, Service, Target};

use crate::plan::Plan;

/// The interface of a target's machine, for all kinds of targets.
pub trait Machine {
    /// Delivers an event.
    fn handle(&mut self, now: Instant, event: Event);
    /// The next effect.
    fn poll(&mut self) -> Option<Effect>;
    /// When the next tick is due.
    fn deadline(&self) -> Option<Instant>;
    /// The parameters that match.
    fn get_params(&self, pattern: &str) -> Vec<(String, String)>;
    /// How many changes wait for others with parts on several targets.
    fn key_waiters(&self) -> usize;
    /// Sets the parameters that match.
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
    fn key_waiters(&self) -> usize {
        Target::key_waiters(self)
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
    /// Its network address.
    pub nid: Nid,
    /// The machine, if it runs.
    pub machine: Option<Box<dyn Machine>>,
    /// The number of starts.
    pub life: u32,
    /// Its store.
    pub engine: MemEngine,
    /// Its data files.
    pub data: MemData,
    /// The capacity for data files in bytes, if limited.
    pub data_capacity: Option<u64>,
    /// The next change of data in a data file fails.
    pub fails_write: bool,
    /// Data files cannot be removed.
    pub keeps_files: bool,
    /// An older copy of its disk.
    pub copy: Option<(MemEngine, MemData)>,
    /// The next start accepts that the disk is an older copy.
    pub accepts_old: bool,
    /// By data file: when its last operation is done. Operations on a file keep their order.
    pub busy: std::collections::BTreeMap<u64, Instant>,
    /// When the last commit is done. Commits keep their order.
    pub committing: Instant,
    /// The pending tick.
    pub timer: Option<Instant>,
    /// The number of the pending tick; older ones are ignored.
    pub timer_serial: u64,
    /// It has reported that it serves.
    pub serving: bool,
    /// It is not restarted.
    pub retired: bool,
    /// It is not part of the file system yet.
    pub awaited: bool,
    /// Fault injection in its process.
    pub faults: Faults,
    /// Its groups do not reach the disk.
    pub withheld: bool,
    /// Extra time for each operation of its disk.
    pub slow: Duration,
    /// The end of the last operation of a slow disk.
    pub slow_until: Instant,
    /// The next sync of data files fails.
    pub sync_fails: bool,
    /// A sync has failed, which stops the target.
    pub disk_failed: bool,
    /// Damaged records: key, intact value, damaged value.
    pub damaged: Vec<(store::Key, store::Value, store::Value)>,
}

impl Server {
    /// Limits the capacity for data files, in bytes.
    pub fn set_data_capacity(&mut self, bytes: Option<u64>) {
        self.data_capacity = bytes;
        self.data.set_capacity(bytes);
    }

    /// The space for data files, as the medium reports it.
    pub fn data_space(&self) -> Option<DataSpace> {
        let total = self.data_capacity.unwrap_or(DISK);
        let free = total.saturating_sub(self.data.bytes());
        (self.name.kind == TargetKind::Ost).then_some(DataSpace { total, free, disk: 0 })
    }

    /// Executes an operation on data files, or fails it.
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

    /// Copies the disk.
    pub fn copy(&mut self) {
        self.copy = Some((self.engine.snapshot(), self.data.clone()));
    }

    /// Replaces the disk by its copy.
    pub fn put_back(&mut self) {
        if let Some((engine, data)) = &self.copy {
            (self.engine, self.data) = (engine.snapshot(), data.clone());
        }
    }
}

/// Size of an unlimited disk, in bytes.
const DISK: u64 = 1 << 40;

/// Timeouts of targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// For a lock callback.
    pub lock_timeout: Duration,
    /// For clients in a recovery: each may be silent for this long,
    pub recovery_soft: Duration,
    /// and the recovery as a whole may take this long.
    pub recovery_hard: Duration,
}

impl Limits {
    /// The timeouts of a plan. In runs where no client dies none may be evicted, however bad the network is, so the timeouts
    /// exceed all its faults. In other runs they are the defaults of targets.
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

    /// The longest recovery: clients that block the first gate are given up at the hard limit, those that block each of the two
    /// following gates after the soft limit.
    pub(crate) fn recovery(&self) -> Duration {
        self.recovery_hard + self.recovery_soft * 2
    }
}

/// The store's reserve on disks that get full, in bytes.
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
            data_capacity: None,
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
            awaited: false,
            faults: if plan.disturbances.sites.is_some() { Faults::allowed(plan.seed) } else { Faults::none() },
            withheld: false,
            slow: Duration::ZERO,
            slow_until: Instant::ZERO,
            sync_fails: false,
            disk_failed: false,
            damaged: Vec::new(),
        }
    }

    /// A new store, for a new target or one that replaces another.
    fn formatted(name: &TargetName, plan: &Plan, position: u64, replaces: bool) -> MemEngine {
        let engine = MemEngine::new();
        if plan.disk_faults.fill_every.is_some() {
            engine.set_reserve(RESERVE);
        }
        // Drawn, as that of a real target: targets derive the identities of their sessions with each other from it.
        let mut rng = Rng::new(plan.seed ^ 0x0d15_c01d ^ (position << 1 | u64::from(replaces)) << 40);
        let format = Format {
            name: name.clone(),
            uuid: u128::from(rng.u64()) << 64 | u128::from(rng.u64()),
            mgs: vec![nid_of(TargetKind::Mgt, 0)],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            wall_ns: crate::world::WALL_START_NS,
            params: Vec::new(),
            // Every other seed has a file system that older versions can serve. The other metadata targets are made with other
            // keys, and take over those of MDT0000.
            name_key: (name.kind == TargetKind::Mdt && (plan.seed ^ u64::from(name.index.0)) % 2 == 1)
                .then_some((u128::from(name.index.0) << 64 | u128::from(plan.seed)).to_be_bytes()),
            replaces,
        };
        let batch = match name.kind {
            TargetKind::Mgt | TargetKind::Ost => target::format(&format),
            TargetKind::Mdt => mdt::format(&format, &mdt::Root::default()),
        };
        // An empty memory engine accepts every batch.
        let _ = engine.commit(1, &batch.seal(&schema::formats()));
        engine
    }

    /// Replaces a lost disk by that of an empty new target with the same name.
    pub fn replace(&mut self, plan: &Plan, position: u64) {
        self.engine = Server::formatted(&self.name, plan, position, true);
        self.data = MemData::new();
    }

    /// Starts the machine.
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
            TargetKind::Mdt => {
                // Any user may place directories.
                let settings = mdt::Settings {
                    enable_remote_dir_gid: -1,
                    enable_dir_restripe: true,
                    names_moving: plan.names_moving,
                    ..mdt::Settings::default()
                };
                Box::new(Target::new(mdt::Mdt::new(settings), options, last, now))
            }
            TargetKind::Ost => Box::new(Target::new(ost::Ost::new(), options, last, now)),
        });
    }
}

/// The network address of a target.
pub(crate) fn nid_of(kind: TargetKind, index: u32) -> Nid {
    let host = match kind {
        TargetKind::Mgt => "mgs".to_owned(),
        TargetKind::Mdt => format!("mdt{index}"),
        TargetKind::Ost => format!("ost{index}"),
    };
    Nid::Tcp { host, port: proto::nid::PORT }
}
