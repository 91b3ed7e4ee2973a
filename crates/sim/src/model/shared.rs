//! Extensions of the model for several processes that work in one tree concurrently.
//!
//! A call with a path then has two steps: the path is resolved to an object, and something is done to that object, which may have
//! lost its name in between. So the second steps are available on their own, and objects stay known after their last name and
//! close. Times follow the clocks of several clients, so a time counts only if a program set it and nothing has changed it since.

use core::hash::{BuildHasher, Hash, Hasher};

use proto::Errno;
use proto::msg::Cred;
use stdx::KeyedHash;

use super::access::{EXECUTE, WRITE, may};
use super::{Body, Expected, Id, Model, OpenFile, Path, TimeRange};

type Outcome = Result<Expected, Errno>;

impl Model {
    /// Turns this into a state that several processes share.
    pub(crate) fn into_shared(mut self) -> Model {
        self.shared = true;
        self
    }

    /// Sets whether search permission on directories was checked already.
    pub(crate) fn set_searched(&mut self, searched: bool) {
        self.searched = searched;
    }

    /// Sets the number of the next object that is made, which must not depend on the order of calls.
    pub(crate) fn name_next(&mut self, number: u32) {
        self.next = number;
    }

    /// Opens an object that a path was resolved to.
    pub(crate) fn open_found(&mut self, cred: &Cred, id: Id, flags: u32, fd: u32, when: TimeRange) -> Outcome {
        self.may_open(cred, id, flags)?;
        if flags & super::files::O_TRUNC != 0 {
            self.resize(cred, id, 0, when);
        }
        self.open.insert(fd, OpenFile { id, flags });
        Ok(Expected::Inode(id))
    }

    /// Adds a name for an object that a path was resolved to.
    pub(crate) fn link_found(&mut self, cred: &Cred, id: Id, to: &Path, when: TimeRange) -> Outcome {
        let (dir, name) = self.parent(cred, to)?;
        if self.entries(dir).contains_key(name) {
            return Err(Errno::EEXIST);
        }
        may(self.inode(dir), cred, WRITE | EXECUTE)?;
        if self.inode(id).is_dir() {
            return Err(Errno::EPERM);
        }
        if self.inode(id).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.insert(dir, name, id);
        self.stamp(dir, when);
        self.change(id).nlink += 1;
        Ok(Expected::Done)
    }

    /// Lists the directory that a path was resolved to.
    pub(crate) fn list_found(&self, id: Id) -> Outcome {
        if !self.inode(id).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok(Expected::Entries(self.entries(id).iter().map(|(name, id)| (name.clone(), *id)).collect()))
    }

    /// A hash of the state without the bytes of files and without times (except `mtime.from`).
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = KeyedHash::default().build_hasher();
        for (id, inode) in &self.inodes {
            (id, inode.mode, inode.nlink, inode.uid, inode.gid, &inode.home, &inode.default).hash(&mut hasher);
            (inode.mtime.from, &inode.xattrs).hash(&mut hasher);
            match &inode.body {
                Body::Directory { entries, .. } => entries.hash(&mut hasher),
                Body::File(data) => data.len().hash(&mut hasher),
                _ => {}
            }
        }
        for (fd, file) in &self.open {
            (fd, file.id).hash(&mut hasher);
        }
        self.inos.hash(&mut hasher);
        hasher.finish()
    }
}
