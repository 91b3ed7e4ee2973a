//! The end of a mount in which an assertion has failed.

use client::api::ConnId;
use proto::Errno;

use super::{Mount, Phase, Shared, State};

/// So many files with data that was not written back are named in the log.
const LOST_MAX: usize = 100;

impl Mount {
    /// What became of it, if an assertion in the client has failed: a sentence.
    pub fn failure(&self) -> Option<String> {
        let state = self.shared.state.lock();
        if state.machine.has_failed() { state.lost.clone() } else { None }
    }
}

impl Shared {
    /// An assertion in the machine has failed: nothing more is sent, and every call that waits, or still comes, gets `EIO`.
    pub(super) fn assertion_failed(&self, state: &mut State) {
        let waiting = std::mem::take(&mut state.completions);
        state.ready.extend(waiting.into_values().map(|waiting| (waiting.completion, Err(Errno::EIO))));
        if state.phase == Phase::Gone {
            return;
        }
        let conns: Vec<ConnId> = state.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.drop_conn(state, conn));
        let lost = match state.machine.look(|machine| machine.unsynced(LOST_MAX)) {
            Some((files, _)) if files.is_empty() => "all data was written back".to_owned(),
            Some((files, more)) => {
                files.iter().for_each(|(path, bytes)| tracing::error!("not written back: {bytes} bytes of {path}"));
                format!("files with data that was not written back: {}", files.len() + more)
            }
            None => "what was not written back cannot be told".to_owned(),
        };
        let changes = state.machine.look(|machine| machine.behind()).map_or(0, |(made, answered)| made - answered);
        state.lost = Some(format!(
            "an assertion in the client failed, so it sends nothing more and its programs get EIO; {lost}; changes of names and \
             attributes that no server had confirmed: {changes}; unmount and mount again, and report this as a bug, with the log"
        ));
        self.settle(state, Phase::Gone);
    }
}
