//! Mounting a client on a directory, and unmounting it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use client::api::{Answer, KernelNode, Options};
use fusewire::abi::flags;
use fusewire::{Mounted, Mountpoint, Notifier, Session, Transport};
use host::client::{Kernel, Mount};
use parking_lot::Mutex;
use proto::Errno;
use proto::msg::Cred;
use rustix::fs::{Access, FlockOperation};
use rustix::mount::MountFlags;

use crate::Call;
use crate::error::MountError;
use crate::interrupts::Interrupts;
use crate::job::Jobs;
use crate::session::Adapter;

/// Threads that take requests from the kernel.
const THREADS: usize = 8;

/// The longest time for writing back at the end of a mount, because servers may be away.
const WRITE_BACK_MAX: Duration = Duration::from_secs(60);

/// The type of our mounts, after `fuse.`.
const KIND: &str = "adamant";

/// Our mounts on this machine.
pub fn mounts() -> Vec<Mounted> {
    fusewire::mounts().into_iter().filter(|mount| mount.kind.strip_prefix("fuse.") == Some(KIND)).collect()
}

/// Settings of a mount.
#[derive(Clone, Debug)]
pub struct MountSettings {
    /// The device that `df` shows, `127.0.0.1:7988:/adamant`.
    pub source: String,
    /// The path of the mount's root in the file system, as names; empty for the file system's root.
    pub subtree: Vec<String>,
    /// Other users may access the mount. Needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Read-only.
    pub read_only: bool,
    /// Mount options that the kernel implements: `nosuid`, `nodev`, `noexec`, `noatime`, ...
    pub kernel_options: Vec<String>,
    /// Threads that take requests from the kernel over `/dev/fuse`; 0 for the default.
    pub threads: usize,
    /// Use io_uring if the kernel supports it; otherwise `/dev/fuse`.
    pub uring: bool,
}

/// A client mounted on a directory.
pub struct FuseMount {
    client: Mount,
    transport: Transport,
    session: Mutex<Option<Session>>,
    kernel: Arc<KernelCaches>,
    directory: PathBuf,
}

impl std::fmt::Debug for FuseMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FuseMount({})", self.directory.display())
    }
}

impl FuseMount {
    /// The client.
    pub fn client(&self) -> &Mount {
        &self.client
    }

    /// The transport of the kernel's requests.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The mount point, as the kernel lists it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits until the directory is unmounted, and writes back programs' data.
    ///
    /// # Errors
    /// The session failed, or not everything was written back.
    pub fn wait(&self) -> io::Result<()> {
        let session = self.session.lock().take();
        let served = session.map_or(Ok(()), Session::join);
        self.client.unmount(WRITE_BACK_MAX).map_err(io::Error::other).and(served)
    }

    /// Writes back programs' data while programs still use the mount; from now on their calls fail.
    ///
    /// # Errors
    /// Not everything was written back.
    pub fn write_back(&self) -> io::Result<()> {
        let start = Instant::now();
        // Data written through mappings is in the kernel's page cache. In syncfs(2) the kernel does not wait for FUSE pages, but it does
        // before it drops them.
        let (kernel, files) = (self.kernel.clone(), self.client.files_in_kernel());
        let (sender, written) = mpsc::channel();
        std::thread::Builder::new().name("pages".to_owned()).spawn(move || {
            for ino in files {
                kernel.forget_inode(ino, 0, u64::MAX);
            }
            let _ = sender.send(());
        })?;
        let _ = written.recv_timeout(WRITE_BACK_MAX);
        self.client.unmount(WRITE_BACK_MAX.saturating_sub(start.elapsed())).map_err(io::Error::other)
    }
}

/// A mount point reserved for this process: a lock on the directory, until something is mounted on it.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    _lock: Option<File>,
}

impl Claim {
    /// Claims a directory.
    ///
    /// # Errors
    /// The directory cannot be mounted on, or is claimed or mounted on already: a sentence.
    pub fn new(directory: &Path) -> Result<Claim, MountError> {
        check_kind(directory)?;
        // Before it is opened, because opening a mounted directory sends a request to its servers.
        check_free(directory)?;
        let lock = lock(directory)?;
        // Again, because the previous holder of the lock may have mounted here.
        check_free(directory)?;
        let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_path_buf());
        Ok(Claim { directory, _lock: lock })
    }

    /// The directory, as the kernel lists it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the client that will be mounted here, without waiting for servers.
    ///
    /// # Errors
    /// The operating system refused a thread or a descriptor.
    pub fn connect(self, options: Options) -> Result<Connecting, MountError> {
        let kernel = Arc::new(KernelCaches::default());
        let identity = format!("{}\n{}\n", options.fsname, options.uuid);
        let client = Mount::launch(options, kernel.clone())?;
        Ok(Connecting { client, identity, kernel, claim: self })
    }
}

/// A client that is connecting.
pub struct Connecting {
    client: Mount,
    identity: String,
    kernel: Arc<KernelCaches>,
    claim: Claim,
}

impl Connecting {
    /// The client.
    pub fn client(&self) -> &Mount {
        &self.client
    }

    /// Waits for the servers without a limit; [`Mount::waits`] names those that it waits for.
    ///
    /// # Errors
    /// The servers refuse, or the client was stopped: a sentence.
    pub fn wait(self, settings: &MountSettings) -> Result<Connected, MountError> {
        let Connecting { client, identity, kernel, claim } = self;
        client.wait_mounted()?;
        let root = match find_subtree(&client, &settings.subtree) {
            Ok(root) => root,
            Err(error) => {
                let _ = client.unmount(Duration::from_secs(5));
                return Err(error);
            }
        };
        let _ = kernel.root.set(root);
        Ok(Connected { client, root, identity, kernel, claim })
    }
}

/// A connected client that is not mounted yet.
pub struct Connected {
    client: Mount,
    root: u64,
    identity: String,
    kernel: Arc<KernelCaches>,
    claim: Claim,
}

impl Connected {
    /// Mounts it on its directory.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn mount(self, settings: &MountSettings) -> Result<FuseMount, MountError> {
        let Connected { client, root, identity, kernel, claim } = self;
        let directory = claim.directory.clone();
        let failed = |error: io::Error| {
            let _ = client.unmount(Duration::from_secs(5));
            match error.kind() {
                io::ErrorKind::NotFound => MountError::NoFuse,
                io::ErrorKind::PermissionDenied => {
                    MountError::NotPermitted { directory: directory.clone(), error, advice: advice(settings) }
                }
                _ => MountError::Kernel { directory: directory.clone(), error },
            }
        };
        let interrupts = Interrupts::watch(client.clone()).map_err(failed)?;
        let adapter = Arc::new(Adapter { client: client.clone(), identity, root, interrupts, jobs: Jobs::default() });
        let place = Mountpoint {
            directory: &directory,
            source: &settings.source,
            kind: KIND,
            flags: kernel_flags(settings),
            allow_other: settings.allow_other,
        };
        let session = Session::mount(&place, &session_options(settings), adapter).map_err(failed)?;
        tracing::info!("{} is served over {}", directory.display(), session.transport());
        let _ = kernel.notifier.set(session.notifier());
        let transport = session.transport();
        Ok(FuseMount { client, transport, session: Mutex::new(Some(session)), kernel, directory })
    }
}

/// What to do when mounting is not permitted.
fn advice(settings: &MountSettings) -> &'static str {
    let device = rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK);
    match (device, settings.allow_other, rustix::process::geteuid().is_root()) {
        (Err(_), _, false) => "; this user needs to read and write /dev/fuse (as root: chmod 666 /dev/fuse)",
        (Err(_), _, true) | (Ok(()), _, true) => "; a container needs /dev/fuse and the capability CAP_SYS_ADMIN",
        (Ok(()), true, false) => "; as a user, leave allow_other away or set user_allow_other in /etc/fuse.conf",
        (Ok(()), false, false) => "",
    }
}

/// Options of the session with the kernel. Not among them is the flag by which `open` truncates: the kernel notices only afterwards
/// that a program runs from the file (`ETXTBSY`), if the open is not for writing.
fn session_options(settings: &MountSettings) -> fusewire::Options {
    fusewire::Options {
        flags: flags::POSIX_LOCKS
            | flags::FLOCK_LOCKS
            | flags::DONT_MASK
            | flags::DO_READDIRPLUS
            | flags::READDIRPLUS_AUTO
            | flags::ASYNC_DIO
            | flags::PARALLEL_DIROPS
            | flags::POSIX_ACL
            | flags::CACHE_SYMLINKS
            | flags::EXPLICIT_INVAL_DATA
            | flags::HANDLE_KILLPRIV_V2
            | flags::DIRECT_IO_ALLOW_MMAP
            | flags::HAS_IOCTL_DIR,
        threads: if settings.threads == 0 { THREADS } else { settings.threads },
        uring: settings.uring,
        ..fusewire::Options::default()
    }
}

/// The node of a subtree's directory. It stays open as long as the client exists, so that it stays valid even if another client
/// renames or changes it.
fn find_subtree(client: &Mount, names: &[String]) -> Result<u64, MountError> {
    let mut ino = fusewire::abi::ROOT;
    if names.is_empty() {
        return Ok(ino);
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let cred = Cred { uid, gid, ..Cred::default() };
    let refused = |errno: Errno| MountError::NoSubtree { subtree: names.join("/"), errno };
    let mut looked_up = Vec::new();
    for name in names {
        let call = Call::Lookup { parent: ino, name: name.clone().into() };
        match client.call(cred.clone(), call).map_err(refused)? {
            Answer::Entry(stat) => ino = stat.ino,
            _ => return Err(refused(Errno::EIO)),
        }
        looked_up.push(ino);
    }
    client.call(cred.clone(), Call::Opendir { ino }).map_err(refused)?;
    // The kernel knows the last one, and is notified when it changes.
    looked_up.pop();
    for ino in looked_up {
        let _ = client.call(cred.clone(), Call::Forget { ino, count: 1 });
    }
    Ok(ino)
}

/// Mount flags that the kernel enforces.
fn kernel_flags(settings: &MountSettings) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.read_only);
    for option in &settings.kernel_options {
        match option.as_str() {
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "noatime" => flags |= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "strictatime" => flags |= MountFlags::STRICTATIME,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "dirsync" => flags |= MountFlags::DIRSYNC,
            // suid, dev, exec, atime and relatime are the defaults.
            _ => {}
        }
    }
    flags
}

/// Changes the mount flags that the kernel enforces, `ro`, `nosuid` and the like.
///
/// # Errors
/// Those of mount(2).
pub fn remount(settings: &MountSettings, directory: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(directory, kernel_flags(settings), c"")?)
}

fn check_kind(directory: &Path) -> Result<(), MountError> {
    let own = || directory.to_path_buf();
    match std::fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MountError::NoDirectory(own())),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Err(MountError::LeftOver(own())),
        Err(error) => Err(MountError::Unusable { directory: own(), error }),
        Ok(metadata) if !metadata.is_dir() => Err(MountError::NotADirectory(own())),
        Ok(_) => Ok(()),
    }
}

fn check_free(directory: &Path) -> Result<(), MountError> {
    let wanted = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_path_buf());
    if mounts().iter().any(|mount| mount.place == wanted) {
        return Err(MountError::Mounted(directory.to_path_buf()));
    }
    Ok(())
}

/// A lock on a directory, released when the file is closed. `None` if its file system has no such locks, or this user may not read it.
fn lock(directory: &Path) -> Result<Option<File>, MountError> {
    let Ok(file) = File::open(directory) else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(MountError::Claimed(directory.to_path_buf())),
        Err(_) => Ok(None),
    }
}

/// The kernel's caches, as the client sees them.
#[derive(Default)]
struct KernelCaches {
    notifier: OnceLock<Notifier>,
    /// The node that the kernel uses as the root, once it is known.
    root: OnceLock<u64>,
}

impl KernelCaches {
    /// The kernel's number of a node.
    fn node(&self, ino: u64) -> u64 {
        if self.root.get() == Some(&ino) { fusewire::abi::ROOT } else { ino }
    }
}

impl Kernel for KernelCaches {
    fn forget_inode(&self, ino: u64, offset: u64, length: u64) -> bool {
        let Some(notifier) = self.notifier.get() else { return true };
        // A negative offset means attributes only; a length of 0 means to the end.
        let (offset, length) = match length {
            0 => (-1, 0),
            u64::MAX => (offset as i64, 0),
            length => (offset as i64, i64::try_from(length).unwrap_or(0)),
        };
        notifier.inval_inode(self.node(ino), offset, length)
    }

    fn forget_entry(&self, parent: u64, name: &[u8]) {
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_entry(self.node(parent), name);
        }
    }

    fn let_go(&self, nodes: &[KernelNode]) {
        let Some(notifier) = self.notifier.get() else { return };
        let inos: Vec<u64> = nodes.iter().map(|node| node.ino).collect();
        if notifier.prune(&inos) {
            return;
        }
        // An older kernel drops names one by one.
        for (parent, name) in nodes.iter().flat_map(|node| &node.names) {
            self.forget_entry(*parent, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_claimed_once() {
        let place = tempfile::tempdir().unwrap();
        let first = Claim::new(place.path()).unwrap();
        let refused = Claim::new(place.path()).unwrap_err();
        assert!(matches!(refused, MountError::Claimed(_)), "{refused}");
        assert!(refused.to_string().contains("another process is about to mount there"), "{refused}");
        drop(first);
        Claim::new(place.path()).unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Claim::new(&file), Err(MountError::NotADirectory(_))));
        let absent = Claim::new(&place.path().join("none")).unwrap_err();
        assert!(matches!(absent, MountError::NoDirectory(_)) && absent.to_string().contains("mkdir -p"), "{absent}");
    }
}
