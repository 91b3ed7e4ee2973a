//! The log of the process: lines on standard error. The level and the file can be changed while the process runs.
//!
//! Standard error may be a file, and always is for a background process. Then [`reopen`] (on SIGHUP) opens the file of that
//! name again, as log rotation expects. All of standard error then goes to the new file, including what Rust or a library
//! prints in a crash. A log that no other program rotates is bounded ([`bound`]): when full, it is renamed to `NAME.old`
//! and replaces the previous one.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use proto::Errno;
use proto::params::OfLog;
use stdx::wildcard;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::admin::Response;

/// The parameter for the log level.
const PARAM: &str = OfLog::LogLevel.declared().leaf;
/// The default level.
const DEFAULT: &str = "info";
/// The longest value of the parameter.
const LEVEL_MAX: usize = 256;
/// The most bytes in a bounded log, and in its predecessor.
pub const FILE_MAX: u64 = 16 << 20;

static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
static OUTPUT: Mutex<Output> = Mutex::new(Output { file: None, bounded: None, written: 0 });

/// The destination of log lines.
struct Output {
    /// The file behind standard error, if it is a file.
    file: Option<PathBuf>,
    /// The most bytes in it.
    bounded: Option<u64>,
    written: u64,
}

/// Starts logging to standard error, with the level from `RUST_LOG`.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| DEFAULT.into());
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(|| Line).with_ansi(io::stderr().is_terminal()).with_target(false);
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = LEVEL.set(handle);
        std::panic::set_hook(Box::new(failed));
    }
    let mut output = OUTPUT.lock();
    if let Some((path, size)) = file_behind_stderr() {
        output.file = Some(path);
        output.written = size;
    }
}

/// The panic hook: logs where an assertion failed.
fn failed(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let what = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!("an assertion failed at {place}, in thread '{}': {what}", thread.name().unwrap_or("?"));
}

/// Bounds the log, for a log file that belongs to this process alone and that no other program rotates.
pub fn bound() {
    OUTPUT.lock().bounded = Some(FILE_MAX);
}

/// Opens the log file again by its name. Does nothing if standard error is not a file, or the file had no name at the
/// start.
///
/// # Errors
/// The file cannot be opened; lines continue to go to the old one.
pub fn reopen() -> io::Result<()> {
    OUTPUT.lock().reopen()
}

impl Output {
    fn reopen(&mut self) -> io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let file = open(path)?;
        rustix::stdio::dup2_stderr(&file)?;
        self.written = file.metadata()?.len();
        Ok(())
    }

    fn write(&mut self, line: &[u8]) {
        if let (Some(most), Some(path)) = (self.bounded, self.file.clone())
            && self.written.saturating_add(line.len() as u64) > most
        {
            // If it cannot be renamed, writing continues: a log without a limit is better than none.
            let moved = std::fs::rename(&path, old_name(&path)).and_then(|()| self.reopen());
            if moved.is_err() {
                self.written = 0;
            }
        }
        // Ignore errors: a closed terminal or a full disk is no reason to stop serving.
        let _ = io::stderr().write_all(line);
        self.written = self.written.saturating_add(line.len() as u64);
    }
}

/// Opens a log file for appending, readable by its user only.
///
/// # Errors
/// Those of the system.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The name of the previous log file.
pub fn old_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

/// The path and the size of the file behind standard error.
fn file_behind_stderr() -> Option<(PathBuf, u64)> {
    let path = std::fs::read_link("/proc/self/fd/2").ok()?;
    let (open, named) = (std::fs::metadata("/proc/self/fd/2").ok()?, std::fs::metadata(&path).ok()?);
    let is_it = open.is_file() && (open.dev(), open.ino()) == (named.dev(), named.ino());
    is_it.then_some((path, open.len()))
}

/// One line of the log.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        OUTPUT.lock().write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log level parameter with its value, if a pattern matches it.
pub fn get(pattern: &str) -> Option<(String, String)> {
    let level = LEVEL.get()?.with_current(ToString::to_string).ok()?;
    wildcard::matches(pattern, PARAM).then(|| (PARAM.to_owned(), level))
}

/// Sets the log level; `None` if `name` is another parameter.
pub fn set(name: &str, value: &str) -> Option<Response> {
    let handle = LEVEL.get().filter(|_| name == PARAM)?;
    let wanted = value.trim();
    let filter = match EnvFilter::try_new(wanted) {
        Ok(filter) if wanted.len() <= LEVEL_MAX && !wanted.is_empty() => filter,
        _ => {
            let line =
                format!("'{value}' is no log level; expected error, warn, info, debug, or as in info,host=debug");
            return Some(Response::Failed(Errno::EINVAL.raw(), line));
        }
    };
    match handle.reload(filter) {
        Ok(()) => Some(Response::Params(vec![(PARAM.to_owned(), wanted.to_owned())])),
        Err(error) => Some(Response::Failed(Errno::EIO.raw(), error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable that is set in the process that the test starts.
    const OWN: &str = "ADAMANT_TEST_LOG";

    /// A single test in a process of its own, because a process has only one log, in which other tests would log, too.
    #[test]
    fn the_log_can_be_changed_while_the_process_runs() {
        if std::env::var_os(OWN).is_none() {
            let test = "log::tests::the_log_can_be_changed_while_the_process_runs";
            let mut own = std::process::Command::new(std::env::current_exe().unwrap());
            let output = own.args(["--exact", test, "--nocapture"]).env(OWN, "1").output().unwrap();
            let text = |of: &[u8]| String::from_utf8_lossy(of).into_owned();
            assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
            assert!(text(&output.stdout).contains("1 passed"), "the test has another name");
            return;
        }
        assert!(get("log_level").is_none(), "there is none yet");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let before = rustix::io::dup(io::stderr()).unwrap();
        rustix::stdio::dup2_stderr(open(&path).unwrap()).unwrap();
        start();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        tracing::debug!("quiet");
        assert!(matches!(set("log_level", "debug"), Some(Response::Params(_))));
        assert_eq!(get("log_*"), Some(("log_level".to_owned(), "debug".to_owned())));
        tracing::debug!("loud");
        for bad in ["", "no=such=level", &"x,".repeat(200)] {
            assert!(matches!(set("log_level", bad), Some(Response::Failed(22, _))), "{bad}");
        }
        assert!(set("timeout", "1").is_none());
        // As logrotate does it.
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        tracing::info!("still there");
        reopen().unwrap();
        tracing::info!("anew");
        let moved = text(&folder.path().join("moved"));
        assert!(moved.contains("loud") && !moved.contains("quiet") && moved.contains("still there"), "{moved}");
        assert!(text(&path).contains("anew") && !moved.contains("anew"));
        // A bounded one.
        OUTPUT.lock().bounded = Some(4096);
        for number in 0..200 {
            tracing::info!("line {number} of many");
        }
        let (now, old) = (text(&path), text(&old_name(&path)));
        rustix::stdio::dup2_stderr(before).unwrap();
        assert!(now.len() <= 4096 && old.len() <= 4096 && old.len() > 3900, "{} and {}", now.len(), old.len());
        assert!(now.ends_with("line 199 of many\n"), "{now}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
