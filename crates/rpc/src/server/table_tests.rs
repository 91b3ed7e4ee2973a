//! The whole table of what becomes of a request that changes something, case by case, through a real session: where the request
//! comes from (new, sent again, replayed) × what its slot remembers (nothing, this xid with or without its reply, an older
//! one, a newer one) × whether a copy is at work × one slot or many × where the session stands in recovery × whether the
//! client has announced that it has the answer.
//!
//! The xids of a client's slot increase, always: there is no client without that promise (Lustre's flag `INC_XID`), so a newer
//! record with the same tag refuses whatever kind of client it is.

use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::ConnectReq;
use proto::{Errno, Frame, Handle, Header, Opcode, Tag, Transno, Xid};
use stdx::Instant;

use super::*;
use crate::Link;

const NOW: Instant = Instant(1_000_000_000_000);
const LINK: Link = Link(7);
/// The request that arrives.
const XID: Xid = Xid(100);
const TAG: Tag = Tag(2);

/// What the slot remembers; the columns of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    /// It was never used.
    Nothing,
    /// The last request was this one, and its reply is here.
    Reply,
    /// It was this one; the target has restarted since.
    Record,
    /// An older request.
    Older,
    /// A newer one.
    Newer,
}

const MEMORIES: [Memory; 5] = [Memory::Nothing, Memory::Reply, Memory::Record, Memory::Older, Memory::Newer];

/// One case.
#[derive(Clone, Copy, Debug)]
struct Case {
    flags: u32,
    memory: Memory,
    executing: bool,
    multi: bool,
    phase: Phase,
    /// The client said that it has the answers up to here.
    announced: Xid,
}

fn session(multi: bool) -> (Exports, Handle) {
    let mut exports = Exports::new([0; 2], Limits::default());
    let request = ConnectReq {
        client_uuid: 5u128.to_be_bytes().to_vec().into(),
        target: "fs-MDT0000".into(),
        features: if multi { u64::MAX } else { features::VBR },
        version: PROTOCOL_VERSION,
        brw_size: 1 << 20,
        ..ConnectReq::default()
    };
    let header = Header { conn_cnt: 1, xid: Xid(1), ..Header::default() };
    let offer = ConnectOffer::new("fs-MDT0000".into(), 3, "0.1.0".into());
    let frame = Frame { header, ..Frame::default() };
    match exports.connect(NOW, LINK, "here", &frame, &request, &offer) {
        Connected::Yes(accepted) => {
            assert_eq!(accepted.multi, multi);
            (exports, accepted.handle)
        }
        Connected::No(refusal) => panic!("{refusal:?}"),
    }
}

fn frame(handle: Handle, xid: Xid, flags: u32) -> Frame {
    let header = Header {
        opcode: Opcode::MdsReint as u16,
        tag: TAG,
        flags,
        export: handle,
        conn_cnt: 1,
        xid,
        ..Header::default()
    };
    Frame { header, ..Frame::default() }
}

fn outcome(case: &Case) -> Arrival {
    let (mut exports, handle) = session(case.multi);
    let record = |xid: u64| SlotRecord { xid: Xid(xid), transno: Transno(xid), ..SlotRecord::default() };
    match case.memory {
        Memory::Nothing => {}
        Memory::Older => drop(exports.executed(handle, TAG, record(XID.0 - 1))),
        Memory::Newer => drop(exports.executed(handle, TAG, record(XID.0 + 1))),
        Memory::Record | Memory::Reply => drop(exports.executed(handle, TAG, record(XID.0))),
    }
    if case.memory == Memory::Reply {
        // A replay's first answer is kept apart from the slots.
        match case.flags & flags::REPLAY {
            0 => exports.keep_reply(handle, TAG, &frame(handle, XID, flags::REPLY)),
            _ => exports.keep_replay_answer(handle, &frame(handle, XID, flags::REPLY | flags::REPLAY)),
        }
    }
    let request = frame(handle, XID, case.flags);
    if case.executing {
        exports.begin(handle, &request);
    }
    if let Some(export) = exports.get_mut(handle) {
        export.phase = case.phase;
        export.last_xid = case.announced;
    }
    exports.arrive(NOW, LINK, &request, case.phase != Phase::Normal)
}

/// A letter for each outcome; refusals are capitals.
fn letter(arrival: Arrival) -> char {
    match arrival {
        Arrival::Execute => 'x',
        Arrival::AnswerAgain => 'a',
        Arrival::Reconstruct => 'r',
        Arrival::Attach => 't',
        Arrival::Defer => 'd',
        Arrival::Replay => 'p',
        Arrival::ReplayLock => 'l',
        Arrival::Drop => '.',
        Arrival::Refuse(Errno::ENOTCONN) => 'C',
        Arrival::Refuse(Errno::EPROTO) => 'P',
        Arrival::Refuse(_) => '?',
    }
}

const NEW: u32 = 0;
const RESENT: u32 = flags::RESENT;
const REPLAY: u32 = flags::REPLAY;
/// A replay whose answer was lost with the connection.
const REPLAY_AGAIN: u32 = flags::REPLAY | flags::RESENT;

/// By phase and kind of request, with no copy at work and the answer not announced: nothing · reply · record · older · newer.
const TABLE: &[(Phase, u32, &str)] = &[
    // In service. A known xid that does not say RESENT: the client must connect; one that does gets its first answer.
    (Phase::Normal, NEW, "xCCxP"),
    (Phase::Normal, RESENT, "xarxP"),
    (Phase::Normal, REPLAY, "CCCCC"),
    (Phase::Normal, REPLAY_AGAIN, "CCCCC"),
    // While the client replays its requests.
    (Phase::Requests, NEW, "dCCdP"),
    (Phase::Requests, RESENT, "daddP"),
    (Phase::Requests, REPLAY, "pappp"),
    (Phase::Requests, REPLAY_AGAIN, "pappp"),
    // Known, but it has not come back, has done its part of the requests, or is at its locks.
    (Phase::Absent, NEW, "dCCdP"),
    (Phase::Absent, RESENT, "daddP"),
    (Phase::Absent, REPLAY, "CCCCC"),
    (Phase::Absent, REPLAY_AGAIN, "CCCCC"),
    (Phase::RequestsDone, NEW, "dCCdP"),
    (Phase::RequestsDone, RESENT, "daddP"),
    (Phase::RequestsDone, REPLAY, "CCCCC"),
    (Phase::RequestsDone, REPLAY_AGAIN, "CCCCC"),
    (Phase::Locks, NEW, "dCCdP"),
    (Phase::Locks, RESENT, "daddP"),
    (Phase::Locks, REPLAY, "CCCCC"),
    (Phase::Locks, REPLAY_AGAIN, "CCCCC"),
    (Phase::LocksDone, NEW, "dCCdP"),
    (Phase::LocksDone, RESENT, "daddP"),
    (Phase::LocksDone, REPLAY, "CCCCC"),
    (Phase::LocksDone, REPLAY_AGAIN, "CCCCC"),
];

#[test]
fn every_case_of_the_table_is_as_it_says() {
    let mut seen = 0;
    for &(phase, flags, row) in TABLE {
        for (memory, want) in MEMORIES.into_iter().zip(row.chars()) {
            for multi in [false, true] {
                for executing in [false, true] {
                    for announced in [Xid(0), Xid(XID.0 - 2), XID, Xid(XID.0 + 5)] {
                        let case = Case { flags, memory, executing, multi, phase, announced };
                        let replay = flags & REPLAY != 0;
                        let want = match () {
                            // It has the answer, it says: whatever this is, it is from the past. A replay was answered.
                            () if announced >= XID && !replay => 'P',
                            () if executing => 't',
                            () => want,
                        };
                        assert_eq!(letter(outcome(&case)), want, "{case:?}");
                        seen += 1;
                    }
                }
            }
        }
    }
    assert_eq!(seen, Phase::ALL.len() * 4 * MEMORIES.len() * 2 * 2 * 4, "each case once");
}

/// What the tables amount to: a change whose record is there never runs again, and one that is new always runs in the end.
#[test]
fn no_case_runs_a_change_twice_or_loses_one() {
    for &(phase, flags, row) in TABLE {
        for (memory, to) in MEMORIES.into_iter().zip(row.chars()) {
            let (replay, known) = (flags & REPLAY != 0, matches!(memory, Memory::Reply | Memory::Record));
            if !replay && known {
                assert!(!matches!(to, 'x' | 'p'), "{phase:?} {flags:x} {memory:?} would run twice");
            }
            if !replay && matches!(memory, Memory::Nothing | Memory::Older) {
                assert!(matches!(to, 'x' | 'd'), "{phase:?} {flags:x} {memory:?} would be lost");
            }
            if flags == RESENT && memory == Memory::Record {
                assert!(matches!(to, 'r' | 'd'), "{phase:?}: an answer would be lost");
            }
        }
    }
}

/// A deferred request meets the same decision when recovery is over: by then the slot may have been replayed.
#[test]
fn what_waited_for_the_end_of_recovery_finds_what_was_replayed_meanwhile() {
    for multi in [false, true] {
        for memory in MEMORIES {
            let (mut exports, handle) = session(multi);
            let xid = match memory {
                Memory::Nothing => None,
                Memory::Reply | Memory::Record => Some(XID.0),
                Memory::Older => Some(XID.0 - 1),
                Memory::Newer => Some(XID.0 + 1),
            };
            if let Some(xid) = xid {
                exports.executed(handle, TAG, SlotRecord { xid: Xid(xid), ..SlotRecord::default() });
            }
            if memory == Memory::Reply {
                exports.keep_reply(handle, TAG, &frame(handle, XID, flags::REPLY));
            }
            let want = match memory {
                Memory::Nothing | Memory::Older => XidState::Nothing,
                Memory::Reply => XidState::Reply,
                Memory::Record => XidState::Record,
                Memory::Newer => XidState::Newer,
            };
            let found = exports.get(handle).map(|export| export.slots().found(TAG, XID));
            assert_eq!(found, Some(want), "{memory:?}, many slots: {multi}");
        }
    }
}
