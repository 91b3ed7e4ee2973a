//! Layouts: a directory's default, a file's before it has data, and the move of a file's data to object targets.

use crate::ops::Change;
use crate::tree::{self, Node};
use crate::{Mdt, layouts};
use proto::Errno;
use proto::msg::{Layout, LockMode, Policy, Resource, SetlayoutKind, SetlayoutOp, bits};
use schema::SmallData;
use target::{Cx, Reply, ShareKey, Stop};

/// See the module.
pub fn setlayout(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change, op: &SetlayoutOp) -> Result<Reply, Stop> {
    let mut node = tree::node(cx, op.fid)?;
    cx.pre_version(0, tree::version_of(&node.inode))?;
    let wanted = op.layout.clone().unwrap_or_default();
    match SetlayoutKind::try_from(op.kind).map_err(|_| Errno::EINVAL)? {
        SetlayoutKind::Set => {
            set(mdt, change, &mut node, &wanted)?;
            node.inode.ctime_ns = change.now_ns;
        }
        SetlayoutKind::Leave => leave(cx, &mut node, op, &wanted)?,
    }
    tree::revoke(cx, &[(op.fid, bits::LAYOUT | bits::UPDATE)])?;

    cx.changed(ShareKey::object(op.fid));
    node.put(cx);
    let reply = super::changed(cx, change, &node.inode, None);
    mdt.stats.count("setattr");
    Ok(reply)
}

/// `lfs setstripe`. A default without any wish removes the default.
fn set(mdt: &Mdt, change: &Change, node: &mut Node, wanted: &Layout) -> Result<(), Errno> {
    let inode = &mut node.inode;
    if !inode.is_dir() && !inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !change.caller.is_owner(inode) {
        return Err(Errno::EPERM);
    }
    let default = layouts::checked_default(wanted, &mdt.osts)?;
    if inode.is_dir() {
        let no_wish = default.stripe_size == 0 && default.want_count == 0 && default.want_first == -1;
        inode.layout = (!no_wish).then_some(default);
        return Ok(());
    }
    if !inode.is_resident() || inode.size > 0 || inode.leaving {
        return Err(Errno::EEXIST);
    }
    let generation = inode.layout.as_ref().map_or(0, |layout| layout.generation);
    let mut layout = layouts::of_new_file(Some(&default), &mdt.osts, inode.fid, true);
    layout.generation = generation + 1;
    inode.layout = Some(layout);
    Ok(())
}

/// The data has been copied to objects, which are durable: the copy here goes with this change.
fn leave(cx: &mut Cx<'_>, node: &mut Node, op: &SetlayoutOp, copied: &Layout) -> Result<(), Stop> {
    if !node.inode.is_resident() {
        return Err(Errno::EALREADY.into());
    }
    let ours = node.inode.layout.clone().unwrap_or_default();
    let valid = !copied.osts.is_empty()
        && copied.osts.len() <= layouts::STRIPE_COUNT_MAX
        && copied.stripe_size > 0
        && copied.stripe_size.is_multiple_of(layouts::STRIPE_SIZE_UNIT);
    if !valid {
        return Err(Errno::EINVAL.into());
    }
    if copied.generation != ours.generation || (!ours.osts.is_empty() && ours.osts != copied.osts) {
        return Err(Errno::ESTALE.into());
    }
    if !cx.is_replay() && !holds_all(cx, op) {
        return Err(Errno::ENOLCK.into());
    }
    let inode = &mut node.inode;
    if inode.blocks > 0 {
        cx.delete::<SmallData>(&node.ino);
    }
    inode.layout = Some(Layout {
        stripe_size: copied.stripe_size,
        osts: copied.osts.clone(),
        resident: false,
        generation: ours.generation + 1,
        ..Layout::default()
    });
    inode.leaving = false;
    inode.size = 0;
    inode.blocks = 0;
    if let Some(lvb) = &op.lvb {
        inode.take_data_times(lvb);
    }
    Ok(())
}

/// Whether the sender has the data and the layout for itself.
fn holds_all(cx: &Cx<'_>, op: &SetlayoutOp) -> bool {
    let export = cx.export();
    cx.locks().granted_on(&Resource::inode(op.fid)).iter().any(|held| {
        let both = bits::DOM | bits::LAYOUT;
        let covers = matches!(held.policy, Policy::Bits(has) if has & both == both);
        held.export == export && held.mode == LockMode::Ex && covers
    })
}
