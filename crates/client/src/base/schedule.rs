//! The scheduler: the operations that are ready to run, and what the others wait for.

use smallvec::SmallVec;
use std::collections::VecDeque;
use stdx::{Instant, Map, Set};

use super::{OpId, Step, WaitKey};

/// Operations that wait for the same key, in order of arrival.
#[derive(Default)]
struct Waiters {
    list: SmallVec<[OpId; 2]>,
    /// The same as a set, once there are many.
    known: Set<OpId>,
}

impl Waiters {
    /// With more than this, a search of the list takes longer than a lookup in a set.
    const MANY: usize = 16;

    fn add(&mut self, op: OpId) {
        let is_new = if self.list.len() < Waiters::MANY {
            !self.list.contains(&op)
        } else {
            if self.known.is_empty() {
                self.known.extend(&self.list);
            }
            self.known.insert(op)
        };
        if is_new {
            self.list.push(op);
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Schedule {
    ready: VecDeque<OpId>,
    waiters: Map<WaitKey, Waiters>,
    /// Invalidations sent to the kernel, by token.
    tokens: Map<u64, (OpId, Step)>,
    last_token: u64,
    timer: Option<Instant>,
}

impl Schedule {
    /// Makes an operation ready.
    pub(crate) fn make_ready(&mut self, op: OpId) {
        self.ready.push_back(op);
    }

    /// Takes the next ready operation.
    pub(crate) fn next(&mut self) -> Option<OpId> {
        self.ready.pop_front()
    }

    /// Whether no operation is ready.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Makes all operations ready that wait for `key`.
    pub(crate) fn wake(&mut self, key: WaitKey) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(ops) = self.waiters.remove(&key) {
            self.ready.extend(ops.list);
        }
    }

    /// Makes an operation wait for `key`.
    pub(crate) fn wait(&mut self, op: OpId, key: WaitKey) {
        self.waiters.entry(key).or_default().add(op);
    }

    /// A token for an invalidation.
    pub(crate) fn token(&mut self, op: OpId, step: Step) -> u64 {
        self.last_token += 1;
        self.tokens.insert(self.last_token, (op, step));
        self.last_token
    }

    /// Takes the operation and step of a token.
    pub(crate) fn take_token(&mut self, token: u64) -> Option<(OpId, Step)> {
        self.tokens.remove(&token)
    }

    /// Wakes [`WaitKey::Timer`] at `at` or earlier.
    pub(crate) fn set_timer(&mut self, at: Instant) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// When [`Schedule::tick`] is due next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timer
    }

    /// Runs the timer if it is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.timer.is_some_and(|at| at <= now) {
            self.timer = None;
            self.wake(WaitKey::Timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_wait_for_the_same_are_woken_once_each_in_their_order() {
        let op = |slot| OpId { slot, generation: 0 };
        let mut schedule = Schedule::default();
        for slot in (0..100).chain(0..100).chain(90..110) {
            schedule.wait(op(slot), WaitKey::Closes);
        }
        schedule.wake(WaitKey::Gates);
        assert!(schedule.is_idle());
        schedule.wake(WaitKey::Closes);
        schedule.wake(WaitKey::Closes);
        let woken: Vec<OpId> = core::iter::from_fn(|| schedule.next()).collect();
        assert_eq!(woken, (0..110).map(op).collect::<Vec<_>>());
    }
}
