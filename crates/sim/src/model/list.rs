//! Access control lists (`acl(5)`), stored as the values of two extended attributes.

use proto::msg::Cred;
use proto::{Bytes, Errno};

use super::access::{in_group, is_owner, mode_after_chmod};
use super::{Body, Expected, Id, Inode, Model, S_IFDIR, S_IFLNK, S_IFMT, TimeRange};

type Outcome = Result<Expected, Errno>;

/// The attribute with the list that permission checks use.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new objects in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Kinds of entries, in the order in which lists have them.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OF_FILE: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
/// The name in an entry that names no user or group.
const NOBODY: u32 = u32::MAX;

/// A list: entries with kind, permissions, and the named user or group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct List(Vec<(u16, u16, u32)>);

impl List {
    /// A list that names a user and a group.
    pub(crate) fn naming(bits: [u16; 6], user: u32, group: u32) -> List {
        let kinds = [OWNER, USER, GROUP_OF_FILE, GROUP, MASK, OTHERS];
        let named = [NOBODY, user, NOBODY, group, NOBODY, NOBODY];
        List((0..6).map(|at| (kinds[at], bits[at], named[at])).collect())
    }

    /// A list equivalent to permission bits.
    pub(crate) fn of_mode(mode: u32) -> List {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        List(vec![(OWNER, bits(6), NOBODY), (GROUP_OF_FILE, bits(3), NOBODY), (OTHERS, bits(0), NOBODY)])
    }

    /// Encodes the list as Linux does.
    pub(crate) fn value(&self) -> Bytes {
        let entry = |(kind, bits, named): &(u16, u16, u32)| {
            [&kind.to_le_bytes()[..], &bits.to_le_bytes(), &named.to_le_bytes()].concat()
        };
        [vec![2, 0, 0, 0], self.0.iter().flat_map(entry).collect()].concat().into()
    }

    /// Decodes a list.
    pub(crate) fn read(value: &[u8]) -> List {
        let entry = |e: &[u8]| {
            (
                u16::from_le_bytes([e[0], e[1]]),
                u16::from_le_bytes([e[2], e[3]]),
                u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            )
        };
        List(value[4..].chunks_exact(8).map(entry).collect())
    }

    fn bits(&self, of: u16) -> Option<u16> {
        self.0.iter().find(|(kind, ..)| *kind == of).map(|(_, bits, _)| *bits)
    }

    /// The kind of entry that corresponds to the group bits of a mode.
    fn group_kind(&self) -> u16 {
        if self.bits(MASK).is_some() { MASK } else { GROUP_OF_FILE }
    }

    fn mode(&self) -> u32 {
        let bits = |kind| u32::from(self.bits(kind).unwrap_or(0));
        bits(OWNER) << 6 | bits(self.group_kind()) << 3 | bits(OTHERS)
    }

    /// Changes the permissions of the entry for each class of a mode.
    fn change(&mut self, change: impl Fn(u32, u16) -> u16) {
        let group = self.group_kind();
        for (kind, bits, _) in &mut self.0 {
            match *kind {
                OWNER => *bits = change(6, *bits),
                OTHERS => *bits = change(0, *bits),
                of if of == group => *bits = change(3, *bits),
                _ => {}
            }
        }
    }

    /// Whether it permits the caller an access to an object with this owner and group.
    pub(crate) fn allows(&self, (uid, gid): (u32, u32), cred: &Cred, wanted: u32) -> bool {
        let mask = self.bits(MASK).unwrap_or(7);
        let covers = |bits: u16| u32::from(bits) & wanted == wanted;
        if cred.uid == uid {
            return covers(self.bits(OWNER).unwrap_or(0));
        }
        if let Some((_, bits, _)) = self.0.iter().find(|(kind, _, named)| *kind == USER && *named == cred.uid) {
            return covers(bits & mask);
        }
        let is_of = |kind: u16, named: u32| match kind {
            GROUP_OF_FILE => in_group(cred, gid),
            GROUP => in_group(cred, named),
            _ => false,
        };
        let groups: Vec<u16> =
            self.0.iter().filter(|(kind, _, named)| is_of(*kind, *named)).map(|(_, bits, _)| bits & mask).collect();
        match groups.is_empty() {
            true => covers(self.bits(OTHERS).unwrap_or(0)),
            false => groups.into_iter().any(covers),
        }
    }
}

/// A list of an object, if it has one.
pub(super) fn list_of(inode: &Inode, which: &[u8]) -> Option<List> {
    inode.xattrs.get(which).map(|value| List::read(value))
}

/// Whether an extended attribute is a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Updates the list of an object after a `chmod`.
pub(super) fn list_after_chmod(inode: &mut Inode) {
    let mode = inode.mode;
    if let Some(mut list) = list_of(inode, ACCESS) {
        list.change(|shift, _| (mode >> shift & 7) as u16);
        inode.xattrs.insert(Bytes::from_static(ACCESS), list.value());
    }
}

/// Mode and lists of a new object in a directory; `None` if the directory has no default list.
pub(super) fn inherited(dir: &Inode, mode: u32) -> Option<(u32, Vec<(Bytes, Bytes)>)> {
    let default = list_of(dir, DEFAULT).filter(|_| mode & S_IFMT != S_IFLNK)?;
    let mut list = default.clone();
    list.change(|shift, bits| bits & (mode >> shift & 7) as u16);
    let mut lists = Vec::new();
    if list.bits(MASK).is_some() {
        lists.push((Bytes::from_static(ACCESS), list.value()));
    }
    if mode & S_IFMT == S_IFDIR {
        lists.push((Bytes::from_static(DEFAULT), default.value()));
    }
    Some((mode & !0o777 | list.mode(), lists))
}

impl Model {
    fn may_change_list(&self, cred: &Cred, id: Id, name: &[u8]) -> Result<(), Errno> {
        let inode = self.inode(id);
        match inode.body {
            Body::Symlink(_) => Err(Errno::EOPNOTSUPP),
            _ if name == DEFAULT && !inode.is_dir() => Err(Errno::EACCES),
            _ if !is_owner(inode, cred) => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }

    pub(super) fn set_list(&mut self, cred: &Cred, id: Id, name: &Bytes, value: &Bytes, when: TimeRange) -> Outcome {
        self.may_change_list(cred, id, name)?;
        let list = List::read(value);
        let mode = mode_after_chmod(self.inode(id), cred, self.inode(id).mode & 0o7000 | list.mode());
        let inode = self.change(id);
        inode.ctime = when;
        if name == ACCESS {
            inode.mode = mode;
        }
        // A list equivalent to the mode is not stored.
        match name == ACCESS && list.bits(MASK).is_none() {
            true => drop(inode.xattrs.remove(name)),
            false => drop(inode.xattrs.insert(name.clone(), list.value())),
        }
        Ok(Expected::Done)
    }

    pub(super) fn get_list(&self, id: Id, name: &Bytes) -> Outcome {
        if let Body::Symlink(_) = self.inode(id).body {
            return Err(Errno::EOPNOTSUPP);
        }
        self.inode(id).xattrs.get(name).cloned().map(Expected::Data).ok_or(Errno::ENODATA)
    }

    pub(super) fn remove_list(&mut self, cred: &Cred, id: Id, name: &Bytes, when: TimeRange) -> Outcome {
        self.may_change_list(cred, id, name)?;
        let inode = self.change(id);
        inode.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        inode.ctime = when;
        Ok(Expected::Done)
    }
}
