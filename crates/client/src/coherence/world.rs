//! All state that operations share, and the small services over it: waiting and waking, effects, tokens, numbers.

use proto::msg::Param;
use proto::{Errno, Fid, Nid};
use std::collections::{BTreeMap, VecDeque};
use stdx::Instant;

use crate::api::{Effect, JobIds, LogLevel, Options};
use crate::base::{Dest, Schedule, WaitKey};
use crate::cache::data::lanes::DataState;
use crate::cache::file::Files;
use crate::cache::node::Nodes;
use crate::coherence::closes::{self, Closes};
use crate::coherence::kernel::Gate;
use crate::coherence::locks::Locks;
use crate::coherence::lost::Losses;
use crate::coherence::metadata_write_back::MetadataWriteBack;
use crate::coherence::op::Task;
use crate::coherence::reclaim::Reclaim;
use crate::coherence::request::Pending;
use crate::session::{Imports, Sequences};
use crate::stats::Stats;

/// A reply that is being taken in.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TakingIn {
    /// The number of its request.
    number: u64,
    /// When it came.
    began: u64,
}

impl TakingIn {
    /// Whether what it shows was so under a lock that came at the moment `gained`: the lock came with it, or its request was made
    /// under the lock. Another reply can have been on its way for so long that it shows what was before the lock.
    pub(crate) fn is_under(self, gained: u64) -> bool {
        self.number > gained || gained >= self.began
    }

    /// The number of its request.
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

/// See the module.
pub(crate) struct World {
    /// Settings.
    pub options: Options,
    /// The time.
    pub now: Instant,
    /// The wall clock.
    pub wall_ns: i64,
    /// When that was.
    pub wall_at: Instant,
    /// Objects.
    pub nodes: Nodes,
    /// Open files.
    pub files: Files,
    /// The data cache.
    pub data: DataState,
    /// What programs did.
    pub stats: Stats,
    /// Sessions with targets.
    pub(crate) imports: Imports<Pending>,
    /// The locks held there.
    pub(crate) locks: Locks,
    /// Changes that servers were not told, or did not answer.
    pub(crate) metadata_write_back: MetadataWriteBack,
    /// Closes that servers were not told, or did not answer.
    pub(crate) closes: Closes,
    /// FIDs.
    pub(crate) sequences: Sequences,
    /// Calls can be made.
    pub mounted: bool,
    /// The mount failed for good; nothing more is tried.
    pub failed: bool,
    /// Record locks that are waited for and not wanted any more, until that is answered.
    pub abandoned_records: Vec<(Dest, u64)>,
    /// The root is being fetched.
    pub rooting: bool,
    /// How often this client had been evicted when that was begun.
    pub root_generation: u32,
    /// When it is looked what a mount that is not complete waits for, and what was said of it last.
    pub mount_look: Option<Instant>,
    /// See there.
    pub mount_waits: Vec<String>,
    /// When a soft mount that is not complete is given up.
    pub mount_deadline: Option<Instant>,
    /// Of the configuration that is followed.
    pub config_version: u64,
    /// Persistent parameters that were set.
    pub config_params: Vec<Param>,
    /// The pools of the configuration, with the indexes of their object targets, by name.
    pub pools: BTreeMap<String, Vec<u32>>,
    /// How jobs of processes are found out.
    pub jobs: JobIds,
    /// No new calls.
    pub unmounting: bool,
    /// Why something could not be written back since then.
    pub lost: Option<Errno>,
    /// How often changes or bytes were lost that programs had been told of.
    pub(crate) losses: Losses,
    /// Objects of which something was lost that nobody was told, and of which no node is left.
    pub(crate) untold: VecDeque<(u64, Errno)>,
    /// Calls that wait while the kernel holds directories locked for them.
    pub(crate) gates: Vec<Gate>,
    /// Room for nodes.
    pub(crate) reclaim: Reclaim,
    /// Operations in progress, background work included.
    pub ops_running: usize,
    pub(crate) effects: VecDeque<Effect>,
    /// Operations that are ready to run, and what the others wait for.
    pub(crate) schedule: Schedule,
    pub(crate) spawned: VecDeque<Task>,
    /// Requests that were made and replies that were taken in: the order of both.
    moments: u64,
    /// The reply that is being taken in.
    pub(crate) taking_in: TakingIn,
}

impl World {
    /// At the begin.
    pub(crate) fn new(options: Options) -> World {
        World {
            now: Instant::ZERO,
            wall_ns: 0,
            wall_at: Instant::ZERO,
            nodes: Nodes::new(options.max_nodes),
            files: Files::default(),
            data: DataState::default(),
            stats: Stats::default(),
            imports: Imports::default(),
            locks: Locks::default(),
            metadata_write_back: MetadataWriteBack::default(),
            closes: closes::none(),
            sequences: Sequences::default(),
            mounted: false,
            failed: false,
            abandoned_records: Vec::new(),
            rooting: false,
            root_generation: 0,
            mount_look: None,
            mount_waits: Vec::new(),
            mount_deadline: None,
            config_version: 0,
            config_params: Vec::new(),
            pools: BTreeMap::new(),
            jobs: JobIds::default(),
            unmounting: false,
            losses: Losses::default(),
            untold: VecDeque::new(),
            lost: None,
            gates: Vec::new(),
            reclaim: Reclaim::default(),
            ops_running: 0,
            effects: VecDeque::new(),
            schedule: Schedule::default(),
            spawned: VecDeque::new(),
            moments: 0,
            taking_in: TakingIn::default(),
            options,
        }
    }

    /// Where an object's metadata is.
    pub(crate) fn mdt_of(&self, _fid: Fid) -> Dest {
        Dest::Mdt(0)
    }

    /// Something for the driver.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// A line for the log.
    pub(crate) fn log(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Info, line));
    }

    /// A line for the log about what an administrator should look at.
    pub(crate) fn log_warn(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Warn, line));
    }

    /// A line for the log about data or work of programs that is lost or in danger.
    pub(crate) fn log_error(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Error, line));
    }

    /// Background work.
    pub(crate) fn spawn(&mut self, task: Task) {
        self.spawned.push_back(task);
    }

    /// Runs everybody who waits for `key`.
    pub(crate) fn wake(&mut self, key: WaitKey) {
        self.schedule.wake(key);
    }

    /// A further target; it is dialled at once.
    pub(crate) fn add_target(&mut self, dest: Dest, name: String, nids: Vec<Nid>, instance: u64) {
        self.imports.add(&self.options, self.now, dest, name, nids, instance);
        self.locks.add(dest, self.options.max_nodes);
    }

    /// A number for the request that is now made: greater than those of all requests made and replies taken in before.
    pub(crate) fn next_request(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// The reply to the request with this number is taken in from here on.
    pub(crate) fn takes_in(&mut self, number: u64) {
        self.moments += 1;
        self.taking_in = TakingIn { number, began: self.moments };
    }

    /// How far [`World::next_request`] has come.
    pub(crate) fn moment(&self) -> u64 {
        self.moments
    }

    /// A target's name, for messages.
    pub(crate) fn target_name(&self, dest: Dest) -> String {
        self.imports.get(dest).map_or_else(|| format!("{dest:?}"), |target| target.name.clone())
    }

    /// Wakes [`WaitKey::Timer`] at `at` or earlier.
    pub(crate) fn set_timer(&mut self, at: Instant) {
        self.schedule.set_timer(at);
    }
}
