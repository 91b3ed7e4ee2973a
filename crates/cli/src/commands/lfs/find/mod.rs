//! `lfs find`: searches for names by attributes and layouts, with many threads.

mod candidate;
mod condition;
mod crowd;
mod format;
mod glob;
mod mode;
mod number;
mod walk;
mod words;

use std::ffi::OsStr;
use std::io;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use fuse::ioctl::{self, Verb};
use rustix::process::{Resource, Rlimit};

use crate::misuse::misuse;
use crate::output;
use candidate::Candidate;
use condition::{Conditions, Trouble};
use format::Format;
use walk::{Visit, walk};
pub(crate) use words::plain;

/// The arguments of `lfs find`.
pub(crate) struct Find(ArgMatches);

impl FromArgMatches for Find {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Find, clap::Error> {
        Ok(Find(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = matches.clone();
        Ok(())
    }
}

impl Args for Find {
    fn augment_args(command: Command) -> Command {
        command.args(words::arguments())
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.args(words::arguments())
    }
}

/// What to print for a name.
enum Output {
    Line,
    Zero,
    Format(Format),
}

/// One search.
struct Search {
    conditions: Conditions,
    depth_max: usize,
    lazy: bool,
    output: Output,
    terminal: bool,
}

impl Visit for Search {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    fn lazy(&self) -> bool {
        self.lazy
    }

    fn gather(&self) -> usize {
        if self.terminal { 0 } else { 32 << 10 }
    }

    fn visit(&self, name: &mut Candidate<'_>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        if !self.conditions.hold(name)? {
            return Ok(());
        }
        match &self.output {
            // A name must not send control characters to a terminal.
            Output::Line if self.terminal => {
                out.extend_from_slice(output::one_line(&String::from_utf8_lossy(name.path)).as_bytes());
                out.push(b'\n');
            }
            Output::Line => {
                out.extend_from_slice(name.path);
                out.push(b'\n');
            }
            Output::Zero => {
                out.extend_from_slice(name.path);
                out.push(0);
            }
            Output::Format(format) => format.print(name, out)?,
        }
        Ok(())
    }

    fn print(&self, bytes: &[u8]) -> bool {
        output::print_bytes(bytes)
    }

    fn complain(&self, path: &[u8], error: &io::Error) {
        eprintln!("lfs find: '{}': {error}", output::one_line(&String::from_utf8_lossy(path)));
    }
}

/// Runs `lfs find`.
pub(crate) fn run(find: &Find) -> anyhow::Result<ExitCode> {
    let matches = &find.0;
    if let Some(name) = words::lacking(matches) {
        misuse!("find --{name}: not in this version; see limits");
    }
    let settings = words::settings(matches).or_else(|error| misuse!("find {error:#}"))?;
    let conditions = words::conditions(matches).or_else(|error| misuse!("find {error:#}"))?;
    let paths: Vec<PathBuf> = matches.get_many("paths").into_iter().flatten().cloned().collect();
    for fsname in words::file_systems(matches) {
        belongs(&paths, &fsname)?;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let search = Search {
        conditions: Conditions::new(conditions, now),
        depth_max: settings.depth_max,
        lazy: matches.get_flag("lazy"),
        output: match settings.format {
            Some(format) => Output::Format(format),
            None if matches.get_flag("print0") => Output::Zero,
            None => Output::Line,
        },
        terminal: io::stdout().is_terminal(),
    };
    raise_descriptors();
    Ok(if walk(&search, &paths, settings.threads) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Checks that the paths are in the file system by whose name a target was given; other paths fail during the search.
fn belongs(paths: &[PathBuf], fsname: &str) -> anyhow::Result<()> {
    for path in paths {
        let Ok(identity) = ioctl::ask(path, Verb::Identity, &[]) else { continue };
        let own = identity.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if own != fsname.as_bytes() {
            let own = Path::new(OsStr::from_bytes(own));
            misuse!("find: '{}' lies in the file system '{}', not in '{fsname}'", path.display(), own.display());
        }
    }
    Ok(())
}

/// Raises the limit of descriptors, because a directory is open for each level of the search.
fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // If this fails, the deepest directories may not be readable, which is reported then.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests;
