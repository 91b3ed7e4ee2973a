//! `adamant up`: a whole file system in one command.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use host::admin;
use host::server::{self, NewTarget, Place, ServeOptions};
use proto::{Nid, TargetIndex, TargetKind, TargetName};

use crate::commands::{mount, serve, status};
use crate::daemon;
use crate::output::say;

/// A whole file system in one command: format if new, serve, mount
///
/// Example: adamant up --dir ./adamant-data --mount ./mnt
#[derive(Args)]
pub struct Arguments {
    /// Where the targets live
    #[arg(long, default_value = "./adamant-data")]
    pub dir: PathBuf,
    /// Where to mount
    #[arg(long, default_value = "./mnt")]
    pub mount: PathBuf,
    /// Name of the file system
    #[arg(long, default_value = "adamant")]
    pub fsname: String,
    /// Metadata targets; this version serves one
    #[arg(long, default_value_t = 1)]
    pub mdts: u32,
    /// Object targets
    #[arg(long, default_value_t = 2)]
    pub osts: u32,
    /// Serve and mount in this process until Ctrl-C
    #[arg(long)]
    pub foreground: bool,
    /// Allow fault injection in the server and the mount, for tests
    #[arg(long)]
    pub allow_faults: bool,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    if !TargetName::fsname_is_valid(&arguments.fsname) {
        bail!("'{}' cannot name a file system; use 1 to 8 letters, digits or underscores", arguments.fsname);
    }
    if arguments.mdts != 1 {
        bail!("this version serves one metadata target; leave --mdts away or say --mdts 1");
    }
    if arguments.osts > 1000 {
        bail!("{} object targets are too many for one node; at most 1000", arguments.osts);
    }
    let dir = std::path::absolute(&arguments.dir)?;
    let directory = std::path::absolute(&arguments.mount)?;
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create '{}'", dir.display()))?;
    // Left over from a mount whose process died: the directory cannot even be looked at.
    if std::fs::metadata(&directory).is_err_and(|error| error.raw_os_error() == Some(107)) {
        let _ = rustix::mount::unmount(&directory, rustix::mount::UnmountFlags::DETACH);
    }
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create '{}'", directory.display()))?;

    let listen = base_nid(&dir);
    let running = status::processes();
    let server = running.iter().find(|process| process.role == "server" && process.serves(&dir));
    let serving = server.is_some();
    let (targets, made) = format_missing(&arguments, &dir, &listen, server)?;
    let mounted =
        running.iter().any(|process| process.role == "mount" && process.is_up() && process.serves(&directory));
    let source = format!("{listen}:/{}", arguments.fsname);

    let mount_options: Vec<String> = arguments.allow_faults.then(|| "allow_faults".to_owned()).into_iter().collect();
    if arguments.foreground {
        if serving || mounted {
            bail!("it runs already; stop it first with: adamant down --dir {}", dir.display());
        }
        host::log::start();
        host::process::prepare();
        let faults = serve::allowed_faults(arguments.allow_faults);
        let places: Vec<Place> = targets.iter().cloned().map(Place::Directory).collect();
        let server =
            serve::start(&places, &ServeOptions { listen, faults: faults.clone(), ..ServeOptions::default() })?;
        let request = mount::MountRequest::parse(&source, &mount_options, false)?.with_faults(faults);
        let mounted = mount::Mounted::start(&request, directory.clone())?;
        say(&arguments, &made, &dir, &directory, start);
        let result = mounted.run();
        server.stop().map_err(anyhow::Error::msg)?;
        result?;
        return Ok(ExitCode::SUCCESS);
    }

    if !serving {
        let mut words = vec!["serve".to_owned(), "--listen".to_owned(), listen.to_string()];
        if arguments.allow_faults {
            words.push("--allow-faults".to_owned());
        }
        words.extend(targets.iter().map(|target| target.display().to_string()));
        daemon::start(&words, &dir.join("server.log"))?;
    }
    if !mounted {
        mount::start_in_background(&source, &directory, &mount_options)?;
    }
    say(&arguments, &made, &dir, &directory, start);
    Ok(ExitCode::SUCCESS)
}

/// Where the servers of a directory listen: a Unix socket with a short name that follows from the directory.
fn base_nid(dir: &Path) -> Nid {
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    let name = format!("up-{:08x}", hasher.finish() as u32);
    Nid::Unix(admin::directory().join(name).display().to_string())
}

/// Makes the targets that do not exist yet. Gives all directories, MGT first, and the names of those that were made. `server` serves
/// those that exist, and knows what they are.
fn format_missing(
    arguments: &Arguments,
    dir: &Path,
    listen: &Nid,
    server: Option<&status::Process>,
) -> anyhow::Result<(Vec<PathBuf>, Vec<String>)> {
    let mut wanted = vec![(dir.join("mgt"), TargetKind::Mgt, 0), (dir.join("mdt0"), TargetKind::Mdt, 0)];
    let existing = (0..).take_while(|index| dir.join(format!("ost{index}")).exists()).count() as u32;
    for index in 0..arguments.osts.max(existing) {
        wanted.push((dir.join(format!("ost{index}")), TargetKind::Ost, index));
    }
    let mut made = Vec::new();
    for (place, kind, index) in &wanted {
        if place.exists() {
            let name = match (server, kind) {
                (Some(server), TargetKind::Mdt) => server.names().into_iter().find(|name| name.contains("-MDT")),
                (None, TargetKind::Mdt) => {
                    server::identify(&Place::Directory(place.clone())).ok().map(|header| header.name)
                }
                _ => None,
            };
            if let Some(name) = name.filter(|name| !name.starts_with(&format!("{}-", arguments.fsname))) {
                bail!(
                    "'{}' holds {name}, which is of another file system; name it with --fsname or choose another --dir",
                    place.display()
                );
            }
            continue;
        }
        let fsname = if *kind == TargetKind::Mgt { String::new() } else { arguments.fsname.clone() };
        let name = TargetName { fsname, kind: *kind, index: TargetIndex(*index) };
        let mgs = if *kind == TargetKind::Mgt { vec![] } else { vec![listen.clone()] };
        server::format(
            &Place::Directory(place.clone()),
            &NewTarget { name: name.clone(), mgs, reformat: false, params: Vec::new(), plain_names: false },
        )
        .map_err(anyhow::Error::msg)?;
        made.push(name.to_string());
    }
    Ok((wanted.into_iter().map(|(place, _, _)| place).collect(), made))
}

fn say(arguments: &Arguments, made: &[String], dir: &Path, directory: &Path, start: Instant) {
    if !made.is_empty() {
        say!("made      {} in {}", made.join(", "), dir.display());
    }
    say!("mounted   {} on {} after {:.2} s", arguments.fsname, directory.display(), start.elapsed().as_secs_f64());
    say!();
    say!("try       cp -r /etc {}/ ; ls -l {}", directory.display(), directory.display());
    say!("look      adamant status ; adamant lfs df -h {}", directory.display());
    say!("stop      adamant down --dir {}", dir.display());
}
