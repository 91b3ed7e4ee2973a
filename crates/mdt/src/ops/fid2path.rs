//! `fid2path`: the paths of an object, from the linkEAs on the way to the root, or to a directory on another target.

use crate::{Mdt, cross, tree};
use bytes::Bytes;
use proto::msg::{Fid2pathRep, Fid2pathReq};
use proto::{Errno, Fid};
use rules::Caller;
use rules::access::EXECUTE;
use target::{Cx, Reply, Stop};

/// Longest path, in bytes.
const PATH_MAX: usize = 4096;

/// Executes a fid2path. The caller needs search permission on every directory of each path.
pub fn fid2path(mdt: &Mdt, cx: &mut Cx<'_>, request: &Fid2pathReq) -> Result<Reply, Stop> {
    let caller = Caller::new(request.cred.as_ref());
    let node = tree::find(cx, request.fid)?.ok_or(Errno::ENOENT)?;
    let (mut paths, mut from) = (Vec::new(), Vec::new());
    if node.fid() == Fid::ROOT {
        paths.push(Bytes::new());
    }
    for link in &node.inode.links.links {
        // A stripe of a directory is known by the paths of its master.
        let is_stripe = node.inode.master() != node.fid();
        let name = Some(&link.name).filter(|_| !is_stripe);
        let (path, start) = path(mdt, cx, &caller, link.parent, name)?;
        paths.push(path);
        from.push(start);
    }
    if paths.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if from.iter().all(|start| *start == Fid::ROOT) {
        from.clear();
    }
    Ok(Reply::new(&Fid2pathRep { paths, from }))
}

/// The path of a name in a directory, or of the directory, and where it starts from: the root, or the first one on another target.
fn path(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    caller: &Caller<'_>,
    parent: Fid,
    name: Option<&Bytes>,
) -> Result<(Bytes, Fid), Stop> {
    let mut names: Vec<Bytes> = name.into_iter().cloned().collect();
    let mut length = name.map_or(0, Bytes::len);
    let mut fid = parent;
    loop {
        let Some(dir) = tree::find(cx, fid)? else {
            match cross::elsewhere(mdt, cx, fid)? {
                Some(_) => break,
                None => return Err(Errno::ESTALE.into()),
            }
        };
        caller.need(&dir.inode, EXECUTE)?;
        if fid == Fid::ROOT {
            break;
        }
        let link = dir.inode.links.links.first().ok_or(Errno::ENOENT)?;
        length += 1 + link.name.len();
        if length > PATH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        names.push(link.name.clone());
        fid = link.parent;
    }
    names.reverse();
    Ok((names.join(&b'/').into(), fid))
}
