//! `fsync` and `syncfs`: answered when everything that was answered before is durable.

use crate::Mdt;
use target::{Cx, Reply, Stop};

/// See the module.
pub fn sync(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    cx.hold_until_durable();
    mdt.stats.count("sync");
    Ok(Reply::empty())
}
