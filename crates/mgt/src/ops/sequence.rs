//! Sequence ranges: allocates the FID sequences that a metadata target may grant to clients. The allocation is durable before
//! it is answered, and a range is never allocated twice: if the reply is lost, the range is unused for ever.

use proto::msg::{SeqRangeRep, SeqRangeReq};
use proto::{Errno, Fid, TargetKind, TargetName};
use target::{Cx, Reply, Request, Stop};

use crate::Mgt;
use crate::table::Table;

/// Sequences in one range.
pub const WIDTH: u64 = 0x40_0000;

/// Ranges that are skipped when an older copy of the store is accepted: more than were allocated since the copy was made.
const SKIPPED: u64 = 64;

/// Versions of a configuration that are skipped at the same time, because peers only accept versions higher than the last one
/// that they got.
const VERSIONS_SKIPPED: u64 = 1 << 32;

/// Skips the ranges and the versions that may have been used after the store was copied.
pub fn skip(table: &mut Table, cx: &mut Cx<'_>) {
    for (fsname, fs) in table {
        let next = fs.record.next_sequence.max(Fid::SEQ_FIRST) + SKIPPED * WIDTH;
        fs.record.next_sequence = next.min(Fid::SEQ_LAST + 1);
        fs.record.config_version += VERSIONS_SKIPPED;
        cx.put(fsname, &fs.record);
    }
}

/// Runs one attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: SeqRangeReq = request.decode()?;
    let name: TargetName = req.target.parse().map_err(|_| Errno::EINVAL)?;
    if name.kind != TargetKind::Mdt {
        return Err(Errno::EINVAL.into());
    }
    let fs = mgt.table.get_mut(&name.fsname).ok_or(Errno::ENOENT)?;
    if !fs.targets.contains_key(&req.target) {
        return Err(Errno::ENOENT.into());
    }
    let start = fs.record.next_sequence.max(Fid::SEQ_FIRST);
    let end = (start + WIDTH).min(Fid::SEQ_LAST + 1);
    if start >= end {
        return Err(Errno::ENOSPC.into());
    }

    cx.hold_until_durable();
    fs.record.next_sequence = end;
    cx.put(&name.fsname, &fs.record);
    Ok(Reply::new(&SeqRangeRep { start, end }))
}
