//! Reads of extended attributes: one value, the list of names, or all values for a client's cache.

use crate::cross::stripes;
use crate::tree::{self, Node};
use crate::{grants, xattrs};
use bytes::Bytes;
use proto::Errno;
use proto::msg::{GetxattrRep, GetxattrReq, Xattr};
use rules::{Caller, acl};
use schema::{InodeXattr, LargeXattr};
use target::{Cx, Reply, Stop};

/// The most bytes of names and values in one reply. `E2BIG` above it; the client then requests the values one by one.
const ALL_MAX: usize = 512 << 10;

/// Executes a getxattr. `all` is for the cache of a client, which itself applies the rules of [`crate::xattrs`] to each reader.
pub fn getxattr(cx: &mut Cx<'_>, request: &GetxattrReq) -> Result<Reply, Stop> {
    let caller = Caller::new(request.cred.as_ref());
    let node = tree::node(cx, request.fid)?;
    stripes::may_see(cx, &node.inode)?;
    let xattrs = match () {
        () if request.all => all(cx, &node)?,
        () if request.name.is_empty() => names(&caller, &node),
        () => vec![one(cx, &caller, &node, &request.name)?],
    };
    let locks = grants::grant(cx, &request.want.unwrap_or_default(), Some(&node.inode), None);
    Ok(Reply::new(&GetxattrRep { xattrs, locks }))
}

fn one(cx: &mut Cx<'_>, caller: &Caller<'_>, node: &Node, name: &Bytes) -> Result<Xattr, Stop> {
    xattrs::may_read(caller, &node.inode, xattrs::namespace(name)?)?;
    let found = node.inode.xattrs.iter().find(|xattr| xattr.name == name).ok_or(Errno::ENODATA)?;
    Ok(Xattr { name: name.clone(), value: value(cx, node, found)? })
}

fn names(caller: &Caller<'_>, node: &Node) -> Vec<Xattr> {
    let listed = node.inode.xattrs.iter().filter(|xattr| xattrs::is_listed(caller, &xattr.name));
    listed.map(|xattr| Xattr { name: xattr.name.clone(), value: Bytes::new() }).collect()
}

fn all(cx: &mut Cx<'_>, node: &Node) -> Result<Vec<Xattr>, Stop> {
    let mut found = Vec::with_capacity(node.inode.xattrs.len());
    for xattr in &node.inode.xattrs {
        found.push(value(cx, node, xattr).map(|value| Xattr { name: xattr.name.clone(), value }));
    }
    let found: Vec<Xattr> = found.into_iter().collect::<Result<_, Stop>>()?;
    let bytes: usize = found.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
    if bytes > ALL_MAX {
        return Err(Errno::E2BIG.into());
    }
    Ok(found)
}

/// The value of an attribute, from the inode or its own record.
fn value(cx: &mut Cx<'_>, node: &Node, xattr: &InodeXattr) -> Result<Bytes, Stop> {
    if !xattr.large {
        return Ok(xattr.value.clone());
    }
    match cx.get::<LargeXattr>(&(node.ino, xattr.name.clone()))? {
        Some(LargeXattr(value)) => Ok(value),
        None => {
            let name = xattr.name.escape_ascii();
            cx.log(target::LogLevel::Error, format!("attribute '{name}' of {} is missing: run lfsck", node.fid()));
            Err(Errno::EIO.into())
        }
    }
}

/// Whether an attribute is always stored in the inode, because permission checks need it.
pub fn is_always_inline(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}
