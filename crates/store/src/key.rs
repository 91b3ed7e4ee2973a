//! Keys: byte strings in bytewise order, cheap to hash, compare and copy.
//!
//! A key of up to 40 bytes lies inline; most do (a directory entry with a name of 23 bytes fits). Longer ones allocate.
//! What the bytes mean is `schema`'s business; the one rule here is that keys from `FF FF` on belong to the engines.

use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;
use smallvec::SmallVec;

/// The longest key, in bytes. Engines may rely on it (LMDB's own limit is 511).
pub const KEY_LEN_MAX: usize = 500;

const INLINE: usize = 40;

/// A key. Ordered bytewise; a key sorts before all its extensions.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; INLINE]>);

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: &[u8]) -> Key {
        debug_assert!(bytes.len() <= KEY_LEN_MAX, "a key of {} bytes", bytes.len());
        Key(SmallVec::from_slice(bytes))
    }

    /// The empty key: the lower end of everything.
    pub fn empty() -> Key {
        Key(SmallVec::new())
    }

    /// The start of a key in table `table`; continue with [`u64`](Key::u64), [`bytes`](Key::bytes) and so on.
    pub fn table(table: u8) -> Key {
        Key::empty().u8(table)
    }

    /// Appends one byte.
    pub fn u8(mut self, v: u8) -> Key {
        self.0.push(v);
        self
    }

    /// Appends a number in big-endian order, so that keys sort as numbers do.
    pub fn u16(self, v: u16) -> Key {
        self.bytes(&v.to_be_bytes())
    }

    /// Appends a number in big-endian order, so that keys sort as numbers do.
    pub fn u32(self, v: u32) -> Key {
        self.bytes(&v.to_be_bytes())
    }

    /// Appends a number in big-endian order, so that keys sort as numbers do.
    pub fn u64(self, v: u64) -> Key {
        self.bytes(&v.to_be_bytes())
    }

    /// Appends bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Key {
        debug_assert!(self.0.len() + bytes.len() <= KEY_LEN_MAX, "a key of {} bytes", self.0.len() + bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// The smallest key that sorts after this one.
    pub fn successor(&self) -> Key {
        let mut next = self.clone();
        next.0.push(0);
        next
    }

    /// The smallest key that sorts after every key that begins with this one; `FF FF` if there is none below it.
    pub fn prefix_end(&self) -> Key {
        let mut end = self.clone();
        while let Some(last) = end.0.pop() {
            if last < 0xff {
                end.0.push(last + 1);
                return end;
            }
        }
        Key::new(&[0xff, 0xff])
    }

    /// Bytes on the heap, for counting memory.
    pub(crate) fn heap_len(&self) -> usize {
        if self.0.spilled() { self.0.capacity() } else { 0 }
    }
}

impl Clone for Key {
    fn clone(&self) -> Key {
        Key(SmallVec::from_slice(&self.0))
    }
}

impl Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Key {
        Key::new(bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Key {
        Key::new(bytes)
    }
}

/// Printable: ASCII as it is, everything else as `\xNN`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys from `start` up to, but without, `end`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyRange {
    /// The first key.
    pub start: Key,
    /// The first key that no longer belongs.
    pub end: Key,
}

impl KeyRange {
    /// From `start` up to, but without, `end`.
    pub fn new(start: Key, end: Key) -> KeyRange {
        KeyRange { start, end }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: Key) -> KeyRange {
        let end = prefix.prefix_end();
        KeyRange { start: prefix, end }
    }

    /// Every key that begins with `prefix` and sorts after `after`: how a listing goes on.
    pub fn prefix_after(prefix: &Key, after: &Key) -> KeyRange {
        KeyRange { start: after.successor().max(prefix.clone()), end: prefix.prefix_end() }
    }

    /// Every key that is not the engine's own.
    pub fn all() -> KeyRange {
        KeyRange { start: Key::empty(), end: Key::new(&[0xff, 0xff]) }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &Key) -> bool {
        self.start <= *key && *key < self.end
    }

    /// Whether no key can lie in the range.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers_do_and_prefixes_end_where_they_should() {
        assert!(Key::table(1).u64(255) < Key::table(1).u64(256));
        assert!(Key::table(1).u64(u64::MAX) < Key::table(2));
        assert_eq!(Key::table(1).prefix_end(), Key::table(2));
        assert_eq!(Key::table(1).u64(u64::MAX).prefix_end(), Key::table(2));
        assert_eq!(Key::new(b"\xff").prefix_end(), Key::new(b"\xff\xff"));
        let range = KeyRange::prefix(Key::table(3).u64(9));
        assert!(range.contains(&Key::table(3).u64(9)));
        assert!(range.contains(&Key::table(3).u64(9).bytes(&[0xff; 60])));
        assert!(!range.contains(&Key::table(3).u64(10)));
        let key = Key::table(3).u64(9).bytes(b"x");
        assert!(!KeyRange::prefix_after(&range.start, &key).contains(&key));
        assert!(KeyRange::prefix_after(&range.start, &key).contains(&key.successor()));
    }

    #[test]
    fn a_key_prints_so_that_a_person_can_read_it() {
        assert_eq!(Key::table(b'd').u16(7).bytes(b"name").to_string(), r"'d\x00\x07name'");
    }

    #[test]
    fn short_keys_lie_inline() {
        assert_eq!(size_of::<Key>(), 48);
        assert_eq!(Key::new(&[1; 40]).heap_len(), 0);
        assert!(Key::new(&[1; 41]).heap_len() > 0);
    }
}
