//! Sealed records: the stored form of a record's body, which makes damage detectable.
//!
//! A sealed record is `crc32c (4 bytes, little endian) | format version (2 bytes, little endian) | body`. The checksum
//! covers the key with its length, the version and the body, so a record in the wrong place is detected like one with
//! flipped bits.

use crate::{Key, Value};
use core::fmt;

/// The number of bytes that sealing adds to a body.
pub const SEAL_LEN: usize = 6;

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It is shorter than a seal.
    TooShort {
        /// Its length in bytes.
        len: usize,
    },
    /// The checksum is wrong.
    Checksum {
        /// The checksum in the record.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// It is intact, but was written by a newer version.
    NewerFormat {
        /// The record's format version.
        found: u16,
        /// The newest that this version knows.
        known: u16,
    },
    /// It is intact, but has an old format that this version no longer reads.
    OlderFormat {
        /// The record's format version.
        found: u16,
        /// The format version that this version writes.
        known: u16,
    },
}

/// The error for a record that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its key.
    pub key: Key,
    /// Why it cannot be used.
    pub what: Damage,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match self.what {
            Damage::TooShort { len } => {
                write!(f, "record {key} is damaged ({len} bytes, too short): check the disk, then run lfsck")
            }
            Damage::Checksum { stored, computed } => write!(
                f,
                "record {key} is damaged (checksum {stored:08x} stored, {computed:08x} computed): check the disk, then run lfsck"
            ),
            Damage::NewerFormat { found, known } => write!(
                f,
                "record {key} has format {found}, this version knows up to {known}: run the newer version that wrote it"
            ),
            Damage::OlderFormat { found, known } => write!(
                f,
                "record {key} has format {found}, this version reads {known}: upgrade through a version that reads both"
            ),
        }
    }
}

impl core::error::Error for Damaged {}

impl Damaged {
    /// Whether the bytes are wrong. Otherwise the record is whole and another version can read it.
    pub fn is_damage(&self) -> bool {
        matches!(self.what, Damage::TooShort { .. } | Damage::Checksum { .. })
    }
}

/// The format versions of records.
#[derive(Clone, Copy, Debug)]
pub struct Formats {
    /// The format version that is written for a key, and the newest that is understood.
    pub current: fn(&Key) -> u16,
    /// Converts the body from an older format version to the current one; `None` if it is too old.
    pub upgrade: fn(&Key, u16, Value) -> Option<Value>,
}

impl Formats {
    /// Formats without older versions.
    pub fn new(current: fn(&Key) -> u16) -> Formats {
        Formats { current, upgrade: |_, _, _| None }
    }

    /// Seals `body` in the current format of `key`.
    pub fn seal(&self, key: &Key, body: &[u8]) -> Value {
        seal(key, (self.current)(key), body)
    }

    /// Checks a sealed record of `key` and returns its body in the current format.
    pub fn open(&self, key: &Key, sealed: &Value) -> Result<Value, Damaged> {
        let (found, body) = open(key, sealed)?;
        let known = (self.current)(key);
        if found == known {
            return Ok(body);
        }
        let damaged = |what| Damaged { key: key.clone(), what };
        if found > known {
            return Err(damaged(Damage::NewerFormat { found, known }));
        }
        (self.upgrade)(key, found, body).ok_or_else(|| damaged(Damage::OlderFormat { found, known }))
    }
}

/// The checksum over the length of the key, the key, and the part of a sealed record after the checksum.
fn checksum(key: &Key, rest: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&(key.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc, key);
    crc32c::crc32c_append(crc, rest)
}

/// Seals `body` as the record of `key`.
pub fn seal(key: &Key, format_version: u16, body: &[u8]) -> Value {
    let mut sealed = Vec::with_capacity(SEAL_LEN + body.len());
    sealed.extend_from_slice(&[0; 4]);
    sealed.extend_from_slice(&format_version.to_le_bytes());
    sealed.extend_from_slice(body);
    let crc = checksum(key, &sealed[4..]);
    sealed[..4].copy_from_slice(&crc.to_le_bytes());
    sealed.into()
}

/// Checks a sealed record of `key`. Returns its format version and its body, which shares the allocation.
pub fn open(key: &Key, sealed: &Value) -> Result<(u16, Value), Damaged> {
    let damaged = |what| Err(Damaged { key: key.clone(), what });
    let [c0, c1, c2, c3, v0, v1, ..] = sealed[..] else {
        return damaged(Damage::TooShort { len: sealed.len() });
    };
    let stored = u32::from_le_bytes([c0, c1, c2, c3]);
    let computed = checksum(key, &sealed[4..]);
    if stored != computed {
        return damaged(Damage::Checksum { stored, computed });
    }
    Ok((u16::from_le_bytes([v0, v1]), sealed.slice(SEAL_LEN..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_record_opens_only_whole_and_in_its_place() {
        let (key, other) = (Key::new(b"key"), Key::new(b"kez"));
        let sealed = seal(&key, 3, b"body");
        assert_eq!(open(&key, &sealed), Ok((3, Value::from_static(b"body"))));
        assert!(matches!(open(&other, &sealed), Err(Damaged { what: Damage::Checksum { .. }, .. })));
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&key, &bad.into()).is_err(), "bit {bit} flipped unnoticed");
        }
        for len in 0..sealed.len() {
            assert!(open(&key, &sealed.slice(..len)).is_err(), "cut to {len} bytes unnoticed");
        }
    }

    #[test]
    fn the_seal_has_these_bytes_for_ever() {
        assert_eq!(seal(&Key::new(b"key"), 1, b"body")[..], *b"\x53\x1a\xf4\x74\x01\x00body");
    }

    #[test]
    fn formats_are_upgraded_or_refused_by_name() {
        let key = Key::new(b"k");
        let formats =
            Formats { current: |_| 3, upgrade: |_, from, body| (from == 2).then(|| [&body[..], b"+"].concat().into()) };
        assert_eq!(formats.open(&key, &seal(&key, 3, b"x")), Ok(Value::from_static(b"x")));
        assert_eq!(formats.open(&key, &seal(&key, 2, b"x")), Ok(Value::from_static(b"x+")));
        let newer = formats.open(&key, &seal(&key, 4, b"x")).unwrap_err();
        assert_eq!(
            newer.to_string(),
            "record 'k' has format 4, this version knows up to 3: run the newer version that wrote it"
        );
        let older = formats.open(&key, &seal(&key, 1, b"x")).unwrap_err();
        assert_eq!(older.what, Damage::OlderFormat { found: 1, known: 3 });
    }
}
