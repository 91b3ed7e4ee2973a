//! Changes of extended attributes: set and remove. An access list is checked and changes the mode.

use crate::cross::stripes;
use crate::grants;
use crate::ops::Change;
use crate::ops::subjects::{self, Subject};
use crate::ops::xattr::is_always_inline;
use crate::tree::{self, Node};
use crate::xattrs::{self, INLINE_MAX, INLINE_TOTAL_MAX, NAMES_MAX, Namespace};
use bytes::Bytes;
use proto::connect::XATTR_SIZE_MAX;
use proto::msg::{CrossOperation, SetxattrOp, bits};
use proto::{Errno, Operation};
use rules::acl;
use rules::mode::S_IFMT;
use schema::{InodeXattr, LargeXattr};
use target::{Cx, Reply, Stop};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// Executes a setxattr.
pub fn setxattr(cx: &mut Cx<'_>, change: &Change<'_>, op: &SetxattrOp) -> Result<Reply, Stop> {
    let mut node = tree::node(cx, op.fid)?;
    stripes::is_whole(cx, &node.inode)?;
    let kind = xattrs::namespace(&op.name)?;
    if op.value.len() > XATTR_SIZE_MAX {
        return Err(Errno::E2BIG.into());
    }
    if op.flags & !(CREATE | REPLACE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    xattrs::may_write(&change.caller, &node.inode, &op.name, kind)?;
    let old_version = tree::version_of(&node.inode);
    let mode = node.inode.mode;
    let wanted = match (kind, op.remove) {
        (Namespace::Acl, false) => set_list(change, &mut node, op)?,
        (_, false) => Some(op.value.clone()),
        (_, true) => None,
    };
    let at = node.inode.xattrs.iter().position(|xattr| xattr.name == op.name);
    match at {
        Some(_) if op.flags & CREATE != 0 && !op.remove => return Err(Errno::EEXIST.into()),
        None if op.flags & REPLACE != 0 && !op.remove => return Err(Errno::ENODATA.into()),
        None if op.remove => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    let mut revoked = bits::XATTR | bits::UPDATE;
    if kind == Namespace::Acl || mode != node.inode.mode {
        revoked |= bits::PERM | bits::LOOKUP;
    }
    cx.pre_version(0, old_version)?;
    tree::revoke(cx, &[(op.fid, revoked)])?;
    let written = grants::written(cx, &node.inode)?;
    if stripes::is_common(&op.name) && stripes::has(&node.inode) {
        // It is in the inode, so nothing else is written.
        store(cx, &mut node, at, &op.name, wanted)?;
        node.inode.changed(change.now_ns);
        return stripes::set_attrs(cx, change, CrossOperation::Setxattr, &node.inode, 0);
    }

    subjects::note(cx, &[Subject::Object(op.fid)])?;
    store(cx, &mut node, at, &op.name, wanted)?;
    node.inode.changed(change.now_ns);
    node.put(cx);
    let reply = super::changed(cx, change, &node.inode, None, &written);
    cx.count(Operation::Setxattr);
    Ok(reply)
}

/// Checks an access list and updates the mode from it. Returns the value to store, or `None` if the mode says all.
fn set_list(change: &Change<'_>, node: &mut Node, op: &SetxattrOp) -> Result<Option<Bytes>, Errno> {
    let Some(list) = acl::Acl::parse(&op.value)? else { return Ok(None) };
    if op.name == acl::DEFAULT {
        return Ok(Some(list.to_value()));
    }
    let inode = &mut node.inode;
    let mode = inode.mode & (S_IFMT | 0o7000) | list.mode();
    inode.mode = change.caller.mode_allowed(mode, inode.gid);
    Ok((!list.is_a_mode()).then(|| list.to_value()))
}

/// Stores a value in the inode or in a record of its own, or removes it. The caller writes the inode.
fn store(
    cx: &mut Cx<'_>,
    node: &mut Node,
    at: Option<usize>,
    name: &Bytes,
    wanted: Option<Bytes>,
) -> Result<(), Errno> {
    let id = (node.ino, Bytes::copy_from_slice(name));
    let xattrs = &mut node.inode.xattrs;
    let old = at.map(|at| xattrs.remove(at));
    let was_large = old.as_ref().is_some_and(|old| old.large);
    let Some(value) = wanted else {
        if was_large {
            cx.delete::<LargeXattr>(&id);
        }
        return Ok(());
    };
    let names: usize = xattrs.iter().map(|xattr| xattr.name.len() + 1).sum();
    if names + name.len() + 1 > NAMES_MAX {
        return Err(Errno::ENOSPC);
    }
    let inline: usize =
        xattrs.iter().filter(|xattr| !is_always_inline(&xattr.name)).map(|xattr| xattr.value.len()).sum();
    let fits = value.len() <= INLINE_MAX && inline + value.len() <= INLINE_TOTAL_MAX;
    let large = !fits && !is_always_inline(name);
    let value = Bytes::copy_from_slice(&value);
    let kept = if large { Bytes::new() } else { value.clone() };
    match (large, was_large) {
        (true, _) => cx.put::<LargeXattr>(&id, &LargeXattr(value)),
        (false, true) => cx.delete::<LargeXattr>(&id),
        (false, false) => {}
    }
    let xattr = InodeXattr { name: id.1, value: kept, large };
    match at {
        Some(at) => xattrs.insert(at, xattr),
        None => xattrs.push(xattr),
    }
    Ok(())
}
