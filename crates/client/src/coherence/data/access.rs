//! Locks, layout and size of a file before its data is touched.

use core::ops::Range;
use core::time::Duration;
use proto::msg::{EnqueueReq, Extent, GetattrReq, LockMode, Lvb, ObjGetattrReq, ObjectStateRep, Policy, bits};
use proto::{Errno, Opcode};
use stdx::Instant;

use crate::base::Dest;
use crate::base::Step;
use crate::base::{OpId, WaitKey};
use crate::cache::data::state::{ALL, HOME, Key, Object};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data::layout;
use crate::coherence::data::state::{confirmed, edit, ensure, file, file_mut, node_key};
use crate::coherence::op::{Body, Memo};
use crate::coherence::request::{Request, Wants};

/// Locks on objects are requested in whole pages, so that neighbours within one page do not request twice.
const PAGE: u64 = 4096;
/// How long an operation waits for a lock before other clients can have the locks that it holds already.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How often an operation that waits for an unavailable target checks whether others want its locks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Makes sure that the layout is cached.
pub(crate) fn load(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    if cx.w.nodes.get(ino).is_none_or(|node| node.attr.is_none()) {
        confirm_at(cx, Step::Load, ino)?;
    }
    cx.forget(Step::Load);
    ensure(cx.w, fid);
    Ok(())
}

/// Fetches the attributes from the metadata target, so that the layout (and the size of a resident file) are those of a
/// moment after the held locks were granted. The answer stays at its step: the caller forgets the step once the answer
/// has been used, or the attributes arrived in another way. Otherwise the old answer would be taken for that of the
/// next request, which is about a later moment.
pub(crate) fn confirm_at(cx: &mut Cx<'_>, at: Step, ino: u64) -> Run<()> {
    confirm(cx, at, ino, false)
}

/// The same by an operation that has locks on objects and uses them if the layout is as it was: from the answer on, no other client
/// that is replacing the layout may still do so ([`GetattrReq::confirms_layout`]).
pub(crate) fn confirm_layout_at(cx: &mut Cx<'_>, at: Step, ino: u64) -> Run<()> {
    confirm(cx, at, ino, true)
}

fn confirm(cx: &mut Cx<'_>, at: Step, ino: u64, confirms_layout: bool) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    let dest = cx.w.mdt_of(fid);
    let rep = cx.rpc_object(at, dest, Opcode::MdsGetattr, |_, op| {
        Request::new(&GetattrReq { fid, cred: Some((*op.cred).clone()), confirms_layout, ..GetattrReq::default() })
    })?;
    let attr = rep.attr.as_ref().ok_or(Errno::ESTALE)?;
    ensure(cx.w, fid);
    let number = cx.reply_number(at);
    if confirmed(cx.w, ino, attr, number) {
        return Ok(());
    }
    cx.forget(at);
    confirm(cx, at, ino, confirms_layout)
}

/// Pins one lock. It may be pinned already, cached, on its way back (a call of the kernel that arrives while its pages
/// are being dropped must not wait for them), requested by another operation, or new.
fn lock_one(cx: &mut Cx<'_>, at: Step, dest: Dest, ino: u64, key: Key, mode: LockMode, range: &Range<u64>) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let lent = now.lends_lock;
    let object = now.object(key).ok_or(Errno::EIO)?;
    let resource = object.resource;
    let policy = if key == HOME {
        Policy::Bits(bits::DOM)
    } else {
        let end = if range.end == u64::MAX { u64::MAX } else { range.end.div_ceil(PAGE) * PAGE - 1 };
        Policy::Extent(Extent { start: range.start / PAGE * PAGE, end })
    };
    let op = cx.op.id;
    if cx.op.memo(at).is_none() && cx.cached_lock(at, dest, resource, mode, policy).is_none() {
        let Some(object) = file(cx.w, ino).and_then(|f| f.object(key)) else { return Err(Errno::EIO.into()) };
        let does = |(owner, asked, part): &(OpId, LockMode, Range<u64>)| {
            let wide = part.start <= range.start && range.end <= part.end;
            *owner != op && wide && dlm::mode::covers(*asked, mode)
        };
        let asked = object.asked.iter().any(does);
        if lent
            && let Some(locks) = cx.w.locks.get_mut(dest)
            && let Some(cookie) = locks.find_for_inflight(&resource, mode, &policy)
            && locks.hold(cookie)
        {
            cx.op.set_memo(at, Memo::Lock { dest, cookie });
        } else if asked {
            return Err(cx.wait(node_key(ino)));
        } else {
            edit(cx.w, ino, key, |object| object.asked.push((op, mode, range.clone())));
            cx.w.data.mark_op(op, ino);
        }
    }
    let result = cx.lock(at, dest, resource, mode, policy);
    if result == Err(Stop::Wait) {
        return Err(Stop::Wait);
    }
    let waited = edit(cx.w, ino, key, |object| {
        let before = object.asked.len();
        object.asked.retain(|(owner, ..)| *owner != op);
        before != object.asked.len()
    });
    if waited == Some(true) {
        cx.w.wake(node_key(ino));
    }
    let held = result?;
    adopt(cx, ino, dest, key, held.cookie);
    Ok(())
}

/// Makes a pinned lock cover its object again: it was granted while the object belonged to another layout, or it was
/// called back and forgotten while it was pinned.
pub(crate) fn adopt(cx: &mut Cx<'_>, ino: u64, dest: Dest, key: Key, cookie: u64) {
    let known = file(cx.w, ino).and_then(|f| f.object(key));
    let known = known.is_some_and(|o| o.locks.iter().any(|lock| lock.cookie == cookie));
    if !known && let Some(lock) = cx.w.locks.get(dest).and_then(|locks| locks.get(cookie)) {
        crate::coherence::data::state::lock_granted(cx.w, &lock, None);
    }
}

/// Pins locks on the file range for the operation, and makes the sizes valid as [`super::state`] requires. Returns
/// whether the file is resident. If the range is open-ended, the locks reach the end of every object, and the size is
/// exact.
///
/// Locks are taken one after the other in the order of the stripes, so that two clients cannot deadlock. While the
/// target of a lock is unavailable, other clients can have the locks that the operation holds already ([`yield_locks`]).
pub(crate) fn lock(cx: &mut Cx<'_>, ino: u64, mode: LockMode, range: &Range<u64>) -> Run<bool> {
    load(cx, ino)?;
    loop {
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if !now.resident() {
            break;
        }
        let dest = now.home.dest;
        lock_one(cx, Step::HomeLock, dest, ino, HOME, mode, &ALL)?;
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if now.resident() && now.home.knows_end() {
            cx.forget(Step::Confirm);
            return Ok(true);
        }
        confirm_at(cx, Step::Confirm, ino)?;
        cx.forget(Step::Confirm);
        let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
        if now.resident() && !now.home.knows_end() {
            // The lock was lost with an eviction.
            return Err(Errno::EIO.into());
        }
    }
    cx.forget(Step::Confirm);
    cx.unlock(Step::HomeLock);
    await_yielded(cx, ino)?;
    loop {
        for key in file(cx.w, ino).map(|f| f.keys()).unwrap_or_default() {
            let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
            let part = now.object_range(key, range);
            if part.is_empty() {
                continue;
            }
            let dest = now.objects[key as usize].dest;
            if let Err(stop) = lock_one(cx, Step::Lock(key), dest, ino, key, mode, &part) {
                if stop == Stop::Wait {
                    yield_locks(cx, ino, Awaited::Lock(key));
                }
                return Err(stop);
            }
            cx.forget(Awaited::Lock(key).since());
            if let Err(stop) = refresh(cx, ino, key) {
                if stop == Stop::Wait {
                    yield_locks(cx, ino, Awaited::Size(key));
                }
                return Err(stop);
            }
            cx.forget(Awaited::Size(key).since());
        }
        match layout::holds(cx, ino) {
            Ok(true) => {
                cx.forget(Awaited::Layout.since());
                return Ok(false);
            }
            Ok(false) => {}
            Err(stop) => {
                if stop == Stop::Wait {
                    yield_locks(cx, ino, Awaited::Layout);
                }
                return Err(stop);
            }
        }
    }
}

/// What an operation on a striped file waits for, with locks on its objects pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awaited {
    /// The lock on one more object.
    Lock(Key),
    /// The size of an object, under its lock.
    Size(Key),
    /// The metadata target's confirmation that the objects are still the file's.
    Layout,
    /// The metadata target's part of a truncation, before the objects' part.
    Change,
    /// The end of reads in flight of this mount that the change would affect.
    Quiet,
}

impl Awaited {
    fn number(self) -> u64 {
        match self {
            Awaited::Layout => 0,
            Awaited::Change => 1,
            Awaited::Quiet => 2,
            Awaited::Lock(key) => 2 * u64::from(key) + 4,
            Awaited::Size(key) => 2 * u64::from(key) + 5,
        }
    }

    /// The inverse of [`Awaited::number`] for what is awaited before locks are taken again.
    fn of_number(number: u64) -> Awaited {
        match (number, number / 2) {
            (0..4, _) => Awaited::Layout,
            (_, half) if number.is_multiple_of(2) => Awaited::Lock((half - 2) as Key),
            (_, half) => Awaited::Size((half - 2) as Key),
        }
    }

    /// The step that keeps since when it is awaited.
    fn since(self) -> Step {
        Step::LockSince(self.number())
    }
}

/// Called while the operation waits. If a target is unavailable, or another client keeps what is awaited, the wait may
/// be long: the operation releases the locks on objects that other clients want. They are requested again once it has
/// what it awaited, and in order: locks of later stripes are given up for that.
///
/// ```text
/// has stripe 0, waits for stripe 1 (unavailable) · another client wants stripe 0: released · stripe 1 is granted
/// · requests stripe 0 again, and releases stripe 1 unless it gets stripe 0 at once · stripe 0 · stripe 1
/// ```
///
/// The patience starts again once what was awaited has arrived: two operations that yield to each other at once, again
/// and again, would never have all their locks at the same time.
///
/// Nothing is released once a request was sent under these locks. Requests that were sent before them, such as the copy
/// of a move, do not count.
fn yield_locks(cx: &mut Cx<'_>, ino: u64, awaited: Awaited) {
    if cx.began(Step::Cut) || cx.began(Step::Through) {
        return;
    }
    let since = Instant(cx.memo(awaited.since()).unwrap_or(cx.now().0));
    cx.set_memo(awaited.since(), since.0);
    let away = !is_available(cx, ino, awaited) || cx.now() >= since + PATIENCE;
    let keys = file(cx.w, ino).map(|file| file.keys()).unwrap_or_default();
    for key in keys {
        let at = Step::Lock(key);
        let Some(&Memo::Lock { dest, cookie }) = cx.op.memo(at) else { continue };
        let behind = matches!(awaited, Awaited::Lock(awaited) if key > awaited);
        let wanted = away && cx.w.locks.is_wanted(dest, cookie);
        if behind || wanted {
            stdx::mark!("striped_locks_make_way");
            cx.unlock(at);
            // The size that its target reported was valid under this lock.
            if awaited != Awaited::Size(key) {
                forget_size(cx, ino, key);
            }
            // The request about the layout shows when its target is available again.
            if awaited != Awaited::Layout {
                layout::doubt(cx);
            }
            // A page that was changed through a mapping is written back before a lock goes back, and that write waits
            // for its turn.
            end_turn(cx, ino);
        }
        if wanted && !behind {
            match awaited {
                Awaited::Lock(_) | Awaited::Size(_) | Awaited::Layout => cx.set_memo(Step::LockAway, awaited.number()),
                // The operation takes the locks again afterwards.
                Awaited::Change | Awaited::Quiet => stdx::mark!("cut_makes_way"),
            }
        }
    }
    run_again_at(cx, if away { cx.now() + LOOK_AGAIN } else { since + PATIENCE });
}

/// A truncation waits for its metadata target, which may wait for clients that want the locks of this operation.
pub(crate) fn cut_waits(cx: &mut Cx<'_>, ino: u64) {
    let waits = cx.memo(Step::CutReady).is_some() && cx.memo(Step::CutAgreed).is_none();
    if waits && file(cx.w, ino).is_some_and(|file| !file.resident()) {
        yield_locks(cx, ino, Awaited::Change);
    }
}

/// The operation has its locks and, if `waited` says so, waits for requests in flight of this mount. Those may wait for
/// an unavailable target.
pub(crate) fn quiet(cx: &mut Cx<'_>, ino: u64, waited: Run<()>) -> Run<()> {
    if waited == Err(Stop::Wait) {
        yield_locks(cx, ino, Awaited::Quiet);
    }
    waited
}

/// The wait is over: the next one starts with full patience.
pub(crate) fn was_quiet(cx: &mut Cx<'_>) {
    cx.forget(Awaited::Quiet.since());
}

/// Takes the locks again that [`quiet`] may have released. While the operation waits for a lock, its patience is the
/// normal one: what it yielded for is past. As long as others of this mount fetch bytes it takes none: it would get the
/// locks back at once, lent by the recall that gives them back, and would only wake itself to release them again.
/// Returns whether the file is resident.
pub(crate) fn lock_again(cx: &mut Cx<'_>, ino: u64, range: &Range<u64>) -> Run<bool> {
    if cx.memo(Awaited::Quiet.since()).is_some() && others_fetch(cx, ino) {
        let waits = cx.wait(node_key(ino));
        return quiet(cx, ino, Err(waits)).map(|()| false);
    }
    let locked = lock(cx, ino, LockMode::Pw, range);
    if locked == Err(Stop::Wait) {
        cx.forget(Awaited::Quiet.since());
    }
    locked
}

/// Whether the target that is waited for serves requests.
fn is_available(cx: &Cx<'_>, ino: u64, awaited: Awaited) -> bool {
    let Some(file) = file(cx.w, ino) else { return true };
    let dest = match awaited {
        Awaited::Lock(key) | Awaited::Size(key) => file.object(key).map(|object| object.dest),
        Awaited::Layout | Awaited::Change => Some(file.home.dest),
        Awaited::Quiet => return true,
    };
    dest.and_then(|dest| cx.w.imports.get(dest)).is_some_and(|target| target.is_full())
}

fn run_again_at(cx: &mut Cx<'_>, next: Instant) {
    cx.w.set_timer(next);
    let _ = cx.wait(WaitKey::Timer);
}

/// After it has yielded, an operation takes no locks before it has what it waited for, and releases those that it still
/// has to clients that want them. The answer about a layout or a size is from before the locks: it only shows that the
/// next one will come soon.
fn await_yielded(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(number) = cx.memo(Step::LockAway) else { return Ok(()) };
    let awaited = Awaited::of_number(number);
    let at = match awaited {
        Awaited::Lock(key) => Some(Step::Lock(key)),
        Awaited::Size(key) => size_step(cx, ino, key),
        Awaited::Layout | Awaited::Change | Awaited::Quiet => Some(Step::LayoutConfirm),
    };
    if at.is_some_and(|at| matches!(cx.op.memo(at), Some(Memo::Sent(_)))) {
        yield_locks(cx, ino, awaited);
        return Err(Stop::Wait);
    }
    if let Awaited::Size(key) = awaited {
        forget_size(cx, ino, key);
    }
    layout::doubt(cx);
    cx.forget(awaited.since());
    cx.forget(Step::LockAway);
    Ok(())
}

/// The step at which the size of an object is requested.
fn size_step(cx: &Cx<'_>, ino: u64, key: Key) -> Option<Step> {
    Some(Step::Refresh(file(cx.w, ino)?.object(key)?.number()))
}

/// Drops the answer about the size of an object: it is from before the lock that is taken next.
fn forget_size(cx: &mut Cx<'_>, ino: u64, key: Key) {
    if let Some(at) = size_step(cx, ino, key) {
        cx.forget(at);
    }
}

/// Requests the size of an object that became doubtful from its target. If a change of this client was answered
/// meanwhile, the answer may be from before it: then it is requested again.
pub(crate) fn refresh(cx: &mut Cx<'_>, ino: u64, key: Key) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let object = now.object(key).ok_or(Errno::EIO)?;
    let at = Step::Refresh(object.number());
    if object.size_exact {
        // Another operation may have learned it first: our own answer would be from before the next doubt.
        cx.forget(at);
        return Ok(());
    }
    let (dest, id) = (object.dest, object.id());
    let frame = cx.rpc(at, dest, Opcode::ObjGetattr, |_, _| Request::new(&ObjGetattrReq { object: id }))?;
    let number = cx.reply_number(at);
    cx.forget(at);
    if file(cx.w, ino).and_then(|f| f.object(key)).is_some_and(|object| number < object.changed) {
        stdx::mark!("size_from_before_a_change");
        return refresh(cx, ino, key);
    }
    let lvb = frame.decode::<ObjectStateRep>().ok().and_then(|rep| rep.lvb).unwrap_or_default();
    edit(cx.w, ino, key, |object| object.set_size(&lvb));
    Ok(())
}

/// Whether an object's size, space and times are known and nobody else can change them. A client with a lock on another
/// part may write there, which changes the times. A change in flight of this client that takes effect in the cache only
/// when it is answered makes them unknown: others may have seen it.
pub(crate) fn knows_times(object: &Object) -> bool {
    object.size_exact && !object.pages.is_changing() && object.covering(LockMode::Pr, &ALL).is_some()
}

/// The state of an object: cached if locks cover it, else by a glimpse. `times`: not only its size is wanted; then a
/// lock is requested for it instead, if nobody is in the way. It never waits: `None` means that a request is in flight.
pub(crate) fn glimpse(cx: &mut Cx<'_>, ino: u64, key: Key, times: bool) -> Option<Result<Lvb, Errno>> {
    let object = file(cx.w, ino)?.object(key)?;
    if if times { knows_times(object) } else { object.shows_end() } {
        return Some(Ok(object.lvb()));
    }
    let (dest, resource, contended) = (object.dest, object.resource, object.contended_until > cx.w.now);
    let number = object.number();
    let try_at = Step::TryLock(number);
    if times && !object.pages.is_changing() && (cx.began(try_at) || !contended) {
        let request = |cookie| EnqueueReq {
            resource,
            mode: LockMode::Pr as i32,
            cookie,
            policy: Some(Policy::Extent(Extent::ALL)),
            no_wait: true,
            ..EnqueueReq::default()
        };
        let answer = cx.start_rpc(try_at, dest, Opcode::LdlmEnqueue, |w, _| {
            let mut wants = Wants::default();
            Request::new(&request(wants.add(w, dest))).wanting(wants)
        });
        match answer.map(|result| result.map(|_| ())) {
            // Granted (and lost again), or in flight.
            None if matches!(cx.op.memo(try_at), Some(Memo::Lock { .. })) => {}
            None => return None,
            Some(Err(errno)) if errno != Errno::EAGAIN => return Some(Err(errno)),
            Some(_) => {
                let until = cx.w.now + core::time::Duration::from_secs(2);
                if let Some(object) = file_mut(cx.w, ino).and_then(|f| f.object_mut(key)) {
                    object.contended_until = until;
                }
            }
        }
    }
    let at = Step::Glimpse(number);
    let request = EnqueueReq {
        resource,
        mode: LockMode::Pr as i32,
        policy: Some(if key == HOME { Policy::Bits(bits::DOM) } else { Policy::Extent(Extent::ALL) }),
        glimpse: true,
        ..EnqueueReq::default()
    };
    // The answer counts together with what was known here when it was requested and when it arrived: a write that it
    // lacks may have been written back since, and its lock released, while this answer or those of other objects were
    // still awaited.
    let seen = Step::Glimpsed(number);
    let object = file(cx.w, ino)?.object(key)?;
    let (known, exact) = (object.size_floor(), object.knows_end());
    let ends_behind = object.size_exact && known < object.size;
    let floor = known.max(cx.memo(seen).unwrap_or(0));
    cx.set_memo(seen, floor);
    let lvb = match cx.start_rpc(at, dest, Opcode::LdlmEnqueue, |_, _| Request::new(&request))? {
        Err(errno) => return Some(Err(errno)),
        Ok(reply) => match &reply.body {
            Body::Enqueue(rep) => rep.lvb.unwrap_or_default(),
            _ => return Some(Err(Errno::EPROTO)),
        },
    };
    // The known size is only the end of a lock that was granted after the answer: it is not the file's size.
    let lock_end = ends_behind && lvb.size < known;
    if !exact && (lvb.size.max(known) < floor || lock_end) {
        // Or the object was truncated after that lock was released. A new answer includes the write, and the truncation
        // if there was one.
        stdx::mark!("glimpse_asked_again");
        if lock_end {
            stdx::mark!("lock_end_is_no_size");
        }
        cx.forget(at);
        cx.forget(seen);
        return glimpse(cx, ino, key, times);
    }
    // A size that was shown is valid from then on: reads end there too, and fetch what lies before it.
    edit(cx.w, ino, key, |object| object.glimpsed(lvb.size));
    let object = file(cx.w, ino)?.object(key)?;
    let mut merged = object.lvb();
    merged.size = if object.knows_end() { object.size } else { lvb.size.max(floor) };
    merged.blocks = merged.blocks.max(lvb.blocks);
    merged.atime_ns = merged.atime_ns.max(lvb.atime_ns);
    if (lvb.ctime_ns, lvb.mtime_ns) > (merged.ctime_ns, merged.mtime_ns) {
        (merged.ctime_ns, merged.mtime_ns) = (lvb.ctime_ns, lvb.mtime_ns);
    }
    Some(Ok(merged))
}

/// The state of all objects of a striped file together: size of the file, space, newest times.
pub(crate) fn merged(cx: &mut Cx<'_>, ino: u64, times: bool) -> Run<Lvb> {
    let keys = file(cx.w, ino).map(|f| f.keys()).unwrap_or_default();
    let mut all = Lvb::default();
    let mut waiting = false;
    for key in keys {
        match glimpse(cx, ino, key, times) {
            None => waiting = true,
            Some(Err(errno)) => return Err(errno.into()),
            Some(Ok(lvb)) => {
                let size = file(cx.w, ino).map_or(0, |f| f.file_size(key, lvb.size));
                all = Lvb {
                    size: all.size.max(size),
                    blocks: all.blocks + lvb.blocks,
                    atime_ns: all.atime_ns.max(lvb.atime_ns),
                    ..if (lvb.ctime_ns, lvb.mtime_ns) > (all.ctime_ns, all.mtime_ns) { lvb } else { all }
                };
            }
        }
    }
    if waiting { Err(Stop::Wait) } else { Ok(all) }
}

/// The size of the file, including what others may have seen of a change of this client in flight. Locks on a part of
/// the file may be held.
pub(crate) fn size(cx: &mut Cx<'_>, ino: u64) -> Run<u64> {
    match file(cx.w, ino).and_then(|f| f.shown_size()) {
        Some(size) => Ok(size),
        None => Ok(merged(cx, ino, false)?.size),
    }
}

/// Waits while another operation makes a change of the data that nothing may overlap.
pub(crate) fn wait_turn(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    match file(cx.w, ino).and_then(|f| f.exclusive) {
        Some(owner) if owner != cx.op.id => Err(cx.wait(node_key(ino))),
        _ => Ok(()),
    }
}

/// Waits while a resident file is truncated. Others may have seen the new size.
pub(crate) fn wait_cut(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    if file(cx.w, ino).is_some_and(|file| file.is_cut()) { wait_turn(cx, ino) } else { Ok(()) }
}

/// Gives the operation the exclusive turn on the file's data, until it ends or gives it back. Nobody else changes the
/// data or fetches bytes meanwhile: those could be from before a change that the target has made, or from after one
/// that this client has not processed.
pub(crate) fn take_turn(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    wait_turn(cx, ino)?;
    let op = cx.op.id;
    let Some(file) = file_mut(cx.w, ino) else { return Ok(()) };
    file.exclusive = Some(op);
    cx.w.data.mark_op(op, ino);
    if others_fetch(cx, ino) { Err(cx.wait(node_key(ino))) } else { Ok(()) }
}

/// Whether a fetch of the file's bytes is in flight for another operation.
fn others_fetch(cx: &Cx<'_>, ino: u64) -> bool {
    let Some(file) = file(cx.w, ino) else { return false };
    let fetches =
        |key| file.object(key).is_some_and(|object| object.fetches.iter().any(|fetch| fetch.owner != cx.op.id));
    file.keys().into_iter().any(fetches)
}

/// See [`take_turn`].
pub(crate) fn end_turn(cx: &mut Cx<'_>, ino: u64) {
    let op = cx.op.id;
    if let Some(file) = file_mut(cx.w, ino)
        && file.exclusive == Some(op)
    {
        file.exclusive = None;
        cx.w.wake(node_key(ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::op::OpState;
    use crate::coherence::world::World;
    use proto::{Fid, msg::Attr};
    use std::sync::Arc;

    /// A file of two stripes.
    fn striped() -> (World, u64) {
        let mut w = World::new(crate::api::Options::of_tests());
        let fid = Fid::new(Fid::SEQ_FIRST, 7);
        let ino = fid.ino();
        let layout = proto::msg::Layout { osts: vec![0, 1], stripe_size: 65_536, ..Default::default() };
        w.nodes.obtain(fid).attr = Some(Attr { fid, layout: Some(layout), ..Attr::default() });
        ensure(&mut w, fid);
        (w, ino)
    }

    /// An operation that requested attributes which arrived in another way requests them again when it needs later
    /// ones.
    #[test]
    fn a_request_that_is_no_longer_needed_is_forgotten() {
        let mut w = World::new(crate::api::Options::of_tests());
        let fid = Fid::new(Fid::SEQ_FIRST, 7);
        let ino = fid.ino();
        w.nodes.obtain(fid).attr = Some(Attr { fid, ..Attr::default() });
        let id = OpId { slot: 0, generation: 1 };
        let mut op = OpState::new(id, None, Arc::default(), 0, stdx::Instant::ZERO);
        for at in [Step::Load, Step::Refresh(0)] {
            op.set_memo(at, Memo::Sent(5));
            assert!(op.waits_for(at, 5) && !op.waits_for(at, 4));
        }
        let mut cx = Cx { w: &mut w, op: &mut op };
        load(&mut cx, ino).unwrap();
        assert!(!cx.began(Step::Load));
        // Its answer, when it arrives, belongs to nobody.
        assert!(!cx.op.waits_for(Step::Load, 5));
        edit(cx.w, ino, HOME, |object| object.size_exact = true);
        refresh(&mut cx, ino, HOME).unwrap();
        assert!(!cx.began(Step::Refresh(0)));
    }

    /// What an operation awaited without its locks is outdated when it has them: a size that was reported meanwhile is
    /// not the one under its next lock.
    #[test]
    fn a_size_reported_without_a_lock_is_requested_again() {
        for key in [0, 1, 77] {
            for awaited in [Awaited::Layout, Awaited::Lock(key), Awaited::Size(key)] {
                assert_eq!(Awaited::of_number(awaited.number()), awaited);
            }
        }
        let (mut w, ino) = striped();
        let id = OpId { slot: 0, generation: 1 };
        let mut op = OpState::new(id, None, Arc::default(), 0, stdx::Instant::ZERO);
        let mut cx = Cx { w: &mut w, op: &mut op };
        let asked = size_step(&cx, ino, 1).unwrap();
        cx.set_memo(Step::LockAway, Awaited::Size(1).number());
        cx.op.set_memo(asked, Memo::Sent(5));
        assert_eq!(await_yielded(&mut cx, ino), Err(Stop::Wait));
        assert!(cx.op.waits_for(asked, 5));
        cx.op.set_memo(asked, Memo::Failed(Errno::EIO));
        assert_eq!(await_yielded(&mut cx, ino), Ok(()));
        assert!(!cx.began(asked) && !cx.began(Step::LockAway) && !cx.began(Awaited::Size(1).since()));
        // Its lock is released while another is awaited.
        for (awaited, asks) in [(Awaited::Size(1), true), (Awaited::Lock(0), false)] {
            cx.op.set_memo(asked, Memo::Sent(6));
            cx.op.set_memo(Step::Lock(1), Memo::Lock { dest: Dest::Ost(1), cookie: 9 });
            yield_locks(&mut cx, ino, awaited);
            assert_eq!(cx.began(asked), asks);
        }
        assert!(!cx.began(Step::Lock(1)));
    }

    /// A truncation that has yielded to fetches of this mount is patient again after it has waited for its locks.
    #[test]
    fn patience_starts_again_once_locks_were_awaited() {
        let (mut w, ino) = striped();
        let id = |slot| OpId { slot, generation: 1 };
        let mut op = OpState::new(id(0), None, Arc::default(), 0, stdx::Instant::ZERO);
        let mut cx = Cx { w: &mut w, op: &mut op };
        for waits in [Ok(()), Err(Stop::Wait)] {
            assert_eq!(quiet(&mut cx, ino, waits), waits);
            assert_eq!(cx.began(Awaited::Quiet.since()), waits.is_err());
        }
        edit(cx.w, ino, 0, |object| object.asked.push((id(1), LockMode::Pw, ALL)));
        assert_eq!(lock_again(&mut cx, ino, &ALL), Err(Stop::Wait));
        assert!(cx.began(Awaited::Lock(0).since()) && !cx.began(Awaited::Quiet.since()));
    }

    /// Attributes that were requested before a write of this client was answered may be from before it.
    #[test]
    fn attributes_from_before_an_own_write_do_not_tell_the_size() {
        let mut w = World::new(crate::api::Options::of_tests());
        let fid = Fid::new(Fid::SEQ_FIRST, 7);
        let ino = fid.ino();
        let layout = proto::msg::Layout { resident: true, ..Default::default() };
        let attr = Attr { fid, mode: 0o100_644, size: 8192, layout: Some(layout), ..Attr::default() };
        w.nodes.obtain(fid).attr = Some(attr.clone());
        ensure(&mut w, fid);
        let lock = dlm::client::HeldLock {
            cookie: 1,
            handle: 1,
            resource: proto::msg::Resource::inode(fid),
            mode: LockMode::Pw,
            policy: Policy::Bits(bits::DOM),
        };
        edit(&mut w, ino, HOME, |home| {
            home.locks.push(lock);
            home.size = 57_344;
            home.answered(proto::Transno(9), 20);
        });
        assert!(!confirmed(&mut w, ino, &attr, 19));
        assert_eq!(file(&w, ino).map(|file| (file.home.size, file.home.size_exact)), Some((57_344, false)));
        let glimpse =
            |w: &World| crate::coherence::data::glimpse(w, &proto::msg::Resource::inode(fid)).map(|lvb| lvb.size);
        assert_eq!(glimpse(&w), None, "in doubt the metadata target knows better");
        edit(&mut w, ino, HOME, |home| home.pages.write(0, proto::Bytes::from_static(b"abc")));
        assert_eq!(glimpse(&w), None, "also if something is buffered");
        let attr = Attr { size: 57_344, ..attr };
        assert!(confirmed(&mut w, ino, &attr, 21));
        assert_eq!(file(&w, ino).map(|file| (file.home.size, file.home.size_exact)), Some((57_344, true)));
        assert_eq!(glimpse(&w), Some(57_344));
        assert!(stdx::marks::count("size_from_before_a_change") > 0);
    }
}
