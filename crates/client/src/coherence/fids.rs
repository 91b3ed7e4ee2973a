//! FIDs of new objects and of nodes.

use proto::msg::{SeqAllocRep, SeqAllocReq};
use proto::{Errno, Fid, Opcode};

use crate::base::{Dest, Step, WaitKey};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::op::Task;
use crate::coherence::request::Request;

/// The FID of a node number.
pub(crate) fn fid_of(ino: u64) -> Run<Fid> {
    Fid::from_ino(ino).ok_or(Stop::Errno(Errno::ESTALE))
}

/// The FID for a new object; the same on every attempt.
pub(crate) fn new_fid(cx: &mut Cx<'_>) -> Run<Fid> {
    if let Some(ino) = cx.memo(Step::NewFid) {
        return fid_of(ino);
    }
    match cx.w.sequences.take() {
        Some(fid) => {
            if cx.w.sequences.wants_more() {
                cx.w.sequences.requested = true;
                cx.spawn(Task::Sequence);
            }
            cx.set_memo(Step::NewFid, fid.ino());
            Ok(fid)
        }
        None => {
            if let (true, Some(errno)) = (cx.began(Step::Sequence), cx.w.sequences.failed) {
                return Err(Stop::Errno(errno));
            }
            cx.set_memo(Step::Sequence, 0);
            if !cx.w.sequences.requested {
                cx.w.sequences.requested = true;
                cx.w.sequences.failed = None;
                cx.spawn(Task::Sequence);
            }
            Err(cx.wait(WaitKey::Sequence))
        }
    }
}

/// Background: fetches a further sequence of FIDs.
pub(crate) fn sequence(cx: &mut Cx<'_>) -> Run<()> {
    let frame = cx.rpc(Step::Main, Dest::Mdt(0), Opcode::SeqAlloc, |_, _| Request::new(&SeqAllocReq {}))?;
    let rep: SeqAllocRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    cx.w.sequences.granted(rep.seq, rep.width);
    cx.w.wake(WaitKey::Sequence);
    Ok(())
}
