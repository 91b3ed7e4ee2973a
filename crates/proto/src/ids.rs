//! Newtypes for numbers that identify something, and FIDs.

use core::fmt;
use core::str::FromStr;

use bytes::Bytes;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl From<$int> for $name {
            fn from(v: $int) -> Self {
                $name(v)
            }
        }
    };
}

newtype!(
    /// Identity of a request of one client. Rises with every request, across restarts of the client too. 0 is none.
    Xid(u64)
);
newtype!(
    /// Position of a change in the order of one target. The high 32 bits are the recovery epoch. 0 means that nothing
    /// was changed.
    Transno(u64)
);
newtype!(
    /// A client's slot for a modifying request, from 1. 0 means that the request is not modifying.
    Tag(u16)
);
newtype!(
    /// Index of a metadata or object target within its file system (`MDT0000`, `OST0001`, hexadecimal in names).
    TargetIndex(u32)
);
newtype!(
    /// Index of a stripe object in a file's layout.
    StripeIndex(u32)
);
newtype!(
    /// A server's identifier for an export, an open file or a lock. 0 is none.
    Handle(u64)
);

impl Transno {
    /// The recovery epoch, in the high half.
    pub fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The lower bound of `epoch`: its transnos are greater.
    pub fn start_of(epoch: u32) -> Transno {
        Transno(u64::from(epoch) << 32)
    }
}

/// Identity of a client for one mount: chosen at random by the client, recorded durably at every target that it uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientUuid(pub u128);

impl ClientUuid {
    /// As messages and records have it: 16 bytes big-endian.
    pub fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_be_bytes())
    }

    /// The inverse of [`ClientUuid::to_bytes`]; `None` if these are not 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<ClientUuid> {
        bytes.try_into().ok().map(|bytes| ClientUuid(u128::from_be_bytes(bytes)))
    }
}

impl fmt::Display for ClientUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            (b >> 96) as u32,
            (b >> 80) as u16,
            (b >> 64) as u16,
            (b >> 48) as u16,
            b as u64 & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for ClientUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kind of a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TargetKind {
    /// Management target: configuration.
    Mgt,
    /// Metadata target.
    Mdt,
    /// Object target.
    Ost,
}

/// A target's full name: `adamant-MDT0000`, `adamant-OST000a`, `MGS`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TargetName {
    /// The file system's name; 1 to 8 characters of `[A-Za-z0-9_]`. Empty for the MGS.
    pub fsname: String,
    /// Kind of target.
    pub kind: TargetKind,
    /// Index among the targets of its kind; 0 for the MGS.
    pub index: TargetIndex,
}

impl TargetName {
    /// Longest file system name, in bytes.
    pub const FSNAME_MAX: usize = 8;

    /// Whether `name` is a valid file system name.
    pub fn fsname_is_valid(name: &str) -> bool {
        (1..=Self::FSNAME_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TargetKind::Mgt => write!(f, "MGS"),
            TargetKind::Mdt => write!(f, "{}-MDT{:04x}", self.fsname, self.index.0),
            TargetKind::Ost => write!(f, "{}-OST{:04x}", self.fsname, self.index.0),
        }
    }
}

/// The text that is no name of a target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a target name; expected FSNAME-MDTxxxx or FSNAME-OSTxxxx with four hexadecimal digits")]
pub struct ParseTargetNameError(pub String);

impl FromStr for TargetName {
    type Err = ParseTargetNameError;

    fn from_str(s: &str) -> Result<Self, ParseTargetNameError> {
        if s == "MGS" {
            return Ok(TargetName { fsname: String::new(), kind: TargetKind::Mgt, index: TargetIndex(0) });
        }
        let bad = || ParseTargetNameError(s.to_owned());
        let (fsname, rest) = s.rsplit_once('-').ok_or_else(bad)?;
        let kind = match rest.get(..3) {
            Some("MDT") => TargetKind::Mdt,
            Some("OST") => TargetKind::Ost,
            _ => return Err(bad()),
        };
        let index = u32::from_str_radix(rest.get(3..).ok_or_else(bad)?, 16).map_err(|_| bad())?;
        if !Self::fsname_is_valid(fsname) {
            return Err(bad());
        }
        Ok(TargetName { fsname: fsname.to_owned(), kind, index: TargetIndex(index) })
    }
}

/// Identity of a file system object. Never reused; an object keeps its FID for life.
///
/// Printed as Lustre prints it: `[0x200000401:0x1:0x0]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct Fid {
    /// Sequence, allocated to one client.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Number of the object within the sequence, 1 to [`Fid::OID_MAX`].
    #[prost(uint32, tag = "2")]
    pub oid: u32,
    /// Always 0 in this version.
    #[prost(uint32, tag = "3")]
    pub ver: u32,
}

impl Fid {
    /// No object.
    pub const NONE: Fid = Fid { seq: 0, oid: 0, ver: 0 };
    /// The root directory of every file system.
    pub const ROOT: Fid = Fid { seq: 0x2_0000_0007, oid: 1, ver: 0 };
    /// The directory `.lustre`, which lookups in the root find and listings of the root do not show.
    pub const DOT_LUSTRE: Fid = Fid { seq: 0x2_0000_0002, oid: 1, ver: 0 };
    /// The directory `.lustre/fid`, in which every object has its FID as a name.
    pub const DOT_LUSTRE_FID: Fid = Fid { seq: 0x2_0000_0002, oid: 2, ver: 0 };
    /// The directory `.lustre/lost+found`.
    pub const LOST_FOUND: Fid = Fid { seq: 0x2_0000_0002, oid: 3, ver: 0 };
    /// First sequence that the MGT allocates.
    pub const SEQ_FIRST: u64 = 0x2_0000_0400;
    /// Last sequence.
    pub const SEQ_LAST: u64 = (1 << 40) - 1;
    /// Highest object number in a sequence, and so the number of objects in it.
    pub const OID_MAX: u32 = 0x1_ffff;
    /// Width of the window of object numbers in use. A client takes no number this far above one whose request is
    /// unanswered, and a server treats a number this far below the highest as used.
    pub const IN_DOUBT_MAX: u32 = 64;

    /// A FID.
    pub const fn new(seq: u64, oid: u32) -> Fid {
        Fid { seq, oid, ver: 0 }
    }

    /// Whether it is [`Fid::NONE`].
    pub fn is_none(&self) -> bool {
        *self == Fid::NONE
    }

    /// Whether it lies in the range that clients choose from.
    pub fn is_normal(&self) -> bool {
        (Fid::SEQ_FIRST..=Fid::SEQ_LAST).contains(&self.seq) && (1..=Fid::OID_MAX).contains(&self.oid) && self.ver == 0
    }

    /// Whether it is one of the objects that every file system has, and that clients do not make: the root, and `.lustre`
    /// with its directories. All are on MDT0000.
    pub fn is_built_in(&self) -> bool {
        [Fid::ROOT, Fid::DOT_LUSTRE, Fid::DOT_LUSTRE_FID, Fid::LOST_FOUND].contains(self)
    }

    /// The inode number that programs see: a fixed one-to-one mapping (40 bits of sequence, 17 of object), except that
    /// the root has 1. Never 0, and less than 2^57.
    pub fn ino(&self) -> u64 {
        if *self == Fid::ROOT {
            return 1;
        }
        (self.seq << 17) | u64::from(self.oid & 0x1_ffff)
    }

    /// The FID with inode number `ino` (see [`Fid::ino`]); `None` if no FID has it.
    pub fn from_ino(ino: u64) -> Option<Fid> {
        if ino == 1 {
            return Some(Fid::ROOT);
        }
        let fid = Fid::new(ino >> 17, (ino & 0x1_ffff) as u32);
        (fid.is_normal() || fid.is_built_in() && fid != Fid::ROOT).then_some(fid)
    }

    /// Encodes it as a store key: 16 bytes that sort in the order of FIDs.
    pub fn to_key(self) -> [u8; 16] {
        let mut k = [0; 16];
        k[..8].copy_from_slice(&self.seq.to_be_bytes());
        k[8..12].copy_from_slice(&self.oid.to_be_bytes());
        k[12..].copy_from_slice(&self.ver.to_be_bytes());
        k
    }

    /// The inverse of [`Fid::to_key`]; `None` unless `k` has 16 bytes.
    pub fn from_key(k: &[u8]) -> Option<Fid> {
        let k: &[u8; 16] = k.try_into().ok()?;
        let (s, rest) = k.split_at(8);
        let (o, v) = rest.split_at(4);
        Some(Fid {
            seq: u64::from_be_bytes(s.try_into().ok()?),
            oid: u32::from_be_bytes(o.try_into().ok()?),
            ver: u32::from_be_bytes(v.try_into().ok()?),
        })
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[0x{:x}:0x{:x}:0x{:x}]", self.seq, self.oid, self.ver)
    }
}

/// The text that is no FID.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a FID; expected [0xSEQ:0xOID:0xVER]")]
pub struct ParseFidError(pub String);

impl FromStr for Fid {
    type Err = ParseFidError;

    /// Parses `[0xSEQ:0xOID:0xVER]`, with or without the brackets.
    fn from_str(s: &str) -> Result<Self, ParseFidError> {
        let bad = || ParseFidError(s.to_owned());
        let inner = s.strip_prefix('[').map_or(Some(s), |r| r.strip_suffix(']')).ok_or_else(bad)?;
        let mut parts = inner.split(':').map(|p| u64::from_str_radix(p.trim_start_matches("0x"), 16).ok());
        let mut next = || parts.next().flatten().ok_or_else(bad);
        let (seq, oid, ver) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Fid { seq, oid: u32::try_from(oid).map_err(|_| bad())?, ver: u32::try_from(ver).map_err(|_| bad())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fid_prints_and_reads_like_lustre() {
        let fid = Fid::new(0x2_0000_0401, 0x1f);
        assert_eq!(fid.to_string(), "[0x200000401:0x1f:0x0]");
        assert_eq!("[0x200000401:0x1f:0x0]".parse(), Ok(fid));
        assert_eq!("0x200000401:0x1f:0x0".parse(), Ok(fid));
        for bad in ["", "[0x1:0x2]", "[0x1:0x2:0x3:0x4]", "[zz:1:1]", "[0x1:0x100000000:0x0]", "[0x1:0x1:0x0"] {
            assert!(bad.parse::<Fid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn inode_numbers_and_keys_are_one_to_one() {
        let built_in = [Fid::ROOT, Fid::DOT_LUSTRE, Fid::DOT_LUSTRE_FID, Fid::LOST_FOUND];
        let normal = [Fid::new(Fid::SEQ_FIRST, 1), Fid::new(Fid::SEQ_LAST, Fid::OID_MAX)];
        for fid in built_in.into_iter().chain(normal) {
            assert!(fid.is_built_in() != fid.is_normal() && fid.ino() < 1 << 57);
            assert_eq!(Fid::from_ino(fid.ino()), Some(fid));
            assert_eq!(Fid::from_key(&fid.to_key()), Some(fid));
        }
        assert_eq!(Fid::from_ino(0), None);
        assert_eq!(Fid::from_ino(2), None);
        assert_eq!(Fid::from_ino(Fid::new(Fid::ROOT.seq, 1).seq << 17 | 1), None, "the root has one number");
        assert_eq!(Fid::from_ino(Fid::LOST_FOUND.ino() + 1), None);
    }

    #[test]
    fn target_names_round_trip() {
        for name in ["adamant-MDT0000", "fs_1-OST000a", "MGS"] {
            assert_eq!(name.parse::<TargetName>().map(|n| n.to_string()), Ok(name.to_owned()));
        }
        for bad in ["adamant", "adamant-XYZ0000", "waytoolongname-MDT0000", "-MDT0000", "a-MDTzz"] {
            assert!(bad.parse::<TargetName>().is_err(), "{bad}");
        }
    }
}
