//! Values of the kernel and of the client, one into the other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::api::{SetTime, Stat};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use proto::Errno;

/// How long the kernel keeps what a lock covers: for ever, in its terms.
const LONG: Duration = Duration::from_secs(86400 * 365);

/// How long the kernel may keep something.
pub fn validity(covered: bool) -> Duration {
    if covered { LONG } else { Duration::ZERO }
}

/// An error for the kernel.
pub fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw())
}

/// Attributes for the kernel.
pub fn attributes(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime_ns),
        mtime: time(stat.mtime_ns),
        ctime: time(stat.ctime_ns),
        crtime: time(stat.btime_ns),
        kind: kind(stat.mode >> 12),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: kernel_device(stat.rdev),
        blksize: 4096,
        flags: 0,
    }
}

/// A file type from `S_IFMT >> 12`, which is `DT_*`.
pub fn kind(kind: u32) -> FileType {
    match kind & 0o17 {
        0o1 => FileType::NamedPipe,
        0o2 => FileType::CharDevice,
        0o4 => FileType::Directory,
        0o6 => FileType::BlockDevice,
        0o12 => FileType::Symlink,
        0o14 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// `st_rdev` to the kernel's 32-bit encoding.
pub fn kernel_device(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The kernel's 32-bit encoding to `st_rdev`.
pub fn user_device(rdev: u32) -> u64 {
    libc::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

fn time(ns: i64) -> SystemTime {
    if ns >= 0 {
        UNIX_EPOCH + Duration::from_nanos(ns as u64)
    } else {
        UNIX_EPOCH - Duration::from_nanos(ns.unsigned_abs())
    }
}

/// A time of a setattr.
pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(match at.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
        }),
    }
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

    #[test]
    fn times_before_1970_survive() {
        for ns in [-1_500_000_001, -1, 0, 1, 1_700_000_000_123_456_789] {
            assert_eq!(set_time(TimeOrNow::SpecificTime(time(ns))), SetTime::At(ns));
        }
    }
}
