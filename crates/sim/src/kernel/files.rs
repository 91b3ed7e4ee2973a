//! Open files and their pages.

use core::ops::Range;

use client::api::{Answer, Call, FileHandle, SetStat, Whence};
use proto::msg::Cred;
use proto::{Bytes, Errno};

use super::names::{O_ACCMODE, O_TRUNC};
use super::{Inode, Kernel, Sys, odd};
use crate::sched::{Fail, Part};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// `O_DIRECT`.
pub(super) const O_DIRECT: u32 = 0o40000;
const O_APPEND: u32 = 0o2000;

/// An open file.
#[derive(Clone, Debug)]
pub struct Fd {
    /// Which client it is open on.
    pub client: usize,
    /// Its inode.
    pub ino: u64,
    /// The client's number.
    pub fh: FileHandle,
    /// `O_*`.
    pub flags: u32,
    /// Its reads and writes go past the pages.
    pub direct: bool,
    /// FLUSH is not needed.
    pub no_flush: bool,
}

/// How bytes get into a file.
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

    /// The first page of a range that is there, or on its way.
    fn first_of(&self, pages: &Range<u64>) -> Option<u64> {
        let there = self.pages.range(pages.clone()).next().map(|(page, _)| *page);
        let others = [&self.dirty, &self.leaving, &self.locked].map(|all| all.range(pages.clone()).next().copied());
        there.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// How often the pages of a range were read.
    fn fills_of(&self, pages: &Range<u64>) -> Vec<u64> {
        pages.clone().map(|page| self.fills.get(&page).copied().unwrap_or(0)).collect()
    }

    /// A write of these pages has ended. One that was dropped and read again meanwhile, before the write was done, lacks it. Linux
    /// keeps it all the same, and tells no file system; where many write at once that must not drown what is not accepted.
    fn doubt_fills(&mut self, pages: &Range<u64>, before: &[u64]) {
        for (page, fills) in pages.clone().zip(before) {
            if self.locked.contains(&page) {
                self.void.insert(page);
            } else if self.fills.get(&page).copied().unwrap_or(0) != *fills && !self.dirty.contains(&page) {
                self.pages.remove(&page);
            }
        }
    }

    /// An open file is told once of each failure that it does not know of.
    fn tell(&mut self, fh: FileHandle) -> Sys<()> {
        self.told_anybody = self.failures;
        let known = self.told.insert(fh, self.failures).unwrap_or(self.failures);
        self.failure.filter(|_| known < self.failures).map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Pages have changed, and not all are written.
    pub(super) fn is_changed(&self) -> bool {
        !self.dirty.is_empty() || !self.leaving.is_empty()
    }

    /// A changed page in this range that nobody writes, and what to write it through. It is leaving from now on.
    fn next_dirty(&mut self, pages: Range<u64>) -> Option<(u64, FileHandle, Bytes)> {
        let within = |page: &u64| page * PAGE < self.size;
        let can_be_written = !self.writers.is_empty();
        self.dirty.retain(|page| !pages.contains(page) || can_be_written && within(page));
        let page = self.dirty.range(pages).find(|page| !self.leaving.contains(page)).copied()?;
        let fh = *self.writers.first()?;
        self.dirty.remove(&page);
        self.leaving.insert(page);
        let mut data = self.pages.get(&page).cloned().unwrap_or_default();
        data.truncate((self.size - page * PAGE).min(PAGE) as usize);
        Some((page, fh, data.into()))
    }
}

/// What pages were filled with.
struct Filled {
    /// Where that ended.
    to: u64,
    /// And the file with it.
    ends: bool,
}

impl Kernel {
    pub(super) fn opened(&self, ino: u64, fh: FileHandle, flags: u32, direct: bool, no_flush: bool) -> Fd {
        self.inode(ino, |inode| {
            inode.opens += 1;
            inode.told.insert(fh, inode.told_anybody);
            if flags & O_ACCMODE != 0 {
                inode.writers.push(fh);
            }
        });
        let direct = direct || flags & O_DIRECT != 0;
        Fd { client: self.client(), ino, fh, flags: flags & !O_TRUNC, direct, no_flush }
    }

    /// `close`. `owner`: whose record locks go.
    pub async fn close(&self, cred: &Cred, fd: &Fd, owner: u64) -> Sys<()> {
        let written = match self.inode(fd.ino, |inode| inode.is_changed()) && fd.flags & O_ACCMODE != 0 {
            true => self.write_back(cred, fd.ino, 0, u64::MAX).await,
            false => Ok(()),
        };
        // Whatever becomes of these, the file is closed.
        let flushed = match written {
            Ok(()) if !fd.no_flush => self.ask(cred, Call::Flush { fh: fd.fh, lock_owner: owner }).await.map(drop),
            written => written,
        };
        self.inode(fd.ino, |inode| {
            inode.opens = inode.opens.saturating_sub(1);
            inode.writers.retain(|fh| *fh != fd.fh);
            inode.told.remove(&fd.fh);
        });
        self.0.sched.post(self.client(), Call::Release { fh: fd.fh, flock_owner: None });
        self.maybe_evict(fd.ino);
        flushed
    }

    /// `pread`.
    pub async fn read(&self, cred: &Cred, fd: &Fd, offset: u64, length: u32) -> Sys<Bytes> {
        if fd.flags & O_ACCMODE == 1 {
            return Err(Errno::EBADF.into());
        }
        if fd.direct {
            self.write_back(cred, fd.ino, offset, u64::from(length)).await?;
            return match self.ask(cred, Call::Read { fh: fd.fh, offset, length }).await? {
                Answer::Data(data) => Ok(data),
                other => Err(odd(&other)),
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
            // As Linux, page by page: what was dropped again behind it does not matter.
            if !self.copy_pages(fd.ino, at, now, &mut out) {
                match self.fill_pages(cred, fd, at, now).await {
                    Ok(Filled { to, ends }) => {
                        has_part = true;
                        if ends {
                            end = end.min(to);
                        }
                        // Another mount has cut the file and made it longer since its size was asked for. Linux ends where it knew; the
                        // stand-in asks again, so that histories show what else is wrong.
                        if to > self.inode(fd.ino, |inode| inode.size) {
                            self.learn_end(cred, fd, wanted).await?;
                        }
                    }
                    Err(fail) => self.goes_on(has_part, fail)?,
                }
            }
        }
    }

    /// Asks how long the file is, if somebody wants more than is known. Linux asks once, does not believe what comes beside a write of the
    /// same machine, or after the answer to a question that was asked before, and then reads up to the end that it knew. Where many write at
    /// once that must not drown what is not accepted: the stand-in asks until it believes.
    async fn learn_end(&self, cred: &Cred, fd: &Fd, wanted: u64) -> Sys<()> {
        while wanted > self.inode(fd.ino, |inode| inode.size) {
            let started = self.version();
            let told = self.attr(cred, fd.ino, Some(fd.fh)).await?.size;
            while self.inode(fd.ino, |inode| inode.unstable) {
                self.wait().await;
            }
            if self.inode(fd.ino, |inode| inode.changed <= started && inode.size >= told) {
                break;
            }
        }
        Ok(())
    }

    /// Appends what lies in pages from `offset` to `end`, until one is not there. False: that is the first.
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

    /// Reads the first run of pages of a range that are not there; each is locked meanwhile. (Linux does not believe a short answer beside which attributes go, and shows zeros up to the end that it knew. The
    /// stand-in does not show them, so that histories show what else is wrong.)
    async fn fill_pages(&self, cred: &Cred, fd: &Fd, offset: u64, end: u64) -> Sys<Filled> {
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
                        if !inode.void.remove(&number) {
                            inode.pages.insert(number, bytes);
                        }
                    }
                    if data.len() < length as usize && inode.changed == started {
                        // The file ends here: the kernel believes a short read.
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
                    Ok(Filled { to: run.start * PAGE + data.len() as u64, ends: data.len() < length as usize })
                }
                other => Err(odd(&other)),
            };
        }
        Ok(Filled { to: 0, ends: false })
    }

    /// `pwrite`, or `write` of a file opened for appending.
    pub async fn write(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> Sys<u32> {
        let mut done = self.write_some(cred, fd, offset, data).await?;
        // As programs do whom a full disk cuts short.
        while (self.0.patient || self.0.fails) && fd.flags & O_APPEND == 0 && (1..data.len() as u32).contains(&done) {
            match self.write_some(cred, fd, offset + u64::from(done), &data.slice(done as usize..)).await {
                Ok(0) | Err(Fail::Errno(_)) => break,
                Ok(more) => done += more,
                Err(ended) => return Err(ended.after(done)),
            }
        }
        Ok(done)
    }

    async fn write_some(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> Sys<u32> {
        if fd.flags & O_ACCMODE == 0 {
            return Err(Errno::EBADF.into());
        }
        // As Linux: what goes by the kernel's pages, appends, or ends behind the end that the kernel knows of, has the inode's
        // lock alone; other direct writes share it.
        let behind = |inode: &mut Inode| offset + data.len() as u64 > inode.size;
        let alone = !fd.direct || fd.flags & O_APPEND != 0 || self.inode(fd.ino, behind);
        let _gate = self.gate(fd.ino, alone).await;
        // And an append begins at the end that the kernel knows of. The client decides.
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

    /// One request after the other. Gives how much is written.
    async fn write_all(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> Sys<u32> {
        let mut done = 0;
        loop {
            let left = data.slice(done as usize..);
            let (sent, written) = match self.send_write(cred, fd, offset + u64::from(done), left).await {
                Ok(both) => both,
                // Linux returns the count of bytes written so far; the program writes the rest, and gets the error with that.
                Err(fail) => {
                    self.goes_on(done > 0, fail.after(done))?;
                    continue;
                }
            };
            done += written;
            if written < sent || done as usize >= data.len() {
                return Ok(done);
            }
        }
    }

    /// One request of a write, with as much as Linux sends in one. Gives how much that was, and what is written of it.
    async fn send_write(&self, cred: &Cred, fd: &Fd, offset: u64, mut data: Bytes) -> Sys<(u32, u32)> {
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
        // Pages of a mapping that are on their way are older.
        while self.inode(fd.ino, |inode| inode.leaving.range(pages.clone()).next().is_some()) {
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
                // What was not taken must not be read from here.
                let from = (offset + written) / PAGE;
                inode.pages.retain(|page, _| *page < from || page * PAGE >= offset + u64::from(sent));
            }
        });
        self.touched(fd.ino);
        self.wake_all();
        match result {
            Ok(Answer::Written(count)) => Ok((sent, count)),
            Ok(other) => Err(odd(&other)),
            Err(Fail::Killed(part)) => Err(Fail::Killed(Part { asked: sent, ..part })),
            Err(fail) => Err(fail),
        }
    }

    /// Write-through: pages that are there, or are covered whole, take the new bytes at once. A page that is neither
    /// stays locked until the write is answered, and is not kept: its number is given, and the request ends with it. So nobody waits
    /// for a page with another one locked, of which the client could not know. Gives how many bytes are stored, too.
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
    pub async fn write_mapped(&self, cred: &Cred, fd: &Fd, offset: u64, data: &Bytes) -> Sys<u32> {
        let end = offset + data.len() as u64;
        // A program asks for the size before it maps a file, for beyond it there is only a signal.
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
        self.inode(fd.ino, |inode| inode.tell(fd.fh))?;
        Ok((at - offset) as u32)
    }

    /// Writes pages that were changed through `mmap`, and waits for those that somebody else writes. Errors go to `msync` and `fsync` of all
    /// who have the file open; a program whose client died meanwhile dies with it.
    async fn write_back(&self, cred: &Cred, ino: u64, offset: u64, length: u64) -> Sys<()> {
        let pages = offset / PAGE..offset.saturating_add(length).div_ceil(PAGE);
        loop {
            let next = {
                let mut caches = self.caches_mut();
                let ended = if caches.dead { Err(Fail::Dead) } else { Ok(()) };
                let Some(inode) = caches.inodes.get_mut(&ino) else { return ended };
                let next = inode.next_dirty(pages.clone());
                if next.is_none() && inode.leaving.range(pages.clone()).next().is_none() {
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
                inode.leaving.remove(&page);
                if let Err(Fail::Errno(errno)) = result {
                    inode.failures += 1;
                    inode.failure = Some(errno);
                }
            });
            self.touched(ino);
            self.wake_all();
        }
    }

    pub(super) async fn write_back_everything(&self, cred: &Cred) -> Sys<()> {
        let dirty: Vec<u64> =
            self.caches().inodes.iter().filter(|(_, inode)| inode.is_changed()).map(|(ino, _)| *ino).collect();
        for ino in dirty {
            self.write_back(cred, ino, 0, u64::MAX).await?;
        }
        Ok(())
    }

    /// Drops the pages of a range, one after the other; one that is locked is waited for, one that is dirty written first.
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
    pub async fn truncate(&self, cred: &Cred, fd: &Fd, size: u64) -> Sys<()> {
        if fd.flags & O_ACCMODE == 0 {
            return Err(Errno::EINVAL.into());
        }
        let set = SetStat { size: Some(size), fh: Some(fd.fh), ..SetStat::default() };
        self.set(cred, fd.ino, set).await
    }

    /// `fallocate`.
    pub async fn fallocate(&self, cred: &Cred, fd: &Fd, mode: u32, offset: u64, length: u64) -> Sys<()> {
        if fd.flags & O_ACCMODE == 0 {
            return Err(Errno::EBADF.into());
        }
        let _gate = self.gate(fd.ino, true).await;
        self.write_back(cred, fd.ino, offset, length).await?;
        let result = self.ask(cred, Call::Fallocate { fh: fd.fh, mode, offset, length }).await;
        if result.is_ok() {
            // In Linux's order: whoever has a page locked sees the new end.
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
    pub async fn seek(&self, cred: &Cred, fd: &Fd, offset: u64, whence: Whence) -> Sys<u64> {
        self.write_back(cred, fd.ino, 0, u64::MAX).await?;
        match self.ask(cred, Call::Lseek { fh: fd.fh, offset, whence }).await? {
            Answer::Offset(found) => Ok(found),
            other => Err(odd(&other)),
        }
    }

    /// `fsync`.
    pub async fn sync(&self, cred: &Cred, fd: &Fd, data_only: bool) -> Sys<()> {
        self.write_back(cred, fd.ino, 0, u64::MAX).await?;
        // The client answered these writes with an error, and does not tell of them again.
        self.inode(fd.ino, |inode| inode.tell(fd.fh))?;
        self.ask(cred, Call::Fsync { fh: fd.fh, data_only }).await.map(drop)
    }

    /// Bytes into a file, one way or the other.
    pub async fn put(&self, cred: &Cred, fd: &Fd, kind: WriteKind, offset: u64, data: &Bytes) -> Sys<u32> {
        match kind {
            WriteKind::Plain => self.write(cred, fd, offset, data).await,
            WriteKind::Mapped => {
                if fd.flags & O_ACCMODE != 2 {
                    return Err(Fail::Errno(Errno::EACCES));
                }
                // A page fault waits, whatever signals come.
                self.unsignalled().write_mapped(cred, fd, offset, data).await
            }
        }
    }
}

#[cfg(test)]
mod tests;
