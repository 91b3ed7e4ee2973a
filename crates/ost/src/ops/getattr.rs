//! Getattr: the attributes of an object, merged from its record and the lock holders.

use proto::msg::ObjGetattrReq;
use target::{Cx, Reply, Request, Stop};

use super::{key_of, object, resource, state_reply};
use crate::Ost;
use crate::attrs::{lvb, merge};

/// Runs one attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ObjGetattrReq = request.decode()?;
    let key = key_of(&req.object)?;
    let object = object(ost, cx, &key)?;
    let holders = cx.glimpse(resource(&key))?;
    Ok(state_reply(ost, cx, merge(lvb(object.as_ref()), &holders)))
}
