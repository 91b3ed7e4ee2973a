//! The jobs that calling processes belong to (`jobid_var`), from `/proc`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::api::JobIds;
use fusewire::Request;
use proto::msg::JOB_MAX;

/// How long a process is taken to belong to a job that it was found to belong to.
const LASTS: Duration = Duration::from_secs(1);
/// Processes that are remembered.
const PROCESSES_MAX: usize = 4096;

/// What was found out about processes.
#[derive(Default)]
pub struct Jobs(Mutex<HashMap<u32, Known>>);

struct Known {
    job: String,
    at: Instant,
    by: Arc<JobIds>,
}

impl Jobs {
    /// The job of the calling process. What the kernel does by itself belongs to none.
    pub fn of(&self, by: &Arc<JobIds>, request: &Request<'_>) -> String {
        if request.pid == 0 {
            return String::new();
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(known) = known.get(&request.pid)
            && now.duration_since(known.at) < LASTS
            && Arc::ptr_eq(&known.by, by)
        {
            return known.job.clone();
        }
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        let job = find(by, &Process { pid: request.pid, uid: request.uid, gid: request.gid });
        known.insert(request.pid, Known { job: job.clone(), at: now, by: by.clone() });
        job
    }
}

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

    /// As it was when the program began.
    fn variable(&self, name: &str) -> Option<String> {
        let all = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let value = all.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.filter(|value| !value.is_empty()).map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

fn find(by: &JobIds, process: &Process) -> String {
    let job = match &by.var[..] {
        JobIds::DISABLED => String::new(),
        "procname_uid" => expand("%e.%u", "", process),
        "nodelocal" => expand(&by.name, "", process),
        variable => {
            let job = process.variable(variable);
            let whole = || expand(&by.name, "", process);
            match job {
                // Only a name that has it shows more than the job itself.
                Some(job) if by.name.contains("%j") => expand(&by.name, &job, process),
                Some(job) => job,
                None => whole(),
            }
        }
    };
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

    #[test]
    fn a_process_belongs_to_the_job_that_its_environment_or_its_name_says() {
        let mut child = std::process::Command::new("sleep").arg("60").env("MY_JOB", "1234.batch").spawn().unwrap();
        let sleep = Process { pid: child.id(), uid: 7, gid: 8 };
        // It has its name and its environment when it runs the program.
        while sleep.program() != "sleep" {
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
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
