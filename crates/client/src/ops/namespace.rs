//! Changes of the namespace. If the client may make a change itself, it is made in the caches and sent later
//! ([`crate::coherence::metadata_write_back`]). Any other change is one request, without a lookup before it, and the
//! reply is applied to the caches. A change with parts on several metadata targets is durable when it is answered, so
//! the client's earlier changes are sent first, whatever their targets.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use proto::connect::features;
use proto::msg::{Attr, CreateOp, LinkOp, ObjectRep, Reint, RenameOp, Stripe, UnlinkOp, WantLocks, bits};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use rules::names;
use rules::stripes::STRIPES_MAX;
use stdx::Instant;

use super::stripes::{self, Place};
use super::{attributes, data, placement, stat, stat_of_change, walk, writable};
use crate::api::{Answer, Effect, Invalidation, NewDir, Stat};
use crate::base::{Dest, Step, WaitKey};
use crate::cache::names::KnownName;
use crate::cache::node::Node;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::{fid_of, new_fid, new_fids};
use crate::coherence::kernel::{hide, known_child};
use crate::coherence::local_opens;
use crate::coherence::metadata_write_back;
use crate::coherence::names::{NameRequest, name_removed};
use crate::coherence::replies::rebuilt;
use crate::coherence::request::{ObjectLocks, Request, Wants, withdraw_all, withdraw_change};
use crate::coherence::world::World;

/// Flags of a rename.
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
/// After this time a rename that is to be given up looks again whether its request can be withdrawn.
const ASKED_AGAIN: Duration = Duration::from_millis(50);

/// `Mknod`.
pub(crate) fn mknod(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, rdev: u64) -> Run<Answer> {
    let mode = if mode & S_IFMT == 0 { mode | S_IFREG } else { mode };
    create(cx, parent, name, mode, rdev, &Bytes::new())
}

/// `Mkdir`. The default of the directory above may place it on other metadata targets.
pub(crate) fn mkdir(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32) -> Run<Answer> {
    let mode = S_IFDIR | (mode & 0o7777);
    while let Some(placed) = placement::of_new(cx, parent, name)?
        && let Some(wish) = &placed.wish
    {
        let place = stripes::of_name(cx, parent, name)?;
        match make_elsewhere(cx, place, name, mode, wish) {
            Ok((fid, rep)) => {
                let stat = stat_elsewhere(cx, fid, mode, rep.attr.as_ref())?;
                return Ok(Answer::Entry(super::lookup::found(cx.w, stat, place.ino, name)));
            }
            Err(Stop::Wait) if placement::again(cx, &placed) => {}
            // Nobody may place directories any more, also where a default says so.
            Err(Stop::Errno(Errno::EPERM)) => placement::give_up(cx, &placed),
            Err(stop) => return Err(stop),
        }
    }
    create(cx, parent, name, mode, 0, &Bytes::new())
}

/// The stat of a directory that was made on other metadata targets than that of its name. No lock on it came with the answer.
fn stat_elsewhere(cx: &mut Cx<'_>, fid: Fid, mode: u32, made: Option<&Attr>) -> Run<Stat> {
    let attr = match made {
        Some(attr) => attr.clone(),
        // The first answer was lost.
        None => match attributes(cx, fid.ino(), true) {
            Err(Stop::Errno(Errno::ESTALE)) => Attr { fid, mode, ..Attr::default() },
            attr => attr?,
        },
    };
    let node = cx.w.nodes.obtain(fid);
    Ok(Stat { cacheable: false, ..super::compose(node, &attr, None, false) })
}

/// `Symlink`.
pub(crate) fn symlink(cx: &mut Cx<'_>, parent: u64, name: &Bytes, target: &Bytes) -> Run<Answer> {
    if target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if target.len() > proto::connect::SYMLINK_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    create(cx, parent, name, S_IFLNK | 0o777, 0, target)
}

/// `MkdirOn`. The kernel does not see that a name is made, so it is told.
pub(crate) fn mkdir_on(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, wish: &NewDir) -> Run<Answer> {
    walk(cx, parent)?;
    names::check(name)?;
    writable(cx)?;
    let mode = S_IFDIR | (mode & 0o7777);
    let place = stripes::of_name(cx, parent, name)?;
    let fid = match wish.mdts[..] {
        [] => return Err(Errno::EINVAL.into()),
        [mdt] if place.dest == Dest::Mdt(mdt) => {
            hide(cx, &[place.ino])?;
            fid_of(make(cx, parent, name, mode, 0, &Bytes::new())?.ino)?
        }
        _ => make_elsewhere(cx, place, name, mode, wish)?.0,
    };
    forget_entry(cx.w, place.ino, name);
    Ok(Answer::Fid(fid))
}

/// Makes a directory that is not a plain one on its parent's metadata target.
fn make_elsewhere(cx: &mut Cx<'_>, place: Place, name: &Bytes, mode: u32, wish: &NewDir) -> Run<(Fid, Arc<ObjectRep>)> {
    let Place { ino: parent, fid: parent_fid, dest } = place;
    if wish.mdts.len() > STRIPES_MAX {
        return Err(Errno::EOVERFLOW.into());
    }
    if !cx.began(Step::Main) {
        takes_part(cx, dest)?;
        for mdt in &wish.mdts {
            super::config::know(cx, Dest::Mdt(*mdt))?;
            takes_part(cx, Dest::Mdt(*mdt))?;
        }
    }
    cx.changing(Step::Changing(0), parent);
    hide(cx, &[parent])?;
    let fids = new_fids(cx, &wish.mdts)?;
    let fid = *fids.first().ok_or(Errno::EINVAL)?;
    metadata_write_back::before_cross_change(cx)?;
    let rep = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let names = w.wants_directory_lock(parent);
        let mut wants = Wants::default();
        let want = wants.locks(w, dest, ObjectLocks::NONE, names, None);
        let asked = NameRequest::now(w, parent, name);
        let stripes = fids.iter().zip(&wish.mdts).skip(1).map(|(fid, mdt)| Stripe { fid: *fid, mdt: *mdt });
        let change = CreateOp {
            parent: parent_fid,
            name: name.clone(),
            fid,
            mode,
            mdt: wish.mdts.first().copied(),
            stripes: stripes.collect(),
            hash: wish.hash,
            ..CreateOp::default()
        };
        Request::new(&op.change(Some(want), Reint::Create(change)))
            .wanting(wants)
            .touching_name(&w.nodes, parent, name)
            .then_learn(move |w, rep, reply| made(w, &asked, rep, reply.number))
    })?;
    Ok((fid, rep))
}

/// Checks that a metadata target can take part in changes with others. An older one would not notice that it should.
pub(super) fn takes_part(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    let target = cx.w.imports.get(dest).ok_or(Errno::ENODEV)?;
    match target.has(features::DIR_STRIPE) {
        true => Ok(()),
        false if target.is_full() => Err(Errno::EOPNOTSUPP.into()),
        // What it grants is not known yet.
        false => Err(cx.wait(WaitKey::Target(dest))),
    }
}

/// The transno of a change of names in a directory, as far as its reply shows it. Versions of objects on other metadata
/// targets say nothing about that.
pub(super) fn version(w: &World, rep: &ObjectRep, parent: u64) -> u64 {
    let Some(dest) = Fid::from_ino(parent).map(|fid| w.mdt_of(fid)) else { return 0 };
    let attrs = [&rep.attr, &rep.parent_attr, &rep.source_parent_attr].into_iter().flatten();
    attrs.filter(|attr| w.mdt_of(attr.fid) == dest).map(|attr| attr.version).max().unwrap_or(0)
}

fn create(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, rdev: u64, target: &Bytes) -> Run<Answer> {
    let stat = make(cx, parent, name, mode, rdev, target)?;
    let parent = cx.w.nodes.stripe(parent, name);
    Ok(Answer::Entry(super::lookup::found(cx.w, stat, parent, name)))
}

fn make(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, rdev: u64, target: &Bytes) -> Run<Stat> {
    walk(cx, parent)?;
    names::check(name)?;
    writable(cx)?;
    let Place { ino: parent, fid: parent_fid, dest } = stripes::of_name(cx, parent, name)?;
    if let Some(ino) = metadata_write_back::create(cx, parent, name, mode, rdev, target)? {
        return stat(cx, ino);
    }
    cx.changing(Step::Changing(0), parent);
    hide(cx, &[parent])?;
    let fid = new_fid(cx, dest)?;
    let rep = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let lease = w.wants_lease(parent);
        let names = lease || w.wants_directory_lock(parent);
        let data = (mode & S_IFMT == S_IFREG).then_some(false);
        let object = ObjectLocks { own: true, entries: mode & S_IFMT == S_IFDIR };
        // No other client has a lock on a new directory.
        let exclusive = lease || object.entries && metadata_write_back::allowed(w, dest);
        let mut wants = Wants::default();
        let want = WantLocks { exclusive, ..wants.locks(w, dest, object, names, data) };
        let (name_of, symlink) = (name.clone(), target.clone());
        let change = CreateOp { parent: parent_fid, name: name_of, fid, mode, rdev, symlink, ..CreateOp::default() };
        let (asked, target) = (NameRequest::now(w, parent, name), target.clone());
        Request::new(&op.change(Some(want), Reint::Create(change)))
            .wanting(wants)
            .choosing(mode & S_IFMT == S_IFREG)
            .touching_name(&w.nodes, parent, name)
            .then_learn(move |w, rep, reply| {
                made(w, &asked, rep, reply.number);
                if let (false, Some(attr)) = (target.is_empty(), &rep.attr)
                    && let Some(node) = w.nodes.get_mut(attr.fid.ino())
                {
                    node.symlink = Some(Box::new(target));
                }
            })
    })?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    stat_of_change(cx, attr)
}

/// Applies a change of this client that added a name for a new or old object. A directory that is new is empty.
pub(super) fn made(w: &mut World, asked: &NameRequest, rep: &ObjectRep, number: u64) {
    if rep.parent_attr.is_none() {
        rebuilt(w);
    }
    let epochs = asked.epochs(w, rep, number, rep.attr.as_ref());
    let Some(attr) = &rep.attr else {
        // The object lies elsewhere, and the first answer was lost.
        return w.nodes.changed_name(asked.parent, &asked.name, None, epochs, 0);
    };
    let version = version(w, rep, asked.parent);
    w.nodes.changed_name(asked.parent, &asked.name, Some(attr), epochs, version);
    w.missed_name(asked.parent);
    if attr.mode & S_IFMT == S_IFDIR
        && let Some(node) = w.nodes.get_mut(attr.fid.ino())
        && node.has(bits::UPDATE)
        && node.dir.is_none()
        && attr.nlink == 2
    {
        let epoch = node.validity.update_epoch();
        node.dir_mut().complete_epoch = Some(epoch);
    }
}

/// Before a request that removes a name of an object: reports its local opens and sends its waiting closes, so that the
/// server knows whether it is open.
fn prepare_removal(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<()> {
    if cx.began(Step::Main) {
        return Ok(());
    }
    metadata_write_back::end_private(cx, parent, name)?;
    local_opens::report_before_removal(cx, parent, name, Step::Removal)
}

/// Whether what a name leads to may lie on another metadata target than this.
fn may_lead_away(w: &World, parent: u64, name: &Bytes, dest: Dest) -> bool {
    match w.nodes.known_name(parent, name) {
        KnownName::Nothing => false,
        KnownName::Child(fid) => w.mdt_of(fid) != dest,
        KnownName::Unknown => true,
    }
}

/// Whether a rename may give directories other parents: the way up from there may lead over other metadata targets.
fn may_change_parents(w: &World, [from, to]: [(u64, &Bytes); 2], exchange: bool) -> bool {
    let may_be_dir = |(parent, name): (u64, &Bytes)| match w.nodes.known_name(parent, name) {
        KnownName::Nothing => false,
        KnownName::Child(fid) => w.nodes.get(fid.ino()).is_none_or(|node| node.attr.is_none() || node.is_dir()),
        KnownName::Unknown => true,
    };
    w.nodes.master(from.0) != w.nodes.master(to.0) && (may_be_dir(from) || exchange && may_be_dir(to))
}

/// Whether what a name leads to may be a striped directory.
fn may_be_striped(w: &World, parent: u64, name: &Bytes) -> bool {
    match w.nodes.known_name(parent, name) {
        KnownName::Nothing => false,
        KnownName::Child(fid) => w.nodes.get(fid.ino()).is_none_or(|node| node.attr.is_none() || node.lmv().is_some()),
        KnownName::Unknown => true,
    }
}

/// All metadata targets but this one.
fn other_mdts(w: &World, dest: Dest) -> Vec<Dest> {
    w.imports.dests().into_iter().filter(|of| matches!(of, Dest::Mdt(_)) && *of != dest).collect()
}

/// `Unlink` and `Rmdir`.
pub(crate) fn unlink(cx: &mut Cx<'_>, parent: u64, name: &Bytes, rmdir: bool) -> Run<Answer> {
    walk(cx, parent)?;
    if rmdir && name.as_ref() == b"." {
        return Err(Errno::EINVAL.into());
    }
    if rmdir && name.as_ref() == b".." {
        return Err(Errno::ENOTEMPTY.into());
    }
    names::check(name)?;
    writable(cx)?;
    let Place { ino: parent, fid: parent_fid, dest } = stripes::of_name(cx, parent, name)?;
    if metadata_write_back::unlink(cx, parent, name, rmdir)? {
        return Ok(Answer::Done);
    }
    cx.changing(Step::Changing(0), parent);
    hide(cx, &[parent, known_child(cx, parent, name)])?;
    prepare_removal(cx, parent, name)?;
    if may_lead_away(cx.w, parent, name, dest) || rmdir && may_be_striped(cx.w, parent, name) {
        metadata_write_back::before_cross_change(cx)?;
    }
    let reported = local_opens::reported(cx, parent, name, Step::Removal);
    cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let asked = NameRequest::now(w, parent, name);
        let change = UnlinkOp { parent: parent_fid, name: name.clone(), rmdir, reported, entry_only: false };
        Request::new(&op.change(None, Reint::Unlink(change)))
            .touching_name(&w.nodes, parent, name)
            .then_learn(move |w, rep, reply| removed(w, &asked, rep, reply.number))
    })?;
    Ok(Answer::Done)
}

/// `RemoveEntry`. The kernel does not see that a name is removed, so it is told.
pub(crate) fn remove_entry(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Answer> {
    walk(cx, parent)?;
    names::check(name)?;
    writable(cx)?;
    let Place { ino: parent, fid: parent_fid, dest } = stripes::of_name(cx, parent, name)?;
    if !cx.began(Step::Main) {
        takes_part(cx, dest)?;
    }
    cx.changing(Step::Changing(0), parent);
    hide(cx, &[parent])?;
    metadata_write_back::before_cross_change(cx)?;
    cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let asked = NameRequest::now(w, parent, name);
        let change =
            UnlinkOp { parent: parent_fid, name: name.clone(), rmdir: false, reported: None, entry_only: true };
        Request::new(&op.change(None, Reint::Unlink(change))).touching_name(&w.nodes, parent, name).then_learn(
            move |w, rep, reply| {
                let epochs = asked.epochs(w, rep, reply.number, None);
                let version = version(w, rep, asked.parent);
                w.nodes.changed_name(asked.parent, &asked.name, None, epochs, version);
            },
        )
    })?;
    forget_entry(cx.w, parent, name);
    Ok(Answer::Done)
}

/// Applies a change of this client that removed a name.
fn removed(w: &mut World, asked: &NameRequest, rep: &ObjectRep, number: u64) {
    let (parent, name) = (asked.parent, &asked.name);
    let epochs = asked.epochs(w, rep, number, None);
    let version = version(w, rep, parent);
    w.nodes.changed_name(parent, name, None, epochs, version);
    match &rep.attr {
        Some(attr) => name_removed(w, parent, name, attr, rep.destroyed),
        None => rebuilt(w),
    }
}

/// `Link`.
pub(crate) fn link(cx: &mut Cx<'_>, ino: u64, new_parent: u64, name: &Bytes) -> Run<Answer> {
    walk(cx, new_parent)?;
    let fid = fid_of(ino)?;
    names::check(name)?;
    writable(cx)?;
    let Place { ino: new_parent, fid: parent_fid, dest } = stripes::of_name(cx, new_parent, name)?;
    cx.changing(Step::Changing(0), new_parent);
    cx.changing(Step::Changing(1), ino);
    hide(cx, &[new_parent, ino])?;
    if !cx.began(Step::Main) {
        metadata_write_back::end_private_object(cx, ino)?;
    }
    let near = cx.w.mdt_of(fid) == dest;
    let mut kind = 0;
    if !near {
        metadata_write_back::before_cross_change(cx)?;
        if !cx.began(Step::Main) {
            let known = cx.w.nodes.get(ino).and_then(|node| node.attr.as_ref()).map(|attr| attr.mode);
            kind = match known {
                Some(mode) => mode,
                None => attributes(cx, ino, false)?.mode,
            } & S_IFMT;
        }
    }
    let rep = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let names = w.wants_directory_lock(new_parent);
        let object = if near { ObjectLocks::missing(w.nodes.get(ino)) } else { ObjectLocks::NONE };
        let mut wants = Wants::default();
        let want = wants.locks(w, dest, object, names, None);
        let asked = NameRequest::now(w, new_parent, name);
        let change = LinkOp { fid, parent: parent_fid, name: name.clone(), kind };
        Request::new(&op.change(Some(want), Reint::Link(change)))
            .wanting(wants)
            .touching_name(&w.nodes, new_parent, name)
            .touching(ino, false)
            .then_learn(move |w, rep, reply| made(w, &asked, rep, reply.number))
    })?;
    let stat = match &rep.attr {
        Some(attr) => stat_of_change(cx, attr)?,
        // The first answer of the object's own target was lost.
        None => {
            attributes(cx, ino, true)?;
            stat(cx, ino)?
        }
    };
    // The kernel knows the object, and keeps the attributes of a new link's answer regardless of invalidations sent
    // meanwhile. So they are marked as not cacheable.
    let stat = Stat { cacheable: false, ..stat };
    Ok(Answer::Entry(super::lookup::found(cx.w, stat, new_parent, name)))
}

/// `Rename`.
pub(crate) fn rename(
    cx: &mut Cx<'_>,
    parent: u64,
    name: &Bytes,
    new_parent: u64,
    new_name: &Bytes,
    flags: u32,
) -> Run<Answer> {
    match move_name(cx, parent, name, new_parent, new_name, flags) {
        Err(Stop::Wait) if parent != new_parent => Err(rename_waits(cx, parent, name)),
        done => done,
    }
}

/// A rename to another directory waits, and the kernel lets no other one of this mount begin meanwhile. If the target that
/// it was sent to is there and waits for another one, nothing has been done, and it may fail.
fn rename_waits(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Stop {
    let limit = cx.w.options.rename_wait;
    let parent = cx.w.nodes.stripe(parent, name);
    let Some(dest) = Fid::from_ino(parent).map(|fid| cx.w.mdt_of(fid)) else { return Stop::Wait };
    let others = other_mdts(cx.w, dest);
    if limit.is_zero() || others.is_empty() {
        return Stop::Wait;
    }
    let is_there = |of: Dest| cx.w.imports.get(of).is_some_and(|target| target.is_full());
    let lacks_other = !others.into_iter().all(is_there);
    let is_there = is_there(dest);
    let until = Instant(cx.memo(Step::Until).unwrap_or((cx.now() + limit).0));
    cx.set_memo(Step::Until, until.0);
    let mut next = until;
    if cx.now() >= until {
        let unsent = if cx.began(Step::Main) { withdraw_change(cx.w, cx.op.id) } else { lacks_other };
        if is_there && unsent {
            stdx::mark!("rename_given_up");
            withdraw_all(cx.w, cx.op.id);
            return Errno::EBUSY.into();
        }
        // The request is on its way at this moment, or its target has just gone.
        next = cx.now() + ASKED_AGAIN;
    }
    cx.w.set_timer(next);
    cx.wait(WaitKey::Timer)
}

fn move_name(cx: &mut Cx<'_>, parent: u64, name: &Bytes, new_parent: u64, new_name: &Bytes, flags: u32) -> Run<Answer> {
    let known = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
    if flags & !known != 0 || flags & RENAME_EXCHANGE != 0 && flags != RENAME_EXCHANGE {
        return Err(Errno::EINVAL.into());
    }
    walk(cx, parent)?;
    walk(cx, new_parent)?;
    names::check(name)?;
    names::check(new_name)?;
    writable(cx)?;
    let Place { ino: parent, fid: source_parent, dest } = stripes::of_name(cx, parent, name)?;
    let Place { ino: new_parent, fid: target_parent, dest: target_dest } = stripes::of_name(cx, new_parent, new_name)?;
    cx.changing(Step::Changing(0), parent);
    cx.changing(Step::Changing(1), new_parent);
    let (moved, replaced) = (known_child(cx, parent, name), known_child(cx, new_parent, new_name));
    hide(cx, &[parent, moved, new_parent, replaced])?;
    prepare_removal(cx, new_parent, new_name)?;
    if !cx.began(Step::Main) {
        metadata_write_back::end_private(cx, parent, name)?;
    }
    if target_dest != dest
        || may_be_striped(cx.w, new_parent, new_name)
        || may_lead_away(cx.w, parent, name, dest)
        || may_lead_away(cx.w, new_parent, new_name, dest)
        || may_change_parents(cx.w, [(parent, name), (new_parent, new_name)], flags & RENAME_EXCHANGE != 0)
    {
        metadata_write_back::before_cross_change(cx)?;
        if !other_mdts(cx.w, dest).is_empty() {
            data_before(cx, parent, name)?;
        }
    }
    let whiteout = if flags & RENAME_WHITEOUT != 0 { Some(new_fid(cx, dest)?) } else { None };
    let reported = local_opens::reported(cx, new_parent, new_name, Step::Removal);
    cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let (from, to) = (NameRequest::now(w, parent, name), NameRequest::now(w, new_parent, new_name));
        let change = RenameOp {
            source_parent,
            source_name: name.clone(),
            target_parent,
            target_name: new_name.clone(),
            flags,
            reported,
            whiteout,
        };
        Request::new(&op.change(None, Reint::Rename(change)))
            .touching_name(&w.nodes, parent, name)
            .touching_name(&w.nodes, new_parent, new_name)
            .then_learn(move |w, rep, reply| renamed(w, &from, &to, flags & RENAME_EXCHANGE != 0, rep, reply.number))
    })?;
    Ok(Answer::Done)
}

/// Before a rename that is durable when it is answered: writes the data of the file back. If this client dies after the
/// rename, the new name must not lead to an empty file where there was a full one before. An error is left to `fsync` and
/// `close`.
fn data_before(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<()> {
    let moved = cx.w.nodes.last_known(parent, name).and_then(|fid| cx.w.nodes.get(fid.ino()));
    let Some(moved) = moved.filter(|node| node.is_regular()).map(Node::ino) else { return Ok(()) };
    if cx.began(Step::Main) {
        return Ok(());
    }
    match data::fsync(cx, moved) {
        Err(Stop::Wait) => Err(Stop::Wait),
        _ => Ok(()),
    }
}

/// Applies a rename of this client.
fn renamed(w: &mut World, from: &NameRequest, to: &NameRequest, exchanged: bool, rep: &ObjectRep, number: u64) {
    let (parent, name, new_parent, new_name) = (from.parent, &from.name, to.parent, &to.name);
    // What the old name leads to afterwards.
    let takes_old = if exchanged { rep.replaced_attr.as_ref() } else { rep.whiteout_attr.as_ref() };
    let from = from.epochs(w, rep, number, takes_old);
    let to = to.epochs(w, rep, number, rep.attr.as_ref());
    let Some(moved) = &rep.attr else {
        // The rename was done; nothing else is known.
        rebuilt(w);
        w.nodes.changed_name(parent, name, None, from, 0);
        w.nodes.changed_name(new_parent, new_name, None, to, 0);
        forget_entry(w, parent, name);
        forget_entry(w, new_parent, new_name);
        return;
    };
    if parent == new_parent && name == new_name {
        return;
    }
    let other = rep.replaced_attr.as_ref();
    if other.is_some_and(|other| other.fid == moved.fid) {
        return named_twice(w, moved.fid, new_parent, new_name, to.child);
    }
    let version_from = version(w, rep, parent);
    // Another target has not said in which of its changes the new name was made.
    let mdt = |ino| Fid::from_ino(ino).map(|fid| w.mdt_of(fid));
    let version_to = if mdt(parent) == mdt(new_parent) { version(w, rep, new_parent) } else { 0 };
    match (exchanged, other) {
        (true, Some(other)) => {
            w.nodes.changed_name(parent, name, Some(other), from, version_from);
            entry_moved(w, other.fid, (new_parent, new_name), (parent, name));
        }
        (_, other) => {
            w.nodes.changed_name(parent, name, takes_old, from, version_from);
            if let Some(other) = other {
                name_removed(w, new_parent, new_name, other, rep.destroyed);
            }
        }
    }
    w.nodes.changed_name(new_parent, new_name, Some(moved), to, version_to);
    entry_moved(w, moved.fid, (parent, name), (new_parent, new_name));
}

/// After a rename, the kernel moves its entry of the old name when it gets the answer, whatever that entry leads to. If
/// the object's lock went back while the server renamed, only the old name was invalidated; if another object had got
/// the old name, the entry is not this one's. In both cases the new name has to be invalidated too.
fn entry_moved(w: &mut World, fid: Fid, old: (u64, &Bytes), new: (u64, &Bytes)) {
    let shown = [w.nodes.master(old.0), w.nodes.master(new.0)];
    let rename = |node: &mut Node| node.kernel.rename((shown[0], old.1), (shown[1], new.1));
    let moved = w.nodes.get_mut(fid.ino()).is_some_and(rename);
    if !moved {
        forget_entry(w, new.0, new.1);
    }
}

/// Both names lead to one object, and nothing was renamed. The kernel sent the call because it did not know the new
/// name: it moves its entry all the same, so the new name has to be invalidated with the object's lock.
fn named_twice(w: &mut World, fid: Fid, parent: u64, name: &Bytes, child_epoch: u32) {
    let parent = w.nodes.master(parent);
    let known = w.nodes.get_mut(fid.ino()).filter(|node| node.kernel.knows() && child_epoch != 0);
    let forget = match known {
        Some(node) => node.kernel.name(parent, name),
        None => Some((parent, name.clone())),
    };
    if let Some((parent, name)) = forget {
        forget_entry(w, parent, &name);
    }
}

/// Invalidates a name; the kernel processes that when it has the answer. `parent`: the directory or the stripe.
fn forget_entry(w: &mut World, parent: u64, name: &Bytes) {
    let parent = w.nodes.master(parent);
    w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name: name.clone() }));
}
