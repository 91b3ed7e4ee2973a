//! The end of a mount in which an assertion has failed.

use std::sync::Arc;

use client::api::ConnId;
use proto::Errno;

use super::{AssertionFailed, Mount, Phase, Shared, State, UnmountError};

/// The most files with data that was not written back that are named in the log.
const LOST_MAX: usize = 100;

impl Mount {
    /// What was left unwritten, if an assertion in the client has failed.
    pub fn failure(&self) -> Option<AssertionFailed> {
        match &self.shared.state.lock().lost {
            Some(UnmountError::Assertion(failed)) => Some(failed.clone()),
            _ => None,
        }
    }
}

impl Shared {
    /// A thread that works for the machine has panicked. Its job is never finished, so the machine fails.
    pub(super) fn thread_panicked(self: &Arc<Self>) {
        self.turn(|state, _| state.machine.fail());
    }

    /// An assertion in the machine has failed: nothing more is sent, and all waiting and later calls get `EIO`.
    pub(super) fn assertion_failed(&self, state: &mut State) {
        let waiting = std::mem::take(&mut state.completions);
        state.ready.extend(waiting.into_values().map(|waiting| (waiting.completion, Err(Errno::EIO))));
        if state.phase == Phase::Gone {
            return;
        }
        let conns: Vec<ConnId> = state.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.drop_conn(state, conn));
        let files = state.machine.look(|machine| machine.unsynced(LOST_MAX)).map(|(files, more)| {
            files.iter().for_each(|(path, bytes)| tracing::error!("not written back: {bytes} bytes of {path}"));
            files.len() + more
        });
        let changes =
            state.machine.look(|machine| machine.write_back_progress()).map_or(0, |(made, answered)| made - answered);
        state.lost = Some(UnmountError::Assertion(AssertionFailed { files, changes }));
        self.settle(state, Phase::Gone);
    }
}
