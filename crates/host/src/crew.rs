//! Threads for jobs that may block each other: a job never waits for a thread while another job is stuck.
//!
//! Dropping pages from the kernel's cache waits for a page that a call holds locked, and that call may wait for a lock
//! which is only given once other pages were dropped. So such jobs must not stand in one line. A thread more is started
//! whenever there are more jobs than threads without one; threads that stay without work end.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::asserted::start_thread;

/// Most threads; further jobs wait in line.
const THREADS_MAX: usize = 512;
/// A thread without work ends after this long, if another is idle too.
const IDLE: Duration = Duration::from_secs(10);

/// Has a job done by a crew that may not be there yet: then it is not done.
pub(crate) fn send<J: Send + 'static>(crew: &OnceLock<Crew<J>>, job: J) {
    if let Some(crew) = crew.get() {
        crew.send(job);
    }
}

/// Threads that do jobs of one kind.
pub(crate) struct Crew<J> {
    inner: Arc<Inner<J>>,
}

struct Inner<J> {
    name: &'static str,
    work: Box<dyn Fn(J) + Send + Sync>,
    /// A job has panicked, on a thread of this name.
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
    /// A crew with its first thread. `panicked` is told of a thread that has ended by a panic in its job.
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

    /// Has a job done, soon and on another thread.
    pub(crate) fn send(&self, job: J) {
        let mut line = self.inner.line.lock();
        line.jobs.push_back(job);
        let hire = line.jobs.len() > line.idle && line.threads < THREADS_MAX;
        drop(line);
        // Without a thread more the job waits until one is free.
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
            for_thread.toil();
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

    fn toil(&self) {
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
    fn a_job_that_panics_is_told_of_and_others_are_done() {
        let (sender, done) = mpsc::channel();
        let (panics, told) = mpsc::channel();
        let work = move |job: u32| {
            assert!(job != 3, "meant for this test");
            let _ = sender.send(job);
        };
        let crew = Crew::start("test", work, move |name| drop(panics.send(name.to_owned()))).unwrap();
        (1..=5).for_each(|job| crew.send(job));
        let mut seen: Vec<u32> = (0..4).map(|_| done.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 4, 5]);
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok("test".to_owned()));
    }
}
