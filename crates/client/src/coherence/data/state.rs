//! Access to the cached data of files: finding, changing and accounting it, and what replies and locks add to it.

use core::ops::Range;
use proto::msg::{Attr, Layout, LockMode, Lvb, Resource, ResourceKind};
use proto::{Errno, Fid};
use smallvec::SmallVec;

use dlm::client::HeldLock;

use crate::base::{Dest, WaitKey};
use crate::cache::data::lanes::ClockEntry;
use crate::cache::data::pages::Evicted;
use crate::cache::data::state::{ALL, HOME, Key, NodeData, Object, home_lvb, lock_range, subtract};
use crate::cache::data::striping::Striping;
use crate::coherence::world::World;

/// Woken when memory for dirty data becomes free.
pub(crate) const BUDGET: WaitKey = WaitKey::Data(0);

/// Woken when anything about the data of a node changes.
pub(crate) fn node_key(ino: u64) -> WaitKey {
    WaitKey::Data(ino)
}

/// Something that a program did to the file was lost: the next fsync or close reports it, or the end of the unmount.
pub(crate) fn failed(w: &mut World, ino: u64, errno: Errno) {
    if w.unmounting {
        w.lost.get_or_insert(errno);
    }
    if let Some(file) = file_mut(w, ino) {
        file.fail(errno);
    }
}

/// The data of a node, created if it is a regular file (or not known to be anything else).
pub(crate) fn ensure(w: &mut World, fid: Fid) -> &mut NodeData {
    let mdt = w.mdt_of(fid);
    let World { nodes, data, .. } = w;
    let node = nodes.obtain(fid);
    let layout = node.attr.as_ref().and_then(|attr| attr.layout.clone());
    node.data.get_or_insert_with(|| {
        let mut file = Box::new(NodeData::new(fid, mdt));
        if let Some(layout) = layout {
            file.set_layout(layout, data);
        }
        file
    })
}

/// The data of a node, if there is any.
pub(crate) fn file(w: &World, ino: u64) -> Option<&NodeData> {
    w.nodes.get(ino)?.data.as_deref()
}

/// The same, mutable. Pages are changed through [`edit`] only.
pub(crate) fn file_mut(w: &mut World, ino: u64) -> Option<&mut NodeData> {
    w.nodes.get_mut(ino)?.data.as_deref_mut()
}

/// Changes an object and accounts its memory.
pub(crate) fn edit<R>(w: &mut World, ino: u64, key: Key, change: impl FnOnce(&mut Object) -> R) -> Option<R> {
    let World { nodes, data, now, .. } = w;
    let file = nodes.get_mut(ino)?.data.as_deref_mut()?;
    let object = file.object_mut(key)?;
    let before = object.pages.counts();
    let result = change(object);
    let after = object.pages.counts();
    if after.dirty + after.writing == 0 {
        object.unwritable = None;
    }
    if before != after {
        data.account(object.dest, before, after);
        file.dirty = file.dirty + after.dirty - before.dirty;
        match (file.dirty > 0, file.dirty_since) {
            (true, None) => {
                file.dirty_since = Some(*now);
                data.dirty_files.insert((*now, ino));
            }
            (false, Some(since)) => {
                file.dirty_since = None;
                data.dirty_files.remove(&(since, ino));
            }
            _ => {}
        }
        if after.dirty + after.writing < before.dirty + before.writing {
            w.wake(BUDGET);
        }
    }
    Some(result)
}

/// Adds clean bytes to the eviction clock.
pub(crate) fn into_clock(w: &mut World, ino: u64, key: Key, range: Range<u64>, mark: u64) {
    w.data.clock.push_back(ClockEntry { ino, key, range, mark });
    if w.data.clock.len() > 2 * w.data.clock_swept + 4096 {
        let mut clock = core::mem::take(&mut w.data.clock);
        clock.retain(|e| {
            file(w, e.ino).and_then(|f| f.object(e.key)).is_some_and(|o| o.pages.has_mark(&e.range, e.mark))
        });
        w.data.clock_swept = clock.len();
        w.data.clock = clock;
    }
}

/// Drops clean bytes until they are within the limit.
pub(crate) fn evict(w: &mut World) {
    let mut spared = 0;
    while w.data.clean > w.options.max_cached {
        let Some(entry) = w.data.clock.pop_front() else { return };
        let outcome = edit(w, entry.ino, entry.key, |object| object.pages.evict(&entry.range, entry.mark));
        if outcome == Some(Evicted::Used) {
            w.data.clock.push_back(entry);
            spared += 1;
            if spared > 2 * w.data.clock.len() {
                return;
            }
        }
    }
}

/// Applies a layout, which may be a new one.
pub(crate) fn take_layout(w: &mut World, ino: u64, layout: &Layout) {
    let Some(file) = file_mut(w, ino) else { return };
    let change = match &file.layout {
        None => true,
        Some(known) => {
            // For a file that has objects the last answer counts: a change of layout that was lost with its server may
            // be undone.
            let newer = known.generation < layout.generation || (!known.resident && !layout.resident);
            (newer && *known != *layout) || (known.resident && !layout.resident)
        }
    };
    if !change {
        return;
    }
    if file.layout.is_none() || (layout.resident && file.resident()) {
        lay_out(w, ino, layout);
        return;
    }
    if layout.resident {
        return;
    }
    // The data left the metadata target. Our copy was copied to the objects (by us), or given up with the lock.
    let place = |layout: &Layout| (layout.first_object, layout.osts.clone());
    let same = file.layout.as_ref().is_some_and(|known| place(known) == place(layout));
    if same && file.resident() {
        file.striping = Striping::new(layout.stripe_size, layout.osts.len());
        file.layout = Some(layout.clone());
    } else {
        let old: Vec<(Dest, Resource)> = file.objects.iter().map(|object| (object.dest, object.resource)).collect();
        for key in 0..old.len() as Key {
            edit(w, ino, key, |object| object.pages.cut(&ALL));
        }
        lay_out(w, ino, layout);
        for (dest, resource) in old {
            crate::coherence::locks::give_back(w, dest, &resource);
        }
    }
    edit(w, ino, HOME, |home| {
        home.void_fetches(&ALL);
        home.pages.cut(&ALL);
    });
    w.wake(node_key(ino));
}

/// See [`super::attr_arrived`]. The size in them is ignored: only one that came with or after the lock counts
/// ([`confirmed`]).
pub(crate) fn attr_arrived(w: &mut World, ino: u64, attr: &Attr) {
    if let Some(layout) = &attr.layout
        && file(w, ino).is_some()
    {
        take_layout(w, ino, layout);
    }
}

/// Applies attributes that were requested after the data lock was granted, by the request with this number. False if a
/// change of this client was answered meanwhile, which they may not show.
pub(crate) fn confirmed(w: &mut World, ino: u64, attr: &Attr, number: u64) -> bool {
    attr_arrived(w, ino, attr);
    let Some(file) = file_mut(w, ino) else { return true };
    if !file.resident() || file.home.size_exact || file.home.locks.is_empty() {
        return true;
    }
    if number < file.home.changed {
        stdx::mark!("size_from_before_a_change");
        return false;
    }
    file.home.set_size(&home_lvb(attr));
    true
}

/// The file and object of a resource. `None` for an object that the file no longer has, or does not have yet.
pub(crate) fn place_of(w: &World, resource: &Resource) -> Option<(u64, Key)> {
    let ino = resource.fid.ino();
    match resource.kind() {
        ResourceKind::Inode => Some((ino, HOME)),
        ResourceKind::Object => {
            let layout = file(w, ino)?.layout.as_ref()?;
            let stripe = resource.stripe.wrapping_sub(layout.first_object);
            ((stripe as usize) < layout.osts.len()).then_some((ino, stripe))
        }
        ResourceKind::Flock => None,
    }
}

/// See [`super::lock_granted`].
pub(crate) fn lock_granted(w: &mut World, lock: &HeldLock, lvb: Option<&Lvb>) {
    if lock.resource.kind() == ResourceKind::Flock {
        return;
    }
    ensure(w, lock.resource.fid);
    let Some((ino, key)) = place_of(w, &lock.resource) else { return };
    let number = w.current_reply.number();
    // For a file that is no longer resident, a lock of the metadata target tells no size.
    let dest = edit(w, ino, key, |object| {
        object.foreign.note();
        object.locked(lock, lvb, number);
        object.dest
    });
    if let Some(dest) = dest {
        w.data.lane(dest).foreign.note();
    }
}

/// See [`super::lock_changed`].
pub(crate) fn lock_changed(w: &mut World, lock: &HeldLock) {
    let Some((ino, key)) = place_of(w, &lock.resource) else { return };
    edit(w, ino, key, |object| {
        for held in object.locks.iter_mut().filter(|held| held.cookie == lock.cookie) {
            *held = *lock;
        }
    });
}

/// See [`super::layout_settled`].
pub(crate) fn layout_settled(w: &mut World, ino: u64, layout: &Layout) {
    if file(w, ino).is_some_and(NodeData::resident) {
        lay_out(w, ino, layout);
    }
}

fn lay_out(w: &mut World, ino: u64, layout: &Layout) {
    let World { nodes, data, .. } = w;
    if let Some(file) = nodes.get_mut(ino).and_then(|node| node.data.as_deref_mut()) {
        file.set_layout(layout.clone(), data);
    }
}

/// A lock is no longer held: drops its bytes, including dirty ones. Bytes that another exclusive lock covers stay,
/// because nobody else has changed them.
pub(crate) fn forget_lock(w: &mut World, ino: u64, key: Key, lock: &HeldLock) {
    let range = lock_range(lock);
    edit(w, ino, key, |object| {
        object.locks.retain(|held| held.cookie != lock.cookie);
        let last = object.locks.is_empty();
        let range = if last { ALL } else { range };
        object.void_fetches(&range);
        let alone = object.locks.iter().filter(|held| dlm::mode::covers(held.mode, LockMode::Pw)).map(lock_range);
        let keep: SmallVec<[Range<u64>; 2]> = alone.collect();
        let mut dropped: SmallVec<[Range<u64>; 2]> = SmallVec::from_iter([range]);
        for part in &keep {
            dropped = dropped.iter().flat_map(|range| subtract(range, part)).collect();
        }
        for range in &dropped {
            object.pages.cut(range);
        }
        if last {
            object.size_exact = false;
        }
    });
    if let Some(file) = file_mut(w, ino)
        && file.layout_sure
        && file.objects.iter().all(|object| object.locks.is_empty())
    {
        file.layout_sure = false;
    }
}
