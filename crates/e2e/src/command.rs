//! Commands that run to completion, with a time limit.

use std::ffi::OsStr;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The default time limit of a command.
const BOUND: Duration = Duration::from_secs(120);

/// The binary under test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("ADAMANT") {
        return std::path::absolute(path).expect("ADAMANT names a path");
    }
    let own = std::env::current_exe().expect("this test has a file");
    // target/release/deps/TEST: the binary is two folders up.
    let found = own.ancestors().skip(2).map(|folder| folder.join("adamant")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no binary to test: run through `cargo xtask ci --only e2e`, or set ADAMANT to one"))
}

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub shown: String,
    /// Exit status; `None` if a signal (or the time limit) ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Outcome {
    /// Its output, after it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == Some(0), "{self}");
        self.stdout
    }

    /// Its error message, checked to be a proper CLI error: status 1 or 2, one line, no panic.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(matches!(self.code, Some(1 | 2)), "must fail with status 1 or 2: {self}");
        assert!(!self.stderr.contains("panicked"), "{self}");
        let lines = error_lines(&self.stderr);
        assert_eq!(lines.len(), 1, "the error must be one line: {self}");
        lines[0].to_owned()
    }

    /// Checks that it failed with an error message that contains all of `words`.
    #[track_caller]
    pub fn refused_with(self, words: &[&str]) {
        let line = self.refused();
        for word in words {
            assert!(line.contains(word), "'{word}' is missing in the error: {line}");
        }
    }
}

/// Lines of standard error that are errors, not log lines or warnings.
fn error_lines(stderr: &str) -> Vec<&str> {
    let is_log = |line: &str| {
        let line = line.trim_start();
        [" INFO ", " WARN ", " ERROR ", " DEBUG "].iter().any(|level| line.contains(level))
            || line.starts_with("warning: ")
            || line.contains(" serves at ")
    };
    stderr.lines().filter(|line| !line.trim().is_empty() && !is_log(line)).collect()
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status = self.code.map_or("a signal or the time limit".to_owned(), |code| format!("status {code}"));
        writeln!(f, "`{}` ended with {status} after {:.1?}", self.shown, self.took)?;
        writeln!(f, "--- its output:\n{}", tail(&self.stdout))?;
        write!(f, "--- its errors:\n{}", tail(&self.stderr))
    }
}

fn tail(text: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// A command to run.
#[derive(Debug)]
pub struct Run {
    command: Command,
    shown: String,
    bound: Duration,
}

/// A command by its name.
pub fn command(program: impl AsRef<OsStr>) -> Run {
    let shown = Path::new(program.as_ref()).file_name().unwrap_or(program.as_ref()).to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.env("LC_ALL", "C");
    Run { command, shown, bound: BOUND }
}

/// The binary under test with these arguments.
pub fn adamant<I: IntoIterator>(arguments: I) -> Run
where
    I::Item: AsRef<OsStr>,
{
    command(binary()).args(arguments)
}

/// A shell command line, for pipes.
pub fn shell(line: &str) -> Run {
    command("bash").args(["-euo", "pipefail", "-c", line])
}

impl Run {
    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Run {
        self.shown.push(' ');
        self.shown.push_str(&argument.as_ref().to_string_lossy());
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator>(self, arguments: I) -> Run
    where
        I::Item: AsRef<OsStr>,
    {
        arguments.into_iter().fold(self, Run::arg)
    }

    /// Runs in this folder.
    pub fn in_dir(mut self, folder: &Path) -> Run {
        self.command.current_dir(folder);
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    /// Runs as another user.
    pub fn by_user(mut self, uid: u32, gid: u32) -> Run {
        self.command.uid(uid).gid(gid);
        self
    }

    /// Calls the program by another name.
    pub fn called(mut self, name: &str) -> Run {
        self.command.arg0(name);
        self
    }

    /// Sets the time limit.
    pub fn within(mut self, bound: Duration) -> Run {
        self.bound = bound;
        self
    }

    /// Runs it to completion, or kills it at the time limit.
    #[track_caller]
    pub fn run(mut self) -> Outcome {
        let (mut stdout, mut stderr) = (scratch_file(), scratch_file());
        let start = Instant::now();
        self.command.stdin(Stdio::null());
        self.command
            .stdout(stdout.try_clone().expect("a descriptor"))
            .stderr(stderr.try_clone().expect("a descriptor"));
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("`{}`: {error}", self.shown));
        let mut nap = Duration::from_micros(500);
        let status = loop {
            if let Some(status) = child.try_wait().expect("its status") {
                break Some(status);
            }
            if start.elapsed() > self.bound {
                let _ = child.kill();
                // It may hang in the kernel: wait a moment, but not forever.
                std::thread::sleep(Duration::from_millis(500));
                let _ = child.try_wait();
                break None;
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(20));
        };
        let read = |file: &mut std::fs::File| {
            let mut bytes = Vec::new();
            file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("its output");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Outcome {
            code: status.and_then(|status| status.code()),
            stdout: read(&mut stdout),
            stderr: read(&mut stderr),
            took: start.elapsed(),
            shown: self.shown,
        }
    }

    /// Its output, after it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        self.run().ok()
    }
}

/// A file without a name. Unlike with a pipe, a grandchild that keeps it open does not delay the test.
fn scratch_file() -> std::fs::File {
    rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC).expect("a scratch file").into()
}
