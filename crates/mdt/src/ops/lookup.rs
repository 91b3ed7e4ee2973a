//! Lookup of a name in a directory: attributes, and locks to cache them and the name.

use crate::cross::{self, stripes};
use crate::{Mdt, grants, tree};
use proto::Errno;
use proto::msg::{LookupReq, NamedObject, ObjectRep};
use rules::Caller;
use rules::access::EXECUTE;
use rules::mode::S_IFDIR;
use rules::names;
use target::{Cx, Reply, Stop};

/// Executes a lookup. A name that does not exist gives a success without attributes, so that the client can cache that, too.
pub fn lookup(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &LookupReq) -> Result<Reply, Stop> {
    let caller = Caller::new(request.cred.as_ref());
    let want = request.want.unwrap_or_default();
    let parent = tree::dir(cx, request.parent)?;
    stripes::may_see(cx, &parent.inode)?;
    caller.need(&parent.inode, EXECUTE)?;
    let elsewhere = |cx: &mut Cx<'_>, object| -> Result<Reply, Stop> {
        let elsewhere = Some(cross::sent_on(cx, object)?);
        let locks = grants::grant(cx, &want, None, Some(parent.fid()));
        let parent_attr = Some(grants::attr_for(cx, &parent.inode));
        Ok(Reply::new(&ObjectRep { elsewhere, parent_attr, locks, ..ObjectRep::default() }))
    };
    let found = match &request.name[..] {
        b"." => Some(parent.clone()),
        b".." => match tree::find(cx, parent.inode.parent())? {
            Some(node) => Some(node),
            None => match cross::elsewhere(mdt, cx, parent.inode.parent())? {
                Some(mdt) => {
                    return elsewhere(cx, NamedObject { fid: parent.inode.parent(), mode: S_IFDIR, mdt });
                }
                None => return Err(Errno::ESTALE.into()),
            },
        },
        name => {
            names::check(name)?;
            match mdt.entry(cx, &parent, name)? {
                Some(entry) if entry.mdt.is_some() => {
                    let object = cross::named(cx, &entry);
                    return elsewhere(cx, object);
                }
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
        parent_attr: Some(grants::attr_for(cx, &parent.inode)),
        locks,
        symlink: found.map(|node| node.inode.symlink).unwrap_or_default(),
        ..ObjectRep::default()
    }))
}
