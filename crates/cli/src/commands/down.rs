//! `adamant down`: stops a file system that `adamant up` started.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use host::admin::{self, Request, Response};

use crate::commands::{mount, status, up};
use crate::output::say;

/// Unmount and stop the file system of a directory
///
/// Example: adamant down --dir ./adamant-data
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory of its targets
    #[arg(long, default_value = "./adamant-data")]
    pub dir: PathBuf,
}

/// How long processes may take to end: a mount whose servers are away tries for a minute to write back.
const PATIENCE: Duration = Duration::from_secs(75);
/// After this long, a message says what is waited for.
const QUIET: Duration = Duration::from_secs(3);

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let home = up::Home::new(&arguments.dir)?;
    let (servers, mounts) = home.processes();
    let dead = home.dead_mounts(&mounts);
    if servers.is_empty() && mounts.is_empty() && dead.is_empty() {
        say!("nothing runs for {}", home.dir().display());
        return Ok(ExitCode::SUCCESS);
    }
    for mount in dead {
        let place = mount.place.display().to_string();
        mount::take_away(&mount.place, true).with_context(|| format!("cannot unmount {place}"))?;
        say!("unmounted {place}, whose process had died");
    }
    for mount in &mounts {
        stop(mount)?;
        say!("unmounted {}", mount.description.places.join(", "));
    }
    for server in &servers {
        stop(server)?;
        say!("stopped   {}", server.names().join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(process: &status::Process) -> anyhow::Result<()> {
    // The process may be gone before its answer is out, so no answer means success.
    if let Ok(Response::Failed(_, message)) = admin::ask(&process.socket, &Request::Shutdown) {
        bail!(message);
    }
    let (start, mut reported) = (Instant::now(), false);
    while std::path::Path::new(&format!("/proc/{}", process.description.pid)).exists() {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.description.pid)).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')) {
            break;
        }
        if start.elapsed() > QUIET && !reported {
            reported = true;
            let (names, places) = (process.names().join(", "), process.description.places.join(", "));
            eprintln!("waiting: {names} at {places} is writing back or committing; it gives up after a minute");
        }
        if start.elapsed() > PATIENCE {
            bail!("process {} does not end; look at its log", process.description.pid);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
