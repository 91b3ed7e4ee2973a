//! Stories of one import and a server played by hand.

use core::time::Duration;

use bytes::Bytes;
use prost::Message;
use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::{ConnectRep, Empty, EnqueueReq, PingReq, ReplayFailure, ReplayLocksRep, ReplayLocksReq};
use proto::{ClientUuid, Errno, Frame, Handle, Header, Nid, Opcode, Tag, Transno, Xid};
use stdx::Instant;

use super::*;
use crate::at::Timeouts;
use crate::{Link, Slot};

#[path = "table_tests.rs"]
mod table;

struct Story {
    import: Import,
    now: Instant,
    link: Link,
    /// Frames that the client sent.
    out: Vec<Frame>,
    /// What the owner was told.
    told: Vec<ImportEffect>,
    hangups: usize,
    dials: usize,
    offer: u32,
    /// The server takes many locks at once.
    batches: bool,
    /// Granted besides.
    features: u64,
    /// Identity of the server's store.
    store: Bytes,
}

impl Story {
    fn new(change: impl FnOnce(&mut Config)) -> Story {
        let mut config = Config::new(ClientUuid(1), "fs-MDT0000".into(), vec![Nid::Unix("s".into())], 1);
        change(&mut config);
        let now = Instant(1_000_000_000);
        let import = Import::new(config, now);
        let mut story = Story {
            import,
            now,
            link: Link(0),
            out: Vec::new(),
            told: Vec::new(),
            hangups: 0,
            dials: 0,
            offer: 0,
            batches: false,
            features: 0,
            store: Bytes::new(),
        };
        story.drain();
        story
    }

    fn connected() -> Story {
        Story::with_slots(0)
    }

    /// The server allows so many changes in flight; 0: it knows no slots.
    fn with_slots(offer: u32) -> Story {
        let mut story = Story::new(|_| {});
        story.offer = offer;
        story.connect(0, 77, 0);
        story.told.clear();
        story
    }

    fn drain(&mut self) {
        while let Some(effect) = self.import.poll() {
            match effect {
                ImportEffect::Dial { link, .. } => {
                    self.link = link;
                    self.dials += 1;
                }
                ImportEffect::Send { link, frame } => {
                    assert_eq!(link, self.link);
                    self.out.push(frame);
                }
                ImportEffect::Hangup(_) => self.hangups += 1,
                told => self.told.push(told),
            }
        }
    }

    fn event(&mut self, event: ImportEvent) {
        self.import.handle(self.now, event);
        self.drain();
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(at) = self.import.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.event(ImportEvent::Tick);
        }
        self.now = end;
        self.event(ImportEvent::Tick);
    }

    fn sent(&mut self) -> Frame {
        assert!(!self.out.is_empty(), "nothing was sent");
        self.out.remove(0)
    }

    /// Dials, and answers the connect request.
    fn connect(&mut self, flag: u32, export: u64, committed: u64) -> Frame {
        if self.import.state() == State::Disconn {
            self.pass(1_000);
        }
        self.event(ImportEvent::Dialled(self.link));
        let request = self.sent();
        assert_eq!(request.header.opcode, Opcode::Connect as u16);
        let reply = ConnectRep {
            version: PROTOCOL_VERSION,
            instance: 1,
            features: self.features
                | if self.offer == 0 { 0 } else { features::MULTI_MOD_RPCS }
                | if self.batches { features::BATCH_RPC } else { 0 },
            max_mod_rpcs: self.offer,
            store: self.store.clone(),
            ..ConnectRep::default()
        };
        self.answer_with(
            &request,
            |h| {
                h.flags |= flag;
                h.export = Handle(export);
                h.last_committed = Transno(committed);
            },
            reply.encode_to_vec().into(),
        );
        request
    }

    fn answer_with(&mut self, request: &Frame, change: impl FnOnce(&mut Header), body: Bytes) {
        let mut header = Header { flags: flags::REPLY, ..request.header };
        header.transno = Transno(0);
        header.last_committed = Transno(0);
        header.timeout_ms = 0;
        change(&mut header);
        self.event(ImportEvent::Frame(self.link, Frame { header, body, bulk: Bytes::new() }));
    }

    fn answer(&mut self, request: &Frame, transno: u64, committed: u64) {
        self.answer_with(
            request,
            |h| {
                h.transno = Transno(transno);
                h.last_committed = Transno(committed);
            },
            Bytes::new(),
        );
    }

    fn submit(&mut self, slot: Slot) -> RequestId {
        let opcode = if slot == Slot::Close { Opcode::MdsClose } else { Opcode::MdsReint };
        self.submit_out(Outgoing::new(opcode, &Empty {}).in_slot(slot))
    }

    fn submit_out(&mut self, out: Outgoing) -> RequestId {
        let id = self.import.submit(self.now, out);
        self.drain();
        id
    }

    /// Breaks the connection; the client dials again.
    fn cut(&mut self) {
        self.event(ImportEvent::Closed(self.link));
    }

    fn result(&mut self, id: RequestId) -> Option<Result<i32, Errno>> {
        let at = self.told.iter().position(|t| matches!(t, ImportEffect::Reply { id: of, .. } if *of == id))?;
        match self.told.remove(at) {
            ImportEffect::Reply { result, .. } => Some(result.map(|frame| frame.header.status)),
            _ => None,
        }
    }
}

#[test]
fn a_change_at_a_time_and_a_close_beside_it() {
    let mut s = Story::connected();
    let first = s.submit(Slot::Modify);
    let second = s.submit(Slot::Modify);
    let close = s.submit(Slot::Close);
    let read = s.submit(Slot::None);
    assert_eq!(s.out.iter().map(|f| f.header.tag).collect::<Vec<_>>(), [Tag(1), Tag(2), Tag(0)]);
    let (a, b, c) = (s.sent(), s.sent(), s.sent());
    assert!(a.header.xid < b.header.xid && b.header.xid < c.header.xid);
    assert_eq!(c.header.last_xid, Xid(a.header.xid.0 - 1), "the reply of the first is missing");
    s.answer(&a, 11, 0);
    assert_eq!(s.result(first), Some(Ok(0)));
    assert!(s.out.is_empty(), "the close has the slot now");
    s.answer(&b, 0, 0);
    let d = s.sent();
    assert_eq!((d.header.tag, d.header.last_xid), (Tag(1), b.header.xid));
    assert_eq!(s.result(close), Some(Ok(0)));
    for (frame, id) in [(c, read), (d, second)] {
        s.answer(&frame, 0, 0);
        assert_eq!(s.result(id), Some(Ok(0)));
        s.answer(&frame, 0, 0);
        assert_eq!(s.result(id), None, "the same reply again means nothing");
    }
    assert_eq!(s.import.counts()[&(Opcode::MdsReint as u16)], OpcodeCount { sent: 3, ..OpcodeCount::default() });
}

/// A request that no program waits for waits like a change, until somebody waits for it.
#[test]
fn what_is_sent_behind_the_programs_backs_overtakes_when_it_is_pressed() {
    let mut s = Story::with_slots(2);
    let changes: Vec<RequestId> = (0..3).map(|_| s.submit(Slot::Modify)).collect();
    let behind = s.submit(Slot::Buffered);
    let close = s.submit(Slot::Close);
    let sent: Vec<Frame> = s.out.drain(..).collect();
    assert_eq!(sent.iter().map(|f| f.header.tag.0).collect::<Vec<_>>(), [1, 2, 3], "two changes and the close");
    let now = s.now;
    s.import.press(now, true);
    s.drain();
    let pressed = s.sent();
    assert_eq!((pressed.header.tag, s.out.len()), (Tag(4), 0), "beside the close");
    s.answer(&pressed, 10, 0);
    assert_eq!(s.result(behind), Some(Ok(0)));
    let now = s.now;
    s.import.press(now, false);
    s.answer(&sent[2], 11, 0);
    assert_eq!(s.result(close), Some(Ok(0)));
    assert!(s.out.is_empty(), "the third change waits for one of the first two");
    s.submit(Slot::Buffered);
    s.answer(&sent[0], 12, 0);
    assert_eq!((s.sent().header.tag, s.out.len()), (Tag(1), 0), "it was the first to wait");
    assert_eq!(s.result(changes[2]), None);
}

#[test]
fn many_changes_are_in_flight_and_one_close_more() {
    let mut s = Story::with_slots(4);
    assert_eq!(s.import.mod_rpcs_in_flight(), 4, "less than the client would like");
    let ids: Vec<RequestId> = (0..6).map(|_| s.submit(Slot::Modify)).collect();
    let closes = [s.submit(Slot::Close), s.submit(Slot::Close)];
    let sent: Vec<Frame> = s.out.drain(..).collect();
    let tags = |frames: &[Frame]| frames.iter().map(|f| f.header.tag.0).collect::<Vec<_>>();
    assert_eq!(tags(&sent), [1, 2, 3, 4, 5], "the fifth is a close");
    assert_eq!(sent[3].header.pre_versions, [0b0111, 0, 0, 0], "slots without an answer then");
    assert!(sent.iter().all(|f| f.header.last_xid < sent[0].header.xid));
    // The answers come in another order. A slot that is free again goes to who waited longest.
    s.answer(&sent[2], 12, 0);
    assert_eq!(s.result(ids[2]), Some(Ok(0)));
    assert!(s.out.is_empty(), "the close has taken its place");
    s.answer(&sent[1], 11, 0);
    let fifth = s.sent();
    assert_eq!((fifth.header.tag, fifth.header.pre_versions[0]), (Tag(2), 0b1_1001));
    s.answer(&sent[4], 13, 0);
    let next = s.sent();
    assert_eq!(next.header.tag, Tag(3));
    assert_eq!(next.header.opcode, Opcode::MdsReint as u16, "it waited longer than the second close");
    assert_eq!(s.sent().header.opcode, Opcode::MdsClose as u16, "which may go besides");
    assert!(s.out.is_empty());
    assert_eq!((s.result(closes[0]), s.result(closes[1])), (Some(Ok(0)), None));
    assert_eq!(s.import.mod_rpcs_histogram(), [0, 1, 1, 1, 3, 2]);
    s.import.clear_mod_rpcs_histogram(7);
    assert!(s.import.mod_rpcs_histogram().is_empty());
    // A cut: each keeps its xid, its tag, and what it said of the other slots.
    s.cut();
    s.connect(flags::CONNECT_RECONNECT, 77, 0);
    let again: Vec<Frame> = s.out.drain(..).collect();
    assert_eq!(tags(&again), [1, 4, 2, 3, 5]);
    assert!(again.iter().all(|f| f.header.has(flags::RESENT)));
    assert_eq!(again[2].header.pre_versions, fifth.header.pre_versions);
}

#[test]
fn limits_are_refused_as_lustre_refuses_them() {
    use Errno::ERANGE;
    let mut s = Story::new(|_| {});
    let now = s.now;
    assert_eq!((s.import.rpcs_in_flight(), s.import.mod_rpcs_in_flight()), (8, 7));
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 0), Err(ERANGE));
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 513), Err(ERANGE));
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 8), Err(ERANGE), "not below max_rpcs_in_flight");
    assert_eq!(s.import.set_rpcs_in_flight(1), Err(ERANGE));
    assert_eq!(s.import.set_rpcs_in_flight(513), Err(ERANGE));
    assert_eq!(s.import.set_rpcs_in_flight(512), Ok(()));
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 511), Ok(()), "before the first connect nobody knows the server's");
    s.offer = 12;
    s.connect(0, 77, 0);
    assert_eq!(s.import.mod_rpcs_in_flight(), 12);
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 13), Err(ERANGE));
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 10), Ok(()));
    assert_eq!(s.import.set_rpcs_in_flight(6), Ok(()));
    assert_eq!(s.import.mod_rpcs_in_flight(), 5);
    s.import.set_mod_rpcs_raise(true);
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 11), Ok(()));
    assert_eq!((s.import.rpcs_in_flight(), s.import.mod_rpcs_in_flight()), (12, 11));
    // A server that knows no slots, and one that does again.
    for (offer, want) in [(0, 1), (512, 11)] {
        s.offer = offer;
        s.cut();
        s.connect(flags::CONNECT_RECONNECT, 77, 0);
        assert_eq!(s.import.mod_rpcs_in_flight(), want);
    }
    assert_eq!(s.import.set_mod_rpcs_in_flight(now, 512), Ok(()));
    assert_eq!((s.import.rpcs_in_flight(), s.import.mod_rpcs_in_flight()), (512, 511));
}

#[test]
fn what_was_not_answered_is_sent_again_over_the_next_connection() {
    let mut s = Story::connected();
    let id = s.submit(Slot::Modify);
    let first = s.sent();
    let dials = s.dials;
    s.cut();
    assert_eq!(s.dials, dials + 1, "at once");
    let waiting = s.submit(Slot::None);
    assert!(s.out.is_empty());
    let connect = s.connect(flags::CONNECT_RECONNECT, 77, 0);
    assert!(connect.header.has(flags::CONNECT_RECONNECT) && connect.header.last_xid == Xid(0));
    let again = s.sent();
    assert_eq!((again.header.xid, again.header.tag), (first.header.xid, first.header.tag));
    assert!(again.header.has(flags::RESENT) && again.header.conn_cnt > first.header.conn_cnt);
    assert!(!s.sent().header.has(flags::RESENT), "what waited goes for the first time");
    s.answer(&again, 5, 0);
    assert_eq!(s.result(id), Some(Ok(0)));
    assert_eq!(s.result(waiting), None);
}

#[test]
fn a_late_answer_makes_the_connection_suspect_unless_the_server_asks_for_patience() {
    let mut s = Story::connected();
    s.submit(Slot::Modify);
    let request = s.sent();
    s.pass(9_000);
    s.answer_with(
        &request,
        |h| {
            h.flags |= flags::EARLY;
            h.timeout_ms = 5_000;
        },
        Bytes::new(),
    );
    s.pass(4_900);
    assert_eq!((s.hangups, s.import.state()), (0, State::Full));
    s.pass(200);
    assert_eq!((s.hangups, s.import.state()), (1, State::Connecting));
    s.connect(flags::CONNECT_RECONNECT, 77, 0);
    assert!(s.sent().header.has(flags::RESENT));
    assert_eq!(s.import.status().timeouts, 1);
}

#[test]
fn a_busy_server_is_asked_again_with_a_new_xid() {
    let mut s = Story::connected();
    let id = s.submit(Slot::Modify);
    let first = s.sent();
    s.answer_with(&first, |h| h.status = -Errno::EINPROGRESS.raw(), Bytes::new());
    assert_eq!(s.result(id), None);
    s.submit(Slot::Modify);
    let other = s.sent();
    s.pass(20);
    assert!(s.out.is_empty(), "another change has its slot");
    s.answer(&other, 5, 0);
    let again = s.sent();
    assert!(again.header.xid > other.header.xid && !again.header.has(flags::RESENT));
    s.answer(&again, 6, 0);
    assert_eq!(s.result(id), Some(Ok(0)));
}

#[test]
fn a_change_that_a_busy_server_refused_can_be_withdrawn() {
    let mut s = Story::connected();
    let id = s.submit(Slot::Modify);
    let first = s.sent();
    assert!(!s.import.withdraw(id), "it may have been done");
    s.answer_with(&first, |h| h.status = -Errno::EINPROGRESS.raw(), Bytes::new());
    assert!(s.import.withdraw(id));
    s.pass(1000);
    assert_eq!((s.result(id), s.out.is_empty(), s.import.status().modify_in_flight), (None, true, 0));
}

/// What one server asks of another waits there for things that later requests bring. A client's change keeps its slot.
#[test]
fn a_servers_request_has_its_slot_until_the_peer_has_it() {
    for lightweight in [true, false] {
        let mut s = Story::new(|config| (config.lightweight, config.in_flight_max) = (lightweight, 1));
        s.offer = 3;
        s.connect(0, 77, 0);
        s.told.clear();
        s.import.set_mod_rpcs_in_flight(s.now, 1).unwrap();
        let ids = [(); 3].map(|()| s.submit(Slot::Modify));
        let first = s.sent();
        assert_eq!((first.header.tag, s.out.len()), (Tag(u16::from(!lightweight)), 0));
        let early = |s: &mut Story, frame: &Frame| s.answer_with(frame, |h| h.flags |= flags::EARLY, Bytes::new());
        early(&mut s, &first);
        if !lightweight {
            assert!(s.out.is_empty());
            continue;
        }
        let second = s.sent();
        early(&mut s, &first);
        assert_eq!((s.import.status().modify_in_flight, s.out.len()), (1, 0), "it gives back one slot");
        s.submit(Slot::None);
        assert_eq!(s.sent().header.opcode, Opcode::MdsReint as u16, "nor does it take up another place");
        s.answer(&first, 0, 0);
        assert_eq!((s.result(ids[0]), s.import.status().modify_in_flight, s.out.len()), (Some(Ok(0)), 1, 0));
        s.answer(&second, 0, 0);
        let third = s.sent();
        s.answer(&third, 0, 0);
        assert_eq!((s.result(ids[2]), s.import.status().modify_in_flight), (Some(Ok(0)), 0));
        assert_eq!(s.import.mod_rpcs_histogram(), [0, 3]);
    }
}

/// Later write-back changes stand on it.
#[test]
fn a_buffered_change_that_a_busy_server_refused_keeps_its_slot() {
    let mut s = Story::connected();
    let id = s.submit(Slot::Buffered);
    let first = s.sent();
    s.answer_with(&first, |h| h.status = -Errno::EINPROGRESS.raw(), Bytes::new());
    assert!(!s.import.withdraw(id));
    assert_eq!(s.import.status().modify_in_flight, 1);
}

#[test]
fn what_the_server_chose_comes_back_with_the_replay() {
    let mut s = Story::connected();
    let modify = || Outgoing::new(Opcode::MdsReint, &Empty {}).in_slot(Slot::Modify);
    s.submit_out(Outgoing { keep_answer: true, ..modify() });
    let chosen = s.sent();
    s.answer_with(&chosen, |h| h.transno = Transno(11), Bytes::from_static(b"chosen"));
    s.submit_out(modify());
    let other = s.sent();
    s.answer_with(&other, |h| h.transno = Transno(12), Bytes::from_static(b"nothing of interest"));
    s.cut();
    s.connect(flags::CONNECT_RECOVERING, 78, 10);
    let replays = [s.sent(), s.sent()];
    assert_eq!(replays.each_ref().map(|frame| &frame.bulk[..]), [&b"chosen"[..], b""]);
}

#[test]
fn a_restarted_server_gets_everything_back_in_order() {
    let mut s = Story::connected();
    // An open that is durable, two changes that are not, and one without an answer.
    let out = Outgoing { keep_open: true, ..Outgoing::new(Opcode::MdsReint, &Empty {}).in_slot(Slot::Modify) };
    s.submit_out(out);
    let open = s.sent();
    s.answer(&open, 10, 10);
    assert!(s.import.amend(open.header.xid, Bytes::from_static(b"opened")));
    for transno in [11, 12] {
        s.submit(Slot::Modify);
        let change = s.sent();
        s.answer(&change, transno, 10);
    }
    let lost = s.submit(Slot::Modify);
    let unanswered = s.sent();
    s.cut();
    s.told.clear();
    s.connect(flags::CONNECT_RECOVERING, 78, 10);
    assert_eq!(s.import.state(), State::Replay);
    let replays = [s.sent(), s.sent(), s.sent()];
    assert_eq!(replays.each_ref().map(|f| f.header.transno.0), [10, 11, 12]);
    assert_eq!(replays.each_ref().map(|f| f.header.last_committed.0), [0, 10, 11], "each names the one before it");
    assert!(replays.iter().all(|f| f.header.has(flags::REPLAY) && f.header.export == Handle(78)));
    assert_eq!(&replays[0].body[..], b"opened");
    assert!(s.out.is_empty(), "what was not answered waits");
    // The connection breaks in the middle: only what was not answered comes again.
    s.answer(&replays[0], 10, 10);
    s.cut();
    s.connect(flags::CONNECT_RECONNECT | flags::CONNECT_RECOVERING, 78, 10);
    let again = [s.sent(), s.sent()];
    assert!(again.iter().all(|f| f.header.has(flags::RESENT | flags::REPLAY)));
    s.answer(&again[0], 11, 10);
    s.answer(&again[1], 12, 10);
    let done = s.sent();
    assert!(done.header.has(flags::REQ_REPLAY_DONE));
    s.answer(&done, 0, 10);
    assert!(s.told.iter().any(|t| matches!(t, ImportEffect::ReplayLocks { first: true })));
    s.import.locks_to_replay(s.now, vec![EnqueueReq { cookie: 5, granted_handle: 6, ..EnqueueReq::default() }]);
    s.drain();
    let lock = s.sent();
    assert!(lock.header.has(flags::REPLAY) && lock.header.opcode == Opcode::LdlmEnqueue as u16);
    s.answer(&lock, 0, 10);
    assert!(s.told.iter().any(|t| matches!(t, ImportEffect::LocksReplayed(locks) if locks[..] == [(5, Ok(0))])));
    assert!(s.told.iter().any(|t| matches!(t, ImportEffect::ReplayLocks { first: false })));
    s.import.locks_to_replay(s.now, Vec::new());
    s.drain();
    let (resent, done) = (s.sent(), s.sent());
    assert_eq!(resent.header.xid, unanswered.header.xid);
    assert!(resent.header.has(flags::RESENT) && !resent.header.has(flags::REPLAY));
    assert!(done.header.has(flags::LOCK_REPLAY_DONE));
    assert_eq!(done.decode::<PingReq>().unwrap().unanswered, [unanswered.header.xid.0]);
    assert!(stdx::marks::count("import.resent_in_recovery") > 0);
    assert_eq!(s.import.state(), State::ReplayWait);
    s.answer(&resent, 1 << 32, 12);
    assert_eq!(s.result(lost), Some(Ok(0)));
    s.answer(&done, 0, 12);
    assert_eq!(s.import.state(), State::Full);
    assert!(s.out.is_empty());
    assert_eq!(s.import.status().replay_list, 1, "the last change is not durable yet");
    assert_eq!(s.import.status().open_list, 1);
    s.import.open_closed(open.header.xid, Transno(0));
    assert_eq!(s.import.status().open_list, 0);
}

#[test]
fn an_evicted_client_starts_anew() {
    let mut s = Story::connected();
    s.submit(Slot::Modify);
    let change = s.sent();
    s.answer(&change, 11, 0);
    let (flying, waiting) = (s.submit(Slot::Modify), s.submit(Slot::Modify));
    s.sent();
    s.cut();
    s.told.clear();
    s.connect(0, 99, 0);
    assert_eq!((s.result(flying), s.result(waiting)), (Some(Err(Errno::EIO)), Some(Err(Errno::EIO))));
    let evicted = s.told.iter().position(|t| matches!(t, ImportEffect::Evicted { .. }));
    let full = s.told.iter().position(|t| matches!(t, ImportEffect::Full { fresh: true, .. }));
    assert!(evicted.is_some() && evicted < full);
    assert_eq!((s.import.generation(), s.import.status().replay_list), (1, 0));
    assert!(stdx::marks::count("import.evicted") > 0);
    s.submit(Slot::Modify);
    assert_eq!(s.sent().header.export, Handle(99));
}

#[test]
fn the_answer_that_the_session_is_unknown_leads_to_a_new_connection() {
    let mut s = Story::connected();
    let id = s.submit(Slot::None);
    let request = s.sent();
    s.answer_with(&request, |h| h.status = -Errno::ENOTCONN.raw(), Bytes::new());
    assert_eq!((s.hangups, s.result(id)), (1, None));
    assert!(stdx::marks::count("import.notconn") > 0);
    s.connect(0, 99, 0);
    assert_eq!(s.result(id), Some(Err(Errno::EIO)));
}

#[test]
fn a_soft_import_gives_up_after_a_while() {
    let mut s = Story::new(|config| config.soft = Some(Duration::from_secs(5)));
    let id = s.submit(Slot::Modify);
    for _ in 0..100 {
        s.event(ImportEvent::DialFailed(s.link, "refused".into()));
        s.pass(49);
    }
    assert_eq!(s.result(id), None);
    for _ in 0..10 {
        s.event(ImportEvent::DialFailed(s.link, "refused".into()));
        s.pass(49);
    }
    assert_eq!(s.result(id), Some(Err(Errno::EIO)));
    let id = s.submit(Slot::None);
    assert_eq!(s.result(id), Some(Err(Errno::EIO)), "at once");
    assert!(stdx::marks::count("import.soft") > 0);
    s.connect(0, 5, 0);
    let id = s.submit(Slot::None);
    assert_eq!(s.result(id), None);
}

#[test]
fn retries_come_at_once_then_slower_but_never_rarely() {
    let mut s = Story::connected();
    s.pass(2_000);
    s.out.clear();
    s.cut();
    let mut waits = Vec::new();
    for _ in 0..14 {
        s.event(ImportEvent::DialFailed(s.link, "refused".into()));
        waits.push(s.import.deadline().map_or(0, |at| at.since(s.now).as_millis()));
        s.pass(1_000);
    }
    assert!(waits[0] <= 10 && waits.iter().all(|ms| *ms <= 1_000), "{waits:?}");
    assert!(waits[13] >= 500, "{waits:?}");
    // The configuration says that the target is back: no waiting.
    let dials = s.dials;
    s.event(ImportEvent::DialFailed(s.link, "refused".into()));
    s.event(ImportEvent::Target { nids: vec![Nid::Unix("elsewhere".into())], instance: 2 });
    assert_eq!(s.dials, dials + 1);
}

#[test]
fn requests_that_may_not_be_repeated_fail_with_their_connection() {
    let mut s = Story::connected();
    let out = Outgoing { no_resend: true, ..Outgoing::new(Opcode::MdsStatfs, &Empty {}) };
    // One is sent, one waits because the server was too busy for it, one for others.
    let sent = s.submit_out(out.clone());
    let busy = s.submit_out(out.clone());
    let second = s.out.remove(1);
    s.answer_with(&second, |h| h.status = -Errno::EINPROGRESS.raw(), Bytes::new());
    s.out.clear();
    let others: Vec<_> = (0..s.import.config.in_flight_max).map(|_| s.submit(Slot::None)).collect();
    let waits = s.submit_out(out.clone());
    assert_eq!([sent, busy, waits].map(|id| s.result(id)), [None, None, None]);
    s.cut();
    assert_eq!([sent, busy, waits].map(|id| s.result(id)), [Some(Err(Errno::ETIMEDOUT)); 3]);
    let id = s.submit_out(out);
    assert_eq!(s.result(id), Some(Err(Errno::ETIMEDOUT)));
    s.out.clear();
    s.connect(flags::CONNECT_RECONNECT, 77, 0);
    s.pass(1_000);
    assert!(s.out.iter().all(|frame| frame.header.opcode == Opcode::MdsReint as u16), "none of them goes");
    assert_eq!(s.out.len(), others.len(), "and they hold up nobody");
}

/// Locks go back, and what others ask is answered, however much waits for those others.
#[test]
fn what_others_wait_for_passes_by_what_waits() {
    let mut s = Story::connected();
    for _ in 0..s.import.config.in_flight_max + 1 {
        s.submit(Slot::None);
    }
    s.out.clear();
    let answer = Outgoing { during_recovery: true, no_resend: true, ..Outgoing::new(Opcode::LdlmGlReply, &Empty {}) };
    s.submit_out(answer);
    assert_eq!(s.sent().header.opcode, Opcode::LdlmGlReply as u16);
    s.submit_out(Outgoing { during_recovery: true, ..Outgoing::new(Opcode::LdlmCancel, &Empty {}) });
    assert_eq!(s.sent().header.opcode, Opcode::LdlmCancel as u16);
}

#[test]
fn a_refusal_is_told_once_and_tried_again() {
    let mut s = Story::new(|_| {});
    for round in 0..3 {
        s.event(ImportEvent::Dialled(s.link));
        let request = s.sent();
        let reply = ConnectRep { reason: "upgrade the older side".into(), ..ConnectRep::default() };
        s.answer_with(&request, |h| h.status = -Errno::EPROTO.raw(), reply.encode_to_vec().into());
        let told =
            s.told.iter().filter(|t| matches!(t, ImportEffect::Refused { reason, .. } if reason.contains("upgrade")));
        assert_eq!(told.count(), 1, "round {round}");
        s.pass(5_001);
    }
}

/// A server turns a peer away at its door without having read its request.
#[test]
fn a_refusal_at_the_door_says_why() {
    let mut s = Story::new(|_| {});
    assert_eq!(s.import.trouble(), None);
    s.event(ImportEvent::Dialled(s.link));
    let request = s.sent();
    let turned_away = |h: &mut Header| (h.xid, h.status) = (Xid(0), -Errno::EACCES.raw());
    let reply = ConnectRep { reason: "not from there".into(), ..ConnectRep::default() };
    s.answer_with(&request, turned_away, reply.encode_to_vec().into());
    let is_told = |t: &ImportEffect| matches!(t, ImportEffect::Refused { errno: Errno::EACCES, .. });
    assert_eq!(s.told.iter().filter(|t| is_told(t)).count(), 1);
    let refused = Trouble::Refused { errno: Errno::EACCES, reason: "not from there".into() };
    assert_eq!(s.import.trouble(), Some(&refused));
    // What does not say no is not an answer to this request.
    s.pass(5_001);
    s.event(ImportEvent::Dialled(s.link));
    let request = s.sent();
    s.answer_with(&request, |h| h.xid = Xid(0), Bytes::new());
    assert_eq!(s.import.status().state, State::Connecting);
    s.event(ImportEvent::Closed(s.link));
    assert_eq!(s.import.trouble(), Some(&Trouble::HungUp));
    s.pass(1_000);
    s.event(ImportEvent::DialFailed(s.link, "nobody is there".into()));
    assert_eq!(s.import.trouble(), Some(&Trouble::Unreachable("nobody is there".into())));
    s.pass(1_000);
    s.connect(0, 77, 0);
    assert_eq!(s.import.trouble(), None);
}

#[test]
fn an_abort_takes_back_only_what_has_no_effect() {
    let mut s = Story::connected();
    let (change, waiting, read) = (s.submit(Slot::Modify), s.submit(Slot::Modify), s.submit(Slot::None));
    assert!(!s.import.abort(change));
    assert!(s.import.abort(waiting) && s.import.abort(read));
    let (first, _read) = (s.sent(), s.sent());
    s.answer(&first, 1, 0);
    assert!(s.out.is_empty() && s.import.status().queued == 0);
}

#[test]
fn pings_fetch_what_is_durable() {
    let mut s = Story::connected();
    s.submit(Slot::Modify);
    let change = s.sent();
    s.answer(&change, 11, 0);
    s.pass(1_600);
    let ping = s.sent();
    assert_eq!(ping.header.opcode, Opcode::Ping as u16);
    s.answer(&ping, 0, 11);
    assert_eq!(s.import.status().replay_list, 0);
    s.pass(20_000);
    assert!(s.out.is_empty(), "nothing to learn");
}

#[test]
fn a_replay_waits_at_its_site() {
    let faults = stdx::Faults::allowed(1);
    let mut s = Story::new(|config| config.faults = faults.clone());
    s.connect(0, 77, 0);
    s.submit(Slot::Modify);
    let change = s.sent();
    s.answer(&change, 11, 0);
    faults.set_val(2);
    faults.set_loc(u32::from(stdx::faults::sites::PTLRPC_REPLAY_PAUSE.0) | stdx::faults::ONCE);
    s.cut();
    s.connect(flags::CONNECT_RECOVERING, 78, 0);
    s.pass(1_900);
    assert!(s.out.is_empty() && s.import.state() == State::Replay);
    s.pass(200);
    assert_eq!(s.sent().header.transno, Transno(11));
}

#[test]
fn a_good_bye_waits_until_what_the_server_lost_is_replayed() {
    // The server is away when the good-bye is wanted, or dies over it.
    for away in [true, false] {
        let mut s = Story::connected();
        s.submit(Slot::Modify);
        let change = s.sent();
        s.answer(&change, 11, 0);
        if away {
            s.cut();
            s.import.disconnect(s.now);
        } else {
            s.import.disconnect(s.now);
            s.drain();
            assert_eq!(s.sent().header.opcode, Opcode::Disconnect as u16);
            s.cut();
        }
        s.connect(flags::CONNECT_RECOVERING, 78, 0);
        let replay = s.sent();
        assert_eq!((replay.header.opcode, replay.header.transno), (change.header.opcode, Transno(11)));
        s.answer(&replay, 11, 0);
        let requests_done = s.sent();
        s.answer(&requests_done, 0, 0);
        s.import.locks_to_replay(s.now, Vec::new());
        s.drain();
        let locks_done = s.sent();
        s.answer(&locks_done, 0, 0);
        assert_eq!(s.import.state(), State::Full);
        let goodbye = s.sent();
        assert_eq!(goodbye.header.opcode, Opcode::Disconnect as u16);
        s.answer(&goodbye, 0, 11);
        assert_eq!(s.import.state(), State::Closed);
        assert!(s.told.iter().any(|told| matches!(told, ImportEffect::Disconnected)));
    }
}

#[test]
fn a_good_bye_waits_neither_for_nothing_nor_for_ever() {
    let mut s = Story::connected();
    s.cut();
    s.import.disconnect(s.now);
    assert_eq!(s.import.state(), State::Closed, "there is nothing to replay");
    let mut s = Story::connected();
    s.submit(Slot::Modify);
    let change = s.sent();
    s.answer(&change, 11, 0);
    s.cut();
    s.import.disconnect(s.now);
    s.pass(170_000);
    assert_ne!(s.import.state(), State::Closed);
    s.pass(11_000);
    assert_eq!(s.import.state(), State::Closed);
}

#[test]
fn each_address_has_its_turn_and_the_good_one_is_kept() {
    let nid = |name: &str| Nid::Unix(name.into());
    let mut s = Story::new(|config| config.nids = vec![nid("a"), nid("b")]);
    let current = |s: &Story| s.import.status().current_nid;
    assert_eq!(current(&s), Some(nid("a")));
    s.event(ImportEvent::DialFailed(s.link, "refused".into()));
    assert_eq!(current(&s), Some(nid("b")), "at once");
    s.connect(0, 77, 0);
    s.pass(2_000);
    s.cut();
    assert_eq!((current(&s), s.import.state()), (Some(nid("b")), State::Connecting), "where it was");
    s.event(ImportEvent::DialFailed(s.link, "refused".into()));
    assert_eq!(current(&s), Some(nid("a")));
    s.event(ImportEvent::Target { nids: vec![nid("c")], instance: 2 });
    assert_eq!(current(&s), Some(nid("c")));
}

/// A dial into the void may last long; the word of the MGS ends it.
#[test]
fn a_dial_that_hangs_ends_when_the_target_is_there_again() {
    let mut s = Story::connected();
    s.pass(2_000);
    s.cut();
    let (dials, nids) = (s.dials, vec![Nid::Unix("s".into())]);
    s.event(ImportEvent::Target { nids: nids.clone(), instance: 2 });
    assert_eq!(s.dials, dials, "a new dial will do");
    s.pass(3_000);
    s.event(ImportEvent::Target { nids: nids.clone(), instance: 2 });
    assert_eq!(s.dials, dials, "nothing new");
    s.event(ImportEvent::Target { nids, instance: 3 });
    assert_eq!(s.dials, dials + 1);
}

#[test]
fn the_import_knows_its_last_states_and_how_long_answers_take() {
    let mut s = Story::connected();
    s.submit(Slot::Modify);
    s.pass(40);
    let request = s.sent();
    s.answer(&request, 5, 0);
    assert_eq!(s.import.status().mean_wait, Duration::from_millis(40));
    s.cut();
    s.connect(flags::CONNECT_RECOVERING, 78, 0);
    let states: Vec<State> = s.import.status().history.iter().map(|(_, state)| *state).collect();
    use State::*;
    assert_eq!(states, [Connecting, Full, Disconn, Connecting, Replay]);
}

impl Story {
    /// The server restarts and wants the locks.
    fn restarts(&mut self, export: u64) {
        self.cut();
        self.connect(flags::CONNECT_RECOVERING, export, 0);
        let done = self.sent();
        assert!(done.header.has(flags::REQ_REPLAY_DONE));
        self.answer(&done, 0, 0);
    }

    /// Gives locks with these cookies if they are wanted.
    fn give_locks(&mut self, first: bool, cookies: core::ops::Range<u64>) {
        let asked = |t: &ImportEffect| matches!(t, ImportEffect::ReplayLocks { first: asked } if *asked == first);
        assert!(self.told.iter().any(asked), "{:?}", self.told);
        self.told.clear();
        let lock = |cookie| EnqueueReq { cookie, granted_handle: cookie + 1000, ..EnqueueReq::default() };
        self.import.locks_to_replay(self.now, cookies.map(lock).collect());
        self.drain();
    }

    fn locks_replayed(&mut self) -> Vec<(u64, Result<u64, Errno>)> {
        let take = |t: &ImportEffect| if let ImportEffect::LocksReplayed(l) = t { Some(l.clone()) } else { None };
        let all = self.told.iter().filter_map(take).flatten().collect();
        self.told.retain(|t| !matches!(t, ImportEffect::LocksReplayed(_)));
        all
    }
}

/// Cookies of the locks in a request.
fn batch(frame: &Frame) -> Vec<u64> {
    assert!(frame.header.opcode == Opcode::LdlmReplay as u16 && frame.header.has(flags::REPLAY));
    let request: ReplayLocksReq = frame.decode().unwrap();
    request.iter().map(|lock| lock.unwrap().cookie).collect()
}

#[test]
fn many_locks_are_replayed_in_one_request() {
    let mut s = Story::new(|_| {});
    s.batches = true;
    s.connect(0, 77, 0);
    s.restarts(78);
    s.give_locks(true, 0..40_000);
    let sent: Vec<Frame> = s.out.drain(..).collect();
    assert_eq!(sent.len(), 4, "a window of them");
    assert!(sent.iter().all(|frame| (64 << 10..65 << 10).contains(&frame.body.len())));
    let first = batch(&sent[0]);
    assert!(first.len() > 1000 && first[..3] == [0, 1, 2]);
    // One of them is refused, and the server forgot to speak of the last one.
    let handles = first.iter().map(|cookie| cookie + 5000).take(first.len() - 1).collect();
    let failed = vec![ReplayFailure { index: 1, errno: 116 }, ReplayFailure { index: 1 << 31, errno: 5 }];
    s.answer_with(&sent[0], |_| {}, ReplayLocksRep { handles, failed }.encode_to_vec().into());
    let results = s.locks_replayed();
    assert_eq!(results[..3], [(0, Ok(5000)), (1, Err(Errno::ESTALE)), (2, Ok(5002))]);
    assert_eq!(results.last(), Some(&(first[first.len() - 1], Err(Errno::EPROTO))));
    let next = s.sent();
    assert_eq!(batch(&next)[0], sent.iter().map(|frame| batch(frame).len() as u64).sum());
    // The connection breaks: what was not answered comes again, the same.
    s.cut();
    s.connect(flags::CONNECT_RECONNECT | flags::CONNECT_RECOVERING, 78, 0);
    let again: Vec<Frame> = s.out.drain(..).collect();
    let xids = |frames: &[Frame]| frames.iter().map(|frame| (frame.header.xid, batch(frame))).collect::<Vec<_>>();
    assert_eq!(xids(&again), xids(&[&sent[1..], &[next]].concat()));
    assert!(again.iter().all(|frame| frame.header.has(flags::RESENT)));
    // An error of the whole request is one of each lock.
    s.answer_with(&again[0], |h| h.status = -Errno::EPROTO.raw(), Bytes::new());
    assert!(s.locks_replayed().iter().all(|(_, result)| *result == Err(Errno::EPROTO)));
    // The server dies in the middle: everything from the beginning.
    s.out.clear();
    s.restarts(79);
    s.give_locks(true, 0..2);
    let all = s.sent();
    assert_eq!(batch(&all), [0, 1]);
    s.give_locks(false, 2..3);
    let more = s.sent();
    assert_eq!(batch(&more), [2]);
    for (frame, handles) in [(&all, vec![7, 0]), (&more, vec![9])] {
        s.answer_with(frame, |_| {}, ReplayLocksRep { handles, failed: vec![] }.encode_to_vec().into());
    }
    assert_eq!(s.locks_replayed(), [(0, Ok(7)), (1, Ok(0)), (2, Ok(9))]);
    assert_eq!(s.import.state(), State::ReplayLocks, "until the owner says that there are no more");
    s.give_locks(false, 0..0);
    let done = s.sent();
    assert!(done.header.has(flags::LOCK_REPLAY_DONE));
    s.answer(&done, 0, 0);
    assert_eq!(s.import.state(), State::Full);
}

/// Pings, too: what the server says of its times, and what the network adds.
#[test]
fn requests_may_take_as_long_as_the_server_says() {
    let mut s = Story::new(|config| config.timeouts = Timeouts::default());
    s.connect(0, 77, 0);
    let waits = |s: &mut Story| {
        s.submit(Slot::None);
        let request = s.sent();
        (request.header.timeout_ms, request)
    };
    let (ms, request) = waits(&mut s);
    assert_eq!(ms, 11_250, "at rest");
    s.answer_with(&request, |h| h.timeout_ms = 40_000, Bytes::new());
    let (ms, request) = waits(&mut s);
    assert_eq!(ms, 55_000);
    s.answer(&request, 0, 0);
    s.pass(25_000);
    let ping = s.sent();
    assert_eq!((ping.header.opcode, ping.header.timeout_ms), (Opcode::Ping as u16, 55_000));
    s.pass(2_000);
    s.answer(&ping, 0, 0);
    let (ms, request) = waits(&mut s);
    assert_eq!(ms, 57_000, "the network takes 2 s");
    let status = s.import.status();
    assert_eq!((status.service.worst().as_secs(), status.network.worst().as_secs()), (40, 2));
    // A request that was sent before does not hear of it; without an answer it is suspected after its own time.
    let hangups = s.hangups;
    s.pass(56_000);
    assert_eq!(s.hangups, hangups);
    s.pass(1_000);
    assert_eq!((s.hangups, s.import.status().timeouts), (hangups + 1, 1));
    drop(request);
    s.import.set_timeouts(&Timeouts { at_max: Duration::ZERO, ..Timeouts::default() });
    s.out.clear();
    s.connect(flags::CONNECT_RECONNECT, 77, 0);
    s.out.clear();
    assert_eq!(waits(&mut s).0, 100_000, "nothing is estimated any more");
}

#[test]
fn no_signs_of_life_where_they_are_not_wanted() {
    let mut s = Story::new(|_| {});
    s.features = features::PINGLESS;
    s.connect(0, 77, 0);
    s.pass(1_000_000);
    assert!(s.out.is_empty() && s.import.state() == State::Full);
    // But it fetches what is durable while it keeps something for replay.
    s.submit(Slot::Modify);
    let request = s.sent();
    s.answer(&request, 5, 0);
    s.pass(1_600);
    let ping = s.sent();
    assert_eq!(ping.header.opcode, Opcode::Ping as u16);
    s.answer(&ping, 0, 5);
    s.pass(1_000_000);
    assert!(s.out.is_empty());
}

/// What was durable in one store says nothing of another: an object target may be replaced by an empty one.
#[test]
fn what_was_durable_is_said_to_the_store_that_said_so() {
    for lightweight in [false, true] {
        let mut s = Story::new(|config| config.lightweight = lightweight);
        let mut connects = |store: &'static [u8], committed| {
            s.store = Bytes::from_static(store);
            let request: proto::msg::ConnectReq = s.connect(0, 77 + committed, committed).decode().unwrap();
            s.event(ImportEvent::Closed(s.link));
            (request.seen_store, request.seen_committed)
        };
        assert_eq!(connects(b"one", 9), (Bytes::new(), 0));
        assert_eq!(connects(b"one", 12), (Bytes::from_static(b"one"), 9));
        assert_eq!(connects(b"two", 3), (Bytes::from_static(b"one"), 12));
        assert_eq!(connects(b"", 5), (Bytes::from_static(b"two"), 3));
        assert_eq!(connects(b"two", 8), (Bytes::new(), 5), "an older version says nothing of its store");
        assert_eq!(connects(b"two", 8), (Bytes::from_static(b"two"), 8));
    }
}

/// A target that restarted evicts its client while that gives back what was lost: what it has not said that it did again is lost.
#[test]
fn what_was_being_replayed_is_lost_with_an_eviction() {
    for answered in 0..=2 {
        let mut s = Story::connected();
        for transno in [11, 12] {
            s.submit(Slot::Modify);
            let change = s.sent();
            s.answer(&change, transno, 0);
        }
        s.cut();
        s.connect(flags::CONNECT_RECOVERING, 78, 0);
        let replays = [s.sent(), s.sent()];
        for (replay, transno) in replays.iter().zip([11, 12]).take(answered) {
            s.answer(replay, transno, 0);
        }
        s.out.clear();
        s.cut();
        s.told.clear();
        s.connect(0, 99, 0);
        let lost = s.told.iter().find_map(|told| match told {
            ImportEffect::Evicted { lost } => Some(lost.len()),
            _ => None,
        });
        assert_eq!(lost, Some(2 - answered));
    }
}

#[test]
fn a_question_that_the_server_left_open_when_it_died_is_asked_again_after_its_recovery() {
    let mut s = Story::connected();
    let asked = s.submit(Slot::None);
    let question = s.sent();
    s.told.clear();
    s.restarts(78);
    s.give_locks(true, 0..0);
    let done = s.sent();
    assert!(done.header.has(flags::LOCK_REPLAY_DONE));
    assert!(s.out.is_empty(), "it changes nothing: it has time");
    s.answer(&done, 0, 0);
    let again = s.sent();
    assert_eq!(again.header.xid, question.header.xid);
    assert!(again.header.has(flags::RESENT));
    s.answer(&again, 0, 0);
    assert_eq!(s.result(asked), Some(Ok(0)));
}
