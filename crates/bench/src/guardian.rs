//! A process that cleans up after a run that could not do so itself, because it was killed or stopped at once by a second
//! signal.
//!
//! The run reports each process, directory and embedded file system that it starts over a pipe. The pipe closes when the
//! run ends, in whatever way. The guardian then takes down what is left in reverse order, so mounts before their servers,
//! and removes the directories. After a run that has cleaned up, nothing is left to do. Without [`Guardian::start`] (unit
//! tests), [`watch`] does nothing.
//!
//! A run can be killed between the start of a process and its report. So each process also has the number of the run in its
//! environment, by which the guardian finds those that it does not know.
//!
//! A run serves the do-nothing file system itself. If it is killed while one of its threads waits there for an answer, that
//! thread waits for ever, and so the pipe stays open: the guardian sees that the run is being killed and ends the mount.

use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::{cluster, places};

/// Something that a run leaves behind if it is killed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ward {
    /// A process.
    Process(u32),
    /// The servers and the mount that `adamant up` started for these targets.
    Up(PathBuf),
    /// A directory, with everything that is mounted in it.
    Folder(PathBuf),
}

static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

fn pipe() -> MutexGuard<'static, Option<ChildStdin>> {
    PIPE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a process may take to end in order.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the guardian checks whether the run is being killed.
const LOOK: Duration = Duration::from_millis(250);
/// A run that is still there after so many checks in which it was being killed does not end by itself.
const LOOKS_MAX: u32 = 8;

/// Reports a ward to the guardian. It is never withdrawn; the guardian skips what has ended by itself.
pub fn watch(ward: &Ward) {
    if let Some(pipe) = &mut *pipe() {
        // If the guardian was killed, the run continues without one.
        let _ = serde_json::to_string(ward).map(|line| writeln!(pipe, "{line}"));
    }
}

/// Starts a process and reports it.
///
/// # Errors
/// It cannot be started.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let child = mark(command).spawn()?;
    watch(&Ward::Process(child.id()));
    Ok(child)
}

/// The variable with the number of the run that started a process.
const RUN: &str = "ADAMANT_BENCH_RUN";

/// Lets the guardian find a process that is not reported, because the run waits for it at once.
pub fn mark(command: &mut Command) -> &mut Command {
    command.env(RUN, std::process::id().to_string())
}

/// The guardian of this process.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
}

impl Guardian {
    /// Starts the process, out of reach of the terminal's signals.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start() -> anyhow::Result<Guardian> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg0("adamant")
            .args(["bench", "guardian"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the process that cleans up after this one")?;
        *pipe() = child.stdin.take();
        Ok(Guardian { child })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        *pipe() = None;
        let _ = self.child.wait();
    }
}

/// The main function of the guardian: reads wards until the pipe closes, or process `run` hangs while it is being killed, and
/// then cleans up.
pub fn guard(input: impl BufRead + Send + 'static, run: Option<u32>) {
    let (sender, receiver) = channel();
    std::thread::spawn(move || input.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut wards = Vec::new();
    let mut looks = 0;
    while looks < LOOKS_MAX {
        let line = match receiver.recv_timeout(LOOK) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                looks = if run.is_some_and(is_being_killed) { looks + 1 } else { 0 };
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let Ok(ward) = serde_json::from_str::<Ward>(&line) else { continue };
        // A descriptor of the process, because its number may have been reused by the time of the cleanup.
        let handle = match ward {
            Ward::Process(id) => open(id),
            Ward::Up(_) | Ward::Folder(_) => None,
        };
        wards.push((ward, handle));
    }
    if let Some(run) = run
        && wards.iter().any(|(ward, _)| matches!(ward, Ward::Folder(folder) if folder.exists()))
    {
        // A process has its environment only a moment after it has closed the pipe.
        std::thread::sleep(LOOK);
        let is_known = |id| wards.iter().any(|(ward, _)| *ward == Ward::Process(id));
        started_by(run).into_iter().filter(|id| !is_known(*id)).filter_map(open).for_each(|stray| end(&stray));
    }
    for (ward, handle) in wards.iter().rev() {
        match ward {
            Ward::Process(_) => handle.iter().for_each(end),
            Ward::Up(targets) if targets.exists() => {
                let _ = places::adamant("down", &[("--dir", targets)]);
            }
            Ward::Folder(folder) if folder.exists() => remove(folder),
            Ward::Up(_) | Ward::Folder(_) => {}
        }
    }
}

/// Whether SIGKILL is pending for a thread of a process.
fn is_being_killed(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
        let bits = pending.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
        bits & (1 << (Signal::KILL.as_raw() - 1)) != 0
    })
}

/// The processes with the mark of a run.
fn started_by(run: u32) -> Vec<u32> {
    let mark = format!("{RUN}={run}");
    let has_mark = |process: &std::fs::DirEntry| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter(has_mark);
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok()).collect()
}

fn open(id: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(id).ok()?)?, PidfdFlags::empty()).ok()
}

fn end(process: &OwnedFd) {
    for signal in [Signal::TERM, Signal::KILL] {
        if pidfd_send_signal(process, signal).is_err() {
            return;
        }
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        if !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)), Ok(0)) {
            return;
        }
    }
}

/// Removes a directory, after unmounting everything in it. If a mount stays, nothing is removed. Whoever waits for the answer
/// of a file system there gets an error.
fn remove(folder: &Path) {
    for place in cluster::mounts_in(folder) {
        let _ = rustix::mount::unmount(&place, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
    cluster::remove_unless_mounted(folder);
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn what_is_left_goes_in_the_reverse_order() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("scratch");
        std::fs::create_dir(&place).unwrap();
        let mark = folder.path().join("order");
        // Each writes its number when it gets the signal to end.
        let start = |number: u8| {
            let line =
                format!("trap 'echo {number} >> {}; exit' TERM; echo; while :; do sleep 0.01; done", mark.display());
            let mut child = Command::new("sh").args(["-c", &line]).stdout(Stdio::piped()).spawn().unwrap();
            let mut ready = String::new();
            std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
            child
        };
        let mut children = [start(1), start(2)];
        let mut wards = vec![Ward::Folder(place.clone())];
        wards.extend(children.iter().map(|child| Ward::Process(child.id())));
        // A process that does not exist, and a line that is no ward.
        wards.push(Ward::Process(u32::MAX));
        let lines: Vec<String> = wards.iter().map(|ward| serde_json::to_string(ward).unwrap()).collect();
        guard(Cursor::new(format!("{}\nnothing\n", lines.join("\n"))), None);
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), "2\n1\n");
        assert!(!place.exists());
    }
}
