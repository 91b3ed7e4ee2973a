//! Default layouts of directories: on which metadata targets new directories lie that a program makes without a wish of its own.
//!
//! ```text
//! the directory above has no default      the target of the name, an ordinary mkdir
//! it names targets                        these, whether they are there or not: somebody wanted that
//! it names none, or fewer than stripes    among those that serve requests and have room: round robin, or by free inodes
//! ```
//! A directory that gets the target of its name and one stripe is an ordinary one, too. Any other is made like that of
//! [`super::namespace::mkdir_on`]. If a target that was chosen here goes away before anything is done, another one is chosen.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use proto::connect::features;
use proto::msg::{DirDefault, Reint, SetlayoutKind, SetlayoutOp, bits};
use proto::{Errno, Opcode};
use rules::mode::{S_IFDIR, S_IFMT};
use rules::names;
use rules::placement::{Candidate, Chosen, Count};
use stdx::Instant;

use super::{attributes, config, fetch, info, namespace, stripes, walk, writable};
use crate::api::{Answer, NewDir};
use crate::base::{Dest, Step, WaitKey};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::{self, fid_of};
use crate::coherence::kernel;
use crate::coherence::op::{Memo, Placed};
use crate::coherence::request::{Request, withdraw_change};
use crate::coherence::world::World;

/// How long a target is waited for that has to say how much it has.
const SPACE_PATIENCE: Duration = Duration::from_secs(1);
/// After this time without a target another one is chosen.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after that it is tried again if the request could not be withdrawn.
const ASKED_AGAIN: Duration = Duration::from_millis(50);

/// The targets of a new directory that a program makes in this one; `None`: that of its name alone. The same on every attempt,
/// until [`again`].
pub(super) fn of_new(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Option<Arc<Placed>>> {
    if let Some(Memo::Place(placed)) = cx.op.memo(Step::Place) {
        return Ok(Some(placed.clone()).filter(|placed| placed.wish.is_some()));
    }
    if cx.began(Step::Main) || cx.began(Step::Made) || cx.began(Step::NewFid(0)) {
        // An ordinary one is under way.
        return Ok(None);
    }
    walk(cx, parent)?;
    names::check(name)?;
    writable(cx)?;
    let Some(default) = default_of(cx, parent)? else { return Ok(None) };
    let own = stripes::of_name(cx, parent, name)?.dest;
    let placed = Arc::new(choose(cx, &default, own)?);
    cx.op.set_memo(Step::Place, Memo::Place(placed.clone()));
    Ok(Some(placed).filter(|placed| placed.wish.is_some()))
}

/// The default of a directory. With several metadata targets it has to be certain: it is asked for unless a lock covers it.
fn default_of(cx: &mut Cx<'_>, dir: u64) -> Run<Option<Box<DirDefault>>> {
    let node = cx.w.nodes.get(dir);
    let is_certain = node.is_some_and(|node| node.attr.is_some() && node.has(bits::LAYOUT));
    if cx.began(Step::PlaceDefault) || !is_certain && mdts(cx.w).nth(1).is_some() {
        match fetch(cx, Step::PlaceDefault, fid_of(dir)?) {
            // An ordinary mkdir has the error.
            Err(Stop::Errno(Errno::ESTALE | Errno::ENOENT)) => return Ok(None),
            fetched => fetched.map(drop)?,
        }
    }
    let node = cx.w.nodes.get(dir);
    Ok(node.and_then(|node| node.attr.as_ref()).and_then(|attr| attr.dir_default.clone()))
}

fn mdts(w: &World) -> impl Iterator<Item = u32> + '_ {
    w.imports.iter().filter_map(|target| match target.dest {
        Dest::Mdt(index) => Some(index),
        _ => None,
    })
}

/// Chooses targets as a default says. `own`: that of the name.
fn choose(cx: &mut Cx<'_>, default: &DirDefault, own: Dest) -> Run<Placed> {
    let count = Count::of(default).unwrap_or(Count::Each(1));
    let named = default.mdts.clone();
    let mdts = match named[..] {
        [first] if !count.is_many() => vec![first],
        // There is nothing to choose from.
        [] if !count.is_many() && mdts(cx.w).nth(1).is_none() => Vec::new(),
        [] | [_] => {
            let candidates = candidates(cx)?;
            let first = named.first().copied().or_else(|| balanced(cx.w, &candidates, default));
            let chosen = first.and_then(|first| Chosen::among(&candidates, Some(first), count));
            chosen.map_or(Vec::new(), |chosen| chosen.mdts)
        }
        _ => Chosen::named(&named, Some(count)).mdts,
    };
    let is_ordinary = match mdts[..] {
        [] => true,
        [only] => Dest::Mdt(only) == own,
        _ => false,
    };
    let wish = (!is_ordinary).then_some(NewDir { mdts, hash: default.hash });
    Ok(Placed { wish, named })
}

/// The metadata targets, with the room of those that can take new directories. Asks those whose space is not known, or was
/// long ago.
fn candidates(cx: &mut Cx<'_>) -> Run<Vec<Candidate>> {
    let all: Vec<u32> = mdts(cx.w).collect();
    let now = cx.now();
    let serves = |cx: &Cx<'_>, mdt: u32| {
        let target = cx.w.imports.get(Dest::Mdt(mdt))?;
        (target.is_full() && target.has(features::DIR_STRIPE))
            .then_some(target.space.map(|space| (space, target.space_at)))
    };
    let is_old = |cx: &Cx<'_>, mdt: u32| {
        let fresh = |at: Instant| now < at + cx.w.turns.space_age_max;
        serves(cx, mdt).is_some_and(|space| space.is_none_or(|(_, at)| !fresh(at)))
    };
    let is_asked = |mdt: &u32| cx.began(Step::Space(Dest::Mdt(*mdt))) || is_old(cx, *mdt);
    let asked: Vec<Dest> = all.iter().copied().filter(is_asked).map(Dest::Mdt).collect();
    if !asked.is_empty() {
        let until = Instant(cx.memo(Step::Until).unwrap_or((now + SPACE_PATIENCE).0));
        cx.set_memo(Step::Until, until.0);
        info::space(cx, asked, |_| false, Some(until))?;
    }
    let room = |mdt: u32| {
        let (space, _) = serves(cx, mdt)??;
        (space.files_free > 0 && space.available > 0).then_some((space.files_free, space.available))
    };
    Ok(all.into_iter().map(|mdt| Candidate { mdt, room: room(mdt) }).collect())
}

/// The target whose turn it is: each has the same share, or one by its free inodes.
fn balanced(w: &mut World, candidates: &[Candidate], default: &DirDefault) -> Option<u32> {
    let mut free: Vec<(u32, u64)> = candidates.iter().filter_map(|target| Some((target.mdt, target.room?.0))).collect();
    free.sort_unstable();
    let weights = match default.max_inherit_rr {
        0 => w.turns.qos.weights(&free.iter().map(|(_, free)| *free).collect::<Vec<_>>()),
        _ => None,
    };
    for (at, (_, weight)) in free.iter_mut().enumerate() {
        *weight = weights.as_ref().map_or(1, |weights| weights[at]);
    }
    w.turns.next(&free)
}

/// After an attempt to make a directory where its default says has ended in waiting: if a target that was chosen is away, and
/// nothing was done, another one is chosen. Returns whether the attempt starts again.
pub(super) fn again(cx: &mut Cx<'_>, placed: &Placed) -> bool {
    let mut chosen =
        placed.wish.iter().flat_map(|wish| &wish.mdts).filter(|mdt| !placed.named.contains(mdt)).peekable();
    if chosen.peek().is_none() {
        return false;
    }
    let now = cx.now();
    let is_gone = |mdt: &u32| {
        let since = cx.w.imports.get(Dest::Mdt(*mdt)).and_then(|target| target.import.away_since());
        since.is_some_and(|since| now >= since + PATIENCE)
    };
    let is_gone = chosen.any(is_gone);
    if is_gone && (!cx.began(Step::Main) || withdraw_change(cx.w, cx.op.id)) {
        stdx::mark!("placed_anew");
        forget(cx, placed);
        cx.forget(Step::Place);
        return true;
    }
    // The request may be on its way at this moment: it will be refused, or it was done.
    cx.w.set_timer(now + if is_gone { ASKED_AGAIN } else { PATIENCE });
    let _ = cx.wait(WaitKey::Timer);
    false
}

/// The targets may not place it there any more: it becomes an ordinary directory.
pub(super) fn give_up(cx: &mut Cx<'_>, placed: &Placed) {
    stdx::mark!("placement_refused");
    forget(cx, placed);
    cx.op.set_memo(Step::Place, Memo::Place(Arc::new(Placed { wish: None, named: Vec::new() })));
}

/// Forgets a request with which nothing was done, and its FIDs.
fn forget(cx: &mut Cx<'_>, placed: &Placed) {
    if cx.began(Step::Main) {
        cx.forget(Step::Main);
        cx.op.changes = cx.op.changes.saturating_sub(1);
    }
    for (number, mdt) in (0..).zip(placed.wish.iter().flat_map(|wish| &wish.mdts)) {
        if let Some(ino) = cx.memo(Step::NewFid(number))
            && let Ok(fid) = fid_of(ino)
        {
            fids::settled(cx.w, fid);
        }
        cx.forget(Step::NewFid(number));
        cx.forget(Step::Sequence(Dest::Mdt(*mdt)));
        cx.forget(Step::Space(Dest::Mdt(*mdt)));
    }
    cx.forget(Step::Until);
}

/// `GetDirDefault`.
pub(crate) fn get_default(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    walk(cx, ino)?;
    let attr = attributes(cx, ino, false)?;
    if attr.mode & S_IFMT != S_IFDIR {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(Answer::DirDefault(attr.dir_default))
}

/// `SetDirDefault`.
pub(crate) fn set_default(cx: &mut Cx<'_>, ino: u64, default: Option<&DirDefault>) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    writable(cx)?;
    let dest = cx.w.mdt_of(fid);
    if !cx.began(Step::Main) {
        namespace::takes_part(cx, dest)?;
        for mdt in default.into_iter().flat_map(|default| &default.mdts) {
            config::know(cx, Dest::Mdt(*mdt))?;
        }
    }
    cx.changing(Step::Changing(0), ino);
    stripes::before_change(cx, ino)?;
    kernel::hide(cx, &[ino])?;
    let result = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let (kind, dir_default) = (SetlayoutKind::DirDefault as i32, default.cloned().map(Box::new));
        let set = SetlayoutOp { fid, kind, dir_default, ..SetlayoutOp::default() };
        let request = Request::new(&op.change(None, Reint::Setlayout(set)));
        stripes::touched(w, request, ino).then(move |w, _| stripes::changed(w, ino))
    });
    super::stale_if_gone(result)?;
    Ok(Answer::Done)
}
