//! Record locks: `fcntl` and `flock`. The metadata target decides; only what replay and close need is cached.

use proto::msg::{EnqueueReq, Flock, LockMode, Policy, Resource};
use proto::{Errno, Fid, Opcode};

use core::time::Duration;
use stdx::Instant;

use crate::api::{Answer, FileHandle, RecordLock, RecordLockKind};
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::op::{Body, Task};
use crate::coherence::request::Request;
use crate::coherence::world::World;

/// Number of retries, each after twice the time of the one before, until a lock counts as taken: 31 ms.
const TRIES: u64 = 5;
/// Pause before the first retry.
const FIRST_TRY: Duration = Duration::from_millis(1);

fn mode(kind: RecordLockKind) -> LockMode {
    match kind {
        RecordLockKind::Shared => LockMode::Pr,
        RecordLockKind::Exclusive => LockMode::Pw,
        RecordLockKind::Unlock => LockMode::Nl,
    }
}

fn request(fid: Fid, owner: u64, lock: &RecordLock, is_flock: bool) -> EnqueueReq {
    let flock = Flock { start: lock.start, end: lock.end, owner, pid: lock.pid, is_flock };
    EnqueueReq {
        resource: Resource::flock(fid),
        mode: mode(lock.kind) as i32,
        cookie: 0,
        policy: Some(Policy::Flock(flock)),
        no_wait: false,
        glimpse: false,
        granted_handle: 0,
        test: false,
        keep: false,
        version: 0,
    }
}

/// `Getlk`.
pub(crate) fn test(cx: &mut Cx<'_>, fh: FileHandle, owner: u64, lock: &RecordLock) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (fid, dest) = (file.fid, file.dest);
    if lock.start > lock.end {
        return Err(Errno::EINVAL.into());
    }
    let reply = cx.start_rpc(Step::Main, dest, Opcode::LdlmEnqueue, |w, _| {
        let cookie = w.locks.get_mut(dest).map_or(0, |locks| locks.new_cookie());
        Request::new(&EnqueueReq { cookie, test: true, ..request(fid, owner, lock, false) })
    });
    let rep = match reply {
        None => return Err(Stop::Wait),
        Some(Err(errno)) => return Err(errno.into()),
        Some(Ok(reply)) => match &reply.body {
            Body::Enqueue(rep) => rep.clone(),
            _ => return Err(Errno::EPROTO.into()),
        },
    };
    Ok(Answer::Lock(match rep.conflict {
        None => RecordLock { kind: RecordLockKind::Unlock, ..*lock },
        Some(other) => RecordLock {
            start: other.start,
            end: other.end,
            kind: if rep.conflict_mode() == LockMode::Pr { RecordLockKind::Shared } else { RecordLockKind::Exclusive },
            pid: other.pid,
        },
    }))
}

/// `Setlk`.
pub(crate) fn set(
    cx: &mut Cx<'_>,
    fh: FileHandle,
    owner: u64,
    lock: &RecordLock,
    wait: bool,
    is_flock: bool,
) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (fid, dest, lost) = (file.fid, file.dest, file.is_lost());
    if lost {
        return Err(Errno::EIO.into());
    }
    if lock.start > lock.end {
        return Err(Errno::EINVAL.into());
    }
    if !is_flock {
        match lock.kind {
            RecordLockKind::Shared if !file.readable() => return Err(Errno::EBADF.into()),
            RecordLockKind::Exclusive if !file.writable() => return Err(Errno::EBADF.into()),
            _ => {}
        }
    }
    if !is_flock
        && lock.kind != RecordLockKind::Unlock
        && let Some(file) = cx.w.files.get_mut(fh)
        && !file.lock_owners.contains(&owner)
    {
        file.lock_owners.push(owner);
    }
    let wanted = EnqueueReq { no_wait: !wait, ..request(fid, owner, lock, is_flock) };
    if weakens(cx, dest, &wanted) && ask(cx, Step::Keep, dest, EnqueueReq { keep: true, ..wanted.clone() })?? {
        // The owner closed the file meanwhile.
        return Ok(Answer::Done);
    }
    let result = ask(cx, Step::Main, dest, wanted)?;
    if is_flock && !wait && result == Err(Errno::EAGAIN) && !cx.interrupted() {
        return try_again(cx);
    }
    result.map(|_| Answer::Done).map_err(Stop::Errno)
}

/// Whether the request may weaken a write lock to a read lock: then the rest of it is requested first.
fn weakens(cx: &Cx<'_>, dest: Dest, wanted: &EnqueueReq) -> bool {
    let Some(Policy::Flock(flock)) = wanted.policy else { return false };
    if flock.is_flock || wanted.mode != LockMode::Pr as i32 || cx.began(Step::Main) {
        return false;
    }
    let now = || cx.w.locks.get(dest).is_some_and(|locks| locks.record_weakens(&wanted.resource, &flock));
    cx.began(Step::Keep) || now()
}

/// Requests a record lock and records the answer. Returns whether the lock goes back at once because its owner has
/// closed the file.
fn ask(cx: &mut Cx<'_>, at: Step, dest: Dest, mut request: EnqueueReq) -> Run<Result<bool, Errno>> {
    let reply = cx.start_rpc(at, dest, Opcode::LdlmEnqueue, |w, op| {
        if let Some(locks) = w.locks.get_mut(dest) {
            request.cookie = locks.new_cookie();
            locks.record_sent(&request);
        }
        op.waiting_record = Some((dest, request.cookie));
        op.changes += 1;
        Request::new(&request)
    });
    let result = match reply {
        None => return Err(Stop::Wait),
        Some(Ok(_)) => Ok(()),
        Some(Err(errno)) => Err(errno),
    };
    let mut given_back = false;
    if let Some((_, cookie)) = cx.op.waiting_record.take() {
        cx.w.abandoned_records.retain(|abandoned| *abandoned != (dest, cookie));
        given_back = settled(cx.w, dest, cookie, result.is_ok());
    }
    Ok(result.map(|()| given_back))
}

/// Another owner has the lock, or had it: the last close releases it, but the kernel reports that to its client only
/// after `close` has returned. So a program that learned of the close and then requests the lock is not refused at
/// once.
fn try_again(cx: &mut Cx<'_>) -> Run<Answer> {
    let tries = cx.memo(Step::Tries).unwrap_or(0);
    if tries >= TRIES {
        return Err(Errno::EAGAIN.into());
    }
    let at = match cx.memo(Step::TryAt) {
        Some(at) => Instant(at),
        None => {
            let at = cx.now() + FIRST_TRY * (1 << tries);
            cx.set_memo(Step::TryAt, at.0);
            at
        }
    };
    if cx.now() < at {
        cx.w.set_timer(at);
        return Err(cx.wait(WaitKey::Timer));
    }
    stdx::mark!("flock_tried_again");
    cx.forget(Step::TryAt);
    cx.forget(Step::Main);
    cx.set_memo(Step::Tries, tries + 1);
    cx.w.schedule.make_ready(cx.op.id);
    Err(Stop::Wait)
}

/// Records the answer to a record lock request. Returns whether the lock is given back at once.
fn settled(w: &mut World, dest: Dest, cookie: u64, granted: bool) -> bool {
    let Some(locks) = w.locks.get_mut(dest) else { return false };
    if !granted {
        locks.record_refused(cookie);
        return false;
    }
    let Some(unlock) = locks.record_granted(cookie) else { return false };
    w.spawn(Task::Unlock { dest, request: Box::new(unlock) });
    true
}

/// Releases what `owner` holds on a file.
pub(crate) fn drop_owner(cx: &mut Cx<'_>, fid: Fid, owner: u64, is_flock: bool) -> Run<()> {
    let dest = cx.w.mdt_of(fid);
    if !cx.began(Step::Unlock) {
        let Some(locks) = cx.w.locks.get_mut(dest) else { return Ok(()) };
        if !locks.any_records() {
            return Ok(());
        }
        let Some(unlock) = locks.drop_owner(&Resource::flock(fid), owner, is_flock).pop() else {
            return Ok(());
        };
        cx.op.changes += 1;
        return send_unlock(cx, dest, &unlock);
    }
    unlocked(cx)
}

/// Background: sends an unlock that counts as sent already.
pub(crate) fn unlock(cx: &mut Cx<'_>, dest: Dest, request: &EnqueueReq) -> Run<()> {
    if !cx.began(Step::Unlock) {
        return send_unlock(cx, dest, request);
    }
    unlocked(cx)
}

fn send_unlock(cx: &mut Cx<'_>, dest: Dest, request: &EnqueueReq) -> Run<()> {
    let cookie = request.cookie;
    let _ = cx.start_rpc(Step::Unlock, dest, Opcode::LdlmEnqueue, |_, _| {
        Request::new(request).then(move |w, answer| {
            settled(w, dest, cookie, answer.is_ok());
        })
    });
    unlocked(cx)
}

/// The result of an unlock is ignored.
fn unlocked(cx: &Cx<'_>) -> Run<()> {
    cx.answer(Step::Unlock).map(|_| ()).ok_or(Stop::Wait)
}
