//! The reference model: what POSIX says that a file system does, for one process that makes one call after another.
//!
//! It is small and plain on purpose. It knows a tree of inodes, open files, permissions and bytes, and nothing of servers, locks
//! or caches. Errors and their order are Linux's. Whatever a real system may choose (the exact time of a change, the place of
//! holes) is an interval or a condition instead of a value.
//!
//! [`names`]: the tree. [`files`]: open files and bytes. [`access`]: permissions. [`list`]: access control lists. [`shared`]:
//! processes that share a tree. [`targets`]: where objects lie. [`compare`]: comparison of a call's result with the model. A model is cheap to clone: one clone
//! per call is the history that crashes are checked against.

mod access;
mod compare;
mod files;
mod list;
mod names;
mod op;
mod shared;
mod targets;
#[cfg(test)]
mod tests;

use core::ops::Range;
use std::collections::BTreeMap;
use std::rc::Rc;

use proto::msg::Cred;
use proto::{Bytes, Errno};

pub(crate) use compare::{Returned, Substitutes, content_differs, differs};
pub(crate) use list::{ACCESS, DEFAULT, List, is_list};
pub(crate) use op::{Expected, Op, PathRole, WriteWay};
pub(crate) use targets::{Home, HomeDefault, Mdts};

/// An inode of the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Id(pub u32);

/// A path below the process's directory, as its components.
pub(crate) type Path = Vec<Bytes>;

/// When something happened: a range of times in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeRange {
    /// The earliest time.
    pub from: i64,
    /// The latest time.
    pub to: i64,
}

impl TimeRange {
    /// Any time.
    pub const ANY: TimeRange = TimeRange { from: i64::MIN, to: i64::MAX };

    /// Exactly this time.
    pub fn at(ns: i64) -> TimeRange {
        TimeRange { from: ns, to: ns }
    }

    /// This range extended by `old`: the time was set or is unchanged.
    pub fn or(self, old: TimeRange) -> TimeRange {
        TimeRange { from: self.from.min(old.from), to: self.to.max(old.to) }
    }

    /// Whether a time lies in the range.
    pub fn holds(self, ns: i64) -> bool {
        (self.from..=self.to).contains(&ns)
    }
}

/// The content of an inode, by type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    /// A directory: its entries and its parent.
    Directory { entries: BTreeMap<Bytes, Id>, parent: Id },
    /// A regular file.
    File(Rc<Vec<u8>>),
    /// A symbolic link.
    Symlink(Bytes),
    /// A pipe, socket or device.
    Special { rdev: u64 },
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Inode {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; for a directory, 2 plus its subdirectories.
    pub nlink: u32,
    /// Last modification of the data.
    pub mtime: TimeRange,
    /// The last modification time that a program set explicitly: it shows again if a later write is lost.
    pub set_mtime: Option<i64>,
    /// Last change of status.
    pub ctime: TimeRange,
    /// Known only if a program set it and nothing was read since: access times after reads may arrive late.
    pub atime: Option<i64>,
    /// Whether it was ever read.
    pub accessed: bool,
    /// Extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Type and content.
    pub body: Body,
    /// The index of its metadata target.
    pub home: Home,
    /// Of a directory: where directories lie that are made in it.
    pub default: Option<HomeDefault>,
}

impl Inode {
    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// Whether it is a regular file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }

    /// Drops the file's capabilities, because its owner changed or it was truncated. (On a write the kernel drops them.)
    fn loses_capabilities(&mut self) {
        if !self.is_dir() {
            self.xattrs.remove(&b"security.capability"[..]);
        }
    }

    /// Its bytes.
    pub(crate) fn data(&self) -> &[u8] {
        match &self.body {
            Body::File(data) => data,
            _ => &[],
        }
    }
}

/// An open file of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenFile {
    /// Its inode.
    pub id: Id,
    /// `O_*`.
    pub flags: u32,
}

/// The state of one process's subtree and its open files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Model {
    inodes: BTreeMap<Id, Rc<Inode>>,
    open: BTreeMap<u32, OpenFile>,
    next: u32,
    /// The inode numbers seen so far.
    inos: BTreeMap<Id, u64>,
    /// Whether several processes share the tree; see [`shared`].
    shared: bool,
    /// Whether search permission on directories was checked already.
    searched: bool,
    /// Ranges that clients gave up: they may have older bytes, and at the end of the file they may be missing.
    lost: BTreeMap<Id, Vec<Range<u64>>>,
}

/// The root: the process's directory.
pub(crate) const ROOT: Id = Id(0);
/// Longest name, in bytes.
pub(crate) const NAME_MAX: usize = 255;

/// Type bits.
pub(crate) const S_IFMT: u32 = 0o170_000;
/// Directory.
pub(crate) const S_IFDIR: u32 = 0o040_000;
/// Regular file.
pub(crate) const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub(crate) const S_IFLNK: u32 = 0o120_000;
/// Character device.
pub(crate) const S_IFCHR: u32 = 0o020_000;
/// Set-user-id.
pub(crate) const S_ISUID: u32 = 0o4000;
/// Set-group-id.
pub(crate) const S_ISGID: u32 = 0o2000;
/// Sticky.
pub(crate) const S_ISVTX: u32 = 0o1000;

impl Model {
    /// An empty directory with this owner and mode, made at `when`.
    pub(crate) fn new(uid: u32, gid: u32, mode: u32, when: TimeRange) -> Model {
        let root = Inode {
            mode: S_IFDIR | mode,
            uid,
            gid,
            nlink: 2,
            mtime: when,
            set_mtime: None,
            ctime: when,
            atime: None,
            accessed: false,
            xattrs: BTreeMap::new(),
            body: Body::Directory { entries: BTreeMap::new(), parent: ROOT },
            home: Home::one(0),
            default: None,
        };
        let inodes = BTreeMap::from([(ROOT, Rc::new(root))]);
        Model {
            inodes,
            open: BTreeMap::new(),
            next: 1,
            inos: BTreeMap::new(),
            shared: false,
            searched: false,
            lost: BTreeMap::new(),
        }
    }

    /// An inode that exists.
    pub(crate) fn inode(&self, id: Id) -> &Inode {
        // An id without an inode would be a defect of the model itself; returning the root makes the comparison fail.
        self.inodes.get(&id).or_else(|| self.inodes.get(&ROOT)).unwrap_or_else(|| unreachable!("the root is there"))
    }

    fn change(&mut self, id: Id) -> &mut Inode {
        let id = if self.inodes.contains_key(&id) { id } else { ROOT };
        self.inodes.get_mut(&id).map_or_else(|| unreachable!("the root is there"), Rc::make_mut)
    }

    fn add(&mut self, inode: Inode) -> Id {
        let id = Id(self.next);
        self.next += 1;
        self.inodes.insert(id, Rc::new(inode));
        id
    }

    /// Something was read: the access time becomes unknown.
    fn accessed(&mut self, id: Id) {
        let inode = self.change(id);
        inode.atime = None;
        inode.accessed = true;
    }

    /// Whether it has a name or is open.
    fn is_live(&self, id: Id) -> bool {
        self.inode(id).nlink > 0 || self.open.values().any(|file| file.id == id)
    }

    fn drop_if_dead(&mut self, id: Id) {
        if !self.shared && !self.is_live(id) {
            self.inodes.remove(&id);
        }
    }

    /// Open files by number.
    pub(crate) fn open_files(&self) -> &BTreeMap<u32, OpenFile> {
        &self.open
    }

    /// Drops an open file whose client died.
    pub(crate) fn forget_open(&mut self, fd: u32) {
        if let Some(file) = self.open.remove(&fd) {
            self.drop_if_dead(file.id);
        }
    }

    /// The names of a directory.
    pub(crate) fn entries(&self, id: Id) -> &BTreeMap<Bytes, Id> {
        static NONE: BTreeMap<Bytes, Id> = BTreeMap::new();
        match &self.inode(id).body {
            Body::Directory { entries, .. } => entries,
            _ => &NONE,
        }
    }

    /// Every inode with a path to it, the root first.
    pub(crate) fn paths(&self) -> Vec<(Path, Id)> {
        let mut all = vec![(Path::new(), ROOT)];
        let mut at = 0;
        while let Some((path, id)) = all.get(at).cloned() {
            for (name, child) in self.entries(id) {
                let mut path = path.clone();
                path.push(name.clone());
                all.push((path, *child));
            }
            at += 1;
        }
        all
    }

    /// The same call on the same objects, with their names in `other`; `None` if one of them does not exist there.
    pub(crate) fn call_in(&self, other: &Model, op: &Op) -> Option<Op> {
        let root = Cred::default();
        let paths = other.paths();
        let now = |id: Id| paths.iter().find(|(_, at)| *at == id).map(|(path, _)| path.clone());
        let mut op = op.clone();
        for (leads, path) in op.paths_mut() {
            *path = match leads {
                PathRole::ToObject => now(self.walk(&root, path).ok()?)?,
                PathRole::ToName => {
                    let (dir, name) = self.parent(&root, path).ok()?;
                    now(dir)?.into_iter().chain([name.clone()]).collect()
                }
            };
        }
        Some(op)
    }

    /// Before this state, which lacks a part of the history's changes, applies step `step`: an object that the step makes gets
    /// the same id as in the history, which went from state `there` to state `after`.
    pub(crate) fn follow(&mut self, there: &Model, after: &Model, step: usize) {
        // The step made no object in the history, so a new object must not get the id of any of the history's objects.
        let other = u32::MAX / 2 + step as u32;
        self.next = if after.next == there.next { other } else { there.next };
    }

    /// Applies a call and returns the expected result. `when` is the time range of the call.
    pub(crate) fn apply(&mut self, op: &Op, cred: &Cred, when: TimeRange) -> Result<Expected, Errno> {
        match op {
            Op::Mkdir { path, mode } => self.mkdir(cred, path, *mode, None, when),
            Op::MkdirOn { path, mode, wish } => self.mkdir(cred, path, *mode, Some(Home::from(wish)), when),
            Op::Mknod { path, mode, rdev } => self.mknod(cred, path, *mode, *rdev, when),
            Op::Symlink { path, target } => self.symlink(cred, path, target, when),
            Op::Link { from, to } => self.link(cred, from, to, when),
            Op::Unlink { path } => self.remove(cred, path, false, when),
            Op::Rmdir { path } => self.remove(cred, path, true, when),
            Op::Rename { from, to, flags } => self.rename(cred, from, to, *flags, when),
            Op::Stat { path } => self.stat(cred, path),
            Op::Readlink { path } => self.readlink(cred, path),
            Op::List { path, .. } => self.list(cred, path),
            Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Utimens { .. }
            | Op::Access { .. }
            | Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. }
            | Op::Truncate { .. } => {
                let id = op.object().map_or(Ok(ROOT), |path| self.walk(cred, path))?;
                self.apply_found(op, cred, id, when)
            }
            Op::Open { path, flags, mode, fd } => self.open(cred, path, *flags, *mode, *fd, when),
            Op::Close { fd } => self.close(*fd),
            Op::Read { fd, offset, length } => self.read(*fd, *offset, *length),
            Op::Write { fd, way, offset, data } => self.write(cred, *fd, *way, *offset, data, when),
            Op::Ftruncate { fd, size } => self.ftruncate(cred, *fd, *size, when),
            Op::Fallocate { fd, mode, offset, length } => self.fallocate(cred, *fd, *mode, *offset, *length, when),
            Op::Seek { fd, offset, hole } => self.seek(*fd, *offset, *hole),
            Op::Fstat { fd } => self.fstat(*fd),
            Op::Fsync { fd, .. } => self.file(*fd).map(|_| Expected::Done),
            Op::Fsyncdir { path } => self.sync_directory(cred, path),
            Op::Syncfs | Op::Statfs => Ok(Expected::Done),
            Op::PathToFid { path } => self.walk(cred, path).map(Expected::Inode),
            Op::SetStripe { path, .. } => self.set_stripe(cred, path, when),
            Op::SetDefault { path, wish, depth } => {
                let default = wish.as_ref().map(|wish| HomeDefault { home: Home::from(wish), depth: *depth });
                self.set_default(cred, path, default, when)
            }
            Op::Migrate { path, .. } => self.migrate(cred, path),
        }
    }

    /// Applies a call about one object whose path was already resolved to `id`.
    pub(crate) fn apply_found(&mut self, op: &Op, cred: &Cred, id: Id, when: TimeRange) -> Result<Expected, Errno> {
        match op {
            Op::Chmod { mode, .. } => self.chmod_found(cred, id, *mode, when),
            Op::Chown { uid, gid, .. } => self.chown_found(cred, id, *uid, *gid, when),
            Op::Utimens { atime, mtime, .. } => self.utimens_found(cred, id, *atime, *mtime, when),
            Op::Access { mask, .. } => self.access_found(cred, id, *mask),
            Op::Setxattr { name, value, flags, .. } => self.setxattr_found(cred, id, (name, value), *flags, when),
            Op::Getxattr { name, .. } => self.getxattr_found(cred, id, name),
            Op::Listxattr { .. } => self.listxattr_found(id),
            Op::Removexattr { name, .. } => self.removexattr_found(cred, id, name, when),
            Op::Truncate { size, .. } => self.truncate_found(cred, id, *size, when),
            _ => unreachable!("{} is about names", op.name()),
        }
    }

    /// Used when the clocks of clients differ: times are merged by the newest change of status, so a change by a client with a
    /// slow clock may leave the times of the previous state.
    pub(crate) fn may_keep_times(&mut self, before: &Model, op: &Op) {
        let changed: Vec<Id> = self.ids().filter(|id| !self.same_body(before, *id)).collect();
        for id in changed {
            let Some(old) = before.get(id).map(|inode| (inode.mtime, inode.ctime)) else { continue };
            let inode = self.change(id);
            // A change of data that keeps the size still sets the time.
            if inode.mtime != old.0 || op.changes_data() {
                // The time of a change of data is not older than the known times of the file.
                inode.mtime = inode.mtime.or(old.0).or(old.1);
            }
            inode.ctime = inode.ctime.or(old.1);
        }
    }

    /// The objects that a call is about, and the parent directories of its names.
    pub(crate) fn concerned(&self, op: &Op) -> Vec<Id> {
        let (root, mut op) = (Cred::default(), op.clone());
        let opened = op.fd().and_then(|fd| self.open.get(&fd)).map(|file| file.id);
        let mut found: Vec<Id> = opened.into_iter().collect();
        for (_, path) in op.paths_mut() {
            found.extend(self.walk(&root, path).ok());
            found.extend(path.split_last().and_then(|(_, parent)| self.walk(&root, &parent.to_vec()).ok()));
        }
        found
    }

    fn file(&self, fd: u32) -> Result<OpenFile, Errno> {
        self.open.get(&fd).copied().ok_or(Errno::EBADF)
    }
}

impl Model {
    /// Every inode.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.inodes.keys().copied()
    }

    /// An inode, if it exists.
    pub(crate) fn get(&self, id: Id) -> Option<&Inode> {
        self.inodes.get(&id).map(|inode| &**inode)
    }

    /// Whether an inode is known to be equal in both states, because it was not changed in between.
    pub(crate) fn same_body(&self, other: &Model, id: Id) -> bool {
        match (self.inodes.get(&id), other.inodes.get(&id)) {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }
}
