//! The scheduler: operations that are ready to run, and what the others wait for.

use smallvec::SmallVec;
use std::collections::VecDeque;
use stdx::{Instant, Map, Set};

use super::{OpId, Step, WaitKey};

/// Operations that wait for the same, in the order in which they came.
#[derive(Default)]
struct Waiters {
    list: SmallVec<[OpId; 2]>,
    /// The same, once they are many.
    known: Set<OpId>,
}

impl Waiters {
    /// With more than this a look at the list takes longer than one into a table.
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
    /// What the kernel was asked, by number.
    tokens: Map<u64, (OpId, Step)>,
    last_token: u64,
    timer: Option<Instant>,
}

impl Schedule {
    /// An operation is to run again.
    pub(crate) fn again(&mut self, op: OpId) {
        self.ready.push_back(op);
    }

    /// The next that is to run.
    pub(crate) fn next(&mut self) -> Option<OpId> {
        self.ready.pop_front()
    }

    /// Whether none is to run.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ready.is_empty()
    }

    /// Runs everybody who waits for `key`.
    pub(crate) fn wake(&mut self, key: WaitKey) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(ops) = self.waiters.remove(&key) {
            self.ready.extend(ops.list);
        }
    }

    /// An operation waits for `key`.
    pub(crate) fn wait(&mut self, op: OpId, key: WaitKey) {
        self.waiters.entry(key).or_default().add(op);
    }

    /// A number for a question to the kernel.
    pub(crate) fn token(&mut self, op: OpId, step: Step) -> u64 {
        self.last_token += 1;
        self.tokens.insert(self.last_token, (op, step));
        self.last_token
    }

    /// Whose question had this number, once.
    pub(crate) fn take_token(&mut self, token: u64) -> Option<(OpId, Step)> {
        self.tokens.remove(&token)
    }

    /// Wakes [`WaitKey::Timer`] at `at` or earlier.
    pub(crate) fn set_timer(&mut self, at: Instant) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// When [`Schedule::tick`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timer
    }

    /// Time passed.
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
        assert!(schedule.is_quiet());
        schedule.wake(WaitKey::Closes);
        schedule.wake(WaitKey::Closes);
        let woken: Vec<OpId> = core::iter::from_fn(|| schedule.next()).collect();
        assert_eq!(woken, (0..110).map(op).collect::<Vec<_>>());
    }
}
