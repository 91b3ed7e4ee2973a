//! `link`: a further name for an object.

use crate::ops::{Change, subjects};
use crate::{Mdt, cross, grants, tree};
use bytes::Bytes;
use proto::connect::LINK_MAX;
use proto::msg::{LinkOp, bits};
use proto::{Errno, Operation};
use rules::access::{EXECUTE, WRITE};
use target::{Cx, Reply, Stop};

/// Executes a link.
pub fn link(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &LinkOp) -> Result<Reply, Stop> {
    let mut node = match tree::find(cx, op.fid)? {
        Some(node) => node,
        None => match cross::elsewhere(mdt, cx, op.fid)? {
            Some(on) => return cross::link(mdt, cx, change, op, on),
            None => return Err(Errno::ESTALE.into()),
        },
    };
    let mut parent = tree::dir(cx, op.parent)?;
    let place = mdt.free_place(cx, &change.caller, &parent, &op.name)?;
    change.caller.need(&parent.inode, WRITE | EXECUTE)?;
    match () {
        () if node.inode.is_dir() => return Err(Errno::EPERM.into()),
        () if node.inode.nlink == 0 || parent.inode.nlink == 0 => return Err(Errno::ENOENT.into()),
        () if node.inode.nlink >= LINK_MAX => return Err(Errno::EMLINK.into()),
        () => {}
    }
    cx.note_version(0, parent.inode.version);
    cx.pre_version(1, tree::version_of(&node.inode))?;
    cx.note_version(2, tree::NO_ENTRY);
    tree::revoke(cx, &[(parent.fid(), bits::UPDATE), (node.fid(), bits::UPDATE)])?;
    let written = grants::written(cx, &node.inode)?;

    subjects::note(cx, &subjects::linked(op))?;
    node.inode.nlink += 1;
    node.inode.changed(change.now_ns);
    node.inode.links.add(parent.inode.master(), Bytes::copy_from_slice(&op.name));
    node.put(cx);
    tree::put_entry(cx, &mut parent, &place, &op.name, &node);
    parent.inode.content_changed(change.now_ns);
    parent.put(cx);

    let reply = super::changed(cx, change, &node.inode, Some(&parent.inode), &written);
    mdt.entry_taken(place.key);
    cx.count(Operation::Link);
    Ok(reply)
}
