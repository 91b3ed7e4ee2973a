//! Abandoned calls: calls whose programs were killed while a request was in flight.
//!
//! Such a call was answered `EINTR`, and its operation went on without a caller. What it obtains has no owner:
//! references that the kernel does not know of, open files without a descriptor. And the kernel was not told what it
//! changed: other programs may have looked meanwhile, so the kernel may cache the state from before.
//!
//! ```text
//! program       kernel                client                          server
//! mkdir d/x ──► MKDIR ──────────────► request ──────────────────────► (unreachable)
//! killed    ──► INTERRUPT ──────────► abandoned: EINTR
//!               stat d: no x ───────► asks the server ──────────────► (reachable again) makes d/x
//!                                     drops the reference to x   ◄─── answers
//!               d/x, attributes of d  ◄─ invalidated
//! ```

use bytes::Bytes;
use rules::names;
use smallvec::SmallVec;

use super::{lookup, open};
use crate::api::{Answer, Call, Effect, Invalidation};
use crate::cache::file::flags as o;
use crate::coherence::cx::Cx;
use crate::coherence::kernel;
use crate::coherence::op::{Disowned, Memo, OpState, Task};
use crate::coherence::world::World;

/// An abandoned call has ended, with this answer if it succeeded: starts to release what it obtained.
pub(crate) fn disown(w: &mut World, op: &OpState, call: &Call, answer: Option<&Answer>) {
    let mut nodes: SmallVec<[u64; 4]> = kernel::reached_by_path(call).into_iter().collect();
    nodes.extend(op.steps().iter().filter_map(|(_, memo)| match memo {
        Memo::Changing(ino) => Some(*ino),
        _ => None,
    }));
    let (mut lookups, mut opened) = (Vec::new(), None);
    match answer {
        Some(Answer::Entry(stat)) => lookups.push(stat.ino),
        Some(Answer::Created { stat, fh, .. }) => {
            lookups.push(stat.ino);
            opened = Some(*fh);
        }
        Some(Answer::Opened { fh, .. }) => opened = Some(*fh),
        Some(Answer::Entries(entries)) => {
            let counted = entries.iter().filter(|entry| entry.stat.is_some() && !names::is_dot(&entry.name));
            lookups.extend(counted.map(|entry| entry.ino));
        }
        _ => {}
    }
    nodes.extend(lookups.iter().copied());
    nodes.sort_unstable();
    nodes.dedup();
    let left = Disowned { nodes, data: changes_data(call), names: names(call), lookups, opened };
    w.spawn(Task::Disown(Box::new(left)));
}

/// Background: releases what an abandoned call has obtained.
pub(super) fn release_all(cx: &mut Cx<'_>, left: &Disowned) {
    if let Some(fh) = left.opened {
        // The handle is gone if the mount has ended meanwhile.
        let _ = match cx.w.files.get(fh).is_some_and(|file| file.flags & o::DIRECTORY != 0) {
            true => super::dir::releasedir(cx, fh),
            false => open::release(cx, fh, None),
        };
    }
    for (parent, name) in &left.names {
        cx.w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent: *parent, name: name.clone() }));
    }
    let length = if left.data { u64::MAX } else { 0 };
    for ino in &left.nodes {
        if cx.w.nodes.get(*ino).is_some_and(|node| node.kernel.knows()) {
            cx.w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino: *ino, offset: 0, length }));
        }
    }
    for ino in &left.lookups {
        lookup::forget(cx.w, *ino, 1);
    }
}

/// Names that a call adds or removes.
pub(super) fn names(call: &Call) -> SmallVec<[(u64, Bytes); 2]> {
    match call {
        Call::Create { parent, name, .. }
        | Call::Mknod { parent, name, .. }
        | Call::Mkdir { parent, name, .. }
        | Call::MkdirOn { parent, name, .. }
        | Call::Symlink { parent, name, .. }
        | Call::Unlink { parent, name }
        | Call::RemoveEntry { parent, name }
        | Call::Rmdir { parent, name }
        | Call::Link { new_parent: parent, new_name: name, .. } => SmallVec::from_iter([(*parent, name.clone())]),
        Call::Rename { parent, name, new_parent, new_name, .. } => {
            SmallVec::from_iter([(*parent, name.clone()), (*new_parent, new_name.clone())])
        }
        _ => SmallVec::new(),
    }
}

/// Whether a call may change what the kernel has in its page cache.
fn changes_data(call: &Call) -> bool {
    match call {
        Call::Setattr { set, .. } => set.size.is_some(),
        Call::Open { flags, .. } | Call::Create { flags, .. } => flags & o::TRUNC != 0,
        Call::Write { .. } | Call::Fallocate { .. } => true,
        _ => false,
    }
}
