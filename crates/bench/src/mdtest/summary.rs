//! The table of results, in the format of the MPI tool, so that scripts that parse that one parse this one.

use std::io::{self, Write};

use serde::Serialize;

use super::Phase;
use super::options::{Options, Print};
use super::rank::Report;
use crate::figures::Summary;

/// The times of one phase of one iteration.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The phase.
    pub phase: Phase,
    /// The items of each rank, if the time of -W allowed fewer than requested.
    pub items: Option<u64>,
    /// The reports of the ranks.
    pub ranks: Vec<Report>,
}

/// A row, for JSON output.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The name of the operation, such as `File creation`.
    pub operation: &'static str,
    /// The most operations per second.
    pub max: f64,
    /// The fewest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub std_dev: f64,
    /// The seconds of the phase, as a mean over the iterations.
    pub seconds: f64,
}

impl Measured {
    /// The seconds that the phase took as seen by rank number `rank`: with barriers, until the last rank was done.
    pub fn seconds(&self, rank: usize, barriers: bool) -> f64 {
        let own = self.ranks.get(rank).map(|report| (report.start_ns, report.end_ns));
        let (start, end) = if barriers {
            let active = self.ranks.iter().filter(|report| report.end_ns > 0);
            let bounds = active.map(|report| (report.start_ns, report.end_ns));
            bounds.reduce(|(start, end), (s, e)| (start.min(s), end.max(e))).unwrap_or_default()
        } else {
            own.unwrap_or_default()
        };
        end.saturating_sub(start) as f64 / 1e9
    }

    /// Adds what the ranks did later in the same phase.
    pub fn add(&mut self, rest: &Measured) {
        for (report, rest) in self.ranks.iter_mut().zip(&rest.ranks) {
            report.end_ns = report.end_ns.max(rest.end_ns);
            report.count += rest.count;
        }
    }

    /// The operations of all ranks.
    pub fn count(&self) -> u64 {
        self.ranks.iter().map(|report| report.count).sum()
    }

    /// The operations that count for the rate. For a tree, the MPI tool counts one even if each rank has its own.
    fn wanted(&self, options: &Options) -> f64 {
        if self.phase.is_of_the_tree() {
            (options.tree().unwrap_or(1) * options.loops()) as f64
        } else {
            (self.items.unwrap_or_else(|| options.items_of_a_rank()) * self.ranks.len() as u64) as f64
        }
    }

    /// The operations per second as seen by a rank.
    pub fn rate(&self, rank: usize, options: &Options) -> f64 {
        let seconds = self.seconds(rank, options.barriers);
        if seconds > 0.0 { self.wanted(options) / seconds } else { 0.0 }
    }
}

/// The phases that have a row in the table: those of directories unless only files were tested, and vice versa.
fn rows(options: &Options) -> Vec<Phase> {
    let mut rows = Vec::new();
    if options.directories {
        rows.extend([Phase::DirectoryCreation, Phase::DirectoryStat, Phase::DirectoryRemoval]);
    }
    if options.files {
        rows.extend([Phase::FileCreation, Phase::FileStat, Phase::FileRead, Phase::FileRemoval]);
    }
    rows.extend([Phase::TreeCreation, Phase::TreeRemoval]);
    rows
}

fn figures(phase: Phase, measured: &[Measured], figure: impl Fn(&Measured, usize) -> f64) -> Vec<f64> {
    let of_phase = measured.iter().filter(|measured| measured.phase == phase);
    of_phase
        .flat_map(|measured| (0..measured.ranks.len()).map(|rank| figure(measured, rank)).collect::<Vec<_>>())
        .collect()
}

/// The rows for JSON output.
pub fn machine_rows(options: &Options, measured: &[Measured]) -> Vec<Row> {
    let row = |phase: Phase| {
        let rates = Summary::of(&figures(phase, measured, |measured, rank| measured.rate(rank, options)));
        let seconds = Summary::of(&figures(phase, measured, |measured, rank| measured.seconds(rank, options.barriers)));
        Row {
            operation: phase.name(),
            max: rates.max,
            min: rates.min,
            mean: rates.mean,
            std_dev: rates.deviation,
            seconds: seconds.mean,
        }
    };
    rows(options).into_iter().map(row).collect()
}

/// Prints the tables for `iterations` iterations.
///
/// # Errors
/// The output cannot be written.
pub fn print(options: &Options, measured: &[Measured], iterations: u32, out: &mut dyn Write) -> io::Result<()> {
    if options.print_all_ranks {
        all_ranks(options, measured, out)?;
    }
    if options.print != Print::Time {
        let rate = |measured: &Measured, rank| measured.rate(rank, options);
        table(options, measured, iterations, "rate (in ops/sec)", rate, out)?;
    }
    if options.print != Print::Rate {
        let milliseconds = |measured: &Measured, rank| {
            1e3 * measured.seconds(rank, options.barriers) / measured.wanted(options).max(1.0)
        };
        table(options, measured, iterations, "time (in ms/op)", milliseconds, out)?;
    }
    Ok(())
}

fn table(
    options: &Options,
    measured: &[Measured],
    iterations: u32,
    what: &str,
    figure: impl Fn(&Measured, usize) -> f64,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "\nSUMMARY {what}: (of {iterations} iterations)")?;
    writeln!(out, "   Operation                     Max            Min           Mean        Std Dev")?;
    writeln!(out, "   ---------                     ---            ---           ----        -------")?;
    for phase in rows(options) {
        let Summary { max, min, mean, deviation } = Summary::of(&figures(phase, measured, &figure));
        writeln!(out, "   {:<18} {max:>14.3} {min:>14.3} {mean:>14.3} {deviation:>14.3}", phase.name())?;
    }
    out.flush()
}

fn all_ranks(options: &Options, measured: &[Measured], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nPer process result (rate):")?;
    for measured in measured {
        let items = if measured.phase.is_of_the_tree() { None } else { Some(options.items_of_a_rank() as f64) };
        let own = |report: &Report| {
            let seconds = report.end_ns.saturating_sub(report.start_ns) as f64 / 1e9;
            format!("{:e}", if seconds > 0.0 { items.unwrap_or(report.count as f64) / seconds } else { 0.0 })
        };
        let rates: Vec<String> = measured.ranks.iter().map(own).collect();
        writeln!(out, "Test {}: {}", measured.phase.name(), rates.join(","))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(phase: Phase, times: &[(u64, u64)]) -> Measured {
        let report = |&(start, end): &(u64, u64)| Report {
            start_ns: start * 1_000_000,
            end_ns: end * 1_000_000,
            count: 100,
            wrong: 0,
            failure: String::new(),
        };
        Measured { phase, items: None, ranks: times.iter().map(report).collect() }
    }

    /// What a script reads: the name of a row, and four numbers.
    fn read(text: &str) -> Vec<(String, [f64; 4])> {
        let rows = text.lines().filter(|line| line.starts_with("   ") && line.contains('.'));
        rows.map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, numbers) = words.split_at(words.len() - 4);
            (name.join(" "), [0, 1, 2, 3].map(|at| numbers[at].parse().unwrap()))
        })
        .collect()
    }

    #[test]
    fn the_table_is_read_as_the_mpi_tools_is() {
        let options = Options { items: 100, directories: false, ..Options::default() };
        let all = [
            measured(Phase::FileCreation, &[(1000, 1100), (1000, 1200)]),
            measured(Phase::FileCreation, &[(2000, 2400), (2000, 2300)]),
        ];
        let mut out = Vec::new();
        print(&options, &all, 2, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("\nSUMMARY rate (in ops/sec): (of 2 iterations)\n"), "{text}");
        let line = "   File creation            1000.000        500.000        750.000        250.000\n";
        assert!(text.contains(line), "{text}");
        let rows = read(&text);
        let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["File creation", "File stat", "File read", "File removal", "Tree creation", "Tree removal"]);
        assert_eq!(rows[0].1, [1000.0, 500.0, 750.0, 250.0]);
        assert_eq!(rows[1].1, [0.0; 4]);
    }

    #[test]
    fn without_barriers_each_rank_has_its_own_time() {
        let mut options = Options { items: 100, print: Print::Both, ..Options::default() };
        let all = [measured(Phase::FileCreation, &[(0, 100), (0, 200)])];
        options.barriers = false;
        let mut out = Vec::new();
        print(&options, &all, 1, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<_> = read(&text).into_iter().filter(|(name, _)| name == "File creation").collect();
        assert_eq!(rows[0].1, [2000.0, 1000.0, 1500.0, 500.0]);
        assert_eq!(rows[1].1[..2], [1.0, 0.5]);
    }
}
