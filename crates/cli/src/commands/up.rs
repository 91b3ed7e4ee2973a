//! `adamant up`: a whole file system in one command.

pub(crate) mod home;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use host::place::{self, NewTarget, Place};
use host::server::ServeOptions;
use proto::{TargetIndex, TargetKind, TargetName};

use crate::commands::{mount, serve, status};
use crate::daemon;
use crate::output::say;
pub(crate) use home::Home;
use status::Process;

/// Start a whole file system in one command: format if new, serve, mount
///
/// Example: adamant up --dir ./adamant-data --mount ./mnt
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory of the targets
    #[arg(long, default_value = "./adamant-data")]
    pub dir: PathBuf,
    /// Mount point
    #[arg(long, default_value = "./mnt")]
    pub mount: PathBuf,
    /// Name of the file system; by default that of the file system in the directory, or adamant
    #[arg(long)]
    pub fsname: Option<String>,
    /// Number of metadata targets
    #[arg(long, default_value_t = 1)]
    pub mdts: u32,
    /// Number of object targets
    #[arg(long, default_value_t = 2)]
    pub osts: u32,
    /// Serve and mount in this process until Ctrl-C
    #[arg(long)]
    pub foreground: bool,
    /// Allow fault injection in the server and the mount, for tests
    #[arg(long)]
    pub allow_faults: bool,
}

/// How long an existing mount may take to restore all its connections.
const PATIENCE: Duration = Duration::from_secs(20);

/// The state of `up`.
struct Plan {
    arguments: Arguments,
    home: Home,
    fsname: String,
    mount: PathBuf,
    start: Instant,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let fsname = arguments.fsname.as_deref().unwrap_or("adamant");
    if !TargetName::fsname_is_valid(fsname) {
        bail!("'{fsname}' cannot name a file system; use 1 to 8 letters, digits or underscores");
    }
    if !(1..=1000).contains(&arguments.mdts) {
        bail!("--mdts {}: a node serves 1 to 1000 metadata targets", arguments.mdts);
    }
    if arguments.osts > 1000 {
        bail!("{} object targets are too many for one node; at most 1000", arguments.osts);
    }
    let home = Home::new(&arguments.dir)?;
    let mount = std::path::absolute(&arguments.mount)?;
    let (servers, mounts) = home.processes();
    let server = servers.into_iter().next();
    let fsname = match (home.fsname(server.as_ref()), &arguments.fsname) {
        (Some(held), Some(named)) if held != *named => {
            bail!(
                "'{}' holds the file system '{held}'; leave --fsname away, or choose another --dir",
                home.dir().display()
            )
        }
        (held, named) => held.or_else(|| named.clone()).unwrap_or_else(|| "adamant".to_owned()),
    };
    let mut plan = Plan { arguments, home, fsname, mount, start };
    let wanted = plan.home.wanted(plan.arguments.mdts, plan.arguments.osts)?;
    if server.is_some() && wanted.iter().any(|target| !target.there) {
        bail!("it runs already, with fewer targets than you want; stop it first with: {}", plan.down_command());
    }
    std::fs::create_dir_all(plan.home.dir())
        .with_context(|| format!("cannot create '{}'", plan.home.dir().display()))?;
    free_mount_point(&plan.mount)?;
    let made = plan.make(&wanted)?;
    let targets: Vec<PathBuf> = wanted.iter().map(|target| plan.home.dir().join(&target.folder)).collect();
    let mounted = mounts.into_iter().find(|process| process.serves(&plan.mount));
    if plan.arguments.foreground {
        if server.is_some() || mounted.is_some() {
            bail!("it runs already; stop it first with: {}", plan.down_command());
        }
        plan.stay(&targets, &made)?;
        return Ok(ExitCode::SUCCESS);
    }
    if server.is_none() {
        plan.serve(&targets)?;
    }
    let done = match mounted {
        Some(process) => await_connections(&process, PATIENCE),
        None => {
            let left = format!(" (the servers go on; stop them with: {})", plan.down_command());
            mount::start_in_background(&plan.source(), &plan.mount, &plan.mount_options(), &left).map(drop)
        }
    };
    done.with_context(|| {
        format!("the servers run (stop them with: {}), but there is no mount that works", plan.down_command())
    })?;
    plan.say(&made);
    Ok(ExitCode::SUCCESS)
}

/// Makes the mount point. If a mount whose process died is left there, the directory cannot even be read before it is
/// unmounted.
fn free_mount_point(mount: &Path) -> anyhow::Result<()> {
    if status::dead::is_dead(mount) {
        mount::take_away(mount, true).with_context(|| {
            format!("'{}' is a mount whose process has died; free it with: umount -l", mount.display())
        })?;
    }
    std::fs::create_dir_all(mount).with_context(|| format!("cannot create '{}'", mount.display()))
}

/// Waits until an existing mount has all its connections.
fn await_connections(process: &Process, patience: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let connections = process.connections();
        let lost: Vec<String> = connections
            .iter()
            .filter(|(_, state)| state != "FULL")
            .map(|(target, state)| format!("{target} ({state})"))
            .collect();
        if lost.is_empty() && !connections.is_empty() {
            return Ok(());
        }
        if start.elapsed() > patience {
            let whom = if lost.is_empty() { "anything".to_owned() } else { lost.join(", ") };
            bail!(
                "process {} at {} has no connection to {whom}",
                process.description.pid,
                process.description.places.join(", ")
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Plan {
    fn source(&self) -> String {
        format!("{}:/{}", self.home.listen(), self.fsname)
    }

    fn mount_options(&self) -> Vec<String> {
        self.arguments.allow_faults.then(|| "allow_faults".to_owned()).into_iter().collect()
    }

    fn down_command(&self) -> String {
        format!("{} down --dir {}", own_name(), shell_word(&self.home.dir().display().to_string()))
    }

    /// Formats the targets that do not exist. Returns their names.
    fn make(&mut self, wanted: &[home::Wanted]) -> anyhow::Result<Vec<String>> {
        let mut made = Vec::new();
        for target in wanted {
            let fsname = if target.kind == TargetKind::Mgt { String::new() } else { self.fsname.clone() };
            let name = TargetName { fsname, kind: target.kind, index: TargetIndex(target.index) };
            if !target.there {
                let mgs = if target.kind == TargetKind::Mgt { vec![] } else { vec![self.home.listen()] };
                let place = Place::Directory(self.home.dir().join(&target.folder));
                let new = NewTarget {
                    name: name.clone(),
                    mgs,
                    reformat: false,
                    params: Vec::new(),
                    plain_names: false,
                    replaces: false,
                };
                place::format(&place, &new)?;
                made.push(name.to_string());
            }
            self.home.remember(&self.fsname, &name.to_string(), &target.folder)?;
        }
        Ok(made)
    }

    /// Starts the servers in the background.
    fn serve(&self, targets: &[PathBuf]) -> anyhow::Result<()> {
        let mut words = vec!["serve".to_owned(), "--listen".to_owned(), self.home.listen().to_string()];
        if self.arguments.allow_faults {
            words.push("--allow-faults".to_owned());
        }
        words.extend(targets.iter().map(|target| target.display().to_string()));
        let log = self.home.dir().join("server.log");
        let pid = daemon::start(&words, &log, "")?;
        // A target may stop by itself at once, for example if the MGS refuses it.
        let process = status::child(pid);
        let stopped = match &process {
            None => vec!["the server".to_owned()],
            Some(process) => {
                let devices = process.description.devices.iter();
                devices.filter(|device| device.state != "UP").map(|device| device.name.clone()).collect()
            }
        };
        if !stopped.is_empty() {
            let why = last_error(&std::fs::read_to_string(&log).unwrap_or_default());
            let rest = if process.is_some() {
                format!("; stop the others with: {}", self.down_command())
            } else {
                String::new()
            };
            bail!("{} stopped as soon as it was started: {why} (see '{}'){rest}", stopped.join(", "), log.display());
        }
        Ok(())
    }

    /// Serves and mounts in this process.
    fn stay(&self, targets: &[PathBuf], made: &[String]) -> anyhow::Result<()> {
        host::log::start();
        host::process::prepare();
        let faults = serve::allowed_faults(self.arguments.allow_faults);
        let places: Vec<Place> = targets.iter().cloned().map(Place::Directory).collect();
        let options = ServeOptions { listen: self.home.listen(), faults: faults.clone(), ..ServeOptions::default() };
        let server = serve::start(&places, &options)?;
        let request = mount::MountRequest::parse(&self.source(), &self.mount_options(), false)?.with_faults(faults);
        let mounted = mount::Mounted::start(&request, self.mount.clone(), mount::Starter::Person)?;
        self.say(made);
        let result = mounted.run();
        server.stop()?;
        result
    }

    fn say(&self, made: &[String]) {
        let (own, mount) = (own_name(), shell_word(&self.mount.display().to_string()));
        if !made.is_empty() {
            say!("made      {} in {}", made.join(", "), self.home.dir().display());
        }
        say!("mounted   {} on {} after {:.2} s", self.fsname, self.mount.display(), self.start.elapsed().as_secs_f64());
        say!();
        say!("try       cp -r /etc/ssl {mount}/ ; ls -l {mount}");
        say!("look      {own} status ; {own} lfs df -h {mount}");
        say!("stop      {}", self.down_command());
    }
}

/// The last line of a log that reports an error.
fn last_error(log: &str) -> String {
    let lines = || log.lines().rev().filter(|line| !line.trim().is_empty());
    let line =
        lines().find(|line| line.contains(" ERROR ") || line.starts_with("adamant: ")).or_else(|| lines().next());
    line.unwrap_or("it does not say why").trim().to_owned()
}

/// How a shell can call this program: by its name if that is in the path, otherwise by its path.
pub(crate) fn own_name() -> String {
    let Ok(own) = std::env::current_exe() else { return "adamant".to_owned() };
    let found = std::env::var_os("PATH").is_some_and(|path| {
        let all: Vec<PathBuf> = std::env::split_paths(&path).map(|folder| folder.join("adamant")).collect();
        all.into_iter()
            .find(|program| program.is_file())
            .is_some_and(|first| std::fs::canonicalize(first).ok() == Some(own.clone()))
    });
    if found { "adamant".to_owned() } else { shell_word(&own.display().to_string()) }
}

/// Quotes a word for a shell.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_a_shell_reads() {
        for (word, quoted) in [("/a/b-c.d", "/a/b-c.d"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''")] {
            assert_eq!(shell_word(word), quoted);
        }
    }

    #[test]
    fn the_last_error_of_a_log_is_found() {
        let log = "a INFO x\nb ERROR target 'd-MDT0000': refused\nc INFO y\n\n";
        assert_eq!(last_error(log), "b ERROR target 'd-MDT0000': refused");
        assert_eq!(last_error("a INFO x\n"), "a INFO x");
        assert_eq!(last_error(""), "it does not say why");
    }
}
