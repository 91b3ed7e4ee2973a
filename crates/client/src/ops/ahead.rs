//! Attributes ahead of the program that looks at one file of a directory after another.
//!
//! `find -size`, `du` and many scripts list a directory and then ask for each file's attributes, each a request. Whoever does
//! so in some order (that of the listing, of the names, or of the inode numbers, as `find` does) will ask for them all: the
//! client fetches them in pieces of some hundred, with their locks, and what is here is not asked for. The more was asked
//! for in vain, the more is fetched, so that a program which looks at a few files costs little more than those.

use bytes::Bytes;

use super::dir::{piece, whole};
use super::step;
use crate::cx::{Cx, Run, Step};
use crate::names::Listed;
use crate::op::Task;

/// So many requests in order are a sweep, and so many more of them are worth another piece.
const IN_ORDER: u32 = 16;
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
    asked: u32,
    /// Pieces that were fetched, and the cookie after which the next begins.
    fetched: u32,
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

    /// Whether what was asked for is worth another piece.
    fn is_worth_more(&self) -> bool {
        self.fetched < self.asked.div_ceil(IN_ORDER)
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
    if sweep.is_worth_more() && !core::mem::replace(&mut sweep.fetching, true) {
        stdx::mark!("attributes_fetched_ahead");
        cx.spawn(Task::Ahead { ino: parent });
    }
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
    let Some(sweep) = sweep_of(cx, ino) else { return Ok(()) };
    sweep.fetched += 1;
    match stream.entries.last() {
        Some(last) if !stream.end => sweep.after = last.cookie,
        // The next sweep begins anew.
        _ => *sweep = Sweep::default(),
    }
    sweep.fetching = sweep.is_worth_more();
    if sweep.fetching {
        cx.spawn(Task::Ahead { ino });
    }
    Ok(())
}

fn sweep_of<'c>(cx: &'c mut Cx<'_>, ino: u64) -> Option<&'c mut Sweep> {
    cx.w.nodes.get_mut(ino)?.dir.as_mut()?.sweep.as_deref_mut()
}
