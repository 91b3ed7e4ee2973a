//! The effect of a setattr on an inode: [`rules::attrs`], the access list and file capabilities.

use proto::Errno;
use proto::msg::SetattrOp;
use rules::Caller;
use rules::acl::{self, Acl};
use schema::Inode;

/// The attribute with the file capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// Applies a setattr to the inode. See [`rules::attrs::set`].
pub fn change(
    caller: &Caller<'_>,
    inode: &mut Inode,
    op: &SetattrOp,
    now_ns: i64,
    may_truncate: bool,
) -> Result<(), Errno> {
    let set = rules::attrs::set(caller, &*inode, op, now_ns, may_truncate)?;
    inode.take(&set.object);
    if set.is_chmod {
        list_follows_mode(inode);
    }
    if set.drops_capabilities {
        inode.xattrs.retain(|xattr| xattr.name != CAPABILITY || xattr.large);
    }
    Ok(())
}

/// Updates the access list after a chmod.
fn list_follows_mode(inode: &mut Inode) {
    for xattr in inode.xattrs.iter_mut().filter(|xattr| xattr.name == acl::ACCESS) {
        if let Ok(Some(mut list)) = Acl::parse(&xattr.value) {
            list.chmod(inode.mode);
            xattr.value = list.to_value();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proto::msg::{Cred, valid};
    use rules::acl::{Ace, Who};
    use rules::mode::S_IFREG;
    use schema::InodeXattr;

    fn xattr(name: &'static [u8], value: Bytes) -> InodeXattr {
        InodeXattr { name: Bytes::from_static(name), value, large: false }
    }

    #[test]
    fn capabilities_go_when_the_data_or_the_owner_changes() {
        let root = Cred::default();
        for (what, left) in [(valid::SIZE, 1), (valid::KILL_PRIV, 1), (valid::UID, 1), (valid::MODE, 2)] {
            let xattrs = vec![xattr(CAPABILITY, Bytes::new()), xattr(b"user.x", Bytes::new())];
            let mut inode = Inode { mode: S_IFREG | 0o755, xattrs, ..Inode::default() };
            let op = SetattrOp { valid: what, mode: 0o700, uid: 1, ..SetattrOp::default() };
            assert_eq!(change(&Caller::of(&root), &mut inode, &op, 5, false), Ok(()));
            assert_eq!((inode.xattrs.len(), inode.ctime_ns), (left, 5), "{what:x}");
        }
    }

    #[test]
    fn a_chmod_changes_the_access_list() {
        let entries = [(Who::UserObj, 7), (Who::User(9), 7), (Who::GroupObj, 5), (Who::Mask, 7), (Who::Other, 5)];
        let list = Acl::new(entries.map(|(who, perm)| Ace { who, perm })).unwrap();
        let xattrs = vec![xattr(acl::ACCESS, list.to_value())];
        let mut inode = Inode { mode: S_IFREG | list.mode(), xattrs, ..Inode::default() };
        let op = SetattrOp { valid: valid::MODE, mode: 0o640, ..SetattrOp::default() };
        assert_eq!(change(&Caller::of(&Cred::default()), &mut inode, &op, 5, false), Ok(()));
        let list = Acl::parse(&inode.xattrs[0].value).unwrap().unwrap();
        assert_eq!((inode.mode, list.mode()), (S_IFREG | 0o640, 0o640));
    }
}
