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
use proto::msg::{LookupReq, OpenOp, Reint, ReintReq, bits};
use proto::{Errno, Fid, Opcode};
use smallvec::SmallVec;
use stdx::Instant;

use super::step;
use crate::api::{Answer, Call, Effect, Invalidation, KernelNames, SetStat, Stat};
use crate::closes;
use crate::cx::{Cx, Run, Stop};
use crate::data;
use crate::file::{Closing, flags as o};
use crate::node::Node;
use crate::op::{Memo, OpId, Task, WaitKey};
use crate::world::{ObjectLocks, World};

/// Longest that a callback waits for the kernel to drop names.
const PATIENCE: Duration = Duration::from_millis(20);
/// After an `ESTALE` lookups in the directory open what they find for this long.
const HOLDING: Duration = Duration::from_secs(2);
/// The kernel comes back for what it looked up within this time.
const HELD: Duration = Duration::from_secs(1);
/// A directory that was changed so short a time ago is taken to be changed again soon.
const CHANGES_WITHIN: Duration = Duration::from_millis(10);

/// The kernel's walk of a path does not take longer than this, once it has looked up the last name.
pub(super) const WALK: Duration = Duration::from_millis(100);

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
                node.kernel_size = *size;
            }
            return;
        }
        _ => return,
    };
    let ino = w.files.get(fh).map_or(0, |file| file.ino);
    if let Some(node) = w.nodes.get_mut(ino) {
        node.kernel_size = node.kernel_size.max(end);
    }
}

/// The nodes that a call came to by a path.
pub(super) fn walked(call: &Call) -> SmallVec<[u64; 2]> {
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
pub(super) fn asked(cx: &mut Cx<'_>, ino: u64) {
    if !cx.began(step::ASKED)
        && let Some(node) = cx.w.nodes.get_mut(ino)
    {
        node.asked += 1;
        cx.op.set_memo(step::ASKED, Memo::Asked(ino));
    }
}

/// An operation no longer needs that the kernel keeps no attributes of this node.
pub(crate) fn asked_no_more(w: &mut World, ino: u64) {
    if let Some(node) = w.nodes.get_mut(ino) {
        // It may have been dropped meanwhile, because its object is gone, and have come again.
        node.asked = node.asked.saturating_sub(1);
    }
}

/// Before a request that changes attributes of these nodes is sent: the kernel forgets them, and keeps none until the operation
/// ends. For from the moment at which the server has made the change others see it, and here its answer may take long. Nodes
/// that are not known are 0.
pub(crate) fn hide(cx: &mut Cx<'_>, nodes: &[u64]) -> Run<()> {
    if cx.began(step::MAIN) {
        return Ok(());
    }
    let mut hidden = Ok(());
    for (&ino, number) in nodes.iter().zip(0..) {
        let (kept, told) = (step::HIDDEN + number, step::HIDE + number);
        if let Some(&Memo::Asked(before)) = cx.op.memo(kept)
            && before != ino
        {
            // The name leads to something else by now.
            asked_no_more(cx.w, before);
            cx.forget(kept);
            cx.forget(told);
        }
        let now = cx.w.now;
        let Some(node) = cx.w.nodes.get_mut(ino) else { continue };
        if cx.op.memo(kept).is_none() {
            node.asked += 1;
            if node.is_dir() {
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
pub(super) fn known_child(cx: &Cx<'_>, parent: u64, name: &Bytes) -> u64 {
    let dir = cx.w.nodes.get(parent).and_then(|node| node.dir.as_ref());
    let entry = dir.and_then(|dir| dir.names.get(name.as_ref()));
    let child = entry.and_then(|entry| cx.w.nodes.get(entry.fid?.ino()));
    let open_or_linked =
        |node: &&Node| node.handles > 0 || !node.is_regular() || node.attr.as_ref().is_none_or(|a| a.nlink > 1);
    child.filter(open_or_linked).map_or(0, |node| node.ino)
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
        node.kernel_size = node.kernel_size.max(stat.size);
        if stat.cacheable {
            let changing_at = node.dir.as_ref().and_then(|dir| dir.changing_at);
            let changes = changing_at.is_some_and(|at| now.since(at) < CHANGES_WITHIN);
            stat.cacheable = node.asked == 0 && !changes;
            node.shown = node.shown.wrapping_add(u32::from(stat.cacheable));
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
    node.stale = node.lookups > 0;
    for (parent, name) in take_names(node) {
        w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name }));
    }
}

/// The names of a node that the kernel knows, for it is told to forget them. That of a directory is remembered here.
fn take_names(node: &mut Node) -> KernelNames {
    let names = core::mem::take(&mut node.kernel_names);
    if let Some(name) = names.first().filter(|_| node.is_dir()) {
        node.dir_mut().named = Some(name.clone());
    }
    names
}

/// Whether a directory that may have moved has the name still by which the kernel came to it. If so, and its name is locked again, it is
/// as if the kernel had looked it up now.
pub(super) fn still_named(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let Some(node) = cx.w.nodes.get_mut(ino) else { return Ok(false) };
    let Some((parent, name)) = node.dir.as_ref().and_then(|dir| dir.named.clone()) else {
        node.stale = false;
        return Ok(false);
    };
    let parent_fid = super::fid_of(parent)?;
    let dest = cx.w.mdt_of(parent_fid);
    cx.set_memo(step::NAMED_OF, ino);
    let cred = cx.cred().clone();
    let rep = cx.rpc_object(step::NAMED, dest, Opcode::MdsLookup, |w, _| {
        let want = w.want_locks(dest, ObjectLocks::ANY, false, Some(false));
        LookupReq { parent: parent_fid, name: name.clone(), want: Some(want), cred: Some(cred) }
    });
    if rep == Err(Stop::Wait) {
        return Err(Stop::Wait);
    }
    cx.forget(step::NAMED);
    cx.forget(step::NAMED_OF);
    let same = rep.is_ok_and(|rep| rep.attr.as_ref().is_some_and(|attr| attr.fid.ino() == ino));
    if let Some(node) = cx.w.nodes.get_mut(ino) {
        let locked = node.has(bits::LOOKUP);
        node.stale = same && !locked;
        if same && locked && node.kernel_names.is_empty() {
            stdx::mark!("still_named");
            node.kernel_names.push((parent, name));
        }
    }
    Ok(same)
}

/// The kernel drops the names of a node, for their lock is about to go back. `wanted`: the server asked for it, and somebody
/// waits there. A lock that goes back for reasons of our own has time, whatever the kernel is doing: until it is gone
/// nobody can change the names.
pub(super) fn forget_names(cx: &mut Cx<'_>, ino: u64, wanted: bool) -> Run<()> {
    if cx.memo(step::NAMES).is_none() {
        let Some(node) = cx.w.nodes.get_mut(ino) else { return Ok(()) };
        if ino == 1 || node.has(bits::LOOKUP) {
            return Ok(());
        }
        let names = take_names(node);
        cx.set_memo(step::NAMES, names.len() as u64);
        for ((parent, name), number) in names.into_iter().zip(0..) {
            let token = cx.w.token(cx.op.id, step::MANY + number);
            cx.op.set_memo(step::MANY + number, Memo::Token);
            cx.set_memo(step::PARENTS + number, parent);
            cx.w.effect(Effect::Invalidate(Invalidation::Entry { token, parent, name }));
        }
    }
    let count = cx.memo(step::NAMES).unwrap_or(0);
    let there = |number: &u64| matches!(cx.op.memo(step::MANY + number), Some(Memo::Token));
    let parents: SmallVec<[u64; 2]> =
        (0..count).filter(there).filter_map(|number| cx.memo(step::PARENTS + number)).collect();
    if parents.is_empty() {
        return Ok(());
    }
    if !wanted && !cx.w.unmounting {
        stdx::mark!("names_have_time");
        return Err(cx.wait(WaitKey::Gates));
    }
    let until = Instant(cx.memo(step::NAMES_UNTIL).unwrap_or((cx.now() + PATIENCE).0));
    cx.set_memo(step::NAMES_UNTIL, until.0);
    let stuck = cx.w.gates.iter().any(|gate| gate.removes && gate.directories.iter().any(|d| parents.contains(d)));
    if stuck || cx.now() >= until {
        stdx::mark!("names_not_waited_for");
        if let Some(node) = cx.w.nodes.get_mut(ino) {
            node.stale = node.lookups > 0;
        }
        return Ok(());
    }
    cx.w.set_timer(until);
    let _ = cx.wait(WaitKey::Timer);
    Err(cx.wait(WaitKey::Gates))
}

/// Whether a lookup in this directory is to open what it finds.
pub(super) fn holds(cx: &Cx<'_>, parent: u64) -> bool {
    let wanted = || {
        let directory = cx.w.nodes.get(parent).and_then(|node| node.dir.as_ref());
        directory.and_then(|dir| dir.hold_until).is_some_and(|until| cx.now() < until)
    };
    cx.began(step::HOLD) || !cx.began(step::MAIN) && wanted()
}

/// A lookup that opens what it finds, for a while.
pub(super) fn find_and_hold(cx: &mut Cx<'_>, parent: u64, fid: Fid, name: &Bytes) -> Run<Stat> {
    let dest = cx.w.mdt_of(fid);
    super::namespace::note_epoch(cx, step::EPOCH, parent);
    let first = !cx.replied(step::HOLD);
    let rep = cx.rpc_object(step::HOLD, dest, Opcode::MdsReint, |w, op| {
        w.opening = true;
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: Some(w.want_locks(dest, ObjectLocks::ANY, false, Some(false))),
            op: Some(Reint::Open(OpenOp {
                parent: Some(fid),
                name: name.clone(),
                flags: o::PATH,
                ..OpenOp::default()
            })),
        }
    })?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    if first {
        stdx::mark!("lookup_that_holds");
        let epochs = super::namespace::epochs(cx, [step::EPOCH, step::HOLD], &rep, parent, Some(attr));
        let version = rep.parent_attr.as_ref().map_or(0, |attr| attr.version);
        cx.w.learn_child(parent, name, attr, epochs, version);
        let open_xid = cx.reply_header(step::HOLD).map_or(proto::Xid(0), |header| header.xid);
        let now = cx.now();
        let node = cx.w.nodes.obtain(attr.fid);
        node.opens += 1;
        node.held = now + WALK;
        let closing = Box::new(Closing { ino: attr.fid.ino(), fid: attr.fid, dest, open_xid });
        let until = now + HELD;
        cx.spawn(Task::Hold { closing, until });
    }
    super::stat_of_name(cx, attr.fid.ino())
}

/// Background: what a lookup opened is closed, in time.
pub(super) fn hold(cx: &mut Cx<'_>, closing: &Closing, until: Instant) -> Run<()> {
    if cx.now() < until && !cx.w.unmounting {
        cx.w.set_timer(until);
        return Err(cx.wait(WaitKey::Timer));
    }
    closes::add(cx.w, closing.clone());
    Ok(())
}
