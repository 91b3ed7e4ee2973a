//! Opening, creating, closing.
//!
//! An open that the server must know of is one request, with or without create; its locks come with it. Files of this client alone and
//! files that are only read are opened here ([`crate::local_opens`]), and new files of its own are made here ([`crate::metadata_write_back`]). A release is answered at once and told to
//! the server in the background ([`crate::closes`]); what a replay of the open needs stays in `Imports::opens` until the close is answered.

use bytes::Bytes;
use proto::msg::{Attr, ObjectRep, OpenOp, Reint, ReintReq, WantLocks, disposition};
use proto::{Errno, Fid, Opcode, Xid};
use rules::mode::{S_IFMT, S_IFREG};
use rules::names;
use std::sync::Arc;

use super::kernel::hide;
use super::namespace::{epochs, made, note_epoch};
use super::{attributes, is_resident, new_fid, stat, step, walk, writable};
use crate::api::{Answer, FileHandle, Stat};
use crate::closes;
use crate::cx::{Cx, Run, Stop};
use crate::data;
use crate::file::{Closing, OpenFile, flags as o};
use crate::imports::Dest;
use crate::local_opens;
use crate::metadata_write_back;
use crate::op::Task;
use crate::world::ObjectLocks;

/// Flags that the server has a use for: the rest is ours or the kernel's.
const TOLD: u32 = o::ACCMODE | o::CREAT | o::EXCL | o::TRUNC | o::APPEND | o::NOATIME | o::DIRECTORY | o::EXEC;

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

fn wants_write(flags: u32) -> bool {
    flags & o::ACCMODE != 0 || flags & o::TRUNC != 0
}

/// `Open`.
pub(crate) fn open(cx: &mut Cx<'_>, ino: u64, flags: u32) -> Run<Answer> {
    let result = open_file(cx, ino, flags);
    data::cut_goes_on(cx, ino, &result);
    result
}

fn open_file(cx: &mut Cx<'_>, ino: u64, flags: u32) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    if wants_write(flags) {
        writable(cx)?;
    }
    let flags = flags & !(o::CREAT | o::EXCL);
    if local_opens::may_open(cx, ino, flags) {
        let fh = insert(cx, cx.w.mdt_of(fid), fid, flags, Xid(0));
        return Ok(Answer::Opened {
            fh,
            keep_cache: direct(flags) || data::pages_are_good(cx.w, ino),
            direct_io: direct(flags),
            no_flush: false,
        });
    }
    cx.changing(step::CHANGING, ino);
    if flags & o::TRUNC != 0 {
        // The kernel cuts its own copy without a lock when it is told: another's answer may come to it after that.
        super::kernel::asked(cx, ino);
        let mode = attributes(cx, ino, false)?.mode;
        if mode & SET_ID != 0 && !cx.began(step::MAIN) {
            cx.set_memo(step::SET_ID, 0);
        }
        data::before_truncate(cx, ino, 0)?;
    }
    let dest = cx.w.mdt_of(fid);
    if flags & o::TRUNC != 0 {
        hide(cx, &[ino])?;
    }
    let rep = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.opening = true;
        if flags & o::TRUNC != 0 {
            w.touches(ino, false);
        }
        let node = w.nodes.get(ino);
        let object = ObjectLocks::missing(node);
        let data = node.is_none_or(|node| node.attr.as_ref().is_none_or(is_resident));
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: Some(w.want_locks(dest, object, false, data.then_some(wants_write(flags)))),
            op: Some(Reint::Open(OpenOp { fid, flags: flags & TOLD, ..OpenOp::default() })),
        }
    });
    let rep = super::stale_if_gone(rep)?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    if cx.began(step::SET_ID) {
        super::io::mode_changed(cx, ino)?;
    }
    let fh = opened(cx, dest, attr, flags)?;
    Ok(Answer::Opened {
        fh,
        keep_cache: direct(flags) || data::pages_are_good(cx.w, ino),
        direct_io: direct(flags),
        no_flush: false,
    })
}

/// `Create`.
pub(crate) fn create(cx: &mut Cx<'_>, parent: u64, name: &Bytes, mode: u32, flags: u32) -> Run<Answer> {
    if let Some(ino) = cx.memo(step::FOUND) {
        return cut(cx, parent, name, ino, flags);
    }
    let parent_fid = walk(cx, parent)?;
    names::check(name)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(parent_fid);
    if flags & o::DIRECTORY == 0
        && let Some(ino) = metadata_write_back::create(cx, parent, name, S_IFREG | (mode & 0o7777), 0, &Bytes::new())?
    {
        let stat = stat(cx, ino)?;
        let fh = insert(cx, dest, super::fid_of(ino)?, flags, Xid(0));
        let stat = super::lookup::found(cx.w, stat, parent, name);
        return Ok(Answer::Created { stat, fh, direct_io: direct(flags), no_flush: false });
    }
    cx.changing(step::CHANGING, parent);
    hide(cx, &[parent])?;
    let fid = new_fid(cx)?;
    note_epoch(cx, step::EPOCH, parent);
    let first = !cx.replied(step::MAIN);
    let rep: Arc<ObjectRep> = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.opening = true;
        w.touches_name(parent, name);
        let exclusive = w.wants_lease(parent);
        let names = exclusive || w.wants_directory_lock(parent);
        let want = w.want_locks(dest, ObjectLocks::FILE, names, Some(wants_write(flags)));
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: Some(WantLocks { exclusive, ..want }),
            op: Some(Reint::Open(OpenOp {
                parent: Some(parent_fid),
                name: name.clone(),
                fid,
                flags: (flags | o::CREAT) & TOLD & !o::TRUNC,
                mode: S_IFREG | (mode & 0o7777),
                ..OpenOp::default()
            })),
        }
    })?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    let created = rep.disposition & disposition::OPEN_CREATE != 0;
    if first {
        let epochs = epochs(cx, [step::EPOCH, step::MAIN], &rep, parent, Some(attr));
        if created {
            made(cx.w, parent, name, &rep, epochs);
        } else {
            let version = rep.parent_attr.as_ref().map_or(0, |attr| attr.version);
            cx.w.learn_child(parent, name, attr, epochs, version);
        }
    }
    let ino = attr.fid.ino();
    if attr.mode & S_IFMT != S_IFREG {
        // Somebody has made a pipe, socket or device of that name meanwhile. What an open of it is the kernel knows: it looks again.
        give_up(cx, dest, attr.fid);
        return Err(Errno::ESTALE.into());
    }
    if !created && flags & o::TRUNC != 0 {
        stdx::mark!("created_file_is_there");
        give_up(cx, dest, attr.fid);
        cx.forget(step::MAIN);
        cx.set_memo(step::FOUND, ino);
        return cut(cx, parent, name, ino, flags);
    }
    // What can still wait or fail comes before the file counts as open.
    let stat = match stat(cx, ino) {
        Ok(stat) => stat,
        Err(Stop::Wait) => {
            // Nothing refers to it yet.
            cx.keep_node(step::KEPT, ino);
            return Err(Stop::Wait);
        }
        Err(stop) => {
            give_up(cx, dest, attr.fid);
            return Err(stop);
        }
    };
    let open_xid = open_xid(cx);
    let fh = insert(cx, dest, attr.fid, flags, open_xid);
    Ok(created_as(cx, parent, name, fh, Stat { cacheable: stat.cacheable && created, ..stat }))
}

/// The end of a `Create` that is to cut what it found. An open of its own does it, which has the lock on the bytes from before the server
/// cuts until it is answered here: nothing that is written after the cut is cut again.
fn cut(cx: &mut Cx<'_>, parent: u64, name: &Bytes, ino: u64, flags: u32) -> Run<Answer> {
    cx.keep_node(step::KEPT, ino);
    cx.changing(step::CHANGING + 1, ino);
    let fh = match cx.memo(step::OPENED) {
        Some(fh) => FileHandle(fh),
        None => {
            let Answer::Opened { fh, .. } = open(cx, ino, flags)? else { return Err(Errno::EPROTO.into()) };
            cx.set_memo(step::OPENED, fh.0);
            fh
        }
    };
    match stat(cx, ino) {
        Ok(stat) => Ok(created_as(cx, parent, name, fh, Stat { cacheable: false, ..stat })),
        Err(Stop::Wait) => Err(Stop::Wait),
        Err(stop) => {
            release(cx, fh, None)?;
            Err(stop)
        }
    }
}

/// If the kernel knows the file, it believes these attributes whatever it was told to forget meanwhile: only those of a new one are
/// `cacheable`.
fn created_as(cx: &mut Cx<'_>, parent: u64, name: &Bytes, fh: FileHandle, stat: Stat) -> Answer {
    let direct_io = cx.w.files.get(fh).is_some_and(|file| direct(file.flags));
    let stat = super::lookup::found(cx.w, stat, parent, name);
    Answer::Created { stat, fh, direct_io, no_flush: false }
}

fn direct(flags: u32) -> bool {
    flags & (o::DIRECT | o::APPEND) != 0
}

/// No pages come into the kernel through it. A file that is open for reading and appending may be mapped.
fn no_pages(flags: u32) -> bool {
    flags & o::DIRECT != 0 || flags & o::APPEND != 0 && flags & o::ACCMODE == o::WRONLY
}

fn opened(cx: &mut Cx<'_>, dest: Dest, attr: &Attr, flags: u32) -> Run<FileHandle> {
    if flags & o::TRUNC != 0 && attr.mode & S_IFMT == S_IFREG {
        match data::truncate(cx, attr.fid.ino(), 0) {
            Err(Stop::Errno(errno)) => {
                give_up(cx, dest, attr.fid);
                return Err(errno.into());
            }
            other => other?,
        }
    }
    let open_xid = open_xid(cx);
    Ok(insert(cx, dest, attr.fid, flags, open_xid))
}

/// The request that opened.
fn open_xid(cx: &Cx<'_>) -> Xid {
    cx.reply_header(step::MAIN).map_or(Xid(0), |header| header.xid)
}

/// A program has a file open; `open_xid` is the request that opened it, 0 if there was none.
fn insert(cx: &mut Cx<'_>, dest: Dest, fid: Fid, flags: u32, open_xid: Xid) -> FileHandle {
    let ino = fid.ino();
    let error_mark = data::error_mark(cx.w, ino);
    let node = cx.w.nodes.obtain(fid);
    node.opens += 1;
    node.handles += 1;
    node.direct_handles += u32::from(no_pages(flags));
    node.stale = false;
    let cred = cx.op.cred.clone();
    let (lease, dead) = (node.private, false);
    let (stream, next, lock_owners) = (None, None, Vec::new());
    let file = OpenFile { ino, fid, flags, cred, dest, open_xid, lock_owners, error_mark, lease, dead, stream, next };
    let fh = cx.w.files.insert(file);
    if open_xid != Xid(0) && !cx.w.imports.opened_as(dest, open_xid, fh) {
        // An eviction between reply and now has taken the open with it.
        cx.w.files.lost(fh);
    }
    fh
}

/// The server has opened it, but the call fails: it is closed again.
fn give_up(cx: &mut Cx<'_>, dest: Dest, fid: Fid) {
    let open_xid = open_xid(cx);
    cx.w.nodes.obtain(fid).opens += 1;
    closes::add(cx.w, Closing { ino: fid.ino(), fid, dest, open_xid });
}

/// `Flush`: a descriptor was closed. No request unless its owner holds record locks.
pub(crate) fn flush(cx: &mut Cx<'_>, fh: FileHandle, lock_owner: u64) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (ino, fid, dead, writable) = (file.ino, file.fid, file.dead, file.writable());
    if !dead {
        super::record_lock::drop_owner(cx, fid, lock_owner, false)?;
    }
    if let Some(file) = cx.w.files.get_mut(fh) {
        file.lock_owners.retain(|owner| *owner != lock_owner);
    }
    told(cx, fh, ino)?;
    match data::unwritable(cx.w, ino) {
        Some(errno) if writable => Err(errno.into()),
        _ => Ok(Answer::Done),
    }
}

/// Errors of write-back since this open was last told of some.
pub(super) fn told(cx: &mut Cx<'_>, fh: FileHandle, ino: u64) -> Run<()> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (mark, result) = data::error_since(cx.w, ino, file.error_mark);
    if let Some(file) = cx.w.files.get_mut(fh) {
        file.error_mark = mark;
    }
    result.map_err(Stop::Errno)
}

/// `Release`: answered at once.
pub(crate) fn release(cx: &mut Cx<'_>, fh: FileHandle, flock_owner: Option<u64>) -> Run<Answer> {
    let Some(file) = cx.w.files.remove(fh) else { return Err(Errno::EBADF.into()) };
    if let Some(owner) = flock_owner {
        cx.spawn(Task::DropLocks { ino: file.ino, owner, flock: true });
    }
    for owner in file.lock_owners {
        cx.spawn(Task::DropLocks { ino: file.ino, owner, flock: false });
    }
    if let Some(node) = cx.w.nodes.get_mut(file.ino) {
        node.handles = node.handles.saturating_sub(1);
        node.direct_handles = node.direct_handles.saturating_sub(u32::from(no_pages(file.flags)));
    }
    if file.open_xid == Xid(0) {
        local_opens::closed(cx, file.ino);
        return Ok(Answer::Done);
    }
    closes::add(cx.w, Closing { ino: file.ino, fid: file.fid, dest: file.dest, open_xid: file.open_xid });
    Ok(Answer::Done)
}
