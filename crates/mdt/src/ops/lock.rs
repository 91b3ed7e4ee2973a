//! `LdlmEnqueue` and `LdlmReplay`: locks on inodes, and record locks. The lock manager grants them and queues the waiters;
//! this module adds the checks and the size of resident files.

use crate::ops::create;
use crate::{Mdt, grants, moves, tree};
use proto::msg::{EnqueueRep, EnqueueReq, LockMode, Policy, ReplayLocksReq, Resource, ResourceKind, bits};
use proto::{Errno, Operation};
use target::{Cx, Reply, Stop};

/// The inode bits that a lock request asks for; 0 for a record lock.
fn wanted(request: &EnqueueReq) -> Result<u64, Stop> {
    match (ResourceKind::try_from(request.resource.kind), &request.policy) {
        (Ok(ResourceKind::Inode), Some(Policy::Bits(wanted))) => Ok(*wanted),
        (Ok(ResourceKind::Inode), None) if request.glimpse => Ok(bits::DOM),
        (Ok(ResourceKind::Flock), Some(Policy::Flock(_))) => Ok(0),
        _ => Err(Errno::EPROTO.into()),
    }
}

/// Whether a lock is for moving the data of a resident file to object targets.
fn is_for_moving(request: &EnqueueReq, wanted: u64) -> bool {
    const WITH: u64 = bits::DOM | bits::LAYOUT;
    request.mode == LockMode::Ex as i32 && wanted & WITH == WITH
}

/// Checks that the object has at least the version that the holder of a replayed lock has seen. The holder may have seen a
/// change of another client that the crash undid. If that client had no reply yet, it sends the request again only after
/// the recovery, and the result may be another.
fn still_so(cx: &mut Cx<'_>, lock: &EnqueueReq) -> Result<(), Stop> {
    if lock.version == 0 || lock.resource.kind() != ResourceKind::Inode {
        return can_be_locked(cx, &lock.resource);
    }
    match tree::find(cx, lock.resource.fid)? {
        Some(node) if node.inode.version >= lock.version => Ok(()),
        _ => {
            stdx::mark!("replayed_lock_too_new");
            Err(Errno::ESTALE.into())
        }
    }
}

/// `LdlmReplay`: locks that were granted before this target restarted. If a lock is for a move, the crash may have undone the
/// mark of the file.
pub fn replay(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &ReplayLocksReq) -> Result<Reply, Stop> {
    let mut moving = Vec::new();
    let rep = cx.replay_locks(request, |cx, lock| {
        still_so(cx, lock)?;
        if is_for_moving(lock, wanted(lock)?) {
            moving.extend(tree::find(cx, lock.resource.fid)?);
        }
        Ok(())
    })?;
    // Only after all locks are granted: until then the attempt may end with `Wait` and run again.
    for node in &moving {
        moves::resume(mdt, cx, node);
    }
    cx.count(Operation::LockReplay);
    Ok(Reply::new(&rep))
}

/// Whether the object exists, or has a FID that the client itself may use for a new object. So no client can hold a lock on
/// an object before another client makes it.
fn can_be_locked(cx: &mut Cx<'_>, resource: &Resource) -> Result<(), Stop> {
    if tree::find(cx, resource.fid)?.is_none() && !create::is_of_requester(cx, resource.fid)? {
        return Err(Errno::ESTALE.into());
    }
    Ok(())
}

/// Executes an enqueue. A lock on the data of a resident file is answered with its size and times. A lock for moving the data is
/// recorded, so that objects of an unfinished move are destroyed with the file.
pub fn enqueue(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &EnqueueReq) -> Result<Reply, Stop> {
    let resource = request.resource;
    let wanted = wanted(request)?;
    if request.glimpse {
        let node = tree::node(cx, resource.fid)?;
        let lvb = grants::fresh_lvb(cx, &node.inode)?;
        return Ok(Reply::new(&EnqueueRep { lvb: Some(lvb), ..EnqueueRep::default() }));
    }
    let gives_back = request.mode == LockMode::Nl as i32;
    if !gives_back && !cx.is_enqueued() {
        can_be_locked(cx, &resource)?;
    }
    let mut reply = cx.enqueue(request)?;
    if wanted & bits::DOM != 0
        && reply.grant.is_some()
        && let Some(node) = tree::find(cx, resource.fid)?
    {
        // No values in the reply: the data is not, or no longer, on this target.
        reply.lvb = node.inode.is_resident().then(|| grants::lvb(&node.inode));
        if is_for_moving(request, wanted) && node.inode.is_resident() {
            moves::begin(mdt, cx, node);
        }
    }
    cx.count(Operation::Enqueue);
    Ok(Reply::new(&reply))
}
