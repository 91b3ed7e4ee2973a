//! The jobs that calling processes belong to (`jobid_var`), from `/proc`.
//!
//! Reading the environment of a process blocks while it runs execve(2) or holds the lock of its memory map, and both may in turn
//! wait for an answer of this mount (a file that execve closes, a page of a mapping). So a separate thread reads environments, and calls
//! wait for it only briefly: a process whose environment is not known in time is named by `jobid_name` for the moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use client::api::JobIds;
use fusewire::Request;
use parking_lot::{Condvar, Mutex};
use proto::msg::JOB_MAX;

/// How long the job of a process stays cached.
const LASTS: Duration = Duration::from_secs(2);
/// The most processes in the cache.
const PROCESSES_MAX: usize = 4096;
/// How long a call waits for the environment of its process.
const PATIENCE: Duration = Duration::from_millis(10);
/// The most processes whose environments wait to be read.
const WAITING_MAX: usize = 64;

/// The cached jobs of processes.
pub(crate) struct Jobs {
    shared: Arc<Shared>,
    /// Sends to the thread that reads environments, once it runs.
    reader: Mutex<Option<SyncSender<Asked>>>,
}

/// A process whose environment must be read, and how jobs are named.
type Asked = (Process, Arc<JobIds>);

#[derive(Default)]
struct Shared {
    known: Mutex<HashMap<u32, Known>>,
    /// An environment was read.
    found: Condvar,
}

struct Known {
    job: String,
    at: Instant,
    by: Arc<JobIds>,
    /// The name is provisional until the environment has been read.
    provisional: bool,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { shared: Arc::default(), reader: Mutex::new(None) }
    }
}

impl Jobs {
    /// The job of the calling process. The kernel's own operations belong to none.
    pub(crate) fn of(&self, by: &Arc<JobIds>, request: &Request<'_>) -> String {
        match request.pid {
            0 => String::new(),
            pid => self.of_process(by, Process { pid, uid: request.uid, gid: request.gid }),
        }
    }

    fn of_process(&self, by: &Arc<JobIds>, process: Process) -> String {
        let now = Instant::now();
        if let Some(known) = self.shared.known.lock().get(&process.pid)
            && now.duration_since(known.at) < LASTS
            && Arc::ptr_eq(&known.by, by)
        {
            return known.job.clone();
        }
        let job = without_environment(by, &process);
        let provisional = reads_environment(by);
        let mut known = self.shared.known.lock();
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        known.insert(process.pid, Known { job: job.clone(), at: now, by: by.clone(), provisional });
        // The thread's result replaces this one.
        if !provisional || !self.ask(process, by) {
            return job;
        }
        let until = now + PATIENCE;
        loop {
            let found = known.get(&process.pid).map(|found| (found.provisional, found.job.clone()));
            match found {
                Some((false, job)) => return job,
                Some(_) if !self.shared.found.wait_until(&mut known, until).timed_out() => {}
                _ => return job,
            }
        }
    }

    /// Queues the process for the reading thread. False if too many are waiting.
    fn ask(&self, process: Process, by: &Arc<JobIds>) -> bool {
        let mut reader = self.reader.lock();
        if reader.is_none() {
            let (asks, asked) = sync_channel(WAITING_MAX);
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("jobs".to_owned()).spawn(move || read(&shared, &asked));
            *reader = spawned.is_ok().then_some(asks);
        }
        reader.as_ref().is_some_and(|reader| reader.try_send((process, by.clone())).is_ok())
    }
}

/// Reads environments until the channel is closed.
fn read(shared: &Shared, asked: &Receiver<Asked>) {
    while let Ok((process, by)) = asked.recv() {
        let job = find(&by, &process);
        shared.known.lock().insert(process.pid, Known { job, at: Instant::now(), by, provisional: false });
        shared.found.notify_all();
    }
}

#[derive(Clone, Copy)]
struct Process {
    pid: u32,
    uid: u32,
    gid: u32,
}

impl Process {
    fn program(&self) -> String {
        let name = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&name).trim_end().to_owned()
    }

    /// A variable of the environment with which the program started.
    fn variable(&self, name: &str) -> Option<String> {
        let all = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let value = all.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.filter(|value| !value.is_empty()).map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

fn reads_environment(by: &JobIds) -> bool {
    !matches!(&by.var[..], JobIds::DISABLED | "procname_uid" | "nodelocal")
}

/// Like [`find`], for a process without the variable.
fn without_environment(by: &JobIds, process: &Process) -> String {
    cut(match &by.var[..] {
        JobIds::DISABLED => String::new(),
        "procname_uid" => expand("%e.%u", "", process),
        _ => expand(&by.name, "", process),
    })
}

fn find(by: &JobIds, process: &Process) -> String {
    let variable = reads_environment(by).then(|| process.variable(&by.var)).flatten();
    match variable {
        None => without_environment(by, process),
        // Only a name with `%j` shows more than the job itself.
        Some(job) if by.name.contains("%j") => cut(expand(&by.name, &job, process)),
        Some(job) => cut(job),
    }
}

fn cut(job: String) -> String {
    let end = (0..=job.len().min(JOB_MAX)).rev().find(|at| job.is_char_boundary(*at)).unwrap_or(0);
    job[..end].to_owned()
}

fn expand(name: &str, job: &str, process: &Process) -> String {
    let mut text = String::new();
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        let escape = if c == '%' { rest.next() } else { None };
        match escape {
            None => text.push(c),
            Some('%') => text.push('%'),
            Some('e') => text.push_str(&process.program()),
            Some('g') => text.push_str(&process.gid.to_string()),
            Some('h') => text.push_str(&host()),
            Some('H') => text.push_str(host().split('.').next().unwrap_or_default()),
            Some('j') => text.push_str(job),
            Some('p') => text.push_str(&process.pid.to_string()),
            Some('u') => text.push_str(&process.uid.to_string()),
            Some(other) => text.extend(['%', other]),
        }
    }
    text
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(var: &str, name: &str) -> JobIds {
        JobIds { var: var.to_owned(), name: name.to_owned() }
    }

    /// A process whose environment cannot be read now delays neither its own call nor those after it.
    #[test]
    fn an_environment_that_takes_long_keeps_nobody_waiting() {
        let jobs = Jobs::default();
        let (asks, asked) = sync_channel(WAITING_MAX);
        *jobs.reader.lock() = Some(asks);
        let by = Arc::new(ids("MY_JOB", "%p"));
        let start = Instant::now();
        for pid in 1..=2 * WAITING_MAX as u32 {
            assert_eq!(jobs.of_process(&by, Process { pid, uid: 7, gid: 8 }), pid.to_string());
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        // The provisional name stays cached; the result of a later read replaces it.
        let (first, _) = asked.recv().unwrap();
        assert_eq!(first.pid, 1);
        let late = Known { job: "late".to_owned(), at: Instant::now(), by: by.clone(), provisional: false };
        jobs.shared.known.lock().insert(1, late);
        assert_eq!(jobs.of_process(&by, first), "late");
    }

    #[test]
    fn a_process_belongs_to_the_job_that_its_environment_or_its_name_says() {
        let mut child = std::process::Command::new("sleep").arg("60").env("MY_JOB", "1234.batch").spawn().unwrap();
        let sleep = Process { pid: child.id(), uid: 7, gid: 8 };
        // It gets its name before its environment.
        while sleep.program() != "sleep" || sleep.variable("MY_JOB").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = child.id();
        for (var, name, job) in [
            ("disable", "%e", String::new()),
            ("procname_uid", "", "sleep.7".to_owned()),
            ("nodelocal", "a%%%e.%g:%p%x%", format!("a%sleep.8:{pid}%x%")),
            ("MY_JOB", "%e.%u", "1234.batch".to_owned()),
            ("MY_JOB", "%j/%e", "1234.batch/sleep".to_owned()),
            ("NO_SUCH", "%e.%u", "sleep.7".to_owned()),
            ("nodelocal", "0123456789012345678901234567890123456789", "0123456789012345678901234567890".to_owned()),
        ] {
            assert_eq!(find(&ids(var, name), &sleep), job, "{var} {name}");
            let (jobs, by) = (Jobs::default(), Arc::new(ids(var, name)));
            let found = || jobs.of_process(&by, sleep) == job;
            let start = Instant::now();
            // On a busy machine its environment may be read a little later.
            while !found() {
                assert!(start.elapsed() < Duration::from_secs(20), "{var} {name}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
