//! Locks of this client, as operations and callbacks use them, on top of `dlm`'s cache of each target's locks.

use dlm::client::{GrantAction, HeldLock, LockCache, LockCacheEvent, Settings};
use proto::connect::features;
use proto::msg::{CancelReq, EnqueueReq, LockGrant, LockMode, Lvb, Policy, Resource, ResourceKind, bits};
use proto::{Errno, Fid, Opcode, Transno};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use stdx::{Deadlines, Instant};

use crate::api::{Effect, Invalidation};
use crate::base::{Dest, Step};
use crate::cache::node::{Hold, Node};
use crate::coherence::cx::{Cx, Held, Run, Stop};
use crate::coherence::op::{Memo, OpState, Task};
use crate::coherence::request::{self, Request, Wants};
use crate::coherence::world::World;
use crate::coherence::{data, fids, kernel, local_opens, metadata_write_back};

/// The lock caches of all targets.
#[derive(Default)]
pub(crate) struct Locks {
    list: Vec<OfTarget>,
    index: BTreeMap<Dest, usize>,
    /// By index.
    deadlines: Deadlines,
}

struct OfTarget {
    dest: Dest,
    cache: LockCache,
    /// Limit of unused locks.
    lru_size: usize,
    /// The transno that was durable when the session was interrupted: a later change that this client saw may be lost.
    sure: Transno,
    /// Locks were replayed since the interruption.
    doubted: bool,
}

/// Default limit of unused locks of a target: a node may have two.
pub(crate) fn lru_size(max_nodes: usize) -> usize {
    max_nodes.saturating_mul(2)
}

impl Locks {
    /// Adds a target.
    pub(crate) fn add(&mut self, dest: Dest, max_nodes: usize) {
        let lru_size = lru_size(max_nodes);
        let cache = LockCache::new(Settings { lru_size, ..Settings::default() });
        self.index.insert(dest, self.list.len());
        self.list.push(OfTarget { dest, cache, lru_size, sure: Transno(0), doubted: false });
    }

    fn of(&self, dest: Dest) -> Option<&OfTarget> {
        self.list.get(*self.index.get(&dest)?)
    }

    fn of_mut(&mut self, dest: Dest) -> Option<&mut OfTarget> {
        let index = *self.index.get(&dest)?;
        self.deadlines.touch(index);
        self.list.get_mut(index)
    }

    /// The locks of a target.
    pub(crate) fn get(&self, dest: Dest) -> Option<&LockCache> {
        self.of(dest).map(|of| &of.cache)
    }

    /// The same, mutable.
    pub(crate) fn get_mut(&mut self, dest: Dest) -> Option<&mut LockCache> {
        self.of_mut(dest).map(|of| &mut of.cache)
    }

    /// Limit of unused locks of a target.
    pub(crate) fn lru_size(&self, dest: Dest) -> usize {
        self.of(dest).map_or(0, |of| of.lru_size)
    }

    /// Targets of which a timer has expired.
    pub(crate) fn due(&self, now: Instant) -> SmallVec<[Dest; 4]> {
        let is_due = |of: &&OfTarget| of.cache.deadline().is_some_and(|at| at <= now);
        self.list.iter().filter(is_due).map(|of| of.dest).collect()
    }

    /// Notes the deadlines of what was used since the last time.
    pub(crate) fn note_deadlines(&mut self) {
        while let Some(index) = self.deadlines.touched() {
            self.deadlines.set_touched(self.list[index].cache.deadline());
        }
    }

    /// The next timer, as far as it was noted ([`Locks::note_deadlines`]).
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.earliest()
    }

    /// A session is interrupted; changes up to `sure` are durable.
    pub(crate) fn interrupted(&mut self, dest: Dest, sure: Transno) {
        if let Some(of) = self.of_mut(dest) {
            // The next connection sets the limit again if it still applies.
            of.cache.set_limit(0);
            of.cache.interrupted();
            of.sure = sure;
        }
    }

    /// The replay of locks starts.
    pub(crate) fn begin_replay(&mut self, dest: Dest) {
        if let Some(of) = self.of_mut(dest) {
            of.doubted = true;
        }
    }

    /// A session serves again. Returns whether locks were replayed.
    pub(crate) fn end_replay(&mut self, dest: Dest) -> bool {
        self.of_mut(dest).is_some_and(|of| core::mem::take(&mut of.doubted))
    }

    fn sure(&self, dest: Dest) -> Option<Transno> {
        self.of(dest).map(|of| of.sure)
    }

    /// Whether another client wants a lock.
    pub(crate) fn is_wanted(&self, dest: Dest, cookie: u64) -> bool {
        self.get(dest).is_some_and(|locks| locks.is_wanted(cookie))
    }
}

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
            // Only a refusal is stored here: a grant becomes `Memo::Lock` when it arrives.
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
    metadata_write_back::settled(cx, resource.fid.ino())?;
    let Some(locks) = cx.w.locks.get_mut(dest) else { return Err(Stop::Errno(Errno::EIO)) };
    let cookie = locks.new_cookie();
    locks.expect(cookie);
    let request = EnqueueReq { resource, mode: mode as i32, cookie, policy: Some(policy), ..EnqueueReq::default() };
    match cx.start_rpc(step, dest, Opcode::LdlmEnqueue, |_, _| Request::new(&request).wanting(Wants::of(cookie))) {
        Some(Err(errno)) => Err(Stop::Errno(errno)),
        _ => Err(Stop::Wait),
    }
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
        let lock = cx.w.locks.get(place).and_then(|locks| locks.get(cookie));
        if let Some(lock) = lock
            && place == dest
            && covers(&lock, &resource, mode, &policy)
        {
            return Some(Held { cookie, handle: lock.handle });
        }
        // The operation needs a different lock by now.
        cx.op.forget(step);
        release(cx.w, place, cookie);
    }
    let locks = cx.w.locks.get_mut(dest)?;
    let cookie = locks.find(&resource, mode, &policy)?;
    let lock = locks.get(cookie)?;
    locks.hold(cookie);
    cx.op.set_memo(step, Memo::Lock { dest, cookie });
    Some(Held { cookie, handle: lock.handle })
}

/// Whether a lock is sufficient.
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

/// Releases all pins of an operation that goes on.
pub(crate) fn unlock_all(cx: &mut Cx<'_>) {
    unlock_at(cx, |_, _| true);
}

/// Releases the pins at the targets for which `which` holds.
pub(crate) fn unlock_at(cx: &mut Cx<'_>, which: impl Fn(&Cx<'_>, Dest) -> bool) {
    let pin = |(step, memo): &(Step, Memo)| match memo {
        Memo::Lock { dest, .. } if which(cx, *dest) => Some(*step),
        _ => None,
    };
    let pins: SmallVec<[Step; 4]> = cx.op.steps().iter().filter_map(pin).collect();
    for step in pins {
        unlock(cx, step);
    }
}

fn release(w: &mut World, dest: Dest, cookie: u64) {
    if let Some(locks) = w.locks.get_mut(dest) {
        locks.release(cookie);
    }
    pump(w, dest);
}

/// Releases all pins and holds of an operation that ends.
pub(crate) fn release_all(w: &mut World, op: &OpState) {
    for (step, memo) in op.steps() {
        match memo {
            Memo::Number(ino) if matches!(step, Step::NewFid(_)) => {
                if let Some(fid) = Fid::from_ino(*ino) {
                    fids::settled(w, fid);
                }
            }
            Memo::Lock { dest, cookie } => release(w, *dest, *cookie),
            Memo::Node(ino) => w.release(*ino, Hold::Wanted),
            Memo::Changing(ino) => w.release(*ino, Hold::Changing),
            Memo::AttrWanted(ino) => w.release(*ino, Hold::AttrWanted),
            _ => {}
        }
    }
}

/// Applies a grant. Returns whether the lock can be used (if only by the operation that requested it).
pub(crate) fn granted(w: &mut World, dest: Dest, grant: &LockGrant, lvb: Option<&Lvb>) -> bool {
    let now = w.now;
    let Some(locks) = w.locks.get_mut(dest) else { return false };
    let action = locks.granted(grant, now);
    let lock = locks.get(grant.cookie);
    let usable = match (action, lock) {
        (GrantAction::Unexpected, _) | (_, None) => false,
        (_, Some(lock)) => {
            refresh_bits(w, dest, &lock.resource);
            if is_data(&lock) {
                data::lock_granted(w, &lock, lvb);
            }
            true
        }
    };
    pump(w, dest);
    usable
}

/// Whether a lock covers data.
pub(crate) fn is_data(lock: &HeldLock) -> bool {
    match lock.policy {
        Policy::Bits(held) => held & bits::DOM != 0,
        Policy::Extent(_) => true,
        Policy::Flock(_) => false,
    }
}

/// Copies the inode bits that are held into the node, and drops what is no longer covered.
pub(crate) fn refresh_bits(w: &mut World, dest: Dest, resource: &Resource) {
    if resource.kind() != ResourceKind::Inode {
        return;
    }
    if w.nodes.get(resource.fid.ino()).is_some_and(|node| node.destroyed) {
        return;
    }
    let Some(locks) = w.locks.get_mut(dest) else { return };
    let held = locks.bits_held(resource);
    let (now, moment) = (w.now, w.moment());
    w.nodes.mirror_bits(resource.fid, held, now, moment);
}

/// Handles the events of the lock cache of `dest`.
pub(crate) fn pump(w: &mut World, dest: Dest) {
    loop {
        let Some(locks) = w.locks.get_mut(dest) else { return };
        match locks.poll() {
            None => return,
            Some(LockCacheEvent::Cleanup { lock, .. }) => {
                refresh_bits(w, dest, &lock.resource);
                w.spawn(Task::Callback { dest, cookie: lock.cookie });
            }
            Some(LockCacheEvent::Cancel(handles)) => {
                request::send_one_way(w, dest, Opcode::LdlmCancel, &CancelReq { handles, waiting_cookies: Vec::new() });
            }
        }
    }
}

/// Gives all locks on a resource back.
pub(crate) fn give_back(w: &mut World, dest: Dest, resource: &Resource) {
    if let Some(locks) = w.locks.get_mut(dest) {
        locks.cancel_resource(resource);
    }
    pump(w, dest);
}

/// Converts a lock to read mode if its server supports that: what it covers stays cached. Returns whether it did.
pub(crate) fn share(w: &mut World, dest: Dest, cookie: u64) -> bool {
    let converts = w.imports.get(dest).is_some_and(|target| target.has(features::LOCK_CONVERT));
    let Some(locks) = w.locks.get_mut(dest).filter(|_| converts) else { return false };
    if !locks.downgrade(cookie, LockMode::Pr) {
        return false;
    }
    stdx::mark!("glimpsed_lock_shared");
    if let Some(lock) = locks.get(cookie) {
        data::lock_changed(w, &lock);
    }
    true
}

/// A change of this client destroyed an object, and with it our locks on it: nothing is given back. What the node knows
/// stays valid without them, because nobody can change it any more.
pub(crate) fn destroyed(w: &mut World, dest: Dest, fid: proto::Fid) {
    if let Some(locks) = w.locks.get_mut(dest) {
        locks.forget_resource(&Resource::inode(fid));
    }
    if let Some(node) = w.nodes.get_mut(fid.ino()) {
        node.destroyed = true;
    }
}

/// A lock was lost without a callback: what it covered is invalid. `ESTALE`: a recovering target refused it.
pub(crate) fn lost(w: &mut World, dest: Dest, lock: &HeldLock, errno: Errno) {
    if lock.resource.kind() == ResourceKind::Inode && w.nodes.get(lock.resource.fid.ino()).is_some() {
        refresh_bits(w, dest, &lock.resource);
        kernel::names_lost(w, lock.resource.fid.ino());
        local_opens::lost(w, lock.resource.fid.ino());
    }
    if is_data(lock) {
        data::lock_lost(w, lock, errno);
    }
    let ino = w.nodes.master(lock.resource.fid.ino());
    if w.nodes.get(ino).is_some_and(|node| node.kernel.knows()) {
        let length = if is_data(lock) { u64::MAX } else { 0 };
        w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset: 0, length }));
    }
}

/// The version of an object that this client saw and that the server may have lost in a crash: it came from a change
/// that was not durable, of a client that had no answer to replay it by. 0: there is none. Also 0 for a lock under
/// which this client writes, because nobody else has what it wrote. (Another client may have renamed a file that it
/// writes.)
pub(crate) fn doubtful_version(w: &World, dest: Dest, resource: &Resource, mode: LockMode) -> u64 {
    let (Dest::Mdt(_), ResourceKind::Inode) = (dest, resource.kind()) else { return 0 };
    let Some(sure) = w.locks.sure(dest) else { return 0 };
    let node = w.nodes.get(resource.fid.ino()).filter(|node| !metadata_write_back::is_ours(w, node));
    let known = node.and_then(|node| node.attr.as_ref()).map_or(0, |attr| attr.version);
    if known <= sure.0 || mode != LockMode::Pr { 0 } else { known }
}

/// Whether a later version of an object was seen than this one.
fn seen_after(node: &Node, version: u64) -> bool {
    node.attr.as_ref().is_some_and(|attr| attr.version > version)
}

/// After a restart of the server, invalidates the names and attributes of directories of which this client saw a
/// version that may be lost. The version alone does not tell, because creates in a directory do not depend on each
/// other. The lock stays.
pub(crate) fn doubt_directories(w: &mut World, dest: Dest) {
    let (Dest::Mdt(_), Some(sure)) = (dest, w.locks.sure(dest)) else { return };
    let doubtful = |node: &&Node| node.is_dir() && seen_after(node, sure.0) && !metadata_write_back::is_ours(w, node);
    let doubted: Vec<u64> = w.nodes.iter().filter(doubtful).map(|node| node.ino()).collect();
    for ino in doubted {
        let Some(node) = w.nodes.doubt_names(ino) else { continue };
        stdx::mark!("directory_doubted");
        if node.kernel.knows() {
            w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset: 0, length: 0 }));
        }
    }
}

/// Locks are replayed: clears the versions that this client saw and that may be lost, so that what arrives now is not
/// taken for older.
pub(crate) fn forget_versions(w: &mut World, dest: Dest) {
    let (Dest::Mdt(_), Some(sure)) = (dest, w.locks.sure(dest)) else { return };
    let doubtful = |node: &&Node| seen_after(node, sure.0) && !metadata_write_back::is_ours(w, node);
    let doubted: Vec<u64> = w.nodes.iter().filter(doubtful).map(|node| node.ino()).collect();
    for ino in doubted {
        if let Some(attr) = w.nodes.get_mut(ino).and_then(|node| node.attr.as_mut()) {
            attr.version = 0;
        }
    }
}

/// A record lock that is being waited for is no longer wanted.
pub(crate) fn abandon_record(w: &mut World, dest: Dest, cookie: u64) {
    if !w.abandoned_records.contains(&(dest, cookie)) {
        w.abandoned_records.push((dest, cookie));
    }
    send_abandoned(w, dest, cookie);
}

/// Unanswered requests were sent again. Those for record locks that are no longer wanted start to wait again, so the
/// server is told again.
pub(crate) fn abandon_again(w: &mut World, dest: Dest) {
    let again: Vec<u64> = w.abandoned_records.iter().filter(|(at, _)| *at == dest).map(|(_, cookie)| *cookie).collect();
    for cookie in again {
        stdx::mark!("record_abandoned_again");
        send_abandoned(w, dest, cookie);
    }
}

fn send_abandoned(w: &mut World, dest: Dest, cookie: u64) {
    let request = CancelReq { handles: Vec::new(), waiting_cookies: vec![cookie] };
    crate::coherence::request::send_one_way(w, dest, Opcode::LdlmCancel, &request);
}

/// Sets the limit of unused locks; `clear`: gives all unused locks back now.
pub(crate) fn limit(w: &mut World, dest: Dest, size: usize, clear: bool) {
    let Some(of) = w.locks.of_mut(dest) else { return };
    if clear {
        of.cache.cancel_unused();
    } else {
        of.lru_size = size;
        of.cache.set_settings(Settings { lru_size: size, ..Settings::default() });
    }
    pump(w, dest);
}
