//! Reconstruction of replies to requests that were executed and whose replies were lost with the target's memory.
//!
//! | request | what is rebuilt |
//! |---|---|
//! | create | attributes of the object, by the FID that the client chose; if it is gone again, those that it had, without links |
//! | setattr, setxattr, setlayout, link | attributes of the object; if it is gone, the recorded mode, without links; `ESTALE` if none was recorded |
//! | open | the recorded disposition; the object is opened again, by its FID if this client made it, otherwise by name |
//! | unlink, rename | nothing: the client drops what it has cached |
//! | close | the recorded status of each close; if a replay of the open made the handle again, it is closed now |
//! | write, punch | the current size and times of the data |
//! | batch | the recorded status of each change; the locks on objects that it made are granted |
//!
//! Reconstruction writes nothing: the changes of the request are durable already.

use crate::ops::{Change, create};
use crate::{Mdt, cross, grants, tasks, tree};
use proto::msg::{
    Attr, CloseRep, CloseReq, CloseResult, CreateOp, NamedObject, ObjectRep, ObjectStateRep, OpenOp, PunchReq, Reint,
    ReintReq, WriteReq, disposition,
};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFDIR, S_IFMT};
use target::{Cx, Executed, Reply, Request, Stop};

/// Rebuilds a reply.
pub fn reconstruct(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &Request, executed: &Executed) -> Result<Reply, Stop> {
    let reply = match request.opcode {
        Opcode::MdsReint => reint(mdt, cx, &request.decode()?, executed)?,
        Opcode::MdsBatch => super::batch::reconstruct(mdt, cx, &request.decode()?, executed.record)?,
        Opcode::MdsClose => {
            close_again(mdt, cx, &request.decode()?);
            closed(executed.record)
        }
        Opcode::ObjWrite => state(cx, request.decode::<WriteReq>()?.object.fid)?,
        Opcode::ObjPunch => state(cx, request.decode::<PunchReq>()?.object.fid)?,
        _ => Reply::new(&ObjectRep::default()),
    };
    Ok(reply.with_record(executed.record))
}

fn reint(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &ReintReq, executed: &Executed) -> Result<Reply, Stop> {
    let fid = match &request.op {
        Some(Reint::Open(op)) => return open(mdt, cx, op, executed),
        Some(Reint::Create(op)) if let Some(on) = op.mdt.filter(|mdt| *mdt != cx.name().index.0) => {
            return sent_on(cx, NamedObject { fid: op.fid, mode: S_IFDIR, mdt: on });
        }
        Some(Reint::Create(op)) => return created(mdt, cx, request, op),
        Some(Reint::Setattr(op)) => op.fid,
        Some(Reint::Setxattr(op)) => op.fid,
        Some(Reint::Setlayout(op)) => op.fid,
        Some(Reint::Relayout(op)) => op.fid,
        Some(Reint::Link(op)) if let Some(mdt) = cross::known_elsewhere(mdt, cx, op.fid) => {
            return sent_on(cx, NamedObject { fid: op.fid, mode: op.kind, mdt });
        }
        Some(Reint::Link(op)) => op.fid,
        Some(Reint::Unlink(_) | Reint::Rename(_)) | None => return Ok(Reply::new(&ObjectRep::default())),
    };
    let attr = tree::find(cx, fid)?.map_or_else(|| gone(fid, executed), |node| Some(grants::attr_for(cx, &node.inode)));
    match attr {
        None => Ok(Reply { status: -Errno::ESTALE.raw(), ..Reply::default() }),
        attr => Ok(Reply::new(&ObjectRep { attr, ..ObjectRep::default() })),
    }
}

fn sent_on(cx: &Cx<'_>, object: NamedObject) -> Result<Reply, Stop> {
    let elsewhere = Some(cross::sent_on(cx, object)?);
    Ok(Reply::new(&ObjectRep { elsewhere, ..ObjectRep::default() }))
}

/// A kernel rejects a reply in which the kind of the new object is not what it asked for, so an object that is gone again gets
/// the attributes that it had.
fn created(mdt: &Mdt, cx: &mut Cx<'_>, request: &ReintReq, op: &CreateOp) -> Result<Reply, Stop> {
    let (attr, symlink) = match tree::find(cx, op.fid)? {
        Some(node) => (grants::attr_for(cx, &node.inode), node.inode.symlink),
        None => {
            let parent = tree::find(cx, op.parent)?.map(|node| node.inode).unwrap_or_default();
            (create::gone(mdt, &Change::new(request), &parent, op), op.symlink.clone())
        }
    };
    Ok(Reply::new(&ObjectRep { attr: Some(attr), symlink, ..ObjectRep::default() }))
}

/// The record has a bit for each close that failed. Whatever the error was, nothing is open under that handle.
fn closed(failed: u64) -> Reply {
    let failed = (0..u64::BITS).filter(|index| failed & (1 << index) != 0);
    let results =
        failed.map(|index| CloseResult { index, status: -Errno::ESTALE.raw(), ..CloseResult::default() }).collect();
    Reply::new(&CloseRep { results })
}

/// Attributes for an object that was removed since, from the recorded mode. Older versions recorded no mode.
fn gone(fid: Fid, executed: &Executed) -> Option<Attr> {
    let mode = u32::try_from(executed.record).ok().filter(|mode| mode & S_IFMT != 0)?;
    Some(Attr { fid, mode, ..Attr::default() })
}

fn open(mdt: &mut Mdt, cx: &mut Cx<'_>, op: &OpenOp, executed: &Executed) -> Result<Reply, Stop> {
    let done = executed.record as u32;
    let node = match op.parent {
        Some(parent) if done & disposition::OPEN_CREATE == 0 => {
            let entry = match tree::find(cx, parent)? {
                Some(parent) => mdt.place(cx, &parent, &op.name)?.entry,
                None => None,
            };
            match entry {
                Some(entry) if entry.mdt.is_none() => Some(tree::of_entry(cx, &entry)?),
                _ => None,
            }
        }
        _ => tree::find(cx, op.fid)?,
    };
    // The open was lost with the server's memory, and another client then removed the object: there is nothing to open.
    let Some(node) = node else { return Ok(Reply { status: -Errno::ESTALE.raw(), ..Reply::default() }) };
    let attr = grants::fresh_attr(cx, &node)?;
    let handle = mdt.open_handle(cx, node.fid(), op, Some(executed.transno));
    Ok(Reply::new(&ObjectRep { attr: Some(attr), handle, disposition: done, ..ObjectRep::default() }))
}

/// Closes handles that the client has replayed, because it did not know that these closes were done.
fn close_again(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &CloseReq) {
    for close in &request.closes {
        if let Some((handle, file)) = mdt.opens.find(cx.export(), close.handle) {
            mdt.opens.remove(handle);
            tasks::nobody_has_open(cx, file.fid);
        }
    }
}

fn state(cx: &mut Cx<'_>, fid: Fid) -> Result<Reply, Stop> {
    let lvb = tree::find(cx, fid)?.map(|node| grants::lvb(&node.inode));
    Ok(Reply::new(&ObjectStateRep { lvb, grant: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Transno;

    #[test]
    fn nothing_is_said_of_what_was_not_recorded() {
        let executed = |record| Executed { transno: Transno(1), status: 0, record };
        assert_eq!(gone(Fid::ROOT, &executed(0)), None);
        assert_eq!(gone(Fid::ROOT, &executed(0o040_711)).map(|attr| attr.mode), Some(0o040_711));
    }
}
