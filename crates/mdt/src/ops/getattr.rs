//! Attributes by FID. A symbolic link's target comes along, so this is also `readlink`.

use crate::{grants, tree};
use proto::msg::{GetattrReq, ObjectRep};
use target::{Cx, Reply, Stop};

/// See the module. Needs no permission: who knows the FID has been through its directories.
pub fn getattr(cx: &mut Cx<'_>, request: &GetattrReq) -> Result<Reply, Stop> {
    let node = tree::node(cx, request.fid)?;
    let attr = grants::fresh_attr(cx, &node)?;
    let locks = grants::grant(cx, &request.want.unwrap_or_default(), Some(&node.inode), None);
    Ok(Reply::new(&ObjectRep { attr: Some(attr), locks, symlink: node.inode.symlink, ..ObjectRep::default() }))
}
