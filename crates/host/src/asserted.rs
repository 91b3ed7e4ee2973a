//! A machine that stops for good when one of its assertions fails.
//!
//! After a failed assertion the state of the machine cannot be trusted, so nothing derived from it may leave the process:
//! the machine gets no more events, and its effects are not carried out. What was handed out before stands: a group of
//! changes was complete when it was handed to the disk. The driver then shuts down: a target stops, a mount answers `EIO`
//! and ends.
//!
//! Every panic of the machine counts as a failed assertion: an overflow, an index out of range, an `assert!`. So does a
//! panic in a thread that works for the machine ([`start_thread`]), because the work that the thread was given is never
//! finished. The log of the process says where the panic was ([`crate::log::start`]).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A machine, and whether one of its assertions has failed.
#[derive(Debug)]
pub(crate) struct Asserted<M> {
    machine: M,
    failed: bool,
}

impl<M> Asserted<M> {
    /// Wraps a machine.
    pub(crate) fn new(machine: M) -> Asserted<M> {
        Asserted { machine, failed: false }
    }

    /// Runs `body` on the machine. `None` if an assertion fails, or has failed before.
    pub(crate) fn run<R>(&mut self, body: impl FnOnce(&mut M) -> R) -> Option<R> {
        if self.failed {
            return None;
        }
        let result = catch_unwind(AssertUnwindSafe(|| body(&mut self.machine)));
        self.failed = result.is_err();
        result.ok()
    }

    /// Marks the machine as failed: nothing runs on it from now on.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether an assertion has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Reads the state that a failed machine left, for the log. `None` if that panics too.
    pub(crate) fn look<R>(&self, body: impl FnOnce(&M) -> R) -> Option<R> {
        catch_unwind(AssertUnwindSafe(|| body(&self.machine))).ok()
    }
}

/// Starts a thread that works for a machine. If it panics, `panicked` is called with its name, on that thread.
///
/// # Errors
/// The operating system refused the thread.
pub(crate) fn start_thread(
    name: String,
    panicked: impl FnOnce(&str) + Send + 'static,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let watch = Watch { name: name.clone(), panicked: Some(panicked) };
    let watched = move || {
        let _watch = watch;
        body();
    };
    std::thread::Builder::new().name(name).spawn(watched).map(drop)
}

/// Lives as long as the body of a thread.
struct Watch<F: FnOnce(&str)> {
    name: String,
    panicked: Option<F>,
}

impl<F: FnOnce(&str)> Drop for Watch<F> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(panicked) = self.panicked.take()
        {
            panicked(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_says_so_and_one_that_ends_does_not() {
        let (sender, reported) = std::sync::mpsc::channel();
        for (name, panics) in [("sound", false), ("failing", true)] {
            let sender = sender.clone();
            let panicked = move |name: &str| drop(sender.send(name.to_owned()));
            start_thread(name.to_owned(), panicked, move || assert!(!panics, "meant for this test")).unwrap();
        }
        drop(sender);
        assert_eq!(reported.iter().collect::<Vec<_>>(), ["failing"]);
    }

    #[test]
    fn nothing_is_done_with_a_machine_that_has_failed() {
        let mut machine = Asserted::new(vec![1]);
        assert_eq!(machine.run(|list| list.len()), Some(1));
        let failing = machine.run(|list| {
            list.push(2);
            assert_eq!(list.len(), 1, "meant for this test");
        });
        assert!(failing.is_none() && machine.has_failed());
        assert_eq!(machine.run(|list| list.push(3)), None);
        assert_eq!(machine.look(|list| list.clone()), Some(vec![1, 2]));
        assert_eq!(machine.look(|list| list[7]), None);
    }
}
