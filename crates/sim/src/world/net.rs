//! The network: ordered, independent connections and their failures.
//!
//! A frame that is sent becomes a future event; the frames of one direction of a connection never overtake each other. A cut
//! connection loses, in each direction separately, everything that has not arrived by a random moment, and each side learns of
//! the cut at its own time.

use std::collections::BTreeMap;

use stdx::Instant;

/// A machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A target.
    Server(usize),
    /// A client.
    Client(usize),
    /// The client that breaks the protocol.
    Liar,
    /// All sessions that a story operates by hand.
    Raw,
}

/// One side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// The node.
    pub node: Node,
    /// The life of the node.
    pub life: u32,
    /// The node's number for the connection.
    pub number: u64,
    /// The node knows of the connection and not yet of its end.
    pub open: bool,
    /// When the last event that was sent to this side arrives.
    pub last: Instant,
    /// Nothing arrives after this moment.
    pub dead_from: Option<Instant>,
    /// The node has hung up and ignores what still arrives.
    pub hung_up: bool,
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    /// The dialler's side and the acceptor's side.
    pub ends: [End; 2],
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Net {
    conns: Vec<Conn>,
    index: BTreeMap<(Node, u64), (usize, usize)>,
    accepted: u64,
}

impl Net {
    /// Adds a connection from a dialler to a listener. Returns its index.
    pub(crate) fn connect(&mut self, from: (Node, u32, u64), to: (Node, u32)) -> usize {
        self.accepted += 1;
        let end = |node, life, number| End {
            node,
            life,
            number,
            open: false,
            last: Instant::ZERO,
            dead_from: None,
            hung_up: false,
        };
        self.conns.push(Conn { ends: [end(from.0, from.1, from.2), end(to.0, to.1, self.accepted)] });
        self.conns.len() - 1
    }

    /// A connection.
    pub(crate) fn get(&self, conn: usize) -> &Conn {
        &self.conns[conn]
    }

    /// A side of a connection, mutable.
    pub(crate) fn end(&mut self, conn: usize, side: usize) -> &mut End {
        &mut self.conns[conn].ends[side]
    }

    /// A node learns that its side is established.
    pub(crate) fn opened(&mut self, conn: usize, side: usize) {
        let end = self.end(conn, side);
        end.open = true;
        let key = (end.node, end.number);
        self.index.insert(key, (conn, side));
    }

    /// A node's side is closed.
    pub(crate) fn closed(&mut self, conn: usize, side: usize) {
        let end = self.end(conn, side);
        end.open = false;
        let key = (end.node, end.number);
        if self.index.get(&key) == Some(&(conn, side)) {
            self.index.remove(&key);
        }
    }

    /// The connection for which a node uses this number, and its side.
    pub(crate) fn find(&self, node: Node, number: u64) -> Option<(usize, usize)> {
        self.index.get(&(node, number)).copied()
    }

    /// Whether any frame or end of a connection is in flight.
    pub(crate) fn is_under_way(&self, now: Instant) -> bool {
        let mut ends = self.index.values().map(|&(conn, side)| &self.conns[conn].ends[side]);
        ends.any(|end| end.last >= now || end.dead_from.is_some())
    }

    /// The open connections of a node, with its side.
    pub(crate) fn of(&self, node: Node) -> Vec<(usize, usize)> {
        self.index.range((node, 0)..=(node, u64::MAX)).map(|(_, place)| *place).collect()
    }
}
