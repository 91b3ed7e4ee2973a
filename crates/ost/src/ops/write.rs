//! Write: the bytes go into the data file first, then size, blocks and times into the record.
//!
//! The reply is sent when the bytes are in the data file and the change is accepted. Both become durable together, because
//! the machine syncs the files that a group's changes have written before it commits the group. Until then the client keeps
//! the request.
//!
//! Space: the client pays from its grant (`grant_used`). The rest must fit into space that is not granted, unless the bytes
//! overwrite allocated space. The medium has the last word: if it returns `ENOSPC`, so does the request, and no record is
//! written.

use proto::Errno;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::WriteReq;
use target::{Cx, DataOp, Reply, Request, Stop};

use super::{account, admit, before, begin, blocks, data, extent, finish, key_of, op_id, resource, state_reply, times};
use crate::Ost;
use crate::attrs::{lvb, take_times};

/// Runs one attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: WriteReq = cx.body(request)?;
    let key = key_of(&req.object)?;
    let bytes = request.bulk().clone();
    if bytes.len() > BRW_SIZE_MAX as usize {
        return Err(Errno::EINVAL.into());
    }
    let length = bytes.len() as u64;
    let range = extent(req.offset, length)?;
    admit(ost, cx, request, &key, req.lock, range)?;
    let before = before(ost, cx, &key)?;
    if req.sync {
        cx.hold_until_durable();
    }
    if length == 0 {
        return Ok(state_reply(ost, cx, lvb(before.object.as_ref())));
    }
    let end = req.offset + length;
    let in_place = before.object.as_ref().is_some_and(|o| end <= o.size && o.blocks.saturating_mul(512) >= o.size);
    if !in_place && !cx.is_replay() && ost.files.flight(op_id(cx, request)).is_none() {
        ost.grants.begin(cx.export(), request.xid(), length, req.grant_used)?;
    }

    let flight = begin(ost, cx, request, key, before.object.as_ref())?;
    let written = data(cx, DataOp::Write { file: flight.file, offset: req.offset, data: bytes })?;

    ost.stats.write(length);
    // The grant that a client claims when it reconnects does not include what its replays have spent.
    if !cx.is_replay() {
        ost.grants.spend(cx.export(), 0, req.grant_used);
    }
    account(ost, cx, request, &before, blocks(&written));
    ost.grants.raise(cx.export(), req.want_grant);
    cx.wrote(resource(&key), req.lvb.map_or(0, |lvb| lvb.size));
    let times = times(cx, req.lvb);
    Ok(finish(ost, cx, request, flight, before, (req.uid, req.gid), blocks(&written), |object| {
        object.size = object.size.max(end);
        take_times(object, &times);
    }))
}
