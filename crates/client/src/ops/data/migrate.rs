//! Migration: the data of a file moves to other objects (`lfs migrate`) while programs use it.
//!
//! ```text
//! PR locks on all objects, nothing dirty     the targets have the current data, as long as these locks are not called back
//! Setlayout Copy                             the metadata target chooses objects; it removes them if we do not finish
//! PW locks on the new objects                they end with the copy, if that is given up without us
//! data copied, durable                       the locks on the old objects are not pinned: others may write
//! EX lock on LAYOUT, the turn, PW on all     nobody else uses the file, and nobody can start to
//! as before?                                 the first locks are still held, nothing was written here: the copy is current
//! EX lock on UPDATE                          the swap waits for no other client; until here, we can let others have the file
//! the layout is confirmed                    from here on, a client that gets a lock on an old object prevents the swap
//! an answer of every object target           none has evicted this client, so nobody had such a lock before
//! Setlayout Swap                             it becomes the file in one group, the old objects are removed
//! ```
//! If the file was written meanwhile, the copy is given up and everything starts again, a limited number of times. A
//! crash of this client, or its eviction, gives the copy up as well: until the swap the file is unchanged.

use core::ops::Range;
use core::time::Duration;
use proto::connect::{BRW_SIZE_MAX, features};
use proto::msg::{
    Extent, Layout, LockMode, Lvb, ObjectId, ObjectRep, Policy, ReadReq, Reint, Resource, SetlayoutKind, SetlayoutOp,
    StatfsReq, WriteReq, bits,
};
use proto::{Bytes, Errno, Opcode};
use std::collections::BTreeSet;
use std::sync::Arc;
use stdx::Instant;

use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::data::state::{ALL, Key};
use crate::cache::data::striping::{Piece, Striping};
use crate::coherence::cx::{Answers, Cx, Run, Stop};
use crate::coherence::data::leaving;
use crate::coherence::data::state::{ensure, file, file_mut, node_key};
use crate::coherence::data::{access, flush, layout};
use crate::coherence::metadata_write_back;
use crate::coherence::op::{Memo, OpState};
use crate::coherence::request::Request;
use crate::coherence::world::World;

/// How often a file that is being written is copied.
const TRIES_MAX: u64 = 5;
/// Bytes copied at a time.
const WINDOW: u64 = 4 << 20;
/// How often to check whether other clients want the file.
const LOOK: Duration = Duration::from_secs(1);

/// Migrates a file. Errors: `EBUSY` if the file is written all the time, or this client already migrates it; `EINTR` if
/// the program was interrupted; errors of the targets.
pub(crate) fn migrate(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    let op = cx.op.id;
    ensure(cx.w, fid);
    if *cx.w.data.migrating.entry(ino).or_insert(op) != op {
        return Err(Errno::EBUSY.into());
    }
    cx.w.data.mark_op(op, ino);
    loop {
        let failed = match cx.memo(Step::MigrateFailed) {
            Some(errno) => Errno::from_raw(errno as i32),
            None => match attempt(cx, ino, wish) {
                Ok(()) => return Ok(()),
                Err(Stop::Wait) => return Err(Stop::Wait),
                Err(Stop::Errno(errno)) => errno,
            },
        };
        cx.set_memo(Step::MigrateFailed, failed.raw() as u64);
        release(cx, ino);
        if cx.memo(Step::MigrateDrop).is_none() && in_flight(cx) {
            return Err(Stop::Wait);
        }
        give_up(cx, ino)?;
        let tries = cx.memo(Step::MigrateTries).unwrap_or(0) + 1;
        // Written meanwhile, migrated by another client, or an answer that a restart left incomplete.
        if failed != Errno::ESTALE || interrupted(cx) {
            return Err(failed.into());
        }
        if tries == TRIES_MAX {
            return Err(Errno::EBUSY.into());
        }
        stdx::mark!("migrated_again");
        forget_try(cx);
        cx.set_memo(Step::MigrateTries, tries);
    }
}

fn interrupted(cx: &Cx<'_>) -> bool {
    cx.interrupted() || cx.op.abandoned || cx.w.unmounting
}

/// The steps of these kinds that were started.
fn started(cx: &Cx<'_>, kinds: fn(&Step) -> bool) -> Vec<Step> {
    cx.op.steps().iter().map(|(step, _)| *step).filter(kinds).collect()
}

fn is_read(step: &Step) -> bool {
    matches!(step, Step::MigrateRead(_))
}

fn is_write(step: &Step) -> bool {
    matches!(step, Step::MigrateWrite(_))
}

/// Forgets what [`prove`] has found. Its answers are not awaited, because an object target may be away.
fn forget_proof(cx: &mut Cx<'_>) {
    let of_proof = |step: &Step| matches!(step, Step::MigrateConfirm | Step::MigrateConfirmed | Step::MigrateAlive(_));
    started(cx, of_proof).into_iter().for_each(|step| cx.forget(step));
}

/// Forgets everything of this try.
fn forget_try(cx: &mut Cx<'_>) {
    started(cx, Step::is_of_migration).into_iter().for_each(|step| cx.forget(step));
}

/// Whether answers are outstanding. A late one must not be taken for that of a later try.
fn in_flight(cx: &Cx<'_>) -> bool {
    cx.op.steps().iter().any(|(step, memo)| step.is_of_migration() && matches!(memo, Memo::Sent(_)))
}

/// Releases all locks, and the turn.
fn release(cx: &mut Cx<'_>, ino: u64) {
    layout::release(cx);
    cx.unlock(Step::MigrateLock);
    cx.unlock(Step::MigrateUpdate);
    cx.forget(Step::MigrateWanted);
    forget_proof(cx);
    started(cx, |step| matches!(step, Step::MigrateNewPin(_))).into_iter().for_each(|pin| cx.unlock(pin));
    access::end_turn(cx, ino);
}

/// Gives the copy up: its objects are removed.
fn give_up(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    // The copy may not have been created.
    if !cx.began(Step::MigrateCopy) {
        return Ok(());
    }
    match set_layout(cx, ino, Step::MigrateDrop, SetlayoutKind::Drop, Layout::default(), None) {
        Err(Stop::Wait) => Err(Stop::Wait),
        // The metadata target itself gives up copies of files and clients that are gone.
        _ => Ok(()),
    }
}

/// One try. `ESTALE`: the file was changed.
fn attempt(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<()> {
    if cx.began(Step::MigrateSwap) {
        return swap(cx, ino);
    }
    if interrupted(cx) {
        return Err(Errno::EINTR.into());
    }
    if cx.memo(Step::MigrateSeen).is_none() {
        record(cx, ino)?;
    }
    let seen = cx.memo(Step::MigrateSeen).unwrap_or(0) as u32;
    let wish = Layout { generation: seen, ..wish.clone() };
    let rep = set_layout(cx, ino, Step::MigrateCopy, SetlayoutKind::Copy, wish, None)?;
    let Some(copy) = rep.copy.clone() else {
        // The layout of a small file is all that changes.
        let resident = file(cx.w, ino).is_some_and(|file| file.resident());
        return if resident { Ok(()) } else { Err(Errno::ESTALE.into()) };
    };
    if layout::generation(cx.w, ino) != u64::from(seen) {
        return Err(Errno::ESTALE.into());
    }
    new_locks(cx, ino, &copy)?;
    copy_all(cx, ino, &copy)?;
    alone(cx, ino, &copy)?;
    swap(cx, ino)
}

/// Records the state of the file: its layout, its size, the locks under which it stays unchanged, and what this client
/// wrote.
fn record(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    access::load(cx, ino)?;
    metadata_write_back::settled(cx, ino)?;
    let fid = crate::coherence::fids::fid_of(ino)?;
    let mdt = cx.w.mdt_of(fid);
    if !cx.w.imports.get(mdt).is_some_and(|mdt| mdt.has(features::LAYOUT_SWAP)) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if file(cx.w, ino).is_some_and(|file| file.leave_requested) {
        return Err(cx.wait(node_key(ino)));
    }
    if access::lock(cx, ino, LockMode::Pr, &ALL)? {
        cx.unlock(Step::HomeLock);
    } else {
        flush::settle_file(cx, ino, &ALL)?;
        record_objects(cx, ino)?;
        layout::release(cx);
    }
    let generation = layout::generation(cx.w, ino);
    cx.set_memo(Step::MigrateSeen, generation);
    Ok(())
}

fn record_objects(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let size = now.known_size().ok_or(Errno::ESTALE)?;
    let objects: Vec<u64> = now.objects.iter().map(|object| object.transno.0).collect();
    for (transno, key) in objects.into_iter().zip(0..) {
        let Some(Memo::Lock { cookie, .. }) = cx.op.memo(Step::Lock(key)) else {
            return Err(Errno::ESTALE.into());
        };
        let cookie = *cookie;
        cx.set_memo(Step::MigrateCookie(key), cookie);
        cx.set_memo(Step::MigrateTransno(key), transno);
    }
    cx.set_memo(Step::MigrateSize, size);
    Ok(())
}

/// Whether the recorded state is still current.
fn is_unchanged(cx: &Cx<'_>, ino: u64) -> bool {
    let Some(now) = file(cx.w, ino) else { return false };
    let same = (0..).zip(&now.objects).all(|(key, object)| {
        let cookie = cx.memo(Step::MigrateCookie(key)).unwrap_or(0);
        let locked = cx.w.locks.get(object.dest).is_some_and(|locks| locks.is_usable(cookie));
        locked && cx.memo(Step::MigrateTransno(key)) == Some(object.transno.0)
    });
    same && Some(layout::generation(cx.w, ino)) == cx.memo(Step::MigrateSeen)
        && now.known_size() == cx.memo(Step::MigrateSize)
}

/// Takes locks on the new objects, without pins: they are released if the copy is given up without us.
fn new_locks(cx: &mut Cx<'_>, ino: u64, copy: &Layout) -> Run<()> {
    for key in 0..copy.osts.len() as Key {
        let at = Step::MigrateNewLock(key);
        if cx.memo(at).is_some() {
            continue;
        }
        let (dest, resource) = new_object(ino, copy, key)?;
        let pin = Step::MigrateNewPin(key);
        let held = cx.lock(pin, dest, resource, LockMode::Pw, Policy::Extent(Extent::ALL))?;
        cx.set_memo(at, held.cookie);
        cx.unlock(pin);
    }
    Ok(())
}

fn new_object(ino: u64, copy: &Layout, key: Key) -> Run<(Dest, Resource)> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    let ost = copy.osts.get(key as usize).ok_or(Errno::EPROTO)?;
    let number = copy.first_object.checked_add(key).ok_or(Errno::EPROTO)?;
    Ok((Dest::Ost(*ost), Resource::object(fid, number)))
}

/// The server's handle of a lock that was taken and is still held.
fn handle(cx: &Cx<'_>, dest: Dest, cookie: Option<u64>) -> Result<u64, Errno> {
    let locks = cx.w.locks.get(dest).ok_or(Errno::EIO)?;
    let cookie = cookie.filter(|cookie| locks.is_usable(*cookie)).ok_or(Errno::ESTALE)?;
    locks.get(cookie).map(|lock| lock.handle).ok_or(Errno::ESTALE)
}

/// Copies one window after the other.
fn copy_all(cx: &mut Cx<'_>, ino: u64, copy: &Layout) -> Run<()> {
    let size = cx.memo(Step::MigrateSize).unwrap_or(0);
    loop {
        let at = cx.memo(Step::MigrateAt).unwrap_or(0);
        if at >= size {
            return Ok(());
        }
        let window = at..size.min(at.saturating_add(WINDOW));
        read_window(cx, ino, &window)?;
        write_window(cx, ino, copy, &window, window.end == size)?;
        let of_window = |step: &Step| is_read(step) || is_write(step) || *step == Step::MigrateWritten;
        started(cx, of_window).into_iter().for_each(|step| cx.forget(step));
        cx.set_memo(Step::MigrateAt, window.end);
    }
}

/// The runs of a file range on objects, none longer than a request.
fn runs(striping: &Striping, range: &Range<u64>) -> Vec<Piece> {
    let mut runs = Vec::new();
    for piece in striping.pieces(range) {
        let mut done = 0;
        while done < piece.length {
            let length = (piece.length - done).min(u64::from(BRW_SIZE_MAX));
            let (object_offset, file_offset) = (piece.object_offset + done, piece.file_offset + done);
            runs.push(Piece { object_offset, file_offset, length, ..piece });
            done += length;
        }
    }
    runs
}

fn old_runs(cx: &Cx<'_>, ino: u64, window: &Range<u64>) -> Vec<Piece> {
    file(cx.w, ino).map(|file| runs(&file.striping, window)).unwrap_or_default()
}

/// Waits until all requests of these kinds are answered.
fn answered(cx: &Cx<'_>, kinds: fn(&Step) -> bool) -> Run<()> {
    let mut answers = Answers::default();
    for step in started(cx, kinds) {
        let answer = cx.answer(step).map(|answer| answer.map(|_| ()));
        if answer.is_some() || matches!(cx.op.memo(step), Some(Memo::Sent(_))) {
            answers.take(answer);
        }
    }
    answers.all()
}

/// Requests the bytes of a window.
fn read_window(cx: &mut Cx<'_>, ino: u64, window: &Range<u64>) -> Run<()> {
    for (run, number) in old_runs(cx, ino, window).into_iter().zip(0..) {
        let at = Step::MigrateRead(number);
        if cx.began(at) {
            continue;
        }
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(run.stripe)) else { return Err(Errno::ESTALE.into()) };
        let (dest, object) = (object.dest, object.id());
        let lock = handle(cx, dest, cx.memo(Step::MigrateCookie(run.stripe)))?;
        let request = ReadReq {
            object,
            offset: run.object_offset,
            length: run.length as u32,
            lock,
            job: crate::coherence::data::job(cx, ino),
        };
        let _ = cx.start_rpc(at, dest, Opcode::ObjRead, |_, _| Request::new(&request));
        if !cx.began(at) {
            return Err(Stop::Wait);
        }
    }
    answered(cx, is_read)
}

/// The bytes that [`read_window`] has fetched. An object may end early: the rest is a hole.
fn content(cx: &Cx<'_>, ino: u64, window: &Range<u64>) -> Bytes {
    let mut content = vec![0; (window.end - window.start) as usize];
    for (run, number) in old_runs(cx, ino, window).into_iter().zip(0..) {
        if let Some(Ok(reply)) = cx.answer(Step::MigrateRead(number)) {
            let from = (run.file_offset - window.start) as usize;
            let length = reply.bulk.len().min(run.length as usize);
            content[from..from + length].copy_from_slice(&reply.bulk[..length]);
        }
    }
    content.into()
}

/// Writes what is not all zeros: holes stay holes. The last run of the file is always written, because it sets the
/// size.
fn write_window(cx: &mut Cx<'_>, ino: u64, copy: &Layout, window: &Range<u64>, last: bool) -> Run<()> {
    // All in one attempt, unless something blocks a request.
    if cx.memo(Step::MigrateWritten).is_none() {
        let content = content(cx, ino, window);
        let lvb = times(cx, ino);
        let (uid, gid) = crate::coherence::data::owner(cx.w, ino);
        let new = runs(&Striping::new(copy.stripe_size, copy.osts.len()), window);
        let count = new.len();
        for (index, run) in new.into_iter().enumerate() {
            let from = (run.file_offset - window.start) as usize;
            let bulk = content.slice(from..from + run.length as usize);
            let makes_size = last && index + 1 == count;
            let at = Step::MigrateWrite(index as u64);
            if cx.began(at) || (!makes_size && bulk.iter().all(|byte| *byte == 0)) {
                continue;
            }
            let (dest, resource) = new_object(ino, copy, run.stripe)?;
            let request = WriteReq {
                object: ObjectId { fid: resource.fid, stripe: resource.stripe },
                offset: run.object_offset,
                lock: handle(cx, dest, cx.memo(Step::MigrateNewLock(run.stripe)))?,
                lvb: Some(Lvb { size: run.object_offset + run.length, ..lvb }),
                uid,
                gid,
                grant_used: 0,
                sync: true,
                want_grant: 0,
                job: crate::coherence::data::job(cx, ino),
            };
            let _ = cx.start_rpc(at, dest, Opcode::ObjWrite, |_, _| Request::new(&request).with_bulk(bulk));
            if !cx.began(at) {
                return Err(Stop::Wait);
            }
        }
        cx.set_memo(Step::MigrateWritten, 1);
    }
    answered(cx, is_write)
}

/// The newest times of all objects.
fn times(cx: &Cx<'_>, ino: u64) -> Lvb {
    let objects = file(cx.w, ino).map(|file| file.objects.iter().map(|object| object.lvb()).collect::<Vec<_>>());
    objects.unwrap_or_default().into_iter().fold(Lvb::default(), |all, lvb| Lvb {
        atime_ns: all.atime_ns.max(lvb.atime_ns),
        ..if (lvb.ctime_ns, lvb.mtime_ns) > (all.ctime_ns, all.mtime_ns) { lvb } else { all }
    })
}

/// Takes the file exclusively, on this client too, and checks that the copy is current. A client that wants the layout
/// does not wait for unreachable object targets: then this try ends. Nor does it wait long for other clients that keep
/// locks on objects: the layout is released for a while, and the copy stays valid if nobody writes.
fn alone(cx: &mut Cx<'_>, ino: u64, copy: &Layout) -> Run<()> {
    let waits = alone_now(cx, ino, copy);
    if waits != Err(Stop::Wait) || !matches!(cx.op.memo(Step::MigrateLock), Some(Memo::Lock { .. })) {
        return waits;
    }
    if !is_wanted(cx) {
        cx.forget(Step::MigrateWanted);
    } else if !leaving::is_reachable(cx.w, ino) {
        stdx::mark!("migration_makes_way");
        return Err(Errno::ESTALE.into());
    } else {
        let since = Instant(cx.memo(Step::MigrateWanted).unwrap_or(cx.now().0));
        cx.set_memo(Step::MigrateWanted, since.0);
        if cx.now() >= since + access::PATIENCE {
            stdx::mark!("migration_lends_the_layout");
            release(cx, ino);
        }
    }
    cx.w.set_timer(cx.now() + LOOK);
    Err(cx.wait(WaitKey::Timer))
}

/// Whether other clients want the metadata target's locks.
fn is_wanted(cx: &Cx<'_>) -> bool {
    let is_wanted =
        |at| matches!(cx.op.memo(at), Some(Memo::Lock { dest, cookie }) if cx.w.locks.is_wanted(*dest, *cookie));
    [Step::MigrateLock, Step::MigrateUpdate].into_iter().any(is_wanted)
}

/// The locks have an order: LAYOUT, the objects, UPDATE. While the operation waits for one, it keeps none of those behind
/// it. Otherwise two clients that migrate one file would take it from each other forever, and a truncation, which waits for
/// the metadata target with objects locked, would wait for us.
///
/// The swap does not wait for clients that have the attributes cached, as it would without UPDATE. One that keeps its lock
/// would keep us from giving the objects back, and their targets would evict us first.
fn alone_now(cx: &mut Cx<'_>, ino: u64, copy: &Layout) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    let mdt = cx.w.mdt_of(fid);
    let policy = Policy::Bits(bits::LAYOUT);
    if let Err(stop) = cx.lock(Step::MigrateLock, mdt, Resource::inode(fid), LockMode::Ex, policy) {
        release(cx, ino);
        return Err(stop);
    }
    if let Err(stop) = access::lock(cx, ino, LockMode::Pw, &ALL) {
        cx.unlock(Step::MigrateUpdate);
        return Err(stop);
    }
    access::take_turn(cx, ino)?;
    flush::settle_file(cx, ino, &ALL)?;
    let busy =
        |file: &crate::cache::data::state::NodeData| file.objects.iter().any(|object| object.pages.writing_in(&ALL));
    if file(cx.w, ino).is_some_and(busy) {
        return Err(cx.wait(node_key(ino)));
    }
    if is_unchanged(cx, ino) {
        let policy = Policy::Bits(bits::UPDATE);
        cx.lock(Step::MigrateUpdate, mdt, Resource::inode(fid), LockMode::Ex, policy)?;
        prove(cx, ino)?;
        return pin_new(cx, ino, copy);
    }
    stdx::mark!("written_while_migrated");
    Err(Errno::ESTALE.into())
}

/// Makes sure that no other client has had a lock on an object: a target may have evicted this client, which has not noticed, and have
/// given its locks away. First the metadata target confirms the layout: from then on, another client that confirms it, too, prevents
/// our swap. Then each object target answers some request: a client that gets a lock there later confirms the layout later.
fn prove(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    if cx.memo(Step::MigrateConfirmed).is_none() {
        access::confirm_layout_at(cx, Step::MigrateConfirm, ino)?;
        cx.forget(Step::MigrateConfirm);
        cx.set_memo(Step::MigrateConfirmed, 1);
    }
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let dests: BTreeSet<Dest> = now.objects.iter().map(|object| object.dest).collect();
    let mut answers = Answers::default();
    for (dest, number) in dests.into_iter().zip(0..) {
        let request = |_: &mut World, _: &mut OpState| Request::new(&StatfsReq::default());
        answers.take(cx.start_rpc(Step::MigrateAlive(number), dest, Opcode::ObjStatfs, request));
    }
    answers.all()
}

/// The locks on the new objects are pinned from here on: they will cover the kernel's pages of the file.
fn pin_new(cx: &mut Cx<'_>, ino: u64, copy: &Layout) -> Run<()> {
    for key in 0..copy.osts.len() as Key {
        let (dest, resource) = new_object(ino, copy, key)?;
        let pin = Step::MigrateNewPin(key);
        let held = cx.cached_lock(pin, dest, resource, LockMode::Pw, Policy::Extent(Extent::ALL));
        if held.map(|held| held.cookie) != cx.memo(Step::MigrateNewLock(key)) {
            return Err(Errno::ESTALE.into());
        }
    }
    Ok(())
}

/// The copy becomes the file; its locks cover the kernel's pages.
fn swap(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(Ok(reply)) = cx.answer(Step::MigrateCopy) else { return Err(Errno::EIO.into()) };
    let copy = reply.object().and_then(|rep| rep.copy.clone()).ok_or(Errno::EIO)?;
    let size = cx.memo(Step::MigrateSize).unwrap_or(0);
    let lvb = Lvb { size, ..times(cx, ino) };
    let rep = set_layout(cx, ino, Step::MigrateSwap, SetlayoutKind::Swap, copy.clone(), Some(lvb))?;
    let now = rep.attr.as_ref().and_then(|attr| attr.layout.clone());
    if now.is_none_or(|now| now.first_object != copy.first_object) {
        // It became the file, and was replaced since.
        return Ok(());
    }
    crate::coherence::data::state::take_layout(cx.w, ino, &copy);
    for key in 0..copy.osts.len() as Key {
        if let Some(Memo::Lock { dest, cookie }) = cx.op.memo(Step::MigrateNewPin(key)).cloned() {
            access::adopt(cx, ino, dest, key, cookie);
        }
    }
    if let Some(file) = file_mut(cx.w, ino) {
        file.layout_sure = file.objects.iter().any(|object| !object.locks.is_empty());
    }
    layout::changed(cx, Step::MigrateLock);
    layout::changed(cx, Step::MigrateUpdate);
    access::end_turn(cx, ino);
    cx.w.wake(node_key(ino));
    Ok(())
}

fn set_layout(
    cx: &mut Cx<'_>,
    ino: u64,
    at: Step,
    kind: SetlayoutKind,
    layout: Layout,
    lvb: Option<Lvb>,
) -> Run<Arc<ObjectRep>> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    let mdt = cx.w.mdt_of(fid);
    cx.changing(Step::Changing(0), ino);
    cx.rpc_object(at, mdt, Opcode::MdsReint, |_, op| {
        // A replay repeats what the server has chosen.
        let change = SetlayoutOp { fid, kind: kind as i32, layout: Some(layout), lvb, dir_default: None };
        Request::new(&op.change(None, Reint::Setlayout(change))).choosing(true)
    })
}
