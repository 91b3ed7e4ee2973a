//! `fsync` and `syncfs`: answered when everything that was answered before is durable.

use proto::Operation;
use target::{Cx, Reply, Stop};

/// See the module.
pub fn sync(cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    cx.hold_until_durable();
    cx.count(Operation::Sync);
    Ok(Reply::empty())
}
