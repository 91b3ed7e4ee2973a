//! `.lustre`: the hidden name in the root, and `.lustre/fid`, in which every object has its FID as a name.
//!
//! No server has entries for these names, so lookups resolve them here: to a FID, whose metadata target is asked for the
//! object. A metadata target before version 0.3.0 has no `.lustre`, and then there is no such name. Nobody makes, removes
//! or renames these names; see `mdt` for the same rules.
//!
//! A FID names an object whatever the permissions of the directories above it are, and FIDs can be guessed. So they open
//! objects only for programs with `CAP_DAC_READ_SEARCH`, like open_by_handle_at(2). What the program then does with the
//! object is checked as ever.

use bytes::Bytes;
use proto::{Errno, Fid};
use rules::Caller;
use rules::access::Capability;
use rules::names::{self, is_dot_lustre, is_fixed};

use super::{alias, attributes, stat_of_name, walk};
use crate::api::{ALIAS, Answer, Call, Stat};
use crate::cache::names::KnownName;
use crate::cache::node::ROOT;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::world::World;

/// A lookup of one of these names; `None`: it is another name.
pub(super) fn lookup(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Option<Answer>> {
    let by_fid = parent == Fid::DOT_LUSTRE_FID.ino() && !names::is_dot(name);
    let hidden = parent == ROOT && name.as_ref() == names::DOT_LUSTRE;
    if !by_fid && !hidden {
        return Ok(None);
    }
    walk(cx, parent)?;
    let fid = if by_fid { named(cx, name)? } else { Fid::DOT_LUSTRE };
    let stat = match find(cx, fid) {
        Err(Stop::Errno(Errno::ESTALE)) => return Err(Errno::ENOENT.into()),
        found => found?,
    };
    let alias = if cx.w.by_alias { ALIAS } else { 0 };
    Ok(Some(Answer::Entry(match by_fid {
        // The kernel asks each time, for the next program may not open by FID.
        true => alias::referenced(cx.w, stat, parent | alias, name),
        false => super::lookup::found(cx.w, stat, parent, name),
    })))
}

/// The object that a name in `.lustre/fid` stands for.
fn named(cx: &Cx<'_>, name: &Bytes) -> Run<Fid> {
    if !Caller::of(cx.cred()).capable(Capability::DacReadSearch) {
        return Err(Errno::EPERM.into());
    }
    let fid = core::str::from_utf8(name).ok().and_then(|text| text.parse::<Fid>().ok());
    fid.filter(|fid| fid.is_normal() || fid.is_built_in()).ok_or(Errno::ENOENT.into())
}

/// The attributes of an object that has a name.
fn find(cx: &mut Cx<'_>, fid: Fid) -> Run<Stat> {
    attributes(cx, fid.ino(), true)?;
    let stat = stat_of_name(cx, fid.ino())?;
    if stat.nlink == 0 { Err(Errno::ENOENT.into()) } else { Ok(stat) }
}

/// Refuses changes of names and attributes that are the same in every file system, with `EPERM`.
pub(super) fn check(w: &World, call: &Call) -> Run<()> {
    let fid = |ino: u64| Fid::from_ino(ino).unwrap_or(Fid::NONE);
    let fixed = |ino: u64| is_fixed(fid(ino));
    let made = |parent: u64, name: &Bytes| fixed(parent) || is_dot_lustre(fid(parent), name);
    // An older version may have let somebody make the name: then it can be taken away.
    let entry = || w.nodes.known_name(ROOT, names::DOT_LUSTRE) != KnownName::Nothing;
    let taken = |parent: u64, name: &Bytes| fixed(parent) || is_dot_lustre(fid(parent), name) && !entry();
    let refused = match call {
        Call::Setattr { ino, .. }
        | Call::Setxattr { ino, .. }
        | Call::Removexattr { ino, .. }
        | Call::SetDirDefault { ino, .. }
        | Call::SetDirLayout { ino, .. }
        | Call::SetLayout { ino, .. } => fixed(*ino),
        Call::Mknod { parent, name, .. }
        | Call::Mkdir { parent, name, .. }
        | Call::MkdirOn { parent, name, .. }
        | Call::Symlink { parent, name, .. }
        | Call::Create { parent, name, .. }
        | Call::Link { new_parent: parent, new_name: name, .. } => made(*parent, name),
        Call::Unlink { parent, name } | Call::Rmdir { parent, name } | Call::RemoveEntry { parent, name } => {
            taken(*parent, name)
        }
        Call::Rename { parent, name, new_parent, new_name, .. } => taken(*parent, name) || made(*new_parent, new_name),
        _ => false,
    };
    if refused { Err(Errno::EPERM.into()) } else { Ok(()) }
}
