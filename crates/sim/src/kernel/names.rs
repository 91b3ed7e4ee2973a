//! Paths, and operations on names.

use client::api::{Answer, Call, DirectoryEntry, FileHandle, NewDir, SetStat, SetTime, Stat};
use proto::msg::Cred;
use proto::{Bytes, Errno, Fid};

use super::{CachedName, Fd, Kernel, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, SysResult, unexpected};
use crate::model::{ACCESS, List, is_list};
use crate::sched::Fail;

/// A path from the root, component by component.
pub(super) type Path = [Bytes];

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenHow {
    /// `O_*`.
    pub flags: u32,
    /// Permission bits of a new file.
    pub mode: u32,
    /// With `O_CREAT`: send the create without looking up the name first.
    pub blind: bool,
}

/// `O_ACCMODE`.
pub(super) const O_ACCMODE: u32 = 3;
/// `O_CREAT`.
pub(super) const O_CREAT: u32 = 0o100;
/// `O_EXCL`.
pub(super) const O_EXCL: u32 = 0o200;
/// `O_TRUNC`.
pub(super) const O_TRUNC: u32 = 0o1000;

/// As in Linux: a path walk that met a stale node is repeated once, with a new lookup of every name. (A program that waits for
/// disk space repeats its call.)
macro_rules! fresh_if_stale {
    ($kernel:ident, $paths:expr, $fresh:ident => $body:expr) => {{
        let _walk = $kernel.begin_walk();
        let mut $fresh = false;
        loop {
            let (pauses, began) = ($kernel.pauses(), $kernel.0.sched.now());
            let result = async { $body }.await;
            match result {
                Err(Fail::Errno(Errno::ESTALE))
                    if !$fresh || $kernel.pauses() != pauses || $kernel.others_moved(&$paths, began) =>
                {
                    $fresh = true;
                }
                other => break other,
            }
        }
    }};
}

/// Whether the permission bits allow an access by a caller who is not root.
fn has_bits(stat: &Stat, cred: &Cred, mask: u32) -> bool {
    let bits = match () {
        () if cred.uid == stat.uid => stat.mode >> 6,
        () if cred.gid == stat.gid || cred.groups.contains(&stat.gid) => stat.mode >> 3,
        () => stat.mode,
    };
    bits & mask == mask
}

impl Kernel {
    /// The inode of a name in a directory.
    async fn child(&self, cred: &Cred, parent: u64, name: &Bytes, fresh: bool) -> SysResult<u64> {
        let known = self.caches().names.get(&(parent, name.clone())).copied();
        if let Some(CachedName { ino, valid: true }) = known
            && !fresh
            && !self.is_invalidating(parent, name)
        {
            return Ok(ino);
        }
        let started = self.version();
        match self.ask(cred, Call::Lookup { parent, name: name.clone() }).await {
            Ok(Answer::Entry(stat)) => {
                let covered = stat.entry_cacheable;
                self.enter(parent, name, &stat, started, covered);
                Ok(stat.ino)
            }
            Ok(other) => Err(unexpected(&other)),
            Err(fail) => {
                self.drop_name(parent, name);
                Err(fail)
            }
        }
    }

    async fn search(&self, cred: &Cred, dir: u64) -> SysResult<()> {
        if dir != 1 && self.inode(dir, |inode| inode.kind) != S_IFDIR {
            return Err(Errno::ENOTDIR.into());
        }
        self.permission(cred, dir, 1).await
    }

    /// Checks whether the caller has these permissions, as Linux does for a mount with `default_permissions`.
    async fn permission(&self, cred: &Cred, ino: u64, mask: u32) -> SysResult<()> {
        if cred.uid == 0 {
            return Ok(());
        }
        if self.0.lists {
            return self.permission_by_list(cred, ino, mask).await;
        }
        let had = self.inode(ino, |inode| inode.attr.is_some());
        let mut stat = self.attr(cred, ino, None).await?;
        if had && !has_bits(&stat, cred, mask) {
            // The cached attributes may be stale: Linux requests them again before it refuses.
            self.inode(ino, |inode| inode.attr = None);
            stat = self.attr(cred, ino, None).await?;
        }
        if has_bits(&stat, cred, mask) { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    /// The same where an access list may exist. Linux caches lists, and requests one separately from the attributes; the stand-in
    /// repeats the requests until both are of the same moment, so that the kernel's own races do not hide real defects.
    async fn permission_by_list(&self, cred: &Cred, ino: u64, mask: u32) -> SysResult<()> {
        loop {
            self.inode(ino, |inode| inode.attr = None);
            let stat = self.attr(cred, ino, None).await?;
            let list = Call::Getxattr { ino, name: Bytes::from_static(ACCESS) };
            let list = match self.ask(cred, list).await {
                Ok(Answer::Data(value)) => Some(List::read(&value)),
                Err(Fail::Errno(Errno::ENODATA | Errno::EOPNOTSUPP)) => None,
                Ok(other) => return Err(unexpected(&other)),
                Err(fail) => return Err(fail),
            };
            self.inode(ino, |inode| inode.attr = None);
            let then = self.attr(cred, ino, None).await?;
            if (stat.mode, stat.uid, stat.gid, stat.ctime_ns) != (then.mode, then.uid, then.gid, then.ctime_ns) {
                continue;
            }
            let allowed = match list {
                Some(list) => list.allows((stat.uid, stat.gid), cred, mask),
                None => has_bits(&stat, cred, mask),
            };
            return if allowed { Ok(()) } else { Err(Errno::EACCES.into()) };
        }
    }

    /// Only the owner may set extended attributes of the namespace `user` on a sticky directory.
    async fn xattr_sticky(&self, cred: &Cred, ino: u64) -> SysResult<()> {
        if cred.uid != 0 && self.inode(ino, |inode| inode.kind) == S_IFDIR {
            let stat = self.attr(cred, ino, None).await?;
            if stat.mode & 0o1000 != 0 && stat.uid != cred.uid {
                return Err(Errno::EPERM.into());
            }
        }
        Ok(())
    }

    async fn resolve(&self, cred: &Cred, path: &Path, fresh: bool) -> SysResult<u64> {
        self.shrink();
        let mut dir = 1;
        for name in path {
            self.search(cred, dir).await?;
            let gate = self.gate(dir, false).await;
            let child = self.child(cred, dir, name, fresh).await;
            drop(gate);
            dir = child?;
        }
        Ok(dir)
    }

    /// The parent directory and the last name of a path, after checking search permission.
    async fn parent<'p>(&self, cred: &Cred, path: &'p Path, fresh: bool) -> SysResult<(u64, &'p Bytes)> {
        let Some((name, dirs)) = path.split_last() else { return Err(Errno::EBUSY.into()) };
        let dir = self.resolve(cred, dirs, fresh).await?;
        self.search(cred, dir).await?;
        Ok((dir, name))
    }

    /// Looks up a name before it is made or removed, as Linux does.
    async fn lookup(&self, cred: &Cred, dir: u64, name: &Bytes, fresh: bool) -> SysResult<Option<u64>> {
        match self.child(cred, dir, name, fresh).await {
            Ok(ino) => Ok(Some(ino)),
            Err(Fail::Errno(Errno::ENOENT)) => Ok(None),
            Err(fail) => Err(fail),
        }
    }

    /// `stat` without following links.
    pub async fn stat(&self, cred: &Cred, path: &Path) -> SysResult<Stat> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            self.attr(cred, ino, None).await
        })
    }

    /// `fstat`.
    pub async fn fstat(&self, cred: &Cred, fd: &Fd) -> SysResult<Stat> {
        self.attr(cred, fd.ino, Some(fd.fh)).await
    }

    async fn make(&self, cred: &Cred, path: &Path, blind: bool, call: impl Fn(u64, Bytes) -> Call) -> SysResult<Stat> {
        fresh_if_stale!(self, [path], fresh => {
            let (dir, name) = self.parent(cred, path, fresh).await?;
            let _gate = self.gate_to_change(dir).await?;
            if !blind && self.lookup(cred, dir, name, fresh).await?.is_some() {
                return_err(Errno::EEXIST)?;
            }
            let started = self.version();
            match self.ask(cred, call(dir, name.clone())).await? {
                Answer::Entry(stat) => {
                    let covered = stat.entry_cacheable;
                    self.enter(dir, name, &stat, started, covered);
                    self.touched(dir);
                    Ok(stat)
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    /// `mkdir`; with `blind`, without looking up the name first.
    pub async fn mkdir(&self, cred: &Cred, path: &Path, mode: u32, blind: bool) -> SysResult<Stat> {
        self.make(cred, path, blind, |parent, name| Call::Mkdir { parent, name, mode }).await
    }

    /// `mkdir` on these metadata targets.
    /// Its program asks the file system and not the kernel (`lfs mkdir -i`), which only walks to the directory above.
    pub async fn mkdir_on(&self, cred: &Cred, path: &Path, mode: u32, wish: &NewDir) -> SysResult<u64> {
        fresh_if_stale!(self, [path], fresh => {
            let (parent, name) = self.parent(cred, path, fresh).await?;
            match self.ask(cred, Call::MkdirOn { parent, name: name.clone(), mode, wish: wish.clone() }).await? {
                Answer::Fid(fid) => Ok(fid.ino()),
                other => Err(unexpected(&other)),
            }
        })
    }

    /// `mknod`.
    pub async fn mknod(&self, cred: &Cred, path: &Path, mode: u32, rdev: u64, blind: bool) -> SysResult<Stat> {
        self.make(cred, path, blind, |parent, name| Call::Mknod { parent, name, mode, rdev }).await
    }

    /// `symlink`.
    pub async fn symlink(&self, cred: &Cred, path: &Path, target: &Bytes, blind: bool) -> SysResult<Stat> {
        self.make(cred, path, blind, |parent, name| Call::Symlink { parent, name, target: target.clone() }).await
    }

    /// `link`.
    pub async fn link(&self, cred: &Cred, from: &Path, to: &Path) -> SysResult<()> {
        fresh_if_stale!(self, [from, to], fresh => {
            let ino = self.resolve(cred, from, fresh).await?;
            let (dir, name) = self.parent(cred, to, fresh).await?;
            let _gate = self.gate_to_change(dir).await?;
            if self.lookup(cred, dir, name, fresh).await?.is_some() {
                return_err(Errno::EEXIST)?;
            }
            // Linux locks the inode that is linked, so that its attributes do not change meanwhile.
            let is_dir = self.inode(ino, |inode| inode.kind) == S_IFDIR;
            let _linked = if is_dir { None } else { Some(self.gate(ino, true).await) };
            let started = self.version();
            match self.ask(cred, Call::Link { ino, new_parent: dir, new_name: name.clone() }).await? {
                Answer::Entry(stat) => {
                    let covered = stat.entry_cacheable;
                    self.enter(dir, name, &stat, started, covered);
                    // Linux takes the attributes in the reply to a link without regard to later changes.
                    self.inode(ino, |inode| inode.attr = stat.cacheable.then(|| stat.clone()));
                    self.touched(dir);
                    Ok(())
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    /// Requests that names are removed or renamed. If the program is killed meanwhile, the outcome is unknown, and Linux drops
    /// the names.
    async fn ask_about(&self, cred: &Cred, call: Call, names: &[(u64, &Bytes)]) -> SysResult<Answer> {
        let answer = self.ask(cred, call).await;
        if let Err(Fail::Killed(_) | Fail::Errno(Errno::EINTR | Errno::ENOENT)) = answer {
            names.iter().for_each(|(dir, name)| self.drop_name(*dir, name));
        }
        answer
    }

    /// `unlink` and `rmdir`.
    pub async fn remove(&self, cred: &Cred, path: &Path, directory: bool, blind: bool) -> SysResult<()> {
        fresh_if_stale!(self, [path], fresh => {
            let (dir, name) = self.parent(cred, path, fresh).await?;
            let _gate = self.gate_to_change(dir).await?;
            let mut victim = None;
            if !blind {
                victim = self.lookup(cred, dir, name, fresh).await?;
                if victim.is_none() {
                    return_err(Errno::ENOENT)?;
                }
            }
            // Linux locks the inode that is removed, so that nothing in it, and none of its attributes, changes meanwhile.
            let removed = victim.or_else(|| self.caches().names.get(&(dir, name.clone())).map(|name| name.ino));
            let _removed = match removed {
                Some(ino) => Some(self.gate(ino, true).await),
                None => None,
            };
            let call = if directory {
                Call::Rmdir { parent: dir, name: name.clone() }
            } else {
                Call::Unlink { parent: dir, name: name.clone() }
            };
            self.ask_about(cred, call, &[(dir, name)]).await?;
            self.touched(dir);
            if blind {
                self.touched_blindly();
            }
            let known = self.caches().names.get(&(dir, name.clone())).map(|name| name.ino);
            if let Some(ino) = victim.or(known) {
                self.touched(ino);
                self.inode(ino, |inode| inode.removed |= directory);
            }
            self.drop_name(dir, name);
            Ok(())
        })
    }

    /// `renameat2`.
    pub async fn rename(&self, cred: &Cred, from: &Path, to: &Path, flags: u32, blind: bool) -> SysResult<()> {
        fresh_if_stale!(self, [from, to], fresh => {
            let (dir, name) = self.parent(cred, from, fresh).await?;
            let (new_dir, new_name) = self.parent(cred, to, fresh).await?;
            let _gates = self.gates_to_rename(dir, new_dir).await?;
            if !blind {
                if self.lookup(cred, dir, name, fresh).await?.is_none() {
                    return_err(Errno::ENOENT)?;
                }
                let there = self.lookup(cred, new_dir, new_name, fresh).await?;
                if flags & 1 != 0 && there.is_some() {
                    return_err(Errno::EEXIST)?;
                }
                if flags & 2 != 0 && there.is_none() {
                    return_err(Errno::ENOENT)?;
                }
            }
            let call = Call::Rename {
                parent: dir,
                name: name.clone(),
                new_parent: new_dir,
                new_name: new_name.clone(),
                flags,
            };
            self.ask_about(cred, call, &[(dir, name), (new_dir, new_name)]).await?;
            if blind {
                // The target was not looked up: it may have been another name of the same file.
                self.touched(dir);
                self.touched(new_dir);
                self.drop_name(dir, name);
                self.drop_name(new_dir, new_name);
                self.touched_blindly();
            } else {
                self.renamed((dir, name), (new_dir, new_name), flags & 2 != 0);
            }
            Ok(())
        })
    }

    fn renamed(&self, from: (u64, &Bytes), to: (u64, &Bytes), exchange: bool) {
        self.touched(from.0);
        self.touched(to.0);
        let (old, new) = ((from.0, from.1.clone()), (to.0, to.1.clone()));
        let (moved, there) = {
            let mut caches = self.caches_mut();
            (caches.names.remove(&old), caches.names.remove(&new))
        };
        for name in [moved, there].into_iter().flatten() {
            self.touched(name.ino);
        }
        let mut caches = self.caches_mut();
        match (moved, there) {
            (Some(moved), Some(there)) if moved.ino == there.ino => {
                // Two names of one inode: nothing was renamed.
                caches.names.insert(old, moved);
                caches.names.insert(new, there);
            }
            (moved, there) => {
                if let Some(moved) = moved {
                    caches.names.insert(new, moved);
                }
                if let Some(there) = there {
                    if exchange {
                        caches.names.insert(old, there);
                    } else {
                        drop(caches);
                        self.maybe_evict(there.ino);
                    }
                }
            }
        }
    }

    /// `readlink`.
    pub async fn readlink(&self, cred: &Cred, path: &Path) -> SysResult<Bytes> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            if self.inode(ino, |inode| inode.kind) != S_IFLNK {
                return_err(Errno::EINVAL)?;
            }
            match self.ask(cred, Call::Readlink { ino }).await? {
                Answer::Data(target) => Ok(target),
                other => Err(unexpected(&other)),
            }
        })
    }

    /// `chmod`, `chown`, `utimensat`, `truncate` by path.
    pub async fn setattr(&self, cred: &Cred, path: &Path, set: &SetStat) -> SysResult<()> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            if set.size.is_some() {
                match self.inode(ino, |inode| inode.kind) {
                    S_IFDIR => return_err(Errno::EISDIR)?,
                    S_IFREG => {}
                    _ => return_err(Errno::EINVAL)?,
                }
            }
            self.may_set(cred, ino, set).await?;
            self.set(cred, ino, set.clone()).await
        })
    }

    /// Checks whether the caller may change these attributes, as Linux does for a mount with `default_permissions`
    /// (`setattr_prepare`). The file system gets no request for a change that Linux refuses. Sizes are checked by the file
    /// system.
    async fn may_set(&self, cred: &Cred, ino: u64, set: &SetStat) -> SysResult<()> {
        if cred.uid == 0 || set.size.is_some() {
            return Ok(());
        }
        let had = self.inode(ino, |inode| inode.attr.is_some());
        let mut stat = self.attr(cred, ino, None).await?;
        if had && stat.uid != cred.uid {
            // As with permissions, the cached attributes may be stale.
            self.inode(ino, |inode| inode.attr = None);
            stat = self.attr(cred, ino, None).await?;
        }
        let owns = stat.uid == cred.uid;
        let is_member = |gid: u32| gid == stat.gid || gid == cred.gid || cred.groups.contains(&gid);
        let chown =
            set.uid.is_some_and(|uid| !owns || uid != stat.uid) || set.gid.is_some_and(|gid| !owns || !is_member(gid));
        let now = (set.atime, set.mtime) == (Some(SetTime::Now), Some(SetTime::Now));
        let times = !owns && !now && (set.atime.is_some() || set.mtime.is_some());
        if chown || times || set.mode.is_some() && !owns {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    /// Changes attributes of an inode.
    pub(super) async fn set(&self, cred: &Cred, ino: u64, set: SetStat) -> SysResult<()> {
        let _gate = self.gate(ino, true).await;
        let size = set.size;
        let result = self.ask(cred, Call::Setattr { ino, set }).await;
        self.touched(ino);
        match result? {
            Answer::Attr(stat) => {
                if let Some(size) = size {
                    self.inode(ino, |inode| inode.set_size(size));
                }
                let started = self.version();
                self.learn(&stat, started);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// `open` of a file.
    pub async fn open(&self, cred: &Cred, path: &Path, how: OpenHow) -> SysResult<Fd> {
        fresh_if_stale!(self, [path], fresh => {
            if how.flags & O_CREAT == 0 {
                let ino = self.resolve(cred, path, fresh).await?;
                self.open_inode(cred, ino, how.flags).await
            } else {
                self.create(cred, path, how, fresh).await
            }
        })
    }

    async fn create(&self, cred: &Cred, path: &Path, how: OpenHow, fresh: bool) -> SysResult<Fd> {
        let (dir, name) = self.parent(cred, path, fresh).await?;
        let gate = self.gate_to_change(dir).await?;
        if (fresh || !how.blind)
            && let Some(ino) = self.lookup(cred, dir, name, fresh).await?
        {
            drop(gate);
            if how.flags & O_EXCL != 0 {
                return Err(Errno::EEXIST.into());
            }
            if self.inode(ino, |inode| inode.kind) == S_IFDIR {
                return Err(Errno::EISDIR.into());
            }
            return self.open_inode(cred, ino, how.flags & !(O_CREAT | O_EXCL)).await;
        }
        let started = self.version();
        let call = Call::Create { parent: dir, name: name.clone(), mode: how.mode, flags: how.flags };
        match self.ask(cred, call).await? {
            Answer::Created { stat, fh, direct_io, no_flush } => {
                let covered = stat.cacheable && stat.entry_cacheable;
                let stat = Stat { cacheable: covered, ..stat };
                self.enter(dir, name, &stat, started, covered);
                self.touched(dir);
                if how.blind {
                    self.inode(stat.ino, |inode| inode.set_size(stat.size));
                    self.drop_pages(stat.ino, 0, u64::MAX).await;
                    self.touched_blindly();
                }
                Ok(self.opened(stat.ino, fh, how.flags, direct_io, no_flush))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Opens an open file again by its number: `/proc/self/fd`.
    pub async fn reopen(&self, cred: &Cred, fd: &Fd, flags: u32) -> SysResult<Fd> {
        self.open_inode(cred, fd.ino, flags).await
    }

    async fn open_inode(&self, cred: &Cred, ino: u64, flags: u32) -> SysResult<Fd> {
        match self.inode(ino, |inode| inode.kind) {
            S_IFREG => {}
            S_IFDIR if flags & O_ACCMODE != 0 || flags & O_TRUNC != 0 => return Err(Errno::EISDIR.into()),
            S_IFLNK => return Err(Errno::ELOOP.into()),
            kind => {
                // Opening a pipe or device does not concern the file system: there is no peer, so a permitted open fails with
                // `ENXIO`. And the simulated programs never open a directory as a file.
                let mask = [4, 2, 6, 6][(flags & O_ACCMODE) as usize] | if flags & O_TRUNC != 0 { 2 } else { 0 };
                self.permission(cred, ino, mask).await?;
                return Err(if kind == S_IFDIR { Errno::EISDIR } else { Errno::ENXIO }.into());
            }
        }
        match self.ask(cred, Call::Open { ino, flags }).await? {
            Answer::Opened { fh, keep_cache, direct_io, no_flush } => {
                if flags & O_TRUNC != 0 {
                    self.inode(ino, |inode| inode.set_size(0));
                    self.touched(ino);
                }
                let fd = self.opened(ino, fh, flags, direct_io, no_flush);
                if !keep_cache && !direct_io {
                    self.drop_pages(ino, 0, u64::MAX).await;
                }
                Ok(fd)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// All entries of a directory except `.` and `..`, read in parts of about `bytes`.
    pub async fn list(&self, cred: &Cred, path: &Path, plus: bool, bytes: u32) -> SysResult<Vec<DirectoryEntry>> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            if ino != 1 && self.inode(ino, |inode| inode.kind) != S_IFDIR {
                return_err(Errno::ENOTDIR)?;
            }
            let fh = self.open_directory(cred, ino).await?;
            let mut all = Vec::new();
            let mut offset = 0;
            let result = loop {
                match self.list_piece(cred, ino, fh, offset, plus, bytes).await {
                    Ok(piece) => {
                        let Some(last) = piece.last() else { break Ok(()) };
                        offset = last.offset;
                        all.extend(piece);
                    }
                    Err(fail) => {
                        if let Err(fail) = self.continues_after(offset != 0, fail) {
                            break Err(fail);
                        }
                    }
                }
            };
            self.close_directory(cred, ino, fh);
            result?;
            all.retain(|entry| !matches!(&entry.name[..], b"." | b".."));
            Ok(all)
        })
    }

    /// The entries of a directory except `.` and `..` that a single request returns.
    pub async fn list_at_once(&self, cred: &Cred, path: &Path, plus: bool) -> SysResult<Vec<DirectoryEntry>> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            if ino != 1 && self.inode(ino, |inode| inode.kind) != S_IFDIR {
                return_err(Errno::ENOTDIR)?;
            }
            let fh = self.open_directory(cred, ino).await?;
            let piece = self.list_piece(cred, ino, fh, 0, plus, 64 << 10).await;
            self.close_directory(cred, ino, fh);
            let mut entries = piece?;
            entries.retain(|entry| !matches!(&entry.name[..], b"." | b".."));
            Ok(entries)
        })
    }

    /// `opendir` of an inode.
    pub async fn open_directory(&self, cred: &Cred, ino: u64) -> SysResult<FileHandle> {
        match self.ask(cred, Call::Opendir { ino }).await? {
            Answer::Opened { fh, .. } => {
                self.inode(ino, |inode| inode.opens += 1);
                Ok(fh)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// `closedir`.
    pub fn close_directory(&self, _cred: &Cred, ino: u64, fh: FileHandle) {
        self.inode(ino, |inode| inode.opens = inode.opens.saturating_sub(1));
        self.0.sched.post(self.0.client, Call::Releasedir { fh });
    }

    /// Entries after a cookie, as the client returns them.
    pub async fn list_piece(
        &self,
        cred: &Cred,
        dir: u64,
        fh: FileHandle,
        offset: u64,
        plus: bool,
        max_bytes: u32,
    ) -> SysResult<Vec<DirectoryEntry>> {
        let _gate = self.gate(dir, false).await;
        let started = self.version();
        match self.ask(cred, Call::Readdir { fh, offset, max_bytes, plus }).await? {
            Answer::Entries(entries) => {
                for entry in &entries {
                    if let Some(stat) = &entry.stat
                        && !matches!(&entry.name[..], b"." | b"..")
                    {
                        let covered = stat.cacheable && stat.entry_cacheable;
                        let stat = Stat { cacheable: covered, ..stat.clone() };
                        self.enter(dir, &entry.name, &stat, started, covered);
                    }
                }
                Ok(entries)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// A call about the node at a path.
    pub async fn about(&self, cred: &Cred, path: &Path, call: impl Fn(u64) -> Call) -> SysResult<Answer> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            let call = call(ino);
            let kind = self.inode(ino, |inode| inode.kind);
            let has_user = ino == 1 || matches!(kind, S_IFREG | S_IFDIR);
            match &call {
                Call::Setxattr { name, .. } | Call::Removexattr { name, .. } | Call::Getxattr { name, .. }
                    if is_list(name) && kind == S_IFLNK =>
                {
                    return_err(Errno::EOPNOTSUPP)?;
                }
                // The file system makes all checks for access lists.
                Call::Setxattr { name, .. } | Call::Removexattr { name, .. } | Call::Getxattr { name, .. }
                    if is_list(name) => {}
                Call::Setxattr { .. } | Call::Removexattr { .. } if !has_user => return_err(Errno::EPERM)?,
                Call::Getxattr { .. } if !has_user => return_err(Errno::ENODATA)?,
                Call::Setxattr { .. } | Call::Removexattr { .. } => {
                    self.xattr_sticky(cred, ino).await?;
                    self.permission(cred, ino, 2).await?;
                }
                Call::Getxattr { .. } => self.permission(cred, ino, 4).await?,
                // For root the check has special cases, which the client decides.
                Call::Access { mask, .. } if cred.uid != 0 => {
                    self.permission(cred, ino, *mask).await?;
                    return Ok(Answer::Done);
                }
                _ => {}
            }
            let changes = matches!(call, Call::Setxattr { .. } | Call::Removexattr { .. } | Call::SetLayout { .. });
            let _gate = self.gate(ino, changes).await;
            let answer = self.ask(cred, call).await;
            if changes {
                self.touched(ino);
            }
            answer
        })
    }

    /// `fsync` of a directory.
    pub async fn sync_directory(&self, cred: &Cred, path: &Path) -> SysResult<()> {
        fresh_if_stale!(self, [path], fresh => {
            let ino = self.resolve(cred, path, fresh).await?;
            if ino != 1 && self.inode(ino, |inode| inode.kind) != S_IFDIR {
                return_err(Errno::ENOTDIR)?;
            }
            let fh = self.open_directory(cred, ino).await?;
            let result = self.ask(cred, Call::Fsyncdir { fh }).await;
            self.close_directory(cred, ino, fh);
            result.map(drop)
        })
    }

    /// `syncfs`.
    pub async fn sync_all(&self, cred: &Cred) -> SysResult<()> {
        self.write_back_everything(cred).await?;
        self.ask(cred, Call::Syncfs).await.map(drop)
    }

    /// A call without an inode.
    pub async fn plain(&self, cred: &Cred, call: Call) -> SysResult<Answer> {
        self.ask(cred, call).await
    }

    /// `lfs path2fid`.
    pub async fn fid_of(&self, cred: &Cred, path: &Path) -> SysResult<Fid> {
        match self.about(cred, path, |ino| Call::PathToFid { ino }).await? {
            Answer::Fid(fid) => Ok(fid),
            other => Err(unexpected(&other)),
        }
    }

    /// The type bits of an inode.
    pub fn kind_of(&self, stat: &Stat) -> u32 {
        stat.mode & S_IFMT
    }
}

fn return_err(errno: Errno) -> SysResult<()> {
    Err(Fail::Errno(errno))
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::rc::Rc;
    use stdx::Rng;

    use super::*;
    use crate::plan::Plan;
    use crate::sched::Sched;

    /// A listing of three parts, the last of which is empty: a signal before the first part ends it, a later one does not.
    #[test]
    fn a_listing_ends_with_a_signal_only_if_nothing_was_read() {
        let list = |interrupted: &[usize]| {
            let sched = Sched::new();
            let plan = Plan { signals: 1, ..Plan::still(0) };
            let kernel = Kernel::new(sched.clone(), 0, &plan, Rng::new(0)).with_signals();
            let result = Rc::new(RefCell::new(None));
            let listing = result.clone();
            sched.spawn("a program", async move {
                let listed = kernel.list(&Cred::default(), &Vec::new(), false, 4096).await;
                *listing.borrow_mut() = Some(listed.map(|entries| entries.len()));
            });
            let mut asked = Vec::new();
            while result.borrow().is_none() {
                sched.run();
                for request in sched.take_requests() {
                    let entry = |offset| DirectoryEntry {
                        name: Bytes::from(format!("{offset}")),
                        ino: 100 + offset,
                        kind: 8,
                        offset,
                        stat: None,
                    };
                    let answer = match request.call {
                        Call::Opendir { .. } => {
                            let (keep_cache, direct_io, no_flush) = (false, false, true);
                            Ok(Answer::Opened { fh: FileHandle(1), keep_cache, direct_io, no_flush })
                        }
                        Call::Readdir { offset, .. } => {
                            asked.push(offset);
                            match interrupted.contains(&asked.len()) {
                                true => Err(Errno::EINTR.into()),
                                false if offset < 2 => Ok(Answer::Entries(vec![entry(offset + 1)])),
                                false => Ok(Answer::Entries(Vec::new())),
                            }
                        }
                        Call::Releasedir { .. } => continue,
                        other => panic!("{other:?}"),
                    };
                    sched.answer(request.id, answer);
                }
            }
            (result.take(), asked)
        };
        assert_eq!(list(&[]), (Some(Ok(2)), vec![0, 1, 2]));
        assert_eq!(list(&[1]), (Some(Err(Fail::Errno(Errno::EINTR))), vec![0]));
        assert_eq!(list(&[2, 4]), (Some(Ok(2)), vec![0, 1, 1, 2, 2]));
    }
}
