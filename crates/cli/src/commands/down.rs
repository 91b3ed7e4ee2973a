//! `adamant down`: stops what `adamant up` started.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use host::admin::{self, Request, Response};

use crate::commands::status;
use crate::output::say;

/// Unmount and stop the file system of a directory
///
/// Example: adamant down --dir ./adamant-data
#[derive(Args)]
pub struct Arguments {
    /// Where its targets live
    #[arg(long, default_value = "./adamant-data")]
    pub dir: PathBuf,
}

/// How long processes may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let dir = std::path::absolute(&arguments.dir)?;
    let processes = status::processes();
    let servers: Vec<_> = processes.iter().filter(|p| p.role == "server" && p.serves(&dir)).collect();
    if servers.is_empty() {
        say!("nothing runs for {}", dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let fsnames: Vec<String> = servers.iter().flat_map(|server| server.fsnames()).collect();
    let nids: Vec<String> =
        servers.iter().flat_map(|server| server.description.devices.iter().map(|d| d.place.clone())).collect();
    for mount in processes.iter().filter(|p| p.role == "mount" && fsnames.contains(&p.description.fsname)) {
        // Another file system of the same name is not ours.
        if !mount.is_mounted_from(&nids) {
            continue;
        }
        stop(mount)?;
        say!("unmounted {}", mount.description.places.join(", "));
    }
    for server in servers {
        stop(server)?;
        say!("stopped   {}", server.names().join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(process: &status::Process) -> anyhow::Result<()> {
    // The process may be gone before its answer is out: no answer is as good as one.
    if let Ok(Response::Failed(_, message)) = admin::ask(&process.socket, &Request::Shutdown) {
        bail!(message);
    }
    let start = Instant::now();
    while std::path::Path::new(&format!("/proc/{}", process.description.pid)).exists() {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.description.pid)).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')) {
            break;
        }
        if start.elapsed() > PATIENCE {
            bail!("process {} does not end; look at its log", process.description.pid);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
