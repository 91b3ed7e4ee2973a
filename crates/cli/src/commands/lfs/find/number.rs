//! The numbers in tests: `[+-]N` with units, and the comparison with a value.

use std::cmp::Ordering;

use anyhow::anyhow;

/// More than, less than or equal to a number, within a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    /// `Greater` for `+N`, `Less` for `-N`.
    side: Ordering,
    value: u64,
    unit: u64,
}

impl Range {
    /// `[+-]N`.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub(super) fn plain(text: &str) -> anyhow::Result<Range> {
        let (side, number) = side(text);
        let value = digits(number).ok_or_else(|| anyhow!("'{text}' is not a number; expected N, +N or -N"))?;
        Ok(Range { side, value, unit: 1 })
    }

    /// `[+-]N[bkMGTPE]`; `unit` is for a number without one; `b` is a block of 512 bytes.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub(super) fn size(text: &str, unit: u64) -> anyhow::Result<Range> {
        let bad = || anyhow!("'{text}' is not a size; expected [+-]N with an optional b, k, M, G, T, P or E");
        let (side, number) = side(text);
        let (number, unit) = match number.char_indices().next_back() {
            Some((at, letter)) if letter.is_ascii_alphabetic() => {
                let unit = match letter.to_ascii_lowercase() {
                    'b' => 512,
                    'c' => 1,
                    'k' => 1 << 10,
                    'm' => 1 << 20,
                    'g' => 1 << 30,
                    't' => 1 << 40,
                    'p' => 1 << 50,
                    'e' => 1 << 60,
                    _ => return Err(bad()),
                };
                (&number[..at], unit)
            }
            _ => (number, unit),
        };
        let value = digits(number).and_then(|number| number.checked_mul(unit)).ok_or_else(bad)?;
        Ok(Range { side, value, unit })
    }

    /// `[+-]N[smhdwy]`, in seconds; several units may follow each other (`8h20m`), and `unit` is for a number without one.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub(super) fn age(text: &str, unit: u64) -> anyhow::Result<Range> {
        let bad = || anyhow!("'{text}' is not an age; expected [+-]N with an optional s, m, h, d, w or y, as in 8h20m");
        let (side, mut rest) = side(text);
        let (mut value, mut smallest) = (0u64, None);
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number: u64 = digits(&rest[..end]).ok_or_else(bad)?;
            let seconds = match rest[end..].chars().next() {
                // Only a number that stands alone may lack a unit.
                None if smallest.is_none() => unit,
                Some('s') => 1,
                Some('m') => 60,
                Some('h') => 3600,
                Some('d') => 86400,
                Some('w') => 7 * 86400,
                Some('y') => 365 * 86400,
                _ => return Err(bad()),
            };
            value = number.checked_mul(seconds).and_then(|part| value.checked_add(part)).ok_or_else(bad)?;
            smallest = Some(smallest.map_or(seconds, |so_far: u64| so_far.min(seconds)));
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        Ok(Range { side, value, unit: smallest.unwrap_or(unit) })
    }

    /// Whether a size (or a count) is in the range. Sizes are rounded up to the unit, so 1M matches files of up to one
    /// mebibyte.
    pub(super) fn holds_size(self, size: u64) -> bool {
        match self.side {
            Ordering::Equal => size <= self.value && self.value - size < self.unit,
            side => size.cmp(&self.value) == side,
        }
    }

    /// Whether an age in seconds is in the range. Ages are rounded down, so 3d matches from three to four days. A time in
    /// the future counts as younger than everything else.
    pub(super) fn holds_age(self, age: i64) -> bool {
        match (u64::try_from(age), self.side) {
            (Ok(age), Ordering::Equal) => age >= self.value && age - self.value < self.unit,
            (Ok(age), side) => age.cmp(&self.value) == side,
            (Err(_), side) => side == Ordering::Less,
        }
    }
}

/// A number without a sign of its own.
fn digits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

fn side(text: &str) -> (Ordering, &str) {
    match text.split_at_checked(1) {
        Some(("+", rest)) => (Ordering::Greater, rest),
        Some(("-", rest)) => (Ordering::Less, rest),
        _ => (Ordering::Equal, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86400;

    #[test]
    fn sizes_have_units_and_sides() {
        let holds = |text: &str, size: u64| Range::size(text, 1).unwrap().holds_size(size);
        assert!(holds("5", 5) && !holds("5", 4) && !holds("5", 6) && holds("0", 0) && !holds("0", 1));
        assert!(holds("1M", 1 << 20) && holds("1M", 1) && !holds("1M", 0) && !holds("1M", (1 << 20) + 1));
        assert!(holds("+1k", 1025) && !holds("+1k", 1024) && holds("-1k", 1023) && !holds("-1k", 1024));
        assert!(holds("-1k", 0) && holds("2b", 1024) && holds("-1E", 1 << 59) && holds("+15E", u64::MAX));
        assert!(Range::size("4", 1024).unwrap().holds_size(4096));
        for bad in ["", "+", "k", "1x", "--1", "+-1", "16E", "99999999999999999999", "1.5", "é"] {
            assert!(Range::size(bad, 1).is_err(), "{bad}");
        }
    }

    #[test]
    fn ages_have_units_that_add_up_and_the_smallest_is_the_margin() {
        let holds = |text: &str, age: i64| Range::age(text, DAY).unwrap().holds_age(age);
        let day = DAY as i64;
        assert!(holds("3", 3 * day) && holds("3", 4 * day - 1) && !holds("3", 4 * day) && !holds("3", 3 * day - 1));
        assert!(holds("72h", 3 * day + 3599) && !holds("72h", 3 * day + 3600));
        assert!(holds("8h20m", 500 * 60 + 59) && !holds("8h20m", 500 * 60 + 60));
        assert!(holds("+30", 30 * day + 1) && !holds("+30", 30 * day) && holds("-30", 30 * day - 1));
        assert!(holds("-1s", -5) && !holds("+0", -5) && !holds("0", -5) && holds("0", 0) && holds("1y", 365 * day));
        assert!(Range::age("5", 60).unwrap().holds_age(330));
        for bad in ["", "+", "d", "3x", "3d5", "5 d", "99999999999999999999", "9999999999999999999y", "3dd", "é"] {
            assert!(Range::age(bad, DAY).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_are_exact() {
        assert!(Range::plain("2").unwrap().holds_size(2) && !Range::plain("2").unwrap().holds_size(1));
        assert!(Range::plain("+2").unwrap().holds_size(3) && Range::plain("-2").unwrap().holds_size(1));
        assert!(Range::plain("x").is_err() && Range::plain("1k").is_err() && Range::plain("++1").is_err());
    }
}
