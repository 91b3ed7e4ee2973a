//! The tests by Lustre's numbers: found in the sources by their names, run, and written as a page of the guide.
//!
//! A test with real processes that is a case of a suite of Lustre bears its name: `replay_single_53a_close_request_…` is
//! case 53a of replay-single, and the words behind are its title. `cargo xtask results` runs them all and writes
//! [`PAGE`]; tidy holds the page against the sources, so that it lists the cases that exist and no others, all passed.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, bail, ensure};
use xshell::{Shell, cmd};

/// The page.
pub const PAGE: &str = "docs/src/tests-by-number.md";
/// Where the tests are.
pub const SOURCES: &str = "crates/e2e/tests/";

/// Suites of Lustre, as names of functions begin.
const SUITES: &[&str] = &[
    "sanity",
    "sanityn",
    "sanity_lfsck",
    "sanity_scrub",
    "conf_sanity",
    "replay_single",
    "replay_dual",
    "recovery_small",
];

/// A case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Case {
    /// `replay-single`.
    pub suite: String,
    /// 53, then `a`.
    number: (u32, String),
    /// `close request while two requests in flight`.
    pub title: String,
    /// The function.
    pub function: String,
}

impl Case {
    /// `test 53a: close request while two requests in flight`.
    fn shown(&self) -> String {
        format!("test {}{}: {}", self.number.0, self.number.1, self.title)
    }

    /// Its row, with this status.
    fn row(&self, status: &str) -> String {
        format!("| {} | {} | {status} |", self.suite, self.shown())
    }
}

/// The case that a function's name stands for.
fn case(function: &str) -> Option<Case> {
    SUITES.iter().find_map(|suite| {
        let rest = function.strip_prefix(suite)?.strip_prefix('_')?;
        let (number, title) = rest.split_once('_')?;
        let digits = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let letters = number[digits.len()..].to_owned();
        Some(Case {
            suite: suite.replace('_', "-"),
            number: (digits.parse().ok()?, letters),
            title: title.replace('_', " "),
            function: function.to_owned(),
        })
    })
}

/// The cases in these sources, in order.
pub fn cases<'a>(sources: impl Iterator<Item = &'a str>) -> Vec<Case> {
    let mut cases: Vec<Case> = sources
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("fn ")?.split_once('('))
        .filter_map(|(function, _)| case(function))
        .collect();
    cases.sort();
    cases
}

/// What is wrong with the page.
pub fn differences(page: &str, cases: &[Case]) -> Vec<String> {
    let is_row = |line: &&str| {
        line.split_once(" | test ").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let found: Vec<&str> = page.lines().filter(is_row).collect();
    let wanted: Vec<String> = cases.iter().map(|case| case.row("PASS")).collect();
    let missing = wanted.iter().filter(|row| !found.contains(&&***row)).map(|row| format!("lacks the row '{row}'"));
    let wrong = found.iter().filter(|row| !wanted.iter().any(|want| want == **row));
    let wrong = wrong.map(|row| format!("has the row '{row}', which is no case that exists, or did not pass"));
    missing.chain(wrong).collect()
}

/// Runs the cases and writes the page.
pub fn results(sh: &Shell, binary: &std::ffi::OsStr) -> anyhow::Result<()> {
    let uid = cmd!(sh, "id -u").quiet().read()?;
    ensure!(uid == "0", "the tests mount, which needs root: without it they are skipped, and say nothing");
    let mut texts = Vec::new();
    for path in sh.read_dir(SOURCES)? {
        texts.push(sh.read_file(path)?);
    }
    let cases = cases(texts.iter().map(String::as_str));
    let _binary = sh.push_env("ADAMANT", binary);
    let functions: Vec<&str> = cases.iter().map(|case| case.function.as_str()).collect();
    let told = cmd!(
        sh,
        "cargo test --package e2e --release --locked --no-fail-fast -- --test-threads=1 --exact {functions...}"
    )
    .ignore_status()
    .read()?;
    let statuses = statuses(&told);
    let page = page(&machine(sh), &cases, &statuses)?;
    sh.write_file(PAGE, &page)?;
    let failed: Vec<&str> = cases
        .iter()
        .filter(|case| statuses.get(&*case.function) != Some(&"PASS"))
        .map(|case| case.function.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("not passed: {}; the page says so", failed.join(", "));
    }
    eprintln!("{} cases passed; see {PAGE}", cases.len());
    Ok(())
}

/// What the runner said of each function.
fn statuses(told: &str) -> BTreeMap<&str, &'static str> {
    let one = |line: &str| match line {
        "ok" => "PASS",
        "ignored" => "SKIP",
        _ => "FAIL",
    };
    told.lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .map(|(function, status)| (function, one(status.split(',').next().unwrap_or(status))))
        .collect()
}

fn machine(sh: &Shell) -> String {
    let kernel = cmd!(sh, "uname -sr").quiet().read().unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{kernel}, {cores} cores; servers, mount and programs on one machine, over loopback TCP")
}

fn page(machine: &str, cases: &[Case], statuses: &BTreeMap<&str, &str>) -> anyhow::Result<String> {
    let mut text = String::from(
        "# Tests by number\n\n\
         Cases of Lustre's test suites that Adamant passes, by Lustre's numbers. Each does what Lustre's case does, with \
         server processes and\na mount of their own; what differs stands in the comments of the sources, `crates/e2e/tests`. \
         The cases that lose requests and answers\nuse the sites of [Faults on purpose](faults.md); those of replay-single are stories of the simulator, too: `adamant sim --scenario \
         replay-single-53a`.\n\n\
         This page is written by `cargo xtask results`, which runs the cases; `cargo xtask tidy` holds it against the \
         sources.\n\n## Test bed\n\n",
    );
    writeln!(text, "- {machine}\n- Adamant {}\n", env!("CARGO_PKG_VERSION"))?;
    text.push_str("## Results\n\n| test suite | test case | status |\n|---|---|---|\n");
    for case in cases {
        let status = statuses.get(&*case.function).with_context(|| format!("{} did not run", case.function))?;
        writeln!(text, "{}", case.row(status))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "#[test]\nfn replay_single_53a_close_request() {\n}\nfn helper_2_x() {}\nfn sanity_9_first() {\n";

    #[test]
    fn cases_are_found_by_their_names() {
        let cases = cases([SOURCE, "fn sanity_lfsck_36b_x(\nfn sanity_10_y(\n"].into_iter());
        let shown: Vec<String> = cases.iter().map(|case| case.row("PASS")).collect();
        assert_eq!(
            shown,
            [
                "| replay-single | test 53a: close request | PASS |",
                "| sanity | test 9: first | PASS |",
                "| sanity | test 10: y | PASS |",
                "| sanity-lfsck | test 36b: x | PASS |",
            ]
        );
    }

    #[test]
    fn a_page_that_does_not_fit_is_caught() {
        let cases = cases([SOURCE].into_iter());
        let told = "test replay_single_53a_close_request ... ok\ntest sanity_9_first ... ok\n";
        let good = page("here", &cases, &statuses(told)).unwrap();
        assert!(differences(&good, &cases).is_empty());
        assert_eq!(differences(&good, &cases[..1]).len(), 1, "a case that is gone");
        assert_eq!(differences("# x\n", &cases).len(), 2, "cases that are new");
        let failed = page("here", &cases, &statuses(&told.replacen("ok", "FAILED", 1))).unwrap();
        assert_eq!(differences(&failed, &cases).len(), 2, "a case that did not pass");
    }
}
