//! Validity of layouts: whether the cached objects still belong to the file.
//!
//! The data of a file can move to other objects (`migrate`). The client that moves it first takes the LAYOUT lock from
//! all clients, then a lock on each whole object, and only then swaps the objects. So no swap can happen while another
//! client has a lock on one of the objects, and under such a lock a client may rely on a layout
//!
//! ```text
//! that arrived under LAYOUT, which is still held           nobody has started to swap
//! that the metadata target confirmed after the lock came   nobody has swapped before the lock came, and a client that an
//!                                                          object target has evicted since its copy cannot swap any more
//! that was one of these, if ever since a lock on an        nobody could lock all objects
//! object was held without a break (`layout_sure`)
//! ```
//! The first and the last cost nothing. The confirmation needs no lock, so it may be requested with locks on objects
//! pinned.

use proto::connect::features;
use proto::msg::bits;

use crate::base::Step;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data::access;
use crate::coherence::data::state::{file, file_mut};
use crate::coherence::op::Memo;
use crate::coherence::world::World;

/// See the module.
pub(crate) fn is_known(w: &World, ino: u64) -> bool {
    let (Some(node), Some(file)) = (w.nodes.get(ino), file(w, ino)) else { return false };
    let stays = || !w.imports.get(file.home.dest).is_none_or(|mdt| mdt.has(features::LAYOUT_SWAP));
    let covered = node.validity.covers(bits::LAYOUT);
    file.layout_sure || covered || node.destroyed || stays()
}

/// With locks on objects pinned: whether the objects are the file's, and so stay while the locks are held. If not, the
/// pins are released, and the new layout is cached.
pub(crate) fn holds(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let now = generation(cx.w, ino);
    // The confirmation lasts as long as the pins.
    if is_known(cx.w, ino) || cx.memo(Step::LayoutHeld) == Some(now) {
        asked(cx);
    } else {
        stdx::mark!("layout_asked_for");
        let seen = cx.memo(Step::LayoutSeen).unwrap_or(now);
        cx.set_memo(Step::LayoutSeen, seen);
        access::confirm_layout_at(cx, Step::LayoutConfirm, ino)?;
        asked(cx);
        if generation(cx.w, ino) != seen {
            stdx::mark!("locked_after_a_swap");
            release(cx);
            return Ok(false);
        }
        cx.set_memo(Step::LayoutHeld, seen);
    }
    if let Some(file) = file_mut(cx.w, ino)
        && !file.layout_sure
    {
        file.layout_sure = file.objects.iter().any(|object| !object.locks.is_empty());
    }
    Ok(true)
}

/// Runs `look`, which reads objects without locks, until the layout has not changed during it.
pub(crate) fn unchanged<T>(cx: &mut Cx<'_>, ino: u64, at: Step, look: impl Fn(&mut Cx<'_>) -> Run<T>) -> Run<T> {
    loop {
        let seen = cx.memo(at).unwrap_or_else(|| generation(cx.w, ino));
        cx.set_memo(at, seen);
        let found = match look(cx) {
            Err(Stop::Wait) => {
                // An answer about the layout that arrives meanwhile is too old.
                cx.forget(Step::LayoutLooked);
                return Err(Stop::Wait);
            }
            found => found?,
        };
        if !is_known(cx.w, ino) {
            access::confirm_at(cx, Step::LayoutLooked, ino)?;
        }
        let now = generation(cx.w, ino);
        if now == seen {
            return Ok(found);
        }
        cx.forget(Step::LayoutLooked);
        cx.set_memo(at, now);
    }
}

/// The confirmation under pins has arrived, or is not needed.
fn asked(cx: &mut Cx<'_>) {
    cx.forget(Step::LayoutSeen);
    cx.forget(Step::LayoutConfirm);
}

/// A pin was released: a confirmation under it, received or requested, is void.
pub(crate) fn doubt(cx: &mut Cx<'_>) {
    asked(cx);
    cx.forget(Step::LayoutHeld);
}

/// The generation of the cached layout.
pub(crate) fn generation(w: &World, ino: u64) -> u64 {
    file(w, ino).and_then(|file| file.layout.as_ref()).map_or(0, |layout| u64::from(layout.generation))
}

/// The layout was changed under this lock, so nobody else can have cached it: the lock goes back.
pub(crate) fn changed(cx: &mut Cx<'_>, at: Step) {
    if let Some(Memo::Lock { dest, cookie }) = cx.op.memo(at).cloned() {
        cx.unlock(at);
        if let Some(locks) = cx.w.locks.get_mut(dest) {
            locks.give_back(cookie);
        }
        crate::coherence::locks::pump(cx.w, dest);
    }
}

/// Releases the pins of locks on objects.
pub(crate) fn release(cx: &mut Cx<'_>) {
    let of_object = |at: &Step| matches!(at, Step::Lock(_) | Step::TryLock(_));
    let pins: Vec<Step> = cx.op.steps().iter().map(|(at, _)| *at).filter(of_object).collect();
    pins.into_iter().for_each(|at| cx.unlock(at));
    doubt(cx);
}
