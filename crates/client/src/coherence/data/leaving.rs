//! Small files that are to leave their metadata target: when, and what those do meanwhile that want their locks. The move itself is an
//! operation.

use crate::base::Step;
use crate::coherence::cx::{Cx, Stop};
use crate::coherence::data::Task;
use crate::coherence::data::state::{file, file_mut, node_key};
use crate::coherence::world::World;

/// Largest resident file, in bytes. One without objects to go to stays and grows no further.
pub(crate) fn limit(cx: &Cx<'_>, ino: u64) -> u64 {
    let dest = file(cx.w, ino).map(|f| f.home.dest);
    match dest.and_then(|dest| cx.w.imports.get(dest)).map_or(0, |target| target.dom_size) {
        0 => u64::from(proto::connect::DOM_SIZE_DEFAULT),
        size => u64::from(size),
    }
}

/// Begins to move a resident file for whose data its metadata target has no room. False: it can go nowhere.
pub(crate) fn start(w: &mut World, ino: u64) -> bool {
    let nowhere = w.unmounting || w.imports.osts().is_empty();
    let Some(file) = file_mut(w, ino).filter(|file| file.resident() && !nowhere) else { return false };
    if !file.leave_asked {
        stdx::mark!("leave_for_room");
        file.leave_asked = true;
        file.leave_error = None;
        w.spawn(crate::coherence::op::Task::Data(Task::Leave { ino }));
    }
    true
}

/// An end of this attempt to give the lock of a file that leaves back: the move is told that somebody wants it.
pub(crate) fn wanted(cx: &mut Cx<'_>, ino: u64) -> Stop {
    if cx.memo(Step::LeaveWanted).is_none() {
        cx.set_memo(Step::LeaveWanted, 1);
        cx.w.wake(node_key(ino));
    }
    cx.wait(node_key(ino))
}

/// Whether requests pass to all targets that have objects of the file.
pub(crate) fn is_reachable(w: &World, ino: u64) -> bool {
    let is_full = |dest| w.imports.get(dest).is_some_and(|target| target.is_full());
    file(w, ino).is_some_and(|file| file.objects.iter().all(|object| is_full(object.dest)))
}
