//! Allocation of FID sequences to clients. This target gets ranges of sequences from the MGS, which never gives one twice.
//! The reply to a client waits until the grant is durable.

use crate::Mdt;
use bytes::Bytes;
use proto::msg::{SeqAllocRep, SeqRangeRep, SeqRangeReq, SequenceRange};
use proto::{Errno, Fid, Opcode, TargetIndex, TargetKind, TargetName};
use schema::mdt::SeqRange;
use schema::{MdtState, SeqGrant};
use target::{Cx, LogLevel, Reply, Stop};

/// Below this number of remaining sequences, the target prefetches another range.
pub const LOW: u64 = 16;

/// Grants a sequence to the client.
pub fn seq_alloc(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    let uuid = cx.client().ok_or(Errno::ENOTCONN)?;
    let mut state = cx.get::<MdtState>(&())?.unwrap_or_default();
    if left(&state) == 0 {
        fetch(cx, &mut state, false)?;
    }
    let range = state.sequences.iter_mut().find(|range| !range.is_empty()).ok_or(Errno::EIO)?;
    let seq = range.start;
    range.start += 1;
    state.sequences.retain(|range| !range.is_empty());
    let low = left(&state) < LOW;
    cx.put::<MdtState>(&(), &state);
    cx.put::<SeqGrant>(&seq, &SeqGrant::new(uuid));
    mdt.sequences = state.sequences;
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

/// Whether the configuration lacks a range of this target: an older copy of the MGT's store was accepted. Only an MGS since
/// version 0.3.0 publishes ranges.
pub fn is_unpublished(cx: &Cx<'_>, state: &MdtState) -> bool {
    let (published, mdt) = (&cx.config().sequences, cx.name().index.0);
    let is_in = |range: &SeqRange| {
        published.iter().any(|known| known.mdt == mdt && known.start <= range.start && range.end <= known.end)
    };
    !published.is_empty() && !state.allocated.iter().all(is_in)
}

/// Reports this target's ranges to the MGS and fetches another one into `state`, which the caller writes. `report_only`: none is
/// needed.
pub fn fetch(cx: &mut Cx<'_>, state: &mut MdtState, report_only: bool) -> Result<(), Stop> {
    let mgs = TargetName { fsname: String::new(), kind: TargetKind::Mgt, index: TargetIndex(0) };
    let mdt = cx.name().index.0;
    let allocated =
        state.allocated.iter().map(|range| SequenceRange { start: range.start, end: range.end, mdt }).collect();
    let request = SeqRangeReq { target: cx.name().to_string(), allocated, report_only };
    let frame = cx.upstream(&mgs, Opcode::MgsSeqRange, &request, Bytes::new())?;
    Errno::from_status(frame.header.status)?;
    let rep: SeqRangeRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    if mdt != 0 && !rep.published {
        cx.log(
            LogLevel::Error,
            "the MGS is of a version before 0.3.0, which knows one metadata target: upgrade it first".to_owned(),
        );
        return Err(Errno::EOPNOTSUPP.into());
    }
    if report_only && rep.start == rep.end {
        return Ok(());
    }
    if rep.start < Fid::SEQ_FIRST || rep.end <= rep.start || rep.end > Fid::SEQ_LAST + 1 {
        return Err(Errno::EPROTO.into());
    }
    let range = SeqRange { start: rep.start, end: rep.end };
    state.sequences.push(range);
    match state.allocated.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => state.allocated.push(range),
    }
    Ok(())
}
