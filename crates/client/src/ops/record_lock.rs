//! Record locks: `fcntl` and `flock`. The metadata target decides; nothing is cached but what replay and close need.

use bytes::Bytes;
use proto::msg::{EnqueueReq, Flock, LockMode, Policy, Resource};
use proto::{Errno, Fid, Opcode};

use core::time::Duration;
use stdx::Instant;

use super::step;
use crate::api::{Answer, FileHandle, RecordLock, RecordLockKind};
use crate::cx::{Cx, Run, Stop};
use crate::op::{Body, Task, WaitKey};

/// After so many further tries, each after twice the time of the one before, a lock counts as taken: 31 ms.
const TRIES: u64 = 5;
/// The first of these times.
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
    }
}

/// `Getlk`.
pub(crate) fn test(cx: &mut Cx<'_>, fh: FileHandle, owner: u64, lock: &RecordLock) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (fid, dest) = (file.fid, file.dest);
    if lock.start > lock.end {
        return Err(Errno::EINVAL.into());
    }
    let reply = cx.start_rpc(step::MAIN, dest, Opcode::LdlmEnqueue, |w, _| {
        let cookie = w.imports.get_mut(dest).map_or(0, |target| target.locks.new_cookie());
        (EnqueueReq { cookie, test: true, ..request(fid, owner, lock, false) }, Bytes::new())
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
    let (fid, dest, dead) = (file.fid, file.dest, file.dead);
    if dead {
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
    let first = !cx.replied(step::MAIN);
    let reply = cx.start_rpc(step::MAIN, dest, Opcode::LdlmEnqueue, |w, op| {
        let mut request = EnqueueReq { no_wait: !wait, ..request(fid, owner, lock, is_flock) };
        if let Some(target) = w.imports.get_mut(dest) {
            request.cookie = target.locks.new_cookie();
            target.locks.record_sent(&request);
        }
        op.waiting_record = Some((dest, request.cookie));
        (request, Bytes::new())
    });
    let result = match reply {
        None => return Err(Stop::Wait),
        Some(Ok(_)) => Ok(()),
        Some(Err(errno)) => Err(errno),
    };
    if let (true, Some((_, cookie))) = (first, cx.op.waiting_record) {
        settled(cx, dest, cookie, result.is_ok());
    }
    if is_flock && !wait && result == Err(Errno::EAGAIN) && !cx.interrupted() {
        return try_again(cx);
    }
    result.map(|()| Answer::Done).map_err(Stop::Errno)
}

/// Somebody has the lock, or had it: the last close gives it back, but the kernel tells his client of that after `close`
/// has returned. So a program that was told of the close and then tries for the lock is not refused at once.
fn try_again(cx: &mut Cx<'_>) -> Run<Answer> {
    let tries = cx.memo(step::TRIES).unwrap_or(0);
    if tries >= TRIES {
        return Err(Errno::EAGAIN.into());
    }
    let at = match cx.memo(step::TRY_AT) {
        Some(at) => Instant(at),
        None => {
            let at = cx.now() + FIRST_TRY * (1 << tries);
            cx.set_memo(step::TRY_AT, at.0);
            at
        }
    };
    if cx.now() < at {
        cx.w.set_timer(at);
        return Err(cx.wait(WaitKey::Timer));
    }
    stdx::mark!("flock_tried_again");
    cx.forget(step::TRY_AT);
    cx.forget(step::MAIN);
    cx.set_memo(step::TRIES, tries + 1);
    cx.w.ready.push_back(cx.op.id);
    Err(Stop::Wait)
}

/// The answer to a request about record locks is here.
fn settled(cx: &mut Cx<'_>, dest: crate::imports::Dest, cookie: u64, granted: bool) {
    let Some(target) = cx.w.imports.get_mut(dest) else { return };
    if granted {
        if let Some(unlock) = target.locks.record_granted(cookie) {
            cx.spawn(Task::Unlock { dest, request: Box::new(unlock) });
        }
    } else {
        target.locks.record_refused(cookie);
    }
}

/// Gives back what `owner` holds on a file.
pub(crate) fn drop_owner(cx: &mut Cx<'_>, fid: Fid, owner: u64, is_flock: bool) -> Run<()> {
    let dest = cx.w.mdt_of(fid);
    if !cx.began(step::UNLOCK) {
        let Some(target) = cx.w.imports.get_mut(dest) else { return Ok(()) };
        if !target.locks.any_records() {
            return Ok(());
        }
        let Some(unlock) = target.locks.drop_owner(&Resource::flock(fid), owner, is_flock).pop() else {
            return Ok(());
        };
        cx.set_memo(step::UNLOCK_COOKIE, unlock.cookie);
        let _ = cx.start_rpc(step::UNLOCK, dest, Opcode::LdlmEnqueue, |_, _| (unlock, Bytes::new()));
        return Err(Stop::Wait);
    }
    unlocked(cx, dest)
}

/// Background: an unlock that counts as sent already.
pub(crate) fn unlock(cx: &mut Cx<'_>, dest: crate::imports::Dest, request: &EnqueueReq) -> Run<()> {
    if !cx.began(step::UNLOCK) {
        cx.set_memo(step::UNLOCK_COOKIE, request.cookie);
        let _ = cx.start_rpc(step::UNLOCK, dest, Opcode::LdlmEnqueue, |_, _| (request.clone(), Bytes::new()));
        return Err(Stop::Wait);
    }
    unlocked(cx, dest)
}

fn unlocked(cx: &mut Cx<'_>, dest: crate::imports::Dest) -> Run<()> {
    let first = !cx.replied(step::UNLOCK);
    let granted = match cx.answer(step::UNLOCK) {
        None => return Err(Stop::Wait),
        Some(result) => result.is_ok(),
    };
    if let (true, Some(cookie)) = (first, cx.memo(step::UNLOCK_COOKIE)) {
        settled(cx, dest, cookie, granted);
    }
    Ok(())
}
