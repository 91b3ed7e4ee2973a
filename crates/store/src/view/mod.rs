//! The layered, bounded view of one target's store, used by the target's thread.
//!
//! # Layers, newest first
//! 1. the **collecting** group, which accepts changes;
//! 2. the group **in flight**, frozen, being written by the engine (at most one);
//! 3. the **retiring** group: durable, and moved into the cache a few records at each attempt, so that a large group delays
//!    no attempt when it becomes durable;
//! 4. the **cache** of clean records (also of their absence), bounded;
//! 5. the engine, by loads.
//!
//! # Attempts
//! An attempt runs between [`begin`](View::begin) and [`accept`](View::accept) or [`abandon`](View::abandon), one at a time.
//! It reads its own writes. Its writes are rolled back unless it is accepted, so it may give up anywhere. If it meets a
//! [`Miss`], it is abandoned, and begins again under the same [`AttemptId`] when [`loaded`](View::loaded) has returned it.
//! Records that were loaded for it stay in memory until [`finish`](View::finish), so it makes progress however small the
//! cache is. A load that fails becomes the [`failure`](View::failure) of the attempt.
//!
//! # A load and a commit that cross
//! A load that was issued before a group became durable may return records from before the group. So when a group becomes
//! durable, its records are patched into everything that is still being loaded, and into the scan results of attempts:
//!
//! ```text
//! load k issued ─────────────── engine reads k = old ────────────────────── k = old arrives: the patch wins
//!            group 7 (k = new) in flight ──── durable: patch k = new ──┘
//! ```
//!
//! The retiring group and the cache are consistent with that: both have a key's value from the newest durable group that
//! changed it.

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

/// Identifies a request, which may need several attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// A record is not in memory: give up this attempt. The view loads the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss;

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not in memory")
    }
}

impl core::error::Error for Miss {}

/// A point in an attempt to which [`View::rollback`] can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

/// The settings of a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewConfig {
    /// The memory for clean records, in bytes. Records pinned by waiting attempts count, but are not evicted.
    pub cache_limit: usize,
    /// When groups are committed.
    pub policy: CommitPolicy,
}

impl Default for ViewConfig {
    fn default() -> ViewConfig {
        ViewConfig { cache_limit: 128 << 20, policy: CommitPolicy::default() }
    }
}

/// How to undo one write.
enum Undo {
    /// The write added the last slot of the collecting group.
    Pushed,
    /// The write replaced this value of a slot.
    Replaced(u32, Option<Value>),
}

/// The group in flight.
struct Flight {
    number: u64,
    layer: Arc<Layer>,
    index: Index,
}

/// The purpose of an outstanding load, with the changes that became durable since it was issued.
enum Wanted {
    Record { key: Key, patch: Option<Option<Value>> },
    Scan { range: KeyRange, limit: usize, patches: BTreeMap<Key, Option<Value>> },
}

/// An outstanding load.
struct Pending {
    wanted: Wanted,
    waiters: Vec<AttemptId>,
}

/// The number of retiring records that each attempt moves into the cache.
const RETIRE_STEP: usize = 16;

/// The view of one target's store.
pub struct View {
    formats: Formats,
    policy: CommitPolicy,
    collecting: Layer,
    /// Covers the tables that were scanned during this group or the one before.
    collecting_index: Index,
    /// The tables that were scanned during this group.
    collecting_scanned: Tables,
    /// When the first change of the collecting group was accepted.
    collecting_since: Option<Instant>,
    /// A request waits for the collecting group to be durable.
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

    /// Starts an attempt, or starts it again. Rolls back an earlier attempt that was neither accepted nor abandoned.
    #[inline]
    pub fn begin(&mut self, attempt: AttemptId) {
        self.abandon();
        self.current = Some(attempt);
        if !self.retiring.is_empty() {
            self.retire(RETIRE_STEP);
        }
    }

    /// Ends the attempt and makes its writes visible to others. Returns the number of the group that has them, or `None` if
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

    /// Ends the attempt and rolls back its writes.
    pub fn abandon(&mut self) {
        self.rollback(Savepoint(0));
        self.current = None;
    }

    /// Marks a point in the attempt.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.undo.len())
    }

    /// Rolls back the writes of the attempt after `point`.
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

    /// The request is finished: unpins its records and no longer reports its loads. Needed for every attempt that ever met a
    /// miss, harmless for others.
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

    /// The error of a load that an attempt needs: answer the request with an I/O error. An attempt with a failure issues no
    /// more loads.
    pub fn failure(&self, attempt: AttemptId) -> Option<&EngineError> {
        self.attempts.get(&attempt).and_then(|state| state.failure.as_ref())
    }

    /// Clears the failure, so that the attempt may try again or skip the damaged record.
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

    /// Calls `look` with the record of `key`: cheaper than [`get`](View::get) by a reference count.
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

    /// Records that the current attempt needs `key`, and loads it.
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

    /// The next effect.
    pub fn poll(&mut self) -> Option<StoreEffect> {
        self.effects.pop_front()
    }

    /// A load has finished. Returns the attempts that wait for no other load and may begin again.
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

    /// The group in flight could not be written. No group is committed any more, and the target must stop; clients keep their
    /// replays. (The error itself is for the operator; the view does not use it.)
    pub fn commit_failed(&mut self, group: u64) {
        if self.flight.as_ref().is_some_and(|flight| flight.number == group) {
            self.failed = true;
        }
    }

    /// The medium had no space for the group in flight, and nothing of it was written. It stays in flight until
    /// [`commit_again`](View::commit_again), and until it is durable only removals have space. Returns whether `group` is in
    /// flight.
    pub fn commit_delayed(&mut self, group: u64) -> bool {
        let is_in_flight = self.flight.as_ref().is_some_and(|flight| flight.number == group);
        self.delayed |= is_in_flight;
        is_in_flight
    }

    /// Commits the delayed group again.
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

    /// Patches the records of a durable group into outstanding loads and into the chunks of attempts.
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

    /// When to call [`seal_if_due`](View::seal_if_due); `None` while there is nothing to commit.
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

    /// Commits the collecting group if it is due. Returns its number.
    pub fn seal_if_due(&mut self, now: Instant) -> Option<u64> {
        if self.deadline()? <= now { self.seal_group() } else { None }
    }

    /// Commits the collecting group at once, unless it is empty or another is in flight. Returns its number.
    /// Call it only between attempts: an attempt that was not accepted is rolled back.
    pub fn seal_group(&mut self) -> Option<u64> {
        self.abandon();
        if self.flight.is_some() || self.failed || self.collecting.is_empty() {
            return None;
        }
        let number = self.collecting_group();
        let layer = Arc::new(core::mem::replace(&mut self.collecting, core::mem::take(&mut self.spare)));
        // Tables that were scanned during this group are indexed from the first record of the next one on, so that the next
        // scan need not build the index.
        let next_index = Index::new(core::mem::take(&mut self.collecting_scanned));
        let index = core::mem::replace(&mut self.collecting_index, next_index);
        self.collecting_since = None;
        self.wanted = false;
        self.flight = Some(Flight { number, layer: layer.clone(), index });
        self.effects.push_back(StoreEffect::Commit(Group { number, layer, formats: self.formats }));
        Some(number)
    }

    /// A request waits for `group`, so it is committed as soon as possible. Returns whether it is durable already.
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

    /// The number of the collecting group.
    pub fn collecting_group(&self) -> u64 {
        self.flight.as_ref().map_or(self.durable, |flight| flight.number) + 1
    }

    /// The newest group with a change: when it is durable, everything accepted so far is durable.
    pub fn newest_group(&self) -> u64 {
        self.collecting_group() - u64::from(self.collecting.is_empty())
    }

    /// Whether the collecting group has no changes.
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

    /// Whether new changes must wait, because the collecting group is full and another is in flight, or a commit failed.
    pub fn over_limit(&self) -> bool {
        self.failed || (self.flight.is_some() && self.collecting.bytes() >= self.policy.dirty_limit)
    }

    /// Changes the memory for clean records, in bytes.
    pub fn set_cache_limit(&mut self, bytes: usize) {
        self.cache.set_limit(bytes);
    }

    /// Changes the commit policy.
    pub fn set_policy(&mut self, policy: CommitPolicy) {
        self.policy = policy;
    }

    /// Takes over the engine's space. Call it after each commit.
    pub fn set_space(&mut self, space: Space) {
        self.space = Some(space);
    }

    /// The last reported space of the engine.
    pub fn space(&self) -> Option<Space> {
        self.space
    }

    /// Whether the medium has space for a change of this many records and bytes, beside all that is dirty, in the worst case.
    /// Call it before a change is answered. Removals may use the reserve. Always yes until the first
    /// [`set_space`](View::set_space).
    pub fn room(&self, records: usize, bytes: usize, purpose: RoomFor) -> Room {
        if self.delayed && purpose != RoomFor::Removal {
            return Room::No;
        }
        room(self.space, purpose, self.dirty_room(), worst_case(records, bytes))
    }

    /// The most that changes which are not durable can take on the medium, in bytes.
    pub fn dirty_room(&self) -> u64 {
        let flying = self.flight.as_ref().map_or(0, |flight| flight.layer.len());
        match self.collecting.len() + flying {
            0 => 0,
            dirty => worst_case(dirty, self.dirty_bytes()),
        }
    }
}

/// Calls `what` for each record of the group in `range`, in no particular order.
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
