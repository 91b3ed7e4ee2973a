//! Names from a format and a number: `f%d`, `dir/%06d.tmp`, or a base to which the number is appended.

use std::ffi::CStr;
use std::str::FromStr;

use anyhow::anyhow;

/// A name format with a place for a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    before: Vec<u8>,
    after: Vec<u8>,
    width: usize,
    zeros: bool,
    left: bool,
    base: Base,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    Decimal,
    Octal,
    Hex,
    HexCapitals,
}

/// The longest name that a pattern may give.
const LENGTH_MAX: usize = 4095;
const WIDTH_MAX: usize = 255;

impl FromStr for Pattern {
    type Err = anyhow::Error;

    /// Parses a format with at most one number in it (`%d`, `%i`, `%u`, `%x`, `%X` or `%o`, with `0`, `-`, a width and
    /// `l`).
    fn from_str(text: &str) -> anyhow::Result<Pattern> {
        let mut pattern =
            Pattern { before: Vec::new(), after: Vec::new(), width: 0, zeros: false, left: false, base: Base::Decimal };
        let bad = |why: &str| anyhow!("'{text}' {why}; expected at most one number such as %d or %06d");
        let mut found = false;
        let mut rest = text.bytes().peekable();
        while let Some(byte) = rest.next() {
            let literal = if found { &mut pattern.after } else { &mut pattern.before };
            if byte != b'%' {
                literal.push(byte);
                continue;
            }
            if rest.next_if_eq(&b'%').is_some() {
                literal.push(b'%');
                continue;
            }
            if found {
                return Err(bad("has two numbers"));
            }
            found = true;
            while let Some(flag) = rest.next_if(|byte| b"0-".contains(byte)) {
                pattern.zeros |= flag == b'0';
                pattern.left |= flag == b'-';
            }
            while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                pattern.width = pattern.width.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
            }
            while rest.next_if_eq(&b'l').is_some() {}
            pattern.base = match rest.next() {
                Some(b'd' | b'i' | b'u') => Base::Decimal,
                Some(b'o') => Base::Octal,
                Some(b'x') => Base::Hex,
                Some(b'X') => Base::HexCapitals,
                _ => return Err(bad("has no number behind its %")),
            };
        }
        if pattern.width > WIDTH_MAX {
            return Err(bad("makes names that are too long"));
        }
        if text.is_empty() || text.contains('\0') || text.len() + pattern.width + 22 > LENGTH_MAX {
            return Err(bad("is no name of a file"));
        }
        Ok(pattern)
    }
}

impl Pattern {
    /// The same names in another folder.
    pub fn moved(&self, folder: &std::path::Path) -> Pattern {
        use std::os::unix::ffi::OsStrExt;
        let cut = self.before.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let mut before = folder.as_os_str().as_bytes().to_vec();
        before.push(b'/');
        before.extend_from_slice(&self.before[cut..]);
        Pattern { before, ..self.clone() }
    }

    /// Writes the name for a number into `buffer`, with a terminating NUL.
    pub fn name<'a>(&self, number: i64, buffer: &'a mut Vec<u8>) -> &'a CStr {
        buffer.clear();
        buffer.extend_from_slice(&self.before);
        let mut digits = [0u8; 24];
        let digits = self.digits(number, &mut digits);
        let negative = self.base == Base::Decimal && number < 0;
        let padding = self.width.saturating_sub(digits.len() + usize::from(negative));
        if !self.left && !self.zeros {
            buffer.extend(std::iter::repeat_n(b' ', padding));
        }
        if negative {
            buffer.push(b'-');
        }
        if self.zeros && !self.left {
            buffer.extend(std::iter::repeat_n(b'0', padding));
        }
        buffer.extend_from_slice(digits);
        if self.left {
            buffer.extend(std::iter::repeat_n(b' ', padding));
        }
        buffer.extend_from_slice(&self.after);
        buffer.push(0);
        CStr::from_bytes_until_nul(buffer).unwrap_or_default()
    }

    fn digits<'a>(&self, number: i64, digits: &'a mut [u8; 24]) -> &'a [u8] {
        let (base, letters) = match self.base {
            Base::Decimal => (10, b"0123456789abcdef"),
            Base::Octal => (8, b"0123456789abcdef"),
            Base::Hex => (16, b"0123456789abcdef"),
            Base::HexCapitals => (16, b"0123456789ABCDEF"),
        };
        let mut value = if self.base == Base::Decimal { number.unsigned_abs() } else { number as u64 };
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = letters[(value % base) as usize];
            value /= base;
            if value == 0 {
                return &digits[at..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pattern: &str, number: i64) -> String {
        let mut buffer = Vec::new();
        pattern.parse::<Pattern>().unwrap().name(number, &mut buffer).to_str().unwrap().to_owned()
    }

    #[test]
    fn names_are_as_printf_makes_them() {
        for (pattern, number, expected) in [
            ("f", 7, "f7"),
            ("f%d", 7, "f7"),
            ("f%ld.tmp", 12, "f12.tmp"),
            ("%05d", 42, "00042"),
            ("%5d|", 42, "   42|"),
            ("%-5d|", 42, "42   |"),
            ("%05d", -42, "-0042"),
            ("%x-%%", 255, "ff-%"),
            ("%X", 255, "FF"),
            ("%o", 8, "10"),
            ("100%%%d", 0, "100%0"),
            ("%d", i64::MIN, "-9223372036854775808"),
        ] {
            assert_eq!(name(pattern, number), expected, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in ["", "%d%d", "%s", "f%", "%99999999999999999999d", "a\0b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_moves_to_another_folder() {
        let pattern: Pattern = "/mnt/x/f%d".parse().unwrap();
        let mut buffer = Vec::new();
        assert_eq!(pattern.moved("/tmp/y".as_ref()).name(3, &mut buffer).to_str(), Ok("/tmp/y/f3"));
    }
}
