//! What is cached and may be old, because a request that changes it is on its way.
//!
//! Before a server makes a change it asks other clients for what they know of it, but not who sends it: that keeps its locks. From the moment
//! at which the server has made it, others see the change; here its answer may take long (it waits until what it hangs on is
//! durable, or is lost and sent again). So until it is here, whoever asks for what it changes is answered by the server, which has
//! an order of all.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::cache::node::Nodes;

/// What requests on their way may have changed of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct InDoubt {
    /// How many there are.
    requests: u32,
    /// Of them those that change who may do what with it.
    access: u32,
    /// Directories: the names that they change.
    names: Vec<Bytes>,
}

impl InDoubt {
    /// Whether what a name leads to may have been changed.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Whether who may do what with it may have been changed.
    pub(crate) fn is_of_access(&self) -> bool {
        self.access > 0
    }
}

/// The nodes and names that a request changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Touched {
    /// And whether who may do what with them is changed.
    nodes: SmallVec<[(u64, bool); 4]>,
    names: SmallVec<[(u64, Bytes); 2]>,
}

impl Touched {
    /// A name, its directory, and what it leads to as far as that is known.
    pub(crate) fn name(&mut self, nodes: &Nodes, parent: u64, name: &Bytes) {
        self.nodes.push((parent, false));
        self.names.push((parent, name.clone()));
        let dir = nodes.get(parent).and_then(|node| node.dir.as_ref());
        if let Some(fid) = dir.and_then(|dir| dir.names.get(name.as_ref())).and_then(|entry| entry.fid) {
            self.nodes.push((fid.ino(), false));
        }
    }

    /// Attributes of a node.
    pub(crate) fn node(&mut self, ino: u64, access: bool) {
        self.nodes.push((ino, access));
    }

    /// The request is sent. Of nodes that are not known nothing is in doubt.
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

    /// It has its answer, or never will have one. What was in doubt stays until then.
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
