//! Data of files: pages, their locks, write-back, read-ahead, size and times as the data has them.
//!
//! The functions below are all that operations and the machine call; `Node::data` and `World::data` belong to this
//! module alone. Functions with a [`Cx`] are parts of attempts: they may answer [`Stop::Wait`](crate::coherence::cx::Stop) and are
//! called again. Functions with a [`World`] never wait.
//!
//! - `state`: finding and changing what is cached of a file ([`crate::cache::data`]), and what locks and replies bring to it.
//! - `access`: locks and sizes before data is touched. `layout`: whether the objects that are known are still the file's.
//! - `flush`: write-back, fsync. `recall`: locks that go back, glimpses, stat. `leaving`: small files that grow.
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

pub(crate) mod access;
pub(crate) mod flush;
pub(crate) mod layout;
pub(crate) mod leaving;
pub(crate) mod recall;
pub(crate) mod state;

use dlm::client::HeldLock;
use proto::Errno;
use proto::msg::{Attr, Layout, Lvb, Resource};
use stdx::Instant;

use crate::base::Dest;
use crate::base::OpId;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::world::World;

/// Background work of the data cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Task {
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

/// Owner and group of a file, for the space that its data takes; 0xffff_ffff if they are not known.
pub(crate) fn owner(w: &World, ino: u64) -> (u32, u32) {
    let attr = w.nodes.get(ino).and_then(|node| node.attr.as_ref());
    attr.map_or((u32::MAX, u32::MAX), |attr| (attr.uid, attr.gid))
}

/// The job on whose behalf the data of a file is read or written: that of the program that asked for it, or of the last one that did.
pub(crate) fn job(cx: &Cx<'_>, ino: u64) -> String {
    match &cx.cred().job {
        none if none.is_empty() => state::file(cx.w, ino).map_or_else(String::new, |file| file.job.to_string()),
        job => job.clone(),
    }
}

/// Size and times as the data has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DataStat {
    /// Size, blocks, times. Times count only if the ctime is newer than the metadata's, or the mtime is.
    pub lvb: Lvb,
    /// Locks cover it to the end of the file: the kernel may keep it.
    pub cacheable: bool,
}

/// Where the last write ends that the kernel has stored in its pages and waits for; 0 if there is none. If others have cut the file, and the
/// kernel were told its size meanwhile, it would put zeros in place of what is stored behind that, and show them when the write is done. It
/// takes no size while a write is under way that makes the file longer than it knows (those do not count), nor from an answer that comes
/// after the write's to a question from before.
pub(crate) fn end_of_writes(w: &World, ino: u64) -> u64 {
    if w.data.kernel_calls.is_empty() { 0 } else { recall::end_of_writes(w, ino) }
}

/// The same, until there is none behind `size`.
pub(crate) fn writes_end(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    if end_of_writes(cx.w, ino) > size {
        stdx::mark!("size_asked_beside_a_write");
        return Err(cx.wait(state::node_key(ino)));
    }
    Ok(())
}

/// An operation that may cut a file has come so far. If it waits for the metadata target, others can have the locks that it took for the
/// cut, should that take long.
pub(crate) fn cut_goes_on<T>(cx: &mut Cx<'_>, ino: u64, result: &Run<T>) {
    if matches!(result, Err(Stop::Wait)) {
        access::cut_waits(cx, ino);
    }
}

/// Writes everything of the file back and makes it durable where it lies (a resident file: the caller sends `MdsSync`).
pub(crate) fn fsync(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    flush::fsync(cx, ino)
}

/// Writes everything of all files back and makes it durable on the object targets.
pub(crate) fn sync_all(cx: &mut Cx<'_>) -> Run<()> {
    flush::sync_all(cx)
}

/// The next [`sync_all`] of this operation begins anew.
pub(crate) fn sync_anew(cx: &mut Cx<'_>) {
    flush::sync_anew(cx);
}

/// At the end of the mount, after [`sync_all`]: what cannot be written is tried again for a while (the whole anew) and then
/// given up.
pub(crate) fn end(cx: &mut Cx<'_>) -> Run<()> {
    flush::end(cx)
}

/// Why data of a file cannot be written back at present, if it cannot.
pub(crate) fn unwritable(w: &World, ino: u64) -> Option<Errno> {
    state::file(w, ino)?.unwritable()
}

/// What went wrong with write-back: requests that failed and whose bytes were kept, bytes that were given up, and the files
/// that cannot be written at present with the reasons, at most `limit` of them.
pub(crate) fn troubles(w: &World, limit: usize) -> (u64, u64, Vec<(String, Errno)>) {
    let dirty = w.data.dirty_files.iter().map(|(_, ino)| *ino);
    let stuck = dirty.filter_map(|ino| Some((w.nodes.path(ino), state::file(w, ino)?.unwritable()?)));
    (w.data.troubles.failures, w.data.troubles.given_up, stuck.take(limit).collect())
}

/// Somebody wants this lock (it is no longer found for new work, and nobody has it pinned): writes back what is dirty
/// under it, makes the kernel drop pages, drops ours. The caller cancels it then.
pub(crate) fn flush_for_lock(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    recall::flush_for_lock(cx, dest, lock)
}

/// Size and times: from the cache if locks cover them, by a glimpse otherwise. Regular files only; the attributes of
/// the node are there (for a resident file without a lock the caller has just fetched them).
pub(crate) fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<DataStat> {
    recall::stat(cx, ino)
}

/// The same without a request; `None` if locks do not cover it.
pub(crate) fn stat_cached(w: &World, ino: u64) -> Option<DataStat> {
    recall::stat_cached(w, ino)
}

/// A lock callback of another client's stat: what the object looks like here; `None`: the target's own values stand.
pub(crate) fn glimpse(w: &World, resource: &Resource) -> Option<Lvb> {
    recall::glimpse(w, resource)
}

/// A data lock (extent, or inode lock with DOM) was granted; with what the target knows of the object.
pub(crate) fn lock_granted(w: &mut World, dest: Dest, lock: &HeldLock, lvb: Option<&Lvb>) {
    let _ = dest;
    state::lock_granted(w, lock, lvb);
}

/// A data lock has another mode, or a number of the server's.
pub(crate) fn lock_changed(w: &mut World, lock: &HeldLock) {
    state::lock_changed(w, lock);
}

/// The target has made a file whose data is here already, and tells where it goes when it grows.
pub(crate) fn layout_settled(w: &mut World, ino: u64, layout: &Layout) {
    state::layout_settled(w, ino, layout);
}

/// Something that a program did to the file was lost, which the next fsync or close tells, or the end of the unmount.
pub(crate) fn failed(w: &mut World, ino: u64, errno: Errno) {
    state::failed(w, ino, errno);
}

/// What attributes say of the data, if it lies on the metadata target: for a DOM lock that came with them.
pub(crate) fn resident_lvb(attr: &Attr) -> Option<Lvb> {
    crate::cache::node::is_resident(attr).then(|| crate::cache::data::state::home_lvb(attr))
}

/// A data lock is gone without a callback (eviction, not granted again): what it covered is worthless; dirty data is
/// lost, which the next fsync or close tells. `ESTALE`: the target does not have the object.
pub(crate) fn lock_lost(w: &mut World, lock: &HeldLock, errno: Errno) {
    recall::lock_lost(w, lock, errno);
}

/// Attributes of a regular file came in from the metadata target. `w.nodes` has them already.
pub(crate) fn attr_arrived(w: &mut World, ino: u64, attr: &Attr) {
    state::attr_arrived(w, ino, attr);
}

/// Nothing dirty and nothing in flight: the node may be dropped with what it caches.
pub(crate) fn is_clean(w: &World, ino: u64) -> bool {
    let Some(file) = state::file(w, ino) else { return true };
    let idle = |o: &crate::cache::data::state::Object| {
        let counts = o.pages.counts();
        counts.dirty == 0 && counts.writing == 0 && o.pages.oldest_in_flight().is_none() && o.fetches.is_empty()
    };
    let moves = file.leave_asked || w.data.migrating.contains_key(&ino);
    !moves && file.recalls == 0 && idle(&file.home) && file.objects.iter().all(idle)
}

/// Files with bytes that their targets do not have, and how many.
pub(crate) fn files_unwritten(w: &World) -> Vec<(u64, u64)> {
    let unwritten = |ino| {
        let file = state::file(w, ino)?;
        let bytes = file
            .keys()
            .into_iter()
            .filter_map(|key| file.object(key))
            .map(crate::cache::data::state::Object::unwritten)
            .sum();
        (bytes > 0).then_some((ino, bytes))
    };
    w.nodes.iter().filter_map(|node| unwritten(node.ino())).collect()
}

/// Bytes under the locks of a resource that the target does not have yet.
pub(crate) fn unwritten(w: &World, resource: &Resource) -> u64 {
    recall::unwritten(w, resource)
}

/// Whether a target has all data and all changes of data, and has made them durable.
pub(crate) fn is_idle(w: &World, dest: Dest) -> bool {
    let idle = |lane: &crate::cache::data::lanes::Lane| {
        lane.queue.is_empty() && lane.in_flight == 0 && lane.dirty == 0 && lane.unstable.is_empty() && !lane.committing
    };
    w.data.lane_ref(dest).is_none_or(idle)
}

/// Whether the kernel may hold pages of a file, dirty ones too if a program has mapped it.
pub(crate) fn is_in_kernel(w: &World, ino: u64) -> bool {
    state::file(w, ino).is_some_and(|file| file.kernel_pages)
}

/// Whether the kernel may go on with the pages that it has of a file which is being opened through them. If not, it drops them with the
/// answer.
pub(crate) fn pages_are_good(w: &mut World, ino: u64) -> bool {
    state::file_mut(w, ino).is_none_or(|file| !core::mem::take(&mut file.old_pages))
}

/// Dirty data is written without waiting for its time.
pub(crate) fn write_now(w: &mut World, ino: u64) {
    flush::start_all(w, ino);
}

/// The node is being dropped.
pub(crate) fn drop_node(w: &mut World, ino: u64) {
    recall::drop_node(w, ino);
}

/// The file is gone, its server says: no name is left and nobody has it open. Dirty data needs no writing.
pub(crate) fn discard(w: &mut World, ino: u64) {
    flush::discard(w, ino);
}

/// The count of write-back errors that an open is not to be told of; it keeps it. One that nobody was told of so far is told to
/// those who open the file afterwards, too, as Linux does it.
pub(crate) fn error_mark(w: &World, ino: u64) -> u32 {
    state::file(w, ino).map_or(0, |file| file.errors.wrapping_sub(u32::from(file.error_untold)))
}

/// Bytes that a target had answered are lost.
pub(crate) fn given_up(w: &mut World, bytes: u64) {
    w.data.troubles.given_up += bytes;
}

/// Tells of an error of write-back that happened after `mark`; gives the new mark, too.
pub(crate) fn error_since(w: &mut World, ino: u64, mark: u32) -> (u32, Result<(), Errno>) {
    let Some(file) = state::file_mut(w, ino) else { return (mark, Ok(())) };
    if file.errors == mark {
        return (mark, Ok(()));
    }
    file.error_untold = false;
    (file.errors, Err(file.last_error))
}

/// Somebody was told that something of a file is lost.
pub(crate) fn error_told(w: &mut World, ino: u64) {
    if let Some(file) = state::file_mut(w, ino) {
        file.error_untold = false;
    }
}

/// An operation is over, however it ended: what it had begun here and not ended is undone.
pub(crate) fn op_ended(w: &mut World, op: OpId) {
    if !w.data.marked_ops.is_empty() {
        recall::op_ended(w, op);
    }
}

/// Dirty data that waits for its time; memory over its bound.
pub(crate) fn tick(w: &mut World) {
    flush::tick(w);
}

/// When [`tick`] wants to be called.
pub(crate) fn deadline(w: &World) -> Option<Instant> {
    w.data.dirty_files.first().map(|(since, _)| *since + w.options.write_back_after)
}
