//! What the model needs when several processes work in one tree at once.
//!
//! A call that goes by a path is two steps then: the path leads to an object, and something is done to that object, which
//! may have lost its name in between. So the second steps are offered on their own, objects stay known after their last
//! name and close, and of times, which follow the clocks of several clients, only one counts that somebody has set and nobody has changed since.

use core::hash::{BuildHasher, Hash, Hasher};

use proto::Errno;
use proto::msg::Cred;
use stdx::KeyedHash;

use super::access::{EXECUTE, WRITE, may};
use super::{Body, Expect, Id, Model, OpenFile, Path, When};

type Outcome = Result<Expect, Errno>;

impl Model {
    /// A state that several processes share.
    pub(crate) fn into_shared(mut self) -> Model {
        self.shared = true;
        self
    }

    /// Whoever comes may search all directories: that was asked before.
    pub(crate) fn set_searched(&mut self, searched: bool) {
        self.searched = searched;
    }

    /// The object that the next call makes, if it makes one, has this number: it does not depend on the order of calls.
    pub(crate) fn name_next(&mut self, number: u32) {
        self.next = number;
    }

    /// Opens an object that a path led to.
    pub(crate) fn open_found(&mut self, cred: &Cred, id: Id, flags: u32, fd: u32, when: When) -> Outcome {
        self.may_open(cred, id, flags)?;
        if flags & super::files::O_TRUNC != 0 {
            self.resize(cred, id, 0, when);
        }
        self.open.insert(fd, OpenFile { id, flags });
        Ok(Expect::Inode(id))
    }

    /// A further name for an object that a path led to.
    pub(crate) fn link_found(&mut self, cred: &Cred, id: Id, to: &Path, when: When) -> Outcome {
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
        Ok(Expect::Done)
    }

    /// The names in an object that a path led to.
    pub(crate) fn list_found(&self, id: Id) -> Outcome {
        if !self.inode(id).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok(Expect::Entries(self.entries(id).iter().map(|(name, id)| (name.clone(), *id)).collect()))
    }

    /// The state in one word, but for the bytes of files and for times.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = KeyedHash::default().build_hasher();
        for (id, inode) in &self.inodes {
            (id, inode.mode, inode.nlink, inode.uid, inode.gid).hash(&mut hasher);
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
