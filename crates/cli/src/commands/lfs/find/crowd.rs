//! A pool of threads for work that creates more work, such as a walk through directories.
//!
//! Each thread has its own stack and takes what it pushed last, so a walk goes deep first and stacks stay small. Only when
//! other threads are idle does a thread share work, and then its oldest, which is likely to lead to the most. So the shared
//! queue never holds more items than there are threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// The state that the threads share.
pub(super) struct Crowd<W> {
    shared: Mutex<VecDeque<W>>,
    wake: Condvar,
    threads: usize,
    /// The number of threads that wait for work, minus the items in the queue.
    unserved: AtomicUsize,
    idle: AtomicUsize,
    ended: AtomicBool,
}

/// The work of one thread.
pub(super) struct Stack<'a, W> {
    crowd: &'a Crowd<W>,
    own: VecDeque<W>,
}

impl<W: Send> Crowd<W> {
    /// Runs `work` and everything that follows from it on `threads` threads. `worker` makes the state of a thread, `act`
    /// runs one item and pushes the items that it finds, `rest` is called when a thread has nothing to do.
    pub(super) fn run<S>(
        threads: usize,
        work: impl IntoIterator<Item = W>,
        worker: impl Fn() -> S + Sync,
        act: impl Fn(&mut S, &mut Stack<'_, W>, W) + Sync,
        rest: impl Fn(&mut S, &Stack<'_, W>) + Sync,
    ) {
        let threads = threads.max(1);
        let crowd = Crowd {
            shared: Mutex::new(work.into_iter().collect()),
            wake: Condvar::new(),
            threads,
            unserved: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut state = worker();
                    let mut stack = Stack { crowd: &crowd, own: VecDeque::new() };
                    loop {
                        while let Some(work) = stack.own.pop_back() {
                            if crowd.ended.load(Ordering::Relaxed) {
                                break;
                            }
                            stack.share();
                            act(&mut state, &mut stack, work);
                        }
                        rest(&mut state, &stack);
                        match crowd.next() {
                            Some(work) => stack.own.push_back(work),
                            None => break,
                        }
                    }
                });
            }
        });
    }

    /// The next item of the queue, once there is one; `None` when all threads wait and the queue is empty.
    fn next(&self) -> Option<W> {
        let mut shared = self.shared.lock();
        self.idle.fetch_add(1, Ordering::Relaxed);
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(work) = shared.pop_front() {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                self.count_unserved(shared.len());
                return Some(work);
            }
            if self.idle.load(Ordering::Relaxed) == self.threads {
                self.ended.store(true, Ordering::Relaxed);
                self.wake.notify_all();
                return None;
            }
            self.count_unserved(0);
            self.wake.wait(&mut shared);
        }
    }

    fn count_unserved(&self, waiting: usize) {
        self.unserved.store(self.idle.load(Ordering::Relaxed).saturating_sub(waiting), Ordering::Relaxed);
    }
}

impl<W> Stack<'_, W> {
    /// Adds work.
    pub(super) fn push(&mut self, work: W) {
        self.own.push_back(work);
        self.share();
    }

    /// Stops all threads.
    pub(super) fn end(&self) {
        let _shared = self.crowd.shared.lock();
        self.crowd.ended.store(true, Ordering::Relaxed);
        self.crowd.wake.notify_all();
    }

    /// Shares the oldest item if another thread waits for work.
    fn share(&mut self) {
        if self.crowd.unserved.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut shared = self.crowd.shared.lock();
        let idle = self.crowd.idle.load(Ordering::Relaxed);
        while shared.len() < idle {
            let Some(work) = self.own.pop_front() else { break };
            shared.push_back(work);
            self.crowd.wake.notify_one();
        }
        self.crowd.unserved.store(idle.saturating_sub(shared.len()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of items in a walk over a tree of numbers, in which each number has smaller ones below it.
    fn count(threads: usize, roots: &[u32], stop_after: usize) -> (usize, usize) {
        let (seen, rests) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Crowd::run(
            threads,
            roots.iter().copied(),
            || (),
            |(), stack, number| {
                if seen.fetch_add(1, Ordering::Relaxed) + 1 == stop_after {
                    stack.end();
                }
                (0..number).for_each(|below| stack.push(below));
            },
            |(), _| {
                rests.fetch_add(1, Ordering::Relaxed);
            },
        );
        (seen.into_inner(), rests.into_inner())
    }

    #[test]
    fn all_work_is_done_once_by_any_number_of_threads() {
        for threads in [1, 2, 7, 16] {
            // Number n leads to 2^n items.
            assert_eq!(count(threads, &[12, 3, 0], usize::MAX).0, 4096 + 8 + 1, "{threads}");
            let (seen, rests) = count(threads, &[], usize::MAX);
            assert_eq!((seen, rests), (0, threads));
        }
    }

    #[test]
    fn it_ends_early_when_that_is_asked_for() {
        for threads in [1, 4] {
            let (seen, _) = count(threads, &[16], 10);
            assert!((10..65536).contains(&seen), "{seen}");
        }
    }
}
