//! Operations in progress: their memo, what they wait for, and the kinds of background work.

use bytes::Bytes;
use proto::msg::{Cred, EnqueueRep, EnqueueReq, GetxattrRep, ObjectRep, ObjectStateRep, Reint, ReintReq, WantLocks};
use proto::{Errno, Frame, Header};
use std::sync::Arc;
use stdx::Instant;

use crate::api::FileHandle;
use crate::api::{Call, CallId};
use crate::base::Dest;
use crate::base::OpId;
use crate::base::Step;
use crate::cache::names::Piece;
use crate::coherence::data;
use smallvec::SmallVec;

/// Work without a caller.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Task {
    /// Fetch the configuration.
    Config,
    /// Find the root; the mount is complete then.
    Root,
    /// Fetch the next sequence.
    Sequence,
    /// Somebody wants a lock of ours: flush, invalidate, cancel.
    Callback {
        /// Where it is held.
        dest: Dest,
        /// Which.
        cookie: u64,
    },
    /// Tell a server what programs have closed.
    Close(Box<crate::coherence::closes::Batch>),
    /// Send a server the changes of metadata write-back.
    Batch(Box<crate::coherence::metadata_write_back::Batch>),
    /// An object was opened so that it lasts until the kernel has come back for it; then it is closed.
    Hold {
        /// The open.
        closing: Box<crate::cache::file::Closing>,
        /// How long.
        until: stdx::Instant,
    },
    /// Tell the server an access time.
    Atime {
        /// Whose.
        ino: u64,
    },
    /// Open on the server what programs have open here.
    Publish {
        /// Of which object.
        ino: u64,
    },
    /// Fetch the listing of a directory whose names are being looked up.
    Listing {
        /// Which.
        ino: u64,
    },
    /// Fetch the attributes of a directory's objects, piece by piece, ahead of the program that looks at one after another.
    Ahead {
        /// Which.
        ino: u64,
    },
    /// Fetch what follows in a directory that a program is reading with attributes.
    Next {
        /// The open directory.
        fh: crate::api::FileHandle,
        /// Which.
        ino: u64,
        /// The cookie after which it goes on.
        after: u64,
        /// See [`crate::cache::file::Next`].
        number: u32,
    },
    /// Give record locks back: a request that `dlm` counts as sent.
    Unlock {
        /// Where.
        dest: Dest,
        /// What.
        request: Box<EnqueueReq>,
    },
    /// Give back the record locks of an owner.
    DropLocks {
        /// On what.
        ino: u64,
        /// Who.
        owner: u64,
        /// Those of `flock`, or those of `fcntl`.
        flock: bool,
    },
    /// Let go of what an abandoned call has brought.
    Disown(Box<Disowned>),
    /// Unmount.
    Unmount,
    /// Data cache.
    Data(data::Task),
}

/// What an abandoned call has left behind.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Disowned {
    /// Nodes that it may have changed.
    pub(crate) nodes: SmallVec<[u64; 4]>,
    /// Their data, too.
    pub(crate) data: bool,
    /// Names that it may have changed.
    pub(crate) names: SmallVec<[(u64, Bytes); 2]>,
    /// References that were counted for the kernel.
    pub(crate) lookups: Vec<u64>,
    /// What it opened.
    pub(crate) opened: Option<FileHandle>,
}

/// What an operation is to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// For a program.
    Call(Call),
    /// For ourselves.
    Task(Task),
}

/// A reply, decoded as far as the caches needed it.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The fixed part.
    pub header: Header,
    /// The body.
    pub body: Body,
    /// Data behind it.
    pub bulk: Bytes,
    /// The number of its request.
    pub number: u64,
}

/// Bodies that the caches look at, decoded; all others as bytes.
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

/// What an earlier attempt did at a step.
#[derive(Clone, Debug)]
pub(crate) enum Memo {
    /// A request is on its way: its number, so that its answer is not taken for that of another once the step was forgotten.
    Sent(u64),
    /// Its reply.
    Reply(Reply),
    /// It got no reply and never will: eviction, `soft`, no such target.
    Failed(Errno),
    /// A lock is pinned.
    Lock {
        /// Where.
        dest: Dest,
        /// Our number.
        cookie: u64,
    },
    /// A node stays until the operation ends.
    Node(u64),
    /// The kernel waits for attributes of a node.
    Asked(u64),
    /// A change of a node is asked for: metadata write-back makes none.
    Changing(u64),
    /// The kernel was asked to forget attributes or pages.
    Telling(Telling),
    /// The kernel was asked to forget a name in this directory.
    Name {
        /// Which directory.
        parent: u64,
        /// It has.
        dropped: bool,
    },
    /// A number of the operation's own.
    Number(u64),
}

/// What the kernel was asked to forget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telling {
    /// How often attributes of the node had been shown to it.
    pub(crate) shown: u32,
    /// How often it did not know the node.
    pub(crate) unknown: u32,
    /// It has answered. If it did not know the node it is asked again at that time; [`Instant::ZERO`]: it has forgotten.
    pub(crate) heard: Option<Instant>,
}

/// An operation.
#[derive(Debug)]
pub(crate) struct OpState {
    /// Which.
    pub id: OpId,
    /// Who waits for the answer.
    pub call: Option<CallId>,
    /// On whose behalf.
    pub cred: Arc<Cred>,
    /// The wall clock at its begin.
    pub wall_ns: i64,
    /// When it began.
    pub started: Instant,
    /// The program was interrupted.
    pub interrupted: bool,
    /// Requests that were made and have an effect, so that their replies have to be taken in.
    pub changes: u32,
    /// Its program is gone: it goes on without one.
    pub abandoned: bool,
    /// Somebody elsewhere waits for it: its requests must not wait behind ordinary changes.
    pub urgent: bool,
    /// The number of its first request that took a slot, and so its place among those that wait for one: it waits once, however many
    /// changes it needs.
    pub(crate) turn: u64,
    /// It waited for others while it was urgent or had locks pinned ([`crate::session::Imports::press`]).
    pub presses: bool,
    /// A record lock that it waits for: where, and our number of the request.
    pub waiting_record: Option<(Dest, u64)>,
    /// In the order of its steps: an operation that opens thousands of files or drops thousands of names has as many.
    memo: Vec<(Step, Memo)>,
}

impl OpState {
    /// A new one.
    pub(crate) fn new(id: OpId, call: Option<CallId>, cred: Arc<Cred>, wall_ns: i64, started: Instant) -> OpState {
        OpState {
            id,
            call,
            cred,
            wall_ns,
            started,
            interrupted: false,
            changes: 0,
            abandoned: false,
            urgent: false,
            turn: 0,
            presses: false,
            waiting_record: None,
            memo: Vec::new(),
        }
    }

    /// Another operation takes this one's place and memory.
    pub(crate) fn renew(&mut self, id: OpId, call: Option<CallId>, cred: Arc<Cred>, wall_ns: i64, started: Instant) {
        let mut memo = core::mem::take(&mut self.memo);
        memo.clear();
        *self = OpState { memo, ..OpState::new(id, call, cred, wall_ns, started) };
    }

    /// A request for a change on behalf of its program.
    pub(crate) fn change(&self, want: Option<WantLocks>, op: Reint) -> ReintReq {
        ReintReq { cred: Some((*self.cred).clone()), now_ns: self.wall_ns, want, op: Some(op) }
    }

    /// What came of a change of an object: what its target says, and the header of the answer if there is one. `None`: it was not sent, or
    /// is not answered.
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

    /// The operation is over: what its memo holds is let go.
    pub(crate) fn clear(&mut self) {
        self.memo.clear();
        self.memo.shrink_to(16);
    }

    /// Whether this is the first attempt, as far as the memo knows.
    pub(crate) fn is_fresh(&self) -> bool {
        self.memo.is_empty()
    }

    fn place(&self, step: Step) -> Result<usize, usize> {
        stdx::steps::add(1);
        self.memo.binary_search_by_key(&step, |(at, _)| *at)
    }

    /// What happened at `step`.
    pub(crate) fn memo(&self, step: Step) -> Option<&Memo> {
        self.place(step).ok().map(|at| &self.memo[at].1)
    }

    /// The kernel has answered what it was asked at `step`; see [`Telling::heard`].
    pub(crate) fn heard(&mut self, step: Step, again: Instant) {
        let Ok(at) = self.place(step) else { return };
        match &mut self.memo[at].1 {
            Memo::Telling(telling) => telling.heard = Some(again),
            Memo::Name { dropped, .. } => *dropped = true,
            _ => {}
        }
    }

    /// Remembers.
    pub(crate) fn set_memo(&mut self, step: Step, memo: Memo) {
        match self.place(step) {
            Ok(at) => self.memo[at].1 = memo,
            Err(at) => self.memo.insert(at, (step, memo)),
        }
    }

    /// Whether the request with this number is still the one of its step.
    pub(crate) fn waits_for(&self, step: Step, number: u64) -> bool {
        matches!(self.memo(step), Some(Memo::Sent(sent)) if *sent == number)
    }

    /// Whether it has locks pinned.
    pub(crate) fn has_pins(&self) -> bool {
        stdx::steps::add(self.memo.len());
        self.memo.iter().any(|(_, memo)| matches!(memo, Memo::Lock { .. }))
    }

    /// Forgets. An answer that is still on its way is dropped when it comes, but for what it brings for the caches.
    pub(crate) fn forget(&mut self, step: Step) {
        if let Ok(at) = self.place(step) {
            self.memo.remove(at);
        }
    }

    /// All steps in their order, for the end.
    pub(crate) fn steps(&self) -> &[(Step, Memo)] {
        &self.memo
    }

    /// The steps of a range, in their order.
    pub(crate) fn steps_in(&self, range: core::ops::RangeInclusive<Step>) -> &[(Step, Memo)] {
        let first = self.memo.partition_point(|(at, _)| at < range.start());
        let end = self.memo.partition_point(|(at, _)| at <= range.end());
        &self.memo[first..end]
    }
}
