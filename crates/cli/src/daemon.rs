//! Processes in the background, which report to their parent when they are ready.
//!
//! A background process is this binary again with a hidden flag. It leaves its parent's session and writes its log to a
//! file. On its standard output it prints `ready` or one line with the error; then the parent continues or fails. Before
//! that it may print what it waits for, in lines that start with [`WAITS`]. If the parent ends in the meantime, for example
//! by Ctrl-C, the background process notices that its output has no reader ([`parent_is_gone`]) and ends too.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::sync::Notify;

/// Starts this binary with `arguments` in the background and waits until it is ready. Returns its process id. While it
/// waits, prints what it waits for, with `if_ended`: what is left running if the user gives up, if anything.
///
/// # Errors
/// The error that the process reported, or that it died.
pub(crate) fn start(arguments: &[String], log_path: &Path, if_ended: &str) -> anyhow::Result<u32> {
    if let Some(folder) = log_path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create '{}'", folder.display()))?;
    }
    let log_file =
        host::log::open(log_path).with_context(|| format!("cannot write the log '{}'", log_path.display()))?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program)
        .arg0_adamant()
        .args(arguments)
        .arg("--background")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .context("cannot start a process")?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        loop {
            line.clear();
            output.read_line(&mut line).context("a background process broke off")?;
            match line.strip_prefix(WAITS) {
                Some(what) => eprintln!("waiting: {}; Ctrl-C gives up{if_ended}", what.trim_end()),
                None => break,
            }
        }
    }
    match line.trim_end() {
        "ready" => Ok(child.id()),
        "" => {
            let status = child.wait().context("a background process broke off")?;
            bail!("a background process ended at once ({status}); see '{}'", log_path.display())
        }
        message => {
            let _ = child.wait();
            bail!("{message}")
        }
    }
}

trait Arg0 {
    fn arg0_adamant(&mut self) -> &mut Self;
}

impl Arg0 for Command {
    /// The binary may have been called by another name.
    fn arg0_adamant(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::arg0(self, "adamant")
    }
}

/// In a background process: leaves the parent's session and working directory.
pub(crate) fn detach() {
    // This fails only for a process that leads a group already, which is just as good.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    host::log::bound();
}

/// The prefix of a line that says what a background process waits for.
const WAITS: &str = "waits ";

/// In a background process: reports the result to the parent, once, and closes the pipe. Returns whether the parent could
/// read it.
pub(crate) fn tell_parent(message: &str) -> bool {
    let heard = say_to_parent(message);
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    heard
}

/// In a background process, before [`tell_parent`]: reports to the parent what the process waits for.
pub(crate) fn tell_parent_waits(on: &[String]) {
    say_to_parent(&format!("{WAITS}{}", on.join("; ")));
}

fn say_to_parent(message: &str) -> bool {
    let line = message.replace('\n', " ");
    let mut output = std::io::stdout();
    writeln!(output, "{line}").and_then(|()| output.flush()).is_ok()
}

/// In a background process, before [`tell_parent`]: whether the parent has ended.
pub(crate) fn parent_is_gone() -> bool {
    let output = std::io::stdout();
    let mut watched = [PollFd::new(&output, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut watched, Some(&at_once)).is_ok()
        && watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Notifies systemd, if it started this process with `Type=notify`.
pub(crate) fn tell_systemd(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell systemd: {error}");
    }
}

/// The path of a background process's log.
pub(crate) fn log_path(name: &str) -> std::path::PathBuf {
    host::admin::directory().join(format!("{name}.log"))
}

/// The number of kept logs of mounts that have ended.
pub(crate) const ENDED_LOGS_MAX: usize = 32;

/// Removes the oldest logs of ended mounts from a folder, and keeps the newest `keep`. A log that a process still writes
/// stays, whatever its age.
///
/// # Errors
/// An error of the system; in doubt, logs stay.
pub(crate) fn remove_old_logs(folder: &Path, keep: usize) -> std::io::Result<()> {
    let is_ours = |name: &str| name.starts_with("mount-") && name.ends_with(".log");
    let mut ended = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if is_ours(&entry.file_name().to_string_lossy()) {
            ended.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    if ended.len() <= keep {
        return Ok(());
    }
    // This runs after the list was made, so a log of a process that started since is not in the list.
    let written = logs_of_processes()?;
    ended.retain(|(_, path)| !written.contains(path));
    ended.sort();
    let surplus = ended.len().saturating_sub(keep);
    for (_, path) in ended.into_iter().take(surplus) {
        std::fs::remove_file(&path)?;
        let _ = std::fs::remove_file(host::log::old_name(&path));
    }
    Ok(())
}

/// The files behind standard error, for each process that we may inspect.
fn logs_of_processes() -> std::io::Result<BTreeSet<PathBuf>> {
    let mut logs = BTreeSet::new();
    for process in std::fs::read_dir("/proc")? {
        // A process that has ended in the meantime has none.
        if let Ok(log) = std::fs::read_link(process?.path().join("fd/2")) {
            logs.insert(log);
        }
    }
    Ok(logs)
}

/// The signals of a daemon. From [`Signals::catch`] on, none of them kills it: SIGINT and SIGTERM end it in order, SIGHUP
/// reopens its log, SIGUSR1 and SIGUSR2 are ignored.
pub(crate) struct Signals {
    runtime: tokio::runtime::Runtime,
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    /// Whether SIGHUP ends the process, as SIGTERM does.
    ends_on_hang_up: bool,
    _ignored: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    /// # Errors
    /// Signals cannot be watched.
    pub(crate) fn catch() -> anyhow::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let hang_up = signal(SignalKind::hangup())?;
        let _ignored = [signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?];
        drop(inside);
        Ok(Signals { runtime, interrupt, terminate, hang_up, ends_on_hang_up: false, _ignored })
    }

    /// The same, but SIGHUP, which is the end of the terminal, ends the process unless it was ignored at the start
    /// (`nohup`).
    ///
    /// # Errors
    /// Signals cannot be watched.
    pub(crate) fn catch_with_hangup() -> anyhow::Result<Signals> {
        let ignored = is_hangup_ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        Ok(Signals { ends_on_hang_up: !ignored, ..Self::catch()? })
    }

    /// Waits for a signal that arrived since [`Signals::catch`], or until `ended` is true. Returns whether a signal
    /// arrived.
    pub(crate) fn wait(&mut self, ended: impl FnMut() -> bool) -> bool {
        self.wait_woken(&Notify::new(), ended)
    }

    /// The same. Calls `ended` at once after a notification of `woken`, and now and then otherwise.
    pub(crate) fn wait_woken(&mut self, woken: &Notify, mut ended: impl FnMut() -> bool) -> bool {
        self.runtime.block_on(async {
            let mut glance = tokio::time::interval(std::time::Duration::from_millis(50));
            loop {
                tokio::select! {
                    _ = self.interrupt.recv() => return true,
                    _ = self.terminate.recv() => return true,
                    _ = self.hang_up.recv() => match self.ends_on_hang_up {
                        true => return true,
                        false => reopen_log(),
                    },
                    () = woken.notified() => if ended() { return false },
                    _ = glance.tick() => if ended() { return false },
                }
            }
        })
    }

    /// After a first signal: waits until `ended` is true, or for another signal that is no echo of the first. Returns
    /// whether one arrived.
    pub(crate) fn wait_again(&mut self, mut ended: impl FnMut() -> bool) -> bool {
        let start = std::time::Instant::now();
        loop {
            let signalled = self.wait(&mut ended);
            if !signalled || start.elapsed() > SAME_REQUEST {
                return signalled;
            }
        }
    }
}

/// Whether `/proc/PID/status` says that SIGHUP is ignored.
fn is_hangup_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

fn reopen_log() {
    match host::log::reopen() {
        Ok(()) => tracing::info!("SIGHUP: the log goes on here"),
        Err(error) => tracing::warn!("SIGHUP: the log cannot be opened anew, and goes on where it was: {error}"),
    }
}

/// Signals this close together are one request: `timeout` and shells signal the process and then its whole group.
const SAME_REQUEST: std::time::Duration = std::time::Duration::from_millis(200);

/// Makes a tool stop on SIGINT and SIGTERM after the current operation, so that it still prints its figures. With
/// `at_once`, a second signal ends it at once.
///
/// # Errors
/// Signals cannot be watched.
pub(crate) fn end_tools_on_signal(at_once: bool) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let watch = async move {
        let mut first: Option<std::time::Instant> = None;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            bench::stop::request();
            let first = first.get_or_insert_with(std::time::Instant::now);
            if at_once && first.elapsed() > SAME_REQUEST {
                std::process::exit(1);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(watch))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_ended_mounts_do_not_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let made = |name: &str, age: u64| {
            let file = File::create(path(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
            file
        };
        for number in 0..6 {
            made(&format!("mount-{number}.log"), 100 - number);
        }
        made("mount-0.log.old", 200);
        made("server.log", 300);
        let mut writer = Command::new("sleep").arg("60").stderr(made("mount-alive.log", 400)).spawn().unwrap();
        remove_old_logs(folder.path(), 4).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        writer.kill().unwrap();
        writer.wait().unwrap();
        let kept = ["mount-2.log", "mount-3.log", "mount-4.log", "mount-5.log", "mount-alive.log", "server.log"];
        assert_eq!(names, kept);
    }
}
