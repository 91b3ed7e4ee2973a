//! Read: returns bytes up to the size in the record, zeros for holes, and nothing for an object that was never written. An
//! object whose record is lost is an error.

use bytes::Bytes;
use proto::Errno;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::{LockMode, Policy, ReadRep, ReadReq};
use target::{Cx, DataOp, DataResult, LogLevel, Reply, Request, Stop};

use super::{data, extent, holds, key_of, object, resource};
use crate::Ost;
use crate::attrs::lvb;

/// Runs one attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ReadReq = cx.body(request)?;
    let key = key_of(&req.object)?;
    if req.length > BRW_SIZE_MAX {
        return Err(Errno::EINVAL.into());
    }
    let range = extent(req.offset, u64::from(req.length))?;
    if req.lock == 0 || !holds(cx, &key, LockMode::Pr, req.lock, &range) {
        // Other clients first flush what they have written.
        cx.revoke(resource(&key), LockMode::Pr, Policy::Extent(range))?;
    }
    let object = object(ost, cx, &key)?;
    let length = match &object {
        Some(o) if o.file != 0 => o.size.saturating_sub(req.offset).min(u64::from(req.length)) as u32,
        _ => 0,
    };
    let reply = Reply::new(&ReadRep { lvb: Some(lvb(object.as_ref())) });
    let Some(object) = object.filter(|_| length != 0) else { return Ok(reply) };

    let file = object.file;
    let DataResult::Data(bytes) = data(cx, DataOp::Read { file, offset: req.offset, length })? else {
        return Err(Errno::EIO.into());
    };
    if bytes.is_empty() && data(cx, DataOp::Stat { file })? == DataResult::Size(None) {
        let line = format!(
            "object {} stripe {}: its data file {file:x} is missing: restore it from a copy, or remove the file",
            key.fid, key.stripe
        );
        cx.log(LogLevel::Error, line);
        return Err(Errno::EIO.into());
    }
    ost.stats.read(u64::from(length));
    Ok(reply.with_bulk(padded(bytes, length as usize)))
}

/// Pads the bytes with zeros. A data file may end before its object: a crash undid the record of a truncation, and the client
/// that would have replayed it died. The bytes are lost in any case.
fn padded(bytes: Bytes, length: usize) -> Bytes {
    if bytes.len() >= length {
        return bytes.slice(..length);
    }
    let mut all = bytes.to_vec();
    all.resize(length, 0);
    all.into()
}
