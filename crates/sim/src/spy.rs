//! The exactly-once oracle: watches every frame and keeps the history of changes.
//!
//! Whatever was lost, duplicated, resent or replayed:
//! - Every reply to one request with a slot has the same transno and status, both as the client receives it and as the server
//!   sends it (even if it does not arrive), unless the server crashed in between before it reported the change durable. An open
//!   may become `ESTALE` if no answer has arrived: it was lost with the server's memory, and the object was removed since.
//! - A request with a slot that was answered with an error keeps that error as long as its server runs.
//! - A transno belongs to one request.
//! - The changes of a client's slot have transnos in the order of their xids.
//! - No sequence of object numbers is given to two clients, and no range of sequences is given twice, whichever machines crashed.

use std::collections::{BTreeMap, BTreeSet};

use proto::frame::flags;
use proto::msg::{Reint, ReintReq, SeqAllocRep, SeqRangeRep};
use proto::{Errno, Frame, Opcode};

use crate::world::net::Node;

/// A request of a session: client, server, xid.
type Request = (Node, Node, u64);

/// The history of changes.
#[derive(Debug, Default)]
pub struct Spy {
    /// By request: the transno and status in the reply that its client received.
    received: BTreeMap<Request, (u64, i32)>,
    /// By request: the transno and status in the last reply that its server sent.
    sent: BTreeMap<Request, (u64, i32)>,
    /// By server: the highest transno that it has reported durable.
    durable: BTreeMap<Node, u64>,
    /// By server and transno: the client and xid of the request.
    owners: BTreeMap<(Node, u64), (Node, u64)>,
    /// By client, server and slot: the transno of each xid.
    slots: BTreeMap<(Node, Node, u16), BTreeMap<u64, u64>>,
    /// The slot of each request that arrived.
    tags: BTreeMap<Request, u16>,
    /// The requests of them that open something, and whether their server answered them before it crashed.
    opens: BTreeMap<Request, bool>,
    /// Connections on which the reply to the connect request has arrived. A client accepts no other reply before it; over TCP
    /// none can arrive earlier.
    connected: BTreeSet<usize>,
    /// The owner of each granted sequence.
    sequences: BTreeMap<u64, Node>,
    /// Granted ranges of sequences: first, end (exclusive), request.
    ranges: Vec<(u64, u64, Request)>,
    /// Requests that arrived as a resend, and as a replay.
    resent: u64,
    replayed: u64,
}

impl Spy {
    /// A server sends a reply, which may be lost.
    ///
    /// # Errors
    /// The server had sent a different reply before, and cannot have forgotten it.
    pub fn sends(&mut self, server: Node, client: Node, frame: &Frame) -> Result<(), String> {
        let h = &frame.header;
        let durable = self.durable.entry(server).or_default();
        *durable = (*durable).max(h.last_committed.0);
        let request = (client, server, h.xid.0);
        let changed = h.transno.0 != 0;
        if !h.has(flags::REPLY)
            || h.has(flags::EARLY)
            || !changed && !failed(h.status)
            || !modifies(h.opcode)
            || !self.tags.contains_key(&request)
        {
            return Ok(());
        }
        let now = (h.transno.0, h.status);
        // A change that was done and whose repetition failed is judged by the model, which sees the results.
        if !changed && self.sent.get(&request).is_some_and(|(transno, _)| *transno != 0) {
            return Ok(());
        }
        let finds_nothing = h.status == -Errno::ESTALE.raw() && self.opens.get(&request) == Some(&true);
        if finds_nothing && self.sent.get(&request) == Some(&(h.transno.0, 0)) && !self.received.contains_key(&request)
        {
            self.sent.insert(request, now);
            return Ok(());
        }
        match self.sent.insert(request, now) {
            Some(before) if before != now => Err(format!(
                "{server:?} answers xid {:x} of {client:?} with transno {:x} status {}, and did so before with transno {:x} status {}",
                h.xid.0, now.0, now.1, before.0, before.1
            )),
            _ => Ok(()),
        }
    }

    /// A server sends a reply to any node.
    ///
    /// # Errors
    /// It grants what it had already granted to another node.
    pub fn answers(&mut self, server: Node, to: Node, frame: &Frame) -> Result<(), String> {
        let h = &frame.header;
        if !h.has(flags::REPLY) || h.has(flags::EARLY) || h.status != 0 {
            return Ok(());
        }
        match Opcode::from_raw(h.opcode) {
            Some(Opcode::SeqAlloc) => {
                let Ok(SeqAllocRep { seq, .. }) = frame.decode() else { return Ok(()) };
                let owner = *self.sequences.entry(seq).or_insert(to);
                if owner != to {
                    return Err(format!("{server:?} gives sequence {seq:x} to {owner:?} and to {to:?}"));
                }
            }
            Some(Opcode::MgsSeqRange) => {
                let Ok(SeqRangeRep { start, end, .. }) = frame.decode() else { return Ok(()) };
                let request = (to, server, h.xid.0);
                if self.ranges.iter().any(|(first, range_end, of)| *of != request && start < *range_end && *first < end)
                {
                    return Err(format!("{server:?} gives sequences {start:x} to {end:x} a second time"));
                }
                self.ranges.push((start, end, request));
            }
            _ => {}
        }
        Ok(())
    }

    /// A server crashes and forgets what is not durable.
    pub fn crashes(&mut self, server: Node) {
        let durable = self.durable.get(&server).copied().unwrap_or(0);
        self.sent.retain(|(_, of, _), (transno, _)| *of != server || (1..=durable).contains(transno));
        for (request, is_lost) in self.opens.iter_mut().filter(|(request, _)| request.1 == server) {
            *is_lost |= self.sent.contains_key(request);
        }
    }

    /// A frame arrives on a connection.
    ///
    /// # Errors
    /// The history is not one of exactly-once execution.
    pub fn arrives(&mut self, conn: usize, from: Node, to: Node, frame: &Frame) -> Result<(), String> {
        let h = &frame.header;
        if !h.has(flags::REPLY) {
            if h.tag.0 != 0 {
                self.tags.insert((from, to, h.xid.0), h.tag.0);
                let opens = |change: ReintReq| matches!(change.op, Some(Reint::Open(_)));
                if h.opcode == Opcode::MdsReint as u16 && frame.decode().is_ok_and(opens) {
                    self.opens.entry((from, to, h.xid.0)).or_default();
                }
            }
            self.resent += u64::from(h.has(flags::RESENT));
            self.replayed += u64::from(h.has(flags::REPLAY));
            return Ok(());
        }
        if h.opcode == Opcode::Connect as u16 && h.status == 0 {
            self.connected.insert(conn);
        }
        if h.has(flags::EARLY) || !self.connected.contains(&conn) || h.transno.0 == 0 || !modifies(h.opcode) {
            return Ok(());
        }
        let (client, server, xid) = (to, from, h.xid.0);
        // A request without a slot may be executed twice: writing the same bytes again under the same lock changes nothing.
        if !self.tags.contains_key(&(client, server, xid)) {
            return Ok(());
        }
        let what = || Opcode::from_raw(h.opcode).map_or("unknown", Opcode::name);
        let received = (h.transno.0, h.status);
        match self.received.get(&(client, server, xid)) {
            Some(&before) if before != received => {
                return Err(format!(
                    "{client:?} was told two outcomes of {} xid {xid:x} by {server:?}: transno {:x} status {}, then transno {:x} status {}",
                    what(),
                    before.0,
                    before.1,
                    received.0,
                    received.1
                ));
            }
            Some(_) => return Ok(()),
            None => self.received.insert((client, server, xid), received),
        };
        if let Some(&(other, other_xid)) = self.owners.get(&(server, received.0))
            && (other, other_xid) != (client, xid)
        {
            return Err(format!(
                "transno {:x} of {server:?} was given twice: to {other:?} xid {other_xid:x} and to {client:?} xid {xid:x}",
                received.0
            ));
        }
        self.owners.insert((server, received.0), (client, xid));
        let Some(&tag) = self.tags.get(&(client, server, xid)) else { return Ok(()) };
        let slot = self.slots.entry((client, server, tag)).or_default();
        let earlier = slot.range(..xid).next_back().map(|(x, t)| (*x, *t));
        let later = slot.range(xid + 1..).next().map(|(x, t)| (*x, *t));
        slot.insert(xid, received.0);
        for (other_xid, other_transno, ordered) in
            [earlier.map(|(x, t)| (x, t, t < received.0)), later.map(|(x, t)| (x, t, t > received.0))]
                .into_iter()
                .flatten()
        {
            if !ordered {
                return Err(format!(
                    "{client:?} slot {tag} on {server:?}: xid {xid:x} has transno {:x}, xid {other_xid:x} has {other_transno:x}: not in order",
                    received.0
                ));
            }
        }
        Ok(())
    }

    /// The numbers of requests that arrived as resends and as replays.
    pub fn repeated(&self) -> (u64, u64) {
        (self.resent, self.replayed)
    }
}

/// Whether a request was executed and failed. An unknown or different session, or too many requests in flight, is a rejection,
/// not a failure.
fn failed(status: i32) -> bool {
    use Errno::{EAGAIN, EINPROGRESS, ENOTCONN, EOPNOTSUPP, EPROTO, ESHUTDOWN};
    let turned_away = [EAGAIN, EINPROGRESS, ENOTCONN, EOPNOTSUPP, EPROTO, ESHUTDOWN];
    Errno::from_status(status).is_err_and(|errno| !turned_away.contains(&errno))
}

fn modifies(opcode: u16) -> bool {
    Opcode::from_raw(opcode).is_some_and(|opcode| opcode.traits().modifies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use proto::msg::{CreateOp, OpenOp};
    use proto::{Header, Tag, Transno, Xid};

    const CLIENT: Node = Node::Client(0);
    const MDT: Node = Node::Server(1);

    fn request(xid: u64) -> Frame {
        Frame {
            header: Header { opcode: Opcode::MdsReint as u16, tag: Tag(1), xid: Xid(xid), ..Header::default() },
            ..Frame::default()
        }
    }

    fn reply(xid: u64, transno: u64, status: i32) -> Frame {
        let mut frame = request(xid);
        frame.header.flags = flags::REPLY;
        frame.header.transno = Transno(transno);
        frame.header.status = status;
        frame
    }

    fn connected() -> Frame {
        Frame {
            header: Header { opcode: Opcode::Connect as u16, flags: flags::REPLY, ..Header::default() },
            ..Frame::default()
        }
    }

    fn history(frames: &[Frame]) -> Result<(), String> {
        let mut spy = Spy::default();
        spy.arrives(1, MDT, CLIENT, &connected())?;
        for frame in frames {
            let (from, to) = if frame.header.has(flags::REPLY) { (MDT, CLIENT) } else { (CLIENT, MDT) };
            spy.arrives(1, from, to, frame)?;
        }
        Ok(())
    }

    #[test]
    fn a_resent_request_keeps_its_answer() {
        assert_eq!(history(&[request(7), reply(7, 100, 0), request(7), reply(7, 100, 0), reply(8, 101, 0)]), Ok(()));
        assert!(history(&[request(7), reply(7, 100, 0), reply(7, 101, 0)]).unwrap_err().contains("two outcomes"));
        assert!(history(&[request(7), reply(7, 100, 0), reply(7, 100, -2)]).unwrap_err().contains("two outcomes"));
    }

    /// The first reply was lost: only a crash of a server that had not made the change durable excuses a different one.
    #[test]
    fn a_reply_counts_even_if_it_was_lost() {
        let durable = |xid, transno, committed| {
            let mut frame = reply(xid, transno, 0);
            frame.header.last_committed = Transno(committed);
            frame
        };
        let second = |crash: bool, committed| {
            let mut spy = Spy::default();
            spy.arrives(1, CLIENT, MDT, &request(7)).unwrap();
            spy.sends(MDT, CLIENT, &reply(7, 100, 0)).unwrap();
            spy.sends(MDT, CLIENT, &durable(6, 99, committed)).unwrap();
            if crash {
                spy.crashes(MDT);
            }
            spy.sends(MDT, CLIENT, &reply(7, 120, 0))
        };
        assert_eq!(second(true, 99), Ok(()));
        assert!(second(true, 100).unwrap_err().contains("did so before"));
        assert!(second(false, 99).unwrap_err().contains("did so before"));
    }

    /// Nothing is left to open after a crash. That excuses an open that was not answered, and no other request or error.
    #[test]
    fn an_open_that_a_crash_took_may_find_nothing() {
        let second = |op: Reint, crash: bool, arrived: bool, again: &Frame| {
            let mut first = request(7);
            first.header.opcode = Opcode::MdsReint as u16;
            first.body = ReintReq { op: Some(op), ..ReintReq::default() }.encode_to_vec().into();
            let mut spy = Spy::default();
            spy.arrives(1, MDT, CLIENT, &connected()).unwrap();
            spy.arrives(1, CLIENT, MDT, &first).unwrap();
            let mut answer = reply(7, 100, 0);
            answer.header.last_committed = Transno(100);
            spy.sends(MDT, CLIENT, &answer).unwrap();
            if arrived {
                spy.arrives(1, MDT, CLIENT, &answer).unwrap();
            }
            if crash {
                spy.crashes(MDT);
            }
            spy.sends(MDT, CLIENT, again)
        };
        let stale = reply(7, 100, -Errno::ESTALE.raw());
        let open = || Reint::Open(OpenOp::default());
        assert_eq!(second(open(), true, false, &stale), Ok(()));
        assert!(second(open(), false, false, &stale).unwrap_err().contains("did so before"));
        assert!(second(open(), true, true, &stale).unwrap_err().contains("did so before"));
        assert!(
            second(open(), true, false, &reply(7, 100, -Errno::ENOENT.raw())).unwrap_err().contains("did so before")
        );
        assert!(
            second(open(), true, false, &reply(7, 101, -Errno::ESTALE.raw())).unwrap_err().contains("did so before")
        );
        let create = Reint::Create(CreateOp::default());
        assert!(second(create, true, false, &stale).unwrap_err().contains("did so before"));
    }

    /// A second copy of a failed request must not be executed, even if it would succeed by then.
    #[test]
    fn a_failed_request_keeps_its_error() {
        let second = |crash: bool, status: i32, again: &Frame| {
            let mut spy = Spy::default();
            spy.arrives(1, CLIENT, MDT, &request(7)).unwrap();
            spy.sends(MDT, CLIENT, &reply(7, 0, status)).unwrap();
            if crash {
                spy.crashes(MDT);
            }
            spy.sends(MDT, CLIENT, again)
        };
        let exists = -Errno::EEXIST.raw();
        assert_eq!(second(false, exists, &reply(7, 0, exists)), Ok(()));
        assert_eq!(second(true, exists, &reply(7, 120, 0)), Ok(()));
        assert_eq!(second(false, -Errno::EINPROGRESS.raw(), &reply(7, 120, 0)), Ok(()));
        assert!(second(false, exists, &reply(7, 120, 0)).unwrap_err().contains("did so before"));
        assert!(second(false, exists, &reply(7, 0, -Errno::ENOENT.raw())).unwrap_err().contains("did so before"));
    }

    /// Ignores replies that arrived before the reply to the connect request, and replies that arrived on another connection.
    #[test]
    fn replies_before_the_connect_reply_are_ignored() {
        let mut spy = Spy::default();
        let mut arrives = |conn, frame: Frame| match frame.header.has(flags::REPLY) {
            true => spy.arrives(conn, MDT, CLIENT, &frame),
            false => spy.arrives(conn, CLIENT, MDT, &frame),
        };
        assert_eq!(arrives(1, request(7)), Ok(()));
        assert_eq!(arrives(1, reply(7, 100, 0)), Ok(()));
        assert_eq!(arrives(2, connected()), Ok(()));
        assert_eq!(arrives(2, reply(7, 101, 0)), Ok(()));
        assert!(arrives(2, reply(7, 102, 0)).unwrap_err().contains("two outcomes"));
    }

    #[test]
    fn sequences_are_given_to_one_client_and_ranges_once() {
        let given = |seq| {
            let header = Header { opcode: Opcode::SeqAlloc as u16, flags: flags::REPLY, ..Header::default() };
            Frame::new(header, &SeqAllocRep { seq, width: 1 }, proto::Bytes::new())
        };
        let mut spy = Spy::default();
        assert_eq!(spy.answers(MDT, CLIENT, &given(7)), Ok(()));
        assert_eq!(spy.answers(MDT, CLIENT, &given(7)), Ok(()));
        assert!(spy.answers(MDT, Node::Client(1), &given(7)).unwrap_err().contains("gives sequence 7"));
        let range = |xid, start, end| {
            let (opcode, xid) = (Opcode::MgsSeqRange as u16, Xid(xid));
            let header = Header { opcode, xid, flags: flags::REPLY, ..Header::default() };
            Frame::new(header, &SeqRangeRep { start, end, published: true }, proto::Bytes::new())
        };
        let mgs = Node::Server(0);
        assert_eq!(spy.answers(mgs, MDT, &range(1, 10, 20)), Ok(()));
        assert_eq!(spy.answers(mgs, MDT, &range(1, 10, 20)), Ok(()), "sent again");
        assert_eq!(spy.answers(mgs, MDT, &range(2, 20, 30)), Ok(()));
        assert!(spy.answers(mgs, MDT, &range(3, 29, 40)).unwrap_err().contains("a second time"));
    }

    #[test]
    fn transnos_are_given_once_and_in_order() {
        assert!(
            history(&[request(7), request(8), reply(7, 100, 0), reply(8, 100, 0)]).unwrap_err().contains("given twice")
        );
        let frames = [request(7), request(8), reply(7, 100, 0), reply(8, 99, 0)];
        assert!(history(&frames).unwrap_err().contains("not in order"));
    }
}
