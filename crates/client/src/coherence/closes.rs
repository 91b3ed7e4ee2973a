//! Closes of open files, sent to their servers in batches.
//!
//! No program waits for a close, so closes gather for a moment ([`crate::coherence::outbox`]). What a close carries (an
//! access time) stays in the node until the reply, and the open stays in [`crate::session::Imports::opens`] until then,
//! so that it is replayed before its close. An operation that depends on closes waits for them with [`sent`] or
//! [`drained`]:
//!
//! ```text
//!   add(F), add(G)                       lane: F G, due in 2 ms
//!   unlink of F: sent()                  request 1: F G           the unlink follows it
//!   add(H), add(I)                       lane: H I, request 1 in flight
//!   syncfs: drained(...)                 waits; request 2: H I as soon as 1 is answered; then syncfs continues
//! ```

use core::num::NonZero;
use core::time::Duration;
use proto::connect::features;
use proto::msg::{CLOSES_MAX, Close, CloseRep, CloseReq};
use proto::{Opcode, Transno, Xid};
use smallvec::SmallVec;

use crate::base::{Dest, Step, WaitKey};
use crate::cache::file::Closing;
use crate::cache::node::Hold;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data;
use crate::coherence::fids::fid_of;
use crate::coherence::op::Task;
use crate::coherence::outbox::Outbox;
use crate::coherence::request::Request;
use crate::coherence::world::World;
use crate::coherence::{locks, metadata_write_back};

/// How long a close waits for others.
pub(crate) const GATHER_TIME: Duration = Duration::from_millis(2);

/// One close of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// The open that is closed.
    pub closing: Closing,
    /// The server's handle; 0 if the open was not reported.
    pub handle: u64,
    /// A new access time; 0 if there is none.
    pub atime_ns: i64,
}

/// A request with closes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    /// The target at which the files are open.
    pub dest: Dest,
    /// Not empty.
    pub items: Vec<Item>,
}

/// The closes without a reply.
pub(crate) type Closes = Outbox<Closing>;

/// An empty outbox: see [`Closes`].
pub(crate) fn none() -> Closes {
    Outbox::new(GATHER_TIME, CLOSES_MAX)
}

/// Adds a close.
pub(crate) fn add(w: &mut World, closing: Closing) {
    let (dest, now) = (closing.dest, w.now);
    w.closes.lane(dest).add(closing, now);
    kick(w, dest);
}

/// Sends the waiting closes if they are due.
fn kick(w: &mut World, dest: Dest) {
    while w.closes.is_due(dest, w.now, w.unmounting) {
        let now = w.now;
        let list = w.closes.lane(dest).take(CLOSES_MAX, now);
        let mut items = Vec::with_capacity(list.len());
        for closing in list {
            let atime_ns = w.nodes.get(closing.ino).and_then(|node| node.atime_ns).map_or(0, NonZero::get);
            let handle = match w.imports.opened_by(dest, closing.open_xid) {
                Some(opened) => opened.handle,
                // An unreported open: only the access time is sent.
                None if closing.open_xid == Xid(0) && atime_ns != 0 => 0,
                // Without an entry in `opens`, an eviction has closed it already.
                None => {
                    w.closes.lane(dest).done_at_once(1);
                    closed(w, &closing, Transno(0));
                    continue;
                }
            };
            items.push(Item { closing, handle, atime_ns });
        }
        if items.is_empty() {
            // All of them were completed without a request.
            w.wake(WaitKey::Closes);
            w.wake(WaitKey::Drained);
        } else {
            w.spawn(Task::Close(Box::new(Batch { dest, items })));
        }
    }
}

/// A request with closes was answered, or never will be.
fn batch_done(w: &mut World, dest: Dest) {
    w.closes.lane(dest).arrived();
    w.wake(WaitKey::Closes);
    kick(w, dest);
}

/// One close took effect with the change `transno`; 0 if there was nothing to close.
fn closed(w: &mut World, closing: &Closing, transno: Transno) {
    if closing.open_xid != Xid(0) {
        w.imports.open_closed(closing.dest, closing.open_xid, transno);
    }
    w.release(closing.ino, Hold::Open);
}

/// Waits until all closes added so far were sent: a request that is sent next finds them done.
pub(crate) fn sent(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    let goal = cx.memo(Step::ClosesSent).unwrap_or(cx.w.closes.lane(dest).added());
    cx.set_memo(Step::ClosesSent, goal);
    flush(cx.w, dest);
    // Closes that carry nothing are completed by that.
    if cx.w.closes.lane(dest).left() < goal { Err(cx.wait(WaitKey::Closes)) } else { Ok(()) }
}

/// Sends the waiting closes as soon as the lane is free.
fn flush(w: &mut World, dest: Dest) {
    w.closes.flush(dest);
    kick(w, dest);
}

/// Waits until all closes added so far are answered.
pub(crate) fn drained(cx: &mut Cx<'_>) -> Run<()> {
    let lanes: SmallVec<[(Dest, u64); 4]> = cx.w.closes.lanes().map(|(dest, lane)| (dest, lane.added())).collect();
    let mut waits = false;
    for (dest, added) in lanes {
        let goal = cx.memo(Step::ClosesDone(dest)).unwrap_or(added);
        if cx.w.closes.lane(dest).answered() < goal {
            cx.set_memo(Step::ClosesDone(dest), goal);
            flush(cx.w, dest);
            waits |= cx.w.closes.lane(dest).answered() < goal;
        }
    }
    if waits { Err(cx.wait(WaitKey::Closes)) } else { Ok(()) }
}

/// Whether closes of a file are not answered yet.
pub(crate) fn pending(w: &World, ino: u64) -> bool {
    w.nodes.get(ino).is_some_and(|node| node.held(Hold::Open) > node.held(Hold::Handle))
}

/// Sends the closes that are due.
pub(crate) fn tick(w: &mut World) {
    for dest in w.closes.due(w.now) {
        kick(w, dest);
    }
}

/// Background: sends a batch of closes.
pub(crate) fn send(cx: &mut Cx<'_>, batch: &Batch) -> Run<()> {
    if !cx.began(Step::Main) {
        // The request is sent now, before the waiting operations run again.
        cx.w.wake(WaitKey::Closes);
    }
    let reply = cx.start_rpc(Step::Main, batch.dest, Opcode::MdsClose, |_, _| {
        let close = |item: &Item| Close { fid: item.closing.fid, handle: item.handle, atime_ns: item.atime_ns };
        Request::new(&CloseReq { closes: batch.items.iter().map(close).collect() })
    });
    let (transno, rep) = match reply {
        None => return Err(Stop::Wait),
        Some(Ok(reply)) => (reply.header.transno, reply.frame().decode::<CloseRep>().ok()),
        Some(Err(_)) => (Transno(0), None),
    };
    let answered = rep.is_some();
    let mut results = rep.map(|rep| rep.results).unwrap_or_default();
    for (index, item) in batch.items.iter().enumerate() {
        let at = results.iter().position(|result| result.index as usize == index);
        let result = at.map(|at| results.swap_remove(at)).unwrap_or_default();
        let done = answered && result.status >= 0;
        if done {
            access_time_acknowledged(cx.w, item);
        }
        if result.destroyed {
            locks::destroyed(cx.w, batch.dest, item.closing.fid);
            data::discard(cx.w, item.closing.ino);
        }
        closed(cx.w, &item.closing, if done { transno } else { Transno(0) });
    }
    batch_done(cx.w, batch.dest);
    Ok(())
}

/// The server has stored the access time that a close carried.
fn access_time_acknowledged(w: &mut World, item: &Item) {
    if let Some(node) = w.nodes.get_mut(item.closing.ino)
        && node.atime_ns.is_some_and(|atime| atime.get() <= item.atime_ns)
    {
        if let Some(attr) = &mut node.attr {
            attr.atime_ns = attr.atime_ns.max(item.atime_ns);
        }
        node.atime_ns = None;
    }
}

/// Background: sends an access time that no close carries, as a close without a handle.
pub(crate) fn atime(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let fid = fid_of(ino)?;
    let Some(atime_ns) = cx.w.nodes.get(ino).and_then(|node| node.atime_ns).map(NonZero::get) else { return Ok(()) };
    if metadata_write_back::accessed(cx, ino, atime_ns)? {
        return Ok(());
    }
    metadata_write_back::settled(cx, ino)?;
    let dest = cx.w.mdt_of(fid);
    if cx.w.imports.get(dest).is_some_and(|target| target.has(features::OPEN_BY_FID))
        && cx.w.nodes.hold(ino, Hold::Open)
    {
        add(cx.w, Closing { ino, fid, dest, open_xid: Xid(0) });
    }
    Ok(())
}
