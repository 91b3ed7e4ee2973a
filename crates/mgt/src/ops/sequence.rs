//! Sequence ranges: allocates the FID sequences that a metadata target may grant to clients. The allocation is durable before
//! it is answered, and a range is never allocated twice: if the reply is lost, the range is unused for ever.
//!
//! The configuration publishes the target of each range (`Config::sequences`, Lustre's FLDB). If an older copy of the store is
//! accepted, the ranges that were allocated since then are skipped, and their targets report them.

use proto::msg::{SeqRangeRep, SeqRangeReq, SequenceRange};
use proto::{Errno, Fid, TargetKind, TargetName};
use schema::FsRec;
use target::{Cx, Reply, Request, Stop, format_features};

use crate::Mgt;
use crate::ops::register;
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
    let fs = mgt.table.get(&name.fsname).ok_or(Errno::ENOENT)?;
    if !fs.targets.contains_key(&req.target) {
        return Err(Errno::ENOENT.into());
    }
    let mdt = name.index.0;
    let mut record = fs.record.clone();
    for reported in &req.allocated {
        take_over(&mut record, mdt, reported)?;
    }
    let mut reply = SeqRangeRep { published: true, ..SeqRangeRep::default() };
    if !req.report_only {
        reply.start = record.next_sequence.max(Fid::SEQ_FIRST);
        reply.end = (reply.start + WIDTH).min(Fid::SEQ_LAST + 1);
        if reply.start >= reply.end {
            return Err(Errno::ENOSPC.into());
        }
        record.next_sequence = reply.end;
        add(&mut record.sequences, SequenceRange { start: reply.start, end: reply.end, mdt });
    }

    // Also if nothing changes: what was recorded for an earlier request may not be durable yet.
    cx.hold_until_durable();
    if record != fs.record {
        if record.sequences.iter().any(|range| range.mdt != 0) {
            // A version that does not know the ranges would drop them, and give all to MDT0000.
            cx.needs_feature(format_features::REMOTE_DIR);
        }
        mgt.table.entry(name.fsname.clone()).or_default().record = record;
        register::changed(mgt, cx, &name.fsname);
    }
    Ok(Reply::new(&reply))
}

/// Records a range that a target reports. It may lie among those that it is known to have, or among those that were skipped.
fn take_over(record: &mut FsRec, mdt: u32, reported: &SequenceRange) -> Result<(), Errno> {
    let mut whole = SequenceRange { mdt, ..*reported };
    if whole.start < Fid::SEQ_FIRST || whole.start >= whole.end || whole.end > record.next_sequence {
        return Err(Errno::EINVAL);
    }
    let meets = |range: &SequenceRange| range.start < reported.end && reported.start < range.end;
    for range in record.sequences.iter().filter(|range| meets(range)) {
        if range.mdt != mdt {
            return Err(Errno::EINVAL);
        }
        whole.start = whole.start.min(range.start);
        whole.end = whole.end.max(range.end);
    }
    record.sequences.retain(|range| !meets(range));
    add(&mut record.sequences, whole);
    Ok(())
}

/// Adds a range that overlaps no other, and joins adjacent ones of the same target.
fn add(ranges: &mut Vec<SequenceRange>, range: SequenceRange) {
    ranges.push(range);
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let joins = before.mdt == next.mdt && before.end == next.start;
        if joins {
            before.end = next.end;
        }
        joins
    });
}
