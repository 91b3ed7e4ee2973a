//! The view of an object that the rules work on.

use crate::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use proto::msg::Attr;

/// The attributes of an object that the rules read and change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Object<'a> {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub nlink: u32,
    /// Last access, in nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last change of the data, or the time that was set explicitly.
    pub mtime_ns: i64,
    /// When the mtime was set to a time other than the current one; 0: the mtime is the last change of the data.
    pub mtime_set_ns: i64,
    /// Last change of data or attributes.
    pub ctime_ns: i64,
    /// The value of its access list ([`crate::acl::ACCESS`]); `None`: only the mode counts.
    pub access_list: Option<&'a [u8]>,
}

impl Object<'_> {
    /// The object of attributes from the wire. They lack the access list, which the object may have if [`Attr::has_xattrs`].
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

    /// Copies the object's values into its attributes.
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

    /// Marks the object as changed by a request with time `now_ns`. Returns the time of the change, which is never before that
    /// of the last one: the clock of the requester may be slow.
    pub fn changed(&mut self, now_ns: i64) -> i64 {
        self.ctime_ns = self.ctime_ns.max(now_ns);
        self.ctime_ns
    }

    /// Marks the data, or the entries of a directory, as changed.
    pub fn content_changed(&mut self, now_ns: i64) {
        self.mtime_ns = self.changed(now_ns);
        self.mtime_set_ns = 0;
    }
}
