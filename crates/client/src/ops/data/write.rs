//! Writing: into the cache if memory and space grants allow it, otherwise through to the targets.
//!
//! A cached write changes pages, size and times in one attempt, under locks, and is done. A write that must be durable,
//! bypasses the cache, or has no space granted is sent at once and answered when the targets have answered, so that the
//! call that caused an error reports it.

use core::ops::Range;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::{LockMode, Lvb, WriteReq};
use proto::{Bytes, Errno, Opcode};

use super::{IoFlags, WriteAt, leave};
use crate::base::Dest;
use crate::base::Step;
use crate::cache::data::state::{HOME, Key};
use crate::cache::data::striping::{FILE_SIZE_MAX, Striping};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data::leaving;
use crate::coherence::data::state::{BUDGET, edit, evict, file, file_mut, into_clock, node_key};
use crate::coherence::data::{access, flush, recall};
use crate::coherence::metadata_write_back;
use crate::coherence::op::Memo;
use crate::coherence::request::Request;

/// The part of a write that fits into one request.
#[derive(Clone, Debug)]
struct Part {
    key: Key,
    dest: Dest,
    range: Range<u64>,
    data: Bytes,
}

/// See [`super::write()`]. Returns the range that was written.
pub(crate) fn write(cx: &mut Cx<'_>, ino: u64, at: WriteAt, data: &Bytes, flags: IoFlags) -> Run<Range<u64>> {
    if data.is_empty() {
        return Ok(0..0);
    }
    if cx.memo(Step::Through).is_some() {
        return continue_through(cx, ino, at, data, flags);
    }
    if flags.sync || flags.direct {
        metadata_write_back::settled(cx, ino)?;
    }
    let given = match at {
        WriteAt::Append => None,
        WriteAt::Offset(offset) if offset >= FILE_SIZE_MAX => return Err(Errno::EFBIG.into()),
        WriteAt::Offset(offset) => Some(offset),
    };
    let (resident, offset) = loop {
        leave::wait_end(cx, ino)?;
        let range = given.map_or(0..u64::MAX, |offset| offset..end_of(offset, data));
        let resident = access::lock(cx, ino, LockMode::Pw, &range)?;
        let offset = match given {
            Some(offset) => offset,
            None => access::size(cx, ino)?,
        };
        if offset >= FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        if !resident || end_of(offset, data) <= leaving::limit(cx, ino) {
            break (resident, offset);
        }
        cx.unlock(Step::HomeLock);
        leave::leave(cx, ino)?;
    };
    if !flags.write_back {
        // Errors of data that was buffered before are reported first.
        flush::retry(cx, ino)?;
    }
    let whole = data;
    let data = data.slice(..(end_of(offset, data) - offset) as usize);
    access::wait_turn(cx, ino)?;
    let parts = cut(cx, ino, resident, offset, &data);
    if flags.sync || flags.direct {
        return through(cx, ino, (at, offset), &parts, &data, flags);
    }
    let length = data.len() as u64;
    if cx.w.data.unwritten > 0 && cx.w.data.unwritten + length > cx.w.options.max_dirty {
        if flush::start_oldest(cx.w) {
            return Err(cx.wait(BUDGET));
        }
        // Memory is full of bytes that cannot be written. This write goes directly to its targets, and waits for no
        // other.
        stdx::mark!("memory_full_of_unwritable");
        metadata_write_back::settled(cx, ino)?;
        return through(cx, ino, (at, offset), &parts, &data, flags);
    }
    if let Some(dest) = without_grant(cx, &parts) {
        if flush::push_lane(cx.w, dest) {
            return Err(cx.wait(BUDGET));
        }
        metadata_write_back::settled(cx, ino)?;
        if resident && leave::leave_if_full(cx, ino, dest)? {
            return write(cx, ino, at, whole, flags);
        }
        return through(cx, ino, (at, offset), &parts, &data, flags);
    }
    if matches!(at, WriteAt::Append) && recall::pages_in_use(cx.w, ino) {
        // From now on others may read the data, while the answer waits for the kernel.
        crate::coherence::kernel::hide(cx, &[ino])?;
    }
    let now = cx.wall_ns();
    for part in &parts {
        put(cx, ino, part, now);
    }
    if let Some(file) = file_mut(cx.w, ino) {
        file.kernel_pages = true;
    }
    flush::after_write(cx.w, ino, parts.iter().map(|part| (part.key, part.range.clone())));
    Ok(offset..offset + length)
}

fn end_of(offset: u64, data: &Bytes) -> u64 {
    offset.saturating_add(data.len() as u64).min(FILE_SIZE_MAX)
}

/// Splits the write into one part per object and stripe.
fn cut(cx: &Cx<'_>, ino: u64, resident: bool, offset: u64, data: &Bytes) -> Vec<Part> {
    let Some(file) = file(cx.w, ino) else { return Vec::new() };
    let striping = if resident { Striping::WHOLE } else { file.striping };
    let range = offset..offset + data.len() as u64;
    let part = |piece: crate::cache::data::striping::Piece| {
        let key = if resident { HOME } else { piece.stripe };
        let from = (piece.file_offset - offset) as usize;
        Some(Part {
            key,
            dest: file.object(key)?.dest,
            range: piece.object_offset..piece.object_offset + piece.length,
            data: data.slice(from..from + piece.length as usize),
        })
    };
    striping.pieces(&range).filter_map(part).collect()
}

/// A target that has not granted space for its part of the write.
fn without_grant(cx: &Cx<'_>, parts: &[Part]) -> Option<Dest> {
    let mut needs: smallvec::SmallVec<[(Dest, u64); 4]> = smallvec::SmallVec::new();
    for part in parts {
        match needs.iter_mut().find(|(dest, _)| *dest == part.dest) {
            Some((_, need)) => *need += part.data.len() as u64,
            None => needs.push((part.dest, part.data.len() as u64)),
        }
    }
    needs.into_iter().find(|(dest, need)| flush::grant_left(cx.w, *dest) < *need).map(|(dest, _)| dest)
}

/// Puts a part into the cache.
fn put(cx: &mut Cx<'_>, ino: u64, part: &Part, now_ns: i64) {
    edit(cx.w, ino, part.key, |object| {
        object.void_fetches(&part.range);
        object.pages.write(part.range.start, part.data.clone());
        object.size = object.size.max(part.range.end);
        object.touch(now_ns);
    });
}

/// Starts to send a write: no older request for its bytes may be in flight, and no newer one is sent before it is done.
fn through(
    cx: &mut Cx<'_>,
    ino: u64,
    (at, offset): (WriteAt, u64),
    parts: &[Part],
    data: &Bytes,
    flags: IoFlags,
) -> Run<Range<u64>> {
    crate::coherence::kernel::hide(cx, &[ino])?;
    for part in parts {
        flush::start(cx.w, ino, part.key, &part.range);
    }
    let busy = |part: &Part| {
        file(cx.w, ino).and_then(|f| f.object(part.key)).is_some_and(|o| o.pages.unwritten_in(&part.range))
    };
    if parts.iter().any(busy) {
        return Err(cx.wait(node_key(ino)));
    }
    let op = cx.op.id;
    cx.w.data.mark_op(op, ino);
    cx.op.changes += 1;
    cx.set_memo(Step::Through, offset);
    // Remembered, because a target may report another size after a reconnect, and the requests must be the same in
    // every attempt.
    let size = |part: &Part| cx.w.imports.get(part.dest).map_or(BRW_SIZE_MAX, |target| target.brw_size);
    let max = u64::from(parts.iter().map(size).min().unwrap_or(BRW_SIZE_MAX).max(4096));
    cx.set_memo(Step::ThroughSize, max);
    for (part, number) in requests(parts, max).iter().zip(0..) {
        let id = cx.w.data.new_id();
        cx.set_memo(Step::ThroughId(number), id);
        edit(cx.w, ino, part.key, |object| object.pages.begin(id, part.range.clone(), part.range.end));
    }
    continue_through(cx, ino, at, data, flags)
}

/// Splits parts into requests of at most `max` bytes.
fn requests(parts: &[Part], max: u64) -> Vec<Part> {
    let mut all = Vec::new();
    for part in parts {
        let mut at = part.range.start;
        while at < part.range.end {
            let end = part.range.end.min((at / max + 1) * max);
            let from = (at - part.range.start) as usize;
            let data = part.data.slice(from..from + (end - at) as usize);
            all.push(Part { key: part.key, dest: part.dest, range: at..end, data });
            at = end;
        }
    }
    all
}

fn send(cx: &mut Cx<'_>, ino: u64, part: &Part, number: u64, flags: IoFlags) {
    let now = cx.wall_ns();
    let (uid, gid) = crate::coherence::data::owner(cx.w, ino);
    let Some(object) = file(cx.w, ino).and_then(|f| f.object(part.key)) else { return };
    let mut lvb = object.lvb();
    lvb.size = part.range.end;
    lvb.ctime_ns = lvb.ctime_ns.max(now);
    lvb.mtime_ns = lvb.ctime_ns;
    let request = WriteReq {
        object: object.id(),
        offset: part.range.start,
        lock: object.covering(LockMode::Pw, &part.range).map_or(0, |lock| lock.handle),
        lvb: Some(lvb),
        uid,
        gid,
        grant_used: flush::use_spare_grant(cx.w, part.dest, part.data.len() as u64),
        sync: flags.sync,
        want_grant: flush::want_grant(cx.w, part.dest),
        job: crate::coherence::data::job(cx, ino),
    };
    cx.set_memo(Step::ThroughGrant(number), request.grant_used);
    let bulk = part.data.clone();
    let _ = cx.start_rpc(Step::ThroughSent(number), part.dest, Opcode::ObjWrite, |_, _| {
        Request::new(&request).with_bulk(bulk)
    });
}

/// Sends the parts, in order. A part follows at once if the parts before it have grant, otherwise when they are
/// written: a write that a full disk cuts short must leave nothing beyond its end. Appended parts are never sent at
/// once, because other clients may fill a disk regardless of grants, and the next append starts where this one ends.
/// True: nothing more has to be sent, and everything sent is answered.
fn send_in_order(cx: &mut Cx<'_>, ino: u64, at: WriteAt, parts: &[Part], flags: IoFlags) -> bool {
    let (mut go_on, mut answered) = (true, true);
    for (part, number) in parts.iter().zip(0..) {
        if go_on && cx.op.memo(Step::ThroughSent(number)).is_none() {
            send(cx, ino, part, number, flags);
        }
        let promised = cx.memo(Step::ThroughGrant(number)) == Some(part.data.len() as u64);
        match cx.op.memo(Step::ThroughSent(number)) {
            Some(Memo::Reply(reply)) if reply.header.status == 0 => {}
            Some(Memo::Sent(_)) => {
                answered = false;
                go_on &= promised && !matches!(at, WriteAt::Append);
            }
            _ => go_on = false,
        }
    }
    answered
}

/// Waits for the answers to all parts. Only what was written before the first error counts.
fn continue_through(cx: &mut Cx<'_>, ino: u64, at: WriteAt, data: &Bytes, flags: IoFlags) -> Run<Range<u64>> {
    let offset = cx.memo(Step::Through).unwrap_or(0);
    let data = data.slice(..(end_of(offset, data) - offset) as usize);
    let resident = matches!(cx.op.memo(Step::HomeLock), Some(Memo::Lock { .. }));
    let parts = cut(cx, ino, resident, offset, &data);
    let max = cx.memo(Step::ThroughSize).unwrap_or(u64::from(BRW_SIZE_MAX));
    let parts = requests(&parts, max);
    if !send_in_order(cx, ino, at, &parts, flags) {
        return Err(Stop::Wait);
    }
    let mut written = 0;
    let mut failed = None;
    for (part, number) in parts.iter().zip(0..) {
        let id = cx.memo(Step::ThroughId(number)).unwrap_or(0);
        let grant = cx.memo(Step::ThroughGrant(number)).unwrap_or(0);
        let Some((result, header)) = cx.op.object_changed(Step::ThroughSent(number)) else {
            // Not sent, because an earlier part failed.
            edit(cx.w, ino, part.key, |object| {
                object.pages.end(id);
                // Another operation may have assumed meanwhile that it succeeds.
                object.size_exact = false;
            });
            continue;
        };
        flush::answered(cx.w, part.dest, grant, header.as_ref(), result.as_ref().ok(), part.data.len() as u64);
        if let Some(header) = &header {
            let moment = cx.w.moment();
            edit(cx.w, ino, part.key, |object| object.answered(header.transno, moment));
        }
        match result {
            Ok(rep) => {
                if failed.is_none() {
                    written += part.data.len() as u64;
                }
                settle(cx, ino, part, id, &rep.lvb.unwrap_or_default(), flags);
            }
            Err(errno) => {
                failed.get_or_insert(errno);
                edit(cx.w, ino, part.key, |object| {
                    object.pages.end(id);
                    object.pages.cut_clean(&part.range);
                    object.size_exact = false;
                });
            }
        }
    }
    cx.w.wake(node_key(ino));
    evict(cx.w);
    match failed {
        Some(errno) if written == 0 => Err(errno.into()),
        _ => Ok(offset..offset + written),
    }
}

/// A part was written: updates the cache, under the lock.
fn settle(cx: &mut Cx<'_>, ino: u64, part: &Part, id: u64, lvb: &Lvb, flags: IoFlags) {
    let mark = cx.w.data.new_id();
    let cached = edit(cx.w, ino, part.key, |object| {
        object.pages.end(id);
        object.void_fetches(&part.range);
        object.pages.cut_clean(&part.range);
        object.size = object.size.max(part.range.end);
        object.set_times(lvb);
        let covered = object.covering(LockMode::Pr, &part.range).is_some();
        if covered && !flags.direct {
            object.pages.fill(part.range.start, &part.data, mark);
        }
        covered && !flags.direct
    });
    if cached == Some(true) {
        into_clock(cx.w, ino, part.key, part.range.clone(), mark);
        if let Some(file) = file_mut(cx.w, ino) {
            file.kernel_pages = true;
        }
    }
}
