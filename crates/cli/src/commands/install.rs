//! Links for the other names of the binary, shell completions and man pages.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use clap_mangen::roff::{Roff, bold, roman};

use crate::output::say;

/// Make links for the other names of this binary
///
/// Example: adamant install-links /usr/local/bin
#[derive(Args)]
pub(crate) struct Links {
    /// Directory for the links
    pub dir: PathBuf,
}

/// Print the completions of a shell, or write those for all names of this binary
///
/// Example: adamant completions bash --dir /usr/local/share/bash-completion/completions
#[derive(Args)]
pub(crate) struct Completions {
    /// Shell
    pub shell: clap_complete::Shell,
    /// Write a file for each name to this directory, instead of printing the completions of 'adamant'
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Write man pages for all commands and all names of this binary
///
/// Example: adamant man /usr/local/share/man/man1
#[derive(Args)]
pub(crate) struct Man {
    /// Existing directory
    pub dir: PathBuf,
}

/// The names by which the binary can be called.
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
pub(crate) fn links(arguments: Links) -> anyhow::Result<ExitCode> {
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

/// Prints or writes completions.
pub(crate) fn completions(arguments: Completions, commands: Vec<clap::Command>) -> anyhow::Result<ExitCode> {
    let Some(dir) = arguments.dir else {
        if let Some(command) = commands.first() {
            let mut text = Vec::new();
            clap_complete::generate(arguments.shell, &mut visible(command), command.get_name(), &mut text);
            crate::output::print(format_args!("{}", String::from_utf8_lossy(&text)));
        }
        return Ok(ExitCode::SUCCESS);
    };
    needs(&dir)?;
    for command in commands {
        let name = command.get_name().to_owned();
        clap_complete::generate_to(arguments.shell, &mut visible(&command), &name, &dir)
            .with_context(|| format!("cannot write the completions of '{name}' in '{}'", dir.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A command with only its visible options: hidden ones are for our own processes and for mount(8).
fn visible(command: &clap::Command) -> clap::Command {
    let bare =
        clap::Command::new(command.get_name().to_owned()).about(command.get_about().cloned().unwrap_or_default());
    bare.disable_help_flag(command.is_disable_help_flag_set())
        .disable_version_flag(command.is_disable_version_flag_set())
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible))
}

/// Writes man pages.
pub(crate) fn man(arguments: Man, commands: Vec<clap::Command>) -> anyhow::Result<ExitCode> {
    needs(&arguments.dir)?;
    for command in commands {
        let mut command = without_help(command);
        command.build();
        pages(&command, &arguments.dir)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Drops the verb `help`, which needs no page.
fn without_help(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// Checks that a directory exists. It is not created, because it may be mistyped, or need other permissions.
fn needs(dir: &Path) -> anyhow::Result<()> {
    if !dir.is_dir() {
        bail!("'{}' is not a directory; create it with: mkdir -p {}", dir.display(), dir.display());
    }
    Ok(())
}

/// Writes the page of a command, and those of its verbs: `adamant-mkfs.1`.
fn pages(command: &clap::Command, dir: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    for (title, lines) in [("EXIT STATUS", &EXIT_STATUS[..]), ("ENVIRONMENT", &ENVIRONMENT), ("FILES", &FILES)] {
        let mut roff = Roff::new();
        roff.control("SH", [title]);
        for (term, meaning) in lines {
            roff.control("TP", []);
            roff.text([bold(*term)]);
            roff.text([roman(*meaning)]);
        }
        roff.to_writer(&mut text)?;
    }
    let file = dir.join(format!("{name}.1"));
    std::fs::write(&file, text).with_context(|| format!("cannot write '{}'", file.display()))?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, dir)?;
    }
    Ok(())
}

const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "What was asked for is done."),
    ("1", "It failed; a line on standard error says why. (lctl has 2 for a parameter that is not there.)"),
    ("2", "It was misused: an option or value that it does not take."),
    ("65", "A target's store is damaged: to try again does not help, a copy of the store does."),
];

const ENVIRONMENT: [(&str, &str); 3] = [
    (
        "RUST_LOG",
        "Which lines servers and mounts log: error, warn, info (the default), debug, or as in info,host=debug.",
    ),
    ("XDG_RUNTIME_DIR", "Where the sockets of users other than root are, in the folder adamant."),
    ("NO_COLOR", "Without colour, also on a terminal."),
];

const FILES: [(&str, &str); 4] = [
    ("/run/adamant, $XDG_RUNTIME_DIR/adamant", "Admin sockets, logs of mounts, the sockets of 'adamant up'."),
    ("/run/adamant-public", "The sockets of root's processes that every user may ask."),
    ("/etc/adamant/NAME.conf", "What the systemd unit adamant@NAME serves."),
    ("DIR/server.log", "The log of the servers of 'adamant up --dir DIR'."),
];
