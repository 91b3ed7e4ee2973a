//! The decision about an arriving request, as one table.

use proto::Errno;

use super::Phase;

/// What the server knows about the request's xid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XidState {
    /// Nothing.
    Nothing,
    /// It has the reply that was sent.
    Reply,
    /// It has only the reply record: the request was answered before the target restarted.
    Record,
    /// It has a later request of the slot: the client gave this one up, or has its answer.
    Newer,
}

/// Class of a request with regard to recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Pings, disconnects, lock cancels and glimpse replies, executed at once even during recovery.
    AnyTime,
    /// A replay of one or many locks.
    LockReplay,
    /// Everything else.
    Normal,
}

/// Facts about an arriving request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrivalFacts {
    /// Its handle names an export.
    pub known: bool,
    /// It arrived over the export's connection and carries that connection's number.
    pub current: bool,
    /// Its xid is not 0 and exceeds the highest `last_xid` that the client announced on this connection.
    pub xid_valid: bool,
    /// Flag REPLAY.
    pub replay: bool,
    /// Flag RESENT.
    pub resent: bool,
    /// A request with its xid is queued or executing.
    pub executing: bool,
    /// See [`XidState`].
    pub found: XidState,
    /// See [`Class`].
    pub class: Class,
    /// Phase of the export in recovery.
    pub phase: Phase,
    /// The target is recovering.
    pub recovering: bool,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Answer with this error.
    Refuse(Errno),
    /// Drop it silently: its sender has moved to another connection.
    Drop,
    /// Drop it, because the first copy is still executing: its answer serves both.
    Attach,
    /// Send the kept reply again.
    AnswerAgain,
    /// Reconstruct the reply from the reply record.
    Reconstruct,
    /// Execute it.
    Execute,
    /// Queue it in the order of transnos.
    Replay,
    /// Execute it as the replay of a lock.
    ReplayLock,
    /// Execute it after recovery.
    Defer,
}

/// The decision table; the first matching row applies.
pub fn arrive(facts: &ArrivalFacts) -> Arrival {
    let f = *facts;
    // The server does not know this session (any more): the client must connect.
    if !f.known {
        return Arrival::Refuse(Errno::ENOTCONN);
    }
    // A late frame of an older connection.
    if !f.current {
        return Arrival::Drop;
    }
    // The client announced that it has the answer to this xid. Replays are exempt, since they were answered.
    if !f.replay && !f.xid_valid {
        return Arrival::Refuse(Errno::EPROTO);
    }
    // Resent by the client, or duplicated by the network.
    if f.executing {
        return Arrival::Attach;
    }
    if f.replay {
        return match (f.phase, f.class) {
            // A copy of a replay whose reply was lost gets the reply again.
            (Phase::Requests, Class::Normal) if f.found == XidState::Reply => Arrival::AnswerAgain,
            (Phase::Requests, Class::Normal) => Arrival::Replay,
            (Phase::Locks, Class::LockReplay) => Arrival::ReplayLock,
            // A replay outside its phase: the client must reconnect and learn the state.
            _ => Arrival::Refuse(Errno::ENOTCONN),
        };
    }
    match f.found {
        // The slot was used again: this is an old frame.
        XidState::Newer => Arrival::Refuse(Errno::EPROTO),
        // A known xid without RESENT: the client's session state is wrong.
        XidState::Reply | XidState::Record if !f.resent => Arrival::Refuse(Errno::ENOTCONN),
        XidState::Reply => Arrival::AnswerAgain,
        XidState::Record if f.recovering => Arrival::Defer,
        XidState::Record => Arrival::Reconstruct,
        XidState::Nothing if f.recovering && f.class != Class::AnyTime => Arrival::Defer,
        XidState::Nothing => Arrival::Execute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<ArrivalFacts> {
        let bools = [false, true];
        let mut all = Vec::new();
        for bits in 0..1 << 7 {
            let bit = |n: u32| bools[(bits >> n & 1) as usize];
            for found in [XidState::Nothing, XidState::Reply, XidState::Record, XidState::Newer] {
                for class in [Class::AnyTime, Class::LockReplay, Class::Normal] {
                    for phase in Phase::ALL {
                        all.push(ArrivalFacts {
                            known: bit(0),
                            current: bit(1),
                            xid_valid: bit(2),
                            replay: bit(3),
                            resent: bit(4),
                            executing: bit(5),
                            found,
                            class,
                            phase,
                            recovering: bit(6),
                        });
                    }
                }
            }
        }
        all
    }

    #[test]
    fn in_no_case_is_a_change_executed_twice() {
        for facts in all() {
            let what = arrive(&facts);
            let runs = matches!(what, Arrival::Execute | Arrival::Replay | Arrival::ReplayLock);
            if facts.executing {
                assert!(!runs, "{facts:?}");
            }
            if facts.found != XidState::Nothing && !facts.replay {
                assert!(!runs, "{facts:?}");
            }
            if facts.found == XidState::Reply {
                assert!(!runs || what == Arrival::ReplayLock, "{facts:?}");
            }
        }
    }

    #[test]
    fn nothing_from_a_stranger_or_from_the_past_gets_anywhere() {
        for facts in all() {
            let what = arrive(&facts);
            if !facts.known {
                assert_eq!(what, Arrival::Refuse(Errno::ENOTCONN), "{facts:?}");
            } else if !facts.current {
                assert_eq!(what, Arrival::Drop, "{facts:?}");
            } else if !facts.xid_valid && !facts.replay {
                assert_eq!(what, Arrival::Refuse(Errno::EPROTO), "{facts:?}");
            }
        }
    }

    #[test]
    fn a_slot_that_was_used_again_answers_nothing_of_before() {
        for facts in all().into_iter().filter(|f| f.found == XidState::Newer && !f.replay && !f.executing) {
            assert!(matches!(arrive(&facts), Arrival::Refuse(_) | Arrival::Drop), "{facts:?}");
        }
    }

    #[test]
    fn during_recovery_only_replays_and_small_things_run() {
        for facts in all().into_iter().filter(|f| f.recovering) {
            match arrive(&facts) {
                Arrival::Execute => assert_eq!(facts.class, Class::AnyTime, "{facts:?}"),
                Arrival::Reconstruct => panic!("{facts:?}"),
                _ => {}
            }
        }
    }

    #[test]
    fn a_resent_request_always_gets_somewhere() {
        let sent_again = |f: &ArrivalFacts| f.known && f.current && f.xid_valid && f.resent && !f.replay;
        for facts in all().into_iter().filter(|f| sent_again(f) && (f.found != XidState::Newer || f.executing)) {
            assert!(!matches!(arrive(&facts), Arrival::Refuse(_) | Arrival::Drop), "{facts:?}");
        }
    }

    #[test]
    fn replays_run_only_while_the_server_waits_for_them() {
        for facts in all().into_iter().filter(|f| f.replay && f.known && f.current && !f.executing) {
            let what = arrive(&facts);
            match (facts.phase, facts.class) {
                (Phase::Requests, Class::Normal) => {
                    assert!(matches!(what, Arrival::Replay | Arrival::AnswerAgain), "{facts:?}");
                }
                (Phase::Locks, Class::LockReplay) => assert_eq!(what, Arrival::ReplayLock, "{facts:?}"),
                _ => assert_eq!(what, Arrival::Refuse(Errno::ENOTCONN), "{facts:?}"),
            }
        }
    }
}
