//! Cached bytes of one object: an interval map of segments, each clean, dirty or on its way to the target.
//!
//! Offsets are the object's. Segments never overlap. Bulk data is not copied: a write keeps the caller's buffer, a
//! fetch keeps the reply's, a read gives slices. Only small writes that follow each other are gathered in a buffer of
//! their own, and a request made of several segments is joined into one buffer, which replaces them.
//!
//! It leaves to others: which locks cover the bytes, how much memory there is (it counts, [`Pages::counts`]), and when
//! to write.
//!
//! Invariants:
//! - A byte that is on its way (`writing`) and is overwritten becomes dirty, and is not sent again before the first
//!   request was answered: two requests for one byte are never in flight together.
//! - What is clean equals what the target has, as long as the lock is held.

use bytes::{Bytes, BytesMut};
use core::ops::Range;
use std::collections::BTreeMap;

/// Writes up to this length may be copied next to their neighbours.
const SMALL: u64 = 16 << 10;
/// A gathered segment does not grow beyond this.
const GATHER_MAX: u64 = 1 << 20;

/// Bytes by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Same as at the target; may be dropped.
    pub clean: u64,
    /// To be written.
    pub dirty: u64,
    /// Being written.
    pub writing: u64,
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
    /// Of clean segments: which entry of the eviction clock drops it.
    mark: u64,
    /// Read since the clock came by.
    used: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    map: BTreeMap<u64, Segment>,
    /// Requests in flight.
    writing: Vec<(u64, Range<u64>)>,
    counts: Counts,
}

/// What the eviction clock found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// Nothing of the entry is left: forget it.
    Gone,
    /// It was used: keep the entry for another round.
    Used,
    /// So many bytes were dropped.
    Dropped(u64),
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Pages {
    /// Bytes by state.
    pub fn counts(&self) -> Counts {
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
            self.map.insert(start, segment);
        }
    }

    fn take_out(&mut self, start: u64) -> Option<Segment> {
        let segment = self.map.remove(&start)?;
        *self.slot(segment.state) -= segment.data.len();
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

    /// Start and end of every segment that touches `range`, clipped.
    fn covered<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64, &'a Segment)> + use<'a> {
        let range = range.clone();
        let first = self.map.range(..=range.start).next_back().map_or(range.start, |(s, _)| *s);
        self.map.range(first..range.end.max(first)).filter_map(move |(s, segment)| {
            let end = (s + segment.data.len()).min(range.end);
            let start = (*s).max(range.start);
            (start < end).then_some((start..end, *s, segment))
        })
    }

    /// Forgets everything in `range`, dirty bytes too. Requests in flight stay in flight.
    pub fn cut(&mut self, range: &Range<u64>) {
        if range.is_empty() || self.map.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, _)) = self.map.range(range.clone()).next() {
            self.take_out(start);
        }
    }

    /// Forgets the clean bytes in `range`.
    pub fn cut_clean(&mut self, range: &Range<u64>) {
        if self.counts.clean == 0 {
            return;
        }
        let clean: Vec<Range<u64>> =
            self.covered(range).filter(|(_, _, s)| s.state == State::Clean).map(|(r, _, _)| r).collect();
        for part in clean {
            self.cut(&part);
        }
    }

    /// Forgets the dirty bytes that are in no request.
    pub fn cut_dirty(&mut self) {
        let dirty: Vec<u64> =
            self.map.iter().filter(|(_, s)| s.state == State::Dirty).map(|(start, _)| *start).collect();
        for start in dirty {
            self.take_out(start);
        }
    }

    /// A program wrote `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: Bytes) {
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

    /// Bytes came from the target: they fill what is not cached. `mark` is their entry in the eviction clock.
    pub fn fill(&mut self, offset: u64, data: &Bytes, mark: u64) {
        let range = offset..offset + data.len() as u64;
        for gap in self.missing(&range) {
            let part = data.slice((gap.start - offset) as usize..(gap.end - offset) as usize);
            self.put(gap.start, Segment { data: Payload::Shared(part), state: State::Clean, mark, used: false });
        }
    }

    /// The parts of `range` that are not cached.
    pub fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
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
    pub fn read(&mut self, range: &Range<u64>, mut give: impl FnMut(u64, Bytes)) {
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
    /// With `full_only`, only runs that reach such a multiple from the one before.
    pub fn take(&mut self, range: &Range<u64>, max: u64, full_only: bool, id: u64) -> Option<(u64, Bytes)> {
        if self.counts.dirty == 0 {
            return None;
        }
        let run = self.next_run(range, max, full_only)?;
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
        self.writing.push((id, run.clone()));
        Some((run.start, data))
    }

    fn next_run(&self, range: &Range<u64>, max: u64, full_only: bool) -> Option<Range<u64>> {
        let mut run: Option<Range<u64>> = None;
        let full = |run: &Range<u64>| !full_only || run.end - run.start == max;
        for (part, _, segment) in self.covered(range) {
            if segment.state != State::Dirty {
                if run.as_ref().is_some_and(full) {
                    break;
                }
                run = None;
                continue;
            }
            for part in self.free_parts(part, max) {
                match &mut run {
                    Some(run) if run.end == part.start && part.start % max != 0 => run.end = part.end,
                    Some(found) if full(found) => return run,
                    _ => run = Some(part),
                }
            }
        }
        run.filter(full)
    }

    /// `part` without what is in flight, cut at multiples of `max`.
    fn free_parts(&self, part: Range<u64>, max: u64) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = part.start;
        while at < part.end {
            if let Some((_, busy)) = self.writing.iter().find(|(_, busy)| busy.contains(&at)) {
                at = busy.end;
                continue;
            }
            let mut end = part.end.min((at / max + 1) * max);
            for (_, busy) in &self.writing {
                if busy.start > at {
                    end = end.min(busy.start);
                }
            }
            parts.push(at..end);
            at = end;
        }
        parts
    }

    /// Request `id` was answered: its bytes are clean, with `mark` as their entry in the eviction clock. Gives its range.
    pub fn written(&mut self, id: u64, mark: u64) -> Option<Range<u64>> {
        self.finish(id, |segment| {
            segment.state = State::Clean;
            segment.mark = mark;
            true
        })
    }

    /// Request `id` failed and is to be tried again: its bytes are dirty. Gives its range.
    pub fn again(&mut self, id: u64) -> Option<Range<u64>> {
        self.finish(id, |segment| {
            segment.state = State::Dirty;
            true
        })
    }

    /// Forgets the dirty bytes in `range` that are in no request. Gives their number.
    pub fn give_up(&mut self, range: &Range<u64>) -> u64 {
        let dirty: Vec<Range<u64>> =
            self.covered(range).filter(|(_, _, s)| s.state == State::Dirty).map(|(part, _, _)| part).collect();
        for part in &dirty {
            self.cut(part);
        }
        dirty.iter().map(|part| part.end - part.start).sum()
    }

    /// Request `id` failed for good: its bytes are lost. Gives its range.
    pub fn lost(&mut self, id: u64) -> Option<Range<u64>> {
        self.finish(id, |_| false)
    }

    fn finish(&mut self, id: u64, mut keep: impl FnMut(&mut Segment) -> bool) -> Option<Range<u64>> {
        let index = self.writing.iter().position(|(i, _)| *i == id)?;
        let (_, range) = self.writing.swap_remove(index);
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
    pub fn unwritten_in(&self, range: &Range<u64>) -> bool {
        self.writing_in(range) || self.dirty_in(range)
    }

    /// Whether any byte of `range` is dirty.
    pub fn dirty_in(&self, range: &Range<u64>) -> bool {
        self.counts.dirty > 0 && self.covered(range).any(|(_, _, s)| s.state == State::Dirty)
    }

    /// Whether a request in flight touches `range`.
    pub fn writing_in(&self, range: &Range<u64>) -> bool {
        self.writing.iter().any(|(_, busy)| overlap(busy, range))
    }

    /// A request that is not made of cached bytes changes `range`: no cached byte of it is sent before [`Pages::end`].
    pub fn begin(&mut self, id: u64, range: Range<u64>) {
        self.writing.push((id, range));
    }

    /// It was answered.
    pub fn end(&mut self, id: u64) {
        self.writing.retain(|(i, _)| *i != id);
    }

    /// The lowest number of a request in flight.
    pub fn oldest_in_flight(&self) -> Option<u64> {
        self.writing.iter().map(|(id, _)| *id).min()
    }

    /// Whether the eviction clock's entry `mark` of `range` stands for anything.
    pub fn has_mark(&self, range: &Range<u64>, mark: u64) -> bool {
        self.covered(range).any(|(_, _, s)| s.state == State::Clean && s.mark == mark)
    }

    /// End of the last byte that is dirty or in flight; 0 if there is none.
    pub fn unwritten_end(&self) -> u64 {
        let dirty = if self.counts.dirty == 0 {
            0
        } else {
            let last = self.map.iter().rev().find(|(_, s)| s.state == State::Dirty);
            last.map_or(0, |(start, s)| start + s.data.len())
        };
        self.writing.iter().map(|(_, r)| r.end).fold(dirty, u64::max)
    }

    /// The eviction clock comes by the entry `mark` of `range`.
    pub fn evict(&mut self, range: &Range<u64>, mark: u64) -> Evicted {
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
