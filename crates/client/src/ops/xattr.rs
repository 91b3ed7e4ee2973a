//! Extended attributes: all of a node are fetched at once and kept under its XATTR lock.

use bytes::{Bytes, BytesMut};
use proto::msg::{GetxattrRep, GetxattrReq, Reint, ReintReq, SetxattrOp, Xattr, bits};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFDIR, S_IFMT, S_IFREG};
use std::sync::Arc;

use super::{attributes, permits, stat_cached, step, walk, writable};
use crate::api::Answer;
use crate::cx::{Cx, Run, Step, Stop};
use crate::op::Body;
use crate::world::ObjectLocks;

/// All attributes of a node are kept if they are not larger than this, bytes.
const KEPT_MAX: usize = 64 << 10;
/// Linux's limit on names.
const NAME_MAX: usize = 255;

/// The capabilities that a program gives to whoever runs it.
const CAPABILITY: &[u8] = b"security.capability";
/// The right to change them.
const CAP_SETFCAP: u64 = 1 << 31;

fn check(name: &Bytes) -> Run<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(Errno::ERANGE.into());
    }
    Ok(())
}

/// Whether it is known under a lock that the node has none: before each write it is asked whether there is a `security.capability`.
fn known_none(cx: &Cx<'_>, ino: u64) -> bool {
    cx.w.nodes.get(ino).is_some_and(|node| {
        node.xattr_covered && node.has(bits::XATTR) && node.attr.as_ref().is_some_and(|attr| !attr.has_xattrs)
    })
}

/// `Getxattr`.
pub(crate) fn get(cx: &mut Cx<'_>, ino: u64, name: &Bytes) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    check(name)?;
    if name.starts_with(b"trusted.") && cx.cred().uid != 0 {
        return Err(Errno::ENODATA.into());
    }
    if name.starts_with(b"user.") {
        let attr = attributes(cx, ino, false)?;
        if !matches!(attr.mode & S_IFMT, S_IFREG | S_IFDIR) {
            return Err(Errno::ENODATA.into());
        }
        match permits(&attr, 4, &cx.op.cred) {
            Some(true) => {}
            Some(false) => return Err(Errno::EACCES.into()),
            // The server decides.
            None => return one(cx, fid, name),
        }
    }
    let Some(all) = all(cx, fid, name, [step::MAIN, step::XATTR_ALONE])? else { return Err(Errno::ENODATA.into()) };
    match all.iter().find(|xattr| xattr.name == *name) {
        Some(xattr) => Ok(Answer::Data(xattr.value.clone())),
        None => Err(Errno::ENODATA.into()),
    }
}

/// One attribute, from the server.
fn one(cx: &mut Cx<'_>, fid: Fid, name: &Bytes) -> Run<Answer> {
    let dest = cx.w.mdt_of(fid);
    let cred = cx.op.cred.clone();
    let rep = fetch(cx, step::MAIN, dest, |_| GetxattrReq {
        fid,
        name: name.clone(),
        cred: Some((*cred).clone()),
        all: false,
        want: None,
    });
    let rep = super::stale_if_gone(rep)?;
    rep.xattrs.first().map(|xattr| Answer::Data(xattr.value.clone())).ok_or(Errno::ENODATA.into())
}

/// `Listxattr`: names of `trusted` ones are for root only.
pub(crate) fn list(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    let mut names = BytesMut::new();
    let root = cx.cred().uid == 0;
    if let Some(all) = all(cx, fid, &Bytes::new(), [step::MAIN, step::XATTR_ALONE])? {
        for xattr in all.iter() {
            if root || !xattr.name.starts_with(b"trusted.") {
                names.extend_from_slice(&xattr.name);
                names.extend_from_slice(&[0]);
            }
        }
    }
    Ok(Answer::Data(names.freeze()))
}

/// Whether a file gives capabilities to whoever runs it. Linux leaves it to a FUSE file system to take them away from a file that
/// somebody writes to.
pub(super) fn gives_capabilities(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let name = Bytes::from_static(CAPABILITY);
    let all = all(cx, super::fid_of(ino)?, &name, [step::CAPABILITY, step::CAPABILITY_ALONE])?;
    Ok(all.is_some_and(|all| all.iter().any(|xattr| xattr.name == name)))
}

/// The attributes of a node, or at least the one that is asked for; `None`: there are none. At two steps: for all, and for that one
/// alone.
fn all(cx: &mut Cx<'_>, fid: Fid, name: &Bytes, [at, alone]: [Step; 2]) -> Run<Option<Arc<Vec<Xattr>>>> {
    let ino = fid.ino();
    if !cx.began(at) {
        if known_none(cx, ino) {
            return Ok(None);
        }
        if let Some(node) = cx.w.nodes.get(ino)
            && node.has(bits::XATTR)
            && let Some(all) = &node.xattrs
        {
            return Ok(Some(all.clone()));
        }
        // A node about which nothing is known: its attributes may say that there are none.
        if cx.w.nodes.get(ino).is_none_or(|node| node.attr.is_none()) {
            attributes(cx, ino, false)?;
            if known_none(cx, ino) {
                return Ok(None);
            }
        }
    }
    let dest = cx.w.mdt_of(fid);
    let cred = cx.op.cred.clone();
    let rep = fetch(cx, at, dest, |w| {
        let own = w.nodes.get(ino).is_none_or(|node| !node.has(bits::XATTR));
        let object = ObjectLocks { own, entries: false };
        let want = w.want_locks(dest, object, false, None);
        GetxattrReq { fid, name: Bytes::new(), cred: Some((*cred).clone()), all: true, want: Some(want) }
    });
    let rep = match rep {
        Ok(rep) => rep,
        // Together they are too much for one answer.
        Err(Stop::Errno(Errno::E2BIG | Errno::ERANGE | Errno::EOVERFLOW)) => {
            let rep = fetch(cx, alone, dest, |_| GetxattrReq {
                fid,
                name: name.clone(),
                cred: Some((*cred).clone()),
                all: false,
                want: None,
            })?;
            return Ok(Some(Arc::new(rep.xattrs.clone())));
        }
        Err(stop) => return super::stale_if_gone(Err(stop)),
    };
    let all = Arc::new(rep.xattrs.clone());
    // It shows what is so under the lock if that came with it or was there when it was asked for.
    let locks = cx.w.imports.get(dest).map(|target| &target.locks);
    let lock_came = locks.is_some_and(|locks| rep.locks.iter().any(|grant| locks.is_usable(grant.cookie)));
    let number = cx.reply_number(at);
    if let Some(node) = cx.w.nodes.get_mut(ino)
        && node.has(bits::XATTR)
        && (lock_came || number > node.gained)
        && number > node.xattrs_changed
        && all.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum::<usize>() <= KEPT_MAX
    {
        node.xattrs = Some(all.clone());
    }
    Ok(Some(all))
}

fn fetch(
    cx: &mut Cx<'_>,
    step: Step,
    dest: crate::imports::Dest,
    request: impl FnOnce(&mut crate::world::World) -> GetxattrReq,
) -> Run<Arc<GetxattrRep>> {
    match cx.start_rpc(step, dest, Opcode::MdsGetxattr, |w, _| (request(w), Bytes::new())) {
        None => Err(Stop::Wait),
        Some(Err(errno)) => Err(errno.into()),
        Some(Ok(reply)) => match &reply.body {
            Body::Xattrs(rep) => Ok(rep.clone()),
            _ => Err(Errno::EPROTO.into()),
        },
    }
}

/// `Setxattr`.
pub(crate) fn set(cx: &mut Cx<'_>, ino: u64, name: &Bytes, value: &Bytes, flags: u32) -> Run<Answer> {
    if value.len() > proto::connect::XATTR_SIZE_MAX {
        return Err(Errno::E2BIG.into());
    }
    change(cx, ino, name, value, flags, false)
}

/// `Removexattr`. The kernel removes a program's capabilities itself before somebody writes to the file, on behalf of whoever that
/// is; nobody else gets so far without the right to.
pub(crate) fn remove(cx: &mut Cx<'_>, ino: u64, name: &Bytes) -> Run<Answer> {
    if name.as_ref() == CAPABILITY && cx.cred().capabilities & CAP_SETFCAP == 0 {
        writable(cx)?;
        super::io::kill_privileges(cx, ino)?;
        return Ok(Answer::Done);
    }
    change(cx, ino, name, &Bytes::new(), 0, true)
}

fn change(cx: &mut Cx<'_>, ino: u64, name: &Bytes, value: &Bytes, flags: u32, remove: bool) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    check(name)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(fid);
    cx.changing(step::CHANGING, ino);
    super::kernel::hide(cx, &[ino])?;
    let result = cx.rpc_object(step::MAIN, dest, Opcode::MdsReint, |w, op| {
        w.touches(ino, true);
        ReintReq {
            cred: Some((*op.cred).clone()),
            now_ns: op.wall_ns,
            want: None,
            op: Some(Reint::Setxattr(SetxattrOp { fid, name: name.clone(), value: value.clone(), flags, remove })),
        }
    });
    let result = super::stale_if_gone(result);
    let moment = cx.w.moment();
    if result != Err(Stop::Wait)
        && let Some(node) = cx.w.nodes.get_mut(ino)
    {
        // Fetched again when asked for. The reply's attributes say whether there are any.
        node.change_xattrs(moment);
    }
    result?;
    let _ = stat_cached(cx.w, ino);
    Ok(Answer::Done)
}
