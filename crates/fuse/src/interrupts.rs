//! Calls that may wait for long, so that a signal to their program ends them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use client::api::CallId;
use fusewire::Reply;
use host::client::Mount;
use parking_lot::Mutex;
use proto::msg::Cred;

use crate::Call;

/// Interrupts of requests that are not known (yet), of which the last are kept: the kernel reports those of any request.
const EARLY: usize = 64;

/// The kernel's numbers of waiting requests, each with its call once that is known.
#[derive(Default)]
pub(crate) struct Interrupts(Arc<Mutex<Waits>>);

#[derive(Default)]
struct Waits {
    calls: HashMap<u64, Option<CallId>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    /// Makes a call for the request `unique`; if it `waits`, an interrupt of that request ends it.
    pub(crate) fn submit(&self, client: &Mount, unique: u64, cred: Cred, call: Call, waits: bool, reply: Reply) {
        if !waits {
            client.submit(cred, call, Box::new(move |outcome| crate::session::reply_empty(reply, outcome)));
            return;
        }
        self.0.lock().calls.insert(unique, None);
        let waiting = self.0.clone();
        let done = move |outcome| {
            waiting.lock().calls.remove(&unique);
            crate::session::reply_empty(reply, outcome);
        };
        let id = client.submit(cred, call, Box::new(done));
        let interrupted = {
            let mut waits = self.0.lock();
            if let Some(known) = waits.calls.get_mut(&unique) {
                *known = Some(id);
            }
            waits.take_early(unique)
        };
        if interrupted {
            client.interrupt(id);
        }
    }

    /// The request `unique` was interrupted.
    pub(crate) fn interrupt(&self, client: &Mount, unique: u64) {
        let known = {
            let mut waits = self.0.lock();
            let known = waits.calls.get(&unique).copied().flatten();
            if known.is_none() {
                waits.note_early(unique);
            }
            known
        };
        if let Some(id) = known {
            client.interrupt(id);
        }
    }
}

impl Waits {
    fn note_early(&mut self, unique: u64) {
        if self.early.len() == EARLY {
            self.early.pop_front();
        }
        self.early.push_back(unique);
    }

    fn take_early(&mut self, unique: u64) -> bool {
        let found = self.early.iter().position(|early| *early == unique);
        found.is_some_and(|at| self.early.remove(at).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_that_comes_before_its_call_is_kept_and_old_ones_are_not() {
        let mut waits = Waits::default();
        for unique in 0..100 {
            waits.note_early(unique);
        }
        assert_eq!(waits.early.len(), EARLY);
        assert!(!waits.take_early(1), "long forgotten");
        assert!(waits.take_early(99));
        assert!(!waits.take_early(99), "taken");
    }
}
