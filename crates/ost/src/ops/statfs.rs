//! Statfs: the space of the target. Also raises the client's grant.

use proto::msg::{OST_DEGRADED, StatfsRep, StatfsReq};
use target::{Cx, Reply, Request, Stop};

use crate::Ost;

/// The space per object with which the number of free objects is estimated, in bytes.
const OBJECT_BYTES: u64 = 16 << 10;

/// Runs one attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: StatfsReq = request.decode()?;
    let export = cx.export();
    ost.grants.raise(export, req.want_grant);
    Ok(Reply::new(&StatfsRep { grant: ost.grants.of(export), ..figures(ost) }))
}

/// The target's figures.
pub fn figures(ost: &Ost) -> StatfsRep {
    let total = ost.space.map_or(0, |space| space.total);
    let free = if ost.space.is_some() { ost.grants.free() } else { 0 };
    let files_free = free / OBJECT_BYTES;
    StatfsRep {
        total,
        free,
        available: free.saturating_sub(ost.grants.total()),
        files: ost.objects + files_free,
        files_free,
        grant: 0,
        state: if ost.degraded { OST_DEGRADED } else { 0 },
        disk: ost.space.map_or(0, |space| space.disk),
    }
}
