//! Stories of clients with several changes in flight: reply records, the feature flag, and how both come and go.

use proto::connect::features;
use proto::frame::flags;
use proto::msg::ConnectRep;
use proto::{Bytes, Errno, Frame, Handle, Header, Opcode, Tag, TargetKind, Xid};
use schema::Record;
use schema::session::{ClientRec, ReplyRec};
use store::{Engine, Key};

use super::ledger::{APPEND, Ask, Ledger};
use super::story::{Story, engine, ledger, options};
use target::{Options, Service, StopReason, UnfitStore};

impl<S: Service> Story<S> {
    /// Connects with several slots; gives the session's handle.
    fn connect_multi(&mut self, conn: u64, client: u128) -> Handle {
        self.connect_with(conn, client, false, features::MULTI_MOD_RPCS);
        let reply = self.reply(conn);
        assert_eq!(reply.header.status, 0, "{reply:?}");
        assert!(reply.decode::<ConnectRep>().unwrap().max_mod_rpcs > 0);
        reply.header.export
    }

    /// The client replays nothing.
    fn recovered(&mut self, conn: u64, export: Handle) {
        for flag in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
            let header = self.header(conn, export, Opcode::Ping, 0);
            self.frame(conn, Frame { header: Header { flags: flag, ..header }, ..Frame::default() });
            assert_eq!(self.reply(conn).header.status, 0);
        }
    }

    /// Records of a kind that are on the medium.
    fn on_medium<R: Record>(&self) -> Vec<(R::Id, R)> {
        let found = self.host.engine.scan(&R::all(), 1000).unwrap();
        let one = |(key, sealed): &(Key, store::Value)| {
            let body = schema::formats().open(key, sealed).unwrap();
            (R::parse_key(key).unwrap(), R::decode_record(&body).unwrap())
        };
        found.records.iter().map(one).collect()
    }

    fn incompat(&self) -> u64 {
        self.on_medium::<schema::Header>()[0].1.incompat
    }
}

#[test]
fn the_feature_is_on_the_medium_before_the_first_client_is_served() {
    let mut s = ledger();
    s.connect(1, 1);
    assert_eq!(s.incompat(), 0, "a client with single slots needs no feature");
    s.host.by_hand = true;
    s.connect_with(2, 2, false, features::MULTI_MOD_RPCS);
    assert!(s.try_reply(2).is_none());
    s.commit();
    assert_eq!(s.reply(2).header.status, 0);
    assert_eq!(s.incompat(), target::format_features::MULTI_RPCS);
    let generations: Vec<u32> = s.on_medium::<ClientRec>().iter().map(|(_, record)| record.generation).collect();
    assert_eq!(generations, [0, 1]);
}

#[test]
fn the_feature_goes_when_no_client_needs_it_and_the_target_was_started_once_more() {
    let mut s = ledger();
    let export = s.connect_multi(1, 1);
    for tag in 1..=5 {
        s.append_in(1, export, 5, tag);
    }
    s.pass(2_000);
    assert_eq!(s.on_medium::<ReplyRec>().len(), 5);
    // The client is known: the feature stays.
    let s = s.restart(Ledger::default(), options());
    assert_eq!((s.incompat(), s.on_medium::<ReplyRec>().len()), (0x400, 5));
    // The way down while clients are known: abort their recovery.
    let s = s.restart(Ledger::default(), Options { abort_recovery: true, ..options() });
    assert_eq!((s.incompat(), s.on_medium::<ReplyRec>().len(), s.on_medium::<ClientRec>().len()), (0, 0, 0));

    // A client that says good-bye leaves nothing; the next start clears the feature.
    let mut s = ledger();
    let export = s.connect_multi(1, 1);
    s.append_in(1, export, 5, 3);
    s.sent.clear();
    s.request(1, export, Opcode::Disconnect, 0, Bytes::new());
    s.pass(2_000);
    assert_eq!((s.incompat(), s.on_medium::<ReplyRec>().len()), (0x400, 0));
    let mut s = s.restart(Ledger::default(), options());
    assert_eq!(s.incompat(), 0);
    // Generations are not given again.
    s.connect_multi(1, 2);
    assert_eq!(s.on_medium::<ClientRec>()[0].1.generation, 2);

    // So does the end of a recovery in which they all stayed away.
    let mut s = s.restart(Ledger::default(), options());
    let back = s.connect_as(1, 9, false);
    assert_eq!(back.header.status, -Errno::EBUSY.raw());
    s.pass(31_000);
    assert!(s.t().is_serving());
    assert_eq!(s.incompat(), 0);
}

#[test]
fn a_reply_lies_with_its_change_and_is_given_again_after_a_restart() {
    let mut s = ledger();
    let export = s.connect_multi(1, 1);
    s.host.by_hand = true;
    let xids: Vec<Xid> = (1..=4).map(|tag| s.append_in(1, export, 5, tag)).collect();
    let firsts: Vec<Frame> = (0..4).map(|_| s.reply(1)).collect();
    s.pass(1_001);
    s.commit();
    s.append_in(1, export, 5, 2);
    s.reply(1);
    // Not durable: the record of slot 2 is still that of the first request.
    let mut s = s.restart(Ledger::default(), options());
    let on_medium: Vec<(u16, u64)> = s.on_medium::<ReplyRec>().iter().map(|((_, t), r)| (t.0, r.xid)).collect();
    assert_eq!(on_medium, [(1, xids[0].0), (2, xids[1].0), (3, xids[2].0), (4, xids[3].0)]);
    let export = s.connect_multi(1, 1);
    s.recovered(1, export);
    for (at, first) in firsts.iter().enumerate() {
        let n = xids[at].0 - 1;
        let body = Ask { kind: APPEND, key: 5, client: 1, n, handle: 0 }.bytes();
        let header = Header { xid: xids[at], flags: flags::RESENT, ..s.header(1, export, Opcode::MdsReint, 1) };
        let header = Header { tag: Tag(at as u16 + 1), ..header };
        s.frame(1, Frame { header, body, bulk: Bytes::new() });
        let again = s.reply(1);
        assert_eq!((again.header.transno, &again.body), (first.header.transno, &first.body));
    }
    assert!(s.param("mdt.*.exports.*.reply_data").starts_with("reply_cnt: 4\nreply_max: 4\n"));
    // The next request of a slot lets its record go, a last_xid those of all.
    s.append_in(1, export, 5, 1);
    let header = s.header(1, export, Opcode::Ping, 0);
    s.frame(1, Frame { header: Header { last_xid: Xid(header.xid.0 - 1), ..header }, ..Frame::default() });
    let counters = s.param("mdt.*.exports.*.reply_data");
    assert_eq!(counters, "reply_cnt: 0\nreply_max: 4\nreply_released_by_xid: 4\nreply_released_by_tag: 1\n");
}

#[test]
fn a_client_of_an_older_version_keeps_its_answers_when_it_gets_slots() {
    let mut s = ledger();
    let export = s.connect(1, 1);
    let xid = s.append(1, export, 5);
    let first = s.reply(1);
    s.pass(2_000);
    assert_eq!((s.on_medium::<ReplyRec>().len(), s.on_medium::<ClientRec>()[0].1.slots.len()), (0, 1));
    // Target and client are of the newer version from now on.
    let mut s = s.restart(Ledger::default(), options());
    let export = s.connect_multi(1, 1);
    assert_eq!((s.on_medium::<ReplyRec>().len(), s.on_medium::<ClientRec>()[0].1.slots.len()), (1, 0));
    s.recovered(1, export);
    let body = Ask { kind: APPEND, key: 5, client: 1, n: xid.0 - 1, handle: 0 }.bytes();
    let header = Header { xid, flags: flags::RESENT, ..s.header(1, export, Opcode::MdsReint, 1) };
    s.frame(1, Frame { header, body, bulk: Bytes::new() });
    let again = s.reply(1);
    assert_eq!((again.header.transno, again.body), (first.header.transno, first.body));
}

#[test]
fn two_clients_with_one_generation_are_no_sound_store() {
    let mut batch = store::Batch::new();
    let record = ClientRec { generation: 3, ..ClientRec::default() };
    for client in [1, 2] {
        batch.put(ClientRec::key(&proto::ClientUuid(client)), record.encode_record());
    }
    let damaged = engine(TargetKind::Mdt, |_| {});
    damaged.commit(2, &batch.seal(&schema::formats())).unwrap();
    let s = Story::start(Ledger::default(), damaged, options());
    let unfit = UnfitStore::Generation { target: "fs-MDT0000".to_owned(), generation: 3 };
    assert_eq!(s.why_stopped(), StopReason::Unfit(unfit));
}

#[test]
fn the_offer_is_a_parameter_with_two_names() {
    let mut s = ledger();
    assert_eq!(s.param("mdt.*.max_mod_rpcs_in_flight"), "8");
    for (value, want) in [("0", Err(Errno::ERANGE)), ("513", Err(Errno::ERANGE)), ("x", Err(Errno::EINVAL))] {
        assert_eq!(s.set_param("mdt.fs-MDT0000.max_mod_rpcs_in_flight", value), want);
    }
    assert_eq!(s.set_param("mdt.fs-MDT0000.max_mod_rpcs_per_client", "13"), Ok(()));
    assert_eq!(s.param("mdt.*.max_mod_rpcs_in_flight"), "13");
    s.connect_with(1, 1, false, features::MULTI_MOD_RPCS);
    assert_eq!(s.reply(1).decode::<ConnectRep>().unwrap().max_mod_rpcs, 13);
}
