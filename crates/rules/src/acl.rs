//! POSIX access control lists, as in POSIX 1003.1e draft 17 and `acl(5)`.
//!
//! A list is stored as the value of its extended attribute, in Linux's format (version 2, little endian: a header of four
//! bytes, then tag, permissions and id of each entry), and parsed at each check. A list without named entries is equivalent
//! to a mode and is not stored.

use bytes::Bytes;
use proto::Errno;

/// Name of the attribute with the access list, which permission checks use.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the default list, which new objects in a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Most entries of a list.
const ENTRIES_MAX: usize = 1024;
const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

/// The user or group of an entry. Entries of a list are in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Who {
    /// The owner.
    UserObj,
    /// A named user.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A named group.
    Group(u32),
    /// The most permissions that named users and groups and the owning group get.
    Mask,
    /// All others.
    Other,
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ace {
    /// The user or group.
    pub who: Who,
    /// `rwx`, as in a mode.
    pub perm: u32,
}

/// A valid, sorted list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Ace>);

impl Acl {
    /// A list of these entries, given in any order; `None` if they are not a valid list.
    pub fn new(entries: impl IntoIterator<Item = Ace>) -> Option<Acl> {
        let mut entries: Vec<Ace> = entries.into_iter().collect();
        entries.sort_by_key(|ace| ace.who);
        Some(Acl(entries)).filter(Acl::is_valid)
    }

    /// Parses the value of an attribute. `None` if it has no entries, which means to remove the list.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, Errno> {
        let (version, mut rest) = value.split_at_checked(4).ok_or(Errno::EINVAL)?;
        if le32(version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if rest.len() % 8 != 0 || rest.len() / 8 > ENTRIES_MAX {
            return Err(Errno::EINVAL);
        }
        let mut entries = Vec::with_capacity(rest.len() / 8);
        while let Some((ace, more)) = rest.split_at_checked(8) {
            let (tag, perm, id) = (le16(&ace[..2]), u32::from(le16(&ace[2..4])), le32(&ace[4..]));
            let who = match tag {
                0x01 => Who::UserObj,
                0x02 if id != NO_ID => Who::User(id),
                0x04 => Who::GroupObj,
                0x08 if id != NO_ID => Who::Group(id),
                0x10 => Who::Mask,
                0x20 => Who::Other,
                _ => return Err(Errno::EINVAL),
            };
            if perm > 7 {
                return Err(Errno::EINVAL);
            }
            entries.push(Ace { who, perm });
            rest = more;
        }
        if entries.is_empty() {
            return Ok(None);
        }
        Acl::new(entries).map(Some).ok_or(Errno::EINVAL)
    }

    /// A valid list has one entry each for owner, group and others, a mask if it has named entries, and no duplicates.
    fn is_valid(&self) -> bool {
        let has = |who| self.find(who).is_some();
        let named = self.0.iter().any(|ace| matches!(ace.who, Who::User(_) | Who::Group(_)));
        let once = self.0.windows(2).all(|pair| pair[0].who < pair[1].who);
        once && has(Who::UserObj) && has(Who::GroupObj) && has(Who::Other) && (!named || has(Who::Mask))
    }

    /// The value of the attribute.
    pub fn to_value(&self) -> Bytes {
        let mut out = Vec::with_capacity(4 + 8 * self.0.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for ace in &self.0 {
            let (tag, id) = match ace.who {
                Who::UserObj => (0x01_u16, NO_ID),
                Who::User(id) => (0x02, id),
                Who::GroupObj => (0x04, NO_ID),
                Who::Group(id) => (0x08, id),
                Who::Mask => (0x10, NO_ID),
                Who::Other => (0x20, NO_ID),
            };
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&(ace.perm as u16).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out.into()
    }

    fn find(&self, who: Who) -> Option<u32> {
        self.0.iter().find(|ace| ace.who == who).map(|ace| ace.perm)
    }

    fn set(&mut self, who: Who, perm: u32) {
        if let Some(ace) = self.0.iter_mut().find(|ace| ace.who == who) {
            ace.perm = perm;
        }
    }

    /// The nine permission bits of the list. The group's bits are those of the mask, if there is one.
    pub fn mode(&self) -> u32 {
        let bits = |who| self.find(who).unwrap_or(0);
        let group = self.find(Who::Mask).unwrap_or(bits(Who::GroupObj));
        bits(Who::UserObj) << 6 | group << 3 | bits(Who::Other)
    }

    /// Whether it is equivalent to a mode.
    pub fn is_a_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Applies a `chmod` of the object to the list.
    pub fn chmod(&mut self, mode: u32) {
        self.set(Who::UserObj, mode >> 6 & 7);
        let group = if self.find(Who::Mask).is_some() { Who::Mask } else { Who::GroupObj };
        self.set(group, mode >> 3 & 7);
        self.set(Who::Other, mode & 7);
    }

    /// The access list and the mode of a new object in a directory with this default list. Each is limited by the other.
    pub fn inherit(&self, mode: u32) -> (Acl, u32) {
        let mut acl = self.clone();
        let group = if acl.find(Who::Mask).is_some() { Who::Mask } else { Who::GroupObj };
        for (who, wanted) in [(Who::UserObj, mode >> 6), (group, mode >> 3), (Who::Other, mode)] {
            let perm = acl.find(who).unwrap_or(0);
            acl.set(who, perm & wanted);
        }
        let mode = mode & !0o777 | acl.mode();
        (acl, mode)
    }

    /// Whether the list gives a user all permissions in `want` (`rwx`) on an object of `owner` and `group`.
    pub fn allows(&self, owner: u32, group: u32, uid: u32, in_group: impl Fn(u32) -> bool, want: u32) -> bool {
        let mask = self.find(Who::Mask).unwrap_or(7);
        let covers = |perm: u32| perm & want == want;
        if uid == owner {
            return covers(self.find(Who::UserObj).unwrap_or(0));
        }
        if let Some(perm) = self.find(Who::User(uid)) {
            return covers(perm & mask);
        }
        let mut is_member = false;
        for ace in &self.0 {
            let gid = match ace.who {
                Who::GroupObj => group,
                Who::Group(gid) => gid,
                _ => continue,
            };
            if in_group(gid) {
                is_member = true;
                if covers(ace.perm & mask) {
                    return true;
                }
            }
        }
        !is_member && covers(self.find(Who::Other).unwrap_or(0))
    }
}

fn le16(bytes: &[u8]) -> u16 {
    bytes.iter().rev().fold(0, |n, &byte| n << 8 | u16::from(byte))
}

fn le32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Who, u32)]) -> Acl {
        Acl::new(entries.iter().map(|&(who, perm)| Ace { who, perm })).unwrap()
    }

    fn shared() -> Acl {
        acl(&[
            (Who::UserObj, 7),
            (Who::User(10), 6),
            (Who::GroupObj, 4),
            (Who::Group(20), 7),
            (Who::Mask, 5),
            (Who::Other, 0),
        ])
    }

    #[test]
    fn a_list_is_read_as_linux_writes_it() {
        let value = shared().to_value();
        assert_eq!(value[..12], [2, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(Acl::parse(&value), Ok(Some(shared())));
        assert_eq!(Acl::parse(&value[..4]), Ok(None));
        assert_eq!(Acl::parse(&value[..3]), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&value[..11]), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&value[..12]), Err(Errno::EINVAL), "group and others are missing");
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        let twice = [&value[..], &value[12..20]].concat();
        assert_eq!(Acl::parse(&twice), Err(Errno::EINVAL), "a user is named twice");
    }

    #[test]
    fn a_list_decides_as_the_draft_says() {
        let list = shared();
        let can = |uid, groups: &[u32], want| list.allows(1, 2, uid, |gid| groups.contains(&gid), want);
        assert!(can(1, &[], 7), "the owner is not masked");
        assert!(
            can(10, &[20], 4) && !can(10, &[20], 2) && !can(10, &[20], 1),
            "a named user is, and groups don't help"
        );
        assert!(can(11, &[20], 5) && !can(11, &[20], 2), "a named group is masked");
        assert!(can(11, &[2], 4) && !can(11, &[2], 1), "the owning group");
        assert!(can(11, &[2, 20], 5), "any one group that allows all of it");
        assert!(!can(11, &[3], 4), "others");
    }

    #[test]
    fn mode_and_list_follow_each_other() {
        let mut list = shared();
        assert_eq!(list.mode(), 0o750);
        list.chmod(0o1626);
        assert_eq!((list.mode(), list.find(Who::GroupObj), list.find(Who::Mask)), (0o626, Some(4), Some(2)));
        let (access, mode) = shared().inherit(0o100_644);
        assert_eq!((mode, access.find(Who::Mask), access.find(Who::UserObj)), (0o100_640, Some(4), Some(6)));
        let plain = acl(&[(Who::UserObj, 6), (Who::GroupObj, 6), (Who::Other, 6)]);
        assert!(plain.is_a_mode() && !access.is_a_mode());
        assert_eq!(plain.inherit(0o777).1, 0o666);
    }
}
