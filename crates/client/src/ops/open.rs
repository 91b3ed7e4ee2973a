//! Opening, creating and closing files.
//!
//! An open that is sent to the server is one request, with or without create; its locks come with it. Private files and
//! files that are only read are opened locally ([`crate::coherence::local_opens`]), and new files under a lease are
//! created in the caches ([`crate::coherence::metadata_write_back`]). A release is answered at once, and its close is
//! sent in the background ([`crate::coherence::closes`]); the open stays in `Imports::opens` for replay until the close
//! is answered.

use bytes::Bytes;
use proto::msg::{Attr, ObjectRep, OpenOp, Reint, WantLocks, disposition};
use proto::{Errno, Fid, Opcode, Xid};
use rules::mode::{S_IFMT, S_IFREG};
use rules::names;

use super::namespace::made;
use super::stripes::{self, Place};
use super::{attributes, stat, walk, writable};
use crate::api::{Answer, FileHandle, Stat};
use crate::base::Dest;
use crate::base::Step;
use crate::cache::file::{Closing, Open, OpenFile, flags as o};
use crate::cache::node::{Hold, is_resident};
use crate::coherence::closes;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::{fid_of, new_fid};
use crate::coherence::kernel;
use crate::coherence::kernel::hide;
use crate::coherence::local_opens;
use crate::coherence::metadata_write_back;
use crate::coherence::names::NameRequest;
use crate::coherence::op::Task;
use crate::coherence::request::{ObjectLocks, Request, Wants};
use crate::ops::data;

/// Flags that are sent to the server: the others concern only this client or the kernel.
const SERVER_FLAGS: u32 = o::ACCMODE | o::CREAT | o::EXCL | o::TRUNC | o::APPEND | o::NOATIME | o::DIRECTORY | o::EXEC;

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

fn wants_write(flags: u32) -> bool {
    flags & o::ACCMODE != 0 || flags & o::TRUNC != 0
}

/// `Open`.
pub(crate) fn open(cx: &mut Cx<'_>, ino: u64, flags: u32) -> Run<Answer> {
    let result = open_file(cx, ino, flags);
    data::truncate_attempted(cx, ino, &result);
    result
}

fn open_file(cx: &mut Cx<'_>, ino: u64, flags: u32) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    if wants_write(flags) {
        writable(cx)?;
    }
    let flags = flags & !(o::CREAT | o::EXCL);
    if local_opens::may_open(cx, ino, flags) {
        let fh = insert(cx, cx.w.mdt_of(fid), fid, flags, Open::Local);
        return Ok(Answer::Opened {
            fh,
            keep_cache: direct(flags) || data::pages_are_good(cx.w, ino),
            direct_io: direct(flags),
            no_flush: false,
        });
    }
    cx.changing(Step::Changing(0), ino);
    if flags & o::TRUNC != 0 {
        // The kernel truncates its own copy without a lock when it gets the answer: another call's answer may arrive
        // after that.
        kernel::wait_for_attributes(cx, ino);
        let mode = attributes(cx, ino, false)?.mode;
        if mode & SET_ID != 0 && !cx.began(Step::Main) {
            cx.set_memo(Step::SetId, 0);
        }
        data::before_truncate(cx, ino, 0)?;
    }
    let dest = cx.w.mdt_of(fid);
    if flags & o::TRUNC != 0 {
        hide(cx, &[ino])?;
    }
    let rep = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let node = w.nodes.get(ino);
        let object = ObjectLocks::missing(node);
        let data = node.is_none_or(|node| node.attr.as_ref().is_none_or(is_resident));
        let mut wants = Wants::default();
        let want = wants.locks(w, dest, object, false, data.then_some(wants_write(flags)));
        let open = OpenOp { fid, flags: flags & SERVER_FLAGS, ..OpenOp::default() };
        let request = Request::new(&op.change(Some(want), Reint::Open(open))).wanting(wants).opening();
        if flags & o::TRUNC != 0 { request.touching(ino, false) } else { request }
    });
    let rep = super::stale_if_gone(rep)?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    if cx.began(Step::SetId) {
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
    if let Some(ino) = cx.memo(Step::Found) {
        return cut(cx, parent, name, ino, flags);
    }
    let shown = parent;
    let master = walk(cx, shown)?;
    names::check(name)?;
    writable(cx)?;
    let Place { ino: parent, fid: parent_fid, dest } = stripes::of_name(cx, shown, name)?;
    if flags & o::DIRECTORY == 0
        && let Some(ino) = metadata_write_back::create(cx, parent, name, S_IFREG | (mode & 0o7777), 0, &Bytes::new())?
    {
        let stat = stat(cx, ino)?;
        let fh = insert(cx, dest, fid_of(ino)?, flags, Open::Local);
        let stat = super::lookup::found(cx.w, stat, parent, name);
        return Ok(Answer::Created { stat, fh, direct_io: direct(flags), no_flush: false });
    }
    cx.changing(Step::Changing(0), parent);
    hide(cx, &[parent])?;
    let fid = new_fid(cx, dest)?;
    let rep = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let exclusive = w.wants_lease(parent);
        let names = exclusive || w.wants_directory_lock(parent);
        let mut wants = Wants::default();
        let want = wants.locks(w, dest, ObjectLocks::FILE, names, Some(wants_write(flags)));
        let open = OpenOp {
            parent: Some(parent_fid),
            name: name.clone(),
            fid,
            flags: (flags | o::CREAT) & SERVER_FLAGS & !o::TRUNC,
            mode: S_IFREG | (mode & 0o7777),
            ..OpenOp::default()
        };
        let asked = NameRequest::now(w, parent, name);
        Request::new(&op.change(Some(WantLocks { exclusive, ..want }), Reint::Open(open)))
            .wanting(wants)
            .opening()
            .touching_name(&w.nodes, parent, name)
            .then_learn(move |w, rep, reply| match &rep.attr {
                Some(_) if is_created(rep) => made(w, &asked, rep, reply.number),
                Some(attr) => asked.found(w, rep, reply.number, attr),
                None => {}
            })
    })?;
    if rep.elsewhere.is_some() {
        return there(cx, master, name, &rep, flags);
    }
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    let created = is_created(&rep);
    let ino = attr.fid.ino();
    if attr.mode & S_IFMT != S_IFREG {
        // Another client has created a pipe, socket or device with that name meanwhile. Only the kernel can open such a
        // file: it looks the name up again.
        give_up(cx, dest, attr.fid);
        return Err(Errno::ESTALE.into());
    }
    if !created && flags & o::TRUNC != 0 {
        stdx::mark!("created_file_is_there");
        give_up(cx, dest, attr.fid);
        cx.forget(Step::Main);
        cx.set_memo(Step::Found, ino);
        return cut(cx, shown, name, ino, flags);
    }
    // Everything that can still wait or fail comes before the file counts as open.
    let stat = match stat(cx, ino) {
        Ok(stat) => stat,
        Err(Stop::Wait) => {
            // Nothing refers to the node yet.
            cx.keep_node(Step::Kept, ino);
            return Err(Stop::Wait);
        }
        Err(stop) => {
            give_up(cx, dest, attr.fid);
            return Err(stop);
        }
    };
    let fh = insert(cx, dest, attr.fid, flags, Open::Reported(open_xid(cx)));
    Ok(created_as(cx, shown, name, fh, Stat { cacheable: stat.cacheable && created, ..stat }))
}

/// The last part of a `Create` that found a file on another metadata target.
fn there(cx: &mut Cx<'_>, parent: Fid, name: &Bytes, rep: &ObjectRep, flags: u32) -> Run<Answer> {
    let fid = match super::lookup::object_of(cx, rep, parent, name) {
        // It has lost its name since. Only the kernel can begin anew: it looks the name up again.
        Ok(None) => return Err(Errno::ESTALE.into()),
        found => found?.ok_or(Errno::EPROTO)?,
    };
    if cx.w.nodes.get(fid.ino()).is_none_or(|node| !node.is_regular()) {
        return Err(Errno::ESTALE.into());
    }
    stdx::mark!("created_file_is_elsewhere");
    cx.forget(Step::Main);
    cx.set_memo(Step::Found, fid.ino());
    cut(cx, parent.ino(), name, fid.ino(), flags)
}

/// Whether the file did not exist before.
fn is_created(rep: &ObjectRep) -> bool {
    rep.disposition & disposition::OPEN_CREATE != 0
}

/// The last part of a `Create` that opens the file it found once more, to truncate it or because it is on another target. A separate open does it, which holds the lock on
/// the bytes from before the server truncates until the answer has been processed: nothing that is written after the
/// truncation is lost.
fn cut(cx: &mut Cx<'_>, parent: u64, name: &Bytes, ino: u64, flags: u32) -> Run<Answer> {
    cx.keep_node(Step::Kept, ino);
    cx.changing(Step::Changing(1), ino);
    let fh = match cx.memo(Step::Opened) {
        Some(fh) => FileHandle(fh),
        None => {
            let Answer::Opened { fh, .. } = open(cx, ino, flags)? else { return Err(Errno::EPROTO.into()) };
            cx.set_memo(Step::Opened, fh.0);
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

/// The answer of a create. If the kernel knows the file already, it keeps these attributes regardless of invalidations
/// sent meanwhile: so only those of a new file are `cacheable`.
fn created_as(cx: &mut Cx<'_>, parent: u64, name: &Bytes, fh: FileHandle, stat: Stat) -> Answer {
    let direct_io = cx.w.files.get(fh).is_some_and(|file| direct(file.flags));
    let parent = cx.w.nodes.stripe(parent, name);
    let stat = super::lookup::found(cx.w, stat, parent, name);
    Answer::Created { stat, fh, direct_io, no_flush: false }
}

fn direct(flags: u32) -> bool {
    flags & (o::DIRECT | o::APPEND) != 0
}

/// Whether no pages come into the kernel through the file. A file that is open for reading and appending may be mapped.
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
    Ok(insert(cx, dest, attr.fid, flags, Open::Reported(open_xid(cx))))
}

/// The xid of the request that opened the file.
fn open_xid(cx: &Cx<'_>) -> Xid {
    cx.reply_header(Step::Main).map_or(Xid(0), |header| header.xid)
}

/// The holds of an open file on its node.
fn holds(flags: u32) -> impl Iterator<Item = Hold> {
    [Hold::Open, Hold::Handle].into_iter().chain(no_pages(flags).then_some(Hold::DirectHandle))
}

/// Adds an open file.
fn insert(cx: &mut Cx<'_>, dest: Dest, fid: Fid, flags: u32, open: Open) -> FileHandle {
    let ino = fid.ino();
    let error_mark = data::error_mark(cx.w, ino);
    let node = cx.w.nodes.obtain(fid);
    node.kernel.looked_up();
    let lease = node.private;
    let mut file = OpenFile::new(fid, flags, cx.op.cred.clone(), dest, open);
    (file.error_mark, file.lease) = (error_mark, lease);
    for hold in holds(flags) {
        cx.w.nodes.hold(ino, hold);
    }
    let fh = cx.w.files.insert(file);
    if let Open::Reported(open_xid) = open
        && !cx.w.imports.opened_as(dest, open_xid, fh)
    {
        // An eviction since the reply has taken the open.
        cx.w.files.lost(fh);
    }
    fh
}

/// The server has opened the file, but the call fails: closes it again.
fn give_up(cx: &mut Cx<'_>, dest: Dest, fid: Fid) {
    let open_xid = open_xid(cx);
    cx.w.nodes.obtain(fid);
    cx.w.nodes.hold(fid.ino(), Hold::Open);
    closes::add(cx.w, Closing { ino: fid.ino(), fid, dest, open_xid });
}

/// `Flush`: a descriptor was closed. Sends a request only if its owner holds record locks.
pub(crate) fn flush(cx: &mut Cx<'_>, fh: FileHandle, lock_owner: u64) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (ino, fid, lost, writable) = (file.ino, file.fid, file.is_lost(), file.writable());
    if !lost {
        super::record_lock::drop_owner(cx, fid, lock_owner, false)?;
    }
    if let Some(file) = cx.w.files.get_mut(fh) {
        file.lock_owners.retain(|owner| *owner != lock_owner);
    }
    report_error(cx, fh, ino)?;
    match data::unwritable(cx.w, ino) {
        Some(errno) if writable => Err(errno.into()),
        _ => Ok(Answer::Done),
    }
}

/// Reports errors of write-back that this open file description has not reported yet.
pub(super) fn report_error(cx: &mut Cx<'_>, fh: FileHandle, ino: u64) -> Run<()> {
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
    for owner in &file.lock_owners {
        cx.spawn(Task::DropLocks { ino: file.ino, owner: *owner, flock: false });
    }
    // The hold of the open itself is released with its close.
    for hold in holds(file.flags).filter(|hold| *hold != Hold::Open) {
        cx.w.release(file.ino, hold);
    }
    match file.closing() {
        Some(closing) => closes::add(cx.w, closing),
        None => local_opens::closed(cx, file.ino),
    }
    Ok(Answer::Done)
}
