//! Replies: what they bring is put into the caches when they arrive, locks first, then what the locks cover.
//!
//! Attributes carry the transno of the object's last change as their version. Of two copies the one with the greater
//! version is newer, so replies may overtake each other. (The result of a local change that is not answered yet is
//! newer than all replies: [`crate::coherence::metadata_write_back`].) An older copy than the cached one is dropped,
//! but the lock that came with it still covers the cached one: this client's own changes do not call its own locks
//! back.

use proto::msg::{Attr, DirEntry, EnqueueRep, GetxattrRep, LockGrant, Lvb, ObjectRep, ReaddirRep, ResourceKind, bits};
use proto::{Errno, Fid, Frame, Opcode};
use std::sync::Arc;

use crate::base::Dest;
use crate::cache::names::{Listed, Piece};
use crate::coherence::data;
use crate::coherence::locks;
use crate::coherence::op::{Body, Memo, Reply};
use crate::coherence::request::{Pending, Wants};
use crate::coherence::world::World;
use crate::session::Opened;

/// Decodes a reply and applies it to the caches. `waits`: the operation that sent the request still exists and has not
/// forgotten the step.
pub(crate) fn reply(w: &mut World, dest: Dest, pending: Pending, frame: Frame, waits: bool) -> Memo {
    let number = pending.sender.number;
    w.begin_reply(number);
    let decoded = match decode(pending.opcode, &frame) {
        Ok(decoded) => decoded,
        Err(why) => {
            w.log(format!("{}: reply to {} {why}", w.target_name(dest), pending.opcode.name()));
            failed(w, dest, pending, Errno::EPROTO);
            return Memo::Failed(Errno::EPROTO);
        }
    };
    let body = match decoded {
        Decoded::Object(rep) => {
            // The answer to a change may have attributes of an object on another target.
            let has_object = pending.opcode != Opcode::MdsReint || pending.open_body.is_some();
            let here = rep.attr.as_ref().filter(|_| has_object).map(|attr| attr.fid);
            here.into_iter().for_each(|fid| lies_on(w, fid, dest));
            rep.elsewhere.into_iter().for_each(|of| lies_on(w, of.fid, Dest::Mdt(of.mdt)));
            let lvb = rep.attr.as_ref().and_then(data::resident_lvb);
            grants(w, dest, &pending.wants, &rep.locks, lvb.as_ref());
            object(w, &rep);
            w.metadata_write_back.offered(dest, rep.write_back_credits, frame.header.xid, w.now);
            if let (true, Some(gone)) = (rep.destroyed, rep.replaced_attr.as_ref().or(rep.attr.as_ref())) {
                let home = w.mdt_of(gone.fid);
                locks::destroyed(w, home, gone.fid);
            }
            if let (Some(body), Some(attr)) = (&pending.open_body, &rep.attr) {
                let (handle, fid, layout) = (rep.handle, attr.fid, attr.layout.clone());
                let opened = Opened { handle, fid, layout, body: body.clone(), fh: None };
                w.imports.opened(dest, frame.header.xid, opened);
            }
            Body::Object(rep)
        }
        Decoded::Readdir(rep) => Body::Readdir(Arc::new(listed(w, dest, &pending.wants, rep, number))),
        Decoded::Xattrs(rep) => {
            grants(w, dest, &pending.wants, &rep.locks, None);
            Body::Xattrs(rep)
        }
        Decoded::Enqueue(rep) => {
            if let Some(pinned) = enqueue(w, dest, &pending, &rep, waits) {
                return pinned;
            }
            Body::Enqueue(rep)
        }
        Decoded::Raw => {
            pending.wants.give_up(w, dest);
            Body::Raw(frame.body)
        }
    };
    let reply = Reply { header: frame.header, body, bulk: frame.bulk, number };
    if let Some(on_reply) = pending.on_reply {
        on_reply(w, Errno::from_status(reply.header.status).map(|()| &reply));
    }
    Memo::Reply(reply)
}

/// A request will never be answered.
pub(crate) fn failed(w: &mut World, dest: Dest, pending: Pending, errno: Errno) {
    pending.wants.give_up(w, dest);
    if let Some(on_reply) = pending.on_reply {
        on_reply(w, Err(errno));
    }
}

/// The body of a reply, decoded if the caches look at it.
enum Decoded {
    Object(Arc<ObjectRep>),
    Readdir(ReaddirRep),
    Xattrs(Arc<GetxattrRep>),
    Enqueue(EnqueueRep),
    Raw,
}

fn decode(opcode: Opcode, frame: &Frame) -> Result<Decoded, &'static str> {
    if frame.header.status < 0 {
        return Ok(Decoded::Raw);
    }
    if frame.body.len() > opcode.traits().reply_max {
        stdx::mark!("reply_too_long");
        return Err("is longer than its request allows");
    }
    let body = match opcode {
        Opcode::MdsGetattr | Opcode::MdsLookup | Opcode::MdsReint => {
            frame.decode::<ObjectRep>().map(|rep| Decoded::Object(Arc::new(rep)))
        }
        Opcode::MdsReaddir => frame.decode::<ReaddirRep>().map(Decoded::Readdir),
        Opcode::MdsGetxattr => frame.decode::<GetxattrRep>().map(|rep| Decoded::Xattrs(Arc::new(rep))),
        Opcode::LdlmEnqueue => frame.decode::<EnqueueRep>().map(Decoded::Enqueue),
        _ => Ok(Decoded::Raw),
    };
    body.map_err(|_| "does not decode")
}

/// An answer tells where an object is. What was learned so is used before the configuration says it.
fn lies_on(w: &mut World, fid: Fid, dest: Dest) {
    if let Dest::Mdt(index) = dest {
        w.fld.learn(fid.seq, index);
    }
}

/// Applies the locks that came with an answer; `lvb` describes the object's data if that is resident.
fn grants(w: &mut World, dest: Dest, wants: &Wants, grants: &[LockGrant], lvb: Option<&Lvb>) {
    for grant in grants {
        locks::granted(w, dest, grant, lvb);
    }
    wants.give_up(w, dest);
}

/// Applies a piece of a directory, with the attributes and locks of its objects if those were requested.
fn listed(w: &mut World, dest: Dest, wants: &Wants, rep: ReaddirRep, number: u64) -> Piece {
    for grant in &rep.locks {
        locks::granted(w, dest, grant, None);
    }
    for entry in &rep.entries {
        // Without attributes it may be the name of an object on another target.
        if let Some(attr) = &entry.attr {
            lies_on(w, attr.fid, dest);
        }
        if let Some(grant) = &entry.lock {
            let lvb = entry.attr.as_ref().and_then(data::resident_lvb);
            locks::granted(w, dest, grant, lvb.as_ref());
        }
        if let Some(attr) = &entry.attr {
            apply(w, attr, true);
        }
    }
    if let Some(attr) = &rep.attr {
        apply(w, attr, true);
    }
    wants.give_up(w, dest);
    let of = |entry: DirEntry| {
        let child_epoch = w.child_epoch(&entry.lock, entry.fid, number);
        Listed { name: entry.name, fid: entry.fid, kind: entry.kind, cookie: entry.cookie, child_epoch }
    };
    let entries = rep.entries.into_iter().map(of).collect();
    Piece { entries, end: rep.end, version: rep.attr.map_or(0, |attr| attr.version), locks: rep.locks }
}

/// Applies a granted lock. It is pinned at once for the operation that requested it, because a callback may follow in
/// the same read.
fn enqueue(w: &mut World, dest: Dest, pending: &Pending, rep: &EnqueueRep, waits: bool) -> Option<Memo> {
    let cookie = pending.wants.first()?;
    let Some(grant) = &rep.grant else {
        pending.wants.give_up(w, dest);
        return None;
    };
    let locks = w.locks.get_mut(dest)?;
    let now = w.now;
    locks.granted(grant, now);
    let lock = locks.get(grant.cookie);
    let pinned = waits && grant.cookie == cookie && lock.is_some() && locks.hold(cookie);
    if let Some(lock) = lock {
        let gone = w.nodes.get(lock.resource.fid.ino()).map_or(!pinned, |node| node.destroyed);
        if lock.resource.kind() == ResourceKind::Inode && gone {
            // The last close destroyed the file meanwhile, and the lock with it.
            stdx::mark!("lock_of_gone_file");
            locks::give_back(w, dest, &lock.resource);
        } else {
            locks::refresh_bits(w, dest, &lock.resource);
            if locks::is_data(&lock) {
                data::lock_granted(w, &lock, rep.lvb.as_ref());
            }
        }
    }
    locks::pump(w, dest);
    pinned.then_some(Memo::Lock { dest, cookie })
}

/// Applies the attributes of an answer about an object.
fn object(w: &mut World, rep: &ObjectRep) {
    if let Some(attr) = &rep.attr {
        apply(w, attr, true);
        if !rep.symlink.is_empty()
            && let Some(node) = w.nodes.get_mut(attr.fid.ino())
        {
            node.symlink = Some(Box::new(rep.symlink.clone()));
        }
    }
    for attr in [&rep.parent_attr, &rep.source_parent_attr, &rep.replaced_attr].into_iter().flatten() {
        apply(w, attr, false);
    }
}

/// A change of this client was answered without the attributes of all its objects, because the reply was reconstructed
/// after a restart. The locks stay, because own changes do not call own locks back; so cached attributes may be
/// outdated under valid locks.
///
/// Only requests that were in flight when a connection broke are answered like that, so this walk over all nodes is
/// rare.
pub(crate) fn rebuilt(w: &mut World) {
    stdx::mark!("rebuilt_reply");
    w.nodes.iter_mut().for_each(|node| node.validity.doubt(bits::UPDATE | bits::LAYOUT));
}

/// Applies attributes; unless `make`, only to a cached node.
fn apply(w: &mut World, attr: &Attr, make: bool) {
    let (ino, current_reply) = (attr.fid.ino(), w.current_reply);
    if w.nodes.get(ino).is_none() && !make {
        return;
    }
    for stripe in attr.lmv.iter().flat_map(|lmv| &lmv.stripes) {
        w.fld.learn(stripe.fid.seq, stripe.mdt);
    }
    let node = w.nodes.obtain(attr.fid);
    if let Some(master) = attr.lmv.as_ref().and_then(|lmv| lmv.master) {
        (node.is_stripe, node.parent) = (true, master.ino());
    }
    let newer = node.attr.as_ref().is_none_or(|known| known.version <= attr.version);
    if newer {
        // A close increases the atime without a new version.
        let read =
            node.attr.as_ref().filter(|known| known.version == attr.version).map_or(i64::MIN, |known| known.atime_ns);
        node.attr = Some(Attr { atime_ns: attr.atime_ns.max(read), ..attr.clone() });
        if attr.nlink == 0 {
            node.unlinked = true;
        }
        if node.atime_ns.is_some_and(|atime| atime.get() <= attr.atime_ns) {
            node.atime_ns = None;
        }
    }
    // A lock may have come without attributes (with extended ones). Then it covers the attributes of requests that were
    // sent under it, not those of a delayed reply. What is covered already stays covered: only own changes can be
    // newer.
    let under = current_reply.is_under(node.validity.gained());
    if !under {
        stdx::mark!("attributes_from_before_the_lock");
    }
    node.validity.arrived(under);
    if newer && node.is_regular() {
        data::attr_arrived(w, ino, attr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server learns an access time from a close, which makes no new version: an answer from before the close is
    /// recognized as older by that time alone.
    #[test]
    fn an_access_time_goes_back_with_a_new_version_only() {
        let mut w = World::new(crate::api::Options::of_tests());
        let fid = Fid::new(Fid::SEQ_FIRST, 7);
        // The version and the access time that arrive, and the access time that is cached afterwards.
        for (version, atime_ns, known) in [(7, 40, 40), (7, 50, 50), (7, 40, 50), (6, 60, 50), (8, 40, 40)] {
            apply(&mut w, &Attr { fid, version, atime_ns, ..Attr::default() }, true);
            let there = w.nodes.get(fid.ino()).and_then(|node| node.attr.as_ref()).map(|attr| attr.atime_ns);
            assert_eq!(there, Some(known), "version {version}, {atime_ns} ns");
        }
    }
}
