//! Patterns of parameter names, in one dialect for all processes.
//!
//! A name has parts, joined by dots. In a pattern `*` matches any run of characters within a part, `?` one of them, and
//! `**` anything; a slash is equivalent to a dot. Patterns come from outside, so the cost of matching is bounded: a
//! pattern has at most [`PATTERN_MAX`] bytes, and each of them is visited at most once per byte of the name.

/// Longest pattern, in bytes. A longer one matches nothing.
pub const PATTERN_MAX: usize = 256;

/// An element of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// `**`.
    Anything,
    /// `*`.
    RestOfPart,
    /// `?`.
    One,
    Byte(u8),
    End,
}

/// The positions in a pattern that may match next, all of them in `low..=high`.
struct Places {
    open: [bool; PATTERN_MAX + 1],
    low: usize,
    high: usize,
}

impl Places {
    fn none() -> Places {
        Places { open: [false; PATTERN_MAX + 1], low: PATTERN_MAX, high: 0 }
    }

    /// Adds a position, and the following ones that are reachable without a character.
    fn add(&mut self, pattern: &[u8], mut at: usize) {
        loop {
            if self.open[at] {
                return;
            }
            self.open[at] = true;
            (self.low, self.high) = (self.low.min(at), self.high.max(at));
            at += match wanted(pattern, at) {
                Wanted::Anything => 2,
                Wanted::RestOfPart => 1,
                _ => return,
            };
        }
    }

    fn is_empty(&self) -> bool {
        self.low > self.high
    }
}

fn wanted(pattern: &[u8], at: usize) -> Wanted {
    match pattern.get(at..).unwrap_or_default() {
        [] => Wanted::End,
        [b'*', b'*', ..] => Wanted::Anything,
        [b'*', ..] => Wanted::RestOfPart,
        [b'?', ..] => Wanted::One,
        [byte, ..] => Wanted::Byte(dotted(*byte)),
    }
}

fn dotted(byte: u8) -> u8 {
    if byte == b'/' { b'.' } else { byte }
}

/// Whether a name matches a pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    count_steps(pattern, name).0
}

/// Whether a name matches a pattern, and how many positions were visited.
fn count_steps(pattern: &str, name: &str) -> (bool, usize) {
    let (pattern, mut steps) = (pattern.as_bytes(), 0);
    if pattern.len() > PATTERN_MAX {
        return (false, 0);
    }
    let mut places = Places::none();
    places.add(pattern, 0);
    for byte in name.bytes().map(dotted) {
        let mut next = Places::none();
        for at in places.low..=places.high {
            steps += 1;
            match wanted(pattern, at) {
                _ if !places.open[at] => {}
                Wanted::Anything => next.add(pattern, at),
                Wanted::RestOfPart if byte != b'.' => next.add(pattern, at),
                Wanted::One if byte != b'.' => next.add(pattern, at + 1),
                Wanted::Byte(wanted) if byte == wanted => next.add(pattern, at + 1),
                _ => {}
            }
        }
        if next.is_empty() {
            return (false, steps);
        }
        places = next;
    }
    (places.open[pattern.len()], steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_matched_part_by_part() {
        for (pattern, name, expected) in [
            ("mdt.*.recovery_status", "mdt.fs-MDT0000.recovery_status", true),
            ("mdt.*.recovery_status", "mdt.fs-MDT0000.exports.recovery_status", false),
            ("mdt.fs-*.exports.*.uuid", "mdt.fs-MDT0000.exports.ab-cd.uuid", true),
            ("mdc/fs-*/import", "mdc.fs-MDT0000.import", true),
            ("llite.*.max*mb", "llite.fs.max_dirty_mb", true),
            ("ldlm.namespaces.*MDT*.lock_count", "ldlm.namespaces.fs-MDT0000-mdc.lock_count", true),
            ("m?t.*.*", "mdt.a.b", true),
            ("m?dt", "m.dt", false),
            ("fail_loc", "fail_loc", true),
            ("*", "fail_loc", true),
            ("*", "llite.fs.uuid", false),
            ("**", "llite.fs.uuid", true),
            ("*.**", "mdt.a.b", true),
            ("mdt.**", "mdt.x.exports.y", true),
            ("mdt.**.uuid", "mdt.a.b.uuid", true),
            ("mdt.**.uuid", "mdt.a.nid", false),
            ("mdt.*", "mdt", false),
            ("mdt***t", "mdt.x.exports.y.t", true),
            ("", "x", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_from_outside_costs_no_more_than_its_length_times_the_names() {
        let name = "mdt.fs-MDT0000.exports.0123456789abcdef.reply_data";
        let hostile = ["*".repeat(PATTERN_MAX), "**?".repeat(85), "*:".repeat(128), "*a".repeat(128), "**a".repeat(85)];
        for pattern in hostile {
            let (_, steps) = count_steps(&pattern, name);
            assert!(steps <= (PATTERN_MAX + 1) * name.len(), "{pattern}: {steps}");
        }
        assert!(matches(&"*".repeat(PATTERN_MAX), name));
        assert!(!matches(&"*".repeat(PATTERN_MAX + 1), name), "longer than patterns are");
        let (found, steps) = count_steps("mdt.*.recovery_status", "ldlm.namespaces.x.lock_count");
        assert_eq!((found, steps), (false, 1), "what differs at once is looked at once");
    }

    /// Compared with a literal implementation of the definition.
    #[test]
    fn short_patterns_and_names_match_as_defined() {
        fn defined(pattern: &[u8], name: &[u8]) -> bool {
            match (pattern, name) {
                ([], rest) => rest.is_empty(),
                ([b'*', b'*', rest @ ..], _) => (0..=name.len()).any(|at| defined(rest, &name[at..])),
                ([b'*', rest @ ..], _) => {
                    let part = name.iter().position(|byte| *byte == b'.').unwrap_or(name.len());
                    (0..=part).any(|at| defined(rest, &name[at..]))
                }
                ([b'?', rest @ ..], [byte, name @ ..]) => *byte != b'.' && defined(rest, name),
                ([a, rest @ ..], [b, name @ ..]) => a == b && defined(rest, name),
                (_, []) => false,
            }
        }
        let words = |letters: &[u8], length: usize| -> Vec<Vec<u8>> {
            let mut all = vec![Vec::new()];
            let mut from = 0;
            for _ in 0..length {
                let to = all.len();
                for at in from..to {
                    all.extend(letters.iter().map(|letter| [&all[at][..], &[*letter]].concat()).collect::<Vec<_>>());
                }
                from = to;
            }
            all
        };
        for pattern in words(b"*?a.", 5) {
            for name in words(b"ab.", 4) {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                assert_eq!(matches(&text(&pattern), &text(&name)), defined(&pattern, &name), "{pattern:?} {name:?}");
            }
        }
    }
}
