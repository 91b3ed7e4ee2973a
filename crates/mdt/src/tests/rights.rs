//! Who may do what, through whole operations: directories, lists, attributes, sticky bits.

use super::*;
use crate::ops::open::flags as o;
use proto::msg::valid;
use rules::acl;

pub(super) fn chmod(w: &mut World, fid: Fid, mode: u32) {
    w.setattr_as(cred(0), SetattrOp { fid, valid: valid::MODE, mode, ..SetattrOp::default() }).unwrap();
}

fn chown(w: &mut World, fid: Fid, id: u32) {
    let op = SetattrOp { fid, valid: valid::UID | valid::GID, uid: id, gid: id, ..SetattrOp::default() };
    w.setattr_as(cred(0), op).unwrap();
}

fn setxattr(w: &mut World, who: Cred, fid: Fid, name: &str, value: &[u8], flags: u32) -> Result<Attr, Errno> {
    let value = Bytes::copy_from_slice(value);
    let op = SetxattrOp { fid, name: bytes(name), value, flags, remove: false };
    w.reint_as(0, who, WantLocks::default(), Reint::Setxattr(op)).map(|rep| rep.attr.unwrap())
}

fn removexattr(w: &mut World, fid: Fid, name: &str) -> Result<Attr, Errno> {
    let op = SetxattrOp { fid, name: bytes(name), remove: true, ..SetxattrOp::default() };
    w.reint(Reint::Setxattr(op)).map(|rep| rep.attr.unwrap())
}

fn getxattr(w: &mut World, who: Cred, fid: Fid, name: &str) -> Result<Bytes, Errno> {
    let request = GetxattrReq { fid, name: bytes(name), cred: Some(who), all: false, want: None };
    w.call::<GetxattrRep>(0, Opcode::MdsGetxattr, &request).map(|rep| rep.xattrs[0].value.clone())
}

fn listxattr(w: &mut World, who: Cred, fid: Fid) -> Vec<String> {
    let request = GetxattrReq { fid, cred: Some(who), ..GetxattrReq::default() };
    let rep: GetxattrRep = w.call(0, Opcode::MdsGetxattr, &request).unwrap();
    rep.xattrs.iter().map(|xattr| String::from_utf8_lossy(&xattr.name).into()).collect()
}

#[test]
fn directories_say_who_may_search_and_change_them() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let file = w.mknod(dir, "file");
    chmod(&mut w, dir, 0o700);
    assert_eq!(w.lookup_as(0, cred(5), dir, "file"), Err(Errno::EACCES));
    assert_eq!(w.create_as(0, cred(5), dir, "file", S_IFREG), Err(Errno::EACCES), "search comes before the name");
    chmod(&mut w, dir, 0o755);
    assert!(w.lookup_as(0, cred(5), dir, "file").unwrap().is_some());
    assert_eq!(w.create_as(0, cred(5), dir, "file", S_IFREG), Err(Errno::EEXIST), "the name comes before writing");
    assert_eq!(w.create_as(0, cred(5), dir, "new", S_IFREG), Err(Errno::EACCES));
    assert_eq!(w.remove_as(0, cred(5), dir, "none", false), Err(Errno::ENOENT));
    assert_eq!(w.remove_as(0, cred(5), dir, "file", false), Err(Errno::EACCES));
    assert_eq!(w.rename_as(0, cred(5), (dir, "file"), (Fid::ROOT, "x"), 0), Err(Errno::EACCES));
    let link = LinkOp { fid: file, parent: dir, name: bytes("x"), kind: 0 };
    assert_eq!(w.reint_as(0, cred(5), WantLocks::default(), Reint::Link(link)), Err(Errno::EACCES));
    chmod(&mut w, dir, 0o1777);
    assert_eq!(w.remove_as(0, cred(5), dir, "file", false), Err(Errno::EPERM), "sticky");
    w.create_as(0, cred(5), dir, "mine", S_IFREG | 0o600).unwrap();
    assert_eq!(w.rename_as(0, cred(6), (dir, "mine"), (dir, "yours"), 0), Err(Errno::EPERM));
    assert_eq!(w.rename_as(0, cred(5), (dir, "mine"), (dir, "file"), 0), Err(Errno::EPERM), "what is replaced counts");
    assert!(w.remove_as(0, cred(5), dir, "mine", false).is_ok());
    w.check();
}

#[test]
fn a_moved_directory_must_be_writable_because_its_parent_changes() {
    let mut w = World::new();
    let (a, b) = (w.mkdir(Fid::ROOT, "a"), w.mkdir(Fid::ROOT, "b"));
    chmod(&mut w, a, 0o777);
    chmod(&mut w, b, 0o777);
    let sub = w.mkdir(a, "sub");
    assert_eq!(w.rename_as(0, cred(5), (a, "sub"), (b, "sub"), 0), Err(Errno::EACCES));
    assert!(w.rename_as(0, cred(5), (a, "sub"), (a, "other"), 0).is_ok());
    chmod(&mut w, sub, 0o777);
    assert!(w.rename_as(0, cred(5), (a, "other"), (b, "sub"), 0).is_ok());
    w.check();
}

#[test]
fn new_objects_get_owner_group_and_mode_by_the_rules() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    chmod(&mut w, dir, 0o2777);
    let op = SetattrOp { fid: dir, valid: valid::GID, gid: 77, ..SetattrOp::default() };
    w.setattr_as(cred(0), op).unwrap();
    w.create_as(0, cred(5), dir, "file", S_IFREG | 0o666).unwrap();
    w.create_as(0, cred(5), dir, "sub", S_IFDIR | 0o777).unwrap();
    let attr = w.lookup(dir, "file").unwrap();
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 77, S_IFREG | 0o644));
    assert_eq!(w.lookup(dir, "sub").unwrap().mode, S_IFDIR | 0o2755);
    let device = rules::mode::S_IFCHR | 0o600;
    assert_eq!(w.create_as(0, cred(5), dir, "disk", rules::mode::S_IFBLK | 0o600), Err(Errno::EPERM));
    assert!(w.create_as(0, cred(5), dir, "whiteout", device).is_ok(), "it leads nowhere");
    let fid = w.new_fid(0);
    let op = CreateOp { parent: dir, name: bytes("null"), fid, mode: device, rdev: 0x103, ..CreateOp::default() };
    assert_eq!(w.reint(Reint::Create(op)).unwrap().attr.unwrap().rdev, 0x103);
    assert_eq!(w.lookup(dir, "null").unwrap().mode, device);
    w.check();
}

#[test]
fn attributes_have_names_values_and_limits() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    chown(&mut w, file, 5);
    assert_eq!(getxattr(&mut w, cred(5), file, "user.a"), Err(Errno::ENODATA));
    assert!(!w.getattr(file).unwrap().has_xattrs);
    assert!(setxattr(&mut w, cred(5), file, "user.a", b"1", 1).unwrap().has_xattrs);
    assert_eq!(setxattr(&mut w, cred(5), file, "user.a", b"2", 1), Err(Errno::EEXIST));
    assert_eq!(setxattr(&mut w, cred(5), file, "user.b", b"2", 2), Err(Errno::ENODATA));
    setxattr(&mut w, cred(5), file, "user.a", b"2", 2).unwrap();
    assert_eq!(getxattr(&mut w, cred(5), file, "user.a").unwrap(), "2");
    assert_eq!(setxattr(&mut w, cred(5), file, "trusted.a", b"", 0), Err(Errno::EPERM));
    setxattr(&mut w, cred(0), file, "trusted.a", b"", 0).unwrap();
    assert_eq!(setxattr(&mut w, cred(0), file, "user.big", &[0; 65537], 0), Err(Errno::E2BIG));
    for size in [65536, 10, 5000] {
        setxattr(&mut w, cred(0), file, "user.big", &vec![7; size], 0).unwrap();
        w.check();
        assert_eq!(getxattr(&mut w, cred(0), file, "user.big").unwrap().len(), size);
    }
    for i in 0..10 {
        setxattr(&mut w, cred(0), file, &format!("user.x{i}"), &[1; 200], 0).unwrap();
    }
    w.check();
    assert_eq!(listxattr(&mut w, cred(5), file)[..2], ["user.a", "user.big"]);
    assert_eq!(listxattr(&mut w, cred(0), file)[..3], ["user.a", "trusted.a", "user.big"]);
    removexattr(&mut w, file, "user.big").unwrap();
    assert_eq!(removexattr(&mut w, file, "user.big"), Err(Errno::ENODATA));
    w.check();
    let request = GetxattrReq { fid: file, cred: Some(cred(0)), all: true, ..GetxattrReq::default() };
    assert_eq!(w.call::<GetxattrRep>(0, Opcode::MdsGetxattr, &request).unwrap().xattrs.len(), 12);
    w.unlink(Fid::ROOT, "file").unwrap();
    assert_eq!(w.records::<schema::LargeXattr>(), 0);
    w.check();
}

/// A list in Linux's format.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

const NO_ID: u32 = u32::MAX;

#[test]
fn access_lists_are_enforced_and_follow_the_mode() {
    let access = core::str::from_utf8(acl::ACCESS).unwrap();
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    chmod(&mut w, dir, 0o700);
    let value = list(&[(1, 7, NO_ID), (2, 5, 5), (4, 0, NO_ID), (0x10, 7, NO_ID), (0x20, 0, NO_ID)]);
    let attr = setxattr(&mut w, cred(0), dir, access, &value, 0).unwrap();
    assert_eq!(attr.mode, S_IFDIR | 0o770, "the group bits are the mask");
    assert_eq!(w.lookup_as(0, cred(5), dir, "x"), Ok(None));
    assert_eq!(w.lookup_as(0, cred(6), dir, "x"), Err(Errno::EACCES));
    assert_eq!(w.create_as(0, cred(5), dir, "x", S_IFREG), Err(Errno::EACCES));
    chmod(&mut w, dir, 0o700);
    assert_eq!(w.lookup_as(0, cred(5), dir, "x"), Err(Errno::EACCES), "the mask is empty");
    let value = getxattr(&mut w, cred(5), dir, access).unwrap();
    assert_eq!(acl::Acl::parse(&value).unwrap().unwrap().mode(), 0o700);
    // A list that says no more than a mode becomes one.
    let attr =
        setxattr(&mut w, cred(0), dir, access, &list(&[(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 1, NO_ID)]), 0).unwrap();
    assert_eq!((attr.mode, attr.has_xattrs), (S_IFDIR | 0o751, false));
    assert_eq!(setxattr(&mut w, cred(0), dir, access, b"nonsense", 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(setxattr(&mut w, cred(5), dir, access, &value, 0), Err(Errno::EPERM));
    w.check();
}

#[test]
fn a_default_list_is_inherited_instead_of_the_umask() {
    let default = core::str::from_utf8(acl::DEFAULT).unwrap();
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    let value = list(&[(1, 7, NO_ID), (2, 6, 5), (4, 5, NO_ID), (0x10, 7, NO_ID), (0x20, 0, NO_ID)]);
    setxattr(&mut w, cred(0), dir, default, &value, 0).unwrap();
    let file = w.create(dir, "file", S_IFREG | 0o666).unwrap();
    let sub = w.create(dir, "sub", S_IFDIR | 0o777).unwrap();
    assert_eq!(w.getattr(file).unwrap().mode, S_IFREG | 0o660);
    assert_eq!(w.getattr(sub).unwrap().mode, S_IFDIR | 0o770);
    assert_eq!(listxattr(&mut w, cred(0), sub).len(), 2);
    assert_eq!(listxattr(&mut w, cred(0), file).len(), 1);
    let op = OpenOp { fid: file, flags: 2, ..OpenOp::default() };
    assert!(w.reint_as(0, cred(5), WantLocks::default(), Reint::Open(op.clone())).is_ok());
    assert_eq!(w.reint_as(0, cred(6), WantLocks::default(), Reint::Open(op)), Err(Errno::EACCES));
    w.check();
}

#[test]
fn an_open_that_cuts_a_file_takes_its_set_id_bits_away_unless_it_is_roots() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, "file");
    chown(&mut w, file, 5);
    for (who, left) in [(5, 0o755), (0, 0o6755)] {
        chmod(&mut w, file, 0o6755);
        let op = OpenOp { fid: file, flags: o::TRUNC | 1, ..OpenOp::default() };
        let rep = w.reint_as(0, cred(who), WantLocks::default(), Reint::Open(op)).unwrap();
        assert_eq!(rep.attr.unwrap().mode & 0o7777, left, "by user {who}");
        assert_eq!(w.getattr(file).unwrap().mode & 0o7777, left, "by user {who}");
    }
    w.check();
}
