//! Background processes, each with a log, each ended by its number.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// A background process.
#[derive(Debug)]
pub struct Background {
    child: Child,
    /// Where its standard error goes.
    pub log: PathBuf,
    name: String,
}

/// The running processes, for [`crate::story`], which kills them when a story hangs.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Numbers of the running processes.
pub fn running() -> Vec<u32> {
    RUNNING.lock().map(|list| list.clone()).unwrap_or_default()
}

impl Background {
    /// Starts the binary under test.
    #[track_caller]
    pub fn start(name: &str, arguments: &[String], log: PathBuf) -> Background {
        Background::start_program(&crate::binary(), name, arguments, log)
    }

    /// Starts a program.
    #[track_caller]
    pub fn start_program(program: &Path, name: &str, arguments: &[String], log: PathBuf) -> Background {
        let file = File::options().create(true).append(true).open(&log).expect("its log");
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("its log"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        if let Ok(mut list) = RUNNING.lock() {
            list.push(child.id());
        }
        Background { child, log, name: name.to_owned() }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten();
        if status.is_some() {
            self.forget();
        }
        status
    }

    /// Kills it, as a power cut would. Returns when it is gone.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        if self.wait(Duration::from_secs(10)).is_none() {
            eprintln!("{} (process {}) does not die: it hangs in the kernel", self.name, self.pid());
        }
    }

    /// Sends SIGKILL, and does not wait.
    pub fn begin_kill9(&mut self) {
        let _ = self.child.kill();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }

    /// Waits until it exits.
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if start.elapsed() > bound {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its log.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn forget(&self) {
        if let Ok(mut list) = RUNNING.lock() {
            list.retain(|pid| *pid != self.child.id());
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill9();
        }
        self.forget();
    }
}

/// What keeps a mount busy: processes with an open file or their directory there, and threads that wait for FUSE.
pub fn users_of(mount: &Path) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let links = |folder: &str| std::fs::read_dir(entry.path().join(folder)).into_iter().flatten().flatten();
        let places =
            links("fd").map(|link| link.path()).chain(["cwd", "root", "exe"].map(|name| entry.path().join(name)));
        // Only the text of the link is read; following it could hang.
        let open = places.filter(|link| std::fs::read_link(link).is_ok_and(|place| place.starts_with(mount))).count();
        let stack =
            |thread: &std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stack")).unwrap_or_default();
        let waiting = links("task").filter(|thread| stack(thread).contains("request_wait_answer")).count();
        if open + waiting > 0 {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default().replace('\0', " ");
            found.push((pid, format!("{line}: {open} open there, {waiting} threads wait for some FUSE")));
        }
    }
    found
}

/// A status in words.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}

/// The end of a log, for a failure.
pub fn log_tail(path: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
