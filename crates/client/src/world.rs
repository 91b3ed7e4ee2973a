//! All state that operations share, and the small services over it: waiting and waking, effects, tokens, numbers.

use bytes::Bytes;
use proto::msg::{Param, WantLocks, bits};
use proto::{Errno, Fid, Opcode};
use rpc::Slot;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use stdx::{Instant, Map, Rng, Set};

use crate::api::{Effect, JobIds, LogLevel, Options};
use crate::closes::Closes;
use crate::cx::Step;
use crate::data::DataState;
use crate::doubt::Touched;
use crate::file::Files;
use crate::imports::{Dest, Imports, Sender};
use crate::metadata_write_back::MetadataWriteBack;
use crate::node::{Node, Nodes};
use crate::op::{OpId, Task, WaitKey};
use crate::ops::Gate;
use crate::reclaim::Reclaim;
use crate::stats::Stats;

/// Locks on an object itself that a request wants.
#[derive(Clone, Copy, Debug)]
pub struct ObjectLocks {
    /// Of its name, and of all else but a directory's entries.
    pub own: bool,
    /// Of a directory's entries.
    pub entries: bool,
}

impl ObjectLocks {
    /// Of an object that is no directory.
    pub const FILE: ObjectLocks = ObjectLocks { own: true, entries: false };
    /// Of one that may be a directory.
    pub const ANY: ObjectLocks = ObjectLocks { own: true, entries: true };

    /// Those that are not held.
    pub fn missing(node: Option<&Node>) -> ObjectLocks {
        match node {
            Some(node) if node.is_dir() => {
                ObjectLocks { own: !node.has(bits::CACHE_DIRECTORY), entries: !node.has(bits::UPDATE) }
            }
            Some(node) => ObjectLocks { own: !node.has(bits::CACHE), entries: node.attr.is_none() },
            None => ObjectLocks::ANY,
        }
    }
}

/// Sequences of FIDs that the metadata target granted.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The one in use: sequence, next object, last object.
    pub current: Option<(u64, u32, u32)>,
    /// The one to go on with: sequence, last object.
    pub next: Option<(u64, u32)>,
    /// A request for one is on its way.
    pub asked: bool,
    /// Why the last request for one failed.
    pub failed: Option<Errno>,
    /// Those whose operations have not ended.
    pub taken: std::collections::BTreeSet<Fid>,
}

impl Sequences {
    /// The next FID. A sequence of which an old FID is still in doubt is left for the next one, since the server would take a
    /// late request with it for an old one.
    pub(crate) fn take(&mut self) -> Option<Fid> {
        let exhausted = self.current.is_none_or(|(_, next, last)| next > last);
        if exhausted || self.is_in_doubt() {
            if !exhausted {
                stdx::mark!("sequence_left_in_doubt");
            }
            let (seq, last) = self.next.take()?;
            self.current = Some((seq, 1, last));
        }
        let (seq, next, _) = self.current.as_mut()?;
        let fid = Fid::new(*seq, *next);
        *next += 1;
        self.taken.insert(fid);
        Some(fid)
    }

    /// Whether the next FID would be too far from one whose operation has not ended.
    fn is_in_doubt(&self) -> bool {
        let Some((seq, next, _)) = self.current else { return false };
        let oldest = self.taken.range(Fid::new(seq, 0)..).next();
        oldest.is_some_and(|oldest| oldest.seq == seq && next - oldest.oid >= Fid::IN_DOUBT_MAX)
    }

    /// The operation that took it has ended.
    pub(crate) fn settled(&mut self, fid: Fid) {
        self.taken.remove(&fid);
    }

    /// Whether it is time to ask for another sequence.
    pub(crate) fn wants_more(&self) -> bool {
        let left = self.current.map_or(0, |(_, next, last)| last.saturating_sub(next));
        !self.asked && self.next.is_none() && left < 16_384
    }

    /// A sequence was granted.
    pub(crate) fn granted(&mut self, seq: u64, width: u32) {
        self.asked = false;
        self.failed = None;
        self.next = Some((seq, width.min(Fid::OID_MAX)));
    }
}

/// Operations that wait for the same, in the order in which they came.
#[derive(Default)]
struct Waiters {
    list: SmallVec<[OpId; 2]>,
    /// The same, once they are many.
    known: Set<OpId>,
}

impl Waiters {
    /// With more than this a look at the list takes longer than one into a table.
    const MANY: usize = 16;

    fn add(&mut self, op: OpId) {
        let is_new = if self.list.len() < Waiters::MANY {
            !self.list.contains(&op)
        } else {
            if self.known.is_empty() {
                self.known.extend(&self.list);
            }
            self.known.insert(op)
        };
        if is_new {
            self.list.push(op);
        }
    }
}

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
pub struct World {
    /// Settings.
    pub options: Options,
    /// The time.
    pub now: Instant,
    /// The wall clock.
    pub wall_ns: i64,
    /// When that was.
    pub wall_at: Instant,
    /// Jitter.
    pub rng: Rng,
    /// Objects.
    pub nodes: Nodes,
    /// Open files.
    pub files: Files,
    /// The data cache.
    pub data: DataState,
    /// What programs did.
    pub stats: Stats,
    /// Connections to targets and the locks held there.
    pub imports: Imports,
    /// Changes that servers were not told, or did not answer.
    pub metadata_write_back: MetadataWriteBack,
    /// Closes that servers were not told, or did not answer.
    pub closes: Closes,
    /// FIDs.
    pub sequences: Sequences,
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
    /// Directories with many names.
    pub(crate) crowded: VecDeque<u64>,
    /// No new calls.
    pub unmounting: bool,
    /// Why something could not be written back since then.
    pub lost: Option<Errno>,
    /// How often changes or bytes were lost that programs had been told of.
    pub losses: crate::lost::Losses,
    /// Objects of which something was lost that nobody was told, and of which no node is left.
    pub untold: std::collections::VecDeque<(u64, Errno)>,
    /// When `WaitKey::Timer` is to be woken.
    pub timer: Option<Instant>,
    /// Calls that wait while the kernel holds directories locked for them.
    pub(crate) gates: Vec<Gate>,
    /// Room for nodes.
    pub(crate) reclaim: Reclaim,
    /// Operations in progress, background work included.
    pub ops_running: usize,
    /// The last number given to an epoch of a node.
    pub(crate) epochs: u32,
    /// A run of cookies that the request now being made wants.
    pub(crate) want_run: (u64, u32),
    /// The slot that the request now being made takes, and its turn.
    pub(crate) slot: (Slot, u64),
    /// The request now being made opens something.
    pub(crate) opening: bool,
    /// The server chooses something for the request now being made, which its replay has to bring.
    pub(crate) choosing: bool,
    /// What the request now being made changes.
    pub(crate) touched: Touched,
    /// Cookies of locks that the request now being made wants.
    pub(crate) wants: SmallVec<[u64; 3]>,
    /// Steps that failed at once: there is no such target.
    pub(crate) failures: Vec<(OpId, Step, Errno)>,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) ready: VecDeque<OpId>,
    pub(crate) spawned: VecDeque<Task>,
    waiters: Map<WaitKey, Waiters>,
    tokens: Map<u64, (OpId, Step)>,
    /// Requests that were made and replies that were taken in: the order of both.
    moments: u64,
    /// The reply that is being taken in.
    pub(crate) taking_in: TakingIn,
    next_token: u64,
}

impl World {
    /// At the begin.
    pub fn new(options: Options) -> World {
        World {
            now: Instant::ZERO,
            wall_ns: 0,
            wall_at: Instant::ZERO,
            rng: Rng::new(options.seed),
            nodes: Nodes::default(),
            files: Files::default(),
            data: DataState::default(),
            stats: Stats::default(),
            imports: Imports::default(),
            metadata_write_back: MetadataWriteBack::default(),
            closes: Closes::default(),
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
            crowded: VecDeque::new(),
            unmounting: false,
            losses: Default::default(),
            untold: std::collections::VecDeque::new(),
            lost: None,
            timer: None,
            gates: Vec::new(),
            reclaim: Reclaim::default(),
            ops_running: 0,
            epochs: 0,
            want_run: (0, 0),
            slot: (Slot::None, 0),
            opening: false,
            choosing: false,
            touched: Touched::default(),
            failures: Vec::new(),
            wants: SmallVec::new(),
            effects: VecDeque::new(),
            ready: VecDeque::new(),
            spawned: VecDeque::new(),
            waiters: Map::default(),
            tokens: Map::default(),
            moments: 0,
            taking_in: TakingIn::default(),
            next_token: 1,
            options,
        }
    }

    /// Where an object's metadata is.
    pub fn mdt_of(&self, _fid: Fid) -> Dest {
        Dest::Mdt(0)
    }

    /// Something for the driver.
    pub fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// A line for the log.
    pub fn log(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Info, line));
    }

    /// A line for the log about what an administrator should look at.
    pub fn log_warn(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Warn, line));
    }

    /// A line for the log about data or work of programs that is lost or in danger.
    pub fn log_error(&mut self, line: String) {
        self.effect(Effect::Log(LogLevel::Error, line));
    }

    /// Background work.
    pub fn spawn(&mut self, task: Task) {
        self.spawned.push_back(task);
    }

    /// Runs everybody who waits for `key`.
    pub fn wake(&mut self, key: WaitKey) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(ops) = self.waiters.remove(&key) {
            self.ready.extend(ops.list);
        }
    }

    pub(crate) fn wait(&mut self, op: OpId, key: WaitKey) {
        self.waiters.entry(key).or_default().add(op);
    }

    pub(crate) fn token(&mut self, op: OpId, step: Step) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.tokens.insert(token, (op, step));
        token
    }

    pub(crate) fn take_token(&mut self, token: u64) -> Option<(OpId, Step)> {
        self.tokens.remove(&token)
    }

    pub(crate) fn fail_step(&mut self, op: OpId, step: Step, errno: Errno) {
        self.failures.push((op, step, errno));
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

    /// Sends a request for an operation. Locks that it wants were noted by [`World::want`].
    pub(crate) fn send(&mut self, sender: Sender, dest: Dest, opcode: Opcode, body: Bytes, bulk: Bytes) {
        let wants = core::mem::take(&mut self.wants);
        crate::imports::submit(self, sender, dest, opcode, body, bulk, wants);
    }

    /// The request now being made changes what a name leads to.
    pub(crate) fn touches_name(&mut self, parent: u64, name: &Bytes) {
        self.touched.name(&self.nodes, parent, name);
    }

    /// The request now being made changes attributes of a node; `access`: those that say who may do what with it.
    pub(crate) fn touches(&mut self, ino: u64, access: bool) {
        self.touched.node(ino, access);
    }

    /// A cookie for a lock that the request now being made wants from `dest`.
    pub fn want(&mut self, dest: Dest) -> u64 {
        let Some(import) = self.imports.get_mut(dest) else { return 0 };
        let cookie = import.locks.new_cookie();
        import.locks.expect_intent(cookie);
        self.wants.push(cookie);
        cookie
    }

    /// The first of a run of cookies for locks.
    pub fn want_run(&mut self, dest: Dest, count: u32) -> u64 {
        let Some(import) = self.imports.get_mut(dest) else { return 0 };
        let first = import.locks.new_cookie();
        import.locks.expect_intent(first);
        for _ in 1..count {
            let cookie = import.locks.new_cookie();
            import.locks.expect_intent(cookie);
        }
        self.want_run = (first, count);
        first
    }

    /// Wishes for locks: on the object, on its parent, on its data.
    pub fn want_locks(&mut self, dest: Dest, object: ObjectLocks, parent: bool, data: Option<bool>) -> WantLocks {
        WantLocks {
            object_cookie: if object.own { self.want(dest) } else { 0 },
            entries_cookie: if object.entries { self.want(dest) } else { 0 },
            parent_cookie: if parent { self.want(dest) } else { 0 },
            data_cookie: if data.is_some() { self.want(dest) } else { 0 },
            data_write: data.unwrap_or(false),
            exclusive: false,
        }
    }

    /// A target's name, for messages.
    pub fn target_name(&self, dest: Dest) -> String {
        self.imports.get(dest).map_or_else(|| format!("{dest:?}"), |target| target.name.clone())
    }

    /// Wakes [`WaitKey::Timer`] at `at` or earlier.
    pub fn set_timer(&mut self, at: Instant) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_wait_for_the_same_are_woken_once_each_in_their_order() {
        let op = |slot| OpId { slot, generation: 0 };
        let mut waiters = Waiters::default();
        for slot in (0..100).chain(0..100).chain(90..110) {
            waiters.add(op(slot));
        }
        assert_eq!(waiters.list.to_vec(), (0..110).map(op).collect::<Vec<_>>());
    }

    /// The server tells numbers apart only so far below the greatest: a request that is on its way for long must not fall
    /// behind that, however many others are made meanwhile.
    #[test]
    fn a_sequence_with_a_fid_in_doubt_is_left_in_time() {
        let mut sequences = Sequences::default();
        sequences.granted(10, Fid::OID_MAX);
        let late = sequences.take().unwrap();
        for oid in 2..=Fid::IN_DOUBT_MAX {
            let fid = sequences.take().unwrap();
            assert_eq!(fid, Fid::new(10, oid));
            sequences.settled(fid);
        }
        assert_eq!(sequences.take(), None, "it waits for another sequence");
        sequences.granted(11, Fid::OID_MAX);
        assert_eq!(sequences.take(), Some(Fid::new(11, 1)));
        assert!(stdx::marks::count("sequence_left_in_doubt") > 0);
        // The late one does not matter any more; in the new one, its own do.
        sequences.settled(late);
        for oid in 2..=Fid::IN_DOUBT_MAX {
            assert_eq!(sequences.take(), Some(Fid::new(11, oid)));
        }
        assert_eq!(sequences.take(), None);
        sequences.settled(Fid::new(11, 1));
        assert_eq!(sequences.take(), Some(Fid::new(11, Fid::IN_DOUBT_MAX + 1)), "the first was in the way");
    }
}
