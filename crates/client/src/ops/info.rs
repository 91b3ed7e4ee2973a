//! Questions about the file system: space, identities, layouts.

use bytes::Bytes;
use proto::msg::{Fid2pathRep, Fid2pathReq, Layout, Reint, ReintReq, SetlayoutKind, SetlayoutOp, StatfsRep, StatfsReq};
use proto::{Errno, Fid, Opcode};

use super::{attributes, fid_of, step, walk, writable};
use crate::api::Answer;
use crate::cx::{Cx, Run, Stop};
use crate::imports::Dest;

/// Block size of `statfs`.
const BLOCK: u64 = 4096;

/// Asks targets for their space, all at once; those that are away are not waited for.
fn space(cx: &mut Cx<'_>, wait_for: impl Fn(Dest) -> bool) -> Run<Vec<(Dest, Result<StatfsRep, Errno>)>> {
    let mut missing = false;
    let mut answers = Vec::new();
    for (at, dest) in cx.w.imports.dests().into_iter().enumerate() {
        let opcode = match dest {
            Dest::Mgs => continue,
            Dest::Mdt(_) => Opcode::MdsStatfs,
            Dest::Ost(_) => Opcode::ObjStatfs,
        };
        let step = step::MANY + at as u64;
        let away = !cx.w.imports.get(dest).is_some_and(|target| target.is_full());
        if away && !wait_for(dest) && !cx.replied(step) {
            answers.push((dest, Err(Errno::ENOTCONN)));
            continue;
        }
        match cx.start_rpc(step, dest, opcode, |_, _| (StatfsReq { want_grant: 0 }, Bytes::new())) {
            None => missing = true,
            Some(Err(errno)) => answers.push((dest, Err(errno))),
            Some(Ok(reply)) => {
                let rep = reply.frame().decode::<StatfsRep>().map_err(|_| Errno::EPROTO);
                answers.push((dest, rep));
            }
        }
    }
    if missing { Err(Stop::Wait) } else { Ok(answers) }
}

/// `Statfs`: bytes of the object targets, files of the metadata targets. Without object targets, bytes of the latter.
pub(crate) fn statfs(cx: &mut Cx<'_>) -> Run<Answer> {
    let answers = space(cx, |dest| dest == Dest::Mdt(0))?;
    let (mut data, mut metadata) = (StatfsRep::default(), StatfsRep::default());
    for (dest, rep) in &answers {
        let sum = if let Dest::Ost(_) = dest { &mut data } else { &mut metadata };
        match rep {
            Ok(rep) => {
                sum.total = sum.total.saturating_add(rep.total);
                sum.free = sum.free.saturating_add(rep.free);
                sum.available = sum.available.saturating_add(rep.available);
                sum.files = sum.files.saturating_add(rep.files);
                sum.files_free = sum.files_free.saturating_add(rep.files_free);
            }
            Err(errno) if *dest == Dest::Mdt(0) => return Err((*errno).into()),
            Err(_) => {}
        }
    }
    let bytes = if data.total > 0 { &data } else { &metadata };
    Ok(Answer::Space {
        block_size: BLOCK as u32,
        blocks: bytes.total / BLOCK,
        free: bytes.free / BLOCK,
        available: bytes.available / BLOCK,
        files: metadata.files,
        files_free: metadata.files_free,
    })
}

/// `TargetSpace`.
pub(crate) fn target_space(cx: &mut Cx<'_>) -> Run<Answer> {
    let answers = space(cx, |_| false)?;
    let mut named: Vec<_> = answers.into_iter().map(|(dest, rep)| (dest, cx.w.target_name(dest), rep)).collect();
    named.sort_by_key(|(dest, ..)| *dest);
    Ok(Answer::Targets(named.into_iter().map(|(_, name, rep)| (name, rep)).collect()))
}

/// `PathToFid`.
pub(crate) fn path_to_fid(ino: u64) -> Run<Answer> {
    Ok(Answer::Fid(fid_of(ino)?))
}

/// `FidToPath`.
pub(crate) fn fid_to_path(cx: &mut Cx<'_>, fid: Fid) -> Run<Answer> {
    let dest = cx.w.mdt_of(fid);
    let cred = cx.op.cred.clone();
    let frame = cx.rpc(step::MAIN, dest, Opcode::MdsFid2path, || {
        (Fid2pathReq { fid, cred: Some((*cred).clone()) }, Bytes::new())
    })?;
    let rep: Fid2pathRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    Ok(Answer::Paths(rep.paths))
}

/// `GetLayout`.
pub(crate) fn get_layout(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    walk(cx, ino)?;
    crate::behind::settled(cx, ino)?;
    Ok(Answer::Layout(attributes(cx, ino, false)?.layout))
}

/// `SetLayout`. `EOPNOTSUPP`: the server is of a version that knows no lists of targets, and has set the rest.
pub(crate) fn set_layout(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    writable(cx)?;
    if !wish.stripe_size.is_multiple_of(64 << 10) || wish.want_count < -1 || wish.want_first < -1 {
        return Err(Errno::EINVAL.into());
    }
    let dest = cx.w.mdt_of(fid);
    cx.changing(step::CHANGING, ino);
    let result = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.choosing = true;
        let kind = SetlayoutKind::Set as i32;
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: None,
            op: Some(Reint::Setlayout(SetlayoutOp { fid, kind, layout: Some(wish.clone()), lvb: None })),
        }
    });
    let rep = super::stale_if_gone(result)?;
    let set = rep.attr.as_ref().and_then(|attr| attr.layout.as_ref());
    if !wish.osts.is_empty() && set.is_none_or(|set| set.osts != wish.osts) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(Answer::Done)
}
