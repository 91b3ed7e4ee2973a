//! Truncate, fallocate, and the search for data and holes.

use core::ops::Range;
use proto::msg::{LockMode, ObjSyncReq, PunchKind, PunchReq, SeekRep, SeekReq};
use proto::{Bytes, Errno, Opcode};

use super::{IoFlags, WriteAt, leave, write};
use crate::api::Whence;
use crate::base::Step;
use crate::cache::data::state::{ALL, HOME, Key, NodeData, Object, home_lvb};
use crate::cache::data::striping::FILE_SIZE_MAX;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data::leaving;
use crate::coherence::data::state::{edit, file, node_key};
use crate::coherence::data::{access, flush};
use crate::coherence::metadata_write_back;
use crate::coherence::op::Memo;
use crate::coherence::request::Request;
use crate::coherence::world::World;

/// `FALLOC_FL_*`.
const KEEP_SIZE: u32 = 0x1;
const PUNCH_HOLE: u32 = 0x2;
const ZERO_RANGE: u32 = 0x10;

/// See [`super::before_truncate`].
pub(crate) fn before_truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    if size > FILE_SIZE_MAX {
        return Err(Errno::EFBIG.into());
    }
    if cx.memo(Step::CutReady).is_some() {
        return Ok(());
    }
    access::load(cx, ino)?;
    metadata_write_back::settled(cx, ino)?;
    if file(cx.w, ino).is_some_and(|f| f.resident()) && size > leaving::limit(cx, ino) {
        cx.unlock(Step::HomeLock);
        leave::leave(cx, ino)?;
    }
    let resident = access::lock_again(cx, ino, &(size..u64::MAX))?;
    // All of a resident file: data from beyond the new size must not arrive later with old times.
    let range = if resident { ALL } else { size..u64::MAX };
    let alone = alone(cx, ino, &range);
    access::quiet(cx, ino, alone)?;
    access::was_quiet(cx);
    cx.set_memo(Step::CutReady, 1);
    Ok(())
}

/// Waits until nothing of the range is dirty or in flight, and takes the exclusive turn on the file's data.
fn alone(cx: &mut Cx<'_>, ino: u64, range: &Range<u64>) -> Run<()> {
    access::wait_turn(cx, ino)?;
    flush::settle_file(cx, ino, range)?;
    access::take_turn(cx, ino)
}

/// See [`super::truncate`].
pub(crate) fn truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    if cx.memo(Step::CutDone).is_some() {
        return Ok(());
    }
    if file(cx.w, ino).is_some_and(|f| f.resident()) {
        // With the target's time of the change, which others may have seen.
        let reported = cx.w.nodes.get(ino).and_then(|node| node.attr.as_ref()).map(home_lvb);
        edit(cx.w, ino, HOME, |home| {
            home.void_fetches(&(size..u64::MAX));
            home.pages.cut(&(size..u64::MAX));
            home.size = size;
            if let Some(reported) = &reported {
                home.set_times(reported);
            }
        });
    } else {
        cx.set_memo(Step::CutAgreed, 1);
        let cut = cut_objects(cx, ino, size);
        if cut == Err(Stop::Wait) {
            return cut;
        }
        punched(cx, ino, |file, key, _| file.object_range(key, &(0..size)).end)?;
        cut?;
    }
    cx.set_memo(Step::CutDone, 1);
    access::end_turn(cx, ino);
    Ok(())
}

/// Truncates pages, and sends the truncation of every object whose size does not fit the new one.
///
/// If the new end lies in a hole, the object with the new end gets longer, and has to be so durably before others are cut:
/// if a power failure left only the cuts, the file would be shorter than it ever was.
fn cut_objects(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    if cx.memo(Step::Cut).is_none() {
        prepare_cut(cx, ino, size)?;
    }
    if let Some(key) = cx.memo(Step::CutFirst) {
        let key = key as Key;
        cx.answer(Step::CutSent(key)).ok_or(Stop::Wait)?.map_err(Stop::Errno)?;
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let (dest, objects, job) = (object.dest, vec![object.id()], crate::coherence::data::job(cx, ino));
        cx.rpc(Step::CutSynced, dest, Opcode::ObjSync, |_, _| Request::new(&ObjSyncReq { objects, job }))?;
        cx.forget(Step::CutFirst);
    }
    for key in file(cx.w, ino).map(|f| f.keys()).unwrap_or_default() {
        if let Some(cut) = cx.memo(Step::CutNext(key)) {
            cx.forget(Step::CutNext(key));
            punch(cx, ino, key, PunchKind::Truncate, &(cut..u64::MAX), false);
        }
    }
    Ok(())
}

/// Truncates pages, and notes which objects are to be cut.
fn prepare_cut(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    // Other clients may have had the locks while this operation waited for the metadata target, and programs of this
    // mount may have written since. Their requests may take long, so they are awaited without the locks and without the
    // turn.
    let written = wait_for_writes(cx, ino, size, is_writing_beyond);
    access::quiet(cx, ino, written)?;
    // Usually done by `before_truncate`; not if the data left the metadata target in between.
    access::lock_again(cx, ino, &(size..u64::MAX))?;
    let turn = access::take_turn(cx, ino).and_then(|()| wait_for_writes(cx, ino, size, is_writing));
    access::quiet(cx, ino, turn)?;
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    // The object with the new end.
    let end = size.checked_sub(1).map_or(0, |last| now.striping.locate(last).0);
    let size_of = |key| now.object(key).map_or(0, |object| object.size);
    let cut_of = |key| now.object_range(key, &(0..size)).end;
    let end_cut = cut_of(end);
    let grows = size_of(end) < end_cut;
    let cuts: Vec<(Key, u64)> = now.keys().into_iter().map(|key| (key, cut_of(key))).collect();
    let shorter: Vec<(Key, u64)> = cuts.iter().copied().filter(|(key, cut)| size_of(*key) > *cut).collect();
    cx.set_memo(Step::Cut, size);
    for (key, cut) in cuts {
        edit(cx.w, ino, key, |object| {
            object.void_fetches(&(cut..u64::MAX));
            object.pages.cut(&(cut..u64::MAX));
        });
    }
    // Even if all fit: at least one object must record the time of the change.
    if grows || shorter.is_empty() {
        punch(cx, ino, end, PunchKind::Truncate, &(end_cut..u64::MAX), false);
        if !shorter.is_empty() {
            stdx::mark!("cut_in_a_hole");
            cx.set_memo(Step::CutFirst, u64::from(end));
        }
    }
    for (key, cut) in shorter {
        cx.set_memo(Step::CutNext(key), cut);
    }
    Ok(())
}

/// Whether a request changes what is cut off. Others go on as long as programs may write: there may always be one.
fn is_writing_beyond(object: &Object, cut: u64) -> bool {
    object.pages.writing_in(&(cut..u64::MAX))
}

/// Whether a request that keeps the object from being cut is in flight: also one that changes another part of it. It
/// reports the size that the object had when it was sent, and others would see that after the cut if it arrived late.
fn is_writing(object: &Object, cut: u64) -> bool {
    is_writing_beyond(object, cut) || object.size > cut && object.pages.writing_in(&ALL)
}

/// Waits until `is_busy` holds for no object of the file and the size that it will have.
fn wait_for_writes(cx: &mut Cx<'_>, ino: u64, size: u64, is_busy: fn(&Object, u64) -> bool) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    let is_busy = |key| now.object(key).is_some_and(|object| is_busy(object, now.object_range(key, &(0..size)).end));
    if now.keys().into_iter().any(is_busy) { Err(cx.wait(node_key(ino))) } else { Ok(()) }
}

/// Sends a punch; until [`punched`], nothing of the range is written.
fn punch(cx: &mut Cx<'_>, ino: u64, key: Key, kind: PunchKind, range: &Range<u64>, keep_size: bool) {
    let (op, now_ns) = (cx.op.id, cx.wall_ns());
    let (uid, gid) = crate::coherence::data::owner(cx.w, ino);
    let id = cx.w.data.new_id();
    cx.w.data.mark_op(op, ino);
    cx.op.changes += 1;
    cx.set_memo(Step::CutId(key), id);
    let reach = match kind {
        PunchKind::Truncate => range.start,
        PunchKind::Allocate | PunchKind::Zero if !keep_size => range.end,
        _ => 0,
    };
    edit(cx.w, ino, key, |object| {
        object.pages.begin(id, range.clone(), reach);
        object.touch(now_ns);
    });
    let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return };
    let dest = object.dest;
    let request = PunchReq {
        object: object.id(),
        kind: kind as i32,
        start: range.start,
        length: if kind == PunchKind::Truncate { 0 } else { range.end - range.start },
        keep_size,
        lvb: Some(object.lvb()),
        lock: object.covering(LockMode::Pw, range).map_or(0, |lock| lock.handle),
        uid,
        gid,
        job: crate::coherence::data::job(cx, ino),
    };
    let _ = cx.start_rpc(Step::CutSent(key), dest, Opcode::ObjPunch, |_, _| Request::new(&request));
}

/// Waits for the answers to every [`punch`]. `new_end`: the end of an object after its target has done it, given its
/// end before.
fn punched(cx: &mut Cx<'_>, ino: u64, new_end: impl Fn(&NodeData, Key, u64) -> u64) -> Run<()> {
    let keys = file(cx.w, ino).map(|f| f.keys()).unwrap_or_default();
    let sent: Vec<(Key, u64)> = keys.into_iter().filter_map(|key| Some((key, cx.memo(Step::CutId(key))?))).collect();
    let answered =
        |(key, _): &(Key, u64)| matches!(cx.op.memo(Step::CutSent(*key)), Some(Memo::Reply(_) | Memo::Failed(_)));
    if !sent.iter().all(answered) {
        return Err(Stop::Wait);
    }
    let mut failed = None;
    // Only now: a target answers others with the greater of its own size and ours, so that nobody sees the new size
    // until all targets have it.
    let new_end = |w: &World, key| {
        let file = file(w, ino)?;
        Some(new_end(file, key, file.object(key)?.size))
    };
    for (key, id) in sent {
        let new_end = new_end(cx.w, key);
        let (result, header) = cx.op.object_changed(Step::CutSent(key)).unwrap_or((Err(Errno::EIO), None));
        let moment = cx.w.moment();
        edit(cx.w, ino, key, |object| {
            object.pages.end(id);
            match &result {
                Ok(rep) => {
                    object.answered(header.map(|h| h.transno).unwrap_or_default(), moment);
                    object.size = new_end.unwrap_or(object.size);
                    if let Some(lvb) = &rep.lvb {
                        object.set_times(lvb);
                    }
                }
                Err(_) => object.size_exact = false,
            }
        });
        if let Some(header) = header
            && let Some(dest) = file(cx.w, ino).and_then(|f| f.object(key)).map(|o| o.dest)
        {
            cx.w.data.changed(dest, &header, 0);
        }
        if let Err(errno) = result {
            failed = Some(errno);
        }
        // Once only: a further attempt has nothing left to do.
        cx.forget(Step::CutId(key));
    }
    cx.w.wake(node_key(ino));
    failed.map_or(Ok(()), |errno| Err(errno.into()))
}

/// See [`super::fallocate`].
pub(crate) fn fallocate(cx: &mut Cx<'_>, ino: u64, mode: u32, offset: u64, length: u64) -> Run<()> {
    let keep_size = mode & KEEP_SIZE != 0;
    let kind = match mode & !KEEP_SIZE {
        0 => PunchKind::Allocate,
        PUNCH_HOLE if keep_size => PunchKind::Hole,
        ZERO_RANGE => PunchKind::Zero,
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    let Some(end) = offset.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX) else {
        return Err(Errno::EFBIG.into());
    };
    if length == 0 {
        return Err(Errno::EINVAL.into());
    }
    if cx.memo(Step::Cut).is_none() {
        access::load(cx, ino)?;
        metadata_write_back::settled(cx, ino)?;
        let resident = loop {
            leave::wait_end(cx, ino)?;
            let grows = kind != PunchKind::Hole && !keep_size;
            // Under locks to the end, the size is exact.
            let range = if grows { offset..u64::MAX } else { offset..end };
            let resident = access::lock_again(cx, ino, &range)?;
            if !resident || kind == PunchKind::Hole || end <= leaving::limit(cx, ino) {
                break resident;
            }
            cx.unlock(Step::HomeLock);
            leave::leave(cx, ino)?;
        };
        if resident {
            return allocate_resident(cx, ino, kind, keep_size, offset..end);
        }
        crate::coherence::kernel::hide(cx, &[ino])?;
        let alone = alone(cx, ino, &(offset..end));
        access::quiet(cx, ino, alone)?;
        cx.set_memo(Step::Cut, offset);
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        let parts: Vec<(Key, Range<u64>)> =
            now.keys().into_iter().map(|key| (key, now.object_range(key, &(offset..end)))).collect();
        for (key, part) in parts {
            if part.is_empty() {
                continue;
            }
            if kind != PunchKind::Allocate {
                edit(cx.w, ino, key, |object| {
                    object.void_fetches(&part);
                    object.pages.cut(&part);
                });
            }
            punch(cx, ino, key, kind, &part, keep_size);
        }
    }
    punched(cx, ino, |file, key, size| match keep_size {
        true => size,
        false => size.max(file.object_range(key, &(offset..end)).end),
    })?;
    access::end_turn(cx, ino);
    Ok(())
}

/// A resident file cannot have allocated space: zeros are written where they are wanted.
fn allocate_resident(cx: &mut Cx<'_>, ino: u64, kind: PunchKind, keep_size: bool, range: Range<u64>) -> Run<()> {
    let size = file(cx.w, ino).map_or(0, |f| f.home.size);
    let zeros = match kind {
        PunchKind::Allocate if keep_size => return Ok(()),
        PunchKind::Allocate => range.start.max(size)..range.end,
        PunchKind::Zero if !keep_size => range,
        _ => range.start..range.end.min(size),
    };
    // The size is read under the pinned lock and the zeros are written in the same attempt; or they are in flight
    // already.
    let zeros = match (cx.memo(Step::Through), cx.memo(Step::Zeros)) {
        (Some(start), Some(end)) => start..end,
        _ => zeros,
    };
    if zeros.is_empty() {
        return Ok(());
    }
    cx.set_memo(Step::Zeros, zeros.end);
    let data = Bytes::from(vec![0; (zeros.end - zeros.start) as usize]);
    write::write(cx, ino, WriteAt::Offset(zeros.start), &data, IoFlags::default()).map(|_| ())
}

/// See [`super::seek`].
pub(crate) fn seek(cx: &mut Cx<'_>, ino: u64, offset: u64, whence: Whence) -> Run<u64> {
    if offset >= FILE_SIZE_MAX {
        return Err(Errno::ENXIO.into());
    }
    let resident = access::lock(cx, ino, LockMode::Pr, &(offset..u64::MAX))?;
    access::wait_cut(cx, ino)?;
    let size = access::size(cx, ino)?;
    if offset >= size {
        return Err(Errno::ENXIO.into());
    }
    if resident {
        return Ok(if whence == Whence::Data { offset } else { size });
    }
    flush::settle_file(cx, ino, &(offset..u64::MAX))?;
    let hole = whence == Whence::Hole;
    let mut found: Option<u64> = None;
    let mut waiting = false;
    let keys = file(cx.w, ino).map(|f| f.keys()).unwrap_or_default();
    for key in keys {
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        let Some(object) = now.object(key) else { continue };
        let from = now.striping.object_cut(key, offset);
        let here = if from >= object.size {
            // Only a hole from here on.
            hole.then_some(from)
        } else {
            let request =
                SeekReq { object: object.id(), offset: from, hole, job: crate::coherence::data::job(cx, ino) };
            let dest = object.dest;
            let at = Step::Seek(object.number());
            match cx.start_rpc(at, dest, Opcode::ObjSeek, |_, _| Request::new(&request)) {
                None => {
                    waiting = true;
                    continue;
                }
                Some(Err(Errno::ENXIO)) => None,
                Some(Err(errno)) => return Err(errno.into()),
                Some(Ok(reply)) => {
                    Some(reply.frame().decode::<SeekRep>().map_err(|_| Stop::Errno(Errno::EPROTO))?.offset)
                }
            }
        };
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if let Some(at) = here {
            let at = now.striping.file_offset(key, at).max(offset);
            found = Some(found.map_or(at, |known| known.min(at)));
        }
    }
    if waiting {
        return Err(Stop::Wait);
    }
    match found {
        Some(at) if at < size => Ok(at),
        _ if hole => Ok(size),
        _ => Err(Errno::ENXIO.into()),
    }
}
