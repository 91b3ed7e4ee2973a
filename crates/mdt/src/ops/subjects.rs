//! The subjects of a change: the objects and names in its request.
//!
//! They determine which records a replay will read ([`super::prefetch`]), and which changes of other clients depend on this
//! change or the other way round ([`note`]). The object that a name leads to is known only when the change is made; see
//! [`note_victim`].

use crate::cross;
use crate::tree::Node;
use bytes::Bytes;
use proto::Fid;
use proto::msg::{LinkOp, OpenOp, Reint, RenameOp, UnlinkOp};
use target::{Cx, ShareKey, Stop};

/// An object or a name that a change concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject<'a> {
    /// An existing object.
    Object(Fid),
    /// An object that the change makes.
    New(Fid),
    /// A name.
    Name {
        /// The directory.
        parent: Fid,
        /// The name in it.
        name: &'a Bytes,
        /// What becomes of it.
        fate: Fate,
    },
}

/// What becomes of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// After the change the name leads to an object, whether it did before or not.
    Taken,
    /// After the change the name does not exist.
    Freed,
}

/// The subjects of a create.
pub fn created(parent: Fid, name: &Bytes, fid: Fid) -> [Subject<'_>; 2] {
    [Subject::Name { parent, name, fate: Fate::Taken }, Subject::New(fid)]
}

/// The subjects of a further link.
pub fn linked(op: &LinkOp) -> [Subject<'_>; 2] {
    [Subject::Name { parent: op.parent, name: &op.name, fate: Fate::Taken }, Subject::Object(op.fid)]
}

/// The subjects of a removal.
pub fn removed(op: &UnlinkOp) -> [Subject<'_>; 1] {
    [Subject::Name { parent: op.parent, name: &op.name, fate: Fate::Freed }]
}

/// The names of a rename. A whiteout takes the old name.
pub fn renamed(op: &RenameOp) -> [Subject<'_>; 2] {
    let fate = if op.whiteout.is_some() { Fate::Taken } else { Fate::Freed };
    [
        Subject::Name { parent: op.source_parent, name: &op.source_name, fate },
        Subject::Name { parent: op.target_parent, name: &op.target_name, fate: Fate::Taken },
    ]
}

/// Everything that an open may concern: the file that the client knows, or the name and the file that the open makes.
fn opened(op: &OpenOp) -> Vec<Subject<'_>> {
    let known = Subject::Object(op.opened_fid.unwrap_or(op.fid));
    let made = op.parent.map(|parent| created(parent, &op.name, op.fid));
    core::iter::once(known).chain(made.into_iter().flatten()).collect()
}

/// The subjects of any change.
pub fn of(change: &Reint) -> Vec<Subject<'_>> {
    match change {
        Reint::Setattr(op) => vec![Subject::Object(op.fid)],
        Reint::Setxattr(op) => vec![Subject::Object(op.fid)],
        Reint::Setlayout(op) => vec![Subject::Object(op.fid)],
        Reint::Relayout(op) => vec![Subject::Object(op.fid)],
        Reint::Create(op) => created(op.parent, &op.name, op.fid).into(),
        Reint::Link(op) => linked(op).into(),
        Reint::Unlink(op) => removed(op).into(),
        Reint::Rename(op) => renamed(op).into_iter().chain(op.whiteout.map(Subject::New)).collect(),
        Reint::Open(op) => opened(op),
    }
}

/// Waits until none of the subjects is under a change with parts on other targets, before the first write. Records the
/// dependencies of a change: it depends on the directories of its names, and later changes of the same names and objects
/// depend on it.
pub fn note(cx: &mut Cx<'_>, subjects: &[Subject<'_>]) -> Result<(), Stop> {
    for subject in subjects {
        match *subject {
            Subject::Object(fid) => {
                cx.writes(cross::object_key(fid))?;
                cx.changed(ShareKey::object(fid));
            }
            Subject::New(fid) => {
                cx.claims(cross::object_key(fid))?;
                cx.changed(ShareKey::object(fid));
            }
            Subject::Name { parent, name, fate } => {
                if cx.keys_are_held() {
                    cx.claims(cross::name_key(parent, name))?;
                }
                cx.depends_on(ShareKey::object(parent));
                cx.changed(ShareKey::name(parent, name));
                if fate == Fate::Freed {
                    cx.blind_write(ShareKey::emptied(parent));
                }
            }
        }
    }
    Ok(())
}

/// The same for an object that loses a name. The removal of a directory depends on the changes that emptied it.
pub fn note_victim(cx: &mut Cx<'_>, victim: &Node) -> Result<(), Stop> {
    cx.writes(cross::object_key(victim.fid()))?;
    cx.changed(ShareKey::object(victim.fid()));
    if victim.inode.is_dir() {
        cx.depends_on(ShareKey::emptied(victim.fid()));
    }
    Ok(())
}
