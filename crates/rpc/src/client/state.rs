//! States of an import, and the decision after a connect reply.

use core::fmt;

/// State of an import. The names are Lustre's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Disconnected for good.
    Closed,
    /// Never connected.
    New,
    /// No connection; a new attempt will follow.
    Disconn,
    /// A dial or connect request is in flight.
    Connecting,
    /// Replaying requests that the server lost.
    Replay,
    /// Replaying locks.
    ReplayLocks,
    /// Own replay done; waiting for the other clients.
    ReplayWait,
    /// Resending unanswered requests.
    Recover,
    /// In service.
    Full,
    /// The server evicted this client: all its state at the target is lost.
    Evicted,
    /// Disconnected for lack of use. Not entered in this version.
    Idle,
}

impl State {
    /// All of them.
    pub const ALL: [State; 11] = [
        State::Closed,
        State::New,
        State::Disconn,
        State::Connecting,
        State::Replay,
        State::ReplayLocks,
        State::ReplayWait,
        State::Recover,
        State::Full,
        State::Evicted,
        State::Idle,
    ];

    /// Lustre's word for it.
    pub fn name(self) -> &'static str {
        match self {
            State::Closed => "CLOSED",
            State::New => "NEW",
            State::Disconn => "DISCONN",
            State::Connecting => "CONNECTING",
            State::Replay => "REPLAY",
            State::ReplayLocks => "REPLAY_LOCKS",
            State::ReplayWait => "REPLAY_WAIT",
            State::Recover => "RECOVER",
            State::Full => "FULL",
            State::Evicted => "EVICTED",
            State::Idle => "IDLE",
        }
    }

    /// Whether the transition to `next` is allowed.
    pub fn may_become(self, next: State) -> bool {
        use State::*;
        match (self, next) {
            (Closed, _) | (Idle, _) => false,
            (_, Closed) => true,
            (_, Disconn) => self != New,
            // A connection may be lost and re-established in any state.
            (New | Disconn | Connecting, Connecting) => true,
            (Connecting, Full | Replay | ReplayLocks | ReplayWait | Recover | Evicted) => true,
            (Replay, ReplayLocks) | (ReplayLocks, ReplayWait) | (ReplayWait, Recover) => true,
            (Recover | Evicted, Full) => true,
            _ => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Progress of the replay when the connection was lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Progress {
    /// No replay in progress.
    None,
    /// Replaying requests.
    Requests,
    /// Replaying locks.
    Locks,
    /// All replayed; waiting for the other clients.
    Waiting,
}

/// Facts about a successful connect reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectFacts {
    /// The peer is a server's import: no recovery.
    pub lightweight: bool,
    /// The import was connected before and holds locks, opens or replays.
    pub has_state: bool,
    /// The reply has the flag RECONNECT.
    pub reconnect: bool,
    /// The reply has the flag RECOVERING.
    pub recovering: bool,
    /// The export handle is the one that the import had.
    pub same_handle: bool,
    /// The session is the one that the import had, as far as both sides identify it.
    pub same_session: bool,
    /// Progress of the replay before.
    pub progress: Progress,
}

/// Action after a connect reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterConnect {
    /// Nothing to recover: enter service.
    Serve,
    /// The target recovers, and this client has nothing to replay: report that and wait.
    DeclareDone,
    /// Replay everything from the start.
    ReplayAll,
    /// Continue the replay.
    ResumeReplay,
    /// Only the connection was lost: resend unanswered requests.
    Resend,
    /// The server evicted this client.
    Evicted,
}

/// The decision table for connect replies.
pub fn after_connect(facts: &ConnectFacts) -> AfterConnect {
    use AfterConnect::*;
    let ConnectFacts { lightweight, has_state, reconnect, recovering, same_handle, same_session, progress } = *facts;
    match (has_state, reconnect && same_handle, recovering) {
        // Requests between servers can all be executed twice.
        _ if lightweight => Resend,
        // The client was evicted and the reply that said so was lost: the server has a later session of it.
        (true, ..) if !same_session => Evicted,
        // First connect.
        (false, _, false) => Serve,
        (false, _, true) => DeclareDone,
        // Only the connection was lost. If the target's recovery ended during this client's replay, it ended without
        // this client.
        (true, true, false) => match progress {
            Progress::None | Progress::Waiting => Resend,
            Progress::Requests | Progress::Locks => Evicted,
        },
        // The connection was lost during recovery.
        (true, true, true) => match progress {
            Progress::None => ReplayAll,
            _ => ResumeReplay,
        },
        // The server restarted, perhaps again during recovery.
        (true, false, true) => ReplayAll,
        // The server does not know this client any more, or started a new session for it.
        (true, false, false) => Evicted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transition_is_as_in_the_table() {
        // Rows: from; columns: to, in the order of ALL. CLO NEW DIS CON REP LOC WAI REC FUL EVI IDL
        let table = [
            (State::Closed, "..........."),
            (State::New, "x..x......."),
            (State::Disconn, "x.xx......."),
            (State::Connecting, "x.xxxxxxxx."),
            (State::Replay, "x.x..x....."),
            (State::ReplayLocks, "x.x...x...."),
            (State::ReplayWait, "x.x....x..."),
            (State::Recover, "x.x.....x.."),
            (State::Full, "x.x........"),
            (State::Evicted, "x.x.....x.."),
            (State::Idle, "..........."),
        ];
        for (from, row) in table {
            let have: String = State::ALL.iter().map(|&to| if from.may_become(to) { 'x' } else { '.' }).collect();
            assert_eq!(have, row, "from {from}");
        }
    }

    #[test]
    fn every_connect_reply_has_its_consequence() {
        let bools = [false, true];
        let progresses = [Progress::None, Progress::Requests, Progress::Locks, Progress::Waiting];
        let mut seen = 0;
        for lightweight in bools {
            for has_state in bools {
                for reconnect in bools {
                    for recovering in bools {
                        for same_handle in bools {
                            for (progress, same_session) in
                                progresses.into_iter().flat_map(|p| bools.map(|same| (p, same)))
                            {
                                let facts = ConnectFacts {
                                    lightweight,
                                    has_state,
                                    reconnect,
                                    recovering,
                                    same_handle,
                                    same_session,
                                    progress,
                                };
                                let verdict = after_connect(&facts);
                                let kept = reconnect && same_handle;
                                let want = if lightweight {
                                    AfterConnect::Resend
                                } else if !has_state {
                                    if recovering { AfterConnect::DeclareDone } else { AfterConnect::Serve }
                                } else if !same_session {
                                    AfterConnect::Evicted
                                } else if kept && !recovering {
                                    if matches!(progress, Progress::None | Progress::Waiting) {
                                        AfterConnect::Resend
                                    } else {
                                        AfterConnect::Evicted
                                    }
                                } else if kept && progress != Progress::None {
                                    AfterConnect::ResumeReplay
                                } else if recovering {
                                    AfterConnect::ReplayAll
                                } else {
                                    AfterConnect::Evicted
                                };
                                assert_eq!(verdict, want, "{facts:?}");
                                // A target that does not recover gets no replays, and nothing that the server may have
                                // lost is assumed to exist.
                                if !recovering {
                                    assert!(!matches!(verdict, AfterConnect::ReplayAll | AfterConnect::ResumeReplay));
                                }
                                if has_state && !kept && !lightweight {
                                    assert!(matches!(verdict, AfterConnect::ReplayAll | AfterConnect::Evicted));
                                }
                                seen += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(seen, 256);
    }
}
