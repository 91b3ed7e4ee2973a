//! Output: tables, sizes and JSON, and how to print them.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;

/// The reader of standard output is gone.
static UNREAD: AtomicBool = AtomicBool::new(false);
/// Some output could not be written.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints a line to standard output, by the rules of [`print()`].
macro_rules! say {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use say;

/// Prints to standard output. If the reader is gone (`adamant status | head -1`), the command continues; other failures are
/// reported once and make the exit status 1 ([`is_lost`]).
pub(crate) fn print(text: fmt::Arguments<'_>) {
    if let Err(error) = io::stdout().lock().write_fmt(text) {
        failed(&error);
    }
}

/// Prints bytes unchanged, by the same rules. False once the reader is gone.
pub(crate) fn print_bytes(bytes: &[u8]) -> bool {
    match io::stdout().lock().write_all(bytes) {
        Ok(()) => true,
        Err(error) => {
            failed(&error);
            false
        }
    }
}

/// Whether the reader is gone, so that a command that only prints can stop.
pub(crate) fn is_unread() -> bool {
    UNREAD.load(Ordering::Relaxed)
}

/// Whether some output was lost.
pub(crate) fn is_lost() -> bool {
    // Buffered output may fail only now.
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

/// A text on one line: control characters are printed as `\n` or `\u{1b}`.
pub(crate) fn one_line(text: &str) -> String {
    let printable = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(printable).collect()
}

/// Rows under a head, with columns as wide as needed.
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

/// Bytes with a unit: `1.5G`.
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

/// Parses a size with an optional unit: `64k`, `1M`, `4G`.
///
/// # Errors
/// What is wrong, as a sentence.
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
