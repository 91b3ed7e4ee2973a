//! The data cache: pages of files, their locks, write-back, read-ahead, and the size and times that follow from the
//! data.
//!
//! The functions below are all that operations and the machine call; `Node::data` and `World::data` belong to this
//! module alone. Functions with a [`Cx`] are parts of attempts: they may return
//! [`Stop::Wait`](crate::coherence::cx::Stop) and are then called again. Functions with a [`World`] never wait.
//!
//! - `state`: finding and changing the cached data of a file ([`crate::cache::data`]), and what locks and replies add
//!   to it.
//! - `access`: locks and sizes before data is touched. `layout`: whether the cached objects still belong to the file.
//! - `flush`: write-back, fsync. `recall`: locks that go back, glimpses, stat. `leaving`: small files that grow.
//!
//! A file is one object on its metadata target while it is *resident*, and `stripe count` objects on object targets
//! afterwards. Both are treated alike: the DOM lock of a resident file covers its only object from 0 to the end, as an
//! extent lock covers a stripe.
//!
//! # Invariants
//! - Cached bytes lie under a lock that is held, dirty ones under one that allows writing. They are written, and the
//!   kernel's pages dropped, before the lock goes back.
//! - No byte is in two requests at once, so the order of requests does not matter.
//! - Dirty bytes stay within `max_dirty` and within the space that the targets granted; what exceeds either is written
//!   through.
//! - Bytes whose write fails stay dirty and are retried. They are given up, with a line in the log, only when their
//!   lock goes back or is lost, and at the end of the mount.
//! - While something of a file cannot be written, every write, fsync and close of it fails with the reason. What was
//!   given up is reported once to each open file description that was open then (`error_mark`, `error_since`).
//!
//! # Example: one writer, and a reader on another client
//! ```text
//! client A writes 4 KiB   PW lock [0, end) of stripe 0 (granted once); page dirty, size 4096; answered
//! client B calls stat     glimpse: the target asks A, A answers size 4096; the lock stays
//! client B reads          callback: A writes the dirty page, drops the kernel's pages and its own, cancels the lock
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
        /// The request.
        id: u64,
    },
    /// Prefetch data.
    ReadAhead {
        /// The file.
        ino: u64,
        /// First byte.
        start: u64,
        /// End of the range, exclusive.
        end: u64,
    },
    /// Move a resident file's data to its objects.
    Leave {
        /// The file.
        ino: u64,
    },
    /// Ask a target to make answered writes durable.
    Commit {
        /// The target.
        dest: Dest,
    },
}

/// Owner and group of a file, to account the space of its data; 0xffff_ffff if they are unknown.
pub(crate) fn owner(w: &World, ino: u64) -> (u32, u32) {
    let attr = w.nodes.get(ino).and_then(|node| node.attr.as_ref());
    attr.map_or((u32::MAX, u32::MAX), |attr| (attr.uid, attr.gid))
}

/// The job for which the data of a file is read or written: that of the calling program, or of the last one that used
/// the data.
pub(crate) fn job(cx: &Cx<'_>, ino: u64) -> String {
    match &cx.cred().job {
        none if none.is_empty() => state::file(cx.w, ino).map_or_else(String::new, |file| file.job.to_string()),
        job => job.clone(),
    }
}

/// Size and times that follow from the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DataStat {
    /// Size, blocks, times. Times count only if the ctime is newer than the metadata's, or the mtime is.
    pub lvb: Lvb,
    /// Locks cover the data to the end of the file: the kernel may cache the size and times.
    pub cacheable: bool,
}

/// The end of the farthest write that the kernel has stored in its pages and that is not answered; 0 if there is none.
/// If other clients have truncated the file and the kernel were told the new size meanwhile, it would overwrite the
/// stored bytes beyond it with zeros, and show those once the write is done. The kernel accepts no size while a write
/// extends the file beyond the size that it knows (such writes do not count), nor from an answer that arrives after the
/// write's answer to a question asked before it.
pub(crate) fn end_of_writes(w: &World, ino: u64) -> u64 {
    if w.data.kernel_calls.is_empty() { 0 } else { recall::end_of_writes(w, ino) }
}

/// Waits until no such write ends beyond `size`.
pub(crate) fn writes_end(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    if end_of_writes(cx.w, ino) > size {
        stdx::mark!("size_asked_beside_a_write");
        return Err(cx.wait(state::node_key(ino)));
    }
    Ok(())
}

/// An operation that may truncate a file ends an attempt. While it waits for the metadata target, its locks for the
/// truncation are released if that takes long.
pub(crate) fn truncate_attempted<T>(cx: &mut Cx<'_>, ino: u64, result: &Run<T>) {
    if matches!(result, Err(Stop::Wait)) {
        access::cut_waits(cx, ino);
    }
}

/// Writes back all dirty data of the file and makes it durable on the object targets (for a resident file the caller
/// sends `MdsSync`).
pub(crate) fn fsync(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    flush::fsync(cx, ino)
}

/// Writes back all dirty data of all files and makes it durable on the object targets.
pub(crate) fn sync_all(cx: &mut Cx<'_>) -> Run<()> {
    flush::sync_all(cx)
}

/// The next [`sync_all`] of this operation starts again.
pub(crate) fn restart_sync(cx: &mut Cx<'_>) {
    flush::restart_sync(cx);
}

/// At the end of the mount, after [`sync_all`]: retries for a while what cannot be written (as a whole), then gives it
/// up.
pub(crate) fn end(cx: &mut Cx<'_>) -> Run<()> {
    flush::end(cx)
}

/// Why data of a file cannot be written back at present, if so.
pub(crate) fn unwritable(w: &World, ino: u64) -> Option<Errno> {
    state::file(w, ino)?.unwritable()
}

/// Problems of write-back: failed requests whose bytes were kept, bytes that were given up, and up to `limit` files
/// that cannot be written at present, with the reasons.
pub(crate) fn troubles(w: &World, limit: usize) -> (u64, u64, Vec<(String, Errno)>) {
    let dirty = w.data.dirty_files.iter().map(|(_, ino)| *ino);
    let stuck = dirty.filter_map(|ino| Some((w.nodes.path(ino), state::file(w, ino)?.unwritable()?)));
    (w.data.troubles.failures, w.data.troubles.given_up, stuck.take(limit).collect())
}

/// Before a lock goes back (it is not found for new work any more, and nobody has it pinned): writes back what is dirty
/// under it, makes the kernel drop its pages, drops ours. The caller cancels the lock then.
pub(crate) fn flush_for_lock(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    recall::flush_for_lock(cx, dest, lock)
}

/// Size and times: from the cache if locks cover them, else by a glimpse. Only for regular files whose node has
/// attributes (for a resident file without a lock the caller has just fetched them).
pub(crate) fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<DataStat> {
    recall::stat(cx, ino)
}

/// The same without a request; `None` if locks do not cover it.
pub(crate) fn stat_cached(w: &World, ino: u64) -> Option<DataStat> {
    recall::stat_cached(w, ino)
}

/// The state of an object for another client's stat; `None`: the target's own values are current.
pub(crate) fn glimpse(w: &World, resource: &Resource) -> Option<Lvb> {
    recall::glimpse(w, resource)
}

/// A data lock (extent, or inode lock with DOM) was granted; `lvb` is what the target knows of the object.
pub(crate) fn lock_granted(w: &mut World, lock: &HeldLock, lvb: Option<&Lvb>) {
    state::lock_granted(w, lock, lvb);
}

/// A data lock has changed its mode, or got the server's handle.
pub(crate) fn lock_changed(w: &mut World, lock: &HeldLock) {
    state::lock_changed(w, lock);
}

/// The target has created a file whose data is cached already, and says which objects the data moves to when it grows.
pub(crate) fn layout_settled(w: &mut World, ino: u64, layout: &Layout) {
    state::layout_settled(w, ino, layout);
}

/// Something that a program did to the file was lost: the next fsync or close reports it, or the end of the unmount.
pub(crate) fn failed(w: &mut World, ino: u64, errno: Errno) {
    state::failed(w, ino, errno);
}

/// The data's size and times in the attributes, if it lies on the metadata target: for a DOM lock that came with them.
pub(crate) fn resident_lvb(attr: &Attr) -> Option<Lvb> {
    crate::cache::node::is_resident(attr).then(|| crate::cache::data::state::home_lvb(attr))
}

/// A data lock was lost without a callback (eviction, not granted again): what it covered is invalid; dirty data is
/// lost, which the next fsync or close reports. `ESTALE`: the target does not have the object.
pub(crate) fn lock_lost(w: &mut World, lock: &HeldLock, errno: Errno) {
    recall::lock_lost(w, lock, errno);
}

/// Attributes of a regular file arrived from the metadata target. They are in `w.nodes` already.
pub(crate) fn attr_arrived(w: &mut World, ino: u64, attr: &Attr) {
    state::attr_arrived(w, ino, attr);
}

/// Whether nothing is dirty or in flight, so that the node can be dropped with its data.
pub(crate) fn is_clean(w: &World, ino: u64) -> bool {
    let Some(file) = state::file(w, ino) else { return true };
    let idle = |o: &crate::cache::data::state::Object| {
        let counts = o.pages.counts();
        counts.dirty == 0 && counts.writing == 0 && o.pages.oldest_in_flight().is_none() && o.fetches.is_empty()
    };
    let moves = file.leave_requested || w.data.migrating.contains_key(&ino);
    !moves && file.recalls == 0 && idle(&file.home) && file.objects.iter().all(idle)
}

/// The files with bytes that their targets do not have, and how many bytes.
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

/// Bytes under the locks of a resource that the target does not have.
pub(crate) fn unwritten(w: &World, resource: &Resource) -> u64 {
    recall::unwritten(w, resource)
}

/// Whether a target has all data and all changes of data, durably.
pub(crate) fn is_idle(w: &World, dest: Dest) -> bool {
    let idle = |lane: &crate::cache::data::lanes::Lane| {
        lane.queue.is_empty() && lane.in_flight == 0 && lane.dirty == 0 && lane.unstable.is_empty() && !lane.committing
    };
    w.data.lane_ref(dest).is_none_or(idle)
}

/// Whether the kernel may hold pages of a file, including dirty ones if a program has mapped it.
pub(crate) fn is_in_kernel(w: &World, ino: u64) -> bool {
    state::file(w, ino).is_some_and(|file| file.kernel_pages)
}

/// Whether the kernel may keep the pages that it has of a file that is being opened through them. If not, it drops them
/// with the answer.
pub(crate) fn pages_are_good(w: &mut World, ino: u64) -> bool {
    state::file_mut(w, ino).is_none_or(|file| !core::mem::take(&mut file.old_pages))
}

/// Writes dirty data now instead of after its delay.
pub(crate) fn write_now(w: &mut World, ino: u64) {
    flush::start_all(w, ino);
}

/// The node is being dropped.
pub(crate) fn drop_node(w: &mut World, ino: u64) {
    recall::drop_node(w, ino);
}

/// The server says that the file is destroyed: no name is left and nobody has it open. Dirty data need not be written.
pub(crate) fn discard(w: &mut World, ino: u64) {
    flush::discard(w, ino);
}

/// The count of write-back errors that a new open file description starts with; only later ones are reported to it. As
/// in Linux, an error that was not reported to anybody is also reported to the descriptions that are opened afterwards.
pub(crate) fn error_mark(w: &World, ino: u64) -> u32 {
    state::file(w, ino).map_or(0, |file| file.errors.wrapping_sub(u32::from(file.error_unreported)))
}

/// Bytes that a target had acknowledged are lost.
pub(crate) fn given_up(w: &mut World, bytes: u64) {
    w.data.troubles.given_up += bytes;
}

/// The write-back error that happened after `mark`, if any, and the new mark.
pub(crate) fn error_since(w: &mut World, ino: u64, mark: u32) -> (u32, Result<(), Errno>) {
    let Some(file) = state::file_mut(w, ino) else { return (mark, Ok(())) };
    if file.errors == mark {
        return (mark, Ok(()));
    }
    file.error_unreported = false;
    (file.errors, Err(file.last_error))
}

/// A program got the error of a loss in another way.
pub(crate) fn error_reported(w: &mut World, ino: u64) {
    if let Some(file) = state::file_mut(w, ino) {
        file.error_unreported = false;
    }
}

/// An operation has ended, in whatever way: undoes what it had started in the data cache and not finished.
pub(crate) fn op_ended(w: &mut World, op: OpId) {
    if !w.data.marked_ops.is_empty() {
        recall::op_ended(w, op);
    }
}

/// Writes dirty data that is due, and enforces the memory bounds.
pub(crate) fn tick(w: &mut World) {
    flush::tick(w);
}

/// When [`tick`] is due next.
pub(crate) fn deadline(w: &World) -> Option<Instant> {
    w.data.dirty_files.first().map(|(since, _)| *since + w.options.write_back_after)
}
