//! Files that are open here, and not on the server.
//!
//! A server has to know what is open so that an object without a name lasts until it is closed. As long as nobody can take the
//! name away unheard, it need not know: then an open and its close are no requests. That is so for
//!
//! - *private* files ([`crate::coherence::metadata_write_back`]), whatever they are opened for: the lease of their directory goes back first;
//! - every other file that is opened for reading while this client has a lock on what its name leads to (LOOKUP), attributes
//!   under a lock that allow it, and no doubt that the server will still know them after a crash.
//!
//! Before the last name can go the server is told ([`publish_object`]): others who remove a name, and this client when it forgets, have
//! the lock called back ([`give_back`]); who removes a name here tells first, and says so with the request ([`name_goes`], [`told`]).
//!
//! ```text
//!   open for reading            nothing is sent
//!   somebody else unlinks it    callback of LOOKUP: open by FID, then the lock goes back; the object lasts
//!   close                       nothing is sent if the server was not told, but a new access time, many in one request
//! ```
//!
//! An open that is told of asks for no permission: it was there when the file was opened.

use bytes::Bytes;
use dlm::client::HeldLock;
use proto::connect::features;
use proto::msg::{Attr, OpenOp, Policy, Reint, ReintReq, ResourceKind, bits};
use proto::{Fid, Opcode};
use smallvec::SmallVec;
use std::ops::RangeInclusive;

use crate::api::FileHandle;
use crate::base::Dest;
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

/// Most files that are open at a time for one to be open here: a quarter of what a server allows by default (`max_open_files`),
/// for it may have to be told of them all.
const FILES_MAX: usize = 1 << 16;

/// Most opens that one operation tells at a time: each attempt looks at them all.
const TELLING_MAX: usize = 64;

/// Whether a file may be opened so without asking.
pub(crate) fn may_open(cx: &Cx<'_>, ino: u64, flags: u32) -> bool {
    const ASKED: u32 = o::TRUNC | o::DIRECTORY | o::PATH | o::NOATIME;
    if cx.began(Step::Main) || flags & ASKED != 0 || cx.w.files.len() >= FILES_MAX {
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

/// Whether a lock says what the file's name leads to, and a restarted server will give it again: it refuses that to who has
/// seen what it has lost.
fn has_lock(w: &World, node: &Node) -> bool {
    let Some(target) = w.imports.get(w.mdt_of(node.fid)) else { return false };
    let durable = |attr: &Attr| attr.version <= target.import.last_committed().0;
    target.has(features::OPEN_BY_FID) && node.has(bits::LOOKUP) && node.covered_attr().is_some_and(durable)
}

/// A file is closed that the server does not know to be open.
pub(crate) fn closed(cx: &mut Cx<'_>, ino: u64) {
    if cx.w.nodes.get(ino).is_some_and(|node| node.atime_ns.is_some() && !node.unlinked) {
        cx.spawn(Task::Atime { ino });
    }
    cx.w.release(ino, Hold::Open);
}

/// Before a lock goes back that says what the name of a file leads to: what programs have open of it is open on the server.
pub(crate) fn give_back(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    match (lock.resource.kind(), lock.policy) {
        (ResourceKind::Inode, Policy::Bits(held)) if held & bits::LOOKUP != 0 => {
            publish_object(cx, dest, lock.resource.fid.ino())
        }
        _ => Ok(()),
    }
}

/// A lock is gone without having been given back: the server is told now, as soon as it can be.
pub(crate) fn lost(w: &mut World, ino: u64) {
    let Some(node) = w.nodes.get(ino).filter(|node| node.is_held(Hold::Handle)) else { return };
    if w.files.local_opens(of_file(node.private, ino)).next().is_some() {
        stdx::mark!("open_here_without_lock");
        w.spawn(Task::Publish { ino });
    }
}

/// Before this client asks a server to take a name away: what it leads to, as far as that is known, is opened here no more until
/// the operation is over, and what programs have open of it is told, with closes of it that wait: the server is to find it as it is.
/// `at` is the operation's step for that.
pub(crate) fn name_goes(cx: &mut Cx<'_>, dest: Dest, parent: u64, name: &Bytes, at: Step) -> Run<()> {
    let KnownName::Child(fid) = cx.w.nodes.known_name(parent, name) else { return Ok(()) };
    cx.changing(at, fid.ino());
    publish_object(cx, dest, fid.ino())?;
    if closes::pending(cx.w, fid.ino()) { closes::sent(cx, dest) } else { Ok(()) }
}

/// What a name leads to, if the server was told of all opens of that, and will be of new ones. See [`UnlinkOp::told`].
///
/// [`UnlinkOp::told`]: proto::msg::UnlinkOp::told
pub(crate) fn told(cx: &Cx<'_>, parent: u64, name: &Bytes, at: Step) -> Option<Fid> {
    match cx.w.nodes.known_name(parent, name) {
        KnownName::Child(fid) if cx.is_changing(at, fid.ino()) => Some(fid),
        _ => None,
    }
}

/// Opens on the server what programs have open here of one object.
pub(crate) fn publish_object(cx: &mut Cx<'_>, dest: Dest, ino: u64) -> Run<()> {
    let node = cx.w.nodes.get(ino).filter(|node| node.is_held(Hold::Handle));
    let which = node.map(|node| of_file(node.private, ino));
    publish(cx, dest, which)
}

/// The same of all objects that were made under a lease.
pub(crate) fn publish_lease(cx: &mut Cx<'_>, dest: Dest, lease: u64) -> Run<()> {
    publish(cx, dest, Some(of_lease(lease)))
}

/// Tells of those opens, so many at a time, and of all that were noted before.
fn publish(cx: &mut Cx<'_>, dest: Dest, which: Option<RangeInclusive<LocalOpen>>) -> Run<()> {
    let noted = cx.op.steps_in(Step::Publish(0)..=Step::Publish(u64::MAX)).iter().filter_map(|(step, _)| match step {
        Step::Publish(fh) => Some(*fh),
        _ => None,
    });
    let noted: SmallVec<[u64; 8]> = noted.collect();
    let mut under_way = 0;
    for fh in noted {
        under_way += usize::from(!opened(cx, dest, FileHandle(fh))?);
    }
    while let Some(which) = &which {
        let is_new = |(_, fh): &(u64, FileHandle)| !cx.began(Step::Publish(fh.0));
        let room = TELLING_MAX - under_way;
        let next: SmallVec<[(u64, FileHandle); 8]> =
            cx.w.files.local_opens(which.clone()).filter(is_new).take(room).collect();
        if next.is_empty() {
            break;
        }
        for (ino, fh) in next {
            cx.set_memo(Step::Publish(fh.0), ino);
            under_way += usize::from(!opened(cx, dest, fh)?);
        }
    }
    if under_way > 0 { Err(Stop::Wait) } else { Ok(()) }
}

/// Tells the server of an open. Whether that is done.
fn opened(cx: &mut Cx<'_>, dest: Dest, fh: FileHandle) -> Run<bool> {
    let (at, note) = (Step::PublishSent(fh.0), Step::Publish(fh.0));
    let ino = cx.memo(note).unwrap_or(0);
    let fid = crate::coherence::fids::fid_of(ino)?;
    let now_ns = cx.wall_ns();
    let file = cx.w.files.get(fh).filter(|file| file.ino == ino && file.is_local());
    let Some((flags, cred)) = file.map(|file| (file.flags & o::ACCMODE, file.cred.clone())).or_else(|| {
        // It was closed; what was asked for is closed again when it comes.
        cx.began(at).then(|| (0, cx.op.cred.clone()))
    }) else {
        cx.forget(note);
        return Ok(true);
    };
    // It was opened already, whatever its mode says by now.
    let reply = cx.start_rpc(at, dest, Opcode::MdsReint, |_, _| {
        let op = OpenOp { fid, flags: flags | o::PATH, ..OpenOp::default() };
        let open = ReintReq { cred: Some((*cred).clone()), now_ns, want: None, op: Some(Reint::Open(op)) };
        Request::new(&open).opening()
    });
    let result = match reply {
        None => return Ok(false),
        Some(result) => result.map(|reply| reply.header.xid),
    };
    // Another file may come to be open under this number.
    cx.forget(at);
    cx.forget(note);
    let same = cx.w.files.get(fh).is_some_and(|file| file.ino == ino && file.is_local());
    match (result, same) {
        (Ok(xid), true) => {
            cx.w.files.told(fh, xid);
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

/// Background: tells a server what programs have open of an object.
pub(crate) fn tell(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    cx.op.urgent = true;
    let dest = cx.w.mdt_of(fid_of(ino)?);
    publish_object(cx, dest, ino)
}
