//! Stories of requests and answers that are lost at the sites of fault injection.

use proto::frame::flags;
use proto::{Bytes, Frame, Handle, Header, Opcode, Tag, TargetKind, Xid};
use stdx::faults::{FAILED, ONCE, sites};
use stdx::{Faults, Site};

use super::ledger::{APPEND, Ask, Ledger};
use super::story::{Story, engine, ledger, options};
use crate::Options;

fn armed(site: Site, flags: u32) -> (Story<Ledger>, Faults) {
    let faults = Faults::allowed(1);
    let options = Options { faults: faults.clone(), ..options() };
    let story = Story::start(Ledger::default(), engine(TargetKind::Mdt, |_| {}), options);
    faults.set_loc(u32::from(site.0) | flags);
    (story, faults)
}

impl Story<Ledger> {
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
