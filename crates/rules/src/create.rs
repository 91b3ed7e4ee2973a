//! Creation: whether an object may be made in a directory, and its first attributes.

use crate::access::{Caller, Capability, EXECUTE, WRITE};
use crate::acl::Acl;
use crate::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use crate::object::Object;
use bytes::Bytes;
use proto::Errno;
use proto::connect::{DIR_SIZE, LINK_MAX, SYMLINK_MAX};
use proto::msg::Attr;

/// Checks the type and the symbolic link's target, before the permissions of the directory.
pub fn check_kind(caller: &Caller<'_>, mode: u32, symlink: &[u8]) -> Result<(), Errno> {
    match mode & S_IFMT {
        S_IFREG | S_IFDIR | S_IFIFO | S_IFSOCK => Ok(()),
        S_IFLNK if symlink.is_empty() => Err(Errno::ENOENT),
        S_IFLNK if symlink.len() > SYMLINK_MAX => Err(Errno::ENAMETOOLONG),
        S_IFLNK => Ok(()),
        // The directory's permissions are checked before this capability.
        S_IFBLK | S_IFCHR => Ok(()),
        _ if caller.uid() == 0 => Err(Errno::EINVAL),
        _ => Err(Errno::EPERM),
    }
}

/// The mode of the object that `RENAME_WHITEOUT` leaves under the old name: a character device with number 0 and no
/// permissions. There is no such device, so everybody may make one.
pub const WHITEOUT: u32 = S_IFCHR;

/// Whether the caller may make an object of this mode in a directory.
pub fn check<'a>(caller: &Caller<'_>, dir: impl Into<Object<'a>>, mode: u32, rdev: u64) -> Result<(), Errno> {
    let dir = dir.into();
    caller.need(dir, WRITE | EXECUTE)?;
    match mode & S_IFMT {
        _ if dir.nlink == 0 => Err(Errno::ENOENT),
        S_IFCHR if rdev == 0 => Ok(()),
        S_IFBLK | S_IFCHR if !caller.capable(Capability::Mknod) => Err(Errno::EPERM),
        S_IFDIR if dir.nlink >= LINK_MAX => Err(Errno::EMLINK),
        _ => Ok(()),
    }
}

/// The object to be made.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Type and permission bits, before umask and access lists.
    pub mode: u32,
    /// Device nodes: the device number.
    pub rdev: u64,
    /// Symbolic links: the target.
    pub symlink: &'a [u8],
    /// The value of the directory's default list ([`crate::acl::DEFAULT`]), if it has one.
    pub default_list: Option<&'a [u8]>,
}

/// A new object.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its attributes, without those that the rules do not determine: identity, version, layout.
    pub attr: Attr,
    /// The value of its access list, if that says more than the mode.
    pub access_list: Option<Bytes>,
    /// It is a directory and gets the default list of its parent.
    pub takes_default_list: bool,
}

/// The attributes of a new object in `dir`: owner, group and mode follow from the caller and the directory.
pub fn made<'a>(caller: &Caller<'_>, dir: impl Into<Object<'a>>, new: &New<'_>, now_ns: i64) -> Made {
    let kind = new.mode & S_IFMT;
    let wanted = if kind == S_IFDIR { new.mode & (S_IFMT | 0o1777) } else { new.mode & (S_IFMT | 0o7777) };
    let (gid, mode) = caller.group_and_mode_of_new(dir, wanted);
    let default = new.default_list.and_then(|value| Acl::parse(value).ok().flatten());
    let (mode, access_list, takes_default_list) = match (kind, default) {
        (S_IFLNK, _) => (S_IFLNK | 0o777, None, false),
        (_, None) => (mode & !caller.umask(), None, false),
        (_, Some(default)) => {
            let (access, mode) = default.inherit(mode);
            (mode, (!access.is_a_mode()).then(|| access.to_value()), kind == S_IFDIR)
        }
    };
    let attr = Attr {
        mode,
        uid: caller.uid(),
        gid,
        nlink: if kind == S_IFDIR { 2 } else { 1 },
        rdev: if matches!(kind, S_IFBLK | S_IFCHR) { new.rdev } else { 0 },
        size: match kind {
            S_IFDIR => DIR_SIZE,
            S_IFLNK => new.symlink.len() as u64,
            _ => 0,
        },
        blocks: if kind == S_IFDIR { DIR_SIZE / 512 } else { 0 },
        atime_ns: now_ns,
        mtime_ns: now_ns,
        ctime_ns: now_ns,
        btime_ns: now_ns,
        has_xattrs: access_list.is_some() || takes_default_list,
        ..Attr::default()
    };
    Made { attr, access_list, takes_default_list }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Ace, Who};
    use proto::msg::Cred;

    const NEW: New<'static> = New { mode: S_IFREG | 0o666, rdev: 0, symlink: b"", default_list: None };

    fn dir(mode: u32) -> Object<'static> {
        Object { mode: S_IFDIR | mode, uid: 1, gid: 50, nlink: 2, ..Object::default() }
    }

    #[test]
    fn who_may_make_what() {
        let cred = Cred { uid: 1, gid: 1, ..Cred::default() };
        let me = Caller::of(&cred);
        assert_eq!(check(&me, dir(0o755), S_IFREG, 7), Ok(()));
        assert_eq!(check(&me, dir(0o555), S_IFREG, 7), Err(Errno::EACCES));
        assert_eq!(check(&me, Object { nlink: 0, ..dir(0o755) }, S_IFREG, 7), Err(Errno::ENOENT));
        assert_eq!(check(&me, Object { nlink: LINK_MAX, ..dir(0o755) }, S_IFDIR, 7), Err(Errno::EMLINK));
        assert_eq!(check(&me, Object { nlink: LINK_MAX, ..dir(0o755) }, S_IFREG, 7), Ok(()));
        assert_eq!(check(&me, dir(0o755), S_IFBLK, 7), Err(Errno::EPERM));
        assert_eq!(check(&me, dir(0o755), S_IFCHR, 0), Ok(()), "leads nowhere");
        let root = Cred::default();
        assert_eq!(check(&Caller::of(&root), dir(0o555), S_IFCHR, 7), Ok(()));
        assert_eq!(check_kind(&me, 0o170_000, b""), Err(Errno::EPERM));
        assert_eq!(check_kind(&Caller::of(&root), 0o170_000, b""), Err(Errno::EINVAL));
        assert_eq!(check_kind(&me, S_IFLNK, b""), Err(Errno::ENOENT));
        assert_eq!(check_kind(&me, S_IFLNK, &[b'x'; SYMLINK_MAX + 1]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check_kind(&me, S_IFLNK, b"x"), Ok(()));
    }

    #[test]
    fn the_umask_counts_where_there_is_no_default_list() {
        let cred = Cred { uid: 7, gid: 8, umask: 0o027, ..Cred::default() };
        let me = Caller::of(&cred);
        let file = made(&me, dir(0o777), &NEW, 5).attr;
        assert_eq!(
            (file.mode, file.uid, file.gid, file.nlink, file.size, file.ctime_ns),
            (S_IFREG | 0o640, 7, 8, 1, 0, 5)
        );
        let entries = [(Who::UserObj, 7), (Who::User(9), 7), (Who::GroupObj, 5), (Who::Mask, 7), (Who::Other, 5)];
        let list = Acl::new(entries.map(|(who, perm)| Ace { who, perm })).unwrap().to_value();
        let listed = New { default_list: Some(&list), ..NEW };
        let file = made(&me, dir(0o777), &listed, 5);
        assert_eq!((file.attr.mode, file.attr.has_xattrs, file.takes_default_list), (S_IFREG | 0o664, true, false));
        assert!(file.access_list.is_some());
        let sub = made(&me, dir(0o777), &New { mode: S_IFDIR | 0o777, ..listed }, 5);
        assert!(sub.takes_default_list && sub.attr.nlink == 2 && sub.attr.size == DIR_SIZE);
        let link = made(&me, dir(0o777), &New { mode: S_IFLNK | 0o600, symlink: b"abc", ..listed }, 5);
        assert_eq!((link.attr.mode, link.attr.size, link.attr.has_xattrs), (S_IFLNK | 0o777, 3, false));
    }

    #[test]
    fn only_devices_have_numbers_and_directories_no_set_id_of_their_own() {
        let root = Cred::default();
        let root = Caller::of(&root);
        let rdev = |mode| made(&root, dir(0o777), &New { mode, rdev: 9, ..NEW }, 0).attr.rdev;
        assert_eq!((rdev(S_IFCHR), rdev(S_IFBLK), rdev(S_IFIFO)), (9, 9, 0));
        let mode = |dir_mode, mode| made(&root, dir(dir_mode), &New { mode, ..NEW }, 0).attr.mode;
        assert_eq!(mode(0o777, S_IFDIR | 0o7777), S_IFDIR | 0o1777);
        assert_eq!(mode(0o2777, S_IFDIR | 0o777), S_IFDIR | 0o2777);
        assert_eq!(mode(0o777, S_IFREG | 0o7777), S_IFREG | 0o7777);
    }
}
