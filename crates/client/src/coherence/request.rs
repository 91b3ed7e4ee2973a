//! Requests as operations make them: values, with all that there is to know of them before their answer.

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

/// Puts what an answer says into the caches, besides its attributes and locks. It is done when the answer comes, before any operation
/// runs, and once, whatever has become of the operation that asked. `Err`: the request failed, or is never answered.
pub(crate) type TakeIn = Box<dyn FnOnce(&mut World, Result<&Reply, Errno>) + Send>;

/// A request that was not sent yet.
#[derive(Default)]
pub(crate) struct Request {
    body: Bytes,
    bulk: Bytes,
    wants: Wants,
    opens: bool,
    chooses: bool,
    touched: Touched,
    take_in: Option<TakeIn>,
}

impl Request {
    /// One that says this, and nothing more.
    pub(crate) fn new(body: &impl Message) -> Request {
        Request { body: body.encode_to_vec().into(), ..Request::default() }
    }

    /// With data behind it.
    pub(crate) fn with_bulk(self, bulk: Bytes) -> Request {
        Request { bulk, ..self }
    }

    /// Wants these locks, which its body names.
    pub(crate) fn wanting(self, wants: Wants) -> Request {
        Request { wants, ..self }
    }

    /// Opens something: it is kept for replay until its close is durable.
    pub(crate) fn opening(self) -> Request {
        Request { opens: true, ..self }
    }

    /// The server chooses something, which a replay has to bring: its answer is kept.
    pub(crate) fn choosing(self, chooses: bool) -> Request {
        Request { chooses, ..self }
    }

    /// Changes what a name leads to.
    pub(crate) fn touching_name(mut self, nodes: &Nodes, parent: u64, name: &Bytes) -> Request {
        self.touched.name(nodes, parent, name);
        self
    }

    /// Changes attributes of a node; `access`: those that say who may do what with it.
    pub(crate) fn touching(mut self, ino: u64, access: bool) -> Request {
        self.touched.node(ino, access);
        self
    }

    /// What is done with its answer when that comes.
    pub(crate) fn then(self, take_in: impl FnOnce(&mut World, Result<&Reply, Errno>) + Send + 'static) -> Request {
        Request { take_in: Some(Box::new(take_in)), ..self }
    }

    /// The same with an answer that says what objects look like. One that failed says nothing.
    pub(crate) fn then_learn(self, learn: impl FnOnce(&mut World, &ObjectRep, &Reply) + Send + 'static) -> Request {
        self.then(|w, answer| {
            if let Ok(reply) = answer
                && let Body::Object(rep) = &reply.body
            {
                learn(w, rep, reply);
            }
        })
    }

    /// Sends it. It takes a slot of this kind, at this operation's turn.
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
        let Request { body, bulk, wants, opens, chooses, touched, take_in } = self;
        let open_body = opens.then(|| body.clone());
        let mut pending = Pending { sender, opcode, wants, open_body, touched, take_in };
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

/// Which operation sent a request, at which of its steps, and the request's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// The operation.
    pub(crate) op: OpId,
    /// Its step.
    pub(crate) step: Step,
    /// Of all requests of this client.
    pub(crate) number: u64,
}

/// A request without a reply so far.
pub(crate) struct Pending {
    /// Who sent it.
    pub(crate) sender: Sender,
    /// What it is.
    pub(crate) opcode: Opcode,
    /// Locks that it wants.
    pub(crate) wants: Wants,
    /// It opens something: its body is kept for replay.
    pub(crate) open_body: Option<Bytes>,
    /// What it changes.
    pub(crate) touched: Touched,
    /// What is done with its answer.
    pub(crate) take_in: Option<TakeIn>,
}

impl core::fmt::Debug for Pending {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pending").field("sender", &self.sender).field("opcode", &self.opcode).finish_non_exhaustive()
    }
}

/// Locks on an object itself that a request wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectLocks {
    /// Of its name, and of all else but a directory's entries.
    pub(crate) own: bool,
    /// Of a directory's entries.
    pub(crate) entries: bool,
}

impl ObjectLocks {
    /// Of an object that is no directory.
    pub(crate) const FILE: ObjectLocks = ObjectLocks { own: true, entries: false };
    /// Of one that may be a directory.
    pub(crate) const ANY: ObjectLocks = ObjectLocks { own: true, entries: true };

    /// Those that are not held.
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

/// Locks that a request wants to bring along, by our numbers of them: from now on they are expected.
#[derive(Default, Debug)]
pub(crate) struct Wants {
    cookies: SmallVec<[u64; 3]>,
    /// A run of further ones: the first, and how many.
    run: (u64, u32),
}

impl Wants {
    /// One lock that is expected already.
    pub(crate) fn of(cookie: u64) -> Wants {
        Wants { cookies: SmallVec::from_slice(&[cookie]), run: (0, 0) }
    }

    /// The lock that the request is about.
    pub(crate) fn first(&self) -> Option<u64> {
        self.cookies.first().copied()
    }

    /// One more, of `dest`; its number.
    pub(crate) fn add(&mut self, w: &mut World, dest: Dest) -> u64 {
        let Some(locks) = w.locks.get_mut(dest) else { return 0 };
        let cookie = locks.new_cookie();
        locks.expect_intent(cookie);
        self.cookies.push(cookie);
        cookie
    }

    /// Up to `count` more; the first of their numbers, which follow each other.
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

    /// Locks on the object, on its parent, on its data.
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

    /// Those that have not come will not come.
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
/// A change may wait on the server for a lock that another client has pinned while *its* change waits for one of ours. So what is done under a
/// pinned lock, or for a lock that goes back, never waits behind ordinary changes: it has a slot of its own. (Under its lock it has
/// nobody to wait for but holders of attributes, who give them back without needing a slot.) What is sent behind the programs'
/// backs counts as a change, until such work waits for it ([`crate::session::Imports::press`]).
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

/// Takes back the one request of an operation that would change something, if it was not sent. Whether it was: then the operation
/// has had no effect.
pub(crate) fn withdraw_change(w: &mut World, op: OpId) -> bool {
    withdraw(w, |pending| {
        pending.sender.op == op && pending.sender.step == Step::Main && pending.opcode.traits().modifies
    })
}

/// Takes back all requests of an operation that were not sent.
pub(crate) fn withdraw_all(w: &mut World, op: OpId) {
    withdraw(w, |pending| pending.sender.op == op);
}

/// Takes back those requests that were not sent. Whether there were any.
fn withdraw(w: &mut World, which: impl Fn(&Pending) -> bool) -> bool {
    let gone = w.imports.withdraw(which);
    for (dest, pending) in &gone {
        pending.touched.answered(&mut w.nodes);
        pending.wants.give_up(w, *dest);
    }
    !gone.is_empty()
}

/// Whether a request of this operation to this target has no answer yet.
pub(crate) fn is_owed(w: &World, dest: Dest, op: OpId) -> bool {
    w.imports.get(dest).is_some_and(|target| target.pending().any(|pending| pending.sender.op == op))
}

/// Something that needs no reply, as a cancel.
pub(crate) fn tell(w: &mut World, dest: Dest, opcode: Opcode, body: &impl Message) {
    w.imports.tell(w.now, dest, Outgoing::new(opcode, body));
}
