//! `mds-survey`: sweeps over the numbers of threads and directories, and prints a line for each.
//!
//! The load itself is generated inside the servers ([`host::survey`]); this module gives orders and collects figures. All
//! targets of a line work at the same time; the rate of the line is that of all together, its range that of the seconds of any
//! one of them.
//!
//! - [`folders`]: the directories, which a client makes, finds and removes.
//! - [`load`]: a single test, for the verbs of `lctl`.
//!
//! A survey makes its directories before the first line and removes them after the last. Each target has its own, in which
//! nobody else works. With several stripes, that many targets share theirs, and each works in its own stripe.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{anyhow, bail};
use host::survey::{Content, Folder, Order, Plan, Status, Test};
use proto::{TargetKind, TargetName};
use serde::Serialize;

use crate::stop;
use folders::{Folders, Wanted};

pub mod folders;
pub mod load;

/// Sends an order to a target, by its name.
pub type Ask<'a> = dyn Fn(&str, Order) -> anyhow::Result<Status> + 'a;

/// The parameters of a survey.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    /// Targets, by name.
    pub targets: Vec<String>,
    /// The least number of threads; doubled until it exceeds `threads_high`.
    pub threads_low: u32,
    /// The greatest number of threads.
    pub threads_high: u32,
    /// The number of directories of each target.
    pub folders: u32,
    /// Over how many of the targets each directory is striped; 0 and 1: it is not. The last ones share theirs among fewer if
    /// the targets cannot be divided so.
    pub stripes: u32,
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
    /// The figures of each target.
    pub targets: Vec<OfTarget>,
}

/// The figures of a target in a row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OfTarget {
    /// Its name.
    pub target: String,
    /// Its operations.
    pub operations: u64,
    /// How long it worked.
    pub seconds: f64,
    /// Operations per second over the whole test.
    pub rate: f64,
    /// The operations per second in each second.
    pub samples: Vec<f64>,
}

/// Lustre's name for a test.
pub fn word(test: Test) -> &'static str {
    match test {
        Test::Create => "create",
        Test::Lookup => "lookup",
        Test::MdGetattr => "md_getattr",
        Test::Setxattr => "setxattr",
        Test::Destroy => "destroy",
        Test::Mkdir => "mkdir",
        Test::Rmdir => "rmdir",
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

    /// Runs the survey.
    ///
    /// # Errors
    /// What went wrong, as a sentence. Earlier measurements are printed, and everything that was made is removed.
    pub fn run(
        &self,
        ask: &Ask<'_>,
        folders: &dyn Folders,
        out: &mut dyn Write,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let ground = self.ground()?;
        let result = self.prepared(&ground, folders).and_then(|places| self.lines(ask, &places, out, rows));
        let mut removed = Ok(());
        for (fsname, wanted) in &ground {
            let paths: Vec<String> = wanted.iter().map(|wanted| wanted.path.clone()).collect();
            removed = removed.and(folders.remove(fsname, &paths, false));
        }
        result.and(removed)
    }

    /// The file system and the index of each target.
    fn names(&self) -> anyhow::Result<Vec<TargetName>> {
        let name = |target: &String| match target.parse::<TargetName>() {
            Ok(name) if name.kind == TargetKind::Mdt => Ok(name),
            _ => bail!("'{target}' is not the name of a metadata target; expected FSNAME-MDTxxxx"),
        };
        let names: Vec<TargetName> = self.targets.iter().map(name).collect::<Result<_, _>>()?;
        if let Some(at) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
            bail!("'{}' is named twice", self.targets[at]);
        }
        Ok(names)
    }

    /// The directories in each file system.
    fn ground(&self) -> anyhow::Result<Vec<(String, Vec<Wanted>)>> {
        let mut mdts: Vec<(String, Vec<u32>)> = Vec::new();
        for name in self.names()? {
            match mdts.iter_mut().find(|(fsname, _)| *fsname == name.fsname) {
                Some((_, indexes)) => indexes.push(name.index.0),
                None => mdts.push((name.fsname, vec![name.index.0])),
            }
        }
        let in_file_system = |(fsname, mdts): (String, Vec<u32>)| {
            let shared = mdts.chunks(self.stripes.max(1) as usize);
            let all = shared.flat_map(|mdts| (0..self.folders).map(move |number| folder(mdts, number)));
            (fsname, all.collect())
        };
        Ok(mdts.into_iter().map(in_file_system).collect())
    }

    /// Makes the directories. Returns those of each target.
    fn prepared(&self, ground: &[(String, Vec<Wanted>)], folders: &dyn Folders) -> anyhow::Result<Vec<Vec<Folder>>> {
        let mut sites = Vec::new();
        for (fsname, wanted) in ground {
            let made = folders.make(fsname, wanted)?;
            sites.extend(made.into_iter().map(|site| (fsname, site)));
        }
        let of = |name: TargetName| {
            let here = sites.iter().filter(|(fsname, _)| **fsname == name.fsname);
            here.filter_map(|(_, site)| site.on(name.index.0)).collect()
        };
        Ok(self.names()?.into_iter().map(of).collect())
    }

    fn lines(
        &self,
        ask: &Ask<'_>,
        places: &[Vec<Folder>],
        out: &mut dyn Write,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        for threads in self.sweep() {
            write!(out, "mdt {} file {:>7} dir {:>4} thr {threads:>4}", self.targets.len(), self.files, self.folders)
                .map_err(output)?;
            let result = self.line(ask, places, threads, out, rows);
            writeln!(out).map_err(output)?;
            result?;
        }
        Ok(())
    }

    fn line(
        &self,
        ask: &Ask<'_>,
        places: &[Vec<Folder>],
        threads: u32,
        out: &mut dyn Write,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let plan = |folders: &[Folder]| Plan {
            threads,
            outstanding: self.outstanding,
            folders: folders.to_vec(),
            files: self.files,
            start: self.start,
            content: Content::Own,
        };
        let mut result = Ok(());
        let mut opened = Vec::new();
        for (target, folders) in self.targets.iter().zip(places) {
            result = result.and_then(|()| ask(target, Order::Open(plan(folders))).map(|_| opened.push(target)));
        }
        result = result.and_then(|()| self.wait(ask, &opened).map(drop));
        for test in &self.tests {
            if result.is_ok() {
                result = self.test(ask, threads, *test, out, rows);
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
        ask: &Ask<'_>,
        threads: u32,
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
            threads,
            directories: self.folders,
            files: self.files,
            test: word(test),
            rate: rate(&statuses),
            ranges: statuses.iter().map(range).collect(),
            targets: targets.iter().zip(&statuses).map(|(target, status)| of_target(target, status)).collect(),
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
    fn wait(&self, ask: &Ask<'_>, targets: &[&String]) -> anyhow::Result<Vec<Status>> {
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

/// Directory `number` of targets that share theirs. The directories themselves are spread over these, too.
fn folder(mdts: &[u32], number: u32) -> Wanted {
    let mut stripes = mdts.to_vec();
    stripes.rotate_left(number as usize % mdts.len());
    let path = format!("/.mds-survey.MDT{:04x}.{number}", mdts.first().copied().unwrap_or_default());
    Wanted { path, mdts: stripes, replaces: true }
}

fn of_target(target: &str, status: &Status) -> OfTarget {
    let rate = rate(std::slice::from_ref(status));
    let Status { done, seconds, samples, .. } = status.clone();
    OfTarget { target: target.to_owned(), operations: done, seconds, rate, samples }
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

    use proto::Fid;
    use proto::msg::Stripe;

    use super::folders::Site;
    use super::*;

    fn survey() -> Survey {
        Survey {
            targets: vec!["fs-MDT0000".to_owned()],
            threads_low: 4,
            threads_high: 32,
            folders: 4,
            stripes: 0,
            files: 1000,
            outstanding: 1,
            tests: tests("create destroy").unwrap(),
            start: 2,
        }
    }

    /// Directories that only seem to exist.
    #[derive(Default)]
    struct Imitation {
        exist: RefCell<Vec<(String, Vec<u32>)>>,
        removed: RefCell<Vec<String>>,
        full: bool,
    }

    impl Folders for Imitation {
        fn make(&self, _: &str, wanted: &[Wanted]) -> anyhow::Result<Vec<Site>> {
            if self.full {
                bail!("no space");
            }
            self.exist.borrow_mut().extend(wanted.iter().map(|wanted| (wanted.path.clone(), wanted.mdts.clone())));
            let fid = |mdt: u32| Fid::new(Fid::SEQ_FIRST + u64::from(mdt), 1);
            let site = |wanted: &Wanted| {
                let stripe = |mdt: &u32| Stripe { fid: fid(*mdt), mdt: *mdt };
                Site { hash: 2, stripes: wanted.mdts.iter().map(stripe).collect() }
            };
            Ok(wanted.iter().map(site).collect())
        }

        fn find(&self, _: &str, _: &[String]) -> anyhow::Result<Vec<Site>> {
            bail!("a survey looks for nothing")
        }

        fn remove(&self, _: &str, paths: &[String], all: bool) -> anyhow::Result<()> {
            assert!(!all);
            self.removed.borrow_mut().extend_from_slice(paths);
            Ok(())
        }

        fn mdts(&self, _: &str) -> anyhow::Result<Vec<u32>> {
            bail!("a survey knows its targets")
        }
    }

    fn targets(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
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
        Survey { threads_high: 4, ..survey() }.run(&ask, &Imitation::default(), &mut out, &mut rows).unwrap();
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
        let targets = targets(&["fs-MDT0000", "fs-MDT0001"]);
        let (mut out, mut rows) = (Vec::new(), Vec::new());
        Survey { targets, threads_high: 4, ..survey() }.run(&ask, &Imitation::default(), &mut out, &mut rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("mdt 2 file    1000 dir    4 thr    4 create 1000.00 [ 300.00, 600.00] destroy"),
            "{text}"
        );
        assert_eq!(rows[0].ranges, [(300.0, 500.0), (400.0, 600.0)]);
        let OfTarget { target, operations, rate, samples, .. } = &rows[0].targets[1];
        assert_eq!((&target[..], *operations, *rate, &samples[..]), ("fs-MDT0001", 1000, 500.0, &[400.0, 600.0][..]));
    }

    #[test]
    fn each_target_has_directories_of_its_own_or_shares_them() {
        let ground = |stripes, folders, names: &[&str]| {
            let (opened, imitation) = (RefCell::new(Vec::new()), Imitation::default());
            let ask = |target: &str, order: Order| {
                if let Order::Open(plan) = order {
                    let stripe = |folder: &Folder| (folder.stripes, folder.stripe);
                    opened.borrow_mut().push((target.to_owned(), plan.folders.iter().map(stripe).collect::<Vec<_>>()));
                }
                Ok(Status { done: 10, seconds: 1.0, ..Status::default() })
            };
            let survey = Survey { targets: targets(names), folders, stripes, threads_high: 4, ..survey() };
            survey.run(&ask, &imitation, &mut Vec::new(), &mut Vec::new()).unwrap();
            let paths: Vec<String> = imitation.exist.borrow().iter().map(|(path, _)| path.clone()).collect();
            assert_eq!(*imitation.removed.borrow(), paths);
            let mdts: Vec<Vec<u32>> = imitation.exist.borrow().iter().map(|(_, mdts)| mdts.clone()).collect();
            (paths, mdts, opened.into_inner())
        };
        let (paths, mdts, opened) = ground(0, 2, &["fs-MDT0000", "fs-MDT0003"]);
        assert_eq!(
            paths,
            ["MDT0000.0", "MDT0000.1", "MDT0003.0", "MDT0003.1"].map(|end| format!("/.mds-survey.{end}"))
        );
        assert_eq!(mdts, [[0], [0], [3], [3]]);
        assert_eq!(
            opened,
            targets(&["fs-MDT0000", "fs-MDT0003"]).into_iter().map(|t| (t, vec![(1, 0); 2])).collect::<Vec<_>>()
        );

        let (_, mdts, opened) = ground(2, 2, &["fs-MDT0000", "fs-MDT0003", "fs-MDT0004"]);
        assert_eq!(mdts, [vec![0, 3], vec![3, 0], vec![4], vec![4]]);
        let stripes: Vec<Vec<(u32, u32)>> = opened.into_iter().map(|(_, stripes)| stripes).collect();
        assert_eq!(stripes, [[(2, 0), (2, 1)], [(2, 1), (2, 0)], [(1, 0), (1, 0)]]);

        let (_, mdts, _) = ground(9, 1, &["fs-MDT0000", "other-MDT0000", "fs-MDT0001"]);
        assert_eq!(mdts, [vec![0, 1], vec![0]], "file systems share nothing");
    }

    #[test]
    fn targets_are_metadata_targets_and_named_once() {
        for (names, why) in [
            (&["fs-OST0000"][..], "not the name of a metadata target"),
            (&["MDT0000"], "not the name of a metadata target"),
            (&["fs-MDT0001", "fs-MDT0001"], "named twice"),
        ] {
            let ask = |_: &str, _: Order| bail!("nothing is asked");
            let survey = Survey { targets: targets(names), ..survey() };
            let error = survey.run(&ask, &Imitation::default(), &mut Vec::new(), &mut Vec::new()).unwrap_err();
            assert!(error.to_string().contains(why), "{names:?}: {error}");
        }
    }

    #[test]
    fn without_directories_nothing_is_opened() {
        let imitation = Imitation { full: true, ..Imitation::default() };
        let ask = |_: &str, _: Order| panic!("nothing is asked");
        let error = survey().run(&ask, &imitation, &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "no space");
        assert_eq!(imitation.removed.borrow().len(), 4, "some may have been made");
    }

    #[test]
    fn a_failure_is_told_with_the_figures_so_far_and_the_survey_is_closed() {
        let closed = RefCell::new(false);
        let ask = |_: &str, order: Order| {
            *closed.borrow_mut() |= order == Order::Close;
            let failure = (!*closed.borrow()).then(|| "create of 'f1' failed: full".to_owned());
            Ok(Status { done: 10, seconds: 1.0, failure, ..Status::default() })
        };
        let message =
            survey().run(&ask, &Imitation::default(), &mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
        assert!(message.contains("full"), "{message}");
        assert!(closed.into_inner());
    }
}
