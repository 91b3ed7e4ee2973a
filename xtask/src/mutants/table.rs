//! The table of mutants, and the sources with all of them built in.
//!
//! A mutant is a realistic fault: a snippet of a source file, and what a mistake would have made of it. The table is separate from
//! the code (`tests/mutants/*.toml`), so the product's sources do not refer to it. A snippet is found by its words, not by
//! lines or indentation, and must occur exactly once, so a mutant moves with the code or tidy reports it.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// Where the tables are.
pub(crate) const FOLDER: &str = "tests/mutants/";

/// How a snippet is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// Both values are computed, and the place counts as reached only where they differ.
    Value,
    /// One expression for another.
    Expression,
    /// Statements, or nothing, for statements.
    Statements,
    /// The text of `new` replaces `old`, with `$ON` for whether the mutant is on and `$OLD` for `old`: for an arm of a
    /// `match`.
    Raw,
}

/// A mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// Its stable name.
    pub name: String,
    /// The fault, as one sentence.
    pub fault: String,
    /// The file, from the root.
    pub file: String,
    old: String,
    new: String,
    form: Option<Form>,
    /// Why no test can distinguish it from the original.
    pub equivalent: Option<String>,
    /// Its number in the switch, derived from its name.
    #[serde(skip)]
    pub number: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutant: Vec<Mutant>,
}

impl Mutant {
    fn form(&self) -> Form {
        let statements = self.old.trim_end().ends_with([';', '}']);
        self.form.unwrap_or(if statements { Form::Statements } else { Form::Expression })
    }

    /// The replacement of the snippet, whose text (perhaps with other mutants in it) is `old`.
    fn replacement(&self, old: &str) -> String {
        let switch = if self.file.starts_with("crates/stdx/") { "crate::mutants" } else { "::stdx::mutants" };
        let (number, new) = (self.number, self.new.trim());
        let on = format!("{switch}::is_on({number})");
        match self.form() {
            Form::Value => format!(
                "({{ let old_value = {old}; if {switch}::is_near({number}) {{ let new_value = {new}; \
                 if old_value != new_value && {on} {{ new_value }} else {{ old_value }} }} else {{ old_value }} }})"
            ),
            Form::Expression => format!("(if {on} {{ {new} }} else {{ {old} }})"),
            Form::Statements => format!("if {on} {{ {new} }} else {{ {old} }}"),
            Form::Raw => new.replace("$ON", &on).replace("$OLD", old),
        }
    }
}

/// All mutants of these tables (path, text), in order, numbered.
pub(crate) fn read<'a>(tables: impl Iterator<Item = (&'a str, &'a str)>) -> anyhow::Result<Vec<Mutant>> {
    let mut mutants: BTreeMap<String, Mutant> = BTreeMap::new();
    let mut order = Vec::new();
    for (path, text) in tables {
        let table: Table = toml::from_str(text).with_context(|| path.to_owned())?;
        for mutant in table.mutant {
            order.push(mutant.name.clone());
            if let Some(other) = mutants.insert(mutant.name.clone(), mutant) {
                bail!("{path}: the name '{}' is taken", other.name);
            }
        }
    }
    // A number is derived from the name, so that a new mutant does not change the other files, which then need no rebuild.
    let mut taken = vec![false; 1 << 16];
    taken[0] = true;
    for mutant in mutants.values_mut() {
        let digest =
            mutant.name.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let mut number = (digest ^ digest >> 16) as usize & 0xffff;
        while taken[number] {
            number = (number + 1) & 0xffff;
        }
        taken[number] = true;
        mutant.number = u32::try_from(number)?;
    }
    Ok(order.iter().filter_map(|name| mutants.remove(name)).collect())
}

/// Where the only occurrence of `snippet` starts and ends in `text`, ignoring spacing.
fn find(text: &str, snippet: &str) -> Result<(usize, usize), usize> {
    let words: Vec<&str> = snippet.split_whitespace().collect();
    let Some(first) = words.first() else { return Err(0) };
    let ends: Vec<(usize, usize)> = text
        .match_indices(first)
        .filter_map(|(start, _)| {
            let mut end = start + first.len();
            for word in &words[1..] {
                let rest = text[end..].trim_start();
                if rest.len() == text.len() - end || !rest.starts_with(word) {
                    return None;
                }
                end = text.len() - rest.len() + word.len();
            }
            Some((start, end))
        })
        .collect();
    match ends[..] {
        [place] => Ok(place),
        _ => Err(ends.len()),
    }
}

/// Entries of the table that do not match the sources.
pub(crate) fn findings<'a>(mutants: &[Mutant], source: impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let one = |mutant: &Mutant| {
        let (file, name) = (&mutant.file, &mutant.name);
        let Some(text) = source(file) else { return Some(format!("mutant '{name}': there is no file {file}")) };
        if mutant.form() == Form::Raw && mutant.equivalent.is_none() && !mutant.new.contains("$ON") {
            return Some(format!("mutant '{name}': the form 'raw' needs $ON in 'new'"));
        }
        if mutant.form() == Form::Statements && mutant.old.trim_start().starts_with("let ") {
            return Some(format!("mutant '{name}': what it declares would end with its block; use the form 'raw'"));
        }
        if !mutant.fault.ends_with('.') || mutant.name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
            return Some(format!(
                "mutant '{name}': a name of letters, digits and hyphens, and a sentence for the fault"
            ));
        }
        match find(text, &mutant.old) {
            Ok(_) => None,
            Err(0) => Some(format!("{file}: mutant '{name}' changes what is not there any more; follow the code")),
            Err(count) => Some(format!("{file}: what mutant '{name}' changes is there {count} times; make it unique")),
        }
    };
    let mut findings: Vec<String> = mutants.iter().filter_map(one).collect();
    if findings.is_empty() {
        for (file, mutants) in by_file(mutants) {
            let applied = source(file).map(|text| apply(text, &mutants));
            findings.extend(applied.and_then(Result::err).map(|error| format!("{file}: {error:#}")));
        }
    }
    findings
}

/// The mutants that are built in, by file.
pub(crate) fn by_file(mutants: &[Mutant]) -> BTreeMap<&str, Vec<&Mutant>> {
    let mut by_file: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants.iter().filter(|mutant| mutant.equivalent.is_none()) {
        by_file.entry(&mutant.file).or_default().push(mutant);
    }
    by_file
}

/// The full text of a file with these mutants built in.
pub(crate) fn apply(text: &str, mutants: &[&Mutant]) -> anyhow::Result<String> {
    let mut places = Vec::new();
    for (index, mutant) in mutants.iter().enumerate() {
        let (start, end) = find(text, &mutant.old)
            .map_err(|count| anyhow::anyhow!("mutant '{}' is found {count} times", mutant.name))?;
        places.push((start, end, index));
    }
    // The outer of two nested snippets first; of two at the same place, the one that is first in the table.
    places.sort_by_key(|&(start, end, index)| (start, usize::MAX - end, index));
    let mut places = &places[..];
    let result = render(text, 0, text.len(), &mut places, mutants)?;
    ensure!(places.is_empty(), "a place is outside the text");
    Ok(result)
}

fn render(
    text: &str,
    start: usize,
    end: usize,
    places: &mut &[(usize, usize, usize)],
    mutants: &[&Mutant],
) -> anyhow::Result<String> {
    let (mut result, mut at) = (String::new(), start);
    while let Some((&(from, to, index), rest)) = places.split_first() {
        if from >= end {
            break;
        }
        let mutant = mutants[index];
        ensure!(to <= end, "mutant '{}' overlaps another and neither is inside the other", mutant.name);
        *places = rest;
        result.push_str(&text[at..from]);
        let old = render(text, from, to, places, mutants)?;
        let hides = mutant.form() == Form::Raw && !mutant.new.contains("$OLD");
        ensure!(!hides || old == text[from..to], "mutant '{}' hides another; use $OLD", mutant.name);
        result.push_str(&mutant.replacement(&old));
        at = to;
    }
    result.push_str(&text[at..end]);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "[[mutant]]\nname = 'a'\nfault = 'No g.'\nfile = 'f.rs'\nold = 'g( x);'\nnew = ''\n\
                         [[mutant]]\nname = 'b'\nfault = 'Off by one.'\nfile = 'f.rs'\nold = 'x'\nnew = 'x + 1'\n\
                         form = 'value'\n";

    fn mutants() -> Vec<Mutant> {
        read([("t.toml", TABLE)].into_iter()).unwrap()
    }

    #[test]
    fn snippets_are_found_by_words_and_once() {
        assert_eq!(find("a b\n  c d", "b c"), Ok((2, 7)));
        assert_eq!(find("a b\n  c d b c", "b c"), Err(2));
        assert_eq!(find("bc", "b c"), Err(0));
    }

    #[test]
    fn a_place_inside_another_is_in_what_stays() {
        let mutants = mutants();
        let text = apply("fn f() {\n    g(\n        x);\n}\n", &mutants.iter().collect::<Vec<_>>()).unwrap();
        let (a, b) = (mutants[0].number, mutants[1].number);
        assert!(
            text.starts_with(&format!("fn f() {{\n    if ::stdx::mutants::is_on({a}) {{  }} else {{ g(\n")),
            "{text}"
        );
        assert!(text.contains(&format!("is_near({b}) {{ let new_value = x + 1; if old_value != new_value")), "{text}");
    }

    #[test]
    fn what_does_not_fit_the_sources_is_caught() {
        let mutants = mutants();
        assert!(findings(&mutants, |_| Some("g( x);")).is_empty());
        assert_eq!(findings(&mutants, |_| None).len(), 2, "no such file");
        assert_eq!(findings(&mutants, |_| Some("g( x); x")).len(), 1, "twice");
        assert_eq!(findings(&mutants, |_| Some("")).len(), 2, "gone");
        let table = TABLE.replace("'g( x);'", "'let y = g( x);'");
        let mutants = read([("t.toml", &*table)].into_iter()).unwrap();
        assert_eq!(findings(&mutants, |_| Some("let y = g( x);")).len(), 1, "hides what it declares");
    }

    #[test]
    fn a_name_is_taken_once_and_numbers_are_unique() {
        assert!(read([("t.toml", TABLE), ("u.toml", TABLE)].into_iter()).is_err());
        let mutants = mutants();
        assert_ne!(mutants[0].number, mutants[1].number);
    }
}
