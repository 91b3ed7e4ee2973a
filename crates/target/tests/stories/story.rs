//! Single stories: a target on the driver of the test kit, and peers played by hand.

use core::time::Duration;

use prost::Message;
use proto::connect::PROTOCOL_VERSION;
use proto::frame::flags;
use proto::msg::{
    BlCallback, Config, ConnectRep, ConnectReq, Empty, EnqueueReq, Flock, LockMode, Param, Policy, RegisterRep,
    Resource, TargetEntry, bits,
};
use proto::{
    Bytes, Errno, Fid, Frame, Handle, Header, Nid, Opcode, Tag, TargetIndex, TargetKind, TargetName, Transno, Xid,
};
use schema::Record;
use stdx::{Instant, Rng};
use store::{CommitPolicy, Engine, EngineError, Key, MemEngine, Space};
use testkit::host::Host;

use super::ledger::{APPEND, Ask, HANDLE, IN_PART, Ledger, OPEN, READ, entries};
use target::{
    ConnId, Cx, DataOp, DataResult, Effect, Event, Format, LogLevel, Options, Reply, Request, Service, Stop,
    StopReason, Target, Task, UnfitStore,
};

fn name(kind: TargetKind) -> TargetName {
    TargetName { fsname: "fs".into(), kind, index: TargetIndex(0) }
}

/// A target and its surroundings. Groups are committed when the story says so ([`Host::by_hand`]), data operations are done
/// when it says so.
pub(super) struct Story<S: Service> {
    pub host: Host<Target<S>>,
    pub now: Instant,
    pub sent: Vec<(ConnId, Frame)>,
    pub dials: Vec<ConnId>,
    pub hangups: Vec<ConnId>,
    pub logs: Vec<(LogLevel, String)>,
    /// The target has ended, for a reason of its own or because it was asked to.
    pub stopped: Option<Option<StopReason>>,
    pub serving: bool,
    pub xid: u64,
    /// The peer of the next connections.
    pub peer: target::Peer,
}

pub(super) fn engine(kind: TargetKind, change: impl FnOnce(&mut schema::Header)) -> MemEngine {
    let engine = MemEngine::new();
    let format = Format {
        name: name(kind),
        uuid: 7,
        mgs: vec![Nid::Unix("mgs".into())],
        version: "0".into(),
        wall_ns: 0,
        params: vec![],
        name_key: None,
        replaces: false,
    };
    let mut batch = target::format(&format);
    let mut header = schema::Header {
        name: name(kind).to_string(),
        uuid: vec![7; 16].into(),
        registered: true,
        ..schema::Header::default()
    };
    change(&mut header);
    batch.put(schema::Header::key(&()), header.encode_record());
    engine.commit(1, &batch.seal(&schema::formats())).unwrap();
    engine
}

pub(super) fn options() -> Options {
    let commit = CommitPolicy { interval: Duration::from_secs(1), dirty_limit: 64 << 10 };
    Options { commit, ..Options::default() }
}

pub(super) fn ledger() -> Story<Ledger> {
    Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), options())
}

impl<S: Service> Story<S> {
    pub(super) fn start(service: S, engine: MemEngine, options: Options) -> Story<S> {
        let now = Instant(1_000_000_000_000);
        let last_group = engine.last_group().unwrap();
        let mut host = Host::new(engine);
        host.slow_data = true;
        host.machine = Some(Target::new(service, options, last_group, now));
        let mut story = Story {
            host,
            now,
            sent: Vec::new(),
            dials: Vec::new(),
            hangups: Vec::new(),
            logs: Vec::new(),
            stopped: None,
            serving: false,
            xid: 100,
            peer: target::Peer { ours: true, ..target::Peer::default() },
        };
        story.drain();
        story
    }

    pub(super) fn t(&self) -> &Target<S> {
        self.host.machine.as_ref().unwrap()
    }

    pub(super) fn set_param(&mut self, path: &str, value: &str) -> Result<(), Errno> {
        self.host.machine.as_mut().unwrap().set_param(self.now, path, value)
    }

    pub(super) fn shutdown(&mut self) {
        self.host.machine.as_mut().unwrap().shutdown(self.now);
    }

    pub(super) fn drain(&mut self) {
        loop {
            while let Some(effect) = self.host.poll(self.now) {
                match effect {
                    Effect::Send { conn, frame } => self.sent.push((conn, frame)),
                    Effect::Hangup { conn } => self.hangups.push(conn),
                    Effect::Dial { conn, .. } => self.dials.push(conn),
                    Effect::Serving { .. } => self.serving = true,
                    Effect::Log(level, line) => self.logs.push((level, line)),
                    Effect::Stop { reason } => self.stopped = Some(reason),
                    other => unreachable!("the host does it: {other:?}"),
                }
            }
            if !self.host.media_turn(self.now) {
                return;
            }
        }
    }

    pub(super) fn commit(&mut self) {
        self.host.commit(self.now);
        self.drain();
    }

    pub(super) fn event(&mut self, event: Event) {
        self.host.tell(self.now, event);
        self.drain();
    }

    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(at) = self.host.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.event(Event::Tick);
        }
        self.now = end;
        self.event(Event::Tick);
    }

    pub(super) fn connect_as(&mut self, conn: u64, client: u128, lightweight: bool) -> Frame {
        self.connect_with(conn, client, lightweight, 0);
        self.reply(conn)
    }

    pub(super) fn connect_with(&mut self, conn: u64, client: u128, lightweight: bool, features: u64) {
        self.connect_to(conn, client, lightweight, features, Handle(0));
    }

    /// Connects again to the session that it has.
    pub(super) fn connect_again(&mut self, conn: u64, client: u128, session: Handle) {
        self.connect_to(conn, client, false, 0, session);
    }

    fn connect_to(&mut self, conn: u64, client: u128, lightweight: bool, features: u64, export: Handle) {
        self.event(Event::Accepted { conn: ConnId(conn), peer: self.peer.clone() });
        let target = self.t().name().to_string();
        let body = ConnectReq {
            client_uuid: client.to_be_bytes().to_vec().into(),
            target,
            version: PROTOCOL_VERSION,
            description: format!("client {client}"),
            lightweight,
            features,
            ..ConnectReq::default()
        };
        let opcode = Opcode::Connect as u16;
        let header = Header { opcode, export, conn_cnt: conn as u32, xid: Xid(1), ..Header::default() };
        self.frame(conn, Frame { header, body: body.encode_to_vec().into(), bulk: Bytes::new() });
    }

    /// Connects; gives the session's handle.
    pub(super) fn connect(&mut self, conn: u64, client: u128) -> Handle {
        let reply = self.connect_as(conn, client, false);
        assert_eq!(reply.header.status, 0, "{reply:?}");
        reply.header.export
    }

    pub(super) fn frame(&mut self, conn: u64, frame: Frame) {
        self.event(Event::Frame { conn: ConnId(conn), frame });
    }

    pub(super) fn header(&mut self, conn: u64, export: Handle, opcode: Opcode, tag: u16) -> Header {
        self.xid += 1;
        Header {
            opcode: opcode as u16,
            tag: Tag(tag),
            conn_cnt: conn as u32,
            export,
            xid: Xid(self.xid),
            timeout_ms: 10_000,
            ..Header::default()
        }
    }

    pub(super) fn request(&mut self, conn: u64, export: Handle, opcode: Opcode, tag: u16, body: Bytes) -> Xid {
        let header = self.header(conn, export, opcode, tag);
        self.frame(conn, Frame { header, body, bulk: Bytes::new() });
        header.xid
    }

    /// What a client is told to be durable.
    pub(super) fn last_committed(&mut self, conn: u64, export: Handle) -> Transno {
        self.request(conn, export, Opcode::Ping, 0, Bytes::new());
        self.reply(conn).header.last_committed
    }

    pub(super) fn append(&mut self, conn: u64, export: Handle, key: u64) -> Xid {
        self.append_in(conn, export, key, 1)
    }

    pub(super) fn append_in(&mut self, conn: u64, export: Handle, key: u64, tag: u16) -> Xid {
        let n = self.xid;
        let ask = Ask { kind: APPEND, key, client: conn, n, handle: 0 };
        self.request(conn, export, Opcode::MdsReint, tag, ask.bytes())
    }

    /// What was sent to a connection, oldest first.
    pub(super) fn reply(&mut self, conn: u64) -> Frame {
        self.try_reply(conn).unwrap_or_else(|| panic!("nothing was sent to {conn}"))
    }

    pub(super) fn try_reply(&mut self, conn: u64) -> Option<Frame> {
        let at = self.sent.iter().position(|(to, _)| to.0 == conn)?;
        Some(self.sent.remove(at).1)
    }

    /// Kills the target and starts it again over what is durable.
    pub(super) fn restart(self, service: S, options: Options) -> Story<S> {
        let engine = self.host.engine.clone();
        engine.crash(&mut Rng::new(1));
        Story::start(service, engine, options)
    }

    /// Why it stopped by itself.
    pub(super) fn why_stopped(&self) -> StopReason {
        self.stopped.clone().flatten().expect("it stopped by itself")
    }

    pub(super) fn param(&self, pattern: &str) -> String {
        let found = self.t().get_params(pattern);
        assert_eq!(found.len(), 1, "{pattern}: {found:?}");
        found[0].1.clone()
    }
}

#[test]
fn a_start_is_counted_before_anybody_is_served() {
    let s = ledger();
    assert!(s.serving && s.t().service().recovered && s.t().is_serving());
    assert_eq!(s.param("mdt.*.instance"), "1");
    let s = s.restart(Ledger::default(), options());
    assert_eq!(s.param("mdt.*.instance"), "2");
}

#[test]
fn a_store_that_is_not_for_this_target_is_refused_with_a_sentence() {
    let why = |engine, options| Story::start(Ledger::default(), engine, options).why_stopped();
    let refused = |engine, options| match why(engine, options) {
        StopReason::Unfit(unfit) => unfit,
        other => panic!("{other}"),
    };
    let future = engine(TargetKind::Mdt, |h| h.incompat = 0x2000);
    let newer = refused(future, options());
    assert!(
        newer.to_string().contains("needs feature '0x2000' that this version lacks") && !newer.is_damage(),
        "{newer}"
    );
    let other_kind = refused(engine(TargetKind::Ost, |_| {}), options());
    assert_eq!(other_kind, UnfitStore::OtherKind { found: name(TargetKind::Ost) });
    assert_eq!(refused(MemEngine::new(), options()), UnfitStore::NoTarget);
    let other = Options { name: Some(TargetName { index: TargetIndex(3), ..name(TargetKind::Mdt) }), ..options() };
    assert!(refused(engine(TargetKind::Mdt, |_| {}), other).to_string().contains("not 'fs-MDT0003'"));
    let wrong_key = refused(engine(TargetKind::Mdt, |h| h.incompat = target::format_features::KEYED_NAMES), options());
    assert!(matches!(wrong_key, UnfitStore::Key { found: 0, wanted: 16, .. }) && wrong_key.is_damage(), "{wrong_key}");
    let damaged = engine(TargetKind::Mdt, |_| {});
    damaged.damage(&schema::Header::key(&()), &mut Rng::new(1));
    assert!(matches!(why(damaged, options()), StopReason::FirstRecords { errno: Errno::EIO, .. }));
}

#[test]
fn an_acknowledged_change_becomes_durable_by_itself_and_an_fsynced_one_at_once() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.host.by_hand = true;
    s.append(1, export, 5);
    let reply = s.reply(1);
    assert!(reply.header.transno.0 > 1 << 32 && reply.header.last_committed < reply.header.transno);
    assert!(s.host.groups.is_empty(), "a group collects for a while");
    s.request(1, export, Opcode::MdsSync, 0, Bytes::new());
    assert!(s.try_reply(1).is_none() && !s.host.groups.is_empty(), "somebody waits");
    s.commit();
    assert_eq!(s.reply(1).header.last_committed, reply.header.transno);
    s.append(1, export, 5);
    s.pass(999);
    assert!(s.host.groups.is_empty());
    s.pass(2);
    assert!(!s.host.groups.is_empty());
}

#[test]
fn what_hangs_on_anothers_uncommitted_change_waits() {
    let mut s = ledger();
    let (a, b) = (s.connect(1, 1), s.connect(2, 2));
    s.host.by_hand = true;
    s.append(1, a, 5);
    s.append(1, a, 5);
    s.reply(1);
    s.reply(1);
    s.append(2, b, 6);
    s.reply(2);
    s.append(2, b, 5);
    assert!(s.try_reply(2).is_none());
    s.commit();
    assert_eq!(s.reply(2).header.status, 0);
    assert_eq!(s.set_param("mdt.fs-MDT0000.commit_on_sharing", "0"), Ok(()));
    s.append(1, a, 5);
    s.reply(1);
    s.append(2, b, 5);
    s.reply(2);
}

/// A part of a request fails by itself: there is nothing of it in the store, and nobody waits for it.
#[test]
fn what_failed_in_part_has_never_been() {
    let mut s = ledger();
    let (a, b) = (s.connect(1, 1), s.connect(2, 2));
    s.host.by_hand = true;
    s.request(1, a, Opcode::MdsReint, 1, Ask { kind: IN_PART, key: 5, client: 1, n: 1, ..Ask::default() }.bytes());
    assert_eq!(s.reply(1).header.status, 0);
    for (key, count) in [(5, 0), (6, 1)] {
        s.request(1, a, Opcode::MdsGetattr, 0, Ask { kind: READ, key, ..Ask::default() }.bytes());
        assert_eq!(entries(&s.reply(1).body).len(), count, "list {key}");
    }
    s.append(2, b, 5);
    assert!(s.try_reply(2).is_some(), "nobody has changed it");
    s.append(2, b, 6);
    assert!(s.try_reply(2).is_none());
    s.commit();
    assert_eq!(s.reply(2).header.status, 0);
}

#[test]
fn a_commit_that_fails_stops_the_target() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.host.by_hand = true;
    s.append(1, export, 5);
    s.pass(1_001);
    let group = s.host.groups.pop_front().unwrap();
    s.host.engine.fail_next_commit(EngineError::Io { place: "disk".into(), what: "broken".into() });
    let error = group.run(&s.host.engine).unwrap_err();
    s.event(Event::CommitFailed { group: 3, reason: error.clone() });
    assert_eq!(s.why_stopped(), StopReason::Commit(error));
    s.sent.clear();
    s.append(1, export, 5);
    assert!(s.sent.is_empty(), "nothing is answered from then on");
}

/// The medium refuses the group that the target has handed over.
fn refuse_for_space(s: &mut Story<Ledger>, group: &store::Group) {
    s.host.engine.fail_next_commit(EngineError::Full { place: "disk".into(), what: "full".into() });
    let reason = group.clone().run(&s.host.engine).unwrap_err();
    s.event(Event::CommitDelayed { group: group.number(), reason });
}

#[test]
fn a_full_disk_delays_the_group_and_refuses_changes_until_there_is_space() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.host.by_hand = true;
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0);
    s.pass(1_001);
    for _ in 0..3 {
        let group = s.host.groups.pop_front().expect("the same group is tried again");
        refuse_for_space(&mut s, &group);
        assert_eq!(s.stopped, None);
        s.append(1, export, 5);
        assert_eq!(s.reply(1).header.status, -Errno::ENOSPC.raw());
        s.request(1, export, Opcode::MdsGetattr, 0, Ask { kind: READ, key: 5, ..Ask::default() }.bytes());
        assert_eq!(s.reply(1).header.status, 0, "reads go on");
        assert!(s.host.groups.is_empty(), "not before its time");
        s.pass(1_001);
    }
    let said = s.logs.iter().filter(|(_, line)| line.contains("make room")).count();
    assert_eq!(said, 1, "once: {:?}", s.logs);
    let committed = s.last_committed(1, export);
    s.commit();
    assert!(s.last_committed(1, export) > committed, "nothing of the group was dropped");
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0);
}

#[test]
fn a_full_disk_does_not_keep_a_target_from_being_stopped() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.host.by_hand = true;
    s.append(1, export, 5);
    s.pass(1_001);
    let group = s.host.groups.pop_front().unwrap();
    refuse_for_space(&mut s, &group);
    s.shutdown();
    s.pass(1_001);
    let group = s.host.groups.pop_front().unwrap();
    refuse_for_space(&mut s, &group);
    assert!(matches!(s.why_stopped(), StopReason::Commit(EngineError::Full { .. })), "{:?}", s.stopped);
}

#[test]
fn a_shutdown_makes_everything_durable_and_keeps_the_clients() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    s.shutdown();
    s.drain();
    assert_eq!(s.stopped, Some(None));
    let mut s = s.restart(Ledger::default(), options());
    assert!(!s.t().is_serving(), "it waits for its client");
    assert_eq!(s.connect_as(9, 9, false).header.status, -Errno::EBUSY.raw());
    let reply = s.connect_as(1, 1, false);
    assert!(reply.header.has(flags::CONNECT_RECOVERING));
    let export = reply.header.export;
    for flag in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
        let header = s.header(1, export, Opcode::Ping, 0);
        s.frame(1, Frame { header: Header { flags: flag, ..header }, ..Frame::default() });
        assert_eq!(s.reply(1).header.status, 0);
    }
    assert!(s.t().is_serving());
    assert!(s.param("mdt.*.recovery_status").contains("COMPLETE"));
    s.append(1, export, 5);
    assert_eq!(s.reply(1).body[..], 2u64.to_le_bytes(), "the first append is there");
}

#[test]
fn a_client_that_does_not_come_back_is_given_up_and_forgotten() {
    let mut s = ledger();
    s.connect(1, 1);
    s.connect(2, 2);
    let mut s = s.restart(Ledger::default(), options());
    let back = s.connect_as(1, 1, false).header.export;
    let header = s.header(1, back, Opcode::Ping, 0);
    s.frame(1, Frame { header: Header { flags: flags::REQ_REPLAY_DONE, ..header }, ..Frame::default() });
    assert!(s.try_reply(1).is_none(), "client 2 is missing");
    s.pass(6_000);
    assert!(s.reply(1).header.has(flags::EARLY), "meanwhile the client is told to be patient");
    s.pass(26_000);
    assert_eq!(s.param("mdt.*.eviction_count"), "1");
    let header = s.header(1, back, Opcode::Ping, 0);
    s.frame(1, Frame { header: Header { flags: flags::LOCK_REPLAY_DONE, ..header }, ..Frame::default() });
    assert!(s.t().is_serving());
    s.pass(2_000);
    let s = s.restart(Ledger::default(), options());
    assert!(s.param("mdt.*.recovery_status").contains("WAITING_FOR_CLIENTS"));
    assert_eq!(s.param("mdt.*.num_exports"), "1");
    let s = s.restart(Ledger::default(), Options { abort_recovery: true, ..options() });
    assert!(s.t().is_serving());
    assert_eq!(s.param("mdt.*.num_exports"), "0");
}

#[test]
fn a_good_bye_is_answered_when_everything_is_durable_and_leaves_nothing() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    s.reply(1);
    s.host.by_hand = true;
    s.request(1, export, Opcode::Disconnect, 0, Bytes::new());
    assert!(s.try_reply(1).is_none());
    s.commit();
    assert_eq!(s.reply(1).header.status, 0);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, -Errno::ENOTCONN.raw());
    assert!(s.restart(Ledger::default(), options()).t().is_serving());
}

pub(super) fn lock(s: &mut Story<Ledger>, conn: u64, export: Handle, key: u64) {
    let body = EnqueueReq {
        resource: Ask::resource(key),
        mode: LockMode::Pr as i32,
        cookie: 1,
        policy: Some(Policy::Bits(bits::UPDATE)),
        ..EnqueueReq::default()
    };
    s.request(conn, export, Opcode::LdlmEnqueue, 0, body.encode_to_vec().into());
    assert_eq!(s.reply(conn).header.status, 0);
}

#[test]
fn a_client_is_told_to_keep_fewer_locks_when_they_take_more_memory_than_is_set() {
    let mut s = ledger();
    s.connect_with(1, 1, false, proto::connect::features::LRU_RESIZE);
    let export = s.reply(1).header.export;
    let threshold = "ldlm.namespaces.fs-MDT0000.lock_reclaim_threshold_mb";
    let fits = (1 << 20) / dlm::server::LOCK_BYTES as u64;
    for (mb, told) in [("2", false), ("1", true)] {
        assert_eq!(s.set_param(threshold, mb), Ok(()));
        assert_eq!(s.param(threshold), mb);
        s.drain();
        s.sent.clear();
        let first = if told { fits + 101 } else { 1 };
        for key in first..first + fits + 100 {
            let body = EnqueueReq {
                resource: Ask::resource(key),
                mode: LockMode::Pr as i32,
                cookie: key,
                policy: Some(Policy::Bits(bits::UPDATE)),
                ..EnqueueReq::default()
            };
            s.request(1, export, Opcode::LdlmEnqueue, 0, body.encode_to_vec().into());
            if told && key == first + 100 {
                break;
            }
        }
        let limits = s.sent.iter().filter(|(_, frame)| frame.header.opcode == Opcode::LdlmLruLimit as u16).count();
        assert_eq!(limits > 0, told, "{mb} MiB: {limits}");
    }
}

#[test]
fn who_keeps_a_lock_that_another_needs_is_evicted() {
    let mut s = ledger();
    let (a, b) = (s.connect(1, 1), s.connect(2, 2));
    lock(&mut s, 1, a, 5);
    s.append(2, b, 5);
    let callback: BlCallback = s.reply(1).decode().unwrap();
    assert_eq!(callback.resource, Ask::resource(5));
    // Signs of life do not help; a reconnect brings the callback again.
    s.pass(10_000);
    assert!(s.reply(2).header.has(flags::EARLY));
    s.request(1, a, Opcode::Ping, 0, Bytes::new());
    s.reply(1);
    s.pass(11_000);
    assert!(s.hangups.contains(&ConnId(1)), "{:?}", s.logs);
    let reply = loop {
        let reply = s.reply(2);
        if !reply.header.has(flags::EARLY) {
            break reply;
        }
    };
    assert_eq!(reply.header.status, 0, "the other goes on");
    assert!(stdx::marks::count("target.evict") > 0 && stdx::marks::count("target.early_reply") > 0);
}

#[test]
fn who_waits_for_a_third_before_it_gives_back_is_not_evicted_while_it_is_there() {
    for there in [true, false] {
        let mut s = ledger();
        let (a, b, c) = (s.connect(1, 1), s.connect(2, 2), s.connect(3, 3));
        lock(&mut s, 1, a, 5);
        lock(&mut s, 3, c, 6);
        s.append(2, b, 5);
        s.append(1, a, 6);
        // The third gives nothing back but writes, now and then.
        for second in (0..60).step_by(5) {
            s.pass(5_000);
            if second % 20 == 0 && there {
                s.request(1, a, Opcode::Ping, 0, Bytes::new());
            }
            s.append(3, c, 7);
        }
        assert_eq!(!s.hangups.contains(&ConnId(1)), there, "{:?}", s.logs);
        assert!(!s.hangups.contains(&ConnId(3)), "{:?}", s.logs);
        // It is evicted in its turn, and then nothing of the first waits any more.
        s.pass(21_000);
        assert!(s.hangups.contains(&ConnId(3)), "{:?}", s.logs);
        s.pass(21_000);
        assert!(s.hangups.contains(&ConnId(1)), "{:?}", s.logs);
    }
}

#[test]
fn who_waits_for_a_record_lock_is_evicted_all_the_same() {
    let mut s = ledger();
    let (a, b) = (s.connect(1, 1), s.connect(2, 2));
    lock(&mut s, 1, a, 5);
    let records = |owner, cookie| EnqueueReq {
        resource: Resource::flock(Fid::new(Fid::SEQ_FIRST, 7)),
        mode: LockMode::Pw as i32,
        cookie,
        policy: Some(Policy::Flock(Flock { start: 0, end: 9, owner, pid: 1, is_flock: false })),
        ..EnqueueReq::default()
    };
    s.request(1, a, Opcode::LdlmEnqueue, 0, records(1, 11).encode_to_vec().into());
    assert_eq!(s.reply(1).header.status, 0);
    s.request(1, a, Opcode::LdlmEnqueue, 0, records(2, 12).encode_to_vec().into());
    assert!(s.try_reply(1).is_none(), "it waits for its own");
    s.append(2, b, 5);
    for _ in 0..5 {
        s.pass(5_000);
        if !s.hangups.contains(&ConnId(1)) {
            s.request(1, a, Opcode::Ping, 0, Bytes::new());
        }
    }
    assert!(s.hangups.contains(&ConnId(1)), "{:?}", s.logs);
}

#[test]
fn callbacks_come_again_after_a_reconnect() {
    let mut s = ledger();
    let (a, b) = (s.connect(1, 1), s.connect(2, 2));
    lock(&mut s, 1, a, 5);
    s.event(Event::Closed { conn: ConnId(1) });
    s.append(2, b, 5);
    assert!(s.try_reply(1).is_none(), "nowhere to send it");
    s.event(Event::Accepted { conn: ConnId(3), peer: target::Peer::default() });
    let body = ConnectReq {
        client_uuid: 1u128.to_be_bytes().to_vec().into(),
        target: "fs-MDT0000".into(),
        version: PROTOCOL_VERSION,
        ..ConnectReq::default()
    };
    let header = Header { opcode: Opcode::Connect as u16, conn_cnt: 3, xid: Xid(1), export: a, ..Header::default() };
    s.frame(3, Frame { header, body: body.encode_to_vec().into(), bulk: Bytes::new() });
    assert!(s.reply(3).header.has(flags::CONNECT_RECONNECT));
    assert_eq!(s.reply(3).header.opcode, Opcode::LdlmBlCallback as u16);
}

#[test]
fn nobody_makes_the_target_hold_more_than_it_wants() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.host.by_hand = true;
    s.pass(1_001);
    // While a group is written, the next one fills up to its limit; then changes wait.
    s.append(1, export, 1);
    s.pass(1_001);
    let mut unanswered = 0;
    for key in 0..3_000 {
        s.append(1, export, key);
        unanswered += usize::from(s.try_reply(1).is_none());
    }
    assert!(unanswered > 0 && stdx::marks::count("target.throttled") > 0);
    assert!(s.param("mdt.*.dirty_bytes").parse::<usize>().unwrap() < 200 << 10);
    let busy = s.sent.iter().filter(|(_, f)| f.header.status == -Errno::EINPROGRESS.raw()).count();
    assert_eq!(busy, 0, "those were seen as they came");
    s.commit();
    s.commit();
    assert!(s.sent.iter().any(|(_, f)| f.header.status == 0 && f.header.transno.0 != 0), "then they go on");
}

#[test]
fn a_full_store_says_so_before_it_is_too_late() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.event(Event::Space(Space {
        total: 1 << 30,
        free: 1 << 10,
        reserve: 1 << 20,
        at_once: 1 << 30,
        records: 1,
        disk: 0,
    }));
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, -Errno::ENOSPC.raw());
    s.request(1, export, Opcode::MdsGetattr, 0, Ask { kind: READ, key: 5, ..Ask::default() }.bytes());
    assert_eq!(s.reply(1).header.status, 0);
}

#[test]
fn damaged_records_and_bad_requests_are_answered() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    s.reply(1);
    s.pass(2_000);
    s.host.engine.damage(&Ask::list(5), &mut Rng::new(3));
    let mut s = s.restart(Ledger::default(), Options { abort_recovery: true, ..options() });
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, -Errno::EIO.raw());
    assert!(s.logs.iter().any(|(level, line)| *level == LogLevel::Error && line.contains("damaged")), "{:?}", s.logs);
    s.append(1, export, 6);
    assert_eq!(s.reply(1).header.status, 0);
    s.request(1, export, Opcode::MdsReint, 1, Bytes::from_static(b"?"));
    assert_eq!(s.reply(1).header.status, -Errno::EPROTO.raw());
    let header = s.header(1, export, Opcode::Ping, 0);
    s.frame(1, Frame { header: Header { opcode: 9999, ..header }, ..Frame::default() });
    assert_eq!(s.reply(1).header.status, -Errno::EOPNOTSUPP.raw());
    s.frame(7, Frame { header, ..Frame::default() });
    assert!(s.try_reply(7).is_none(), "a session is used over its own connection only");
    s.frame(7, Frame { header: Header { export: Handle(1), ..header }, ..Frame::default() });
    assert_eq!(s.reply(7).header.status, -Errno::ENOTCONN.raw(), "a stranger");
}

#[test]
fn parameters_are_listed_set_and_refused() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    let base = "mdt.fs-MDT0000";
    let set = |s: &mut Story<Ledger>, name: &str, value: &str| {
        let result = s.set_param(&format!("{base}.{name}"), value);
        s.drain();
        result
    };
    assert_eq!(set(&mut s, "recovery_time_soft", "7"), Ok(()));
    assert_eq!(s.param("mdt.*.recovery_time_soft"), "7");
    assert_eq!(set(&mut s, "recovery_time_soft", "0"), Err(Errno::ERANGE));
    assert_eq!(set(&mut s, "recovery_time_soft", "x"), Err(Errno::EINVAL));
    assert_eq!(set(&mut s, "no_such", "1"), Err(Errno::ENOENT));
    assert_eq!(set(&mut s, "num_exports", "1"), Err(Errno::EACCES));
    assert_eq!(s.t().get_params("mdt.*.exports.*.uuid").len(), 1);
    assert_eq!(set(&mut s, "evict_client", "nobody"), Err(Errno::ENXIO));
    let uuid = s.param("mdt.*.exports.*.uuid");
    assert_eq!(set(&mut s, "evict_client", &uuid), Ok(()));
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, -Errno::ENOTCONN.raw());
}

#[test]
fn a_silent_export_is_evicted_in_the_end() {
    let mut s = ledger();
    s.connect(1, 1);
    s.pass(149_000);
    assert_eq!(s.param("mdt.*.num_exports"), "1");
    s.pass(3_000);
    assert_eq!(s.param("mdt.*.num_exports"), "0");
}

#[test]
fn a_server_among_clients_needs_no_recovery_but_durability() {
    let mut s = ledger();
    let reply = s.connect_as(1, 1, true);
    s.host.by_hand = true;
    s.append(1, reply.header.export, 5);
    assert!(s.try_reply(1).is_none());
    s.commit();
    let answer = s.reply(1);
    assert_eq!((answer.header.status, answer.header.transno), (0, Transno(0)));
    s.host.by_hand = false;
    s.pass(2_000);
    assert!(s.restart(Ledger::default(), options()).t().is_serving(), "nobody is waited for");
}

/// A target that knows these others, and who connects to it.
fn knows(peer: target::Peer, targets: Vec<TargetEntry>) -> Story<Ledger> {
    let engine = engine(TargetKind::Mdt, |_| {});
    let config = Some(Config { fsname: "fs".into(), version: 1, targets, ..Config::default() });
    let known = schema::session::KnownConfig { config };
    testkit::host::edit(&engine, |batch| batch.put(schema::session::KnownConfig::key(&()), known.encode_record()));
    Story { peer, ..Story::start(Ledger::default(), engine, options()) }
}

/// A server may remove every file's objects, so a client is not believed that it is one.
#[test]
fn a_stranger_is_no_server_whatever_it_says() {
    let mut s = ledger();
    s.peer = target::Peer { address: "10.0.0.7:999".into(), ..target::Peer::default() };
    let refused = s.connect_as(1, 1, true);
    assert_eq!(refused.header.status, -Errno::EACCES.raw());
    let reason = refused.decode::<ConnectRep>().unwrap().reason;
    assert!(reason.ends_with("addresses that metadata targets registered, not from 10.0.0.7:999"), "{reason}");
    assert_eq!(s.connect_as(2, 2, false).header.status, 0, "as a client it is welcome");

    let registered = |target: &str, nid: &str| TargetEntry {
        target: target.into(),
        nids: vec![nid.into()],
        ..TargetEntry::default()
    };
    let mut known = vec![registered("fs-OST0003", "10.0.0.7:7"), registered("fs-MDT0001", "10.0.0.70:7")];
    let mut s = knows(s.peer, known.clone());
    assert_eq!(s.connect_as(3, 1, true).header.status, -Errno::EACCES.raw());
    known.push(registered("fs-MDT0002", "10.0.0.7:7"));
    let mut s = knows(s.peer, known);
    assert_eq!(s.connect_as(4, 1, true).header.status, 0, "a metadata target listens there");
    // On the same machine it is a user without rights who connects from its address.
    s.peer.local = true;
    assert_eq!(s.connect_as(5, 1, true).header.status, -Errno::EACCES.raw());
    assert!(stdx::marks::count("target.no_server") > 0);
}

#[test]
fn the_reply_of_an_open_is_the_same_however_often_it_is_asked_for() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    let header = s.header(1, export, Opcode::MdsReint, 1);
    let body = Ask { kind: OPEN, ..Ask::default() }.bytes();
    s.frame(1, Frame { header, body: body.clone(), bulk: Bytes::new() });
    let first = s.reply(1);
    assert_ne!(first.header.transno, Transno(0), "an open changes what is open");
    for _ in 0..3 {
        let header = Header { flags: flags::RESENT, ..header };
        s.frame(1, Frame { header, body: body.clone(), bulk: Bytes::new() });
        assert_eq!(s.reply(1).body, first.body);
    }
    assert_eq!(s.t().service().open.len(), 1);
}

/// A version that knew no key has answered opens, too: their handles do not follow from the key.
#[test]
fn an_open_from_before_the_key_has_no_handle_from_it() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    let now = s.reply(1).header.transno;
    let mut handle = |transno: u64| {
        let ask = Ask { kind: HANDLE, handle: transno, ..Ask::default() };
        s.request(1, export, Opcode::MdsGetattr, 0, ask.bytes());
        u64::from_le_bytes(s.reply(1).body[..].try_into().unwrap())
    };
    assert_ne!(handle(now.0), 0);
    assert_eq!(handle(now.0 - (1 << 32)), 0);
}

// --- a service with data files, tasks and questions to others ---

#[derive(Default)]
struct Files {
    done: Vec<&'static str>,
    started: bool,
}

impl Service for Files {
    fn kind(&self) -> TargetKind {
        TargetKind::Ost
    }

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        cx.get_raw(&Key::table(0x60))?;
        cx.put_raw(Key::table(0x60), Bytes::from_static(b"started"));
        self.started = true;
        Ok(())
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        if request.opcode == Opcode::ObjGetattr {
            cx.spawn(Task::new("ask", 1u8));
            return Ok(Reply::empty());
        }
        // Two data operations, asked for at once.
        let write = cx.data(DataOp::Write { file: 7, offset: 0, data: request.frame.body.clone() });
        let stat = cx.data(DataOp::Stat { file: 7 });
        let (DataResult::Size(_), DataResult::Size(_)) = (write?, stat?) else { return Err(Errno::EIO.into()) };
        cx.put_raw(Key::table(0x61), request.frame.body.clone());
        Ok(Reply::empty())
    }

    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        assert_eq!(task.get::<u8>(), Some(&1));
        let other = TargetName { fsname: "fs".into(), kind: TargetKind::Mdt, index: TargetIndex(1) };
        let reply = cx.upstream(&other, Opcode::Ping, &Empty {}, Bytes::new())?;
        assert_eq!(reply.header.status, 0);
        cx.sleep(Duration::from_millis(50))?;
        self.done.push("asked");
        Ok(())
    }

    fn configured(&mut self, _cx: &mut Cx<'_>) {
        self.done.push("configured");
    }
}

#[test]
fn a_group_waits_for_the_data_files_that_its_changes_wrote() {
    let mut s = Story::start(Files::default(), engine(TargetKind::Ost, |_| {}), options());
    assert!(s.serving && s.t().service().started);
    let export = s.connect(1, 1);
    s.host.by_hand = true;
    s.request(1, export, Opcode::ObjWrite, 0, Bytes::from_static(b"data"));
    assert_eq!(s.host.operations.len(), 2, "each once, however often the attempt runs");
    for (id, _) in core::mem::take(&mut s.host.operations) {
        assert!(s.try_reply(1).is_none());
        s.event(Event::DataDone { id, result: DataResult::Size(Some((4, 8))) });
    }
    let reply = s.reply(1);
    assert_ne!(reply.header.transno, Transno(0), "a write is replayed until it is durable");
    s.pass(1_001);
    assert!(s.host.groups.is_empty());
    let (id, op) = s.host.operations.pop().unwrap();
    assert_eq!(op, DataOp::Sync { files: vec![7] });
    s.event(Event::DataDone { id, result: DataResult::Done });
    assert!(!s.host.groups.is_empty());
    s.commit();
    s.request(1, export, Opcode::ObjWrite, 0, Bytes::from_static(b"more"));
    for (id, _) in core::mem::take(&mut s.host.operations) {
        s.event(Event::DataDone { id, result: DataResult::Failed(Errno::ENOSPC) });
    }
    assert_eq!(s.reply(1).header.status, -Errno::EIO.raw());
    s.request(1, export, Opcode::ObjWrite, 0, Bytes::from_static(b"last"));
    for (id, _) in core::mem::take(&mut s.host.operations) {
        s.event(Event::DataDone { id, result: DataResult::Size(None) });
    }
    s.pass(1_001);
    let (id, _) = s.host.operations.pop().unwrap();
    s.event(Event::DataDone { id, result: DataResult::Failed(Errno::EIO) });
    assert!(matches!(s.why_stopped(), StopReason::DataNotDurable(_)), "what was acknowledged cannot be kept");
}

/// A write waits for its disk when its connection breaks. Its client sends it again over the next connection, and may change the
/// bytes as soon as it has an answer there: so none goes there before that copy has come, which would undo the change.
#[test]
fn no_answer_goes_to_a_client_that_still_sends_its_request_again() {
    for copy_in_time in [true, false] {
        let mut s = Story::start(Files::default(), engine(TargetKind::Ost, |_| {}), options());
        let export = s.connect(1, 1);
        let header = s.header(1, export, Opcode::ObjWrite, 0);
        let write = |conn_cnt, flags| Frame {
            header: Header { conn_cnt, flags, ..header },
            body: Bytes::from_static(b"data"),
            bulk: Bytes::new(),
        };
        let written = |s: &mut Story<Files>| {
            let operations = core::mem::take(&mut s.host.operations);
            for (id, _) in &operations {
                s.event(Event::DataDone { id: *id, result: DataResult::Size(Some((4, 8))) });
            }
            operations.len()
        };
        s.frame(1, write(1, 0));
        s.event(Event::Closed { conn: ConnId(1) });
        s.connect_again(2, 1, export);
        assert!(s.reply(2).header.has(flags::CONNECT_RECONNECT));
        let copy = write(2, flags::RESENT);
        if copy_in_time {
            s.frame(2, copy.clone());
        }
        assert_eq!(written(&mut s), 2);
        if !copy_in_time {
            assert!(s.try_reply(2).is_none());
            s.frame(2, copy.clone());
            assert_eq!(written(&mut s), 2, "nothing is kept of a write: it is done again");
        }
        assert_eq!(s.reply(2).header.xid, header.xid);
        s.frame(2, copy);
        assert!(
            s.host.operations.is_empty() && s.try_reply(2).is_none(),
            "it is answered: this one was doubled on its way"
        );
    }
}

/// The other end of the target's own connections.
impl<S: Service> Story<S> {
    pub(super) fn take_connect(&mut self) -> ConnId {
        let conn = self.dials.pop().expect("a dial");
        self.event(Event::Dialled { conn });
        let request = self.reply(conn.0);
        assert_eq!(request.header.opcode, Opcode::Connect as u16);
        let body = ConnectRep { version: PROTOCOL_VERSION, instance: 1, ..ConnectRep::default() };
        self.say(conn, &request, 0, Handle(5), body.encode_to_vec().into());
        conn
    }

    pub(super) fn say(&mut self, conn: ConnId, request: &Frame, status: i32, export: Handle, body: Bytes) {
        let header = Header { flags: flags::REPLY, status, export, ..request.header };
        self.event(Event::Frame { conn, frame: Frame { header, body, bulk: Bytes::new() } });
    }
}

#[test]
fn a_new_target_registers_before_it_serves_and_follows_the_configuration() {
    let mut s = Story::start(
        Files::default(),
        engine(TargetKind::Ost, |h| h.registered = false),
        Options { mgs: vec![Nid::Unix("mgs".into())], ..options() },
    );
    assert!(!s.serving);
    let early = s.connect_as(1, 1, false);
    assert_eq!(early.header.status, -Errno::EAGAIN.raw());
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    assert_eq!(register.header.opcode, Opcode::MgsRegister as u16);
    s.say(conn, &register, 0, Handle(5), RegisterRep::default().encode_to_vec().into());
    let get = s.reply(conn.0);
    assert_eq!(get.header.opcode, Opcode::MgsConfigGet as u16);
    let config = Config {
        version: 1,
        fsname: "fs".into(),
        targets: vec![TargetEntry {
            target: "fs-MDT0001".into(),
            nids: vec!["unix:mdt1".into()],
            instance: 1,
            ..TargetEntry::default()
        }],
        params: [("at_min", "9"), ("obdfilter.*.recovery_time_soft", "11")]
            .map(|(path, value)| Param { path: path.into(), value: value.into() })
            .into(),
        ..Config::default()
    };
    s.say(conn, &get, 0, Handle(5), config.encode_to_vec().into());
    assert!(s.serving);
    assert_eq!(s.t().service().done, ["configured"]);
    assert_eq!((s.param("obdfilter.*.recovery_time_soft"), s.param("at_min")), ("11".into(), "9".into()));
    // A task asks the other target, waits out a lost connection, sleeps, and is done.
    let export = s.connect(1, 1);
    s.request(1, export, Opcode::ObjGetattr, 0, Bytes::new());
    s.reply(1);
    let other = s.take_connect();
    let question = s.reply(other.0);
    s.event(Event::Closed { conn: other });
    let other = s.take_connect();
    let again = s.reply(other.0);
    assert_eq!((again.header.xid, again.header.has(flags::RESENT)), (question.header.xid, true));
    s.say(other, &again, 0, Handle(5), Bytes::new());
    assert_eq!(s.t().service().done, ["configured"]);
    s.pass(51);
    assert_eq!(s.t().service().done, ["configured", "asked"]);
    // It need not wait for the MGS the next time, and remembers what it was told.
    s.pass(2_000);
    let s = s.restart(Files::default(), Options { abort_recovery: true, ..options() });
    assert!(s.serving);
    assert_eq!(s.t().service().done, ["configured"]);
}

#[test]
fn a_refused_registration_stops_the_target_with_the_mgss_sentence() {
    let mut s = Story::start(
        Files::default(),
        engine(TargetKind::Ost, |h| h.registered = false),
        Options { mgs: vec![Nid::Unix("mgs".into())], ..options() },
    );
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    let reply =
        RegisterRep { reason: "index 0 is in use; choose another with --index".into(), ..RegisterRep::default() };
    s.say(conn, &register, -Errno::EADDRINUSE.raw(), Handle(5), reply.encode_to_vec().into());
    assert_eq!(s.why_stopped().to_string(), "index 0 is in use; choose another with --index");
}

/// A target that knows its MGS, and is registered there.
fn registered(mgs: &[&str]) -> (Story<Files>, ConnId) {
    let mgs = mgs.iter().map(|path| Nid::Unix((*path).into())).collect();
    let mut s = Story::start(Files::default(), engine(TargetKind::Ost, |_| {}), Options { mgs, ..options() });
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    s.say(conn, &register, 0, Handle(5), RegisterRep::default().encode_to_vec().into());
    let get = s.reply(conn.0);
    s.say(
        conn,
        &get,
        0,
        Handle(5),
        Config { version: 1, fsname: "fs".into(), ..Config::default() }.encode_to_vec().into(),
    );
    (s, conn)
}

#[test]
fn a_target_that_stops_says_goodbye_to_its_mgs() {
    let (mut s, conn) = registered(&["mgs"]);
    let export = s.connect(1, 1);
    s.shutdown();
    s.drain();
    let goodbye = s.reply(conn.0);
    assert_eq!(goodbye.header.opcode, Opcode::Disconnect as u16);
    assert_eq!(s.stopped, None, "it waits for the answer");
    s.request(1, export, Opcode::ObjGetattr, 0, Bytes::new());
    assert!(s.try_reply(1).is_none(), "and answers nothing more");
    s.say(conn, &goodbye, 0, Handle(5), Bytes::new());
    assert_eq!(s.stopped, Some(None));
    assert_eq!(s.logs.last(), Some(&(LogLevel::Info, "stopped, 1 clients connected".to_owned())));
}

#[test]
fn a_target_stops_in_time_though_its_mgs_does_not_answer() {
    let (mut s, conn) = registered(&["mgs"]);
    s.shutdown();
    s.drain();
    s.reply(conn.0);
    s.pass(1_900);
    assert_eq!(s.stopped, None);
    s.pass(200);
    assert_eq!(s.stopped, Some(None));
    let (mut s, conn) = registered(&["mgs"]);
    s.shutdown();
    s.event(Event::Closed { conn });
    assert_eq!(s.stopped, Some(None), "one that has gone needs no good-bye");
}

/// What was answered before a restart is done again however full the disk has become meanwhile; what is new is refused.
#[test]
fn a_replay_is_not_refused_by_a_full_disk() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.pass(2_000);
    s.host.by_hand = true;
    s.append(1, export, 5);
    let transno = s.reply(1).header.transno;
    let mut s = s.restart(Ledger::default(), options());
    let export = s.connect(1, 1);
    s.event(Event::Space(Space { total: 1 << 30, free: 0, reserve: 0, at_once: 0, records: 1, disk: 0 }));
    let body = Ask { kind: APPEND, key: 5, client: 1, n: 100, handle: 0 }.bytes();
    let header = Header { flags: flags::REPLAY, transno, ..s.header(1, export, Opcode::MdsReint, 1) };
    s.frame(1, Frame { header, body, bulk: Bytes::new() });
    assert_eq!(s.reply(1).header.status, 0);
    for flag in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
        let header = s.header(1, export, Opcode::Ping, 0);
        s.frame(1, Frame { header: Header { flags: flag, ..header }, ..Frame::default() });
        assert_eq!(s.reply(1).header.status, 0);
    }
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, -Errno::ENOSPC.raw());
}
