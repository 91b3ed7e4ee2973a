//! A pool of threads for jobs that may block each other: no job waits for a thread while another job is stuck.
//!
//! Invalidating pages in the kernel waits for a page that a call holds locked, and that call may wait for a lock that is
//! granted only once other pages are dropped. Such jobs must not share a queue with one consumer. Another thread starts
//! whenever more jobs are queued than threads are idle; idle threads exit.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::asserted::start_thread;

/// The most threads; further jobs wait in the queue.
const THREADS_MAX: usize = 512;
/// An idle thread exits after this long, if another one is idle too.
const IDLE: Duration = Duration::from_secs(10);

/// Queues a job for a crew; drops the job if the crew has not started yet.
pub(crate) fn send<J: Send + 'static>(crew: &OnceLock<Crew<J>>, job: J) {
    if let Some(crew) = crew.get() {
        crew.send(job);
    }
}

/// A pool of threads that run jobs of one kind.
pub(crate) struct Crew<J> {
    inner: Arc<Inner<J>>,
}

struct Inner<J> {
    name: &'static str,
    work: Box<dyn Fn(J) + Send + Sync>,
    /// Called with the name of a thread on which a job has panicked.
    panicked: Box<dyn Fn(&str) + Send + Sync>,
    line: Mutex<Line<J>>,
    wake: Condvar,
}

struct Line<J> {
    jobs: VecDeque<J>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl<J: Send + 'static> Crew<J> {
    /// A pool with its first thread. `panicked` is called with the name of a thread that ended in a panic.
    ///
    /// # Errors
    /// The operating system refused the thread.
    pub(crate) fn start(
        name: &'static str,
        work: impl Fn(J) + Send + Sync + 'static,
        panicked: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Crew<J>> {
        let line = Mutex::new(Line { jobs: VecDeque::new(), threads: 0, idle: 0, closed: false });
        let (work, panicked) = (Box::new(work), Box::new(panicked));
        let inner = Arc::new(Inner { name, work, panicked, line, wake: Condvar::new() });
        inner.clone().hire()?;
        Ok(Crew { inner })
    }

    /// Queues a job; another thread runs it soon.
    pub(crate) fn send(&self, job: J) {
        let mut line = self.inner.line.lock();
        line.jobs.push_back(job);
        let hire = line.jobs.len() > line.idle && line.threads < THREADS_MAX;
        drop(line);
        // If no thread can be started, the job waits until one is free.
        if hire && let Err(error) = self.inner.clone().hire() {
            tracing::warn!("no further thread '{}': {error}", self.inner.name);
        }
        self.inner.wake.notify_one();
    }
}

impl<J: Send + 'static> Inner<J> {
    fn hire(self: Arc<Self>) -> io::Result<()> {
        self.line.lock().threads += 1;
        let (for_thread, for_panic) = (self.clone(), self.clone());
        let body = move || {
            for_thread.run_jobs();
            for_thread.line.lock().threads -= 1;
        };
        let panicked = move |name: &str| {
            for_panic.line.lock().threads -= 1;
            (for_panic.panicked)(name);
        };
        let started = start_thread(self.name.to_owned(), panicked, body);
        if started.is_err() {
            self.line.lock().threads -= 1;
        }
        started
    }

    fn run_jobs(&self) {
        let mut line = self.line.lock();
        loop {
            if let Some(job) = line.jobs.pop_front() {
                drop(line);
                (self.work)(job);
                line = self.line.lock();
                continue;
            }
            if line.closed {
                return;
            }
            line.idle += 1;
            let late = self.wake.wait_for(&mut line, IDLE).timed_out();
            line.idle -= 1;
            if late && line.jobs.is_empty() && line.idle > 0 {
                return;
            }
        }
    }
}

impl<J> Drop for Crew<J> {
    fn drop(&mut self) {
        self.inner.line.lock().closed = true;
        self.inner.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_stuck_job_holds_up_no_other() {
        let (free, stuck) = mpsc::channel::<()>();
        let stuck = Mutex::new(stuck);
        let (sender, done) = mpsc::channel();
        let work = move |job: u32| {
            if job == 0 {
                let _ = stuck.lock().recv();
            }
            let _ = sender.send(job);
        };
        let crew = Crew::start("test", work, |_| ()).unwrap();
        for job in 0..20 {
            crew.send(job);
        }
        let mut seen: Vec<u32> = (0..19).map(|_| done.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (1..20).collect::<Vec<_>>());
        free.send(()).unwrap();
        assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(0));
    }

    #[test]
    fn a_job_that_panics_is_reported_and_others_are_done() {
        let (sender, done) = mpsc::channel();
        let (panics, reported) = mpsc::channel();
        let work = move |job: u32| {
            assert!(job != 3, "meant for this test");
            let _ = sender.send(job);
        };
        let crew = Crew::start("test", work, move |name| drop(panics.send(name.to_owned()))).unwrap();
        (1..=5).for_each(|job| crew.send(job));
        let mut seen: Vec<u32> = (0..4).map(|_| done.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 4, 5]);
        assert_eq!(reported.recv_timeout(Duration::from_secs(10)), Ok("test".to_owned()));
    }
}
