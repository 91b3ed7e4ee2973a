//! Work without a caller: lock callbacks, closes, sequences, access times.

use bytes::Bytes;
use proto::connect::features;
use proto::msg::{Close, CloseRep, CloseReq, SeqAllocRep, SeqAllocReq, bits};
use proto::msg::{Policy, ResourceKind};
use proto::{Errno, Opcode, Transno, Xid};

use super::{fid_of, step};
use crate::closes::{Batch, Item};
use crate::cx::{Cx, Run, Stop};
use crate::file::Closing;
use crate::imports::Dest;
use crate::op::{Task, WaitKey};
use crate::world::World;
use crate::{closes, config, data, local_opens, locks, metadata_write_back};

/// A further sequence of FIDs.
pub(crate) fn sequence(cx: &mut Cx<'_>) -> Run<()> {
    let frame = cx.rpc(step::MAIN, Dest::Mdt(0), Opcode::SeqAlloc, || (SeqAllocReq {}, Bytes::new()))?;
    let rep: SeqAllocRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    cx.w.sequences.granted(rep.seq, rep.width);
    cx.w.wake(WaitKey::Sequence);
    Ok(())
}

/// A lock is to be given back: what it covers is flushed, the kernel's copy dropped, then it goes.
pub(crate) fn callback(cx: &mut Cx<'_>, dest: Dest, cookie: u64) -> Run<()> {
    let Some(lock) = cx.w.imports.get(dest).and_then(|target| target.locks.get(cookie)) else { return Ok(()) };
    cx.op.urgent = true;
    let result = (|| {
        metadata_write_back::give_back(cx, dest, &lock)?;
        local_opens::give_back(cx, dest, &lock)?;
        if locks::is_data(&lock) {
            data::flush_for_lock(cx, dest, &lock)?;
        }
        if let (ResourceKind::Inode, Policy::Bits(held)) = (lock.resource.kind(), lock.policy)
            && held & (bits::UPDATE | bits::LOOKUP | bits::PERM) != 0
        {
            let ino = lock.resource.fid.ino();
            let wanted = cx.w.imports.get(dest).is_some_and(|target| target.locks.is_wanted(cookie));
            let names = if held & bits::LOOKUP != 0 { super::kernel::forget_names(cx, ino, wanted) } else { Ok(()) };
            cx.invalidate_kernel(step::MAIN, ino, 0, 0)?;
            names?;
        }
        Ok(())
    })();
    if result == Err(Stop::Wait) {
        return result;
    }
    // Whatever happened to the data (an error is told to fsync and close), the lock goes.
    if let Some(target) = cx.w.imports.get_mut(dest) {
        target.locks.cleanup_done(cookie);
    }
    locks::pump(cx.w, dest);
    Ok(())
}

/// Tells a server what programs have open of an object.
pub(crate) fn publish(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    cx.op.urgent = true;
    let dest = cx.w.mdt_of(fid_of(ino)?);
    local_opens::publish_object(cx, dest, ino)
}

/// Tells a server what programs have closed.
pub(crate) fn close(cx: &mut Cx<'_>, batch: &Batch) -> Run<()> {
    if !cx.began(step::MAIN) {
        // It leaves now, before whoever waits for that runs again.
        cx.w.wake(WaitKey::Closes);
    }
    let reply = cx.start_rpc(step::MAIN, batch.dest, Opcode::MdsClose, |_, _| {
        let close = |item: &Item| Close { fid: item.closing.fid, handle: item.handle, atime_ns: item.atime_ns };
        (CloseReq { closes: batch.items.iter().map(close).collect() }, Bytes::new())
    });
    let (transno, rep) = match reply {
        None => return Err(Stop::Wait),
        Some(Ok(reply)) => (reply.header.transno, reply.frame().decode::<CloseRep>().ok()),
        Some(Err(_)) => (Transno(0), None),
    };
    let answered = rep.is_some();
    let mut results = rep.map(|rep| rep.results).unwrap_or_default();
    for (index, item) in batch.items.iter().enumerate() {
        let at = results.iter().position(|result| result.index as usize == index);
        let result = at.map(|at| results.swap_remove(at)).unwrap_or_default();
        let done = answered && result.status >= 0;
        if done {
            told(cx.w, item);
        }
        if result.destroyed {
            locks::destroyed(cx.w, batch.dest, item.closing.fid);
            data::discard(cx.w, item.closing.ino);
        }
        closes::closed(cx.w, &item.closing, if done { transno } else { Transno(0) });
    }
    closes::answered(cx.w, batch.dest);
    Ok(())
}

/// The server knows the access time that a close carried.
fn told(w: &mut World, item: &Item) {
    if let Some(node) = w.nodes.get_mut(item.closing.ino)
        && node.atime_ns.is_some_and(|atime| atime <= item.atime_ns)
    {
        if let Some(attr) = &mut node.attr {
            attr.atime_ns = attr.atime_ns.max(item.atime_ns);
        }
        node.atime_ns = None;
    }
}

/// An access time that no close carries travels as one, without a handle.
pub(crate) fn atime(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = fid_of(ino)?;
    let Some(atime_ns) = cx.w.nodes.get(ino).and_then(|node| node.atime_ns) else { return Ok(()) };
    if metadata_write_back::accessed(cx, ino, atime_ns)? {
        return Ok(());
    }
    metadata_write_back::settled(cx, ino)?;
    let dest = cx.w.mdt_of(fid);
    if cx.w.imports.get(dest).is_some_and(|target| target.has(features::OPEN_BY_FID))
        && let Some(node) = cx.w.nodes.get_mut(ino)
    {
        node.opens += 1;
        closes::add(cx.w, Closing { ino, fid, dest, open_xid: Xid(0) });
    }
    Ok(())
}

/// Background work failed.
pub(crate) fn failed(w: &mut World, task: &Task, errno: Errno) {
    match task {
        Task::Root => config::root_failed(w, errno),
        Task::Sequence => {
            w.sequences.asked = false;
            w.sequences.failed = Some(errno);
            w.log(format!("no new FIDs from {}: {errno}", w.target_name(Dest::Mdt(0))));
            // Who waits asks again.
            w.wake(WaitKey::Sequence);
        }
        Task::Listing { ino } => {
            if let Some(dir) = w.nodes.get_mut(*ino).and_then(|node| node.dir.as_mut()) {
                dir.fetching = false;
            }
        }
        // Whoever waits for it asks by himself.
        Task::Next { fh, ino, number, .. } => super::dir::next_is(w, *fh, *ino, *number, None),
        Task::Ahead { ino } => {
            if let Some(dir) = w.nodes.get_mut(*ino).and_then(|node| node.dir.as_mut()) {
                dir.sweep = None;
            }
        }
        Task::Config if !w.mounted => w.log(format!("the MGS gives no configuration: {errno}; trying on")),
        Task::Unmount => w.log(format!("unmount: {errno}")),
        _ => {}
    }
}
