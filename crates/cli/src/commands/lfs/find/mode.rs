//! `--perm [-/]MODE`: permissions in octal, or as chmod(1) takes them.

use anyhow::anyhow;

/// The wanted permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Permissions {
    /// Exactly these.
    Exactly(u32),
    /// All of these.
    All(u32),
    /// One of these; if none is named, any mode matches.
    Any(u32),
}

impl Permissions {
    /// # Errors
    /// What is wrong, as a sentence.
    pub(super) fn parse(text: &str) -> anyhow::Result<Permissions> {
        let (kind, mode): (fn(u32) -> Permissions, &str) = match text.split_at_checked(1) {
            Some(("-", mode)) => (Permissions::All, mode),
            Some(("/", mode)) => (Permissions::Any, mode),
            _ => (Permissions::Exactly, text),
        };
        let bad = || anyhow!("'{text}' is not a mode; expected one like 644, -u+w, /222 or u=rw,go=r");
        if !mode.is_empty() && mode.bytes().all(|byte| byte.is_ascii_digit()) {
            let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(bad)?;
            return Ok(kind(mode));
        }
        mode.split(',').try_fold(0, clause).map(kind).ok_or_else(bad)
    }

    /// Whether the mode of a file matches.
    pub(super) fn hold(self, mode: u32) -> bool {
        let mode = mode & 0o7777;
        match self {
            Permissions::Exactly(wanted) => mode == wanted,
            Permissions::All(wanted) => mode & wanted == wanted,
            Permissions::Any(wanted) => wanted == 0 || mode & wanted != 0,
        }
    }
}

/// One clause, as in `ug+rw`, applied to a mode.
fn clause(mode: u32, clause: &str) -> Option<u32> {
    let at = clause.find(['+', '-', '='])?;
    let (mut whose, mut special) = (0, 0);
    for class in clause[..at].chars() {
        let (bits, own) = match class {
            'u' => (0o700, 0o4000),
            'g' => (0o070, 0o2000),
            'o' => (0o007, 0o1000),
            'a' => (0o777, 0o7000),
            _ => return None,
        };
        whose |= bits;
        special |= own;
    }
    if at == 0 {
        (whose, special) = (0o777, 0o7000);
    }
    let mut bits = 0;
    for letter in clause[at + 1..].chars() {
        bits |= match letter {
            'r' => 0o444 & whose,
            'w' => 0o222 & whose,
            // `X` is for directories and for files that are executable already; because the mode starts empty, it means
            // `x`.
            'x' | 'X' => 0o111 & whose,
            's' => 0o6000 & special,
            't' => 0o1000 & special,
            _ => return None,
        };
    }
    match &clause[at..=at] {
        "+" => Some(mode | bits),
        "-" => Some(mode & !bits),
        _ => Some((mode & !(whose | special)) | bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_in_octal_and_in_letters() {
        for (text, expected) in [
            ("644", Permissions::Exactly(0o644)),
            ("0", Permissions::Exactly(0)),
            ("-4000", Permissions::All(0o4000)),
            ("/222", Permissions::Any(0o222)),
            ("u=rw,go=r", Permissions::Exactly(0o644)),
            ("-u+w,g+s", Permissions::All(0o2200)),
            ("/a+x", Permissions::Any(0o111)),
            ("+t", Permissions::Exactly(0o1000)),
            ("a=rwx,o-w", Permissions::Exactly(0o775)),
        ] {
            assert_eq!(Permissions::parse(text).unwrap(), expected, "{text}");
        }
        for bad in ["", "-", "8", "10000", "q+r", "u", "u+q", "u+r,", "77777777777"] {
            assert!(Permissions::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_compared_exactly_as_a_whole_or_in_part() {
        assert!(Permissions::Exactly(0o644).hold(0o100644) && !Permissions::Exactly(0o644).hold(0o645));
        assert!(Permissions::All(0o600).hold(0o644) && !Permissions::All(0o611).hold(0o644));
        assert!(Permissions::Any(0o022).hold(0o620) && !Permissions::Any(0o022).hold(0o644));
        assert!(Permissions::Any(0).hold(0) && Permissions::All(0).hold(0));
    }
}
