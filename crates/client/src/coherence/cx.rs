//! What an attempt of an operation sees: the shared state, its own memo, and the ways to need something.

use core::time::Duration;
use proto::msg::{Cred, LockMode, ObjectRep, Policy, Resource};
use proto::{Errno, Frame, Opcode};
use rpc::Slot;
use std::sync::Arc;
use stdx::Instant;

use crate::api::{Effect, Invalidation};
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::node::Hold;
use crate::coherence::metadata_write_back;
use crate::coherence::op::{Memo, OpState, Reply, Task, Telling};
use crate::coherence::request::{self, Request, Sender};
use crate::coherence::world::World;

/// Pause before the kernel is told again to forget a node that it did not know yet, and how often that is done.
pub(crate) const TELL_AGAIN: Duration = Duration::from_millis(1);
const TOLD_MAX: u32 = 200;

/// Why an attempt ended without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The call fails with this.
    Errno(Errno),
    /// Something that was registered is missing: run again when it is there.
    Wait,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

/// Result of anything that may have to wait.
pub(crate) type Run<T> = Result<T, Stop>;

/// A lock that the operation has pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Our number of the lock.
    pub cookie: u64,
    /// The server's handle, to name it in requests.
    pub handle: u64,
}

/// What came of requests that are under way together. Nobody is told of an error while another is unanswered.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: bool,
    failed: Option<Errno>,
}

impl Answers {
    /// Counts one of them, and gives its answer unless that is missing or an error.
    pub(crate) fn take<T>(&mut self, answer: Option<Result<T, Errno>>) -> Option<T> {
        match answer {
            None => self.waiting = true,
            Some(Err(errno)) => self.failed = Some(errno),
            Some(Ok(answer)) => return Some(answer),
        }
        None
    }

    /// Whether all were answered, and none with an error.
    pub(crate) fn all(self) -> Run<()> {
        match (self.waiting, self.failed) {
            (true, _) => Err(Stop::Wait),
            (_, Some(errno)) => Err(errno.into()),
            _ => Ok(()),
        }
    }
}

/// One attempt.
pub(crate) struct Cx<'a> {
    /// Everything that operations share.
    pub w: &'a mut World,
    /// This operation.
    pub op: &'a mut OpState,
}

impl Cx<'_> {
    /// The time.
    pub(crate) fn now(&self) -> Instant {
        self.w.now
    }

    /// The wall clock when the operation began: the same on every attempt, so that times that it sets are too.
    pub(crate) fn wall_ns(&self) -> i64 {
        self.op.wall_ns
    }

    /// On whose behalf.
    pub(crate) fn cred(&self) -> &Cred {
        &self.op.cred
    }

    /// Whether the program was interrupted.
    pub(crate) fn interrupted(&self) -> bool {
        self.op.interrupted
    }

    /// Whether `step` was begun by an earlier attempt.
    pub(crate) fn began(&self, step: Step) -> bool {
        self.op.memo(step).is_some()
    }

    /// The answer of `step`, if it is there.
    pub(crate) fn answer(&self, step: Step) -> Option<Result<&Reply, Errno>> {
        match self.op.memo(step) {
            Some(Memo::Reply(reply)) => Some(match Errno::from_status(reply.header.status) {
                Ok(()) => Ok(reply),
                Err(errno) => Err(errno),
            }),
            Some(Memo::Failed(errno)) => Some(Err(*errno)),
            _ => None,
        }
    }

    /// The header of the answer of `step`.
    pub(crate) fn reply_header(&self, step: Step) -> Option<proto::Header> {
        match self.op.memo(step) {
            Some(Memo::Reply(reply)) => Some(reply.header),
            _ => None,
        }
    }

    /// The number of the request whose reply came at this step; 0 if none has.
    pub(crate) fn reply_number(&self, step: Step) -> u64 {
        match self.op.memo(step) {
            Some(Memo::Reply(reply)) => reply.number,
            _ => 0,
        }
    }

    /// A number that an earlier attempt kept.
    pub(crate) fn memo(&self, step: Step) -> Option<u64> {
        match self.op.memo(step) {
            Some(Memo::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// Keeps a number for later attempts.
    pub(crate) fn set_memo(&mut self, step: Step, number: u64) {
        self.op.set_memo(step, Memo::Number(number));
    }

    /// Forgets a step, so that it can be done again (a retry).
    pub(crate) fn forget(&mut self, step: Step) {
        self.op.forget(step);
    }

    /// An end of this attempt until somebody calls [`World::wake`] with `key`.
    pub(crate) fn wait(&mut self, key: WaitKey) -> Stop {
        self.w.schedule.wait(self.op.id, key);
        if !self.op.presses && (self.op.urgent || self.op.has_pins()) {
            self.op.presses = true;
            self.w.imports.press(self.w.now);
        }
        Stop::Wait
    }

    /// Background work.
    pub(crate) fn spawn(&mut self, task: Task) {
        self.w.spawn(task);
    }

    /// Sends a request if `step` has not done so, after the changes of metadata write-back; gives its reply
    /// once that is there.
    pub(crate) fn start_rpc(
        &mut self,
        step: Step,
        dest: Dest,
        opcode: Opcode,
        request: impl FnOnce(&mut World, &mut OpState) -> Request,
    ) -> Option<Result<&Reply, Errno>> {
        if self.op.memo(step).is_none() {
            if metadata_write_back::waits(self.w, dest, opcode) && metadata_write_back::drained(self, dest).is_err() {
                return None;
            }
            let request = request(self.w, self.op);
            let number = self.w.next_request();
            self.op.set_memo(step, Memo::Sent(number));
            self.op.changes += u32::from(opcode.traits().modifies);
            let slot = request::slot(dest, opcode, self.op.urgent || self.op.has_pins());
            if slot != Slot::None && self.op.turn == 0 {
                self.op.turn = number;
            }
            let sender = Sender { op: self.op.id, step, number };
            if let Err(errno) = request.send(self.w, sender, dest, opcode, (slot, self.op.turn)) {
                self.op.set_memo(step, Memo::Failed(errno));
                // Whoever looks at the answer in the next attempt only has one.
                self.w.schedule.again(self.op.id);
            }
        }
        self.answer(step)
    }

    /// One request and its reply.
    pub(crate) fn rpc(
        &mut self,
        step: Step,
        dest: Dest,
        opcode: Opcode,
        request: impl FnOnce(&mut World, &mut OpState) -> Request,
    ) -> Run<Frame> {
        match self.start_rpc(step, dest, opcode, request) {
            Some(Ok(reply)) => Ok(reply.frame()),
            Some(Err(errno)) => Err(Stop::Errno(errno)),
            None => Err(Stop::Wait),
        }
    }

    /// One request that is answered with what objects look like. The caches have it already.
    pub(crate) fn rpc_object(
        &mut self,
        step: Step,
        dest: Dest,
        opcode: Opcode,
        request: impl FnOnce(&mut World, &mut OpState) -> Request,
    ) -> Run<Arc<ObjectRep>> {
        match self.start_rpc(step, dest, opcode, request) {
            Some(Ok(reply)) => reply.object().ok_or(Stop::Errno(Errno::EPROTO)),
            Some(Err(errno)) => Err(Stop::Errno(errno)),
            None => Err(Stop::Wait),
        }
    }

    /// A lock on `resource` that covers `policy` in `mode` or a stronger one: a cached one, or a new one. It stays
    /// until the operation ends or calls [`Cx::unlock`].
    pub(crate) fn lock(
        &mut self,
        step: Step,
        dest: Dest,
        resource: Resource,
        mode: LockMode,
        policy: Policy,
    ) -> Run<Held> {
        crate::coherence::locks::lock(self, step, dest, resource, mode, policy)
    }

    /// A cached lock that covers this, pinned, or `None`: nothing is sent.
    pub(crate) fn cached_lock(
        &mut self,
        step: Step,
        dest: Dest,
        resource: Resource,
        mode: LockMode,
        policy: Policy,
    ) -> Option<Held> {
        crate::coherence::locks::cached(self, step, dest, resource, mode, policy)
    }

    /// Gives the pin of `step` back.
    pub(crate) fn unlock(&mut self, step: Step) {
        crate::coherence::locks::unlock(self, step);
    }

    /// A change of the node is about to be asked for: until the operation ends, metadata write-back makes none.
    pub(crate) fn changing(&mut self, step: Step, ino: u64) {
        if self.op.memo(step).is_none() && self.w.nodes.hold(ino, Hold::Changing) {
            self.op.set_memo(step, Memo::Changing(ino));
        }
    }

    /// Whether that was said at this step, of this node.
    pub(crate) fn is_changing(&self, step: Step, ino: u64) -> bool {
        matches!(self.op.memo(step), Some(Memo::Changing(known)) if *known == ino)
    }

    /// The node stays until the operation ends, however many others come meanwhile.
    pub(crate) fn keep_node(&mut self, step: Step, ino: u64) {
        if self.op.memo(step).is_none() && self.w.nodes.hold(ino, Hold::Wanted) {
            self.op.set_memo(step, Memo::Node(ino));
        }
    }

    /// Whether an answer that shows the kernel a node may not have come to it yet: it was given one, but does not know the node, and
    /// has not said either that it dropped it. It is taken for lost after a while.
    fn is_on_its_way(&self, telling: Telling, ino: u64) -> bool {
        telling.unknown < TOLD_MAX && self.w.nodes.get(ino).is_some_and(|node| node.kernel.knows())
    }

    /// Makes the kernel forget the attributes of a node and a range of its pages (`length` 0: none, `u64::MAX`: to the
    /// end), and waits until it has. Nothing is asked if the kernel does not know the node, or has no attributes of it.
    pub(crate) fn invalidate_kernel(&mut self, step: Step, ino: u64, offset: u64, length: u64) -> Run<()> {
        let mut unknown = 0;
        match self.op.memo(step) {
            Some(&Memo::Telling(telling)) => match telling.heard {
                None => return Err(Stop::Wait),
                Some(again) if again > Instant::ZERO && self.is_on_its_way(telling, ino) => {
                    if self.w.now < again {
                        self.w.set_timer(again);
                        return Err(self.wait(WaitKey::Timer));
                    }
                    stdx::mark!("kernel_told_too_early");
                    unknown = telling.unknown + 1;
                }
                Some(_) => {
                    if let Some(node) = self.w.nodes.get_mut(ino) {
                        node.kernel.dropped(telling.shown);
                    }
                    return Ok(());
                }
            },
            Some(_) => return Ok(()),
            None => {}
        }
        let known = self.w.nodes.get(ino).filter(|node| node.kernel.knows());
        // The kernel takes every word to forget as news: an answer to a question from before it does not count, and a program
        // that asked for the size would go on with an old one. So there is no word without need.
        let Some(node) = known.filter(|node| length > 0 || node.kernel.has_attributes()) else {
            if known.is_some() {
                stdx::mark!("nothing_to_forget");
            }
            self.set_memo(step, 0);
            return Ok(());
        };
        let telling = Telling { shown: node.kernel.times_shown(), unknown, heard: None };
        let token = self.w.schedule.token(self.op.id, step);
        self.op.set_memo(step, Memo::Telling(telling));
        self.w.effect(Effect::Invalidate(Invalidation::Inode { token, ino, offset, length }));
        Err(Stop::Wait)
    }
}
