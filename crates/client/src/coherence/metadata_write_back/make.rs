//! Applying a change to the caches, as the server will apply it to its records.
//!
//! Each function makes the whole change or nothing. If it makes nothing, a request has to be sent: the caches do not
//! determine the outcome, or the server would refuse the change.

use bytes::Bytes;
use proto::msg::{
    Attr, CreateOp, Layout, LockMode, Policy, Reint, ReintReq, Resource, SetattrOp, UnlinkOp, WantLocks, bits, valid,
};
use rules::mode::{S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use rules::{Caller, Object, names, placement};

use super::{Change, What, allowed, flush, is_private, lease, push, version_of};
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::names::Epochs;
use crate::cache::names::KnownName;
use crate::cache::node::{Hold, Node};
use crate::coherence::cx::{Cx, Run};
use crate::coherence::data;
use crate::coherence::fids::{fid_of, new_fid};
use crate::coherence::locks;
use crate::coherence::names::name_removed;
use crate::coherence::world::World;

/// A leased directory in which a change can be made.
struct LeasedDir {
    dest: Dest,
    /// The cookie of its lease.
    lease: u64,
    /// The version of what the change makes.
    version: u64,
}

/// Whether requests allow changes to this node in the caches: no request about it or about removing it is in flight,
/// and this operation has sent none.
fn is_quiet(cx: &Cx<'_>, node: &Node) -> bool {
    let changes = |node: &Node| node.is_held(Hold::Changing);
    !changes(node)
        && !cx.w.nodes.get(node.parent).is_some_and(changes)
        && !node.unlinked
        && !cx.began(Step::Main)
        && !cx.began(Step::Changing(0))
}

/// Waits if too many changes are unanswered. Returns the version of the next change.
fn next_version(cx: &mut Cx<'_>, dest: Dest) -> Run<u64> {
    let of = &mut cx.w.metadata_write_back;
    let version = version_of(of.changes.lane(dest).added() + 1);
    if of.changes.outstanding(dest) >= u64::from(of.credits(dest)) {
        flush(cx.w, dest);
        return Err(cx.wait(WaitKey::MetadataWriteBack));
    }
    Ok(version)
}

/// The directory, if names in it may be changed in the caches. The caller's permissions are checked elsewhere.
fn directory(cx: &mut Cx<'_>, ino: u64) -> Run<Option<LeasedDir>> {
    let Some(node) = cx.w.nodes.get(ino) else { return Ok(None) };
    let (fid, dest) = (node.fid, cx.w.mdt_of(node.fid));
    if cx.w.by_alias || !allowed(cx.w, dest) || !is_quiet(cx, node) || !is_whole(node) || !is_plain(cx.w, node) {
        return Ok(None);
    }
    let Some(lease) = lease(cx.w, dest, fid) else { return Ok(None) };
    let version = next_version(cx, dest)?;
    Ok(Some(LeasedDir { dest, lease, version }))
}

/// Whether all names of the directory are cached.
fn is_whole(node: &Node) -> bool {
    let complete = node.dir.as_ref().is_some_and(|dir| dir.complete_epoch == Some(node.validity.update_epoch()));
    complete && node.has(bits::UPDATE)
}

/// Whether it has a name and no access control list. All stripes of a directory have the permissions and lists of the master,
/// and no change of those begins before the locks on all of them are called back.
fn is_plain(w: &World, node: &Node) -> bool {
    let knows_access = match node.is_stripe {
        true => w.nodes.get(node.parent).is_some_and(Node::knows_access),
        false => node.knows_access(),
    };
    knows_access && node.covered_attr().is_some_and(|attr| !attr.has_xattrs && attr.nlink > 0)
}

/// For a change of attributes of a private object: its target, and the version of the change.
fn object(cx: &mut Cx<'_>, ino: u64) -> Run<Option<(Dest, u64)>> {
    let Some(node) = cx.w.nodes.get(ino) else { return Ok(None) };
    let dest = cx.w.mdt_of(node.fid);
    let usable = !cx.w.by_alias && allowed(cx.w, dest);
    // A change of a directory that has got stripes concerns all of them.
    let usable = usable && node.lmv().is_none();
    if !usable || !is_quiet(cx, node) || !is_plain(cx.w, node) || !is_private(cx.w, node) {
        return Ok(None);
    }
    let version = next_version(cx, dest)?;
    Ok(Some((dest, version)))
}

/// Assumes a lock on an object that nobody else knows.
fn assume(w: &mut World, dest: Dest, resource: Resource, mode: LockMode, held: u64) -> u64 {
    let now = w.now;
    let locks = w.locks.get_mut(dest);
    locks.and_then(|locks| locks.assume(resource, mode, Policy::Bits(held), now)).unwrap_or(0)
}

/// Creates an object of any kind but a device. Returns its number, or `None` if the server has to do it.
pub(crate) fn create(
    cx: &mut Cx<'_>,
    parent: u64,
    name: &Bytes,
    mode: u32,
    rdev: u64,
    target: &Bytes,
) -> Run<Option<u64>> {
    if let Some(ino) = cx.memo(Step::Made) {
        return Ok(Some(ino));
    }
    let kind = mode & S_IFMT;
    if !matches!(kind, S_IFREG | S_IFDIR | S_IFLNK | S_IFIFO | S_IFSOCK) || names::is_dot(name) {
        return Ok(None);
    }
    let Some(leased) = directory(cx, parent)? else { return Ok(None) };
    let dest = leased.dest;
    if cx.w.nodes.known_name(parent, name) != KnownName::Nothing {
        return Ok(None);
    }
    let Some(above) = cx.w.nodes.get(parent).and_then(|node| node.covered_attr()).cloned() else { return Ok(None) };
    if rules::create::check(&Caller::of(&cx.op.cred), Object::without_list(&above), mode, rdev).is_err() {
        return Ok(None);
    }
    if kind == S_IFREG && cx.w.imports.get(dest).is_none_or(|target| target.dom_size == 0) {
        return Ok(None);
    }
    let fid = new_fid(cx, dest)?;
    let new = rules::create::New { mode, rdev, symlink: target, default_list: None };
    let made = rules::create::made(&Caller::of(&cx.op.cred), Object::without_list(&above), &new, cx.op.wall_ns);
    let layout = match kind {
        // The answer tells which objects the data will move to when it grows.
        S_IFREG => Some(Layout { resident: true, ..Layout::default() }),
        S_IFDIR => above.layout.clone(),
        _ => None,
    };
    let dir_default = if kind == S_IFDIR { placement::inherited(above.dir_default.as_deref()) } else { None };
    let attr = Attr { fid, version: leased.version, layout, dir_default, ..made.attr };
    let want = put_object(cx.w, dest, &attr);
    put_name(cx.w, parent, name, Some(&attr), &above, leased.version, cx.op.wall_ns);
    let Some(node) = cx.w.nodes.get_mut(fid.ino()) else { return Ok(None) };
    node.private = leased.lease;
    node.parent = parent;
    if kind == S_IFLNK {
        node.symlink = Some(Box::new(target.clone()));
    }
    if kind == S_IFDIR {
        let epoch = node.validity.update_epoch();
        node.dir_mut().complete_epoch = Some(epoch);
    }
    let (parent_fid, name_of, symlink) = (above.fid, name.clone(), target.clone());
    let op = CreateOp { parent: parent_fid, name: name_of, fid, mode, rdev, symlink, ..CreateOp::default() };
    let what = What::Create { ino: fid.ino(), parent, name: name.clone() };
    done(cx, (dest, leased.version), fid.ino(), want, Reint::Create(op), what);
    Ok(Some(fid.ino()))
}

/// Adds a new object to the caches, under locks that are requested with its create.
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
        node.validity.assume(bits::UPDATE | bits::XATTR);
    }
    let lock = w.locks.get(dest).and_then(|locks| locks.get(want.data_cookie));
    if let Some(lock) = lock {
        data::lock_granted(w, &lock, data::resident_lvb(attr).as_ref());
    }
    want
}

/// Adds or removes a name and changes the directory's attributes, which were `above`.
fn put_name(w: &mut World, parent: u64, name: &Bytes, attr: Option<&Attr>, above: &Attr, version: u64, now_ns: i64) {
    let child = attr.and_then(|attr| w.nodes.get(attr.fid.ino())).map_or(0, |child| child.validity.lookup_epoch());
    let layout = w.nodes.layout_version(parent);
    let epochs = Epochs { dir: w.nodes.directory_epoch(parent), child, layout };
    w.nodes.changed_name(parent, name, attr, epochs, version);
    let Some(node) = w.nodes.get_mut(parent) else { return };
    let mut dir = Object::without_list(above);
    dir.content_changed(now_ns);
    dir.nlink += u32::from(attr.is_some_and(|made| made.mode & S_IFMT == S_IFDIR));
    dir.show_in(node.attr.insert(Attr { version, ..above.clone() }));
}

/// Queues the change.
fn done(cx: &mut Cx<'_>, (dest, version): (Dest, u64), ino: u64, want: WantLocks, op: Reint, what: What) {
    stdx::mark!("made_in_cache");
    cx.set_memo(Step::Made, ino);
    cx.op.changes += 1;
    let want = (want != WantLocks::default()).then_some(want);
    let request = ReintReq { cred: None, now_ns: cx.op.wall_ns, want, op: Some(op) };
    push(cx.w, dest, Change { request, cred: cx.op.cred.clone(), what, version });
}

/// Removes the only name of a private object that nobody has open. Returns whether it did.
pub(crate) fn unlink(cx: &mut Cx<'_>, parent: u64, name: &Bytes, rmdir: bool) -> Run<bool> {
    if cx.memo(Step::Made).is_some() {
        return Ok(true);
    }
    let Some(leased) = directory(cx, parent)? else { return Ok(false) };
    let KnownName::Child(fid) = cx.w.nodes.known_name(parent, name) else { return Ok(false) };
    let ino = fid.ino();
    let (Some(node), Some(dir)) = (cx.w.nodes.get(ino), cx.w.nodes.get(parent)) else { return Ok(false) };
    let (Some(attr), Some(above)) = (node.covered_attr(), dir.covered_attr()) else { return Ok(false) };
    let caller = Caller::of(&cx.op.cred);
    let removable = node.private == leased.lease
        && is_quiet(cx, node)
        && !node.is_held(Hold::Open)
        && !node.is_held(Hold::Wanted)
        && node.lmv().is_none()
        && (if rmdir { is_empty(node) } else { attr.nlink == 1 })
        && names::may_unlink(&caller, Object::without_list(above), Object::without_list(attr), rmdir).is_ok();
    if !removable {
        return Ok(false);
    }
    let Some(nlink) = names::links_after_removal(Object::without_list(attr)) else { return Ok(false) };
    let (attr, above) = (Attr { nlink, ..attr.clone() }, above.clone());
    let dest = leased.dest;
    if rmdir && lease(cx.w, dest, fid).is_none() {
        return Ok(false);
    }
    let after = Attr { nlink: above.nlink - u32::from(rmdir), ..above };
    let directory = after.fid;
    put_name(cx.w, parent, name, None, &after, leased.version, cx.op.wall_ns);
    locks::destroyed(cx.w, dest, fid);
    let op = UnlinkOp { parent: directory, name: name.clone(), rmdir, reported: Some(fid), entry_only: false };
    let what = What::Unlink { ino, parent, name: name.clone() };
    done(cx, (dest, leased.version), ino, WantLocks::default(), Reint::Unlink(op), what);
    name_removed(cx.w, parent, name, &attr, true);
    Ok(true)
}

/// Whether all entries of a directory are cached, and there are none.
fn is_empty(node: &Node) -> bool {
    let empty = |dir: &crate::cache::names::Directory| {
        dir.older.is_empty() && dir.names.values().all(|entry| entry.fid.is_none())
    };
    is_whole(node) && node.dir.as_deref().is_some_and(empty)
}

/// Changes attributes of a private object, except its size. Returns whether it did.
pub(crate) fn setattr(cx: &mut Cx<'_>, ino: u64, op: &SetattrOp) -> Run<bool> {
    if cx.memo(Step::Made).is_some() {
        return Ok(true);
    }
    let Some((dest, version)) = object(cx, ino)? else { return Ok(false) };
    let Some(attr) = cx.w.nodes.get(ino).and_then(|node| node.covered_attr()) else { return Ok(false) };
    if op.valid & (valid::SIZE | valid::KILL_PRIV | valid::HOUSEKEEPING | valid::CTIME) != 0 {
        return Ok(false);
    }
    let caller = Caller::of(&cx.op.cred);
    let Ok(set) = rules::attrs::set(&caller, Object::without_list(attr), op, cx.op.wall_ns, false) else {
        return Ok(false);
    };
    if let Some(attr) = cx.w.nodes.get_mut(ino).and_then(|node| node.attr.as_mut()) {
        set.object.show_in(attr);
        attr.version = version;
    }
    let op = Reint::Setattr(SetattrOp { handle: 0, ..*op });
    done(cx, (dest, version), ino, WantLocks::default(), op, What::Setattr { ino });
    Ok(true)
}

/// Stores an access time that no close carries. Returns whether it did.
pub(crate) fn accessed(cx: &mut Cx<'_>, ino: u64, atime_ns: i64) -> Run<bool> {
    if cx.memo(Step::Made).is_some() {
        return Ok(true);
    }
    let Some(place) = object(cx, ino)? else { return Ok(false) };
    if let Some(node) = cx.w.nodes.get_mut(ino) {
        node.atime_ns = None;
        if let Some(attr) = &mut node.attr {
            attr.atime_ns = attr.atime_ns.max(atime_ns);
        }
    }
    let fid = fid_of(ino)?;
    let op = SetattrOp { fid, valid: valid::ATIME | valid::HOUSEKEEPING, atime_ns, ..SetattrOp::default() };
    done(cx, place, ino, WantLocks::default(), Reint::Setattr(op), What::Setattr { ino });
    Ok(true)
}
