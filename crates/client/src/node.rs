//! Nodes: what is known of each object, and under which locks.
//!
//! A node lives while the kernel refers to it, it is open, or its cache is worth keeping (bounded by `max_nodes`, oldest
//! first out). `bits` mirrors the inode locks that are held and not called back.

use bytes::Bytes;
use proto::Fid;
use proto::msg::{Attr, Xattr, bits};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use stdx::{Instant, Map};

use crate::data::NodeData;
use crate::names::Directory;

/// Type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;

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
    /// Operations that wait with this node in hand: it stays until they have ended.
    pub wanted: u32,
    /// When a lookup opened it, so that it lasts until the kernel comes back for it.
    pub held: Option<Instant>,
    /// Inode lock bits held (PR or stronger), callbacks excluded.
    pub bits: u64,
    /// Changes whenever LOOKUP is lost or won; never the same twice in one mount.
    pub lookup_epoch: u32,
    /// Changes whenever UPDATE is lost or won; never the same twice in one mount.
    pub update_epoch: u32,
    /// How often UPDATE was lost of late.
    pub update_losses: u32,
    /// When it was lost last.
    pub update_lost: Instant,
    /// The newest attributes seen; `None` before the first.
    pub attr: Option<Attr>,
    /// `attr` came in while UPDATE was held and has been covered since.
    pub attr_covered: bool,
    /// `attr` came in while XATTR was held and has been covered since: `has_xattrs` can be believed.
    pub xattr_covered: bool,
    /// Names in the kernel may be wrong, for it has not dropped them in time; the next call by path answers `ESTALE`.
    pub stale: bool,
    /// The object is gone, as far as we know: no link is left.
    pub unlinked: bool,
    /// It is, and nobody has it open: nothing about it changes any more, so that what is known needs no lock.
    pub destroyed: bool,
    /// The directory in which it was found last; 0 if unknown.
    pub parent: u64,
    /// Names under which the kernel was given this node.
    pub kernel_names: SmallVec<[(u64, Bytes); 1]>,
    /// Directories: names and listing.
    pub dir: Option<Box<Directory>>,
    /// All extended attributes, under XATTR.
    pub xattrs: Option<Arc<[Xattr]>>,
    /// Target of a symbolic link: never changes.
    pub symlink: Option<Bytes>,
    /// A newer atime that the server does not know yet.
    pub atime_ns: Option<i64>,
    /// The data cache's.
    pub data: Option<Box<NodeData>>,
    /// So many answers allowed the kernel to keep attributes.
    pub shown: u32,
    /// Of these many the kernel has dropped what it kept.
    pub dropped: u32,
    /// Calls that wait here for attributes that the kernel lacks.
    pub asked: u32,
    /// In the list of candidates for dropping.
    listed: bool,
}

impl Node {
    fn new(fid: Fid) -> Node {
        Node {
            fid,
            ino: fid.ino(),
            lookups: 0,
            opens: 0,
            handles: 0,
            wanted: 0,
            held: None,
            bits: 0,
            lookup_epoch: 0,
            update_epoch: 0,
            update_losses: 0,
            update_lost: Instant::ZERO,
            attr: None,
            attr_covered: false,
            xattr_covered: false,
            stale: false,
            unlinked: false,
            destroyed: false,
            parent: 0,
            kernel_names: SmallVec::new(),
            dir: None,
            xattrs: None,
            symlink: None,
            atime_ns: None,
            data: None,
            shown: 0,
            dropped: 0,
            asked: 0,
            listed: false,
        }
    }

    /// Whether neither the kernel nor open files nor operations refer to it.
    pub fn is_idle(&self) -> bool {
        self.lookups == 0 && self.opens == 0 && self.wanted == 0
    }

    /// Whether these bits are held.
    pub fn has(&self, wanted: u64) -> bool {
        self.bits & wanted == wanted
    }

    /// The attributes, if a lock covers them.
    pub fn covered_attr(&self) -> Option<&Attr> {
        if self.attr_covered && self.has(bits::UPDATE) { self.attr.as_ref() } else { None }
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

    /// The directory part, made if need be.
    pub fn dir_mut(&mut self) -> &mut Directory {
        self.dir.get_or_insert_with(Default::default)
    }
}

/// All nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    map: Map<u64, Box<Node>>,
    candidates: VecDeque<u64>,
}

impl Nodes {
    /// A node that is there.
    pub fn get(&self, ino: u64) -> Option<&Node> {
        self.map.get(&ino).map(|node| &**node)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, ino: u64) -> Option<&mut Node> {
        self.map.get_mut(&ino).map(|node| &mut **node)
    }

    /// The node of an object, made if need be.
    pub fn obtain(&mut self, fid: Fid) -> &mut Node {
        let ino = fid.ino();
        let candidates = &mut self.candidates;
        self.map.entry(ino).or_insert_with(|| {
            candidates.push_back(ino);
            let mut node = Node::new(fid);
            node.listed = true;
            Box::new(node)
        })
    }

    /// Something that kept the node from being dropped is gone.
    pub fn loosened(&mut self, ino: u64) {
        if let Some(node) = self.map.get_mut(&ino)
            && !node.listed
            && node.is_idle()
        {
            node.listed = true;
            self.candidates.push_back(ino);
        }
    }

    /// An operation waits with this node in hand.
    pub fn want(&mut self, ino: u64) -> bool {
        let Some(node) = self.map.get_mut(&ino) else { return false };
        node.wanted += 1;
        true
    }

    /// That operation has ended.
    pub fn unwant(&mut self, ino: u64) {
        if let Some(node) = self.map.get_mut(&ino) {
            // It may have been dropped meanwhile, because its object is gone, and be another's.
            node.wanted = node.wanted.saturating_sub(1);
            self.loosened(ino);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The oldest node that neither kernel nor open files nor operations refer to, off the list of candidates.
    pub fn candidate(&mut self) -> Option<u64> {
        while let Some(ino) = self.candidates.pop_front() {
            if let Some(node) = self.map.get_mut(&ino) {
                node.listed = false;
                if node.is_idle() && ino != 1 {
                    return Some(ino);
                }
            }
        }
        None
    }

    /// Candidates, at most this many of nodes that could be dropped.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// Puts a candidate back: it could not be dropped.
    pub fn keep(&mut self, ino: u64) {
        self.loosened(ino);
    }

    /// Forgets a node.
    pub fn remove(&mut self, ino: u64) -> Option<Box<Node>> {
        self.map.remove(&ino)
    }

    /// Every number, sorted.
    pub fn inos(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.map.keys().copied().collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_an_operation_waits_with_is_not_dropped() {
        let mut nodes = Nodes::default();
        let (kept, other) = (Fid::new(0x2_0000_0400, 1), Fid::new(0x2_0000_0400, 2));
        for fid in [kept, other] {
            nodes.obtain(fid);
        }
        assert!(nodes.want(kept.ino()));
        assert_eq!((nodes.candidate(), nodes.candidate()), (Some(other.ino()), None));
        nodes.unwant(kept.ino());
        assert_eq!((nodes.candidate(), nodes.candidate()), (Some(kept.ino()), None));
    }
}
