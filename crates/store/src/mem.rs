//! An engine in memory with crash behaviour, for the simulator, for tests and for targets that need not survive.
//!
//! A commit has two steps. [`begin_commit`](MemEngine::begin_commit) hands the group to the medium, as a write to a disk
//! does. From [`make_durable`](MemEngine::make_durable) on the group survives a crash and is visible to reads. A
//! [`crash`](MemEngine::crash) between the two keeps or loses whole groups at random, but never keeps a later one without an
//! earlier one. [`Engine::commit`] does both steps at once.
//!
//! A handle is cheap to clone, and all clones are the same store; [`snapshot`](MemEngine::snapshot) makes another store.

use crate::layer::SLOT_COST;
use crate::{Change, Engine, EngineError, Key, KeyRange, Scanned, Space, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stdx::Rng;

/// The most that a scan returns, in bytes.
const SCAN_BYTES_MAX: usize = 4 << 20;

const PLACE: &str = "mem:";

/// An ordered store in memory.
#[derive(Clone, Default)]
pub struct MemEngine {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
struct State {
    records: BTreeMap<Key, Value>,
    bytes: u64,
    last_group: u64,
    pending: VecDeque<(u64, Vec<Change>)>,
    capacity: Option<u64>,
    /// Bytes of the capacity that are reserved for removals; `None`: a twentieth.
    reserve: Option<u64>,
    next_commit_fails: Option<EngineError>,
}

impl MemEngine {
    /// An empty store without a limit.
    pub fn new() -> MemEngine {
        MemEngine::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a group to the medium. It is neither durable nor visible before [`make_durable`](MemEngine::make_durable).
    pub fn begin_commit(&self, group: u64, records: Vec<Change>) -> Result<(), EngineError> {
        let mut state = self.state();
        if let Some(error) = state.next_commit_fails.take() {
            return Err(error);
        }
        let newest = state.pending.back().map_or(state.last_group, |(group, _)| *group);
        if group <= newest {
            let what = format!("group {group} after group {newest}");
            return Err(EngineError::Io { place: PLACE.into(), what });
        }
        let more: u64 = records.iter().map(|(key, value)| value.as_ref().map_or(0, |value| size(key, value))).sum();
        if state.capacity.is_some_and(|capacity| state.bytes + more > capacity) {
            let what = format!("{} of {} bytes used", state.bytes, state.capacity.unwrap_or(0));
            return Err(EngineError::Full { place: PLACE.into(), what });
        }
        state.pending.push_back((group, records));
        Ok(())
    }

    /// Makes all groups up to `group` durable.
    pub fn make_durable(&self, group: u64) {
        let mut state = self.state();
        while state.pending.front().is_some_and(|(number, _)| *number <= group) {
            state.apply_next();
        }
    }

    /// Power failure: of the groups that were handed over but not made durable, a random number of the first ones are kept and
    /// the rest are lost.
    pub fn crash(&self, rng: &mut Rng) {
        let mut state = self.state();
        for _ in 0..rng.below(state.pending.len() as u64 + 1) {
            state.apply_next();
        }
        state.pending.clear();
    }

    /// A separate store with the same durable records.
    pub fn snapshot(&self) -> MemEngine {
        let mut state = self.state().clone();
        state.pending.clear();
        MemEngine { state: Arc::new(Mutex::new(state)) }
    }

    /// All durable records, sealed, in key order.
    pub fn records(&self) -> Vec<(Key, Value)> {
        self.state().records.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Limits the size of the store, in bytes; a commit beyond it fails.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Sets the bytes that are reserved for removals and promised changes.
    pub fn set_reserve(&self, bytes: u64) {
        self.state().reserve = Some(bytes);
    }

    /// Simulates other users of the disk, who leave this many bytes and the reserve; `None`: there are no others.
    pub fn set_available(&self, bytes: Option<u64>) {
        let mut state = self.state();
        let most = state.capacity.unwrap_or(u64::MAX);
        let taken = |free: u64| most.min(state.bytes + free + state.reserve.unwrap_or(0));
        state.capacity = bytes.map(taken);
    }

    /// Makes the next commit fail with this error.
    pub fn fail_next_commit(&self, error: EngineError) {
        self.state().next_commit_fails = Some(error);
    }

    /// Flips a bit in a stored record. Returns whether the record exists.
    pub fn damage(&self, key: &Key, rng: &mut Rng) -> bool {
        let mut state = self.state();
        let Some(value) = state.records.get_mut(key) else { return false };
        let mut bytes = value.to_vec();
        let bit = rng.below(bytes.len() as u64 * 8) as usize;
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        *value = bytes.into();
        true
    }

    /// Restores a record that [`damage`](MemEngine::damage) has changed, unless it was written since.
    pub fn repair(&self, key: &Key, damaged: &Value, good: Value) {
        if let Some(value) = self.state().records.get_mut(key).filter(|value| *value == damaged) {
            *value = good;
        }
    }
}

fn size(key: &Key, value: &Value) -> u64 {
    (key.len() + value.len() + SLOT_COST) as u64
}

impl State {
    fn apply_next(&mut self) {
        let Some((group, records)) = self.pending.pop_front() else { return };
        self.last_group = group;
        for (key, value) in records {
            let old = match value {
                Some(value) => {
                    self.bytes += size(&key, &value);
                    self.records.insert(key.clone(), value)
                }
                None => self.records.remove(&key),
            };
            if let Some(old) = old {
                self.bytes -= size(&key, &old);
            }
        }
    }
}

impl Engine for MemEngine {
    fn get(&self, key: &Key) -> Result<Option<Value>, EngineError> {
        Ok(self.state().records.get(key).cloned())
    }

    fn get_many(&self, keys: &[Key]) -> Vec<Result<Option<Value>, EngineError>> {
        let state = self.state();
        keys.iter().map(|key| Ok(state.records.get(key).cloned())).collect()
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Scanned, EngineError> {
        let mut scanned = Scanned { records: Vec::new(), complete: true };
        if range.is_empty() {
            return Ok(scanned);
        }
        let mut bytes = 0;
        for (key, value) in self.state().records.range::<Key, _>(&range.start..&range.end) {
            if scanned.records.len() >= limit || bytes >= SCAN_BYTES_MAX {
                scanned.complete = false;
                break;
            }
            bytes += key.len() + value.len();
            scanned.records.push((key.clone(), value.clone()));
        }
        Ok(scanned)
    }

    fn commit(&self, group: u64, records: &[Change]) -> Result<(), EngineError> {
        self.begin_commit(group, records.to_vec())?;
        self.make_durable(group);
        Ok(())
    }

    fn last_group(&self) -> Result<u64, EngineError> {
        Ok(self.state().last_group)
    }

    fn space(&self) -> Result<Space, EngineError> {
        let state = self.state();
        let total = state.capacity.unwrap_or(1 << 40);
        let left = total.saturating_sub(state.bytes);
        let reserve = state.reserve.unwrap_or(total / 20).min(left);
        Ok(Space { total, free: left - reserve, reserve, at_once: left, records: state.records.len() as u64, disk: 0 })
    }
}
