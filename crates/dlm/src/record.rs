//! The record locks of one file: POSIX ranges that split and merge, or `flock(2)` locks over the whole file.
//!
//! Locks of one owner never conflict: a new one replaces what the owner had in its range (so a read lock can become a
//! write lock and back), neighbours in the same mode become one, and an unlock may leave a range on either side.
//!
//! ```text
//!   owner 7 has        W[0..99]
//!   reads  [40..59] -> W[0..39] R[40..59] W[60..99]
//!   unlocks [20..49]-> W[0..19]           R[50..59] W[60..99]
//!   writes [50..59] -> W[0..19]           W[50..99]
//! ```

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use proto::msg::LockMode;

use crate::spans::{Span, Spans};

/// One locked range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record<O> {
    pub(crate) owner: O,
    pub(crate) start: u64,
    /// Last byte.
    pub(crate) end: u64,
    pub(crate) write: bool,
    pub(crate) pid: u32,
}

impl<O> Record<O> {
    pub(crate) fn mode(&self) -> LockMode {
        if self.write { LockMode::Pw } else { LockMode::Pr }
    }
}

/// All locked ranges. Ranges of one owner do not overlap, and adjacent ones differ in mode.
pub(crate) struct RecordSet<O> {
    /// By owner and start.
    records: BTreeMap<(O, u64), Rest>,
    /// The same ranges, indexed for conflicts.
    spans: Spans<O>,
}

/// A range without its owner and start.
#[derive(Clone, Copy)]
struct Rest {
    end: u64,
    write: bool,
    pid: u32,
}

impl<O> Default for RecordSet<O> {
    fn default() -> Self {
        RecordSet { records: BTreeMap::new(), spans: Spans::default() }
    }
}

impl<O: Copy + Ord> RecordSet<O> {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    fn found((&(owner, start), rest): (&(O, u64), &Rest)) -> Record<O> {
        stdx::steps::add(1);
        Record { owner, start, end: rest.end, write: rest.write, pid: rest.pid }
    }

    /// All ranges, by owner and start.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Record<O>> {
        self.records.iter().map(Self::found)
    }

    /// The ranges of `owner`, ascending.
    pub(crate) fn of(&self, owner: O) -> impl Iterator<Item = Record<O>> {
        self.records.range((owner, 0)..=(owner, u64::MAX)).map(Self::found)
    }

    /// The ranges of `owner` that overlap `start..=end`, last first.
    pub(crate) fn of_in(&self, owner: O, start: u64, end: u64) -> impl Iterator<Item = Record<O>> {
        let before = self.records.range((owner, 0)..=(owner, end)).rev().map(Self::found);
        before.take_while(move |r| start <= r.end)
    }

    /// Ranges of other owners that conflict with a lock of `owner` on `start..=end`, by start.
    pub(crate) fn conflicts(&self, owner: O, start: u64, end: u64, write: bool) -> impl Iterator<Item = Record<O>> {
        self.spans.conflicts(owner, start, end, write).filter_map(|span| {
            let key = (span.owner, span.start);
            self.records.get(&key).map(|rest| Self::found((&key, rest)))
        })
    }

    /// Sets the mode of `owner` in `start..=end`, or unlocks the range with `None`. Ranges of other owners are not
    /// affected and not checked. Returns by how many ranges the set grew.
    pub(crate) fn set(&mut self, owner: O, start: u64, end: u64, write: Option<bool>, pid: u32) -> isize {
        let new = write.map(|write| Record { owner, start, end, write, pid });
        self.replace(owner, start, end, new.into_iter())
    }

    /// Gives `owner` a read lock on `start..=end` and keeps its write locks there. Returns by how many ranges the set
    /// grew.
    pub(crate) fn set_at_least_read(&mut self, owner: O, start: u64, end: u64, pid: u32) -> isize {
        let mut writes: Vec<Record<O>> = self.of_in(owner, start, end).filter(|r| r.write).collect();
        writes.reverse();
        let mut new = Vec::new();
        // The first byte that no piece covers; none after the last possible byte.
        let mut next = Some(start);
        for r in writes {
            let (from, to) = (r.start.max(start), r.end.min(end));
            if let Some(start) = next.filter(|next| *next < from) {
                new.push(Record { owner, start, end: from - 1, write: false, pid });
            }
            new.push(Record { start: from, end: to, ..r });
            next = to.checked_add(1);
        }
        if let Some(start) = next.filter(|next| *next <= end) {
            new.push(Record { owner, start, end, write: false, pid });
        }
        self.replace(owner, start, end, new.into_iter())
    }

    /// Replaces what `owner` has in `start..=end` by `new`, which is ascending. Only looks at ranges that touch this
    /// one.
    fn replace(&mut self, owner: O, start: u64, end: u64, new: impl Iterator<Item = Record<O>>) -> isize {
        let mut old: Vec<Record<O>> = self.of_in(owner, start.saturating_sub(1), end.saturating_add(1)).collect();
        old.reverse();
        let left = old.iter().filter(|r| r.start < start).map(|r| Record { end: r.end.min(start - 1), ..*r });
        let right = old.iter().filter(|r| r.end > end).map(|r| Record { start: r.start.max(end + 1), ..*r });
        let pieces = left.map(|r| (r, false)).chain(new.map(|r| (r, true))).chain(right.map(|r| (r, false)));
        let mut merged: Vec<Record<O>> = Vec::with_capacity(old.len() + 2);
        for (r, is_new) in pieces {
            match merged.last_mut() {
                // One of the two is new: the merged range gets its process.
                Some(m) if m.write == r.write && m.end.checked_add(1) == Some(r.start) => {
                    m.end = r.end;
                    if is_new {
                        m.pid = r.pid;
                    }
                }
                _ => merged.push(r),
            }
        }
        let grown = merged.len() as isize - old.len() as isize;
        old.iter().for_each(|r| self.remove(r));
        merged.iter().for_each(|r| self.insert(r));
        grown
    }

    fn insert(&mut self, r: &Record<O>) {
        self.records.insert((r.owner, r.start), Rest { end: r.end, write: r.write, pid: r.pid });
        self.spans.insert(Span { start: r.start, end: r.end, owner: r.owner, id: 0, exclusive: r.write });
    }

    fn remove(&mut self, r: &Record<O>) {
        self.records.remove(&(r.owner, r.start));
        self.spans.remove(r.start, r.owner, 0);
    }

    /// Drops every range of these owners. Returns how many there were.
    pub(crate) fn drop_owners(&mut self, gone: RangeInclusive<O>) -> usize {
        let gone: Vec<Record<O>> =
            self.records.range((*gone.start(), 0)..=(*gone.end(), u64::MAX)).map(Self::found).collect();
        gone.iter().for_each(|r| self.remove(r));
        gone.len()
    }
}

#[cfg(test)]
mod tests {
    use stdx::Rng;

    use super::*;

    #[test]
    fn ranges_split_and_merge() {
        let mut set = RecordSet::default();
        assert_eq!(set.set(7, 0, 99, Some(true), 1), 1);
        assert_eq!(set.set(7, 40, 59, Some(false), 1), 2);
        assert_eq!(set.set(7, 20, 49, None, 1), 0);
        assert_eq!(set.set(7, 50, 59, Some(true), 1), -1);
        let ranges: Vec<_> = set.iter().map(|r| (r.start, r.end, r.write)).collect();
        assert_eq!(ranges, [(0, 19, true), (50, 99, true)]);
        assert_eq!(set.set(7, 0, u64::MAX, None, 1), -2);
        assert!(set.is_empty());
    }

    #[test]
    fn a_lock_to_read_can_leave_those_to_write() {
        let mut set = RecordSet::default();
        set.set(7, 20, 39, Some(true), 1);
        set.set(7, 60, 99, Some(true), 1);
        assert_eq!(set.set_at_least_read(7, 10, 69, 1), 2);
        let ranges: Vec<_> = set.iter().map(|r| (r.start, r.end, r.write)).collect();
        assert_eq!(ranges, [(10, 19, false), (20, 39, true), (40, 59, false), (60, 99, true)]);
    }

    /// One request over very many ranges, of one owner among others, visits each range once. Separate requests for each
    /// range would take thousands of millions of steps.
    #[test]
    fn a_lock_to_read_over_very_many_to_write_is_one_pass() {
        const RANGES: u64 = 50_000;
        let mut set = RecordSet::default();
        for owner in [6, 7, 8] {
            for n in 0..RANGES {
                assert_eq!(set.set(owner, 4 * n, 4 * n + 1, Some(true), 1), 1);
            }
        }
        assert_eq!(set.set_at_least_read(7, 0, u64::MAX, 2), RANGES as isize);
        assert_eq!(set.of(7).count() as u64, 2 * RANGES);
        assert!(set.of(7).enumerate().all(|(at, r)| r.write == at.is_multiple_of(2) && r.pid == 1 + (at % 2) as u32));
        assert_eq!(set.set(7, 0, u64::MAX, None, 1), -2 * RANGES as isize);
        assert_eq!((set.of(6).count(), set.of(7).count()), (RANGES as usize, 0));
    }

    /// Every byte of a short file, owner by owner: 0 free, 1 read, 2 write.
    #[test]
    fn a_set_is_an_array_of_bytes() {
        const BYTES: u64 = 24;
        const OWNERS: u64 = 4;
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut set = RecordSet::default();
            let mut model = [[0u8; BYTES as usize]; OWNERS as usize];
            let mut len = 0isize;
            for step in 0..500 {
                let owner = rng.below(OWNERS);
                let a = rng.below(BYTES);
                let b = rng.below(BYTES);
                let (start, end) = (a.min(b), a.max(b));
                let write = [None, Some(false), Some(true)][rng.below(3) as usize];
                let keep = write == Some(false) && rng.chance(1, 2);
                let blocked = write.is_some_and(|w| set.conflicts(owner, start, end, w).next().is_some());
                let expect_blocked = write.is_some_and(|w| {
                    (0..OWNERS).filter(|&o| o != owner).any(|o| {
                        (start..=end).any(|i| {
                            let m = model[o as usize][i as usize];
                            m == 2 || (m == 1 && w)
                        })
                    })
                });
                assert_eq!(blocked, expect_blocked, "seed {seed} step {step}");
                if blocked {
                    continue;
                }
                len += match keep {
                    true => set.set_at_least_read(owner, start, end, step),
                    false => set.set(owner, start, end, write, step),
                };
                let value = write.map_or(0, |w| 1 + u8::from(w));
                for i in start..=end {
                    let byte = &mut model[owner as usize][i as usize];
                    *byte = if keep { value.max(*byte) } else { value };
                }
                assert_eq!(set.len() as isize, len);
                let mut seen = [[0u8; BYTES as usize]; OWNERS as usize];
                for r in set.iter() {
                    for i in r.start..=r.end {
                        assert_eq!(seen[r.owner as usize][i as usize], 0, "ranges of an owner are disjoint");
                        seen[r.owner as usize][i as usize] = 1 + u8::from(r.write);
                    }
                }
                assert_eq!(seen, model, "seed {seed} step {step}");
                for o in 0..OWNERS {
                    for pair in set.of(o).collect::<Vec<_>>().windows(2) {
                        assert!(pair[0].end + 1 < pair[1].start || pair[0].write != pair[1].write, "not merged");
                    }
                }
            }
        }
    }

    #[test]
    fn the_end_of_the_file_is_no_overflow() {
        let mut set = RecordSet::default();
        set.set(1, 10, u64::MAX, Some(true), 1);
        set.set(1, 0, 9, Some(true), 2);
        assert_eq!(set.len(), 1);
        set.set(1, u64::MAX, u64::MAX, None, 2);
        assert_eq!(set.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>(), [(0, u64::MAX - 1)]);
        assert_eq!(set.conflicts(2, u64::MAX, u64::MAX, true).count(), 0);
        assert_eq!(set.conflicts(2, 3, 3, false).count(), 1);
    }
}
