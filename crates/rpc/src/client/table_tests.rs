//! What follows from a connect reply, case by case, through a whole import.

use super::*;
use crate::client::state::Progress;

/// How far a session has come when its connection breaks.
const PROGRESSES: [Progress; 4] = [Progress::None, Progress::Requests, Progress::Locks, Progress::Waiting];

/// A session with a change to replay, a lock, and a change without an answer, whose connection is cut at this point of a
/// recovery (or without one).
fn cut_at(progress: Progress) -> (Story, Xid) {
    let mut s = Story::with_slots(8);
    s.submit(Slot::Modify);
    let change = s.sent();
    s.answer(&change, 11, 0);
    s.submit(Slot::Modify);
    let unanswered = s.sent().header.xid;
    if progress != Progress::None {
        s.cut();
        s.connect(flags::CONNECT_RECOVERING, 78, 0);
        assert_eq!(s.import.state(), State::Replay);
    }
    if progress >= Progress::Locks {
        let replay = s.sent();
        s.answer(&replay, 11, 0);
        let done = s.sent();
        s.answer(&done, 0, 0);
        s.import.locks_to_replay(s.now, vec![EnqueueReq { cookie: 5, granted_handle: 6, ..EnqueueReq::default() }]);
        s.drain();
        s.import.locks_to_replay(s.now, Vec::new());
        s.drain();
        assert_eq!(s.import.state(), State::ReplayLocks);
    }
    if progress == Progress::Waiting {
        let lock = s.sent();
        s.answer(&lock, 0, 0);
        assert_eq!(s.import.state(), State::ReplayWait);
    }
    s.cut();
    s.out.clear();
    s.told.clear();
    (s, unanswered)
}

/// The whole table of what follows from a connect reply, by what the import does and sends: each progress × RECONNECT ×
/// RECOVERING × the same handle.
#[test]
fn every_connect_reply_leads_where_the_table_says() {
    // What is sent first: the unanswered change again, the replay (again), the lock or the last ping again, or nothing.
    #[derive(PartialEq, Eq, Debug)]
    enum First {
        Unanswered,
        Replay,
        ReplayAgain,
        Own,
        Nothing,
    }
    let mut seen = 0;
    for progress in PROGRESSES {
        for bits in 0..8 {
            let (reconnect, recovering, same) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            let (mut s, unanswered) = cut_at(progress);
            let known = if progress == Progress::None { 77 } else { 78 };
            let flag = |on: bool, flag: u32| if on { flag } else { 0 };
            let flags = flag(reconnect, flags::CONNECT_RECONNECT) | flag(recovering, flags::CONNECT_RECOVERING);
            s.connect(flags, if same { known } else { 99 }, 0);
            let want = match (reconnect && same, recovering, progress) {
                (true, false, Progress::None | Progress::Waiting) => (State::Full, First::Unanswered),
                (true, true, Progress::Requests) => (State::Replay, First::ReplayAgain),
                (true, true, Progress::Locks) => (State::ReplayLocks, First::Own),
                (true, true, Progress::Waiting) => (State::ReplayWait, First::Unanswered),
                (_, true, _) => (State::Replay, First::Replay),
                (_, false, _) => (State::Full, First::Nothing),
            };
            let first = match s.out.first() {
                None => First::Nothing,
                Some(frame) if frame.header.xid == unanswered => First::Unanswered,
                Some(frame) if frame.header.transno != Transno(11) => First::Own,
                Some(frame) if frame.header.has(flags::RESENT) => First::ReplayAgain,
                Some(_) => First::Replay,
            };
            let case = format!("{progress:?} reconnect {reconnect} recovering {recovering} same handle {same}");
            let evicted = want.1 == First::Nothing;
            assert_eq!(s.told.iter().any(|t| matches!(t, ImportEffect::Evicted { .. })), evicted, "{case}");
            assert_eq!(s.import.generation(), u32::from(evicted), "{case}");
            assert_eq!(s.import.status().replay_list, usize::from(!evicted), "{case}: an uncommitted change is kept");
            assert_eq!((s.import.state(), first), want, "{case}");
            if recovering && s.import.state() != State::ReplayWait {
                assert!(s.out.iter().all(|frame| frame.header.xid != unanswered), "{case}: not before the replays");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 32);
}
