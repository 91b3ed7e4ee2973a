//! Nodes: the cached state of each object, and the locks that cover it.
//!
//! A node exists while the kernel refers to it, it is open, or its cache is worth keeping. There are at most
//! `max_nodes` ([`crate::coherence::reclaim`]), unless programs use more. `validity` mirrors the inode locks that are
//! held and not called back.

use bytes::Bytes;
use core::num::NonZero;
use proto::msg::{Attr, Cred, Lmv, Xattr, bits};
use proto::{Errno, Fid};
use rules::mode::{S_IFDIR, S_IFMT, S_IFREG};
use rules::{Caller, stripes};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use stdx::{Index, Instant, Slab};

use crate::api::{KernelNode, object_number};
use crate::cache::data::state::NodeData;
use crate::cache::doubt::InDoubt;
use crate::cache::failures::Failures;
use crate::cache::kernel_view::KernelView;
use crate::cache::names::Directory;
use crate::cache::validity::Validity;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// A reason, besides the kernel's references, to keep a node in memory. Each hold is released exactly once by its
/// owner: an operation records its holds in its memo, an open file and a change have one each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// An open file or directory, or one whose close is not answered.
    Open,
    /// A file or directory that a program has open.
    Handle,
    /// The same, opened so that it brings no pages into the kernel.
    DirectHandle,
    /// An operation that waits and needs the node.
    Wanted,
    /// A call that waits for attributes that the kernel lacks, or that will truncate the file in the kernel when it is
    /// answered: no answer may let the kernel keep attributes meanwhile.
    AttrWanted,
    /// An unanswered change of it that was made in the caches.
    Unsettled,
    /// An operation with a request that changes it, or names in it.
    Changing,
}

/// The number of holds of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Holds([u32; 7]);

/// A cached object.
#[derive(Debug)]
pub(crate) struct Node {
    /// Identity.
    pub fid: Fid,
    /// What the kernel knows.
    pub(crate) kernel: KernelView,
    /// Holds by operations, open files and caches: while there are any, the node stays.
    holds: Holds,
    /// Which locks cover the cached state.
    pub(crate) validity: Validity,
    /// The newest attributes seen; `None` before the first.
    pub attr: Option<Attr>,
    /// The object has no name left, as far as this client knows.
    pub unlinked: bool,
    /// No program has it open either: it does not change any more, so that its cached state needs no lock.
    pub destroyed: bool,
    /// The directory in which it was found last, of a striped one the stripe; 0 if unknown. Of a stripe its master.
    pub parent: u64,
    /// It is a stripe of another directory.
    pub is_stripe: bool,
    /// Directories: names and listing.
    pub dir: Option<Box<Directory>>,
    /// All extended attributes, under XATTR.
    pub xattrs: Option<Arc<Vec<Xattr>>>,
    /// The moment at which the last change of this client that affects them was answered.
    pub xattrs_changed: u64,
    /// Target of a symbolic link: never changes.
    pub symlink: Option<Box<Bytes>>,
    /// A newer atime that was not reported to the server yet. As in [`proto::msg::Close`], 0 is none.
    pub atime_ns: Option<NonZero<i64>>,
    /// The cached data.
    pub data: Option<Box<NodeData>>,
    /// The lease of its directory under which it was made, so that nobody else knows it while that lasts
    /// ([`crate::coherence::metadata_write_back`]); 0: none.
    pub(crate) private: u64,
    /// Requests in flight that change it.
    pub(crate) in_doubt: Option<Box<InDoubt>>,
    /// Lost changes of it.
    pub(crate) failures: Option<Box<Failures>>,
    /// The previous and the next node in its list.
    links: (u32, u32),
}

impl Node {
    fn new(fid: Fid) -> Node {
        Node {
            fid,
            kernel: KernelView::default(),
            holds: Holds::default(),
            validity: Validity::default(),
            attr: None,
            unlinked: false,
            destroyed: false,
            parent: 0,
            is_stripe: false,
            dir: None,
            xattrs: None,
            xattrs_changed: 0,
            symlink: None,
            atime_ns: None,
            data: None,
            private: 0,
            in_doubt: None,
            failures: None,
            links: (NIL, NIL),
        }
    }

    /// Its inode number.
    pub(crate) fn ino(&self) -> u64 {
        self.fid.ino()
    }

    /// Whether neither the kernel nor open files nor operations refer to it.
    pub(crate) fn is_idle(&self) -> bool {
        !self.kernel.knows() && self.in_doubt.is_none() && self.holds == Holds::default()
    }

    /// The number of holds of this kind.
    pub(crate) fn held(&self, hold: Hold) -> u32 {
        self.holds.0[hold as usize]
    }

    /// Whether there is a hold of this kind.
    pub(crate) fn is_held(&self, hold: Hold) -> bool {
        self.held(hold) > 0
    }

    /// Whether these lock bits are held.
    pub(crate) fn has(&self, wanted: u64) -> bool {
        self.validity.has(wanted)
    }

    /// A change of this client that affects the extended attributes was answered: other answers may be older. Own
    /// changes do not call own locks back.
    pub(crate) fn change_xattrs(&mut self, moment: u64) {
        self.xattrs = None;
        self.xattrs_changed = moment;
    }

    /// The attributes, if a lock covers them.
    pub(crate) fn covered_attr(&self) -> Option<&Attr> {
        self.attr.as_ref().filter(|_| self.validity.covers(bits::UPDATE))
    }

    /// The same, if no request is in flight that may have changed them already: then others may see newer ones.
    pub(crate) fn certain_attr(&self) -> Option<&Attr> {
        if self.in_doubt.is_none() { self.covered_attr() } else { None }
    }

    /// The attributes that decide permissions, if a lock covers them and no request is in flight that changes them.
    pub(crate) fn access_attr(&self) -> Option<&Attr> {
        if self.in_doubt.as_ref().is_none_or(|doubt| !doubt.is_of_access()) { self.covered_attr() } else { None }
    }

    /// Whether a request is in flight that changes what this name leads to.
    pub(crate) fn doubts(&self, name: &[u8]) -> bool {
        self.in_doubt.as_ref().is_some_and(|doubt| doubt.has_name(name))
    }

    /// Whether locks cover the attributes that decide permissions, and it has a name.
    pub(crate) fn knows_access(&self) -> bool {
        self.validity.covers(bits::XATTR) && self.covered_attr().is_some_and(|attr| attr.nlink > 0)
    }

    /// Type bits, 0 if unknown.
    pub(crate) fn kind(&self) -> u32 {
        self.attr.as_ref().map_or(0, |attr| attr.mode & S_IFMT)
    }

    /// Whether it is known to be a regular file.
    pub(crate) fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// The layout of a striped directory. One that was removed has no stripes any more.
    pub(crate) fn lmv(&self) -> Option<&Lmv> {
        self.attr.as_ref()?.lmv.as_deref().filter(|lmv| !lmv.stripes.is_empty() && !self.unlinked)
    }

    /// Whether it is known to be a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// How many changes of it were lost, and the error of the last one.
    pub(crate) fn failures(&self) -> (u32, Errno) {
        self.failures.as_deref().map_or((0, Errno::EIO), |failures| (failures.count, failures.errno))
    }

    /// The directory part, created if needed.
    pub(crate) fn dir_mut(&mut self) -> &mut Directory {
        self.dir.get_or_insert_with(Default::default)
    }
}

/// A regular file whose data lies on the metadata target.
pub(crate) fn is_resident(attr: &Attr) -> bool {
    attr.mode & S_IFMT == S_IFREG && attr.layout.as_ref().is_none_or(|layout| layout.resident)
}

/// All nodes, each in one of two lists, the least recently used first: so the next node to drop is found without a
/// search.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    nodes: Slab<Node>,
    by_ino: Index,
    /// Those that the kernel refers to.
    known: List,
    /// The others.
    free: List,
    /// Directories with many names.
    pub(super) crowded: VecDeque<u64>,
    /// The limit of names of all these directories together.
    pub(super) names_max: usize,
    /// The last number given to an epoch.
    epochs: u32,
}

/// Most names of a path in a message.
const PATH_NAMES_MAX: usize = 64;

impl Nodes {
    /// No nodes yet; `names_max` limits the names of crowded directories together.
    pub(crate) fn new(names_max: usize) -> Nodes {
        Nodes { names_max, ..Nodes::default() }
    }

    /// See [`Nodes::new`].
    pub(crate) fn set_names_max(&mut self, names_max: usize) {
        self.names_max = names_max;
    }

    /// A number for an epoch: never the same twice in one mount.
    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        self.epochs
    }

    /// Sets which inode lock bits of an object are held, without those called back, and drops what is no longer
    /// covered. The node is created if needed, unless no bit is held.
    pub(crate) fn mirror_bits(&mut self, fid: Fid, held: u64, now: Instant, moment: u64) {
        if held == 0 && self.get(fid.ino()).is_none() {
            return;
        }
        let mut epochs = self.epochs;
        let node = self.obtain(fid);
        let lost = node.validity.mirror(held, moment, || {
            epochs = epochs.wrapping_add(1);
            epochs
        });
        if lost & bits::UPDATE != 0 && (node.is_dir() || node.dir.is_some()) {
            node.dir_mut().lock_taken(now);
        }
        if lost & bits::XATTR != 0 {
            node.xattrs = None;
        }
        self.epochs = epochs;
    }

    /// The cached names in a directory, and its attributes, may be wrong although its lock is held.
    pub(crate) fn doubt_names(&mut self, ino: u64) -> Option<&Node> {
        let epoch = self.next_epoch();
        let node = self.get_mut(ino)?;
        node.validity.doubt(bits::UPDATE);
        node.validity.doubt_names(epoch);
        if let Some(dir) = &mut node.dir {
            dir.lock_lost();
        }
        Some(node)
    }

    #[inline]
    fn place(&self, ino: u64) -> Option<u32> {
        self.by_ino.get(&ino, |i| self.nodes[i].ino())
    }

    /// A path of an object within the mount, from the names that the kernel has, for messages: `/dir/file`. An object
    /// without such a name is shown by its FID.
    pub(crate) fn path(&self, ino: u64) -> String {
        let mut names = Vec::new();
        let ino = self.master(ino);
        let mut at = ino;
        while at != Fid::ROOT.ino()
            && names.len() < PATH_NAMES_MAX
            && let Some(node) = self.get(at)
            && let Some((parent, name)) = node.kernel.names().first()
        {
            names.push(String::from_utf8_lossy(name).replace(char::is_control, "?"));
            at = object_number(*parent);
        }
        match (names.is_empty(), self.get(ino)) {
            _ if ino == ROOT => "/".to_owned(),
            (true, Some(node)) => format!("file {}", node.fid),
            (true, None) => format!("file {ino:#x}"),
            (false, _) => names.iter().rev().fold(String::new(), |path, name| format!("{path}/{name}")),
        }
    }

    /// A cached node.
    #[inline]
    pub(crate) fn get(&self, ino: u64) -> Option<&Node> {
        self.place(ino).map(|i| &self.nodes[i])
    }

    /// The same, mutable.
    #[inline]
    pub(crate) fn get_mut(&mut self, ino: u64) -> Option<&mut Node> {
        self.place(ino).map(|i| &mut self.nodes[i])
    }

    /// The node of an object, created if needed.
    pub(crate) fn obtain(&mut self, fid: Fid) -> &mut Node {
        let i = match self.place(fid.ino()) {
            Some(i) => i,
            None => {
                let i = self.nodes.insert(Node::new(fid));
                self.by_ino.insert(i, |i| self.nodes[i].ino());
                self.free.push(&mut self.nodes, i);
                if fid == Fid::ROOT {
                    // The kernel knows the root without having looked it up.
                    self.referenced(ROOT);
                }
                i
            }
        };
        &mut self.nodes[i]
    }

    /// The kernel got a reference to the node.
    pub(crate) fn referenced(&mut self, ino: u64) {
        let Some(i) = self.place(ino) else { return };
        if self.nodes[i].kernel.referenced() {
            self.free.remove(&mut self.nodes, i);
            self.known.push(&mut self.nodes, i);
        }
    }

    /// The kernel gave references back. Returns whether none is left.
    pub(crate) fn forgotten(&mut self, ino: u64, count: u64) -> bool {
        let Some(i) = self.place(ino) else { return false };
        let none = self.nodes[i].kernel.forgotten(count);
        if none {
            self.known.remove(&mut self.nodes, i);
            self.free.push(&mut self.nodes, i);
        }
        none
    }

    /// The node was used just now.
    fn loosened(&mut self, i: u32) {
        if !self.nodes[i].kernel.knows() {
            self.free.remove(&mut self.nodes, i);
            self.free.push(&mut self.nodes, i);
        }
    }

    /// Holds a node. Returns whether it is cached.
    pub(crate) fn hold(&mut self, ino: u64, hold: Hold) -> bool {
        let Some(node) = self.get_mut(ino) else { return false };
        node.holds.0[hold as usize] += 1;
        true
    }

    /// Releases a hold, which counts as use of the node.
    pub(crate) fn release(&mut self, ino: u64, hold: Hold) {
        let place = self.place(ino).filter(|i| self.nodes[*i].is_held(hold));
        let i = place.unwrap_or_else(|| panic!("node {ino:#x} is not held by {hold:?}"));
        self.nodes[i].holds.0[hold as usize] -= 1;
        self.loosened(i);
    }

    /// Whether `cred` may do `mask` (R 4, W 2, X 1) according to covered attributes; `None`: only the server knows.
    pub(crate) fn permitted(&self, ino: u64, mask: u32, cred: &Cred) -> Option<bool> {
        Caller::of(cred).may(self.get(ino)?.access_attr()?, mask)
    }

    /// The version of the layout of a directory or stripe, as far as it is known; 0: it is not striped.
    pub(crate) fn layout_version(&self, dir: u64) -> u32 {
        let attr = self.get(self.master(dir)).and_then(|node| node.attr.as_ref());
        attr.and_then(|attr| attr.lmv.as_ref()).map_or(0, |lmv| lmv.version)
    }

    /// The stripe of a directory that has a name, or would have it: the directory itself, if it is not striped.
    pub(crate) fn stripe(&mut self, dir: u64, name: &[u8]) -> u64 {
        let Some(lmv) = self.get(dir).and_then(Node::lmv) else { return dir };
        let stripe = lmv.stripes.get(stripes::of_name(lmv, name) as usize).copied();
        stripe.map_or(dir, |stripe| self.stripe_node(dir, stripe.fid))
    }

    /// All stripes of a directory, itself first.
    pub(crate) fn stripes(&mut self, dir: u64) -> SmallVec<[u64; 1]> {
        match self.get(dir).and_then(Node::lmv) {
            Some(lmv) => {
                let stripes = lmv.stripes.clone();
                stripes.into_iter().map(|stripe| self.stripe_node(dir, stripe.fid)).collect()
            }
            None => SmallVec::from_slice(&[dir]),
        }
    }

    fn stripe_node(&mut self, master: u64, fid: Fid) -> u64 {
        if fid.ino() != master {
            let node = self.obtain(fid);
            (node.is_stripe, node.parent) = (true, master);
        }
        fid.ino()
    }

    /// The directory that the kernel knows: of a stripe its master, otherwise the node itself.
    pub(crate) fn master(&self, ino: u64) -> u64 {
        self.get(ino).filter(|node| node.is_stripe).map_or(ino, |node| node.parent)
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The number of nodes to which the kernel does not refer.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// The least recently used node to which the kernel does not refer, if nothing else does; it moves to the end of
    /// the list.
    pub(crate) fn candidate(&mut self) -> Option<u64> {
        let i = self.free.turn(&mut self.nodes)?;
        let node = &self.nodes[i];
        // What the kernel knows of the master depends on its stripes.
        let is_used = node.is_stripe && self.get(node.parent).is_some();
        (node.is_idle() && !is_used).then_some(node.ino())
    }

    /// Of the next `count` nodes that the kernel has known longest, those that it may forget, with their names in the
    /// kernel. All of them move to the end of the list.
    pub(crate) fn long_known(&mut self, count: usize) -> Vec<KernelNode> {
        let mut found = Vec::with_capacity(count);
        for _ in 0..count.min(self.known.len()) {
            let Some(i) = self.known.turn(&mut self.nodes) else { break };
            let node = &self.nodes[i];
            if !node.is_held(Hold::Open) && !node.is_held(Hold::Wanted) && node.ino() != ROOT {
                found.push(KernelNode { ino: node.ino(), names: node.kernel.names().clone() });
            }
        }
        found
    }

    /// Drops a node.
    pub(crate) fn remove(&mut self, ino: u64) -> Option<Node> {
        let i = self.place(ino)?;
        assert!(
            self.nodes[i].holds == Holds::default(),
            "node {ino:#x} is dropped and held: {:?}",
            self.nodes[i].holds
        );
        let list = if self.nodes[i].kernel.knows() { &mut self.known } else { &mut self.free };
        list.remove(&mut self.nodes, i);
        self.by_ino.remove(&ino, |i| self.nodes[i].ino());
        Some(self.nodes.remove(i))
    }

    /// All nodes, in no meaningful order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        stdx::steps::add(self.nodes.len());
        self.nodes.iter().map(|(_, node)| node)
    }

    /// The same, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        stdx::steps::add(self.nodes.len());
        self.nodes.iter_mut()
    }
}

/// No node.
const NIL: u32 = u32::MAX;

/// A list linked through the nodes.
#[derive(Debug)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        List { head: NIL, tail: NIL, len: 0 }
    }
}

impl List {
    fn len(&self) -> usize {
        self.len
    }

    /// Appends a node.
    fn push(&mut self, nodes: &mut Slab<Node>, i: u32) {
        nodes[i].links = (self.tail, NIL);
        match self.tail {
            NIL => self.head = i,
            tail => nodes[tail].links.1 = i,
        }
        self.tail = i;
        self.len += 1;
    }

    /// Removes a node, which must be in the list.
    fn remove(&mut self, nodes: &mut Slab<Node>, i: u32) {
        let (prev, next) = nodes[i].links;
        match prev {
            NIL => self.head = next,
            prev => nodes[prev].links.1 = next,
        }
        match next {
            NIL => self.tail = prev,
            next => nodes[next].links.0 = prev,
        }
        self.len -= 1;
    }

    /// Moves the first node to the end and returns it.
    fn turn(&mut self, nodes: &mut Slab<Node>) -> Option<u32> {
        let first = self.head;
        if first == NIL {
            return None;
        }
        self.remove(nodes, first);
        self.push(nodes, first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u32) -> (Nodes, Vec<u64>) {
        let mut nodes = Nodes::default();
        let inos = (1..=count).map(|oid| nodes.obtain(Fid::new(0x2_0000_0400, oid)).ino()).collect();
        (nodes, inos)
    }

    #[test]
    fn a_node_that_an_operation_waits_with_is_not_dropped() {
        let (mut nodes, inos) = nodes(2);
        assert!(nodes.hold(inos[0], Hold::Wanted));
        assert_eq!([nodes.candidate(), nodes.candidate(), nodes.candidate()], [None, Some(inos[1]), None]);
        nodes.release(inos[0], Hold::Wanted);
        assert_eq!([nodes.candidate(), nodes.candidate()], [Some(inos[1]), Some(inos[0])]);
    }

    /// At most half of the memory that is counted for a node is its own and its data's; the rest is for its locks, its
    /// name and its layout.
    #[test]
    fn a_node_takes_no_more_memory_than_is_counted_for_it() {
        let alone = size_of::<Option<Node>>() + size_of::<NodeData>();
        assert!(alone <= crate::api::NODE_BYTES / 2, "{alone} bytes");
    }

    #[test]
    fn the_least_recently_used_node_is_dropped_first_without_a_search() {
        let (mut nodes, inos) = nodes(1000);
        for &ino in &inos[..900] {
            nodes.referenced(ino);
        }
        assert!(nodes.hold(inos[1], Hold::Open));
        let long_known =
            |nodes: &mut Nodes| -> Vec<u64> { nodes.long_known(4).iter().map(|known| known.ino).collect() };
        assert_eq!(long_known(&mut nodes), [inos[0], inos[2], inos[3]]);
        assert_eq!(long_known(&mut nodes), inos[4..8]);
        assert_eq!((nodes.free(), nodes.candidate()), (100, Some(inos[900])));
        // A node that the kernel has just forgotten moves to the end.
        assert!(nodes.forgotten(inos[0], 1));
        assert_eq!((nodes.free(), nodes.candidate()), (101, Some(inos[901])));
        nodes.referenced(inos[0]);
        nodes.release(inos[1], Hold::Open);
        for ino in inos {
            assert!(nodes.remove(ino).is_some());
        }
        assert_eq!((nodes.len(), nodes.free(), nodes.candidate(), nodes.known.len()), (0, 0, None, 0));
    }
}
