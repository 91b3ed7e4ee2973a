//! The guide's page of the mutants: an explanation, sums, one row for each mutant.
//!
//! The page is also the record: rows of mutants that were not run this time stay unchanged.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::table::Mutant;

/// The page.
pub(crate) const PAGE: &str = "docs/src/mutants.md";

/// The text of a row without a result.
pub(crate) const NOT_RUN: &str = "not run yet";

/// The suffix of a row whose mutant did not run through the unit tests.
pub(crate) const UNITS_NOT_RUN: &str = "; unit tests not run";

/// A place that a smaller part of the seeds reaches is rare, and needs a story.
const RARE: f64 = 5.0 / 5000.0;

const HEAD: &str = "\
    # Mutants\n\n\
    How good are the tests? A mutant is a realistic fault, planted on purpose: a missing condition, a record that is \
    not written, a lock that\nis not called back. A test that passes with it is no proof against such a fault. \
    `cargo xtask mutants` plants each mutant and looks for a\ntest that fails: seeds of the simulator first, then \
    its stories, then the unit tests. This page has the results.\n\n\
    ## The columns\n\n\
    - **reached**: how many of the seeds that were run reach the place. For a mutant that changes a value, only \
    where the value differs. A place\n  that fewer than one seed in a thousand reaches is marked *rare*: it needs a \
    story, because random runs do not test it.\n- **caught by**: the first seed that fails (`adamant sim --seed` \
    runs it, without the mutant), a story, or a unit test. **nobody**: a gap\n  in the tests, if enough was tried: \
    the numbers of seeds and stories are given.\n\n\
    ## To add one\n\n\
    The table is `tests/mutants/*.toml`, one file per crate. An entry has a permanent `name`, the `fault` in a \
    sentence, the `file`, and the\nchange: `old`, a piece of the source that occurs once in the file, and `new`, \
    what a mistake would have made of it. Spaces and line ends do\nnot matter. `cargo xtask tidy` reports an entry \
    whose `old` is no longer in the code; change the mutant together with the code. The `form`\nsays how `old` \
    becomes `new`:\n\n\
    - `value`: both values are computed (so `new` must have no side effects), and the place counts as reached where \
    they differ. Best for\n  conditions and numbers.\n- `expression` and `statements` (the default for an `old` that \
    ends in `;` or `}`): one of the two is run. An empty `new` removes it.\n- `raw`: `new` replaces `old`, with \
    `$ON` for whether the mutant is on and `$OLD` for `old`; for an arm of a `match`.\n\n\
    `equivalent` says why no test could tell the difference; such a mutant is not run. A mutant that nothing catches \
    needs a unit test, a story,\nor a simulator that generates more or checks more.\n\n\
    ## To run them\n\n\
    - `cargo xtask mutants --check` compiles all of them in; a few minutes the first time. The product's sources \
    stay unchanged: mutants are\n  built into a copy under `target/mutants`.\n- `cargo xtask mutants` runs all, each \
    on up to 1000 of the first 5000 seeds; that takes hours. The seed that caught a mutant last time runs\n  first, \
    so mutants that are still caught cost almost nothing.\n- `--only NAME…` runs some, `--survivors` those that \
    nothing has caught so far, `--simulator` leaves the unit tests out,\n  `--units` the simulator.\n- `--seeds 600 \
    --reached 150 --stride 9` is a smaller budget: fewer seeds, and stories with the fault at every ninth step only. \
    `--first`\n  sets the first seed, `--jobs` the number of processes.\n\n\
    Every seed runs once without a mutant first, to learn which places it reaches. Up to such a place a run with the \
    mutant is the same, so a\nmutant is run only on seeds that reach its place. Rows of mutants that a command does \
    not run stay unchanged.\n\n";

/// The results of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    /// `213 of 600`.
    pub reached: String,
    /// `seed 968`, `story grow …`, `unit …`, or `**nobody** …`.
    pub caught: String,
}

impl Row {
    /// `213 of 600`, marked if it is rare.
    pub(crate) fn reached(seeds: usize, drawn: usize) -> String {
        let rare = if (seeds as f64) < RARE * drawn as f64 || seeds == 0 { ", rare" } else { "" };
        format!("{seeds} of {drawn}{rare}")
    }

    /// Whether a test caught it.
    pub(crate) fn is_caught(&self) -> bool {
        ["seed ", "story ", "unit "].iter().any(|who| self.caught.starts_with(who))
    }

    /// The seed that caught it.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.caught.strip_prefix("seed ")?.split([' ', ':']).next()?.parse().ok()
    }
}

/// The rows of a page, by name.
pub(crate) fn rows(page: &str) -> BTreeMap<String, Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ").collect();
        let [name, _, _, reached, caught] = cells[..] else { return None };
        Some((name.trim_end_matches('`').to_owned(), Row { reached: reached.to_owned(), caught: caught.to_owned() }))
    };
    page.lines().filter_map(row).collect()
}

/// The sums, one per line.
pub(crate) fn sums(mutants: &[Mutant], rows: &BTreeMap<String, Row>) -> String {
    let known: Vec<&Row> = mutants
        .iter()
        .filter(|mutant| mutant.equivalent.is_none())
        .filter_map(|mutant| rows.get(&mutant.name))
        .collect();
    let count = |test: &dyn Fn(&Row) -> bool| known.iter().filter(|row| test(row)).count();
    let share =
        |part: usize| format!("{part} of {} ({:.0} %)", known.len(), 100.0 * part as f64 / known.len().max(1) as f64);
    let seeds = count(&|row| row.caught.starts_with("seed "));
    let stories = count(&|row| row.caught.starts_with("story "));
    let units = count(&|row| row.caught.starts_with("unit "));
    let untested = count(&|row| row.caught.ends_with(UNITS_NOT_RUN));
    let equivalent = mutants.iter().filter(|mutant| mutant.equivalent.is_some()).count();
    let mut text = format!(
        "- mutants: {}, of which {equivalent} are equivalent\n- caught by seeds of the simulator: {}\n- by seeds and stories: {}\n\
         - by anything: {}\n- by nobody: {}\n- places that are rare: {}\n",
        mutants.len(),
        share(seeds),
        share(seeds + stories),
        share(seeds + stories + units),
        share(known.len() - seeds - stories - units - untested),
        share(count(&|row| row.reached.ends_with("rare"))),
    );
    if untested > 0 {
        let _ = writeln!(text, "- by nobody so far, and not taken through the unit tests: {}", share(untested));
    }
    let not_run = mutants.len() - equivalent - known.len();
    if not_run > 0 {
        let _ = writeln!(text, "- not run yet: {not_run}");
    }
    text
}

/// The page.
pub(crate) fn page(mutants: &[Mutant], rows: &BTreeMap<String, Row>) -> String {
    let mut text = format!("{HEAD}## Sums\n\n{}\n## Mutants\n\n", sums(mutants, rows));
    text.push_str("| name | fault | file | reached | caught by |\n|---|---|---|---|---|\n");
    for mutant in mutants {
        let unknown = || Row { reached: "—".to_owned(), caught: NOT_RUN.to_owned() };
        let row = match &mutant.equivalent {
            Some(why) => Row { reached: "—".to_owned(), caught: format!("equivalent: {why}") },
            None => rows.get(&mutant.name).cloned().unwrap_or_else(unknown),
        };
        let file = mutant.file.trim_start_matches("crates/").replacen("/src/", "/", 1);
        let _ = writeln!(
            text,
            "| `{}` | {} | `{file}` | {} | {} |",
            mutant.name,
            mutant.fault.replace('|', "\\|"),
            row.reached,
            row.caught.replace(" | ", " / ")
        );
    }
    text
}

/// Differences between the page and the table: missing mutants, and rows without a mutant.
pub(crate) fn differences(page: &str, mutants: &[Mutant]) -> Vec<String> {
    let rows = rows(page);
    let lacks = mutants.iter().map(|mutant| &mutant.name).filter(|name| !rows.contains_key(*name));
    let gone = rows.keys().filter(|name| !mutants.iter().any(|mutant| mutant.name == **name));
    let told = |what: &str, names: Vec<&String>| {
        let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
    };
    told("lacks mutants", lacks.collect())
        .into_iter()
        .chain(told("has mutants that are gone", gone.collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "[[mutant]]\nname = 'a'\nfault = 'F.'\nfile = 'crates/x/src/f.rs'\nold = 'x'\nnew = 'y'\n\
                         [[mutant]]\nname = 'b'\nfault = 'G.'\nfile = 'crates/x/src/f.rs'\nold = 'z'\nnew = 'y'\n";

    #[test]
    fn rows_are_read_as_they_were_written() {
        let mutants = super::super::table::read([("t.toml", TABLE)].into_iter()).unwrap();
        let row = Row { reached: Row::reached(4, 5000), caught: "seed 12: it is | wrong".to_owned() };
        let written = page(&mutants, &BTreeMap::from([("a".to_owned(), row)]));
        let read = rows(&written);
        assert_eq!(
            read["a"],
            Row { reached: "4 of 5000, rare".to_owned(), caught: "seed 12: it is / wrong".to_owned() }
        );
        assert_eq!(read["a"].seed(), Some(12));
        assert!(differences(&written, &mutants).is_empty());
        assert_eq!(differences(&written, &mutants[..1]), ["has mutants that are gone: b"]);
        assert_eq!(differences("# x\n", &mutants), ["lacks mutants: a, b"]);
        assert!(written.contains("caught by seeds of the simulator: 1 of 1 (100 %)"), "{written}");
        assert!(written.contains("not run yet: 1"));
    }
}
