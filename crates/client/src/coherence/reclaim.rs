//! Room for nodes: which go when there are too many, or too many locks on them.
//!
//! A node goes when the kernel does not refer to it, nor anything else; its locks go back with it. Of what the kernel refers
//! to it drops little by itself, for it has all the machine's memory. So some time before the room is used up it is asked to
//! let go what it has known longest ([`Effect::LetGo`]): many nodes at a time, and nobody waits. What a program uses it keeps;
//! the others it forgets ([`crate::Call::Forget`]), and they are dropped when the room is needed. Until then a program that
//! comes back to such a file finds it here, under its locks.
//!
//! ```text
//!   nodes  0 ............................ SOFT ...... max_nodes
//!                                         the kernel   those that it has let go
//!                                         is asked     are dropped
//! ```
//! The locks have a limit too, ours (`lru_size`) or the server's. Without their node they go one by one, and the kernel has
//! to be told each name first ([`crate::ops`]), which waits for the directory's lock: a program that makes files there holds
//! it nearly all the time. So nodes go before that limit is met.

use core::time::Duration;
use stdx::Instant;

use crate::api::Effect;
use crate::base::Dest;
use crate::base::WaitKey;
use crate::cache::node::Hold;
use crate::coherence::data;
use crate::coherence::world::World;

/// The kernel is asked to let go one of so many nodes at a time,
const ASK_PART: usize = 32;
/// and no more than this.
const ASK_MAX: usize = 4096;
/// What it has not let go after this long is in use.
const ASK_PATIENCE: Duration = Duration::from_millis(50);
/// Nodes looked at in one go, to be dropped: more than one answer can bring.
const DROP_MAX: usize = 1024;

/// It ends after so many in a row that cannot be dropped yet; the next go begins behind them.
const KEPT_MAX: usize = 16;

/// What the kernel was asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaim {
    /// How many nodes it was asked to let go,
    asked: usize,
    /// and how many of them it has not let go yet.
    left: usize,
    /// When.
    asked_at: Instant,
    /// It has not been told all yet.
    telling: bool,
    /// There are too many nodes, and what could be dropped is to be written first.
    pub(crate) is_short: bool,
}

/// How full something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fill {
    Fine,
    /// The kernel is asked to let go.
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

    /// Drops nodes that nothing needs, as long as there are too many or too many locks on them, and sees to it that there
    /// will be such nodes.
    pub(crate) fn make_room(&mut self) {
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
                // What is dirty goes when it is written.
                Some(ino) => {
                    dirty = true;
                    data::write_now(self, ino);
                }
                None => {}
            }
        }
        self.reclaim.is_short = dirty && self.node_fill() == Fill::Full;
    }

    /// Asks the kernel to let go what it has known longest, if too few nodes can be dropped and it is not at it.
    fn ask_kernel(&mut self) {
        let many = (self.options.max_nodes / ASK_PART).clamp(1, ASK_MAX);
        let at_it = self.reclaim.left > self.reclaim.asked / 8 && self.now < self.reclaim.asked_at + ASK_PATIENCE;
        if self.reclaim.telling || at_it || self.nodes.free() > many {
            return;
        }
        let nodes = self.nodes.long_known(many);
        let asked = nodes.len();
        self.reclaim = Reclaim { asked, left: asked, asked_at: self.now, telling: asked > 0, ..self.reclaim };
        if asked > 0 {
            stdx::mark!("kernel_asked_to_let_go");
            self.effect(Effect::LetGo(nodes));
        }
    }

    /// The kernel was told which nodes it should let go.
    pub(crate) fn kernel_asked(&mut self) {
        self.reclaim.telling = false;
    }

    /// The kernel has forgotten a node.
    pub(crate) fn let_go(&mut self) {
        self.reclaim.left = self.reclaim.left.saturating_sub(1);
    }

    /// Gives a hold on a node back.
    pub(crate) fn release(&mut self, ino: u64, hold: Hold) {
        self.nodes.release(ino, hold);
        self.drop_if_gone(ino);
    }

    /// Drops a node whose object is gone, once nothing holds it and nothing of it is to be written.
    pub(crate) fn drop_if_gone(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(ino).filter(|node| node.unlinked && node.is_idle()) else { return };
        if node.destroyed || data::is_clean(self, ino) {
            self.drop_node(ino);
        }
    }

    /// Forgets a node that nothing holds.
    pub(crate) fn drop_node(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(ino) else { return };
        let (fid, held) = (node.fid, node.validity.held());
        crate::coherence::lost::node_dropped(self, ino);
        data::drop_node(self, ino);
        self.nodes.remove(ino);
        // Whoever waits for it finds that it is gone.
        self.wake(WaitKey::Data(ino));
        self.wake(WaitKey::Listing(ino));
        if held != 0 {
            let dest = self.mdt_of(fid);
            crate::coherence::locks::give_back(self, dest, &proto::msg::Resource::inode(fid));
        }
    }
}
