//! Pages: the cached bytes of one object, as an interval map of segments, each clean, dirty or being written.
//!
//! Offsets are the object's. Segments never overlap. Bulk data is not copied: a write keeps the caller's buffer, a
//! fetch keeps the reply's, a read returns slices. Only small writes that follow each other are gathered in a buffer of
//! their own, and a request made of several segments is joined into one buffer, which replaces them.
//!
//! It leaves to others: which locks cover the bytes, how much memory there is (it only counts, [`Pages::counts`]), and
//! when to write.
//!
//! Invariants:
//! - A byte that is being written and is overwritten becomes dirty, and is not sent again before the first request is
//!   answered: two requests for one byte are never in flight together.
//! - Clean bytes equal those of the target while the lock is held.
//! - [`Unwritten`] knows the dirty segments and the ranges in flight, which never overlap: both are found without a
//!   search through the rest, however many segments there are.

use bytes::{Bytes, BytesMut};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Writes up to this length may be copied into a segment of their neighbours.
const SMALL: u64 = 16 << 10;
/// A gathered segment does not grow beyond this.
const GATHER_MAX: u64 = 1 << 20;

/// Bytes by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Equal to the target's; may be dropped.
    pub(crate) clean: u64,
    /// To be written.
    pub(crate) dirty: u64,
    /// Being written.
    pub(crate) writing: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Clean,
    Dirty,
    Writing(u64),
}

#[derive(Clone, Debug)]
enum Payload {
    Shared(Bytes),
    Own(Vec<u8>),
}

impl Payload {
    fn len(&self) -> u64 {
        match self {
            Payload::Shared(b) => b.len() as u64,
            Payload::Own(v) => v.len() as u64,
        }
    }

    fn slice(&self, range: Range<u64>) -> Bytes {
        let range = range.start as usize..range.end as usize;
        match self {
            Payload::Shared(b) => b.slice(range),
            Payload::Own(v) => Bytes::copy_from_slice(&v[range]),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Payload::Shared(b) => b,
            Payload::Own(v) => Bytes::from(v),
        }
    }
}

#[derive(Clone, Debug)]
struct Segment {
    data: Payload,
    state: State,
    /// For clean segments: the entry of the eviction clock that drops it.
    mark: u64,
    /// Read since the clock last passed it.
    used: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    map: BTreeMap<u64, Segment>,
    /// `None` for most objects, whose target has everything.
    unwritten: Option<Box<Unwritten>>,
    counts: Counts,
    /// Segments that were looked at, for tests of costs.
    #[cfg(test)]
    pub looked_at: core::cell::Cell<u64>,
}

/// What the target does not have.
#[derive(Clone, Debug, Default)]
struct Unwritten {
    /// Starts of dirty segments.
    dirty: BTreeSet<u64>,
    /// Requests in flight, by number.
    writing: BTreeMap<u64, Range<u64>>,
    /// The same by first byte: the end, and the number.
    busy: BTreeMap<u64, (u64, u64)>,
    /// Those that do not consist of cached bytes, each with the size of the object after it if it extends the object.
    changes: BTreeMap<u64, u64>,
}

/// The result of an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evicted {
    /// Nothing of the entry is left: forget it.
    Gone,
    /// It was used: keep the entry for another round.
    Used,
    /// This many bytes were dropped.
    Dropped(u64),
}

impl Pages {
    /// Bytes by state.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn slot(&mut self, state: State) -> &mut u64 {
        match state {
            State::Clean => &mut self.counts.clean,
            State::Dirty => &mut self.counts.dirty,
            State::Writing(_) => &mut self.counts.writing,
        }
    }

    fn put(&mut self, start: u64, segment: Segment) {
        let length = segment.data.len();
        if length > 0 {
            *self.slot(segment.state) += length;
            if segment.state == State::Dirty {
                self.unwritten.get_or_insert_default().dirty.insert(start);
            }
            self.map.insert(start, segment);
        }
    }

    fn take_out(&mut self, start: u64) -> Option<Segment> {
        let segment = self.map.remove(&start)?;
        *self.slot(segment.state) -= segment.data.len();
        if segment.state == State::Dirty {
            self.settled(|unwritten| unwritten.dirty.remove(&start));
        }
        Some(segment)
    }

    /// Makes sure that no segment lies across `at`.
    fn split(&mut self, at: u64) {
        let Some((&start, segment)) = self.map.range(..at).next_back() else { return };
        if start + segment.data.len() <= at {
            return;
        }
        let Some(segment) = self.take_out(start) else { return };
        let (state, mark, used) = (segment.state, segment.mark, segment.used);
        let mut left = segment.data.into_bytes();
        let mut right = left.split_off((at - start) as usize);
        // A remnant must not keep a large buffer alive.
        for part in [&mut left, &mut right] {
            if part.len() <= 512 {
                *part = Bytes::copy_from_slice(part);
            }
        }
        self.put(start, Segment { data: Payload::Shared(left), state, mark, used });
        self.put(at, Segment { data: Payload::Shared(right), state, mark, used });
    }

    /// Every segment that touches `range`: its range clipped to that, its start, and the segment.
    fn covered<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64, &'a Segment)> + use<'a> {
        let range = range.clone();
        let first = self.map.range(..=range.start).next_back().map_or(range.start, |(s, _)| *s);
        self.map.range(first..range.end.max(first)).filter_map(move |(s, segment)| {
            self.look();
            let end = (s + segment.data.len()).min(range.end);
            let start = (*s).max(range.start);
            (start < end).then_some((start..end, *s, segment))
        })
    }

    /// Something is no longer dirty or in flight.
    fn settled<R>(&mut self, change: impl FnOnce(&mut Unwritten) -> R) -> Option<R> {
        let unwritten = self.unwritten.as_deref_mut()?;
        let result = change(unwritten);
        if unwritten.dirty.is_empty() && unwritten.writing.is_empty() {
            self.unwritten = None;
        }
        Some(result)
    }

    /// The dirty parts of `range`, in order.
    fn dirty_parts(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let range = range.clone();
        self.unwritten.iter().flat_map(move |unwritten| {
            let range = range.clone();
            let first = unwritten.dirty.range(..=range.start).next_back().map_or(range.start, |start| *start);
            unwritten.dirty.range(first..range.end.max(first)).filter_map(move |start| {
                self.look();
                let end = start + self.map.get(start)?.data.len();
                let part = (*start).max(range.start)..end.min(range.end);
                (!part.is_empty()).then_some(part)
            })
        })
    }

    /// The request in flight that contains the byte at `at`, or the next one after it.
    fn busy_from(&self, at: u64) -> Option<Range<u64>> {
        let busy = &self.unwritten.as_ref()?.busy;
        let before = busy.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
        before.or_else(|| busy.range(at..).next()).map(|(start, (end, _))| *start..*end)
    }

    #[cfg(test)]
    fn look(&self) {
        self.looked_at.set(self.looked_at.get() + 1);
    }

    #[cfg(not(test))]
    fn look(&self) {}

    /// Drops everything in `range`, including dirty bytes. Requests in flight stay in flight.
    pub(crate) fn cut(&mut self, range: &Range<u64>) {
        if range.is_empty() || self.map.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, _)) = self.map.range(range.clone()).next() {
            self.take_out(start);
        }
    }

    /// Drops the clean bytes in `range`.
    pub(crate) fn cut_clean(&mut self, range: &Range<u64>) {
        if self.counts.clean == 0 {
            return;
        }
        let clean: Vec<Range<u64>> =
            self.covered(range).filter(|(_, _, s)| s.state == State::Clean).map(|(r, _, _)| r).collect();
        for part in clean {
            self.cut(&part);
        }
    }

    /// Drops the dirty bytes that are in no request.
    pub(crate) fn cut_dirty(&mut self) {
        let dirty = self.unwritten.as_ref().map(|unwritten| unwritten.dirty.clone());
        for start in dirty.unwrap_or_default() {
            self.take_out(start);
        }
    }

    /// A program wrote `data` at `offset`.
    pub(crate) fn write(&mut self, offset: u64, data: Bytes) {
        let end = offset + data.len() as u64;
        if data.is_empty() {
            return;
        }
        if data.len() as u64 <= SMALL && self.gather(offset, &data) {
            return;
        }
        self.cut(&(offset..end));
        self.put(offset, Segment { data: Payload::Shared(data), state: State::Dirty, mark: 0, used: true });
    }

    /// Copies a small write into the dirty segment that it touches or follows.
    fn gather(&mut self, offset: u64, data: &Bytes) -> bool {
        let Some((&start, segment)) = self.map.range(..=offset).next_back() else { return false };
        let end = offset + data.len() as u64;
        let old = segment.data.len();
        let fits = match &segment.data {
            Payload::Own(_) => end <= start + GATHER_MAX,
            Payload::Shared(_) => old <= SMALL,
        };
        if segment.state != State::Dirty || offset > start + old || !fits {
            return false;
        }
        if end > start + old {
            self.cut(&(start + old..end));
        }
        let Some(mut segment) = self.take_out(start) else { return false };
        let mut own = match segment.data {
            Payload::Own(own) => own,
            Payload::Shared(bytes) => {
                let mut own = Vec::with_capacity((bytes.len() + data.len()).next_power_of_two());
                own.extend_from_slice(&bytes);
                own
            }
        };
        let at = (offset - start) as usize;
        let inside = (own.len() - at).min(data.len());
        own[at..at + inside].copy_from_slice(&data[..inside]);
        own.extend_from_slice(&data[inside..]);
        segment.data = Payload::Own(own);
        self.put(start, segment);
        true
    }

    /// Bytes arrived from the target: they fill what is not cached. `mark` is their entry in the eviction clock.
    pub(crate) fn fill(&mut self, offset: u64, data: &Bytes, mark: u64) {
        let range = offset..offset + data.len() as u64;
        for gap in self.missing(&range) {
            let part = data.slice((gap.start - offset) as usize..(gap.end - offset) as usize);
            self.put(gap.start, Segment { data: Payload::Shared(part), state: State::Clean, mark, used: false });
        }
    }

    /// The parts of `range` that are not cached.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (part, _, _) in self.covered(range) {
            if part.start > at {
                gaps.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// The cached bytes of `range`, in order, as (offset, bytes); gaps are left out.
    pub(crate) fn read(&mut self, range: &Range<u64>, mut give: impl FnMut(u64, Bytes)) {
        let mut clean: Vec<u64> = Vec::new();
        for (part, start, segment) in self.covered(range) {
            if segment.state == State::Clean && !segment.used {
                clean.push(start);
            }
            give(part.start, segment.data.slice(part.start - start..part.end - start));
        }
        for start in clean {
            if let Some(segment) = self.map.get_mut(&start) {
                segment.used = true;
            }
        }
    }

    /// Takes the next run of dirty bytes in `range` for a request: at most `max` bytes, not across a multiple of `max`.
    /// With `full_only`, only the run from the multiple at which `range` starts to the next one.
    pub(crate) fn take(&mut self, range: &Range<u64>, max: u64, full_only: bool, id: u64) -> Option<(u64, Bytes)> {
        if self.counts.dirty == 0 {
            return None;
        }
        let run = if full_only { self.full_run(range.start, max)? } else { self.next_run(range, max)? };
        self.split(run.start);
        self.split(run.end);
        let starts: Vec<u64> = self.map.range(run.clone()).map(|(s, _)| *s).collect();
        let mut parts: Vec<Bytes> =
            starts.iter().filter_map(|s| self.take_out(*s)).map(|s| s.data.into_bytes()).collect();
        let data = if parts.len() == 1 {
            parts.swap_remove(0)
        } else {
            let mut joined = BytesMut::with_capacity((run.end - run.start) as usize);
            parts.iter().for_each(|p| joined.extend_from_slice(p));
            joined.freeze()
        };
        let segment = Segment { data: Payload::Shared(data.clone()), state: State::Writing(id), mark: 0, used: true };
        self.put(run.start, segment);
        self.sent(id, run.clone());
        Some((run.start, data))
    }

    /// The first consecutive dirty bytes that are in no request.
    fn next_run(&self, range: &Range<u64>, max: u64) -> Option<Range<u64>> {
        let mut run: Option<Range<u64>> = None;
        for part in self.dirty_parts(range) {
            let mut at = run.as_ref().map_or(part.start, |run| run.end);
            if run.is_some() && at != part.start {
                break;
            }
            while run.is_none() && at < part.end {
                match self.busy_from(at) {
                    Some(busy) if busy.start <= at => at = busy.end,
                    _ => run = Some(at..at),
                }
            }
            let Some(run) = &mut run else { continue };
            let limit =
                (run.start / max + 1).saturating_mul(max).min(self.busy_from(at).map_or(u64::MAX, |busy| busy.start));
            run.end = part.end.min(limit);
            if run.end == limit {
                break;
            }
        }
        run
    }

    /// The `max` bytes from `start` on, if all of them are dirty and in no request.
    fn full_run(&self, start: u64, max: u64) -> Option<Range<u64>> {
        let run = start..start.checked_add(max)?;
        let mut at = run.start;
        for part in self.dirty_parts(&run) {
            if part.start != at {
                return None;
            }
            at = part.end;
        }
        (at == run.end && !self.writing_in(&run)).then_some(run)
    }

    /// Request `id` was answered: its bytes are clean, with `mark` as their entry in the eviction clock. Returns its
    /// range.
    pub(crate) fn written(&mut self, id: u64, mark: u64) -> Option<Range<u64>> {
        self.finish(id, |segment| {
            segment.state = State::Clean;
            segment.mark = mark;
            true
        })
    }

    /// Request `id` failed and will be retried: its bytes are dirty. Returns its range.
    pub(crate) fn retry(&mut self, id: u64) -> Option<Range<u64>> {
        self.finish(id, |segment| {
            segment.state = State::Dirty;
            true
        })
    }

    /// Drops the dirty bytes in `range` that are in no request. Returns where they were, in order.
    pub(crate) fn give_up(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let dirty: Vec<Range<u64>> = self.dirty_parts(range).collect();
        for part in &dirty {
            self.cut(part);
        }
        dirty
    }

    /// The ranges that are dirty or in a request in flight, in order.
    pub(crate) fn unwritten_parts(&self) -> Vec<Range<u64>> {
        let unwritten = |segment: &Segment| matches!(segment.state, State::Dirty | State::Writing(_));
        let parts = self.covered(&(0..u64::MAX)).filter(|(.., segment)| unwritten(segment));
        parts.map(|(part, ..)| part).collect()
    }

    /// End of the last byte that is buffered and not known to be written; 0 if there is none.
    pub(crate) fn buffered_end(&self) -> u64 {
        self.unwritten_parts().last().map_or(0, |part| part.end)
    }

    /// Request `id` failed for good: its bytes are lost. Returns where they were, in order, without what was cut or
    /// overwritten meanwhile.
    pub(crate) fn lost(&mut self, id: u64) -> Vec<Range<u64>> {
        let range = self.busy_of(id).unwrap_or(0..0);
        let of_it = |segment: &Segment| segment.state == State::Writing(id);
        let parts = self.covered(&range).filter(|(.., segment)| of_it(segment)).map(|(part, ..)| part).collect();
        self.finish(id, |_| false);
        parts
    }

    fn busy_of(&self, id: u64) -> Option<Range<u64>> {
        self.unwritten.as_ref()?.writing.get(&id).cloned()
    }

    fn finish(&mut self, id: u64, mut keep: impl FnMut(&mut Segment) -> bool) -> Option<Range<u64>> {
        let range = self.end(id)?;
        let starts: Vec<u64> =
            self.covered(&range).filter(|(_, _, s)| s.state == State::Writing(id)).map(|(_, start, _)| start).collect();
        for start in starts {
            if let Some(mut segment) = self.take_out(start)
                && keep(&mut segment)
            {
                self.put(start, segment);
            }
        }
        Some(range)
    }

    /// Whether any byte of `range` is dirty or part of a request in flight.
    pub(crate) fn unwritten_in(&self, range: &Range<u64>) -> bool {
        self.writing_in(range) || self.dirty_in(range)
    }

    /// Whether any byte of `range` is dirty.
    pub(crate) fn dirty_in(&self, range: &Range<u64>) -> bool {
        self.dirty_parts(range).next().is_some()
    }

    /// Whether a request in flight touches `range`.
    pub(crate) fn writing_in(&self, range: &Range<u64>) -> bool {
        self.busy_from(range.start).is_some_and(|busy| busy.start < range.end && !range.is_empty())
    }

    /// Starts a request that changes `range` without cached bytes: no cached byte of the range is sent before
    /// [`Pages::end`]. Once it is done the object has at least size `reach`; 0 if it does not extend the object.
    pub(crate) fn begin(&mut self, id: u64, range: Range<u64>, reach: u64) {
        self.sent(id, range);
        self.unwritten.get_or_insert_default().changes.insert(id, reach);
    }

    /// The size after the truncation that is in flight, if there is one.
    pub(crate) fn cut_in_flight(&self) -> Option<u64> {
        let unwritten = self.unwritten.as_ref()?;
        let (start, (end, id)) = unwritten.busy.last_key_value()?;
        // Nothing else reaches so far.
        (*end == u64::MAX && unwritten.changes.contains_key(id)).then_some(*start)
    }

    /// Whether such a request is in flight.
    pub(crate) fn is_changing(&self) -> bool {
        self.unwritten.as_ref().is_some_and(|unwritten| !unwritten.changes.is_empty())
    }

    /// The size that the object may have at its target already because of such requests; 0 if none of them extends it.
    pub(crate) fn changes_reach(&self) -> u64 {
        self.unwritten.as_ref().and_then(|unwritten| unwritten.changes.values().max().copied()).unwrap_or(0)
    }

    fn sent(&mut self, id: u64, range: Range<u64>) {
        debug_assert!(!self.writing_in(&range), "{range:?} is in two requests");
        let unwritten = self.unwritten.get_or_insert_default();
        unwritten.busy.insert(range.start, (range.end, id));
        unwritten.writing.insert(id, range);
    }

    /// A request was answered. Returns its range.
    pub(crate) fn end(&mut self, id: u64) -> Option<Range<u64>> {
        self.settled(|unwritten| {
            let range = unwritten.writing.remove(&id)?;
            unwritten.busy.remove(&range.start);
            unwritten.changes.remove(&id);
            Some(range)
        })?
    }

    /// The lowest number of a request in flight.
    pub(crate) fn oldest_in_flight(&self) -> Option<u64> {
        self.unwritten.as_ref()?.writing.first_key_value().map(|(id, _)| *id)
    }

    /// Whether the eviction clock's entry `mark` of `range` still has segments.
    pub(crate) fn has_mark(&self, range: &Range<u64>, mark: u64) -> bool {
        self.covered(range).any(|(_, _, s)| s.state == State::Clean && s.mark == mark)
    }

    /// End of the last cached byte that is dirty or in flight; 0 if there is none. Requests without cached bytes do not
    /// count: a truncation, a hole, or zeros beyond the end do not move it, and a write does so when it is answered.
    pub(crate) fn unwritten_end(&self) -> u64 {
        let Some(unwritten) = &self.unwritten else { return 0 };
        let last = unwritten.dirty.last().and_then(|start| Some(start + self.map.get(start)?.data.len()));
        let mut cached = unwritten.busy.values().rev().filter(|(_, id)| !unwritten.changes.contains_key(id));
        last.max(cached.next().map(|(end, _)| *end)).unwrap_or(0)
    }

    /// The eviction clock passes the entry `mark` of `range`.
    pub(crate) fn evict(&mut self, range: &Range<u64>, mark: u64) -> Evicted {
        let mut found: Vec<(u64, bool)> = Vec::new();
        for (_, start, segment) in self.covered(range) {
            if segment.state == State::Clean && segment.mark == mark {
                found.push((start, segment.used));
            }
        }
        if found.is_empty() {
            return Evicted::Gone;
        }
        if found.iter().any(|(_, used)| *used) {
            for (start, _) in found {
                if let Some(segment) = self.map.get_mut(&start) {
                    segment.used = false;
                }
            }
            return Evicted::Used;
        }
        let dropped = found.into_iter().filter_map(|(s, _)| self.take_out(s)).map(|s| s.data.len()).sum();
        Evicted::Dropped(dropped)
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
