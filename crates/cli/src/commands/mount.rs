//! `adamant mount`: mounts a file system; also `mount -t adamant` and fstab.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use client::api::{AccessTimes, Options};
use fuse::{FuseMount, MountSettings};
use host::admin::{self, Description, Device, Request, Response};
use host::client::Mount;
use proto::connect::TAG_MAX;
use proto::{Errno, Nid};

use crate::commands::{serve, status};
use crate::daemon;

/// Mount a file system
///
/// Example: adamant mount 127.0.0.1:7988:/adamant /mnt -o ro
#[derive(Args)]
pub struct Arguments {
    /// NID[:NID...]:/FSNAME[/DIRECTORY]: a file system, or a directory in it
    pub source: String,
    /// Where
    pub directory: PathBuf,
    /// ro, soft=SECONDS, max_dirty_mb=N, max_cached_mb=N, max_read_ahead_mb=N, max_nodes_mb=N, max_rpcs_in_flight=N, max_mod_rpcs_in_flight=N, sync_metadata, metadata_write_back, always_ping, allow_faults, allow_other, no_allow_other, nouring, threads=N, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// As mount(8) passes it
    #[arg(short, hide = true)]
    pub verbose: bool,
    /// As mount(8) passes it: no entry in mtab
    #[arg(short = 'n', hide = true)]
    pub no_mtab: bool,
    /// As mount(8) passes it: the type
    #[arg(short = 't', hide = true)]
    pub kind: Option<String>,
    /// As mount(8) passes it: sloppy, unknown options are no error
    #[arg(short = 's', hide = true)]
    pub sloppy: bool,
    /// In the background, as this command starts itself
    #[arg(long, hide = true)]
    pub background: bool,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let request = MountRequest::parse(&arguments.source, &arguments.options, arguments.sloppy)?;
    let directory = std::path::absolute(&arguments.directory)?;
    if request.remount {
        remount(&request.settings, &directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.foreground || arguments.background {
        if arguments.background {
            daemon::detach();
        }
        host::log::start();
        host::process::prepare();
        let mounted = Mounted::start(&request, directory);
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                if arguments.background {
                    daemon::tell_parent(&format!("{error:#}"));
                }
                return Err(error);
            }
        };
        if arguments.background {
            daemon::tell_parent("ready");
        }
        mounted.run()?;
        return Ok(ExitCode::SUCCESS);
    }
    start_in_background(&arguments.source, &directory, &arguments.options)?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts from a process in the background. Gives its number.
pub fn start_in_background(source: &str, directory: &std::path::Path, options: &[String]) -> anyhow::Result<u32> {
    let mut words = vec!["mount".to_owned(), source.to_owned(), directory.display().to_string()];
    if !options.is_empty() {
        words.extend(["-o".to_owned(), options.join(",")]);
    }
    daemon::start(&words, &daemon::log_path(&format!("mount{}", directory.display().to_string().replace('/', "-"))))
}

/// What to mount and how.
pub struct MountRequest {
    options: Options,
    settings: MountSettings,
    /// Change a mount that there is.
    remount: bool,
}

impl MountRequest {
    /// Reads a source and mount options.
    pub fn parse(source: &str, words: &[String], sloppy: bool) -> anyhow::Result<MountRequest> {
        let Source { mgs, fsname, subtree } = parse_source(source)?;
        let root = rustix::process::geteuid().is_root();
        let mut settings = MountSettings {
            source: source.to_owned(),
            subtree,
            allow_other: root,
            read_only: false,
            kernel_options: Vec::new(),
            threads: 0,
            uring: true,
        };
        let mut options = Options {
            uuid: host::clock::uuid(),
            seed: host::clock::seed(),
            fsname,
            mgs,
            description: String::new(),
            read_only: false,
            max_dirty: 256 << 20,
            max_cached: 256 << 20,
            max_read_ahead: 8 << 20,
            max_nodes: client::api::MAX_NODES_DEFAULT,
            soft: None,
            timeouts: client::api::Timeouts::default(),
            always_ping: false,
            access_times: AccessTimes::default(),
            directory_access_times: AccessTimes::default(),
            write_back_after: Duration::from_secs(2),
            max_rpcs_in_flight: 8,
            max_mod_rpcs_in_flight: 7,
            sync_metadata: false,
            faults: stdx::Faults::none(),
        };
        let mut remount = false;
        for word in words.iter().filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || {
                value
                    .parse::<u64>()
                    .ok()
                    .filter(|n| *n > 0)
                    .with_context(|| format!("mount option '{word}' needs a number"))
            };
            let between = |number: u64, low: u16, high: u16| {
                u16::try_from(number)
                    .ok()
                    .filter(|n| (low..=high).contains(n))
                    .with_context(|| format!("mount option '{word}' needs a number from {low} to {high}"))
            };
            match key {
                "ro" => (settings.read_only, options.read_only) = (true, true),
                "rw" => (settings.read_only, options.read_only) = (false, false),
                "remount" => remount = true,
                // The kernel's own, which mount(8) repeats when it changes a mount.
                "user_id" | "group_id" | "default_permissions" | "blksize" | "max_read" => {}
                "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "user" | "users" | "nouser" => {}
                "soft" => options.soft = Some(Duration::from_secs(if value.is_empty() { 30 } else { number()? })),
                "allow_other" => settings.allow_other = true,
                "no_allow_other" => settings.allow_other = false,
                "max_dirty_mb" => options.max_dirty = number()? << 20,
                "max_cached_mb" => options.max_cached = number()? << 20,
                "max_read_ahead_mb" => options.max_read_ahead = number()? << 20,
                "max_nodes_mb" => {
                    let bytes = usize::try_from(number()?.max(1) << 20)?;
                    options.max_nodes = bytes / client::api::NODE_BYTES;
                }
                "max_rpcs_in_flight" => options.max_rpcs_in_flight = between(number()?, 2, TAG_MAX)?,
                "max_mod_rpcs_in_flight" => {
                    options.max_mod_rpcs_in_flight = between(number()?, 1, TAG_MAX - 1)?;
                    options.max_rpcs_in_flight = options.max_rpcs_in_flight.max(options.max_mod_rpcs_in_flight + 1);
                }
                "sync_metadata" => options.sync_metadata = true,
                "metadata_write_back" => options.sync_metadata = false,
                "always_ping" => options.always_ping = true,
                "allow_faults" => options.faults = serve::allowed_faults(true),
                "uring" => settings.uring = true,
                "nouring" => settings.uring = false,
                "threads" => settings.threads = number()? as usize,
                "noatime" | "strictatime" | "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                    let times = match key {
                        "noatime" => AccessTimes::Never,
                        "strictatime" => AccessTimes::Strict,
                        _ => AccessTimes::Relative,
                    };
                    (options.access_times, options.directory_access_times) = (times, times);
                    settings.kernel_options.push(key.to_owned());
                }
                "nodiratime" | "diratime" => {
                    let never = key == "nodiratime";
                    options.directory_access_times = if never { AccessTimes::Never } else { options.access_times };
                    settings.kernel_options.push(key.to_owned());
                }
                "nosuid" | "suid" | "nodev" | "dev" | "noexec" | "exec" => {
                    settings.kernel_options.push(key.to_owned());
                }
                "sync" | "dirsync" => {
                    options.sync_metadata = true;
                    settings.kernel_options.push(key.to_owned());
                }
                _ if key.starts_with("x-") || key.starts_with("comment") || sloppy => {}
                _ => bail!("mount option '{key}' is unknown; see 'adamant mount --help'"),
            }
        }
        Ok(MountRequest { options, settings, remount })
    }

    /// The same with another table of faults: that of the process, if it serves, too.
    pub fn with_faults(mut self, faults: stdx::Faults) -> MountRequest {
        self.options.faults = faults;
        self
    }
}

/// Changes what the kernel looks after of a mount that there is.
fn remount(settings: &MountSettings, directory: &std::path::Path) -> anyhow::Result<()> {
    let shown = directory.display().to_string();
    let same = |place: &String| std::fs::canonicalize(place).ok() == std::fs::canonicalize(directory).ok();
    let is_there = |process: &status::Process| process.role == "mount" && process.description.places.iter().any(same);
    let Some(process) = status::newest(is_there) else {
        bail!("no file system of ours is mounted at {shown}; see 'adamant status'")
    };
    if !settings.read_only && process.params("llite.*.read_only").iter().any(|(_, value)| value == "1") {
        bail!("{shown} was mounted with ro, and its servers know it: unmount it and mount it again with rw");
    }
    // The kernel lets go of a file that was removed a moment after the last program has closed it.
    let start = std::time::Instant::now();
    loop {
        match fuse::remount(settings, directory) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                if start.elapsed() > Duration::from_secs(2) {
                    bail!(
                        "{shown} has files open for writing; end the programs that use it (see: fuser -vm {shown}), then try again"
                    );
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.with_context(|| format!("cannot remount {shown}")),
        }
    }
}

/// What to mount.
#[derive(PartialEq, Eq, Debug)]
pub struct Source {
    /// Where the MGS is.
    pub mgs: Vec<Nid>,
    /// The file system.
    pub fsname: String,
    /// The directory in it, name by name; none for all of it.
    pub subtree: Vec<String>,
}

/// `NID[:NID...]:/FSNAME[/DIRECTORY]` into its parts.
pub fn parse_source(source: &str) -> anyhow::Result<Source> {
    let bad = || {
        anyhow::anyhow!(
            "'{source}' is not a file system; expected NID[:NID...]:/FSNAME[/DIRECTORY], for example 127.0.0.1:7988:/adamant"
        )
    };
    let (nids, path) = source.rsplit_once(":/").ok_or_else(bad)?;
    let (fsname, directory) = path.split_once('/').unwrap_or((path, ""));
    let subtree: Vec<String> = directory.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if subtree.iter().any(|name| name == "." || name == "..") {
        bail!("'{source}' has '.' or '..' in its directory; name it from the file system's root on");
    }
    if !proto::TargetName::fsname_is_valid(fsname) {
        return Err(bad());
    }
    let mut list = Vec::new();
    let mut rest = nids;
    while !rest.is_empty() {
        // A NID is host:port or unix:path, so it ends at its second colon; an address in brackets has its own.
        let from = if rest.starts_with('[') { rest.find(']').ok_or_else(bad)? } else { 0 };
        let first = from + rest[from..].find(':').ok_or_else(bad)?;
        let end = rest[first + 1..].find(':').map_or(rest.len(), |at| first + 1 + at);
        list.push(rest[..end].parse::<Nid>().map_err(anyhow::Error::msg)?);
        rest = rest.get(end + 1..).unwrap_or("");
    }
    if list.is_empty() {
        return Err(bad());
    }
    Ok(Source { mgs: list, fsname: fsname.to_owned(), subtree })
}

/// A mount that runs in this process.
pub struct Mounted {
    mount: std::sync::Arc<FuseMount>,
    signals: daemon::Signals,
    _admin: Option<admin::AdminSocket>,
}

impl Mounted {
    /// Mounts.
    pub fn start(request: &MountRequest, directory: PathBuf) -> anyhow::Result<Mounted> {
        let mut options = request.options.clone();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        options.description = format!("{host}:{}", directory.display());
        let (fsname, uuid) = (options.fsname.clone(), options.uuid.to_string());
        let connected = fuse::connect(options, &request.settings, &directory).map_err(anyhow::Error::new)?;
        // Whoever sees the mount may ask for its orderly end, and lctl for its parameters.
        let signals = daemon::Signals::catch()?;
        let client = connected.client().clone();
        let faults = request.options.faults.clone();
        let place = directory.display().to_string();
        let admin = admin::serve("mount", move |request| answer(&client, &faults, &fsname, &uuid, &place, request));
        let admin =
            admin.map_err(|error| tracing::warn!("no admin socket, so lctl cannot see this mount: {error}")).ok();
        let mount = std::sync::Arc::new(connected.mount(&request.settings).map_err(anyhow::Error::new)?);
        Ok(Mounted { mount, signals, _admin: admin })
    }

    /// Serves the mount until it is unmounted or the process is told to stop. Either way what programs have written is written back,
    /// unless the process is told to stop once more.
    pub fn run(self) -> anyhow::Result<()> {
        let Mounted { mount, mut signals, _admin } = self;
        let (sender, ends) = std::sync::mpsc::channel();
        let (waiting, served) = (mount.clone(), sender.clone());
        std::thread::Builder::new().name("session".to_owned()).spawn(move || {
            let _ = served.send(waiting.wait());
        })?;
        let mut result = None;
        let mut ended = || {
            result = ends.try_recv().ok();
            result.is_some()
        };
        if signals.wait(&mut ended) {
            let told = mount.clone();
            std::thread::Builder::new().name("end".to_owned()).spawn(move || {
                if let Some(result) = end(&told) {
                    let _ = sender.send(result);
                }
            })?;
            if signals.wait_again(&mut ended) {
                bail!("told to end once more: what was not written back by now is lost");
            }
        }
        result.unwrap_or(Ok(())).with_context(|| format!("the mount on {} has ended", mount.directory().display()))
    }
}

/// The session of a mount that nobody uses ends within this time after the unmount.
const SESSION_END: Duration = Duration::from_secs(5);

/// Ends a mount. If programs use it, their calls fail from now on, and the directory is free afterwards; how that went. Otherwise, or
/// if umount(8) was first, its session ends, and writes back what programs wrote.
fn end(mount: &FuseMount) -> Option<std::io::Result<()>> {
    let (directory, is_up) = (mount.directory(), || mount.client().is_up());
    let in_use = is_up().then(|| unmount(directory).err()).flatten().filter(|_| is_mounted(directory));
    let start = std::time::Instant::now();
    while in_use.is_none() && is_up() && start.elapsed() < SESSION_END {
        std::thread::sleep(Duration::from_millis(5));
    }
    if !is_up() {
        return None;
    }
    let shown = directory.display();
    tracing::warn!(
        "{shown} was told to end while programs use it: what they have written is written back, and their calls fail"
    );
    let result = mount.write_back();
    if let Some(error) = in_use.and_then(|_| take_away(directory, true).err()) {
        tracing::warn!("{shown} stays a mount whose process has ended; free it with: umount -l {shown} ({error})");
    }
    Some(result)
}

fn is_mounted(directory: &std::path::Path) -> bool {
    fuse::mounts().iter().any(|mount| mount.place == directory)
}

/// umount(8) for a directory.
pub fn unmount(directory: &std::path::Path) -> anyhow::Result<()> {
    let shown = directory.display();
    match take_away(directory, false) {
        Err(error) if error.raw_os_error() == Some(16) => {
            bail!("{shown} is in use; end the programs that use it (see: fuser -vm {shown}), then try again")
        }
        Err(error) => Err(error).with_context(|| format!("cannot unmount {shown}")),
        Ok(()) => Ok(()),
    }
}

/// Takes a mount away. One that programs use only if it is detached from its directory, `lazily`.
fn take_away(directory: &std::path::Path, lazily: bool) -> std::io::Result<()> {
    use rustix::mount::UnmountFlags;
    if rustix::process::geteuid().is_root() {
        let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return rustix::mount::unmount(directory, flags).map_err(std::io::Error::from);
    }
    let mut command = std::process::Command::new("fusermount3");
    let output = command.arg("-u").args(lazily.then_some("-z")).arg(directory).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn set(client: &Mount, pattern: &str, value: &str) -> Response {
    let names: Vec<String> = client.get_params(pattern).into_iter().map(|(name, _)| name).collect();
    if names.is_empty() {
        return Response::failed(Errno::ENOENT);
    }
    for name in &names {
        if let Err(error) = client.set_param(name, value) {
            return Response::failed(error);
        }
    }
    Response::Params(names.into_iter().map(|name| (name, value.to_owned())).collect())
}

fn answer(client: &Mount, faults: &stdx::Faults, fsname: &str, uuid: &str, place: &str, request: Request) -> Response {
    match request {
        Request::GetParam { pattern } => {
            let mut found = host::faults::get(faults, &pattern);
            found.extend(host::log::get(&pattern));
            found.extend(client.get_params(&pattern));
            Response::Params(found)
        }
        Request::SetParam { pattern, value } => {
            let of_process = host::log::set(&pattern, &value).or_else(|| host::faults::set(faults, &pattern, &value));
            of_process.unwrap_or_else(|| set(client, &pattern, &value))
        }
        Request::Describe => Response::Description(Description {
            pid: std::process::id(),
            role: "mount".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fsname: fsname.to_owned(),
            places: vec![place.to_owned()],
            devices: vec![Device {
                state: if client.is_up() { "UP" } else { "ST" }.to_owned(),
                kind: "client".to_owned(),
                name: format!("{fsname}-client"),
                uuid: uuid.to_owned(),
                place: place.to_owned(),
            }],
        }),
        Request::Survey { .. } => {
            Response::Failed(Errno::ENODEV.raw(), "no metadata target runs in this process".to_owned())
        }
        // It is about to end, and what is mounted there now is another's.
        Request::Shutdown if !client.is_up() => Response::Done,
        Request::Shutdown => match unmount(std::path::Path::new(place)) {
            Ok(()) => Response::Done,
            Err(error) => Response::Failed(Errno::EBUSY.raw(), format!("{error:#}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read() {
        for (source, nids, name, subtree) in [
            ("127.0.0.1:7988:/adamant", vec!["127.0.0.1:7988"], "adamant", vec![]),
            ("a:1:b:2:/fs/", vec!["a:1", "b:2"], "fs", vec![]),
            ("unix:/run/x/mgt:/fs", vec!["unix:/run/x/mgt"], "fs", vec![]),
            ("unix:/run/x/mgt:/fs/home/one", vec!["unix:/run/x/mgt"], "fs", vec!["home", "one"]),
            ("[::1]:7988:c:3:/fs//a/", vec!["[::1]:7988", "c:3"], "fs", vec!["a"]),
        ] {
            let parsed = parse_source(source).unwrap();
            assert_eq!(parsed.mgs.iter().map(ToString::to_string).collect::<Vec<_>>(), nids);
            assert_eq!(parsed.fsname, name);
            assert_eq!(parsed.subtree, subtree);
        }
        for bad in ["", "adamant", "host:/fs", ":/fs", "1.2.3.4:7988:/", "1.2.3.4:7988:/fs/../x", "a:1:/bad-name!"] {
            assert!(parse_source(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_mount_options_are_named() {
        let error = MountRequest::parse("a:1:/fs", &["bogus".to_owned()], false).err().unwrap();
        assert!(error.to_string().contains("'bogus'"));
        assert!(MountRequest::parse("a:1:/fs", &["bogus".to_owned()], true).is_ok());
        assert!(MountRequest::parse("a:1:/fs", &["ro".to_owned(), "soft=5".to_owned()], false).is_ok());
    }

    #[test]
    fn changes_are_made_behind_the_back_unless_something_synchronous_is_wanted() {
        for (line, sync) in [("rw", false), ("sync_metadata", true), ("sync_metadata,metadata_write_back", false)] {
            assert_eq!(parse(line).options.sync_metadata, sync, "{line}");
        }
        assert!(parse("sync").options.sync_metadata && parse("dirsync").options.sync_metadata);
    }

    #[test]
    fn access_times_are_as_the_options_say() {
        use AccessTimes::{Never, Relative, Strict};
        for (line, files, directories) in [
            ("rw", Relative, Relative),
            ("noatime", Never, Never),
            ("strictatime", Strict, Strict),
            ("strictatime,nodiratime", Strict, Never),
            ("noatime,relatime", Relative, Relative),
        ] {
            let options = parse(line).options;
            assert_eq!((options.access_times, options.directory_access_times), (files, directories), "{line}");
        }
    }

    fn parse(line: &str) -> MountRequest {
        let words: Vec<String> = line.split(',').map(str::to_owned).collect();
        MountRequest::parse("a:1:/fs", &words, false).unwrap()
    }

    #[test]
    fn the_last_of_ro_and_rw_counts() {
        let changed = parse("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro");
        assert!(changed.remount && changed.settings.read_only && changed.options.read_only);
        let back = parse("ro,remount,rw");
        assert!(back.remount && !back.settings.read_only && !back.options.read_only);
        assert!(!parse("ro").remount);
    }
}
