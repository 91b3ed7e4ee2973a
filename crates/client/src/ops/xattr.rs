//! Extended attributes: all of a node are fetched at once and cached under its XATTR lock.

use bytes::{Bytes, BytesMut};
use proto::msg::{GetxattrRep, GetxattrReq, Reint, SetxattrOp, Xattr, bits};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFDIR, S_IFMT, S_IFREG};
use std::sync::Arc;

use super::{attributes, stat_cached, stripes, walk, writable};
use crate::api::Answer;
use crate::base::Step;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::kernel;
use crate::coherence::op::Body;
use crate::coherence::request::{ObjectLocks, Request, Wants};
use crate::coherence::world::World;
use rules::Caller;

/// Largest size of all attributes of a node that are cached, in bytes.
const KEPT_MAX: usize = 64 << 10;
/// Linux's limit on the length of names.
const NAME_MAX: usize = 255;

/// The capabilities that a program gives to its caller.
const CAPABILITY: &[u8] = b"security.capability";
/// The right to change capabilities.
const CAP_SETFCAP: u64 = 1 << 31;

fn check(name: &Bytes) -> Run<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(Errno::ERANGE.into());
    }
    Ok(())
}

/// Whether a lock covers that the node has no extended attributes: the kernel asks for `security.capability` before
/// each write.
fn known_none(cx: &Cx<'_>, ino: u64) -> bool {
    cx.w.nodes.get(ino).is_some_and(|node| {
        node.validity.covers(bits::XATTR) && node.attr.as_ref().is_some_and(|attr| !attr.has_xattrs)
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
        match Caller::of(&cx.op.cred).may(&attr, 4) {
            Some(true) => {}
            Some(false) => return Err(Errno::EACCES.into()),
            // The server decides.
            None => return one(cx, fid, name),
        }
    }
    let Some(all) = all(cx, fid, name, [Step::Main, Step::XattrAlone])? else { return Err(Errno::ENODATA.into()) };
    match all.iter().find(|xattr| xattr.name == *name) {
        Some(xattr) => Ok(Answer::Data(xattr.value.clone())),
        None => Err(Errno::ENODATA.into()),
    }
}

/// Fetches one attribute from the server.
fn one(cx: &mut Cx<'_>, fid: Fid, name: &Bytes) -> Run<Answer> {
    let dest = cx.w.mdt_of(fid);
    let cred = cx.op.cred.clone();
    let rep = fetch(cx, Step::Main, dest, |_| {
        Request::new(&GetxattrReq { fid, name: name.clone(), cred: Some((*cred).clone()), all: false, want: None })
    });
    let rep = super::stale_if_gone(rep)?;
    rep.xattrs.first().map(|xattr| Answer::Data(xattr.value.clone())).ok_or(Errno::ENODATA.into())
}

/// `Listxattr`: names of `trusted` attributes are for root only.
pub(crate) fn list(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    let mut names = BytesMut::new();
    let root = cx.cred().uid == 0;
    if let Some(all) = all(cx, fid, &Bytes::new(), [Step::Main, Step::XattrAlone])? {
        for xattr in all.iter() {
            if root || !xattr.name.starts_with(b"trusted.") {
                names.extend_from_slice(&xattr.name);
                names.extend_from_slice(&[0]);
            }
        }
    }
    Ok(Answer::Data(names.freeze()))
}

/// Whether a file gives capabilities to its caller. Linux leaves it to a FUSE file system to remove them when the file
/// is written.
pub(super) fn gives_capabilities(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let name = Bytes::from_static(CAPABILITY);
    let all = all(cx, fid_of(ino)?, &name, [Step::Capability, Step::CapabilityAlone])?;
    Ok(all.is_some_and(|all| all.iter().any(|xattr| xattr.name == name)))
}

/// The attributes of a node, or at least the requested one; `None`: there are none. Takes two steps: for all, and for
/// the requested one.
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
        // A node without attributes: they may say that there are no extended ones.
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
        let mut wants = Wants::default();
        let want = Some(wants.locks(w, dest, ObjectLocks { own, entries: false }, false, None));
        let cred = Some((*cred).clone());
        Request::new(&GetxattrReq { fid, name: Bytes::new(), cred, all: true, want }).wanting(wants)
    });
    let rep = match rep {
        Ok(rep) => rep,
        // Together they are too much for one answer.
        Err(Stop::Errno(Errno::E2BIG | Errno::ERANGE | Errno::EOVERFLOW)) => {
            let rep = fetch(cx, alone, dest, |_| {
                let cred = Some((*cred).clone());
                Request::new(&GetxattrReq { fid, name: name.clone(), cred, all: false, want: None })
            })?;
            return Ok(Some(Arc::new(rep.xattrs.clone())));
        }
        Err(stop) => return super::stale_if_gone(Err(stop)),
    };
    let all = Arc::new(rep.xattrs.clone());
    // They are valid under the lock if that came with them or was held when they were requested.
    let locks = cx.w.locks.get(dest);
    let lock_came = locks.is_some_and(|locks| rep.locks.iter().any(|grant| locks.is_usable(grant.cookie)));
    let number = cx.reply_number(at);
    if let Some(node) = cx.w.nodes.get_mut(ino)
        && node.has(bits::XATTR)
        && (lock_came || node.validity.is_under(number))
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
    dest: crate::base::Dest,
    request: impl FnOnce(&mut World) -> Request,
) -> Run<Arc<GetxattrRep>> {
    match cx.start_rpc(step, dest, Opcode::MdsGetxattr, |w, _| request(w)) {
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

/// `Removexattr`. The kernel removes a program's capabilities itself before the file is written, with the writer's
/// credentials; any other caller without the right does not get this far.
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
    cx.changing(Step::Changing(0), ino);
    stripes::before_change(cx, ino)?;
    kernel::hide(cx, &[ino])?;
    let result = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let set = SetxattrOp { fid, name: name.clone(), value: value.clone(), flags, remove };
        let request = Request::new(&op.change(None, Reint::Setxattr(set)));
        stripes::touched(w, request, ino).then(move |w, _| changed(w, ino))
    });
    super::stale_if_gone(result)?;
    let _ = stat_cached(cx.w, ino);
    Ok(Answer::Done)
}

/// A change of this client that affects extended attributes was answered: they are fetched again when needed. The
/// reply's attributes tell whether there are any.
pub(super) fn changed(w: &mut World, ino: u64) {
    super::stripes::changed(w, ino);
    let moment = w.moment();
    if let Some(node) = w.nodes.get_mut(ino) {
        node.change_xattrs(moment);
    }
}
