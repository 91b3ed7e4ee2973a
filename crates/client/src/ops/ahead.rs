//! Attributes ahead of the program that looks at one file of a directory after another.
//!
//! `find -size`, `du` and many scripts list a directory and then ask for each file's attributes, each a request. Whoever does
//! so in some order (that of the listing, of the names, or of the inode numbers, as `find` does) will ask for them all: the
//! client fetches them in pieces of some hundred, with their locks, and what is here is not asked for. The more of what came is
//! used, and the more was asked for in vain, the more is fetched: so a program which looks at a few files costs little more than
//! those, and one that goes on does not wait for the next piece.

use bytes::Bytes;

use super::dir::{piece, whole};
use crate::base::Step;
use crate::cache::sweep::{IN_ORDER, Sweep};
use crate::coherence::cx::{Cx, Run};
use crate::coherence::op::Task;

/// A lookup of a name is answered from here. Only where somebody goes through the directory that is of interest.
pub(crate) fn found(cx: &mut Cx<'_>, parent: u64, name: &Bytes, ino: u64) {
    let Some(dir) = cx.w.nodes.get_mut(parent).and_then(|node| node.dir.as_mut()) else { return };
    let Some(sweep) = &mut dir.sweep else { return };
    let Some((_, listing)) = &dir.listing else { return };
    sweep.used += 1;
    let place = sweep.find(&listing.entries, name);
    if sweep.count(name, ino, place) {
        go_on(cx, parent);
    }
}

/// Fetches another piece, if it is worth it and none is on its way.
fn go_on(cx: &mut Cx<'_>, ino: u64) {
    let Some(sweep) = sweep_of(cx, ino) else { return };
    if sweep.is_worth_more() && !core::mem::replace(&mut sweep.fetching, true) {
        stdx::mark!("attributes_fetched_ahead");
        cx.spawn(Task::Ahead { ino });
    }
}

/// A lookup of a name that is known asks for its object's attributes. Only with the whole listing here: who has not
/// listed a directory is not going through it.
pub(crate) fn looked_up(cx: &mut Cx<'_>, parent: u64, name: &Bytes, ino: u64) {
    let Some(listing) = whole(cx.w, parent) else { return };
    // What is fetched has to find room.
    if listing.entries.len() > cx.w.options.max_nodes {
        return;
    }
    let Some(dir) = cx.w.nodes.get_mut(parent).and_then(|node| node.dir.as_mut()) else { return };
    let sweep = dir.sweep.get_or_insert_default();
    let place = sweep.find(&listing.entries, name);
    if !sweep.count(name, ino, place) {
        return;
    }
    if sweep.asked == 0
        && sweep.in_order[2] >= IN_ORDER
        && let Some(here) = place.and_then(|place| listing.entries.get(place))
    {
        // What comes before is not asked for again.
        sweep.after = here.cookie;
    }
    sweep.asked += 1;
    go_on(cx, parent);
}

/// Background: fetches the next piece.
pub(crate) fn fetch(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let after = match cx.memo(Step::SweepAfter) {
        Some(after) => after,
        None => {
            let Some(after) = sweep_of(cx, ino).map(|sweep| sweep.after) else { return Ok(()) };
            cx.set_memo(Step::SweepAfter, after);
            after
        }
    };
    let stream = piece(cx, 0, ino, after, true)?;
    let Some(dir) = cx.w.nodes.get_mut(ino).and_then(|node| node.dir.as_mut()) else { return Ok(()) };
    match (stream.last(), &mut dir.sweep) {
        (Some(last), Some(sweep)) if !stream.piece.end => {
            sweep.fetched += stream.piece.entries.len() as u64;
            sweep.after = last;
            sweep.fetching = false;
            go_on(cx, ino);
        }
        // The next sweep begins anew.
        _ => dir.sweep = None,
    }
    Ok(())
}

fn sweep_of<'c>(cx: &'c mut Cx<'_>, ino: u64) -> Option<&'c mut Sweep> {
    cx.w.nodes.get_mut(ino)?.dir.as_mut()?.sweep.as_deref_mut()
}
