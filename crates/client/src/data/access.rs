//! Before data is touched: where it lies, the locks that cover it, and what is needed to know its size.

use core::ops::Range;
use proto::msg::{EnqueueReq, Extent, GetattrReq, LockMode, Lvb, ObjGetattrReq, ObjectStateRep, Policy, bits};
use proto::{Bytes, Errno, Opcode};

use super::state::{ALL, HOME, Key, confirmed, edit, ensure, file, file_mut, node_key};
use super::{layout, step, steps};
use crate::cx::{Cx, Run, Step, Stop};
use crate::imports::Dest;
use crate::op::{Body, Memo, OpId};

/// Locks on objects are asked for in whole pages, so that neighbours in one page do not ask twice.
const PAGE: u64 = 4096;

/// Makes sure that the layout is known.
pub(super) fn load(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = crate::ops::fid_of(ino)?;
    if cx.w.nodes.get(ino).is_none_or(|node| node.attr.is_none()) {
        confirm(cx, ino)?;
    }
    ensure(cx.w, fid);
    Ok(())
}

/// Fetches the attributes from the metadata target, so that layout (and size of a resident file) are those of a moment
/// after the locks that are held came.
pub(super) fn confirm(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    confirm_at(cx, steps::CONFIRM, ino)?;
    cx.forget(steps::CONFIRM);
    Ok(())
}

/// The same as a step of its own, whose answer is kept.
pub(super) fn confirm_at(cx: &mut Cx<'_>, at: Step, ino: u64) -> Run<()> {
    let fid = crate::ops::fid_of(ino)?;
    let dest = cx.w.mdt_of(fid);
    let cred = cx.cred().clone();
    let rep = cx.rpc_object(at, dest, Opcode::MdsGetattr, |_, _| GetattrReq { fid, want: None, cred: Some(cred) })?;
    let attr = rep.attr.as_ref().ok_or(Errno::ESTALE)?;
    ensure(cx.w, fid);
    confirmed(cx.w, ino, attr);
    Ok(())
}

/// One lock: pinned already, cached, being given back (a call of the kernel that came while its pages are being
/// dropped must not wait for them), asked for by another operation, or new.
fn lock_one(cx: &mut Cx<'_>, at: Step, dest: Dest, ino: u64, key: Key, mode: LockMode, range: &Range<u64>) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let guest = now.guests_welcome;
    let object = now.object(key).ok_or(Errno::EIO)?;
    let resource = object.resource;
    let policy = if key == HOME {
        Policy::Bits(bits::DOM)
    } else {
        let end = if range.end == u64::MAX { u64::MAX } else { range.end.div_ceil(PAGE) * PAGE - 1 };
        Policy::Extent(Extent { start: range.start / PAGE * PAGE, end })
    };
    let op = cx.op.id;
    if cx.op.memo(at).is_none() && cx.cached_lock(at, dest, resource, mode, policy).is_none() {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let does = |(owner, asked, part): &(OpId, LockMode, Range<u64>)| {
            let wide = part.start <= range.start && range.end <= part.end;
            *owner != op && wide && dlm::mode::covers(*asked, mode)
        };
        let asked = object.asked.iter().any(does);
        if guest
            && let Some(target) = cx.w.imports.get_mut(dest)
            && let Some(cookie) = target.locks.find_for_inflight(&resource, mode, &policy)
            && target.locks.hold(cookie)
        {
            cx.op.set_memo(at, Memo::Lock { dest, cookie });
        } else if asked {
            return Err(cx.wait(node_key(ino)));
        } else {
            edit(cx.w, ino, key, |object| object.asked.push((op, mode, range.clone())));
            cx.w.data.mark_op(op, ino);
        }
    }
    let result = cx.lock(at, dest, resource, mode, policy);
    if result == Err(Stop::Wait) {
        return Err(Stop::Wait);
    }
    let waited = edit(cx.w, ino, key, |object| {
        let before = object.asked.len();
        object.asked.retain(|(owner, ..)| *owner != op);
        before != object.asked.len()
    });
    if waited == Some(true) {
        cx.w.wake(node_key(ino));
    }
    let held = result?;
    adopt(cx, ino, dest, key, held.cookie);
    Ok(())
}

/// A pinned lock covers its object again: it came when the file was another's to know (its layout has changed since), or
/// was called back and forgotten while it was pinned.
pub(super) fn adopt(cx: &mut Cx<'_>, ino: u64, dest: Dest, key: Key, cookie: u64) {
    let known = file(cx.w, ino).and_then(|f| f.object(key));
    let known = known.is_some_and(|o| o.locks.iter().any(|lock| lock.cookie == cookie));
    if !known && let Some(lock) = cx.w.imports.get(dest).and_then(|target| target.locks.get(cookie)) {
        super::state::lock_granted(cx.w, &lock, None);
    }
}

/// Locks on the file range, pinned for the operation, and sizes as [`super::state`] wants them. Gives where the data
/// lies. With an open end, the locks reach the end of every object, and the size is exact.
///
/// Locks are taken one after the other in the order of the stripes, so two clients cannot wait for each other.
pub(super) fn lock(cx: &mut Cx<'_>, ino: u64, mode: LockMode, range: &Range<u64>) -> Run<bool> {
    load(cx, ino)?;
    loop {
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if !now.resident() {
            break;
        }
        let dest = now.home.dest;
        lock_one(cx, steps::HOME_LOCK, dest, ino, HOME, mode, &ALL)?;
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if now.resident() && now.home.knows_end() {
            return Ok(true);
        }
        confirm(cx, ino)?;
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if now.resident() && !now.home.knows_end() {
            // The lock went with an eviction.
            return Err(Errno::EIO.into());
        }
    }
    cx.unlock(steps::HOME_LOCK);
    loop {
        for key in file(cx.w, ino).map(|f| f.keys()).unwrap_or_default() {
            let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
            let part = now.object_range(key, range);
            if part.is_empty() {
                continue;
            }
            let dest = now.objects[key as usize].dest;
            lock_one(cx, step(steps::LOCK, u64::from(key)), dest, ino, key, mode, &part)?;
            refresh(cx, ino, key)?;
        }
        if layout::holds(cx, ino)? {
            return Ok(false);
        }
    }
}

/// Asks the target for the size of an object that became doubtful.
pub(super) fn refresh(cx: &mut Cx<'_>, ino: u64, key: Key) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let object = now.object(key).ok_or(Errno::EIO)?;
    if object.size_exact {
        return Ok(());
    }
    let at = step(steps::REFRESH, object.number());
    let (dest, id) = (object.dest, object.id());
    let frame = cx.rpc(at, dest, Opcode::ObjGetattr, || (ObjGetattrReq { object: id }, Bytes::new()))?;
    cx.forget(at);
    let lvb = frame.decode::<ObjectStateRep>().ok().and_then(|rep| rep.lvb).unwrap_or_default();
    edit(cx.w, ino, key, |object| object.set_size(&lvb));
    Ok(())
}

/// What an object looks like now: from here if a lock covers its end, by a glimpse otherwise. `try_lock`: rather get a
/// lock for it, if nobody is in the way. Nothing is awaited: `None` means that a request is on its way.
pub(super) fn glimpse(cx: &mut Cx<'_>, ino: u64, key: Key, try_lock: bool) -> Option<Result<Lvb, Errno>> {
    let object = file(cx.w, ino)?.object(key)?;
    if object.knows_end() {
        return Some(Ok(object.lvb()));
    }
    let (dest, resource, contended) = (object.dest, object.resource, object.contended_until > cx.w.now);
    let number = object.number();
    let try_at = step(steps::TRY_LOCK, number);
    if try_lock && (cx.began(try_at) || !contended) {
        let request = |cookie| EnqueueReq {
            resource,
            mode: LockMode::Pr as i32,
            cookie,
            policy: Some(Policy::Extent(Extent::ALL)),
            no_wait: true,
            ..EnqueueReq::default()
        };
        let answer = cx.start_rpc(try_at, dest, Opcode::LdlmEnqueue, |w, _| (request(w.want(dest)), Bytes::new()));
        match answer.map(|result| result.map(|_| ())) {
            // Granted (and lost again), or under way.
            None if matches!(cx.op.memo(try_at), Some(Memo::Lock { .. })) => {}
            None => return None,
            Some(Err(errno)) if errno != Errno::EAGAIN => return Some(Err(errno)),
            Some(_) => {
                let until = cx.w.now + core::time::Duration::from_secs(2);
                if let Some(object) = file_mut(cx.w, ino).and_then(|f| f.object_mut(key)) {
                    object.contended_until = until;
                }
            }
        }
    }
    let at = step(steps::GLIMPSE, number);
    let request = EnqueueReq {
        resource,
        mode: LockMode::Pr as i32,
        policy: Some(Policy::Extent(Extent::ALL)),
        glimpse: true,
        ..EnqueueReq::default()
    };
    let lvb = match cx.start_rpc(at, dest, Opcode::LdlmEnqueue, |_, _| (request, Bytes::new()))? {
        Err(errno) => return Some(Err(errno)),
        Ok(reply) => match &reply.body {
            Body::Enqueue(rep) => rep.lvb.unwrap_or_default(),
            _ => return Some(Err(Errno::EPROTO)),
        },
    };
    // The answer counts with what was known here when it came: a write that it lacks may have been written back since, and its lock
    // be gone, while other objects' answers are still awaited.
    let seen = step(steps::GLIMPSED, number);
    let floor = file(cx.w, ino)?.object(key)?.size_floor();
    let floor = floor.max(cx.memo(seen).unwrap_or(0));
    cx.set_memo(seen, floor);
    let object = file(cx.w, ino)?.object(key)?;
    let mut merged = object.lvb();
    merged.size = lvb.size.max(floor);
    merged.blocks = merged.blocks.max(lvb.blocks);
    merged.atime_ns = merged.atime_ns.max(lvb.atime_ns);
    if (lvb.ctime_ns, lvb.mtime_ns) > (merged.ctime_ns, merged.mtime_ns) {
        (merged.ctime_ns, merged.mtime_ns) = (lvb.ctime_ns, lvb.mtime_ns);
    }
    Some(Ok(merged))
}

/// What all objects of a striped file look like together: size of the file, space, newest times.
pub(super) fn merged(cx: &mut Cx<'_>, ino: u64, try_lock: bool) -> Run<Lvb> {
    let keys = file(cx.w, ino).map(|f| f.keys()).unwrap_or_default();
    let mut all = Lvb::default();
    let mut waiting = false;
    for key in keys {
        match glimpse(cx, ino, key, try_lock) {
            None => waiting = true,
            Some(Err(errno)) => return Err(errno.into()),
            Some(Ok(lvb)) => {
                let size = file(cx.w, ino).map_or(0, |f| f.file_size(key, lvb.size));
                all = Lvb {
                    size: all.size.max(size),
                    blocks: all.blocks + lvb.blocks,
                    atime_ns: all.atime_ns.max(lvb.atime_ns),
                    ..if (lvb.ctime_ns, lvb.mtime_ns) > (all.ctime_ns, all.mtime_ns) { lvb } else { all }
                };
            }
        }
    }
    if waiting { Err(Stop::Wait) } else { Ok(all) }
}

/// The size of the file. Locks on a part of it may be held.
pub(super) fn size(cx: &mut Cx<'_>, ino: u64) -> Run<u64> {
    match file(cx.w, ino).and_then(|f| f.known_size()) {
        Some(size) => Ok(size),
        None => Ok(merged(cx, ino, false)?.size),
    }
}

/// Waits while another operation changes the data in a way that nothing may overlap.
pub(super) fn wait_turn(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    match file(cx.w, ino).and_then(|f| f.exclusive) {
        Some(owner) if owner != cx.op.id => Err(cx.wait(node_key(ino))),
        _ => Ok(()),
    }
}

/// From here on, until it ends or gives it back, only this operation changes the data of the file, and nobody else fetches bytes: they
/// could be those of before a change that the target has made, or those of after one that nobody here knows of yet.
pub(super) fn take_turn(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    wait_turn(cx, ino)?;
    let op = cx.op.id;
    let Some(file) = file_mut(cx.w, ino) else { return Ok(()) };
    file.exclusive = Some(op);
    let fetches = |key| file.object(key).is_some_and(|object| object.fetches.iter().any(|fetch| fetch.owner != op));
    let fetching = file.keys().into_iter().any(fetches);
    cx.w.data.mark_op(op, ino);
    if fetching { Err(cx.wait(node_key(ino))) } else { Ok(()) }
}

/// See [`take_turn`].
pub(super) fn end_turn(cx: &mut Cx<'_>, ino: u64) {
    let op = cx.op.id;
    if let Some(file) = file_mut(cx.w, ino)
        && file.exclusive == Some(op)
    {
        file.exclusive = None;
        cx.w.wake(node_key(ino));
    }
}
