//! A new metadata target takes over the file system's keys for the hashes of names when it registers.

use prost::Message;
use proto::msg::{Config, NameKeys, RegisterRep, RegisterReq};
use proto::{Bytes, Errno, Frame, Handle, Nid, Opcode, TargetKind};
use schema::{Header, Record};
use store::Engine;

use super::ledger::Ledger;
use super::story::{Story, engine, options};
use target::{ConnId, LogLevel, Options, StopReason, format_features};

const OWN: [u8; 16] = [9; 16];

fn with_mgs() -> Options {
    Options { mgs: vec![Nid::Unix("mgs".into())], ..options() }
}

/// A metadata target with a key of its own that was just started, and its registration.
fn starts(name: &str, change: impl FnOnce(&mut Header)) -> (Story<Ledger>, ConnId, Frame) {
    let engine = engine(TargetKind::Mdt, |header| {
        header.name = name.into();
        header.name_key = Bytes::from_static(&OWN);
        header.incompat = format_features::KEYED_NAMES;
        change(header);
    });
    let mut s = Story::start(Ledger::default(), engine, with_mgs());
    let conn = s.take_connect();
    let register = s.reply(conn.0);
    assert_eq!(register.header.opcode, Opcode::MgsRegister as u16);
    (s, conn, register)
}

fn takes(header: &mut Header) {
    header.takes_keys = true;
}

fn keys(first: &[u8]) -> NameKeys {
    NameKeys { first: first.to_vec().into(), second: vec![2; 16].into() }
}

fn answers(s: &mut Story<Ledger>, conn: ConnId, register: &Frame, name_keys: Option<NameKeys>) {
    let body = RegisterRep { name_keys, ..RegisterRep::default() };
    s.say(conn, register, 0, Handle(5), body.encode_to_vec().into());
}

fn stored(s: &Story<Ledger>) -> Header {
    let key = Header::key(&());
    let sealed = s.host.engine.get(&key).unwrap().expect("a header");
    Header::decode_record(&schema::formats().open(&key, &sealed).unwrap()).unwrap()
}

#[test]
fn a_new_metadata_target_waits_for_the_keys_and_serves_with_them() {
    for first in [&[1; 16][..], &[]] {
        let (mut s, conn, mut register) = starts("fs-MDT0001", takes);
        for _ in 0..3 {
            let said: RegisterReq = register.decode().unwrap();
            assert_eq!((said.wants_keys, said.name_keys), (true, None));
            assert!(!s.serving);
            let wait = RegisterRep { reason: "MDT0000 first".into(), ..RegisterRep::default() };
            s.say(conn, &register, -Errno::EAGAIN.raw(), Handle(5), wait.encode_to_vec().into());
            s.pass(1_010);
            register = s.reply(conn.0);
        }
        assert!(s.stopped.is_none() && stdx::marks::count("target.waits_for_keys") > 0);
        let lines: Vec<_> = s.logs.iter().filter(|(_, line)| line == "MDT0000 first").collect();
        assert_eq!(lines, [&(LogLevel::Info, "MDT0000 first".to_owned())], "once");

        answers(&mut s, conn, &register, Some(keys(first)));
        let get = s.reply(conn.0);
        let config = Config { version: 1, fsname: "fs".into(), ..Config::default() };
        s.say(conn, &get, 0, Handle(5), config.encode_to_vec().into());
        assert!(s.serving);
        s.pass(2_000);
        let header = stored(&s);
        assert_eq!((&header.name_key[..], &header.second_key[..]), (first, &[2; 16][..]));
        assert_eq!(header.incompat & format_features::KEYED_NAMES != 0, !first.is_empty());
        assert!(!header.takes_keys && header.registered);
        // They are its own from then on.
        let mut s = s.restart(Ledger::default(), with_mgs());
        assert!(s.serving);
        let conn = s.take_connect();
        let register = s.reply(conn.0);
        assert!(!register.decode::<RegisterReq>().unwrap().wants_keys);
        answers(&mut s, conn, &register, None);
        assert!(s.stopped.is_none());
    }
}

#[test]
fn a_new_metadata_target_does_not_serve_without_the_keys() {
    let wrong = NameKeys { second: Bytes::new(), ..keys(&[1; 16]) };
    for unfit in [None, Some(keys(&[1; 15])), Some(wrong)] {
        let (mut s, conn, register) = starts("fs-MDT0001", takes);
        answers(&mut s, conn, &register, unfit);
        let StopReason::NoKeys { target } = s.why_stopped() else { panic!("{}", s.why_stopped()) };
        assert_eq!(target.to_string(), "fs-MDT0001");
        assert!(s.why_stopped().to_string().contains("serve the MGS and MDT0000 with version 0.3.0 or later"));
        assert!(!s.serving && stored(&s).takes_keys);
    }
}

#[test]
fn mdt0000_brings_its_keys_and_takes_no_others() {
    for has_key in [true, false] {
        let (mut s, conn, register) = starts("fs-MDT0000", |header| {
            if !has_key {
                (header.name_key, header.incompat) = (Bytes::new(), 0);
            }
        });
        let said: RegisterReq = register.decode().unwrap();
        let own = said.name_keys.expect("always");
        assert_eq!(&own.first[..], if has_key { &OWN[..] } else { &[] });
        assert_eq!((own.second.len(), said.wants_keys), (16, false));
        answers(&mut s, conn, &register, Some(keys(&[1; 16])));
        s.pass(2_000);
        assert_eq!((stored(&s).name_key, stored(&s).second_key), (own.first, own.second));
    }
    // One that was made before the keys were handed on keeps its own.
    let (mut s, conn, register) = starts("fs-MDT0001", |_| {});
    let said: RegisterReq = register.decode().unwrap();
    assert_eq!((said.name_keys, said.wants_keys), (None, false));
    answers(&mut s, conn, &register, Some(keys(&[1; 16])));
    s.pass(2_000);
    assert_eq!(&stored(&s).name_key[..], OWN);
}

/// Version 0.1.0 drops the second key. A target that comes from it registers while it waits for its clients.
#[test]
fn mdt0000_has_both_keys_before_its_recovery_ends() {
    let (mut s, ..) = starts("fs-MDT0000", |_| {});
    s.connect(1, 1);
    s.pass(2_000);
    let header = Header { second_key: Bytes::new(), ..stored(&s) };
    s.host.edit(|batch| batch.put(Header::key(&()), header.encode_record()));
    let mut s = s.restart(Ledger::default(), with_mgs());
    assert!(!s.t().is_serving(), "it waits for its client");
    let conn = s.take_connect();
    let said: RegisterReq = s.reply(conn.0).decode().unwrap();
    assert_eq!(said.name_keys.expect("always").second.len(), 16);
}
