//! An object as the rules see it.

use crate::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use proto::msg::Attr;

/// What the rules look at of an object, and what they change of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Object<'a> {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Nanoseconds.
    pub atime_ns: i64,
    /// Nanoseconds.
    pub mtime_ns: i64,
    /// When the mtime was set to another moment than that one; 0: the mtime is when data changed last.
    pub mtime_set_ns: i64,
    /// Nanoseconds.
    pub ctime_ns: i64,
    /// The value of its access list ([`crate::acl::ACCESS`]); `None`: the mode says it all.
    pub access_list: Option<&'a [u8]>,
}

impl Object<'_> {
    /// As attributes say that went over the wire: without the access list that it has if it is one of the object's attributes
    /// ([`Attr::has_xattrs`]).
    pub fn without_list(attr: &Attr) -> Object<'static> {
        Object {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            atime_ns: attr.atime_ns,
            mtime_ns: attr.mtime_ns,
            mtime_set_ns: attr.mtime_set_ns,
            ctime_ns: attr.ctime_ns,
            access_list: None,
        }
    }

    /// Brings attributes of the object in step with it.
    pub fn show_in(&self, attr: &mut Attr) {
        (attr.mode, attr.uid, attr.gid, attr.nlink) = (self.mode, self.uid, self.gid, self.nlink);
        (attr.atime_ns, attr.ctime_ns) = (self.atime_ns, self.ctime_ns);
        (attr.mtime_ns, attr.mtime_set_ns) = (self.mtime_ns, self.mtime_set_ns);
    }

    /// The same without its access list.
    pub fn detached(self) -> Object<'static> {
        let Object { mode, uid, gid, nlink, atime_ns, mtime_ns, mtime_set_ns, ctime_ns, access_list: _ } = self;
        Object { mode, uid, gid, nlink, atime_ns, mtime_ns, mtime_set_ns, ctime_ns, access_list: None }
    }

    /// Bits of the type.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// The object changes, for a request of `now_ns`. Returns when: the clock of whoever asks may be slow, and no change of an object
    /// is older than the one before it.
    pub fn changed(&mut self, now_ns: i64) -> i64 {
        self.ctime_ns = self.ctime_ns.max(now_ns);
        self.ctime_ns
    }

    /// Its data changes, or the entries of a directory.
    pub fn content_changed(&mut self, now_ns: i64) {
        self.mtime_ns = self.changed(now_ns);
        self.mtime_set_ns = 0;
    }
}
