//! Punch: truncate, punch a hole, zero or allocate a range.
//!
//! Truncating to zero takes the data file away from the object and dooms it; the next write makes a new one. So if a program
//! truncates a file and writes it again, and everything crashes before a sync, the old content is left and not a mixture.

use proto::Errno;
use proto::msg::{Extent, PunchKind, PunchReq};
use schema::{DoomedFile, Object, ObjectKey, Written};
use target::{Cx, DataOp, Reply, Request, Stop};

use super::{
    Before, SIZE_MAX, account, admit, before, begin, blocks, data, finish, key_of, op_id, resource, shown, state_reply,
    times,
};
use crate::Ost;
use crate::attrs::take_times;

/// Runs one attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: PunchReq = cx.body(request)?;
    let key = key_of(&req.object)?;
    let kind = PunchKind::try_from(req.kind).map_err(|_| Errno::EOPNOTSUPP)?;
    if kind != PunchKind::Truncate && req.length == 0 {
        return Err(Errno::EINVAL.into());
    }
    let end = req.start.checked_add(req.length).filter(|&end| end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
    let range = match kind {
        PunchKind::Truncate => Extent { start: req.start, end: u64::MAX },
        _ => Extent { start: req.start, end: end - 1 },
    };
    admit(ost, cx, request, &key, req.lock, range)?;
    let before = before(ost, cx, &key)?;
    let size = before.object.as_ref().map_or(0, |o| o.size);
    if kind == PunchKind::Truncate {
        cx.truncated(resource(&key));
    }
    let has_file = before.object.as_ref().is_some_and(|o| o.file != 0);
    match kind {
        PunchKind::Truncate if req.start == 0 => Ok(empty(ost, cx, &req, key, before)),
        PunchKind::Truncate => {
            apply(ost, cx, request, &req, key, before, req.start, |file| DataOp::Truncate { file, size: req.start })
        }
        PunchKind::Hole => {
            let end = end.min(size);
            if req.start >= end || !has_file {
                return Ok(untouched(ost, cx, &req, key, before));
            }
            let (offset, length) = (req.start, end - req.start);
            let change = |file| DataOp::Fallocate { file, offset, length, kind, keep_size: true };
            apply(ost, cx, request, &req, key, before, size, change)
        }
        PunchKind::Zero | PunchKind::Allocate => {
            if !cx.is_replay() && ost.files.flight(op_id(cx, request)).is_none() {
                let has = before.object.as_ref().map_or(0, |o| o.blocks.saturating_mul(512));
                let more = if end <= size { req.length.min(size.saturating_sub(has)) } else { req.length };
                ost.grants.begin(cx.export(), request.xid(), more, 0)?;
            }
            let (offset, length, keep_size) = (req.start, req.length, req.keep_size);
            let size = if keep_size { size } else { size.max(end) };
            let change = |file| DataOp::Fallocate { file, offset, length, kind, keep_size };
            apply(ost, cx, request, &req, key, before, size, change)
        }
    }
}

/// A change that needs an operation on the data file.
fn apply(
    ost: &mut Ost,
    cx: &mut Cx<'_>,
    request: &Request,
    req: &PunchReq,
    key: ObjectKey,
    before: Before,
    size: u64,
    change: impl FnOnce(u64) -> DataOp,
) -> Result<Reply, Stop> {
    let flight = begin(ost, cx, request, key, before.object.as_ref())?;
    let done = data(cx, change(flight.file))?;

    ost.stats.punches += 1;
    account(ost, cx, request, &before, blocks(&done));
    let times = times(cx, req.lvb);
    Ok(finish(ost, cx, request, flight, before, (req.uid, req.gid), blocks(&done), |object| {
        object.size = size;
        take_times(object, &times);
    }))
}

/// Truncation to zero.
fn empty(ost: &mut Ost, cx: &mut Cx<'_>, req: &PunchReq, key: ObjectKey, before: Before) -> Reply {
    let Some(mut object) = before.object else { return untouched(ost, cx, req, key, before) };
    take_times(&mut object, &times(cx, req.lvb));
    let file = core::mem::take(&mut object.file);
    object.size = 0;
    object.blocks = 0;
    let transno = cx.transno();
    object.version = transno.0;
    cx.put(&key, &object);
    if file != 0 {
        cx.delete::<Written>(&key);
        cx.put(&file, &DoomedFile {});
        ost.files.doom(transno, file);
    }
    ost.stats.punches += 1;
    state_reply(ost, cx, shown(&object))
}

/// Only the times change, no bytes. If the object does not exist, it is made to store the times, because the client that made
/// the change already reports them.
fn untouched(ost: &mut Ost, cx: &mut Cx<'_>, req: &PunchReq, key: ObjectKey, before: Before) -> Reply {
    let Before { object: old, state } = before;
    if old.is_none() {
        ost.objects = state.objects + 1;
        cx.put(&(), &ost.files.state(ost.objects));
    }
    let mut object = old.unwrap_or_else(|| Object { uid: req.uid, gid: req.gid, ..Object::default() });
    take_times(&mut object, &times(cx, req.lvb));
    object.version = cx.transno().0;
    cx.put(&key, &object);
    state_reply(ost, cx, shown(&object))
}
