//! The data files of objects: the state in memory beside the records.
//!
//! A data file has a number, which the object's record names. The file is written before the record, so there are files
//! without a record: *unborn* ones, whose object's first change is in flight, and *doomed* ones, whose object was destroyed
//! or truncated to zero. Neither may survive a crash, and a doomed file must not be removed before the change that doomed it
//! is durable.
//!
//! # Why a crash leaks no file
//! The record [`OstState`] is written with every record that names a new file. It has the number below which files belong to
//! objects (`next_file`), and the lower numbers that had no object yet (`unborn`):
//!
//! ```text
//! durable state: next_file 9, unborn {5}     files on the medium: 1 2 3 4 5 6 7 8 9 10
//! after the crash: 5, 9 and 10 belong to no object: they are doomed, and numbers continue from 11
//! ```
//!
//! A doomed file has a [`schema::DoomedFile`] record from the group that took it from its object until it is removed.
//!
//! # Bytes past the end
//! The size in the record counts. A write that failed, or that a crash undid, may have left bytes past it, which would
//! reappear when the object grows over a gap. So the first change of such an object truncates them (it *settles* the object):
//! if the record was last changed by an earlier instance of the target, or a change failed in this one. While other changes
//! are in flight no change settles, because their bytes are past the end, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dlm::ExportId;
use proto::{Transno, Xid};
use schema::{Object, ObjectKey, OstState, Written};

/// Identifies a request that changes data, while it runs.
pub type OpId = (ExportId, Xid);

/// The most destroyed objects that are remembered.
const GONE_MAX: usize = 1 << 16;

/// A change of data in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The object.
    pub key: ObjectKey,
    /// Its data file.
    pub file: u64,
    /// Whether this change truncates bytes past the end first.
    pub settles: bool,
    /// The size of the object when the change began. Later changes may have written past it since, and their bytes must not be
    /// truncated.
    pub end: u64,
    /// Its place in the order of operations on data files; 0 before it has one.
    pub turn: u64,
}

/// The changes of an object that are in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    count: u32,
    /// The latest turn of the accepted changes.
    landed: u64,
}

/// The data files of a target.
#[derive(Debug, Default)]
pub struct Files {
    next: u64,
    /// See [`OstState::marked_from`].
    marked_from: u64,
    /// Allocated numbers that no record names and that may be on the medium.
    unrecorded: BTreeSet<u64>,
    /// Files of objects that have no record yet.
    unborn: BTreeMap<ObjectKey, u64>,
    flights: BTreeMap<OpId, Flight>,
    busy: BTreeMap<ObjectKey, Busy>,
    turns: u64,
    /// Objects with possible bytes past the end, from a failed change.
    unsettled: BTreeSet<ObjectKey>,
    doomed: VecDeque<(Transno, u64)>,
    gone: BTreeSet<ObjectKey>,
    gone_order: VecDeque<ObjectKey>,
}

impl Files {
    /// Initializes: file numbers continue from `next`, and objects are marked as written since instance `marked_from`.
    pub fn start(&mut self, next: u64, marked_from: u64) {
        self.next = next.max(1);
        self.marked_from = marked_from;
    }

    /// Whether a mark is valid: no version without marks has changed objects since it was written.
    pub fn is_current(&self, mark: &Written) -> bool {
        self.marked_from != 0 && mark.instance >= self.marked_from
    }

    /// The state record for a target with `objects` objects.
    pub fn state(&self, objects: u64) -> OstState {
        let unborn = self.unrecorded.iter().copied().collect();
        OstState { next_file: self.next, unborn, objects, marked_from: self.marked_from }
    }

    /// The flight of `op`, if it has begun one.
    pub fn flight(&self, op: OpId) -> Option<Flight> {
        self.flights.get(&op).copied()
    }

    /// Begins the flight of `op`, which changes the data of an object with the record `object`: finds or allocates its file.
    pub fn begin(&mut self, op: OpId, key: ObjectKey, object: Option<&Object>, instance: u64) -> Flight {
        if let Some(flight) = self.flights.get(&op) {
            return *flight;
        }
        let named = object.map_or(0, |o| o.file);
        let file = if named != 0 { named } else { *self.unborn.entry(key).or_insert(self.next) };
        if file == self.next {
            self.next += 1;
            self.unrecorded.insert(file);
        }
        let busy = self.busy.entry(key).or_default();
        let old = object.is_some_and(|o| o.instance != instance) || self.unsettled.contains(&key);
        let settles = named != 0 && busy.count == 0 && old;
        busy.count += 1;
        let flight = Flight { key, file, settles, end: object.map_or(0, |o| o.size), turn: 0 };
        self.flights.insert(op, flight);
        flight
    }

    /// The turn of `op`, which is assigned when its operation on the data file is first requested. Operations on one file are
    /// executed in this order.
    pub fn take_turn(&mut self, op: OpId) -> u64 {
        let Some(flight) = self.flights.get_mut(&op) else { return 0 };
        if flight.turn == 0 {
            self.turns += 1;
            flight.turn = self.turns;
        }
        flight.turn
    }

    /// Whether no accepted change had a later operation on the file: then the file's state is that after this flight.
    pub fn is_latest(&self, flight: &Flight) -> bool {
        self.busy.get(&flight.key).is_none_or(|busy| busy.landed <= flight.turn)
    }

    /// Whether no record names the file of a flight yet.
    pub fn is_unborn(&self, flight: &Flight) -> bool {
        self.unborn.get(&flight.key) == Some(&flight.file)
    }

    /// Ends the flight of `op`: the change is accepted, and the object's record names the file. The last step of an attempt.
    pub fn land(&mut self, op: OpId) {
        if let Some(flight) = self.end(op) {
            if let Some(busy) = self.busy.get_mut(&flight.key) {
                busy.landed = busy.landed.max(flight.turn);
            }
            if flight.settles {
                self.unsettled.remove(&flight.key);
            }
            if self.is_unborn(&flight) {
                self.unborn.remove(&flight.key);
            }
            self.unrecorded.remove(&flight.file);
        }
    }

    /// Aborts the flight of `op`, which may have written to the file.
    pub fn abort(&mut self, op: OpId) {
        let Some(flight) = self.end(op) else { return };
        if !self.is_unborn(&flight) {
            if !self.gone.contains(&flight.key) {
                self.unsettled.insert(flight.key);
            }
        } else if !self.busy.contains_key(&flight.key) {
            self.unborn.remove(&flight.key);
            self.doom(Transno(0), flight.file);
        }
    }

    /// Aborts all flights of an export.
    pub fn abort_all(&mut self, export: ExportId) {
        let range = (export, Xid(0))..=(export, Xid(u64::MAX));
        let ops: Vec<OpId> = self.flights.range(range).map(|(op, _)| *op).collect();
        ops.into_iter().for_each(|op| self.abort(op));
    }

    fn end(&mut self, op: OpId) -> Option<Flight> {
        let flight = self.flights.remove(&op)?;
        if let Some(busy) = self.busy.get_mut(&flight.key) {
            busy.count -= 1;
            if busy.count == 0 {
                self.busy.remove(&flight.key);
            }
        }
        Some(flight)
    }

    /// No object uses `file` from the change `transno` on (0: this is durable already). Calls are in the order of changes.
    pub fn doom(&mut self, transno: Transno, file: u64) {
        if transno == Transno(0) {
            self.doomed.push_front((transno, file))
        } else {
            self.doomed.push_back((transno, file))
        }
    }

    /// Takes up to `limit` doomed files that may be removed, because the change that doomed them is durable.
    pub fn take_doomed(&mut self, last_committed: Transno, limit: usize) -> Vec<u64> {
        let mut files = Vec::new();
        while files.len() < limit && self.has_doomed(last_committed) {
            files.extend(self.doomed.pop_front().map(|(_, file)| file));
        }
        files
    }

    /// Whether a doomed file may be removed.
    pub fn has_doomed(&self, last_committed: Transno) -> bool {
        self.doomed.front().is_some_and(|(transno, _)| *transno <= last_committed)
    }

    /// A doomed file was removed durably.
    pub fn removed(&mut self, file: u64) {
        self.unrecorded.remove(&file);
    }

    /// The object was destroyed: late writes must not make it again.
    pub fn destroyed(&mut self, key: ObjectKey) {
        self.unsettled.remove(&key);
        if self.gone.insert(key) {
            self.gone_order.push_back(key);
        }
        if self.gone_order.len() > GONE_MAX
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    /// Whether the object was destroyed.
    pub fn is_gone(&self, key: &ObjectKey) -> bool {
        self.gone.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{Fid, StripeIndex};

    const KEY: ObjectKey = ObjectKey { fid: Fid::new(Fid::SEQ_FIRST, 1), stripe: StripeIndex(0) };

    fn op(xid: u64) -> OpId {
        (ExportId(1), Xid(xid))
    }

    fn files() -> Files {
        let mut files = Files::default();
        files.start(1, 0);
        files
    }

    #[test]
    fn two_first_writes_share_one_file() {
        let mut files = files();
        let first = files.begin(op(1), KEY, None, 1);
        assert_eq!(files.begin(op(2), KEY, None, 1).file, first.file);
        assert_eq!(files.state(0).unborn, [1]);
        files.land(op(1));
        assert_eq!(files.state(1), OstState { next_file: 2, unborn: vec![], objects: 1, marked_from: 0 });
        files.abort(op(2));
        assert!(!files.has_doomed(Transno(9)), "the object lives");
        let object = Object { file: first.file, instance: 1, ..Object::default() };
        assert!(files.begin(op(3), KEY, Some(&object), 1).settles, "the failed one may have left bytes");
    }

    #[test]
    fn a_first_write_that_fails_leaves_a_doomed_file_that_is_known_until_it_is_gone() {
        let mut files = files();
        files.begin(op(1), KEY, None, 1);
        files.begin(op(2), KEY, None, 1);
        files.abort_all(ExportId(1));
        assert_eq!(files.take_doomed(Transno(0), 8), [1]);
        assert_eq!(files.state(0).unborn, [1]);
        files.removed(1);
        assert_eq!(files.state(0), OstState { next_file: 2, unborn: vec![], objects: 0, marked_from: 0 });
    }

    #[test]
    fn only_the_first_change_after_a_restart_settles() {
        let mut files = files();
        let object = Object { file: 7, instance: 1, ..Object::default() };
        assert!(files.begin(op(1), KEY, Some(&object), 2).settles);
        assert!(files.begin(op(1), KEY, Some(&object), 2).settles, "the same in each attempt");
        assert!(!files.begin(op(2), KEY, Some(&object), 2).settles);
        let grown = Object { size: 20, ..object };
        assert_eq!(files.begin(op(1), KEY, Some(&grown), 2).end, 0, "what came after it is not cut off");
    }

    #[test]
    fn the_space_is_that_after_the_last_operation() {
        let mut files = files();
        let object = Object { file: 7, instance: 1, ..Object::default() };
        let mut flight = |xid| {
            files.begin(op(xid), KEY, Some(&object), 1);
            let turn = files.take_turn(op(xid));
            assert_eq!(files.take_turn(op(xid)), turn, "the same in each attempt");
            files.flight(op(xid)).unwrap()
        };
        let (first, second, third) = (flight(1), flight(2), flight(3));
        files.land(op(2));
        assert!(!files.is_latest(&first), "what it left was changed since");
        assert!(files.is_latest(&second) && files.is_latest(&third));
        files.land(op(1));
        assert!(!files.is_latest(&first));
    }

    #[test]
    fn a_doomed_file_waits_for_its_change() {
        let mut files = files();
        files.doom(Transno(4), 40);
        files.doom(Transno(5), 50);
        assert!(!files.has_doomed(Transno(3)));
        assert_eq!(files.take_doomed(Transno(4), 8), [40]);
        assert_eq!(files.take_doomed(Transno(5), 8), [50]);
    }
}
