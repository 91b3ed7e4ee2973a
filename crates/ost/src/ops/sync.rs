//! Sync: answered when everything that was answered before is durable, bytes and attributes.
//!
//! The objects that a request names are durable when their last change's group is; groups are durable in order, so waiting
//! for the youngest group does for one object and for all.

use proto::msg::ObjSyncReq;
use target::{Cx, Reply, Request, Stop};

/// One attempt.
pub fn attempt(cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let _: ObjSyncReq = cx.body(request)?;
    cx.hold_until_durable();
    Ok(Reply::empty())
}
