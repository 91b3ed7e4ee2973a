//! The coordinator of a run: starts the ranks, keeps them in step, collects their times and prints the results.
//!
//! A rank is a process (this program again) or a thread. It gets the next phase, and reports when it started, when it ended
//! and how many operations it did. A phase starts when all ranks have reported the end of the one before. With `-B` the
//! phases of one kind of item are sent together, so each rank continues by itself.
//!
//! The first failure, or a request to stop, ends the phase for every rank; what was measured until then is printed.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::Phase;
use super::files::{Files, Mounted};
use super::native::{Client, Manner, Native};
use super::options::{Options, Place};
use super::rank::{Order, Rank, Report};
use super::summary::{self, Measured, Row};
use crate::stop;

/// How ranks run.
pub enum Crew<'a> {
    /// As processes; the function gives the command of a rank, which must call [`serve_rank`].
    Processes(&'a dyn Fn(u64) -> Command),
    /// As threads of this process.
    Threads,
}

/// A message from a rank.
#[derive(Debug)]
enum Message {
    Ready,
    At(u64),
    Done(Report),
    Gone(String),
}

/// A run that ended early.
#[derive(Debug)]
pub enum Ended {
    /// Why, as a sentence.
    Failed(String),
    /// The output cannot be written.
    Output(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended::Output(error)
    }
}

/// Runs, and prints to `out` what the MPI tool would print. Returns the rows of the table, also for a run that ended early.
pub fn run(
    options: &Options,
    command_line: &str,
    crew: &Crew<'_>,
    out: &mut dyn Write,
) -> (Vec<Row>, Result<(), Ended>) {
    let (sender, messages) = mpsc::channel();
    let mut run = Run {
        options,
        links: Vec::new(),
        sender,
        messages,
        halt: Arc::default(),
        failure: None,
        progress: Progress::new(),
        last: Vec::new(),
        limit: u64::MAX,
        wrong: 0,
    };
    let result = run
        .head(command_line, out)
        .map_err(Ended::from)
        .and_then(|()| run.start(crew))
        .and_then(|()| options.tasks.iter().try_for_each(|tasks| run.test(*tasks, out)));
    let rows = summary::machine_rows(options, &run.last);
    run.end();
    let result = result.and_then(|()| run.verdict(out));
    let result = result.and_then(|()| Ok(writeln!(out, "-- finished at {} --", timestamp())?));
    (rows, result)
}

struct Run<'a> {
    options: &'a Options,
    links: Vec<Link>,
    sender: Sender<(usize, Message)>,
    messages: Receiver<(usize, Message)>,
    /// Tells all ranks that are threads to stop.
    halt: Arc<AtomicBool>,
    failure: Option<String>,
    progress: Progress,
    /// The measurements with the last number of ranks.
    last: Vec<Measured>,
    /// The most files of each rank, if the time of -W allowed no more.
    limit: u64,
    /// Items whose data was not as written.
    wrong: u64,
}

/// The connection to a rank.
struct Link {
    send: Option<Box<dyn FnMut(Order) -> bool>>,
    child: Option<Child>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Run<'_> {
    fn head(&self, command_line: &str, out: &mut dyn Write) -> io::Result<()> {
        let ranks = self.options.ranks();
        writeln!(out, "-- started at {} --\n", timestamp())?;
        let version = env!("CARGO_PKG_VERSION");
        writeln!(out, "mdtest-{version} was launched with {ranks} total task(s) on 1 node(s)")?;
        writeln!(out, "Command line used: {command_line}")?;
        writeln!(out, "Nodemap: {}", "1".repeat(ranks as usize))?;
        for place in &self.options.places {
            writeln!(out, "Path                : {place}")?;
            if let Place::Folder(path) = place {
                writeln!(out, "FS                  : {}", space(path))?;
            }
        }
        if let Some(seed) = self.options.random_seed {
            writeln!(out, "random seed: {seed}")?;
        }
        if self.options.stride > 0 {
            writeln!(out, "Shifting ranks by {} for each phase.", self.options.stride)?;
        }
        out.flush()
    }

    fn start(&mut self, crew: &Crew<'_>) -> Result<(), Ended> {
        let mut clients = HashMap::new();
        for rank in 0..self.options.ranks() {
            let sender = self.sender.clone();
            let link = match crew {
                Crew::Processes(command) => process(command(rank), rank as usize, sender),
                Crew::Threads => files(self.options, rank, &mut clients).and_then(|files| {
                    thread(Rank::new(self.options.clone(), rank, files, self.halt.clone()), rank as usize, sender)
                }),
            };
            self.links.push(link.map_err(|error| Ended::Failed(format!("{error:#}")))?);
        }
        for _ in 0..self.options.ranks() {
            match self.messages.recv() {
                Ok((_, Message::Ready)) => {}
                Ok((rank, Message::Gone(reason))) => return Err(Ended::Failed(format!("rank {rank}: {reason}"))),
                _ => return Err(Ended::Failed("the ranks cannot be started".to_owned())),
            }
        }
        Ok(())
    }

    /// Runs all iterations with `tasks` ranks.
    fn test(&mut self, tasks: u64, out: &mut dyn Write) -> Result<(), Ended> {
        let what = match (self.options.files, self.options.directories) {
            (true, true) => "files/directories",
            (true, false) => "files",
            _ => "directories",
        };
        writeln!(out, "{tasks} tasks, {} {what}", tasks * self.options.items_of_a_rank())?;
        out.flush()?;
        self.last.clear();
        let mut iteration = 0;
        let mut result = Ok(());
        while iteration < self.options.iterations && result.is_ok() {
            result = self.iteration(iteration, tasks, out);
            iteration += 1;
        }
        if self.options.clean_up {
            let cleaned = self.step(&[Phase::Clean], iteration.saturating_sub(1), tasks);
            result = result.and(cleaned.map(drop));
        } else if result.is_err() {
            eprintln!("mdtest: if something was made it is still there, in test-dir.* under -d; --cleanup removes it");
        }
        let complete = if result.is_ok() { iteration } else { iteration - 1 };
        if result.is_err() {
            self.report_partial();
        }
        summary::print(self.options, &self.last, complete, out)?;
        result
    }

    /// Data that differs from what was written makes the figures worthless.
    fn verdict(&self, out: &mut dyn Write) -> Result<(), Ended> {
        if self.wrong == 0 {
            return Ok(());
        }
        writeln!(out, "\nERROR: verifying the data read! Take the performance values with care!\n")?;
        Err(Ended::Failed(format!("{} files were not as they were written", self.wrong)))
    }

    /// Reads the number of files that an earlier run with -W created, for a run that creates none.
    fn read_stone_wall(&mut self, out: &mut dyn Write) -> Result<(), Ended> {
        let Some(file) = self.options.stone_wall_file.as_ref().filter(|_| !self.options.create) else { return Ok(()) };
        let text = std::fs::read_to_string(file).ok();
        match text.and_then(|text| text.trim().parse::<u64>().ok()) {
            Some(count) => self.limit = count,
            None if self.options.warnings_are_errors => {
                return Err(Ended::Failed(format!("-x: '{file}' has no number of files")));
            }
            None => writeln!(out, "WARNING: Could not read stonewall status file")?,
        }
        Ok(())
    }

    /// After the time of -W, the ranks that created fewer files than others catch up.
    fn level(
        &mut self,
        mut first: Measured,
        iteration: u32,
        tasks: u64,
        out: &mut dyn Write,
    ) -> Result<Measured, Ended> {
        let counts: Vec<u64> = first.ranks.iter().map(|report| report.count).collect();
        let (min, max) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
        self.limit = max;
        if min < self.options.items_of_a_rank() {
            let mean = counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64;
            writeln!(out, "Continue stonewall hit min: {min} max: {max} avg: {mean:.1} ")?;
            for rest in self.step(&[Phase::FileCreationRest], iteration, tasks)? {
                first.add(&rest);
            }
        }
        if let Some(file) = &self.options.stone_wall_file {
            std::fs::write(file, max.to_string()).map_err(|error| Ended::Failed(format!("-x: '{file}': {error}")))?;
        }
        Ok(first)
    }

    fn iteration(&mut self, iteration: u32, tasks: u64, out: &mut dyn Write) -> Result<(), Ended> {
        let options = self.options;
        self.limit = u64::MAX;
        self.read_stone_wall(out)?;
        let chosen = |wanted: &[(bool, Phase)]| -> Vec<Phase> {
            wanted.iter().filter(|(wanted, _)| *wanted).map(|(_, phase)| *phase).collect()
        };
        let directories = chosen(&[
            (options.create, Phase::DirectoryCreation),
            (options.stat, Phase::DirectoryStat),
            (options.remove, Phase::DirectoryRemoval),
        ]);
        let files = chosen(&[
            (options.create, Phase::FileCreation),
            (options.stat, Phase::FileStat),
            (options.read, Phase::FileRead),
            (options.remove, Phase::FileRemoval),
        ]);
        self.step(&[Phase::Prepare], iteration, tasks)?;
        if iteration == 0 {
            self.check_places()?;
        }
        let mut groups = Vec::new();
        if options.create {
            groups.push(vec![Phase::TreeCreation]);
        }
        if options.directories && !options.shared_files {
            groups.push(directories);
        }
        if options.files {
            groups.push(files);
        }
        if options.remove {
            groups.push(vec![Phase::TreeRemoval]);
        }
        for group in groups {
            if !group[0].is_of_the_tree() {
                self.delay();
            }
            if options.barriers {
                for phase in group {
                    self.measure(&[phase], iteration, tasks, out)?;
                }
            } else {
                self.measure(&group, iteration, tasks, out)?;
            }
        }
        if options.remove {
            self.step(&[Phase::Finish], iteration, tasks)?;
        }
        Ok(())
    }

    fn measure(&mut self, phases: &[Phase], iteration: u32, tasks: u64, out: &mut dyn Write) -> Result<(), Ended> {
        let all = phases == [Phase::FileCreation] && self.options.collective;
        let of_all = if all { self.step(&[Phase::FilesOfAll], iteration, tasks)?.pop() } else { None };
        let mut measured = self.step(phases, iteration, tasks)?;
        if let (Some(mut of_all), Some(own)) = (of_all, measured.first_mut()) {
            // The first rank created the files, then each rank opened and wrote its own.
            of_all.phase = own.phase;
            of_all.add(own);
            *own = of_all;
        }
        if self.options.stone_wall > 0 && phases == [Phase::FileCreation] {
            let first = measured.remove(0);
            measured.insert(0, self.level(first, iteration, tasks, out)?);
        }
        for mut measured in measured {
            if measured.phase.is_of_files() && self.limit != u64::MAX {
                measured.items = Some(self.limit.min(self.options.items_of_a_rank()));
            }
            if self.options.verbosity > 0 {
                let (seconds, rate) = (measured.seconds(0, self.options.barriers), measured.rate(0, self.options));
                let name = measured.phase.name();
                writeln!(out, "V-1: iteration {iteration}: {name:<18}: {seconds:>14.3} sec, {rate:>14.3} ops/sec")?;
                out.flush()?;
            }
            self.last.push(measured);
        }
        Ok(())
    }

    /// Sends some phases to the first `tasks` ranks and waits until all have done them all.
    fn step(&mut self, phases: &[Phase], iteration: u32, tasks: u64) -> Result<Vec<Measured>, Ended> {
        // A cleanup runs whatever happened before.
        let cleans = phases == [Phase::Clean];
        if !cleans && (self.failure.is_some() || stop::requested()) {
            self.halt();
            return Err(self.early());
        }
        let tasks_count = tasks as usize;
        let mut reports: Vec<Vec<Report>> = vec![Vec::new(); tasks_count];
        let mut done_so_far = vec![0; tasks_count];
        let mut gone = vec![false; self.links.len()];
        for (rank, link) in self.links.iter_mut().take(tasks_count).enumerate() {
            for phase in phases {
                let send = link.send.as_mut();
                let order = Order { limit: self.limit, ..Order::new(*phase, iteration, tasks) };
                gone[rank] |= !send.is_some_and(|send| send(order));
            }
        }
        let name = phases[0].name();
        self.progress.begin();
        let mut failure = None;
        while (0..tasks_count).any(|rank| !gone[rank] && reports[rank].len() < phases.len()) {
            match self.messages.recv_timeout(Duration::from_millis(200)) {
                Ok((rank, Message::At(count))) if rank < tasks_count => done_so_far[rank] = count,
                Ok((rank, Message::Done(report))) if rank < tasks_count => {
                    if !report.failure.is_empty() && failure.is_none() {
                        failure = Some(format!("rank {rank}: {}", report.failure));
                    }
                    done_so_far[rank] = report.count;
                    self.wrong += report.wrong;
                    reports[rank].push(report);
                }
                Ok((rank, Message::Gone(reason))) => {
                    gone[rank] = true;
                    failure.get_or_insert_with(|| format!("rank {rank}: {reason}"));
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if failure.is_some() || stop::requested() {
                self.halt();
            }
            let wanted = self.options.items_of_a_rank() * tasks;
            self.progress.show(name, iteration, self.options.iterations, done_so_far.iter().sum(), wanted);
        }
        self.progress.end();
        if failure.is_none() && (0..tasks_count).any(|rank| gone[rank]) {
            failure = Some("a rank does not take orders any more".to_owned());
        }
        let of_phase = |at: usize, phase: Phase| Measured {
            phase,
            items: None,
            ranks: reports.iter().map(|reports| reports.get(at).cloned().unwrap_or_default()).collect(),
        };
        let measured: Vec<Measured> = phases.iter().enumerate().map(|(at, phase)| of_phase(at, *phase)).collect();
        match failure {
            None => Ok(measured),
            Some(failure) => {
                self.partial(&measured);
                self.failure.get_or_insert(failure);
                Err(self.early())
            }
        }
    }

    /// Notes what was done of a phase that ended early.
    fn partial(&mut self, measured: &[Measured]) {
        let wanted = self.options.items_of_a_rank();
        for measured in measured.iter().filter(|measured| measured.phase.is_measured() && measured.count() > 0) {
            let seconds = measured.seconds(0, true);
            let rate = if seconds > 0.0 { measured.count() as f64 / seconds } else { 0.0 };
            self.progress.partial.push(format!(
                "{} ended after {} of {} operations, {rate:.3} ops/sec",
                measured.phase.name(),
                measured.count(),
                wanted * measured.ranks.len() as u64
            ));
        }
    }

    fn report_partial(&mut self) {
        for line in self.progress.partial.drain(..) {
            eprintln!("mdtest: {line}");
        }
    }

    fn early(&self) -> Ended {
        match &self.failure {
            Some(failure) if !(stop_by_user(failure)) => Ended::Failed(failure.clone()),
            _ => Ended::Failed("stopped; the figures are those of what was done before".to_owned()),
        }
    }

    /// Stops all ranks in their current phase.
    fn halt(&mut self) {
        if self.halt.swap(true, Ordering::Relaxed) {
            return;
        }
        for link in &self.links {
            if let Some(child) = &link.child {
                let _ = kill_process(pid(child), Signal::INT);
            }
        }
    }

    /// Checks that several places are mounts of one file system, unless each rank has a tree of its own that no other
    /// visits.
    fn check_places(&self) -> Result<(), Ended> {
        let places = &self.options.places;
        if places.len() < 2 || self.options.unique && self.options.stride == 0 {
            return Ok(());
        }
        let folders: Vec<&str> = places
            .iter()
            .filter_map(|place| match place {
                Place::Folder(path) => Some(path.as_str()),
                Place::Native { .. } => None,
            })
            .collect();
        let Some(first) = folders.first() else { return Ok(()) };
        let name = format!("test-dir.0-0/mdtest-mark-{}", std::process::id());
        let mark = std::path::Path::new(first).join(&name);
        std::fs::create_dir(&mark).map_err(|error| Ended::Failed(format!("mkdir '{}': {error}", mark.display())))?;
        let stranger = folders.iter().find(|folder| !std::path::Path::new(folder).join(&name).is_dir());
        let _ = std::fs::remove_dir(&mark);
        match stranger {
            None => Ok(()),
            Some(folder) => Err(Ended::Failed(format!(
                "'{first}' and '{folder}' are not the same directory through two mounts; then only -u without -N goes"
            ))),
        }
    }

    fn delay(&self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(self.options.delay_seconds) && !stop::requested() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self) {
        for link in &mut self.links {
            link.send = None;
            if let Some(thread) = link.thread.take() {
                let _ = thread.join();
            }
        }
        for link in &mut self.links {
            if let Some(mut child) = link.child.take() {
                let _ = child.wait();
            }
        }
    }
}

/// Whether a rank ended only because it was stopped.
fn stop_by_user(failure: &str) -> bool {
    failure.ends_with(": stopped")
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn thread(mut rank: Rank, number: usize, sender: Sender<(usize, Message)>) -> anyhow::Result<Link> {
    let (orders, receive) = mpsc::channel::<Order>();
    let thread = std::thread::Builder::new().name(format!("rank-{number}")).spawn(move || {
        let _ = sender.send((number, Message::Ready));
        for order in receive {
            let report = rank.run(order, &mut |count| drop(sender.send((number, Message::At(count)))));
            let _ = sender.send((number, Message::Done(report)));
        }
    });
    let thread = thread.context("cannot start a thread")?;
    Ok(Link { send: Some(Box::new(move |order| orders.send(order).is_ok())), child: None, thread: Some(thread) })
}

fn process(mut command: Command, number: usize, sender: Sender<(usize, Message)>) -> anyhow::Result<Link> {
    let fail = |error: io::Error| anyhow!("cannot start a process: {error}; see 'ulimit -u'");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(fail)?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("a process has no pipes");
    };
    let reader = std::thread::Builder::new().name(format!("rank-{number}")).spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send((number, parse(&line)));
        }
        let _ = sender.send((number, Message::Gone("its process has ended".to_owned())));
    });
    let reader = reader.map_err(fail)?;
    let send = move |Order { phase, iteration, tasks, limit }: Order| {
        writeln!(input, "{} {iteration} {tasks} {limit}", phase as u8).and_then(|()| input.flush()).is_ok()
    };
    Ok(Link { send: Some(Box::new(send)), child: Some(child), thread: Some(reader) })
}

fn parse(line: &str) -> Message {
    let mut words = line.splitn(6, ' ');
    let kind = words.next();
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0u64);
    match kind {
        Some("ready") => Message::Ready,
        Some("at") => Message::At(number()),
        Some("done") => {
            let (start_ns, end_ns, count, wrong) = (number(), number(), number(), number());
            Message::Done(Report {
                start_ns,
                end_ns,
                count,
                wrong,
                failure: words.next().unwrap_or_default().to_owned(),
            })
        }
        _ => Message::Gone(line.strip_prefix("gone ").unwrap_or(line).to_owned()),
    }
}

/// The main loop of a rank that is a process: orders arrive on its standard input, messages leave on its standard output.
///
/// # Errors
/// A pipe broke.
pub fn serve_rank(options: &Options, rank: u64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let files = match files(options, rank, &mut HashMap::new()) {
        Ok(files) => files,
        Err(error) => return writeln!(out, "gone {}", format!("{error:#}").replace('\n', " ")),
    };
    let mut work = Rank::new(options.clone(), rank, files, Arc::default());
    writeln!(out, "ready")?;
    out.flush()?;
    for line in io::stdin().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let (Some(Ok(phase)), Some(Ok(iteration)), Some(Ok(tasks)), Some(Ok(limit))) = (
            words.next().map(str::parse::<Phase>),
            words.next().map(str::parse::<u32>),
            words.next().map(str::parse::<u64>),
            words.next().map(str::parse::<u64>),
        ) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an order that this rank does not know"));
        };
        let report = work.run(Order { phase, iteration, tasks, limit }, &mut |count| {
            let _ = writeln!(out, "at {count}").and_then(|()| out.flush());
        });
        let failure = report.failure.replace('\n', " ");
        writeln!(out, "done {} {} {} {} {failure}", report.start_ns, report.end_ns, report.count, report.wrong)?;
        out.flush()?;
    }
    Ok(())
}

/// The operations of a rank. Ranks that are threads share the client of their place.
fn files(options: &Options, rank: u64, clients: &mut HashMap<usize, Arc<Client>>) -> anyhow::Result<Box<dyn Files>> {
    let at = (rank % options.places.len() as u64) as usize;
    let place = &options.places[at];
    Ok(match place {
        Place::Folder(path) => Box::new(Mounted::new(path)),
        Place::Native { .. } => {
            let client = match clients.get(&at) {
                Some(client) => client.clone(),
                None => Client::start(place, Manner::default())?,
            };
            clients.insert(at, client.clone());
            Box::new(Native::new(client))
        }
    })
}

/// Lines on standard error during a long phase.
struct Progress {
    terminal: bool,
    start: Instant,
    last: Instant,
    on_screen: bool,
    partial: Vec<String>,
}

impl Progress {
    fn new() -> Progress {
        let now = Instant::now();
        Progress { terminal: io::stderr().is_terminal(), start: now, last: now, on_screen: false, partial: Vec::new() }
    }

    fn begin(&mut self) {
        self.start = Instant::now();
        self.last = self.start;
    }

    fn show(&mut self, name: &str, iteration: u32, iterations: u32, count: u64, wanted: u64) {
        let every = if self.terminal { Duration::from_secs(1) } else { Duration::from_secs(10) };
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        let rate = count as f64 / self.start.elapsed().as_secs_f64();
        let line =
            format!("{name}: iteration {} of {iterations}, {count} of {wanted}, {rate:.0} ops/sec", iteration + 1);
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            self.on_screen = true;
        } else {
            eprintln!("{line}");
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.on_screen) {
            eprint!("\r\x1b[K");
        }
    }
}

/// The size and use of the file system that holds a path, or will hold it.
fn space(path: &str) -> String {
    let path = std::path::absolute(path).unwrap_or_default();
    let Some(space) = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok()) else {
        return "unknown".to_owned();
    };
    let part = |free: u64, all: u64| if all == 0 { 0.0 } else { 100.0 * (1.0 - free as f64 / all as f64) };
    let gib = space.f_blocks as f64 * space.f_frsize as f64 / f64::from(1 << 30);
    format!(
        "{gib:.1} GiB   Used FS: {:.1}%   Inodes: {:.1} Mi   Used Inodes: {:.1}%",
        part(space.f_bfree, space.f_blocks),
        space.f_files as f64 / f64::from(1 << 20),
        part(space.f_ffree, space.f_files)
    )
}

/// Date and time in UTC, in the format of the MPI tool.
pub(crate) fn timestamp() -> String {
    let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let (year, month, day, time) = date_of(seconds);
    format!("{:02}/{day:02}/{year} {time}", month + 1)
}

/// Year, month from 0, day, and time of day in UTC of a time in seconds since 1970.
pub(crate) fn date_of(seconds: u64) -> (u64, usize, u64, String) {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let mut year = 1970;
    let mut day = days;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    (year, month, day + 1, format!("{hour:02}:{minute:02}:{second:02}"))
}
