//! Replies to the kernel: each request has one [`Reply`], used once, from any thread.

use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::abi;
use crate::device::Device;
use crate::queue::Slot;

/// Attributes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Attr {
    /// The node.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last access, in nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last change of data.
    pub mtime_ns: i64,
    /// Last change.
    pub ctime_ns: i64,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// Preferred size of transfers.
    pub blksize: u32,
}

impl Attr {
    fn record(&self) -> abi::AttrOut {
        const SECOND: i64 = 1_000_000_000;
        let seconds = |ns: i64| ns.div_euclid(SECOND) as u64;
        let rest = |ns: i64| ns.rem_euclid(SECOND) as u32;
        abi::AttrOut {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: seconds(self.atime_ns),
            mtime: seconds(self.mtime_ns),
            ctime: seconds(self.ctime_ns),
            atime_ns: rest(self.atime_ns),
            mtime_ns: rest(self.mtime_ns),
            ctime_ns: rest(self.ctime_ns),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// A name's node, and how long the kernel may cache it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The node; 0 in a listing: the kernel looks the name up if it needs the node.
    pub node: u64,
    /// The node's attributes.
    pub attr: Attr,
    /// How long the kernel may cache the name.
    pub entry_valid: Duration,
    /// How long the kernel may cache the attributes.
    pub attr_valid: Duration,
}

impl Entry {
    fn record(&self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.node,
            generation: 0,
            entry_valid: self.entry_valid.as_secs(),
            attr_valid: self.attr_valid.as_secs(),
            entry_valid_ns: self.entry_valid.subsec_nanos(),
            attr_valid_ns: self.attr_valid.subsec_nanos(),
            attr: self.attr.record(),
        }
    }
}

/// A record lock. `end` is the last byte, `i64::MAX` for the end of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// Process that holds it.
    pub pid: u32,
}

/// Answer to STATFS, as in `statvfs(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Space {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub name_length: u32,
}

/// Entries of a directory, as many as fit into the kernel's buffer.
#[derive(Clone, Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// An empty listing for a request with a buffer of `size` bytes.
    pub fn new(size: u32) -> Listing {
        Listing { bytes: Vec::with_capacity(size.min(1 << 16) as usize), room: size as usize }
    }

    /// Adds a name; `offset` is where the listing continues after it, `kind` is `DT_*`. False if it does not fit.
    #[must_use]
    pub fn add(&mut self, ino: u64, offset: u64, kind: u32, name: &[u8]) -> bool {
        self.push(&[], ino, offset, kind, name)
    }

    /// Adds a name with its node, for READDIRPLUS. False if it does not fit: then the kernel does not take a reference to the node.
    #[must_use]
    pub fn add_plus(&mut self, entry: &Entry, offset: u64, name: &[u8]) -> bool {
        self.push(entry.record().as_bytes(), entry.attr.ino, offset, entry.attr.mode >> 12, name)
    }

    fn push(&mut self, head: &[u8], ino: u64, offset: u64, kind: u32, name: &[u8]) -> bool {
        let dirent = abi::Dirent { ino, off: offset, namelen: name.len() as u32, kind: kind & 0o17 };
        let length = (head.len() + size_of::<abi::Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + length > self.room {
            return false;
        }
        let end = self.bytes.len() + length;
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// The transport of an answer.
pub(crate) enum Channel {
    Device(Arc<Device>),
    Ring(Slot),
    #[cfg(test)]
    Test(std::sync::mpsc::Sender<(u64, i32, Vec<u8>)>),
}

/// The right to answer one request. If it is dropped unused, the program gets `EIO` instead of hanging.
pub struct Reply {
    unique: u64,
    channel: Option<Channel>,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({})", self.unique)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(libc::EIO, &[]);
    }
}

impl Reply {
    pub(crate) fn new(unique: u64, channel: Channel) -> Reply {
        Reply { unique, channel: Some(channel) }
    }

    /// For a request without an answer.
    pub(crate) fn none(unique: u64) -> Reply {
        Reply { unique, channel: None }
    }

    fn send(&mut self, errno: i32, parts: &[&[u8]]) {
        match self.channel.take() {
            None => {}
            Some(Channel::Device(device)) => device.answer(self.unique, errno, parts),
            Some(Channel::Ring(slot)) => slot.answer(self.unique, errno, parts),
            #[cfg(test)]
            Some(Channel::Test(sender)) => drop(sender.send((self.unique, errno, parts.concat()))),
        }
    }

    /// The operation failed.
    pub fn error(mut self, errno: i32) {
        self.send(errno, &[]);
    }

    /// The operation succeeded, without a result.
    pub fn ok(mut self) {
        self.send(0, &[]);
    }

    /// Bytes, for READ, READLINK, GETXATTR, LISTXATTR.
    pub fn data(mut self, bytes: &[u8]) {
        self.send(0, &[bytes]);
    }

    /// A name's node, for LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(mut self, entry: &Entry) {
        self.send(0, &[entry.record().as_bytes()]);
    }

    /// Attributes, for GETATTR and SETATTR.
    pub fn attr(mut self, attr: &Attr, valid: Duration) {
        let record = abi::AttrReplyOut {
            attr_valid: valid.as_secs(),
            attr_valid_ns: valid.subsec_nanos(),
            dummy: 0,
            attr: attr.record(),
        };
        self.send(0, &[record.as_bytes()]);
    }

    /// An open file or directory; `flags` of [`abi::open`].
    pub fn opened(mut self, fh: u64, flags: u32) {
        self.send(0, &[abi::OpenOut { fh, open_flags: flags, padding: 0 }.as_bytes()]);
    }

    /// A created and opened file.
    pub fn created(mut self, entry: &Entry, fh: u64, flags: u32) {
        let open = abi::OpenOut { fh, open_flags: flags, padding: 0 };
        self.send(0, &[entry.record().as_bytes(), open.as_bytes()]);
    }

    /// The number of bytes written.
    pub fn written(mut self, size: u32) {
        self.send(0, &[abi::WriteOut { size, padding: 0 }.as_bytes()]);
    }

    /// The size of an extended attribute or of the list of names.
    pub fn xattr_size(mut self, size: u32) {
        self.send(0, &[abi::GetxattrOut { size, padding: 0 }.as_bytes()]);
    }

    /// Space.
    pub fn space(mut self, space: &Space) {
        let record = abi::StatfsOut {
            blocks: space.blocks,
            bfree: space.free,
            bavail: space.available,
            files: space.files,
            ffree: space.files_free,
            bsize: space.block_size,
            namelen: space.name_length,
            frsize: space.block_size,
            ..abi::StatfsOut::default()
        };
        self.send(0, &[record.as_bytes()]);
    }

    /// The conflicting lock, or one of kind `F_UNLCK`.
    pub fn lock(mut self, lock: &FileLock) {
        let record = abi::FileLockRecord { start: lock.start, end: lock.end, kind: lock.kind as u32, pid: lock.pid };
        self.send(0, &[record.as_bytes()]);
    }

    /// An offset, for LSEEK.
    pub fn offset(mut self, offset: u64) {
        self.send(0, &[abi::LseekOut { offset }.as_bytes()]);
    }

    /// An ioctl's result and output.
    pub fn ioctl(mut self, result: i32, output: &[u8]) {
        let record = abi::IoctlOut { result, flags: 0, in_iovs: 0, out_iovs: 0 };
        self.send(0, &[record.as_bytes(), output]);
    }

    /// Entries of a directory.
    pub fn listing(mut self, listing: &Listing) {
        self.send(0, &[&listing.bytes]);
    }
}
