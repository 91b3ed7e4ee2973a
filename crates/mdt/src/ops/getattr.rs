//! Attributes by FID. The reply has the target of a symbolic link, so this is also `readlink`.

use crate::{Mdt, grants, tree};
use proto::msg::{GetattrReq, ObjectRep, bits};
use target::{Cx, Reply, Stop};

/// Executes a getattr. Checks no permission: a client that knows the FID has walked the directories above.
pub fn getattr(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &GetattrReq) -> Result<Reply, Stop> {
    let node = tree::node(cx, request.fid)?;
    let attr = grants::fresh_attr(cx, &node)?;
    let locks = grants::grant(cx, &request.want.unwrap_or_default(), Some(&node.inode), None);
    if request.confirms_layout && !node.inode.is_resident() {
        let moves = grants::holds(cx, request.fid, bits::LAYOUT);
        mdt.swaps.confirmed(request.fid, cx.export(), moves);
    }
    Ok(Reply::new(&ObjectRep { attr: Some(attr), locks, symlink: node.inode.symlink, ..ObjectRep::default() }))
}
