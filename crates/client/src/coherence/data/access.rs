//! Before data is touched: where it lies, the locks that cover it, and what is needed to know its size.

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

/// Locks on objects are asked for in whole pages, so that neighbours in one page do not ask twice.
const PAGE: u64 = 4096;
/// An operation waits so long for a lock before others get those that it has already.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Pause before it is looked again whether others want the locks of an operation that waits for a target that is away.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Makes sure that the layout is known.
pub(crate) fn load(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = crate::coherence::fids::fid_of(ino)?;
    if cx.w.nodes.get(ino).is_none_or(|node| node.attr.is_none()) {
        confirm_at(cx, Step::Load, ino)?;
    }
    cx.forget(Step::Load);
    ensure(cx.w, fid);
    Ok(())
}

/// Fetches the attributes from the metadata target, so that layout (and size of a resident file) are those of a moment
/// after the locks that are held came. The answer is kept at its step: whoever no longer needs it, since it is put to use or the
/// attributes came by another way, forgets the step. Else it would answer the next question, which is about a later moment.
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
        Request::new(&GetattrReq { fid, want: None, cred: Some((*op.cred).clone()), confirms_layout })
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

/// One lock: pinned already, cached, being given back (a call of the kernel that came while its pages are being
/// dropped must not wait for them), asked for by another operation, or new.
fn lock_one(cx: &mut Cx<'_>, at: Step, dest: Dest, ino: u64, key: Key, mode: LockMode, range: &Range<u64>) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let guest = now.guests_welcome;
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
        if guest
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

/// A pinned lock covers its object again: it came when the file was another's to know (its layout has changed since), or
/// was called back and forgotten while it was pinned.
pub(crate) fn adopt(cx: &mut Cx<'_>, ino: u64, dest: Dest, key: Key, cookie: u64) {
    let known = file(cx.w, ino).and_then(|f| f.object(key));
    let known = known.is_some_and(|o| o.locks.iter().any(|lock| lock.cookie == cookie));
    if !known && let Some(lock) = cx.w.locks.get(dest).and_then(|locks| locks.get(cookie)) {
        crate::coherence::data::state::lock_granted(cx.w, &lock, None);
    }
}

/// Locks on the file range, pinned for the operation, and sizes as [`super::state`] wants them. Gives where the data
/// lies. With an open end, the locks reach the end of every object, and the size is exact.
///
/// Locks are taken one after the other in the order of the stripes, so two clients cannot wait for each other. While the target of
/// one is away, others get those that the operation has already and that they want ([`make_way`]).
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
            // The lock went with an eviction.
            return Err(Errno::EIO.into());
        }
    }
    cx.forget(Step::Confirm);
    cx.unlock(Step::HomeLock);
    await_away(cx, ino)?;
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
                    make_way(cx, ino, Awaited::Lock(key));
                }
                return Err(stop);
            }
            cx.forget(Awaited::Lock(key).since());
            if let Err(stop) = refresh(cx, ino, key) {
                if stop == Stop::Wait {
                    make_way(cx, ino, Awaited::Size(key));
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
                    make_way(cx, ino, Awaited::Layout);
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
    /// The word of the metadata target that the objects are still the file's.
    Layout,
    /// The metadata target's part of a cut, before the objects' part.
    Change,
    /// What programs here have on its way to the part that is changed.
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

    /// What has this number, if locks are awaited no more before it is there.
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

/// The operation waits. If a target is away, or somebody keeps what is waited for, it may take long: the locks that the operation has
/// on objects go to those who want them. They are asked for again once it is there, and in order: what lies behind is given up for it.
///
/// ```text
/// has stripe 0, waits for stripe 1 (away) · another wants stripe 0: it goes · stripe 1 is granted · asks for stripe 0 again,
/// and lets stripe 1 go unless it has stripe 0 at once · stripe 0 · stripe 1
/// ```
///
/// Patience begins anew once what was awaited is there: two that give way to each other at once, again and again, would never have all
/// their locks at one moment.
///
/// Not once something was sent under these locks. What was sent before them, as the copy of a move, does not matter.
fn make_way(cx: &mut Cx<'_>, ino: u64, awaited: Awaited) {
    if cx.began(Step::Cut) || cx.began(Step::Through) {
        return;
    }
    let since = Instant(cx.memo(awaited.since()).unwrap_or(cx.now().0));
    cx.set_memo(awaited.since(), since.0);
    let away = !is_there(cx, ino, awaited) || cx.now() >= since + PATIENCE;
    let keys = file(cx.w, ino).map(|file| file.keys()).unwrap_or_default();
    for key in keys {
        let at = Step::Lock(key);
        let Some(&Memo::Lock { dest, cookie }) = cx.op.memo(at) else { continue };
        let behind = matches!(awaited, Awaited::Lock(awaited) if key > awaited);
        let wanted = away && cx.w.locks.get(dest).is_some_and(|locks| locks.is_wanted(cookie));
        if behind || wanted {
            stdx::mark!("striped_locks_make_way");
            cx.unlock(at);
            // What its target says of the size was true under this lock.
            if awaited != Awaited::Size(key) {
                forget_size(cx, ino, key);
            }
            // The question about the layout tells when its target is there again.
            if awaited != Awaited::Layout {
                layout::doubt(cx);
            }
            // A page that was changed through a mapping is written back before a lock goes, and that waits for its turn.
            end_turn(cx, ino);
        }
        if wanted && !behind {
            match awaited {
                Awaited::Lock(_) | Awaited::Size(_) | Awaited::Layout => cx.set_memo(Step::LockAway, awaited.number()),
                // It takes them again after that.
                Awaited::Change | Awaited::Quiet => stdx::mark!("cut_makes_way"),
            }
        }
    }
    look_again(cx, if away { cx.now() + LOOK_AGAIN } else { since + PATIENCE });
}

/// A cut waits for its metadata target. That may wait for others, who may want what this operation has.
pub(crate) fn cut_waits(cx: &mut Cx<'_>, ino: u64) {
    let waits = cx.memo(Step::CutReady).is_some() && cx.memo(Step::CutAgreed).is_none();
    if waits && file(cx.w, ino).is_some_and(|file| !file.resident()) {
        make_way(cx, ino, Awaited::Change);
    }
}

/// The operation has its locks, and has or has not to wait for what programs here have on its way. That may wait for a target that is
/// away.
pub(crate) fn quiet(cx: &mut Cx<'_>, ino: u64, waited: Run<()>) -> Run<()> {
    if waited == Err(Stop::Wait) {
        make_way(cx, ino, Awaited::Quiet);
    }
    waited
}

/// What comes next is waited for as patiently as this was.
pub(crate) fn was_quiet(cx: &mut Cx<'_>) {
    cx.forget(Awaited::Quiet.since());
}

/// The locks of an operation that [`quiet`] may have taken from it. While it waits for one of them it is as patient as everybody: what it
/// gave way for is past. As long as others fetch bytes here it is not: with the locks that it got again at once, as a guest of those who give
/// them back, the operation would only wake itself to give them back once more. Gives where the data lies.
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

/// Whether requests pass to the target that is waited for.
fn is_there(cx: &Cx<'_>, ino: u64, awaited: Awaited) -> bool {
    let Some(file) = file(cx.w, ino) else { return true };
    let dest = match awaited {
        Awaited::Lock(key) | Awaited::Size(key) => file.object(key).map(|object| object.dest),
        Awaited::Layout | Awaited::Change => Some(file.home.dest),
        Awaited::Quiet => return true,
    };
    dest.and_then(|dest| cx.w.imports.get(dest)).is_some_and(|target| target.is_full())
}

fn look_again(cx: &mut Cx<'_>, next: Instant) {
    cx.w.set_timer(next);
    let _ = cx.wait(WaitKey::Timer);
}

/// Once it has made way, an operation takes no locks before it has what it waited for; what it still has goes to whoever comes to want
/// it meanwhile. The answer about a layout or a size is one from before the locks: it only says that the next one will come soon.
fn await_away(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let Some(number) = cx.memo(Step::LockAway) else { return Ok(()) };
    let awaited = Awaited::of_number(number);
    let at = match awaited {
        Awaited::Lock(key) => Some(Step::Lock(key)),
        Awaited::Size(key) => size_step(cx, ino, key),
        Awaited::Layout | Awaited::Change | Awaited::Quiet => Some(Step::LayoutConfirm),
    };
    if at.is_some_and(|at| matches!(cx.op.memo(at), Some(Memo::Sent(_)))) {
        make_way(cx, ino, awaited);
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

/// The step at which the size of an object is asked for.
fn size_step(cx: &Cx<'_>, ino: u64, key: Key) -> Option<Step> {
    Some(Step::Refresh(file(cx.w, ino)?.object(key)?.number()))
}

/// The answer to a question about the size of an object tells of a moment before the lock that comes next.
fn forget_size(cx: &mut Cx<'_>, ino: u64, key: Key) {
    if let Some(at) = size_step(cx, ino, key) {
        cx.forget(at);
    }
}

/// Asks the target for the size of an object that became doubtful. If a change of ours was answered meanwhile, the answer may tell what
/// was before it: then it is asked for again.
pub(crate) fn refresh(cx: &mut Cx<'_>, ino: u64, key: Key) -> Run<()> {
    let Some(now) = file(cx.w, ino) else { return Err(Errno::ESTALE.into()) };
    let object = now.object(key).ok_or(Errno::EIO)?;
    let at = Step::Refresh(object.number());
    if object.size_exact {
        // Another operation may have learned it first: our own answer is about a moment before the next doubt.
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

/// Whether an object's size, space and times are known here. Nobody else can change them: who has a lock on another part may write
/// there, and that moves the times. And no change of ours is in flight that shows here only when it is answered: others may have seen it.
pub(crate) fn knows_times(object: &Object) -> bool {
    object.size_exact && !object.pages.is_changing() && object.covering(LockMode::Pr, &ALL).is_some()
}

/// What an object looks like now: from here if locks cover it, by a glimpse otherwise. `times`: not only its size is asked for; rather
/// get a lock for it then, if nobody is in the way. Nothing is awaited: `None` means that a request is on its way.
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
            // Granted (and lost again), or under way.
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
    // The answer counts with what was known here when it was asked for and when it came: a write that it lacks may have been written back
    // since, and its lock be gone, while this answer or other objects' are still awaited.
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
    // What is known is only where a lock of ours ends, that came after the answer: it is no size.
    let lock_end = ends_behind && lvb.size < known;
    if !exact && (lvb.size.max(known) < floor || lock_end) {
        // Or it was cut after that lock had gone. What is asked only now has the write, and the cut if there was one.
        stdx::mark!("glimpse_asked_again");
        if lock_end {
            stdx::mark!("lock_end_is_no_size");
        }
        cx.forget(at);
        cx.forget(seen);
        return glimpse(cx, ino, key, times);
    }
    // What is shown once is true from then on: reads end there, too, and fetch what lies before it.
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

/// What all objects of a striped file look like together: size of the file, space, newest times.
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

/// The size of the file. Locks on a part of it may be held. What others may have seen of a change of ours in flight counts.
pub(crate) fn size(cx: &mut Cx<'_>, ino: u64) -> Run<u64> {
    match file(cx.w, ino).and_then(|f| f.shown_size()) {
        Some(size) => Ok(size),
        None => Ok(merged(cx, ino, false)?.size),
    }
}

/// Waits while another operation changes the data in a way that nothing may overlap.
pub(crate) fn wait_turn(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    match file(cx.w, ino).and_then(|f| f.exclusive) {
        Some(owner) if owner != cx.op.id => Err(cx.wait(node_key(ino))),
        _ => Ok(()),
    }
}

/// Waits while a resident file is cut. Others may have seen the new size.
pub(crate) fn wait_cut(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    if file(cx.w, ino).is_some_and(|file| file.is_cut()) { wait_turn(cx, ino) } else { Ok(()) }
}

/// From here on, until it ends or gives it back, only this operation changes the data of the file, and nobody else fetches bytes: they
/// could be those of before a change that the target has made, or those of after one that nobody here knows of yet.
pub(crate) fn take_turn(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    wait_turn(cx, ino)?;
    let op = cx.op.id;
    let Some(file) = file_mut(cx.w, ino) else { return Ok(()) };
    file.exclusive = Some(op);
    cx.w.data.mark_op(op, ino);
    if others_fetch(cx, ino) { Err(cx.wait(node_key(ino))) } else { Ok(()) }
}

/// Whether bytes of the file are on their way here for somebody else.
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

    /// An operation that asked for attributes which came by another way asks again when it needs those of a later moment.
    #[test]
    fn a_question_that_needs_no_answer_any_more_is_forgotten() {
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
        // Its answer, when it comes, is nobody's.
        assert!(!cx.op.waits_for(Step::Load, 5));
        edit(cx.w, ino, HOME, |object| object.size_exact = true);
        refresh(&mut cx, ino, HOME).unwrap();
        assert!(!cx.began(Step::Refresh(0)));
    }

    /// What an operation awaited without its locks is past when it has it: a size that was told meanwhile is not that under its next lock.
    #[test]
    fn a_size_that_was_told_without_a_lock_is_asked_for_again() {
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
        assert_eq!(await_away(&mut cx, ino), Err(Stop::Wait));
        assert!(cx.op.waits_for(asked, 5));
        cx.op.set_memo(asked, Memo::Failed(Errno::EIO));
        assert_eq!(await_away(&mut cx, ino), Ok(()));
        assert!(!cx.began(asked) && !cx.began(Step::LockAway) && !cx.began(Awaited::Size(1).since()));
        // Its lock goes while another is awaited.
        for (awaited, asks) in [(Awaited::Size(1), true), (Awaited::Lock(0), false)] {
            cx.op.set_memo(asked, Memo::Sent(6));
            cx.op.set_memo(Step::Lock(1), Memo::Lock { dest: Dest::Ost(1), cookie: 9 });
            make_way(&mut cx, ino, awaited);
            assert_eq!(cx.began(asked), asks);
        }
        assert!(!cx.began(Step::Lock(1)));
    }

    /// A cut that had given way to what programs here had on its way is patient again when it has waited for its locks.
    #[test]
    fn who_waits_for_locks_is_patient_when_he_has_them() {
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

    /// Attributes that were asked for before a write of ours was answered may be those from before it.
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
