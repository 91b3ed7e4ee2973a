//! FIDs of new objects and of nodes.

use proto::msg::{SeqAllocRep, SeqAllocReq};
use proto::{Errno, Fid, Opcode};

use crate::base::{Dest, Step, WaitKey};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::op::Task;
use crate::coherence::request::Request;
use crate::coherence::world::World;

/// The FID of a node number.
pub(crate) fn fid_of(ino: u64) -> Run<Fid> {
    Fid::from_ino(ino).ok_or(Stop::Errno(Errno::ESTALE))
}

/// The FID for a new object on this metadata target; the same on every attempt.
pub(crate) fn new_fid(cx: &mut Cx<'_>, dest: Dest) -> Run<Fid> {
    numbered(cx, dest, 0)
}

fn numbered(cx: &mut Cx<'_>, dest: Dest, number: u32) -> Run<Fid> {
    if let Some(ino) = cx.memo(Step::NewFid(number)) {
        return fid_of(ino);
    }
    let began = cx.began(Step::Sequence(dest));
    let sequences = cx.w.sequences.entry(dest).or_default();
    let fid = sequences.take();
    if let (None, true, Some(errno)) = (fid, began, sequences.failed) {
        return Err(Stop::Errno(errno));
    }
    if sequences.wants_more() || fid.is_none() && !sequences.requested {
        sequences.requested = true;
        sequences.failed = None;
        cx.spawn(Task::Sequence(dest));
    }
    match fid {
        Some(fid) => {
            cx.set_memo(Step::NewFid(number), fid.ino());
            Ok(fid)
        }
        None => {
            cx.set_memo(Step::Sequence(dest), 0);
            Err(cx.wait(WaitKey::Sequence(dest)))
        }
    }
}

/// FIDs for new objects on these metadata targets, of which several may be the same; the same on every attempt.
pub(crate) fn new_fids(cx: &mut Cx<'_>, mdts: &[u32]) -> Run<Vec<Fid>> {
    // Those that have to be fetched are fetched at once.
    let fids: Vec<Run<Fid>> = (0..).zip(mdts).map(|(number, mdt)| numbered(cx, Dest::Mdt(*mdt), number)).collect();
    fids.into_iter().collect()
}

/// Starts to fetch the first sequence of a metadata target, unless there is one.
pub(crate) fn prepare(w: &mut World, dest: Dest) {
    let sequences = w.sequences.entry(dest).or_default();
    if !sequences.requested {
        sequences.requested = true;
        w.spawn(Task::Sequence(dest));
    }
}

/// The operation that took this FID has ended.
pub(crate) fn settled(w: &mut World, fid: Fid) {
    let dest = w.mdt_of(fid);
    if let Some(sequences) = w.sequences.get_mut(&dest) {
        sequences.settled(fid);
    }
}

/// Background: fetches a further sequence of FIDs.
pub(crate) fn sequence(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    let frame = cx.rpc(Step::Main, dest, Opcode::SeqAlloc, |_, _| Request::new(&SeqAllocReq {}))?;
    let rep: SeqAllocRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    if let Dest::Mdt(index) = dest {
        cx.w.fld.grant(rep.seq, index);
    }
    cx.w.sequences.entry(dest).or_default().granted(rep.seq, rep.width);
    cx.w.wake(WaitKey::Sequence(dest));
    Ok(())
}

/// No sequence could be fetched. Operations that wait for one request it again.
pub(crate) fn sequence_failed(w: &mut World, dest: Dest, errno: Errno) {
    let sequences = w.sequences.entry(dest).or_default();
    sequences.requested = false;
    sequences.failed = Some(errno);
    w.log(format!("no new FIDs from {}: {errno}", w.target_name(dest)));
    w.wake(WaitKey::Sequence(dest));
}
