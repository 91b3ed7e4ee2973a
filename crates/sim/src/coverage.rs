//! Coverage of runs: coverage marks, and the calls of programs by result.
//!
//! A simulator that never reaches a place in the code proves nothing about it. `marks.txt` lists all marks; the text behind a
//! name is the reason why no run reaches it.

use core::fmt;
use std::collections::BTreeMap;

use crate::run::Report;

/// Every mark, one per line, and why runs may miss it.
const MARKS: &str = include_str!("marks.txt");

/// The coverage of many runs.
#[derive(Clone, Default, Debug)]
pub struct Coverage {
    /// The number of runs.
    pub runs: u64,
    /// Runs that reached each mark.
    pub marks: BTreeMap<&'static str, u64>,
    /// Calls by operation and result (`ok`, or the error's name).
    pub calls: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
}

/// All marks with the reason why runs may miss each; an empty reason means that they may not.
pub fn all_marks() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = MARKS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(char::is_whitespace).unwrap_or((line, ""))).map(|(name, why)| (name, why.trim()))
}

impl Coverage {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        for name in report.marks.keys() {
            *self.marks.entry(name).or_default() += 1;
        }
        for ((operation, result), count) in &report.calls {
            *self.calls.entry(operation).or_default().entry(result).or_default() += count;
        }
    }

    /// Marks that no run reached although they have no reason to be missed.
    pub fn missed(&self) -> Vec<&'static str> {
        let missed = all_marks().filter(|(name, why)| why.is_empty() && !self.marks.contains_key(name));
        missed.map(|(name, _)| name).collect()
    }

    fn per_thousand(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.runs.max(1) as f64
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "operations, in {} runs, per 1000 runs:", self.runs)?;
        for (operation, results) in &self.calls {
            let ok = results.get("ok").copied().unwrap_or(0);
            write!(f, "  {operation:<12} {:>8.0} done", self.per_thousand(ok))?;
            let mut failed: Vec<(&str, u64)> = results
                .iter()
                .filter(|(result, _)| **result != "ok")
                .map(|(result, count)| (*result, *count))
                .collect();
            failed.sort_by_key(|(result, count)| (core::cmp::Reverse(*count), *result));
            for (errno, count) in failed {
                write!(f, ", {errno} {:.1}", self.per_thousand(count))?;
            }
            writeln!(f)?;
        }
        writeln!(f, "marks, and how many of 1000 runs reached them:")?;
        let mut reached: Vec<(&str, u64)> = self.marks.iter().map(|(name, runs)| (*name, *runs)).collect();
        reached.sort_by_key(|(name, runs)| (core::cmp::Reverse(*runs), *name));
        for (name, runs) in reached {
            writeln!(f, "  {name:<34} {:>7.1}", self.per_thousand(runs))?;
        }
        for (name, why) in all_marks().filter(|(name, _)| !self.marks.contains_key(name)) {
            writeln!(f, "  {name:<34}   never  {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn marks_below(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                marks_below(&entry, found);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                let parts = text.split("stdx::mark!(\"").skip(1);
                found.extend(parts.filter_map(|part| Some(part.split_once('"')?.0.to_owned())));
            }
        }
    }

    /// The list has every mark of the machines and no other.
    #[test]
    fn the_list_of_marks_is_whole() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = BTreeSet::new();
        for name in ["client", "dlm", "mdt", "mgt", "ost", "rpc", "rules", "target"] {
            marks_below(&crates.join(name).join("src"), &mut found);
        }
        let listed: BTreeSet<String> = all_marks().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(listed, found);
    }

    /// Each mark that is left to a story is reached by that story.
    #[test]
    fn stories_reach_what_is_left_to_them() {
        for (mark, why) in all_marks() {
            let Some(name) = why.strip_prefix("story ") else { continue };
            let story = crate::stories().find(|story| story.name == name);
            drop(stdx::marks::take());
            story.unwrap_or_else(|| panic!("there is no story '{name}'")).tell(u64::MAX).unwrap();
            assert!(stdx::marks::count(mark) > 0, "the story {name} does not reach {mark}");
        }
    }

    #[test]
    fn unreached_marks_are_missed() {
        let mut coverage = Coverage::default();
        let all = coverage.missed().len();
        coverage.marks.extend(all_marks().filter(|(_, why)| why.is_empty()).take(1).map(|(name, _)| (name, 1)));
        assert_eq!(coverage.missed().len(), all - 1);
    }
}
