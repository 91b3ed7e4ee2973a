//! Reading: cached bytes are returned at once, missing ones are fetched from all stripes in parallel.
//!
//! A read that ends inside an object under its lock needs no other object's size; one that reaches the end of an object
//! requests the size of the file. Bytes of an object beyond its size are zeros up to the file's size.

use bytes::BytesMut;
use core::ops::Range;
use proto::msg::{LockMode, Policy, ReadReq};
use proto::{Bytes, Errno, Opcode};

use super::IoFlags;
use crate::api::FileHandle;
use crate::base::Step;
use crate::cache::data::state::{ALL, Fetch, HOME, Key, subtract};
use crate::cache::data::striping::FILE_SIZE_MAX;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data::state::{edit, evict, file, file_mut, into_clock, node_key};
use crate::coherence::data::{Task, access, layout};
use crate::coherence::metadata_write_back;
use crate::coherence::op::Memo;
use crate::coherence::request::Request;

/// See [`super::read()`].
pub(crate) fn read(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, offset: u64, length: u32, flags: IoFlags) -> Run<Bytes> {
    let end = offset.saturating_add(u64::from(length)).min(FILE_SIZE_MAX);
    if offset >= end {
        return Ok(Bytes::new());
    }
    let range = offset..end;
    let resident = access::lock(cx, ino, LockMode::Pr, &range)?;
    access::wait_cut(cx, ino)?;
    let end = readable_end(cx, ino, resident, &range)?;
    if let Some(file) = file_mut(cx.w, ino) {
        // Also beyond the end: zeros.
        file.kernel_pages |= !flags.direct;
    }
    if offset >= end {
        return Ok(Bytes::new());
    }
    let range = offset..end;
    if !flags.direct {
        read_ahead(cx, fh, ino, &range);
    }
    fetch(cx, ino, resident, &range)?;
    let data = collect(cx, ino, resident, &range);
    evict(cx.w);
    Ok(data)
}

/// The end of a read of `range` under locks that cover it: at most the end of the file.
fn readable_end(cx: &mut Cx<'_>, ino: u64, resident: bool, range: &Range<u64>) -> Run<u64> {
    let Some(file) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let (key, last) = if resident { (HOME, range.end - 1) } else { file.striping.locate(range.end - 1) };
    if file.object(key).is_some_and(|object| object.size > last) {
        return Ok(range.end);
    }
    Ok(access::size(cx, ino)?.min(range.end))
}

/// The objects that a file range touches, each with its part of the range, up to the object's size.
fn parts(cx: &Cx<'_>, ino: u64, resident: bool, range: &Range<u64>) -> Vec<(Key, Range<u64>)> {
    let Some(file) = file(cx.w, ino) else { return Vec::new() };
    let keys = if resident { vec![HOME] } else { (0..file.objects.len() as u32).collect() };
    let part = |key: Key| {
        let part = file.object_range(key, range);
        let size = file.object(key).map_or(0, |object| object.size);
        (key, part.start..part.end.min(size).max(part.start))
    };
    keys.into_iter().map(part).filter(|(_, part)| !part.is_empty()).collect()
}

/// Fetches the missing bytes of `range` into the cache. The covering locks are pinned.
pub(crate) fn fetch(cx: &mut Cx<'_>, ino: u64, resident: bool, range: &Range<u64>) -> Run<()> {
    let parts = parts(cx, ino, resident, range);
    if !take_replies(cx, ino, &parts)? {
        return Err(Stop::Wait);
    }
    let (gaps, busy) = plan(cx, ino, &parts);
    let sent = !gaps.is_empty();
    if sent {
        metadata_write_back::settled(cx, ino)?;
        access::wait_turn(cx, ino)?;
    }
    for (key, gap) in gaps {
        send(cx, ino, key, gap);
    }
    match (sent, busy) {
        (true, _) => Err(Stop::Wait),
        (_, true) => Err(cx.wait(node_key(ino))),
        _ => Ok(()),
    }
}

/// What has to be fetched, and whether another operation already fetches a part.
fn plan(cx: &Cx<'_>, ino: u64, parts: &[(Key, Range<u64>)]) -> (Vec<(Key, Range<u64>)>, bool) {
    let (mut gaps, mut busy) = (Vec::new(), false);
    for (key, part) in parts {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(*key)) else { continue };
        for gap in object.pages.missing(part) {
            let mut open = vec![gap.clone()];
            for other in &object.fetches {
                open = open.iter().flat_map(|gap| subtract(gap, &other.range)).collect();
            }
            let left: u64 = open.iter().map(|r| r.end - r.start).sum();
            busy |= left < gap.end - gap.start;
            gaps.extend(open.into_iter().map(|gap| (*key, gap)));
        }
    }
    (gaps, busy)
}

/// Requests a run of bytes from the target, in as many requests as needed.
fn send(cx: &mut Cx<'_>, ino: u64, key: Key, gap: Range<u64>) {
    let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return };
    let dest = object.dest;
    let handle = object.covering(LockMode::Pr, &gap).map_or(0, |lock| lock.handle);
    let id = object.id();
    let max = u64::from(cx.w.imports.get(dest).map_or(proto::connect::BRW_SIZE_MAX, |t| t.brw_size).max(4096));
    let op = cx.op.id;
    cx.w.data.mark_op(op, ino);
    let job = crate::coherence::data::job(cx, ino);
    let mut at = gap.start;
    while at < gap.end {
        let end = gap.end.min((at / max + 1) * max);
        let number = cx.memo(Step::Fetches).unwrap_or(0);
        cx.set_memo(Step::Fetches, number + 1);
        let at_step = Step::Fetch(number);
        let request = ReadReq { object: id, offset: at, length: (end - at) as u32, lock: handle, job: job.clone() };
        let _ = cx.start_rpc(at_step, dest, Opcode::ObjRead, |_, _| Request::new(&request));
        edit(cx.w, ino, key, |object| {
            object.fetches.push(Fetch { owner: op, step: at_step, range: at..end, voids: Default::default() });
        });
        at = end;
    }
}

/// Puts the replies to this operation's requests into the cache, all at once when the last one has arrived: so they are
/// not evicted before they are used. False: some are still missing.
fn take_replies(cx: &mut Cx<'_>, ino: u64, parts: &[(Key, Range<u64>)]) -> Run<bool> {
    let own = |object: &crate::cache::data::state::Object, op| object.fetches.iter().any(|f| f.owner == op);
    let mut keys: Vec<Key> = Vec::new();
    for (key, _) in parts {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(*key)) else { continue };
        let op = cx.op.id;
        if !own(object, op) {
            continue;
        }
        keys.push(*key);
        let answered = |f: &Fetch| matches!(cx.op.memo(f.step), Some(Memo::Reply(_) | Memo::Failed(_)));
        if !object.fetches.iter().filter(|f| f.owner == op).all(answered) {
            return Ok(false);
        }
    }
    let (mut failed, took) = (None, !keys.is_empty());
    for key in keys {
        let op = cx.op.id;
        let mut done: Vec<Fetch> = Vec::new();
        edit(cx.w, ino, key, |object| {
            let (mine, others) = core::mem::take(&mut object.fetches).into_iter().partition(|f| f.owner == op);
            done = mine;
            object.fetches = others;
        });
        for fetch in done {
            let result = match cx.op.memo(fetch.step) {
                Some(Memo::Reply(reply)) => Errno::from_status(reply.header.status).map(|()| reply.bulk.clone()),
                Some(Memo::Failed(errno)) => Err(*errno),
                _ => Err(Errno::EIO),
            };
            cx.forget(fetch.step);
            match result {
                Err(errno) => failed = Some(errno),
                Ok(bulk) => fill(cx, ino, key, &fetch, bulk),
            }
        }
    }
    if took {
        // Only now: two reads that wait for each other's bytes would wake each other forever.
        cx.w.wake(node_key(ino));
    }
    failed.map_or(Ok(true), |errno| Err(errno.into()))
}

fn fill(cx: &mut Cx<'_>, ino: u64, key: Key, fetch: &Fetch, bulk: Bytes) {
    let wanted = (fetch.range.end - fetch.range.start) as usize;
    // The target's object may end before ours does: the rest is a hole.
    let data = if bulk.len() >= wanted {
        bulk.slice(..wanted)
    } else {
        let mut padded = BytesMut::with_capacity(wanted);
        padded.extend_from_slice(&bulk);
        padded.resize(wanted, 0);
        padded.freeze()
    };
    let mark = cx.w.data.new_id();
    edit(cx.w, ino, key, |object| object.fill(fetch, &data, mark));
    into_clock(cx.w, ino, key, fetch.range.clone(), mark);
}

/// The bytes of a range that [`fetch`] has put into the cache. Not copied if they lie in one segment.
pub(crate) fn collect(cx: &mut Cx<'_>, ino: u64, resident: bool, range: &Range<u64>) -> Bytes {
    let length = (range.end - range.start) as usize;
    let Some(file) = file_mut(cx.w, ino) else { return Bytes::new() };
    let striping = if resident { crate::cache::data::striping::Striping::WHOLE } else { file.striping };
    let mut found: Vec<(u64, Bytes)> = Vec::new();
    for piece in striping.pieces(range) {
        let key = if resident { HOME } else { piece.stripe };
        let Some(object) = file.object_mut(key) else { continue };
        let part = piece.object_offset..piece.object_offset + piece.length;
        object.pages.read(&part, |at, data| {
            found.push((piece.file_offset + (at - piece.object_offset), data));
        });
    }
    match found.as_slice() {
        [(at, whole)] if *at == range.start && whole.len() == length => whole.clone(),
        _ => {
            let mut out = BytesMut::with_capacity(length);
            for (at, data) in found {
                out.resize((at - range.start) as usize, 0);
                out.extend_from_slice(&data);
            }
            out.resize(length, 0);
            out.freeze()
        }
    }
}

fn read_ahead(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, range: &Range<u64>) {
    if cx.memo(Step::ReadAhead).is_some() {
        return;
    }
    cx.set_memo(Step::ReadAhead, 1);
    let max = cx.w.options.max_read_ahead.min(cx.w.options.max_cached / 4);
    let Some(file) = file_mut(cx.w, ino) else { return };
    let state = match file.read_ahead.iter().position(|(owner, _)| *owner == fh.0) {
        Some(i) => &mut file.read_ahead[i].1,
        None => {
            if file.read_ahead.len() >= 16 {
                file.read_ahead.remove(0);
            }
            file.read_ahead.push((fh.0, Default::default()));
            let last = file.read_ahead.len() - 1;
            &mut file.read_ahead[last].1
        }
    };
    if let Some(ahead) = state.on_read(range, max) {
        cx.spawn(crate::coherence::op::Task::Data(Task::ReadAhead { ino, start: ahead.start, end: ahead.end }));
    }
}

/// [`Task::ReadAhead`]: as far as locks are held already. Errors are left to the actual reads.
pub(crate) fn ahead(cx: &mut Cx<'_>, ino: u64, range: &Range<u64>) -> Run<()> {
    let Some(file) = file(cx.w, ino) else { return Ok(()) };
    if file.recalls > 0 {
        return Ok(());
    }
    let resident = file.resident();
    if !resident && !layout::is_known(cx.w, ino) {
        return Ok(());
    }
    for key in file.keys() {
        let Some(object) = crate::coherence::data::state::file(cx.w, ino)
            .and_then(|f| f.object(key).map(|o| (f.object_range(key, range), o)))
        else {
            return Ok(());
        };
        let (part, object) = object;
        let part = part.start..part.end.min(object.size).max(part.start);
        if part.is_empty() {
            continue;
        }
        let (dest, resource) = (object.dest, object.resource);
        let policy = match key {
            HOME => Policy::Bits(proto::msg::bits::DOM),
            _ => Policy::Extent(proto::msg::Extent { start: part.start, end: part.end - 1 }),
        };
        if cx.cached_lock(Step::Lock(key), dest, resource, LockMode::Pr, policy).is_none() {
            return Ok(());
        }
    }
    if let Err(Stop::Wait) = fetch(cx, ino, resident, range) {
        return Err(Stop::Wait);
    }
    evict(cx.w);
    Ok(())
}

/// The whole contents of a resident file, under its lock.
pub(crate) fn whole(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<Bytes> {
    let range = 0..size;
    debug_assert!(size < ALL.end);
    fetch(cx, ino, true, &range)?;
    Ok(collect(cx, ino, true, &range))
}
