//! Sessions that a story operates by hand: the world dials, carries frames, and reports the end of connections.
//!
//! The story ([`crate::scenario`]) uses them through [`RawSessions`]. Nothing is answered automatically, not even callbacks.

use core::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use proto::{Frame, Opcode, frame::flags};

use super::World;
use super::net::Node;
use super::session::Session;

/// All sessions of a story, as a node.
pub(crate) const NODE: Node = Node::Raw;

/// A request of a story to the network.
#[derive(Debug)]
enum Order {
    Dial(usize),
    Send(usize, Frame),
    HangUp(u64),
}

/// One session.
#[derive(Debug)]
struct RawSession {
    session: Session,
    /// It waits for a connection.
    dials: bool,
    /// Targets treat it as local, so it may claim to be a target.
    trusted: bool,
    received: VecDeque<Frame>,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: Vec<RawSession>,
    orders: VecDeque<Order>,
    /// Connections so far.
    numbers: u64,
    /// They may make false claims.
    lie: bool,
}

/// The sessions of a story; a handle, cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct RawSessions {
    inner: Rc<RefCell<Inner>>,
}

impl RawSessions {
    /// Adds a session without a connection. Returns its index.
    pub fn add(&self, server: usize) -> usize {
        let sessions = &mut self.inner.borrow_mut().sessions;
        let place = sessions.len();
        let session = Session::new(server, (0x0bad_cafe << 64) + place as u128 + 1);
        sessions.push(RawSession { session, dials: false, trusted: true, received: VecDeque::new() });
        place
    }

    /// Allows the sessions to make false claims: that they are targets, or an older copy of one.
    pub fn expect_lies(&self) {
        self.inner.borrow_mut().lie = true;
    }

    /// Whether the sessions may make false claims.
    pub(super) fn may_lie(&self) -> bool {
        self.inner.borrow().lie
    }

    /// The number of sessions.
    pub fn count(&self) -> usize {
        self.inner.borrow().sessions.len()
    }

    /// Reads or changes a session.
    pub fn session<R>(&self, place: usize, look: impl FnOnce(&mut Session) -> R) -> R {
        look(&mut self.inner.borrow_mut().sessions[place].session)
    }

    /// From its next connection on, targets treat the session as a foreign program.
    pub fn distrust(&self, place: usize) {
        self.inner.borrow_mut().sessions[place].trusted = false;
    }

    /// Whether the peer on this connection may be a target.
    fn is_trusted(&self, number: u64) -> bool {
        self.inner.borrow().sessions.iter().any(|line| line.session.number == number && line.trusted)
    }

    /// Requests a connection.
    pub fn dial(&self, place: usize) {
        let mut inner = self.inner.borrow_mut();
        inner.sessions[place].dials = true;
        inner.orders.push_back(Order::Dial(place));
    }

    /// Whether it waits for a connection.
    pub fn dials(&self, place: usize) -> bool {
        self.inner.borrow().sessions[place].dials
    }

    /// Sends a frame, as it is.
    pub fn send(&self, place: usize, frame: Frame) {
        self.inner.borrow_mut().orders.push_back(Order::Send(place, frame));
    }

    /// Closes the connection.
    pub fn hang_up(&self, place: usize) {
        let mut inner = self.inner.borrow_mut();
        let session = &mut inner.sessions[place].session;
        session.up = false;
        let number = session.number;
        inner.orders.push_back(Order::HangUp(number));
    }

    /// Takes the first received frame that `wanted` accepts.
    pub fn take(&self, place: usize, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let received = &mut self.inner.borrow_mut().sessions[place].received;
        let at = received.iter().position(wanted)?;
        received.remove(at)
    }

    /// Changes the session with this connection.
    fn of_number(&self, number: u64, with: impl FnOnce(&mut RawSession)) {
        if let Some(line) = self.inner.borrow_mut().sessions.iter_mut().find(|line| line.session.number == number) {
            with(line);
        }
    }
}

impl World {
    /// Whether servers accept that the peer on this connection may be a target.
    pub(super) fn is_ours(&self, node: Node, number: u64) -> bool {
        match node {
            Node::Server(_) | Node::Client(_) => true,
            Node::Liar => false,
            Node::Raw => self.raw.is_trusted(number),
        }
    }

    /// Executes the story's requests to the network.
    pub(super) fn carry_raw(&mut self) {
        loop {
            let Some(order) = self.raw.inner.borrow_mut().orders.pop_front() else { return };
            match order {
                Order::Dial(place) => {
                    let (number, server) = {
                        let mut inner = self.raw.inner.borrow_mut();
                        inner.numbers += 1;
                        let number = inner.numbers;
                        inner.sessions[place].session.number = number;
                        (number, inner.sessions[place].session.server)
                    };
                    let nid = self.servers[server].nid.clone();
                    self.dial(NODE, number, &[nid]);
                }
                Order::Send(place, frame) => {
                    let number = self.raw.session(place, |session| session.number);
                    self.send(NODE, number, frame);
                }
                Order::HangUp(number) => {
                    if let Some((conn, side)) = self.net.find(NODE, number) {
                        self.hang_up(conn, side);
                        self.net.closed(conn, side);
                    }
                }
            }
        }
    }

    /// A session's connection is established.
    pub(super) fn raw_dialled(&mut self, number: u64) {
        self.raw.of_number(number, |line| (line.dials, line.session.up) = (false, true));
    }

    /// A session's connection is closed, or could not be established.
    pub(super) fn raw_closed(&mut self, number: u64) {
        self.raw.of_number(number, |line| (line.dials, line.session.up) = (false, false));
    }

    /// A session receives a frame.
    pub(super) fn raw_receives(&mut self, number: u64, frame: Frame) {
        self.raw.of_number(number, |line| {
            if frame.header.has(flags::REPLY) && frame.header.opcode == Opcode::Connect as u16 {
                line.session.connected(&frame);
            }
            line.received.push_back(frame);
        });
    }
}
