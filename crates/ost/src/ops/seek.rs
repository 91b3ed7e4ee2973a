//! Seek: the next data or hole from an offset on. The end of the object counts as a hole.

use proto::Errno;
use proto::msg::{Extent, LockMode, Policy, SeekRep, SeekReq};
use target::{Cx, DataOp, DataResult, Reply, Request, Stop};

use super::{data, key_of, object, resource};
use crate::Ost;

/// Runs one attempt.
pub fn attempt(ost: &Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: SeekReq = cx.body(request)?;
    let key = key_of(&req.object)?;
    cx.revoke(resource(&key), LockMode::Pr, Policy::Extent(Extent { start: req.offset, end: u64::MAX }))?;
    let object = object(ost, cx, &key)?.filter(|o| req.offset < o.size).ok_or(Errno::ENXIO)?;
    let found = data(cx, DataOp::Seek { file: object.file, offset: req.offset, hole: req.hole })?;
    let DataResult::Offset(found) = found else { return Err(Errno::EIO.into()) };
    let offset = match found {
        Some(offset) if offset < object.size => offset,
        _ if req.hole => object.size,
        _ => return Err(Errno::ENXIO.into()),
    };
    Ok(Reply::new(&SeekRep { offset }))
}
