//! Nodes: what is known of each object, and under which locks.
//!
//! A node lives while the kernel refers to it, it is open, or its cache is worth keeping. There are at most `max_nodes`
//! ([`crate::reclaim`]), unless programs use more. `bits` mirrors the inode locks that are held and not called back.

use bytes::Bytes;
use proto::msg::{Attr, Xattr, bits};
use proto::{Errno, Fid};
use rules::mode::{S_IFDIR, S_IFMT, S_IFREG};
use std::sync::Arc;
use stdx::{Index, Instant, Slab};

use crate::api::{KernelNames, KernelNode};
use crate::data::NodeData;
use crate::doubt::InDoubt;
use crate::lost::Failures;
use crate::names::Directory;

/// The number of the root.
pub const ROOT: u64 = 1;

/// An object.
#[derive(Debug)]
pub struct Node {
    /// Identity.
    pub fid: Fid,
    /// Its number.
    pub ino: u64,
    /// References of the kernel.
    pub lookups: u64,
    /// Open files here, those whose close is not sent included.
    pub opens: u32,
    /// Open files and directories that programs still have.
    pub handles: u32,
    /// How many of them bring no pages into the kernel.
    pub direct_handles: u32,
    /// Operations that wait with this node in hand: it stays until they have ended.
    pub wanted: u32,
    /// Until then it is open for a lookup, so that it lasts until the kernel comes back for it.
    pub held: Instant,
    /// Inode lock bits held (PR or stronger), callbacks excluded.
    pub bits: u64,
    /// Changes whenever LOOKUP is lost or won; never the same twice in one mount.
    pub lookup_epoch: u32,
    /// Changes whenever UPDATE is lost or won; never the same twice in one mount.
    pub update_epoch: u32,
    /// How often UPDATE was lost of late.
    pub update_losses: u16,
    /// When it was lost last.
    pub update_lost: Instant,
    /// The moment ([`crate::world::World::moment`]) at which it last gained bits that cover attributes.
    pub gained: u64,
    /// The moment at which it last gained LOOKUP.
    pub lookup_gained: u64,
    /// The newest attributes seen; `None` before the first.
    pub attr: Option<Attr>,
    /// `attr` came in while UPDATE was held and has been covered since.
    pub attr_covered: bool,
    /// `attr` came in while XATTR was held and has been covered since: `has_xattrs` can be believed.
    pub xattr_covered: bool,
    /// The layout in `attr` came in while LAYOUT was held.
    pub layout_covered: bool,
    /// Names in the kernel may be wrong, for it has not dropped them in time; the next call by path answers `ESTALE`.
    pub stale: bool,
    /// The object is gone, as far as we know: no link is left.
    pub unlinked: bool,
    /// It is, and nobody has it open: nothing about it changes any more, so that what is known needs no lock.
    pub destroyed: bool,
    /// The directory in which it was found last; 0 if unknown.
    pub parent: u64,
    /// Names under which the kernel was given this node.
    pub kernel_names: KernelNames,
    /// Directories: names and listing.
    pub dir: Option<Box<Directory>>,
    /// All extended attributes, under XATTR.
    pub xattrs: Option<Arc<Vec<Xattr>>>,
    /// The moment at which a change of ours that touches them was answered last.
    pub xattrs_changed: u64,
    /// Target of a symbolic link: never changes.
    pub symlink: Option<Box<Bytes>>,
    /// A newer atime that the server does not know yet.
    pub atime_ns: Option<i64>,
    /// The data cache's.
    pub data: Option<Box<NodeData>>,
    /// The kernel takes the file to be no longer than this, in bytes: the greatest size that it was told, or wrote to, since it cut the file.
    pub kernel_size: u64,
    /// So many answers allowed the kernel to keep attributes.
    pub shown: u32,
    /// Of these many the kernel has dropped what it kept.
    pub dropped: u32,
    /// Calls that wait here for attributes that the kernel lacks, or that will cut the file in the kernel when they are answered.
    pub asked: u32,
    /// It was made under this lease of its directory, so that nobody else knows it while that lasts ([`crate::metadata_write_back`]); 0: it was
    /// not.
    pub(crate) private: u64,
    /// Changes of it that were made here and have no answer.
    pub(crate) unsettled: u16,
    /// Operations that ask a server to change it, or names in it.
    pub(crate) changing: u16,
    /// Requests on their way that change it.
    pub(crate) in_doubt: Option<Box<InDoubt>>,
    /// How often a change that was made here was lost, and why last.
    pub(crate) failures: Option<Box<Failures>>,
    /// The one before it in its list, and the one after it.
    links: (u32, u32),
}

impl Node {
    fn new(fid: Fid) -> Node {
        Node {
            fid,
            ino: fid.ino(),
            lookups: 0,
            opens: 0,
            handles: 0,
            direct_handles: 0,
            wanted: 0,
            held: Instant::ZERO,
            bits: 0,
            lookup_epoch: 0,
            update_epoch: 0,
            update_losses: 0,
            update_lost: Instant::ZERO,
            gained: 0,
            lookup_gained: 0,
            attr: None,
            attr_covered: false,
            xattr_covered: false,
            layout_covered: false,
            stale: false,
            unlinked: false,
            destroyed: false,
            parent: 0,
            kernel_names: KernelNames::new(),
            dir: None,
            xattrs: None,
            xattrs_changed: 0,
            symlink: None,
            atime_ns: None,
            data: None,
            kernel_size: 0,
            shown: 0,
            dropped: 0,
            asked: 0,
            private: 0,
            unsettled: 0,
            changing: 0,
            in_doubt: None,
            failures: None,
            links: (NIL, NIL),
        }
    }

    /// Whether neither the kernel nor open files nor operations refer to it.
    pub fn is_idle(&self) -> bool {
        let used = self.unsettled > 0 || self.changing > 0 || self.asked > 0 || self.in_doubt.is_some();
        self.lookups == 0 && self.opens == 0 && self.wanted == 0 && !used
    }

    /// Whether these bits are held.
    pub fn has(&self, wanted: u64) -> bool {
        self.bits & wanted == wanted
    }

    /// A change of ours that touches the extended attributes was answered: what other answers bring may be older. Our own changes do not
    /// call our locks back.
    pub fn change_xattrs(&mut self, moment: u64) {
        self.xattrs = None;
        self.xattrs_changed = moment;
    }

    /// The attributes, if a lock covers them.
    pub fn covered_attr(&self) -> Option<&Attr> {
        if self.attr_covered && self.has(bits::UPDATE) { self.attr.as_ref() } else { None }
    }

    /// The same, if no request is on its way that may have changed them already: then others may see newer ones.
    pub fn certain_attr(&self) -> Option<&Attr> {
        if self.in_doubt.is_none() { self.covered_attr() } else { None }
    }

    /// What says who may do what with it, if a lock covers that and no request is on its way that changes it.
    pub fn access_attr(&self) -> Option<&Attr> {
        if self.in_doubt.as_ref().is_none_or(|doubt| !doubt.is_of_access()) { self.covered_attr() } else { None }
    }

    /// Whether a request is on its way that changes what this name leads to.
    pub(crate) fn doubts(&self, name: &[u8]) -> bool {
        self.in_doubt.as_ref().is_some_and(|doubt| doubt.has_name(name))
    }

    /// Whether locks cover what says who may do what with it, and it has a name.
    pub fn knows_access(&self) -> bool {
        let covered = self.xattr_covered && self.has(bits::XATTR);
        covered && self.covered_attr().is_some_and(|attr| attr.nlink > 0)
    }

    /// Type bits, 0 if unknown.
    pub fn kind(&self) -> u32 {
        self.attr.as_ref().map_or(0, |attr| attr.mode & S_IFMT)
    }

    /// Whether it is known to be a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Whether it is known to be a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// How often a change that was made here was lost, and why last.
    pub(crate) fn failures(&self) -> (u32, Errno) {
        self.failures.as_deref().map_or((0, Errno::EIO), |failures| (failures.count, failures.errno))
    }

    /// The directory part, made if need be.
    pub fn dir_mut(&mut self) -> &mut Directory {
        self.dir.get_or_insert_with(Default::default)
    }
}

/// All nodes, each in one of two lists, the longest unused first: so what goes is found without a look at the others.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: Slab<Node>,
    by_ino: Index,
    /// Those that the kernel refers to.
    known: List,
    /// The others.
    free: List,
}

/// Most names of a path in a message.
const PATH_NAMES_MAX: usize = 64;

impl Nodes {
    #[inline]
    fn place(&self, ino: u64) -> Option<u32> {
        self.by_ino.get(&ino, |i| self.nodes[i].ino)
    }

    /// A path of an object within the mount as far as the kernel was told its names, for messages: `/dir/file`. Of one without a
    /// known name, its FID.
    pub fn path(&self, ino: u64) -> String {
        let mut names = Vec::new();
        let mut at = ino;
        while at != Fid::ROOT.ino()
            && names.len() < PATH_NAMES_MAX
            && let Some(node) = self.get(at)
            && let Some((parent, name)) = node.kernel_names.first()
        {
            names.push(String::from_utf8_lossy(name).replace(char::is_control, "?"));
            at = *parent;
        }
        match (names.is_empty(), self.get(ino)) {
            _ if ino == ROOT => "/".to_owned(),
            (true, Some(node)) => format!("file {}", node.fid),
            (true, None) => format!("file {ino:#x}"),
            (false, _) => names.iter().rev().fold(String::new(), |path, name| format!("{path}/{name}")),
        }
    }

    /// A node that is there.
    #[inline]
    pub fn get(&self, ino: u64) -> Option<&Node> {
        self.place(ino).map(|i| &self.nodes[i])
    }

    /// The same, to change.
    #[inline]
    pub fn get_mut(&mut self, ino: u64) -> Option<&mut Node> {
        self.place(ino).map(|i| &mut self.nodes[i])
    }

    /// The node of an object, made if need be.
    pub fn obtain(&mut self, fid: Fid) -> &mut Node {
        let i = match self.place(fid.ino()) {
            Some(i) => i,
            None => {
                let i = self.nodes.insert(Node::new(fid));
                self.by_ino.insert(i, |i| self.nodes[i].ino);
                self.free.push(&mut self.nodes, i);
                if fid == Fid::ROOT {
                    // The kernel knows it without having looked it up.
                    self.referenced(ROOT);
                }
                i
            }
        };
        &mut self.nodes[i]
    }

    /// The kernel refers to the node once more.
    pub fn referenced(&mut self, ino: u64) {
        let Some(i) = self.place(ino) else { return };
        self.nodes[i].lookups += 1;
        if self.nodes[i].lookups == 1 {
            self.free.remove(&mut self.nodes, i);
            self.known.push(&mut self.nodes, i);
        }
    }

    /// The kernel gives references back. Whether none is left now.
    pub fn forgotten(&mut self, ino: u64, count: u64) -> bool {
        let Some(i) = self.place(ino) else { return false };
        let before = self.nodes[i].lookups;
        self.nodes[i].lookups = before.saturating_sub(count);
        let none = self.nodes[i].lookups == 0;
        if none && before > 0 {
            self.known.remove(&mut self.nodes, i);
            self.free.push(&mut self.nodes, i);
        }
        none
    }

    /// Something that kept the node from being dropped is gone: it was used until now.
    pub fn loosened(&mut self, ino: u64) {
        if let Some(i) = self.place(ino)
            && self.nodes[i].lookups == 0
        {
            self.free.remove(&mut self.nodes, i);
            self.free.push(&mut self.nodes, i);
        }
    }

    /// An operation waits with this node in hand.
    pub fn want(&mut self, ino: u64) -> bool {
        let Some(node) = self.get_mut(ino) else { return false };
        node.wanted += 1;
        true
    }

    /// That operation has ended.
    pub fn unwant(&mut self, ino: u64) {
        if let Some(node) = self.get_mut(ino) {
            // It may have been dropped meanwhile, because its object is gone, and be another's.
            node.wanted = node.wanted.saturating_sub(1);
        }
        self.loosened(ino);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes that the kernel does not refer to.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The longest unused node that the kernel does not refer to, if nothing else does; it is looked at last from now on.
    pub fn candidate(&mut self) -> Option<u64> {
        let i = self.free.turn(&mut self.nodes)?;
        let node = &self.nodes[i];
        node.is_idle().then_some(node.ino)
    }

    /// Of the next `count` nodes that the kernel has known longest, those that it may forget, with the names that it knows
    /// them by. They are looked at last from now on.
    pub fn long_known(&mut self, count: usize) -> Vec<KernelNode> {
        let mut found = Vec::with_capacity(count);
        for _ in 0..count.min(self.known.len()) {
            let Some(i) = self.known.turn(&mut self.nodes) else { break };
            let node = &self.nodes[i];
            if node.opens == 0 && node.wanted == 0 && node.ino != ROOT {
                found.push(KernelNode { ino: node.ino, names: node.kernel_names.clone() });
            }
        }
        found
    }

    /// Forgets a node.
    pub fn remove(&mut self, ino: u64) -> Option<Node> {
        let i = self.place(ino)?;
        let list = if self.nodes[i].lookups > 0 { &mut self.known } else { &mut self.free };
        list.remove(&mut self.nodes, i);
        self.by_ino.remove(&ino, |i| self.nodes[i].ino);
        Some(self.nodes.remove(i))
    }

    /// All, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        stdx::steps::add(self.nodes.len());
        self.nodes.iter().map(|(_, node)| node)
    }

    /// The same, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        stdx::steps::add(self.nodes.len());
        self.nodes.iter_mut()
    }
}

/// No place.
const NIL: u32 = u32::MAX;

/// A list through the nodes themselves.
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

    /// Puts a node last.
    fn push(&mut self, nodes: &mut Slab<Node>, i: u32) {
        nodes[i].links = (self.tail, NIL);
        match self.tail {
            NIL => self.head = i,
            tail => nodes[tail].links.1 = i,
        }
        self.tail = i;
        self.len += 1;
    }

    /// Takes a node out, that is in.
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

    /// The first one, which becomes the last.
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
        let inos = (1..=count).map(|oid| nodes.obtain(Fid::new(0x2_0000_0400, oid)).ino).collect();
        (nodes, inos)
    }

    #[test]
    fn a_node_that_an_operation_waits_with_is_not_dropped() {
        let (mut nodes, inos) = nodes(2);
        assert!(nodes.want(inos[0]));
        assert_eq!([nodes.candidate(), nodes.candidate(), nodes.candidate()], [None, Some(inos[1]), None]);
        nodes.unwant(inos[0]);
        assert_eq!([nodes.candidate(), nodes.candidate()], [Some(inos[1]), Some(inos[0])]);
    }

    /// Of what is counted for a node at most half is its own and its data's; the rest are its locks, its name and its layout.
    #[test]
    fn a_node_takes_no_more_memory_than_is_counted_for_it() {
        let alone = size_of::<Option<Node>>() + size_of::<NodeData>();
        assert!(alone <= crate::api::NODE_BYTES / 2, "{alone} bytes");
    }

    #[test]
    fn the_longest_unused_goes_first_and_no_other_is_looked_at() {
        let (mut nodes, inos) = nodes(1000);
        for &ino in &inos[..900] {
            nodes.referenced(ino);
        }
        nodes.get_mut(inos[1]).expect("a node").opens = 1;
        let long_known =
            |nodes: &mut Nodes| -> Vec<u64> { nodes.long_known(4).iter().map(|known| known.ino).collect() };
        assert_eq!(long_known(&mut nodes), [inos[0], inos[2], inos[3]]);
        assert_eq!(long_known(&mut nodes), inos[4..8]);
        assert_eq!((nodes.free(), nodes.candidate()), (100, Some(inos[900])));
        // What the kernel has just forgotten has time to come back.
        assert!(nodes.forgotten(inos[0], 1));
        assert_eq!((nodes.free(), nodes.candidate()), (101, Some(inos[901])));
        nodes.referenced(inos[0]);
        for ino in inos {
            assert!(nodes.remove(ino).is_some());
        }
        assert_eq!((nodes.len(), nodes.free(), nodes.candidate(), nodes.known.len()), (0, 0, None, 0));
    }
}
