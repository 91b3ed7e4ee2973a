//! What a setattr does to an inode, and who may do it. Pure.

use crate::access::{Caller, Capability, WRITE};
use crate::tree;
use proto::Errno;
use proto::msg::{SetattrOp, valid};
use schema::Inode;

/// Greatest size of a file, in bytes.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// File capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// Checks a change of attributes and makes it, but for the data of a file whose size changes. `may_truncate`: the caller
/// has the file open for writing.
pub fn change(
    caller: &Caller,
    inode: &mut Inode,
    op: &SetattrOp,
    now_ns: i64,
    may_truncate: bool,
) -> Result<(), Errno> {
    if op.valid & valid::HOUSEKEEPING != 0 {
        rise(inode, op);
        return Ok(());
    }
    check(caller, inode, op, may_truncate)?;
    let has = |bit| op.valid & bit != 0;
    let old = inode.clone();
    let now_ns = inode.changed(if has(valid::CTIME) { op.ctime_ns } else { now_ns });
    if has(valid::UID) {
        inode.uid = op.uid;
    }
    if has(valid::GID) {
        inode.gid = op.gid;
    }
    if has(valid::MODE) {
        let mode = caller.mode_allowed(op.mode, inode.gid);
        tree::chmod(inode, mode);
    } else if has(valid::UID | valid::GID) && !inode.is_dir() {
        inode.mode = caller.mode_without_privileges(&old, false);
    } else if has(valid::SIZE | valid::KILL_PRIV) {
        inode.mode = caller.mode_without_privileges(&old, true);
    }
    let changes_data = has(valid::SIZE | valid::KILL_PRIV) || (has(valid::UID | valid::GID) && !inode.is_dir());
    if changes_data {
        // Capabilities of a program are for the program that it was, whoever changes it.
        inode.xattrs.retain(|xattr| xattr.name != CAPABILITY || xattr.large);
    }
    if has(valid::SIZE) {
        inode.content_changed(now_ns);
    }
    if has(valid::ATIME) {
        inode.atime_ns = if has(valid::ATIME_NOW) { now_ns } else { op.atime_ns };
    }
    if has(valid::MTIME) {
        let now = has(valid::MTIME_NOW);
        inode.mtime_ns = if now { now_ns } else { op.mtime_ns };
        inode.mtime_set_ns = if now || !inode.is_file() { 0 } else { now_ns };
    }
    Ok(())
}

/// Whether the caller may; errors in the order of Linux's `notify_change` and `setattr_prepare`.
fn check(caller: &Caller, inode: &Inode, op: &SetattrOp, may_truncate: bool) -> Result<(), Errno> {
    let has = |bits| op.valid & bits == bits;
    if has(valid::SIZE) {
        match () {
            () if inode.is_dir() => return Err(Errno::EISDIR),
            () if !inode.is_file() => return Err(Errno::EINVAL),
            () if op.size > SIZE_MAX => return Err(Errno::EFBIG),
            () if may_truncate => {}
            () => caller.need(inode, WRITE)?,
        }
    }
    let owner = caller.is_owner(inode);
    let both_now = has(valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::MTIME_NOW);
    if both_now && !owner && !has(valid::SIZE) {
        caller.need(inode, WRITE)?;
    }
    let same_user = caller.uid() == inode.uid;
    if has(valid::UID) && !(same_user && op.uid == inode.uid) && !caller.capable(Capability::Chown) {
        return Err(Errno::EPERM);
    }
    let own_group = same_user && (op.gid == inode.gid || caller.in_group(op.gid));
    if has(valid::GID) && !own_group && !caller.capable(Capability::Chown) {
        return Err(Errno::EPERM);
    }
    // A chown by somebody who may brings the mode without set-id bits along.
    let comes_with_chown = op.valid & (valid::UID | valid::GID) != 0 && caller.capable(Capability::Chown);
    if has(valid::MODE) && !owner && !comes_with_chown {
        return Err(Errno::EPERM);
    }
    let one = |time, now| has(time) && !(has(now) && (both_now || has(valid::SIZE)));
    if (one(valid::ATIME, valid::ATIME_NOW) || one(valid::MTIME, valid::MTIME_NOW)) && !owner {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Housekeeping of a client: times only rise, and of merged times those with the newest ctime win.
fn rise(inode: &mut Inode, op: &SetattrOp) {
    let has = |bit| op.valid & bit != 0;
    if has(valid::ATIME) {
        inode.atime_ns = inode.atime_ns.max(op.atime_ns);
    }
    if has(valid::MTIME) && (!has(valid::CTIME) || op.ctime_ns >= inode.ctime_ns) {
        inode.mtime_ns = inode.mtime_ns.max(op.mtime_ns);
    }
    if has(valid::CTIME) {
        inode.ctime_ns = inode.ctime_ns.max(op.ctime_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proto::msg::Cred;
    use schema::InodeXattr;
    use schema::inode::{S_IFDIR, S_IFLNK, S_IFREG};

    const NOW: i64 = 1000;

    fn caller(uid: u32, groups: &[u32]) -> Caller {
        Caller::new(Some(&Cred { uid, gid: uid, groups: groups.to_vec(), ..Cred::default() }))
    }

    fn file(mode: u32) -> Inode {
        Inode { mode: S_IFREG | mode, uid: 1, gid: 1, nlink: 1, ..Inode::default() }
    }

    fn run(caller: &Caller, inode: &Inode, op: SetattrOp) -> Result<Inode, Errno> {
        let mut inode = inode.clone();
        change(caller, &mut inode, &op, NOW, false).map(|()| inode)
    }

    fn op(valid: u32) -> SetattrOp {
        SetattrOp { valid, atime_ns: 5, mtime_ns: 6, ctime_ns: 7, mode: 0o7777, uid: 1, gid: 1, ..SetattrOp::default() }
    }

    #[test]
    fn only_the_owner_changes_the_mode_and_loses_a_foreign_set_group_id() {
        let inode = Inode { gid: 9, ..file(0o644) };
        assert_eq!(run(&caller(2, &[]), &inode, op(valid::MODE)), Err(Errno::EPERM));
        let changed = run(&caller(1, &[]), &inode, op(valid::MODE)).unwrap();
        assert_eq!((changed.mode, changed.ctime_ns, changed.mtime_ns), (S_IFREG | 0o5777, NOW, 0));
        assert_eq!(run(&caller(1, &[9]), &inode, op(valid::MODE)).unwrap().mode, S_IFREG | 0o7777);
        assert_eq!(run(&caller(0, &[]), &inode, op(valid::MODE)).unwrap().mode, S_IFREG | 0o7777);
    }

    #[test]
    fn owners_give_files_to_their_groups_and_only_root_to_other_users() {
        let inode = file(0o6755);
        let to_group = |gid| SetattrOp { gid, ..op(valid::GID) };
        assert_eq!(run(&caller(1, &[]), &inode, to_group(5)), Err(Errno::EPERM));
        let changed = run(&caller(1, &[5]), &inode, to_group(5)).unwrap();
        assert_eq!((changed.gid, changed.mode), (5, S_IFREG | 0o755));
        assert_eq!(run(&caller(2, &[5]), &inode, to_group(5)), Err(Errno::EPERM));
        let to_user = |uid| SetattrOp { uid, ..op(valid::UID) };
        assert_eq!(run(&caller(1, &[]), &inode, to_user(2)), Err(Errno::EPERM));
        assert!(run(&caller(1, &[]), &inode, to_user(1)).is_ok());
        let changed = run(&caller(0, &[]), &inode, to_user(2)).unwrap();
        assert_eq!((changed.uid, changed.mode), (2, S_IFREG | 0o755));
        let dir = Inode { mode: S_IFDIR | 0o2755, ..file(0) };
        assert_eq!(run(&caller(0, &[]), &dir, to_user(2)).unwrap().mode, S_IFDIR | 0o2755);
    }

    #[test]
    fn now_needs_write_permission_and_a_time_of_ones_own_the_owner() {
        const NOWS: u32 = valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::MTIME_NOW;
        let open_to_all = file(0o666);
        assert_eq!(run(&caller(2, &[]), &open_to_all, op(NOWS)).map(|i| (i.atime_ns, i.mtime_ns)), Ok((NOW, NOW)));
        assert_eq!(run(&caller(2, &[]), &file(0o644), op(NOWS)), Err(Errno::EACCES));
        assert!(run(&caller(1, &[]), &file(0o444), op(NOWS)).is_ok());
        for explicit in [valid::ATIME, valid::MTIME, valid::ATIME | valid::ATIME_NOW, NOWS & !valid::ATIME_NOW] {
            assert_eq!(run(&caller(2, &[]), &open_to_all, op(explicit)), Err(Errno::EPERM), "{explicit:x}");
        }
        let changed = run(&caller(1, &[]), &open_to_all, op(valid::ATIME | valid::MTIME)).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (5, 6, NOW));
    }

    #[test]
    fn a_truncate_needs_a_file_and_permission_or_an_open_one() {
        let dir = Inode { mode: S_IFDIR | 0o777, ..file(0) };
        let link = Inode { mode: S_IFLNK | 0o777, ..file(0) };
        assert_eq!(run(&caller(1, &[]), &dir, op(valid::SIZE)), Err(Errno::EISDIR));
        assert_eq!(run(&caller(1, &[]), &link, op(valid::SIZE)), Err(Errno::EINVAL));
        assert_eq!(run(&caller(2, &[]), &file(0o644), op(valid::SIZE)), Err(Errno::EACCES));
        let mut open = file(0o4555);
        assert_eq!(change(&caller(2, &[]), &mut open, &op(valid::SIZE), NOW, true), Ok(()));
        assert_eq!((open.mode, open.mtime_ns, open.ctime_ns), (S_IFREG | 0o555, NOW, NOW));
        // A write that was made after it came first.
        let mut written = Inode { mtime_ns: NOW + 3, ctime_ns: NOW + 3, ..file(0o644) };
        assert_eq!(change(&caller(1, &[]), &mut written, &op(valid::SIZE), NOW, true), Ok(()));
        assert_eq!((written.mtime_ns, written.ctime_ns), (NOW + 3, NOW + 3));
        assert_eq!(change(&caller(1, &[]), &mut written, &op(valid::MTIME), NOW, true), Ok(()));
        assert_eq!((written.mtime_ns, written.lvb().ctime_ns, written.ctime_ns), (6, NOW + 3, NOW + 3));
        // An mtime in the future, of which it is not known when it was set, or that is not a file's, does not keep "now" away.
        for kind in [S_IFREG, S_IFLNK] {
            let future = Inode { mode: kind | 0o644, mtime_ns: NOW * 9, ctime_ns: NOW - 1, ..file(0o644) };
            let touched = run(&caller(1, &[]), &future, op(valid::MTIME | valid::MTIME_NOW)).unwrap();
            assert_eq!((touched.mtime_ns, touched.ctime_ns), (NOW, NOW), "{kind:o}");
        }
    }

    /// Somebody has set the time of a directory to one that is still to come: that is when it changed for nobody else.
    #[test]
    fn a_time_ahead_that_was_set_on_a_directory_is_no_change() {
        let dir = Inode { mode: S_IFDIR | 0o755, mtime_ns: NOW + 3, ctime_ns: 4, ..file(0) };
        let all = op(valid::MTIME | valid::ATIME | valid::ATIME_NOW);
        let changed = run(&caller(1, &[]), &dir, all).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (NOW, 6, NOW));
    }

    #[test]
    fn capabilities_go_when_the_data_or_the_owner_changes() {
        let capability = InodeXattr { name: Bytes::from_static(CAPABILITY), ..InodeXattr::default() };
        let other = InodeXattr { name: Bytes::from_static(b"user.x"), ..InodeXattr::default() };
        let inode = Inode { xattrs: vec![capability, other], ..file(0o755) };
        for (what, left) in [(valid::SIZE, 1), (valid::KILL_PRIV, 1), (valid::UID, 1), (valid::MODE, 2)] {
            assert_eq!(run(&caller(0, &[]), &inode, op(what)).unwrap().xattrs.len(), left, "{what:x}");
        }
    }

    #[test]
    fn housekeeping_needs_nothing_and_times_only_rise() {
        let inode = Inode { atime_ns: 10, mtime_ns: 3, ctime_ns: 4, ..file(0) };
        let all = valid::HOUSEKEEPING | valid::ATIME | valid::MTIME | valid::CTIME;
        let changed = run(&caller(2, &[]), &inode, op(all)).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (10, 6, 7));
        let newer = Inode { ctime_ns: 100, ..inode };
        let changed = run(&caller(2, &[]), &newer, op(all)).unwrap();
        assert_eq!((changed.mtime_ns, changed.ctime_ns), (3, 100));
    }

    #[test]
    fn times_that_are_told_late_put_nothing_back() {
        let inode = Inode { atime_ns: 10, mtime_ns: 10, ctime_ns: 7, ..file(0o644) };
        let late = op(valid::HOUSEKEEPING | valid::ATIME | valid::MTIME | valid::CTIME);
        let changed = run(&caller(2, &[]), &inode, late).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (10, 10, 7));
    }
}
