//! `cargo xtask mutants`: plants realistic faults, one at a time, and finds the test that fails.
//!
//! All mutants ([`table`]) are compiled into one binary of copied sources ([`tree`]), with a switch that turns one of them on.
//! First every seed runs once with all mutants off, recording which places it reaches. Up to the first place that a mutant changes, a run
//! with the mutant on is the same, so a mutant needs only the seeds that reach its place. Each mutant then runs on those seeds in a
//! process of its own, which may panic, hang or exhaust memory; a survivor runs through the stories and the unit tests that reach
//! it. The results are written as a page of the guide ([`page`]).

pub(crate) mod page;
pub(crate) mod table;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use xshell::Shell;

use crate::root;
use page::{PAGE, Row};
use table::Mutant;
use tree::Tests;

/// Which mutants to run, and how long.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only these mutants
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Only mutants that nothing has caught, according to the page
    #[arg(long, conflicts_with = "only")]
    survivors: bool,
    /// Only seeds and stories of the simulator, no unit tests
    #[arg(long)]
    simulator: bool,
    /// Only unit tests, for mutants that the simulator has not found
    #[arg(long, conflicts_with = "simulator")]
    units: bool,
    /// The number of seeds
    #[arg(long, default_value_t = 5000)]
    seeds: usize,
    /// The most seeds that run with a mutant, among those that reach its place
    #[arg(long, default_value_t = 1000)]
    reached: usize,
    /// The first seed
    #[arg(long, default_value_t = 500)]
    first: u64,
    /// Stories run with the fault at every Nth step
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// Processes at a time (when not given: one for each processor)
    #[arg(long)]
    jobs: Option<usize>,
    /// Only checks that all mutants match the sources and compile
    #[arg(long)]
    check: bool,
}

/// A process without output for this long counts as hung.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Seeds of one process that records coverage.
const CHUNK: usize = 50;
/// Memory limit of a process, in KiB: a mutant that allocates without end fails before the machine does.
const MEMORY_KIB_MAX: u32 = 8 << 20;

/// The result of a process that ran seeds or stories.
enum Outcome {
    /// All passed.
    Passed,
    /// This one failed first, for this reason.
    Failed(String, String),
}

/// The places that each seed, story or test binary reaches; those that fail without a mutant are left out.
type Reached = BTreeMap<String, BTreeSet<u32>>;

struct Run<'a> {
    arguments: &'a Arguments,
    jobs: usize,
    runner: PathBuf,
    seeds: Reached,
    stories: OnceLock<Reached>,
    /// Test binaries of the crates, built when the first mutant needs them.
    tests: OnceLock<Vec<Tests>>,
    units: OnceLock<Reached>,
}

/// Runs the command.
pub(crate) fn run(sh: &Shell, arguments: &Arguments) -> anyhow::Result<()> {
    let mutants = read(sh)?;
    let texts: BTreeMap<&str, String> = mutants
        .iter()
        .filter_map(|mutant| Some((&*mutant.file, std::fs::read_to_string(root().join(&mutant.file)).ok()?)))
        .collect();
    let findings = table::findings(&mutants, |file| texts.get(file).map(String::as_str));
    ensure!(findings.is_empty(), "the table does not fit the sources:\n{}", findings.join("\n"));
    for name in &arguments.only {
        ensure!(mutants.iter().any(|mutant| mutant.name == *name), "there is no mutant '{name}'");
    }
    tree::write(sh, &mutants)?;
    let runner = if arguments.units { PathBuf::new() } else { tree::build_runner(sh)? };
    let rows = Mutex::new(page::rows(&sh.read_file(PAGE).unwrap_or_default()));
    rows.lock()
        .unwrap()
        .retain(|name, _| mutants.iter().any(|mutant| mutant.name == *name && mutant.equivalent.is_none()));
    rows.lock().unwrap().retain(|_, row| row.caught != page::NOT_RUN);
    if arguments.check {
        tree::build_tests(sh)?;
        sh.write_file(PAGE, page::page(&mutants, &rows.lock().unwrap()))?;
        eprintln!("{} mutants fit the sources and compile", mutants.len());
        return Ok(());
    }
    let jobs = arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let seeds = if arguments.units { Reached::new() } else { watch_seeds(&runner, arguments, jobs)? };
    let run = Run {
        arguments,
        jobs,
        runner,
        seeds,
        stories: OnceLock::new(),
        tests: OnceLock::new(),
        units: OnceLock::new(),
    };
    let chosen: Vec<&Mutant> = mutants
        .iter()
        .filter(|mutant| mutant.equivalent.is_none())
        .filter(|mutant| arguments.only.is_empty() || arguments.only.contains(&mutant.name))
        .filter(|mutant| !arguments.survivors || !rows.lock().unwrap().get(&mutant.name).is_some_and(Row::is_caught))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<()> {
        while let Some(mutant) = chosen.get(next.fetch_add(1, Relaxed)) {
            let before = rows.lock().unwrap().get(&mutant.name).cloned();
            let start = Instant::now();
            let row = run.one(mutant, before.as_ref()).with_context(|| mutant.name.clone())?;
            let took = start.elapsed().as_secs();
            println!("{:<36} {:>20}  {took:>4} s  {}", mutant.name, row.reached, row.caught);
            let mut rows = rows.lock().unwrap();
            rows.insert(mutant.name.clone(), row);
            std::fs::write(root().join(PAGE), page::page(&mutants, &rows))?;
        }
        Ok(())
    };
    in_parallel(jobs, &work)?;
    println!("{}", page::sums(&mutants, &rows.lock().unwrap()));
    eprintln!("see {PAGE}");
    Ok(())
}

/// The table of the checkout.
fn read(sh: &Shell) -> anyhow::Result<Vec<Mutant>> {
    let mut texts = BTreeMap::new();
    for path in sh.read_dir(table::FOLDER)?.iter().filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        texts.insert(path.display().to_string(), sh.read_file(path)?);
    }
    table::read(texts.iter().map(|(path, text)| (&**path, &**text)))
}

/// Runs the same work on several threads; returns the first error.
fn in_parallel(jobs: usize, work: &(impl Fn() -> anyhow::Result<()> + Sync)) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })
}

/// A process with low priority and a memory limit.
fn command(binary: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {MEMORY_KIB_MAX}; exec nice -n 5 \"$0\" \"$@\"")).arg(binary);
    command
}

/// The output lines of a process, one by one; an error if it hangs.
fn lines(mut child: Child, mut each: impl FnMut(&str)) -> anyhow::Result<Option<std::process::ExitStatus>> {
    let out = child.stdout.take().context("the output is read")?;
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line).map_err(drop))
    });
    let ended = loop {
        match receiver.recv_timeout(SILENCE_MAX) {
            Ok(line) => each(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break Some(child.wait()?),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                break None;
            }
        }
    };
    drop(receiver);
    let _ = reader.join();
    Ok(ended)
}

/// The places that the seeds reach, cached as long as the binary is the same.
fn watch_seeds(runner: &Path, arguments: &Arguments, jobs: usize) -> anyhow::Result<Reached> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(runner)?);
    let name = format!("reached-{:016x}.txt", hasher.finish());
    for entry in std::fs::read_dir(tree::folder())? {
        let path = entry?.path();
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if file.starts_with("reached-") && file != name {
            std::fs::remove_file(&path)?;
        }
    }
    let path = tree::folder().join(name);
    let mut known: BTreeMap<u64, String> = BTreeMap::new();
    let note = |known: &mut BTreeMap<u64, String>, line: &str| {
        if let Some(seed) = line.split(' ').nth(1).and_then(|seed| seed.parse().ok()) {
            known.insert(seed, line.to_owned());
        }
    };
    for line in std::fs::read_to_string(&path).unwrap_or_default().lines() {
        note(&mut known, line);
    }
    let wanted = arguments.first..arguments.first + arguments.seeds as u64;
    let missing: Vec<u64> = wanted.clone().filter(|seed| !known.contains_key(seed)).collect();
    if !missing.is_empty() {
        eprintln!("{} seeds without a mutant, to see which places they reach", missing.len());
    }
    let next = AtomicUsize::new(0);
    let found = Mutex::new(known);
    let chunks: Vec<&[u64]> = missing.chunks(CHUNK).collect();
    let work = || -> anyhow::Result<()> {
        while let Some(chunk) = chunks.get(next.fetch_add(1, Relaxed)) {
            let mut command = command(runner);
            command.arg("watch").arg("seeds").args(chunk.iter().map(u64::to_string)).stdout(Stdio::piped());
            let mut told = 0;
            lines(command.spawn()?, |line| {
                told += 1;
                note(&mut found.lock().unwrap(), line);
            })?;
            // A seed that panics without a mutant ends its process; the next process runs the seeds after it.
            for seed in chunk.iter().skip(told).take(1) {
                note(&mut found.lock().unwrap(), &format!("failed {seed}"));
            }
            for seed in chunk.iter().skip(told + 1) {
                let mut command = self::command(runner);
                command.arg("watch").arg("seeds").arg(seed.to_string()).stdout(Stdio::piped());
                note(&mut found.lock().unwrap(), &format!("failed {seed}"));
                lines(command.spawn()?, |line| note(&mut found.lock().unwrap(), line))?;
            }
        }
        Ok(())
    };
    in_parallel(jobs, &work)?;
    let known = found.into_inner().unwrap();
    let text: String = known.values().map(|line| format!("{line}\n")).collect();
    std::fs::write(&path, text)?;
    let red: Vec<String> = known
        .range(wanted.clone())
        .filter(|(_, line)| line.starts_with("failed"))
        .map(|(seed, _)| seed.to_string())
        .collect();
    if !red.is_empty() {
        eprintln!("without a mutant these seeds fail, and are left out: {}", red.join(" "));
    }
    Ok(known.range(wanted).filter_map(|(_, line)| reached(line)).collect())
}

/// The name and the places of a line `passed NAME NUMBER…`.
fn reached(line: &str) -> Option<(String, BTreeSet<u32>)> {
    let mut words = line.strip_prefix("passed ")?.split(' ');
    let name = words.next()?.to_owned();
    Some((name, words.filter_map(|word| word.parse().ok()).collect()))
}

impl Run<'_> {
    /// Finds what catches a mutant; `before`: what caught it last time.
    fn one(&self, mutant: &Mutant, before: Option<&Row>) -> anyhow::Result<Row> {
        let mut row = match before {
            Some(before) if self.arguments.units => before.clone(),
            None if self.arguments.units => {
                Row { reached: "—".to_owned(), caught: "**nobody** (no seeds)".to_owned() }
            }
            _ => self.simulated(mutant, before.and_then(Row::seed))?,
        };
        if self.arguments.simulator || row.is_caught() {
            return Ok(row);
        }
        if let Some(end) = row.caught.find(page::UNITS_NOT_RUN) {
            row.caught.truncate(end);
        }
        if let Some(what) = self.tested(mutant)? {
            row.caught = format!("unit {what}");
        }
        Ok(row)
    }

    /// Finds the seed or story that catches a mutant. The seed that did so last time runs first.
    fn simulated(&self, mutant: &Mutant, before: Option<u64>) -> anyhow::Result<Row> {
        let number = mutant.number;
        let mut seeds: Vec<&String> =
            self.seeds.iter().filter(|(_, places)| places.contains(&number)).map(|(seed, _)| seed).collect();
        seeds.sort_by_key(|seed| seed.parse::<u64>().unwrap_or_default());
        let reached = Row::reached(seeds.len(), self.arguments.seeds);
        let before = before.map(|seed| seed.to_string());
        if let Some(at) = before.and_then(|before| seeds.iter().position(|seed| **seed == before)) {
            seeds[..=at].rotate_right(1);
        }
        seeds.truncate(self.arguments.reached);
        let tried = seeds.len();
        if let Outcome::Failed(seed, what) = self.process(number, "seeds", None, &seeds)? {
            return Ok(Row { reached, caught: format!("seed {seed}: {what}") });
        }
        let stories = self.stories.get_or_init(|| self.watch_stories().expect("the stories can be told"));
        let names: Vec<&String> =
            stories.iter().filter(|(_, places)| places.contains(&number)).map(|(name, _)| name).collect();
        if let Outcome::Failed(story, what) = self.process(number, "stories", Some(self.arguments.stride), &names)? {
            return Ok(Row { reached, caught: format!("story {story}: {what}") });
        }
        let caught = format!("**nobody** ({tried} seeds, {} stories){}", names.len(), page::UNITS_NOT_RUN);
        Ok(Row { reached, caught })
    }

    /// Finds the unit test that catches a mutant.
    fn tested(&self, mutant: &Mutant) -> anyhow::Result<Option<String>> {
        let number = mutant.number;
        let units = self.units.get_or_init(|| self.watch_units().expect("the unit tests can be run"));
        // Tests of its own crate are most likely to catch it.
        let reach = |tests: &&Tests| units.get(&tests.name).is_some_and(|places| places.contains(&number));
        let (own, others): (Vec<&Tests>, Vec<&Tests>) = self
            .tests()
            .iter()
            .filter(reach)
            .partition(|tests| mutant.file.starts_with(&format!("crates/{}/", tests.crate_name())));
        for tests in own.into_iter().chain(others) {
            if let Some(what) = self.unit(number, tests)? {
                return Ok(Some(format!("{}: {what}", tests.name)));
            }
        }
        Ok(None)
    }

    /// Runs seeds or stories with a mutant on.
    fn process(&self, number: u32, kind: &str, stride: Option<u64>, names: &[&String]) -> anyhow::Result<Outcome> {
        if names.is_empty() {
            return Ok(Outcome::Passed);
        }
        let mut command = command(&self.runner);
        command.arg(number.to_string()).arg(kind).args(stride.map(|stride| stride.to_string())).args(names);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let errors = child.stderr.take().context("the errors are read")?;
        // Panic messages, read concurrently with the output, so that no pipe fills.
        let errors = std::thread::spawn(move || {
            let mut panic = None;
            let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
            while let Some(line) = lines.next() {
                if panic.is_none() && line.contains("panicked at") {
                    panic = Some(lines.next().unwrap_or_default());
                }
            }
            panic
        });
        let (mut at, mut failed, mut passed) = (String::new(), None, 0);
        let ended = lines(child, |line| {
            if let Some(name) = line.strip_prefix("begin ") {
                name.clone_into(&mut at);
            } else if let Some((name, what)) = line.strip_prefix("failed ").and_then(|rest| rest.split_once(": ")) {
                failed = Some((name.to_owned(), shortened(what)));
            } else if line.starts_with("passed ") {
                passed += 1;
            }
        })?;
        let panic = errors.join().unwrap_or_default();
        Ok(match (failed, ended) {
            (Some((name, what)), _) => Outcome::Failed(name, what),
            (None, None) => Outcome::Failed(at, "it hangs".to_owned()),
            (None, Some(status)) if status.success() && passed == names.len() => Outcome::Passed,
            (None, Some(_)) if at.is_empty() => bail!("the runner did not begin"),
            (None, Some(status)) if status.success() => bail!("{passed} passed of {} that were asked for", names.len()),
            (None, Some(status)) => {
                let what = panic.map_or(status.to_string(), |what| format!("panic: {what}"));
                Outcome::Failed(at, shortened(&what))
            }
        })
    }

    fn tests(&self) -> &[Tests] {
        self.tests.get_or_init(|| {
            let sh = Shell::new().expect("a shell");
            sh.change_dir(root());
            tree::build_tests(&sh).expect("the unit tests can be built")
        })
    }

    fn watch_stories(&self) -> anyhow::Result<Reached> {
        let mut command = command(&self.runner);
        command.args(["watch", "stories"]).arg(self.arguments.stride.to_string()).stdout(Stdio::piped());
        let mut found = Reached::new();
        lines(command.spawn()?, |line| match reached(line) {
            Some((name, places)) => drop(found.insert(name, places)),
            None => eprintln!("without a mutant a story fails, and is left out: {line}"),
        })?;
        Ok(found)
    }

    fn watch_units(&self) -> anyhow::Result<Reached> {
        let found = Mutex::new(Reached::new());
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<()> {
            while let Some(tests) = self.tests().get(next.fetch_add(1, Relaxed)) {
                let path = tree::folder().join(format!("unit-{}.txt", tests.name.replace('/', "-")));
                let _ = std::fs::remove_file(&path);
                let mut command = command(&tests.binary);
                command.env("ADAMANT_MUTANT", "watch").env("ADAMANT_MUTANTS_REACHED", &path);
                if let Some(what) = failed_test(command, tests)? {
                    eprintln!("without a mutant the tests of {} fail ({what}), and are left out", tests.name);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let places = text.lines().filter_map(|line| line.parse().ok()).collect();
                found.lock().unwrap().insert(tests.name.clone(), places);
            }
            Ok(())
        };
        in_parallel(self.jobs, &work)?;
        Ok(found.into_inner().unwrap())
    }

    /// The unit test that fails with a mutant on.
    fn unit(&self, number: u32, tests: &Tests) -> anyhow::Result<Option<String>> {
        let mut command = command(&tests.binary);
        command.env("ADAMANT_MUTANT", number.to_string());
        failed_test(command, tests)
    }
}

/// Runs a test binary, and returns the test that fails.
fn failed_test(mut command: Command, tests: &Tests) -> anyhow::Result<Option<String>> {
    command.current_dir(&tests.folder).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut failed = None;
    let ended = lines(command.spawn()?, |line| {
        let name = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        if let (Some(name), None) = (name, &failed) {
            failed = Some(name.to_owned());
        }
    })?;
    Ok(match ended {
        None => Some("it hangs".to_owned()),
        Some(status) if status.success() => None,
        Some(status) => Some(failed.unwrap_or_else(|| status.to_string())),
    })
}

/// A failure message, shortened to fit a row.
fn shortened(what: &str) -> String {
    let what = what.replace('|', "/");
    if what.chars().count() <= 90 { what } else { format!("{}…", what.chars().take(89).collect::<String>()) }
}
