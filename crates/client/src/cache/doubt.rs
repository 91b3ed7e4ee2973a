//! Doubt: cache entries that may be outdated, because a request that changes them is in flight.
//!
//! Before a server makes a change it calls back the locks of other clients, but not those of the client that sent it.
//! Once the server has made the change, others see it, while the answer to this client may take longer (it waits until
//! the changes that it depends on are durable, or is lost and sent again). So until the answer arrives, calls about
//! what it changes go to the server, which orders everything.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::cache::node::Nodes;

/// What requests in flight may have changed of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct InDoubt {
    /// The number of these requests.
    requests: u32,
    /// Those of them that change permissions.
    access: u32,
    /// For a directory: the names that they change.
    names: Vec<Bytes>,
}

impl InDoubt {
    /// Whether what a name leads to may have been changed.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Whether permissions may have been changed.
    pub(crate) fn is_of_access(&self) -> bool {
        self.access > 0
    }
}

/// The nodes and names that a request changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Touched {
    /// Each with whether its permissions change.
    nodes: SmallVec<[(u64, bool); 4]>,
    names: SmallVec<[(u64, Bytes); 2]>,
}

impl Touched {
    /// Adds a name, its directory, and the object that it leads to if that is cached.
    pub(crate) fn name(&mut self, nodes: &Nodes, parent: u64, name: &Bytes) {
        self.nodes.push((parent, false));
        self.names.push((parent, name.clone()));
        if let Some(fid) = nodes.last_known(parent, name) {
            self.nodes.push((fid.ino(), false));
        }
    }

    /// Adds the attributes of a node.
    pub(crate) fn node(&mut self, ino: u64, access: bool) {
        self.nodes.push((ino, access));
    }

    /// The request is sent: what it changes is in doubt. Nodes that are not cached are left out.
    pub(crate) fn sent(&mut self, nodes: &mut Nodes) {
        self.nodes.retain(|(ino, access)| {
            let Some(node) = nodes.get_mut(*ino) else { return false };
            let doubt = node.in_doubt.get_or_insert_default();
            doubt.requests += 1;
            doubt.access += u32::from(*access);
            true
        });
        for (parent, name) in &self.names {
            if let Some(doubt) = nodes.get_mut(*parent).and_then(|node| node.in_doubt.as_mut()) {
                doubt.names.push(name.clone());
            }
        }
    }

    /// The request was answered, or never will be: its doubt ends.
    pub(crate) fn answered(&self, nodes: &mut Nodes) {
        for (parent, name) in &self.names {
            if let Some(doubt) = nodes.get_mut(*parent).and_then(|node| node.in_doubt.as_mut())
                && let Some(at) = doubt.names.iter().position(|known| known == name)
            {
                doubt.names.swap_remove(at);
            }
        }
        for (ino, access) in &self.nodes {
            let node = nodes.get_mut(*ino).filter(|node| node.in_doubt.is_some());
            assert!(node.is_some(), "node {ino:#x} was in doubt, and is not");
            let Some(node) = node else { continue };
            let Some(doubt) = &mut node.in_doubt else { continue };
            doubt.requests -= 1;
            doubt.access -= u32::from(*access);
            if doubt.requests == 0 {
                node.in_doubt = None;
            }
        }
    }
}
