//! `LdlmEnqueue`: locks on inodes and record locks. Granting and waiting is the lock manager's; here only what a metadata
//! target adds to it.

use crate::ops::create;
use crate::{Mdt, grants, moves, tree};
use proto::msg::{EnqueueRep, EnqueueReq, LockMode, Policy, ReplayLocksReq, Resource, ResourceKind, bits};
use proto::{Errno, Operation};
use target::{Cx, Reply, Stop};

/// What a lock request here is about: the bits of an inode, none for a record lock.
fn wanted(request: &EnqueueReq) -> Result<u64, Stop> {
    match (ResourceKind::try_from(request.resource.kind), &request.policy) {
        (Ok(ResourceKind::Inode), Some(Policy::Bits(wanted))) => Ok(*wanted),
        (Ok(ResourceKind::Inode), None) if request.glimpse => Ok(bits::DOM),
        (Ok(ResourceKind::Flock), Some(Policy::Flock(_))) => Ok(0),
        _ => Err(Errno::EPROTO.into()),
    }
}

/// Whether a lock is for moving the data of a resident file away.
fn is_for_moving(request: &EnqueueReq, wanted: u64) -> bool {
    const WITH: u64 = bits::DOM | bits::LAYOUT;
    request.mode == LockMode::Ex as i32 && wanted & WITH == WITH
}

/// What its holder saw of the object is there again, or was not lost: a change that somebody else made, whose answer had not
/// arrived when this target crashed, is made anew only after the recovery, and may then turn out otherwise.
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

/// `LdlmReplay`: locks that were granted before this target restarted. The mark of a move may have been lost with it.
pub fn replay(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &ReplayLocksReq) -> Result<Reply, Stop> {
    let mut moving = Vec::new();
    let rep = cx.replay_locks(request, |cx, lock| {
        still_so(cx, lock)?;
        if is_for_moving(lock, wanted(lock)?) {
            moving.extend(tree::find(cx, lock.resource.fid)?);
        }
        Ok(())
    })?;
    // Not before all locks are there: until then the attempt may be made again.
    for node in &moving {
        moves::goes_on(mdt, cx, node);
    }
    cx.count(Operation::LockReplay);
    Ok(Reply::new(&rep))
}

/// Whether there can be something to lock: an object that is there, or one that the client itself may make. Nobody keeps others
/// from making an object by a lock that came before it.
fn can_be_locked(cx: &mut Cx<'_>, resource: &Resource) -> Result<(), Stop> {
    if tree::find(cx, resource.fid)?.is_none() && !create::is_of_requester(cx, resource.fid)? {
        return Err(Errno::ESTALE.into());
    }
    Ok(())
}

/// See the module. Whoever locks the data of a resident file is told its size; whoever locks it for moving the data away
/// leaves a mark, so that objects of a move that was never finished are found when the file goes.
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
        // Without it, the data is not here (any more).
        reply.lvb = node.inode.is_resident().then(|| grants::lvb(&node.inode));
        if is_for_moving(request, wanted) && node.inode.is_resident() {
            moves::begin(mdt, cx, node);
        }
    }
    cx.count(Operation::Enqueue);
    Ok(Reply::new(&reply))
}
