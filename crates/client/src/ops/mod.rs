//! The operations, one file per group of calls.

pub(crate) mod ahead;
pub(crate) mod alias;
mod attr;
mod background;
pub(crate) mod config;
pub(crate) mod data;
pub(crate) mod devices;
mod dir;
mod disown;
mod dot_lustre;
mod info;
mod io;
mod lookup;
mod namespace;
mod open;
pub(crate) mod params;
mod placement;
mod record_lock;
mod stale;
pub(crate) mod stripes;
mod unmount;
mod xattr;

use proto::msg::{Attr, DirName, GetattrReq, ObjectRep, Resource, bits};
use proto::{Errno, Fid, Opcode};
use std::sync::Arc;

use crate::api::{Answer, Call, Stat};
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::node::{Hold, is_resident};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::op::Task;
use crate::coherence::request::{ObjectLocks, Request, Wants};
use crate::coherence::world::World;
use crate::coherence::{callback, closes, fids, local_opens, lost, metadata_write_back};

pub(crate) use disown::disown;

/// One attempt of a call.
pub(crate) fn call(cx: &mut Cx<'_>, call: &Call) -> Run<Answer> {
    if !cx.w.mounted {
        if let Call::Forget { .. } = call {
            return Ok(Answer::Done);
        }
        return Err(cx.wait(WaitKey::Mounted));
    }
    if let Some(errno) = lost::take_unreported(cx, call) {
        return Err(errno.into());
    }
    if cx.op.is_fresh() {
        dot_lustre::check(cx.w, call)?;
    }
    match call {
        Call::Lookup { parent, name } => lookup::lookup(cx, *parent, name),
        Call::Forget { ino, count } => {
            lookup::forget(cx.w, *ino, *count);
            Ok(Answer::Done)
        }
        Call::Getattr { ino, fh } => attr::getattr(cx, *ino, *fh),
        Call::RootAttr { ino } => attr::root(cx, *ino),
        Call::Setattr { ino, set } => attr::setattr(cx, *ino, set),
        Call::Readlink { ino } => attr::readlink(cx, *ino),
        Call::Access { ino, mask } => attr::access(cx, *ino, *mask),
        Call::Mknod { parent, name, mode, rdev } => namespace::mknod(cx, *parent, name, *mode, *rdev),
        Call::Mkdir { parent, name, mode } => namespace::mkdir(cx, *parent, name, *mode),
        Call::MkdirOn { parent, name, mode, wish } => namespace::mkdir_on(cx, *parent, name, *mode, wish),
        Call::RemoveEntry { parent, name } => namespace::remove_entry(cx, *parent, name),
        Call::Symlink { parent, name, target } => namespace::symlink(cx, *parent, name, target),
        Call::Unlink { parent, name } => namespace::unlink(cx, *parent, name, false),
        Call::Rmdir { parent, name } => namespace::unlink(cx, *parent, name, true),
        Call::Rename { parent, name, new_parent, new_name, flags } => {
            namespace::rename(cx, *parent, name, *new_parent, new_name, *flags)
        }
        Call::Link { ino, new_parent, new_name } => namespace::link(cx, *ino, *new_parent, new_name),
        Call::Open { ino, flags } => open::open(cx, *ino, *flags),
        Call::Create { parent, name, mode, flags } => open::create(cx, *parent, name, *mode, *flags),
        Call::Flush { fh, lock_owner } => open::flush(cx, *fh, *lock_owner),
        Call::Release { fh, flock_owner } => open::release(cx, *fh, *flock_owner),
        Call::Read { fh, offset, length } => io::read(cx, *fh, *offset, *length),
        Call::Write { fh, ino, offset, data, write_back, kill_priv } => {
            io::write(cx, *fh, *ino, *offset, data, *write_back, *kill_priv)
        }
        Call::Fsync { fh } => io::fsync(cx, *fh),
        Call::Syncfs => io::syncfs(cx),
        Call::Fallocate { fh, mode, offset, length } => io::fallocate(cx, *fh, *mode, *offset, *length),
        Call::Lseek { fh, offset, whence } => io::lseek(cx, *fh, *offset, *whence),
        Call::Opendir { ino } => dir::opendir(cx, *ino),
        Call::Readdir { fh, offset, max_bytes, plus } => dir::readdir(cx, *fh, *offset, *max_bytes, *plus),
        Call::Releasedir { fh } => dir::releasedir(cx, *fh),
        Call::Fsyncdir { fh } => dir::fsyncdir(cx, *fh),
        Call::Statfs { .. } => info::statfs(cx),
        Call::Setxattr { ino, name, value, flags } => xattr::set(cx, *ino, name, value, *flags),
        Call::Getxattr { ino, name } => xattr::get(cx, *ino, name),
        Call::Listxattr { ino } => xattr::list(cx, *ino),
        Call::Removexattr { ino, name } => xattr::remove(cx, *ino, name),
        Call::Getlk { fh, owner, lock } => record_lock::test(cx, *fh, *owner, lock),
        Call::Setlk { fh, owner, lock, wait, flock } => record_lock::set(cx, *fh, *owner, lock, *wait, *flock),
        Call::PathToFid { ino } => info::path_to_fid(*ino),
        Call::FidToPath { fid } => info::fid_to_path(cx, *fid),
        Call::MdtIndex { ino } => info::mdt_index(cx, *ino),
        Call::GetDirLayout { ino } => stripes::get_layout(cx, *ino),
        Call::SetDirLayout { ino, wish } => stripes::set_layout(cx, *ino, wish),
        Call::GetDirDefault { ino } => placement::get_default(cx, *ino),
        Call::SetDirDefault { ino, default } => placement::set_default(cx, *ino, default.as_deref()),
        Call::GetLayout { ino } => info::get_layout(cx, *ino),
        Call::SetLayout { ino, wish } => info::set_layout(cx, *ino, wish),
        Call::Migrate { ino, wish } => info::migrate(cx, *ino, wish),
        Call::TargetSpace => info::target_space(cx),
        Call::Pools => Ok(Answer::Pools(cx.w.pools.keys().cloned().collect())),
        Call::PoolMembers { pool } => info::pool_members(cx, pool),
    }
}

/// One attempt of background work.
pub(crate) fn task(cx: &mut Cx<'_>, task: &Task) -> Run<()> {
    match task {
        Task::Config => config::follow(cx),
        Task::Root => config::root(cx),
        Task::Sequence(dest) => fids::sequence(cx, *dest),
        Task::Callback { dest, cookie } => callback::callback(cx, *dest, *cookie),
        Task::Close(batch) => closes::send(cx, batch),
        Task::Batch(batch) => metadata_write_back::send(cx, batch),
        Task::Hold { closing, until } => stale::hold(cx, closing, *until),
        Task::Atime { ino } => closes::atime(cx, *ino),
        Task::Publish { ino } => local_opens::report(cx, *ino),
        Task::Listing { ino } => dir::fetch_listing(cx, *ino),
        Task::Ahead { ino } => ahead::fetch(cx, *ino),
        Task::Next { fh, ino, after, number } => dir::fetch_next(cx, *fh, *ino, *after, *number),
        Task::Unlock { dest, request } => record_lock::unlock(cx, *dest, request),
        Task::DropLocks { ino, owner, flock } => record_lock::drop_owner(cx, fid_of(*ino)?, *owner, *flock),
        Task::Disown(left) => {
            disown::release_all(cx, left);
            Ok(())
        }
        Task::Unmount => unmount::unmount(cx),
        Task::Data(task) => data::run(cx, task),
    }
}

/// Background work failed.
pub(crate) fn task_failed(w: &mut World, task: &Task, errno: Errno) {
    background::failed(w, task, errno);
}

/// The FID of a node that the kernel reached by path. If the node's name may have changed, the call fails with
/// `ESTALE`, so that the kernel looks the name up again; for a directory the server is asked first whether the name has
/// changed at all.
pub(crate) fn walk(cx: &mut Cx<'_>, ino: u64) -> Run<Fid> {
    let asked = cx.memo(Step::NamedOf) == Some(ino);
    // An alias leads to its object by the FID.
    let may_have_moved = !cx.w.by_alias && cx.op.is_fresh() && may_have_moved(cx, ino);
    if (asked || may_have_moved) && !stale::still_named(cx, ino)? {
        stdx::mark!("stale_node");
        return Err(Errno::ESTALE.into());
    }
    let fid = fid_of(ino)?;
    let dest = config::locate(cx, fid)?;
    // Cached attributes are read through the node; this marks their locks as used.
    if let Some(locks) = cx.w.locks.get(dest) {
        let _ = locks.bits_held(&Resource::inode(fid));
    }
    Ok(fid)
}

/// Whether the name by which the kernel reached a node may lead elsewhere by now.
fn may_have_moved(cx: &Cx<'_>, ino: u64) -> bool {
    // A program that has the node open may call without a path, and nobody would repeat its call. And the kernel looks
    // a path up again only once: a call that has got `ESTALE` must not get it again.
    let node = cx.w.nodes.get(ino);
    node.is_some_and(|node| node.kernel.may_be_stale(cx.w.now) && !node.is_held(Hold::Handle))
}

/// Refuses a change on a read-only mount.
pub(crate) fn writable(cx: &Cx<'_>) -> Run<()> {
    if cx.w.options.read_only { Err(Errno::EROFS.into()) } else { Ok(()) }
}

/// An object that was removed is a stale handle to a caller that identifies it by node.
pub(crate) fn stale_if_gone<T>(result: Run<T>) -> Run<T> {
    match result {
        Err(Stop::Errno(Errno::ENOENT)) => Err(Stop::Errno(Errno::ESTALE)),
        other => other,
    }
}

/// The attributes of a node: from the cache if locks cover them, otherwise from the server.
///
/// With `data`, the size of a resident file must be covered or fresh too.
pub(crate) fn attributes(cx: &mut Cx<'_>, ino: u64, data: bool) -> Run<Attr> {
    let fid = fid_of(ino)?;
    if !cx.began(Step::Attr)
        && let Some(node) = cx.w.nodes.get(ino)
        && let Some(attr) = node.certain_attr()
        && (!data || !is_resident(attr) || data::stat_cached(cx.w, ino).is_some())
    {
        return Ok(attr.clone());
    }
    let rep = fetch(cx, Step::Attr, fid)?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    // A newer copy may have arrived meanwhile.
    Ok(cx.w.nodes.get(ino).and_then(|node| node.attr.as_ref()).unwrap_or(attr).clone())
}

/// Fetches the attributes of `fid` from its metadata target, with locks.
pub(crate) fn fetch(cx: &mut Cx<'_>, step: Step, fid: Fid) -> Run<Arc<ObjectRep>> {
    fetch_named(cx, step, fid, None)
}

/// The same, and whether the object has this name.
fn fetch_named(cx: &mut Cx<'_>, step: Step, fid: Fid, name: Option<DirName>) -> Run<Arc<ObjectRep>> {
    let dest = config::locate(cx, fid)?;
    stale_if_gone(cx.rpc_object(step, dest, Opcode::MdsGetattr, |w, op| {
        let node = w.nodes.get(fid.ino());
        let object = ObjectLocks::missing(node);
        let data = node.is_none_or(|node| node.attr.as_ref().is_none_or(is_resident));
        let mut wants = Wants::default();
        let want = Some(wants.locks(w, dest, object, false, data.then_some(false)));
        let cred = Some((*op.cred).clone());
        Request::new(&GetattrReq { fid, want, cred, name, ..GetattrReq::default() }).wanting(wants)
    }))
}

/// The stat of a node whose attributes are cached, with size and times of its data.
pub(crate) fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<Stat> {
    if let Some(stat) = stat_cached(cx.w, ino) {
        return Ok(stat);
    }
    let Some(node) = cx.w.nodes.get(ino) else { return Err(Errno::ESTALE.into()) };
    let Some(_) = &node.attr else { return Err(Errno::ESTALE.into()) };
    if node.lmv().is_some() {
        return stripes::stat(cx, ino);
    }
    let data = if node.is_regular() { Some(data_stat(cx, ino)?) } else { None };
    let node = cx.w.nodes.get(ino).ok_or(Errno::ESTALE)?;
    let attr = node.attr.as_ref().ok_or(Errno::ESTALE)?;
    Ok(compose(node, attr, data, node.certain_attr().is_some()))
}

/// [`stat`] for a lookup. If the object targets cannot tell the size because a record there is lost, the lookup
/// succeeds all the same, with attributes that the kernel may not keep: the file can be removed, and a call for its
/// size gets the error. The kernel first drops pages, which may lie beyond the placeholder size.
pub(crate) fn stat_of_name(cx: &mut Cx<'_>, ino: u64) -> Run<Stat> {
    let found = stat(cx, ino);
    if found != Err(Stop::Errno(Errno::EIO)) {
        return found;
    }
    if cx.w.nodes.get(ino).is_some_and(|node| node.kernel.knows()) {
        cx.invalidate_kernel(Step::SizeLost, ino, 0, u64::MAX)?;
    }
    let Some(node) = cx.w.nodes.get(ino).filter(|node| node.is_regular()) else { return found };
    node.attr.as_ref().map_or(found, |attr| Ok(compose(node, attr, None, false)))
}

/// [`stat`] for a call that has created or changed an object, whose attributes `attr` came with the answer. The change
/// is done, so the call succeeds even if the object was removed meanwhile: then it is shown as in `attr`, without a
/// link. (`ESTALE` would make the kernel repeat the change.)
pub(crate) fn stat_of_change(cx: &mut Cx<'_>, attr: &Attr) -> Run<Stat> {
    let found = stat(cx, attr.fid.ino());
    if found != Err(Stop::Errno(Errno::ESTALE)) {
        return found;
    }
    stdx::mark!("changed_and_gone");
    let node = cx.w.nodes.obtain(attr.fid);
    node.unlinked = true;
    Ok(compose(node, &Attr { nlink: 0, ..attr.clone() }, None, false))
}

/// Size and times of a file's data. A lookup holds no reference of the kernel yet, so the node is kept while the object
/// targets are asked.
fn data_stat(cx: &mut Cx<'_>, ino: u64) -> Run<data::DataStat> {
    let found = metadata_write_back::settled(cx, ino).and_then(|()| data::stat(cx, ino));
    if matches!(found, Err(Stop::Wait)) {
        cx.keep_node(Step::Kept, ino);
    }
    found
}

/// The same if locks cover everything, without a request.
pub(crate) fn stat_cached(w: &World, ino: u64) -> Option<Stat> {
    let node = w.nodes.get(ino)?;
    let attr = node.certain_attr()?;
    if node.lmv().is_some() {
        return Some(compose(node, &stripes::merged_cached(w, ino)?, None, true));
    }
    let data = if node.is_regular() { Some(data::stat_cached(w, ino)?) } else { None };
    Some(compose(node, attr, data, true))
}

pub(super) fn compose(
    node: &crate::cache::node::Node,
    attr: &Attr,
    data: Option<data::DataStat>,
    covered: bool,
) -> Stat {
    let mut times =
        Attr { mtime_ns: attr.mtime_ns, mtime_set_ns: attr.mtime_set_ns, ctime_ns: attr.ctime_ns, ..Attr::default() };
    if let Some(data) = data {
        times.take_data_times(&data.lvb);
    }
    let mut stat = Stat {
        ino: node.ino(),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        atime_ns: attr.atime_ns,
        mtime_ns: times.mtime_ns,
        ctime_ns: times.ctime_ns,
        btime_ns: attr.btime_ns,
        cacheable: covered,
        entry_cacheable: node.has(bits::LOOKUP),
        is_partial: false,
    };
    if let Some(data) = data {
        stat.size = data.lvb.size;
        stat.blocks = data.lvb.blocks;
        stat.cacheable &= data.cacheable;
    }
    if let Some(atime) = node.atime_ns {
        stat.atime_ns = stat.atime_ns.max(atime.get());
    }
    stat
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::OpId;
    use crate::coherence::op::OpState;

    /// Another client has removed what this client has just created, while its size was being requested. `ESTALE` would
    /// make the kernel repeat the change.
    #[test]
    fn a_change_whose_object_was_removed_meanwhile_succeeds() {
        let mut w = World::new(crate::api::Options::of_tests());
        let attr = Attr { fid: Fid::new(Fid::SEQ_FIRST, 7), mode: 0o100_644, nlink: 1, ..Attr::default() };
        let id = OpId { slot: 0, generation: 1 };
        let mut op = OpState::new(id, None, Arc::default(), 0, stdx::Instant::ZERO);
        let mut cx = Cx { w: &mut w, op: &mut op };
        assert_eq!(stat(&mut cx, attr.fid.ino()), Err(Errno::ESTALE.into()));
        let stat = stat_of_change(&mut cx, &attr).unwrap();
        assert_eq!((stat.ino, stat.mode, stat.nlink, stat.cacheable), (attr.fid.ino(), 0o100_644, 0, false));
        assert!(stdx::marks::count("changed_and_gone") > 0);
    }
}
