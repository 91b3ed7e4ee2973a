//! Local opens: files that are open at this client without an open at the server.
//!
//! The server must know which files are open, so that an object without a name lasts until its last close. As long as
//! no name of a file can be removed without this client's knowledge, the server need not know of the open, and open and
//! close send no request. This holds for
//!
//! - *private* files ([`crate::coherence::metadata_write_back`]), opened in any mode: their names cannot change before
//!   the lease of their directory goes back;
//! - every other file that is opened for reading while this client holds the LOOKUP lock of the file, has attributes
//!   under a lock that grant access, and knows that the version it has seen survives a crash of the server.
//!
//! The server learns of a local open before the file's last name can be removed. When another client removes the name,
//! or this client drops the node, the callback of the lock reports the open first ([`give_back`]). When this client
//! itself removes the name, it reports the open before it sends the request ([`report_before_removal`]), and says so in
//! the request ([`reported`]).
//!
//! ```text
//!   open for reading            nothing is sent
//!   another client unlinks it   callback of LOOKUP: open by FID, then the lock goes back; the object lasts
//!   close                       of an unreported open: only a new access time is sent, batched with others
//! ```
//!
//! Reporting a local open skips the permission check: it was made when the file was opened.

use bytes::Bytes;
use dlm::client::HeldLock;
use proto::connect::features;
use proto::msg::{Attr, OpenOp, Policy, Reint, ReintReq, ResourceKind, bits};
use proto::{Fid, Opcode};
use smallvec::SmallVec;
use std::ops::RangeInclusive;

use crate::api::FileHandle;
use crate::base::Step;
use crate::cache::file::{Closing, LocalOpen, flags as o, of_file, of_lease};
use crate::cache::names::KnownName;
use crate::cache::node::{Hold, Node};
use crate::coherence::closes;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::metadata_write_back;
use crate::coherence::op::Task;
use crate::coherence::request::Request;
use crate::coherence::world::World;

/// Most files open at a time for a new open to be local: a quarter of what a server allows by default
/// (`max_open_files`), because all local opens may have to be reported.
const FILES_MAX: usize = 1 << 16;

/// Most opens that one operation reports at a time: each attempt looks at all of them.
const REPORTS_MAX: usize = 64;

/// Whether a file may be opened locally.
pub(crate) fn may_open(cx: &Cx<'_>, ino: u64, flags: u32) -> bool {
    const SERVER_ONLY: u32 = o::TRUNC | o::DIRECTORY | o::PATH | o::NOATIME;
    if cx.began(Step::Main) || flags & SERVER_ONLY != 0 || cx.w.files.len() >= FILES_MAX {
        return false;
    }
    let Some(node) = cx.w.nodes.get(ino).filter(|node| node.is_regular()) else { return false };
    let mask = match flags & o::ACCMODE {
        0 if flags & o::EXEC != 0 => 1,
        0 => 4,
        o::WRONLY => 2,
        _ => 6,
    };
    let lasts = metadata_write_back::is_private(cx.w, node) || flags & o::ACCMODE == 0 && has_lock(cx.w, node);
    lasts
        && !node.is_held(Hold::Changing)
        && !node.unlinked
        && node.knows_access()
        && cx.w.nodes.permitted(ino, mask, &cx.op.cred) == Some(true)
}

/// Whether the LOOKUP lock is held and a restarted server will grant it again. The server refuses that to a client that
/// has seen a version which it lost.
fn has_lock(w: &World, node: &Node) -> bool {
    let Some(target) = w.imports.get(w.mdt_of(node.fid)) else { return false };
    let durable = |attr: &Attr| attr.version <= target.import.last_committed().0;
    target.has(features::OPEN_BY_FID) && node.has(bits::LOOKUP) && node.covered_attr().is_some_and(durable)
}

/// Closes a local open.
pub(crate) fn closed(cx: &mut Cx<'_>, ino: u64) {
    if cx.w.nodes.get(ino).is_some_and(|node| node.atime_ns.is_some() && !node.unlinked) {
        cx.spawn(Task::Atime { ino });
    }
    cx.w.release(ino, Hold::Open);
}

/// Before a lock goes back that covers LOOKUP, reports the local opens of the file.
pub(crate) fn give_back(cx: &mut Cx<'_>, lock: &HeldLock) -> Run<()> {
    match (lock.resource.kind(), lock.policy) {
        (ResourceKind::Inode, Policy::Bits(held)) if held & bits::LOOKUP != 0 => {
            publish_object(cx, lock.resource.fid.ino())
        }
        _ => Ok(()),
    }
}

/// A LOOKUP lock was lost without a callback: reports the local opens of the file as soon as possible.
pub(crate) fn lost(w: &mut World, ino: u64) {
    let Some(node) = w.nodes.get(ino).filter(|node| node.is_held(Hold::Handle)) else { return };
    if w.files.local_opens(of_file(node.private, ino)).next().is_some() {
        stdx::mark!("local_open_without_lock");
        w.spawn(Task::Publish { ino });
    }
}

/// Before this client sends a request that removes a name: no operation may open the file locally until this one ends,
/// its local opens are reported, and its waiting closes are sent, so that the server finds the current state. Does
/// nothing if the name is not cached. `at` is the operation's step for it.
pub(crate) fn report_before_removal(cx: &mut Cx<'_>, parent: u64, name: &Bytes, at: Step) -> Run<()> {
    let KnownName::Child(fid) = cx.w.nodes.known_name(parent, name) else { return Ok(()) };
    let dest = cx.w.mdt_of(fid);
    cx.changing(at, fid.ino());
    publish_object(cx, fid.ino())?;
    if closes::pending(cx.w, fid.ino()) { closes::sent(cx, dest) } else { Ok(()) }
}

/// The object that a name leads to, if its opens are all reported and no local open can follow. See [`UnlinkOp::reported`].
///
/// [`UnlinkOp::reported`]: proto::msg::UnlinkOp::reported
pub(crate) fn reported(cx: &Cx<'_>, parent: u64, name: &Bytes, at: Step) -> Option<Fid> {
    match cx.w.nodes.known_name(parent, name) {
        KnownName::Child(fid) if cx.is_changing(at, fid.ino()) => Some(fid),
        _ => None,
    }
}

/// Reports the local opens of one object.
pub(crate) fn publish_object(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let node = cx.w.nodes.get(ino).filter(|node| node.is_held(Hold::Handle));
    let which = node.map(|node| of_file(node.private, ino));
    publish(cx, which)
}

/// Reports the local opens of all objects that were made under a lease.
pub(crate) fn publish_lease(cx: &mut Cx<'_>, lease: u64) -> Run<()> {
    publish(cx, Some(of_lease(lease)))
}

/// Reports the local opens of `which`, up to [`REPORTS_MAX`] at a time, and finishes the reports that were started
/// before.
fn publish(cx: &mut Cx<'_>, which: Option<RangeInclusive<LocalOpen>>) -> Run<()> {
    let noted = cx.op.steps_in(Step::Publish(0)..=Step::Publish(u64::MAX)).iter().filter_map(|(step, _)| match step {
        Step::Publish(fh) => Some(*fh),
        _ => None,
    });
    let noted: SmallVec<[u64; 8]> = noted.collect();
    let mut under_way = 0;
    for fh in noted {
        under_way += usize::from(!report_open(cx, FileHandle(fh))?);
    }
    while let Some(which) = &which {
        let is_new = |(_, fh): &(u64, FileHandle)| !cx.began(Step::Publish(fh.0));
        let free = REPORTS_MAX - under_way;
        let next: SmallVec<[(u64, FileHandle); 8]> =
            cx.w.files.local_opens(which.clone()).filter(is_new).take(free).collect();
        if next.is_empty() {
            break;
        }
        for (ino, fh) in next {
            cx.set_memo(Step::Publish(fh.0), ino);
            under_way += usize::from(!report_open(cx, fh)?);
        }
    }
    if under_way > 0 { Err(Stop::Wait) } else { Ok(()) }
}

/// Reports one local open to the server. Returns whether that is done.
fn report_open(cx: &mut Cx<'_>, fh: FileHandle) -> Run<bool> {
    let (at, note) = (Step::PublishSent(fh.0), Step::Publish(fh.0));
    let ino = cx.memo(note).unwrap_or(0);
    let fid = fid_of(ino)?;
    // One operation may report files of several metadata targets.
    let dest = cx.w.mdt_of(fid);
    let now_ns = cx.wall_ns();
    let file = cx.w.files.get(fh).filter(|file| file.ino == ino && file.is_local());
    let Some((flags, cred)) = file.map(|file| (file.flags & o::ACCMODE, file.cred.clone())).or_else(|| {
        // The file was closed meanwhile. If the report was sent, its open is closed again when the reply arrives.
        cx.began(at).then(|| (0, cx.op.cred.clone()))
    }) else {
        cx.forget(note);
        return Ok(true);
    };
    // With `O_PATH` the server does not check the mode again.
    let reply = cx.start_rpc(at, dest, Opcode::MdsReint, |_, _| {
        let op = OpenOp { fid, flags: flags | o::PATH, ..OpenOp::default() };
        let open = ReintReq { cred: Some((*cred).clone()), now_ns, want: None, op: Some(Reint::Open(op)) };
        Request::new(&open).opening()
    });
    let result = match reply {
        None => return Ok(false),
        Some(result) => result.map(|reply| reply.header.xid),
    };
    // The handle may be used for another file later.
    cx.forget(at);
    cx.forget(note);
    let same = cx.w.files.get(fh).is_some_and(|file| file.ino == ino && file.is_local());
    match (result, same) {
        (Ok(xid), true) => {
            cx.w.files.reported(fh, xid);
            cx.w.imports.opened_as(dest, xid, fh);
        }
        (Ok(open_xid), false) => {
            cx.w.nodes.obtain(fid);
            cx.w.nodes.hold(ino, Hold::Open);
            closes::add(cx.w, Closing { ino, fid, dest, open_xid });
        }
        (Err(_), true) => cx.w.files.lost(fh),
        (Err(_), false) => {}
    }
    Ok(true)
}

/// Background: reports the local opens of an object.
pub(crate) fn report(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    cx.op.urgent = true;
    publish_object(cx, ino)
}
