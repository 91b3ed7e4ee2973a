//! Directory entries.
//!
//! An entry is found by point reads: its cookie is the hash of its name with room for sixteen entries whose names have
//! the same hash. A lookup probes the indexes from 0 until there is no record. So that a chain has no holes, an entry that
//! is removed before its chain's end leaves a tombstone, an entry without a name.
//!
//! ```text
//! cookie = hash of the name (59 bits) << 4 | index in the chain        0x10 <= cookie < 0x7fff_ffff_ffff_fff0
//! ```
//!
//! The hash has a key that the file system got when it was made and that no user knows, so nobody can choose names that share
//! a chain, although cookies show what the hash of a name is: for two such names one has to try some 2^30, and sixteen
//! do not come about. File systems that versions before 0.2.0 made have a hash without a key; there thousands of such names can
//! be computed.
//!
//! A name whose chain is full lies in the chain of its second hash, which always has a key ([`second_cookie`]). So a name costs at
//! most 32 point reads, however many share its first hash, and its cookie is as any other:
//!
//! ```text
//! first hash of a to r: 7 (chosen so)           second hash of q: 9; of r: 3
//! 0x70 a   0x71 b   ...   0x7f p                 0x90 q     0x30 r
//! b is removed: a tombstone at 0x71              p is removed: a tombstone too, or nobody would look for q and r any more
//! ```
//!
//! A chain whose sixteenth place was ever taken while there are such names (`full_chains`) has no hole for ever after. A new name takes
//! the first tombstone on its way, in either chain. Both chains full: the name is refused (`ENOSPC`), which nobody can bring about.
//!
//! The cookie is also what a listing of the directory goes by: unique, stable, positive, and it leaves the numbers below
//! sixteen to `.` and `..`.

use crate::Header;
use crate::record::{Record, prost_body, rest};
use bytes::Bytes;
use prost::Message;
use proto::Fid;
use siphasher::sip::SipHasher13;
use store::{Key, KeyRange};

/// How many entries a chain has.
pub const CHAIN_MAX: u64 = 16;

/// Names an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryKey {
    /// Local inode number of the directory.
    pub dir: u64,
    /// See the module.
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
    /// Local inode number, a hint: the FID decides.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
}

impl Entry {
    /// What keeps a chain together where an entry was removed.
    pub fn tombstone() -> Entry {
        Entry::default()
    }

    /// Whether it is one.
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

    /// Those of them that follow a cookie.
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

/// First cookie of the chain of a name, in a target with this header. It is on disk, so it never changes: SipHash-1-3
/// (Aumasson and Bernstein) under the file system's key.
pub fn first_cookie(header: &Header, name: &[u8]) -> u64 {
    match header.name_key[..].try_into() {
        Ok(key) => cookie_of(SipHasher13::new_with_key(key).hash(name)),
        Err(_) => cookie_without_key(name),
    }
}

/// First cookie of the chain of a name whose first chain is full: SipHash-1-3 under a key of the target's own. `None`: the target
/// has none yet.
pub fn second_cookie(header: &Header, name: &[u8]) -> Option<u64> {
    let key: &[u8; 16] = header.second_key[..].try_into().ok()?;
    Some(cookie_of(SipHasher13::new_with_key(key).hash(name)))
}

/// The same as [`first_cookie`] in a file system without a key: FNV-1a over the bytes, then the finaliser of
/// MurmurHash3 (Austin Appleby), because FNV's high bits are weak and the high bits order the directory.
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
