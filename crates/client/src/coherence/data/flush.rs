//! Write-back: dirty bytes become requests, requests go down their target's lane, answers make bytes clean.
//!
//! Bytes are taken for writing when a full request's worth of them lies in a row, when they are old, when memory or grant
//! runs short, and when somebody waits for them (fsync, truncate, a lock callback). A few requests per target are in
//! flight at once. What is answered but not durable is kept by the session for replay; when that becomes much, the
//! target is asked to commit, and the lane waits for it.

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
/// And per metadata target, where each takes the slot that every change needs.
const IN_FLIGHT_MDT: u32 = 1;

/// The shortest pause before a write that failed is tried again by itself, and the longest.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// An fsync looks at most so often whether a small file can be written where it moves to.
const MOVES_MAX: u64 = 2;
/// Lost ranges that a line of the log lists one by one.
const PARTS_SHOWN: usize = 64;
/// At the end of a mount, what cannot be written is tried for so long.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// What a target has promised that is not filled by dirty bytes or requests in flight.
pub(crate) fn grant_left(w: &World, dest: Dest) -> u64 {
    let Some(target) = w.imports.get(dest) else { return 0 };
    let lane = w.data.lane_ref(dest);
    target.import.grant().saturating_sub(lane.map_or(0, |lane| lane.dirty + lane.grant_used))
}

/// How much this client would like to be promised, for what it has to write.
pub(crate) fn want_grant(w: &World, dest: Dest) -> u64 {
    w.data.lane_ref(dest).map_or(0, |lane| 2 * (lane.dirty + lane.grant_used))
}

/// Dirty bytes become a request: how much of the grant it uses, from now on until it is answered.
fn use_grant(w: &mut World, dest: Dest, length: u64) -> u64 {
    let Some(target) = w.imports.get(dest) else { return 0 };
    let grant = target.import.grant();
    let lane = w.data.lane(dest);
    let used = length.min(grant.saturating_sub(lane.grant_used));
    lane.grant_used += used;
    used
}

/// The same for bytes that were not buffered: what is dirty keeps its part.
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

/// After bytes were written: takes the requests that they have made full.
fn start_full(w: &mut World, ino: u64, key: Key, written: &Range<u64>) {
    let Some((dest, max)) = lane_of(w, ino, key) else { return };
    let mut at = written.start / max * max;
    while at < written.end {
        take(w, ino, key, &(at..written.end), max, true);
        at += max;
    }
    pump(w, dest);
}

/// Where the dirty bytes of an object go, and how many in one request; nothing if there are none, or they may not go now.
fn lane_of(w: &World, ino: u64, key: Key) -> Option<(Dest, u64)> {
    let file = file(w, ino).filter(|file| !(file.leaving && key == HOME))?;
    let object = file.object(key).filter(|object| object.pages.counts().dirty > 0)?;
    let max = w.imports.get(object.dest).map_or(proto::connect::BRW_SIZE_MAX, |target| target.brw_size).max(4096);
    Some((object.dest, max.into()))
}

/// Puts the next request's worth of dirty bytes of a range into the queue. Gives where it ends.
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

/// Sends what the lane of a target has room for.
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
            object.covering(LockMode::Pw, &range).map(|lock| (lock.handle, object.resource, object.size_floor()))
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
            // Not as it was when the bytes were taken: it may have been cut since.
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

/// A job is over.
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
                    object.news(lvb);
                }
                object.pages.written(id, mark)
            });
            if let Some(Some(range)) = range {
                into_clock(w, ino, key, range, mark);
            }
            w.data.lane(dest).retry_after = Duration::ZERO;
        }
        Err(errno) if may_come_later(w, ino, key, &range, *errno) => not_yet(w, id, ino, key, dest, *errno),
        Err(errno) => {
            let lost = edit(w, ino, key, |object| {
                object.size_exact = false;
                object.pages.lost(id)
            });
            // What went with its lock was told then.
            let lost = lost.unwrap_or_default();
            gone(w, ino, key, &lost, *errno, "its lock is gone");
        }
    }
    let lane = w.data.lane(dest);
    lane.in_flight -= 1;
    pump(w, dest);
    evict(w);
    w.wake(node_key(ino));
    w.wake(BUDGET);
}

/// Whether bytes whose write failed can be written later: the target knows the object, and the lock is still ours.
fn may_come_later(w: &World, ino: u64, key: Key, range: &Range<u64>, errno: Errno) -> bool {
    let object = file(w, ino).and_then(|file| file.object(key));
    errno != Errno::ESTALE && object.is_some_and(|object| object.covering(LockMode::Pw, range).is_some())
}

/// A write failed. Its bytes stay dirty and are tried again after a pause that grows; at once when somebody waits for them.
/// The data of a small file for which its metadata target has no room goes to object targets.
fn not_yet(w: &mut World, id: u64, ino: u64, key: Key, dest: Dest, errno: Errno) {
    stdx::mark!("write_back_fails");
    w.data.troubles.failures += 1;
    let first = edit(w, ino, key, |object| {
        object.pages.again(id);
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

/// Bytes can never be written. If their target does not have the object (`ESTALE`), and no program has the file open, it was removed, and
/// whoever removed it was not told so (a server that starts again answers a repeated unlink with what it still knows): nobody misses them.
pub(crate) fn gone(w: &mut World, ino: u64, key: Key, parts: &[Range<u64>], errno: Errno, why: &str) {
    if errno != Errno::ESTALE || w.nodes.get(ino).is_none_or(|node| node.is_held(Hold::Handle)) {
        return gave_up(w, ino, key, parts, errno, why);
    }
    let bytes: u64 = parts.iter().map(|part| part.end - part.start).sum();
    if bytes > 0 {
        stdx::mark!("write_back_of_removed");
        let path = w.nodes.path(ino);
        w.log(format!("'{path}' was removed before {bytes} bytes of it were written back"));
    }
}

/// Data of a file cannot be written back at present. Programs are told by their calls for as long as that lasts.
pub(crate) fn cannot_write(w: &mut World, ino: u64, dest: Dest, errno: Errno) {
    let (path, target) = (w.nodes.path(ino), w.target_name(dest));
    w.log_error(format!("'{path}' cannot be written back to {target}: {errno}; it is kept and tried again"));
}

/// Dirty bytes of an object are lost: programs that have the file open are told, or who opens it next, and the log. Nobody misses those of a file
/// that is removed.
pub(crate) fn gave_up(w: &mut World, ino: u64, key: Key, parts: &[Range<u64>], errno: Errno, why: &str) {
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
    let shown = crate::coherence::lost::shown(errno);
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

/// Gives up what is dirty in a range of an object.
pub(crate) fn give_up(w: &mut World, ino: u64, key: Key, range: &Range<u64>, errno: Errno, why: &str) {
    let parts = edit(w, ino, key, |object| {
        object.size_exact = false;
        object.pages.give_up(range)
    });
    gave_up(w, ino, key, &parts.unwrap_or_default(), errno, why);
}

/// A request for the target to commit is over.
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

/// After a cached write to these parts of objects: full requests go at once, and everything old when dirty data becomes much.
pub(crate) fn after_write(w: &mut World, ino: u64, parts: impl Iterator<Item = (Key, Range<u64>)>) {
    for (key, range) in parts {
        let good = |o: &&crate::cache::data::state::Object| o.unwritable.is_none();
        if file(w, ino).and_then(|f| f.object(key)).filter(good).is_some() {
            start_full(w, ino, key, &range);
        }
    }
    if w.data.unwritten > w.options.max_dirty / 2 {
        make_room(w);
    }
}

/// Starts the writing of files, oldest first, until half of what may be dirty is on its way or clean. False: nothing is on its
/// way, so memory does not become free by itself soon.
pub(crate) fn make_room(w: &mut World) -> bool {
    let goal = w.options.max_dirty / 4;
    let dirty = |w: &World| -> u64 { w.data.lanes().map(|(_, lane)| lane.dirty).sum() };
    let mut at = (Instant::ZERO, 0);
    while dirty(w) > goal {
        // What could not be written has its time in the future.
        let next = w.data.dirty_files.range((Bound::Excluded(at), Bound::Included((w.now, u64::MAX)))).next();
        let Some(&next) = next else { break };
        at = next;
        start_all(w, at.1);
    }
    !w.data.jobs.is_empty()
}

/// When the turn of a dirty file comes: [`tick`] looks at it when it has been dirty since `since` for long enough.
fn due(w: &mut World, ino: u64, since: Instant) {
    let Some(file) = file_mut(w, ino) else { return };
    if let Some(before) = file.dirty_since.replace(since) {
        w.data.dirty_files.remove(&(before, ino));
        w.data.dirty_files.insert((since, ino));
    } else {
        file.dirty_since = None;
    }
}

/// Starts the writing of everything that is dirty for a target, but for what could not be written a moment ago. False: there
/// is nothing, and nothing in flight.
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
            // It could not be started wholly: others first.
            let now = w.now;
            due(w, ino, now);
        }
    }
}

/// Writes a range of an object back and waits until nothing of it is dirty or in flight. An error: it was tried and could not be
/// written, and is dirty still. Each `round` of an operation tries once.
pub(crate) fn settle(cx: &mut Cx<'_>, ino: u64, key: Key, range: &Range<u64>, round: Round) -> Run<()> {
    let at = round.step(key);
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    let Some(object) = now.object(key) else { return Ok(()) };
    let failures = u64::from(object.failures);
    match (cx.memo(at), object.unwritable) {
        (Some(before), Some(errno)) if failures != before => {
            let moves = round == Round::Operation && now.leave_asked;
            let (writing, dirty) = (object.pages.writing_in(range), object.pages.dirty_in(range));
            return match (writing, dirty) {
                // What failed is not tried again while the rest is on its way, nor while the data of a small file moves.
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

/// What [`settle`] is for. Each kind tries once in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// A program's operation. It waits for a small file that moves to object targets.
    Operation,
    /// A lock goes back: what is dirty now.
    Recall,
    /// And what the kernel has brought while it dropped its pages.
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

/// Waits until everything that was dirty when the operation began is written, however much is written meanwhile.
///
/// Two rounds do: in the first, everything is taken that is not part of a request in flight; when those requests are
/// answered, the second takes what they were in the way of (or somebody has taken it since, with a number below the
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

/// Waits while the data of a small file moves to object targets: what is dirty goes with it. Then it is looked at anew.
fn moved(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(now) = file(cx.w, ino).filter(|file| file.leave_asked) else { return Ok(()) };
    let (failures, errno) = (u64::from(now.home.failures), now.unwritable());
    match (cx.memo(Step::Moved), errno) {
        // Neither here nor there is room.
        (Some(before), Some(errno)) if failures > before + MOVES_MAX => return Err(errno.into()),
        (Some(_), _) => {}
        (None, _) => cx.set_memo(Step::Moved, failures),
    }
    forget_rounds(cx);
    Err(cx.wait(node_key(ino)))
}

/// [`written_once`] begins anew.
fn forget_rounds(cx: &mut Cx<'_>) {
    for round in 0..2 {
        cx.forget(Step::Round(round));
    }
}

/// Tries once more to write back what could not be written of a file. The error, if it still cannot.
pub(crate) fn retry(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Ok(()) };
    if now.unwritable().is_none() {
        return Ok(());
    }
    if now.leave_asked {
        return Err(cx.wait(node_key(ino)));
    }
    settle_file(cx, ino, &ALL)
}

/// At the end of the mount: what cannot be written is tried again for a while, then it is given up.
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
        sync_anew(cx);
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

/// See [`crate::coherence::data::sync_anew`].
pub(crate) fn sync_anew(cx: &mut Cx<'_>) {
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
    moved(cx, ino)?;
    written_once(cx, |w| start_all(w, ino), oldest, node_key(ino))?;
    moved(cx, ino)?;
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
            asked.push((key, object.dest, object.id(), object.foreign.heard()));
        }
    }
    let mut answers = Answers::default();
    for (key, dest, object, heard) in asked {
        let request = ObjSyncReq { objects: vec![object], job: crate::coherence::data::job(cx, ino) };
        let Some(heard) = made_durable(cx, key, dest, heard, &request, &mut answers) else { continue };
        edit(cx.w, ino, key, |object| object.foreign.made_durable(heard));
    }
    answers.all()
}

/// Asks a target to make objects durable. Once it has, gives what had been heard from it, `heard`, when it was asked.
fn made_durable(
    cx: &mut Cx<'_>,
    number: u32,
    dest: Dest,
    heard: u32,
    request: &ObjSyncReq,
    answers: &mut Answers,
) -> Option<u32> {
    let (at, heard_at) = (Step::Sync(number), Step::SyncHeard(number));
    if !cx.began(at) {
        cx.set_memo(heard_at, heard.into());
    }
    let reply = answers.take(cx.start_rpc(at, dest, Opcode::ObjSync, |_, _| Request::new(request)))?;
    let last = reply.header.last_committed;
    cx.w.data.durable(dest, last);
    Some(cx.memo(heard_at).unwrap_or(0) as u32)
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
    // Who unmounts rests on nothing any more, and must not wait for targets from which it has only read.
    let leaves = cx.w.unmounting;
    let open = |lane: &Lane| !lane.unstable.is_empty() || !(leaves || lane.foreign.is_durable());
    let lanes: Vec<(Dest, bool, u32)> =
        cx.w.data.lanes().map(|(dest, lane)| (dest, open(lane), lane.foreign.heard())).collect();
    let mut answers = Answers::default();
    for (dest, open, heard) in lanes {
        let Dest::Ost(index) = dest else { continue };
        if !open && !cx.began(Step::Sync(index)) {
            continue;
        }
        let request = ObjSyncReq::default();
        let Some(heard) = made_durable(cx, index, dest, heard, &request, &mut answers) else { continue };
        cx.w.data.lane(dest).foreign.made_durable(heard);
    }
    answers.all()
}

/// Nothing of the file needs to be written any more.
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
        file.error_untold = false;
    }
    w.wake(node_key(ino));
}
