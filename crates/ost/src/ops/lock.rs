//! Locks: enqueue and replay of extent locks, and glimpses, which ask the lock holders for an object's attributes.
//!
//! A granted lock comes with the object's attributes. They are up to date, because clients that wrote under conflicting locks
//! have flushed their data and given their locks back.

use proto::Errno;
use proto::StripeIndex;
use proto::msg::{EnqueueRep, EnqueueReq, ReplayLocksReq, ResourceKind};
use schema::ObjectKey;
use target::{Cx, Reply, Request, Stop};

use super::object;
use crate::Ost;
use crate::attrs::{lvb, merge};

/// Checks that the request locks an object.
fn check(req: &EnqueueReq) -> Result<(), Stop> {
    if req.resource.kind != ResourceKind::Object as i32 || req.resource.fid.is_none() {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// Replays locks that were granted before this target restarted.
pub fn replay(cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ReplayLocksReq = request.decode()?;
    Ok(Reply::new(&cx.replay_locks(&req, |_, lock| check(lock))?))
}

/// Runs one attempt of an enqueue.
pub fn enqueue(ost: &Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: EnqueueReq = request.decode()?;
    check(&req)?;
    let key = ObjectKey { fid: req.resource.fid, stripe: StripeIndex(req.resource.stripe) };
    // Read before the lock is granted, so that a request that fails gets no lock. If the lock must wait, it is granted in a
    // later attempt, which reads the record again.
    let object = object(ost, cx, &key)?;
    if req.glimpse {
        let holders = cx.glimpse(req.resource)?;
        let lvb = merge(lvb(object.as_ref()), &holders);
        return Ok(Reply::new(&EnqueueRep { lvb: Some(lvb), ..EnqueueRep::default() }));
    }
    let granted = cx.enqueue(&req)?;
    Ok(Reply::new(&EnqueueRep { lvb: Some(lvb(object.as_ref())), ..granted }))
}
