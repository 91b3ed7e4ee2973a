//! Coverage marks come in pairs: a rare branch records that it was reached, and a test asserts that.

use std::collections::BTreeMap;

use super::sources::{is_test_file, without_comments, without_tests};
use super::{Findings, Tree, line_at};

/// `mark!("x")` in the code has a test with `marks::count("x")`, and vice versa.
pub(super) fn coverage_marks(tree: &Tree) -> Findings {
    let mut hits: BTreeMap<String, String> = BTreeMap::new();
    let mut counts: BTreeMap<String, String> = BTreeMap::new();
    for (path, text) in tree.ending_in(".rs").filter(|(path, _)| path.starts_with("crates/")) {
        let all = without_comments(text);
        let code = if is_test_file(path) { String::new() } else { without_tests(&all) };
        for (name, offset) in names_after(&all, "mark!(") {
            hits.entry(name).or_insert_with(|| format!("{path}:{}", line_at(&all, offset)));
        }
        for (name, offset) in names_after(&all, "marks::count(") {
            let in_code = names_after(&code, "marks::count(").iter().any(|(other, _)| *other == name);
            if !in_code {
                counts.entry(name).or_insert_with(|| format!("{path}:{}", line_at(&all, offset)));
            }
        }
    }
    let unasserted = hits.iter().filter(|(name, _)| !counts.contains_key(*name));
    let unmarked = counts.iter().filter(|(name, _)| !hits.contains_key(*name));
    unasserted
        .map(|(name, place)| format!("{place}: no test asserts that the mark '{name}' was hit (marks::count)"))
        .chain(unmarked.map(|(name, place)| format!("{place}: nothing hits the mark '{name}' that the test counts")))
        .collect()
}

/// The string literals that follow `opening`, with the offset of each.
fn names_after(text: &str, opening: &str) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    for (offset, _) in text.match_indices(opening) {
        let rest = text[offset + opening.len()..].trim_start();
        if let Some((name, _)) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            names.push((name.to_owned(), offset));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIT: &str = "fn f() {\n    stdx::mark!(\"rare\");\n}\n";

    #[test]
    fn a_mark_that_no_test_asserts_is_caught() {
        let findings = coverage_marks(&Tree::of(&[("crates/rpc/src/a.rs", HIT)]));
        assert_eq!(findings, ["crates/rpc/src/a.rs:2: no test asserts that the mark 'rare' was hit (marks::count)"]);
    }

    #[test]
    fn a_count_outside_tests_does_not_make_a_pair() {
        let counted = format!("{HIT}fn g() {{ marks::count(\"rare\"); }}\n");
        assert_eq!(coverage_marks(&Tree::of(&[("crates/rpc/src/a.rs", &counted)])).len(), 1);
    }

    #[test]
    fn a_count_of_nothing_is_caught_and_a_pair_is_let_through() {
        let tests =
            "#[cfg(test)]\nmod tests {\n    assert_eq!(marks::count(\"rare\"), 1);\n    marks::count(\"gone\");\n}\n";
        let tree = Tree::of(&[("crates/rpc/src/a.rs", HIT), ("crates/rpc/src/b.rs", tests)]);
        assert_eq!(coverage_marks(&tree), ["crates/rpc/src/b.rs:4: nothing hits the mark 'gone' that the test counts"]);
    }
}
