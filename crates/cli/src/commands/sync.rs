//! `adamant sync`: what sync(1) cannot do, since Linux does not tell FUSE file systems of it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use fuse::ioctl;

/// Make everything durable that was done through a mount
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
        let shown = path.display();
        ioctl::sync(path)
            .map_err(|error| match error.raw_os_error() {
                Some(25) => anyhow::anyhow!("'{shown}' is not on an Adamant mount; use sync -f"),
                _ => anyhow::Error::new(error),
            })
            .with_context(|| format!("cannot make durable what was done through the mount of '{shown}'"))?;
    }
    Ok(ExitCode::SUCCESS)
}
