//! Striped directories: changes that concern all stripes of one.
//!
//! Each stripe is a directory object of its own, the first one is the master: see [`proto::msg::Lmv`]. A change of a name
//! concerns the one stripe that has it, and is like one in any directory; what a name leads to names the master in its linkEA.
//! What all stripes have in common (mode, owner, access lists, default layouts) changes in all of them at once, and they are
//! made and removed together. The target of the master checks the rules for that.

use bytes::Bytes;
use proto::connect::features;
use proto::msg::{
    AttrsAct, CreateOp, CrossAnswer, CrossLookReq, CrossOperation, DirHash, DirName, LinksAct, Lmv, LockMode,
    NamedObject, Policy, Removal, Resource, Stripe, UnlinkOp, bits, valid,
};
use proto::{Errno, Fid};
use rules::acl;
use rules::mode::S_IFDIR;
use rules::stripes::{STRIPES_MAX, STRIPES_PER_TARGET_MAX};
use schema::{Inode, LinkEa, Record};
use std::collections::{BTreeMap, BTreeSet};
use target::{Cx, ExportId, Stop};

use super::{Parts, answer, links};
use crate::Mdt;
use crate::ops::Change;
use crate::tree::{self, Node};

/// Lock bits to call back on a stripe whose attributes change.
pub const ATTR_BITS: u64 = bits::PERM | bits::LOOKUP | bits::UPDATE | bits::XATTR | bits::LAYOUT;

/// The layout that all stripes of a new directory share, as the master has it; `None` if it is not striped.
///
/// Errors: `EOPNOTSUPP` for a client that does not know striped directories, `EINVAL` for an unknown hash function, `EPROTO` for
/// a FID that is named twice.
pub fn new_layout(cx: &Cx<'_>, op: &CreateOp, on: u32) -> Result<Option<Box<Lmv>>, Errno> {
    if op.stripes.is_empty() {
        return Ok(None);
    }
    are_known(cx)?;
    if op.stripes.len() >= STRIPES_MAX {
        return Err(Errno::EOVERFLOW);
    }
    let hash = match DirHash::try_from(op.hash) {
        Ok(DirHash::Unknown) => DirHash::Fnv1a64,
        Ok(hash) => hash,
        Err(_) => return Err(Errno::EINVAL),
    };
    let master = Stripe { fid: op.fid, mdt: on };
    let stripes: Vec<Stripe> = core::iter::once(master).chain(op.stripes.iter().copied()).collect();
    let distinct: BTreeSet<Fid> = stripes.iter().map(|stripe| stripe.fid).collect();
    if distinct.len() != stripes.len() {
        return Err(Errno::EPROTO);
    }
    let (hash, count) = (hash as i32, stripes.len() as u32);
    Ok(Some(Box::new(Lmv { hash, count, version: 1, stripes, ..Lmv::default() })))
}

/// Errors: `EPERM` if there may be no striped directories, `EINVAL` if too many stripes are on one target. `on`: the target of
/// the master.
pub(super) fn may_be_striped(mdt: &Mdt, op: &CreateOp, on: u32) -> Result<(), Errno> {
    let master = Stripe { fid: op.fid, mdt: on };
    let all: Vec<Stripe> = core::iter::once(master).chain(op.stripes.iter().copied()).collect();
    may_have_stripes(mdt, &all)
}

/// The same for a directory with these stripes, itself included.
pub(super) fn may_have_stripes(mdt: &Mdt, stripes: &[Stripe]) -> Result<(), Errno> {
    if !mdt.settings.enable_striped_dir {
        return Err(Errno::EPERM);
    }
    let mut targets: BTreeMap<u32, usize> = BTreeMap::new();
    for stripe in stripes {
        *targets.entry(stripe.mdt).or_default() += 1;
    }
    if targets.values().any(|count| *count > STRIPES_PER_TARGET_MAX) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The objects of a new directory with their targets, from the inode of the master, which is the first.
pub(super) fn new_objects(op: &CreateOp, on: u32, master: Inode) -> Vec<(u32, Inode)> {
    let stripe = |(number, new): (usize, &Stripe)| {
        let index = number as u32 + 1;
        let lmv = master.lmv.as_deref().map(|lmv| Box::new(copy_of(lmv, master.fid, index)));
        let links = LinkEa::one(master.fid, name_of(new.fid, index));
        (new.mdt, Inode { fid: new.fid, lmv, links, ..master.clone() })
    };
    let stripes: Vec<(u32, Inode)> = op.stripes.iter().enumerate().map(stripe).collect();
    core::iter::once((on, master)).chain(stripes).collect()
}

/// The copy of a layout that a stripe other than the master has.
pub(super) fn copy_of(lmv: &Lmv, master: Fid, index: u32) -> Lmv {
    Lmv { stripes: Vec::new(), master: Some(master), index, ..lmv.clone() }
}

/// The name of a stripe in its linkEA, as Lustre has it. Its master has no such entry.
pub(super) fn name_of(fid: Fid, index: u32) -> Bytes {
    format!("{fid}:{index}").into()
}

/// Errors: `EOPNOTSUPP` if the sender does not know striped directories.
pub fn are_known(cx: &Cx<'_>) -> Result<(), Errno> {
    let known = cx.client_has(features::DIR_STRIPE) || cx.export() == ExportId::TARGET;
    if known { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// The same for whoever is shown this object or changes it.
pub fn may_see(cx: &Cx<'_>, inode: &Inode) -> Result<(), Errno> {
    if inode.lmv.is_some() { are_known(cx) } else { Ok(()) }
}

/// Errors: `ESTALE` if the object is a stripe of a directory other than the master: whoever wants to change the directory as a
/// whole names that.
pub fn is_whole(cx: &Cx<'_>, inode: &Inode) -> Result<(), Errno> {
    may_see(cx, inode)?;
    if inode.master() == inode.fid { Ok(()) } else { Err(Errno::ESTALE) }
}

/// A stripe on this target that the master names, which cannot have changed since that was read.
pub fn find(cx: &mut Cx<'_>, fid: Fid) -> Result<Node, Stop> {
    match tree::find(cx, fid)? {
        Some(node) => Ok(node),
        None => {
            cx.log(target::LogLevel::Error, format!("stripe {fid} of a directory is not there: run lfsck"));
            Err(Errno::EIO.into())
        }
    }
}

/// The stripes of a directory on another target that is to be removed. A directory is first taken for one without stripes. If it
/// has some, its target says that the change takes it for something else, and then it is asked which.
pub(super) fn of_removed(cx: &mut Cx<'_>, op: &UnlinkOp, removed: &NamedObject) -> Result<Vec<Stripe>, Stop> {
    if !op.rmdir || removed.mode != S_IFDIR || !cx.was_changed() {
        return Ok(Vec::new());
    }
    let question = CrossLookReq { object: Some(removed.fid), ..CrossLookReq::default() };
    match cx.look(removed.mdt, &question) {
        Ok(rep) => Ok(rep.object.unwrap_or_default().stripes),
        Err(stop @ (Stop::Wait | Stop::Errno(Errno::EINPROGRESS))) => Err(stop),
        // Its target says what is wrong when it is asked for its part.
        Err(Stop::Errno(_)) => Ok(Vec::new()),
    }
}

/// Checks that the stripes on this target, other than the master, are empty. Returns whether the locks on them are back.
///
/// Errors: `ESTALE` if one is gone. The master was read before, perhaps on another target.
pub(super) fn may_go(cx: &mut Cx<'_>, stripes: &[Stripe]) -> Result<Result<(), Stop>, Stop> {
    let (own, mut free) = (cx.name().index.0, Ok(()));
    for stripe in stripes.iter().skip(1).filter(|stripe| stripe.mdt == own) {
        let node = tree::node(cx, stripe.fid)?;
        let node = tree::without_lease(cx, node)?;
        if node.inode.dir.entries > 0 {
            return Err(tree::not_empty(cx, &node));
        }
        free = free.and(tree::revoke_named(cx, &node, None));
    }
    Ok(free)
}

/// Adds the parts that remove the stripes other than the master.
pub(super) fn remove(parts: &mut Parts, stripes: &[Stripe]) {
    // The master's target has checked who removes it.
    let removal = Some(Removal { rmdir: true, ..Removal::default() });
    for (act, on) in lost_stripes(stripes) {
        parts.add(on, LinksAct { removal: removal.clone(), ..act });
    }
}

/// The acts that remove the stripes other than the master, with their targets.
pub fn lost_stripes(stripes: &[Stripe]) -> Vec<(LinksAct, u32)> {
    let Some((master, others)) = stripes.split_first() else { return Vec::new() };
    let act = |(number, stripe): (usize, &Stripe)| {
        let lost = Some(DirName { parent: master.fid, name: name_of(stripe.fid, number as u32 + 1) });
        (LinksAct { lost, ..links(stripe.fid) }, stripe.mdt)
    };
    others.iter().enumerate().map(act).collect()
}

/// Whether a change of the attributes of this directory is one of all its stripes. If it was removed and is open, it has none.
pub fn has(inode: &Inode) -> bool {
    !inode.stripes().is_empty() && inode.nlink > 0
}

/// Changes what all stripes of a directory have in common: calls back the locks on those on this target, except the master, and
/// asks for the parts. `after`: the master after the change, which was checked. `set`: the times that the change sets, as bits
/// of [`valid`].
pub fn set_attrs<T>(
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    operation: CrossOperation,
    after: &Inode,
    set: u32,
) -> Result<T, Stop> {
    let own = cx.name().index.0;
    let answer = CrossAnswer { object: Some(after.fid), record: after.mode.into(), ..answer(operation) };
    let mut parts = Parts::new(cx, change, answer);
    // The master's names, and what it counts, do not change.
    let all = Inode { lmv: None, links: LinkEa::default(), ..after.clone() };
    let mut common = all.clone();
    common.xattrs.retain(|xattr| is_common(&xattr.name));
    let (all, common) = (all.encode_record(), common.encode_record());
    let mut free = Ok(());
    for &Stripe { fid, mdt: on } in after.stripes() {
        let is_master = fid == after.fid;
        if on == own && !is_master {
            find(cx, fid)?;
            free = free.and(cx.revoke_all(Resource::inode(fid), LockMode::Ex, Policy::Bits(ATTR_BITS)));
        }
        let inode = if is_master { all.clone() } else { common.clone() };
        let (atime, mtime) = (set & valid::ATIME != 0, set & valid::MTIME != 0);
        parts.add(on, AttrsAct { fid, inode, atime, mtime });
    }
    free?;
    parts.make(cx)
}

/// Whether an extended attribute is the same on all stripes.
pub fn is_common(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// Gives a stripe the attributes of a change.
pub(super) fn take_attrs(inode: &mut Inode, act: &AttrsAct, from: Inode, now_ns: i64) {
    inode.changed(now_ns);
    (inode.mode, inode.uid, inode.gid) = (from.mode, from.uid, from.gid);
    (inode.layout, inode.dir_default) = (from.layout, from.dir_default);
    if act.atime {
        inode.atime_ns = from.atime_ns;
    }
    if act.mtime {
        (inode.mtime_ns, inode.mtime_set_ns) = (from.mtime_ns, from.mtime_set_ns);
    }
    if inode.stripes().is_empty() {
        inode.xattrs.retain(|xattr| !is_common(&xattr.name));
        inode.xattrs.extend(from.xattrs);
    } else {
        inode.xattrs = from.xattrs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::msg::{CrossPart, MakeAct};

    /// The record of a change of the largest striped directory.
    #[test]
    fn the_parts_of_all_stripes_fit() {
        let fid = |n: u32| Fid::new(0x2_0000_0400 + u64::from(n) * 0x1000, 0xffff);
        let stripes = (1..STRIPES_MAX as u32).map(|n| Stripe { fid: fid(n), mdt: n / 5 }).collect();
        let op = CreateOp { fid: fid(0), stripes, ..CreateOp::default() };
        let all: Vec<Stripe> = (0..STRIPES_MAX as u32).map(|n| Stripe { fid: fid(n), mdt: n / 5 }).collect();
        let lmv = Lmv { hash: 4, count: STRIPES_MAX as u32, version: 1, stripes: all, ..Lmv::default() };
        let now = 1_700_000_000_000_000_000;
        let layout = Some(proto::msg::Layout { pool: "a_pool_of_disks".into(), ..proto::msg::Layout::default() });
        let list = |name: &'static [u8]| schema::InodeXattr {
            name: Bytes::from_static(name),
            value: Bytes::from_static(&[1; 68]),
            large: false,
        };
        let master = Inode {
            fid: op.fid,
            mode: S_IFDIR | 0o755,
            uid: 1_000_000,
            gid: 1_000_000,
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            lmv: Some(Box::new(lmv)),
            xattrs: vec![list(acl::ACCESS), list(acl::DEFAULT)],
            layout,
            dir_default: Some(Box::new(proto::msg::DirDefault {
                mdts: (65_000..).take(proto::msg::DIR_DEFAULT_TARGETS_MAX).collect(),
                ..proto::msg::DirDefault::default()
            })),
            links: LinkEa::one(Fid::ROOT, Bytes::from_static(&[b'x'; 255])),
            ..Inode::default()
        };
        let mut parts: Vec<CrossPart> = Vec::new();
        for (mdt, inode) in new_objects(&op, 0, master) {
            let act = MakeAct { fid: inode.fid, client: Bytes::from_static(&[7; 16]), inode: inode.encode_record() };
            let act = proto::msg::CrossAct { now_ns: now, act: Some(act.into()) };
            parts.push(CrossPart { mdt, acts: vec![act], answer: None });
        }
        let bytes: usize = parts.iter().map(prost::Message::encoded_len).sum();
        assert!((400 << 10..super::super::BYTES_MAX).contains(&bytes), "{bytes}");
    }
}
