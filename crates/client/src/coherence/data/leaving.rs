//! Small files that are to leave their metadata target: when that starts, and what operations do that want their locks
//! meanwhile. The move itself is an operation ([`crate::ops`]).

use crate::base::Step;
use crate::coherence::cx::{Cx, Stop};
use crate::coherence::data::Task;
use crate::coherence::data::state::{file, file_mut, node_key};
use crate::coherence::world::World;

/// Largest resident file, in bytes. A file without objects to move to stays resident and cannot grow further.
pub(crate) fn limit(cx: &Cx<'_>, ino: u64) -> u64 {
    let dest = file(cx.w, ino).map(|f| f.home.dest);
    match dest.and_then(|dest| cx.w.imports.get(dest)).map_or(0, |target| target.dom_size) {
        0 => u64::from(proto::connect::DOM_SIZE_DEFAULT),
        size => u64::from(size),
    }
}

/// Starts to move a resident file whose metadata target lacks space for it. False: there is no target to move to.
pub(crate) fn start(w: &mut World, ino: u64) -> bool {
    let nowhere = w.unmounting || w.imports.osts().is_empty();
    let Some(file) = file_mut(w, ino).filter(|file| file.resident() && !nowhere) else { return false };
    if !file.leave_requested {
        stdx::mark!("leave_for_room");
        file.leave_requested = true;
        file.leave_error = None;
        w.spawn(crate::coherence::op::Task::Data(Task::Leave { ino }));
    }
    true
}

/// Ends this attempt to give the lock of a moving file back, and tells the move that somebody wants the lock.
pub(crate) fn wanted(cx: &mut Cx<'_>, ino: u64) -> Stop {
    if cx.memo(Step::LeaveWanted).is_none() {
        cx.set_memo(Step::LeaveWanted, 1);
        cx.w.wake(node_key(ino));
    }
    cx.wait(node_key(ino))
}

/// Whether all targets with objects of the file serve requests.
pub(crate) fn is_reachable(w: &World, ino: u64) -> bool {
    let is_full = |dest| w.imports.get(dest).is_some_and(|target| target.is_full());
    file(w, ino).is_some_and(|file| file.objects.iter().all(|object| is_full(object.dest)))
}
