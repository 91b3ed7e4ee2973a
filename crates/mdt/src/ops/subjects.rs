//! What a change is about: the objects and names that its request tells.
//!
//! Two things follow from that alone: which records its replay will read ([`super::prefetch`]), and which changes of other clients it
//! hangs on, and which of theirs on it ([`note`]). What a name leads to is found only when the change is made; see [`note_victim`].

use crate::tree::Node;
use bytes::Bytes;
use proto::Fid;
use proto::msg::{LinkOp, OpenOp, Reint, RenameOp, UnlinkOp};
use target::{Cx, ShareKey};

/// An object or a name that a change is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject<'a> {
    /// An object that is there.
    Object(Fid),
    /// One that comes to be.
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
    /// It leads to something, whatever it led to before.
    Taken,
    /// It leads nowhere.
    Freed,
}

/// A new object with a name.
pub fn created(parent: Fid, name: &Bytes, fid: Fid) -> [Subject<'_>; 2] {
    [Subject::Name { parent, name, fate: Fate::Taken }, Subject::New(fid)]
}

/// A further name.
pub fn linked(op: &LinkOp) -> [Subject<'_>; 2] {
    [Subject::Name { parent: op.parent, name: &op.name, fate: Fate::Taken }, Subject::Object(op.fid)]
}

/// A removal.
pub fn removed(op: &UnlinkOp) -> [Subject<'_>; 1] {
    [Subject::Name { parent: op.parent, name: &op.name, fate: Fate::Freed }]
}

/// Both names. A whiteout, if there is one, is [`created`] under the old one.
pub fn renamed(op: &RenameOp) -> [Subject<'_>; 2] {
    let fate = if op.whiteout.is_some() { Fate::Taken } else { Fate::Freed };
    [
        Subject::Name { parent: op.source_parent, name: &op.source_name, fate },
        Subject::Name { parent: op.target_parent, name: &op.target_name, fate: Fate::Taken },
    ]
}

/// All that an open may come to be about: the file that the client knows, or the name and the file that it makes.
fn opened(op: &OpenOp) -> Vec<Subject<'_>> {
    let known = Subject::Object(op.opened_fid.unwrap_or(op.fid));
    let made = op.parent.map(|parent| created(parent, &op.name, op.fid));
    core::iter::once(known).chain(made.into_iter().flatten()).collect()
}

/// Of any change.
pub fn of(change: &Reint) -> Vec<Subject<'_>> {
    match change {
        Reint::Setattr(op) => vec![Subject::Object(op.fid)],
        Reint::Setxattr(op) => vec![Subject::Object(op.fid)],
        Reint::Setlayout(op) => vec![Subject::Object(op.fid)],
        Reint::Create(op) => created(op.parent, &op.name, op.fid).into(),
        Reint::Link(op) => linked(op).into(),
        Reint::Unlink(op) => removed(op).into(),
        Reint::Rename(op) => renamed(op).into_iter().chain(op.whiteout.map(Subject::New)).collect(),
        Reint::Open(op) => opened(op),
    }
}

/// Notes that a change which is now made is about these: it hangs on the directories of its names, and what is done to the same names
/// and objects later hangs on it.
pub fn note(cx: &mut Cx<'_>, subjects: &[Subject<'_>]) {
    for subject in subjects {
        match *subject {
            Subject::Object(fid) | Subject::New(fid) => cx.changed(ShareKey::object(fid)),
            Subject::Name { parent, name, fate } => {
                cx.depends_on(ShareKey::object(parent));
                cx.changed(ShareKey::name(parent, name));
                if fate == Fate::Freed {
                    cx.touched(ShareKey::emptied(parent));
                }
            }
        }
    }
}

/// The same of an object that a name led to and that loses that name. That a directory can go hangs on whoever took the last name out
/// of it.
pub fn note_victim(cx: &mut Cx<'_>, victim: &Node) {
    cx.changed(ShareKey::object(victim.fid()));
    if victim.inode.is_dir() {
        cx.depends_on(ShareKey::emptied(victim.fid()));
    }
}
