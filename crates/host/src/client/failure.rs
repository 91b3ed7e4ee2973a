//! The end of a mount in which an assertion has failed.

use std::sync::Arc;

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
    /// A thread that works for the machine has ended in the middle of something, which is then never done.
    pub(super) fn thread_panicked(self: &Arc<Self>) {
        self.turn(|state, _| state.machine.fail());
    }

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
            "an assertion in the client failed (the log says where), so it sends nothing more and its programs get EIO; {lost}; changes of names and \
             attributes that no server had confirmed: {changes}; unmount and mount again, and report this as a bug, with the log"
        ));
        self.settle(state, Phase::Gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use client::api::{AccessTimes, Call, Options, Timeouts};
    use proto::msg::Cred;

    use super::super::NoKernel;
    use super::*;

    #[test]
    fn a_thread_that_panics_ends_the_mount_and_nobody_waits() {
        let options = Options {
            uuid: proto::ClientUuid(1),
            seed: 1,
            instance: client::api::Instance(1),
            fsname: "fs".to_owned(),
            mgs: vec!["unix:/nowhere/mgs".parse().unwrap()],
            description: String::new(),
            read_only: false,
            max_dirty: 1 << 20,
            max_cached: 1 << 20,
            max_read_ahead: 1 << 20,
            max_nodes: 100,
            soft: None,
            timeouts: Timeouts::default(),
            always_ping: false,
            write_back_after: Duration::from_secs(5),
            max_rpcs_in_flight: 8,
            max_mod_rpcs_in_flight: 7,
            access_times: AccessTimes::default(),
            directory_access_times: AccessTimes::default(),
            sync_metadata: false,
            faults: stdx::Faults::none(),
        };
        let mount = Mount::launch(options, Arc::new(NoKernel)).unwrap();
        let (sender, answer) = mpsc::channel();
        let completion = Box::new(move |result: Result<_, _>| {
            let _ = sender.send(result.map(drop));
        });
        mount.submit(Cred::default(), Call::Statfs { ino: 1 }, completion);
        assert_eq!(answer.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(mount.failure(), None);
        mount.shared.thread_panicked();
        assert_eq!(answer.recv_timeout(Duration::from_secs(10)), Ok(Err(Errno::EIO)));
        assert!(mount.failure().is_some_and(|reason| reason.contains("all data was written back")));
        assert_eq!(
            mount.call(Cred::default(), Call::Statfs { ino: 1 }).map(drop),
            Err(Errno::EIO),
            "and so do later calls"
        );
    }
}
