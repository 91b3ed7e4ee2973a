//! Prefetch of attributes for a program that looks at one file of a directory after another.
//!
//! `find -size`, `du` and many scripts list a directory and then look up each file's attributes, each with a request. A
//! program that does so in some order (that of the listing, of the names, or of the inode numbers, as `find` does) will
//! look at all of them. So the client fetches them in pieces of some hundred, with their locks, and later lookups find
//! them cached. How much is fetched grows with the prefetched attributes that were used and with the requests that
//! prefetching would have avoided: a program that looks at a few files costs little more than those, and one that
//! continues need not wait for the next piece.

use bytes::Bytes;

use super::dir::{piece, whole};
use crate::base::Step;
use crate::cache::sweep::{IN_ORDER, Sweep};
use crate::coherence::cx::{Cx, Run};
use crate::coherence::op::Task;

/// A lookup of a name was answered from the cache. Only counts in a directory with a sweep.
pub(crate) fn found(cx: &mut Cx<'_>, parent: u64, name: &Bytes, ino: u64) {
    let Some(dir) = cx.w.nodes.get_mut(parent).and_then(|node| node.dir.as_mut()) else { return };
    let Some(sweep) = &mut dir.sweep else { return };
    let Some((_, listing)) = &dir.listing else { return };
    sweep.used += 1;
    let place = sweep.find(&listing.entries, name);
    if sweep.count(name, ino, place) {
        fetch_more(cx, parent);
    }
}

/// Fetches another piece, if it is worth it and none is being fetched.
fn fetch_more(cx: &mut Cx<'_>, ino: u64) {
    let Some(sweep) = sweep_of(cx, ino) else { return };
    if sweep.is_worth_more() && !core::mem::replace(&mut sweep.fetching, true) {
        stdx::mark!("attributes_fetched_ahead");
        cx.spawn(Task::Ahead { ino });
    }
}

/// A lookup of a cached name has to fetch its object's attributes. Only counts if the whole listing is cached: a
/// program that has not listed a directory is not sweeping through it.
pub(crate) fn looked_up(cx: &mut Cx<'_>, parent: u64, name: &Bytes, ino: u64) {
    let Some(listing) = whole(cx.w, parent) else { return };
    // All of them must fit into the cache.
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
        && let Some(listed) = place.and_then(|place| listing.entries.get(place))
    {
        // Entries before it are not fetched.
        sweep.after = listed.cookie;
    }
    sweep.asked += 1;
    fetch_more(cx, parent);
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
            fetch_more(cx, ino);
        }
        // The next sweep starts again.
        _ => dir.sweep = None,
    }
    Ok(())
}

fn sweep_of<'c>(cx: &'c mut Cx<'_>, ino: u64) -> Option<&'c mut Sweep> {
    cx.w.nodes.get_mut(ino)?.dir.as_mut()?.sweep.as_deref_mut()
}
