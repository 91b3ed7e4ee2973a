//! Keys: byte strings in bytewise order, cheap to hash, compare and copy.
//!
//! A key is three words. Keys of up to 22 bytes, nearly all, are stored inline and compared as words. Longer ones (with names
//! of attributes or parameters in them) allocate. The meaning of the bytes is defined in `schema`, except that keys from
//! `FF FF` on belong to the engines.

use core::borrow::Borrow;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

/// The longest key, in bytes. Engines may rely on it (LMDB's own limit is 511).
pub const KEY_LEN_MAX: usize = 500;

const INLINE: usize = 22;

/// A key. Ordered bytewise; a key sorts before all its extensions.
#[derive(Clone)]
pub struct Key(Bytes);

#[derive(Clone)]
enum Bytes {
    /// Length, and the key padded with zeros.
    Inline(u8, [u8; INLINE]),
    /// A key that does not fit inline.
    Heap(Box<[u8]>),
}

impl Key {
    /// A key of these bytes.
    #[inline]
    pub fn new(bytes: &[u8]) -> Key {
        debug_assert!(bytes.len() <= KEY_LEN_MAX, "a key of {} bytes", bytes.len());
        if bytes.len() > INLINE {
            return Key(Bytes::Heap(bytes.into()));
        }
        let mut inline = [0; INLINE];
        inline[..bytes.len()].copy_from_slice(bytes);
        Key(Bytes::Inline(bytes.len() as u8, inline))
    }

    /// The empty key, which sorts before all others.
    pub fn empty() -> Key {
        Key::new(&[])
    }

    /// The start of a key in table `table`; continue with [`u64`](Key::u64), [`bytes`](Key::bytes) and so on.
    #[inline]
    pub fn table(table: u8) -> Key {
        Key::new(&[table])
    }

    /// Appends one byte.
    #[inline]
    pub fn u8(self, v: u8) -> Key {
        self.bytes(&[v])
    }

    /// Appends a number in big-endian order, so that keys sort as numbers do.
    #[inline]
    pub fn u16(self, v: u16) -> Key {
        self.bytes(&v.to_be_bytes())
    }

    /// Appends a number in big-endian order, so that keys sort as numbers do.
    #[inline]
    pub fn u32(self, v: u32) -> Key {
        self.bytes(&v.to_be_bytes())
    }

    /// Appends a number in big-endian order, so that keys sort as numbers do.
    #[inline]
    pub fn u64(self, v: u64) -> Key {
        self.bytes(&v.to_be_bytes())
    }

    /// Appends bytes.
    #[inline]
    pub fn bytes(mut self, bytes: &[u8]) -> Key {
        if let Bytes::Inline(len, inline) = &mut self.0
            && let Some(rest) = inline.get_mut(usize::from(*len)..usize::from(*len) + bytes.len())
        {
            rest.copy_from_slice(bytes);
            *len += bytes.len() as u8;
            return self;
        }
        Key::new(&[self.as_slice(), bytes].concat())
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline(len, inline) => &inline[..usize::from(*len)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The smallest key that sorts after this one.
    pub fn successor(&self) -> Key {
        self.clone().u8(0)
    }

    /// The smallest key that sorts after every key with this prefix, at most `FF FF`.
    pub fn prefix_end(&self) -> Key {
        let mut end = self.to_vec();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                return Key::new(&end);
            }
        }
        Key::new(&[0xff, 0xff])
    }

    /// Bytes on the heap, for memory accounting.
    pub(crate) fn heap_len(&self) -> usize {
        match &self.0 {
            Bytes::Inline(..) => 0,
            Bytes::Heap(bytes) => bytes.len(),
        }
    }
}

/// The bytes as numbers that compare in the same order.
#[inline]
fn words(inline: &[u8; INLINE]) -> (u128, u64) {
    let mut first = [0; 16];
    let mut last = [0; 8];
    first.copy_from_slice(&inline[..16]);
    last[..INLINE - 16].copy_from_slice(&inline[16..]);
    (u128::from_be_bytes(first), u64::from_be_bytes(last))
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Key) -> bool {
        match (&self.0, &other.0) {
            (Bytes::Inline(len, inline), Bytes::Inline(other_len, other)) => len == other_len && inline == other,
            (Bytes::Heap(bytes), Bytes::Heap(other)) => bytes == other,
            // The length determines the variant, so these keys differ in length.
            _ => false,
        }
    }
}

impl Eq for Key {}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Key) -> Ordering {
        match (&self.0, &other.0) {
            // No byte is smaller than the padding. If the padded bytes are equal, the shorter key comes first.
            (Bytes::Inline(len, inline), Bytes::Inline(other_len, other)) => {
                (words(inline), len).cmp(&(words(other), other_len))
            }
            _ => self.as_slice().cmp(other.as_slice()),
        }
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Deref for Key {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl Hash for Key {
    #[inline]
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
        write!(f, "'{}'", self.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys from `start` up to, but not including, `end`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyRange {
    /// The first key.
    pub start: Key,
    /// The end, exclusive.
    pub end: Key,
}

impl KeyRange {
    /// From `start` up to, but not including, `end`.
    pub fn new(start: Key, end: Key) -> KeyRange {
        KeyRange { start, end }
    }

    /// Every key with this prefix.
    pub fn prefix(prefix: Key) -> KeyRange {
        let end = prefix.prefix_end();
        KeyRange { start: prefix, end }
    }

    /// Every key with this prefix that sorts after `after`: the rest of a listing.
    pub fn prefix_after(prefix: &Key, after: &Key) -> KeyRange {
        KeyRange { start: after.successor().max(prefix.clone()), end: prefix.prefix_end() }
    }

    /// Every key, except those of the engine.
    pub fn all() -> KeyRange {
        KeyRange { start: Key::empty(), end: Key::new(&[0xff, 0xff]) }
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &Key) -> bool {
        self.start <= *key && *key < self.end
    }

    /// Whether the range contains no key.
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
        assert_eq!(size_of::<Key>(), 24);
        assert_eq!(Key::new(&[1; INLINE]).heap_len(), 0);
        assert!(Key::new(&[1; INLINE + 1]).heap_len() > 0);
    }

    #[test]
    fn keys_of_all_lengths_are_ordered_and_told_apart_as_their_bytes_are() {
        let mut all: Vec<Vec<u8>> = vec![Vec::new()];
        for len in [1, 2, 15, 16, 17, INLINE - 1, INLINE, INLINE + 1, INLINE + 2] {
            for last in [0, 1, 0x7f, 0x80, 0xff] {
                for fill in [0, 0x80, 0xff] {
                    let mut bytes = vec![fill; len];
                    bytes[len - 1] = last;
                    all.push(bytes);
                }
            }
        }
        for a in &all {
            let built = a.iter().fold(Key::empty(), |key, byte| key.u8(*byte));
            assert_eq!((&built, &built[..]), (&Key::new(a), &a[..]));
            for b in &all {
                assert_eq!(Key::new(a).cmp(&Key::new(b)), a.cmp(b), "{a:?} {b:?}");
                assert_eq!(Key::new(a) == Key::new(b), a == b, "{a:?} {b:?}");
                assert_eq!(&Key::new(a).bytes(b)[..], &[&a[..], &b[..]].concat());
            }
        }
    }
}
