//! Attributes ahead of the program that looks at one file of a directory after another.
//!
//! `find -size`, `du` and many scripts list a directory and then ask for each file's attributes, each a request. Whoever does
//! so in some order (that of the listing, of the names, or of the inode numbers, as `find` does) will ask for them all: the
//! client fetches them in pieces of some hundred, with their locks, and what is here is not asked for. The more of what came is
//! used, and the more was asked for in vain, the more is fetched: so a program which looks at a few files costs little more than
//! those, and one that goes on does not wait for the next piece.

use bytes::Bytes;

use super::dir::{piece, whole};
use super::step;
use crate::cx::{Cx, Run, Step};
use crate::names::Listed;
use crate::op::Task;

/// So many requests in order are a sweep.
const IN_ORDER: u32 = 16;
/// A request made in vain is worth the attributes of so many files,
const WORTH_ASKED: u64 = 40;
/// and each use of such attributes that of so many: the next piece is asked for when half of the last is used.
const WORTH_USED: u64 = 2;
/// How far ahead in the listing the next name may be.
const STRIDE: usize = 8;
/// After so many names that were not there, the whole listing is searched for one.
const LOST: u32 = 256;

/// How somebody goes through a directory, and what has been fetched ahead.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The name that was asked for last, its inode number, and where after it the listing goes on.
    name: Bytes,
    ino: u64,
    place: usize,
    /// Names that were not where the listing goes on.
    lost: u32,
    /// How many in a row followed by name, by number, by place.
    in_order: [u32; 3],
    /// Asked for since the sweep was seen.
    asked: u64,
    /// Looked up, and here, since something was fetched.
    used: u64,
    /// Files whose attributes were fetched, and the cookie after which the next piece begins.
    fetched: u64,
    after: u64,
    fetching: bool,
}

impl Sweep {
    /// Where a name stands in the listing, if it is the next one or so.
    fn find(&mut self, entries: &[Listed], name: &Bytes) -> Option<usize> {
        let rest = entries.get(self.place..).unwrap_or_default();
        let near = rest.iter().take(STRIDE).position(|listed| listed.name == name).map(|at| self.place + at);
        if near.is_some() {
            return near;
        }
        self.lost = self.lost.wrapping_add(1);
        if self.lost % LOST == 1 { entries.iter().position(|listed| listed.name == name) } else { None }
    }

    /// Counts a request; whether it is one of a sweep.
    fn count(&mut self, name: &Bytes, ino: u64, place: Option<usize>) -> bool {
        let follows = [*name > self.name, ino > self.ino, place.is_some()];
        for (count, follows) in self.in_order.iter_mut().zip(follows) {
            *count = if follows { *count + 1 } else { 0 };
        }
        self.name = name.clone();
        self.ino = ino;
        self.place = place.map_or(0, |place| place + 1);
        self.in_order.iter().any(|count| *count >= IN_ORDER)
    }

    /// Whether the program was seen to want so many attributes that another piece is worth it.
    fn is_worth_more(&self) -> bool {
        self.asked > 0 && self.fetched < WORTH_ASKED * self.asked + WORTH_USED * self.used
    }
}

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
    /// The cookie after which the piece begins.
    const AFTER: Step = 100;
    let after = match cx.memo(AFTER) {
        Some(after) => after,
        None => {
            let Some(after) = sweep_of(cx, ino).map(|sweep| sweep.after) else { return Ok(()) };
            cx.set_memo(AFTER, after);
            after
        }
    };
    let stream = piece(cx, step::MANY, ino, after, true)?;
    let Some(dir) = cx.w.nodes.get_mut(ino).and_then(|node| node.dir.as_mut()) else { return Ok(()) };
    match (stream.entries.last(), &mut dir.sweep) {
        (Some(last), Some(sweep)) if !stream.end => {
            sweep.fetched += stream.entries.len() as u64;
            sweep.after = last.cookie;
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
