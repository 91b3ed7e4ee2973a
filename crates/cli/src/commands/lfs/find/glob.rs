//! Patterns for names, as in glob(7): `*`, `?`, `[a-z]`, `[!x]`, `[[:digit:]]`, and a backslash to quote a character.
//!
//! The cost of a match is at most the length of the pattern times that of the name, whatever the pattern.

/// A byte that is not UTF-8 becomes a unit above all characters.
const STRAY: u32 = 0x11_0000;

/// A parsed pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Glob(Vec<Token>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Run,
    One,
    Unit(u32),
    Set { not: bool, ranges: Vec<(u32, u32)>, classes: Vec<Class> },
}

type Class = fn(&char) -> bool;

impl Glob {
    /// Parses a pattern. Every text is one: a bracket that is not closed stands for itself.
    pub(super) fn parse(pattern: &[u8]) -> Glob {
        let pattern = units(pattern);
        let (mut tokens, mut rest) = (Vec::new(), &pattern[..]);
        while let Some((&unit, tail)) = rest.split_first() {
            rest = tail;
            tokens.push(match char::from_u32(unit) {
                Some('*') if tokens.last() == Some(&Token::Run) => continue,
                Some('*') => Token::Run,
                Some('?') => Token::One,
                Some('\\') => match rest.split_first() {
                    Some((&meant, tail)) => {
                        rest = tail;
                        Token::Unit(meant)
                    }
                    None => Token::Unit(unit),
                },
                Some('[') => match set(rest) {
                    Some((token, tail)) => {
                        rest = tail;
                        token
                    }
                    None => Token::Unit(unit),
                },
                _ => Token::Unit(unit),
            });
        }
        Glob(tokens)
    }

    /// Whether the whole name matches.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let name = units(name);
        let (mut at, mut token) = (0, 0);
        // The position of the last `*`, and where its remainder was tried last.
        let mut run: Option<(usize, usize)> = None;
        loop {
            match self.0.get(token) {
                Some(Token::Run) => {
                    run = Some((token, at));
                    token += 1;
                    continue;
                }
                Some(one) if name.get(at).is_some_and(|unit| one.takes(*unit)) => {
                    (at, token) = (at + 1, token + 1);
                    continue;
                }
                None if at == name.len() => return true,
                _ => {}
            }
            match run {
                Some((place, tried)) if tried < name.len() => {
                    run = Some((place, tried + 1));
                    (at, token) = (tried + 1, place + 1);
                }
                _ => return false,
            }
        }
    }
}

impl Token {
    fn takes(&self, unit: u32) -> bool {
        match self {
            Token::Run => false,
            Token::One => true,
            Token::Unit(wanted) => *wanted == unit,
            Token::Set { not, ranges, classes } => {
                let listed = ranges.iter().any(|(first, last)| (*first..=*last).contains(&unit))
                    || char::from_u32(unit).is_some_and(|c| classes.iter().any(|class| class(&c)));
                listed != *not
            }
        }
    }
}

/// Parses the set after a bracket, and returns it with the rest; `None` if it is not closed.
fn set(mut rest: &[u32]) -> Option<(Token, &[u32])> {
    let is = |unit: Option<&u32>, wanted: char| unit == Some(&u32::from(wanted));
    let not = is(rest.first(), '!') || is(rest.first(), '^');
    rest = rest.get(usize::from(not)..)?;
    let (mut ranges, mut classes, mut first) = (Vec::new(), Vec::new(), true);
    loop {
        let (&unit, tail) = rest.split_first()?;
        // A closing bracket in first position belongs to the set.
        if unit == u32::from(']') && !first {
            return Some((Token::Set { not, ranges, classes }, tail));
        }
        first = false;
        if unit == u32::from('[')
            && let Some((class, tail)) = class(tail)
        {
            classes.push(class);
            rest = tail;
            continue;
        }
        let (low, tail) = if unit == u32::from('\\') { (*tail.first()?, &tail[1..]) } else { (unit, tail) };
        match tail {
            [dash, high, after @ ..] if *dash == u32::from('-') && *high != u32::from(']') => {
                ranges.push((low, *high));
                rest = after;
            }
            _ => {
                ranges.push((low, low));
                rest = tail;
            }
        }
    }
}

/// Parses a class such as `:digit:]`.
fn class(rest: &[u32]) -> Option<(Class, &[u32])> {
    let tail = rest.strip_prefix(&[u32::from(':')])?;
    let length = tail.iter().position(|unit| *unit == u32::from(':'))?;
    let name: String = tail[..length].iter().filter_map(|unit| char::from_u32(*unit)).collect();
    let class: Class = match name.as_str() {
        "alnum" => |c| c.is_alphanumeric(),
        "alpha" => |c| c.is_alphabetic(),
        "blank" => |c| matches!(c, ' ' | '\t'),
        "cntrl" => |c| c.is_control(),
        "digit" => char::is_ascii_digit,
        "graph" => |c| !c.is_control() && !c.is_whitespace(),
        "lower" => |c| c.is_lowercase(),
        "print" => |c| !c.is_control(),
        "punct" => char::is_ascii_punctuation,
        "space" => |c| c.is_whitespace(),
        "upper" => |c| c.is_uppercase(),
        "xdigit" => char::is_ascii_hexdigit,
        _ => return None,
    };
    tail[length + 1..].strip_prefix(&[u32::from(']')]).map(|after| (class, after))
}

/// The characters of a name, and the bytes that are not UTF-8.
fn units(name: &[u8]) -> Vec<u32> {
    let mut units = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        units.extend(chunk.valid().chars().map(u32::from));
        units.extend(chunk.invalid().iter().map(|byte| STRAY + u32::from(*byte)));
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Glob::parse(pattern.as_bytes()).matches(name.as_bytes())
    }

    #[test]
    fn names_match_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", ".hidden", true),
            ("*.mpg", "film.mpg", true),
            ("*.mpg", "film.mpg4", false),
            ("f?lm", "fälm", true),
            ("f??lm", "fälm", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXb", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("[[:digit:][:upper:]]*", "7", true),
            ("[[:digit:]]", "x", false),
            ("[[:nonsense:]", ":", true),
            ("[x", "[x", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("[\\]]", "]", true),
            ("a\\", "a\\", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        let stray = Glob::parse(b"a?b");
        assert!(stray.matches(b"a\xffb") && !stray.matches(b"a\xff\xffb"));
        assert!(Glob::parse(b"\xff*").matches(b"\xffx") && !Glob::parse(b"\xfe*").matches(b"\xffx"));
    }

    #[test]
    fn no_pattern_is_slow() {
        assert!(!matches(&"*a".repeat(100), &"a".repeat(99)));
        assert!(matches(&"*a".repeat(100), &"a".repeat(255)));
        assert!(!matches(&format!("{}b", "*a".repeat(1000)), &"a".repeat(255)));
    }
}
