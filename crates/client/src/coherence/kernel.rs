//! What the kernel believes about names.
//!
//! The kernel keeps a name as long as this client holds the LOOKUP lock of what it leads to. Before that lock goes back the
//! name is dropped, so that a program here sees what a program elsewhere did as soon as it was told that it is done.
//!
//! Dropping a name takes the kernel's lock of the directory, and the thread of a local unlink or rename holds that lock while
//! it waits for the server, which may wait for just this callback (two mounts that remove each other's files):
//!
//! ```text
//! here:  unlink d/x  holds d, waits for the callback of x there      callback of y: drop d/y, needs d
//! there: unlink d/y  holds d, waits for the callback of y here       callback of x: drop d/x, needs d
//! ```
//! So nobody waits for a name in a directory in which such a call waits, nor for any name for long. The node is then
//! *stale*: the next call by path is answered `ESTALE`, which makes the kernel look all names of the path up again. Of a directory
//! the server is asked before: most have their names still, and a walk may have been waiting there for a call that changes
//! a name, for as long as a server was away.
//!
//! The kernel does that once for each call. What it found the second time may be gone again before it comes back for it: so
//! for a while after an `ESTALE` the lookups in that directory also open what they find. What is open lasts.

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

/// Longest that a callback waits for the kernel to drop names.
const PATIENCE: Duration = Duration::from_millis(20);
/// After an `ESTALE` lookups in the directory open what they find for this long.
const HOLDING: Duration = Duration::from_secs(2);
/// A directory that was changed so short a time ago is taken to be changed again soon.
const CHANGES_WITHIN: Duration = Duration::from_millis(10);

/// A call that waits while the kernel holds directories locked for it.
#[derive(Debug)]
pub(crate) struct Gate {
    op: OpId,
    directories: SmallVec<[u64; 2]>,
    /// It may wait for callbacks that wait for names.
    removes: bool,
}

/// A call begins to wait.
pub(crate) fn waits(w: &mut World, op: OpId, call: &Call) {
    let (directories, removes): (SmallVec<[u64; 2]>, bool) = match call {
        Call::Unlink { parent, .. } | Call::Rmdir { parent, .. } => (SmallVec::from_slice(&[*parent]), true),
        Call::Rename { parent, new_parent, .. } => (SmallVec::from_slice(&[*parent, *new_parent]), true),
        // Of a directory itself: its mode and owner matter to the lock of its name.
        Call::Setattr { ino, .. } => (SmallVec::from_slice(&[*ino]), true),
        _ => return,
    };
    w.gates.push(Gate { op, directories, removes });
    w.wake(WaitKey::Gates);
}

/// The kernel has the answer of a call: it holds no directory locked for it any more.
pub(crate) fn gone(w: &mut World, op: OpId) {
    w.gates.retain(|gate| gate.op != op);
}

/// A call is over.
pub(crate) fn ended(w: &mut World, op: OpId, call: &Call, result: &Result<Answer, Errno>) {
    gone(w, op);
    if let Ok(answer) = result {
        resized(w, call, answer);
    }
    if *result != Err(Errno::ESTALE) {
        return;
    }
    let until = w.now + HOLDING;
    for ino in walked(call) {
        if let Some(parent) = w.nodes.get(ino).map(|node| node.parent)
            && let Some(directory) = w.nodes.get_mut(parent)
        {
            directory.dir_mut().hold_until = Some(until);
        }
    }
}

/// The kernel takes a file to be as long as its calls have made it.
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

/// The nodes that a call came to by a path.
pub(crate) fn walked(call: &Call) -> SmallVec<[u64; 2]> {
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

/// The kernel waits for attributes of a node, or for their change by a call that it holds no lock for.
pub(crate) fn asked(cx: &mut Cx<'_>, ino: u64) {
    if !cx.began(Step::Asked) && cx.w.nodes.hold(ino, Hold::Asked) {
        cx.op.set_memo(Step::Asked, Memo::Asked(ino));
    }
}

/// Before a request that changes attributes of these nodes is sent: the kernel forgets them, and keeps none until the operation
/// ends. For from the moment at which the server has made the change others see it, and here its answer may take long. Nodes
/// that are not known are 0.
pub(crate) fn hide(cx: &mut Cx<'_>, nodes: &[u64]) -> Run<()> {
    if cx.began(Step::Main) {
        return Ok(());
    }
    let mut hidden = Ok(());
    for (&ino, number) in nodes.iter().zip(0..) {
        let (kept, told) = (Step::Hidden(number), Step::Hide(number));
        if let Some(&Memo::Asked(before)) = cx.op.memo(kept)
            && before != ino
        {
            // The name leads to something else by now.
            cx.w.release(before, Hold::Asked);
            cx.forget(kept);
            cx.forget(told);
        }
        let now = cx.w.now;
        if cx.w.nodes.get(ino).is_none() {
            continue;
        }
        if cx.op.memo(kept).is_none() {
            cx.w.nodes.hold(ino, Hold::Asked);
            if let Some(node) = cx.w.nodes.get_mut(ino).filter(|node| node.is_dir()) {
                node.dir_mut().changing_at = Some(now);
            }
            cx.op.set_memo(kept, Memo::Asked(ino));
        }
        hidden = hidden.and(cx.invalidate_kernel(told, ino, 0, 0));
    }
    hidden
}

/// What a name leads to that is about to be changed, as far as that is known and others may look at it; else 0. To what nobody has
/// open and has no other name programs come by this name, which the kernel holds until the change is answered.
pub(crate) fn known_child(cx: &Cx<'_>, parent: u64, name: &Bytes) -> u64 {
    let dir = cx.w.nodes.get(parent).and_then(|node| node.dir.as_ref());
    let entry = dir.and_then(|dir| dir.names.get(name.as_ref()));
    let child = entry.and_then(|entry| cx.w.nodes.get(entry.fid?.ino()));
    let open_or_linked = |node: &&Node| {
        node.is_held(Hold::Handle) || !node.is_regular() || node.attr.as_ref().is_none_or(|a| a.nlink > 1)
    };
    child.filter(open_or_linked).map_or(0, |node| node.ino())
}

/// An answer goes to the kernel. While another program's question about the same node waits for attributes, the kernel may
/// not keep these: it would have to be told to forget them, and then not believe the answer to that question. Nor while another
/// opens the file and cuts it: of these two answers the kernel may take in the one with the old size last. Nor those of a directory
/// that is changed from here one time after the other: it would have to be told to forget them before each.
pub(crate) fn shown(w: &mut World, answer: &mut Answer) {
    let now = w.now;
    let mut show = |stat: &mut Stat| {
        // No program sees the size in an answer that is not kept: the kernel asks again.
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
            stat.cacheable = !node.is_held(Hold::Asked) && !changes;
            if stat.cacheable {
                node.kernel.shown();
            }
        }
    };
    match answer {
        Answer::Entry(stat) | Answer::Attr(stat) | Answer::Created { stat, .. } => show(stat),
        Answer::Entries(entries) => entries.iter_mut().filter_map(|entry| entry.stat.as_mut()).for_each(show),
        _ => {}
    }
}

/// The lock of a node's names is gone without a callback.
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

/// The names of a node that the kernel knows, for it is told to forget them. That of a directory is remembered here.
fn take_names(node: &mut Node) -> KernelNames {
    let names = node.kernel.take_names();
    if let Some(name) = names.first().filter(|_| node.is_dir()) {
        node.dir_mut().named = Some(name.clone());
    }
    names
}

/// The kernel drops the names of a node, for their lock is about to go back. `wanted`: the server asked for it, and somebody
/// waits there. A lock that goes back for reasons of our own has time, whatever the kernel is doing: until it is gone
/// nobody can change the names.
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
    let there = |(_, memo): &(Step, Memo)| match memo {
        Memo::Name { parent, dropped: false } => Some(*parent),
        _ => None,
    };
    let parents: SmallVec<[u64; 2]> =
        cx.op.steps_in(Step::Name(0)..=Step::Name(u64::MAX)).iter().filter_map(there).collect();
    if parents.is_empty() {
        return Ok(());
    }
    if !wanted && !cx.w.unmounting {
        stdx::mark!("names_have_time");
        return Err(cx.wait(WaitKey::Gates));
    }
    let until = Instant(cx.memo(Step::NamesUntil).unwrap_or((cx.now() + PATIENCE).0));
    cx.set_memo(Step::NamesUntil, until.0);
    let stuck = cx.w.gates.iter().any(|gate| gate.removes && gate.directories.iter().any(|d| parents.contains(d)));
    if stuck || cx.now() >= until {
        stdx::mark!("names_not_waited_for");
        if let Some(node) = cx.w.nodes.get_mut(ino) {
            node.kernel.names_in_doubt();
        }
        return Ok(());
    }
    cx.w.set_timer(until);
    let _ = cx.wait(WaitKey::Timer);
    Err(cx.wait(WaitKey::Gates))
}
