//! Names: which are valid, which may be removed or renamed, and the link counts afterwards.

use crate::access::{Caller, EXECUTE, WRITE};
use crate::object::Object;
use proto::connect::{LINK_MAX, NAME_MAX};
use proto::{Errno, Fid};

/// The name by which lookups in the root find [`Fid::DOT_LUSTRE`].
pub const DOT_LUSTRE: &[u8] = b".lustre";

/// Checks a name: `ENAMETOOLONG`, `ENOENT` if it is empty, `EINVAL` if it has a byte that names cannot have.
pub fn check(name: &[u8]) -> Result<(), Errno> {
    match () {
        () if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        () if name.is_empty() => Err(Errno::ENOENT),
        () if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::EINVAL),
        () => Ok(()),
    }
}

/// Whether the name is `.` or `..`, which only a lookup accepts.
pub fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Whether this is `.lustre` in the root, which has no entry there: it is found and not listed.
pub fn is_dot_lustre(parent: Fid, name: &[u8]) -> bool {
    parent == Fid::ROOT && name == DOT_LUSTRE
}

/// Whether nobody may change the names in this directory or its attributes: `.lustre` and `.lustre/fid`.
pub fn is_fixed(dir: Fid) -> bool {
    dir == Fid::DOT_LUSTRE || dir == Fid::DOT_LUSTRE_FID
}

/// The error for a removal of `.` or `..`.
pub fn removal_of_dot(name: &[u8], rmdir: bool) -> Errno {
    match (rmdir, name) {
        (true, b".") => Errno::EINVAL,
        (true, _) => Errno::ENOTEMPTY,
        (false, _) => Errno::EISDIR,
    }
}

/// Checks whether `unlink` or `rmdir` may remove a name of `victim` in `dir`. The caller then checks that a directory is empty.
pub fn may_unlink<'a>(
    caller: &Caller<'_>,
    dir: impl Into<Object<'a>>,
    victim: impl Into<Object<'a>>,
    rmdir: bool,
) -> Result<(), Errno> {
    let victim = victim.into();
    caller.may_remove(dir, victim)?;
    match (rmdir, victim.is_dir()) {
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        _ => Ok(()),
    }
}

/// The link count of an object that loses a name. `None`: the count is 0 already, so it is wrong.
pub fn links_after_removal<'a>(object: impl Into<Object<'a>>) -> Option<u32> {
    let object = object.into();
    let left = object.nlink.checked_sub(1)?;
    Some(if object.is_dir() { 0 } else { left })
}

/// A rename of `moved` from one directory to another.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// The directory of the old name.
    pub source: Object<'a>,
    /// The directory of the new name; `None`: the same directory.
    pub target: Option<Object<'a>>,
    /// The object that is renamed.
    pub moved: Object<'a>,
    /// The object that has the new name.
    pub other: Option<Object<'a>>,
    /// `other` is a directory that is not empty.
    pub other_is_full: bool,
    /// The two objects swap their names (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// The directories are stripes of one directory, so no parent changes.
    pub same_parent: bool,
}

/// How a rename changes the link counts of the two directories. If they are the same directory, both changes apply to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Links {
    /// For the source directory.
    pub source: i32,
    /// For the target directory.
    pub target: i32,
}

impl Rename<'_> {
    fn target(&self) -> Object<'_> {
        self.target.unwrap_or(self.source)
    }

    fn moves_dir(&self) -> bool {
        self.moved.is_dir()
    }

    fn other_is_dir(&self) -> bool {
        self.other.is_some_and(|other| other.is_dir())
    }

    /// Checks whether the caller may rename. The search permission on both directories, and that no directory would move below
    /// itself, were checked before.
    pub fn check(&self, caller: &Caller<'_>) -> Result<(), Errno> {
        let between = self.target.is_some();
        caller.may_remove(self.source, self.moved)?;
        match self.other {
            None => caller.need(self.target(), WRITE | EXECUTE)?,
            Some(other) => {
                caller.may_remove(self.target(), other)?;
                match (self.moves_dir(), other.is_dir()) {
                    (true, false) if !self.exchange => return Err(Errno::ENOTDIR),
                    (false, true) if !self.exchange => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
        }
        if self.target().nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if between && !self.same_parent {
            // The `..` of a moved directory changes.
            let moved = [Some(self.moved), self.other.filter(|_| self.exchange)];
            for dir in moved.into_iter().flatten().filter(Object::is_dir) {
                caller.need(dir, WRITE)?;
            }
        }
        if !self.exchange && self.other_is_dir() && self.other_is_full {
            return Err(Errno::ENOTEMPTY);
        }
        let links = self.links();
        let overflows = |dir: Object<'_>, more: i32| more > 0 && dir.nlink >= LINK_MAX;
        if between && (overflows(self.source, links.source) || overflows(self.target(), links.target)) {
            return Err(Errno::EMLINK);
        }
        Ok(())
    }

    /// The changes of the link counts: each subdirectory counts with its `..`.
    pub fn links(&self) -> Links {
        let (moved, other) = (i32::from(self.moves_dir()), i32::from(self.other_is_dir()));
        let exchanged = if self.exchange { other } else { 0 };
        Links { source: exchanged - moved, target: moved - other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::{S_IFDIR, S_IFREG, S_ISVTX};
    use proto::msg::Cred;

    fn cred(uid: u32) -> Cred {
        Cred { uid, gid: uid, ..Cred::default() }
    }

    fn dir(mode: u32, uid: u32) -> Object<'static> {
        Object { mode: S_IFDIR | mode, uid, gid: uid, nlink: 2, ..Object::default() }
    }

    fn file(uid: u32) -> Object<'static> {
        Object { mode: S_IFREG | 0o644, uid, gid: uid, nlink: 1, ..Object::default() }
    }

    fn rename<'a>(moved: Object<'a>, other: Option<Object<'a>>) -> Rename<'a> {
        let source = dir(0o755, 1);
        Rename {
            source,
            target: Some(dir(0o755, 1)),
            moved,
            other,
            other_is_full: false,
            exchange: false,
            same_parent: false,
        }
    }

    #[test]
    fn names_are_bytes_without_slash_and_zero() {
        assert_eq!(check(&[b'x'; 255]), Ok(()));
        assert_eq!(check("ä \n\u{7f}".as_bytes()), Ok(()));
        assert_eq!(check(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check(b"a/b"), Err(Errno::EINVAL));
        assert_eq!(check(b"a\0b"), Err(Errno::EINVAL));
        assert_eq!(check(b""), Err(Errno::ENOENT));
        assert!(is_dot(b".") && is_dot(b"..") && !is_dot(b"..."));
        assert_eq!(removal_of_dot(b".", true), Errno::EINVAL);
        assert_eq!(removal_of_dot(b"..", true), Errno::ENOTEMPTY);
        assert_eq!(removal_of_dot(b"..", false), Errno::EISDIR);
    }

    #[test]
    fn rmdir_takes_directories_and_unlink_all_else() {
        let (me, home) = (cred(1), dir(0o755, 1));
        let me = Caller::of(&me);
        assert_eq!(may_unlink(&me, home, file(1), true), Err(Errno::ENOTDIR));
        assert_eq!(may_unlink(&me, home, dir(0o755, 1), false), Err(Errno::EISDIR));
        assert_eq!(may_unlink(&me, home, dir(0o755, 1), true), Ok(()));
        assert_eq!(may_unlink(&me, home, file(2), false), Ok(()), "names are the directory's");
        assert_eq!(may_unlink(&Caller::of(&cred(2)), home, file(2), false), Err(Errno::EACCES));
        let sticky = Object { mode: home.mode | S_ISVTX | 0o777, ..home };
        assert_eq!(may_unlink(&Caller::of(&cred(3)), sticky, file(2), false), Err(Errno::EPERM));
    }

    #[test]
    fn a_directory_loses_all_links_with_its_name() {
        assert_eq!(links_after_removal(file(1)), Some(0));
        assert_eq!(links_after_removal(Object { nlink: 3, ..file(1) }), Some(2));
        assert_eq!(links_after_removal(dir(0o755, 1)), Some(0));
        assert_eq!(links_after_removal(Object { nlink: 0, ..file(1) }), None);
    }

    /// For all pairs of kinds, with and without exchange: the count of a directory is that of the directories in it.
    #[test]
    fn directories_count_the_directories_in_them() {
        for moved in [dir(0o755, 1), file(1)] {
            for other in [None, Some(dir(0o755, 1)), Some(file(1))] {
                for exchange in [false, true] {
                    if exchange && other.is_none() {
                        continue;
                    }
                    let dirs = |here: &[Option<Object<'_>>]| {
                        here.iter().flatten().filter(|object| object.is_dir()).count() as i32
                    };
                    let before = (dirs(&[Some(moved)]), dirs(&[other]));
                    let after =
                        if exchange { (dirs(&[other]), dirs(&[Some(moved)])) } else { (0, dirs(&[Some(moved)])) };
                    let links = Rename { exchange, ..rename(moved, other) }.links();
                    let expected = Links { source: after.0 - before.0, target: after.1 - before.1 };
                    assert_eq!(links, expected, "{moved:?} to {other:?}, exchange {exchange}");
                }
            }
        }
    }

    #[test]
    fn a_rename_replaces_the_same_kind_and_empty_directories_only() {
        let me = cred(1);
        let me = Caller::of(&me);
        let check = |moved, other| rename(moved, Some(other)).check(&me);
        assert_eq!(check(dir(0o755, 1), file(1)), Err(Errno::ENOTDIR));
        assert_eq!(check(file(1), dir(0o755, 1)), Err(Errno::EISDIR));
        assert_eq!(check(dir(0o755, 1), dir(0o755, 1)), Ok(()));
        let full = Rename { other_is_full: true, ..rename(dir(0o755, 1), Some(dir(0o755, 1))) };
        assert_eq!(full.check(&me), Err(Errno::ENOTEMPTY));
        assert_eq!(Rename { exchange: true, ..full }.check(&me), Ok(()));
        let kinds = Rename { exchange: true, ..rename(dir(0o755, 1), Some(file(1))) };
        assert_eq!(kinds.check(&me), Ok(()));
    }

    #[test]
    fn a_directory_that_moves_must_be_writable_for_its_parent_changes() {
        let me = cred(1);
        let me = Caller::of(&me);
        let closed = dir(0o555, 1);
        assert_eq!(rename(closed, None).check(&me), Err(Errno::EACCES));
        assert_eq!(Rename { target: None, ..rename(closed, None) }.check(&me), Ok(()), "it keeps its parent");
        assert_eq!(Rename { same_parent: true, ..rename(closed, None) }.check(&me), Ok(()), "in another stripe");
        let exchange = Rename { exchange: true, ..rename(file(1), Some(closed)) };
        assert_eq!(exchange.check(&me), Err(Errno::EACCES));
        assert_eq!(rename(dir(0o755, 1), Some(closed)).check(&me), Ok(()), "what is replaced has no parent");
    }

    #[test]
    fn a_directory_takes_so_many_directories_and_no_more() {
        let me = cred(1);
        let me = Caller::of(&me);
        let full = Object { nlink: LINK_MAX, ..dir(0o755, 1) };
        let child = dir(0o755, 1);
        assert_eq!(Rename { target: Some(full), ..rename(child, None) }.check(&me), Err(Errno::EMLINK));
        assert_eq!(
            Rename { target: Some(full), ..rename(child, Some(child)) }.check(&me),
            Ok(()),
            "one goes, one comes"
        );
        assert_eq!(Rename { target: Some(full), ..rename(file(1), None) }.check(&me), Ok(()));
        let back = Rename { source: full, exchange: true, ..rename(file(1), Some(child)) };
        assert_eq!(back.check(&me), Err(Errno::EMLINK));
        let removed = Object { nlink: 0, ..dir(0o755, 1) };
        assert_eq!(Rename { target: Some(removed), ..rename(file(1), None) }.check(&me), Err(Errno::ENOENT));
    }
}
