//! Layouts: a directory's default, a file's before it has data, and the move of a file's data to object targets.

use crate::ops::Change;
use crate::tree::{self, Node};
use crate::{Mdt, layouts};
use proto::msg::{Layout, LockMode, Policy, Resource, SetlayoutKind, SetlayoutOp, bits};
use proto::{Errno, Operation};
use schema::SmallData;
use target::{Cx, Reply, ShareKey, Stop};

/// See the module.
pub fn setlayout(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change,
    op: &SetlayoutOp,
    first: Option<Layout>,
) -> Result<Reply, Stop> {
    let mut node = tree::node(cx, op.fid)?;
    cx.pre_version(0, tree::version_of(&node.inode))?;
    let wanted = op.layout.clone().unwrap_or_default();
    match SetlayoutKind::try_from(op.kind).map_err(|_| Errno::EINVAL)? {
        SetlayoutKind::Set => {
            set(mdt, cx.is_replay(), change, &mut node, &wanted, first)?;
            node.inode.ctime_ns = change.now_ns;
        }
        SetlayoutKind::Leave => leave(mdt, cx, &mut node, op, &wanted)?,
    }
    tree::revoke(cx, &[(op.fid, bits::LAYOUT | bits::UPDATE)])?;

    cx.changed(ShareKey::object(op.fid));
    node.put(cx);
    let reply = super::changed(cx, change, &node.inode, None);
    cx.count(Operation::Setattr);
    Ok(reply)
}

/// `lfs setstripe`. A default without any wish removes the default. `first`: what a file got the first time, in a replay.
///
/// Errors: `ENXIO` if a target that a file shall lie on takes no objects now.
fn set(
    mdt: &Mdt,
    replayed: bool,
    change: &Change,
    node: &mut Node,
    wanted: &Layout,
    first: Option<Layout>,
) -> Result<(), Errno> {
    let inode = &mut node.inode;
    if !inode.is_dir() && !inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !change.caller.is_owner(inode) {
        return Err(Errno::EPERM);
    }
    let default = layouts::checked_default(wanted, &mdt.osts)?;
    // When it was done the first time, the pool was there.
    if !replayed {
        layouts::check_pool(&default, &mdt.osts)?;
    }
    if inode.is_dir() {
        let no_wish = default == Layout { want_first: -1, generation: 1, ..Layout::default() };
        inode.layout = (!no_wish).then_some(default);
        return Ok(());
    }
    // A replay was done when no move had begun, and others of its range say nothing about it.
    let objects = if replayed { !inode.is_resident() || inode.leaving } else { mdt.moves.may_have_objects(inode) };
    if objects || inode.size > 0 {
        return Err(Errno::EEXIST);
    }
    let generation = inode.layout.as_ref().map_or(0, |layout| layout.generation);
    let named = default.osts.iter().copied().chain(u32::try_from(default.want_first));
    if !replayed && !named.into_iter().all(|index| mdt.osts.takes_objects(index)) {
        return Err(Errno::ENXIO);
    }
    let choose = || layouts::of_new_file(Some(&default), &mdt.osts, inode.fid, true);
    let mut layout = first.map_or_else(choose, |first| Layout { resident: true, ..first });
    layout.generation = generation + 1;
    inode.layout = Some(layout);
    Ok(())
}

/// The data has been copied to objects, which are durable: the copy here goes with this change.
fn leave(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut Node, op: &SetlayoutOp, copied: &Layout) -> Result<(), Stop> {
    if !node.inode.is_resident() {
        return Err(Errno::EALREADY.into());
    }
    let ours = node.inode.layout.clone().unwrap_or_default();
    if copied.osts.is_empty() || !layouts::is_sound(copied) {
        return Err(Errno::EINVAL.into());
    }
    if copied.generation != ours.generation {
        return Err(Errno::ESTALE.into());
    }
    // In a replay, and after that of a create by a client of version 0.2.0, other targets may have been chosen here than those
    // that the data was copied to.
    if !cx.is_replay() {
        if !copied.osts.iter().all(|&ost| mdt.osts.has(ost)) {
            return Err(Errno::ESTALE.into());
        }
        if !holds_all(cx, op) {
            return Err(Errno::ENOLCK.into());
        }
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
        pool: ours.pool,
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
    cx.locks().held_on(cx.export(), &Resource::inode(op.fid)).any(|held| {
        let both = bits::DOM | bits::LAYOUT;
        let covers = matches!(held.policy, Policy::Bits(has) if has & both == both);
        held.mode == LockMode::Ex && covers
    })
}
