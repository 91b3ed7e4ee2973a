//! The state that operations share, and small services on it: waiting and waking, effects, tokens, numbers.

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
use crate::session::{Fld, Imports, Sequences, Turns};
use crate::stats::Stats;

/// The reply that is being applied.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CurrentReply {
    /// The number of its request.
    number: u64,
    /// When its application started.
    began: u64,
}

impl CurrentReply {
    /// Whether its content was valid under a lock that was granted at the moment `gained`: the lock came with it, or
    /// its request was sent under the lock. Any other reply may have been delayed so long that it shows a state from
    /// before the lock.
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
    /// The settings.
    pub options: Options,
    /// The current time.
    pub now: Instant,
    /// The wall clock,
    pub wall_ns: i64,
    /// and the time at which it was read.
    pub wall_at: Instant,
    /// Cached objects.
    pub nodes: Nodes,
    /// Open files.
    pub files: Files,
    /// The data cache.
    pub data: DataState,
    /// Statistics of the programs' calls.
    pub stats: Stats,
    /// The sessions with targets.
    pub(crate) imports: Imports<Pending>,
    /// The locks of all targets.
    pub(crate) locks: Locks,
    /// Changes that were not sent, or are not answered.
    pub(crate) metadata_write_back: MetadataWriteBack,
    /// Closes that were not sent, or are not answered.
    pub(crate) closes: Closes,
    /// FIDs for new objects, by metadata target.
    pub(crate) sequences: BTreeMap<Dest, Sequences>,
    /// The metadata targets of FID sequences.
    pub(crate) fld: Fld,
    /// Whose turn it is to get a new directory.
    pub(crate) turns: Turns,
    /// The present attempt is of a call through an alias ([`crate::ops::alias`]).
    pub(crate) by_alias: bool,
    /// The mount is complete: programs can make calls.
    pub mounted: bool,
    /// The mount failed for good; nothing is retried.
    pub failed: bool,
    /// Record locks that are no longer wanted, until the request for them is answered.
    pub abandoned_records: Vec<(Dest, u64)>,
    /// The root is being looked up.
    pub rooting: bool,
    /// The number of evictions when that lookup was started.
    pub root_generation: u32,
    /// When to check next what an incomplete mount waits for,
    pub mount_look: Option<Instant>,
    /// and what was logged about it last.
    pub mount_waits: Vec<String>,
    /// When an incomplete soft mount is given up.
    pub mount_deadline: Option<Instant>,
    /// The version of the current configuration.
    pub config_version: u64,
    /// Persistent parameters that were applied.
    pub config_params: Vec<Param>,
    /// The pools of the configuration, by name, with the indexes of their OSTs.
    pub pools: BTreeMap<String, Vec<u32>>,
    /// How the job of a process is determined.
    pub jobs: JobIds,
    /// The unmount has started: no new calls.
    pub unmounting: bool,
    /// Why something could not be written back at the unmount.
    pub lost: Option<Errno>,
    /// Acknowledged changes and bytes that were lost.
    pub(crate) losses: Losses,
    /// Unreported losses of objects without a node.
    pub(crate) unreported: VecDeque<(u64, Errno)>,
    /// Calls in progress for which the kernel holds directories locked.
    pub(crate) gates: Vec<Gate>,
    /// The reclaim of nodes.
    pub(crate) reclaim: Reclaim,
    /// Operations in progress, including background work.
    pub ops_running: usize,
    /// Those that are calls of programs.
    pub(crate) calls_running: usize,
    pub(crate) effects: VecDeque<Effect>,
    /// Operations that are ready to run, and what the others wait for.
    pub(crate) schedule: Schedule,
    pub(crate) spawned: VecDeque<Task>,
    /// Counts requests sent and replies applied, to order the two.
    moments: u64,
    /// The reply that is being applied.
    pub(crate) current_reply: CurrentReply,
}

impl World {
    /// The state at the start.
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
            sequences: BTreeMap::new(),
            fld: Fld::default(),
            turns: Turns::new(options.seed),
            by_alias: false,
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
            unreported: VecDeque::new(),
            lost: None,
            gates: Vec::new(),
            reclaim: Reclaim::default(),
            ops_running: 0,
            calls_running: 0,
            effects: VecDeque::new(),
            schedule: Schedule::default(),
            spawned: VecDeque::new(),
            moments: 0,
            current_reply: CurrentReply::default(),
            options,
        }
    }

    /// The metadata target of an object.
    pub(crate) fn mdt_of(&self, fid: Fid) -> Dest {
        Dest::Mdt(self.fld.mdt(fid))
    }

    /// Adds an effect for the driver.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// Logs a line.
    pub(crate) fn log(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Info, line));
    }

    /// Logs a line that an administrator should look at.
    pub(crate) fn log_warn(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Warn, line));
    }

    /// Logs a line about programs' data or work that is lost or in danger.
    pub(crate) fn log_error(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Error, line));
    }

    /// Starts background work.
    pub(crate) fn spawn(&mut self, task: Task) {
        self.spawned.push_back(task);
    }

    /// Runs the operations that wait for `key`.
    pub(crate) fn wake(&mut self, key: WaitKey) {
        self.schedule.wake(key);
    }

    /// Adds a target and starts to connect to it.
    pub(crate) fn add_target(&mut self, dest: Dest, name: String, nids: Vec<Nid>, instance: u64) {
        self.imports.add(&self.options, self.now, dest, name, nids, instance);
        self.locks.add(dest, self.options.max_nodes);
    }

    /// A number for a request that is sent now: greater than those of all earlier requests and applied replies.
    pub(crate) fn next_request(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// Starts to apply the reply to the request with this number.
    pub(crate) fn begin_reply(&mut self, number: u64) {
        self.moments += 1;
        self.current_reply = CurrentReply { number, began: self.moments };
    }

    /// The last number given by [`World::next_request`] or taken by a reply.
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
