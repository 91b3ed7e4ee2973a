//! `LdlmEnqueue`: locks on inodes and record locks. Granting and waiting is the lock manager's; here only what a metadata
//! target adds to it.

use crate::{Mdt, grants, tasks, tree};
use proto::Errno;
use proto::msg::{EnqueueRep, EnqueueReq, LockMode, Policy, Resource, ResourceKind, bits};
use target::{Cx, Reply, Stop};

/// See the module. Whoever locks the data of a resident file is told its size; whoever locks it for moving the data away
/// leaves a mark, so that objects of a move that was never finished are found when the file goes.
pub fn enqueue(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &EnqueueReq) -> Result<Reply, Stop> {
    let resource = request.resource;
    let wanted = match (ResourceKind::try_from(resource.kind), &request.policy) {
        (Ok(ResourceKind::Inode), Some(Policy::Bits(wanted))) => *wanted,
        (Ok(ResourceKind::Inode), None) if request.glimpse => bits::DOM,
        (Ok(ResourceKind::Flock), Some(Policy::Flock(_))) => 0,
        _ => return Err(Errno::EPROTO.into()),
    };
    if request.glimpse {
        let node = tree::node(cx, resource.fid)?;
        let mut lvb = grants::lvb(&node.inode);
        if let Some(held) = cx.glimpse(Resource::inode(resource.fid))?.pop() {
            lvb = held;
        }
        return Ok(Reply::new(&EnqueueRep { lvb: Some(lvb), ..EnqueueRep::default() }));
    }
    let mut reply = cx.enqueue(request)?;
    if wanted & bits::DOM != 0
        && reply.grant.is_some()
        && let Some(node) = tree::find(cx, resource.fid)?
    {
        // Without it, the data is not here (any more).
        reply.lvb = node.inode.is_resident().then(|| grants::lvb(&node.inode));
        let moves = request.mode == LockMode::Ex as i32 && wanted & bits::LAYOUT != 0;
        if moves && node.inode.is_resident() && (!node.inode.leaving || mdt.lacks_osts(&node.inode)) {
            tasks::mark_leaving(cx, resource.fid);
        }
    }
    mdt.stats.count("ldlm_enqueue");
    Ok(Reply::new(&reply))
}
