//! Requests: values that carry everything that is known before the answer.

use bytes::Bytes;
use prost::Message;
use proto::msg::{ObjectRep, WantLocks, bits};
use proto::opcode::SlotClass;
use proto::{Errno, Opcode};
use rpc::Slot;
use rpc::client::Outgoing;
use smallvec::SmallVec;

use crate::base::{Dest, OpId, Step};
use crate::cache::doubt::Touched;
use crate::cache::node::{Node, Nodes};
use crate::coherence::op::{Body, Reply};
use crate::coherence::replies;
use crate::coherence::world::World;

/// Applies an answer to the caches, besides its attributes and locks. It runs once, when the answer arrives and before
/// any operation runs, even if the operation is gone by then. `Err`: the request failed, or is never answered.
pub(crate) type OnReply = Box<dyn FnOnce(&mut World, Result<&Reply, Errno>) + Send>;

/// A request to be sent.
#[derive(Default)]
pub(crate) struct Request {
    body: Bytes,
    bulk: Bytes,
    wants: Wants,
    opens: bool,
    chooses: bool,
    touched: Touched,
    on_reply: Option<OnReply>,
}

impl Request {
    /// A request with this body.
    pub(crate) fn new(body: &impl Message) -> Request {
        Request { body: body.encode_to_vec().into(), ..Request::default() }
    }

    /// Adds bulk data.
    pub(crate) fn with_bulk(self, bulk: Bytes) -> Request {
        Request { bulk, ..self }
    }

    /// Adds the locks that it wants, which the body names.
    pub(crate) fn wanting(self, wants: Wants) -> Request {
        Request { wants, ..self }
    }

    /// It opens something: it is kept for replay until its close is durable.
    pub(crate) fn opening(self) -> Request {
        Request { opens: true, ..self }
    }

    /// The server chooses something that a replay must repeat: the answer is kept.
    pub(crate) fn choosing(self, chooses: bool) -> Request {
        Request { chooses, ..self }
    }

    /// It changes what a name leads to.
    pub(crate) fn touching_name(mut self, nodes: &Nodes, parent: u64, name: &Bytes) -> Request {
        self.touched.name(nodes, parent, name);
        self
    }

    /// It changes attributes of a node; `access`: those that decide permissions.
    pub(crate) fn touching(mut self, ino: u64, access: bool) -> Request {
        self.touched.node(ino, access);
        self
    }

    /// Sets the function that applies the answer when it arrives.
    pub(crate) fn then(self, on_reply: impl FnOnce(&mut World, Result<&Reply, Errno>) + Send + 'static) -> Request {
        Request { on_reply: Some(Box::new(on_reply)), ..self }
    }

    /// The same for an answer with the state of objects. A failed request is ignored.
    pub(crate) fn then_learn(self, learn: impl FnOnce(&mut World, &ObjectRep, &Reply) + Send + 'static) -> Request {
        self.then(|w, answer| {
            if let Ok(reply) = answer
                && let Body::Object(rep) = &reply.body
            {
                learn(w, rep, reply);
            }
        })
    }

    /// Sends the request, which takes a slot of this kind in the operation's place in the queue.
    ///
    /// # Errors
    /// `EIO`: there is no such target.
    pub(crate) fn send(
        self,
        w: &mut World,
        sender: Sender,
        dest: Dest,
        opcode: Opcode,
        (slot, turn): (Slot, u64),
    ) -> Result<(), Errno> {
        let Request { body, bulk, wants, opens, chooses, touched, on_reply } = self;
        let open_body = opens.then(|| body.clone());
        let mut pending = Pending { sender, opcode, wants, open_body, touched, on_reply };
        if w.imports.get(dest).is_none() {
            replies::failed(w, dest, pending, Errno::EIO);
            return Err(Errno::EIO);
        }
        pending.touched.sent(&mut w.nodes);
        let outgoing = Outgoing {
            opcode,
            keep_open: opens,
            keep_answer: chooses || opcode == Opcode::MdsBatch,
            body,
            bulk,
            slot,
            turn,
            no_resend: false,
            during_recovery: false,
            timeout: None,
        };
        w.imports.submit(w.now, dest, outgoing, pending);
        Ok(())
    }
}

/// Identifies a request: its operation, its step and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// The operation.
    pub(crate) op: OpId,
    /// Its step.
    pub(crate) step: Step,
    /// Unique among all requests of this client.
    pub(crate) number: u64,
}

/// A request that waits for its reply.
pub(crate) struct Pending {
    /// The operation that sent it.
    pub(crate) sender: Sender,
    /// Its opcode.
    pub(crate) opcode: Opcode,
    /// Locks that it wants.
    pub(crate) wants: Wants,
    /// It opens something: the body, kept for replay.
    pub(crate) open_body: Option<Bytes>,
    /// What it changes.
    pub(crate) touched: Touched,
    /// Applies the answer.
    pub(crate) on_reply: Option<OnReply>,
}

impl core::fmt::Debug for Pending {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pending").field("sender", &self.sender).field("opcode", &self.opcode).finish_non_exhaustive()
    }
}

/// Locks on the object itself that a request wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectLocks {
    /// The lock of its name and of everything but a directory's entries.
    pub(crate) own: bool,
    /// The lock of a directory's entries.
    pub(crate) entries: bool,
}

impl ObjectLocks {
    /// For an object on another metadata target than the one that is asked.
    pub(crate) const NONE: ObjectLocks = ObjectLocks { own: false, entries: false };
    /// For an object that is not a directory.
    pub(crate) const FILE: ObjectLocks = ObjectLocks { own: true, entries: false };
    /// For an object that may be a directory.
    pub(crate) const ANY: ObjectLocks = ObjectLocks { own: true, entries: true };

    /// The locks that are missing.
    pub(crate) fn missing(node: Option<&Node>) -> ObjectLocks {
        match node {
            Some(node) if node.is_dir() => {
                ObjectLocks { own: !node.has(bits::CACHE_DIRECTORY), entries: !node.has(bits::UPDATE) }
            }
            Some(node) => ObjectLocks { own: !node.has(bits::CACHE), entries: node.attr.is_none() },
            None => ObjectLocks::ANY,
        }
    }
}

/// Locks that a reply may grant, by their cookies, which are expected from now on.
#[derive(Default, Debug)]
pub(crate) struct Wants {
    cookies: SmallVec<[u64; 3]>,
    /// Consecutive further ones: the first, and their number.
    run: (u64, u32),
}

impl Wants {
    /// One lock that is expected already.
    pub(crate) fn of(cookie: u64) -> Wants {
        Wants { cookies: SmallVec::from_slice(&[cookie]), run: (0, 0) }
    }

    /// The lock that the request is mainly about.
    pub(crate) fn first(&self) -> Option<u64> {
        self.cookies.first().copied()
    }

    /// Adds a lock of `dest`. Returns its cookie.
    pub(crate) fn add(&mut self, w: &mut World, dest: Dest) -> u64 {
        let Some(locks) = w.locks.get_mut(dest) else { return 0 };
        let cookie = locks.new_cookie();
        locks.expect_intent(cookie);
        self.cookies.push(cookie);
        cookie
    }

    /// Adds up to `count` locks. Returns the first of their consecutive cookies.
    pub(crate) fn add_run(&mut self, w: &mut World, dest: Dest, count: u32) -> u64 {
        let Some(locks) = w.locks.get_mut(dest) else { return 0 };
        let first = locks.new_cookie();
        locks.expect_intent(first);
        for _ in 1..count {
            let cookie = locks.new_cookie();
            locks.expect_intent(cookie);
        }
        self.run = (first, count);
        first
    }

    /// Adds locks on the object, its parent and its data.
    pub(crate) fn locks(
        &mut self,
        w: &mut World,
        dest: Dest,
        object: ObjectLocks,
        parent: bool,
        data: Option<bool>,
    ) -> WantLocks {
        WantLocks {
            object_cookie: if object.own { self.add(w, dest) } else { 0 },
            entries_cookie: if object.entries { self.add(w, dest) } else { 0 },
            parent_cookie: if parent { self.add(w, dest) } else { 0 },
            data_cookie: if data.is_some() { self.add(w, dest) } else { 0 },
            data_write: data.unwrap_or(false),
            exclusive: false,
        }
    }

    /// Locks that were not granted are no longer expected.
    pub(crate) fn give_up(&self, w: &mut World, dest: Dest) {
        let (first, count) = self.run;
        if let Some(locks) = w.locks.get_mut(dest) {
            for cookie in self.cookies.iter().copied().chain(first..first + u64::from(count)) {
                locks.unexpect(cookie);
            }
        }
    }
}

/// The kind of slot that a request takes.
///
/// A change may wait at the server for a lock that another client has pinned, while *that* client's change waits for
/// one of our locks. So a request that is sent under a pinned lock, or to give a lock back, never waits behind ordinary
/// changes: it has a slot of its own. (Under its lock it can wait only for holders of attributes, who give them back
/// without needing a slot.) Write-back counts as an ordinary change until recalled work waits for it
/// ([`crate::session::Imports::press`]).
pub(crate) fn slot(dest: Dest, opcode: Opcode, urgent: bool) -> Slot {
    let Dest::Mdt(_) = dest else { return Slot::None };
    match opcode.traits().slot {
        SlotClass::None => Slot::None,
        SlotClass::Close => Slot::Close,
        SlotClass::Change | SlotClass::Data if urgent => Slot::Recalled,
        SlotClass::Change => Slot::Modify,
        SlotClass::Data | SlotClass::WriteBack => Slot::Buffered,
    }
}

/// Withdraws the one request of an operation that would change something, unless it was sent. Returns whether it was
/// withdrawn: then the operation has had no effect.
pub(crate) fn withdraw_change(w: &mut World, op: OpId) -> bool {
    withdraw(w, |pending| {
        pending.sender.op == op && pending.sender.step == Step::Main && pending.opcode.traits().modifies
    })
}

/// Withdraws all requests of an operation that were not sent.
pub(crate) fn withdraw_all(w: &mut World, op: OpId) {
    withdraw(w, |pending| pending.sender.op == op);
}

/// Withdraws the matching requests that were not sent. Returns whether there were any.
fn withdraw(w: &mut World, which: impl Fn(&Pending) -> bool) -> bool {
    let withdrawn = w.imports.withdraw(which);
    for (dest, pending) in &withdrawn {
        pending.touched.answered(&mut w.nodes);
        pending.wants.give_up(w, *dest);
    }
    !withdrawn.is_empty()
}

/// Whether a request of this operation to this target is unanswered.
pub(crate) fn is_owed(w: &World, dest: Dest, op: OpId) -> bool {
    w.imports.get(dest).is_some_and(|target| target.pending().any(|pending| pending.sender.op == op))
}

/// Sends a request that needs no reply, such as a cancel.
pub(crate) fn send_one_way(w: &mut World, dest: Dest, opcode: Opcode, body: &impl Message) {
    w.imports.send_one_way(w.now, dest, Outgoing::new(opcode, body));
}
