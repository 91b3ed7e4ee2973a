//! Recall of data locks: what a lock covers is written, dropped by the kernel, and dropped from the cache; and
//! glimpses, which only ask for the state of an object.
//!
//! # The kernel's page locks
//! The kernel keeps pages locked while a read (all of its pages) or a write (a part of a page that it does not have)
//! waits for this client, and dropping a locked page waits for that call. The call may wait for a lock that another
//! client releases only once it gets the one that is being given back here: so a recall must never wait for such pages.
//! It need not: the pages of a read are empty until it is answered, under whatever lock it gets. Those of a write may
//! be old; they are dropped too, but the recall does not wait for it. A call that arrives while its page is being
//! dropped is lent the recalled lock if that covers it (and its pages are dropped again when it is done); otherwise the
//! rest of the range is dropped by further requests beside the one that is stuck. While the kernel waits for a page
//! before it sends a call, it holds no other page locked for that call.
//!
//! ```text
//! recall [0, 64K)    read [16K, 32K) waits    drop [0, 16K) and [32K, 64K), wait for both, cancel
//! ```
//! Therefore the driver must not process invalidations one after the other.

use core::ops::Range;
use dlm::client::HeldLock;
use proto::Errno;
use proto::msg::{Lvb, Resource};
use smallvec::SmallVec;

use crate::api::{Effect, Invalidation};
use crate::base::Dest;
use crate::base::OpId;
use crate::base::Step;
use crate::cache::data::lanes::KernelCall;
use crate::cache::data::state::{ALL, HOME, Key, Object, lock_range, subtract};
use crate::cache::node::Hold;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data::flush::Round;
use crate::coherence::data::state::{edit, file, file_mut, forget_lock, node_key, place_of};
use crate::coherence::data::{access, flush, layout, leaving};
use crate::coherence::world::World;

/// Size of the kernel's pages.
const PAGE: u64 = 4096;

/// After this many requests to drop pages for one lock, it is no longer lent to new calls, or it would never go back.
const DROPS_MAX: u64 = 64;

/// A call of the kernel through its page cache waits (or no longer does).
pub(crate) fn note_kernel_call<T>(cx: &mut Cx<'_>, ino: u64, range: Range<u64>, write: bool, result: &Run<T>) {
    let op = cx.op.id;
    match result {
        Err(Stop::Wait) if !cx.w.data.kernel_calls.contains_key(&(ino, op)) => {
            let page = |at: u64| at / PAGE * PAGE..(at / PAGE).saturating_add(1).saturating_mul(PAGE);
            let mut pages: SmallVec<[Range<u64>; 2]> = SmallVec::new();
            if !write {
                pages.push(page(range.start).start..page(range.end.max(1) - 1).end);
            } else {
                for edge in [range.start, range.end] {
                    let page = page(edge);
                    if edge % PAGE != 0 && !pages.contains(&page) {
                        pages.push(page);
                    }
                }
            }
            let known = cx.w.nodes.get(ino).map_or(0, |node| node.kernel.size());
            let within = if write && range.end <= known { range.end } else { 0 };
            cx.w.data.kernel_calls.insert((ino, op), KernelCall { pages, write, within });
            cx.w.data.mark_op(op, ino);
            wake_recalls(cx.w, ino);
        }
        Err(Stop::Wait) => {}
        _ => {
            if cx.w.data.kernel_calls.remove(&(ino, op)).is_some_and(|call| call.within > 0) {
                cx.w.wake(node_key(ino));
            }
            if let Some(file) = file_mut(cx.w, ino)
                && file.recalls > 0
            {
                let end = range.end.div_ceil(PAGE).saturating_mul(PAGE);
                file.fills.push(range.start / PAGE * PAGE..end);
                wake_recalls(cx.w, ino);
            }
        }
    }
}

/// See [`super::end_of_writes`].
pub(crate) fn end_of_writes(w: &World, ino: u64) -> u64 {
    let calls = w.data.kernel_calls.range((ino, OpId::FIRST)..=(ino, OpId::LAST));
    calls.map(|(_, call)| call.within).max().unwrap_or(0)
}

fn wake_recalls(w: &mut World, ino: u64) {
    if file(w, ino).is_some_and(|file| file.recalls > 0) {
        w.wake(node_key(ino));
    }
}

/// See [`super::flush_for_lock`].
pub(crate) fn flush_for_lock(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    let Some((ino, key)) = place_of(cx.w, &lock.resource) else { return Ok(()) };
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    let Some(object) = now.object(key) else { return Ok(()) };
    let known = object.locks.iter().any(|held| held.cookie == lock.cookie);
    if !known && cx.memo(Step::Recall).is_none() {
        return Ok(());
    }
    let idle = key == HOME && !now.resident();
    let range = lock_range(lock);
    if !idle {
        if now.leaving && key == HOME {
            return Err(leaving::wanted(cx, ino));
        }
        let bytes = now.file_range(key, &range);
        let pages = now.kernel_pages;
        if cx.memo(Step::Recall).is_none() {
            cx.set_memo(Step::Recall, 1);
            let op = cx.op.id;
            cx.w.data.mark_op(op, ino);
            if let Some(file) = file_mut(cx.w, ino) {
                file.recalls += 1;
            }
        }
        // Dirty bytes are written while the kernel drops its pages; what that brings back is written afterwards.
        let written = flush::settle(cx, ino, key, &range, Round::Recall);
        if pages {
            drop_pages(cx, ino, &bytes)?;
        } else {
            cx.invalidate_kernel(Step::InvalidateAttr, ino, 0, 0)?;
        }
        if let Err(Stop::Wait) = written {
            return Err(cx.wait(node_key(ino)));
        }
        match flush::settle(cx, ino, key, &range, Round::RecallEnd) {
            // Others wait for the lock: it goes back, and what cannot be written is lost.
            Err(Stop::Errno(errno)) => flush::give_up(cx.w, ino, key, &range, errno, "its lock was called back"),
            other => other?,
        }
    }
    let held = cx.w.locks.get(dest).is_some_and(|locks| locks.is_held(lock.cookie));
    if !held {
        forget_lock(cx.w, ino, key, lock);
    }
    end_recall(cx, ino);
    Ok(())
}

/// Makes the kernel drop the pages of a file range, except for those that waiting calls have locked.
fn drop_pages(cx: &mut Cx<'_>, ino: u64, bytes: &Range<u64>) -> Run<()> {
    let end = if bytes.end == u64::MAX { u64::MAX } else { bytes.end.div_ceil(PAGE) * PAGE };
    let whole = bytes.start / PAGE * PAGE..end;
    let touches = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
    let of_file = (ino, OpId::FIRST)..=(ino, OpId::LAST);
    let calls = || cx.w.data.kernel_calls.range(of_file.clone()).map(|(_, call)| call);
    let locked: Vec<Range<u64>> = calls().flat_map(|c| c.pages.clone()).filter(|p| touches(p, &whole)).collect();
    let old: Vec<Range<u64>> =
        calls().filter(|c| c.write).flat_map(|c| c.pages.clone()).filter(|p| touches(p, &whole)).collect();
    let mut missing = vec![whole];
    let without = |ranges: Vec<Range<u64>>, cut: &Range<u64>| -> Vec<Range<u64>> {
        ranges.iter().flat_map(|range| subtract(range, cut)).collect()
    };
    for page in &locked {
        missing = without(missing, page);
    }
    let asked = cx.memo(Step::Drops).unwrap_or(0);
    let mut waiting = false;
    for number in 0..asked {
        let (Some(start), Some(end)) = (cx.memo(Step::DropStart(number)), cx.memo(Step::DropEnd(number))) else {
            continue;
        };
        let part = start..end;
        let done = cx.invalidate_kernel(Step::Invalidate(number), ino, start, 0).is_ok();
        // A request that is stuck at a locked page may not reach the rest for a long time.
        if done || !locked.iter().any(|page| touches(page, &part)) {
            waiting |= !done;
            // Pages that were filled since it was requested have to be dropped again.
            let seen = cx.memo(Step::DropSeen(number)).unwrap_or(0) as usize;
            let fills = file(cx.w, ino).map(|f| f.fills.get(seen..).unwrap_or(&[])).unwrap_or_default();
            let mut good = vec![part];
            for fill in fills {
                good = without(good, fill);
            }
            for part in good {
                missing = without(missing, &part);
            }
        }
    }
    let fills = file(cx.w, ino).map_or(0, |f| f.fills.len() as u64);
    for (part, number) in missing.into_iter().zip(asked..) {
        cx.set_memo(Step::Drops, number + 1);
        cx.set_memo(Step::DropStart(number), part.start);
        cx.set_memo(Step::DropEnd(number), part.end);
        cx.set_memo(Step::DropSeen(number), fills);
        let length = if part.end == u64::MAX { u64::MAX } else { part.end - part.start };
        waiting |= cx.invalidate_kernel(Step::Invalidate(number), ino, part.start, length).is_err();
    }
    let asked = cx.memo(Step::Drops).unwrap_or(0);
    if let Some(file) = file_mut(cx.w, ino) {
        file.lends_lock = waiting && asked < DROPS_MAX;
    }
    if waiting {
        return Err(cx.wait(node_key(ino)));
    }
    for page in old {
        let (offset, length) = (page.start, page.end - page.start);
        cx.w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset, length }));
    }
    Ok(())
}

/// Whether a program has a file open through the kernel's pages: the kernel may have to drop some before a write that
/// bypasses them is answered.
pub(crate) fn pages_in_use(w: &World, ino: u64) -> bool {
    w.nodes.get(ino).is_some_and(|node| node.held(Hold::Handle) > node.held(Hold::DirectHandle))
}

/// After a write that bypassed the kernel's pages (`O_DIRECT`, `O_APPEND`): pages that reads filled while it was in
/// flight are outdated. The kernel drops pages when it sends such a write, where it assumes that the write goes (an
/// append goes to the end that this client knows), and not every Linux does so again when the write has ended. So the
/// pages are invalidated before the write is answered, or with the next open if no program has the file open through
/// its pages. The write's locks are released first: a page can be locked by a read that waits for one of them, which
/// another client wants too.
pub(crate) fn written_past_pages(cx: &mut Cx<'_>, ino: u64, written: &Range<u64>) -> Run<()> {
    if !crate::coherence::data::is_in_kernel(cx.w, ino) {
        return Ok(());
    }
    if cx.memo(Step::PastPages).is_none() {
        if !pages_in_use(cx.w, ino) {
            if let Some(file) = file_mut(cx.w, ino) {
                file.old_pages = true;
            }
            return Ok(());
        }
        cx.set_memo(Step::PastPages, written.start);
        cx.set_memo(Step::PastPagesEnd, written.end);
        // The data is written: a signal no longer interrupts the call.
        cx.op.changes += 1;
        crate::coherence::locks::unlock_all(cx);
    }
    cx.invalidate_kernel(Step::PastPagesDrop, ino, written.start, written.end - written.start)
}

fn end_recall(cx: &mut Cx<'_>, ino: u64) {
    if cx.memo(Step::Recall) == Some(1) {
        cx.set_memo(Step::Recall, 2);
        if let Some(file) = file_mut(cx.w, ino) {
            file.recalls = file.recalls.saturating_sub(1);
            if file.recalls == 0 {
                file.fills.clear();
                file.lends_lock = false;
            }
        }
    }
    cx.w.wake(node_key(ino));
}

/// See [`super::glimpse`].
pub(crate) fn glimpse(w: &World, resource: &Resource) -> Option<Lvb> {
    let (ino, key) = place_of(w, resource)?;
    let file = file(w, ino)?;
    if key == HOME && !file.resident() {
        return None;
    }
    let object = file.object(key)?;
    // If everything of a resident file is written, its metadata target knows the current state, and it knows a write that
    // bypasses the cache or a truncation in flight before this client does. In doubt only what is buffered is known: an
    // object target takes the greater of that and its own size, a metadata target of an older version takes the answer as
    // it is.
    let owed = object.unwritten() > 0;
    let knows = if key == HOME { object.size_exact && owed } else { object.size_exact || owed };
    if object.locks.is_empty() || !knows {
        return None;
    }
    Some(Lvb { size: object.size_floor(), ..object.lvb() })
}

/// See [`super::unwritten`].
pub(crate) fn unwritten(w: &World, resource: &Resource) -> u64 {
    let object = place_of(w, resource).and_then(|(ino, key)| file(w, ino)?.object(key));
    object.map_or(0, Object::unwritten)
}

/// See [`super::lock_lost`].
pub(crate) fn lock_lost(w: &mut World, lock: &HeldLock, errno: Errno) {
    let Some((ino, key)) = place_of(w, &lock.resource) else { return };
    let range = lock_range(lock);
    let Some(now) = file(w, ino) else { return };
    let Some(object) = now.object(key) else { return };
    let idle = key == HOME && !now.resident();
    if !object.locks.iter().any(|held| held.cookie == lock.cookie) {
        return;
    }
    let before = if idle { Vec::new() } else { object.pages.unwritten_parts() };
    let bytes = now.file_range(key, &range);
    let kernel = now.kernel_pages && !idle;
    forget_lock(w, ino, key, lock);
    let left = file(w, ino).and_then(|f| f.object(key)).map(|object| object.pages.unwritten_parts());
    let gone = left
        .unwrap_or_default()
        .iter()
        .fold(before, |gone, left| gone.iter().flat_map(|part| subtract(part, left)).collect());
    flush::report_lost_unless_removed(w, ino, key, &gone, errno, "its lock was lost");
    if w.nodes.get(ino).is_some_and(|node| node.kernel.knows()) {
        let length = match (kernel, bytes.end) {
            (false, _) => 0,
            (true, u64::MAX) => u64::MAX,
            (true, end) => end.saturating_sub(bytes.start),
        };
        w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset: bytes.start, length }));
    }
    w.wake(node_key(ino));
}

/// See [`super::op_ended`].
pub(crate) fn op_ended(w: &mut World, op: OpId) {
    let Some(inos) = w.data.marked_ops.remove(&op) else { return };
    for ino in inos {
        let was_call = w.data.kernel_calls.remove(&(ino, op)).is_some();
        if w.data.migrating.get(&ino) == Some(&op) {
            w.data.migrating.remove(&ino);
        }
        let Some(now) = file_mut(w, ino) else { continue };
        let mut changed = was_call;
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
                let before = object.asked.len();
                object.asked.retain(|(owner, ..)| *owner != op);
                changed |= object.asked.len() != before;
            });
        }
        if changed {
            w.wake(node_key(ino));
        }
    }
}

/// See [`crate::coherence::data::stat`].
pub(crate) fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<crate::coherence::data::DataStat> {
    if let Some(stat) = stat_cached(cx.w, ino) {
        return Ok(stat);
    }
    access::load(cx, ino)?;
    if file(cx.w, ino).is_some_and(|now| now.resident() && now.home_is_changing()) {
        access::confirm_at(cx, Step::StatConfirm, ino)?;
    }
    cx.forget(Step::StatConfirm);
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    if now.resident() {
        if now.home.knows_end() && !now.home_is_changing() {
            return Ok(crate::coherence::data::DataStat { lvb: now.home.lvb(), cacheable: false });
        }
        let attr = cx.w.nodes.get(ino).and_then(|node| node.attr.as_ref()).ok_or(Errno::ESTALE)?;
        let reported = crate::cache::data::state::home_lvb(attr);
        let lvb = edit(cx.w, ino, HOME, |home| home.with_buffered(&reported)).unwrap_or(reported);
        return Ok(crate::coherence::data::DataStat { lvb, cacheable: false });
    }
    let lvb = layout::unchanged(cx, ino, Step::StatLayout, |cx| access::merged(cx, ino, true))?;
    let cacheable = stat_cached(cx.w, ino).is_some();
    Ok(crate::coherence::data::DataStat { lvb, cacheable })
}

/// See [`super::stat_cached`].
pub(crate) fn stat_cached(w: &World, ino: u64) -> Option<crate::coherence::data::DataStat> {
    let node = w.nodes.get(ino)?;
    let file = node.data.as_deref()?;
    if file.layout.is_none() || file.recalls > 0 {
        return None;
    }
    let mut all = Lvb::default();
    let resident = file.resident();
    if resident && file.is_cut() || !resident && !layout::is_known(w, ino) {
        return None;
    }
    let keys = if resident { HOME..HOME } else { 0..file.objects.len() as u32 };
    for key in keys.chain(resident.then_some(HOME)) {
        let object = file.object(key)?;
        let usable = |lock: &HeldLock| {
            node.destroyed || w.locks.get(object.dest).is_some_and(|locks| locks.is_usable(lock.cookie))
        };
        if !access::knows_times(object) || !object.locks.iter().any(usable) {
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
    Some(crate::coherence::data::DataStat { lvb: all, cacheable: true })
}

/// See [`super::drop_node`].
pub(crate) fn drop_node(w: &mut World, ino: u64) {
    let Some(now) = file(w, ino) else { return };
    let mut keys: Vec<Key> = vec![HOME];
    keys.extend(0..now.objects.len() as u32);
    for key in keys {
        let held = file(w, ino).and_then(|f| f.object(key)).map(|o| (o.dest, o.resource, !o.locks.is_empty()));
        edit(w, ino, key, |object| {
            object.pages.cut(&ALL);
            object.locks.clear();
        });
        if let Some(file) = file_mut(w, ino) {
            file.layout_sure = false;
        }
        if let Some((dest, resource, true)) = held
            && key != HOME
        {
            crate::coherence::locks::give_back(w, dest, &resource);
        }
    }
}
