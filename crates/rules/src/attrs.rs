//! Changes of attributes (`setattr`): who may make them, and their effect on the object.

use crate::access::{Caller, Capability, WRITE};
use crate::mode::S_IFMT;
use crate::object::Object;
use proto::Errno;
use proto::msg::{SetattrOp, valid};

/// Greatest size of a file, in bytes.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// The effect of a setattr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Set {
    /// The object after the change, without its access list.
    pub object: Object<'static>,
    /// The mode changed, so the caller must update the access list ([`crate::acl::Acl::chmod`]).
    pub is_chmod: bool,
    /// The file capabilities must be removed, because they were granted to the unchanged program. This holds for every caller.
    pub drops_capabilities: bool,
}

/// Checks a change of attributes and returns its effect. The data of a file whose size changes is left to the caller.
/// `may_truncate`: the caller of the operation has the file open for writing.
pub fn set<'a>(
    caller: &Caller<'_>,
    object: impl Into<Object<'a>>,
    op: &SetattrOp,
    now_ns: i64,
    may_truncate: bool,
) -> Result<Set, Errno> {
    let old = object.into();
    let mut object = old.detached();
    let has = |bit| op.valid & bit != 0;
    if has(valid::HOUSEKEEPING) {
        raise_times(&mut object, op);
        return Ok(Set { object, is_chmod: false, drops_capabilities: false });
    }
    // Checks `old`, because `object` has no access list.
    check(caller, &old, op, may_truncate)?;
    let now_ns = object.changed(if has(valid::CTIME) { op.ctime_ns } else { now_ns });
    if has(valid::UID) {
        object.uid = op.uid;
    }
    if has(valid::GID) {
        object.gid = op.gid;
    }
    let changes_owner = has(valid::UID | valid::GID) && !object.is_dir();
    let changes_data = has(valid::SIZE | valid::KILL_PRIV);
    if has(valid::MODE) {
        object.mode = object.mode & S_IFMT | caller.mode_allowed(op.mode, object.gid) & 0o7777;
    } else if changes_owner {
        object.mode = caller.mode_without_privileges(old, false);
    } else if changes_data {
        object.mode = caller.mode_without_privileges(old, true);
    }
    if has(valid::SIZE) {
        object.content_changed(now_ns);
    }
    if has(valid::ATIME) {
        object.atime_ns = if has(valid::ATIME_NOW) { now_ns } else { op.atime_ns };
    }
    if has(valid::MTIME) {
        let now = has(valid::MTIME_NOW);
        object.mtime_ns = if now { now_ns } else { op.mtime_ns };
        object.mtime_set_ns = if now || !object.is_file() && !object.is_dir() { 0 } else { now_ns };
    }
    Ok(Set { object, is_chmod: has(valid::MODE), drops_capabilities: changes_data || changes_owner })
}

/// Checks whether the caller may, with errors in the order of Linux's `notify_change` and `setattr_prepare`.
fn check(caller: &Caller<'_>, object: &Object<'_>, op: &SetattrOp, may_truncate: bool) -> Result<(), Errno> {
    let has = |bits| op.valid & bits == bits;
    if has(valid::SIZE) {
        match () {
            () if object.is_dir() => return Err(Errno::EISDIR),
            () if !object.is_file() => return Err(Errno::EINVAL),
            () if op.size > SIZE_MAX => return Err(Errno::EFBIG),
            () if may_truncate => {}
            () => caller.need(*object, WRITE)?,
        }
    }
    let owner = caller.is_owner(*object);
    let both_now = has(valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::MTIME_NOW);
    if both_now && !owner && !has(valid::SIZE) {
        caller.need(*object, WRITE)?;
    }
    let same_user = caller.uid() == object.uid;
    if has(valid::UID) && !(same_user && op.uid == object.uid) && !caller.capable(Capability::Chown) {
        return Err(Errno::EPERM);
    }
    let own_group = same_user && (op.gid == object.gid || caller.in_group(op.gid));
    if has(valid::GID) && !own_group && !caller.capable(Capability::Chown) {
        return Err(Errno::EPERM);
    }
    // With a permitted chown, the kernel also sends the mode without set-id bits.
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

/// Merges times that a client reports and no program has set. Times only rise, and an mtime with an older ctime than the
/// object's is ignored.
fn raise_times(object: &mut Object<'_>, op: &SetattrOp) {
    let has = |bit| op.valid & bit != 0;
    if has(valid::ATIME) {
        object.atime_ns = object.atime_ns.max(op.atime_ns);
    }
    if has(valid::MTIME) && (!has(valid::CTIME) || op.ctime_ns >= object.ctime_ns) {
        object.mtime_ns = object.mtime_ns.max(op.mtime_ns);
    }
    if has(valid::CTIME) {
        object.ctime_ns = object.ctime_ns.max(op.ctime_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Ace, Acl, Who};
    use crate::mode::{S_IFDIR, S_IFLNK, S_IFREG};
    use proto::msg::Cred;

    const NOW: i64 = 1000;

    fn caller(uid: u32, groups: &[u32]) -> Caller<'static> {
        Caller::of(Box::leak(Box::new(Cred { uid, gid: uid, groups: groups.to_vec(), ..Cred::default() })))
    }

    fn file(mode: u32) -> Object<'static> {
        Object { mode: S_IFREG | mode, uid: 1, gid: 1, nlink: 1, ..Object::default() }
    }

    fn run(caller: &Caller, inode: &Object<'static>, op: SetattrOp) -> Result<Object<'static>, Errno> {
        set(caller, *inode, &op, NOW, false).map(|set| set.object)
    }

    fn op(valid: u32) -> SetattrOp {
        SetattrOp { valid, atime_ns: 5, mtime_ns: 6, ctime_ns: 7, mode: 0o7777, uid: 1, gid: 1, ..SetattrOp::default() }
    }

    #[test]
    fn only_the_owner_changes_the_mode_and_loses_a_foreign_set_group_id() {
        let inode = Object { gid: 9, ..file(0o644) };
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
        let dir = Object { mode: S_IFDIR | 0o2755, ..file(0) };
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
        let dir = Object { mode: S_IFDIR | 0o777, ..file(0) };
        let link = Object { mode: S_IFLNK | 0o777, ..file(0) };
        assert_eq!(run(&caller(1, &[]), &dir, op(valid::SIZE)), Err(Errno::EISDIR));
        assert_eq!(run(&caller(1, &[]), &link, op(valid::SIZE)), Err(Errno::EINVAL));
        assert_eq!(run(&caller(2, &[]), &file(0o644), op(valid::SIZE)), Err(Errno::EACCES));
        let open = set(&caller(2, &[]), file(0o4555), &op(valid::SIZE), NOW, true).unwrap().object;
        assert_eq!((open.mode, open.mtime_ns, open.ctime_ns), (S_IFREG | 0o555, NOW, NOW));
        // A write with a later time arrived first.
        let written = Object { mtime_ns: NOW + 3, ctime_ns: NOW + 3, ..file(0o644) };
        let written = set(&caller(1, &[]), written, &op(valid::SIZE), NOW, true).unwrap().object;
        assert_eq!((written.mtime_ns, written.ctime_ns), (NOW + 3, NOW + 3));
        let touched = set(&caller(1, &[]), written, &op(valid::MTIME), NOW, true).unwrap().object;
        assert_eq!((touched.mtime_ns, touched.mtime_set_ns, touched.ctime_ns), (6, NOW + 3, NOW + 3));
        // An mtime in the future does not prevent setting it to now, whether it is a file's or not.
        for kind in [S_IFREG, S_IFLNK] {
            let future = Object { mode: kind | 0o644, mtime_ns: NOW * 9, ctime_ns: NOW - 1, ..file(0o644) };
            let touched = run(&caller(1, &[]), &future, op(valid::MTIME | valid::MTIME_NOW)).unwrap();
            assert_eq!((touched.mtime_ns, touched.ctime_ns), (NOW, NOW), "{kind:o}");
        }
    }

    /// A directory's mtime was set to the future. That does not move the ctime of later changes into the future.
    #[test]
    fn a_time_ahead_that_was_set_on_a_directory_is_no_change() {
        let dir = Object { mode: S_IFDIR | 0o755, mtime_ns: NOW + 3, ctime_ns: 4, ..file(0) };
        let all = op(valid::MTIME | valid::ATIME | valid::ATIME_NOW);
        let changed = run(&caller(1, &[]), &dir, all).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (NOW, 6, NOW));
    }

    /// A user whom the list names may write. A user whom only the mode's group bits would allow may not.
    #[test]
    fn the_access_list_says_who_may_write() {
        let entries = [(Who::UserObj, 6), (Who::User(2), 6), (Who::GroupObj, 0), (Who::Mask, 6), (Who::Other, 0)];
        let list = Acl::new(entries.map(|(who, perm)| Ace { who, perm })).unwrap();
        let value = list.to_value();
        let listed = Object { mode: S_IFREG | list.mode(), gid: 9, access_list: Some(&value), ..file(0) };
        const NOWS: u32 = valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::MTIME_NOW;
        for what in [valid::SIZE, NOWS] {
            assert!(set(&caller(2, &[]), listed, &op(what), NOW, false).is_ok(), "{what:x}");
            assert_eq!(set(&caller(3, &[9]), listed, &op(what), NOW, false), Err(Errno::EACCES), "{what:x}");
        }
    }

    #[test]
    fn capabilities_go_when_the_data_or_the_owner_changes() {
        let drops = |object: &Object<'static>, what| {
            set(&caller(0, &[]), *object, &op(what), NOW, false).unwrap().drops_capabilities
        };
        let dir = Object { mode: S_IFDIR | 0o755, ..file(0) };
        for (what, expected) in
            [(valid::SIZE, true), (valid::KILL_PRIV, true), (valid::UID, true), (valid::MODE, false)]
        {
            assert_eq!(drops(&file(0o755), what), expected, "{what:x}");
        }
        assert!(!drops(&dir, valid::UID));
    }

    #[test]
    fn housekeeping_needs_nothing_and_times_only_rise() {
        let inode = Object { atime_ns: 10, mtime_ns: 3, ctime_ns: 4, ..file(0) };
        let all = valid::HOUSEKEEPING | valid::ATIME | valid::MTIME | valid::CTIME;
        let changed = run(&caller(2, &[]), &inode, op(all)).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (10, 6, 7));
        let newer = Object { ctime_ns: 100, ..inode };
        let changed = run(&caller(2, &[]), &newer, op(all)).unwrap();
        assert_eq!((changed.mtime_ns, changed.ctime_ns), (3, 100));
    }

    #[test]
    fn times_that_are_told_late_put_nothing_back() {
        let inode = Object { atime_ns: 10, mtime_ns: 10, ctime_ns: 7, ..file(0o644) };
        let late = op(valid::HOUSEKEEPING | valid::ATIME | valid::MTIME | valid::CTIME);
        let changed = run(&caller(2, &[]), &inode, late).unwrap();
        assert_eq!((changed.atime_ns, changed.mtime_ns, changed.ctime_ns), (10, 10, 7));
    }
}
