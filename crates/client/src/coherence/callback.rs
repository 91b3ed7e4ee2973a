//! Lock callbacks: what a lock covers is written back and invalidated, then the lock goes back. Locks that this client
//! drops on its own go the same way.

use proto::msg::{Policy, ResourceKind, bits};

use crate::base::{Dest, Step};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::{data, kernel, local_opens, locks, metadata_write_back};

/// Gives a lock back: what it covers is flushed, the kernel's copy dropped, then the lock is cancelled.
pub(crate) fn callback(cx: &mut Cx<'_>, dest: Dest, cookie: u64) -> Run<()> {
    let Some(lock) = cx.w.locks.get(dest).and_then(|locks| locks.get(cookie)) else { return Ok(()) };
    cx.op.urgent = true;
    let result = (|| {
        metadata_write_back::give_back(cx, dest, &lock)?;
        local_opens::give_back(cx, &lock)?;
        if locks::is_data(&lock) {
            data::flush_for_lock(cx, dest, &lock)?;
        }
        if let (ResourceKind::Inode, Policy::Bits(held)) = (lock.resource.kind(), lock.policy)
            && held & (bits::UPDATE | bits::LOOKUP | bits::PERM) != 0
        {
            // The kernel knows stripes by their master.
            let ino = cx.w.nodes.master(lock.resource.fid.ino());
            let wanted = cx.w.locks.is_wanted(dest, cookie);
            let names = if held & bits::LOOKUP != 0 { kernel::forget_names(cx, ino, wanted) } else { Ok(()) };
            cx.invalidate_kernel(Step::Main, ino, 0, 0)?;
            names?;
        }
        Ok(())
    })();
    if result == Err(Stop::Wait) {
        return result;
    }
    // The lock goes back even if writing failed: fsync and close report the error.
    if let Some(locks) = cx.w.locks.get_mut(dest) {
        locks.cleanup_done(cookie);
    }
    locks::pump(cx.w, dest);
    Ok(())
}
