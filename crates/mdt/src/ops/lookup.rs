//! Lookup of a name in a directory: attributes, and locks to cache them and the name.

use crate::{Mdt, grants, tree};
use proto::msg::{LookupReq, ObjectRep};
use rules::Caller;
use rules::access::EXECUTE;
use rules::names;
use target::{Cx, Reply, Stop};

/// Executes a lookup. A name that does not exist gives a success without attributes, so that the client can cache that, too.
pub fn lookup(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &LookupReq) -> Result<Reply, Stop> {
    let caller = Caller::new(request.cred.as_ref());
    let want = request.want.unwrap_or_default();
    let parent = tree::dir(cx, request.parent)?;
    caller.need(&parent.inode, EXECUTE)?;
    let found = match &request.name[..] {
        b"." => Some(parent.clone()),
        b".." => Some(tree::node(cx, parent.inode.parent())?),
        name => {
            names::check(name)?;
            match mdt.place(cx, parent.ino, name)?.entry {
                Some(entry) => Some(tree::of_entry(cx, &entry)?),
                None => None,
            }
        }
    };
    let attr = match &found {
        Some(node) => Some(grants::fresh_attr(cx, node)?),
        None => None,
    };
    let locks = grants::grant(cx, &want, found.as_ref().map(|node| &node.inode), Some(parent.fid()));
    Ok(Reply::new(&ObjectRep {
        attr,
        parent_attr: Some(parent.inode.attr()),
        locks,
        symlink: found.map(|node| node.inode.symlink).unwrap_or_default(),
        ..ObjectRep::default()
    }))
}
