//! Another layout of a directory: more stripes, fewer, or another function that assigns names to them.
//!
//! A change over all stripes gives them the new layout at one moment; from then on names move, one after the other, each in a
//! change of its own ([`crate::relayout`]), always from the stripe of the former layout to that of the new one. A last change over
//! all stripes ends it, and removes those that the new layout does not have.
//!
//! Meanwhile everything that is done with a name is done at the stripe of the new layout. That first makes sure that the name is not
//! where it was before ([`crate::Mdt::former`]): a stripe gets no names that do not belong to it by the new layout, so a name that
//! has left it, or never was there, stays away as long as the layout has this version.

use proto::msg::{
    Attr, CrossAnswer, CrossLookReq, CrossOperation, CrossPart, DirHash, LinksAct, Lmv, LockMode, MakeAct, Policy,
    RelayoutAct, RelayoutOp, Removal, Resource, SeenObject, Stripe, StripeTimes,
};
use proto::{Errno, Fid};
use rules::stripes::STRIPES_MAX;
use schema::{DirState, Inode, LinkEa, Record, Relayout};
use std::collections::BTreeSet;
use target::{Cx, Reply, Stop};

use super::stripes::{self, ATTR_BITS};
use super::{Parts, answer};
use crate::Mdt;
use crate::ops::{self, Change, create};
use crate::tree::{self, Node};

/// The copies of a layout on the stripes of a target.
pub fn copies(own: u32, lmv: &Lmv) -> Vec<(Fid, Lmv)> {
    // A directory without further stripes is like one that never had any, but for the version.
    let is_plain = !lmv.is_moving() && lmv.count == 1;
    let copy = |(index, stripe): (u32, &Stripe)| match lmv.stripes.first().filter(|_| index > 0) {
        Some(master) => (stripe.fid, stripes::copy_of(lmv, master.fid, index)),
        None => {
            let stripes = if is_plain { Vec::new() } else { lmv.stripes.clone() };
            (stripe.fid, Lmv { stripes, master: None, index, ..lmv.clone() })
        }
    };
    (0..).zip(&lmv.stripes).filter(|(_, stripe)| stripe.mdt == own).map(copy).collect()
}

/// The stripes of a directory, itself first, also of one that is not striped.
fn stripes_of(cx: &Cx<'_>, inode: &Inode) -> Vec<Stripe> {
    match inode.stripes() {
        [] => vec![Stripe { fid: inode.fid, mdt: cx.name().index.0 }],
        stripes => stripes.to_vec(),
    }
}

/// Executes the change that begins it.
pub fn begin(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &RelayoutOp) -> Result<Reply, Stop> {
    stripes::are_known(cx)?;
    let node = tree::dir(cx, op.fid)?;
    stripes::is_whole(cx, &node.inode)?;
    if !mdt.settings.enable_dir_restripe || op.fid == Fid::ROOT {
        return Err(Errno::EPERM.into());
    }
    super::may_be_remote(mdt, &change.caller)?;
    let before = node.inode.lmv.as_deref().cloned().unwrap_or_default();
    match () {
        () if op.version != before.version => return Err(Errno::EREMCHG.into()),
        () if before.is_moving() => return Err(Errno::EBUSY.into()),
        () => {}
    }
    let old = stripes_of(cx, &node.inode);
    let lmv = new_layout(&before, &old, op)?;
    stripes::may_have_stripes(mdt, &lmv.stripes)?;
    if lmv.count == lmv.former_count && (lmv.hash == lmv.former_hash || lmv.count == 1) {
        cx.changes_nothing();
        return Ok(ops::unchanged(cx, change, &node.inode));
    }
    let own = cx.name().index.0;
    let client = cx.client().ok_or(Errno::ENOTCONN)?;
    let mut free = Ok(());
    for stripe in old.iter().filter(|stripe| stripe.mdt == own) {
        stripes::find(cx, stripe.fid)?;
        free = free.and(cx.revoke_all(Resource::inode(stripe.fid), LockMode::Ex, Policy::Bits(ATTR_BITS)));
    }
    for stripe in op.added.iter().filter(|stripe| stripe.mdt == own) {
        create::may_use_fid(cx, stripe.fid, client)?;
    }
    free?;
    let answer =
        CrossAnswer { object: Some(op.fid), record: node.inode.mode.into(), ..answer(CrossOperation::Relayout) };
    let mut parts = Parts::new(cx, change, answer);
    for (index, stripe) in (old.len() as u32..).zip(&op.added) {
        let inode = new_stripe(&node.inode, &lmv, index, stripe.fid).encode_record();
        parts.add(stripe.mdt, MakeAct { fid: stripe.fid, client: client.to_bytes(), inode });
    }
    give(&mut parts, &lmv, before.version, &[]);
    parts.make(cx)
}

/// The layout while names move to it.
///
/// Errors: `EINVAL` for an unknown hash function or a number of stripes that does not fit, `EOVERFLOW` for too many stripes,
/// `EPROTO` for a FID that is named twice.
fn new_layout(before: &Lmv, old: &[Stripe], op: &RelayoutOp) -> Result<Lmv, Errno> {
    let all: Vec<Stripe> = old.iter().chain(&op.added).copied().collect();
    let distinct: BTreeSet<Fid> = all.iter().map(|stripe| stripe.fid).collect();
    let count = op.count as usize;
    let fits = if op.added.is_empty() { (1..=old.len()).contains(&count) } else { count == all.len() };
    match () {
        () if count > STRIPES_MAX => return Err(Errno::EOVERFLOW),
        () if !fits => return Err(Errno::EINVAL),
        () if distinct.len() != all.len() => return Err(Errno::EPROTO),
        () => {}
    }
    let former_hash = before.hash();
    let hash = match DirHash::try_from(op.hash) {
        Ok(DirHash::Unknown) if former_hash == DirHash::Unknown => DirHash::Fnv1a64,
        Ok(DirHash::Unknown) => former_hash,
        Ok(hash) => hash,
        Err(_) => return Err(Errno::EINVAL),
    };
    Ok(Lmv {
        hash: hash as i32,
        count: op.count,
        version: before.version.checked_add(1).ok_or(Errno::EOVERFLOW)?,
        stripes: all,
        former_count: old.len() as u32,
        former_hash: former_hash as i32,
        ..Lmv::default()
    })
}

/// The inode of a stripe that a directory gets.
fn new_stripe(master: &Inode, lmv: &Lmv, index: u32, fid: Fid) -> Inode {
    let mut inode = Inode {
        fid,
        nlink: 2,
        lmv: Some(Box::new(stripes::copy_of(lmv, master.fid, index))),
        links: LinkEa::one(master.fid, stripes::name_of(fid, index)),
        version: 0,
        dir: DirState::default(),
        ..master.clone()
    };
    inode.xattrs.retain(|xattr| stripes::is_common(&xattr.name));
    inode
}

/// Adds the acts that give all stripes of a layout this layout.
fn give(parts: &mut Parts, lmv: &Lmv, before: u32, times: &[StripeTimes]) {
    let targets: BTreeSet<u32> = lmv.stripes.iter().map(|stripe| stripe.mdt).collect();
    for on in targets {
        parts.add(on, RelayoutAct { lmv: lmv.clone(), before, times: times.to_vec() });
    }
}

/// Checks a part of it on another target. `wanted`: the locks to call back.
pub(super) fn check(
    cx: &mut Cx<'_>,
    part: &CrossPart,
    act: &RelayoutAct,
    wanted: &mut Vec<(Fid, u64)>,
) -> Result<bool, Stop> {
    let former = act.lmv.former_count as usize;
    let existing = if act.lmv.is_moving() { former } else { act.lmv.stripes.len() };
    for stripe in act.lmv.stripes.iter().take(existing).filter(|stripe| stripe.mdt == part.mdt) {
        let Some(node) = tree::find(cx, stripe.fid)? else { return Ok(false) };
        if !node.inode.is_dir() || node.inode.layout_version() != act.before || !may_end(cx, act, stripe.fid)? {
            return Ok(false);
        }
        wanted.push((stripe.fid, ATTR_BITS));
    }
    Ok(true)
}

/// Whether a change of a layout may be over, as far as this stripe is concerned. True also if it is to begin.
fn may_end(cx: &mut Cx<'_>, act: &RelayoutAct, fid: Fid) -> Result<bool, Stop> {
    Ok(act.lmv.is_moving() || cx.get::<Relayout>(&fid)?.is_some_and(|record| record.settled))
}

/// Ends the change of a layout, if no name has to move any more: the parts. `None`: it is not so far.
pub fn end(cx: &mut Cx<'_>, node: &Node) -> Result<Option<Parts>, Stop> {
    let Some(lmv) = node.inode.moving() else { return Ok(None) };
    // All are asked at once.
    let former = lmv.stripes.iter().take(lmv.former_count as usize);
    let seen: Vec<Result<SeenObject, Stop>> = former.map(|stripe| look(cx, *stripe)).collect();
    let seen: Vec<SeenObject> = seen.into_iter().collect::<Result<_, _>>()?;
    if seen.iter().any(|seen| !seen.settled) {
        return Ok(None);
    }
    let kept = lmv.count as usize;
    let after = Lmv {
        version: lmv.version.checked_add(1).ok_or(Errno::EOVERFLOW)?,
        stripes: lmv.stripes.iter().take(kept).copied().collect(),
        former_count: 0,
        former_hash: 0,
        moved: 0,
        ..lmv.clone()
    };
    let mut parts = Parts::of_target(cx, CrossOperation::Relayout);
    let times: Vec<StripeTimes> = seen.iter().filter_map(|seen| seen.times).collect();
    give(&mut parts, &after, lmv.version, &times);
    let lost = stripes::lost_stripes(&lmv.stripes).into_iter().skip(kept.saturating_sub(1));
    for ((act, on), seen) in lost.zip(seen.into_iter().skip(kept)) {
        let removal = Some(Removal { rmdir: true, ..Removal::default() });
        // With the times that the master takes over. What is here cannot change before the parts hold it.
        let seen = (on != cx.name().index.0).then_some(SeenObject { settled: false, ..seen });
        parts.add(on, LinksAct { removal, seen, ..act });
    }
    Ok(Some(parts))
}

/// What there is of a stripe that names leave.
fn look(cx: &mut Cx<'_>, stripe: Stripe) -> Result<SeenObject, Stop> {
    if stripe.mdt == cx.name().index.0 {
        let node = stripes::find(cx, stripe.fid)?;
        return describe(cx, &node);
    }
    let question = CrossLookReq { object: Some(stripe.fid), ..CrossLookReq::default() };
    Ok(cx.look(stripe.mdt, &question)?.object.ok_or(Errno::EPROTO)?)
}

/// An object, and whether no name has to leave it any more if it is such a stripe.
pub(super) fn describe(cx: &mut Cx<'_>, node: &Node) -> Result<SeenObject, Stop> {
    let settled = cx.get::<Relayout>(&node.fid())?.is_some_and(|record| record.settled);
    Ok(SeenObject { settled, ..super::look::seen(&node.inode) })
}

/// The times of a stripe that its directory loses.
pub(super) fn times_of(inode: &Inode) -> Option<StripeTimes> {
    inode.moving().filter(|lmv| lmv.index >= lmv.count)?;
    let Inode { mtime_ns, mtime_set_ns, ctime_ns, atime_ns, .. } = *inode;
    Some(StripeTimes { mtime_ns, mtime_set_ns, ctime_ns, atime_ns })
}

/// The master takes over the times of a stripe that goes, which clients have merged so far.
pub(super) fn take_times(inode: &mut Inode, times: &StripeTimes) {
    let of = |mtime_ns, mtime_set_ns, ctime_ns, atime_ns| Attr {
        mtime_ns,
        mtime_set_ns,
        ctime_ns,
        atime_ns,
        ..Attr::default()
    };
    let mut merged = of(inode.mtime_ns, inode.mtime_set_ns, inode.ctime_ns, inode.atime_ns);
    merged.take_stripe_times(&of(times.mtime_ns, times.mtime_set_ns, times.ctime_ns, times.atime_ns));
    (inode.mtime_ns, inode.mtime_set_ns) = (merged.mtime_ns, merged.mtime_set_ns);
    (inode.ctime_ns, inode.atime_ns) = (merged.ctime_ns, merged.atime_ns);
}
