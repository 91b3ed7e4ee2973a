//! A store that is an older copy of what the target had.

use prost::Message;
use proto::msg::{Config, ConnectRep, ConnectReq, RegisterRep, RegisterReq, TargetEntry};
use proto::{Errno, Frame, Handle, Header, Nid, Opcode, TargetKind, Transno, Xid};

use super::ledger::{Ask, Ledger, SETTLED};
use super::story::{Story, engine, options};
use target::{ConnId, Event, Options, Peer, StopReason};

fn with_mgs() -> Options {
    Options { mgs: vec![Nid::Unix("mgs".into())], ..options() }
}

fn accepting() -> Options {
    Options { accept_old_store: true, ..with_mgs() }
}

/// The MGS knows of nine starts.
fn mgs_knows_nine(s: &mut Story<Ledger>) -> ConnId {
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    let body = RegisterRep { reason: "older".into(), known_instance: 9, ..RegisterRep::default() };
    s.say(conn, &register, -Errno::ESTALE.raw(), Handle(5), body.encode_to_vec().into());
    conn
}

/// A client that was told before what is durable. Gives the status and the body of the answer.
fn connects(s: &mut Story<Ledger>, conn: u64, client: u128, store: &[u8], seen: Transno) -> (i32, ConnectRep) {
    s.event(Event::Accepted { conn: ConnId(conn), peer: Peer::default() });
    let body = ConnectReq {
        client_uuid: client.to_be_bytes().to_vec().into(),
        target: s.t().name().to_string(),
        version: proto::connect::PROTOCOL_VERSION,
        seen_committed: seen.0,
        seen_store: store.to_vec().into(),
        ..ConnectReq::default()
    };
    let header = Header { opcode: Opcode::Connect as u16, conn_cnt: 1, xid: Xid(1), ..Header::default() };
    s.frame(conn, Frame { header, body: body.encode_to_vec().into(), ..Frame::default() });
    let reply = s.reply(conn);
    (reply.header.status, reply.decode().unwrap())
}

/// Whether the target knows by now that its store is no older copy, as a service sees it.
fn is_settled(s: &mut Story<Ledger>, conn: u64) -> bool {
    let export = s.connect_as(conn, u128::from(conn), true).header.export;
    s.request(conn, export, Opcode::MdsGetattr, 0, Ask { kind: SETTLED, ..Ask::default() }.bytes());
    s.reply(conn).body[0] == 1
}

#[test]
fn a_store_that_counts_fewer_starts_than_the_mgs_is_not_served_before_it_is_accepted() {
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), with_mgs());
    assert!(s.serving, "the MGS is not waited for");
    let handle = s.connect(1, 1);
    s.append(1, handle, 1);
    mgs_knows_nine(&mut s);
    assert!(stdx::marks::count("target.old_store") > 0);
    assert_eq!(s.hangups.last(), Some(&ConnId(1)));
    assert!(s.logs.iter().any(|(level, line)| *level == target::LogLevel::Error && line.contains("accept_old_store")));
    assert!(s.param("mdt.*.recovery_status").starts_with("status: REFUSED\nreason: the store of target 'fs-MDT0000'"));
    let (status, body) = connects(&mut s, 2, 2, &[], Transno(0));
    assert_eq!(status, -Errno::ESTALE.raw());
    assert!(body.reason.contains("it counts 1 starts, the MGS 9"), "{}", body.reason);

    // However often it is started, its count does not creep past the MGS's.
    s.pass(2_000);
    let mut s = s.restart(Ledger::default(), with_mgs());
    assert!(!s.serving && s.stopped.is_none() && s.dials.is_empty());
    assert_eq!(connects(&mut s, 1, 1, &[], Transno(0)).0, -Errno::ESTALE.raw());
    s.pass(600_000);
    assert!(!s.serving);

    // Accepted: after all starts that the MGS knows, and once is enough.
    let s = s.restart(Ledger::default(), accepting());
    assert!(s.serving && s.t().is_serving());
    assert_eq!(s.param("mdt.*.instance"), "10");
    let s = s.restart(Ledger::default(), with_mgs());
    assert!(s.serving);
    assert_eq!(s.param("mdt.*.instance"), "11");
}

#[test]
fn an_older_copy_that_is_accepted_before_anybody_found_out_becomes_the_start_after_the_last() {
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), accepting());
    let conn = mgs_knows_nine(&mut s);
    assert!(s.serving);
    let again: RegisterReq = s.reply(conn.0).decode().unwrap();
    assert_eq!(again.instance, 10);
    assert_eq!(connects(&mut s, 2, 2, &[7; 16], Transno::start_of(40)).0, 0, "what was lost is given up");
}

#[test]
fn a_client_that_saw_more_is_refused_and_the_others_are_served() {
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), options());
    let (status, body) = connects(&mut s, 1, 1, &[], Transno(0));
    assert_eq!((status, &body.store[..]), (0, &[7; 16][..]));
    let has = Transno::start_of(1);
    assert_eq!(connects(&mut s, 2, 2, &[7; 16], has).0, 0);
    assert_eq!(connects(&mut s, 3, 3, &[8; 16], Transno::start_of(3)).0, 0, "another store was there before");
    assert!(is_settled(&mut s, 101));

    let (status, body) = connects(&mut s, 4, 4, &[7; 16], Transno(has.0 + 5));
    assert!(stdx::marks::count("target.client_saw_more") > 0);
    assert_eq!(status, -Errno::ESTALE.raw());
    assert!(body.reason.contains("an older copy of the store was put back"), "{}", body.reason);
    assert!(!is_settled(&mut s, 102) && s.t().is_serving());
    assert!(s.param("mdt.*.recovery_status").contains("older_copy_suspected: a client was told"));
    assert_eq!(connects(&mut s, 5, 5, &[7; 16], has).0, 0, "others are served");

    let mut s = s.restart(Ledger::default(), Options { accept_old_store: true, ..options() });
    assert_eq!(connects(&mut s, 4, 4, &[7; 16], Transno(has.0 + 5)).0, 0);
    let mut s = s.restart(Ledger::default(), options());
    let (status, _) = connects(&mut s, 6, 6, &[7; 16], Transno(has.0 + 5));
    assert_eq!(status, -Errno::EBUSY.raw(), "who was away meanwhile comes as a new client, after the recovery");
}

#[test]
fn nothing_is_settled_before_the_mgs_has_answered() {
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), with_mgs());
    assert!(!is_settled(&mut s, 103));
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    let said: RegisterReq = register.decode().unwrap();
    assert_ne!(said.start, 0);
    s.say(conn, &register, 0, Handle(5), RegisterRep::default().encode_to_vec().into());
    assert!(is_settled(&mut s, 104));
    let mut s = s.restart(Ledger::default(), Options { seed: 5, ..with_mgs() });
    let conn = s.take_connect();
    let next: RegisterReq = s.reply(conn.0).decode().unwrap();
    assert_ne!(next.start, said.start);
}

#[test]
fn damage_that_was_found_is_told_once_and_shown() {
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), options());
    for what in ["page 7 is damaged", "page 9 is damaged", "page 7 is damaged"] {
        s.event(Event::DamageFound(what.into()));
    }
    let told = s.logs.iter().filter(|(level, _)| *level == target::LogLevel::Error).count();
    assert_eq!((told, s.param("mdt.*.store_damage")), (2, "page 7 is damaged\npage 9 is damaged\n".into()));
    (0..1000).for_each(|n| s.event(Event::DamageFound(format!("page {n} is damaged"))));
    assert_eq!(s.param("mdt.*.store_damage").lines().count(), 100);
}

/// It ran on where the MGS did not see it, and an administrator believed it gone.
#[test]
fn a_target_that_hears_that_it_was_declared_lost_stops() {
    let mut s = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), with_mgs());
    assert!(s.serving);
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    s.say(conn, &register, 0, Handle(5), RegisterRep::default().encode_to_vec().into());
    let get = s.reply(conn.0);
    let own = TargetEntry { target: "fs-MDT0000".into(), losses: 1, is_lost: true, ..TargetEntry::default() };
    let config = Config { version: 1, fsname: "fs".into(), targets: vec![own], ..Config::default() };
    s.say(conn, &get, 0, Handle(5), config.encode_to_vec().into());
    let why = s.why_stopped();
    assert!(matches!(why, StopReason::Lost { .. }) && why.to_string().contains("'-o abort_recov_mdt'"), "{why}");
}
