//! The context of an attempt: the shared state, the operation's memo, and the ways to request something and wait for
//! it.

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
use crate::coherence::op::{KernelDrop, Memo, OpState, Reply, Task};
use crate::coherence::request::{self, Request, Sender};
use crate::coherence::world::World;

/// Pause before the kernel is asked again to invalidate a node that it did not know yet, and the most tries.
pub(crate) const INVALIDATE_AGAIN: Duration = Duration::from_millis(1);
const INVALIDATE_TRIES_MAX: u32 = 200;

/// Why an attempt ended without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The operation fails with this error.
    Errno(Errno),
    /// Something is missing for which the operation has registered: it runs again once that arrives.
    Wait,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

/// The result of anything that may have to wait.
pub(crate) type Run<T> = Result<T, Stop>;

/// A lock that an operation has pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// The cookie of the lock.
    pub cookie: u64,
    /// The server's handle, which requests name.
    pub handle: u64,
}

/// The state of requests that are in flight together. An error is reported only once all of them are answered.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: bool,
    failed: Option<Errno>,
}

impl Answers {
    /// Counts one of the answers. Returns it unless it is missing or an error.
    pub(crate) fn take<T>(&mut self, answer: Option<Result<T, Errno>>) -> Option<T> {
        match answer {
            None => self.waiting = true,
            Some(Err(errno)) => self.failed = Some(errno),
            Some(Ok(answer)) => return Some(answer),
        }
        None
    }

    /// Succeeds if all were answered, and none with an error.
    pub(crate) fn all(self) -> Run<()> {
        match (self.waiting, self.failed) {
            (true, _) => Err(Stop::Wait),
            (_, Some(errno)) => Err(errno.into()),
            _ => Ok(()),
        }
    }
}

/// One attempt of an operation.
pub(crate) struct Cx<'a> {
    /// The state that all operations share.
    pub w: &'a mut World,
    /// The operation.
    pub op: &'a mut OpState,
}

impl Cx<'_> {
    /// The current time.
    pub(crate) fn now(&self) -> Instant {
        self.w.now
    }

    /// The wall clock when the operation started: the same on every attempt, so that the times it sets are the same
    /// too.
    pub(crate) fn wall_ns(&self) -> i64 {
        self.op.wall_ns
    }

    /// The credentials of the caller.
    pub(crate) fn cred(&self) -> &Cred {
        &self.op.cred
    }

    /// Whether the program was interrupted.
    pub(crate) fn interrupted(&self) -> bool {
        self.op.interrupted
    }

    /// Whether an earlier attempt started `step`.
    pub(crate) fn began(&self, step: Step) -> bool {
        self.op.memo(step).is_some()
    }

    /// The answer of `step`, once it has arrived.
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

    /// The number of the request whose reply has arrived for `step`; 0 if none has.
    pub(crate) fn reply_number(&self, step: Step) -> u64 {
        match self.op.memo(step) {
            Some(Memo::Reply(reply)) => reply.number,
            _ => 0,
        }
    }

    /// A number that an earlier attempt remembered.
    pub(crate) fn memo(&self, step: Step) -> Option<u64> {
        match self.op.memo(step) {
            Some(Memo::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// Remembers a number for later attempts.
    pub(crate) fn set_memo(&mut self, step: Step, number: u64) {
        self.op.set_memo(step, Memo::Number(number));
    }

    /// Forgets a step, so that it is done again (a retry).
    pub(crate) fn forget(&mut self, step: Step) {
        self.op.forget(step);
    }

    /// Ends this attempt: the operation runs again once [`World::wake`] is called with `key`.
    pub(crate) fn wait(&mut self, key: WaitKey) -> Stop {
        self.w.schedule.wait(self.op.id, key);
        if !self.op.presses && (self.op.urgent || self.op.has_pins()) {
            self.op.presses = true;
            self.w.imports.press(self.w.now);
        }
        Stop::Wait
    }

    /// Starts background work.
    pub(crate) fn spawn(&mut self, task: Task) {
        self.w.spawn(task);
    }

    /// Sends the request of `step` unless that was done, after the changes of metadata write-back. Returns the reply
    /// once it has arrived.
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
                // Operations that evaluate the answer in the next attempt only need one.
                self.w.schedule.make_ready(self.op.id);
            }
        }
        self.answer(step)
    }

    /// Sends one request and waits for its reply.
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

    /// Sends one request that is answered with the state of objects, which is in the caches by then.
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

    /// Pins a lock on `resource` that covers `policy` in `mode` or a stronger one: a cached one, or a new one. It stays
    /// pinned until the operation ends or calls [`Cx::unlock`].
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

    /// Pins a cached lock that covers this, if there is one. Sends nothing.
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

    /// Releases the pin of `step`.
    pub(crate) fn unlock(&mut self, step: Step) {
        crate::coherence::locks::unlock(self, step);
    }

    /// A request that changes the node is about to be sent: until the operation ends, metadata write-back does not
    /// change it.
    pub(crate) fn changing(&mut self, step: Step, ino: u64) {
        if self.op.memo(step).is_none() && self.w.nodes.hold(ino, Hold::Changing) {
            self.op.set_memo(step, Memo::Changing(ino));
        }
    }

    /// Whether [`Cx::changing`] was called with this step and node.
    pub(crate) fn is_changing(&self, step: Step, ino: u64) -> bool {
        matches!(self.op.memo(step), Some(Memo::Changing(known)) if *known == ino)
    }

    /// Keeps the node in memory until the operation ends.
    pub(crate) fn keep_node(&mut self, step: Step, ino: u64) {
        if self.op.memo(step).is_none() && self.w.nodes.hold(ino, Hold::Wanted) {
            self.op.set_memo(step, Memo::Node(ino));
        }
    }

    /// Whether an answer with attributes may still be on its way to the kernel: the kernel was sent one and has not
    /// reported the node as forgotten, but does not know the node. After a number of tries the answer is taken for
    /// lost.
    fn may_be_in_flight(&self, pending: KernelDrop, ino: u64) -> bool {
        pending.unknown < INVALIDATE_TRIES_MAX && self.w.nodes.get(ino).is_some_and(|node| node.kernel.knows())
    }

    /// Makes the kernel drop the attributes of a node and a range of its pages (`length` 0: no pages, `u64::MAX`: to
    /// the end), and waits for the acknowledgement. Nothing is sent if the kernel does not know the node, or has no
    /// attributes of it and no pages are to be dropped.
    pub(crate) fn invalidate_kernel(&mut self, step: Step, ino: u64, offset: u64, length: u64) -> Run<()> {
        let mut unknown = 0;
        match self.op.memo(step) {
            Some(&Memo::Invalidating(pending)) => match pending.acknowledged {
                None => return Err(Stop::Wait),
                Some(again) if again > Instant::ZERO && self.may_be_in_flight(pending, ino) => {
                    if self.w.now < again {
                        self.w.set_timer(again);
                        return Err(self.wait(WaitKey::Timer));
                    }
                    stdx::mark!("kernel_invalidated_too_early");
                    unknown = pending.unknown + 1;
                }
                Some(_) => {
                    if let Some(node) = self.w.nodes.get_mut(ino) {
                        node.kernel.dropped(pending.sent);
                    }
                    return Ok(());
                }
            },
            Some(_) => return Ok(()),
            None => {}
        }
        let known = self.w.nodes.get(ino).filter(|node| node.kernel.knows());
        // The kernel treats every invalidation as a change: it discards the answer to a request from before it, and a
        // program that asked for the size would go on with an old one. So no needless invalidation is sent.
        let Some(node) = known.filter(|node| length > 0 || node.kernel.has_attributes()) else {
            if known.is_some() {
                stdx::mark!("no_invalidation_needed");
            }
            self.set_memo(step, 0);
            return Ok(());
        };
        let pending = KernelDrop { sent: node.kernel.times_sent(), unknown, acknowledged: None };
        let token = self.w.schedule.token(self.op.id, step);
        self.op.set_memo(step, Memo::Invalidating(pending));
        self.w.effect(Effect::Invalidate(Invalidation::Inode { token, ino, offset, length }));
        Err(Stop::Wait)
    }
}
