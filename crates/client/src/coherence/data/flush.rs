//! Write-back: dirty bytes become requests, requests go through their target's lane, answers make bytes clean.
//!
//! Bytes are taken for writing when they fill a whole request, when they are old, when memory or grant runs short, and
//! when an operation waits for them (fsync, truncate, a lock callback). A few requests per target are in flight at
//! once. The session keeps what is answered but not durable for replay; when that becomes too much, the target is asked
//! to commit, and the lane waits for it.

use core::ops::{Bound, Range};
use core::time::Duration;
use proto::frame::Header;
use proto::msg::{LockMode, Lvb, ObjSyncReq, ObjectId, ObjectStateRep, WriteReq};
use proto::{Errno, Opcode, Transno};
use stdx::Instant;

use crate::base::Dest;
use crate::base::Step;
use crate::cache::data::lanes::{Job, Lane};
use crate::cache::data::state::{ALL, HOME, Key};
use crate::cache::data::striping::{Striping, joined};
use crate::cache::node::Hold;
use crate::coherence::cx::{Answers, Cx, Run, Stop};
use crate::coherence::data::state::{BUDGET, edit, evict, failed, file, file_mut, into_clock, node_key};
use crate::coherence::data::{Task, leaving};
use crate::coherence::metadata_write_back;
use crate::coherence::op::Memo;
use crate::coherence::request::Request;
use crate::coherence::world::World;

/// Requests in flight per object target.
const IN_FLIGHT: u32 = 8;
/// Requests in flight per metadata target, where each takes the slot that every change needs.
const IN_FLIGHT_MDT: u32 = 1;

/// The shortest pause before a failed write is retried, and the longest.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often an fsync checks at most whether a small file can be written where it moves to.
const MOVES_MAX: u64 = 2;
/// Lost ranges that a line of the log lists individually.
const PARTS_SHOWN: usize = 64;
/// At the end of a mount, how long to try to write what cannot be written.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// The space granted by a target that is not used by dirty bytes or requests in flight.
pub(crate) fn grant_left(w: &World, dest: Dest) -> u64 {
    let Some(target) = w.imports.get(dest) else { return 0 };
    let lane = w.data.lane_ref(dest);
    target.import.grant().saturating_sub(lane.map_or(0, |lane| lane.dirty + lane.grant_used))
}

/// The grant that this client asks for, given what it has to write.
pub(crate) fn want_grant(w: &World, dest: Dest) -> u64 {
    w.data.lane_ref(dest).map_or(0, |lane| 2 * (lane.dirty + lane.grant_used))
}

/// Dirty bytes become a request. Returns how much of the grant it uses until it is answered.
fn use_grant(w: &mut World, dest: Dest, length: u64) -> u64 {
    let Some(target) = w.imports.get(dest) else { return 0 };
    let grant = target.import.grant();
    let lane = w.data.lane(dest);
    let used = length.min(grant.saturating_sub(lane.grant_used));
    lane.grant_used += used;
    used
}

/// The same for bytes that were not buffered: they leave enough for the dirty ones.
pub(crate) fn use_spare_grant(w: &mut World, dest: Dest, length: u64) -> u64 {
    let used = length.min(grant_left(w, dest));
    w.data.lane(dest).grant_used += used;
    used
}

/// A write of `length` bytes was answered (or never will be: no header).
pub(crate) fn answered(
    w: &mut World,
    dest: Dest,
    used: u64,
    header: Option<&Header>,
    rep: Option<&ObjectStateRep>,
    length: u64,
) {
    let lane = w.data.lane(dest);
    lane.grant_used -= used;
    if let (Some(rep), Some(target)) = (rep, w.imports.get_mut(dest)) {
        target.import.set_grant(rep.grant);
    }
    if let Some(header) = header {
        w.data.changed(dest, header, length);
    }
}

/// Takes the dirty bytes of a range for writing.
pub(crate) fn start(w: &mut World, ino: u64, key: Key, range: &Range<u64>) {
    let Some((dest, max)) = lane_of(w, ino, key) else { return };
    let mut at = range.start;
    while let Some(end) = take(w, ino, key, &(at..range.end), max, false) {
        at = end;
    }
    pump(w, dest);
}

/// After bytes were written: takes the requests that they completed.
fn start_full(w: &mut World, ino: u64, key: Key, written: &Range<u64>) {
    let Some((dest, max)) = lane_of(w, ino, key) else { return };
    let mut at = written.start / max * max;
    while at < written.end {
        take(w, ino, key, &(at..written.end), max, true);
        at += max;
    }
    pump(w, dest);
}

/// The target of an object's dirty bytes, and the size of a request; nothing if there are none, or they must not be
/// written now.
fn lane_of(w: &World, ino: u64, key: Key) -> Option<(Dest, u64)> {
    let file = file(w, ino).filter(|file| !(file.leaving && key == HOME))?;
    let object = file.object(key).filter(|object| object.pages.counts().dirty > 0)?;
    let max = w.imports.get(object.dest).map_or(proto::connect::BRW_SIZE_MAX, |target| target.brw_size).max(4096);
    Some((object.dest, max.into()))
}

/// Queues the next request of dirty bytes of a range. Returns where it ends.
fn take(w: &mut World, ino: u64, key: Key, range: &Range<u64>, max: u64, full_only: bool) -> Option<u64> {
    let id = w.data.new_id();
    let taken = edit(w, ino, key, |object| {
        let (offset, data) = object.pages.take(range, max, full_only, id)?;
        Some((offset, data, object.lvb(), object.dest))
    });
    let (offset, data, lvb, dest) = taken??;
    let end = offset + data.len() as u64;
    let grant_used = use_grant(w, dest, data.len() as u64);
    w.data.jobs.insert(id, Job { ino, key, dest, offset, data, lvb, grant_used });
    w.data.lane(dest).queue.push_back(id);
    Some(end)
}

/// Takes all dirty bytes of a file for writing.
pub(crate) fn start_all(w: &mut World, ino: u64) {
    let keys = file(w, ino).map(|f| f.keys()).unwrap_or_default();
    for key in keys {
        start(w, ino, key, &ALL);
    }
}

/// Sends queued requests up to the limit of the lane.
fn pump(w: &mut World, dest: Dest) {
    let limit = if matches!(dest, Dest::Mdt(_)) { IN_FLIGHT_MDT } else { IN_FLIGHT };
    let bound = w.options.max_dirty.max(1 << 20);
    if w.data.unstable > bound / 2 {
        let lanes: Vec<Dest> =
            w.data.lanes().filter(|(_, lane)| !lane.unstable.is_empty() && !lane.committing).map(|(d, _)| d).collect();
        for dest in lanes {
            w.data.lane(dest).committing = true;
            w.spawn(crate::coherence::op::Task::Data(Task::Commit { dest }));
        }
        if w.data.unstable > bound {
            return;
        }
    }
    loop {
        let lane = w.data.lane(dest);
        if lane.in_flight >= limit {
            return;
        }
        let Some(id) = lane.queue.pop_front() else { return };
        lane.in_flight += 1;
        w.spawn(crate::coherence::op::Task::Data(Task::Write { id }));
    }
}

/// [`Task::Write`].
pub(crate) fn write(cx: &mut Cx<'_>, id: u64) -> Run<()> {
    let Some(job) = cx.w.data.jobs.get(&id) else { return Ok(()) };
    let (ino, key, dest, offset, data) = (job.ino, job.key, job.dest, job.offset, job.data.clone());
    let (lvb, grant_used) = (job.lvb, job.grant_used);
    let range = offset..offset + data.len() as u64;
    if !cx.began(Step::Write) {
        metadata_write_back::settled(cx, ino)?;
        let (uid, gid) = crate::coherence::data::owner(cx.w, ino);
        let lock = file(cx.w, ino).and_then(|f| f.object(key)).and_then(|object| {
            let lock = object.covering(LockMode::Pw, &range)?;
            // It may arrive after a truncation that is in flight.
            let size = object.size_floor().min(object.pages.cut_in_flight().unwrap_or(u64::MAX));
            Some((lock.handle, object.resource, size))
        });
        let Some((handle, resource, size)) = lock else {
            // The lock was lost after the bytes were taken.
            done(cx.w, id, ino, key, dest, &Err(Errno::EIO), None);
            return Ok(());
        };
        let request = WriteReq {
            object: ObjectId { fid: resource.fid, stripe: resource.stripe },
            offset,
            lock: handle,
            // The current size, not that from when the bytes were taken: the object may have been truncated since.
            lvb: Some(Lvb { size, ..lvb }),
            uid,
            gid,
            grant_used,
            sync: false,
            want_grant: want_grant(cx.w, dest),
            job: crate::coherence::data::job(cx, ino),
        };
        let bulk = data.clone();
        let _ = cx.start_rpc(Step::Write, dest, Opcode::ObjWrite, |_, _| Request::new(&request).with_bulk(bulk));
    }
    let (result, header) = match cx.op.memo(Step::Write) {
        Some(Memo::Reply(reply)) => (
            Errno::from_status(reply.header.status)
                .and_then(|()| reply.frame().decode::<ObjectStateRep>().map_err(|_| Errno::EPROTO)),
            Some(reply.header),
        ),
        Some(Memo::Failed(errno)) => (Err(*errno), None),
        _ => return Err(Stop::Wait),
    };
    answered(cx.w, dest, 0, header.as_ref(), result.as_ref().ok(), data.len() as u64);
    done(cx.w, id, ino, key, dest, &result, header.map(|h| h.transno));
    Ok(())
}

/// A job has ended.
fn done(
    w: &mut World,
    id: u64,
    ino: u64,
    key: Key,
    dest: Dest,
    result: &Result<ObjectStateRep, Errno>,
    transno: Option<Transno>,
) {
    let Some(job) = w.data.jobs.remove(&id) else { return };
    let lane = w.data.lane(dest);
    lane.grant_used -= job.grant_used;
    let range = job.offset..job.offset + job.data.len() as u64;
    let mark = w.data.new_id();
    let moment = w.moment();
    match result {
        Ok(rep) => {
            let range = edit(w, ino, key, |object| {
                object.answered(transno.unwrap_or_default(), moment);
                object.unwritable = None;
                if let Some(lvb) = &rep.lvb {
                    object.set_times(lvb);
                }
                object.pages.written(id, mark)
            });
            if let Some(Some(range)) = range {
                into_clock(w, ino, key, range, mark);
            }
            w.data.lane(dest).retry_after = Duration::ZERO;
        }
        Err(errno) if is_retryable(w, ino, key, &range, *errno) => write_failed(w, id, ino, key, dest, *errno),
        Err(errno) => {
            let lost = edit(w, ino, key, |object| {
                object.size_exact = false;
                object.pages.lost(id)
            });
            // What was lost with its lock was reported then.
            let lost = lost.unwrap_or_default();
            report_lost_unless_removed(w, ino, key, &lost, *errno, "its lock is gone");
        }
    }
    let lane = w.data.lane(dest);
    lane.in_flight -= 1;
    pump(w, dest);
    evict(w);
    w.wake(node_key(ino));
    w.wake(BUDGET);
}

/// Whether bytes whose write failed can be written later: the target knows the object, and the lock is still held.
fn is_retryable(w: &World, ino: u64, key: Key, range: &Range<u64>, errno: Errno) -> bool {
    let object = file(w, ino).and_then(|file| file.object(key));
    errno != Errno::ESTALE && object.is_some_and(|object| object.covering(LockMode::Pw, range).is_some())
}

/// A write failed. Its bytes stay dirty and are retried after a pause that grows, or at once when an operation waits
/// for them. If a metadata target has no space for the data of a small file, the data moves to object targets.
fn write_failed(w: &mut World, id: u64, ino: u64, key: Key, dest: Dest, errno: Errno) {
    stdx::mark!("write_back_fails");
    w.data.troubles.failures += 1;
    let first = edit(w, ino, key, |object| {
        object.pages.retry(id);
        object.failures = object.failures.wrapping_add(1);
        object.unwritable.replace(errno) != Some(errno)
    });
    let lane = w.data.lane(dest);
    lane.retry_after = (lane.retry_after * 2).clamp(RETRY_MIN, RETRY_MAX);
    let next = w.now + lane.retry_after;
    due(w, ino, next);
    if key == HOME && errno == Errno::ENOSPC && leaving::start(w, ino) {
        return;
    }
    if first == Some(true) {
        cannot_write(w, ino, dest, errno);
    }
}

/// Reports bytes that can never be written as lost, unless the file was removed. It was if the target does not have the
/// object (`ESTALE`) and no program has the file open: the client that removed it was not told that it is destroyed (a
/// restarted server answers a repeated unlink from what it still knows). Nobody misses such bytes.
pub(crate) fn report_lost_unless_removed(
    w: &mut World,
    ino: u64,
    key: Key,
    parts: &[Range<u64>],
    errno: Errno,
    why: &str,
) {
    if errno != Errno::ESTALE || w.nodes.get(ino).is_none_or(|node| node.is_held(Hold::Handle)) {
        return report_lost(w, ino, key, parts, errno, why);
    }
    let bytes: u64 = parts.iter().map(|part| part.end - part.start).sum();
    if bytes > 0 {
        stdx::mark!("write_back_of_removed");
        let path = w.nodes.path(ino);
        w.log(format!("'{path}' was removed before {bytes} bytes of it were written back"));
    }
}

/// Logs that data of a file cannot be written back at present. Programs get the error from their calls while that
/// lasts.
pub(crate) fn cannot_write(w: &mut World, ino: u64, dest: Dest, errno: Errno) {
    let (path, target) = (w.nodes.path(ino), w.target_name(dest));
    w.log_error(format!("'{path}' cannot be written back to {target}: {errno}; it is kept and tried again"));
}

/// Dirty bytes of an object are lost: this is logged and reported to programs that have the file open, or to the next
/// one that opens it. Those of a removed file are not missed.
pub(crate) fn report_lost(w: &mut World, ino: u64, key: Key, parts: &[Range<u64>], errno: Errno, why: &str) {
    let bytes: u64 = parts.iter().map(|part| part.end - part.start).sum();
    if bytes == 0 || w.nodes.get(ino).is_none_or(|node| node.destroyed) {
        return;
    }
    stdx::mark!("write_back_gives_up");
    w.data.troubles.given_up += bytes;
    if let Some(file) = file(w, ino) {
        let striping = if key == HOME { Striping::WHOLE } else { file.striping };
        let parts = joined(parts.iter().flat_map(|part| striping.file_parts(key, part)));
        let (fid, parts) = (file.fid, show_parts(&parts));
        let path = w.nodes.path(ino);
        w.log_error(format!("{bytes} bytes of '{path}' {fid} are lost ({why}: {errno}): {parts}"));
    }
    let shown = crate::coherence::lost::program_errno(errno);
    failed(w, ino, shown);
    crate::coherence::lost::bytes_lost(w, ino, shown);
}

/// Ranges of a file for the log: `0..4096, 8192..8200`.
fn show_parts(parts: &[Range<u64>]) -> String {
    let shown = parts.iter().take(PARTS_SHOWN).map(|part| format!("{}..{}", part.start, part.end));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if let (Some(next), Some(last)) = (parts.get(PARTS_SHOWN), parts.last()) {
        let more = parts.len() - PARTS_SHOWN;
        text.push_str(&format!(", and {more} more within {}..{}", next.start, last.end));
    }
    text
}

/// Gives up the dirty bytes in a range of an object.
pub(crate) fn give_up(w: &mut World, ino: u64, key: Key, range: &Range<u64>, errno: Errno, why: &str) {
    let parts = edit(w, ino, key, |object| {
        object.size_exact = false;
        object.pages.give_up(range)
    });
    report_lost(w, ino, key, &parts.unwrap_or_default(), errno, why);
}

/// A commit request has ended.
pub(crate) fn committed(w: &mut World, dest: Dest, last_committed: Option<Transno>) {
    match last_committed {
        Some(last) => w.data.durable(dest, last),
        None => w.data.forget_unstable(dest),
    }
    w.data.lane(dest).committing = false;
    let lanes: Vec<Dest> = w.data.lanes().map(|(dest, _)| dest).collect();
    for dest in lanes {
        pump(w, dest);
    }
}

/// [`Task::Commit`].
pub(crate) fn commit(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    if let Dest::Mdt(_) = dest {
        return match cx
            .start_rpc(Step::Commit, dest, Opcode::MdsSync, |_, _| Request::new(&proto::msg::SyncReq { fid: None }))
        {
            None => Err(Stop::Wait),
            Some(result) => {
                let last = result.ok().map(|reply| reply.header.last_committed);
                committed(cx.w, dest, last);
                Ok(())
            }
        };
    }
    match cx.start_rpc(Step::Commit, dest, Opcode::ObjSync, |_, _| Request::new(&ObjSyncReq::default())) {
        None => Err(Stop::Wait),
        Some(result) => {
            let last = result.ok().map(|reply| reply.header.last_committed);
            committed(cx.w, dest, last);
            Ok(())
        }
    }
}

/// After a cached write to these parts of objects: sends full requests at once, and old dirty data when there is much
/// of it.
pub(crate) fn after_write(w: &mut World, ino: u64, parts: impl Iterator<Item = (Key, Range<u64>)>) {
    for (key, range) in parts {
        let good = |o: &&crate::cache::data::state::Object| o.unwritable.is_none();
        if file(w, ino).and_then(|f| f.object(key)).filter(good).is_some() {
            start_full(w, ino, key, &range);
        }
    }
    if w.data.unwritten > w.options.max_dirty / 2 {
        start_oldest(w);
    }
}

/// Starts to write files, oldest first, until half of the allowed dirty bytes are in flight or clean. False: nothing is
/// in flight, so no memory will become free soon.
pub(crate) fn start_oldest(w: &mut World) -> bool {
    let goal = w.options.max_dirty / 4;
    let dirty = |w: &World| -> u64 { w.data.lanes().map(|(_, lane)| lane.dirty).sum() };
    let mut at = (Instant::ZERO, 0);
    while dirty(w) > goal {
        // Files that could not be written have a due time in the future.
        let next = w.data.dirty_files.range((Bound::Excluded(at), Bound::Included((w.now, u64::MAX)))).next();
        let Some(&next) = next else { break };
        at = next;
        start_all(w, at.1);
    }
    !w.data.jobs.is_empty()
}

/// Sets when a dirty file is due: [`tick`] takes it once it has been dirty since `since` for long enough.
fn due(w: &mut World, ino: u64, since: Instant) {
    let Some(file) = file_mut(w, ino) else { return };
    if let Some(before) = file.dirty_since.replace(since) {
        w.data.dirty_files.remove(&(before, ino));
        w.data.dirty_files.insert((since, ino));
    } else {
        file.dirty_since = None;
    }
}

/// Starts to write everything that is dirty for a target, except what failed recently. False: there is nothing, and
/// nothing is in flight.
pub(crate) fn push_lane(w: &mut World, dest: Dest) -> bool {
    let mut files: Vec<u64> = Vec::new();
    if w.data.lane(dest).dirty > 0 {
        files.extend(w.data.dirty_files.range(..=(w.now, u64::MAX)).map(|(_, ino)| *ino));
    }
    let mut left = false;
    for ino in files {
        if w.data.lane(dest).dirty == 0 {
            break;
        }
        let keys = file(w, ino).map(|f| f.keys()).unwrap_or_default();
        for key in keys {
            let good = |o: &&crate::cache::data::state::Object| o.dest == dest && o.unwritable.is_none();
            if file(w, ino).and_then(|f| f.object(key)).filter(good).is_some() {
                start(w, ino, key, &ALL);
                left |= file(w, ino).and_then(|f| f.object(key)).is_some_and(|o| o.pages.counts().dirty > 0);
            }
        }
    }
    let lane = w.data.lane(dest);
    left || lane.in_flight > 0 || !lane.queue.is_empty()
}

/// See [`crate::coherence::data::tick`].
pub(crate) fn tick(w: &mut World) {
    let after = w.options.write_back_after;
    let old: Vec<(Instant, u64)> =
        w.data.dirty_files.iter().take_while(|(since, _)| *since + after <= w.now).copied().collect();
    for (since, ino) in old {
        start_all(w, ino);
        if w.data.dirty_files.contains(&(since, ino)) {
            // It could not be started as a whole: others first.
            let now = w.now;
            due(w, ino, now);
        }
    }
}

/// Writes back a range of an object and waits until nothing of it is dirty or in flight. An error: writing was tried
/// and failed, and the bytes are still dirty. Each `round` of an operation tries once.
pub(crate) fn settle(cx: &mut Cx<'_>, ino: u64, key: Key, range: &Range<u64>, round: Round) -> Run<()> {
    let at = round.step(key);
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    let Some(object) = now.object(key) else { return Ok(()) };
    let failures = u64::from(object.failures);
    match (cx.memo(at), object.unwritable) {
        (Some(before), Some(errno)) if failures != before => {
            let moves = round == Round::Operation && now.leave_requested;
            let (writing, dirty) = (object.pages.writing_in(range), object.pages.dirty_in(range));
            return match (writing, dirty) {
                // Failed bytes are not retried while the rest is in flight, nor while the data of a small file moves.
                (true, _) => Err(cx.wait(node_key(ino))),
                (false, true) if moves => Err(cx.wait(node_key(ino))),
                (false, true) => Err(errno.into()),
                (false, false) => Ok(()),
            };
        }
        (Some(_), _) => {}
        (None, _) => cx.set_memo(at, failures),
    }
    start(cx.w, ino, key, range);
    match file(cx.w, ino).and_then(|f| f.object(key)) {
        Some(object) if object.pages.unwritten_in(range) => Err(cx.wait(node_key(ino))),
        _ => Ok(()),
    }
}

/// The purpose of a [`settle`]. Each one tries once in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// An operation of a program. It waits for a small file that moves to object targets.
    Operation,
    /// A lock goes back: what is dirty at that time,
    Recall,
    /// and what the kernel has written while it dropped its pages.
    RecallEnd,
}

impl Round {
    fn step(self, key: Key) -> Step {
        match self {
            Round::Operation => Step::Settle(key),
            Round::Recall => Step::SettleRecall(key),
            Round::RecallEnd => Step::SettleRecallEnd(key),
        }
    }
}

/// The same for a file range.
pub(crate) fn settle_file(cx: &mut Cx<'_>, ino: u64, range: &Range<u64>) -> Run<()> {
    let keys = file(cx.w, ino).map(|f| f.keys()).unwrap_or_default();
    let parts: Vec<(Key, Range<u64>)> =
        keys.into_iter().filter_map(|key| Some((key, file(cx.w, ino)?.object_range(key, range)))).collect();
    let mut waits = false;
    for (key, part) in &parts {
        match settle(cx, ino, *key, part, Round::Operation) {
            Err(Stop::Wait) => waits = true,
            other => other?,
        }
    }
    if waits {
        return Err(Stop::Wait);
    }
    Ok(())
}

/// Waits until everything that was dirty when the operation started is written, however much is written meanwhile.
///
/// Two rounds suffice: the first takes everything that is not part of a request in flight; when those requests are
/// answered, the second takes what they blocked (or another operation has taken it since, with a number below the
/// second round's end).
fn written_once(
    cx: &mut Cx<'_>,
    start: impl Fn(&mut World),
    oldest: impl Fn(&World) -> Option<u64>,
    key: crate::base::WaitKey,
) -> Run<()> {
    for round in 0..2 {
        let at = Step::Round(round);
        let end = match cx.memo(at) {
            Some(end) => end,
            None => {
                start(cx.w);
                let end = cx.w.data.next_id();
                cx.set_memo(at, end);
                end
            }
        };
        if oldest(cx.w).is_some_and(|id| id < end) {
            return Err(cx.wait(key));
        }
    }
    Ok(())
}

/// Waits while the data of a small file moves to object targets, which includes the dirty bytes. Then the operation
/// starts again.
fn await_move(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(now) = file(cx.w, ino).filter(|file| file.leave_requested) else { return Ok(()) };
    let (failures, errno) = (u64::from(now.home.failures), now.unwritable());
    match (cx.memo(Step::Moved), errno) {
        // Neither the metadata target nor the object targets have space.
        (Some(before), Some(errno)) if failures > before + MOVES_MAX => return Err(errno.into()),
        (Some(_), _) => {}
        (None, _) => cx.set_memo(Step::Moved, failures),
    }
    forget_rounds(cx);
    Err(cx.wait(node_key(ino)))
}

/// Makes [`written_once`] start again.
fn forget_rounds(cx: &mut Cx<'_>) {
    for round in 0..2 {
        cx.forget(Step::Round(round));
    }
}

/// Retries once to write back what could not be written of a file. Returns the error if it fails again.
pub(crate) fn retry(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    if now.unwritable().is_none() {
        return Ok(());
    }
    if now.leave_requested {
        return Err(cx.wait(node_key(ino)));
    }
    settle_file(cx, ino, &ALL)
}

/// At the end of the mount: retries for a while what cannot be written, then gives it up.
pub(crate) fn end(cx: &mut Cx<'_>) -> Run<()> {
    let stuck = |w: &World| -> Vec<(u64, Errno)> {
        let dirty = w.data.dirty_files.iter().map(|(_, ino)| *ino);
        dirty.filter_map(|ino| Some((ino, file(w, ino)?.unwritable()?))).collect()
    };
    let left = stuck(cx.w);
    if left.is_empty() {
        return Ok(());
    }
    let until = match cx.memo(Step::End) {
        Some(until) => Instant(until),
        None => {
            let until = cx.now() + GIVE_UP_AFTER;
            cx.set_memo(Step::End, until.0);
            until
        }
    };
    if cx.now() < until {
        restart_sync(cx);
        let at = cx.now() + RETRY_MIN;
        cx.set_memo(Step::EndAgain, at.0);
        cx.w.set_timer(at);
        return Err(cx.wait(crate::base::WaitKey::Timer));
    }
    for (ino, errno) in left {
        let keys = file(cx.w, ino).map(|f| f.keys()).unwrap_or_default();
        for key in keys {
            give_up(cx.w, ino, key, &ALL, errno, "the mount ends");
        }
    }
    Ok(())
}

/// See [`crate::coherence::data::restart_sync`].
pub(crate) fn restart_sync(cx: &mut Cx<'_>) {
    forget_rounds(cx);
    let osts: Vec<u32> =
        cx.w.data
            .lanes()
            .filter_map(|(dest, _)| match dest {
                Dest::Ost(index) => Some(index),
                _ => None,
            })
            .collect();
    for index in osts {
        cx.forget(Step::Sync(index));
    }
}

/// See [`crate::coherence::data::fsync`].
pub(crate) fn fsync(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let oldest = |w: &World| {
        let file = file(w, ino)?;
        file.keys().into_iter().filter_map(|key| file.object(key)?.pages.oldest_in_flight()).min()
    };
    await_move(cx, ino)?;
    written_once(cx, |w| start_all(w, ino), oldest, node_key(ino))?;
    await_move(cx, ino)?;
    let Some(file) = file(cx.w, ino) else { return Ok(()) };
    if let Some(errno) = file.unwritable() {
        return Err(errno.into());
    }
    if file.resident() {
        return Ok(());
    }
    let mut asked: Vec<(Key, Dest, ObjectId, u32)> = Vec::new();
    for key in file.keys() {
        let Some(object) = file.object(key) else { continue };
        let committed = cx.w.data.lane_ref(object.dest).map_or(Transno(0), |lane| lane.committed);
        let open = object.transno > committed || !object.foreign.is_durable();
        if open || cx.began(Step::Sync(key)) {
            asked.push((key, object.dest, object.id(), object.foreign.seen()));
        }
    }
    let mut answers = Answers::default();
    for (key, dest, object, seen) in asked {
        let request = ObjSyncReq { objects: vec![object], job: crate::coherence::data::job(cx, ino) };
        let Some(seen) = made_durable(cx, key, dest, seen, &request, &mut answers) else { continue };
        edit(cx.w, ino, key, |object| object.foreign.made_durable(seen));
    }
    answers.all()
}

/// Asks a target to make objects durable. Once it has, returns the count `seen` of foreign changes from when it was
/// asked.
fn made_durable(
    cx: &mut Cx<'_>,
    number: u32,
    dest: Dest,
    seen: u32,
    request: &ObjSyncReq,
    answers: &mut Answers,
) -> Option<u32> {
    let (at, seen_at) = (Step::Sync(number), Step::SyncSeen(number));
    if !cx.began(at) {
        cx.set_memo(seen_at, seen.into());
    }
    let reply = answers.take(cx.start_rpc(at, dest, Opcode::ObjSync, |_, _| Request::new(request)))?;
    let last = reply.header.last_committed;
    cx.w.data.durable(dest, last);
    Some(cx.memo(seen_at).unwrap_or(0) as u32)
}

/// See [`crate::coherence::data::sync_all`].
pub(crate) fn sync_all(cx: &mut Cx<'_>) -> Run<()> {
    if cx.memo(Step::EndAgain).is_some_and(|at| cx.now() < Instant(at)) {
        return Err(cx.wait(crate::base::WaitKey::Timer));
    }
    let start = |w: &mut World| {
        let files: Vec<u64> = w.data.dirty_files.iter().map(|(_, ino)| *ino).collect();
        for ino in files {
            start_all(w, ino);
        }
    };
    written_once(cx, start, |w| w.data.jobs.first_key_value().map(|(id, _)| *id), BUDGET)?;
    // After an unmount nothing of this client depends on foreign changes, so it must not wait for targets from which it
    // has only read.
    let leaves = cx.w.unmounting;
    let open = |lane: &Lane| !lane.unstable.is_empty() || !(leaves || lane.foreign.is_durable());
    let lanes: Vec<(Dest, bool, u32)> =
        cx.w.data.lanes().map(|(dest, lane)| (dest, open(lane), lane.foreign.seen())).collect();
    let mut answers = Answers::default();
    for (dest, open, seen) in lanes {
        let Dest::Ost(index) = dest else { continue };
        if !open && !cx.began(Step::Sync(index)) {
            continue;
        }
        let request = ObjSyncReq::default();
        let Some(seen) = made_durable(cx, index, dest, seen, &request, &mut answers) else { continue };
        cx.w.data.lane(dest).foreign.made_durable(seen);
    }
    answers.all()
}

/// Nothing of the file has to be written any more.
pub(crate) fn discard(w: &mut World, ino: u64) {
    let Some(now) = file(w, ino) else { return };
    let keys: Vec<Key> = now.keys();
    let leaving = now.leaving;
    for key in keys {
        if key == HOME && leaving {
            continue;
        }
        edit(w, ino, key, |object| {
            if object.pages.counts().dirty > 0 {
                object.void_fetches(&ALL);
                object.pages.cut_dirty();
                object.size_exact = false;
            }
        });
    }
    if let Some(file) = file_mut(w, ino) {
        file.errors = 0;
        file.error_unreported = false;
    }
    w.wake(node_key(ino));
}
