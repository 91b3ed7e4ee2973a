//! Whether the objects that are known are still the file's.
//!
//! The data of a file can move to other objects (`migrate`). Whoever moves it takes LAYOUT from all clients first, then every object
//! as a whole, and only then swaps. So nobody can swap while somebody has a lock on one of the objects, and under such a lock a client
//! may rely on a layout
//!
//! ```text
//! that came in under LAYOUT, which is still held           nobody has begun to swap
//! that the metadata target has confirmed since             nobody has swapped before the lock came
//! that was one of these, if since then a lock on an        nobody could have all objects
//! object was held without a break (`layout_sure`)
//! ```
//! The first and the last cost nothing. The question of the second needs no lock, so it may be asked with locks on objects pinned.

use proto::connect::features;
use proto::msg::bits;

use super::state::{file, file_mut};
use super::{access, step, steps};
use crate::cx::{Cx, Run, Step, Stop};
use crate::op::Memo;
use crate::world::World;

/// See the module.
pub(super) fn is_known(w: &World, ino: u64) -> bool {
    let (Some(node), Some(file)) = (w.nodes.get(ino), file(w, ino)) else { return false };
    let stays = || !w.imports.get(file.home.dest).is_none_or(|mdt| mdt.has(features::LAYOUT_SWAP));
    let covered = node.layout_covered && node.has(bits::LAYOUT);
    file.layout_sure || covered || node.destroyed || stays()
}

/// Locks on objects are pinned: whether they are the file's, and so stay while they are held. If not, the pins are given back, and what
/// the file has now is known.
pub(super) fn holds(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let now = generation(cx.w, ino);
    // What was confirmed lasts as long as the pins.
    if is_known(cx.w, ino) || cx.memo(steps::LAYOUT_HELD) == Some(now) {
        asked(cx);
    } else {
        stdx::mark!("layout_asked_for");
        let seen = cx.memo(steps::LAYOUT_SEEN).unwrap_or(now);
        cx.set_memo(steps::LAYOUT_SEEN, seen);
        access::confirm_at(cx, steps::LAYOUT_CONFIRM, ino)?;
        asked(cx);
        if generation(cx.w, ino) != seen {
            stdx::mark!("locked_after_a_swap");
            let_go(cx);
            return Ok(false);
        }
        cx.set_memo(steps::LAYOUT_HELD, seen);
    }
    if let Some(file) = file_mut(cx.w, ino)
        && !file.layout_sure
    {
        file.layout_sure = file.objects.iter().any(|object| !object.locks.is_empty());
    }
    Ok(true)
}

/// What a look at objects without locks finds, if they were the file's all the time; otherwise it looks again.
pub(super) fn unchanged<T>(cx: &mut Cx<'_>, ino: u64, at: Step, look: impl Fn(&mut Cx<'_>) -> Run<T>) -> Run<T> {
    loop {
        let seen = cx.memo(at).unwrap_or_else(|| generation(cx.w, ino));
        cx.set_memo(at, seen);
        let found = match look(cx) {
            Err(Stop::Wait) => {
                // An answer about the layout that comes meanwhile is too old.
                cx.forget(steps::LAYOUT_LOOKED);
                return Err(Stop::Wait);
            }
            found => found?,
        };
        if !is_known(cx.w, ino) {
            access::confirm_at(cx, steps::LAYOUT_LOOKED, ino)?;
        }
        let now = generation(cx.w, ino);
        if now == seen {
            return Ok(found);
        }
        cx.forget(steps::LAYOUT_LOOKED);
        cx.set_memo(at, now);
    }
}

/// The question about the layout under pins is answered, or needs no answer.
fn asked(cx: &mut Cx<'_>) {
    cx.forget(steps::LAYOUT_SEEN);
    cx.forget(steps::LAYOUT_CONFIRM);
}

/// A pin is given back: what was confirmed under it, or is being asked, says nothing any more.
pub(super) fn doubt(cx: &mut Cx<'_>) {
    asked(cx);
    cx.forget(steps::LAYOUT_HELD);
}

/// The generation of the layout that is known.
pub(super) fn generation(w: &World, ino: u64) -> u64 {
    file(w, ino).and_then(|file| file.layout.as_ref()).map_or(0, |layout| u64::from(layout.generation))
}

/// The layout was changed under this lock, and nobody else could cache it: the lock goes back.
pub(super) fn changed(cx: &mut Cx<'_>, at: Step) {
    if let Some(Memo::Lock { dest, cookie }) = cx.op.memo(at).cloned() {
        cx.unlock(at);
        if let Some(target) = cx.w.imports.get_mut(dest) {
            target.locks.give_back(cookie);
        }
        crate::locks::pump(cx.w, dest);
    }
}

/// Gives the pins of locks on objects back.
pub(super) fn let_go(cx: &mut Cx<'_>) {
    let kinds = [steps::LOCK, steps::TRY_LOCK].map(|kind| step(kind, 0)..step(kind, 1 << 32));
    let pins: Vec<Step> =
        cx.op.steps().iter().map(|(at, _)| *at).filter(|at| kinds.iter().any(|kind| kind.contains(at))).collect();
    pins.into_iter().for_each(|at| cx.unlock(at));
    doubt(cx);
}
