//! Allocation of FID sequences to clients. This target gets ranges of sequences from the MGS, which never gives one twice.
//! The reply to a client waits until the grant is durable.

use crate::Mdt;
use bytes::Bytes;
use proto::msg::{SeqAllocRep, SeqRangeRep, SeqRangeReq};
use proto::{Errno, Fid, Opcode, TargetIndex, TargetKind, TargetName};
use schema::mdt::SeqRange;
use schema::{MdtState, SeqGrant};
use target::{Cx, Reply, Stop};

/// Below this number of remaining sequences, the target prefetches another range.
pub const LOW: u64 = 16;

/// Grants a sequence to the client.
pub fn seq_alloc(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    let uuid = cx.client().ok_or(Errno::ENOTCONN)?;
    let mut state = cx.get::<MdtState>(&())?.unwrap_or_default();
    if left(&state) == 0 {
        fetch(cx, &mut state)?;
    }
    let range = state.sequences.iter_mut().find(|range| !range.is_empty()).ok_or(Errno::EIO)?;
    let seq = range.start;
    range.start += 1;
    state.sequences.retain(|range| !range.is_empty());
    let low = left(&state) < LOW;
    cx.put::<MdtState>(&(), &state);
    cx.put::<SeqGrant>(&seq, &SeqGrant::new(uuid));
    if let Some(look) = &mut mdt.strays {
        look.granted.insert(seq);
    }
    cx.hold_until_durable();
    if low {
        mdt.prefetch_sequences(cx);
    }
    Ok(Reply::new(&SeqAllocRep { seq, width: Fid::OID_MAX }))
}

/// Drops the remaining sequences when an older copy of the store is accepted. Clients may have been granted some of them after
/// the copy was made.
pub fn drop_ranges(cx: &mut Cx<'_>) -> Result<(), Stop> {
    if let Some(mut state) = cx.get::<MdtState>(&())?
        && !state.sequences.is_empty()
    {
        state.sequences.clear();
        cx.put::<MdtState>(&(), &state);
    }
    Ok(())
}

/// The number of sequences that can be granted before another range is needed.
pub fn left(state: &MdtState) -> u64 {
    state.sequences.iter().map(SeqRange::len).sum()
}

/// Fetches a range from the MGS into `state`, which the caller writes.
pub fn fetch(cx: &mut Cx<'_>, state: &mut MdtState) -> Result<(), Stop> {
    let mgs = TargetName { fsname: String::new(), kind: TargetKind::Mgt, index: TargetIndex(0) };
    let request = SeqRangeReq { target: cx.name().to_string() };
    let frame = cx.upstream(&mgs, Opcode::MgsSeqRange, &request, Bytes::new())?;
    Errno::from_status(frame.header.status)?;
    let range: SeqRangeRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    if range.start < Fid::SEQ_FIRST || range.end <= range.start || range.end > Fid::SEQ_LAST + 1 {
        return Err(Errno::EPROTO.into());
    }
    state.sequences.push(SeqRange { start: range.start, end: range.end });
    Ok(())
}
