//! The kernel's caches of names and attributes: when they are invalidated, and what an answer allows the kernel to
//! keep.
//!
//! The kernel may keep a name while this client holds the LOOKUP lock of the object that the name leads to. The name is
//! invalidated before that lock goes back, so that programs of this mount see another client's change as soon as that
//! client has its answer.
//!
//! Invalidating a name takes the kernel's lock of the directory. A thread in a local unlink or rename holds that lock
//! while it waits for the server, and the server may be waiting for this very callback (two mounts that remove each
//! other's files):
//!
//! ```text
//!   client A: unlink d/x  holds d, waits for B's callback of x      callback of y: invalidate d/y, needs d
//!   client B: unlink d/y  holds d, waits for A's callback of y      callback of x: invalidate d/x, needs d
//! ```
//! Therefore a callback does not wait for a name in a directory in which such a call is in progress, and waits only
//! briefly for any other name. If the name was not dropped in time, the node is *stale*: the next call by path fails
//! with `ESTALE`, which makes the kernel look up all names of the path again. For a directory the server is asked first
//! whether the name is still there. Most directories still have their name, and a path walk may have waited there for a
//! call that changes a name, for as long as a server was unreachable.
//!
//! The kernel repeats a walk only once per call, and what it finds the second time may be removed before it is used. So
//! for a while after an `ESTALE` the lookups in that directory also open what they find: an open object lasts.

use bytes::Bytes;
use core::time::Duration;
use proto::Errno;
use proto::msg::bits;
use smallvec::SmallVec;
use stdx::Instant;

use crate::api::{Answer, Call, Effect, Invalidation, KernelNames, SetStat, Stat};
use crate::base::Step;
use crate::base::{OpId, WaitKey};
use crate::cache::node::{Hold, Node};
use crate::coherence::cx::{Cx, Run};
use crate::coherence::data;
use crate::coherence::op::Memo;
use crate::coherence::world::World;

/// Longest time that a callback waits for the kernel to drop names.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long after an `ESTALE` the lookups in the directory open what they find.
const HOLDING: Duration = Duration::from_secs(2);
/// A directory that was changed this recently is expected to change again soon.
const CHANGES_WITHIN: Duration = Duration::from_millis(10);

/// A call in progress for which the kernel holds directories locked.
#[derive(Debug)]
pub(crate) struct Gate {
    op: OpId,
    directories: SmallVec<[u64; 2]>,
    /// It may wait for callbacks that need the kernel to drop names.
    removes: bool,
}

/// A call starts to wait.
pub(crate) fn enter_gate(w: &mut World, op: OpId, call: &Call) {
    let (directories, removes): (SmallVec<[u64; 2]>, bool) = match call {
        Call::Unlink { parent, .. } | Call::Rmdir { parent, .. } => (SmallVec::from_slice(&[*parent]), true),
        Call::Rename { parent, new_parent, .. } => (SmallVec::from_slice(&[*parent, *new_parent]), true),
        // Setattr of a directory changes its mode or owner, which the lock of its name covers.
        Call::Setattr { ino, .. } => (SmallVec::from_slice(&[*ino]), true),
        _ => return,
    };
    w.gates.push(Gate { op, directories, removes });
    w.wake(WaitKey::Gates);
}

/// The kernel has the answer of a call and holds no directory locked for it any more.
pub(crate) fn leave_gate(w: &mut World, op: OpId) {
    w.gates.retain(|gate| gate.op != op);
}

/// A call has ended.
pub(crate) fn ended(w: &mut World, op: OpId, call: &Call, result: &Result<Answer, Errno>) {
    leave_gate(w, op);
    if let Ok(answer) = result {
        resized(w, call, answer);
    }
    if *result != Err(Errno::ESTALE) {
        return;
    }
    let until = w.now + HOLDING;
    for ino in reached_by_path(call) {
        if let Some(parent) = w.nodes.get(ino).map(|node| node.parent)
            && let Some(directory) = w.nodes.get_mut(parent)
        {
            directory.dir_mut().hold_until = Some(until);
        }
    }
}

/// Records the file size that the kernel assumes after a call.
fn resized(w: &mut World, call: &Call, answer: &Answer) {
    let (fh, end) = match (call, answer) {
        (Call::Write { fh, offset, .. }, Answer::Written(written)) => (*fh, offset.saturating_add((*written).into())),
        (Call::Fallocate { fh, offset, length, .. }, _) => (*fh, offset.saturating_add(*length)),
        (Call::Setattr { ino, set: SetStat { size: Some(size), .. } }, _) => {
            if let Some(node) = w.nodes.get_mut(*ino) {
                node.kernel.cut(*size);
            }
            return;
        }
        _ => return,
    };
    let ino = w.files.get(fh).map_or(0, |file| file.ino);
    if let Some(node) = w.nodes.get_mut(ino) {
        node.kernel.reached(end);
    }
}

/// The nodes that a call reached by path.
pub(crate) fn reached_by_path(call: &Call) -> SmallVec<[u64; 2]> {
    match call {
        Call::Getattr { ino, .. }
        | Call::RootAttr { ino }
        | Call::Setattr { ino, .. }
        | Call::Readlink { ino }
        | Call::Access { ino, .. }
        | Call::Open { ino, .. }
        | Call::Opendir { ino }
        | Call::Setxattr { ino, .. }
        | Call::Getxattr { ino, .. }
        | Call::Listxattr { ino }
        | Call::Removexattr { ino, .. } => SmallVec::from_slice(&[*ino]),
        Call::Lookup { parent, .. }
        | Call::Create { parent, .. }
        | Call::Mknod { parent, .. }
        | Call::Mkdir { parent, .. }
        | Call::Symlink { parent, .. }
        | Call::Unlink { parent, .. }
        | Call::Rmdir { parent, .. } => SmallVec::from_slice(&[*parent]),
        Call::Link { ino, new_parent, .. } => SmallVec::from_slice(&[*ino, *new_parent]),
        Call::Rename { parent, new_parent, .. } => SmallVec::from_slice(&[*parent, *new_parent]),
        _ => SmallVec::new(),
    }
}

/// The kernel waits for attributes of a node, or for a change of them by a call for which it holds no lock: until the
/// operation ends, no answer allows it to keep attributes of that node.
pub(crate) fn wait_for_attributes(cx: &mut Cx<'_>, ino: u64) {
    if !cx.began(Step::AttrWanted) && cx.w.nodes.hold(ino, Hold::AttrWanted) {
        cx.op.set_memo(Step::AttrWanted, Memo::AttrWanted(ino));
    }
}

/// Before a request that changes attributes of these nodes is sent, the kernel drops them and keeps none until the
/// operation ends. Other clients see the change as soon as the server has made it, and this client's answer may take
/// longer. Unknown nodes are 0.
pub(crate) fn hide(cx: &mut Cx<'_>, nodes: &[u64]) -> Run<()> {
    if cx.began(Step::Main) {
        return Ok(());
    }
    let mut hidden = Ok(());
    for (&ino, number) in nodes.iter().zip(0..) {
        let ino = cx.w.nodes.master(ino);
        let (kept, dropped) = (Step::Hidden(number), Step::Hide(number));
        if let Some(&Memo::AttrWanted(before)) = cx.op.memo(kept)
            && before != ino
        {
            // The name leads to another object by now.
            cx.w.release(before, Hold::AttrWanted);
            cx.forget(kept);
            cx.forget(dropped);
        }
        let now = cx.w.now;
        if cx.w.nodes.get(ino).is_none() {
            continue;
        }
        if cx.op.memo(kept).is_none() {
            cx.w.nodes.hold(ino, Hold::AttrWanted);
            if let Some(node) = cx.w.nodes.get_mut(ino).filter(|node| node.is_dir()) {
                node.dir_mut().changing_at = Some(now);
            }
            cx.op.set_memo(kept, Memo::AttrWanted(ino));
        }
        hidden = hidden.and(cx.invalidate_kernel(dropped, ino, 0, 0));
    }
    hidden
}

/// The node that a name about to change leads to, if it is cached and programs may look at it meanwhile; else 0. A file
/// that is not open and has no other name can only be reached by this name, which the kernel holds locked until the
/// change is answered.
pub(crate) fn known_child(cx: &Cx<'_>, parent: u64, name: &Bytes) -> u64 {
    let child = cx.w.nodes.last_known(parent, name).and_then(|fid| cx.w.nodes.get(fid.ino()));
    let open_or_linked = |node: &&Node| {
        node.is_held(Hold::Handle) || !node.is_regular() || node.attr.as_ref().is_none_or(|a| a.nlink > 1)
    };
    child.filter(open_or_linked).map_or(0, |node| node.ino())
}

/// Before an answer is sent to the kernel: decides whether the kernel may keep its attributes. It may not while another
/// call waits for attributes of the node: the kernel would have to invalidate them and would then disbelieve the answer
/// to that call. Nor while another call opens the file and truncates it: the kernel may process the answer with the old
/// size last. Nor for a directory that this client changes repeatedly: the kernel would have to invalidate them before
/// each change.
pub(crate) fn prepare_answer(w: &mut World, answer: &mut Answer) {
    let now = w.now;
    let mut show = |stat: &mut Stat| {
        // No program sees the size of an answer that the kernel may not keep: the kernel asks again.
        let end = data::end_of_writes(w, stat.ino);
        if stat.size < end {
            stdx::mark!("size_shown_beside_a_write");
            (stat.size, stat.cacheable) = (end, false);
        }
        let Some(node) = w.nodes.get_mut(stat.ino) else { return };
        node.kernel.reached(stat.size);
        if stat.cacheable {
            let changing_at = node.dir.as_ref().and_then(|dir| dir.changing_at);
            let changes = changing_at.is_some_and(|at| now.since(at) < CHANGES_WITHIN);
            stat.cacheable = !node.is_held(Hold::AttrWanted) && !changes;
            if stat.cacheable {
                node.kernel.attributes_sent();
            }
        }
    };
    match answer {
        Answer::Entry(stat) | Answer::Attr(stat) | Answer::Created { stat, .. } => show(stat),
        Answer::Entries(entries) => entries.iter_mut().filter_map(|entry| entry.stat.as_mut()).for_each(show),
        _ => {}
    }
}

/// The LOOKUP lock of a node was lost without a callback.
pub(crate) fn names_lost(w: &mut World, ino: u64) {
    let Some(node) = w.nodes.get_mut(ino) else { return };
    if ino == 1 || node.has(bits::LOOKUP) {
        return;
    }
    node.kernel.names_in_doubt();
    for (parent, name) in take_names(node) {
        w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name }));
    }
}

/// Takes the names that the kernel has to forget. The first name of a directory is remembered for later checks.
fn take_names(node: &mut Node) -> KernelNames {
    let names = node.kernel.take_names();
    if let Some(name) = names.first().filter(|_| node.is_dir()) {
        node.dir_mut().named = Some(name.clone());
    }
    names
}

/// The kernel drops the names of a node before their lock goes back. `wanted`: the server called the lock back and
/// another client waits for it. A lock that this client drops by itself waits as long as the kernel needs: nobody can
/// change the names before it is gone.
pub(crate) fn forget_names(cx: &mut Cx<'_>, ino: u64, wanted: bool) -> Run<()> {
    if cx.memo(Step::Names).is_none() {
        let Some(node) = cx.w.nodes.get_mut(ino) else { return Ok(()) };
        if ino == 1 || node.has(bits::LOOKUP) {
            return Ok(());
        }
        let names = take_names(node);
        cx.set_memo(Step::Names, names.len() as u64);
        for ((parent, name), number) in names.into_iter().zip(0..) {
            let token = cx.w.schedule.token(cx.op.id, Step::Name(number));
            cx.op.set_memo(Step::Name(number), Memo::Name { parent, dropped: false });
            cx.w.effect(Effect::Invalidate(Invalidation::Entry { token, parent, name }));
        }
    }
    let pending = |(_, memo): &(Step, Memo)| match memo {
        Memo::Name { parent, dropped: false } => Some(*parent),
        _ => None,
    };
    let parents: SmallVec<[u64; 2]> =
        cx.op.steps_in(Step::Name(0)..=Step::Name(u64::MAX)).iter().filter_map(pending).collect();
    if parents.is_empty() {
        return Ok(());
    }
    if !wanted && !cx.w.unmounting {
        stdx::mark!("unwanted_lock_waits_for_kernel");
        return Err(cx.wait(WaitKey::Gates));
    }
    let until = Instant(cx.memo(Step::NamesUntil).unwrap_or((cx.now() + PATIENCE).0));
    cx.set_memo(Step::NamesUntil, until.0);
    let stuck = cx.w.gates.iter().any(|gate| gate.removes && gate.directories.iter().any(|d| parents.contains(d)));
    if stuck || cx.now() >= until {
        stdx::mark!("names_left_in_doubt");
        if let Some(node) = cx.w.nodes.get_mut(ino) {
            node.kernel.names_in_doubt();
        }
        return Ok(());
    }
    cx.w.set_timer(until);
    let _ = cx.wait(WaitKey::Timer);
    Err(cx.wait(WaitKey::Gates))
}
