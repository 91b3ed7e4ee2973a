//! The log of a process: lines on standard error, which a background process has in a file.
//!
//! A background process keeps its file from growing without bound: one of [`SIZE_MAX`] becomes `NAME.old`, in the place of the one
//! before, and a new one is begun. On SIGHUP it opens its file anew, so that `logrotate` can move it away. SIGUSR1 changes between
//! the level that `RUST_LOG` chose and `debug`, in any process.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

/// A log is moved away when it is this long.
const SIZE_MAX: u64 = 64 << 20;

/// The file of a background process.
static FILE: OnceLock<PathBuf> = OnceLock::new();
/// To change the level.
static LEVEL: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();
/// `debug` is on.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// Log lines to standard error from now on; `RUST_LOG` chooses which.
pub fn start() {
    use std::io::IsTerminal;
    let (filter, handle) = tracing_subscriber::reload::Layer::new(chosen());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = LEVEL.set(handle);
    }
}

fn chosen() -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into())
}

/// In a background process: standard error is a file of our own.
pub fn in_file() {
    if let Ok(path) = std::fs::read_link("/proc/self/fd/2")
        && std::fs::metadata(&path).is_ok_and(|file| file.is_file())
    {
        let _ = FILE.set(path);
    }
}

/// Opens the file anew: somebody has moved it.
pub fn reopen() {
    let Some(path) = FILE.get() else { return };
    match open(path) {
        Ok(file) => {
            let _ = rustix::stdio::dup2_stderr(&file);
            tracing::info!("the log was opened anew");
        }
        Err(error) => {
            tracing::error!("cannot open the log '{}' anew, so it goes on where it was: {error}", path.display())
        }
    }
}

/// Begins a new file if there is enough in this one.
pub fn bound() {
    bound_to(SIZE_MAX);
}

fn bound_to(size_max: u64) {
    let Some(path) = FILE.get() else { return };
    // Somebody else's file may be at its place by now.
    let ours = rustix::fs::fstat(rustix::stdio::stderr()).ok();
    let there = std::fs::metadata(path).ok();
    if let (Some(ours), Some(there)) = (ours, there)
        && (ours.st_dev, ours.st_ino) == (there.dev(), there.ino())
        && there.size() > size_max
        && std::fs::rename(path, old(path)).is_ok()
    {
        reopen();
    }
}

/// Where a log goes that is long enough.
fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

/// A log to append to, for its user alone.
///
/// # Errors
/// Those of the system.
pub fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Debug lines on, or off again.
pub fn toggle_debug() {
    let Some(level) = LEVEL.get() else { return };
    let on = !DEBUG.fetch_xor(true, Ordering::Relaxed);
    let changed = level.reload(if on { EnvFilter::new("debug") } else { chosen() });
    match changed {
        Ok(()) => tracing::info!("debug lines are {}", if on { "on" } else { "off" }),
        Err(error) => tracing::warn!("the log's level stays: {error}"),
    }
}
