//! Operations in progress: their memo, and the kinds of background work.

use bytes::Bytes;
use proto::msg::{Cred, EnqueueRep, EnqueueReq, GetxattrRep, ObjectRep, ObjectStateRep, Reint, ReintReq, WantLocks};
use proto::{Errno, Frame, Header};
use std::sync::Arc;
use stdx::Instant;

use crate::api::{Call, CallId, FileHandle, NewDir};
use crate::base::Dest;
use crate::base::OpId;
use crate::base::Step;
use crate::cache::names::Piece;
use crate::coherence::data;
use smallvec::SmallVec;

/// Background work.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Task {
    /// Fetch the configuration of the file system.
    Config,
    /// Look up the root, which completes the mount.
    Root,
    /// Fetch the next sequence of FIDs.
    Sequence(Dest),
    /// Give a lock back: flush, invalidate, cancel.
    Callback {
        /// The target of the lock.
        dest: Dest,
        /// Its cookie.
        cookie: u64,
    },
    /// Send a batch of closes.
    Close(Box<crate::coherence::closes::Batch>),
    /// Send a batch of changes of metadata write-back.
    Batch(Box<crate::coherence::metadata_write_back::Batch>),
    /// Close an object that was opened so that it lasts until the kernel has come back for it.
    Hold {
        /// The open.
        closing: Box<crate::cache::file::Closing>,
        /// When to close it.
        until: stdx::Instant,
    },
    /// Send an access time to the server.
    Atime {
        /// The file.
        ino: u64,
    },
    /// Report local opens to the server.
    Publish {
        /// The file.
        ino: u64,
    },
    /// Fetch the listing of a directory whose names are being looked up.
    Listing {
        /// The directory.
        ino: u64,
    },
    /// Prefetch the attributes of a directory's objects, piece by piece, for a program that looks at one after another.
    Ahead {
        /// The directory.
        ino: u64,
    },
    /// Prefetch the next entries of a directory that a program reads with attributes.
    Next {
        /// The open directory.
        fh: crate::api::FileHandle,
        /// Its node.
        ino: u64,
        /// The cookie after which the entries start.
        after: u64,
        /// See [`crate::cache::file::Next`].
        number: u32,
    },
    /// Release record locks: a request that `dlm` counts as sent.
    Unlock {
        /// The target.
        dest: Dest,
        /// The request.
        request: Box<EnqueueReq>,
    },
    /// Release the record locks of an owner.
    DropLocks {
        /// The file.
        ino: u64,
        /// The owner.
        owner: u64,
        /// Whether the locks are those of `flock` or of `fcntl`.
        flock: bool,
    },
    /// Release what an abandoned call has obtained.
    Disown(Box<Disowned>),
    /// Unmount.
    Unmount,
    /// Work of the data cache.
    Data(data::Task),
}

/// What an abandoned call leaves behind.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Disowned {
    /// Nodes that it may have changed.
    pub(crate) nodes: SmallVec<[u64; 4]>,
    /// Also their data.
    pub(crate) data: bool,
    /// Names that it may have changed.
    pub(crate) names: SmallVec<[(u64, Bytes); 2]>,
    /// References that were counted for the kernel.
    pub(crate) lookups: Vec<u64>,
    /// What it opened.
    pub(crate) opened: Option<FileHandle>,
}

/// What an operation has to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// A call of a program.
    Call(Call),
    /// Background work.
    Task(Task),
}

/// A reply, decoded as far as the caches needed it.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The header.
    pub header: Header,
    /// The body.
    pub body: Body,
    /// Bulk data.
    pub bulk: Bytes,
    /// The number of its request.
    pub number: u64,
}

/// The body of a reply, decoded if the caches look at it.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Getattr, lookup, reint.
    Object(Arc<ObjectRep>),
    /// Readdir.
    Readdir(Arc<Piece>),
    /// Getxattr.
    Xattrs(Arc<GetxattrRep>),
    /// Enqueue.
    Enqueue(EnqueueRep),
    /// Anything else.
    Raw(Bytes),
}

impl Reply {
    /// The body of a getattr, lookup or reint.
    pub(crate) fn object(&self) -> Option<Arc<ObjectRep>> {
        match &self.body {
            Body::Object(rep) => Some(rep.clone()),
            _ => None,
        }
    }

    /// The frame, for bodies that were not decoded.
    pub(crate) fn frame(&self) -> Frame {
        let body = match &self.body {
            Body::Raw(bytes) => bytes.clone(),
            _ => Bytes::new(),
        };
        Frame { header: self.header, body, bulk: self.bulk.clone() }
    }
}

/// The state of a step.
#[derive(Clone, Debug)]
pub(crate) enum Memo {
    /// A request is in flight, with its number: if the step is forgotten and started again, the answer to the first
    /// request is not taken for that of the second.
    Sent(u64),
    /// The reply has arrived.
    Reply(Reply),
    /// No reply will arrive: eviction, `soft` mount, or no such target.
    Failed(Errno),
    /// A lock is pinned.
    Lock {
        /// The target.
        dest: Dest,
        /// The cookie.
        cookie: u64,
    },
    /// A node is held until the operation ends.
    Node(u64),
    /// The kernel waits for attributes of a node and may not keep any until the operation ends.
    AttrWanted(u64),
    /// A change of a node was requested: metadata write-back does not change it.
    Changing(u64),
    /// The kernel was asked to drop attributes or pages.
    Invalidating(KernelDrop),
    /// The kernel was asked to drop a name in a directory.
    Name {
        /// The directory.
        parent: u64,
        /// The kernel has dropped it.
        dropped: bool,
    },
    /// A number that the operation remembers.
    Number(u64),
    /// Where a new directory shall lie.
    Place(Arc<Placed>),
}

/// The place of a new directory, chosen by the default of the directory above.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    /// The targets; `None`: an ordinary directory, on the target of its name.
    pub(crate) wish: Option<NewDir>,
    /// Those of them that the default names.
    pub(crate) named: Vec<u32>,
}

/// An invalidation of a node's attributes or pages that was sent to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelDrop {
    /// Answers with attributes of the node that the kernel had been sent before it.
    pub(crate) sent: u32,
    /// How often the kernel did not know the node.
    pub(crate) unknown: u32,
    /// Set once the kernel has acknowledged it: the time of the next try if the kernel did not know the node, else
    /// [`Instant::ZERO`].
    pub(crate) acknowledged: Option<Instant>,
}

/// The state of an operation.
#[derive(Debug)]
pub(crate) struct OpState {
    /// Its identifier.
    pub id: OpId,
    /// The call that waits for the answer; `None` for background work.
    pub call: Option<CallId>,
    /// The credentials of the caller.
    pub cred: Arc<Cred>,
    /// The wall clock at its start.
    pub wall_ns: i64,
    /// When it started.
    pub started: Instant,
    /// The program was interrupted.
    pub interrupted: bool,
    /// Requests with an effect that were sent, so that their replies must be processed.
    pub changes: u32,
    /// The call names a directory by an alias ([`crate::ops::alias`]).
    pub(crate) by_alias: bool,
    /// The program is gone; the operation goes on without it.
    pub abandoned: bool,
    /// A peer waits for it: its requests must not queue behind ordinary changes.
    pub urgent: bool,
    /// The number of its first request that took a slot. It determines its place among those that wait for slots, so
    /// that it queues only once, however many changes it needs.
    pub(crate) turn: u64,
    /// It waited for others while it was urgent or had locks pinned ([`crate::session::Imports::press`]).
    pub presses: bool,
    /// A record lock that it waits for: the target, and the lock's cookie.
    pub waiting_record: Option<(Dest, u64)>,
    /// It has used a stripe of a directory other than the master.
    pub(crate) used_stripe: bool,
    /// How often it has begun anew because the layout of a directory that it knew is outdated.
    pub(crate) layouts_doubted: u32,
    /// Sorted by step: an operation that opens thousands of files or drops thousands of names has as many entries.
    memo: Vec<(Step, Memo)>,
}

impl OpState {
    /// A new operation.
    pub(crate) fn new(id: OpId, call: Option<CallId>, cred: Arc<Cred>, wall_ns: i64, started: Instant) -> OpState {
        OpState {
            id,
            call,
            cred,
            wall_ns,
            started,
            interrupted: false,
            changes: 0,
            by_alias: false,
            abandoned: false,
            urgent: false,
            turn: 0,
            presses: false,
            waiting_record: None,
            used_stripe: false,
            layouts_doubted: 0,
            memo: Vec::new(),
        }
    }

    /// Turns into a new operation, which reuses the memory of the old one.
    pub(crate) fn renew(&mut self, id: OpId, call: Option<CallId>, cred: Arc<Cred>, wall_ns: i64, started: Instant) {
        let mut memo = core::mem::take(&mut self.memo);
        memo.clear();
        *self = OpState { memo, ..OpState::new(id, call, cred, wall_ns, started) };
    }

    /// Begins anew: what was asked for was refused because the layout of a directory is another by now.
    pub(crate) fn begin_anew(&mut self) {
        let (interrupted, by_alias, abandoned) = (self.interrupted, self.by_alias, self.abandoned);
        let (urgent, layouts_doubted) = (self.urgent, self.layouts_doubted + 1);
        let had_name = matches!(self.memo(Step::HadName), Some(Memo::Number(1)));
        self.renew(self.id, self.call, self.cred.clone(), self.wall_ns, self.started);
        (self.interrupted, self.by_alias, self.abandoned) = (interrupted, by_alias, abandoned);
        (self.urgent, self.layouts_doubted) = (urgent, layouts_doubted);
        if had_name {
            self.set_memo(Step::HadName, Memo::Number(1));
        }
    }

    /// A change request with the credentials of the caller.
    pub(crate) fn change(&self, want: Option<WantLocks>, op: Reint) -> ReintReq {
        ReintReq { cred: Some((*self.cred).clone()), now_ns: self.wall_ns, want, op: Some(op) }
    }

    /// The outcome of a change of an object: the state that the target reports, and the header of the answer if there
    /// is one. `None`: the request was not sent, or is not answered yet.
    pub(crate) fn object_changed(&self, step: Step) -> Option<(Result<ObjectStateRep, Errno>, Option<Header>)> {
        match self.memo(step)? {
            Memo::Reply(reply) => {
                let state = Errno::from_status(reply.header.status)
                    .and_then(|()| reply.frame().decode().map_err(|_| Errno::EPROTO));
                Some((state, Some(reply.header)))
            }
            Memo::Failed(errno) => Some((Err(*errno), None)),
            _ => None,
        }
    }

    /// Clears the memo at the end of the operation.
    pub(crate) fn clear(&mut self) {
        self.memo.clear();
        self.memo.shrink_to(16);
    }

    /// Whether the memo is empty, as in the first attempt.
    pub(crate) fn is_fresh(&self) -> bool {
        self.memo.is_empty()
    }

    fn place(&self, step: Step) -> Result<usize, usize> {
        stdx::steps::add(1);
        self.memo.binary_search_by_key(&step, |(at, _)| *at)
    }

    /// The state of `step`.
    pub(crate) fn memo(&self, step: Step) -> Option<&Memo> {
        self.place(step).ok().map(|at| &self.memo[at].1)
    }

    /// The kernel has acknowledged the invalidation of `step`; see [`KernelDrop::acknowledged`].
    pub(crate) fn acknowledged(&mut self, step: Step, again: Instant) {
        let Ok(at) = self.place(step) else { return };
        match &mut self.memo[at].1 {
            Memo::Invalidating(pending) => pending.acknowledged = Some(again),
            Memo::Name { dropped, .. } => *dropped = true,
            _ => {}
        }
    }

    /// Sets the state of `step`.
    pub(crate) fn set_memo(&mut self, step: Step, memo: Memo) {
        match self.place(step) {
            Ok(at) => self.memo[at].1 = memo,
            Err(at) => self.memo.insert(at, (step, memo)),
        }
    }

    /// Whether the request with this number is still the current one of its step.
    pub(crate) fn waits_for(&self, step: Step, number: u64) -> bool {
        matches!(self.memo(step), Some(Memo::Sent(sent)) if *sent == number)
    }

    /// Whether it has locks pinned.
    pub(crate) fn has_pins(&self) -> bool {
        stdx::steps::add(self.memo.len());
        self.memo.iter().any(|(_, memo)| matches!(memo, Memo::Lock { .. }))
    }

    /// Forgets a step. An answer that is still in flight is applied to the caches and otherwise dropped.
    pub(crate) fn forget(&mut self, step: Step) {
        if let Ok(at) = self.place(step) {
            self.memo.remove(at);
        }
    }

    /// All steps, sorted.
    pub(crate) fn steps(&self) -> &[(Step, Memo)] {
        &self.memo
    }

    /// The steps of a range, sorted.
    pub(crate) fn steps_in(&self, range: core::ops::RangeInclusive<Step>) -> &[(Step, Memo)] {
        let first = self.memo.partition_point(|(at, _)| at < range.start());
        let end = self.memo.partition_point(|(at, _)| at <= range.end());
        &self.memo[first..end]
    }
}
