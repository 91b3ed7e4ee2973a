//! `adamant status`: the targets and mounts of this machine.

pub(crate) mod dead;
mod show;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use host::admin::{self, Description, Request, Response};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::audience;
use crate::output;

/// Show targets, clients, recovery and space of the targets and mounts on this machine
///
/// Example: adamant status --watch
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only the file system of this directory
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Repeat every two seconds
    #[arg(long)]
    pub watch: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// A running process of Adamant.
pub(crate) struct Process {
    /// Its admin socket.
    pub socket: PathBuf,
    /// Its description.
    pub description: Description,
    /// `server` or `mount`.
    pub role: String,
}

impl Process {
    /// Whether it has a target in `dir`, or is mounted there.
    pub(crate) fn serves(&self, dir: &Path) -> bool {
        let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
        self.description.places.iter().any(|place| {
            let place = std::fs::canonicalize(place).unwrap_or_else(|_| PathBuf::from(place));
            place.starts_with(&dir) || place == dir
        })
    }

    /// Whether a mount is, or is to be, at `place`.
    pub(crate) fn is_at(&self, place: &Path) -> bool {
        self.description.places.iter().any(|own| Path::new(own) == place)
    }

    /// Names of its devices.
    pub(crate) fn names(&self) -> Vec<String> {
        self.description.devices.iter().map(|device| device.name.clone()).collect()
    }

    /// Names of the file systems whose targets it serves.
    pub(crate) fn fsnames(&self) -> Vec<String> {
        let names = self.names();
        let mut names: Vec<String> =
            names.iter().filter_map(|name| name.rsplit_once('-')).map(|(fsname, _)| fsname.to_owned()).collect();
        names.dedup();
        names
    }

    /// The targets that a mount knows, and the state of its connection to each; `FULL` means that requests can be sent.
    pub(crate) fn connections(&self) -> Vec<(String, String)> {
        let row = |text: &str, key: &str| {
            text.lines().find_map(|line| line.trim().strip_prefix(key).map(|value| value.trim().to_owned()))
        };
        let imports = self.params("*.*.import");
        imports.iter().filter_map(|(_, text)| Some((row(text, "target:")?, row(text, "state:")?))).collect()
    }

    /// Whether a mount uses one of these addresses for its MGS.
    pub(crate) fn is_mounted_from(&self, nids: &[String]) -> bool {
        let imports = self.params("mgc.*.import");
        let addresses = imports.iter().flat_map(|(_, text)| mgs_addresses(text));
        addresses.into_iter().any(|address| nids.iter().any(|nid| nid == address))
    }

    /// Whether it is available to programs. A mount that was unmounted may still write back their data.
    pub(crate) fn is_up(&self) -> bool {
        self.description.devices.iter().all(|device| device.state == "UP")
    }

    /// Its parameters that match a pattern.
    pub(crate) fn params(&self, pattern: &str) -> Vec<(String, String)> {
        let request = Request::GetParam { pattern: pattern.to_owned() };
        match admin::ask_within(&self.socket, &request, audience::PATIENCE) {
            Ok(Response::Params(params)) => params,
            _ => Vec::new(),
        }
    }
}

/// The addresses in the text of an import.
fn mgs_addresses(import: &str) -> Vec<&str> {
    let list = import.lines().find_map(|line| line.trim().strip_prefix("failover_nids: ["));
    list.map_or(Vec::new(), |list| list.trim_end_matches(']').split(',').map(str::trim).collect())
}

/// The description that a process gave; a process that hangs is left out, with a warning.
fn described(socket: PathBuf, answer: io::Result<Response>) -> Option<Process> {
    match answer {
        Ok(Response::Description(description)) => Some(Process { socket, role: description.role.clone(), description }),
        Err(error) if audience::hangs(&error) => {
            audience::warn(&socket, audience::PATIENCE);
            None
        }
        _ => None,
    }
}

/// How long a server that was just started may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// All running processes, in the order of their sockets; those that hang are left out, with a warning.
pub(crate) fn processes() -> Vec<Process> {
    let answers = admin::ask_all(&admin::sockets(), &Request::Describe, audience::PATIENCE);
    let mut all: Vec<Process> = answers.filter_map(|(socket, answer)| described(socket, answer)).collect();
    all.sort_by(|a, b| a.socket.cmp(&b.socket));
    all
}

/// A child of this process, once it describes itself; `None` if it has ended, or does not answer for long.
pub(crate) fn child(pid: u32) -> Option<Process> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = processes().into_iter().find(|process| process.description.pid == pid);
        if found.is_some() || !is_running(pid) || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a child of this process has not ended.
fn is_running(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)))
}

/// The newest process that `is_meant`, and among mounts first those that are up: if a file system was unmounted and mounted
/// again, the process of the old mount may still write back. Does not wait for a process that would not be chosen.
pub(crate) fn newest(is_meant: impl Fn(&Process) -> bool) -> Option<Process> {
    let sockets = admin::sockets();
    // A socket is as old as its process.
    let made = |socket: &PathBuf| std::fs::metadata(socket).and_then(|file| file.modified());
    let mut silent: BTreeMap<PathBuf, SystemTime> =
        sockets.iter().map(|socket| (socket.clone(), made(socket).unwrap_or(SystemTime::UNIX_EPOCH))).collect();
    let mut best: Option<(bool, SystemTime, Process)> = None;
    for (socket, answer) in admin::ask_all(&sockets, &Request::Describe, audience::PATIENCE) {
        let since = silent.remove(&socket).unwrap_or(SystemTime::UNIX_EPOCH);
        if let Some(process) = described(socket, answer).filter(&is_meant) {
            let up = process.is_up();
            if best.as_ref().is_none_or(|(known_up, known, _)| (up, since) > (*known_up, *known)) {
                best = Some((up, since, process));
            }
        }
        // A target is served by one process only.
        let sure = |(up, since, process): &(bool, SystemTime, Process)| {
            process.role == "server" || *up && silent.values().all(|other| other < since)
        };
        if best.as_ref().is_some_and(sure) {
            break;
        }
    }
    best.map(|(.., process)| process)
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut pace = show::Pace::default();
    loop {
        let found = show::print(&arguments, &mut pace)?;
        if !arguments.watch || output::is_unread() {
            return Ok(if found { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
        std::thread::sleep(Duration::from_secs(2));
        output::print(format_args!("\x1b[2J\x1b[H"));
    }
}
