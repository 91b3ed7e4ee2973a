//! What replies bring goes into the caches here, when they arrive: locks first, then what they cover.
//!
//! Attributes carry the transno of the object's last change as their version: of two copies the greater one is the
//! newer, so replies may overtake each other. (What a change has made that waits for its answer is newer than all replies:
//! [`crate::metadata_write_back`].) An older copy than the one that is known is dropped, but the lock that
//! came with it still covers the newer one: our own changes do not call our own locks back.

use proto::msg::{Attr, EnqueueRep, GetxattrRep, LockGrant, Lvb, ObjectRep, ReaddirRep, ResourceKind, bits};
use proto::{Errno, Frame, Opcode};
use std::sync::Arc;

use crate::data;
use crate::imports::{Dest, Opened, Pending};
use crate::locks;
use crate::op::{Body, Memo, Reply};
use crate::world::World;

/// Decodes a reply and puts what it brings into the caches. `waits`: who sent the request is still there and has not
/// forgotten it.
pub(crate) fn reply(w: &mut World, dest: Dest, pending: &Pending, frame: Frame, waits: bool) -> Memo {
    w.takes_in(pending.sender.number);
    let body = match decode(pending.opcode, &frame) {
        Ok(body) => body,
        Err(why) => {
            give_up(w, dest, pending);
            w.log(format!("{}: reply to {} {why}", w.target_name(dest), pending.opcode.name()));
            return Memo::Failed(Errno::EPROTO);
        }
    };
    let mut memo = None;
    match &body {
        Body::Object(rep) => {
            let lvb = rep.attr.as_ref().and_then(data::resident_lvb);
            grants(w, dest, &pending.wants, &rep.locks, lvb.as_ref());
            object(w, rep);
            w.metadata_write_back.offered(dest, rep.batch_room, frame.header.xid, w.now);
            if let (true, Some(gone)) = (rep.destroyed, rep.replaced_attr.as_ref().or(rep.attr.as_ref())) {
                locks::destroyed(w, dest, gone.fid);
            }
            if let (Some(body), Some(attr)) = (&pending.open_body, &rep.attr) {
                let (handle, fid, layout) = (rep.handle, attr.fid, attr.layout.clone());
                let opened = Opened { handle, fid, layout, body: body.clone(), fh: None };
                w.imports.opened(dest, frame.header.xid, opened);
            }
        }
        Body::Readdir(rep) => {
            grants(w, dest, &pending.wants, &rep.locks, None);
            for entry in &rep.entries {
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
            give_up_run(w, dest, pending.want_run);
        }
        Body::Xattrs(rep) => grants(w, dest, &pending.wants, &rep.locks, None),
        Body::Enqueue(rep) => memo = enqueue(w, dest, pending, rep, waits),
        Body::Raw(_) => give_up(w, dest, pending),
    }
    let number = pending.sender.number;
    memo.unwrap_or(Memo::Reply(Reply { header: frame.header, body, bulk: frame.bulk, number }))
}

fn decode(opcode: Opcode, frame: &Frame) -> Result<Body, &'static str> {
    if frame.header.status < 0 {
        return Ok(Body::Raw(frame.body.clone()));
    }
    if frame.body.len() > opcode.traits().reply_max {
        stdx::mark!("reply_too_long");
        return Err("is longer than what was asked for");
    }
    let body = match opcode {
        Opcode::MdsGetattr | Opcode::MdsLookup | Opcode::MdsReint => {
            frame.decode::<ObjectRep>().map(|rep| Body::Object(Arc::new(rep)))
        }
        Opcode::MdsReaddir => frame.decode::<ReaddirRep>().map(|rep| Body::Readdir(Arc::new(rep))),
        Opcode::MdsGetxattr => frame.decode::<GetxattrRep>().map(|rep| Body::Xattrs(Arc::new(rep))),
        Opcode::LdlmEnqueue => frame.decode::<EnqueueRep>().map(Body::Enqueue),
        _ => Ok(Body::Raw(frame.body.clone())),
    };
    body.map_err(|_| "does not decode")
}

/// A request will not bring the locks that it wanted.
pub(crate) fn give_up(w: &mut World, dest: Dest, pending: &Pending) {
    if let Some(target) = w.imports.get_mut(dest) {
        for cookie in &pending.wants {
            target.locks.unexpect(*cookie);
        }
    }
    give_up_run(w, dest, pending.want_run);
}

/// What is left of a run of cookies was not granted.
fn give_up_run(w: &mut World, dest: Dest, (first, count): (u64, u32)) {
    if let Some(target) = w.imports.get_mut(dest) {
        for cookie in first..first + u64::from(count) {
            target.locks.unexpect(cookie);
        }
    }
}

/// Locks that came with an answer; `lvb` is what it says of the data of its object, if that is resident.
fn grants(w: &mut World, dest: Dest, wants: &[u64], grants: &[LockGrant], lvb: Option<&Lvb>) {
    for grant in grants {
        locks::granted(w, dest, grant, lvb);
    }
    if let Some(target) = w.imports.get_mut(dest) {
        for cookie in wants {
            if !grants.iter().any(|grant| grant.cookie == *cookie) {
                target.locks.unexpect(*cookie);
            }
        }
    }
}

/// A granted lock is pinned for the operation that asked for it at once: a callback may follow in the same read.
fn enqueue(w: &mut World, dest: Dest, pending: &Pending, rep: &EnqueueRep, waits: bool) -> Option<Memo> {
    let cookie = *pending.wants.first()?;
    let Some(grant) = &rep.grant else {
        give_up(w, dest, pending);
        return None;
    };
    let target = w.imports.get_mut(dest)?;
    let now = w.now;
    target.locks.granted(grant, now);
    let lock = target.locks.get(grant.cookie);
    let pinned = waits && grant.cookie == cookie && lock.is_some() && target.locks.hold(cookie);
    if let Some(lock) = lock {
        let gone = w.nodes.get(lock.resource.fid.ino()).map_or(!pinned, |node| node.destroyed);
        if lock.resource.kind() == ResourceKind::Inode && gone {
            // The last close took the file meanwhile, and the lock with it.
            stdx::mark!("lock_of_gone_file");
            locks::give_back(w, dest, &lock.resource);
        } else {
            locks::refresh_bits(w, dest, &lock.resource);
            if locks::is_data(&lock) {
                data::lock_granted(w, dest, &lock, rep.lvb.as_ref());
            }
        }
    }
    locks::pump(w, dest);
    pinned.then_some(Memo::Lock { dest, cookie })
}

/// Attributes that came with an answer about an object.
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

/// A change of ours was answered without what all its objects look like now: the reply was rebuilt after a restart. Our
/// locks stay, for own changes call none of them back; so attributes that are here may be old under good locks.
///
/// Only requests that were in flight when a connection broke are answered so: this walk over all nodes is made that often.
pub(crate) fn rebuilt(w: &mut World) {
    stdx::mark!("rebuilt_reply");
    w.nodes.iter_mut().for_each(|node| (node.attr_covered, node.layout_covered) = (false, false));
}

/// Attributes came in; unless `make`, only a node that is known takes them.
fn apply(w: &mut World, attr: &Attr, make: bool) {
    let (ino, taking_in) = (attr.fid.ino(), w.taking_in);
    if w.nodes.get(ino).is_none() && !make {
        return;
    }
    let node = w.nodes.obtain(attr.fid);
    let newer = node.attr.as_ref().is_none_or(|known| known.version <= attr.version);
    if newer {
        // A close makes the atime later without a new version.
        let read =
            node.attr.as_ref().filter(|known| known.version == attr.version).map_or(i64::MIN, |known| known.atime_ns);
        node.attr = Some(Attr { atime_ns: attr.atime_ns.max(read), ..attr.clone() });
        if attr.nlink == 0 {
            node.unlinked = true;
        }
        if node.atime_ns.is_some_and(|atime| atime <= attr.atime_ns) {
            node.atime_ns = None;
        }
    }
    // A lock may have come without attributes (with extended ones): then it covers those of requests that were made under it, not of a
    // reply that was held up. What is covered already stays so: only changes of our own can be newer.
    let under = taking_in.is_under(node.gained);
    if !under {
        stdx::mark!("attributes_from_before_the_lock");
    }
    let covers = |already: bool, bits: u64| node.has(bits) && (already || under);
    let (attr_covered, xattr_covered) =
        (covers(node.attr_covered, bits::UPDATE), covers(node.xattr_covered, bits::XATTR));
    let layout_covered = covers(node.layout_covered, bits::LAYOUT);
    (node.attr_covered, node.xattr_covered, node.layout_covered) = (attr_covered, xattr_covered, layout_covered);
    if newer && node.is_regular() {
        data::attr_arrived(w, ino, attr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Fid;

    /// The server hears of an access time by a close, which makes no new version: an answer from before it is known to be older by that time
    /// alone.
    #[test]
    fn an_access_time_goes_back_with_a_new_version_only() {
        let mut w = World::new(crate::api::Options::of_tests());
        let fid = Fid::new(Fid::SEQ_FIRST, 7);
        // The version and the access time that come, and the one that is known then.
        for (version, atime_ns, known) in [(7, 40, 40), (7, 50, 50), (7, 40, 50), (6, 60, 50), (8, 40, 40)] {
            apply(&mut w, &Attr { fid, version, atime_ns, ..Attr::default() }, true);
            let there = w.nodes.get(fid.ino()).and_then(|node| node.attr.as_ref()).map(|attr| attr.atime_ns);
            assert_eq!(there, Some(known), "version {version}, {atime_ns} ns");
        }
    }
}
