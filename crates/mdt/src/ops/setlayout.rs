//! Changes of layouts: the defaults of a directory for new files and directories, the layout of a file without data, the move of a
//! resident file's data to object targets, and the migration of data between object targets.
//!
//! ```text
//! Copy    chooses new objects; the destroy log has them, with the client that fills them
//! Swap    the layout names the new objects; the destroy log has the old ones instead
//! ```
//! So either the old or the new objects are always in the log, and the log changes in the same group as the layout.

use crate::cross::{self, stripes};
use crate::ops::Change;
use crate::ops::subjects::{self, Subject};
use crate::tree::{self, Node};
use crate::{Mdt, grants, layouts, tasks};
use proto::connect::features;
use proto::msg::{CrossOperation, DirDefault, Layout, ObjectRep, Pool, SetlayoutKind, SetlayoutOp, bits};
use proto::{ClientUuid, Errno, Operation};
use rules::placement::{self, Count};
use schema::{DestroyLog, ObjectsKey, SmallData};
use target::{Cx, Reply, ShareKey, Stop, format_features};

/// Executes a setlayout. `first`: in a replay, the reply to the first execution.
pub fn setlayout(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &SetlayoutOp,
    first: Option<ObjectRep>,
) -> Result<Reply, Stop> {
    let mut node = tree::node(cx, op.fid)?;
    stripes::is_whole(cx, &node.inode)?;
    cx.pre_version(0, tree::version_of(&node.inode))?;
    let wanted = op.layout.clone().unwrap_or_default();
    let first = first.unwrap_or_default();
    let (mut copy, mut doomed) = (None, None);
    let kind = SetlayoutKind::try_from(op.kind).map_err(|_| Errno::EINVAL)?;
    match kind {
        SetlayoutKind::Set => {
            let first = layouts::checked_answer(first.attr.and_then(|attr| attr.layout))?;
            set(mdt, cx.is_replay(), change, &mut node, &wanted, first)?;
            node.inode.changed(change.now_ns);
        }
        SetlayoutKind::Leave => leave(mdt, cx, &mut node, op, &wanted)?,
        SetlayoutKind::Copy => {
            check_copy(cx, change, &node, &wanted)?;
            if node.inode.is_resident() {
                let first = layouts::checked_answer(first.attr.and_then(|attr| attr.layout))?;
                let number = first.as_ref().map(|layout| layout.first_object);
                let chosen = choose(mdt, cx.is_replay(), &node, &wanted, first)?;
                tree::revoke(cx, &[(op.fid, bits::LAYOUT)])?;
                doomed = grow_elsewhere(mdt, cx, &mut node, chosen, number)?;
            } else {
                let first = layouts::checked_answer(first.copy)?;
                let chosen = choose(mdt, cx.is_replay(), &node, &wanted, first)?;
                copy = Some(begin_copy(cx, &mut node, chosen)?);
            }
        }
        SetlayoutKind::Swap => doomed = Some(swap(mdt, cx, &mut node, op, &wanted)?),
        SetlayoutKind::Drop => {
            let client = client(cx)?;
            tasks::give_up_copies(mdt, cx, op.fid, Some(client))?;
        }
        SetlayoutKind::DirDefault => {
            set_dir_default(mdt, cx, change, &mut node, op.dir_default.as_deref())?;
            node.inode.changed(change.now_ns);
        }
    }
    if copy.is_none() && kind != SetlayoutKind::Drop {
        tree::revoke(cx, &[(op.fid, bits::LAYOUT | bits::UPDATE)])?;
    }
    if matches!(kind, SetlayoutKind::Set | SetlayoutKind::DirDefault) && stripes::has(&node.inode) {
        return stripes::set_attrs(cx, change, CrossOperation::Setattr, &node.inode, 0);
    }

    subjects::note(cx, &[Subject::Object(op.fid)])?;
    if kind == SetlayoutKind::Leave {
        // If a crash undid this, nothing would lead to the data that other clients write to the objects.
        cx.blind_write(ShareKey::layout(op.fid));
    }
    node.put(cx);
    if let Some(objects) = doomed {
        mdt.destroys.add(cx.transno(), objects);
    }
    let rep = ObjectRep { copy, ..super::described(cx, change, &node.inode, None) };
    cx.count(Operation::Setattr);
    Ok(Reply::new(&rep).with_record(u64::from(node.inode.mode)))
}

/// Sets a layout (`lfs setstripe`). A default that asks for nothing removes the directory's default. `first`: in a replay, the
/// layout that the file first got.
///
/// Errors: `ENXIO` if a target that is named for a file takes no objects now.
fn set(
    mdt: &Mdt,
    replayed: bool,
    change: &Change<'_>,
    node: &mut Node,
    wanted: &Layout,
    first: Option<Layout>,
) -> Result<(), Errno> {
    let inode = &mut node.inode;
    if !inode.is_dir() && !inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !change.caller.is_owner(&*inode) {
        return Err(Errno::EPERM);
    }
    let default = layouts::checked_default(wanted, &mdt.osts)?;
    // The pool existed at the first execution.
    if !replayed {
        layouts::check_pool(&default, &mdt.osts)?;
    }
    if inode.is_dir() {
        let no_wish = default == Layout { want_first: -1, generation: 1, ..Layout::default() };
        inode.layout = (!no_wish).then_some(default);
        return Ok(());
    }
    // At the first execution no move of this file had started. That its range is in doubt after a crash does not count.
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
    layout.first_object = layout.first_object.max(tree::objects_of(inode).first);
    inode.layout = Some(layout);
    Ok(())
}

/// Sets or removes the default for new directories (`lfs setdirstripe -D`). Whoever sets one may place directories on other
/// targets, and lets those do so who may make directories here.
fn set_dir_default(
    mdt: &Mdt,
    cx: &Cx<'_>,
    change: &Change<'_>,
    node: &mut Node,
    wanted: Option<&DirDefault>,
) -> Result<(), Errno> {
    stripes::are_known(cx)?;
    if !node.inode.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    if !change.caller.is_owner(&node.inode) {
        return Err(Errno::EPERM);
    }
    if let Some(wanted) = wanted {
        placement::check(wanted)?;
        let is_striped = Count::of(wanted).is_some_and(Count::is_many);
        // The settings may have changed since the first execution.
        if !cx.is_replay() {
            cross::may_be_remote(mdt, &change.caller)?;
            if is_striped && !mdt.settings.enable_striped_dir {
                return Err(Errno::EPERM);
            }
        }
    }
    node.inode.dir_default = wanted.cloned().map(Box::new);
    Ok(())
}

/// Ends the move of a resident file: the client has copied the data to objects, durably, so the copy on this target is
/// deleted.
fn leave(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut Node, op: &SetlayoutOp, copied: &Layout) -> Result<(), Stop> {
    if !node.inode.is_resident() {
        return Err(Errno::EALREADY.into());
    }
    let ours = node.inode.layout.clone().unwrap_or_default();
    if copied.osts.is_empty() || !layouts::is_sound(copied) {
        return Err(Errno::EINVAL.into());
    }
    if copied.generation != ours.generation || copied.first_object != ours.first_object {
        return Err(Errno::ESTALE.into());
    }
    // The data may have been copied to other targets than the inode names: in a replay, and after a client of version 0.1.0 has
    // replayed the create.
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
        first_object: ours.first_object,
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

/// Whether the sender holds exclusive locks on data and layout.
fn holds_all(cx: &Cx<'_>, op: &SetlayoutOp) -> bool {
    grants::holds(cx, op.fid, bits::DOM | bits::LAYOUT)
}

fn client(cx: &Cx<'_>) -> Result<ClientUuid, Errno> {
    cx.export_info(cx.export()).map(|export| export.uuid).ok_or(Errno::ENOTCONN)
}

/// Errors: `EOPNOTSUPP` while there is a client that does not know swapped layouts, and so would not find the data.
fn check_copy(cx: &Cx<'_>, change: &Change<'_>, node: &Node, wanted: &Layout) -> Result<(), Errno> {
    if !node.inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !change.caller.is_owner(&node.inode) {
        return Err(Errno::EPERM);
    }
    if wanted.generation != node.inode.layout.as_ref().map_or(0, |layout| layout.generation) {
        return Err(Errno::ESTALE);
    }
    if !cx.is_replay() && !cx.all_clients_have(features::LAYOUT_SWAP) {
        stdx::mark!("client_too_old_to_migrate");
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// Chooses new objects for a file. Settings that `wanted` leaves open stay as they are. A file leaves its pool if `wanted` says
/// [`Pool::NONE`], or names a target outside the pool. `first`: in a replay, the layout that was first chosen.
///
/// Errors: `ENXIO` if a named target takes no objects now, `ENOSPC` if no target does, `EINVAL` as in
/// [`layouts::check_pool`].
fn choose(mdt: &Mdt, replayed: bool, node: &Node, wanted: &Layout, first: Option<Layout>) -> Result<Layout, Errno> {
    let ours = node.inode.layout.clone().unwrap_or_default();
    let anywhere = wanted.pool == Pool::NONE;
    let wanted = Layout { pool: if anywhere { String::new() } else { wanted.pool.clone() }, ..wanted.clone() };
    let mut wish = layouts::checked_default(&wanted, &mdt.osts)?;
    if wish.stripe_size == 0 {
        wish.stripe_size = ours.stripe_size;
    }
    if wish.want_count == 0 {
        wish.want_count = ours.osts.len().max(1) as i32;
    }
    // The pool existed at the first execution.
    if !replayed {
        layouts::check_pool(&wish, &mdt.osts)?;
    }
    if wish.pool.is_empty() && !anywhere {
        let stays = Layout { pool: ours.pool, ..wish.clone() };
        wish = if layouts::check_pool(&stays, &mdt.osts).is_ok() { stays } else { wish };
    }
    let named = wish.osts.iter().copied().chain(u32::try_from(wish.want_first));
    if !replayed && !named.into_iter().all(|index| mdt.osts.takes_objects(index)) {
        return Err(Errno::ENXIO);
    }
    let chosen = first.unwrap_or_else(|| layouts::of_new_file(Some(&wish), &mdt.osts, node.fid(), false));
    let usable = replayed || chosen.osts.iter().all(|&index| mdt.osts.takes_objects(index));
    if chosen.osts.is_empty() || !usable {
        return Err(Errno::ENOSPC);
    }
    // The new numbers come after those of objects that may already exist.
    let used = ours.first_object.checked_add(ours.osts.len() as u32).ok_or(Errno::EOVERFLOW)?;
    // In a replay, at least those of the first execution.
    let first_object = used.max(node.inode.next_object).max(chosen.first_object);
    let generation = ours.generation.checked_add(1).ok_or(Errno::EOVERFLOW)?;
    first_object.checked_add(chosen.osts.len() as u32).ok_or(Errno::EOVERFLOW)?;
    let (stripe_size, osts, pool) = (chosen.stripe_size, chosen.osts, chosen.pool);
    Ok(Layout { stripe_size, osts, generation, first_object, pool, ..Layout::default() })
}

/// Gives a resident file other object targets for when it grows. Returns the objects that it may have on the old ones, which
/// must be destroyed. `answered`: in a replay, the number of the first object in the first reply. It stays, because the client
/// may copy the data there next. If it is the number that the file had before, no move had started at the first execution,
/// so there is nothing to destroy even if the file's range is in doubt.
fn grow_elsewhere(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    node: &mut Node,
    chosen: Layout,
    answered: Option<u32>,
) -> Result<Option<ObjectsKey>, Stop> {
    let mut doomed = None;
    let mut layout = Layout { resident: true, ..chosen };
    let had = tree::objects_of(&node.inode);
    if answered != Some(had.first) && tree::doom_objects(mdt, cx, &node.inode) {
        doomed = Some(had);
        layout.first_object = answered.unwrap_or(layout.first_object);
        reserve_numbers(cx, node, &layout);
    } else {
        layout.first_object = answered.unwrap_or(had.first.max(mdt.osts.first_object));
    }
    node.inode.layout = Some(layout);
    node.inode.leaving = false;
    Ok(doomed)
}

/// Reserves the object numbers of a layout. Versions that do not know object numbers must not use this target any more.
fn reserve_numbers(cx: &mut Cx<'_>, node: &mut Node, layout: &Layout) {
    node.inode.next_object = layout.first_object.saturating_add(layout.osts.len() as u32);
    cx.set_incompat(format_features::LAYOUT_SWAP);
    cx.hold_until_durable();
}

fn begin_copy(cx: &mut Cx<'_>, node: &mut Node, chosen: Layout) -> Result<Layout, Stop> {
    let client = client(cx)?;
    let objects = ObjectsKey { fid: node.fid(), first: chosen.first_object };
    reserve_numbers(cx, node, &chosen);
    let log = DestroyLog { osts: chosen.osts.clone(), client: client.to_bytes() };
    cx.put::<DestroyLog>(&objects, &log);
    Ok(chosen)
}

/// Makes the copied objects those of the file, and returns the old ones, which must be destroyed.
///
/// Errors: `ESTALE` if the layout has changed since the copy was started, the copy was given up, or another client has confirmed the
/// layout since the sender has ([`crate::swaps`]).
fn swap(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut Node, op: &SetlayoutOp, copied: &Layout) -> Result<ObjectsKey, Stop> {
    let ours = node.inode.layout.clone().unwrap_or_default();
    if !layouts::is_sound(copied) {
        return Err(Errno::EINVAL.into());
    }
    if node.inode.is_resident() || ours.generation.checked_add(1) != Some(copied.generation) {
        return Err(Errno::ESTALE.into());
    }
    if !cx.is_replay() && !grants::holds(cx, op.fid, bits::LAYOUT) {
        return Err(Errno::ENOLCK.into());
    }
    if !cx.is_replay() && !mdt.swaps.may(op.fid, cx.export()) {
        stdx::mark!("swap_after_others_confirmed");
        return Err(Errno::ESTALE.into());
    }
    let copy = ObjectsKey { fid: node.fid(), first: copied.first_object };
    let log = cx.get::<DestroyLog>(&copy)?.ok_or(Errno::ESTALE)?;
    if log.copier() != Some(client(cx)?) || log.osts != copied.osts {
        return Err(Errno::ESTALE.into());
    }
    // Other clients may read and write the new objects once this is answered, so no crash may undo it.
    cx.hold_until_durable();
    let old = tree::objects_of(&node.inode);
    cx.delete::<DestroyLog>(&copy);
    tree::doom_objects(mdt, cx, &node.inode);
    node.inode.layout = Some(Layout {
        stripe_size: copied.stripe_size,
        osts: log.osts,
        generation: copied.generation,
        first_object: copied.first_object,
        pool: copied.pool.clone(),
        ..Layout::default()
    });
    if let Some(lvb) = &op.lvb {
        node.inode.take_data_times(lvb);
    }
    Ok(old)
}
