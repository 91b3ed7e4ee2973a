//! Rules of extended attributes: their namespaces, and who may read and write them. Pure.

use proto::Errno;
use rules::access::{READ, WRITE};
use rules::acl;
use rules::mode::S_ISVTX;
use rules::{Caller, Capability};
use schema::Inode;

/// Longest name, in bytes, prefix included.
pub const NAME_MAX: usize = 255;
/// Longest value that is stored in the inode, in bytes, as long as all of them fit in [`INLINE_TOTAL_MAX`].
pub const INLINE_MAX: usize = 256;
/// The most that all values in an inode may take, in bytes.
pub const INLINE_TOTAL_MAX: usize = 1024;
/// The most that all names of an object may take in the form of `listxattr`, in bytes.
pub const NAMES_MAX: usize = 16 << 10;

/// The namespaces of extended attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Namespace {
    /// `user.`: for users.
    User,
    /// `trusted.`: for administrators.
    Trusted,
    /// `security.`: for security modules.
    Security,
    /// The two access lists.
    Acl,
}

/// The namespace of a name; `EOPNOTSUPP` if there is none.
pub fn namespace(name: &[u8]) -> Result<Namespace, Errno> {
    if name.len() > NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(Namespace::Acl);
    }
    let kinds =
        [(&b"user."[..], Namespace::User), (b"trusted.", Namespace::Trusted), (b"security.", Namespace::Security)];
    let found = kinds.into_iter().find(|(prefix, _)| name.starts_with(prefix));
    match found {
        Some((prefix, _)) if prefix.len() == name.len() => Err(Errno::EINVAL),
        Some((_, kind)) => Ok(kind),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// Whether the caller may read an attribute of this namespace. `ENODATA` hides one that the caller may not know of.
pub fn may_read(caller: &Caller<'_>, inode: &Inode, kind: Namespace) -> Result<(), Errno> {
    match kind {
        Namespace::Trusted if !caller.capable(Capability::SysAdmin) => Err(Errno::ENODATA),
        Namespace::User if !has_user(inode) => Err(Errno::ENODATA),
        Namespace::User => caller.need(inode, READ),
        Namespace::Acl if inode.is_symlink() => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// Whether the caller may write this attribute.
pub fn may_write(caller: &Caller<'_>, inode: &Inode, name: &[u8], kind: Namespace) -> Result<(), Errno> {
    match kind {
        Namespace::Trusted | Namespace::Security if !caller.capable(Capability::SysAdmin) => Err(Errno::EPERM),
        Namespace::Trusted | Namespace::Security => Ok(()),
        Namespace::User if !has_user(inode) => Err(Errno::EPERM),
        Namespace::User if inode.is_dir() && inode.mode & S_ISVTX != 0 && !caller.is_owner(inode) => Err(Errno::EPERM),
        Namespace::User => caller.need(inode, WRITE),
        Namespace::Acl if inode.is_symlink() => Err(Errno::EOPNOTSUPP),
        Namespace::Acl if name == acl::DEFAULT && !inode.is_dir() => Err(Errno::EACCES),
        Namespace::Acl if !caller.is_owner(inode) => Err(Errno::EPERM),
        Namespace::Acl => Ok(()),
    }
}

fn has_user(inode: &Inode) -> bool {
    inode.is_file() || inode.is_dir()
}

/// Whether `listxattr` shows a name to the caller.
pub fn is_listed(caller: &Caller<'_>, name: &[u8]) -> bool {
    !name.starts_with(b"trusted.") || caller.capable(Capability::SysAdmin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::msg::Cred;
    use rules::mode::{S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};

    #[test]
    fn names_have_kinds() {
        assert_eq!(namespace(b"user.x"), Ok(Namespace::User));
        assert_eq!(namespace(b"system.posix_acl_default"), Ok(Namespace::Acl));
        assert_eq!(namespace(b"security.selinux"), Ok(Namespace::Security));
        assert_eq!(namespace(b"trusted.overlay"), Ok(Namespace::Trusted));
        assert_eq!(namespace(b"user."), Err(Errno::EINVAL));
        assert_eq!(namespace(b"system.other"), Err(Errno::EOPNOTSUPP));
        assert_eq!(namespace(b"nothing"), Err(Errno::EOPNOTSUPP));
        assert_eq!(namespace(&[b'u'; 256]), Err(Errno::ERANGE));
    }

    #[test]
    fn kinds_have_rules() {
        let cred = |uid| Cred { uid, gid: uid, ..Cred::default() };
        let inode = |mode| Inode { mode, uid: 1, gid: 1, ..Inode::default() };
        let write =
            |uid, mode, name: &[u8]| may_write(&Caller::of(&cred(uid)), &inode(mode), name, namespace(name).unwrap());
        let read = |uid, mode, name: &[u8]| may_read(&Caller::of(&cred(uid)), &inode(mode), namespace(name).unwrap());
        assert_eq!(write(1, S_IFREG | 0o600, b"user.a"), Ok(()));
        assert_eq!(write(2, S_IFREG | 0o644, b"user.a"), Err(Errno::EACCES));
        assert_eq!(read(2, S_IFREG | 0o600, b"user.a"), Err(Errno::EACCES));
        assert_eq!(write(0, S_IFIFO | 0o666, b"user.a"), Err(Errno::EPERM));
        assert_eq!(read(0, S_IFIFO | 0o666, b"user.a"), Err(Errno::ENODATA));
        assert_eq!(write(2, S_IFDIR | 0o1777, b"user.a"), Err(Errno::EPERM));
        assert_eq!(write(1, S_IFREG | 0o600, b"trusted.a"), Err(Errno::EPERM));
        assert_eq!(read(1, S_IFREG | 0o600, b"trusted.a"), Err(Errno::ENODATA));
        assert_eq!(write(0, S_IFREG | 0o600, b"trusted.a"), Ok(()));
        assert_eq!(write(2, S_IFREG | 0o666, acl::ACCESS), Err(Errno::EPERM));
        assert_eq!(write(1, S_IFREG | 0o666, acl::DEFAULT), Err(Errno::EACCES));
        assert_eq!(write(1, S_IFLNK | 0o777, acl::ACCESS), Err(Errno::EOPNOTSUPP));
        assert!(!is_listed(&Caller::of(&cred(1)), b"trusted.a") && is_listed(&Caller::of(&cred(0)), b"trusted.a"));
    }
}
