//! The removal of a name: `unlink` and `rmdir`.

use crate::cross::{self, stripes};
use crate::ops::{Change, subjects};
use crate::tree::{self, Dir, Node, Place};
use crate::{Mdt, grants, tasks};
use proto::msg::{ObjectRep, Resource, UnlinkOp};
use proto::{Errno, Operation};
use rules::access::{Capability, EXECUTE, WRITE};
use rules::mode::S_IFDIR;
use rules::names;
use target::{Cx, LogLevel, Reply, Stop};

/// Executes an unlink or rmdir.
pub fn unlink(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &UnlinkOp) -> Result<Reply, Stop> {
    let mut parent = Dir::find(cx, op.parent)?;
    if op.entry_only {
        return remove_entry(mdt, cx, change, op, parent);
    }
    let removed = remove(mdt, cx, change, op, &mut parent)?;
    parent.write(cx);
    let reply = Reply::new(&ObjectRep {
        attr: Some(grants::attr_for(cx, &removed.child.inode)),
        parent_attr: Some(grants::attr_for(cx, &parent.node.inode)),
        locks: grants::grant(cx, &change.want, None, Some(op.parent)),
        destroyed: removed.gone != Gone::No,
        ..ObjectRep::default()
    });
    mdt.removed(cx, &removed);
    Ok(reply)
}

/// Removes a name that leads to another metadata target, which takes no part: it is lost, or has no such object.
fn remove_entry(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &UnlinkOp,
    mut dir: Dir,
) -> Result<Reply, Stop> {
    if !change.caller.capable(Capability::SysAdmin) {
        return Err(Errno::EPERM.into());
    }
    let parent = &dir.node;
    change.caller.need(&parent.inode, WRITE | EXECUTE)?;
    names::check(&op.name)?;
    if names::is_dot(&op.name) {
        return Err(Errno::EINVAL.into());
    }
    let place = mdt.place_after(cx, &dir.pending, parent, &op.name)?;
    let entry = place.entry.as_ref().ok_or(Errno::ENOENT)?;
    if entry.mdt.is_none() {
        return Err(Errno::EINVAL.into());
    }
    let is_dir = cross::named(cx, entry).mode == S_IFDIR;
    let tombstone = mdt.chain_continues(cx, &dir.pending, &place)?;
    cx.note_version(0, parent.inode.version);
    dir.claim(cx)?;
    subjects::note(cx, &subjects::removed(op))?;

    let line = format!("the name '{}' in {} is removed without its object", op.name.escape_ascii(), op.parent);
    cx.log(LogLevel::Warn, line);
    take_name(cx, &mut dir, (&place, tombstone), is_dir, change.now_ns);
    dir.write(cx);
    let parent_attr = Some(grants::attr_for(cx, &dir.node.inode));
    let locks = grants::grant(cx, &change.want, None, Some(op.parent));
    mdt.entry_freed(place.key, tombstone);
    cx.count(if is_dir { Operation::Rmdir } else { Operation::Unlink });
    Ok(Reply::new(&ObjectRep { parent_attr, locks, ..ObjectRep::default() }))
}

/// A removed name. The caller passes it to [`Mdt::removed`].
#[derive(Debug)]
pub struct Removed {
    /// The object after the removal.
    pub child: Node,
    place: Place,
    tombstone: bool,
    /// What became of the object.
    pub gone: Gone,
}

/// Checks the removal of a name and writes all records except that of the directory. Memory does not change.
pub fn remove(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &UnlinkOp, dir: &mut Dir) -> Result<Removed, Stop> {
    let parent = &dir.node;
    change.caller.need(&parent.inode, EXECUTE)?;
    names::check(&op.name)?;
    if names::is_dot(&op.name) {
        return Err(names::removal_of_dot(&op.name, op.rmdir).into());
    }
    let place = mdt.place_after(cx, &dir.pending, parent, &op.name)?;
    let entry = place.entry.as_ref().ok_or(Errno::ENOENT)?;
    if entry.mdt.is_some() {
        let entry = entry.clone();
        return cross::unlink(cx, change, op, dir, (&entry, None));
    }
    let mut child = tree::losing_name(cx, entry)?;
    if !child.inode.stripes().is_empty() {
        stripes::may_see(cx, &child.inode)?;
        let entry = entry.clone();
        return cross::unlink(cx, change, op, dir, (&entry, Some(&child)));
    }
    let tombstone = mdt.chain_continues(cx, &dir.pending, &place)?;
    names::may_unlink(&change.caller, &parent.inode, &child.inode, op.rmdir)?;
    let is_dir = child.inode.is_dir();
    if is_dir && child.inode.dir.entries > 0 {
        return Err(tree::not_empty(cx, &child));
    }
    cx.note_version(0, parent.inode.version);
    cx.pre_version(1, tree::version_of(&child.inode))?;
    // Both callbacks go out at once.
    let child_is_free = tree::revoke_named(cx, &child, op.reported);
    dir.claim(cx)?;
    child_is_free?;

    subjects::note(cx, &subjects::removed(op))?;
    subjects::note_victim(cx, &child)?;
    child.inode.links.remove(dir.node.inode.master(), &op.name);
    // This may find a damaged record, and must come before the directory changes.
    let gone = drop_link(mdt, cx, &mut child, change.now_ns)?;
    take_name(cx, dir, (&place, tombstone), is_dir, change.now_ns);
    Ok(Removed { child, place, tombstone, gone })
}

/// Takes a name out of its directory.
fn take_name(cx: &mut Cx<'_>, dir: &mut Dir, (place, tombstone): (&Place, bool), is_dir: bool, now_ns: i64) {
    let parent = &mut dir.node;
    tree::remove_entry(cx, parent, place, tombstone);
    if is_dir {
        tree::count_directories(cx, parent, -1);
    }
    dir.entries_changed(now_ns);
}

/// What became of an object that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// It still exists: it has other names, or is open.
    No,
    /// It was destroyed, and has no objects on object targets.
    Destroyed,
    /// It was destroyed, and its objects on object targets must be destroyed, too.
    WithObjects,
}

/// Writes an object that lost a name: it stays, becomes an orphan, or is destroyed. The caller has updated the linkEA.
pub fn drop_link(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut Node, now_ns: i64) -> Result<Gone, Stop> {
    node.inode.nlink = match names::links_after_removal(&node.inode) {
        Some(left) => left,
        None => {
            let line = format!("object {} has a name and counts none: its record is wrong; run lfsck", node.fid());
            cx.log(target::LogLevel::Error, line);
            0
        }
    };
    node.inode.changed(now_ns);
    if node.inode.nlink > 0 {
        node.put(cx);
        return Ok(Gone::No);
    }
    if mdt.opens.count(node.fid()) > 0 {
        tree::make_orphan(cx, node);
        return Ok(Gone::No);
    }
    node.inode.version = cx.transno().0;
    Ok(if tree::destroy(mdt, cx, node)? { Gone::WithObjects } else { Gone::Destroyed })
}

impl Mdt {
    /// Memory: applies a removal by [`remove`].
    pub(crate) fn removed(&mut self, cx: &mut Cx<'_>, removed: &Removed) {
        self.entry_freed(removed.place.key, removed.tombstone);
        self.link_dropped(cx, &removed.child, removed.gone);
        cx.count(if removed.child.inode.is_dir() { Operation::Rmdir } else { Operation::Unlink });
    }

    /// Memory: applies [`drop_link`]. All locks on a destroyed object are dropped; the reply tells the requester that the
    /// object is destroyed.
    pub(crate) fn link_dropped(&mut self, cx: &mut Cx<'_>, node: &Node, gone: Gone) {
        if gone == Gone::No {
            return;
        }
        cx.drop_locks(Resource::inode(node.fid()));
        if node.inode.is_dir() {
            self.known.forget(node.ino);
            self.layout_changed(cx, node.fid(), None);
        }
        if gone == Gone::WithObjects {
            self.destroys.add(cx.transno(), tree::objects_of(&node.inode));
        }
        if node.inode.next_object != 0 {
            tasks::drop_copies(cx, node.fid());
        }
    }
}
