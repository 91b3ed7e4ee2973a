//! What a change does to the caches: the same as the server does to its records when the change comes there.
//!
//! Everything here either does the whole change or nothing. Nothing means that a request has to be sent: the caches do not say
//! for certain what the server would do, or it would refuse.

use bytes::Bytes;
use proto::Fid;
use proto::connect::{DIR_SIZE, LINK_MAX};
use proto::msg::{
    Attr, CreateOp, Cred, Layout, LockMode, Policy, Reint, ReintReq, Resource, SetattrOp, UnlinkOp, WantLocks, bits,
    valid,
};

use super::{Change, What, allowed, hurry, is_private, lease, push, version_of};
use crate::cx::{Cx, Run};
use crate::data;
use crate::imports::Dest;
use crate::locks;
use crate::names::Epochs;
use crate::names::Found;
use crate::node::{Node, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::op::WaitKey;
use crate::ops::{self, step};
use crate::world::World;

const S_IFIFO: u32 = 0o010_000;
const S_IFSOCK: u32 = 0o140_000;
const S_ISVTX: u32 = 0o1000;
const SET_ID: u32 = 0o6000;

/// Where a change can be made.
struct Ground {
    dest: Dest,
    /// The lease of the directory.
    lease: u64,
    /// Of what the change makes.
    version: u64,
}

/// Whether changes to this node may be made here, as far as it has to do with requests: none about it is under way, nor one
/// that could remove it, and this operation has sent none.
fn is_quiet(cx: &Cx<'_>, node: &Node) -> bool {
    let above = cx.w.nodes.get(node.parent).map_or(0, |above| above.changing);
    node.changing + above == 0 && !node.unlinked && !cx.began(step::MAIN) && !cx.began(step::CHANGING)
}

/// Waits if too many changes are without an answer. The version of the next.
fn room(cx: &mut Cx<'_>, dest: Dest) -> Run<u64> {
    let Some(lane) = cx.w.behind.lanes.get(&dest) else { return Err(cx.wait(WaitKey::Behind)) };
    let version = version_of(lane.made + 1);
    if lane.outstanding() >= u64::from(lane.room) {
        hurry(cx.w, dest);
        return Err(cx.wait(WaitKey::Behind));
    }
    Ok(version)
}

/// Whether names in a directory may be changed here by this caller.
fn directory(cx: &mut Cx<'_>, ino: u64) -> Run<Option<Ground>> {
    let Some(node) = cx.w.nodes.get(ino) else { return Ok(None) };
    let (fid, dest) = (node.fid, cx.w.mdt_of(node.fid));
    if !allowed(cx.w, dest) || !is_quiet(cx, node) || !is_whole(node) || !is_plain(node) {
        return Ok(None);
    }
    if ops::permitted(cx.w, ino, 3, &cx.op.cred) != Some(true) {
        return Ok(None);
    }
    let Some(lease) = lease(cx.w, dest, fid) else { return Ok(None) };
    let version = room(cx, dest)?;
    Ok(Some(Ground { dest, lease, version }))
}

/// All names of the directory are known.
fn is_whole(node: &Node) -> bool {
    let complete = node.dir.as_ref().is_some_and(|dir| dir.complete_epoch == Some(node.update_epoch));
    complete && node.has(bits::UPDATE)
}

/// It has a name, and no lists of access decide.
fn is_plain(node: &Node) -> bool {
    node.knows_access() && node.covered_attr().is_some_and(|attr| !attr.has_xattrs)
}

/// A change of attributes of a private object: where, and the version of what it makes.
fn object(cx: &mut Cx<'_>, ino: u64) -> Run<Option<(Dest, u64)>> {
    let Some(node) = cx.w.nodes.get(ino) else { return Ok(None) };
    let dest = cx.w.mdt_of(node.fid);
    if !allowed(cx.w, dest) || !is_quiet(cx, node) || !is_plain(node) || !is_private(cx.w, node) {
        return Ok(None);
    }
    let version = room(cx, dest)?;
    Ok(Some((dest, version)))
}

/// A lock on an object that nobody else knows.
fn assume(w: &mut World, dest: Dest, resource: Resource, mode: LockMode, held: u64) -> u64 {
    let now = w.now;
    let target = w.imports.get_mut(dest);
    target.and_then(|target| target.locks.assume(resource, mode, Policy::Bits(held), now)).unwrap_or(0)
}

/// Makes an object of any kind but a device. Its number, or `None` if the server has to be asked.
pub(crate) fn create(
    cx: &mut Cx<'_>,
    parent: u64,
    name: &Bytes,
    mode: u32,
    rdev: u64,
    target: &Bytes,
) -> Run<Option<u64>> {
    if let Some(ino) = cx.memo(step::BEHIND) {
        return Ok(Some(ino));
    }
    let kind = mode & S_IFMT;
    if !matches!(kind, S_IFREG | S_IFDIR | S_IFLNK | S_IFIFO | S_IFSOCK) || is_dot(name) {
        return Ok(None);
    }
    let Some(ground) = directory(cx, parent)? else { return Ok(None) };
    let dest = ground.dest;
    if cx.w.known_name(parent, name) != Found::Nothing {
        return Ok(None);
    }
    let Some(above) = cx.w.nodes.get(parent).and_then(|node| node.covered_attr()).cloned() else { return Ok(None) };
    if kind == S_IFDIR && above.nlink >= LINK_MAX {
        return Ok(None);
    }
    if kind == S_IFREG && cx.w.imports.get(dest).is_none_or(|target| target.dom_size == 0) {
        return Ok(None);
    }
    let fid = ops::new_fid(cx)?;
    let attr = new_attr(&above, &cx.op.cred, fid, mode, target, cx.op.wall_ns, ground.version);
    let want = put_object(cx.w, dest, &attr);
    put_name(cx.w, parent, name, Some(&attr), &above, ground.version, cx.op.wall_ns);
    let Some(node) = cx.w.nodes.get_mut(fid.ino()) else { return Ok(None) };
    node.private = ground.lease;
    node.parent = parent;
    if kind == S_IFLNK {
        node.symlink = Some(Box::new(target.clone()));
    }
    if kind == S_IFDIR {
        let epoch = node.update_epoch;
        node.dir_mut().complete_epoch = Some(epoch);
    }
    let op = CreateOp { parent: above.fid, name: name.clone(), fid, mode, rdev, symlink: target.clone() };
    let what = What::Create { ino: fid.ino(), parent, name: name.clone() };
    done(cx, (dest, ground.version), fid.ino(), want, Reint::Create(op), what);
    Ok(Some(fid.ino()))
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// The attributes of a new object, by the rules of its directory.
fn new_attr(above: &Attr, cred: &Cred, fid: Fid, mode: u32, target: &Bytes, now_ns: i64, version: u64) -> Attr {
    let kind = mode & S_IFMT;
    let wanted = if kind == S_IFDIR { mode & (S_IFMT | 0o1777) } else { mode & (S_IFMT | 0o7777) };
    let (gid, mode) = cred.group_and_mode_of_new(above.gid, above.mode, wanted);
    let mode = if kind == S_IFLNK { S_IFLNK | 0o777 } else { mode & !(cred.umask & 0o777) };
    Attr {
        fid,
        mode,
        uid: cred.uid,
        gid,
        nlink: if kind == S_IFDIR { 2 } else { 1 },
        rdev: 0,
        size: match kind {
            S_IFDIR => DIR_SIZE,
            S_IFLNK => target.len() as u64,
            _ => 0,
        },
        blocks: if kind == S_IFDIR { DIR_SIZE / 512 } else { 0 },
        atime_ns: now_ns,
        mtime_ns: now_ns,
        ctime_ns: now_ns,
        btime_ns: now_ns,
        version,
        layout: match kind {
            // Where it will go when it grows, the answer tells.
            S_IFREG => Some(Layout { resident: true, ..Layout::default() }),
            S_IFDIR => above.layout.clone(),
            _ => None,
        },
        has_xattrs: false,
        mtime_set_ns: 0,
    }
}

/// A new object comes into the caches, under locks that are asked for with its create.
fn put_object(w: &mut World, dest: Dest, attr: &Attr) -> WantLocks {
    let (ino, resource) = (attr.fid.ino(), Resource::inode(attr.fid));
    let kind = attr.mode & S_IFMT;
    let own = if kind == S_IFDIR { bits::CACHE_DIRECTORY } else { bits::CACHE };
    w.nodes.obtain(attr.fid).attr = Some(attr.clone());
    let want = WantLocks {
        object_cookie: assume(w, dest, resource, LockMode::Pr, own),
        entries_cookie: if kind == S_IFDIR { assume(w, dest, resource, LockMode::Ex, bits::UPDATE) } else { 0 },
        data_cookie: if kind == S_IFREG { assume(w, dest, resource, LockMode::Pw, bits::DOM) } else { 0 },
        data_write: kind == S_IFREG,
        parent_cookie: 0,
        exclusive: kind == S_IFDIR,
    };
    locks::refresh_bits(w, dest, &resource);
    if let Some(node) = w.nodes.get_mut(ino) {
        node.attr_covered = true;
        node.xattr_covered = true;
    }
    let lock = w.imports.get(dest).and_then(|target| target.locks.get(want.data_cookie));
    if let Some(lock) = lock {
        data::lock_granted(w, dest, &lock, data::resident_lvb(attr).as_ref());
    }
    want
}

/// A name comes or goes, and the directory's attributes with it; `above` is how they were.
fn put_name(w: &mut World, parent: u64, name: &Bytes, attr: Option<&Attr>, above: &Attr, version: u64, now_ns: i64) {
    let child = attr.and_then(|attr| w.nodes.get(attr.fid.ino())).map_or(0, |child| child.lookup_epoch);
    let epochs = Epochs { dir: w.directory_epoch(parent), child };
    w.changed_name(parent, name, attr, epochs, version);
    let Some(node) = w.nodes.get_mut(parent) else { return };
    let now_ns = now_ns.max(above.ctime_ns);
    node.attr = Some(Attr { mtime_ns: now_ns, ctime_ns: now_ns, version, ..above.clone() });
    if let (Some(made), Some(now)) = (attr, &mut node.attr)
        && made.mode & S_IFMT == S_IFDIR
    {
        now.nlink += 1;
    }
}

/// The change is made: it waits to be sent.
fn done(cx: &mut Cx<'_>, (dest, version): (Dest, u64), ino: u64, want: WantLocks, op: Reint, what: What) {
    stdx::mark!("made_behind");
    cx.set_memo(step::BEHIND, ino);
    cx.op.changes += 1;
    let want = (want != WantLocks::default()).then_some(want);
    let request = ReintReq { cred: None, now_ns: cx.op.wall_ns, want, op: Some(op) };
    push(cx.w, dest, Change { request, cred: cx.op.cred.clone(), what, version });
}

/// Removes the only name of a private object that nobody has open. Whether it did.
pub(crate) fn unlink(cx: &mut Cx<'_>, parent: u64, name: &Bytes, rmdir: bool) -> Run<bool> {
    if cx.memo(step::BEHIND).is_some() {
        return Ok(true);
    }
    let Some(ground) = directory(cx, parent)? else { return Ok(false) };
    let Found::Child(fid) = cx.w.known_name(parent, name) else { return Ok(false) };
    let ino = fid.ino();
    let (Some(node), Some(dir)) = (cx.w.nodes.get(ino), cx.w.nodes.get(parent)) else { return Ok(false) };
    let (Some(attr), Some(above)) = (node.covered_attr(), dir.covered_attr()) else { return Ok(false) };
    let removable = node.private == ground.lease
        && is_quiet(cx, node)
        && node.opens == 0
        && node.wanted == 0
        && node.is_dir() == rmdir
        && (if rmdir { is_empty(node) } else { attr.nlink == 1 })
        && may_remove(&cx.op.cred, above, attr);
    if !removable {
        return Ok(false);
    }
    let (attr, above) = (Attr { nlink: 0, ..attr.clone() }, above.clone());
    let dest = ground.dest;
    if rmdir && lease(cx.w, dest, fid).is_none() {
        return Ok(false);
    }
    let after = Attr { nlink: above.nlink - u32::from(rmdir), ..above };
    let directory = after.fid;
    put_name(cx.w, parent, name, None, &after, ground.version, cx.op.wall_ns);
    locks::destroyed(cx.w, dest, fid);
    let op = UnlinkOp { parent: directory, name: name.clone(), rmdir, told: Some(fid) };
    let what = What::Unlink { ino, parent, name: name.clone() };
    done(cx, (dest, ground.version), ino, WantLocks::default(), Reint::Unlink(op), what);
    ops::unnamed(cx.w, parent, name, &attr, true);
    Ok(true)
}

/// A directory of which all is known, and in which nothing is.
fn is_empty(node: &Node) -> bool {
    let empty =
        |dir: &crate::names::Directory| dir.older.is_empty() && dir.names.values().all(|entry| entry.fid.is_none());
    is_whole(node) && node.dir.as_deref().is_some_and(empty)
}

/// In a sticky directory only owners remove names.
fn may_remove(cred: &Cred, above: &Attr, attr: &Attr) -> bool {
    above.mode & S_ISVTX == 0 || cred.uid == 0 || cred.uid == attr.uid || cred.uid == above.uid
}

/// Changes attributes of a private object, but not its size. Whether it did.
pub(crate) fn setattr(cx: &mut Cx<'_>, ino: u64, op: &SetattrOp) -> Run<bool> {
    if cx.memo(step::BEHIND).is_some() {
        return Ok(true);
    }
    let Some((dest, version)) = object(cx, ino)? else { return Ok(false) };
    let Some(attr) = cx.w.nodes.get(ino).and_then(|node| node.covered_attr()) else { return Ok(false) };
    let Some(attr) = changed(attr, &cx.op.cred, op, cx.op.wall_ns) else { return Ok(false) };
    if let Some(node) = cx.w.nodes.get_mut(ino) {
        node.attr = Some(Attr { version, ..attr });
    }
    let op = Reint::Setattr(SetattrOp { handle: 0, ..*op });
    done(cx, (dest, version), ino, WantLocks::default(), op, What::Setattr { ino });
    Ok(true)
}

/// The attributes after such a change by their owner or by root, as far as that is simple.
fn changed(attr: &Attr, cred: &Cred, op: &SetattrOp, now_ns: i64) -> Option<Attr> {
    let has = |bit| op.valid & bit != 0;
    if has(valid::SIZE | valid::KILL_PRIV | valid::HOUSEKEEPING | valid::CTIME) {
        return None;
    }
    let owns = has(valid::UID | valid::GID);
    if cred.uid != 0 && (owns || cred.uid != attr.uid) {
        return None;
    }
    let mut attr = attr.clone();
    attr.ctime_ns = attr.ctime_ns.max(now_ns);
    let now_ns = attr.ctime_ns;
    if owns && !has(valid::MODE) && attr.mode & SET_ID != 0 {
        return None;
    }
    if has(valid::UID) {
        attr.uid = op.uid;
    }
    if has(valid::GID) {
        attr.gid = op.gid;
    }
    if has(valid::MODE) {
        attr.mode = attr.mode & S_IFMT | cred.mode_allowed(op.mode, attr.gid) & 0o7777;
    }
    if has(valid::ATIME) {
        attr.atime_ns = if has(valid::ATIME_NOW) { now_ns } else { op.atime_ns };
    }
    if has(valid::MTIME) {
        let now = has(valid::MTIME_NOW);
        attr.mtime_ns = if now { now_ns } else { op.mtime_ns };
        attr.mtime_set_ns = if now || attr.mode & S_IFMT != S_IFREG { 0 } else { now_ns };
    }
    Some(attr)
}

/// Tells of an access time that no close carries. Whether it did.
pub(crate) fn accessed(cx: &mut Cx<'_>, ino: u64, atime_ns: i64) -> Run<bool> {
    if cx.memo(step::BEHIND).is_some() {
        return Ok(true);
    }
    let Some(place) = object(cx, ino)? else { return Ok(false) };
    if let Some(node) = cx.w.nodes.get_mut(ino) {
        node.atime_ns = None;
        if let Some(attr) = &mut node.attr {
            attr.atime_ns = attr.atime_ns.max(atime_ns);
        }
    }
    let fid = ops::fid_of(ino)?;
    let op = SetattrOp { fid, valid: valid::ATIME | valid::HOUSEKEEPING, atime_ns, ..SetattrOp::default() };
    done(cx, place, ino, WantLocks::default(), Reint::Setattr(op), What::Setattr { ino });
    Ok(true)
}
