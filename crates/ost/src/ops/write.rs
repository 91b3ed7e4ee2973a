//! Write: the bytes go into the data file first, then size, space and times into the record.
//!
//! The reply leaves when the bytes are in the data file and the change is accepted; both are durable together, because the
//! machine syncs the files that a group's changes wrote before the group leaves. Until then the client keeps the request.
//!
//! Space: the client pays from its grant (`grant_used`). What it does not pay for must be open, unless the bytes have
//! their place already. What the medium says in the end counts: `ENOSPC` from it is the reply's, and nothing is recorded.

use proto::Errno;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::WriteReq;
use target::{Cx, DataOp, Reply, Request, Stop};

use super::{account, admit, before, begin, blocks, data, extent, finish, key_of, op_id, resource, state_reply, times};
use crate::Ost;
use crate::attrs::{lvb, take_times};

/// One attempt.
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
    // What a client holds when it comes back is told without what its replays paid before.
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
