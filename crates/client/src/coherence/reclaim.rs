//! Reclaim of nodes: which ones are dropped when there are too many nodes, or too many locks on them.
//!
//! A node can be dropped when neither the kernel nor anything else refers to it; its locks go back with it. The kernel
//! rarely drops inodes on its own, because it has the whole machine's memory. So before the limit is reached, the
//! kernel is asked to release the nodes that it has known longest ([`Effect::LetGo`]), many at a time; nothing waits
//! for that. The kernel keeps those that programs use and forgets the others ([`crate::Call::Forget`]), which are
//! dropped when their memory is needed. Until then a program that returns to such a file finds it cached, with its
//! locks.
//!
//! ```text
//!   nodes  0 ............................ SOFT ...... max_nodes
//!                                         the kernel   those that it has forgotten
//!                                         is asked     are dropped
//! ```
//! Locks have a limit too, the client's (`lru_size`) or the server's. A lock that is cancelled without its node
//! requires the kernel to drop the names first ([`crate::ops`]), which waits for the kernel's lock of the directory: a
//! program that creates files there holds that lock nearly all the time. So nodes are dropped before the limit of locks
//! is reached.

use core::time::Duration;
use stdx::Instant;

use crate::api::Effect;
use crate::base::Dest;
use crate::base::WaitKey;
use crate::cache::node::Hold;
use crate::coherence::data;
use crate::coherence::world::World;

/// The kernel is asked to release one in this many nodes at a time,
const ASK_PART: usize = 32;
/// but at most this many.
const ASK_MAX: usize = 4096;
/// Nodes that the kernel has not released after this long are in use.
const ASK_PATIENCE: Duration = Duration::from_millis(50);
/// Most nodes considered for dropping in one pass: more than one answer can bring.
const DROP_MAX: usize = 1024;

/// A pass ends after this many nodes in a row that cannot be dropped yet; the next one continues after them.
const KEPT_MAX: usize = 16;

/// The state of the requests to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaim {
    /// Nodes in the last request,
    asked: usize,
    /// and how many of them the kernel has not forgotten yet.
    left: usize,
    /// When the request was made.
    asked_at: Instant,
    /// The driver is still passing the request on.
    asking: bool,
    /// There are too many nodes, and those that could be dropped have to be written first.
    pub(crate) is_short: bool,
}

/// How close a limit is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fill {
    Fine,
    /// The kernel is asked to release nodes.
    Soon,
    /// Nodes are dropped.
    Full,
}

impl World {
    fn node_fill(&self) -> Fill {
        let (nodes, max) = (self.nodes.len(), self.options.max_nodes);
        match () {
            () if nodes > max => Fill::Full,
            () if nodes > max - max / 16 => Fill::Soon,
            () => Fill::Fine,
        }
    }

    fn lock_fill(&self) -> Fill {
        let Some(locks) = self.locks.get(Dest::Mdt(0)) else { return Fill::Fine };
        let (unused, max) = locks.unused();
        match () {
            () if unused > max - max / 16 => Fill::Full,
            () if unused > max - max / 8 => Fill::Soon,
            () => Fill::Fine,
        }
    }

    /// Drops unreferenced nodes while there are too many nodes or too many locks on them, and asks the kernel for more
    /// in time.
    pub(crate) fn reclaim_nodes(&mut self) {
        self.reclaim.is_short = false;
        if self.node_fill().max(self.lock_fill()) == Fill::Fine {
            return;
        }
        self.ask_kernel();
        let (mut kept, mut dirty) = (0, false);
        for _ in 0..self.nodes.free().min(DROP_MAX) {
            if kept == KEPT_MAX || self.node_fill().max(self.lock_fill()) < Fill::Full {
                break;
            }
            kept += 1;
            match self.nodes.candidate() {
                Some(ino) if data::is_clean(self, ino) => {
                    kept = 0;
                    self.drop_node(ino);
                }
                // A dirty node is dropped once it is written.
                Some(ino) => {
                    dirty = true;
                    data::write_now(self, ino);
                }
                None => {}
            }
        }
        self.reclaim.is_short = dirty && self.node_fill() == Fill::Full;
    }

    /// Asks the kernel to release the nodes that it has known longest, if too few nodes can be dropped and no such
    /// request is in progress.
    fn ask_kernel(&mut self) {
        let many = (self.options.max_nodes / ASK_PART).clamp(1, ASK_MAX);
        let at_it = self.reclaim.left > self.reclaim.asked / 8 && self.now < self.reclaim.asked_at + ASK_PATIENCE;
        if self.reclaim.asking || at_it || self.nodes.free() > many {
            return;
        }
        let nodes = self.nodes.long_known(many);
        let asked = nodes.len();
        self.reclaim = Reclaim { asked, left: asked, asked_at: self.now, asking: asked > 0, ..self.reclaim };
        if asked > 0 {
            stdx::mark!("kernel_asked_to_let_go");
            self.effect(Effect::LetGo(nodes));
        }
    }

    /// The driver has passed the request on to the kernel.
    pub(crate) fn kernel_asked(&mut self) {
        self.reclaim.asking = false;
    }

    /// The kernel has forgotten a node.
    pub(crate) fn kernel_forgot(&mut self) {
        self.reclaim.left = self.reclaim.left.saturating_sub(1);
    }

    /// Releases a hold on a node.
    pub(crate) fn release(&mut self, ino: u64, hold: Hold) {
        self.nodes.release(ino, hold);
        self.drop_if_gone(ino);
    }

    /// Drops a node whose object has no name left, once nothing holds it and nothing of it has to be written.
    pub(crate) fn drop_if_gone(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(ino).filter(|node| node.unlinked && node.is_idle()) else { return };
        if node.destroyed || data::is_clean(self, ino) {
            self.drop_node(ino);
        }
    }

    /// Drops a node that nothing holds.
    pub(crate) fn drop_node(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(ino) else { return };
        let (fid, held) = (node.fid, node.validity.held());
        let lmv = node.attr.as_ref().and_then(|attr| attr.lmv.as_deref());
        let stripes = lmv.map_or(Vec::new(), |lmv| lmv.stripes.clone());
        crate::coherence::lost::node_dropped(self, ino);
        data::drop_node(self, ino);
        self.nodes.remove(ino);
        // Operations that wait for it find that it is gone.
        self.wake(WaitKey::Data(ino));
        self.wake(WaitKey::Listing(ino));
        if held != 0 {
            let dest = self.mdt_of(fid);
            crate::coherence::locks::give_back(self, dest, &proto::msg::Resource::inode(fid));
        }
        // They were kept for its sake.
        for stripe in stripes.iter().skip(1).map(|stripe| stripe.fid.ino()) {
            if self.nodes.get(stripe).is_some_and(|node| node.is_stripe && node.is_idle()) {
                self.drop_node(stripe);
            }
        }
    }
}
