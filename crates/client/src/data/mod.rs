//! Data of files: pages, their locks, write-back, read-ahead, size and times as the data has them.
//!
//! The functions below are all that operations and the machine call; `Node::data` and `World::data` belong to this
//! module alone. Functions with a [`Cx`] are parts of attempts: they may answer [`Stop::Wait`](crate::cx::Stop) and are
//! called again. Their steps are [`crate::DATA_STEP`] and above. Functions with a [`World`] never wait.
//!
//! - `striping`: offsets of the file to objects and back. `pages`: cached bytes of one object. `read_ahead`: how far.
//! - `state`: what is kept per object and per file. `lanes`: and over all; the memory bounds.
//! - `access`: locks and sizes before data is touched. `read`, `write`, `resize`: the operations.
//! - `flush`: write-back, fsync. `recall`: locks that go back, glimpses, stat. `leave`: resident files that grow.
//! - `layout`: whether the objects that are known are still the file's. `migrate`: the data moves to others.
//!
//! A file is one object on its metadata target while it is *resident*, and `stripe count` objects on object targets after.
//! Both are treated alike: the DOM lock of a resident file covers its only object from 0 to the end, as an extent lock
//! does with a stripe.
//!
//! # Invariants
//! - Cached bytes lie under a lock that is held; dirty ones under one that allows writing. They are written, and the kernel's
//!   pages dropped, before the lock goes back.
//! - No byte is in two requests at once, so the order of requests does not matter.
//! - Dirty bytes are within `max_dirty` and within what the targets promised; what exceeds either is written through.
//! - Bytes whose write fails stay dirty and are tried again. They are given up, with a line in the log, only when their lock
//!   goes back or is lost, and at the end of the mount.
//! - While something of a file cannot be written, every write, fsync and close of it is told why. What was given up is told
//!   once to everybody who had the file open (`error_mark`, `error_since`).
//!
//! # Example: one write and one reader elsewhere
//! ```text
//! write 4 KiB          PW lock [0, end) of stripe 0 (granted once); page dirty, size 4096; answered
//! stat elsewhere       glimpse: the target asks us, we say size 4096; the lock stays
//! read elsewhere       callback: dirty page written, kernel pages dropped, our pages dropped, lock cancelled
//! ```

mod access;
mod flush;
mod lanes;
mod layout;
mod leave;
mod migrate;
mod pages;
mod read;
mod read_ahead;
mod recall;
mod resize;
mod state;
mod striping;
mod write;

use bytes::Bytes;
use dlm::client::HeldLock;
use proto::Errno;
use proto::msg::{Attr, Layout, Lvb, Resource};
use stdx::Instant;

use crate::api::{FileHandle, Whence};
use crate::cx::{Cx, DATA_STEP, Run, Step, Stop};
use crate::imports::Dest;
use crate::op::OpId;
use crate::world::World;

pub use lanes::DataState;
pub use state::NodeData;

/// Whether calls of an open file go through the kernel's page cache.
fn through_pages(w: &World, fh: FileHandle) -> bool {
    use crate::file::flags as o;
    w.files.get(fh).is_none_or(|file| file.flags & (o::DIRECT | o::APPEND) == 0)
}

/// Background work of the data cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// Send a request of write-back.
    Write {
        /// Which.
        id: u64,
    },
    /// Fetch what will be read soon.
    ReadAhead {
        /// Of which file.
        ino: u64,
        /// First byte.
        start: u64,
        /// First byte that is not wanted.
        end: u64,
    },
    /// Move a resident file's data to its objects.
    Leave {
        /// Which file.
        ino: u64,
    },
    /// Ask a target to make answered writes durable.
    Commit {
        /// Which target.
        dest: Dest,
    },
}

/// Steps of this module: a kind, and a number within it.
mod steps {
    use super::{DATA_STEP, Step};
    const fn kind(n: u64) -> Step {
        DATA_STEP + (n << 32)
    }
    pub const CONFIRM: Step = kind(0);
    pub const HOME_LOCK: Step = kind(1);
    pub const LOCK: Step = kind(2);
    pub const REFRESH: Step = kind(3);
    pub const TRY_LOCK: Step = kind(4);
    pub const GLIMPSE: Step = kind(5);
    pub const FETCHES: Step = kind(6);
    pub const FETCH: Step = kind(7);
    pub const READ_AHEAD: Step = kind(8);
    pub const THROUGH: Step = kind(9);
    pub const THROUGH_ID: Step = kind(10);
    pub const THROUGH_GRANT: Step = kind(11);
    pub const THROUGH_SENT: Step = kind(12);
    pub const WRITE: Step = kind(13);
    pub const SYNC: Step = kind(15);
    pub const ROUND: Step = kind(16);
    pub const LEAVE: Step = kind(17);
    pub const LEAVE_LOCK: Step = kind(18);
    pub const LEAVE_CHECKED: Step = kind(19);
    pub const LEAVE_EMPTY: Step = kind(20);
    pub const LEAVE_SYNC: Step = kind(21);
    pub const LEAVE_WRITE: Step = kind(22);
    pub const LEAVE_COPIED: Step = kind(81);
    pub const LEAVE_SET: Step = kind(23);
    pub const LEAVE_AGAIN: Step = kind(39);
    pub const LEAVE_AWAY: Step = kind(70);
    pub const LEAVE_WANTED: Step = kind(71);
    pub const SETTLE: Step = kind(40);
    pub const SETTLE_RECALL: Step = kind(41);
    pub const SETTLE_RECALL_END: Step = kind(44);
    pub const MOVED: Step = kind(45);
    pub const END: Step = kind(42);
    pub const END_AGAIN: Step = kind(43);
    pub const CUT_READY: Step = kind(24);
    pub const CUT_AGREED: Step = kind(79);
    pub const CUT: Step = kind(25);
    pub const CUT_ID: Step = kind(26);
    pub const CUT_SENT: Step = kind(27);
    pub const ZEROS: Step = kind(28);
    pub const SEEK: Step = kind(29);
    pub const RECALL: Step = kind(30);
    pub const INVALIDATE: Step = kind(31);
    pub const CUT_DONE: Step = kind(32);
    pub const DROPS: Step = kind(33);
    pub const DROP_START: Step = kind(34);
    pub const DROP_END: Step = kind(35);
    pub const DROP_SEEN: Step = kind(36);
    pub const THROUGH_SIZE: Step = kind(38);
    pub const LAYOUT_HELD: Step = kind(46);
    pub const STAT_LAYOUT: Step = kind(47);
    pub const STAT_CONFIRM: Step = kind(78);
    pub const LAYOUT_CONFIRM: Step = kind(65);
    pub const LAYOUT_LOOKED: Step = kind(72);
    pub const LOAD: Step = kind(66);
    pub const LOCK_AWAY: Step = kind(73);
    pub const LOCK_SINCE: Step = kind(74);
    pub const LAYOUT_SEEN: Step = kind(67);
    pub const MIGRATE: Step = kind(48);
    pub const MIGRATE_TRIES: Step = kind(49);
    pub const MIGRATE_SEEN: Step = kind(50);
    pub const MIGRATE_SIZE: Step = kind(51);
    pub const MIGRATE_COOKIE: Step = kind(52);
    pub const MIGRATE_TRANSNO: Step = kind(53);
    pub const MIGRATE_COPY: Step = kind(54);
    pub const MIGRATE_NEW_LOCK: Step = kind(55);
    pub const MIGRATE_AT: Step = kind(56);
    pub const MIGRATE_READ: Step = kind(57);
    pub const MIGRATE_WRITE: Step = kind(58);
    pub const MIGRATE_NEW_PIN: Step = kind(59);
    pub const MIGRATE_LOCK: Step = kind(63);
    pub const MIGRATE_SWAP: Step = kind(60);
    pub const MIGRATE_FAILED: Step = kind(61);
    pub const MIGRATE_DROP: Step = kind(62);
    pub const MIGRATE_END: Step = kind(64);
    pub const MIGRATE_WANTED: Step = kind(77);
    pub const PAST_PAGES: Step = kind(68);
    pub const PAST_PAGES_END: Step = kind(80);
    pub const PAST_PAGES_DROP: Step = kind(69);
    pub const GLIMPSED: Step = kind(75);
    pub const SYNC_HEARD: Step = kind(76);
    /// Not [`INVALIDATE`]: pages may come in while only attributes are being dropped.
    pub const INVALIDATE_ATTR: Step = kind(37);
}

/// The step number `n` of a kind.
fn step(kind: Step, n: u64) -> Step {
    kind + n
}

/// Owner and group of a file, for the space that its data takes; 0xffff_ffff if they are not known.
fn owner(w: &World, ino: u64) -> (u32, u32) {
    let attr = w.nodes.get(ino).and_then(|node| node.attr.as_ref());
    attr.map_or((u32::MAX, u32::MAX), |attr| (attr.uid, attr.gid))
}

/// The job on whose behalf the data of a file is read or written: that of the program that asked for it, or of the last one that did.
fn job(cx: &Cx<'_>, ino: u64) -> String {
    match &cx.cred().job {
        none if none.is_empty() => state::file(cx.w, ino).map_or_else(String::new, |file| file.job.to_string()),
        job => job.clone(),
    }
}

/// A program uses the data of a file.
fn note_job(cx: &mut Cx<'_>, ino: u64) {
    let job = &cx.op.cred.job;
    if let Some(file) = state::file_mut(cx.w, ino).filter(|file| !job.is_empty() && *file.job != **job) {
        file.job = job.as_str().into();
    }
}

/// Size and times as the data has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataStat {
    /// Size, blocks, times. Times count only if the ctime is newer than the metadata's, or the mtime is.
    pub lvb: Lvb,
    /// Locks cover it to the end of the file: the kernel may keep it.
    pub cacheable: bool,
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAt {
    /// Here.
    Offset(u64),
    /// At the true end.
    Append,
}

/// How a write or read is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoFlags {
    /// `O_DIRECT`: past the cache.
    pub direct: bool,
    /// `O_SYNC`, `O_DSYNC`: durable before the answer.
    pub sync: bool,
    /// The kernel writes pages that a program changed through a mapping.
    pub write_back: bool,
}

/// Reads at most `length` bytes.
pub fn read(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, offset: u64, length: u32, flags: IoFlags) -> Run<Bytes> {
    note_job(cx, ino);
    let result = read::read(cx, fh, ino, offset, length, flags);
    if through_pages(cx.w, fh) {
        let range = offset..offset.saturating_add(u64::from(length));
        recall::note_kernel_call(cx, ino, range, false, &result);
    }
    result
}

/// Writes; the bytes written.
pub fn write(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, at: WriteAt, data: &Bytes, flags: IoFlags) -> Run<u32> {
    note_job(cx, ino);
    let result = match (cx.memo(steps::PAST_PAGES), cx.memo(steps::PAST_PAGES_END)) {
        (Some(start), Some(end)) => Ok(start..end),
        _ => write::write(cx, ino, at, data, flags),
    };
    if let WriteAt::Offset(offset) = at
        && (flags.write_back || through_pages(cx.w, fh))
    {
        let range = offset..offset.saturating_add(data.len() as u64);
        // Pages that are being written back hold what the file will hold, whenever that is.
        recall::note_kernel_call(cx, ino, range, !flags.write_back, &result);
    }
    let written = result?;
    if flags.direct || at == WriteAt::Append {
        recall::written_past_pages(cx, ino, &written)?;
    }
    Ok((written.end - written.start) as u32)
}

/// Where the last write ends that the kernel has stored in its pages and waits for; 0 if there is none. If others have cut the file, and the
/// kernel were told its size meanwhile, it would put zeros in place of what is stored behind that, and show them when the write is done. It
/// takes no size while a write is under way that makes the file longer than it knows (those do not count), nor from an answer that comes
/// after the write's to a question from before.
pub fn end_of_writes(w: &World, ino: u64) -> u64 {
    if w.data.kernel_calls.is_empty() { 0 } else { recall::end_of_writes(w, ino) }
}

/// The same, until there is none behind `size`.
pub fn writes_end(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    if end_of_writes(cx.w, ino) > size {
        stdx::mark!("size_asked_beside_a_write");
        return Err(cx.wait(state::node_key(ino)));
    }
    Ok(())
}

/// Before the metadata target is asked to change the size: takes (pins) the locks that cover what is cut, and writes
/// back or discards what must not come after it.
pub fn before_truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    resize::before_truncate(cx, ino, size)
}

/// An operation that may cut a file has come so far. If it waits for the metadata target, others can have the locks that it took for the
/// cut, should that take long.
pub fn cut_goes_on<T>(cx: &mut Cx<'_>, ino: u64, result: &Run<T>) {
    if matches!(result, Err(Stop::Wait)) {
        access::cut_waits(cx, ino);
    }
}

/// After the metadata target has agreed (and, of a resident file, has cut its copy): cuts pages and objects.
pub fn truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    resize::truncate(cx, ino, size)
}

/// Writes everything of the file back and makes it durable where it lies (a resident file: the caller sends `MdsSync`).
pub fn fsync(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    flush::fsync(cx, ino)
}

/// Writes everything of all files back and makes it durable on the object targets.
pub fn sync_all(cx: &mut Cx<'_>) -> Run<()> {
    flush::sync_all(cx)
}

/// The next [`sync_all`] of this operation begins anew.
pub fn sync_anew(cx: &mut Cx<'_>) {
    flush::sync_anew(cx);
}

/// At the end of the mount, after [`sync_all`]: what cannot be written is tried again for a while (the whole anew) and then
/// given up.
pub fn end(cx: &mut Cx<'_>) -> Run<()> {
    flush::end(cx)
}

/// Why data of a file cannot be written back at present, if it cannot.
pub fn unwritable(w: &World, ino: u64) -> Option<Errno> {
    state::file(w, ino)?.unwritable()
}

/// What went wrong with write-back: requests that failed and whose bytes were kept, bytes that were given up, and the files
/// that cannot be written at present with the reasons, at most `limit` of them.
pub fn troubles(w: &World, limit: usize) -> (u64, u64, Vec<(String, Errno)>) {
    let dirty = w.data.dirty_files.iter().map(|(_, ino)| *ino);
    let stuck = dirty.filter_map(|ino| Some((w.nodes.path(ino), state::file(w, ino)?.unwritable()?)));
    (w.data.troubles.failures, w.data.troubles.given_up, stuck.take(limit).collect())
}

/// Somebody wants this lock (it is no longer found for new work, and nobody has it pinned): writes back what is dirty
/// under it, makes the kernel drop pages, drops ours. The caller cancels it then.
pub fn flush_for_lock(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    recall::flush_for_lock(cx, dest, lock)
}

/// Size and times: from the cache if locks cover them, by a glimpse otherwise. Regular files only; the attributes of
/// the node are there (for a resident file without a lock the caller has just fetched them).
pub fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<DataStat> {
    recall::stat(cx, ino)
}

/// The same without a request; `None` if locks do not cover it.
pub fn stat_cached(w: &World, ino: u64) -> Option<DataStat> {
    recall::stat_cached(w, ino)
}

/// `fallocate(2)`.
pub fn fallocate(cx: &mut Cx<'_>, ino: u64, mode: u32, offset: u64, length: u64) -> Run<()> {
    resize::fallocate(cx, ino, mode, offset, length)
}

/// `SEEK_DATA`, `SEEK_HOLE`.
pub fn seek(cx: &mut Cx<'_>, ino: u64, offset: u64, whence: Whence) -> Run<u64> {
    resize::seek(cx, ino, offset, whence)
}

/// Moves a resident file's data to its objects.
pub fn leave(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    leave::leave(cx, ino)
}

/// Moves the data of a file to other objects; see [`proto::msg::SetlayoutKind::Copy`] for the wish.
pub fn migrate(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<()> {
    migrate::migrate(cx, ino, wish)
}

/// One attempt of background work.
pub fn run(cx: &mut Cx<'_>, task: &Task) -> Run<()> {
    match *task {
        Task::Write { id } => flush::write(cx, id),
        Task::ReadAhead { ino, start, end } => read::ahead(cx, ino, &(start..end)),
        Task::Leave { ino } => leave::run(cx, ino),
        Task::Commit { dest } => flush::commit(cx, dest),
    }
}

/// A lock callback of another client's stat: what the object looks like here; `None`: the target's own values stand.
pub fn glimpse(w: &World, resource: &Resource) -> Option<Lvb> {
    recall::glimpse(w, resource)
}

/// A data lock (extent, or inode lock with DOM) was granted; with what the target knows of the object.
pub fn lock_granted(w: &mut World, dest: Dest, lock: &HeldLock, lvb: Option<&Lvb>) {
    let _ = dest;
    state::lock_granted(w, lock, lvb);
}

/// A data lock has another mode, or a number of the server's.
pub fn lock_changed(w: &mut World, lock: &HeldLock) {
    state::lock_changed(w, lock);
}

/// The target has made a file whose data is here already, and tells where it goes when it grows.
pub fn layout_settled(w: &mut World, ino: u64, layout: &Layout) {
    state::layout_settled(w, ino, layout);
}

/// Something that a program did to the file was lost, which the next fsync or close tells, or the end of the unmount.
pub fn failed(w: &mut World, ino: u64, errno: Errno) {
    state::failed(w, ino, errno);
}

/// What attributes say of the data, if it lies on the metadata target: for a DOM lock that came with them.
pub fn resident_lvb(attr: &Attr) -> Option<Lvb> {
    crate::ops::is_resident(attr).then(|| state::home_lvb(attr))
}

/// A data lock is gone without a callback (eviction, not granted again): what it covered is worthless; dirty data is
/// lost, which the next fsync or close tells. `ESTALE`: the target does not have the object.
pub fn lock_lost(w: &mut World, lock: &HeldLock, errno: Errno) {
    recall::lock_lost(w, lock, errno);
}

/// Attributes of a regular file came in from the metadata target. `w.nodes` has them already.
pub fn attr_arrived(w: &mut World, ino: u64, attr: &Attr) {
    state::attr_arrived(w, ino, attr);
}

/// Nothing dirty and nothing in flight: the node may be dropped with what it caches.
pub fn is_clean(w: &World, ino: u64) -> bool {
    let Some(file) = state::file(w, ino) else { return true };
    let idle = |o: &state::Object| {
        let counts = o.pages.counts();
        counts.dirty == 0 && counts.writing == 0 && o.pages.oldest_in_flight().is_none() && o.fetches.is_empty()
    };
    let moves = file.leave_asked || w.data.migrating.contains_key(&ino);
    !moves && file.recalls == 0 && idle(&file.home) && file.objects.iter().all(idle)
}

/// Files with bytes that their targets do not have, and how many.
pub fn files_unwritten(w: &World) -> Vec<(u64, u64)> {
    let unwritten = |ino| {
        let file = state::file(w, ino)?;
        let bytes = file.keys().into_iter().filter_map(|key| file.object(key)).map(state::Object::unwritten).sum();
        (bytes > 0).then_some((ino, bytes))
    };
    w.nodes.iter().filter_map(|node| unwritten(node.ino)).collect()
}

/// Bytes under the locks of a resource that the target does not have yet.
pub fn unwritten(w: &World, resource: &Resource) -> u64 {
    recall::unwritten(w, resource)
}

/// Whether a target has all data and all changes of data, and has made them durable.
pub fn is_idle(w: &World, dest: Dest) -> bool {
    let idle = |lane: &lanes::Lane| {
        lane.queue.is_empty() && lane.in_flight == 0 && lane.dirty == 0 && lane.unstable.is_empty() && !lane.committing
    };
    w.data.lane_ref(dest).is_none_or(idle)
}

/// Whether the kernel may hold pages of a file, dirty ones too if a program has mapped it.
pub fn is_in_kernel(w: &World, ino: u64) -> bool {
    state::file(w, ino).is_some_and(|file| file.kernel_pages)
}

/// Whether the kernel may go on with the pages that it has of a file which is being opened through them. If not, it drops them with the
/// answer.
pub fn pages_are_good(w: &mut World, ino: u64) -> bool {
    state::file_mut(w, ino).is_none_or(|file| !core::mem::take(&mut file.old_pages))
}

/// Dirty data is written without waiting for its time.
pub fn write_now(w: &mut World, ino: u64) {
    flush::start_all(w, ino);
}

/// The node is being dropped.
pub fn drop_node(w: &mut World, ino: u64) {
    recall::drop_node(w, ino);
}

/// The file is gone, its server says: no name is left and nobody has it open. Dirty data needs no writing.
pub fn discard(w: &mut World, ino: u64) {
    resize::discard(w, ino);
}

/// The count of write-back errors that an open is not to be told of; it keeps it. One that nobody was told of so far is told to
/// those who open the file afterwards, too, as Linux does it.
pub fn error_mark(w: &World, ino: u64) -> u32 {
    state::file(w, ino).map_or(0, |file| file.errors.wrapping_sub(u32::from(file.error_untold)))
}

/// Bytes that a target had answered are lost.
pub fn given_up(w: &mut World, bytes: u64) {
    w.data.troubles.given_up += bytes;
}

/// Tells of an error of write-back that happened after `mark`; gives the new mark, too.
pub fn error_since(w: &mut World, ino: u64, mark: u32) -> (u32, Result<(), Errno>) {
    let Some(file) = state::file_mut(w, ino) else { return (mark, Ok(())) };
    if file.errors == mark {
        return (mark, Ok(()));
    }
    file.error_untold = false;
    (file.errors, Err(file.last_error))
}

/// Somebody was told that something of a file is lost.
pub fn error_told(w: &mut World, ino: u64) {
    if let Some(file) = state::file_mut(w, ino) {
        file.error_untold = false;
    }
}

/// An operation is over, however it ended: what it had begun here and not ended is undone.
pub fn op_ended(w: &mut World, op: OpId) {
    if !w.data.marked_ops.is_empty() {
        recall::op_ended(w, op);
    }
}

/// Dirty data that waits for its time; memory over its bound.
pub fn tick(w: &mut World) {
    flush::tick(w);
}

/// When [`tick`] wants to be called.
pub fn deadline(w: &World) -> Option<Instant> {
    w.data.dirty_files.first().map(|(since, _)| *since + w.options.write_back_after)
}
