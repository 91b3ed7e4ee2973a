//! Stories of a recovery as an administrator sees it, shortens it and ends it.

use prost::Message;
use proto::connect::features;
use proto::frame::flags;
use proto::msg::{ConnectRep, EnqueueReq, LockMode, PingReq, Policy, RegisterRep, bits};
use proto::{Errno, Frame, Handle, Header, Nid, Opcode, TargetKind, Xid};

use super::ledger::{APPEND, Ask, CREATE, Ledger, READ, entries};
use super::story::{Story, engine, ledger, options};
use target::{Event, Options, Service, StopReason, UnfitStore};

const WALL_S: i64 = 1_700_000_000;

impl<S: Service> Story<S> {
    fn ping(&mut self, conn: u64, export: Handle, flag: u32) {
        let header = self.header(conn, export, Opcode::Ping, 0);
        self.frame(conn, Frame { header: Header { flags: flag, ..header }, ..Frame::default() });
    }

    fn status(&self) -> String {
        self.param("mdt.*.recovery_status")
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Errno> {
        let result = self.set_param(&format!("mdt.fs-MDT0000.{name}"), value);
        self.drain();
        result
    }
}

/// Two clients are known; the target was restarted and its clock set.
fn restarted(options: Options) -> Story<Ledger> {
    let mut s = ledger();
    s.connect(1, 1);
    s.connect(2, 2);
    let mut s = s.restart(Ledger::default(), options);
    s.event(Event::WallClock(WALL_S * 1_000_000_000));
    s
}

#[test]
fn the_status_tells_how_far_it_is_and_who_is_missing() {
    assert_eq!(ledger().status(), "status: INACTIVE\n");
    let mut s = restarted(options());
    s.pass(700_000);
    let missing = |client: u64| format!(" - client {client} (00000000-0000-0000-0000-00000000000{client})\n");
    let waiting = s.status();
    let head = "status: WAITING_FOR_CLIENTS\nconnected_clients: 0/2\nmissing_clients:\n";
    assert_eq!(waiting, format!("{head}{}{}", missing(1), missing(2)), "no clock runs");

    let first = s.connect(1, 1);
    s.pass(4_000);
    let text = s.status();
    let rows = [
        "status: RECOVERING".to_owned(),
        format!("recovery_start: {WALL_S}"),
        "time_remaining: 26".into(),
        "connected_clients: 1/2".into(),
        "req_replay_clients: 2".into(),
        "lock_repay_clients: 2".into(),
        "completed_clients: 0".into(),
        "evicted_clients: 0".into(),
        "replayed_requests: 0".into(),
        "queued_requests: 0".into(),
    ];
    assert!(text.starts_with(&rows.join("\n")), "{text}");
    assert!(
        text.contains("\nnext_transno: ") && text.ends_with(&format!("missing_clients:\n{}", missing(2))),
        "{text}"
    );

    let second = s.connect(2, 2);
    assert!(!s.status().contains("missing_clients"), "{}", s.status());
    for (conn, export) in [(1, first), (2, second)] {
        s.ping(conn, export, flags::REQ_REPLAY_DONE);
    }
    assert!(s.status().contains("req_replay_clients: 0\nlock_repay_clients: 2\n"), "{}", s.status());
    s.ping(1, first, flags::LOCK_REPLAY_DONE);
    assert!(s.status().contains("completed_clients: 1\n"), "{}", s.status());
    s.ping(2, second, flags::LOCK_REPLAY_DONE);
    let text = s.status();
    let rows = [
        "status: COMPLETE".to_owned(),
        format!("recovery_start: {WALL_S}"),
        "recovery_duration: 4".into(),
        "completed_clients: 2/2".into(),
        "evicted_clients: 0".into(),
        "replayed_requests: 0".into(),
    ];
    assert!(text.starts_with(&rows.join("\n")), "{text}");
    assert!(text.ends_with("VBR: DISABLED\nIR: DISABLED\n"), "no MGS was told: {text}");
}

#[test]
fn who_is_not_known_is_told_to_come_later_and_starts_the_clock() {
    let mut s = restarted(options());
    let refusal = s.connect_as(3, 3, false);
    assert_eq!(refusal.header.status, -Errno::EBUSY.raw());
    let reply: ConnectRep = refusal.decode().unwrap();
    assert_eq!(reply.recovery_time_left_s, 180);
    assert!(reply.reason.contains("waits for 2 clients"), "{}", reply.reason);
    assert!(s.status().starts_with("status: RECOVERING"), "{}", s.status());
    s.pass(31_000);
    assert!(s.status().contains("completed_clients: 0/2\nevicted_clients: 2\n"), "{}", s.status());
    s.connect(4, 3);
}

#[test]
fn an_administrator_ends_it() {
    let mut s = restarted(options());
    let through = s.connect(1, 1);
    s.ping(1, through, flags::REQ_REPLAY_DONE);
    assert!(!s.t().is_serving() && s.try_reply(1).is_none());
    assert_eq!(s.set("abort_recovery", "1"), Ok(()));
    assert!(s.t().is_serving());
    let text = s.status();
    assert!(text.contains("completed_clients: 0/2\nevicted_clients: 2\n") && text.contains("VBR: ENABLED"), "{text}");
    s.ping(1, through, 0);
    assert_eq!(s.reply(1).header.status, -Errno::ENOTCONN.raw(), "it was not through, so it starts anew");
    assert_eq!(s.set("abort_recovery", "1"), Ok(()), "there is nothing to end");
}

#[test]
fn a_client_is_evicted_by_name_or_address() {
    let mut s = ledger();
    for (conn, client, address) in [(1, 1, "10.0.0.1:900"), (2, 2, "10.0.0.2:901"), (3, 3, "10.0.0.2:902")] {
        s.peer.address = address.into();
        s.connect(conn, client);
    }
    for nobody in ["", "nobody", "uuid:nobody", "nid:10.0.0.3", "nid:10.0.0.1:901", "nid:"] {
        assert_eq!(s.set("evict_client", nobody), Err(Errno::ENXIO), "{nobody}");
    }
    assert_eq!(s.set("evict_client", "uuid:00000000-0000-0000-0000-000000000001"), Ok(()));
    assert_eq!((s.param("mdt.*.eviction_count"), s.param("mdt.*.num_exports")), ("1".into(), "2".into()));
    assert_eq!(s.set("evict_client", "nid:10.0.0.2:901"), Ok(()));
    assert_eq!(s.param("mdt.*.num_exports"), "1");
    s.peer.address = "10.0.0.4:903".into();
    s.connect(4, 4);
    assert_eq!(s.set("evict_client", "nid:10.0.0.2"), Ok(()));
    assert_eq!((s.param("mdt.*.eviction_count"), s.param("mdt.*.num_exports")), ("3".into(), "1".into()));
}

#[test]
fn a_target_whose_transnos_are_used_up_does_not_start() {
    let epoch = |store: &store::MemEngine| {
        let key = <schema::Header as schema::Record>::key(&());
        let sealed = store::Engine::get(store, &key).unwrap().unwrap();
        let body = schema::formats().open(&key, &sealed).unwrap();
        let header = <schema::Header as schema::Record>::decode_record(&body).unwrap();
        (header.epoch, header.mount_count)
    };
    let s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |h| h.epoch = u32::MAX), options());
    assert!(matches!(s.why_stopped(), StopReason::Unfit(UnfitStore::Epochs { .. })), "{:?}", s.stopped);
    assert_eq!(epoch(&s.host.engine), (u32::MAX, 0), "and wrote nothing");
    let s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |h| h.epoch = u32::MAX - 1), options());
    assert_eq!((s.stopped, epoch(&s.host.engine)), (None, (u32::MAX, 1)));
}

/// An eviction says why in the log, and to the client when it comes back; once.
#[test]
fn a_client_that_was_evicted_is_told_why() {
    let mut s = ledger();
    let holder = s.connect(1, 1);
    let other = s.connect(2, 2);
    super::story::lock(&mut s, 1, holder, 5);
    s.append(2, other, 5);
    s.pass(20_001);
    let line = s.logs.iter().map(|(_, line)| line).find(|line| line.starts_with("evicts client 1"));
    let line = line.expect("it did not answer").clone();
    let reason = "it did not give back its lock on [0x200000400:0x6:0x0] within 20 s (ldlm_timeout), asked 20 s ago";
    assert!(line.contains(reason) && line.contains("last heard of 20 s ago at"), "{line}");
    assert!(line.contains("it loses 1 locks and 0 requests under way"), "{line}");
    for (conn, told) in [(3, reason), (4, "")] {
        let reply: ConnectRep = s.connect_as(conn, 1, false).decode().unwrap();
        assert_eq!(reply.reason, told);
    }
}

/// When the MGS has told the clients they are back soon, so those who are not are waited for less.
#[test]
fn imperative_recovery_makes_the_window_shorter() {
    for (noir, factor, left) in [(false, "5", 15), (false, "1", 12), (false, "10", 30), (true, "5", 30)] {
        let mgs = vec![Nid::Unix("mgs".into())];
        let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |h| h.registered = true), options());
        s.connect(1, 1);
        s.connect(2, 2);
        let mut s = s.restart(Ledger::default(), Options { mgs, noir, ..options() });
        assert_eq!(s.set("ir_factor", factor), Ok(()));
        let here = s.connect(1, 1);
        s.ping(1, here, flags::REQ_REPLAY_DONE);
        assert!(s.status().contains("time_remaining: 30\n"), "the MGS knows nothing yet: {}", s.status());
        let conn = s.take_connect();
        let register = s.reply(conn.0);
        assert_eq!(register.header.opcode, Opcode::MgsRegister as u16);
        s.say(conn, &register, 0, Handle(5), prost::Message::encode_to_vec(&RegisterRep::default()).into());
        assert!(s.status().contains(&format!("time_remaining: {left}\n")), "{noir} {factor}: {}", s.status());
        s.pass(left * 1000 - 1);
        assert!(s.status().contains("evicted_clients: 0\n"), "{}", s.status());
        s.pass(2);
        s.ping(1, here, flags::LOCK_REPLAY_DONE);
        let text = s.status();
        assert!(text.contains("evicted_clients: 1\n"), "{text}");
        assert!(text.ends_with(if noir { "IR: DISABLED\n" } else { "IR: ENABLED\n" }), "{text}");
        assert_eq!(s.param("mdt.*.recovery_time_soft"), "30", "what was asked for is as it was");
    }
    let mut s = ledger();
    for wrong in ["0", "11"] {
        assert_eq!(s.set("ir_factor", wrong), Err(Errno::ERANGE));
    }
    assert_eq!(s.set("ir_factor", "x"), Err(Errno::EINVAL));
}

/// That its disk is full is no word against a target.
#[test]
fn a_full_mgs_is_asked_again_and_stops_nobody() {
    let mgs = vec![Nid::Unix("mgs".into())];
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |h| h.registered = true), options());
    s.connect(1, 1);
    let mut s = s.restart(Ledger::default(), Options { mgs, ..options() });
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    s.say(conn, &register, -Errno::ENOSPC.raw(), Handle(5), bytes::Bytes::new());
    s.pass(10_100);
    let again = s.reply(conn.0);
    assert_eq!(again.header.opcode, Opcode::MgsRegister as u16);
    assert!(stdx::marks::count("target.mgs_is_full") > 0);
    s.say(conn, &again, 0, Handle(5), prost::Message::encode_to_vec(&RegisterRep::default()).into());
    assert_eq!(s.reply(conn.0).header.opcode, Opcode::MgsConfigGet as u16, "it goes on");
}

/// The window may be changed while it is open.
#[test]
fn the_window_is_as_long_as_it_was_said_last() {
    let mut s = restarted(options());
    s.connect(1, 1);
    s.pass(5_000);
    assert_eq!(s.set("recovery_time_soft", "100"), Ok(()));
    assert!(s.status().contains("time_remaining: 95\n"), "{}", s.status());
    assert_eq!(s.set("recovery_time_hard", "60"), Ok(()));
    assert!(s.status().contains("time_remaining: 95\n"), "the hard limit is at least the soft one: {}", s.status());
    assert_eq!(s.set("recovery_time_soft", "8"), Ok(()));
    assert!(s.status().contains("time_remaining: 3\n"), "{}", s.status());
    s.pass(3_000);
    assert_eq!(s.param("mdt.*.eviction_count"), "1");
}

/// A request that waits for a lock: its client is told to be patient 5 s before its time is up, for 30 s and what it
/// took; one that asks again over another connection waits anew.
#[test]
fn a_client_hears_in_time_that_it_is_to_wait() {
    let early = |s: &mut Story<Ledger>, conn: u64, after: u64, more: u32| {
        s.pass(after - 1);
        assert!(s.try_reply(conn).is_none(), "not before {after} ms");
        s.pass(1);
        let reply = s.reply(conn);
        assert!(reply.header.has(flags::EARLY), "{reply:?}");
        assert_eq!(reply.header.timeout_ms, more);
    };
    // Client 2 is missing, so what client 1 asks waits.
    let mut s = restarted(options());
    let export = s.connect(1, 1);
    let header = s.header(1, export, Opcode::Ping, 0);
    let header = Header { flags: flags::REQ_REPLAY_DONE, timeout_ms: 11_250, ..header };
    s.frame(1, Frame { header, ..Frame::default() });
    early(&mut s, 1, 6_250, 36_250);
    s.connect_again(3, 1, export);
    let reply = s.reply(3);
    let again = Header { flags: header.flags | flags::RESENT, conn_cnt: 3, export: reply.header.export, ..header };
    assert_eq!(reply.header.status, 0);
    s.frame(3, Frame { header: again, ..Frame::default() });
    early(&mut s, 3, 6_250, 36_250);
    // Without estimates at half of what the client waits, for as long again.
    assert_eq!(s.set_param("at_max", "0"), Ok(()));
    let mut s = restarted(Options {
        timeouts: rpc::at::Timeouts { at_max: core::time::Duration::ZERO, ..options().timeouts },
        ..options()
    });
    let export = s.connect(1, 1);
    let header = s.header(1, export, Opcode::Ping, 0);
    s.frame(1, Frame { header: Header { flags: flags::REQ_REPLAY_DONE, ..header }, ..Frame::default() });
    early(&mut s, 1, 5_000, 10_000);
    early(&mut s, 1, 5_000, 10_000);
}

#[test]
fn replies_say_how_long_requests_take() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.timeout_ms, 5_000, "at_min");
    // A request waits 9 s for a lock of a client that does not answer.
    assert_eq!(s.set_param("ldlm_timeout", "9"), Ok(()));
    let other = s.connect(2, 2);
    super::story::lock(&mut s, 2, other, 5);
    s.append(1, export, 5);
    s.pass(9_001);
    while s.try_reply(1).is_some() {}
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.timeout_ms, 9_000);
    assert_eq!(s.param("mdt.*.timeouts"), "service : cur    9  worst    9    9   0   0   0\n");
    assert_eq!(s.set_param("at_max", "0"), Ok(()));
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.timeout_ms, 0, "nothing is estimated");
}

/// `timeout` sets the pace of signs of life, and who may do without them is not missed.
#[test]
fn the_silent_are_evicted_after_six_intervals_or_never() {
    let mut s = ledger();
    assert_eq!(s.set_param("timeout", "20"), Ok(()));
    assert_eq!(s.param("ping_interval"), "5");
    s.connect_with(1, 1, false, features::PINGLESS);
    assert_eq!(s.reply(1).decode::<ConnectRep>().unwrap().features, 0, "signs of life are wanted");
    s.pass(29_000);
    assert_eq!(s.param("mdt.*.num_exports"), "1");
    s.pass(3_000);
    assert_eq!(s.param("mdt.*.num_exports"), "0");
    assert_eq!(s.set_param("suppress_pings", "1"), Ok(()));
    s.connect_with(2, 1, false, features::PINGLESS);
    s.connect_with(3, 2, false, 0);
    assert_eq!(s.reply(2).decode::<ConnectRep>().unwrap().features, features::PINGLESS);
    s.pass(40_000);
    assert_eq!(s.param("mdt.*.num_exports"), "1", "the one that knows nothing of it is evicted");
    assert_eq!((s.param("suppress_pings"), s.param("ldlm_timeout")), ("1".into(), "20".into()));
    assert_eq!(s.set_param("timeout", "0"), Err(Errno::ERANGE));
}

#[test]
fn a_client_that_is_refused_again_and_again_is_told_of_once() {
    let mut s = ledger();
    s.connect(1, 1);
    s.pass(2_000);
    let mut s = s.restart(Ledger::default(), options());
    let told = |s: &Story<Ledger>| -> Vec<String> {
        let lines = s.logs.iter().map(|(_, line)| line.clone());
        lines.filter(|line| line.contains("refused client 2") || line.contains("client 2 is in")).collect()
    };
    for n in 0..25 {
        assert_eq!(s.connect_as(10 + n, 2, false).header.status, -Errno::EBUSY.raw());
    }
    let lines = told(&s);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(!lines[0].contains("times") && lines[1].contains("(10 times)"), "{lines:?}");
    assert_eq!(s.connect_as(50, 3, false).header.status, -Errno::EBUSY.raw());
    assert!(s.logs.iter().any(|(_, line)| line.contains("refused client 3")), "each client by itself");
    s.pass(60_000);
    s.connect(60, 2);
    let lines = told(&s);
    assert!(lines.len() == 3 && lines[2].contains("refused 25 times"), "{lines:?}");
}

/// A client that recovers gives no lock back before the recovery is over; who asks for one then would have it evicted.
#[test]
fn nobody_asks_for_new_locks_while_others_replay_theirs() {
    let mut s = restarted(options());
    let (honest, liar) = (s.connect(1, 1), s.connect(2, 2));
    for (conn, export) in [(1, honest), (2, liar)] {
        s.ping(conn, export, flags::REQ_REPLAY_DONE);
    }
    let lock = |mode: LockMode, granted_handle, glimpse| EnqueueReq {
        resource: Ask::resource(5),
        mode: mode as i32,
        cookie: 1,
        policy: Some(Policy::Bits(bits::UPDATE)),
        granted_handle,
        glimpse,
        ..EnqueueReq::default()
    };
    let send = |s: &mut Story<Ledger>, conn, export, lock: EnqueueReq| {
        s.sent.clear();
        let header = s.header(conn, export, Opcode::LdlmEnqueue, 0);
        let header = Header { flags: flags::REPLAY, ..header };
        s.frame(conn, Frame { header, body: lock.encode_to_vec().into(), ..Frame::default() });
        let called_back = s.sent.iter().any(|(_, frame)| frame.header.opcode == Opcode::LdlmBlCallback as u16);
        let status = s.sent.iter().find(|(_, frame)| frame.header.xid == header.xid).map(|(_, f)| f.header.status);
        (status, called_back)
    };
    assert_eq!(send(&mut s, 1, honest, lock(LockMode::Pr, 77, false)), (Some(0), false));
    let refused = (Some(-Errno::EPROTO.raw()), false);
    assert_eq!(send(&mut s, 2, liar, lock(LockMode::Ex, 0, false)), refused);
    assert_eq!(send(&mut s, 2, liar, lock(LockMode::Ex, 3, true)), refused);
    assert_eq!(send(&mut s, 2, liar, lock(LockMode::Ex, 3, false)), (Some(-Errno::ESTALE.raw()), false));
    assert!(stdx::marks::count("target.no_lock_replay") > 0);
}

/// A restarted target whose two clients are through but for what the second has to say. What was asked of it meanwhile waits.
fn nearly_over() -> (Story<Ledger>, Handle, Handle) {
    let mut s = restarted(options());
    let (asks, changes) = (s.connect(1, 1), s.connect(2, 2));
    for (conn, export) in [(1, asks), (2, changes)] {
        s.ping(conn, export, flags::REQ_REPLAY_DONE);
    }
    s.ping(1, asks, flags::LOCK_REPLAY_DONE);
    s.sent.clear();
    (s, asks, changes)
}

impl Story<Ledger> {
    fn read_list(&mut self, conn: u64, export: Handle) -> Xid {
        let ask = Ask { kind: READ, key: 5, ..Ask::default() };
        self.request(conn, export, Opcode::MdsGetattr, 0, ask.bytes())
    }

    fn answer_to(&self, xid: Xid) -> Option<&Frame> {
        self.sent.iter().map(|(_, frame)| frame).find(|frame| frame.header.xid == xid)
    }

    /// Sends a change as one that was sent before the restart.
    fn append_again(&mut self, conn: u64, header: Header) {
        let ask = Ask { kind: APPEND, key: 5, client: conn, n: 1, handle: 0 };
        let header = Header { flags: flags::RESENT, ..header };
        self.frame(conn, Frame { header, body: ask.bytes(), ..Frame::default() });
    }

    fn through(&mut self, conn: u64, export: Handle, unanswered: Vec<u64>) {
        let header = self.header(conn, export, Opcode::Ping, 0);
        let header = Header { flags: flags::LOCK_REPLAY_DONE, ..header };
        let body = PingReq { unanswered }.encode_to_vec().into();
        self.frame(conn, Frame { header, body, ..Frame::default() });
    }
}

#[test]
fn what_was_never_answered_is_done_before_anybody_is_served() {
    let (mut s, asks, changes) = nearly_over();
    let read = s.read_list(1, asks);
    let header = s.header(2, changes, Opcode::MdsReint, 1);
    // Named, and lost on the way: its client is not through.
    s.through(2, changes, vec![header.xid.0]);
    assert!(s.status().starts_with("status: RECOVERING"), "{}", s.status());
    assert!(stdx::marks::count("target.unanswered_missing") > 0);
    s.append_again(2, header);
    assert_eq!(s.answer_to(header.xid), None, "its turn comes when all are through");
    s.through(2, changes, vec![header.xid.0]);
    assert!(s.status().starts_with("status: COMPLETE"), "{}", s.status());
    assert_eq!(s.answer_to(header.xid).map(|frame| frame.header.status), Some(0));
    let list = entries(&s.answer_to(read).expect("an answer").body);
    assert_eq!(list, [(2, 1)], "who asked first sees it");
    assert!(stdx::marks::count("target.unanswered_first") > 0);
}

/// It waits for a lock whose holder has something to write first, and can write only when it is served.
#[test]
fn nobody_waits_for_long_for_what_was_never_answered() {
    let mut s = restarted(options());
    let (holds, changes) = (s.connect(1, 1), s.connect(2, 2));
    for (conn, export) in [(1, holds), (2, changes)] {
        s.ping(conn, export, flags::REQ_REPLAY_DONE);
    }
    let lock = EnqueueReq {
        resource: Ask::resource(5),
        mode: LockMode::Pr as i32,
        cookie: 1,
        policy: Some(Policy::Bits(bits::UPDATE)),
        granted_handle: 77,
        ..EnqueueReq::default()
    };
    let header = Header { flags: flags::REPLAY, ..s.header(1, holds, Opcode::LdlmEnqueue, 0) };
    s.frame(1, Frame { header, body: lock.encode_to_vec().into(), ..Frame::default() });
    s.ping(1, holds, flags::LOCK_REPLAY_DONE);
    let header = s.header(2, changes, Opcode::MdsReint, 1);
    s.append_again(2, header);
    s.through(2, changes, vec![header.xid.0]);
    let read = s.read_list(1, holds);
    s.pass(1_900);
    assert!(s.status().starts_with("status: RECOVERING"), "{}", s.status());
    assert_eq!(s.answer_to(read), None);
    s.pass(200);
    assert!(s.status().starts_with("status: COMPLETE"), "{}", s.status());
    assert_eq!(s.answer_to(read).map(|frame| frame.body.len()), Some(0));
    assert_eq!(
        s.answer_to(header.xid).filter(|frame| !frame.header.has(flags::EARLY)),
        None,
        "it still waits for the lock"
    );
    assert!(stdx::marks::count("window.unanswered_late") > 0);
}

/// One hangs on the other, and nobody knows any more in which order they were done.
#[test]
fn what_was_never_answered_and_fails_is_tried_again_when_the_others_are_done() {
    let (mut s, first, second) = nearly_over();
    s.ping(1, first, flags::LOCK_REPLAY_DONE);
    let (create, append) = (s.header(2, second, Opcode::MdsReint, 1), s.header(1, first, Opcode::MdsReint, 1));
    let ask = |kind, client| Ask { kind, key: 5, client, n: 1, handle: 0 }.bytes();
    for (conn, header, body) in [(1, append, ask(APPEND, 1)), (2, create, ask(CREATE, 2))] {
        let header = Header { flags: flags::RESENT, ..header };
        s.frame(conn, Frame { header, body, ..Frame::default() });
    }
    s.through(2, second, vec![create.xid.0]);
    assert!(s.status().starts_with("status: COMPLETE"), "{}", s.status());
    let status = |xid| s.answer_to(xid).map(|frame| frame.header.status);
    assert_eq!(
        (status(append.xid), status(create.xid)),
        (Some(0), Some(-Errno::EEXIST.raw())),
        "each is answered once"
    );
    assert!(stdx::marks::count("target.unanswered_last") > 0);
}
