//! Timed workloads, run by worker processes.
//!
//! [`Pool`] starts worker processes (this binary again). Each takes tasks as lines of JSON and answers with lines of JSON.
//! A task is prepared first, including all names. Then all workers get the signal to start, and the time until the last one
//! is done counts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::figures::{median, percentile};
use crate::filler::{Filler, Names, Order, Prepared, Share};
use crate::guardian;
use crate::ops::Op;
use crate::run::Run;

/// The operation on each file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// `open(O_CREAT | O_EXCL)`, write `size` bytes, close.
    Create {
        /// Bytes of each file.
        size: u64,
    },
    /// `open(O_CREAT | O_EXCL)`; the files stay open.
    Open,
    /// Closes the files that [`Job::Open`] left open.
    Close,
    /// `stat` of files or directories.
    Stat,
    /// `open`, read all, close.
    Read,
    /// `unlink`.
    Remove,
    /// `mkdir`.
    MakeDirectory,
    /// `rmdir`.
    RemoveDirectory,
    /// Creates and removes a file again and again, at most a thousand times a second, until the task's stop file exists.
    Beat,
}

/// The part of one worker in a phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The operation.
    pub job: Job,
    /// The directory.
    pub folder: PathBuf,
    /// The prefix of the names.
    pub prefix: String,
    /// The number of files.
    pub count: u64,
    /// The file that ends a [`Job::Beat`], or the operations of a client.
    pub stop_file: Option<PathBuf>,
    /// Instead of the job: operations of a client of its own, without a mount; `folder` is then a path from the root.
    #[serde(default)]
    pub order: Option<Order>,
}

impl Task {
    /// Creates empty files through a client of its own; `folder` is a path from the root.
    pub fn of_client(share: &Share, folder: &str, prefix: String, count: u64) -> Task {
        let order = Order { share: share.clone(), op: Op::Create { size: 0 }, per_second: None };
        Task::of_order(order, folder, prefix, count)
    }

    /// The operations of a client of its own; `folder` is a path from the root.
    pub fn of_order(order: Order, folder: &str, prefix: String, count: u64) -> Task {
        let (job, folder) = (Job::Create { size: 0 }, PathBuf::from(folder));
        Task { job, folder, prefix, count, stop_file: None, order: Some(order) }
    }
}

/// The answer of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Answer {
    /// The number of operations.
    done: u64,
    /// The longest single operation, in seconds.
    longest: f64,
    /// The time of a client's operations alone, in seconds.
    busy: f64,
    /// The median and the 99th percentile of a client's operations one at a time, in microseconds.
    each_us: (f64, f64),
    /// The error that stopped it: errno and a sentence.
    failed: Option<(i32, String)>,
}

/// The result of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// From the start of the first worker to the end of the last.
    pub seconds: f64,
    /// The operations of all workers.
    pub operations: u64,
    /// The longest single operation, in seconds.
    pub longest: f64,
    /// For a task with an [`Order`]: the time of the operations alone, in seconds, for the slowest worker.
    pub busy: f64,
    /// For a task with an [`Order`], one operation at a time: the median and the 99th percentile, in microseconds, for the
    /// slowest worker.
    pub each_us: (f64, f64),
}

const READY: &str = "ready";

/// The main function of a worker: runs tasks until the input ends.
///
/// # Errors
/// The pool is gone, or its messages make no sense.
pub fn work(input: impl BufRead, mut output: impl Write) -> anyhow::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wish = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, wish);
    let (mut lines, mut open) = (input.lines(), Vec::new());
    let mut filler = Filler::default();
    while let Some(line) = lines.next() {
        let task: Task = serde_json::from_str(&line?)?;
        let count = if task.order.is_some() { 0 } else { task.count };
        let names: Vec<PathBuf> = (0..count).map(|n| task.folder.join(format!("{}{n}", task.prefix))).collect();
        let prepared = task.order.as_ref().map(|order| filler.prepare(order, names_of(&task)));
        writeln!(output, "{READY}")?;
        output.flush()?;
        lines.next().context("the other end is gone")??;
        let mut answer = Answer::default();
        if let Some(prepared) = prepared {
            answer = as_client(&task, prepared);
        } else if let Err(error) = perform(&task, &names, &mut open, &mut answer) {
            let place = names.get(answer.done as usize).unwrap_or(&task.folder);
            answer.failed = Some((error.raw_os_error().unwrap_or(0), format!("'{}': {error}", place.display())));
        }
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
        output.flush()?;
    }
    Ok(())
}

fn names_of(task: &Task) -> Names {
    Names {
        folder: task.folder.to_string_lossy().into_owned(),
        prefix: task.prefix.clone(),
        count: task.count,
        stop_file: task.stop_file.clone(),
    }
}

/// Runs the operations of a client.
fn as_client(task: &Task, prepared: anyhow::Result<Prepared>) -> Answer {
    let failed = |errno: i32, why: String| Some((errno, format!("'{}': {why}", task.folder.display())));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let errno = error.root_cause().downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            return Answer { failed: failed(errno.unwrap_or(0), format!("{error:#}")), ..Answer::default() };
        }
    };
    let filled = match prepared.run() {
        Ok(filled) => filled,
        Err(error) => {
            return Answer {
                failed: failed(error.raw_os_error().unwrap_or(0), error.to_string()),
                ..Answer::default()
            };
        }
    };
    Answer {
        done: filled.made,
        busy: filled.time.as_secs_f64(),
        each_us: (median(filled.each_us.clone()), percentile(filled.each_us, 0.99)),
        failed: filled.error.and_then(|error| failed(error.raw_os_error().unwrap_or(0), error.to_string())),
        ..Answer::default()
    }
}

fn perform(task: &Task, names: &[PathBuf], open: &mut Vec<File>, answer: &mut Answer) -> io::Result<()> {
    let create = |name: &Path| OpenOptions::new().write(true).create_new(true).mode(0o644).open(name);
    if task.job == Job::Close {
        for file in open.drain(..) {
            drop(file);
            answer.done += 1;
        }
        return Ok(());
    }
    if task.job == Job::Beat {
        let name = task.folder.join(&task.prefix);
        while !task.stop_file.as_ref().is_none_or(|file| file.exists()) {
            let start = Instant::now();
            drop(create(&name)?);
            fs::remove_file(&name)?;
            answer.longest = answer.longest.max(start.elapsed().as_secs_f64());
            answer.done += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        return Ok(());
    }
    let mut buffer = match task.job {
        Job::Create { size } => vec![0x5a; size as usize],
        Job::Read => vec![0; 1 << 17],
        _ => Vec::new(),
    };
    for name in names {
        match task.job {
            Job::Create { .. } => create(name)?.write_all(&buffer)?,
            Job::Open => open.push(create(name)?),
            Job::Stat => {
                fs::symlink_metadata(name)?;
            }
            Job::Read => {
                let mut file = File::open(name)?;
                while file.read(&mut buffer)? > 0 {}
            }
            Job::Remove => fs::remove_file(name)?,
            Job::MakeDirectory => fs::create_dir(name)?,
            Job::RemoveDirectory => fs::remove_dir(name)?,
            Job::Close | Job::Beat => (),
        }
        answer.done += 1;
    }
    Ok(())
}

struct Worker {
    child: Child,
    input: ChildStdin,
}

/// Worker processes.
pub struct Pool {
    workers: Vec<Worker>,
    answers: Receiver<(usize, Option<String>)>,
}

impl Pool {
    /// Starts the workers.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn start(count: usize) -> anyhow::Result<Pool> {
        let (sender, answers) = mpsc::channel();
        let mut pool = Pool { workers: Vec::new(), answers };
        for index in 0..count {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg0("adamant").args(["bench", "worker"]).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = guardian::spawn(&mut command).context("cannot start a worker")?;
            let (input, output) = (child.stdin.take().context("no input")?, child.stdout.take().context("no output")?);
            pool.workers.push(Worker { child, input });
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send((index, Some(line))).is_err() {
                        return;
                    }
                }
                let _ = sender.send((index, None));
            });
        }
        Ok(pool)
    }

    /// The number of workers.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// The process ids of the workers.
    pub fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.child.id()).collect()
    }

    /// Whether there are no workers.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    fn send(&mut self, first: usize, lines: impl Iterator<Item = String>) -> anyhow::Result<()> {
        for (worker, line) in self.workers[first..].iter_mut().zip(lines) {
            writeln!(worker.input, "{line}").context("a worker is gone")?;
        }
        Ok(())
    }

    /// Receives one line from each of `count` workers, in any order.
    fn receive(
        &self,
        count: usize,
        run: &Run,
        alive: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        while lines.len() < count {
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok((_, Some(line))) => lines.push(line),
                Ok((_, None)) | Err(RecvTimeoutError::Disconnected) => bail!("a worker ended before its work was done"),
                Err(RecvTimeoutError::Timeout) => {
                    run.go_on()?;
                    alive()?;
                }
            }
        }
        Ok(lines)
    }

    /// Gives a task to each of the first workers and waits for all; `alive` is called now and then, and its error ends the
    /// phase.
    ///
    /// # Errors
    /// A task failed, a worker has ended, `alive` failed, or the run was asked to stop.
    pub fn phase(
        &mut self,
        run: &Run,
        tasks: &[Task],
        alive: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Took> {
        self.prepare(run, 0, tasks, alive)?;
        let start = Instant::now();
        self.go(0, tasks.len())?;
        let answers = self.receive(tasks.len(), run, alive)?;
        let seconds = start.elapsed().as_secs_f64();
        Pool::sum(&answers, seconds)
    }

    /// Gives tasks to workers from `first` on and waits until they are ready to start.
    fn prepare(
        &mut self,
        run: &Run,
        first: usize,
        tasks: &[Task],
        alive: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if first + tasks.len() > self.workers.len() {
            bail!("{} tasks for {} workers", first + tasks.len(), self.workers.len());
        }
        let lines: Vec<String> = tasks.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        self.send(first, lines.into_iter())?;
        for line in self.receive(tasks.len(), run, alive)? {
            if line != READY {
                bail!("a worker said '{line}'");
            }
        }
        Ok(())
    }

    fn go(&mut self, first: usize, count: usize) -> anyhow::Result<()> {
        self.send(first, std::iter::repeat_n("go".to_owned(), count))
    }

    /// Runs `beside` while the last worker runs [`Job::Beat`] in `folder`. Returns the result of the beat, and that of
    /// `beside`, which may run phases on the other workers.
    ///
    /// # Errors
    /// As for [`Pool::phase`], or an error of `beside`.
    pub fn beat<T>(
        &mut self,
        run: &Run,
        folder: &Path,
        stop_file: &Path,
        beside: impl FnOnce(&mut Pool) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Took, T)> {
        let _ = fs::remove_file(stop_file);
        let task = Task {
            job: Job::Beat,
            folder: folder.to_owned(),
            prefix: "beat".to_owned(),
            count: 0,
            stop_file: Some(stop_file.to_owned()),
            order: None,
        };
        self.beside(run, task, beside)
    }

    /// Runs `beside` while the last worker runs a task that a stop file ends. Returns the results of both.
    ///
    /// # Errors
    /// As for [`Pool::phase`], or an error of `beside`.
    pub fn beside<T>(
        &mut self,
        run: &Run,
        task: Task,
        beside: impl FnOnce(&mut Pool) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Took, T)> {
        let last = self.workers.len().checked_sub(1).context("no worker")?;
        let stop_file = task.stop_file.clone().context("no stop file")?;
        self.prepare(run, last, &[task], &mut || Ok(()))?;
        let start = Instant::now();
        self.go(last, 1)?;
        let given = beside(self)?;
        File::create(&stop_file)?;
        let answers = self.receive(1, run, &mut || Ok(()))?;
        Ok((Pool::sum(&answers, start.elapsed().as_secs_f64())?, given))
    }

    fn sum(answers: &[String], seconds: f64) -> anyhow::Result<Took> {
        let mut took = Took { seconds, ..Took::default() };
        for line in answers {
            let answer: Answer = serde_json::from_str(line).with_context(|| format!("a worker said '{line}'"))?;
            if let Some((errno, sentence)) = answer.failed {
                return Err(Refused { errno, sentence }.into());
            }
            took.operations += answer.done;
            took.longest = took.longest.max(answer.longest);
            took.busy = took.busy.max(answer.busy);
            let (median, high) = answer.each_us;
            took.each_us = (took.each_us.0.max(median), took.each_us.1.max(high));
        }
        Ok(took)
    }
}

/// The file system under test refused an operation.
#[derive(Clone, Debug)]
pub struct Refused {
    errno: i32,
    sentence: String,
}

impl Refused {
    fn errno(&self) -> rustix::io::Errno {
        rustix::io::Errno::from_raw_os_error(self.errno)
    }

    fn is_full(&self) -> bool {
        matches!(self.errno(), rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)
    }

    fn is_lost(&self) -> bool {
        use rustix::io::Errno;
        matches!(self.errno(), Errno::NOTCONN | Errno::CONNABORTED | Errno::SHUTDOWN)
    }

    /// Whether nothing more can be measured: the file system is full, or the mount is gone.
    pub fn ends_the_run(&self) -> bool {
        self.is_full() || self.is_lost()
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sentence = &self.sentence;
        if self.is_full() {
            write!(f, "the file system is full ({sentence}): make room there, or measure fewer files")
        } else if self.is_lost() {
            write!(f, "the mount is lost ({sentence}): its process ended; see its log")
        } else {
            f.write_str(sentence)
        }
    }
}

impl std::error::Error for Refused {}

impl Drop for Pool {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.child.kill();
        }
        for worker in &mut self.workers {
            let start = Instant::now();
            while matches!(worker.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// MiB per second of a sequential write with fsync, and of a read that bypasses the kernel's cache, by `programs` threads
/// at once, each with a file of its own.
///
/// # Errors
/// An error of the file system.
pub fn sequential(root: &Path, mib: u64, programs: u64) -> io::Result<(f64, f64)> {
    let each = (mib / programs).max(1);
    let together = |work: &(dyn Fn(&Path) -> io::Result<()> + Sync)| -> io::Result<f64> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let name = |program| root.join(format!("large{program}"));
            let at_work: Vec<_> = (0..programs).map(|program| scope.spawn(move || work(&name(program)))).collect();
            at_work.into_iter().try_for_each(|one| one.join().map_err(|_| io::Error::other("a program broke off"))?)
        })?;
        Ok((each * programs) as f64 / start.elapsed().as_secs_f64())
    };
    let write = together(&|name| write_large(name, each))?;
    let read = together(&|name| read_large(name, each))?;
    (0..programs).try_for_each(|program| fs::remove_file(root.join(format!("large{program}"))))?;
    Ok((write, read))
}

fn write_large(name: &Path, mib: u64) -> io::Result<()> {
    let block = vec![0x5a; 1 << 20];
    let mut file = File::create(name)?;
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    file.sync_all()
}

fn read_large(name: &Path, mib: u64) -> io::Result<()> {
    let mut file = File::open(name)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut block = vec![0; 1 << 20];
    let mut total = 0u64;
    loop {
        match file.read(&mut block)? {
            0 => break,
            count => total += count as u64,
        }
    }
    if total != mib << 20 {
        return Err(io::Error::other(format!("wrote {} bytes and read {total}", mib << 20)));
    }
    Ok(())
}

/// MiB per second of a copy over a loopback socket into a local file, with fsync.
///
/// # Errors
/// An error of the network or the file system.
pub fn socket_to_file(root: &Path, mib: u64) -> io::Result<f64> {
    let name = root.join("copied");
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> io::Result<()> {
        let mut stream = std::net::TcpStream::connect(address)?;
        let block = vec![0x5a; 1 << 20];
        for _ in 0..mib {
            stream.write_all(&block)?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut file = File::create(&name)?;
    let mut block = vec![0; 1 << 20];
    let start = Instant::now();
    loop {
        match stream.read(&mut block)? {
            0 => break,
            count => file.write_all(&block[..count])?,
        }
    }
    file.sync_all()?;
    let figure = mib as f64 / start.elapsed().as_secs_f64();
    sender.join().map_err(|_| io::Error::other("the sender broke off"))??;
    fs::remove_file(&name)?;
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of a worker to some tasks.
    fn answers(tasks: &[Task]) -> Vec<Answer> {
        let input: Vec<String> =
            tasks.iter().flat_map(|task| [serde_json::to_string(task).unwrap(), "go".to_owned()]).collect();
        let mut output = Vec::new();
        work(input.join("\n").as_bytes(), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.iter().step_by(2).copied().collect::<Vec<_>>(), vec![READY; tasks.len()]);
        lines.iter().skip(1).step_by(2).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_worker_does_every_job_and_says_what_failed() {
        let folder = tempfile::tempdir().unwrap();
        let task = |job, prefix: &str, count| Task {
            job,
            folder: folder.path().to_owned(),
            prefix: prefix.to_owned(),
            count,
            stop_file: None,
            order: None,
        };
        let given = answers(&[
            task(Job::Create { size: 300 }, "a", 3),
            task(Job::Stat, "a", 3),
            task(Job::Read, "a", 3),
            task(Job::Open, "b", 2),
            task(Job::Close, "b", 2),
            task(Job::MakeDirectory, "d", 2),
            task(Job::RemoveDirectory, "d", 2),
            task(Job::Remove, "b", 2),
        ]);
        assert_eq!(given.iter().map(|answer| answer.done).collect::<Vec<_>>(), [3, 3, 3, 2, 2, 2, 2, 2]);
        assert!(given.iter().all(|answer| answer.failed.is_none()), "{given:?}");
        assert_eq!(fs::metadata(folder.path().join("a2")).unwrap().len(), 300);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);

        let given = answers(&[task(Job::Remove, "a", 5)]);
        let (errno, sentence) = given[0].failed.clone().unwrap();
        assert_eq!((given[0].done, errno), (3, 2));
        assert!(sentence.contains("a3"), "{sentence}");
    }

    #[test]
    fn a_full_disk_and_a_lost_mount_are_told_apart() {
        let refused = |errno| Refused { errno, sentence: "x".to_owned() };
        for (errno, text, ends) in [(28, "is full (x)", true), (107, "the mount is lost (x)", true), (13, "x", false)] {
            assert!(refused(errno).to_string().contains(text), "{}", refused(errno));
            assert_eq!(refused(errno).ends_the_run(), ends);
        }
    }

    #[test]
    fn sequential_copies_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        let (write, read) = sequential(folder.path(), 2, 2).unwrap();
        assert!(write > 0.0 && read > 0.0 && socket_to_file(folder.path(), 1).unwrap() > 0.0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
