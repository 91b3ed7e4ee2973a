//! Striped directories: their names are distributed over stripes, each a directory of its own on some metadata target. The
//! kernel knows the first one alone, the master.
//!
//! Everything about a name (requests, locks, leases, listings, cached names) is about the stripe that has it, so an
//! operation first asks for that ([`of_name`]) and works with it as with any directory. What the kernel is told is about the
//! master ([`crate::cache::node::Nodes::master`]). Mode, owner and access lists are those of the master; link count and
//! times are merged from all stripes ([`stat`]).
//!
//! A layout may change ([`set_layout`]), and this client hears of it when it asks a stripe that does not have the name any more
//! (`EREMCHG`): the operation then begins anew, and asks for the layouts of its directories first. While names move from the stripes of
//! one layout to those of the next, the servers do all that is done with a name at its new stripe, and give no locks on names; only
//! a listing has to read the old stripes, too ([`super::dir`]).

use core::time::Duration;

use proto::msg::{Attr, Reint, RelayoutOp, Stripe};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFDIR, S_IFMT};
use smallvec::SmallVec;

use super::{attributes, config, fetch, namespace, stale_if_gone, walk, writable};
use crate::api::{Answer, DirStripes, Stat};
use crate::base::{Dest, Step, WaitKey};
use crate::cache::node::ROOT;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::{fid_of, new_fids};
use crate::coherence::kernel;
use crate::coherence::metadata_write_back;
use crate::coherence::request::{Request, withdraw_all};
use crate::coherence::world::World;

/// Links of a directory without directories in it.
const LINKS: u32 = 2;
/// How long a metadata target is waited for after it has gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// The directory object that has a name, or would have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Its node.
    pub(crate) ino: u64,
    /// Its FID.
    pub(crate) fid: Fid,
    /// Its metadata target.
    pub(crate) dest: Dest,
}

/// See [`Place`]. The layout of the directory is asked for if no attributes of it are cached.
pub(crate) fn of_name(cx: &mut Cx<'_>, dir: u64, name: &[u8]) -> Run<Place> {
    know(cx, dir)?;
    let ino = cx.w.nodes.stripe(dir, name);
    if ino != dir {
        stdx::mark!("name_in_stripe");
    }
    place(cx, ino)
}

fn place(cx: &mut Cx<'_>, ino: u64) -> Run<Place> {
    let fid = fid_of(ino)?;
    cx.op.used_stripe |= cx.w.nodes.get(ino).is_some_and(|node| node.is_stripe);
    Ok(Place { ino, fid, dest: config::locate(cx, fid)? })
}

/// Makes the layout of a directory known.
pub(crate) fn know(cx: &mut Cx<'_>, dir: u64) -> Run<()> {
    let is_doubted = cx.op.layouts_doubted > 0 && !cx.began(Step::LmvKnown(dir));
    let is_unknown = || cx.w.nodes.get(dir).is_none_or(|node| node.attr.is_none());
    // The root is not striped.
    if dir != ROOT && (cx.began(Step::Lmv(dir)) || is_doubted || is_unknown()) {
        fetch(cx, Step::Lmv(dir), fid_of(dir)?)?;
        cx.forget(Step::Lmv(dir));
        cx.set_memo(Step::LmvKnown(dir), 1);
    }
    Ok(())
}

/// All directory objects of a directory, itself first.
pub(crate) fn all(cx: &mut Cx<'_>, dir: u64) -> Run<Vec<Place>> {
    cx.w.nodes.stripes(dir).into_iter().map(|ino| place(cx, ino)).collect()
}

/// The attributes of a striped directory, from those of its stripes.
fn merge<'a>(mut of: impl Iterator<Item = &'a Attr>) -> Option<Attr> {
    let mut merged = of.next()?.clone();
    // Names that move are counted where they were, so that it does not matter which stripe was asked first.
    let links = |attr: &Attr| i64::from(attr.nlink) - attr.lmv.as_ref().map_or(0, |lmv| i64::from(lmv.moved));
    let mut all = links(&merged);
    for attr in of {
        all += links(attr) - i64::from(LINKS);
        merged.take_stripe_times(attr);
    }
    merged.nlink = u32::try_from(all.max(0)).unwrap_or(u32::MAX);
    Some(merged)
}

/// The merged attributes, if those of all stripes are cached and certain. `None` for a directory that is not striped, too.
pub(crate) fn merged_cached(w: &World, dir: u64) -> Option<Attr> {
    let lmv = w.nodes.get(dir)?.lmv()?;
    let attr = |stripe: &Stripe| w.nodes.get(stripe.fid.ino())?.certain_attr();
    let all: Option<SmallVec<[&Attr; 8]>> = lmv.stripes.iter().map(attr).collect();
    merge(all?.into_iter())
}

/// The stat of a striped directory whose own attributes are cached. Those of stripes that are not cached come from their
/// targets, all at once. A target that has been away for a while is not waited for: every path through the directory would have
/// to wait, too. Its stripe counts as it was last known then. All stripes have to have the same layout: nobody holds locks on them while
/// names move, and what was answered before the end of that does not go with what was answered after it.
pub(crate) fn stat(cx: &mut Cx<'_>, dir: u64) -> Run<Stat> {
    let (mut missing, mut is_partial) = (false, false);
    for (place, number) in all(cx, dir)?.into_iter().zip(0..).skip(1) {
        let step = Step::Stripe(number);
        if !cx.began(step) && cx.w.nodes.get(place.ino).is_some_and(|node| node.certain_attr().is_some()) {
            continue;
        }
        if cx.answer(step).is_none()
            && let Some(since) = cx.w.imports.get(place.dest).and_then(|target| target.import.away_since())
        {
            if cx.now() >= since + PATIENCE {
                is_partial = true;
                continue;
            }
            cx.w.set_timer(since + PATIENCE);
            let _ = cx.wait(WaitKey::Timer);
        }
        match fetch(cx, step, place.fid) {
            Ok(_) => {}
            Err(Stop::Wait) => missing = true,
            Err(stop) => return Err(stop),
        }
    }
    if missing {
        cx.keep_node(Step::Kept, dir);
        return Err(Stop::Wait);
    }
    if is_partial {
        stdx::mark!("stripe_is_away");
        withdraw_all(cx.w, cx.op.id);
    }
    stdx::mark!("stripes_merged");
    let certain = !is_partial && merged_cached(cx.w, dir).is_some();
    let node = cx.w.nodes.get(dir).ok_or(Errno::ESTALE)?;
    let stripes = node.lmv().map_or(&[][..], |lmv| &lmv.stripes);
    let attr = |stripe: &Stripe| cx.w.nodes.get(stripe.fid.ino())?.attr.as_ref();
    let known: SmallVec<[&Attr; 8]> = stripes.iter().filter_map(attr).collect();
    let version = cx.w.nodes.layout_version(dir);
    if !is_partial && known.iter().any(|attr| attr.lmv.as_ref().is_some_and(|lmv| lmv.version != version)) {
        stdx::mark!("stripes_of_two_layouts");
        return Err(Errno::EREMCHG.into());
    }
    let attr = merge(known.into_iter()).ok_or(Errno::ESTALE)?;
    Ok(Stat { is_partial, ..super::compose(node, &attr, None, certain) })
}

/// Before a request that changes attributes of a directory: if it is striped, the change has parts on the targets of all
/// stripes.
pub(crate) fn before_change(cx: &mut Cx<'_>, dir: u64) -> Run<()> {
    know(cx, dir)?;
    if is_striped(cx.w, dir) { metadata_write_back::before_cross_change(cx) } else { Ok(()) }
}

/// The request changes attributes of a node, and of its stripes.
pub(crate) fn touched(w: &mut World, request: Request, ino: u64) -> Request {
    w.nodes.stripes(ino).into_iter().fold(request, |request, ino| request.touching(ino, true))
}

/// A change of this client has changed all stripes of a directory: what is cached of them may be outdated. Own changes do
/// not call own locks back.
pub(crate) fn changed(w: &mut World, dir: u64) {
    if w.nodes.get(dir).and_then(|node| node.lmv()).is_none() {
        return;
    }
    let moment = w.moment();
    for ino in w.nodes.stripes(dir) {
        if let Some(node) = w.nodes.get_mut(ino) {
            node.validity.doubt(proto::msg::bits::UPDATE | proto::msg::bits::XATTR);
            node.change_xattrs(moment);
        }
    }
}

/// Whether a node is a striped directory.
pub(crate) fn is_striped(w: &World, ino: u64) -> bool {
    w.nodes.get(ino).is_some_and(|node| node.lmv().is_some())
}

/// `SetDirLayout`. The names move after the answer.
pub(crate) fn set_layout(cx: &mut Cx<'_>, ino: u64, wish: &DirStripes) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(fid);
    if !cx.began(Step::Main) {
        namespace::takes_part(cx, dest)?;
        for mdt in &wish.added {
            config::know(cx, Dest::Mdt(*mdt))?;
            namespace::takes_part(cx, Dest::Mdt(*mdt))?;
        }
        know(cx, ino)?;
    }
    cx.changing(Step::Changing(0), ino);
    metadata_write_back::before_cross_change(cx)?;
    kernel::hide(cx, &[ino])?;
    let fids = new_fids(cx, &wish.added)?;
    let result = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let added = fids.iter().zip(&wish.added).map(|(fid, mdt)| Stripe { fid: *fid, mdt: *mdt }).collect();
        let version = w.nodes.layout_version(ino);
        let set = RelayoutOp { fid, version, count: wish.count, added, hash: wish.hash };
        let request = Request::new(&op.change(None, Reint::Relayout(set)));
        touched(w, request, ino).then(move |w, _| changed(w, ino))
    });
    stale_if_gone(result)?;
    Ok(Answer::Done)
}

/// `GetDirLayout`.
pub(crate) fn get_layout(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    walk(cx, ino)?;
    let attr = attributes(cx, ino, false)?;
    if attr.mode & S_IFMT != S_IFDIR {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(Answer::DirLayout(attr.lmv.filter(|lmv| !lmv.stripes.is_empty())))
}
