//! A lock goes back: what it covered is written, dropped by the kernel, and dropped here; and glimpses, which ask only
//! what things look like.

use dlm::client::HeldLock;
use proto::Errno;
use proto::msg::{Lvb, Resource};

use super::state::{ALL, HOME, Key, edit, file, file_mut, forget_lock, lock_range, node_key, place_of};
use super::{access, flush, steps};
use crate::cx::{Cx, Run};
use crate::imports::Dest;
use crate::world::World;

/// See [`super::flush_for_lock`].
pub(super) fn flush_for_lock(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    let Some((ino, key)) = place_of(&lock.resource) else { return Ok(()) };
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    let Some(object) = now.object(key) else { return Ok(()) };
    let known = object.locks.iter().any(|held| held.cookie == lock.cookie);
    if !known && cx.memo(steps::RECALL).is_none() {
        return Ok(());
    }
    let idle = key == HOME && !now.resident();
    let range = lock_range(lock);
    if !idle {
        if now.leaving && key == HOME {
            return Err(cx.wait(node_key(ino)));
        }
        let bytes = now.file_range(key, &range);
        let (offset, length) = match (now.kernel_pages, bytes.end) {
            (false, _) => (0, 0),
            (true, u64::MAX) => (bytes.start, u64::MAX),
            (true, end) => (bytes.start, end.saturating_sub(bytes.start)),
        };
        if cx.memo(steps::RECALL).is_none() {
            cx.set_memo(steps::RECALL, 1);
            let op = cx.op.id;
            cx.w.data.mark_op(op, ino);
            if let Some(file) = file_mut(cx.w, ino) {
                file.recalls += 1;
            }
        }
        // Dirty bytes travel while the kernel drops its pages; what that brings back is written after it.
        flush::start(cx.w, ino, key, &range, false);
        cx.invalidate_kernel(steps::INVALIDATE, ino, offset, length)?;
        flush::settle(cx, ino, key, &range)?;
    }
    let held = cx.w.imports.get(dest).is_some_and(|target| target.locks.is_held(lock.cookie));
    if !held {
        forget_lock(cx.w, ino, key, lock);
    }
    end_recall(cx, ino);
    Ok(())
}

fn end_recall(cx: &mut Cx<'_>, ino: u64) {
    if cx.memo(steps::RECALL) == Some(1) {
        cx.set_memo(steps::RECALL, 2);
        if let Some(file) = file_mut(cx.w, ino) {
            file.recalls = file.recalls.saturating_sub(1);
        }
    }
    cx.w.wake(node_key(ino));
}

/// See [`super::glimpse`].
pub(super) fn glimpse(w: &World, resource: &Resource) -> Option<Lvb> {
    let (ino, key) = place_of(resource)?;
    let file = file(w, ino)?;
    if key == HOME && !file.resident() {
        return None;
    }
    let object = file.object(key)?;
    if object.locks.is_empty() || !object.size_exact {
        return None;
    }
    Some(Lvb { size: object.size_floor(), ..object.lvb() })
}

/// See [`super::lock_lost`].
pub(super) fn lock_lost(w: &mut World, lock: &HeldLock) {
    let Some((ino, key)) = place_of(&lock.resource) else { return };
    let range = lock_range(lock);
    let Some(now) = file(w, ino) else { return };
    let Some(object) = now.object(key) else { return };
    let idle = key == HOME && !now.resident();
    if !object.locks.iter().any(|held| held.cookie == lock.cookie) {
        return;
    }
    let lost = !idle && object.pages.unwritten_in(&range);
    let bytes = now.file_range(key, &range);
    let kernel = now.kernel_pages && !idle;
    forget_lock(w, ino, key, lock);
    if let Some(file) = file_mut(w, ino)
        && lost
    {
        file.fail(Errno::EIO);
    }
    if w.nodes.get(ino).is_some_and(|node| node.lookups > 0) {
        let length = match (kernel, bytes.end) {
            (false, _) => 0,
            (true, u64::MAX) => u64::MAX,
            (true, end) => end.saturating_sub(bytes.start),
        };
        let gone = crate::api::Invalidation::Inode { token: 0, ino, offset: bytes.start, length };
        w.effect(crate::api::Effect::Invalidate(gone));
    }
    w.wake(node_key(ino));
}

/// See [`super::op_ended`].
pub(super) fn op_ended(w: &mut World, op: crate::op::OpId) {
    let Some(inos) = w.data.marked_ops.remove(&op) else { return };
    for ino in inos {
        let Some(now) = file_mut(w, ino) else { continue };
        let mut changed = false;
        if now.exclusive == Some(op) {
            now.exclusive = None;
            changed = true;
        }
        let mut keys: Vec<Key> = vec![HOME];
        keys.extend(0..now.objects.len() as u32);
        for key in keys {
            edit(w, ino, key, |object| {
                let before = object.fetches.len();
                object.fetches.retain(|fetch| fetch.owner != op);
                changed |= object.fetches.len() != before;
            });
        }
        if changed {
            w.wake(node_key(ino));
        }
    }
}

/// See [`super::stat`].
pub(super) fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<super::DataStat> {
    if let Some(stat) = stat_cached(cx.w, ino) {
        return Ok(stat);
    }
    access::load(cx, ino)?;
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    if now.resident() {
        if now.home.knows_end() {
            return Ok(super::DataStat { lvb: now.home.lvb(), cacheable: false });
        }
        let attr = cx.w.nodes.get(ino).and_then(|node| node.attr.as_ref()).ok_or(Errno::ESTALE)?;
        return Ok(super::DataStat { lvb: super::state::home_lvb(attr), cacheable: false });
    }
    let lvb = access::merged(cx, ino, true)?;
    let cacheable = stat_cached(cx.w, ino).is_some();
    Ok(super::DataStat { lvb, cacheable })
}

/// See [`super::stat_cached`].
pub(super) fn stat_cached(w: &World, ino: u64) -> Option<super::DataStat> {
    let node = w.nodes.get(ino)?;
    let Some(file) = node.data.as_deref() else {
        return None;
    };
    if file.layout.is_none() || file.recalls > 0 {
        return None;
    }
    let mut all = Lvb::default();
    let resident = file.resident();
    let keys = if resident { HOME..HOME } else { 0..file.objects.len() as u32 };
    for key in keys.chain(resident.then_some(HOME)) {
        let object = file.object(key)?;
        let usable = |lock: &HeldLock| w.imports.get(object.dest).is_some_and(|t| t.locks.is_usable(lock.cookie));
        if !object.knows_end() || !object.locks.iter().any(usable) {
            return None;
        }
        let lvb = object.lvb();
        all = Lvb {
            size: all.size.max(file.file_size(key, lvb.size)),
            blocks: all.blocks + lvb.blocks,
            atime_ns: all.atime_ns.max(lvb.atime_ns),
            ..if (lvb.ctime_ns, lvb.mtime_ns) > (all.ctime_ns, all.mtime_ns) { lvb } else { all }
        };
    }
    Some(super::DataStat { lvb: all, cacheable: true })
}

/// See [`super::drop_node`].
pub(super) fn drop_node(w: &mut World, ino: u64) {
    let Some(now) = file(w, ino) else { return };
    let mut keys: Vec<Key> = vec![HOME];
    keys.extend(0..now.objects.len() as u32);
    for key in keys {
        let held = file(w, ino).and_then(|f| f.object(key)).map(|o| (o.dest, o.resource, !o.locks.is_empty()));
        edit(w, ino, key, |object| {
            object.pages.cut(&ALL);
            object.locks.clear();
        });
        if let Some((dest, resource, true)) = held
            && key != HOME
        {
            crate::locks::give_back(w, dest, &resource);
        }
    }
}
