//! Slots of modifying requests: the limit of requests in flight, and the tag of each.
//!
//! A request holds its tag until it is answered, across resends and reconnects. The tag is the lowest free one, so that
//! few reply records are in use. A close may exceed the limit if no other close is in flight, and so may a recalled
//! request: each has a reserved slot. At a server that keeps two replies only, both share one.
//!
//! What servers ask of each other has no tags, because no replies are kept: the slots only limit it.

use std::collections::VecDeque;

use proto::Tag;
use proto::connect::TAG_MAX;

use crate::Slot;

const WORDS: usize = TAG_MAX as usize / 64;

/// The slots of an import.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Limit of requests in flight, without the reserved slots for a close and a recalled request.
    limit: u16,
    /// Highest tag that the server keeps a reply for.
    tag_max: u16,
    /// Requests in flight, of all classes.
    taken: u16,
    closes: u16,
    recalled: u16,
    /// Somebody waits for buffered requests.
    pressed: bool,
    /// Requests have tags.
    tagged: bool,
    tags: [u64; WORDS],
    /// Number of requests sent, by the number then in flight including the new one.
    histogram: Vec<u64>,
    /// Since when, by the wall clock; 0: since the start.
    histogram_since_ns: i64,
}

impl Slots {
    pub(crate) fn new(tagged: bool) -> Slots {
        Slots {
            limit: 1,
            tag_max: 2,
            taken: 0,
            closes: 0,
            recalled: 0,
            pressed: false,
            tagged,
            tags: [0; WORDS],
            histogram: Vec::new(),
            histogram_since_ns: 0,
        }
    }

    /// The limit of requests in flight, without the reserved slots.
    pub(crate) fn limit(&self) -> u16 {
        self.limit
    }

    /// Sets the limit, for a server that keeps a reply for tags up to `tag_max`. Requests in flight are not affected.
    pub(crate) fn set_limit(&mut self, limit: u16, tag_max: u16) {
        self.tag_max = tag_max.clamp(2, TAG_MAX);
        self.limit = limit.clamp(1, self.tag_max - 1);
    }

    /// Sets whether buffered requests may take the slot of recalled ones, see [`Slot::Buffered`].
    pub(crate) fn press(&mut self, pressed: bool) {
        self.pressed = pressed;
    }

    /// The class as which a request of class `slot` is sent now.
    pub(crate) fn kind(&self, slot: Slot) -> Slot {
        match (slot, self.pressed) {
            (Slot::Buffered, true) => Slot::Recalled,
            (Slot::Buffered, false) => Slot::Modify,
            _ => slot,
        }
    }

    /// Number of requests in flight.
    pub(crate) fn taken(&self) -> u16 {
        self.taken
    }

    /// Whether a request of this class can be sent now.
    pub(crate) fn has_free(&self, slot: Slot) -> bool {
        let has_own = match self.kind(slot) {
            Slot::None => return true,
            Slot::Close => self.closes == 0,
            Slot::Recalled => self.recalled == 0,
            Slot::Modify | Slot::Buffered => false,
        };
        self.taken < self.limit || has_own && self.taken < self.tag_max
    }

    /// Takes a slot for a request that can be sent, and returns its tag; 0: it has none. It is released with the same
    /// class.
    pub(crate) fn take(&mut self, slot: Slot) -> Tag {
        if slot == Slot::None {
            return Tag(0);
        }
        self.taken += 1;
        match slot {
            Slot::Close => self.closes += 1,
            Slot::Recalled => self.recalled += 1,
            _ => {}
        }
        let at = usize::from(self.taken);
        if self.histogram.len() <= at {
            self.histogram.resize(at + 1, 0);
        }
        self.histogram[at] += 1;
        if !self.tagged {
            return Tag(0);
        }
        let word = self.tags.iter().position(|word| *word != u64::MAX).unwrap_or(0);
        let bit = self.tags[word].trailing_ones();
        self.tags[word] |= 1u64.checked_shl(bit).unwrap_or(0);
        Tag(u16::try_from(word * 64).unwrap_or(0) + u16::try_from(bit).unwrap_or(0) + 1)
    }

    /// Frees the slot of a request that was answered or given up.
    pub(crate) fn release(&mut self, slot: Slot, tag: Tag) {
        if slot == Slot::None {
            return;
        }
        if let Some(at) = usize::from(tag.0).checked_sub(1)
            && let Some(word) = self.tags.get_mut(at / 64)
        {
            *word &= !(1 << (at % 64));
        }
        self.taken -= 1;
        match slot {
            Slot::Close => self.closes -= 1,
            Slot::Recalled => self.recalled -= 1,
            _ => {}
        }
    }

    /// Frees all slots, because all requests were given up.
    pub(crate) fn release_all(&mut self) {
        (self.taken, self.closes, self.recalled, self.tags) = (0, 0, 0, [0; WORDS]);
    }

    /// Bitmap of busy slots for a request's header, see [`proto::Header::slot_is_busy`].
    pub(crate) fn busy(&self) -> [u64; 4] {
        [self.tags[0], self.tags[1], self.tags[2], self.tags[3]]
    }

    /// Number of requests sent, by the number then in flight, and since when by the wall clock.
    pub(crate) fn histogram(&self) -> (&[u64], i64) {
        (&self.histogram, self.histogram_since_ns)
    }

    pub(crate) fn clear_histogram(&mut self, wall_ns: i64) {
        self.histogram.clear();
        self.histogram_since_ns = wall_ns;
    }
}

/// Position in the queue: turn, then order of arrival.
type Place = (u64, u64);

/// Requests that wait for a slot, ordered by turn and then by arrival. One overtakes another only if its class has a
/// free slot and the other's has none.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    next: u64,
    queues: [(Slot, VecDeque<(Place, T)>); 4],
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> Waiting<T> {
        let kinds = [Slot::Modify, Slot::Buffered, Slot::Close, Slot::Recalled];
        Waiting { next: 0, queues: kinds.map(|slot| (slot, VecDeque::new())) }
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.len()).sum()
    }

    /// Appends a request after those of the same and of earlier turns, see [`Outgoing::turn`](super::Outgoing::turn).
    pub(crate) fn push(&mut self, slot: Slot, turn: u64, what: T) {
        self.next += 1;
        let place = (turn, self.next);
        let queue = self.queues.iter_mut().find(|(kind, _)| *kind == slot);
        if let Some((_, queue)) = queue {
            let at = queue.partition_point(|(other, _)| *other < place);
            queue.insert(at, (place, what));
        }
    }

    /// Removes the first request whose class has a free slot.
    pub(crate) fn pop(&mut self, slots: &Slots) -> Option<T> {
        let may_go = self.queues.iter_mut().filter(|(slot, queue)| !queue.is_empty() && slots.has_free(*slot));
        let (_, queue) = may_go.min_by_key(|(_, queue)| queue.front().map(|(at, _)| *at))?;
        queue.pop_front().map(|(_, what)| what)
    }

    /// Removes the first request that `wanted` accepts.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        for (_, queue) in &mut self.queues {
            if let Some(at) = queue.iter().position(|(_, what)| wanted(what)) {
                return queue.remove(at).map(|(_, what)| what);
            }
        }
        None
    }

    /// Removes all requests, in order.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut all: Vec<(Place, T)> = self.queues.iter_mut().flat_map(|(_, queue)| queue.drain(..)).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, what)| what).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;

    #[test]
    fn all_slots_are_used_and_two_more() {
        for limit in 1..TAG_MAX - 1 {
            let mut slots = Slots::new(true);
            slots.set_limit(limit, TAG_MAX);
            let mut tags: Vec<Tag> = Vec::new();
            while slots.has_free(Slot::Modify) {
                assert!(slots.has_free(Slot::Buffered));
                tags.push(slots.take(Slot::Modify));
            }
            assert_eq!(tags, (1..=limit).map(Tag).collect::<Vec<_>>());
            assert!(slots.has_free(Slot::Close) && slots.has_free(Slot::Recalled) && !slots.has_free(Slot::Buffered));
            assert_eq!(slots.take(Slot::Close), Tag(limit + 1));
            assert!(!slots.has_free(Slot::Close) && slots.has_free(Slot::Recalled), "a close takes nothing from it");
            slots.press(true);
            assert!(slots.has_free(Slot::Buffered));
            let kind = slots.kind(Slot::Buffered);
            assert_eq!(slots.take(kind), Tag(limit + 2));
            assert!(
                [Slot::Modify, Slot::Buffered, Slot::Close, Slot::Recalled].iter().all(|slot| !slots.has_free(*slot))
            );
            assert_eq!(slots.histogram().0[usize::from(limit) + 2], 1);
            slots.release(Slot::Modify, Tag(1));
            assert!(!slots.has_free(Slot::Modify), "the close has its place now");
            slots.press(false);
            slots.release(Slot::Close, Tag(limit + 1));
            slots.release(kind, Tag(limit + 2));
            assert!(slots.has_free(Slot::Modify) && slots.has_free(Slot::Buffered));
            assert_eq!(slots.take(Slot::Close), Tag(1));
        }
    }

    #[test]
    fn a_server_that_keeps_two_answers_gets_two_requests() {
        for first in [Slot::Close, Slot::Recalled] {
            let mut slots = Slots::new(true);
            slots.set_limit(8, 2);
            assert_eq!((slots.limit(), slots.take(Slot::Modify)), (1, Tag(1)));
            assert!(slots.has_free(Slot::Close) && slots.has_free(Slot::Recalled) && !slots.has_free(Slot::Modify));
            assert_eq!(slots.take(first), Tag(2));
            assert!(!slots.has_free(Slot::Close) && !slots.has_free(Slot::Recalled));
        }
    }

    #[test]
    fn a_limit_that_falls_lets_those_in_flight_end() {
        let mut slots = Slots::new(true);
        slots.set_limit(1000, TAG_MAX);
        assert_eq!(slots.limit(), TAG_MAX - 1);
        let tags: Vec<Tag> = (0..70).map(|_| slots.take(Slot::Modify)).collect();
        slots.set_limit(2, TAG_MAX);
        assert_eq!(slots.busy(), [u64::MAX, 0b11_1111, 0, 0]);
        for tag in tags {
            assert!(!slots.has_free(Slot::Modify) || slots.taken() < 2);
            slots.release(Slot::Modify, tag);
        }
        assert_eq!((slots.taken(), slots.busy()), (0, [0; 4]));
    }

    #[test]
    fn who_comes_again_has_its_old_turn() {
        let (mut slots, mut waiting) = (Slots::new(true), Waiting::new());
        for (turn, who) in [(1, "a"), (2, "b"), (3, "c")] {
            waiting.push(Slot::Modify, turn, who);
        }
        assert_eq!(waiting.pop(&slots), Some("a"));
        let tag = slots.take(Slot::Modify);
        waiting.push(Slot::Modify, 1, "a again");
        waiting.push(Slot::Buffered, 2, "b, behind");
        waiting.push(Slot::Buffered, 1, "a, behind");
        assert_eq!(waiting.pop(&slots), None);
        slots.release(Slot::Modify, tag);
        let mut order = Vec::new();
        while let Some(who) = waiting.pop(&slots) {
            order.push(who);
        }
        assert_eq!(order, ["a again", "a, behind", "b", "b, behind", "c"]);
        waiting.push(Slot::Modify, 9, "late");
        waiting.push(Slot::Close, 8, "early");
        assert_eq!(waiting.drain(), ["early", "late"]);
    }

    #[test]
    fn whatever_happens_no_tag_is_held_twice_and_order_is_kept() {
        let kinds = [Slot::Modify, Slot::Buffered, Slot::Close, Slot::Recalled];
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut slots, mut waiting) = (Slots::new(true), Waiting::new());
            slots.set_limit(rng.range(1, 40) as u16, TAG_MAX);
            let mut held: Vec<(Slot, Tag)> = Vec::new();
            let (mut n, mut last) = (0u64, [0u64; 4]);
            for _ in 0..600 {
                if rng.chance(1, 2) {
                    n += 1;
                    let slot = if rng.chance(1, 2) { Slot::Modify } else { *rng.pick(&kinds).unwrap() };
                    waiting.push(slot, n, (n, slot));
                } else if !held.is_empty() {
                    let (slot, tag) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    slots.release(slot, tag);
                }
                if rng.chance(1, 8) {
                    let pressed = rng.chance(1, 2);
                    slots.press(pressed);
                }
                while let Some((at, slot)) = waiting.pop(&slots) {
                    let lane = kinds.iter().position(|kind| *kind == slot).unwrap();
                    assert!(at > last[lane], "each kind in its order");
                    last[lane] = at;
                    let kind = slots.kind(slot);
                    let tag = slots.take(kind);
                    assert!(held.iter().all(|(_, other)| *other != tag));
                    assert!(tag.0 <= slots.limit() + 2);
                    held.push((kind, tag));
                }
                // No waiting request could be sent.
                let count = |of: Slot| held.iter().filter(|(slot, _)| *slot == of).count();
                let waits = |of: Slot| waiting.queues.iter().any(|(slot, queue)| *slot == of && !queue.is_empty());
                assert!(held.len() >= usize::from(slots.limit()) || waiting.len() == 0);
                assert!(count(Slot::Close) > 0 || !waits(Slot::Close));
                let recalled = waits(Slot::Recalled) || slots.pressed && waits(Slot::Buffered);
                assert!(count(Slot::Recalled) > 0 || !recalled);
                assert!(count(Slot::Modify) <= usize::from(slots.limit()), "changes have no more than their slots");
            }
        }
    }
}
