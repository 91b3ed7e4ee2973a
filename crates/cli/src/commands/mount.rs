//! `adamant mount`: mounts a file system; also `mount -t adamant` and fstab.

mod request;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use fuse::FuseMount;
use host::admin::{self, Description, Device, Request, Response};
use host::client::Mount;
use parking_lot::Mutex;
use proto::Errno;
use proto::params::{Component, OfMountCommand};
use stdx::wildcard;
use tokio::sync::Notify;

use crate::commands::status;
use crate::daemon;
use crate::misuse::Misuse;
pub(crate) use request::{MountRequest, Source, parse_source};

/// Mount a file system
///
/// Example: adamant mount 127.0.0.1:7988:/adamant /mnt -o ro
#[derive(Args)]
pub(crate) struct Arguments {
    /// File system, or a directory in it: NID[:NID...]:/FSNAME[/DIRECTORY]
    pub source: String,
    /// Mount point
    pub directory: PathBuf,
    /// ro, soft=SECONDS, flock, user_xattr and others of Lustre's, max_dirty_mb=N, max_cached_mb=N, max_read_ahead_mb=N, max_nodes_mb=N, max_rpcs_in_flight=N, max_mod_rpcs_in_flight=N, sync_metadata, metadata_write_back, always_ping, allow_faults, allow_other, no_allow_other, nouring, threads=N, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime
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
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let request = MountRequest::parse(&arguments.source, &arguments.options, arguments.sloppy)
        .map_err(|error| Misuse::because(format_args!("{error:#}")))?;
    let directory = std::path::absolute(&arguments.directory)?;
    if request.remount {
        remount(&request, &directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.foreground || arguments.background {
        if arguments.background {
            daemon::detach();
        }
        host::log::start();
        host::process::prepare();
        let starter = if arguments.background { Starter::Command } else { Starter::Person };
        let mounted = Mounted::start(&request, directory, starter);
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                if arguments.background {
                    daemon::tell_parent(&format!("{error:#}"));
                }
                return Err(error);
            }
        };
        if arguments.background && !daemon::tell_parent("ready") {
            return mounted.give_up();
        }
        mounted.run()?;
        return Ok(ExitCode::SUCCESS);
    }
    start_in_background(&arguments.source, &directory, &arguments.options, "")?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts from a process in the background. Returns its process id. `if_ended`: see [`daemon::start`].
pub(crate) fn start_in_background(
    source: &str,
    directory: &std::path::Path,
    options: &[String],
    if_ended: &str,
) -> anyhow::Result<u32> {
    let mut words = vec!["mount".to_owned(), source.to_owned(), directory.display().to_string()];
    if !options.is_empty() {
        words.extend(["-o".to_owned(), options.join(",")]);
    }
    let log = daemon::log_path(&log_name(directory));
    let process = daemon::start(&words, &log, if_ended)?;
    if let Some(folder) = log.parent() {
        // Old logs do no harm, and the mount has succeeded.
        let _ = daemon::remove_old_logs(folder, daemon::ENDED_LOGS_MAX);
    }
    Ok(process)
}

/// The name of a mount's log: the mount point, without characters that a file name cannot hold or a terminal would not
/// print.
fn log_name(directory: &std::path::Path) -> String {
    let plain = |c: char| if c == '/' || c.is_control() { '-' } else { c };
    let mut name: String = directory.display().to_string().chars().map(plain).collect();
    if name.len() > LOG_NAME_MAX {
        let sum = name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let cut = (0..=LOG_NAME_MAX).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        name.truncate(cut);
        name.push_str(&format!("-{sum:016x}"));
    }
    format!("mount{name}")
}

/// The most bytes of the mount point in the name of its log.
const LOG_NAME_MAX: usize = 200;

/// The parameter that holds a mount's options that are fixed at mount time.
const SETTLED: &str = "llite.*.mount_options";

/// Changes the settings of an existing mount that the kernel handles.
fn remount(request: &MountRequest, directory: &std::path::Path) -> anyhow::Result<()> {
    let settings = &request.settings;
    let place = directory.display().to_string();
    let same = |place: &String| std::fs::canonicalize(place).ok() == std::fs::canonicalize(directory).ok();
    let is_there = |process: &status::Process| process.role == "mount" && process.description.places.iter().any(same);
    let Some(process) = status::newest(is_there) else {
        bail!("no file system of ours is mounted at {place}; see 'adamant status'")
    };
    let settled = process.params(SETTLED).pop().map(|(_, words)| words);
    if let Some(words) = settled
        && let Some(new) = request.settled.iter().find(|word| !words.split(',').any(|settled| settled == **word))
    {
        bail!(
            "mount option '{new}' cannot be given to {place}, which was mounted without it: unmount it and mount it again (some can be set: lctl list_param 'llite.*')"
        );
    }
    if !settings.read_only && process.params("llite.*.read_only").iter().any(|(_, value)| value == "1") {
        bail!("{place} was mounted with ro, and its servers know it: unmount it and mount it again with rw");
    }
    // The kernel releases a removed file a moment after the last program has closed it.
    let start = std::time::Instant::now();
    loop {
        match fuse::remount(settings, directory) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                if start.elapsed() > Duration::from_secs(2) {
                    bail!(
                        "{place} has files open for writing; end the programs that use it (see: fuser -vm {place}), then try again"
                    );
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.with_context(|| format!("cannot remount {place}")),
        }
    }
}

/// What started a process that mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Starter {
    /// A command that continues once the file system is mounted; if it ends earlier, this process ends too.
    Command,
    /// A person or a script; no other process depends on this one.
    Person,
}

/// A mount that runs in this process.
pub(crate) struct Mounted {
    mount: Arc<FuseMount>,
    signals: daemon::Signals,
    _admin: Option<admin::AdminSocket>,
}

/// How long a client may take to leave if it is given up before it was mounted.
const GIVING_UP: Duration = Duration::from_secs(2);

impl Mounted {
    /// Mounts. Waits for the servers as long as it takes, or until it is asked to stop.
    pub(crate) fn start(request: &MountRequest, directory: PathBuf, starter: Starter) -> anyhow::Result<Mounted> {
        let mut options = request.options.clone();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        options.description = format!("{host}:{}", directory.display());
        let (fsname, uuid) = (options.fsname.clone(), options.uuid.to_string());
        // From now on, while it waits and when it is mounted, the process handles requests to stop, and requests for
        // parameters.
        let mut signals = daemon::Signals::catch_with_hangup()?;
        let claim = fuse::Claim::new(&directory)?;
        let place = claim.directory().display().to_string();
        let connecting = claim.connect(options)?;
        let client = connecting.client().clone();
        let about = About {
            client: client.clone(),
            faults: request.options.faults.clone(),
            fsname,
            uuid,
            place,
            settled: request.settled.join(","),
            standing: Mutex::new(Standing::Waiting),
        };
        let about = Arc::new(about);
        let asked = about.clone();
        let admin = admin::serve("mount", move |request| asked.answer(request));
        let admin =
            admin.map_err(|error| tracing::warn!("no admin socket, so lctl cannot see this mount: {error}")).ok();

        let (sender, connected) = mpsc::channel();
        let woken = Arc::new(Notify::new());
        let waker = woken.clone();
        let settings = request.settings.clone();
        std::thread::Builder::new().name("connect".to_owned()).spawn(move || {
            let _ = sender.send(connecting.wait(&settings));
            waker.notify_one();
        })?;
        let mut result = None;
        let mut reported = Vec::new();
        let mut done = || {
            result = connected.try_recv().ok();
            let waits = client.waits();
            if waits != reported && result.is_none() {
                match starter {
                    Starter::Command => daemon::tell_parent_waits(&waits),
                    Starter::Person => eprintln!("waiting: {}", waits.join("; ")),
                }
                reported = waits;
            }
            let left = starter == Starter::Command && daemon::parent_is_gone();
            result.is_some() || left || *about.standing.lock() == Standing::Cancelled
        };
        let signalled = signals.wait_woken(&woken, &mut done);
        match result {
            Some(connected) if !signalled => {
                let mount = Arc::new(connected?.mount(&request.settings)?);
                let mounted = Mounted { mount, signals, _admin: admin };
                if !about.mark_visible() {
                    mounted.give_up()?;
                    bail!("the mount on {} was ended as soon as it was there", directory.display());
                }
                Ok(mounted)
            }
            _ => {
                let _ = client.unmount(GIVING_UP);
                bail!("the mount on {} was given up before it was there", directory.display())
            }
        }
    }

    /// Takes down a mount that is not wanted any more.
    fn give_up(self) -> anyhow::Result<ExitCode> {
        take_away(self.mount.directory(), true)?;
        self.run()?;
        Ok(ExitCode::from(1))
    }

    /// Serves the mount until it is unmounted or the process is asked to stop. Either way the data of programs is written
    /// back, unless the process is asked to stop again.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Mounted { mount, mut signals, _admin } = self;
        let (sender, ends) = mpsc::channel();
        let (waiting, served) = (mount.clone(), sender.clone());
        std::thread::Builder::new().name("session".to_owned()).spawn(move || {
            let _ = served.send(waiting.wait());
        })?;
        let mut result = None;
        let mut ended = || {
            let failed = || mount.client().failure().map(|failure| Err(std::io::Error::other(failure)));
            result = ends.try_recv().ok().or_else(failed);
            result.is_some()
        };
        if signals.wait(&mut ended) {
            let ending = mount.clone();
            std::thread::Builder::new().name("end".to_owned()).spawn(move || {
                if let Some(result) = end(&ending) {
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

/// How long the session of a mount that no program uses may take to end after the unmount.
const SESSION_END: Duration = Duration::from_secs(5);

/// Takes a mount down. If programs use it, their calls fail from now on, and the directory is free afterwards; returns the
/// result of that. Otherwise, or if umount(8) was first, its session ends, and writes back the data of programs; returns
/// `None`.
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
    let place = directory.display();
    tracing::warn!(
        "{place} was told to end while programs use it: what they have written is written back, and their calls fail"
    );
    let result = mount.write_back();
    if let Some(error) = in_use.and_then(|_| take_away(directory, true).err()) {
        tracing::warn!("{place} stays a mount whose process has ended; free it with: umount -l {place} ({error})");
    }
    Some(result)
}

fn is_mounted(directory: &std::path::Path) -> bool {
    fuse::mounts().iter().any(|mount| mount.place == directory)
}

/// Unmounts a directory, like umount(8).
pub(crate) fn unmount(directory: &std::path::Path) -> anyhow::Result<()> {
    let place = directory.display();
    match take_away(directory, false) {
        Err(error) if error.raw_os_error() == Some(16) => {
            bail!("{place} is in use; end the programs that use it (see: fuser -vm {place}), then try again")
        }
        Err(error) => Err(error).with_context(|| format!("cannot unmount {place}")),
        Ok(()) => Ok(()),
    }
}

/// Unmounts a directory. If programs use the mount, that works only `lazily`, which detaches it from its directory.
pub(crate) fn take_away(directory: &std::path::Path, lazily: bool) -> std::io::Result<()> {
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

/// The data from which a process that mounts answers admin requests.
struct About {
    client: Mount,
    faults: stdx::Faults,
    fsname: String,
    uuid: String,
    place: String,
    /// Its options that are fixed at mount time, separated by commas.
    settled: String,
    standing: Mutex<Standing>,
}

/// The progress of a mount, for requests to end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Its servers have not answered, or it is not visible yet.
    Waiting,
    /// The same, but it is to end.
    Cancelled,
    /// It is visible at its directory.
    Visible,
}

impl About {
    fn answer(&self, request: Request) -> Response {
        match request {
            Request::GetParam { pattern } => {
                let mut found = host::faults::get(&self.faults, &pattern);
                found.extend(host::log::get(&pattern));
                found.extend(self.client.get_params(&pattern));
                let (device, _) = self.client.devices();
                let name = |device: &str| OfMountCommand::MountOptions.declared().name(Component::Llite, &[device]);
                if [&device, &self.fsname].into_iter().any(|one| wildcard::matches(&pattern, &name(one))) {
                    found.push((name(&device), self.settled.clone()));
                    found.sort();
                }
                Response::Params(found)
            }
            Request::SetParam { pattern, value } => {
                let of_process =
                    host::log::set(&pattern, &value).or_else(|| host::faults::set(&self.faults, &pattern, &value));
                of_process.unwrap_or_else(|| set(&self.client, &pattern, &value))
            }
            Request::Describe => Response::Description(self.describe()),
            Request::Survey { .. } => {
                Response::Failed(Errno::ENODEV.raw(), "no metadata target runs in this process".to_owned())
            }
            // It is about to end, and another mount may be at its place now.
            Request::Shutdown if !self.client.is_up() => Response::Done,
            Request::Shutdown if self.cancel_unless_visible() => Response::Done,
            Request::Shutdown => match unmount(std::path::Path::new(&self.place)) {
                Ok(()) => Response::Done,
                Err(error) => Response::Failed(Errno::EBUSY.raw(), format!("{error:#}")),
            },
        }
    }

    /// Cancels a mount that is not visible yet. Returns whether it was cancelled.
    fn cancel_unless_visible(&self) -> bool {
        let mut standing = self.standing.lock();
        if *standing == Standing::Waiting {
            *standing = Standing::Cancelled;
        }
        *standing == Standing::Cancelled
    }

    /// Marks the mount as visible. Returns whether it is still wanted.
    fn mark_visible(&self) -> bool {
        std::mem::replace(&mut *self.standing.lock(), Standing::Visible) != Standing::Cancelled
    }

    /// The mount as a whole, and the connections of its client.
    fn devices(&self, state: &str) -> Vec<Device> {
        let (_, others) = self.client.devices();
        let device = |kind: &str, name: String, uuid: String, refs: u64| Device {
            state: state.to_owned(),
            kind: kind.to_owned(),
            name,
            uuid,
            place: self.place.clone(),
            refs: Some(refs),
        };
        let whole = device("client", format!("{}-client", self.fsname), self.uuid.clone(), 1 + others.len() as u64);
        let others = others.into_iter().map(|other| device(other.kind, other.name, other.uuid, other.references));
        std::iter::once(whole).chain(others).collect()
    }

    fn describe(&self) -> Description {
        let state = match (self.client.is_up(), *self.standing.lock()) {
            (false, _) | (true, Standing::Cancelled) => "ST",
            (true, Standing::Waiting) => "AT",
            (true, Standing::Visible) => "UP",
        };
        Description {
            pid: std::process::id(),
            role: "mount".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fsname: self.fsname.clone(),
            places: vec![self.place.clone()],
            devices: self.devices(state),
            waits: self.client.waits(),
            mgs: Vec::new(),
        }
    }
}
