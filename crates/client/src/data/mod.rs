//! Data of files: pages, their locks, write-back, read-ahead, size and times as the data has them.
//!
//! The functions below are all that operations and the machine call; `Node::data` and `World::data` belong to this
//! module alone. Functions with a [`Cx`] are parts of attempts: they may answer [`Stop::Wait`](crate::cx::Stop) and are
//! called again. Their steps are [`crate::DATA_STEP`] and above. Functions with a [`World`] never wait.

use bytes::Bytes;
use dlm::client::HeldLock;
use proto::Errno;
use proto::msg::{Attr, Lvb, Resource};
use stdx::Instant;

use crate::api::{FileHandle, Whence};
use crate::cx::{Cx, Run};
use crate::imports::Dest;
use crate::world::World;

/// What the data cache knows over all files; `World::data`.
#[derive(Debug, Default)]
pub struct DataState {}

/// What it knows of a file; `Node::data`.
#[derive(Debug, Default)]
pub struct NodeData {}

/// Background work of the data cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {}

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
}

/// Reads at most `length` bytes.
pub fn read(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, offset: u64, length: u32, flags: IoFlags) -> Run<Bytes> {
    let _ = (cx, fh, ino, offset, length, flags);
    Err(Errno::EOPNOTSUPP.into())
}

/// Writes; the bytes written.
pub fn write(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, at: WriteAt, data: &Bytes, flags: IoFlags) -> Run<u32> {
    let _ = (cx, fh, ino, at, data, flags);
    Err(Errno::EOPNOTSUPP.into())
}

/// Before the metadata target is asked to change the size: takes (pins) the locks that cover what is cut, and writes
/// back or discards what must not come after it.
pub fn before_truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    let _ = (cx, ino, size);
    Ok(())
}

/// After the metadata target has agreed (and, of a resident file, has cut its copy): cuts pages and objects.
pub fn truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    let _ = (cx, ino, size);
    Ok(())
}

/// Writes everything of the file back and makes it durable where it lies (a resident file: the caller sends `MdsSync`).
pub fn fsync(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let _ = (cx, ino);
    Ok(())
}

/// Writes everything of all files back and makes it durable on the object targets.
pub fn sync_all(cx: &mut Cx<'_>) -> Run<()> {
    let _ = cx;
    Ok(())
}

/// Somebody wants this lock (it is no longer found for new work, and nobody has it pinned): writes back what is dirty
/// under it, makes the kernel drop pages, drops ours. The caller cancels it then.
pub fn flush_for_lock(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    let _ = (cx, dest, lock);
    Ok(())
}

/// Size and times: from the cache if locks cover them, by a glimpse otherwise. Regular files only; the attributes of
/// the node are there (for a resident file without a lock the caller has just fetched them).
pub fn stat(cx: &mut Cx<'_>, ino: u64) -> Run<DataStat> {
    let _ = (cx, ino);
    Err(Errno::EOPNOTSUPP.into())
}

/// The same without a request; `None` if locks do not cover it.
pub fn stat_cached(w: &World, ino: u64) -> Option<DataStat> {
    let _ = (w, ino);
    None
}

/// `fallocate(2)`.
pub fn fallocate(cx: &mut Cx<'_>, ino: u64, mode: u32, offset: u64, length: u64) -> Run<()> {
    let _ = (cx, ino, mode, offset, length);
    Err(Errno::EOPNOTSUPP.into())
}

/// `SEEK_DATA`, `SEEK_HOLE`.
pub fn seek(cx: &mut Cx<'_>, ino: u64, offset: u64, whence: Whence) -> Run<u64> {
    let _ = (cx, ino, offset, whence);
    Err(Errno::EOPNOTSUPP.into())
}

/// Moves a resident file's data to its objects.
pub fn leave(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    let _ = (cx, ino);
    Ok(())
}

/// One attempt of background work.
pub fn run(cx: &mut Cx<'_>, task: &Task) -> Run<()> {
    let _ = cx;
    match *task {}
}

/// A lock callback of another client's stat: what the object looks like here; `None`: the target's own values stand.
pub fn glimpse(w: &World, resource: &Resource) -> Option<Lvb> {
    let _ = (w, resource);
    None
}

/// A data lock (extent, or inode lock with DOM) was granted; with what the target knows of the object.
pub fn lock_granted(w: &mut World, dest: Dest, lock: &HeldLock, lvb: Option<&Lvb>) {
    let _ = (w, dest, lock, lvb);
}

/// A data lock is gone without a callback (eviction, not granted again): what it covered is worthless; dirty data is
/// lost, which the next fsync or close tells.
pub fn lock_lost(w: &mut World, dest: Dest, lock: &HeldLock) {
    let _ = (w, dest, lock);
}

/// Attributes of a regular file came in from the metadata target. `w.nodes` has them already.
pub fn attr_arrived(w: &mut World, ino: u64, attr: &Attr) {
    let _ = (w, ino, attr);
}

/// Nothing dirty and nothing in flight: the node may be dropped with what it caches.
pub fn is_clean(w: &World, ino: u64) -> bool {
    let _ = (w, ino);
    true
}

/// The node is being dropped.
pub fn drop_node(w: &mut World, ino: u64) {
    let _ = (w, ino);
}

/// The file has no name and its last open here is gone: dirty data needs no writing.
pub fn discard(w: &mut World, ino: u64) {
    let _ = (w, ino);
}

/// The count of write-back errors so far; an open keeps it.
pub fn error_mark(w: &World, ino: u64) -> u32 {
    let _ = (w, ino);
    0
}

/// An error of write-back that happened after `mark`, and the new mark.
pub fn error_since(w: &World, ino: u64, mark: u32) -> (u32, Result<(), Errno>) {
    let _ = (w, ino);
    (mark, Ok(()))
}

/// Dirty data that waits for its time; memory over its bound.
pub fn tick(w: &mut World) {
    let _ = w;
}

/// When [`tick`] wants to be called.
pub fn deadline(w: &World) -> Option<Instant> {
    let _ = w;
    None
}
