//! Locks as operations and callbacks use them, over `dlm`'s cache of each target.

use dlm::client::{GrantAction, HeldLock, LockCache, LockCacheEvent, Settings};
use proto::connect::features;
use proto::msg::{CancelReq, EnqueueReq, LockGrant, LockMode, Lvb, Policy, Resource, ResourceKind, bits};
use proto::{Errno, Fid, Opcode, Transno};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use stdx::Instant;

use crate::api::{Effect, Invalidation};
use crate::base::{Dest, Step};
use crate::cache::node::{Hold, Node};
use crate::coherence::cx::{Cx, Held, Run, Stop};
use crate::coherence::op::{Memo, OpState, Task};
use crate::coherence::request::{self, Request, Wants};
use crate::coherence::world::World;
use crate::coherence::{data, kernel, local_opens, metadata_write_back};

/// The locks of each target, as `dlm` keeps them.
#[derive(Default)]
pub(crate) struct Locks {
    of: BTreeMap<Dest, OfTarget>,
}

struct OfTarget {
    cache: LockCache,
    /// Unused locks that are kept.
    lru_size: usize,
    /// What was durable when the session was interrupted: of what came later, something that this client saw may be lost.
    sure: Transno,
    /// Locks were replayed since then.
    doubted: bool,
}

/// Unused locks that are kept of each target, if nothing else is said: of a node there may be two.
pub(crate) fn lru_size(max_nodes: usize) -> usize {
    max_nodes.saturating_mul(2)
}

impl Locks {
    /// A further target.
    pub(crate) fn add(&mut self, dest: Dest, max_nodes: usize) {
        let lru_size = lru_size(max_nodes);
        let cache = LockCache::new(Settings { lru_size, ..Settings::default() });
        self.of.insert(dest, OfTarget { cache, lru_size, sure: Transno(0), doubted: false });
    }

    /// Those of a target.
    pub(crate) fn get(&self, dest: Dest) -> Option<&LockCache> {
        self.of.get(&dest).map(|of| &of.cache)
    }

    /// The same, to change.
    pub(crate) fn get_mut(&mut self, dest: Dest) -> Option<&mut LockCache> {
        self.of.get_mut(&dest).map(|of| &mut of.cache)
    }

    /// How many that nothing uses are kept of a target.
    pub(crate) fn lru_size(&self, dest: Dest) -> usize {
        self.of.get(&dest).map_or(0, |of| of.lru_size)
    }

    /// Targets of which something is due.
    pub(crate) fn due(&self, now: Instant) -> SmallVec<[Dest; 4]> {
        let is_due = |of: &OfTarget| of.cache.deadline().is_some_and(|at| at <= now);
        self.of.iter().filter(|(_, of)| is_due(of)).map(|(dest, _)| *dest).collect()
    }

    /// When something is due next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.of.values().filter_map(|of| of.cache.deadline()).min()
    }

    /// A session is interrupted; so much is durable.
    pub(crate) fn interrupted(&mut self, dest: Dest, sure: Transno) {
        let Some(of) = self.of.get_mut(&dest) else { return };
        // The next connection says it again, if it still holds.
        of.cache.set_limit(0);
        of.cache.interrupted();
        of.sure = sure;
    }

    /// Locks are replayed from the begin.
    pub(crate) fn begin_replay(&mut self, dest: Dest) {
        if let Some(of) = self.of.get_mut(&dest) {
            of.doubted = true;
        }
    }

    /// A session serves again. Whether locks were replayed.
    pub(crate) fn end_replay(&mut self, dest: Dest) -> bool {
        self.of.get_mut(&dest).is_some_and(|of| core::mem::take(&mut of.doubted))
    }

    fn sure(&self, dest: Dest) -> Option<Transno> {
        self.of.get(&dest).map(|of| of.sure)
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
        // The operation has found out that it needs another one.
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

/// Gives every pin of an operation back.
pub(crate) fn release_all(w: &mut World, op: &OpState) {
    for (step, memo) in op.steps() {
        match memo {
            Memo::Number(ino) if *step == Step::NewFid => {
                if let Some(fid) = Fid::from_ino(*ino) {
                    w.sequences.settled(fid);
                }
            }
            Memo::Lock { dest, cookie } => release(w, *dest, *cookie),
            Memo::Node(ino) => w.release(*ino, Hold::Wanted),
            Memo::Changing(ino) => w.release(*ino, Hold::Changing),
            Memo::Asked(ino) => w.release(*ino, Hold::Asked),
            _ => {}
        }
    }
}

/// A grant came in. Whether it can be used (if only by the operation that asked for it).
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
    let Some(locks) = w.locks.get_mut(dest) else { return };
    let held = locks.bits_held(resource);
    let (now, moment) = (w.now, w.moment());
    w.nodes.mirror_bits(resource.fid, held, now, moment);
}

/// Does what the cache of `dest` asks for.
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
                request::tell(w, dest, Opcode::LdlmCancel, &CancelReq { handles, waiting_cookies: Vec::new() });
            }
        }
    }
}

/// Gives every lock on a resource back.
pub(crate) fn give_back(w: &mut World, dest: Dest, resource: &Resource) {
    if let Some(locks) = w.locks.get_mut(dest) {
        locks.cancel_resource(resource);
    }
    pump(w, dest);
}

/// Holds a lock to read from now on, if its server knows of that: what it covers stays. Whether it does.
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

/// An object is gone by a change of ours, and our locks on it with it: nothing is given back. What the node knows stays
/// true without them, for nobody can change it any more.
pub(crate) fn destroyed(w: &mut World, dest: Dest, fid: proto::Fid) {
    if let Some(locks) = w.locks.get_mut(dest) {
        locks.forget_resource(&Resource::inode(fid));
    }
    if let Some(node) = w.nodes.get_mut(fid.ino()) {
        node.destroyed = true;
    }
}

/// A lock is gone without having been given back: what it covered is worthless. `ESTALE`: a target that recovers has refused it.
pub(crate) fn lost(w: &mut World, dest: Dest, lock: &HeldLock, errno: Errno) {
    if lock.resource.kind() == ResourceKind::Inode && w.nodes.get(lock.resource.fid.ino()).is_some() {
        refresh_bits(w, dest, &lock.resource);
        kernel::names_lost(w, lock.resource.fid.ino());
        local_opens::lost(w, lock.resource.fid.ino());
    }
    if is_data(lock) {
        data::lock_lost(w, lock, errno);
    }
    let ino = lock.resource.fid.ino();
    if w.nodes.get(ino).is_some_and(|node| node.kernel.knows()) {
        let length = if is_data(lock) { u64::MAX } else { 0 };
        w.effect(Effect::Invalidate(Invalidation::Inode { token: 0, ino, offset: 0, length }));
    }
}

/// The version of an object that this client saw and that its server may have lost when it crashed: by a change that was not
/// durable, and whose own client had no answer to replay it by. 0: nothing of the kind. Not for a lock under which this client
/// writes: what it has there nobody else has. (Somebody else may have renamed a file that it writes.)
pub(crate) fn doubtful_version(w: &World, dest: Dest, resource: &Resource, mode: LockMode) -> u64 {
    let (Dest::Mdt(_), ResourceKind::Inode) = (dest, resource.kind()) else { return 0 };
    let Some(sure) = w.locks.sure(dest) else { return 0 };
    let node = w.nodes.get(resource.fid.ino()).filter(|node| !metadata_write_back::is_ours(w, node));
    let known = node.and_then(|node| node.attr.as_ref()).map_or(0, |attr| attr.version);
    if known <= sure.0 || mode != LockMode::Pr { 0 } else { known }
}

/// Whether a later version of an object was seen than this.
fn seen_after(node: &Node, version: u64) -> bool {
    node.attr.as_ref().is_some_and(|attr| attr.version > version)
}

/// The names in a directory, and its attributes, are looked at anew after a restart of its server if what this client saw may be
/// lost: its version does not tell, for creates in it do not hang on each other. The lock stays.
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

/// Locks are replayed: versions that this client saw and that may be lost count for nothing any more, so that what comes now is
/// not taken for older.
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
    crate::coherence::request::tell(w, dest, Opcode::LdlmCancel, &request);
}

/// Bounds the locks that nothing uses; `clear`: gives them all back now.
pub(crate) fn limit(w: &mut World, dest: Dest, size: usize, clear: bool) {
    let Some(of) = w.locks.of.get_mut(&dest) else { return };
    if clear {
        of.cache.cancel_unused();
    } else {
        of.lru_size = size;
        of.cache.set_settings(Settings { lru_size: size, ..Settings::default() });
    }
    pump(w, dest);
}
