//! Executes calls of the model on a real client.

use std::collections::BTreeMap;

use client::api::{Answer, Call, SetStat, Whence};
use proto::msg::{Cred, DirDefault, Layout};
use proto::{Bytes, Errno};

use crate::kernel::{Fd, Kernel, OpenHow, SysResult, WriteKind};
use crate::model::{Op, Returned, WriteWay};
use crate::sched::Fail;

/// Executes calls: on a client, with paths relative to a directory, and with the process's open files.
pub(crate) struct OpExecutor<'a> {
    /// The client.
    pub kernel: &'a Kernel,
    /// The directory that precedes every path.
    pub base: &'a [Bytes],
    /// Open files by the process's numbers.
    pub files: &'a mut BTreeMap<u32, Fd>,
    /// Make and remove names without looking them up first.
    pub blind: bool,
}

impl OpExecutor<'_> {
    fn full(&self, path: &[Bytes]) -> Vec<Bytes> {
        self.base.iter().chain(path).cloned().collect()
    }

    fn fd(&self, fd: u32) -> SysResult<Fd> {
        self.files.get(&fd).cloned().ok_or(Fail::Errno(Errno::EBADF))
    }

    /// Executes a call.
    pub(crate) async fn perform(&mut self, op: &Op, cred: &Cred) -> SysResult<Returned> {
        let result = match self.call(op, cred).await {
            // The kernel may have answered from its caches, but its programs are dead, too.
            _ if self.kernel.is_dead() => Err(Fail::Dead),
            result => result,
        };
        let shown = match &result {
            Ok(_) => "ok",
            Err(Fail::Errno(errno)) => errno.name(),
            Err(Fail::Dead) => "died",
            Err(Fail::Killed(_)) => "killed",
        };
        self.kernel.count(op.name(), shown);
        result
    }

    async fn call(&mut self, op: &Op, cred: &Cred) -> SysResult<Returned> {
        let kernel = self.kernel.clone();
        let done = |()| Returned::Done;
        match op {
            Op::Mkdir { path, mode } => {
                kernel.mkdir(cred, &self.full(path), *mode, self.blind).await.map(Returned::Stat)
            }
            Op::MkdirOn { path, mode, wish } => {
                kernel.mkdir_on(cred, &self.full(path), *mode, wish).await.map(Returned::Opened)
            }
            Op::Mknod { path, mode, rdev } => {
                kernel.mknod(cred, &self.full(path), *mode, *rdev, self.blind).await.map(Returned::Stat)
            }
            Op::Symlink { path, target } => {
                kernel.symlink(cred, &self.full(path), target, self.blind).await.map(Returned::Stat)
            }
            Op::Link { from, to } => kernel.link(cred, &self.full(from), &self.full(to)).await.map(done),
            Op::Unlink { path } => kernel.remove(cred, &self.full(path), false, self.blind).await.map(done),
            Op::Rmdir { path } => kernel.remove(cred, &self.full(path), true, self.blind).await.map(done),
            Op::Rename { from, to, flags } => {
                kernel.rename(cred, &self.full(from), &self.full(to), *flags, self.blind).await.map(done)
            }
            Op::Stat { path } => kernel.stat(cred, &self.full(path)).await.map(Returned::Stat),
            Op::Readlink { path } => kernel.readlink(cred, &self.full(path)).await.map(Returned::Data),
            Op::List { path, plus, bytes } => {
                kernel.list(cred, &self.full(path), *plus, *bytes).await.map(Returned::Entries)
            }
            Op::Chmod { path, mode } => {
                let set = SetStat { mode: Some(*mode), ..SetStat::default() };
                kernel.setattr(cred, &self.full(path), &set).await.map(done)
            }
            Op::Chown { path, uid, gid } => {
                let set = SetStat { uid: *uid, gid: *gid, ..SetStat::default() };
                kernel.setattr(cred, &self.full(path), &set).await.map(done)
            }
            Op::Utimens { path, atime, mtime } => {
                let set = SetStat { atime: *atime, mtime: *mtime, ..SetStat::default() };
                kernel.setattr(cred, &self.full(path), &set).await.map(done)
            }
            Op::Truncate { path, size } => {
                let set = SetStat { size: Some(*size), ..SetStat::default() };
                kernel.setattr(cred, &self.full(path), &set).await.map(done)
            }
            Op::Access { path, mask } => kernel
                .about(cred, &self.full(path), |ino| Call::Access { ino, mask: *mask })
                .await
                .map(|_| Returned::Done),
            Op::Setxattr { path, name, value, flags } => {
                let call = |ino| Call::Setxattr { ino, name: name.clone(), value: value.clone(), flags: *flags };
                kernel.about(cred, &self.full(path), call).await.map(|_| Returned::Done)
            }
            Op::Migrate { path, count, first } => {
                let (want_count, want_first) = (*count, *first);
                let wish = || Layout { want_count, want_first, ..Layout::default() };
                let call = |ino| Call::Migrate { ino, wish: wish() };
                match kernel.about(cred, &self.full(path), call).await {
                    // The file is constantly written, the wanted targets are away, or not all clients have reconnected.
                    Ok(_) | Err(Fail::Errno(Errno::EBUSY | Errno::ENXIO | Errno::ENOSPC | Errno::EOPNOTSUPP)) => {
                        Ok(Returned::Done)
                    }
                    Err(other) => Err(other),
                }
            }
            Op::Getxattr { path, name } => {
                let call = |ino| Call::Getxattr { ino, name: name.clone() };
                data(kernel.about(cred, &self.full(path), call).await?).map(Returned::Data)
            }
            Op::Listxattr { path } => {
                data(kernel.about(cred, &self.full(path), |ino| Call::Listxattr { ino }).await?).map(Returned::Names)
            }
            Op::Removexattr { path, name } => {
                let call = |ino| Call::Removexattr { ino, name: name.clone() };
                kernel.about(cred, &self.full(path), call).await.map(|_| Returned::Done)
            }
            Op::Open { path, flags, mode, fd } => {
                let how = OpenHow { flags: *flags, mode: *mode, blind: self.blind };
                let file = kernel.open(cred, &self.full(path), how).await?;
                let ino = file.ino;
                self.files.insert(*fd, file);
                Ok(Returned::Opened(ino))
            }
            Op::Close { fd } => {
                let file = self.fd(*fd)?;
                self.files.remove(fd);
                kernel.close(cred, &file, 1).await.map(done)
            }
            Op::Read { fd, offset, length } => {
                kernel.read(cred, &self.fd(*fd)?, *offset, *length).await.map(Returned::Data)
            }
            Op::Write { fd, way, offset, data } => {
                let kind = match way {
                    WriteWay::Plain => WriteKind::Plain,
                    WriteWay::Mapped => WriteKind::Mapped,
                };
                kernel.put(cred, &self.fd(*fd)?, kind, *offset, data).await.map(Returned::Written)
            }
            Op::Ftruncate { fd, size } => kernel.truncate(cred, &self.fd(*fd)?, *size).await.map(done),
            Op::Fallocate { fd, mode, offset, length } => {
                kernel.fallocate(cred, &self.fd(*fd)?, *mode, *offset, *length).await.map(done)
            }
            Op::Seek { fd, offset, hole } => {
                let whence = if *hole { Whence::Hole } else { Whence::Data };
                kernel.seek(cred, &self.fd(*fd)?, *offset, whence).await.map(Returned::Offset)
            }
            Op::Fstat { fd } => kernel.fstat(cred, &self.fd(*fd)?).await.map(Returned::Stat),
            Op::Fsync { fd, .. } => kernel.sync(cred, &self.fd(*fd)?).await.map(done),
            Op::Fsyncdir { path } => kernel.sync_directory(cred, &self.full(path)).await.map(done),
            Op::Syncfs => kernel.sync_all(cred).await.map(done),
            // The call waits only a limited time for a missing server.
            Op::Statfs => match kernel.plain(cred, Call::Statfs { ino: 1 }).await {
                Ok(Answer::Space { blocks, free, available, files, files_free, .. })
                    if available > free || free > blocks || files_free > files =>
                {
                    Err(Fail::Errno(Errno::EPROTO))
                }
                Ok(_) | Err(Fail::Errno(Errno::ETIMEDOUT)) => Ok(Returned::Done),
                Err(other) => Err(other),
            },
            Op::PathToFid { path } => {
                kernel.fid_of(cred, &self.full(path)).await.map(|fid| Returned::Opened(fid.ino()))
            }
            Op::SetDefault { path, wish, depth } => {
                let default = wish.as_ref().map(|wish| DirDefault {
                    count: if wish.mdts.len() > 1 { -1 } else { 0 },
                    mdts: wish.mdts.clone(),
                    hash: wish.hash,
                    max_inherit: *depth,
                    ..DirDefault::default()
                });
                let call = |ino| Call::SetDirDefault { ino, default: default.clone().map(Box::new) };
                kernel.about(cred, &self.full(path), call).await.map(|_| Returned::Done)
            }
            Op::SetStripe { path, size, count, first } => {
                let (stripe_size, want_count, want_first) = (*size, *count, *first);
                let wish = || Layout { stripe_size, want_count, want_first, ..Layout::default() };
                let call = |ino| Call::SetLayout { ino, wish: wish() };
                kernel.about(cred, &self.full(path), call).await.map(|_| Returned::Done)
            }
        }
    }
}

fn data(answer: Answer) -> SysResult<Bytes> {
    match answer {
        Answer::Data(data) => Ok(data),
        _ => Err(Fail::Errno(Errno::EPROTO)),
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::rc::Rc;
    use stdx::Rng;

    use super::*;
    use crate::plan::Plan;
    use crate::sched::Sched;

    #[test]
    fn a_program_gets_no_result_after_its_machine_died() {
        let sched = Sched::new();
        let kernel = Kernel::new(sched.clone(), 0, &Plan::still(0), Rng::new(0));
        let results = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..2 {
            let (own, results) = (kernel.clone(), results.clone());
            sched.spawn("a program", async move {
                let mut files = BTreeMap::new();
                let mut executor = OpExecutor { kernel: &own, base: &[], files: &mut files, blind: false };
                // The kernel answers this call itself.
                let result = executor.perform(&Op::Fstat { fd: 1 }, &Cred::default()).await;
                results.borrow_mut().push(result.map(drop));
            });
            sched.run();
            kernel.die();
        }
        assert_eq!(*results.borrow(), [Err(Fail::Errno(Errno::EBADF)), Err(Fail::Dead)]);
    }
}
