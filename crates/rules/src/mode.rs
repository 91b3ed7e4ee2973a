//! The bits of `st_mode`.

/// Bits of the type.
pub const S_IFMT: u32 = 0o170_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// Pipe.
pub const S_IFIFO: u32 = 0o010_000;

/// Set-user-id.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id.
pub const S_ISGID: u32 = 0o2000;
/// Sticky: only owners may remove names.
pub const S_ISVTX: u32 = 0o1000;
/// Group execute permission.
pub const S_IXGRP: u32 = 0o010;
