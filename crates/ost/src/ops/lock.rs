//! Locks: take an extent lock, or only ask what an object looks like to those who hold one.
//!
//! A granted lock comes with the object's attributes: whoever wrote under a conflicting lock has given it back, with its
//! data, before.

use proto::Errno;
use proto::StripeIndex;
use proto::msg::{EnqueueRep, EnqueueReq, ReplayLocksReq, ResourceKind};
use schema::ObjectKey;
use target::{Cx, Reply, Request, Stop};

use super::object;
use crate::Ost;
use crate::attrs::{lvb, merge};

/// Only objects are locked here.
fn check(req: &EnqueueReq) -> Result<(), Stop> {
    if req.resource.kind != ResourceKind::Object as i32 || req.resource.fid.is_none() {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// Locks that were granted before this target restarted.
pub fn replay(cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ReplayLocksReq = request.decode()?;
    Ok(Reply::new(&cx.replay_locks(&req, |_, lock| check(lock))?))
}

/// One attempt of an enqueue.
pub fn enqueue(ost: &Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: EnqueueReq = request.decode()?;
    check(&req)?;
    let key = ObjectKey { fid: req.resource.fid, stripe: StripeIndex(req.resource.stripe) };
    // Before the lock is granted: who has an error for an answer has no lock. A grant that had to wait comes in a later attempt,
    // which looks anew.
    let object = object(ost, cx, &key)?;
    if req.glimpse {
        let holders = cx.glimpse(req.resource)?;
        let lvb = merge(lvb(object.as_ref()), &holders);
        return Ok(Reply::new(&EnqueueRep { lvb: Some(lvb), ..EnqueueRep::default() }));
    }
    let granted = cx.enqueue(&req)?;
    Ok(Reply::new(&EnqueueRep { lvb: Some(lvb(object.as_ref())), ..granted }))
}
