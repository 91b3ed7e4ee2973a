//! The tree: names, attributes and extended attributes.

use std::collections::BTreeMap;
use std::rc::Rc;

use client::api::SetTime;
use proto::msg::Cred;
use proto::{Bytes, Errno};

use super::access::{EXECUTE, READ, WRITE, is_owner, may, may_delete, mode_after_chmod, mode_after_chown};
use super::list::is_list;
use super::{
    Body, Expected, Home, HomeDefault, Id, Inode, Model, NAME_MAX, Path, ROOT, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT,
    S_IFREG, S_ISVTX, TimeRange,
};

type Outcome = Result<Expected, Errno>;

impl Model {
    fn child(&self, dir: Id, name: &Bytes) -> Result<Option<Id>, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.entries(dir).get(name).copied())
    }

    fn search(&self, cred: &Cred, dir: Id) -> Result<(), Errno> {
        if !self.inode(dir).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if self.searched {
            return Ok(());
        }
        may(self.inode(dir), cred, EXECUTE)
    }

    /// Whether the caller may search the directories of a path, as far as they exist.
    pub(crate) fn may_search(&self, cred: &Cred, path: &Path) -> Result<(), Errno> {
        match self.parent(cred, path) {
            Err(Errno::EACCES) => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }

    /// Resolves a path without following a symbolic link at its end.
    pub(crate) fn walk(&self, cred: &Cred, path: &Path) -> Result<Id, Errno> {
        let mut at = ROOT;
        for name in path {
            self.search(cred, at)?;
            at = self.child(at, name)?.ok_or(Errno::ENOENT)?;
        }
        Ok(at)
    }

    pub(crate) fn parent<'p>(&self, cred: &Cred, path: &'p Path) -> Result<(Id, &'p Bytes), Errno> {
        let (name, dirs) = path.split_last().ok_or(Errno::EBUSY)?;
        let dir = self.walk(cred, &dirs.to_vec())?;
        self.search(cred, dir)?;
        Ok((dir, name))
    }

    /// Sets the times of a directory that changed.
    pub(super) fn stamp(&mut self, id: Id, when: TimeRange) {
        let inode = self.change(id);
        inode.mtime = when;
        inode.ctime = when;
    }

    pub(super) fn insert(&mut self, dir: Id, name: &Bytes, id: Id) {
        if let Body::Directory { entries, .. } = &mut self.change(dir).body {
            entries.insert(name.clone(), id);
        }
    }

    fn take(&mut self, dir: Id, name: &Bytes) {
        if let Body::Directory { entries, .. } = &mut self.change(dir).body {
            entries.remove(name);
        }
    }

    /// Makes a new object under a free name.
    pub(super) fn create_object(
        &mut self,
        cred: &Cred,
        dir: Id,
        name: &Bytes,
        mode: u32,
        body: Body,
        when: TimeRange,
    ) -> Id {
        let asked = mode;
        let (uid, gid, mode) = match mode & S_IFMT {
            S_IFLNK => {
                let (uid, gid, _) = self.new_owner_and_mode(self.inode(dir), cred, mode);
                (uid, gid, S_IFLNK | 0o777)
            }
            _ => self.new_owner_and_mode(self.inode(dir), cred, mode),
        };
        let is_dir = mode & S_IFMT == S_IFDIR;
        let lists = super::list::inherited(self.inode(dir), asked).map(|(_, lists)| lists).unwrap_or_default();
        let id = self.add(Inode {
            mode,
            uid,
            gid,
            nlink: if is_dir { 2 } else { 1 },
            mtime: when,
            set_mtime: None,
            ctime: when,
            atime: None,
            accessed: false,
            xattrs: lists.into_iter().collect(),
            body,
            home: Home::one(self.inode(dir).home.of_name(name)),
            default: None,
        });
        self.insert(dir, name, id);
        self.stamp(dir, when);
        if is_dir {
            self.change(dir).nlink += 1;
        }
        id
    }

    fn make(&mut self, cred: &Cred, path: &Path, mode: u32, body: impl FnOnce(Id) -> Body, when: TimeRange) -> Outcome {
        let (dir, name) = self.parent(cred, path)?;
        if self.child(dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        may(self.inode(dir), cred, WRITE | EXECUTE)?;
        let kind = mode & S_IFMT;
        let body = body(dir);
        // Any user may make a whiteout: it gives no access to a device.
        let is_whiteout = kind == S_IFCHR && body == Body::Special { rdev: 0 };
        if matches!(kind, S_IFCHR | 0o060_000) && !is_whiteout && cred.uid != 0 {
            return Err(Errno::EPERM);
        }
        Ok(Expected::Inode(self.create_object(cred, dir, name, mode, body, when)))
    }

    /// Makes a directory, on the target of its name or on others.
    pub(super) fn mkdir(
        &mut self,
        cred: &Cred,
        path: &Path,
        mode: u32,
        home: Option<Home>,
        when: TimeRange,
    ) -> Outcome {
        let body = |parent| Body::Directory { entries: BTreeMap::new(), parent };
        let default = self.parent(cred, path).ok().and_then(|(dir, _)| self.inode(dir).default.clone());
        let made = self.make(cred, path, S_IFDIR | mode & (0o777 | S_ISVTX), body, when);
        if let Ok(Expected::Inode(id)) = &made {
            let inode = self.change(*id);
            if let Some(home) = home.or(default.as_ref().map(|default| default.home.clone())) {
                inode.home = home;
            }
            inode.default = default.and_then(HomeDefault::below);
        }
        made
    }

    pub(super) fn mknod(&mut self, cred: &Cred, path: &Path, mode: u32, rdev: u64, when: TimeRange) -> Outcome {
        let body = |_| if mode & S_IFMT == S_IFREG { Body::File(Rc::default()) } else { Body::Special { rdev } };
        self.make(cred, path, mode, body, when)
    }

    pub(super) fn symlink(&mut self, cred: &Cred, path: &Path, target: &Bytes, when: TimeRange) -> Outcome {
        self.make(cred, path, S_IFLNK | 0o777, |_| Body::Symlink(target.clone()), when)
    }

    pub(super) fn link(&mut self, cred: &Cred, from: &Path, to: &Path, when: TimeRange) -> Outcome {
        let id = self.walk(cred, from)?;
        let (dir, name) = self.parent(cred, to)?;
        if self.child(dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        may(self.inode(dir), cred, WRITE | EXECUTE)?;
        if self.inode(id).is_dir() {
            return Err(Errno::EPERM);
        }
        self.insert(dir, name, id);
        self.stamp(dir, when);
        let inode = self.change(id);
        inode.nlink += 1;
        inode.ctime = when;
        Ok(Expected::Done)
    }

    pub(super) fn remove(&mut self, cred: &Cred, path: &Path, directory: bool, when: TimeRange) -> Outcome {
        let (dir, name) = self.parent(cred, path)?;
        let victim = self.child(dir, name)?.ok_or(Errno::ENOENT)?;
        may_delete(self.inode(dir), self.inode(victim), cred, directory)?;
        if directory && !self.entries(victim).is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.take(dir, name);
        self.stamp(dir, when);
        self.unlinked(dir, victim, when);
        Ok(Expected::Done)
    }

    /// Adjusts link counts after a name of `victim` was removed from `dir`.
    fn unlinked(&mut self, dir: Id, victim: Id, when: TimeRange) {
        let is_dir = self.inode(victim).is_dir();
        let inode = self.change(victim);
        inode.ctime = when;
        if is_dir {
            inode.nlink = 0;
            self.change(dir).nlink -= 1;
        } else {
            inode.nlink -= 1;
        }
        self.drop_if_dead(victim);
    }

    /// Whether `upper` is `lower` or an ancestor of it.
    pub(super) fn is_above(&self, upper: Id, lower: Id) -> bool {
        let mut at = lower;
        loop {
            if at == upper {
                return true;
            }
            match self.inode(at).body {
                Body::Directory { parent, .. } if parent != at => at = parent,
                _ => return false,
            }
        }
    }

    pub(super) fn rename(&mut self, cred: &Cred, from: &Path, to: &Path, flags: u32, when: TimeRange) -> Outcome {
        let (no_replace, exchange, whiteout) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        let (dir, name) = self.parent(cred, from)?;
        let (new_dir, new_name) = self.parent(cred, to)?;
        let moved = self.child(dir, name)?.ok_or(Errno::ENOENT)?;
        let there = self.child(new_dir, new_name)?;
        if no_replace && there.is_some() {
            return Err(Errno::EEXIST);
        }
        if exchange && there.is_none() {
            return Err(Errno::ENOENT);
        }
        if self.inode(moved).is_dir() && self.is_above(moved, new_dir) {
            return Err(Errno::EINVAL);
        }
        if let Some(there) = there
            && self.inode(there).is_dir()
            && self.is_above(there, dir)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if there == Some(moved) {
            return Ok(Expected::Done);
        }
        let is_dir = self.inode(moved).is_dir();
        may_delete(self.inode(dir), self.inode(moved), cred, is_dir)?;
        match there {
            None => may(self.inode(new_dir), cred, WRITE | EXECUTE)?,
            Some(there) => {
                let wanted = if exchange { self.inode(there).is_dir() } else { is_dir };
                may_delete(self.inode(new_dir), self.inode(there), cred, wanted)?;
            }
        }
        if dir != new_dir {
            if is_dir {
                may(self.inode(moved), cred, WRITE)?;
            }
            if let Some(there) = there
                && exchange
                && self.inode(there).is_dir()
            {
                may(self.inode(there), cred, WRITE)?;
            }
        }
        if let Some(there) = there
            && !exchange
            && !self.entries(there).is_empty()
        {
            return Err(Errno::ENOTEMPTY);
        }
        match there {
            Some(there) if exchange => {
                self.insert(dir, name, there);
                self.set_parent(there, dir, new_dir, when);
            }
            Some(there) => {
                self.take(dir, name);
                self.unlinked(new_dir, there, when);
            }
            None => self.take(dir, name),
        }
        if whiteout {
            self.create_object(cred, dir, name, S_IFCHR, Body::Special { rdev: 0 }, when);
        }
        self.insert(new_dir, new_name, moved);
        self.set_parent(moved, new_dir, dir, when);
        self.stamp(dir, when);
        self.stamp(new_dir, when);
        Ok(Expected::Done)
    }

    /// Adjusts parent and link counts after an object moved to another directory.
    fn set_parent(&mut self, id: Id, to: Id, from: Id, when: TimeRange) {
        let inode = self.change(id);
        inode.ctime = when;
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = to;
            if to != from {
                self.change(from).nlink -= 1;
                self.change(to).nlink += 1;
            }
        }
    }

    pub(super) fn stat(&mut self, cred: &Cred, path: &Path) -> Outcome {
        Ok(Expected::Inode(self.walk(cred, path)?))
    }

    pub(super) fn readlink(&mut self, cred: &Cred, path: &Path) -> Outcome {
        let id = self.walk(cred, path)?;
        let target = match &self.inode(id).body {
            Body::Symlink(target) => target.clone(),
            _ => return Err(Errno::EINVAL),
        };
        self.accessed(id);
        Ok(Expected::Data(target))
    }

    pub(super) fn list(&mut self, cred: &Cred, path: &Path) -> Outcome {
        let id = self.walk(cred, path)?;
        if !self.inode(id).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        may(self.inode(id), cred, READ)?;
        self.accessed(id);
        Ok(Expected::Entries(self.entries(id).iter().map(|(name, id)| (name.clone(), *id)).collect()))
    }

    /// `chmod` of an object that a path was resolved to.
    pub(crate) fn chmod_found(&mut self, cred: &Cred, id: Id, mode: u32, when: TimeRange) -> Outcome {
        if !is_owner(self.inode(id), cred) {
            return Err(Errno::EPERM);
        }
        let mode = mode_after_chmod(self.inode(id), cred, mode);
        let inode = self.change(id);
        inode.mode = mode;
        super::list::list_after_chmod(inode);
        inode.ctime = when;
        Ok(Expected::Done)
    }

    /// `chown` of a resolved object.
    pub(crate) fn chown_found(
        &mut self,
        cred: &Cred,
        id: Id,
        uid: Option<u32>,
        gid: Option<u32>,
        when: TimeRange,
    ) -> Outcome {
        let inode = self.inode(id);
        let same_owner = cred.uid == inode.uid;
        let uid_ok = uid.is_none_or(|uid| cred.uid == 0 || (same_owner && uid == inode.uid));
        let gid_ok = gid.is_none_or(|gid| {
            cred.uid == 0 || (same_owner && (gid == inode.gid || super::access::in_group(cred, gid)))
        });
        if !uid_ok || !gid_ok {
            return Err(Errno::EPERM);
        }
        let mode = mode_after_chown(inode, cred);
        let inode = self.change(id);
        inode.loses_capabilities();
        inode.mode = mode;
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        inode.ctime = when;
        Ok(Expected::Done)
    }

    /// `utimensat` of a resolved object.
    pub(crate) fn utimens_found(
        &mut self,
        cred: &Cred,
        id: Id,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        when: TimeRange,
    ) -> Outcome {
        let now = (atime, mtime) == (Some(SetTime::Now), Some(SetTime::Now));
        if !is_owner(self.inode(id), cred) {
            if !now {
                return Err(Errno::EPERM);
            }
            may(self.inode(id), cred, WRITE)?;
        }
        let inode = self.change(id);
        match atime {
            Some(SetTime::At(ns)) if !inode.accessed => inode.atime = Some(ns),
            Some(_) => inode.atime = None,
            None => {}
        }
        match mtime {
            Some(SetTime::At(ns)) => (inode.mtime, inode.set_mtime) = (TimeRange::at(ns), Some(ns)),
            Some(SetTime::Now) => inode.mtime = when,
            None => {}
        }
        inode.ctime = when;
        Ok(Expected::Done)
    }

    /// `access` of a resolved object.
    pub(crate) fn access_found(&self, cred: &Cred, id: Id, mask: u32) -> Outcome {
        may(self.inode(id), cred, mask).map(|()| Expected::Done)
    }

    pub(super) fn sync_directory(&mut self, cred: &Cred, path: &Path) -> Outcome {
        let id = self.walk(cred, path)?;
        if !self.inode(id).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        may(self.inode(id), cred, READ).map(|()| Expected::Done)
    }

    /// Sets the default layout of a directory; only its ctime is visible.
    pub(super) fn set_stripe(&mut self, cred: &Cred, path: &Path, when: TimeRange) -> Outcome {
        let id = self.walk(cred, path)?;
        if !is_owner(self.inode(id), cred) {
            return Err(Errno::EPERM);
        }
        let inode = self.change(id);
        inode.ctime = when.or(inode.ctime);
        Ok(Expected::Done)
    }

    /// Sets the default of a directory for new directories; its ctime is visible, and where those lie.
    pub(super) fn set_default(
        &mut self,
        cred: &Cred,
        path: &Path,
        default: Option<HomeDefault>,
        when: TimeRange,
    ) -> Outcome {
        let id = self.walk(cred, path)?;
        if !self.inode(id).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if !is_owner(self.inode(id), cred) {
            return Err(Errno::EPERM);
        }
        let inode = self.change(id);
        inode.ctime = when.or(inode.ctime);
        inode.default = default;
        Ok(Expected::Done)
    }

    /// Moves the data of a file, which is invisible to programs.
    pub(super) fn migrate(&self, cred: &Cred, path: &Path) -> Outcome {
        let inode = self.inode(self.walk(cred, path)?);
        match (&inode.body, is_owner(inode, cred)) {
            (Body::File(_), true) => Ok(Expected::Done),
            (Body::File(_), false) => Err(Errno::EPERM),
            _ => Err(Errno::EINVAL),
        }
    }

    // --- extended attributes of the namespace `user` ---

    /// Whether the caller may read or write extended attributes of an object.
    pub(crate) fn may_xattr(&self, cred: &Cred, id: Id, mask: u32) -> Result<(), Errno> {
        let inode = self.inode(id);
        if !inode.is_dir() && !inode.is_file() {
            return Err(if mask == WRITE { Errno::EPERM } else { Errno::ENODATA });
        }
        if mask == WRITE && inode.is_dir() && inode.mode & S_ISVTX != 0 && !is_owner(inode, cred) {
            return Err(Errno::EPERM);
        }
        may(inode, cred, mask)
    }

    /// `setxattr` of a resolved object.
    pub(crate) fn setxattr_found(
        &mut self,
        cred: &Cred,
        id: Id,
        (name, value): (&Bytes, &Bytes),
        flags: u32,
        when: TimeRange,
    ) -> Outcome {
        if is_list(name) {
            return self.set_list(cred, id, name, value, when);
        }
        self.may_xattr(cred, id, WRITE)?;
        let there = self.inode(id).xattrs.contains_key(name);
        match (flags, there) {
            (1, true) => return Err(Errno::EEXIST),
            (2, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        let inode = self.change(id);
        inode.xattrs.insert(name.clone(), value.clone());
        inode.ctime = when;
        Ok(Expected::Done)
    }

    /// `getxattr` of a resolved object.
    pub(crate) fn getxattr_found(&self, cred: &Cred, id: Id, name: &Bytes) -> Outcome {
        if is_list(name) {
            return self.get_list(id, name);
        }
        self.may_xattr(cred, id, READ)?;
        self.inode(id).xattrs.get(name).cloned().map(Expected::Data).ok_or(Errno::ENODATA)
    }

    /// `listxattr` of a resolved object.
    pub(crate) fn listxattr_found(&self, id: Id) -> Outcome {
        Ok(Expected::Names(self.inode(id).xattrs.keys().cloned().collect()))
    }

    /// `removexattr` of a resolved object.
    pub(crate) fn removexattr_found(&mut self, cred: &Cred, id: Id, name: &Bytes, when: TimeRange) -> Outcome {
        if is_list(name) {
            return self.remove_list(cred, id, name, when);
        }
        self.may_xattr(cred, id, WRITE)?;
        if !self.inode(id).xattrs.contains_key(name) {
            return Err(Errno::ENODATA);
        }
        let inode = self.change(id);
        inode.xattrs.remove(name);
        inode.ctime = when;
        Ok(Expected::Done)
    }
}
