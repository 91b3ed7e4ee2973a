//! Conversions between values of the kernel and of the client.

use std::time::Duration;

use client::api::{SetTime, Stat, object_number};
use fusewire::{Attr, Entry, TimeChange};

/// How long the kernel may cache what a lock covers: in effect forever.
const LONG: Duration = Duration::from_secs(86400 * 365);

/// How long the kernel may cache attributes or a name that a lock covers, or does not.
pub(crate) fn validity(covered: bool) -> Duration {
    if covered { LONG } else { Duration::ZERO }
}

/// Attributes for the kernel.
pub(crate) fn attributes(stat: &Stat) -> Attr {
    Attr {
        ino: object_number(stat.ino),
        size: stat.size,
        blocks: stat.blocks,
        atime_ns: stat.atime_ns,
        mtime_ns: stat.mtime_ns,
        ctime_ns: stat.ctime_ns,
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: kernel_device(stat.rdev),
        blksize: 4096,
    }
}

/// A name's node for the kernel.
pub(crate) fn entry(stat: &Stat, entry_valid: Duration, attr_valid: Duration) -> Entry {
    Entry { node: stat.ino, attr: attributes(stat), entry_valid, attr_valid }
}

/// `st_rdev` to the kernel's 32-bit encoding.
pub(crate) fn kernel_device(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The kernel's 32-bit encoding to `st_rdev`.
pub(crate) fn user_device(rdev: u32) -> u64 {
    libc::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// A time of a setattr.
pub(crate) fn set_time(time: TimeChange) -> SetTime {
    time.ns().map_or(SetTime::Now, SetTime::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_kernels_encoding() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            let rdev = libc::makedev(major, minor);
            assert_eq!(user_device(kernel_device(rdev)), rdev, "{major}:{minor}");
        }
    }
}
