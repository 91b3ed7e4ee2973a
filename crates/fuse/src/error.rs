//! Why a mount under a directory cannot be.

use std::io;
use std::path::PathBuf;

use host::client::LaunchError;
use proto::Errno;
use thiserror::Error;

/// Why a mount under a directory cannot be.
#[derive(Debug, Error)]
pub enum MountError {
    /// The mount point is not there.
    #[error("mount point {path} does not exist; create it with: mkdir -p {path}", path = .0.display())]
    NoDirectory(PathBuf),
    /// The mount point is no directory.
    #[error("mount point {} is not a directory; choose or create one", .0.display())]
    NotADirectory(PathBuf),
    /// The process of an earlier mount there has died.
    #[error("mount point {path} is left over from a mount whose process died; free it with: umount -l {path}", path = .0.display())]
    LeftOver(PathBuf),
    /// The mount point cannot be looked at.
    #[error("mount point {}: {error}", .directory.display())]
    Unusable {
        /// The mount point.
        directory: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file system of ours is mounted there.
    #[error(
        "mount point {} is busy: an Adamant file system is mounted there; unmount it first or choose another directory",
        .0.display()
    )]
    Mounted(PathBuf),
    /// Another process is about to mount there.
    #[error(
        "mount point {} is busy: another process is about to mount there (see 'adamant status'); end it first or choose another directory",
        .0.display()
    )]
    Claimed(PathBuf),
    /// The client cannot run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The servers refuse the client, or it was ended.
    #[error(transparent)]
    Client(#[from] host::client::MountError),
    /// The directory that is to be the mount's root is not in the file system.
    #[error(
        "the file system has no directory '/{subtree}' for this user ({errno}); make it in a mount of the whole first"
    )]
    NoSubtree {
        /// Its path.
        subtree: String,
        /// What a lookup gave.
        errno: Errno,
    },
    /// The kernel has no FUSE.
    #[error("this machine cannot mount FUSE file systems; install the package fuse3 and load the module fuse")]
    NoFuse,
    /// This user, or this container, may not mount.
    #[error("mounting {} is not permitted: {error}{advice}", .directory.display())]
    NotPermitted {
        /// The mount point.
        directory: PathBuf,
        /// What the system says.
        error: io::Error,
        /// What to do, after a semicolon; empty if nothing is known.
        advice: &'static str,
    },
    /// The kernel refuses for another reason.
    #[error("cannot mount {}: {error}", .directory.display())]
    Kernel {
        /// The mount point.
        directory: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}
