//! Lists of directories: `a@b`, `/lustre_{0-15}`, `/lustre_{0..15}`, `{a,b}`.

use anyhow::{anyhow, bail};

/// The most directories in a list.
const MAX: usize = 4096;

/// The directories that the words name, in order.
///
/// # Errors
/// A brace is not closed, a range runs backwards, or there are too many directories.
pub fn expand(words: &[String]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for part in words.iter().flat_map(|word| word.split('@')) {
        if part.is_empty() {
            bail!("a directory's name is empty");
        }
        braces(part, &mut found)?;
    }
    Ok(found)
}

fn braces(text: &str, found: &mut Vec<String>) -> anyhow::Result<()> {
    let Some(open) = text.find('{') else {
        if found.len() >= MAX {
            bail!("more than {MAX} directories");
        }
        found.push(text.to_owned());
        return Ok(());
    };
    let close = text[open..].find('}').ok_or_else(|| anyhow!("'{text}' has a {{ that is not closed"))? + open;
    let (before, inside, after) = (&text[..open], &text[open + 1..close], &text[close + 1..]);
    let choices = match range(inside)? {
        Some(range) => range,
        None => inside.split(',').map(str::to_owned).collect(),
    };
    choices.iter().try_for_each(|choice| braces(&format!("{before}{choice}{after}"), found))
}

/// Parses `0-15` or `0..15`; leading zeros are kept.
fn range(text: &str) -> anyhow::Result<Option<Vec<String>>> {
    let Some((low, high)) = text.split_once("..").or_else(|| text.split_once('-')) else { return Ok(None) };
    let (Ok(first), Ok(last)) = (low.parse::<usize>(), high.parse::<usize>()) else { return Ok(None) };
    if last < first || last - first >= MAX {
        bail!("'{{{text}}}' is no range; expected {{FIRST-LAST}} of at most {MAX}");
    }
    let width = if low.starts_with('0') { low.len() } else { 0 };
    Ok(Some((first..=last).map(|number| format!("{number:0width$}")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> anyhow::Result<Vec<String>> {
        expand(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn lists_and_ranges_are_expanded() {
        assert_eq!(list(&["/a@/b", "/c"]).unwrap(), ["/a", "/b", "/c"]);
        assert_eq!(list(&["/l_{0-2}/d"]).unwrap(), ["/l_0/d", "/l_1/d", "/l_2/d"]);
        assert_eq!(list(&["/l_{08..10}"]).unwrap(), ["/l_08", "/l_09", "/l_10"]);
        assert_eq!(list(&["/{x,y}{0-1}"]).unwrap(), ["/x0", "/x1", "/y0", "/y1"]);
        assert_eq!(list(&["/a-b/{c-d}"]).unwrap(), ["/a-b/c-d"]);
        assert_eq!(list(&["/l_{0-15}"]).unwrap().len(), 16);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", "/a@", "/l_{0-1", "/l_{5-2}", "/l_{0-99999999}", "/{0-999}{0-999}"] {
            assert!(list(&[bad]).is_err(), "{bad}");
        }
    }
}
