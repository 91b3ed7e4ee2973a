//! Mounting and unmounting: by the system call as root, through fusermount3 otherwise.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
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
    /// The device that `df` shows.
    pub source: &'a str,
    /// The type after `fuse.`.
    pub kind: &'a str,
    /// Mount flags that the kernel enforces.
    pub flags: MountFlags,
    /// Other users may access the mount. Without root this needs `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
}

impl Mountpoint<'_> {
    /// Mounts. Returns the mount's `/dev/fuse` descriptor, which [`Session::start`](crate::Session::start) serves; the kernel
    /// checks permissions (`default_permissions`).
    ///
    /// # Errors
    /// The kernel or fusermount3 refuses; `NotFound` if there is no FUSE or no fusermount3 on this machine.
    pub fn mount(&self) -> io::Result<OwnedFd> {
        if rustix::process::geteuid().is_root() {
            match self.by_system_call() {
                // Root of a container without the right to mount: try fusermount3.
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
        // The only descriptor that fusermount3 inherits.
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
        // Commas separate options.
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

/// Receives a descriptor over a socket.
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

/// Detaches the file system at a directory (lazy unmount); programs that use it keep access.
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

/// A mount of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// The device that `df` shows.
    pub source: String,
    /// The directory.
    pub place: PathBuf,
    /// The type, `fuse.adamant`.
    pub kind: String,
}

/// All mounts that this process sees, in mount order: of several at one place the last one is on top.
pub fn mounts() -> Vec<Mounted> {
    listed(&std::fs::read("/proc/self/mounts").unwrap_or_default())
}

/// Parses the kernel's list: one mount per line, words separated by blanks.
fn listed(text: &[u8]) -> Vec<Mounted> {
    let read = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').map(plain);
        let mut text = || Some(String::from_utf8_lossy(&words.next()?).into_owned());
        let source = text()?;
        let place = PathBuf::from(OsString::from_vec(words.next()?));
        let kind = String::from_utf8_lossy(&words.next()?).into_owned();
        Some(Mounted { source, place, kind })
    };
    text.split(|byte| *byte == b'\n').filter_map(read).collect()
}

/// Decodes the kernel's octal escapes (`\040`) for blanks and line ends within a word.
fn plain(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let number = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_blanks_are_read() {
        let text = b"proc /proc proc rw,nosuid 0 0\n\
            127.0.0.1:1:/fs /mnt/a\\040b\\011c\\012d\\134e fuse.adamant rw 0 0\n\
            unix:/x\\043y:/fs /mnt/\xff\\04 fuse.adamant rw 0 0\n\n";
        let read: Vec<(String, OsString, String)> =
            listed(text).into_iter().map(|m| (m.source, m.place.into_os_string(), m.kind)).collect();
        let ours = |source: &str, place: &[u8]| {
            (source.to_owned(), OsString::from_vec(place.to_vec()), "fuse.adamant".to_owned())
        };
        assert_eq!(read[0], ("proc".into(), "/proc".into(), "proc".into()));
        assert_eq!(read[1], ours("127.0.0.1:1:/fs", b"/mnt/a b\tc\nd\\e"));
        assert_eq!(read[2], ours("unix:/x#y:/fs", b"/mnt/\xff\\04"));
        assert_eq!(read.len(), 3);
    }
}
