//! Changes of mode, owner, times and size.

use crate::cross::stripes;
use crate::grants::{self, Written};
use crate::ops::subjects::{self, Subject};
use crate::ops::{Change, data};
use crate::tree::{self, Node};
use crate::{Mdt, attrs, tasks};
use proto::connect::DOM_SIZE_MAX;
use proto::msg::{CrossOperation, SetattrOp, bits, valid};
use proto::{Errno, Operation};
use target::{Cx, Reply, Stop};

/// Executes a setattr. If a file's data is on object targets, the client truncates it there; this operation only checks the
/// permission and changes times and set-id bits.
pub fn setattr(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &SetattrOp) -> Result<Reply, Stop> {
    let (node, written) = set(mdt, cx, change, op)?;
    let reply = super::changed(cx, change, &node.inode, None, &written);
    cx.count(Operation::Setattr);
    Ok(reply)
}

/// Checks a change of attributes and writes it. Memory does not change. Returns the changed object, and what the client that
/// writes its data knows of it.
pub fn set(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &SetattrOp) -> Result<(Node, Written), Stop> {
    let mut node = tree::node(cx, op.fid)?;
    stripes::is_whole(cx, &node.inode)?;
    let open = mdt.opens.find(cx.export(), op.handle).map(|(_, file)| file);
    let may_truncate = open.is_some_and(|file| file.fid == op.fid && file.writes);
    let before = node.inode.clone();
    attrs::change(&change.caller, &mut node.inode, op, change.now_ns, may_truncate || cx.is_replay())?;
    let housekeeping = op.valid & valid::HOUSEKEEPING != 0;
    let sized = op.valid & valid::SIZE != 0 && node.inode.is_resident();
    if sized {
        mdt.check_growth(&node.inode, op.size)?;
    }
    cx.pre_version(0, tree::version_of(&before))?;
    if !housekeeping {
        tree::revoke(cx, &[(op.fid, bits_of(&before, &node.inode, sized))])?;
    }
    if !housekeeping && stripes::has(&node.inode) {
        return stripes::set_attrs(cx, change, CrossOperation::Setattr, &node.inode, op.valid);
    }
    if sized {
        data::resize(cx, &mut node, op.size)?;
    }
    let written = grants::written(cx, &before)?;

    subjects::note(cx, &[Subject::Object(op.fid)])?;
    node.put(cx);
    if (before.uid, before.gid) != (node.inode.uid, node.inode.gid) && !node.inode.is_resident() {
        tasks::update_owner(cx, op.fid);
    }
    Ok((node, written))
}

/// The lock bits to call back from other clients.
fn bits_of(before: &schema::Inode, after: &schema::Inode, sized: bool) -> u64 {
    let mut wanted = bits::UPDATE;
    if (before.mode, before.uid, before.gid) != (after.mode, after.uid, after.gid) {
        wanted |= bits::PERM | bits::LOOKUP;
    }
    if before.xattrs != after.xattrs {
        wanted |= bits::XATTR;
    }
    if sized {
        wanted |= bits::DOM;
    }
    wanted
}

impl Mdt {
    /// Checks whether a resident file may have this size. `EFBIG`: its data must move to object targets first. Clients use the
    /// limit that was set when they connected. The setting may have changed since, so the target only enforces its maximum.
    pub(crate) fn check_growth(&self, inode: &schema::Inode, size: u64) -> Result<(), Errno> {
        match () {
            () if size <= inode.size.max(u64::from(DOM_SIZE_MAX)) => Ok(()),
            () if self.osts.is_empty() => Err(Errno::ENOSPC),
            () => Err(Errno::EFBIG),
        }
    }
}
