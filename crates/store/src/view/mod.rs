//! The layered, bounded view of one target's store, for the one thread that owns the target.
//!
//! # Layers, newest first
//! 1. the **collecting** group, which accepts changes;
//! 2. the group **in flight**, frozen, being written by the engine (at most one);
//! 3. the **retiring** group: durable, on its way into the cache, a few records at each attempt, so that a large
//!    group does not hold up anybody when it becomes durable;
//! 4. the **cache** of clean records (also of their absence), bounded;
//! 5. the engine, by loads.
//!
//! # Attempts
//! A request runs between [`begin`](View::begin) and [`accept`](View::accept) or [`abandon`](View::abandon); one at a
//! time. It reads its own writes. What it wrote is taken back unless it is accepted, so it may give up anywhere. If it
//! met a [`Miss`] it is abandoned and begun again, under the same [`AttemptId`], when [`loaded`](View::loaded) has
//! named it. What was loaded for it stays in memory until [`finish`](View::finish), so it makes progress however
//! small the cache is. A load that fails is that attempt's [`failure`](View::failure).
//!
//! # A load and a commit that cross
//! A load that was issued before a group became durable may bring what was there before. So when a group becomes durable,
//! its records are laid over everything that is still being loaded and over the scan results that attempts hold:
//!
//! ```text
//! load k issued ─────────────── engine reads k = old ────────────────────── k = old arrives: the patch wins
//!            group 7 (k = new) in flight ──── durable: patch k = new ──┘
//! ```
//!
//! Retiring and cache are consistent with that: both take a key's value from the newest durable group that has it.

mod attempt;
mod scan;
#[cfg(test)]
mod tests;

use crate::cache::Cache;
use crate::layer::{Index, Layer, Tables, hash_of};
use crate::policy::{room, worst_case};
use crate::{
    CommitPolicy, EngineError, Formats, Group, Key, KeyRange, Load, LoadDone, LoadId, LoadResult, LoadWhat, Room,
    RoomFor, Space, StoreEffect, Value,
};
use attempt::{Attempt, Chunk};
use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stdx::{Instant, Map};

/// Names a request that may run several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// What was asked for is not in memory: give up this attempt. The view has noted what is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss;

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not in memory")
    }
}

impl core::error::Error for Miss {}

/// A point in an attempt to which [`View::rollback`] goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

/// The settings of a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewConfig {
    /// How much memory, in bytes, clean records may use. What waiting attempts have pinned counts, but stays.
    pub cache_limit: usize,
    /// When groups leave.
    pub policy: CommitPolicy,
}

impl Default for ViewConfig {
    fn default() -> ViewConfig {
        ViewConfig { cache_limit: 128 << 20, policy: CommitPolicy::default() }
    }
}

/// How to take back one write.
enum Undo {
    /// The key is the last slot of the collecting group.
    Pushed,
    /// The slot held this.
    Replaced(u32, Option<Value>),
}

/// The group in flight.
struct Flight {
    number: u64,
    layer: Arc<Layer>,
    index: Index,
}

/// What a pending load is for.
enum Wanted {
    Record { key: Key, patch: Option<Option<Value>> },
    Scan { range: KeyRange, limit: usize, patches: BTreeMap<Key, Option<Value>> },
}

/// A load that has been issued and is not back.
struct Pending {
    wanted: Wanted,
    waiters: Vec<AttemptId>,
}

/// How many retiring records go into the cache at each attempt.
const RETIRE_STEP: usize = 16;

/// The view of one target's store.
pub struct View {
    formats: Formats,
    policy: CommitPolicy,
    collecting: Layer,
    /// Of the tables that somebody scanned, in this group or the one before.
    collecting_index: Index,
    /// In this group.
    collecting_scanned: Tables,
    collecting_since: Option<Instant>,
    /// Somebody waits for the collecting group to be durable.
    wanted: bool,
    flight: Option<Flight>,
    retiring: Layer,
    /// An empty layer with allocations for the next group.
    spare: Layer,
    cache: Cache,
    durable: u64,
    failed: bool,
    /// The medium had no space for the group in flight.
    delayed: bool,
    undo: Vec<Undo>,
    current: Option<AttemptId>,
    attempts: BTreeMap<AttemptId, Attempt>,
    loads: BTreeMap<LoadId, Pending>,
    record_loads: Map<Key, LoadId>,
    next_load: u64,
    effects: VecDeque<StoreEffect>,
    space: Option<Space>,
}

impl View {
    /// A view of an engine whose last durable group is `last_group`.
    pub fn new(config: ViewConfig, formats: Formats, last_group: u64) -> View {
        View {
            formats,
            policy: config.policy,
            collecting: Layer::default(),
            collecting_index: Index::default(),
            collecting_scanned: Tables::default(),
            collecting_since: None,
            wanted: false,
            flight: None,
            retiring: Layer::default(),
            spare: Layer::default(),
            cache: Cache::new(config.cache_limit),
            durable: last_group,
            failed: false,
            delayed: false,
            undo: Vec::new(),
            current: None,
            attempts: BTreeMap::new(),
            loads: BTreeMap::new(),
            record_loads: Map::default(),
            next_load: 1,
            effects: VecDeque::new(),
            space: None,
        }
    }

    // --- attempts ---

    /// Starts an attempt, or starts it over. What an earlier attempt left neither accepted nor abandoned is taken back.
    #[inline]
    pub fn begin(&mut self, attempt: AttemptId) {
        self.abandon();
        self.current = Some(attempt);
        if !self.retiring.is_empty() {
            self.retire(RETIRE_STEP);
        }
    }

    /// Ends the attempt; its writes become visible to others and leave with the group whose number is given. `None` if
    /// it wrote nothing.
    #[inline]
    pub fn accept(&mut self, now: Instant) -> Option<u64> {
        self.current = None;
        if self.undo.is_empty() {
            return None;
        }
        self.undo.clear();
        self.collecting_since.get_or_insert(now);
        Some(self.collecting_group())
    }

    /// Ends the attempt and takes back what it wrote.
    pub fn abandon(&mut self) {
        self.rollback(Savepoint(0));
        self.current = None;
    }

    /// Marks a point in the attempt.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.undo.len())
    }

    /// Takes back what the attempt wrote after `point`.
    pub fn rollback(&mut self, point: Savepoint) {
        while self.undo.len() > point.0 {
            match self.undo.pop() {
                Some(Undo::Pushed) => {
                    if let Some(slot) = self.collecting.pop() {
                        self.collecting_index.remove(&slot.key);
                    }
                }
                Some(Undo::Replaced(slot, previous)) => {
                    self.collecting.replace(slot, previous);
                }
                None => break,
            }
        }
    }

    /// The request is over: what was pinned for it may leave memory, loads for it are forgotten. Needed for every
    /// attempt that ever met a miss, harmless for others.
    pub fn finish(&mut self, attempt: AttemptId) {
        if self.attempts.is_empty() {
            return;
        }
        let Some(state) = self.attempts.remove(&attempt) else { return };
        for key in state.pins {
            self.cache.unpin(hash_of(&key), &key);
        }
        for load in state.waiting_for {
            if let Some(pending) = self.loads.get_mut(&load) {
                pending.waiters.retain(|&waiter| waiter != attempt);
            }
        }
    }

    /// The loads that an attempt waits for. Empty: it may run.
    pub fn misses(&self, attempt: AttemptId) -> &[LoadId] {
        self.attempts.get(&attempt).map_or(&[], |state| &state.waiting_for)
    }

    /// Why what an attempt needs cannot be had: answer the request with an I/O error. An attempt with a failure issues
    /// no more loads.
    pub fn failure(&self, attempt: AttemptId) -> Option<&EngineError> {
        self.attempts.get(&attempt).and_then(|state| state.failure.as_ref())
    }

    /// Takes the failure away, so that the attempt may try once more, or pass the damaged record by.
    pub fn take_failure(&mut self, attempt: AttemptId) -> Option<EngineError> {
        self.attempts.get_mut(&attempt).and_then(|state| state.failure.take())
    }

    // --- reading and writing ---

    /// The record of `key`.
    #[inline]
    pub fn get(&mut self, key: &Key) -> Result<Option<Value>, Miss> {
        self.read(key, |value| value.cloned())
    }

    /// Whether `key` has a record.
    #[inline]
    pub fn exists(&mut self, key: &Key) -> Result<bool, Miss> {
        self.read(key, |value| value.is_some())
    }

    /// Looks at the record of `key` where it lies: cheaper than [`get`](View::get) by a reference count.
    #[inline]
    pub fn read<T>(&mut self, key: &Key, look: impl FnOnce(Option<&Value>) -> T) -> Result<T, Miss> {
        let hash = hash_of(key);
        if let Some(slot) = self.collecting.find(hash, key) {
            return Ok(look(self.collecting.value(slot)));
        }
        if let Some(flight) = &self.flight
            && let Some(slot) = flight.layer.find(hash, key)
        {
            return Ok(look(flight.layer.value(slot)));
        }
        if !self.retiring.is_empty()
            && let Some(slot) = self.retiring.find(hash, key)
        {
            return Ok(look(self.retiring.value(slot)));
        }
        if let Some(slot) = self.cache.find(hash, key) {
            return Ok(look(self.cache.value(slot)));
        }
        self.miss_record(key);
        Err(Miss)
    }

    /// Writes a record.
    #[inline]
    pub fn put(&mut self, key: Key, value: Value) {
        self.write(key, Some(value));
    }

    /// Deletes a record, whether it exists or not.
    #[inline]
    pub fn delete(&mut self, key: Key) {
        self.write(key, None);
    }

    fn write(&mut self, key: Key, value: Option<Value>) {
        debug_assert!(self.current.is_some(), "a write to {key} outside of an attempt");
        let hash = hash_of(&key);
        match self.collecting.find(hash, &key) {
            Some(slot) => {
                let previous = self.collecting.replace(slot, value);
                self.undo.push(Undo::Replaced(slot, previous));
            }
            None => {
                self.collecting_index.insert(&key, self.collecting.len() as u32);
                self.collecting.push(hash, key, value);
                self.undo.push(Undo::Pushed);
            }
        }
    }

    /// Notes that the current attempt needs `key`.
    #[cold]
    fn miss_record(&mut self, key: &Key) {
        let Some(attempt) = self.current else { return };
        if self.attempts.get(&attempt).is_some_and(|state| state.failure.is_some()) {
            return;
        }
        let id = match self.record_loads.get(key) {
            Some(&id) => id,
            None => {
                let id = self.issue(LoadWhat::Record(key.clone()), Wanted::Record { key: key.clone(), patch: None });
                self.record_loads.insert(key.clone(), id);
                id
            }
        };
        self.wait_for(attempt, id);
    }

    fn issue(&mut self, what: LoadWhat, wanted: Wanted) -> LoadId {
        let id = LoadId(self.next_load);
        self.next_load += 1;
        self.loads.insert(id, Pending { wanted, waiters: Vec::new() });
        self.effects.push_back(StoreEffect::Load(Load { id, what, formats: self.formats }));
        id
    }

    fn wait_for(&mut self, attempt: AttemptId, id: LoadId) {
        let Some(pending) = self.loads.get_mut(&id) else { return };
        if !pending.waiters.contains(&attempt) {
            pending.waiters.push(attempt);
            self.attempts.entry(attempt).or_default().waiting_for.push(id);
        }
    }

    // --- events ---

    /// What the view wants done next.
    pub fn poll(&mut self) -> Option<StoreEffect> {
        self.effects.pop_front()
    }

    /// A load has been done. Gives the attempts that have all that they asked for and may begin again.
    pub fn loaded(&mut self, done: LoadDone) -> Vec<AttemptId> {
        let Some(Pending { wanted, waiters }) = self.loads.remove(&done.id) else { return Vec::new() };
        if let Wanted::Record { key, .. } = &wanted {
            self.record_loads.remove(key);
        }
        match (wanted, done.result) {
            (Wanted::Record { key, patch }, Ok(LoadResult::Record(value))) => {
                for waiter in &waiters {
                    self.attempts.entry(*waiter).or_default().pins.push(key.clone());
                }
                self.cache.insert(hash_of(&key), key, patch.unwrap_or(value), waiters.len() as u32);
            }
            (Wanted::Scan { range, patches, .. }, Ok(LoadResult::Scan { records, complete })) => {
                let mut chunk = Chunk::new(range, records, complete);
                for (key, value) in patches {
                    chunk.patch(&key, &value);
                }
                for waiter in &waiters {
                    self.attempts.entry(*waiter).or_default().chunks.push(chunk.clone());
                }
            }
            (_, result) => {
                let mixed_up = || EngineError::Io { place: "store".into(), what: "an answer of the wrong kind".into() };
                let error = result.err().unwrap_or_else(mixed_up);
                for waiter in &waiters {
                    self.attempts.entry(*waiter).or_default().failure.get_or_insert_with(|| error.clone());
                }
            }
        }
        let mut ready = Vec::new();
        for waiter in waiters {
            let state = self.attempts.entry(waiter).or_default();
            state.waiting_for.retain(|&load| load != done.id);
            if state.waiting_for.is_empty() {
                ready.push(waiter);
            }
        }
        ready
    }

    /// The group in flight is durable.
    pub fn committed(&mut self, group: u64) {
        let Some(flight) = self.flight.take_if(|flight| flight.number == group) else { return };
        self.durable = group;
        self.delayed = false;
        self.patch_pending(&flight);
        self.retire(usize::MAX);
        self.retiring = Arc::unwrap_or_clone(flight.layer);
    }

    /// The group in flight could not be written. The target must stop: no group leaves any more; clients keep their
    /// replays. (The error itself is for the operator; the view has no use for it.)
    pub fn commit_failed(&mut self, group: u64) {
        if self.flight.as_ref().is_some_and(|flight| flight.number == group) {
            self.failed = true;
        }
    }

    /// The medium had no space for the group in flight, and nothing of it was written. It stays in flight until
    /// [`commit_again`](View::commit_again); until it is durable there is room for removals only. Gives whether it was so.
    pub fn commit_delayed(&mut self, group: u64) -> bool {
        let is_in_flight = self.flight.as_ref().is_some_and(|flight| flight.number == group);
        self.delayed |= is_in_flight;
        is_in_flight
    }

    /// Sends the group that was delayed to the engine once more.
    pub fn commit_again(&mut self, group: u64) {
        if let Some(flight) = self.flight.as_ref().filter(|flight| flight.number == group && self.delayed) {
            let again = Group { number: group, layer: flight.layer.clone(), formats: self.formats };
            self.effects.push_back(StoreEffect::Commit(again));
        }
    }

    /// Whether the group in flight waits for space on the medium.
    pub fn is_delayed(&self) -> bool {
        self.delayed
    }

    /// Whether a commit failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Lays the records of a group that has become durable over what is being loaded and over what attempts hold.
    fn patch_pending(&mut self, flight: &Flight) {
        let layer = &*flight.layer;
        for pending in self.loads.values_mut() {
            match &mut pending.wanted {
                Wanted::Record { key, patch } => {
                    if let Some(slot) = layer.find(hash_of(key), key) {
                        *patch = Some(layer.value(slot).cloned());
                    }
                }
                Wanted::Scan { range, patches, .. } => each_in(flight, range, |key, value| {
                    patches.insert(key.clone(), value.clone());
                }),
            }
        }
        for chunk in self.attempts.values_mut().flat_map(|state| &mut state.chunks) {
            let range = chunk.range();
            each_in(flight, &range, |key, value| chunk.patch(key, value));
        }
    }

    /// Moves up to `count` records of the retiring group into the cache.
    fn retire(&mut self, count: usize) {
        for _ in 0..count {
            let Some(slot) = self.retiring.drain_one() else { break };
            self.cache.insert(slot.hash, slot.key, slot.value, 0);
        }
        if self.retiring.is_empty() {
            self.retiring.clear();
            core::mem::swap(&mut self.retiring, &mut self.spare);
        }
    }

    // --- groups ---

    /// When [`seal_if_due`](View::seal_if_due) wants to be called; `None` while there is nothing to do.
    pub fn deadline(&self) -> Option<Instant> {
        if self.flight.is_some() || self.failed {
            return None;
        }
        let since = self.collecting_since?;
        if self.wanted || self.collecting.bytes() >= self.policy.dirty_limit {
            return Some(Instant::ZERO);
        }
        Some(since + self.policy.interval)
    }

    /// Sends the collecting group if its time has come. Gives its number.
    pub fn seal_if_due(&mut self, now: Instant) -> Option<u64> {
        if self.deadline()? <= now { self.seal_group() } else { None }
    }

    /// Sends the collecting group at once, unless it is empty or another is in flight. Gives its number.
    /// Only between attempts: what an attempt wrote without being accepted is taken back.
    pub fn seal_group(&mut self) -> Option<u64> {
        self.abandon();
        if self.flight.is_some() || self.failed || self.collecting.is_empty() {
            return None;
        }
        let number = self.collecting_group();
        let layer = Arc::new(core::mem::replace(&mut self.collecting, core::mem::take(&mut self.spare)));
        // While somebody scans group after group the index is kept from the first record on: no pause to build it.
        let next_index = Index::new(core::mem::take(&mut self.collecting_scanned));
        let index = core::mem::replace(&mut self.collecting_index, next_index);
        self.collecting_since = None;
        self.wanted = false;
        self.flight = Some(Flight { number, layer: layer.clone(), index });
        self.effects.push_back(StoreEffect::Commit(Group { number, layer, formats: self.formats }));
        Some(number)
    }

    /// Somebody waits for `group`: it leaves as soon as it can. Gives whether it is durable already.
    pub fn want_durable(&mut self, group: u64) -> bool {
        if group > self.durable && group == self.collecting_group() && !self.collecting.is_empty() {
            self.wanted = true;
        }
        group <= self.durable
    }

    /// The last group that is durable.
    pub fn durable_group(&self) -> u64 {
        self.durable
    }

    /// The group that collects changes now.
    pub fn collecting_group(&self) -> u64 {
        self.flight.as_ref().map_or(self.durable, |flight| flight.number) + 1
    }

    /// The youngest group that has a change: once it is durable, everything that was accepted up to now is.
    pub fn newest_group(&self) -> u64 {
        self.collecting_group() - u64::from(self.collecting.is_empty())
    }

    /// Whether no change waits to leave.
    pub fn collecting_is_empty(&self) -> bool {
        self.collecting.is_empty()
    }

    /// Whether the engine is writing a group.
    pub fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Memory, in bytes, of the changes that are not durable.
    pub fn dirty_bytes(&self) -> usize {
        self.collecting.bytes() + self.flight.as_ref().map_or(0, |flight| flight.layer.bytes())
    }

    /// Memory, in bytes, of the clean records.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Memory, in bytes, of all records: clean, retiring and not durable.
    pub fn memory_bytes(&self) -> usize {
        self.cache.bytes() + self.retiring.bytes() + self.dirty_bytes()
    }

    /// Whether new changes must wait: the collecting group is full and cannot leave yet.
    pub fn over_limit(&self) -> bool {
        self.failed || (self.flight.is_some() && self.collecting.bytes() >= self.policy.dirty_limit)
    }

    /// Changes the memory for clean records, in bytes.
    pub fn set_cache_limit(&mut self, bytes: usize) {
        self.cache.set_limit(bytes);
    }

    /// Changes when groups leave.
    pub fn set_policy(&mut self, policy: CommitPolicy) {
        self.policy = policy;
    }

    /// What the engine last said about its room; tell it after each commit.
    pub fn set_space(&mut self, space: Space) {
        self.space = Some(space);
    }

    /// What the engine last said about its room.
    pub fn space(&self) -> Option<Space> {
        self.space
    }

    /// Whether a change of so many records and bytes can be written in the worst case, besides all that is dirty. Ask
    /// before answering. Removals may use the reserve. Always yes until the first [`set_space`](View::set_space).
    pub fn room(&self, records: usize, bytes: usize, purpose: RoomFor) -> Room {
        if self.delayed && purpose != RoomFor::Removal {
            return Room::No;
        }
        room(self.space, purpose, self.dirty_room(), worst_case(records, bytes))
    }

    /// What the changes that are not durable can take on the medium, at most, in bytes.
    pub fn dirty_room(&self) -> u64 {
        let flying = self.flight.as_ref().map_or(0, |flight| flight.layer.len());
        match self.collecting.len() + flying {
            0 => 0,
            dirty => worst_case(dirty, self.dirty_bytes()),
        }
    }
}

/// Calls `what` for each record of the group in `range`. The order means nothing.
fn each_in(flight: &Flight, range: &KeyRange, mut what: impl FnMut(&Key, &Option<Value>)) {
    if range.is_empty() {
        return;
    }
    if flight.index.covers(Tables::of(range)) {
        for (key, slot) in flight.index.range(&range.start, &range.end) {
            what(key, &flight.layer.slots()[slot as usize].value);
        }
    } else {
        for slot in flight.layer.filter(range) {
            what(&slot.key, &slot.value);
        }
    }
}
