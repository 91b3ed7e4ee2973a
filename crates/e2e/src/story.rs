//! The frame of a test: its own folder, a time limit that also applies when the file system hangs, and cleanup.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

use crate::process;

/// A test's frame. Declared first, so that it is dropped last.
#[derive(Debug)]
pub struct Story {
    name: String,
    number: u32,
    folder: PathBuf,
    start: Instant,
    done: mpsc::Sender<()>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The prefix of all stories' folders, followed by the number of their process.
const PREFIX: &str = "adamant-e2e-";

impl Story {
    /// Starts a story that may take `limit`.
    pub fn begin(name: &str, limit: Duration) -> Story {
        if COUNT.load(Ordering::Relaxed) == 0 {
            sweep();
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("a folder");
        let (done, ended) = mpsc::channel();
        let (watched, place) = (name.to_owned(), folder.clone());
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                say(&format!("story '{watched}' is not over after {limit:?}: ending its processes and mounts"));
                tell_where_threads_are();
                break_off(&place);
                if ended.recv_timeout(Duration::from_secs(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
                    say(&format!("story '{watched}' hangs even so"));
                    std::process::exit(101);
                }
            }
        });
        Story { name: name.to_owned(), number, folder, start: Instant::now(), done }
    }

    /// Its folder, which is removed at the end unless the test failed.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A name for a file system, different from those of other stories.
    pub fn fsname(&self) -> String {
        format!("t{:05x}{:02x}", std::process::id() & 0xf_ffff, self.number & 0xff)
    }

    /// Prints a line that is visible even if the test passes.
    pub fn note(&self, line: &str) {
        say(&format!("{}: {line}", self.name));
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        let _ = self.done.send(());
        for mount in mounts_below(&self.folder) {
            take_away(&mount);
        }
        if std::thread::panicking() {
            say(&format!("story '{}' failed; what it left is in {}", self.name, self.folder.display()));
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
            self.note(&format!("{:.1?}", self.start.elapsed()));
        }
    }
}

/// Prints a line to the real standard error, which the test runner does not capture.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "    {line}");
}

/// Prints why a test is skipped.
pub fn skip(reason: &str) {
    say(&format!("SKIPPED: {reason}"));
}

/// If this variable is set, a test that cannot run fails instead of being skipped.
pub const STRICT: &str = "ADAMANT_E2E_STRICT";

/// Whether this process may mount. If not, prints that the test is skipped, or fails with [`STRICT`].
#[must_use]
pub fn needs_root() -> bool {
    let lack = if !rustix::process::geteuid().is_root() {
        "needs root, to mount and to act as several users"
    } else if !Path::new("/dev/fuse").exists() {
        "needs /dev/fuse"
    } else {
        return true;
    };
    assert!(std::env::var_os(STRICT).is_none(), "{lack}");
    skip(lack);
    false
}

/// Mounts of this machine: source, place, kind.
pub fn mounts() -> Vec<(String, PathBuf, String)> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (source, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
            Some((
                source.to_owned(),
                PathBuf::from(place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")),
                kind.to_owned(),
            ))
        })
        .collect()
}

/// Whether a FUSE file system is mounted there.
pub fn is_mounted(place: &Path) -> bool {
    mounts().iter().any(|(_, at, kind)| at == place && kind.starts_with("fuse"))
}

fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> =
        mounts().into_iter().map(|(_, place, _)| place).filter(|place| place.starts_with(folder)).collect();
    list.reverse();
    list
}

/// Unmounts, whatever the state of the mount: the kernel's session is aborted first, so that no process hangs in it.
pub fn take_away(place: &Path) {
    let _ = rustix::mount::unmount(place, UnmountFlags::FORCE);
    let _ = rustix::mount::unmount(place, UnmountFlags::DETACH);
}

fn break_off(folder: &Path) {
    for mount in mounts_below(folder) {
        take_away(&mount);
    }
    for pid in process::running() {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Prints where the threads of the test and of its processes wait in the kernel.
fn tell_where_threads_are() {
    for pid in process::running().into_iter().chain([std::process::id()]) {
        let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
        say(&format!("process {pid}: {}", name.chars().take(120).collect::<String>()));
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let stack: Vec<String> = read("stack")
                .lines()
                .take(6)
                .map(|line| line.split_whitespace().last().unwrap_or("").split('+').next().unwrap_or("").to_owned())
                .collect();
            const IDLE: [&str; 5] =
                ["do_epoll_wait", "futex_do_wait", "fuse_dev_do_read", "proc_pid_stack", "__skb_wait"];
            if !stack.first().is_some_and(|top| IDLE.iter().any(|idle| top.starts_with(idle))) {
                say(&format!("  {}: {}", read("comm").trim(), stack.join(" < ")));
            }
        }
    }
}

/// Removes mounts, processes and folders that killed earlier runs have left.
fn sweep() {
    let own = std::process::id();
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok()) else {
            continue;
        };
        if owner == own || Path::new(&format!("/proc/{owner}")).exists() {
            continue;
        }
        for mount in mounts_below(&entry.path()) {
            take_away(&mount);
        }
        for process in processes_that_mention(&entry.path()) {
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
        let _ = std::fs::remove_dir_all(entry.path());
    }
}

/// Processes with this folder in their command line. They belong to this test, because the folder's name has its process number.
fn processes_that_mention(folder: &Path) -> Vec<Pid> {
    let folder = format!("{}/", folder.display());
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.split('\0').next().is_some_and(|program| program.ends_with("adamant")) && line.contains(&folder)
        })
        .filter_map(Pid::from_raw)
        .collect()
}
