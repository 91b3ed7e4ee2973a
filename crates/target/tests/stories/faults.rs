//! Stories of requests and answers that are lost at the sites of fault injection.

use prost::Message;
use proto::connect::PROTOCOL_VERSION;
use proto::frame::flags;
use proto::msg::{ConnectReq, EnqueueReq, OpenOp, Reint, ReintReq};
use proto::{Bytes, Errno, Frame, Handle, Header, Opcode, Tag, TargetKind, Xid};
use stdx::faults::{FAILED, FAULT, ONCE, sites};
use stdx::{Faults, Site};

use super::ledger::{APPEND, Ask, Ledger, READ};
use super::story::{Story, engine, ledger, options};
use target::{ConnId, Event, Options, Peer, StopReason};

fn armed(site: Site, flags: u32) -> (Story<Ledger>, Faults) {
    let faults = Faults::allowed(1);
    let options = Options { faults: faults.clone(), ..options() };
    let story = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), options);
    faults.set_loc(u32::from(site.0) | flags);
    (story, faults)
}

impl Story<Ledger> {
    /// Connects a client again that was there before.
    fn reconnect(&mut self, conn: u64, client: u128, export: Handle) {
        self.event(Event::Accepted { conn: ConnId(conn), peer: Peer::default() });
        let body = ConnectReq {
            client_uuid: client.to_be_bytes().to_vec().into(),
            target: self.t().name().to_string(),
            version: PROTOCOL_VERSION,
            ..ConnectReq::default()
        };
        let header = Header {
            opcode: Opcode::Connect as u16,
            flags: flags::CONNECT_RECONNECT,
            conn_cnt: conn as u32,
            export,
            xid: Xid(2),
            ..Header::default()
        };
        self.frame(conn, Frame { header, body: body.encode_to_vec().into(), bulk: Bytes::new() });
    }

    /// Sends a change again that was sent as `xid`.
    fn again(&mut self, conn: u64, export: Handle, xid: Xid) {
        self.again_as(Opcode::MdsReint, conn, export, xid);
    }

    fn again_as(&mut self, opcode: Opcode, conn: u64, export: Handle, xid: Xid) {
        let body = Ask { kind: APPEND, key: 5, client: conn, n: xid.0 - 1, handle: 0 }.bytes();
        let header = Header {
            opcode: opcode as u16,
            tag: Tag(1),
            conn_cnt: conn as u32,
            export,
            xid,
            flags: flags::RESENT,
            ..Header::default()
        };
        self.frame(conn, Frame { header, body, bulk: Bytes::new() });
    }
}

/// Sends a request of this kind; whether it is answered.
fn is_answered(s: &mut Story<Ledger>, export: Handle, opcode: Opcode, body: &Bytes) -> bool {
    s.request(1, export, opcode, 1, body.clone());
    s.try_reply(1).is_some()
}

/// An open. The ledger cannot read it: its answer is an error.
fn open() -> Bytes {
    ReintReq { op: Some(Reint::Open(OpenOp::default())), ..ReintReq::default() }.encode_to_vec().into()
}

fn read() -> Bytes {
    Ask { kind: READ, key: 5, client: 1, n: 0, handle: 0 }.bytes()
}

#[test]
fn each_kind_of_request_has_a_site_that_loses_it_once() {
    let enqueue: Bytes = EnqueueReq::default().encode_to_vec().into();
    for (site, opcode, body, other) in [
        (sites::MDS_GETATTR_NET, Opcode::MdsGetattr, read(), Opcode::MdsSync),
        (sites::MDS_OPEN_NET, Opcode::MdsReint, open(), Opcode::MdsGetattr),
        (sites::LDLM_ENQUEUE_NET, Opcode::LdlmEnqueue, enqueue.clone(), Opcode::MdsGetattr),
        (sites::LDLM_ENQUEUE_NET, Opcode::MdsReint, open(), Opcode::MdsSync),
        (sites::MDS_ALL_REQUEST_NET, Opcode::MdsGetattr, read(), Opcode::Ping),
        // These lose the answer.
        (sites::MDS_ALL_REPLY_NET, Opcode::MdsGetattr, read(), Opcode::Ping),
        (sites::MDS_LDLM_REPLY_NET, Opcode::LdlmEnqueue, enqueue.clone(), Opcode::MdsSync),
        (sites::LDLM_REPLY, Opcode::LdlmEnqueue, enqueue.clone(), Opcode::MdsGetattr),
        (sites::LDLM_REPLY, Opcode::MdsReint, open(), Opcode::MdsSync),
    ] {
        let (mut s, faults) = armed(site, 0);
        faults.set_loc(0);
        let export = s.connect(1, 1);
        assert!(is_answered(&mut s, export, opcode, &body), "{opcode:?}");
        faults.set_loc(site.0.into());
        if !matches!(site, sites::MDS_ALL_REQUEST_NET | sites::MDS_ALL_REPLY_NET) {
            assert!(is_answered(&mut s, export, other, &read()), "{site:?} is not about {other:?}");
        }
        assert!(!is_answered(&mut s, export, opcode, &body), "{site:?} {opcode:?}");
        assert_eq!(faults.loc(), u32::from(site.0) | ONCE | FAILED, "{site:?}");
        assert!(is_answered(&mut s, export, opcode, &body), "{site:?} strikes once");
    }
}

/// A batch of changes is one request: lost as a whole, its answer lost as a whole, done once.
#[test]
fn sites_of_changes_mean_batches_too() {
    let batches = |s: &Story<Ledger>| -> usize {
        let stats = s.param("mdt.*.stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("mds_batch"));
        line.map_or(0, |line| line.split_whitespace().next().unwrap().parse().unwrap())
    };
    let send = |s: &mut Story<Ledger>, export| {
        let body = Ask { kind: APPEND, key: 5, client: 1, n: s.xid, handle: 0 }.bytes();
        s.request(1, export, Opcode::MdsBatch, 1, body)
    };
    for (site, is_done) in [
        (sites::MDS_REINT_NET, 0),
        (sites::MDS_REINT_MULTI_NET, 0),
        (sites::MDS_REINT_NET_REP, 1),
        (sites::MDS_REINT_MULTI_NET_REP, 1),
    ] {
        let (mut s, faults) = armed(site, 0);
        let export = s.connect(1, 1);
        let xid = send(&mut s, export);
        assert!(s.try_reply(1).is_none(), "{site:?}");
        assert_eq!(batches(&s), is_done, "{site:?}");
        faults.set_loc(0);
        s.again_as(Opcode::MdsBatch, 1, export, xid);
        let reply = s.reply(1);
        assert_eq!((reply.header.xid, reply.header.status), (xid, 0), "{site:?}");
        assert_eq!(batches(&s), 1, "{site:?}: done once");
    }
    for site in [sites::MDS_OPEN_NET, sites::MDS_CLOSE_NET, sites::LDLM_ENQUEUE_NET] {
        let (mut s, _) = armed(site, 0);
        let export = s.connect(1, 1);
        send(&mut s, export);
        assert_eq!(s.reply(1).header.status, 0, "{site:?} is about other requests");
    }
    let (mut s, faults) = armed(sites::MDS_REINT_DELAY, ONCE);
    faults.set_val(3);
    let export = s.connect(1, 1);
    let xid = send(&mut s, export);
    s.pass(2_900);
    assert!(s.try_reply(1).is_none(), "it waits");
    s.pass(200);
    assert_eq!(s.reply(1).header.xid, xid);
}

#[test]
fn closes_are_refused_at_their_site() {
    for (err, want) in [(0, Errno::ENOMEM), (5, Errno::EIO)] {
        let (mut s, faults) = armed(sites::MDS_CLOSE_PACK, 0);
        faults.set_err(err);
        let export = s.connect(1, 1);
        for _ in 0..2 {
            s.request(1, export, Opcode::MdsClose, 1, read());
            assert_eq!(s.reply(1).header.status, -want.raw());
        }
        s.append(1, export, 5);
        assert_eq!(s.reply(1).header.status, 0, "a change is no close");
        faults.set_loc(0);
        s.request(1, export, Opcode::MdsClose, 1, read());
        assert_ne!(s.reply(1).header.status, -want.raw());
    }
}

#[test]
fn an_open_waits_at_its_site() {
    let (mut s, faults) = armed(sites::MDS_PAUSE_OPEN, ONCE);
    faults.set_val(2);
    let export = s.connect(1, 1);
    s.append_in(1, export, 5, 2);
    assert_eq!(s.reply(1).header.status, 0, "a change is no open");
    let xid = s.request(1, export, Opcode::MdsReint, 1, open());
    s.pass(1_900);
    assert!(s.try_reply(1).is_none());
    s.pass(200);
    assert_eq!(s.reply(1).header.xid, xid);
}

/// Two clients had changes that a crash undid. The second replays before the first is back.
#[test]
fn a_gap_in_the_replays_is_accepted_at_its_site() {
    for accepted in [false, true] {
        let faults = Faults::allowed(1);
        let options = Options { faults: faults.clone(), ..options() };
        let mut s = ledger();
        let (first, second) = (s.connect(1, 1), s.connect(2, 2));
        s.pass(2_000);
        s.host.by_hand = true;
        s.append(1, first, 5);
        let missing = s.reply(1).header.transno;
        s.append(2, second, 6);
        let transno = s.reply(2).header.transno;
        assert!(missing < transno);
        let mut s = s.restart(Ledger::default(), options);
        let (_, second) = (s.connect(1, 1), s.connect(2, 2));
        if accepted {
            faults.set_loc(sites::MDS_RECOVERY_ACCEPTS_GAPS.0.into());
        }
        let body = Ask { kind: APPEND, key: 6, client: 2, n: 100, handle: 0 }.bytes();
        let header = Header { flags: flags::REPLAY, transno, ..s.header(2, second, Opcode::MdsReint, 1) };
        s.frame(2, Frame { header, body, bulk: Bytes::new() });
        assert_eq!(s.try_reply(2).is_some(), accepted);
    }
}

#[test]
fn one_flag_makes_every_site_fail_that_gives_an_error() {
    let (mut s, faults) = armed(Site(0), 0);
    let export = s.connect(1, 1);
    faults.set_loc(FAULT);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0, "nothing is lost");
    s.request(1, export, Opcode::MdsClose, 1, read());
    assert_eq!(s.reply(1).header.status, -Errno::ENOMEM.raw());
    assert_eq!(s.connect_as(2, 2, false).header.status, -Errno::ENOSPC.raw());
    assert_eq!(faults.loc(), FAULT | FAILED);
}

#[test]
fn a_request_that_is_lost_is_not_executed_and_one_that_comes_again_is() {
    let (mut s, faults) = armed(sites::MDS_REINT_NET, 0);
    let export = s.connect(1, 1);
    let xid = s.append(1, export, 5);
    assert!(s.try_reply(1).is_none(), "lost");
    assert_eq!(faults.loc(), u32::from(sites::MDS_REINT_NET.0) | ONCE | FAILED, "the site strikes once");
    s.again(1, export, xid);
    let reply = s.reply(1);
    assert_eq!(reply.header.status, 0);
    let other = s.append(1, export, 5);
    assert_eq!(s.reply(1).header.xid, other);
    // The first one was never executed: two changes have two transnos in a row.
    assert!(s.param("mdt.*.stats").contains("mds_reint                 2 samples"));
}

#[test]
fn an_answer_that_is_lost_is_given_again_and_the_change_is_not_made_twice() {
    let (mut s, faults) = armed(sites::MDS_REINT_MULTI_NET_REP, 0);
    let export = s.connect(1, 1);
    let xid = s.append(1, export, 5);
    s.again(1, export, xid);
    assert!(s.try_reply(1).is_none(), "lost for as long as the site is set");
    faults.set_loc(0);
    s.again(1, export, xid);
    assert_eq!(s.reply(1).header.xid, xid);
    assert!(s.param("mdt.*.stats").contains("mds_reint                 1 samples"));
}

#[test]
fn a_site_is_about_its_own_requests() {
    let (mut s, faults) = armed(sites::MDS_CLOSE_NET, 0);
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0, "a change is no close");
    faults.set_loc(u32::from(sites::MDS_ALL_REQUEST_NET.0));
    s.request(1, export, Opcode::MdsSync, 0, Bytes::new());
    assert!(s.try_reply(1).is_none());
    s.request(1, export, Opcode::MdsSync, 0, Bytes::new());
    assert_eq!(s.reply(1).header.status, 0);
}

#[test]
fn a_target_without_a_table_loses_nothing() {
    let mut s = ledger();
    s.t().faults().set_loc(u32::from(sites::MDS_ALL_REQUEST_NET.0));
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0);
}

#[test]
fn a_site_may_be_about_one_opcode_or_about_every_answer() {
    let (mut s, faults) = armed(sites::PTLRPC_DROP_REQ_OPC, 0);
    faults.set_val(Opcode::MdsSync as u32);
    let export = s.connect(1, 1);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0);
    s.request(1, export, Opcode::MdsSync, 0, Bytes::new());
    s.request(1, export, Opcode::MdsSync, 0, Bytes::new());
    assert!(s.try_reply(1).is_none(), "each of them is lost");
    for site in [sites::TGT_REPLY_NET, sites::OBD_PING_NET] {
        faults.set_loc(site.0.into());
        s.request(1, export, Opcode::Ping, 0, Bytes::new());
        assert!(s.try_reply(1).is_none());
        s.request(1, export, Opcode::Ping, 0, Bytes::new());
        assert_eq!(s.reply(1).header.status, 0, "once");
    }
}

#[test]
fn a_change_waits_at_its_site_until_its_time_has_come_or_the_site_is_gone() {
    let (mut s, faults) = armed(sites::MDS_REINT_DELAY, ONCE);
    faults.set_val(3);
    let export = s.connect(1, 1);
    let xid = s.append(1, export, 5);
    let other = s.append_in(1, export, 6, 2);
    assert_eq!(s.reply(1).header.xid, other, "others pass");
    s.again(1, export, xid);
    s.pass(2_900);
    assert!(s.try_reply(1).is_none(), "it waits, and sent again it is the same request");
    s.pass(200);
    assert_eq!(s.reply(1).header.xid, xid);
    assert!(s.try_reply(1).is_none(), "it was done once");

    faults.set_val(0);
    faults.set_loc(u32::from(sites::MDS_REINT_DELAY.0) | ONCE);
    let xid = s.append(1, export, 5);
    s.pass(1_000);
    assert!(s.try_reply(1).is_none());
    faults.set_loc(0);
    s.pass(100);
    assert_eq!(s.reply(1).header.xid, xid);
}

#[test]
fn a_client_is_refused_kept_or_left_waiting() {
    for (site, err, want) in [
        (sites::TGT_CLIENT_ADD, 0, Errno::ENOSPC),
        (sites::TGT_CLIENT_ADD, 28 + 94, Errno::EDQUOT),
        (sites::MDS_CLIENT_ADD, 0, Errno::ENOSPC),
    ] {
        let (mut s, faults) = armed(site, ONCE);
        faults.set_err(err);
        assert_eq!(s.connect_as(1, 1, false).header.status, -want.raw());
        assert_eq!(s.connect_as(2, 1, false).header.status, 0, "once");
    }

    let (mut s, _) = armed(sites::TGT_CLIENT_DEL, ONCE);
    let (first, second) = (s.connect(1, 1), s.connect(2, 2));
    for (conn, export) in [(1, first), (2, second)] {
        s.request(conn, export, Opcode::Disconnect, 0, Bytes::new());
        s.pass(2_000);
    }
    let s = s.restart(Ledger::default(), options());
    assert!(s.param("mdt.*.recovery_status").contains("connected_clients: 0/1"), "one record is still there");
}

#[test]
fn a_client_that_comes_back_waits_at_its_site() {
    let (mut s, faults) = armed(sites::MDS_REINT_NET, ONCE);
    let export = s.connect(1, 1);
    faults.set_val(2);
    faults.set_loc(u32::from(sites::TGT_DELAY_RECONNECT.0) | ONCE);
    s.reconnect(2, 1, export);
    s.pass(1_900);
    assert!(s.try_reply(2).is_none());
    s.pass(200);
    let reply = s.reply(2);
    assert_eq!((reply.header.status, reply.header.export), (0, export));
}

#[test]
fn a_replay_that_is_lost_is_missed_by_those_that_follow() {
    let faults = Faults::allowed(1);
    let options = Options { faults: faults.clone(), ..options() };
    let mut s = ledger();
    let export = s.connect(1, 1);
    s.pass(2_000);
    s.host.by_hand = true;
    s.append(1, export, 5);
    let transno = s.reply(1).header.transno;
    let mut s = s.restart(Ledger::default(), options);
    let export = s.connect(1, 1);
    faults.set_loc(u32::from(sites::TGT_REPLAY_DROP.0) | ONCE);
    for round in 0..2 {
        let body = Ask { kind: APPEND, key: 5, client: 1, n: 100, handle: 0 }.bytes();
        let header = Header { flags: flags::REPLAY, transno, ..s.header(1, export, Opcode::MdsReint, 1) };
        s.frame(1, Frame { header, body, bulk: Bytes::new() });
        assert_eq!(s.try_reply(1).is_some(), round == 1);
    }
}

#[test]
fn what_comes_for_the_first_time_gets_no_answer_at_its_site() {
    let (mut s, faults) = armed(sites::MDS_RESEND, 0);
    let export = s.connect(1, 1);
    for _ in 0..2 {
        let xid = s.append(1, export, 5);
        assert!(s.try_reply(1).is_none());
        s.again(1, export, xid);
        assert_eq!(s.reply(1).header.xid, xid, "sent again it is answered");
    }
    faults.set_loc(0);
    s.append(1, export, 5);
    assert_eq!(s.reply(1).header.status, 0);
    assert!(s.param("mdt.*.stats").contains("mds_reint                 3 samples"), "each is done once");
}

#[test]
fn a_request_waits_for_its_second_copy() {
    let (mut s, faults) = armed(sites::PTLRPC_RESEND_RACE, 0);
    let export = s.connect(1, 1);
    let xid = s.append(1, export, 5);
    s.pass(2_000);
    assert!(s.try_reply(1).is_none());
    s.again(1, export, xid);
    s.pass(200);
    assert_eq!(s.reply(1).header.xid, xid, "both are there");
    assert!(s.try_reply(1).is_none(), "and have one answer");
    // Without a second copy its time runs out.
    faults.set_val(3);
    let xid = s.append(1, export, 5);
    s.pass(2_900);
    assert!(s.try_reply(1).is_none());
    s.pass(200);
    assert_eq!(s.reply(1).header.xid, xid);
    assert!(s.param("mdt.*.stats").contains("mds_reint                 2 samples"));
}

#[test]
fn a_target_that_cannot_read_its_clients_does_not_start() {
    let faults = Faults::allowed(1);
    let options = Options { faults: faults.clone(), ..options() };
    let s = ledger();
    faults.set_loc(u32::from(sites::TGT_RCVD_EIO.0) | ONCE);
    let s = s.restart(Ledger::default(), options.clone());
    let why = s.why_stopped();
    assert!(matches!(why, StopReason::FirstRecords { errno: Errno::EIO, .. }) && !s.serving, "{why}");
    let mut s = s.restart(Ledger::default(), options);
    s.connect(1, 1);
}
