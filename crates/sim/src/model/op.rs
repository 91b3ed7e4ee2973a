//! System calls as values, and the results that the model expects.

use client::api::{NewDir, SetTime};
use proto::Bytes;

use super::{Id, Path};

/// How bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteWay {
    /// `pwrite`; at the end of a file that was opened for appending.
    Plain,
    /// Through `mmap` and `msync`; only within the file.
    Mapped,
}

/// A system call. The process numbers its own open files (`fd`).
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Mkdir { path: Path, mode: u32 },
    MkdirOn { path: Path, mode: u32, wish: NewDir },
    Mknod { path: Path, mode: u32, rdev: u64 },
    Symlink { path: Path, target: Bytes },
    Link { from: Path, to: Path },
    Unlink { path: Path },
    Rmdir { path: Path },
    Rename { from: Path, to: Path, flags: u32 },
    Stat { path: Path },
    Readlink { path: Path },
    List { path: Path, plus: bool, bytes: u32 },
    Chmod { path: Path, mode: u32 },
    Chown { path: Path, uid: Option<u32>, gid: Option<u32> },
    Utimens { path: Path, atime: Option<SetTime>, mtime: Option<SetTime> },
    Access { path: Path, mask: u32 },
    Setxattr { path: Path, name: Bytes, value: Bytes, flags: u32 },
    Getxattr { path: Path, name: Bytes },
    Listxattr { path: Path },
    Removexattr { path: Path, name: Bytes },
    Truncate { path: Path, size: u64 },
    Open { path: Path, flags: u32, mode: u32, fd: u32 },
    Close { fd: u32 },
    Read { fd: u32, offset: u64, length: u32 },
    Write { fd: u32, way: WriteWay, offset: u64, data: Bytes },
    Ftruncate { fd: u32, size: u64 },
    Fallocate { fd: u32, mode: u32, offset: u64, length: u64 },
    Seek { fd: u32, offset: u64, hole: bool },
    Fstat { fd: u32 },
    Fsync { fd: u32, data_only: bool },
    Fsyncdir { path: Path },
    Syncfs,
    Statfs,
    PathToFid { path: Path },
    SetStripe { path: Path, size: u32, count: i32, first: i32 },
    SetDefault { path: Path, wish: Option<NewDir>, depth: u32 },
    Migrate { path: Path, count: i32, first: i32 },
}

/// What a call needs a path for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathRole {
    /// The object at the path, whatever its name.
    ToObject,
    /// The last name, in the directory given by the other components.
    ToName,
}

/// Opening creates the file if it does not exist.
const O_CREAT: u32 = 0o100;

impl Op {
    /// The call's paths.
    pub fn paths_mut(&mut self) -> Vec<(PathRole, &mut Path)> {
        use PathRole::{ToName, ToObject};
        match self {
            Op::Link { from, to } => vec![(ToObject, from), (ToName, to)],
            Op::Rename { from, to, .. } => vec![(ToName, from), (ToName, to)],
            Op::Mkdir { path, .. }
            | Op::MkdirOn { path, .. }
            | Op::Mknod { path, .. }
            | Op::Symlink { path, .. }
            | Op::Unlink { path }
            | Op::Rmdir { path } => vec![(ToName, path)],
            Op::Open { path, flags, .. } => vec![(if *flags & O_CREAT != 0 { ToName } else { ToObject }, path)],
            Op::Stat { path }
            | Op::Readlink { path }
            | Op::List { path, .. }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Utimens { path, .. }
            | Op::Access { path, .. }
            | Op::Setxattr { path, .. }
            | Op::Getxattr { path, .. }
            | Op::Listxattr { path }
            | Op::Removexattr { path, .. }
            | Op::Truncate { path, .. }
            | Op::Fsyncdir { path }
            | Op::PathToFid { path }
            | Op::SetStripe { path, .. }
            | Op::SetDefault { path, .. }
            | Op::Migrate { path, .. } => vec![(ToObject, path)],
            Op::Close { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Ftruncate { .. }
            | Op::Fallocate { .. }
            | Op::Seek { .. }
            | Op::Fstat { .. }
            | Op::Fsync { .. }
            | Op::Syncfs
            | Op::Statfs => Vec::new(),
        }
    }

    /// The path of the one object that the call is about and looks up first.
    pub fn object(&self) -> Option<&Path> {
        match self {
            Op::Stat { path }
            | Op::Readlink { path }
            | Op::List { path, .. }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Utimens { path, .. }
            | Op::Access { path, .. }
            | Op::Setxattr { path, .. }
            | Op::Getxattr { path, .. }
            | Op::Listxattr { path }
            | Op::Removexattr { path, .. }
            | Op::Truncate { path, .. }
            | Op::Open { path, .. }
            | Op::Link { from: path, .. } => Some(path),
            _ => None,
        }
    }

    /// The open file that the call uses.
    pub fn fd(&self) -> Option<u32> {
        match self {
            Op::Close { fd }
            | Op::Read { fd, .. }
            | Op::Write { fd, .. }
            | Op::Ftruncate { fd, .. }
            | Op::Fallocate { fd, .. }
            | Op::Seek { fd, .. }
            | Op::Fstat { fd }
            | Op::Fsync { fd, .. } => Some(*fd),
            _ => None,
        }
    }

    /// Whether it changes bytes or the size of a file.
    pub fn changes_data(&self) -> bool {
        match self {
            Op::Truncate { .. } | Op::Ftruncate { .. } | Op::Write { .. } | Op::Fallocate { .. } => true,
            Op::Open { flags, .. } => flags & 0o1000 != 0,
            _ => false,
        }
    }

    /// Whether it can change anything.
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            Op::Stat { .. }
                | Op::Readlink { .. }
                | Op::List { .. }
                | Op::Access { .. }
                | Op::Getxattr { .. }
                | Op::Listxattr { .. }
                | Op::Read { .. }
                | Op::Seek { .. }
                | Op::Fstat { .. }
                | Op::Fsync { .. }
                | Op::Fsyncdir { .. }
                | Op::Syncfs
                | Op::Statfs
                | Op::PathToFid { .. }
        )
    }

    /// Whether it makes a new object, which its reply describes.
    pub fn makes(&self) -> bool {
        matches!(self, Op::Mkdir { .. } | Op::MkdirOn { .. } | Op::Mknod { .. } | Op::Symlink { .. })
    }

    /// The name of the call in output.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Mkdir { .. } => "mkdir",
            Op::MkdirOn { .. } => "mkdir_on",
            Op::Mknod { .. } => "mknod",
            Op::Symlink { .. } => "symlink",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { .. } => "rename",
            Op::Stat { .. } => "stat",
            Op::Readlink { .. } => "readlink",
            Op::List { .. } => "list",
            Op::Chmod { .. } => "chmod",
            Op::Chown { .. } => "chown",
            Op::Utimens { .. } => "utimens",
            Op::Access { .. } => "access",
            Op::Setxattr { .. } => "setxattr",
            Op::Getxattr { .. } => "getxattr",
            Op::Listxattr { .. } => "listxattr",
            Op::Removexattr { .. } => "removexattr",
            Op::Truncate { .. } => "truncate",
            Op::Open { .. } => "open",
            Op::Close { .. } => "close",
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Ftruncate { .. } => "ftruncate",
            Op::Fallocate { .. } => "fallocate",
            Op::Seek { .. } => "lseek",
            Op::Fstat { .. } => "fstat",
            Op::Fsync { .. } => "fsync",
            Op::Fsyncdir { .. } => "fsyncdir",
            Op::Syncfs => "syncfs",
            Op::Statfs => "statfs",
            Op::PathToFid { .. } => "path2fid",
            Op::SetStripe { .. } => "setstripe",
            Op::SetDefault { .. } => "setdirstripe",
            Op::Migrate { .. } => "migrate",
        }
    }

    /// The call in one line, for messages.
    pub fn show(&self) -> String {
        let path = |path: &Path| {
            let parts: Vec<String> = path.iter().map(|name| name.escape_ascii().to_string()).collect();
            parts.join("/")
        };
        match self {
            Op::Mkdir { path: p, mode } => format!("mkdir {} {mode:o}", path(p)),
            Op::MkdirOn { path: p, mode, wish } => {
                let mdts: Vec<String> = wish.mdts.iter().map(u32::to_string).collect();
                format!("mkdir {} {mode:o} on {} by {}", path(p), mdts.join(","), wish.hash)
            }
            Op::Mknod { path: p, mode, rdev } => format!("mknod {} {mode:o} {rdev:x}", path(p)),
            Op::Symlink { path: p, target } => format!("symlink {} -> {}", path(p), target.escape_ascii()),
            Op::Link { from, to } => format!("link {} {}", path(from), path(to)),
            Op::Unlink { path: p } => format!("unlink {}", path(p)),
            Op::Rmdir { path: p } => format!("rmdir {}", path(p)),
            Op::Rename { from, to, flags } => format!("rename {} {} flags {flags}", path(from), path(to)),
            Op::Stat { path: p } => format!("stat {}", path(p)),
            Op::Readlink { path: p } => format!("readlink {}", path(p)),
            Op::List { path: p, plus, bytes } => format!("list {} plus {plus} in {bytes} bytes", path(p)),
            Op::Chmod { path: p, mode } => format!("chmod {} {mode:o}", path(p)),
            Op::Chown { path: p, uid, gid } => format!("chown {} {uid:?} {gid:?}", path(p)),
            Op::Utimens { path: p, atime, mtime } => format!("utimens {} {atime:?} {mtime:?}", path(p)),
            Op::Access { path: p, mask } => format!("access {} {mask}", path(p)),
            Op::Setxattr { path: p, name, value, flags } => {
                format!("setxattr {} {} ({} bytes) flags {flags}", path(p), name.escape_ascii(), value.len())
            }
            Op::Getxattr { path: p, name } => format!("getxattr {} {}", path(p), name.escape_ascii()),
            Op::Listxattr { path: p } => format!("listxattr {}", path(p)),
            Op::Removexattr { path: p, name } => format!("removexattr {} {}", path(p), name.escape_ascii()),
            Op::Truncate { path: p, size } => format!("truncate {} {size}", path(p)),
            Op::Open { path: p, flags, mode, fd } => format!("open {} flags 0{flags:o} mode {mode:o} as {fd}", path(p)),
            Op::Write { fd, way, offset, data } => format!("write {fd} {way:?} at {offset}, {} bytes", data.len()),
            Op::Fsyncdir { path: p } => format!("fsyncdir {}", path(p)),
            Op::PathToFid { path: p } => format!("path2fid {}", path(p)),
            Op::SetDefault { path: p, wish, depth } => {
                let wish =
                    wish.as_ref().map_or("nowhere".to_owned(), |wish| format!("{:?} by {}", wish.mdts, wish.hash));
                format!("setdirstripe {} on {wish} depth {depth}", path(p))
            }
            Op::SetStripe { path: p, size, count, first } => {
                format!("setstripe {} size {size} count {count} first {first}", path(p))
            }
            Op::Migrate { path: p, count, first } => format!("migrate {} count {count} first {first}", path(p)),
            other => format!("{other:?}"),
        }
    }
}

/// The result that the model expects of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// Success without a value.
    Done,
    /// The present attributes of this inode.
    Inode(Id),
    /// These bytes.
    Data(Bytes),
    /// This many bytes were written.
    Written(u32),
    /// These directory entries.
    Entries(Vec<(Bytes, Id)>),
    /// These attribute names, in any order.
    Names(Vec<Bytes>),
    /// With `hole`, an offset at or after this one where a hole is; otherwise one before which everything from `offset` on is a
    /// hole.
    Seek { id: Id, offset: u64, hole: bool },
    /// As `Seek` without `hole`, or `ENXIO`, depending on where holes are.
    SeekOrNothing { id: Id, offset: u64 },
}
