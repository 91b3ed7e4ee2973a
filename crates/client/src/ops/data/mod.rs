//! Calls on the data of files: reading, writing, changing the size, moving it to other objects.
//!
//! The functions below are all that other operations call. Those with a [`Cx`] are parts of attempts: they may return
//! [`Stop::Wait`](crate::coherence::cx::Stop) and are then called again.

mod leave;
mod migrate;
mod read;
mod resize;
mod write;

use bytes::Bytes;
use proto::msg::Layout;

use crate::api::{FileHandle, Whence};
use crate::base::Step;
use crate::coherence::cx::{Cx, Run};
use crate::coherence::data::{Task, flush, recall, state};
use crate::coherence::world::World;

pub(crate) use crate::coherence::data::*;

/// Whether calls of an open file go through the kernel's page cache.
fn through_pages(w: &World, fh: FileHandle) -> bool {
    use crate::cache::file::flags as o;
    w.files.get(fh).is_none_or(|file| file.flags & (o::DIRECT | o::APPEND) == 0)
}

/// Records the job of a program that uses the data of a file.
fn note_job(cx: &mut Cx<'_>, ino: u64) {
    let job = &cx.op.cred.job;
    if let Some(file) = state::file_mut(cx.w, ino).filter(|file| !job.is_empty() && *file.job != **job) {
        file.job = job.as_str().into();
    }
}

/// The position of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the current end of the file.
    Append,
}

/// Options of a read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct IoFlags {
    /// `O_DIRECT`: bypass the cache.
    pub direct: bool,
    /// `O_SYNC`, `O_DSYNC`: make the data durable before the answer.
    pub sync: bool,
    /// The kernel writes back pages that a program changed through a mapping.
    pub write_back: bool,
}

/// Reads at most `length` bytes.
pub(crate) fn read(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, offset: u64, length: u32, flags: IoFlags) -> Run<Bytes> {
    note_job(cx, ino);
    let result = read::read(cx, fh, ino, offset, length, flags);
    if through_pages(cx.w, fh) {
        let range = offset..offset.saturating_add(u64::from(length));
        recall::note_kernel_call(cx, ino, range, false, &result);
    }
    result
}

/// Writes. Returns the number of bytes written.
pub(crate) fn write(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, at: WriteAt, data: &Bytes, flags: IoFlags) -> Run<u32> {
    note_job(cx, ino);
    let result = match (cx.memo(Step::PastPages), cx.memo(Step::PastPagesEnd)) {
        (Some(start), Some(end)) => Ok(start..end),
        _ => write::write(cx, ino, at, data, flags),
    };
    if let WriteAt::Offset(offset) = at
        && (flags.write_back || through_pages(cx.w, fh))
    {
        let range = offset..offset.saturating_add(data.len() as u64);
        // Pages that are being written back hold the future contents of the file.
        recall::note_kernel_call(cx, ino, range, !flags.write_back, &result);
    }
    let written = result?;
    if flags.direct || at == WriteAt::Append {
        recall::written_past_pages(cx, ino, &written)?;
    }
    Ok((written.end - written.start) as u32)
}

/// Before the metadata target is asked to change the size: takes (pins) the locks that cover the truncated part, and
/// writes back or drops what must not be written after the change.
pub(crate) fn before_truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    resize::before_truncate(cx, ino, size)
}

/// After the metadata target has agreed (and has truncated its copy of a resident file): truncates pages and objects.
pub(crate) fn truncate(cx: &mut Cx<'_>, ino: u64, size: u64) -> Run<()> {
    resize::truncate(cx, ino, size)
}

/// `fallocate(2)`.
pub(crate) fn fallocate(cx: &mut Cx<'_>, ino: u64, mode: u32, offset: u64, length: u64) -> Run<()> {
    resize::fallocate(cx, ino, mode, offset, length)
}

/// `SEEK_DATA`, `SEEK_HOLE`.
pub(crate) fn seek(cx: &mut Cx<'_>, ino: u64, offset: u64, whence: Whence) -> Run<u64> {
    resize::seek(cx, ino, offset, whence)
}

/// Moves the data of a file to other objects; see [`proto::msg::SetlayoutKind::Copy`] about `wish`.
pub(crate) fn migrate(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<()> {
    migrate::migrate(cx, ino, wish)
}

/// One attempt of background work.
pub(crate) fn run(cx: &mut Cx<'_>, task: &Task) -> Run<()> {
    match *task {
        Task::Write { id } => flush::write(cx, id),
        Task::ReadAhead { ino, start, end } => read::ahead(cx, ino, &(start..end)),
        Task::Leave { ino } => leave::run(cx, ino),
        Task::Commit { dest } => flush::commit(cx, dest),
    }
}
