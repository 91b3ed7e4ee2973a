//! The check of a part of another target's change.

use proto::connect::LINK_MAX;
use proto::msg::{
    Act, AttrsAct, CrossObject, CrossPart, DirName, LinksAct, LockMode, MakeAct, NameAct, ParentAct, Policy, Removal,
    Resource, SeenObject, bits,
};
use proto::{ClientUuid, Errno, Fid};
use rules::mode::S_IFMT;
use rules::{Caller, Object, names};
use schema::{Entry, Inode, Record};
use target::{Cx, Stop, Vote};

use super::look::seen;
use super::{relayout, stripes};
use crate::known::Pending;
use crate::ops::create;
use crate::tree::{self, Node};
use crate::{Mdt, grants};

/// Checks a part of another target's change, and calls back conflicting locks.
pub fn prepare(mdt: &Mdt, cx: &mut Cx<'_>, part: &CrossPart) -> Result<Vote, Stop> {
    let (mut objects, mut wanted) = (Vec::new(), Vec::new());
    for step in &part.acts {
        let checked = match step.act.as_ref().ok_or(Errno::EPROTO)? {
            Act::Make(act) => check_make(cx, act).map(|()| true)?,
            Act::Name(act) => check_name(mdt, cx, act, &mut wanted)?,
            Act::Parent(ParentAct { fid, parent }) => {
                tree::find(cx, *fid)?.is_some_and(|dir| dir.inode.is_dir() && dir.inode.parent() == *parent)
            }
            Act::Attrs(act) => {
                check_attrs(cx, act)?;
                wanted.push((act.fid, stripes::ATTR_BITS));
                true
            }
            Act::Relayout(act) => relayout::check(cx, part, act, &mut wanted)?,
            Act::Links(act) => match check_links(mdt, cx, act, step.now_ns, &mut wanted)? {
                Some(object) => {
                    objects.push(object);
                    true
                }
                None => false,
            },
        };
        if !checked {
            return Ok(Vote::Changed);
        }
    }
    let mut free = Ok(());
    for (fid, bits) in wanted {
        free = free.and(cx.revoke_all(Resource::inode(fid), LockMode::Ex, Policy::Bits(bits)));
    }
    free.map(|()| Vote::Yes(objects))
}

/// The inode in a part.
pub(super) fn inode_of(act: &MakeAct) -> Result<Inode, Errno> {
    let inode = Inode::decode_record(&act.inode).map_err(|_| Errno::EPROTO)?;
    if inode.fid == act.fid { Ok(inode) } else { Err(Errno::EPROTO) }
}

fn check_make(cx: &mut Cx<'_>, act: &MakeAct) -> Result<(), Stop> {
    inode_of(act)?;
    let client = ClientUuid::from_bytes(&act.client).ok_or(Errno::EPROTO)?;
    create::may_use_fid(cx, act.fid, client).map(drop)
}

/// Whether the object is what the coordinator has seen.
fn is_as_seen(inode: &Inode, expected: Option<&SeenObject>, loses_last_name: bool) -> bool {
    let Some(expected) = expected else { return true };
    let seen = seen(inode);
    // Only of an empty directory that goes does it matter how many entries there are.
    let is_full = if loses_last_name { seen.is_full } else { expected.is_full };
    SeenObject { is_full, ..seen } == *expected
}

/// Checks a name. `wanted`: the locks to call back.
fn check_name(mdt: &Mdt, cx: &mut Cx<'_>, act: &NameAct, wanted: &mut Vec<(Fid, u64)>) -> Result<bool, Stop> {
    let DirName { parent, name } = &act.name;
    let dir = match tree::dir(cx, *parent) {
        Err(Stop::Errno(Errno::ESTALE | Errno::ENOTDIR | Errno::ENOENT)) => return Ok(false),
        other => other?,
    };
    if tree::may_have(cx, &dir.inode, name).is_err() {
        // The name belongs to another stripe.
        return Ok(false);
    }
    // If the name is to come from a stripe that had it before, that was looked at under this version of the layout.
    let place = mdt.place_here(cx, &Pending::default(), &dir, name)?;
    let leads_to = place.entry.as_ref().map(Entry::object);
    wanted.push((*parent, bits::UPDATE));
    Ok(is_as_seen(&dir.inode, act.seen.as_ref(), false) && leads_to == act.before.map(|object| object.fid))
}

/// Checks an object that gets or loses names. Returns it as it will be, `None` if it is not what the coordinator has seen.
fn check_links(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    act: &LinksAct,
    now_ns: i64,
    wanted: &mut Vec<(Fid, u64)>,
) -> Result<Option<CrossObject>, Stop> {
    let Some(node) = tree::find(cx, act.fid)? else {
        return if act.seen.is_some() { Ok(None) } else { Err(Errno::ENOENT.into()) };
    };
    let node = tree::without_lease(cx, node)?;
    let inode = &node.inode;
    if !is_as_seen(inode, act.seen.as_ref(), act.gained.is_none()) {
        return Ok(None);
    }
    if let Some(removal) = &act.removal {
        check_removal(cx, &node, removal)?;
    }
    if act.gained.is_none() && inode.stripes() != act.stripes {
        stdx::mark!("mdt.stripes_unknown");
        return Ok(None);
    }
    if act.lost.is_none() {
        check_link(inode, act.kind)?;
    }
    if let Some(DirName { parent, name }) = &act.lost
        && !inode.links.contains(*parent, name)
        && !inode.links.overflow
    {
        if act.seen.is_some() {
            // The name has gone since it was looked at.
            return Ok(None);
        }
        let line = format!("object {} lacks its name in directory {parent}: run lfsck", act.fid);
        cx.log(target::LogLevel::Error, line);
        return Err(Errno::EIO.into());
    }
    let written = match act.lost {
        Some(_) => None,
        None => Some(grants::written(cx, inode)?),
    };
    let mut after = node.inode;
    after.nlink = match (&act.lost, &act.gained) {
        (Some(_), None) => names::links_after_removal(&after).unwrap_or(0),
        (None, Some(_)) => after.nlink + 1,
        _ => after.nlink,
    };
    after.changed(now_ns);
    let mut attr = after.attr();
    written.iter().for_each(|written| written.merge(&mut attr));
    // Opens wait for its key, so the number of open files only falls.
    let destroyed = attr.nlink == 0 && mdt.opens.count(act.fid) == 0;
    // Clients drop their locks on what is destroyed without giving them back.
    let data = if destroyed { bits::DOM | bits::LAYOUT } else { 0 };
    wanted.push((act.fid, bits::LOOKUP | bits::UPDATE | data));
    Ok(Some(CrossObject { attr: Some(Box::new(attr)), destroyed }))
}

/// Checks a change of attributes of a stripe: it was allowed by the master. The key of the master is held, so its stripes exist.
fn check_attrs(cx: &mut Cx<'_>, act: &AttrsAct) -> Result<(), Stop> {
    let is_dir = attrs_of(act)?.is_dir();
    let stripe = stripes::find(cx, act.fid)?;
    if is_dir && stripe.inode.lmv.is_some() { Ok(()) } else { Err(Errno::EPROTO.into()) }
}

/// The inode in a change of attributes.
pub(super) fn attrs_of(act: &AttrsAct) -> Result<Inode, Errno> {
    Inode::decode_record(&act.inode).map_err(|_| Errno::EPROTO)
}

/// The rules for the removal of a name, after those for its directory.
fn check_removal(cx: &mut Cx<'_>, node: &Node, removal: &Removal) -> Result<(), Stop> {
    // The directory's own target has checked its permission bits.
    let dir = Object { mode: removal.parent_mode | 0o777, uid: removal.parent_uid, ..Object::default() };
    names::may_unlink(&Caller::new(removal.cred.as_ref()), dir, &node.inode, removal.rmdir)?;
    match node.inode.is_dir() && node.inode.dir.entries > 0 {
        true => Err(tree::not_empty(cx, node)),
        false => Ok(()),
    }
}

/// The rules for a further name.
fn check_link(inode: &Inode, kind: u32) -> Result<(), Errno> {
    match () {
        () if inode.is_dir() => Err(Errno::EPERM),
        () if inode.mode & S_IFMT != kind => Err(Errno::EPROTO),
        () if inode.nlink == 0 => Err(Errno::ENOENT),
        () if inode.nlink >= LINK_MAX => Err(Errno::EMLINK),
        () => Ok(()),
    }
}
