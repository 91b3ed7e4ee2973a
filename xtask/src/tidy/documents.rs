//! Rules over the Markdown files: one title each, valid links, a summary that lists every chapter.

use std::collections::BTreeSet;

use super::{Findings, Tree};
use crate::numbered;

const BOOK: &str = "docs/src/";
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// The lines outside code fences, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        if fence {
            fenced = !fenced;
        }
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// A document has exactly one title, in its first line.
pub(super) fn one_title(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    for (path, text) in tree.ending_in(".md") {
        let titles: Vec<usize> =
            prose(text).filter(|(_, line)| line.starts_with("# ")).map(|(number, _)| number).collect();
        if titles.first() != Some(&1) {
            findings.push(format!("{path}:1: must open with its title"));
        }
        for number in titles.iter().skip(1) {
            findings.push(format!("{path}:{number}: is a second title; use `##`"));
        }
    }
    findings
}

/// The links of a text: line and target.
fn link_targets(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        // Text between backquotes is code.
        for (index, piece) in line.split('`').enumerate() {
            if index % 2 == 1 {
                continue;
            }
            for (offset, _) in piece.match_indices("](") {
                if let Some((target, _)) = piece[offset + 2..].split_once(')') {
                    links.push((number, target));
                }
            }
        }
    }
    links
}

/// The path that `target` refers to, relative to the file at `from`; `None` if it leaves the checkout.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchor of a heading: lower case, words joined by hyphens.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// Links to files and headings of the checkout are valid, and a chapter links only within the book.
pub(super) fn links(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    for (path, text) in tree.ending_in(".md") {
        for (number, target) in link_targets(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let place = if file.is_empty() { Some(path.to_owned()) } else { resolve(path, file) };
            let Some(place) = place.filter(|place| tree.has(place)) else {
                findings.push(format!("{path}:{number}: the link to '{target}' leads nowhere"));
                continue;
            };
            if path.starts_with(BOOK) && !place.starts_with(BOOK) {
                findings.push(format!("{path}:{number}: the link to '{target}' leaves the book"));
            }
            let headings = tree.get(&place).unwrap_or_default();
            let known = prose(headings).any(|(_, line)| line.starts_with('#') && anchor(line) == heading);
            if !heading.is_empty() && !known {
                findings.push(format!("{path}:{number}: '{place}' has no heading '#{heading}'"));
            }
        }
    }
    findings
}

/// The summary lists every chapter of the book.
pub(super) fn summary(tree: &Tree) -> Findings {
    let listed: BTreeSet<String> = link_targets(tree.get(SUMMARY).unwrap_or_default())
        .into_iter()
        .filter_map(|(_, target)| resolve(SUMMARY, target))
        .collect();
    tree.ending_in(".md")
        .map(|(path, _)| path)
        .filter(|path| path.starts_with(BOOK) && *path != SUMMARY && !listed.contains(*path))
        .map(|path| format!("{path}: is not listed in {SUMMARY}"))
        .collect()
}

/// The page of the tests by number lists exactly the existing tests.
pub(super) fn tests_by_number(tree: &Tree) -> Findings {
    let sources = tree.ending_in(".rs").filter(|(path, _)| path.starts_with(numbered::SOURCES)).map(|(_, text)| text);
    let cases = numbered::cases(sources);
    let page = tree.get(numbered::PAGE).unwrap_or_default();
    let advice = "write it with `cargo xtask results`";
    numbered::differences(page, &cases)
        .into_iter()
        .map(|what| format!("{}: {what}; {advice}", numbered::PAGE))
        .collect()
}

/// The page with the tests of rules.
const BY_RULE: &str = "docs/src/tests-by-rule.md";

/// Every test that the page of rules names exists: `client/mdts: a_test` is in the tests or the sources of that crate.
pub(super) fn tests_by_rule(tree: &Tree) -> Findings {
    let page = tree.get(BY_RULE).unwrap_or_default();
    let names = page
        .lines()
        .enumerate()
        .flat_map(|(line, text)| text.split('`').skip(1).step_by(2).map(move |t| (line + 1, t)));
    let named = names.filter_map(|(line, text)| Some((line, text.split_once(": ")?)));
    let missing = named.filter(|(_, (place, test))| {
        let Some((of, file)) = place.split_once('/') else { return true };
        let texts =
            ["tests", "src"].map(|folder| tree.get(&format!("crates/{of}/{folder}/{file}.rs")).unwrap_or_default());
        !texts.iter().any(|text| text.contains(&format!("fn {test}()")))
    });
    missing.map(|(line, (place, test))| format!("{BY_RULE}:{line}: there is no test '{test}' in '{place}'")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_and_a_second_title_are_caught() {
        let tree = Tree::of(&[
            ("a.md", "# A\n\n```sh\n# a comment\n```\n## Part\n"),
            ("b.md", "text\n"),
            ("c.md", "# C\n\n# D\n"),
        ]);
        assert_eq!(one_title(&tree), ["b.md:1: must open with its title", "c.md:3: is a second title; use `##`"]);
    }

    #[test]
    fn dead_links_and_headings_are_caught() {
        let tree = Tree::of(&[
            ("docs/a.md", "# A\n[up](../b.md) [self](#a) [`code`](../c.md)\n[out](../../x.md) `[no](link)`\n"),
            (
                "b.md",
                "# B: the rest\n[good](docs/a.md#a) [bad](docs/a.md#b) [web](https://example.org) [b](#b-the-rest)\n",
            ),
        ]);
        assert_eq!(
            links(&tree),
            [
                "b.md:2: 'docs/a.md' has no heading '#b'",
                "docs/a.md:2: the link to '../c.md' leads nowhere",
                "docs/a.md:3: the link to '../../x.md' leads nowhere",
            ]
        );
    }

    #[test]
    fn a_chapter_that_links_out_of_the_book_is_caught() {
        let tree = Tree::of(&[("docs/src/a.md", "# A\n[r](../../README.md)\n"), ("README.md", "# R\n")]);
        assert_eq!(links(&tree), ["docs/src/a.md:2: the link to '../../README.md' leaves the book"]);
    }

    #[test]
    fn a_chapter_that_the_summary_does_not_list_is_caught() {
        let tree = Tree::of(&[
            ("docs/src/SUMMARY.md", "# Summary\n- [A](a.md)\n"),
            ("docs/src/a.md", "# A\n"),
            ("docs/src/b.md", "# B\n"),
            ("docs/decisions/0001-x.md", "# X\n"),
        ]);
        assert_eq!(summary(&tree), ["docs/src/b.md: is not listed in docs/src/SUMMARY.md"]);
    }

    #[test]
    fn a_case_that_the_page_lacks_is_caught() {
        let test = ("crates/e2e/tests/x.rs", "fn sanity_1_x() {\nfn sanity_1_x_sync_metadata() {\n");
        let page = (numbered::PAGE, "| sanity | test 1: x | PASS | PASS |\n");
        assert!(tests_by_number(&Tree::of(&[test, page])).is_empty());
        let findings = tests_by_number(&Tree::of(&[test]));
        assert!(findings[0].contains("lacks the row") && findings[0].contains("cargo xtask results"), "{findings:?}");
    }

    #[test]
    fn a_rule_whose_test_is_gone_is_caught() {
        let page = "| a rule | same | `client/mdts: one`, `rules/names: two`, `code` |\n";
        let (one, two) =
            (("crates/client/tests/mdts.rs", "fn one() {\n"), ("crates/rules/src/names.rs", "    fn two() {\n"));
        assert!(tests_by_rule(&Tree::of(&[(BY_RULE, page), one, two])).is_empty());
        let findings = tests_by_rule(&Tree::of(&[(BY_RULE, page), two]));
        assert_eq!(findings, ["docs/src/tests-by-rule.md:1: there is no test 'one' in 'client/mdts'"]);
    }
}
