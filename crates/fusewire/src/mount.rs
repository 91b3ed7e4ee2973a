//! Putting a file system under a directory: by the system call as root, through fusermount3 otherwise.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, IoSliceMut};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

/// Where and how a file system is mounted.
#[derive(Clone, Debug)]
pub struct Mountpoint<'a> {
    /// The directory.
    pub directory: &'a Path,
    /// What `df` shows as the device.
    pub source: &'a str,
    /// The type after `fuse.`.
    pub kind: &'a str,
    /// What the kernel looks after by itself.
    pub flags: MountFlags,
    /// Other users may enter. Without root it needs `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
}

impl Mountpoint<'_> {
    /// Mounts. The descriptor is the mount's `/dev/fuse`, which [`Session::start`](crate::Session::start) serves; the kernel
    /// checks permissions by itself (`default_permissions`).
    ///
    /// # Errors
    /// The kernel or fusermount3 refuses; `NotFound` if there is no FUSE or no fusermount3 on this machine.
    pub fn mount(&self) -> io::Result<OwnedFd> {
        if rustix::process::geteuid().is_root() {
            match self.by_system_call() {
                // Root of a container that may not mount.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                result => return result,
            }
        }
        self.by_fusermount()
    }

    fn by_system_call(&self) -> io::Result<OwnedFd> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
            device.as_raw_fd(),
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        let data = std::ffi::CString::new(data)?;
        let kind = format!("fuse.{}", self.kind);
        rustix::mount::mount(self.source, self.directory, kind.as_str(), self.flags, Some(data.as_c_str()))?;
        Ok(device)
    }

    fn by_fusermount(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The one end that fusermount3 inherits.
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        let child = Command::new("fusermount3")
            .arg("-o")
            .arg(self.options())
            .arg("--")
            .arg(self.directory)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
            .stderr(std::process::Stdio::piped())
            .spawn()?;
        drop(theirs);
        let device = receive(&ours);
        let output = child.wait_with_output()?;
        match device {
            Some(device) if output.status.success() => Ok(device),
            _ => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(io::Error::new(io::ErrorKind::PermissionDenied, said))
            }
        }
    }

    fn options(&self) -> String {
        // Commas part options.
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut options = format!("fsname={source},subtype={},default_permissions", self.kind);
        let names = [
            (MountFlags::RDONLY, "ro"),
            (MountFlags::NOSUID, "nosuid"),
            (MountFlags::NODEV, "nodev"),
            (MountFlags::NOEXEC, "noexec"),
            (MountFlags::NOATIME, "noatime"),
            (MountFlags::SYNCHRONOUS, "sync"),
            (MountFlags::DIRSYNC, "dirsync"),
        ];
        for (flag, name) in names {
            if self.flags.contains(flag) {
                options.push(',');
                options.push_str(name);
            }
        }
        if self.allow_other {
            options.push_str(",allow_other");
        }
        options
    }
}

/// The descriptor that comes over a socket.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Takes the file system away under a directory; programs that use it still keep theirs.
///
/// # Errors
/// The kernel or fusermount3 refuses.
pub fn unmount(directory: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(directory, UnmountFlags::DETACH)?);
    }
    let status = Command::new("fusermount3").arg("-u").arg("-q").arg("-z").arg("--").arg(directory).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3: {status}"))) }
}
