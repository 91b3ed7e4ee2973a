//! A resident file grows: its data moves from the metadata target to its objects.
//!
//! ```text
//! EX lock on DOM and LAYOUT        nobody else reads, writes or caches the file or its layout
//! attributes                       it is still resident
//! nothing of it is in flight       and nothing is begun until the end
//! PW locks on all objects          so the kernel's pages stay covered, and leftovers of a failed attempt show
//! objects emptied, data written    durable before each answer
//! Setlayout Leave                  the metadata target drops its copy in the same group as the new layout
//! ```
//!
//! If another client wants one of the locks meanwhile, it usually waits until the move has ended. But if an object target is away, or the
//! move itself has waited for some seconds, the move gives its locks back, waits for the requests in flight, and starts again. Otherwise
//! the servers would evict this client because a target is away, or because some other client does not release a lock.
//!
//! A crash before the last step leaves the file resident and some bytes in objects that nobody looks at; the next attempt
//! empties them.

use core::time::Duration;
use proto::msg::{
    Layout, LockMode, Lvb, ObjSyncReq, Policy, PunchKind, PunchReq, Reint, ReintReq, SetlayoutKind, SetlayoutOp,
    WriteReq, bits,
};
use proto::{Bytes, Errno, Opcode};
use stdx::Instant;

use super::state::{ALL, HOME, Key, edit, ensure, file, file_mut, node_key, take_layout};
use super::striping::Striping;
use super::{Task, access, flush, layout, read, recall, step, steps};
use crate::cx::{Cx, Run, Step, Stop};
use crate::imports::Dest;
use crate::metadata_write_back;
use crate::op::{Memo, WaitKey};
use crate::world::World;

/// How long others wait for the end of a move when all object targets seem to be there.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before it is looked again whether the metadata target knows object targets, and before a move begins again.
const AGAIN: Duration = Duration::from_millis(100);

/// Largest resident file, in bytes. One without objects to go to stays and grows no further.
pub(super) fn limit(cx: &Cx<'_>, ino: u64) -> u64 {
    let dest = file(cx.w, ino).map(|f| f.home.dest);
    match dest.and_then(|dest| cx.w.imports.get(dest)).map_or(0, |target| target.dom_size) {
        0 => u64::from(proto::connect::DOM_SIZE_DEFAULT),
        size => u64::from(size),
    }
}

/// Begins to move a resident file for whose data its metadata target has no room. False: it can go nowhere.
pub(super) fn start(w: &mut World, ino: u64) -> bool {
    let nowhere = w.unmounting || w.imports.osts().is_empty();
    let Some(file) = file_mut(w, ino).filter(|file| file.resident() && !nowhere) else { return false };
    if !file.leave_asked {
        stdx::mark!("leave_for_room");
        file.leave_asked = true;
        file.leave_error = None;
        w.spawn(crate::op::Task::Data(Task::Leave { ino }));
    }
    true
}

/// A program writes to a resident file whose metadata target promises no more room: the file moves, if there is anywhere to go
/// to. True: it has moved. False: it stays.
pub(super) fn for_room(cx: &mut Cx<'_>, ino: u64, dest: Dest) -> Run<bool> {
    let promises = cx.w.imports.get(dest).is_some_and(|target| target.has(proto::connect::features::GRANT));
    let tried = cx.memo(steps::LEAVE).is_some() && file(cx.w, ino).is_some_and(|f| f.leave_error.is_some());
    if !promises || tried || cx.w.unmounting || cx.w.imports.osts().is_empty() {
        return Ok(false);
    }
    stdx::mark!("leave_for_room");
    cx.unlock(steps::HOME_LOCK);
    match leave(cx, ino) {
        Ok(()) => Ok(true),
        Err(Stop::Errno(_)) => Ok(false),
        Err(Stop::Wait) => Err(Stop::Wait),
    }
}

/// See [`super::leave()`]. The operation must not hold the file's data lock.
pub(super) fn leave(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let asked = cx.memo(steps::LEAVE).is_some();
    cx.set_memo(steps::LEAVE, 1);
    let fid = crate::ops::fid_of(ino)?;
    let file = ensure(cx.w, fid);
    if !file.resident() {
        return Ok(());
    }
    if file.leave_asked {
        return Err(cx.wait(node_key(ino)));
    }
    if let (true, Some(errno)) = (asked, file.leave_error) {
        return Err(errno.into());
    }
    file.leave_asked = true;
    file.leave_error = None;
    cx.spawn(crate::op::Task::Data(Task::Leave { ino }));
    Err(cx.wait(node_key(ino)))
}

/// An operation that has asked for a move waits for its end, without a lock: with one it would only stand in the way of others.
pub(super) fn wait_end(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let moves = cx.memo(steps::LEAVE).is_some() && file(cx.w, ino).is_some_and(|file| file.leave_asked);
    if moves { Err(cx.wait(node_key(ino))) } else { Ok(()) }
}

/// [`Task::Leave`].
pub(super) fn run(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let result = go(cx, ino);
    if let Err(Stop::Wait) = result {
        return result;
    }
    if let Some(file) = file_mut(cx.w, ino) {
        file.leave_asked = false;
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
        // It left because there was no room, and there is none elsewhere either.
        let dest = now.home.dest;
        flush::cannot_write(cx.w, ino, dest, *errno);
    }
    cx.w.wake(node_key(ino));
    Ok(())
}

fn go(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = crate::ops::fid_of(ino)?;
    if let Some(until) = cx.memo(steps::LEAVE_AWAY) {
        anew(cx)?;
        cx.set_memo(steps::LEAVE_AGAIN, until);
    }
    pause(cx)?;
    access::load(cx, ino)?;
    metadata_write_back::settled(cx, ino)?;
    let mdt = cx.w.mdt_of(fid);
    let policy = Policy::Bits(bits::DOM | bits::LAYOUT);
    let held = cx.lock(steps::LEAVE_LOCK, mdt, proto::msg::Resource::inode(fid), LockMode::Ex, policy)?;
    if !cx.w.imports.get(mdt).is_some_and(|target| target.locks.is_held(held.cookie)) {
        // It was lost meanwhile: where the bytes are is not known any more.
        return Err(Errno::EIO.into());
    }
    match under_lock(cx, ino, mdt, held.cookie) {
        Err(Stop::Wait) if cx.began(steps::LEAVE_LOCK) && !cx.began(steps::LEAVE_SET) => Err(lets_others(cx, ino)),
        ended => ended,
    }
}

/// The move, with the metadata target's lock.
fn under_lock(cx: &mut Cx<'_>, ino: u64, mdt: Dest, cookie: u64) -> Run<()> {
    if !cx.began(steps::LEAVE_SET) {
        access::adopt(cx, ino, mdt, HOME, cookie);
        let doubtful = file(cx.w, ino).is_some_and(|f| f.resident() && !f.home.knows_end());
        if doubtful || cx.memo(steps::LEAVE_CHECKED).is_none() {
            // Whether it is still resident is known for sure only now.
            access::confirm_at(cx, steps::CONFIRM, ino)?;
            cx.set_memo(steps::LEAVE_CHECKED, 1);
        }
        cx.forget(steps::CONFIRM);
    }
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let Some(layout) = now.layout.clone() else { return Err(Errno::ENOSPC.into()) };
    if cx.began(steps::LEAVE_SET) {
        let lvb = now.home.lvb();
        return switch(cx, ino, &layout, &lvb);
    }
    if !layout.resident {
        return Ok(());
    }
    if cx.w.pools.get(&layout.pool).is_some_and(Vec::is_empty) && layout.osts.is_empty() {
        // Its pool has no target: somebody must add one first.
        return Err(Errno::ENOSPC.into());
    }
    if layout.osts.is_empty() {
        return Err(not_yet(cx, mdt, cookie));
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
    if !cx.began(steps::LEAVE_COPIED) {
        let content = read::whole(cx, ino, lvb.size)?;
        copy(cx, ino, &layout, &content, &lvb)?;
        copied(cx.w, ino, &layout, &lvb);
        cx.set_memo(steps::LEAVE_COPIED, 1);
    }
    switch(cx, ino, &layout, &lvb)
}

/// The move waits. If one of its locks was called back, perhaps in the moment in which it was granted, it makes way in time. So it does if
/// another lock on the data was, which waits for the move: it may cover names as well, and be wanted for these.
fn lets_others(cx: &mut Cx<'_>, ino: u64) -> Stop {
    if is_wanted(cx, ino) {
        let since = Instant(cx.memo(steps::LEAVE_WANTED).unwrap_or(cx.now().0));
        cx.set_memo(steps::LEAVE_WANTED, since.0);
        if !is_reachable(cx.w, ino) || cx.now() >= since + PATIENCE {
            return make_way(cx, ino);
        }
    }
    // It is looked again soon: nobody says that the lock on an object is wanted, and a target may go away.
    cx.w.set_timer(cx.now() + AGAIN);
    let _ = cx.wait(WaitKey::Timer);
    cx.wait(node_key(ino))
}

/// Whether somebody wants a lock that the move holds, or one on the data that waits for it.
fn is_wanted(cx: &Cx<'_>, ino: u64) -> bool {
    let is_wanted =
        |dest: Dest, cookie: u64| cx.w.imports.get(dest).is_some_and(|target| target.locks.is_wanted(cookie));
    let pinned = |memo: &Memo| matches!(memo, Memo::Lock { dest, cookie } if is_wanted(*dest, *cookie));
    let home = file(cx.w, ino).map(|file| &file.home);
    home.is_some_and(|home| home.locks.iter().any(|lock| is_wanted(home.dest, lock.cookie)))
        || cx.op.steps().iter().any(|(_, memo)| pinned(memo))
}

/// An end of this attempt to give the lock of a file that leaves back: the move is told that somebody wants it.
pub(super) fn wanted(cx: &mut Cx<'_>, ino: u64) -> Stop {
    if cx.memo(steps::LEAVE_WANTED).is_none() {
        cx.set_memo(steps::LEAVE_WANTED, 1);
        cx.w.wake(node_key(ino));
    }
    cx.wait(node_key(ino))
}

/// Whether requests pass to all targets that have objects of the file.
pub(super) fn is_reachable(w: &World, ino: u64) -> bool {
    let is_full = |dest| w.imports.get(dest).is_some_and(|target| target.is_full());
    file(w, ino).is_some_and(|file| file.objects.iter().all(|object| is_full(object.dest)))
}

/// Lets others have the file for a while, and begins again when what was sent is answered: until then nothing else may be written there.
fn make_way(cx: &mut Cx<'_>, ino: u64) -> Stop {
    stdx::mark!("leave_makes_way");
    let until = cx.now() + AGAIN;
    cx.set_memo(steps::LEAVE_AWAY, until.0);
    cx.unlock(steps::LEAVE_LOCK);
    unlock_idle(cx);
    access::end_turn(cx, ino);
    if let Some(file) = file_mut(cx.w, ino) {
        file.leaving = false;
    }
    let stop = cx.wait(node_key(ino));
    cx.w.wake(node_key(ino));
    stop
}

/// The locks at targets to which nothing of the move is on its way go to those who want them.
fn unlock_idle(cx: &mut Cx<'_>) {
    crate::locks::unlock_at(cx, |cx, dest| !cx.w.imports.get(dest).is_some_and(|target| target.owes(cx.op.id)));
}

/// Forgets an attempt that made way, once everything that it sent is answered.
fn anew(cx: &mut Cx<'_>) -> Run<()> {
    if cx.op.steps().iter().any(|(_, memo)| matches!(memo, Memo::Sent(_))) {
        unlock_idle(cx);
        return Err(Stop::Wait);
    }
    crate::locks::unlock_all(cx);
    recall::op_ended(cx.w, cx.op.id);
    let of_attempt = |memo: &Memo| matches!(memo, Memo::Reply(_) | Memo::Failed(_) | Memo::Number(_));
    let done: Vec<Step> = cx.op.steps().iter().filter(|(_, memo)| of_attempt(memo)).map(|(step, _)| *step).collect();
    done.into_iter().for_each(|step| cx.forget(step));
    Ok(())
}

/// The file has no objects to go to: it was made when its metadata target had not heard of any object target. If this client
/// has, the metadata target will hear of them too, from the same place; a new lock then makes it choose some. In a file system
/// without object targets there is no more space.
fn not_yet(cx: &mut Cx<'_>, mdt: Dest, cookie: u64) -> Stop {
    if cx.w.imports.osts().is_empty() || cx.w.unmounting {
        return Errno::ENOSPC.into();
    }
    stdx::mark!("leave_waits_for_targets");
    cx.unlock(steps::LEAVE_LOCK);
    if let Some(target) = cx.w.imports.get_mut(mdt) {
        target.locks.give_back(cookie);
    }
    crate::locks::pump(cx.w, mdt);
    cx.forget(steps::LEAVE_CHECKED);
    let until = cx.now() + AGAIN;
    cx.set_memo(steps::LEAVE_AGAIN, until.0);
    cx.w.set_timer(until);
    cx.wait(WaitKey::Timer)
}

/// The pause between two looks.
fn pause(cx: &mut Cx<'_>) -> Run<()> {
    let Some(until) = cx.memo(steps::LEAVE_AGAIN) else { return Ok(()) };
    if cx.now() < Instant(until) {
        cx.w.set_timer(Instant(until));
        return Err(cx.wait(WaitKey::Timer));
    }
    cx.forget(steps::LEAVE_AGAIN);
    Ok(())
}

/// Brings the bytes to the objects, durable.
fn copy(cx: &mut Cx<'_>, ino: u64, layout: &Layout, content: &Bytes, lvb: &Lvb) -> Run<()> {
    let count = layout.osts.len() as u32;
    for key in 0..count {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let (dest, resource) = (object.dest, object.resource);
        let policy = Policy::Extent(proto::msg::Extent::ALL);
        cx.lock(step(steps::LOCK, u64::from(key)), dest, resource, LockMode::Pw, policy)?;
    }
    // Once only: a lock that is lost with an eviction does not take what was written since, and what was answered is not written again.
    if !cx.began(step(steps::LEAVE_WRITE, 0)) {
        for key in 0..count {
            access::refresh(cx, ino, key)?;
        }
        empty(cx, ino, count, lvb)?;
        // If this attempt does not come to its end, the objects hold what their targets say.
        for key in 0..count {
            edit(cx.w, ino, key, |object| object.size_exact = false);
        }
    }
    let striping = Striping::new(layout.stripe_size, layout.osts.len());
    let (uid, gid) = super::owner(cx.w, ino);
    let (mut waiting, mut failed) = (false, None);
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
            job: super::job(cx, ino),
        };
        match cx.start_rpc(step(steps::LEAVE_WRITE, number), dest, Opcode::ObjWrite, |_, _| (request, bulk)) {
            None => waiting = true,
            Some(Err(errno)) => failed = Some(errno),
            Some(Ok(_)) => {}
        }
    }
    match (waiting, failed) {
        (true, _) => Err(Stop::Wait),
        (_, Some(errno)) => Err(errno.into()),
        _ => Ok(()),
    }
}

/// Empties objects that have something from an attempt that failed, durably.
fn empty(cx: &mut Cx<'_>, ino: u64, count: u32, lvb: &Lvb) -> Run<()> {
    for key in 0..count {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let at = step(steps::LEAVE_EMPTY, u64::from(key));
        let (dest, id) = (object.dest, object.id());
        if object.size == 0 && object.blocks == 0 && !cx.began(at) {
            continue;
        }
        let lock = object.covering(LockMode::Pw, &ALL).map_or(0, |lock| lock.handle);
        let (uid, gid) = super::owner(cx.w, ino);
        let job = super::job(cx, ino);
        cx.rpc(at, dest, Opcode::ObjPunch, || {
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
            (request, Bytes::new())
        })?;
        let at = step(steps::LEAVE_SYNC, u64::from(key));
        let job = super::job(cx, ino);
        cx.rpc(at, dest, Opcode::ObjSync, || (ObjSyncReq { objects: vec![id], job }, Bytes::new()))?;
        edit(cx.w, ino, key, |object| {
            object.size = 0;
            object.blocks = 0;
        });
    }
    Ok(())
}

/// What the objects hold now. The new layout may be known before the answer to its change: any attributes bring it along.
fn copied(w: &mut World, ino: u64, layout: &Layout, lvb: &Lvb) {
    let striping = Striping::new(layout.stripe_size, layout.osts.len());
    for key in 0..layout.osts.len() as Key {
        edit(w, ino, key, |object| {
            object.size = striping.object_cut(key, lvb.size);
            object.size_exact = !object.locks.is_empty();
            object.news(&Lvb { blocks: object.size.div_ceil(512), ..*lvb });
        });
    }
}

/// Tells the metadata target, and takes the objects over.
fn switch(cx: &mut Cx<'_>, ino: u64, layout: &Layout, lvb: &Lvb) -> Run<()> {
    let fid = crate::ops::fid_of(ino)?;
    let mdt = cx.w.mdt_of(fid);
    let (cred, now_ns) = (cx.cred().clone(), cx.wall_ns());
    let left = Layout { resident: false, ..layout.clone() };
    cx.changing(crate::ops::step::CHANGING, ino);
    let op = SetlayoutOp { fid, kind: SetlayoutKind::Leave as i32, layout: Some(left.clone()), lvb: Some(*lvb) };
    let rep = cx.rpc_object(steps::LEAVE_SET, mdt, Opcode::MdsReint, |_, _| ReintReq {
        cred: Some(cred),
        now_ns,
        want: None,
        op: Some(Reint::Setlayout(op)),
    })?;
    let new = rep.attr.as_ref().and_then(|attr| attr.layout.clone()).filter(|new| !new.resident).unwrap_or(left);
    take_layout(cx.w, ino, &new);
    edit(cx.w, ino, HOME, |home| home.size_exact = false);
    layout::changed(cx, steps::LEAVE_LOCK);
    Ok(())
}
