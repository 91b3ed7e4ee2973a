//! Closes of open files, told to their servers in batches.
//!
//! Nobody waits for a close, so each waits a moment for others: while one request with closes is on its way the next
//! ones gather; otherwise [`GATHER_TIME`] or [`CLOSES_MAX`] of them send the request. What a close carries (an access time)
//! stays with the node until the answer, and the open stays in [`crate::imports::Imports::opens`] until then, so that it
//! is replayed before its close. Who needs closes to have happened asks for it:
//!
//! ```text
//!   add(F), add(G)                       lane: F G, due in 2 ms
//!   unlink of F: sent()                  request 1: F G           the unlink follows it
//!   add(H), add(I)                       lane: H I, request 1 in flight
//!   syncfs: drained(...)                 waits; request 2: H I as soon as 1 is answered; then it goes on
//! ```

use core::time::Duration;
use proto::msg::CLOSES_MAX;
use proto::{Transno, Xid};
use std::collections::{BTreeMap, VecDeque};
use stdx::Instant;

use crate::cx::{Cx, Run, Step};
use crate::data;
use crate::file::Closing;
use crate::imports::Dest;
use crate::op::{Task, WaitKey};
use crate::world::World;

/// How long a close waits for others.
pub(crate) const GATHER_TIME: Duration = Duration::from_millis(2);

/// The step of an operation that waits for closes to leave: until which one.
const SENT: Step = 59_998;

/// One close of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// What is closed.
    pub closing: Closing,
    /// The server's handle; 0 if it was not told of the open.
    pub handle: u64,
    /// A new access time; 0 if there is none.
    pub atime_ns: i64,
}

/// A request with closes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Where the files are open.
    pub dest: Dest,
    /// Not empty.
    pub items: Vec<Item>,
}

/// Closes of one server.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Closing>,
    /// When the first of them came.
    since: Instant,
    /// Closes in the request on its way; 0 if there is none.
    in_flight: usize,
    /// Those that wait are not to wait for others.
    hurried: bool,
    /// Closes ever added.
    added: u64,
}

impl Lane {
    /// Closes that have left.
    fn left(&self) -> u64 {
        self.added - self.waiting.len() as u64
    }

    /// Closes that have had their answer.
    fn answered(&self) -> u64 {
        self.left() - self.in_flight as u64
    }

    fn due(&self) -> Option<Instant> {
        (self.in_flight == 0 && !self.waiting.is_empty()).then(|| self.since + GATHER_TIME)
    }
}

/// All closes that were not answered.
#[derive(Debug, Default)]
pub struct Closes {
    lanes: BTreeMap<Dest, Lane>,
}

/// An open is over.
pub(crate) fn add(w: &mut World, closing: Closing) {
    let dest = closing.dest;
    let now = w.now;
    let lane = w.closes.lanes.entry(dest).or_default();
    if lane.waiting.is_empty() {
        lane.since = now;
    }
    lane.added += 1;
    lane.waiting.push_back(closing);
    kick(w, dest);
}

/// Sends what waits, if it is time.
fn kick(w: &mut World, dest: Dest) {
    let hurried = w.unmounting;
    loop {
        let Some(lane) = w.closes.lanes.get_mut(&dest) else { return };
        let due =
            lane.due().is_some_and(|due| hurried || lane.hurried || lane.waiting.len() >= CLOSES_MAX || due <= w.now);
        if !due {
            return;
        }
        let count = lane.waiting.len().min(CLOSES_MAX);
        let list: Vec<Closing> = lane.waiting.drain(..count).collect();
        lane.since = w.now;
        lane.hurried &= !lane.waiting.is_empty();
        let mut items = Vec::with_capacity(list.len());
        for closing in list {
            let atime_ns = w.nodes.get(closing.ino).and_then(|node| node.atime_ns).unwrap_or(0);
            let handle = match w.imports.opens.get(&(dest, closing.open_xid)) {
                Some(opened) => opened.handle,
                // It was open here, and there is only the access time to tell.
                None if closing.open_xid == Xid(0) && atime_ns != 0 => 0,
                // Without a record an eviction has closed it already.
                None => {
                    closed(w, &closing, Transno(0));
                    continue;
                }
            };
            items.push(Item { closing, handle, atime_ns });
        }
        if items.is_empty() {
            // They are done without a request.
            w.wake(WaitKey::Closes);
            w.wake(WaitKey::Drained);
            continue;
        }
        if let Some(lane) = w.closes.lanes.get_mut(&dest) {
            lane.in_flight = items.len();
        }
        w.spawn(Task::Close(Box::new(Batch { dest, items })));
        return;
    }
}

/// A request with closes was answered, or never will be.
pub(crate) fn answered(w: &mut World, dest: Dest) {
    if let Some(lane) = w.closes.lanes.get_mut(&dest) {
        lane.in_flight = 0;
    }
    w.wake(WaitKey::Closes);
    kick(w, dest);
}

/// One close took effect with the change `transno`; 0 if there was nothing to close.
pub(crate) fn closed(w: &mut World, closing: &Closing, transno: Transno) {
    if closing.open_xid != Xid(0) {
        w.imports.open_closed(closing.dest, closing.open_xid, transno);
    }
    if let Some(node) = w.nodes.get_mut(closing.ino) {
        node.opens = node.opens.saturating_sub(1);
        if node.opens == 0 && node.lookups == 0 && node.unlinked && data::is_clean(w, closing.ino) {
            w.drop_node(closing.ino);
        } else {
            w.nodes.loosened(closing.ino);
        }
    }
}

/// Waits until the closes so far have left, those of a file among them: what is sent next finds them done.
pub(crate) fn sent(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    let Some(lane) = cx.w.closes.lanes.get(&dest) else { return Ok(()) };
    let goal = cx.memo(SENT).unwrap_or(lane.added);
    cx.set_memo(SENT, goal);
    hurry(cx.w, dest);
    // Those with nothing to tell are done by that.
    match cx.w.closes.lanes.get(&dest) {
        Some(lane) if lane.left() < goal => Err(cx.wait(WaitKey::Closes)),
        _ => Ok(()),
    }
}

/// Closes that wait for others leave as soon as they can.
fn hurry(w: &mut World, dest: Dest) {
    if let Some(lane) = w.closes.lanes.get_mut(&dest) {
        lane.hurried = !lane.waiting.is_empty();
        kick(w, dest);
    }
}

/// Waits until every close so far is done. `step` and the following ones, one for each target, are the caller's memo.
pub(crate) fn drained(cx: &mut Cx<'_>, step: Step) -> Run<()> {
    let dests: Vec<Dest> = cx.w.closes.lanes.keys().copied().collect();
    let mut waits = false;
    for (index, dest) in dests.into_iter().enumerate() {
        let step = step + index as Step;
        let Some(lane) = cx.w.closes.lanes.get(&dest) else { continue };
        let (added, answered) = (lane.added, lane.answered());
        let goal = cx.memo(step).unwrap_or(added);
        if answered < goal {
            cx.set_memo(step, goal);
            hurry(cx.w, dest);
            waits |= cx.w.closes.lanes.get(&dest).is_some_and(|lane| lane.answered() < goal);
        }
    }
    if waits { Err(cx.wait(WaitKey::Closes)) } else { Ok(()) }
}

/// Whether closes of a file are not done yet.
pub(crate) fn pending(w: &World, ino: u64) -> bool {
    w.nodes.get(ino).is_some_and(|node| node.opens > node.handles)
}

/// Whether none waits and none is on its way.
pub(crate) fn idle(w: &World) -> bool {
    w.closes.lanes.values().all(|lane| lane.waiting.is_empty() && lane.in_flight == 0)
}

/// The same of one server.
pub(crate) fn is_idle(w: &World, dest: Dest) -> bool {
    w.closes.lanes.get(&dest).is_none_or(|lane| lane.waiting.is_empty() && lane.in_flight == 0)
}

/// When [`tick`] wants to be called.
pub(crate) fn deadline(w: &World) -> Option<Instant> {
    w.closes.lanes.values().filter_map(Lane::due).min()
}

/// Time passed.
pub(crate) fn tick(w: &mut World) {
    let now = w.now;
    let due: Vec<Dest> = w
        .closes
        .lanes
        .iter()
        .filter(|(_, lane)| lane.due().is_some_and(|due| due <= now))
        .map(|(dest, _)| *dest)
        .collect();
    for dest in due {
        kick(w, dest);
    }
}
