//! Permission checks: permission bits, access lists, capabilities, sticky directories, set-id bits.

use crate::acl::Acl;
use crate::mode::{S_IFDIR, S_IFMT, S_ISGID, S_ISUID, S_ISVTX, S_IXGRP};
use crate::object::Object;
use proto::Errno;
use proto::msg::{Attr, Cred};

/// Permission to read, as in a mode.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXECUTE: u32 = 1;

/// The capabilities of Linux that the rules use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Capability {
    /// Change the owner and group of any object.
    Chown = 0,
    /// Bypass permission bits.
    DacOverride = 1,
    /// Read all files, read and search all directories.
    DacReadSearch = 2,
    /// Act as the owner of any object.
    Fowner = 3,
    /// Keep set-id bits.
    Fsetid = 4,
    /// Administer the system: trusted and security attributes.
    SysAdmin = 21,
    /// Make device nodes.
    Mknod = 27,
}

/// The credentials of a request that has none.
static NOBODY: Cred =
    Cred { uid: 65_534, gid: 65_534, groups: Vec::new(), umask: 0, capabilities: 0, job: String::new() };

/// The credentials that an operation uses, with the permission checks.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    cred: &'a Cred,
}

impl<'a> Caller<'a> {
    /// A caller with these credentials.
    pub fn of(cred: &'a Cred) -> Caller<'a> {
        Caller { cred }
    }

    /// The caller of a request. Without credentials it is the user `nobody`.
    pub fn new(cred: Option<&'a Cred>) -> Caller<'a> {
        Caller { cred: cred.unwrap_or(&NOBODY) }
    }

    /// The user id.
    pub fn uid(&self) -> u32 {
        self.cred.uid
    }

    /// The permission bits that new objects lose.
    pub fn umask(&self) -> u32 {
        self.cred.umask & 0o777
    }

    /// The caller's credentials.
    pub fn cred(&self) -> &'a Cred {
        self.cred
    }

    /// Whether the caller has a capability; root has all.
    pub fn capable(&self, capability: Capability) -> bool {
        self.cred.uid == 0 || self.cred.capabilities >> capability as u8 & 1 == 1
    }

    /// Whether the caller is in a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.cred.gid == gid || self.cred.groups.contains(&gid)
    }

    /// Whether the caller owns an object, or may act as its owner.
    pub fn is_owner<'o>(&self, object: impl Into<Object<'o>>) -> bool {
        self.cred.uid == object.into().uid || self.capable(Capability::Fowner)
    }

    fn in_group_or_capable(&self, gid: u32) -> bool {
        self.in_group(gid) || self.capable(Capability::Fsetid)
    }

    /// `EACCES` unless the caller has all permissions in `want` ([`READ`], [`WRITE`], [`EXECUTE`]) on the object.
    pub fn need<'o>(&self, object: impl Into<Object<'o>>, want: u32) -> Result<(), Errno> {
        let object = object.into();
        if self.bits_allow(&object, want) || self.capability_allows(&object, want) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// The same for attributes from the wire. `None`: the answer depends on the access list, which they lack.
    pub fn may(&self, attr: &Attr, want: u32) -> Option<bool> {
        let object = Object::without_list(attr);
        // A list gives the owner the same as the mode does. It gives everybody else at most the mode's group bits, which are its
        // mask, or the bits for others.
        let decides = !attr.has_xattrs || self.cred.uid == attr.uid;
        let may_allow = [object.mode >> 3, object.mode].iter().any(|bits| bits & want == want);
        match self.need(object, want) {
            verdict if decides => Some(verdict.is_ok()),
            _ if self.capability_allows(&object, want) => Some(true),
            _ if !may_allow => Some(false),
            _ => None,
        }
    }

    fn bits_allow(&self, object: &Object<'_>, want: u32) -> bool {
        let list = access_list(object);
        if let Some(list) = list {
            stdx::mark!("rules.list_decides");
            return list.allows(object.uid, object.gid, self.cred.uid, |gid| self.in_group(gid), want);
        }
        let bits = match () {
            () if self.cred.uid == object.uid => object.mode >> 6,
            () if self.in_group(object.gid) => object.mode >> 3,
            () => object.mode,
        };
        bits & want == want
    }

    fn capability_allows(&self, object: &Object<'_>, want: u32) -> bool {
        let runnable = object.is_dir() || want & EXECUTE == 0 || object.mode & 0o111 != 0;
        if self.capable(Capability::DacOverride) && runnable {
            return true;
        }
        let harmless = if object.is_dir() { READ | EXECUTE } else { READ };
        self.capable(Capability::DacReadSearch) && want & !harmless == 0
    }

    /// Checks whether a name of `victim` in `dir` may be removed or changed: `EACCES` without write permission, `EPERM` if the
    /// sticky bit protects it.
    pub fn may_remove<'o>(&self, dir: impl Into<Object<'o>>, victim: impl Into<Object<'o>>) -> Result<(), Errno> {
        let (dir, victim) = (dir.into(), victim.into());
        self.need(dir, WRITE | EXECUTE)?;
        let kept = dir.mode & S_ISVTX != 0 && self.cred.uid != victim.uid && self.cred.uid != dir.uid;
        if kept && !self.capable(Capability::Fowner) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// The mode after a change of the file's data (`write`) or of its owner: set-id bits are removed where Linux removes them.
    /// After a write they stay if the caller may keep them.
    pub fn mode_without_privileges<'o>(&self, object: impl Into<Object<'o>>, write: bool) -> u32 {
        let object = object.into();
        if write && (self.capable(Capability::Fsetid) || !object.is_file()) {
            return object.mode;
        }
        let mut mode = object.mode & !S_ISUID;
        if mode & S_IXGRP != 0 || !self.in_group_or_capable(object.gid) {
            mode &= !S_ISGID;
        }
        mode
    }

    /// The mode that the caller may set on an object of group `gid`: without the set-group-id bit if the caller is not in the
    /// group.
    pub fn mode_allowed(&self, mode: u32, gid: u32) -> u32 {
        if self.in_group_or_capable(gid) { mode } else { mode & !S_ISGID }
    }

    /// Group and mode of a new object in `dir`, before umask and access lists.
    pub fn group_and_mode_of_new<'o>(&self, dir: impl Into<Object<'o>>, mode: u32) -> (u32, u32) {
        let dir = dir.into();
        if dir.mode & S_ISGID == 0 {
            return (self.cred.gid, mode);
        }
        if mode & S_IFMT == S_IFDIR {
            return (dir.gid, mode | S_ISGID);
        }
        let both = S_ISGID | S_IXGRP;
        let mode = if mode & both == both { self.mode_allowed(mode, dir.gid) } else { mode };
        (dir.gid, mode)
    }
}

/// The access list of an object, if it has one. If the list is damaged, the mode decides.
fn access_list(object: &Object<'_>) -> Option<Acl> {
    Acl::parse(object.access_list?).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Ace, Acl, Who};
    use crate::mode::S_IFREG;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller<'static> {
        leak(Cred { uid, gid, groups: groups.to_vec(), ..Cred::default() })
    }

    fn leak(cred: Cred) -> Caller<'static> {
        Caller::of(Box::leak(Box::new(cred)))
    }

    fn inode(mode: u32, uid: u32, gid: u32) -> Object<'static> {
        Object { mode, uid, gid, ..Object::default() }
    }

    /// Every mode, every relation to the object, every want: against the definition.
    #[test]
    fn permission_bits_count_for_the_first_class_that_fits() {
        let callers =
            [(caller(1, 9, &[]), 6), (caller(5, 2, &[]), 3), (caller(5, 9, &[7, 2]), 3), (caller(5, 9, &[7]), 0)];
        for mode in 0..=0o777 {
            let file = inode(S_IFREG | mode, 1, 2);
            for (caller, shift) in &callers {
                for want in 0..=7 {
                    let allowed = mode >> shift & want == want;
                    assert_eq!(caller.need(file, want).is_ok(), allowed, "{mode:o} {want} {shift}");
                }
            }
            let root = caller(0, 0, &[]);
            for want in 0..=7 {
                let allowed = want & EXECUTE == 0 || mode & 0o111 != 0;
                assert_eq!(root.need(file, want).is_ok(), allowed, "root, {mode:o} {want}");
                assert!(root.need(inode(S_IFDIR | mode, 1, 2), want).is_ok());
            }
        }
    }

    #[test]
    fn a_sticky_directory_keeps_other_peoples_names() {
        let (dir, file) = (inode(S_IFDIR | 0o1777, 1, 1), inode(S_IFREG | 0o666, 2, 2));
        assert_eq!(caller(3, 3, &[]).may_remove(dir, file), Err(Errno::EPERM));
        for uid in [0, 1, 2] {
            assert_eq!(caller(uid, 3, &[]).may_remove(dir, file), Ok(()));
        }
        assert_eq!(caller(3, 3, &[]).may_remove(inode(S_IFDIR | 0o1755, 1, 1), file), Err(Errno::EACCES));
        assert_eq!(caller(3, 3, &[]).may_remove(inode(S_IFDIR | 0o777, 1, 1), file), Ok(()));
    }

    #[test]
    fn a_write_takes_set_id_bits_away_unless_it_is_roots() {
        let file = inode(S_IFREG | 0o6755, 1, 2);
        assert_eq!(caller(1, 2, &[]).mode_without_privileges(file, true), S_IFREG | 0o755);
        assert_eq!(caller(0, 0, &[]).mode_without_privileges(file, true), S_IFREG | 0o6755);
        assert_eq!(caller(0, 0, &[]).mode_without_privileges(file, false), S_IFREG | 0o755, "a chown by root");
        let lock = inode(S_IFREG | 0o2644, 1, 2);
        assert_eq!(caller(1, 2, &[]).mode_without_privileges(lock, true), S_IFREG | 0o2644, "mandatory locking");
        assert_eq!(caller(1, 3, &[]).mode_without_privileges(lock, true), S_IFREG | 0o644);
    }

    #[test]
    fn a_set_group_id_directory_gives_its_group() {
        let (plain, shared) = (inode(S_IFDIR | 0o777, 1, 50), inode(S_IFDIR | 0o2777, 1, 50));
        let who = caller(7, 8, &[]);
        assert_eq!(who.group_and_mode_of_new(plain, S_IFREG | 0o644), (8, S_IFREG | 0o644));
        assert_eq!(who.group_and_mode_of_new(shared, S_IFREG | 0o644), (50, S_IFREG | 0o644));
        assert_eq!(who.group_and_mode_of_new(shared, S_IFDIR | 0o755), (50, S_IFDIR | 0o2755));
        assert_eq!(who.group_and_mode_of_new(shared, S_IFREG | 0o2755), (50, S_IFREG | 0o755));
        assert_eq!(caller(7, 50, &[]).group_and_mode_of_new(shared, S_IFREG | 0o2755), (50, S_IFREG | 0o2755));
    }

    #[test]
    fn capabilities_stand_for_permission() {
        let reader =
            leak(Cred { uid: 5, gid: 5, capabilities: 1 << Capability::DacReadSearch as u8, ..Cred::default() });
        let (dir, file) = (inode(S_IFDIR | 0o700, 1, 1), inode(S_IFREG | 0o700, 1, 1));
        assert!(reader.need(dir, READ | EXECUTE).is_ok() && reader.need(file, READ).is_ok());
        assert!(reader.need(dir, WRITE).is_err() && reader.need(file, EXECUTE).is_err());
        let nobody = Caller::new(None);
        assert!(nobody.need(file, READ).is_err() && nobody.need(inode(S_IFREG | 0o004, 1, 1), READ).is_ok());
    }

    /// What attributes without their list say is what the object says, or nothing.
    #[test]
    fn attributes_without_their_list_say_what_is_certain() {
        let list = |named| {
            let entries =
                [(Who::UserObj, 6), (Who::User(5), named), (Who::GroupObj, 4), (Who::Mask, 6), (Who::Other, 0)];
            Acl::new(entries.map(|(who, perm)| Ace { who, perm })).unwrap()
        };
        let backup = Cred { uid: 7, gid: 7, capabilities: 1 << Capability::DacReadSearch as u8, ..Cred::default() };
        let callers = [caller(0, 0, &[]), caller(1, 2, &[]), caller(5, 5, &[]), caller(6, 2, &[]), leak(backup)];
        for named in [0, 6] {
            let list = list(named);
            let value = list.to_value();
            let mode = S_IFREG | list.mode();
            let listed = Object { access_list: Some(&value), ..inode(mode, 1, 2) };
            let plain = Attr { mode, uid: 1, gid: 2, ..Attr::default() };
            for who in &callers {
                for want in 0..=7 {
                    assert_eq!(who.may(&plain, want), Some(who.need(inode(mode, 1, 2), want).is_ok()));
                    let said = who.may(&Attr { has_xattrs: true, ..plain.clone() }, want);
                    assert!(said.is_none_or(|said| said == who.need(listed, want).is_ok()), "{who:?} {want}: {said:?}");
                }
            }
        }
        assert!(stdx::marks::count("rules.list_decides") > 0);
        let hidden = Attr { has_xattrs: true, mode: S_IFREG | 0o640, uid: 1, gid: 2, ..Attr::default() };
        let said = callers.map(|who| who.may(&hidden, READ));
        assert_eq!(said, [Some(true), Some(true), None, None, Some(true)]);
        let said = callers.map(|who| who.may(&hidden, EXECUTE));
        assert_eq!(said, [Some(false); 5], "nobody may, whatever the list says");
    }
}
