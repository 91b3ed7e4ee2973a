//! Who may do what: permission bits, access lists, capabilities, sticky directories, set-id bits.
//!
//! Pure: an inode, a credential, a verdict. The rules are those of Linux's VFS, whose errors and their order the
//! operations keep.

use crate::acl::{self, Acl};
use proto::Errno;
use proto::msg::Cred;
use schema::Inode;

/// Permission to read, as in a mode.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXECUTE: u32 = 1;

/// Set-user-id.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id.
pub const S_ISGID: u32 = 0o2000;
/// Only owners remove names.
pub const S_ISVTX: u32 = 0o1000;
/// Execution by the group.
pub const S_IXGRP: u32 = 0o010;

/// Linux's capabilities that count here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Capability {
    /// Change any owner.
    Chown = 0,
    /// Permission bits do not count.
    DacOverride = 1,
    /// Read files, read and search directories.
    DacReadSearch = 2,
    /// What only the owner may do.
    Fowner = 3,
    /// Set-id bits stay.
    Fsetid = 4,
    /// Administration: trusted and security attributes.
    SysAdmin = 21,
    /// Device nodes.
    Mknod = 27,
}

/// On whose behalf an operation runs, and the questions that are asked of it.
#[derive(Clone, Debug)]
pub struct Caller {
    cred: Cred,
}

impl Caller {
    /// The caller of a request. A request without a credential is nobody's.
    pub fn new(cred: Option<&Cred>) -> Caller {
        let nobody = || Cred { uid: 65_534, gid: 65_534, ..Cred::default() };
        Caller { cred: cred.cloned().unwrap_or_else(nobody) }
    }

    /// The user.
    pub fn uid(&self) -> u32 {
        self.cred.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.cred.gid
    }

    /// Bits that a new mode loses.
    pub fn umask(&self) -> u32 {
        self.cred.umask & 0o777
    }

    /// Whether it has a capability.
    pub fn capable(&self, capability: Capability) -> bool {
        self.cred.uid == 0 || self.cred.capabilities >> capability as u8 & 1 == 1
    }

    /// Whether it is in a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.cred.in_group(gid)
    }

    /// Whether it owns an object, or may act as if.
    pub fn is_owner(&self, inode: &Inode) -> bool {
        self.cred.uid == inode.uid || self.capable(Capability::Fowner)
    }

    fn in_group_or_capable(&self, gid: u32) -> bool {
        self.in_group(gid) || self.capable(Capability::Fsetid)
    }

    /// `EACCES` unless it may do all of `want` ([`READ`], [`WRITE`], [`EXECUTE`]) with the object.
    pub fn need(&self, inode: &Inode, want: u32) -> Result<(), Errno> {
        if self.bits_allow(inode, want) || self.capability_allows(inode, want) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn bits_allow(&self, inode: &Inode, want: u32) -> bool {
        let list = access_list(inode);
        if let Some(list) = list {
            return list.allows(inode.uid, inode.gid, self.cred.uid, |gid| self.in_group(gid), want);
        }
        let bits = match () {
            () if self.cred.uid == inode.uid => inode.mode >> 6,
            () if self.in_group(inode.gid) => inode.mode >> 3,
            () => inode.mode,
        };
        bits & want == want
    }

    fn capability_allows(&self, inode: &Inode, want: u32) -> bool {
        let runnable = inode.is_dir() || want & EXECUTE == 0 || inode.mode & 0o111 != 0;
        if self.capable(Capability::DacOverride) && runnable {
            return true;
        }
        let harmless = if inode.is_dir() { READ | EXECUTE } else { READ };
        self.capable(Capability::DacReadSearch) && want & !harmless == 0
    }

    /// Whether a name of `victim` in `dir` may be removed or changed: write permission, and `EPERM` where the sticky bit
    /// keeps other people's names.
    pub fn may_remove(&self, dir: &Inode, victim: &Inode) -> Result<(), Errno> {
        self.need(dir, WRITE | EXECUTE)?;
        let kept = dir.mode & S_ISVTX != 0 && self.cred.uid != victim.uid && self.cred.uid != dir.uid;
        if kept && !self.capable(Capability::Fowner) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// The mode after the file's data changed, or its owner: without set-id bits, where the rules say so. `write`: by
    /// somebody who may not keep them.
    pub fn mode_without_privileges(&self, inode: &Inode, write: bool) -> u32 {
        if write && (self.capable(Capability::Fsetid) || !inode.is_file()) {
            return inode.mode;
        }
        let mut mode = inode.mode & !S_ISUID;
        if mode & S_IXGRP != 0 || !self.in_group_or_capable(inode.gid) {
            mode &= !S_ISGID;
        }
        mode
    }

    /// A mode that somebody asked for, for an object of `gid`: without the set-group-id bit if that is not a group of
    /// the caller.
    pub fn mode_allowed(&self, mode: u32, gid: u32) -> u32 {
        self.cred.mode_allowed(mode, gid)
    }

    /// Group and mode of a new object in `dir`, before umask and lists.
    pub fn group_and_mode_of_new(&self, dir: &Inode, mode: u32) -> (u32, u32) {
        self.cred.group_and_mode_of_new(dir.gid, dir.mode, mode)
    }
}

/// The access list of an object, if it has one. A list that cannot be read allows what the mode does.
fn access_list(inode: &Inode) -> Option<Acl> {
    let xattr = inode.xattrs.iter().find(|xattr| xattr.name == acl::ACCESS)?;
    Acl::parse(&xattr.value).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::inode::{S_IFDIR, S_IFREG};

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller::new(Some(&Cred { uid, gid, groups: groups.to_vec(), ..Cred::default() }))
    }

    fn inode(mode: u32, uid: u32, gid: u32) -> Inode {
        Inode { mode, uid, gid, ..Inode::default() }
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
                    assert_eq!(caller.need(&file, want).is_ok(), allowed, "{mode:o} {want} {shift}");
                }
            }
            let root = caller(0, 0, &[]);
            for want in 0..=7 {
                let allowed = want & EXECUTE == 0 || mode & 0o111 != 0;
                assert_eq!(root.need(&file, want).is_ok(), allowed, "root, {mode:o} {want}");
                assert!(root.need(&inode(S_IFDIR | mode, 1, 2), want).is_ok());
            }
        }
    }

    #[test]
    fn a_sticky_directory_keeps_other_peoples_names() {
        let (dir, file) = (inode(S_IFDIR | 0o1777, 1, 1), inode(S_IFREG | 0o666, 2, 2));
        assert_eq!(caller(3, 3, &[]).may_remove(&dir, &file), Err(Errno::EPERM));
        for uid in [0, 1, 2] {
            assert_eq!(caller(uid, 3, &[]).may_remove(&dir, &file), Ok(()));
        }
        assert_eq!(caller(3, 3, &[]).may_remove(&inode(S_IFDIR | 0o1755, 1, 1), &file), Err(Errno::EACCES));
        assert_eq!(caller(3, 3, &[]).may_remove(&inode(S_IFDIR | 0o777, 1, 1), &file), Ok(()));
    }

    #[test]
    fn a_write_takes_set_id_bits_away_unless_it_is_roots() {
        let file = inode(S_IFREG | 0o6755, 1, 2);
        assert_eq!(caller(1, 2, &[]).mode_without_privileges(&file, true), S_IFREG | 0o755);
        assert_eq!(caller(0, 0, &[]).mode_without_privileges(&file, true), S_IFREG | 0o6755);
        assert_eq!(caller(0, 0, &[]).mode_without_privileges(&file, false), S_IFREG | 0o755, "a chown by root");
        let lock = inode(S_IFREG | 0o2644, 1, 2);
        assert_eq!(caller(1, 2, &[]).mode_without_privileges(&lock, true), S_IFREG | 0o2644, "mandatory locking");
        assert_eq!(caller(1, 3, &[]).mode_without_privileges(&lock, true), S_IFREG | 0o644);
    }

    #[test]
    fn a_set_group_id_directory_gives_its_group() {
        let (plain, shared) = (inode(S_IFDIR | 0o777, 1, 50), inode(S_IFDIR | 0o2777, 1, 50));
        let who = caller(7, 8, &[]);
        assert_eq!(who.group_and_mode_of_new(&plain, S_IFREG | 0o644), (8, S_IFREG | 0o644));
        assert_eq!(who.group_and_mode_of_new(&shared, S_IFREG | 0o644), (50, S_IFREG | 0o644));
        assert_eq!(who.group_and_mode_of_new(&shared, S_IFDIR | 0o755), (50, S_IFDIR | 0o2755));
        assert_eq!(who.group_and_mode_of_new(&shared, S_IFREG | 0o2755), (50, S_IFREG | 0o755));
        assert_eq!(caller(7, 50, &[]).group_and_mode_of_new(&shared, S_IFREG | 0o2755), (50, S_IFREG | 0o2755));
    }
}
