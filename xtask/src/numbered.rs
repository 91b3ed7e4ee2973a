//! The tests by Lustre's numbers: finds them in the sources by name, runs them, and writes a page of the guide.
//!
//! A test with real processes that corresponds to a case of a Lustre suite has its name: `replay_single_53a_close_request_…` is
//! case 53a of replay-single, and the words after the number are its title. One test runs the case with a default mount; a second
//! test, whose name ends with [`SYNCHRONOUS`], runs it with that mount option. `cargo xtask results` runs all of them and writes
//! [`PAGE`]; tidy compares the page with the sources, so that it lists exactly the existing cases, all passed.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

/// The page.
pub(crate) const PAGE: &str = "docs/src/tests-by-number.md";
/// The folder of the tests.
pub(crate) const SOURCES: &str = "crates/e2e/tests/";

/// Suites of Lustre, as prefixes of function names.
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

/// Suites about servers alone, for which the mount's mode does not matter.
const SERVERS_ALONE: &[&str] = &["sanity-lfsck", "sanity-scrub"];

/// A case's number and letter.
type Number = (u32, &'static str);

/// Cases about changes over several targets, which are requests in either mode: suite, first and last number.
const ALWAYS_REQUESTS: &[(&str, Number, Number)] = &[
    ("replay-single", (110, "a"), (111, "g")),
    ("sanity", (182, "b"), (182, "b")),
    ("sanity", (245, "b"), (245, "b")),
];

/// The suffix of tests that run a case with `-o sync_metadata`.
const SYNCHRONOUS: &str = "_sync_metadata";

/// If this variable is set, a test that cannot run (without root or FUSE) fails.
pub(crate) const STRICT: &str = "ADAMANT_E2E_STRICT";

/// A case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Case {
    /// `replay-single`.
    pub suite: String,
    /// 53, then `a`.
    number: (u32, String),
    /// `close request while two requests in flight`.
    pub title: String,
    /// The function that runs it with a default mount.
    pub function: String,
    /// Whether another function runs it with `-o sync_metadata`.
    pub in_both: bool,
}

impl Case {
    /// `test 53a: close request while two requests in flight`.
    fn shown(&self) -> String {
        format!("test {}{}: {}", self.number.0, self.number.1, self.title)
    }

    /// The functions that run it.
    fn functions(&self) -> Vec<String> {
        let second = self.in_both.then(|| format!("{}{SYNCHRONOUS}", self.function));
        core::iter::once(self.function.clone()).chain(second).collect()
    }

    /// Its row, with the status of each function.
    fn row(&self, status: impl Fn(&str) -> String) -> String {
        let mut cells: Vec<String> = self.functions().iter().map(|function| status(function)).collect();
        cells.resize(2, "-".to_owned());
        format!("| {} | {} | {} |", self.suite, self.shown(), cells.join(" | "))
    }

    /// Whether it makes a difference how the mount makes changes.
    fn has_two_modes(&self) -> bool {
        let number = (self.number.0, &*self.number.1);
        let mut always = ALWAYS_REQUESTS.iter();
        !SERVERS_ALONE.contains(&&*self.suite)
            && !always.any(|(suite, first, last)| self.suite == *suite && (*first..=*last).contains(&number))
    }

    /// Its row when all functions have passed.
    fn passed(&self) -> String {
        self.row(|_| "PASS".to_owned())
    }
}

/// The case that a function's name refers to.
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
            in_both: false,
        })
    })
}

/// The cases in these sources, in order.
pub(crate) fn cases<'a>(sources: impl Iterator<Item = &'a str>) -> Vec<Case> {
    let functions: Vec<&str> = sources
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("fn ")?.split_once('('))
        .map(|(function, _)| function)
        .collect();
    let synchronous: Vec<&str> = functions.iter().filter_map(|function| function.strip_suffix(SYNCHRONOUS)).collect();
    let default = functions.iter().filter(|function| !function.ends_with(SYNCHRONOUS));
    let mut cases: Vec<Case> = default
        .filter_map(|function| Some(Case { in_both: synchronous.contains(function), ..case(function)? }))
        .collect();
    cases.sort();
    cases
}

/// Differences between the page and the cases.
pub(crate) fn differences(page: &str, cases: &[Case]) -> Vec<String> {
    let is_row = |line: &&str| {
        line.split_once(" | test ").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let found: Vec<&str> = page.lines().filter(is_row).collect();
    let wanted: Vec<String> = cases.iter().map(Case::passed).collect();
    let alone = cases.iter().filter(|case| !case.in_both && case.has_two_modes());
    let alone = alone.map(|case| format!("has a case that is played in one mode alone: {}", case.function));
    let missing = wanted.iter().filter(|row| !found.contains(&&***row)).map(|row| format!("lacks the row '{row}'"));
    let wrong = found.iter().filter(|row| !wanted.iter().any(|want| want == **row));
    let wrong = wrong.map(|row| format!("has the row '{row}', which is no case that exists, or did not pass"));
    missing.chain(wrong).chain(alone).collect()
}

/// Runs the cases and writes the page.
pub(crate) fn results(sh: &Shell, binary: &std::ffi::OsStr) -> anyhow::Result<()> {
    let mut texts = Vec::new();
    for path in sh.read_dir(SOURCES)? {
        texts.push(sh.read_file(path)?);
    }
    let cases = cases(texts.iter().map(String::as_str));
    let _binary = sh.push_env("ADAMANT", binary);
    // A skipped case has not passed.
    let _strict = sh.push_env(STRICT, "1");
    let functions: Vec<String> = cases.iter().flat_map(Case::functions).collect();
    let names = &functions;
    let told =
        cmd!(sh, "cargo test --package e2e --release --locked --no-fail-fast -- --test-threads=1 --exact {names...}")
            .ignore_status()
            .read()?;
    let statuses = statuses(&told);
    let page = page(&machine(sh), &cases, &statuses)?;
    sh.write_file(PAGE, &page)?;
    let failed: Vec<&str> =
        functions.iter().map(String::as_str).filter(|function| statuses.get(function) != Some(&"PASS")).collect();
    if !failed.is_empty() {
        bail!("not passed: {}; the page says so", failed.join(", "));
    }
    eprintln!("{} cases passed in each mode; see {PAGE}", cases.len());
    Ok(())
}

/// The result of each function, from the runner's output.
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
         The cases of Lustre's test suites that Adamant passes, by Lustre's numbers. Each test does what Lustre's case does, with its own \
         server processes\nand mount; comments in the sources (`crates/e2e/tests`) explain differences. The cases that lose requests and \
         replies use the sites of\n[Faults on purpose](faults.md). Those of replay-single are also stories of the simulator: \
         `adamant sim --scenario replay-single-53a`.\n\n\
         Each case runs twice: with a default mount, which makes changes in leased directories in its own memory and sends them in batches, \
         and\nwith `-o sync_metadata`, where the program waits for a request for each change. In the first mode, cases that need one slot \
         for each change use\nfiles that other mounts have made; the loss of batches is then tested with files of the mount's own. What \
         concerns\nseveral metadata targets is a request in either mode, and runs once.\n\n\
         `cargo xtask results` runs the cases and writes this page; `cargo xtask tidy` checks that it matches the sources.\n\n\
         ## Test bed\n\n",
    );
    writeln!(text, "- {machine}\n- Adamant {}\n", env!("CARGO_PKG_VERSION"))?;
    text.push_str("## Results\n\n| test suite | test case | default mount | `sync_metadata` |\n|---|---|---|---|\n");
    for case in cases {
        for function in case.functions() {
            statuses.get(&*function).with_context(|| format!("{function} did not run"))?;
        }
        writeln!(text, "{}", case.row(|function| statuses.get(function).copied().unwrap_or("-").to_owned()))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn replay_single_53a_close_request() {\n}\nfn helper_2_x() {}\nfn sanity_9_first() {\n\
                          fn sanity_9_first_sync_metadata() {\nfn replay_single_53a_close_request_sync_metadata() {\n";

    #[test]
    fn cases_are_found_by_their_names() {
        let cases = cases([SOURCE, "fn sanity_lfsck_36b_x(\nfn sanity_10_y(\n"].into_iter());
        let shown: Vec<String> = cases.iter().map(Case::passed).collect();
        assert_eq!(
            shown,
            [
                "| replay-single | test 53a: close request | PASS | PASS |",
                "| sanity | test 9: first | PASS | PASS |",
                "| sanity | test 10: y | PASS | - |",
                "| sanity-lfsck | test 36b: x | PASS | - |",
            ]
        );
    }

    #[test]
    fn a_page_that_does_not_fit_is_caught() {
        let cases = cases([SOURCE].into_iter());
        let told = "test replay_single_53a_close_request ... ok\ntest sanity_9_first ... ok\n\
                    test replay_single_53a_close_request_sync_metadata ... ok\ntest sanity_9_first_sync_metadata ... ok\n";
        let good = page("here", &cases, &statuses(told)).unwrap();
        assert!(differences(&good, &cases).is_empty(), "{:?}", differences(&good, &cases));
        assert_eq!(differences(&good, &cases[..1]).len(), 1, "a case that is gone");
        assert_eq!(differences("# x\n", &cases).len(), 2, "cases that are new");
        for at in 1..=4 {
            let failed: Vec<String> = told
                .lines()
                .enumerate()
                .map(|(line, text)| if line + 1 == at { text.replace("ok", "FAILED") } else { text.to_owned() })
                .collect();
            let failed = page("here", &cases, &statuses(&failed.join("\n"))).unwrap();
            assert_eq!(differences(&failed, &cases).len(), 2, "a case that did not pass in one mode");
        }
        let one = Case { in_both: false, ..cases[0].clone() };
        let one = std::slice::from_ref(&one);
        let page = page("here", one, &statuses(told)).unwrap();
        assert!(differences(&page, one)[0].contains("one mode alone"));
    }
}
