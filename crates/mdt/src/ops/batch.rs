//! Batches of metadata write-back: many changes that a client has already made, in one request with one attempt, one transno
//! and one reply record.
//!
//! The client holds the directories exclusively, and only it can know the objects that it made there. So a batch waits for
//! no other client, and the client has predicted the result of each change. If a change fails nevertheless, the others still
//! apply.
//!
//! Most changes of a batch are in the same directory, which is read before the first and written after the last of them.
//!
//! The reply record has a bit for each change that failed.

use crate::known::Pending;
use crate::ops::create::{Made, Named, New};
use crate::ops::unlink::Removed;
use crate::ops::{Change, create, dot_lustre, setattr, unlink};
use crate::tree::{self, Dir, Node};
use crate::{Mdt, grants, layouts};
use proto::msg::OfJob;
use proto::msg::{
    BATCH_MAX, BatchRep, BatchReq, BatchResult, Layout, LockMode, Reint, ReintReq, Resource, WantLocks, bits, valid,
};
use proto::{Errno, Fid, Operation};
use schema::Inode;
use target::{Cx, Reply, Request, Stop};

/// What a change of a batch did to the records.
enum Done {
    Made(Box<Made>, Operation),
    /// The first execution made the object; this is a replay.
    Existing(Box<Node>),
    Removed(Box<Removed>),
    Set,
}

/// Executes a batch.
pub fn batch(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let changes = decode(&request.decode()?)?;
    if changes.is_empty() {
        cx.changes_nothing();
        mdt.credits_returned(cx.export());
        return Ok(Reply::new(&BatchRep::default()));
    }
    let mut first = first_results(layouts::first_answer(cx, request)?, changes.len()).into_iter();
    let mut done: Vec<Result<Done, Errno>> = Vec::with_capacity(changes.len());
    let mut waits = false;
    let (mut dir, mut pending) = (None, Pending::default());
    for change in &changes {
        let layout = layouts::checked_answer(first.next().and_then(|result| result.layout))?;
        leave(cx, &mut dir, &mut pending, change);
        // A miss does not end the loop, so that the records which later changes miss are loaded at the same time.
        match cx.with_savepoint(|cx| one(mdt, cx, change, layout, &mut dir, &mut pending)) {
            Ok(did) => {
                if let (Done::Made(made, _), Some(dir)) = (&did, &mut dir) {
                    made.note(&mut dir.pending);
                }
                done.push(Ok(did));
            }
            Err(Stop::Errno(errno)) => done.push(Err(errno)),
            Err(Stop::Wait) => waits = true,
        }
    }
    if waits {
        return Err(Stop::Wait);
    }
    if let Some(mut dir) = dir {
        dir.write(cx);
    }
    if cx.is_replay()
        && let Some(errno) = done.iter().find_map(|did| did.as_ref().err())
    {
        return Err((*errno).into());
    }
    // Leases keep the changes of other clients apart from these.
    cx.forget_versions();
    for (did, change) in done.iter().zip(&changes) {
        let Ok(did) = did else { continue };
        cx.of_job(change.job());
        match did {
            Done::Made(made, statistic) => {
                mdt.made(made);
                cx.count(*statistic);
            }
            Done::Removed(removed) => mdt.removed(cx, removed),
            Done::Set => cx.count(Operation::Setattr),
            Done::Existing(_) => {}
        }
    }
    let gone: Vec<Fid> = done.iter().flatten().filter_map(Done::removed).collect();
    let mut failed: u64 = 0;
    let mut results = Vec::with_capacity(done.len());
    for (index, (did, change)) in done.iter().zip(&changes).enumerate() {
        results.push(match did {
            Err(errno) => {
                failed |= 1 << index;
                BatchResult { status: -errno.raw(), ..BatchResult::default() }
            }
            Ok(did) => match did.object().filter(|node| !gone.contains(&node.fid())) {
                Some(node) => result(cx, &node.inode, change.want.as_ref()),
                None => BatchResult::default(),
            },
        });
    }
    cx.of_job("");
    cx.count(Operation::Batch);
    // Replayed changes were answered before and use no credits. The client's queue needs those itself.
    let sent = if cx.is_replay() { 0 } else { changes.len() };
    let credits = mdt.grant_credits(cx, cx.export(), sent);
    Ok(Reply::new(&BatchRep { results, credits }).with_record(failed))
}

impl Done {
    fn object(&self) -> Option<&Node> {
        match self {
            Done::Made(made, _) => Some(&made.child),
            Done::Existing(node) => Some(node),
            Done::Removed(_) | Done::Set => None,
        }
    }

    fn removed(&self) -> Option<Fid> {
        match self {
            Done::Removed(removed) => Some(removed.child.fid()),
            _ => None,
        }
    }
}

/// The results of the first execution, in a replay that carries them. The client replays only the changes that did not fail.
fn first_results(answer: Option<BatchRep>, changes: usize) -> Vec<BatchResult> {
    let mut results = answer.unwrap_or_default().results;
    if results.len() != changes {
        results.retain(|result| result.status >= 0);
    }
    if results.len() == changes { results } else { Vec::new() }
}

/// The changes of a batch. A change without credentials gets those of the change before it.
pub(super) fn decode(request: &BatchReq) -> Result<Vec<ReintReq>, Errno> {
    let mut changes: Vec<ReintReq> = Vec::with_capacity(BATCH_MAX);
    for change in request.iter() {
        let mut change = change.map_err(|_| Errno::EPROTO)?;
        if changes.len() == BATCH_MAX {
            return Err(Errno::EINVAL);
        }
        if change.cred.is_none() {
            change.cred = changes.last().and_then(|before| before.cred.clone());
        }
        changes.push(change);
    }
    if changes.is_empty() == request.returns_credits { Ok(changes) } else { Err(Errno::EINVAL) }
}

/// Writes the directory of the previous changes, unless this change is in the same one.
fn leave(cx: &mut Cx<'_>, dir: &mut Option<Dir>, pending: &mut Pending, request: &ReintReq) {
    let parent = match &request.op {
        Some(Reint::Create(op)) => Some(op.parent),
        Some(Reint::Unlink(op)) => Some(op.parent),
        _ => None,
    };
    if let Some(mut dir) = dir.take_if(|dir| parent != Some(dir.node.fid())) {
        dir.write(cx);
        *pending = dir.pending;
    }
}

/// The directory of a change, read unless the previous change was in it.
fn enter<'a>(
    cx: &mut Cx<'_>,
    dir: &'a mut Option<Dir>,
    pending: &mut Pending,
    parent: Fid,
) -> Result<&'a mut Dir, Stop> {
    match dir {
        Some(dir) => Ok(dir),
        None => {
            let found = dir.insert(Dir::find(cx, parent)?);
            found.pending = core::mem::take(pending);
            Ok(found)
        }
    }
}

/// Checks one change and writes all its records except that of the directory. `layout`: in a replay, the layout that a new
/// file first got.
fn one(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    request: &ReintReq,
    layout: Option<Layout>,
    dir: &mut Option<Dir>,
    pending: &mut Pending,
) -> Result<Done, Stop> {
    let change = Change::new(request);
    let op = request.op.as_ref().ok_or(Errno::EPROTO)?;
    dot_lustre::check(cx, op)?;
    match op {
        Reint::Create(op) if !op.stripes.is_empty() => Err(Errno::EXDEV.into()),
        Reint::Create(op) => {
            let (dir, resident) = (enter(cx, dir, pending, op.parent)?, change.want.data_cookie != 0);
            let new = New { layout, ..New::of(op, resident) };
            Ok(match create::named(mdt, cx, &change, &new, op, dir)? {
                Named::Existing(child) => Done::Existing(Box::new(child)),
                Named::Made(made) => Done::Made(Box::new(made), create::statistic(op)),
            })
        }
        Reint::Unlink(op) => {
            let dir = enter(cx, dir, pending, op.parent)?;
            unlink::remove(mdt, cx, &change, op, dir).map(|removed| Done::Removed(Box::new(removed)))
        }
        Reint::Setattr(op) if op.valid & valid::SIZE == 0 => setattr::set(mdt, cx, &change, op).map(|_| Done::Set),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// The result for a new object, with the locks that the client has assumed on it.
fn result(cx: &mut Cx<'_>, inode: &Inode, want: Option<&WantLocks>) -> BatchResult {
    let want = want.copied().unwrap_or_default();
    let resource = Resource::inode(inode.fid);
    let mut grant = |mode, bits, cookie| cx.grant_new(resource, mode, bits, cookie).map_or(0, |grant| grant.handle);
    BatchResult {
        status: 0,
        object_handle: grant(LockMode::Pr, grants::cached(inode), want.object_cookie),
        entries_handle: if inode.is_dir() { grant(LockMode::Ex, bits::UPDATE, want.entries_cookie) } else { 0 },
        data_handle: if inode.is_resident() { grant(LockMode::Pw, bits::DOM, want.data_cookie) } else { 0 },
        layout: inode.layout.clone().filter(|_| inode.is_file()),
    }
}

/// The reply to a batch that was executed and whose reply was lost with the target's memory. The client could not replay the
/// locks of the batch, because it did not know their handles, so they are granted now.
pub fn reconstruct(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &BatchReq, failed: u64) -> Result<Reply, Stop> {
    let changes = decode(request)?;
    if changes.is_empty() {
        return Ok(Reply::new(&BatchRep::default()));
    }
    let mut found = Vec::with_capacity(changes.len());
    let mut waits = false;
    for change in &changes {
        let Some(Reint::Create(op)) = &change.op else {
            found.push(None);
            continue;
        };
        match tree::find(cx, op.fid) {
            Ok(node) => found.push(node),
            Err(Stop::Wait) => waits = true,
            Err(stop) => return Err(stop),
        }
    }
    if waits {
        return Err(Stop::Wait);
    }
    let mut results = Vec::with_capacity(changes.len());
    for (index, (node, change)) in found.iter().zip(&changes).enumerate() {
        results.push(match node {
            _ if failed >> index & 1 != 0 => BatchResult { status: -Errno::EIO.raw(), ..BatchResult::default() },
            Some(node) => result(cx, &node.inode, change.want.as_ref()),
            None => BatchResult::default(),
        });
    }
    // The first execution has already used the credits of these changes.
    let credits = mdt.grant_credits(cx, cx.export(), 0);
    Ok(Reply::new(&BatchRep { results, credits }))
}
