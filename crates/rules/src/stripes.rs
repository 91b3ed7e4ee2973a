//! Which stripe of a striped directory has a name: Lustre's hash functions.
//!
//! Clients compute it to know whom to ask, and each stripe checks it, so that a name can never be in two stripes.

use proto::msg::{DirHash, Lmv};

/// The most stripes of a directory.
pub const STRIPES_MAX: usize = 2000;
/// The most of them on one metadata target.
pub const STRIPES_PER_TARGET_MAX: usize = 5;

/// The placement groups among which `crush` distributes names.
const CRUSH_GROUPS: u64 = 4096;

/// The index of the stripe that has this name, or would have it.
pub fn of_name(lmv: &Lmv, name: &[u8]) -> u32 {
    of_hash(lmv.hash(), name, lmv.count)
}

/// While names move: the index of the stripe that has this name unless it has moved already. Otherwise as [`of_name`].
pub fn former_of_name(lmv: &Lmv, name: &[u8]) -> u32 {
    if lmv.is_moving() { of_hash(lmv.former_hash(), name, lmv.former_count) } else { of_name(lmv, name) }
}

/// The same for a hash function and a number of stripes.
pub fn of_hash(hash: DirHash, name: &[u8], count: u32) -> u32 {
    if count <= 1 {
        return 0;
    }
    let modulo = |value: u64| (value % u64::from(count)) as u32;
    match hash {
        DirHash::AllChar => modulo(name.iter().map(|byte| u64::from(*byte)).sum()),
        DirHash::Unknown | DirHash::Fnv1a64 => modulo(fnv_1a_64(name)),
        DirHash::Crush => crush(final_name(name, false), count),
        DirHash::Crush2 => crush(final_name(name, true), count),
    }
}

/// The 64-bit FNV-1a hash.
fn fnv_1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The stripe that draws the longest straw. A directory that gets more stripes gives names only to the new ones.
fn crush(name: &[u8], count: u32) -> u32 {
    let group = (fnv_1a_64(name) % CRUSH_GROUPS) as u32;
    let (mut best, mut longest) = (0, 0);
    for stripe in 0..count {
        let straw = jenkins(group, stripe);
        if stripe == 0 || straw > longest {
            (best, longest) = (stripe, straw);
        }
    }
    best
}

/// Jenkins' hash of two numbers, as CRUSH uses it.
fn jenkins(a: u32, b: u32) -> u32 {
    let mut hash = 1_315_423_911 ^ a ^ b;
    let (mut x, mut y, mut a, mut b) = (231_232_u32, 1_232_u32, a, b);
    mix(&mut a, &mut b, &mut hash);
    mix(&mut x, &mut a, &mut hash);
    mix(&mut b, &mut y, &mut hash);
    hash
}

/// Jenkins' mix of three words.
fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> 13);
    *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << 8);
    *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> 13);
    *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> 12);
    *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << 16);
    *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> 5);
    *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> 3);
    *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << 10);
    *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> 15);
}

/// The name without what marks it as temporary or as a backup, so that a file which is written under such a name and then
/// renamed stays in its stripe. `strict`: by the rules of `crush2`.
fn final_name(name: &[u8], strict: bool) -> &[u8] {
    // rsync: `.name.XXXXXX`; dcp: `name.XXXXXXXX`.
    if let Some(inner) = name.strip_prefix(b".").and_then(|rest| without_suffix(rest, 6, strict)) {
        return inner;
    }
    if let Some(inner) = without_suffix(name, 8, strict) {
        return inner;
    }
    if let Some(inner) = name.strip_suffix(b"~").filter(|inner| inner.last().is_some_and(|last| *last != b'.')) {
        return inner;
    }
    let backup = [&b".bak"[..], b".sav", b".orig"].into_iter().find_map(|suffix| {
        let (inner, end) = name.split_at_checked(name.len().checked_sub(suffix.len())?)?;
        (!inner.is_empty() && end.eq_ignore_ascii_case(suffix)).then_some(inner)
    });
    backup.unwrap_or(name)
}

/// The name before a dot and a random suffix of this length.
fn without_suffix(name: &[u8], length: usize, strict: bool) -> Option<&[u8]> {
    let (inner, suffix) = name.split_at_checked(name.len().checked_sub(length)?)?;
    let inner = inner.strip_suffix(b".").filter(|inner| !inner.is_empty())?;
    let count = |is: fn(&u8) -> bool| suffix.iter().filter(|byte| is(byte)).count();
    let one_case = count(u8::is_ascii_lowercase) == length || count(u8::is_ascii_uppercase) == length;
    let starts_with_digit = suffix.first().is_some_and(u8::is_ascii_digit);
    let mostly_digits = count(u8::is_ascii_digit) >= length - 1;
    let other = match strict {
        true => count(u8::is_ascii_alphanumeric) < length || mostly_digits && starts_with_digit,
        false => mostly_digits && !starts_with_digit,
    };
    (!one_case && !other).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const ALL: [DirHash; 4] = [DirHash::AllChar, DirHash::Fnv1a64, DirHash::Crush, DirHash::Crush2];

    #[test]
    fn known_values() {
        assert_eq!(fnv_1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a_64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv_1a_64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(of_hash(DirHash::AllChar, b"abc", 7), (97 + 98 + 99) % 7);
        assert_eq!(of_hash(DirHash::Fnv1a64, b"foobar", 1000), 0x8594_4171_f739_67e8_u64.rem_euclid(1000) as u32);
    }

    #[test]
    fn names_spread_over_all_stripes() {
        for hash in ALL {
            let mut found: BTreeMap<u32, u32> = BTreeMap::new();
            for number in 0..8000 {
                *found.entry(of_hash(hash, format!("file{number}.dat").as_bytes(), 8)).or_default() += 1;
            }
            assert_eq!(found.len(), 8, "{hash:?}");
            // The sum of bytes is no good hash.
            let even = if hash == DirHash::AllChar { 300..2500 } else { 800..1200 };
            assert!(found.values().all(|count| even.contains(count)), "{hash:?}: {found:?}");
        }
    }

    /// The values of another program.
    #[test]
    fn crush_takes_the_longest_straw() {
        let found: Vec<u32> = (0..16).map(|n| of_hash(DirHash::Crush2, format!("n{n}").as_bytes(), 8)).collect();
        assert_eq!(found, [4, 0, 0, 1, 7, 0, 2, 3, 4, 5, 3, 2, 6, 1, 4, 1]);
        for (hash, name, final_name) in
            [(DirHash::Crush, b".lib.123456", &b"lib"[..]), (DirHash::Crush2, b".lib.a23456", b"lib")]
        {
            let other = if hash == DirHash::Crush { DirHash::Crush2 } else { DirHash::Crush };
            assert_eq!(of_hash(hash, name, 1000), of_hash(hash, final_name, 1000));
            assert_ne!(
                of_hash(other, name, 1000),
                of_hash(other, final_name, 1000),
                "to the other one it is no temporary name"
            );
        }
    }

    #[test]
    fn more_stripes_take_names_only_to_the_new_ones() {
        for name in (0..2000).map(|number| format!("n{number}")) {
            let (before, after) =
                (of_hash(DirHash::Crush2, name.as_bytes(), 4), of_hash(DirHash::Crush2, name.as_bytes(), 6));
            assert!(after == before || after >= 4, "{name}: {before}, then {after}");
        }
    }

    #[test]
    fn temporary_names_are_hashed_as_their_final_ones() {
        let same = [
            (&b".result.dat.aB3xY9"[..], &b"result.dat"[..]),
            (b"result.dat.Ab3dEf7h", b"result.dat"),
            (b"notes.txt~", b"notes.txt"),
            (b"notes.txt.BAK", b"notes.txt"),
            (b"notes.txt.orig", b"notes.txt"),
        ];
        for (temporary, name) in same {
            assert_eq!(final_name(temporary, true), name, "{}", temporary.escape_ascii());
        }
        // Too short, all in one case, mostly digits, not letters and digits.
        let own: [&[u8]; 8] =
            [b".aB3xY9", b"x~.~", b"~", b".~", b"lib.abcdefgh", b".lib.123456", b"a.20260101", b"b.Ab3dEf-h"];
        for name in own {
            let inner = final_name(name, true);
            assert!(inner == name || name == b"x~.~", "{}: {}", name.escape_ascii(), inner.escape_ascii());
        }
        // The first `crush` has the test of digits the wrong way round.
        assert_eq!(final_name(b".lib.123456", false), b"lib");
        assert_eq!(final_name(b".lib.a23456", false), b".lib.a23456");
        assert_eq!(final_name(b".lib.a23456", true), b"lib");
        // Nor does it look at what else is in a suffix: all such names are in one stripe.
        assert_eq!(final_name(b"file.1234.dat", false), b"file");
        assert_eq!(final_name(b"file.1234.dat", true), b"file.1234.dat");
    }
}
