//! Locks as operations and callbacks use them, over `dlm`'s cache of each target.

use dlm::client::{GrantAction, HeldLock, LockCacheEvent};
use proto::connect::features;
use proto::msg::{CancelReq, EnqueueReq, LockGrant, LockMode, Lvb, Policy, Resource, ResourceKind, bits};
use proto::{Bytes, Errno, Fid, Opcode};

use crate::api::{Effect, Invalidation};
use crate::cx::{Cx, Held, Run, Step, Stop};
use crate::data;
use crate::imports::Dest;
use crate::node::Node;
use crate::op::{Memo, OpState, Task};
use crate::world::World;

/// See [`Cx::lock`].
pub(crate) fn lock(
    cx: &mut Cx<'_>,
    step: Step,
    dest: Dest,
    resource: Resource,
    mode: LockMode,
    policy: Policy,
) -> Run<Held> {
    match cx.op.memo(step) {
        Some(Memo::Failed(errno)) => return Err(Stop::Errno(*errno)),
        Some(Memo::Reply(reply)) => {
            // Only a refusal stays here: a grant turns into `Memo::Lock` when it arrives.
            let errno = Errno::from_status(reply.header.status).err().unwrap_or(Errno::EPROTO);
            return Err(Stop::Errno(errno));
        }
        Some(Memo::Sent(_)) => return Err(Stop::Wait),
        _ => {}
    }
    if let Some(held) = cached(cx, step, dest, resource, mode, policy) {
        return Ok(held);
    }
    cx.op.forget(step);
    crate::metadata_write_back::settled(cx, resource.fid.ino())?;
    let Some(target) = cx.w.imports.get_mut(dest) else { return Err(Stop::Errno(Errno::EIO)) };
    let cookie = target.locks.new_cookie();
    target.locks.expect(cookie);
    cx.w.wants.push(cookie);
    let request = EnqueueReq {
        resource,
        mode: mode as i32,
        cookie,
        policy: Some(policy),
        no_wait: false,
        glimpse: false,
        granted_handle: 0,
        test: false,
        keep: false,
        version: 0,
    };
    let _ = cx.start_rpc(step, dest, Opcode::LdlmEnqueue, |_, _| (request, Bytes::new()));
    Err(Stop::Wait)
}

/// See [`Cx::cached_lock`].
pub(crate) fn cached(
    cx: &mut Cx<'_>,
    step: Step,
    dest: Dest,
    resource: Resource,
    mode: LockMode,
    policy: Policy,
) -> Option<Held> {
    if let Some(Memo::Lock { dest: place, cookie }) = cx.op.memo(step) {
        let (place, cookie) = (*place, *cookie);
        let lock = cx.w.imports.get(place).and_then(|target| target.locks.get(cookie));
        if let Some(lock) = lock
            && place == dest
            && covers(&lock, &resource, mode, &policy)
        {
            return Some(Held { cookie, handle: lock.handle });
        }
        // The operation has found out that it needs another one.
        cx.op.forget(step);
        release(cx.w, place, cookie);
    }
    let target = cx.w.imports.get_mut(dest)?;
    let cookie = target.locks.find(&resource, mode, &policy)?;
    let lock = target.locks.get(cookie)?;
    target.locks.hold(cookie);
    cx.op.set_memo(step, Memo::Lock { dest, cookie });
    Some(Held { cookie, handle: lock.handle })
}

/// Whether a lock does for this.
fn covers(lock: &HeldLock, resource: &Resource, mode: LockMode, policy: &Policy) -> bool {
    lock.resource == *resource
        && dlm::mode::covers(lock.mode, mode)
        && match (&lock.policy, policy) {
            (Policy::Bits(held), Policy::Bits(wanted)) => held & wanted == *wanted,
            (Policy::Extent(held), Policy::Extent(wanted)) => held.covers(wanted),
            _ => false,
        }
}

/// See [`Cx::unlock`].
pub(crate) fn unlock(cx: &mut Cx<'_>, step: Step) {
    if let Some(Memo::Lock { dest, cookie }) = cx.op.memo(step) {
        let (dest, cookie) = (*dest, *cookie);
        cx.op.forget(step);
        release(cx.w, dest, cookie);
    }
}

/// Gives every pin of the operation back while it goes on.
pub(crate) fn unlock_all(cx: &mut Cx<'_>) {
    unlock_at(cx, |_, _| true);
}

/// Gives the pins at those targets back for which `which` holds.
pub(crate) fn unlock_at(cx: &mut Cx<'_>, which: impl Fn(&Cx<'_>, Dest) -> bool) {
    let pin = |(step, memo): &(Step, Memo)| match memo {
        Memo::Lock { dest, .. } if which(cx, *dest) => Some(*step),
        _ => None,
    };
    let pins: smallvec::SmallVec<[Step; 4]> = cx.op.steps().iter().filter_map(pin).collect();
    for step in pins {
        unlock(cx, step);
    }
}

fn release(w: &mut World, dest: Dest, cookie: u64) {
    if let Some(target) = w.imports.get_mut(dest) {
        target.locks.release(cookie);
    }
    pump(w, dest);
}

/// Gives every pin of an operation back.
pub(crate) fn release_all(w: &mut World, op: &OpState) {
    for (step, memo) in op.steps() {
        match memo {
            Memo::Number(ino) if *step == crate::ops::step::NEW_FID => {
                if let Some(fid) = Fid::from_ino(*ino) {
                    w.sequences.settled(fid);
                }
            }
            Memo::Lock { dest, cookie } => release(w, *dest, *cookie),
            Memo::Node(ino) => w.nodes.unwant(*ino),
            Memo::Changing(ino) => {
                if let Some(node) = w.nodes.get_mut(*ino) {
                    node.changing = node.changing.saturating_sub(1);
                }
            }
            Memo::Asked(ino) => crate::ops::asked_no_more(w, *ino),
            _ => {}
        }
    }
}

/// A grant came in. Whether it can be used (if only by the operation that asked for it).
pub(crate) fn granted(w: &mut World, dest: Dest, grant: &LockGrant, lvb: Option<&Lvb>) -> bool {
    let now = w.now;
    let Some(target) = w.imports.get_mut(dest) else { return false };
    let action = target.locks.granted(grant, now);
    let lock = target.locks.get(grant.cookie);
    let usable = match (action, lock) {
        (GrantAction::Unexpected, _) | (_, None) => false,
        (_, Some(lock)) => {
            refresh_bits(w, dest, &lock.resource);
            if is_data(&lock) {
                data::lock_granted(w, dest, &lock, lvb);
            }
            true
        }
    };
    pump(w, dest);
    usable
}

/// Whether it covers data.
pub(crate) fn is_data(lock: &HeldLock) -> bool {
    match lock.policy {
        Policy::Bits(held) => held & bits::DOM != 0,
        Policy::Extent(_) => true,
        Policy::Flock(_) => false,
    }
}

/// Mirrors the inode bits into the node, and drops what is no longer covered.
pub(crate) fn refresh_bits(w: &mut World, dest: Dest, resource: &Resource) {
    if resource.kind() != ResourceKind::Inode {
        return;
    }
    if w.nodes.get(resource.fid.ino()).is_some_and(|node| node.destroyed) {
        return;
    }
    let Some(target) = w.imports.get_mut(dest) else { return };
    let held = target.locks.bits_held(resource);
    let (now, moment) = (w.now, w.moment());
    if held == 0 && w.nodes.get(resource.fid.ino()).is_none() {
        return;
    }
    let node = w.nodes.obtain(resource.fid);
    let lost = node.bits & !held;
    let gained = held & !node.bits;
    node.bits = held;
    if gained & (bits::UPDATE | bits::XATTR | bits::LAYOUT) != 0 {
        node.gained = moment;
    }
    if gained & bits::LOOKUP != 0 {
        node.lookup_gained = moment;
    }
    // What was learned without the lock is not covered by it later: gaining counts like losing.
    if (lost | gained) & bits::UPDATE != 0 {
        w.epochs = w.epochs.wrapping_add(1);
        node.update_epoch = w.epochs;
    }
    if (lost | gained) & bits::LOOKUP != 0 {
        w.epochs = w.epochs.wrapping_add(1);
        node.lookup_epoch = w.epochs;
    }
    if lost & bits::UPDATE != 0 {
        node.attr_covered = false;
        node.update_losses =
            if now.since(node.update_lost).as_secs() > 2 { 1 } else { node.update_losses.saturating_add(1) };
        node.update_lost = now;
        if let Some(dir) = &mut node.dir {
            dir.lock_lost();
        }
    }
    if lost & bits::LAYOUT != 0 {
        node.layout_covered = false;
    }
    if lost & bits::XATTR != 0 {
        node.xattrs = None;
        node.xattr_covered = false;
    }
}

/// Does what the cache of `dest` asks for.
pub(crate) fn pump(w: &mut World, dest: Dest) {
    loop {
        let Some(target) = w.imports.get_mut(dest) else { return };
        match target.locks.poll() {
            None => return,
            Some(LockCacheEvent::Cleanup { lock, .. }) => {
                refresh_bits(w, dest, &lock.resource);
                w.spawn(Task::Callback { dest, cookie: lock.cookie });
            }
            Some(LockCacheEvent::Cancel(handles)) => crate::imports::cancel(w, dest, handles),
        }
    }
}

/// Gives every lock on a resource back.
pub(crate) fn give_back(w: &mut World, dest: Dest, resource: &Resource) {
    if let Some(target) = w.imports.get_mut(dest) {
        target.locks.cancel_resource(resource);
    }
    pump(w, dest);
}

/// Holds a lock to read from now on, if its server knows of that: what it covers stays. Whether it does.
pub(crate) fn share(w: &mut World, dest: Dest, cookie: u64) -> bool {
    let Some(target) = w.imports.get_mut(dest) else { return false };
    if !target.has(features::LOCK_CONVERT) || !target.locks.downgrade(cookie, LockMode::Pr) {
        return false;
    }
    stdx::mark!("glimpsed_lock_shared");
    if let Some(lock) = target.locks.get(cookie) {
        data::lock_changed(w, &lock);
    }
    true
}

/// An object is gone by a change of ours, and our locks on it with it: nothing is given back. What the node knows stays
/// true without them, for nobody can change it any more.
pub(crate) fn destroyed(w: &mut World, dest: Dest, fid: proto::Fid) {
    if let Some(target) = w.imports.get_mut(dest) {
        target.locks.forget_resource(&Resource::inode(fid));
    }
    if let Some(node) = w.nodes.get_mut(fid.ino()) {
        node.destroyed = true;
    }
}

/// A lock is gone without having been given back: what it covered is worthless. `ESTALE`: a target that recovers has refused it.
pub(crate) fn lost(w: &mut World, dest: Dest, lock: &HeldLock, errno: Errno) {
    if lock.resource.kind() == ResourceKind::Inode && w.nodes.get(lock.resource.fid.ino()).is_some() {
        refresh_bits(w, dest, &lock.resource);
        crate::ops::names_lost(w, lock.resource.fid.ino());
        crate::local_opens::lost(w, lock.resource.fid.ino());
    }
    if is_data(lock) {
        data::lock_lost(w, lock, errno);
    }
    let ino = lock.resource.fid.ino();
    if w.nodes.get(ino).is_some_and(|node| node.lookups > 0) {
        let length = if is_data(lock) { u64::MAX } else { 0 };
        w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset: 0, length }));
    }
}

/// The version of an object that this client saw and that its server may have lost when it crashed: by a change that was not
/// durable, and whose own client had no answer to replay it by. 0: nothing of the kind. Not for a lock under which this client
/// writes: what it has there nobody else has. (Somebody else may have renamed a file that it writes.)
pub(crate) fn doubtful_version(w: &World, dest: Dest, resource: &Resource, mode: LockMode) -> u64 {
    let (Dest::Mdt(_), ResourceKind::Inode) = (dest, resource.kind()) else { return 0 };
    let Some(target) = w.imports.get(dest) else { return 0 };
    let node = w.nodes.get(resource.fid.ino()).filter(|node| !crate::metadata_write_back::is_ours(w, node));
    let known = node.and_then(|node| node.attr.as_ref()).map_or(0, |attr| attr.version);
    if known <= target.sure.0 || mode != LockMode::Pr { 0 } else { known }
}

/// Whether a later version of an object was seen than this.
fn seen_after(node: &Node, version: u64) -> bool {
    node.attr.as_ref().is_some_and(|attr| attr.version > version)
}

/// The names in a directory, and its attributes, are looked at anew after a restart of its server if what this client saw may be
/// lost: its version does not tell, for creates in it do not hang on each other. The lock stays.
pub(crate) fn doubt_directories(w: &mut World, dest: Dest) {
    let (Dest::Mdt(_), Some(target)) = (dest, w.imports.get(dest)) else { return };
    let sure = target.sure;
    let doubtful =
        |node: &&Node| node.is_dir() && seen_after(node, sure.0) && !crate::metadata_write_back::is_ours(w, node);
    let doubted: Vec<u64> = w.nodes.iter().filter(doubtful).map(|node| node.ino).collect();
    for ino in doubted {
        let Some(node) = w.nodes.get_mut(ino) else { continue };
        stdx::mark!("directory_doubted");
        node.attr_covered = false;
        w.epochs = w.epochs.wrapping_add(1);
        node.update_epoch = w.epochs;
        if let Some(dir) = &mut node.dir {
            dir.lock_lost();
        }
        if node.lookups > 0 {
            w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset: 0, length: 0 }));
        }
    }
}

/// Locks are replayed: versions that this client saw and that may be lost count for nothing any more, so that what comes now is
/// not taken for older.
pub(crate) fn forget_versions(w: &mut World, dest: Dest) {
    let (Dest::Mdt(_), Some(target)) = (dest, w.imports.get(dest)) else { return };
    let sure = target.sure;
    let doubtful = |node: &&Node| seen_after(node, sure.0) && !crate::metadata_write_back::is_ours(w, node);
    let doubted: Vec<u64> = w.nodes.iter().filter(doubtful).map(|node| node.ino).collect();
    for ino in doubted {
        if let Some(attr) = w.nodes.get_mut(ino).and_then(|node| node.attr.as_mut()) {
            attr.version = 0;
        }
    }
}

/// A record lock that is being waited for is not wanted any more.
pub(crate) fn abandon_record(w: &mut World, dest: Dest, cookie: u64) {
    if !w.abandoned_records.contains(&(dest, cookie)) {
        w.abandoned_records.push((dest, cookie));
    }
    say_abandoned(w, dest, cookie);
}

/// Requests without an answer were sent again. Those for record locks that nobody wants any more begin to wait anew, whatever the server was
/// told before.
pub(crate) fn abandon_again(w: &mut World, dest: Dest) {
    let again: Vec<u64> = w.abandoned_records.iter().filter(|(at, _)| *at == dest).map(|(_, cookie)| *cookie).collect();
    for cookie in again {
        stdx::mark!("record_abandoned_again");
        say_abandoned(w, dest, cookie);
    }
}

fn say_abandoned(w: &mut World, dest: Dest, cookie: u64) {
    let request = CancelReq { handles: Vec::new(), waiting_cookies: vec![cookie] };
    crate::imports::tell(w, dest, Opcode::LdlmCancel, &request);
}

/// Bounds the locks that nothing uses; `clear`: gives them all back now.
pub(crate) fn limit(w: &mut World, dest: Dest, size: usize, clear: bool) {
    let Some(target) = w.imports.get_mut(dest) else { return };
    if clear {
        target.locks.cancel_unused();
    } else {
        target.lru_size = size;
        target.locks.set_settings(dlm::client::Settings { lru_size: size, ..Default::default() });
    }
    pump(w, dest);
}
