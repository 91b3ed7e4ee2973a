//! Tables, sizes and JSON for people and scripts.

/// Rows under a head, columns as wide as they need to be.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&head).chain(rows) {
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
pub fn human(bytes: u64) -> String {
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
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size; expected a number with an optional k, M, G or T");
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
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("7"), Ok(7));
        for bad in ["", "k", "1x", "-1", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tables_line_up() {
        let rows = vec![vec!["a".to_owned(), "bb".to_owned()], vec!["cccc".to_owned(), "d".to_owned()]];
        assert_eq!(table(&["x", "y"], &rows), "x     y\na     bb\ncccc  d\n");
    }

    #[test]
    fn people_read_sizes() {
        assert_eq!(human(1536), "1.5K");
        assert_eq!(human(3 << 30), "3.0G");
    }
}
