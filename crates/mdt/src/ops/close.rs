//! The last close of a handle. Waits for no lock, ever: whoever holds one may be waiting for this.

use crate::ops::unlink::Gone;
use crate::{Mdt, tree};
use proto::Errno;
use proto::msg::{CloseReq, ObjectRep};
use schema::Orphan;
use target::{Cx, Reply, Stop};

/// See the module. A handle that is not known was closed before: `ESTALE`. An object without a name goes with its last close.
pub fn close(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &CloseReq) -> Result<Reply, Stop> {
    let (handle, file) = mdt.opens.find(cx.export(), request.handle).ok_or(Errno::ESTALE)?;
    let node = tree::find(cx, file.fid)?;
    let mut attr = None;
    let mut gone = Gone::No;
    if let Some(mut node) = node {
        if node.inode.nlink == 0 && mdt.opens.count(file.fid) == 1 {
            cx.delete::<Orphan>(&file.fid);
            gone = if tree::destroy(cx, &node)? { Gone::WithObjects } else { Gone::Here };
        } else if request.atime_ns != 0 && request.atime_ns > node.inode.atime_ns {
            node.inode.atime_ns = request.atime_ns;
            node.put(cx);
        }
        attr = Some(node.inode.attr());
        mdt.link_dropped(cx, &node, gone);
    }
    mdt.opens.remove(handle);
    mdt.stats.count("close");
    Ok(Reply::new(&ObjectRep { attr, destroyed: gone != Gone::No, ..ObjectRep::default() }))
}
