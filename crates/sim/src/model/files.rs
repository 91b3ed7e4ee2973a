//! Open files and bytes.

use std::rc::Rc;

use proto::msg::Cred;
use proto::{Bytes, Errno};

use super::access::{EXECUTE, READ, WRITE, may, mode_after_write};
use super::{Body, Expected, Id, Inode, Model, NAME_MAX, OpenFile, Path, S_IFREG, TimeRange, WriteWay};

type Outcome = Result<Expected, Errno>;

const O_ACCMODE: u32 = 3;
const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
pub(super) const O_TRUNC: u32 = 0o1000;
pub(super) const O_APPEND: u32 = 0o2000;

impl Inode {
    fn bytes(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.body {
            Body::File(data) => Some(Rc::make_mut(data)),
            _ => None,
        }
    }
}

impl Model {
    pub(super) fn open(
        &mut self,
        cred: &Cred,
        path: &Path,
        flags: u32,
        mode: u32,
        fd: u32,
        when: TimeRange,
    ) -> Outcome {
        let id = if flags & O_CREAT != 0 {
            let (dir, name) = self.parent(cred, path)?;
            if name.len() > NAME_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            match self.entries(dir).get(name).copied() {
                Some(_) if flags & O_EXCL != 0 => return Err(Errno::EEXIST),
                Some(id) if self.inode(id).is_dir() => return Err(Errno::EISDIR),
                Some(id) => self.may_open(cred, id, flags)?,
                None => {
                    may(self.inode(dir), cred, WRITE | EXECUTE)?;
                    let mode = S_IFREG | mode & 0o7777;
                    let id = self.create_object(cred, dir, name, mode, Body::File(Rc::default()), when);
                    self.open.insert(fd, OpenFile { id, flags });
                    return Ok(Expected::Inode(id));
                }
            }
        } else {
            let id = self.walk(cred, path)?;
            self.may_open(cred, id, flags)?
        };
        if flags & O_TRUNC != 0 {
            self.resize(cred, id, 0, when);
        }
        self.open.insert(fd, OpenFile { id, flags });
        Ok(Expected::Inode(id))
    }

    pub(super) fn may_open(&self, cred: &Cred, id: Id, flags: u32) -> Result<Id, Errno> {
        let inode = self.inode(id);
        let mut mask = match flags & O_ACCMODE {
            0 => READ,
            1 => WRITE,
            _ => READ | WRITE,
        };
        if flags & O_TRUNC != 0 {
            mask |= WRITE;
        }
        match inode.body {
            Body::Directory { .. } if mask & WRITE != 0 => return Err(Errno::EISDIR),
            Body::Symlink(_) => return Err(Errno::ELOOP),
            _ => {}
        }
        may(inode, cred, mask)?;
        match inode.body {
            // Opening a special file is up to its driver or to the process at the other end of the pipe; there is none here.
            Body::Special { .. } => Err(Errno::ENXIO),
            // The simulated programs never open a directory as a file.
            Body::Directory { .. } => Err(Errno::EISDIR),
            _ => Ok(id),
        }
    }

    pub(super) fn close(&mut self, fd: u32) -> Outcome {
        let file = self.file(fd)?;
        self.open.remove(&fd);
        self.drop_if_dead(file.id);
        Ok(Expected::Done)
    }

    pub(super) fn read(&mut self, fd: u32, offset: u64, length: u32) -> Outcome {
        let file = self.file(fd)?;
        if file.flags & O_ACCMODE == 1 {
            return Err(Errno::EBADF);
        }
        self.accessed(file.id);
        let data = self.inode(file.id).data();
        let from = (offset as usize).min(data.len());
        let to = from.saturating_add(length as usize).min(data.len());
        Ok(Expected::Data(Bytes::copy_from_slice(&data[from..to])))
    }

    pub(super) fn write(
        &mut self,
        cred: &Cred,
        fd: u32,
        way: WriteWay,
        offset: u64,
        data: &Bytes,
        when: TimeRange,
    ) -> Outcome {
        let file = self.file(fd)?;
        match way {
            WriteWay::Plain if file.flags & O_ACCMODE == 0 => return Err(Errno::EBADF),
            WriteWay::Mapped if file.flags & O_ACCMODE != 2 => return Err(Errno::EACCES),
            _ => {}
        }
        let size = self.inode(file.id).data().len() as u64;
        let (offset, length) = match way {
            WriteWay::Plain if file.flags & O_APPEND != 0 => (size, data.len() as u64),
            WriteWay::Plain => (offset, data.len() as u64),
            WriteWay::Mapped => (offset, size.saturating_sub(offset).min(data.len() as u64)),
        };
        if length > 0 && way == WriteWay::Mapped {
            // The kernel reads a page before a program changes bytes of it.
            self.accessed(file.id);
        }
        if length > 0 {
            // Writing back a mapped page has no caller: set-id bits stay.
            let mode = match way {
                WriteWay::Plain => mode_after_write(self.inode(file.id), cred),
                WriteWay::Mapped => self.inode(file.id).mode,
            };
            let inode = self.change(file.id);
            inode.mode = mode;
            inode.mtime = when;
            inode.ctime = when;
            if let Some(bytes) = inode.bytes() {
                let end = (offset + length) as usize;
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[offset as usize..end].copy_from_slice(&data[..length as usize]);
            }
        }
        Ok(Expected::Written(length as u32))
    }

    pub(super) fn resize(&mut self, cred: &Cred, id: Id, size: u64, when: TimeRange) {
        let mode = mode_after_write(self.inode(id), cred);
        let same = self.inode(id).data().len() as u64 == size;
        let inode = self.change(id);
        inode.mode = mode;
        // Whether truncating a file to its present length counts as a change is up to the system.
        inode.mtime = if same { when.or(inode.mtime) } else { when };
        inode.ctime = if same { when.or(inode.ctime) } else { when };
        if let Some(bytes) = inode.bytes() {
            bytes.resize(size as usize, 0);
        }
    }

    /// Truncates an object that a path was resolved to.
    pub(crate) fn truncate_found(&mut self, cred: &Cred, id: Id, size: u64, when: TimeRange) -> Outcome {
        match self.inode(id).body {
            Body::Directory { .. } => return Err(Errno::EISDIR),
            Body::File(_) => {}
            _ => return Err(Errno::EINVAL),
        }
        may(self.inode(id), cred, WRITE)?;
        self.resize(cred, id, size, when);
        self.change(id).loses_capabilities();
        Ok(Expected::Done)
    }

    pub(super) fn ftruncate(&mut self, cred: &Cred, fd: u32, size: u64, when: TimeRange) -> Outcome {
        let file = self.file(fd)?;
        if file.flags & O_ACCMODE == 0 {
            return Err(Errno::EINVAL);
        }
        self.resize(cred, file.id, size, when);
        self.change(file.id).loses_capabilities();
        Ok(Expected::Done)
    }

    pub(super) fn fallocate(
        &mut self,
        cred: &Cred,
        fd: u32,
        mode: u32,
        offset: u64,
        length: u64,
        when: TimeRange,
    ) -> Outcome {
        let file = self.file(fd)?;
        if file.flags & O_ACCMODE == 0 {
            return Err(Errno::EBADF);
        }
        let (keep, hole, zero) = (mode & 1 != 0, mode & 2 != 0, mode & 0x10 != 0);
        let new_mode = mode_after_write(self.inode(file.id), cred);
        let inode = self.change(file.id);
        inode.mode = new_mode;
        inode.mtime = when.or(inode.mtime);
        inode.ctime = when.or(inode.ctime);
        if let Some(bytes) = inode.bytes() {
            let end = (offset + length) as usize;
            if hole || zero {
                let (from, to) = ((offset as usize).min(bytes.len()), end.min(bytes.len()));
                bytes[from..to].fill(0);
            }
            if !keep && bytes.len() < end {
                bytes.resize(end, 0);
            }
        }
        Ok(Expected::Done)
    }

    pub(super) fn seek(&mut self, fd: u32, offset: u64, hole: bool) -> Outcome {
        let file = self.file(fd)?;
        let data = self.inode(file.id).data();
        if offset >= data.len() as u64 {
            return Err(Errno::ENXIO);
        }
        if !hole && data[offset as usize..].iter().all(|byte| *byte == 0) {
            return Ok(Expected::SeekOrNothing { id: file.id, offset });
        }
        Ok(Expected::Seek { id: file.id, offset, hole })
    }

    pub(super) fn fstat(&mut self, fd: u32) -> Outcome {
        Ok(Expected::Inode(self.file(fd)?.id))
    }
}
