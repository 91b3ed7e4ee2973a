//! Directory entries, stored by the hash of their names.
//!
//! An entry is found by point reads. Its cookie is the hash of its name, followed by an index that tells up to sixteen
//! entries with the same hash apart. A lookup probes the indexes from 0 until there is no record. So that a chain has no
//! holes, an entry that is removed before the end of its chain leaves a tombstone, an entry without a name.
//!
//! ```text
//! cookie = hash of the name (59 bits) << 4 | index in the chain        0x10 <= cookie < 0x7fff_ffff_ffff_fff0
//! ```
//!
//! The hash has a secret key, drawn when the file system was made, so users cannot compute names that share a chain. They
//! can only try names and compare their cookies: two with the same hash take some 2^30 tries, and sixteen are out of reach.
//! File systems made by versions before 0.2.0 have a hash without a key, for which thousands of such names can be computed.
//!
//! A name whose chain is full is stored in the chain of its second hash, which always has a key ([`second_cookie`]). So a name
//! costs at most 32 point reads, however many names share its first hash, and its cookie is like any other:
//!
//! ```text
//! first hash of a to r: 7 (a collision)          second hash of q: 9; of r: 3
//! 0x70 a   0x71 b   ...   0x7f p                 0x90 q     0x30 r
//! b is removed: a tombstone at 0x71              p is removed: a tombstone, too, or lookups of q and r would stop there
//! ```
//!
//! Once the target has the feature `full_chains`, a chain whose sixteenth place was ever used never gets a hole again. A new
//! name takes the first tombstone that its lookup passes, in either chain. If both chains are full, the name is refused
//! (`ENOSPC`); users cannot bring this about.
//!
//! The cookie is also the position in a listing of the directory: unique, stable and positive. The numbers below sixteen are
//! left to `.` and `..`.

use crate::Header;
use crate::record::{Record, prost_body, rest};
use bytes::Bytes;
use prost::Message;
use proto::Fid;
use siphasher::sip::SipHasher13;
use store::{Key, KeyRange};

/// The most entries of a chain.
pub const CHAIN_MAX: u64 = proto::msg::CHAIN_COOKIES;

/// Identifies an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryKey {
    /// Local inode number of the directory.
    pub dir: u64,
    /// Position in the directory: the hash of the name and the index in the chain.
    pub cookie: u64,
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    /// The name; empty in a tombstone.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// The object.
    #[prost(message, optional, tag = "2")]
    pub fid: Option<Fid>,
    /// Type, as in `DT_*`.
    #[prost(uint32, tag = "3")]
    pub kind: u32,
    /// Local inode number. A hint: the FID decides.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
    /// Index of the object's metadata target, if that is another one than this. Since version 0.3.0.
    #[prost(uint32, optional, tag = "5")]
    pub mdt: Option<u32>,
}

impl Entry {
    /// The placeholder for a removed entry within a chain.
    pub fn tombstone() -> Entry {
        Entry::default()
    }

    /// Whether the entry is a tombstone.
    pub fn is_tombstone(&self) -> bool {
        self.name.is_empty()
    }

    /// The object.
    pub fn object(&self) -> Fid {
        self.fid.unwrap_or(Fid::NONE)
    }

    /// Entries and tombstones of a directory.
    pub fn of_dir(dir: u64) -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE).u64(dir))
    }

    /// Entries and tombstones of a directory after a cookie.
    pub fn of_dir_after(dir: u64, cookie: u64) -> KeyRange {
        KeyRange::prefix_after(&Key::table(Self::TABLE).u64(dir), &Entry::key(&EntryKey { dir, cookie }))
    }
}

impl Record for Entry {
    const TABLE: u8 = 0x13;
    const KIND: &'static str = "directory entry";
    type Id = EntryKey;

    fn key(id: &EntryKey) -> Key {
        Key::table(Self::TABLE).u64(id.dir).u64(id.cookie)
    }

    fn parse_key(key: &[u8]) -> Option<EntryKey> {
        let rest: [u8; 16] = rest(key, Self::TABLE)?;
        let (dir, cookie) = rest.split_at(8);
        let number = |b: &[u8]| b.try_into().ok().map(u64::from_be_bytes);
        Some(EntryKey { dir: number(dir)?, cookie: number(cookie)? })
    }

    prost_body!();
}

/// First cookie of the chain of a name, in a target with this header: SipHash-1-3 (Aumasson and Bernstein) under the file
/// system's key. Part of the disk format, so it never changes.
pub fn first_cookie(header: &Header, name: &[u8]) -> u64 {
    match header.name_key[..].try_into() {
        Ok(key) => cookie_of(SipHasher13::new_with_key(key).hash(name)),
        Err(_) => cookie_without_key(name),
    }
}

/// First cookie of the second chain of a name, for one whose first chain is full: SipHash-1-3 under the file
/// system's second key. `None`: the target has no such key yet.
pub fn second_cookie(header: &Header, name: &[u8]) -> Option<u64> {
    let key: &[u8; 16] = header.second_key[..].try_into().ok()?;
    Some(cookie_of(SipHasher13::new_with_key(key).hash(name)))
}

/// [`first_cookie`] in a file system without a key: FNV-1a over the bytes, then the finaliser of MurmurHash3 (Austin Appleby),
/// because FNV's high bits are weak and the high bits order the directory.
fn cookie_without_key(name: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in name {
        h = (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^= h >> 33;
    cookie_of(h)
}

fn cookie_of(hash: u64) -> u64 {
    (hash >> 5).clamp(1, (1 << 59) - 2) << 4
}
