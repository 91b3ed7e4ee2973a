//! Attributes by FID. The reply has the target of a symbolic link, so this is also `readlink`.

use crate::{Mdt, grants, tree};
use proto::msg::{DirName, GetattrReq, NameState, ObjectRep, bits};
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
    let name_state = match &request.name {
        Some(DirName { parent, name }) if node.inode.links.contains(*parent, name) => NameState::Held,
        Some(_) if !node.inode.links.overflow => NameState::Lost,
        _ => NameState::Unknown,
    };
    let (attr, symlink, name_state) = (Some(attr), node.inode.symlink, name_state as i32);
    Ok(Reply::new(&ObjectRep { attr, locks, symlink, name_state, ..ObjectRep::default() }))
}
