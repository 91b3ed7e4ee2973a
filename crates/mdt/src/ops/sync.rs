//! `fsync` and `syncfs`: the reply waits until everything that was answered before is durable.

use proto::Operation;
use target::{Cx, Reply, Stop};

/// Executes a sync.
pub fn sync(cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    cx.hold_until_durable();
    cx.count(Operation::Sync);
    Ok(Reply::empty())
}
