//! Rules over Rust sources: module documentation, size, no escape hatches in the core.
//!
//! Code is read as text, which is enough because rustfmt fixes its shape: a test module at the top level starts with
//! `#[cfg(test)]` at the line's start and ends with a `}` there.

use super::edges::CORE;
use super::{Findings, Tree, line_at};

const LINES_MAX: usize = 800;

/// Whether the file contains only tests.
pub(super) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/") || path.contains("/e2e/")
}

/// The text with the top-level `#[cfg(test)]` modules and functions blanked; line numbers stay.
pub(super) fn without_tests(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "#[cfg(test)]" {
            inside = true;
        }
        let bare = line.trim_end();
        let ends = inside && (bare == "}" || (line.starts_with(char::is_alphabetic) && bare.ends_with(';')));
        result.push_str(if inside { "\n" } else { line });
        if ends {
            inside = false;
        }
    }
    result
}

/// The text with comments blanked. A `//` inside a string blanks the rest of its line too, which does not matter for these rules.
pub(super) fn without_comments(text: &str) -> String {
    text.split('\n').map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn sources(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.ending_in(".rs")
}

/// A module starts with documentation: what it does, what it leaves to others, its invariants.
pub(super) fn module_documentation(tree: &Tree) -> Findings {
    sources(tree)
        .filter(|(_, text)| {
            let first = text.lines().find(|line| !line.starts_with("#!") && !line.trim().is_empty());
            !first.is_some_and(|line| line.starts_with("//! ") && line.len() > "//! ".len())
        })
        .map(|(path, _)| format!("{path}:1: must open with `//!`: what it does, what it leaves to others"))
        .collect()
}

/// A file has at most 800 lines, not counting tests.
pub(super) fn file_size(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    for (path, text) in sources(tree).filter(|(path, _)| !is_test_file(path)) {
        let kept = without_tests(text);
        let removed = kept.lines().zip(text.lines()).filter(|(kept, line)| kept.is_empty() && !line.is_empty()).count();
        let lines = text.lines().count() - removed;
        if lines > LINES_MAX {
            findings.push(format!("{path}: {lines} lines without tests; make it two (at most {LINES_MAX})"));
        }
    }
    findings
}

/// A path that a core crate must not use, and what to use.
const HATCHES: &[(&str, &str)] = &[
    ("std::collections::HashMap", "use stdx::Map"),
    ("std::collections::HashSet", "use stdx::Set"),
    ("std::collections::hash_map", "use stdx::Map"),
    ("std::time::Instant", "use stdx::Instant, given by the driver"),
    ("std::time::SystemTime", "wall time arrives as an event"),
    ("std::thread", "a machine runs on its driver's thread"),
    ("std::fs", "ask for it with an effect"),
    ("std::net", "ask for it with an effect; core::net has the address types"),
    ("std::env", "settings arrive as parameters"),
    ("std::process", "the core starts no processes"),
    ("tokio", "the core has no runtime"),
];

/// A core crate's code, not counting tests, has no I/O, clock, threads or async.
pub(super) fn escape_hatches(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    for (path, text) in sources(tree) {
        let core = CORE.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
        if !core || is_test_file(path) {
            continue;
        }
        let code = without_comments(&without_tests(text));
        for (offset, used) in used_paths(&code) {
            for (hatch, instead) in HATCHES {
                if used == *hatch || used.starts_with(&format!("{hatch}::")) {
                    let line = line_at(&code, offset);
                    findings.push(format!("{path}:{line}: a core crate must not use '{used}': {instead}"));
                }
            }
        }
        for word in ["async fn", "async move", "async {", ".await"] {
            for (offset, _) in code.match_indices(word) {
                findings.push(format!("{path}:{}: a core crate has no '{word}'", line_at(&code, offset)));
            }
        }
    }
    findings
}

/// Every path with `::` in the code, with groups of a `use` expanded: `use std::{fs, time::Instant}` gives two.
fn used_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    // The prefixes of the open braces that belong to a path; a brace of ordinary code has no prefix.
    let mut groups: Vec<Option<String>> = Vec::new();
    let bytes = code.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => {
                groups.push(None);
                at += 1;
            }
            b'}' => {
                groups.pop();
                at += 1;
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                let start = at;
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'_' | b':')) {
                    at += 1;
                }
                let outer = groups.last().cloned().flatten();
                let written = &code[start..at];
                let full = format!("{}{written}", outer.as_deref().unwrap_or_default());
                if written.ends_with("::") && bytes.get(at) == Some(&b'{') {
                    groups.push(Some(full));
                    at += 1;
                } else if outer.is_some() || written.contains("::") {
                    paths.push((start, full.trim_end_matches(':').to_owned()));
                }
            }
            _ => at += 1,
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_a_head_is_caught() {
        let tree = Tree::of(&[
            ("crates/a/src/good.rs", "//! Does one thing.\n"),
            ("crates/a/src/script.rs", "#!/usr/bin/env x\n#![allow(unsafe_code)]\n\n//! Does one thing.\n"),
            ("crates/a/src/bare.rs", "use x;\n"),
            ("crates/a/src/hollow.rs", "//!\n"),
            ("crates/a/src/void.rs", ""),
        ]);
        let findings = module_documentation(&tree);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings.iter().all(|finding| !finding.contains("good") && !finding.contains("script")));
    }

    #[test]
    fn a_long_file_is_caught_and_its_tests_are_not_counted() {
        let long = "x;\n".repeat(801);
        let tests = format!("x;\n#[cfg(test)]\nmod tests {{\n{}}}\nx;\n", "    y;\n".repeat(900));
        let tree =
            Tree::of(&[("crates/a/src/b.rs", &long), ("crates/a/src/c.rs", &tests), ("crates/a/src/tests.rs", &long)]);
        assert_eq!(file_size(&tree), ["crates/a/src/b.rs: 801 lines without tests; make it two (at most 800)"]);
    }

    #[test]
    fn test_modules_are_blanked_and_the_rest_stays() {
        let text = "a\n#[cfg(test)]\nmod tests {\n    b\n}\nc\n#[cfg(test)]\nmod tests;\nd\n";
        assert_eq!(without_tests(text), "a\n\n\n\n\nc\n\n\nd\n");
    }

    #[test]
    fn every_escape_hatch_of_the_core_is_caught() {
        for (hatch, _) in HATCHES {
            let text = format!("//! Head.\nfn f() {{ {hatch}::x(); }}\n");
            let findings = escape_hatches(&Tree::of(&[("crates/rpc/src/lib.rs", &text)]));
            assert_eq!(findings.len(), 1, "{hatch}: {findings:?}");
            assert!(findings[0].starts_with("crates/rpc/src/lib.rs:2: "), "{findings:?}");
        }
    }

    #[test]
    fn grouped_uses_and_async_are_caught() {
        let text =
            "//! Head.\nuse std::{\n    collections::{BTreeMap, HashMap},\n    fs,\n};\nasync fn f() { g().await; }\n";
        let findings = escape_hatches(&Tree::of(&[("crates/mdt/src/lib.rs", text)]));
        assert_eq!(findings.len(), 4, "{findings:?}");
        assert!(findings[0].starts_with("crates/mdt/src/lib.rs:3: "), "{findings:?}");
        assert!(findings[1].starts_with("crates/mdt/src/lib.rs:4: "), "{findings:?}");
    }

    #[test]
    fn comments_tests_and_the_real_world_are_let_through() {
        let text = "//! No tokio:: here.\n// std::fs::read\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let tree = Tree::of(&[
            ("crates/rpc/src/lib.rs", text),
            ("crates/rpc/src/tests.rs", "use std::thread;\n"),
            ("crates/host/src/lib.rs", "use std::fs;\n"),
        ]);
        assert_eq!(escape_hatches(&tree), Findings::new());
    }
}
