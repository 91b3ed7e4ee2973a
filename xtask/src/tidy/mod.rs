//! Rules that the compiler does not check, over the text of the tracked files.
//!
//! A rule is a function from a [`Tree`] (paths and texts) to findings, so its test needs no files: each rule has a test
//! that shows that it catches a violation. A finding names the file and line, and says what to do. The rules by what they read:
//! [`edges`] the crates' dependencies, [`layers`] those of modules within a crate, [`manifests`] the Cargo files, [`sources`] the
//! Rust code, [`marks`] the coverage marks, [`mutants`] the table of mutants, [`words`] all files, [`documents`] the Markdown.

mod documents;
pub(crate) mod edges;
mod layers;
mod manifests;
mod marks;
mod mutants;
mod sources;
mod words;

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

/// The tracked text files: path from the root, with `/`, to text.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

/// Violations, each as a sentence for a person: place, then what to do.
type Findings = Vec<String>;

type Rule = (&'static str, fn(&Tree) -> Findings);

const RULES: &[Rule] = &[
    ("dependency-edges", edges::dependency_edges),
    ("core-dependencies", edges::core_dependencies),
    ("layers", layers::layers),
    ("crate-descriptions", manifests::crate_descriptions),
    ("code-map", manifests::code_map),
    ("workspace-dependencies", manifests::workspace_dependencies),
    ("dependency-reasons", manifests::dependency_reasons),
    ("core-clippy", manifests::core_clippy),
    ("module-documentation", sources::module_documentation),
    ("file-size", sources::file_size),
    ("escape-hatches", sources::escape_hatches),
    ("coverage-marks", marks::coverage_marks),
    ("mutants", mutants::mutants),
    ("banned-words", words::banned_words),
    ("trailing-spaces", words::trailing_spaces),
    ("one-title", documents::one_title),
    ("links", documents::links),
    ("summary", documents::summary),
    ("tests-by-number", documents::tests_by_number),
    ("tests-by-rule", documents::tests_by_rule),
];

impl Tree {
    /// Reads every file that git tracks or would track; files that are not text are left out.
    fn load(sh: &Shell) -> anyhow::Result<Tree> {
        let names = cmd!(sh, "git ls-files --cached --others --exclude-standard -z")
            .quiet()
            .read()
            .context("tidy reads the files that git tracks; this is not a git checkout")?;
        let mut files = BTreeMap::new();
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            // A tracked file that was just deleted is not an error.
            if let Ok(text) = std::fs::read_to_string(sh.current_dir().join(name)) {
                files.insert(name.to_owned(), text);
            }
        }
        Ok(Tree { files })
    }

    /// Files whose path ends in `suffix`, in order of path.
    fn ending_in<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files.iter().filter(move |(path, _)| path.ends_with(suffix)).map(|(path, text)| (&**path, &**text))
    }

    fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether `path` names a file or a folder that has files.
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.files.keys().any(|file| file.starts_with(&folder))
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }
}

/// Runs every rule and fails with all findings.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    let tree = Tree::load(sh)?;
    let mut count = 0;
    let mut report = |rule: &str, findings: Findings| {
        for finding in &findings {
            eprintln!("tidy: {finding} [{rule}]");
        }
        count += findings.len();
    };
    for (name, rule) in RULES {
        report(name, rule(&tree));
    }
    let metadata = cmd!(sh, "cargo metadata --format-version 1 --locked")
        .quiet()
        .read()
        .context("Cargo.lock does not fit the manifests; run any cargo command and commit Cargo.lock")?;
    report("core-closure", edges::core_closure(&metadata)?);
    if count > 0 {
        bail!("{count} finding{}", if count == 1 { "" } else { "s" });
    }
    eprintln!("tidy: {} rules, {} files, nothing found", RULES.len() + 1, tree.files.len());
    Ok(())
}

/// The line number, from 1, of a byte offset.
fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}
