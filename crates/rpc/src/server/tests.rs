//! Stories of sessions and of the recovery window.

use core::time::Duration;

use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::ConnectReq;
use proto::{ClientUuid, Errno, Frame, Handle, Header, Opcode, Tag, Transno, Xid};
use stdx::{Instant, Rng};

use super::*;
use crate::Link;

const NOW: Instant = Instant(1_000_000_000_000);

fn offer() -> ConnectOffer {
    ConnectOffer::new("fs-MDT0000".into(), 3, "0.1.0".into())
}

fn request(client: u128) -> ConnectReq {
    ConnectReq {
        client_uuid: client.to_be_bytes().to_vec().into(),
        target: "fs-MDT0000".into(),
        features: u64::MAX,
        version: PROTOCOL_VERSION,
        brw_size: 1 << 20,
        ..ConnectReq::default()
    }
}

fn connect(
    exports: &mut Exports,
    link: u64,
    export: u64,
    conn_cnt: u32,
    request: &ConnectReq,
    offer: &ConnectOffer,
) -> Connected {
    let header = Header { export: Handle(export), conn_cnt, xid: Xid(1), ..Header::default() };
    let frame = Frame { header, ..Frame::default() };
    exports.connect(NOW, Link(link), "here", &frame, request, offer)
}

fn accepted(connected: Connected) -> Accepted {
    match connected {
        Connected::Yes(accepted) => accepted,
        Connected::No(refusal) => panic!("{refusal:?}"),
    }
}

fn refused(connected: Connected) -> Refusal {
    match connected {
        Connected::No(refusal) => refusal,
        Connected::Yes(accepted) => panic!("{accepted:?}"),
    }
}

#[test]
fn a_new_client_comes_and_comes_back() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let first = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer()));
    assert!(first.new && first.replaced.is_none() && first.flags == 0);
    assert_eq!(first.reply.features & !proto::connect::features::SUPPORTED, 0, "a subset of what is supported");
    let late = refused(connect(&mut exports, 2, 0, 1, &request(5), &offer()));
    assert_eq!(late.errno, Errno::EALREADY);
    let again = accepted(connect(&mut exports, 3, first.handle.0, 2, &request(5), &offer()));
    assert_eq!((again.handle, again.new, again.old_link), (first.handle, false, Some(Link(1))));
    assert_eq!(again.flags, flags::CONNECT_RECONNECT);
    // A client that lost its memory: its old session goes.
    let anew = accepted(connect(&mut exports, 4, 0, 3, &request(5), &offer()));
    assert_eq!((anew.replaced.map(|gone| gone.handle), anew.new, exports.len()), (Some(first.handle), true, 1));
}

/// A change of data has no tag, so nothing of it is kept. Its copy must not undo what its client has changed since.
#[test]
fn a_change_without_a_tag_that_is_answered_is_not_executed_again() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let handle = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    let punch = |xid, last, conn_cnt, flags| {
        let (opcode, xid, last_xid) = (Opcode::ObjPunch as u16, Xid(xid), Xid(last));
        let header = Header { opcode, export: handle, conn_cnt, xid, last_xid, flags, ..Header::default() };
        Frame { header, ..Frame::default() }
    };
    let executes = |exports: &mut Exports, frame: &Frame| {
        let link = Link(frame.header.conn_cnt.into());
        assert_eq!(exports.arrive(NOW, link, frame, false), Arrival::Execute);
        exports.begin(handle, frame);
        exports.changed(handle, frame.header.xid);
    };
    executes(&mut exports, &punch(9, 0, 1, 0));
    assert!(exports.end(handle, Xid(9)));
    for flags in [0, flags::RESENT] {
        assert_eq!(exports.arrive(NOW, Link(1), &punch(9, 0, 1, flags), false), Arrival::Drop, "a copy");
    }
    // Its client says that it has the answer: nothing is remembered any more.
    executes(&mut exports, &punch(10, 9, 1, 0));
    assert!(exports.get(handle).is_some_and(|export| export.changed.is_empty()));

    // The connection breaks. If the answer were sent before the client's second try has come, that would be executed, however much
    // the client has changed on top of it.
    accepted(connect(&mut exports, 2, handle.0, 2, &request(5), &offer()));
    assert!(!exports.end(handle, Xid(10)), "its client asks for it over this connection");
    assert!(stdx::marks::count("exports.answer_for_older_connection") > 0);
    let second = punch(10, 0, 2, flags::RESENT);
    executes(&mut exports, &second);
    assert!(exports.end(handle, Xid(10)));
    assert_eq!(exports.arrive(NOW, Link(2), &second, false), Arrival::Drop);

    // The second try comes in time.
    executes(&mut exports, &punch(11, 0, 2, 0));
    accepted(connect(&mut exports, 3, handle.0, 3, &request(5), &offer()));
    let second = punch(11, 0, 3, flags::RESENT);
    assert_eq!(exports.arrive(NOW, Link(3), &second, false), Arrival::Attach);
    assert!(exports.end(handle, Xid(11)), "the answer serves both");
    assert_eq!(exports.arrive(NOW, Link(3), &second, false), Arrival::Drop);
}

/// A client's uuid alone gives neither its session nor the power to end it.
#[test]
fn a_session_is_its_clients_who_alone_knows_the_handle() {
    let mut exports = Exports::new([7, 1], Limits::default());
    let victim = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    // The answer was lost: nothing has come in the session yet, and it begins anew.
    let victim = {
        let again = accepted(connect(&mut exports, 2, 0, 2, &request(5), &offer()));
        assert_eq!(again.replaced.map(|gone| gone.handle), Some(victim));
        again.handle
    };
    let header =
        Header { opcode: Opcode::MdsGetattr as u16, export: victim, conn_cnt: 2, xid: Xid(9), ..Header::default() };
    let asked = Frame { header, ..Frame::default() };
    assert_eq!(exports.arrive(NOW, Link(2), &asked, false), Arrival::Execute);
    // Own handles, before and after, say nothing of it.
    let own =
        [6, 7].map(|client| accepted(connect(&mut exports, client, 0, 1, &request(client.into()), &offer())).handle.0);
    let guesses = [0, 1, 2, 3, 1 << 32 | 1, own[0] - 1, own[0] + 1, own[1] - 1, victim.0 ^ 1];
    for connected in [true, false] {
        if !connected {
            exports.link_closed(Link(2));
        }
        for guess in guesses {
            let refusal = refused(connect(&mut exports, 90, guess, 900, &request(5), &offer()));
            assert_eq!(refusal.errno, Errno::EALREADY, "{guess:x}");
        }
    }
    assert!(stdx::marks::count("exports.taken") > 0);
    let back = accepted(connect(&mut exports, 3, victim.0, 3, &request(5), &offer()));
    assert_eq!((back.handle, back.flags), (victim, flags::CONNECT_RECONNECT));
    // Another key or another start: other handles.
    let handle =
        |key| accepted(connect(&mut Exports::new(key, Limits::default()), 1, 0, 1, &request(5), &offer())).handle;
    assert!(handle([7, 1]) != handle([7, 2]) && handle([7, 1]) != handle([8, 1]));
}

#[test]
fn who_does_not_fit_is_refused_with_a_reason() {
    let mut exports = Exports::new([0; 2], Limits { exports: 1, ..Limits::default() });
    let other_major = ConnectReq { version: PROTOCOL_VERSION + (1 << 16), ..request(5) };
    let refusal = refused(connect(&mut exports, 1, 0, 1, &other_major, &offer()));
    assert_eq!(refusal.errno, Errno::EPROTO);
    assert!(refusal.reason.contains("upgrade the older side"), "{}", refusal.reason);
    let elsewhere = ConnectReq { target: "fs-MDT0001".into(), ..request(5) };
    assert_eq!(refused(connect(&mut exports, 1, 0, 1, &elsewhere, &offer())).errno, Errno::ENODEV);
    let nobody = ConnectReq { client_uuid: Default::default(), ..request(5) };
    assert_eq!(refused(connect(&mut exports, 1, 0, 1, &nobody, &offer())).errno, Errno::EPROTO);
    accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer()));
    assert_eq!(refused(connect(&mut exports, 2, 0, 1, &request(6), &offer())).errno, Errno::EOVERFLOW);
    let recovering = ConnectOffer { recovering: Some((2, 17)), ..offer() };
    let busy = refused(connect(&mut exports, 2, 0, 1, &request(6), &recovering));
    assert_eq!((busy.errno, busy.time_left_s), (Errno::EBUSY, 17));
}

#[test]
fn a_known_client_recovers_and_a_server_need_not() {
    let mut exports = Exports::new([0, 100], Limits::default());
    let handle = exports.restore(NOW, ClientUuid(5), "c".into(), (0, 4), [(Tag(1), SlotRecord::default())]);
    let recovering = ConnectOffer { recovering: Some((1, 30)), ..offer() };
    let back = accepted(connect(&mut exports, 1, 55, 9, &request(5), &recovering));
    assert_eq!((back.handle, back.new, back.flags), (handle, false, flags::CONNECT_RECOVERING));
    let again = accepted(connect(&mut exports, 2, handle.0, 10, &request(5), &recovering));
    assert_eq!(again.flags, flags::CONNECT_RECONNECT | flags::CONNECT_RECOVERING);
    let server = ConnectReq { lightweight: true, ..request(6) };
    assert_eq!(accepted(connect(&mut exports, 3, 0, 1, &server, &recovering)).flags, 0);
}

#[test]
fn limits_hold_back_those_who_ask_for_too_much() {
    let mut exports = Exports::new([0; 2], Limits { requests: 2, ..Limits::default() });
    let handle = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    let frame = |xid, opcode: Opcode| Frame {
        header: Header { opcode: opcode as u16, export: handle, conn_cnt: 1, xid: Xid(xid), ..Header::default() },
        ..Frame::default()
    };
    for xid in [10, 11] {
        let frame = frame(xid, Opcode::MdsGetattr);
        assert_eq!(exports.arrive(NOW, Link(1), &frame, false), Arrival::Execute);
        exports.begin(handle, &frame);
    }
    let third = frame(12, Opcode::MdsGetattr);
    assert_eq!(exports.arrive(NOW, Link(1), &third, false), Arrival::Refuse(Errno::EINPROGRESS));
    assert!(stdx::marks::count("exports.too_much") > 0);
    let cancel = frame(13, Opcode::LdlmCancel);
    assert_eq!(exports.arrive(NOW, Link(1), &cancel, false), Arrival::Execute, "what frees others always passes");
    assert!(exports.end(handle, Xid(10)));
    assert_eq!(exports.arrive(NOW, Link(1), &third, false), Arrival::Execute);
    let bad_tag = Frame { header: Header { tag: Tag(513), ..third.header }, ..Frame::default() };
    assert_eq!(exports.arrive(NOW, Link(1), &bad_tag, false), Arrival::Refuse(Errno::EPROTO));
}

#[test]
fn requests_of_all_clients_together_are_bounded() {
    let mut exports = Exports::new([0; 2], Limits { bytes_in_all: 200, ..Limits::default() });
    let frame = |handle, xid| Frame {
        header: Header {
            opcode: Opcode::MdsGetattr as u16,
            export: handle,
            conn_cnt: 1,
            xid: Xid(xid),
            ..Header::default()
        },
        bulk: vec![0; 60].into(),
        ..Frame::default()
    };
    let clients: Vec<(u64, Handle)> =
        (1..=3).map(|n| (n, accepted(connect(&mut exports, n, 0, 1, &request(n.into()), &offer())).handle)).collect();
    for (link, handle) in &clients[..2] {
        let frame = frame(*handle, 10);
        assert_eq!(exports.arrive(NOW, Link(*link), &frame, false), Arrival::Execute);
        exports.begin(*handle, &frame);
    }
    let third = frame(clients[2].1, 10);
    assert_eq!(exports.arrive(NOW, Link(3), &third, false), Arrival::Refuse(Errno::EINPROGRESS));
    exports.remove(clients[0].1);
    assert_eq!(exports.arrive(NOW, Link(3), &third, false), Arrival::Execute, "what a client held goes with it");
    assert!(exports.end(clients[1].1, Xid(10)));
    assert_eq!(exports.bytes, 0);
}

#[test]
fn a_session_costs_a_connection_and_little_memory() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let long = ConnectReq { description: "é\u{1b}[2J\n".repeat(100_000), ..request(5) };
    let handle = accepted(connect(&mut exports, 1, 0, 1, &long, &offer())).handle;
    let kept = &exports.get(handle).unwrap().description;
    assert!(kept.len() <= 256 && kept.len() > 250 && !kept.contains(char::is_control), "{kept}");
    assert_eq!(refused(connect(&mut exports, 1, 0, 1, &request(6), &offer())).errno, Errno::EBUSY);
    accepted(connect(&mut exports, 2, 0, 1, &request(6), &offer()));
    exports.remove(handle);
    accepted(connect(&mut exports, 1, 0, 2, &request(7), &offer()));
}

#[test]
fn a_reply_is_kept_until_the_client_says_that_it_has_it() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let handle = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    let frame = |xid: u64, last: u64, flags: u32| Frame {
        header: Header {
            opcode: Opcode::MdsReint as u16,
            tag: Tag(1),
            flags,
            export: handle,
            conn_cnt: 1,
            xid: Xid(xid),
            last_xid: Xid(last),
            ..Header::default()
        },
        ..Frame::default()
    };
    let record = SlotRecord { xid: Xid(10), transno: Transno(7), ..SlotRecord::default() };
    assert_eq!(exports.executed(handle, Tag(1), record), Dirty::Reply);
    let older = SlotRecord { xid: Xid(9), ..record };
    assert_eq!(exports.executed(handle, Tag(1), older), Dirty::No, "an older one does not replace it");
    exports.keep_reply(handle, Tag(1), &frame(10, 0, flags::REPLY));
    let resent = frame(10, 9, flags::RESENT);
    assert_eq!(exports.arrive(NOW, Link(1), &resent, false), Arrival::AnswerAgain);
    assert!(exports.first_answer(handle, &resent).is_some());
    assert_eq!(exports.arrive(NOW, Link(1), &frame(10, 9, 0), false), Arrival::Refuse(Errno::ENOTCONN));
    // The next request tells that the answer has come.
    assert_eq!(exports.arrive(NOW, Link(1), &frame(11, 10, 0), false), Arrival::Execute);
    assert!(exports.first_answer(handle, &resent).is_none());
    assert_eq!(exports.arrive(NOW, Link(1), &resent, false), Arrival::Refuse(Errno::EPROTO));
}

/// A request that failed left no record; a copy of it that arrives late must not succeed.
#[test]
fn what_was_refused_once_is_not_done_later() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let handle = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    let frame = |xid: u64, flags: u32, status: i32| Frame {
        header: Header {
            opcode: Opcode::MdsReint as u16,
            tag: Tag(1),
            flags,
            status,
            export: handle,
            conn_cnt: 1,
            xid: Xid(xid),
            ..Header::default()
        },
        ..Frame::default()
    };
    let refused = frame(10, flags::REPLY, -Errno::EEXIST.raw());
    exports.keep_reply(handle, Tag(1), &refused);
    assert_eq!(exports.arrive(NOW, Link(1), &frame(10, 0, 0), false), Arrival::Refuse(Errno::ENOTCONN));
    let resent = frame(10, flags::RESENT, 0);
    assert_eq!(exports.arrive(NOW, Link(1), &resent, false), Arrival::AnswerAgain);
    assert_eq!(exports.first_answer(handle, &resent), Some(refused));
    assert_eq!(exports.arrive(NOW, Link(1), &frame(11, 0, 0), false), Arrival::Execute);
    let next = SlotRecord { xid: Xid(11), transno: Transno(7), ..SlotRecord::default() };
    assert_eq!(exports.executed(handle, Tag(1), next), Dirty::Reply);
    assert_eq!(exports.arrive(NOW, Link(1), &resent, false), Arrival::Refuse(Errno::EPROTO), "its slot was used again");
}

#[test]
fn several_slots_are_for_those_who_know_them() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let old = ConnectReq { features: features::VBR, ..request(5) };
    let single = accepted(connect(&mut exports, 1, 0, 1, &old, &offer()));
    assert_eq!((single.reply.features & features::MULTI_MOD_RPCS, single.reply.max_mod_rpcs), (0, 0));
    assert!(!single.multi && exports.get(single.handle).is_some_and(|export| export.generation == 0));
    let two = accepted(connect(&mut exports, 2, 0, 1, &request(6), &offer()));
    let three = accepted(connect(&mut exports, 3, 0, 1, &request(7), &ConnectOffer { max_mod_rpcs: 3, ..offer() }));
    assert_eq!((two.reply.max_mod_rpcs, three.reply.max_mod_rpcs, two.multi), (8, 3, true));
    let none = accepted(connect(&mut exports, 4, 0, 1, &request(8), &ConnectOffer { max_mod_rpcs: 0, ..offer() }));
    assert_eq!(none.reply.features & features::MULTI_MOD_RPCS, 0);
    let server = ConnectReq { lightweight: true, ..request(9) };
    let peer = accepted(connect(&mut exports, 5, 0, 1, &server, &offer()));
    assert_eq!((peer.reply.max_mod_rpcs, peer.multi), (8, false), "it has slots, and no records");
    assert!(exports.get(peer.handle).is_some_and(|export| export.generation == 0 && !export.dirty));
    let recordless = ConnectOffer { all_lightweight: true, ..offer() };
    assert_eq!(accepted(connect(&mut exports, 6, 0, 1, &request(10), &recordless)).reply.max_mod_rpcs, 0);
    let generation = |a: &Accepted| exports.get(a.handle).map(|export| export.generation);
    assert_eq!((generation(&two), generation(&three), generation(&none)), (Some(1), Some(2), Some(0)));
    // The tags that a single-slot client may use are two.
    for (client, tag, want) in [(&single, 2, Arrival::Execute), (&single, 3, Arrival::Refuse(Errno::EPROTO))] {
        let link = Link(1);
        let header =
            Header { opcode: 36, tag: Tag(tag), export: client.handle, conn_cnt: 1, xid: Xid(9), ..Header::default() };
        assert_eq!(exports.arrive(NOW, link, &Frame { header, ..Frame::default() }, false), want);
    }
}

#[test]
fn a_client_of_an_older_target_gets_slots_when_it_comes_back() {
    let mut exports = Exports::new([0, 100], Limits::default());
    exports.skip_generations(6);
    let record = SlotRecord { xid: Xid(50), transno: Transno(9), ..SlotRecord::default() };
    let handle = exports.restore(NOW, ClientUuid(5), "c".into(), (0, 0), [(Tag(1), record)]);
    let recovering = ConnectOffer { recovering: Some((1, 30)), ..offer() };
    let back = accepted(connect(&mut exports, 1, 55, 9, &request(5), &recovering));
    assert!(back.multi && back.new, "its records must be durable under their new names");
    let export = exports.get_mut(handle).expect("it is there");
    assert_eq!(export.generation, 7);
    assert_eq!(export.slots().found(Tag(1), Xid(50)), XidState::Record);
    assert_eq!(export.slots_mut().clean(Tag(1)), Some(record));
}

#[test]
fn a_copy_of_a_request_whose_slot_was_used_again_is_not_executed() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let handle = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    let frame = |xid: u64, flags: u32| Frame {
        header: Header {
            opcode: Opcode::MdsReint as u16,
            tag: Tag(3),
            flags,
            export: handle,
            conn_cnt: 1,
            xid: Xid(xid),
            ..Header::default()
        },
        ..Frame::default()
    };
    // An older request of another slot is without its answer, so last_xid does not tell.
    exports.executed(handle, Tag(3), SlotRecord { xid: Xid(20), transno: Transno(7), ..SlotRecord::default() });
    for flags in [0, flags::RESENT] {
        assert_eq!(exports.arrive(NOW, Link(1), &frame(10, flags), false), Arrival::Refuse(Errno::EPROTO));
    }
    assert_eq!(exports.arrive(NOW, Link(1), &frame(21, 0), false), Arrival::Execute);
}

#[test]
fn what_the_client_has_the_answer_to_it_says_with_its_next_request() {
    let mut exports = Exports::new([0; 2], Limits::default());
    let handle = accepted(connect(&mut exports, 1, 0, 1, &request(5), &offer())).handle;
    exports.executed(handle, Tag(3), SlotRecord { xid: Xid(20), transno: Transno(7), ..SlotRecord::default() });
    let export = exports.get(handle).expect("it is there");
    let asked = |xid: u64, busy: u64| Header { xid: Xid(xid), pre_versions: [busy, 0, 0, 0], ..Header::default() };
    assert!(!export.may_be_unanswered(Tag(3), Xid(20), &asked(30, 0b011)), "slot 3 was free");
    assert!(export.may_be_unanswered(Tag(3), Xid(20), &asked(30, 0b100)));
    assert!(export.may_be_unanswered(Tag(3), Xid(20), &asked(10, 0)), "sent before it");
    assert!(!export.may_be_unanswered(Tag(3), Xid(19), &asked(30, 0b100)), "the slot was used again");
    assert!(!export.may_be_unanswered(Tag(4), Xid(20), &asked(30, u64::MAX)));
}

// --- the window ---

const SOFT: Duration = Duration::from_secs(30);
const HARD: Duration = Duration::from_secs(180);
const GIVEN_MAX: Transno = Transno(1 << 32);

fn replay(transno: u64) -> Frame {
    Frame { header: Header { transno: Transno(transno), xid: Xid(transno), ..Header::default() }, ..Frame::default() }
}

fn next(window: &mut Window) -> Option<u64> {
    let (_, frame) = window.next_replay(|| false)?;
    window.executed(NOW);
    Some(frame.header.transno.0)
}

#[test]
fn replays_run_in_the_order_of_all_clients() {
    let (a, b) = (Handle(1), Handle(2));
    let mut w = Window::new([a, b], Transno(10), GIVEN_MAX, SOFT, HARD);
    assert_eq!(w.state(), WindowState::WaitingForClients);
    assert_eq!(w.deadline(), None, "no clock without a client");
    w.connected(NOW, a);
    assert_eq!(w.replay(NOW, a, replay(12), Transno(0)), Replayed::Queued);
    assert_eq!(w.replay(NOW, a, replay(9), Transno(0)), Replayed::Committed);
    assert_eq!((w.step(NOW), next(&mut w)), (None, None), "b is not here");
    w.connected(NOW, b);
    assert_eq!((w.step(NOW), next(&mut w)), (None, None), "b may have 11");
    w.replay(NOW, b, replay(11), Transno(0));
    assert_eq!(next(&mut w), Some(11));
    assert_eq!(w.replay(NOW, b, replay(11), Transno(11)), Replayed::Answered);
    assert_eq!(next(&mut w), None, "b may say that 12 is its own, too");
    assert_eq!(w.replay(NOW, b, replay(13), Transno(11)), Replayed::Queued);
    assert_eq!(next(&mut w), Some(12));
    w.replay(NOW, a, replay(20), Transno(12));
    assert_eq!(next(&mut w), Some(13));
    assert_eq!(w.replay(NOW, b, replay(12), Transno(11)), Replayed::Late);
    assert_eq!(next(&mut w), None, "b may have something before 20");
    w.replay(NOW, b, replay(15), Transno(11));
    assert_eq!(next(&mut w), Some(15), "a gap that nobody fills");
    assert!(!w.requests_done(NOW, b));
    assert_eq!(next(&mut w), Some(20));
    assert_eq!(w.step(NOW), None);
    assert!(!w.requests_done(NOW, a));
    assert_eq!(w.step(NOW), Some(Step::OpenLocks));
    assert!(w.requests_done(NOW, a), "asked again, it is answered at once");
    assert!(!w.locks_done(NOW, a) && w.step(NOW).is_none());
    w.locks_done(NOW, b);
    assert_eq!(w.step(NOW), Some(Step::Finish));
    assert_eq!(w.step(NOW), None);
    w.finished(NOW);
    assert!(!w.is_open() && w.locks_done(NOW, a));
    assert_eq!((w.status().completed, w.status().replayed_requests), (2, 5));
}

/// If it waited for the next replay of the first, a group could end meanwhile, and the second count as durable.
#[test]
fn a_transno_that_two_clients_claim_runs_for_both_at_once() {
    let (a, b) = (Handle(1), Handle(2));
    let mut w = Window::new([a, b], Transno(10), GIVEN_MAX, SOFT, HARD);
    for client in [a, b] {
        w.connected(NOW, client);
        w.replay(NOW, client, replay(11), Transno(0));
    }
    assert_eq!((w.step(NOW), next(&mut w)), (None, Some(11)));
    assert_eq!(next(&mut w), Some(11), "a has nothing more that could come before it");
    w.replay(NOW, b, replay(12), Transno(11));
    assert_eq!(next(&mut w), None, "a may have 12, too");
}

#[test]
fn a_gap_may_be_accepted_on_purpose() {
    let (a, b) = (Handle(1), Handle(2));
    let mut w = Window::new([a, b], Transno(10), GIVEN_MAX, SOFT, HARD);
    w.connected(NOW, a);
    w.connected(NOW, b);
    w.replay(NOW, a, replay(20), Transno(0));
    assert_eq!((w.step(NOW), next(&mut w)), (None, None), "b may have something before 20");
    assert_eq!(w.next_replay(|| true).map(|(client, _)| client), Some(a));
}

#[test]
fn who_does_not_come_or_does_not_go_on_is_given_up() {
    let (a, b, c) = (Handle(1), Handle(2), Handle(3));
    let mut w = Window::new([a, b, c], Transno(10), GIVEN_MAX, SOFT, HARD);
    w.connected(NOW, a);
    w.connected(NOW, b);
    let late = NOW + SOFT;
    assert_eq!(w.late(late - Duration::from_nanos(1)), None);
    assert_eq!(w.late(late), Some(c));
    w.gone(c);
    assert_eq!(w.step(late), None);
    // b is connected, but says nothing; a's replay cannot run.
    w.replay(late, a, replay(15), Transno(0));
    assert_eq!(next(&mut w), None);
    let late = late + SOFT;
    assert_eq!(w.waited_for(late, b), Some((SOFT + SOFT, SOFT)));
    assert_eq!(w.late(late), Some(b));
    w.gone(b);
    assert_eq!(next(&mut w), Some(15));
    assert_eq!(w.status().evicted, 2);
    assert!(stdx::marks::count("window.evict") > 0);
    w.requests_done(late, a);
    assert_eq!(w.step(late), Some(Step::OpenLocks));
    let late = late + SOFT;
    assert_eq!((w.deadline(), w.late(late)), (Some(late), Some(a)));
    w.gone(a);
    assert_eq!(w.step(late), Some(Step::Finish));
}

/// Lets time pass in steps of `pace`; at each of them `each` may do something. Gives who is evicted, and when.
fn pass(
    w: &mut Window,
    from: Instant,
    until: Instant,
    pace: Duration,
    mut each: impl FnMut(&mut Window, Instant),
) -> Vec<(Handle, Duration)> {
    let (mut now, mut evicted) = (from, Vec::new());
    while now < until {
        now = now + pace;
        each(w, now);
        loop {
            if let Some(client) = w.late(now) {
                evicted.push((client, now.since(from)));
                w.gone(client);
            }
            let step = w.step(now);
            let replay = w.next_replay(|| false);
            if replay.is_some() {
                w.executed(now);
            } else if step.is_none() {
                break;
            }
        }
    }
    evicted
}

/// One client sends a replay every five seconds and never says that it has no more.
#[test]
fn a_client_that_drips_replays_is_given_up_alone() {
    for honest_replays in [0_u64, 200] {
        let (honest, drip) = (Handle(1), Handle(2));
        let mut w = Window::new([honest, drip], Transno(10), GIVEN_MAX, SOFT, HARD);
        w.connected(NOW, honest);
        w.connected(NOW, drip);
        for n in 0..honest_replays {
            w.replay(NOW, honest, replay(1000 + n), Transno(0));
        }
        if honest_replays == 0 {
            w.requests_done(NOW, honest);
        }
        let mut transno = 10;
        let evicted = pass(&mut w, NOW, NOW + HARD, Duration::from_secs(5), |w, now| {
            transno += 1;
            w.replay(now, drip, replay(transno), Transno(0));
        });
        assert_eq!(evicted, [(drip, HARD)], "{honest_replays} replays");
        // The honest one goes on: what is left of its replays, then its locks, for which there is time.
        let now = NOW + HARD;
        assert_eq!(w.status().replayed_requests, transno - 10 + honest_replays);
        w.requests_done(now, honest);
        let _ = w.step(now);
        assert_eq!(w.state(), WindowState::Locks);
        let mut locks = 0;
        let evicted = pass(&mut w, now, now + SOFT - Duration::from_secs(1), Duration::from_secs(1), |w, now| {
            locks += 1;
            w.locks_executed(now, honest, 1);
        });
        assert_eq!((evicted, locks), (vec![], 29));
        w.locks_done(now + SOFT, honest);
        assert_eq!(w.step(now + SOFT), Some(Step::Finish));
    }
}

/// A slow client among fast ones, all of them honest: whoever waits for it is not evicted for that.
#[test]
fn a_slow_client_uses_up_nobody_elses_time() {
    let (fast, slow) = (Handle(1), Handle(2));
    let mut w = Window::new([fast, slow], Transno(0), GIVEN_MAX, SOFT, HARD);
    w.connected(NOW, fast);
    w.connected(NOW + Duration::from_secs(25), slow);
    for n in 0..60 {
        w.replay(NOW, fast, replay(2 * n + 2), Transno(0));
    }
    // One change of it every 2 s lies between each two of the other; its locks take a minute.
    let mut steps = 0;
    let evicted = pass(
        &mut w,
        NOW + Duration::from_secs(26),
        NOW + HARD - Duration::from_secs(4),
        Duration::from_secs(2),
        |w, now| {
            steps += 1;
            match steps {
                1..=60 => drop(w.replay(now, slow, replay(2 * steps - 1), Transno(0))),
                61 => {
                    w.requests_done(now, slow);
                    w.requests_done(now, fast);
                }
                _ => {
                    w.locks_done(now, fast);
                    w.locks_executed(now, slow, 1);
                }
            }
        },
    );
    assert_eq!((evicted, w.status().replayed_requests), (vec![], 120));
    assert_eq!((w.state(), w.status().completed), (WindowState::Locks, 1));
}

/// A client claims what others have done before they can say so themselves.
#[test]
fn a_claim_to_the_transnos_of_another_takes_nothing_from_it() {
    let (honest, liar) = (Handle(2), Handle(1));
    let mut w = Window::new([honest, liar], Transno(10), GIVEN_MAX, SOFT, HARD);
    w.connected(NOW, liar);
    w.connected(NOW, honest);
    for transno in 11..500 {
        assert_eq!(w.replay(NOW, liar, replay(transno), Transno(0)), Replayed::Queued);
    }
    w.requests_done(NOW, liar);
    assert_eq!((w.step(NOW), next(&mut w)), (None, None), "the honest one may have something before");
    let mut replayed = 0;
    for transno in [11, 12, 30, 400, 600] {
        assert_eq!(w.replay(NOW, honest, replay(transno), Transno(replayed)), Replayed::Queued, "{transno}");
        replayed = transno;
        let mut ran = Vec::new();
        while let Some((client, frame)) = w.next_replay(|| false) {
            ran.push((frame.header.transno.0, client));
            w.executed(NOW);
        }
        assert!(ran.is_sorted() && ran.contains(&(transno, honest)), "{ran:?}");
    }
}

#[test]
fn a_transno_that_was_never_given_is_refused() {
    let (a, b) = (Handle(1), Handle(2));
    let mut w = Window::new([a, b], Transno(10), GIVEN_MAX, SOFT, HARD);
    w.connected(NOW, a);
    w.connected(NOW, b);
    for transno in [u64::MAX, GIVEN_MAX.0 + 1] {
        assert_eq!(w.replay(NOW, a, replay(transno), Transno(0)), Replayed::NeverGiven);
    }
    w.requests_done(NOW, a);
    w.replay(NOW, b, replay(GIVEN_MAX.0), Transno(0));
    assert_eq!((w.step(NOW), next(&mut w)), (None, Some(GIVEN_MAX.0)));
    assert_eq!(w.status().next_transno, Transno(GIVEN_MAX.0 + 1));
}

#[test]
fn whatever_the_order_of_arrival_the_order_of_execution_is_that_of_transnos() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let clients: Vec<Handle> = (1..=rng.range(1, 5)).map(Handle).collect();
        let mut w = Window::new(clients.clone(), Transno(100), GIVEN_MAX, SOFT, HARD);
        let mut left: Vec<Vec<u64>> = vec![Vec::new(); clients.len()];
        let mut want = Vec::new();
        let mut transno = 100;
        for _ in 0..rng.below(40) {
            transno += rng.range(1, 3);
            want.push(transno);
            left[rng.below(clients.len() as u64) as usize].insert(0, transno);
        }
        for client in &clients {
            w.connected(NOW, *client);
        }
        let mut have = Vec::new();
        let mut done = vec![false; clients.len()];
        while !done.iter().all(|d| *d) {
            let i = rng.below(clients.len() as u64) as usize;
            match left[i].pop() {
                Some(transno) => drop(w.replay(NOW, clients[i], replay(transno), Transno(0))),
                None => {
                    w.requests_done(NOW, clients[i]);
                    done[i] = true;
                }
            }
            w.step(NOW);
            while rng.chance(2, 3) {
                match next(&mut w) {
                    Some(transno) => have.push(transno),
                    None => break,
                }
            }
        }
        while let Some(transno) = next(&mut w) {
            have.push(transno);
        }
        assert_eq!(have, want, "seed {seed}");
        assert!(matches!(w.step(NOW), Some(Step::OpenLocks)) || w.state() == WindowState::Locks, "seed {seed}");
    }
}
