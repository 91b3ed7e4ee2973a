//! The network: connections that keep their order, independent of each other, and what goes wrong with them.
//!
//! A frame that is sent is an event in the future; frames of one direction of a connection never overtake each other. A
//! connection that is cut loses, in each direction on its own, what had not arrived by a moment that chance picks, and
//! each end learns of it in its own time.

use std::collections::BTreeMap;

use stdx::Instant;

/// A machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A target.
    Server(usize),
    /// A client.
    Client(usize),
    /// The client that lies.
    Liar,
    /// All sessions that a story speaks by hand.
    Raw,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Whose.
    pub node: Node,
    /// In which of its lives.
    pub life: u32,
    /// How it numbers the connection.
    pub number: u64,
    /// The end exists: its node has been told of the connection and not of its end.
    pub open: bool,
    /// When the last thing on its way to this end arrives.
    pub last: Instant,
    /// What would arrive from here on is lost.
    pub dead_from: Option<Instant>,
    /// Its node has hung up: what comes all the same means nothing to it.
    pub hung_up: bool,
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    /// Who dialled, who accepted.
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
    /// A connection on its way from a dialler to a listener. Gives its number and the listener's number for it.
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

    /// An end, to change.
    pub(crate) fn end(&mut self, conn: usize, side: usize) -> &mut End {
        &mut self.conns[conn].ends[side]
    }

    /// A node has been told of its end.
    pub(crate) fn opened(&mut self, conn: usize, side: usize) {
        let end = self.end(conn, side);
        end.open = true;
        let key = (end.node, end.number);
        self.index.insert(key, (conn, side));
    }

    /// A node's end is gone.
    pub(crate) fn closed(&mut self, conn: usize, side: usize) {
        let end = self.end(conn, side);
        end.open = false;
        let key = (end.node, end.number);
        if self.index.get(&key) == Some(&(conn, side)) {
            self.index.remove(&key);
        }
    }

    /// The connection that a node means by a number, and its side.
    pub(crate) fn find(&self, node: Node, number: u64) -> Option<(usize, usize)> {
        self.index.get(&(node, number)).copied()
    }

    /// Whether something is on its way to some end: a frame, or the end of its connection.
    pub(crate) fn is_under_way(&self, now: Instant) -> bool {
        let mut ends = self.index.values().map(|&(conn, side)| &self.conns[conn].ends[side]);
        ends.any(|end| end.last >= now || end.dead_from.is_some())
    }

    /// The open ends of a node.
    pub(crate) fn of(&self, node: Node) -> Vec<(usize, usize)> {
        self.index.range((node, 0)..=(node, u64::MAX)).map(|(_, place)| *place).collect()
    }
}
