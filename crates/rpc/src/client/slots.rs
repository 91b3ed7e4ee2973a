//! Slots of modifying requests: how many may be in flight, and which tag each has.
//!
//! A request holds its tag until its answer has come, through resends and reconnects. The tag is the lowest free one, so
//! that few reply records are in use. A request of kind [`Slot::Close`] may go although all slots are taken, if no other of
//! its kind is in flight: a change may wait on the server for what that close gives back.

use std::collections::VecDeque;

use proto::Tag;
use proto::connect::TAG_MAX;

use crate::Slot;

const WORDS: usize = TAG_MAX as usize / 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots {
    /// How many are for all; one more is for a close.
    limit: u16,
    /// In flight, closes included.
    taken: u16,
    closes: u16,
    tags: [u64; WORDS],
    /// How often so many were in flight when one more was sent, that one included.
    histogram: Vec<u64>,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots { limit: 1, taken: 0, closes: 0, tags: [0; WORDS], histogram: Vec::new() }
    }

    /// How many may be in flight, the extra close not counted.
    pub(crate) fn limit(&self) -> u16 {
        self.limit
    }

    /// From now on. Those that are in flight stay.
    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.limit = limit.clamp(1, TAG_MAX - 1);
    }

    /// In flight.
    pub(crate) fn taken(&self) -> u16 {
        self.taken
    }

    /// Whether a request may be sent now.
    pub(crate) fn has_free(&self, slot: Slot) -> bool {
        match slot {
            Slot::None => true,
            Slot::Modify => self.taken < self.limit,
            Slot::Close => self.taken < self.limit || self.closes == 0,
        }
    }

    /// The tag for a request that may be sent.
    pub(crate) fn take(&mut self, slot: Slot) -> Tag {
        if slot == Slot::None {
            return Tag(0);
        }
        self.taken += 1;
        if slot == Slot::Close {
            self.closes += 1;
        }
        let at = usize::from(self.taken);
        if self.histogram.len() <= at {
            self.histogram.resize(at + 1, 0);
        }
        self.histogram[at] += 1;
        let word = self.tags.iter().position(|word| *word != u64::MAX).unwrap_or(0);
        let bit = self.tags[word].trailing_ones();
        self.tags[word] |= 1u64.checked_shl(bit).unwrap_or(0);
        Tag(u16::try_from(word * 64).unwrap_or(0) + u16::try_from(bit).unwrap_or(0) + 1)
    }

    /// The request of this tag has its answer, or was given up.
    pub(crate) fn release(&mut self, slot: Slot, tag: Tag) {
        if slot == Slot::None || tag.0 == 0 {
            return;
        }
        let at = usize::from(tag.0 - 1);
        if let Some(word) = self.tags.get_mut(at / 64) {
            *word &= !(1 << (at % 64));
        }
        self.taken = self.taken.saturating_sub(1);
        if slot == Slot::Close {
            self.closes = self.closes.saturating_sub(1);
        }
    }

    /// All requests were given up.
    pub(crate) fn release_all(&mut self) {
        (self.taken, self.closes, self.tags) = (0, 0, [0; WORDS]);
    }

    /// Which slots are busy, as a request's header says it.
    pub(crate) fn busy(&self) -> [u64; 4] {
        [self.tags[0], self.tags[1], self.tags[2], self.tags[3]]
    }

    /// See the field.
    pub(crate) fn histogram(&self) -> &[u64] {
        &self.histogram
    }

    pub(crate) fn clear_histogram(&mut self) {
        self.histogram.clear();
    }
}

/// Requests that wait for a slot, in the order in which they came; a close overtakes changes only if it alone may go.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    next: u64,
    changes: VecDeque<(u64, T)>,
    closes: VecDeque<(u64, T)>,
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> Waiting<T> {
        Waiting { next: 0, changes: VecDeque::new(), closes: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.changes.len() + self.closes.len()
    }

    /// At the end of the queue.
    pub(crate) fn push(&mut self, slot: Slot, what: T) {
        self.next += 1;
        let queue = if slot == Slot::Close { &mut self.closes } else { &mut self.changes };
        queue.push_back((self.next, what));
    }

    /// The first that may go.
    pub(crate) fn pop(&mut self, slots: &Slots) -> Option<T> {
        let change = self.changes.front().map(|(at, _)| *at).filter(|_| slots.has_free(Slot::Modify));
        let close = self.closes.front().map(|(at, _)| *at).filter(|_| slots.has_free(Slot::Close));
        let queue = match (change, close) {
            (None, None) => return None,
            (Some(_), None) => &mut self.changes,
            (Some(change), Some(close)) if change < close => &mut self.changes,
            _ => &mut self.closes,
        };
        queue.pop_front().map(|(_, what)| what)
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        for queue in [&mut self.changes, &mut self.closes] {
            if let Some(at) = queue.iter().position(|(_, what)| wanted(what)) {
                return queue.remove(at).map(|(_, what)| what);
            }
        }
        None
    }

    /// Takes all out, in order.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut all: Vec<(u64, T)> = self.changes.drain(..).chain(self.closes.drain(..)).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, what)| what).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;

    #[test]
    fn all_slots_are_used_and_one_close_more() {
        for limit in 1..TAG_MAX {
            let mut slots = Slots::new();
            slots.set_limit(limit);
            let mut tags: Vec<Tag> = Vec::new();
            while slots.has_free(Slot::Modify) {
                tags.push(slots.take(Slot::Modify));
            }
            assert_eq!(tags, (1..=limit).map(Tag).collect::<Vec<_>>());
            assert!(slots.has_free(Slot::Close));
            assert_eq!(slots.take(Slot::Close), Tag(limit + 1));
            assert!(!slots.has_free(Slot::Close) && !slots.has_free(Slot::Modify));
            assert_eq!(slots.histogram()[usize::from(limit) + 1], 1);
            slots.release(Slot::Modify, Tag(1));
            assert!(!slots.has_free(Slot::Modify), "the close has its place now");
            slots.release(Slot::Close, Tag(limit + 1));
            assert!(slots.has_free(Slot::Modify));
            assert_eq!(slots.take(Slot::Close), Tag(1));
        }
    }

    #[test]
    fn a_limit_that_falls_lets_those_in_flight_end() {
        let mut slots = Slots::new();
        slots.set_limit(1000);
        assert_eq!(slots.limit(), TAG_MAX - 1);
        let tags: Vec<Tag> = (0..70).map(|_| slots.take(Slot::Modify)).collect();
        slots.set_limit(2);
        assert_eq!(slots.busy(), [u64::MAX, 0b11_1111, 0, 0]);
        for tag in tags {
            assert!(!slots.has_free(Slot::Modify) || slots.taken() < 2);
            slots.release(Slot::Modify, tag);
        }
        assert_eq!((slots.taken(), slots.busy()), (0, [0; 4]));
    }

    #[test]
    fn whatever_happens_no_tag_is_held_twice_and_order_is_kept() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut slots, mut waiting) = (Slots::new(), Waiting::new());
            slots.set_limit(rng.range(1, 40) as u16);
            let mut held: Vec<(Slot, Tag)> = Vec::new();
            let (mut n, mut last) = (0u64, [0u64; 2]);
            for _ in 0..600 {
                if rng.chance(1, 2) {
                    n += 1;
                    let slot = if rng.chance(1, 4) { Slot::Close } else { Slot::Modify };
                    waiting.push(slot, (n, slot));
                } else if !held.is_empty() {
                    let (slot, tag) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    slots.release(slot, tag);
                }
                while let Some((at, slot)) = waiting.pop(&slots) {
                    let lane = usize::from(slot == Slot::Close);
                    assert!(at > last[lane], "each kind in its order");
                    last[lane] = at;
                    let tag = slots.take(slot);
                    assert!(held.iter().all(|(_, other)| *other != tag));
                    assert!(tag.0 <= slots.limit() + 1);
                    held.push((slot, tag));
                }
                // Nothing waits that could go.
                let closes = held.iter().filter(|(slot, _)| *slot == Slot::Close).count();
                assert!(held.len() >= usize::from(slots.limit()) || waiting.len() == 0);
                assert!(closes > 0 || waiting.closes.is_empty());
            }
        }
    }
}
