//! Tables, sizes and JSON for people and scripts, and how they are printed.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;

/// Whoever read standard output has gone.
static UNREAD: AtomicBool = AtomicBool::new(false);
/// Something could not be written to it.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints a line to standard output, by the rules of [`print()`].
macro_rules! say {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use say;

/// Prints to standard output. If nobody reads it any more (`adamant status | head -1`) a command goes on with what it does; other
/// failures are told once and make its exit status 1 ([`is_lost`]).
pub(crate) fn print(text: fmt::Arguments<'_>) {
    if let Err(error) = io::stdout().lock().write_fmt(text) {
        failed(&error);
    }
}

/// Prints bytes as they are, by the same rules. False once they reach nobody.
pub(crate) fn print_bytes(bytes: &[u8]) -> bool {
    match io::stdout().lock().write_all(bytes) {
        Ok(()) => true,
        Err(error) => {
            failed(&error);
            false
        }
    }
}

/// Whether nobody reads what is printed: what only prints need not go on.
pub(crate) fn is_unread() -> bool {
    UNREAD.load(Ordering::Relaxed)
}

/// Whether something that was to be printed is not.
pub(crate) fn is_lost() -> bool {
    // What is buffered may fail only now.
    if let Err(error) = io::stdout().lock().flush() {
        failed(&error);
    }
    LOST.load(Ordering::Relaxed)
}

fn failed(error: &io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        UNREAD.store(true, Ordering::Relaxed);
    } else if !LOST.swap(true, Ordering::Relaxed) {
        eprintln!("error: cannot write to standard output: {error}");
    }
}

/// A text on one line: what would break it, or drive the terminal, stands as `\n` or `\u{1b}`.
pub(crate) fn one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Rows under a head, columns as wide as they need to be.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Bytes as people read them: `1.5G`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    let mut value = bytes as f64 / 1024.0;
    for unit in UNITS {
        if value < 1024.0 {
            return format!("{value:.1}{unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1}Z")
}

/// A size with an optional unit: `64k`, `1M`, `4G`.
///
/// # Errors
/// A sentence.
pub(crate) fn parse_size(text: &str) -> anyhow::Result<u64> {
    let bad = || anyhow!("'{text}' is not a size; expected a number with an optional k, M, G or T");
    let (number, factor) = match text.trim().char_indices().next_back() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let shift = match unit.to_ascii_lowercase() {
                'k' => 10,
                'm' => 20,
                'g' => 30,
                't' => 40,
                _ => return Err(bad()),
            };
            (&text.trim()[..at], 1u64 << shift)
        }
        _ => (text.trim(), 1),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_bad_ones_named() {
        assert_eq!(parse_size("64k").unwrap(), 65536);
        assert_eq!(parse_size("1M").unwrap(), 1 << 20);
        assert_eq!(parse_size("7").unwrap(), 7);
        for bad in ["", "k", "1x", "-1", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tables_line_up() {
        let rows = vec![vec!["a".to_owned(), "bb".to_owned()], vec!["cccc".to_owned(), "d".to_owned()]];
        assert_eq!(table(&["x", "y"], &rows), "x     y\na     bb\ncccc  d\n");
        let rows = vec![vec!["a\nb\u{1b}".to_owned(), "c".to_owned()]];
        assert_eq!(table(&["x", "y"], &rows), "x           y\na\\nb\\u{1b}  c\n");
    }

    #[test]
    fn people_read_sizes() {
        assert_eq!(human(1536), "1.5K");
        assert_eq!(human(3 << 30), "3.0G");
    }
}
