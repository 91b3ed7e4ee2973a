//! Changes of the namespace. Those that the client may make itself are made in the caches and sent later ([`crate::metadata_write_back`]). The others
//! are one request each, without a lookup first, and the caches are changed by what the reply says.

use bytes::Bytes;
use proto::msg::{Attr, CreateOp, LinkOp, ObjectRep, Reint, ReintReq, RenameOp, UnlinkOp, WantLocks, bits};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use rules::names;
use std::sync::Arc;

use super::kernel::{hide, known_child};
use super::{fid_of, new_fid, stat, stat_of_change, step, walk, writable};
use crate::api::{Answer, Effect, Invalidation, Stat};
use crate::cx::{Cx, Run, Step};
use crate::data;
use crate::imports::Dest;
use crate::local_opens;
use crate::metadata_write_back;
use crate::names::Epochs;
use crate::replies::rebuilt;
use crate::world::{ObjectLocks, World};

/// The parts of a rename's flags.
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

/// `Mknod`.
pub(crate) fn mknod(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, rdev: u64) -> Run<Answer> {
    let mode = if mode & S_IFMT == 0 { mode | S_IFREG } else { mode };
    create(cx, parent, name, mode, rdev, &Bytes::new())
}

/// `Mkdir`.
pub(crate) fn mkdir(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32) -> Run<Answer> {
    create(cx, parent, name, S_IFDIR | (mode & 0o7777), 0, &Bytes::new())
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

/// Notes under which epoch the names of a directory are when the request leaves.
pub(super) fn note_epoch(cx: &mut Cx<'_>, at: Step, ino: u64) {
    if !cx.began(at) {
        let epoch = cx.w.directory_epoch(ino);
        cx.set_memo(at, u64::from(epoch));
    }
}

/// The epochs to which a reply about a name in `parent` belongs that leads to this object, if to any. They were noted at the first of
/// these steps; at the second one it came.
pub(super) fn epochs(cx: &Cx<'_>, at: [Step; 2], rep: &ObjectRep, parent: u64, attr: Option<&Attr>) -> Epochs {
    let [noted, came] = at;
    let dir = cx.w.reply_epoch(&rep.locks, parent, cx.memo(noted).unwrap_or(0) as u32);
    let child = attr.map_or(0, |attr| cx.w.child_epoch(&rep.locks, attr.fid, cx.reply_number(came)));
    Epochs { dir, child }
}

/// The transno of a change, as far as its reply tells.
pub(super) fn version(rep: &ObjectRep) -> u64 {
    let of = |attr: &Option<Attr>| attr.as_ref().map_or(0, |attr| attr.version);
    of(&rep.attr).max(of(&rep.parent_attr))
}

fn create(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, rdev: u64, target: &Bytes) -> Run<Answer> {
    let parent_fid = walk(cx, parent)?;
    names::check(name)?;
    writable(cx)?;
    if let Some(ino) = metadata_write_back::create(cx, parent, name, mode, rdev, target)? {
        let stat = stat(cx, ino)?;
        return Ok(Answer::Entry(super::lookup::found(cx.w, stat, parent, name)));
    }
    cx.changing(step::CHANGING, parent);
    hide(cx, &[parent])?;
    let fid = new_fid(cx)?;
    let dest = cx.w.mdt_of(parent_fid);
    note_epoch(cx, step::EPOCH, parent);
    let first = !cx.replied(step::MAIN);
    let rep = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.choosing = mode & S_IFMT == S_IFREG;
        w.touches_name(parent, name);
        let lease = w.wants_lease(parent);
        let names = lease || w.wants_directory_lock(parent);
        let data = (mode & S_IFMT == S_IFREG).then_some(false);
        let object = ObjectLocks { own: true, entries: mode & S_IFMT == S_IFDIR };
        // Nobody else has a lock on a directory that is new.
        let exclusive = lease || object.entries && metadata_write_back::allowed(w, dest);
        let want = WantLocks { exclusive, ..w.want_locks(dest, object, names, data) };
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: Some(want),
            op: Some(Reint::Create(CreateOp {
                parent: parent_fid,
                name: name.clone(),
                fid,
                mode,
                rdev,
                symlink: target.clone(),
            })),
        }
    });
    let rep = rep?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    if first {
        let epochs = epochs(cx, [step::EPOCH, step::MAIN], &rep, parent, Some(attr));
        made(cx.w, parent, name, &rep, epochs);
        if !target.is_empty()
            && let Some(node) = cx.w.nodes.get_mut(attr.fid.ino())
        {
            node.symlink = Some(Box::new(target.clone()));
        }
    }
    let stat = stat_of_change(cx, attr)?;
    Ok(Answer::Entry(super::lookup::found(cx.w, stat, parent, name)))
}

/// An own change made a name for an object, new or old. A directory that is new here is empty.
pub(super) fn made(w: &mut World, parent: u64, name: &Bytes, rep: &ObjectRep, epochs: Epochs) {
    let Some(attr) = &rep.attr else { return };
    if rep.parent_attr.is_none() {
        rebuilt(w);
    }
    w.changed_name(parent, name, Some(attr), epochs, version(rep));
    w.missed_name(parent);
    if attr.mode & S_IFMT == S_IFDIR
        && let Some(node) = w.nodes.get_mut(attr.fid.ino())
        && node.has(bits::UPDATE)
        && node.dir.is_none()
        && attr.nlink == 2
    {
        let epoch = node.update_epoch;
        node.dir_mut().complete_epoch = Some(epoch);
    }
}

/// A name of an object is about to go. What the server has to know of it is told first: who has it open, and closes of it that
/// wait, since it is to find that nobody has it open.
fn asked_before(cx: &mut Cx<'_>, dest: Dest, parent: u64, name: &Bytes) -> Run<()> {
    if cx.began(step::MAIN) {
        return Ok(());
    }
    metadata_write_back::leaves(cx, parent, name)?;
    local_opens::name_goes(cx, dest, parent, name, step::GOES)
}

/// `Unlink` and `Rmdir`.
pub(crate) fn unlink(cx: &mut Cx<'_>, parent: u64, name: &Bytes, rmdir: bool) -> Run<Answer> {
    let parent_fid = walk(cx, parent)?;
    if rmdir && name.as_ref() == b"." {
        return Err(Errno::EINVAL.into());
    }
    if rmdir && name.as_ref() == b".." {
        return Err(Errno::ENOTEMPTY.into());
    }
    names::check(name)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(parent_fid);
    if metadata_write_back::unlink(cx, parent, name, rmdir)? {
        return Ok(Answer::Done);
    }
    cx.changing(step::CHANGING, parent);
    hide(cx, &[parent, known_child(cx, parent, name)])?;
    asked_before(cx, dest, parent, name)?;
    note_epoch(cx, step::EPOCH, parent);
    let told = local_opens::told(cx, parent, name, step::GOES);
    let rep = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.touches_name(parent, name);
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: None,
            op: Some(Reint::Unlink(UnlinkOp { parent: parent_fid, name: name.clone(), rmdir, told })),
        }
    });
    let rep = rep?;
    let epochs = epochs(cx, [step::EPOCH, step::MAIN], &rep, parent, None);
    cx.w.changed_name(parent, name, None, epochs, version(&rep));
    match &rep.attr {
        Some(attr) => unnamed(cx.w, parent, name, attr, rep.destroyed),
        None => rebuilt(cx.w),
    }
    Ok(Answer::Done)
}

/// A name of an object is gone; `attr` says what is left. `destroyed`: nobody has it open either.
pub(crate) fn unnamed(w: &mut World, parent: u64, name: &Bytes, attr: &Attr, destroyed: bool) {
    let ino = attr.fid.ino();
    let Some(node) = w.nodes.get_mut(ino) else { return };
    node.kernel_names.retain(|(p, n)| *p != parent || n != name);
    if attr.nlink > 0 && !node.is_dir() {
        return;
    }
    node.unlinked = true;
    node.dir = None;
    // Of a pipe that a program has open nobody else tells it so.
    if let Some(known) = &mut node.attr {
        (known.nlink, known.ctime_ns) = (attr.nlink, known.ctime_ns.max(attr.ctime_ns));
    }
    let idle = node.opens == 0 && node.lookups == 0;
    // Another client may have it open, and reads what was written here.
    if destroyed {
        data::discard(w, ino);
    }
    if idle && (destroyed || data::is_clean(w, ino)) {
        w.drop_node(ino);
    }
}

/// `Link`.
pub(crate) fn link(cx: &mut Cx<'_>, ino: u64, new_parent: u64, name: &Bytes) -> Run<Answer> {
    let parent_fid = walk(cx, new_parent)?;
    let fid = fid_of(ino)?;
    names::check(name)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(parent_fid);
    cx.changing(step::CHANGING, new_parent);
    cx.changing(step::CHANGING + 1, ino);
    hide(cx, &[new_parent, ino])?;
    if !cx.began(step::MAIN) {
        metadata_write_back::object_leaves(cx, ino)?;
    }
    note_epoch(cx, step::EPOCH, new_parent);
    let first = !cx.replied(step::MAIN);
    let rep: Arc<ObjectRep> = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.touches_name(new_parent, name);
        w.touches(ino, false);
        let names = w.wants_directory_lock(new_parent);
        let object = ObjectLocks::missing(w.nodes.get(ino));
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: Some(w.want_locks(dest, object, names, None)),
            op: Some(Reint::Link(LinkOp { fid, parent: parent_fid, name: name.clone() })),
        }
    })?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    if first {
        let epochs = epochs(cx, [step::EPOCH, step::MAIN], &rep, new_parent, Some(attr));
        made(cx.w, new_parent, name, &rep, epochs);
    }
    // The kernel knows the object, and believes what comes with a new link whatever it was told to forget meanwhile. So it is
    // told to ask again.
    let stat = Stat { cacheable: false, ..stat_of_change(cx, attr)? };
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
    let known = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
    if flags & !known != 0 || flags & RENAME_EXCHANGE != 0 && flags != RENAME_EXCHANGE {
        return Err(Errno::EINVAL.into());
    }
    let source_parent = walk(cx, parent)?;
    let target_parent = walk(cx, new_parent)?;
    names::check(name)?;
    names::check(new_name)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(source_parent);
    cx.changing(step::CHANGING, parent);
    cx.changing(step::CHANGING + 1, new_parent);
    let (moved, replaced) = (known_child(cx, parent, name), known_child(cx, new_parent, new_name));
    hide(cx, &[parent, moved, new_parent, replaced])?;
    asked_before(cx, dest, new_parent, new_name)?;
    if !cx.began(step::MAIN) {
        metadata_write_back::leaves(cx, parent, name)?;
    }
    let whiteout = if flags & RENAME_WHITEOUT != 0 { Some(new_fid(cx)?) } else { None };
    note_epoch(cx, step::EPOCH, parent);
    note_epoch(cx, step::EPOCH_OTHER, new_parent);
    let told = local_opens::told(cx, new_parent, new_name, step::GOES);
    let rep = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.touches_name(parent, name);
        w.touches_name(new_parent, new_name);
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: None,
            op: Some(Reint::Rename(RenameOp {
                source_parent,
                source_name: name.clone(),
                target_parent,
                target_name: new_name.clone(),
                flags,
                told,
                whiteout,
            })),
        }
    })?;
    // What has the old name now.
    let comes = if flags & RENAME_EXCHANGE != 0 { rep.replaced_attr.as_ref() } else { rep.whiteout_attr.as_ref() };
    let from = epochs(cx, [step::EPOCH, step::MAIN], &rep, parent, comes);
    let to = epochs(cx, [step::EPOCH_OTHER, step::MAIN], &rep, new_parent, rep.attr.as_ref());
    let Some(moved) = &rep.attr else {
        // It was done, more is not known.
        rebuilt(cx.w);
        cx.w.changed_name(parent, name, None, from, 0);
        cx.w.changed_name(new_parent, new_name, None, to, 0);
        forget_entry(cx.w, parent, name);
        forget_entry(cx.w, new_parent, new_name);
        return Ok(Answer::Done);
    };
    let other = rep.replaced_attr.as_ref();
    let same_object = other.is_some_and(|other| other.fid == moved.fid);
    if parent == new_parent && name == new_name {
        return Ok(Answer::Done);
    }
    if same_object {
        named_twice(cx.w, moved.fid, new_parent, new_name, to.child);
        return Ok(Answer::Done);
    }
    let version = version(&rep);
    match (flags & RENAME_EXCHANGE != 0, other) {
        (true, Some(other)) => {
            cx.w.changed_name(parent, name, Some(other), from, version);
            renamed(cx.w, other.fid, (new_parent, new_name), (parent, name));
        }
        (_, other) => {
            cx.w.changed_name(parent, name, comes, from, version);
            if let Some(other) = other {
                unnamed(cx.w, new_parent, new_name, other, rep.destroyed);
            }
        }
    }
    cx.w.changed_name(new_parent, new_name, Some(moved), to, version);
    renamed(cx.w, moved.fid, (parent, name), (new_parent, new_name));
    Ok(Answer::Done)
}

/// The kernel moves its entry of the old name with our answer, whatever it leads to. If the object's lock went while the server
/// renamed, it was told to forget the old name only; if another object had come to the old name, the entry is not this one's.
/// Then it has to forget the new name, too.
fn renamed(w: &mut World, fid: Fid, old: (u64, &Bytes), new: (u64, &Bytes)) {
    let names = w.nodes.get_mut(fid.ino()).map(|node| &mut node.kernel_names);
    match names.and_then(|names| names.iter_mut().find(|(parent, name)| *parent == old.0 && name == old.1)) {
        Some(known) => *known = (new.0, new.1.clone()),
        None => forget_entry(w, new.0, new.1),
    }
}

/// Both names lead to one object, and nothing was renamed. The kernel asked because it did not know the new name: it moves its
/// entry all the same, and has to forget the new name with the object's lock.
fn named_twice(w: &mut World, fid: Fid, parent: u64, name: &Bytes, child_epoch: u32) {
    match w.nodes.get_mut(fid.ino()).filter(|node| node.lookups > 0 && child_epoch != 0) {
        Some(node) if node.kernel_names.iter().any(|(p, n)| *p == parent && n == name) => {}
        Some(node) => node.kernel_names.push((parent, name.clone())),
        None => forget_entry(w, parent, name),
    }
}

/// Tells the kernel to forget a name; it does so when it has our answer.
fn forget_entry(w: &mut World, parent: u64, name: &Bytes) {
    w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name: name.clone() }));
}
