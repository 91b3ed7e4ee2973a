//! Stories of requests and answers that are lost at the sites of fault injection.

use prost::Message;
use proto::connect::PROTOCOL_VERSION;
use proto::frame::flags;
use proto::msg::ConnectReq;
use proto::{Bytes, Errno, Frame, Handle, Header, Opcode, Tag, TargetKind, Xid};
use stdx::faults::{FAILED, ONCE, sites};
use stdx::{Faults, Site};

use super::ledger::{APPEND, Ask, Ledger};
use super::story::{Story, engine, ledger, options};
use crate::{ConnId, Event, Options, Peer};

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
            target: self.t.name().to_string(),
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
        let body = Ask { kind: APPEND, key: 5, client: conn, n: xid.0 - 1, handle: 0 }.bytes();
        let header = Header {
            opcode: Opcode::MdsReint as u16,
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
    s.t.faults().set_loc(u32::from(sites::MDS_ALL_REQUEST_NET.0));
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
    for (err, want) in [(0, Errno::ENOSPC), (28 + 94, Errno::EDQUOT)] {
        let (mut s, faults) = armed(sites::TGT_CLIENT_ADD, ONCE);
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
    s.by_hand = true;
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
    let said = s.stopped.clone().unwrap_or_default();
    assert!(said.contains("cannot read its first records") && !s.serving, "{said}");
    let mut s = s.restart(Ledger::default(), options);
    s.connect(1, 1);
}
