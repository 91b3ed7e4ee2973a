//! Closes of open files, many in one request. A close never waits for a lock, because the holder of the lock may be waiting
//! for the close.

use crate::Mdt;
use crate::ops::unlink::Gone;
use crate::tree::{self, Node};
use proto::msg::{CLOSES_MAX, Close, CloseRep, CloseReq, CloseResult};
use proto::{Errno, Fid, Operation};
use schema::Orphan;
use target::{Cx, Reply, ShareKey, Stop};

/// What one close of a request refers to.
enum CloseTarget {
    /// The handle is unknown, or the object cannot be read.
    Failed(Errno),
    /// An open file: its current handle (0: none) and the FID of the object. The first close of an object also has its
    /// node, unless the object is gone.
    Open(u64, Fid, Option<Node>),
}

/// Executes closes. Handle 0 stands for a local open that was never reported: there is nothing to close, but the access time
/// counts. Any other unknown handle was closed before: `ESTALE`. The last close of an object without a name removes the
/// object.
///
/// The reply record has a bit for each close that failed.
pub fn close(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &CloseReq) -> Result<Reply, Stop> {
    let closes = &request.closes;
    if closes.is_empty() || closes.len() > CLOSES_MAX {
        return Err(Errno::EINVAL.into());
    }
    let mut found = find(mdt, cx, closes)?;
    let mut rep = CloseRep::default();
    let mut failed: u64 = 0;
    let mut changed: Vec<(Node, Gone)> = Vec::new();
    for index in 0..found.len() {
        let mut result = CloseResult { index: index as u32, ..CloseResult::default() };
        match &mut found[index] {
            CloseTarget::Failed(errno) => {
                failed |= 1 << index;
                result.status = -errno.raw();
            }
            CloseTarget::Open(_, _, node) => {
                let Some(mut node) = node.take() else { continue };
                let gone = write(mdt, cx, &mut node, closes, &found)?;
                if gone == Gone::No {
                    continue;
                }
                // Another client may have removed the last name. This reply makes the client drop its locks on the file
                // and its dirty data, so it must wait until no crash can undo that removal.
                cx.depends_on_others(ShareKey::object(node.fid()));
                changed.push((node, gone));
                result.destroyed = true;
            }
        }
        rep.results.push(result);
    }
    for found in found {
        if let CloseTarget::Open(handle, ..) = found
            && handle != 0
        {
            mdt.opens.remove(handle);
            cx.count(Operation::Close);
        }
    }
    for (node, gone) in changed {
        mdt.link_dropped(cx, &node, gone);
    }
    Ok(Reply::new(&rep).with_record(failed))
}

/// Looks up all handles and objects, so that all missing records are loaded together.
fn find(mdt: &Mdt, cx: &mut Cx<'_>, closes: &[Close]) -> Result<Vec<CloseTarget>, Stop> {
    let mut found: Vec<CloseTarget> = Vec::with_capacity(closes.len());
    let mut waits = false;
    for close in closes {
        let opened = match close.handle {
            0 => Some((0, close.fid)),
            handle => mdt.opens.find(cx.export(), handle).map(|(handle, file)| (handle, file.fid)),
        };
        let again = |handle: u64| {
            let is = |earlier: &CloseTarget| matches!(earlier, CloseTarget::Open(other, ..) if *other == handle);
            handle != 0 && found.iter().any(is)
        };
        let Some((handle, fid)) = opened.filter(|(handle, _)| !again(*handle)) else {
            found.push(CloseTarget::Failed(Errno::ESTALE));
            continue;
        };
        let known = |earlier: &CloseTarget| matches!(earlier, CloseTarget::Open(_, other, _) if *other == fid);
        let node = if found.iter().any(known) { Ok(None) } else { tree::find(cx, fid) };
        found.push(match node {
            Ok(node) => CloseTarget::Open(handle, fid, node),
            Err(Stop::Errno(errno)) => CloseTarget::Failed(errno),
            Err(Stop::Wait) => {
                waits = true;
                CloseTarget::Open(handle, fid, None)
            }
        });
    }
    if waits { Err(Stop::Wait) } else { Ok(found) }
}

/// Writes the changes that all closes of one object make.
fn write(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut Node, closes: &[Close], found: &[CloseTarget]) -> Result<Gone, Stop> {
    let fid = node.fid();
    let own = |pair: &(&Close, &CloseTarget)| matches!(pair.1, CloseTarget::Open(_, other, _) if *other == fid);
    let (mut count, mut atime_ns) = (0, 0);
    for (close, _) in closes.iter().zip(found).filter(own) {
        count += u32::from(close.handle != 0);
        atime_ns = atime_ns.max(close.atime_ns);
    }
    if node.inode.nlink == 0 && count > 0 && mdt.opens.count(fid) == count {
        cx.delete::<Orphan>(&fid);
        return Ok(if tree::destroy(mdt, cx, node)? { Gone::WithObjects } else { Gone::Destroyed });
    }
    if atime_ns != 0 && atime_ns > node.inode.atime_ns {
        // The version stays: no change depends on the access time.
        node.inode.atime_ns = atime_ns;
        cx.put(&node.ino, &node.inode);
    }
    Ok(Gone::No)
}
