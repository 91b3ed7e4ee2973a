//! Permission checks, as in Linux's VFS.

use proto::Errno;
use proto::msg::Cred;

use super::list::{ACCESS, list_of};
use super::{Inode, Model, S_IFMT, S_ISGID, S_ISUID, S_ISVTX};

/// Permission to read.
pub(super) const READ: u32 = 4;
/// Permission to write.
pub(super) const WRITE: u32 = 2;
/// Permission to execute or search.
pub(super) const EXECUTE: u32 = 1;

pub(super) fn in_group(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}

/// `inode_permission`.
pub(super) fn may(inode: &Inode, cred: &Cred, mask: u32) -> Result<(), Errno> {
    if cred.uid == 0 {
        let runs = mask & EXECUTE == 0 || inode.is_dir() || inode.mode & 0o111 != 0;
        return if runs { Ok(()) } else { Err(Errno::EACCES) };
    }
    if let Some(list) = list_of(inode, ACCESS) {
        return if list.allows((inode.uid, inode.gid), cred, mask) { Ok(()) } else { Err(Errno::EACCES) };
    }
    let bits = match () {
        () if cred.uid == inode.uid => inode.mode >> 6,
        () if in_group(cred, inode.gid) => inode.mode >> 3,
        () => inode.mode,
    };
    if bits & mask == mask { Ok(()) } else { Err(Errno::EACCES) }
}

pub(super) fn is_owner(inode: &Inode, cred: &Cred) -> bool {
    cred.uid == 0 || cred.uid == inode.uid
}

/// `check_sticky`: whether a name in this directory may be removed.
pub(super) fn sticky(dir: &Inode, victim: &Inode, cred: &Cred) -> Result<(), Errno> {
    let free = dir.mode & S_ISVTX == 0 || cred.uid == 0 || cred.uid == victim.uid || cred.uid == dir.uid;
    if free { Ok(()) } else { Err(Errno::EPERM) }
}

/// `may_delete`.
pub(super) fn may_delete(dir: &Inode, victim: &Inode, cred: &Cred, directory: bool) -> Result<(), Errno> {
    may(dir, cred, WRITE | EXECUTE)?;
    sticky(dir, victim, cred)?;
    match (directory, victim.is_dir()) {
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        _ => Ok(()),
    }
}

/// Whether a change by this caller clears set-group-id.
fn drops_sgid(inode: &Inode, cred: &Cred) -> bool {
    inode.mode & S_ISGID != 0 && (inode.mode & 0o010 != 0 || (cred.uid != 0 && !in_group(cred, inode.gid)))
}

/// The mode after a change of owner or group.
pub(super) fn mode_after_chown(inode: &Inode, cred: &Cred) -> u32 {
    if inode.is_dir() {
        return inode.mode;
    }
    let mut mode = inode.mode & !S_ISUID;
    if drops_sgid(inode, cred) {
        mode &= !S_ISGID;
    }
    mode
}

/// The mode after a write.
pub(super) fn mode_after_write(inode: &Inode, cred: &Cred) -> u32 {
    if cred.uid == 0 || !inode.is_file() { inode.mode } else { mode_after_chown(inode, cred) }
}

/// The mode after a chmod.
pub(super) fn mode_after_chmod(inode: &Inode, cred: &Cred, mode: u32) -> u32 {
    let mut mode = mode & 0o7777;
    if cred.uid != 0 && !in_group(cred, inode.gid) {
        mode &= !S_ISGID;
    }
    inode.mode & S_IFMT | mode
}

impl Model {
    /// Owner, group and mode of a new object in a directory.
    pub(super) fn new_owner_and_mode(&self, dir: &Inode, cred: &Cred, mode: u32) -> (u32, u32, u32) {
        let masked = mode & !(cred.umask & 0o777);
        let mode = super::list::inherited(dir, mode).map_or(masked, |(mode, _)| mode);
        if dir.mode & S_ISGID == 0 {
            return (cred.uid, cred.gid, mode);
        }
        let inherited = if mode & S_IFMT == super::S_IFDIR { S_ISGID } else { 0 };
        (cred.uid, dir.gid, mode | inherited)
    }
}
