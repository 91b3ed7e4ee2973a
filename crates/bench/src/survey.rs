//! `mds-survey`: sweeps over the numbers of threads and directories, and prints a line for each.
//!
//! The load itself is generated inside the servers ([`host::survey`]); this module gives orders and collects figures. All
//! targets of a line work at the same time; the rate of the line is that of all together, its range that of all their
//! seconds.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{anyhow, bail};
use host::survey::{Order, Plan, Status, Test};
use serde::Serialize;

use crate::stop;

/// The parameters of a survey.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    /// Targets, by name.
    pub targets: Vec<String>,
    /// The least number of threads; doubled until it exceeds `threads_high`.
    pub threads_low: u32,
    /// The greatest number of threads.
    pub threads_high: u32,
    /// The number of directories.
    pub folders: u32,
    /// The files of all threads, on each target.
    pub files: u64,
    /// The requests that each thread has outstanding.
    pub outstanding: u32,
    /// The tests, in order.
    pub tests: Vec<Test>,
    /// The number in the name of the first file.
    pub start: u64,
}

/// A row, for JSON output.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The number of threads.
    pub threads: u32,
    /// The number of directories.
    pub directories: u32,
    /// The number of files.
    pub files: u64,
    /// The test.
    pub test: &'static str,
    /// Operations per second over the whole test.
    pub rate: f64,
    /// The rates of the slowest and the fastest second, for each target.
    pub ranges: Vec<(f64, f64)>,
}

/// Lustre's name for a test.
pub fn word(test: Test) -> &'static str {
    match test {
        Test::Create => "create",
        Test::Lookup => "lookup",
        Test::MdGetattr => "md_getattr",
        Test::Setxattr => "setxattr",
        Test::Destroy => "destroy",
    }
}

/// Parses a list of tests. The first must be create, because the others need its files.
///
/// # Errors
/// What is wrong, as a sentence.
pub fn tests(list: &str) -> anyhow::Result<Vec<Test>> {
    const ALL: [Test; 5] = [Test::Create, Test::Lookup, Test::MdGetattr, Test::Setxattr, Test::Destroy];
    let test = |name: &str| {
        ALL.into_iter()
            .find(|test| word(*test) == name)
            .ok_or_else(|| anyhow!("'{name}' is no test; there are create, lookup, md_getattr, setxattr and destroy"))
    };
    let tests: Vec<Test> = list.split_ascii_whitespace().map(test).collect::<Result<_, _>>()?;
    let destroys = tests.iter().position(|test| *test == Test::Destroy);
    if tests.first() != Some(&Test::Create) || tests.iter().filter(|test| **test == Test::Create).count() > 1 {
        bail!("the first test, and only it, must be create");
    }
    if destroys.is_some_and(|at| at + 1 != tests.len()) {
        bail!("destroy must be the last test");
    }
    Ok(tests)
}

/// The base name of the result files of a run that was given a directory: `mds_survey_2026-11-24@06:40_node`.
pub fn result_name() -> String {
    let node = rustix::system::uname();
    named(&crate::mdtest::run::timestamp(), &node.nodename().to_string_lossy())
}

/// `at` is `11/24/2026 06:40:05`.
fn named(at: &str, node: &str) -> String {
    let mut words = at.split(['/', ' ']);
    let mut word = || words.next().unwrap_or_default();
    let (month, day, year, time) = (word(), word(), word(), word());
    let minute = time.rsplit_once(':').map_or(time, |(minute, _)| minute);
    format!("mds_survey_{year}-{month}-{day}@{minute}_{node}")
}

impl Survey {
    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.threads_low == 0 || self.threads_low > self.threads_high {
            bail!("thrlo must be at least 1 and at most thrhi");
        }
        if self.folders == 0 || self.folders > self.threads_high {
            bail!("dir_count must be at least 1 and at most thrhi");
        }
        if self.outstanding == 0 || self.files < u64::from(self.threads_high) * u64::from(self.outstanding) {
            bail!("file_count must be at least thrhi times the requests outstanding of a thread");
        }
        Ok(())
    }

    /// The numbers of threads to try; those below the number of directories are left out.
    pub fn sweep(&self) -> Vec<u32> {
        let doubled = std::iter::successors(Some(self.threads_low), |threads| threads.checked_mul(2));
        doubled.take_while(|threads| *threads <= self.threads_high).filter(|threads| *threads >= self.folders).collect()
    }

    /// Runs the survey. `ask` sends an order to a target.
    ///
    /// # Errors
    /// What went wrong, as a sentence. Earlier measurements are printed, and everything that was made is removed.
    pub fn run(
        &self,
        ask: &dyn Fn(&str, Order) -> anyhow::Result<Status>,
        out: &mut dyn Write,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        for threads in self.sweep() {
            let plan = Plan {
                threads,
                outstanding: self.outstanding,
                folders: self.folders,
                files: self.files,
                start: self.start,
            };
            write!(out, "mdt {} file {:>7} dir {:>4} thr {threads:>4}", self.targets.len(), self.files, self.folders)
                .map_err(output)?;
            let result = self.line(ask, &plan, out, rows);
            writeln!(out).map_err(output)?;
            result?;
        }
        Ok(())
    }

    fn line(
        &self,
        ask: &dyn Fn(&str, Order) -> anyhow::Result<Status>,
        plan: &Plan,
        out: &mut dyn Write,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let mut result = Ok(());
        let mut opened = Vec::new();
        for target in &self.targets {
            result = result.and_then(|()| ask(target, Order::Open(*plan)).map(|_| opened.push(target)));
        }
        result = result.and_then(|()| self.wait(ask, &opened).map(drop));
        for test in &self.tests {
            if result.is_ok() {
                result = self.test(ask, plan, *test, out, rows);
            }
        }
        // Close the surveys whatever happened, so that nothing stays behind.
        for target in &opened {
            let closed = ask(target, Order::Close).map(drop);
            if result.is_ok() {
                result = closed;
            }
        }
        while opened.iter().any(|target| ask(target, Order::Status).is_ok_and(|status| status.running)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        result
    }

    fn test(
        &self,
        ask: &dyn Fn(&str, Order) -> anyhow::Result<Status>,
        plan: &Plan,
        test: Test,
        out: &mut dyn Write,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let targets: Vec<&String> = self.targets.iter().collect();
        for target in &targets {
            ask(target, Order::Run(test))?;
        }
        let statuses = self.wait(ask, &targets);
        let statuses = match statuses {
            Ok(statuses) => statuses,
            Err(error) => {
                let done: Vec<Status> = targets.iter().filter_map(|target| ask(target, Order::Status).ok()).collect();
                let count: u64 = done.iter().map(|status| status.done).sum();
                bail!("{error:#}; {} ended after {count} operations, {:.2} a second", word(test), rate(&done));
            }
        };
        let row = Row {
            threads: plan.threads,
            directories: plan.folders,
            files: plan.files,
            test: word(test),
            rate: rate(&statuses),
            ranges: statuses.iter().map(range).collect(),
        };
        write!(out, " {} {:>7.2}", row.test, row.rate).map_err(output)?;
        // One pair over all targets, as Lustre's tool prints it.
        let low = row.ranges.iter().map(|range| range.0).fold(f64::INFINITY, f64::min);
        let high = row.ranges.iter().map(|range| range.1).fold(0.0, f64::max);
        write!(out, " [{low:>7.2},{high:>7.2}]").map_err(output)?;
        out.flush().map_err(output)?;
        rows.push(row);
        Ok(())
    }

    /// Waits until no test is running on any of the targets.
    fn wait(
        &self,
        ask: &dyn Fn(&str, Order) -> anyhow::Result<Status>,
        targets: &[&String],
    ) -> anyhow::Result<Vec<Status>> {
        let mut stopped = false;
        loop {
            if stop::requested() && !std::mem::replace(&mut stopped, true) {
                for target in targets {
                    ask(target, Order::Stop)?;
                }
            }
            let statuses: Vec<Status> =
                targets.iter().map(|target| ask(target, Order::Status)).collect::<Result<_, _>>()?;
            let failure = statuses.iter().find_map(|status| status.failure.clone());
            if failure.is_some() && !std::mem::replace(&mut stopped, true) {
                for target in targets {
                    ask(target, Order::Stop)?;
                }
            }
            if statuses.iter().all(|status| !status.running) {
                return match failure {
                    Some(failure) => Err(anyhow!(failure)),
                    None if stop::requested() => Err(anyhow!("stopped")),
                    None => Ok(statuses),
                };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn output(error: io::Error) -> anyhow::Error {
    anyhow!("cannot print: {error}")
}

/// The operations of all targets divided by the time of the slowest.
fn rate(statuses: &[Status]) -> f64 {
    let seconds = statuses.iter().map(|status| status.seconds).fold(0.0, f64::max);
    let done: u64 = statuses.iter().map(|status| status.done).sum();
    if seconds > 0.0 { done as f64 / seconds } else { 0.0 }
}

/// The rates of the slowest and the fastest second; for a test that took less than a second, its rate.
fn range(status: &Status) -> (f64, f64) {
    if status.samples.is_empty() {
        let all = rate(std::slice::from_ref(status));
        return (all, all);
    }
    let summary = crate::figures::Summary::of(&status.samples);
    (summary.min, summary.max)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn survey() -> Survey {
        Survey {
            targets: vec!["fs-MDT0000".to_owned()],
            threads_low: 4,
            threads_high: 32,
            folders: 4,
            files: 1000,
            outstanding: 1,
            tests: tests("create destroy").unwrap(),
            start: 2,
        }
    }

    #[test]
    fn threads_are_doubled_and_never_fewer_than_directories() {
        assert_eq!(survey().sweep(), [4, 8, 16, 32]);
        assert_eq!(Survey { folders: 10, threads_high: 40, ..survey() }.sweep(), [16, 32]);
    }

    #[test]
    fn tests_begin_with_create_and_end_with_destroy() {
        assert_eq!(tests("create lookup md_getattr setxattr destroy").unwrap().len(), 5);
        for bad in ["", "lookup", "create create", "create destroy lookup", "create fly"] {
            assert!(tests(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        survey().check().unwrap();
        for bad in [
            Survey { threads_low: 0, ..survey() },
            Survey { threads_low: 64, ..survey() },
            Survey { folders: 0, ..survey() },
            Survey { folders: 33, ..survey() },
            Survey { files: 31, ..survey() },
            Survey { outstanding: 0, ..survey() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_line_has_the_rate_and_the_range_of_seconds_of_each_test() {
        let orders = RefCell::new(Vec::new());
        let ask = |_: &str, order: Order| {
            if order != Order::Status {
                orders.borrow_mut().push(order);
            }
            Ok(Status { done: 1000, seconds: 2.0, samples: vec![400.5, 600.0], ..Status::default() })
        };
        let (mut out, mut rows) = (Vec::new(), Vec::new());
        Survey { threads_high: 4, ..survey() }.run(&ask, &mut out, &mut rows).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "mdt 1 file    1000 dir    4 thr    4 create  500.00 [ 400.50, 600.00] destroy  500.00 [ 400.50, 600.00]\n"
        );
        assert_eq!(rows.len(), 2);
        let orders = orders.into_inner();
        assert!(matches!(
            orders[..],
            [Order::Open(_), Order::Run(Test::Create), Order::Run(Test::Destroy), Order::Close]
        ));
    }

    #[test]
    fn files_are_named_by_the_time_and_the_node() {
        assert_eq!(named("11/24/2026 06:40:05", "oss1"), "mds_survey_2026-11-24@06:40_oss1");
        assert!(result_name().starts_with("mds_survey_20"), "{}", result_name());
    }

    #[test]
    fn several_targets_have_one_range() {
        let ask = |target: &str, _: Order| {
            let samples = if target == "fs-MDT0000" { vec![300.0, 500.0] } else { vec![400.0, 600.0] };
            Ok(Status { done: 1000, seconds: 2.0, samples, ..Status::default() })
        };
        let targets = ["fs-MDT0000", "fs-MDT0001"].map(str::to_owned).to_vec();
        let (mut out, mut rows) = (Vec::new(), Vec::new());
        Survey { targets, threads_high: 4, ..survey() }.run(&ask, &mut out, &mut rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("mdt 2 file    1000 dir    4 thr    4 create 1000.00 [ 300.00, 600.00] destroy"),
            "{text}"
        );
        assert_eq!(rows[0].ranges, [(300.0, 500.0), (400.0, 600.0)]);
    }

    #[test]
    fn a_failure_is_told_with_the_figures_so_far_and_the_survey_is_closed() {
        let closed = RefCell::new(false);
        let ask = |_: &str, order: Order| {
            *closed.borrow_mut() |= order == Order::Close;
            let failure = (!*closed.borrow()).then(|| "create of 'f1' failed: full".to_owned());
            Ok(Status { done: 10, seconds: 1.0, failure, ..Status::default() })
        };
        let message = survey().run(&ask, &mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
        assert!(message.contains("full"), "{message}");
        assert!(closed.into_inner());
    }
}
