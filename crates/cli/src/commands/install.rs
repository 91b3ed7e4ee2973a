//! Links for the other names, shell completions, man pages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::output::say;

/// Make links for the other names of this binary
///
/// Example: adamant install-links /usr/local/bin
#[derive(Args)]
pub struct Links {
    /// Where
    pub dir: PathBuf,
}

/// Print completions for a shell
///
/// Example: adamant completions bash > /etc/bash_completion.d/adamant
#[derive(Args)]
pub struct Completions {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// Write man pages
///
/// Example: adamant man /usr/local/share/man/man1
#[derive(Args)]
pub struct Man {
    /// Where
    pub dir: PathBuf,
}

/// Names that the binary answers to.
const NAMES: [&str; 10] = [
    "lfs",
    "lctl",
    "lr_reader",
    "mkfs.adamant",
    "mount.adamant",
    "mds-survey",
    "mdtest",
    "createmany",
    "unlinkmany",
    "statmany",
];

/// Makes the links.
pub fn links(arguments: Links) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    for name in NAMES {
        let link = arguments.dir.join(name);
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace '{}'", link.display()));
            }
            _ => {}
        }
        std::os::unix::fs::symlink(&program, &link).with_context(|| format!("cannot make '{}'", link.display()))?;
        say!("{} -> {}", link.display(), program.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints completions.
pub fn completions(arguments: Completions, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    clap_complete::generate(arguments.shell, &mut command, "adamant", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}

/// Writes man pages.
pub fn man(arguments: Man, command: clap::Command) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&arguments.dir)?;
    clap_mangen::generate_to(command, &arguments.dir).context("cannot write man pages")?;
    Ok(ExitCode::SUCCESS)
}
