//! Reading, writing and making data durable. The data cache does the work; this file handles open files, errors and
//! times.

use bytes::Bytes;
use core::num::NonZero;
use proto::Errno;
use proto::Opcode;
use proto::msg::{Reint, SetattrOp, SyncReq, valid};
use rules::{Caller, Object};
use std::time::Duration;
use stdx::Instant;

use super::attributes;
use super::open::report_error;
use crate::api::{AccessTimes, Answer, FileHandle, Whence};
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::file::{OpenFile, flags as o};
use crate::coherence::closes;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::kernel;
use crate::coherence::request::Request;
use crate::ops::data::{self, IoFlags, WriteAt};

/// A day: any read updates an access time older than this.
const DAY_NS: i64 = Duration::from_secs(86_400).as_nanos() as i64;

/// Delay of the answer to an empty read of the kernel's page cache.
const EMPTY_AFTER: Duration = Duration::from_millis(5);

/// The open file of a handle, unless it is lost.
fn live<'a>(cx: &'a Cx<'_>, fh: FileHandle) -> Run<&'a OpenFile> {
    match cx.w.files.get(fh) {
        None => Err(Errno::EBADF.into()),
        Some(file) if file.is_lost() => Err(Errno::EIO.into()),
        Some(file) => Ok(file),
    }
}

/// The node and the flags of an open file through which a change is made. A call that has started a change goes on when
/// the file is closed because its program was killed or the mount ends, or when its open is lost with an eviction:
/// others would wait for it forever. It also never continues with another file that has got the same handle since.
fn changed(cx: &mut Cx<'_>, fh: FileHandle) -> Run<(u64, u32)> {
    if let (Some(ino), Some(flags)) = (cx.memo(Step::FileNode), cx.memo(Step::FileFlags))
        && cx.op.changes > 0
    {
        return Ok((ino, flags as u32));
    }
    let file = live(cx, fh)?;
    let (ino, flags) = (file.ino, file.flags);
    if !file.writable() {
        return Err(Errno::EBADF.into());
    }
    cx.set_memo(Step::FileNode, ino);
    cx.set_memo(Step::FileFlags, u64::from(flags));
    Ok((ino, flags))
}

fn io_flags(flags: u32) -> IoFlags {
    IoFlags { direct: flags & o::DIRECT != 0, sync: flags & (o::SYNC | o::DSYNC) != 0, write_back: false }
}

/// `Read`.
pub(crate) fn read(cx: &mut Cx<'_>, fh: FileHandle, offset: u64, length: u32) -> Run<Answer> {
    let file = live(cx, fh)?;
    let (ino, flags) = (file.ino, file.flags);
    if !file.readable() {
        return Err(Errno::EBADF.into());
    }
    let data = data::read(cx, fh, ino, offset, length, io_flags(flags))?;
    if data.is_empty() && length > 0 && flags & (o::DIRECT | o::APPEND) == 0 {
        after_the_end(cx)?;
    }
    if flags & o::NOATIME == 0 && !data.is_empty() {
        accessed(cx, ino);
    }
    Ok(Answer::Data(data))
}

/// The kernel reads pages beyond the end only if it assumes a larger size, because another mount has truncated the
/// file. It takes the end from the first short answer among the reads that it sent together, and takes the start of an
/// empty one for the end: so an empty answer is delayed to let the one with the last bytes go first. It keeps no lock
/// meanwhile: with a lock that is called back, other operations of this client could request new ones and give them
/// back in a circle, and the client that wants the lock would wait too. The data is read again afterwards.
fn after_the_end(cx: &mut Cx<'_>) -> Run<()> {
    let at = match cx.memo(Step::AfterEnd) {
        Some(at) => Instant(at),
        None => {
            stdx::mark!("read_beyond_the_end");
            let at = cx.now() + EMPTY_AFTER;
            cx.set_memo(Step::AfterEnd, at.0);
            at
        }
    };
    if cx.now() >= at {
        return Ok(());
    }
    crate::coherence::locks::unlock_all(cx);
    cx.w.set_timer(at);
    Err(cx.wait(WaitKey::Timer))
}

/// Updates the access time of something that is read, if the mount's options say so. It stays in the node and is sent
/// to the server with the close. Returns whether it was updated.
pub(super) fn accessed(cx: &mut Cx<'_>, ino: u64) -> bool {
    if cx.w.options.read_only {
        return false;
    }
    let (others, directories) = (cx.w.options.access_times, cx.w.options.directory_access_times);
    let data = data::stat_cached(cx.w, ino);
    let now = cx.op.wall_ns;
    let Some(node) = cx.w.nodes.get_mut(ino) else { return false };
    let Some(attr) = &node.attr else { return false };
    let mut changed = attr.mtime_ns.max(attr.ctime_ns);
    let atime = attr.atime_ns.max(node.atime_ns.map_or(i64::MIN, NonZero::get));
    if let Some(data) = data {
        changed = changed.max(data.lvb.mtime_ns).max(data.lvb.ctime_ns);
    }
    let moves = now > atime
        && match if node.is_dir() { directories } else { others } {
            AccessTimes::Relative => atime <= changed || now - atime > DAY_NS,
            AccessTimes::Strict => true,
            AccessTimes::Never => false,
        };
    if moves {
        node.atime_ns = NonZero::new(now);
    }
    moves
}

/// `Write`.
pub(crate) fn write(
    cx: &mut Cx<'_>,
    fh: FileHandle,
    ino: u64,
    offset: u64,
    bytes: &Bytes,
    write_back: bool,
    kill_priv: bool,
) -> Run<Answer> {
    let (flags, ino) = match live(cx, fh) {
        Ok(file) if write_back => (file.flags, if ino != 0 { ino } else { file.ino }),
        // A page that a program changed through a mapping may arrive after its file was closed.
        Err(Stop::Errno(Errno::EBADF)) if write_back => (o::RDWR, ino),
        _ => {
            let (ino, flags) = changed(cx, fh)?;
            (flags, ino)
        }
    };
    if bytes.is_empty() {
        return Ok(Answer::Written(0));
    }
    let append = flags & o::APPEND != 0 && !write_back;
    if !append && offset.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::EFBIG.into());
    }
    // A page that was changed through a mapping has no known writer; Linux drops no privileges for it either.
    if !write_back {
        drop_privileges(cx, ino, kill_priv)?;
    }
    let at = if append { WriteAt::Append } else { WriteAt::Offset(offset) };
    let flags = if write_back { IoFlags { write_back, ..IoFlags::default() } } else { io_flags(flags) };
    Ok(Answer::Written(data::write(cx, fh, ino, at, bytes, flags)?))
}

/// A write removes capabilities from the file, and set-id bits if the caller lacks the privilege to keep them
/// (`set_id`). This is done once, before the data is written: a partial write must not end because of an answer about
/// privileges.
fn drop_privileges(cx: &mut Cx<'_>, ino: u64, set_id: bool) -> Run<()> {
    if cx.memo(Step::Privileges).is_none() {
        let goes =
            cx.began(Step::Main) || set_id && takes_set_id(cx, ino)? || super::xattr::gives_capabilities(cx, ino)?;
        if goes {
            kill_privileges(cx, ino)?;
        }
        cx.set_memo(Step::Privileges, 1);
    }
    Ok(())
}

/// Whether a write removes set-id bits.
fn takes_set_id(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let attr = attributes(cx, ino, false)?;
    let caller = Caller::of(&cx.op.cred);
    Ok(caller.mode_without_privileges(Object::without_list(&attr), true) != attr.mode)
}

/// Removes what makes a program run with other rights: set-id bits and capabilities.
pub(super) fn kill_privileges(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    cx.changing(Step::Changing(0), ino);
    let fid = fid_of(ino)?;
    let dest = cx.w.mdt_of(fid);
    kernel::hide(cx, &[ino])?;
    cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |_, op| {
        let kill = SetattrOp { fid, valid: valid::KILL_PRIV, ..SetattrOp::default() };
        Request::new(&op.change(None, Reint::Setattr(kill)))
            .touching(ino, true)
            .then_learn(move |w, _, _| super::xattr::changed(w, ino))
    })?;
    mode_changed(cx, ino)
}

/// Waits until the kernel has dropped a file's mode: it does not expect a write to change it, and would run the program
/// with the cached mode.
pub(super) fn mode_changed(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    cx.invalidate_kernel(Step::Mode, ino, 0, 0)
}

/// `Fsync`: makes data durable on its targets, then the file itself (its name, size, layout) on the metadata target.
pub(crate) fn fsync(cx: &mut Cx<'_>, fh: FileHandle) -> Run<Answer> {
    let file = live(cx, fh)?;
    let (ino, fid, dest) = (file.ino, file.fid, file.dest);
    match data::fsync(cx, ino) {
        Err(Stop::Errno(errno)) => {
            // Reported now, so close does not report it again.
            let _ = report_error(cx, fh, ino);
            return Err(errno.into());
        }
        other => other?,
    }
    if cx.began(Step::ClosesDone(dest)) || closes::pending(cx.w, ino) {
        closes::drained(cx)?;
    }
    cx.rpc(Step::Main, dest, Opcode::MdsSync, |_, _| Request::new(&SyncReq { fid: Some(fid) }))?;
    report_error(cx, fh, ino)?;
    Ok(Answer::Done)
}

/// `Syncfs`. Makes everything durable that can be. If data of some file cannot be written back, or something is lost
/// meanwhile, it fails with that error.
pub(crate) fn syncfs(cx: &mut Cx<'_>) -> Run<Answer> {
    let losses = cx.memo(Step::Losses).unwrap_or(cx.w.losses.count);
    cx.set_memo(Step::Losses, losses);
    data::sync_all(cx)?;
    closes::drained(cx)?;
    sync_metadata(cx, false)?;
    if cx.w.losses.count != losses {
        stdx::mark!("lost_beside_sync");
        return Err(cx.w.losses.errno.unwrap_or(Errno::EIO).into());
    }
    match data::troubles(cx.w, 1).2.first() {
        Some((_, errno)) => Err((*errno).into()),
        None => Ok(Answer::Done),
    }
}

/// Makes durable what metadata targets have acknowledged to this client. One that is away is waited for only if there is
/// something, or if `all` are wanted.
pub(super) fn sync_metadata(cx: &mut Cx<'_>, all: bool) -> Run<()> {
    let mut missing = false;
    let mut failed = None;
    for dest in cx.w.imports.dests() {
        let Dest::Mdt(_) = dest else { continue };
        let step = Step::SyncTarget(dest);
        let has_all = cx.w.imports.get(dest).is_some_and(|target| !target.is_full() && !target.import.keeps_changes());
        if cx.began(Step::GoodBye(dest)) || !all && has_all && !cx.began(step) {
            continue;
        }
        match cx.start_rpc(step, dest, Opcode::MdsSync, |_, _| Request::new(&SyncReq { fid: None })) {
            None => missing = true,
            Some(Ok(_)) => {}
            Some(Err(errno)) => failed = Some(errno),
        }
    }
    match (missing, failed) {
        (true, _) => Err(Stop::Wait),
        (false, Some(errno)) => Err(errno.into()),
        (false, None) => Ok(()),
    }
}

/// `Fallocate`.
pub(crate) fn fallocate(cx: &mut Cx<'_>, fh: FileHandle, mode: u32, offset: u64, length: u64) -> Run<Answer> {
    let (ino, _) = changed(cx, fh)?;
    if length == 0 {
        return Err(Errno::EINVAL.into());
    }
    if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::EFBIG.into());
    }
    // The kernel does not report set-id bits here; the server knows whether the caller may keep them.
    drop_privileges(cx, ino, true)?;
    data::fallocate(cx, ino, mode, offset, length)?;
    Ok(Answer::Done)
}

/// `Lseek`.
pub(crate) fn lseek(cx: &mut Cx<'_>, fh: FileHandle, offset: u64, whence: Whence) -> Run<Answer> {
    let ino = live(cx, fh)?.ino;
    Ok(Answer::Offset(data::seek(cx, ino, offset, whence)?))
}
