//! Read: bytes up to the size in the record; holes, and an object that never was, give zeros and nothing. An object that was written
//! and has no record any more is an error.

use bytes::Bytes;
use proto::Errno;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::{LockMode, Policy, ReadRep, ReadReq};
use target::{Cx, DataOp, DataResult, LogLevel, Reply, Request, Stop};

use super::{data, extent, holds, key_of, object, resource};
use crate::Ost;
use crate::attrs::lvb;

/// One attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ReadReq = cx.body(request)?;
    let key = key_of(&req.object)?;
    if req.length > BRW_SIZE_MAX {
        return Err(Errno::EINVAL.into());
    }
    let range = extent(req.offset, u64::from(req.length))?;
    if req.lock == 0 || !holds(cx, &key, LockMode::Pr, req.lock, &range) {
        // What others have written and not sent comes here first.
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

/// A data file may end before its object does: a truncation whose record a crash made undone, with the client dead that would
/// have repeated it. The bytes are gone either way.
fn padded(bytes: Bytes, length: usize) -> Bytes {
    if bytes.len() >= length {
        return bytes.slice(..length);
    }
    let mut all = bytes.to_vec();
    all.resize(length, 0);
    all.into()
}
