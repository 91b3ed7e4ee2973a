//! Lock messages: enqueue, cancel, replay and callbacks.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use crate::ids::Fid;

/// The resource that a lock is on: one lock space of one object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Message)]
pub struct Resource {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Lock space of the object, a [`ResourceKind`].
    #[prost(enumeration = "ResourceKind", tag = "2")]
    pub kind: i32,
    /// Index of the stripe for [`ResourceKind::Object`], otherwise 0.
    #[prost(uint32, tag = "3")]
    pub stripe: u32,
}

/// The lock spaces of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum ResourceKind {
    /// Inodebits locks, on the metadata target.
    Inode = 0,
    /// Extent locks on a stripe object, on its object target.
    Object = 1,
    /// `flock` locks and POSIX record locks, on the metadata target.
    Flock = 2,
}

impl Resource {
    /// The inodebits of `fid`.
    pub fn inode(fid: Fid) -> Resource {
        Resource { fid, kind: ResourceKind::Inode as i32, stripe: 0 }
    }
    /// The extents of a stripe object.
    pub fn object(fid: Fid, stripe: u32) -> Resource {
        Resource { fid, kind: ResourceKind::Object as i32, stripe }
    }
    /// The record locks of `fid`.
    pub fn flock(fid: Fid) -> Resource {
        Resource { fid, kind: ResourceKind::Flock as i32, stripe: 0 }
    }
}

/// Lock modes, with Lustre's numbers. Compatible modes: EX with NL only; PW with CR, NL; PR with PR, CR, NL;
/// CW with CW, CR, NL; CR with all but EX; NL with all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum LockMode {
    /// No mode; not valid in a request.
    Unset = 0,
    /// Exclusive.
    Ex = 1,
    /// Protected write.
    Pw = 2,
    /// Protected read.
    Pr = 4,
    /// Concurrent write.
    Cw = 8,
    /// Concurrent read.
    Cr = 16,
    /// Null; in a request for a record lock, unlock.
    Nl = 32,
}

/// Bits of an inode lock, with Lustre's numbers.
pub mod bits {
    /// The object's names, existence and type. Protects cached entries that lead to the object (it is the lock of the
    /// *child*).
    pub const LOOKUP: u64 = 0x01;
    /// Attributes and times; of a directory also its entries, including the absence of names.
    pub const UPDATE: u64 = 0x02;
    /// Open handles.
    pub const OPEN: u64 = 0x04;
    /// Layout: where the data lies.
    pub const LAYOUT: u64 = 0x08;
    /// Owner, mode, ACL.
    pub const PERM: u64 = 0x10;
    /// Extended attributes.
    pub const XATTR: u64 = 0x20;
    /// Data, size, blocks and mtime of a file that lives on the metadata target.
    pub const DOM: u64 = 0x40;
    /// Every bit.
    pub const ALL: u64 = 0x7f;
    /// Bits that a client caches of an object that it looked up.
    pub const CACHE: u64 = LOOKUP | UPDATE | PERM | XATTR | LAYOUT;
    /// The same for a directory without UPDATE, which has a separate lock because entries change more often than the
    /// directory.
    pub const CACHE_DIRECTORY: u64 = CACHE & !UPDATE;
}

/// A range of bytes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Extent {
    /// First byte.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// Last byte; `u64::MAX` is the end of every file.
    #[prost(uint64, tag = "2")]
    pub end: u64,
}

impl Extent {
    /// Everything.
    pub const ALL: Extent = Extent { start: 0, end: u64::MAX };

    /// Whether the extents share a byte.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether every byte of `other` is in `self`.
    pub fn covers(&self, other: &Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// A record lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Flock {
    /// First byte.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// Last byte.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// The owner within its client: locks of one owner never conflict.
    #[prost(uint64, tag = "3")]
    pub owner: u64,
    /// Process, for `F_GETLK`.
    #[prost(uint32, tag = "4")]
    pub pid: u32,
    /// A `flock(2)` lock, which never conflicts with POSIX record locks.
    #[prost(bool, tag = "5")]
    pub is_flock: bool,
}

/// The part of the resource that a lock covers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Oneof)]
pub enum Policy {
    /// Bits of [`bits`], for inodes.
    #[prost(uint64, tag = "4")]
    Bits(u64),
    /// Bytes, for objects.
    #[prost(message, tag = "5")]
    Extent(Extent),
    /// A record lock.
    #[prost(message, tag = "6")]
    Flock(Flock),
}

/// Lock value block: size, blocks and times of an object as a lock holder or a target knows them.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Lvb {
    /// Bytes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// Units of 512 bytes.
    #[prost(uint64, tag = "2")]
    pub blocks: u64,
    /// Nanoseconds.
    #[prost(sint64, tag = "3")]
    pub atime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "4")]
    pub mtime_ns: i64,
    /// Nanoseconds. The value with the newest ctime wins when values are merged.
    #[prost(sint64, tag = "5")]
    pub ctime_ns: i64,
}

/// Body of `LdlmEnqueue`. The reply is sent when the lock is granted; early replies extend the wait.
///
/// Errors: `EAGAIN` with `no_wait`; `EINTR` if [`CancelReq`] withdrew it; `EDEADLK` for record locks; `ENOLCK` if the
/// client or the target holds too many locks; `ESTALE` for a replay, see `version`.
#[derive(Clone, PartialEq, Message)]
pub struct EnqueueReq {
    /// What to lock.
    #[prost(message, required, tag = "1")]
    pub resource: Resource,
    /// Lock mode.
    #[prost(enumeration = "LockMode", tag = "2")]
    pub mode: i32,
    /// The client's identifier of this lock, unique while the lock lives; a resend repeats it.
    #[prost(uint64, tag = "3")]
    pub cookie: u64,
    /// Part of the resource to lock.
    #[prost(oneof = "Policy", tags = "4, 5, 6")]
    pub policy: Option<Policy>,
    /// Does not wait: fails with `EAGAIN` if the lock cannot be granted at once.
    #[prost(bool, tag = "7")]
    pub no_wait: bool,
    /// Extent locks: takes no lock, only returns the attributes as the holders see them.
    #[prost(bool, tag = "8")]
    pub glimpse: bool,
    /// Replay: the handle that the lock had before the restart; the lock is granted again as it was.
    #[prost(uint64, tag = "9")]
    pub granted_handle: u64,
    /// Record locks: takes no lock, only reports a conflicting lock (`F_GETLK`).
    #[prost(bool, tag = "10")]
    pub test: bool,
    /// Record locks in read mode: keeps write locks that the owner already has in the range instead of downgrading
    /// them.
    #[prost(bool, tag = "11")]
    pub keep: bool,
    /// Replay: the object's version as the client knows it. If the object is gone or has an older version, a change
    /// that the client saw was lost, and the lock is refused with `ESTALE`. 0: any version.
    #[prost(uint64, tag = "12")]
    pub version: u64,
}

/// A granted lock.
#[derive(Clone, PartialEq, Message)]
pub struct LockGrant {
    /// The server's handle of the lock.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// The client's cookie of the lock.
    #[prost(uint64, tag = "2")]
    pub cookie: u64,
    /// The locked resource.
    #[prost(message, required, tag = "3")]
    pub resource: Resource,
    /// Granted part of the resource. In a reply to an intent it may have fewer bits than requested; an extent may be
    /// larger.
    #[prost(oneof = "Policy", tags = "4, 5, 6")]
    pub policy: Option<Policy>,
    /// Mode.
    #[prost(enumeration = "LockMode", tag = "7")]
    pub mode: i32,
}

/// Body of the reply to `LdlmEnqueue`.
#[derive(Clone, PartialEq, Message)]
pub struct EnqueueRep {
    /// The granted lock; none for a glimpse, a test or an unlock.
    #[prost(message, optional, tag = "1")]
    pub grant: Option<LockGrant>,
    /// Extent locks: size, blocks and times of the object.
    #[prost(message, optional, tag = "2")]
    pub lvb: Option<Lvb>,
    /// `test`: the conflicting lock; none if there is none.
    #[prost(message, optional, tag = "3")]
    pub conflict: Option<Flock>,
    /// `test`: mode of the conflicting lock.
    #[prost(enumeration = "LockMode", tag = "4")]
    pub conflict_mode: i32,
}

/// Body of `LdlmReplay`: locks from before the target's restart, to be granted again as they were. Each is granted or
/// refused on its own, and a repeated replay of a lock has the same result.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReplayLocksReq {
    /// [`EnqueueReq`] messages, each preceded by its length (varint), so that a reader can decode them one at a time.
    #[prost(bytes = "bytes", tag = "1")]
    pub locks: Bytes,
}

impl ReplayLocksReq {
    /// Appends a lock to the encoded `locks`.
    pub fn push(locks: &mut Vec<u8>, lock: &EnqueueReq) {
        let written = lock.encode_length_delimited(locks);
        debug_assert!(written.is_ok(), "a vector grows");
    }

    /// Decodes the locks, in order. A decoding error is the last item.
    pub fn iter(&self) -> impl Iterator<Item = Result<EnqueueReq, prost::DecodeError>> {
        super::one_by_one(&self.locks)
    }
}

/// Body of the reply to `LdlmReplay`.
#[derive(Clone, PartialEq, Message)]
pub struct ReplayLocksRep {
    /// The server's new handle of each lock, in the order of the request. 0 for a record lock, which has no handle, and
    /// for a lock in `failed`.
    #[prost(uint64, repeated, tag = "1")]
    pub handles: Vec<u64>,
    /// The locks that were not granted again.
    #[prost(message, repeated, tag = "2")]
    pub failed: Vec<ReplayFailure>,
}

/// A lock of a [`ReplayLocksReq`] that was not granted again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReplayFailure {
    /// Index in the request, from 0.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// Reason, as a positive Linux errno.
    #[prost(int32, tag = "2")]
    pub errno: i32,
}

/// Body of `LdlmCancel`: releases locks. Unknown handles are ignored, because those locks were cancelled before.
#[derive(Clone, PartialEq, Message)]
pub struct CancelReq {
    /// Server handles of granted locks.
    #[prost(uint64, repeated, tag = "1")]
    pub handles: Vec<u64>,
    /// Cookies of enqueues that still wait; these are answered `EINTR`.
    #[prost(uint64, repeated, tag = "2")]
    pub waiting_cookies: Vec<u64>,
}

/// Body of `LdlmBlCallback`: asks the client to write back what the lock protects and to cancel it. Resent after a
/// reconnect. A client that does not hold the lock also answers with a cancel of the handle.
#[derive(Clone, PartialEq, Message)]
pub struct BlCallback {
    /// The server's handle of the lock.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// The client's cookie of the lock, because the callback may overtake the grant.
    #[prost(uint64, tag = "2")]
    pub cookie: u64,
    /// The locked resource.
    #[prost(message, required, tag = "3")]
    pub resource: Resource,
    /// Part of the resource that the conflicting request needs.
    #[prost(oneof = "Policy", tags = "4, 5, 6")]
    pub wanted: Option<Policy>,
    /// Mode that the conflicting request needs.
    #[prost(enumeration = "LockMode", tag = "7")]
    pub wanted_mode: i32,
}

/// Body of `LdlmLruLimit`: the most unused locks that the client may keep at this target; it cancels the least recently
/// used ones beyond that. Valid until the next limit or the next connection.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LruLimit {
    /// Number of locks; 0 is no limit.
    #[prost(uint32, tag = "1")]
    pub locks: u32,
}

/// Body of `LdlmGlCallback`: asks a lock's holder for the object's current size and times, to be sent in `LdlmGlReply`.
#[derive(Clone, PartialEq, Message)]
pub struct GlCallback {
    /// The server's handle of the lock.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// The client's cookie of the lock.
    #[prost(uint64, tag = "2")]
    pub cookie: u64,
    /// The locked resource.
    #[prost(message, required, tag = "3")]
    pub resource: Resource,
    /// Serial number of this callback. The reply repeats it, so that a late reply to an earlier callback is not
    /// mistaken for it.
    #[prost(uint64, tag = "4")]
    pub serial: u64,
}

/// Body of `LdlmGlReply`, a request from client to server.
#[derive(Clone, PartialEq, Message)]
pub struct GlReply {
    /// Handle of the lock, from the callback.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// The holder's values; none if it no longer has the lock or its data, in which case the target's own values count.
    #[prost(message, optional, tag = "2")]
    pub lvb: Option<Lvb>,
    /// Serial number of the callback.
    #[prost(uint64, tag = "3")]
    pub serial: u64,
    /// New, weaker mode of the lock, in which the requester can get a read lock of its own. Unset: unchanged. Only with
    /// [`crate::connect::features::LOCK_CONVERT`].
    #[prost(enumeration = "LockMode", tag = "4")]
    pub mode: i32,
}
