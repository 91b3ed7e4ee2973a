//! The operations, one file per group of calls.
//!
//! Step numbers are each operation's own; [`step`] has those that helpers share.

pub(crate) mod ahead;
mod attr;
mod background;
mod dir;
mod disown;
mod info;
mod io;
pub(crate) mod kernel;
mod lookup;
mod namespace;
mod open;
mod record_lock;
mod unmount;
mod xattr;

use proto::msg::{Attr, GetattrReq, Resource, bits};
use proto::{Errno, Fid, Opcode};
use rules::Caller;
use rules::mode::{S_IFMT, S_IFREG};

use crate::api::{Answer, Call, Stat};
use crate::cx::{Cx, Run, Stop};
use crate::data;
use crate::op::{Task, WaitKey};
use crate::world::{ObjectLocks, World};

pub(crate) use namespace::unnamed;

pub(crate) use disown::{Disowned, disown};
pub(crate) use kernel::{Gate, asked_no_more, ended, gone, names_lost, shown, waits};

/// Steps of helpers; an operation's own begin at 100.
pub(crate) mod step {
    use crate::cx::Step;
    /// Attributes of a node.
    pub const ATTR: Step = 1;
    /// The FID of a new object.
    pub const NEW_FID: Step = 2;
    /// `update_epoch` of a directory when the request left.
    pub const EPOCH: Step = 3;
    /// The same of a second directory.
    pub const EPOCH_OTHER: Step = 4;
    /// Record locks given back.
    pub const UNLOCK: Step = 7;
    /// Our number of that request.
    pub const UNLOCK_COOKIE: Step = 8;
    /// Names that the kernel was asked to drop: how many; until when that is waited for.
    pub const NAMES: Step = 9;
    /// See [`NAMES`].
    pub const NAMES_UNTIL: Step = 10;
    /// An object is opened with its lookup.
    pub const HOLD: Step = 11;
    /// How often a lock was tried for again.
    pub const TRIES: Step = 12;
    /// When it is next.
    pub const TRY_AT: Step = 13;
    /// The node whose size is asked for.
    pub const KEPT: Step = 15;
    /// Closes that must be done first: one step for each target.
    pub const CLOSES: Step = 500;
    /// Until when an empty read waits.
    pub const AFTER_END: Step = 14;
    /// Flags and node of the open file that a call changes.
    pub const FILE_FLAGS: Step = 90;
    /// See [`FILE_FLAGS`].
    pub const FILE_NODE: Step = 91;
    /// A listing that is fetched: the step of the next piece, and after which cookie it begins.
    pub const LISTED: Step = 16;
    /// See [`LISTED`].
    pub const LISTED_AFTER: Step = 17;
    /// Targets that are left before the others: one step for each.
    pub const LEAVE: Step = 600;
    /// A run of requests begins here.
    pub const MANY: Step = 1000;
    /// Added to the step of a piece of a listing: the epoch when its request left, and above it how many names had been changed.
    pub const EPOCHS: Step = 20_000;
    /// Added to the number of such a name: its directory.
    pub const PARENTS: Step = 10_000;
    /// Added to a step at which the kernel is told to forget attributes: how often they had been shown to it.
    pub const SHOWN: Step = 40_000;
    /// Added to the same: how often it did not know the node.
    pub const UNKNOWN: Step = 60_000;
    /// Until when an answer is waited for.
    pub const UNTIL: Step = 18;
    /// The kernel forgets a mode.
    pub const MODE: Step = 19;
    /// A file that has set-id bits is cut by its open.
    pub const SET_ID: Step = 24;
    /// The attributes of a file that is written to, which may give capabilities;
    pub const CAPABILITY: Step = 25;
    /// and that one alone.
    pub const CAPABILITY_ALONE: Step = 26;
    /// An extended attribute, or the names of all, where all together are too much for one answer.
    pub const XATTR_ALONE: Step = 93;
    /// The privileges of a file that is written to are dropped.
    pub const PRIVILEGES: Step = 27;
    /// The kernel drops pages of a file whose size is lost.
    pub const SIZE_LOST: Step = 30;
    /// The kernel forgets attributes before they are changed: one step for each of four nodes,
    pub const HIDE: Step = 31;
    /// and is shown none of them until the operation ends.
    pub const HIDDEN: Step = 35;
    /// The kernel waits for attributes.
    pub const ASKED: Step = 96;
    /// Whether a directory still has the name by which the kernel came to it,
    pub const NAMED: Step = 94;
    /// and which directory that is.
    pub const NAMED_OF: Step = 95;
    /// Directories and objects that a request is about to change, up to three.
    pub const CHANGING: Step = 20;
    /// What has the name that is to go: one of them.
    pub const GOES: Step = CHANGING + 2;
    /// The object of a change that was made in the caches.
    pub const MADE: Step = 23;
    /// How often something was lost before a sync.
    pub const LOSSES: Step = 92;
    /// A file that was to be made and is there, and that is to be cut.
    pub const FOUND: Step = 28;
    /// It is open.
    pub const OPENED: Step = 29;
    /// A record lock that takes nothing away.
    pub const KEEP: Step = 97;
    /// A sequence was waited for.
    pub const SEQUENCE: Step = 6;
    /// The request of the operation.
    pub const MAIN: Step = 5;
}

/// One attempt of a call.
pub(crate) fn call(cx: &mut Cx<'_>, call: &Call) -> Run<Answer> {
    if !cx.w.mounted {
        if let Call::Forget { .. } = call {
            return Ok(Answer::Done);
        }
        return Err(cx.wait(WaitKey::Mounted));
    }
    if let Some(errno) = crate::lost::told(cx, call) {
        return Err(errno.into());
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
        Call::Fsync { fh, data_only } => io::fsync(cx, *fh, *data_only),
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
        Task::Config => crate::config::follow(cx),
        Task::Root => crate::config::root(cx),
        Task::Sequence => background::sequence(cx),
        Task::Callback { dest, cookie } => background::callback(cx, *dest, *cookie),
        Task::Close(closing) => background::close(cx, closing),
        Task::Batch(batch) => crate::metadata_write_back::send(cx, batch),
        Task::Hold { closing, until } => kernel::hold(cx, closing, *until),
        Task::Atime { ino } => background::atime(cx, *ino),
        Task::Publish { ino } => background::publish(cx, *ino),
        Task::Listing { ino } => dir::fetch_listing(cx, *ino),
        Task::Ahead { ino } => ahead::fetch(cx, *ino),
        Task::Next { fh, ino, after, number } => dir::fetch_next(cx, *fh, *ino, *after, *number),
        Task::Unlock { dest, request } => record_lock::unlock(cx, *dest, request),
        Task::DropLocks { ino, owner, flock } => record_lock::drop_owner(cx, fid_of(*ino)?, *owner, *flock),
        Task::Disown(left) => {
            disown::let_go(cx, left);
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

/// The FID of a node number.
pub(crate) fn fid_of(ino: u64) -> Run<Fid> {
    Fid::from_ino(ino).ok_or(Stop::Errno(Errno::ESTALE))
}

/// The FID of a node that the kernel came to by a path. The first call after the name may have changed is refused, so
/// that the kernel looks the name up again; of a directory the server is asked first whether the name has changed at all.
pub(crate) fn walk(cx: &mut Cx<'_>, ino: u64) -> Run<Fid> {
    let asked = cx.memo(step::NAMED_OF) == Some(ino);
    if (asked || cx.op.is_fresh() && may_have_moved(cx, ino)) && !kernel::still_named(cx, ino)? {
        stdx::mark!("stale_node");
        return Err(Errno::ESTALE.into());
    }
    let fid = fid_of(ino)?;
    // Caches are looked at through the node; the list of unused locks must hear that these are in use.
    if let Some(target) = cx.w.imports.get(cx.w.mdt_of(fid)) {
        let _ = target.locks.bits_held(&Resource::inode(fid));
    }
    Ok(fid)
}

/// The name by which the kernel came to a node may lead to something else by now.
fn may_have_moved(cx: &Cx<'_>, ino: u64) -> bool {
    cx.w.nodes.get(ino).is_some_and(|node| {
        node.stale
            // What a program has open it may ask about without a path, and nobody would ask again for it.
            && node.handles == 0
            // The kernel looks a path up again only once: a call that met `ESTALE` must not meet it a second time.
            && cx.w.now > node.held
    })
}

/// Refuses a change on a read-only mount.
pub(crate) fn writable(cx: &Cx<'_>) -> Run<()> {
    if cx.w.options.read_only { Err(Errno::EROFS.into()) } else { Ok(()) }
}

/// The FID for a new object; the same on every attempt.
pub(crate) fn new_fid(cx: &mut Cx<'_>) -> Run<Fid> {
    if let Some(ino) = cx.memo(step::NEW_FID) {
        return fid_of(ino);
    }
    match cx.w.sequences.take() {
        Some(fid) => {
            if cx.w.sequences.wants_more() {
                cx.w.sequences.asked = true;
                cx.spawn(Task::Sequence);
            }
            cx.set_memo(step::NEW_FID, fid.ino());
            Ok(fid)
        }
        None => {
            if let (true, Some(errno)) = (cx.began(step::SEQUENCE), cx.w.sequences.failed) {
                return Err(Stop::Errno(errno));
            }
            cx.set_memo(step::SEQUENCE, 0);
            if !cx.w.sequences.asked {
                cx.w.sequences.asked = true;
                cx.w.sequences.failed = None;
                cx.spawn(Task::Sequence);
            }
            Err(cx.wait(WaitKey::Sequence))
        }
    }
}

/// An object that is gone is a stale handle to whoever named it by node.
pub(crate) fn stale_if_gone<T>(result: Run<T>) -> Run<T> {
    match result {
        Err(Stop::Errno(Errno::ENOENT)) => Err(Stop::Errno(Errno::ESTALE)),
        other => other,
    }
}

/// The attributes of a node: from the cache if locks cover them, from the server otherwise.
///
/// With `data`, of a resident file also its size must be covered or fresh.
pub(crate) fn attributes(cx: &mut Cx<'_>, ino: u64, data: bool) -> Run<Attr> {
    let fid = fid_of(ino)?;
    if !cx.began(step::ATTR)
        && let Some(node) = cx.w.nodes.get(ino)
        && let Some(attr) = node.certain_attr()
        && (!data || !is_resident(attr) || data::stat_cached(cx.w, ino).is_some())
    {
        return Ok(attr.clone());
    }
    let rep = fetch(cx, fid)?;
    let attr = rep.attr.as_ref().ok_or(Errno::EPROTO)?;
    // A newer copy may have come in meanwhile.
    Ok(cx.w.nodes.get(ino).and_then(|node| node.attr.as_ref()).unwrap_or(attr).clone())
}

/// Asks the server for the attributes of `fid`, with locks.
pub(crate) fn fetch(cx: &mut Cx<'_>, fid: Fid) -> Run<std::sync::Arc<proto::msg::ObjectRep>> {
    let dest = cx.w.mdt_of(fid);
    let cred = cx.op.cred.clone();
    stale_if_gone(cx.rpc_object(step::ATTR, dest, Opcode::MdsGetattr, |w, _| {
        let node = w.nodes.get(fid.ino());
        let object = ObjectLocks::missing(node);
        let data = node.is_none_or(|node| node.attr.as_ref().is_none_or(is_resident));
        let want = w.want_locks(dest, object, false, data.then_some(false));
        GetattrReq { fid, want: Some(want), cred: Some((*cred).clone()) }
    }))
}

/// A regular file whose data lies on the metadata target.
pub(crate) fn is_resident(attr: &Attr) -> bool {
    attr.mode & S_IFMT == S_IFREG && attr.layout.as_ref().is_none_or(|layout| layout.resident)
}

/// What a program sees of a node whose attributes are known: with size and times of its data.
pub(crate) fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<Stat> {
    if let Some(stat) = stat_cached(cx.w, ino) {
        return Ok(stat);
    }
    let Some(node) = cx.w.nodes.get(ino) else { return Err(Errno::ESTALE.into()) };
    let Some(_) = &node.attr else { return Err(Errno::ESTALE.into()) };
    let data = if node.is_regular() { Some(data_stat(cx, ino)?) } else { None };
    let node = cx.w.nodes.get(ino).ok_or(Errno::ESTALE)?;
    let attr = node.attr.as_ref().ok_or(Errno::ESTALE)?;
    Ok(compose(node, attr, data, node.certain_attr().is_some()))
}

/// [`stat`] for who looked a name up. If the object targets cannot say how large the file is because a record there is lost, the name
/// is found all the same, with nothing to be kept: it can be removed, and who asks for the size is answered the error. Pages that
/// the kernel has beyond the size that is made up go first.
pub(crate) fn stat_of_name(cx: &mut Cx<'_>, ino: u64) -> Run<Stat> {
    let found = stat(cx, ino);
    if found != Err(Stop::Errno(Errno::EIO)) {
        return found;
    }
    if cx.w.nodes.get(ino).is_some_and(|node| node.lookups > 0) {
        cx.invalidate_kernel(step::SIZE_LOST, ino, 0, u64::MAX)?;
    }
    let Some(node) = cx.w.nodes.get(ino).filter(|node| node.is_regular()) else { return found };
    node.attr.as_ref().map_or(found, |attr| Ok(compose(node, attr, None, false)))
}

/// [`stat`] for a call that has made or changed an object, whose attributes `attr` came with the answer. The change is done, so the call
/// succeeds whatever has become of the object since: if somebody has removed it, it looks as it did then. (`ESTALE` would make the
/// kernel ask for the same change again.)
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

/// Size and times of a file's data. Who looked it up has no reference of the kernel's yet: while the object targets are
/// asked, others that are looked up must not push it out.
fn data_stat(cx: &mut Cx<'_>, ino: u64) -> Run<data::DataStat> {
    let found = crate::metadata_write_back::settled(cx, ino).and_then(|()| data::stat(cx, ino));
    if matches!(found, Err(Stop::Wait)) {
        cx.keep_node(step::KEPT, ino);
    }
    found
}

/// The same if locks cover everything: no request, no waiting.
pub(crate) fn stat_cached(w: &World, ino: u64) -> Option<Stat> {
    let node = w.nodes.get(ino)?;
    let attr = node.certain_attr()?;
    let data = if node.is_regular() { Some(data::stat_cached(w, ino)?) } else { None };
    Some(compose(node, attr, data, true))
}

pub(super) fn compose(node: &crate::node::Node, attr: &Attr, data: Option<data::DataStat>, covered: bool) -> Stat {
    let mut times =
        Attr { mtime_ns: attr.mtime_ns, mtime_set_ns: attr.mtime_set_ns, ctime_ns: attr.ctime_ns, ..Attr::default() };
    if let Some(data) = data {
        times.take_data_times(&data.lvb);
    }
    let mut stat = Stat {
        ino: node.ino,
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
    };
    if let Some(data) = data {
        stat.size = data.lvb.size;
        stat.blocks = data.lvb.blocks;
        stat.cacheable &= data.cacheable;
    }
    if let Some(atime) = node.atime_ns {
        stat.atime_ns = stat.atime_ns.max(atime);
    }
    stat
}

/// Whether `cred` may do `mask` (R 4, W 2, X 1) as far as covered attributes say; `None`: only the server knows.
pub(crate) fn permitted(w: &World, ino: u64, mask: u32, cred: &proto::msg::Cred) -> Option<bool> {
    permits(w.nodes.get(ino)?.access_attr()?, mask, cred)
}

/// The same as attributes say that may be old.
pub(crate) fn permits(attr: &Attr, mask: u32, cred: &proto::msg::Cred) -> Option<bool> {
    Caller::of(cred).may(attr, mask)
}
