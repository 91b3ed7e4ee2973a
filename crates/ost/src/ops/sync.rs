//! Sync: the reply waits until all bytes and attributes that were answered before are durable.
//!
//! An object is durable when the group of its last change is. Groups become durable in order, so it suffices to wait for the
//! newest group, whichever objects the request names.

use proto::msg::ObjSyncReq;
use target::{Cx, Reply, Request, Stop};

/// Runs one attempt.
pub fn attempt(cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let _: ObjSyncReq = cx.body(request)?;
    cx.hold_until_durable();
    Ok(Reply::empty())
}
