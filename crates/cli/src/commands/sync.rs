//! `adamant sync`: does for a mount what sync(1) cannot, because Linux does not pass sync on to FUSE file systems.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use fuse::ioctl;

/// Make all changes durable that were made through a mount
///
/// Example: adamant sync /mnt
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directories or files, each on a mount
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    for path in &arguments.paths {
        let name = path.display();
        ioctl::sync(path)
            .map_err(|error| match error.raw_os_error() {
                Some(25) => anyhow::anyhow!("'{name}' is not on an Adamant mount; use sync -f"),
                _ => anyhow::Error::new(error),
            })
            .with_context(|| format!("cannot make durable what was done through the mount of '{name}'"))?;
    }
    Ok(ExitCode::SUCCESS)
}
