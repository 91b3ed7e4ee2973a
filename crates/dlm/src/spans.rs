//! An index of ranges of many owners, which finds conflicting ranges without scanning the others.
//!
//! A search tree by start, balanced by random priorities (a treap: Seidel and Aragon, *Randomized search trees*, 1996).
//! Each node knows the range in its subtree that reaches farthest, and the farthest of another owner, among all ranges
//! and among the exclusive ones. So a search skips every subtree without conflicts, and finding the first conflict
//! costs one path through the tree.

use core::cmp::Ordering;
use core::hash::BuildHasher;
use stdx::Slab;

/// No index.
const NIL: u32 = u32::MAX;

/// One range. Two of one owner differ in `start` or `id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span<O> {
    pub(crate) start: u64,
    /// Last byte.
    pub(crate) end: u64,
    pub(crate) owner: O,
    pub(crate) id: u32,
    /// Conflicts with all ranges of other owners; otherwise only with exclusive ones.
    pub(crate) exclusive: bool,
}

impl<O: Copy + Ord> Span<O> {
    fn key(&self) -> (u64, O, u32) {
        (self.start, self.owner, self.id)
    }
}

/// The node of a subtree that reaches farthest, and the farthest one of another owner.
#[derive(Clone, Copy)]
struct Reach {
    first: u32,
    other: u32,
}

const NOTHING: Reach = Reach { first: NIL, other: NIL };

struct Node<O> {
    span: Span<O>,
    priority: u32,
    left: u32,
    right: u32,
    all: Reach,
    exclusive: Reach,
}

/// The index of ranges.
pub(crate) struct Spans<O> {
    nodes: Slab<Node<O>>,
    root: u32,
    /// Number of nodes ever created, from which priorities are derived.
    made: u64,
}

impl<O> Default for Spans<O> {
    fn default() -> Self {
        Spans { nodes: Slab::default(), root: NIL, made: 0 }
    }
}

/// Parameters of a search.
#[derive(Clone, Copy)]
struct Wanted<O> {
    owner: O,
    start: u64,
    end: u64,
    exclusive: bool,
    /// Only ranges after this key.
    after: Option<(u64, O, u32)>,
}

impl<O: Copy + Ord> Spans<O> {
    /// Memory of a range, in bytes.
    #[cfg(test)]
    pub(crate) const NODE_BYTES: usize = size_of::<Option<Node<O>>>();

    pub(crate) fn insert(&mut self, span: Span<O>) {
        self.made += 1;
        let priority = stdx::KeyedHash::default().hash_one(self.made) as u32;
        let node = Node { span, priority, left: NIL, right: NIL, all: NOTHING, exclusive: NOTHING };
        let i = self.nodes.insert(node);
        self.update(i);
        self.root = self.put(self.root, i);
    }

    /// Inserts a node into a subtree. Returns the new root of the subtree.
    fn put(&mut self, at: u32, i: u32) -> u32 {
        if at == NIL {
            return i;
        }
        if self.nodes[i].priority > self.nodes[at].priority {
            let key = self.nodes[i].span.key();
            (self.nodes[i].left, self.nodes[i].right) = self.split(at, key);
            self.update(i);
            return i;
        }
        if self.nodes[i].span.key() < self.nodes[at].span.key() {
            self.nodes[at].left = self.put(self.nodes[at].left, i);
        } else {
            self.nodes[at].right = self.put(self.nodes[at].right, i);
        }
        self.update(at);
        at
    }

    /// Splits a subtree into the nodes before a key and the rest.
    fn split(&mut self, at: u32, key: (u64, O, u32)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.nodes[at].span.key() < key {
            let (left, right) = self.split(self.nodes[at].right, key);
            self.nodes[at].right = left;
            self.update(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.nodes[at].left, key);
            self.nodes[at].left = right;
            self.update(at);
            (left, at)
        }
    }

    pub(crate) fn remove(&mut self, start: u64, owner: O, id: u32) {
        self.root = self.take(self.root, (start, owner, id));
    }

    fn take(&mut self, at: u32, key: (u64, O, u32)) -> u32 {
        if at == NIL {
            return NIL;
        }
        let (left, right) = (self.nodes[at].left, self.nodes[at].right);
        match key.cmp(&self.nodes[at].span.key()) {
            Ordering::Equal => {
                self.nodes.remove(at);
                return self.join(left, right);
            }
            Ordering::Less => self.nodes[at].left = self.take(left, key),
            Ordering::Greater => self.nodes[at].right = self.take(right, key),
        }
        self.update(at);
        at
    }

    /// Joins two trees; all nodes of the first precede those of the second.
    fn join(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        let top = if self.nodes[left].priority > self.nodes[right].priority {
            self.nodes[left].right = self.join(self.nodes[left].right, right);
            left
        } else {
            self.nodes[right].left = self.join(left, self.nodes[right].left);
            right
        };
        self.update(top);
        top
    }

    /// Recomputes a node after a change of its children.
    fn update(&mut self, i: u32) {
        let Node { left, right, span, .. } = self.nodes[i];
        let (mut all, mut exclusive) = (NOTHING, NOTHING);
        for child in [left, right] {
            if child != NIL {
                let (of_all, of_exclusive) = (self.nodes[child].all, self.nodes[child].exclusive);
                all = self.farther(all, of_all.first);
                all = self.farther(all, of_all.other);
                exclusive = self.farther(exclusive, of_exclusive.first);
                exclusive = self.farther(exclusive, of_exclusive.other);
            }
        }
        all = self.farther(all, i);
        if span.exclusive {
            exclusive = self.farther(exclusive, i);
        }
        self.nodes[i].all = all;
        self.nodes[i].exclusive = exclusive;
    }

    fn farther(&self, reach: Reach, i: u32) -> Reach {
        if i == NIL {
            return reach;
        }
        if reach.first == NIL {
            return Reach { first: i, other: NIL };
        }
        let end = |i: u32| self.nodes[i].span.end;
        let farthest = end(i) > end(reach.first);
        if self.nodes[i].span.owner == self.nodes[reach.first].span.owner {
            return if farthest { Reach { first: i, ..reach } } else { reach };
        }
        match () {
            () if farthest => Reach { first: i, other: reach.first },
            () if reach.other == NIL || end(i) > end(reach.other) => Reach { other: i, ..reach },
            () => reach,
        }
    }

    /// Conflicting ranges of other owners that overlap `start..=end`, by start.
    pub(crate) fn conflicts(&self, owner: O, start: u64, end: u64, exclusive: bool) -> impl Iterator<Item = &Span<O>> {
        let mut wanted = Wanted { owner, start, end, exclusive, after: None };
        core::iter::from_fn(move || {
            let found = self.first(self.root, &wanted);
            let span = (found != NIL).then(|| &self.nodes[found].span);
            wanted.after = span.map(Span::key).or(wanted.after);
            span
        })
    }

    /// The last byte of other owners' ranges that start before `start`; of all ranges, or of exclusive ones only.
    pub(crate) fn reach_before(&self, owner: O, start: u64, all: bool) -> Option<u64> {
        let mut reach = None;
        let mut at = self.root;
        while at != NIL {
            stdx::steps::add(1);
            let node = &self.nodes[at];
            if node.span.start >= start {
                at = node.left;
                continue;
            }
            if node.span.owner != owner && (all || node.span.exclusive) {
                reach = reach.max(Some(node.span.end));
            }
            if node.left != NIL {
                reach = reach.max(self.farthest(node.left, owner, all));
            }
            at = node.right;
        }
        reach
    }

    /// The last byte of other owners' ranges in a subtree.
    fn farthest(&self, at: u32, owner: O, all: bool) -> Option<u64> {
        let node = &self.nodes[at];
        let reach = if all { node.all } else { node.exclusive };
        let of_others = |i: &u32| *i != NIL && self.nodes[*i].span.owner != owner;
        [reach.first, reach.other].into_iter().find(of_others).map(|i| self.nodes[i].span.end)
    }

    fn first(&self, at: u32, wanted: &Wanted<O>) -> u32 {
        stdx::steps::add(1);
        if at == NIL {
            return NIL;
        }
        let node = &self.nodes[at];
        if self.farthest(at, wanted.owner, wanted.exclusive).is_none_or(|end| end < wanted.start) {
            return NIL;
        }
        let later = wanted.after.is_none_or(|after| node.span.key() > after);
        if later {
            let found = self.first(node.left, wanted);
            if found != NIL {
                return found;
            }
            if node.span.start > wanted.end {
                return NIL;
            }
            let in_the_way = node.span.end >= wanted.start
                && node.span.owner != wanted.owner
                && (wanted.exclusive || node.span.exclusive);
            if in_the_way {
                return at;
            }
        }
        self.first(node.right, wanted)
    }
}

#[cfg(test)]
mod tests {
    use stdx::Rng;

    use super::*;

    fn span(owner: u64, start: u64, end: u64, exclusive: bool) -> Span<u64> {
        Span { start, end, owner, id: 0, exclusive }
    }

    /// Random inserts and removals of ranges, some of one owner overlapping, compared with a list of them.
    #[test]
    fn what_is_in_the_way_is_what_a_look_at_all_finds() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let (mut spans, mut list) = (Spans::default(), Vec::<Span<u64>>::new());
            for step in 0..600 {
                let start = rng.below(200);
                let new = Span {
                    start,
                    end: start + rng.below(30) * rng.below(2) * rng.below(3),
                    owner: rng.below(5),
                    id: step,
                    exclusive: rng.chance(1, 3),
                };
                if rng.chance(1, 2) && !list.is_empty() {
                    let gone = list.swap_remove(rng.below(list.len() as u64) as usize);
                    spans.remove(gone.start, gone.owner, gone.id);
                } else if rng.chance(2, 3) {
                    spans.insert(new);
                    list.push(new);
                }
                let is_in_the_way = |s: &&Span<u64>| {
                    s.owner != new.owner && s.start <= new.end && new.start <= s.end && (s.exclusive || new.exclusive)
                };
                let mut expected: Vec<Span<u64>> = list.iter().filter(is_in_the_way).copied().collect();
                expected.sort_unstable_by_key(Span::key);
                let found: Vec<Span<u64>> =
                    spans.conflicts(new.owner, new.start, new.end, new.exclusive).copied().collect();
                assert_eq!(found, expected, "seed {seed} step {step}");
                let before =
                    |s: &&Span<u64>| s.owner != new.owner && s.start < new.start && (s.exclusive || new.exclusive);
                let expected = list.iter().filter(before).map(|s| s.end).max();
                assert_eq!(
                    spans.reach_before(new.owner, new.start, new.exclusive),
                    expected,
                    "seed {seed} step {step}"
                );
            }
        }
    }

    /// The worst case for a scan from the start: thousands of short ranges before the requested one, thousands of the
    /// requester's own around it, and readers everywhere.
    #[test]
    fn the_first_in_the_way_costs_a_path_through_the_tree() {
        const MANY: u64 = 10_000;
        let mut spans = Spans::default();
        for n in 0..MANY {
            spans.insert(span(n, 0, n, false));
            spans.insert(span(MANY, 2 * MANY + 2 * n, 2 * MANY + 2 * n, true));
        }
        spans.insert(span(7, 5 * MANY, 5 * MANY, true));
        let cost = |owner, start, end, exclusive| {
            let (steps, found) = stdx::steps::of(|| spans.conflicts(owner, start, end, exclusive).next().copied());
            assert!(steps < 100, "{steps} steps");
            found.map(|span| span.owner)
        };
        assert_eq!(cost(MANY, 0, u64::MAX, false), Some(7));
        assert_eq!(cost(MANY + 1, MANY - 1, MANY - 1, true), Some(MANY - 1));
        assert_eq!(cost(MANY + 1, MANY, 2 * MANY - 1, true), None);
        assert_eq!(cost(MANY, MANY, 5 * MANY - 1, true), None, "its own are not in its way");
        assert_eq!(cost(7, 2 * MANY, u64::MAX, false), Some(MANY));
        assert_eq!(cost(MANY - 1, MANY - 1, MANY - 1, true), None);
    }
}
