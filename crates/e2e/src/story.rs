//! The frame of a test: a folder of its own, a time limit that also holds when the file system hangs, tidying up.

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

/// Folders of all stories begin like this, with the number of their process behind it.
const PREFIX: &str = "adamant-e2e-";

impl Story {
    /// Begins a story that may take `limit`.
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

    /// Its folder; gone afterwards, kept if it failed.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A name for a file system, different from those of other stories.
    pub fn fsname(&self) -> String {
        format!("t{:05x}{:02x}", std::process::id() & 0xf_ffff, self.number & 0xff)
    }

    /// A line that is seen although the test passes.
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

/// A line on the real standard error, which the test runner does not swallow.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "    {line}");
}

/// Says why a test does not run.
pub fn skip(reason: &str) {
    say(&format!("SKIPPED: {reason}"));
}

/// Set for a run in which a test that cannot run is one that fails: its result stands in a table, or a whole step would say nothing.
pub const STRICT: &str = "ADAMANT_E2E_STRICT";

/// Whether this process may mount; says so if not, and fails where that was asked for ([`STRICT`]).
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

/// Whether something of FUSE is mounted there.
pub fn is_mounted(place: &Path) -> bool {
    mounts().iter().any(|(_, at, kind)| at == place && kind.starts_with("fuse"))
}

fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> =
        mounts().into_iter().map(|(_, place, _)| place).filter(|place| place.starts_with(folder)).collect();
    list.reverse();
    list
}

/// Takes a mount away whatever state it is in: the kernel's session is aborted first, so that nobody waits in it.
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

/// Where the threads of the test and of its processes wait in the kernel.
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

/// What earlier runs left behind because they were killed themselves: their mounts, their processes, their folders.
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

/// Processes with this very folder in their command line: nobody else's, for the folder bears a test's number.
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
