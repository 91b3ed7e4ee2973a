//! Open files and their pages.

use core::ops::Range;

use client::api::{Answer, Call, FileHandle, SetStat, Whence};
use proto::msg::Cred;
use proto::{Bytes, Errno};

use super::names::{O_ACCMODE, O_TRUNC};
use super::{Inode, Kernel, SysResult, unexpected};
use crate::sched::{Fail, PartialWrite};

/// Size of a page in bytes.
pub(super) const PAGE: u64 = 4096;
/// `O_DIRECT`.
pub(super) const O_DIRECT: u32 = 0o40000;
const O_APPEND: u32 = 0o2000;

/// An open file.
#[derive(Clone, Debug)]
pub struct Fd {
    /// The client on which it is open.
    pub client: usize,
    /// Its inode.
    pub ino: u64,
    /// The client's file handle.
    pub fh: FileHandle,
    /// `O_*`.
    pub flags: u32,
    /// Whether reads and writes bypass the page cache.
    pub direct: bool,
    /// Whether FLUSH is not needed.
    pub no_flush: bool,
}

/// How bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    /// `pwrite`.
    Plain,
    /// Through `mmap`, then `msync`.
    Mapped,
}

impl Inode {
    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.pages.retain(|page, _| page * PAGE < size);
            self.dirty.retain(|page| page * PAGE < size);
            if let Some(tail) = self.pages.get_mut(&(size / PAGE)) {
                tail[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// The first page of a range that is cached, dirty, locked or in write-back.
    fn first_of(&self, pages: &Range<u64>) -> Option<u64> {
        let there = self.pages.range(pages.clone()).next().map(|(page, _)| *page);
        let others =
            [&self.dirty, &self.in_write_back, &self.locked].map(|all| all.range(pages.clone()).next().copied());
        there.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// How often each page of a range was read.
    fn fills_of(&self, pages: &Range<u64>) -> Vec<u64> {
        pages.clone().map(|page| self.fills.get(&page).copied().unwrap_or(0)).collect()
    }

    /// Called when a write of these pages ends. A page that was dropped during the write and read again before the write was
    /// executed lacks its bytes. Linux keeps such a page, and no file system learns of it; where many write concurrently this
    /// would hide real defects, so the page is dropped.
    fn doubt_fills(&mut self, pages: &Range<u64>, before: &[u64]) {
        for (page, fills) in pages.clone().zip(before) {
            if self.locked.contains(&page) {
                self.stale_fills.insert(page);
            } else if self.fills.get(&page).copied().unwrap_or(0) != *fills && !self.dirty.contains(&page) {
                self.pages.remove(&page);
            }
        }
    }

    /// Reports a failed write-back to an open file, once for each failure that it has not seen.
    fn report_failure(&mut self, fh: FileHandle) -> SysResult<()> {
        self.reported_to_any = self.failures;
        let known = self.reported.insert(fh, self.failures).unwrap_or(self.failures);
        self.failure.filter(|_| known < self.failures).map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Whether pages are dirty or in write-back.
    pub(super) fn is_changed(&self) -> bool {
        !self.dirty.is_empty() || !self.in_write_back.is_empty()
    }

    /// Takes a dirty page of this range that is not in write-back, with a file handle to write it through. It is in write-back
    /// from now on.
    fn next_dirty(&mut self, pages: Range<u64>) -> Option<(u64, FileHandle, Bytes)> {
        let within = |page: &u64| page * PAGE < self.size;
        let can_be_written = !self.writers.is_empty();
        self.dirty.retain(|page| !pages.contains(page) || can_be_written && within(page));
        let page = self.dirty.range(pages).find(|page| !self.in_write_back.contains(page)).copied()?;
        let fh = *self.writers.first()?;
        self.dirty.remove(&page);
        self.in_write_back.insert(page);
        let mut data = self.pages.get(&page).cloned().unwrap_or_default();
        data.truncate((self.size - page * PAGE).min(PAGE) as usize);
        Some((page, fh, data.into()))
    }
}

/// The result of filling pages.
struct FilledPages {
    /// The offset at which the read bytes end.
    to: u64,
    /// Whether the file ends there.
    ends: bool,
}

impl Kernel {
    pub(super) fn opened(&self, ino: u64, fh: FileHandle, flags: u32, direct: bool, no_flush: bool) -> Fd {
        self.inode(ino, |inode| {
            inode.opens += 1;
            inode.reported.insert(fh, inode.reported_to_any);
            if flags & O_ACCMODE != 0 {
                inode.writers.push(fh);
            }
        });
        let direct = direct || flags & O_DIRECT != 0;
        Fd { client: self.client(), ino, fh, flags: flags & !O_TRUNC, direct, no_flush }
    }

    /// `close`. `owner`: the owner of the record locks to release.
    pub async fn close(&self, cred: &Cred, fd: &Fd, owner: u64) -> SysResult<()> {
        let written = match self.inode(fd.ino, |inode| inode.is_changed()) && fd.flags & O_ACCMODE != 0 {
            true => self.write_back(cred, fd.ino, 0, u64::MAX).await,
            false => Ok(()),
        };
        // The file is closed whether these succeed or not.
        let flushed = match written {
            Ok(()) if !fd.no_flush => self.ask(cred, Call::Flush { fh: fd.fh, lock_owner: owner }).await.map(drop),
            written => written,
        };
        self.inode(fd.ino, |inode| {
            inode.opens = inode.opens.saturating_sub(1);
            inode.writers.retain(|fh| *fh != fd.fh);
            inode.reported.remove(&fd.fh);
        });
        self.0.sched.post(self.client(), Call::Release { fh: fd.fh, flock_owner: None });
        self.maybe_evict(fd.ino);
        flushed
    }

    /// `pread`.
    pub async fn read(&self, cred: &Cred, fd: &Fd, offset: u64, length: u32) -> SysResult<Bytes> {
        if fd.flags & O_ACCMODE == 1 {
            return Err(Errno::EBADF.into());
        }
        if fd.direct {
            self.write_back(cred, fd.ino, offset, u64::from(length)).await?;
            return match self.ask(cred, Call::Read { fh: fd.fh, offset, length }).await? {
                Answer::Data(data) => Ok(data),
                other => Err(unexpected(&other)),
            };
        }
        let wanted = offset.saturating_add(u64::from(length));
        self.learn_end(cred, fd, wanted).await?;
        let (mut out, mut end, mut has_part) = (Vec::new(), wanted, false);
        loop {
            let at = offset + out.len() as u64;
            let now = end.min(self.inode(fd.ino, |inode| inode.size));
            if at >= now {
                return Ok(out.into());
            }
            // Page by page, as in Linux: pages already copied may be dropped again.
            if !self.copy_pages(fd.ino, at, now, &mut out) {
                match self.fill_pages(cred, fd, at, now).await {
                    Ok(FilledPages { to, ends }) => {
                        has_part = true;
                        if ends {
                            end = end.min(to);
                        }
                        // Another mount has truncated and extended the file since its size was requested. Linux ends at the size
                        // that it knew; the stand-in asks again, so that histories show other defects.
                        if to > self.inode(fd.ino, |inode| inode.size) {
                            self.learn_end(cred, fd, wanted).await?;
                        }
                    }
                    Err(fail) => self.continues_after(has_part, fail)?,
                }
            }
        }
    }

    /// Requests the file's size if a read goes beyond the known end. Linux asks once, ignores a size that arrives during a local
    /// write or after the reply to an earlier request, and then reads up to the end that it knew. Where many write concurrently
    /// this would hide real defects, so the stand-in asks until it accepts the reply.
    async fn learn_end(&self, cred: &Cred, fd: &Fd, wanted: u64) -> SysResult<()> {
        while wanted > self.inode(fd.ino, |inode| inode.size) {
            let started = self.version();
            let size = self.attr(cred, fd.ino, Some(fd.fh)).await?.size;
            while self.inode(fd.ino, |inode| inode.unstable) {
                self.wait().await;
            }
            if self.inode(fd.ino, |inode| inode.changed <= started && inode.size >= size) {
                break;
            }
        }
        Ok(())
    }

    /// Appends the cached bytes from `offset` to `end`, up to the first page that is missing. Returns false if the first page is
    /// missing.
    fn copy_pages(&self, ino: u64, offset: u64, end: u64, out: &mut Vec<u8>) -> bool {
        self.inode(ino, |inode| {
            let mut at = offset;
            while at < end {
                let Some(page) = inode.pages.get(&(at / PAGE)) else { break };
                let from = (at % PAGE) as usize;
                let to = (PAGE as usize).min(from + (end - at) as usize);
                out.extend_from_slice(&page[from..to]);
                at += (to - from) as u64;
            }
            at > offset
        })
    }

    /// Reads the first run of missing pages of a range; each page is locked meanwhile. (Linux ignores a short reply if the
    /// attributes change meanwhile, and shows zeros up to the end that it knew. The stand-in does not, so that histories show
    /// other defects.)
    async fn fill_pages(&self, cred: &Cred, fd: &Fd, offset: u64, end: u64) -> SysResult<FilledPages> {
        let mut page = offset / PAGE;
        while page * PAGE < end {
            if self.inode(fd.ino, |inode| inode.pages.contains_key(&page)) {
                page += 1;
                continue;
            }
            if self.inode(fd.ino, |inode| inode.locked.contains(&page)) {
                self.wait().await;
                continue;
            }
            let last = end.div_ceil(PAGE);
            let run = self.inode(fd.ino, |inode| {
                let mut to = page;
                while to < last && to - page < 32 && !inode.pages.contains_key(&to) && !inode.locked.contains(&to) {
                    inode.locked.insert(to);
                    to += 1;
                }
                page..to
            });
            let started = self.inode(fd.ino, |inode| inode.changed);
            let length = ((run.end - run.start) * PAGE) as u32;
            let result = self.ask(cred, Call::Read { fh: fd.fh, offset: run.start * PAGE, length }).await;
            self.inode(fd.ino, |inode| {
                inode.locked.retain(|locked| !run.contains(locked));
                if let Ok(Answer::Data(data)) = &result {
                    for number in run.clone() {
                        let from = ((number - run.start) * PAGE) as usize;
                        let mut bytes = data.get(from..).unwrap_or_default().to_vec();
                        bytes.resize(PAGE as usize, 0);
                        *inode.fills.entry(number).or_default() += 1;
                        if !inode.stale_fills.remove(&number) {
                            inode.pages.insert(number, bytes);
                        }
                    }
                    if data.len() < length as usize && inode.changed == started {
                        // The file ends here: the kernel trusts a short read.
                        let size = run.start * PAGE + data.len() as u64;
                        if size < inode.size {
                            inode.set_size(size);
                        }
                    }
                }
            });
            self.wake_all();
            return match result? {
                Answer::Data(data) => {
                    Ok(FilledPages { to: run.start * PAGE + data.len() as u64, ends: data.len() < length as usize })
                }
                other => Err(unexpected(&other)),
            };
        }
        Ok(FilledPages { to: 0, ends: false })
    }

    /// `pwrite`, or `write` of a file opened for appending.
    pub async fn write(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> SysResult<u32> {
        let mut done = self.write_some(cred, fd, offset, data).await?;
        // Continues a write that a full disk has cut short, as programs do.
        while (self.0.retries_when_full || self.0.retries_on_error)
            && fd.flags & O_APPEND == 0
            && (1..data.len() as u32).contains(&done)
        {
            match self.write_some(cred, fd, offset + u64::from(done), &data.slice(done as usize..)).await {
                Ok(0) | Err(Fail::Errno(_)) => break,
                Ok(more) => done += more,
                Err(ended) => return Err(ended.after(done)),
            }
        }
        Ok(done)
    }

    async fn write_some(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> SysResult<u32> {
        if fd.flags & O_ACCMODE == 0 {
            return Err(Errno::EBADF.into());
        }
        // As in Linux: a write through the page cache, an append, or a write beyond the known end holds the inode lock
        // exclusively; other direct writes share it.
        let beyond_end = |inode: &mut Inode| offset + data.len() as u64 > inode.size;
        let alone = !fd.direct || fd.flags & O_APPEND != 0 || self.inode(fd.ino, beyond_end);
        let _gate = self.gate(fd.ino, alone).await;
        // An append starts at the end that the kernel knows; the client decides the actual offset.
        let offset = if fd.flags & O_APPEND != 0 { self.inode(fd.ino, |inode| inode.size) } else { offset };
        let moves_end = !fd.direct && offset + data.len() as u64 > self.inode(fd.ino, |inode| inode.size);
        if moves_end {
            self.inode(fd.ino, |inode| inode.unstable = true);
        }
        let result = self.write_all(cred, fd, offset, data).await;
        if moves_end {
            self.inode(fd.ino, |inode| inode.unstable = false);
            self.wake_all();
        }
        result
    }

    /// Sends one request after the other. Returns the number of bytes written.
    async fn write_all(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> SysResult<u32> {
        let mut done = 0;
        loop {
            let left = data.slice(done as usize..);
            let (sent, written) = match self.send_write(cred, fd, offset + u64::from(done), left).await {
                Ok(both) => both,
                // Linux returns the count of bytes written so far; the program writes the rest, and gets the error then.
                Err(fail) => {
                    self.continues_after(done > 0, fail.after(done))?;
                    continue;
                }
            };
            done += written;
            if written < sent || done as usize >= data.len() {
                return Ok(done);
            }
        }
    }

    /// Sends one request of a write, with as many bytes as Linux sends in one. Returns that number, and the number of bytes
    /// written.
    async fn send_write(&self, cred: &Cred, fd: &Fd, offset: u64, mut data: Bytes) -> SysResult<(u32, u32)> {
        let mut locked = None;
        if fd.direct {
            self.drop_pages(fd.ino, offset, data.len() as u64).await;
        } else {
            let stored;
            (stored, locked) = self.store_into_pages(fd.ino, offset, &data).await;
            data.truncate(stored);
        }
        let sent = data.len() as u32;
        let pages = offset / PAGE..(offset + u64::from(sent)).div_ceil(PAGE);
        // Dirty pages of a mapping that are in write-back are older: wait for them.
        while self.inode(fd.ino, |inode| inode.in_write_back.range(pages.clone()).next().is_some()) {
            self.wait().await;
        }
        let fills = self.inode(fd.ino, |inode| inode.fills_of(&pages));
        let call = Call::Write { fh: fd.fh, ino: fd.ino, offset, data, write_back: false, kill_priv: cred.uid != 0 };
        let result = self.ask(cred, call).await;
        let written = match &result {
            Ok(Answer::Written(count)) => u64::from(*count),
            _ => 0,
        };
        self.inode(fd.ino, |inode| {
            if let Some(page) = locked {
                inode.locked.remove(&page);
            }
            if !fd.direct {
                inode.doubt_fills(&pages, &fills);
            }
            if written > 0 {
                inode.size = inode.size.max(offset + written);
            }
            if written < u64::from(sent) {
                // Bytes that were not written must not be read from the cache.
                let from = (offset + written) / PAGE;
                inode.pages.retain(|page, _| *page < from || page * PAGE >= offset + u64::from(sent));
            }
        });
        self.touched(fd.ino);
        self.wake_all();
        match result {
            Ok(Answer::Written(count)) => Ok((sent, count)),
            Ok(other) => Err(unexpected(&other)),
            Err(Fail::Killed(part)) => Err(Fail::Killed(PartialWrite { asked: sent, ..part })),
            Err(fail) => Err(fail),
        }
    }

    /// Write-through: cached pages, and pages that are covered completely, take the new bytes at once. Any other page stays
    /// locked until the write is answered, and is not cached; the request ends with it. So no task waits for a page while it
    /// holds the lock of another one, which the client could not know. Returns the number of bytes stored, and the locked page.
    async fn store_into_pages(&self, ino: u64, offset: u64, data: &Bytes) -> (usize, Option<u64>) {
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let page = at / PAGE;
            if self.inode(ino, |inode| inode.locked.contains(&page)) {
                self.wait().await;
                continue;
            }
            let (from, to) = ((at % PAGE) as usize, (PAGE.min(at % PAGE + end - at)) as usize);
            let bytes = &data[(at - offset) as usize..][..to - from];
            let stays_locked = self.inode(ino, |inode| {
                if let Some(there) = inode.pages.get_mut(&page) {
                    there[from..to].copy_from_slice(bytes);
                } else if from == 0 && to == PAGE as usize {
                    inode.pages.insert(page, bytes.to_vec());
                } else {
                    inode.locked.insert(page);
                    return true;
                }
                false
            });
            at += (to - from) as u64;
            if stays_locked {
                return ((at - offset) as usize, Some(page));
            }
        }
        (data.len(), None)
    }

    /// Bytes stored through `mmap` into pages that exist, then `msync`.
    pub async fn write_mapped(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> SysResult<u32> {
        let end = offset + data.len() as u64;
        // A program asks for the size before it maps a file, because an access beyond the end gives only a signal.
        self.attr(cred, fd.ino, Some(fd.fh)).await?;
        let mut at = offset;
        loop {
            let end = end.min(self.inode(fd.ino, |inode| inode.size));
            let page = at / PAGE;
            if at >= end {
                break;
            }
            self.fill_pages(cred, fd, page * PAGE, page * PAGE + 1).await?;
            let (from, to) = ((at % PAGE) as usize, PAGE.min(at % PAGE + end - at) as usize);
            let stored = self.inode(fd.ino, |inode| {
                let Some(there) = inode.pages.get_mut(&page) else { return false };
                there[from..to].copy_from_slice(&data[(at - offset) as usize..][..to - from]);
                inode.dirty.insert(page);
                true
            });
            if stored {
                at += (to - from) as u64;
            }
        }
        self.write_back(cred, fd.ino, 0, u64::MAX).await?;
        self.inode(fd.ino, |inode| inode.report_failure(fd.fh))?;
        Ok((at - offset) as u32)
    }

    /// Writes back pages modified through `mmap`, and waits for write-backs in flight. Errors are reported to `msync` and `fsync`
    /// of all open files; a program whose client dies meanwhile dies with it.
    async fn write_back(&self, cred: &Cred, ino: u64, offset: u64, length: u64) -> SysResult<()> {
        let pages = offset / PAGE..offset.saturating_add(length).div_ceil(PAGE);
        loop {
            let next = {
                let mut caches = self.caches_mut();
                let ended = if caches.dead { Err(Fail::Dead) } else { Ok(()) };
                let Some(inode) = caches.inodes.get_mut(&ino) else { return ended };
                let next = inode.next_dirty(pages.clone());
                if next.is_none() && inode.in_write_back.range(pages.clone()).next().is_none() {
                    return ended;
                }
                next
            };
            let Some((page, fh, data)) = next else {
                self.wait().await;
                continue;
            };
            let call = Call::Write { fh, ino, offset: page * PAGE, data, write_back: true, kill_priv: false };
            let result = self.ask_quietly(cred, call).await;
            self.inode(ino, |inode| {
                inode.in_write_back.remove(&page);
                if let Err(Fail::Errno(errno)) = result {
                    inode.failures += 1;
                    inode.failure = Some(errno);
                }
            });
            self.touched(ino);
            self.wake_all();
        }
    }

    pub(super) async fn write_back_everything(&self, cred: &Cred) -> SysResult<()> {
        let dirty: Vec<u64> =
            self.caches().inodes.iter().filter(|(_, inode)| inode.is_changed()).map(|(ino, _)| *ino).collect();
        for ino in dirty {
            self.write_back(cred, ino, 0, u64::MAX).await?;
        }
        Ok(())
    }

    /// Drops the pages of a range one after the other; locked pages are waited for, dirty ones are written first.
    pub(super) async fn drop_pages(&self, ino: u64, offset: u64, length: u64) {
        let mut left = offset / PAGE..offset.saturating_add(length).div_ceil(PAGE);
        while let Some(page) = self.inode(ino, |inode| inode.first_of(&left)) {
            let _ = self.write_back(&Cred::default(), ino, page * PAGE, PAGE).await;
            if self.inode(ino, |inode| inode.locked.contains(&page)) {
                self.wait().await;
            } else if self.inode(ino, |inode| !inode.dirty.contains(&page)) {
                self.inode(ino, |inode| inode.pages.remove(&page));
                left.start = page + 1;
            }
        }
    }

    /// `ftruncate`.
    pub async fn truncate(&self, cred: &Cred, fd: &Fd, size: u64) -> SysResult<()> {
        if fd.flags & O_ACCMODE == 0 {
            return Err(Errno::EINVAL.into());
        }
        let set = SetStat { size: Some(size), fh: Some(fd.fh), ..SetStat::default() };
        self.set(cred, fd.ino, set).await
    }

    /// `fallocate`.
    pub async fn fallocate(&self, cred: &Cred, fd: &Fd, mode: u32, offset: u64, length: u64) -> SysResult<()> {
        if fd.flags & O_ACCMODE == 0 {
            return Err(Errno::EBADF.into());
        }
        let _gate = self.gate(fd.ino, true).await;
        self.write_back(cred, fd.ino, offset, length).await?;
        let result = self.ask(cred, Call::Fallocate { fh: fd.fh, mode, offset, length }).await;
        if result.is_ok() {
            // In Linux's order: readers that hold a page lock see the new end.
            if mode & 1 == 0 {
                self.inode(fd.ino, |inode| inode.size = inode.size.max(offset + length));
            }
            if mode & 0x12 != 0 {
                self.drop_pages(fd.ino, offset, length).await;
            }
        }
        self.touched(fd.ino);
        result.map(drop)
    }

    /// `SEEK_DATA` and `SEEK_HOLE`.
    pub async fn seek(&self, cred: &Cred, fd: &Fd, offset: u64, whence: Whence) -> SysResult<u64> {
        self.write_back(cred, fd.ino, 0, u64::MAX).await?;
        match self.ask(cred, Call::Lseek { fh: fd.fh, offset, whence }).await? {
            Answer::Offset(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    /// `fsync`.
    pub async fn sync(&self, cred: &Cred, fd: &Fd) -> SysResult<()> {
        self.write_back(cred, fd.ino, 0, u64::MAX).await?;
        // The client reported these errors in the replies to the writes, and does not report them again.
        self.inode(fd.ino, |inode| inode.report_failure(fd.fh))?;
        self.ask(cred, Call::Fsync { fh: fd.fh }).await.map(drop)
    }

    /// Writes bytes to a file in either way.
    pub async fn put(&self, cred: &Cred, fd: &Fd, kind: WriteKind, offset: u64, data: &Bytes) -> SysResult<u32> {
        match kind {
            WriteKind::Plain => self.write(cred, fd, offset, data).await,
            WriteKind::Mapped => {
                if fd.flags & O_ACCMODE != 2 {
                    return Err(Fail::Errno(Errno::EACCES));
                }
                // A page fault is not interrupted by signals.
                self.unsignalled().write_mapped(cred, fd, offset, data).await
            }
        }
    }
}

#[cfg(test)]
mod tests;
