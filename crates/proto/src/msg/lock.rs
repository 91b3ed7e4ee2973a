//! Locks on the wire.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use crate::ids::Fid;

/// What a lock covers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Message)]
pub struct Resource {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Which of its lock spaces.
    #[prost(enumeration = "ResourceKind", tag = "2")]
    pub kind: i32,
    /// For [`ResourceKind::Object`], the stripe.
    #[prost(uint32, tag = "3")]
    pub stripe: u32,
}

/// The lock spaces of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum ResourceKind {
    /// Inodebits, on the metadata target.
    Inode = 0,
    /// Extents of a stripe object, on its object target.
    Object = 1,
    /// `flock` and POSIX record locks, on the metadata target.
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
    /// No mode: nothing asked for. Not a valid request.
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
    /// Null: unlock of a record lock.
    Nl = 32,
}

/// Bits of an inode lock, with Lustre's numbers.
pub mod bits {
    /// Names that lead to the object, existence, type. Covers cached entries (the lock of the *child*).
    pub const LOOKUP: u64 = 0x01;
    /// Attributes and times; of a directory also its entries, and names that it does not have.
    pub const UPDATE: u64 = 0x02;
    /// Being open.
    pub const OPEN: u64 = 0x04;
    /// Where the data lies.
    pub const LAYOUT: u64 = 0x08;
    /// Owner, mode, ACL.
    pub const PERM: u64 = 0x10;
    /// Extended attributes.
    pub const XATTR: u64 = 0x20;
    /// Data (and size, blocks, mtime) of a file that lives on the metadata target.
    pub const DOM: u64 = 0x40;
    /// Every bit.
    pub const ALL: u64 = 0x7f;
    /// What a client caches of an object that it looked up.
    pub const CACHE: u64 = LOOKUP | UPDATE | PERM | XATTR | LAYOUT;
    /// The same of a directory, whose entries change more often than itself: UPDATE has a lock of its own there.
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

    /// Whether they share a byte.
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
    /// `flock(2)`, which lives in a world apart from POSIX record locks.
    #[prost(bool, tag = "5")]
    pub is_flock: bool,
}

/// What part of the resource a lock covers.
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

/// Size, blocks and times of an object: what a holder or a target knows of it (lock value block).
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
    /// Nanoseconds; the newest wins when values are merged.
    #[prost(sint64, tag = "5")]
    pub ctime_ns: i64,
}

/// Body of `LdlmEnqueue`. The reply comes when the lock is granted (early replies meanwhile).
#[derive(Clone, PartialEq, Message)]
pub struct EnqueueReq {
    /// What to lock.
    #[prost(message, required, tag = "1")]
    pub resource: Resource,
    /// How.
    #[prost(enumeration = "LockMode", tag = "2")]
    pub mode: i32,
    /// The client's own number for this lock, unique while it lives; a resend repeats it.
    #[prost(uint64, tag = "3")]
    pub cookie: u64,
    /// Which part.
    #[prost(oneof = "Policy", tags = "4, 5, 6")]
    pub policy: Option<Policy>,
    /// Do not wait: `EAGAIN` if it cannot be granted at once.
    #[prost(bool, tag = "7")]
    pub no_wait: bool,
    /// Extent locks: do not lock, only tell the attributes as the holders see them.
    #[prost(bool, tag = "8")]
    pub glimpse: bool,
    /// Replay: the server's old handle of a lock that was granted; it is granted again as it was.
    #[prost(uint64, tag = "9")]
    pub granted_handle: u64,
    /// Record locks: only tell who is in the way (`F_GETLK`).
    #[prost(bool, tag = "10")]
    pub test: bool,
    /// Record locks, to read: where the owner may write already it goes on doing so.
    #[prost(bool, tag = "11")]
    pub keep: bool,
    /// Replay: the object's version as the client knows it. If the object is gone or older, what the client saw was lost, and the
    /// lock is refused with `ESTALE`. 0: whatever it is.
    #[prost(uint64, tag = "12")]
    pub version: u64,
}

/// A lock that was granted.
#[derive(Clone, PartialEq, Message)]
pub struct LockGrant {
    /// The server's handle.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// The client's cookie.
    #[prost(uint64, tag = "2")]
    pub cookie: u64,
    /// On what.
    #[prost(message, required, tag = "3")]
    pub resource: Resource,
    /// What was granted; bits may be fewer than asked for in an intent, extents larger.
    #[prost(oneof = "Policy", tags = "4, 5, 6")]
    pub policy: Option<Policy>,
    /// Mode.
    #[prost(enumeration = "LockMode", tag = "7")]
    pub mode: i32,
}

/// Body of the reply to `LdlmEnqueue`.
#[derive(Clone, PartialEq, Message)]
pub struct EnqueueRep {
    /// The lock; none for a glimpse, a test, an unlock.
    #[prost(message, optional, tag = "1")]
    pub grant: Option<LockGrant>,
    /// Extent locks: what the target knows of the object.
    #[prost(message, optional, tag = "2")]
    pub lvb: Option<Lvb>,
    /// `test`: the lock in the way; none if nothing is.
    #[prost(message, optional, tag = "3")]
    pub conflict: Option<Flock>,
    /// `test`: mode of the lock in the way.
    #[prost(enumeration = "LockMode", tag = "4")]
    pub conflict_mode: i32,
}

/// Body of `LdlmReplay`: locks that were granted, to be granted again as they were. Each is done or refused by itself; the
/// same again gives the same.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReplayLocksReq {
    /// One `EnqueueReq` after the other, each behind its length (varint): a reader takes them out one by one.
    #[prost(bytes = "bytes", tag = "1")]
    pub locks: Bytes,
}

impl ReplayLocksReq {
    /// Puts a lock behind those that there are.
    pub fn push(locks: &mut Vec<u8>, lock: &EnqueueReq) {
        let written = lock.encode_length_delimited(locks);
        debug_assert!(written.is_ok(), "a vector grows");
    }

    /// The locks, in order; an error is the last.
    pub fn iter(&self) -> impl Iterator<Item = Result<EnqueueReq, prost::DecodeError>> {
        super::one_by_one(&self.locks)
    }
}

/// Body of the reply to `LdlmReplay`.
#[derive(Clone, PartialEq, Message)]
pub struct ReplayLocksRep {
    /// The server's new handle of each lock, in the order of the request. 0: a record lock, which has none, or a lock
    /// that is among `failed`.
    #[prost(uint64, repeated, tag = "1")]
    pub handles: Vec<u64>,
    /// Those that were not granted again.
    #[prost(message, repeated, tag = "2")]
    pub failed: Vec<ReplayFailure>,
}

/// A lock that was not granted again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReplayFailure {
    /// Its place in the request, from 0.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// Why: a Linux errno.
    #[prost(int32, tag = "2")]
    pub errno: i32,
}

/// Body of `LdlmCancel`: locks given back. Unknown handles are ignored: they were cancelled before.
#[derive(Clone, PartialEq, Message)]
pub struct CancelReq {
    /// Server handles of granted locks.
    #[prost(uint64, repeated, tag = "1")]
    pub handles: Vec<u64>,
    /// Cookies of locks that still wait: their enqueue is answered `EINTR`.
    #[prost(uint64, repeated, tag = "2")]
    pub waiting_cookies: Vec<u64>,
}

/// Body of `LdlmBlCallback`: give this lock back when its work is done. Sent again after a reconnect; a client that no
/// longer has the lock answers with a cancel of the handle all the same.
#[derive(Clone, PartialEq, Message)]
pub struct BlCallback {
    /// Server's handle.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// Client's cookie: the callback may overtake the grant.
    #[prost(uint64, tag = "2")]
    pub cookie: u64,
    /// On what.
    #[prost(message, required, tag = "3")]
    pub resource: Resource,
    /// What somebody wants.
    #[prost(oneof = "Policy", tags = "4, 5, 6")]
    pub wanted: Option<Policy>,
    /// In which mode.
    #[prost(enumeration = "LockMode", tag = "7")]
    pub wanted_mode: i32,
}

/// Body of `LdlmLruLimit`: how many locks that it does not use a client may keep on this target; the longest unused go.
/// It holds until the next one, or the next connection.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LruLimit {
    /// How many; 0: as many as it likes.
    #[prost(uint32, tag = "1")]
    pub locks: u32,
}

/// Body of `LdlmGlCallback`: say what the object looks like now, in a `LdlmGlReply`.
#[derive(Clone, PartialEq, Message)]
pub struct GlCallback {
    /// Server's handle of the lock whose holder is asked.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// Client's cookie.
    #[prost(uint64, tag = "2")]
    pub cookie: u64,
    /// On what.
    #[prost(message, required, tag = "3")]
    pub resource: Resource,
    /// Number of this question, repeated in the reply, so that a late answer to an earlier one is not taken for its own.
    #[prost(uint64, tag = "4")]
    pub serial: u64,
}

/// Body of `LdlmGlReply`, a request from client to server.
#[derive(Clone, PartialEq, Message)]
pub struct GlReply {
    /// The handle of the callback.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// None if the lock or its data are gone: the target's own values stand.
    #[prost(message, optional, tag = "2")]
    pub lvb: Option<Lvb>,
    /// The number of the callback.
    #[prost(uint64, tag = "3")]
    pub serial: u64,
    /// The lock is held in this weaker mode from now on: who asked may read under a lock of its own. Unset: as it was. Only with
    /// [`crate::connect::features::LOCK_CONVERT`].
    #[prost(enumeration = "LockMode", tag = "4")]
    pub mode: i32,
}
