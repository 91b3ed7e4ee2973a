//! Leave: a resident file grows, and its data moves from the metadata target to its objects.
//!
//! ```text
//! EX lock on DOM and LAYOUT        nobody else reads, writes or caches the file or its layout
//! attributes                       it is still resident
//! nothing of it is in flight       and nothing is started until the end
//! PW locks on all objects          so the kernel's pages stay covered, and leftovers of a failed attempt show
//! objects emptied, data written    durable before each answer
//! Setlayout Leave                  the metadata target drops its copy in the same group as the new layout
//! ```
//!
//! If another client wants one of the locks meanwhile, it usually waits until the move has ended. But if an object
//! target is unreachable, or the move itself has waited for some seconds, the move releases its locks, waits for the
//! requests in flight, and starts again. Otherwise the servers would evict this client because a target is unreachable,
//! or because some other client does not release a lock.
//!
//! A crash before the last step leaves the file resident and some bytes in objects that nobody reads; the next attempt
//! empties them.

use core::time::Duration;
use proto::msg::{
    Layout, LockMode, Lvb, ObjSyncReq, Policy, PunchKind, PunchReq, Reint, SetlayoutKind, SetlayoutOp, WriteReq, bits,
};
use proto::{Bytes, Errno, Opcode};
use stdx::Instant;

use super::read;
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::data::state::{ALL, HOME, Key};
use crate::cache::data::striping::Striping;
use crate::coherence::cx::{Answers, Cx, Run, Stop};
use crate::coherence::data::leaving::is_reachable;
use crate::coherence::data::state::{edit, ensure, file, file_mut, node_key, take_layout};
use crate::coherence::data::{Task, access, flush, layout, recall};
use crate::coherence::metadata_write_back;
use crate::coherence::op::{Memo, OpState};
use crate::coherence::request::Request;
use crate::coherence::request::is_owed;
use crate::coherence::world::World;

/// How long other clients wait for the end of a move while all object targets are reachable.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the next check whether the metadata target knows object targets, and before a move starts again.
const AGAIN: Duration = Duration::from_millis(100);

/// A program writes to a resident file whose metadata target grants no more space: moves the file if there is a target
/// to move to. True: it has moved. False: it stays.
pub(crate) fn leave_if_full(cx: &mut Cx<'_>, ino: u64, dest: Dest) -> Run<bool> {
    let promises = cx.w.imports.get(dest).is_some_and(|target| target.has(proto::connect::features::GRANT));
    let tried = cx.memo(Step::Leave).is_some() && file(cx.w, ino).is_some_and(|f| f.leave_error.is_some());
    if !promises || tried || cx.w.unmounting || cx.w.imports.osts().is_empty() {
        return Ok(false);
    }
    stdx::mark!("leave_for_room");
    cx.unlock(Step::HomeLock);
    match leave(cx, ino) {
        Ok(()) => Ok(true),
        Err(Stop::Errno(_)) => Ok(false),
        Err(Stop::Wait) => Err(Stop::Wait),
    }
}

/// Moves a resident file's data to its objects. The operation must not hold the file's data lock.
pub(crate) fn leave(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let asked = cx.memo(Step::Leave).is_some();
    cx.set_memo(Step::Leave, 1);
    let fid = crate::coherence::fids::fid_of(ino)?;
    let file = ensure(cx.w, fid);
    if !file.resident() {
        return Ok(());
    }
    if file.leave_requested {
        return Err(cx.wait(node_key(ino)));
    }
    if let (true, Some(errno)) = (asked, file.leave_error) {
        return Err(errno.into());
    }
    file.leave_requested = true;
    file.leave_error = None;
    cx.spawn(crate::coherence::op::Task::Data(Task::Leave { ino }));
    Err(cx.wait(node_key(ino)))
}

/// An operation that has requested a move waits for its end without a lock, which would only block others.
pub(crate) fn wait_end(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let moves = cx.memo(Step::Leave).is_some() && file(cx.w, ino).is_some_and(|file| file.leave_requested);
    if moves { Err(cx.wait(node_key(ino))) } else { Ok(()) }
}

/// [`Task::Leave`].
pub(crate) fn run(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let result = attempt(cx, ino);
    if let Err(Stop::Wait) = result {
        return result;
    }
    if let Some(file) = file_mut(cx.w, ino) {
        file.leave_requested = false;
        file.leaving = false;
        file.leave_error = match result {
            Err(Stop::Errno(errno)) => Some(errno),
            _ => None,
        };
    }
    access::end_turn(cx, ino);
    if let (Err(Stop::Errno(errno)), Some(now)) = (&result, file(cx.w, ino))
        && now.home.unwritable.is_some()
    {
        // It was to leave because there was no space, and there is none elsewhere either.
        let dest = now.home.dest;
        flush::cannot_write(cx.w, ino, dest, *errno);
    }
    cx.w.wake(node_key(ino));
    Ok(())
}

fn attempt(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    if let Some(until) = cx.memo(Step::LeaveAway) {
        restart(cx)?;
        cx.set_memo(Step::LeaveAgain, until);
    }
    pause(cx)?;
    access::load(cx, ino)?;
    metadata_write_back::settled(cx, ino)?;
    let mdt = cx.w.mdt_of(fid);
    let policy = Policy::Bits(bits::DOM | bits::LAYOUT);
    let held = cx.lock(Step::LeaveLock, mdt, proto::msg::Resource::inode(fid), LockMode::Ex, policy)?;
    if !cx.w.locks.get(mdt).is_some_and(|locks| locks.is_held(held.cookie)) {
        // The lock was lost meanwhile: it is no longer known where the data is.
        return Err(Errno::EIO.into());
    }
    match under_lock(cx, ino, mdt, held.cookie) {
        Err(Stop::Wait) if cx.began(Step::LeaveLock) && !cx.began(Step::LeaveSet) => Err(wait_or_yield(cx, ino)),
        ended => ended,
    }
}

/// The move, under the metadata target's lock.
fn under_lock(cx: &mut Cx<'_>, ino: u64, mdt: Dest, cookie: u64) -> Run<()> {
    if !cx.began(Step::LeaveSet) {
        access::adopt(cx, ino, mdt, HOME, cookie);
        let doubtful = file(cx.w, ino).is_some_and(|f| f.resident() && !f.home.knows_end());
        if doubtful || cx.memo(Step::LeaveChecked).is_none() {
            // Only now is it certain whether the file is still resident.
            access::confirm_at(cx, Step::Confirm, ino)?;
            cx.set_memo(Step::LeaveChecked, 1);
        }
        cx.forget(Step::Confirm);
    }
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let Some(layout) = now.layout.clone() else { return Err(Errno::ENOSPC.into()) };
    if cx.began(Step::LeaveSet) {
        let lvb = now.home.lvb();
        return switch(cx, ino, &layout, &lvb);
    }
    if !layout.resident {
        return Ok(());
    }
    if cx.w.pools.get(&layout.pool).is_some_and(Vec::is_empty) && layout.osts.is_empty() {
        // Its pool has no target: an administrator must add one first.
        return Err(Errno::ENOSPC.into());
    }
    if layout.osts.is_empty() {
        return Err(wait_for_targets(cx, mdt, cookie));
    }
    if !now.home.knows_end() {
        return Err(Errno::EIO.into());
    }
    access::take_turn(cx, ino)?;
    if let Some(file) = file_mut(cx.w, ino) {
        file.leaving = true;
    }
    if file(cx.w, ino).is_some_and(|f| f.home.pages.writing_in(&ALL)) {
        return Err(Stop::Wait);
    }
    let lvb = file(cx.w, ino).map(|f| f.home.lvb()).unwrap_or_default();
    if !cx.began(Step::LeaveCopied) {
        let content = read::whole(cx, ino, lvb.size)?;
        copy(cx, ino, &layout, &content, &lvb)?;
        copied(cx.w, ino, &layout, &lvb);
        cx.set_memo(Step::LeaveCopied, 1);
    }
    switch(cx, ino, &layout, &lvb)
}

/// The move waits. If one of its locks was called back, perhaps at the moment when it was granted, the move yields in
/// time. It also yields if another lock on the data was called back, whose callback waits for the move: that lock may
/// cover names too, and be wanted for them.
fn wait_or_yield(cx: &mut Cx<'_>, ino: u64) -> Stop {
    if is_wanted(cx, ino) {
        let since = Instant(cx.memo(Step::LeaveWanted).unwrap_or(cx.now().0));
        cx.set_memo(Step::LeaveWanted, since.0);
        if !is_reachable(cx.w, ino) || cx.now() >= since + PATIENCE {
            return yield_locks(cx, ino);
        }
    }
    // Checked again soon: no event reports that a lock on an object is wanted, and a target may become unreachable.
    cx.w.set_timer(cx.now() + AGAIN);
    let _ = cx.wait(WaitKey::Timer);
    cx.wait(node_key(ino))
}

/// Whether another client wants a lock that the move holds, or one on the data whose callback waits for it.
fn is_wanted(cx: &Cx<'_>, ino: u64) -> bool {
    let locks = &cx.w.locks;
    let pinned = |memo: &Memo| matches!(memo, Memo::Lock { dest, cookie } if locks.is_wanted(*dest, *cookie));
    let home = file(cx.w, ino).map(|file| &file.home);
    home.is_some_and(|home| home.locks.iter().any(|lock| locks.is_wanted(home.dest, lock.cookie)))
        || cx.op.steps().iter().any(|(_, memo)| pinned(memo))
}

/// Lets other clients have the file for a while. The move starts again when its requests are answered: until then
/// nothing else may be written there.
fn yield_locks(cx: &mut Cx<'_>, ino: u64) -> Stop {
    stdx::mark!("leave_makes_way");
    let until = cx.now() + AGAIN;
    cx.set_memo(Step::LeaveAway, until.0);
    cx.unlock(Step::LeaveLock);
    unlock_idle(cx);
    access::end_turn(cx, ino);
    if let Some(file) = file_mut(cx.w, ino) {
        file.leaving = false;
    }
    let stop = cx.wait(node_key(ino));
    cx.w.wake(node_key(ino));
    stop
}

/// Releases the locks at targets to which no request of the move is in flight.
fn unlock_idle(cx: &mut Cx<'_>) {
    crate::coherence::locks::unlock_at(cx, |cx, dest| !is_owed(cx.w, dest, cx.op.id));
}

/// Forgets an attempt that yielded, once all its requests are answered.
fn restart(cx: &mut Cx<'_>) -> Run<()> {
    if cx.op.steps().iter().any(|(_, memo)| matches!(memo, Memo::Sent(_))) {
        unlock_idle(cx);
        return Err(Stop::Wait);
    }
    crate::coherence::locks::unlock_all(cx);
    recall::op_ended(cx.w, cx.op.id);
    let of_attempt = |memo: &Memo| match memo {
        Memo::Reply(_) | Memo::Failed(_) | Memo::Number(_) => true,
        Memo::Invalidating(pending) => pending.acknowledged.is_some(),
        _ => false,
    };
    let done: Vec<Step> = cx.op.steps().iter().filter(|(_, memo)| of_attempt(memo)).map(|(step, _)| *step).collect();
    done.into_iter().for_each(|step| cx.forget(step));
    Ok(())
}

/// The file has no objects to move to: it was created when its metadata target did not know any object target. If this
/// client knows one, the metadata target will learn of it too, from the same configuration; a new lock then makes it
/// choose objects. In a file system without object targets there is no more space.
fn wait_for_targets(cx: &mut Cx<'_>, mdt: Dest, cookie: u64) -> Stop {
    if cx.w.imports.osts().is_empty() || cx.w.unmounting {
        return Errno::ENOSPC.into();
    }
    stdx::mark!("leave_waits_for_targets");
    cx.unlock(Step::LeaveLock);
    if let Some(locks) = cx.w.locks.get_mut(mdt) {
        locks.give_back(cookie);
    }
    crate::coherence::locks::pump(cx.w, mdt);
    cx.forget(Step::LeaveChecked);
    let until = cx.now() + AGAIN;
    cx.set_memo(Step::LeaveAgain, until.0);
    cx.w.set_timer(until);
    cx.wait(WaitKey::Timer)
}

/// Waits until the next check.
fn pause(cx: &mut Cx<'_>) -> Run<()> {
    let Some(until) = cx.memo(Step::LeaveAgain) else { return Ok(()) };
    if cx.now() < Instant(until) {
        cx.w.set_timer(Instant(until));
        return Err(cx.wait(WaitKey::Timer));
    }
    cx.forget(Step::LeaveAgain);
    Ok(())
}

/// Writes the data to the objects, durably.
fn copy(cx: &mut Cx<'_>, ino: u64, layout: &Layout, content: &Bytes, lvb: &Lvb) -> Run<()> {
    let count = layout.osts.len() as u32;
    for key in 0..count {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let (dest, resource) = (object.dest, object.resource);
        let policy = Policy::Extent(proto::msg::Extent::ALL);
        cx.lock(Step::Lock(key), dest, resource, LockMode::Pw, policy)?;
    }
    // Once only: when a lock is lost with an eviction, data written since must survive, and answered writes are not
    // repeated.
    if !cx.began(Step::LeaveWrite(0)) {
        for key in 0..count {
            access::refresh(cx, ino, key)?;
        }
        empty(cx, ino, count, lvb)?;
        // If this attempt fails, the size of the objects is what their targets report.
        for key in 0..count {
            edit(cx.w, ino, key, |object| object.size_exact = false);
        }
    }
    let striping = Striping::new(layout.stripe_size, layout.osts.len());
    let (uid, gid) = crate::coherence::data::owner(cx.w, ino);
    let mut answers = Answers::default();
    for (piece, number) in striping.pieces(&(0..content.len() as u64)).zip(0..) {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(piece.stripe)) else { return Err(Errno::EIO.into()) };
        let dest = object.dest;
        let from = piece.file_offset as usize;
        let bulk = content.slice(from..from + piece.length as usize);
        let request = WriteReq {
            object: object.id(),
            offset: piece.object_offset,
            lock: object.covering(LockMode::Pw, &ALL).map_or(0, |lock| lock.handle),
            lvb: Some(Lvb { size: piece.object_offset + piece.length, ..*lvb }),
            uid,
            gid,
            grant_used: 0,
            sync: true,
            want_grant: 0,
            job: crate::coherence::data::job(cx, ino),
        };
        let request = |_: &mut World, _: &mut OpState| Request::new(&request).with_bulk(bulk);
        answers.take(cx.start_rpc(Step::LeaveWrite(number), dest, Opcode::ObjWrite, request));
    }
    answers.all()
}

/// Empties objects that contain data of a failed attempt, durably.
fn empty(cx: &mut Cx<'_>, ino: u64, count: u32, lvb: &Lvb) -> Run<()> {
    for key in 0..count {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let at = Step::LeaveEmpty(key);
        let (dest, id) = (object.dest, object.id());
        if object.size == 0 && object.blocks == 0 && !cx.began(at) {
            continue;
        }
        let lock = object.covering(LockMode::Pw, &ALL).map_or(0, |lock| lock.handle);
        let (uid, gid) = crate::coherence::data::owner(cx.w, ino);
        let job = crate::coherence::data::job(cx, ino);
        cx.rpc(at, dest, Opcode::ObjPunch, |_, _| {
            let request = PunchReq {
                object: id,
                kind: PunchKind::Truncate as i32,
                start: 0,
                length: 0,
                keep_size: false,
                lvb: Some(*lvb),
                lock,
                uid,
                gid,
                job,
            };
            Request::new(&request)
        })?;
        let at = Step::LeaveSync(key);
        let job = crate::coherence::data::job(cx, ino);
        cx.rpc(at, dest, Opcode::ObjSync, |_, _| Request::new(&ObjSyncReq { objects: vec![id], job }))?;
        edit(cx.w, ino, key, |object| {
            object.size = 0;
            object.blocks = 0;
        });
    }
    Ok(())
}

/// Records the contents of the objects. The new layout may be cached before its change is answered: any attributes may
/// bring it.
fn copied(w: &mut World, ino: u64, layout: &Layout, lvb: &Lvb) {
    let striping = Striping::new(layout.stripe_size, layout.osts.len());
    for key in 0..layout.osts.len() as Key {
        edit(w, ino, key, |object| {
            object.size = striping.object_cut(key, lvb.size);
            object.size_exact = !object.locks.is_empty();
            object.set_times(&Lvb { blocks: object.size.div_ceil(512), ..*lvb });
        });
    }
}

/// Changes the layout at the metadata target, and switches to the objects.
fn switch(cx: &mut Cx<'_>, ino: u64, layout: &Layout, lvb: &Lvb) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    let mdt = cx.w.mdt_of(fid);
    let left = Layout { resident: false, ..layout.clone() };
    cx.changing(Step::Changing(0), ino);
    let op = SetlayoutOp {
        fid,
        kind: SetlayoutKind::Leave as i32,
        layout: Some(left.clone()),
        lvb: Some(*lvb),
        dir_default: None,
    };
    let rep = cx.rpc_object(Step::LeaveSet, mdt, Opcode::MdsReint, |_, state| {
        Request::new(&state.change(None, Reint::Setlayout(op)))
    })?;
    let new = rep.attr.as_ref().and_then(|attr| attr.layout.clone()).filter(|new| !new.resident).unwrap_or(left);
    take_layout(cx.w, ino, &new);
    edit(cx.w, ino, HOME, |home| home.size_exact = false);
    layout::changed(cx, Step::LeaveLock);
    Ok(())
}
