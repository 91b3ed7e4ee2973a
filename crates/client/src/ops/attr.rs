//! Attributes: reading and changing them, symbolic links, `access`.

use proto::msg::{Reint, SetattrOp, valid};
use proto::{Errno, Opcode};
use rules::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

use core::time::Duration;
use stdx::Instant;

use super::{attributes, compose, stat, stat_cached, stripes, walk, writable};
use crate::api::{Answer, FileHandle, SetStat, SetTime, Stat};
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::file::Open;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::kernel;
use crate::coherence::local_opens;
use crate::coherence::metadata_write_back;
use crate::coherence::op::Task;
use crate::coherence::request::Request;
use crate::ops::data;
use rules::Caller;

/// `Getattr`: without a request if locks cover everything.
pub(crate) fn getattr(cx: &mut Cx<'_>, ino: u64, fh: Option<FileHandle>) -> Run<Answer> {
    if fh.is_none() {
        walk(cx, ino)?;
    }
    let cached = if cx.began(Step::Attr) { None } else { stat_cached(cx.w, ino) };
    let found = match cached {
        Some(stat) => Ok(stat),
        None => attributes(cx, ino, true).and_then(|_| stat(cx, ino)),
    };
    let found = found.and_then(|stat| data::writes_end(cx, ino, stat.size).map(|()| stat));
    if found == Err(Stop::Wait) {
        kernel::wait_for_attributes(cx, ino);
    }
    Ok(Answer::Attr(found?))
}

/// How long an answer waits for the root's attributes.
const PATIENCE: Duration = Duration::from_secs(2);

/// `RootAttr`.
pub(crate) fn root(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    let found = getattr(cx, ino, None);
    if found != Err(Stop::Wait) {
        return found;
    }
    let until = Instant(cx.memo(Step::Until).unwrap_or((cx.now() + PATIENCE).0));
    cx.set_memo(Step::Until, until.0);
    let known = cx.w.nodes.get(ino).and_then(|node| Some(compose(node, node.attr.as_ref()?, None, false)));
    match known {
        Some(stat) if cx.now() >= until => {
            stdx::mark!("root_from_memory");
            crate::coherence::request::withdraw_all(cx.w, cx.op.id);
            Ok(Answer::Attr(stat))
        }
        _ => {
            cx.w.set_timer(until);
            Err(cx.wait(WaitKey::Timer))
        }
    }
}

/// `Setattr`: one request to the metadata target; a new size is then applied to the objects.
pub(crate) fn setattr(cx: &mut Cx<'_>, ino: u64, set: &SetStat) -> Run<Answer> {
    let result = set_attributes(cx, ino, set);
    data::truncate_attempted(cx, ino, &result);
    result
}

fn set_attributes(cx: &mut Cx<'_>, ino: u64, set: &SetStat) -> Run<Answer> {
    let fid = if set.fh.is_none() { walk(cx, ino)? } else { fid_of(ino)? };
    writable(cx)?;
    if *set == (SetStat { fh: set.fh, ..SetStat::default() }) {
        return getattr(cx, ino, set.fh);
    }
    if let Some(stat) = change_removed(cx, ino, set) {
        return Ok(Answer::Attr(stat));
    }
    let mut regular = false;
    if let Some(size) = set.size {
        if size > rules::attrs::SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let kind = match cx.w.nodes.get(ino).map(|node| node.kind()) {
            Some(kind) if kind != 0 => kind,
            _ => attributes(cx, ino, false)?.mode & S_IFMT,
        };
        match kind {
            S_IFREG => regular = true,
            S_IFDIR => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        data::before_truncate(cx, ino, size)?;
    }
    let dest = cx.w.mdt_of(fid);
    let now_ns = cx.wall_ns();
    let mut op = SetattrOp { fid, ..SetattrOp::default() };
    if let Some(mode) = set.mode {
        op.valid |= valid::MODE;
        op.mode = mode & 0o7777;
    }
    if let Some(uid) = set.uid {
        op.valid |= valid::UID;
        op.uid = uid;
    }
    if let Some(gid) = set.gid {
        op.valid |= valid::GID;
        op.gid = gid;
    }
    if let Some(size) = set.size {
        op.valid |= valid::SIZE;
        op.size = size;
    }
    match set.atime {
        Some(SetTime::Now) => {
            op.valid |= valid::ATIME | valid::ATIME_NOW;
            op.atime_ns = now_ns;
        }
        Some(SetTime::At(ns)) => {
            op.valid |= valid::ATIME;
            op.atime_ns = ns;
        }
        None => {}
    }
    match set.mtime {
        Some(SetTime::Now) => {
            op.valid |= valid::MTIME | valid::MTIME_NOW;
            op.mtime_ns = now_ns;
        }
        Some(SetTime::At(ns)) => {
            op.valid |= valid::MTIME;
            op.mtime_ns = ns;
        }
        None => {}
    }
    if set.size.is_none() && metadata_write_back::setattr(cx, ino, &op)? {
        if set.atime.is_some()
            && let Some(node) = cx.w.nodes.get_mut(ino)
        {
            node.atime_ns = None;
        }
        return Ok(Answer::Attr(changed(cx, ino)?));
    }
    cx.changing(Step::Changing(0), ino);
    stripes::before_change(cx, ino)?;
    if set.size.is_some() && !cx.began(Step::Main) {
        // A caller that has the file open may truncate it, whatever its mode is: the server has to know of the open.
        local_opens::publish_object(cx, ino)?;
    }
    if let Some(fh) = set.fh
        && let Some(file) = cx.w.files.get(fh)
    {
        // A truncation that has started goes on when the open is lost with an eviction: others wait for the objects.
        if file.is_lost() && !cx.began(Step::Main) {
            return Err(Errno::EIO.into());
        }
        if file.writable() {
            let opened =
                if let Open::Reported(xid) = file.open() { cx.w.imports.opened_by(file.dest, xid) } else { None };
            op.handle = opened.map_or(0, |opened| opened.handle);
        }
    }
    kernel::hide(cx, &[ino])?;
    let atime = set.atime.is_some();
    // An access control list changes with the mode, and capabilities are removed.
    let xattrs = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
    let result = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, state| {
        let request = Request::new(&state.change(None, Reint::Setattr(op)));
        stripes::touched(w, request, ino).then_learn(move |w, _, _| {
            stripes::changed(w, ino);
            let moment = w.moment();
            let Some(node) = w.nodes.get_mut(ino) else { return };
            if atime {
                node.atime_ns = None;
            }
            if xattrs {
                node.change_xattrs(moment);
            }
        })
    });
    let rep = super::stale_if_gone(result)?;
    if let (true, Some(size)) = (regular, set.size) {
        data::truncate(cx, ino, size)?;
    }
    let stat = match &rep.attr {
        Some(attr) => super::stat_of_change(cx, attr)?,
        None => stat(cx, ino)?,
    };
    Ok(Answer::Attr(Stat { cacheable: false, ..stat }))
}

/// Attributes for the answer to their change. The kernel keeps those of an answer regardless of invalidations sent
/// meanwhile, so they are marked as not cacheable.
fn changed(cx: &mut Cx<'_>, ino: u64) -> Run<Stat> {
    Ok(Stat { cacheable: false, ..stat(cx, ino)? })
}

/// Changes attributes of a directory, pipe or device that was removed while a program has it open. The server does not
/// know such opens, so it has dropped the object. The cached node is all that is left, until the kernel forgets it, and
/// the kernel has checked the permissions.
fn change_removed(cx: &mut Cx<'_>, ino: u64, set: &SetStat) -> Option<Stat> {
    let now = cx.wall_ns();
    let node = cx.w.nodes.get_mut(ino).filter(|node| node.destroyed && !node.is_regular() && node.kernel.knows())?;
    let attr = node.attr.as_mut().filter(|_| set.size.is_none())?;
    stdx::mark!("removed_changed");
    let at = |time| match time {
        SetTime::Now => now,
        SetTime::At(ns) => ns,
    };
    if let Some(mode) = set.mode {
        attr.mode = attr.mode & S_IFMT | mode & 0o7777;
    }
    (attr.uid, attr.gid) = (set.uid.unwrap_or(attr.uid), set.gid.unwrap_or(attr.gid));
    if let Some(time) = set.atime {
        attr.atime_ns = at(time);
        node.atime_ns = None;
    }
    attr.mtime_ns = set.mtime.map_or(attr.mtime_ns, at);
    attr.ctime_ns = attr.ctime_ns.max(now);
    let node = cx.w.nodes.get(ino)?;
    Some(compose(node, node.attr.as_ref()?, None, false))
}

/// `Readlink`: the target of a symbolic link never changes, so it is fetched once.
pub(crate) fn readlink(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    let target = match cx.w.nodes.get(ino).and_then(|node| node.symlink.as_deref().cloned()) {
        Some(target) if !cx.began(Step::Attr) => target,
        _ => {
            let rep = super::fetch(cx, Step::Attr, fid)?;
            match &rep.attr {
                Some(attr) if attr.mode & S_IFMT == S_IFLNK => rep.symlink.clone(),
                _ => return Err(Errno::EINVAL.into()),
            }
        }
    };
    if super::io::accessed(cx, ino) {
        cx.spawn(Task::Atime { ino });
    }
    Ok(Answer::Data(target))
}

/// `Access`: checks the attributes. Where an access control list decides, the server checks the actual operation.
pub(crate) fn access(cx: &mut Cx<'_>, ino: u64, mask: u32) -> Run<Answer> {
    walk(cx, ino)?;
    if mask & 2 != 0 {
        writable(cx)?;
    }
    let attr = attributes(cx, ino, false)?;
    match Caller::of(&cx.op.cred).may(&attr, mask) {
        Some(false) => Err(Errno::EACCES.into()),
        Some(true) | None => Ok(Answer::Done),
    }
}
