//! A lock is wanted elsewhere, or has no use here any more: what it covers is written, told and dropped, and then it goes.

use proto::msg::{Policy, ResourceKind, bits};

use crate::base::{Dest, Step};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::{data, kernel, local_opens, locks, metadata_write_back};

/// A lock is to be given back: what it covers is flushed, the kernel's copy dropped, then it goes.
pub(crate) fn callback(cx: &mut Cx<'_>, dest: Dest, cookie: u64) -> Run<()> {
    let Some(lock) = cx.w.locks.get(dest).and_then(|locks| locks.get(cookie)) else { return Ok(()) };
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
            let wanted = cx.w.locks.get(dest).is_some_and(|locks| locks.is_wanted(cookie));
            let names = if held & bits::LOOKUP != 0 { kernel::forget_names(cx, ino, wanted) } else { Ok(()) };
            cx.invalidate_kernel(Step::Main, ino, 0, 0)?;
            names?;
        }
        Ok(())
    })();
    if result == Err(Stop::Wait) {
        return result;
    }
    // Whatever happened to the data (an error is told to fsync and close), the lock goes.
    if let Some(locks) = cx.w.locks.get_mut(dest) {
        locks.cleanup_done(cookie);
    }
    locks::pump(cx.w, dest);
    Ok(())
}
